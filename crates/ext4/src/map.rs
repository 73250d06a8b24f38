//! Mappings of files: looking them up, and the single-block changes that metadata files need.
//!
//! An inode is mapped by an extent tree or by block pointers (`Mapper` is either); on top of that lie
//! blocks that exist only in memory: delayed ones and those being written (`delayed`).
//!
//! Not responsible for: inline data (`inline_data`), file data.
//!
//! # Locks
//! The inode's `map`: shared to look, exclusive to change. A commit is never forced with it held:
//! another thread may hold a handle and wait for it.

use crate::extents::{Extent, Progress, Tree};
use crate::fs::Fs;
use crate::group::vfs_ino;
use crate::indirect::{self, Indirect, Pointed};
use crate::inode::{Ext4Inode, MapState};
use crate::jbd2::Handle;
use crate::mballoc::{Claim, Run};
use crate::quota_space::Limit;
use crate::{Error, ErrorKind, Result};
use blockwright_device::DevOffset;
use blockwright_ondisk::ext4::{BlockNo, FileBlock, Ino, InodeFlags};
use blockwright_vfs::Inode;
use blockwright_vfs::engine::{Mapping, Place};

/// Rounds of "no space, but a commit will free some".
const COMMIT_ROUNDS: usize = 4;

/// What is at a file block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// Nothing.
    Hole,
    /// Data from this block on.
    Mapped(BlockNo),
    /// Allocated, reads as zeroes.
    Unwritten(BlockNo),
    /// Reserved; the data is in the page cache.
    Delayed,
}

/// How an inode's blocks are mapped.
pub(crate) enum Mapper<'a> {
    /// By an extent tree.
    Extents(Tree<'a>),
    /// By block pointers.
    Blocks(Indirect<'a>),
}

/// A stretch of one on-disk state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stretch {
    pub(crate) state: BlockState,
    /// Blocks from the asked one on.
    pub(crate) len: u64,
    /// For a hole: where the mapped block before it is, as (logical, physical) of its end.
    pub(crate) before: Option<(FileBlock, BlockNo)>,
}

impl Stretch {
    /// What is left of a hole behind its first blocks.
    pub(crate) fn from(&self, skip: u64) -> Self {
        Stretch {
            len: self.len.saturating_sub(skip),
            ..*self
        }
    }
}

/// A hole of "to the end of what can be addressed".
pub(crate) const ENDLESS: u64 = u64::MAX >> 17;

impl<'a> Mapper<'a> {
    pub(crate) fn new(fs: &'a Fs, e: &Ext4Inode, map: &MapState) -> Self {
        if map.flags.contains(InodeFlags::EXTENTS) {
            Mapper::Extents(Tree::new(fs, e.ino, e.seed))
        } else {
            Mapper::Blocks(Indirect::new(fs, e.ino))
        }
    }

    /// What is on disk at `at`; mapped stretches are coalesced up to `max` blocks.
    pub(crate) fn find(
        &self,
        fs: &Fs,
        ino: Ino,
        map: &MapState,
        at: FileBlock,
        max: u64,
    ) -> Result<Stretch> {
        match self {
            Mapper::Extents(tree) => {
                let found = tree.lookup(&map.root, at)?;
                let Some(e) = found.extent else {
                    let end = found.hole_end;
                    let len = if end >= FileBlock(1 << 32) {
                        ENDLESS
                    } else {
                        end.0.saturating_sub(at.0).max(1)
                    };
                    let before = found
                        .before
                        .map(|b| (b.end(), BlockNo(b.physical.0 + u64::from(b.len))));
                    return Ok(Stretch {
                        state: BlockState::Hole,
                        len,
                        before,
                    });
                };
                let mut len = e.end().0 - at.0;
                let block = BlockNo(e.physical.0 + (at.0 - e.logical.0));
                // Extents that continue on the device are one stretch to the reader.
                while len < max {
                    let next = tree.lookup(&map.root, FileBlock(at.0 + len))?.extent;
                    match next {
                        Some(n)
                            if n.logical.0 == at.0 + len
                                && n.unwritten == e.unwritten
                                && n.physical.0 == block.0 + len =>
                        {
                            len += u64::from(n.len);
                        }
                        _ => break,
                    }
                }
                fs.check_block_range("map block", Some(ino), block, len)?;
                let state = if e.unwritten {
                    BlockState::Unwritten(block)
                } else {
                    BlockState::Mapped(block)
                };
                Ok(Stretch {
                    state,
                    len,
                    before: None,
                })
            }
            Mapper::Blocks(blocks) => match blocks.lookup(&map.root, at, max)? {
                Pointed::Data(block, mut len) => {
                    while len < max {
                        match blocks.lookup(&map.root, FileBlock(at.0 + len), max - len)? {
                            Pointed::Data(b, n) if b.0 == block.0 + len => len += n,
                            _ => break,
                        }
                    }
                    Ok(Stretch {
                        state: BlockState::Mapped(block),
                        len,
                        before: None,
                    })
                }
                Pointed::Hole(n) => {
                    let mut len = n;
                    while len < max.max(1) {
                        match blocks.lookup(
                            &map.root,
                            FileBlock(at.0.saturating_add(len)),
                            max - len,
                        )? {
                            Pointed::Hole(n) => len = len.saturating_add(n),
                            Pointed::Data(..) => break,
                        }
                    }
                    let before = match at.0.checked_sub(1) {
                        Some(prev) => match blocks.lookup(&map.root, FileBlock(prev), 1)? {
                            Pointed::Data(b, _) => Some((at, BlockNo(b.0 + 1))),
                            Pointed::Hole(_) => None,
                        },
                        None => None,
                    };
                    Ok(Stretch {
                        state: BlockState::Hole,
                        len: len.min(ENDLESS),
                        before,
                    })
                }
            },
        }
    }

    /// Credits one insertion step needs, data bitmaps included.
    pub(crate) fn insert_credits(&self, map: &MapState) -> u32 {
        match self {
            Mapper::Extents(_) => Tree::credits(&map.root) + 4,
            Mapper::Blocks(b) => b.credits(1) + 4,
        }
    }

    /// Maps `at` on to the start of `run`, as much as one step takes; returns how many blocks.
    pub(crate) fn insert_some(
        &self,
        h: &Handle<'_>,
        map: &mut MapState,
        at: FileBlock,
        run: Run,
        unwritten: bool,
    ) -> Result<u32> {
        match self {
            Mapper::Extents(tree) => {
                let e = Extent {
                    logical: at,
                    physical: run.start,
                    len: run.len,
                    unwritten,
                };
                tree.insert_some(h, map, &e)
            }
            Mapper::Blocks(blocks) => blocks.insert_some(h, map, at, run),
        }
    }

    /// Credits one removal step needs.
    pub(crate) fn remove_credits(&self, map: &MapState) -> u32 {
        match self {
            Mapper::Extents(_) => Tree::remove_credits(&map.root),
            Mapper::Blocks(b) => b.credits(1) + 28,
        }
    }

    /// Removes blocks at the right end of a range; `journaled`: they are metadata, in the journal.
    pub(crate) fn remove_step(
        &self,
        h: &Handle<'_>,
        map: &mut MapState,
        from: FileBlock,
        to: FileBlock,
        journaled: bool,
    ) -> Result<Progress> {
        match self {
            Mapper::Extents(tree) => tree.remove_step(h, map, from, to, journaled),
            Mapper::Blocks(blocks) => blocks.remove_step(h, map, from, to, journaled),
        }
    }

    /// First block number the inode cannot point to.
    pub(crate) fn limit(&self) -> Option<BlockNo> {
        match self {
            Mapper::Extents(_) => None,
            Mapper::Blocks(_) => Some(indirect::LIMIT),
        }
    }
}

impl Fs {
    /// Runs `step` again as long as it fails for space that a commit will make usable. `step`
    /// must not return with a handle open.
    ///
    /// # Errors
    /// Those of `step`.
    pub fn retry_after_commit<R>(&self, mut step: impl FnMut() -> Result<R>) -> Result<R> {
        for _ in 0..COMMIT_ROUNDS {
            match step() {
                Err(e) if e.kind() == ErrorKind::NoSpace => {
                    if !self.alloc.commit_pending()? {
                        return Err(e);
                    }
                }
                other => return other,
            }
        }
        step()
    }

    /// What is at a file block, and for how many blocks the same holds (at least up to `max` where
    /// the blocks are consecutive).
    ///
    /// # Errors
    /// `Corrupt`; I/O errors.
    pub fn map_lookup(&self, inode: &Inode, at: FileBlock, max: u64) -> Result<(BlockState, u64)> {
        let e = inode.private::<Ext4Inode>();
        let map = e.map.read();
        self.map_lookup_locked(e, &map, at, max)
    }

    pub(crate) fn map_lookup_locked(
        &self,
        e: &Ext4Inode,
        map: &MapState,
        at: FileBlock,
        max: u64,
    ) -> Result<(BlockState, u64)> {
        let found = Mapper::new(self, e, map).find(self, e.ino, map, at, max)?;
        if found.state != BlockState::Hole {
            return Ok((found.state, found.len));
        }
        if let Some(r) = map.delayed.from(at.0) {
            return Ok((BlockState::Delayed, found.len.min(r.end - at.0)));
        }
        let next = map.delayed.first_in(at.0..u64::MAX, 1);
        let next = next.map_or(u64::MAX, |r| r.start);
        Ok((BlockState::Hole, found.len.min(next - at.0)))
    }

    /// Allocates the block at `at` of a file whose contents are metadata (a directory, a slow symlink,
    /// a quota file, an attribute value), inserts it and stores the inode, in the handle. An existing
    /// block is returned as it is. Credits: 24, for a tree of ordinary depth.
    ///
    /// # Errors
    /// `NoSpace`: see [`Fs::retry_after_commit`].
    pub fn map_create_meta(&self, h: &Handle<'_>, inode: &Inode, at: FileBlock) -> Result<BlockNo> {
        let e = inode.private::<Ext4Inode>();
        let mut map = e.map.write();
        let mapper = Mapper::new(self, e, &map);
        let found = mapper.find(self, e.ino, &map, at, 1)?;
        let goal = match (found.state, found.before) {
            (BlockState::Mapped(block), _) => return Ok(block),
            (BlockState::Unwritten(block), _) => {
                let tree = Tree::new(self, e.ino, e.seed);
                tree.convert(h, &mut map, at, FileBlock(at.0 + 1), false)?;
                self.store_inode_locked(h, inode, &map)?;
                return Ok(block);
            }
            (_, Some((end, block))) if end == at => block,
            _ => self.inode_goal(e.ino),
        };
        h.ensure_credits(mapper.insert_credits(&map))?;
        self.check_meta_quota(inode, &map)?;
        let block = self
            .alloc
            .alloc_meta_from(h, goal, e.ino, Claim::Metadata, mapper.limit())?;
        let run = Run {
            start: block,
            len: 1,
        };
        if let Err(error) = mapper.insert_some(h, &mut map, at, run, false) {
            // Nothing points to it: it is free again in the same transaction.
            self.alloc.free(h, run, false)?;
            return Err(error);
        }
        map.blocks = map.blocks.saturating_add(self.block_units());
        self.store_inode_locked(h, inode, &map)?;
        self.show_blocks(inode, &map);
        Ok(block)
    }

    /// [`blockwright_vfs::engine::Data::extents`]: of files that have an extent tree.
    pub(crate) fn count_extents(&self, inode: &Inode, leaves: &mut usize) -> Option<u64> {
        let e = inode.private::<Ext4Inode>();
        // A look at statistics does not keep a writer waiting, nor the other way round.
        let map = e.map.try_read()?;
        if !map.flags.contains(InodeFlags::EXTENTS)
            || inode.kind() != blockwright_vfs::FileKind::Regular
            || map.blocks == 0
        {
            return None;
        }
        let tree = Tree::new(self, e.ino, e.seed);
        tree.count(&map.root, leaves).ok()?.filter(|n| *n > 0)
    }

    /// Refreshes what `stat` shows of the space taken, delayed blocks included.
    pub(crate) fn show_blocks(&self, inode: &Inode, map: &MapState) {
        let blocks512 = map
            .blocks
            .saturating_add(map.delayed.total() * self.block_units());
        inode.update_attr(|a| a.blocks512 = blocks512);
        // Without a limit there is nothing to fail.
        let _ = self.promise_space(inode, map, Limit::Ignored);
    }

    /// Frees the blocks in `from..to`, in as many handles as it takes; every one leaves a valid inode.
    ///
    /// # Errors
    /// `Corrupt`; I/O errors; `NoSpace` when punching needs a node and there is no block.
    pub fn map_remove(
        &self,
        inode: &Inode,
        from: FileBlock,
        to: FileBlock,
        op: &'static str,
    ) -> Result<()> {
        let e = inode.private::<Ext4Inode>();
        let mut to = to;
        let ea_inode = e.map.read().flags.contains(InodeFlags::EA_INODE);
        let journaled = ea_inode || inode.kind() != blockwright_vfs::FileKind::Regular;
        loop {
            let credits = {
                let map = e.map.read();
                Mapper::new(self, e, &map).remove_credits(&map) + 8
            };
            let next = self.retry_after_commit(|| {
                let h = self.journal.start(credits.saturating_mul(2), op)?;
                let mut map = e.map.write();
                let mut at = to;
                let result = loop {
                    match Mapper::new(self, e, &map).remove_step(&h, &mut map, from, at, journaled)
                    {
                        Ok(Progress::Done) => break Ok(None),
                        Ok(Progress::More(next)) if next < at => at = next,
                        Ok(Progress::More(_)) => {
                            break Err(self.corrupt(
                                op,
                                Some(e.ino),
                                None,
                                "removal makes no progress",
                            ));
                        }
                        Ok(Progress::NeedHandle) => break Ok(Some(at)),
                        Err(error) => break Err(error),
                    }
                };
                // Stored also on an error: what was removed is removed.
                map.generation = map.generation.wrapping_add(1);
                self.store_inode_locked(&h, inode, &map)?;
                self.show_blocks(inode, &map);
                to = at;
                result
            })?;
            match next {
                Some(at) => to = at,
                None => return Ok(()),
            }
        }
    }

    /// Whether a file's blocks are mapped in its inode alone, so that one handle most likely frees them all.
    pub(crate) fn is_small_map(&self, inode: &Inode) -> bool {
        let map = inode.private::<Ext4Inode>().map.read();
        map.flags.contains(InodeFlags::EXTENTS) && Tree::is_in_inode(&map.root)
    }

    /// Credits for [`Fs::map_remove_in`] of a file with a small map, storing the inode not included.
    pub(crate) fn small_map_credits(&self, inode: &Inode) -> u32 {
        Tree::remove_credits(&inode.private::<Ext4Inode>().map.read().root)
    }

    /// Frees the blocks of a range in the caller's handle. `false` when the handle had no room for all of it; what was
    /// freed is then stored. Otherwise the caller stores the inode.
    ///
    /// # Errors
    /// `Corrupt`; I/O errors. What was freed until then is stored.
    pub(crate) fn map_remove_in(
        &self,
        h: &Handle<'_>,
        inode: &Inode,
        range: std::ops::Range<FileBlock>,
        op: &'static str,
    ) -> Result<bool> {
        let e = inode.private::<Ext4Inode>();
        let journaled = inode.kind() != blockwright_vfs::FileKind::Regular;
        let mut map = e.map.write();
        let mut at = range.end;
        let result = loop {
            match Mapper::new(self, e, &map).remove_step(h, &mut map, range.start, at, journaled) {
                Ok(Progress::Done) => break Ok(true),
                Ok(Progress::More(next)) if next < at => at = next,
                Ok(Progress::More(_)) => {
                    break Err(self.corrupt(op, Some(e.ino), None, "removal makes no progress"));
                }
                Ok(Progress::NeedHandle) => break Ok(false),
                Err(error) => break Err(error),
            }
        };
        map.generation = map.generation.wrapping_add(1);
        if !matches!(result, Ok(true)) {
            self.store_inode_locked(h, inode, &map)?;
        }
        self.show_blocks(inode, &map);
        result
    }

    /// [`blockwright_vfs::engine::Data::extent_in_place`].
    ///
    /// # Errors
    /// As there.
    pub fn extent_in_place(
        &self,
        inode: &Inode,
        offset: u64,
        bytes: u64,
    ) -> Result<Option<Mapping>> {
        let e = inode.private::<Ext4Inode>();
        let map = e.map.read();
        let mut m = self.map_locked(inode, &map, offset, bytes)?;
        let end = m.offset.saturating_add(m.bytes).min(map.disk_size);
        m.bytes = end.saturating_sub(m.offset);
        Ok(Some(m).filter(|m| matches!(m.place, Place::Mapped(_)) && m.bytes > 0))
    }

    /// [`blockwright_vfs::engine::Data::open_end`].
    pub(crate) fn open_end(&self, inode: &Inode) -> Option<u64> {
        let map = inode.private::<Ext4Inode>().map.read();
        let in_blocks = !map.flags.contains(InodeFlags::INLINE_DATA);
        let open = !map.disk_size.is_multiple_of(self.block_bytes() as u64);
        (in_blocks && open).then_some(map.disk_size)
    }

    /// [`blockwright_vfs::engine::Data::map`].
    ///
    /// # Errors
    /// As there.
    pub fn map(&self, inode: &Inode, offset: u64, bytes: u64) -> Result<Mapping> {
        let map = inode.private::<Ext4Inode>().map.read();
        self.map_locked(inode, &map, offset, bytes)
    }

    fn map_locked(
        &self,
        inode: &Inode,
        map: &MapState,
        offset: u64,
        bytes: u64,
    ) -> Result<Mapping> {
        let e = inode.private::<Ext4Inode>();
        let bits = self.geometry().block_bits;
        let generation = map.generation;
        if map.flags.contains(InodeFlags::INLINE_DATA) {
            let bytes = inode.size().max(offset.saturating_add(1));
            return Ok(Mapping {
                offset: 0,
                bytes,
                place: Place::Inline,
                generation,
            });
        }
        let at = FileBlock(offset >> bits);
        let max = (bytes >> bits).saturating_add(2);
        let (state, len) = self.map_lookup_locked(e, map, at, max)?;
        let offset = at.0 << bits;
        let to_end = (u64::MAX >> bits << bits) - offset;
        let bytes = if len >= ENDLESS >> 1 {
            to_end
        } else {
            (len << bits).min(to_end)
        };
        let place = match state {
            BlockState::Hole => Place::Hole,
            BlockState::Delayed => Place::Delayed,
            BlockState::Mapped(b) => Place::Mapped(DevOffset(b.0 << bits)),
            BlockState::Unwritten(b) => Place::Unwritten(DevOffset(b.0 << bits)),
        };
        Ok(Mapping {
            offset,
            bytes,
            place,
            generation,
        })
    }

    /// The largest size of a regular file like this one, in bytes.
    #[must_use]
    pub fn file_bytes_max(&self, inode: &Inode) -> u64 {
        let extents = inode
            .private::<Ext4Inode>()
            .map
            .read()
            .flags
            .contains(InodeFlags::EXTENTS);
        indirect::file_bytes_max(self.geometry(), extents)
    }

    pub(crate) fn no_space(&self, op: &'static str, ino: Ino) -> Error {
        Error::new(ErrorKind::NoSpace, op).ino(vfs_ino(ino))
    }
}
