//! Extended attributes: one list that begins in the inode (when it has room for attributes) and goes
//! on in a node of its own; the seam may be anywhere.
//!
//! [`assemble`] joins both parts, [`XattrList`] is a validated view of the list, [`build`] makes a new
//! one. The list has a head, entries with name and value aligned to 4 bytes, and a zero word.

use std::mem::size_of;

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::error::FormatError;
use super::node::FOOTER_OFFSET;

/// Magic of the list's head.
pub const MAGIC: u32 = 0xF2F5_2011;
/// Bytes of attributes in a node.
pub const NODE_BYTES: usize = FOOTER_OFFSET;
/// Longest value.
pub const VALUE_MAX: usize = NODE_BYTES - HEADER_BYTES - ENTRY_BYTES;
/// Longest name without prefix.
pub const NAME_MAX: usize = 255;

/// Head of the list. Fields keep their published names, without `h_`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawXattrHeader {
    pub magic: U32,
    pub refcount: U32,
    pub reserved: [U32; 4],
}

/// An entry, followed by name and value. Fields keep their published names, without `e_`.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawXattrEntry {
    pub name_index: u8,
    pub name_len: u8,
    pub value_size: U16,
}

/// Bytes of the head.
pub const HEADER_BYTES: usize = size_of::<RawXattrHeader>();
const ENTRY_BYTES: usize = size_of::<RawXattrEntry>();
/// Bytes of the zero word that ends the list.
const END_BYTES: usize = 4;

const _: () = {
    assert!(HEADER_BYTES == 24);
    assert!(ENTRY_BYTES == 4);
};

/// Name index of "user.".
pub const INDEX_USER: u8 = 1;
/// Name index of access lists (a whole name).
pub const INDEX_ACL_ACCESS: u8 = 2;
/// Name index of default access lists (a whole name).
pub const INDEX_ACL_DEFAULT: u8 = 3;
/// Name index of "trusted.".
pub const INDEX_TRUSTED: u8 = 4;
/// Name index of "security.".
pub const INDEX_SECURITY: u8 = 6;
/// Name index of the inode's hints, which are not stored as an attribute.
pub const INDEX_ADVISE: u8 = 7;
/// Name index of encryption contexts.
pub const INDEX_ENCRYPTION: u8 = 9;
/// Name index of verity descriptors.
pub const INDEX_VERITY: u8 = 11;
/// Name (under [`INDEX_VERITY`]) of the attribute that says where a file's descriptor is.
pub const VERITY_NAME: &[u8] = b"v";

/// Where the fs-verity descriptor of a file is, behind the file's end: the value of [`VERITY_NAME`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VerityPlace {
    /// Bytes of the descriptor.
    pub descriptor_bytes: u32,
    /// Byte of the file where it begins.
    pub descriptor_at: u64,
}

impl VerityPlace {
    /// The stored value: version 1, length, place.
    #[must_use]
    pub fn to_value(self) -> Vec<u8> {
        let mut out = 1u32.to_le_bytes().to_vec();
        out.extend(self.descriptor_bytes.to_le_bytes());
        out.extend(self.descriptor_at.to_le_bytes());
        out
    }
}

/// Name prefixes by index. Prefixes without a trailing dot are whole names.
pub const PREFIXES: [(u8, &str); 5] = [
    (INDEX_USER, "user."),
    (INDEX_ACL_ACCESS, "system.posix_acl_access"),
    (INDEX_ACL_DEFAULT, "system.posix_acl_default"),
    (INDEX_TRUSTED, "trusted."),
    (INDEX_SECURITY, "security."),
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

/// An attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Xattr<'a> {
    /// Index of the name's prefix.
    pub index: u8,
    /// Name without prefix.
    pub name: &'a [u8],
    /// Value.
    pub value: &'a [u8],
}

impl Xattr<'_> {
    /// Bytes it takes in the list.
    #[must_use]
    pub fn space(&self) -> usize {
        (ENTRY_BYTES + self.name.len() + self.value.len()).next_multiple_of(4)
    }
}

/// The whole list from the inode's part (empty when it has no room) and the node's, if there is one
/// (its whole block).
///
/// # Errors
/// [`FormatError::Truncated`] when the node is too short.
pub fn assemble(inline: &[u8], node: Option<&[u8]>) -> Result<Vec<u8>, FormatError> {
    let mut out = inline.to_vec();
    if let Some(node) = node {
        let part = node.get(..NODE_BYTES).ok_or(FormatError::Truncated {
            structure: "attribute node",
            needed: NODE_BYTES,
            found: node.len(),
        })?;
        out.extend_from_slice(part);
    }
    Ok(out)
}

/// A validated list.
#[derive(Clone, Copy, Debug)]
pub struct XattrList<'a> {
    /// From the head on, without the zero word.
    entries: &'a [u8],
}

impl<'a> XattrList<'a> {
    /// From a whole list. A list without magic was never written, and is empty.
    ///
    /// # Errors
    /// [`FormatError::XattrEntry`] when an entry leaves the list, or nothing ends it.
    pub fn parse(list: &'a [u8]) -> Result<Self, FormatError> {
        let Ok((head, entries)) = RawXattrHeader::ref_from_prefix(list) else {
            return Ok(Self { entries: &[] });
        };
        if head.magic.get() != MAGIC {
            return Ok(Self { entries: &[] });
        }
        let mut at = 0;
        loop {
            let bad = || FormatError::XattrEntry {
                offset: HEADER_BYTES + at,
            };
            let rest = entries.get(at..).ok_or_else(bad)?;
            // A list may fill its place to the last byte.
            if rest.is_empty() || rest.first_chunk() == Some(&[0; END_BYTES]) {
                return Ok(Self {
                    entries: &entries[..at],
                });
            }
            let (entry, space) = split_entry(rest).ok_or_else(bad)?;
            if entry.index == 0 {
                return Err(bad());
            }
            at += space;
        }
    }

    /// The attributes in stored order.
    pub fn iter(&self) -> impl Iterator<Item = Xattr<'a>> + use<'a> {
        let mut rest = self.entries;
        std::iter::from_fn(move || {
            let (entry, space) = split_entry(rest)?;
            rest = rest.get(space..)?;
            Some(entry)
        })
    }

    /// The attribute of a name.
    #[must_use]
    pub fn find(&self, index: u8, name: &[u8]) -> Option<Xattr<'a>> {
        self.iter().find(|x| x.index == index && x.name == name)
    }
}

/// The first entry and the bytes it takes.
fn split_entry(bytes: &[u8]) -> Option<(Xattr<'_>, usize)> {
    let (raw, rest) = RawXattrEntry::ref_from_prefix(bytes).ok()?;
    let (name, rest) = rest.split_at_checked(usize::from(raw.name_len))?;
    let value = rest.get(..usize::from(raw.value_size.get()))?;
    let entry = Xattr {
        index: raw.name_index,
        name,
        value,
    };
    let space = entry.space();
    (space <= bytes.len()).then_some((entry, space))
}

/// Bytes that a list of these attributes needs; 0 for none.
#[must_use]
pub fn list_bytes(attributes: &[Xattr<'_>]) -> usize {
    if attributes.is_empty() {
        return 0;
    }
    HEADER_BYTES + attributes.iter().map(Xattr::space).sum::<usize>() + END_BYTES
}

/// A list of attributes for a place of `inline` bytes in the inode, and a node: the inode's part and,
/// when they do not fit there, the node's. `None` when they fit in neither, a name is too long or empty
/// where it must not be, or a value is too long.
#[must_use]
pub fn build(attributes: &[Xattr<'_>], inline: usize) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
    let needed = list_bytes(attributes);
    if needed > inline + NODE_BYTES {
        return None;
    }
    let mut list = Vec::with_capacity(inline + NODE_BYTES);
    if needed > 0 {
        let head = RawXattrHeader {
            magic: U32::new(MAGIC),
            refcount: U32::new(1),
            reserved: [U32::ZERO; 4],
        };
        list.extend_from_slice(head.as_bytes());
    }
    for a in attributes {
        if a.value.len() > VALUE_MAX || a.index == 0 {
            return None;
        }
        let raw = RawXattrEntry {
            name_index: a.index,
            name_len: u8::try_from(a.name.len()).ok()?,
            value_size: U16::new(u16::try_from(a.value.len()).ok()?),
        };
        list.extend_from_slice(raw.as_bytes());
        list.extend_from_slice(a.name);
        list.extend_from_slice(a.value);
        list.resize(list.len().next_multiple_of(4), 0);
    }
    if needed <= inline {
        list.resize(inline, 0);
        return Some((list, None));
    }
    list.resize(inline + NODE_BYTES, 0);
    let node = list.split_off(inline);
    Some((list, Some(node)))
}

#[cfg(test)]
#[path = "xattr_tests.rs"]
mod tests;
