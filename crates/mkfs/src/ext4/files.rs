//! Small decisions about files: which blocks they need, what fits into an inode.

use super::mapping::MapRun;
use super::space::Space;
use super::xattrs::Stored;
use crate::flags::{Flags, Kept};
use crate::tree::{Node, VerityMetadata};
use crate::{MkfsError, Result};
use blockwright_ondisk::ext4::dir_layout::Entry;
use blockwright_ondisk::ext4::types::LINK_MAX;
use blockwright_ondisk::ext4::{Features, FileKind, Geometry, Incompat, Ino, RoCompat};

/// The inode flags and projects that such volumes keep: all that their users can set, except
/// case-insensitivity.
pub(crate) fn kept_flags(features: &Features) -> Kept {
    let files = Flags::SECURE_DELETION
        | Flags::UNDELETABLE
        | Flags::COMPRESSED
        | Flags::SYNC
        | Flags::IMMUTABLE
        | Flags::APPEND
        | Flags::NODUMP
        | Flags::NOATIME
        | Flags::JOURNAL_DATA
        | Flags::NOTAIL;
    let projects = features.has_ro_compat(RoCompat::PROJECT);
    let mut directories = files | Flags::DIRSYNC | Flags::TOPDIR;
    directories.set(Flags::PROJECT_INHERIT, projects);
    Kept {
        files,
        directories,
        projects,
    }
}

/// Refuses metadata of fs-verity that the volume cannot have.
///
/// # Errors
/// What is missing. The length of the descriptor ends the last block, so blocks are those of the metadata.
pub(crate) fn check_verity(verity: &VerityMetadata, geo: &Geometry) -> Result<()> {
    let refuse = |reason: &str| {
        Err(MkfsError::Tree {
            name: String::new(),
            reason: reason.to_owned(),
        })
    };
    if !geo.features.has_ro_compat(RoCompat::VERITY) {
        return refuse("fs-verity needs -O verity");
    }
    if !geo.features.has_incompat(Incompat::EXTENT) {
        return refuse("fs-verity needs -O extent");
    }
    if geo.block_size != 4096 || !verity.bytes.is_multiple_of(4096) {
        return refuse("fs-verity needs blocks of 4096 bytes (-b 4096)");
    }
    Ok(())
}

/// Adds lost+found where it belongs in name order.
pub(crate) fn insert_lost_found(entries: &mut Vec<Entry<'_>>) {
    let name = b"lost+found";
    let at = entries.partition_point(|e| e.name < &name[..]);
    let ino = Ino::FIRST_NON_RESERVED;
    entries.insert(
        at,
        Entry {
            name,
            ino,
            kind: FileKind::Directory,
            hash: None,
        },
    );
}

/// Bytes of data an inode can hold: what `i_block` has, and what the attribute area has left.
pub(crate) fn inline_bytes_max(body_room: usize, body: &[Stored]) -> u64 {
    let used: usize = body.iter().map(super::xattrs::entry_bytes).sum();
    // Magic, end mark, and the entry called "data".
    let left = body_room.saturating_sub(used + 8);
    match left.checked_sub(20) {
        Some(room) => 60 + (room & !3) as u64,
        None => 0,
    }
}

/// Takes blocks for ranges of file blocks. With clusters, ranges are rounded to whole ones.
pub(crate) fn take_ranges(
    space: &mut Space,
    ratio: u32,
    ranges: &[(u64, u64)],
) -> (Vec<MapRun>, u64) {
    let ratio = u64::from(ratio);
    let mut runs: Vec<MapRun> = Vec::with_capacity(ranges.len());
    let mut taken = 0;
    let mut done = 0;
    for (start, end) in ranges {
        let mut at = (start / ratio * ratio).max(done);
        let end = end.next_multiple_of(ratio);
        while at < end {
            let run = space.take_run(end - at);
            runs.push(MapRun {
                logical: at,
                physical: run.start,
                len: run.len,
            });
            taken += run.len;
            at += run.len;
        }
        done = done.max(end);
    }
    (runs, taken)
}

/// Drops what lies at or past file block `end`: rounding to clusters may map past the end.
pub(crate) fn cut_at(runs: &mut Vec<MapRun>, end: u64) {
    runs.retain_mut(|r| {
        r.len = r.len.min(end.saturating_sub(r.logical));
        r.len > 0
    });
}

/// As many blocks as mke2fs gives lost+found: 16 KiB, within its direct blocks.
pub(crate) fn lost_found_blocks(block_bits: u32) -> u64 {
    (16_384 >> block_bits).clamp(2, 12)
}

/// A directory with more subdirectories than can be counted says 1; files have their limit.
pub(crate) fn link_count(node: &Node, links: u32, f: &Features) -> Result<u16> {
    if links <= LINK_MAX {
        return Ok(links as u16);
    }
    if node.kind == FileKind::Directory && f.has_ro_compat(RoCompat::DIR_NLINK) {
        return Ok(1);
    }
    Err(MkfsError::Tree {
        name: String::new(),
        reason: format!("it has {links} names, {LINK_MAX} are possible"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockwright_ondisk::ext4::BlockNo;

    #[test]
    fn clusters_are_taken_whole_and_once() {
        let mut space = Space::new(1600, 4);
        let (mut runs, taken) = take_ranges(&mut space, 16, &[(0, 1), (3, 5), (40, 41)]);
        assert_eq!(taken, 32);
        cut_at(&mut runs, 41);
        assert_eq!(
            runs,
            [
                MapRun {
                    logical: 0,
                    physical: BlockNo(0),
                    len: 16
                },
                MapRun {
                    logical: 32,
                    physical: BlockNo(16),
                    len: 9
                },
            ]
        );
    }
}
