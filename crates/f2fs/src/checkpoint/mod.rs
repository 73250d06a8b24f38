//! Writing checkpoints.
//!
//! # Crash order
//! 1. Directory blocks, then nodes, go to new places: nothing that the last checkpoint calls valid is
//!    overwritten.
//! 2. Summaries of segments that logs have left; NAT and SIT blocks, each into the copy that the last
//!    checkpoint calls invalid; the pack except its last block, into the other of two packs.
//! 3. A flush. So all of it, and all data that nodes refer to, is durable before
//! 4. the pack's last block, with FUA: with it the pack's head and tail agree, and it counts.
//!
//! A crash before 4 leaves the last checkpoint, with everything it refers to. Blocks, segments and node
//! numbers that were given up are handed out only after 4.
//!
//! `node_preflush` writes nodes ahead of a checkpoint, while operations go on. `merge` serves requests for checkpoints.
//!
//! # Part
//! [`Checkpoints`] owns the merging daemon and the state of the pre-flush. It calls the volume, the writer's state, nodes and the tree; never data,
//! directories or cleaning.
//!
//! # Locks
//! The gate (`gate`) exclusively while a checkpoint is written; then the segments and the NAT, each for a moment.

mod disable;
mod gate;
pub(crate) mod merge;
pub(crate) mod node_preflush;
pub(crate) mod tickets;

/// What `tickets` needs; its test puts loom's here.
mod atomics {
    pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
}

use crate::alloc::Need;
use crate::checkpoint::merge::Merger;
use crate::checkpoint::node_preflush::NodePreflush;
use crate::node::Nodes;
use crate::node::Place;
use crate::node::cache::Bytes;
use crate::node::inode::Body;
use crate::node::tree::Tree;
use crate::volume::Volume;
use crate::writer::Access;
use crate::writer::Writer;
use crate::writer::trace::Part;
use crate::{Error, ErrorKind, Result};
use blockwright_device::{AlignedBuf, DevOffset, Flags, IoPriority, WriteBatch};
use blockwright_ondisk::f2fs as disk;
use blockwright_ondisk::f2fs::checkpoint::CheckpointFlags;
use blockwright_ondisk::f2fs::node::{Footer, NodeOffset};
use blockwright_ondisk::f2fs::pack;
use blockwright_ondisk::f2fs::summary::{Summary, SummaryBlock, SummaryKind};
use blockwright_ondisk::f2fs::{BLOCK_SIZE, Ino, Log, Nid};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const OP: &str = "checkpoint";

/// The purpose of a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CheckpointKind {
    /// To make durable what was done.
    Sync,
    /// The volume is closed: nothing is to be recovered.
    Unmount,
    /// The last one for some time.
    Disable,
}

/// Metadata that is being written, as it was then.
pub(crate) struct Written {
    blocks: Vec<((Ino, u64), Bytes)>,
    nodes: Vec<(Nid, Bytes)>,
}

blockwright_vfs::part! {
    /// Checkpoints and the gate: see the module's head.
    pub struct Checkpoints {
        volume: Volume,
        access: Access,
        nodes: Nodes,
        tree: Tree,
        ;
        /// Merges requests for checkpoints.
        pub(crate) merger: Merger = Merger::new(),
        /// What is written ahead of checkpoints.
        pub(crate) preflush: NodePreflush = NodePreflush::default(),
    }
}

impl Checkpoints {
    /// Makes everything durable that was done before: has the daemon write a checkpoint (`merge`), or writes one.
    ///
    /// # Errors
    /// A device error, or `NoSpace` when there is no block left for a node; either poisons the volume.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        let w = self.access.writer(OP)?;
        if w.segments.is_pinned() {
            return self.spill(w);
        }
        match self.merger.request() {
            Some(true) => Ok(()),
            Some(false) => self.access.writer(OP).map(drop),
            None => self.write_checkpoint(w, CheckpointKind::Sync),
        }
    }

    /// Writes a checkpoint, in the caller's own context.
    ///
    /// # Errors
    /// As [`Checkpoints::checkpoint`].
    pub(crate) fn write_checkpoint(&self, w: &Writer, kind: CheckpointKind) -> Result<()> {
        let served = self.write_checkpoint_for(w, kind, || Some(()));
        served.map_or(Ok(()), |((), result)| result)
    }

    /// Writes a checkpoint for the requests that `take` returns once no operation is under way any more: it has all
    /// that they are for. `None`, and nothing written, when there are none. The first failure poisons the volume.
    pub(crate) fn write_checkpoint_for<T>(
        &self,
        w: &Writer,
        kind: CheckpointKind,
        take: impl FnOnce() -> Option<T>,
    ) -> Option<(T, Result<()>)> {
        let part = w.relocation.trace.enter(Part::Preflush);
        self.preflush_nodes(w);
        drop(part);
        let waiting = w.relocation.trace.enter(Part::Gate);
        let _gate = w.gate.write();
        drop(waiting);
        let served_now = take()?;
        Some((served_now, self.write_gated(w, kind)))
    }

    fn write_gated(&self, w: &Writer, kind: CheckpointKind) -> Result<()> {
        if let Some(cause) = w.failure() {
            return Err(Error::new(ErrorKind::Poisoned, OP).source(cause));
        }
        let clean = !w.dirty.swap(false, Ordering::AcqRel) && self.nodes.dirty_blocks() == 0;
        if clean && kind == CheckpointKind::Sync {
            // Data overwritten in place may be in the device's cache still.
            return self.volume.device.flush().map_err(|e| {
                let e = Error::io(OP, e);
                w.poison(&e);
                e
            });
        }
        self.nodes.assert_fresh_nodes_are_named();
        let result = self.write_pack(w, kind);
        if let Err(e) = &result {
            w.poison(e);
        } else {
            w.checkpoints.fetch_add(1, Ordering::Relaxed);
            match kind {
                CheckpointKind::Disable => w.segments.pin(),
                CheckpointKind::Sync | CheckpointKind::Unmount if w.segments.is_pinned() => {
                    w.segments.unpin()
                }
                CheckpointKind::Sync | CheckpointKind::Unmount => {}
            }
        }
        result
    }

    fn write_pack(&self, w: &Writer, kind: CheckpointKind) -> Result<()> {
        let io = |e| Error::io(OP, e);
        let part = w.relocation.trace.enter(Part::Pack);
        w.segments.end_leases();
        let mut batch = WriteBatch::new(&self.volume.device, Flags::META, IoPriority::current());
        let written = self.write_metadata(w, &mut batch)?;
        let behind_gate = written.blocks.len() + written.nodes.len();
        self.preflush.note_behind_gate(behind_gate as u64);
        w.segments.place_heads()?;
        let (mut cp, which) = {
            let current = w.current.lock();
            (current.checkpoint.clone(), current.which.other())
        };
        let nat = self.nodes.nat.flush(&mut batch, &mut cp.nat_bitmap)?;
        let sit = w.segments.flush(&mut batch, &mut cp.sit_bitmap);

        let orphans: Vec<Ino> = w.orphans.lock().iter().copied().collect();
        let orphan_blocks = pack::encode_orphans(&orphans);
        let counts = w.segments.counts();
        let logs = w.segments.logs();
        let raw = &mut cp.raw;
        raw.checkpoint_ver
            .set(raw.checkpoint_ver.get().wrapping_add(1));
        raw.valid_block_count.set(counts.blocks);
        raw.valid_node_count.set(counts.nodes);
        raw.valid_inode_count.set(counts.inodes);
        raw.free_segment_count.set(w.segments.free_segments());
        for (log, head, _) in &logs {
            raw.set_log(*log, *head);
        }
        let mut flags = raw.flags() & CheckpointFlags::LARGE_NAT_BITMAP;
        flags |= self.tree.quota.flag(raw.flags());
        flags |= CheckpointFlags::CRC_RECOVERY;
        flags.set(CheckpointFlags::DISABLED, kind == CheckpointKind::Disable);
        // A disabled one, too, has nothing behind it that is to be recovered. Node summaries are in the pack with this flag only, as
        // Linux has it; other mounts collect them from the nodes. Never by FASTBOOT alone: fsck.f2fs does not know that
        // flag, takes node summaries for data's, misses both journals and "repairs" what they say.
        let with_nodes = kind != CheckpointKind::Sync;
        flags.set(CheckpointFlags::UMOUNT, with_nodes);
        flags.set(CheckpointFlags::ORPHAN_PRESENT, !orphans.is_empty());
        // Linux looks at them after a clean unmount only.
        let bit_blocks = pack::nat_bits_blocks(&self.volume.geo);
        let start_sum = 1 + self.volume.geo.cp_payload + orphan_blocks.len() as u32;
        let total = start_sum + if with_nodes { 6 } else { 3 } + 1;
        let with_bits =
            kind == CheckpointKind::Unmount && total + bit_blocks <= disk::BLOCKS_PER_SEG;
        flags.set(CheckpointFlags::NAT_BITS, with_bits);
        raw.ckpt_flags.set(flags.bits());
        raw.elapsed_time.set(w.age());
        if total > disk::BLOCKS_PER_SEG {
            return Err(Error::new(ErrorKind::NoSpace, OP)
                .detail(format!("{} orphans are too many for a pack", orphans.len())));
        }
        raw.cp_pack_start_sum.set(start_sum);
        raw.cp_pack_total_block_count.set(total);
        let head = cp
            .encode(&self.volume.geo)
            .ok_or_else(|| Error::corrupt(OP, "the version bitmaps do not fit"))?;

        let first = self.volume.geo.pack_start(which);
        let mut at = first.0;
        let mut push = |bytes: &[u8]| {
            for block in bytes.chunks_exact(BLOCK_SIZE) {
                let slice = AlignedBuf::copy_of(block).into();
                batch.push(DevOffset(u64::from(at) << 12), slice);
                at += 1;
            }
        };
        push(&head);
        for block in &orphan_blocks {
            push(block);
        }
        let too_long = || Error::corrupt(OP, "a journal does not fit");
        for (log, _, entries) in logs {
            if log.is_node() && !with_nodes {
                continue;
            }
            let mut block = SummaryBlock::new(SummaryKind::of(log));
            block.entries = entries;
            match log {
                Log::HotData => block.journal = nat.encode().ok_or_else(too_long)?,
                Log::ColdData => block.journal = sit.encode().ok_or_else(too_long)?,
                Log::HotNode => block.journal = w.lifetime.now().encode(),
                _ => {}
            }
            push(&block.encode());
        }
        if with_bits {
            let bits = self.nodes.nat.bits().encode(&cp);
            let at = first.0 + disk::BLOCKS_PER_SEG - bit_blocks;
            let slice = AlignedBuf::copy_of(&bits).into();
            batch.push(DevOffset(u64::from(at) << 12), slice);
        }
        batch.finish().map_err(io)?;
        self.mark_written(written);
        drop(part);
        let part = w.relocation.trace.enter(Part::Flush);
        self.volume.device.flush().map_err(io)?;
        let tail = DevOffset(u64::from(first.0 + total - 1) << 12);
        self.volume
            .device
            .write_at(tail, &head[..BLOCK_SIZE], Flags::FUA | Flags::META)
            .map_err(io)?;
        drop(part);

        let _part = w.relocation.trace.enter(Part::Free);
        let chain_start = w.segments.chain_start(&cp);
        let mut current = w.current.lock();
        current.checkpoint = cp;
        current.which = which;
        drop(current);
        self.nodes.nat.checkpointed();
        w.relocation.await_reads();
        w.chain.checkpointed(w.segments.commits(), chain_start);
        for seg in w.segments.checkpointed() {
            if self.volume.options.discard
                && let Some(start) = self.volume.geo.segment_start(seg)
            {
                let bytes = u64::from(disk::BLOCKS_PER_SEG) << 12;
                // Advice: a device that refuses it loses nothing.
                let _refused = self
                    .volume
                    .device
                    .discard(DevOffset(u64::from(start.0) << 12), bytes);
            }
        }
        Ok(())
    }

    /// Gives directory blocks, then nodes, their new places. They are clean when the batch is finished and
    /// [`Checkpoints::mark_written`] is called: a clean block may be dropped at any time, and be read again from its new
    /// place.
    pub(crate) fn write_metadata(&self, w: &Writer, batch: &mut WriteBatch) -> Result<Written> {
        Ok(Written {
            blocks: self.write_directory_blocks(w, batch)?,
            nodes: self.write_nodes(w, batch)?,
        })
    }

    /// The blocks that [`Checkpoints::write_metadata`] wrote are on the device.
    pub(crate) fn mark_written(&self, written: Written) {
        for (key, then) in written.blocks {
            self.nodes.blocks.mark_written(key, &then);
        }
        for (nid, then) in written.nodes {
            self.nodes.cache.mark_written(nid, &then);
        }
    }

    fn write_directory_blocks(
        &self,
        w: &Writer,
        batch: &mut WriteBatch,
    ) -> Result<Vec<((Ino, u64), Bytes)>> {
        let dirty = self.nodes.blocks.dirty();
        for ((ino, at), bytes) in &dirty {
            let (ino, at) = (*ino, *at);
            let node = self.nodes.inode_node(ino)?;
            let body = Body::parse(&self.volume, ino, &node)?;
            let Place::In {
                nid,
                start,
                position,
                bytes: node,
                ..
            } = self.nodes.find_address(ino, &body, at)?
            else {
                return Err(self.volume.corrupt(
                    OP,
                    Some(ino),
                    None,
                    "a dirty block has no address",
                ));
            };
            let old = crate::node::change::address_in(&node, start, position);
            let version = self.nodes.nat.get(nid)?.version;
            let (block, _) =
                w.segments
                    .take_for(Need::Checkpoint, w.logs.of(Log::HotData), 1, |_| Summary {
                        nid,
                        version,
                        offset: position as u16,
                    })?;
            w.relocation
                .counters
                .metadata_blocks_written
                .fetch_add(1, Ordering::Relaxed);
            let bytes = Arc::clone(bytes);
            batch.push(DevOffset(u64::from(block.0) << 12), bytes.into());
            w.segments.commit(block, 1, w.age());
            if old.is_stored() {
                w.segments.invalidate(old);
            }
            // A change copies the bytes while another reference to them is held.
            drop(node);
            self.nodes.set_address(nid, start, position, block)?;
        }
        Ok(dirty)
    }

    fn write_nodes(&self, w: &Writer, batch: &mut WriteBatch) -> Result<Vec<(Nid, Bytes)>> {
        let version = w.current.lock().checkpoint.footer_version();
        let bad = |e: disk::FormatError| Error::corrupt(OP, e.to_string());
        let mut nodes = Vec::with_capacity(self.nodes.cache.dirty_count());
        for nid in self.nodes.cache.dirty_keys() {
            let old = self.nodes.nat.get(nid)?;
            let Some(bytes) = self.nodes.cache.find(nid) else {
                continue;
            };
            let footer = Footer::expect(&bytes, nid, Some(old.ino)).map_err(bad)?;
            let log = match (footer.offset.is_indirect(), footer.cold) {
                (true, _) => Log::ColdNode,
                (false, true) => Log::WarmNode,
                (false, false) => Log::HotNode,
            };
            nodes.push((w.logs.of(log), nid, old, footer));
        }
        // One log after the other: what lies side by side is one request.
        nodes.sort_by_key(|(log, ..)| log.code());
        let now = w.age();
        let mut written = Vec::with_capacity(nodes.len());
        for (log, nid, old, mut footer) in nodes {
            let to = w.place_node(log, nid, &mut footer, version)?;
            let block = self.nodes.cache.seal(nid, |block| {
                // The block has its full length.
                let _ = footer.write(block);
                if footer.offset == NodeOffset::INODE {
                    // Verified before it is written: nothing invalid gets to the device.
                    disk::Inode::parse_unverified(block, old.ino, &self.volume.geo).map_err(bad)?;
                    disk::inode::set_checksum(block, old.ino, &self.volume.geo);
                }
                Ok::<(), Error>(())
            })?;
            let Some(block) = block else {
                w.segments.give_back(to, 1);
                continue;
            };
            w.relocation
                .counters
                .metadata_blocks_written
                .fetch_add(1, Ordering::Relaxed);
            batch.push(DevOffset(u64::from(to.0) << 12), Arc::clone(&block).into());
            written.push((nid, block));
            w.segments.commit(to, 1, now);
            if old.block.is_stored() {
                w.segments.invalidate(old.block);
            }
            self.nodes.nat.replace(nid, to)?;
        }
        Ok(written)
    }

    /// The ager's life: a checkpoint whenever changes come of age.
    pub(crate) fn run_ager(&self) {
        let Some(w) = &self.access.writer else { return };
        loop {
            {
                let mut stop = w.stop.lock();
                if !*stop {
                    w.stopped
                        .wait_for(&mut stop, self.volume.options.commit_interval);
                }
                if *stop {
                    return;
                }
            }
            if w.failure().is_some() {
                return;
            }
            if w.dirty.load(Ordering::Acquire)
                && !w.segments.is_pinned()
                && let Err(e) = self.checkpoint()
            {
                // It is remembered, and every later change fails with it.
                w.poison(&e);
            }
        }
    }

    /// Ends the lives of ager and daemon. Their writes and the requests to the daemon are finished.
    pub(crate) fn stop_threads(&self) {
        if let Some(w) = &self.access.writer {
            *w.stop.lock() = true;
            w.stopped.notify_all();
            self.merger.stop();
        }
    }

    /// The last checkpoint: nothing is to be recovered.
    pub(crate) fn unmount(&self) -> Result<()> {
        match &self.access.writer {
            // Changes since checkpoints were disabled are dropped.
            Some(w) if w.segments.is_pinned() => Ok(()),
            Some(w) => self.write_checkpoint(w, CheckpointKind::Unmount),
            None => Ok(()),
        }
    }
}
