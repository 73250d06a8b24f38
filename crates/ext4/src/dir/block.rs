//! Editing one directory block (or the inline areas that look like one), as bytes.
//!
//! The layout of entries and tails belongs to `ondisk`; here they are found, added and taken away. Unlike `ondisk::ext4::dir::DirBlock`, which judges
//! whole blocks for the checker, this reads only as much of an entry as a walk needs, and keeps unknown fields (types, hashes). Pure functions over
//! slices: no I/O, no journal. Every function validates what it walks, so that a damaged block ends in an error and never in a panic or an endless
//! loop: each entry is at least 12 bytes, a multiple of 4, and ends within the area.
//!
//! Reference: kernel documentation, "ext4 Data Structures: Directory Entries".

use blockwright_ondisk::ext4::dir::{
    decode_rec_len, encode_rec_len, set_leaf_checksum, verify_leaf_checksum, write_tail,
};
use blockwright_ondisk::ext4::{Ino, InodeSeed};

pub use blockwright_ondisk::ext4::dir::{DirFormat, ENTRY_HEADER};

/// What is wrong with a directory block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadEntry {
    /// Offset of the entry in its area.
    pub offset: usize,
    /// The invalid property.
    pub what: &'static str,
}

impl std::fmt::Display for BadEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "directory entry at offset {}: {}",
            self.offset, self.what
        )
    }
}

/// One entry, used or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Where it starts in the area.
    pub offset: usize,
    /// How far it reaches.
    pub rec_len: usize,
    /// The inode it names; 0 for an unused entry.
    pub ino: Ino,
    /// File type code, 0 when not recorded.
    pub file_type: u8,
    /// The name.
    pub name: &'a [u8],
    /// All of its bytes.
    pub record: &'a [u8],
}

impl Entry<'_> {
    /// The hash and minor hash stored behind the name, in directories that store them.
    #[must_use]
    pub fn stored_hash(&self) -> Option<(u32, u32)> {
        let at = (ENTRY_HEADER + self.name.len()).next_multiple_of(4);
        let words = self.record.get(at..at + 8)?;
        Some((u32_at(words, 0), u32_at(words, 4)))
    }

    /// Whether it names anything.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.ino.0 != 0
    }
}

fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

/// Reads the entry at `offset` of an area that ends with the slice.
///
/// # Errors
/// An entry that is too short, not aligned, crosses the end, or whose name does not fit.
pub fn entry_at<'a>(
    area: &'a [u8],
    offset: usize,
    layout: &DirFormat,
) -> Result<Entry<'a>, BadEntry> {
    let bad = |what| Err(BadEntry { offset, what });
    if offset + ENTRY_HEADER > area.len() {
        return bad("crosses the end of its block");
    }
    let rec_len = decode_rec_len(u16_at(area, offset + 4), layout.block_size);
    if rec_len < 12 {
        return bad("is shorter than any entry");
    }
    if !rec_len.is_multiple_of(4) {
        return bad("has a length that is not a multiple of 4");
    }
    if rec_len > area.len() - offset {
        return bad("crosses the end of its block");
    }
    // Without types the next byte was the upper half of the length once. No name needs it, and the kernel ignores it.
    let name_len = usize::from(area[offset + 6]);
    if ENTRY_HEADER + name_len > rec_len {
        return bad("has a name longer than itself");
    }
    Ok(Entry {
        offset,
        rec_len,
        ino: Ino(u32_at(area, offset)),
        file_type: if layout.filetype { area[offset + 7] } else { 0 },
        name: &area[offset + ENTRY_HEADER..offset + ENTRY_HEADER + name_len],
        record: &area[offset..offset + rec_len],
    })
}

/// Iterates over all entries of an area, used or not. Ends after the first bad one.
pub struct Entries<'a> {
    area: &'a [u8],
    offset: usize,
    layout: DirFormat,
}

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>, BadEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.offset >= self.area.len() {
            return None;
        }
        let entry = entry_at(self.area, self.offset, &self.layout);
        match &entry {
            Ok(e) => self.offset += e.rec_len,
            Err(_) => self.offset = self.area.len(),
        }
        Some(entry)
    }
}

/// The entries of an area: the usable part of a leaf block, or an inline area.
#[must_use]
pub fn entries<'a>(area: &'a [u8], layout: &DirFormat) -> Entries<'a> {
    Entries {
        area,
        offset: 0,
        layout: *layout,
    }
}

/// The entries of a leaf block.
#[must_use]
pub fn leaf_entries<'a>(block: &'a [u8], layout: &DirFormat) -> Entries<'a> {
    entries(&block[..layout.leaf_space().min(block.len())], layout)
}

/// The used entry of exactly this name. Most names differ in length or in the last byte. These are skipped after the
/// checks of [`entry_at`] without being parsed: a create passes half a block of other names.
///
/// # Errors
/// The first bad entry before it.
pub fn find_name<'a>(
    area: &'a [u8],
    name: &[u8],
    layout: &DirFormat,
) -> Result<Option<Entry<'a>>, BadEntry> {
    let mut at = 0;
    while at < area.len() {
        if let Some(head) = area.get(at..at + ENTRY_HEADER) {
            let rec_len = decode_rec_len(u16_at(head, 4), layout.block_size);
            let name_len = match layout.filetype {
                true => usize::from(head[6]),
                false => usize::from(u16_at(head, 6)),
            };
            let behind = ENTRY_HEADER + name_len;
            let sound = rec_len >= 12
                && rec_len.is_multiple_of(4)
                && rec_len <= area.len() - at
                && name_len <= 255
                && behind <= rec_len;
            if sound && (name_len != name.len() || name.last() != area[at..at + behind].last()) {
                at += rec_len;
                continue;
            }
        }
        let entry = entry_at(area, at, layout)?;
        if entry.is_used() && entry.name == name {
            return Ok(Some(entry));
        }
        at += entry.rec_len;
    }
    Ok(None)
}

/// Writes one entry over `area[offset..offset + rec_len]`.
#[allow(clippy::too_many_arguments)]
pub fn write_entry(
    area: &mut [u8],
    offset: usize,
    rec_len: usize,
    ino: Ino,
    file_type: u8,
    name: &[u8],
    layout: &DirFormat,
) {
    area[offset..offset + 4].copy_from_slice(&ino.0.to_le_bytes());
    set_rec_len(area, offset, rec_len, layout);
    area[offset + 6] = name.len() as u8;
    area[offset + 7] = if layout.filetype { file_type } else { 0 };
    area[offset + ENTRY_HEADER..offset + ENTRY_HEADER + name.len()].copy_from_slice(name);
    // Padding is zeroed so that nothing of an older name leaks into the image.
    let end = (offset + ENTRY_HEADER + name.len()).next_multiple_of(4);
    area[offset + ENTRY_HEADER + name.len()..end.min(offset + rec_len)].fill(0);
}

/// Changes the length of the entry at `offset`.
pub fn set_rec_len(area: &mut [u8], offset: usize, rec_len: usize, layout: &DirFormat) {
    // Inline areas may end anywhere.
    let stored = encode_rec_len(rec_len, layout.block_size).unwrap_or(rec_len as u16);
    area[offset + 4..offset + 6].copy_from_slice(&stored.to_le_bytes());
}

/// Where a new entry can go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Start of the entry whose slack (or all of which, if unused) is taken.
    pub offset: usize,
}

/// Finds room for a name of `name_len` bytes.
///
/// # Errors
/// A damaged entry on the way.
pub fn find_slot(
    area: &[u8],
    name_len: usize,
    layout: &DirFormat,
) -> Result<Option<Slot>, BadEntry> {
    let needed = layout.min_rec_len(name_len);
    for entry in entries(area, layout) {
        let entry = entry?;
        let used = if entry.is_used() {
            layout.entry_len(entry.name)
        } else {
            0
        };
        if entry.rec_len.saturating_sub(used) >= needed {
            return Ok(Some(Slot {
                offset: entry.offset,
            }));
        }
    }
    Ok(None)
}

/// Puts an entry into a slot that [`find_slot`] found in the same bytes.
///
/// # Errors
/// The slot no longer fits.
pub fn insert_at(
    area: &mut [u8],
    slot: Slot,
    ino: Ino,
    file_type: u8,
    name: &[u8],
    layout: &DirFormat,
) -> Result<(), BadEntry> {
    let (used, rec_len) = {
        let e = entry_at(area, slot.offset, layout)?;
        let used = if e.is_used() {
            layout.entry_len(e.name)
        } else {
            0
        };
        (used, e.rec_len)
    };
    if rec_len < used + layout.min_rec_len(name.len()) {
        return Err(BadEntry {
            offset: slot.offset,
            what: "has no room for the new entry",
        });
    }
    if used > 0 {
        set_rec_len(area, slot.offset, used, layout);
    }
    write_entry(
        area,
        slot.offset + used,
        rec_len - used,
        ino,
        file_type,
        name,
        layout,
    );
    Ok(())
}

/// Removes the entry at `offset`: its room goes to the entry before it in the area, or it becomes
/// an unused entry when it is the first.
///
/// # Errors
/// A damaged entry on the way, or no entry starts there.
pub fn remove_at(area: &mut [u8], offset: usize, layout: &DirFormat) -> Result<(), BadEntry> {
    let mut prev: Option<(usize, usize)> = None;
    let mut at = 0;
    while at < area.len() {
        let e = entry_at(area, at, layout)?;
        let rec_len = e.rec_len;
        if at == offset {
            match prev {
                Some((prev_at, prev_len)) => {
                    set_rec_len(area, prev_at, prev_len + rec_len, layout);
                    area[at..at + ENTRY_HEADER].fill(0);
                }
                None => area[at..at + 4].fill(0),
            }
            // The name goes too: a deleted name must not be readable from the image.
            area[at + ENTRY_HEADER..at + rec_len].fill(0);
            if prev.is_none() {
                area[at + 6..at + 8].fill(0);
            }
            return Ok(());
        }
        prev = Some((at, rec_len));
        at += rec_len;
    }
    Err(BadEntry {
        offset,
        what: "is not where it was found",
    })
}

/// Changes what the entry at `offset` names.
///
/// # Errors
/// There is no sound entry there.
pub fn retarget_at(
    area: &mut [u8],
    offset: usize,
    ino: Ino,
    file_type: u8,
    layout: &DirFormat,
) -> Result<(), BadEntry> {
    entry_at(area, offset, layout)?;
    area[offset..offset + 4].copy_from_slice(&ino.0.to_le_bytes());
    if layout.filetype {
        area[offset + 7] = file_type;
    }
    Ok(())
}

/// Makes a zeroed area one unused entry.
pub fn init_empty(area: &mut [u8], layout: &DirFormat) {
    area.fill(0);
    let len = area.len();
    set_rec_len(area, 0, len, layout);
}

/// Makes a leaf block of entries packed to its start, in the given order; the last one takes all
/// slack. `entries` are `(inode, type, name)`. The caller knows that they fit.
pub fn pack_leaf<'a>(
    block: &mut [u8],
    entries: impl Iterator<Item = (Ino, u8, &'a [u8])>,
    layout: &DirFormat,
) {
    let usable = layout.leaf_space();
    block.fill(0);
    let mut at = 0;
    let mut last = None;
    for (ino, file_type, name) in entries {
        let len = layout.min_rec_len(name.len());
        write_entry(block, at, len, ino, file_type, name, layout);
        last = Some(at);
        at += len;
    }
    match last {
        Some(last) => set_rec_len(block, last, usable - last, layout),
        None => set_rec_len(block, 0, usable, layout),
    }
}

/// Writes `.` and `..` at the start of a leaf; `..` takes all slack.
pub fn init_dots(block: &mut [u8], own: Ino, parent: Ino, layout: &DirFormat) {
    const DIRECTORY: u8 = 2;
    block.fill(0);
    let end = layout.leaf_space();
    write_entry(block, 0, 12, own, DIRECTORY, b".", layout);
    write_entry(block, 12, end - 12, parent, DIRECTORY, b"..", layout);
}

/// Stores the checksum tail of a leaf block.
pub fn seal_leaf(block: &mut [u8], layout: &DirFormat, seed: InodeSeed) {
    let sealed = write_tail(block, layout).map(|()| set_leaf_checksum(block, layout, seed));
    debug_assert!(matches!(sealed, Some(Ok(()))), "a block has room for it");
}

/// Whether a leaf block's tail is there and right.
#[must_use]
pub fn leaf_checksum_ok(block: &[u8], layout: &DirFormat, seed: InodeSeed) -> bool {
    verify_leaf_checksum(block, layout, seed).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(block_size: usize, checksums: bool, filetype: bool) -> DirFormat {
        DirFormat {
            block_size,
            checksums,
            filetype,
            stored_hash: false,
            encrypted: false,
            max_ino: u32::MAX,
        }
    }

    fn names(block: &[u8], l: &DirFormat) -> Vec<(u32, Vec<u8>)> {
        leaf_entries(block, l)
            .map(|e| e.unwrap())
            .filter(Entry::is_used)
            .map(|e| (e.ino.0, e.name.to_vec()))
            .collect()
    }

    #[test]
    fn insert_remove_retarget_against_a_map() {
        for l in [
            layout(1024, true, true),
            layout(4096, false, false),
            layout(65536, true, true),
            layout(65536, false, true),
        ] {
            let mut block = vec![0; l.block_size];
            init_empty(&mut block[..l.leaf_space()], &l);
            let mut model = std::collections::BTreeMap::new();
            let mut x = 7u64;
            for step in 0..3000u32 {
                x = x
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                let name = format!(
                    "n{}",
                    "x".repeat((x >> 33) as usize % 60) + &((x >> 50) % 97).to_string()
                );
                let area = &mut block[..l.leaf_space()];
                let found = find_name(area, name.as_bytes(), &l).unwrap();
                let same = entries(area, &l)
                    .map(|e| e.unwrap())
                    .find(|e| e.is_used() && e.name == name.as_bytes());
                assert_eq!(found.map(|e| e.offset), same.map(|e| e.offset));
                assert_eq!(found.is_some(), model.contains_key(name.as_bytes()));
                if let Some(at) = found.map(|e| e.offset) {
                    if x >> 63 == 0 {
                        remove_at(area, at, &l).unwrap();
                        model.remove(name.as_bytes());
                    } else {
                        retarget_at(area, at, Ino(step + 1), 2, &l).unwrap();
                        model.insert(name.into_bytes(), step + 1);
                    }
                } else if let Some(slot) = find_slot(area, name.len(), &l).unwrap() {
                    insert_at(area, slot, Ino(step + 1), 1, name.as_bytes(), &l).unwrap();
                    model.insert(name.into_bytes(), step + 1);
                }
                let mut got = names(&block, &l);
                got.sort_by(|a, b| a.1.cmp(&b.1));
                let want: Vec<_> = model.iter().map(|(n, i)| (*i, n.clone())).collect();
                assert_eq!(got, want);
            }
            seal_leaf(&mut block, &l, InodeSeed(5));
            assert!(leaf_checksum_ok(&block, &l, InodeSeed(5)));
            assert!(!l.checksums || !leaf_checksum_ok(&block, &l, InodeSeed(6)));
        }
    }

    #[test]
    fn damaged_entries_are_refused() {
        let l = layout(1024, false, true);
        let mut block = vec![0; 1024];
        init_dots(&mut block, Ino(2), Ino(2), &l);
        for (at, value) in [(4, 0u8), (4, 8), (4, 13), (17, 0xFF), (6, 200)] {
            let mut bad = block.clone();
            bad[at] = value;
            assert!(
                leaf_entries(&bad, &l).any(|e| e.is_err()),
                "byte {at} = {value}"
            );
            assert!(find_name(&bad, b"nobody", &l).is_err());
        }
    }

    #[test]
    fn packing_keeps_order_and_slack() {
        let l = layout(1024, true, true);
        let mut block = vec![0xFF; 1024];
        let list: [(Ino, u8, &[u8]); 2] = [(Ino(5), 1, b"b"), (Ino(6), 2, b"a")];
        pack_leaf(&mut block, list.into_iter(), &l);
        assert_eq!(
            names(&block, &l),
            vec![(5, b"b".to_vec()), (6, b"a".to_vec())]
        );
        pack_leaf(&mut block, std::iter::empty(), &l);
        assert!(names(&block, &l).is_empty());
    }
}
