//! Inodes: one node block each. Metadata, then 923 words that hold (from the front) the extra
//! attributes, addresses of data or inline contents, and (at the end) inline extended attributes;
//! then the numbers of up to five nodes that map the rest.
//!
//! [`InodeLayout`] says what those words are for a given inode; [`Inode`] has the metadata. Words are
//! not copied: they are read from and written to the block itself.

use std::mem::{offset_of, size_of};
use std::ops::Range;

use bitflags::bitflags;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::dir::DentryLayout;
use super::dir_geometry::LEVELS_MAX;
use super::error::FormatError;
use super::features::Features;
use super::geometry::Geometry;
use super::node::{INODE_NIDS, file_blocks_max};
use super::types::{
    BLOCK_BITS, BLOCK_SIZE, BlockAddr, FileBlock, FileKind, Ino, NAME_MAX, Nid, Timestamp,
};

bitflags! {
    /// `i_inline`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct InlineFlags: u8 {
        /// There is room for extended attributes.
        const XATTR = 0x01;
        /// The contents are in the inode.
        const DATA = 0x02;
        /// The entries are in the inode.
        const DENTRY = 0x04;
        /// There is data in the inode (and not only room for it).
        const DATA_EXIST = 0x08;
        /// `.` and `..` were forgotten and must be added.
        const DOTS = 0x10;
        /// The extra attributes exist.
        const EXTRA_ATTR = 0x20;
        /// The file must not be moved.
        const PIN_FILE = 0x40;
        /// The blocks that compression saved were given back.
        const COMPRESS_RELEASED = 0x80;
    }

    /// `i_advise`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Advise: u8 {
        /// Data is unlikely to change.
        const COLD = 0x01;
        /// The parent's number is not known any more.
        const LOST_PINO = 0x02;
        /// Encrypted.
        const ENCRYPT = 0x04;
        /// The name is encrypted.
        const ENC_NAME = 0x08;
        /// Blocks past the end are kept.
        const KEEP_SIZE = 0x10;
        /// Data changes often.
        const HOT = 0x20;
        /// A verity file.
        const VERITY = 0x40;
        /// To be truncated (read-only compressed files).
        const TRUNC = 0x80;
    }

    /// `i_flags`: the attributes of chattr(1).
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct InodeFlags: u32 {
        /// Compressed file, or a directory whose files are.
        const COMPRESS = 0x0000_0004;
        /// Written synchronously.
        const SYNC = 0x0000_0008;
        /// Never changed.
        const IMMUTABLE = 0x0000_0010;
        /// Only appended to.
        const APPEND = 0x0000_0020;
        /// Not dumped.
        const NODUMP = 0x0000_0040;
        /// Access times are not kept.
        const NOATIME = 0x0000_0080;
        /// Not compressed.
        const NOCOMPRESS = 0x0000_0400;
        /// Indexed directory (never set, shown by all tools).
        const INDEX = 0x0000_1000;
        /// Directory operations are synchronous.
        const DIRSYNC = 0x0001_0000;
        /// New files take the directory's project.
        const PROJECT_INHERIT = 0x2000_0000;
        /// Case-insensitive directory.
        const CASEFOLD = 0x4000_0000;
        const _ = !0;
    }
}

/// Words behind the metadata.
pub const WORDS: usize = 923;
/// Words of inline attributes unless the inode says otherwise.
pub const INLINE_XATTR_WORDS: usize = 50;
/// Bytes of all extra attributes known.
pub const EXTRA_BYTES: usize = size_of::<RawExtra>();
/// Bytes of extra attributes that every inode with any has.
pub const EXTRA_BYTES_MIN: usize = 4;
/// Words kept between the extra attributes and inline contents.
pub const INLINE_RESERVED_WORDS: usize = 1;
/// Fewest bytes that inline entries must have left.
const INLINE_DENTRY_BYTES_MIN: usize = 40;
/// Most words of inline attributes.
pub const INLINE_XATTR_WORDS_MAX: usize =
    WORDS - EXTRA_BYTES / 4 - INLINE_RESERVED_WORDS - INLINE_DENTRY_BYTES_MIN / 4;

/// The largest extent of a file, as a hint.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Debug,
    Default,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawExtent {
    pub fofs: U32,
    pub blk: U32,
    pub len: U32,
}

/// Metadata of an inode. Fields keep their published names, without `i_`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawInodeHead {
    pub mode: U16,
    pub advise: u8,
    pub inline: u8,
    pub uid: U32,
    pub gid: U32,
    pub links: U32,
    pub size: U64,
    pub blocks: U64,
    pub atime: U64,
    pub ctime: U64,
    pub mtime: U64,
    pub atime_nsec: U32,
    pub ctime_nsec: U32,
    pub mtime_nsec: U32,
    pub generation: U32,
    /// Of a directory: its levels. Of a file: how often cleaning failed (low half).
    pub current_depth: U32,
    pub xattr_nid: U32,
    pub flags: U32,
    pub pino: U32,
    pub namelen: U32,
    pub name: [u8; NAME_MAX],
    pub dir_level: u8,
    pub ext: RawExtent,
}

/// Extra attributes, of which an inode has the first `extra_isize` bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawExtra {
    pub extra_isize: U16,
    pub inline_xattr_size: U16,
    pub projid: U32,
    pub inode_checksum: U32,
    pub crtime: U64,
    pub crtime_nsec: U32,
    pub compr_blocks: U64,
    pub compress_algorithm: u8,
    pub log_cluster_size: u8,
    pub compress_flag: U16,
}

/// Offset of the words in the block.
pub const WORDS_OFFSET: usize = size_of::<RawInodeHead>();
/// Offset of the five node numbers.
pub const NIDS_OFFSET: usize = WORDS_OFFSET + WORDS * 4;
/// Offset of the checksum in the block.
pub const CHECKSUM_OFFSET: usize = WORDS_OFFSET + offset_of!(RawExtra, inode_checksum);
/// Bytes of extra attributes that reach behind the checksum.
const CHECKSUM_REACH: usize = offset_of!(RawExtra, inode_checksum) + 4;
const PROJID_REACH: usize = offset_of!(RawExtra, projid) + 4;
const CRTIME_REACH: usize = offset_of!(RawExtra, crtime_nsec) + 4;

const _: () = {
    assert!(WORDS_OFFSET == 360);
    assert!(NIDS_OFFSET == 4052);
    assert!(NIDS_OFFSET + INODE_NIDS * 4 == super::node::FOOTER_OFFSET);
    assert!(EXTRA_BYTES == 36);
    assert!(CHECKSUM_OFFSET == 368);
    assert!(offset_of!(RawInodeHead, atime) == 32);
    assert!(offset_of!(RawInodeHead, generation) == 68);
    assert!(offset_of!(RawInodeHead, pino) == 84);
    assert!(offset_of!(RawInodeHead, name) == 92);
    assert!(offset_of!(RawInodeHead, ext) == 348);
    assert!(offset_of!(RawExtra, crtime) == 12);
    assert!(offset_of!(RawExtra, compr_blocks) == 24);
    assert!(INLINE_XATTR_WORDS_MAX == 903);
};

/// The meaning of the words of an inode. All ranges lie in the words.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct InodeLayout {
    /// Words of extra attributes at the front.
    pub extra_words: usize,
    /// Words of inline attributes at the end.
    pub xattr_words: usize,
}

impl InodeLayout {
    /// With this many bytes of extra attributes (0 for none) and words of inline attributes.
    #[must_use]
    pub const fn new(extra_bytes: usize, xattr_words: usize) -> Self {
        Self {
            extra_words: extra_bytes / 4,
            xattr_words,
        }
    }

    /// Addresses of data.
    #[must_use]
    pub const fn addresses(&self) -> usize {
        WORDS.saturating_sub(self.extra_words + self.xattr_words)
    }

    /// Addresses that a file with clusters of this many blocks uses.
    #[must_use]
    pub const fn addresses_used(&self, cluster: usize) -> usize {
        let n = self.addresses();
        match n.checked_rem(cluster) {
            Some(rest) => n - rest,
            None => n,
        }
    }

    /// Bytes of the block that hold the addresses.
    #[must_use]
    pub const fn address_bytes(&self) -> Range<usize> {
        let start = WORDS_OFFSET + self.extra_words * 4;
        start..start + self.addresses() * 4
    }

    /// Bytes of the block for inline contents.
    #[must_use]
    pub const fn inline_bytes(&self) -> Range<usize> {
        let all = self.address_bytes();
        let start = all.start + INLINE_RESERVED_WORDS * 4;
        if start < all.end {
            start..all.end
        } else {
            all.end..all.end
        }
    }

    /// Bytes of the block for inline attributes.
    #[must_use]
    pub const fn xattr_bytes(&self) -> Range<usize> {
        NIDS_OFFSET - self.xattr_words * 4..NIDS_OFFSET
    }

    /// Shape of inline entries.
    #[must_use]
    pub fn inline_dentries(&self) -> DentryLayout {
        DentryLayout::inline(self.inline_bytes().len())
    }
}

/// Extra attributes of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extra {
    /// Bytes of extra attributes the inode has.
    pub bytes: u16,
    /// Words of inline attributes; counts with `flexible_inline_xattr` only.
    pub inline_xattr_words: u16,
    /// Project.
    pub projid: u32,
    /// Birth.
    pub crtime: Timestamp,
    /// Blocks that compression saved.
    pub compr_blocks: u64,
    /// Compression's algorithm.
    pub compress_algorithm: u8,
    /// `log2` of the blocks of a cluster.
    pub log_cluster_size: u8,
    /// Flags of compression: bit 0 for checksums, level in the high byte.
    pub compress_flag: u16,
}

impl Extra {
    /// All attributes known, with nothing in them.
    #[must_use]
    pub fn new() -> Self {
        Self {
            bytes: EXTRA_BYTES as u16,
            inline_xattr_words: 0,
            projid: 0,
            crtime: Timestamp::default(),
            compr_blocks: 0,
            compress_algorithm: 0,
            log_cluster_size: 0,
            compress_flag: 0,
        }
    }

    /// Whether the inode has room for a project.
    #[must_use]
    pub fn has_projid(&self) -> bool {
        usize::from(self.bytes) >= PROJID_REACH
    }

    /// Whether the inode has room for a time of birth.
    #[must_use]
    pub fn has_crtime(&self) -> bool {
        usize::from(self.bytes) >= CRTIME_REACH
    }
}

impl Default for Extra {
    fn default() -> Self {
        Self::new()
    }
}

/// A validated inode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inode {
    /// Type and permission bits.
    pub mode: u16,
    /// Hints.
    pub advise: Advise,
    /// What is in the inode itself.
    pub inline: InlineFlags,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names.
    pub links: u32,
    /// Bytes.
    pub size: u64,
    /// Blocks, the inode's own and other nodes included.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Last change of the contents.
    pub mtime: Timestamp,
    /// Tells successive inodes of one number apart.
    pub generation: u32,
    /// Of a directory: its levels. Of a file: how often cleaning failed (low half).
    pub current_depth: u32,
    /// Node of further extended attributes, or 0.
    pub xattr_nid: Nid,
    /// Attributes.
    pub flags: InodeFlags,
    /// A directory that names it: the last one that did when it was written.
    pub pino: Ino,
    /// Its name there.
    pub name: Vec<u8>,
    /// Level that a directory's first hash table has.
    pub dir_level: u8,
    /// The largest extent: first file block, first block, length. Length 0 for none.
    pub extent: (FileBlock, BlockAddr, u32),
    /// Extra attributes.
    pub extra: Option<Extra>,
    /// Direct, direct, indirect, indirect, double-indirect; 0 for none.
    pub nids: [Nid; INODE_NIDS],
}

impl Inode {
    /// An empty inode of these type and permission bits, with all the extra attributes that the
    /// volume's features want.
    #[must_use]
    pub fn new(mode: u16, features: Features) -> Self {
        let extra = features.contains(Features::EXTRA_ATTR).then(Extra::new);
        Self {
            mode,
            advise: Advise::empty(),
            inline: if extra.is_some() {
                InlineFlags::EXTRA_ATTR
            } else {
                InlineFlags::empty()
            },
            uid: 0,
            gid: 0,
            links: 1,
            size: 0,
            blocks: 1,
            atime: Timestamp::default(),
            ctime: Timestamp::default(),
            mtime: Timestamp::default(),
            generation: 0,
            current_depth: 0,
            xattr_nid: Nid(0),
            flags: InodeFlags::empty(),
            pino: Ino(0),
            name: Vec::new(),
            dir_level: 0,
            extent: (FileBlock(0), BlockAddr(0), 0),
            extra,
            nids: [Nid(0); INODE_NIDS],
        }
    }

    /// What it is.
    #[must_use]
    pub fn kind(&self) -> Option<FileKind> {
        FileKind::from_mode(self.mode)
    }

    /// What its words are.
    #[must_use]
    pub fn layout(&self, features: Features) -> InodeLayout {
        let extra = self.extra.map_or(0, |e| usize::from(e.bytes));
        let words = if features.contains(Features::FLEXIBLE_INLINE_XATTR) {
            self.extra.map_or(0, |e| usize::from(e.inline_xattr_words))
        } else if self
            .inline
            .intersects(InlineFlags::XATTR | InlineFlags::DENTRY)
        {
            INLINE_XATTR_WORDS
        } else {
            0
        };
        InodeLayout::new(extra, words)
    }

    /// From a node block that is known to be inode `ino`'s own.
    ///
    /// # Errors
    /// One variant per check. The checksum is verified where the volume has any.
    pub fn parse(block: &[u8], ino: Ino, geo: &Geometry) -> Result<Self, FormatError> {
        let inode = Self::parse_unverified(block, ino, geo)?;
        verify_checksum(block, ino, geo)?;
        Ok(inode)
    }

    /// As [`Inode::parse`], without looking at the checksum: of a block that was changed in memory.
    ///
    /// # Errors
    /// One variant per check.
    pub fn parse_unverified(block: &[u8], ino: Ino, geo: &Geometry) -> Result<Self, FormatError> {
        let short = || FormatError::Truncated {
            structure: "inode",
            needed: BLOCK_SIZE,
            found: block.len(),
        };
        let block = block.get(..BLOCK_SIZE).ok_or_else(short)?;
        let (head, words) = RawInodeHead::ref_from_prefix(block).map_err(|_| short())?;
        let mode = head.mode.get();
        let Some(kind) = FileKind::from_mode(mode) else {
            return Err(FormatError::InodeMode { ino, found: mode });
        };
        let inline = InlineFlags::from_bits_retain(head.inline);
        let extra = if inline.contains(InlineFlags::EXTRA_ATTR) {
            Some(parse_extra(words, ino, inline, geo.features)?)
        } else {
            None
        };
        check_inline(inline, kind, ino)?;
        let namelen = head.namelen.get();
        let name = head
            .name
            .get(..namelen as usize)
            .ok_or(FormatError::InodeNameLength {
                ino,
                found: namelen,
            })?
            .to_vec();
        let depth = head.current_depth.get();
        if kind == FileKind::Directory && depth > LEVELS_MAX {
            return Err(FormatError::InodeDepth { ino, found: depth });
        }
        let nids =
            <[U32; INODE_NIDS]>::ref_from_bytes(&block[NIDS_OFFSET..NIDS_OFFSET + INODE_NIDS * 4])
                .map_err(|_| short())?;
        let inode = Self {
            mode,
            advise: Advise::from_bits_retain(head.advise),
            inline,
            uid: head.uid.get(),
            gid: head.gid.get(),
            links: head.links.get(),
            size: head.size.get(),
            blocks: head.blocks.get(),
            atime: Timestamp::decode(head.atime.get(), head.atime_nsec.get()),
            ctime: Timestamp::decode(head.ctime.get(), head.ctime_nsec.get()),
            mtime: Timestamp::decode(head.mtime.get(), head.mtime_nsec.get()),
            generation: head.generation.get(),
            current_depth: depth,
            xattr_nid: Nid(head.xattr_nid.get()),
            flags: InodeFlags::from_bits_retain(head.flags.get()),
            pino: Ino(head.pino.get()),
            name,
            dir_level: head.dir_level,
            extent: (
                FileBlock(u64::from(head.ext.fofs.get())),
                BlockAddr(head.ext.blk.get()),
                head.ext.len.get(),
            ),
            extra,
            nids: nids.map(|n| Nid(n.get())),
        };
        inode.check(kind, ino, geo)?;
        Ok(inode)
    }

    fn check(&self, kind: FileKind, ino: Ino, geo: &Geometry) -> Result<(), FormatError> {
        let layout = self.layout(geo.features);
        let max = if self.inline.contains(InlineFlags::DATA) {
            layout.inline_bytes().len() as u64
        } else {
            file_blocks_max(layout.addresses()) << BLOCK_BITS
        };
        if self.size > max {
            return Err(FormatError::InodeSize {
                ino,
                found: self.size,
                max,
            });
        }
        if self.blocks == 0 || self.blocks > geo.blocks_count {
            return Err(FormatError::InodeBlocks {
                ino,
                found: self.blocks,
            });
        }
        let nodes = self.nids.iter().chain([&self.xattr_nid]);
        for nid in nodes.filter(|n| n.0 != 0) {
            // A device file's words mean something else, but these are behind them.
            if nid.0 >= geo.nids() || nid.0 == ino.0 {
                return Err(FormatError::InodeNode { ino, nid: *nid });
            }
        }
        let (_, start, len) = self.extent;
        if kind == FileKind::Regular && len > 0 {
            let end = u64::from(start.0) + u64::from(len);
            if !geo.in_main(start) || end > geo.main_end() {
                return Err(FormatError::InodeExtent { ino, start, len });
            }
        }
        Ok(())
    }

    /// Stores the metadata, the extra attributes and the five node numbers; other words keep what
    /// they hold. The footer and the checksum are to be set afterwards. `None` when the block is too
    /// short or the name too long.
    #[must_use]
    pub fn encode_into(&self, block: &mut [u8]) -> Option<()> {
        if block.len() < BLOCK_SIZE || self.name.len() > NAME_MAX {
            return None;
        }
        let mut head = RawInodeHead::new_zeroed();
        head.mode.set(self.mode);
        head.advise = self.advise.bits();
        head.inline = self.inline.bits();
        head.uid.set(self.uid);
        head.gid.set(self.gid);
        head.links.set(self.links);
        head.size.set(self.size);
        head.blocks.set(self.blocks);
        head.atime.set(self.atime.secs as u64);
        head.ctime.set(self.ctime.secs as u64);
        head.mtime.set(self.mtime.secs as u64);
        head.atime_nsec.set(self.atime.nanos);
        head.ctime_nsec.set(self.ctime.nanos);
        head.mtime_nsec.set(self.mtime.nanos);
        head.generation.set(self.generation);
        head.current_depth.set(self.current_depth);
        head.xattr_nid.set(self.xattr_nid.0);
        head.flags.set(self.flags.bits());
        head.pino.set(self.pino.0);
        head.namelen.set(self.name.len() as u32);
        head.name[..self.name.len()].copy_from_slice(&self.name);
        head.dir_level = self.dir_level;
        head.ext.fofs.set(u32::try_from(self.extent.0.0).ok()?);
        head.ext.blk.set(self.extent.1.0);
        head.ext.len.set(self.extent.2);
        block[..WORDS_OFFSET].copy_from_slice(head.as_bytes());
        if let Some(e) = &self.extra {
            let mut raw = RawExtra::new_zeroed();
            raw.extra_isize.set(e.bytes);
            raw.inline_xattr_size.set(e.inline_xattr_words);
            raw.projid.set(e.projid);
            raw.crtime.set(e.crtime.secs as u64);
            raw.crtime_nsec.set(e.crtime.nanos);
            raw.compr_blocks.set(e.compr_blocks);
            raw.compress_algorithm = e.compress_algorithm;
            raw.log_cluster_size = e.log_cluster_size;
            raw.compress_flag.set(e.compress_flag);
            let len = usize::from(e.bytes).min(EXTRA_BYTES);
            block[WORDS_OFFSET..WORDS_OFFSET + len].copy_from_slice(&raw.as_bytes()[..len]);
        }
        for (n, nid) in self.nids.iter().enumerate() {
            let at = NIDS_OFFSET + n * 4;
            block[at..at + 4].copy_from_slice(&nid.0.to_le_bytes());
        }
        Some(())
    }

    /// Blocks of a compressed file's cluster; 1 for any other inode. Only regular files are compressed: a directory passes
    /// its flag on to new files.
    #[must_use]
    pub fn cluster_blocks(&self) -> usize {
        let compressed =
            self.kind() == Some(FileKind::Regular) && self.flags.contains(InodeFlags::COMPRESS);
        match &self.extra {
            Some(e) if compressed => 1 << e.log_cluster_size.min(8),
            _ => 1,
        }
    }
}

fn parse_extra(
    words: &[u8],
    ino: Ino,
    inline: InlineFlags,
    features: Features,
) -> Result<Extra, FormatError> {
    let (raw, _) = RawExtra::ref_from_prefix(words).map_err(|_| FormatError::Truncated {
        structure: "inode",
        needed: BLOCK_SIZE,
        found: words.len(),
    })?;
    let found = raw.extra_isize.get();
    if !features.contains(Features::EXTRA_ATTR)
        || usize::from(found) > EXTRA_BYTES
        || usize::from(found) < EXTRA_BYTES_MIN
        || !found.is_multiple_of(4)
    {
        return Err(FormatError::InodeExtraSize { ino, found });
    }
    let xattr = raw.inline_xattr_size.get();
    let max = INLINE_XATTR_WORDS_MAX;
    let flexible = features.contains(Features::FLEXIBLE_INLINE_XATTR);
    let empty = xattr == 0 && inline.contains(InlineFlags::XATTR);
    if flexible && (empty || usize::from(xattr) > max) {
        return Err(FormatError::InodeXattrSize {
            ino,
            found: xattr,
            max,
        });
    }
    // Only the first bytes are the inode's; behind them are addresses.
    let has = |reach: usize| usize::from(found) >= reach;
    let compressed = has(EXTRA_BYTES);
    let if_compressed = |value: u8| if compressed { value } else { 0 };
    Ok(Extra {
        bytes: found,
        inline_xattr_words: xattr,
        projid: if has(PROJID_REACH) {
            raw.projid.get()
        } else {
            0
        },
        crtime: if has(CRTIME_REACH) {
            Timestamp::decode(raw.crtime.get(), raw.crtime_nsec.get())
        } else {
            Timestamp::default()
        },
        compr_blocks: if compressed {
            raw.compr_blocks.get()
        } else {
            0
        },
        compress_algorithm: if_compressed(raw.compress_algorithm),
        log_cluster_size: if_compressed(raw.log_cluster_size),
        compress_flag: if compressed {
            raw.compress_flag.get()
        } else {
            0
        },
    })
}

fn check_inline(inline: InlineFlags, kind: FileKind, ino: Ino) -> Result<(), FormatError> {
    let data = inline.contains(InlineFlags::DATA);
    let dentry = inline.contains(InlineFlags::DENTRY);
    let wrong_data = data && !matches!(kind, FileKind::Regular | FileKind::Symlink);
    let wrong_dentry = dentry && kind != FileKind::Directory;
    if wrong_data || wrong_dentry {
        return Err(FormatError::InodeInline {
            ino,
            found: inline.bits(),
            kind,
        });
    }
    Ok(())
}

/// Whether an inode's block has a checksum.
#[must_use]
pub fn has_checksum(block: &[u8], features: Features) -> bool {
    if !features.contains(Features::INODE_CHECKSUM) || block.len() < BLOCK_SIZE {
        return false;
    }
    let inline = block[offset_of!(RawInodeHead, inline)];
    let extra = u16::from_le_bytes([block[WORDS_OFFSET], block[WORDS_OFFSET + 1]]);
    inline & InlineFlags::EXTRA_ATTR.bits() != 0 && usize::from(extra) >= CHECKSUM_REACH
}

fn checksum_of(block: &[u8], ino: Ino, geo: &Geometry) -> Option<u32> {
    if !has_checksum(block, geo.features) {
        return None;
    }
    let at = offset_of!(RawInodeHead, generation);
    let generation = u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]]);
    geo.inode_seed
        .inode(ino, generation, &block[..BLOCK_SIZE], CHECKSUM_OFFSET)
}

/// Verifies the checksum of an inode's block; `Ok` where there is none.
///
/// # Errors
/// [`FormatError::InodeChecksum`].
pub fn verify_checksum(block: &[u8], ino: Ino, geo: &Geometry) -> Result<(), FormatError> {
    let Some(expected) = checksum_of(block, ino, geo) else {
        return Ok(());
    };
    let mut stored = [0; 4];
    stored.copy_from_slice(&block[CHECKSUM_OFFSET..CHECKSUM_OFFSET + 4]);
    let found = u32::from_le_bytes(stored);
    if crate::sums_differ(found, expected) {
        return Err(FormatError::InodeChecksum {
            ino,
            found,
            expected,
        });
    }
    Ok(())
}

/// The length of an inode's extra attributes that its checksum confirms, where the stored length does not make the checksum right or does not reach
/// it. The checksum covers the length, so one value at most fits; `None` also where several do, or where the volume has no such checksums.
#[must_use]
pub fn extra_size_by_checksum(block: &[u8], ino: Ino, geo: &Geometry) -> Option<u16> {
    let features = Features::INODE_CHECKSUM | Features::EXTRA_ATTR;
    let is_right = |block: &[u8]| {
        has_checksum(block, geo.features) && verify_checksum(block, ino, geo).is_ok()
    };
    let mut copy = block.get(..BLOCK_SIZE)?.to_vec();
    if !geo.features.contains(features)
        || copy[offset_of!(RawInodeHead, inline)] & InlineFlags::EXTRA_ATTR.bits() == 0
        || is_right(&copy)
    {
        return None;
    }
    let mut sizes = (CHECKSUM_REACH..=EXTRA_BYTES)
        .step_by(4)
        .map(|size| size as u16)
        .filter(|size| {
            copy[WORDS_OFFSET..WORDS_OFFSET + 2].copy_from_slice(&size.to_le_bytes());
            is_right(&copy)
        });
    let size = sizes.next()?;
    sizes.next().is_none().then_some(size)
}

/// Stores the checksum of an inode's block whose footer is set; nothing where there is none.
pub fn set_checksum(block: &mut [u8], ino: Ino, geo: &Geometry) {
    if let Some(sum) = checksum_of(block, ino, geo) {
        block[CHECKSUM_OFFSET..CHECKSUM_OFFSET + 4].copy_from_slice(&sum.to_le_bytes());
    }
}

/// The words of a device file: an old 16-bit number in the first word, or a new one in the second.
#[must_use]
pub fn encode_device(major: u32, minor: u32) -> [u32; 2] {
    if major < 256 && minor < 256 {
        [major << 8 | minor, 0]
    } else {
        [0, (minor & 0xFF) | (major << 8) | ((minor & !0xFF) << 12)]
    }
}

/// Major and minor number from the words of a device file.
#[must_use]
pub fn decode_device(words: [u32; 2]) -> (u32, u32) {
    let [old, new] = words;
    if old != 0 {
        (old >> 8 & 0xFF, old & 0xFF)
    } else {
        ((new & 0xF_FF00) >> 8, (new & 0xFF) | (new >> 12 & 0xF_FF00))
    }
}

#[cfg(test)]
#[path = "inode_tests.rs"]
mod tests;
