//! New tables, and changes of tables: a partition more, or a larger one. [`super`] says what a crash leaves.

use super::change::{ALIGNMENT, Change, NewPartition};
use super::mbr::Chain;
use super::{Partition, PartitionType, Scheme, Table, gpt_write, mbr, mbr_write};
use crate::{Error, Result};
use blockwright_device::SharedDevice;
use std::ops::Range;

/// A table to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewTable {
    /// Which kind of table.
    pub scheme: Scheme,
    /// The disk's id, in the order of the bytes on the disk; an MBR has the first four.
    pub id: [u8; 16],
    /// The partitions, in the order of their numbers.
    pub partitions: Vec<NewPartition>,
}

impl NewTable {
    /// Writes the table. The old contents of the table's places on the device are overwritten.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for partitions that overlap, do not lie where partitions may, or have no place in such a table; [`Error::Device`].
    pub fn write(&self, device: &SharedDevice) -> Result<()> {
        // Room for the table and, for a GPT, its backup.
        let disk_bytes = device.geometry().bytes;
        let (mut from, end) = match self.scheme {
            Scheme::Gpt => (34 * 512, disk_bytes.saturating_sub(33 * 512)),
            Scheme::Mbr => (512, disk_bytes.min(512 << 32)),
        };
        let mut order: Vec<&NewPartition> = self.partitions.iter().collect();
        order.sort_by_key(|p| p.start);
        for partition in order {
            let fits = partition.start >= from && partition.bytes > 0;
            let until = partition.start.checked_add(partition.bytes);
            match until.filter(|until| fits && *until <= end) {
                Some(until) => from = until,
                None => {
                    return Err(Error::Unsupported(format!(
                        "{}: {} bytes from byte {} on are not free for a partition",
                        partition.name, partition.bytes, partition.start
                    )));
                }
            }
        }
        match self.scheme {
            Scheme::Gpt => gpt_write::create(device, self.id, &self.partitions),
            Scheme::Mbr => mbr_write::create(device, &self.id, &self.partitions, end),
        }
    }

    /// How many bytes in front of a partition must be free, when a table has `count` partitions: the record of a logical partition has its place there.
    /// `index` counts from 0. A multiple of [`ALIGNMENT`].
    #[must_use]
    pub fn bytes_before(scheme: Scheme, count: usize, index: usize) -> u64 {
        match mbr_write::is_logical(scheme, count, index) {
            true => ALIGNMENT,
            false => 0,
        }
    }

    /// The number that a partition gets, when a table has `count` partitions. `index` counts from 0.
    #[must_use]
    pub fn number(scheme: Scheme, count: usize, index: usize) -> u32 {
        // The extended partition has number 4, logical ones begin at 5.
        index as u32 + 1 + u32::from(mbr_write::is_logical(scheme, count, index))
    }
}

fn is_extended(partition: &Partition) -> bool {
    matches!(partition.kind, PartitionType::Byte(kind) if mbr::is_extended(kind))
}

/// The ranges between used ones, from the next multiple of [`ALIGNMENT`] on that leaves `before` bytes free.
fn gaps(mut used: Vec<Range<u64>>, within: &Range<u64>, before: u64) -> Vec<Range<u64>> {
    used.sort_unstable_by_key(|range| (range.start, range.end));
    let mut from = within.start;
    let mut free = Vec::new();
    let behind = std::iter::once(within.end..u64::MAX);
    for range in used.into_iter().chain(behind) {
        let aligned = from.max(1).saturating_add(before);
        let aligned = aligned.checked_next_multiple_of(ALIGNMENT);
        let (aligned, end) = (aligned.unwrap_or(u64::MAX), range.start.min(within.end));
        if aligned < end {
            free.push(aligned..end);
        }
        from = from.max(range.end.min(within.end));
    }
    free
}

fn range(partition: &Partition) -> Range<u64> {
    partition.start..partition.start.saturating_add(partition.bytes)
}

impl Table {
    /// Refuses to change a table that is not understood as a whole.
    fn check_sound(&self) -> Result<()> {
        for partition in self.partitions.iter().filter(|p| !is_extended(p)) {
            if let Some(problem) = &partition.problem {
                return Err(Error::Corrupt(format!(
                    "partition {}: {problem}: a table with such a partition is not changed",
                    partition.number
                )));
            }
        }
        match &self.chain {
            Some(chain) => self.check_chain(chain),
            None => Ok(()),
        }
    }

    /// Refuses a chain whose records or partitions lie outside of the extended partition, or in each other: a record that is written must not
    /// destroy the contents of a partition.
    fn check_chain(&self, chain: &Chain) -> Result<()> {
        let wrong = |what: String| {
            Error::Corrupt(format!(
                "partition {}: {what}: a table with such a partition is not changed",
                chain.number
            ))
        };
        if let Some(broken) = &chain.broken {
            return Err(wrong(broken.clone()));
        }
        let inside = |range: &Range<u64>| chain.start <= range.start && range.end <= chain.end;
        for record in &chain.records {
            let sector = record.at..record.at + mbr::SECTOR;
            let meets = |p: &&Partition| {
                let other = range(p);
                sector.start < other.end && other.start < sector.end && !is_extended(p)
            };
            if !inside(&sector) {
                return Err(wrong(format!(
                    "the record at byte {} is outside",
                    record.at
                )));
            }
            if let Some(p) = self.partitions.iter().find(meets) {
                let number = p.number;
                return Err(wrong(format!(
                    "the record at byte {} is in partition {number}",
                    record.at
                )));
            }
        }
        for partition in &self.partitions {
            let within = range(partition);
            let outside = within.end <= chain.start || within.start >= chain.end;
            let sound = match self.is_logical(partition) {
                true => inside(&within),
                false => partition.number == chain.number || outside,
            };
            if !sound {
                return Err(wrong(format!(
                    "partition {} is partly in it, or should be",
                    partition.number
                )));
            }
        }
        Ok(())
    }

    fn is_logical(&self, partition: &Partition) -> bool {
        self.scheme == Scheme::Mbr && partition.number > 4
    }

    /// The entry of an MBR's first sector that is not used, from 1.
    fn primary_entry(&self) -> Option<u32> {
        let taken = |n: &u32| self.partitions.iter().any(|p| p.number == *n);
        (1..=4).find(|n| !taken(n))
    }

    /// The byte up to which the extended partition can grow.
    fn chain_until(&self, chain: &Chain) -> u64 {
        let primary = self.partitions.iter().filter(|p| !self.is_logical(p));
        let behind = primary
            .map(|p| p.start)
            .filter(|start| *start > chain.start);
        behind.min().unwrap_or(u64::MAX).min(self.usable.end)
    }

    /// The bytes that a new partition can have, from the next multiple of [`ALIGNMENT`] on; ranges without such bytes are left out. An MBR with four entries
    /// in use has room in its extended partition alone, which grows where that is needed.
    #[must_use]
    pub fn free(&self) -> Vec<Range<u64>> {
        let not_logical = || {
            let chosen = self.partitions.iter().filter(|p| !self.is_logical(p));
            chosen.map(range).collect()
        };
        if self.scheme == Scheme::Gpt {
            return gaps(not_logical(), &self.usable, 0);
        }
        let mut free = Vec::new();
        let has_entry = self.primary_entry().is_some();
        if has_entry {
            free.extend(gaps(not_logical(), &self.usable, 0));
        }
        if let Some(chain) = &self.chain {
            let until = match has_entry {
                true => chain.end.min(self.usable.end),
                false => self.chain_until(chain),
            };
            free.extend(gaps(self.used(), &(chain.start..until), mbr::SECTOR));
        }
        free.sort_unstable_by_key(|room| room.start);
        free
    }

    /// By how many bytes the device must become longer, so that a partition of so many bytes has room at its end. `None` where that does not help: in an
    /// MBR with four entries in use whose extended partition has another one behind it, or that has none.
    #[must_use]
    pub fn missing(&self, bytes: u64) -> Option<u64> {
        let mut start = self.usable.start;
        let mut last = self.partitions.iter().map(|p| range(p).end).max();
        if self.scheme == Scheme::Mbr && self.primary_entry().is_none() {
            let chain = self.chain.as_ref()?;
            if self.chain_until(chain) < self.usable.end {
                return None;
            }
            // The extended partition is in that list, and grows.
            let logical = self.partitions.iter().filter(|p| self.is_logical(p));
            last = logical.map(|p| range(p).end).max();
            start = chain.start + mbr::SECTOR;
            last = last.map(|end| end + mbr::SECTOR);
        }
        let start = last.unwrap_or(0).max(start);
        let end = start.next_multiple_of(ALIGNMENT).checked_add(bytes)?;
        Some(
            end.saturating_sub(self.usable.end)
                .next_multiple_of(ALIGNMENT),
        )
    }

    /// The byte up to which a partition can grow where it is: where the next one begins, or where partitions must end.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for tables that are not changed.
    pub fn room_until(&self, partition: &Partition) -> Result<u64> {
        self.check_sound()?;
        let after = |start: &u64| *start > partition.start;
        let logical = self.chain.as_ref().filter(|_| self.is_logical(partition));
        let next = match logical {
            Some(chain) => {
                let records = chain.records.iter().map(|r| r.at);
                let others = self.partitions.iter().map(|p| p.start).chain(records);
                others
                    .filter(after)
                    .min()
                    .unwrap_or(u64::MAX)
                    .min(self.chain_until(chain))
            }
            None => {
                let others = self.partitions.iter().map(|p| p.start);
                others.filter(after).min().unwrap_or(u64::MAX)
            }
        };
        Ok(next.min(self.usable.end))
    }

    /// Adds a partition to the table of a device, which was read from it. Returns its number.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for tables that are not changed; [`Error::Unsupported`] when there is no entry left, or the bytes are not free;
    /// [`Error::Device`].
    pub fn add(&self, device: &SharedDevice, partition: &NewPartition) -> Result<u32> {
        self.check_sound()?;
        if self.scheme == Scheme::Mbr && self.primary_entry().is_none() && self.chain.is_none() {
            return Err(Error::Unsupported(
                "all four entries of the MBR are used, and none of them is an extended partition"
                    .to_owned(),
            ));
        }
        let end = partition.start.saturating_add(partition.bytes);
        let is_free = |free: &Range<u64>| free.start <= partition.start && end <= free.end;
        if !self.free().iter().any(is_free) {
            return Err(Error::Unsupported(format!(
                "{} bytes from byte {} on are not free",
                partition.bytes, partition.start
            )));
        }
        self.change(device, &Change::Add(partition))
    }

    /// Makes a partition end at a byte behind its present end.
    ///
    /// # Errors
    /// As [`Table::add`].
    pub fn grow(&self, device: &SharedDevice, partition: &Partition, end: u64) -> Result<()> {
        let unit = u64::from(self.sector_bytes);
        let end = end / unit * unit;
        if end < partition.start.saturating_add(partition.bytes)
            || end > self.room_until(partition)?
        {
            return Err(Error::Unsupported(format!(
                "partition {} cannot end at byte {end}: {} bytes are free for it",
                partition.number,
                self.room_until(partition)?.saturating_sub(partition.start)
            )));
        }
        let (number, start) = (partition.number, partition.start);
        self.change(device, &Change::Grow { number, start, end })?;
        Ok(())
    }

    fn change(&self, device: &SharedDevice, change: &Change<'_>) -> Result<u32> {
        if self.scheme == Scheme::Gpt {
            return gpt_write::change(device, self.sector_bytes, change);
        }
        let chain = self.chain.as_ref();
        match change {
            Change::Add(new) => {
                let inside = |chain: &&Chain| {
                    (chain.start..chain.end).contains(&new.start) || self.primary_entry().is_none()
                };
                match (chain.filter(inside), self.primary_entry()) {
                    (Some(chain), _) => mbr_write::add_logical(device, chain, &self.used(), new),
                    (None, Some(number)) => mbr_write::add_primary(device, number, new),
                    (None, None) => Err(Error::Unsupported(
                        "all four entries of the MBR are used".to_owned(),
                    )),
                }
            }
            Change::Grow { number, start, end } => {
                let sectors = mbr_write::sectors("the partition", *start, end - start)?.1;
                match chain.filter(|_| *number > 4) {
                    Some(chain) => {
                        mbr_write::grow_logical(device, chain, *number, sectors, *end)?;
                    }
                    None => mbr_write::grow_primary(device, *number, sectors)?,
                }
                Ok(*number)
            }
        }
    }

    /// What is in use in an extended partition: logical partitions and records.
    fn used(&self) -> Vec<Range<u64>> {
        let logical = self.partitions.iter().filter(|p| self.is_logical(p));
        let records = self.chain.iter().flat_map(|chain| &chain.records);
        logical
            .map(range)
            .chain(records.map(|r| r.at..r.at + mbr::SECTOR))
            .collect()
    }
}
