//! Cases of [`Data::fallocate`](crate::engine::Data::fallocate).

use super::Access;
use super::fixture::{Fixture, kind, pattern};
use crate::engine::{FallocMode, Place};
use crate::error::ErrorKind;
use crate::inode::Inode;
use std::ops::Range;
use std::sync::Arc;

const ALLOCATE: FallocMode = FallocMode::Allocate { keep_size: false };
const ALLOCATE_KEEP: FallocMode = FallocMode::Allocate { keep_size: true };
const ZERO: FallocMode = FallocMode::ZeroRange { keep_size: false };
const ZERO_KEEP: FallocMode = FallocMode::ZeroRange { keep_size: true };

/// Whether the engine can do this to the file.
fn can(v: &Fixture, inode: &Arc<Inode>, mode: FallocMode) -> bool {
    match kind(v.engine().check_fallocate(inode, mode)) {
        None => true,
        Some(ErrorKind::Unsupported) => false,
        Some(other) => panic!("{mode:?} is refused as {other:?}"),
    }
}

/// A file of this many blocks of data.
fn filled(v: &mut Fixture, name: &str, blocks: u64) -> (Arc<Inode>, Vec<u8>) {
    let (file, data) = (v.file(name), pattern(blocks as u8, blocks * v.block()));
    v.write(&file, 0, &data).expect("written");
    (file, data)
}

/// Allocated ranges have blocks, and read as zeroes; data between them stays.
pub fn allocated_ranges_read_as_zeroes(v: &mut Fixture) {
    let block = v.block();
    let (file, mut data) = filled(v, "file", 4);
    if !can(v, &file, ALLOCATE) {
        return;
    }
    v.fallocate(&file, 2 * block..10 * block, ALLOCATE)
        .expect("allocated");
    assert_eq!(file.size(), 10 * block);
    let place = v.place(&file, 6 * block);
    assert!(
        matches!(place, Place::Unwritten(_) | Place::Reserved),
        "{place:?}"
    );
    let taken = file.attr().blocks512;
    assert!(taken >= 10 * block / 512, "{taken}");
    data.resize(10 * block as usize, 0);
    assert_eq!(v.read(&file), data);
    v.remount(Access::ReadWrite);
    let root = v.root();
    let file = v.find(&root, b"file").expect("found");
    assert_eq!((v.read(&file), file.attr().blocks512), (data, taken));
}

/// Data written into unwritten blocks shows; the blocks around it stay zero.
pub fn unwritten_blocks_take_data(v: &mut Fixture) {
    let block = v.block();
    let file = v.file("file");
    if !can(v, &file, ALLOCATE) {
        return;
    }
    v.fallocate(&file, 0..9 * block, ALLOCATE)
        .expect("allocated");
    let data = pattern(8, 2 * block);
    v.write(&file, 4 * block, &data).expect("written");
    let mut expected = vec![0; 9 * block as usize];
    expected[4 * block as usize..6 * block as usize].copy_from_slice(&data);
    assert_eq!(v.read(&file), expected);
    v.engine().sync_volume().expect("synced");
    if let Some(mut after) = v.crashed() {
        let root = after.root();
        let found = after.find(&root, b"file").expect("found");
        assert_eq!(after.read(&found), expected, "after a crash");
        after.finish();
    }
}

/// What a mode makes of contents.
fn expected(data: &[u8], range: Range<u64>, mode: FallocMode) -> Vec<u8> {
    let (start, end) = (range.start as usize, range.end as usize);
    let mut out = data.to_vec();
    match mode {
        FallocMode::Allocate { keep_size: true } => {}
        FallocMode::Allocate { keep_size: false } => out.resize(out.len().max(end), 0),
        FallocMode::PunchHole | FallocMode::ZeroRange { keep_size: true } => {
            let end = end.min(out.len());
            out[start.min(end)..end].fill(0);
        }
        FallocMode::ZeroRange { keep_size: false } => {
            out.resize(out.len().max(end), 0);
            out[start..end].fill(0);
        }
        FallocMode::CollapseRange => drop(out.drain(start..end)),
        FallocMode::InsertRange => drop(out.splice(start..start, vec![0; end - start])),
    }
    out
}

/// Every mode that the engine takes changes contents, size and blocks as its description says.
pub fn every_mode_changes_contents_as_it_says(v: &mut Fixture) {
    let block = v.block();
    let modes = [
        ALLOCATE,
        ALLOCATE_KEEP,
        FallocMode::PunchHole,
        ZERO,
        ZERO_KEEP,
        FallocMode::CollapseRange,
        FallocMode::InsertRange,
    ];
    let mut names = Vec::new();
    for (n, mode) in modes.into_iter().enumerate() {
        for (k, range) in [2..5, 0..1, 9..12, 0..12].into_iter().enumerate() {
            let range: Range<u64> = range.start * block..range.end * block;
            let name = format!("{n} {k}");
            let (file, data) = filled(v, &name, 12);
            // A hole and an unwritten block among the data.
            v.fallocate(&file, 6 * block..8 * block, FallocMode::PunchHole)
                .expect("punched");
            if can(v, &file, ALLOCATE_KEEP) {
                v.fallocate(&file, 7 * block..8 * block, ALLOCATE_KEEP)
                    .expect("allocated");
            }
            let data = expected(&data, 6 * block..8 * block, FallocMode::PunchHole);
            let moves = matches!(mode, FallocMode::CollapseRange | FallocMode::InsertRange);
            if moves && range.end >= 12 * block || !can(v, &file, mode) {
                // The vfs refuses to collapse to the end, or to insert there.
                continue;
            }
            let before = v.engine().map(&file, 0, 1).expect("mapped").generation;
            v.fallocate(&file, range.clone(), mode).expect("done");
            let data = expected(&data, range.clone(), mode);
            assert_eq!(v.read(&file), data, "{mode:?} of {range:?}");
            let after = v.engine().map(&file, 0, 1).expect("mapped").generation;
            if mode == FallocMode::PunchHole {
                assert_eq!(v.place(&file, range.start), Place::Hole, "{range:?}");
            }
            if moves || mode == FallocMode::PunchHole {
                assert_ne!(before, after, "{mode:?} of {range:?}");
            }
            names.push((name, data));
        }
    }
    v.remount(Access::ReadWrite);
    let root = v.root();
    for (name, data) in names {
        let file = v.find(&root, name.as_bytes()).expect("found");
        assert_eq!(v.read(&file), data, "{name} persists");
    }
}

/// With `keep_size`, a file keeps its size, and has blocks behind it that truncation frees.
pub fn sizes_are_kept_when_asked(v: &mut Fixture) {
    let block = v.block();
    let (file, data) = filled(v, "file", 2);
    v.engine().sync_volume().expect("synced");
    let free = v.blocks_free();
    for mode in [ALLOCATE_KEEP, ZERO_KEEP] {
        if !can(v, &file, mode) {
            continue;
        }
        v.fallocate(&file, 2 * block..40 * block, mode)
            .expect("done");
        assert_eq!(file.size(), 2 * block, "{mode:?}");
        assert_eq!(v.read(&file), data);
        assert!(v.blocks_free() + 38 <= free, "{mode:?} takes blocks");
        v.truncate(&file, 2 * block).expect("truncated");
        v.engine().release_write(&file);
        v.engine().sync_volume().expect("synced");
        assert_eq!(v.blocks_free(), free, "{mode:?} was undone");
    }
}

/// What `check_fallocate` refuses, `fallocate` refuses too, and changes nothing.
pub fn refusals_come_before_changes(v: &mut Fixture) {
    let block = v.block();
    let (file, data) = filled(v, "file", 8);
    for mode in [
        ALLOCATE,
        FallocMode::PunchHole,
        ZERO,
        FallocMode::CollapseRange,
        FallocMode::InsertRange,
    ] {
        if can(v, &file, mode) {
            continue;
        }
        let before = file.attr();
        let done = v.fallocate(&file, block..3 * block, mode);
        assert_eq!(kind(done), Some(ErrorKind::Unsupported), "{mode:?}");
        assert_eq!((file.attr(), v.read(&file)), (before, data.clone()));
    }
    if !can(v, &file, ALLOCATE_KEEP) {
        return;
    }
    // More than there is.
    let (before, free) = (file.attr(), v.blocks_free());
    let end = (free + 100) * block;
    let done = v.fallocate(&file, 0..end, ALLOCATE_KEEP);
    assert_eq!(kind(done), Some(ErrorKind::NoSpace));
    assert_eq!((file.size(), v.read(&file)), (before.size, data));
}
