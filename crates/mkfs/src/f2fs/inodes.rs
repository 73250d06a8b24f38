//! Planned nodes: which node maps which block, with places in logs rather than addresses.

use super::logs::Place;
use crate::tree::NodeId;
use blockwright_ondisk::f2fs::{Ino, Inode, InodeLayout, Log, Nid, NodeOffset};

/// Addresses in a row in a node that name blocks in a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AddressRun {
    /// First of the node's addresses.
    pub position: usize,
    pub place: Place,
    pub len: usize,
}

/// What an inode's words hold.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    /// Addresses, if anything.
    Addresses,
    /// A file's data, to be read from the sources.
    InlineData(NodeId),
    /// A symbolic link's target.
    InlineBytes(Vec<u8>),
    /// A directory's entries.
    InlineDir(NodeId),
    /// A device number.
    Device([u32; 2]),
}

/// An inode to be.
#[derive(Clone, Debug)]
pub(crate) struct PlannedInode {
    pub inode: Inode,
    pub layout: InodeLayout,
    pub body: Body,
    /// The inline part of the attributes.
    pub xattrs: Vec<u8>,
    /// The largest extent: first file block and place.
    pub extent: Option<(u64, Place, u32)>,
}

/// What a node holds.
#[derive(Clone, Debug)]
pub(crate) enum NodeContent {
    Inode(Box<PlannedInode>),
    Direct,
    /// Numbers of nodes, by position.
    Indirect(Vec<(usize, Nid)>),
    /// The attributes' second part.
    Xattr(Vec<u8>),
}

/// A node to be. Its place in the log is its position in the list of the log's nodes.
#[derive(Clone, Debug)]
pub(crate) struct PlannedNode {
    pub nid: Nid,
    pub ino: Ino,
    pub offset: NodeOffset,
    pub content: NodeContent,
    /// Addresses of an inode or a direct node.
    pub addresses: Vec<AddressRun>,
}

/// Data that is neither a regular file's nor inline.
#[derive(Clone, Debug)]
pub(crate) enum Blocks {
    /// Entries of a directory.
    Dir(NodeId, super::dirs::DirShape),
    /// These bytes.
    Bytes(Vec<u8>),
}

/// Which log the nodes of an inode go to.
pub(crate) fn node_log(directory: bool) -> Log {
    if directory {
        Log::HotNode
    } else {
        Log::WarmNode
    }
}
