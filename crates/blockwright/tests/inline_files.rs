//! Small files that are written like any other are kept in their inodes, where a volume has inline data: decided when they are
//! written back, exact about room, and left when they outgrow it.

use blockwright_test_support as common;

use blockwright::{
    ErrorKind, ExtentKind, File, Format, OpenOptions, Volume, VolumeBuilder, VolumeOptions,
};
use blockwright_device::{MemoryDevice, SharedDevice};
use blockwright_vfs::engine::Place;
use blockwright_vfs::types::XattrMode;
use common::testing::{LoopMount, assert_e2fsck_clean, have};
use std::sync::Arc;

const VOLUME: u64 = 64 << 20;

/// Of data in an inode `stat` shows sectors, as Linux does: programs take none for a hole.
fn shown(file: &File) -> bool {
    let seen = file.metadata().expect("stat");
    seen.blocks() == seen.len().div_ceil(512)
}

fn made(format: Format, features: &str, delayed: bool) -> (Arc<MemoryDevice>, Volume) {
    let (device, shared): (Arc<MemoryDevice>, SharedDevice) = match format {
        Format::Ext4 => {
            let device = Arc::new(MemoryDevice::new(VOLUME));
            let shared: SharedDevice = device.clone();
            VolumeBuilder::new()
                .size(VOLUME)
                .features(features)
                .create_on(&shared)
                .expect("made");
            (device, shared)
        }
        _ => {
            let device = common::f2fs::formatted(VOLUME);
            (device.clone(), device)
        }
    };
    let mut options = VolumeOptions::default();
    options.parts.vfs.delayed_allocation = delayed;
    (device, options.open_device(shared).expect("opened"))
}

fn finish(format: Format, device: &MemoryDevice, v: Volume) {
    v.close().expect("closed");
    match format {
        Format::Ext4 if have("e2fsck") => {
            let dir = tempfile::tempdir().expect("dir");
            let path = dir.path().join("image");
            device.save(&path).expect("saved");
            assert_e2fsck_clean(&path);
        }
        Format::Ext4 => {}
        _ => common::f2fs::assert_clean(device),
    }
}

fn is_inline(v: &Volume, file: &File) -> bool {
    let inode = file.handle().inode();
    v.vfs().engine().map(inode, 0, 4096).expect("mapped").place == Place::Inline
}

fn free(v: &Volume) -> u64 {
    v.statfs().expect("statfs").blocks_free
}

fn bytes(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + seed * 13 + 1) as u8).collect()
}

fn each(test: impl Fn(Format, &Volume, u64)) {
    for (format, delayed, fits) in [
        (Format::Ext4, true, 100),
        (Format::Ext4, false, 100),
        (Format::F2fs, true, 3000),
    ] {
        let (device, v) = made(format, "inline_data,quota", delayed);
        test(format, &v, fits);
        finish(format, &device, v);
    }
}

#[test]
fn a_new_small_file_takes_no_block() {
    each(|format, v, fits| {
        v.sync().expect("synced");
        let before = free(v);
        let mut files = Vec::new();
        for n in 0..20 {
            let file = v.create_file(format!("f{n}")).expect("created");
            file.write_all_at(&bytes(n, fits as usize - n), 0)
                .expect("written");
            assert!(
                free(v) < before,
                "{format:?}: room is reserved when it is written"
            );
            match n % 3 {
                0 => file.sync_all().expect("synced"),
                1 => file.sync_data().expect("synced"),
                _ => v.sync().expect("synced"),
            }
            assert!(is_inline(v, &file), "{format:?}: file {n}");
            files.push(file);
        }
        v.sync().expect("synced");
        for (n, file) in files.iter().enumerate() {
            assert!(shown(file), "{format:?}");
            assert_eq!(
                v.read(format!("f{n}")).expect("read"),
                bytes(n, fits as usize - n)
            );
        }
        let inodes = match format {
            Format::Ext4 => 0,
            _ => 20, // Of f2fs each is a block, and the root's entries may take one more.
        };
        assert!(
            before - free(v) <= inodes + 1,
            "{format:?}: {} blocks for 20 files",
            before - free(v)
        );
        // What is not small has blocks.
        let large = v.create_file("large").expect("created");
        large.write_all_at(&bytes(1, 5000), 0).expect("written");
        large.sync_all().expect("synced");
        assert!(!is_inline(v, &large), "{format:?}");
    });
}

#[test]
fn files_grow_in_the_inode_and_out_of_it() {
    each(|format, v, fits| {
        for sync in [true, false] {
            let file = v.create_file(format!("log-{sync}")).expect("created");
            let mut all = Vec::new();
            let step = fits as usize / 10;
            for n in 0..30 {
                let line = bytes(n, step);
                file.append(&line).expect("appended");
                all.extend_from_slice(&line);
                if sync {
                    file.sync_data().expect("synced");
                    if all.len() as u64 <= fits {
                        assert!(is_inline(v, &file), "{format:?}: {} bytes", all.len());
                    }
                }
                assert_eq!(v.read(format!("log-{sync}")).expect("read"), all);
            }
            file.write_all_at(&bytes(9, 9000), 4000).expect("written");
            all.resize(4000, 0);
            all.extend_from_slice(&bytes(9, 9000));
            file.sync_all().expect("synced");
            assert!(!is_inline(v, &file), "{format:?}");
            assert_eq!(v.read(format!("log-{sync}")).expect("read"), all);
            // It comes back when there is nothing left of it.
            file.set_len(0).expect("cut");
            file.write_all_at(&bytes(2, 50), 20).expect("written");
            file.sync_all().expect("synced");
            assert!(is_inline(v, &file), "{format:?}");
            assert!(shown(&file), "{format:?}");
            all = vec![0; 20];
            all.extend_from_slice(&bytes(2, 50));
            assert_eq!(v.read(format!("log-{sync}")).expect("read"), all);
            // Overwritten, made sparse and longer, cut and punched, it stays.
            file.write_all_at(b"abc", 30).expect("written");
            all[30..33].copy_from_slice(b"abc");
            file.set_len(90).expect("longer");
            file.set_len(80).expect("cut");
            all.resize(80, 0);
            file.punch_hole(25, 6).expect("punched");
            all[25..31].fill(0);
            file.write_all_at(b"end", 90).expect("written");
            all.resize(90, 0);
            all.extend_from_slice(b"end");
            file.sync_all().expect("synced");
            assert_eq!(v.read(format!("log-{sync}")).expect("read"), all);
            assert!(is_inline(v, &file), "{format:?}");
        }
    });
}

/// Bytes that were told to fit keep the inode's room, also when an attribute comes before they are written back.
#[test]
fn attributes_do_not_take_the_room() {
    each(|format, v, _| {
        let file = v.create_file("f").expect("created");
        file.write_all_at(&bytes(1, 40), 0).expect("written");
        file.sync_all().expect("synced");
        file.append(&bytes(2, 60)).expect("appended");
        v.set_xattr("f", "user.large", [b'x'; 60], XattrMode::Any)
            .expect("set");
        file.sync_all().expect("synced");
        assert!(is_inline(v, &file), "{format:?}");
        let all = [bytes(1, 40), bytes(2, 60)].concat();
        assert_eq!(v.read("f").expect("read"), all);
        assert_eq!(v.get_xattr("f", "user.large").expect("read"), [b'x'; 60]);
    });
}

/// On a full volume small files that were accepted are kept, and none is accepted that cannot be.
#[test]
fn a_full_volume_keeps_what_it_accepted() {
    each(|format, v, fits| {
        let names: Vec<String> = (0..40).map(|n| format!("s{n}")).collect();
        let small: Vec<File> = names
            .iter()
            .map(|name| v.create_file(name).expect("created"))
            .collect();
        let filler = v.create_file("filler").expect("created");
        let data = vec![7; 1 << 16];
        let mut at = 0;
        let full = |e: &blockwright::Error| e.kind() == ErrorKind::NoSpace;
        loop {
            match filler.write_at(&data, at) {
                Ok(n) => at += n as u64,
                Err(e) => break assert!(full(&e), "{e}"),
            }
        }
        let mut kept = Vec::new();
        for round in 1..=3 {
            for (n, file) in small.iter().enumerate() {
                let part = bytes(n, fits as usize / 4);
                let wrote = file.append(&part);
                match wrote {
                    Ok(_) => kept.push((n, part)),
                    Err(e) => assert!(full(&e), "{e}"),
                }
            }
            for (n, file) in small.iter().enumerate() {
                file.sync_all()
                    .unwrap_or_else(|e| panic!("{format:?}, {n}: accepted and lost: {e}"));
            }
            if round == 1 {
                filler.set_len(at - (1 << 20)).expect("cut");
                v.sync().expect("synced");
            }
        }
        for (n, name) in names.iter().enumerate() {
            let mine: Vec<u8> = kept
                .iter()
                .filter(|(of, _)| *of == n)
                .flat_map(|(_, part)| part.clone())
                .collect();
            assert!(mine.len() >= fits as usize / 4, "{format:?}, {name}");
            assert_eq!(v.read(name).expect("read"), mine, "{format:?}, {name}");
        }
    });
}

/// Growth beside writeback: what was reserved is not given back by a decision for the inode that is out of date.
#[test]
fn growth_beside_writeback() {
    each(|format, v, fits| {
        for round in 0..60u64 {
            let name = format!("r{}", round % 4);
            let file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .open(v, &name)
                .expect("opened");
            let mut all = Vec::new();
            std::thread::scope(|s| {
                s.spawn(|| {
                    for _ in 0..12 {
                        file.sync_data().expect("synced");
                    }
                });
                for n in 0..24 {
                    let part = bytes(n, (fits / 8 + round) as usize);
                    file.append(&part).expect("appended");
                    all.extend_from_slice(&part);
                }
            });
            file.sync_all().expect("synced");
            assert_eq!(v.read(&name).expect("read"), all, "{format:?}, {round}");
        }
    });
}

#[test]
fn the_kernel_reads_the_same() {
    let dir = tempfile::tempdir().expect("dir");
    let image = dir.path().join("image");
    let (device, v) = made(Format::Ext4, "inline_data", true);
    for n in 0..150 {
        v.write(format!("f{n}"), bytes(n, n)).expect("written");
    }
    v.close().expect("closed");
    device.save(&image).expect("saved");
    assert_e2fsck_clean(&image);
    if let Some(mount) = LoopMount::new(&image, "rw") {
        for n in 0..150 {
            let at = mount.path().join(format!("f{n}"));
            assert_eq!(std::fs::read(&at).expect("read"), bytes(n, n), "f{n}");
            // The kernel continues where we ended.
            std::fs::write(&at, bytes(n + 1, n * 2)).expect("written");
        }
        drop(mount);
        assert_e2fsck_clean(&image);
        let v = Volume::open(&image).expect("opened");
        for n in 0..150 {
            assert_eq!(v.read(format!("f{n}")).expect("read"), bytes(n + 1, n * 2));
        }
        v.close().expect("closed");
    }
}

/// Linux lengthens an inline file by `truncate` or a write that it takes back without moving it: what its inode has no
/// room for is a hole.
#[test]
fn a_hole_may_follow_what_is_inline() {
    if !have("debugfs") || !have("e2fsck") {
        return;
    }
    const SIZE: u64 = 1 << 30;
    let (device, v) = made(Format::Ext4, "inline_data", true);
    for name in ["read", "written", "cut"] {
        let file = v.create_file(name).expect("created");
        file.write_all_at(&bytes(1, 40), 0).expect("written");
        file.sync_all().expect("synced");
        assert!(is_inline(&v, &file));
    }
    v.close().expect("closed");
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("image");
    device.save(&path).expect("saved");
    for name in ["read", "written", "cut"] {
        let done = std::process::Command::new("debugfs")
            .args(["-w", "-R", &format!("set_inode_field {name} size {SIZE}")])
            .arg(&path)
            .output()
            .expect("debugfs");
        assert!(done.status.success());
    }
    assert_e2fsck_clean(&path);
    let device = Arc::new(MemoryDevice::from_image(
        &std::fs::read(&path).expect("image"),
    ));
    let open = || Volume::open_device(device.clone()).expect("opened");
    let v = open();
    let begins = |v: &Volume, name: &str| {
        let mut got = vec![1; 8192];
        let file = v.open_file(name).expect("file");
        assert_eq!(file.read_at(&mut got, 0).expect("read"), got.len());
        assert!(
            got[..40] == bytes(1, 40) && got[40..].iter().all(|b| *b == 0),
            "{name}"
        );
        assert_eq!(file.read_at(&mut got, SIZE / 2).expect("read"), got.len());
        assert!(got.iter().all(|b| *b == 0), "{name}");
        file.metadata().expect("stat").len()
    };
    for name in ["read", "written", "cut"] {
        assert_eq!(begins(&v, name), SIZE);
    }
    let options = OpenOptions::new().read(true).write(true).clone();
    let file = options.open(&v, "written").expect("file");
    file.write_all_at(b"far", SIZE / 4).expect("written");
    let cut = options.open(&v, "cut").expect("file");
    cut.set_len(SIZE / 8).expect("cut");
    drop((file, cut));
    v.close().expect("closed");
    device.save(&path).expect("saved");
    assert_e2fsck_clean(&path);
    let v = open();
    assert_eq!(begins(&v, "read"), SIZE);
    assert_eq!(begins(&v, "written"), SIZE);
    let mut got = [0; 3];
    let file = v.open_file("written").expect("file");
    assert_eq!(file.read_at(&mut got, SIZE / 4).expect("read"), 3);
    assert_eq!(&got, b"far");
    let file = v.open_file("cut").expect("file");
    assert_eq!(file.metadata().expect("stat").len(), SIZE / 8);
}

/// A damaged inode may claim any size: no more than a block of it is data, which is what copies and exports go by.
#[test]
fn the_data_of_an_inline_file_ends_with_its_block() {
    if !have("debugfs") {
        return;
    }
    let (device, v) = made(Format::Ext4, "inline_data", true);
    v.write("/file", b"kept in the inode").expect("written");
    v.close().expect("closed");
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("image");
    device.save(&path).expect("saved");
    let claim = 1u64 << 43;
    let image = path.display().to_string();
    let ask = format!("sif /file size {claim}");
    common::testing::run_ok("debugfs", &["-w", "-R", &ask, &image]);
    let v = Volume::open_read_only(&path).expect("opened");
    let file = v.open_file("/file").expect("opens");
    assert!(is_inline(&v, &file));
    assert_eq!(file.metadata().expect("stat").len(), claim);
    let handle = file.handle();
    assert_eq!(handle.seek_data(0).expect("data"), 0);
    assert!(handle.seek_hole(0).expect("a hole") <= 64 << 10);
    for at in [64 << 10, 1 << 30, claim - 1] {
        assert_eq!(handle.seek_hole(at).expect("a hole"), at);
        let none = handle.seek_data(at).expect_err("none");
        assert_eq!(none.kind(), blockwright_vfs::ErrorKind::NoData);
    }
    let kinds: Vec<ExtentKind> = file
        .extents()
        .expect("known")
        .iter()
        .map(|e| e.kind)
        .collect();
    assert_eq!(kinds, [ExtentKind::Inline, ExtentKind::Hole]);
}
