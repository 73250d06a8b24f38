//! A partition that becomes larger, into the free room behind it, and then the volume in it.
//!
//! # Crash order
//! The changes of the table and of the volume are rehearsed, then the table is written, then the volume is changed. Until the volume follows, its partition is larger than it
//! needs, which harms nothing. The same call continues.

use crate::reshape::{self, ExternalJournal, Mode, ResizeOptions, Resized, Watch};
use crate::{Error, ErrorKind, Result};
use blockwright_device::{DevOffset, DeviceError, OffsetDevice, OverlayDevice, SharedDevice};
use blockwright_disk::table::ALIGNMENT;
use blockwright_disk::{Disk, Partition, Selector, Table};
use std::sync::Arc;

/// The size that a volume shall have, for which its partition becomes as large as is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionSize {
    /// So many bytes.
    Bytes(u64),
    /// So many bytes more than the volume has.
    More(u64),
    /// All of the room up to the next partition or the end of the disk.
    Fill,
}

/// The range of the partition after the change, and the change of the table that makes it that large.
struct Growth<'a> {
    disk: &'a Disk,
    table: Table,
    partition: Partition,
    /// The byte where the partition will end.
    end: u64,
    /// Bytes of the volume; `None` for all of the partition.
    volume_bytes: Option<u64>,
}

fn of_disk(e: blockwright_disk::Error) -> Error {
    Error::from(DeviceError::from(e))
}

impl<'a> Growth<'a> {
    fn plan(disk: &'a Disk, selector: &Selector, to: PartitionSize) -> Result<Self> {
        let partition = disk.find(selector).map_err(of_disk)?;
        let missing = || Error::new(ErrorKind::NotFound, "there is no table of partitions");
        let table = disk.table().map_err(of_disk)?.ok_or_else(missing)?;
        let room = table.room_until(&partition).map_err(of_disk)?;
        let most = room.saturating_sub(partition.start);
        let volume_bytes = match to {
            PartitionSize::Bytes(bytes) => Some(bytes),
            PartitionSize::More(bytes) => {
                let now = reshape::volume_bytes(&disk.part(selector).map_err(of_disk)?)?;
                Some(now.saturating_add(bytes))
            }
            PartitionSize::Fill => None,
        };
        let wanted = volume_bytes.unwrap_or(most);
        if wanted > most.max(partition.bytes) {
            let next = table.partitions.iter().find(|p| p.start == room);
            let behind = match next {
                Some(next) => format!("partition {} begins behind them", next.number),
                None => format!("the disk has {}", disk.device().geometry().bytes),
            };
            let what = format!(
                "the partition can have {most} bytes, fewer than the {wanted} asked for: {behind}"
            );
            return Err(Error::new(ErrorKind::NoSpace, what));
        }
        // Ends are aligned where there is room for that.
        let end = partition.start.saturating_add(wanted);
        let end = match volume_bytes {
            None => end / ALIGNMENT * ALIGNMENT,
            Some(_) => end.next_multiple_of(ALIGNMENT).min(room),
        };
        Ok(Growth {
            disk,
            table,
            end: end.max(partition.start + partition.bytes),
            partition,
            volume_bytes,
        })
    }

    /// The partition as it will be.
    fn device(&self) -> Result<SharedDevice> {
        let (start, bytes) = (self.partition.start, self.end - self.partition.start);
        let whole = Arc::clone(self.disk.device());
        Ok(Arc::new(OffsetDevice::new(
            whole,
            DevOffset(start),
            Some(bytes),
        )?))
    }

    fn write_table(&self, device: &SharedDevice) -> Result<()> {
        if self.end == self.partition.start + self.partition.bytes {
            return Ok(());
        }
        let grown = self.table.grow(device, &self.partition, self.end);
        grown.map_err(of_disk)
    }

    /// Refuses what [`Growth::write_table`] refuses: the table is written in memory.
    fn rehearse_table(&self) -> Result<()> {
        let disk = Arc::clone(self.disk.device());
        self.write_table(&(Arc::new(OverlayDevice::new(disk)) as SharedDevice))
    }
}

/// Makes a partition larger, and then the volume in it, which must not be open. What the table or the volume refuses is found before anything is written. A partition
/// that is large enough keeps its size.
///
/// # Errors
/// `NotFound` for a partition that is not there; `NoSpace` when the room behind it is too small; `Corrupt` for a table that is damaged; as
/// [`reshape::resize`]. After an error the partition may be larger already.
pub fn grow(
    disk: &Disk,
    selector: &Selector,
    to: PartitionSize,
    mode: Mode,
    journal: Option<ExternalJournal>,
    watch: &Watch,
) -> Result<Resized> {
    let growth = Growth::plan(disk, selector, to)?;
    let device = growth.device()?;
    let bytes = growth.volume_bytes.unwrap_or(device.geometry().bytes);
    let options = ResizeOptions::to_bytes(bytes)
        .journal(journal)
        .watch(watch.clone());
    let before = match mode {
        Mode::Change => Mode::Rehearsal,
        planned => planned,
    };
    growth.rehearse_table()?;
    let planned = reshape::resize(&device, &options.clone().mode(before))?;
    if mode != Mode::Change {
        return Ok(planned);
    }
    if watch.is_stopped() {
        let what = "the partition and its volume are as they were";
        return Err(Error::new(ErrorKind::Interrupted, what));
    }
    growth.write_table(disk.device())?;
    reshape::resize(&device, &options.without_rehearsal())
}
