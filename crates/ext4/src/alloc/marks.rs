//! Marking blocks used and free in bitmap and descriptor, inside a handle.
//!
//! # Crash order
//! Blocks that were freed stay unavailable in memory until the freeing transaction is durable: new data could overwrite
//! blocks that the old file still owns after a crash.

use super::{Allocator, Run, Shared, split_by_group};
use crate::alloc::bits::{clear_bits, first_other, set_bits};
use crate::alloc::groups::Group;
use crate::journal::Handle;
use crate::journal::buffer::BlockKind;
use crate::{Error, Result};
use blockwright_ondisk::ext4::GroupNo;
use smallvec::SmallVec;
use std::sync::Arc;

impl Allocator {
    /// Records taken blocks as used, in the handle: bitmap, descriptor, checksums, totals.
    ///
    /// # Errors
    /// `Corrupt` when a block was in use on disk already.
    pub fn mark_used(&self, h: &Handle<'_>, run: Run) -> Result<()> {
        self.mark_used_runs(h, &[run])
    }

    /// As [`Self::mark_used`], for several runs: one change of bitmap and descriptor for all of a group.
    ///
    /// # Errors
    /// As there. The groups before the one with the error keep their marks.
    pub(crate) fn mark_used_runs(&self, h: &Handle<'_>, runs: &[Run]) -> Result<()> {
        let mut parts: SmallVec<[(GroupNo, u32, u32); 4]> = SmallVec::new();
        for run in runs {
            parts.extend(split_by_group(self.volume.geometry(), *run));
        }
        parts.sort_unstable();
        for of_group in parts.chunk_by(|a, b| a.0 == b.0) {
            self.mark_used_in(h, of_group[0].0, of_group)?;
        }
        Ok(())
    }

    fn mark_used_in(
        &self,
        h: &Handle<'_>,
        group: GroupNo,
        parts: &[(GroupNo, u32, u32)],
    ) -> Result<()> {
        const OP: &str = "mark blocks used";
        let geo = self.volume.geometry();
        let group = self.groups.group(group)?;
        let mut guard = group.lock();
        let st = &mut *guard;
        let block = st.desc.block_bitmap;
        let result =
            self.groups
                .change_block_bitmap(h, group.no, &mut st.desc, |bytes, desc| {
                    for (_, start, len) in parts {
                        if let Some(at) = first_other(bytes, *start, *len, false) {
                            return Err(at);
                        }
                    }
                    for (_, start, len) in parts {
                        set_bits(bytes, *start, *len);
                    }
                    desc.set_block_bitmap_csum(bytes, geo);
                    Ok(())
                })?;
        if let Err(at) = result {
            self.give_up_group(group, st);
            let detail = format!("block {at} of group {} was in use already", group.no);
            return Err(self.volume.corrupt(OP, None, Some(block), detail));
        }
        let len: u32 = parts.iter().map(|(_, _, len)| len).sum();
        st.desc.free_clusters = st.desc.free_clusters.saturating_sub(len);
        st.taken = st.taken.saturating_sub(len);
        self.groups.store_desc(h, group.no, st)?;
        drop(guard);
        self.volume.sb.add_free_blocks(-i64::from(len));
        self.shared.space.unclaim(u64::from(len));
        Ok(())
    }

    /// Reads what [`Allocator::free`] will need. Called before the last pointer to the blocks goes, so that
    /// a device that cannot be read leaves a file that is longer than wanted, not blocks without an owner.
    ///
    /// # Errors
    /// `Io`. Damage is left to [`Allocator::free`] to report.
    pub fn prepare_free(&self, run: Run) -> Result<()> {
        if !self
            .volume
            .geometry()
            .contains_run(run.start, u64::from(run.len))
        {
            return Ok(());
        }
        for (group, _, _) in split_by_group(self.volume.geometry(), run) {
            let group = self.groups.group(group)?;
            let mut guard = group.lock();
            let known = self.load_map(group, &mut guard)?.is_some();
            if known && !self.groups.block_bitmap_is_uninit(&guard.desc) {
                let kind = BlockKind::BlockBitmap(group.no);
                self.volume
                    .cache
                    .read(guard.desc.block_bitmap, kind, |_| Ok(()))?;
            }
        }
        Ok(())
    }

    /// Frees blocks in the handle. They are handed out again once its transaction is durable.
    ///
    /// # Errors
    /// `Corrupt` when the blocks are fixed metadata or are free already.
    pub fn free(&self, h: &Handle<'_>, run: Run, is_metadata: bool) -> Result<()> {
        const OP: &str = "free blocks";
        let geo = self.volume.geometry();
        if !geo.contains_run(run.start, u64::from(run.len)) {
            let detail = format!("{} blocks do not lie in the volume", run.len);
            return Err(self.volume.corrupt(OP, None, Some(run.start), detail));
        }
        if let Some(hit) = self.groups.system_overlap(run.start, u64::from(run.len))? {
            let detail = format!(
                "{} blocks overlap metadata at {}..{}",
                run.len, hit.start, hit.end
            );
            return Err(self.volume.corrupt(OP, None, Some(run.start), detail));
        }
        if is_metadata {
            h.forget(run.start, run.len);
        }
        for (group, start, len) in split_by_group(geo, run) {
            let group = self.groups.group(group)?;
            let mut guard = group.lock();
            let st = &mut *guard;
            if self.load_map(group, st)?.is_none() {
                let detail = format!("group {} has a bad block bitmap", group.no);
                return Err(Error::corrupt(OP, detail).block(run.start.0));
            }
            let block = st.desc.block_bitmap;
            let free_bit = |bytes: &[u8]| first_other(bytes, start, len, true);
            let result = if self.groups.block_bitmap_is_uninit(&st.desc) {
                Err(start)
            } else {
                let buffer =
                    self.volume
                        .cache
                        .read(block, BlockKind::BlockBitmap(group.no), |_| Ok(()))?;
                h.modify(&buffer, |bytes| match free_bit(bytes) {
                    Some(at) => Err(at),
                    None => {
                        clear_bits(bytes, start, len);
                        st.desc.set_block_bitmap_csum(bytes, geo);
                        Ok(())
                    }
                })?
            };
            if let Err(at) = result {
                let detail = format!("block {at} of group {} is free already", group.no);
                return Err(self.volume.corrupt(OP, None, Some(run.start), detail));
            }
            st.desc.free_clusters = st.desc.free_clusters.saturating_add(len);
            st.pending += len;
            self.groups.store_desc(h, group.no, st)?;
            drop(guard);
            self.volume.sb.add_free_blocks(i64::from(len));
            self.shared.space.add_pending(u64::from(len));
            let (group, shared) = (Arc::clone(group), Arc::clone(&self.shared));
            h.on_commit(move || release_pending(&shared, &group, start, len));
        }
        Ok(())
    }
}

/// The transaction that freed these blocks is durable: they may be handed out.
fn release_pending(shared: &Shared, group: &Group, start: u32, len: u32) {
    let mut st = group.lock();
    st.pending = st.pending.saturating_sub(len);
    if let Some(map) = st.map.as_mut() {
        let gave = map.give(start, len);
        debug_assert!(
            gave,
            "blocks {start}+{len} of group {} were not in use",
            group.no
        );
        shared.index.set(group.no, map.free(), map.largest_order());
    }
    drop(st);
    shared.space.sub_pending(u64::from(len));
}
