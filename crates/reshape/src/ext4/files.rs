//! The block map of a file: its runs, and the blocks that list them (extent tree nodes, indirect blocks).
//!
//! Every structure is validated and its checksum verified. A map with a loop ends, because the depth is bounded and each level's
//! range must lie in that of the level above.

use std::ops::Range;

use blockwright_ondisk::ext4::extent::{self, Extent, ExtentNode, NodePlace, NodeRules};
use blockwright_ondisk::ext4::{BlockNo, Geometry, Ino, Inode, InodeFlags};

use super::volume::Volume;
use crate::error::{ReshapeError, Result};

const WHAT: &str = "map of a file";
/// Direct blocks of a block map.
pub(crate) const DIRECT: usize = 12;

/// Blocks of a file that are neighbours on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FileRun {
    /// First block in the file.
    pub file: u64,
    /// First block on the device.
    pub start: u64,
    /// Blocks.
    pub len: u64,
}

/// Where a file is.
#[derive(Default, Debug)]
pub(crate) struct FileMap {
    /// In ascending order of the file's blocks.
    pub runs: Vec<FileRun>,
    /// Nodes of the extent tree, or indirect blocks.
    pub nodes: Vec<u64>,
}

impl FileMap {
    fn push(&mut self, file: u64, start: u64, len: u64) {
        match self.runs.last_mut() {
            Some(last) if last.file + last.len == file && last.start + last.len == start => {
                last.len += len;
            }
            _ => self.runs.push(FileRun { file, start, len }),
        }
    }

    /// Sectors of all clusters that the file has blocks in.
    pub fn sectors(&self, geo: &Geometry) -> u64 {
        let shift = geo.cluster_bits;
        let mut clusters: Vec<Range<u64>> = self
            .runs
            .iter()
            .map(|run| run.start..run.start + run.len)
            .chain(self.nodes.iter().map(|node| *node..node + 1))
            .map(|run| run.start >> shift..((run.end - 1) >> shift) + 1)
            .collect();
        clusters.sort_unstable_by_key(|run| run.start);
        let (mut count, mut end) = (0, 0);
        for run in clusters {
            count += run.end.saturating_sub(run.start.max(end));
            end = end.max(run.end);
        }
        count << shift << (geo.block_bits - 9)
    }
}

impl Volume {
    /// Gives back the blocks of a file, with those of its map.
    pub fn free_map(&mut self, map: &FileMap) -> Result<()> {
        for run in &map.runs {
            self.mark_blocks(run.start, run.len, false)?;
        }
        for node in &map.nodes {
            self.mark_blocks(*node, 1, false)?;
        }
        Ok(())
    }

    /// Where a file is. Inodes without blocks have an empty map.
    pub fn runs(&self, ino: Ino, inode: &Inode) -> Result<FileMap> {
        let mut map = FileMap::default();
        if !inode.maps_blocks(&self.sb.geo) {
            return Ok(map);
        }
        if inode.flags.contains(InodeFlags::EXTENTS) {
            let (list, nodes) = self.extents(ino, inode)?;
            map.nodes = nodes;
            for extent in list {
                map.push(extent.logical.0, extent.physical.0, u64::from(extent.len));
            }
        } else {
            self.block_map(inode, &mut map)?;
        }
        Ok(map)
    }

    /// The extents of a file that has them, and the nodes of its tree.
    pub fn extents(&self, ino: Ino, inode: &Inode) -> Result<(Vec<Extent>, Vec<u64>)> {
        let (mut list, mut nodes) = (Vec::new(), Vec::new());
        let root = (NodePlace::Inode, NodeRules::ROOT);
        self.extents_below(ino, inode, &inode.block, root, &mut list, &mut nodes)?;
        Ok((list, nodes))
    }

    fn extents_below(
        &self,
        ino: Ino,
        inode: &Inode,
        bytes: &[u8],
        (place, rules): (NodePlace, NodeRules),
        list: &mut Vec<Extent>,
        nodes: &mut Vec<u64>,
    ) -> Result<()> {
        let geo = &self.sb.geo;
        let node = ExtentNode::parse(bytes, place, rules, geo)?;
        list.extend(node.extents());
        for (position, index) in node.indexes().enumerate() {
            let Some(rules) = node.child_rules(position, rules) else {
                continue;
            };
            let child = self.disk.read(index.child.0, WHAT)?;
            let seed = geo.inode_seed(ino, inode.generation);
            extent::verify_checksum(&child, index.child, geo, seed)?;
            nodes.push(index.child.0);
            let place = NodePlace::Block(index.child);
            self.extents_below(ino, inode, &child, (place, rules), list, nodes)?;
        }
        Ok(())
    }

    fn block_map(&self, inode: &Inode, map: &mut FileMap) -> Result<()> {
        let per = u64::from(self.sb.geo.block_size / 4);
        for (slot, block) in words(&inode.block[..DIRECT * 4]).enumerate() {
            self.mapped(u64::from(block), slot as u64, 0, map)?;
        }
        let mut at = DIRECT as u64;
        for (level, block) in words(&inode.block[DIRECT * 4..]).enumerate() {
            let level = level as u32 + 1;
            self.mapped(u64::from(block), at, level, map)?;
            at += per.pow(level);
        }
        Ok(())
    }

    fn mapped(&self, block: u64, file: u64, level: u32, map: &mut FileMap) -> Result<()> {
        if block == 0 {
            return Ok(());
        }
        if !self.sb.geo.contains_run(BlockNo(block), 1) {
            return Err(ReshapeError::Damaged(format!(
                "a file has block {block}, outside of the volume"
            )));
        }
        if level == 0 {
            map.push(file, block, 1);
            return Ok(());
        }
        map.nodes.push(block);
        let bytes = self.disk.read(block, WHAT)?;
        let per = u64::from(self.sb.geo.block_size / 4);
        for (slot, child) in words(&bytes).enumerate() {
            let file = file + slot as u64 * per.pow(level - 1);
            self.mapped(u64::from(child), file, level - 1, map)?;
        }
        Ok(())
    }
}

/// The 32-bit words of a list of blocks.
pub(crate) fn words(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    bytes
        .chunks_exact(4)
        .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}
