//! Removing a range of a tree, step by step from its right end.
//!
//! A step cuts one extent, frees its blocks and any node that became empty, and leaves a valid
//! tree, so that a handle may end after every step.

use super::node::{self, split_at};
use super::tree::{Path, Tree};
use crate::Result;
use crate::alloc::Run;
use crate::inode::MapState;
use crate::journal::Handle;
use crate::map::free_inode_blocks;
use blockwright_ondisk::ext4::FileBlock;
use blockwright_ondisk::ext4::extent::Extent;

/// How far a step came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Nothing is left in the range.
    Done,
    /// Blocks of the range at or behind this one are gone; go on.
    More(FileBlock),
    /// The handle has too few credits for the next step: end it, start another, go on.
    NeedHandle,
}

impl Tree<'_> {
    /// Credits that one [`Tree::remove_step`] needs at most: the path with its freed nodes (bitmap and
    /// descriptor each), the nodes that the root takes the place of then, the split of a punch, and the bitmaps of one extent, which may
    /// lie in several groups.
    pub(crate) fn remove_credits(root: &[u8; 60]) -> u32 {
        Self::credits(root) + 3 * (2 * u32::from(node::depth(root).min(5)) + 1) + 20
    }

    /// Whether the tree has no nodes of its own.
    pub(crate) fn is_in_inode(root: &[u8; 60]) -> bool {
        node::depth(root) == 0
    }

    /// Removes the last extent (or part of one) in `from..to` and frees its blocks. `map.blocks` follows.
    pub(crate) fn remove_step(
        &self,
        h: &Handle<'_>,
        map: &mut MapState,
        from: FileBlock,
        to: FileBlock,
        journaled: bool,
    ) -> Result<Progress> {
        if from >= to {
            return Ok(Progress::Done);
        }
        let last = FileBlock(to.0 - 1);
        let found = self.lookup(&map.root, last)?;
        let target = match found.extent.or(found.before) {
            Some(e) => e,
            None => match self.before_leaf(map, last)? {
                // The extent before lies in another leaf.
                Some(at) if at >= from => return Ok(Progress::More(FileBlock(at.0 + 1))),
                _ => return Ok(Progress::Done),
            },
        };
        if target.end() <= from {
            return Ok(Progress::Done);
        }
        if !h.has_credits(Self::remove_credits(&map.root))
            && !h.extend(Self::remove_credits(&map.root))
        {
            return Ok(Progress::NeedHandle);
        }
        let (left, rest) = split_at(&target, from.max(target.logical));
        let (middle, right) = split_at(&rest, to.min(target.end()));
        self.alloc.prepare_free(Run {
            start: middle.physical,
            len: middle.len,
        })?;
        let path = if left.len > 0 && right.len > 0 {
            self.ensure_room(h, map, target.logical, 1)?
        } else {
            self.path(&map.root, target.logical)?
        };
        let Some((leaf, pos)) = path.leaf().and_then(|l| Some((l, l.pos?))) else {
            return Err(self.damaged("remove extent", Some(target.physical), "the extent is gone"));
        };
        let pieces: Vec<node::RawEntry> = [left, right]
            .iter()
            .filter(|p| p.len > 0)
            .filter_map(node::encode)
            .collect();
        self.edit(h, &mut map.root, leaf, |bytes| match pieces.as_slice() {
            [] => node::remove(bytes, pos, 1),
            [one] => node::set(bytes, pos, one),
            [one, more @ ..] => {
                node::set(bytes, pos, one);
                let fits = node::insert(bytes, pos + 1, more);
                debug_assert!(fits, "room was made");
            }
        })?;
        self.tidy_up(h, map, &path)?;
        self.free_data(h, map, &middle, journaled)?;
        Ok(Progress::More(middle.logical))
    }

    /// The last block before the leaf that would hold `at`.
    fn before_leaf(&self, map: &MapState, at: FileBlock) -> Result<Option<FileBlock>> {
        let path = self.path(&map.root, at)?;
        for level in path.levels.iter().rev().skip(1) {
            let first = self.with(&map.root, level, |b| {
                level.pos.and_then(|p| node::key(b, p))
            });
            if let Some(first) = first
                && first <= at
            {
                return Ok(first.0.checked_sub(1).map(FileBlock));
            }
            if let Some(first) = first
                && level.pos != Some(0)
            {
                return Ok(first.0.checked_sub(1).map(FileBlock));
            }
        }
        Ok(None)
    }

    fn free_data(
        &self,
        h: &Handle<'_>,
        map: &mut MapState,
        e: &Extent,
        journaled: bool,
    ) -> Result<()> {
        let run = Run {
            start: e.physical,
            len: e.len,
        };
        free_inode_blocks(self.alloc, h, self.ino, map, run, journaled)
    }

    /// After entries of the path's leaf went: frees empty nodes, corrects keys, flattens the root.
    pub(super) fn tidy_up(&self, h: &Handle<'_>, map: &mut MapState, path: &Path) -> Result<()> {
        let mut depth = path.levels.len() - 1;
        while depth > 0 {
            let level = &path.levels[depth];
            let (count, first) = self.with(&map.root, level, |b| (node::count(b), node::key(b, 0)));
            if let (true, Some(first)) = (count > 0, first) {
                self.raise_keys(h, &mut map.root, path, depth, first)?;
                break;
            }
            let parent = &path.levels[depth - 1];
            let pos = parent.pos.unwrap_or(0);
            if let Some(buffer) = &level.buffer {
                self.alloc.prepare_free(Run {
                    start: buffer.block(),
                    len: 1,
                })?;
            }
            self.edit(h, &mut map.root, parent, |b| node::remove(b, pos, 1))?;
            if let Some(buffer) = &level.buffer {
                self.free_node(h, map, buffer.block())?;
            }
            depth -= 1;
        }
        if node::count(&map.root) == 0 {
            node::set_depth(&mut map.root, 0);
        }
        // The rest of a piece may hang on a chain of nodes.
        while node::count(&map.root) == 1 && node::depth(&map.root) > 0 && self.flatten(h, map)? {}
        Ok(())
    }

    /// After entries of the path's leaf were joined: a root whose only child would fit into it takes its place, as the kernel has it;
    /// e2fsck would propose it. The tree is as good without: what stands in the way was reported where it was met, and fails no caller.
    pub(super) fn shorten(&self, h: &Handle<'_>, map: &mut MapState, path: &Path) {
        let fits = path.levels.get(1).is_some_and(|child| {
            node::count(&map.root) == 1
                && self.with(&map.root, child, node::count) <= node::capacity(&map.root)
        });
        if fits {
            let _ = self.flatten(h, map);
        }
    }

    /// Pulls the root's only child up when its entries fit. Whether it did; changes nothing when it fails.
    fn flatten(&self, h: &Handle<'_>, map: &mut MapState) -> Result<bool> {
        let first = node::key(&map.root, 0).unwrap_or_default();
        let path = self.path(&map.root, first)?;
        let Some(child) = path.levels.get(1) else {
            return Ok(false);
        };
        if child.count > node::capacity(&map.root) {
            return Ok(false);
        }
        let Some(buffer) = &child.buffer else {
            return Ok(false);
        };
        self.alloc.prepare_free(Run {
            start: buffer.block(),
            len: 1,
        })?;
        let (entries, depth) = {
            let data = buffer.data();
            (node::entries_from(&data, 0), node::depth(&data))
        };
        self.free_node(h, map, buffer.block())?;
        node::init(&mut map.root, depth);
        let fits = node::insert(&mut map.root, 0, &entries);
        debug_assert!(fits, "checked above");
        Ok(true)
    }
}
