//! An earlier build of a volume. What both builds have keeps its inode number and its blocks, so that consecutive images share most of their bytes.
//!
//! The base is advice: all contents come from the tree, and what has no place where the base had it lies elsewhere.

use super::mapping::MapRun;
use crate::tree::NodeId;
use blockwright_ondisk::ext4::BlockNo;
use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;

/// Numbers of inodes that a base decides are followed up to this multiple of what the tree needs. The base is not trusted, and each inode below the
/// last one takes space: so neither how many inodes it has nor which numbers its files have makes a small volume large.
pub(super) const INODES_TIMES_MAX: u32 = 4;

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

/// Inode numbers for the nodes `open`: the base's where it has one, and for the others the lowest free ones of `range`, in this order. What the base has and
/// the tree has not leaves gaps; without a base there are none. `spare` numbers stay free behind the last one. `None` if `range` is too short.
pub(super) fn numbers(
    base: Option<&Base>,
    open: &[NodeId],
    range: RangeInclusive<u32>,
    spare: usize,
) -> Option<Vec<u32>> {
    let (first, last) = range.into_inner();
    let count = u32::try_from(open.len()).ok()?;
    let dense = first..first.checked_add(count)?;
    if dense.end - 1 > last {
        return None;
    }
    let most = first.saturating_add(count.saturating_mul(INODES_TIMES_MAX));
    let room = last.saturating_sub(u32::try_from(spare).ok()?);
    let kept = first..dense.end.max(most.min(room.saturating_add(1)));
    let mut taken = HashSet::new();
    let mut keep = |id| {
        let ino = base?.files.get(id)?.ino;
        (kept.contains(&ino) && taken.insert(ino)).then_some(ino)
    };
    let before: Vec<Option<u32>> = open.iter().map(&mut keep).collect();
    let mut rest = dense.filter(|ino| !taken.contains(ino));
    before
        .into_iter()
        .map(|ino| ino.or_else(|| rest.next()))
        .collect()
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
    fn numbers_are_kept_within_bounds() {
        let open: Vec<NodeId> = (0..3).map(NodeId).collect();
        let found = |inos: [u32; 3], last, spare| {
            let of = |(id, ino): (&NodeId, u32)| {
                let extents = Vec::new();
                (*id, BaseFile { ino, extents })
            };
            let base = Base {
                files: open.iter().zip(inos).map(of).collect(),
                ..Base::default()
            };
            numbers(Some(&base), &open, 12..=last, spare)
        };
        assert_eq!(numbers(None, &open, 12..=14, 0), Some(vec![12, 13, 14]));
        assert_eq!(numbers(None, &open, 12..=13, 0), None);
        // Numbers behind the dense ones leave gaps.
        assert_eq!(found([14, 20, 0], 100, 0), Some(vec![14, 20, 12]));
        // A number that two files claim, reserved ones, and those behind four times as many as there are.
        assert_eq!(found([13, 13, 11], 100, 0), Some(vec![13, 12, 14]));
        assert_eq!(found([23, 24, u32::MAX], 100, 0), Some(vec![23, 12, 13]));
        // Spare numbers stay free.
        assert_eq!(found([20, 19, 18], 20, 1), Some(vec![12, 19, 18]));
        assert_eq!(found([20, 19, 18], 20, 20), Some(vec![12, 13, 14]));
        // No number is behind the last one that there is.
        let end = u32::MAX - 2..=u32::MAX;
        assert_eq!(numbers(None, &open, end, 0), None);
    }

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
