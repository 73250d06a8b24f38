//! Walks that read ahead: how many requests and bytes they cost, how far they are ahead, and what damage does to them.

use blockwright::export::{export_tar, export_tar_past_errors};
use blockwright::walk::{ReadAheadWalk, WalkStep, Walker};
use blockwright::{ExtentKind, Format, Volume, VolumeBuilder};
use blockwright_device::sim::faulty::{Fault, Ops, Rule};
use blockwright_device::{CountingDevice, FaultyDevice, MemoryDevice, SharedDevice};
use blockwright_vfs::FileKind;
use std::sync::Arc;

const DIRS: u64 = 40;
const FILES: u64 = 25;
const EIO: i32 = 5;

fn contents(dir: u64, file: u64) -> Vec<u8> {
    // Larger than what fits an inode; the last file of each directory is larger than a chunk.
    let len = if file == FILES - 1 {
        1_300_000
    } else {
        4000 + 157 * (dir + file)
    };
    (0..len)
        .map(|i| (dir * 31 + file * 7 + i / 13) as u8)
        .collect()
}

fn tree(format: Format) -> SharedDevice {
    let device: SharedDevice = Arc::new(MemoryDevice::new(256 << 20));
    VolumeBuilder::new()
        .format(format)
        .size(256 << 20)
        .create_on(&device)
        .expect("made");
    let volume = Volume::open_device(Arc::clone(&device)).expect("opens");
    for dir in 0..DIRS {
        volume.create_dir(format!("/d{dir:02}")).expect("made");
        for file in 0..FILES {
            let path = format!("/d{dir:02}/f{file:02}");
            volume.write(path, contents(dir, file)).expect("written");
        }
        let link = format!("/d{dir:02}/z");
        volume
            .hard_link(format!("/d{dir:02}/f00"), link)
            .expect("linked");
    }
    volume.close().expect("closed");
    device
}

fn read_only(device: SharedDevice, cache_bytes: u64) -> Volume {
    Volume::options()
        .read_only(true)
        .cache_bytes(cache_bytes)
        .open_device(device)
        .expect("opens")
}

#[test]
fn many_files_take_few_requests() {
    for format in [Format::Ext4, Format::F2fs] {
        let counting = Arc::new(CountingDevice::new(tree(format)));
        let volume = read_only(counting.clone(), 64 << 20);
        let before = counting.stats();
        let report = export_tar(&volume, "/", std::io::sink()).expect("exported");
        let reads = counting.stats().since(&before).reads;
        println!("{format:?}: {reads:?} for {report:?}");
        // 62 MiB are 62 requests at least; a request for each file would be more than 1000.
        assert!(reads.requests * 3 < DIRS * FILES, "{format:?}: {reads:?}");
        let bytes_max = report.bytes * 5 / 4;
        assert!(reads.bytes < bytes_max, "{format:?}: {reads:?}");
        volume.close().expect("closed");
    }
}

#[test]
fn data_comes_in_order_and_is_that_of_the_files() {
    for format in [Format::Ext4, Format::F2fs] {
        let volume = read_only(tree(format), 64 << 20);
        let mut plain = Walker::new(volume.vfs(), volume.cred(), b"/").expect("begun");
        let mut walk = ReadAheadWalk::new(volume.vfs(), volume.cred(), b"/").expect("begun");
        let (mut read_ahead, mut linked) = (0, 0);
        while let Some(step) = walk.step() {
            let same = plain.step().expect("as many steps");
            assert_eq!(format!("{same:?}"), format!("{step:?}"));
            assert_eq!(plain.path(), walk.path());
            assert_eq!(plain.name(), walk.name());
            let number = |dir: Option<blockwright_vfs::InodeRef>| dir.map(|dir| dir.ino());
            assert_eq!(
                number(plain.parent().expect("loaded")),
                number(walk.parent().expect("loaded"))
            );
            let WalkStep::Found(node) = step else {
                continue;
            };
            if node.inode.kind() != FileKind::Regular {
                continue;
            }
            let path = String::from_utf8(walk.path().to_vec()).expect("text");
            let mut data = Vec::new();
            while let Some(slices) = walk.data(data.len() as u64) {
                slices
                    .iter()
                    .for_each(|slice| data.extend_from_slice(slice));
            }
            if walk.name() == b"z" {
                assert!(data.is_empty(), "the data came with the first name");
                linked += 1;
                continue;
            }
            assert!(data == volume.read(&path).expect("read"), "{path}");
            read_ahead += 1;
        }
        assert!(plain.step().is_none());
        assert_eq!((read_ahead, linked), (DIRS * FILES, DIRS), "{format:?}");
        drop((plain, walk));
        volume.close().expect("closed");
    }
}

#[test]
fn directories_can_be_left_out() {
    let volume = read_only(tree(Format::Ext4), 64 << 20);
    let mut walk = ReadAheadWalk::new(volume.vfs(), volume.cred(), b"/").expect("begun");
    let (mut files, mut left) = (0, 0);
    while let Some(step) = walk.step() {
        match step {
            WalkStep::Found(node) if node.inode.kind() == FileKind::Directory => {
                if walk.name().first() == Some(&b'd') && walk.name().last() != Some(&b'3') {
                    walk.skip();
                }
            }
            WalkStep::Found(_) => files += 1,
            WalkStep::Left(_) => left += 1,
            WalkStep::Failed(e) => panic!("{e}"),
        }
    }
    // d03, d13, d23, d33, and the root and lost+found.
    assert_eq!((files, left), (4 * (FILES + 1), 6));
}

#[test]
fn an_unreadable_block_costs_that_block() {
    let device = tree(Format::Ext4);
    let volume = read_only(Arc::clone(&device), 64 << 20);
    let mut healthy = Vec::new();
    export_tar(&volume, "/", &mut healthy).expect("exported");
    let file = volume.open_file("/d07/f11").expect("opens");
    let extents = file.extents().expect("mapped");
    let ExtentKind::Data(at) = extents[0].kind else {
        panic!("{extents:?}");
    };
    drop(file);
    volume.close().expect("closed");

    let faulty = Arc::new(FaultyDevice::new(device, 1));
    let block = at..at + 4096;
    faulty.add(
        Rule::new(Ops::READ, Fault::Errno(EIO))
            .range(block)
            .always(),
    );
    let volume = read_only(faulty.clone(), 64 << 20);
    let mut archive = Vec::new();
    let mut failed = Vec::new();
    let report = export_tar_past_errors(&volume, "/", &mut archive, &mut |e| {
        failed.push(e.to_string());
    })
    .expect("exported");
    assert!(faulty.fired() > 0);
    assert_eq!(report.failures, 1, "{failed:?}");
    assert!(failed[0].starts_with("/d07/f11: "), "{failed:?}");
    assert_eq!(archive.len(), healthy.len());
    let differs = |i: &usize| archive[*i] != healthy[*i];
    let first = (0..archive.len()).find(differs).expect("it was damaged");
    let last = (0..archive.len()).rfind(differs).expect("it was damaged");
    assert!(last - first < 4096, "{first} to {last}");
    assert!(archive[first..=last].iter().all(|&b| b == 0));
    volume.close().expect("closed");
}
