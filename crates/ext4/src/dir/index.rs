//! The bytes of a hash index: root, interior nodes, their sorted entries.
//!
//! Pure functions over slices. A root is block 0 of the directory (`.` and `..`, then the root
//! information, then entries); a node is a block whose first "entry" is unused and spans the block. Entry 0
//! has no hash: it stands for everything below entry 1, and its hash field holds limit and count.
//! The low bit of an entry's hash says that the hash before it continues in its block.
//!
//! Reference: kernel documentation, "ext4 Data Structures: Hash Tree Directories".

use blockwright_ondisk::ext4::InodeSeed;
use blockwright_ondisk::ext4::dir::{DirFormat, decode_rec_len, encode_rec_len};
use blockwright_ondisk::ext4::htree::{
    NODE_ENTRIES_OFFSET as NODE_ENTRIES, ROOT_ENTRIES_OFFSET as ROOT_ENTRIES,
    ROOT_INFO_OFFSET as ROOT_INFO, set_checksum, verify_checksum,
};

pub use blockwright_ondisk::ext4::htree::DxPlace;

const ENTRY_BYTES: usize = 8;

/// What is wrong with an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadIndex(pub &'static str);

fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

/// Writes the root information and an index of one entry behind `.` and `..`.
pub fn init_root(block: &mut [u8], hash_version: u8, first: u32, format: &DirFormat) {
    block[ROOT_INFO..].fill(0);
    block[ROOT_INFO + 4] = hash_version;
    block[ROOT_INFO + 5] = 8;
    let limit = DxPlace::Root.limit(format);
    put_limit_count(block, ROOT_ENTRIES, limit, 1);
    set_block(block, ROOT_ENTRIES, 0, first);
}

/// Sets the number of levels below the root.
pub fn set_levels(block: &mut [u8], levels: u8) {
    block[ROOT_INFO + 6] = levels;
}

/// Makes a zeroed block a node with no entries (the caller adds at least one).
pub fn init_node(block: &mut [u8], format: &DirFormat) {
    block.fill(0);
    let len = block.len();
    let stored = encode_rec_len(len, len).unwrap_or(len as u16);
    block[4..6].copy_from_slice(&stored.to_le_bytes());
    let limit = DxPlace::Node.limit(format);
    put_limit_count(block, NODE_ENTRIES, limit, 0);
}

/// Whether a block looks like a node: one unused entry that spans it all.
#[must_use]
pub fn looks_like_node(block: &[u8]) -> bool {
    u32_at(block, 0) == 0 && decode_rec_len(u16_at(block, 4), block.len()) == block.len()
}

/// Number of entries in use.
#[must_use]
pub fn count(block: &[u8], at: usize) -> usize {
    usize::from(u16_at(block, at + 2))
}

/// Number of entries there is room for.
#[must_use]
pub fn stored_limit(block: &[u8], at: usize) -> usize {
    usize::from(u16_at(block, at))
}

fn put_limit_count(block: &mut [u8], at: usize, limit: usize, count: usize) {
    block[at..at + 2].copy_from_slice(&(limit as u16).to_le_bytes());
    block[at + 2..at + 4].copy_from_slice(&(count as u16).to_le_bytes());
}

/// Changes the number of entries in use.
pub fn set_count(block: &mut [u8], at: usize, count: usize) {
    block[at + 2..at + 4].copy_from_slice(&(count as u16).to_le_bytes());
}

/// Hash of entry `i`, with the continuation bit; 0 for entry 0.
#[must_use]
pub fn hash(block: &[u8], at: usize, i: usize) -> u32 {
    if i == 0 {
        0
    } else {
        u32_at(block, at + i * ENTRY_BYTES)
    }
}

/// Logical block that entry `i` points to. The upper four bits of the word are reserved.
#[must_use]
pub fn block(block: &[u8], at: usize, i: usize) -> u32 {
    u32_at(block, at + i * ENTRY_BYTES + 4) & 0x0FFF_FFFF
}

/// Changes the block that entry `i` points to.
pub fn set_block(node: &mut [u8], at: usize, i: usize, to: u32) {
    let at = at + i * ENTRY_BYTES + 4;
    node[at..at + 4].copy_from_slice(&to.to_le_bytes());
}

/// Validates limit and count, and that the hashes ascend.
///
/// # Errors
/// What is wrong.
pub fn check(node: &[u8], place: DxPlace, format: &DirFormat) -> Result<(), BadIndex> {
    let (at, room) = (place.entries_offset(), place.limit(format));
    let (limit, count) = (stored_limit(node, at), count(node, at));
    if limit != room {
        return Err(BadIndex("an index block's limit does not match its size"));
    }
    if count == 0 || count > limit {
        return Err(BadIndex("an index block's count is out of range"));
    }
    // Over one slice: this runs for every index block of every lookup.
    let entries = node.get(at + ENTRY_BYTES..at + count * ENTRY_BYTES);
    let hashes = entries
        .unwrap_or_default()
        .chunks_exact(ENTRY_BYTES)
        .map(|e| u32::from_le_bytes([e[0], e[1], e[2], e[3]]));
    let (_, ascending) = hashes.fold((0, true), |(last, so_far), hash| {
        (hash, so_far & (last <= hash))
    });
    if !ascending {
        return Err(BadIndex("the hashes of an index block are out of order"));
    }
    Ok(())
}

/// The last entry whose hash is at most `wanted`.
#[must_use]
pub fn find(node: &[u8], at: usize, wanted: u32) -> usize {
    let (mut low, mut high) = (1, count(node, at));
    while low < high {
        let mid = (low + high) / 2;
        if hash(node, at, mid) > wanted {
            high = mid;
        } else {
            low = mid + 1;
        }
    }
    low - 1
}

/// Adds an entry at position `i` (at least 1). The caller knows that there is room.
pub fn insert(node: &mut [u8], at: usize, i: usize, hash: u32, to: u32) {
    let n = count(node, at);
    let from = at + i * ENTRY_BYTES;
    let end = at + n * ENTRY_BYTES;
    node.copy_within(from..end, from + ENTRY_BYTES);
    node[from..from + 4].copy_from_slice(&hash.to_le_bytes());
    node[from + 4..from + 8].copy_from_slice(&to.to_le_bytes());
    set_count(node, at, n + 1);
}

/// Raw entries from `i` on: `(hash, block word)`.
#[must_use]
pub fn entries_from(node: &[u8], at: usize, i: usize) -> Vec<(u32, u32)> {
    (i..count(node, at))
        .map(|i| (hash(node, at, i), u32_at(node, at + i * ENTRY_BYTES + 4)))
        .collect()
}

/// Fills a node's entries; the first one's hash is implied by the entry above it.
pub fn put_entries(node: &mut [u8], at: usize, entries: &[(u32, u32)]) {
    for (i, (hash, to)) in entries.iter().enumerate() {
        let e = at + i * ENTRY_BYTES;
        if i > 0 {
            node[e..e + 4].copy_from_slice(&hash.to_le_bytes());
        }
        node[e + 4..e + 8].copy_from_slice(&to.to_le_bytes());
    }
    set_count(node, at, entries.len());
}

/// Stores an index block's checksum.
pub fn seal(node: &mut [u8], place: DxPlace, format: &DirFormat, seed: InodeSeed) {
    let sealed = set_checksum(node, place, format, seed);
    debug_assert!(sealed.is_ok(), "limit and count are what they were made");
}

/// Whether an index block's checksum is right.
#[must_use]
pub fn checksum_ok(node: &[u8], place: DxPlace, format: &DirFormat, seed: InodeSeed) -> bool {
    verify_checksum(node, place, format, seed).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(checksums: bool) -> DirFormat {
        DirFormat {
            block_size: 1024,
            filetype: true,
            checksums,
            stored_hash: false,
            encrypted: false,
            max_ino: u32::MAX,
        }
    }

    #[test]
    fn insert_keeps_order_and_find_agrees_with_a_scan() {
        for csum in [false, true] {
            let mut node = vec![0; 1024];
            init_node(&mut node, &format(csum));
            assert!(looks_like_node(&node));
            put_entries(&mut node, NODE_ENTRIES, &[(0, 7)]);
            let mut x = 3u64;
            while count(&node, NODE_ENTRIES) < stored_limit(&node, NODE_ENTRIES) {
                x = x.wrapping_mul(6364136223846793005).wrapping_add(1);
                let h = (x >> 32) as u32 & !1;
                let i = find(&node, NODE_ENTRIES, h) + 1;
                insert(&mut node, NODE_ENTRIES, i, h, (x >> 40) as u32 & 0xFFFF);
                check(&node, DxPlace::Node, &format(csum)).unwrap();
                let n = count(&node, NODE_ENTRIES);
                for probe in [0, h - 1, h, h + 1, u32::MAX] {
                    let want = (0..n)
                        .filter(|i| hash(&node, NODE_ENTRIES, *i) <= probe)
                        .max()
                        .unwrap();
                    assert_eq!(find(&node, NODE_ENTRIES, probe), want);
                }
            }
            seal(&mut node, DxPlace::Node, &format(csum), InodeSeed(9));
            assert!(checksum_ok(
                &node,
                DxPlace::Node,
                &format(csum),
                InodeSeed(9)
            ));
        }
    }

    #[test]
    fn absurd_counts_are_refused() {
        let mut node = vec![0; 1024];
        init_node(&mut node, &format(true));
        assert!(check(&node, DxPlace::Node, &format(true)).is_err());
        set_count(&mut node, NODE_ENTRIES, 9999);
        assert!(check(&node, DxPlace::Node, &format(true)).is_err());
        assert!(!checksum_ok(
            &node,
            DxPlace::Node,
            &format(true),
            InodeSeed(1)
        ));
    }
}
