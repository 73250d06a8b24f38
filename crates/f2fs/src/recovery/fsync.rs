//! fsync without a checkpoint: a file's nodes go to the warm node log, each naming the next, and the next mount
//! follows them (`recovery`).
//!
//! # Part
//! [`Fsync`] owns the queue of callers. The chain itself is the writer's state (`writer::chain`), because operations mark files there. It calls
//! checkpoints, and attributes to store an inode. It never waits for cleaning.
//!
//! # The chain
//! It begins where the last checkpoint says that the warm node log continues. Nothing but fsync and checkpoints
//! writes to that log, so its blocks since then are the chain. A file's changed direct nodes come first, then the node of its
//! attributes, then its inode; only that one has the fsync mark, and what has no mark behind it is not recovered. So
//! an fsync is there whole or not at all. Indirect nodes are not written: recovery makes them again.
//!
//! # When a checkpoint is needed instead
//! Recovery finds a new file by the parent and the name in its inode, and changes names nowhere else. So
//! directories, files with other names than one, files renamed or linked since the last checkpoint, and new files whose
//! parent the checkpoint does not have, need one ([`CheckpointReason`]); so does a new file under a name that some other file
//! that still exists had ([`CheckpointReason::Name`]): recovery would take the name from that file, its last. A file that lost nodes
//! needs one because indirect nodes, which would tell, are not in the chain. With two logs there is no chain: every fsync writes one.
//!
//! # Together
//! The chain breaks at the first block that is not on the device. So one thread at a time extends it, for
//! all waiting callers; a caller that comes meanwhile is served next.
//!
//! # Crash order
//! 1. Data is written and committed (the vfs). 2. Nodes are copied; a flush, if any data block came to any file since
//!    the last one, or a size passed an end behind which a block may hold an earlier life's bytes. 3. The nodes are written. 4. A flush; or 3 with FUA, where 2 flushed.
//!
//! Blocks that were in use in between stay untouched until the next checkpoint, like those that the last one calls valid
//! (`segments`): the chain may name them.
//!
//! # Locks
//! The gate shared throughout: a checkpoint in between would name nodes that are not written yet. Each file's
//! `body`, shared, while its nodes are copied.
//!
//! # References
//! kernel documentation, "Flash-Friendly File System (F2FS)": mount option fsync_mode. C. Lee et al., "F2FS: A New File
//! System for Flash Storage", FAST '15, section 2.7.

use crate::attr::Attributes;
use crate::checkpoint::Checkpoints;
use crate::node::Nodes;
use crate::node::cache::Bytes;
use crate::node::inode::{Body, f2fs};
use crate::options::{ActiveLogs, FsyncMode};
use crate::volume::Volume;
use crate::writer::Access;
use crate::writer::Writer;
use crate::writer::chain::CheckpointReason;
use crate::{Error, ErrorKind, Result};
use blockwright_device::{AlignedBuf, DevOffset, Flags, IoPriority, WriteBatch};
use blockwright_ondisk::f2fs as disk;
use blockwright_ondisk::f2fs::checkpoint::CheckpointFlags;
use blockwright_ondisk::f2fs::inode::InodeFlags;
use blockwright_ondisk::f2fs::node::{Footer, NodeOffset};
use blockwright_ondisk::f2fs::{BlockAddr, Nid};
use blockwright_vfs as vfs;
use blockwright_vfs::engine::SyncScope;
use blockwright_vfs::locks::{Condvar, Mutex, Rank};
use hashbrown::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const OP: &str = "fsync";
/// Blocks of a chain, after which a checkpoint is written: this bounds the time of a recovery.
const BLOCKS_MAX: u64 = 1 << 16;

/// Callers that wait for the chain.
#[derive(Default)]
struct Queue {
    waiting: Vec<(u64, Arc<vfs::Inode>)>,
    outcomes: HashMap<u64, Result<Option<CheckpointReason>>>,
    next: u64,
    running: bool,
}

/// A node on its way into the chain.
struct Link {
    nid: Nid,
    /// What is written, except the footer and the checksum.
    then: Bytes,
    to: BlockAddr,
    block: AlignedBuf,
}

blockwright_vfs::part! {
    /// fsync: see the module's head.
    pub struct Fsync {
        volume: Volume,
        access: Access,
        nodes: Nodes,
        checkpoints: Checkpoints,
        attributes: Attributes,
        ;
        queue: Mutex<Queue> = Mutex::new(Rank::Leaf, Queue::default()),
        changed: Condvar = Condvar::new(),
    }
}

impl Fsync {
    /// [`vfs::engine::Attributes::sync_inode`].
    pub(crate) fn sync_file(&self, inode: &Arc<vfs::Inode>, scope: SyncScope) -> Result<()> {
        let w = self.access.writer(OP)?;
        if scope == SyncScope::All {
            self.attributes.store_attr_if_changed(inode)?;
        }
        let why = if inode.kind() != vfs::FileKind::Regular {
            Some(CheckpointReason::Kind)
        } else if w.logs == ActiveLogs::Two {
            Some(CheckpointReason::Logs)
        } else {
            self.join_chain(w, inode)?
        };
        match why {
            None => {
                w.chain.chained.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Some(why) => {
                w.chain.count(why);
                self.checkpoints.checkpoint()
            }
        }
    }

    /// Waits until a chain has the file, or it is known why none can. Extends the chain for all waiting callers when no other thread does.
    fn join_chain(&self, w: &Writer, inode: &Arc<vfs::Inode>) -> Result<Option<CheckpointReason>> {
        let mut queue = self.queue.lock();
        let ticket = queue.next;
        queue.next += 1;
        queue.waiting.push((ticket, Arc::clone(inode)));
        loop {
            if let Some(outcome) = queue.outcomes.remove(&ticket) {
                return outcome;
            }
            if queue.running {
                self.changed.wait(&mut queue);
                continue;
            }
            queue.running = true;
            let batch = std::mem::take(&mut queue.waiting);
            drop(queue);
            let files: Vec<&Arc<vfs::Inode>> = batch.iter().map(|(_, i)| i).collect();
            let outcomes = self.extend_chain(w, &files);
            queue = self.queue.lock();
            queue.running = false;
            let tickets = batch.iter().map(|(ticket, _)| *ticket);
            queue.outcomes.extend(tickets.zip(outcomes));
            self.changed.notify_all();
        }
    }

    /// Why a file's chain would not suffice.
    fn checkpoint_reason(
        &self,
        w: &Writer,
        inode: &vfs::Inode,
        body: &Body,
    ) -> Result<Option<CheckpointReason>> {
        let ino = f2fs(inode).ino;
        if body.inode.flags.contains(InodeFlags::COMPRESS) {
            return Ok(Some(CheckpointReason::Kind));
        }
        if inode.attr().nlink != 1 {
            return Ok(Some(CheckpointReason::Links));
        }
        let fresh = self.nodes.nat.is_fresh(ino.nid());
        let parent = body.inode.pino;
        if fresh
            && (self.nodes.nat.is_fresh(parent.nid())
                || self.nodes.nat.get(parent.nid())?.is_free())
        {
            return Ok(Some(CheckpointReason::Parent));
        }
        let key = w.chain.name_key(parent, &body.inode.name);
        let marks = w.chain.marks.lock();
        if let Some(why) = marks.files.get(&ino) {
            return Ok(Some(*why));
        }
        if fresh && marks.names.contains(&key) {
            return Ok(Some(CheckpointReason::Name));
        }
        let strict = self.volume.options.fsync_mode == FsyncMode::Strict;
        if fresh && strict && marks.directories.contains(&parent) {
            return Ok(Some(CheckpointReason::Strict));
        }
        let blocks = w.chain.blocks();
        if marks.next == BlockAddr::NULL || blocks > BLOCKS_MAX {
            return Ok(Some(CheckpointReason::Room));
        }
        drop(marks);
        // Recovery writes each node and directory block once more, beside what is there.
        let needed = 2 * self.checkpoints.needed_blocks() + 64;
        let room = w.segments.available() >= needed && w.segments.has_room_to_recover();
        Ok((!room).then_some(CheckpointReason::Room))
    }

    /// Writes files' nodes; what was written of their data before is durable afterwards. For each file why that
    /// is not enough, if so.
    fn extend_chain(
        &self,
        w: &Writer,
        files: &[&Arc<vfs::Inode>],
    ) -> Vec<Result<Option<CheckpointReason>>> {
        let failed = |e: Error| files.iter().map(|_| Err(e.clone())).collect();
        let _op = match self.checkpoints.begin(OP) {
            Ok(op) => op,
            Err(e) => return failed(e),
        };
        let _writeback = w.chain.node_writeback.lock_nested();
        let (version, usable) = {
            let current = w.current.lock();
            let flags = current.checkpoint.flags();
            let usable = flags.contains(CheckpointFlags::CRC_RECOVERY)
                && !flags.contains(CheckpointFlags::NOCRC_RECOVERY);
            (current.checkpoint.footer_version(), usable)
        };
        let mut links = Vec::new();
        let mut outcomes = Vec::with_capacity(files.len());
        for inode in files {
            outcomes.push(if usable {
                self.link_file(w, inode, version, &mut links)
            } else {
                Ok(Some(CheckpointReason::Version))
            });
        }
        // Also those of a file that failed midway: the chain continues behind them.
        if let Err(e) = self.write_links(w, &links) {
            w.poison(&e);
            return failed(e);
        }
        for link in &links {
            self.nodes.cache.mark_written(link.nid, &link.then);
        }
        outcomes
    }

    /// Gives a file's changed nodes their places in the chain.
    fn link_file(
        &self,
        w: &Writer,
        inode: &vfs::Inode,
        version: u64,
        links: &mut Vec<Link>,
    ) -> Result<Option<CheckpointReason>> {
        let own = f2fs(inode);
        let body = own.body.read();
        if let Some(why) = self.checkpoint_reason(w, inode, &body)? {
            return Ok(Some(why));
        }
        let bad = |e: disk::FormatError| Error::corrupt(OP, e.to_string());
        let mut nodes = Vec::new();
        for (nid, bytes) in self.nodes.cache.dirty_of(own.ino.0) {
            let footer = Footer::expect(&bytes, nid, Some(own.ino)).map_err(bad)?;
            if !footer.offset.is_indirect() && footer.offset != NodeOffset::INODE {
                nodes.push((nid, bytes, footer));
            }
        }
        let nid = own.ino.nid();
        if nodes.is_empty() && !self.nodes.cache.is_dirty(nid) {
            return Ok(None);
        }
        let bytes = self.nodes.inode_node(own.ino)?;
        // Verified before it is written, like every inode.
        disk::Inode::parse_unverified(&bytes, own.ino, &self.volume.geo).map_err(bad)?;
        let footer = Footer::expect(&bytes, nid, Some(own.ino)).map_err(bad)?;
        nodes.push((nid, bytes, footer));
        let now = w.age();
        for (nid, then, mut footer) in nodes {
            let taken = w.segments.take_chained(nid);
            let expected = {
                let mut marks = w.chain.marks.lock();
                let next = taken.as_ref().map_or(BlockAddr::NULL, |(_, next)| *next);
                std::mem::replace(&mut marks.next, next)
            };
            let (to, next) = match taken {
                Ok((to, next)) if to == expected => (to, next),
                Ok((to, _)) => {
                    // The log went on elsewhere than the block before, or the checkpoint, says.
                    w.chain.marks.lock().next = BlockAddr::NULL;
                    w.segments.give_back(to, 1);
                    return Ok(Some(CheckpointReason::Room));
                }
                Err(e) if e.kind() == ErrorKind::NoSpace => {
                    return Ok(Some(CheckpointReason::Room));
                }
                Err(e) => return Err(e),
            };
            let mut block = AlignedBuf::copy_of(&then);
            let is_inode = footer.offset == NodeOffset::INODE;
            footer.version = version;
            footer.fsync = is_inode;
            footer.dentry = is_inode && self.nodes.nat.is_fresh(nid);
            footer.next = next;
            // The block has its full length.
            let _ = footer.write(&mut block);
            if is_inode {
                disk::inode::set_checksum(&mut block, own.ino, &self.volume.geo);
            }
            w.segments.commit(to, 1, now);
            links.push(Link {
                nid,
                then,
                to,
                block,
            });
            let old = self.nodes.nat.replace(nid, to)?;
            if old.is_stored() {
                w.segments.invalidate(old);
            }
        }
        Ok(None)
    }

    /// Writes nodes in the order that makes them and the data they name durable.
    fn write_links(&self, w: &Writer, links: &[Link]) -> Result<()> {
        let chain = &w.chain;
        let io = |e| Error::io(OP, e);
        let barrier = self.volume.options.fsync_mode != FsyncMode::NoBarrier;
        let flush = || -> Result<()> {
            chain.flushes.fetch_add(1, Ordering::Relaxed);
            self.volume.device.flush().map_err(io)
        };
        let commits = w.segments.commits();
        let own = links.len() as u64;
        let data = commits - own != chain.flushed.load(Ordering::Acquire);
        let mut runs: Vec<(BlockAddr, Vec<AlignedBuf>)> = Vec::new();
        for link in links {
            let block = AlignedBuf::copy_of(&link.block);
            match runs.last_mut() {
                Some((at, blocks)) if at.0 + blocks.len() as u32 == link.to.0 => blocks.push(block),
                _ => runs.push((link.to, vec![block])),
            }
        }
        if barrier && data && own > 0 {
            flush()?;
        }
        // FUA covers the nodes only: the data must have been flushed before.
        let fua = barrier && data && runs.len() == 1 && self.volume.device.geometry().fua;
        if fua {
            for (at, blocks) in runs {
                let slices: Vec<_> = blocks.into_iter().map(Into::into).collect();
                let at = DevOffset(u64::from(at.0) << 12);
                self.volume
                    .device
                    .write_vectored_at(at, &slices, Flags::FUA | Flags::META)
                    .map_err(io)?;
            }
        } else {
            let mut batch =
                WriteBatch::new(&self.volume.device, Flags::META, IoPriority::default());
            for (at, blocks) in runs {
                for (n, block) in blocks.into_iter().enumerate() {
                    let at = u64::from(at.0) + n as u64;
                    batch.push(DevOffset(at << 12), block.into());
                }
            }
            batch.finish().map_err(io)?;
            if barrier {
                flush()?;
            }
        }
        if barrier {
            chain.flushed.store(commits, Ordering::Release);
        }
        chain.blocks.fetch_add(own, Ordering::Relaxed);
        chain.nodes.fetch_add(own, Ordering::Relaxed);
        Ok(())
    }
}
