//! Moving extents within a file: what collapsing and inserting a range do after the hole was made.
//!
//! One leaf at a time: left to right when moving down, right to left when moving up, so that the
//! extents moved and those not yet moved never overlap. Each step leaves a valid tree; a crash in
//! between leaves a file whose parts have moved partly, as in every ext4.

use super::node;
use super::tree::{LOGICAL_END, Tree};
use crate::inode::MapState;
use crate::journal::Handle;
use crate::{Error, ErrorKind, Result};
use blockwright_ondisk::ext4::FileBlock;

impl Tree<'_> {
    /// Credits for one shifting step: the path, and a node that may merge away.
    pub(crate) fn shift_credits(root: &[u8; 60]) -> u32 {
        Self::credits(root) + 4
    }

    /// Moves the extents of the first leaf that has any at or behind `from` down by `by`. Returns where
    /// to go on, or `None` when all are moved. The target range must be a hole.
    pub(crate) fn shift_down_step(
        &self,
        h: &Handle<'_>,
        map: &mut MapState,
        from: FileBlock,
        by: u64,
    ) -> Result<Option<FileBlock>> {
        map.holes.forget();
        let mut at = from;
        let path = loop {
            if at >= LOGICAL_END {
                return Ok(None);
            }
            let path = self.path(&map.root, at)?;
            let has = path.leaf().is_some_and(|leaf| {
                self.with(&map.root, leaf, |b| {
                    (0..node::count(b)).any(|i| node::key(b, i).is_some_and(|k| k >= from))
                })
            });
            if has {
                break path;
            }
            if path.end <= at {
                return Ok(None);
            }
            at = path.end;
        };
        let Some(leaf) = path.leaf() else {
            return Ok(None);
        };
        let first = self.edit(h, &mut map.root, leaf, |bytes| {
            for pos in 0..node::count(bytes) {
                if let Some(key) = node::key(bytes, pos).filter(|k| *k >= from) {
                    node::set_key(bytes, pos, FileBlock(key.0.saturating_sub(by)));
                }
            }
            node::key(bytes, 0)
        })?;
        if let Some(first) = first {
            self.raise_keys(h, &mut map.root, &path, path.levels.len() - 1, first)?;
        }
        Ok((path.end < LOGICAL_END).then_some(path.end))
    }

    /// Moves the extents of the last leaf below `below` that has any at or behind `from` up by `by`.
    /// Returns the new `below`, or `None` when all are moved. No extent may cross `from`.
    pub(crate) fn shift_up_step(
        &self,
        h: &Handle<'_>,
        map: &mut MapState,
        from: FileBlock,
        below: FileBlock,
        by: u64,
    ) -> Result<Option<FileBlock>> {
        map.holes.forget();
        if below <= from {
            return Ok(None);
        }
        let path = self.path(&map.root, FileBlock(below.0 - 1))?;
        let Some(leaf) = path.leaf() else {
            return Ok(None);
        };
        // What was moved in an earlier step lies at or behind `below`.
        let movable = |k: &FileBlock| *k >= from && *k < below;
        let first = self.with(&map.root, leaf, |b| node::key(b, 0));
        let first_new = self.edit(h, &mut map.root, leaf, |bytes| {
            for pos in (0..node::count(bytes)).rev() {
                if let Some(key) = node::key(bytes, pos).filter(movable) {
                    node::set_key(bytes, pos, FileBlock(key.0.saturating_add(by)));
                }
            }
            node::key(bytes, 0)
        })?;
        if let Some(first) = first_new {
            self.raise_keys(h, &mut map.root, &path, path.levels.len() - 1, first)?;
        }
        // Nothing lies before the leftmost leaf, even when its first block is behind `from`.
        let inner = path.levels.len() - 1;
        let leftmost = path.levels.iter().take(inner).all(|l| l.pos == Some(0));
        Ok(first.filter(|f| *f > from && *f < below && !leftmost))
    }

    /// Cuts an extent in two at `at`, when one crosses it.
    pub(crate) fn split_extent(
        &self,
        h: &Handle<'_>,
        map: &mut MapState,
        at: FileBlock,
    ) -> Result<()> {
        let Some(e) = self
            .lookup(&map.root, at)?
            .extent
            .filter(|e| e.logical < at)
        else {
            return Ok(());
        };
        let path = self.ensure_room(h, map, at, 1)?;
        let (left, right) = node::split_at(&e, at);
        let (Some(left), Some(right)) = (node::encode(&left), node::encode(&right)) else {
            return Err(Error::new(ErrorKind::Overflow, "split extent"));
        };
        let Some((leaf, pos)) = path.leaf().and_then(|l| Some((l, l.pos?))) else {
            return Err(self.damaged("split extent", Some(e.physical), "the extent is gone"));
        };
        let fits = self.edit(h, &mut map.root, leaf, |bytes| {
            node::set(bytes, pos, &left);
            node::insert(bytes, pos + 1, &[right])
        })?;
        if fits {
            Ok(())
        } else {
            Err(self.damaged("split extent", None, "the leaf has no room"))
        }
    }

    /// The end of the last extent.
    pub(crate) fn end(&self, root: &[u8; 60]) -> Result<FileBlock> {
        let found = self.lookup(root, FileBlock(LOGICAL_END.0 - 1))?;
        Ok(found
            .extent
            .or(found.before)
            .map_or(FileBlock(0), |e| e.end()))
    }

    /// Joins the extents on both sides of `at`, when they are in one leaf and continue each other.
    pub(crate) fn join(&self, h: &Handle<'_>, map: &mut MapState, at: FileBlock) -> Result<()> {
        let path = self.path(&map.root, at)?;
        let Some((leaf, pos)) = path.leaf().and_then(|l| Some((l, l.pos?))) else {
            return Ok(());
        };
        let joins = self.with(&map.root, leaf, |b| {
            let pair = pos
                .checked_sub(1)
                .and_then(|p| Some((node::extent(b, p)?, node::extent(b, pos)?)));
            pair.is_some_and(|(a, b)| {
                node::continues(&a, &b) && a.len + b.len <= super::Extent::max_len(a.unwritten)
            })
        });
        if joins {
            self.edit(h, &mut map.root, leaf, |b| {
                super::insert::merge_around(b, pos, 0)
            })?;
        }
        Ok(())
    }
}
