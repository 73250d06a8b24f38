//! Cases of [`Volume`](crate::engine::Volume).

use super::Access;
use super::fixture::{Fixture, kind, locked, pattern};
use crate::engine::{FallocMode, Intent};
use crate::error::{ErrorKind, Result};
use crate::stats::Stats;
use crate::types::{AttrChange, FileKind, RenameMode, XattrMode};

/// `format` is the same at any time.
pub fn formats_do_not_change(v: &mut Fixture) {
    let format = v.format();
    assert!(format.block_bytes.is_power_of_two() && format.block_bytes >= 512);
    let root = v.root();
    assert_eq!(
        (root.ino(), root.kind()),
        (format.root, FileKind::Directory)
    );
    v.file("file");
    assert_eq!(v.format(), format);
    v.remount(Access::ReadWrite);
    assert_eq!(v.format(), format);
    let statfs = v.engine().statfs().expect("statfs");
    assert_eq!(statfs.block_bytes, format.block_bytes);
    assert!(statfs.blocks_available <= statfs.blocks_free);
    assert!(statfs.blocks_free <= statfs.blocks);
}

/// On a volume that is mounted read-only, every change fails with `ReadOnly`, and everything can be read.
pub fn read_only_volumes_refuse_changes(v: &mut Fixture) {
    let block = v.block();
    let data = pattern(1, 3 * block);
    let (root, file) = (v.root(), v.file("file"));
    v.write(&file, 0, &data).expect("written");
    v.set_xattr(&file, "user.x", b"1", XattrMode::Any)
        .expect("set");
    v.create(&root, b"dir", FileKind::Directory);
    v.remount(Access::ReadOnly);
    assert!(v.engine().is_read_only());
    let root = v.root();
    let file = v.find(&root, b"file").expect("found");
    let dir = v.find(&root, b"dir").expect("found");
    assert_eq!(v.read(&file), data);
    assert_eq!(v.get_xattr(&file, "user.x").expect("a value"), b"1");
    assert_eq!(v.list(&root, 10).get(&b"dir"[..]), Some(&dir.ino()));
    let before = (root.attr(), file.attr());

    let engine = v.engine();
    let new = v.new_inode(FileKind::Regular);
    let change = AttrChange {
        perm: Some(0),
        ..AttrChange::default()
    };
    let direct = |inode| {
        let range = 4 * block..5 * block;
        locked(&[inode], || {
            engine.allocate(inode, range, 5 * block, Intent::Direct)
        })
    };
    let refused: Vec<(&str, Result<()>)> = vec![
        ("create", v.create_as(&root, b"new", &new).map(drop)),
        (
            "create_unnamed",
            locked(&[&root], || engine.create_unnamed(&root, &new)).map(drop),
        ),
        ("link", v.link(&root, b"link", &file).map(drop)),
        ("unlink", v.remove(&root, b"file").map(drop)),
        ("rmdir", v.remove(&root, b"dir").map(drop)),
        (
            "rename",
            v.rename((&root, b"file"), (&root, b"moved"), RenameMode::Replace),
        ),
        ("set_attr", v.set_attr(&file, &change)),
        (
            "set_xattr",
            v.set_xattr(&file, "user.x", b"2", XattrMode::Any),
        ),
        ("remove_xattr", v.remove_xattr(&file, "user.x")),
        ("reserve", v.reserve(&file, 4 * block..5 * block).map(drop)),
        ("allocate", direct(&file).map(drop)),
        ("truncate", v.truncate(&file, 1).map(drop)),
        (
            "fallocate",
            v.fallocate(&file, 0..block, FallocMode::PunchHole),
        ),
        ("trim", engine.trim(0..u64::MAX, 0).map(drop)),
    ];
    for (what, result) in refused {
        assert_eq!(kind(result), Some(ErrorKind::ReadOnly), "{what}");
    }
    assert_eq!((root.attr(), file.attr()), before, "nothing changed");
    assert_eq!(v.read(&file), data);
}

/// Each tunable takes the value that it has; an unknown name is `NotFound`.
pub fn tunables_take_their_own_values(v: &mut Fixture) {
    let engine = v.engine();
    for tunable in engine.tunables() {
        let set = engine.set_tunable(&tunable.name, tunable.value);
        set.unwrap_or_else(|e| panic!("{}: {e}", tunable.name));
    }
    let before: Vec<_> = engine
        .tunables()
        .iter()
        .map(|t| (t.name.clone(), t.value))
        .collect();
    let unknown = engine.set_tunable("no such thing", 1);
    assert_eq!(kind(unknown), Some(ErrorKind::NotFound));
    let after: Vec<_> = engine
        .tunables()
        .iter()
        .map(|t| (t.name.clone(), t.value))
        .collect();
    assert_eq!(after, before);
}

/// What `sync_volume` made durable is there after a crash.
pub fn synced_volumes_survive_a_crash(v: &mut Fixture) {
    let root = v.root();
    let dir = v.create(&root, b"dir", FileKind::Directory);
    let data = pattern(7, 9 * v.block());
    for n in 0..50 {
        let name = n.to_string().into_bytes();
        let file = v.create(&dir, &name, FileKind::Regular);
        if n % 10 == 0 {
            v.write(&file, 0, &data).expect("written");
        }
    }
    v.rename((&dir, b"1"), (&root, b"moved"), RenameMode::Replace)
        .expect("renamed");
    v.engine().sync_volume().expect("synced");
    let expected = (v.list(&root, 100), v.list(&dir, 100));
    let Some(mut after) = v.crashed() else { return };
    let root = after.root();
    let dir = after.find(&root, b"dir").expect("found");
    assert_eq!((after.list(&root, 100), after.list(&dir, 100)), expected);
    for n in (0..50).step_by(10) {
        let file = after.find(&dir, n.to_string().as_bytes()).expect("found");
        assert_eq!(after.read(&file), data, "{n}");
    }
    after.finish();
}

/// Inodes that had no name when the volume crashed are freed by the next mount, with their blocks.
pub fn orphans_are_freed_after_a_crash(v: &mut Fixture) {
    let root = v.root();
    let kept = v.file("kept");
    v.write(&kept, 0, &pattern(1, 4 * v.block()))
        .expect("written");
    v.engine().sync_volume().expect("synced");
    let free = v.blocks_free();
    let unlinked = v.file("unlinked");
    let unnamed = v.create_unnamed(FileKind::Regular);
    for inode in [&unlinked, &unnamed] {
        v.write(inode, 0, &pattern(2, 30 * v.block()))
            .expect("written");
    }
    v.remove(&root, b"unlinked").expect("removed");
    v.engine().sync_volume().expect("synced");
    let Some(mut after) = v.crashed() else { return };
    for inode in [&unlinked, &unnamed] {
        assert_eq!(kind(after.load(inode.ino())), Some(ErrorKind::Stale));
    }
    after.engine().sync_volume().expect("synced");
    assert!(after.blocks_free() >= free, "{free} blocks were free");
    let root = after.root();
    assert!(after.find(&root, b"kept").is_some());
    after.finish();
}

/// Counters can be asked for at any time, and metadata in memory is counted.
pub fn statistics_are_reported(v: &mut Fixture) {
    let root = v.root();
    for n in 0..200 {
        v.create(&root, n.to_string().as_bytes(), FileKind::Regular);
    }
    let mut stats = Stats::default();
    v.engine().stats(&mut stats);
    assert!(v.engine().memory_bytes() < v.device_bytes());
    assert_eq!(v.engine().read_only_reason(), None);
}
