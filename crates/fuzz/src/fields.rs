//! Where the fields of the structures lie in a base image: what the mutator aims at.
//!
//! The tables give the lengths of a structure's fields, in order. Images are read with plain arithmetic rather than
//! with the parsers under test, so that a base which these refuse still has its fields.

use blockwright_device::{BlockDevice, DevOffset, MemoryDevice};

/// A field of a structure in an image.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Field {
    /// Byte offset in the image.
    pub at: u32,
    /// 1, 2, 4 or 8 bytes.
    pub len: u8,
    /// Most significant byte first: the journal's.
    pub big_endian: bool,
}

/// What is worth changing in an image.
#[derive(Clone, Debug, Default)]
pub struct Map {
    /// Fields of structures.
    pub fields: Vec<Field>,
    /// Offsets of blocks that hold metadata.
    pub blocks: Vec<u32>,
}

/// `(how often, length)`, in order.
type Table = &'static [(usize, u8)];

const EXT4_SUPER: Table = &[
    (10, 4),
    (4, 4),
    (6, 2),
    (4, 4),
    (2, 2),
    (1, 4),
    (2, 2),
    (3, 4),
    (16, 1),
    (16, 1),
    (64, 1),
    (1, 4),
    (2, 1),
    (1, 2),
    (16, 1),
    (3, 4),
    (4, 4),
    (2, 1),
    (1, 2),
    (3, 4),
    (17, 4),
    (3, 4),
    (2, 2),
    (1, 4),
    (2, 2),
    (1, 8),
    (1, 4),
    (4, 1),
    (1, 8),
    (40, 4),
    (96, 4),
];
const EXT4_DESC: Table = &[
    (3, 4),
    (4, 2),
    (1, 4),
    (4, 2),
    (3, 4),
    (4, 2),
    (1, 4),
    (2, 2),
    (1, 4),
];
const EXT4_INODE: Table = &[
    (2, 2),
    (5, 4),
    (2, 2),
    (3, 4),
    (15, 4),
    (4, 4),
    (6, 2),
    (2, 2),
    (7, 4),
];
const EXTENT_HEADER: Table = &[(4, 2), (1, 4)];
const EXTENT: Table = &[(1, 4), (2, 2), (1, 4)];
const XATTR_HEADER: Table = &[(5, 4), (3, 4)];
const XATTR_ENTRY: Table = &[(2, 1), (1, 2), (3, 4)];
const JOURNAL_SUPER: Table = &[(12, 4), (12, 4), (4, 1), (3, 4)];
const F2FS_SUPER: Table = &[(1, 4), (2, 2), (7, 4), (1, 8), (14, 4), (16, 1), (64, 2)];
const F2FS_CHECKPOINT: Table = &[
    (1, 8),
    (1, 8),
    (3, 8),
    (5, 4),
    (4, 4),
    (8, 2),
    (8, 4),
    (8, 2),
    (5, 4),
    (3, 4),
    (1, 8),
    (16, 1),
];
const F2FS_INODE: Table = &[
    (1, 2),
    (2, 1),
    (3, 4),
    (2, 8),
    (3, 8),
    (3, 4),
    (4, 4),
    (1, 4),
    (3, 4),
    (255, 1),
    (1, 1),
    (3, 4),
    (923, 4),
    (5, 4),
];
const F2FS_FOOTER: Table = &[(3, 4), (1, 8), (1, 4)];

struct Image<'a> {
    device: &'a MemoryDevice,
    bytes: u64,
    map: Map,
}

impl Image<'_> {
    fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let start = at / 4096 * 4096;
        let end = (at + len as u64).next_multiple_of(4096).min(self.bytes);
        let mut bytes = vec![0; end.saturating_sub(start) as usize];
        if start < end {
            // Memory has no faults.
            let _no_fault = self.device.read_at(DevOffset(start), &mut bytes);
        }
        let skip = (at - start) as usize;
        let mut found: Vec<u8> = bytes.get(skip..).unwrap_or_default().to_vec();
        found.resize(len, 0);
        found
    }

    fn number(&self, at: u64, len: usize) -> u64 {
        let bytes = self.read(at, len);
        bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
    }

    fn field(&mut self, at: u64, len: u8, big_endian: bool) {
        if at + u64::from(len) <= self.bytes.min(u64::from(u32::MAX)) {
            let at = at as u32;
            self.map.fields.push(Field {
                at,
                len,
                big_endian,
            });
        }
    }

    /// A structure's fields; returns where it ends.
    fn structure(&mut self, mut at: u64, table: Table, big_endian: bool) -> u64 {
        for (count, len) in table {
            for _ in 0..*count {
                self.field(at, *len, big_endian);
                at += u64::from(*len);
            }
        }
        at
    }

    fn block(&mut self, at: u64) {
        if at < self.bytes.min(u64::from(u32::MAX)) {
            self.map.blocks.push(at as u32);
        }
    }

    /// The words of a block that are not zero, and those behind them.
    fn words(&mut self, at: u64, len: usize, big_endian: bool) {
        let bytes = self.read(at, len);
        for (n, word) in bytes.chunks_exact(4).enumerate() {
            if word != [0; 4] {
                self.field(at + n as u64 * 4, 4, big_endian);
            }
        }
    }
}

/// The fields of an ext4 image.
#[must_use]
pub fn ext4(device: &MemoryDevice) -> Map {
    let bytes = device.geometry().bytes;
    let mut image = Image {
        device,
        bytes,
        map: Map::default(),
    };
    let number = |image: &Image<'_>, at: u64, len| image.number(1024 + at, len);
    let block = 1024u64 << number(&image, 24, 4).min(6);
    let (inodes, per_group) = (number(&image, 0, 4), number(&image, 40, 4).max(1));
    let inode_bytes = number(&image, 88, 2).max(128);
    let first = number(&image, 20, 4);
    let desc_bytes = match number(&image, 0x60, 4) & 0x80 {
        0 => 32,
        _ => number(&image, 254, 2).max(32),
    };
    image.structure(1024, EXT4_SUPER, false);
    image.block(1024 / block * block);
    image.block((first + 1) * block);
    for group in 0..inodes.div_ceil(per_group).min(64) {
        let desc = (first + 1) * block + group * desc_bytes;
        image.structure(desc, EXT4_DESC, false);
        for bitmap in [0, 4] {
            let at = image.number(desc + bitmap, 4) * block;
            image.block(at);
            (0..4).for_each(|n| image.field(at + n * 4, 4, false));
        }
        let table = image.number(desc + 8, 4) * block;
        for n in 0..per_group.min(256) {
            let at = table + n * inode_bytes;
            if image.number(at, 2) != 0 {
                image.structure(at, EXT4_INODE, false);
                image.block(at / block * block);
                ext4_inode(
                    &mut image,
                    at,
                    inode_bytes,
                    block,
                    group * per_group + n + 1,
                );
            }
        }
    }
    finish(image.map)
}

fn finish(mut map: Map) -> Map {
    map.fields.sort_unstable();
    map.fields.dedup();
    map.blocks.sort_unstable();
    map.blocks.dedup();
    map
}

/// What an inode refers to.
fn ext4_inode(image: &mut Image<'_>, at: u64, inode_bytes: u64, block: u64, ino: u64) {
    let (mode, flags) = (image.number(at, 2) >> 12, image.number(at + 32, 4));
    let extra = image.number(at + 128, 2);
    if inode_bytes > 128 && image.number(at + 128 + extra, 4) == 0xEA02_0000 {
        xattrs(image, at + 132 + extra);
    }
    let acl = image.number(at + 104, 4) * block;
    if acl != 0 {
        image.block(acl);
        let entries = image.structure(acl, XATTR_HEADER, false);
        xattrs(image, entries);
    }
    if flags & 0x1000_0000 != 0 {
        if mode == 4 {
            dirents(image, at + 44, 56);
        }
        return;
    }
    let mut data = Vec::new();
    if flags & 0x8_0000 != 0 {
        extents(image, at + 40, block, 0, &mut data);
    } else if matches!(mode, 4 | 8) {
        for n in 0..15 {
            let place = image.number(at + 40 + n * 4, 4) * block;
            if place != 0 && n >= 12 {
                image.block(place);
                image.words(place, block as usize, false);
            } else if place != 0 {
                data.push(place);
            }
        }
    }
    if mode == 4 {
        for place in data {
            image.block(place);
            dirents(image, place, block);
        }
    } else if ino == 8 {
        for (n, place) in data.into_iter().enumerate() {
            if n == 0 {
                image.structure(place, JOURNAL_SUPER, true);
                image.block(place);
            } else if image.number(place, 8) != 0 {
                image.block(place);
                let head = image.number(place, 4) == 0x9839_3BC0;
                image.words(place, if head { 160 } else { 64 }, head);
            }
        }
    }
}

fn xattrs(image: &mut Image<'_>, mut at: u64) {
    for _ in 0..16 {
        if image.number(at, 4) == 0 {
            break;
        }
        let name = image.number(at, 1);
        image.structure(at, XATTR_ENTRY, false);
        at += (16 + name).next_multiple_of(4);
    }
}

fn dirents(image: &mut Image<'_>, at: u64, len: u64) {
    let mut place = 0;
    while place + 8 <= len {
        let record = image.number(at + place + 4, 2).max(8);
        image.field(at + place, 4, false);
        image.field(at + place + 4, 2, false);
        image.field(at + place + 6, 1, false);
        image.field(at + place + 7, 1, false);
        // A name's first byte, and what an index keeps in the room behind `..`.
        (0..8).for_each(|n| image.field(at + place + 8 + n * 4, 4, false));
        place += record;
    }
}

fn extents(image: &mut Image<'_>, at: u64, block: u64, level: u32, data: &mut Vec<u64>) {
    let (count, depth) = (image.number(at + 2, 2).min(340), image.number(at + 6, 2));
    let mut place = image.structure(at, EXTENT_HEADER, false);
    for _ in 0..count {
        if depth > 0 {
            let child = image.number(place + 4, 4) * block;
            if level < 4 {
                image.block(child);
                extents(image, child, block, level + 1, data);
            }
        } else {
            let (len, start) = (
                image.number(place + 4, 2) & 0x7FFF,
                image.number(place + 8, 4),
            );
            data.extend((start..start + len.min(1200)).map(|b| b * block));
        }
        place = image.structure(place, EXTENT, false);
    }
}

/// The fields of an f2fs image.
#[must_use]
pub fn f2fs(device: &MemoryDevice) -> Map {
    const BLOCK: u64 = 4096;
    let bytes = device.geometry().bytes;
    let mut image = Image {
        device,
        bytes,
        map: Map::default(),
    };
    image.structure(1024, F2FS_SUPER, false);
    image.structure(1024 + BLOCK, F2FS_SUPER, false);
    image.block(0);
    image.block(BLOCK);
    // Checkpoints, SIT, NAT, SSA and main area, as the superblock places them.
    let starts: Vec<u64> = (0..5)
        .map(|n| image.number(1024 + 76 + n * 4, 4) * BLOCK)
        .collect();
    let end = image.number(1024 + 36, 8) * BLOCK;
    let areas = [&starts[..], &[end]].concat();
    for (kind, area) in areas.windows(2).enumerate() {
        let mut at = area[0];
        while at < area[1].min(bytes) {
            let head = image.read(at, BLOCK as usize);
            if head.iter().all(|b| *b == 0) {
                at += BLOCK;
                continue;
            }
            match kind {
                0 if at == area[0] || at == area[0] + 512 * BLOCK => {
                    image.structure(at, F2FS_CHECKPOINT, false);
                    image.words(at + 192, 128, false);
                    image.block(at);
                }
                0..=3 => {
                    image.words(at, BLOCK as usize, false);
                    image.block(at);
                }
                _ => f2fs_main(&mut image, at, &head),
            }
            at += BLOCK;
        }
    }
    finish(image.map)
}

/// A block of the main area: a node, a directory's, or data that no field is in.
fn f2fs_main(image: &mut Image<'_>, at: u64, block: &[u8]) {
    let word =
        |at: usize| u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    let (nid, ino) = (word(4072), word(4076));
    if (1..4096).contains(&nid) && (1..4096).contains(&ino) {
        image.block(at);
        image.structure(at + 4072, F2FS_FOOTER, false);
        if nid == ino {
            image.structure(at, F2FS_INODE, false);
        }
        image.words(at, 4072, false);
    } else if block[27..30] == [0; 3] && block[0] & 3 == 3 {
        // A bitmap, three reserved bytes, entries of 11 bytes, names.
        image.block(at);
        (0..7).for_each(|n| image.field(at + n * 4, 4, false));
        for n in 0..24 {
            image.field(at + 30 + n * 11, 4, false);
            image.field(at + 30 + n * 11 + 4, 4, false);
            image.field(at + 30 + n * 11 + 8, 2, false);
            image.field(at + 30 + n * 11 + 10, 1, false);
        }
    }
}
