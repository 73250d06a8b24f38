//! The mapping of a qcow2 file: L1 and L2 tables, and in which order changes reach the file.
//!
//! # Crash order
//! [`Core::flush`] is the one place that writes metadata:
//! 1. refcount blocks (allocations only) and tables that nothing refers to yet
//! 2. flush: data, in an external data file too, refcounts and new tables are durable before anything refers to them
//! 3. the refcount table, if it changed, and the header if the table moved; flush
//! 4. L2 tables, then the L1 entries of new ones; flush
//! 5. refcounts of what was given up fall, in memory; they are written with the next flush.
//!
//! A cut between two steps leaves what was before, and leaked clusters. An entry is eight bytes in one sector, so it is never torn.
//!
//! # External data files
//! A cluster of the disk is at the same offset of the data file, so clusters of data are neither allocated nor counted: only the tables are.
//!
//! # Locks
//! The device holds one lock around a `Core`. I/O on data that needs no change of the mapping happens outside of it.

use super::entry::{self, COMPRESSED, COPIED, Entry, OFFSET, Run, ZERO};
use super::header::{Header, autoclear, incompatible};
use super::refcounts::Refcounts;
use crate::bytes::{be16, be32, be64};
use crate::{Error, Result};
use blockwright_device::{AlignedBuf, DevOffset, DeviceExt, Flags, SharedDevice};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// L2 tables that are kept, in bytes.
const L2_BYTES: usize = 32 << 20;
/// Refcount blocks that may wait to be written.
const DIRTY_BYTES_MAX: usize = 8 << 20;
/// The most clusters whose references are counted for a dirty file.
const COUNTED_MAX: u64 = 128 << 20;
/// The most snapshots that are followed.
const SNAPSHOTS_MAX: u32 = 65_536;

struct L2 {
    /// Where it is in the file; for a new one, where it will be.
    offset: u64,
    entries: Vec<u64>,
    dirty: bool,
    /// The L1 table of the file does not refer to it yet.
    new: bool,
    used: u64,
}

/// Clusters that are given up: their refcounts fall when the file refers to them no more.
struct Given {
    clusters: Range<u64>,
    /// The file refers to them no more.
    written: bool,
}

pub(super) struct Core {
    file: SharedDevice,
    pub header: Header,
    l1: Vec<u64>,
    l1_changed: BTreeSet<usize>,
    tables: BTreeMap<usize, L2>,
    tick: u64,
    pub refcounts: Refcounts,
    given: Vec<Given>,
    has_backing: bool,
    /// The external data file.
    data: Option<SharedDevice>,
    /// A write of metadata failed: nothing is written any more.
    failed: Option<Error>,
}

fn corrupt(what: impl std::fmt::Display) -> Error {
    Error::Corrupt(format!("qcow2: {what}"))
}

impl Core {
    pub fn load(
        file: SharedDevice,
        header: Header,
        has_backing: bool,
        data: Option<SharedDevice>,
    ) -> Result<Self> {
        let l1_bytes = header.l1_entries * 8;
        // qemu-img makes files that end with the table's last entry.
        let bytes = crate::file::read_any(&file, header.l1_offset, l1_bytes)?;
        let l1 = (0..header.l1_entries)
            .map(|n| be64(&bytes, n * 8))
            .collect();
        let refcounts = Refcounts::load(
            file.clone(),
            header.refcount_order,
            header.cluster_bits,
            header.table_offset,
            header.table_clusters,
            header.l1_offset..header.l1_offset + l1_bytes as u64,
        )?;
        Ok(Core {
            file,
            header,
            l1,
            l1_changed: BTreeSet::new(),
            tables: BTreeMap::new(),
            tick: 0,
            refcounts,
            given: Vec::new(),
            has_backing,
            data,
            failed: None,
        })
    }

    pub fn cluster_bytes(&self) -> u64 {
        1 << self.header.cluster_bits
    }

    fn per_table(&self) -> u64 {
        self.cluster_bytes() / 8
    }

    /// Whether the external data file must have the disk's contents without the mapping.
    pub fn is_raw(&self) -> bool {
        self.data.is_some() && self.header.autoclear & autoclear::RAW_EXTERNAL != 0
    }

    /// Takes the file for changing: what other programs keep in it and this one does not is marked as such, and refcounts of a file that was not
    /// closed are counted anew.
    pub fn begin_writing(&mut self) -> Result<()> {
        if self.header.incompatible & incompatible::CORRUPT != 0 {
            return Err(corrupt(
                "it is marked as damaged, and can only be read; `qemu-img check -r all` repairs it",
            ));
        }
        if self.data.is_some() && self.header.snapshots > 0 {
            return Err(corrupt(
                "it has snapshots and an external data file, and can only be read",
            ));
        }
        // Files that end within the L1 table are made whole, so that it can be written.
        let l1_end = self.header.l1_offset + 8 * self.header.l1_entries as u64;
        let whole = l1_end.next_multiple_of(self.cluster_bytes());
        if whole > self.file.geometry().bytes {
            self.file.grow(whole)?;
        }
        let is_dirty = self.header.incompatible & incompatible::DIRTY != 0;
        // A backing file shows through where the data file has zeroes: the two exclude each other.
        let kept = match self.data.is_some() && !self.has_backing {
            true => self.header.autoclear & autoclear::RAW_EXTERNAL,
            false => 0,
        };
        if is_dirty {
            if self.header.autoclear & !autoclear::RAW_EXTERNAL != 0 {
                return Err(Error::Unsupported(
                    "qcow2: it was not closed and has bitmaps; `qemu-img check -r all` prepares it for writing".to_owned(),
                ));
            }
            let counted = self.count()?;
            self.refcounts.correct(&counted)?;
            self.refcounts.write_blocks()?;
            self.file.flush()?;
            self.write_refcount_table()?;
        }
        if is_dirty || self.header.autoclear != kept {
            let cleared = self.header.incompatible & !incompatible::DIRTY;
            self.header.sector[72..80].copy_from_slice(&cleared.to_be_bytes());
            self.header.sector[88..96].copy_from_slice(&kept.to_be_bytes());
            self.write_header()?;
            self.header.incompatible = cleared;
            self.header.autoclear = kept;
        }
        Ok(())
    }

    fn write_header(&mut self) -> Result<()> {
        let unit = self.file.geometry().logical_block_bytes as usize;
        let mut block = self.file.read_buf(DevOffset(0), unit.max(512))?.to_vec();
        block[..512].copy_from_slice(&self.header.sector);
        self.file.write_at(DevOffset(0), &block, Flags::META)?;
        Ok(self.file.flush()?)
    }

    /// Checks where a table or cluster is said to be.
    fn placed(&self, what: &str, offset: u64, in_file: bool) -> Result<u64> {
        let cluster = self.cluster_bytes();
        let number = offset / cluster;
        let end = offset.checked_add(cluster);
        let outside = in_file && end.is_none_or(|end| end > self.file.geometry().bytes);
        if !offset.is_multiple_of(cluster)
            || outside
            || self.refcounts.is_fixed(&(number..number + 1))
        {
            return Err(corrupt(format_args!(
                "{what} is said to be at byte {offset}"
            )));
        }
        Ok(offset)
    }

    /// What an entry says of the cluster at `guest` of the disk.
    fn decode(&self, raw: u64, guest: u64) -> Result<Entry> {
        if self.data.is_some() {
            return entry::external(raw, guest);
        }
        if raw & COMPRESSED != 0 {
            return Ok(entry::compressed(raw, self.header.cluster_bits));
        }
        let (host, copied) = (raw & OFFSET, raw & COPIED != 0);
        let is_zero = self.header.version >= 3 && raw & ZERO != 0;
        if host != 0 {
            self.placed("a cluster", host, false)?;
        }
        Ok(match (is_zero, host) {
            (true, 0) => Entry::Zero { host: None, copied },
            (true, _) => Entry::Zero {
                host: Some(host),
                copied,
            },
            (false, 0) => Entry::Unallocated,
            (false, _) => Entry::Data { host, copied },
        })
    }

    /// The offset of the disk that an entry of a table is for.
    fn guest(&self, index: usize, at: usize) -> u64 {
        (index as u64 * self.per_table() + at as u64) << self.header.cluster_bits
    }

    /// Where an offset of the disk is in L1 and L2.
    fn place(&self, offset: u64) -> (usize, usize) {
        let cluster = offset >> self.header.cluster_bits;
        let per_table = self.per_table();
        (
            (cluster / per_table) as usize,
            (cluster % per_table) as usize,
        )
    }

    /// Makes sure that a table of the file is in memory, if there is one. Whether there is.
    fn load_table(&mut self, index: usize) -> Result<bool> {
        self.tick += 1;
        if let Some(table) = self.tables.get_mut(&index) {
            table.used = self.tick;
            return Ok(true);
        }
        let offset = self.l1.get(index).map_or(0, |raw| raw & OFFSET);
        if offset == 0 {
            return Ok(false);
        }
        self.placed("an L2 table", offset, true)?;
        self.make_room()?;
        let bytes = self
            .file
            .read_buf(DevOffset(offset), self.cluster_bytes() as usize)?;
        let entries = (0..bytes.len() / 8).map(|n| be64(&bytes, n * 8)).collect();
        let table = L2 {
            offset,
            entries,
            dirty: false,
            new: false,
            used: self.tick,
        };
        self.tables.insert(index, table);
        Ok(true)
    }

    /// Forgets the tables that were not used for longest.
    fn make_room(&mut self) -> Result<()> {
        let most = (L2_BYTES >> self.header.cluster_bits).max(2);
        if self.tables.len() < most {
            return Ok(());
        }
        if self.tables.values().all(|table| table.dirty) {
            self.write_metadata()?;
        }
        let mut clean: Vec<(u64, usize)> = self
            .tables
            .iter()
            .filter(|(_, table)| !table.dirty)
            .map(|(&index, table)| (table.used, index))
            .collect();
        clean.sort_unstable();
        // A quarter at once: sorting is not for each table.
        for (_, index) in clean.into_iter().take(most.div_ceil(4)) {
            self.tables.remove(&index);
        }
        Ok(())
    }

    /// Whether the table for an offset is in memory, or needs not be.
    pub fn is_in_memory(&self, offset: u64) -> bool {
        let index = self.place(offset).0;
        self.tables.contains_key(&index) || self.l1.get(index).is_none_or(|raw| raw & OFFSET == 0)
    }

    /// The state of the disk from `offset` on, at most to `end`, which is exclusive.
    pub fn run(&mut self, offset: u64, end: u64) -> Result<Run> {
        let cluster = self.cluster_bytes();
        let (index, first) = self.place(offset);
        let table_end = (index as u64 + 1) * self.per_table() * cluster;
        let end = end.min(table_end);
        if !self.load_table(index)? {
            let entry = Entry::Unallocated;
            return Ok(Run {
                entry,
                bytes: end - offset,
            });
        }
        let found = |core: &Core, at: usize| {
            core.decode(core.tables[&index].entries[at], core.guest(index, at))
        };
        let entry = found(self, first)?;
        let mut reached = (offset / cluster + 1) * cluster;
        let mut at = first + 1;
        while reached < end {
            let steps = (at - first) as u64 * cluster;
            let expected = match entry {
                Entry::Data { host, copied } => Entry::Data {
                    host: host + steps,
                    copied,
                },
                Entry::Compressed { .. } => break,
                other => other,
            };
            let next = found(self, at)?;
            let alike = match (expected, next) {
                (Entry::Zero { .. }, Entry::Zero { .. }) => true,
                (expected, next) => expected == next,
            };
            if !alike {
                break;
            }
            reached += cluster;
            at += 1;
        }
        let bytes = reached.min(end) - offset;
        Ok(Run { entry, bytes })
    }

    /// Whether a cluster can be written where it is.
    fn in_place(entry: Entry) -> bool {
        matches!(entry, Entry::Data { copied: true, .. })
    }

    /// How many clusters from `offset` on, at most to `end`, must be allocated before they are written.
    pub fn count_to_allocate(&mut self, offset: u64, end: u64) -> Result<u64> {
        let cluster = self.cluster_bytes();
        let (index, first) = self.place(offset);
        let most = (end.div_ceil(cluster) - offset / cluster).min(self.per_table() - first as u64);
        if !self.load_table(index)? {
            return Ok(most);
        }
        for n in 0..most {
            let at = first + n as usize;
            let raw = self.tables[&index].entries[at];
            if Self::in_place(self.decode(raw, self.guest(index, at))?) {
                return Ok(n);
            }
        }
        Ok(most)
    }

    /// The table for an offset, which the file will have to itself.
    fn own_table(&mut self, index: usize) -> Result<()> {
        let there = self.load_table(index)?;
        let raw = self.l1.get(index).copied();
        let raw = raw.ok_or_else(|| corrupt("the disk is larger than its L1 table"))?;
        let is_own = self.tables.get(&index).is_some_and(|t| t.new) || raw & COPIED != 0;
        if there && is_own {
            return Ok(());
        }
        // Taken out first: room is made by forgetting tables that are not dirty. A snapshot may have the old one.
        let old = self.tables.remove(&index);
        self.make_room()?;
        let offset = self.allocate(1)?.start << self.header.cluster_bits;
        let entries = match &old {
            Some(old) => old.entries.clone(),
            None => vec![0; self.per_table() as usize],
        };
        if let Some(old) = old {
            self.give_up(old.offset, self.cluster_bytes());
        }
        let table = L2 {
            offset,
            entries,
            dirty: true,
            new: true,
            used: self.tick,
        };
        self.tables.insert(index, table);
        self.l1[index] = offset | COPIED;
        self.l1_changed.insert(index);
        Ok(())
    }

    /// Allocates clusters in one run, fewer than are wanted where there is no such run.
    pub fn allocate(&mut self, wanted: u64) -> Result<Range<u64>> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        if self.refcounts.dirty_bytes() > DIRTY_BYTES_MAX {
            self.write_metadata()?;
        }
        self.refcounts.allocate(wanted)
    }

    /// Room for the data of clusters of the disk from `offset` on, as [`Core::allocate`]: clusters of the file that has the data.
    pub fn allocate_data(&mut self, offset: u64, wanted: u64) -> Result<Range<u64>> {
        if self.data.is_none() {
            return self.allocate(wanted);
        }
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        let first = offset >> self.header.cluster_bits;
        Ok(first..first + wanted)
    }

    /// Makes an external data file so long that it has `end`, an offset of the disk.
    pub fn reach_data(&self, end: u64) -> Result<()> {
        let Some(data) = &self.data else {
            return Ok(());
        };
        let now = data.geometry().bytes;
        if end > now {
            // Ahead, so that a growing file is not extended for each cluster.
            let ahead = (now / 8).clamp(self.cluster_bytes(), 64 << 20);
            data.grow((end + ahead).min(self.header.bytes).max(end))?;
        }
        Ok(())
    }

    fn give_up(&mut self, host: u64, bytes: u64) {
        let bits = self.header.cluster_bits;
        let clusters = host >> bits..(host + bytes).div_ceil(1 << bits);
        self.given.push(Given {
            clusters,
            written: false,
        });
    }

    fn give_up_entry(&mut self, entry: Entry) {
        match entry {
            Entry::Data { host, .. }
            | Entry::Zero {
                host: Some(host), ..
            } => {
                self.give_up(host, self.cluster_bytes());
            }
            Entry::Compressed { host, bytes } => self.give_up(host, bytes),
            Entry::Unallocated | Entry::Zero { host: None, .. } => {}
        }
    }

    fn set_entry(&mut self, index: usize, at: usize, raw: u64) -> Result<()> {
        let old = self.tables.get(&index).map_or(0, |table| table.entries[at]);
        if old == raw {
            return Ok(());
        }
        if self.data.is_none() {
            let entry = self.decode(old, self.guest(index, at))?;
            self.give_up_entry(entry);
        }
        if let Some(table) = self.tables.get_mut(&index) {
            table.entries[at] = raw;
            table.dirty = true;
        }
        Ok(())
    }

    /// Maps clusters from the one at `offset` on to a run that was allocated and written.
    pub fn map(&mut self, offset: u64, run: Range<u64>) -> Result<()> {
        let (index, first) = self.place(offset);
        self.own_table(index)?;
        for (n, cluster) in run.enumerate() {
            let raw = (cluster << self.header.cluster_bits) | COPIED;
            self.set_entry(index, first + n, raw)?;
        }
        Ok(())
    }

    /// Drops whole clusters in `[offset, end)`: they read as zeroes, or, with `may_show_backing`, as anything. Returns where it stopped: at the end
    /// of a table, or at `end`. `None` when the format cannot say zeroes there.
    pub fn drop_clusters(
        &mut self,
        offset: u64,
        end: u64,
        may_show_backing: bool,
    ) -> Result<Option<u64>> {
        let cluster = self.cluster_bytes();
        let (index, first) = self.place(offset);
        let end = end.min((index as u64 + 1) * self.per_table() * cluster);
        let count = (end - offset) / cluster;
        let there = self.load_table(index)?;
        if !there && (may_show_backing || !self.has_backing) {
            return Ok(Some(end));
        }
        if self.has_backing && self.header.version < 3 {
            return Ok(if may_show_backing { Some(end) } else { None });
        }
        let raw = if self.has_backing { ZERO } else { 0 };
        for n in 0..count as usize {
            let old = match self.tables.get(&index) {
                Some(table) => {
                    let at = first + n;
                    self.decode(table.entries[at], self.guest(index, at))?
                }
                None => Entry::Unallocated,
            };
            let is_done = match old {
                Entry::Unallocated => may_show_backing || !self.has_backing,
                Entry::Zero { host: None, .. } => true,
                _ => false,
            };
            if !is_done {
                self.own_table(index)?;
                self.set_entry(index, first + n, raw)?;
            }
        }
        Ok(Some(end))
    }

    fn write_refcount_table(&mut self) -> Result<()> {
        let (wrote, moved) = self.refcounts.write_table()?;
        if wrote {
            self.file.flush()?;
        }
        if let Some((offset, clusters)) = moved {
            self.header.sector[48..56].copy_from_slice(&offset.to_be_bytes());
            self.header.sector[56..60].copy_from_slice(&clusters.to_be_bytes());
            self.write_header()?;
        }
        Ok(())
    }

    fn write_table(&self, table: &L2) -> Result<()> {
        let bytes: Vec<u8> = table.entries.iter().flat_map(|e| e.to_be_bytes()).collect();
        let slice = AlignedBuf::copy_of(&bytes).into();
        Ok(self
            .file
            .write_vectored_at(DevOffset(table.offset), &[slice], Flags::META)?)
    }

    fn steps(&mut self) -> Result<()> {
        self.refcounts.write_blocks()?;
        for table in self.tables.values().filter(|t| t.dirty && t.new) {
            self.write_table(table)?;
        }
        if let Some(data) = &self.data {
            data.flush()?;
        }
        self.file.flush()?;
        self.write_refcount_table()?;
        let mut wrote = false;
        for table in self.tables.values().filter(|t| t.dirty && !t.new) {
            self.write_table(table)?;
            wrote = true;
        }
        let unit = u64::from(self.file.geometry().logical_block_bytes).max(512);
        let units: BTreeSet<u64> = self
            .l1_changed
            .iter()
            .map(|&n| n as u64 * 8 / unit)
            .collect();
        for at in units {
            let first = (at * unit / 8) as usize;
            let entries = self.l1[first..].iter().take(unit as usize / 8);
            let mut bytes: Vec<u8> = entries.flat_map(|e| e.to_be_bytes()).collect();
            // Behind the table its cluster is not used.
            bytes.resize(unit as usize, 0);
            let place = DevOffset(self.header.l1_offset + at * unit);
            self.file.write_at(place, &bytes, Flags::META)?;
            wrote = true;
        }
        if wrote {
            self.file.flush()?;
        }
        self.l1_changed.clear();
        for table in self.tables.values_mut() {
            (table.dirty, table.new) = (false, false);
        }
        Ok(())
    }

    /// Writes all changes of the mapping, in order. See the module's head.
    fn write_metadata(&mut self) -> Result<()> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        let abandoned = self.refcounts.take_abandoned();
        self.given
            .extend(abandoned.into_iter().map(|clusters| Given {
                clusters,
                written: false,
            }));
        let result = self.steps();
        if let Err(e) = &result {
            // The contents of the file are unknown now: any further step could break the order.
            self.failed = Some(e.clone());
        }
        if result.is_ok() {
            self.given.iter_mut().for_each(|given| given.written = true);
        }
        result
    }

    fn is_dirty(&self) -> bool {
        self.refcounts.is_dirty()
            || !self.l1_changed.is_empty()
            || self.tables.values().any(|table| table.dirty)
    }

    /// Makes everything durable. `settle` returns when no request uses data of the file any more: only then do clusters that were given up become
    /// free, because a write that began before could otherwise hit their next owner.
    pub fn flush(&mut self, settle: impl FnOnce()) -> Result<()> {
        match self.is_dirty() {
            true => self.write_metadata()?,
            false => {
                if let Some(failed) = &self.failed {
                    return Err(failed.clone());
                }
                if let Some(data) = &self.data {
                    data.flush()?;
                }
                self.file.flush()?;
            }
        }
        if self.given.is_empty() {
            return Ok(());
        }
        settle();
        self.free_given()
    }

    fn free_given(&mut self) -> Result<()> {
        let (done, waiting): (Vec<Given>, _) = std::mem::take(&mut self.given)
            .into_iter()
            .partition(|given| given.written);
        self.given = waiting;
        let mut free: Vec<u64> = Vec::new();
        for given in done {
            for cluster in given.clusters {
                if self.refcounts.fall(cluster)? {
                    free.push(cluster);
                }
            }
        }
        free.sort_unstable();
        // The host gets its space back, in runs.
        let bits = self.header.cluster_bits;
        let end_of_file = self.file.geometry().bytes;
        for run in free.chunk_by(|a, b| a + 1 == *b) {
            let start = run[0] << bits;
            let end = ((run[run.len() - 1] + 1) << bits).min(end_of_file);
            if start < end {
                // Only advice.
                let _kept = self.file.discard(DevOffset(start), end - start);
            }
        }
        Ok(())
    }

    /// Counts what refers to each cluster, from the tables of the disk and of all snapshots.
    fn count(&mut self) -> Result<Vec<u16>> {
        let bits = self.header.cluster_bits;
        let clusters = self.file.geometry().bytes.div_ceil(self.cluster_bytes());
        if clusters > COUNTED_MAX {
            return Err(Error::Unsupported(
                "qcow2: it was not closed, and is too large to count its refcounts here; `qemu-img check -r all` does".to_owned(),
            ));
        }
        let mut counts = vec![0u16; clusters as usize];
        let mut add = |range: Range<u64>| -> Result<()> {
            for cluster in range.start >> bits..range.end.div_ceil(1 << bits) {
                let count = counts.get_mut(cluster as usize);
                let count = count.ok_or_else(|| corrupt("it refers to clusters behind its end"))?;
                *count = count
                    .checked_add(1)
                    .ok_or_else(|| corrupt("too many references"))?;
            }
            Ok(())
        };
        add(0..1)?;
        for cluster in self.refcounts.places() {
            add(cluster << bits..(cluster << bits) + 1)?;
        }
        let mut roots = vec![(self.header.l1_offset, self.header.l1_entries)];
        if self.header.snapshots > 0 {
            let (end, found) = self.snapshots()?;
            add(self.header.snapshots_offset..end)?;
            roots.extend(found);
        }
        for (offset, entries) in roots {
            if entries == 0 {
                continue;
            }
            let len = entries as u64 * 8;
            add(offset..offset + len)?;
            let l1 = self.read_aligned(offset, len as usize)?;
            for n in 0..entries {
                let place = be64(&l1, n * 8) & OFFSET;
                if place == 0 {
                    continue;
                }
                self.placed("an L2 table", place, true)?;
                add(place..place + 1)?;
                let table = self
                    .file
                    .read_buf(DevOffset(place), self.cluster_bytes() as usize)?;
                if self.data.is_some() {
                    // It refers to no cluster of this file.
                    continue;
                }
                for at in (0..table.len()).step_by(8) {
                    match self.decode(be64(&table, at), 0)? {
                        Entry::Data { host, .. }
                        | Entry::Zero {
                            host: Some(host), ..
                        } => add(host..host + 1)?,
                        Entry::Compressed { host, bytes } => add(host..host + bytes)?,
                        Entry::Unallocated | Entry::Zero { host: None, .. } => {}
                    }
                }
            }
        }
        Ok(counts)
    }

    /// Reads a range of any alignment.
    fn read_aligned(&self, offset: u64, bytes: usize) -> Result<Vec<u8>> {
        let unit = u64::from(self.file.geometry().logical_block_bytes);
        let end = offset.checked_add(bytes as u64);
        let end = end.filter(|&end| end <= self.file.geometry().bytes);
        let end = end.ok_or_else(|| corrupt("a structure does not lie in the file"))?;
        let start = offset / unit * unit;
        let len = (end - start).next_multiple_of(unit);
        let all = self.file.read_buf(DevOffset(start), len as usize)?;
        Ok(all[(offset - start) as usize..][..bytes].to_vec())
    }

    /// Where the list of snapshots ends, and their L1 tables.
    fn snapshots(&self) -> Result<(u64, Vec<(u64, usize)>)> {
        if self.header.snapshots > SNAPSHOTS_MAX {
            return Err(corrupt(format_args!("{} snapshots", self.header.snapshots)));
        }
        let mut at = self.header.snapshots_offset;
        let mut found = Vec::new();
        for _ in 0..self.header.snapshots {
            let head = self.read_aligned(at, 40)?;
            let entries = be32(&head, 8) as usize;
            let (l1_offset, len) = (be64(&head, 0), entries as u64 * 8);
            let end = l1_offset.checked_add(len);
            if len > 32 << 20 || end.is_none_or(|end| end > self.file.geometry().bytes) {
                return Err(corrupt("a snapshot's L1 table does not lie in the file"));
            }
            found.push((l1_offset, entries));
            let (id, name) = (be16(&head, 12), be16(&head, 14));
            let extra = u64::from(be32(&head, 36));
            at = (at + 40 + extra + u64::from(id) + u64::from(name)).next_multiple_of(8);
        }
        Ok((at, found))
    }
}
