//! Randomly damaged f2fs volumes: our verdict against fsck.f2fs's, before and after our repair; and
//! volumes damaged anyhow, that must not make a check panic or hang.
//!
//! `BLOCKWRIGHT_CORPUS=first..last` runs these cases only (and says more about them).

use blockwright_test_support::lab as common;

use std::collections::BTreeMap;

use blockwright_check::Mode;
use blockwright_check::f2fs::Report;
use blockwright_device::BlockDevice;
use blockwright_ondisk::f2fs::RawCheckpoint;
use blockwright_ondisk::f2fs::superblock::RawSuperblock;
use blockwright_ondisk::f2fs::{BLOCK_SIZE, BlockAddr, FileKind, Geometry, Ino, Inode, Nid};
use common::Rng;
use common::f2fs::{F2Lab, F2Volume, FULL, f2fs_tools, names, repair_f2fs, show, verify_f2fs};
use common::verdict::fsck_f2fs_silent;
use zerocopy::{FromBytes, IntoBytes};

/// Blocks of metadata, by what they are.
struct Map {
    inodes: Vec<BlockAddr>,
    nodes: Vec<BlockAddr>,
    dirs: Vec<BlockAddr>,
    nat: Vec<BlockAddr>,
    sit: Vec<BlockAddr>,
    ssa: Vec<BlockAddr>,
    pack: Vec<BlockAddr>,
}

impl Map {
    fn of(v: &F2Volume) -> Self {
        let geo = &v.geo;
        let cp = &v.pack.checkpoint;
        let mut map = Self {
            inodes: Vec::new(),
            nodes: Vec::new(),
            dirs: Vec::new(),
            nat: vec![geo.nat_block(0, cp.nat_bitmap.get(0)).unwrap()],
            sit: vec![geo.sit_block(0, cp.sit_bitmap.get(0)).unwrap()],
            ssa: Vec::new(),
            pack: Vec::new(),
        };
        let start = geo.pack_start(v.pack.which).0;
        let total = cp.raw.cp_pack_total_block_count.get();
        map.pack.extend((start..start + total).map(BlockAddr));
        for nid in 3..455 {
            let entry = v.nat_entry(Nid(nid));
            if entry.is_free() {
                continue;
            }
            let (segment, _) = geo.segment_of(entry.block).unwrap();
            map.ssa.push(geo.ssa_block(segment).unwrap());
            if entry.ino.0 != nid {
                map.nodes.push(entry.block);
                continue;
            }
            map.inodes.push(entry.block);
            let block = v.block(entry.block);
            let inode = Inode::parse(&block, Ino(nid), geo).unwrap();
            if inode.kind() == Some(FileKind::Directory) && inode.inline.bits() & 4 == 0 {
                let stored = v.addresses(Ino(nid)).into_iter().filter(|b| b.is_stored());
                map.dirs.extend(stored);
            }
        }
        map
    }

    fn target(&self, rng: &mut Rng) -> (BlockAddr, usize, &'static str) {
        let (list, span, what) = match rng.below(100) {
            0..45 => (&self.inodes, 4096, "inode"),
            45..52 => (&self.nodes, 4096, "node"),
            52..70 => (&self.dirs, 4096, "directory"),
            70..80 => (&self.nat, 336 * 9, "NAT"),
            80..90 => (&self.sit, 24 * 74, "SIT"),
            90..95 => (&self.ssa, 3584, "SSA"),
            _ => (&self.pack, 4096, "checkpoint"),
        };
        let n = rng.below(list.len() as u64) as usize;
        // Directories and the first inodes are few, and worth more.
        let n = if rng.below(3) == 0 { n % 16 } else { n };
        (list[n % list.len()], span, what)
    }
}

/// Damages a volume, and makes inodes' checksums right again half of the time. What was done.
fn damage(v: &F2Volume, map: &Map, rng: &mut Rng) -> String {
    let (block, span, what) = map.target(rng);
    let mut bytes = v.block(block);
    let span = match rng.below(3) {
        0 => span,
        1 => span.min(512),
        _ => span.min(100),
    };
    let at = rng.below(span as u64) as usize;
    let how = match rng.below(10) {
        0..4 => {
            bytes[at] ^= 1 << rng.below(8);
            "bit"
        }
        4..7 => {
            bytes[at] = rng.next() as u8;
            "byte"
        }
        7 => {
            let end = (at + 4).min(BLOCK_SIZE);
            rng.bytes(&mut bytes[at..end]);
            "word"
        }
        8 => {
            let end = (at + 40).min(BLOCK_SIZE);
            bytes[at..end].fill(0);
            "zeroes"
        }
        _ => {
            bytes[at] = bytes[at].wrapping_add(1);
            "increment"
        }
    };
    if what == "inode" && rng.below(4) != 0 {
        let ino = u32::from_le_bytes(bytes[4072..4076].try_into().unwrap());
        blockwright_ondisk::f2fs::inode::set_checksum(&mut bytes, Ino(ino), &v.geo);
    }
    v.put(block, &bytes);
    format!("{what} block {block}, byte {at}: {how}")
}

fn cases(count: u64) -> (std::ops::Range<u64>, bool) {
    match std::env::var("BLOCKWRIGHT_CORPUS") {
        Ok(range) => {
            let (first, last) = range.split_once("..").expect("first..last");
            (first.parse().unwrap()..last.parse().unwrap(), true)
        }
        Err(_) => (0..count, false),
    }
}

fn said(text: &str) -> String {
    let bad = |l: &&str| {
        ["ASSERT", "FIX", "Fail", "rror"]
            .iter()
            .any(|w| l.contains(w))
    };
    text.lines()
        .filter(bad)
        .take(6)
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn damaged_volumes_agree_with_fsck() {
    if !f2fs_tools() {
        return;
    }
    let lab = F2Lab::new();
    let base = lab.volume(&["-O", FULL]);
    let map = Map::of(&base);
    let (range, verbose) = cases(200);
    let mut wrong = String::new();
    let (mut damaged, mut clean_both, mut repaired_clean) = (0, 0, 0);
    let mut more: BTreeMap<&str, u32> = BTreeMap::new();
    // Seeds of longer runs that something was found by.
    let found: &[u64] = if verbose { &[] } else { &[101_858] };
    for seed in range.chain(found.iter().copied()) {
        let mut rng = Rng::new(seed * 77 + 5);
        let v = base.copy();
        let what = damage(&v, &map, &mut rng);
        let (clean, text) = lab.fsck(&v.device);
        let report: Report = match verify_f2fs(&v.device) {
            Ok(report) => report,
            Err(e) => {
                if clean {
                    wrong += &format!("seed {seed}: {what}: {e}, fsck.f2fs: clean\n");
                }
                continue;
            }
        };
        if verbose {
            eprintln!("seed {seed}: {what}\n{}{}", show(&report), said(&text));
        }
        match (report.is_clean(), clean) {
            (true, true) => clean_both += 1,
            (true, false) => {
                wrong += &format!(
                    "seed {seed}: {what}: only fsck.f2fs tells:\n{}\n",
                    said(&text)
                );
            }
            (false, false) => damaged += 1,
            (false, true) => {
                let why = fsck_f2fs_silent(&report);
                match why {
                    Some(why) => *more.entry(why).or_default() += 1,
                    None => {
                        wrong += &format!("seed {seed}: {what}: only we tell:\n{}", show(&report));
                    }
                }
            }
        }
        if report.is_clean() {
            continue;
        }
        let (report, after) = repair_f2fs(&v.device, Mode::Yes);
        let report = report.unwrap();
        if report.has_uncorrected() {
            let kinds = names(&report);
            // Where a quota file has no room for a new owner the next mount counts anew.
            let known = ["QuotaInode", "QuotaUsage", "RootMissing"];
            if !kinds.iter().any(|k| known.contains(&k.as_str())) {
                wrong += &format!("seed {seed}: {what}: left:\n{}", show(&report));
            }
            continue;
        }
        let again = verify_f2fs(&after).unwrap();
        if !again.is_clean() {
            wrong += &format!("seed {seed}: {what}: repaired, but:\n{}", show(&again));
        }
        let (clean, text) = lab.fsck(&after);
        if clean {
            repaired_clean += 1;
        } else {
            wrong += &format!(
                "seed {seed}: {what}: repaired, fsck.f2fs:\n{}\n",
                said(&text)
            );
        }
    }
    println!(
        "{damaged} damaged to both, {clean_both} clean to both, {repaired_clean} repaired; only to us: {more:?}"
    );
    assert!(wrong.is_empty(), "{wrong}");
    assert!(verbose || damaged > 60 && repaired_clean > 60);
}

/// Whole blocks of noise, and one block in the place of another.
#[test]
fn any_damage_is_survived() {
    if !f2fs_tools() {
        return;
    }
    let lab = F2Lab::new();
    let base = lab.volume(&["-O", FULL]);
    let map = Map::of(&base);
    let geo: &Geometry = &base.geo;
    let (range, _) = cases(300);
    let mut repaired = 0;
    for seed in range {
        let mut rng = Rng::new(seed * 131 + 7);
        let v = base.copy();
        for _ in 0..1 + rng.below(6) {
            let (to, _, _) = map.target(&mut rng);
            match rng.below(4) {
                0 => {
                    let (from, _, _) = map.target(&mut rng);
                    let bytes = v.block(from);
                    v.put(to, &bytes);
                }
                1 => {
                    let mut bytes = v.block(to);
                    let at = rng.below(BLOCK_SIZE as u64 - 64) as usize;
                    rng.bytes(&mut bytes[at..at + 64]);
                    if rng.below(2) == 0 {
                        let ino = u32::from_le_bytes(bytes[4072..4076].try_into().unwrap());
                        blockwright_ondisk::f2fs::inode::set_checksum(&mut bytes, Ino(ino), geo);
                    }
                    v.put(to, &bytes);
                }
                2 => v.put(to, &vec![0xFF; BLOCK_SIZE]),
                _ => {
                    let mut bytes = vec![0; BLOCK_SIZE];
                    rng.bytes(&mut bytes);
                    v.put(to, &bytes);
                }
            }
        }
        let (report, after) = repair_f2fs(&v.device, Mode::Yes);
        let Ok(report) = report else { continue };
        if !report.has_uncorrected() {
            let again = verify_f2fs(&after).unwrap();
            assert!(again.is_clean(), "seed {seed}:\n{}", show(&again));
            repaired += 1;
        }
        assert_eq!(after.geometry().bytes, v.device.geometry().bytes);
    }
    println!("{repaired} repaired");
    assert!(repaired > 50, "{repaired}");
}

/// Superblocks and checkpoints whose checksums are right, and whose fields are anything.
#[test]
fn any_superblock_and_checkpoint_is_survived() {
    if !f2fs_tools() {
        return;
    }
    let lab = F2Lab::new();
    let base = lab.volume(&["-O", FULL]);
    let mut refused = 0;
    for seed in 0..400u64 {
        let mut rng = Rng::new(seed * 17 + 3);
        let mut v = base.copy();
        if seed % 2 == 0 {
            let mut block = v.block(BlockAddr(0));
            let at = 1024 + rng.below(2800) as usize / [1, 28][seed as usize / 2 % 2];
            rng.bytes(&mut block[at..at + 4]);
            let mut raw = RawSuperblock::read(&block).unwrap();
            raw.set_checksum();
            for copy in 0..2 {
                v.put(BlockAddr(copy), &raw.to_block());
            }
        } else {
            v.edit_checkpoint(|cp| {
                let mut bytes = cp.raw.as_bytes().to_vec();
                // The pack's size says where its end is written.
                let at = [rng.below(132), 132, 140 + rng.below(12)][seed as usize / 2 % 3];
                bytes[at as usize] = rng.next() as u8;
                cp.raw = RawCheckpoint::read_from_bytes(&bytes).unwrap();
            });
        }
        let (report, after) = repair_f2fs(&v.device, Mode::Yes);
        match report {
            Ok(report) if !report.has_uncorrected() => {
                let again = verify_f2fs(&after).unwrap();
                assert!(again.is_clean(), "seed {seed}:\n{}", show(&again));
            }
            Ok(_) => {}
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 20, "{refused}");
}
