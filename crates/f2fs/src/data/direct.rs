//! Direct writes that need not wait: where blocks are that stay in place, and allocation from memory.
//!
//! An overwrite in place never waits: its blocks are found in memory once they are known ([`Data::extent_in_place`]), and it takes
//! neither the gate nor a log's turn. A write into a hole does not wait either, where blocks and nodes are in memory and locks are free. If
//! something is missing or held, the write is prepared the usual way.
//!
//! # Locks
//! The inode's `body`, shared. To allocate without waiting: the gate (shared), the `body` (exclusively) and the segments', in this order. Each is
//! only tried.

use super::write::has_pending;
use super::{Data, SPARE_MIN, log_of};
use crate::alloc::Need;
use crate::node::blocks::BlockState;
use crate::node::change::address_in;
use crate::node::inode::{Pending, f2fs};
use crate::options::Mode;
use crate::writer::Writer;
use crate::{Error, ErrorKind, Result};
use blockwright_device::DevOffset;
use blockwright_ondisk::f2fs::inode::{Advise, InlineFlags, InodeFlags};
use blockwright_ondisk::f2fs::{BlockAddr, Log};
use blockwright_vfs::Inode;
use blockwright_vfs::engine::{Intent, Mapping, Place, WriteTarget};
use std::ops::Range;
use std::sync::atomic::Ordering;

impl Data {
    /// Takes up to `want` blocks for a write of `of` blocks.
    #[allow(clippy::too_many_arguments)]
    #[cfg_attr(not(feature = "comparison"), allow(unused_variables))] // a variant asks how large the write is
    pub(crate) fn take_data(
        &self,
        w: &Writer,
        need: Need,
        log: Log,
        want: u32,
        of: u64,
        intent: Intent,
    ) -> Result<(BlockAddr, u32)> {
        if need == Need::Accepted && w.segments.is_withholding() {
            return Err(Error::new(ErrorKind::NoSpace, "allocate").detail("withheld by a test"));
        }
        #[cfg(not(feature = "comparison"))]
        let taken = w.segments.take_run(need, log, want);
        #[cfg(feature = "comparison")]
        let taken = {
            let large = intent == Intent::Writeback || of >= w.sharing.serialized_dio_pages();
            let way = w.sharing.way();
            w.segments.take_run_as(way, need, log, want, large)
        };
        if need == Need::Accepted && matches!(&taken, Err(e) if e.kind() == ErrorKind::NoSpace) {
            w.segments.assert_reserved_is_placeable();
        }
        let taken = taken?;
        w.sharing.count(taken.1);
        Ok(taken)
    }

    /// [`allocate_nowait`](blockwright_vfs::engine::Data::allocate_nowait): off the front of the log's lease, where the nodes that will name the blocks exist and are
    /// in memory. With quota there is more to look at, and where old places stay as they are (`lfs`, pinned checkpoints).
    pub(crate) fn allocate_nowait(&self, inode: &Inode, range: &Range<u64>) -> Option<WriteTarget> {
        const OP: &str = "allocate at hand";
        let w = self.access.writer.as_ref()?;
        let want = u32::try_from((range.end - range.start) >> 12).ok()?;
        if !w.sharing.reserves_runs()
            || w.segments.mode() != Mode::Adaptive
            || self.tree.quota.is_on()
            || !self.cleaning.has_ample_room(w, range.end - range.start)
            || w.segments.available() < self.checkpoints.needed_blocks() + SPARE_MIN
        {
            return None;
        }
        let own = f2fs(inode);
        own.check_readable(OP).ok()?;
        let _op = self.checkpoints.try_begin(OP)?;
        let mut body = own.body.try_write()?;
        let at = range.start >> 12;
        let blocks = at..at + u64::from(want);
        if body.inode.inline.contains(InlineFlags::DATA)
            || body.inode.advise.contains(Advise::VERITY)
            || body.inode.flags.contains(InodeFlags::COMPRESS)
            || !body.disk_size.is_multiple_of(4096)
            || body.delayed.intersects(blocks.clone())
            || has_pending(&body, &blocks)
        {
            return None;
        }
        let mut seen = 0;
        while seen < want as usize {
            let (slot, node) = self.tree.slot_nowait(own, &body, at + seen as u64)?;
            let n = slot.left.min(want as usize - seen);
            let positions = slot.position..slot.position + n;
            let named = |position| address_in(&node, slot.start, position) != BlockAddr::NULL;
            if positions.into_iter().any(named) {
                return None;
            }
            seen += n;
        }
        let block = w.segments.take_nowait(log_of(w, &body), want)?;
        w.sharing.count(want);
        let written = &w.relocation.counters.data_blocks_written;
        written.fetch_add(u64::from(want), Ordering::Relaxed);
        body.delayed.insert(blocks);
        body.delayed_blocks += u64::from(want);
        let pending = Pending {
            block,
            len: want,
            writers: 1,
        };
        body.pending.insert(at, pending);
        Some(WriteTarget {
            offset: range.start,
            bytes: range.end - range.start,
            device: Some(DevOffset(u64::from(block.0) << 12)),
            commit: true,
            fresh: true,
        })
    }

    /// [`extent_in_place`](blockwright_vfs::engine::Data::extent_in_place).
    pub(crate) fn extent_in_place(
        &self,
        inode: &Inode,
        offset: u64,
        bytes: u64,
    ) -> Result<Option<Mapping>> {
        if self.access.writer.is_none() {
            return Ok(None);
        }
        let own = f2fs(inode);
        let body = own.body.read();
        let fixed = Advise::VERITY | Advise::ENCRYPT;
        if body.inode.inline.contains(InlineFlags::DATA)
            || body.inode.advise.intersects(fixed)
            || body.inode.flags.contains(InodeFlags::COMPRESS)
        {
            return Ok(None);
        }
        let at = offset >> 12;
        let most = (bytes >> 12).saturating_add(1);
        let (BlockState::Stored(block), n) = self.nodes.find_blocks(own.ino, &body, at, most)?
        else {
            return Ok(None);
        };
        let end = ((at + n) << 12).min(body.disk_size);
        if end <= offset {
            return Ok(None);
        }
        Ok(Some(Mapping {
            offset: at << 12,
            bytes: end - (at << 12),
            place: Place::Mapped(DevOffset(u64::from(block.0) << 12)),
            generation: body.generation,
        }))
    }
}
