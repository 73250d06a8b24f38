//! Damaged fields of every structure, with the checksum over them made right again: what reaches the code behind the
//! checksums. `BLOCKWRIGHT_FIELDS=FROM..TO` runs other rounds than the test's own.

use crate::image::{self, BLOCK, Image};
use crate::judge::{Format, judge};
use crate::{VALUES, common};
use blockwright::Volume;
use blockwright_device::sim::rng::SplitMix64;
use blockwright_ondisk::ext4::checksum::{JournalSeed, inode_has_checksum_hi, journal_superblock};
use blockwright_ondisk::ext4::{BlockNo, GroupNo, Ino, InodeSeed, MetaSeed};
use common::below;

const SUPERBLOCK: usize = 1024;
/// `i_flags`: the map is a tree of extents; the directory has an index.
const EXTENTS: u32 = 0x8_0000;
const INDEXED: u32 = 0x1000;
const DIRECTORY: u16 = 0x4000;
const JOURNAL_MAGIC: u32 = 0xC03B_3998;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Kind {
    Superblock,
    Group(u32),
    BlockBitmap(u32),
    InodeBitmap(u32),
    Inode(u32),
    Leaf(u32),
    Index(u32),
    Extents(u32),
    Attributes,
    JournalSuperblock,
    JournalBlock,
}

#[derive(Clone, Copy, Debug)]
struct Target {
    kind: Kind,
    at: usize,
    bytes: usize,
}

/// Where everything is, from the raw format.
struct Fields {
    checksums: bool,
    targets: Vec<Target>,
}

impl Fields {
    fn of(image: &Image) -> Self {
        let mut f = Fields {
            checksums: image.u32(SUPERBLOCK + 0x64) & 0x400 != 0,
            targets: Vec::new(),
        };
        f.add(Kind::Superblock, SUPERBLOCK, 1024);
        let inodes = image.u32(SUPERBLOCK);
        let groups = inodes.div_ceil(image.u32(SUPERBLOCK + 0x28));
        for g in 0..groups {
            let desc = image.group_desc(g as usize);
            let size = image.group_desc(1) - image.group_desc(0);
            f.add(Kind::Group(g), desc, size);
            f.add(Kind::BlockBitmap(g), image.block_bitmap(g as usize), BLOCK);
            f.add(Kind::InodeBitmap(g), image.inode_bitmap(g as usize), BLOCK);
        }
        for ino in 1..=inodes {
            f.inode(image, ino);
        }
        if image.u32(SUPERBLOCK + 0x5C) & 4 != 0 {
            let journal = image.journal();
            f.add(Kind::JournalSuperblock, journal, BLOCK);
            for n in 1..40 {
                let at = journal + n * BLOCK;
                if image.u32(at).swap_bytes() == JOURNAL_MAGIC {
                    f.add(Kind::JournalBlock, at, BLOCK);
                }
            }
        }
        f
    }

    fn add(&mut self, kind: Kind, at: usize, bytes: usize) {
        self.targets.push(Target { kind, at, bytes });
    }

    fn inode(&mut self, image: &Image, ino: u32) {
        let at = image.inode(u64::from(ino));
        let (mode, flags) = (image.u16(at), image.u32(at + 0x20));
        if mode == 0 && ino > 2 {
            return;
        }
        let size = usize::from(image.u16(SUPERBLOCK + 0x58));
        self.add(Kind::Inode(ino), at, size);
        let attributes = image.u32(at + 0x68) as usize;
        if attributes != 0 {
            self.add(Kind::Attributes, attributes * BLOCK, BLOCK);
        }
        // The journal's blocks are told by their magic numbers.
        if flags & EXTENTS != 0 && mode != 0 && ino != 8 {
            let directory = mode & 0xF000 == DIRECTORY;
            self.tree(image, ino, at + 40, 0, directory, flags & INDEXED != 0);
        }
    }

    fn tree(&mut self, image: &Image, ino: u32, at: usize, depth: u16, dir: bool, indexed: bool) {
        if image.u16(at) != 0xF30A || depth > 5 {
            return;
        }
        let leaf = image.u16(at + 6) == 0;
        for n in 0..usize::from(image.u16(at + 2)) {
            let entry = at + 12 + 12 * n;
            if !leaf {
                let child = image.u32(entry + 4) as usize * BLOCK;
                self.add(Kind::Extents(ino), child, BLOCK);
                self.tree(image, ino, child, depth + 1, dir, indexed);
                continue;
            }
            for k in 0..usize::from(image.u16(entry + 4)).min(64) {
                let block = (image.u32(entry + 8) as usize + k) * BLOCK;
                let root = indexed && image.u32(entry) == 0 && k == 0;
                let node = image.u32(block) == 0 && usize::from(image.u16(block + 4)) == BLOCK;
                if dir && (root || indexed && node) {
                    self.add(Kind::Index(ino), block, BLOCK);
                } else if dir {
                    self.add(Kind::Leaf(ino), block, BLOCK);
                }
            }
        }
    }

    /// One of a kind that is drawn first, so that the many do not hide the few.
    fn draw(&self, rng: &mut SplitMix64) -> Target {
        let name = |k: Kind| std::mem::discriminant(&k);
        let mut kinds: Vec<_> = self.targets.iter().map(|t| t.kind).collect();
        kinds.dedup_by_key(|k| name(*k));
        let mut seen = Vec::new();
        kinds.retain(|k| !seen.contains(&name(*k)) && (seen.push(name(*k)), true).1);
        let kind = kinds[below(rng, kinds.len() as u64) as usize];
        let all: Vec<&Target> = (self.targets.iter())
            .filter(|t| name(t.kind) == name(kind))
            .collect();
        *all[below(rng, all.len() as u64) as usize]
    }
}

/// How every checksum begins.
fn seed(image: &Image) -> MetaSeed {
    if image.u32(SUPERBLOCK + 0x60) & 0x2000 != 0 {
        return MetaSeed(image.u32(SUPERBLOCK + 0x270));
    }
    let uuid = image.0[SUPERBLOCK + 0x68..][..16].try_into().expect("16");
    MetaSeed::from_uuid(uuid)
}

fn inode_seed(image: &Image, ino: u32) -> InodeSeed {
    let generation = image.u32(image.inode(u64::from(ino)) + 0x64);
    seed(image).inode(Ino(ino), generation)
}

/// Makes the checksum over a structure right. Places and seeds are those of the `whole` volume: a damaged one may not tell
/// them any more.
fn sign(image: &mut Image, whole: &Image, t: Target) {
    let bytes = image.0[t.at..t.at + t.bytes].to_vec();
    let le = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let seed = seed(whole);
    match t.kind {
        Kind::Superblock => image.sign_superblock(),
        Kind::Group(g) => {
            let sum = seed.group_desc(GroupNo(g), &bytes);
            image.put16(t.at + 0x1E, sum);
        }
        Kind::BlockBitmap(g) | Kind::InodeBitmap(g) => {
            let inodes = matches!(t.kind, Kind::InodeBitmap(_));
            let bits = whole.u32(SUPERBLOCK + if inodes { 0x28 } else { 0x20 }) as usize;
            let sum = seed.bitmap(&bytes[..(bits / 8).min(BLOCK)]);
            let at = whole.group_desc(g as usize);
            let (low, high) = if inodes { (0x1A, 0x3A) } else { (0x18, 0x38) };
            image.put16(at + low, sum as u16);
            let bytes = whole.group_desc(1) - whole.group_desc(0);
            if bytes == 64 {
                image.put16(at + high, (sum >> 16) as u16);
            }
            let kind = Kind::Group(g);
            sign(image, whole, Target { kind, at, bytes });
        }
        Kind::Inode(ino) => {
            // Its generation is in it.
            let generation = image.u32(t.at + 0x64);
            let sum = seed.inode(Ino(ino), generation).inode(&bytes);
            image.put16(t.at + 0x7C, sum as u16);
            if inode_has_checksum_hi(&bytes) {
                image.put16(t.at + 0x82, (sum >> 16) as u16);
            }
        }
        Kind::Leaf(ino) => {
            let sum = inode_seed(whole, ino).dir_leaf(&bytes);
            image.put32(t.at + BLOCK - 4, sum);
        }
        Kind::Index(ino) => {
            // A root begins with the entries of `.` and `..`, a node with one that is empty.
            let at = if le(4) == BLOCK { 0x08 } else { 0x20 };
            let (limit, count) = (le(at), le(at + 2));
            let (used, tail) = (at + 8 * count, at + 8 * limit);
            if let Some(sum) = inode_seed(whole, ino).dir_index(&bytes, used, tail)
                && tail + 8 <= BLOCK
            {
                image.put32(t.at + tail + 4, sum);
            }
        }
        Kind::Extents(ino) => {
            let tail = 12 + 12 * le(4);
            if let Some(sum) = inode_seed(whole, ino).extent_block(&bytes, tail)
                && tail + 4 <= BLOCK
            {
                image.put32(t.at + tail, sum);
            }
        }
        Kind::Attributes => {
            let block = BlockNo((t.at / BLOCK) as u64);
            image.put32(t.at + 0x10, seed.xattr_block(block, &bytes));
        }
        Kind::JournalSuperblock => {
            let raw: &[u8; 1024] = bytes[..1024].try_into().expect("1024");
            image.put32(t.at + 0xFC, journal_superblock(raw).swap_bytes());
        }
        Kind::JournalBlock => {
            let uuid = &whole.0[whole.journal() + 0x30..][..16];
            let seed = JournalSeed::from_uuid(uuid.try_into().expect("16"));
            let commit = bytes[4..8] == 2u32.to_be_bytes();
            let (at, sum) = match commit {
                true => (0x10, seed.commit_block(&bytes)),
                false => (BLOCK - 4, seed.block_with_tail(&bytes)),
            };
            image.put32(t.at + at, sum.swap_bytes());
        }
    }
}

fn mutate(image: &mut Image, f: &Fields, rng: &mut SplitMix64) -> String {
    let mut what = String::new();
    let whole = image.clone();
    for _ in 0..=below(rng, 3) {
        let t = f.draw(rng);
        let span = match below(rng, 3) {
            0 => t.bytes,
            1 => t.bytes.min(256),
            _ => t.bytes.min(64),
        };
        let at = t.at + below(rng, span as u64 / 2) as usize * 2;
        let value = match below(rng, 4) {
            0 => below(rng, image::VOLUME_BYTES / BLOCK as u64) as u32,
            1 => rng.next_u64() as u32,
            _ => VALUES[below(rng, VALUES.len() as u64) as usize],
        };
        let how = below(rng, 6);
        let fits = at + 4 <= t.at + t.bytes;
        match how {
            0 if fits => image.put32(at, value),
            1 if fits => image.put32(at, value.swap_bytes()),
            2 => image.put16(at, (value as u16).swap_bytes()),
            3 => image.0[at] ^= 1 << below(rng, 8),
            4 => {
                // Another structure's, or a part of it.
                let from = f.draw(rng);
                let n = (1usize << below(rng, 10)).min(t.bytes).min(from.bytes);
                let part = whole.0[from.at..from.at + n].to_vec();
                image.0[t.at..t.at + n].copy_from_slice(&part);
            }
            _ => image.put16(at, value as u16),
        }
        if f.checksums {
            sign(image, &whole, t);
        } else if t.kind == Kind::Superblock {
            image.sign_superblock();
        }
        what += &format!("{:?} at {}: {how} {value:#x}; ", t.kind, at - t.at);
    }
    what
}

/// A volume with a journal that has transactions to replay.
pub fn dirty(features: &str) -> Image {
    let good = image::make(features);
    let device = good.device();
    let v = Volume::open_device(device.clone()).expect("opens");
    for round in 0..4 {
        let dir = format!("/in-the-journal-{round}");
        v.create_dir(&dir).expect("made");
        v.write(format!("{dir}/f"), vec![round; 3000])
            .expect("written");
        v.set_len("/holes", 100_000 - u64::from(round) * 20_000)
            .expect("cut");
        v.sync().expect("durable");
    }
    let copy = Image(device.to_vec());
    v.close().expect("closed");
    copy
}

fn fields(features: &str, replay: bool, own_seed: u64, rounds: u64, once: &[u64]) {
    let good = match replay {
        true => dirty(features),
        false => image::make(features),
    };
    let f = Fields::of(&good);
    assert!(f.targets.len() > 30, "{} places", f.targets.len());
    let seed = common::seed(own_seed);
    crate::rounds(rounds, once, |round| {
        let mut rng = SplitMix64::new(seed.wrapping_add(round * 6151));
        let mut bad = good.clone();
        let what = mutate(&mut bad, &f, &mut rng);
        let what = format!("ext4 {features}, seed {seed} round {round}: {what}");
        judge(Format::Ext4, &what, &bad.device());
    });
}

/// The places that were found are signed as they are: nothing changes.
#[test]
fn signing_what_is_right_changes_nothing() {
    for (features, replay) in [("", true), ("orphan_file,inline_data", false)] {
        let good = match replay {
            true => dirty(features),
            false => image::make(features),
        };
        let f = Fields::of(&good);
        for t in &f.targets {
            let mut copy = good.clone();
            sign(&mut copy, &good, *t);
            assert!(copy.0 == good.0, "{features}: {t:?}");
        }
    }
}

#[test]
fn behind_checksums() {
    fields("", false, 41_001, 60, &[]);
}

#[test]
fn behind_checksums_with_everything() {
    fields(
        "orphan_file,inline_data,quota,project",
        false,
        42_001,
        60,
        &[],
    );
}

#[test]
fn behind_checksums_in_the_journal() {
    fields("", true, 43_001, 60, &[]);
}

#[test]
fn fields_without_checksums() {
    fields("^metadata_csum,uninit_bg", true, 44_001, 40, &[]);
}
