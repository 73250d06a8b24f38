//! Nodes: blocks that map a file. Each ends with a footer that says which node it is, whose, and
//! where in the file's tree; and, for recovery, when it was written and where the next one is.
//!
//! The inode is the root of a file's tree: addresses in the inode itself, two direct nodes, two
//! indirect ones and one double-indirect one. Every node of the tree has an *offset*, counted in
//! depth-first order, by which it can be found again from its footer alone.

use std::mem::{offset_of, size_of};

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::error::FormatError;
use super::geometry::Geometry;
use super::types::{BLOCK_SIZE, BlockAddr, Ino, Nid};

/// Addresses in a direct node, and nodes in an indirect one.
pub const PER_NODE: usize = (BLOCK_SIZE - FOOTER_BYTES) / 4;
/// Bytes of the footer.
pub const FOOTER_BYTES: usize = size_of::<RawFooter>();
/// Offset of the footer in its block.
pub const FOOTER_OFFSET: usize = BLOCK_SIZE - FOOTER_BYTES;

const COLD: u32 = 1;
const FSYNC: u32 = 2;
const DENTRY: u32 = 4;
const OFFSET_SHIFT: u32 = 3;

/// Tail of every node block. Fields keep their published names.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawFooter {
    pub nid: U32,
    pub ino: U32,
    pub flag: U32,
    pub cp_ver: U64,
    pub next_blkaddr: U32,
}

const _: () = {
    assert!(FOOTER_BYTES == 24);
    assert!(PER_NODE == 1018);
    assert!(offset_of!(RawFooter, cp_ver) == 12);
};

/// Position of a node in its file's tree.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeOffset(pub u32);

impl NodeOffset {
    /// The inode itself.
    pub const INODE: Self = Self(0);
    /// The node of extended attributes.
    pub const XATTR: Self = Self(u32::MAX >> OFFSET_SHIFT);

    /// Which of an inode's [`INODE_NIDS`] nodes leads to the node here.
    #[must_use]
    pub const fn root(self) -> usize {
        let per = PER_NODE as u32;
        match self.0 {
            0..=1 => 0,
            2 => 1,
            n if n <= 3 + per => 2,
            n if n <= 4 + 2 * per => 3,
            _ => 4,
        }
    }

    /// Whether it is a node of nodes, and not of addresses.
    #[must_use]
    pub const fn is_indirect(self) -> bool {
        if self.0 == Self::XATTR.0 {
            return false;
        }
        let per = PER_NODE as u32;
        if self.0 == 3 || self.0 == 4 + per || self.0 == 5 + 2 * per {
            return true;
        }
        // Behind the root of the double-indirect tree, each indirect node is followed by its own.
        self.0 > 5 + 2 * per && (self.0 - 6 - 2 * per).is_multiple_of(per + 1)
    }
}

/// A node's footer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Footer {
    /// Which node.
    pub nid: Nid,
    /// Whose.
    pub ino: Ino,
    /// Where in the tree.
    pub offset: NodeOffset,
    /// Not a directory's: it belongs into the warm log.
    pub cold: bool,
    /// Written by fsync: recovery stops looking for a file's newest state here.
    pub fsync: bool,
    /// The directory entry must be recovered too.
    pub dentry: bool,
    /// Version of the last checkpoint before it was written.
    pub version: u64,
    /// The log's next block.
    pub next: BlockAddr,
}

impl Footer {
    /// The footer of a node block, unchecked.
    ///
    /// # Errors
    /// [`FormatError::Truncated`].
    pub fn read(block: &[u8]) -> Result<Self, FormatError> {
        let short = || FormatError::Truncated {
            structure: "node",
            needed: BLOCK_SIZE,
            found: block.len(),
        };
        let bytes = block.get(FOOTER_OFFSET..BLOCK_SIZE).ok_or_else(short)?;
        let raw = RawFooter::ref_from_bytes(bytes).map_err(|_| short())?;
        let flag = raw.flag.get();
        Ok(Self {
            nid: Nid(raw.nid.get()),
            ino: Ino(raw.ino.get()),
            offset: NodeOffset(flag >> OFFSET_SHIFT),
            cold: flag & COLD != 0,
            fsync: flag & FSYNC != 0,
            dentry: flag & DENTRY != 0,
            version: raw.cp_ver.get(),
            next: BlockAddr(raw.next_blkaddr.get()),
        })
    }

    /// The footer of a block that must be node `nid`.
    ///
    /// # Errors
    /// [`FormatError::Truncated`], [`FormatError::NodeNid`], [`FormatError::NodeInode`].
    pub fn expect(block: &[u8], nid: Nid, ino: Option<Ino>) -> Result<Self, FormatError> {
        let footer = Self::read(block)?;
        if footer.nid != nid {
            return Err(FormatError::NodeNid {
                found: footer.nid,
                expected: nid,
            });
        }
        let is_inode = footer.offset == NodeOffset::INODE;
        let right = match ino {
            Some(ino) => footer.ino == ino,
            None => true,
        };
        if !right || (is_inode != (footer.nid == footer.ino.nid())) {
            return Err(FormatError::NodeInode {
                nid,
                found: footer.ino,
                expected: ino,
            });
        }
        Ok(footer)
    }

    /// Stores the footer. `None`, and nothing changed, when the block is too short.
    #[must_use]
    pub fn write(&self, block: &mut [u8]) -> Option<()> {
        let flags = [
            (self.cold, COLD),
            (self.fsync, FSYNC),
            (self.dentry, DENTRY),
        ];
        let set = flags.iter().filter(|(on, _)| *on).map(|(_, bit)| bit);
        let raw = RawFooter {
            nid: U32::new(self.nid.0),
            ino: U32::new(self.ino.0),
            flag: U32::new(self.offset.0 << OFFSET_SHIFT | set.sum::<u32>()),
            cp_ver: U64::new(self.version),
            next_blkaddr: U32::new(self.next.0),
        };
        block
            .get_mut(FOOTER_OFFSET..BLOCK_SIZE)?
            .copy_from_slice(raw.as_bytes());
        Some(())
    }
}

/// The addresses of a direct node, or the numbers of an indirect one.
///
/// # Errors
/// [`FormatError::Truncated`].
pub fn words(block: &[u8]) -> Result<&[U32], FormatError> {
    <[U32]>::ref_from_prefix_with_elems(block, PER_NODE)
        .map(|(words, _)| words)
        .map_err(|_| FormatError::Truncated {
            structure: "node",
            needed: BLOCK_SIZE,
            found: block.len(),
        })
}

/// Checks an address of a file's data.
///
/// # Errors
/// [`FormatError::DataBlock`] when it names a block outside of the main area.
pub fn check_address(
    block: BlockAddr,
    nid: Nid,
    position: usize,
    geo: &Geometry,
) -> Result<(), FormatError> {
    if block.is_stored() && !geo.in_main(block) {
        return Err(FormatError::DataBlock {
            nid,
            position,
            block,
        });
    }
    Ok(())
}

/// Way from the inode to the address of a file's block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodePath {
    /// Nodes below the inode: 0 to 3.
    pub depth: usize,
    /// Position in each node: in the inode (of its addresses when `depth` is 0, otherwise of its five
    /// nodes), then in each node below.
    pub positions: [usize; 4],
    /// Offset of each node in the tree; the first is the inode's.
    pub offsets: [NodeOffset; 4],
}

/// Nodes an inode names.
pub const INODE_NIDS: usize = 5;

/// Way to file block `block`, when the inode itself has `in_inode` addresses, of which and of a
/// direct node's only whole clusters of `cluster` blocks are in use (1 without compression). `None`
/// past the largest possible file.
#[must_use]
pub fn node_path(block: u64, in_inode: usize, cluster: usize) -> Option<NodePath> {
    let per = PER_NODE as u64;
    // Addresses of a direct node that are in use.
    let direct = (PER_NODE / cluster.max(1) * cluster.max(1)).max(1) as u64;
    let mut path = NodePath {
        depth: 0,
        positions: [0; 4],
        offsets: [NodeOffset::INODE; 4],
    };
    let mut left = block;
    if left < in_inode as u64 {
        path.positions[0] = left as usize;
        return Some(path);
    }
    left -= in_inode as u64;
    let offset = |n: u64| NodeOffset(n as u32);
    for n in 0..2u64 {
        if left < direct {
            path.depth = 1;
            path.positions = [n as usize, left as usize, 0, 0];
            path.offsets[1] = offset(1 + n);
            return Some(path);
        }
        left -= direct;
    }
    for n in 0..2u64 {
        if left < direct * per {
            let root = 3 + n * (per + 1);
            let child = left / direct;
            path.depth = 2;
            path.positions = [2 + n as usize, child as usize, (left % direct) as usize, 0];
            path.offsets[1] = offset(root);
            path.offsets[2] = offset(root + 1 + child);
            return Some(path);
        }
        left -= direct * per;
    }
    if left < direct * per * per {
        let root = 5 + 2 * per;
        let first = left / (direct * per);
        let second = left / direct % per;
        let indirect = root + 1 + first * (per + 1);
        path.depth = 3;
        path.positions = [4, first as usize, second as usize, (left % direct) as usize];
        path.offsets[1] = offset(root);
        path.offsets[2] = offset(indirect);
        path.offsets[3] = offset(indirect + 1 + second);
        return Some(path);
    }
    None
}

/// Blocks of the largest file whose inode has `in_inode` addresses.
#[must_use]
pub fn file_blocks_max(in_inode: usize) -> u64 {
    let per = PER_NODE as u64;
    in_inode as u64 + 2 * per + 2 * per * per + per * per * per
}

/// First file block that the node at `offset` maps; `None` for the nodes of attributes and the
/// inode, and for indirect nodes.
#[must_use]
pub fn first_block_of(offset: NodeOffset, in_inode: usize, cluster: usize) -> Option<u64> {
    let per = PER_NODE as u64;
    let direct = (PER_NODE / cluster.max(1) * cluster.max(1)).max(1) as u64;
    if offset == NodeOffset::INODE || offset == NodeOffset::XATTR || offset.is_indirect() {
        return None;
    }
    let n = u64::from(offset.0);
    // Direct nodes before this one.
    let before = if n <= 2 {
        n - 1
    } else if n <= 3 + per {
        n - 2
    } else if n <= 4 + 2 * per {
        n - 3
    } else {
        let at = n - 6 - 2 * per;
        2 + 2 * per + at / (per + 1) * per + at % (per + 1) - 1
    };
    Some(in_inode as u64 + before * direct)
}

#[cfg(test)]
#[path = "node_tests.rs"]
mod tests;
