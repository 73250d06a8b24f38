//! Groups' maps of free blocks: loaded and checked when they are needed, unloaded past their budget.
//!
//! # Locks
//! The group's, which the caller's state is proof of; `loaded` for a moment, other groups by trying only.

use super::{Allocator, FreeMap};
use crate::alloc::bits::first_other;
use crate::alloc::groups::{Group, GroupState};
use crate::journal::buffer::BlockKind;
use crate::{ErrorKind, Result};
use blockwright_ondisk::ext4::GroupNo;
use std::sync::atomic::Ordering;

impl Allocator {
    pub(crate) fn reindex(&self, group: &Group, st: &GroupState) {
        if let Some(map) = &st.map {
            self.shared
                .index
                .set(group.no, map.free(), map.largest_order());
        }
    }

    /// The group's available blocks, loaded and checked when they are not there yet. `None` when the
    /// bitmap is bad.
    pub(crate) fn load_map<'a>(
        &self,
        group: &Group,
        st: &'a mut GroupState,
    ) -> Result<Option<&'a mut FreeMap>> {
        if st.block_bitmap_bad {
            return Ok(None);
        }
        if st.map.is_none() {
            match self.read_map(group.no, st) {
                Ok(map) => st.map = Some(Box::new(map)),
                Err(e) if e.kind() == ErrorKind::Corrupt => {
                    self.give_up_group(group, st);
                    return Ok(None);
                }
                Err(e) => return Err(e),
            }
            self.maps_loaded.fetch_add(1, Ordering::Relaxed);
            self.reindex(group, st);
            self.shrink_loaded(group.no);
        }
        Ok(st.map.as_deref_mut())
    }

    /// Takes a group with a bad bitmap out of service.
    pub(super) fn give_up_group(&self, group: &Group, st: &mut GroupState) {
        if !st.block_bitmap_bad {
            st.block_bitmap_bad = true;
            // Its free blocks cannot be promised.
            self.volume
                .sb
                .add_free_blocks(-i64::from(st.desc.free_clusters));
        }
        self.shared.index.set(group.no, 0, None);
    }

    fn read_map(&self, group: GroupNo, st: &GroupState) -> Result<FreeMap> {
        const OP: &str = "load block bitmap";
        let geo = self.volume.geometry();
        let block = st.desc.block_bitmap;
        let clusters = geo.group_clusters(group);
        let map = if self.groups.block_bitmap_is_uninit(&st.desc) {
            FreeMap::from_bitmap(&self.groups.uninit_block_bitmap(group)?, clusters)
        } else {
            let desc = st.desc;
            let buffer = self
                .volume
                .cache
                .read(block, BlockKind::BlockBitmap(group), |bytes| {
                    desc.verify_block_bitmap(bytes, geo, group)
                        .map_err(|e| self.volume.corrupt_format(OP, None, Some(block), &e))
                })?;
            let data = buffer.data();
            let bits = (geo.block_size * 8).min(geo.clusters_per_group.next_multiple_of(8));
            if let Some(at) = first_other(&data, clusters, bits.saturating_sub(clusters), true) {
                let detail = format!(
                    "bit {at} of group {group}, past its end, is clear in the block bitmap"
                );
                return Err(self.volume.corrupt(OP, None, Some(block), detail));
            }
            for r in self.groups.system_blocks_in_group(group)? {
                if let Some(at) = first_other(&data, r.start, r.end - r.start, true) {
                    let detail = format!("metadata at block {at} of group {group} is marked free");
                    return Err(self.volume.corrupt(OP, None, Some(block), detail));
                }
            }
            FreeMap::from_bitmap(&data, clusters)
        };
        if map.free() != st.desc.free_clusters {
            let detail = format!(
                "the block bitmap of group {group} has {} free, its descriptor says {}",
                map.free(),
                st.desc.free_clusters
            );
            return Err(self.volume.corrupt(OP, None, Some(block), detail));
        }
        Ok(map)
    }

    /// Unloads old maps past the budget: those with nothing taken or pending, which exist on disk
    /// just as they are in memory.
    fn shrink_loaded(&self, newest: GroupNo) {
        let mut loaded = self.loaded.lock();
        loaded.push_back(newest);
        let mut tries = 8;
        while loaded.len() > self.loaded_max && tries > 0 {
            tries -= 1;
            let Some(old) = loaded.pop_front() else { break };
            let Some(group) = self.groups.loaded(old) else {
                continue;
            };
            match group.try_lock() {
                Some(mut st) if st.taken == 0 && st.pending == 0 => st.map = None,
                _ => loaded.push_back(old),
            }
        }
    }
}
