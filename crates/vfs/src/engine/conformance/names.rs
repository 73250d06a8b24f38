//! Cases of [`Names`](crate::engine::Names).

use super::Access;
use super::fixture::{Fixture, kind, locked, pattern};
use crate::error::ErrorKind;
use crate::types::{FileKind, RenameMode};
use std::collections::BTreeMap;

/// `create` makes an inode and its name with the attributes asked for, and sets the directory's times.
pub fn created_names_are_found(v: &mut Fixture) {
    let kinds = [
        FileKind::Regular,
        FileKind::Directory,
        FileKind::Symlink,
        FileKind::CharDevice,
        FileKind::BlockDevice,
        FileKind::Fifo,
        FileKind::Socket,
    ];
    for (n, made) in kinds.into_iter().enumerate() {
        let root = v.root();
        let name = format!("name {n}").into_bytes();
        assert!(v.find(&root, &name).is_none(), "{made:?} before");
        let mut new = v.new_inode(made);
        new.perm = 0o2751;
        (new.uid, new.gid) = (70_000, 80_000);
        match made {
            FileKind::Symlink => new.symlink = b"target".to_vec(),
            FileKind::CharDevice | FileKind::BlockDevice => new.rdev = 0x0803,
            _ => {}
        }
        let before = v.create_as(&root, &name, &new).expect("created").attr();
        assert_eq!(root.attr().mtime, new.now, "{made:?}: the directory");
        assert_eq!(root.attr().ctime, new.now, "{made:?}: the directory");
        let again = v.create_as(&root, &name, &new);
        assert_eq!(kind(again), Some(ErrorKind::Exists), "{made:?}");
        v.remount(Access::ReadWrite);
        let root = v.root();
        let a = v.find(&root, &name).expect("found").attr();
        assert_eq!(a, before, "{made:?} persists");
        assert_eq!((a.kind, a.perm), (made, 0o2751));
        assert_eq!((a.uid, a.gid, a.rdev), (70_000, 80_000, new.rdev));
        assert_eq!((a.atime, a.mtime, a.ctime), (new.now, new.now, new.now));
        let names = if made == FileKind::Directory { 2 } else { 1 };
        assert_eq!(a.nlink, names, "{made:?}");
        if made == FileKind::Regular {
            assert_eq!(a.size, 0);
        }
    }
}

/// `readdir` continues after any cookie, lists `.` and `..`, and does not consume the entry at which it was stopped.
pub fn listing_goes_on_at_any_cookie(v: &mut Fixture) {
    let root = v.root();
    let dir = v.create(&root, b"dir", FileKind::Directory);
    let mut expected = BTreeMap::from([(b".".to_vec(), dir.ino()), (b"..".to_vec(), root.ino())]);
    for n in 0..300 {
        let name = format!("{n:0width$}", width = 1 + n % 200).into_bytes();
        let file = v.create(&dir, &name, FileKind::Regular);
        expected.insert(name, file.ino());
    }
    for count in [1, 3, 64, usize::MAX] {
        assert_eq!(v.list(&dir, count), expected, "{count} at a time");
    }
    let all = v.list_some(&dir, 0, usize::MAX);
    for (n, (_, _, cookie)) in all.iter().enumerate() {
        let rest = v.list_some(&dir, *cookie, usize::MAX);
        assert_eq!(rest, all[n + 1..], "after entry {n}");
    }
}

/// Cookies stay good while entries come and go: an entry that stays is listed once.
pub fn listing_survives_removals(v: &mut Fixture) {
    let root = v.root();
    let dir = v.create(&root, b"dir", FileKind::Directory);
    let name = |n: usize| format!("entry number {n}").into_bytes();
    for n in 0..400 {
        v.create(&dir, &name(n), FileKind::Fifo);
    }
    let mut seen = BTreeMap::new();
    let (mut cookie, mut round) = (0, 0);
    loop {
        let some = v.list_some(&dir, cookie, 7);
        let Some(last) = some.last() else { break };
        cookie = last.2;
        for (name, ..) in some {
            *seen.entry(name).or_insert(0) += 1;
        }
        // An odd one goes, and a new one comes.
        let odd = 2 * round + 1;
        if odd < 400 {
            let gone = v.remove(&dir, &name(odd)).expect("removed");
            v.evict(gone);
            let new = format!("new {round}").into_bytes();
            v.create(&dir, &new, FileKind::Fifo);
        }
        round += 1;
        assert!(round < 2000, "the listing ends");
    }
    for n in (0..400).step_by(2) {
        assert_eq!(seen.get(&name(n)), Some(&1), "entry {n}");
    }
    assert!(seen.values().all(|times| *times == 1), "nothing twice");
}

/// `parent` is what `..` says, also after a move.
pub fn directories_know_their_parents(v: &mut Fixture) {
    let root = v.root();
    let (a, b) = (
        v.create(&root, b"a", FileKind::Directory),
        v.create(&root, b"b", FileKind::Directory),
    );
    let inner = v.create(&a, b"inner", FileKind::Directory);
    let parent = |v: &Fixture, dir: &_| v.engine().parent(dir).expect("a parent");
    assert_eq!(parent(v, &root), root.ino(), "the root is its own");
    assert_eq!(parent(v, &inner), a.ino());
    v.rename((&a, b"inner"), (&b, b"moved"), RenameMode::Replace)
        .expect("renamed");
    assert_eq!(parent(v, &inner), b.ino());
    assert_eq!(v.list(&inner, 10).get(&b".."[..]), Some(&b.ino()));
    assert_eq!((a.attr().nlink, b.attr().nlink), (2, 3));
}

/// Symlinks of every length keep their targets.
pub fn symlinks_keep_their_targets(v: &mut Fixture) {
    let longest = v.block() as usize - 1;
    let lengths = [1, 59, 60, 61, 255, 900, longest.min(4095)];
    let root = v.root();
    for len in lengths {
        let mut new = v.new_inode(FileKind::Symlink);
        new.symlink = vec![b'x'; len];
        let name = format!("{len}").into_bytes();
        let link = v.create_as(&root, &name, &new).expect("created");
        assert_eq!(link.size(), len as u64, "the size of a link");
    }
    v.remount(Access::ReadWrite);
    let root = v.root();
    for len in lengths {
        let link = v.find(&root, format!("{len}").as_bytes()).expect("found");
        let target = v.engine().read_link(&link).expect("read");
        assert_eq!(target, vec![b'x'; len], "{len}");
    }
}

/// `create_unnamed` makes an inode that `link` can name later; it is no orphan then.
pub fn unnamed_inodes_can_be_named(v: &mut Fixture) {
    let root = v.root();
    let entries = v.list(&root, 100).len();
    let inode = v.create_unnamed(FileKind::Regular);
    assert_eq!(inode.attr().nlink, 0);
    assert_eq!(v.list(&root, 100).len(), entries, "without a name");
    let data = pattern(1, 3 * v.block());
    v.write(&inode, 0, &data).expect("written");
    v.link(&root, b"named", &inode).expect("linked");
    assert_eq!(inode.attr().nlink, 1);
    v.remount(Access::ReadWrite);
    let root = v.root();
    let inode = v.find(&root, b"named").expect("found");
    assert_eq!(v.read(&inode), data);
}

/// An inode without a name is freed with its blocks when it is evicted.
pub fn unnamed_inodes_are_freed(v: &mut Fixture) {
    let inode = v.create_unnamed(FileKind::Regular);
    let (number, free) = (inode.ino(), v.blocks_free());
    let data = pattern(1, 8 * v.block());
    v.write(&inode, 0, &data).expect("written");
    assert!(v.blocks_free() < free);
    v.evict(inode);
    assert_eq!(kind(v.load(number)), Some(ErrorKind::Stale));
    v.engine().sync_volume().expect("synced");
    assert!(v.blocks_free() >= free, "the blocks are free");
}

/// `link` adds a name, counts it, and sets the change times. A taken name is refused.
pub fn links_name_one_inode(v: &mut Fixture) {
    let root = v.root();
    let dir = v.create(&root, b"dir", FileKind::Directory);
    let file = v.create(&root, b"first", FileKind::Regular);
    let now = v.link(&dir, b"second", &file).expect("linked");
    assert_eq!((file.attr().nlink, file.attr().ctime), (2, now));
    assert_eq!(dir.attr().mtime, now);
    let taken = v.link(&root, b"first", &file);
    assert_eq!(kind(taken), Some(ErrorKind::Exists));
    assert_eq!(file.attr().nlink, 2, "a refusal counts nothing");
    let number = file.ino();
    let gone = v.remove(&root, b"first").expect("removed");
    assert_eq!((gone.ino(), gone.attr().nlink), (number, 1));
    v.remount(Access::ReadWrite);
    let root = v.root();
    assert!(v.find(&root, b"first").is_none());
    let dir = v.find(&root, b"dir").expect("found");
    assert_eq!(v.find(&dir, b"second").expect("found").ino(), number);
}

/// An inode without a name keeps its data until it is evicted, and is gone then.
pub fn unlinked_inodes_live_until_evicted(v: &mut Fixture) {
    let root = v.root();
    let free = v.blocks_free();
    let file = v.file("file");
    let data = pattern(3, 5 * v.block());
    v.write(&file, 0, &data).expect("written");
    let unlinked = v.remove(&root, b"file").expect("removed");
    assert_eq!(unlinked.attr().nlink, 0);
    assert!(v.find(&root, b"file").is_none());
    v.engine().sync_volume().expect("synced");
    assert_eq!(v.read(&file), data, "an orphan is read");
    let more = pattern(4, v.block());
    v.write(&file, 5 * v.block(), &more).expect("written");
    assert_eq!(v.read(&file), [data, more].concat(), "and written");
    let number = file.ino();
    v.evict(file);
    assert_eq!(kind(v.load(number)), Some(ErrorKind::Stale));
    v.engine().sync_volume().expect("synced");
    assert!(v.blocks_free() >= free, "its blocks are free");
}

/// `rmdir` refuses a directory with entries, and counts the parent's links.
pub fn only_empty_directories_are_removed(v: &mut Fixture) {
    let root = v.root();
    let links = root.attr().nlink;
    let dir = v.create(&root, b"dir", FileKind::Directory);
    assert_eq!(root.attr().nlink, links + 1, "a subdirectory is a link");
    v.create(&dir, b"x", FileKind::Fifo);
    let refused = v.remove(&root, b"dir");
    assert_eq!(kind(refused), Some(ErrorKind::NotEmpty));
    let x = v.remove(&dir, b"x").expect("removed");
    v.evict(x);
    let gone = v.remove(&root, b"dir").expect("removed");
    assert_eq!((gone.attr().nlink, root.attr().nlink), (0, links));
    let number = gone.ino();
    drop(dir);
    v.evict(gone);
    assert_eq!(kind(v.load(number)), Some(ErrorKind::Stale));
    assert!(v.find(&root, b"dir").is_none());
}

/// `rename` moves a name, replaces files and empty directories, and refuses directories with entries.
pub fn renames_move_and_replace(v: &mut Fixture) {
    let root = v.root();
    let dir = v.create(&root, b"dir", FileKind::Directory);
    let file = v.create(&root, b"file", FileKind::Regular);
    let number = file.ino();
    for (mode, from, to) in [
        (
            RenameMode::NoReplace,
            &b"file"[..],
            &b"a name that is longer"[..],
        ),
        (RenameMode::Replace, b"a name that is longer", b"f"),
    ] {
        v.rename((&root, from), (&root, to), mode).expect("renamed");
        assert!(v.find(&root, from).is_none());
        assert_eq!(v.find(&root, to).expect("found").ino(), number);
    }
    let before = file.attr().ctime;
    v.rename((&root, b"f"), (&dir, b"g"), RenameMode::Replace)
        .expect("renamed");
    assert!(file.attr().ctime > before, "the change time");
    assert_eq!(dir.attr().mtime, root.attr().mtime, "of both directories");

    let victim = v.create(&root, b"victim", FileKind::Regular);
    v.rename((&dir, b"g"), (&root, b"victim"), RenameMode::Replace)
        .expect("renamed");
    assert_eq!(victim.attr().nlink, 0);
    assert_eq!(v.find(&root, b"victim").expect("found").ino(), number);
    v.evict(victim);

    let (full, empty) = (
        v.create(&root, b"full", FileKind::Directory),
        v.create(&root, b"empty", FileKind::Directory),
    );
    v.create(&full, b"x", FileKind::Fifo);
    let refused = v.rename((&root, b"dir"), (&root, b"full"), RenameMode::Replace);
    assert_eq!(kind(refused), Some(ErrorKind::NotEmpty));
    assert_eq!(v.find(&root, b"dir").expect("found").ino(), dir.ino());
    let links = root.attr().nlink;
    v.rename((&root, b"dir"), (&root, b"empty"), RenameMode::Replace)
        .expect("renamed");
    assert_eq!((empty.attr().nlink, root.attr().nlink), (0, links - 1));
    v.evict(empty);
    let (full, dir) = (full.ino(), dir.ino());
    v.remount(Access::ReadWrite);
    let root = v.root();
    let listed: Vec<_> = [&b"victim"[..], b"full", b"empty"]
        .iter()
        .map(|n| v.find(&root, n).expect("found").ino())
        .collect();
    assert_eq!(listed, [number, full, dir]);
}

/// `Exchange` swaps two inodes of any kinds; `Whiteout` leaves a character device 0:0.
pub fn renames_exchange_and_leave_whiteouts(v: &mut Fixture) {
    let root = v.root();
    let (a, b) = (
        v.create(&root, b"a", FileKind::Directory),
        v.create(&root, b"b", FileKind::Directory),
    );
    let dir = v.create(&a, b"dir", FileKind::Directory);
    let file = v.create(&b, b"file", FileKind::Regular);
    v.rename((&a, b"dir"), (&b, b"file"), RenameMode::Exchange)
        .expect("exchanged");
    assert_eq!(v.find(&a, b"dir").expect("found").ino(), file.ino());
    assert_eq!(v.find(&b, b"file").expect("found").ino(), dir.ino());
    assert_eq!((a.attr().nlink, b.attr().nlink), (2, 3));
    assert_eq!((dir.attr().nlink, file.attr().nlink), (2, 1));
    assert_eq!(v.engine().parent(&dir).expect("a parent"), b.ino());

    v.rename((&a, b"dir"), (&b, b"kept"), RenameMode::Whiteout)
        .expect("renamed");
    assert_eq!(v.find(&b, b"kept").expect("found").ino(), file.ino());
    let white = v.find(&a, b"dir").expect("a whiteout").attr();
    assert_eq!((white.kind, white.rdev), (FileKind::CharDevice, 0));
    assert_eq!(white.nlink, 1);
}

/// Any bytes make a name, up to 255 of them.
pub fn names_are_bytes(v: &mut Fixture) {
    let root = v.root();
    let mut names: Vec<Vec<u8>> = (1..=255u8)
        .filter(|b| !b"/.".contains(b))
        .map(|b| vec![b])
        .collect();
    names.push(vec![0xff; 255]);
    names.push(b"...".to_vec());
    names.push("ünï".as_bytes().to_vec());
    for name in &names {
        v.create(&root, name, FileKind::Regular);
    }
    v.remount(Access::ReadWrite);
    let root = v.root();
    for name in &names {
        assert!(v.find(&root, name).is_some(), "{name:?}");
    }
    assert!(v.find(&root, &[0xff; 254]).is_none());
    let listed = v.list(&root, 50);
    assert!(names.iter().all(|n| listed.contains_key(n)));
}

/// Thousands of names in a directory are found and listed, also after half of them went.
pub fn many_names_are_found(v: &mut Fixture) {
    const COUNT: usize = 3000;
    let name = |n: usize| format!("a name of some length, number {n}").into_bytes();
    let root = v.root();
    let dir = v.create(&root, b"dir", FileKind::Directory);
    let first = v.create(&dir, &name(0), FileKind::Regular);
    for n in 1..COUNT {
        if n % 10 == 0 {
            v.create(&dir, &name(n), FileKind::Regular);
        } else {
            v.link(&dir, &name(n), &first).expect("linked");
        }
    }
    for n in (1..COUNT).step_by(2) {
        let now = v.now();
        let inode = v.find(&dir, &name(n)).expect("found");
        let gone = locked(&[&dir, &inode], || {
            v.engine().unlink(&dir, &name(n), &inode, now)
        });
        gone.expect("unlinked");
    }
    v.remount(Access::ReadWrite);
    let root = v.root();
    let dir = v.find(&root, b"dir").expect("found");
    assert_eq!(v.list(&dir, 100).len(), 2 + COUNT / 2);
    for n in 0..COUNT {
        let found = v.find(&dir, &name(n)).is_some();
        assert_eq!(found, n % 2 == 0, "{n}");
    }
}
