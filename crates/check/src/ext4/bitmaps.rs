//! Bitmaps and the counts that sum everything up.

use blockwright_ondisk::ext4::{BlockNo, ChecksumKind, GroupFlags, GroupNo, Ino};

use super::context::Checker;
use super::issue::{IssueKind, Metadata};
use super::{CheckError, Phase};

/// Where two bitmaps differ within their first `bits` bits: how often, the first bit, and what
/// it should be.
fn difference(found: &[u8], expected: &[u8], bits: usize) -> Option<(u32, usize, bool)> {
    let mut count = 0;
    let mut first = None;
    for (n, (a, b)) in found.iter().zip(expected).enumerate() {
        let mut differ = a ^ b;
        if (n + 1) * 8 > bits {
            let keep = bits.saturating_sub(n * 8).min(8);
            differ &= ((1u16 << keep) - 1) as u8;
        }
        if differ != 0 {
            let bit = n * 8 + differ.trailing_zeros() as usize;
            first.get_or_insert((bit, b >> differ.trailing_zeros() & 1 != 0));
            count += differ.count_ones();
        }
    }
    first.map(|(bit, in_use)| (count, bit, in_use))
}

/// Sets all bits from `from` on.
fn set_tail(bytes: &mut [u8], from: usize) {
    for (n, byte) in bytes.iter_mut().enumerate().skip(from / 8) {
        if n * 8 >= from {
            *byte = 0xFF;
        } else {
            *byte |= 0xFFu8 << (from - n * 8);
        }
    }
}

impl Checker {
    /// Compares all bitmaps and counts.
    pub fn check_bitmaps(&mut self) -> Result<(), CheckError> {
        self.relocate_bitmaps()?;
        let geo = self.geo.clone();
        let (mut free_clusters, mut free_inodes) = (0u64, 0u64);
        let mut dirs_in = vec![0u32; geo.groups_count as usize];
        for dir in &self.scan.dirs {
            if let Some((group, _)) = geo.split_ino(dir.ino) {
                dirs_in[group.0 as usize] += 1;
            }
        }
        for group in geo.groups() {
            if group.0.is_multiple_of(256) {
                let (done, total) = (u64::from(group.0), u64::from(geo.groups_count));
                self.report_progress(Phase::Bitmaps, done, total)?;
            }
            let clusters = geo.group_clusters(group);
            let free = clusters.saturating_sub(self.scan.used.count_in(group));
            free_clusters += u64::from(free);
            let inode_bits = self.expected_inode_bitmap(group);
            let used_inodes: u32 = inode_bits
                .as_ref()
                .map_or(0, |bits| bits.iter().map(|b| b.count_ones()).sum());
            let free_here = geo.inodes_per_group - used_inodes.min(geo.inodes_per_group);
            free_inodes += u64::from(free_here);
            let before = self.descs[group.0 as usize];
            self.check_block_bitmap(group)?;
            self.check_inode_bitmap(group, inode_bits)?;
            self.check_group_counts(group, free, free_here, dirs_in[group.0 as usize]);
            if self.descs[group.0 as usize] != before {
                self.write_desc(group, false)?;
            }
        }
        let free_blocks = free_clusters << geo.cluster_bits;
        self.scan.stats.used_blocks = geo.blocks_count.saturating_sub(free_blocks);
        // The superblock counts clusters in blocks, a partial last one included.
        let found = self.sb.free_blocks_count();
        if found != free_blocks
            && self.problem(IssueKind::FreeBlocks {
                found,
                counted: free_blocks,
            })
        {
            self.sb.set_free_blocks_count(free_blocks);
            self.touch_superblock();
        }
        let found = u64::from(self.sb.free_inodes_count.get());
        if found != free_inodes
            && self.problem(IssueKind::FreeInodes {
                found,
                counted: free_inodes,
            })
        {
            self.sb.free_inodes_count.set(free_inodes as u32);
            self.touch_superblock();
        }
        Ok(())
    }

    /// The inode bitmap of a group as it should be; `None` when no inode of it is in use.
    fn expected_inode_bitmap(&self, group: GroupNo) -> Option<Vec<u8>> {
        let geo = &self.geo;
        let states = self.scan.inodes.of_group(geo, group);
        let mut bits = vec![0u8; geo.inode_bitmap_bytes()];
        let mut any = false;
        let mut set = |ino: Ino| {
            if let Some((g, index)) = geo.split_ino(ino)
                && g == group
            {
                bits[index as usize / 8] |= 1 << (index % 8);
                any = true;
            }
        };
        states.iter().for_each(|s| set(s.ino));
        if group.0 == 0 || geo.first_ino.0 > geo.inodes_per_group {
            (1..geo.first_ino.0).map(Ino).for_each(&mut set);
        }
        any.then_some(bits)
    }

    fn check_block_bitmap(&mut self, group: GroupNo) -> Result<(), CheckError> {
        let geo = self.geo.clone();
        let at = group.0 as usize;
        let desc = self.descs[at];
        let bits = geo.group_clusters(group) as usize;
        let bytes = geo.block_bitmap_bytes();
        if !geo.contains_run(desc.block_bitmap, 1) {
            return Ok(());
        }
        let first_block = geo.group_first_block(group).0;
        let describe = |(count, bit, in_use): (u32, usize, bool)| IssueKind::BlockBitmap {
            group,
            first: BlockNo(first_block + ((bit as u64) << geo.cluster_bits)),
            count,
            in_use,
        };
        let uninit =
            desc.flags.contains(GroupFlags::BLOCK_UNINIT) && geo.checksums != ChecksumKind::None;
        // Metadata is in use: as many clusters are the same ones.
        let bare = self.scan.used.count_in(group) == self.scan.metadata.count_in(group);
        if uninit && bare {
            return Ok(());
        }
        let mut expected = self.scan.used.group_bytes(group, bytes);
        if uninit {
            // The bitmap is not on the device; what it would be is the group's own metadata.
            let assumed = self.scan.metadata.group_bytes(group, bytes);
            if let Some(found) = difference(&assumed, &expected, bits)
                && self.problem(describe(found))
            {
                self.descs[at].flags -= GroupFlags::BLOCK_UNINIT;
                set_tail(&mut expected, bits);
                self.store_bitmap(group, Metadata::BlockBitmap, expected)?;
            }
            return Ok(());
        }
        let found = self.store.read(desc.block_bitmap, "block bitmap")?;
        let mut store = false;
        if let Some(found) = difference(&found, &expected, bits) {
            store |= self.problem(describe(found));
        } else if desc.verify_block_bitmap(&found, &geo, group).is_err() {
            store |= self.problem(IssueKind::BitmapChecksum {
                group,
                what: Metadata::BlockBitmap,
            });
        }
        let mut padded = found.clone();
        set_tail(&mut padded, bits);
        if padded != found {
            store |= self.problem(IssueKind::BitmapPadding {
                group,
                what: Metadata::BlockBitmap,
            });
        }
        if store {
            set_tail(&mut expected, bits);
            self.store_bitmap(group, Metadata::BlockBitmap, expected)?;
        }
        Ok(())
    }

    fn check_inode_bitmap(
        &mut self,
        group: GroupNo,
        expected: Option<Vec<u8>>,
    ) -> Result<(), CheckError> {
        let geo = self.geo.clone();
        let at = group.0 as usize;
        let desc = self.descs[at];
        let bits = geo.inodes_per_group as usize;
        if !geo.contains_run(desc.inode_bitmap, 1) {
            return Ok(());
        }
        let uninit =
            desc.flags.contains(GroupFlags::INODE_UNINIT) && geo.checksums != ChecksumKind::None;
        let in_use = expected.is_some();
        let expected = expected.unwrap_or_else(|| vec![0; geo.inode_bitmap_bytes()]);
        if uninit {
            if in_use {
                let nothing = vec![0; expected.len()];
                if let Some(found) = difference(&nothing, &expected, bits)
                    && self.problem(self.inode_difference(group, found))
                {
                    self.descs[at].flags -= GroupFlags::INODE_UNINIT;
                    self.store_bitmap(group, Metadata::InodeBitmap, expected)?;
                }
            }
            return Ok(());
        }
        let found = self.store.read(desc.inode_bitmap, "inode bitmap")?;
        let mut store = false;
        if let Some(found) = difference(&found, &expected, bits) {
            let kind = self.inode_difference(group, found);
            store |= self.problem(kind);
        } else if desc.verify_inode_bitmap(&found, &geo, group).is_err() {
            store |= self.problem(IssueKind::BitmapChecksum {
                group,
                what: Metadata::InodeBitmap,
            });
        }
        let mut padded = found.clone();
        set_tail(&mut padded, bits);
        if padded != found {
            store |= self.problem(IssueKind::BitmapPadding {
                group,
                what: Metadata::InodeBitmap,
            });
        }
        if store {
            self.store_bitmap(group, Metadata::InodeBitmap, expected)?;
        }
        Ok(())
    }

    fn inode_difference(
        &self,
        group: GroupNo,
        (count, bit, in_use): (u32, usize, bool),
    ) -> IssueKind {
        IssueKind::InodeBitmap {
            group,
            first: self.geo.ino_at(group, bit as u32).unwrap_or_default(),
            count,
            in_use,
        }
    }

    /// Stores a bitmap with its padding, and its checksum in the descriptor.
    fn store_bitmap(
        &mut self,
        group: GroupNo,
        what: Metadata,
        bits: Vec<u8>,
    ) -> Result<(), CheckError> {
        let geo = self.geo.clone();
        let desc = &mut self.descs[group.0 as usize];
        let mut block = vec![0xFF; geo.block_len()];
        block[..bits.len()].copy_from_slice(&bits);
        let place = match what {
            Metadata::BlockBitmap => {
                desc.set_block_bitmap_csum(&block, &geo);
                desc.block_bitmap
            }
            _ => {
                desc.set_inode_bitmap_csum(&block, &geo);
                desc.inode_bitmap
            }
        };
        self.write(place, block);
        Ok(())
    }

    fn check_group_counts(&mut self, group: GroupNo, clusters: u32, inodes: u32, dirs: u32) {
        let at = group.0 as usize;
        let found = self.descs[at].free_clusters;
        if found != clusters
            && self.problem(IssueKind::GroupFreeBlocks {
                group,
                found,
                counted: clusters,
            })
        {
            self.descs[at].free_clusters = clusters;
        }
        let found = self.descs[at].free_inodes;
        if found != inodes
            && self.problem(IssueKind::GroupFreeInodes {
                group,
                found,
                counted: inodes,
            })
        {
            self.descs[at].free_inodes = inodes;
        }
        let found = self.descs[at].used_dirs;
        if found != dirs
            && self.problem(IssueKind::GroupDirs {
                group,
                found,
                counted: dirs,
            })
        {
            self.descs[at].used_dirs = dirs;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_stop_at_the_last_bit() {
        assert_eq!(difference(&[0b1000_0001], &[0], 7), Some((1, 0, false)));
        assert_eq!(difference(&[0, 0xF0], &[0, 0], 12), None);
        assert_eq!(difference(&[0, 0], &[0, 3], 16), Some((2, 8, true)));
        let mut tail = [0u8; 3];
        set_tail(&mut tail, 11);
        assert_eq!(tail, [0, 0xF8, 0xFF]);
    }
}
