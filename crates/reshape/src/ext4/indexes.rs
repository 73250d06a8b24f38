//! Indexes of directories: where their blocks are, and how a directory loses its index.
//!
//! # Crash order
//! A directory without its index is the same directory: its leaves stay where they are, and the index's blocks become leaves. One transaction of the
//! journal has these blocks and the inode's flag. The feature goes after the last index.
//!
//! Reference: kernel documentation, "ext4 Data Structures: hash tree directories".

use std::collections::BTreeMap;

use blockwright_ondisk::ext4::dir::{self, DirFormat};
use blockwright_ondisk::ext4::htree::{
    DxNode, DxPlace, DxRootInfo, MAX_INDIRECT_LEVELS, MAX_INDIRECT_LEVELS_LARGE,
};
use blockwright_ondisk::ext4::{Compat, FileKind, Incompat, Ino, Inode, InodeFlags};

use super::commit::Order;
use super::files::FileMap;
use super::volume::Volume;
use crate::error::{ReshapeError, Result};

const WHAT: &str = "directory";
/// Blocks of a transaction beside those of an index: the inode, the superblock, descriptors.
const FIXED_WEIGHT: usize = 12;

/// Whether an inode is a directory with an index.
pub(super) fn is_indexed(inode: &Inode) -> bool {
    inode.kind() == Some(FileKind::Directory)
        && inode.flags.contains(InodeFlags::INDEX)
        && !inode.flags.contains(InodeFlags::INLINE_DATA)
}

impl Volume {
    /// The blocks of a directory's index on the device, the root first.
    ///
    /// # Errors
    /// Damage of the index.
    pub fn index_blocks(
        &self,
        ino: Ino,
        map: &FileMap,
        format: &DirFormat,
    ) -> Result<BTreeMap<u64, DxPlace>> {
        let levels_max = match self.sb.features().has_incompat(Incompat::LARGE_DIR) {
            true => MAX_INDIRECT_LEVELS_LARGE,
            false => MAX_INDIRECT_LEVELS,
        };
        let place_of = |file: u64| {
            let run = map
                .runs
                .iter()
                .find(|run| (run.file..run.file + run.len).contains(&file));
            run.map(|run| run.start + (file - run.file)).ok_or_else(|| {
                ReshapeError::Damaged(format!(
                    "the index of directory {ino} names block {file}, which it does not have"
                ))
            })
        };
        let mut found = BTreeMap::new();
        let root = place_of(0)?;
        let bytes = self.disk.read(root, WHAT)?;
        let info = DxRootInfo::parse(&bytes, format, levels_max)?;
        found.insert(root, DxPlace::Root);
        let mut level: Vec<u64> = children(&bytes, DxPlace::Root, format)?;
        for _ in 0..info.indirect_levels {
            let mut below = Vec::new();
            for file in level {
                let block = place_of(file)?;
                if found.insert(block, DxPlace::Node).is_some() {
                    return Err(ReshapeError::Damaged(format!(
                        "the index of directory {ino} names block {file} twice"
                    )));
                }
                let bytes = self.disk.read(block, WHAT)?;
                below.extend(children(&bytes, DxPlace::Node, format)?);
            }
            level = below;
        }
        Ok(found)
    }

    /// Takes the index of every directory away, and the feature.
    ///
    /// # Errors
    /// Damage of an index; `NoSpace` for a journal that has room for the largest index.
    pub fn remove_indexes(&mut self) -> Result<()> {
        let format = DirFormat::new(&self.sb.geo);
        let mut dirs = Vec::new();
        let mut most = 0;
        self.scan_inodes(&mut |ino, inode| {
            if is_indexed(inode) {
                let blocks = self.index_blocks(ino, &self.runs(ino, inode)?, &format)?;
                most = most.max(blocks.len());
                dirs.push((ino, blocks));
            }
            Ok(())
        })?;
        let mut log = self.log_for(most + FIXED_WEIGHT)?;
        for (ino, blocks) in dirs {
            if !log.fits(self.disk.staged().len() + blocks.len() + FIXED_WEIGHT) {
                self.commit_staged(&mut log, Order::Log)?;
            }
            let mut inode = self.inode(ino)?;
            let seed = self.sb.geo.inode_seed(ino, inode.generation);
            for (block, place) in blocks {
                let old = self.disk.read(block, WHAT)?;
                let mut bytes = vec![0; old.len()];
                let too_short = || ReshapeError::Damaged("a block is too short".into());
                dir::write_empty_leaf(&mut bytes, &format).ok_or_else(too_short)?;
                if place == DxPlace::Root {
                    let (dot, dotdot) = dots(&old);
                    let kind = Some(FileKind::Directory);
                    let rest = format.leaf_space() - dir::MIN_REC_LEN;
                    dir::write_entry(&mut bytes, 0, dir::MIN_REC_LEN, dot, kind, b".", &format)
                        .and_then(|()| {
                            let at = dir::MIN_REC_LEN;
                            dir::write_entry(&mut bytes, at, rest, dotdot, kind, b"..", &format)
                        })
                        .ok_or_else(too_short)?;
                }
                dir::set_leaf_checksum(&mut bytes, &format, seed)?;
                self.disk.stage(block, bytes);
            }
            inode.flags.remove(InodeFlags::INDEX);
            self.stage_inode(ino, Some(&inode))?;
        }
        let mut features = self.sb.raw.features();
        if !self.disk.staged().is_empty() {
            self.commit_staged(&mut log, Order::Log)?;
        }
        features.compat.remove(Compat::DIR_INDEX);
        self.sb.raw.set_features(features);
        self.follow()?;
        self.commit_super()
    }
}

/// The blocks of the directory that an index block names.
fn children(bytes: &[u8], place: DxPlace, format: &DirFormat) -> Result<Vec<u64>> {
    let node = DxNode::parse(bytes, place, format)?;
    Ok(node.iter().map(|entry| u64::from(entry.block)).collect())
}

/// The inodes that `.` and `..` in the root of an index name.
fn dots(root: &[u8]) -> (Ino, Ino) {
    let word = |at: usize| {
        Ino(u32::from_le_bytes([
            root[at],
            root[at + 1],
            root[at + 2],
            root[at + 3],
        ]))
    };
    (word(0), word(dir::MIN_REC_LEN))
}
