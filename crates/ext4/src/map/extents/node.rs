//! Editing one extent node in place: entries are 12 bytes behind a 12-byte header.
//!
//! Works on the bytes of a node that was validated when it entered the metadata cache (or on an
//! inode's root). Still, nothing here panics on odd bytes: a position outside of the node reads as
//! `None` and edits nothing.
//!
//! Not responsible for: checksums, keys of parents, splitting (see [`super::tree`]).

use blockwright_ondisk::ext4::extent::{
    ENTRY_SIZE, Extent, ExtentIndex, MAGIC, RawExtent, RawExtentIndex, max_entries,
};
use blockwright_ondisk::ext4::{BlockNo, FileBlock};
use zerocopy::{FromBytes, IntoBytes};

/// The stored form of an entry, of either kind.
pub(crate) type RawEntry = [u8; ENTRY_SIZE];

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes
        .get(at..at + 2)
        .map_or(0, |b| u16::from_le_bytes([b[0], b[1]]))
}

fn put_u16(bytes: &mut [u8], at: usize, value: u16) {
    if let Some(b) = bytes.get_mut(at..at + 2) {
        b.copy_from_slice(&value.to_le_bytes());
    }
}

/// Whether the header's magic is there.
pub(crate) fn has_magic(bytes: &[u8]) -> bool {
    u16_at(bytes, 0) == MAGIC
}

/// Levels below the node.
pub(crate) fn depth(bytes: &[u8]) -> u16 {
    u16_at(bytes, 6)
}

/// Entries the node has room for, never more than its bytes hold.
pub(crate) fn capacity(bytes: &[u8]) -> usize {
    usize::from(u16_at(bytes, 4).min(max_entries(bytes.len())))
}

/// Entries in use.
pub(crate) fn count(bytes: &[u8]) -> usize {
    usize::from(u16_at(bytes, 2)).min(capacity(bytes))
}

/// Whether a root says that its tree has nothing. One with an impossible header says nothing: its tree is damaged.
pub(crate) fn is_empty(root: &[u8; 60]) -> bool {
    let (entries, max) = (u16_at(root, 2), u16_at(root, 4));
    has_magic(root)
        && depth(root) == 0
        && entries == 0
        && (1..=max_entries(root.len())).contains(&max)
}

fn set_count(bytes: &mut [u8], count: usize) {
    put_u16(bytes, 2, u16::try_from(count).unwrap_or(u16::MAX));
}

/// Makes `bytes` an empty node with room for as many entries as fit.
pub(crate) fn init(bytes: &mut [u8], depth: u16) {
    let max = max_entries(bytes.len());
    bytes.fill(0);
    put_u16(bytes, 0, MAGIC);
    put_u16(bytes, 4, max);
    put_u16(bytes, 6, depth);
}

/// Changes the depth (a root that grows or shrinks).
pub(crate) fn set_depth(bytes: &mut [u8], depth: u16) {
    put_u16(bytes, 6, depth);
}

/// The stored entry at a position in use.
pub(crate) fn raw(bytes: &[u8], pos: usize) -> Option<RawEntry> {
    if pos >= count(bytes) {
        return None;
    }
    let at = ENTRY_SIZE * (pos + 1);
    bytes.get(at..at + ENTRY_SIZE)?.try_into().ok()
}

/// First file block of the entry at a position.
pub(crate) fn key(bytes: &[u8], pos: usize) -> Option<FileBlock> {
    let e = raw(bytes, pos)?;
    Some(FileBlock(u64::from(u32::from_le_bytes([
        e[0], e[1], e[2], e[3],
    ]))))
}

/// The extent at a position of a leaf.
pub(crate) fn extent(bytes: &[u8], pos: usize) -> Option<Extent> {
    let raw = RawExtent::read_from_bytes(&raw(bytes, pos)?).ok()?;
    Some(Extent::from_raw(&raw))
}

/// The child's block at a position of an inner node.
pub(crate) fn child(bytes: &[u8], pos: usize) -> Option<BlockNo> {
    let raw = RawExtentIndex::read_from_bytes(&raw(bytes, pos)?).ok()?;
    Some(ExtentIndex::from_raw(&raw).child)
}

/// The stored form of an extent; `None` when a number does not fit.
pub(crate) fn encode(extent: &Extent) -> Option<RawEntry> {
    extent.to_raw()?.as_bytes().try_into().ok()
}

/// The stored form of a pointer; `None` when a number does not fit.
pub(crate) fn encode_index(logical: FileBlock, child: BlockNo) -> Option<RawEntry> {
    ExtentIndex { logical, child }
        .to_raw()?
        .as_bytes()
        .try_into()
        .ok()
}

/// Position of the last entry that starts at or before `block`.
pub(crate) fn find(bytes: &[u8], block: FileBlock) -> Option<usize> {
    let entries = bytes.get(ENTRY_SIZE..ENTRY_SIZE * (count(bytes) + 1))?;
    let (entries, _) = entries.as_chunks::<ENTRY_SIZE>();
    let key = |e: &RawEntry| u64::from(u32::from_le_bytes([e[0], e[1], e[2], e[3]]));
    entries
        .partition_point(|e| key(e) <= block.0)
        .checked_sub(1)
}

/// Replaces the entry at a position in use.
pub(crate) fn set(bytes: &mut [u8], pos: usize, entry: &RawEntry) {
    if pos < count(bytes)
        && let Some(slot) = bytes.get_mut(ENTRY_SIZE * (pos + 1)..ENTRY_SIZE * (pos + 2))
    {
        slot.copy_from_slice(entry);
    }
}

/// Replaces the first file block of the entry at a position.
pub(crate) fn set_key(bytes: &mut [u8], pos: usize, logical: FileBlock) {
    if let (Some(mut e), Ok(key)) = (raw(bytes, pos), u32::try_from(logical.0)) {
        e[..4].copy_from_slice(&key.to_le_bytes());
        set(bytes, pos, &e);
    }
}

/// Inserts entries before `pos`. `false`, changing nothing, when they do not fit.
#[must_use]
pub(crate) fn insert(bytes: &mut [u8], pos: usize, entries: &[RawEntry]) -> bool {
    let used = count(bytes);
    if pos > used || used + entries.len() > capacity(bytes) {
        return false;
    }
    let at = ENTRY_SIZE * (pos + 1);
    let end = ENTRY_SIZE * (used + 1);
    bytes.copy_within(at..end, at + ENTRY_SIZE * entries.len());
    for (i, e) in entries.iter().enumerate() {
        let at = at + ENTRY_SIZE * i;
        bytes[at..at + ENTRY_SIZE].copy_from_slice(e);
    }
    set_count(bytes, used + entries.len());
    true
}

/// Removes up to `n` entries from `pos` on; the bytes behind the last entry are zeroed.
pub(crate) fn remove(bytes: &mut [u8], pos: usize, n: usize) {
    let used = count(bytes);
    if pos >= used {
        return;
    }
    let n = n.min(used - pos);
    let end = ENTRY_SIZE * (used + 1);
    bytes.copy_within(ENTRY_SIZE * (pos + n + 1)..end, ENTRY_SIZE * (pos + 1));
    bytes[end - ENTRY_SIZE * n..end].fill(0);
    set_count(bytes, used - n);
}

/// All entries from `pos` on.
pub(crate) fn entries_from(bytes: &[u8], pos: usize) -> Vec<RawEntry> {
    (pos..count(bytes)).filter_map(|i| raw(bytes, i)).collect()
}

/// Whether `right` continues `left` both in the file and on the device, in the same state.
pub(crate) fn continues(left: &Extent, right: &Extent) -> bool {
    left.unwritten == right.unwritten
        && left.end() == right.logical
        && left.physical.0 + u64::from(left.len) == right.physical.0
}

/// Cuts an extent at a file block inside of it.
pub(crate) fn split_at(e: &Extent, at: FileBlock) -> (Extent, Extent) {
    let head = at.0.saturating_sub(e.logical.0).min(u64::from(e.len));
    let left = Extent {
        len: head as u32,
        ..*e
    };
    let right = Extent {
        logical: FileBlock(e.logical.0 + head),
        physical: BlockNo(e.physical.0 + head),
        len: e.len - head as u32,
        unwritten: e.unwritten,
    };
    (left, right)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ext(logical: u64, physical: u64, len: u32) -> Extent {
        Extent {
            logical: FileBlock(logical),
            physical: BlockNo(physical),
            len,
            unwritten: false,
        }
    }

    /// A root whose header is impossible is damaged and not empty: nothing may be written over what it led to.
    #[test]
    fn only_a_sound_root_is_empty() {
        for (magic, entries, max, depth, empty) in [
            (MAGIC, 0, 4, 0, true),
            (MAGIC, 0, 1, 0, true),
            (MAGIC, 1, 4, 0, false),
            (MAGIC, 0, 4, 1, false),
            (MAGIC, 0, 0, 0, false),
            (MAGIC, 3, 0, 0, false),
            (MAGIC, 0, 5, 0, false),
            (0, 0, 4, 0, false),
        ] {
            let mut root = [0; 60];
            for (n, value) in [magic, entries, max, depth].into_iter().enumerate() {
                put_u16(&mut root, 2 * n, value);
            }
            assert_eq!(is_empty(&root), empty, "{magic} {entries} {max} {depth}");
        }
    }

    #[test]
    fn insert_find_remove() {
        let mut b = [0u8; 60];
        init(&mut b, 0);
        assert_eq!((count(&b), capacity(&b), depth(&b)), (0, 4, 0));
        for l in [30u64, 10, 20] {
            let pos = find(&b, FileBlock(l)).map_or(0, |p| p + 1);
            assert!(insert(&mut b, pos, &[encode(&ext(l, l * 10, 5)).unwrap()]));
        }
        let keys: Vec<u64> = (0..3).map(|i| key(&b, i).unwrap().0).collect();
        assert_eq!(keys, [10, 20, 30]);
        assert_eq!(find(&b, FileBlock(9)), None);
        assert_eq!(find(&b, FileBlock(29)), Some(1));
        assert_eq!(extent(&b, 2), Some(ext(30, 300, 5)));
        let two = [encode(&ext(40, 1, 1)).unwrap(); 2];
        assert!(!insert(&mut b, 3, &two), "no room for two");
        remove(&mut b, 0, 2);
        assert_eq!(count(&b), 1);
        assert_eq!(key(&b, 0), Some(FileBlock(30)));
        assert!(b[24..].iter().all(|x| *x == 0));
        assert_eq!(extent(&b, 1), None);
    }

    #[test]
    fn cutting_and_joining() {
        let e = ext(100, 1000, 50);
        let (l, r) = split_at(&e, FileBlock(120));
        assert_eq!(
            (l.len, r.len, r.logical.0, r.physical.0),
            (20, 30, 120, 1020)
        );
        assert!(continues(&l, &r));
        assert!(!continues(&r, &l));
        assert!(!continues(
            &l,
            &Extent {
                unwritten: true,
                ..r
            }
        ));
    }

    #[test]
    fn odd_bytes_do_not_panic() {
        let mut b = [0xFFu8; 60];
        assert_eq!(capacity(&b), 4);
        assert_eq!(count(&b), 4);
        assert!(!insert(&mut b, 9, &[[0; 12]]));
        remove(&mut b, 9, 3);
        let _ = find(&b, FileBlock(7));
        assert_eq!(raw(&[], 0), None);
    }
}
