//! The library's methods by path and by file, on a real volume, with e2fsck's judgement at the end.

use blockwright_test_support as common;

use blockwright::device::OpenMode;
use blockwright::{
    ErrorKind, ExtentKind, File, FileType, OpenOptions, RenameMode, Times, Volume, VolumeBuilder,
    XattrMode,
};
use common::testing::assert_e2fsck_clean;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

const MIB: u64 = 1 << 20;

struct Fixture {
    _dir: tempfile::TempDir,
    image: PathBuf,
}

impl Fixture {
    fn new(features: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let image = dir.path().join("disk.img");
        VolumeBuilder::new()
            .size(64 * MIB)
            .features(features)
            .create(&image)
            .expect("made");
        Fixture { _dir: dir, image }
    }

    fn open(&self) -> Volume {
        Volume::open(&self.image).expect("opens")
    }
}

fn is_shareable<T: Send + Sync>() {}

#[test]
fn volumes_and_files_are_shareable() {
    is_shareable::<Volume>();
    is_shareable::<File>();
    is_shareable::<blockwright::Error>();
}

#[test]
fn names_and_attributes() {
    let f = Fixture::new("");
    let v = f.open();
    v.create_dir_all("/a/b/c").expect("made");
    v.create_dir_all("a/b/c").expect("again, relative");
    v.write("/a/f", b"hello").expect("written");
    v.hard_link("/a/f", "/a/b/g").expect("linked");
    v.symlink("../f", "/a/b/s").expect("linked");
    assert_eq!(v.read("/a/b/s").expect("followed"), b"hello");
    assert_eq!(v.read_link("/a/b/s").expect("a link"), Path::new("../f"));
    assert!(v.symlink_metadata("/a/b/s").expect("there").is_symlink());
    assert_eq!(v.metadata("/a/f").expect("there").nlink(), 2);
    v.mknod("/a/fifo", FileType::Fifo, 0o600, 0).expect("made");
    v.chown("/a/f", Some(70_000), Some(5)).expect("set");
    v.set_permissions("/a/f", 0o4755).expect("set");
    let then = SystemTime::UNIX_EPOCH + Duration::new(1_234_567_890, 987_654_321);
    v.set_times("/a/f", Times::new().modified(then))
        .expect("set");
    v.set_xattr("/a/f", "user.k", b"v", XattrMode::Create)
        .expect("set");
    let again = v
        .set_xattr("/a/f", "user.k", b"w", XattrMode::Create)
        .expect_err("there");
    assert_eq!(again.kind(), ErrorKind::Exists);
    v.rename("/a/f", "/moved").expect("renamed");
    v.write("/other", b"other").expect("written");
    v.rename_with("/moved", "/other", RenameMode::Exchange)
        .expect("exchanged");
    let refused = v
        .rename_with("/moved", "/other", RenameMode::NoReplace)
        .expect_err("there");
    assert_eq!(refused.kind(), ErrorKind::Exists);
    assert_eq!(refused.path(), Some(Path::new("/moved")));
    let missing = v.read("/no/such").expect_err("missing");
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    assert!(missing.to_string().starts_with("/no/such: "), "{missing}");
    let names: Vec<_> = v
        .walk("/a")
        .map(|e| e.expect("read").path.display().to_string())
        .collect();
    assert_eq!(
        names,
        ["/a", "/a/b", "/a/b/c", "/a/b/g", "/a/b/s", "/a/fifo"]
    );
    let mut listed: Vec<_> = v
        .read_dir("/a/b")
        .expect("a directory")
        .map(|e| e.expect("read").file_name().to_string_lossy().into_owned())
        .collect();
    listed.sort();
    assert_eq!(listed, ["c", "g", "s"]);
    assert_eq!(
        v.read_dir("/other").err().expect("a file").kind(),
        ErrorKind::NotDirectory
    );
    v.close().expect("closed");
    assert_e2fsck_clean(&f.image);

    let v = f.open();
    let m = v.metadata("/other").expect("there");
    assert_eq!(
        (m.permissions(), m.uid(), m.gid(), m.len()),
        (0o4755, 70_000, 5, 5)
    );
    assert_eq!(m.modified(), then);
    assert_eq!(v.get_xattr("/other", "user.k").expect("there"), b"v");
    v.remove_dir_all("/a").expect("removed");
    v.remove_file("/other").expect("removed");
    v.remove_file("/moved").expect("removed");
    let left: Vec<_> = v
        .read_dir("/")
        .expect("listed")
        .map(|e| e.expect("read").path())
        .collect();
    assert_eq!(left, [Path::new("/lost+found")]);
    v.close().expect("closed");
    assert_e2fsck_clean(&f.image);
}

#[test]
fn reading_writing_and_space() {
    let f = Fixture::new("");
    let v = f.open();
    let mut file = v.create_file("/f").expect("made");
    file.write_all(b"0123456789").expect("written");
    file.seek(SeekFrom::Start(4)).expect("moved");
    let mut two = [0u8; 2];
    file.read_exact(&mut two).expect("read");
    assert_eq!(&two, b"45");
    assert!(file.seek(SeekFrom::Current(-100)).is_err());
    file.write_all_at(&vec![7u8; 300_000], 1_000_000)
        .expect("written");
    file.sync_all().expect("durable");
    assert_eq!(
        file.seek_data(100_000).expect("data"),
        1_000_000 / 1024 * 1024
    );
    assert!(file.seek_hole(0).expect("a hole") <= 1_000_000);
    assert_eq!(
        file.seek_data(2_000_000).expect_err("none").kind(),
        ErrorKind::NoData
    );
    let extents = file.extents().expect("mapped");
    assert_eq!(extents.first().map(|e| e.offset), Some(0));
    assert!(extents.iter().any(|e| e.kind == ExtentKind::Hole));
    let end = extents.last().map(|e| e.offset + e.bytes);
    assert_eq!(end, Some(1_300_000));
    file.punch_hole(1_100_000 / 4096 * 4096, 65_536)
        .expect("punched");
    file.set_len(1_200_000).expect("cut");
    file.allocate(0, 4 * MIB).expect("allocated");
    assert_eq!(file.metadata().expect("known").len(), 4 * MIB);
    file.sync_data().expect("durable");
    drop(file);

    assert_eq!(v.copy("/f", "/copy").expect("copied"), 4 * MIB);
    assert!(v.read("/f").expect("read") == v.read("/copy").expect("read"));
    let log = OpenOptions::new()
        .append(true)
        .create(true)
        .open(&v, "/log")
        .expect("opened");
    for i in 0..10 {
        (&log)
            .write_all(format!("line {i}\n").as_bytes())
            .expect("written");
    }
    assert_eq!(v.read("/log").expect("read").len(), 70);
    let taken = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&v, "/log");
    assert_eq!(taken.expect_err("there").kind(), ErrorKind::Exists);
    assert_eq!(
        OpenOptions::new()
            .open(&v, "/log")
            .expect_err("for nothing")
            .kind(),
        ErrorKind::Invalid
    );
    v.close().expect("closed");
    assert_e2fsck_clean(&f.image);
}

#[test]
fn read_only_volumes_do_not_change() {
    let f = Fixture::new("");
    let v = f.open();
    v.write("/f", b"x").expect("written");
    v.close().expect("closed");
    let before = std::fs::read(&f.image).expect("read");
    let v = Volume::open_read_only(&f.image).expect("opens");
    assert!(v.is_read_only());
    assert_eq!(v.read("/f").expect("read"), b"x");
    assert_eq!(
        v.write("/f", b"y").expect_err("refused").kind(),
        ErrorKind::ReadOnly
    );
    assert_eq!(
        v.create_dir("/d").expect_err("refused").kind(),
        ErrorKind::ReadOnly
    );
    drop(v);
    assert!(before == std::fs::read(&f.image).expect("read"));
}

#[test]
fn an_image_left_dirty_is_read_without_touching_it() {
    let f = Fixture::new("");
    let v = f.open();
    v.create_dir("/d").expect("made");
    v.write("/d/f", b"recovered").expect("written");
    v.sync().expect("durable");
    // As after a power failure: a copy taken while the volume is in use.
    let copy = f.image.with_extension("copy");
    std::fs::copy(&f.image, &copy).expect("copied");
    v.close().expect("closed");
    let before = std::fs::read(&copy).expect("read");
    let v = Volume::open_read_only(&copy).expect("opens");
    assert_eq!(v.read("/d/f").expect("there"), b"recovered");
    drop(v);
    assert!(before == std::fs::read(&copy).expect("read"));
    let v = Volume::open(&copy).expect("recovers");
    assert_eq!(v.read("/d/f").expect("there"), b"recovered");
    v.close().expect("closed");
    assert_e2fsck_clean(&copy);
}

#[test]
fn many_threads_at_once() {
    let f = Fixture::new("orphan_file");
    let v = f.open();
    std::thread::scope(|scope| {
        for t in 0..4 {
            let v = &v;
            scope.spawn(move || {
                let dir = format!("/t{t}");
                v.create_dir(&dir).expect("made");
                for i in 0..100 {
                    let path = format!("{dir}/{i}");
                    v.write(&path, vec![t as u8; 5000 + i]).expect("written");
                    if i % 3 == 0 {
                        v.remove_file(&path).expect("removed");
                    } else {
                        assert_eq!(v.read(&path).expect("read").len(), 5000 + i);
                    }
                }
            });
        }
    });
    v.close().expect("closed");
    assert_e2fsck_clean(&f.image);
}

#[test]
fn what_is_no_volume_is_said_so() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("x");
    let open = |bytes: &[u8]| {
        std::fs::write(&path, bytes).expect("written");
        Volume::open_read_only(&path).expect_err("no volume")
    };
    assert_eq!(open(b"").kind(), ErrorKind::Corrupt);
    assert_eq!(open(&[0; 1000]).kind(), ErrorKind::Corrupt);
    let e = open(&vec![0; 1 << 20]);
    assert_eq!(e.kind(), ErrorKind::UnsupportedFeature);
    assert!(
        e.to_string().starts_with(&path.display().to_string()),
        "{e}"
    );
    let mut xfs = vec![0; 1 << 20];
    xfs[..4].copy_from_slice(b"XFSB");
    assert!(open(&xfs).to_string().contains("XFS"));
    let e = Volume::open_read_only(dir.path()).expect_err("a directory");
    assert_ne!(e.kind(), ErrorKind::Corrupt);
    let e = Volume::open_read_only(dir.path().join("none")).expect_err("missing");
    assert_eq!(e.kind(), ErrorKind::NotFound);
}

#[test]
fn appends_in_flight_are_committed_together() {
    use blockwright_device::{AlignedBuf, IoSlice};
    let f = Fixture::new("");
    let v = f.open();
    let commits = |v: &Volume| {
        let all = v.vfs().counters();
        all.iter()
            .find(|(name, _)| name == "direct_deferred_for_commit")
            .map_or(0, |(_, n)| *n)
    };
    let (send, receive) = std::sync::mpsc::channel();
    let files: Vec<File> = (0..3)
        .map(|k| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .direct(true)
                .open(&v, format!("/f{k}"))
                .expect("opened")
        })
        .collect();
    for i in 0..300u64 {
        for (k, file) in files.iter().enumerate() {
            let send = send.clone();
            let slice: IoSlice = AlignedBuf::copy_of(&[(i % 250) as u8 + k as u8; 4096]).into();
            // The third one leaves holes.
            let at = if k == 2 { i * 2 } else { i } * 4096;
            file.submit_write(vec![slice], at, move |r| send.send(r).expect("heard"));
        }
    }
    for _ in 0..900 {
        let r = receive.recv_timeout(Duration::from_secs(60));
        assert_eq!(r.expect("ends").expect("written"), 4096);
    }
    assert_eq!(commits(&v), 900);
    let (tell, told) = std::sync::mpsc::channel();
    files[0].submit_read(4096, 8192, move |r| tell.send(r).expect("heard"));
    let read = told.recv_timeout(Duration::from_secs(60)).expect("ends");
    assert_eq!(
        read.expect("read").iter().map(|s| s.len()).sum::<usize>(),
        8192
    );
    drop(files);
    v.close().expect("closed");
    assert_e2fsck_clean(&f.image);
    let v = f.open();
    for k in 0..3usize {
        let bytes = v.read(format!("/f{k}")).expect("read");
        let step = if k == 2 { 8192 } else { 4096 };
        for i in 0..300usize {
            let want = (i % 250) as u8 + k as u8;
            assert!(bytes[i * step..i * step + 4096].iter().all(|b| *b == want));
        }
        assert_eq!(bytes.len(), 299 * step + 4096);
    }
}

/// Short runs of a file, and small files, are allocated, sent and made visible together.
#[test]
fn small_writes_are_written_back_in_batches() {
    let f = Fixture::new("");
    let v = f.open();
    let counter = |name: &str| v.vfs().stats().get(name).expect("counted");
    // The number of runs of a batch, and more.
    let scattered = v.create_file("/scattered").expect("made");
    // Part of it is allocated and unwritten before.
    scattered
        .allocate(400 * 4096, 100 * 4096)
        .expect("allocated");
    scattered.sync_all().expect("synced");
    let (handles, runs) = (counter("journal_handles"), counter("writeback_runs"));
    for k in 0..600u64 {
        scattered
            .write_all_at(&[k as u8 | 1; 1024], k * 8192 + 512)
            .expect("written");
    }
    scattered.sync_all().expect("synced");
    assert_eq!(counter("writeback_runs") - runs, 600);
    let used = counter("journal_handles") - handles;
    assert!(used < 60, "{used} handles for 600 runs");
    let extents = scattered.extents().expect("listed");
    let data = extents
        .iter()
        .filter(|e| matches!(e.kind, ExtentKind::Data(_)));
    assert_eq!(data.count(), 600);
    let stats = v.vfs().stats();
    let file_extents = stats.metrics().iter().find(|m| m.name == "file_extents");
    let Some(blockwright_vfs::stats::Value::Histogram(d)) = file_extents.map(|m| &m.value) else {
        panic!("no histogram of extents: {file_extents:?}");
    };
    // Those that were allocated before and not written count too.
    assert!(d.count() == 1 && d.sum >= 600, "{d:?}");

    let (handles, requests) = (counter("journal_handles"), counter("writeback_requests"));
    for k in 0..128u64 {
        v.write(format!("/small{k}"), [k as u8 | 1; 2048])
            .expect("written");
    }
    let made = counter("journal_handles") - handles;
    v.sync().expect("synced");
    let used = counter("journal_handles") - handles - made;
    assert!(used < 32, "{used} handles to make 128 files' data visible");
    let requests = counter("writeback_requests") - requests;
    assert!(requests < 64, "{requests} requests for 128 neighbours");
    drop(scattered);
    v.close().expect("closed");

    let v = f.open();
    let mut expected = vec![0; 599 * 8192 + 512 + 1024];
    for k in 0..600usize {
        expected[k * 8192 + 512..][..1024].fill(k as u8 | 1);
    }
    assert!(v.read("/scattered").expect("read") == expected);
    for k in 0..128u64 {
        let read = v.read(format!("/small{k}")).expect("read");
        assert_eq!(read, [k as u8 | 1; 2048]);
    }
    v.close().expect("closed");
    assert_e2fsck_clean(&f.image);
}

/// Copies keep holes and preallocated blocks, on both formats, and their checkers agree.
#[test]
fn copies_keep_holes_and_preallocated_blocks() {
    use blockwright::Format;
    use blockwright_device::{CountingDevice, MemoryDevice, SharedDevice};
    use blockwright_vfs::{FallocMode, Place};
    use std::sync::Arc;

    for (format, features) in [
        (Format::Ext4, ""),
        (Format::Ext4, "^extent,^64bit"),
        (Format::Ext4, "inline_data"),
        (Format::F2fs, "extra_attr"),
    ] {
        let memory = Arc::new(MemoryDevice::new(256 * MIB));
        let shared = Arc::clone(&memory) as SharedDevice;
        VolumeBuilder::new()
            .format(format)
            .features(features)
            .size(256 * MIB)
            .create_on(&shared)
            .expect("made");
        let counted = Arc::new(CountingDevice::new(shared));
        let v = Volume::open_device(Arc::clone(&counted) as SharedDevice).expect("opens");
        let open = |path: &str| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .open(&v, path)
                .expect("opened")
        };
        let data: Vec<u8> = (0..20 * MIB).map(|i| ((i * 7) >> 9) as u8).collect();
        let (a, b) = (open("/a"), open("/b"));
        a.write_all_at(&data, 0).expect("written");
        a.write_all_at(&data[..100_000], 60 * MIB).expect("written");
        let preallocated = !features.contains("^extent");
        if preallocated {
            let mode = FallocMode::Allocate { keep_size: false };
            a.handle()
                .fallocate(30 * MIB..40 * MIB, mode)
                .expect("allocated");
        }
        a.set_len(1 << 32).expect("grown");
        // The target has other bytes where the source has none.
        b.write_all_at(&vec![0xEE; 50 << 20], 0).expect("written");
        v.sync().expect("synced");
        v.vfs().drop_caches();
        let before = counted.stats();
        let mut at = 0;
        while at < 1 << 32 {
            let n = a.copy_range(at, &b, at, (1 << 32) - at).expect("copied");
            assert!(n > 0);
            at += n;
        }
        v.sync().expect("synced");
        let after = counted.stats();
        let read = after.reads.bytes - before.reads.bytes;
        let written = after.writes.bytes - before.writes.bytes;
        assert!(
            (20 * MIB..23 * MIB).contains(&read),
            "{format:?}: {read} bytes read"
        );
        assert!(
            (20 * MIB..23 * MIB).contains(&written),
            "{format:?}: {written} bytes written"
        );
        let requests = after.reads.requests - before.reads.requests;
        assert!(requests < 150, "{format:?}: {requests} reads");
        v.copy("/a", "/c").expect("copied");
        for name in ["/b", "/c"] {
            let copy = open(name);
            let unwritten = |f: &File| {
                let place = f.handle().map(35 * MIB, 4096).expect("mapped").place;
                matches!(place, Place::Unwritten(_) | Place::Reserved)
            };
            assert_eq!(unwritten(&a), preallocated, "{format:?}");
            assert_eq!(unwritten(&copy), preallocated, "{format:?} {name}");
            let mut holes = (Vec::new(), Vec::new());
            for (f, out) in [(&a, &mut holes.0), (&copy, &mut holes.1)] {
                let mut at = 0;
                while let Ok(start) = f.seek_data(at) {
                    at = f.seek_hole(start).expect("found");
                    out.push((start, at));
                }
            }
            assert_eq!(holes.0, holes.1, "{format:?} {name}");
            assert_eq!(copy.metadata().expect("there").len(), 1 << 32);
            let mut got = vec![0; 61 << 20];
            assert_eq!(copy.read_at(&mut got, 0).expect("read"), got.len());
            let mut want = vec![0; 61 << 20];
            want[..data.len()].copy_from_slice(&data);
            want[60 << 20..][..100_000].copy_from_slice(&data[..100_000]);
            assert!(got == want, "{format:?} {name}");
        }
        drop((a, b));
        v.close().expect("closed");
        let dir = tempfile::tempdir().expect("a directory");
        let image = dir.path().join("image");
        memory.save(&image).expect("saved");
        match format {
            Format::Ext4 => assert_e2fsck_clean(&image),
            _ => common::assert_fsck_f2fs_clean(&image),
        }
    }
}

/// Volumes over one image, each with its overlay.
#[test]
fn overlays_over_one_image() {
    let scratch = tempfile::tempdir().unwrap();
    let image = scratch.path().join("disk.img");
    let volume = Volume::create(&image, 64 << 20).unwrap();
    volume.write("/base", b"of the base").unwrap();
    volume.close().unwrap();
    let before = std::fs::read(&image).unwrap();
    let over = |n: u32| Volume::options().overlay(scratch.path().join(format!("{n}.qcow2")));
    let open: Vec<Volume> = (0..3).map(|n| over(n).open(&image).unwrap()).collect();
    for (n, volume) in open.into_iter().enumerate() {
        volume.write("/base", format!("of {n}").as_bytes()).unwrap();
        volume.close().unwrap();
    }
    for n in 0..3 {
        let volume = over(n).read_only(true).open(&image).unwrap();
        assert_eq!(
            volume.read("/base").unwrap(),
            format!("of {n}").into_bytes()
        );
        volume.close().unwrap();
    }
    assert!(std::fs::read(&image).unwrap() == before);
    let other = scratch.path().join("other.img");
    std::fs::copy(&image, &other).unwrap();
    let told = over(0).open(&other).unwrap_err().to_string();
    assert!(told.contains("not over this image"), "{told}");
    let device = blockwright::device::open(&image, OpenMode::default()).unwrap();
    let told = over(0).open_device(device).unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Unsupported);
}
