//! A small volume with one of everything, and the places of its structures, found by reading the raw format:
//! what damages a volume must not share code with what is tested.

use blockwright::{FileType, Volume, VolumeBuilder, XattrMode};
use blockwright_device::{MemoryDevice, SharedDevice};
use blockwright_ondisk::ext4::RawSuperblock;
use std::sync::Arc;

pub const BLOCK: usize = 1024;
pub const VOLUME_BYTES: u64 = 12 << 20;
const SUPERBLOCK: usize = 1024;

/// A copy of a volume's bytes that can be changed.
#[derive(Clone)]
pub struct Image(pub Vec<u8>);

/// Makes the volume and puts one of everything into it. `features` as mke2fs's `-O`.
pub fn make(features: &str) -> Image {
    make_of(VolumeBuilder::new().features(features))
}

/// As [`make`], starting from other defaults.
pub fn make_of(builder: VolumeBuilder) -> Image {
    let device = Arc::new(MemoryDevice::new(VOLUME_BYTES));
    let shared: SharedDevice = Arc::clone(&device) as SharedDevice;
    builder
        .size(VOLUME_BYTES)
        .block_size(BLOCK as u32)
        .inodes(1024)
        .create_on(&shared)
        .expect("made");
    let v = Volume::open_device(shared).expect("opens");
    populate(&v);
    v.close().expect("closed");
    Image(device.to_vec())
}

/// One of everything.
pub fn populate(v: &Volume) {
    v.create_dir_all("/dir/below/deep").expect("made");
    v.write("/dir/plain", vec![0x5A; 10_000]).expect("written");
    v.write("/dir/tiny", b"tiny").expect("written");
    v.write("/empty", b"").expect("written");
    v.hard_link("/dir/plain", "/dir/below/linked")
        .expect("linked");
    v.symlink("plain", "/dir/short").expect("linked");
    v.symlink("x/".repeat(100), "/dir/long").expect("linked");
    v.mknod("/dir/fifo", FileType::Fifo, 0o600, 0)
        .expect("made");
    // Every other block: extents in a tree of two levels.
    let holes = v.create_file("/holes").expect("made");
    for i in 0..200 {
        holes
            .write_all_at(&[i as u8; BLOCK], i * 2 * BLOCK as u64)
            .expect("written");
    }
    drop(holes);
    let unwritten = v.create_file("/unwritten").expect("made");
    unwritten.allocate(0, 100_000).expect("allocated");
    drop(unwritten);
    // Attributes that do not fit into the inode.
    v.set_xattr("/dir/plain", "user.large", [7; 600], XattrMode::Any)
        .expect("set");
    v.set_xattr("/dir/tiny", "user.small", b"small", XattrMode::Any)
        .expect("set");
    // An indexed directory of two levels.
    v.create_dir("/many").expect("made");
    for i in 0..420 {
        let name = format!("/many/{i:03}-{}", "n".repeat(180));
        if i % 16 == 0 {
            v.write(&name, b"one of many").expect("written");
        } else {
            v.hard_link("/empty", &name).expect("linked");
        }
    }
}

impl Image {
    pub fn device(&self) -> Arc<MemoryDevice> {
        Arc::new(MemoryDevice::from_image(&self.0))
    }

    pub fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.0[at], self.0[at + 1]])
    }

    pub fn u32(&self, at: usize) -> u32 {
        u32::from(self.u16(at)) | u32::from(self.u16(at + 2)) << 16
    }

    pub fn put16(&mut self, at: usize, value: u16) {
        self.0[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    pub fn put32(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    pub fn flip(&mut self, at: usize) {
        self.0[at] ^= 0x10;
    }

    /// Makes the superblock's checksum right again.
    pub fn sign_superblock(&mut self) {
        let bytes = &mut self.0[SUPERBLOCK..SUPERBLOCK + 1024];
        let mut raw = RawSuperblock::read(bytes).expect("long enough");
        raw.set_checksum();
        bytes.copy_from_slice(&raw.to_bytes());
    }

    fn is_64bit(&self) -> bool {
        self.u32(SUPERBLOCK + 0x60) & 0x80 != 0
    }

    /// Where a group's descriptor is. Blocks of 1 KiB: the table begins in block 2.
    pub fn group_desc(&self, group: usize) -> usize {
        let size = if self.is_64bit() { 64 } else { 32 };
        2 * BLOCK + group * size
    }

    pub fn block_bitmap(&self, group: usize) -> usize {
        self.u32(self.group_desc(group)) as usize * BLOCK
    }

    pub fn inode_bitmap(&self, group: usize) -> usize {
        self.u32(self.group_desc(group) + 4) as usize * BLOCK
    }

    /// Where an inode is.
    pub fn inode(&self, ino: u64) -> usize {
        let per_group = self.u32(SUPERBLOCK + 0x28) as usize;
        let size = usize::from(self.u16(SUPERBLOCK + 0x58));
        let (group, index) = (
            (ino as usize - 1) / per_group,
            (ino as usize - 1) % per_group,
        );
        self.u32(self.group_desc(group) + 8) as usize * BLOCK + index * size
    }

    /// Where an inode's map begins.
    pub fn i_block(&self, ino: u64) -> usize {
        self.inode(ino) + 40
    }

    /// Where the block is that the first pointer of an inode's extent root names: a leaf of the tree when it
    /// has levels below, otherwise the first block of data.
    pub fn first_pointer(&self, ino: u64) -> usize {
        let root = self.i_block(ino);
        assert_eq!(self.u16(root), 0xF30A, "an extent root");
        let block = match self.u16(root + 6) {
            0 => self.u32(root + 12 + 8),
            _ => self.u32(root + 12 + 4),
        };
        block as usize * BLOCK
    }

    /// Where the journal begins: it is one run on volumes as small as these.
    pub fn journal(&self) -> usize {
        self.first_pointer(8)
    }

    /// Where a file's attribute block is.
    pub fn xattr_block(&self, ino: u64) -> usize {
        let block = self.u32(self.inode(ino) + 0x68);
        assert_ne!(block, 0, "inode {ino} has no attribute block");
        block as usize * BLOCK
    }

    /// All blocks that hold metadata of interest: what the fuzzer aims at.
    pub fn metadata_blocks(&self) -> Vec<usize> {
        let ino = |path: &str| self.ino(path);
        let mut out = vec![BLOCK, 2 * BLOCK];
        for group in 0..2 {
            out.push(self.block_bitmap(group));
            out.push(self.inode_bitmap(group));
        }
        for path in ["/", "/dir", "/holes", "/many", "/dir/long", "/dir/plain"] {
            out.push(self.inode(ino(path)) / BLOCK * BLOCK);
        }
        for ino in [3u64, 7, 8] {
            out.push(self.inode(ino) / BLOCK * BLOCK);
        }
        if self.u16(self.i_block(ino("/holes"))) == 0xF30A {
            out.push(self.first_pointer(ino("/holes")));
        }
        for (path, block) in [
            ("/", 0),
            ("/dir", 0),
            ("/many", 0),
            ("/many", 1),
            ("/many", 30),
        ] {
            out.extend(self.find_file_block(ino(path), block));
        }
        out.push(self.xattr_block(ino("/dir/plain")));
        if self.u32(SUPERBLOCK + 0x5C) & 4 != 0 {
            let journal = self.journal();
            out.extend([journal, journal + BLOCK]);
        }
        out
    }

    /// The number of a file's inode.
    pub fn ino(&self, path: &str) -> u64 {
        let v = Volume::options()
            .read_only(true)
            .open_device(self.device())
            .expect("opens");
        v.symlink_metadata(path).expect("there").ino()
    }

    /// Where a block of a file is.
    pub fn file_block(&self, ino: u64, block: u64) -> usize {
        self.find_file_block(ino, block).expect("a block")
    }

    /// Where a block of a file is, unless it is inline or a hole.
    pub fn find_file_block(&self, ino: u64, block: u64) -> Option<usize> {
        let v = Volume::options()
            .read_only(true)
            .open_device(self.device())
            .expect("opens");
        let inode = v.vfs().inode(blockwright_vfs::Ino(ino)).expect("an inode");
        let at = block * BLOCK as u64;
        let m = v.vfs().engine().map(&inode, at, 1).expect("mapped");
        match m.place {
            blockwright_vfs::engine::Place::Mapped(d) => Some((d.0 + at - m.offset) as usize),
            _ => None,
        }
    }
}
