//! Which clusters are in use: runs for groups that have few, one bit each for others, nothing for groups that have none.
//!
//! A mostly empty 16 TiB volume takes some 100 bytes a group, and 4 KiB per group whose clusters are in many pieces.

use std::borrow::Cow;

use blockwright_ondisk::ext4::{BlockNo, Geometry, GroupNo};

/// Runs of a group that are kept as such: its own metadata, and a little more.
const RUNS_MAX: usize = 8;

/// The clusters of a group that are in the set.
enum Bits {
    /// First and behind the last, ascending, apart from each other.
    Runs(Vec<(u32, u32)>),
    Map(Box<[u64]>),
}

/// A set of clusters.
pub(super) struct BlockMap {
    groups: Vec<Bits>,
    words: usize,
    first_block: u64,
    blocks_per_group: u64,
    cluster_bits: u32,
    blocks_count: u64,
}

/// Calls `word(index, mask)` for the words that hold the bits `from..to`.
fn for_words(from: usize, to: usize, mut word: impl FnMut(usize, u64)) {
    let mut b = from;
    while b < to {
        let (index, low) = (b / 64, b % 64);
        let n = (64 - low).min(to - b);
        let mask = if n == 64 {
            u64::MAX
        } else {
            ((1u64 << n) - 1) << low
        };
        word(index, mask);
        b += n;
    }
}

impl Bits {
    fn is_empty(&self) -> bool {
        match self {
            Bits::Runs(runs) => runs.is_empty(),
            Bits::Map(bits) => bits.iter().all(|w| *w == 0),
        }
    }

    fn contains(&self, bit: usize) -> bool {
        match self {
            Bits::Runs(runs) => {
                (runs.iter()).any(|(from, to)| (*from as usize..*to as usize).contains(&bit))
            }
            Bits::Map(bits) => bits[bit / 64] >> (bit % 64) & 1 != 0,
        }
    }

    fn count(&self) -> u32 {
        match self {
            Bits::Runs(runs) => runs.iter().map(|(from, to)| to - from).sum(),
            Bits::Map(bits) => bits.iter().map(|w| w.count_ones()).sum(),
        }
    }

    /// All bits, one each.
    fn words(&self, words: usize) -> Cow<'_, [u64]> {
        match self {
            Bits::Runs(runs) => {
                let mut out = vec![0; words];
                for (from, to) in runs {
                    for_words(*from as usize, *to as usize, |n, mask| out[n] |= mask);
                }
                out.into()
            }
            Bits::Map(bits) => Cow::Borrowed(bits),
        }
    }

    /// The same, to be changed.
    fn map(&mut self, words: usize) -> &mut [u64] {
        if let Bits::Runs(_) = self {
            *self = Bits::Map(self.words(words).into_owned().into());
        }
        match self {
            Bits::Map(bits) => bits,
            // Not after the line above.
            Bits::Runs(_) => &mut [],
        }
    }

    /// Adds a run that has nothing in common with what is there, if it stays a matter of few runs.
    fn add_run(&mut self, from: u32, to: u32) -> bool {
        let Bits::Runs(runs) = self else { return false };
        let at = runs.partition_point(|(start, _)| *start < from);
        let clear = runs.get(at).is_none_or(|(start, _)| *start >= to)
            && at.checked_sub(1).is_none_or(|n| runs[n].1 <= from);
        if !clear {
            return false;
        }
        let joins_before = at > 0 && runs[at - 1].1 == from;
        let joins_next = runs.get(at).is_some_and(|(start, _)| *start == to);
        match (joins_before, joins_next) {
            (true, true) => {
                runs[at - 1].1 = runs[at].1;
                runs.remove(at);
            }
            (true, false) => runs[at - 1].1 = to,
            (false, true) => runs[at].0 = from,
            (false, false) if runs.len() < RUNS_MAX => runs.insert(at, (from, to)),
            (false, false) => return false,
        }
        true
    }
}

impl BlockMap {
    /// An empty set.
    pub fn new(geo: &Geometry) -> Self {
        let mut groups = Vec::new();
        groups.resize_with(geo.groups_count as usize, || Bits::Runs(Vec::new()));
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
        self.split(block.0)
            .is_some_and(|(group, bit)| self.groups[group].contains(bit))
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
            let behind = ((piece_end - 1 - group_start) >> self.cluster_bits) as usize + 1;
            at = piece_end;
            let words = self.words;
            if self.groups[group].add_run(bit as u32, behind as u32) {
                continue;
            }
            let bits = self.groups[group].map(words);
            for_words(bit, behind, |n, mask| {
                let both = bits[n] & mask;
                if both != 0 {
                    again += u64::from(both.count_ones());
                    if let Some(twice) = twice.as_deref_mut() {
                        twice.groups[group].map(words)[n] |= both;
                    }
                }
                bits[n] |= mask;
            });
        }
        again
    }

    /// Adds the clusters of a run of blocks, as [`BlockMap::insert_run`] does, and calls `fresh` with the runs of blocks whose
    /// clusters were not there. Runs end at the borders of groups and of words of 64 clusters. Returns the number of clusters that were there already.
    pub fn insert_fresh(
        &mut self,
        first: BlockNo,
        count: u64,
        fresh: &mut dyn FnMut(u64, u64),
    ) -> u64 {
        let mut again = 0u64;
        let mut at = first.0.max(self.first_block);
        let end = first.0.saturating_add(count).min(self.blocks_count);
        while at < end {
            let Some((group, bit)) = self.split(at) else {
                break;
            };
            let group_start = self.first_block + group as u64 * self.blocks_per_group;
            let piece_end = end.min(group_start + self.blocks_per_group);
            let behind = ((piece_end - 1 - group_start) >> self.cluster_bits) as usize + 1;
            at = piece_end;
            let (words, cluster_bits) = (self.words, self.cluster_bits);
            let mut tell = |from: usize, to: usize| {
                let first = group_start + ((from as u64) << cluster_bits);
                fresh(first, ((to - from) as u64) << cluster_bits);
            };
            if self.groups[group].add_run(bit as u32, behind as u32) {
                tell(bit, behind);
                continue;
            }
            let bits = self.groups[group].map(words);
            for_words(bit, behind, |n, mask| {
                again += u64::from((bits[n] & mask).count_ones());
                let mut new = mask & !bits[n];
                bits[n] |= mask;
                let mut at = n * 64;
                while new != 0 {
                    let skip = new.trailing_zeros();
                    new >>= skip;
                    let len = new.trailing_ones();
                    at += skip as usize;
                    tell(at, at + len as usize);
                    at += len as usize;
                    new = new.checked_shr(len).unwrap_or(0);
                }
            });
        }
        again
    }

    /// Takes the clusters of a run of blocks out of the set.
    pub fn remove_run(&mut self, first: BlockNo, count: u64) {
        let mut at = first.0.max(self.first_block);
        let end = first.0.saturating_add(count).min(self.blocks_count);
        let words = self.words;
        while at < end {
            let Some((group, bit)) = self.split(at) else {
                break;
            };
            if self.groups[group].contains(bit) {
                self.groups[group].map(words)[bit / 64] &= !(1 << (bit % 64));
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
        if bytes.iter().all(|b| *b == 0) {
            return;
        }
        for (word, bytes) in slot.map(words).iter_mut().zip(bytes.chunks(8)) {
            let mut all = [0; 8];
            all[..bytes.len()].copy_from_slice(bytes);
            *word |= u64::from_le_bytes(all);
        }
    }

    /// Clusters of a group that are in the set.
    pub fn count_in(&self, group: GroupNo) -> u32 {
        self.groups.get(group.0 as usize).map_or(0, Bits::count)
    }

    /// Blocks of the set.
    pub fn blocks(&self) -> u64 {
        let clusters: u64 = self.groups.iter().map(|g| u64::from(g.count())).sum();
        clusters << self.cluster_bits
    }

    /// Whether a block is in both sets.
    pub fn meets(&self, other: &Self) -> bool {
        let mut pairs = self.groups.iter().zip(&other.groups);
        pairs.any(|(a, b)| {
            let (a, b) = (a.words(self.words), b.words(self.words));
            a.iter().zip(&*b).any(|(a, b)| a & b != 0)
        })
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.groups.iter().all(Bits::is_empty)
    }

    /// The group's bits as they would lie in a bitmap, `bytes` bytes of them.
    pub fn group_bytes(&self, group: GroupNo, bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        if let Some(bits) = self.groups.get(group.0 as usize).filter(|b| !b.is_empty()) {
            for (dest, word) in out.chunks_mut(8).zip(bits.words(self.words).iter()) {
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
        let mut add = |at: u64| match out.last_mut() {
            Some((start, n)) if start.0 + *n == at => *n += 1,
            _ => out.push((BlockNo(at), 1)),
        };
        while at < end {
            let Some((group, bit)) = self.split(at) else {
                break;
            };
            let group_end = self.first_block + (group as u64 + 1) * self.blocks_per_group;
            let bits = match &self.groups[group] {
                Bits::Runs(runs) if runs.is_empty() => {
                    at = group_end;
                    continue;
                }
                Bits::Runs(_) => {
                    if self.groups[group].contains(bit) {
                        add(at);
                    }
                    at += 1;
                    continue;
                }
                Bits::Map(bits) => bits,
            };
            // Skip whole empty words: a file of a terabyte with one shared block is common.
            if bits[bit / 64] >> (bit % 64) == 0 && self.cluster_bits == 0 {
                at += (64 - bit % 64) as u64;
                at = at.min(group_end);
                continue;
            }
            if bits[bit / 64] >> (bit % 64) & 1 != 0 {
                add(at);
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
            if self.groups[group].count() as usize >= bits_here {
                continue;
            }
            let free = (from..bits_here).find(|b| !self.groups[group].contains(*b));
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
        let mut fresh = Vec::new();
        let again = map.insert_fresh(BlockNo(32750), 300, &mut |at, n| fresh.push((at, n)));
        let fresh_blocks: u64 = fresh.iter().map(|(_, n)| n).sum();
        assert_eq!((again, fresh_blocks), (142, 158));
        assert_eq!(
            fresh,
            [
                (32761, 7),
                (32768, 1),
                (32900, 60),
                (32960, 64),
                (33024, 26)
            ]
        );
        assert_eq!(
            map.insert_fresh(BlockNo(32750), 300, &mut |_, _| panic!()),
            300
        );
        map.insert_run(BlockNo(65536), 1 << 40, None);
        assert_eq!(map.count_in(GroupNo(2)), 1000);
        assert_eq!(map.find_free(BlockNo(66000)), Some(BlockNo(0)));
    }
}
