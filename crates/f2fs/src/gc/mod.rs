//! Cleaning: moving the valid blocks of a section elsewhere, so that the section becomes free.
//!
//! [`pace`] says when that is done, and by which thread.
//!
//! # Part
//! [`Cleaning`] owns the turn, the queue of waiters and the background thread. It calls checkpoints, nodes, the tree and the segments. It never
//! calls data or directories: the vfs keeps files' blocks in place for it.
//!
//! # How a section is cleaned
//! 1. Its summaries say which node owns each block. The nodes are brought into memory.
//! 2. With the gate held exclusively, when nothing changes, each owner is verified: the node is that node, of an inode that
//!    keeps addresses there, and its address is the block. A node that lies in the section, and a directory's block, are
//!    marked dirty: the next checkpoint gives them a new place. A summary that names the wrong owner is damage: nothing is
//!    moved by it, and the section is not tried again.
//! 3. Data of files is moved, some blocks at a time, while the vfs keeps the file's blocks in place
//!    ([`Host::with_relocation_barrier`]): verified again, read, written to the cold log, referred to.
//!
//! The old blocks are free with the next checkpoint.
//!
//! # Never stuck
//! * A thread that waits for cleaning holds no lock and owns no writeback, so cleaning may take any lock.
//! * Users' data leaves some free sections alone that cleaning may use, and cleaning leaves some to checkpoints.
//! * A pass ends after a number of sections that brought no more free ones.
//! * Nothing is written while it is being moved, and nothing is moved while it is being written: sections with blocks
//!   under way, and those of the logs, are no victims.
//!
//! # Crash order
//! The moved copy is durable before any node that names it: a checkpoint flushes before it counts. The old
//! block is handed out after that, when reads that may use it have ended ([`Host::await_reads`]).
//!
//! # Locks
//! `turn` (rank `Freeze`): one step at a time. [`queue`] says which thread makes room for the waiters.

mod pace;
mod queue;

use crate::alloc::Need;
use crate::alloc::victims::{Ended, VictimSegment};
use crate::checkpoint::Checkpoints;
use crate::node::Nodes;
use crate::node::change::address_in;
use crate::node::direct_addresses;
use crate::node::inode::{Body, f2fs};
use crate::node::io::read_blocks;
use crate::node::tree::Tree;
use crate::volume::Volume;
use crate::writer::Access;
use crate::writer::Writer;
use crate::writer::trace::{Part, SlowWait};
use crate::{Error, ErrorKind, Result};
use blockwright_device::{AlignedBuf, DevOffset, Flags, IoPriority, WriteBatch};
use blockwright_ondisk::f2fs::inode::InlineFlags;
use blockwright_ondisk::f2fs::node::{self, NodeOffset};
use blockwright_ondisk::f2fs::summary::{Summary, SummaryKind};
use blockwright_ondisk::f2fs::{BlockAddr, FileKind, Ino, Log, Nid};
use blockwright_vfs as vfs;
use blockwright_vfs::Host;
use blockwright_vfs::locks::{Condvar, Mutex, Rank};
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

const OP: &str = "clean";
/// Blocks moved while a file's blocks are kept still: what a writer may have to wait for.
const RELOCATION_BLOCKS_MAX: usize = 128;

/// The state of cleaning.
pub(crate) struct Cleaner {
    turn: Mutex<pace::Pass>,
    stop: Mutex<bool>,
    stopped: Condvar,
    /// The thread is to clean ahead of the writers.
    called: AtomicBool,
    /// Writers that wait for room.
    queue: queue::Queue,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Default for Cleaner {
    fn default() -> Self {
        Cleaner {
            turn: Mutex::new(Rank::Freeze, pace::Pass::default()),
            stop: Mutex::new(Rank::Leaf, false),
            stopped: Condvar::new(),
            called: AtomicBool::new(false),
            queue: queue::Queue::default(),
            thread: Mutex::new(Rank::Leaf, None),
        }
    }
}

impl Cleaner {
    fn is_stopped(&self) -> bool {
        *self.stop.lock()
    }
}

/// A block of a file, and where its address is kept.
#[derive(Clone, Copy, Debug)]
struct Move {
    nid: Nid,
    position: usize,
    block: BlockAddr,
}

/// The owner of a data block.
enum Owner {
    /// A file: moved with the vfs's help.
    File(Ino),
    /// A directory or symbolic link, at this block of it.
    Meta(Ino, u64),
}

/// Why a section is cleaned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trigger {
    /// In the thread that waits for room.
    Foreground,
    /// On an idle volume.
    Background,
    /// In the background, before a writer has to wait.
    Ahead,
}

blockwright_vfs::part! {
    /// Cleaning: see the module's head.
    pub struct Cleaning {
        volume: Volume,
        access: Access,
        nodes: Nodes,
        tree: Tree,
        checkpoints: Checkpoints,
        ;
        cleaner: Cleaner = Cleaner::default(),
    }
}

impl Cleaning {
    // ---- how ----

    pub(crate) fn clean_section(
        &self,
        w: &Writer,
        host: &dyn Host,
        section: u32,
        trigger: Trigger,
    ) -> Result<()> {
        let victims = {
            let _op = self.checkpoints.begin_quietly(OP)?;
            w.segments.begin_cleaning(section)?
        };
        let Some(victims) = victims else {
            return Ok(());
        };
        let result = self.empty_out(w, host, &victims);
        let ended = match &result {
            Err(e) if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Io) => Ended::Unmovable,
            _ => Ended::Fine,
        };
        w.segments.end_cleaning(section, ended);
        let counters = &w.relocation.counters;
        if result.is_ok() {
            let counter = match trigger {
                Trigger::Foreground => &counters.sections_foreground,
                Trigger::Background => &counters.sections_background,
                Trigger::Ahead => &counters.sections_ahead,
            };
            counter.fetch_add(1, Ordering::Relaxed);
        }
        result
    }

    fn empty_out(&self, w: &Writer, host: &dyn Host, victims: &[VictimSegment]) -> Result<()> {
        let trace = &w.relocation.trace;
        let part = trace.enter(Part::Nodes);
        for v in victims {
            for at in (0..512).filter(|at| v.valid.get(*at)) {
                // Errors come again where the gate is held, if they are no passing state.
                self.nodes.read_node_ahead(v.summaries[usize::from(at)].nid);
            }
        }
        drop(part);
        let mut files = BTreeMap::new();
        // One by one, so that an operation waits for the owners of one segment at most.
        for victim in victims {
            let _part = trace.enter(Part::Owners);
            let _gate = w.gate.write();
            if let Some(cause) = w.failure() {
                return Err(Error::new(ErrorKind::Poisoned, OP).source(cause));
            }
            self.sort_out(w, victim, &mut files)?;
        }
        for moves in files.values_mut() {
            let moves: &mut Vec<Move> = moves;
            moves.sort_unstable_by_key(|m| (m.nid, m.position));
        }
        for (ino, moves) in files {
            for some in moves.chunks(RELOCATION_BLOCKS_MAX) {
                let mut still = Some(trace.enter(Part::Relocation));
                let mut work = |inode: &Arc<vfs::Inode>| {
                    still = None;
                    let _part = trace.enter(Part::Move);
                    self.move_blocks(inode, some)
                };
                match host.with_relocation_barrier(crate::volume::vfs_ino(ino), &mut work) {
                    Ok(()) => {}
                    // It is being evicted, or cannot be loaded: its blocks stay.
                    Err(e) if e.kind() == ErrorKind::Stale => break,
                    Err(e) => return Err(e),
                }
                if self.cleaner.is_stopped() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// With nothing changing: finds the owner of each block of a segment; marks nodes and blocks of directories to be written anew; adds
    /// files' blocks to those of their files.
    fn sort_out(
        &self,
        w: &Writer,
        v: &VictimSegment,
        files: &mut BTreeMap<Ino, Vec<Move>>,
    ) -> Result<()> {
        let mut meta = Vec::new();
        let mut bodies = HashMap::new();
        let mut here: Vec<u16> = (0..512).filter(|at| v.valid.get(*at)).collect();
        let block_at = |at: u16| BlockAddr(v.start.0 + u32::from(at));
        w.segments.retain_valid(&mut here, |at| block_at(*at));
        for at in here {
            let block = block_at(at);
            let summary = &v.summaries[usize::from(at)];
            if v.kind == SummaryKind::Node {
                let entry = self.nodes.nat.get(summary.nid)?;
                if entry.block != block {
                    return Err(self.wrong_owner(summary, block, "another node's place"));
                }
                self.nodes.load_node(summary.nid)?;
                if self.nodes.cache.change(summary.nid, |_| ()).is_none() {
                    // Dropped at once by others' reads: another time.
                    continue;
                }
                let moved = &w.relocation.counters.node_blocks_moved;
                moved.fetch_add(1, Ordering::Relaxed);
                w.dirty.store(true, Ordering::Release);
                continue;
            }
            match self.owner_of(summary, block, &mut bodies)? {
                Owner::File(ino) => files.entry(ino).or_default().push(Move {
                    nid: summary.nid,
                    position: usize::from(summary.offset),
                    block,
                }),
                Owner::Meta(ino, at) => meta.push((ino, at, block)),
            }
        }
        let missing: Vec<&(Ino, u64, BlockAddr)> = meta
            .iter()
            .filter(|(ino, at, _)| self.nodes.blocks.find((*ino, *at)).is_none())
            .collect();
        let places: Vec<BlockAddr> = missing.iter().map(|m| m.2).collect();
        let read = read_blocks(&self.volume.device, IoPriority(7), &places)
            .map_err(|e| Error::io(OP, e))?;
        for ((ino, at, _), bytes) in missing.into_iter().zip(read) {
            self.nodes
                .blocks
                .insert_clean((*ino, *at), AlignedBuf::copy_of(&bytes));
            self.nodes.blocks.change((*ino, *at), |_| ());
        }
        for (ino, at, _) in meta {
            self.nodes.blocks.change((ino, at), |_| ());
            let moved = &w.relocation.counters.data_blocks_moved;
            moved.fetch_add(1, Ordering::Relaxed);
            w.dirty.store(true, Ordering::Release);
        }
        Ok(())
    }

    fn wrong_owner(&self, summary: &Summary, block: BlockAddr, why: &str) -> Error {
        let detail = format!(
            "the summary of a valid block names address {} of node {}, version {}: {why}",
            summary.offset, summary.nid, summary.version
        );
        self.volume.corrupt(OP, None, Some(block), detail)
    }

    /// The file or directory that a data block belongs to, as its summary says and the node confirms.
    /// `bodies` has the inodes seen so far.
    fn owner_of(
        &self,
        summary: &Summary,
        block: BlockAddr,
        bodies: &mut HashMap<Ino, Body>,
    ) -> Result<Owner> {
        let wrong = |why: &str| self.wrong_owner(summary, block, why);
        let (nid, position) = (summary.nid, usize::from(summary.offset));
        if self.volume.geo.check_nid(nid).is_err() {
            return Err(wrong("there is no such node"));
        }
        let entry = self.nodes.nat.get(nid)?;
        if entry.is_free() {
            return Err(wrong("the node is free"));
        }
        let footer = self.nodes.load_node(nid).map_err(|e| match e.kind() {
            ErrorKind::Io => e,
            _ => wrong("the node makes no sense"),
        })?;
        let body = match bodies.entry(entry.ino) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let inode = self
                    .nodes
                    .inode_node(entry.ino)
                    .map_err(|e| match e.kind() {
                        ErrorKind::Io => e,
                        _ => wrong("its inode makes no sense"),
                    })?;
                place.insert(Body::parse(&self.volume, entry.ino, &inode)?)
            }
        };
        let Some((start, count)) = addresses_of(body, footer.offset) else {
            return Err(wrong("the node has no addresses"));
        };
        let node = match self.nodes.cache.find(nid) {
            Some(node) => node,
            None => self.nodes.node(nid, entry.ino, footer.offset)?,
        };
        if position >= count || address_in(&node, start, position) != block {
            return Err(wrong(if entry.version == summary.version {
                "the address is another block's"
            } else {
                "the node is a later one of that number"
            }));
        }
        // Quota files' blocks are in the cache of directories' blocks, and checkpoints write them.
        if body.inode.kind() == Some(FileKind::Regular) && !self.volume.is_quota_file(entry.ino) {
            return Ok(Owner::File(entry.ino));
        }
        let in_inode = body.layout.addresses_used(body.cluster);
        let first = match footer.offset {
            NodeOffset::INODE => Some(0),
            offset => node::first_block_of(offset, in_inode, body.cluster),
        };
        match first {
            Some(first) => Ok(Owner::Meta(entry.ino, first + position as u64)),
            None => Err(wrong("the node has no addresses")),
        }
    }

    /// Moves blocks of a file that are where they were. The vfs keeps them still.
    fn move_blocks(&self, inode: &Arc<vfs::Inode>, moves: &[Move]) -> Result<()> {
        let op = self.checkpoints.begin_quietly(OP)?;
        let w = op.w;
        let own = f2fs(inode);
        let mut body = own.body.write();
        // By node, as the moves are: that takes few locks.
        let mut moves = moves.to_vec();
        // Freed since, and perhaps another's by now.
        w.segments.retain_valid(&mut moves, |m| m.block);
        let mut live: Vec<(Move, usize, u8)> = Vec::with_capacity(moves.len());
        for of_node in moves.chunk_by(|a, b| a.nid == b.nid) {
            let nid = of_node[0].nid;
            let entry = self.nodes.nat.get(nid)?;
            if entry.is_free() || entry.ino != own.ino {
                continue;
            }
            let footer = self.nodes.load_node(nid)?;
            let Some((start, count)) = addresses_of(&body, footer.offset) else {
                continue;
            };
            let Some(node) = self.nodes.cache.find(nid) else {
                continue;
            };
            let unchanged =
                |m: &&Move| m.position < count && address_in(&node, start, m.position) == m.block;
            live.extend(
                of_node
                    .iter()
                    .filter(unchanged)
                    .map(|m| (*m, start, entry.version)),
            );
        }
        if live.is_empty() {
            return Ok(());
        }
        let places: Vec<BlockAddr> = live.iter().map(|(m, ..)| m.block).collect();
        let bytes = read_blocks(&self.volume.device, IoPriority(5), &places)
            .map_err(|e| Error::io(OP, e).ino(inode.ino()))?;
        let cold = w.logs.of(Log::ColdData);
        let mut done = 0;
        while done < live.len() {
            let rest = &live[done..];
            let (to, n) = w
                .segments
                .take_for(Need::Cleaning, cold, rest.len() as u32, |i| {
                    let (m, _, version) = rest[i as usize];
                    Summary {
                        nid: m.nid,
                        version,
                        offset: m.position as u16,
                    }
                })?;
            let mut batch = WriteBatch::new(&self.volume.device, Flags::empty(), IoPriority(5));
            for (i, slice) in bytes[done..done + n as usize].iter().enumerate() {
                let at = DevOffset((u64::from(to.0) + i as u64) << 12);
                batch.push(at, slice.clone());
            }
            if let Err(e) = batch.finish() {
                w.segments.give_back(to, n);
                return Err(Error::io(OP, e).ino(inode.ino()));
            }
            let moved = &rest[..n as usize];
            let mut new = (to.0..).map(BlockAddr);
            for of_node in moved.chunk_by(|a, b| a.0.nid == b.0.nid) {
                let (first, start, _) = of_node[0];
                let places = of_node.iter().map(|(m, ..)| m.position).zip(&mut new);
                let places: Vec<_> = places.collect();
                self.nodes.set_addresses(first.nid, start, &places)?;
            }
            w.segments
                .invalidate_all(moved.iter().map(|(m, ..)| m.block));
            w.segments.commit(to, n, w.age());
            w.relocation.moved.store(true, Ordering::Release);
            let moved = &w.relocation.counters.data_blocks_moved;
            moved.fetch_add(u64::from(n), Ordering::Relaxed);
            done += n as usize;
        }
        body.generation += 1;
        // The inode on disk may have a hint about the place of blocks: the hint is removed.
        self.tree.store_inode(inode, &mut body)
    }

    /// The longest that changes waited for room, and what was done meanwhile; nothing when none waited for long.
    #[must_use]
    pub fn slow_waits_for_room(&self) -> Vec<SlowWait> {
        let w = self.access.writer.as_ref();
        w.map_or_else(Vec::new, |w| w.relocation.trace.slow_waits())
    }

    /// Adds what cleaning counts.
    pub(crate) fn cleaning_stats(&self, out: &mut vfs::Stats) {
        let Some(w) = &self.access.writer else { return };
        let c = &w.relocation.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (data, metadata) = (get(&c.data_blocks_written), get(&c.metadata_blocks_written));
        let all = data + metadata + get(&c.data_blocks_moved);
        vfs::stat_lines! { out;
            gauge "free_sections", Count, "sections of free segments only" => w.segments.free_sections() as u64;
            counter "cleaned_foreground", Count, "sections cleaned because space ran short" => get(&c.sections_foreground);
            counter "cleaned_background", Count, "sections cleaned while the volume was idle" => get(&c.sections_background);
            counter "cleaned_ahead", Count, "sections cleaned in the background because space was about to run short" => get(&c.sections_ahead);
            counter "cleaning_failures", Count, "sections that an error kept from being cleaned" => get(&c.failures);
            counter "cleaning_waits", Count, "changes that waited for cleaning" => get(&c.foreground_waits);
            counter "cleaning_wait_ns", Nanoseconds, "how long they waited together" => get(&c.foreground_ns);
            gauge "cleaning_wait_peak_ms", Milliseconds, "the longest that any waited, rounded up" => get(&c.foreground_peak_ns).div_ceil(1_000_000);
            counter "segments_refilled", Count, "segments in use whose free blocks a log continued in (SSR)" => w.segments.refilled();
            counter "moved_data_blocks", Blocks, "blocks of files and directories that cleaning moved" => get(&c.data_blocks_moved);
            counter "moved_node_blocks", Blocks, "nodes that cleaning moved" => get(&c.node_blocks_moved);
            counter "written_data_blocks", Blocks, "blocks of files written for users, in place or not" => data;
            counter "written_metadata_blocks", Blocks, "nodes and blocks of directories written by checkpoints, those that cleaning moved included"
                => metadata;
            counter "lfs_in_place_blocks", Blocks, "blocks overwritten in place in spite of mode=lfs, for lack of free segments"
                => get(&c.lfs_in_place);
            gauge "write_amplification_percent", Count, "blocks written for each hundred that users wrote"
                => (all * 100).checked_div(data).unwrap_or(100);
        }
        w.relocation.trace.stats(out);
    }
}

/// Where the addresses of a node begin, and how many there are; `None` where there are none.
fn addresses_of(body: &Body, offset: NodeOffset) -> Option<(usize, usize)> {
    if offset == NodeOffset::INODE {
        let kinds = InlineFlags::DATA | InlineFlags::DENTRY;
        let device = !matches!(
            body.inode.kind(),
            Some(FileKind::Regular | FileKind::Directory | FileKind::Symlink)
        );
        if body.inode.inline.intersects(kinds) || device {
            return None;
        }
        let start = body.layout.address_bytes().start;
        return Some((start, body.layout.addresses_used(body.cluster)));
    }
    if offset == NodeOffset::XATTR || offset.is_indirect() {
        return None;
    }
    Some((0, direct_addresses(body.cluster) as usize))
}
