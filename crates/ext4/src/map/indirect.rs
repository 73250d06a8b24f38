//! [`Indirect`]: block-mapped files: twelve pointers in the inode, then single, double and triple indirect blocks.
//!
//! It owns nothing: the pointers are in the inode's `MapState`. It calls the block allocator and the metadata cache. It never takes data
//! blocks and never changes the inode's size.
//!
//! Pointers have 32 bits: nothing of such a file may lie at or above block 2³². There is no unwritten
//! state: a pointer is 0 (a hole) or data.
//!
//! # Locks
//! The caller holds the inode's `map`, exclusively for changes.
//!
//! # References
//! kernel documentation, "Direct/Indirect Block Addressing".

use crate::alloc::{Allocator, Claim, Run};
use crate::inode::MapState;
use crate::journal::Handle;
use crate::journal::buffer::{BlockKind, BufferRef};
use crate::map::extents::Progress;
use crate::map::free_inode_blocks;
use crate::{Error, ErrorKind, Result};
use blockwright_ondisk::ext4::{BlockNo, FileBlock, Geometry, Ino, RoCompat};
use smallvec::SmallVec;

/// Pointers in the inode that name data.
const DIRECT: u64 = 12;
/// First block number that does not fit a pointer.
pub(crate) const LIMIT: BlockNo = BlockNo(1 << 32);
/// Credits for freeing one run: its bitmaps and descriptors, the pointer block, and the chain above if
/// that becomes empty.
const FREE_CREDITS: u32 = 28;

/// Indexes from the inode's pointers down to the data pointer.
type Offsets = SmallVec<[usize; 4]>;

/// Where a file block's pointer is; `None` past the largest file.
fn offsets(at: FileBlock, per_block: u64) -> Option<Offsets> {
    let mut at = at.0;
    if at < DIRECT {
        return Some(SmallVec::from_slice(&[at as usize]));
    }
    at -= DIRECT;
    let mut span = per_block;
    for depth in 1..=3usize {
        if at < span {
            let mut out = Offsets::new();
            out.push(DIRECT as usize + depth - 1);
            let mut unit = span;
            let mut rest = at;
            for _ in 0..depth {
                unit /= per_block;
                out.push((rest / unit) as usize);
                rest %= unit;
            }
            return Some(out);
        }
        at -= span;
        span = span.checked_mul(per_block)?;
    }
    None
}

/// First file block that cannot be addressed.
pub(crate) fn blocks_max(per_block: u64) -> u64 {
    DIRECT + per_block + per_block * per_block + per_block * per_block * per_block
}

fn pointer(bytes: &[u8], index: usize) -> BlockNo {
    let raw = bytes.get(index * 4..index * 4 + 4);
    BlockNo(raw.map_or(0, |b| {
        u64::from(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }))
}

fn set_pointer(bytes: &mut [u8], index: usize, to: BlockNo) {
    if let (Some(b), Ok(to)) = (bytes.get_mut(index * 4..index * 4 + 4), u32::try_from(to.0)) {
        b.copy_from_slice(&to.to_le_bytes());
    }
}

/// What is at a file block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pointed {
    /// Nothing, for this many blocks at least.
    Hole(u64),
    /// Data from this block on, for this many.
    Data(BlockNo, u64),
}

/// A block-mapped inode. The pointers are passed along: they live in the inode's `MapState`.
pub(crate) struct Indirect<'a> {
    alloc: &'a Allocator,
    ino: Ino,
    per_block: u64,
}

impl<'a> Indirect<'a> {
    pub(crate) fn new(alloc: &'a Allocator, ino: Ino) -> Self {
        Indirect {
            alloc,
            ino,
            per_block: u64::from(alloc.volume.geometry().block_size / 4),
        }
    }

    fn offsets(&self, at: FileBlock) -> Result<Offsets> {
        offsets(at, self.per_block).ok_or_else(|| Error::new(ErrorKind::FileTooLarge, "map block"))
    }

    fn read(&self, block: BlockNo) -> Result<BufferRef> {
        self.alloc
            .groups
            .check_block_range("read indirect block", Some(self.ino), block, 1)?;
        self.alloc
            .volume
            .cache
            .read(block, BlockKind::Indirect, |_| Ok(()))
    }

    fn with<R>(root: &[u8; 60], buffer: Option<&BufferRef>, f: impl FnOnce(&[u8]) -> R) -> R {
        match buffer {
            None => f(root),
            Some(b) => f(&b.data()),
        }
    }

    fn edit<R>(
        h: &Handle<'_>,
        root: &mut [u8; 60],
        buffer: Option<&BufferRef>,
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R> {
        match buffer {
            None => Ok(f(root)),
            Some(b) => h.modify(b, f),
        }
    }

    /// Pointers in the node that holds data pointers, from `index` on.
    fn room(&self, levels: usize, index: usize) -> u64 {
        if levels == 1 {
            DIRECT - index as u64
        } else {
            self.per_block - index as u64
        }
    }

    /// What is at `at`, coalescing at most `max` blocks.
    pub(crate) fn lookup(&self, root: &[u8; 60], at: FileBlock, max: u64) -> Result<Pointed> {
        let Some(path) = offsets(at, self.per_block) else {
            return Ok(Pointed::Hole(u64::MAX >> 16));
        };
        let mut buffer: Option<BufferRef> = None;
        for (level, &index) in path.iter().enumerate() {
            let below = path.len() - 1 - level;
            let found = Self::with(root, buffer.as_ref(), |b| pointer(b, index));
            if below == 0 {
                let room = self.room(path.len(), index).min(max.max(1)) as usize;
                let run = Self::with(root, buffer.as_ref(), |b| {
                    let expect = |i: usize| {
                        if found.0 == 0 {
                            BlockNo(0)
                        } else {
                            BlockNo(found.0 + i as u64)
                        }
                    };
                    (1..room)
                        .find(|i| pointer(b, index + i) != expect(*i))
                        .unwrap_or(room)
                }) as u64;
                if found.0 == 0 {
                    return Ok(Pointed::Hole(run));
                }
                self.alloc
                    .groups
                    .check_block_range("map block", Some(self.ino), found, run)?;
                return Ok(Pointed::Data(found, run));
            }
            if found.0 == 0 {
                // The whole subtree is a hole; how much of it lies ahead?
                let (span, mut inside) = (self.per_block.pow(below as u32), 0);
                for i in &path[level + 1..] {
                    inside = inside * self.per_block + *i as u64;
                }
                return Ok(Pointed::Hole(span - inside));
            }
            buffer = Some(self.read(found)?);
        }
        Err(Error::corrupt("map block", "no pointer"))
    }

    /// Credits to insert a run of `len` blocks: pointer blocks on the way (with bitmap and descriptor),
    /// plus those in between.
    pub(crate) fn credits(&self, len: u32) -> u32 {
        let nodes = u64::from(len) / self.per_block + 5;
        u32::try_from(nodes * 3).unwrap_or(u32::MAX)
    }

    /// Points file blocks from `at` on to as much of the run's start as one pointer block takes; returns
    /// how many. Allocates the pointer blocks that are missing on the way.
    pub(crate) fn insert_some(
        &self,
        h: &Handle<'_>,
        map: &mut MapState,
        at: FileBlock,
        run: Run,
    ) -> Result<u32> {
        const OP: &str = "insert block pointers";
        if run.end() > LIMIT || run.len == 0 {
            return Err(Error::new(ErrorKind::Overflow, OP).detail("a block beyond 2^32"));
        }
        let path = self.offsets(at)?;
        let mut buffer: Option<BufferRef> = None;
        for &index in &path[..path.len() - 1] {
            let found = Self::with(&map.root, buffer.as_ref(), |b| pointer(b, index));
            let child = if found.0 == 0 {
                let limit = Some(LIMIT);
                // Behind the data: a sequential read meets it just before the data it maps next.
                let goal = run.end();
                let block = self
                    .alloc
                    .alloc_meta_from(h, goal, self.ino, Claim::NoFail, limit)?;
                map.blocks = map.blocks.saturating_add(self.alloc.volume.block_units());
                let (child, ()) = h.create(block, BlockKind::Indirect, |_| ())?;
                Self::edit(h, &mut map.root, buffer.as_ref(), |b| {
                    set_pointer(b, index, block)
                })?;
                child
            } else {
                self.read(found)?
            };
            buffer = Some(child);
        }
        let index = path[path.len() - 1];
        let n = self.room(path.len(), index).min(u64::from(run.len)) as usize;
        let clash = Self::edit(h, &mut map.root, buffer.as_ref(), |b| {
            let clash = (0..n).find(|i| pointer(b, index + i).0 != 0);
            if clash.is_none() {
                (0..n).for_each(|i| set_pointer(b, index + i, BlockNo(run.start.0 + i as u64)));
            }
            clash
        })?;
        match clash {
            None => Ok(n as u32),
            Some(i) => {
                let detail = format!("file block {} has a block already", at.0 + i as u64);
                Err(self
                    .alloc
                    .volume
                    .corrupt(OP, Some(self.ino), Some(run.start), detail))
            }
        }
    }

    /// Frees blocks at the right end of `from..to`, as far as one pointer block goes.
    pub(crate) fn remove_step(
        &self,
        h: &Handle<'_>,
        map: &mut MapState,
        from: FileBlock,
        to: FileBlock,
        journaled: bool,
    ) -> Result<Progress> {
        let to = FileBlock(to.0.min(blocks_max(self.per_block)));
        if from >= to {
            return Ok(Progress::Done);
        }
        let last = FileBlock(to.0 - 1);
        let path = self.offsets(last)?;
        // Nodes on the way: the one that holds the pointer, and at which index.
        let mut chain: SmallVec<[(Option<BufferRef>, usize); 4]> = SmallVec::new();
        let mut buffer: Option<BufferRef> = None;
        for (level, &index) in path.iter().enumerate() {
            chain.push((buffer.clone(), index));
            let below = path.len() - 1 - level;
            if below == 0 {
                break;
            }
            let found = Self::with(&map.root, buffer.as_ref(), |b| pointer(b, index));
            if found.0 == 0 {
                let inside = path[level + 1..]
                    .iter()
                    .fold(0, |n, i| n * self.per_block + *i as u64);
                let start = last.0 - inside;
                return Ok(if start <= from.0 {
                    Progress::Done
                } else {
                    Progress::More(FileBlock(start))
                });
            }
            buffer = Some(self.read(found)?);
        }
        let Some((leaf, index)) = chain.last().cloned() else {
            return Ok(Progress::Done);
        };
        let low = index - (last.0 - from.0).min(index as u64) as usize;
        let mut end = index + 1;
        while end > low {
            // The last run of consecutive pointers in low..end.
            let run = Self::with(&map.root, leaf.as_ref(), |b| {
                let end = (low..end).rev().find(|i| pointer(b, *i).0 != 0)? + 1;
                let mut start = end - 1;
                while start > low
                    && pointer(b, start - 1).0 != 0
                    && pointer(b, start - 1).0 + 1 == pointer(b, start).0
                {
                    start -= 1;
                }
                Some((start, end, pointer(b, start)))
            });
            let Some((start, stop, block)) = run else {
                break;
            };
            if !h.has_credits(FREE_CREDITS) && !h.extend(FREE_CREDITS) {
                return Ok(Progress::NeedHandle);
            }
            let run = Run {
                start: block,
                len: (stop - start) as u32,
            };
            self.alloc.prepare_free(run)?;
            Self::edit(h, &mut map.root, leaf.as_ref(), |b| {
                (start..stop).for_each(|i| set_pointer(b, i, BlockNo(0)));
            })?;
            free_inode_blocks(self.alloc, h, self.ino, map, run, journaled)?;
            end = start;
        }
        if !h.has_credits(FREE_CREDITS) && !h.extend(FREE_CREDITS) {
            return Ok(Progress::NeedHandle);
        }
        self.prune(h, map, &chain)?;
        let start = last.0 - (index - low) as u64;
        Ok(if start <= from.0 {
            Progress::Done
        } else {
            Progress::More(FileBlock(start))
        })
    }

    /// Frees the pointer blocks of a chain that hold nothing any more, from the bottom up.
    fn prune(
        &self,
        h: &Handle<'_>,
        map: &mut MapState,
        chain: &[(Option<BufferRef>, usize)],
    ) -> Result<()> {
        for level in (1..chain.len()).rev() {
            let Some(buffer) = &chain[level].0 else { break };
            if buffer.data().iter().any(|b| *b != 0) {
                break;
            }
            let (parent, index) = &chain[level - 1];
            let run = Run {
                start: buffer.block(),
                len: 1,
            };
            self.alloc.prepare_free(run)?;
            Self::edit(h, &mut map.root, parent.as_ref(), |b| {
                set_pointer(b, *index, BlockNo(0))
            })?;
            free_inode_blocks(self.alloc, h, self.ino, map, run, true)?;
        }
        Ok(())
    }
}

/// How many pointer blocks a set of file blocks needs, when `touched(range)` tells whether any block
/// of the range is in the set: counted over those that `range` can make a difference to.
pub(crate) fn pointer_blocks(
    range: std::ops::Range<u64>,
    per_block: u64,
    touched: impl Fn(std::ops::Range<u64>) -> bool,
) -> u64 {
    let mut count = 0;
    let mut base = DIRECT;
    for depth in 1..=3u32 {
        let total = per_block.pow(depth);
        // Subtrees of each height within this tree.
        for height in 1..=depth {
            let span = per_block.pow(height);
            let (first, last) = (range.start.max(base), range.end.min(base + total));
            if first >= last {
                continue;
            }
            let (a, b) = ((first - base) / span, (last - 1 - base) / span);
            for i in a..=b {
                let start = base + i * span;
                count += u64::from(touched(start..start + span));
            }
        }
        base += total;
    }
    count
}

/// The largest size of a file in bytes: what its mapping can address, and its counter of blocks count.
pub(crate) fn file_bytes_max(geo: &Geometry, extents: bool) -> u64 {
    let bits = geo.block_bits;
    let huge = geo.features.has_ro_compat(RoCompat::HUGE_FILE);
    // Without huge_file the counter has 32 bits of sectors; with it, 48 bits of blocks.
    let counted = if huge {
        (1u64 << 48) - 1
    } else {
        u64::from(u32::MAX) >> (bits - 9)
    };
    let blocks = if extents {
        u64::from(u32::MAX).min(counted)
    } else {
        let per_block = u64::from(geo.block_size / 4);
        let pointers = 3 + 2 * per_block + per_block * per_block;
        let addressable = blocks_max(per_block);
        // Logical block numbers have 32 bits everywhere in the format.
        addressable
            .min(counted.saturating_sub(pointers))
            .min(u64::from(u32::MAX))
    };
    blocks
        .checked_shl(bits)
        .filter(|b| b >> bits == blocks)
        .unwrap_or(u64::MAX)
        .min(i64::MAX as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_cover_the_tree() {
        let p = 256;
        assert_eq!(offsets(FileBlock(11), p).unwrap().as_slice(), [11]);
        assert_eq!(offsets(FileBlock(12), p).unwrap().as_slice(), [12, 0]);
        assert_eq!(
            offsets(FileBlock(12 + 255), p).unwrap().as_slice(),
            [12, 255]
        );
        assert_eq!(
            offsets(FileBlock(12 + 256), p).unwrap().as_slice(),
            [13, 0, 0]
        );
        let last_double = 12 + 256 + 256 * 256 - 1;
        assert_eq!(
            offsets(FileBlock(last_double), p).unwrap().as_slice(),
            [13, 255, 255]
        );
        assert_eq!(
            offsets(FileBlock(last_double + 1), p).unwrap().as_slice(),
            [14, 0, 0, 0]
        );
        assert_eq!(
            offsets(FileBlock(blocks_max(p) - 1), p).unwrap().as_slice(),
            [14, 255, 255, 255]
        );
        assert!(offsets(FileBlock(blocks_max(p)), p).is_none());
    }

    #[test]
    fn pointer_blocks_are_counted_once() {
        let set = |range: std::ops::Range<u64>, members: std::ops::Range<u64>| {
            pointer_blocks(range, 4, |r| r.start < members.end && members.start < r.end)
        };
        assert_eq!(set(0..12, 0..12), 0);
        assert_eq!(set(0..16, 0..16), 1);
        // 12..16 single; 16..32 double (1 + 4).
        assert_eq!(set(0..32, 0..32), 6);
        // One block of the triple tree: three pointer blocks.
        assert_eq!(set(40..41, 40..41), 3);
        assert_eq!(set(40..41, 0..0), 0);
    }
}
