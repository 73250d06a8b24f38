//! Cases of [`Attributes`](crate::engine::Attributes).

use super::Access;
use super::fixture::{Fixture, kind, pattern};
use crate::engine::SyncScope;
use crate::error::ErrorKind;
use crate::types::{AttrChange, FileKind, Ino, InodeFlags, XattrMode};
use std::collections::BTreeSet;

/// `set_attr` changes what it is told to, and nothing else; the change persists.
pub fn changes_persist(v: &mut Fixture) {
    v.file("file");
    let (access, modified, changed) = (v.now(), v.now(), v.now());
    let changes = [
        AttrChange {
            perm: Some(0o4711),
            ..AttrChange::default()
        },
        AttrChange {
            uid: Some(1_000_001),
            ..AttrChange::default()
        },
        AttrChange {
            gid: Some(2_000_002),
            ctime: Some(changed),
            ..AttrChange::default()
        },
        AttrChange {
            atime: Some(access),
            mtime: Some(modified),
            ..AttrChange::default()
        },
        AttrChange {
            flags: Some(InodeFlags::NODUMP | InodeFlags::NOATIME),
            ..AttrChange::default()
        },
        AttrChange {
            flags: Some(InodeFlags::empty()),
            ..AttrChange::default()
        },
    ];
    for change in changes {
        let root = v.root();
        let file = v.find(&root, b"file").expect("found");
        let mut expected = file.attr();
        v.set_attr(&file, &change).expect("changed");
        change.apply(&mut expected, InodeFlags::NODUMP | InodeFlags::NOATIME);
        assert_eq!(file.attr(), expected, "{change:?} in memory");
        v.remount(Access::ReadWrite);
        let root = v.root();
        let file = v.find(&root, b"file").expect("found");
        assert_eq!(file.attr(), expected, "{change:?} persists");
    }
}

/// `load` says `Stale` for a number that is not in use.
pub fn unused_numbers_are_stale(v: &mut Fixture) {
    let file = v.file("file");
    let (used, unused) = (file.ino(), Ino(file.ino().0 + 1));
    v.engine().load_ahead(&[used, unused, Ino(u64::MAX)]);
    assert_eq!(kind(v.load(unused)), Some(ErrorKind::Stale));
    assert_eq!(kind(v.load(Ino(u64::MAX))), Some(ErrorKind::Stale));
    assert!(v.load(used).is_ok());
}

/// `write_attr` persists attributes that were changed in memory.
pub fn written_attributes_persist(v: &mut Fixture) {
    let file = v.file("file");
    let (access, modified) = (v.now(), v.now());
    file.update_attr(|a| (a.atime, a.mtime, a.ctime) = (access, modified, modified));
    v.engine().write_attr(&file).expect("written");
    let expected = file.attr();
    v.remount(Access::ReadWrite);
    let root = v.root();
    let file = v.find(&root, b"file").expect("found");
    assert_eq!(file.attr(), expected);
}

/// `stat` tells the attributes; a file with data takes room, wherever that is.
pub fn stat_shows_attributes(v: &mut Fixture) {
    let file = v.file("file");
    let (shown, own) = (v.engine().stat(&file), file.attr());
    assert_eq!((shown.ino, shown.size, shown.kind), (own.ino, 0, own.kind));
    v.write(&file, 0, &[7; 40]).expect("written");
    let shown = v.engine().stat(&file);
    assert_eq!(shown.size, 40);
    assert!(shown.blocks512 > 0, "{shown:?}");
}

/// Values of every size are kept, replaced, listed and removed.
pub fn extended_attributes_keep_values(v: &mut Fixture) {
    const NAMES: [&str; 4] = [
        "user.one",
        "trusted.two",
        "security.three",
        "user.a longer name, with spaces",
    ];
    let file = v.file("file");
    let root = v.root();
    let dir = v.create(&root, b"dir", FileKind::Directory);
    for inode in [&file, &dir] {
        assert_eq!(
            kind(v.get_xattr(inode, "user.one")),
            Some(ErrorKind::NoAttribute)
        );
        for (n, name) in NAMES.into_iter().enumerate() {
            v.set_xattr(inode, name, &pattern(n as u8, 10), XattrMode::Any)
                .expect("set");
        }
        // Larger, smaller, none, and one that fits no inode.
        for (n, len) in [(0, 200), (1, 1), (2, 0), (3, 300)] {
            v.set_xattr(inode, NAMES[n], &pattern(9, len), XattrMode::Any)
                .expect("replaced");
        }
        let before = inode.attr().ctime;
        v.remove_xattr(inode, NAMES[1]).expect("removed");
        assert_eq!(inode.attr().ctime, before, "the vfs sets the time");
    }
    v.remount(Access::ReadWrite);
    let root = v.root();
    for name in [&b"file"[..], b"dir"] {
        let inode = v.find(&root, name).expect("found");
        for (n, len) in [(0, 200), (2, 0), (3, 300)] {
            let value = v.get_xattr(&inode, NAMES[n]).expect("a value");
            assert_eq!(value, pattern(9, len), "{}", NAMES[n]);
        }
        let listed: BTreeSet<Vec<u8>> = {
            let _guard = inode.lock.read();
            let all = v.engine().list_xattr(&inode).expect("listed");
            all.into_iter().collect()
        };
        let expected = [NAMES[0], NAMES[2], NAMES[3]].map(|n| n.as_bytes().to_vec());
        assert_eq!(listed, expected.into());
        let twice = v.remove_xattr(&inode, NAMES[1]);
        assert_eq!(kind(twice), Some(ErrorKind::NoAttribute));
    }
}

/// Names that no format stores are refused by each operation.
pub fn extended_attributes_have_a_namespace(v: &mut Fixture) {
    const NAMES: [&str; 6] = [
        "user.",
        "user",
        "other.x",
        "system.data",
        "system.x",
        "encryption.c",
    ];
    let file = v.file("file");
    for name in NAMES {
        let done = [
            kind(v.set_xattr(&file, name, b"v", XattrMode::Any)),
            kind(v.get_xattr(&file, name)),
            kind(v.remove_xattr(&file, name)),
        ];
        assert_eq!(done, [Some(ErrorKind::Unsupported); 3], "{name}");
    }
}

/// `Create` refuses what there is, `Replace` what there is not.
pub fn extended_attributes_heed_the_mode(v: &mut Fixture) {
    let file = v.file("file");
    let set = |value: &[u8], mode| v.set_xattr(&file, "user.x", value, mode);
    assert_eq!(
        kind(set(b"1", XattrMode::Replace)),
        Some(ErrorKind::NoAttribute)
    );
    set(b"2", XattrMode::Create).expect("created");
    assert_eq!(kind(set(b"3", XattrMode::Create)), Some(ErrorKind::Exists));
    assert_eq!(v.get_xattr(&file, "user.x").expect("a value"), b"2");
    set(b"4", XattrMode::Replace).expect("replaced");
    assert_eq!(v.get_xattr(&file, "user.x").expect("a value"), b"4");
}

/// Extended attributes that are part of a creation are there with it.
pub fn creation_sets_extended_attributes(v: &mut Fixture) {
    let root = v.root();
    let mut new = v.new_inode(FileKind::Directory);
    new.xattrs = vec![
        (b"security.label".to_vec(), b"label".to_vec()),
        (b"user.x".to_vec(), pattern(1, 200)),
    ];
    let inode = v.create_as(&root, b"dir", &new).expect("created");
    for (name, value) in &new.xattrs {
        let name = std::str::from_utf8(name).expect("text");
        assert_eq!(&v.get_xattr(&inode, name).expect("a value"), value);
    }
}

/// What `sync_inode` made durable is there after a crash: data, size, names and attributes.
pub fn synced_inodes_survive_a_crash(v: &mut Fixture) {
    let data = pattern(5, 4 * v.block() + 100);
    for (scope, name) in [(SyncScope::All, "all"), (SyncScope::Data, "data")] {
        let file = v.file(name);
        v.write(&file, 0, &data).expect("written");
        v.engine().sync_inode(&file, scope).expect("synced");
        let Some(mut after) = v.crashed() else { return };
        let root = after.root();
        let found = after.find(&root, name.as_bytes()).expect("found");
        assert_eq!(after.read(&found), data, "{scope:?}");
        if scope == SyncScope::All {
            let (old, new) = (file.attr(), found.attr());
            assert_eq!(new, old, "{scope:?}");
        }
        after.finish();
    }
}

/// Where `is_durable` says yes, a crash loses nothing.
pub fn durable_inodes_survive_a_crash(v: &mut Fixture) {
    let file = v.file("file");
    let data = pattern(6, 2 * v.block());
    v.write(&file, 0, &data).expect("written");
    for scope in [SyncScope::Data, SyncScope::All] {
        if !v.engine().is_durable(&file, scope) {
            continue;
        }
        let Some(mut after) = v.crashed() else { return };
        let root = after.root();
        let found = after.find(&root, b"file").expect("found");
        assert_eq!(after.read(&found), data, "{scope:?}");
        after.finish();
    }
}
