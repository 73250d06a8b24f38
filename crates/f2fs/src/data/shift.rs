//! Taking a range out of a file (`FALLOC_FL_COLLAPSE_RANGE`) and inserting a hole into it (`FALLOC_FL_INSERT_RANGE`): the blocks
//! behind it move.
//!
//! Blocks get new places, with summaries that name their new owner. If only their addresses moved, summaries
//! of blocks in use would have to change. Those are written in place, and after a crash in between they would name
//! an owner that the checkpoint does not have. Holes that stay holes are passed over by whole nodes, so a sparse file costs what is mapped of it.
//!
//! # Crash order
//! As for data that is written. A file is moved in parts from its near end, up to [`PART_BLOCKS`] blocks in one operation. A crash
//! between parts leaves a file that is moved in part. No byte is lost: the rest is still where it was.
//!
//! # Locks
//! The vfs holds the inode and keeps its blocks in place. The gate shared, then the inode's `body`, for each part.

use crate::alloc::Need;
use crate::data::Data;
use crate::node::Place;
use crate::node::blocks::BlockState;
use crate::node::change::address_in;
use crate::node::inode::{Body, F2fsInode, f2fs};
use crate::node::io::read_blocks;
use crate::writer::Writer;
use crate::{Error, ErrorKind, Result};
use blockwright_device::{DevOffset, Flags, IoPriority, IoSlice, WriteBatch};
use blockwright_ondisk::f2fs::inode::InlineFlags;
use blockwright_ondisk::f2fs::summary::Summary;
use blockwright_ondisk::f2fs::{BlockAddr, Log};
use blockwright_vfs::Inode;
use blockwright_vfs::engine::FallocMode;
use blockwright_vfs::types::Timestamp;
use std::ops::Range;
use std::sync::atomic::Ordering;

const OP: &str = "move a file's blocks";
/// Blocks moved in one operation.
const PART_BLOCKS: u64 = 256;

/// A number of file blocks, and where they move.
#[derive(Clone, Copy)]
struct Part {
    from: u64,
    n: u64,
    to: u64,
}

impl Data {
    /// [`blockwright_vfs::engine::Data::fallocate`], for the modes that move what follows. The range is of whole blocks, and begins
    /// below the file's end; one that is taken out ends there, too.
    pub(crate) fn shift(
        &self,
        inode: &Inode,
        range: Range<u64>,
        mode: FallocMode,
        now: Timestamp,
    ) -> Result<()> {
        let end = inode.size().div_ceil(4096);
        let (from, to) = (range.start >> 12, range.end >> 12);
        let collapse = mode == FallocMode::CollapseRange;
        let (first, target) = if collapse { (to, from) } else { (from, to) };
        let mut parts = self.parts(inode, first, target, end.saturating_sub(first))?;
        if !collapse {
            parts.reverse();
        }
        // The last step also frees the blocks left behind, so there is one even if nothing moves.
        let last = parts.pop().unwrap_or(0..0);
        for (part, is_last) in parts
            .into_iter()
            .map(|part| (part, false))
            .chain([(last, true)])
        {
            let part = Part {
                from: first + part.start,
                n: part.end - part.start,
                to: target + part.start,
            };
            let step = || {
                let end = is_last.then(|| (range.clone(), mode, now));
                self.shift_step(inode, part, end)
            };
            match step() {
                Err(e) if e.kind() == ErrorKind::NoSpace => {
                    // The blocks that were given up can be used after a checkpoint.
                    self.checkpoints.checkpoint()?;
                    step()?;
                }
                other => other?,
            }
        }
        Ok(())
    }

    /// The parts of `len` blocks that move from `from` to `to`, counted from `from`, in ascending order. A hole that moves onto a
    /// hole is left out, so the cost is that of mapped blocks. A part has up to [`PART_BLOCKS`] blocks.
    fn parts(&self, inode: &Inode, from: u64, to: u64, len: u64) -> Result<Vec<Range<u64>>> {
        let own = f2fs(inode);
        let body = own.body.read();
        if body.inode.inline.contains(InlineFlags::DATA) {
            // Less than a block; it gets one when it moves.
            return Ok(std::iter::once(0..len).collect());
        }
        let mut filled = self.filled(own, &body, from, len)?;
        filled.extend(self.filled(own, &body, to, len)?);
        filled.sort_unstable_by_key(|run| run.start);
        let mut parts: Vec<Range<u64>> = Vec::new();
        for run in filled {
            // A run of the other file range may have covered its beginning.
            let mut at = parts
                .last()
                .map_or(run.start, |last| last.end.max(run.start));
            while at < run.end {
                match parts.last_mut() {
                    Some(last) if at < last.start + PART_BLOCKS => {
                        last.end = run.end.min(last.start + PART_BLOCKS);
                        at = last.end;
                    }
                    _ => {
                        parts.push(at..run.end.min(at + PART_BLOCKS));
                        at = run.end.min(at + PART_BLOCKS);
                    }
                }
            }
        }
        Ok(parts)
    }

    /// The runs of a range of file blocks that are no holes, counted from its start. Short holes are included, because splitting there gains nothing.
    fn filled(
        &self,
        own: &F2fsInode,
        body: &Body,
        start: u64,
        len: u64,
    ) -> Result<Vec<Range<u64>>> {
        const WORTH: u64 = 16;
        let mut runs: Vec<Range<u64>> = Vec::new();
        let mut at = 0;
        while at < len {
            let (state, n) = self
                .nodes
                .find_blocks(own.ino, body, start + at, len - at)?;
            let n = n.clamp(1, len - at);
            if state != BlockState::Hole {
                match runs.last_mut() {
                    Some(last) if at - last.end < WORTH => last.end = at + n,
                    _ => runs.push(at..at + n),
                }
            }
            at += n;
        }
        Ok(runs)
    }

    /// Moves a part in one operation. After the last one it also frees the blocks left behind.
    fn shift_step(
        &self,
        inode: &Inode,
        part: Part,
        last: Option<(Range<u64>, FallocMode, Timestamp)>,
    ) -> Result<()> {
        let op = self.checkpoints.begin(OP)?;
        let own = f2fs(inode);
        let mut body = own.body.write();
        if body.inode.inline.contains(InlineFlags::DATA) {
            self.tree.check_block_quota(own, &body, 1)?;
        }
        self.inline_to_blocks(op.w, inode, &mut body)?;
        let mut result = self.copy_part(op.w, inode, &mut body, part);
        if let (Ok(()), Some((range, mode, now))) = (&result, last) {
            let (size, by) = (inode.size(), range.end - range.start);
            result = if mode == FallocMode::CollapseRange {
                body.disk_size = size - by;
                self.tree
                    .free_from(op.w, own, &mut body, (size - by).div_ceil(4096))
            } else {
                body.disk_size = size + by;
                self.tree
                    .free_range(op.w, own, &mut body, range.start >> 12..range.end >> 12)
            };
            inode.update_attr(|a| (a.mtime, a.ctime) = (now, now));
        }
        self.tree.store_inode(inode, &mut body)?;
        self.tree.show_blocks(inode, &body);
        result
    }

    /// Makes file blocks what others are.
    fn copy_part(&self, w: &Writer, inode: &Inode, body: &mut Body, part: Part) -> Result<()> {
        let own = f2fs(inode);
        // Looked up before anything changes, because the ranges may overlap.
        let mut states = Vec::with_capacity(part.n as usize);
        while (states.len() as u64) < part.n {
            let at = part.from + states.len() as u64;
            let left = part.n - states.len() as u64;
            let (state, len) = self.nodes.find_blocks(own.ino, body, at, left)?;
            for i in 0..len.clamp(1, left) as u32 {
                states.push(match state {
                    BlockState::Stored(block) => BlockState::Stored(BlockAddr(block.0 + i)),
                    other => other,
                });
            }
        }
        let stored = states.iter().filter_map(|s| match s {
            BlockState::Stored(block) => Some(*block),
            _ => None,
        });
        let stored: Vec<BlockAddr> = stored.collect();
        // The copies, and every node that may change. Before anything is taken.
        let dirty = self.nodes.dirty_blocks() + 64;
        if w.segments.available() < dirty + stored.len() as u64 {
            return Err(Error::new(ErrorKind::NoSpace, OP).ino(inode.ino()));
        }
        let mut charged = self.charge_targets(w, own, body, part.to, &states)?;
        let bytes = read_blocks(&self.volume.device, IoPriority::default(), &stored)
            .map_err(|e| Error::io(OP, e).ino(inode.ino()));
        let mut taken: Vec<(BlockAddr, u32)> = Vec::new();
        let result = bytes.and_then(|bytes| self.write_copies(w, body, &bytes, &mut taken));
        let result = result.and_then(|()| {
            let mut new = taken
                .iter()
                .flat_map(|(start, n)| (0..*n).map(|i| BlockAddr(start.0 + i)));
            for (at, state) in (part.to..).zip(&states) {
                self.put_copy(w, own, body, at, *state, &mut new, &mut charged)?;
            }
            Ok(())
        });
        w.segments.discharge(charged, 0);
        // Those that nothing refers to are not in use.
        for (start, n) in taken {
            for block in (0..n).map(|i| BlockAddr(start.0 + i)) {
                if !w.segments.is_valid(block) {
                    w.segments.give_back(block, 1);
                }
            }
        }
        body.generation += 1;
        w.relocation.moved.store(true, Ordering::Release);
        result
    }

    /// Makes the nodes that are to name these states from file block `to` on, and charges for the blocks that are new there: how
    /// many. All that can be refused is refused here, before anything has moved: a shift that had to stop between two blocks, or began
    /// again, would take blocks that were put in their places for those that were there before.
    fn charge_targets(
        &self,
        w: &Writer,
        own: &F2fsInode,
        body: &mut Body,
        to: u64,
        states: &[BlockState],
    ) -> Result<u64> {
        let mut new = 0;
        for (at, state) in (to..).zip(states) {
            if *state == BlockState::Hole {
                continue;
            }
            let slot = self.tree.ensure_slot(w, own, body, at)?;
            if let Place::In { bytes, .. } = self.nodes.find_address(own.ino, body, at)? {
                let old = address_in(&bytes, slot.start, slot.position);
                new += u64::from(old == BlockAddr::NULL);
            }
        }
        self.tree.check_block_quota(own, body, new)?;
        w.segments.charge(new, 0)?;
        Ok(new)
    }

    /// Writes blocks to new places.
    fn write_copies(
        &self,
        w: &Writer,
        body: &Body,
        bytes: &[IoSlice],
        taken: &mut Vec<(BlockAddr, u32)>,
    ) -> Result<()> {
        let log: Log = crate::data::log_of(w, body);
        let mut batch = WriteBatch::new(&self.volume.device, Flags::empty(), IoPriority::default());
        let mut done = 0;
        let mut full = Ok(());
        while done < bytes.len() {
            match w
                .segments
                .take_run(Need::User, log, (bytes.len() - done) as u32)
            {
                Ok((start, n)) => {
                    for (i, slice) in bytes[done..done + n as usize].iter().enumerate() {
                        let at = DevOffset((u64::from(start.0) + i as u64) << 12);
                        batch.push(at, slice.clone());
                    }
                    taken.push((start, n));
                    done += n as usize;
                }
                Err(e) => {
                    full = Err(e);
                    break;
                }
            }
        }
        batch.finish().map_err(|e| Error::io(OP, e))?;
        full
    }

    /// Makes file block `at` one of this state; a stored one is the next of `new`. `charged`: what there is for new ones.
    #[allow(clippy::too_many_arguments)]
    fn put_copy(
        &self,
        w: &Writer,
        own: &F2fsInode,
        body: &mut Body,
        at: u64,
        state: BlockState,
        new: &mut impl Iterator<Item = BlockAddr>,
        charged: &mut u64,
    ) -> Result<()> {
        if state == BlockState::Hole {
            if matches!(
                self.nodes.find_address(own.ino, body, at)?,
                Place::In { .. }
            ) {
                self.tree.free_range(w, own, body, at..at + 1)?;
            }
            return Ok(());
        }
        let slot = self.tree.ensure_slot(w, own, body, at)?;
        let node = match self.nodes.find_address(own.ino, body, at)? {
            Place::In { bytes, .. } => bytes,
            _ => return Err(Error::corrupt(OP, "a node that was made is missing")),
        };
        let old = address_in(&node, slot.start, slot.position);
        if old == BlockAddr::NULL {
            *charged = charged
                .checked_sub(1)
                .ok_or_else(|| Error::corrupt(OP, "more new blocks than there were holes"))?;
            body.inode.blocks += 1;
        }
        let block = match state {
            BlockState::Stored(_) => new
                .next()
                .ok_or_else(|| Error::corrupt(OP, "fewer copies than blocks"))?,
            _ => BlockAddr::NEW,
        };
        self.nodes
            .set_address(slot.nid, slot.start, slot.position, block)?;
        if old.is_stored() {
            w.segments.invalidate(old);
        }
        if block.is_stored() {
            let version = self.nodes.nat.get(slot.nid)?.version;
            w.segments.commit_as(block, 1, w.age(), |_| Summary {
                nid: slot.nid,
                version,
                offset: slot.position as u16,
            })?;
        }
        Ok(())
    }
}
