//! Inode tables whose checksums a rehearsal has not written.
//!
//! Checksums of inodes follow from the inodes. So a rehearsal computes them whenever it reads a table, instead of keeping all tables of the volume in memory. An inode that a later step
//! changes has its checksum already, and gets the same one.

use std::collections::BTreeMap;

use blockwright_ondisk::ext4::{Geometry, GroupNo, inode};

use crate::error::{ReshapeError, Result};

/// A group's table.
struct Table {
    group: GroupNo,
    /// Inodes that may be in use.
    used: u32,
}

/// The tables of a volume, by their first blocks.
pub(super) struct MarkedTables {
    /// With checksums.
    geo: Geometry,
    tables: BTreeMap<u64, Table>,
}

impl MarkedTables {
    /// No table yet.
    pub fn new(geo: &Geometry) -> Self {
        Self {
            geo: geo.clone(),
            tables: BTreeMap::new(),
        }
    }

    /// Adds the table of a group, of which so many inodes may be in use.
    pub fn add(&mut self, first: u64, group: GroupNo, used: u32) {
        self.tables.insert(first, Table { group, used });
    }

    /// Puts the checksums on what was read from block `first` on.
    pub fn apply(&self, first: u64, bytes: &mut [u8]) -> Result<()> {
        let geo = &self.geo;
        let len = u64::from(geo.inode_table_blocks);
        let end = first + (bytes.len() / geo.block_len()) as u64;
        for (at, table) in self.tables.range((first + 1).saturating_sub(len)..end) {
            for block in (*at).max(first)..(at + len).min(end) {
                let bytes =
                    &mut bytes[(block - first) as usize * geo.block_len()..][..geo.block_len()];
                let index = (block - at) as u32 * geo.inodes_per_block;
                mark(bytes, geo, table.group, index, table.used)?;
            }
        }
        Ok(())
    }
}

/// Puts checksums on inodes of a table from `index` on, in front of `used`. Those that were never used have none.
pub(super) fn mark(
    bytes: &mut [u8],
    geo: &Geometry,
    group: GroupNo,
    index: u32,
    used: u32,
) -> Result<()> {
    for (index, raw) in (index..used).zip(bytes.chunks_exact_mut(usize::from(geo.inode_size))) {
        if raw.iter().all(|byte| *byte == 0) {
            continue;
        }
        let ino = geo
            .ino_at(group, index)
            .ok_or_else(|| ReshapeError::Damaged(format!("group {group} has too many inodes")))?;
        inode::set_checksum(raw, geo, ino)?;
    }
    Ok(())
}
