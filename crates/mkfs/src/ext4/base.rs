//! An earlier build of a volume. What both builds have keeps its inode number and its blocks, so that consecutive images share most of their bytes.
//!
//! The base is advice: all contents come from the tree, and what has no place where the base had it lies elsewhere.

use super::mapping::MapRun;
use crate::tree::NodeId;
use blockwright_ondisk::ext4::BlockNo;
use std::collections::HashMap;

/// Where a file was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BaseFile {
    /// Its inode number.
    pub ino: u32,
    /// Its blocks: the first one in the file, the first one on the volume, and how many. Ascending in the file.
    pub extents: Vec<(u64, u64, u64)>,
}

/// What is taken over from an earlier build.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Base {
    /// Bytes per block.
    pub block_bytes: u32,
    /// Number of inodes.
    pub inodes: u32,
    /// What checksums of metadata start from; `None` for a volume without them.
    pub checksum_seed: Option<u32>,
    /// Seed of the directory hashes.
    pub hash_seed: [u8; 16],
    /// Files and directories of the tree that the earlier build has as well.
    pub files: HashMap<NodeId, BaseFile>,
}

/// The blocks of a file for these ranges of file blocks, if it has all of them.
pub(super) fn runs(file: &BaseFile, ranges: &[(u64, u64)]) -> Option<Vec<MapRun>> {
    let mut out: Vec<MapRun> = Vec::new();
    let mut extents = file.extents.iter().copied().peekable();
    for &(start, end) in ranges {
        let mut at = start;
        while at < end {
            let &(logical, physical, len) = extents.peek()?;
            let until = logical.checked_add(len)?;
            if until <= at {
                extents.next();
                continue;
            }
            if logical > at {
                return None;
            }
            let len = until.min(end) - at;
            let physical = physical.checked_add(at - logical)?;
            physical.checked_add(len)?;
            match out.last_mut() {
                Some(last)
                    if last.logical + last.len == at && last.physical.0 + last.len == physical =>
                {
                    last.len += len;
                }
                _ => out.push(MapRun {
                    logical: at,
                    physical: BlockNo(physical),
                    len,
                }),
            }
            at += len;
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_blocks_or_none() {
        let file = BaseFile {
            ino: 12,
            extents: vec![(0, 100, 4), (4, 104, 2), (8, 50, 3)],
        };
        let found = |ranges: &[(u64, u64)]| {
            let runs = runs(&file, ranges)?;
            Some(
                runs.iter()
                    .map(|r| (r.logical, r.physical.0, r.len))
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(found(&[(0, 6)]), Some(vec![(0, 100, 6)]));
        assert_eq!(
            found(&[(1, 5), (9, 11)]),
            Some(vec![(1, 101, 4), (9, 51, 2)])
        );
        assert_eq!(found(&[]), Some(vec![]));
        // A hole, and more than there is.
        assert_eq!(found(&[(5, 7)]), None);
        assert_eq!(found(&[(8, 12)]), None);
        let wild = BaseFile {
            ino: 1,
            extents: vec![(u64::MAX, 1, 5), (0, u64::MAX, 2)],
        };
        assert_eq!(runs(&wild, &[(0, 2)]), None);
    }
}
