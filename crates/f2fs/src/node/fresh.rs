//! Assertions about nodes, in debug builds.
//!
//! # Invariant
//! Between operations, the tree of its inode names every node in the NAT, and an inode in memory agrees with its node about
//! its nodes and blocks. A node without a name is a leak: it and its block stay in use when the file is deleted.
//!
//! Two moments are checked: the next checkpoint, for nodes made since the last one, while no operation is under way; and
//! eviction, for the inode that leaves memory. Damaged images break no assertion, because their nodes were not made by this mount.

use crate::Result;
use crate::node::Nodes;
use crate::node::Place;
use crate::node::change::address_in;
use crate::node::inode::{Body, F2fsInode};
use crate::writer::Writer;
use blockwright_ondisk::f2fs::node::{self, NodeOffset, PER_NODE};
use blockwright_ondisk::f2fs::{Ino, Nid};

impl Nodes {
    /// Every node made since the last checkpoint is named. The gate is held exclusively.
    ///
    /// # Panics
    /// In debug builds, when one is not.
    pub(crate) fn assert_fresh_nodes_are_named(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        for (nid, entry) in self.nat.fresh_nodes() {
            if nid == entry.ino.nid() {
                continue;
            }
            // A node that cannot be read is another matter.
            let Ok(named) = self.is_named(nid, entry.ino) else {
                continue;
            };
            assert!(
                named,
                "node {nid} of inode {} belongs to no file",
                entry.ino
            );
        }
    }

    /// An inode is about to leave memory: all that it has of nodes and blocks is in its node.
    ///
    /// # Panics
    /// In debug builds, when its node says something else.
    pub(crate) fn assert_stored(&self, w: &Writer, own: &F2fsInode, body: &Body) {
        if !cfg!(debug_assertions) || w.failure().is_some() {
            return;
        }
        let Some(node) = self.cache.find(own.ino.nid()) else {
            return;
        };
        let Ok(stored) = Body::parse(&self.volume, own.ino, &node) else {
            return;
        };
        let of = |b: &Body| (b.inode.nids, b.inode.xattr_nid, b.inode.blocks);
        assert_eq!(
            of(&stored),
            of(body),
            "inode {} leaves memory, and its node does not have its nodes and blocks",
            own.ino
        );
    }

    /// Whether the tree of an inode names a node at the node's own place.
    fn is_named(&self, nid: Nid, ino: Ino) -> Result<bool> {
        if self.nat.get(ino.nid())?.is_free() {
            return Ok(false);
        }
        let body = Body::parse(&self.volume, ino, &self.inode_node(ino)?)?;
        let offset = self.load_node(nid)?.offset;
        let nids = &body.inode.nids;
        if offset == NodeOffset::XATTR {
            return Ok(body.inode.xattr_nid == nid);
        }
        if offset.is_indirect() {
            let per = PER_NODE as u32;
            let root = 5 + 2 * per;
            return Ok(match offset.0 {
                3 => nids[2] == nid,
                n if n == 4 + per => nids[3] == nid,
                n if n == root => nids[4] == nid,
                n => {
                    let bytes = self.node(nids[4], ino, NodeOffset(root))?;
                    let position = (n - root - 1) / (per + 1);
                    address_in(&bytes, 0, position as usize).0 == nid.0
                }
            });
        }
        let in_inode = body.layout.addresses_used(body.cluster);
        let Some(first) = node::first_block_of(offset, in_inode, body.cluster) else {
            return Ok(false);
        };
        let place = self.find_address(ino, &body, first)?;
        Ok(matches!(place, Place::In { nid: named, .. } if named == nid))
    }
}
