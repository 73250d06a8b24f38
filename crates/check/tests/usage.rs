//! What each block holds: every block counts once, free ones as the tools count them, and damage is bounded.

use blockwright_test_support::lab as common;

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;

use blockwright_check::usage::{Kind, Usage, UsageOptions};
use blockwright_check::{ext4, f2fs};
use blockwright_device::sim::faulty::{Fault, Ops, Rule};
use blockwright_device::{FaultyDevice, MemoryDevice, OpenMode, SharedDevice};
use blockwright_ondisk::ext4::{BlockNo, Ino};
use common::f2fs::{F2Lab, FULL, f2fs_tools};
use common::volume::Volume;
use common::{Lab, Rng, tools};

fn memory(image: &[u8]) -> SharedDevice {
    Arc::new(MemoryDevice::from_image(image))
}

fn options(cells_max: usize, runs_max: usize) -> UsageOptions {
    UsageOptions {
        cells_max,
        runs_max,
        ..UsageOptions::default()
    }
}

/// The cells, the totals and the runs describe the same blocks, each once.
fn assert_adds_up<K>(usage: &Usage<K>, what: &str) {
    let all: u64 = usage.kinds().map(|(_, n)| n).sum();
    assert_eq!(all, usage.blocks, "{what}");
    for (n, cell) in usage.cells.iter().enumerate() {
        let start = n as u64 * usage.cell_blocks;
        let expected = usage.cell_blocks.min(usage.blocks - start);
        assert_eq!(cell.blocks(), expected, "{what}: cell {n}");
    }
    let Some(runs) = &usage.runs else { return };
    let (mut at, mut totals) = (0, BTreeMap::new());
    for run in runs {
        assert_eq!(run.first, at, "{what}");
        at += run.len;
        *totals.entry(run.kind).or_insert(0) += run.len;
    }
    assert_eq!(at, usage.blocks, "{what}");
    assert_eq!(totals, usage.kinds().collect(), "{what}");
}

/// Nothing is in doubt.
fn assert_sound<K: std::fmt::Debug>(usage: &Usage<K>, what: &str) {
    assert_adds_up(usage, what);
    assert_eq!(usage.count(Kind::Unknown), 0, "{what}");
    assert_eq!(usage.count(Kind::Unclaimed), 0, "{what}");
    assert_eq!((usage.claimed_twice, usage.marked_free), (0, 0), "{what}");
    assert!(!usage.is_damaged(), "{what}: {:?}", usage.issues);
}

/// A number that `dumpe2fs -h` prints.
fn dumped(path: &std::path::Path, name: &str) -> u64 {
    let out = Command::new("dumpe2fs").arg("-h").arg(path).output();
    let out = String::from_utf8(out.unwrap().stdout).unwrap();
    let line = out.lines().find_map(|l| l.strip_prefix(name));
    line.unwrap_or_else(|| panic!("{name} in {out}"))
        .trim()
        .parse()
        .unwrap()
}

#[test]
fn ext4_blocks_count_as_dumpe2fs_counts_them() {
    if !tools() || !blockwright_oracles::have(&["dumpe2fs"]) {
        return;
    }
    let lab = Lab::new();
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("usage.img");
    for args in [
        "-t ext4",
        "-t ext4 -b 1024 -g 1024 -O meta_bg,^resize_inode",
        "-t ext3 -b 1024",
        "-t ext2 -b 4096",
        "-t ext4 -O ^metadata_csum,uninit_bg",
        "-t ext4 -O ^has_journal,sparse_super2",
        "-t ext4 -O inline_data",
        "-t ext4 -b 1024 -C 8192 -O bigalloc",
        "-t ext4 -O ea_inode,orphan_file,quota,project,mmp",
    ] {
        let Some(image) = lab.make("16M", &args.split(' ').collect::<Vec<_>>()) else {
            continue;
        };
        std::fs::write(&path, &image).unwrap();
        let usage = ext4::usage(memory(&image), &UsageOptions::default()).unwrap();
        assert_sound(&usage, args);
        assert_eq!(usage.blocks, dumped(&path, "Block count:"), "{args}");
        let free = dumped(&path, "Free blocks:");
        assert_eq!(usage.count(Kind::Free), free, "{args}");
        assert!(
            usage.files > 0 && usage.count(Kind::Directory) > 0,
            "{args}"
        );
        // Few cells and no runs say the same.
        let coarse = ext4::usage(memory(&image), &options(5, 0)).unwrap();
        assert_adds_up(&coarse, args);
        assert!(coarse.cells.len() <= 5 && coarse.runs.is_none());
        assert!(coarse.kinds().eq(usage.kinds()), "{args}");
    }
}

#[test]
fn runs_are_where_debugfs_sees_them() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let image = lab.make("16M", &["-t", "ext4", "-b", "1024"]).unwrap();
    let usage = ext4::usage(memory(&image), &UsageOptions::default()).unwrap();
    let kind_at = |block: u64| {
        let runs = usage.runs.as_ref().unwrap();
        let run = runs
            .iter()
            .find(|r| (r.first..r.first + r.len).contains(&block));
        run.unwrap().kind
    };
    let volume = Volume::new(image);
    let (dir, big, sparse) = (
        volume.lookup("dir"),
        volume.lookup("dir/big"),
        volume.lookup("sparse"),
    );
    assert_eq!(kind_at(volume.blocks(dir)[0].0), Kind::Directory);
    for block in volume.blocks(big) {
        assert!(matches!(
            kind_at(block.0),
            Kind::File | Kind::FragmentedFile
        ));
    }
    assert_eq!(kind_at(volume.extent_blocks(sparse)[0].0), Kind::Mapping);
    assert_eq!(kind_at(0), Kind::Unusable);
    assert_eq!(kind_at(1), Kind::Superblock);
    assert_eq!(kind_at(2), Kind::GroupDescriptors);
}

#[test]
fn a_file_in_many_pieces_is_named() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let image = lab.make("16M", &["-t", "ext2", "-b", "1024"]).unwrap();
    let mut volume = Volume::new(image);
    let big = volume.lookup("dir/big");
    let before = ext4::usage(memory(&volume.image), &UsageOptions::default()).unwrap();
    // Its direct blocks in reverse order are as many pieces.
    volume.edit_inode(big, |inode| {
        for n in 0..6 {
            let (a, b) = (n * 4, (11 - n) * 4);
            for k in 0..4 {
                inode.block.swap(a + k, b + k);
            }
        }
    });
    let usage = ext4::usage(memory(&volume.image), &UsageOptions::default()).unwrap();
    assert_adds_up(&usage, "reversed");
    let found = |usage: &ext4::Usage| {
        let file = usage.fragmented.iter().find(|f| f.ino == u64::from(big.0));
        file.map_or(0, |f| f.pieces)
    };
    assert!(
        found(&usage) >= found(&before) + 10,
        "{:?}",
        usage.fragmented
    );
    assert!(usage.count(Kind::FragmentedFile) > 0);
    assert_eq!(usage.count(Kind::Free), before.count(Kind::Free));
}

#[test]
fn damage_leaves_the_rest() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let image = lab.make("16M", &["-t", "ext4", "-b", "1024"]).unwrap();
    let whole = ext4::usage(memory(&image), &UsageOptions::default()).unwrap();
    let mut volume = Volume::new(image.clone());
    volume.edit_block_bitmap(0, |bits| bits[700] ^= 0x10);
    let sparse = volume.lookup("sparse");
    let tree = volume.extent_blocks(sparse)[0];
    volume.block(tree)[0] ^= 1;
    let usage = ext4::usage(memory(&volume.image), &UsageOptions::default()).unwrap();
    assert_adds_up(&usage, "damaged");
    assert!(usage.is_damaged());
    // What the broken map led to has no owner that can be found.
    assert!(usage.count(Kind::Unclaimed) > 0);
    assert_eq!(usage.count(Kind::InodeTable), whole.count(Kind::InodeTable));
    // A table that cannot be read is named, and everything else is there.
    let runs = whole.runs.as_ref().unwrap();
    let table = runs.iter().find(|r| r.kind == Kind::InodeTable).unwrap();
    let faulty = FaultyDevice::new(memory(&image), 1);
    let place = (table.first + 20) * 1024;
    faulty.add(
        Rule::new(Ops::READ, Fault::Errno(5))
            .range(place..place + 4096)
            .always(),
    );
    let usage = ext4::usage(Arc::new(faulty), &UsageOptions::default()).unwrap();
    assert_adds_up(&usage, "unreadable");
    assert!(
        usage.unread.iter().any(|u| u.what == "inode table"),
        "{:?}",
        usage.unread
    );
    // The root's inode and its directory say where the first table is, and whether features fit.
    let root = Volume::new(image.clone());
    let root = root.blocks(Ino::ROOT)[0].0;
    for (what, block) in [("first inodes", table.first), ("root directory", root)] {
        let faulty = FaultyDevice::new(memory(&image), 1);
        faulty.add(
            Rule::new(Ops::READ, Fault::Errno(5))
                .range(block * 1024..(block + 1) * 1024)
                .always(),
        );
        let usage = ext4::usage(Arc::new(faulty), &UsageOptions::default());
        let usage = usage.unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_adds_up(&usage, what);
        assert!(!usage.unread.is_empty() && usage.is_damaged(), "{what}");
        for kind in [Kind::InodeTable, Kind::BlockBitmap, Kind::Journal] {
            if kind != Kind::Journal || what == "root directory" {
                assert_eq!(usage.count(kind), whole.count(kind), "{what}: {kind:?}");
            }
        }
    }
}

/// Blocks at the end of the number range: sums with them do not fit.
#[test]
fn places_at_the_end_of_all_numbers_are_outside() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    for args in ["-t ext4 -b 1024 -g 1024", "-t ext4 -b 1024"] {
        let list: Vec<&str> = args.split(' ').collect();
        let clean = Volume::new(lab.make("8M", &list).unwrap());
        for group in 0..clean.geo.groups_count {
            for back in 0..4 {
                let mut v = clean.clone();
                v.edit_desc(group, |d| {
                    d.block_bitmap = BlockNo(u64::MAX - back);
                    d.inode_bitmap = BlockNo(u64::MAX - back);
                    d.inode_table = BlockNo(u64::MAX - back);
                });
                let what = format!("{args}: group {group}, {back} before the last");
                let usage = ext4::usage(memory(&v.image), &UsageOptions::default());
                let usage = usage.unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_adds_up(&usage, &what);
                assert!(usage.is_damaged(), "{what}");
            }
        }
    }
}

#[test]
fn hostile_ext4_ends_and_adds_up() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let image = lab.make("16M", &["-t", "ext4", "-b", "1024"]).unwrap();
    let seed = 20_261_126;
    println!("seed {seed}");
    let mut rng = Rng::new(seed);
    let mut answered = 0;
    for round in 0..60 {
        let mut bad = image.clone();
        for _ in 0..1 + rng.below(40) {
            // The first 2 MiB hold the metadata.
            let at = 1024 + rng.below(2 << 20) as usize;
            bad[at] = rng.next() as u8;
        }
        if let Ok(usage) = ext4::usage(memory(&bad), &options(1000, 500)) {
            assert_adds_up(&usage, &format!("round {round}"));
            answered += 1;
        }
    }
    assert!(answered > 5, "{answered}");
}

#[test]
fn f2fs_blocks_count_as_the_checkpoint_counts_them() {
    if !f2fs_tools() {
        return;
    }
    let lab = F2Lab::new();
    let cases: [(&str, &[&str], bool); 4] = [
        ("100M", &[], true),
        ("100M", &["-O", FULL], true),
        ("300M", &["-s", "2"], false),
        ("200G", &[], false),
    ];
    for (size, args, fill) in cases {
        let path = lab.make("usage.img", size, args, fill);
        let open = || blockwright_device::open(&path, OpenMode::read_only()).unwrap();
        let usage = f2fs::usage(open(), &UsageOptions::default()).unwrap();
        assert_sound(&usage, size);
        let data = [
            Kind::HotNode,
            Kind::WarmNode,
            Kind::ColdNode,
            Kind::HotData,
            Kind::WarmData,
            Kind::ColdData,
        ];
        let valid: u64 = data.iter().map(|kind| usage.count(*kind)).sum();
        let report = f2fs::check(open(), &f2fs::CheckOptions::default()).unwrap();
        assert_eq!(valid, report.stats.used_blocks, "{args:?}");
        let main = valid + usage.count(Kind::Free) + usage.count(Kind::Stale);
        assert_eq!(main, report.stats.blocks, "{args:?}");
        let written = usage.cells.iter().filter_map(|cell| cell.written).max();
        assert!(
            written.is_some() && written <= usage.now.map(|n| n + 1),
            "{args:?}"
        );
    }
}

#[test]
fn hostile_f2fs_ends_and_adds_up() {
    if !f2fs_tools() {
        return;
    }
    let lab = F2Lab::new();
    let path = lab.make("usage.img", "64M", &[], false);
    let image = std::fs::read(&path).unwrap();
    let seed = 20_261_127;
    println!("seed {seed}");
    let mut rng = Rng::new(seed);
    let mut answered = 0;
    for round in 0..40 {
        let mut bad = image.clone();
        for _ in 0..1 + rng.below(200) {
            let at = rng.below(16 << 20) as usize;
            bad[at] = rng.next() as u8;
        }
        if let Ok(usage) = f2fs::usage(memory(&bad), &options(100, 50)) {
            assert_adds_up(&usage, &format!("round {round}"));
            answered += 1;
        }
    }
    assert!(answered > 5, "{answered}");
    // Without a checkpoint, the areas are still known.
    let mut bad = image;
    bad[2 << 20..6 << 20].fill(0xA5);
    let usage = f2fs::usage(memory(&bad), &UsageOptions::default());
    let usage = usage.unwrap();
    assert_adds_up(&usage, "no checkpoint");
    assert!(usage.count(Kind::Unknown) > 0 && usage.count(Kind::Nat) > 0);
    assert!(!usage.unread.is_empty());
}
