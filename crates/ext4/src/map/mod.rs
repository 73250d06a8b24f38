//! Mappings of files: an inode is mapped by an extent tree or by block pointers, and [`Mapper`] is either.
//!
//! [`Mapper`] owns nothing. It calls the block allocator and, through it, `volume` and `groups`. It never charges quota and never stores
//! the inode; [`Maps`] does both. On top of the mapping lie blocks that exist only in memory: delayed ones and those being written
//! (`data::delayed`).
//!
//! # Parts in this folder
//! - `extents`, `indirect`: the two kinds of mapping.
//! - `files`: [`Maps`], mappings of whole files.
//!
//! # Locks
//! The inode's `map`: shared to look, exclusive to change. A commit is never forced with it held:
//! another thread may hold a handle and wait for it.
//!
//! # Crash order
//! Room in nodes is made before entries change, so a handle that ends early leaves a valid mapping.

pub(crate) mod extents;
mod files;
pub(crate) mod indirect;

pub(crate) use files::Maps;

use crate::alloc::{Allocator, Claim, Run};
use crate::inode::{Ext4Inode, MapState};
use crate::journal::Handle;
use crate::vfs_ino;
use crate::{Error, ErrorKind, Result};
use blockwright_ondisk::ext4::{BlockNo, FileBlock, Ino, InodeFlags};
use extents::{Extent, Progress, Tree};
use indirect::{Indirect, Pointed};

/// Credits for allocating a block of metadata and mapping it.
pub(crate) const META_BLOCK_CREDITS: u32 = 10;

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
    pub(crate) fn new(alloc: &'a Allocator, e: &Ext4Inode, map: &MapState) -> Self {
        if map.flags.contains(InodeFlags::EXTENTS) {
            Mapper::Extents(Tree::new(alloc, e.ino, e.seed))
        } else {
            Mapper::Blocks(Indirect::new(alloc, e.ino))
        }
    }

    /// What is on disk at `at`; mapped stretches are coalesced up to `max` blocks.
    pub(crate) fn find(
        &self,
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
                tree.alloc
                    .groups
                    .check_block_range("map block", Some(ino), block, len)?;
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

/// The mapping of a file block, including blocks in memory, and the number of blocks that it holds for (at least up to
/// `max` where the blocks are consecutive).
pub(crate) fn look_up(
    alloc: &Allocator,
    e: &Ext4Inode,
    map: &MapState,
    at: FileBlock,
    max: u64,
) -> Result<(BlockState, u64)> {
    let found = Mapper::new(alloc, e, map).find(e.ino, map, at, max)?;
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

/// Allocates the block at `at` of a file whose contents are metadata and inserts it, in the handle. `allowed` may refuse a new
/// block. Returns the block, and whether the caller must store the inode.
pub(crate) fn create_block(
    alloc: &Allocator,
    h: &Handle<'_>,
    e: &Ext4Inode,
    map: &mut MapState,
    at: FileBlock,
    allowed: impl FnOnce(&MapState) -> Result<()>,
) -> Result<(BlockNo, bool)> {
    let mapper = Mapper::new(alloc, e, map);
    let found = mapper.find(e.ino, map, at, 1)?;
    let goal = match (found.state, found.before) {
        (BlockState::Mapped(block), _) => return Ok((block, false)),
        (BlockState::Unwritten(block), _) => {
            let tree = Tree::new(alloc, e.ino, e.seed);
            tree.convert(h, map, at, FileBlock(at.0 + 1), false)?;
            return Ok((block, true));
        }
        (_, Some((end, block))) if end == at => block,
        _ => alloc.inode_goal(e.ino),
    };
    h.ensure_credits(mapper.insert_credits(map))?;
    allowed(map)?;
    let block = alloc.alloc_meta_from(h, goal, e.ino, Claim::Metadata, mapper.limit())?;
    let run = Run {
        start: block,
        len: 1,
    };
    if let Err(error) = mapper.insert_some(h, map, at, run, false) {
        // Nothing points to it: it is free again in the same transaction.
        alloc.free(h, run, false)?;
        return Err(error);
    }
    map.blocks = map.blocks.saturating_add(alloc.volume.block_units());
    Ok((block, true))
}

/// Frees blocks of an inode: bitmap, and the inode's counter of blocks in `map`.
pub(crate) fn free_inode_blocks(
    alloc: &Allocator,
    h: &Handle<'_>,
    ino: Ino,
    map: &mut MapState,
    run: Run,
    metadata: bool,
) -> Result<()> {
    alloc
        .groups
        .check_block_range("free blocks", Some(ino), run.start, u64::from(run.len))?;
    alloc.free(h, run, metadata)?;
    map.blocks = map
        .blocks
        .saturating_sub(u64::from(run.len) * alloc.volume.block_units());
    Ok(())
}

/// The error of a file for which there is no block.
pub(crate) fn no_space(op: &'static str, ino: Ino) -> Error {
    Error::new(ErrorKind::NoSpace, op).ino(vfs_ino(ino))
}
