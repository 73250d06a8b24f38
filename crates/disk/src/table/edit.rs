//! New tables, and changes of tables: a partition more, or a larger one. [`super`] says what a crash leaves.

use super::change::{Change, NewPartition};
use super::{Partition, PartitionType, Scheme, Table, gpt_write, mbr};
use crate::{Error, Result};
use blockwright_device::{DevOffset, DeviceExt, Flags, SharedDevice};
use std::ops::Range;

/// Where partitions that are made here begin: at a multiple of so many bytes. Ends of those that fill their room are aligned, too.
pub const ALIGNMENT: u64 = 1 << 20;

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
    /// Writes the table. What is on the device at the places of a table is overwritten.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for partitions that overlap, do not lie where partitions may, or have no place in such a table; [`Error::Device`].
    pub fn write(&self, device: &SharedDevice) -> Result<()> {
        let mut order: Vec<&NewPartition> = self.partitions.iter().collect();
        order.sort_by_key(|p| p.start);
        // Room for the table and, for a GPT, its backup.
        let disk_bytes = device.geometry().bytes;
        let (mut from, end) = match self.scheme {
            Scheme::Gpt => (34 * 512, disk_bytes.saturating_sub(33 * 512)),
            Scheme::Mbr => (512, disk_bytes.min(512 << 32)),
        };
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
            Scheme::Mbr => {
                if self.partitions.len() > 4 {
                    return Err(Error::Unsupported(
                        "an MBR that is made here has at most four partitions; a GPT has 128"
                            .to_owned(),
                    ));
                }
                let mut sector = first_sector(device)?;
                sector[0x1BE..0x1FE].fill(0);
                sector[0x1B8..0x1BC].copy_from_slice(&self.id[..4]);
                for (index, partition) in self.partitions.iter().enumerate() {
                    put_mbr(&mut sector, index, partition)?;
                }
                device.write_at(DevOffset(0), &sector, Flags::empty())?;
                Ok(device.flush()?)
            }
        }
    }
}

fn first_sector(device: &SharedDevice) -> Result<Vec<u8>> {
    let bytes = device.geometry().logical_block_bytes.max(512);
    Ok(device.read_buf(DevOffset(0), bytes as usize)?.to_vec())
}

fn put_mbr(sector: &mut [u8], index: usize, partition: &NewPartition) -> Result<()> {
    let numbers = (
        u32::try_from(partition.start / 512),
        u32::try_from(partition.bytes / 512),
    );
    let (PartitionType::Byte(kind), (Ok(first), Ok(sectors))) = (partition.kind, numbers) else {
        return Err(Error::Unsupported(format!(
            "{}: an MBR has partitions in its first 2 TiB, with types of one byte",
            partition.name
        )));
    };
    mbr::put(sector, index, kind, first, sectors);
    Ok(())
}

fn is_extended(partition: &Partition) -> bool {
    matches!(partition.kind, PartitionType::Byte(0x05 | 0x0F | 0x85))
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
        Ok(())
    }

    /// The bytes that belong to no partition, from the next multiple of [`ALIGNMENT`] on; ranges without such bytes are left out.
    #[must_use]
    pub fn free(&self) -> Vec<Range<u64>> {
        let mut used: Vec<(u64, u64)> = self
            .partitions
            .iter()
            .map(|p| (p.start, p.start.saturating_add(p.bytes)))
            .collect();
        used.sort_unstable();
        let mut from = self.usable.start;
        let mut free = Vec::new();
        for (start, end) in used.into_iter().chain([(self.usable.end, u64::MAX)]) {
            let aligned = from.max(1).checked_next_multiple_of(ALIGNMENT);
            let aligned = aligned.unwrap_or(u64::MAX);
            if aligned < start.min(self.usable.end) {
                free.push(aligned..start.min(self.usable.end));
            }
            from = from.max(end.min(self.usable.end));
        }
        free
    }

    /// The byte up to which a partition can grow where it is: where the next one begins, or where partitions must end.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for tables that are not changed; [`Error::Unsupported`] for logical partitions.
    pub fn room_until(&self, partition: &Partition) -> Result<u64> {
        self.check_sound()?;
        if self.scheme == Scheme::Mbr && partition.number > 4 {
            return Err(Error::Unsupported(
                "a logical partition is not made larger".to_owned(),
            ));
        }
        let after = self.partitions.iter().filter(|p| p.start > partition.start);
        let next = after.map(|p| p.start).min().unwrap_or(u64::MAX);
        Ok(next.min(self.usable.end))
    }

    /// Adds a partition to the table of a device, which was read from it. Returns its number.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for tables that are not changed; [`Error::Unsupported`] when there is no entry left, or the bytes are not free;
    /// [`Error::Device`].
    pub fn add(&self, device: &SharedDevice, partition: &NewPartition) -> Result<u32> {
        self.check_sound()?;
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
        let mut sector = first_sector(device)?;
        let number = match change {
            Change::Add(partition) => {
                let taken = |n: &u32| self.partitions.iter().any(|p| p.number == *n);
                let number = (1..=4).find(|n| !taken(n)).ok_or_else(|| {
                    Error::Unsupported(
                        "all four entries of the MBR are used; logical partitions are not added"
                            .to_owned(),
                    )
                })?;
                put_mbr(&mut sector, number as usize - 1, partition)?;
                number
            }
            Change::Grow { number, start, end } => {
                // Numbers above four were refused.
                let at = 0x1BE + 16 * (*number as usize - 1) + 12;
                let sectors = u32::try_from((end - start) / 512).map_err(|_| {
                    Error::Unsupported("an MBR has partitions of less than 2 TiB".to_owned())
                })?;
                sector[at..at + 4].copy_from_slice(&sectors.to_le_bytes());
                *number
            }
        };
        device.write_at(DevOffset(0), &sector, Flags::empty())?;
        device.flush()?;
        Ok(number)
    }
}
