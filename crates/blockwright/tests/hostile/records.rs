//! A volume with a log and fast commits to replay, one record of each kind.

use crate::image::{BLOCK, Image};
use blockwright_ondisk::ext4::checksum::journal_superblock;
use blockwright_ondisk::ext4::fast_commit::{running_checksum, tag};

/// Blocks of the area at the journal's end.
const AREA: u32 = 64;
/// An inode and a block that no file has.
const NEW: u32 = 900;
const NEW_BLOCK: u32 = 11_800;

#[derive(Clone, Debug)]
pub struct Record {
    pub tag: u16,
    pub value: Vec<u8>,
}

fn record(tag: u16, parts: &[&[u8]]) -> Record {
    Record {
        tag,
        value: parts.concat(),
    }
}

/// One that has a name, a directory and an inode in it.
fn name(tag: u16, parent: u32, ino: u32, name: &str) -> Record {
    let (parent, ino) = (parent.to_le_bytes(), ino.to_le_bytes());
    record(tag, &[&parent, &ino, name.as_bytes()])
}

/// A volume with a journal to replay, and where fast commits go in it.
pub struct Scene {
    pub image: Image,
    /// The area's first block that is used.
    pub area: usize,
    pub records: Vec<Record>,
}

impl Scene {
    /// `image` has the feature and a journal to be replayed.
    pub fn new(mut image: Image) -> Self {
        let journal = image.journal();
        let word = |image: &Image, at: usize| image.u32(journal + at).swap_bytes();
        // A kernel sets the journal's feature when it mounts a volume that has its own.
        let features = word(&image, 0x28) | 0x20;
        image.put32(journal + 0x28, features.swap_bytes());
        image.put32(journal + 0x54, AREA.swap_bytes());
        let raw: &[u8; 1024] = image.0[journal..][..1024].try_into().expect("1024");
        let sum = journal_superblock(raw);
        image.put32(journal + 0xFC, sum.swap_bytes());
        let (len, first) = (word(&image, 0x10), word(&image, 0x18));
        // Behind the last transaction that was committed.
        let committed = |tid: u32| {
            (1..(len - AREA) as usize).any(|n| {
                let at = n * BLOCK;
                let head = [word(&image, at), word(&image, at + 4), word(&image, at + 8)];
                head == [0xC03B_3998, 2, tid]
            })
        };
        let tid = (first..).find(|tid| !committed(*tid)).expect("an end");
        assert!(tid > first, "nothing to replay");
        let records = records(&image, tid);
        Scene {
            area: journal + (len - AREA + 1) as usize * BLOCK,
            image,
            records,
        }
    }

    /// The volume with these records. The last, which ends them, gets its checksum unless it has one.
    pub fn with(&self, records: &[Record]) -> Image {
        let mut bytes = Vec::new();
        for Record { tag, value } in records {
            bytes.extend(tag.to_le_bytes());
            bytes.extend((value.len() as u16).to_le_bytes());
            bytes.extend(value);
        }
        self.signed(bytes)
    }

    pub fn signed(&self, mut bytes: Vec<u8>) -> Image {
        let sum = running_checksum(0, &bytes[..bytes.len() - 4]);
        let at = bytes.len() - 4;
        bytes[at..].copy_from_slice(&sum.to_le_bytes());
        self.raw(&bytes)
    }

    pub fn raw(&self, bytes: &[u8]) -> Image {
        assert!(bytes.len() <= BLOCK);
        let mut image = self.image.clone();
        image.0[self.area..][..bytes.len()].copy_from_slice(bytes);
        image
    }

    pub fn bytes(&self) -> Vec<u8> {
        let good = self.with(&self.records);
        let length: usize = self.records.iter().map(|r| 4 + r.value.len()).sum();
        good.0[self.area..][..length].to_vec()
    }
}

/// One of each kind, as a kernel could have logged them.
fn records(image: &Image, tid: u32) -> Vec<Record> {
    let dir = image.ino("/dir") as u32;
    let (tiny, empty) = (image.ino("/dir/tiny") as u32, image.ino("/empty") as u32);
    let holes = (image.ino("/holes") as u32).to_le_bytes();
    // A new file is like one that is there, except its size and links.
    let size = usize::from(image.u16(1024 + 0x58));
    let mut raw = image.0[image.inode(u64::from(tiny))..][..size].to_vec();
    raw[4..8].copy_from_slice(&4000u32.to_le_bytes());
    raw[26..28].copy_from_slice(&1u16.to_le_bytes());
    raw[0x64..0x68].copy_from_slice(&77u32.to_le_bytes());
    let new = NEW.to_le_bytes();
    let (zero, length) = (0u32.to_le_bytes(), [4, 0, 0, 0]);
    let (first, count) = (10u32.to_le_bytes(), 10u32.to_le_bytes());
    vec![
        record(tag::HEAD, &[&zero, &tid.to_le_bytes()]),
        record(tag::INODE, &[&new, &raw]),
        record(
            tag::ADD_RANGE,
            &[&new, &zero, &length, &NEW_BLOCK.to_le_bytes()],
        ),
        name(tag::CREAT, 2, NEW, "made by a record"),
        name(tag::LINK, dir, NEW, "and linked"),
        name(tag::UNLINK, dir, NEW, "and linked"),
        name(tag::UNLINK, 2, empty, "empty"),
        record(tag::DEL_RANGE, &[&holes, &first, &count]),
        record(tag::PAD, &[&[0; 8]]),
        record(tag::TAIL, &[&tid.to_le_bytes(), &zero]),
    ]
}
