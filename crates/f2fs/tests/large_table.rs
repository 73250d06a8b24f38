//! What the segment table of a large volume takes in memory when half of its segments are in use. A program of its own:
//! it measures its process.

use blockwright_test_support as common;

use blockwright::{Format, Volume, VolumeBuilder};
use blockwright_device::{BlockDevice, DevOffset, Flags, MemoryDevice, SharedDevice};
use blockwright_f2fs::F2fs;
use blockwright_ondisk::f2fs::Log;
use blockwright_ondisk::f2fs::sit::{self, ENTRIES_PER_BLOCK, SitEntry, ValidMap};
use std::sync::Arc;
use std::time::Instant;

const TIB: u64 = 1 << 40;

#[test]
fn half_of_sixteen_tib_in_use() {
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
