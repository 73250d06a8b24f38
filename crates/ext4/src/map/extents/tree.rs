//! Walking a tree, and editing its nodes: the part that lookups and changes share.
//!
//! The root is in the inode's `MapState`, whose lock the caller holds; all other nodes are metadata buffers, verified when they enter the
//! cache. A checksum is set with each edit of a node.

use super::node;
use crate::alloc::{Allocator, Claim, Run};
use crate::inode::MapState;
use crate::journal::Handle;
use crate::journal::buffer::{BlockKind, BufferData, BufferRef};
use crate::{Error, ErrorKind, Result};
use blockwright_ondisk::ext4::extent::{
    Extent, ExtentNode, MAX_DEPTH, NodePlace, NodeRules, set_checksum, verify_checksum,
};
use blockwright_ondisk::ext4::{BlockNo, FileBlock, Ino, InodeSeed};
use smallvec::SmallVec;

/// First file block that an extent cannot hold.
pub(crate) const LOGICAL_END: FileBlock = FileBlock(1 << 32);

/// An inode's extent tree. The root is passed along: it lives in the inode's `MapState`.
pub(crate) struct Tree<'a> {
    pub(crate) alloc: &'a Allocator,
    pub(super) ino: Ino,
    pub(super) seed: InodeSeed,
}

/// One node on the way from the root to a leaf.
pub(super) struct Level {
    /// `None` for the root.
    pub(super) buffer: Option<BufferRef>,
    /// Entry that was followed, or (in a leaf) the last one that starts at or before the block.
    pub(super) pos: Option<usize>,
    pub(super) count: usize,
    pub(super) capacity: usize,
}

impl Level {
    pub(super) fn has_room(&self, n: usize) -> bool {
        self.count + n <= self.capacity
    }

    pub(super) fn is_last(&self) -> bool {
        self.pos.map_or(0, |p| p + 1) >= self.count
    }
}

/// The way to a leaf, root first.
pub(crate) struct Path {
    pub(super) levels: SmallVec<[Level; 4]>,
    /// First block behind what the leaf may hold.
    pub(super) end: FileBlock,
}

impl Path {
    pub(super) fn leaf(&self) -> Option<&Level> {
        self.levels.last()
    }
}

/// What a lookup found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// The extent that holds the block.
    pub(crate) extent: Option<Extent>,
    /// Otherwise: the nearest extent before it, as far as the same leaf knows.
    pub(crate) before: Option<Extent>,
    /// Otherwise: end of the hole (there may be more hole behind it).
    pub(crate) hole_end: FileBlock,
}

impl<'a> Tree<'a> {
    pub(crate) fn new(alloc: &'a Allocator, ino: Ino, seed: InodeSeed) -> Self {
        Tree { alloc, ino, seed }
    }

    pub(super) fn damaged(
        &self,
        op: &'static str,
        block: Option<BlockNo>,
        detail: impl Into<String>,
    ) -> Error {
        self.alloc.volume.corrupt(op, Some(self.ino), block, detail)
    }

    fn read_node(&self, block: BlockNo, rules: NodeRules) -> Result<(BufferRef, BufferData)> {
        const OP: &str = "read extent node";
        let geo = self.alloc.volume.geometry();
        if !geo.contains_run(block, 1) {
            return Err(self.damaged(OP, Some(block), "an extent index leaves the volume"));
        }
        let buffer = self
            .alloc
            .volume
            .cache
            .read(block, BlockKind::ExtentNode, |bytes| {
                self.alloc
                    .groups
                    .check_block_range(OP, Some(self.ino), block, 1)?;
                verify_checksum(bytes, block, geo, self.seed)
                    .and_then(|()| ExtentNode::parse(bytes, NodePlace::Block(block), rules, geo))
                    .map(|_| ())
                    .map_err(|e| {
                        self.alloc
                            .volume
                            .corrupt_format(OP, Some(self.ino), Some(block), &e)
                    })
            })?;
        let data = buffer.data();
        let depth = node::depth(&data);
        if !node::has_magic(&data) || rules.depth != Some(depth) {
            let detail = format!(
                "an extent node has depth {depth} where its parent wants {:?}",
                rules.depth
            );
            return Err(self.damaged(OP, Some(block), detail));
        }
        let first = node::key(&data, 0);
        if first.is_none_or(|k| k < rules.first || k >= rules.end) {
            let detail = format!(
                "an extent node begins at {first:?} where its parent wants {}..{}",
                rules.first, rules.end
            );
            return Err(self.damaged(OP, Some(block), detail));
        }
        Ok((buffer, data))
    }

    /// Depth of the tree, after checking the root.
    pub(super) fn check_root(&self, root: &[u8; 60]) -> Result<u16> {
        const OP: &str = "read extent root";
        let depth = node::depth(root);
        if node::has_magic(root)
            && depth <= MAX_DEPTH
            && (depth == 0 || node::count(root) > 0)
            && node::capacity(root) > 0
        {
            return Ok(depth);
        }
        Err(self.damaged(OP, None, "the inode's extent root has a bad header"))
    }

    /// Walks to the leaf that holds `at` or would hold it.
    pub(super) fn path(&self, root: &[u8; 60], at: FileBlock) -> Result<Path> {
        let depth = self.check_root(root)?;
        let mut levels: SmallVec<[Level; 4]> = SmallVec::new();
        let mut rules = NodeRules {
            depth: Some(depth),
            first: FileBlock(0),
            end: LOGICAL_END,
        };
        let mut buffer: Option<BufferRef> = None;
        for left in (0..=depth).rev() {
            let data = buffer.as_ref().map(|b| b.data());
            let bytes: &[u8] = data.as_ref().map_or(&root[..], |d| d);
            let mut level = Level {
                buffer: buffer.clone(),
                pos: node::find(bytes, at),
                count: node::count(bytes),
                capacity: node::capacity(bytes),
            };
            if left == 0 {
                levels.push(level);
                break;
            }
            // A block before the first key belongs to the first child, whose key will be lowered.
            let pos = level.pos.unwrap_or(0);
            level.pos = Some(pos);
            let (Some(first), Some(child)) = (node::key(bytes, pos), node::child(bytes, pos))
            else {
                let block = buffer.as_ref().map(|b| b.block());
                return Err(self.damaged("walk extent tree", block, "an inner node has no entry"));
            };
            let end = node::key(bytes, pos + 1).unwrap_or(rules.end);
            rules = NodeRules {
                depth: Some(left - 1),
                first,
                end,
            };
            levels.push(level);
            buffer = Some(self.read_node(child, rules)?.0);
        }
        Ok(Path {
            levels,
            end: rules.end,
        })
    }

    /// Runs `f` on a level's bytes.
    pub(super) fn with<R>(&self, root: &[u8; 60], level: &Level, f: impl FnOnce(&[u8]) -> R) -> R {
        match &level.buffer {
            None => f(root),
            Some(b) => f(&b.data()),
        }
    }

    /// Changes a level's bytes: the root in memory (the caller stores the inode), a node in the handle.
    pub(super) fn edit<R>(
        &self,
        h: &Handle<'_>,
        root: &mut [u8; 60],
        level: &Level,
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R> {
        let Some(buffer) = &level.buffer else {
            return Ok(f(root));
        };
        let geo = self.alloc.volume.geometry();
        let (value, sum) = h.modify(buffer, |bytes| {
            let value = f(bytes);
            (value, set_checksum(bytes, geo, self.seed))
        })?;
        sum.map_err(|e| {
            self.alloc.volume.corrupt_format(
                "change extent node",
                Some(self.ino),
                Some(buffer.block()),
                &e,
            )
        })?;
        Ok(value)
    }

    /// Whether all nodes on the way to a file block are in memory, so that a lookup needs no device.
    pub(crate) fn is_in_memory(&self, root: &[u8; 60], at: FileBlock) -> bool {
        let mut node: Option<BufferRef> = None;
        for _ in 0..node::depth(root) {
            let data = node.as_ref().map(|b| b.data());
            let bytes: &[u8] = data.as_ref().map_or(&root[..], |data| data);
            let child = node::child(bytes, node::find(bytes, at).unwrap_or(0));
            match child.and_then(|block| self.alloc.volume.cache.find(block)) {
                Some(found) => node = Some(found),
                None => return false,
            }
        }
        true
    }

    /// Finds the extent or hole at a file block.
    pub(crate) fn lookup(&self, root: &[u8; 60], at: FileBlock) -> Result<Found> {
        let mut left = self.check_root(root)?;
        let mut end = LOGICAL_END;
        let mut node: Option<(BufferRef, BufferData)> = None;
        loop {
            let bytes: &[u8] = node.as_ref().map_or(&root[..], |(_, data)| data);
            let pos = node::find(bytes, at);
            if left == 0 {
                let before = pos.and_then(|p| node::extent(bytes, p));
                return Ok(Found {
                    extent: before.filter(|e| at < e.end()),
                    before,
                    hole_end: node::key(bytes, pos.map_or(0, |p| p + 1)).unwrap_or(end),
                });
            }
            // As in `path`.
            let pos = pos.unwrap_or(0);
            let (Some(first), Some(child)) = (node::key(bytes, pos), node::child(bytes, pos))
            else {
                let block = node.as_ref().map(|(b, _)| b.block());
                return Err(self.damaged("walk extent tree", block, "an inner node has no entry"));
            };
            left -= 1;
            end = node::key(bytes, pos + 1).unwrap_or(end);
            let rules = NodeRules {
                depth: Some(left),
                first,
                end,
            };
            node = Some(self.read_node(child, rules)?);
        }
    }

    /// All extents of the tree in order, read through.
    pub(crate) fn for_each(&self, root: &[u8; 60], mut f: impl FnMut(Extent)) -> Result<()> {
        let mut at = FileBlock(0);
        while at < LOGICAL_END {
            let path = self.path(root, at)?;
            let Some(leaf) = path.leaf() else { break };
            self.with(root, leaf, |bytes| {
                for pos in 0..node::count(bytes) {
                    if let Some(e) = node::extent(bytes, pos)
                        && e.logical >= at
                    {
                        f(e);
                    }
                }
            });
            if path.end <= at {
                break;
            }
            at = path.end;
        }
        Ok(())
    }

    /// How many extents the tree has, if no more than `leaves`, which are counted down, have to be looked at.
    pub(crate) fn count(&self, root: &[u8; 60], leaves: &mut usize) -> Result<Option<u64>> {
        let mut n = 0;
        let mut at = FileBlock(0);
        while at < LOGICAL_END {
            let Some(left) = leaves.checked_sub(1) else {
                return Ok(None);
            };
            *leaves = left;
            let path = self.path(root, at)?;
            n += path.leaf().map_or(0, |leaf| leaf.count as u64);
            if path.end <= at {
                break;
            }
            at = path.end;
        }
        Ok(Some(n))
    }

    /// After the first entry of the leaf changed: the keys on the way down say so.
    pub(super) fn raise_keys(
        &self,
        h: &Handle<'_>,
        root: &mut [u8; 60],
        path: &Path,
        below: usize,
        first: FileBlock,
    ) -> Result<()> {
        for level in path.levels.iter().take(below).rev() {
            let pos = level.pos.unwrap_or(0);
            let old = self.with(root, level, |bytes| node::key(bytes, pos));
            if old == Some(first) {
                break;
            }
            self.edit(h, root, level, |bytes| node::set_key(bytes, pos, first))?;
            if pos != 0 {
                break;
            }
        }
        Ok(())
    }

    /// A block for a node: marked used, counted in the inode.
    pub(super) fn alloc_node(
        &self,
        h: &Handle<'_>,
        map: &mut MapState,
        goal: BlockNo,
    ) -> Result<BlockNo> {
        let block = self
            .alloc
            .alloc_meta_from(h, goal, self.ino, Claim::NoFail, None)?;
        map.blocks = map.blocks.saturating_add(self.alloc.volume.block_units());
        Ok(block)
    }

    /// Frees a node's block.
    pub(super) fn free_node(
        &self,
        h: &Handle<'_>,
        map: &mut MapState,
        block: BlockNo,
    ) -> Result<()> {
        self.alloc.free(
            h,
            Run {
                start: block,
                len: 1,
            },
            true,
        )?;
        map.blocks = map.blocks.saturating_sub(self.alloc.volume.block_units());
        Ok(())
    }

    pub(super) fn create_node(
        &self,
        h: &Handle<'_>,
        block: BlockNo,
        depth: u16,
        entries: &[node::RawEntry],
    ) -> Result<()> {
        let geo = self.alloc.volume.geometry();
        let (_, done) = h.create(block, BlockKind::ExtentNode, |bytes| {
            node::init(bytes, depth);
            let fits = node::insert(bytes, 0, entries);
            set_checksum(bytes, geo, self.seed).map(|()| fits)
        })?;
        match done {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::new(ErrorKind::Overflow, "create extent node")),
            Err(e) => Err(self.alloc.volume.corrupt_format(
                "create extent node",
                Some(self.ino),
                Some(block),
                &e,
            )),
        }
    }
}
