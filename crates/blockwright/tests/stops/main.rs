//! A watch that stops a change of size or settings: at the first, the middle and the last call of each phase the image, with the length that the command gives it, is whole, and the same
//! change finishes afterwards.

mod builds;
mod disks;

use blockwright::device::{DevOffset, DeviceExt, Flags, MemoryDevice, SharedDevice};
use blockwright::disk::{self, Disk, DiskBuilder, Part, PartReport, Scheme, WriteWatch, container};
use blockwright::reshape::{
    self, Mode, Parts, Phase, Progress, ResizeOptions, Resized, Settings, Watch,
};
use blockwright::{ErrorKind, Format, OpenOptions, Result, Volume, VolumeBuilder};
use blockwright_check::Severity;
use blockwright_test_support::assert_fsck_f2fs_clean;
use blockwright_test_support::testing::{
    Snapshot, assert_same, have, run, run_ok, snapshot_volume,
};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

const MIB: u64 = 1 << 20;

enum Change {
    Size(u64),
    Minimum,
    Set(Box<Settings>),
}

fn features(list: &str) -> Change {
    Change::Set(Box::new(Settings {
        features: Some(list.to_owned()),
        ..Settings::default()
    }))
}

fn len(path: &Path) -> u64 {
    std::fs::metadata(path).expect("an image").len()
}

fn set_len(path: &Path, bytes: u64) {
    let file = std::fs::OpenOptions::new().write(true).open(path);
    file.expect("an image").set_len(bytes).expect("a size");
}

/// A watch that stops the change at call `stop`, and all calls.
fn watch(stop: usize) -> (Watch, Arc<Mutex<Vec<Progress>>>) {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&calls);
    let watch = Watch::new(move |progress| {
        let mut seen = seen.lock().expect("no panic");
        seen.push(progress);
        match seen.len() > stop {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    (watch, calls)
}

/// Changes the image in a file, and gives that its length, as the commands do.
fn changed(image: &Path, change: &Change, watch: &Watch) -> Result<()> {
    let before = len(image);
    let wanted = match change {
        Change::Size(bytes) => Some(*bytes),
        Change::Minimum | Change::Set(_) => None,
    };
    set_len(image, before.max(wanted.unwrap_or(0)));
    let memory = Arc::new(MemoryDevice::load(image).expect("loaded"));
    let device: SharedDevice = Arc::clone(&memory) as SharedDevice;
    let had = reshape::volume_bytes(&device)?;
    let resized: Result<Option<Resized>> = match change {
        Change::Size(bytes) => reshape::resize(
            &device,
            &ResizeOptions::to_bytes(*bytes).watch(watch.clone()),
        )
        .map(Some),
        Change::Minimum => {
            reshape::resize(&device, &ResizeOptions::to_minimum(0).watch(watch.clone())).map(Some)
        }
        Change::Set(settings) => reshape::set_watched(&device, settings, watch).map(|_| None),
    };
    let length = match resized.as_ref() {
        Ok(None) => before,
        Ok(Some(resized)) => reshape::file_bytes(&device, before, Some(had), wanted, Ok(resized)),
        Err(error) => reshape::file_bytes(&device, before, Some(had), wanted, Err(error)),
    };
    memory.save(image).expect("saved");
    set_len(image, length);
    resized.map(|_| ())
}

fn contents(image: &Path, what: &str) -> Snapshot {
    let volume = Volume::options().read_only(true).open(image);
    let volume = volume.unwrap_or_else(|e| panic!("{what}: {e}"));
    let all = snapshot_volume(&volume, "/").unwrap_or_else(|e| panic!("{what}: {e}"));
    volume.close().unwrap_or_else(|e| panic!("{what}: {e}"));
    all
}

/// Neither checker finds anything, and every file is as before.
fn is_whole(image: &Path, format: Format, before: &Snapshot, what: &str) {
    let memory = Arc::new(MemoryDevice::load(image).expect("loaded"));
    let device: SharedDevice = Arc::clone(&memory) as SharedDevice;
    assert!(
        reshape::volume_bytes(&device).expect("a volume") <= len(image),
        "{what}: the image was cut"
    );
    let found = match format {
        Format::Ext4 => {
            let report = blockwright_check::ext4::check(device, &Default::default());
            let report = report.unwrap_or_else(|e| panic!("{what}: {e}"));
            issues(report.issues.iter().map(|i| (i.severity, i.to_string())))
        }
        _ => {
            let report = blockwright_check::f2fs::check(device, &Default::default());
            let report = report.unwrap_or_else(|e| panic!("{what}: {e}"));
            issues(report.issues.iter().map(|i| (i.severity, i.to_string())))
        }
    };
    assert!(found.is_empty(), "{what}: {found:?}");
    let name = image.display().to_string();
    match format {
        Format::Ext4 => {
            let out = run("e2fsck", &["-fn", &name]);
            let said = String::from_utf8_lossy(&out.stdout);
            assert!(out.status.success(), "{what}: {said}");
            // The copy of superblock and descriptors in the second group names the same places.
            let (first, copy) = (places(&[&name]), places(&[COPY, &[&name]].concat()));
            assert!(!first.is_empty());
            assert_eq!(first, copy, "{what}");
        }
        _ => assert_fsck_f2fs_clean(image),
    }
    assert_same(before, &contents(image, what), &[]);
}

fn issues(all: impl Iterator<Item = (Severity, String)>) -> Vec<String> {
    all.filter(|(severity, _)| *severity > Severity::Note)
        .map(|(_, text)| text)
        .collect()
}

/// Where `dumpe2fs` finds the copy in the second group of a volume with blocks of 1 KiB.
const COPY: &[&str] = &["-o", "superblock=8193", "-o", "blocksize=1024"];

/// The features, the size, and where bitmaps and tables are, by `dumpe2fs`.
fn places(args: &[&str]) -> Vec<String> {
    // It reads bitmaps, too, and fails where a copy of a descriptor has no checksum of them.
    let out = run("dumpe2fs", args);
    let said = String::from_utf8_lossy(&out.stdout);
    let kept = [
        "Filesystem UUID",
        "Filesystem features",
        "Block count",
        "Group ",
        "  Block bitmap at",
        "  Inode bitmap at",
        "  Inode table at",
    ];
    let lines = said
        .lines()
        .filter(|line| kept.iter().any(|k| line.starts_with(k)));
    // Without checksums and flags: a copy has them from the day of the change.
    let lines = lines.map(|line| line.split(" csum").next().unwrap_or_default());
    lines
        .map(|line| line.split(" [").next().unwrap_or_default().to_owned())
        .collect()
}

/// A field of `dumpe2fs -h`.
fn field(image: &Path, name: &str) -> String {
    let said = run_ok("dumpe2fs", &["-h", &image.display().to_string()]);
    said.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// The first, the middle and the last call of each phase.
fn stops(calls: &[Progress]) -> BTreeSet<usize> {
    let mut stops = BTreeSet::new();
    for phase in [Phase::Inodes, Phase::Numbers, Phase::Data, Phase::Metadata] {
        let of = (0..calls.len()).filter(|n| calls[*n].phase == phase);
        let of: Vec<usize> = of.collect();
        stops.extend(of.first());
        stops.extend(of.get(of.len() / 2));
        stops.extend(of.last());
    }
    stops
}

/// The groups or segments of the main area.
fn parts(image: &Path) -> Parts {
    let device: SharedDevice = Arc::new(MemoryDevice::load(image).expect("loaded"));
    let bytes = reshape::volume_bytes(&device).expect("a volume");
    let same = reshape::resize(&device, &ResizeOptions::to_bytes(bytes).mode(Mode::DryRun));
    same.expect("the same size").parts
}

/// Stops the change of the image at many of its calls.
fn stopped(image: &Path, format: Format, change: &Change, what: &str) {
    let out = image.with_extension("stopped");
    let before = contents(image, what);
    std::fs::copy(image, &out).expect("copied");
    let (all, calls) = watch(usize::MAX);
    changed(&out, change, &all).unwrap_or_else(|e| panic!("{what}: {e}"));
    let calls = calls.lock().expect("no panic").clone();
    for progress in &calls {
        assert!(progress.done <= progress.total, "{what}: {progress:?}");
    }
    is_whole(&out, format, &before, what);
    let (finished, parts) = (len(&out), parts(&out));
    let stops = stops(&calls);
    println!("{what}: {} calls, stopped at {stops:?}.", calls.len());
    assert!(!calls.is_empty(), "{what}");
    if matches!(change, Change::Minimum) {
        assert!(calls.iter().any(|c| c.phase == Phase::Data), "{what}");
    }
    for n in stops {
        let what = format!("{what}, stopped at {n}: {:?}", calls[n]);
        std::fs::copy(image, &out).expect("copied");
        let (watch, seen) = watch(n);
        let error = changed(&out, change, &watch).expect_err(&what);
        assert_eq!(error.kind(), ErrorKind::Interrupted, "{what}: {error}");
        assert_eq!(
            seen.lock().expect("no panic").len(),
            n + 1,
            "{what}: called after the stop"
        );
        is_whole(&out, format, &before, &what);
        if format == Format::Ext4 && !field(image, "Filesystem features").contains("has_journal") {
            let now = field(&out, "Filesystem features");
            assert!(!now.contains("has_journal"), "{what}: {now}");
        }
        changed(&out, change, &Watch::default()).unwrap_or_else(|e| panic!("{what}: {e}"));
        let what = format!("{what}, finished");
        is_whole(&out, format, &before, &what);
        match change {
            Change::Minimum => assert!(len(&out) <= finished + 4 * MIB, "{what}"),
            Change::Size(_) => {
                assert_eq!(len(&out), finished, "{what}");
                assert_eq!(self::parts(&out), parts, "{what}");
            }
            Change::Set(_) if format == Format::Ext4 => {
                let list = "Filesystem features";
                assert_eq!(field(&out, list), wanted_features(image, change), "{what}");
            }
            Change::Set(_) => {}
        }
    }
}

/// The features after a change that nothing stopped.
fn wanted_features(image: &Path, change: &Change) -> String {
    let out = image.with_extension("through");
    std::fs::copy(image, &out).expect("copied");
    changed(&out, change, &Watch::default()).expect("changed");
    field(&out, "Filesystem features")
}

/// Directories in all groups with files in them; some blocks between them are free.
fn fill(image: &Path, megabytes: usize) {
    let volume = Volume::open(image).expect("opened");
    let pattern = |seed: usize, len: usize| -> Vec<u8> {
        (0..len)
            .map(|i| (i * 31 + seed * 17 + i / 251) as u8)
            .collect()
    };
    for n in 0..24 {
        volume.create_dir(format!("/d{n}")).expect("made");
        for k in 0..30 {
            let bytes = pattern(n + k, k * 700);
            volume
                .write(format!("/d{n}/a file with a long name {k}"), bytes)
                .expect("written");
        }
        volume
            .write(format!("/d{n}/gone"), pattern(n, 90_000))
            .expect("written");
    }
    for n in 0..megabytes {
        volume
            .write(format!("/d{}/{n}", n % 24), pattern(n, MIB as usize))
            .expect("written");
    }
    // With holes between its pieces.
    let large = OpenOptions::new()
        .write(true)
        .create(true)
        .open(&volume, "/large")
        .expect("a file");
    for n in 0..40 {
        large
            .write_all_at(&pattern(n, 9000), n as u64 * 40_000)
            .expect("written");
    }
    large.sync_all().expect("synced");
    drop(large);
    for n in 0..24 {
        volume.remove_file(format!("/d{n}/gone")).expect("removed");
    }
    volume
        .set_xattr("/d3", "user.long", vec![7; 900], Default::default())
        .expect("set");
    volume.symlink("d3", "/link").expect("linked");
    volume.hard_link("/d3/0", "/hard").ok();
    volume.close().expect("closed");
}

fn made(dir: &Path, options: &[&str], megabytes: u64) -> PathBuf {
    let image = dir.join("image");
    let name = image.display().to_string();
    let size = format!("{megabytes}M");
    let mut args = vec!["-q", "-F", "-b", "1024", "-I", "256"];
    args.extend(options);
    args.extend([name.as_str(), &size]);
    run_ok("mke2fs", &args);
    image
}

fn tools() -> bool {
    have("mke2fs") && have("e2fsck") && have("dumpe2fs")
}

const EXT4: &[&str] = &[
    "-J",
    "size=1",
    "-O",
    "has_journal,extent,64bit,metadata_csum,flex_bg,dir_index,resize_inode,sparse_super",
];
const EXT3: &[&str] = &[
    "-J",
    "size=1",
    "-O",
    "has_journal,extent,flex_bg,dir_index,resize_inode,sparse_super",
];
const EXT2: &[&str] = &["-O", "filetype,dir_index,resize_inode,sparse_super"];
const UNINIT: &[&str] = &[
    "-J",
    "size=1",
    "-O",
    "has_journal,extent,uninit_bg,flex_bg,dir_index,resize_inode,sparse_super",
];

fn ext(options: &[&str], megabytes: u64, changes: &[(&str, Change)]) {
    if !tools() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let image = made(dir.path(), options, megabytes);
    fill(&image, 6);
    for (what, change) in changes {
        stopped(&image, Format::Ext4, change, what);
    }
}

#[test]
fn ext4_sizes() {
    let changes = [
        ("ext4 grows", Change::Size(200 * MIB)),
        ("ext4 shrinks", Change::Size(40 * MIB)),
        ("ext4 at its minimum", Change::Minimum),
    ];
    ext(EXT4, 96, &changes);
}

/// With a journal for the time of the change.
#[test]
fn ext2_sizes() {
    let changes = [
        ("ext2 grows", Change::Size(200 * MIB)),
        ("ext2 shrinks", Change::Size(48 * MIB)),
        ("ext2 at its minimum", Change::Minimum),
    ];
    ext(EXT2, 96, &changes);
}

#[test]
fn ext4_settings() {
    let uuid = Settings {
        uuid: Some([0x5A; 16]),
        label: Some(b"new".to_vec()),
        features: Some("^dir_index".to_owned()),
        ..Settings::default()
    };
    let changes = [
        ("ext4 without checksums", features("^metadata_csum")),
        ("ext4 with quota", features("quota")),
        ("ext4 of another UUID", Change::Set(Box::new(uuid))),
    ];
    ext(EXT4, 48, &changes);
}

#[test]
fn ext3_settings() {
    let changes = [
        ("ext3 with checksums", features("metadata_csum")),
        ("ext3 with all", features("metadata_csum,64bit,quota")),
    ];
    ext(EXT3, 48, &changes);
    let changes = [
        ("uninit_bg with checksums", features("metadata_csum")),
        ("uninit_bg without", features("^uninit_bg")),
    ];
    ext(UNINIT, 48, &changes);
}

/// With a journal for the time of the change.
#[test]
fn ext2_settings() {
    let changes = [
        ("ext2 with checksums", features("metadata_csum")),
        ("ext2 with quota", features("quota")),
    ];
    ext(EXT2, 48, &changes);
}

#[test]
fn f2fs_sizes() {
    if !have("fsck.f2fs") {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let image = dir.path().join("image");
    let made = |megabytes: u64, files: usize| {
        let device = blockwright_test_support::f2fs::formatted(megabytes * MIB);
        device.save(&image).expect("saved");
        fill(&image, files);
    };
    made(100, 12);
    stopped(
        &image,
        Format::F2fs,
        &Change::Size(1100 * MIB),
        "f2fs grows",
    );
    made(200, 70);
    let volume = Volume::open(&image).expect("opened");
    for n in 0..60 {
        volume
            .remove_file(format!("/d{}/{n}", n % 24))
            .expect("removed");
    }
    volume.close().expect("closed");
    stopped(
        &image,
        Format::F2fs,
        &Change::Size(110 * MIB),
        "f2fs shrinks",
    );
    stopped(
        &image,
        Format::F2fs,
        &Change::Minimum,
        "f2fs at its minimum",
    );
}

/// Adds a partition to the disk in a device; stops before write `stop`. How many writes were asked about.
fn added(device: &SharedDevice, part: Part, stop: usize) -> (Result<PartReport>, usize) {
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&calls);
    let watch: WriteWatch = Arc::new(move |done, total| {
        assert!(done <= total);
        match seen.fetch_add(1, Ordering::Relaxed) < stop {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    });
    let disk = Disk::of(Arc::clone(device));
    let epoch = Some(1_700_000_000);
    let report = disk::add_watched(&disk, part, epoch, &std::env::temp_dir(), watch);
    (report, calls.load(Ordering::Relaxed))
}

/// A partition whose adding is stopped: the table and the other partitions are as they were, and the same call adds it afterwards.
#[test]
fn adding_a_partition() {
    let dir = tempfile::tempdir().expect("a directory");
    let tree = dir.path().join("tree");
    std::fs::create_dir(&tree).expect("made");
    for n in 0..40u8 {
        std::fs::write(tree.join(n.to_string()), vec![n; 100_000]).expect("written");
    }
    let source: SharedDevice = Arc::new(MemoryDevice::from_image(&vec![0x5A; 9 << 20]));
    type Make<'a> = Box<dyn Fn() -> Part + 'a>;
    let volume = |format: Format, bytes: u64| -> Make<'_> {
        let tree = &tree;
        let builder = move || VolumeBuilder::new().format(format).from(tree).size(bytes);
        Box::new(move || Part::volume("second", builder()))
    };
    let kinds: [(&str, Make<'_>); 3] = [
        ("ext4", volume(Format::Ext4, 16 * MIB)),
        (
            "raw",
            Box::new(|| Part::raw("second", source.clone(), None)),
        ),
        ("swap", Box::new(|| Part::swap("second", 4 * MIB))),
    ];
    for scheme in [Scheme::Gpt, Scheme::Mbr] {
        let image = dir.path().join(scheme.name());
        DiskBuilder::new(scheme)
            .size(36 * MIB)
            .part(Part::volume("first", VolumeBuilder::new().size(8 * MIB)))
            .create(&image, container::Format::Raw)
            .expect("made");
        let bytes = std::fs::read(&image).expect("read");
        let fresh = || -> SharedDevice { Arc::new(MemoryDevice::from_image(&bytes)) };
        let all = |device: &SharedDevice| {
            let len = device.geometry().bytes as usize;
            device.read_buf(DevOffset(0), len).expect("read").to_vec()
        };
        for (kind, part) in &kinds {
            let through = fresh();
            let (report, calls) = added(&through, part(), usize::MAX);
            let report = report.expect("added");
            assert!(calls > 0 && report.number == 2, "{kind}: {calls}");
            let through = all(&through);
            let place = report.start as usize..(report.start + report.bytes) as usize;
            for stop in BTreeSet::from([0, calls / 2, calls - 1]) {
                let what = format!("{}, {kind}, stopped at {stop} of {calls}", scheme.name());
                let device = fresh();
                let (stopped, _) = added(&device, part(), stop);
                let error = stopped.expect_err(&what);
                assert_eq!(error.kind(), ErrorKind::Interrupted, "{what}: {error}");
                let mut left = all(&device);
                left[place.clone()].copy_from_slice(&bytes[place.clone()]);
                assert!(left == bytes, "{what}: something else was changed");
                added(&device, part(), usize::MAX).0.expect(&what);
                assert!(all(&device) == through, "{what}: finished otherwise");
            }
        }
    }
}

/// A large raw partition of few bytes: what was there before is zeroed in pieces, each byte of the partition is told once, and each piece can be the last.
#[test]
fn a_sparse_partition_is_zeroed_in_pieces() {
    const PIECE_MAX: u64 = 32 * MIB;
    let dir = tempfile::tempdir().expect("a directory");
    let image = dir.path().join("disk");
    DiskBuilder::new(Scheme::Gpt)
        .size(310 * MIB)
        .part(Part::swap("first", MIB))
        .create(&image, container::Format::Raw)
        .expect("made");
    let bytes = 300 * MIB;
    let source: SharedDevice = Arc::new(MemoryDevice::new(bytes));
    let write = |device: &SharedDevice, at: u64, byte: u8| {
        let data = vec![byte; 8192];
        let written = device.write_at(DevOffset(at), &data, Flags::empty());
        written.expect("written");
    };
    for at in [0, 100 * MIB + 4096, 101 * MIB] {
        write(&source, at, 0x5A);
    }
    let mut calls = 0;
    for stop in [usize::MAX, 0, 5] {
        let device: SharedDevice = Arc::new(MemoryDevice::load(&image).expect("loaded"));
        for at in [4, 99, 102, 200, 301] {
            write(&device, at * MIB, 0xEE);
        }
        let told = Arc::new(Mutex::new(Vec::new()));
        let notes = Arc::clone(&told);
        let watch: WriteWatch = Arc::new(move |done, total| {
            let mut notes = notes.lock().expect("notes");
            notes.push((done, total));
            match notes.len() <= stop {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        });
        let disk = Disk::of(Arc::clone(&device));
        let part = Part::raw("second", source.clone(), None);
        let report = disk::add_watched(&disk, part, Some(1), &std::env::temp_dir(), watch);
        let told = told.lock().expect("notes").clone();
        if stop < usize::MAX {
            assert!(stop < calls, "{calls} calls");
            let error = report.expect_err("stopped");
            assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
            assert_eq!(told.len(), stop + 1);
            continue;
        }
        calls = told.len();
        let mut last = 0;
        for (done, total) in told {
            assert!(total == bytes && done <= bytes, "{done} of {total}");
            assert!(done >= last && done - last <= PIECE_MAX, "{last}, {done}");
            last = done;
        }
        assert!(last < bytes && bytes - last <= PIECE_MAX, "{last}");
        let report = report.expect("added");
        assert_eq!(report.bytes, bytes);
        let step = 4 * MIB as usize;
        for at in (0..bytes).step_by(step) {
            let of = |device: &SharedDevice, at: u64| {
                let read = device.read_buf(DevOffset(at), step);
                read.expect("read").to_vec()
            };
            assert!(
                of(&device, report.start + at) == of(&source, at),
                "from byte {at} on"
            );
        }
    }
}

/// A size that is found too small when metadata has moved: the copies of superblock and descriptors name its new places.
#[test]
fn a_size_that_fails_leaves_current_copies() {
    if !tools() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let image = made(
        dir.path(),
        &["-J", "size=1", "-O", "has_journal,^resize_inode"],
        128,
    );
    let volume = Volume::open(&image).expect("opened");
    for n in 0..60usize {
        let bytes = vec![n as u8; 300_000 + n * 11_000];
        volume.write(format!("/{n}"), bytes).expect("written");
    }
    volume.close().expect("closed");
    let before = contents(&image, "made");
    let mut failed = 0;
    for megabytes in [34, 36, 38, 40] {
        let what = format!("{megabytes} MiB");
        match changed(&image, &Change::Size(megabytes * MIB), &Watch::default()) {
            Ok(()) => break,
            Err(e) => assert_eq!(e.kind(), ErrorKind::NoSpace, "{what}: {e}"),
        }
        failed += 1;
        is_whole(&image, Format::Ext4, &before, &what);
    }
    assert!(failed > 0, "every size was large enough");
}
