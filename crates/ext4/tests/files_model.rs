//! Random changes of file contents through the vfs, checked against bytes in memory, by e2fsck, and after a
//! remount: inline data and its conversion, block maps, extents, quota.

mod support;

use blockwright_device::SharedDevice;
use blockwright_ext4::{ErrorKind, Ext4, Options};
use blockwright_vfs::CreateRequest;
use blockwright_vfs::Cred;
use blockwright_vfs::OpenFlags;
use blockwright_vfs::engine::{FallocMode, SyncScope};
use blockwright_vfs::types::{FileKind, XattrMode};
use blockwright_vfs::{MountOptions, Vfs};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use support::{Image, fsck, have, save};

fn mount(device: &SharedDevice) -> Arc<Vfs> {
    let engine = Ext4::mount(Arc::clone(device), Options::default()).unwrap();
    Vfs::new(engine, Arc::clone(device), MountOptions::default())
}

fn check(v: &Arc<Vfs>, files: &[Option<Vec<u8>>], what: &str) {
    let cred = Cred::root();
    let root = v.root().unwrap();
    for (n, want) in files.iter().enumerate() {
        let found = v.lookup(&cred, &root, format!("f{n}").as_bytes());
        let Some(want) = want else {
            assert_eq!(found.unwrap_err().kind(), ErrorKind::NotFound);
            continue;
        };
        let inode = found.unwrap();
        assert_eq!(
            v.stat(&inode).size,
            want.len() as u64,
            "{what}: size of f{n}"
        );
        let handle = v.open(&cred, &inode, OpenFlags::read_only()).unwrap();
        let mut got = vec![0xAA; want.len() + 10];
        let len = handle.read_at(&mut got, 0).unwrap();
        assert_eq!(len, want.len());
        if got[..len] != want[..] {
            let at = (0..len).find(|i| got[*i] != want[*i]).unwrap();
            panic!("{what}: f{n} of {len} bytes differs from byte {at} on");
        }
    }
}

fn run(what: &str, mkfs: &[&str], steps: usize) {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let seed = std::env::var("FILES_SEED").map_or(1, |s| s.parse().unwrap());
    eprintln!("{what}: seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let image = Image::make(48 << 10, &[&["-t", "ext4"], mkfs].concat());
    let scratch = tempfile::tempdir().unwrap();
    let memory = Arc::new(image.load());
    let device: SharedDevice = memory.clone();
    let cred = Cred::root();
    let mut files: Vec<Option<Vec<u8>>> = vec![None; 24];
    let mut v = mount(&device);
    for step in 0..steps {
        let root = v.root().unwrap();
        let n = rng.random_range(0..files.len());
        let name = format!("f{n}").into_bytes();
        let Some(bytes) = &mut files[n] else {
            let req = CreateRequest::new(FileKind::Regular, 0o644);
            v.create(&cred, &root, &name, &req).unwrap();
            files[n] = Some(Vec::new());
            continue;
        };
        let inode = v.lookup(&cred, &root, &name).unwrap();
        let handle = v.open(&cred, &inode, OpenFlags::read_write()).unwrap();
        // Half of the files stay small enough for the inode.
        let limit = if n % 2 == 0 { 200 } else { 60_000 };
        match rng.random_range(0..100) {
            0..50 => {
                let at = rng.random_range(0..limit);
                let len = rng.random_range(1..limit);
                let data: Vec<u8> = (0..len).map(|_| rng.random()).collect();
                assert_eq!(handle.write_at(&data, at as u64).unwrap(), len);
                if bytes.len() < at + len {
                    bytes.resize(at + len, 0);
                }
                bytes[at..at + len].copy_from_slice(&data);
            }
            50..65 => {
                let size = rng.random_range(0..limit * 2);
                handle.set_len(size as u64).unwrap();
                bytes.resize(size, 0);
            }
            65..75 => handle.sync(SyncScope::All).unwrap(),
            75..80 => {
                let len = rng.random_range(0..120);
                match v.set_xattr(&cred, &inode, b"user.x", &vec![1; len], XattrMode::Any) {
                    Ok(()) => {}
                    Err(e) => assert_eq!(e.kind(), ErrorKind::NoSpace),
                }
            }
            80..86 => {
                let at = rng.random_range(0..limit) as u64;
                let end = at + rng.random_range(1..limit) as u64;
                match handle.fallocate(at..end, FallocMode::PunchHole) {
                    Ok(()) => {
                        let end = bytes.len().min(end as usize);
                        if (at as usize) < end {
                            bytes[at as usize..end].fill(0);
                        }
                    }
                    Err(e) => assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}"),
                }
            }
            86..90 => {
                let at = rng.random_range(0..limit) as u64;
                let end = at + rng.random_range(1..limit) as u64;
                let mode = FallocMode::Allocate { keep_size: false };
                match handle.fallocate(at..end, mode) {
                    Ok(()) => {
                        let len = bytes.len().max(end as usize);
                        bytes.resize(len, 0);
                    }
                    Err(e) => assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}"),
                }
            }
            90..94 => {
                drop(handle);
                v.unlink(&cred, &root, &name).unwrap();
                files[n] = None;
            }
            94..97 => v.sync().unwrap(),
            _ => v.drop_caches(),
        }
        if step % 400 == 399 {
            check(&v, &files, what);
        }
        if step % 1000 == 999 {
            drop((inode, root));
            v.unmount().unwrap();
            if let Err(e) = fsck(&save(&memory, scratch.path(), "image")) {
                panic!("{what}, step {step}: {e}");
            }
            v = mount(&device);
            check(&v, &files, what);
        }
    }
    check(&v, &files, what);
    v.unmount().unwrap();
    if let Err(e) = fsck(&save(&memory, scratch.path(), "image")) {
        panic!("{what}: {e}");
    }
    let v = mount(&device);
    check(&v, &files, what);
    v.unmount().unwrap();
}

macro_rules! matrix {
    ($($name:ident: [$($arg:literal),*] $steps:literal;)*) => {
        $(#[test]
        fn $name() {
            run(stringify!($name), &[$($arg),*], $steps);
        })*
    };
}

matrix! {
    extents: [] 3000;
    extents_1k_quota: ["-b", "1024", "-O", "quota"] 3000;
    inline: ["-O", "inline_data"] 4000;
    inline_512: ["-O", "inline_data", "-I", "512", "-b", "1024"] 4000;
    inline_everything: ["-O", "inline_data,ea_inode,quota", "-I", "1024"] 3000;
    inline_no_extents: ["-O", "inline_data,^extent,^64bit", "-b", "1024"] 3000;
    block_map: ["-O", "^extent,^64bit,^metadata_csum", "-b", "1024"] 3000;
    block_64k: ["-b", "65536", "-O", "inline_data"] 1000;
    no_journal: ["-O", "^has_journal,inline_data"] 3000;
}
