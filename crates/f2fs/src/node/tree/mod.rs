//! Changing a file's tree of nodes: making nodes, setting addresses, freeing what is behind an end.
//!
//! Nodes are changed in the cache; the next checkpoint gives them new places. Counts (the volume's and the
//! inode's) change with the tree, in the same operation.
//!
//! # Part
//! [`Tree`] owns the open quota files and the promises. It calls nodes and the writer's state. It begins no operation and writes nothing to the device:
//! the caller is inside an operation, and the next checkpoint writes what changed.
//!
//! # Locks
//! The inode's `body`, exclusively; an operation is under way.

pub(crate) mod quota;
pub(crate) mod store;

use crate::node::Nodes;
use crate::node::cache::Bytes;
use crate::node::change::address_in;
use crate::node::inode::{Body, F2fsInode};
use crate::node::tree::quota::Quota;
use crate::node::{AHEAD_MAX, direct_addresses};
use crate::volume::Volume;
use crate::volume::vfs_ino;
use crate::writer::Access;
use crate::writer::Writer;
use crate::writer::chain::CheckpointReason;
use crate::{Error, ErrorKind, Result};
use blockwright_device::AlignedBuf;
use blockwright_ondisk::f2fs::inode::InlineFlags;
use blockwright_ondisk::f2fs::node::{self, Footer, NodeOffset, PER_NODE};
use blockwright_ondisk::f2fs::{BLOCK_SIZE, BlockAddr, FileKind, Ino, Nid};

const OP: &str = "change nodes";

/// Where a file block's address is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) nid: Nid,
    /// Byte of the node's first address.
    pub(crate) start: usize,
    pub(crate) position: usize,
    /// Addresses from this one to the node's last.
    pub(crate) left: usize,
}

blockwright_vfs::part! {
    /// Files' trees of nodes, and the quota that follows them: see the module's head.
    pub struct Tree {
        volume: Volume,
        access: Access,
        nodes: Nodes,
        ;
        /// What the volume's quota files count.
        pub(crate) quota: Quota = Quota::default(),
    }
}

impl Tree {
    /// Makes a node of an inode, empty; none of an inode that was freed. The caller stores the node that names it.
    pub(crate) fn make_node(
        &self,
        w: &Writer,
        own: &F2fsInode,
        body: &mut Body,
        offset: NodeOffset,
    ) -> Result<Nid> {
        if body.gone {
            return Err(Error::new(ErrorKind::Stale, OP)
                .ino(vfs_ino(own.ino))
                .detail("the inode was freed"));
        }
        self.check_block_quota(own, body, 1)?;
        let nid = w
            .segments
            .charge_for(1, || self.nodes.nat.take(Some(own.ino)))?;
        w.segments.lock().counts.nodes += 1;
        body.inode.blocks += 1;
        let mut bytes = AlignedBuf::zeroed(BLOCK_SIZE);
        let footer = Footer {
            nid,
            ino: own.ino,
            offset,
            cold: body.inode.kind() != Some(FileKind::Directory),
            fsync: false,
            dentry: false,
            version: 0,
            next: BlockAddr(0),
        };
        // The block has its full length.
        let _ = footer.write(&mut bytes);
        self.nodes.cache.insert_dirty(nid, bytes);
        Ok(nid)
    }

    /// Removes a node: its number and its block are given up. The caller clears the address that names it.
    pub(crate) fn free_node(&self, w: &Writer, body: &mut Body, nid: Nid) -> Result<()> {
        let old = self.nodes.nat.give_up(nid)?;
        if nid != old.ino.nid() {
            w.chain.mark_file(old.ino, CheckpointReason::Freed);
        }
        if old.block.is_stored() {
            w.segments.invalidate(old.block);
        }
        self.nodes.cache.remove(nid);
        let mut inner = w.segments.lock();
        inner.counts.nodes = inner.counts.nodes.saturating_sub(1);
        inner.counts.blocks = inner.counts.blocks.saturating_sub(1);
        drop(inner);
        body.inode.blocks = body.inode.blocks.saturating_sub(1).max(1);
        Ok(())
    }

    /// Where the address of file block `at` is kept; nodes on the way are made. Nodes that were made are named by the inode's
    /// node when this returns, also with an error: the caller may find no data blocks and store nothing.
    ///
    /// # Errors
    /// `FileTooLarge`, `NoSpace` (nodes that were made stay), damage, or a device error.
    pub(crate) fn ensure_slot(
        &self,
        w: &Writer,
        own: &F2fsInode,
        body: &mut Body,
        at: u64,
    ) -> Result<Slot> {
        let before = body.inode.blocks;
        let slot = self.make_slot(w, own, body, at);
        if body.inode.blocks != before {
            self.store_body(own.ino, body)?;
        }
        slot
    }

    fn make_slot(&self, w: &Writer, own: &F2fsInode, body: &mut Body, at: u64) -> Result<Slot> {
        let in_inode = body.layout.addresses_used(body.cluster);
        let Some(path) = node::node_path(at, in_inode, body.cluster) else {
            return Err(Error::new(ErrorKind::FileTooLarge, OP));
        };
        if path.depth == 0 {
            // Into the cache, where callers look for it: it may have left since the inode was loaded.
            self.nodes.node(own.ino.nid(), own.ino, NodeOffset::INODE)?;
            return Ok(Slot {
                nid: own.ino.nid(),
                start: body.layout.address_bytes().start,
                position: path.positions[0],
                left: in_inode - path.positions[0],
            });
        }
        let mut nid = body.inode.nids[path.positions[0]];
        if nid.0 == 0 {
            nid = self.make_node(w, own, body, path.offsets[1])?;
            body.inode.nids[path.positions[0]] = nid;
        }
        for level in 1..path.depth {
            let bytes = self.nodes.node(nid, own.ino, path.offsets[level])?;
            let position = path.positions[level];
            let mut next = Nid(address_in(&bytes, 0, position).0);
            if next.0 == 0 {
                next = self.make_node(w, own, body, path.offsets[level + 1])?;
                self.nodes
                    .change_node(nid, own.ino, path.offsets[level], |b| {
                        b[position * 4..position * 4 + 4].copy_from_slice(&next.0.to_le_bytes());
                    })?;
            }
            nid = next;
        }
        // Also verifies it.
        self.nodes.node(nid, own.ino, path.offsets[path.depth])?;
        let position = path.positions[path.depth];
        Ok(Slot {
            nid,
            start: 0,
            position,
            left: direct_addresses(body.cluster) as usize - position,
        })
    }

    /// As [`Tree::ensure_slot`], if the nodes on the way exist and are in memory; and the bytes of the last.
    pub(crate) fn slot_nowait(
        &self,
        own: &F2fsInode,
        body: &Body,
        at: u64,
    ) -> Option<(Slot, Bytes)> {
        let cached = |nid: Nid, offset: NodeOffset| {
            let bytes = self.nodes.cache.find(nid)?;
            let footer = Footer::expect(&bytes, nid, Some(own.ino)).ok()?;
            (footer.offset == offset).then_some(bytes)
        };
        let in_inode = body.layout.addresses_used(body.cluster);
        let path = node::node_path(at, in_inode, body.cluster)?;
        let position = path.positions[path.depth];
        if path.depth == 0 {
            let slot = Slot {
                nid: own.ino.nid(),
                start: body.layout.address_bytes().start,
                position,
                left: in_inode - position,
            };
            return Some((slot, cached(slot.nid, NodeOffset::INODE)?));
        }
        let mut nid = body.inode.nids[path.positions[0]];
        for level in 1..path.depth {
            let bytes = cached(nid, path.offsets[level])?;
            nid = Nid(address_in(&bytes, 0, path.positions[level]).0);
        }
        let slot = Slot {
            nid,
            start: 0,
            position,
            left: direct_addresses(body.cluster) as usize - position,
        };
        Some((slot, cached(nid, path.offsets[path.depth])?))
    }

    /// Frees addresses: what they named is given up, or nothing when one of them cannot be.
    pub(crate) fn free_blocks(
        &self,
        w: &Writer,
        ino: Ino,
        body: &mut Body,
        addresses: &[BlockAddr],
    ) -> Result<()> {
        let outside = |b: &&BlockAddr| b.is_stored() && !self.volume.geo.in_main(**b);
        if let Some(block) = addresses.iter().find(outside) {
            let detail = "an address outside of the main area";
            return Err(self.volume.corrupt(OP, Some(ino), Some(*block), detail));
        }
        let follows =
            |a: &BlockAddr, b: &BlockAddr| a.is_stored() && b.is_stored() && a.0 + 1 == b.0;
        for run in addresses.chunk_by(follows).filter(|run| run[0].is_stored()) {
            w.segments.invalidate_run(run[0], run.len() as u32);
        }
        // A compressed cluster's mark counts as a block until what compression saved is given back.
        let released = body.inode.inline.contains(InlineFlags::COMPRESS_RELEASED);
        let counts = |b: &&BlockAddr| match **b {
            BlockAddr::NULL => false,
            BlockAddr::COMPRESSED => !released,
            _ => true,
        };
        let freed = addresses.iter().filter(counts).count() as u64;
        if freed > 0 {
            w.segments.discharge(freed, 0);
            body.inode.blocks = body.inode.blocks.saturating_sub(freed).max(1);
        }
        Ok(())
    }

    /// Frees the addresses of a node in a range of positions.
    fn free_addresses(
        &self,
        w: &Writer,
        ino: Ino,
        body: &mut Body,
        (nid, offset): (Nid, NodeOffset),
        start: usize,
        positions: std::ops::Range<usize>,
    ) -> Result<()> {
        let bytes = if offset == NodeOffset::INODE {
            self.nodes.inode_node(ino)?
        } else {
            self.nodes.node(nid, ino, offset)?
        };
        let words = start + positions.start * 4..start + positions.end * 4;
        let named: Vec<BlockAddr> = bytes
            .get(words.clone())
            .unwrap_or(&[])
            .chunks_exact(4)
            .map(|word| BlockAddr(word.try_into().map_or(0, u32::from_le_bytes)))
            .filter(|block| *block != BlockAddr::NULL)
            .collect();
        // A change copies the bytes while another reference to them is held.
        drop(bytes);
        self.free_blocks(w, ino, body, &named)?;
        if !named.is_empty() {
            self.nodes
                .change_node(nid, ino, offset, |b| b[words.clone()].fill(0))?;
        }
        Ok(())
    }

    /// Frees all file blocks from `from` on, and the nodes that map nothing else. The caller stores the
    /// inode.
    ///
    /// # Errors
    /// Damage; a device error.
    pub(crate) fn free_from(
        &self,
        w: &Writer,
        own: &F2fsInode,
        body: &mut Body,
        from: u64,
    ) -> Result<()> {
        let in_inode = body.layout.addresses_used(body.cluster) as u64;
        if from < in_inode {
            let start = body.layout.address_bytes().start;
            let at = (own.ino.nid(), NodeOffset::INODE);
            self.free_addresses(
                w,
                own.ino,
                body,
                at,
                start,
                from as usize..in_inode as usize,
            )?;
        }
        let direct = direct_addresses(body.cluster);
        let per = PER_NODE as u64;
        let mut first = in_inode;
        let mut offset = 1u64;
        for n in 0..5 {
            let level = [0, 0, 1, 1, 2][n];
            let span = direct * per.pow(level);
            let nodes = (0..=level).map(|l| per.pow(l)).sum::<u64>();
            let nid = body.inode.nids[n];
            if nid.0 != 0 && first + span > from {
                let below = from.saturating_sub(first);
                if self.free_tree(w, own.ino, body, (nid, offset, level), below)? {
                    body.inode.nids[n] = Nid(0);
                }
            }
            first += span;
            offset += nodes;
        }
        body.generation += 1;
        Ok(())
    }

    /// Frees all that one of the inode's five nodes leads to. The caller stores the inode.
    ///
    /// # Errors
    /// Damage; a device error.
    pub(crate) fn free_subtree(
        &self,
        w: &Writer,
        own: &F2fsInode,
        body: &mut Body,
        n: usize,
    ) -> Result<()> {
        let per = PER_NODE as u64;
        let (offset, level) = [(1, 0), (2, 0), (3, 1), (4 + per, 1), (5 + 2 * per, 2)][n];
        let nid = body.inode.nids[n];
        if nid.0 != 0 {
            self.free_tree(w, own.ino, body, (nid, offset, level), 0)?;
            body.inode.nids[n] = Nid(0);
            body.generation += 1;
        }
        Ok(())
    }

    /// Frees what a node maps from its `from`th block on; all of it and the node when that is 0. Whether the
    /// node is gone.
    fn free_tree(
        &self,
        w: &Writer,
        ino: Ino,
        body: &mut Body,
        (nid, offset, level): (Nid, u64, u32),
        from: u64,
    ) -> Result<bool> {
        let at = NodeOffset(offset as u32);
        let direct = direct_addresses(body.cluster);
        if level == 0 {
            let positions = from as usize..direct as usize;
            self.free_addresses(w, ino, body, (nid, at), 0, positions)?;
        } else {
            let bytes = self.nodes.node(nid, ino, at)?;
            let per = PER_NODE as u64;
            let span = direct * per.pow(level - 1);
            let nodes = (0..level).map(|l| per.pow(l)).sum::<u64>();
            for child in from / span..per {
                if level == 1 && (child - from / span).is_multiple_of(AHEAD_MAX) {
                    let ahead = child..per.min(child + AHEAD_MAX);
                    let nodes = ahead.map(|c| {
                        let nid = Nid(address_in(&bytes, 0, c as usize).0);
                        (nid, ino, NodeOffset((offset + 1 + c) as u32))
                    });
                    self.nodes.read_nodes_ahead(nodes);
                }
                let next = Nid(address_in(&bytes, 0, child as usize).0);
                if next.0 == 0 {
                    continue;
                }
                let below = from.saturating_sub(child * span);
                let place = (next, offset + 1 + child * nodes, level - 1);
                let gone = match self.free_tree(w, ino, body, place, below) {
                    Ok(gone) if gone && from > 0 => child..child + 1,
                    Ok(_) => continue,
                    // This node stays, and must not name the children that are gone.
                    Err(e) if from == 0 => {
                        self.nodes
                            .change_node(nid, ino, at, |b| b[..child as usize * 4].fill(0))?;
                        return Err(e);
                    }
                    Err(e) => return Err(e),
                };
                self.nodes.change_node(nid, ino, at, |b| {
                    b[gone.start as usize * 4..gone.end as usize * 4].fill(0);
                })?;
            }
        }
        if from > 0 {
            return Ok(false);
        }
        self.free_node(w, body, nid)?;
        Ok(true)
    }

    /// Frees the file blocks of a range, nodes stay.
    ///
    /// # Errors
    /// Damage; a device error.
    pub(crate) fn free_range(
        &self,
        w: &Writer,
        own: &F2fsInode,
        body: &mut Body,
        range: std::ops::Range<u64>,
    ) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            match self.nodes.find_address(own.ino, body, at)? {
                crate::node::Place::Beyond => break,
                crate::node::Place::Missing { end } => at = end,
                crate::node::Place::In {
                    nid,
                    bytes,
                    start,
                    position,
                    count,
                } => {
                    let n = (count - position).min((range.end - at) as usize);
                    let offset = Footer::read(&bytes)
                        .map_err(|e| self.volume.refused(OP, own.ino, &e))?
                        .offset;
                    let positions = position..position + n;
                    self.free_addresses(w, own.ino, body, (nid, offset), start, positions)?;
                    at += n as u64;
                }
            }
        }
        body.generation += 1;
        Ok(())
    }
}
