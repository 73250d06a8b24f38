//! f2fs: names and nodes that a repair must put somewhere else, and where there is room only after it makes some.

use super::f2fs::made;
use super::lab::Rng;
use super::lab::f2fs::{F2Volume, clean, f2fs_tools, names, repair_f2fs, show, verify_f2fs};
use super::{tools, trees};
use blockwright::Volume;
use blockwright_check::Mode;
use blockwright_device::{MemoryDevice, SharedDevice};
use blockwright_ondisk::f2fs::dir::{DentrySlots, slots_of};
use blockwright_ondisk::f2fs::inode::{RawExtra, WORDS_OFFSET};
use blockwright_ondisk::f2fs::summary::{SummaryBlock, SummaryKind};
use blockwright_ondisk::f2fs::{
    BlockAddr, FileKind, Footer, InlineFlags, Ino, InodeFlags, Log, Nid, NodeOffset, SegNo,
    SitEntry, dir_geometry, hash,
};
use std::mem::offset_of;
use std::sync::Arc;

/// Repairs a copy: no issue is left, and fsck.f2fs finds nothing. What was told, and the copy.
fn repaired(v: &F2Volume) -> (Vec<String>, MemoryDevice) {
    let (report, after) = repair_f2fs(&v.device, Mode::Yes);
    let report = report.expect("checked");
    assert!(!report.has_uncorrected(), "{}", show(&report));
    let again = verify_f2fs(&after).expect("checked");
    assert!(
        again.is_clean(),
        "{}-- then\n{}",
        show(&report),
        show(&again)
    );
    if f2fs_tools() {
        let dir = tools::scratch();
        let path = dir.path().join("f2fs.img");
        after.save(&path).expect("saved");
        let (code, text) = tools::run("fsck.f2fs", &["--dry-run", "-f"], &path);
        assert!(clean(code, &text), "{}{text}", show(&report));
    }
    (names(&report), after)
}

/// A volume that was closed.
fn closed((device, v): (Arc<MemoryDevice>, Volume)) -> F2Volume {
    v.close().expect("closed");
    F2Volume::new(device.snapshot())
}

/// Takes a name out of its directory. What it leads to stays.
fn unname(v: &F2Volume, dir: &str, name: &str) {
    v.edit_dir(v.lookup(dir), name, |bytes, layout, slot| {
        let mut slots = DentrySlots::new(bytes, layout).expect("slots");
        slots.remove(slot, slots_of(name.len()));
    });
}

/// A directory whose entries are in its inode gets a block when it is full. Before, the files were freed.
#[test]
fn a_full_lost_and_found_in_an_inode_takes_more() {
    let (device, v) = made("extra_attr,inode_checksum");
    v.create_dir_all("/lost+found/below").expect("made");
    let mut filled = 0;
    for n in 0..400 {
        v.write(format!("/lost+found/a-name-of-four-slots-{n:04}"), b"x")
            .expect("written");
        v.sync().expect("durable");
        let volume = F2Volume::new(device.snapshot());
        let (inode, _) = volume.inode(volume.lookup("lost+found"));
        if !inode.inline.contains(InlineFlags::DENTRY) {
            break;
        }
        filled = n + 1;
    }
    assert!((20..399).contains(&filled), "{filled}");
    v.close().expect("closed");
    let (device, v) = made("extra_attr,inode_checksum");
    v.create_dir_all("/lost+found/below").expect("made");
    for n in 0..filled {
        v.write(format!("/lost+found/a-name-of-four-slots-{n:04}"), b"x")
            .expect("written");
    }
    for n in 0..9 {
        v.write(format!("/dir/file-{n}"), [n; 5000])
            .expect("written");
    }
    let v = closed((device, v));
    let (inode, _) = v.inode(v.lookup("lost+found"));
    assert!(inode.inline.contains(InlineFlags::DENTRY));
    let files: Vec<_> = (0..9u8)
        .map(|n| v.lookup(&format!("dir/file-{n}")))
        .collect();
    for n in 0..9 {
        unname(&v, "dir", &format!("file-{n}"));
    }
    let (told, after) = repaired(&v);
    assert!(told.contains(&"InodeUnreachable".to_owned()), "{told:?}");
    let shared: SharedDevice = Arc::new(after.snapshot());
    let volume = Volume::open_device(shared).expect("opens");
    for (n, ino) in (0..9u8).zip(files) {
        let path = format!("/lost+found/lost_found_{ino}");
        assert_eq!(volume.read(&path).expect("kept"), [n; 5000], "{path}");
    }
    let last = format!("/lost+found/a-name-of-four-slots-{:04}", filled - 1);
    assert_eq!(volume.read(last).expect("kept"), b"x");
    volume.create_dir("/lost+found/below/new").expect("made");
    volume.close().expect("closed");
}

/// Blocks of a directory are sparse: the right one may be a hole that only a node of the directory's maps. Before, the name stayed where no lookup
/// finds it.
#[test]
fn a_name_moves_to_a_block_that_a_node_maps() {
    move_names("extra_attr,inode_checksum", None);
}

/// A directory with the flag of compressed files passes it on to new files. It has no clusters: its nodes map as many blocks as without the flag.
#[test]
fn a_directory_with_the_flag_of_compressed_files_has_no_clusters() {
    for cluster_log in [2, 4, 8] {
        move_names("extra_attr,inode_checksum,compression", Some(cluster_log));
    }
}

fn move_names(features: &str, cluster_log: Option<u8>) {
    let (device, v) = made(features);
    v.create_dir("/wide").expect("made");
    v.close().expect("closed");
    let begun = F2Volume::new(device.snapshot());
    // 4096 buckets of two blocks, as a volume gives its directories after a change of the kernel's `dir_level`.
    const LEVEL: u8 = 12;
    begun.edit_inode(begun.lookup("wide"), |head| head.dir_level = LEVEL);
    let device = Arc::new(begun.device.snapshot());
    let v = Volume::open_device(Arc::clone(&device) as SharedDevice).expect("opens");
    for n in 0..300u32 {
        v.write(format!("/wide/a-name-{n:04}"), n.to_le_bytes())
            .expect("written");
    }
    let v = closed((device, v));
    let wide = v.lookup("wide");
    if let Some(log) = cluster_log {
        v.edit_node(wide.nid(), |b| {
            b[WORDS_OFFSET + offset_of!(RawExtra, log_cluster_size)] = log;
        });
        let flag = InodeFlags::COMPRESS.bits();
        v.edit_inode(wide, |head| head.flags.set(head.flags.get() | flag));
    }
    let before = trees::read(&v.device).expect("opens");
    assert!(before.errors.is_empty(), "{:?}", before.errors);
    let report = verify_f2fs(&v.device).expect("checked");
    assert!(report.is_clean(), "{}", show(&report));
    assert!(!v.inode(wide).0.inline.contains(InlineFlags::DENTRY));
    // Some names, of blocks that the inode maps, become others in the places of the old ones.
    let bucket = |name: &str| dir_geometry::bucket(0, LEVEL, hash::name_hash(name.as_bytes())).0;
    let moved: Vec<(u32, String, String)> = (0..300)
        .map(|n| (n, format!("a-name-{n:04}"), format!("b-name-{n:04}")))
        .filter(|(_, old, _)| bucket(old) < 850)
        .collect();
    let mut far = 0;
    for (_, old, new) in &moved {
        let (_, _, ino) = v.find(wide, old);
        let hash = hash::name_hash(new.as_bytes());
        far += u32::from(bucket(new) > 1000);
        v.edit_dir(wide, old, |bytes, layout, slot| {
            let mut slots = DentrySlots::new(bytes, layout).expect("slots");
            slots.remove(slot, slots_of(old.len()));
            slots
                .insert(slot, new.as_bytes(), hash, ino, FileKind::Regular)
                .expect("as long");
        });
    }
    assert!(far > 5, "{far}");
    let (told, after) = repaired(&v);
    assert!(told.contains(&"DirPlace".to_owned()), "{told:?}");
    assert!(!told.contains(&"DirLevel".to_owned()), "{told:?}");
    let tree = trees::read(&after).expect("opens");
    assert!(tree.errors.is_empty(), "{:?}", tree.errors);
    assert_eq!(tree.nodes.len(), before.nodes.len());
    let shared: SharedDevice = Arc::new(after.snapshot());
    let volume = Volume::open_device(shared).expect("opens");
    for (n, _, new) in &moved {
        let bytes = volume.read(format!("/wide/{new}")).expect("kept");
        assert_eq!(bytes, n.to_le_bytes(), "{new}");
    }
    volume.close().expect("closed");
}

/// A level that no names confirm, and one that they confirm although it is not the one of most directories.
#[test]
fn the_level_of_a_wide_directory_is_restored_from_its_names() {
    let (device, v) = made("extra_attr,inode_checksum");
    v.create_dir("/wide").expect("made");
    v.create_dir("/bare").expect("made");
    v.close().expect("closed");
    let begun = F2Volume::new(device.snapshot());
    begun.edit_inode(begun.lookup("wide"), |head| head.dir_level = 5);
    let device = Arc::new(begun.device.snapshot());
    let v = Volume::open_device(Arc::clone(&device) as SharedDevice).expect("opens");
    for n in 0..500 {
        v.write(format!("/wide/a-name-{n:04}"), b"x")
            .expect("written");
    }
    let v = closed((device, v));
    assert!(verify_f2fs(&v.device).expect("checked").is_clean());
    let (wide, bare) = (v.lookup("wide"), v.lookup("bare"));
    let (_, whole) = v.inode(wide);
    for level in [0, 1, 4, 6, 28, 29, 31, 255] {
        let bad = v.copy();
        bad.edit_inode(wide, |head| head.dir_level = level);
        let report = verify_f2fs(&bad.device).expect("checked");
        assert_eq!(names(&report), ["DirLevel"], "{level}: {}", show(&report));
        let (_, after) = repaired(&bad);
        let after = F2Volume::new(after);
        assert!(after.inode(wide).1 == whole, "{level}");
    }
    // Without names in blocks, any level that a directory may have is as good as another.
    for (level, told) in [(5, false), (28, false), (29, true), (255, true)] {
        let odd = v.copy();
        odd.edit_inode(bare, |head| head.dir_level = level);
        let report = verify_f2fs(&odd.device).expect("checked");
        assert_eq!(report.is_clean(), !told, "{level}: {}", show(&report));
        if told {
            let (_, after) = repaired(&odd);
            assert_eq!(F2Volume::new(after).inode(bare).0.dir_level, 0);
        }
    }
}

/// Of a volume that was not unmounted, the summaries of the logs of nodes are in nodes' footers alone. An address of data that leads there is wrong,
/// whether a node is in the block or not: before, it took the block, and the node's file was lost.
#[test]
fn an_address_that_leads_into_a_log_of_nodes_is_a_hole() {
    let (device, v) = made("extra_attr,inode_checksum");
    v.write("/later", vec![0x44; 9000]).expect("written");
    v.sync().expect("durable");
    let good = F2Volume::new(device.snapshot());
    v.close().expect("closed");
    let (victim, file) = (good.lookup("later"), good.lookup("dir/plain"));
    assert!(file < victim);
    let used = good.nat_entry(victim.nid()).block;
    let (segment, _) = good.geo.segment_of(used).expect("in main");
    let is_log = |log: &Log| good.pack.checkpoint.raw.log(*log).segment == segment;
    let log = (Log::ALL.iter())
        .find(|l| is_log(l))
        .expect("in a log of nodes");
    assert!(log.is_node());
    let start = good.geo.segment_start(segment).expect("there").0;
    let head = u32::from(good.pack.checkpoint.raw.log(*log).offset);
    let before = trees::read(&good.device).expect("opens");
    for at in [used, BlockAddr(start + head + 3)] {
        let v = good.copy();
        let word = v.address_at(file, 1);
        v.edit_node(file.nid(), |b| {
            b[word..word + 4].copy_from_slice(&at.0.to_le_bytes())
        });
        let (told, after) = repaired(&v);
        assert!(!told.contains(&"NodeShared".to_owned()), "{told:?}");
        let tree = trees::read(&after).expect("opens");
        assert!(tree.errors.is_empty(), "{:?}", tree.errors);
        for (path, node) in &before.nodes {
            let kept = tree.nodes.get(path).expect("kept");
            let changed = node.ino == u64::from(file.0);
            assert!(changed || kept == node, "{}", path.display());
        }
    }
}

/// A node in a segment of data, which the NAT names: it moves to a segment of nodes, and nothing is lost.
#[test]
fn a_node_among_data_moves() {
    let v = closed(made("extra_attr,inode_checksum"));
    let before = trees::read(&v.device).expect("opens");
    let data = v.addresses(v.lookup("dir/plain"))[0];
    let (segment, _) = v.geo.segment_of(data).expect("in main");
    let valid = v.sit_entry(segment).valid;
    let free = (0..512).rev().find(|at| !valid.get(*at)).expect("room");
    let start = v.geo.segment_start(segment).expect("there").0;
    let at = BlockAddr(start + u32::from(free));
    for name in ["dir/tiny", "dir", "holes"] {
        let mut v = v.copy();
        let nid = v.lookup(name).nid();
        let (_, bytes) = v.node(nid);
        v.put(at, &bytes);
        let mut entry = v.nat_entry(nid);
        entry.block = at;
        v.set_nat(nid, entry);
        let (told, after) = repaired(&v);
        assert!(told.contains(&"SegmentType".to_owned()), "{told:?}");
        let tree = trees::read(&after).expect("opens");
        assert!(tree.errors.is_empty(), "{:?}", tree.errors);
        assert!(tree.nodes == before.nodes, "{name}");
        // The checkpoint that counted before is untouched.
        assert_eq!(after.to_vec()[at.0 as usize * 4096..][..4096], bytes[..]);
    }
}

/// A repair that makes a directory longer and moves a node needs places for both, and changes nodes besides. Where the checkpoint on the device
/// leaves two segments free, or fewer, it takes holes in others, and overwrites nothing that this checkpoint names.
#[test]
fn new_blocks_leave_room_for_changed_ones() {
    let (device, v) = made("extra_attr,inode_checksum");
    for n in 0..300 {
        v.write(format!("/dir/a-file-with-a-longer-name-{n:03}"), b"x")
            .expect("written");
    }
    let v = closed((device, v));
    let stats = verify_f2fs(&v.device).expect("checked").stats;
    let (inodes, names_before) = (stats.used_inodes, stats.names);
    let data = v.addresses(v.lookup("dir/plain"))[0];
    let (segment, _) = v.geo.segment_of(data).expect("in main");
    let valid = v.sit_entry(segment).valid;
    let place = (0..512).rev().find(|at| !valid.get(*at)).expect("room");
    let at = BlockAddr(v.geo.segment_start(segment).expect("there").0 + u32::from(place));
    let logs: Vec<SegNo> = (Log::ALL.iter())
        .map(|log| v.pack.checkpoint.raw.log(*log).segment)
        .collect();
    // Other segments have one block of the checkpoint on the device, or are full of them.
    for (free, full) in [2, 1, 0].into_iter().flat_map(|n| [(n, false), (n, true)]) {
        let mut v = v.copy();
        for n in 0..300 {
            unname(&v, "dir", &format!("a-file-with-a-longer-name-{n:03}"));
        }
        let nid = v.lookup("dir/tiny").nid();
        let (_, bytes) = v.node(nid);
        v.put(at, &bytes);
        let mut entry = v.nat_entry(nid);
        entry.block = at;
        v.set_nat(nid, entry);
        let mut left = free;
        for n in 0..v.geo.main_segments {
            let mut entry = v.sit_entry(SegNo(n));
            if entry.valid.count() > 0 || logs.contains(&SegNo(n)) {
                continue;
            }
            if left > 0 {
                left -= 1;
                continue;
            }
            match full {
                true => entry.valid.set_range(0..512, true),
                false => entry.valid.set(77, true),
            }
            v.set_sit(SegNo(n), entry);
        }
        let what = format!("{free} free, others full: {full}");
        let (report, after) = repair_f2fs(&v.device, Mode::Yes);
        let report = report.expect("checked");
        // The old checkpoint is as good as before, as long as there is room for the changed blocks.
        let (old, new) = (v.device.to_vec(), after.to_vec());
        let changed: Vec<(u32, u16)> = (0..v.geo.main_segments)
            .flat_map(|n| (0..512).map(move |at| (n, at)))
            .filter(|(n, at)| v.sit_entry(SegNo(*n)).valid.get(*at))
            .filter(|(n, at)| {
                let start = v.geo.segment_start(SegNo(*n)).expect("there").0;
                let bytes = (start + u32::from(*at)) as usize * 4096;
                old[bytes..bytes + 4096] != new[bytes..bytes + 4096]
            })
            .collect();
        assert!(changed.is_empty(), "{what}: {changed:?}");
        let again = verify_f2fs(&after).expect("checked");
        assert_eq!(again.stats.used_inodes, inodes, "{what}: {}", show(&report));
        assert!(!report.has_uncorrected(), "{what}: {}", show(&report));
        assert!(again.is_clean(), "{what}: {}", show(&again));
        assert_eq!(again.stats.names, names_before, "{what}");
    }
}

/// Blocks that the NAT names, and those that the nodes there name.
fn named(v: &F2Volume) -> Vec<u32> {
    let mut out = Vec::new();
    for nid in (Ino::ROOT.0..v.geo.nids()).map(Nid) {
        let entry = v.nat_entry(nid);
        if !v.geo.in_main(entry.block) {
            continue;
        }
        out.push(entry.block.0);
        let footer = Footer::read(&v.block(entry.block)).expect("a footer");
        let words = match entry.ino == nid.as_ino() {
            true => {
                let (inode, _) = v.inode(entry.ino);
                let inline = InlineFlags::DATA | InlineFlags::DENTRY;
                let addresses = v.addresses(entry.ino);
                let used = match inode.inline.intersects(inline) {
                    true => Vec::new(),
                    false => addresses,
                };
                used.into_iter().map(|at| at.0).collect()
            }
            false if footer.offset.is_indirect() || footer.offset == NodeOffset::XATTR => {
                Vec::new()
            }
            false => v.words(nid),
        };
        out.extend(words.into_iter().filter(|at| v.geo.in_main(BlockAddr(*at))));
    }
    out
}

/// Entries of the SIT became zeroes: its segments look free. A repair that takes new blocks and changes old ones overwrites none that the NAT
/// or a node names, so the checkpoint on the device stays as good as it was until the new one is there.
#[test]
fn segments_that_only_look_free_are_not_taken() {
    let (device, v) = made("extra_attr,inode_checksum");
    for n in 0..300 {
        v.write(
            format!("/dir/a-file-with-a-longer-name-{n:03}"),
            vec![n as u8; 5000],
        )
        .expect("written");
        // Each sync goes on behind the last one: more segments are in use.
        if n % 100 == 99 {
            v.write(format!("/long-{n}"), vec![n as u8; 3 << 20])
                .expect("written");
            v.sync().expect("durable");
        }
    }
    let base = closed((device, v));
    let stats = verify_f2fs(&base.device).expect("checked").stats;
    let in_use: Vec<SegNo> = (0..base.geo.main_segments)
        .map(SegNo)
        .filter(|s| base.sit_entry(*s).valid.count() > 0)
        .collect();
    let blocks = named(&base);
    assert!(blocks.len() > 2500 && in_use.len() > 8, "{}", in_use.len());
    for seed in 0..12 {
        let mut rng = Rng::new(seed);
        let mut v = base.copy();
        for n in (0..300).filter(|_| rng.below(2) == 0) {
            unname(&v, "dir", &format!("a-file-with-a-longer-name-{n:03}"));
        }
        let mut zeroed = Vec::new();
        for segment in &in_use {
            // In some of the copies, all of them.
            if seed % 3 == 0 || rng.below(2) == 0 {
                v.set_sit(*segment, SitEntry::free());
                zeroed.push(segment.0);
            }
        }
        let (report, after) = repair_f2fs(&v.device, Mode::Yes);
        let report = report.expect("checked");
        let (old, new) = (v.device.to_vec(), after.to_vec());
        let overwritten: Vec<&u32> = (blocks.iter())
            .filter(|at| {
                let bytes = **at as usize * 4096..(**at as usize + 1) * 4096;
                old[bytes.clone()] != new[bytes]
            })
            .collect();
        let what = format!("seed {seed}, segments {zeroed:?}");
        assert!(overwritten.is_empty(), "{what}: {overwritten:?}");
        assert!(!report.has_uncorrected(), "{what}: {}", show(&report));
        let again = verify_f2fs(&after).expect("checked");
        assert!(again.is_clean(), "{what}: {}", show(&again));
        assert_eq!(again.stats.names, stats.names, "{what}");
    }
}

/// The summaries of a segment of data are lost, and say that it is of nodes. One node in it, which the NAT names, agrees with them, and the SIT does
/// not. Before, every address that leads there became a hole.
#[test]
fn lost_summaries_do_not_make_a_segment_one_of_nodes() {
    let (device, v) = made("extra_attr,inode_checksum");
    let contents: Vec<u8> = (0..9u32 << 20).map(|n| (n >> 12) as u8 | 1).collect();
    v.write("/long", &contents).expect("written");
    let mut v = closed((device, v));
    let ino = v.lookup("long");
    let direct = v.inode(ino).0.nids[0];
    let in_log = |segment: SegNo| {
        (Log::ALL.iter()).any(|log| v.pack.checkpoint.raw.log(*log).segment == segment)
    };
    let words = v.words(direct);
    let (n, segment) = (words.iter().enumerate())
        .filter_map(|(n, at)| Some((n, v.geo.segment_of(BlockAddr(*at))?.0)))
        .find(|(_, segment)| !in_log(*segment))
        .expect("a whole segment");
    let at = BlockAddr(words[n]);
    // A hole takes the place of one block, and a node is in that block.
    v.edit_node(direct, |b| b[n * 4..n * 4 + 4].fill(0));
    let nid = v.lookup("dir/tiny").nid();
    let (_, bytes) = v.node(nid);
    v.put(at, &bytes);
    let mut entry = v.nat_entry(nid);
    entry.block = at;
    v.set_nat(nid, entry);
    let place = v.geo.ssa_block(segment).expect("there");
    v.put(
        place,
        &SummaryBlock::new(SummaryKind::Node).encode_with_checksum(),
    );
    let (told, after) = repaired(&v);
    assert!(!told.contains(&"BlockForeign".to_owned()), "{told:?}");
    let shared: SharedDevice = Arc::new(after);
    let volume = Volume::open_device(shared).expect("opens");
    let read = volume.read("/long").expect("kept");
    let differing = (read.chunks(4096).zip(contents.chunks(4096))).filter(|(a, b)| a != b);
    assert_eq!(differing.count(), 1);
    volume.close().expect("closed");
}

/// Without questions, nothing moves nodes out of a segment of data, and a node that is no node moves in no mode.
#[test]
fn a_bad_node_among_data_stays_with_preen() {
    let v = closed(made("extra_attr,inode_checksum"));
    let data = v.addresses(v.lookup("dir/plain"))[0];
    let (segment, _) = v.geo.segment_of(data).expect("in main");
    let valid = v.sit_entry(segment).valid;
    let start = v.geo.segment_start(segment).expect("there").0;
    let free = (0..512).filter(|at| !valid.get(*at));
    let free: Vec<BlockAddr> = free.map(|at| BlockAddr(start + u32::from(at))).collect();
    let mut v = v;
    for (name, at) in ["dir/tiny", "holes"]
        .into_iter()
        .zip(free.into_iter().rev())
    {
        let nid = v.lookup(name).nid();
        let (_, mut bytes) = v.node(nid);
        if name == "holes" {
            let mut footer = Footer::read(&bytes).expect("a footer");
            footer.nid.0 += 1;
            footer.write(&mut bytes).expect("written");
        }
        v.put(at, &bytes);
        let mut entry = v.nat_entry(nid);
        entry.block = at;
        v.set_nat(nid, entry);
    }
    let (report, after) = repair_f2fs(&v.device, Mode::Preen);
    let report = report.expect("checked");
    assert!(report.has_uncorrected(), "{}", show(&report));
    assert!(!report.changed, "{}", show(&report));
    assert!(after.to_vec() == v.device.to_vec());
    let (told, _) = repaired(&v);
    assert!(told.contains(&"NodeFooter".to_owned()), "{told:?}");
}
