//! f2fs: small volumes, and damage to their structures by field, by bit and by block.

use super::lab::Rng;
use super::lab::f2fs::{F2Lab, F2Volume, FULL};
use super::values::Value;
use blockwright::Volume;
use blockwright_device::{MemoryDevice, SharedDevice};
use blockwright_ondisk::f2fs::pack::PackLayout;
use blockwright_ondisk::f2fs::superblock::RawSuperblock;
use blockwright_ondisk::f2fs::{
    BLOCK_SIZE, BlockAddr, FileKind, Ino, Inode, Log, Nid, RawCheckpoint, checksum, inode, xattr,
};
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Superblock,
    Checkpoint,
    Pack,
    Nat,
    Sit,
    Ssa,
    Inode,
    Node,
    Directory,
    /// A node of attributes.
    List,
    /// The first block of a compressed cluster.
    Cluster,
    /// Which blocks of the NAT are full or empty.
    NatBits,
}

pub struct Base {
    pub name: &'static str,
    pub volume: F2Volume,
    targets: Vec<(Kind, BlockAddr)>,
}

/// So many structures that look alike are damaged in turn.
const ALIKE: u32 = 2;

const OURS: &str =
    "extra_attr,inode_checksum,sb_checksum,inode_crtime,flexible_inline_xattr,project_quota,quota";

/// Filled by the kernel.
const BY_LINUX: [(&str, &[u8]); 2] = [
    (
        "Linux, compressed files",
        include_bytes!("../data/f2fs-compressed-by-linux.img.zst"),
    ),
    (
        "Linux, folded and encrypted names",
        include_bytes!("../data/f2fs-names-by-linux.img.zst"),
    ),
];

/// One of them.
pub fn by_linux(n: usize) -> F2Volume {
    let image = zstd::decode_all(BY_LINUX[n].1).expect("unpacked");
    F2Volume::new(MemoryDevice::from_image(&image))
}

pub fn bases() -> Vec<Base> {
    let lab = F2Lab::new();
    let mut out = vec![
        Base::new("mkfs.f2fs", lab.volume(&[])),
        Base::new("mkfs.f2fs, all features", lab.volume(&["-O", FULL])),
    ];
    for (n, (name, _)) in BY_LINUX.into_iter().enumerate() {
        out.push(Base::new(name, by_linux(n)));
    }
    for (name, features) in [("our mkfs", ""), ("our mkfs, attributes and quota", OURS)] {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        let shared = Arc::clone(&device) as SharedDevice;
        let options = blockwright_mkfs::f2fs::FormatOptions {
            features: features.to_owned(),
            ..Default::default()
        };
        blockwright_mkfs::f2fs::format(&shared, &options).expect("formatted");
        let v = Volume::open_device(shared).expect("opens");
        super::image::populate(&v);
        v.write("/long", vec![0x77; 5 << 20]).expect("written");
        v.close().expect("closed");
        out.push(Base::new(name, F2Volume::new(device.snapshot())));
    }
    out
}

/// Rare volumes, with what the others lack.
pub fn more_bases() -> Vec<Base> {
    vec![
        to_be_recovered(),
        with_orphans_and_attributes(),
        clusters(),
        nat_bits(),
    ]
}

/// A volume of our own making, open.
pub fn made(features: &str) -> (Arc<MemoryDevice>, Volume) {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let shared = Arc::clone(&device) as SharedDevice;
    let options = blockwright_mkfs::f2fs::FormatOptions {
        features: features.to_owned(),
        ..Default::default()
    };
    blockwright_mkfs::f2fs::format(&shared, &options).expect("formatted");
    let v = Volume::open_device(shared).expect("opens");
    super::image::populate(&v);
    v.sync().expect("durable");
    (device, v)
}

/// Two files were removed while they were open, before the last checkpoint. Attributes fill the places in inodes and go on in nodes.
fn with_orphans_and_attributes() -> Base {
    let (device, v) = made("extra_attr,inode_checksum,flexible_inline_xattr");
    let names = ["/dir/plain", "/dir/tiny", "/dir/short", "/dir"];
    for path in names {
        for (n, len) in [(0u8, 20), (1, 90), (2, 700), (3, 30), (4, 0)] {
            let name = format!("trusted.number-{n}");
            v.set_xattr(path, &name, vec![n; len], blockwright::XattrMode::Any)
                .expect("set");
        }
    }
    let open: Vec<_> = (0..2)
        .map(|n| {
            let path = format!("/open-{n}");
            v.write(&path, vec![9; 5000]).expect("written");
            let file = v.open_file(&path).expect("opened");
            v.remove_file(&path).expect("removed");
            file
        })
        .collect();
    v.sync().expect("durable");
    let volume = F2Volume::new(device.snapshot());
    drop(open);
    v.close().expect("closed");
    let mut targets = targets(&volume);
    let lists: Vec<BlockAddr> = targets
        .iter()
        .filter(|(kind, _)| *kind == Kind::Inode)
        .filter_map(|(_, at)| {
            let block = volume.block(*at);
            let nid = u32::from_le_bytes(block[0x4C..0x50].try_into().expect("four"));
            (nid != 0).then(|| volume.nat_entry(Nid(nid)).block)
        })
        .collect();
    assert!(lists.len() >= 3, "{lists:?}");
    for (kind, at) in &mut targets {
        if lists.contains(at) {
            *kind = Kind::List;
        }
    }
    let orphans = volume.pack.checkpoint.raw.cp_pack_start_sum.get();
    assert!(orphans > 1, "no block of orphans");
    Base {
        name: "orphans and attributes",
        volume,
        targets,
    }
}

/// What Linux compressed.
fn clusters() -> Base {
    let volume = by_linux(0);
    let mut targets = Vec::new();
    for nid in 4..455 {
        let entry = volume.nat_entry(Nid(nid));
        if entry.is_free() || entry.ino.0 != nid {
            continue;
        }
        let addresses = match volume.inode(Ino(nid)).0.kind() {
            Some(FileKind::Regular) => volume.addresses(Ino(nid)),
            _ => continue,
        };
        let stored = |a: BlockAddr| a.is_stored() && volume.geo.in_main(a);
        let marks =
            (addresses.windows(2)).filter(|w| w[0] == BlockAddr::COMPRESSED && stored(w[1]));
        targets.extend(marks.take(1).map(|w| (Kind::Cluster, w[1])));
    }
    assert!(targets.len() > 1, "{targets:?}");
    Base {
        name: "Linux, compressed clusters",
        volume,
        targets,
    }
}

/// A mount trusts these where their version is the checkpoint's.
fn nat_bits() -> Base {
    let (device, v) = made("extra_attr,quota");
    v.close().expect("closed");
    let volume = F2Volume::new(device.snapshot());
    let layout = PackLayout::new(&volume.pack.checkpoint, &volume.geo).expect("a layout");
    let (first, count) = layout.nat_bits.expect("there");
    let start = volume.geo.pack_start(volume.pack.which).0 + first;
    Base {
        name: "NAT bits",
        targets: (start..start + count)
            .map(|at| (Kind::NatBits, BlockAddr(at)))
            .collect(),
        volume,
    }
}

/// Files that were fsynced since the last checkpoint, which a mount recovers from their nodes.
fn to_be_recovered() -> Base {
    let (device, v) = made("extra_attr,inode_checksum");
    for n in 0..6u8 {
        let path = format!("/dir/rolled-{n}");
        let file = v.create_file(&path).expect("made");
        let len = if n == 0 { 4 << 20 } else { 9000 };
        file.write_all_at(&vec![n; len], 0).expect("written");
        if n == 1 {
            v.set_xattr(&path, "user.large", [7; 600], blockwright::XattrMode::Any)
                .expect("set");
        }
        file.sync_all().expect("durable");
    }
    // Written again, and shorter. (Names that move, and second names, take a checkpoint.)
    for path in ["/dir/rolled-1", "/dir/tiny"] {
        v.write(path, b"again").expect("written");
        let file = v.open_file(path).expect("opened");
        file.sync_all().expect("durable");
    }
    for path in ["/holes", "/unwritten"] {
        let file = blockwright::OpenOptions::new()
            .write(true)
            .open(&v, path)
            .expect("opened");
        file.set_len(3000).expect("cut");
        file.sync_all().expect("durable");
    }
    let crashed = F2Volume::new(device.snapshot());
    v.close().expect("closed");
    let mut targets = Vec::new();
    for log in [Log::HotNode, Log::WarmNode, Log::ColdNode] {
        let head = crashed.pack.checkpoint.raw.log(log);
        let start = crashed.geo.segment_start(head.segment).expect("there").0;
        let version = crashed.pack.checkpoint.footer_version().to_le_bytes();
        for at in start + u32::from(head.offset)..start + 512 {
            let block = crashed.block(BlockAddr(at));
            // The footer names the checkpoint after which the node was written.
            if block[4084..4092] != version {
                break;
            }
            let kind = match block[4072..4076] == block[4076..4080] {
                true => Kind::Inode,
                false => Kind::Node,
            };
            targets.push((kind, BlockAddr(at)));
        }
    }
    assert!(targets.len() > 8, "{targets:?}");
    Base {
        name: "files to be recovered",
        volume: crashed,
        targets,
    }
}

impl Base {
    fn new(name: &'static str, volume: F2Volume) -> Self {
        let targets = targets(&volume);
        Base {
            name,
            volume,
            targets,
        }
    }

    /// All fields of all structures. Of structures that look alike, one stands for the others.
    pub fn places(&self) -> Vec<(usize, (usize, usize))> {
        let mut seen = BTreeMap::new();
        let mut out = Vec::new();
        for (n, (kind, at)) in self.targets.iter().enumerate() {
            let block = self.bytes(*kind, *at);
            let shape = match kind {
                Kind::Inode => {
                    // Kind and flags; whether there is anything, attributes, a name, a node of addresses, an indirect one.
                    let mode = block[1] >> 4;
                    let (small, flags) = (&block[2..4], &block[0x50..0x54]);
                    let there = [0x10..0x18, 0x4C..0x50, 0x58..0x5C, 4052..4056, 4060..4064];
                    let there = there.map(|r| block[r].iter().any(|b| *b != 0));
                    format!("{mode} {small:?} {flags:?} {there:?}")
                }
                // In the order of their numbers: direct ones, indirect ones, the doubly indirect one.
                Kind::Node => format!("{:?}", node_kind(&block)),
                Kind::Pack | Kind::List | Kind::Cluster | Kind::NatBits => at.to_string(),
                _ => String::new(),
            };
            let known = seen.entry((format!("{kind:?}"), shape)).or_insert(0);
            *known += 1;
            if *known > ALIKE {
                continue;
            }
            let mut fields = match kind {
                Kind::Superblock => superblock_fields(),
                Kind::Checkpoint => checkpoint_fields(),
                Kind::Pack => pack_fields(),
                _ => fields(*kind, &block),
            };
            fields.sort_unstable();
            fields.dedup();
            out.extend(fields.into_iter().map(|f| (n, f)));
        }
        out
    }

    /// Whether each bit of a field means something of its own.
    pub fn is_flags(&self, (target, (at, _)): (usize, (usize, usize))) -> bool {
        match self.targets[target].0 {
            Kind::Superblock => at == offset_of!(RawSuperblock, feature),
            Kind::Checkpoint => at == offset_of!(RawCheckpoint, ckpt_flags),
            // Mode, advice, what is inline, flags; the footer's.
            Kind::Inode => [0, 2, 3, 0x50, 4080].contains(&at),
            Kind::Node => at == 4080,
            _ => false,
        }
    }

    fn bytes(&self, kind: Kind, at: BlockAddr) -> Vec<u8> {
        match kind {
            Kind::Checkpoint => {
                let start = self.volume.geo.pack_start(self.volume.pack.which).0;
                self.volume.block(BlockAddr(start))
            }
            _ => self.volume.block(at),
        }
    }

    /// A number that a field of this many bytes could hold.
    pub fn large(&self, len: usize) -> u64 {
        match len {
            1 => 0x7F,
            2 => 4096,
            _ => self.volume.geo.blocks_count - 1,
        }
    }

    /// Gives one field another value on a copy of the volume, right behind checksums or not. `None`: it has that value
    /// already.
    pub fn set(
        &self,
        (target, field): (usize, (usize, usize)),
        value: Value,
        signed: bool,
    ) -> Option<(MemoryDevice, String)> {
        let (kind, at) = self.targets[target];
        let v = &self.volume;
        let old = self.bytes(kind, at);
        let mut block = old.clone();
        let base = if kind == Kind::Superblock { 1024 } else { 0 };
        let how = set(&mut block[base..], field, value);
        if block == old {
            return None;
        }
        let out = v.copy();
        match kind {
            Kind::Superblock => {
                let mut raw = RawSuperblock::read(&block).expect("long enough");
                if signed {
                    raw.set_checksum();
                }
                out.put(BlockAddr(0), &raw.to_block());
                out.put(BlockAddr(1), &raw.to_block());
            }
            Kind::Checkpoint => {
                let cp = &v.pack.checkpoint.raw;
                let place = cp.checksum_offset.get() as usize;
                if signed && let Some(sum) = checksum::checkpoint(&block, place) {
                    block[place..place + 4].copy_from_slice(&sum.to_le_bytes());
                }
                let start = v.geo.pack_start(v.pack.which).0;
                let tail = start + cp.cp_pack_total_block_count.get() - 1;
                out.put(BlockAddr(start), &block);
                out.put(BlockAddr(tail), &block);
            }
            _ => {
                if kind == Kind::Inode && signed {
                    let ino = u32::from_le_bytes(old[4072..4076].try_into().expect("four"));
                    inode::set_checksum(&mut block, Ino(ino), &v.geo);
                }
                out.put(at, &block);
            }
        }
        let signed = if signed { ", signed" } else { "" };
        let what = format!("[{}] {kind:?} {at}: {how}{signed}", self.name);
        Some((out.device, what))
    }

    /// A damaged copy, and what was done to it.
    pub fn damage(&self, rng: &mut Rng) -> (MemoryDevice, String) {
        let mut v = self.volume.copy();
        let mut what = Vec::new();
        for _ in 0..1 + rng.below(10) / 7 {
            let (kind, at) = self.draw(rng);
            let how = match kind {
                Kind::Superblock => superblock(&v, rng),
                Kind::Checkpoint => checkpoint(&mut v, rng),
                _ => self.block(&v, kind, at, rng),
            };
            what.push(format!("{kind:?} {at}: {how}"));
        }
        (v.device, what.join("; "))
    }

    fn draw(&self, rng: &mut Rng) -> (Kind, BlockAddr) {
        let is_rare = |kind| matches!(kind, Kind::List | Kind::Cluster | Kind::NatBits);
        let rare: Vec<_> = self.targets.iter().filter(|(k, _)| is_rare(*k)).collect();
        // What a volume alone has is worth half of its damage.
        if !rare.is_empty() && (rare.len() == self.targets.len() || rng.below(2) == 0) {
            return *rare[rng.below(rare.len() as u64) as usize];
        }
        let kind = match rng.below(20) {
            0 => Kind::Superblock,
            1 => Kind::Checkpoint,
            2 => Kind::Pack,
            3 | 4 => Kind::Nat,
            5 | 6 => Kind::Sit,
            7 => Kind::Ssa,
            8 | 9 => Kind::Node,
            10..13 => Kind::Directory,
            _ => Kind::Inode,
        };
        let mut all: Vec<_> = self.targets.iter().filter(|(k, _)| *k == kind).collect();
        if all.is_empty() {
            // Small volumes have no nodes beside inodes, or only inline directories.
            all = self
                .targets
                .iter()
                .filter(|(k, _)| *k == Kind::Inode)
                .collect();
        }
        let n = rng.below(all.len() as u64) as usize;
        *all[if rng.below(2) == 0 { n % 16 } else { n } % all.len()]
    }

    fn block(&self, v: &F2Volume, kind: Kind, at: BlockAddr, rng: &mut Rng) -> String {
        let mut block = v.block(at);
        let how = match rng.below(20) {
            0 => {
                block.fill(0);
                "zeroed".to_owned()
            }
            1 => {
                let (from, other) = self.draw(rng);
                block = v.block(other);
                format!("is {from:?} {other}")
            }
            2..5 => {
                let byte = rng.below(BLOCK_SIZE as u64) as usize;
                let bit = rng.below(8);
                block[byte] ^= 1 << bit;
                format!("bit {bit} of byte {byte}")
            }
            _ => {
                let fields = fields(kind, &block);
                change(&mut block, &fields, rng)
            }
        };
        if kind == Kind::Inode && rng.below(4) != 0 {
            let ino = u32::from_le_bytes(block[4072..4076].try_into().expect("four"));
            inode::set_checksum(&mut block, Ino(ino), &v.geo);
        }
        v.put(at, &block);
        how
    }
}

fn targets(v: &F2Volume) -> Vec<(Kind, BlockAddr)> {
    let (geo, cp) = (&v.geo, &v.pack.checkpoint);
    let mut all = vec![
        (Kind::Superblock, BlockAddr(0)),
        (Kind::Checkpoint, BlockAddr(0)),
    ];
    let start = geo.pack_start(v.pack.which).0;
    let total = cp.raw.cp_pack_total_block_count.get();
    all.extend((start + 1..start + total - 1).map(|b| (Kind::Pack, BlockAddr(b))));
    let nat = geo.nat_block(0, cp.nat_bitmap.get(0)).expect("there");
    let sit = geo.sit_block(0, cp.sit_bitmap.get(0)).expect("there");
    all.extend([(Kind::Nat, nat), (Kind::Sit, sit)]);
    for nid in 3..455 {
        let entry = v.nat_entry(Nid(nid));
        if entry.is_free() || !geo.in_main(entry.block) {
            continue;
        }
        let (segment, _) = geo.segment_of(entry.block).expect("in it");
        let ssa = (Kind::Ssa, geo.ssa_block(segment).expect("there"));
        if !all.contains(&ssa) {
            all.push(ssa);
        }
        if entry.ino.0 != nid {
            all.push((Kind::Node, entry.block));
            continue;
        }
        all.push((Kind::Inode, entry.block));
        let block = v.block(entry.block);
        let one = Inode::parse(&block, Ino(nid), geo).expect("an inode");
        // Inline directories have no addresses.
        if one.kind() == Some(FileKind::Directory) && one.inline.bits() & 0b110 == 0 {
            let stored = v.addresses(Ino(nid)).into_iter().filter(|b| b.is_stored());
            all.extend(stored.map(|b| (Kind::Directory, b)));
        }
    }
    all
}

/// The place of a node in its inode's tree says of which kind it is.
fn node_kind(block: &[u8]) -> &'static str {
    match u32::from_le_bytes(block[4080..4084].try_into().expect("four")) >> 3 {
        1 | 2 => "direct",
        3 => "indirect",
        _ => "below an indirect one, or doubly indirect",
    }
}

fn superblock_fields() -> Vec<(usize, usize)> {
    let mut f: Vec<(usize, usize)> = Vec::new();
    run(&mut f, 0, &[4, 2, 2, 4, 4, 4, 4, 4, 4, 4, 8]);
    run(&mut f, 44, &[4; 16]);
    run(&mut f, offset_of!(RawSuperblock, uuid), &[8, 8]);
    run(&mut f, offset_of!(RawSuperblock, volume_name), &[2, 2]);
    for at in [
        offset_of!(RawSuperblock, extension_count),
        offset_of!(RawSuperblock, cp_payload),
        offset_of!(RawSuperblock, feature),
        offset_of!(RawSuperblock, crc),
    ] {
        f.push((at, 4));
    }
    f.push((offset_of!(RawSuperblock, encryption_level), 1));
    // A device's path and number of segments.
    run(&mut f, offset_of!(RawSuperblock, devs), &[1, 1]);
    f.push((offset_of!(RawSuperblock, devs) + 64, 4));
    run(
        &mut f,
        offset_of!(RawSuperblock, qf_ino),
        &[4, 4, 4, 1, 2, 2],
    );
    run(&mut f, offset_of!(RawSuperblock, s_stop_reason), &[1; 4]);
    run(&mut f, offset_of!(RawSuperblock, s_errors), &[1; 4]);
    f
}

fn checkpoint_fields() -> Vec<(usize, usize)> {
    let mut f = Vec::new();
    run(&mut f, 0, &[8, 8, 8, 4, 4, 4]);
    for (segments, offsets) in [(36, 68), (84, 116)] {
        run(&mut f, segments, &[4; 4]);
        run(&mut f, offsets, &[2; 4]);
    }
    run(&mut f, offset_of!(RawCheckpoint, ckpt_flags), &[4; 9]);
    f.push((offset_of!(RawCheckpoint, elapsed_time), 8));
    run(&mut f, offset_of!(RawCheckpoint, alloc_type), &[1; 6]);
    // The bitmaps of versions.
    run(&mut f, 192, &[1, 1, 1, 1]);
    run(&mut f, 192 + 64, &[1, 1]);
    f
}

/// Summaries with their journals, or orphans, or a payload: where each of them has something.
fn pack_fields() -> Vec<(usize, usize)> {
    let mut f = Vec::new();
    // Journals of compact summaries: of the NAT, of the SIT.
    for at in [0, 507, 3584] {
        run(&mut f, at, &[2, 4, 1, 4, 4, 4, 1, 4, 4]);
        run(&mut f, at + 2, &[4, 2, 1, 1, 4, 8]);
    }
    run(&mut f, 0, &[4; 8]);
    run(&mut f, 1014, &[4, 1, 2, 4, 1, 2]);
    // An orphan block's tail; a summary's.
    run(&mut f, 4076, &[2, 2, 4, 4, 4]);
    f.push((4091, 1));
    f
}

fn run(out: &mut Vec<(usize, usize)>, mut at: usize, sizes: &[usize]) {
    for size in sizes {
        out.push((at, *size));
        at += size;
    }
}

/// Offsets and lengths of the fields of a block.
fn fields(kind: Kind, block: &[u8]) -> Vec<(usize, usize)> {
    let mut f = Vec::new();
    let footer = [4, 4, 4, 8, 4];
    match kind {
        Kind::Inode => {
            // The head, twice: it is what matters most.
            for _ in 0..2 {
                run(&mut f, 0, &[2, 1, 1, 4, 4, 4, 8, 8, 8, 8, 8, 4, 4, 4, 4, 4]);
                run(&mut f, 0x4C, &[4, 4, 4, 4]);
                run(&mut f, 0x5C, &[1]);
                run(&mut f, 0x15B, &[1, 4, 4, 4]);
                run(&mut f, 0x168, &[2, 2, 4, 4, 8, 4, 8, 1, 1, 2]);
                run(&mut f, 4052, &[4; 5]);
                run(&mut f, 4072, &footer);
            }
            run(&mut f, 0x168, &[4; 40]);
            run(&mut f, 3852, &[4; 50]);
            if block[3852..3856] == xattr::MAGIC.to_le_bytes() {
                attributes(&mut f, block, 3876, 4052);
            }
        }
        // The list begins in the inode: where entries are here does not show.
        Kind::List => {
            (0..160).for_each(|at| f.push((at, 1)));
            run(&mut f, 4072, &footer);
        }
        // Length, checksum, and how the stream begins.
        Kind::Cluster => {
            run(&mut f, 0, &[4; 6]);
            (24..56).for_each(|at| f.push((at, 1)));
            run(&mut f, 4088, &[4, 4]);
        }
        // The version, then bits: of full blocks, of empty ones.
        Kind::NatBits => {
            run(&mut f, 0, &[8]);
            (8..block.len())
                .filter(|at| *at < 24 || block[*at] != 0)
                .take(60)
                .for_each(|at| f.push((at, 1)));
        }
        Kind::Node => {
            run(&mut f, 0, &[4; 60]);
            run(&mut f, 4072, &footer);
            run(&mut f, 4072, &footer);
        }
        Kind::Directory => {
            // The bitmap, then slots of 11 bytes, then names of 8.
            run(&mut f, 0, &[1; 27]);
            for slot in 0..24 {
                run(&mut f, 30 + slot * 11, &[4, 4, 2, 1]);
                run(&mut f, 30 + 214 * 11 + slot * 8, &[1]);
            }
        }
        Kind::Nat => (0..120).for_each(|n| run(&mut f, n * 9, &[1, 4, 4])),
        Kind::Sit => (0..26).for_each(|n| run(&mut f, n * 74, &[2, 1, 1, 4, 8])),
        Kind::Ssa => {
            (0..64).for_each(|n| run(&mut f, n * 7, &[4, 1, 2]));
            run(&mut f, 4091, &[1, 4]);
        }
        _ => run(&mut f, 0, &vec![4; block.len() / 4]),
    }
    f
}

/// The entries of a list of attributes: kind, length of the name, length of the value; the name's first byte.
fn attributes(f: &mut Vec<(usize, usize)>, block: &[u8], mut at: usize, end: usize) {
    while at + 4 < end && block[at] != 0 {
        run(f, at, &[1, 1, 2, 1]);
        let value = u16::from_le_bytes([block[at + 2], block[at + 3]]);
        let len = 4 + usize::from(block[at + 1]) + usize::from(value);
        at += len.next_multiple_of(4);
    }
}

fn change(bytes: &mut [u8], fields: &[(usize, usize)], rng: &mut Rng) -> String {
    let field = fields[rng.below(fields.len() as u64) as usize];
    let value = Value::draw(field.1, 455, rng);
    set(bytes, field, value)
}

/// Gives a field another value; what was changed.
fn set(bytes: &mut [u8], (at, len): (usize, usize), value: Value) -> String {
    let mut word = [0; 8];
    word[..len].copy_from_slice(&bytes[at..at + len]);
    let old = u64::from_le_bytes(word);
    let new = value.of(old).unwrap_or_else(|| {
        let next = at + len..at + 2 * len;
        let other = bytes.get(next.clone()).map(<[u8]>::to_vec);
        if let Some(other) = other {
            bytes[next].copy_from_slice(&word[..len]);
            word[..len].copy_from_slice(&other);
        }
        u64::from_le_bytes(word)
    });
    bytes[at..at + len].copy_from_slice(&new.to_le_bytes()[..len]);
    format!("field {at:#x} of {len}: {old:#x} to {new:#x}")
}

fn superblock(v: &F2Volume, rng: &mut Rng) -> String {
    let mut block = v.block(BlockAddr(0));
    let words: Vec<(usize, usize)> = (0..40).map(|n| (n * 4, 4)).collect();
    let how = change(&mut block[1024..1024 + 3072], &words, rng);
    let mut raw = RawSuperblock::read(&block).expect("long enough");
    if rng.below(4) != 0 {
        raw.set_checksum();
    }
    // One of the two, or both.
    for copy in 0..1 + rng.below(2) as u32 {
        v.put(BlockAddr(copy), &raw.to_block());
    }
    how
}

fn checkpoint(v: &mut F2Volume, rng: &mut Rng) -> String {
    let mut bytes = v.pack.checkpoint.raw.as_bytes().to_vec();
    let words: Vec<(usize, usize)> = (0..48).map(|n| (n * 4, 4)).collect();
    let how = change(&mut bytes, &words, rng);
    let raw = RawCheckpoint::read_from_bytes(&bytes).expect("as long");
    let old = &v.pack.checkpoint.raw;
    // The pack's size says where its end is written.
    if raw.cp_pack_total_block_count == old.cp_pack_total_block_count
        && raw.checksum_offset == old.checksum_offset
    {
        v.edit_checkpoint(|cp| cp.raw = raw);
    }
    how
}
