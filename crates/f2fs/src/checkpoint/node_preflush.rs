//! Nodes written ahead of a checkpoint, while operations go on.
//!
//! No operation runs while a checkpoint is written, so all of them wait for what it writes. Nodes are most of that, and
//! most of them do not change in the moment before. So when many are dirty, they are written before the gate is closed,
//! [`PIECE`] at a time. The checkpoint writes only those that changed meanwhile. Rounds end when few nodes are left, when a
//! round did not halve them, after [`ROUNDS_MAX`], or when space runs short, because then every block counts.
//!
//! # Invariants
//! * The table names a node's new place only after the node was written there, so no reader waits for it.
//! * No lock keeps a node unchanged meanwhile; its state is checked when it has been written. If it changed, the copy is given back.
//!   If an fsync moved it, or it was freed, [`Nat::replace_if`](crate::node::nat::Nat::replace_if) says so, and the copy becomes invalid at once.
//! * No copy goes to the warm node log, which holds fsync's chain: a foreign node there would end the chain. Nodes of files
//!   go to the cold log.
//! * A clean node is durable, or its file is marked ([`CheckpointReason::Preflushed`]) and fsync asks for the checkpoint. Nodes become clean
//!   only while no chain is extended ([`Chain::node_writeback`](crate::writer::chain::Chain)). Otherwise a node that fsync gave a place could be
//!   clean and dropped, and be looked for at that place before it is there.
//!
//! # Crash order
//! None of its own. Copies are in blocks that the last checkpoint does not call valid. Blocks that they replace are not handed out before the
//! next checkpoint, which flushes the copies before it counts. A crash in between leaves the last checkpoint and fsync's chain.
//!
//! # Locks
//! The gate shared, for a piece; inside it `Chain::node_writeback`, when the piece has been written.

use crate::checkpoint::Checkpoints;
use crate::node::cache::Bytes;
use crate::writer::Writer;
use crate::writer::chain::CheckpointReason;
use crate::{Error, ErrorKind, Result};
use blockwright_device::{AlignedBuf, DevOffset, Flags, IoPriority, WriteBatch};
use blockwright_ondisk::f2fs as disk;
use blockwright_ondisk::f2fs::node::{Footer, NodeOffset};
use blockwright_ondisk::f2fs::{BlockAddr, Log, NatEntry, Nid};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const OP: &str = "write nodes early";
/// Nodes written while the gate is held once. A checkpoint that wants the gate waits for no more than these.
const PIECE: usize = 128;
/// Rounds before a checkpoint.
const ROUNDS_MAX: u32 = 3;
/// Dirty nodes that a checkpoint writes itself.
const LEFT: u64 = 256;

/// State and counters of the pre-flush.
pub(crate) struct NodePreflush {
    left: AtomicU64,
    running: AtomicBool,
    written: AtomicU64,
    in_vain: AtomicU64,
    /// Nodes and blocks of directories that one checkpoint wrote behind the gate.
    most_behind_gate: AtomicU64,
    behind_gate: AtomicU64,
}

impl Default for NodePreflush {
    fn default() -> Self {
        NodePreflush {
            left: AtomicU64::new(LEFT),
            running: AtomicBool::new(false),
            written: AtomicU64::new(0),
            in_vain: AtomicU64::new(0),
            most_behind_gate: AtomicU64::new(0),
            behind_gate: AtomicU64::new(0),
        }
    }
}

/// While it lives, no other thread writes nodes ahead.
struct Running<'a>(&'a AtomicBool);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// A node's copy that is being written.
struct Sent {
    nid: Nid,
    then: Bytes,
    old: NatEntry,
    to: BlockAddr,
}

impl NodePreflush {
    /// Dirty nodes that a checkpoint writes itself.
    pub(crate) fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    /// Changes it.
    pub(crate) fn set_left(&self, nodes: u64) {
        self.left.store(nodes, Ordering::Relaxed);
    }

    /// A checkpoint writes this many nodes and blocks of directories behind the gate.
    pub(crate) fn note_behind_gate(&self, blocks: u64) {
        self.behind_gate.fetch_add(blocks, Ordering::Relaxed);
        self.most_behind_gate.fetch_max(blocks, Ordering::Relaxed);
    }

    pub(crate) fn stats(&self, out: &mut blockwright_vfs::Stats) {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        blockwright_vfs::stat_lines! { out;
            counter "checkpoint_early_nodes", Blocks, "nodes written before checkpoints, while operations went on" => get(&self.written);
            counter "checkpoint_early_in_vain", Blocks, "of these, nodes that changed while they were written" => get(&self.in_vain);
            counter "checkpoint_exclusive_blocks", Blocks, "nodes and blocks of directories written by checkpoints while operations waited"
                => get(&self.behind_gate);
            gauge "checkpoint_exclusive_blocks_peak", Blocks, "the largest such number of one checkpoint" => get(&self.most_behind_gate);
        }
    }
}

impl Checkpoints {
    /// Writes what a checkpoint would write first, while operations go on, and no checkpoint: for tests of what happens in between.
    pub fn write_ahead_of_checkpoint(&self) {
        if let Some(w) = &self.access.writer {
            self.preflush_nodes(w);
        }
    }

    /// Writes nodes until few are left for the checkpoint that follows. The gate is not held.
    pub(crate) fn preflush_nodes(&self, w: &Writer) {
        let preflush = &self.preflush;
        let left = preflush.left();
        if (self.nodes.cache.dirty_count() as u64) <= left || w.segments.is_pinned() {
            return;
        }
        if preflush.running.swap(true, Ordering::AcqRel) {
            return;
        }
        let _running = Running(&preflush.running);
        for _ in 0..ROUNDS_MAX {
            let keys = self.nodes.cache.dirty_keys();
            if keys.len() as u64 <= left {
                return;
            }
            for piece in keys.chunks(PIECE) {
                let _gate = w.gate.read();
                if w.failure().is_some()
                    || w.segments.is_pinned()
                    || !self.is_roomy(w, piece.len() as u64)
                {
                    return;
                }
                match self.write_piece(w, piece) {
                    Ok(()) => {}
                    // The checkpoint needs fewer blocks.
                    Err(e) if e.kind() == ErrorKind::NoSpace => return,
                    Err(e) => return w.poison(&e),
                }
            }
            if self.nodes.cache.dirty_count() > keys.len() / 2 {
                return;
            }
        }
    }

    fn write_piece(&self, w: &Writer, nids: &[Nid]) -> Result<()> {
        let mut copies = Vec::with_capacity(nids.len());
        let mut batch = WriteBatch::new(&self.volume.device, Flags::META, IoPriority::current());
        let taken = self.copy_nodes(w, nids, &mut copies, &mut batch);
        // Also when there was no more room: the copies that have places are written.
        let result = batch.finish().map_err(|e| Error::io(OP, e));
        let counted = &w.relocation.counters.metadata_blocks_written;
        counted.fetch_add(copies.len() as u64, Ordering::Relaxed);
        self.preflush
            .written
            .fetch_add(copies.len() as u64, Ordering::Relaxed);
        let _writeback = w.chain.node_writeback.lock_nested();
        for Sent { nid, then, old, to } in copies {
            let changed = || {
                let now = self.nodes.cache.find(nid);
                !now.is_some_and(|now| std::sync::Arc::ptr_eq(&now, &then))
            };
            if result.is_err() || changed() {
                w.segments.give_back(to, 1);
                self.preflush.in_vain.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            // Before another thread can find it and give it up.
            w.segments.commit(to, 1, w.age());
            if !self.nodes.nat.replace_if(nid, &old, to) {
                w.segments.invalidate(to);
                self.preflush.in_vain.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            // Or the checkpoint might find nothing to do.
            w.dirty.store(true, Ordering::Release);
            if old.block.is_stored() {
                w.segments.invalidate(old.block);
            }
            w.chain.mark_file(old.ino, CheckpointReason::Preflushed);
            // If it changed in this very moment, it is still dirty. The copy is out of date, which does no harm.
            self.nodes.cache.mark_written(nid, &then);
        }
        result.and(taken)
    }

    /// Copies nodes as they are now, gives the copies their places and sends them.
    fn copy_nodes(
        &self,
        w: &Writer,
        nids: &[Nid],
        copies: &mut Vec<Sent>,
        batch: &mut WriteBatch,
    ) -> Result<()> {
        let version = w.current.lock().checkpoint.footer_version();
        for nid in nids.iter().copied() {
            let old = self.nodes.nat.get(nid)?;
            let Some(then) = self.nodes.cache.find(nid) else {
                continue;
            };
            if old.is_free() || !self.nodes.cache.is_dirty(nid) {
                continue;
            }
            let mut block = AlignedBuf::copy_of(&then);
            // A state that is inconsistent during an operation may be consistent at its end; the
            // checkpoint sees.
            let Ok(mut footer) = Footer::expect(&block, nid, Some(old.ino)) else {
                continue;
            };
            let is_inode = footer.offset == NodeOffset::INODE;
            if is_inode && disk::Inode::parse_unverified(&block, old.ino, &self.volume.geo).is_err()
            {
                continue;
            }
            let log = match footer.cold || footer.offset.is_indirect() {
                true => Log::ColdNode,
                false => Log::HotNode,
            };
            let to = w.place_node(w.logs.of(log), nid, &mut footer, version)?;
            // The block has its full length.
            let _ = footer.write(&mut block);
            if is_inode {
                disk::inode::set_checksum(&mut block, old.ino, &self.volume.geo);
            }
            batch.push(DevOffset(u64::from(to.0) << 12), block.into());
            copies.push(Sent { nid, then, old, to });
        }
        Ok(())
    }
}
