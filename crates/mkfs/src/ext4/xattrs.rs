//! Extended attributes: in the inode where they fit, else in a block (shared by inodes with the
//! same ones), large values in inodes of their own where the volume has ea_inode.

use crate::{MkfsError, Result};
use blockwright_ondisk::ext4::MetaSeed;
use std::collections::BTreeMap;

const MAGIC: u32 = 0xEA02_0000;
const ENTRY: usize = 16;
const BLOCK_HEADER: usize = 32;
/// Attribute blocks are shared by so many inodes at most.
pub(crate) const BLOCK_REFS_MAX: u32 = 1024;

/// An attribute as it is stored: index of the name's prefix, the rest of it, the value.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub(crate) struct Stored {
    pub index: u8,
    pub name: Vec<u8>,
    pub value: Vec<u8>,
    /// The value goes into an inode of its own.
    pub in_inode: bool,
}

/// Where an inode's attributes go.
#[derive(Clone, Debug, Default)]
pub(crate) struct Placed {
    pub body: Vec<Stored>,
    pub block: Vec<Stored>,
}

fn padded(len: usize) -> usize {
    len.next_multiple_of(4)
}

fn entry_bytes(s: &Stored) -> usize {
    padded(ENTRY + s.name.len()) + if s.in_inode { 0 } else { padded(s.value.len()) }
}

/// ACLs are kept shorter on disk than setxattr(2) has them: users and groups alone carry an id.
fn acl_to_disk(value: &[u8]) -> Option<Vec<u8>> {
    let (head, entries) = value.split_at_checked(4)?;
    if head != 2u32.to_le_bytes() || entries.len() % 8 != 0 {
        return None;
    }
    let mut out = 1u32.to_le_bytes().to_vec();
    for e in entries.chunks_exact(8) {
        let tag = u16::from_le_bytes([e[0], e[1]]);
        out.extend_from_slice(&e[..4]);
        if tag == 0x02 || tag == 0x08 {
            out.extend_from_slice(&e[4..]);
        }
    }
    Some(out)
}

/// Splits a full name into the stored index and rest, and converts ACLs.
fn to_stored(name: &[u8], value: &[u8]) -> Result<Stored> {
    let err = |reason: &str| MkfsError::Tree {
        name: format!("attribute {}", String::from_utf8_lossy(name)),
        reason: reason.to_owned(),
    };
    let acl = |index| {
        let value = acl_to_disk(value).ok_or_else(|| err("not a valid access control list"))?;
        Ok(Stored { index, name: Vec::new(), value, in_inode: false })
    };
    match name {
        b"system.posix_acl_access" => return acl(2),
        b"system.posix_acl_default" => return acl(3),
        _ => {}
    }
    for (prefix, index) in
        [(&b"user."[..], 1), (&b"trusted."[..], 4), (&b"security."[..], 6), (&b"system."[..], 7)]
    {
        if let Some(rest) = name.strip_prefix(prefix) {
            if rest.is_empty() || rest.len() > 255 || rest.contains(&0) {
                return Err(err("not a valid name"));
            }
            if index == 7 && rest == b"data" {
                return Err(err("the name is the format's own"));
            }
            return Ok(Stored { index, name: rest.to_vec(), value: value.to_vec(), in_inode: false });
        }
    }
    Err(err("the format has no place for attributes of this kind"))
}

/// Decides where attributes go: as many as fit into the inode's `body_room` bytes, the rest into
/// a block; values too large for a block into inodes of their own when `ea_inode` allows.
pub(crate) fn place(
    xattrs: &BTreeMap<Vec<u8>, Vec<u8>>,
    body_room: usize,
    block_bytes: usize,
    ea_inode: bool,
) -> Result<Placed> {
    let mut all = xattrs.iter().map(|(n, v)| to_stored(n, v)).collect::<Result<Vec<_>>>()?;
    all.sort_by(|a, b| (a.index, a.name.len(), &a.name).cmp(&(b.index, b.name.len(), &b.name)));
    let block_room = block_bytes - BLOCK_HEADER - 4;
    if ea_inode {
        for s in &mut all {
            s.in_inode = padded(ENTRY + s.name.len()) + padded(s.value.len()) > block_room;
        }
    }
    // Magic in front, four zero bytes behind.
    let mut left = body_room.saturating_sub(8);
    let mut placed = Placed::default();
    for s in all {
        let bytes = entry_bytes(&s);
        if bytes <= left {
            left -= bytes;
            placed.body.push(s);
        } else {
            placed.block.push(s);
        }
    }
    while placed.block.iter().map(entry_bytes).sum::<usize>() > block_room {
        let largest = placed
            .block
            .iter_mut()
            .filter(|s| !s.in_inode && !s.value.is_empty())
            .max_by_key(|s| s.value.len());
        match largest {
            Some(s) if ea_inode => s.in_inode = true,
            _ => {
                return Err(MkfsError::Tree {
                    name: "attributes".into(),
                    reason: format!("they take more than a block of {block_bytes} bytes"),
                });
            }
        }
    }
    Ok(placed)
}

/// Where a large value's inode is: its number and the hash of the value.
pub(crate) type ValueInodes = BTreeMap<Vec<u8>, (u32, u32)>;

fn name_hash(name: &[u8]) -> u32 {
    name.iter().fold(0u32, |h, b| (h << 5) ^ (h >> 27) ^ u32::from(*b))
}

fn entry_hash(s: &Stored, values: &ValueInodes) -> u32 {
    let hash = name_hash(&s.name);
    let mix = |hash: u32, word: u32| (hash << 16) ^ (hash >> 16) ^ word;
    if s.in_inode {
        return mix(hash, values.get(&s.value).map_or(0, |(_, sum)| *sum));
    }
    s.value.chunks(4).fold(hash, |hash, chunk| {
        let mut word = [0u8; 4];
        word[..chunk.len()].copy_from_slice(chunk);
        mix(hash, u32::from_le_bytes(word))
    })
}

/// Writes entries from `out[0]` on and values from the end; offsets count from `base` before it.
fn write_list(
    out: &mut [u8],
    list: &[Stored],
    values: &ValueInodes,
    base: usize,
    hashes: bool,
) -> Vec<u32> {
    let mut at = 0;
    let mut end = out.len();
    let mut all = Vec::with_capacity(list.len());
    for s in list {
        let mut offset = 0;
        let mut inum = 0;
        if s.in_inode {
            inum = values.get(&s.value).map_or(0, |(ino, _)| *ino);
        } else if !s.value.is_empty() {
            end -= padded(s.value.len());
            out[end..end + s.value.len()].copy_from_slice(&s.value);
            offset = end + base;
        }
        let hash = if hashes || s.in_inode { entry_hash(s, values) } else { 0 };
        all.push(hash);
        let e = &mut out[at..at + padded(ENTRY + s.name.len())];
        e[0] = s.name.len() as u8;
        e[1] = s.index;
        e[2..4].copy_from_slice(&(offset as u16).to_le_bytes());
        e[4..8].copy_from_slice(&inum.to_le_bytes());
        e[8..12].copy_from_slice(&(s.value.len() as u32).to_le_bytes());
        e[12..16].copy_from_slice(&hash.to_le_bytes());
        e[ENTRY..ENTRY + s.name.len()].copy_from_slice(&s.name);
        at += e.len();
    }
    all
}

/// The attribute area of an inode, `room` bytes; empty when there is nothing to store.
pub(crate) fn body(list: &[Stored], room: usize, values: &ValueInodes) -> Vec<u8> {
    if list.is_empty() || room < 8 {
        return Vec::new();
    }
    let mut out = vec![0u8; room];
    out[..4].copy_from_slice(&MAGIC.to_le_bytes());
    write_list(&mut out[4..], list, values, 0, false);
    out
}

/// An attribute block without its checksum, which depends on where it lies.
pub(crate) fn block(list: &[Stored], refs: u32, bytes: usize, values: &ValueInodes) -> Vec<u8> {
    let mut out = vec![0u8; bytes];
    let hashes = write_list(&mut out[BLOCK_HEADER..], list, values, BLOCK_HEADER, true);
    let mut hash = 0u32;
    for h in hashes {
        if h == 0 {
            // "Do not share": a block with an entry whose hash is 0 has none itself.
            hash = 0;
            break;
        }
        hash = (hash << 16) ^ (hash >> 16) ^ h;
    }
    out[..4].copy_from_slice(&MAGIC.to_le_bytes());
    out[4..8].copy_from_slice(&refs.to_le_bytes());
    out[8..12].copy_from_slice(&1u32.to_le_bytes());
    out[12..16].copy_from_slice(&hash.to_le_bytes());
    out
}

/// Stores the checksum of an attribute block that lies at `at`.
pub(crate) fn set_block_checksum(
    bytes: &mut [u8],
    at: blockwright_ondisk::ext4::BlockNo,
    seed: MetaSeed,
) {
    let sum = seed.xattr_block(at, bytes);
    bytes[16..20].copy_from_slice(&sum.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acls_become_shorter() {
        let mut acl = 2u32.to_le_bytes().to_vec();
        for (tag, perm, id) in [(1u16, 6u16, u32::MAX), (2, 4, 1000), (4, 4, u32::MAX)] {
            acl.extend_from_slice(&tag.to_le_bytes());
            acl.extend_from_slice(&perm.to_le_bytes());
            acl.extend_from_slice(&id.to_le_bytes());
        }
        assert_eq!(acl_to_disk(&acl).expect("valid").len(), 4 + 4 + 8 + 4);
        assert!(acl_to_disk(&acl[..7]).is_none());
        assert!(acl_to_disk(&[1, 0, 0, 0]).is_none());
    }

    #[test]
    fn what_does_not_fit_goes_further_out() {
        let set = |sizes: &[usize]| -> BTreeMap<Vec<u8>, Vec<u8>> {
            sizes
                .iter()
                .enumerate()
                .map(|(i, n)| (format!("user.a{i}").into_bytes(), vec![b'v'; *n]))
                .collect()
        };
        let p = place(&set(&[10, 10]), 96, 1024, false).expect("fits");
        assert_eq!((p.body.len(), p.block.len()), (2, 0));
        let p = place(&set(&[10, 500]), 96, 1024, false).expect("fits");
        assert_eq!((p.body.len(), p.block.len()), (1, 1));
        assert!(place(&set(&[5000]), 96, 1024, false).is_err());
        let p = place(&set(&[5000]), 96, 1024, true).expect("in an inode");
        assert!(p.body[0].in_inode);
        let p = place(&set(&[900, 900, 900]), 0, 1024, true).expect("in inodes");
        assert_eq!(p.block.iter().filter(|s| s.in_inode).count(), 2);
        assert!(place(&BTreeMap::from([(b"odd.x".to_vec(), vec![])]), 96, 1024, true).is_err());
    }
}
