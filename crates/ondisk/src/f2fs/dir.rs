//! Directory entries: a bitmap of slots in use, slots of 11 bytes, and 8 bytes of name for each slot.
//! A name longer than 8 bytes takes as many consecutive slots as it needs; the first one has the
//! entry.
//!
//! The same form is used for blocks (214 slots) and inline in an inode (as many as fit).
//! [`DentryView`] is a validated view, [`DentrySlots`] changes entries in place.
//!
//! Not responsible for: which block a name belongs into (see [`super::dir_geometry`]).

use std::mem::{offset_of, size_of};

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::error::FormatError;
use super::types::{BLOCK_SIZE, FileKind, Ino, NAME_MAX};

/// Bytes of name per slot.
pub const SLOT_LEN: usize = 8;
/// Slots of a block.
pub const SLOTS_PER_BLOCK: usize = 214;

/// A slot. Fields keep their published names.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawDirEntry {
    pub hash_code: U32,
    pub ino: U32,
    pub name_len: U16,
    pub file_type: u8,
}

/// A block of entries.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawDentryBlock {
    pub dentry_bitmap: [u8; SLOTS_PER_BLOCK.div_ceil(8)],
    pub reserved: [u8; 3],
    pub dentry: [RawDirEntry; SLOTS_PER_BLOCK],
    pub filename: [[u8; SLOT_LEN]; SLOTS_PER_BLOCK],
}

const ENTRY_BYTES: usize = size_of::<RawDirEntry>();

const _: () = {
    assert!(ENTRY_BYTES == 11);
    assert!(size_of::<RawDentryBlock>() == BLOCK_SIZE);
    assert!(offset_of!(RawDentryBlock, dentry) == 30);
    assert!(offset_of!(RawDentryBlock, filename) == 2384);
};

/// Where bitmap, slots and names are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DentryLayout {
    /// Slots.
    pub slots: usize,
    entries: usize,
    names: usize,
    bytes: usize,
}

impl DentryLayout {
    /// Of a block.
    pub const BLOCK: Self = Self {
        slots: SLOTS_PER_BLOCK,
        entries: offset_of!(RawDentryBlock, dentry),
        names: offset_of!(RawDentryBlock, filename),
        bytes: BLOCK_SIZE,
    };

    /// Of this many bytes in an inode: as many slots as fit with a bit each; what is left over lies
    /// between bitmap and slots.
    #[must_use]
    pub fn inline(bytes: usize) -> Self {
        let slots = bytes * 8 / ((ENTRY_BYTES + SLOT_LEN) * 8 + 1);
        let entries = bytes - slots * (ENTRY_BYTES + SLOT_LEN);
        Self {
            slots,
            entries,
            names: entries + slots * ENTRY_BYTES,
            bytes,
        }
    }

    fn check(self, found: usize) -> Result<(), FormatError> {
        if found < self.bytes {
            return Err(FormatError::Truncated {
                structure: "directory entries",
                needed: self.bytes,
                found,
            });
        }
        Ok(())
    }
}

/// Slots that a name of this many bytes takes.
#[must_use]
pub const fn slots_of(name_len: usize) -> usize {
    name_len.div_ceil(SLOT_LEN)
}

/// An entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirEntry<'a> {
    /// Its first slot.
    pub slot: usize,
    /// Hash of the name.
    pub hash: u32,
    /// The inode.
    pub ino: Ino,
    /// What the inode is; `None` for an unknown code.
    pub kind: Option<FileKind>,
    /// Name.
    pub name: &'a [u8],
}

/// Which bytes names may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NameBytes {
    /// Those of a file name: neither NUL nor `/`.
    Plain,
    /// Any: names of encrypted directories.
    Any,
}

/// Validated entries.
#[derive(Clone, Copy, Debug)]
pub struct DentryView<'a> {
    bytes: &'a [u8],
    layout: DentryLayout,
}

fn bit(bytes: &[u8], slot: usize) -> bool {
    bytes
        .get(slot / 8)
        .is_some_and(|b| b & (1 << (slot % 8)) != 0)
}

impl<'a> DentryView<'a> {
    /// From a block or the inline bytes of an inode. `max_ino` is the first number that no inode
    /// has.
    ///
    /// # Errors
    /// One variant per check.
    pub fn parse(
        bytes: &'a [u8],
        layout: DentryLayout,
        names: NameBytes,
        max_ino: u32,
    ) -> Result<Self, FormatError> {
        layout.check(bytes.len())?;
        let view = Self { bytes, layout };
        let mut slot = 0;
        while slot < layout.slots {
            if !bit(bytes, slot) {
                slot += 1;
                continue;
            }
            let raw = view.raw(slot).ok_or(FormatError::Truncated {
                structure: "directory entries",
                needed: layout.bytes,
                found: bytes.len(),
            })?;
            let len = usize::from(raw.name_len.get());
            if len == 0 || len > NAME_MAX {
                return Err(FormatError::DirNameLength { slot, found: len });
            }
            if slot + slots_of(len) > layout.slots {
                return Err(FormatError::DirNamePastEnd { slot, found: len });
            }
            let ino = Ino(raw.ino.get());
            if ino.0 < Ino::ROOT.0 || ino.0 >= max_ino {
                return Err(FormatError::DirInode {
                    slot,
                    ino,
                    max: max_ino,
                });
            }
            let name = view.name(slot, len);
            if names == NameBytes::Plain
                && let Some(byte) = name.iter().find(|b| matches!(b, 0 | b'/'))
            {
                return Err(FormatError::DirNameByte { slot, byte: *byte });
            }
            slot += slots_of(len);
        }
        Ok(view)
    }

    /// From bytes that [`DentryView::parse`] found right before, and that only [`DentrySlots`] changed since: a lookup
    /// in a large directory visits dozens of blocks, and would spend its time on entries it is not about.
    ///
    /// # Errors
    /// [`FormatError::Truncated`].
    pub fn verified(bytes: &'a [u8], layout: DentryLayout) -> Result<Self, FormatError> {
        layout.check(bytes.len())?;
        Ok(Self { bytes, layout })
    }

    /// First of this many free slots in a row.
    #[must_use]
    pub fn find_room(&self, slots: usize) -> Option<usize> {
        find_room(self.bytes, &self.layout, slots)
    }

    /// The entries whose names have this hash, in slot order.
    pub fn with_hash(&self, hash: u32) -> impl Iterator<Item = DirEntry<'a>> + use<'a> {
        let view = *self;
        // Most blocks that are visited have no such entry. Which slots begin one need not be known to tell that.
        let mut at = match view.has_hash(hash) {
            true => 0,
            false => view.layout.slots,
        };
        std::iter::from_fn(move || {
            while at < view.layout.slots {
                let slot = at;
                if !bit(view.bytes, slot) {
                    at += 1;
                    continue;
                }
                let raw = view.raw(slot)?;
                let len = usize::from(raw.name_len.get());
                at += slots_of(len).max(1);
                if raw.hash_code.get() == hash {
                    return Some(DirEntry {
                        slot,
                        hash,
                        ino: Ino(raw.ino.get()),
                        kind: FileKind::from_dirent(raw.file_type),
                        name: view.name(slot, len),
                    });
                }
            }
            None
        })
    }

    /// Whether any slot has this hash, even one of a deleted entry.
    fn has_hash(&self, hash: u32) -> bool {
        let from = self.layout.entries;
        let slots = self.bytes.get(from..from + self.layout.slots * ENTRY_BYTES);
        let hash = hash.to_le_bytes();
        slots
            .unwrap_or(&[])
            .chunks_exact(ENTRY_BYTES)
            .any(|slot| slot[..4] == hash)
    }

    fn raw(&self, slot: usize) -> Option<&'a RawDirEntry> {
        let at = self.layout.entries + slot * ENTRY_BYTES;
        RawDirEntry::ref_from_bytes(self.bytes.get(at..at + ENTRY_BYTES)?).ok()
    }

    fn name(&self, slot: usize, len: usize) -> &'a [u8] {
        let at = self.layout.names + slot * SLOT_LEN;
        self.bytes.get(at..at + len).unwrap_or(&[])
    }

    /// The entries from `slot` on, in slot order.
    pub fn iter_from(&self, slot: usize) -> impl Iterator<Item = DirEntry<'a>> + use<'a> {
        let view = *self;
        let mut at = 0;
        std::iter::from_fn(move || {
            while at < view.layout.slots {
                let slot = at;
                if !bit(view.bytes, slot) {
                    at += 1;
                    continue;
                }
                let raw = view.raw(slot)?;
                let len = usize::from(raw.name_len.get());
                at += slots_of(len).max(1);
                return Some(DirEntry {
                    slot,
                    hash: raw.hash_code.get(),
                    ino: Ino(raw.ino.get()),
                    kind: FileKind::from_dirent(raw.file_type),
                    name: view.name(slot, len),
                });
            }
            None
        })
        .skip_while(move |e| e.slot < slot)
    }

    /// All entries, in slot order.
    pub fn iter(&self) -> impl Iterator<Item = DirEntry<'a>> + use<'a> {
        self.iter_from(0)
    }

    /// The entry of a name with this hash.
    #[must_use]
    pub fn find(&self, hash: u32, name: &[u8]) -> Option<DirEntry<'a>> {
        self.iter().find(|e| e.hash == hash && e.name == name)
    }
}

/// Entries to be changed in place.
#[derive(Debug)]
pub struct DentrySlots<'a> {
    bytes: &'a mut [u8],
    layout: DentryLayout,
}

/// First of this many free slots in a row.
fn find_room(bytes: &[u8], layout: &DentryLayout, slots: usize) -> Option<usize> {
    let mut free = 0;
    let mut slot = 0;
    while slot < layout.slots {
        // Mostly eight at a time are taken.
        if slot.is_multiple_of(8) && bytes.get(slot / 8) == Some(&0xFF) {
            free = 0;
            slot += 8;
            continue;
        }
        free = if bit(bytes, slot) { 0 } else { free + 1 };
        if free == slots {
            return Some(slot + 1 - slots);
        }
        slot += 1;
    }
    None
}

impl<'a> DentrySlots<'a> {
    /// Over a block or the inline bytes of an inode.
    ///
    /// # Errors
    /// [`FormatError::Truncated`].
    pub fn new(bytes: &'a mut [u8], layout: DentryLayout) -> Result<Self, FormatError> {
        layout.check(bytes.len())?;
        Ok(Self { bytes, layout })
    }

    /// First of this many free slots in a row.
    #[must_use]
    pub fn find_room(&self, slots: usize) -> Option<usize> {
        find_room(self.bytes, &self.layout, slots)
    }

    /// Puts an entry into free slots. `None`, and nothing changed, when they are not free, or the
    /// name's length is impossible.
    #[must_use]
    pub fn insert(
        &mut self,
        slot: usize,
        name: &[u8],
        hash: u32,
        ino: Ino,
        kind: FileKind,
    ) -> Option<()> {
        let slots = slots_of(name.len());
        let end = slot.checked_add(slots)?;
        let taken = (slot..end).any(|s| bit(self.bytes, s));
        if name.is_empty() || name.len() > NAME_MAX || end > self.layout.slots || taken {
            return None;
        }
        let raw = RawDirEntry {
            hash_code: U32::new(hash),
            ino: U32::new(ino.0),
            name_len: U16::new(name.len() as u16),
            file_type: kind.dirent_code(),
        };
        let at = self.layout.entries + slot * ENTRY_BYTES;
        self.bytes[at..at + ENTRY_BYTES].copy_from_slice(raw.as_bytes());
        let at = self.layout.names + slot * SLOT_LEN;
        self.bytes[at..at + name.len()].copy_from_slice(name);
        for s in slot..end {
            self.bytes[s / 8] |= 1 << (s % 8);
            if s > slot {
                // Slots behind the first keep a length of 0, so that they are never taken for entries.
                let at = self.layout.entries + s * ENTRY_BYTES + offset_of!(RawDirEntry, name_len);
                self.bytes[at..at + 2].fill(0);
            }
        }
        Some(())
    }

    /// Frees this many slots.
    pub fn remove(&mut self, slot: usize, slots: usize) {
        for s in slot..slot.saturating_add(slots).min(self.layout.slots) {
            self.bytes[s / 8] &= !(1 << (s % 8));
        }
    }

    /// Makes an entry name another inode. `None` when there is no such slot.
    #[must_use]
    pub fn set_target(&mut self, slot: usize, ino: Ino, kind: FileKind) -> Option<()> {
        if slot >= self.layout.slots {
            return None;
        }
        let at = self.layout.entries + slot * ENTRY_BYTES;
        let ino_at = at + offset_of!(RawDirEntry, ino);
        self.bytes[ino_at..ino_at + 4].copy_from_slice(&ino.0.to_le_bytes());
        self.bytes[at + offset_of!(RawDirEntry, file_type)] = kind.dirent_code();
        Some(())
    }

    /// Whether no slot is in use.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        (0..self.layout.slots).all(|s| !bit(self.bytes, s))
    }
}

#[cfg(test)]
#[path = "dir_tests.rs"]
mod tests;
