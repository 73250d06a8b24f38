//! ext4: small volumes of many shapes, and damage to their structures by field, by bit and by block.

use super::fields::{self, Structure};
use super::lab::volume::Volume;
use super::lab::{Lab, Rng};
use super::records::Scene;
use super::values::Value;
use blockwright::VolumeBuilder;
use blockwright_device::{BlockDevice, DevOffset, Flags, MemoryDevice, SharedDevice};
use blockwright_ondisk::ext4::inode::{self, InodeFlags};
use blockwright_ondisk::ext4::superblock::RawSuperblock;
use blockwright_ondisk::ext4::{
    BlockNo, Compat, FileKind, GroupNo, Incompat, Ino, RoCompat, dir, extent, group_desc, htree,
    mmp, orphan_file, xattr,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use zerocopy::{FromBytes, IntoBytes};

/// How mke2fs makes the volumes: size, arguments.
const MADE_BY_MKE2FS: &[(&str, &str)] = &[
    ("4M", "-t ext4 -b 1024"),
    ("4M", "-t ext2 -b 1024"),
    ("2M", "-t ext2 -b 1024 -r 0"),
    ("4M", "-t ext3 -b 1024 -I 128"),
    (
        "16M",
        "-t ext4 -b 4096 -O inline_data,ea_inode,orphan_file,casefold,encrypt,verity,large_dir,metadata_csum_seed -J size=4",
    ),
    (
        "4M",
        "-t ext4 -b 1024 -I 512 -O inline_data,ea_inode,^has_journal",
    ),
    ("6M", "-t ext4 -b 1024 -C 4096 -O bigalloc,^has_journal"),
    (
        "4M",
        "-t ext4 -b 1024 -O uninit_bg,^metadata_csum,^has_journal -g 1024",
    ),
    (
        "4M",
        "-t ext4 -b 1024 -O ^metadata_csum,^uninit_bg,^has_journal,^64bit,inline_data,ea_inode",
    ),
    ("6M", "-t ext4 -b 2048 -O orphan_file,ea_inode,quota"),
    (
        "4M",
        "-t ext4 -b 1024 -O meta_bg,^resize_inode,^has_journal -g 1024",
    ),
    (
        "4M",
        "-t ext4 -b 1024 -O ^metadata_csum,^64bit,sparse_super2",
    ),
];

/// How our own mkfs makes them: block size, features.
const MADE_BY_US: &[(u32, &str)] = &[(1024, ""), (4096, "inline_data,orphan_file,quota")];

/// A volume to be damaged.
pub struct Base {
    pub name: String,
    pub image: Vec<u8>,
    targets: Vec<Target>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Superblock,
    Group(u32),
    BlockBitmap(u32),
    InodeBitmap(u32),
    Inode(u32),
    Leaf(u32),
    Index(u32, htree::DxPlace),
    Extents(u32),
    Indirect,
    Attributes,
    Journal,
    Orphans(u32, BlockNo),
    Quota,
    /// A descriptor, a commit block or a block of revocations.
    Log,
    /// Records behind the log.
    FastCommits,
    /// The block of multiple-mount protection, and what the superblock says of it.
    Mmp,
    MmpPlace,
}

#[derive(Clone, Copy, Debug)]
struct Target {
    kind: Kind,
    at: usize,
    bytes: usize,
}

/// All base volumes.
pub fn bases() -> Vec<Base> {
    let lab = Lab::new();
    let theirs = MADE_BY_MKE2FS.iter().filter_map(|(size, args)| {
        let list: Vec<&str> = args.split(' ').collect();
        Some(Base::new(args, lab.make(size, &list)?))
    });
    let ours = MADE_BY_US.iter().map(|(block, features)| {
        let device = Arc::new(MemoryDevice::new(6 << 20));
        VolumeBuilder::new()
            .features(*features)
            .size(6 << 20)
            .block_size(*block)
            .uuid([0x11; 16])
            .from(&lab.tree)
            .create_on(&(Arc::clone(&device) as SharedDevice))
            .expect("built");
        Base::new(&format!("our mkfs {block} {features}"), device.to_vec())
    });
    theirs.chain(ours).collect()
}

/// A volume's bytes, of which one structure at a time is changed, and what is known of it.
pub struct Whole {
    image: Vec<u8>,
    volume: Volume,
}

/// So many structures that look alike are damaged in turn.
const ALIKE: u32 = 2;
/// Of a long structure, the first fields, the last ones, and one in this many between (no multiple of how many an entry has).
const HEAD: usize = 120;
const TAIL: usize = 16;
const STRIDE: usize = 13;

/// Rare volumes, with what the others lack: logs to be replayed; folded and encrypted names that Linux wrote; values in inodes
/// of their own; orphans.
pub fn more_bases() -> Vec<Base> {
    let mut out = Vec::new();
    for features in ["", "^metadata_csum"] {
        let image = super::known::with_a_journal_to_replay(features);
        let targets = (super::known::LOG_BLOCKS.iter())
            .flat_map(|kind| super::known::journal_blocks(&image, *kind))
            .map(|at| Target {
                kind: Kind::Log,
                at,
                bytes: super::image::BLOCK,
            })
            .collect();
        out.push(Base {
            name: format!("a log to be replayed {features}"),
            image: image.0,
            targets,
        });
    }
    for features in ["", "^metadata_csum"] {
        let image = super::image::make(features);
        let many = image.ino("/many") as u32;
        let device = image.device();
        let v = blockwright::Volume::open_device(device.clone()).expect("opens");
        for i in 0..200 {
            let name = format!("/many/more-{i:03}-{}", "m".repeat(200));
            v.hard_link("/empty", name).expect("linked");
        }
        v.close().expect("closed");
        let mut base = Base::new(
            &format!("an index of two levels {features}"),
            device.to_vec(),
        );
        base.targets.retain(|t| match t.kind {
            Kind::Index(ino, _) | Kind::Inode(ino) | Kind::Extents(ino) => ino == many,
            // Padding behind the last block, and behind the inodes of a group.
            Kind::BlockBitmap(_) | Kind::InodeBitmap(_) => true,
            _ => false,
        });
        let node = |t: &Target| matches!(t.kind, Kind::Index(_, htree::DxPlace::Node));
        assert!(base.targets.iter().any(node), "no inner node");
        out.push(base);
    }
    let mut scene = Scene::new(super::known::with_fast_commits_to_replay());
    scene.image = scene.with(&scene.records);
    out.push(Base {
        name: "fast commits to be replayed".to_owned(),
        targets: vec![Target {
            kind: Kind::FastCommits,
            at: scene.area,
            bytes: super::image::BLOCK,
        }],
        image: scene.image.0,
    });
    let names = include_bytes!("../data/ext4-names-by-linux.img.zst");
    let names = zstd::decode_all(&names[..]).expect("unpacked");
    out.push(Base::new("Linux, folded and encrypted names", names));
    let values = Arc::new(MemoryDevice::new(6 << 20));
    VolumeBuilder::new()
        .features("ea_inode,inline_data,orphan_file")
        .size(6 << 20)
        .block_size(1024)
        .create_on(&(Arc::clone(&values) as SharedDevice))
        .expect("made");
    let v = blockwright::Volume::open_device(values.clone()).expect("opens");
    v.write("/file", b"contents").expect("written");
    for (n, len) in [(0u8, 3000), (1, 9000)] {
        let (name, value) = (format!("user.large{n}"), vec![n; len]);
        v.set_xattr("/file", name, value, blockwright::XattrMode::Any)
            .expect("set");
    }
    v.close().expect("closed");
    out.push(Base::new("values in inodes", values.to_vec()));
    let mut v = Volume::new(values.to_vec());
    let ino = v.sb().orphan_file_inum.get();
    let (file, block) = (v.lookup("file"), v.blocks(Ino(ino))[0]);
    let seed = v.geo.inode_seed(Ino(ino), v.inode(Ino(ino)).generation);
    let geo = v.geo.clone();
    let bytes = v.block(block);
    bytes[..4].copy_from_slice(&file.0.to_le_bytes());
    orphan_file::write_tail(bytes, block, &geo, seed).expect("room");
    v.edit_sb(|sb| {
        let mut features = sb.features();
        features.ro_compat |= RoCompat::ORPHAN_PRESENT;
        sb.set_features(features);
    });
    out.push(Base::new("an orphan in the file of orphans", v.image));
    out
}

/// A volume with multiple-mount protection. Each mount for writing waits by the clock: [`super::every`] mounts all of its damaged copies at a time.
pub fn with_mmp() -> Base {
    let args = "-t ext4 -b 1024 -O mmp,^has_journal";
    let list: Vec<&str> = args.split(' ').collect();
    let image = Lab::new().make("4M", &list).expect("made");
    let v = Volume::new(image);
    let at = v.at(BlockNo(v.sb().mmp_block.get()));
    let target = |kind, at| Target {
        kind,
        at,
        bytes: 1024,
    };
    Base {
        name: args.to_owned(),
        image: v.image,
        targets: vec![target(Kind::Mmp, at), target(Kind::MmpPlace, 1024)],
    }
}

/// Volumes of which only reserved inodes and the head of the journal are damaged.
pub fn chosen_bases() -> Vec<Base> {
    let lab = Lab::new();
    let made = [
        ("6M", "-t ext4 -b 1024 -O quota,^metadata_csum"),
        ("6M", "-t ext4 -b 1024 -O quota,encrypt"),
        ("12M", "-t ext4 -b 1024 -O fast_commit -J size=4"),
        (
            "12M",
            "-t ext4 -b 1024 -O fast_commit,^metadata_csum -J size=4",
        ),
    ];
    made.into_iter()
        .filter_map(|(size, args)| {
            let list: Vec<&str> = args.split(' ').collect();
            let mut v = Volume::new(lab.make(size, &list)?);
            if args.contains("fast_commit") {
                // As Linux stores it with the first mount.
                let at = v.at(v.blocks(Ino::JOURNAL)[0]);
                let head = &mut v.image[at..at + 1024];
                head[0x2B] |= 0x20;
                fields::sign_journal(head);
            }
            let mut base = Base::new(&format!("few structures {args}"), v.image);
            base.targets
                .retain(|t| matches!(t.kind, Kind::Inode(1..=10) | Kind::Journal));
            Some(base)
        })
        .collect()
}

impl Base {
    /// Whether nothing waits for the next mount.
    pub fn is_settled(&self) -> bool {
        let features = Volume::new(self.image.clone()).sb().features();
        !features.has_incompat(Incompat::NEEDS_RECOVERY)
            && !features.has_ro_compat(RoCompat::ORPHAN_PRESENT)
    }

    /// For [`Base::set`].
    pub fn whole(&self) -> Whole {
        Whole {
            image: self.image.clone(),
            volume: Volume::new(self.image.clone()),
        }
    }

    /// A number that a field of this many bytes could hold.
    pub fn large(&self, whole: &Whole, len: usize) -> u64 {
        match len {
            1 => 0x7F,
            2 => whole.volume.geo.block_len() as u64,
            _ => whole.volume.geo.blocks_count - 1,
        }
    }

    fn new(name: &str, image: Vec<u8>) -> Self {
        let v = Volume::new(image);
        let targets = targets(&v);
        Base {
            name: name.to_owned(),
            image: v.image,
            targets,
        }
    }

    /// A damaged copy, and what was done to it.
    pub fn damage(&self, rng: &mut Rng) -> (Vec<u8>, String) {
        let whole = Volume::new(self.image.clone());
        let mut image = self.image.clone();
        let mut what = Vec::new();
        for _ in 0..1 + (rng.below(10) / 7) {
            let t = self.draw(rng);
            let mut how = self.one(&mut image, &whole, t, rng);
            // Behind the checksum three times of four.
            if rng.below(4) != 0 {
                sign(&mut image, &whole, t);
                how += ", signed";
            }
            what.push(format!("{:?} at {:#x}: {how}", t.kind, t.at));
        }
        (image, what.join("; "))
    }

    /// A kind first, so that the many do not hide the few; directories and the first inodes are worth more.
    fn draw(&self, rng: &mut Rng) -> Target {
        let name = |t: &Target| std::mem::discriminant(&t.kind);
        let mut kinds: Vec<_> = Vec::new();
        for t in &self.targets {
            if !kinds.contains(&name(t)) {
                kinds.push(name(t));
            }
        }
        // Half of all damage is to inodes, as half of what there is to know of a volume is.
        let inodes = self
            .targets
            .iter()
            .find(|t| matches!(t.kind, Kind::Inode(_)));
        let kind = match (rng.below(5), inodes) {
            (0 | 1, Some(inode)) => name(inode),
            _ => kinds[rng.below(kinds.len() as u64) as usize],
        };
        let all: Vec<&Target> = self.targets.iter().filter(|t| name(t) == kind).collect();
        let n = rng.below(all.len() as u64) as usize;
        *all[if rng.below(2) == 0 { n % 14 } else { n } % all.len()]
    }

    fn one(&self, image: &mut [u8], whole: &Volume, t: Target, rng: &mut Rng) -> String {
        let block = whole.geo.block_len();
        let is_block = t.bytes == block && t.at.is_multiple_of(block);
        match rng.below(20) {
            // A block of zeroes, or of what lies elsewhere.
            0 if is_block => {
                image[t.at..t.at + block].fill(0);
                "zeroed".to_owned()
            }
            1 if is_block => {
                let blocks: Vec<&Target> = (self.targets.iter())
                    .filter(|o| o.bytes == block && o.at.is_multiple_of(block))
                    .collect();
                let from = blocks[rng.below(blocks.len() as u64) as usize];
                image.copy_within(from.at..from.at + block, t.at);
                format!("is {:?} at {:#x}", from.kind, from.at)
            }
            2..5 => {
                let at = t.at + rng.below(t.bytes as u64) as usize;
                let bit = rng.below(8);
                image[at] ^= 1 << bit;
                format!("bit {bit} of byte {:#x}", at - t.at)
            }
            _ => {
                let structure = self.structure(image, whole, t);
                fields::change(&mut image[t.at..t.at + t.bytes], &structure, rng)
            }
        }
    }

    /// All fields of all structures, Of structures that look alike, one stands for the others.
    pub fn places(&self) -> Vec<(usize, usize)> {
        let whole = Volume::new(self.image.clone());
        let mut seen = BTreeMap::new();
        let mut out = Vec::new();
        for (n, t) in self.targets.iter().enumerate() {
            let shape = self.shape(&whole, *t);
            let known = seen.entry(shape).or_insert(0);
            *known += 1;
            if *known > ALIKE {
                continue;
            }
            let fields = self.structure(&self.image, &whole, *t).count();
            // The entries of one structure are alike, too.
            let some = |field: &usize| {
                *field < HEAD || *field + TAIL >= fields || field.is_multiple_of(STRIDE)
            };
            out.extend((0..fields).filter(some).map(|field| (n, field)));
        }
        out
    }

    /// What two structures have in common that hold the same.
    fn shape(&self, whole: &Volume, t: Target) -> String {
        let kind = format!("{:?}", std::mem::discriminant(&t.kind));
        let bytes = &self.image[t.at..t.at + t.bytes];
        match t.kind {
            Kind::Inode(n) => {
                let inode = whole.inode(Ino(n));
                let attributes = bytes.len() > 160 && bytes[160..164] != [0; 4];
                let special = n < 12;
                let root = &inode.block[..8];
                format!(
                    "{kind} {:?} {:?} {} {attributes} {} {:?} {}",
                    inode.kind(),
                    inode.flags,
                    inode.file_acl.0 != 0,
                    if special { n } else { 0 },
                    // An extent tree's head has its entries and its depth.
                    inode.flags.contains(InodeFlags::EXTENTS).then_some(root),
                    inode.size == 0,
                )
            }
            Kind::Index(_, place) => format!("{kind} {place:?}"),
            Kind::Log => format!("{kind} {}", bytes[7]),
            // The last group is shorter than others, and the first has more in it.
            Kind::Group(n) | Kind::BlockBitmap(n) | Kind::InodeBitmap(n) => {
                let last = n + 1 == whole.geo.groups_count;
                format!("{kind} {} {last}", n == 0)
            }
            _ => kind,
        }
    }

    /// The volume on a device, to be copied and damaged.
    pub fn device(&self) -> MemoryDevice {
        MemoryDevice::from_image(&self.image)
    }

    /// The longest interval of multiple-mount protection that a copy names, in seconds.
    pub fn mmp_interval(&self, device: &MemoryDevice) -> u16 {
        let mut half = [0; 512];
        let place = self.targets[0].at as u64;
        let mut at = |start: u64, offset: usize| {
            device
                .read_at(DevOffset(start), &mut half)
                .expect("in the volume");
            u16::from_le_bytes([half[offset], half[offset + 1]])
        };
        at(place, 0x70).max(at(1024, 0x166))
    }

    /// How many bytes a field has.
    pub fn bytes_of(&self, whole: &Whole, (target, field): (usize, usize)) -> usize {
        let t = self.targets[target];
        self.structure(&whole.image, &whole.volume, t)
            .bytes_of(field)
    }

    /// Whether each bit of a field means something of its own.
    pub fn is_flags(&self, whole: &Whole, (target, field): (usize, usize)) -> bool {
        let t = self.targets[target];
        let at = self.structure(&whole.image, &whole.volume, t).at(field);
        match t.kind {
            // The state, the features, and what the volume remembers.
            Kind::Superblock => [0x3A, 0x5C, 0x60, 0x64, 0x160].contains(&at),
            Kind::Group(_) => at == 0x12,
            Kind::Inode(_) => [0, 0x20].contains(&at),
            Kind::Journal => [0x24, 0x28, 0x2C].contains(&at),
            _ => false,
        }
    }

    /// Gives one field another value on a copy of the volume, right behind checksums or not. `None`: it has that value
    /// already.
    pub fn set(
        &self,
        whole: &mut Whole,
        device: &MemoryDevice,
        (target, field): (usize, usize),
        value: Value,
        signed: bool,
    ) -> Option<(MemoryDevice, String)> {
        let t = self.targets[target];
        let image = &mut whole.image;
        let structure = self.structure(image, &whole.volume, t);
        let how = structure.set(&mut image[t.at..t.at + t.bytes], field, value);
        if signed {
            sign(image, &whole.volume, t);
        }
        // A bitmap's checksum is in its group's descriptor.
        let mut places = vec![(t.at, t.bytes)];
        if let Kind::BlockBitmap(g) | Kind::InodeBitmap(g) = t.kind {
            let geo = &whole.volume.geo;
            let (index, offset) = geo.desc_position(GroupNo(g));
            let at = whole.volume.at(geo.desc_block(index).expect("a block")) + offset;
            places.push((at, usize::from(geo.desc_size)));
        }
        let out = device.snapshot();
        let mut same = true;
        for (at, bytes) in places {
            let range = at..at + bytes;
            let (now, before) = (&mut image[range.clone()], &self.image[range.clone()]);
            same &= now == before;
            let sectors = range.start / 512 * 512..range.end.next_multiple_of(512);
            let at = DevOffset(sectors.start as u64);
            out.write_at(at, &image[sectors], Flags::empty())
                .expect("written");
            image[range.clone()].copy_from_slice(&self.image[range]);
        }
        let signed = if signed { ", signed" } else { "" };
        let what = format!("[{}] {:?} at {:#x}: {how}{signed}", self.name, t.kind, t.at);
        (!same).then_some((out, what))
    }

    fn structure(&self, image: &[u8], whole: &Volume, t: Target) -> Structure {
        let bytes = &image[t.at..t.at + t.bytes];
        match t.kind {
            Kind::Superblock => fields::superblock(),
            Kind::Group(_) => fields::group(t.bytes),
            Kind::BlockBitmap(_) => fields::bitmap(whole.geo.block_bitmap_bytes(), t.bytes),
            Kind::InodeBitmap(_) => fields::bitmap(whole.geo.inode_bitmap_bytes(), t.bytes),
            Kind::Inode(_) => fields::inode(bytes),
            Kind::Leaf(_) => fields::directory(bytes),
            Kind::Index(..) => fields::index(bytes),
            Kind::Extents(_) => fields::extents(bytes),
            Kind::Attributes => fields::attributes(bytes, 32),
            Kind::Journal => fields::journal(),
            Kind::Log => fields::log(),
            Kind::FastCommits => fields::fast_commits(bytes),
            Kind::Mmp => fields::mmp(),
            Kind::MmpPlace => fields::mmp_place(),
            Kind::Indirect | Kind::Orphans(..) | Kind::Quota => fields::words(t.bytes),
        }
    }
}

fn targets(v: &Volume) -> Vec<Target> {
    let geo = v.geo.clone();
    let block = geo.block_len();
    let mut out = vec![Target {
        kind: Kind::Superblock,
        at: 1024,
        bytes: 1024,
    }];
    for group in geo.groups() {
        let desc = v.desc(group.0);
        let (index, offset) = geo.desc_position(group);
        let at = v.at(geo.desc_block(index).expect("a block")) + offset;
        let bytes = usize::from(geo.desc_size);
        let mut add = |kind, at, bytes| out.push(Target { kind, at, bytes });
        add(Kind::Group(group.0), at, bytes);
        add(Kind::BlockBitmap(group.0), v.at(desc.block_bitmap), block);
        add(Kind::InodeBitmap(group.0), v.at(desc.inode_bitmap), block);
    }
    for n in 1..=geo.inodes_count {
        let ino = Ino(n);
        let at = v.inode_at(ino);
        if v.image[at..at + 128].iter().any(|b| *b != 0) {
            out.push(Target {
                kind: Kind::Inode(n),
                at,
                bytes: usize::from(geo.inode_size),
            });
            mapped(v, ino, &mut out);
        }
    }
    out
}

/// The blocks of structures that an inode leads to.
fn mapped(v: &Volume, ino: Ino, out: &mut Vec<Target>) {
    let geo = &v.geo;
    let block = geo.block_len();
    let inode = v.inode(ino);
    let mut add = |kind, b: BlockNo| {
        out.push(Target {
            kind,
            at: v.at(b),
            bytes: block,
        });
    };
    if inode.file_acl.0 != 0 {
        add(Kind::Attributes, inode.file_acl);
    }
    if inode.links == 0 || ino == Ino::RESIZE {
        return;
    }
    let directory = inode.kind() == Some(FileKind::Directory);
    if inode.flags.contains(InodeFlags::INLINE_DATA) || !directory && !inode.maps_blocks(geo) {
        return;
    }
    if inode.flags.contains(InodeFlags::EXTENTS) {
        for b in v.extent_blocks(ino) {
            add(Kind::Extents(ino.0), b);
        }
    } else {
        for n in 12..15 {
            let word = inode.block[n * 4..n * 4 + 4].try_into().expect("four");
            let b = u32::from_le_bytes(word);
            if b != 0 && inode.maps_blocks(geo) {
                add(Kind::Indirect, BlockNo(b.into()));
            }
        }
    }
    let blocks = v.blocks(ino);
    let has = |feature| geo.features.has_compat(feature);
    if ino == Ino::JOURNAL {
        let head = v.at(blocks[0]);
        out.push(Target {
            kind: Kind::Journal,
            at: head,
            bytes: 1024,
        });
        return;
    }
    let orphan_file = v.sb().orphan_file_inum.get();
    if has(Compat::ORPHAN_FILE) && ino.0 == orphan_file {
        for b in blocks {
            add(Kind::Orphans(ino.0, b), b);
        }
        return;
    }
    if matches!(ino.0, 3 | 4) && !directory {
        for b in blocks {
            add(Kind::Quota, b);
        }
        return;
    }
    if !directory {
        return;
    }
    let indexed = inode.flags.contains(InodeFlags::INDEX);
    for b in blocks {
        let bytes = &v.image[v.at(b)..][..block];
        let root = bytes[..4] == ino.0.to_le_bytes() && bytes[6] == 1 && bytes[8] == b'.';
        let rec_len = usize::from(u16::from_le_bytes([bytes[4], bytes[5]]));
        let node = bytes[..4] == [0; 4] && rec_len == block && bytes[8..12] != [0; 4];
        match (indexed, root, node) {
            (true, true, _) => add(Kind::Index(ino.0, htree::DxPlace::Root), b),
            (true, _, true) => add(Kind::Index(ino.0, htree::DxPlace::Node), b),
            _ => add(Kind::Leaf(ino.0), b),
        }
    }
}

/// Makes the checksum over a structure right again. Generations and places are those of the undamaged volume.
fn sign(image: &mut [u8], whole: &Volume, t: Target) {
    let geo = &whole.geo;
    let seed = |ino: u32| geo.inode_seed(Ino(ino), whole.inode(Ino(ino)).generation);
    let format = whole.format();
    let bytes = &mut image[t.at..t.at + t.bytes];
    // Structures too damaged to have a checksum stay without one.
    match t.kind {
        Kind::Superblock | Kind::MmpPlace => {
            let mut raw = RawSuperblock::read(bytes).expect("long enough");
            if geo.metadata_csum() {
                raw.checksum
                    .set(blockwright_ondisk::ext4::checksum::superblock(
                        &raw.to_bytes(),
                    ));
            }
            bytes.copy_from_slice(&raw.to_bytes());
        }
        Kind::Group(g) => {
            let _ = group_desc::set_checksum(bytes, geo, GroupNo(g));
        }
        Kind::BlockBitmap(g) | Kind::InodeBitmap(g) => {
            if !geo.metadata_csum() {
                return;
            }
            let bitmap = bytes.to_vec();
            let (index, offset) = geo.desc_position(GroupNo(g));
            let at = whole.at(geo.desc_block(index).expect("a block")) + offset;
            let slot = &mut image[at..at + usize::from(geo.desc_size)];
            let Ok(mut desc) = blockwright_ondisk::ext4::GroupDesc::decode(slot, geo) else {
                return;
            };
            match t.kind {
                Kind::BlockBitmap(_) => desc.set_block_bitmap_csum(&bitmap, geo),
                _ => desc.set_inode_bitmap_csum(&bitmap, geo),
            }
            let _ = desc.encode_into(slot, geo, GroupNo(g));
        }
        Kind::Inode(ino) => {
            let _ = inode::set_checksum(bytes, geo, Ino(ino));
        }
        Kind::Leaf(ino) => {
            let _ = dir::set_leaf_checksum(bytes, &format, seed(ino));
        }
        Kind::Index(ino, place) => {
            let _ = htree::set_checksum(bytes, place, &format, seed(ino));
        }
        Kind::Extents(ino) => {
            let _ = extent::set_checksum(bytes, geo, seed(ino));
        }
        Kind::Attributes => {
            let block = BlockNo(t.at as u64 / u64::from(geo.block_size));
            let _ = xattr::set_block_checksum(bytes, block, geo);
        }
        Kind::Journal => fields::sign_journal(bytes),
        Kind::FastCommits => fields::sign_fast_commits(bytes, &whole.image[t.at..t.at + t.bytes]),
        Kind::Mmp => {
            if let Ok((mut raw, _)) = mmp::RawMmp::read_from_prefix(bytes) {
                raw.set_checksum(geo);
                bytes[..mmp::SIZE].copy_from_slice(raw.as_bytes());
            }
        }
        Kind::Orphans(ino, block) => {
            let _ = orphan_file::write_tail(bytes, block, geo, seed(ino));
        }
        Kind::Indirect | Kind::Quota | Kind::Log => {}
    }
}
