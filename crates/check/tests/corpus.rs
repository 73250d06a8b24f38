//! Randomly damaged volumes: our verdict against e2fsck's, before and after our repair.
//!
//! `BLOCKWRIGHT_CORPUS=first..last` runs these cases only (and says more about them).

use blockwright_test_support::lab as common;

use std::collections::BTreeSet;

use blockwright_check::Mode;
use blockwright_ondisk::ext4::extent::{ExtentNode, NodePlace, NodeRules};
use blockwright_ondisk::ext4::inode::{self, InodeFlags};
use blockwright_ondisk::ext4::{BlockNo, FileKind, GroupDesc, Ino, Inode, Superblock, group_desc};
use common::verdict::{e2fsck_clean, e2fsck_silent};
use common::{Lab, Rng, repair, show, tools, verify};

/// The metadata of a volume.
struct Map {
    sb: Superblock,
    block: usize,
    descs: Vec<BlockNo>,
    bitmaps: Vec<BlockNo>,
    /// Byte offsets of inodes in use.
    inodes: Vec<(Ino, usize)>,
    dirs: Vec<BlockNo>,
    /// Extent, indirect and attribute blocks.
    trees: Vec<BlockNo>,
    journal: Option<BlockNo>,
}

impl Map {
    fn of(image: &[u8]) -> Self {
        let sb = Superblock::parse(&image[1024..], None).unwrap();
        let geo = &sb.geo;
        let block = geo.block_len();
        let at = |b: BlockNo| geo.block_offset(b) as usize;
        let mut map = Self {
            block,
            descs: (0..geo.desc_blocks)
                .filter_map(|n| geo.desc_block(n))
                .collect(),
            bitmaps: Vec::new(),
            inodes: Vec::new(),
            dirs: Vec::new(),
            trees: Vec::new(),
            journal: None,
            sb: sb.clone(),
        };
        for group in geo.groups() {
            let (index, offset) = geo.desc_position(group);
            let place = at(geo.desc_block(index).unwrap()) + offset;
            let desc = GroupDesc::decode(&image[place..], geo).unwrap();
            map.bitmaps.extend([desc.block_bitmap, desc.inode_bitmap]);
            for index in 0..geo.inodes_per_group {
                let ino = geo.ino_at(group, index).unwrap();
                let (b, offset) = geo.inode_location(ino, desc.inode_table).unwrap();
                let place = at(b) + offset;
                let raw = &image[place..place + usize::from(geo.inode_size)];
                let Ok(inode) = Inode::decode(raw, geo, ino) else {
                    continue;
                };
                if inode.links == 0 {
                    continue;
                }
                map.inodes.push((ino, place));
                if inode.file_acl.0 != 0 {
                    map.trees.push(inode.file_acl);
                }
                let is_dir = inode.kind() == Some(FileKind::Directory);
                let mut blocks = Vec::new();
                if inode.flags.contains(InodeFlags::EXTENTS) {
                    let mut nodes = vec![(inode.block.to_vec(), NodePlace::Inode)];
                    while let Some((bytes, place)) = nodes.pop() {
                        let rules = NodeRules {
                            depth: None,
                            ..NodeRules::ROOT
                        };
                        let node = ExtentNode::parse(&bytes, place, rules, geo).unwrap();
                        for e in node.extents() {
                            blocks.extend((0..u64::from(e.len)).map(|n| BlockNo(e.physical.0 + n)));
                        }
                        for i in node.indexes() {
                            map.trees.push(i.child);
                            nodes.push((
                                image[at(i.child)..at(i.child) + block].to_vec(),
                                NodePlace::Block(i.child),
                            ));
                        }
                    }
                } else if inode.maps_blocks(geo) {
                    for n in 0..15 {
                        let word = inode.block[n * 4..n * 4 + 4].try_into().unwrap();
                        let b = BlockNo(u64::from(u32::from_le_bytes(word)));
                        if b.0 != 0 && n < 12 {
                            blocks.push(b);
                        } else if b.0 != 0 {
                            map.trees.push(b);
                        }
                    }
                }
                if is_dir {
                    map.dirs.extend(&blocks);
                }
                if ino == Ino::JOURNAL {
                    map.journal = blocks.first().copied();
                }
            }
        }
        map
    }

    /// Where to damage: a range of bytes, and what it is.
    fn target(&self, rng: &mut Rng) -> (usize, usize, &'static str) {
        let geo = &self.sb.geo;
        let pick = |list: &[BlockNo], rng: &mut Rng| {
            let b = list[rng.below(list.len() as u64) as usize];
            (geo.block_offset(b) as usize, self.block)
        };
        match rng.below(100) {
            0..10 => (1024, 1024, "superblock"),
            10..20 => {
                let used = geo.groups_count as usize * usize::from(geo.desc_size);
                let (at, len) = pick(&self.descs, rng);
                (at, len.min(used), "descriptors")
            }
            20..32 => {
                let (at, len) = pick(&self.bitmaps, rng);
                (at, len, "bitmap")
            }
            32..68 => {
                let n = rng.below(self.inodes.len() as u64) as usize;
                // Directories and the first inodes are few, and worth more.
                let n = if rng.below(3) == 0 { n % 16 } else { n };
                let at = self.inodes[n % self.inodes.len()].1;
                (at, usize::from(geo.inode_size), "inode")
            }
            68..86 => {
                let (at, len) = pick(&self.dirs, rng);
                (at, len, "directory")
            }
            86..97 if !self.trees.is_empty() => {
                let (at, len) = pick(&self.trees, rng);
                (at, len, "tree or attributes")
            }
            _ => match self.journal {
                Some(b) => (geo.block_offset(b) as usize, 128, "journal superblock"),
                None => (1024, 1024, "superblock"),
            },
        }
    }
}

/// Damages an image. What was done.
fn damage(image: &mut [u8], map: &Map, rng: &mut Rng) -> String {
    let mut what = Vec::new();
    for _ in 0..1 + rng.below(3) / 2 {
        let (at, len, name) = map.target(rng);
        // Most structures have their fields in front.
        let span = match rng.below(3) {
            0 => len,
            1 => len.min(128),
            _ => len.min(64),
        };
        let offset = rng.below(span as u64) as usize;
        let place = at + offset;
        let end = at + len;
        let how = match rng.below(12) {
            0..4 => {
                image[place] ^= 1 << rng.below(8);
                "bit"
            }
            4..7 => {
                image[place] = rng.next() as u8;
                "byte"
            }
            7 | 8 => {
                let end = end.min(place + 4);
                rng.bytes(&mut image[place..end]);
                "word"
            }
            9 => {
                let end = end.min(place + 4 + rng.below(28) as usize);
                image[place..end].fill(0);
                "zeroes"
            }
            10 => {
                let end = end.min(place + rng.below(64) as usize);
                rng.bytes(&mut image[place..end]);
                "noise"
            }
            _ if rng.below(3) == 0 => {
                image[at..end].fill(0);
                "all zeroes"
            }
            _ => {
                image[place] = image[place].wrapping_add(1);
                "increment"
            }
        };
        what.push(format!("{name} at {at:#x}+{offset:#x}: {how}"));
        if rng.below(2) == 0 {
            fix_checksum(image, map, name, place);
            what.push("checksum fixed".to_owned());
        }
    }
    what.join("; ")
}

/// Makes the checksum of damaged inodes, descriptors and superblocks right again, so that what
/// they say is looked at.
fn fix_checksum(image: &mut [u8], map: &Map, name: &str, place: usize) {
    let geo = &map.sb.geo;
    match name {
        "inode" => {
            let size = usize::from(geo.inode_size);
            for (ino, at) in &map.inodes {
                if (*at..*at + size).contains(&place) {
                    inode::set_checksum(&mut image[*at..*at + size], geo, *ino).unwrap();
                }
            }
        }
        "descriptors" => {
            for group in geo.groups() {
                let (index, offset) = geo.desc_position(group);
                let at = geo.block_offset(geo.desc_block(index).unwrap()) as usize + offset;
                let slot = &mut image[at..at + usize::from(geo.desc_size)];
                group_desc::set_checksum(slot, geo, group).unwrap();
            }
        }
        "superblock" if geo.metadata_csum() => {
            let raw: [u8; 1024] = image[1024..2048].try_into().unwrap();
            let sum = blockwright_ondisk::ext4::checksum::superblock(&raw);
            image[2044..2048].copy_from_slice(&sum.to_le_bytes());
        }
        _ => {}
    }
}

const BASES: &[(&str, &[&str])] = &[
    ("8M", &["-t", "ext4", "-b", "1024"]),
    ("16M", &["-t", "ext4", "-b", "4096", "-O", "^has_journal"]),
    ("8M", &["-t", "ext2", "-b", "1024"]),
    ("8M", &["-t", "ext3", "-b", "1024", "-I", "128"]),
    (
        "8M",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-I",
            "512",
            "-O",
            "inline_data,^has_journal",
        ],
    ),
    (
        "16M",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-C",
            "4096",
            "-O",
            "bigalloc,^has_journal",
        ],
    ),
    (
        "8M",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-O",
            "uninit_bg,^metadata_csum,^has_journal",
            "-g",
            "1024",
        ],
    ),
    (
        "8M",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-O",
            "^metadata_csum,^uninit_bg,^has_journal,^64bit",
        ],
    ),
    (
        "12M",
        &[
            "-t",
            "ext4",
            "-b",
            "2048",
            "-O",
            "orphan_file,ea_inode,quota",
        ],
    ),
    (
        "8M",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-O",
            "meta_bg,^resize_inode,^has_journal",
            "-g",
            "1024",
        ],
    ),
];

fn range() -> (u64, u64, bool) {
    match std::env::var("BLOCKWRIGHT_CORPUS") {
        Ok(text) => {
            let (a, b) = text.split_once("..").expect("first..last");
            (a.parse().unwrap(), b.parse().unwrap(), true)
        }
        Err(_) => (0, 400, false),
    }
}

#[test]
fn damaged_volumes() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let bases: Vec<(Vec<u8>, Map)> = BASES
        .iter()
        .filter_map(|(size, args)| lab.make(size, args))
        .map(|image| {
            let map = Map::of(&image);
            (image, map)
        })
        .collect();
    for (image, _) in &bases {
        let report = verify(image).unwrap();
        assert!(report.is_clean(), "{}", show(&report));
    }
    let (first, last, chatty) = range();
    let chatty = chatty && last - first < 20;
    let mut disagreements = Vec::new();
    let mut unrepaired = Vec::new();
    let mut verdicts = BTreeSet::new();
    // Seeds of longer runs that something was found by.
    let found: &[u64] = match (first, last) {
        (0, 400) => &[100_024, 100_886, 100_951],
        _ => &[],
    };
    for case in (first..last).chain(found.iter().copied()) {
        let mut rng = Rng::new(0xB10C_0000 + case);
        let (base, map) = &bases[(case % bases.len() as u64) as usize];
        let args = BASES[(case % bases.len() as u64) as usize].1.join(" ");
        let mut image = base.clone();
        let what = damage(&mut image, map, &mut rng);
        let (code, text) = lab.e2fsck(&image);
        let ours = verify(&image);
        let clean = ours.as_ref().is_ok_and(|r| r.is_clean());
        let said = match &ours {
            Ok(report) => show(report),
            Err(error) => format!("    {error}\n"),
        };
        verdicts.insert(clean);
        if let Ok(path) = std::env::var("BLOCKWRIGHT_KEEP") {
            std::fs::write(path, &image).unwrap();
        }
        if chatty {
            eprintln!("== case {case} [{args}] {what}\n{text}-- ours:\n{said}");
        }
        let agreed = e2fsck_clean(code, &text);
        let excused = agreed && ours.as_ref().is_ok_and(|r| e2fsck_silent(r).is_some());
        if clean != agreed && !excused {
            disagreements.push(format!(
                "== case {case} [{args}] {what}\n-- e2fsck {code}:\n{text}-- ours:\n{said}"
            ));
        }
        if clean || ours.is_err() {
            continue;
        }
        let (report, after) = repair(&image, Mode::Yes);
        let (code, text) = lab.e2fsck(&after);
        let again = verify(&after);
        if chatty {
            eprintln!("-- after repair:\n{text}");
        }
        let clean_again = again.as_ref().is_ok_and(|r| r.is_clean());
        if !e2fsck_clean(code, &text) || !clean_again {
            let report = match &report {
                Ok(report) => show(report),
                Err(error) => format!("    {error}\n"),
            };
            let again = again.map_or_else(|e| e.to_string(), |r| show(&r));
            unrepaired.push(format!(
                "== case {case} [{args}] {what}\n-- repaired:\n{report}-- e2fsck {code}:\n{text}-- ours again:\n{again}"
            ));
        }
    }
    let show_max = if first == 0 && last == 400 { 12 } else { 1000 };
    for text in disagreements.iter().chain(&unrepaired).take(show_max) {
        eprintln!("{text}");
    }
    assert!(
        disagreements.is_empty() && unrepaired.is_empty(),
        "{} verdicts differ, {} volumes not clean after repair (of cases {first}..{last})",
        disagreements.len(),
        unrepaired.len()
    );
}
