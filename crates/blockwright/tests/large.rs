//! Volumes up to 16 TiB and files up to the format's limit, on sparse devices: opening reads and keeps only what
//! is touched.

use blockwright_test_support as common;

use blockwright::{ErrorKind, OpenOptions, Volume, VolumeBuilder};
use blockwright_device::{CountingDevice, MemoryDevice, SharedDevice};
use blockwright_mkfs::ext4::FsType;
use common::testing::{assert_e2fsck_clean, have, run};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const TIB: u64 = 1 << 40;
const LIMIT: Duration = Duration::from_secs(120);

/// Holds the other tests of this program off: memory is measured as the process's.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes at the end of the largest possible file and past it, and reads back.
fn largest_file(v: &Volume, block: u64) -> u64 {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(v, "/largest")
        .expect("made");
    let max = v.vfs().engine().file_bytes_max(file.handle().inode());
    file.write_all_at(b"begin", 0).expect("written");
    file.write_all_at(b"middle", max / 2).expect("written");
    file.write_all_at(b"end", max - 3)
        .expect("the last bytes there are");
    file.sync_all().expect("durable");
    assert_eq!(file.metadata().expect("known").len(), max);
    let e = file.write_at(b"x", max).expect_err("past the limit");
    assert_eq!(e.kind(), ErrorKind::FileTooLarge, "{e}");
    let e = file.set_len(max + 1).expect_err("past the limit");
    assert_eq!(e.kind(), ErrorKind::FileTooLarge, "{e}");
    v.vfs().drop_caches();
    let mut buf = [0u8; 16];
    assert_eq!(file.read_at(&mut buf, max - 3).expect("read"), 3);
    assert_eq!(&buf[..3], b"end");
    assert_eq!(file.read_at(&mut buf, max / 2).expect("read"), 16);
    assert_eq!(&buf[..6], b"middle");
    let data = file.seek_data(block).expect("data");
    assert_eq!(data, max / 2 / block * block);
    assert_eq!(file.seek_hole(0).expect("a hole"), block);
    assert!(file.metadata().expect("known").blocks() * 512 < 64 * block);
    max
}

fn volume(what: &'static str, builder: VolumeBuilder, bytes: u64, block: u32) {
    let _alone = alone();
    common::guarded(what, LIMIT, move || {
        let memory = Arc::new(MemoryDevice::new(bytes));
        let shared = Arc::clone(&memory) as SharedDevice;
        let started = Instant::now();
        builder
            .block_size(block)
            .size(bytes)
            .create_on(&shared)
            .expect("made");
        let made = started.elapsed();

        let counting = Arc::new(CountingDevice::new(shared));
        let before = memory.stored_bytes();
        let resident = common::resident_memory();
        let started = Instant::now();
        let v = Volume::open_device(Arc::clone(&counting) as SharedDevice).expect("opens");
        let opened = started.elapsed();
        assert!(
            opened < Duration::from_secs(1),
            "{what}: opened in {opened:?}"
        );
        let max = largest_file(&v, u64::from(block));
        let statfs = v.statfs().expect("known");
        assert!(statfs.blocks * u64::from(block) > bytes / 10 * 9);
        v.close().expect("closed");
        let grown = memory.stored_bytes() - before;
        assert!(grown < 64 << 20, "{what}: {grown} bytes were written");
        let more = common::resident_memory().saturating_sub(resident);
        assert!(more < 512 << 20, "{what}: {more} bytes of memory");

        let started = Instant::now();
        let shared = memory as SharedDevice;
        let v = Volume::options()
            .read_only(true)
            .open_device(shared)
            .expect("opens");
        assert!(started.elapsed() < Duration::from_secs(1));
        assert_eq!(v.metadata("/largest").expect("there").len(), max);
        let mut end = [0u8; 3];
        v.open_file("/largest")
            .expect("opens")
            .read_at(&mut end, max - 3)
            .expect("read");
        assert_eq!(&end, b"end");
        v.close().expect("closed");
        eprintln!(
            "{what}: made in {made:?}, {before} bytes, opened in {opened:?}, {} bytes read, largest file {max}",
            counting.stats().reads.bytes
        );
    });
}

#[test]
fn sixteen_tib_of_4k_blocks() {
    // One block short of 2^32, which only 64-bit volumes can have.
    volume(
        "16 TiB",
        VolumeBuilder::new().inode_ratio(16 << 20),
        16 * TIB,
        4096,
    );
}

#[test]
fn sixteen_tib_without_64bit() {
    volume(
        "16 TiB, 32-bit",
        VolumeBuilder::new()
            .inode_ratio(16 << 20)
            .features("^64bit,^resize_inode"),
        16 * TIB - (128 << 20),
        4096,
    );
}

#[test]
fn four_tib_of_1k_blocks() {
    volume(
        "1K",
        VolumeBuilder::new().inode_ratio(16 << 20),
        TIB / 2,
        1024,
    );
}

#[test]
fn block_mapped() {
    volume(
        "ext2",
        VolumeBuilder::new().fs_type(FsType::Ext2),
        64 << 30,
        1024,
    );
    volume(
        "ext3",
        VolumeBuilder::new().fs_type(FsType::Ext3),
        64 << 30,
        4096,
    );
}

#[test]
fn blocks_of_64k() {
    volume(
        "64K",
        VolumeBuilder::new()
            .features("^resize_inode")
            .inode_ratio(64 << 20),
        16 * TIB,
        65536,
    );
}

#[test]
fn a_sparse_file_of_16_tib() {
    let _alone = alone();
    let dir = tempfile::tempdir().expect("a directory");
    let image = dir.path().join("disk.img");
    // Not every host's file system has files this long.
    let bytes = match std::fs::File::create(&image).and_then(|f| f.set_len(15 * TIB)) {
        Ok(()) => 15 * TIB,
        Err(e) => {
            eprintln!("smaller than meant: 15 TiB on this host's file system: {e}; 4 TiB instead");
            4 * TIB
        }
    };
    VolumeBuilder::new()
        .size(bytes)
        .block_size(4096)
        .inode_ratio(16 << 20)
        .create(&image)
        .expect("made");
    let started = Instant::now();
    let v = Volume::open(&image).expect("opens");
    let opened = started.elapsed();
    assert!(opened < Duration::from_secs(1), "opened in {opened:?}");
    largest_file(&v, 4096);
    for i in 0..300 {
        v.create_dir(format!("/dir{i}")).expect("made");
        v.write(format!("/dir{i}/f"), vec![i as u8; 10_000])
            .expect("written");
    }
    v.close().expect("closed");
    if have("dumpe2fs") {
        let out = run("dumpe2fs", &["-h", &image.display().to_string()]);
        assert!(out.status.success());
    }
    // The whole check reads every bitmap, so it is for a smaller one.
    if bytes <= 4 * TIB {
        assert_e2fsck_clean(&image);
    }
}

#[test]
fn f2fs_of_sixteen_tib() {
    let _alone = alone();
    let dir = tempfile::tempdir().expect("a directory");
    let image = dir.path().join("disk.img");
    let bytes = match std::fs::File::create(&image).and_then(|f| f.set_len(16 * TIB - (64 << 20))) {
        Ok(()) => 16 * TIB - (64 << 20),
        Err(e) => {
            eprintln!("smaller than meant: 16 TiB on this host's file system: {e}; 4 TiB instead");
            4 * TIB
        }
    };
    VolumeBuilder::new()
        .format(blockwright::Format::F2fs)
        .size(bytes)
        .create(&image)
        .expect("made");
    let resident = common::resident_memory();
    let started = Instant::now();
    let v = Volume::open(&image).expect("opens");
    let opened = started.elapsed();
    // The segments' state is for those in use: there are eight million segments.
    let more = common::resident_memory().saturating_sub(resident);
    assert!(more < 256 << 20, "{more} bytes of memory");
    for i in 0..300 {
        v.create_dir(format!("/dir{i}")).expect("made");
        v.write(format!("/dir{i}/f"), vec![i as u8; 10_000])
            .expect("written");
    }
    v.close().expect("closed");
    eprintln!("opened in {opened:?}, {more} bytes of memory");

    // A clean unmount leaves NAT bits, and what it wrote is found.
    let v = Volume::open(&image).expect("opens");
    let fs = v.vfs().engine().as_any();
    let fs = fs
        .downcast_ref::<blockwright_f2fs::F2fs>()
        .expect("f2fs")
        .fs();
    let flags = fs.volume.checkpoint.flags();
    assert!(flags.contains(blockwright_ondisk::f2fs::CheckpointFlags::NAT_BITS));
    for i in (0..300).step_by(7) {
        assert_eq!(
            v.read(format!("/dir{i}/f")).expect("read"),
            vec![i as u8; 10_000]
        );
        v.remove_file(format!("/dir{i}/f")).expect("removed");
    }
    v.close().expect("closed");
}
