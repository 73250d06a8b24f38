//! Where every node is: the node address table, seen through its journal.
//!
//! A node's entry is looked up among what changed since the table's blocks were written (the journal of
//! the last checkpoint, then everything newer), and else in the copy of its block that the last
//! checkpoint calls valid.
//!
//! Not responsible for: the nodes themselves (`node`).
//!
//! # Invariants
//! * An entry is checked when it comes from the device: a block of the main area, an inode's number.
//! * `changed` holds at least what the last checkpoint's journal held, so that a checkpoint can always
//!   be written from it and the valid copies alone.
//!
//! # Locks
//! `inner`, rank `Group`, shared to look. Never held while the device works.
//!
//! # References
//! kernel documentation, "Flash-Friendly File System (F2FS)": Node Address Table.

use crate::{Error, Result};
use blockwright_device::{AlignedBuf, DevOffset, DeviceExt, SharedDevice};
use blockwright_ondisk::f2fs::checkpoint::VersionBitmap;
use blockwright_ondisk::f2fs::nat::{NatBlock, NatEntry};
use blockwright_ondisk::f2fs::summary::NatJournal;
use blockwright_ondisk::f2fs::{BLOCK_SIZE, BlockAddr, Geometry, Nid};
use blockwright_vfs::locks::{Rank, RwLock};
use hashbrown::HashMap;
use std::sync::Arc;

const OP: &str = "look up node";
/// Blocks of the table kept in memory: 16 MiB.
const BLOCKS_MAX: usize = 4096;

struct Inner {
    valid: VersionBitmap,
    changed: HashMap<Nid, NatEntry>,
    blocks: HashMap<u32, Arc<AlignedBuf>>,
}

/// See the module's head.
pub struct Nat {
    device: SharedDevice,
    geo: Arc<Geometry>,
    inner: RwLock<Inner>,
}

impl Nat {
    /// The table of a checkpoint with its journal.
    #[must_use]
    pub fn new(
        device: SharedDevice,
        geo: Arc<Geometry>,
        valid: VersionBitmap,
        journal: &NatJournal,
    ) -> Self {
        Nat {
            device,
            geo,
            inner: RwLock::new(
                Rank::Group,
                Inner {
                    valid,
                    changed: journal.0.iter().copied().collect(),
                    blocks: HashMap::new(),
                },
            ),
        }
    }

    /// The entry of a node number that was checked to be in range.
    ///
    /// # Errors
    /// `Corrupt` when it makes no sense; a device error.
    pub fn get(&self, nid: Nid) -> Result<NatEntry> {
        self.geo
            .check_nid(nid)
            .map_err(|e| Error::corrupt(OP, e.to_string()))?;
        let (index, position) = self.geo.nat_position(nid);
        loop {
            let at = {
                let inner = self.inner.read();
                if let Some(entry) = inner.changed.get(&nid) {
                    return Ok(*entry);
                }
                if let Some(block) = inner.blocks.get(&index) {
                    return self.entry_in(block, nid, position);
                }
                self.block_at(&inner, index)?
            };
            let block = self
                .device
                .read_buf(DevOffset(u64::from(at.0) << 12), BLOCK_SIZE)
                .map_err(|e| Error::io(OP, e))?;
            let mut inner = self.inner.write();
            // A checkpoint may have made the other copy the valid one meanwhile.
            if self.block_at(&inner, index)? != at {
                continue;
            }
            if inner.blocks.len() >= BLOCKS_MAX {
                // Rare, and what is in use comes back at once.
                inner.blocks.clear();
            }
            inner.blocks.insert(index, Arc::new(block));
        }
    }

    fn block_at(&self, inner: &Inner, index: u32) -> Result<BlockAddr> {
        self.geo
            .nat_block(index, inner.valid.get(index))
            .ok_or_else(|| Error::corrupt(OP, format!("the NAT has no block {index}")))
    }

    fn entry_in(&self, block: &AlignedBuf, nid: Nid, position: usize) -> Result<NatEntry> {
        let bad = |e: blockwright_ondisk::f2fs::FormatError| Error::corrupt(OP, e.to_string());
        let entry = NatBlock::parse(block)
            .map_err(bad)?
            .get(position)
            .ok_or_else(|| Error::corrupt(OP, format!("no entry {position} in a NAT block")))?;
        entry.check(nid, &self.geo).map_err(bad)?;
        Ok(entry)
    }
}
