//! Journals left behind by the running kernel: images copied while mounted, recovered by us and by
//! e2fsck, compared block by block.

mod support;

use blockwright_device::{MemoryDevice, SharedDevice};
use blockwright_ext4::engine::Ext4;
use blockwright_ext4::journal::location::locate;
use blockwright_ext4::{Fs, Options};
use blockwright_ondisk::ext4::{Ino, Superblock};
use blockwright_vfs::engine::Volume;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use support::{Image, Mounted, fsck, have, run, save};

fn sync_file(path: &Path, bytes: &[u8]) {
    use std::io::Write;
    let mut file = std::fs::File::create(path).expect("create");
    file.write_all(bytes).expect("write");
    file.sync_all().expect("fsync");
}

/// Makes directories and files, removes some (revokes), fsyncs as it goes.
fn work(root: &Path, rounds: usize) {
    for round in 0..rounds {
        let dir = root.join(format!("d{round}"));
        std::fs::create_dir(&dir).expect("mkdir");
        for n in 0..40 {
            std::fs::write(
                dir.join(format!("a file with a name {n}")),
                vec![n as u8; 3000],
            )
            .expect("write");
        }
        sync_file(&dir.join("synced"), &[round as u8; 9000]);
        if round % 2 == 1 {
            std::fs::remove_dir_all(root.join(format!("d{}", round - 1))).expect("remove");
            sync_file(&root.join(format!("after{round}")), b"removed");
        }
    }
}

fn dirty_copy(image: &Image, mount: &str, rounds: usize) -> Option<MemoryDevice> {
    let mounted = Mounted::new(&image.path, mount)?;
    work(mounted.path(), rounds);
    let copy = image.load();
    drop(mounted);
    Some(copy)
}

fn journal_round_trip(args: &[&str], mount: &str) {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    for _ in 0..20 {
        let image = Image::make(64 << 10, args);
        let Some(dirty) = dirty_copy(&image, mount, 12) else {
            return;
        };
        if same_recovery(&dirty) {
            return;
        }
    }
    panic!("every copy holds an orphan");
}

/// Recovers a dirty volume by our journal alone and by e2fsck, and compares them. Whether they can be: now and then
/// the kernel has not evicted the last directory yet, and e2fsck then frees such orphans, which is not the journal's work.
fn same_recovery(dirty: &MemoryDevice) -> bool {
    let dir = tempfile::tempdir().expect("dir");
    let theirs = save(dirty, dir.path(), "theirs");
    let out = run(
        "e2fsck",
        &["-y", "-E", "journal_only", theirs.to_str().expect("path")],
    );
    assert!(
        out.status.code().is_some_and(|c| c <= 1),
        "{}",
        String::from_utf8_lossy(&out.stdout)
    );
    let theirs = MemoryDevice::load(&theirs).expect("load").to_vec();

    let device = Arc::new(dirty.snapshot());
    let shared: SharedDevice = device.clone();
    let superblock =
        Superblock::parse(&dirty.to_vec()[1024..], None).expect("superblock of the dirty image");
    let map = locate(&shared, &superblock, Ino::JOURNAL).expect("journal");
    let fs = Fs::mount(shared, Options::default()).expect("mount");
    fs.unmount().expect("unmount");
    drop(fs);
    let ours = device.to_vec();
    // `s_last_orphan`.
    if ours[1024 + 0xE8..1024 + 0xEC] != [0; 4] {
        return false;
    }
    let size = superblock.geo.block_len();
    let home = dirty.to_vec();
    let recovered = home
        .chunks(size)
        .zip(theirs.chunks(size))
        .filter(|(a, b)| a != b)
        .count();
    assert!(
        recovered > 8,
        "only {recovered} blocks were in the log: the test shows nothing"
    );
    for (block, (a, b)) in ours.chunks(size).zip(theirs.chunks(size)).enumerate() {
        let block = block as u64;
        let journal = map
            .runs()
            .any(|(s, n)| (s.0..s.0 + u64::from(n)).contains(&block));
        if !journal && block != superblock.geo.super_block().0 {
            assert!(a == b, "block {block} differs from e2fsck's recovery");
        }
    }
    fsck(&save(&device.snapshot(), dir.path(), "ours")).expect("clean after our recovery");
    true
}

#[test]
fn kernel_journal_with_checksums_of_version_3() {
    journal_round_trip(
        &["-t", "ext4", "-J", "size=4", "-O", "64bit,metadata_csum"],
        "noatime",
    );
}

#[test]
fn kernel_journal_with_checksums_of_version_1() {
    journal_round_trip(
        &["-t", "ext4", "-J", "size=4", "-O", "^metadata_csum"],
        "journal_checksum",
    );
}

#[test]
fn kernel_journal_without_checksums_or_wide_numbers() {
    let args = [
        "-t",
        "ext4",
        "-b",
        "1024",
        "-J",
        "size=2",
        "-O",
        "^metadata_csum,^64bit",
    ];
    journal_round_trip(&args, "noatime");
}

#[test]
fn kernel_journal_that_is_block_mapped() {
    journal_round_trip(&["-t", "ext3", "-b", "1024", "-J", "size=2"], "noatime");
}

#[test]
fn kernel_journal_with_data_in_it() {
    journal_round_trip(&["-t", "ext4", "-J", "size=8"], "data=journal");
}

/// What is in a directory tree: path → kind, link count, size, and contents.
fn list(root: &Path) -> BTreeMap<String, String> {
    use std::os::unix::fs::MetadataExt;
    let mut found = BTreeMap::new();
    let mut todo = vec![root.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in std::fs::read_dir(&dir).expect("read directory") {
            let path = entry.expect("entry").path();
            let meta = path.symlink_metadata().expect("stat");
            let mut text = format!("{:o} links {}", meta.mode(), meta.nlink());
            if meta.is_dir() {
                todo.push(path.clone());
            } else {
                let bytes = std::fs::read(&path).expect("read");
                let sum = bytes
                    .iter()
                    .fold(7u64, |s, b| s.wrapping_mul(31).wrapping_add((*b).into()));
                text += &format!(" blocks {} size {} sum {sum:x}", meta.blocks(), bytes.len());
            }
            let name = path.strip_prefix(root).expect("prefix");
            found.insert(name.display().to_string(), text);
        }
    }
    found
}

/// Operations that kernels log as fast commits.
fn fast_work(root: &Path) {
    use std::os::unix::fs::FileExt;
    for n in 0..20 {
        sync_file(
            &root.join(format!("file{n}")),
            &vec![n as u8; 5000 * (n + 1)],
        );
    }
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(root.join("file3"))
        .expect("open");
    for n in [50u64, 10, 90, 70, 30] {
        file.write_all_at(&[9; 4096], n * 4096).expect("write");
        file.sync_all().expect("fsync");
    }
    std::fs::hard_link(root.join("file5"), root.join("linked")).expect("link");
    sync_file(&root.join("file6"), b"short now");
    std::fs::remove_file(root.join("linked")).expect("unlink");
    std::fs::hard_link(root.join("file7"), root.join("stays")).expect("link");
    sync_file(&root.join("file8"), &[8; 100_000]);
    std::fs::create_dir(root.join("dir")).expect("mkdir");
    sync_file(&root.join("dir/inside"), &[1; 12_345]);
    std::fs::rename(root.join("file9"), root.join("dir/moved")).expect("rename");
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(root.join("file11"))
        .expect("open");
    file.set_len(7000).expect("truncate");
    file.sync_all().expect("fsync");
    std::fs::remove_file(root.join("file12")).expect("unlink");
    std::fs::write(root.join("file13"), b"rewritten").expect("write");
    std::fs::remove_dir_all(root.join("dir")).expect("remove");
    std::fs::create_dir(root.join("dir")).expect("mkdir");
    sync_file(&root.join("dir/again"), &[3; 70_000]);
    sync_file(&root.join("last"), b"the end");
}

#[test]
fn kernel_fast_commits() {
    if !have("mke2fs") || !have("e2fsck") || !have("debugfs") {
        return;
    }
    let args = [
        "-t",
        "ext4",
        "-O",
        "fast_commit,64bit,metadata_csum",
        "-J",
        "size=8",
    ];
    let image = Image::make(64 << 10, &args);
    let Some(mounted) = Mounted::new(&image.path, "noatime") else {
        return;
    };
    // A full commit first, so that what follows is fast commits on top of it.
    run("sync", &["-f", mounted.path().to_str().expect("path")]);
    fast_work(mounted.path());
    let dirty = image.load();
    // What was synced. (The kernel's own replay is no reference: Linux 6.x loses new directories.)
    let expected = list(mounted.path());
    drop(mounted);
    let dir = tempfile::tempdir().expect("dir");

    let device = Arc::new(dirty.snapshot());
    let read_only = Options {
        read_only: true,
        ..Options::default()
    };
    let engine = Ext4::mount(device.clone(), read_only).expect("recovered in memory");
    engine.unmount().expect("unmount");
    drop(engine);
    assert!(device.to_vec() == dirty.to_vec(), "a read-only mount wrote");
    // The whole engine, since what lost its last name is finished as an orphan.
    let engine = Ext4::mount(device.clone(), Options::default()).expect("mount");
    engine.unmount().expect("unmount");
    drop(engine);
    let ours = save(&device, dir.path(), "ours");
    fsck(&ours).expect("clean after our recovery");
    std::fs::copy(&ours, &image.path).expect("copy");
    let mounted = Mounted::new(&image.path, "ro").expect("mounted before");
    assert_eq!(list(mounted.path()), expected);
}

/// Turns quota on or off in the superblock, and in copies of it that wait in the log (which has no
/// checksums here). Nothing else changes.
fn set_quota(image: &mut [u8], on: bool) {
    const QUOTA: u32 = 0x100;
    let uuid: [u8; 16] = image[1024 + 0x68..1024 + 0x78].try_into().expect("uuid");
    for at in (0..image.len()).step_by(4096) {
        let copy = &mut image[at + 1024..at + 2048];
        if copy[0x38..0x3A] == [0x53, 0xEF] && copy[0x68..0x78] == uuid {
            let old = u32::from_le_bytes(copy[0x64..0x68].try_into().expect("word"));
            let new = if on { old | QUOTA } else { old & !QUOTA };
            copy[0x64..0x68].copy_from_slice(&new.to_le_bytes());
        }
    }
}

/// Usage is exact after fast commits, which do not log it. (The kernel here cannot write quota files,
/// so it works without knowing of them.)
#[test]
fn quota_is_counted_after_fast_commits() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let args = [
        "-t",
        "ext4",
        "-b",
        "4096",
        "-O",
        "fast_commit,quota,^metadata_csum",
        "-J",
        "size=8",
    ];
    let image = Image::make(64 << 10, &args);
    let edit = |on: bool| {
        let mut bytes = std::fs::read(&image.path).expect("read");
        set_quota(&mut bytes, on);
        std::fs::write(&image.path, &bytes).expect("write");
    };
    edit(false);
    let Some(mounted) = Mounted::new(&image.path, "noatime") else {
        return;
    };
    run("sync", &["-f", mounted.path().to_str().expect("path")]);
    fast_work(mounted.path());
    for n in 0..5 {
        let path = mounted.path().join(format!("file{n}"));
        std::os::unix::fs::chown(&path, Some(1000 + n), Some(7)).expect("chown");
        sync_file(&mounted.path().join(format!("owned{n}")), b"owned");
        std::fs::File::open(&path)
            .and_then(|f| f.sync_all())
            .expect("fsync");
    }
    let mut dirty = std::fs::read(&image.path).expect("read");
    drop(mounted);
    set_quota(&mut dirty, true);
    let device = Arc::new(MemoryDevice::from_image(&dirty));
    let engine = Ext4::mount(device.clone(), Options::default()).expect("mount");
    assert!(!engine.fs().volume.is_read_only(), "mounted read-only");
    engine.unmount().expect("unmount");
    drop(engine);
    let dir = tempfile::tempdir().expect("dir");
    fsck(&save(&device, dir.path(), "ours")).expect("usage as counted");
    let listed = run(
        "debugfs",
        &[
            "-R",
            "list_quota user",
            dir.path().join("ours").to_str().expect("path"),
        ],
    );
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    for uid in 1000..1005 {
        assert!(text.contains(&uid.to_string()), "{uid}: {text}");
    }
}

/// Transactions written by debugfs with checksums of version 2, which no kernel writes any more.
#[test]
fn debugfs_journal_with_checksums_of_version_2() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    for wide in ["64bit", "^64bit"] {
        let features = format!("{wide},metadata_csum");
        let image = Image::make(16 << 10, &["-t", "ext4", "-b", "1024", "-O", &features]);
        let dir = tempfile::tempdir().expect("dir");
        let data = dir.path().join("data");
        let mut bytes = vec![0x5A; 4 * 1024];
        bytes[1024..1028].copy_from_slice(&0xC03B_3998u32.to_be_bytes());
        std::fs::write(&data, &bytes).expect("data");
        let script = dir.path().join("script");
        let text = data.to_str().expect("path");
        let commands =
            format!("jo -c -v 2\njw -b 10000,10001,10002,10003 {text}\njw -r 10003\njc\n",);
        std::fs::write(&script, commands).expect("script");
        let out = run(
            "debugfs",
            &["-w", "-f", script.to_str().expect("path"), image.text()],
        );
        assert!(
            out.status.success(),
            "debugfs: {}",
            String::from_utf8_lossy(&out.stderr)
        );
        let device = Arc::new(image.load());
        let before = device.to_vec();
        let fs = Fs::mount(device.clone(), Options::default()).expect("mount");
        fs.unmount().expect("unmount");
        drop(fs);
        let after = device.to_vec();
        let block = |n: usize| n * 1024..(n + 1) * 1024;
        for n in 0..3 {
            assert!(
                after[block(10000 + n)] == bytes[block(n)],
                "{wide}: block {}",
                10000 + n
            );
        }
        assert!(
            after[block(10003)] == before[block(10003)],
            "{wide}: a revoked block came back"
        );
    }
}

/// The kernel recovers what we leave behind.
#[test]
fn kernel_recovers_our_journal() {
    use blockwright_device::CrashPolicy;
    use blockwright_device::RecordingDevice;
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let image = Image::make(16 << 10, &["-t", "ext4", "-b", "1024", "-J", "size=1"]);
    let recording = Arc::new(RecordingDevice::new(&image.load()));
    let shared: SharedDevice = recording.clone();
    let fs = Fs::mount(shared, Options::default()).expect("mount");
    let h = fs.volume.journal.start(1, "label").expect("start");
    fs.volume
        .sb
        .update(&h, |raw| raw.volume_name[..5].copy_from_slice(b"ours!"))
        .expect("update");
    drop(h);
    fs.volume.journal.commit_running().expect("commit");
    let crashed = recording.image_at(recording.log_len(), CrashPolicy::NoneKept);
    crashed.save(&image.path).expect("save");
    let Some(mounted) = Mounted::new(&image.path, "noatime") else {
        return;
    };
    drop(mounted);
    let recovered = Superblock::parse(&image.load().to_vec()[1024..], None).expect("superblock");
    assert_eq!(recovered.raw.label(), b"ours!");
    fsck(&image.path).expect("clean");
}
