//! Nodes: reading them, and walking from an inode to the address of a file's block.
//!
//! # Part
//! [`Nodes`] owns the NAT and the caches of nodes and of directory blocks. It calls the volume only. It begins no operation, and allocates and
//! charges no blocks: `tree` does.
//!
//! # Invariants
//! A node is verified when it enters the cache: its footer names it, its inode and its place in the
//! tree; an inode's checksum is right. So a tree that names one of its own nodes twice, or another
//! inode's, is noticed, and no walk runs in circles.
//!
//! # Locks
//! The inode's `body`, held by the caller: the shape of a tree does not change under a walk.

pub(crate) mod blocks;
pub(crate) mod cache;
pub(crate) mod change;
mod fresh;
pub(crate) mod impossible;
pub mod inode;
pub(crate) mod io;
pub(crate) mod load;
pub(crate) mod nat;
pub(crate) mod sought;
pub(crate) mod tree;

use crate::node::cache::BlockCache;
use crate::node::cache::Bytes;
use crate::node::inode::Body;
use crate::node::nat::Nat;
use crate::volume::Volume;
use crate::volume::vfs_ino;
use crate::{Error, ErrorKind, Result};
use blockwright_device::{AlignedBuf, DevOffset, DeviceExt};
use blockwright_ondisk::f2fs::node::{self, Footer, NodeOffset, NodePath, PER_NODE};
use blockwright_ondisk::f2fs::{BLOCK_SIZE, BlockAddr, Ino, Nid, inode as disk_inode};
use std::sync::Arc;

const OP: &str = "read node";
/// Nodes that are read together: they have the addresses of 127 MiB.
pub(crate) const AHEAD_MAX: u64 = 32;
/// Nodes of one request: 1 MiB.
const REQUEST_MAX: usize = 256;
/// Numbers among which an inode's neighbours are; a power of two.
const NEIGHBOURS: u32 = 16;

/// Where the address of a file's block is.
pub(crate) enum Place {
    /// In this node.
    In {
        /// The node, an inode or a direct one.
        nid: Nid,
        /// Its bytes.
        bytes: Bytes,
        /// Byte of the first address.
        start: usize,
        /// Which address.
        position: usize,
        /// How many addresses there are.
        count: usize,
    },
    /// A node on the way does not exist: holes up to this file block.
    Missing {
        /// First block past the missing part.
        end: u64,
    },
    /// No file is that large.
    Beyond,
}

/// Nodes, where they are, and blocks that the format itself reads: see the module's head.
pub struct Nodes {
    pub(crate) volume: Arc<Volume>,
    /// Where nodes are.
    pub nat: Nat,
    /// Nodes by number.
    pub cache: BlockCache<Nid>,
    /// Blocks of directories and long symbolic links, by inode and position.
    pub blocks: BlockCache<(Ino, u64)>,
}

/// The inode a node belongs to, from its footer. An inode's own node has its number: a search for an inode's dirty nodes knows
/// that one, and most files have no other.
fn owner_of_node(nid: Nid, bytes: &[u8]) -> Option<u32> {
    let owner = Footer::read(bytes).map_or(0, |f| f.ino.0);
    (owner != nid.0).then_some(owner)
}

impl Nodes {
    pub(crate) fn new(volume: &Arc<Volume>, nat: Nat) -> Self {
        // Every file has a node of its own, while a directory's block has the names of a hundred.
        let quarter = volume.options.metadata_cache_bytes / 4;
        Nodes {
            volume: Arc::clone(volume),
            nat,
            cache: BlockCache::with_owners(3 * quarter, owner_of_node),
            blocks: BlockCache::new(quarter),
        }
    }
}

impl Nodes {
    /// An inode's own node.
    ///
    /// # Errors
    /// `Stale` when the number is not an inode's; damage; a device error.
    pub(crate) fn inode_node(&self, ino: Ino) -> Result<Bytes> {
        let stale = |why: &str| {
            Error::new(ErrorKind::Stale, "load inode")
                .ino(vfs_ino(ino))
                .detail(why)
        };
        if ino.0 < Ino::ROOT.0 || ino.0 >= self.volume.geo.nids() {
            return Err(stale("no inode has this number"));
        }
        if let Some(bytes) = self.cache.find(ino.nid()) {
            let footer = Footer::read(&bytes).map_err(|e| self.volume.refused(OP, ino, &e))?;
            if footer.offset != NodeOffset::INODE {
                return Err(stale("the number is that of another kind of node"));
            }
            return Ok(bytes);
        }
        let entry = self.nat.get(ino.nid())?;
        if entry.is_free() {
            return Err(stale("the inode is not in use"));
        }
        if entry.ino != ino {
            return Err(stale("the number is that of another kind of node"));
        }
        self.read_node(ino.nid(), ino, NodeOffset::INODE, entry.block)
    }

    /// A node of an inode's tree, which must be at this place of it.
    ///
    /// # Errors
    /// Damage; a device error.
    pub(crate) fn node(&self, nid: Nid, ino: Ino, offset: NodeOffset) -> Result<Bytes> {
        if let Some(bytes) = self.cache.find(nid) {
            self.check_footer(&bytes, nid, ino, offset, None)?;
            return Ok(bytes);
        }
        let entry = self.nat.get(nid)?;
        if entry.is_free() || entry.ino != ino {
            let detail = format!(
                "node {nid} is {}, and named by {ino}",
                if entry.is_free() {
                    "free".to_owned()
                } else {
                    format!("one of inode {}", entry.ino)
                }
            );
            return Err(self.volume.corrupt(OP, Some(ino), None, detail));
        }
        self.read_node(nid, ino, offset, entry.block)
    }

    fn read_node(&self, nid: Nid, ino: Ino, offset: NodeOffset, at: BlockAddr) -> Result<Bytes> {
        if !self.volume.geo.in_main(at) {
            let detail = format!("node {nid} is said to be outside of the main area");
            return Err(self.volume.corrupt(OP, Some(ino), Some(at), detail));
        }
        let bytes = self
            .volume
            .device
            .read_buf(DevOffset(u64::from(at.0) << 12), BLOCK_SIZE)
            .map_err(|e| Error::io(OP, e))?;
        self.check_footer(&bytes, nid, ino, offset, Some(at))?;
        if offset == NodeOffset::INODE {
            disk_inode::verify_checksum(&bytes, ino, &self.volume.geo)
                .map_err(|e| self.volume.corrupt(OP, Some(ino), Some(at), e.to_string()))?;
        }
        Ok(self.cache.insert_clean(nid, bytes))
    }

    fn check_footer(
        &self,
        bytes: &[u8],
        nid: Nid,
        ino: Ino,
        offset: NodeOffset,
        at: Option<BlockAddr>,
    ) -> Result<()> {
        let footer = Footer::expect(bytes, nid, Some(ino))
            .map_err(|e| self.volume.corrupt(OP, Some(ino), at, e.to_string()))?;
        if footer.offset != offset {
            let detail = format!(
                "node {nid} is at place {} of its tree, and named at place {}",
                footer.offset.0, offset.0
            );
            return Err(self.volume.corrupt(OP, Some(ino), at, detail));
        }
        Ok(())
    }

    /// Reads those nodes that are not in memory and lie side by side, a run at a time; of each its number, its inode and its
    /// place in that one's tree. A node that cannot be read, or is not the one expected, is left to the caller that needs it.
    pub(crate) fn read_nodes_ahead(&self, nodes: impl Iterator<Item = (Nid, Ino, NodeOffset)>) {
        self.read_runs(nodes, None);
    }

    /// Reads a node for a caller that holds no lock which keeps the node unchanged. An error is left to the thread that needs the
    /// node.
    pub(crate) fn read_node_ahead(&self, nid: Nid) {
        if self.cache.is_cached(nid) {
            return;
        }
        // As in `read_runs`: an old copy must not come back. The changes since would be lost with the next write of the node.
        let changes = self.nat.changes();
        let Ok(entry) = self.nat.get(nid) else {
            return;
        };
        let Ok(bytes) = self.read_any(nid, &entry) else {
            return;
        };
        let is_inode = nid == entry.ino.nid();
        let is_it = Footer::expect(&bytes, nid, Some(entry.ino))
            .is_ok_and(|footer| (footer.offset == NodeOffset::INODE) == is_inode);
        if is_it
            && (!is_inode
                || disk_inode::verify_checksum(&bytes, entry.ino, &self.volume.geo).is_ok())
        {
            let unchanged = || self.nat.changes() == changes;
            self.cache.insert_clean_if(nid, bytes, unchanged);
        }
    }

    /// An inode is about to be loaded, and its node is not in memory: reads with it those of its neighbours by number that lie
    /// beside it. They were made at about the same time, as a rule with the rest of its directory.
    pub(crate) fn read_neighbours(&self, ino: Ino) {
        if self.cache.is_cached(ino.nid()) {
            return;
        }
        let first = ino.0 & !(NEIGHBOURS - 1);
        let inodes = (first..=first | (NEIGHBOURS - 1)).map(Ino);
        let nodes = inodes.map(|i| (i.nid(), i, NodeOffset::INODE));
        self.read_runs(nodes, Some(ino.nid()));
    }

    /// As [`Nodes::read_nodes_ahead`]; only the run that has `wanted`, if it is given.
    fn read_runs(&self, nodes: impl Iterator<Item = (Nid, Ino, NodeOffset)>, wanted: Option<Nid>) {
        // A node that was changed and written since, and left the cache, must not come back as it was.
        let changes = self.nat.changes();
        let mut places: Vec<(BlockAddr, Nid, Ino, NodeOffset)> = nodes
            .filter(|(nid, ..)| nid.0 != 0 && !self.cache.is_cached(*nid))
            .filter_map(|(nid, ino, offset)| {
                let entry = self.nat.get(nid).ok()?;
                let sound = entry.ino == ino && self.volume.geo.in_main(entry.block);
                sound.then_some((entry.block, nid, ino, offset))
            })
            .collect();
        places.sort_unstable_by_key(|(block, ..)| *block);
        let runs = places.chunk_by(|(a, ..), (b, ..)| a.0 + 1 == b.0);
        let requests = runs.flat_map(|run| run.chunks(REQUEST_MAX));
        for run in requests.filter(|run| run.len() > 1) {
            if wanted.is_some_and(|wanted| run.iter().all(|(_, nid, ..)| *nid != wanted)) {
                continue;
            }
            let at = DevOffset(u64::from(run[0].0.0) << 12);
            let Ok(bytes) = self.volume.device.read_buf(at, run.len() * BLOCK_SIZE) else {
                return;
            };
            for ((_, nid, ino, offset), block) in run.iter().zip(bytes.chunks_exact(BLOCK_SIZE)) {
                let is_it = Footer::expect(block, *nid, Some(*ino))
                    .is_ok_and(|footer| footer.offset == *offset);
                let sound = *offset != NodeOffset::INODE
                    || disk_inode::verify_checksum(block, *ino, &self.volume.geo).is_ok();
                if is_it && sound {
                    let unchanged = || self.nat.changes() == changes;
                    self.cache
                        .insert_clean_if(*nid, AlignedBuf::copy_of(block), unchanged);
                }
            }
        }
    }

    /// Where the address of file block `at` is.
    ///
    /// # Errors
    /// Damage; a device error.
    pub(crate) fn find_address(&self, ino: Ino, body: &Body, at: u64) -> Result<Place> {
        self.find_address_of(ino, body, at, 1)
    }

    /// As [`Nodes::find_address`], for a caller that needs the blocks behind it next, this many in all: nodes that have their addresses are
    /// read together.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn find_address_of(
        &self,
        ino: Ino,
        body: &Body,
        at: u64,
        blocks: u64,
    ) -> Result<Place> {
        let layout = body.layout;
        let in_inode = layout.addresses_used(body.cluster);
        let Some(path) = node::node_path(at, in_inode, body.cluster) else {
            return Ok(Place::Beyond);
        };
        if path.depth == 0 {
            return Ok(Place::In {
                nid: ino.nid(),
                bytes: self.inode_node(ino)?,
                start: layout.address_bytes().start,
                position: path.positions[0],
                count: in_inode,
            });
        }
        let mut nid = body.inode.nids[path.positions[0]];
        for level in 1..=path.depth {
            if nid.0 == 0 {
                let end = missing_end(&path, level, at, body.cluster);
                return Ok(Place::Missing { end });
            }
            let bytes = self.node(nid, ino, path.offsets[level])?;
            let position = path.positions[level];
            if level == path.depth {
                return Ok(Place::In {
                    nid,
                    bytes,
                    start: 0,
                    position,
                    count: direct_addresses(body.cluster) as usize,
                });
            }
            let words = node::words(&bytes).map_err(|e| self.volume.refused(OP, ino, &e))?;
            nid = Nid(words.get(position).map_or(0, |w| w.get()));
            let nodes = (blocks / PER_NODE as u64).min(AHEAD_MAX) as usize;
            if level + 1 == path.depth && nodes > 1 && !self.cache.is_cached(nid) {
                let behind = words
                    .iter()
                    .skip(position)
                    .zip(path.offsets[path.depth].0..);
                let behind = behind.map(|(w, offset)| (Nid(w.get()), ino, NodeOffset(offset)));
                self.read_nodes_ahead(behind.take(nodes));
            }
        }
        Err(Error::corrupt(OP, "a walk without an end"))
    }

    /// Blocks the next checkpoint needs.
    pub(crate) fn dirty_blocks(&self) -> u64 {
        (self.cache.dirty_count() + self.blocks.dirty_count()) as u64
    }
}

/// Addresses of a direct node that are in use.
pub(crate) fn direct_addresses(cluster: usize) -> u64 {
    let cluster = cluster.max(1);
    (PER_NODE / cluster * cluster) as u64
}

/// First file block past what a missing node at `level` (1 is below the inode) would map.
fn missing_end(path: &NodePath, level: usize, at: u64, cluster: usize) -> u64 {
    let direct = direct_addresses(cluster);
    // Blocks before `at` in the missing part, and blocks of it.
    let mut span = direct;
    let mut before = path.positions[path.depth] as u64;
    for l in (level..path.depth).rev() {
        before += path.positions[l] as u64 * span;
        span *= PER_NODE as u64;
    }
    at - before + span
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use crate::mount::Fs;
    use blockwright_device::{BlockDevice, Geometry, MemoryDevice, Op, Request, SharedDevice};
    use std::sync::atomic::Ordering;
    use std::sync::{Arc, Mutex};

    type Meanwhile = Box<dyn FnOnce() + Send>;

    /// Runs a closure between the read of a block and the reader's answer.
    struct SlowRead {
        base: Arc<MemoryDevice>,
        armed: Mutex<Option<(DevOffset, Meanwhile)>>,
    }

    impl BlockDevice for SlowRead {
        fn geometry(&self) -> Geometry {
            self.base.geometry()
        }

        fn name(&self) -> String {
            "slow read".to_owned()
        }

        fn submit(&self, mut request: Request) {
            let mut armed = self.armed.lock().expect("no panic");
            let meant = matches!(request.op, Op::Read(_))
                && armed.as_ref().is_some_and(|(at, _)| *at == request.offset);
            if meant && let Some((_, meanwhile)) = armed.take() {
                let done = std::mem::replace(&mut request.done, Box::new(|_| ()));
                request.done = Box::new(move |result| {
                    meanwhile();
                    done(result);
                });
            }
            drop(armed);
            self.base.submit(request);
        }
    }

    /// Cleaning reads nodes ahead without a lock. Meanwhile another thread changes the node, a checkpoint writes it, and a small
    /// cache drops it.
    #[test]
    fn a_node_read_ahead_is_not_an_old_one() {
        let memory = Arc::new(MemoryDevice::new(64 << 20));
        let base: SharedDevice = memory.clone();
        blockwright_mkfs::f2fs::format(&base, &Default::default()).expect("formatted");
        let device = Arc::new(SlowRead {
            base: memory,
            armed: Mutex::default(),
        });
        let fs = Fs::mount(device.clone(), Options::default()).expect("mounted");
        let (ino, nid) = (Ino::ROOT, Ino::ROOT.nid());
        let permissions = |bytes: &[u8]| bytes[0];
        let before = permissions(&fs.nodes.inode_node(ino).expect("read"));
        fs.nodes.cache.remove(nid);
        let at = DevOffset(u64::from(fs.nodes.nat.get(nid).expect("known").block.0) << 12);
        let other = fs.clone();
        let meanwhile = move || {
            other
                .nodes
                .change_node(nid, ino, NodeOffset::INODE, |bytes| bytes[0] ^= 1)
                .expect("changed");
            let w = other.access.writer.as_ref().expect("for writing");
            w.dirty.store(true, Ordering::Release);
            other.checkpoints.checkpoint().expect("written");
            assert!(!other.nodes.cache.is_dirty(nid));
            other.nodes.cache.remove(nid);
        };
        *device.armed.lock().expect("no panic") = Some((at, Box::new(meanwhile)));
        fs.nodes.read_node_ahead(nid);
        assert!(device.armed.lock().expect("no panic").is_none());
        let after = permissions(&fs.nodes.inode_node(ino).expect("read"));
        assert_eq!(after, before ^ 1);
    }

    #[test]
    fn missing_parts_end_where_the_next_begins() {
        let per = PER_NODE as u64;
        for (at, in_inode) in [
            (923, 923),
            (1500, 923),
            (3000, 873),
            (5_000, 923),
            (2_000_000, 900),
            (1 << 29, 923),
        ] {
            let path = node::node_path(at, in_inode, 1).expect("a file may be so large");
            for level in 1..=path.depth {
                let end = missing_end(&path, level, at, 1);
                let last = node::node_path(end - 1, in_inode, 1).expect("in range");
                assert_eq!(last.depth, path.depth);
                assert_eq!(last.positions[..level], path.positions[..level]);
                if let Some(next) = node::node_path(end, in_inode, 1) {
                    assert_ne!(
                        (next.depth, &next.positions[..level]),
                        (path.depth, &path.positions[..level])
                    );
                }
                let span = per.pow((path.depth - level + 1) as u32);
                assert!(end > at && end - at <= span);
            }
        }
    }
}
