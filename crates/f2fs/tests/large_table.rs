//! What the segment table of a large volume takes in memory when half of its segments are in use, and when recovery brings many into use. A program of its own:
//! it measures its process.

use blockwright_test_support as common;

use blockwright::{Format, Volume, VolumeBuilder};
use blockwright_check::f2fs::IssueKind;
use blockwright_device::{BlockDevice, DevOffset, Flags, MemoryDevice, SharedDevice};
use blockwright_f2fs::F2fs;
use blockwright_ondisk::f2fs::node::PER_NODE;
use blockwright_ondisk::f2fs::sit::{self, ENTRIES_PER_BLOCK, SitEntry, ValidMap};
use blockwright_ondisk::f2fs::{BLOCKS_PER_SEG, BlockAddr, Log, RECOVERED_SEGMENTS_MAX};
use common::lab::f2fs::F2Volume;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

const TIB: u64 = 1 << 40;

/// One test at a time.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn half_of_sixteen_tib_in_use() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let bytes = 16 * TIB - (64 << 20);
    let memory = Arc::new(MemoryDevice::new(bytes));
    let device: SharedDevice = memory.clone();
    VolumeBuilder::new()
        .format(Format::F2fs)
        .size(bytes)
        .create_on(&device)
        .expect("made");
    let volume = Volume::options()
        .read_only(true)
        .open_device(device.clone())
        .expect("opens");
    let engine = volume.vfs().engine().as_any();
    let fs = engine.downcast_ref::<F2fs>().expect("f2fs").fs();
    let (geo, checkpoint) = (fs.volume.geo.clone(), fs.volume.checkpoint.clone());
    volume.close().expect("closed");
    // Every other block of the table says that all of its segments are full, except one in eight that is not quite.
    let mut block = vec![0; 4096];
    for at in 0..ENTRIES_PER_BLOCK {
        let mut valid = ValidMap([0xFF; sit::MAP_BYTES]);
        if at % 8 == 0 {
            valid.set(100, false);
        }
        let entry = SitEntry {
            log: Log::WarmData,
            valid,
            mtime: 1000 + at as u64,
        };
        sit::set_entry(&mut block, at, &entry).expect("set");
    }
    let per = ENTRIES_PER_BLOCK as u32;
    let logs: Vec<u32> = Log::ALL
        .into_iter()
        .map(|log| checkpoint.raw.log(log).segment.0 / per)
        .collect();
    let mut full = 0u64;
    for index in (0..geo.sit_blocks_used() - 1).step_by(2) {
        if logs.contains(&index) {
            continue;
        }
        let at = geo
            .sit_block(index, checkpoint.sit_bitmap.get(index))
            .expect("there");
        let at = DevOffset(u64::from(at.0) << 12);
        memory
            .write_at(at, &block, Flags::empty())
            .expect("written");
        full += u64::from(per);
    }
    assert!(
        full * 5 > u64::from(geo.main_segments) * 2,
        "{full} segments"
    );
    let before = common::resident_memory();
    common::reset_peak_memory();
    let started = Instant::now();
    let volume = Volume::open_device(device.clone()).expect("opens");
    let opened = started.elapsed();
    let more = common::resident_memory().saturating_sub(before);
    let peak = common::peak_memory().saturating_sub(before);
    eprintln!(
        "{full} of {} segments in use: opened in {opened:?}, {more} bytes of memory, {peak} at most",
        geo.main_segments
    );
    assert_eq!(volume.read_only_reason(), None);
    // 16 bytes for a segment in use and 64 for the map of one in eight; sets and counts of all segments.
    assert!(more < 256 << 20, "{more} bytes of memory");
    volume.write("/file", vec![1; 10 << 20]).expect("written");
    volume.sync().expect("synced");
    assert_eq!(volume.read("/file").expect("read"), vec![1; 10 << 20]);
    volume.close().expect("closed");
}

/// An empty volume of 4 TiB with a file, and a chain of this many nodes of it. Each address names a block in another segment.
fn spread(nodes: usize) -> MemoryDevice {
    let memory = Arc::new(MemoryDevice::new(4 * TIB));
    let device: SharedDevice = memory.clone();
    VolumeBuilder::new()
        .format(Format::F2fs)
        .create_on(&device)
        .expect("made");
    let volume = Volume::open_device(device).expect("opens");
    volume.write("/file", [1; 5000]).expect("written");
    volume.close().expect("closed");
    let image = F2Volume::new(memory.snapshot());
    let file = image.lookup("/file");
    let stride = (image.geo.main_segments - 200) / (nodes * PER_NODE) as u32;
    assert!(stride > 0);
    let segments = (100..).step_by(stride as usize);
    let mut blocks =
        segments.map(|seg| BlockAddr(image.geo.main.0 + seg * BLOCKS_PER_SEG + seg % 512));
    let start = image.chain_start().0;
    let chain: Vec<_> = (0..nodes as u32)
        .map(|n| {
            (
                BlockAddr(start + n),
                blocks.by_ref().take(PER_NODE).collect(),
            )
        })
        .collect();
    image.put_chain(file, &chain);
    image.device
}

/// What a chain names takes little more memory than the chain, wherever it is.
#[test]
fn a_chain_that_names_a_block_in_each_segment() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let device: SharedDevice = Arc::new(spread(60));
    let open = || {
        Volume::options()
            .read_only(true)
            .open_device(device.clone())
    };
    let before = common::resident_memory();
    common::reset_peak_memory();
    let volume = open().expect("opens");
    let taken = common::peak_memory().saturating_sub(before);
    eprintln!("{taken} bytes of memory");
    assert_eq!(volume.vfs().stats().get("recovered_nodes"), Some(60));
    let size = volume.metadata("/file").expect("there").len();
    assert!(size > (60 * (PER_NODE as u64)) << 12, "{size}");
    // 61 080 segments. With all of their summaries, and all segments of their blocks of the table, they take 12 KiB each.
    assert!(taken < 200 << 20, "{taken} bytes of memory");
}

/// More segments than any real chain brings into use: the engine leaves the volume as its checkpoint has it, and the checker says so.
#[test]
fn a_chain_that_names_too_many_segments() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let nodes = RECOVERED_SEGMENTS_MAX / PER_NODE + 1;
    let device = spread(nodes);
    for read_only in [true, false] {
        let copy: SharedDevice = Arc::new(device.snapshot());
        let before = common::resident_memory();
        common::reset_peak_memory();
        let volume = Volume::options().read_only(read_only).open_device(copy);
        let volume = volume.expect("opens");
        let taken = common::peak_memory().saturating_sub(before);
        eprintln!("{taken} bytes of memory");
        assert!(taken < 500 << 20, "{taken} bytes of memory");
        // What may not be written anyway says no reason.
        let reason = volume.read_only_reason().unwrap_or_default();
        assert_eq!(
            volume.vfs().stats().get("recovered_nodes"),
            Some(0),
            "{reason}"
        );
        let says = reason.contains("segments that were free");
        assert!(says || read_only, "{reason}");
        assert_eq!(volume.metadata("/file").expect("there").len(), 5000);
    }
    let report = blockwright_check::f2fs::check(Arc::new(device), &Default::default());
    let report = report.expect("checked");
    let refused = |kind: &IssueKind| matches!(kind, IssueKind::RecoveryRefused { what, .. } if what.contains("free segments"));
    assert!(report.issues.iter().any(|i| refused(&i.kind)));
}
