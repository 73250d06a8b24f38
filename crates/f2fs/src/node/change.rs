//! Changing nodes in the cache: addresses, and whatever else a part of the engine keeps in a node.
//!
//! A changed node is dirty; the next checkpoint gives it a new place.
//!
//! # Locks
//! The inode's `body`, exclusively; an operation is under way.

use crate::node::Nodes;
use crate::{Error, Result};
use blockwright_device::AlignedBuf;
use blockwright_ondisk::f2fs::node::{Footer, NodeOffset};
use blockwright_ondisk::f2fs::{BLOCK_SIZE, BlockAddr, Ino, Nid};

/// The operation that errors name.
const OP: &str = "change nodes";
/// The same, where cleaning changes them.
const LOAD: &str = "clean";

/// The address at a position of a node.
pub(crate) fn address_in(node: &[u8], start: usize, position: usize) -> BlockAddr {
    let at = start + position * 4;
    let mut le = [0; 4];
    le.copy_from_slice(node.get(at..at + 4).unwrap_or(&[0; 4]));
    BlockAddr(u32::from_le_bytes(le))
}

impl Nodes {
    /// Changes a node that may have left the cache.
    pub(crate) fn change_node<R>(
        &self,
        nid: Nid,
        ino: Ino,
        offset: NodeOffset,
        mut change: impl FnMut(&mut [u8]) -> R,
    ) -> Result<R> {
        loop {
            if let Some(result) = self.cache.change(nid, &mut change) {
                return Ok(result);
            }
            if offset == NodeOffset::INODE {
                self.inode_node(ino)?;
            } else {
                self.node(nid, ino, offset)?;
            }
        }
    }

    /// Sets an address in a node that is in the cache or can be read.
    pub(crate) fn set_address(
        &self,
        nid: Nid,
        start: usize,
        position: usize,
        block: BlockAddr,
    ) -> Result<()> {
        self.set_addresses(nid, start, &[(position, block)])
    }

    /// As [`Nodes::set_address`], for some positions of a node in one step.
    pub(crate) fn set_addresses(
        &self,
        nid: Nid,
        start: usize,
        places: &[(usize, BlockAddr)],
    ) -> Result<()> {
        let set = |bytes: &mut [u8]| {
            for (position, block) in places {
                let at = start + position * 4;
                if let Some(word) = bytes.get_mut(at..at + 4) {
                    word.copy_from_slice(&block.0.to_le_bytes());
                }
            }
        };
        loop {
            if self.cache.change(nid, set).is_some() {
                return Ok(());
            }
            let entry = self.nat.get(nid)?;
            if nid == entry.ino.nid() {
                self.inode_node(entry.ino)?;
                continue;
            }
            let bytes = self.read_any(nid, &entry)?;
            let footer =
                Footer::read(&bytes).map_err(|e| self.volume.refused(OP, entry.ino, &e))?;
            self.node(nid, entry.ino, footer.offset)?;
        }
    }

    pub(crate) fn read_any(
        &self,
        nid: Nid,
        entry: &blockwright_ondisk::f2fs::NatEntry,
    ) -> Result<AlignedBuf> {
        use blockwright_device::{DevOffset, DeviceExt};
        if !self.volume.geo.in_main(entry.block) {
            return Err(self.volume.corrupt(
                OP,
                Some(entry.ino),
                None,
                format!("node {nid} is nowhere"),
            ));
        }
        self.volume
            .device
            .read_buf(DevOffset(u64::from(entry.block.0) << 12), BLOCK_SIZE)
            .map_err(|e| Error::io(OP, e))
    }

    /// Brings a node into memory, whichever it is.
    pub(crate) fn load_node(&self, nid: Nid) -> Result<Footer> {
        let entry = self.nat.get(nid)?;
        if entry.is_free() {
            return Err(Error::corrupt(LOAD, format!("node {nid} is free")));
        }
        if nid == entry.ino.nid() {
            let bytes = self.inode_node(entry.ino)?;
            return Footer::read(&bytes).map_err(|e| self.volume.refused(LOAD, entry.ino, &e));
        }
        let footer = match self.cache.find(nid) {
            Some(bytes) => Footer::read(&bytes),
            None => Footer::read(&self.read_any(nid, &entry)?),
        };
        let footer = footer.map_err(|e| self.volume.refused(LOAD, entry.ino, &e))?;
        // Verifies that it is this node, and keeps it.
        self.node(nid, entry.ino, footer.offset)?;
        Ok(footer)
    }
}
