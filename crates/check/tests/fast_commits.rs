//! Volumes with fast commits: made by the running kernel and copied while mounted, and made by hand.

use blockwright_test_support::lab as common;

use std::collections::BTreeMap;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use blockwright_check::Mode;
use blockwright_check::ext4::{CheckOptions, IssueKind, check};
use blockwright_device::{CrashPolicy, MemoryDevice, RecordingDevice, SharedDevice};
use blockwright_ondisk::ext4::fast_commit::running_checksum;
use blockwright_ondisk::ext4::{Ino, RoCompat, checksum};
use common::volume::Volume;
use common::{Lab, repair, show, tools, verify};

/// A volume mounted by the kernel; unmounted when dropped.
struct Mounted(tempfile::TempDir);

impl Mounted {
    fn new(image: &Path, options: &str) -> Option<Self> {
        let at = tempfile::tempdir().unwrap();
        let out = Command::new("timeout")
            .args(["60", "mount", "-t", "ext4", "-o"])
            .arg(format!("loop,{options}"))
            .arg(image)
            .arg(at.path())
            .output()
            .unwrap();
        if out.status.success() {
            return Some(Self(at));
        }
        let why = String::from_utf8_lossy(&out.stderr).into_owned();
        blockwright_oracles::skip(&format!("cannot mount: {why}"));
        None
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Busy for a moment while another test starts a program.
        for _ in 0..50 {
            let done = Command::new("timeout")
                .args(["60", "umount"])
                .arg(self.0.path())
                .status();
            if done.is_ok_and(|s| s.success()) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}

/// What a tree holds: kind, links, size, contents by checksum.
fn list(root: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut todo = vec![root.to_path_buf()];
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let meta = path.symlink_metadata().unwrap();
            let mut text = format!("{:o} {}", meta.mode(), meta.nlink());
            if meta.is_dir() {
                todo.push(path.clone());
            } else if meta.is_file() {
                let bytes = std::fs::read(&path).unwrap();
                text += &format!(" {} {:x}", meta.len(), checksum::crc32c(0, &bytes));
            } else {
                text += &format!(" {:?}", std::fs::read_link(&path).ok());
            }
            let name = path.strip_prefix(root).unwrap();
            found.insert(name.display().to_string(), text);
        }
    }
    found
}

fn sync_file(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
    std::fs::File::open(path).unwrap().sync_all().unwrap();
}

/// What the volume holds before: a directory with an index, files to change and to remove.
fn prepare(root: &Path) {
    std::fs::create_dir(root.join("many")).unwrap();
    for n in 0..400 {
        std::fs::write(root.join(format!("many/a name of some length {n}")), b"x").unwrap();
    }
    for n in 0..12 {
        std::fs::write(root.join(format!("old{n}")), vec![n; 40_000]).unwrap();
    }
}

/// Operations that kernels log as fast commits.
fn work(root: &Path) {
    for n in 0..20usize {
        sync_file(
            &root.join(format!("new{n}")),
            &vec![n as u8; 5000 * (n + 1)],
        );
    }
    for n in 0..150 {
        let path = root.join(format!("many/one of the later names {n}"));
        sync_file(&path, &vec![n as u8; 100 * n]);
    }
    for n in 100..160 {
        std::fs::remove_file(root.join(format!("many/a name of some length {n}"))).unwrap();
    }
    let open = |name: &str| {
        std::fs::OpenOptions::new()
            .write(true)
            .open(root.join(name))
            .unwrap()
    };
    // Many extents: the mapping needs a tree of its own.
    let file = open("old3");
    for n in [50u64, 10, 90, 70, 30, 110, 130] {
        file.write_all_at(&[9; 4096], n * 4096).unwrap();
        file.sync_all().unwrap();
    }
    std::fs::hard_link(root.join("old5"), root.join("linked")).unwrap();
    std::fs::hard_link(root.join("old7"), root.join("stays")).unwrap();
    std::fs::remove_file(root.join("linked")).unwrap();
    std::os::unix::fs::symlink("old7", root.join("symlink")).unwrap();
    let file = open("old8");
    file.set_len(7000).unwrap();
    file.sync_all().unwrap();
    std::fs::remove_file(root.join("old9")).unwrap();
    sync_file(&root.join("old10"), b"rewritten");
    std::fs::create_dir(root.join("dir")).unwrap();
    sync_file(&root.join("dir/inside"), &[1; 12_345]);
    std::fs::rename(root.join("old11"), root.join("dir/moved")).unwrap();
    sync_file(&root.join("dir/again"), &[3; 70_000]);
    sync_file(&root.join("last"), b"the end");
}

fn make(path: &Path, args: &[&str]) {
    let out = Command::new("mke2fs")
        .args(["-q", "-F", "-t", "ext4", "-J", "size=4"])
        .args(args)
        .arg(path)
        .arg("48M")
        .output()
        .unwrap();
    assert!(out.status.success(), "{out:?}");
}

/// A volume copied while the kernel had it mounted, with fast commits in it, and its tree as synced.
fn dirty(path: &Path) -> Option<(Vec<u8>, BTreeMap<String, String>)> {
    let mounted = Mounted::new(path, "noatime")?;
    prepare(mounted.0.path());
    drop(mounted);
    let mounted = Mounted::new(path, "noatime")?;
    work(mounted.0.path());
    let image = std::fs::read(path).unwrap();
    let tree = list(mounted.0.path());
    drop(mounted);
    Some((image, tree))
}

fn replayed(report: &blockwright_check::ext4::Report) -> u64 {
    report
        .issues
        .iter()
        .find_map(|i| match i.kind {
            IssueKind::FastCommitReplayed { records } => Some(records),
            _ => None,
        })
        .unwrap_or(0)
}

#[test]
fn a_kernel_s_fast_commits_are_judged_and_replayed() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let path = lab.dir.path().join("kernel.img");
    for args in [
        &["-O", "fast_commit", "-b", "1024"][..],
        &[
            "-O",
            "fast_commit,quota,project,^metadata_csum",
            "-I",
            "512",
            "-b",
            "4096",
        ],
    ] {
        make(&path, args);
        let quota = args[1].contains("quota");
        if quota {
            // The kernel may refuse to write quota files: it does its work without knowing of them.
            let mut volume = Volume::new(std::fs::read(&path).unwrap());
            set_quota(&mut volume, false);
            std::fs::write(&path, &volume.image).unwrap();
        }
        let Some((image, tree)) = dirty(&path) else {
            return;
        };
        let mut volume = Volume::new(image);
        if quota {
            set_quota(&mut volume, true);
        }
        let image = volume.image;
        let report = verify(&image).unwrap();
        assert!(replayed(&report) > 10, "{}", show(&report));
        assert!(report.is_clean(), "{args:?}:\n{}", show(&report));
        for mode in [Mode::Preen, Mode::Yes] {
            let (report, after) = repair(&image, mode);
            let report = report.unwrap();
            assert!(
                replayed(&report) > 10 && report.changed,
                "{}",
                show(&report)
            );
            let again = verify(&after).unwrap();
            assert!(
                again.is_clean() && replayed(&again) == 0,
                "{}",
                show(&again)
            );
            let (code, text) = lab.e2fsck(&after);
            assert_eq!(code, 0, "{args:?} {mode:?}: {text}");
            std::fs::write(&path, &after).unwrap();
            let mounted = Mounted::new(&path, "ro").expect("mounted before");
            let ours = list(mounted.0.path());
            for (name, what) in &tree {
                assert_eq!(ours.get(name), Some(what), "{args:?} {mode:?}: {name}");
            }
            assert_eq!(ours.len(), tree.len(), "{args:?} {mode:?}");
        }
        if !quota {
            cut_anywhere(&lab, &image);
        }
    }
}

/// Turns the features on or off, and nothing else: in the superblock, and in copies of it that wait
/// in the log (which has no checksums here).
fn set_quota(volume: &mut Volume, on: bool) {
    volume.edit_sb(|sb| {
        let mut f = sb.features();
        f.ro_compat.set(RoCompat::QUOTA | RoCompat::PROJECT, on);
        sb.set_features(f);
    });
    let sb = volume.sb();
    for block in volume.blocks(Ino::JOURNAL) {
        let copy = &mut volume.block(block)[1024..];
        if copy[0x38..0x3A] == [0x53, 0xEF] && copy[0x68..0x78] == sb.uuid {
            copy[0x64..0x68].copy_from_slice(&sb.feature_ro_compat.get().to_le_bytes());
        }
    }
}

/// A replay cut short and done again leaves the same names.
fn cut_anywhere(lab: &Lab, image: &[u8]) {
    let recording = Arc::new(RecordingDevice::new(&MemoryDevice::from_image(image)));
    let device: SharedDevice = recording.clone();
    let options = CheckOptions {
        mode: Mode::Yes,
        ..CheckOptions::default()
    };
    let whole = check(device, &options).unwrap().stats;
    let log = recording.log_len();
    for n in 0..12 {
        let cut = log * n / 12;
        let policy = CrashPolicy::Random { seed: n as u64 };
        let torn = recording.image_at(cut, policy).to_vec();
        let (report, after) = repair(&torn, Mode::Yes);
        let report = report.unwrap();
        assert_eq!(
            (report.stats.names, report.stats.inodes),
            (whole.names, whole.inodes),
            "cut {cut} of {log}: {}",
            show(&report)
        );
        let again = verify(&after).unwrap();
        assert!(again.is_clean(), "cut {cut}: {}", show(&again));
        if n % 4 == 0 {
            assert_eq!(lab.e2fsck(&after).0, 0, "cut {cut}");
        }
    }
}

/// Linux fills the area up to its last block. Then neither Linux itself nor e2fsck replays the log.
#[test]
fn an_area_that_is_full_is_replayed() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let path = lab.dir.path().join("full.img");
    make(&path, &["-O", "fast_commit", "-b", "1024"]);
    let Some(mounted) = Mounted::new(&path, "noatime") else {
        return;
    };
    let mut records = 0;
    // The area has 16 blocks, and each fsync takes one.
    for n in 0..18usize {
        sync_file(&mounted.0.path().join(format!("new{n}")), &vec![7; n * 900]);
        let image = std::fs::read(&path).unwrap();
        records = records.max(replayed(&verify(&image).unwrap()));
        let (report, after) = repair(&image, Mode::Yes);
        let report = report.unwrap();
        let again = verify(&after).unwrap();
        assert!(again.is_clean(), "{n}: {}", show(&again));
        assert_eq!(lab.e2fsck(&after).0, 0, "{n}");
        let volume = Volume::new(after);
        for old in 0..=n {
            let size = volume.inode(volume.lookup(&format!("new{old}"))).size;
            assert_eq!(size, old as u64 * 900, "{n}: {old}: {}", show(&report));
        }
    }
    assert!(records >= 15, "{records} records at most");
}

/// A volume with one transaction in its log, and records behind it.
fn with_records(lab: &Lab, records: &[(u16, Vec<u8>)]) -> Volume {
    let image = lab
        .make(
            "8M",
            &[
                "-t",
                "ext4",
                "-b",
                "1024",
                "-O",
                "fast_commit",
                "-J",
                "size=2",
            ],
        )
        .unwrap();
    let data = lab.dir.path().join("block");
    let first = Volume::new(image.clone());
    let target = first.blocks(first.lookup("dir/big"))[0];
    std::fs::write(&data, [7; 1024]).unwrap();
    let write = format!("jw -b {} {}", target.0, data.display());
    let mut volume = Volume::new(lab.debugfs(&image, &["jo -c", &write, "jc"]));
    let log = volume.blocks(Ino::JOURNAL);
    // A kernel sets the journal's feature when it mounts a volume that has its own.
    let head = volume.block(log[0]);
    head[0x2B] |= 0x20;
    head[0x57] = 64;
    let raw: [u8; 1024] = head[..1024].try_into().unwrap();
    let sum = checksum::journal_superblock(&raw);
    head[0xFC..0x100].copy_from_slice(&sum.to_be_bytes());
    let head = head.to_vec();
    let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
    let (len, sequence, area) = (word(0x10), word(0x18), word(0x54));
    let tid = (sequence + 1).to_le_bytes();
    let mut bytes = Vec::new();
    let mut record = |tag: u16, len: usize, value: &[u8]| {
        bytes.extend(tag.to_le_bytes());
        bytes.extend((len as u16).to_le_bytes());
        bytes.extend(value);
    };
    record(9, 8, &[[0; 4], tid].concat());
    for (tag, value) in records {
        record(*tag, value.len(), value);
    }
    record(8, 8, &tid);
    let sum = running_checksum(0, &bytes);
    bytes.extend(sum.to_le_bytes());
    let place = log[(len - area + 1) as usize];
    volume.block(place)[..bytes.len()].copy_from_slice(&bytes);
    volume
}

#[test]
fn records_that_say_nothing_new_are_replayed() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let gone = (5, b"\x02\0\0\0\x0c\0\0\0no such name".to_vec());
    let volume = with_records(&lab, &[gone]);
    let report = verify(&volume.image).unwrap();
    assert!(
        report.is_clean() && replayed(&report) == 1,
        "{}",
        show(&report)
    );
    for mode in [Mode::Preen, Mode::Yes] {
        let (report, after) = repair(&volume.image, mode);
        assert!(report.unwrap().changed);
        assert_eq!(lab.e2fsck(&after).0, 0);
        assert_eq!(replayed(&verify(&after).unwrap()), 0);
    }
}

#[test]
fn records_that_contradict_the_volume_are_left_out() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let big = Volume::new(lab.make("8M", &["-t", "ext4", "-b", "1024"]).unwrap()).lookup("dir/big");
    let ino = big.0.to_le_bytes();
    // Blocks of the superblock; a name of an inode that is free; an inode of no type; one too long.
    let range = [&ino[..], &[0; 4], &[4, 0], &[0, 0], &[1, 0, 0, 0]].concat();
    let name = [&[2, 0, 0, 0][..], &700u32.to_le_bytes(), b"free"].concat();
    let typeless = [&ino[..], &[0; 160]].concat();
    let long = [&ino[..], &[0x81; 500]].concat();
    for record in [(1, range), (4, name), (6, typeless), (6, long)] {
        let volume = with_records(&lab, &[record]);
        let report = verify(&volume.image).unwrap();
        let said = |k: &IssueKind| matches!(k, IssueKind::FastCommitRecord { .. });
        assert!(
            report.issues.iter().any(|i| said(&i.kind)),
            "{}",
            show(&report)
        );
        assert!(!report.is_clean());
        let (report, after) = repair(&volume.image, Mode::Yes);
        let (code, text) = lab.e2fsck(&after);
        assert_eq!(code, 0, "{}{text}", show(&report.unwrap()));
        assert!(verify(&after).unwrap().is_clean());
    }
}

#[test]
fn unknown_records_stop_everything() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let volume = with_records(&lab, &[(0x77, vec![1, 2, 3, 4])]);
    for mode in [Mode::Preen, Mode::Yes] {
        let (report, after) = repair(&volume.image, mode);
        let report = report.unwrap();
        assert!(
            report
                .issues
                .iter()
                .any(|i| i.kind == IssueKind::FastCommitUnknown)
        );
        assert!(!report.changed && after == volume.image);
    }
}
