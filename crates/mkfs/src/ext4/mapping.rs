//! From runs of blocks to what an inode stores: an extent tree, or a block map.

use super::space::Space;
use crate::{MkfsError, Result};
use blockwright_ondisk::ext4::extent::{self, Extent, ExtentIndex};
use blockwright_ondisk::ext4::{BlockNo, FileBlock, Geometry, InodeSeed};

/// A run of a file's blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MapRun {
    pub logical: u64,
    pub physical: BlockNo,
    pub len: u64,
}

/// A metadata block with its contents.
pub(crate) type MetaBlock = (BlockNo, Vec<u8>);

/// An inode's mapping.
pub(crate) struct Mapping {
    pub root: [u8; 60],
    /// Tree or indirect blocks.
    pub meta: Vec<MetaBlock>,
}

fn too_big(what: &str) -> MkfsError {
    MkfsError::Tree {
        name: what.to_owned(),
        reason: "the file is larger than the format allows".into(),
    }
}

/// Merges neighbours and cuts at the longest extent there can be.
fn to_extents(runs: &[MapRun]) -> Vec<Extent> {
    let mut out: Vec<Extent> = Vec::with_capacity(runs.len());
    for run in runs {
        let (mut logical, mut physical, mut left) = (run.logical, run.physical.0, run.len);
        while left > 0 {
            if let Some(last) = out.last_mut()
                && last.end().0 == logical
                && last.physical.0 + u64::from(last.len) == physical
                && last.len < extent::MAX_WRITTEN_LEN
            {
                let add = left.min(u64::from(extent::MAX_WRITTEN_LEN - last.len));
                last.len += add as u32;
                (logical, physical, left) = (logical + add, physical + add, left - add);
                continue;
            }
            let len = left.min(u64::from(extent::MAX_WRITTEN_LEN));
            out.push(Extent {
                logical: FileBlock(logical),
                physical: BlockNo(physical),
                len: len as u32,
                unwritten: false,
            });
            (logical, physical, left) = (logical + len, physical + len, left - len);
        }
    }
    out
}

/// An extent tree over `runs` (ascending); its blocks are taken from `space`.
pub(crate) fn extents(
    runs: &[MapRun],
    geo: &Geometry,
    seed: InodeSeed,
    space: &mut Space,
) -> Result<Mapping> {
    let bad = || too_big("extent tree");
    if runs.last().is_some_and(|r| r.logical + r.len > 1 << 32) {
        return Err(bad());
    }
    let leaves = to_extents(runs);
    let mut root = [0u8; 60];
    let mut meta = Vec::new();
    let root_max = usize::from(extent::ROOT_ENTRIES);
    if leaves.len() <= root_max {
        extent::write_leaf(&mut root, &leaves).ok_or_else(bad)?;
        return Ok(Mapping { root, meta });
    }
    let per_block = usize::from(extent::max_entries(geo.block_len()));
    // Makes a block of the tree; the level above gets the entry that leads to it.
    let mut put = |logical: FileBlock, fill: &dyn Fn(&mut [u8]) -> Option<()>| {
        let block = space.take_one();
        let mut bytes = vec![0u8; geo.block_len()];
        fill(&mut bytes).ok_or_else(bad)?;
        extent::set_checksum(&mut bytes, geo, seed)?;
        meta.push((block, bytes));
        Ok::<_, MkfsError>(ExtentIndex {
            logical,
            child: block,
        })
    };
    let mut level: Vec<ExtentIndex> = leaves
        .chunks(per_block)
        .map(|c| put(c[0].logical, &|bytes| extent::write_leaf(bytes, c)))
        .collect::<Result<_>>()?;
    let mut depth = 1;
    while level.len() > root_max {
        level = level
            .chunks(per_block)
            .map(|c| put(c[0].logical, &|bytes| extent::write_inner(bytes, depth, c)))
            .collect::<Result<_>>()?;
        depth += 1;
    }
    extent::write_inner(&mut root, depth, &level).ok_or_else(bad)?;
    Ok(Mapping { root, meta })
}

/// A block map over `runs` (ascending): 12 direct blocks, then indirect ones of three levels.
pub(crate) fn block_map(runs: &[MapRun], geo: &Geometry, space: &mut Space) -> Result<Mapping> {
    let per = u64::from(geo.block_size / 4);
    let mut root = [0u8; 60];
    let mut tree = IndirectTree {
        per,
        bytes: geo.block_len(),
        space,
        meta: Vec::new(),
        open: [None; 3],
    };
    let slot = |root: &[u8; 60], i: usize| {
        u32::from_le_bytes([
            root[i * 4],
            root[i * 4 + 1],
            root[i * 4 + 2],
            root[i * 4 + 3],
        ])
    };
    for run in runs {
        for i in 0..run.len {
            let physical = u32::try_from(run.physical.0 + i).map_err(|_| {
                MkfsError::features("block-mapped files cannot use blocks past 2^32; use extent")
            })?;
            let mut logical = run.logical + i;
            if logical < 12 {
                root[logical as usize * 4..][..4].copy_from_slice(&physical.to_le_bytes());
                continue;
            }
            logical -= 12;
            let (levels, index) = if logical < per {
                (1, logical)
            } else if logical < per + per * per {
                (2, logical - per)
            } else if logical < per + per * per + per * per * per {
                (3, logical - per - per * per)
            } else {
                return Err(too_big("block map"));
            };
            let at = 11 + levels;
            let top = slot(&root, at);
            let top = tree.insert(top, levels, index, physical)?;
            root[at * 4..][..4].copy_from_slice(&top.to_le_bytes());
        }
    }
    Ok(Mapping {
        root,
        meta: tree.meta,
    })
}

struct IndirectTree<'a> {
    per: u64,
    bytes: usize,
    space: &'a mut Space,
    meta: Vec<MetaBlock>,
    /// The block being filled at each level (0 = holds data blocks): its number and place in
    /// `meta`. Blocks come in ascending order, so nothing older is ever needed again.
    open: [Option<(u32, usize)>; 3],
}

impl IndirectTree<'_> {
    /// Puts `physical` at `index` of the tree of `levels` levels rooted at `block` (0: none yet).
    fn insert(&mut self, block: u32, levels: usize, index: u64, physical: u32) -> Result<u32> {
        let (number, at) = match self.open[levels - 1] {
            Some((number, at)) if number == block && block != 0 => (number, at),
            _ => {
                let number = u32::try_from(self.space.take_one().0).map_err(|_| {
                    MkfsError::features(
                        "block-mapped files cannot use blocks past 2^32; use extent",
                    )
                })?;
                self.meta
                    .push((BlockNo(u64::from(number)), vec![0; self.bytes]));
                (number, self.meta.len() - 1)
            }
        };
        self.open[levels - 1] = Some((number, at));
        if levels == 1 {
            self.meta[at].1[index as usize * 4..][..4].copy_from_slice(&physical.to_le_bytes());
            return Ok(number);
        }
        let below = self.per.pow(levels as u32 - 1);
        let slot = (index / below) as usize * 4;
        let bytes = &self.meta[at].1[slot..slot + 4];
        let child = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let child = self.insert(child, levels - 1, index % below, physical)?;
        self.meta[at].1[slot..slot + 4].copy_from_slice(&child.to_le_bytes());
        Ok(number)
    }
}
