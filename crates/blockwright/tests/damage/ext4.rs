//! ext4: small volumes of many shapes, and damage to their structures by field, by bit and by block.

use super::fields::{self, Structure};
use super::lab::volume::Volume;
use super::lab::{Lab, Rng};
use blockwright::VolumeBuilder;
use blockwright_device::{MemoryDevice, SharedDevice};
use blockwright_ondisk::ext4::inode::{self, InodeFlags};
use blockwright_ondisk::ext4::superblock::RawSuperblock;
use blockwright_ondisk::ext4::{
    BlockNo, Compat, FileKind, GroupNo, Ino, dir, extent, group_desc, htree, orphan_file, xattr,
};
use std::sync::Arc;

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

impl Base {
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
        let kind = match rng.below(5) {
            0 | 1 => name(inodes.expect("inodes")),
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

    fn structure(&self, image: &[u8], whole: &Volume, t: Target) -> Structure {
        let bytes = &image[t.at..t.at + t.bytes];
        match t.kind {
            Kind::Superblock => fields::superblock(),
            Kind::Group(_) => fields::group(t.bytes),
            Kind::BlockBitmap(_) => fields::words(whole.geo.block_bitmap_bytes().min(t.bytes)),
            Kind::InodeBitmap(_) => fields::words(whole.geo.inode_bitmap_bytes().min(t.bytes)),
            Kind::Inode(_) => fields::inode(bytes),
            Kind::Leaf(_) => fields::directory(bytes),
            Kind::Index(..) => fields::index(bytes),
            Kind::Extents(_) => fields::extents(bytes),
            Kind::Attributes => fields::attributes(bytes, 32),
            Kind::Journal => fields::journal(),
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
        Kind::Superblock => {
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
        Kind::Orphans(ino, block) => {
            let _ = orphan_file::write_tail(bytes, block, geo, seed(ino));
        }
        Kind::Indirect | Kind::Quota => {}
    }
}
