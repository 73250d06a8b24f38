//! Cases of [`Data`](crate::engine::Data), other than those of `fallocate`.

use super::Access;
use super::fixture::{Fixture, kind, locked, pattern};
use crate::engine::{CommitWrite, Intent, Mapping, Place, WriteTarget, uncovered};
use crate::error::ErrorKind;
use crate::inode::Inode;
use crate::types::FileKind;
use std::ops::Range;
use std::sync::Arc;

/// The target of the start of a reserved or direct range.
fn allocate(
    v: &Fixture,
    inode: &Arc<Inode>,
    range: Range<u64>,
    data_end: u64,
    intent: Intent,
) -> WriteTarget {
    let target = v
        .engine()
        .allocate(inode, range.clone(), data_end, intent)
        .expect("allocated");
    assert_eq!(target.offset, range.start, "it starts where asked");
    assert!(target.bytes > 0 && target.bytes.is_multiple_of(v.block()));
    target
}

/// Writes bytes past the cache, behind the end or over a hole.
fn write_direct(v: &Fixture, inode: &Arc<Inode>, offset: u64, bytes: &[u8]) {
    let end = offset + bytes.len() as u64;
    locked(&[inode], || {
        let mut at = offset;
        while at < end {
            let target = allocate(v, inode, at..end, end, Intent::Direct);
            inode.update_attr(|a| a.size = a.size.max(end));
            v.put(inode, &target, offset, bytes);
            at += target.bytes;
        }
    });
}

/// Behind the last extent there are only holes; between two extents, a hole ends before the second.
pub fn holes_lie_between_extents(v: &mut Fixture) {
    let block = v.block();
    let file = v.file("file");
    v.write(&file, 0, &pattern(1, 4 * block)).expect("written");
    for at in [4 * block, 5 * block + 17, 1 << 40] {
        let m = v.engine().map(&file, at, 1).expect("mapped");
        assert_eq!(m.place, Place::Hole, "at {at}");
        assert!(m.offset <= at && m.offset + m.bytes > at, "{m:?}");
        assert!(m.bytes.is_multiple_of(block), "{m:?}");
    }
    // A hole between two extents ends at the second.
    v.write(&file, 9 * block, &pattern(2, block))
        .expect("written");
    let m = v.engine().map(&file, 6 * block, 1).expect("mapped");
    assert_eq!(m.place, Place::Hole);
    assert!(m.offset + m.bytes <= 9 * block);
}

/// What is reserved is delayed, and a hole again when it is given back.
pub fn reserved_ranges_are_delayed(v: &mut Fixture) {
    let block = v.block();
    let file = v.file("file");
    v.write(&file, 0, &pattern(1, block)).expect("written");
    let taken = file.attr().blocks512;
    v.reserve(&file, 2 * block..6 * block).expect("reserved");
    assert!(file.attr().blocks512 >= taken + 4 * block / 512, "counted");
    if !v.format().reserve_allocates {
        for at in [2 * block, 6 * block - 1] {
            let place = v.place(&file, at);
            assert!(matches!(place, Place::Delayed | Place::Hole), "{place:?}");
        }
    }
    assert_eq!(v.place(&file, block), Place::Hole);
    v.engine().unreserve(&file, 2 * block..6 * block);
    assert_eq!(v.place(&file, 2 * block), Place::Hole);
    assert_eq!(file.attr().blocks512, taken);
}

/// Allocated blocks are not part of the file before they are committed, neither here nor after a crash.
pub fn nothing_shows_before_commit(v: &mut Fixture) {
    let block = v.block();
    let file = v.file("file");
    let first = pattern(1, 2 * block);
    v.write(&file, 0, &first).expect("written");
    let (range, more) = (2 * block..4 * block, pattern(2, 2 * block));
    v.reserve(&file, range.clone()).expect("reserved");
    file.update_attr(|a| a.size = range.end);
    let target = allocate(v, &file, range.clone(), range.end, Intent::Writeback);
    assert!(target.commit && target.fresh, "{target:?} is new");
    assert!(!matches!(v.place(&file, range.start), Place::Mapped(_)));
    v.put_on_device(&target, range.start, &more);
    v.engine().sync_volume().expect("synced");
    if let Some(mut after) = v.crashed() {
        let root = after.root();
        let found = after.find(&root, b"file").expect("found");
        assert_eq!(after.read(&found), first, "the old size and the old data");
        after.finish();
    }
    let done = v.engine().commit_write(&file, &target, range.end);
    done.expect("committed");
    v.write_reserved(&file, range.start, &more);
    assert_eq!(v.read(&file), [first, more].concat());
}

/// Blocks of an abandoned write are free again, and their place in the file is a hole.
pub fn abandoned_writes_leave_holes(v: &mut Fixture) {
    let block = v.block();
    let file = v.file("file");
    let data = pattern(1, block);
    v.write(&file, 0, &data).expect("written");
    v.engine().sync_volume().expect("synced");
    let (free, range) = (v.blocks_free(), 3 * block..5 * block);
    for intent in [Intent::Writeback, Intent::Direct] {
        if intent == Intent::Writeback {
            v.reserve(&file, range.clone()).expect("reserved");
        }
        let target = locked(&[&file], || {
            allocate(v, &file, range.clone(), range.end, intent)
        });
        assert!(target.commit, "{target:?} is new");
        v.engine().abandon_write(&file, &target);
        let rest = target.offset + target.bytes..range.end;
        if intent == Intent::Writeback && !rest.is_empty() {
            v.engine().unreserve(&file, rest);
        }
        assert_eq!(v.place(&file, range.start), Place::Hole, "{intent:?}");
        v.engine().release_write(&file);
        v.engine().sync_volume().expect("synced");
        assert_eq!(v.blocks_free(), free, "{intent:?}");
    }
    assert_eq!(v.read(&file), data);
}

/// Direct writes allocate for themselves, and raise the size on disk.
pub fn direct_writes_fill_holes(v: &mut Fixture) {
    let block = v.block();
    let file = v.file("file");
    let tail = pattern(2, 3 * block);
    write_direct(v, &file, 4 * block, &tail);
    let head = pattern(1, 2 * block);
    write_direct(v, &file, block, &head);
    let expected = [vec![0; block as usize], head, vec![0; block as usize], tail].concat();
    assert_eq!(v.read(&file), expected);
    v.remount(Access::ReadWrite);
    let root = v.root();
    let file = v.find(&root, b"file").expect("found");
    assert_eq!(v.read(&file), expected);
}

/// Blocks that are overwritten in place need neither engine nor commit.
pub fn overwrites_stay_in_place(v: &mut Fixture) {
    let block = v.block();
    let file = v.file("file");
    let len = 7 * block + 100;
    v.write(&file, 0, &pattern(1, len)).expect("written");
    v.engine().sync_volume().expect("synced");
    let before = v.engine().map(&file, 0, len).expect("mapped");
    let target = locked(&[&file], || {
        allocate(v, &file, 0..8 * block, len, Intent::Writeback)
    });
    if !target.commit {
        let Place::Mapped(device) = before.place else {
            panic!("{before:?} holds data")
        };
        assert_eq!(target.device, Some(device), "in place");
        assert!(!target.fresh);
    } else {
        v.engine().abandon_write(&file, &target);
    }
    if !v.format().keeps_places {
        return;
    }
    assert!(!target.commit, "places are kept");
    let mut at = 0;
    while at < len {
        let known = v.engine().extent_in_place(&file, at, len - at);
        let known = known.expect("asked").expect("in place");
        let m = v.engine().map(&file, at, len - at).expect("mapped");
        assert!(known.offset <= at && known.offset + known.bytes > at);
        assert!(known.offset + known.bytes <= len, "below the size on disk");
        let (Place::Mapped(a), Place::Mapped(b)) = (known.place, m.place) else {
            panic!("{known:?} and {m:?} hold data");
        };
        assert_eq!(a.0 + (at - known.offset), b.0 + (at - m.offset));
        at = known.offset + known.bytes;
    }
    for hole in [len, 20 * block] {
        let known = v.engine().extent_in_place(&file, hole, block);
        let reaches = |m: &Mapping| m.offset <= hole && m.offset + m.bytes > hole;
        assert!(
            !known.expect("asked").as_ref().is_some_and(reaches),
            "at {hole}"
        );
    }
}

/// `allocate_runs` covers ranges in order, without gaps, from the first on.
pub fn runs_are_covered_in_order(v: &mut Fixture) {
    let block = v.block();
    let file = v.file("file");
    v.write(&file, 5 * block, &pattern(9, block))
        .expect("written");
    let ranges = [0..2 * block, 4 * block..7 * block, 9 * block..10 * block];
    for range in &ranges {
        v.reserve(&file, range.clone()).expect("reserved");
    }
    let end = 10 * block;
    file.update_attr(|a| a.size = end);
    let (mut all, data): (Vec<WriteTarget>, _) = (Vec::new(), pattern(3, end));
    while let Some(next) = uncovered(&ranges, &all) {
        let mut left: Vec<_> = ranges
            .iter()
            .filter(|r| r.end > next.end)
            .cloned()
            .collect();
        left.insert(0, next.clone());
        let targets = v
            .engine()
            .allocate_runs(&file, &left, end, Intent::Writeback)
            .expect("allocated");
        assert_eq!(targets.first().map(|t| t.offset), Some(next.start));
        for target in targets {
            let expected = uncovered(&ranges, &all).map(|r| r.start);
            assert_eq!(Some(target.offset), expected, "no gap, nothing twice");
            v.put(&file, &target, 0, &data);
            all.push(target);
        }
    }
    let mut expected = vec![0; end as usize];
    for range in &ranges {
        let range = range.start as usize..range.end as usize;
        expected[range.clone()].copy_from_slice(&data[range]);
    }
    assert_eq!(v.read(&file), expected);
}

/// `commit_writes` commits writes of several inodes, with a result for each.
pub fn several_writes_commit_together(v: &mut Fixture) {
    let block = v.block();
    let data = pattern(4, block);
    let files: Vec<_> = (0..5).map(|n| v.file(&n.to_string())).collect();
    let mut targets = Vec::new();
    for file in &files {
        v.reserve(file, 0..block).expect("reserved");
        file.update_attr(|a| a.size = block);
        let target = allocate(v, file, 0..block, block, Intent::Writeback);
        v.put_on_device(&target, 0, &data);
        targets.push(target);
    }
    let writes: Vec<_> = files
        .iter()
        .zip(&targets)
        .map(|(inode, target)| CommitWrite {
            inode,
            target,
            data_end: block,
        })
        .collect();
    let results = v.engine().commit_writes(&writes);
    assert_eq!(results.len(), writes.len());
    assert!(results.iter().all(|r| r.is_ok()), "{results:?}");
    v.remount(Access::ReadWrite);
    let root = v.root();
    for n in 0..5 {
        let file = v.find(&root, n.to_string().as_bytes()).expect("found");
        assert_eq!(v.read(&file), data);
    }
}

/// `allocate_nowait` takes all of a hole or changes nothing.
pub fn allocation_without_waiting_takes_all_or_nothing(v: &mut Fixture) {
    let block = v.block();
    let file = v.file("file");
    let mut expected = Vec::new();
    for n in 0..32u8 {
        let range = expected.len() as u64..expected.len() as u64 + 2 * block;
        let data = pattern(n, 2 * block);
        let _guard = file.lock.write();
        let (free, place) = (v.blocks_free(), v.place(&file, range.start));
        match v.engine().allocate_nowait(&file, &range, range.end) {
            Some(target) => {
                assert_eq!((target.offset, target.bytes), (range.start, 2 * block));
                assert!(target.commit && target.fresh);
                file.update_attr(|a| a.size = range.end);
                v.put(&file, &target, range.start, &data);
            }
            None => {
                assert_eq!(v.blocks_free(), free, "nothing was taken");
                assert_eq!(v.place(&file, range.start), place);
                drop(_guard);
                write_direct(v, &file, range.start, &data);
            }
        }
        expected.extend(data);
    }
    assert_eq!(v.read(&file), expected);
    let end = v.engine().file_bytes_max(&file) / block * block;
    let _guard = file.lock.write();
    let behind = v
        .engine()
        .allocate_nowait(&file, &(end..end + block), end + block);
    assert_eq!(behind, None, "behind the largest size");
    drop(_guard);
    // The size on disk may not pass an end inside a block.
    v.truncate(&file, block / 2).expect("truncated");
    let _guard = file.lock.write();
    let passing = v
        .engine()
        .allocate_nowait(&file, &(block..2 * block), 2 * block);
    assert_eq!(passing, None, "past an open end");
}

/// `truncate` frees blocks behind the new end, sets size and times, and makes holes when a file grows.
pub fn truncation_frees_and_sets_times(v: &mut Fixture) {
    let block = v.block();
    let file = v.file("file");
    v.engine().sync_volume().expect("synced");
    let free = v.blocks_free();
    let data = pattern(5, 64 * block);
    v.write(&file, 0, &data).expect("written");
    let now = v.truncate(&file, 4 * block).expect("truncated");
    let attr = file.attr();
    assert_eq!((attr.size, attr.mtime, attr.ctime), (4 * block, now, now));
    assert_eq!(v.read(&file), data[..4 * block as usize]);
    assert_eq!(v.place(&file, 4 * block), Place::Hole);
    v.truncate(&file, 10 * block + 5).expect("grown");
    assert_eq!(file.size(), 10 * block + 5);
    let mut expected = data[..4 * block as usize].to_vec();
    expected.resize(10 * block as usize + 5, 0);
    assert_eq!(v.read(&file), expected, "zeroes, not what was cut off");
    v.remount(Access::ReadWrite);
    let root = v.root();
    let file = v.find(&root, b"file").expect("found");
    assert_eq!(v.read(&file), expected, "it persists");
    v.truncate(&file, 0).expect("truncated");
    v.engine().release_write(&file);
    v.engine().sync_volume().expect("synced");
    assert_eq!(v.blocks_free(), free, "all blocks are free");
}

/// `open_end` is the size on disk where that lies inside a block.
pub fn open_ends_lie_inside_blocks(v: &mut Fixture) {
    let block = v.block();
    let file = v.file("file");
    let open = |v: &Fixture, file: &_| v.engine().open_end(file);
    assert_eq!(open(v, &file), None, "empty");
    v.write(&file, 0, &pattern(1, 3 * block)).expect("written");
    assert_eq!(open(v, &file), None, "whole blocks");
    v.write(&file, 3 * block, &pattern(2, 100))
        .expect("written");
    assert_eq!(open(v, &file), Some(3 * block + 100));
    v.truncate(&file, block + 1).expect("truncated");
    assert_eq!(open(v, &file), Some(block + 1));
    v.truncate(&file, block).expect("truncated");
    assert_eq!(open(v, &file), None);
}

/// The generation of a file's mappings changes when blocks go away, and stays when a hole is filled.
pub fn generations_change_when_blocks_go(v: &mut Fixture) {
    let block = v.block();
    let file = v.file("file");
    let generation = |v: &Fixture, file: &_| v.engine().map(file, 0, 1).expect("mapped").generation;
    v.write(&file, 0, &pattern(1, 4 * block)).expect("written");
    let before = generation(v, &file);
    v.write(&file, 8 * block, &pattern(2, block))
        .expect("written");
    assert_eq!(generation(v, &file), before, "a hole was filled");
    v.truncate(&file, 2 * block).expect("truncated");
    assert_ne!(generation(v, &file), before, "blocks went away");
}

/// Every regular file has a largest size, and a block below it can be written.
pub fn files_have_a_largest_size(v: &mut Fixture) {
    let block = v.block();
    let file = v.file("file");
    let max = v.engine().file_bytes_max(&file);
    assert!(max >= 1 << 30, "{max}");
    let at = (max / block - 1) * block;
    let data = pattern(1, block);
    write_direct(v, &file, at, &data);
    assert!(matches!(v.place(&file, at), Place::Mapped(_)));
    assert_eq!(file.size(), at + block);
    let mut leaves = 1000;
    let pieces = v.engine().extents(&file, &mut leaves);
    assert!(pieces.is_none_or(|n| n == 1), "{pieces:?}");
}

/// Small data goes into the inode at writeback, is read from there, and takes no blocks.
pub fn inline_data_stays_in_the_inode(v: &mut Fixture) {
    let file = v.file("file");
    v.engine().sync_volume().expect("synced");
    let free = v.blocks_free();
    let mut data = pattern(1, 40);
    v.write(&file, 0, &data).expect("written");
    assert_eq!(v.place(&file, 0), Place::Inline);
    assert_eq!(v.place(&file, v.block()), Place::Hole);
    assert_eq!(v.engine().open_end(&file), None, "not in a block");
    v.engine().sync_volume().expect("synced");
    assert!(v.blocks_free() >= free, "no block is taken");
    data = pattern(2, 50);
    v.write(&file, 0, &data).expect("overwritten");
    assert_eq!(v.read(&file), data);
    v.remount(Access::ReadWrite);
    let root = v.root();
    let file = v.find(&root, b"file").expect("found");
    assert_eq!(v.place(&file, 0), Place::Inline);
    assert_eq!(v.read(&file), data);
    v.truncate(&file, 20).expect("truncated");
    assert_eq!(v.read(&file), data[..20]);
    v.truncate(&file, 30).expect("grown");
    data.truncate(20);
    data.resize(30, 0);
    assert_eq!(v.read(&file), data, "zeroes, not what was cut off");
}

/// Data that outgrows the inode gets blocks.
pub fn inline_data_leaves_the_inode(v: &mut Fixture) {
    let root = v.root();
    let block = v.block();
    for (name, direct) in [("cached", false), ("direct", true)] {
        let file = v.create(&root, name.as_bytes(), FileKind::Regular);
        let mut data = pattern(1, 40);
        v.write(&file, 0, &data).expect("written");
        assert_eq!(v.place(&file, 0), Place::Inline, "{name}");
        let more = pattern(2, 2 * block);
        data.extend(&more);
        if direct {
            // Over all of the inline bytes.
            data.truncate(2 * block as usize);
            write_direct(v, &file, 0, &data);
        } else {
            // The vfs has the inline bytes in its cache, and writes them with the rest.
            let whole = 0..(data.len() as u64).next_multiple_of(block);
            v.reserve(&file, whole).expect("reserved");
            file.update_attr(|a| a.size = data.len() as u64);
            v.write_reserved(&file, 0, &data);
        }
        assert!(matches!(v.place(&file, block), Place::Mapped(_)), "{name}");
        assert_eq!(v.read(&file), data, "{name}");
        // Writeback that was told before that the data belongs in the inode.
        let late = v.engine().write_inline(&file, &pattern(3, 40), 40);
        assert!(!late.expect("no error"), "{name}: it has left the inode");
        assert_eq!(v.read(&file), data, "{name}");
    }
    let large = v.create_unnamed(FileKind::Regular);
    assert_eq!(kind(v.reserve(&large, 0..4 * block)), None::<ErrorKind>);
    v.engine().unreserve(&large, 0..4 * block);
}
