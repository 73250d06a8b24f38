//! Names in special places: other hashes, folded case, encrypted directories, listings under change, full
//! volumes, orphans; judged by e2fsck and the running kernel.

mod support;
#[path = "support/volume.rs"]
mod volume;

use blockwright_device::{MemoryDevice, SharedDevice};
use blockwright_ext4::ErrorKind;
use blockwright_vfs::engine::{Attributes, Data, Names, Space, Volume as _};
use blockwright_vfs::types::{AttrChange, FileKind, InodeFlags, XattrMode};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use support::{Image, Mounted, fsck, have, run, save};
use volume::Volume;

struct Case {
    dir: tempfile::TempDir,
    memory: Arc<MemoryDevice>,
    device: SharedDevice,
}

impl Case {
    fn new(kib: u64, args: &[&str]) -> Option<Case> {
        if !have("mke2fs") || !have("e2fsck") {
            return None;
        }
        Some(Self::of(&Image::make(kib, args)))
    }

    fn of(image: &Image) -> Case {
        let memory = Arc::new(image.load());
        Case {
            dir: tempfile::tempdir().unwrap(),
            device: memory.clone(),
            memory,
        }
    }

    fn check(&self) {
        let path = save(&self.memory, self.dir.path(), "image");
        fsck(&path).unwrap();
    }
}

/// Mounts an image with the kernel for as long as `f` runs; `None`, loudly, where that is not possible.
fn with_kernel<R>(image: &Path, options: &str, f: impl FnOnce(&Path) -> R) -> Option<R> {
    let mounted = Mounted::new(image, options)?;
    Some(f(mounted.path()))
}

fn odd_names(n: usize) -> Vec<Vec<u8>> {
    (0..n)
        .map(|i| {
            let mut name = format!("{}é\u{4e2d}-{i}", "x".repeat(i % 40)).into_bytes();
            if i % 3 == 0 {
                name.extend_from_slice(&[0xFF, 0x80 + (i % 64) as u8]);
            }
            name
        })
        .collect()
}

#[test]
fn every_hash_in_both_flavours() {
    for alg in ["legacy", "half_md4", "tea"] {
        for flags in ["1", "2"] {
            if !have("mke2fs") || !have("debugfs") {
                return;
            }
            let image = Image::make(32 << 10, &["-t", "ext4", "-b", "1024", "-N", "4096"]);
            let tune = format!("set_super_value def_hash_version {alg}");
            let flag = format!("set_super_value flags {flags}");
            for command in [&tune, &flag] {
                run("debugfs", &["-w", "-R", command, image.text()]);
            }
            let case = Case::of(&image);
            let mut v = Volume::mount(&case.device);
            let root = v.root();
            let dir = v.mkdir(&root, b"dir");
            let names = odd_names(2500);
            for name in &names {
                v.create(&dir, name, FileKind::Regular).unwrap();
            }
            let listed = v.list(&dir, 37);
            assert_eq!(listed.len(), names.len() + 2);
            v.unmount();
            case.check();
            let path = save(&case.memory, case.dir.path(), "kernel");
            with_kernel(&path, "ro", |at| {
                use std::os::unix::ffi::OsStrExt;
                for name in &names {
                    let path = at.join("dir").join(std::ffi::OsStr::from_bytes(name));
                    assert!(path.symlink_metadata().is_ok(), "{alg} {flags}: {path:?}");
                }
            });
        }
    }
}

#[test]
fn a_listing_survives_changes() {
    for args in [
        &["-t", "ext4", "-b", "1024", "-N", "20000"][..],
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-N",
            "20000",
            "-O",
            "^dir_index",
        ],
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-N",
            "20000",
            "-O",
            "inline_data",
            "-I",
            "512",
        ],
    ] {
        let Some(case) = Case::new(64 << 10, args) else {
            return;
        };
        let mut v = Volume::mount(&case.device);
        let root = v.root();
        for keep in [3, 40, 900] {
            let dir = v.mkdir(&root, format!("d{keep}").as_bytes());
            let name = |i: usize| format!("keep-{i}").into_bytes();
            for i in 0..keep {
                v.create(&dir, &name(i), FileKind::Regular).unwrap();
            }
            let mut seen = Vec::new();
            let (mut cookie, mut round) = (0, 0);
            while let Some(next) = v.list_some(&dir, cookie, 7, &mut seen) {
                cookie = next;
                round += 1;
                // In the order of offsets new names come last: they would be listed forever.
                for i in 0..if round < 150 { 12 } else { 0 } {
                    let name = format!("other-{round}-{i}").into_bytes();
                    if v.create(&dir, &name, FileKind::Regular).is_ok() && i % 3 != 0 {
                        let inode = v.unlink(&dir, &name);
                        v.settle(&inode);
                    }
                }
                assert!(
                    round < 2000,
                    "{args:?} {keep}: the listing does not end; at {cookie:#x}"
                );
            }
            let kept: Vec<_> = seen
                .iter()
                .filter(|(n, _)| n.starts_with(b"keep"))
                .collect();
            let unique: BTreeSet<_> = kept.iter().map(|(n, _)| n.clone()).collect();
            assert_eq!(kept.len(), keep, "{args:?}: repeated or lost");
            assert_eq!(unique.len(), keep);
        }
        v.unmount();
        case.check();
    }
}

#[test]
fn a_hundred_thousand_names() {
    let args = ["-t", "ext4", "-N", "110000"];
    let Some(case) = Case::new(256 << 10, &args) else {
        return;
    };
    let mut v = Volume::mount(&case.device);
    let root = v.root();
    let dir = v.mkdir(&root, b"dir");
    let start = std::time::Instant::now();
    for i in 0..100_000 {
        v.create(&dir, format!("file-{i:08}").as_bytes(), FileKind::Regular)
            .unwrap();
        v.inodes.clear();
    }
    eprintln!("created in {:?}", start.elapsed());
    let start = std::time::Instant::now();
    assert_eq!(v.list(&dir, 100).len(), 100_002);
    eprintln!("listed in {:?}", start.elapsed());
    v.unmount();
    case.check();
}

#[test]
fn an_index_of_three_levels() {
    let args = ["-t", "ext4", "-b", "1024", "-O", "large_dir", "-N", "1000"];
    let Some(case) = Case::new(160 << 10, &args) else {
        return;
    };
    let mut v = Volume::mount(&case.device);
    let root = v.root();
    let dir = v.mkdir(&root, b"dir");
    let file = v.create(&root, b"file", FileKind::Regular).unwrap();
    let now = v.now();
    // One file has at most 65000 names, so several share the work.
    let mut file = file;
    for i in 0..170_000 {
        if i % 60_000 == 59_999 {
            file = v
                .create(&root, format!("file{i}").as_bytes(), FileKind::Regular)
                .unwrap();
        }
        let name = format!("{i:08}-{}", "z".repeat(60));
        v.engine.link(&dir, name.as_bytes(), &file, now).unwrap();
    }
    assert_eq!(v.list(&dir, 1000).len(), 170_002);
    v.unmount();
    case.check();
}

#[test]
fn folded_names_agree_with_e2fsck() {
    let args = [
        "-t",
        "ext4",
        "-b",
        "1024",
        "-O",
        "casefold",
        "-E",
        "encoding=utf8",
    ];
    let Some(case) = Case::new(32 << 10, &args) else {
        return;
    };
    let mut v = Volume::mount(&case.device);
    let root = v.root();
    let dir = v.mkdir(&root, b"dir");
    let fold = AttrChange {
        flags: Some(InodeFlags::CASEFOLD),
        ..AttrChange::default()
    };
    v.engine.set_attr(&dir, &fold).unwrap();
    let alphabets = [
        "ABCÄÖÜß",
        "ÀÉÎÕǅǆİıſ",
        "ΑΒΓΣςάΐᾳ",
        "АБВЁѐ",
        "ԱԲև",
        "ᎠᎡꭰ",
        "ﬀﬁﬅ",
        "ẞẛK",
        "Ωμ",
        "\u{1E0B}\u{323}",
        "e\u{301}\u{323}",
        "가각",
        "\u{FDFA}",
        "ᲐⲀⰀ",
        "𐐀𐐨",
        "a\u{200D}b",
        "①Ⓐⅷ",
        "ꙀꙁꞋ",
    ];
    let mut n = 0;
    for a in alphabets {
        for b in alphabets {
            for i in 0..4 {
                let name = format!("{a}{i}{b}");
                v.create(&dir, name.as_bytes(), FileKind::Regular).unwrap();
                n += 1;
            }
        }
    }
    assert!(v.find(&dir, "abcäöüss2ABCÄÖÜß".as_bytes()).is_some());
    assert!(v.find(&dir, "STRASSE".as_bytes()).is_none());
    let again = v.create(&dir, "abcÄöüSS1abcäöüẞ".as_bytes(), FileKind::Regular);
    assert_eq!(again.unwrap_err().kind(), ErrorKind::Exists);
    let newer = v.create(&dir, "\u{10570}".as_bytes(), FileKind::Regular);
    assert_eq!(newer.unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(v.list(&dir, 50).len(), n + 2);
    v.unmount();
    case.check();
}

#[test]
fn encrypted_names_are_shown_as_the_kernel_shows_them() {
    if !have("mke2fs") {
        return;
    }
    let image = Image::make(
        32 << 10,
        &["-t", "ext4", "-O", "encrypt,stable_inodes", "-b", "4096"],
    );
    let made = with_kernel(&image.path, "test_dummy_encryption=v2", |at| {
        let dir = at.join("secret");
        std::fs::create_dir(&dir).unwrap();
        for i in 0..400 {
            let name = format!("{i}-{}", "n".repeat(i * 7 % 240));
            std::fs::write(dir.join(name), b"contents").unwrap();
        }
        std::os::unix::fs::symlink("target", dir.join("link")).unwrap();
    });
    if made.is_none() {
        return;
    }
    let shown = with_kernel(&image.path, "ro", |at| {
        use std::os::unix::ffi::OsStrExt;
        std::fs::read_dir(at.join("secret"))
            .unwrap()
            .map(|e| e.unwrap().file_name().as_bytes().to_vec())
            .collect::<BTreeSet<_>>()
    });
    let case = Case::of(&image);
    let mut v = Volume::mount(&case.device);
    let root = v.root();
    let dir = v.find(&root, b"secret").unwrap();
    let mut listed = v.list(&dir, 33);
    listed.remove(&b"."[..]);
    listed.remove(&b".."[..]);
    assert_eq!(listed.len(), 401);
    for (name, ino) in &listed {
        let (found, _) = v.engine.lookup(&dir, name).unwrap().unwrap();
        assert_eq!(found.0, *ino);
        let inode = v.get(*ino);
        let refused = match inode.kind() {
            FileKind::Symlink => v.engine.read_link(&inode).map(drop),
            _ => v.engine.map(&inode, 0, 1).map(drop),
        };
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::KeyRequired);
    }
    let refused = v.create(&dir, b"new", FileKind::Regular);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::KeyRequired);
    let ours: BTreeSet<_> = listed.keys().cloned().collect();
    assert_eq!(Some(ours), shown);
    v.unmount();
    case.check();
}

#[test]
fn a_full_volume_loses_nothing() {
    for args in [
        &["-t", "ext4", "-b", "1024", "-N", "8000"][..],
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-N",
            "2000",
            "-O",
            "inline_data,quota",
        ],
        &["-t", "ext3", "-b", "1024", "-N", "8000"],
    ] {
        let Some(case) = Case::new(8 << 10, args) else {
            return;
        };
        let mut v = Volume::mount(&case.device);
        let root = v.root();
        let dir = v.mkdir(&root, b"dir");
        let mut made = BTreeSet::new();
        let mut full = 0;
        for i in 0..20_000 {
            let name = format!("{i}-{}", "y".repeat(200)).into_bytes();
            let kind = if i % 5 == 0 {
                FileKind::Directory
            } else {
                FileKind::Regular
            };
            match v.create(&dir, &name, kind) {
                Ok(_) => {
                    made.insert(name);
                }
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
                    full += 1;
                    if full > 20 {
                        break;
                    }
                }
            }
        }
        assert!(full > 0);
        let mut listed: BTreeSet<_> = v.list(&dir, 100).into_keys().collect();
        listed.remove(&b"."[..]);
        listed.remove(&b".."[..]);
        assert_eq!(listed, made);
        v.unmount();
        case.check();
    }
}

#[test]
fn orphans_are_finished_at_the_next_mount() {
    for args in [
        &["-t", "ext4"][..],
        &["-t", "ext4", "-O", "orphan_file"],
        &["-t", "ext4", "-O", "ea_inode,quota,inline_data"],
        &["-t", "ext2"],
    ] {
        let Some(case) = Case::new(32 << 10, args) else {
            return;
        };
        let mut v = Volume::mount(&case.device);
        let root = v.root();
        let free = v.engine.statfs().unwrap();
        for i in 0..50 {
            let name = format!("f{i}").into_bytes();
            let inode = v.create(&root, &name, FileKind::Regular).unwrap();
            v.engine
                .set_xattr(
                    &inode,
                    b"user.x",
                    &vec![i as u8; 200 + 40 * i],
                    XattrMode::Any,
                )
                .map_or_else(|e| assert_eq!(e.kind(), ErrorKind::NoSpace), drop);
        }
        // Off the list again from the middle, the front and the end.
        let gone: Vec<_> = (0..50)
            .map(|i| v.unlink(&root, format!("f{i}").as_bytes()))
            .collect();
        for i in [25, 49, 0, 48, 1] {
            v.settle(&gone[i]);
        }
        let unnamed = v
            .engine
            .create_unnamed(&root, &Volume::new_inode(FileKind::Regular))
            .unwrap();
        let named = v
            .engine
            .create_unnamed(&root, &Volume::new_inode(FileKind::Regular))
            .unwrap();
        let now = v.now();
        v.engine.link(&root, b"named", &named, now).unwrap();
        assert_eq!((unnamed.attr().nlink, named.attr().nlink), (0, 1));
        v.engine.sync_volume().unwrap();
        // The power goes.
        let after = Arc::new(case.memory.snapshot());
        let crashed = Case {
            dir: tempfile::tempdir().unwrap(),
            device: after.clone(),
            memory: after,
        };
        let mut w = Volume::mount(&crashed.device);
        let root = w.root();
        assert!(w.find(&root, b"named").is_some());
        let now_free = w.engine.statfs().unwrap();
        assert_eq!(now_free.files_free + 1, free.files_free, "{args:?}");
        w.unmount();
        crashed.check();
    }
}

#[test]
fn the_kernel_reads_what_we_wrote_and_we_what_it_wrote() {
    use std::os::unix::fs::MetadataExt;
    if !have("mke2fs") {
        return;
    }
    let image = Image::make(64 << 10, &["-t", "ext4", "-O", "ea_inode", "-I", "512"]);
    let names = odd_names(1500);
    let made = with_kernel(&image.path, "user_xattr,acl", |at| {
        use std::os::unix::ffi::OsStrExt;
        std::fs::create_dir(at.join("big")).unwrap();
        for name in &names {
            std::fs::write(at.join("big").join(std::ffi::OsStr::from_bytes(name)), b"").unwrap();
        }
        for name in names.iter().step_by(3) {
            std::fs::remove_file(at.join("big").join(std::ffi::OsStr::from_bytes(name))).unwrap();
        }
        for (name, len) in [("small", 5), ("middle", 900), ("large", 30_000)] {
            let file = at.join(name);
            std::fs::write(&file, b"").unwrap();
            let value = "v".repeat(len);
            run(
                "setfattr",
                &["-n", "user.v", "-v", &value, file.to_str().unwrap()],
            );
        }
        std::os::unix::fs::symlink("s".repeat(59), at.join("short")).unwrap();
        std::os::unix::fs::symlink("l".repeat(60), at.join("long")).unwrap();
        run(
            "setfacl",
            &["-m", "u:1234:rw,g:77:r", at.join("small").to_str().unwrap()],
        );
    });
    if made.is_none() {
        return;
    }
    let case = Case::of(&image);
    let mut v = Volume::mount(&case.device);
    let root = v.root();
    let big = v.find(&root, b"big").unwrap();
    let listed = v.list(&big, 64);
    assert_eq!(listed.len(), 1002);
    for (i, name) in names.iter().enumerate() {
        assert_eq!(v.find(&big, name).is_some(), i % 3 != 0);
    }
    for (name, len) in [(&b"small"[..], 5), (b"middle", 900), (b"large", 30_000)] {
        let inode = v.find(&root, name).unwrap();
        assert_eq!(
            v.engine.get_xattr(&inode, b"user.v").unwrap(),
            vec![b'v'; len]
        );
    }
    for (name, len) in [(&b"short"[..], 59), (b"long", 60)] {
        let inode = v.find(&root, name).unwrap();
        assert_eq!(v.engine.read_link(&inode).unwrap().len(), len);
    }
    // Now change what the kernel made, and let it look.
    for name in &names[1..2] {
        let inode = v.unlink(&big, name);
        v.settle(&inode);
    }
    let large = v.find(&root, b"large").unwrap();
    v.engine
        .set_xattr(&large, b"user.w", &[b'w'; 20_000], XattrMode::Create)
        .unwrap();
    v.engine
        .set_xattr(&large, b"user.v", b"shorter", XattrMode::Replace)
        .unwrap();
    let mut special = Volume::new_inode(FileKind::CharDevice);
    special.rdev = 0x1021_0303;
    let device = v.engine.create(&root, b"device", &special).unwrap();
    assert_eq!(device.attr().rdev, special.rdev);
    let dir = v.mkdir(&root, b"ours");
    for name in &names {
        v.create(&dir, name, FileKind::Fifo).unwrap();
    }
    v.engine.evict(&device).unwrap();
    let inos = v.list(&dir, 1000);
    v.unmount();
    case.check();
    let path = save(&case.memory, case.dir.path(), "kernel");
    with_kernel(&path, "user_xattr", |at| {
        use std::os::unix::ffi::OsStrExt;
        assert_eq!(std::fs::read_dir(at.join("big")).unwrap().count(), 999);
        let mut n = 0;
        for e in std::fs::read_dir(at.join("ours")).unwrap() {
            let e = e.unwrap();
            assert_eq!(inos[e.file_name().as_bytes()], e.metadata().unwrap().ino());
            n += 1;
        }
        assert_eq!(n, names.len());
        let shown = run(
            "getfattr",
            &[
                "--only-values",
                "-n",
                "user.w",
                at.join("large").to_str().unwrap(),
            ],
        );
        assert_eq!(shown.stdout, vec![b'w'; 20_000]);
        let shown = run(
            "getfattr",
            &[
                "--only-values",
                "-n",
                "user.v",
                at.join("large").to_str().unwrap(),
            ],
        );
        assert_eq!(shown.stdout, b"shorter");
        // New files beside ours, and away with ours.
        for name in names.iter().step_by(2) {
            std::fs::remove_file(at.join("ours").join(std::ffi::OsStr::from_bytes(name))).unwrap();
            std::fs::write(at.join("ours").join(format!("k-{}", name.len())), b"").unwrap();
        }
        assert_eq!(at.join("device").metadata().unwrap().rdev(), 0x1021_0303);
    });
    fsck(&path).unwrap();
}
