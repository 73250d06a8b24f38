//! f2fs volumes, read: trees made by sload.f2fs and by Linux are shown identically, every change is refused
//! with the reason, and damaged images give errors, never panics.

use crate::common;
use crate::common::below;
use blockwright::{ErrorKind, Format, OpenOptions, Volume, VolumeOptions};
use blockwright_device::sim::rng::SplitMix64;
use blockwright_device::{DevOffset, Flags, MemoryDevice, SharedDevice};
use blockwright_vfs::{InodeFlags, SetAttr};
use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

fn have(tool: &str) -> bool {
    common::have_tool(tool)
}

fn run(what: &mut Command) {
    let out = what
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|e| panic!("{what:?}: {e}"));
    assert!(
        out.status.success(),
        "{what:?}: {}\n{}\n{}",
        out.status,
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
}

/// A name's kind and contents.
#[derive(PartialEq, Eq, Debug)]
enum Thing {
    Dir,
    File(Vec<u8>),
    Link(Vec<u8>),
}

fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = SplitMix64::new(seed);
    let mut out: Vec<u8> = (0..len.div_ceil(8))
        .flat_map(|_| rng.next_u64().to_le_bytes())
        .collect();
    out.truncate(len);
    out
}

/// A tree that has a bit of everything sload.f2fs can load.
fn make_tree(root: &Path) -> BTreeMap<String, Thing> {
    let mut all = BTreeMap::new();
    let dir = |all: &mut BTreeMap<String, Thing>, name: &str| {
        std::fs::create_dir(root.join(name)).expect("a directory");
        all.insert(name.to_owned(), Thing::Dir);
    };
    dir(&mut all, "few");
    dir(&mut all, "many");
    dir(&mut all, "many/below");
    let mut file = |name: String, contents: Vec<u8>| {
        std::fs::write(root.join(&name), &contents).expect("a file");
        all.insert(name, Thing::File(contents));
    };
    for n in 0..12 {
        file(
            format!("few/{}", "n".repeat(n * 20 + 1)),
            bytes(n as u64, n),
        );
    }
    for n in 0..1500 {
        file(format!("many/file-{n}"), n.to_string().into_bytes());
    }
    // Inline, inline to the last byte, one block, behind the inode's addresses, behind two direct nodes.
    for len in [0, 1, 3488, 3489, 4096, 4097, 923 * 4096 + 5, 3100 * 4096] {
        file(format!("file{len}"), bytes(len as u64, len));
    }
    for target in ["few".to_owned(), "t".repeat(200), "u/".repeat(1000)] {
        let name = format!("link{}", target.len());
        std::os::unix::fs::symlink(&target, root.join(&name)).expect("a link");
        all.insert(name, Thing::Link(target.into_bytes()));
    }
    all
}

fn read_tree(volume: &Volume) -> BTreeMap<String, Thing> {
    let mut all = BTreeMap::new();
    let mut left = vec![String::new()];
    while let Some(dir) = left.pop() {
        for entry in volume.read_dir(format!("/{dir}")).expect("a listing") {
            let entry = entry.expect("an entry");
            let name = entry.file_name().to_str().expect("UTF-8").to_owned();
            let path = if dir.is_empty() {
                name
            } else {
                format!("{dir}/{name}")
            };
            let full = format!("/{path}");
            let meta = volume
                .symlink_metadata(&full)
                .expect("what is listed is found");
            assert_eq!(meta.ino(), entry.ino(), "{path}");
            let thing = if meta.is_dir() {
                left.push(path.clone());
                Thing::Dir
            } else if meta.is_symlink() {
                let target = volume.read_link(&full).expect("a target");
                Thing::Link(target.into_os_string().into_encoded_bytes())
            } else {
                Thing::File(volume.read(&full).expect("contents"))
            };
            all.insert(path, thing);
        }
    }
    all
}

fn image(dir: &Path, options: &[&str]) -> std::path::PathBuf {
    let path = dir.join("disk.img");
    let file = std::fs::File::create(&path).expect("an image");
    file.set_len(128 << 20).expect("a size");
    run(Command::new("mkfs.f2fs")
        .args(["-q"])
        .args(options)
        .arg(&path));
    path
}

#[test]
fn a_loaded_tree_is_read_identically_and_never_changed() {
    if !have("mkfs.f2fs") || !have("sload.f2fs") {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let tree = dir.path().join("tree");
    std::fs::create_dir(&tree).expect("a directory");
    let expected = make_tree(&tree);
    // With the extra attributes but without flexible_inline_xattr, with which sload.f2fs itself loses blocks
    // of files larger than the inode maps (dump.f2fs and Linux show the same as we do).
    let extra = "extra_attr,inode_checksum,sb_checksum,inode_crtime,project_quota,quota";
    for options in [&[][..], &["-O", extra][..]] {
        let path = image(dir.path(), options);
        run(Command::new("sload.f2fs").arg("-f").arg(&tree).arg(&path));
        let before = std::fs::read(&path).expect("the image");
        let volume = Volume::open_read_only(&path).expect("opened");
        assert_eq!(volume.format(), Format::F2fs);
        assert!(volume.is_read_only());
        let mut found = read_tree(&volume);
        found.remove("lost+found");
        assert!(
            found.keys().eq(expected.keys()),
            "names: {:?}",
            found.keys().collect::<Vec<_>>()
        );
        for (name, thing) in &expected {
            assert!(found[name] == *thing, "{options:?}: {name} differs");
        }
        let stat = volume.statfs().expect("statfs");
        let held: u64 = 3100 + 923 + 1500;
        assert!(stat.blocks_free + held < stat.blocks, "{stat:?}");
        let e = volume.write("/new", b"x").expect_err("read-only");
        assert_eq!(e.kind(), ErrorKind::ReadOnly);
        let e = volume.remove_file("/file1").expect_err("read-only");
        assert_eq!(e.kind(), ErrorKind::ReadOnly);
        let file = volume.open_file("/file12697600").expect("open");
        assert_eq!(file.seek_hole(0).expect("hole"), 3100 * 4096);
        drop(file);
        volume.close().expect("closed");
        let after = std::fs::read(&path).expect("the image");
        assert!(before == after, "{options:?}: the image was changed");
    }
}

/// Changes the flags of chattr(1).
fn set_flags(volume: &Volume, path: &str, change: impl FnOnce(InodeFlags) -> InodeFlags) {
    let inode = volume
        .vfs()
        .resolve(volume.cred(), path.as_bytes(), true)
        .expect("there");
    let req = SetAttr {
        flags: Some(change(inode.attr().flags)),
        ..SetAttr::default()
    };
    volume
        .vfs()
        .set_attr(volume.cred(), &inode, &req)
        .expect("flags are set");
}

#[test]
fn names_fold_in_casefolded_directories_only() {
    if !have("mkfs.f2fs") || !have("fsck.f2fs") {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = image(dir.path(), &["-O", "casefold", "-C", "utf8"]);
    let volume = Volume::open(&path).expect("opened");
    assert_eq!(volume.read_dir("/").expect("list").count(), 0);
    volume.create_dir("/fold").expect("made");
    set_flags(&volume, "/fold", |f| f | InodeFlags::CASEFOLD);
    // Inherited; many names, so that they are hashed.
    volume.create_dir("/fold/Below").expect("made");
    for n in 0..700 {
        volume
            .write(format!("/fold/below/Über-{n:03}-Straße"), b"x")
            .expect("written");
    }
    for n in [0, 7, 350, 699] {
        let other = format!("/FOLD/BELOW/üBER-{n:03}-STRASSE");
        let name = other.replace("/FOLD", "/fold");
        assert!(volume.exists(&name).expect("looked up"), "{name}");
        // The root is an ordinary directory.
        assert!(!volume.exists(&other).expect("looked up"), "{other}");
        let made = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&volume, &name);
        assert_eq!(made.expect_err("is there").kind(), ErrorKind::Exists);
    }
    let listed = |dir: &str| -> Vec<String> {
        let list = volume.read_dir(dir).expect("list");
        list.map(|e| e.expect("entry").file_name().to_string_lossy().into_owned())
            .collect()
    };
    // To itself in other letters: one file, so nothing is done, as in Linux. By way of another name it is.
    let (from, to) = (
        "/fold/below/über-001-strasse",
        "/fold/below/ÜBER-001-STRASSE",
    );
    volume.rename(from, to).expect("nothing done");
    assert!(listed("/fold/below").contains(&"Über-001-Straße".to_owned()));
    volume.rename(from, "/fold/below/third").expect("renamed");
    volume.rename("/fold/below/THIRD", to).expect("renamed");
    assert!(listed("/fold/below").contains(&"ÜBER-001-STRASSE".to_owned()));
    volume.write("/fold/a", b"new").expect("written");
    volume
        .rename("/fold/A", "/fold/below/über-002-strasse")
        .expect("renamed over");
    assert_eq!(
        volume.read("/fold/below/Über-002-Straße").expect("read"),
        b"new"
    );
    volume
        .remove_file("/fold/BELOW/ÜBER-003-straße")
        .expect("removed");
    assert_eq!(listed("/fold/below").len(), 699);
    // Names that fold alike are different in other directories.
    volume.write("/plain", b"1").expect("written");
    volume.write("/PLAIN", b"2").expect("written");
    volume
        .rename("/PLAIN", "/fold/plain")
        .expect("moved into it");
    assert_eq!(volume.read("/fold/Plain").expect("read"), b"2");
    volume.close().expect("closed");
    common::assert_fsck_f2fs_clean(&path);
    let volume = Volume::open_read_only(&path).expect("opened");
    assert!(
        volume
            .exists("/fold/BELOW/über-699-strasse")
            .expect("there")
    );
    volume.close().expect("closed");
}

#[test]
fn files_with_verity_are_not_changed() {
    if !have("mkfs.f2fs") || !have("fsck.f2fs") {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = image(dir.path(), &["-O", "verity"]);
    let volume = Volume::open(&path).expect("opened");
    volume.write("/signed", vec![7; 9000]).expect("written");
    let ino = volume.metadata("/signed").expect("there").ino() as u32;
    volume.close().expect("closed");
    // Its bit among the hints, in every version of its node: the checkpoint says which counts.
    let mut bytes = std::fs::read(&path).expect("read");
    let mut found = 0;
    for block in bytes.chunks_exact_mut(4096) {
        let word = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().expect("four"));
        if word(4072) == ino && word(4076) == ino && &block[92..98] == b"signed" {
            block[2] |= 0x40;
            found += 1;
        }
    }
    assert!(found > 0);
    std::fs::write(&path, bytes).expect("written");

    let volume = Volume::open(&path).expect("opened");
    let inode = volume.vfs().resolve(volume.cred(), b"/signed", true);
    let flags = inode.expect("there").attr().flags;
    assert!(flags.contains(InodeFlags::VERITY));
    for options in [
        OpenOptions::new().write(true),
        OpenOptions::new().append(true),
        OpenOptions::new().write(true).truncate(true),
    ] {
        let e = options.open(&volume, "/signed").expect_err("refused");
        assert_eq!(e.kind(), ErrorKind::NotPermitted, "{e}");
    }
    assert_eq!(volume.read("/signed").expect("read"), vec![7; 9000]);
    volume.rename("/signed", "/moved").expect("renamed");
    volume.remove_file("/moved").expect("removed");
    volume.close().expect("closed");
    common::assert_fsck_f2fs_clean(&path);
}

/// Reads all there is, as far as it goes.
fn exercise(device: SharedDevice) -> Option<ErrorKind> {
    let volume = match Volume::options().read_only(true).open_device(device) {
        Ok(volume) => volume,
        Err(e) => return Some(e.kind()),
    };
    let mut worst = None;
    let mut note = |e: blockwright::Error| {
        worst.get_or_insert(e.kind());
    };
    let (mut left, mut visited) = (vec![String::from("/")], 0);
    while let Some(dir) = left.pop() {
        visited += 1;
        if visited > 50 {
            break;
        }
        let list = match volume.read_dir(&dir) {
            Ok(list) => list,
            Err(e) => {
                note(e);
                continue;
            }
        };
        for (n, entry) in list.enumerate() {
            let Ok(entry) = entry.map_err(&mut note) else {
                break;
            };
            if n > 100 {
                break;
            }
            let path = format!("{dir}{}", entry.file_name().to_string_lossy());
            match volume.symlink_metadata(&path) {
                Ok(m) if m.is_dir() => left.push(format!("{path}/")),
                Ok(m) if m.is_symlink() => drop(volume.read_link(&path).map_err(&mut note)),
                Ok(_) => {
                    if let Ok(file) = volume.open_file(&path).map_err(&mut note) {
                        let mut buf = vec![0; 64 << 10];
                        for at in [0, 1 << 20, 4 << 20] {
                            let _read = file.read_at(&mut buf, at).map_err(&mut note);
                        }
                        let _hole = file.seek_hole(0);
                    }
                }
                Err(e) => note(e),
            }
            drop(volume.list_xattr(&path).map_err(&mut note));
        }
    }
    worst
}

/// Changes a bit of everything, as far as it goes: whatever is damaged, errors are all that may come of it.
fn exercise_writing(device: SharedDevice) {
    let device: SharedDevice = Arc::new(blockwright_device::OverlayDevice::new(device));
    let Ok(volume) = Volume::open_device(device) else {
        return;
    };
    // Every result may be an error; panics and hangs are what is looked for.
    let _ = volume.write("/new", bytes(1, 50_000));
    let _ = volume.create_dir("/dir");
    for n in 0..30 {
        let _ = volume.write(format!("/dir/{n}"), b"inline");
        let _ = volume.write(format!("/many/new-{n}"), b"inline");
        let _ = volume.remove_file(format!("/many/file-{n}"));
    }
    let _ = volume.set_len("/file12697600", 5_000_000);
    let _ = volume.set_len("/file3780613", 10);
    let _ = volume.set_xattr(
        "/file1",
        "user.x",
        vec![7; 1000],
        blockwright::XattrMode::Any,
    );
    let _ = volume.rename("/few", "/dir/few");
    let _ = volume.remove_dir_all("/many");
    let _ = volume.sync();
    let _ = volume.remove_file("/file12697600");
    let _ = volume.close();
}

#[test]
fn damaged_images_give_errors() {
    if !have("mkfs.f2fs") || !have("sload.f2fs") {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let tree = dir.path().join("tree");
    std::fs::create_dir(&tree).expect("a directory");
    make_tree(&tree);
    let path = image(dir.path(), &["-O", "extra_attr,inode_checksum"]);
    run(Command::new("sload.f2fs").arg("-f").arg(&tree).arg(&path));
    let mut whole = Vec::new();
    std::fs::File::open(&path)
        .expect("open")
        .read_to_end(&mut whole)
        .expect("read");
    // What is not zero, block by block, data of large files aside: that says little here.
    let used: Vec<usize> = (0..whole.len() / 4096)
        .filter(|b| whole[b * 4096..(b + 1) * 4096].iter().any(|x| *x != 0))
        .collect();
    let mut rng = SplitMix64::new(common::seed(0xF2F5));
    let mut refused = 0;
    let device = Arc::new(MemoryDevice::new(whole.len() as u64));
    for b in &used {
        let at = b * 4096;
        device
            .write_at(DevOffset(at as u64), &whole[at..at + 4096], Flags::empty())
            .expect("written");
    }
    use blockwright_device::BlockDevice as _;
    let meta: Vec<usize> = used.iter().copied().take_while(|b| *b < 5120).collect();
    for case in 0..160 {
        // Metadata areas every other time; else anything.
        let pool = if case % 2 == 0 { &meta } else { &used };
        let mut touched = Vec::new();
        for _ in 0..1 + below(&mut rng, 6) {
            let b = pool[below(&mut rng, pool.len() as u64) as usize];
            let mut block = whole[b * 4096..(b + 1) * 4096].to_vec();
            match below(&mut rng, 3) {
                0 => block[below(&mut rng, 4096) as usize] ^= 1 << below(&mut rng, 8),
                1 => {
                    let at = below(&mut rng, 1000) as usize * 4;
                    block[at..at + 4].copy_from_slice(&(rng.next_u64() as u32).to_le_bytes());
                }
                _ => {
                    let from = pool[below(&mut rng, pool.len() as u64) as usize];
                    block.copy_from_slice(&whole[from * 4096..(from + 1) * 4096]);
                }
            }
            device
                .write_at(DevOffset(b as u64 * 4096), &block, Flags::empty())
                .expect("written");
            touched.push(b);
        }
        let shared: SharedDevice = device.clone();
        let outcome = common::guarded(
            &format!("case {case}"),
            Duration::from_secs(20),
            move || {
                if case % 3 == 0 {
                    exercise_writing(shared.clone());
                }
                exercise(shared)
            },
        );
        if let Some(kind) = outcome {
            refused += 1;
            assert!(
                matches!(
                    kind,
                    ErrorKind::Corrupt
                        | ErrorKind::UnsupportedFeature
                        | ErrorKind::Stale
                        | ErrorKind::NotFound
                        | ErrorKind::KeyRequired
                        | ErrorKind::NotDirectory
                        | ErrorKind::Io
                ),
                "case {case}: {kind:?}"
            );
        }
        for b in touched {
            let at = b * 4096;
            device
                .write_at(DevOffset(at as u64), &whole[at..at + 4096], Flags::empty())
                .expect("written");
        }
    }
    assert!(refused > 8, "only {refused} of 160 damages were noticed");
    assert_eq!(exercise(device), None, "the undamaged image is fine");
}

#[test]
fn volumes_that_cannot_be_written_say_why() {
    if !have("mkfs.f2fs") {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    #[allow(clippy::single_element_loop)] // there were more, and may be again
    for (features, why) in [("extra_attr,quota", "quota")] {
        let path = image(dir.path(), &["-O", features]);
        // No quota file begins so.
        let bytes = std::fs::read(&path).expect("read");
        let magic = 0xD9C0_1F11u32.to_le_bytes();
        let head = bytes.chunks(4096).position(|b| b[..4] == magic);
        let file = std::fs::File::options().write(true).open(&path);
        std::os::unix::fs::FileExt::write_all_at(
            &file.expect("opens"),
            b"nope",
            head.expect("a quota file") as u64 * 4096,
        )
        .expect("written");
        let volume = Volume::open(&path).expect("opened");
        assert!(volume.is_read_only(), "{features}");
        let said = volume.read_only_reason().expect("a reason");
        assert!(said.contains(why), "{features}: {said}");
        let root = volume.vfs().root().expect("root");
        let e = volume
            .vfs()
            .engine()
            .write_attr(&root)
            .expect_err("refused");
        assert!(e.to_string().contains(why), "{features}: {e}");
    }
}

#[test]
fn a_full_volume_keeps_working() {
    if !have("mkfs.f2fs") || !have("fsck.f2fs") {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("disk.img");
    common::mkfs_f2fs(&path, "", 56 << 20);
    let at = path.clone();
    common::guarded("full volume", Duration::from_secs(60), move || {
        let mut rng = SplitMix64::new(common::seed(0xF011));
        let volume = Volume::open(&at).expect("opened");
        let mut files: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        let (mut refused, mut written) = (0, 0u64);
        for round in 0..1200u64 {
            let stat = volume.statfs().expect("statfs");
            let full = stat.blocks_free * 4096 < 300_000;
            match below(&mut rng, if full { 3 } else { 8 }) {
                // Full: room is made.
                0 | 1 if files.len() > 3 => {
                    let n = below(&mut rng, files.len() as u64) as usize;
                    let name = files.keys().nth(n).expect("there").clone();
                    volume.remove_file(&name).expect("removed");
                    files.remove(&name);
                }
                2 if !files.is_empty() => {
                    let n = below(&mut rng, files.len() as u64) as usize;
                    let (name, held) = files.iter_mut().nth(n).expect("there");
                    let patch = bytes(round, 5000);
                    let to = below(&mut rng, held.len() as u64) as usize;
                    let file = volume.open_file(name).expect("open");
                    drop(file);
                    let file = OpenOptions::new()
                        .read(true)
                        .write(true)
                        .open(&volume, name)
                        .expect("open");
                    let n = patch.len().min(held.len() - to);
                    file.write_all_at(&patch[..n], to as u64).expect("in place");
                    held[to..to + n].copy_from_slice(&patch[..n]);
                }
                _ => {
                    let len = 1 + below(&mut rng, 600_000) as usize;
                    let name = format!("/f{round}");
                    let data = bytes(round, len);
                    match volume.write(&name, &data) {
                        Ok(()) => {
                            written += len as u64;
                            files.insert(name, data);
                        }
                        Err(e) => {
                            assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
                            refused += 1;
                            if volume.exists(&name).expect("stat") {
                                volume.remove_file(&name).expect("removed");
                            }
                        }
                    }
                }
            }
            if round % 97 == 0 {
                volume.sync().expect("synced");
            }
        }
        for (name, data) in &files {
            assert!(volume.read(name).expect("read") == *data, "{name} differs");
        }
        volume.close().expect("closed");
        eprintln!("{written} bytes written, {refused} writes refused");
        assert!(refused > 0, "the volume was never full");
        assert!(written > 100 << 20, "only {written} bytes");
        let volume = Volume::open_read_only(&at).expect("opened");
        for (name, data) in &files {
            assert!(volume.read(name).expect("read") == *data, "{name} differs");
        }
    });
    common::assert_fsck_f2fs_clean(&path);
}

#[test]
fn threads_work_side_by_side() {
    if !have("mkfs.f2fs") || !have("fsck.f2fs") {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("disk.img");
    common::mkfs_f2fs(&path, "", 128 << 20);
    let at = path.clone();
    common::guarded("threads", Duration::from_secs(60), move || {
        let volume = Volume::open(&at).expect("opened");
        std::thread::scope(|scope| {
            for t in 0..4u64 {
                let volume = &volume;
                scope.spawn(move || {
                    let own = format!("/d{t}");
                    volume.create_dir(&own).expect("made");
                    for n in 0..120u64 {
                        let name = format!("{own}/f{n}");
                        volume
                            .write(&name, bytes(t << 32 | n, 9000 + n as usize))
                            .expect("written");
                        match n % 4 {
                            0 => volume
                                .open_file(&name)
                                .expect("open")
                                .sync_all()
                                .expect("synced"),
                            1 => volume.rename(&name, format!("/r{t}-{n}")).expect("renamed"),
                            2 => volume.remove_file(&name).expect("removed"),
                            _ => {}
                        }
                    }
                });
            }
        });
        for t in 0..4u64 {
            for n in (0..120u64).filter(|n| n % 4 != 2) {
                let name = match n % 4 {
                    1 => format!("/r{t}-{n}"),
                    _ => format!("/d{t}/f{n}"),
                };
                let want = bytes(t << 32 | n, 9000 + n as usize);
                assert!(volume.read(&name).expect("read") == want, "{name} differs");
            }
        }
        volume.close().expect("closed");
    });
    common::assert_fsck_f2fs_clean(&path);
}

/// A small cache drops the node of a file that is open; writing to it reads the node again (it looked for it forever).
#[test]
fn an_inode_that_left_the_cache_is_read_again() {
    let mut options = VolumeOptions::default();
    options.parts.f2fs.metadata_cache_bytes = 1 << 20;
    let memory = common::f2fs::formatted(256 << 20);
    let volume = options.open_device(memory.clone()).expect("opened");
    let file = volume.create_file("/first").expect("made");
    file.write_all_at(&[1; 65536], 0).expect("written");
    for n in 0..1500 {
        let path = format!("/{n}");
        volume.write(path, [2; 5000]).expect("written");
    }
    drop(file);
    volume.close().expect("closed");
    // Nodes that are read and clean are what a sweep drops.
    let volume = options.open_device(memory.clone()).expect("opened");
    let mut file = OpenOptions::new();
    let file = file.read(true).write(true).open(&volume, "/first");
    let file = file.expect("opened");
    for n in 0..1500 {
        volume.metadata(format!("/{n}")).expect("looked at");
    }
    file.write_all_at(&[3; 4096], 8192).expect("overwritten");
    file.write_all_at(&[4; 4096], 1 << 20).expect("added");
    file.sync_all().expect("durable");
    drop(file);
    volume.close().expect("closed");
    common::f2fs::assert_clean(&memory);
}
