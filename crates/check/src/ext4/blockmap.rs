//! Which clusters are in use: one bit each, kept only for groups that have any.
//!
//! A mostly empty 16 TiB volume takes a pointer per group and 4 KiB per group in use.

use blockwright_ondisk::ext4::{BlockNo, Geometry, GroupNo};

/// A set of clusters.
pub(super) struct BlockMap {
    groups: Vec<Option<Box<[u64]>>>,
    words: usize,
    first_block: u64,
    blocks_per_group: u64,
    cluster_bits: u32,
    blocks_count: u64,
}

impl BlockMap {
    /// An empty set.
    pub fn new(geo: &Geometry) -> Self {
        let mut groups = Vec::new();
        groups.resize_with(geo.groups_count as usize, || None);
        Self {
            groups,
            words: (geo.clusters_per_group as usize).div_ceil(64),
            first_block: geo.first_data_block.0,
            blocks_per_group: u64::from(geo.blocks_per_group),
            cluster_bits: geo.cluster_bits,
            blocks_count: geo.blocks_count,
        }
    }

    fn split(&self, block: u64) -> Option<(usize, usize)> {
        let rel = block.checked_sub(self.first_block)?;
        if block >= self.blocks_count {
            return None;
        }
        let group = (rel / self.blocks_per_group) as usize;
        let bit = ((rel % self.blocks_per_group) >> self.cluster_bits) as usize;
        (group < self.groups.len()).then_some((group, bit))
    }

    /// Whether the block's cluster is in the set.
    pub fn contains(&self, block: BlockNo) -> bool {
        self.split(block.0).is_some_and(|(group, bit)| {
            self.groups[group]
                .as_ref()
                .is_some_and(|w| w[bit / 64] >> (bit % 64) & 1 != 0)
        })
    }

    /// Adds the clusters of a run of blocks; blocks outside of the volume are ignored. Clusters
    /// that were there already are added to `twice`. How many those were.
    pub fn insert_run(&mut self, first: BlockNo, count: u64, mut twice: Option<&mut Self>) -> u64 {
        let mut again = 0u64;
        let mut at = first.0.max(self.first_block);
        let end = first.0.saturating_add(count).min(self.blocks_count);
        while at < end {
            let Some((group, bit)) = self.split(at) else {
                break;
            };
            let group_start = self.first_block + group as u64 * self.blocks_per_group;
            let piece_end = end.min(group_start + self.blocks_per_group);
            let last = ((piece_end - 1 - group_start) >> self.cluster_bits) as usize;
            let words = self.words;
            let bits = self.groups[group].get_or_insert_with(|| vec![0; words].into());
            let mut b = bit;
            while b <= last {
                let (word, low) = (b / 64, b % 64);
                let n = (64 - low).min(last - b + 1);
                let mask = if n == 64 {
                    u64::MAX
                } else {
                    ((1u64 << n) - 1) << low
                };
                let both = bits[word] & mask;
                if both != 0 {
                    again += u64::from(both.count_ones());
                    if let Some(twice) = twice.as_deref_mut() {
                        let words = twice.words;
                        twice.groups[group].get_or_insert_with(|| vec![0; words].into())[word] |=
                            both;
                    }
                }
                bits[word] |= mask;
                b += n;
            }
            at = piece_end;
        }
        again
    }

    /// Takes the clusters of a run of blocks out of the set.
    pub fn remove_run(&mut self, first: BlockNo, count: u64) {
        let mut at = first.0.max(self.first_block);
        let end = first.0.saturating_add(count).min(self.blocks_count);
        while at < end {
            let Some((group, bit)) = self.split(at) else {
                break;
            };
            if let Some(bits) = &mut self.groups[group] {
                bits[bit / 64] &= !(1 << (bit % 64));
            }
            at = ((at >> self.cluster_bits) + 1) << self.cluster_bits;
        }
    }

    /// Adds what a bitmap of a group says is in use.
    pub fn insert_bitmap(&mut self, group: GroupNo, bytes: &[u8]) {
        let words = self.words;
        let Some(slot) = self.groups.get_mut(group.0 as usize) else {
            return;
        };
        let bits = slot.get_or_insert_with(|| vec![0; words].into());
        for (word, bytes) in bits.iter_mut().zip(bytes.chunks(8)) {
            let mut all = [0; 8];
            all[..bytes.len()].copy_from_slice(bytes);
            *word |= u64::from_le_bytes(all);
        }
    }

    /// Clusters of a group that are in the set.
    pub fn count_in(&self, group: GroupNo) -> u32 {
        match self.groups.get(group.0 as usize) {
            Some(Some(bits)) => bits.iter().map(|w| w.count_ones()).sum(),
            _ => 0,
        }
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.groups
            .iter()
            .flatten()
            .all(|bits| bits.iter().all(|w| *w == 0))
    }

    /// The group's bits as they would lie in a bitmap, `bytes` bytes of them.
    pub fn group_bytes(&self, group: GroupNo, bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        if let Some(Some(bits)) = self.groups.get(group.0 as usize) {
            for (dest, word) in out.chunks_mut(8).zip(bits.iter()) {
                dest.copy_from_slice(&word.to_le_bytes()[..dest.len()]);
            }
        }
        out
    }

    /// Runs of blocks within `first..first + count` whose clusters are in the set.
    pub fn runs_within(&self, first: BlockNo, count: u64) -> Vec<(BlockNo, u64)> {
        let mut out: Vec<(BlockNo, u64)> = Vec::new();
        let mut at = first.0;
        let end = first.0.saturating_add(count).min(self.blocks_count);
        while at < end {
            let Some((group, bit)) = self.split(at) else {
                break;
            };
            let Some(bits) = &self.groups[group] else {
                at = self.first_block + (group as u64 + 1) * self.blocks_per_group;
                continue;
            };
            // Skip whole empty words: a file of a terabyte with one shared block is common.
            if bits[bit / 64] >> (bit % 64) == 0 && self.cluster_bits == 0 {
                at += (64 - bit % 64) as u64;
                let group_end = self.first_block + (group as u64 + 1) * self.blocks_per_group;
                at = at.min(group_end);
                continue;
            }
            if bits[bit / 64] >> (bit % 64) & 1 != 0 {
                match out.last_mut() {
                    Some((start, n)) if start.0 + *n == at => *n += 1,
                    _ => out.push((BlockNo(at), 1)),
                }
            }
            at += 1;
        }
        out
    }

    /// A free cluster at or behind `near` (wrapping around), as its first block.
    pub fn find_free(&self, near: BlockNo) -> Option<BlockNo> {
        let total = self.groups.len();
        let (start_group, start_bit) = self.split(near.0).unwrap_or((0, 0));
        for step in 0..=total {
            let group = (start_group + step) % total.max(1);
            let group_start = self.first_block + group as u64 * self.blocks_per_group;
            let len = (self.blocks_count - group_start).min(self.blocks_per_group);
            let bits_here = (len >> self.cluster_bits) as usize;
            let from = if step == 0 { start_bit } else { 0 };
            let free = match &self.groups[group] {
                None => (from < bits_here).then_some(from),
                Some(bits) => (from..bits_here).find(|b| bits[b / 64] >> (b % 64) & 1 == 0),
            };
            if let Some(bit) = free {
                return Some(BlockNo(group_start + ((bit as u64) << self.cluster_bits)));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockwright_ondisk::ext4::Superblock;
    use blockwright_ondisk::ext4::superblock::RawSuperblock;

    fn geo() -> Geometry {
        let mut raw = RawSuperblock::zeroed();
        raw.magic.set(0xEF53);
        raw.rev_level.set(1);
        raw.log_block_size.set(2);
        raw.log_cluster_size.set(2);
        raw.blocks_per_group.set(32768);
        raw.clusters_per_group.set(32768);
        raw.inodes_per_group.set(1024);
        raw.inode_size.set(256);
        raw.first_ino.set(11);
        raw.inodes_count.set(3 * 1024);
        raw.set_blocks_count(32768 * 2 + 1000);
        Superblock::from_raw(raw, None).unwrap().geo
    }

    #[test]
    fn runs_cross_words_and_groups() {
        let geo = geo();
        let mut map = BlockMap::new(&geo);
        let mut twice = BlockMap::new(&geo);
        assert_eq!(map.insert_run(BlockNo(32700), 200, Some(&mut twice)), 0);
        assert!(!map.contains(BlockNo(32699)) && map.contains(BlockNo(32899)));
        assert!(!map.contains(BlockNo(32900)));
        assert_eq!(map.count_in(GroupNo(0)), 68);
        assert_eq!(map.count_in(GroupNo(1)), 132);
        assert_eq!(map.insert_run(BlockNo(32760), 10, Some(&mut twice)), 10);
        assert_eq!(twice.runs_within(BlockNo(0), 66000), [(BlockNo(32760), 10)]);
        assert_eq!(map.find_free(BlockNo(32700)), Some(BlockNo(32900)));
        map.remove_run(BlockNo(32761), 8);
        assert!(!map.contains(BlockNo(32761)) && !map.contains(BlockNo(32768)));
        assert!(map.contains(BlockNo(32760)) && map.contains(BlockNo(32769)));
        let mut other = BlockMap::new(&geo);
        other.insert_bitmap(GroupNo(1), &map.group_bytes(GroupNo(1), 1024));
        assert_eq!(other.count_in(GroupNo(1)), map.count_in(GroupNo(1)));
        map.insert_run(BlockNo(65536), 1 << 40, None);
        assert_eq!(map.count_in(GroupNo(2)), 1000);
        assert_eq!(map.find_free(BlockNo(66000)), Some(BlockNo(0)));
    }
}
