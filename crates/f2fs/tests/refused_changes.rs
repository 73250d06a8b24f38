//! A full volume refuses a change that needs a block, and then nothing has changed: a truncation out of the inode, a zeroed range, a copy, a
//! name for which a directory would have to grow out of its inode.

use blockwright_device::{MemoryDevice, SharedDevice};
use blockwright_f2fs::{F2fs, Options, inode};
use blockwright_mkfs::f2fs::FormatOptions;
use blockwright_ondisk::f2fs::InlineFlags;
use blockwright_vfs::{
    CreateRequest, Cred, ErrorKind, FallocMode, FileKind, Handle, InodeRef, MountOptions,
    OpenFlags, Vfs,
};
use std::ops::ControlFlow;
use std::sync::Arc;

fn open(v: &Arc<Vfs>, name: &str) -> Arc<Handle> {
    let cred = Cred::root();
    let root = v.root().expect("a root");
    let inode = v.lookup(&cred, &root, name.as_bytes()).or_else(|_| {
        let request = CreateRequest::new(FileKind::Regular, 0o644);
        let made = v.create(&cred, &root, name.as_bytes(), &request);
        made.map(|(inode, _)| inode)
    });
    let flags = OpenFlags::read_write();
    v.open(&cred, &inode.expect("made"), flags).expect("opened")
}

fn volume() -> Arc<Vfs> {
    let device: SharedDevice = Arc::new(MemoryDevice::new(64 << 20));
    blockwright_mkfs::f2fs::format(&device, &FormatOptions::default()).expect("formatted");
    mount(&device)
}

fn mount(device: &SharedDevice) -> Arc<Vfs> {
    let engine = F2fs::mount(Arc::clone(device), Options::default()).expect("mounted");
    Vfs::new(engine, Arc::clone(device), MountOptions::default())
}

/// Takes all room but this many blocks.
fn fill(v: &Arc<Vfs>, left: u64) {
    // Each takes one block when it is written.
    let pads: Vec<_> = (0..8).map(|n| open(v, &format!("pad{n}"))).collect();
    let filler = open(v, "filler");
    let mut at = 0;
    while let Ok(n @ 1..) = filler.write_at(&[7; 1 << 16], at) {
        at += n as u64;
    }
    v.sync().expect("synced");
    filler.set_len(at - (left << 12)).expect("cut");
    v.sync().expect("synced");
    let free = || v.statfs().expect("statfs").blocks_free;
    for pad in pads {
        if free() > left {
            pad.write_at(&[7; 4096], 0).expect("written");
            v.sync().expect("synced");
        }
    }
    assert_eq!(free(), left);
}

fn read(handle: &Arc<Handle>, v: &Arc<Vfs>) -> Vec<u8> {
    let mut bytes = vec![0; v.stat(handle.inode()).size as usize];
    let n = handle.read_at(&mut bytes, 0).expect("read");
    assert_eq!(n, bytes.len());
    bytes
}

#[test]
fn a_truncation_out_of_the_inode() {
    let v = volume();
    let small = open(&v, "small");
    small.write_at(&[1; 2000], 0).expect("written");
    fill(&v, 0);
    let e = small.set_len(100_000).expect_err("no room");
    assert_eq!(e.kind(), ErrorKind::NoSpace);
    assert_eq!(read(&small, &v), [1; 2000]);
}

#[test]
fn a_zeroed_range() {
    let v = volume();
    let file = open(&v, "file");
    // Data, and a hole for which there is no room.
    file.write_at(&[1; 8 << 12], 0).expect("written");
    file.set_len(64 << 12).expect("set");
    fill(&v, 3);
    let before = read(&file, &v);
    let mode = FallocMode::ZeroRange { keep_size: true };
    let e = file.fallocate(0..32 << 12, mode).expect_err("no room");
    assert_eq!(e.kind(), ErrorKind::NoSpace);
    assert_eq!(read(&file, &v), before);
    // Without the hole there is.
    file.fallocate(0..8 << 12, mode).expect("zeroed");
    assert_eq!(read(&file, &v), vec![0; 64 << 12]);
}

/// The copy is of a hole, and the target, which is in its inode, would have to grow out of it.
#[test]
fn a_copy_says_what_it_changed() {
    let v = volume();
    let (from, to) = (open(&v, "from"), open(&v, "to"));
    from.set_len(20_000).expect("set");
    from.write_at(&[2; 4096], 16_384).expect("written");
    to.write_at(&[1; 1800], 0).expect("written");
    fill(&v, 0);
    let copied = from.copy_range(0, &to, 0, 16_384);
    let mut expected = vec![1; 1800];
    match copied {
        Ok(n) => expected[..n.min(1800) as usize].fill(0),
        Err(e) => assert_eq!(e.kind(), ErrorKind::NoSpace),
    }
    assert_eq!(read(&to, &v), expected);
}

fn dir(v: &Arc<Vfs>, name: &str) -> InodeRef {
    let (cred, root) = (Cred::root(), v.root().expect("a root"));
    let made = v.lookup(&cred, &root, name.as_bytes()).or_else(|_| {
        let request = CreateRequest::new(FileKind::Directory, 0o755);
        let made = v.create(&cred, &root, name.as_bytes(), &request);
        made.map(|(inode, _)| inode)
    });
    made.expect("made")
}

fn name(n: usize) -> String {
    format!("a-name-of-four-slots-{n:04}")
}

fn is_inline(dir: &InodeRef) -> bool {
    let body = inode::f2fs(dir).body.read();
    body.inode.inline.contains(InlineFlags::DENTRY)
}

/// Names that are listed, and that all of them are found.
fn names(v: &Arc<Vfs>, dir: &InodeRef) -> Vec<String> {
    let mut names = Vec::new();
    v.readdir(&Cred::root(), dir, 0, &mut |e| {
        names.push(String::from_utf8_lossy(e.name).into_owned());
        ControlFlow::Continue(())
    })
    .expect("listed");
    names.retain(|name| name != "." && name != "..");
    for name in &names {
        v.lookup(&Cred::root(), dir, name.as_bytes())
            .expect("found");
    }
    names.sort();
    names
}

fn assert_clean(device: &SharedDevice) {
    let options = blockwright_check::f2fs::CheckOptions::default();
    let report = blockwright_check::f2fs::check(Arc::clone(device), &options).expect("checked");
    assert!(report.is_clean(), "{:#?}", report.issues);
}

/// The first hash table of the directory has `1 << dir_level` buckets. There is room for the first of the blocks that its names need.
fn a_name_too_many(dir_level: u8, left: u64) {
    let device: SharedDevice = Arc::new(MemoryDevice::new(64 << 20));
    blockwright_mkfs::f2fs::format(&device, &FormatOptions::default()).expect("formatted");
    let v = mount(&device);
    let cred = Cred::root();
    let file = open(&v, "file");
    let add = |v: &Arc<Vfs>, dir: &InodeRef, n| {
        let file = v.lookup(&cred, &v.root().expect("a root"), b"file")?;
        v.link(&cred, &file, dir, name(n).as_bytes())
    };
    let trial = dir(&v, "trial");
    let fit = (0..)
        .find(|n| {
            add(&v, &trial, *n).expect("named");
            !is_inline(&trial)
        })
        .expect("never");
    let wide = dir(&v, "wide");
    inode::f2fs(&wide).body.write().inode.dir_level = dir_level;
    for n in 0..fit {
        add(&v, &wide, n).expect("named");
    }
    drop(file);
    let mut all: Vec<_> = (0..fit).map(name).collect();
    fill(&v, left);
    for _ in 0..2 {
        let e = add(&v, &wide, fit).expect_err("no room");
        assert_eq!(e.kind(), ErrorKind::NoSpace);
        assert!(is_inline(&wide));
        assert_eq!(names(&v, &wide), all);
        assert_eq!(v.statfs().expect("statfs").blocks_free, left);
    }
    drop((trial, wide));
    v.unmount().expect("unmounted");
    drop(v);
    assert_clean(&device);

    let v = mount(&device);
    let wide = dir(&v, "wide");
    assert_eq!(names(&v, &wide), all);
    let e = add(&v, &wide, fit).expect_err("no room");
    assert_eq!(e.kind(), ErrorKind::NoSpace);
    assert_eq!(names(&v, &wide), all);
    open(&v, "filler").set_len(1 << 20).expect("cut");
    v.sync().expect("synced");
    add(&v, &wide, fit).expect("named");
    all.push(name(fit));
    assert!(!is_inline(&wide));
    assert_eq!(names(&v, &wide), all);
    drop(wide);
    v.unmount().expect("unmounted");
    drop(v);
    assert_clean(&device);
    let v = mount(&device);
    assert_eq!(names(&v, &dir(&v, "wide")), all);
}

#[test]
fn a_name_that_takes_a_directory_out_of_its_inode() {
    a_name_too_many(0, 0);
}

/// Some blocks and the nodes for them are made before there is no room.
#[test]
fn a_name_that_spreads_a_directory() {
    a_name_too_many(5, 3);
    a_name_too_many(12, 5);
}
