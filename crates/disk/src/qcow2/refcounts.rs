//! Refcounts of a file's clusters, and where free ones are.
//!
//! # Owns
//! The refcount table, and the blocks that were read or changed.
//!
//! # Crash order
//! [`Refcounts::write_blocks`], a flush, and [`Refcounts::write_table`] come before anything that refers to a cluster that was allocated.
//! A refcount falls after what referred to the cluster is gone from the disk: [`Refcounts::fall`] is not called earlier.
//! So a cut leaves refcounts that are too high (leaks), and none that is too low.

use crate::bytes::{be16, be32, be64};
use crate::{Error, Result};
use blockwright_device::{
    AlignedBuf, DevOffset, DeviceError, DeviceErrorKind, DeviceExt, Flags, SharedDevice,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Clean blocks that are kept, in bytes.
const CACHE_BYTES: usize = 16 << 20;
/// The largest file that is made, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 60;

struct Block {
    bytes: AlignedBuf,
    dirty: bool,
}

pub(super) struct Refcounts {
    file: SharedDevice,
    order: u32,
    cluster_bits: u32,
    /// Where each block is; 0 where there is none.
    table: Vec<u64>,
    table_offset: u64,
    /// Entries that the file does not have yet. All of them when the table has moved.
    changed: BTreeSet<usize>,
    moved: bool,
    blocks: BTreeMap<usize, Block>,
    /// Below this cluster none is free.
    hint: u64,
    /// Clusters that must never be given out: the header, the L1 table, the refcount table.
    fixed: Vec<Range<u64>>,
    /// Where the table was before it moved.
    abandoned: Vec<Range<u64>>,
}

fn failed(kind: DeviceErrorKind) -> Error {
    Error::Device(DeviceError {
        op: "write",
        offset: DevOffset(0),
        bytes: 0,
        kind,
    })
}

impl Refcounts {
    pub fn load(
        file: SharedDevice,
        order: u32,
        cluster_bits: u32,
        table_offset: u64,
        table_clusters: u64,
        l1: Range<u64>,
    ) -> Result<Self> {
        let cluster = 1u64 << cluster_bits;
        let bytes = file.read_buf(DevOffset(table_offset), (table_clusters * cluster) as usize)?;
        let table: Vec<u64> = (0..bytes.len() / 8).map(|n| be64(&bytes, n * 8)).collect();
        let file_bytes = file.geometry().bytes;
        for &entry in table.iter().filter(|&&entry| entry != 0) {
            let end = entry.checked_add(cluster);
            if !entry.is_multiple_of(cluster) || end.is_none_or(|end| end > file_bytes) {
                return Err(Error::Corrupt(format!(
                    "qcow2: a refcount block at byte {entry}; the file has {file_bytes} bytes"
                )));
            }
        }
        let clusters = |range: Range<u64>| range.start / cluster..range.end.div_ceil(cluster);
        let first = table_offset..table_offset + table_clusters * cluster;
        Ok(Refcounts {
            file,
            order,
            cluster_bits,
            table,
            table_offset,
            changed: BTreeSet::new(),
            moved: false,
            blocks: BTreeMap::new(),
            hint: 0,
            fixed: vec![0..1, clusters(l1), clusters(first)],
            abandoned: Vec::new(),
        })
    }

    fn cluster_bytes(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Clusters that one block counts.
    fn per_block(&self) -> u64 {
        (self.cluster_bytes() * 8) >> self.order
    }

    /// Whether these clusters hold the header, the L1 table or the refcount table.
    pub fn is_fixed(&self, clusters: &Range<u64>) -> bool {
        self.fixed
            .iter()
            .any(|fixed| clusters.start < fixed.end && fixed.start < clusters.end)
    }

    /// Where the table was before it moved. Nothing refers to these clusters after [`Refcounts::write_table`] and the header.
    pub fn take_abandoned(&mut self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.abandoned)
    }

    pub fn is_dirty(&self) -> bool {
        self.moved || !self.changed.is_empty() || self.blocks.values().any(|b| b.dirty)
    }

    /// Bytes of blocks that wait to be written.
    pub fn dirty_bytes(&self) -> usize {
        self.blocks.values().filter(|b| b.dirty).count() << self.cluster_bits
    }

    fn value(order: u32, block: &[u8], at: usize) -> u64 {
        match order {
            0..=2 => {
                let per_byte = 8 >> order;
                let shift = (at % per_byte) << order;
                u64::from(block[at / per_byte] >> shift) & ((1 << (1 << order)) - 1)
            }
            3 => u64::from(block[at]),
            4 => u64::from(be16(block, at * 2)),
            5 => u64::from(be32(block, at * 4)),
            _ => be64(block, at * 8),
        }
    }

    fn set_value(order: u32, block: &mut [u8], at: usize, value: u64) {
        match order {
            0..=2 => {
                let per_byte = 8 >> order;
                let shift = (at % per_byte) << order;
                let mask = (((1u32 << (1 << order)) - 1) << shift) as u8;
                let byte = &mut block[at / per_byte];
                *byte = *byte & !mask | ((value as u32) << shift) as u8 & mask;
            }
            3 => block[at] = value as u8,
            4 => block[at * 2..at * 2 + 2].copy_from_slice(&(value as u16).to_be_bytes()),
            5 => block[at * 4..at * 4 + 4].copy_from_slice(&(value as u32).to_be_bytes()),
            _ => block[at * 8..at * 8 + 8].copy_from_slice(&value.to_be_bytes()),
        }
    }

    /// The block that counts a range, if there is one.
    fn block(&mut self, index: usize) -> Result<Option<&mut Block>> {
        let offset = self.table.get(index).copied().unwrap_or(0);
        if offset == 0 {
            return Ok(None);
        }
        if !self.blocks.contains_key(&index) {
            if (self.blocks.len() + 1) << self.cluster_bits > CACHE_BYTES {
                self.blocks.retain(|_, block| block.dirty);
            }
            let bytes = self
                .file
                .read_buf(DevOffset(offset), self.cluster_bytes() as usize)?;
            let block = Block {
                bytes,
                dirty: false,
            };
            self.blocks.insert(index, block);
        }
        Ok(self.blocks.get_mut(&index))
    }

    pub fn get(&mut self, cluster: u64) -> Result<u64> {
        let (per_block, order) = (self.per_block(), self.order);
        let at = (cluster % per_block) as usize;
        let block = self.block((cluster / per_block) as usize)?;
        Ok(block.map_or(0, |block| Self::value(order, &block.bytes, at)))
    }

    fn set(&mut self, cluster: u64, value: u64) -> Result<()> {
        let (per_block, order) = (self.per_block(), self.order);
        let index = (cluster / per_block) as usize;
        self.ensure(index)?;
        if order < 6 && value >> (1u32 << order) != 0 {
            return Err(Error::Unsupported(format!(
                "qcow2: a refcount of {value} does not fit {} bits",
                1 << order
            )));
        }
        if let Some(block) = self.block(index)? {
            Self::set_value(
                order,
                &mut block.bytes,
                (cluster % per_block) as usize,
                value,
            );
            block.dirty = true;
        }
        Ok(())
    }

    /// Makes the block of a range, in the first cluster of the range, which no other block counts.
    fn ensure(&mut self, index: usize) -> Result<()> {
        if self.table.get(index).is_some_and(|&offset| offset != 0) {
            return Ok(());
        }
        if index >= self.table.len() {
            // Which makes the block, too.
            return self.enlarge(index);
        }
        self.make_block(index)
    }

    fn make_block(&mut self, index: usize) -> Result<()> {
        let first = index as u64 * self.per_block();
        if self.is_fixed(&(first..first + 1)) {
            return Err(self.not_counted(first));
        }
        self.reach(first + 1)?;
        let mut bytes = AlignedBuf::zeroed(self.cluster_bytes() as usize);
        Self::set_value(self.order, &mut bytes, 0, 1);
        self.blocks.insert(index, Block { bytes, dirty: true });
        self.table[index] = first << self.cluster_bits;
        self.changed.insert(index);
        Ok(())
    }

    /// Makes the table large enough for a block, in a new place: behind the block that counts it.
    fn enlarge(&mut self, index: usize) -> Result<()> {
        let per_cluster = self.cluster_bytes() as usize / 8;
        let entries = (index + 1)
            .max(self.table.len() * 2)
            .next_multiple_of(per_cluster);
        let clusters = (entries / per_cluster) as u64;
        if clusters >= self.per_block() {
            return Err(Error::Unsupported(format!(
                "qcow2: the file is too large for its clusters of {} bytes; convert it to larger ones",
                self.cluster_bytes()
            )));
        }
        let old = self.table_offset / self.cluster_bytes();
        let old_clusters = (self.table.len() / per_cluster) as u64;
        self.table.resize(entries, 0);
        self.make_block(index)?;
        let first = index as u64 * self.per_block() + 1;
        self.reach(first + clusters)?;
        for cluster in first..first + clusters {
            self.set(cluster, 1)?;
        }
        self.table_offset = first << self.cluster_bits;
        self.moved = true;
        self.abandoned.push(old..old + old_clusters);
        self.fixed
            .retain(|range| *range != (old..old + old_clusters));
        self.fixed.push(first..first + clusters);
        Ok(())
    }

    /// Makes the file so long that it has this many clusters.
    fn reach(&mut self, clusters: u64) -> Result<()> {
        let bytes = clusters << self.cluster_bits;
        let now = self.file.geometry().bytes;
        if bytes > FILE_BYTES_MAX {
            return Err(failed(DeviceErrorKind::OutOfRange { device_bytes: now }));
        }
        if bytes > now {
            // Ahead, so that a growing file is not extended for each cluster; the rest is a hole.
            let ahead = (now / 8).clamp(self.cluster_bytes(), 64 << 20);
            let grown = (bytes + ahead).next_multiple_of(self.cluster_bytes());
            self.file.grow(grown)?;
        }
        Ok(())
    }

    fn not_counted(&self, cluster: u64) -> Error {
        Error::Corrupt(format!(
            "qcow2: cluster {cluster} is in use, and its refcount is 0; `qemu-img check -r all` repairs that"
        ))
    }

    /// Allocates up to `wanted` clusters in one run; at least one.
    pub fn allocate(&mut self, wanted: u64) -> Result<Range<u64>> {
        let mut start = self.hint;
        loop {
            // A block that is made now takes the first cluster of its range.
            self.ensure((start / self.per_block()) as usize)?;
            if self.get(start)? == 0 {
                break;
            }
            start += 1;
        }
        self.hint = start;
        let block_end = (start / self.per_block() + 1) * self.per_block();
        let mut end = start + 1;
        while end < (start + wanted).min(block_end) && self.get(end)? == 0 {
            end += 1;
        }
        let run = start..end;
        if self.is_fixed(&run) {
            return Err(self.not_counted(start));
        }
        self.reach(end)?;
        for cluster in run.clone() {
            self.set(cluster, 1)?;
        }
        self.hint = end;
        Ok(run)
    }

    /// Lowers the refcount of a cluster that nothing on the disk refers to any more, by one. Whether it is free now.
    pub fn fall(&mut self, cluster: u64) -> Result<bool> {
        let count = self.get(cluster)?;
        if count == 0 || self.is_fixed(&(cluster..cluster + 1)) {
            return Err(self.not_counted(cluster));
        }
        self.set(cluster, count - 1)?;
        if count == 1 {
            self.hint = self.hint.min(cluster);
        }
        Ok(count == 1)
    }

    /// Sets refcounts to what was counted. How many were wrong.
    pub fn correct(&mut self, counted: &[u16]) -> Result<u64> {
        let mut wrong = 0;
        for (cluster, &count) in (0..).zip(counted) {
            if self.get(cluster)? != u64::from(count) {
                self.set(cluster, u64::from(count))?;
                wrong += 1;
            }
        }
        Ok(wrong)
    }

    /// Where the table and its blocks are.
    pub fn places(&self) -> impl Iterator<Item = u64> + '_ {
        let bits = self.cluster_bits;
        let table = self.table_offset >> bits;
        let clusters = (self.table.len() as u64 * 8) >> bits;
        let blocks = self.table.iter().filter(|&&offset| offset != 0);
        (table..table + clusters).chain(blocks.map(move |offset| offset >> bits))
    }

    /// Writes changed blocks. A flush must follow before [`Refcounts::write_table`].
    pub fn write_blocks(&mut self) -> Result<()> {
        for (index, block) in self.blocks.iter_mut().filter(|(_, block)| block.dirty) {
            let at = DevOffset(self.table[*index]);
            self.file.write_at(at, &block.bytes, Flags::META)?;
            block.dirty = false;
        }
        Ok(())
    }

    /// Writes changed entries of the table. Whether a flush must follow; and the table's new place, if it has moved.
    pub fn write_table(&mut self) -> Result<(bool, Option<(u64, u32)>)> {
        if self.changed.is_empty() && !self.moved {
            return Ok((false, None));
        }
        const UNIT: usize = 4096;
        let per_unit = UNIT.min(self.cluster_bytes() as usize) / 8;
        let units: BTreeSet<usize> = match self.moved {
            true => (0..self.table.len() / per_unit).collect(),
            false => self.changed.iter().map(|n| n / per_unit).collect(),
        };
        for unit in units {
            let entries = &self.table[unit * per_unit..(unit + 1) * per_unit];
            let bytes: Vec<u8> = entries.iter().flat_map(|e| e.to_be_bytes()).collect();
            let at = DevOffset(self.table_offset + (unit * per_unit * 8) as u64);
            self.file.write_at(at, &bytes, Flags::META)?;
        }
        self.changed.clear();
        let clusters = (self.table.len() as u64 * 8) >> self.cluster_bits;
        let place = self.moved.then_some((self.table_offset, clusters as u32));
        self.moved = false;
        Ok((true, place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Every width holds its values, and changes no neighbour.
        #[test]
        fn widths(order in 0u32..7, sets in prop::collection::vec((0usize..64, any::<u64>()), 1..40)) {
            let mut block = vec![0; 512];
            let mut expected = vec![0u64; 64];
            for (at, value) in sets {
                let value = if order == 6 { value } else { value & ((1 << (1 << order)) - 1) };
                Refcounts::set_value(order, &mut block, at, value);
                expected[at] = value;
            }
            for (at, value) in expected.into_iter().enumerate() {
                prop_assert_eq!(Refcounts::value(order, &block, at), value);
            }
        }
    }
}
