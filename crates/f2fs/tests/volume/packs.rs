//! Checkpoints of a volume that was not unmounted, as fsck.f2fs reads them: their summaries and journals.

use crate::common;
use crate::common::below;
use crate::uml;
use blockwright::{OpenOptions, Volume};
use blockwright_check::Mode;
use blockwright_check::f2fs as check;
use blockwright_device::sim::rng::SplitMix64;
use blockwright_device::{BlockDevice, DevOffset, MemoryDevice, SharedDevice};
use blockwright_f2fs::F2fs;
use blockwright_ondisk::f2fs::checkpoint::{Checkpoint, CheckpointFlags};
use blockwright_ondisk::f2fs::geometry::Copy2;
use blockwright_ondisk::f2fs::pack::PackLayout;
use std::sync::Arc;
use std::time::Duration;

/// A volume made by mkfs.f2fs, in memory.
fn volume(features: &str) -> Arc<MemoryDevice> {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("disk.img");
    common::mkfs_f2fs(&path, features, 128 << 20);
    Arc::new(MemoryDevice::load(&path).expect("loaded"))
}

/// What the device holds now, as a power failure would leave it, is clean to both checkers.
fn assert_clean(device: &MemoryDevice) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("disk.img");
    device.save(&path).expect("saved");
    common::assert_fsck_f2fs_clean(&path);
    let copy: SharedDevice = Arc::new(MemoryDevice::load(&path).expect("loaded"));
    let options = check::CheckOptions {
        mode: Mode::ReadOnly,
        ..check::CheckOptions::default()
    };
    let report = check::check(copy, &options).expect("checked");
    let issues: Vec<String> = report.issues.iter().map(ToString::to_string).collect();
    assert!(issues.is_empty(), "{issues:#?}");
}

/// The newest pack.
fn newest(volume: &Volume, device: &MemoryDevice) -> (Checkpoint, PackLayout) {
    let engine = volume.vfs().engine().as_any();
    let geo = (*engine.downcast_ref::<F2fs>().expect("f2fs").fs().volume.geo).clone();
    let read = |copy| {
        let mut block = vec![0; 4096];
        let at = u64::from(geo.pack_start(copy).0) << 12;
        device.read_at(DevOffset(at), &mut block).expect("read");
        Checkpoint::parse(&block, &geo).expect("a checkpoint")
    };
    let (a, b) = (read(Copy2::First), read(Copy2::Second));
    let newest = if a.version() > b.version() { a } else { b };
    let layout = PackLayout::new(&newest, &geo).expect("a layout");
    (newest, layout)
}

#[test]
fn what_is_not_unmounted_is_read_by_others() {
    if !common::have_tool("mkfs.f2fs") || !common::have_tool("fsck.f2fs") {
        return;
    }
    for features in ["", "extra_attr,inode_checksum,project_quota,quota"] {
        let device = volume(features);
        let v = Volume::open_device(device.clone()).expect("opens");
        let mut rng = SplitMix64::new(common::seed(0xFA57));
        v.create_dir("/d").expect("made");
        for round in 0..25u64 {
            // Few changes, which journals hold, and many, which they do not.
            let files = if round % 4 == 3 { 150 } else { 3 };
            for n in 0..files {
                let path = format!("/d/{}", below(&mut rng, 400));
                let len = below(&mut rng, 60_000) as usize;
                v.write(&path, vec![n as u8; len]).expect("written");
            }
            v.sync().expect("synced");
            assert_clean(&device);
            let (checkpoint, layout) = newest(&v, &device);
            let flags = checkpoint.flags();
            assert!(!flags.contains(CheckpointFlags::UMOUNT), "{flags:?}");
            // As Linux writes them without its option `fastboot`.
            assert!(!flags.contains(CheckpointFlags::FASTBOOT), "{flags:?}");
            assert_eq!(layout.node_summaries, None);
        }
        v.close().expect("closed");
        assert_clean(&device);
    }
}

/// Node summaries that are in no pack are found again by the next mount after a crash.
#[test]
fn who_goes_on_finds_the_node_summaries() {
    if !common::have_tool("mkfs.f2fs") || !common::have_tool("fsck.f2fs") {
        return;
    }
    let mut device = volume("");
    let mut rng = SplitMix64::new(common::seed(0xFA58));
    for round in 0..12u64 {
        let v = Volume::open_device(device.clone()).expect("opens");
        for n in 0..120u64 {
            let path = format!("/{}", below(&mut rng, 500));
            if below(&mut rng, 4) == 0 {
                let _absent = v.remove_file(&path);
            } else {
                let file = OpenOptions::new().write(true).create(true).open(&v, &path);
                let at = below(&mut rng, 3) * (4 << 20);
                file.expect("opens")
                    .write_all_at(&[n as u8; 5000], at)
                    .expect("written");
            }
            if n % 40 == 39 {
                v.sync().expect("synced");
            }
        }
        let crashed = tempfile::NamedTempFile::new().expect("a file");
        device.save(crashed.path()).expect("saved");
        assert_clean(&device);
        if round % 3 == 2 {
            v.close().expect("closed");
            assert_clean(&device);
        } else {
            drop(v);
            device = Arc::new(MemoryDevice::load(crashed.path()).expect("loaded"));
        }
    }
}

/// What is written is counted for the volume's life, by us and by Linux in turn.
#[test]
fn linux_counts_on_what_was_written() {
    if !common::have_tool("mkfs.f2fs") || !uml::available() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let image = dir.path().join("disk.img");
    common::mkfs_f2fs(&image, "", 128 << 20);
    let mut turn = 0;
    let mut linux_says = || -> u64 {
        turn += 1;
        let out = dir.path().join(format!("out{turn}"));
        std::fs::create_dir(&out).expect("a directory");
        let script = r"
            attach a
            cat /sys/fs/f2fs/ubda/lifetime_write_kbytes
            dd if=/dev/zero of=/mnt/a/theirs$RANDOM bs=1M count=4 conv=fsync 2> /dev/null
            umount /mnt/a";
        let said = uml::run(&out, &[&image], script, Duration::from_secs(100));
        said.trim().parse().expect("a number")
    };
    let we_write = |name: &str| {
        let volume = Volume::open(&image).expect("opened");
        volume.write(name, vec![5; 3 << 20]).expect("written");
        volume.close().expect("closed");
    };
    we_write("/a");
    we_write("/b");
    let first = linux_says();
    assert!((6 << 10..10 << 10).contains(&first), "{first} KiB");
    we_write("/c");
    let second = linux_says() - first;
    assert!((7 << 10..11 << 10).contains(&second), "{second} KiB more");
    common::assert_fsck_f2fs_clean(&image);
}
