//! After a change of size, each of the two checkpoint packs stands for the volume alone.

use super::{MIB, clean, contents, cut, fill, made, made_by_us, shared};
use blockwright::device::{BlockDevice, DevOffset, Flags, MemoryDevice};
use blockwright::reshape::{self, ResizeOptions};
use blockwright_ondisk::f2fs::Superblock;
use blockwright_ondisk::f2fs::geometry::Copy2;
use blockwright_test_support::testing::{assert_same, have};
use std::sync::Arc;

/// The volume without one of its packs.
fn without(device: &MemoryDevice, pack: Copy2) -> Arc<MemoryDevice> {
    let copy = device.snapshot();
    let mut first = vec![0; 4096];
    copy.read_at(DevOffset(0), &mut first).expect("read");
    let sb = Superblock::parse(&first, Some(copy.geometry().bytes)).expect("a superblock");
    let at = DevOffset(u64::from(sb.geo.pack_start(pack).0) << 12);
    copy.write_at(at, &[0; 4096], Flags::empty())
        .expect("written");
    Arc::new(copy)
}

pub(super) fn both_packs_count(device: &Arc<MemoryDevice>, bytes: u64, what: &str) {
    let short = cut(device, bytes);
    let before = contents(&short);
    for pack in [Copy2::First, Copy2::Second] {
        let what = format!("{what}, without the pack {pack:?}");
        let damaged = without(&short, pack);
        assert_same(&before, &contents(&damaged), &[]);
        // A mount and a checkpoint write the other pack anew.
        let volume = blockwright::Volume::open_device(shared(&damaged))
            .unwrap_or_else(|e| panic!("{what}: {e}"));
        volume.write("/more", vec![1; 50_000]).expect("written");
        volume.close().expect("closed");
        clean(&damaged, &what);
    }
}

#[test]
fn either_pack_is_enough() {
    for mkfs in [false, true] {
        if mkfs && !(have("mkfs.f2fs") && have("fsck.f2fs")) {
            continue;
        }
        let make = |bytes, room| match mkfs {
            true => made(&[], bytes, room),
            false => made_by_us(bytes, room),
        };
        let device = make(300 * MIB, 1200 * MIB);
        fill(&device, 100, 10);
        let resize = |bytes| {
            let resized = reshape::resize(&shared(&device), &ResizeOptions::to_bytes(bytes));
            resized.expect("resized").bytes()
        };
        // Of the end alone, in both directions, and of the areas.
        for mib in [310, 280, 1200, 200] {
            let bytes = resize(mib * MIB);
            both_packs_count(&device, bytes, &format!("{mib} MiB, mkfs.f2fs: {mkfs}"));
        }
        let least = reshape::resize(&shared(&device), &ResizeOptions::to_minimum(MIB));
        let least = least.expect("resized").bytes();
        both_packs_count(&device, least, &format!("minimum, mkfs.f2fs: {mkfs}"));
    }
}
