//! Inodes: 128 bytes, plus the fields behind them that the inode's own extra size covers.
//!
//! [`Inode`] is the parsed form: halves joined, times decoded. [`Inode::encode_into`] writes the
//! known fields back over the inode's old bytes, so fields unknown to this crate, and attributes kept
//! in the inode behind the extra size, survive.
//!
//! Not responsible for: what `block` (`i_block`) means; see `extent`, the engine's block map, and
//! inline data. Attributes in the inode: see `xattr`.
//!
//! Reference: kernel documentation, "ext4 Data Structures: Index Nodes".

use std::mem::{offset_of, size_of};

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::checksum::{INODE_CHECKSUM_HI_OFFSET, INODE_CHECKSUM_LO_OFFSET, inode_has_checksum_hi};
use super::error::FormatError;
use super::features::{Incompat, RoCompat};
use super::geometry::Geometry;
use super::types::{BlockNo, FileKind, Ino};

pub use super::timestamp::Timestamp;

/// Bytes of every inode before the extra size.
pub const BASE_SIZE: usize = 128;
/// Bytes of `i_block`.
pub const BLOCK_AREA: usize = 60;
/// Longest target of a symbolic link kept in `i_block`.
pub const FAST_SYMLINK_MAX: usize = BLOCK_AREA - 1;
/// Extra bytes that hold all fields known today.
pub const FULL_EXTRA_ISIZE: u16 = 32;

bitflags! {
    /// `i_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct InodeFlags: u32 {
        /// Wipe on deletion (not implemented anywhere).
        const SECRM = 0x0000_0001;
        /// Keep for undeletion (not implemented anywhere).
        const UNRM = 0x0000_0002;
        /// Compress (not implemented anywhere).
        const COMPR = 0x0000_0004;
        /// Write synchronously.
        const SYNC = 0x0000_0008;
        /// May not be changed.
        const IMMUTABLE = 0x0000_0010;
        /// May only be appended to.
        const APPEND = 0x0000_0020;
        /// Leave out of dumps.
        const NODUMP = 0x0000_0040;
        /// Do not keep access times.
        const NOATIME = 0x0000_0080;
        /// Compressed and dirty (not implemented anywhere).
        const DIRTY = 0x0000_0100;
        /// Has compressed blocks (not implemented anywhere).
        const COMPRBLK = 0x0000_0200;
        /// Do not compress (not implemented anywhere).
        const NOCOMPR = 0x0000_0400;
        /// Encrypted.
        const ENCRYPT = 0x0000_0800;
        /// Directory with a hash index.
        const INDEX = 0x0000_1000;
        /// AFS directory.
        const IMAGIC = 0x0000_2000;
        /// Journal the data too.
        const JOURNAL_DATA = 0x0000_4000;
        /// Never merge the tail.
        const NOTAIL = 0x0000_8000;
        /// Directory changes are synchronous.
        const DIRSYNC = 0x0001_0000;
        /// Top of a directory hierarchy (for placement).
        const TOPDIR = 0x0002_0000;
        /// `i_blocks` counts file system blocks.
        const HUGE_FILE = 0x0004_0000;
        /// Mapped by extents.
        const EXTENTS = 0x0008_0000;
        /// Protected by a Merkle tree.
        const VERITY = 0x0010_0000;
        /// Holds a large extended attribute value.
        const EA_INODE = 0x0020_0000;
        /// Blocks past the end of the file (obsolete).
        const EOFBLOCKS = 0x0040_0000;
        /// Copy on write (never released).
        const NOCOW = 0x0080_0000;
        /// Snapshot (never released).
        const SNAPFILE = 0x0100_0000;
        /// Direct access to persistent memory.
        const DAX = 0x0200_0000;
        /// Snapshot being deleted (never released).
        const SNAPFILE_DELETED = 0x0400_0000;
        /// Snapshot shrunk (never released).
        const SNAPFILE_SHRUNK = 0x0800_0000;
        /// Data lives in the inode.
        const INLINE_DATA = 0x1000_0000;
        /// New children inherit the project id.
        const PROJINHERIT = 0x2000_0000;
        /// Case-insensitive directory.
        const CASEFOLD = 0x4000_0000;
        /// Reserved.
        const RESERVED = 0x8000_0000;
        const _ = !0;
    }
}

/// The first 128 bytes of an inode. Fields keep their documented names, without `i_`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawInodeBase {
    pub mode: U16,
    pub uid: U16,
    pub size_lo: U32,
    pub atime: U32,
    pub ctime: U32,
    pub mtime: U32,
    pub dtime: U32,
    pub gid: U16,
    pub links_count: U16,
    pub blocks_lo: U32,
    pub flags: U32,
    pub version_lo: U32,
    pub block: [u8; BLOCK_AREA],
    pub generation: U32,
    pub file_acl_lo: U32,
    pub size_high: U32,
    pub obso_faddr: U32,
    pub blocks_high: U16,
    pub file_acl_high: U16,
    pub uid_high: U16,
    pub gid_high: U16,
    pub checksum_lo: U16,
    pub reserved: U16,
}

/// The fields behind the first 128 bytes; how many of them exist is `extra_isize`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawInodeExtra {
    pub extra_isize: U16,
    pub checksum_hi: U16,
    pub ctime_extra: U32,
    pub mtime_extra: U32,
    pub atime_extra: U32,
    pub crtime: U32,
    pub crtime_extra: U32,
    pub version_hi: U32,
    pub projid: U32,
}

/// An inode of at least 160 bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // the two parts
pub struct RawInode {
    pub base: RawInodeBase,
    pub extra: RawInodeExtra,
}

const _: () = {
    assert!(size_of::<RawInodeBase>() == BASE_SIZE);
    assert!(size_of::<RawInodeExtra>() == FULL_EXTRA_ISIZE as usize);
    assert!(size_of::<RawInode>() == 160);
    assert!(offset_of!(RawInodeBase, links_count) == 0x1A);
    assert!(offset_of!(RawInodeBase, flags) == 0x20);
    assert!(offset_of!(RawInodeBase, block) == 0x28);
    assert!(offset_of!(RawInodeBase, generation) == 0x64);
    assert!(offset_of!(RawInodeBase, blocks_high) == 0x74);
    assert!(offset_of!(RawInodeBase, checksum_lo) == INODE_CHECKSUM_LO_OFFSET);
    assert!(offset_of!(RawInode, extra) + 2 == INODE_CHECKSUM_HI_OFFSET);
    assert!(offset_of!(RawInodeExtra, crtime) == 0x10);
    assert!(offset_of!(RawInodeExtra, projid) == 0x1C);
};

/// End of each optional field, as an extra size.
mod extra_end {
    pub const CTIME: u16 = 8;
    pub const MTIME: u16 = 12;
    pub const ATIME: u16 = 16;
    pub const CRTIME: u16 = 20;
    pub const CRTIME_EXTRA: u16 = 24;
    pub const PROJID: u16 = 32;
}

/// An inode's fields, joined and decoded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inode {
    /// Type and permission bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Last change of the data.
    pub mtime: Timestamp,
    /// Creation; `None` when the inode has no room for it.
    pub crtime: Option<Timestamp>,
    /// Deletion in seconds since 1970, or the next orphan while on the orphan list.
    pub dtime: u32,
    /// Hard links.
    pub links: u16,
    /// Space in use, in units of 512 bytes, attribute block included.
    pub sectors: u64,
    /// Flags. `HUGE_FILE` follows from `sectors` when encoding.
    pub flags: InodeFlags,
    /// Change counter; 32 bits where the inode has no room for more.
    pub version: u64,
    /// `i_block`: extent root, block map, inline data, fast link target, or device number.
    pub block: [u8; BLOCK_AREA],
    /// Generation (distinguishes reuses of an inode number).
    pub generation: u32,
    /// Attribute block, 0 for none.
    pub file_acl: BlockNo,
    /// Extra bytes in use behind the first 128; 0 for 128-byte inodes.
    pub extra_isize: u16,
    /// Project id; 0 where the inode has no room for it.
    pub projid: u32,
}

impl Inode {
    /// A zeroed inode of the volume's preferred extra size.
    #[must_use]
    pub fn new(geo: &Geometry, mode: u16) -> Self {
        let extra_isize = if usize::from(geo.inode_size) > BASE_SIZE {
            geo.want_extra_isize
        } else {
            0
        };
        Self {
            mode,
            uid: 0,
            gid: 0,
            size: 0,
            atime: Timestamp::default(),
            ctime: Timestamp::default(),
            mtime: Timestamp::default(),
            crtime: (extra_isize >= extra_end::CRTIME).then(Timestamp::default),
            dtime: 0,
            links: 0,
            sectors: 0,
            flags: InodeFlags::empty(),
            version: 0,
            block: [0; BLOCK_AREA],
            generation: 0,
            file_acl: BlockNo(0),
            extra_isize,
            projid: 0,
        }
    }

    /// Verifies the checksum and parses.
    ///
    /// # Errors
    /// [`FormatError::InodeChecksum`], or what [`Self::decode`] returns.
    pub fn parse(raw: &[u8], geo: &Geometry, ino: Ino) -> Result<Self, FormatError> {
        verify_checksum(raw, geo, ino)?;
        Self::decode(raw, geo, ino)
    }

    /// Parses without verifying the checksum: for checkers.
    ///
    /// # Errors
    /// [`FormatError::Truncated`], [`FormatError::InodeExtraSize`], [`FormatError::InodeSize`].
    pub fn decode(raw: &[u8], geo: &Geometry, ino: Ino) -> Result<Self, FormatError> {
        let raw = inode_bytes(raw, geo)?;
        let (base, rest) = RawInodeBase::ref_from_prefix(raw)
            .map_err(|_| truncated(usize::from(geo.inode_size), raw.len()))?;
        let extra_isize = match rest.get(..2) {
            Some(b) => u16::from_le_bytes([b[0], b[1]]),
            None => 0,
        };
        if usize::from(extra_isize) > rest.len() || !extra_isize.is_multiple_of(4) {
            return Err(FormatError::InodeExtraSize {
                ino,
                found: extra_isize,
                max: rest.len() as u16,
            });
        }
        // Fields the extra size does not cover belong to the attributes; read them as zero.
        let mut extra = [0u8; FULL_EXTRA_ISIZE as usize];
        let have = usize::from(extra_isize.min(FULL_EXTRA_ISIZE));
        extra[..have].copy_from_slice(&rest[..have]);
        let extra: RawInodeExtra = zerocopy::transmute!(extra);

        let mode = base.mode.get();
        let flags = InodeFlags::from_bits_retain(base.flags.get());
        let size = u64::from(base.size_lo.get())
            | if size_has_high(mode, geo) {
                u64::from(base.size_high.get()) << 32
            } else {
                0
            };
        if i64::try_from(size).is_err() {
            return Err(FormatError::InodeSize { ino, found: size });
        }
        let time = |secs: U32, word: U32, end: u16| {
            Timestamp::decode(secs.get(), (extra_isize >= end).then_some(word.get()))
        };
        let version_hi = u64::from(extra.version_hi.get()) << 32;
        Ok(Self {
            mode,
            uid: u32::from(base.uid.get()) | u32::from(base.uid_high.get()) << 16,
            gid: u32::from(base.gid.get()) | u32::from(base.gid_high.get()) << 16,
            size,
            atime: time(base.atime, extra.atime_extra, extra_end::ATIME),
            ctime: time(base.ctime, extra.ctime_extra, extra_end::CTIME),
            mtime: time(base.mtime, extra.mtime_extra, extra_end::MTIME),
            crtime: (extra_isize >= extra_end::CRTIME)
                .then(|| time(extra.crtime, extra.crtime_extra, extra_end::CRTIME_EXTRA)),
            dtime: base.dtime.get(),
            links: base.links_count.get(),
            sectors: decode_sectors(base, flags, geo),
            flags,
            version: u64::from(base.version_lo.get()) | version_hi,
            block: base.block,
            generation: base.generation.get(),
            file_acl: BlockNo(
                u64::from(base.file_acl_lo.get())
                    | if geo.features.has_incompat(Incompat::BIT64) {
                        u64::from(base.file_acl_high.get()) << 32
                    } else {
                        0
                    },
            ),
            extra_isize,
            projid: extra.projid.get(),
        })
    }

    /// Stores all fields into the inode's `geo.inode_size` bytes and sets the checksum.
    ///
    /// Bytes without a field here (and attributes in the inode) are left alone. When
    /// `extra_isize` differs from what is stored, the bytes between must already be what the
    /// caller wants there: moving attributes is the caller's work.
    ///
    /// # Errors
    /// [`FormatError::Truncated`], [`FormatError::InodeExtraSize`], [`FormatError::InodeSize`],
    /// [`FormatError::InodeSectors`] when the count cannot be represented on this volume.
    pub fn encode_into(&self, raw: &mut [u8], geo: &Geometry, ino: Ino) -> Result<(), FormatError> {
        let needed = usize::from(geo.inode_size);
        let found = raw.len();
        let raw = raw
            .get_mut(..needed)
            .ok_or_else(|| truncated(needed, found))?;
        let max = needed - BASE_SIZE;
        let extra_isize = self.extra_isize;
        if usize::from(extra_isize) > max || !extra_isize.is_multiple_of(4) {
            return Err(FormatError::InodeExtraSize {
                ino,
                found: extra_isize,
                max: max as u16,
            });
        }
        let wide = size_has_high(self.mode, geo);
        if i64::try_from(self.size).is_err() || (!wide && self.size > u64::from(u32::MAX)) {
            return Err(FormatError::InodeSize {
                ino,
                found: self.size,
            });
        }
        let (sectors_lo, sectors_hi, huge) =
            encode_sectors(self.sectors, geo).ok_or(FormatError::InodeSectors {
                ino,
                sectors: self.sectors,
            })?;
        let mut flags = self.flags;
        flags.set(InodeFlags::HUGE_FILE, huge);

        let (base, rest) =
            RawInodeBase::mut_from_prefix(raw).map_err(|_| truncated(needed, found))?;
        base.mode.set(self.mode);
        base.uid.set(self.uid as u16);
        base.uid_high.set((self.uid >> 16) as u16);
        base.gid.set(self.gid as u16);
        base.gid_high.set((self.gid >> 16) as u16);
        base.size_lo.set(self.size as u32);
        if wide {
            base.size_high.set((self.size >> 32) as u32);
        }
        base.dtime.set(self.dtime);
        base.links_count.set(self.links);
        base.blocks_lo.set(sectors_lo);
        if geo.features.has_ro_compat(RoCompat::HUGE_FILE) {
            base.blocks_high.set(sectors_hi);
        }
        base.flags.set(flags.bits());
        base.version_lo.set(self.version as u32);
        base.block = self.block;
        base.generation.set(self.generation);
        base.file_acl_lo.set(self.file_acl.0 as u32);
        if geo.features.has_incompat(Incompat::BIT64) {
            base.file_acl_high.set((self.file_acl.0 >> 32) as u16);
        }

        let mut extra = [0u8; FULL_EXTRA_ISIZE as usize];
        let have = usize::from(extra_isize.min(FULL_EXTRA_ISIZE));
        extra[..have].copy_from_slice(&rest[..have]);
        let mut extra: RawInodeExtra = zerocopy::transmute!(extra);
        extra.extra_isize.set(extra_isize);
        let put = |time: Timestamp, end: u16, secs: &mut U32, word: &mut U32| {
            let (lo, hi) = time.encode(extra_isize >= end);
            secs.set(lo);
            word.set(hi);
        };
        put(
            self.atime,
            extra_end::ATIME,
            &mut base.atime,
            &mut extra.atime_extra,
        );
        put(
            self.ctime,
            extra_end::CTIME,
            &mut base.ctime,
            &mut extra.ctime_extra,
        );
        put(
            self.mtime,
            extra_end::MTIME,
            &mut base.mtime,
            &mut extra.mtime_extra,
        );
        let crtime = self.crtime.unwrap_or_default();
        put(
            crtime,
            extra_end::CRTIME_EXTRA,
            &mut extra.crtime,
            &mut extra.crtime_extra,
        );
        extra.version_hi.set((self.version >> 32) as u32);
        extra.projid.set(self.projid);
        if max >= 2 {
            let bytes = extra.as_bytes();
            // Even an extra size of 0 is a stored field where there is room behind 128 bytes.
            let len = have.max(2);
            rest[..len].copy_from_slice(&bytes[..len]);
        }
        set_checksum(raw, geo, ino)
    }

    /// What the inode is; `None` for a free inode or a mode of no defined type.
    #[must_use]
    pub fn kind(&self) -> Option<FileKind> {
        FileKind::from_mode(self.mode)
    }

    /// Whether the inode has room for a project id.
    #[must_use]
    pub fn has_projid(&self) -> bool {
        self.extra_isize >= extra_end::PROJID
    }

    /// Whether the link's target is kept in `i_block`.
    #[must_use]
    pub fn is_fast_symlink(&self, geo: &Geometry) -> bool {
        // Space charged for an attribute block (a whole cluster) is not the target's.
        let attr = match self.file_acl.0 {
            0 => 0,
            _ => (u64::from(geo.cluster_ratio) << geo.block_bits) >> 9,
        };
        self.kind() == Some(FileKind::Symlink)
            && !self
                .flags
                .intersects(InodeFlags::INLINE_DATA | InodeFlags::EXTENTS)
            && self.size <= FAST_SYMLINK_MAX as u64
            && self.sectors.saturating_sub(attr) == 0
    }

    /// Whether `i_block` maps blocks (by extents or by a block map).
    #[must_use]
    pub fn maps_blocks(&self, geo: &Geometry) -> bool {
        match self.kind() {
            Some(FileKind::Regular | FileKind::Directory) => {
                !self.flags.contains(InodeFlags::INLINE_DATA)
            }
            Some(FileKind::Symlink) => {
                !self.flags.contains(InodeFlags::INLINE_DATA) && !self.is_fast_symlink(geo)
            }
            _ => false,
        }
    }

    /// Device number (major, minor) of a character or block device.
    #[must_use]
    pub fn device(&self) -> (u32, u32) {
        let word = |at: usize| {
            u32::from_le_bytes([
                self.block[at],
                self.block[at + 1],
                self.block[at + 2],
                self.block[at + 3],
            ])
        };
        match word(0) {
            0 => {
                let new = word(4);
                ((new >> 8) & 0xFFF, (new & 0xFF) | ((new >> 12) & 0xF_FF00))
            }
            old => ((old >> 8) & 0xFF, old & 0xFF),
        }
    }

    /// Stores a device number: the old 16-bit form where it fits, as the kernel does. Numbers
    /// past 12 (major) and 20 (minor) bits are cut.
    pub fn set_device(&mut self, major: u32, minor: u32) {
        self.block = [0; BLOCK_AREA];
        if major < 256 && minor < 256 && (major, minor) != (0, 0) {
            self.block[..4].copy_from_slice(&((major << 8) | minor).to_le_bytes());
        } else {
            let word = (minor & 0xFF) | ((major & 0xFFF) << 8) | ((minor & 0xF_FF00) << 12);
            self.block[4..8].copy_from_slice(&word.to_le_bytes());
        }
    }

    /// Offset within the raw inode of the attributes kept there; `None` when there is no room.
    #[must_use]
    pub fn attributes_offset(&self, geo: &Geometry) -> Option<usize> {
        let at = BASE_SIZE + usize::from(self.extra_isize);
        (self.extra_isize > 0 && at + 4 <= usize::from(geo.inode_size)).then_some(at)
    }

    /// Reference count of an attribute-value inode, which has no use for these fields otherwise.
    #[must_use]
    pub fn ea_inode_refs(&self) -> u64 {
        u64::from(self.ctime.secs as u32) << 32 | (self.version & 0xFFFF_FFFF)
    }

    /// Stores the reference count of an attribute-value inode.
    pub fn set_ea_inode_refs(&mut self, refs: u64) {
        self.ctime.secs = i64::from((refs >> 32) as u32 as i32);
        self.version = (self.version & !0xFFFF_FFFF) | (refs & 0xFFFF_FFFF);
    }

    /// Hash of an attribute-value inode's value (kept in the access time).
    #[must_use]
    pub fn ea_inode_hash(&self) -> u32 {
        self.atime.secs as u32
    }

    /// Stores the hash of an attribute-value inode's value.
    pub fn set_ea_inode_hash(&mut self, hash: u32) {
        self.atime.secs = i64::from(hash as i32);
    }
}

fn size_has_high(mode: u16, geo: &Geometry) -> bool {
    // On anything but regular files the word was i_dir_acl before large_dir existed.
    match FileKind::from_mode(mode) {
        Some(FileKind::Regular) => true,
        Some(FileKind::Directory) => geo.features.has_incompat(Incompat::LARGE_DIR),
        _ => false,
    }
}

fn decode_sectors(base: &RawInodeBase, flags: InodeFlags, geo: &Geometry) -> u64 {
    let lo = u64::from(base.blocks_lo.get());
    if !geo.features.has_ro_compat(RoCompat::HUGE_FILE) {
        return lo;
    }
    let n = lo | u64::from(base.blocks_high.get()) << 32;
    if flags.contains(InodeFlags::HUGE_FILE) {
        n << (geo.block_bits - 9)
    } else {
        n
    }
}

/// Low word, high half-word, and whether the count is in blocks.
fn encode_sectors(sectors: u64, geo: &Geometry) -> Option<(u32, u16, bool)> {
    let split = |n: u64| (n as u32, (n >> 32) as u16);
    if sectors <= u64::from(u32::MAX) {
        return Some((sectors as u32, 0, false));
    }
    if !geo.features.has_ro_compat(RoCompat::HUGE_FILE) {
        return None;
    }
    if sectors < 1 << 48 {
        let (lo, hi) = split(sectors);
        return Some((lo, hi, false));
    }
    let blocks = sectors >> (geo.block_bits - 9);
    let (lo, hi) = split(blocks);
    (blocks < 1 << 48).then_some((lo, hi, true))
}

fn truncated(needed: usize, found: usize) -> FormatError {
    FormatError::Truncated {
        structure: "inode",
        needed,
        found,
    }
}

fn inode_bytes<'a>(raw: &'a [u8], geo: &Geometry) -> Result<&'a [u8], FormatError> {
    let needed = usize::from(geo.inode_size);
    raw.get(..needed)
        .ok_or_else(|| truncated(needed, raw.len()))
}

/// Computed checksum and the bits of it the inode has room for.
fn compute_checksum(raw: &[u8], geo: &Geometry, ino: Ino) -> (u32, u32) {
    let generation = match raw.get(0x64..0x68) {
        Some(b) => u32::from_le_bytes([b[0], b[1], b[2], b[3]]),
        None => 0,
    };
    let sum = geo.inode_seed(ino, generation).inode(raw);
    let mask = if inode_has_checksum_hi(raw) {
        u32::MAX
    } else {
        0xFFFF
    };
    (sum & mask, mask)
}

/// Verifies the checksum of an inode. An inode of zero bytes only (never used) passes.
///
/// # Errors
/// [`FormatError::InodeChecksum`], [`FormatError::Truncated`].
pub fn verify_checksum(raw: &[u8], geo: &Geometry, ino: Ino) -> Result<(), FormatError> {
    let raw = inode_bytes(raw, geo)?;
    if !geo.metadata_csum() {
        return Ok(());
    }
    let (expected, mask) = compute_checksum(raw, geo, ino);
    let half = |at: usize| u32::from(u16::from_le_bytes([raw[at], raw[at + 1]]));
    let mut found = half(INODE_CHECKSUM_LO_OFFSET);
    if mask == u32::MAX {
        found |= half(INODE_CHECKSUM_HI_OFFSET) << 16;
    }
    // Freshly made inode tables are zeroed, without checksums.
    if crate::sums_differ(found, expected) && raw.iter().any(|b| *b != 0) {
        return Err(FormatError::InodeChecksum {
            ino,
            found,
            expected,
        });
    }
    Ok(())
}

/// Stores the checksum of an inode; nothing without metadata checksums.
///
/// # Errors
/// [`FormatError::Truncated`].
pub fn set_checksum(raw: &mut [u8], geo: &Geometry, ino: Ino) -> Result<(), FormatError> {
    let needed = usize::from(geo.inode_size);
    let found = raw.len();
    let raw = raw
        .get_mut(..needed)
        .ok_or_else(|| truncated(needed, found))?;
    if !geo.metadata_csum() {
        return Ok(());
    }
    let (sum, mask) = compute_checksum(raw, geo, ino);
    let lo = INODE_CHECKSUM_LO_OFFSET;
    raw[lo..lo + 2].copy_from_slice(&(sum as u16).to_le_bytes());
    if mask == u32::MAX {
        let hi = INODE_CHECKSUM_HI_OFFSET;
        raw[hi..hi + 2].copy_from_slice(&((sum >> 16) as u16).to_le_bytes());
    }
    Ok(())
}

#[cfg(test)]
#[path = "inode_tests.rs"]
mod tests;
