//! The hash index of a directory: finding the leaf of a hash, and splitting full blocks.
//!
//! An insertion loops: find the leaf; if it has room, done; otherwise make room by one step (split
//! the leaf, split an index block, or add a level) and start over. Each step allocates its block before it
//! changes anything and leaves a sound index, so a full volume ends the loop with nothing lost.

use super::block::{self, Entry};
use super::index::{self, DxPlace};
use super::{Dir, Directories, Found, Query};
use crate::Result;
use crate::inode::ext4;
use crate::journal::Handle;
use crate::journal::buffer::{BufferData, BufferRef};
use crate::{Error, ErrorKind};
use blockwright_ondisk::ext4::features::Incompat;
use blockwright_ondisk::ext4::hash::HashVersion;
use blockwright_ondisk::ext4::htree::{DxRootInfo, MAX_INDIRECT_LEVELS, MAX_INDIRECT_LEVELS_LARGE};
use blockwright_ondisk::ext4::{Ino, InodeFlags};

/// One index block on the way to a leaf.
pub(super) struct Frame {
    pub lblk: u32,
    pub buffer: BufferRef,
    pub data: BufferData,
    /// Whether it is the root.
    pub place: DxPlace,
    /// The entry taken.
    pub pos: usize,
}

impl Frame {
    /// Offset of its entries.
    fn at(&self) -> usize {
        self.place.entries_offset()
    }

    fn count(&self) -> usize {
        index::count(&self.data, self.at())
    }

    fn is_full(&self) -> bool {
        self.count() >= index::stored_limit(&self.data, self.at())
    }
}

/// The way from the root to a leaf.
pub(super) struct Path {
    pub version: HashVersion,
    pub raw_version: u8,
    pub frames: Vec<Frame>,
}

impl Path {
    /// The leaf it leads to.
    pub(super) fn leaf(&self) -> u32 {
        self.frames
            .last()
            .map_or(0, |f| index::block(&f.data, f.at(), f.pos))
    }

    /// The hash of the leaf after this one, with its continuation bit; `None` for the last.
    pub(super) fn next_hash(&self) -> Option<u32> {
        self.frames
            .iter()
            .rev()
            .find(|f| f.pos + 1 < f.count())
            .map(|f| index::hash(&f.data, f.at(), f.pos + 1))
    }
}

impl Directories {
    fn bad_index(&self, op: &'static str, dir: &Dir<'_>, lblk: u32, what: &str) -> Error {
        self.volume.corrupt(
            op,
            Some(dir.ino),
            None,
            format!("block {lblk} of the directory: {what}"),
        )
    }

    fn levels_max(&self) -> u8 {
        match self.volume.has_incompat(Incompat::LARGE_DIR) {
            true => MAX_INDIRECT_LEVELS_LARGE,
            false => MAX_INDIRECT_LEVELS,
        }
    }

    fn index_frame(&self, op: &'static str, dir: &Dir<'_>, lblk: u32) -> Result<Frame> {
        let buffer = self.block_there(op, dir, lblk)?;
        let data = buffer.data();
        let place = match lblk {
            0 => DxPlace::Root,
            _ => DxPlace::Node,
        };
        if lblk != 0 && !index::looks_like_node(&data) {
            return Err(self.bad_index(op, dir, lblk, "an index block was expected"));
        }
        index::check(&data, place, &dir.layout).map_err(|b| self.bad_index(op, dir, lblk, b.0))?;
        Ok(Frame {
            lblk,
            buffer,
            data,
            place,
            pos: 0,
        })
    }

    /// Reads the root and finds out which hash it uses.
    fn index_root(&self, op: &'static str, dir: &Dir<'_>) -> Result<(Path, u8)> {
        let frame = {
            // The root information comes first: it says whether there is an index at all.
            let buffer = self.block_there(op, dir, 0)?;
            let data = buffer.data();
            let info = DxRootInfo::parse(&data, &dir.layout, self.levels_max())
                .map_err(|e| self.bad_index(op, dir, 0, &e.to_string()))?;
            (self.index_frame(op, dir, 0)?, info)
        };
        let (frame, info) = frame;
        let version = self
            .volume
            .superblock()
            .hash_version(info.hash_version)
            .map_err(|e| self.bad_index(op, dir, 0, &e.to_string()))?;
        Ok((
            Path {
                version,
                raw_version: info.hash_version,
                frames: vec![frame],
            },
            info.indirect_levels,
        ))
    }

    /// Descends from the path's last frame to the leaf level.
    fn descend(
        &self,
        op: &'static str,
        dir: &Dir<'_>,
        path: &mut Path,
        levels: usize,
        pick: impl Fn(&Frame) -> usize,
    ) -> Result<()> {
        while path.frames.len() <= levels {
            let next = path.leaf();
            // A loop would come back to a block of the path; levels are bounded in any case.
            if next >= dir.blocks || path.frames.iter().any(|f| f.lblk == next) {
                return Err(self.bad_index(op, dir, next, "the index points here, wrongly"));
            }
            let mut frame = self.index_frame(op, dir, next)?;
            frame.pos = pick(&frame);
            path.frames.push(frame);
        }
        let leaf = path.leaf();
        if leaf == 0 || leaf >= dir.blocks {
            return Err(self.bad_index(op, dir, leaf, "the index points here, wrongly"));
        }
        Ok(())
    }

    /// Finds the first leaf a hash may be in.
    pub(super) fn probe(&self, op: &'static str, dir: &Dir<'_>, hash: u32) -> Result<Path> {
        let (mut path, levels) = self.index_root(op, dir)?;
        path.frames[0].pos = index::find(&path.frames[0].data, path.frames[0].at(), hash);
        self.descend(op, dir, &mut path, usize::from(levels), |f| {
            index::find(&f.data, f.at(), hash)
        })?;
        Ok(path)
    }

    /// Which hash the index uses.
    pub(super) fn index_version(&self, op: &'static str, dir: &Dir<'_>) -> Result<HashVersion> {
        Ok(self.index_root(op, dir)?.0.version)
    }

    /// Moves a path to the next leaf. `false` at the end.
    pub(super) fn next_leaf(
        &self,
        op: &'static str,
        dir: &Dir<'_>,
        path: &mut Path,
    ) -> Result<bool> {
        let levels = path.frames.len() - 1;
        let Some(at) = path.frames.iter().rposition(|f| f.pos + 1 < f.count()) else {
            return Ok(false);
        };
        path.frames.truncate(at + 1);
        path.frames[at].pos += 1;
        self.descend(op, dir, path, levels, |_| 0)?;
        Ok(true)
    }

    /// Looks a name up through the index.
    pub(super) fn htree_find(
        &self,
        op: &'static str,
        dir: &Dir<'_>,
        query: &Query<'_>,
    ) -> Result<Option<Found>> {
        let (path, levels) = self.index_root(op, dir)?;
        let hash = match query.nokey {
            Some((hash, _)) => hash & !1,
            None => self.hash_for(dir, path.version, query.name)?.hash,
        };
        let mut path = path;
        path.frames[0].pos = index::find(&path.frames[0].data, path.frames[0].at(), hash);
        self.descend(op, dir, &mut path, usize::from(levels), |f| {
            index::find(&f.data, f.at(), hash)
        })?;
        // As many steps as there are blocks, at most, even if the index goes in circles.
        for _ in 0..dir.blocks {
            let lblk = path.leaf();
            let buffer = self.block_there(op, dir, lblk)?;
            let data = buffer.data();
            let area = &data[..dir.layout.leaf_space()];
            if let Some(found) = self.find_in(op, dir, lblk, area, query)? {
                return Ok(Some(found));
            }
            match path.next_hash() {
                Some(next) if next & 1 == 1 && next & !1 == hash => {
                    self.next_leaf(op, dir, &mut path)?;
                }
                _ => break,
            }
        }
        Ok(None)
    }

    /// Adds a name through the index.
    pub(super) fn htree_insert(
        &self,
        h: &Handle<'_>,
        dir: &Dir<'_>,
        name: &[u8],
        ino: Ino,
        file_type: u8,
    ) -> Result<()> {
        const OP: &str = "add name";
        // Room is made at most once per level, and once for the leaf.
        for _ in 0..8 {
            let dir = &self.open(dir.inode)?;
            let version = self.index_version(OP, dir)?;
            let hash = self.hash_for(dir, version, name)?.hash;
            let path = self.probe(OP, dir, hash)?;
            let lblk = path.leaf();
            let leaf = self.block_there(OP, dir, lblk)?;
            if self.leaf_insert(OP, h, dir, lblk, &leaf, name, ino, file_type)? {
                return Ok(());
            }
            if self.repack_leaf(OP, h, dir, lblk, &leaf, name, ino, file_type)? {
                return Ok(());
            }
            match path.frames.iter().rposition(|f| !f.is_full()) {
                Some(room) if room + 1 == path.frames.len() => {
                    return self.split_leaf(OP, h, dir, &path, &leaf, hash, (name, ino, file_type));
                }
                Some(room) => self.split_node(h, dir, &path, room)?,
                None => self.add_level(h, dir, &path)?,
            }
        }
        Err(self.bad_index(OP, dir, 0, "the index stays full however it is split"))
    }

    /// Entries of a leaf that are in use.
    fn leaf_list<'d>(
        &self,
        op: &'static str,
        dir: &Dir<'_>,
        lblk: u32,
        data: &'d [u8],
    ) -> Result<Vec<Entry<'d>>> {
        block::leaf_entries(data, &dir.layout)
            .filter(|e| !matches!(e, Ok(e) if !e.is_used()))
            .map(|e| e.map_err(|b| self.bad_entry(op, dir, lblk, &b)))
            .collect()
    }

    /// Adds an entry by packing a leaf whose free room is in too small pieces.
    #[allow(clippy::too_many_arguments)]
    fn repack_leaf(
        &self,
        op: &'static str,
        h: &Handle<'_>,
        dir: &Dir<'_>,
        lblk: u32,
        leaf: &BufferRef,
        name: &[u8],
        ino: Ino,
        file_type: u8,
    ) -> Result<bool> {
        let layout = dir.layout;
        let data = leaf.data();
        let list = self.leaf_list(op, dir, lblk, &data)?;
        let used: usize = list.iter().map(|e| layout.entry_len(e.name)).sum();
        if used + layout.min_rec_len(name.len()) > layout.leaf_space() {
            return Ok(false);
        }
        let entries = list
            .iter()
            .map(|e| (e.ino, e.file_type, e.name))
            .chain(std::iter::once((ino, file_type, name)));
        h.modify(leaf, |block| {
            block::pack_leaf(block, entries, &layout);
            block::seal_leaf(block, &layout, dir.seed);
        })?;
        Ok(true)
    }

    /// Moves the upper half of a leaf's hashes to a new leaf, and adds the entry where it belongs.
    #[allow(clippy::too_many_arguments)]
    fn split_leaf(
        &self,
        op: &'static str,
        h: &Handle<'_>,
        dir: &Dir<'_>,
        path: &Path,
        leaf: &BufferRef,
        hash: u32,
        new: (&[u8], Ino, u8),
    ) -> Result<()> {
        let layout = dir.layout;
        let lblk = path.leaf();
        let data = leaf.data();
        let mut list = Vec::new();
        for e in self.leaf_list(op, dir, lblk, &data)? {
            list.push((self.entry_hash(dir, path.version, &e)?.hash, e));
        }
        list.sort_by_key(|(hash, _)| *hash);
        if list.len() < 2 {
            return Err(self.bad_index(op, dir, lblk, "a leaf is full with less than two entries"));
        }
        // The largest upper part of at most half a block, by size.
        let mut split = list.len();
        let mut size = 0;
        while split > 1 {
            let len = layout.min_rec_len(list[split - 1].1.name.len());
            if size + len / 2 > layout.block_size / 2 {
                break;
            }
            size += len;
            split -= 1;
        }
        if split == list.len() {
            split = list.len() / 2;
        }
        let first = list[split].0;
        let continued = u32::from(list[split - 1].0 == first);
        let goes_up = hash >= first;
        let (name, ino, file_type) = new;
        let part = |range: &[(u32, Entry<'_>)], add: bool| -> Option<Vec<(Ino, u8, Vec<u8>)>> {
            let mut out: Vec<_> = range
                .iter()
                .map(|(_, e)| (e.ino, e.file_type, e.name.to_vec()))
                .collect();
            if add {
                out.push((ino, file_type, name.to_vec()));
            }
            let bytes: usize = out.iter().map(|e| layout.min_rec_len(e.2.len())).sum();
            (bytes <= layout.leaf_space()).then_some(out)
        };
        let (Some(low), Some(high)) = (
            part(&list[..split], !goes_up),
            part(&list[split..], goes_up),
        ) else {
            return Err(self.bad_index(op, dir, lblk, "half a leaf has no room for one name"));
        };
        let seed = dir.seed;
        let new_lblk = self.append(h, dir, |block| {
            block::pack_leaf(block, high.iter().map(|e| (e.0, e.1, &e.2[..])), &layout);
            block::seal_leaf(block, &layout, seed);
        })?;
        h.modify(leaf, |block| {
            block::pack_leaf(block, low.iter().map(|e| (e.0, e.1, &e.2[..])), &layout);
            block::seal_leaf(block, &layout, seed);
        })?;
        let frame = &path.frames[path.frames.len() - 1];
        h.modify(&frame.buffer, |node| {
            index::insert(node, frame.at(), frame.pos + 1, first | continued, new_lblk);
            index::seal(node, frame.place, &layout, seed);
        })
    }

    /// Splits the full index block below frame `room`, which takes the new block's entry.
    fn split_node(&self, h: &Handle<'_>, dir: &Dir<'_>, path: &Path, room: usize) -> Result<()> {
        let (parent, child) = (&path.frames[room], &path.frames[room + 1]);
        let (layout, seed) = (dir.layout, dir.seed);
        let half = child.count() / 2;
        let moved = index::entries_from(&child.data, child.at(), half);
        let first = index::hash(&child.data, child.at(), half);
        let new_lblk = self.append(h, dir, |block| {
            index::init_node(block, &layout);
            index::put_entries(block, DxPlace::Node.entries_offset(), &moved);
            index::seal(block, DxPlace::Node, &layout, seed);
        })?;
        h.modify(&child.buffer, |node| {
            index::set_count(node, child.at(), half);
            index::seal(node, child.place, &layout, seed);
        })?;
        h.modify(&parent.buffer, |node| {
            index::insert(node, parent.at(), parent.pos + 1, first, new_lblk);
            index::seal(node, parent.place, &layout, seed);
        })
    }

    /// Moves the root's entries to a new block below it.
    fn add_level(&self, h: &Handle<'_>, dir: &Dir<'_>, path: &Path) -> Result<()> {
        let levels = path.frames.len() - 1;
        if levels >= usize::from(self.levels_max()) {
            return Err(Error::new(ErrorKind::NoSpace, "add name")
                .ino(dir.inode.ino())
                .detail("the directory's index is full"));
        }
        let (layout, seed) = (dir.layout, dir.seed);
        let root = &path.frames[0];
        let all = index::entries_from(&root.data, root.at(), 0);
        let new_lblk = self.append(h, dir, |block| {
            index::init_node(block, &layout);
            index::put_entries(block, DxPlace::Node.entries_offset(), &all);
            index::seal(block, DxPlace::Node, &layout, seed);
        })?;
        h.modify(&root.buffer, |block| {
            index::init_root(block, path.raw_version, new_lblk, &layout);
            index::set_levels(block, (levels + 1) as u8);
            index::seal(block, DxPlace::Root, &layout, seed);
        })
    }

    /// Turns a directory of one full block into an index with one leaf.
    pub(super) fn make_index(&self, h: &Handle<'_>, dir: &Dir<'_>) -> Result<()> {
        const OP: &str = "index directory";
        let layout = dir.layout;
        let seed = dir.seed;
        let version = self
            .volume
            .superblock()
            .default_hash()
            .map_err(|e| Error::new(ErrorKind::UnsupportedFeature, OP).detail(e.to_string()))?
            .to_raw();
        let parent = self.parent(dir.inode)?;
        let buffer = self.block_there(OP, dir, 0)?;
        let data = buffer.data();
        let list = self.leaf_list(OP, dir, 0, &data)?;
        let names = list.iter().filter(|e| e.name != b"." && e.name != b"..");
        let new_lblk = self.append(h, dir, |block| {
            block::pack_leaf(block, names.map(|e| (e.ino, e.file_type, e.name)), &layout);
            block::seal_leaf(block, &layout, seed);
        })?;
        h.modify(&buffer, |block| {
            block::init_dots(block, dir.ino, parent, &layout);
            // In a root `..` reaches to the very end: the index hides in its slack.
            let len = block.len();
            block::set_rec_len(block, 12, len - 12, &layout);
            index::init_root(block, version, new_lblk, &layout);
            index::seal(block, DxPlace::Root, &layout, seed);
        })?;
        ext4(dir.inode).map.write().flags |= InodeFlags::INDEX;
        Ok(())
    }
}
