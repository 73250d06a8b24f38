//! Blocks that no file may claim: superblocks, descriptors, bitmaps, inode tables, the journal.
//!
//! A damaged extent or indirect block that points into these would let file data overwrite the
//! volume's own structures. Superblock copies and descriptors follow from the geometry; the rest is
//! added when a group's descriptor is first read; the mount reads nothing for this. So a block is
//! checked against the zones of the groups that were touched.
//!
//! # Locks
//! One lock, a leaf.

use blockwright_ondisk::ext4::{BlockNo, Geometry};
use parking_lot::RwLock;
use std::collections::BTreeMap;

/// Known metadata runs: start → end (exclusive); disjoint, not touching.
#[derive(Default)]
pub struct Zones {
    runs: RwLock<BTreeMap<u64, u64>>,
}

impl Zones {
    /// Adds a run of metadata blocks.
    pub fn add(&self, start: BlockNo, count: u64) {
        let (mut from, mut to) = (start.0, start.0.saturating_add(count));
        if from == to {
            return;
        }
        let mut runs = self.runs.write();
        // Merge with every run that overlaps or touches: packed flex groups become one entry.
        while let Some((&s, &e)) = runs.range(..=to).next_back() {
            if e < from {
                break;
            }
            if s <= from && e >= to {
                return;
            }
            runs.remove(&s);
            from = from.min(s);
            to = to.max(e);
        }
        runs.insert(from, to);
    }

    /// Whether any of the blocks is known metadata.
    #[must_use]
    pub fn overlaps(&self, start: BlockNo, count: u64) -> bool {
        let to = start.0.saturating_add(count);
        let runs = self.runs.read();
        runs.range(..to)
            .next_back()
            .is_some_and(|(_, &e)| e > start.0)
    }

    /// Whether any of the blocks is a superblock copy, a descriptor copy or reserved for one.
    #[must_use]
    pub fn overlaps_fixed(geo: &Geometry, start: BlockNo, count: u64) -> bool {
        let Some(last) = count.checked_sub(1).and_then(|n| start.checked_add(n)) else {
            return false;
        };
        let (Some(first), Some(last_group)) = (geo.group_of_block(start), geo.group_of_block(last))
        else {
            return false;
        };
        (first.0..=last_group.0).any(|group| {
            let group = group.into();
            let base = geo.group_first_block(group).0;
            let end = base + u64::from(geo.base_meta_blocks(group));
            // Most groups have no copies: an empty range must not catch what runs across its place.
            base < end && start.0 < end && last.0 >= base
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_merge_and_are_found() {
        let zones = Zones::default();
        zones.add(BlockNo(10), 5);
        zones.add(BlockNo(20), 5);
        assert!(!zones.overlaps(BlockNo(15), 5));
        assert!(zones.overlaps(BlockNo(15), 6));
        zones.add(BlockNo(14), 7);
        assert_eq!(zones.runs.read().iter().collect::<Vec<_>>(), [(&10, &25)]);
        zones.add(BlockNo(11), 2);
        zones.add(BlockNo(25), 1);
        assert_eq!(zones.runs.read().iter().collect::<Vec<_>>(), [(&10, &26)]);
        assert!(zones.overlaps(BlockNo(0), 11) && !zones.overlaps(BlockNo(0), 10));
        assert!(!zones.overlaps(BlockNo(26), 100));
    }
}
