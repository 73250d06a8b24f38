//! Extended attributes: in the inode where they fit, else in a block (shared by inodes with the
//! same ones), large values in inodes of their own where the volume has ea_inode.

use crate::attributes::to_stored;
use crate::tree::Node;
use crate::{MkfsError, Result};
use blockwright_ondisk::ext4::Ino;
use blockwright_ondisk::ext4::xattr::{self, NewXattr, XattrValue};
use std::collections::BTreeMap;

const ENTRY: usize = 16;

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

pub(crate) fn entry_bytes(s: &Stored) -> usize {
    padded(ENTRY + s.name.len()) + if s.in_inode { 0 } else { padded(s.value.len()) }
}

/// Decides where attributes go: as many as fit into the inode's `body_room` bytes, the rest into
/// a block; values too large for a block into inodes of their own when `ea_inode` allows.
pub(crate) fn place(
    node: &Node,
    body_room: usize,
    block_bytes: usize,
    ea_inode: bool,
) -> Result<Placed> {
    let mut all = node
        .xattrs
        .iter()
        .map(
            |(full, value)| match to_stored(xattr::split_name, node.kind, full, value) {
                Ok((index, name, value)) => Ok(Stored {
                    index,
                    name,
                    value,
                    in_inode: false,
                }),
                Err(reason) => Err(MkfsError::Tree {
                    name: String::new(),
                    reason,
                }),
            },
        )
        .collect::<Result<Vec<_>>>()?;
    all.sort_by(|a, b| (a.index, a.name.len(), &a.name).cmp(&(b.index, b.name.len(), &b.name)));
    let block_room = block_bytes - xattr::BLOCK_HEADER - 4;
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
                let bytes: usize = placed.block.iter().map(entry_bytes).sum();
                return Err(MkfsError::Tree {
                    name: String::new(),
                    reason: format!(
                        "its extended attributes take {bytes} bytes beside the inode, and a block has room for \
                         {block_room} (-O ea_inode keeps large values)"
                    ),
                });
            }
        }
    }
    Ok(placed)
}

/// Where a large value's inode is: its number and the hash of the value.
pub(crate) type ValueInodes = BTreeMap<Vec<u8>, (Ino, u32)>;

fn to_new<'a>(list: &'a [Stored], values: &ValueInodes) -> Vec<NewXattr<'a>> {
    list.iter()
        .map(|s| {
            let place = values.get(&s.value).filter(|_| s.in_inode);
            NewXattr {
                name_index: s.index,
                name: &s.name,
                value: match place {
                    Some((ino, _)) => XattrValue::Inode {
                        ino: *ino,
                        size: s.value.len() as u32,
                    },
                    None => XattrValue::Local(&s.value),
                },
                value_inode_hash: place.map_or(0, |(_, hash)| *hash),
            }
        })
        .collect()
}

fn no_fit() -> MkfsError {
    MkfsError::Tree {
        name: "attributes".into(),
        reason: "they do not fit".into(),
    }
}

/// The attribute area of an inode, `room` bytes; empty when there is nothing to store.
pub(crate) fn body(list: &[Stored], room: usize, values: &ValueInodes) -> Result<Vec<u8>> {
    if list.is_empty() {
        return Ok(Vec::new());
    }
    let mut out = vec![0u8; room];
    xattr::write_ibody(&mut out, &to_new(list, values)).ok_or_else(no_fit)?;
    Ok(out)
}

/// An attribute block without its checksum, which depends on where it lies.
pub(crate) fn block(
    list: &[Stored],
    refs: u32,
    bytes: usize,
    values: &ValueInodes,
) -> Result<Vec<u8>> {
    let mut out = vec![0u8; bytes];
    xattr::write_block(&mut out, &to_new(list, values)).ok_or_else(no_fit)?;
    out[4..8].copy_from_slice(&refs.to_le_bytes());
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockwright_ondisk::ext4::{FileKind, Timestamp};

    #[test]
    fn what_does_not_fit_goes_further_out() {
        let set = |sizes: &[usize]| -> Node {
            let now = Timestamp { secs: 0, nanos: 0 };
            let mut node = Node::new(FileKind::Regular, 0o644, now);
            node.xattrs = sizes
                .iter()
                .enumerate()
                .map(|(i, n)| (format!("user.a{i}").into_bytes(), vec![b'v'; *n]))
                .collect();
            node
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
        let mut odd = set(&[]);
        odd.xattrs.insert(b"odd.x".to_vec(), vec![]);
        assert!(place(&odd, 96, 1024, true).is_err());
    }
}
