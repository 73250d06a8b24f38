//! The write path: reserve, allocate, commit, abandon; truncation and fallocate.
//!
//! Blocks that hold data are overwritten in place; with `mode=lfs` they get a new place, as holes do. The life of a new block:
//! 1. A hole is promised at write time. The nodes that will map it are made at once, so that writeback never lacks one.
//! 2. Writeback takes a run from a log in one step, as long as the segment allows.
//! 3. Nodes refer to it once the data is on the device.
//!
//! # Crash order
//! A node that names a new block is written by the next checkpoint, after a flush that made the block's data
//! durable. A crash shows a hole or the data, never another file's.
//!
//! # Locks
//! The gate shared, then the inode's `body` exclusively.

use super::{Data, SPARE_MIN, log_of};
use crate::alloc::Need;
use crate::node::Place;
use crate::node::blocks::BlockState;
use crate::node::change::address_in;
use crate::node::inode::{Body, F2fsInode, Pending, f2fs};
use crate::options::Mode;
use crate::writer::Writer;
use crate::{Error, ErrorKind, Result};
use blockwright_device::DevOffset;
use blockwright_ondisk::f2fs::BlockAddr;
use blockwright_ondisk::f2fs::inode::{Advise, InlineFlags, InodeFlags};
use blockwright_ondisk::f2fs::summary::Summary;
use blockwright_vfs::Inode;
use blockwright_vfs::engine::{FallocMode, Intent, WriteTarget};
use blockwright_vfs::types::Timestamp;
use std::ops::Range;
use std::sync::atomic::Ordering;

fn blocks(range: &Range<u64>) -> Range<u64> {
    range.start >> 12..range.end.div_ceil(4096)
}

impl Data {
    /// Fails for contents that may not be changed.
    pub(crate) fn check_changeable(&self, op: &'static str, inode: &Inode) -> Result<()> {
        self.access.writer(op)?;
        self.check_contents(op, inode)
    }

    /// As [`Data::check_changeable`], whether the volume is written or not.
    pub(crate) fn check_contents(&self, op: &'static str, inode: &Inode) -> Result<()> {
        let own = f2fs(inode);
        own.check_readable(op)?;
        let body = own.body.read();
        if body.inode.advise.contains(Advise::VERITY) {
            return Err(Error::new(ErrorKind::NotPermitted, op)
                .ino(inode.ino())
                .detail("the file is protected by fs-verity"));
        }
        if body.inode.flags.contains(InodeFlags::COMPRESS)
            && inode.kind() == blockwright_vfs::FileKind::Regular
        {
            return Err(Error::new(ErrorKind::UnsupportedFeature, op)
                .ino(inode.ino())
                .detail("the file is compressed, which cannot be written yet"));
        }
        Ok(())
    }

    /// [`blockwright_vfs::engine::Space::reserve`].
    pub(crate) fn reserve(&self, inode: &Inode, range: Range<u64>) -> Result<()> {
        const OP: &str = "reserve";
        self.check_changeable(OP, inode)?;
        let op = self.checkpoints.begin(OP)?;
        let own = f2fs(inode);
        let mut body = own.body.write();
        if body.inode.inline.contains(InlineFlags::DATA) {
            if range.end <= Self::inline_capacity(&body) {
                return Ok(());
            }
            self.tree.check_block_quota(own, &body, 1)?;
            self.inline_to_blocks(op.w, inode, &mut body)?;
        }
        let range = blocks(&range);
        let nodes = body.inode.blocks;
        let mut new: Vec<Range<u64>> = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let slot = self.tree.ensure_slot(op.w, own, &mut body, at);
            let slot = match slot {
                Ok(slot) => slot,
                Err(e) => {
                    self.tree.store_inode(inode, &mut body)?;
                    return Err(e);
                }
            };
            let n = (slot.left as u64).min(range.end - at);
            let node = self.nodes.cache.find(slot.nid);
            let node = match node {
                Some(node) => node,
                None => {
                    continue; // Just verified, and dropped since: again.
                }
            };
            for i in 0..n {
                let block = address_in(&node, slot.start, slot.position + i as usize);
                let file = at + i;
                let hole = block == BlockAddr::NULL && !body.delayed.intersects(file..file + 1);
                if (hole || self.is_replaced(op.w, &body, file, block))
                    && pending_at(&body, file).is_none()
                {
                    match new.last_mut() {
                        Some(last) if last.end == file => last.end += 1,
                        _ => new.push(file..file + 1),
                    }
                }
            }
            at += n;
        }
        if body.inode.blocks != nodes {
            self.tree.store_inode(inode, &mut body)?;
        }
        let total = blockwright_vfs::range_set::total(&new);
        if total > 0 {
            self.check_room(op.w, &body, total)?;
            op.w.segments.charge(0, total)?;
            if let Err(e) = self.tree.promise_blocks(own, &mut body, total, true) {
                op.w.segments.discharge(0, total);
                self.tree.show_blocks(inode, &body);
                return Err(e);
            }
            for r in new {
                body.delayed.insert(r);
            }
            body.delayed_blocks += total;
            op.w.segments.assert_reserved_is_placeable();
        }
        self.tree.show_blocks(inode, &body);
        Ok(())
    }

    /// Refuses new blocks that writeback could not place.
    fn check_room(&self, w: &Writer, body: &Body, blocks: u64) -> Result<()> {
        let room = w.segments.room_for_data(log_of(w, body));
        // Blocks that are allocated and not written, and dirty now, are not among what is promised.
        let dirty = match w.relocation.host.get() {
            Some(host) if room != u64::MAX => host.unwritten_bytes() >> 12,
            _ => 0,
        };
        let promised = w.segments.counts().promised;
        if room < blocks + dirty.saturating_sub(promised) {
            return Err(Error::new(ErrorKind::NoSpace, "reserve")
                .detail("cleaning finds no sections for more data"));
        }
        Ok(())
    }

    /// [`blockwright_vfs::engine::Space::unreserve`].
    pub(crate) fn unreserve(&self, inode: &Inode, range: Range<u64>) {
        let Some(w) = &self.access.writer else { return };
        let mut body = f2fs(inode).body.write();
        self.tree.drop_delayed(w, &mut body, blocks(&range));
        self.tree.show_blocks(inode, &body);
    }

    // ---- allocate ----

    /// [`blockwright_vfs::engine::Data::allocate`]. Blocks that were freed since the last checkpoint can only be used
    /// after the next one. A checkpoint is written when nothing else is left, and if it may make room.
    pub(crate) fn allocate(
        &self,
        inode: &Inode,
        range: Range<u64>,
        data_end: u64,
        intent: Intent,
    ) -> Result<WriteTarget> {
        let mut range = range;
        let mut out_of_place = false;
        let mut must = false;
        if let Some(w) = &self.access.writer {
            out_of_place = w.segments.mode() == Mode::Lfs;
            if w.segments.is_pinned() {
                let (pinned, len) = self.pinned_run(w, inode, &blocks(&range))?;
                range.end = range.end.min(range.start + (len << 12));
                (out_of_place, must) = (pinned, pinned);
            }
        }
        let full = |r: &Result<WriteTarget>| matches!(r, Err(e) if e.kind() == ErrorKind::NoSpace);
        let mut result = self.allocate_once(inode, &range, data_end, intent, out_of_place);
        if full(&result)
            && let Some(w) = &self.access.writer
        {
            if intent == Intent::Writeback || self.checkpoint_makes_room(w) {
                self.checkpoints.checkpoint()?;
            }
            // Also without: another caller may have written one meanwhile.
            result = self.allocate_once(inode, &range, data_end, intent, out_of_place);
        }
        if full(&result) && out_of_place && !must {
            // Better than to lose data that was accepted: where the block is there is room for it.
            result = self.allocate_once(inode, &range, data_end, intent, false);
            if let (Ok(t), Some(w)) = (&result, &self.access.writer) {
                let counter = &w.relocation.counters.lfs_in_place;
                counter.fetch_add(t.bytes >> 12, Ordering::Relaxed);
            }
        }
        if let (Ok(t), Some(w)) = (&result, &self.access.writer)
            && t.device.is_some()
        {
            let counter = &w.relocation.counters.data_blocks_written;
            counter.fetch_add(
                t.bytes.min(range.end - range.start) >> 12,
                Ordering::Relaxed,
            );
        }
        result
    }

    /// Whether the next checkpoint may make room for data: it frees something, or room is kept for what it writes. Without either, a caller that finds no room
    /// would write one for each attempt. Data that was accepted gets one in any case.
    fn checkpoint_makes_room(&self, w: &Writer) -> bool {
        // The spilling of disabled checkpoints has rules of its own.
        if w.segments.is_pinned()
            || w.segments.checkpoint_frees()
            || self.nodes.nat.checkpoint_frees()
        {
            return true;
        }
        // Old places of nodes become free, which may be the last ones of a segment.
        self.checkpoints.needed_blocks() > 0
    }

    fn allocate_once(
        &self,
        inode: &Inode,
        range: &Range<u64>,
        data_end: u64,
        intent: Intent,
        out_of_place: bool,
    ) -> Result<WriteTarget> {
        const OP: &str = "allocate";
        self.check_changeable(OP, inode)?;
        let own = f2fs(inode);
        let r = blocks(range);
        let (at, want) = (r.start, r.end - r.start);
        let target = |block: BlockAddr, len: u64, commit: bool, fresh: bool| WriteTarget {
            offset: at << 12,
            bytes: len << 12,
            device: Some(DevOffset(u64::from(block.0) << 12)),
            commit,
            fresh,
        };
        {
            // An overwrite changes no mapping and waits for no operation that does.
            let body = own.body.read();
            if !out_of_place
                && !body.inode.inline.contains(InlineFlags::DATA)
                && let (BlockState::Stored(block), len) =
                    self.nodes.find_blocks(own.ino, &body, at, want)?
            {
                let len = len.min(want);
                let end = (at + len) << 12;
                return Ok(target(
                    block,
                    len,
                    body.disk_size < data_end.min(end),
                    false,
                ));
            }
        }
        let op = self.checkpoints.begin(OP)?;
        let may_go_inline = intent == Intent::Writeback && at == 0 && self.may_go_inline(inode);
        let mut body = own.body.write();
        if may_go_inline && !body.inode.inline.contains(InlineFlags::DATA) {
            self.go_inline(op.w, inode, &mut body, data_end)?;
        }
        if body.inode.inline.contains(InlineFlags::DATA) {
            if intent == Intent::Writeback && data_end <= Self::inline_capacity(&body) {
                return Ok(WriteTarget {
                    offset: range.start,
                    bytes: range.end - range.start,
                    device: None,
                    commit: false,
                    fresh: false,
                });
            }
            self.inline_to_blocks(op.w, inode, &mut body)?;
        }
        if let Some((start, p)) = pending_at(&body, at) {
            // Another write is under way here already: into the same blocks.
            let skip = at - start;
            let len = (u64::from(p.len) - skip).min(want);
            split_pending(&mut body, at);
            split_pending(&mut body, at + len);
            if let Some(p) = body.pending.get_mut(&at) {
                p.writers += 1;
                let (block, len) = (p.block, u64::from(p.len).min(len));
                return Ok(target(block, len, true, true));
            }
        }
        let (state, len) = self.nodes.find_blocks(own.ino, &body, at, want)?;
        let mut len = len.min(want);
        if let BlockState::Stored(block) = state
            && !out_of_place
        {
            let end = (at + len) << 12;
            return Ok(target(
                block,
                len,
                body.disk_size < data_end.min(end),
                false,
            ));
        }
        if let Some((next, _)) = body.pending.range(at..).next() {
            len = len.min(next - at);
        }
        let slot = self.tree.ensure_slot(op.w, own, &mut body, at)?;
        if matches!(state, BlockState::Stored(_)) {
            // Old places need not follow each other for new ones to do.
            let next = body
                .pending
                .range(at..)
                .next()
                .map_or(u64::MAX, |(n, _)| *n);
            let most = want.min(next - at).min(slot.left as u64);
            if let Some(node) = self.nodes.cache.find(slot.nid) {
                let stored =
                    |i: u64| address_in(&node, slot.start, slot.position + i as usize).is_stored();
                while len < most && stored(len) {
                    len += 1;
                }
            }
        }
        let mut left = slot.left as u64;
        // Where a node's addresses end the next node's go on, and the run with them. A write that cannot have that node fails when
        // it comes to it.
        while left < len && !matches!(state, BlockState::Stored(_)) {
            match self.tree.ensure_slot(op.w, own, &mut body, at + left) {
                Ok(next) => left += next.left as u64,
                Err(_) => break,
            }
        }
        let len = len.min(left) as u32;
        // Promised, reserved on disk, or to be charged now.
        let delayed = body.delayed.first_in(at..at + u64::from(len));
        let (len, source) = match (state, delayed) {
            (BlockState::Reserved | BlockState::Stored(_), _) => (len, Source::Reserved),
            (_, Some(d)) if d.start == at => {
                ((d.end - at).min(u64::from(len)) as u32, Source::Delayed)
            }
            (_, Some(d)) => ((d.start - at) as u32, Source::New),
            (_, None) => (len, Source::New),
        };
        if op.w.segments.available() < self.checkpoints.needed_blocks() + SPARE_MIN {
            return Err(Error::new(ErrorKind::NoSpace, OP).ino(inode.ino()));
        }
        let log = log_of(op.w, &body);
        let replaces = matches!(state, BlockState::Stored(_)) && !op.w.segments.is_pinned();
        let accepted = intent == Intent::Writeback && !replaces || source == Source::Delayed;
        let need = if accepted { Need::Accepted } else { Need::User };
        // A write that can be refused, or that overwrites in place, does not use the room of
        // accepted writes.
        let len = match need {
            Need::Accepted => len,
            _ => u64::from(len).min(op.w.segments.room_for_data(log)) as u32,
        };
        if len == 0 {
            return Err(Error::new(ErrorKind::NoSpace, OP).ino(inode.ino()));
        }
        let (block, n) = self.take_data(op.w, need, log, len, want, intent)?;
        if source == Source::New
            && let Err(e) = op.w.segments.charge(0, u64::from(n))
        {
            op.w.segments.give_back(block, n);
            return Err(e);
        }
        if source == Source::New {
            let limit = intent == Intent::Direct;
            if let Err(e) = self
                .tree
                .promise_blocks(own, &mut body, u64::from(n), limit)
            {
                op.w.segments.discharge(0, u64::from(n));
                op.w.segments.give_back(block, n);
                return Err(e);
            }
            // From here on it is a promise like others.
            body.delayed.insert(at..at + u64::from(n));
            body.delayed_blocks += u64::from(n);
        }
        let pending = Pending {
            block,
            len: n,
            writers: 1,
        };
        body.pending.insert(at, pending);
        self.tree.store_inode(inode, &mut body)?;
        Ok(target(block, u64::from(n), true, true))
    }

    /// [`blockwright_vfs::engine::Data::commit_write`].
    pub(crate) fn commit_write(
        &self,
        inode: &Inode,
        target: &WriteTarget,
        data_end: u64,
    ) -> Result<()> {
        const OP: &str = "commit write";
        let op = match self.checkpoints.begin(OP) {
            Ok(op) => op,
            Err(e) => {
                self.abandon_write(inode, target);
                return Err(e);
            }
        };
        let own = f2fs(inode);
        let mut body = own.body.write();
        let range = blocks(&(target.offset..target.offset + target.bytes));
        split_pending(&mut body, range.start);
        split_pending(&mut body, range.end);
        let mut result = Ok(());
        let runs: Vec<(u64, Pending)> = body
            .pending
            .range(range.clone())
            .map(|(at, p)| (*at, *p))
            .collect();
        for (at, p) in runs {
            result = self.commit_run(op.w, own, &mut body, at, p);
            if result.is_err() {
                break;
            }
        }
        Self::grow_on_disk(op.w, &mut body, data_end.min(range.end << 12));
        self.tree.store_inode(inode, &mut body)?;
        self.tree.show_blocks(inode, &body);
        result
    }

    fn commit_run(
        &self,
        w: &Writer,
        own: &F2fsInode,
        body: &mut Body,
        at: u64,
        p: Pending,
    ) -> Result<()> {
        let mut done = 0;
        while done < u64::from(p.len) {
            let slot = self.tree.ensure_slot(w, own, body, at + done)?;
            let n = (slot.left as u64).min(u64::from(p.len) - done);
            let Some(node) = self.nodes.cache.find(slot.nid) else {
                continue; // Just verified, and dropped since: again.
            };
            let old: Vec<BlockAddr> = (0..n as usize)
                .map(|i| address_in(&node, slot.start, slot.position + i))
                .collect();
            drop(node);
            let first = BlockAddr(p.block.0 + done as u32);
            let version = self.nodes.nat.get(slot.nid)?.version;
            let changed = self.nodes.cache.change(slot.nid, |bytes| {
                let start = slot.start + slot.position * 4;
                for i in 0..n as usize {
                    let at = start + i * 4;
                    bytes[at..at + 4].copy_from_slice(&(first.0 + i as u32).to_le_bytes());
                }
            });
            if changed.is_none() {
                continue;
            }
            // Promises become blocks in use; what was reserved on disk was one already.
            let file = at + done;
            let promised = self.tree.take_delayed(body, file..file + n);
            let new = old.iter().filter(|b| **b == BlockAddr::NULL).count() as u64;
            w.segments.commit_reservation(promised, new);
            body.inode.blocks += new;
            for old in old.into_iter().filter(|b| b.is_stored()) {
                w.segments.invalidate(old);
                w.relocation.moved.store(true, Ordering::Release);
            }
            w.segments
                .commit_as(first, n as u32, w.age(), |i| Summary {
                    nid: slot.nid,
                    version,
                    offset: (slot.position + i as usize) as u16,
                })?;
            done += n;
        }
        body.pending.remove(&at);
        Ok(())
    }

    /// [`blockwright_vfs::engine::Data::abandon_write`].
    pub(crate) fn abandon_write(&self, inode: &Inode, target: &WriteTarget) {
        let Some(w) = &self.access.writer else { return };
        let mut body = f2fs(inode).body.write();
        let range = blocks(&(target.offset..target.offset + target.bytes));
        split_pending(&mut body, range.start);
        split_pending(&mut body, range.end);
        let runs: Vec<(u64, Pending)> =
            body.pending.range(range).map(|(at, p)| (*at, *p)).collect();
        for (at, p) in runs {
            if p.writers > 1 {
                if let Some(p) = body.pending.get_mut(&at) {
                    p.writers -= 1;
                }
                continue;
            }
            body.pending.remove(&at);
            w.segments.give_back(p.block, p.len);
            self.tree
                .drop_delayed(w, &mut body, at..at + u64::from(p.len));
        }
        self.tree.show_blocks(inode, &body);
    }

    // ---- size ----

    /// [`blockwright_vfs::engine::Data::open_end`].
    pub(crate) fn open_end(&self, inode: &Inode) -> Option<u64> {
        let body = f2fs(inode).body.read();
        let in_blocks = !body.inode.inline.contains(InlineFlags::DATA);
        let open = !body.disk_size.is_multiple_of(4096);
        (in_blocks && open).then_some(body.disk_size)
    }

    /// Raises the size on disk. The block that it ended in was written before, in place as a rule, which counts as no commit:
    /// it is noted as one, or fsync could make the size durable first.
    fn grow_on_disk(w: &Writer, body: &mut Body, size: u64) {
        if size <= body.disk_size {
            return;
        }
        if std::mem::take(&mut body.end_is_open) {
            w.segments.note_write();
        }
        body.disk_size = size;
    }

    /// [`blockwright_vfs::engine::Data::truncate`].
    pub(crate) fn truncate(&self, inode: &Inode, size: u64, now: Timestamp) -> Result<()> {
        const OP: &str = "truncate";
        self.check_changeable(OP, inode)?;
        let op = self.checkpoints.begin(OP)?;
        let own = f2fs(inode);
        let mut body = own.body.write();
        let inline = |body: &Body| body.inode.inline.contains(InlineFlags::DATA);
        if inline(&body) && size > Self::inline_capacity(&body) {
            // It may be refused, and then nothing has changed.
            self.tree.check_block_quota(own, &body, 1)?;
            self.inline_to_blocks(op.w, inode, &mut body)?;
        }
        inode.update_attr(|a| {
            a.size = size;
            a.mtime = now;
            a.ctime = now;
        });
        if inline(&body) {
            let range = body.layout.inline_bytes();
            self.nodes.change_node(
                own.ino.nid(),
                own.ino,
                blockwright_ondisk::f2fs::NodeOffset::INODE,
                |b| b[range.start + size as usize..range.end].fill(0),
            )?;
            body.disk_size = size;
            return self.tree.store_inode(inode, &mut body);
        }
        let result = self
            .tree
            .free_from(op.w, own, &mut body, size.div_ceil(4096));
        if size > body.disk_size {
            Self::grow_on_disk(op.w, &mut body, size);
        } else {
            body.disk_size = size;
            body.end_is_open = !size.is_multiple_of(4096);
        }
        self.tree.store_inode(inode, &mut body)?;
        self.tree.show_blocks(inode, &body);
        result
    }

    /// [`blockwright_vfs::engine::Data::check_fallocate`].
    pub(crate) fn check_fallocate(&self, inode: &Inode, _mode: FallocMode) -> Result<()> {
        const OP: &str = "fallocate";
        self.check_changeable(OP, inode)
    }

    /// [`blockwright_vfs::engine::Data::fallocate`].
    pub(crate) fn fallocate(
        &self,
        inode: &Inode,
        range: Range<u64>,
        mode: FallocMode,
        now: Timestamp,
    ) -> Result<()> {
        const OP: &str = "fallocate";
        self.check_fallocate(inode, mode)?;
        if matches!(mode, FallocMode::CollapseRange | FallocMode::InsertRange) {
            return self.shift(inode, range, mode, now);
        }
        let op = self.checkpoints.begin(OP)?;
        let own = f2fs(inode);
        let mut body = own.body.write();
        if body.inode.inline.contains(InlineFlags::DATA) {
            self.tree.check_block_quota(own, &body, 1)?;
        }
        self.inline_to_blocks(op.w, inode, &mut body)?;
        let inner = range.start.div_ceil(4096)..range.end >> 12;
        let outer = blocks(&range);
        let mut result = match mode {
            FallocMode::PunchHole if !inner.is_empty() => {
                self.tree.free_range(op.w, own, &mut body, inner.clone())
            }
            _ => Ok(()),
        };
        if let FallocMode::Allocate { keep_size } | FallocMode::ZeroRange { keep_size } = mode {
            // Holes first: if there is no room for them, all data is still there.
            result = self.reserve_on_disk(op.w, own, &mut body, outer);
            if result.is_ok() && !matches!(mode, FallocMode::Allocate { .. }) {
                result = self.unwrite(op.w, own, &mut body, inner);
            }
            if result.is_ok() {
                if keep_size {
                    if range.end > inode.size() {
                        body.inode.advise |= Advise::KEEP_SIZE;
                    }
                } else {
                    inode.update_attr(|a| a.size = a.size.max(range.end));
                    Self::grow_on_disk(op.w, &mut body, range.end);
                }
            }
        }
        inode.update_attr(|a| (a.mtime, a.ctime) = (now, now));
        self.tree.store_inode(inode, &mut body)?;
        self.tree.show_blocks(inode, &body);
        result
    }

    /// Fills holes with reserved blocks: all of them, or none.
    fn reserve_on_disk(
        &self,
        w: &Writer,
        own: &F2fsInode,
        body: &mut Body,
        range: Range<u64>,
    ) -> Result<()> {
        let mut new = Vec::new();
        let result = self.fill_holes(w, own, body, range, &mut new);
        if result.is_err() {
            for range in new {
                self.tree.free_range(w, own, body, range)?;
            }
        }
        result
    }

    fn fill_holes(
        &self,
        w: &Writer,
        own: &F2fsInode,
        body: &mut Body,
        range: Range<u64>,
        new: &mut Vec<Range<u64>>,
    ) -> Result<()> {
        for at in range {
            let slot = self.tree.ensure_slot(w, own, body, at)?;
            let old = match self.nodes.find_address(own.ino, body, at)? {
                Place::In { bytes, .. } => address_in(&bytes, slot.start, slot.position),
                _ => BlockAddr::NULL,
            };
            if old == BlockAddr::NULL
                && !body.delayed.intersects(at..at + 1)
                && pending_at(body, at).is_none()
            {
                self.tree.check_block_quota(own, body, 1)?;
                w.segments.charge_for(1, || {
                    self.nodes
                        .set_address(slot.nid, slot.start, slot.position, BlockAddr::NEW)
                })?;
                body.inode.blocks += 1;
                match new.last_mut() {
                    Some(last) if last.end == at => last.end += 1,
                    _ => new.push(at..at + 1),
                }
            }
        }
        Ok(())
    }

    /// Blocks that hold data become reserved ones, which read as zeroes. That takes no room.
    fn unwrite(
        &self,
        w: &Writer,
        own: &F2fsInode,
        body: &mut Body,
        range: Range<u64>,
    ) -> Result<()> {
        for at in range {
            let Place::In {
                nid,
                bytes,
                start,
                position,
                ..
            } = self.nodes.find_address(own.ino, body, at)?
            else {
                continue;
            };
            let old = address_in(&bytes, start, position);
            // A change copies the bytes while another reference to them is held.
            drop(bytes);
            if old.is_stored() {
                if !self.volume.geo.in_main(old) {
                    let detail = "an address outside of the main area";
                    let ino = Some(own.ino);
                    return Err(self.volume.corrupt("zero range", ino, Some(old), detail));
                }
                self.nodes
                    .set_address(nid, start, position, BlockAddr::NEW)?;
                w.segments.invalidate(old);
                w.relocation.moved.store(true, Ordering::Release);
            }
        }
        body.generation += 1;
        Ok(())
    }

    /// Whether the first block of a range is pinned, and for how many blocks the same holds.
    pub(crate) fn pinned_run(
        &self,
        w: &Writer,
        inode: &Inode,
        range: &Range<u64>,
    ) -> Result<(bool, u64)> {
        let own = f2fs(inode);
        let body = own.body.read();
        let want = range.end - range.start;
        if body.inode.inline.contains(InlineFlags::DATA) {
            return Ok((true, want));
        }
        match self.nodes.find_blocks(own.ino, &body, range.start, want)? {
            (BlockState::Stored(block), len) => Ok(w.segments.pinned_run(block, len.min(want))),
            _ => Ok((true, want)),
        }
    }

    /// Whether writing to a block that holds data needs a new block.
    pub(crate) fn is_replaced(
        &self,
        w: &Writer,
        body: &Body,
        file: u64,
        block: blockwright_ondisk::f2fs::BlockAddr,
    ) -> bool {
        w.segments.is_pinned()
            && block.is_stored()
            && !body.delayed.intersects(file..file + 1)
            && w.segments.pinned_run(block, 1).0
    }
}

/// Where the room for a new block comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    Delayed,
    /// Counted already: reserved on disk, or a block that is replaced.
    Reserved,
    New,
}

/// The pending run that holds a file block.
fn pending_at(body: &Body, at: u64) -> Option<(u64, Pending)> {
    let (start, p) = body.pending.range(..=at).next_back()?;
    (at < start + u64::from(p.len)).then_some((*start, *p))
}

/// Whether anything is on its way to blocks of a range.
pub(crate) fn has_pending(body: &Body, range: &Range<u64>) -> bool {
    pending_at(body, range.start).is_some() || body.pending.range(range.clone()).next().is_some()
}

/// Cuts the pending run around `at` in two there.
fn split_pending(body: &mut Body, at: u64) {
    let Some((start, p)) = pending_at(body, at) else {
        return;
    };
    if start == at {
        return;
    }
    let head = (at - start) as u32;
    body.pending.insert(start, Pending { len: head, ..p });
    let tail = Pending {
        block: BlockAddr(p.block.0 + head),
        len: p.len - head,
        ..p
    };
    body.pending.insert(at, tail);
}
