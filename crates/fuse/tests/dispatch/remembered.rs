//! Inodes that the kernel remembers leave memory when they are not in use, and no program can tell.

use super::*;
use blockwright_fuse::protocol::request::{LinkIn, MkDirIn, RenameIn};

const FILES: u64 = 3000;
/// More are never held for having been in use lately.
const HELD_MAX: u64 = 64 * 16;

impl Kernel {
    /// A volume that keeps no inode in memory for later use.
    fn forgetful() -> Self {
        let kernel = Kernel::new(&FuseOptions::default());
        kernel.volume.vfs.tune("inodes_idle_max", 0).unwrap();
        kernel
    }

    fn close(&self, node: u64, open: &OpenOut) {
        let release = ReleaseIn {
            fh: open.fh,
            ..ReleaseIn::default()
        };
        self.call(Opcode::Release, node, release.as_bytes())
            .unwrap();
    }

    /// Files that it remembers, so many that the first ones are held no more.
    fn remember_many(&self) -> Vec<EntryOut> {
        let mut entries = Vec::new();
        for n in 0..FILES {
            let (entry, open) = self.create(&format!("f{n}"), libc::O_RDWR);
            self.close(entry.nodeid, &open);
            entries.push(entry);
        }
        // Files are let go of behind.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while counted(self, "inodes_cached") > HELD_MAX + 10 {
            assert!(std::time::Instant::now() < deadline, "inodes stay");
            std::thread::yield_now();
        }
        entries
    }

    fn attr(&self, node: u64) -> Result<AttrOut, i32> {
        self.call(Opcode::GetAttr, node, &[0; 16])
            .map(|bytes| pod(&bytes))
    }
}

#[test]
fn remembered_inodes_leave_memory_and_come_back() {
    let kernel = Kernel::forgetful();
    let entries = kernel.remember_many();
    assert_eq!(counted(&kernel, "fuse_nodes"), FILES);
    assert!(counted(&kernel, "fuse_nodes_held") <= HELD_MAX);
    let bytes = counted(&kernel, "fuse_nodes_bytes");
    // A kilobyte of room for each of 64 shards, beside what is held.
    assert!(bytes <= (FILES + HELD_MAX) * 64 + (64 << 10), "{bytes}");
    for (n, entry) in entries.iter().enumerate() {
        let attr = kernel.attr(entry.nodeid).unwrap().attr;
        assert_eq!((attr.ino, attr.nlink), (entry.nodeid, 1));
        let again = kernel.lookup(&format!("f{n}"));
        assert_eq!(
            (again.nodeid, again.generation),
            (entry.nodeid, entry.generation)
        );
    }
    assert_eq!(counted(&kernel, "fuse_nodes"), FILES);
    for entry in &entries {
        kernel.forget(entry.nodeid, 1);
    }
    assert_eq!(
        counted(&kernel, "fuse_nodes"),
        FILES,
        "one of two is left of each"
    );
    for entry in &entries {
        kernel.forget(entry.nodeid, 1);
    }
    assert_eq!(kernel.dispatcher.held(), (0, 0));
    let left = counted(&kernel, "fuse_nodes_bytes");
    assert!(
        left < bytes,
        "{left} of {bytes} bytes for nodes that are no more"
    );
}

/// Times that are in memory only are there again, to the nanosecond, when the inode is.
#[test]
fn lazy_times_outlive_eviction() {
    let kernel = Kernel::forgetful();
    let entries = kernel.remember_many();
    let node = entries[0].nodeid;
    let open = OpenIn {
        flags: libc::O_RDWR.cast_unsigned(),
        open_flags: 0,
    };
    let old = SetAttrIn {
        valid: (SetAttrValid::ATIME | SetAttrValid::MTIME).bits(),
        atime: 1000,
        atimensec: 17,
        mtime: 2000,
        mtimensec: 999_999_999,
        ..SetAttrIn::default()
    };
    kernel.call(Opcode::SetAttr, node, old.as_bytes()).unwrap();
    let open: OpenOut = pod(&kernel.call(Opcode::Open, node, open.as_bytes()).unwrap());
    kernel.write(node, open.fh, 0, b"data").unwrap();
    assert_eq!(kernel.read(node, open.fh, 0, 4).unwrap(), b"data");
    let fsync = FsyncIn {
        fh: open.fh,
        ..FsyncIn::default()
    };
    kernel.call(Opcode::Fsync, node, fsync.as_bytes()).unwrap();
    kernel.read(node, open.fh, 0, 4).unwrap();
    let before = kernel.attr(node).unwrap().attr;
    assert!(before.atime > 2000, "the read is noted");
    kernel.close(node, &open);
    // Push it out.
    for entry in &entries {
        kernel.attr(entry.nodeid).unwrap();
    }
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while counted(&kernel, "inodes_cached") > HELD_MAX + 10 {
        assert!(std::time::Instant::now() < deadline, "inodes stay");
        std::thread::yield_now();
    }
    let after = kernel.attr(node).unwrap().attr;
    assert_eq!(
        (after.atime, after.atimensec, after.mtime, after.mtimensec),
        (
            before.atime,
            before.atimensec,
            before.mtime,
            before.mtimensec
        )
    );
}

/// What loses its last name lives until it is forgotten, in memory or not when that happened: file, directory, and what a
/// rename replaces.
#[test]
fn remembered_inodes_without_names_live_until_forgotten() {
    let kernel = Kernel::forgetful();
    let dir = [
        MkDirIn {
            mode: 0o755,
            umask: 0,
        }
        .as_bytes(),
        b"dir\0",
    ]
    .concat();
    let dir: EntryOut = pod(&kernel.call(Opcode::MkDir, ROOT_ID, &dir).unwrap());
    let entries = kernel.remember_many();
    let inodes = kernel.volume.engine.inode_count();

    kernel.call(Opcode::Unlink, ROOT_ID, b"f0\0").unwrap();
    kernel.call(Opcode::RmDir, ROOT_ID, b"dir\0").unwrap();
    let rename = [RenameIn { newdir: ROOT_ID }.as_bytes(), b"f1\0f2\0"].concat();
    kernel.call(Opcode::Rename, ROOT_ID, &rename).unwrap();
    let gone = [entries[0].nodeid, dir.nodeid, entries[2].nodeid];

    // Others come and go, and nothing that was not asked for stays.
    for entry in &entries[1000..] {
        kernel.attr(entry.nodeid).unwrap();
    }
    for node in gone {
        assert_eq!(kernel.attr(node).unwrap().attr.nlink, 0);
    }
    assert_eq!(kernel.attr(entries[1].nodeid).unwrap().attr.nlink, 1);
    assert_eq!(kernel.volume.engine.inode_count(), inodes);
    for node in gone {
        kernel.forget(node, 1);
    }
    kernel.call(Opcode::StatFs, ROOT_ID, &[]).unwrap();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while kernel.volume.engine.inode_count() != inodes - 3 {
        assert!(std::time::Instant::now() < deadline, "not freed");
        std::thread::yield_now();
    }
    for node in gone {
        assert_eq!(kernel.attr(node).err(), Some(libc::ESTALE));
    }
    // A file that is not remembered goes with its name.
    kernel.forget(entries[3].nodeid, 1);
    kernel.call(Opcode::Unlink, ROOT_ID, b"f3\0").unwrap();
    assert_eq!(kernel.volume.engine.inode_count(), inodes - 4);
}

/// A file that was made without a name is held until it has one.
#[test]
fn a_name_that_comes_later_is_as_good() {
    let kernel = Kernel::forgetful();
    let head = CreateIn {
        flags: libc::O_RDWR.cast_unsigned(),
        mode: 0o100_644,
        ..CreateIn::default()
    };
    let body = [head.as_bytes(), b"\0"].concat();
    let reply = kernel.call(Opcode::TmpFile, ROOT_ID, &body).unwrap();
    let (entry, open): (EntryOut, OpenOut) = (pod(&reply), pod(&reply[size_of::<EntryOut>()..]));
    kernel.close(entry.nodeid, &open);
    kernel.remember_many();
    assert_eq!(kernel.attr(entry.nodeid).unwrap().attr.nlink, 0);
    let link = LinkIn {
        oldnodeid: entry.nodeid,
    };
    let link = [link.as_bytes(), b"named\0"].concat();
    kernel.call(Opcode::Link, ROOT_ID, &link).unwrap();
    assert_eq!(counted(&kernel, "fuse_nodes_held"), 0);
    assert_eq!(kernel.attr(entry.nodeid).unwrap().attr.nlink, 1);
    kernel.forget(entry.nodeid, 2);
    assert_eq!(kernel.lookup("named").nodeid, entry.nodeid);
}

/// Another user of the volume removes a file that the kernel remembers.
#[test]
fn a_file_that_was_removed_behind_the_kernels_back_is_stale() {
    let kernel = Kernel::forgetful();
    let entries = kernel.remember_many();
    let vfs = &kernel.volume.vfs;
    let root = vfs.root().unwrap();
    vfs.unlink(&blockwright_vfs::Cred::root(), &root, b"f0")
        .unwrap();
    assert_eq!(kernel.attr(entries[0].nodeid).err(), Some(libc::ESTALE));
    kernel.forget(entries[0].nodeid, 1);
    assert_eq!(counted(&kernel, "fuse_nodes"), FILES - 1);
}

/// Threads make, look up, remove and forget the same few names while every inode leaves memory at once.
#[test]
fn storm_of_lookups_and_forgets() {
    let kernel = Kernel::forgetful();
    let before = kernel.volume.engine.inode_count();
    std::thread::scope(|scope| {
        for thread in 0..6u64 {
            let kernel = &kernel;
            scope.spawn(move || {
                let mut at = thread + 1;
                let mut draw = |below: u64| {
                    at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (at >> 33) % below
                };
                let mut known: Vec<u64> = Vec::new();
                for _ in 0..4000 {
                    let name = format!("n{}", draw(12));
                    let bytes = [name.as_bytes(), b"\0"].concat();
                    match draw(6) {
                        0 => {
                            let head = CreateIn {
                                flags: libc::O_RDWR.cast_unsigned(),
                                mode: 0o100_644,
                                ..CreateIn::default()
                            };
                            let body = [head.as_bytes(), &bytes].concat();
                            let reply = kernel.call(Opcode::Create, ROOT_ID, &body).unwrap();
                            let entry: EntryOut = pod(&reply);
                            let open: OpenOut = pod(&reply[size_of::<EntryOut>()..]);
                            kernel.write(entry.nodeid, open.fh, 0, &[1; 100]).unwrap();
                            kernel.close(entry.nodeid, &open);
                            known.push(entry.nodeid);
                        }
                        1 => {
                            let _ = kernel.call(Opcode::Unlink, ROOT_ID, &bytes);
                        }
                        2 => {
                            let other = format!("n{}", draw(12));
                            let rename = [
                                RenameIn { newdir: ROOT_ID }.as_bytes(),
                                &bytes,
                                other.as_bytes(),
                                b"\0",
                            ]
                            .concat();
                            let _ = kernel.call(Opcode::Rename, ROOT_ID, &rename);
                        }
                        3 => {
                            let entry = kernel.lookup(&name);
                            if entry.nodeid != 0 {
                                known.push(entry.nodeid);
                            }
                        }
                        4 if !known.is_empty() => {
                            let which = draw(known.len() as u64) as usize;
                            kernel.forget(known.swap_remove(which), 1);
                        }
                        _ => {
                            // What is remembered can always be asked about.
                            for node in &known {
                                let attr = kernel.attr(*node).unwrap().attr;
                                assert_eq!(attr.ino, *node);
                            }
                            while known.len() > 20 {
                                kernel.forget(known.remove(0), 1);
                            }
                        }
                    }
                }
                for node in known {
                    kernel.forget(node, 1);
                }
            });
        }
    });
    assert_eq!(kernel.dispatcher.held(), (0, 0));
    for n in 0..12 {
        let _ = kernel.call(Opcode::Unlink, ROOT_ID, format!("n{n}\0").as_bytes());
    }
    kernel.dispatcher.close();
    assert_eq!(kernel.volume.engine.inode_count(), before);
}
