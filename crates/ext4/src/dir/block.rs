//! Editing one directory block (or the inline areas that look like one), as bytes.
//!
//! Pure functions over slices: no I/O, no journal. Every function validates what it walks, so that a
//! damaged block ends in an error and never in a panic or an endless loop: each entry is at least
//! 12 bytes, a multiple of 4, and ends within the area.
//!
//! Reference: kernel documentation, "ext4 Data Structures: Directory Entries".

use blockwright_ondisk::ext4::{Ino, InodeSeed};

/// Bytes of a directory block's checksum tail.
pub const TAIL_BYTES: usize = 12;
/// The file type code that marks the checksum tail.
const TAIL_FILE_TYPE: u8 = 0xDE;
/// Bytes of an entry before its name.
pub const ENTRY_HEADER: usize = 8;

/// What entries look like on this volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes per block.
    pub block_bytes: usize,
    /// Blocks end in a checksum tail.
    pub tail: bool,
    /// Entries record the file type.
    pub filetype: bool,
    /// Entries of this directory end in an 8-byte hash (encrypted and casefolded).
    pub hash_in_entry: bool,
}

impl Layout {
    /// Bytes of a leaf block that hold entries.
    #[must_use]
    pub fn usable(&self) -> usize {
        self.block_bytes - if self.tail { TAIL_BYTES } else { 0 }
    }

    /// Bytes an entry with a name of `name_len` bytes needs.
    #[must_use]
    pub fn needed(&self, name_len: usize) -> usize {
        let hash = if self.hash_in_entry { 8 } else { 0 };
        (ENTRY_HEADER + name_len + hash).next_multiple_of(4)
    }

    fn decode_len(&self, raw: u16) -> usize {
        let raw = usize::from(raw);
        if self.block_bytes < 65536 {
            return raw;
        }
        // A length of 65536 does not fit the field: it is stored as 65535 (or 0).
        if raw == 65535 || raw == 0 {
            return 65536;
        }
        (raw & 0xFFFC) | ((raw & 3) << 16)
    }

    fn encode_len(&self, len: usize) -> u16 {
        if len >= 65536 {
            return 65535;
        }
        len as u16
    }
}

/// What is wrong with a directory block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadEntry {
    /// Offset of the entry in its area.
    pub offset: usize,
    /// What it is that makes no sense.
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
pub fn entry_at<'a>(area: &'a [u8], offset: usize, layout: &Layout) -> Result<Entry<'a>, BadEntry> {
    let bad = |what| Err(BadEntry { offset, what });
    if offset + ENTRY_HEADER > area.len() {
        return bad("crosses the end of its block");
    }
    let rec_len = layout.decode_len(u16_at(area, offset + 4));
    if rec_len < 12 {
        return bad("is shorter than any entry");
    }
    if !rec_len.is_multiple_of(4) {
        return bad("has a length that is not a multiple of 4");
    }
    if rec_len > area.len() - offset {
        return bad("crosses the end of its block");
    }
    let name_len = if layout.filetype {
        usize::from(area[offset + 6])
    } else {
        usize::from(u16_at(area, offset + 6))
    };
    if name_len > 255 || ENTRY_HEADER + name_len > rec_len {
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
    layout: Layout,
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
pub fn entries<'a>(area: &'a [u8], layout: &Layout) -> Entries<'a> {
    Entries {
        area,
        offset: 0,
        layout: *layout,
    }
}

/// The entries of a leaf block.
#[must_use]
pub fn leaf_entries<'a>(block: &'a [u8], layout: &Layout) -> Entries<'a> {
    entries(&block[..layout.usable().min(block.len())], layout)
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
    layout: &Layout,
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
pub fn set_rec_len(area: &mut [u8], offset: usize, rec_len: usize, layout: &Layout) {
    area[offset + 4..offset + 6].copy_from_slice(&layout.encode_len(rec_len).to_le_bytes());
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
pub fn find_slot(area: &[u8], name_len: usize, layout: &Layout) -> Result<Option<Slot>, BadEntry> {
    let needed = layout.needed(name_len);
    for entry in entries(area, layout) {
        let entry = entry?;
        let used = if entry.is_used() {
            layout.needed(entry.name.len())
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
    layout: &Layout,
) -> Result<(), BadEntry> {
    let (used, rec_len) = {
        let e = entry_at(area, slot.offset, layout)?;
        let used = if e.is_used() {
            layout.needed(e.name.len())
        } else {
            0
        };
        (used, e.rec_len)
    };
    if rec_len < used + layout.needed(name.len()) {
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
pub fn remove_at(area: &mut [u8], offset: usize, layout: &Layout) -> Result<(), BadEntry> {
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
    layout: &Layout,
) -> Result<(), BadEntry> {
    entry_at(area, offset, layout)?;
    area[offset..offset + 4].copy_from_slice(&ino.0.to_le_bytes());
    if layout.filetype {
        area[offset + 7] = file_type;
    }
    Ok(())
}

/// Makes a zeroed area one unused entry.
pub fn init_empty(area: &mut [u8], layout: &Layout) {
    area.fill(0);
    let len = area.len();
    set_rec_len(area, 0, len, layout);
}

/// Makes a leaf block of entries packed to its start, in the given order; the last one takes all
/// slack. `entries` are `(inode, type, name)`. The caller knows that they fit.
pub fn pack_leaf<'a>(
    block: &mut [u8],
    entries: impl Iterator<Item = (Ino, u8, &'a [u8])>,
    layout: &Layout,
) {
    let usable = layout.usable();
    block.fill(0);
    let mut at = 0;
    let mut last = None;
    for (ino, file_type, name) in entries {
        let len = layout.needed(name.len());
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
pub fn init_dots(block: &mut [u8], own: Ino, parent: Ino, layout: &Layout) {
    const DIRECTORY: u8 = 2;
    block.fill(0);
    let end = layout.usable();
    write_entry(block, 0, 12, own, DIRECTORY, b".", layout);
    write_entry(block, 12, end - 12, parent, DIRECTORY, b"..", layout);
}

/// Stores the checksum tail of a leaf block.
pub fn seal_leaf(block: &mut [u8], layout: &Layout, seed: InodeSeed) {
    if !layout.tail {
        return;
    }
    let at = layout.usable();
    block[at..at + 4].fill(0);
    block[at + 4..at + 6].copy_from_slice(&(TAIL_BYTES as u16).to_le_bytes());
    block[at + 6] = 0;
    block[at + 7] = TAIL_FILE_TYPE;
    let sum = seed.dir_leaf(block);
    block[at + 8..at + 12].copy_from_slice(&sum.to_le_bytes());
}

/// Whether a leaf block's tail is there and right.
#[must_use]
pub fn leaf_checksum_ok(block: &[u8], layout: &Layout, seed: InodeSeed) -> bool {
    if !layout.tail {
        return true;
    }
    let at = layout.usable();
    u32_at(block, at) == 0
        && u16_at(block, at + 4) == TAIL_BYTES as u16
        && block[at + 6] == 0
        && block[at + 7] == TAIL_FILE_TYPE
        && u32_at(block, at + 8) == seed.dir_leaf(block)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(block_bytes: usize, tail: bool, filetype: bool) -> Layout {
        Layout {
            block_bytes,
            tail,
            filetype,
            hash_in_entry: false,
        }
    }

    fn names(block: &[u8], l: &Layout) -> Vec<(u32, Vec<u8>)> {
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
            let mut block = vec![0; l.block_bytes];
            init_empty(&mut block[..l.usable()], &l);
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
                let area = &mut block[..l.usable()];
                if model.contains_key(name.as_bytes()) {
                    let at = entries(area, &l)
                        .map(|e| e.unwrap())
                        .find(|e| e.is_used() && e.name == name.as_bytes())
                        .unwrap()
                        .offset;
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
            assert!(!l.tail || !leaf_checksum_ok(&block, &l, InodeSeed(6)));
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
