//! Inserting extents, making room for them, and changing their state.
//!
//! An insertion goes in steps, each within [`Tree::credits`]. The tree is valid after each step, so a handle may end between two of them. A full
//! leaf is split, and so are full parents; a full root moves into a block of its own, and the tree gets a level.

use super::node::{self, split_at};
use super::tree::{LOGICAL_END, Level, Path, Tree};
use crate::inode::MapState;
use crate::journal::Handle;
use crate::{Error, ErrorKind, Result};
use blockwright_ondisk::ext4::extent::{Extent, MAX_DEPTH};
use blockwright_ondisk::ext4::{BlockNo, FileBlock};
use smallvec::SmallVec;

/// More splits than any insertion into a tree of legal depth needs.
const ROUNDS_MAX: usize = 24;

impl Tree<'_> {
    /// Credits that one [`Tree::insert_some`] or [`Tree::convert`] step of this tree needs at most: per level,
    /// the node, a new node, its bitmap and descriptor; twice, as a conversion may split twice.
    pub(crate) fn credits(root: &[u8; 60]) -> u32 {
        8 * (u32::from(node::depth(root).min(MAX_DEPTH)) + 2)
    }

    /// Where a new node should go: beside the leaf, else beside the extent before.
    fn node_goal(&self, root: &[u8; 60], path: &Path) -> BlockNo {
        path.leaf()
            .and_then(|leaf| {
                let beside = leaf.buffer.as_ref().map(|b| BlockNo(b.block().0 + 1));
                beside.or_else(|| {
                    let before =
                        self.with(root, leaf, |b| node::extent(b, leaf.pos.unwrap_or(0)))?;
                    Some(BlockNo(before.physical.0 + u64::from(before.len)))
                })
            })
            .unwrap_or_else(|| self.alloc.inode_goal(self.ino))
    }

    /// Moves the root's entries into a block of their own; the tree gets one level deeper.
    fn grow(&self, h: &Handle<'_>, map: &mut MapState, path: &Path) -> Result<()> {
        let depth = self.check_root(&map.root)?;
        if depth >= MAX_DEPTH {
            return Err(Error::new(ErrorKind::FileTooLarge, "grow extent tree"));
        }
        let entries = node::entries_from(&map.root, 0);
        let first = node::key(&map.root, 0).unwrap_or_default();
        let goal = self.node_goal(&map.root, path);
        let block = self.alloc_node(h, map, goal)?;
        let Some(index) = node::encode_index(first, block) else {
            return Err(Error::new(ErrorKind::Overflow, "grow extent tree"));
        };
        self.create_node(h, block, depth, &entries)?;
        node::init(&mut map.root, depth + 1);
        let fits = node::insert(&mut map.root, 0, &[index]);
        debug_assert!(fits);
        Ok(())
    }

    /// Splits the node at `level` (not the root; its parent has room): the entries from `keep` on move
    /// to a new node on its right.
    fn split(&self, h: &Handle<'_>, map: &mut MapState, path: &Path, level: usize) -> Result<()> {
        const OP: &str = "split extent node";
        let (Some(parent), Some(full)) = (
            path.levels.get(level.wrapping_sub(1)),
            path.levels.get(level),
        ) else {
            return Err(Error::corrupt(OP, "no such level"));
        };
        let inner = level + 1 < path.levels.len();
        // Appending leaves full nodes behind: only the last entry moves.
        let keep = if full.is_last() || (inner && full.pos.is_some_and(|p| p + 1 == full.count)) {
            full.count - 1
        } else {
            full.count / 2
        };
        let keep = keep.max(1);
        let (entries, key, depth) = self.with(&map.root, full, |bytes| {
            (
                node::entries_from(bytes, keep),
                node::key(bytes, keep),
                node::depth(bytes),
            )
        });
        let Some(key) = key else {
            return Err(self.damaged(
                OP,
                full.buffer.as_ref().map(|b| b.block()),
                "a full node has no entry",
            ));
        };
        let goal = self.node_goal(&map.root, path);
        let block = self.alloc_node(h, map, goal)?;
        self.create_node(h, block, depth, &entries)?;
        self.edit(h, &mut map.root, full, |bytes| {
            node::remove(bytes, keep, entries.len())
        })?;
        self.add_child(h, map, parent, key, block)
    }

    fn add_child(
        &self,
        h: &Handle<'_>,
        map: &mut MapState,
        parent: &Level,
        key: FileBlock,
        block: BlockNo,
    ) -> Result<()> {
        const OP: &str = "add extent node";
        let Some(index) = node::encode_index(key, block) else {
            return Err(Error::new(ErrorKind::Overflow, OP));
        };
        let pos = parent.pos.unwrap_or(0) + 1;
        if self.edit(h, &mut map.root, parent, |bytes| {
            node::insert(bytes, pos, &[index])
        })? {
            return Ok(());
        }
        Err(self.damaged(
            OP,
            parent.buffer.as_ref().map(|b| b.block()),
            "the parent has no room",
        ))
    }

    /// Sees to it that the leaf for `at` has room for `want` entries.
    pub(super) fn ensure_room(
        &self,
        h: &Handle<'_>,
        map: &mut MapState,
        at: FileBlock,
        want: usize,
    ) -> Result<Path> {
        for _ in 0..ROUNDS_MAX {
            let path = self.path(&map.root, at)?;
            if path.leaf().is_some_and(|l| l.has_room(want)) {
                return Ok(path);
            }
            let above = path.levels.len() - 1;
            match (0..above).rev().find(|i| path.levels[*i].has_room(1)) {
                Some(i) => self.split(h, map, &path, i + 1)?,
                None => self.grow(h, map, &path)?,
            }
        }
        Err(self.damaged("make room in extent tree", None, "splitting makes no room"))
    }

    /// Starts a new leaf with `e`, which comes after everything in the full leaf of its path.
    /// `false` when the leaf is not full, or `e` does not come last.
    fn append_leaf(&self, h: &Handle<'_>, map: &mut MapState, e: &Extent) -> Result<bool> {
        for _ in 0..ROUNDS_MAX {
            let path = self.path(&map.root, e.logical)?;
            let Some(leaf) = path.leaf() else {
                return Ok(false);
            };
            let above = path.levels.len() - 1;
            if leaf.has_room(1) || !leaf.is_last() || above == 0 {
                return Ok(false);
            }
            let parent = &path.levels[above - 1];
            if parent.has_room(1) {
                let Some(entry) = node::encode(e) else {
                    return Err(Error::new(ErrorKind::Overflow, "append extent"));
                };
                let goal = self.node_goal(&map.root, &path);
                let block = self.alloc_node(h, map, goal)?;
                self.create_node(h, block, 0, &[entry])?;
                self.add_child(h, map, parent, e.logical, block)?;
                return Ok(true);
            }
            match (0..above).rev().find(|i| path.levels[*i].has_room(1)) {
                Some(i) => self.split(h, map, &path, i + 1)?,
                None => self.grow(h, map, &path)?,
            }
        }
        Ok(false)
    }

    /// Inserts an extent into a hole, merging it with its neighbours. Any length; it is cut to what
    /// an extent can hold.
    ///
    /// # Errors
    /// `NoSpace` when a node is needed and there is no block for it: what was inserted so
    /// far stays (the return value of a retry says nothing; look up again). `Corrupt` on overlap.
    pub(crate) fn insert(&self, h: &Handle<'_>, map: &mut MapState, e: Extent) -> Result<()> {
        let mut rest = e;
        while rest.len > 0 {
            let done = self.insert_some(h, map, &rest)?;
            if done == 0 {
                return Err(self.damaged(
                    "insert extent",
                    Some(rest.physical),
                    "nothing could be inserted",
                ));
            }
            rest = split_at(&rest, FileBlock(rest.logical.0 + u64::from(done))).1;
        }
        Ok(())
    }

    /// Inserts as much of the start of `e` into a hole as one entry takes, merging it with its
    /// neighbours; returns how many blocks.
    ///
    /// # Errors
    /// `NoSpace` when a node is needed and there is no block for it, changing no extent; `Corrupt` on
    /// overlap.
    pub(crate) fn insert_some(
        &self,
        h: &Handle<'_>,
        map: &mut MapState,
        e: &Extent,
    ) -> Result<u32> {
        const OP: &str = "insert extent";
        if e.end() > LOGICAL_END || e.len == 0 {
            return Err(Error::new(ErrorKind::FileTooLarge, OP));
        }
        map.holes.note_mapped(e.logical.0..e.end().0);
        let max = Extent::max_len(e.unwritten);
        let path = self.path(&map.root, e.logical)?;
        let Some(leaf) = path.leaf() else {
            return Err(self.damaged(OP, None, "a tree without a leaf"));
        };
        let after = leaf.pos.map_or(0, |p| p + 1);
        let (prev, next) = self.with(&map.root, leaf, |bytes| {
            (
                leaf.pos.and_then(|p| node::extent(bytes, p)),
                node::extent(bytes, after),
            )
        });
        let overlap = prev.is_some_and(|p| p.end() > e.logical)
            || next.is_some_and(|n| n.logical < e.end())
            || path.end < e.end();
        if overlap {
            let detail = format!("{}+{} overlaps another extent", e.logical, e.len);
            return Err(self.damaged(OP, Some(e.physical), detail));
        }
        // Left: fill the neighbour up to its limit.
        if let (Some(p), Some(pos)) = (prev, leaf.pos)
            && node::continues(&p, e)
            && p.len < max
        {
            let n = e.len.min(max - p.len);
            let mut joined = Extent {
                len: p.len + n,
                ..p
            };
            let swallow = next.filter(|nx| {
                n == e.len && node::continues(&joined, nx) && joined.len + nx.len <= max
            });
            if let Some(nx) = swallow {
                joined.len += nx.len;
            }
            let Some(entry) = node::encode(&joined) else {
                return Err(Error::new(ErrorKind::Overflow, OP));
            };
            self.edit(h, &mut map.root, leaf, |bytes| {
                node::set(bytes, pos, &entry);
                if swallow.is_some() {
                    node::remove(bytes, after, 1);
                }
            })?;
            if swallow.is_some() {
                self.shorten(h, map, &path);
            }
            return Ok(n);
        }
        // Right: extend the neighbour downwards.
        if let Some(nx) = next
            && node::continues(e, &nx)
            && e.len + nx.len <= max
        {
            let joined = Extent {
                len: e.len + nx.len,
                ..*e
            };
            let Some(entry) = node::encode(&joined) else {
                return Err(Error::new(ErrorKind::Overflow, OP));
            };
            self.edit(h, &mut map.root, leaf, |bytes| {
                node::set(bytes, after, &entry)
            })?;
            if after == 0 {
                self.raise_keys(h, &mut map.root, &path, path.levels.len() - 1, e.logical)?;
            }
            return Ok(e.len);
        }
        let piece = Extent {
            len: e.len.min(max),
            ..*e
        };
        let Some(entry) = node::encode(&piece) else {
            return Err(Error::new(ErrorKind::Overflow, OP));
        };
        if self.append_leaf(h, map, &piece)? {
            return Ok(piece.len);
        }
        let path = self.ensure_room(h, map, e.logical, 1)?;
        self.insert_entries(h, map, &path, &[entry], e.logical)?;
        Ok(piece.len)
    }

    /// How many of these written extents, sorted and in holes, the leaf of the first has room for whatever is there; 0 when the
    /// first would come first in its leaf, or when something is in the way, which [`Tree::insert_some`] then reports.
    /// [`Tree::insert_leaf`] puts them there.
    pub(crate) fn leaf_room(&self, map: &MapState, extents: &[Extent]) -> Result<(Path, usize)> {
        let first = extents.first().map_or(FileBlock(0), |e| e.logical);
        let path = self.path(&map.root, first)?;
        let Some(leaf) = path.leaf().filter(|l| l.pos.is_some()) else {
            return Ok((path, 0));
        };
        let room = leaf.capacity.saturating_sub(leaf.count);
        let n = self.with(&map.root, leaf, |bytes| {
            let fits = |e: &&Extent| {
                let pos = node::find(bytes, e.logical);
                let prev = pos.and_then(|p| node::extent(bytes, p));
                let next = node::key(bytes, pos.map_or(0, |p| p + 1));
                e.len > 0
                    && e.len <= Extent::max_len(false)
                    && e.end() <= path.end
                    && prev.is_some_and(|p| p.end() <= e.logical)
                    && next.is_none_or(|n| e.end() <= n)
            };
            let candidates = extents.iter().take(room).take_while(fits);
            candidates.count()
        });
        let apart = extents[..n]
            .windows(2)
            .take_while(|w| w[0].end() <= w[1].logical)
            .count();
        let n = n.min(apart + 1);
        Ok((path, n))
    }

    /// Inserts extents that [`Tree::leaf_room`] has found room for, in one edit, each merged with its neighbours.
    pub(crate) fn insert_leaf(
        &self,
        h: &Handle<'_>,
        map: &mut MapState,
        path: &Path,
        extents: &[Extent],
    ) -> Result<()> {
        const OP: &str = "insert extents";
        let Some(leaf) = path.leaf() else {
            return Err(self.damaged(OP, None, "a tree without a leaf"));
        };
        for e in extents {
            map.holes.note_mapped(e.logical.0..e.end().0);
        }
        let max = Extent::max_len(false);
        let put = |bytes: &mut [u8], e: &Extent| {
            let pos = node::find(bytes, e.logical).map_or(0, |p| p + 1);
            let mut rest = *e;
            // The neighbour on the left is filled up to its limit.
            if let Some(at) = pos.checked_sub(1)
                && let Some(p) = node::extent(bytes, at)
                && node::continues(&p, e)
                && p.len < max
            {
                let n = e.len.min(max - p.len);
                let Some(entry) = node::encode(&Extent {
                    len: p.len + n,
                    ..p
                }) else {
                    return false;
                };
                node::set(bytes, at, &entry);
                rest = split_at(e, FileBlock(e.logical.0 + u64::from(n))).1;
            }
            let fits = rest.len == 0
                || node::encode(&rest).is_some_and(|entry| node::insert(bytes, pos, &[entry]));
            merge_around(bytes, pos, 1);
            fits
        };
        let all = self.edit(h, &mut map.root, leaf, |bytes| {
            extents.iter().all(|e| put(bytes, e))
        })?;
        if !all {
            return Err(self.damaged(OP, None, "the leaf has no room"));
        }
        self.shorten(h, map, path);
        Ok(())
    }

    /// Inserts entries behind the path's position; the leaf has room.
    fn insert_entries(
        &self,
        h: &Handle<'_>,
        map: &mut MapState,
        path: &Path,
        entries: &[node::RawEntry],
        first: FileBlock,
    ) -> Result<()> {
        let Some(leaf) = path.leaf() else {
            return Ok(());
        };
        let pos = leaf.pos.map_or(0, |p| p + 1);
        if !self.edit(h, &mut map.root, leaf, |bytes| {
            node::insert(bytes, pos, entries)
        })? {
            return Err(self.damaged("insert extent", None, "the leaf has no room"));
        }
        if pos == 0 {
            self.raise_keys(h, &mut map.root, path, path.levels.len() - 1, first)?;
        }
        Ok(())
    }

    /// Makes the part of one extent that lies in `from..to` written or unwritten. Returns where the next
    /// step must begin (at least one block on; `to` or more when done). Holes are stepped over.
    pub(crate) fn convert_step(
        &self,
        h: &Handle<'_>,
        map: &mut MapState,
        from: FileBlock,
        to: FileBlock,
        unwritten: bool,
    ) -> Result<FileBlock> {
        const OP: &str = "convert extent";
        let found = self.lookup(&map.root, from)?;
        let Some(old) = found.extent else {
            return Ok(found.hole_end.max(FileBlock(from.0 + 1)));
        };
        if old.unwritten == unwritten {
            return Ok(old.end());
        }
        let end = to.min(old.end());
        let (left, rest) = split_at(&old, from);
        let (middle, right) = split_at(&rest, end);
        let mut pieces: SmallVec<[Extent; 4]> = SmallVec::new();
        pieces.push(left);
        // A written extent may be one block longer than an unwritten one can be.
        let mut change = Extent {
            unwritten,
            ..middle
        };
        while change.len > Extent::max_len(unwritten) {
            let cut = FileBlock(change.logical.0 + u64::from(Extent::max_len(unwritten)));
            let (head, tail) = split_at(&change, cut);
            pieces.push(head);
            change = tail;
        }
        pieces.push(change);
        pieces.push(right);
        pieces.retain(|p| p.len > 0);
        let entries: Option<SmallVec<[node::RawEntry; 4]>> =
            pieces.iter().map(node::encode).collect();
        let Some(entries) = entries else {
            return Err(Error::new(ErrorKind::Overflow, OP));
        };
        if node::depth(&map.root) == 0 && replace_in_root(&mut map.root, from, &entries) {
            return Ok(end);
        }
        let path = self.ensure_room(h, map, from, pieces.len() - 1)?;
        let Some((leaf, pos)) = path.leaf().and_then(|l| Some((l, l.pos?))) else {
            return Err(self.damaged(OP, Some(old.physical), "the extent is gone"));
        };
        // All in one edit: there is no moment at which an extent is missing.
        let fits = self.edit(h, &mut map.root, leaf, |bytes| {
            node::set(bytes, pos, &entries[0]);
            let fits = node::insert(bytes, pos + 1, &entries[1..]);
            merge_around(bytes, pos, entries.len());
            fits
        })?;
        if !fits {
            return Err(self.damaged(OP, Some(old.physical), "the leaf has no room"));
        }
        self.shorten(h, map, &path);
        Ok(end)
    }

    /// [`Tree::convert_step`] over a whole range.
    pub(crate) fn convert(
        &self,
        h: &Handle<'_>,
        map: &mut MapState,
        from: FileBlock,
        to: FileBlock,
        unwritten: bool,
    ) -> Result<()> {
        let mut at = from;
        while at < to {
            at = self.convert_step(h, map, at, to, unwritten)?;
        }
        Ok(())
    }
}

/// Replaces the extent of a root without children that holds `at` by its pieces, joined with its neighbours, if they
/// fit then: what becomes one entry needs no node in between. `false`, changing nothing, when they do not.
fn replace_in_root(root: &mut [u8; 60], at: FileBlock, entries: &[node::RawEntry]) -> bool {
    // A root, and as many entries again.
    let mut wide = [0; 108];
    node::init(&mut wide, 0);
    let Some(pos) = node::find(root, at) else {
        return false;
    };
    let mut all = node::entries_from(root, 0);
    all.splice(pos..=pos, entries.iter().copied());
    if !node::insert(&mut wide, 0, &all) {
        return false;
    }
    merge_around(&mut wide, pos, entries.len());
    let joined = node::entries_from(&wide, 0);
    if joined.len() > node::capacity(root) {
        return false;
    }
    node::init(root, 0);
    node::insert(root, 0, &joined)
}

/// Joins entries that continue each other around `n` entries at `pos`.
pub(super) fn merge_around(bytes: &mut [u8], pos: usize, n: usize) {
    let mut at = pos.saturating_sub(1);
    let mut left = n + 1;
    while left > 0 {
        left -= 1;
        let (Some(a), Some(b)) = (node::extent(bytes, at), node::extent(bytes, at + 1)) else {
            return;
        };
        let joined = Extent {
            len: a.len + b.len,
            ..a
        };
        if node::continues(&a, &b)
            && joined.len <= Extent::max_len(a.unwritten)
            && let Some(entry) = node::encode(&joined)
        {
            node::set(bytes, at, &entry);
            node::remove(bytes, at + 1, 1);
        } else {
            at += 1;
        }
    }
}
