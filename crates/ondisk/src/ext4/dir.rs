//! Directory blocks: chains of variable-length entries, and the hash index laid over them.
//!
//! [`DirBlock`] walks a block's entries, refusing each way an entry can be wrong. Index blocks are
//! laid out so that a reader that does not know them sees one unused entry; [`DxNode`](super::htree::DxNode) is their
//! validated view. Whether a block of an indexed directory is a leaf or part of the index follows
//! from its position in the tree, not from the block.
//!
//! Not responsible for: hashing (see `hash`), splitting, searching through an index (the engine).
//!
//! Reference: kernel documentation, "ext4 Data Structures: Directory Entries".

use std::mem::{offset_of, size_of};

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::checksum::InodeSeed;
use super::error::FormatError;
use super::features::{Incompat, RoCompat};
use super::geometry::Geometry;
use super::inode::InodeFlags;
use super::types::{FileKind, Ino, NAME_MAX};

/// Bytes of an entry before its name.
pub const ENTRY_HEADER: usize = 8;
/// Smallest record: an entry with a name of one byte.
pub const MIN_REC_LEN: usize = 12;
/// Bytes of the checksum tail of a leaf block.
pub const TAIL_SIZE: usize = 12;
/// File type of the fake entry that hides the tail.
pub const TAIL_FILE_TYPE: u8 = 0xDE;
/// Bytes of hash stored behind the name in encrypted case-insensitive directories.
pub const STORED_HASH_SIZE: usize = 8;

/// Head of an entry. Fields keep their documented names.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawDirEntry {
    pub inode: U32,
    pub rec_len: U16,
    pub name_len: u8,
    /// Meant nothing but the (always zero) high byte of the name's length before `filetype`; not looked at then.
    pub file_type: u8,
}

/// Checksum tail of a leaf block, disguised as an unused entry.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawDirTail {
    pub reserved_zero1: U32,
    pub rec_len: U16,
    pub reserved_zero2: u8,
    pub reserved_ft: u8,
    pub checksum: U32,
}

const _: () = {
    assert!(size_of::<RawDirEntry>() == ENTRY_HEADER);
    assert!(offset_of!(RawDirEntry, file_type) == 7);
    assert!(size_of::<RawDirTail>() == TAIL_SIZE);
};

/// Decodes a stored record length. With 64 KiB blocks a whole block is stored as 65535 or 0.
#[must_use]
pub fn decode_rec_len(stored: u16, block_size: usize) -> usize {
    if block_size >= 65536 && (stored == u16::MAX || stored == 0) {
        65536
    } else {
        usize::from(stored)
    }
}

/// Stored form of a record length; `None` when it does not fit or is not a multiple of 4.
#[must_use]
pub fn encode_rec_len(len: usize, block_size: usize) -> Option<u16> {
    if len > block_size || !len.is_multiple_of(4) {
        return None;
    }
    if len == 65536 {
        Some(u16::MAX)
    } else {
        u16::try_from(len).ok()
    }
}

/// What entries of a directory look like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirFormat {
    /// Bytes per block.
    pub block_size: usize,
    /// Whether entries record a file type.
    pub filetype: bool,
    /// Whether blocks carry checksums.
    pub checksums: bool,
    /// Whether names are followed by their hash (encrypted case-insensitive directories).
    pub stored_hash: bool,
    /// Whether names are ciphertext, in which every byte may stand.
    pub encrypted: bool,
    /// Largest inode number of the volume.
    pub max_ino: u32,
}

impl DirFormat {
    /// For plain directories of a volume. For a directory that exists, [`of`](Self::of) knows more.
    #[must_use]
    pub fn new(geo: &Geometry) -> Self {
        Self {
            block_size: geo.block_len(),
            filetype: geo.features.has_incompat(Incompat::FILETYPE),
            checksums: geo.features.has_ro_compat(RoCompat::METADATA_CSUM),
            stored_hash: false,
            encrypted: false,
            max_ino: geo.inodes_count,
        }
    }

    /// For a directory whose inode has these flags.
    #[must_use]
    pub fn of(geo: &Geometry, flags: InodeFlags) -> Self {
        Self {
            stored_hash: flags.contains(InodeFlags::ENCRYPT | InodeFlags::CASEFOLD),
            encrypted: flags.contains(InodeFlags::ENCRYPT),
            ..Self::new(geo)
        }
    }

    /// Smallest record that holds a name of `name_len` bytes.
    #[must_use]
    pub fn min_rec_len(&self, name_len: usize) -> usize {
        let hash = if self.stored_hash {
            STORED_HASH_SIZE
        } else {
            0
        };
        (ENTRY_HEADER + name_len).next_multiple_of(4) + hash
    }

    /// Smallest record of this entry: `.` and `..` are stored without a hash.
    #[must_use]
    pub fn entry_len(&self, name: &[u8]) -> usize {
        match name {
            b"." | b".." => (ENTRY_HEADER + name.len()).next_multiple_of(4),
            _ => self.min_rec_len(name.len()),
        }
    }

    /// Bytes of a leaf block that hold entries.
    #[must_use]
    pub fn leaf_space(&self) -> usize {
        self.block_size - if self.checksums { TAIL_SIZE } else { 0 }
    }
}

/// An entry in a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirEntry<'a> {
    /// Byte offset of the entry in the block.
    pub offset: usize,
    /// The entry's inode; `Ino(0)` for an unused entry.
    pub ino: Ino,
    /// Bytes up to the next entry.
    pub rec_len: usize,
    /// Recorded type; `None` when unknown or not recorded.
    pub kind: Option<FileKind>,
    /// Name; empty only for unused entries.
    pub name: &'a [u8],
    /// Hash stored behind the name (hash, minor hash), in directories that store it.
    pub stored_hash: Option<(u32, u32)>,
}

impl DirEntry<'_> {
    /// Whether the entry names a file.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.ino.0 != 0
    }

    /// Whether the entry is "." or "..".
    #[must_use]
    pub fn is_dot_or_dotdot(&self) -> bool {
        matches!(self.name, b"." | b"..")
    }
}

/// Entries of one block (or of a piece of inline data).
#[derive(Clone, Copy, Debug)]
pub struct DirBlock<'a> {
    bytes: &'a [u8],
    format: DirFormat,
}

impl<'a> DirBlock<'a> {
    /// All entries of `bytes`, which ends where the last entry must end. Used for inline
    /// directories, and for index blocks read as if they were not.
    #[must_use]
    pub fn entries_of(bytes: &'a [u8], format: DirFormat) -> Self {
        Self { bytes, format }
    }

    /// The entries of a leaf block, without its checksum tail.
    ///
    /// # Errors
    /// [`FormatError::DirTail`] when the volume has checksums and the block no tail.
    pub fn leaf(block: &'a [u8], format: DirFormat) -> Result<Self, FormatError> {
        if !format.checksums {
            return Ok(Self {
                bytes: block,
                format,
            });
        }
        tail(block)?;
        Ok(Self {
            bytes: &block[..block.len() - TAIL_SIZE],
            format,
        })
    }

    /// The entries in order, unused ones included; ends after the first error.
    #[must_use]
    pub fn iter(&self) -> DirIter<'a> {
        DirIter {
            bytes: self.bytes,
            format: self.format,
            at: 0,
        }
    }

    /// The entry at a byte offset, which must be where one starts.
    ///
    /// # Errors
    /// One variant per check; see [`FormatError`].
    pub fn entry_at(&self, offset: usize) -> Result<DirEntry<'a>, FormatError> {
        parse_entry(self.bytes, offset, &self.format)
    }
}

/// Iterator over the entries of a block.
#[derive(Clone, Debug)]
pub struct DirIter<'a> {
    bytes: &'a [u8],
    format: DirFormat,
    at: usize,
}

impl<'a> Iterator for DirIter<'a> {
    type Item = Result<DirEntry<'a>, FormatError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.bytes.len() {
            return None;
        }
        let entry = parse_entry(self.bytes, self.at, &self.format);
        self.at = match &entry {
            Ok(e) => e.offset + e.rec_len,
            Err(_) => self.bytes.len(),
        };
        Some(entry)
    }
}

fn parse_entry<'a>(
    bytes: &'a [u8],
    offset: usize,
    format: &DirFormat,
) -> Result<DirEntry<'a>, FormatError> {
    let left = bytes.get(offset..).unwrap_or(&[]);
    let (raw, body) =
        RawDirEntry::ref_from_prefix(left).map_err(|_| FormatError::DirEntryTruncated {
            offset,
            left: left.len(),
        })?;
    let rec_len = decode_rec_len(raw.rec_len.get(), format.block_size);
    if !rec_len.is_multiple_of(4) {
        return Err(FormatError::DirRecLenUnaligned { offset, rec_len });
    }
    if rec_len < MIN_REC_LEN {
        return Err(FormatError::DirRecLenSmall { offset, rec_len });
    }
    if rec_len > left.len() {
        return Err(FormatError::DirRecLenPastEnd {
            offset,
            rec_len,
            left: left.len(),
        });
    }
    let ino = Ino(raw.inode.get());
    // Without types the byte behind it was the length's upper half once: no name needs it, and no implementation reads it.
    let name_len = usize::from(raw.name_len);
    if ino.0 == 0 {
        // The name field of an unused entry has leftovers of its last use.
        let (kind, name) = (None, &[][..]);
        return Ok(DirEntry {
            offset,
            ino,
            rec_len,
            kind,
            name,
            stored_hash: None,
        });
    }
    let name = body.get(..name_len).filter(|_| name_len <= NAME_MAX);
    let Some(name) = name.filter(|name| format.entry_len(name) <= rec_len) else {
        return Err(FormatError::DirNameTooLong {
            offset,
            name_len,
            rec_len,
        });
    };
    if ino.0 > format.max_ino {
        return Err(FormatError::DirInode {
            offset,
            ino,
            max: format.max_ino,
        });
    }
    if name.is_empty() {
        return Err(FormatError::DirNameEmpty { offset });
    }
    let forbidden = |byte: &&u8| !format.encrypted && matches!(**byte, 0 | b'/');
    if let Some(byte) = name.iter().find(forbidden) {
        return Err(FormatError::DirNameByte {
            offset,
            byte: *byte,
        });
    }
    let stored_hash = (format.stored_hash && !matches!(name, b"." | b"..")).then(|| {
        let at = name_len.next_multiple_of(4);
        let word = |at: usize| {
            body.get(at..at + 4)
                .map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        };
        (word(at), word(at + 4))
    });
    let kind = if format.filetype {
        FileKind::from_dirent(raw.file_type)
    } else {
        None
    };
    Ok(DirEntry {
        offset,
        ino,
        rec_len,
        kind,
        name,
        stored_hash,
    })
}

/// Writes an entry at `offset`: header and name; bytes up to the end of the padded name are
/// zeroed, those behind are left alone. `None` when it does not fit. `Ino(0)` writes an unused
/// entry.
#[must_use]
pub fn write_entry(
    block: &mut [u8],
    offset: usize,
    rec_len: usize,
    ino: Ino,
    kind: Option<FileKind>,
    name: &[u8],
    format: &DirFormat,
) -> Option<()> {
    let dest = block.get_mut(offset..offset.checked_add(rec_len)?)?;
    let padded = (ENTRY_HEADER + name.len()).next_multiple_of(4);
    if padded > rec_len || name.len() > NAME_MAX {
        return None;
    }
    let raw = RawDirEntry {
        inode: U32::new(ino.0),
        rec_len: U16::new(encode_rec_len(rec_len, format.block_size)?),
        name_len: name.len() as u8,
        file_type: match kind {
            Some(kind) if format.filetype => kind.dirent_code(),
            _ => 0,
        },
    };
    dest[..ENTRY_HEADER].copy_from_slice(raw.as_bytes());
    let body = &mut dest[ENTRY_HEADER..padded];
    body[..name.len()].copy_from_slice(name);
    body[name.len()..].fill(0);
    Some(())
}

/// Stores the hash behind the name of the entry at `offset`. `None` when there is no room.
#[must_use]
pub fn write_stored_hash(
    block: &mut [u8],
    offset: usize,
    name_len: usize,
    hash: u32,
    minor: u32,
) -> Option<()> {
    let at = offset.checked_add((ENTRY_HEADER + name_len).next_multiple_of(4))?;
    let dest = block.get_mut(at..at.checked_add(STORED_HASH_SIZE)?)?;
    dest[..4].copy_from_slice(&hash.to_le_bytes());
    dest[4..].copy_from_slice(&minor.to_le_bytes());
    Some(())
}

/// Makes `block` an empty leaf: one unused entry, and the tail where there are checksums (whose
/// sum [`set_leaf_checksum`] sets). `None` when the block is not of the format's size.
#[must_use]
pub fn write_empty_leaf(block: &mut [u8], format: &DirFormat) -> Option<()> {
    if block.len() != format.block_size {
        return None;
    }
    block.fill(0);
    write_entry(block, 0, format.leaf_space(), Ino(0), None, b"", format)?;
    write_tail(block, format)
}

/// Writes the tail of a leaf block, where there are checksums.
#[must_use]
pub fn write_tail(block: &mut [u8], format: &DirFormat) -> Option<()> {
    if !format.checksums {
        return Some(());
    }
    let tail = RawDirTail {
        reserved_zero1: U32::ZERO,
        rec_len: U16::new(TAIL_SIZE as u16),
        reserved_zero2: 0,
        reserved_ft: TAIL_FILE_TYPE,
        checksum: U32::ZERO,
    };
    let at = block.len().checked_sub(TAIL_SIZE)?;
    block[at..].copy_from_slice(tail.as_bytes());
    Some(())
}

fn tail(block: &[u8]) -> Result<&RawDirTail, FormatError> {
    let (_, tail) = RawDirTail::ref_from_suffix(block).map_err(|_| FormatError::DirTail)?;
    let ok = tail.reserved_zero1.get() == 0
        && usize::from(tail.rec_len.get()) == TAIL_SIZE
        && tail.reserved_zero2 == 0
        && tail.reserved_ft == TAIL_FILE_TYPE;
    if ok {
        Ok(tail)
    } else {
        Err(FormatError::DirTail)
    }
}

/// Verifies the checksum of a leaf block.
///
/// # Errors
/// [`FormatError::DirTail`], [`FormatError::DirChecksum`].
pub fn verify_leaf_checksum(
    block: &[u8],
    format: &DirFormat,
    seed: InodeSeed,
) -> Result<(), FormatError> {
    if !format.checksums {
        return Ok(());
    }
    let found = tail(block)?.checksum.get();
    let expected = seed.dir_leaf(block);
    if crate::sums_differ(found, expected) {
        return Err(FormatError::DirChecksum { found, expected });
    }
    Ok(())
}

/// Stores the checksum of a leaf block; nothing without checksums.
///
/// # Errors
/// [`FormatError::DirTail`] when the block has no tail.
pub fn set_leaf_checksum(
    block: &mut [u8],
    format: &DirFormat,
    seed: InodeSeed,
) -> Result<(), FormatError> {
    if !format.checksums {
        return Ok(());
    }
    tail(block)?;
    let sum = seed.dir_leaf(block);
    let at = block.len() - 4;
    block[at..].copy_from_slice(&sum.to_le_bytes());
    Ok(())
}

#[cfg(test)]
#[path = "dir_tests.rs"]
mod tests;
