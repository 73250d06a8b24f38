//! Where each group's bitmaps and inode table go, and the other blocks that are taken before any
//! file's.
//!
//! With flex_bg the bitmaps and tables of a whole flexible group are packed at its start; without,
//! each group holds its own.

use super::shape::Shape;
use super::space::Space;
use crate::{MkfsError, Result};
use blockwright_ondisk::ext4::{BlockNo, GroupNo, Incompat};

/// Where a group's metadata is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GroupPlace {
    pub block_bitmap: BlockNo,
    pub inode_bitmap: BlockNo,
    pub inode_table: BlockNo,
}

/// All fixed metadata.
pub(crate) struct Layout {
    pub places: Vec<GroupPlace>,
    /// Everything that is taken, in clusters.
    pub space: Space,
    /// Clusters taken by fixed metadata.
    pub overhead_clusters: u64,
}

impl Layout {
    pub fn new(shape: &Shape) -> Result<Self> {
        let geo = &shape.geo;
        // Metadata is packed block by block, also where files get whole clusters.
        let mut fixed = Space::new(geo.blocks_count, 0);
        fixed.mark(BlockNo(0), geo.first_data_block.0);
        for group in geo.groups() {
            fixed.mark(
                geo.group_first_block(group),
                u64::from(geo.base_meta_blocks(group)),
            );
        }
        let mut places = vec![GroupPlace::default(); geo.groups_count as usize];
        let flex = geo.features.has_incompat(Incompat::FLEX_BG);
        let step = if flex { geo.groups_per_flex } else { 1 };
        let table = u64::from(geo.inode_table_blocks);
        let mut first = 0;
        while first < geo.groups_count {
            let last = first.saturating_add(step).min(geo.groups_count);
            let begin = GroupNo(first);
            let from =
                BlockNo(geo.group_first_block(begin).0 + u64::from(geo.base_meta_blocks(begin)));
            let mut take = |at: BlockNo, blocks: u64| {
                let found = fixed.take_contiguous(at, blocks).filter(|start| {
                    flex || geo
                        .split_block(BlockNo(start.0 + blocks - 1))
                        .is_some_and(|(g, _)| g.0 == first)
                });
                found.ok_or(MkfsError::TooSmall {
                    blocks: geo.blocks_count,
                    what: "its own inode tables",
                })
            };
            let mut at = from;
            for place in &mut places[first as usize..last as usize] {
                place.block_bitmap = take(at, 1)?;
                at = place.block_bitmap;
            }
            for place in &mut places[first as usize..last as usize] {
                place.inode_bitmap = take(at, 1)?;
                at = place.inode_bitmap;
            }
            for place in &mut places[first as usize..last as usize] {
                place.inode_table = take(at, table)?;
                at = place.inode_table;
            }
            first = last;
        }
        let mut space = Space::new(geo.blocks_count, geo.cluster_bits);
        for (start, end) in fixed.taken_in(0, geo.blocks_count) {
            space.mark(BlockNo(start), end - start);
        }
        let clusters = geo.blocks_count.div_ceil(u64::from(geo.cluster_ratio));
        let free = space.free_blocks() >> geo.cluster_bits;
        Ok(Layout {
            places,
            space,
            overhead_clusters: clusters - free,
        })
    }
}
