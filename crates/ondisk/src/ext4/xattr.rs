//! Extended attributes: entries in the inode behind its extra size, in one shared block, and
//! values in inodes of their own.
//!
//! Both places hold a table of entries growing up and values growing down. [`XattrList`] is a
//! validated view of a table: the chain ends, names and values lie inside, values do not touch
//! the table. [`write_ibody`] and [`write_block`] lay a whole table out anew, which is the only
//! way attributes are ever stored here: tables are small, and a new layout has no holes.
//!
//! Not responsible for: sharing of blocks and reference counts, reading value inodes.
//!
//! Reference: kernel documentation, "ext4 Data Structures: Extended Attributes".

use std::mem::{offset_of, size_of};

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::error::FormatError;
use super::geometry::Geometry;
use super::types::{BlockNo, Ino};

/// Magic of the inode's area and of attribute blocks.
pub const MAGIC: u32 = 0xEA02_0000;
/// Most inodes that may share an attribute block.
pub const REFCOUNT_MAX: u32 = 1024;

/// Name index of access lists (a whole name).
pub const INDEX_ACL_ACCESS: u8 = 2;
/// Name index of default access lists (a whole name).
pub const INDEX_ACL_DEFAULT: u8 = 3;
/// Name index of what the file system keeps for itself: inline data.
pub const INDEX_SYSTEM: u8 = 7;
/// Name index of encryption contexts.
pub const INDEX_ENCRYPTION: u8 = 9;
/// Name (under [`INDEX_SYSTEM`]) of inline data that did not fit in `i_block`.
pub const INLINE_DATA_NAME: &[u8] = b"data";

/// Most bytes of a name without its prefix.
pub const NAME_MAX: usize = 255;

/// Prefixes of the names that users see, by index. Prefixes without a trailing dot are whole names.
///
/// Linux shows attributes of no other index: [`INDEX_SYSTEM`] and [`INDEX_ENCRYPTION`] are the file system's own, and the
/// one set aside for rich access lists (8) has no handler.
pub const PREFIXES: [(u8, &str); 6] = [
    (1, "user."),
    (INDEX_ACL_ACCESS, "system.posix_acl_access"),
    (INDEX_ACL_DEFAULT, "system.posix_acl_default"),
    (4, "trusted."),
    (6, "security."),
    (10, "gnu."),
];

/// Splits a full name into index and stored name. `None` when no prefix matches, nothing (or, for whole names, something)
/// is left, or what is left cannot be stored.
#[must_use]
pub fn split_name(full: &[u8]) -> Option<(u8, &[u8])> {
    let (index, rest) = PREFIXES.iter().find_map(|(index, prefix)| {
        let rest = full.strip_prefix(prefix.as_bytes())?;
        (rest.is_empty() != prefix.ends_with('.')).then_some((*index, rest))
    })?;
    (rest.len() <= NAME_MAX && !rest.contains(&0)).then_some((index, rest))
}

/// The full name; `None` for what no name asks for: an index that users do not see, a whole name with more behind it, a prefix alone.
#[must_use]
pub fn full_name(index: u8, name: &[u8]) -> Option<Vec<u8>> {
    let (_, prefix) = PREFIXES.iter().find(|(i, _)| *i == index)?;
    let full = [prefix.as_bytes(), name].concat();
    split_name(&full).is_some().then_some(full)
}

/// Head of an attribute block. Fields keep their documented names, without `h_`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawXattrHeader {
    pub magic: U32,
    pub refcount: U32,
    pub blocks: U32,
    pub hash: U32,
    pub checksum: U32,
    pub reserved: [U32; 3],
}

/// An entry, followed by its name. Fields keep their documented names, without `e_`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawXattrEntry {
    pub name_len: u8,
    pub name_index: u8,
    pub value_offs: U16,
    pub value_inum: U32,
    pub value_size: U32,
    pub hash: U32,
}

/// Bytes of the inode's area before its first entry (the magic).
pub const IBODY_HEADER: usize = 4;
/// Bytes of an attribute block before its first entry.
pub const BLOCK_HEADER: usize = size_of::<RawXattrHeader>();
const ENTRY: usize = size_of::<RawXattrEntry>();
/// Bytes of the zero word that ends a table.
const END_MARK: usize = 4;

const _: () = {
    assert!(BLOCK_HEADER == 32);
    assert!(offset_of!(RawXattrHeader, checksum) == 16);
    assert!(ENTRY == 16);
};

/// Where a value is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XattrValue<'a> {
    /// Beside the table.
    Local(&'a [u8]),
    /// In an inode of its own.
    Inode {
        /// The inode.
        ino: Ino,
        /// Bytes of the value.
        size: u32,
    },
}

/// An attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XattrEntry<'a> {
    /// Byte offset of the entry in its area.
    pub offset: usize,
    /// Index of the name's prefix.
    pub name_index: u8,
    /// Name without prefix.
    pub name: &'a [u8],
    /// The value, or where it is.
    pub value: XattrValue<'a>,
    /// Stored hash of name and value; 0 where none was computed.
    pub hash: u32,
}

impl XattrEntry<'_> {
    /// Compares the stored hash with the entry's. Values in inodes are hashed with the inode's
    /// own hash, which the caller must supply. A hash of 0 in the inode's area is "none".
    ///
    /// # Errors
    /// [`FormatError::XattrHash`].
    pub fn verify_hash(&self, value_inode_hash: Option<u32>) -> Result<(), FormatError> {
        let value = match (self.value, value_inode_hash) {
            (XattrValue::Local(value), _) => ValueToHash::Local(value),
            (XattrValue::Inode { .. }, Some(hash)) => ValueToHash::Inode(hash),
            (XattrValue::Inode { .. }, None) => return Ok(()),
        };
        let both = [true, false].map(|unsigned| entry_hash(self.name, value, unsigned));
        if self.hash == 0 || both.iter().any(|sum| !crate::sums_differ(self.hash, *sum)) {
            return Ok(());
        }
        Err(FormatError::XattrHash {
            offset: self.offset,
            found: self.hash,
            expected: both[0],
        })
    }
}

/// The bytes that the second half of an entry's hash covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ValueToHash<'a> {
    /// The value itself.
    Local(&'a [u8]),
    /// The hash kept by the value's inode.
    Inode(u32),
}

/// Hash of an entry.
///
/// Kernels before 6.2 took the name's characters as signed on most machines; both flavours exist
/// on disk. New entries use unsigned characters.
#[must_use]
pub fn entry_hash(name: &[u8], value: ValueToHash<'_>, unsigned: bool) -> u32 {
    let mut hash = name.iter().fold(0u32, |h, byte| {
        let c = if unsigned {
            u32::from(*byte)
        } else {
            i32::from(*byte as i8) as u32
        };
        h.rotate_left(5) ^ c
    });
    let mut mix = |word: u32| hash = hash.rotate_left(16) ^ word;
    match value {
        ValueToHash::Inode(word) => mix(word),
        ValueToHash::Local(bytes) => {
            for piece in bytes.chunks(4) {
                let mut word = [0; 4];
                word[..piece.len()].copy_from_slice(piece);
                mix(u32::from_le_bytes(word));
            }
        }
    }
    hash
}

/// Hash of a block from its entries' hashes; 0 when one of them has none.
#[must_use]
pub fn block_hash(entry_hashes: impl IntoIterator<Item = u32>) -> u32 {
    let mut hash = 0u32;
    for h in entry_hashes {
        if h == 0 {
            return 0;
        }
        hash = hash.rotate_left(16) ^ h;
    }
    hash
}

/// Validated attributes of one place.
#[derive(Clone, Copy, Debug)]
pub struct XattrList<'a> {
    area: &'a [u8],
    /// Offset of the first entry in the area.
    first: usize,
    /// The origin of value offsets.
    value_base: usize,
}

impl<'a> XattrList<'a> {
    /// The attributes in an inode; `area` is everything behind the extra size. `None` when there
    /// are none.
    ///
    /// # Errors
    /// One variant per check.
    pub fn parse_ibody(area: &'a [u8], geo: &Geometry) -> Result<Option<Self>, FormatError> {
        match area.first_chunk::<4>() {
            Some(magic) if u32::from_le_bytes(*magic) == MAGIC => {}
            _ => return Ok(None),
        }
        let list = Self {
            area,
            first: IBODY_HEADER,
            value_base: IBODY_HEADER,
        };
        list.validate(geo)?;
        Ok(Some(list))
    }

    /// The attributes of a block, and its head. The checksum is [`verify_block_checksum`]'s.
    ///
    /// # Errors
    /// One variant per check.
    pub fn parse_block(
        block: &'a [u8],
        geo: &Geometry,
    ) -> Result<(&'a RawXattrHeader, Self), FormatError> {
        let (head, _) = RawXattrHeader::ref_from_prefix(block).map_err(|_| short(block, geo))?;
        let found = head.magic.get();
        if found != MAGIC {
            return Err(FormatError::XattrMagic { found });
        }
        let blocks = head.blocks.get();
        if blocks != 1 {
            return Err(FormatError::XattrBlocks { found: blocks });
        }
        let list = Self {
            area: block,
            first: BLOCK_HEADER,
            value_base: 0,
        };
        list.validate(geo)?;
        Ok((head, list))
    }

    /// Walks the whole table; afterwards iterating cannot fail.
    fn validate(&self, geo: &Geometry) -> Result<(), FormatError> {
        let end_at = |at: usize| match self.area.get(at..at + END_MARK) {
            Some(word) => Ok(word == [0; END_MARK]),
            None => Err(FormatError::XattrTable { offset: at }),
        };
        let mut table_end = self.first;
        while !end_at(table_end)? {
            table_end = self.next_offset(table_end)?;
        }
        table_end += END_MARK;
        let mut at = self.first;
        while !end_at(at)? {
            let (raw, _) = self.raw(at)?;
            let size = raw.value_size.get() as usize;
            let inum = raw.value_inum.get();
            if inum != 0 {
                if inum > geo.inodes_count {
                    return Err(FormatError::XattrValueInode {
                        offset: at,
                        ino: Ino(inum),
                    });
                }
            } else if size > 0 {
                let start = self.value_base + usize::from(raw.value_offs.get());
                let fits = start
                    .checked_add(size)
                    .is_some_and(|end| end <= self.area.len());
                if start < table_end || !fits {
                    return Err(FormatError::XattrValue {
                        offset: at,
                        start,
                        size,
                    });
                }
            }
            at = self.next_offset(at)?;
        }
        Ok(())
    }

    fn raw(&self, at: usize) -> Result<(&'a RawXattrEntry, &'a [u8]), FormatError> {
        let err = FormatError::XattrTable { offset: at };
        let left = self.area.get(at..).ok_or(err.clone())?;
        RawXattrEntry::ref_from_prefix(left).map_err(|_| err)
    }

    fn next_offset(&self, at: usize) -> Result<usize, FormatError> {
        let (raw, rest) = self.raw(at)?;
        let name_len = usize::from(raw.name_len);
        if name_len > rest.len() {
            return Err(FormatError::XattrTable { offset: at });
        }
        Ok(at + (ENTRY + name_len).next_multiple_of(4))
    }

    /// The attributes in stored order.
    pub fn iter(&self) -> impl Iterator<Item = XattrEntry<'a>> + use<'a> {
        let list = *self;
        let mut at = list.first;
        std::iter::from_fn(move || {
            if list.area.get(at..at + END_MARK)? == [0; END_MARK] {
                return None;
            }
            let (raw, rest) = list.raw(at).ok()?;
            let offset = at;
            at = list.next_offset(at).ok()?;
            let size = raw.value_size.get();
            let value = match Ino(raw.value_inum.get()).non_zero() {
                Some(ino) => XattrValue::Inode { ino, size },
                None if size == 0 => XattrValue::Local(&[]),
                None => {
                    let start = list.value_base + usize::from(raw.value_offs.get());
                    XattrValue::Local(list.area.get(start..start + size as usize)?)
                }
            };
            Some(XattrEntry {
                offset,
                name_index: raw.name_index,
                name: rest.get(..usize::from(raw.name_len))?,
                value,
                hash: raw.hash.get(),
            })
        })
    }

    /// The attribute of a name.
    #[must_use]
    pub fn find(&self, name_index: u8, name: &[u8]) -> Option<XattrEntry<'a>> {
        self.iter()
            .find(|e| e.name_index == name_index && e.name == name)
    }
}

fn short(block: &[u8], geo: &Geometry) -> FormatError {
    FormatError::Truncated {
        structure: "extended attribute block",
        needed: geo.block_len(),
        found: block.len(),
    }
}

/// An attribute to be stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewXattr<'a> {
    /// Index of the name's prefix.
    pub name_index: u8,
    /// Name without prefix.
    pub name: &'a [u8],
    /// The value, or where it is.
    pub value: XattrValue<'a>,
    /// Hash kept by the value's inode, for values in inodes.
    pub value_inode_hash: u32,
}

impl NewXattr<'_> {
    /// Bytes the attribute takes in a table: entry, name and value.
    #[must_use]
    pub fn space(&self) -> usize {
        let value = match self.value {
            XattrValue::Local(v) => v.len().next_multiple_of(4),
            XattrValue::Inode { .. } => 0,
        };
        (ENTRY + self.name.len()).next_multiple_of(4) + value
    }

    fn hash(&self) -> u32 {
        let value = match self.value {
            XattrValue::Local(v) => ValueToHash::Local(v),
            XattrValue::Inode { .. } => ValueToHash::Inode(self.value_inode_hash),
        };
        entry_hash(self.name, value, true)
    }
}

/// Whether attributes fit in a place of `area_len` bytes with a head of `header` bytes.
#[must_use]
pub fn fits(area_len: usize, header: usize, attributes: &[NewXattr<'_>]) -> bool {
    let space: usize = attributes.iter().map(NewXattr::space).sum();
    header + space + END_MARK <= area_len && attributes.iter().all(|a| a.name.len() <= 255)
}

/// Lays entries and values out; the area behind `first` is overwritten. Returns the hashes.
fn write_table(
    area: &mut [u8],
    first: usize,
    value_base: usize,
    attributes: &[NewXattr<'_>],
    hashes: bool,
) -> Option<Vec<u32>> {
    if !fits(area.len(), first, attributes) {
        return None;
    }
    area[first..].fill(0);
    let mut at = first;
    let mut values = area.len() & !3;
    let mut out = Vec::with_capacity(attributes.len());
    for a in attributes {
        let (offs, inum, size) = match a.value {
            XattrValue::Inode { ino, size } => (0, ino.0, size),
            XattrValue::Local(&[]) => (0, 0, 0),
            XattrValue::Local(value) => {
                values = values.checked_sub(value.len().next_multiple_of(4))?;
                area.get_mut(values..values + value.len())?
                    .copy_from_slice(value);
                let offs = u16::try_from(values - value_base).ok()?;
                (offs, 0, u32::try_from(value.len()).ok()?)
            }
        };
        // In the inode only values elsewhere need a hash (to find the inode again).
        let hash = if hashes || inum != 0 { a.hash() } else { 0 };
        out.push(hash);
        let raw = RawXattrEntry {
            name_len: u8::try_from(a.name.len()).ok()?,
            name_index: a.name_index,
            value_offs: U16::new(offs),
            value_inum: U32::new(inum),
            value_size: U32::new(size),
            hash: U32::new(hash),
        };
        area[at..at + ENTRY].copy_from_slice(raw.as_bytes());
        area[at + ENTRY..at + ENTRY + a.name.len()].copy_from_slice(a.name);
        at += (ENTRY + a.name.len()).next_multiple_of(4);
    }
    Some(out)
}

/// Stores attributes in an inode's area (everything behind the extra size); without attributes
/// the area is cleared. `None`, and nothing changed, when they do not fit.
#[must_use]
pub fn write_ibody(area: &mut [u8], attributes: &[NewXattr<'_>]) -> Option<()> {
    if attributes.is_empty() {
        area.fill(0);
        return Some(());
    }
    write_table(area, IBODY_HEADER, IBODY_HEADER, attributes, false)?;
    area[..IBODY_HEADER].copy_from_slice(&MAGIC.to_le_bytes());
    Some(())
}

/// Makes `block` an attribute block of one user (without checksum: [`set_block_checksum`]).
/// Entries are stored in the order searches rely on. `None`, and nothing changed, when they do
/// not fit.
#[must_use]
pub fn write_block(block: &mut [u8], attributes: &[NewXattr<'_>]) -> Option<()> {
    let mut sorted = attributes.to_vec();
    sorted.sort_by(|a, b| {
        (a.name_index, a.name.len(), a.name).cmp(&(b.name_index, b.name.len(), b.name))
    });
    let hashes = write_table(block, BLOCK_HEADER, 0, &sorted, true)?;
    let head = RawXattrHeader {
        magic: U32::new(MAGIC),
        refcount: U32::new(1),
        blocks: U32::new(1),
        hash: U32::new(block_hash(hashes)),
        checksum: U32::ZERO,
        reserved: [U32::ZERO; 3],
    };
    block[..BLOCK_HEADER].copy_from_slice(head.as_bytes());
    Some(())
}

/// Verifies the checksum of an attribute block stored at `block`.
///
/// # Errors
/// [`FormatError::XattrChecksum`], [`FormatError::Truncated`].
pub fn verify_block_checksum(
    data: &[u8],
    block: BlockNo,
    geo: &Geometry,
) -> Result<(), FormatError> {
    if !geo.metadata_csum() {
        return Ok(());
    }
    let (head, _) = RawXattrHeader::ref_from_prefix(data).map_err(|_| short(data, geo))?;
    let (found, expected) = (head.checksum.get(), geo.seed.xattr_block(block, data));
    if crate::sums_differ(found, expected) {
        return Err(FormatError::XattrChecksum {
            block,
            found,
            expected,
        });
    }
    Ok(())
}

/// Stores the checksum of an attribute block to be stored at `block`; nothing without metadata
/// checksums.
///
/// # Errors
/// [`FormatError::Truncated`].
pub fn set_block_checksum(
    data: &mut [u8],
    block: BlockNo,
    geo: &Geometry,
) -> Result<(), FormatError> {
    if geo.metadata_csum() {
        let sum = geo.seed.xattr_block(block, data);
        let err = short(data, geo);
        data.get_mut(16..20)
            .ok_or(err)?
            .copy_from_slice(&sum.to_le_bytes());
    }
    Ok(())
}

#[cfg(test)]
#[path = "xattr_tests.rs"]
mod tests;
