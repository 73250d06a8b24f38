//! The fields of ext4's structures, from the format's description: where each is and how long, and the values that
//! damage gives it.

use super::lab::Rng;
use super::values::Value;
use blockwright_ondisk::ext4::fast_commit::{RECORD_HEADER, running_checksum, tag};
use blockwright_ondisk::ext4::jbd2::RawJournalSuperblock;
use zerocopy::{FromBytes, IntoBytes};

/// Offsets and lengths of the fields of a structure.
pub struct Structure {
    fields: Vec<(usize, usize)>,
    big_endian: bool,
}

fn little(fields: Vec<(usize, usize)>) -> Structure {
    Structure {
        fields,
        big_endian: false,
    }
}

/// Offsets of fields that follow each other.
fn run(fields: &mut Vec<(usize, usize)>, mut at: usize, sizes: &[usize]) {
    for size in sizes {
        fields.push((at, *size));
        at += size;
    }
}

/// Nothing but words.
pub fn words(bytes: usize) -> Structure {
    little((0..bytes / 4).map(|n| (n * 4, 4)).collect())
}

/// A bitmap of so many bytes, and the padding behind it: where it begins and where the block ends.
pub fn bitmap(used: usize, block: usize) -> Structure {
    let used = used.min(block);
    let mut f: Vec<(usize, usize)> = (0..used / 4).map(|n| (n * 4, 4)).collect();
    if used < block {
        f.extend([(used, 1), (block - 1, 1)]);
    }
    little(f)
}

pub fn superblock() -> Structure {
    let mut f = Vec::new();
    // To the first inode, and the fields of revision 1.
    run(&mut f, 0, &[4; 13]);
    run(&mut f, 0x34, &[2, 2, 2, 2, 2, 2, 4, 4, 4, 4, 2, 2]);
    run(&mut f, 0x54, &[4, 2, 2, 4, 4, 4, 4, 4, 4, 4]);
    run(&mut f, 0xC8, &[4, 1, 1, 2]);
    run(&mut f, 0xD0, &[4, 4, 4, 4, 4, 4, 4]);
    run(&mut f, 0xEC, &[4, 4, 4, 4, 1, 1, 2, 4, 4, 4]);
    // The copy of the journal's inode, and the upper halves.
    run(&mut f, 0x10C, &[4; 17]);
    run(&mut f, 0x150, &[4, 4, 4, 2, 2, 4, 2, 2, 4, 4, 1, 1, 1, 1]);
    run(&mut f, 0x178, &[4, 4, 4, 4, 4, 4, 4, 4]);
    run(&mut f, 0x240, &[4, 4, 4, 4, 4]);
    run(&mut f, 0x26C, &[4, 4, 1, 1, 1, 1, 1, 1, 2, 2, 2, 4]);
    f.push((0x3FC, 4));
    little(f)
}

pub fn group(bytes: usize) -> Structure {
    let half = [4, 4, 4, 2, 2, 2, 2, 4, 2, 2, 2, 2];
    let mut f = Vec::new();
    run(&mut f, 0, &half);
    if bytes >= 64 {
        run(&mut f, 0x20, &half);
    }
    little(f)
}

pub fn inode(bytes: &[u8]) -> Structure {
    let mut f = Vec::new();
    run(&mut f, 0, &[2, 2, 4, 4, 4, 4, 4, 2, 2, 4, 4, 4]);
    let magic = bytes[0x28..0x2A] == [0x0A, 0xF3];
    if magic {
        tree_fields(&mut f, &bytes[..0x64], 0x28);
    } else {
        run(&mut f, 0x28, &[4; 15]);
    }
    run(&mut f, 0x64, &[4, 4, 4, 4]);
    run(&mut f, 0x74, &[2, 2, 2, 2, 2, 2]);
    if bytes.len() > 128 {
        run(&mut f, 0x80, &[2, 2, 4, 4, 4, 4, 4, 4]);
        let extra = usize::from(u16::from_le_bytes([bytes[0x80], bytes[0x81]]));
        let at = 0x80 + extra;
        if at + 4 < bytes.len() {
            f.push((at, 4));
            entry_fields(&mut f, bytes, at + 4);
        }
    }
    little(f)
}

/// An extent tree's node: its head and its entries.
pub fn extents(bytes: &[u8]) -> Structure {
    let mut f = Vec::new();
    tree_fields(&mut f, bytes, 0);
    little(f)
}

fn tree_fields(f: &mut Vec<(usize, usize)>, bytes: &[u8], at: usize) {
    run(f, at, &[2, 2, 2, 2, 4]);
    let entries = usize::from(u16::from_le_bytes([bytes[at + 2], bytes[at + 3]]));
    let room = (bytes.len() - at - 12) / 12;
    for n in 0..entries.min(room) {
        run(f, at + 12 + n * 12, &[4, 2, 2, 4]);
    }
}

pub fn directory(bytes: &[u8]) -> Structure {
    let mut f = Vec::new();
    let mut at = 0;
    while at + 12 <= bytes.len() {
        run(&mut f, at, &[4, 2, 1, 1]);
        let len = usize::from(bytes[at + 6]);
        if len > 0 && at + 8 + len <= bytes.len() {
            f.push((at + 8, 1));
            f.push((at + 8 + len - 1, 1));
        }
        let next = usize::from(u16::from_le_bytes([bytes[at + 4], bytes[at + 5]]));
        if next < 12 {
            break;
        }
        at += next;
    }
    little(f)
}

/// A root (its entries of itself and its parent first) or an inner node of an index.
pub fn index(bytes: &[u8]) -> Structure {
    let mut f = Vec::new();
    run(&mut f, 0, &[4, 2, 1, 1]);
    let mut at = 8;
    if bytes[6] == 1 {
        run(&mut f, 8, &[1]);
        run(&mut f, 0x0C, &[4, 2, 1, 1, 1, 1]);
        run(&mut f, 0x18, &[4, 1, 1, 1, 1]);
        at = 0x20;
    }
    run(&mut f, at, &[2, 2, 4]);
    let count = usize::from(u16::from_le_bytes([bytes[at + 2], bytes[at + 3]]));
    for n in 1..count.min((bytes.len() - at) / 8) {
        run(&mut f, at + n * 8, &[4, 4]);
    }
    let tail = bytes.len() - 8;
    run(&mut f, tail, &[4, 4]);
    little(f)
}

/// A block of attributes.
pub fn attributes(bytes: &[u8], first: usize) -> Structure {
    let mut f = Vec::new();
    run(&mut f, 0, &[4, 4, 4, 4, 4]);
    entry_fields(&mut f, bytes, first);
    little(f)
}

fn entry_fields(f: &mut Vec<(usize, usize)>, bytes: &[u8], mut at: usize) {
    while at + 16 <= bytes.len() && bytes[at..at + 4] != [0; 4] {
        run(f, at, &[1, 1, 2, 4, 4, 4]);
        let len = usize::from(bytes[at]);
        if at + 16 + len <= bytes.len() && len > 0 {
            f.push((at + 16, 1));
        }
        at += 16 + len.next_multiple_of(4);
    }
}

pub fn journal() -> Structure {
    let mut f = Vec::new();
    run(&mut f, 0, &[4; 12]);
    run(&mut f, 0x40, &[4, 4, 4, 4, 1, 1, 2, 4, 4]);
    f.push((0xFC, 4));
    Structure {
        fields: f,
        big_endian: true,
    }
}

/// The head of a block of the journal, tags or revocations or what a commit block has, and a tail.
pub fn log() -> Structure {
    let mut f = Vec::new();
    run(&mut f, 0, &[4, 4, 4]);
    f.extend([(0x0C, 1), (0x0D, 1), (0x12, 2)]);
    run(&mut f, 0x0C, &[4; 30]);
    f.push((0x30, 8));
    f.push((1020, 4));
    Structure {
        fields: f,
        big_endian: true,
    }
}

/// Records of fast commits, to the one that ends them.
pub fn fast_commits(bytes: &[u8]) -> Structure {
    let mut f = Vec::new();
    for (kind, at, len) in records_of(bytes) {
        let value = at + RECORD_HEADER;
        run(&mut f, at, &[2, 2]);
        match kind {
            tag::CREAT | tag::LINK | tag::UNLINK => {
                run(&mut f, value, &[4, 4]);
                f.extend([(value + 8, 1), (value + len - 1, 1)]);
            }
            tag::INODE => {
                f.push((value, 4));
                let inode = inode(&bytes[value + 4..value + len]);
                let fields = inode.fields.iter();
                f.extend(fields.map(|(at, len)| (value + 4 + at, *len)));
            }
            tag::ADD_RANGE => run(&mut f, value, &[4, 4, 2, 2, 4]),
            tag::DEL_RANGE => run(&mut f, value, &[4, 4, 4]),
            tag::HEAD | tag::TAIL => run(&mut f, value, &[4, 4]),
            _ => {}
        }
    }
    little(f)
}

/// Tag, place and length of each record.
fn records_of(bytes: &[u8]) -> Vec<(u16, usize, usize)> {
    let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let mut out = Vec::new();
    let mut at = 0;
    while at + RECORD_HEADER <= bytes.len() {
        let (kind, len) = (half(at), usize::from(half(at + 2)));
        out.push((kind, at, len));
        if kind == tag::TAIL {
            break;
        }
        at += RECORD_HEADER + len;
    }
    out
}

/// Makes the checksum in the last record right, where it was on the undamaged volume.
pub fn sign_fast_commits(bytes: &mut [u8], whole: &[u8]) {
    let (_, at, len) = *records_of(whole).last().expect("records");
    let end = at + RECORD_HEADER + len - 4;
    let sum = running_checksum(0, &bytes[..end]);
    bytes[end..end + 4].copy_from_slice(&sum.to_le_bytes());
}

pub fn mmp() -> Structure {
    let mut f = Vec::new();
    run(&mut f, 0, &[4, 4, 4, 4, 1, 1]);
    f.extend([(0x4F, 1), (0x50, 1), (0x6F, 1)]);
    run(&mut f, 0x70, &[2, 2, 4]);
    f.extend([(0x3F8, 4), (0x3FC, 4)]);
    little(f)
}

/// What the superblock says of it: how often it is written, and where it is.
pub fn mmp_place() -> Structure {
    little(vec![(0x166, 2), (0x168, 4), (0x16C, 4)])
}

pub fn sign_journal(bytes: &mut [u8]) {
    if let Ok((mut raw, _)) = RawJournalSuperblock::read_from_prefix(bytes) {
        raw.set_checksum();
        bytes[..raw.as_bytes().len()].copy_from_slice(raw.as_bytes());
    }
}

impl Structure {
    /// How many fields it has.
    pub fn count(&self) -> usize {
        self.fields.len()
    }

    /// Where a field is.
    pub fn at(&self, n: usize) -> usize {
        self.fields[n].0
    }

    /// How many bytes a field has.
    pub fn bytes_of(&self, n: usize) -> usize {
        self.fields[n].1
    }

    /// Gives a field another value; what was changed.
    pub fn set(&self, bytes: &mut [u8], n: usize, value: Value) -> String {
        let fields = &self.fields;
        let (at, len) = fields[n];
        let get = |bytes: &[u8], at: usize| {
            let mut word = [0; 8];
            word[..len].copy_from_slice(&bytes[at..at + len]);
            if self.big_endian {
                word[..len].reverse();
            }
            u64::from_le_bytes(word)
        };
        let put = |bytes: &mut [u8], at: usize, value: u64| {
            let mut word = value.to_le_bytes();
            if self.big_endian {
                word[..len].reverse();
            }
            bytes[at..at + len].copy_from_slice(&word[..len]);
        };
        let old = get(bytes, at);
        let value = value.of(old).unwrap_or_else(|| {
            let others: Vec<usize> = (fields.iter())
                .filter(|(other, l)| *l == len && *other != at)
                .map(|(other, _)| *other)
                .collect();
            match others.iter().min_by_key(|other| other.abs_diff(at)) {
                Some(other) => {
                    let value = get(bytes, *other);
                    put(bytes, *other, old);
                    value
                }
                None => 0,
            }
        });
        put(bytes, at, value);
        let new = get(bytes, at);
        format!("field {at:#x} of {len}: {old:#x} to {new:#x}")
    }
}

/// Gives one field another value.
pub fn change(bytes: &mut [u8], structure: &Structure, rng: &mut Rng) -> String {
    let n = rng.below(structure.count() as u64) as usize;
    let value = Value::draw(structure.bytes_of(n), 4096, rng);
    structure.set(bytes, n, value)
}
