//! Work and memory follow what a volume holds, not what its superblock claims.

use blockwright_test_support::lab as common;
use blockwright_test_support::{peak_memory, reset_peak_memory, resident_memory};

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use blockwright_check::Mode;
use blockwright_check::ext4::{CheckError, CheckOptions, IssueKind, Report, check};
use blockwright_device::{
    BlockDevice, CountingDevice, DevOffset, Flags, MemoryDevice, SharedDevice,
};
use blockwright_ondisk::ext4::inode::InodeFlags;
use blockwright_ondisk::ext4::jbd2::{JournalIncompat, RawJournalSuperblock};
use blockwright_ondisk::ext4::{
    BlockNo, Geometry, GroupDesc, GroupFlags, GroupNo, Ino, RawSuperblock, Superblock, xattr,
};
use common::fast_commits::{Record, added_range, full_of_records, new_name, removed_range};
use common::volume::Volume;
use common::{Lab, show, tools};
use zerocopy::{FromBytes, IntoBytes};

/// What a check may read and write, in bytes: the descriptors are 2 to 16 MiB, and a repair takes several rounds.
const READ_MAX: u64 = 128 << 20;
const WRITTEN_MAX: u64 = 48 << 20;
/// What a check may take in memory.
const MEMORY_MAX: u64 = 100 << 20;

/// One test at a time: what is measured is the memory of the whole process.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A sparse device with an image at its beginning.
fn sparse(image: &[u8], bytes: u64) -> MemoryDevice {
    let device = MemoryDevice::new(bytes);
    device
        .write_at(DevOffset(0), image, Flags::empty())
        .unwrap();
    device
}

/// Checks a copy in both modes; what it cost is bounded.
fn cheap(name: &str, device: &MemoryDevice) -> [Result<Report, CheckError>; 2] {
    cheap_within(name, device, MEMORY_MAX)
}

/// The same, with another bound of the memory that it takes, in bytes.
fn cheap_within(
    name: &str,
    device: &MemoryDevice,
    memory_max: u64,
) -> [Result<Report, CheckError>; 2] {
    [Mode::ReadOnly, Mode::Yes].map(|mode| {
        let counting = Arc::new(CountingDevice::new(Arc::new(device.snapshot())));
        let options = CheckOptions {
            mode,
            ..CheckOptions::default()
        };
        reset_peak_memory();
        let before = resident_memory();
        let result = check(Arc::clone(&counting) as SharedDevice, &options);
        let stats = counting.stats();
        let said = match &result {
            Ok(report) => format!("{} issues", report.issues.len()),
            Err(e) => e.to_string(),
        };
        eprintln!("{name} {mode:?}: {stats:?}: {said}");
        assert!(stats.reads.bytes < READ_MAX, "{name} {mode:?}: {stats:?}");
        assert!(
            stats.writes.bytes < WRITTEN_MAX,
            "{name} {mode:?}: {stats:?}"
        );
        let requests = stats.reads.requests + stats.writes.requests;
        assert!(requests < 100_000, "{name} {mode:?}: {stats:?}");
        let taken = peak_memory().saturating_sub(before);
        eprintln!("{name} {mode:?}: {taken} bytes of memory");
        assert!(
            taken < memory_max,
            "{name} {mode:?}: {taken} bytes of memory"
        );
        result
    })
}

/// A superblock that claims this many groups, each as large as before.
fn claim(image: &[u8], groups: u32) -> (Vec<u8>, Geometry) {
    let mut image = image.to_vec();
    let mut raw = RawSuperblock::read(&image[1024..]).unwrap();
    let blocks = u64::from(groups) * u64::from(raw.blocks_per_group.get());
    raw.set_blocks_count(blocks + u64::from(raw.first_data_block.get()));
    raw.inodes_count.set(groups * raw.inodes_per_group.get());
    raw.set_checksum();
    image[1024..2048].copy_from_slice(&raw.to_bytes());
    let geo = Superblock::parse(&image[1024..], None).unwrap().geo;
    (image, geo)
}

/// 2 MiB of ext2 that say they are the beginning of up to 512 GiB.
#[test]
fn groups_of_which_nothing_is_there() {
    let _alone = alone();
    if !tools() {
        return;
    }
    let lab = Lab::new();
    for args in [
        "-t ext2 -b 1024 -O ^resize_inode,^sparse_super",
        "-t ext2 -b 1024",
    ] {
        let list: Vec<&str> = args.split(' ').collect();
        let image = lab.make("2M", &list).unwrap();
        for groups in [400, 8192, 65_536] {
            let (image, geo) = claim(&image, groups);
            let bytes = geo.block_offset(BlockNo(geo.blocks_count));
            let device = sparse(&image, bytes);
            let found = cheap(&format!("{args}, {groups} groups"), &device);
            for result in found {
                match result {
                    Ok(report) => assert!(!report.is_clean()),
                    Err(e) => assert!(matches!(e, CheckError::GroupsMissing { .. }), "{e}"),
                }
            }
        }
    }
}

/// 15 TiB in a few megabytes: descriptors that name possible places for all 122 880 groups.
fn many_groups(features: &str, flags: GroupFlags) -> Option<MemoryDevice> {
    let lab = Lab::new();
    let args =
        format!("-t ext4 -b 4096 -N 512 -O {features},meta_bg,^resize_inode,^has_journal,^flex_bg");
    let list: Vec<&str> = args.split(' ').collect();
    let image = lab.make("16M", &list)?;
    let first = Volume::new(image.clone()).desc(0);
    let (image, geo) = claim(&image, 122_880);
    let device = sparse(&image, geo.block_offset(BlockNo(geo.blocks_count)));
    let mut block = vec![0; geo.block_len()];
    for index in 0..geo.desc_blocks {
        block.fill(0);
        let size = usize::from(geo.desc_size);
        for n in 0..geo
            .descs_per_block
            .min(geo.groups_count - index * geo.descs_per_block)
        {
            let group = GroupNo(index * geo.descs_per_block + n);
            let base = geo.group_first_block(group).0 + 4;
            let mut desc = GroupDesc {
                block_bitmap: BlockNo(base),
                inode_bitmap: BlockNo(base + 1),
                inode_table: BlockNo(base + 2),
                flags,
                itable_unused: geo.inodes_per_group,
                free_inodes: geo.inodes_per_group,
                free_clusters: geo.group_clusters(group)
                    - geo.base_meta_blocks(group)
                    - 2
                    - geo.inode_table_blocks,
                ..GroupDesc::default()
            };
            if group.0 == 0 {
                desc = first;
            } else if group.0 + 1 == geo.groups_count {
                desc.flags -= GroupFlags::BLOCK_UNINIT;
            }
            let slot = &mut block[n as usize * size..][..size];
            desc.encode_into(slot, &geo, group).unwrap();
        }
        let places = (0..3).filter_map(|n| {
            let first = index * geo.descs_per_block;
            let group = [first, first + 1, first + geo.descs_per_block - 1][n];
            geo.desc_block_copy(GroupNo(group), index)
        });
        let primary = geo.desc_block(index);
        for place in places.chain(primary) {
            let at = DevOffset(geo.block_offset(place));
            device.write_at(at, &block, Flags::empty()).unwrap();
        }
    }
    Some(device)
}

#[test]
fn fifteen_terabytes_that_were_never_written() {
    let _alone = alone();
    if !tools() {
        return;
    }
    let uninit = GroupFlags::INODE_UNINIT | GroupFlags::BLOCK_UNINIT | GroupFlags::INODE_ZEROED;
    let features = "uninit_bg,^metadata_csum";
    let device = many_groups(features, uninit).expect("a volume");
    let [found, repaired] = cheap("15 TiB", &device);
    let found = found.unwrap();
    // What the volume's beginning counts is that of a small one.
    assert!(found.issues.len() < 20, "{}", show(&found));
    assert!(!repaired.unwrap().has_uncorrected());
}

/// The same without flags that say so: bitmaps and tables are holes, and disagree with everything.
#[test]
fn fifteen_terabytes_of_holes() {
    let _alone = alone();
    if !tools() {
        return;
    }
    let features = "^uninit_bg,^metadata_csum";
    let device = many_groups(features, GroupFlags::empty()).expect("a volume");
    for result in cheap("15 TiB of holes", &device) {
        let error = result.expect_err("no volume");
        assert!(matches!(error, CheckError::GroupsMissing { .. }), "{error}");
    }
}

/// A volume with this many files, the inode that holds a value of 60 000 bytes, and the attributes of the file that has it.
fn one_value(files: usize) -> (Volume, Vec<Ino>, Ino, Vec<u8>) {
    let lab = Lab::new();
    for n in 0..files {
        std::fs::write(lab.tree.join(format!("many/f{n}")), b"").unwrap();
    }
    let args = "-t ext4 -b 1024 -I 256 -N 4000 -O ea_inode,^has_journal";
    let list: Vec<&str> = args.split(' ').collect();
    let image = lab.make("16M", &list).unwrap();
    let value = lab.dir.path().join("value");
    std::fs::write(&value, vec![b'v'; 60_000]).unwrap();
    let set = format!("ea_set -f {} many/f0 user.large", value.display());
    let mut v = Volume::new(lab.debugfs(&image, &[&set]));
    let files: Vec<Ino> = (0..files)
        .map(|n| v.lookup(&format!("many/f{n}")))
        .collect();
    let holder = (11..=v.geo.inodes_count)
        .map(Ino)
        .find(|i| v.inode(*i).flags.contains(InodeFlags::EA_INODE))
        .unwrap();
    let at = v.inode(files[0]).attributes_offset(&v.geo).unwrap();
    let area = v.raw_inode(files[0])[at..].to_vec();
    for file in &files {
        v.edit_raw(*file, |raw| raw[at..].copy_from_slice(&area));
    }
    v.edit_inode(holder, |i| i.set_ea_inode_refs(files.len() as u64));
    (v, files, holder, area)
}

/// Bytes that a check reads.
fn read_by_check(v: &Volume, mode: Mode) -> (Report, u64) {
    let counting = Arc::new(CountingDevice::new(Arc::new(MemoryDevice::from_image(
        &v.image,
    ))));
    let options = CheckOptions {
        mode,
        ..CheckOptions::default()
    };
    let report = check(Arc::clone(&counting) as SharedDevice, &options).unwrap();
    (report, counting.stats().reads.bytes)
}

/// A value is read once, and no more of it than there is, however many attributes have it.
#[test]
fn references_to_one_value() {
    let _alone = alone();
    if !tools() {
        return;
    }
    let (v, files, holder, area) = one_value(1000);
    let refused = |k: &IssueKind| matches!(k, IssueKind::XattrValueInode { .. });
    let mut plain = v.clone();
    for file in &files {
        plain.edit_raw(*file, |raw| raw[160..].fill(0));
    }
    let (_, base) = read_by_check(&plain, Mode::ReadOnly);
    // A request for each reference reads the inode of the value.
    let most = base + 1000 * 4 * 1024 + 200_000;
    let (report, read) = read_by_check(&v, Mode::ReadOnly);
    assert!(
        !report.issues.iter().any(|i| refused(&i.kind)),
        "{}",
        show(&report)
    );
    assert!(read < most, "{read} of {most} bytes read");

    // The inode maps more than the value has.
    let mut long = v.clone();
    let first = long.blocks(holder)[0];
    long.edit_inode(holder, |i| {
        let e = blockwright_ondisk::ext4::extent::Extent {
            logical: blockwright_ondisk::ext4::FileBlock(0),
            physical: first,
            len: (v.geo.blocks_count - first.0) as u32,
            unwritten: false,
        };
        blockwright_ondisk::ext4::extent::write_leaf(&mut i.block, &[e]).unwrap();
    });
    let (report, read) = read_by_check(&long, Mode::ReadOnly);
    assert!(
        !report.issues.iter().any(|i| refused(&i.kind)),
        "{}",
        show(&report)
    );
    assert!(read < most, "{read} of {most} bytes read");

    // Each file has a value in another inode, and all of these map the same blocks.
    let mut many = v.clone();
    let raw = many.raw_inode(holder).to_vec();
    let (holders, owners) = files.split_at(500);
    let list = xattr::XattrList::parse_ibody(&area, &v.geo)
        .unwrap()
        .unwrap();
    let entry = list.iter().next().unwrap().offset;
    for (holder, owner) in holders.iter().zip(owners) {
        many.edit_raw(*holder, |to| to.copy_from_slice(&raw));
        many.edit_raw(*owner, |to| {
            let at = to.len() - area.len() + entry + 4;
            to[at..at + 4].copy_from_slice(&holder.0.to_le_bytes());
        });
    }
    let (_, read) = read_by_check(&many, Mode::ReadOnly);
    let volume = many.image.len() as u64;
    assert!(
        read < most + volume,
        "{read} of {most} + {volume} bytes read"
    );
}

/// What waits in an area of fast commits is not held in memory, whether it is complete or not.
#[test]
fn an_area_full_of_fast_commits() {
    let _alone = alone();
    if !tools() {
        return;
    }
    let lab = Lab::new();
    for complete in [false, true] {
        let (v, records) = full_of_records(&lab, complete, removed_range);
        let device = MemoryDevice::from_image(&v.image);
        drop(v);
        // The records are 24 MiB on the volume, and would be more in memory.
        let name = format!("{records} records, {complete}");
        for result in cheap_within(&name, &device, 12 << 20) {
            let report = result.unwrap();
            assert!(!report.has_uncorrected(), "{}", show(&report));
            let replayed = report.issues.iter().find_map(|i| match i.kind {
                IssueKind::FastCommitReplayed { records } => Some(records),
                _ => None,
            });
            assert_eq!(replayed, complete.then_some(records), "{}", show(&report));
        }
    }
}

/// Fast commits that would leave more than any real ones in memory are named, and stay: with more than a million extents or names.
#[test]
fn fast_commits_that_add_too_much() {
    let _alone = alone();
    if !tools() {
        return;
    }
    let lab = Lab::new();
    for (what, of) in [
        ("extents", added_range as Record),
        ("names", new_name as Record),
    ] {
        let (v, records) = full_of_records(&lab, true, of);
        let device = MemoryDevice::from_image(&v.image);
        drop(v);
        for result in cheap_within(&format!("{records} {what}"), &device, 64 << 20) {
            let report = result.unwrap();
            let named = |i: &blockwright_check::ext4::Issue| i.kind == IssueKind::FastCommitTooMany;
            assert!(report.issues.iter().any(named), "{what}: {}", show(&report));
            // Nothing else is wrong.
            let expected = |i: &blockwright_check::ext4::Issue| {
                named(i) || matches!(i.kind, IssueKind::JournalReplayed { .. })
            };
            assert!(
                report.issues.iter().all(expected),
                "{what}: {}",
                show(&report)
            );
        }
    }
}

/// A log is searched for its end, or for a commit block, in few requests.
#[test]
fn a_search_through_a_whole_log() {
    let _alone = alone();
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let list: Vec<&str> = "-t ext4 -b 4096 -O fast_commit -J size=32"
        .split(' ')
        .collect();
    let clean = Volume::new(lab.make("80M", &list).unwrap());
    let target = clean.blocks(clean.lookup("dir/big"))[0];
    let data = lab.dir.path().join("data");
    std::fs::write(&data, [7; 4096]).unwrap();
    let write = format!("jw -b {target} {}", data.display());
    let mut v = Volume::new(lab.debugfs(&clean.image, &["jo -c", &write, "jc"]));
    let requests = |v: &Volume| {
        let device = Arc::new(MemoryDevice::from_image(&v.image));
        let counting = Arc::new(CountingDevice::new(device));
        let report = check(
            Arc::clone(&counting) as SharedDevice,
            &CheckOptions::default(),
        );
        (report.unwrap(), counting.stats().reads.requests)
    };
    let (_, plain) = requests(&v);
    let places = v.blocks(Ino::JOURNAL);
    for place in &places[4..] {
        v.block(*place).fill(0x55);
    }
    let edit = |v: &mut Volume, edit: fn(&mut RawJournalSuperblock)| {
        let head = v.block(places[0]);
        let (mut raw, _) = RawJournalSuperblock::read_from_prefix(head).unwrap();
        edit(&mut raw);
        raw.set_checksum();
        head[..1024].copy_from_slice(raw.as_bytes());
    };
    // The descriptor is damaged, and no commit block follows.
    let mut torn = v.clone();
    torn.block(places[1])[4095] ^= 1;
    torn.block(places[3]).fill(0x55);
    // Fast commits, wherever they begin.
    edit(&mut v, |raw| {
        let flag = raw.feature_incompat.get() | JournalIncompat::FAST_COMMIT.bits();
        raw.feature_incompat.set(flag);
        raw.num_fc_blks.set(u32::MAX);
    });
    for (what, v) in [("a commit block", torn), ("fast commits", v)] {
        let (report, found) = requests(&v);
        eprintln!("{what}: {found} requests, {plain} without a search");
        assert!(
            found < plain + places.len() as u64 / 16,
            "{what}: {found} of {plain} requests: {}",
            show(&report)
        );
    }
}
