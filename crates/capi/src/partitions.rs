//! Disks: their partitions as data. A partition is opened as a volume by its path, as `disk.img:p2`.

use crate::call::{call, out};
use crate::error::{Fault, Result, bw_error, bw_status, copy_text};
use crate::handles::{PARTITIONS, bw_partitions};
use crate::place::allow_backing;
use crate::raw::Text;
use blockwright::disk::Scheme;
use blockwright_ffi::PartitionData;
use std::ffi::c_char;
use std::mem::MaybeUninit;

/// The disk has no table of partitions.
pub const BW_TABLE_NONE: u32 = 0;
/// It has a GPT.
pub const BW_TABLE_GPT: u32 = 1;
/// It has an MBR.
pub const BW_TABLE_MBR: u32 = 2;

/// Bytes of a partition's name, with its NUL.
pub const BW_PARTITION_NAME_BYTES: usize = 112;
/// Bytes of the label of what a partition holds, with its NUL. A longer one is shortened in its middle.
pub const BW_PARTITION_LABEL_BYTES: usize = 256;
/// Bytes of the texts that have a fixed form, with their NUL.
pub const BW_PARTITION_ID_BYTES: usize = 40;
/// Bytes of a sentence about a partition, with its NUL.
pub const BW_PARTITION_TEXT_BYTES: usize = 256;

/// A table of partitions.
#[repr(C)]
pub struct bw_table {
    /// A `BW_TABLE_`.
    pub scheme: u32,
    /// Bytes of the sectors that the table counts in; 0 without one.
    pub sector_bytes: u32,
    /// Bytes of the disk.
    pub disk_bytes: u64,
    /// Partitions.
    pub count: usize,
    /// Faults of the table that do not prevent its use.
    pub remarks: usize,
    /// The disk's id: a UUID (GPT), eight hexadecimal digits (MBR), or nothing.
    pub id: [c_char; BW_PARTITION_ID_BYTES],
}

/// A partition, and what it holds. Texts that are not known are empty.
#[repr(C)]
pub struct bw_partition {
    /// Its number, from 1, as in the path `disk.img:p2`. Logical partitions of an MBR begin at 5.
    pub number: u32,
    /// 0.
    pub reserved: u32,
    /// Its first byte on the disk.
    pub start: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// Its name (GPT), as in the path `disk.img:p=root`.
    pub name: [c_char; BW_PARTITION_NAME_BYTES],
    /// Its unique id (GPT).
    pub uuid: [c_char; BW_PARTITION_ID_BYTES],
    /// Its type: a GUID, or a byte as `0x83`.
    pub kind: [c_char; BW_PARTITION_ID_BYTES],
    /// The name of that type.
    pub kind_name: [c_char; BW_PARTITION_ID_BYTES],
    /// The format of what it holds, as blkid names it: `ext4` (also ext2 and ext3), `f2fs`, `fat32` and so on.
    pub format: [c_char; BW_PARTITION_ID_BYTES],
    /// The label of what it holds.
    pub label: [c_char; BW_PARTITION_LABEL_BYTES],
    /// Why it cannot be used.
    pub problem: [c_char; BW_PARTITION_TEXT_BYTES],
}

/// Reads the table of partitions of the disk at `path`: an image, also in a container (qcow2), a block device or an NBD export. `flags` is
/// `BW_ALLOW_BACKING` or 0. A disk without a table has none of them, and is no error.
#[unsafe(no_mangle)]
pub extern "C" fn bw_partitions_read(
    path: Text,
    flags: u32,
    partitions: Option<&mut MaybeUninit<bw_partitions>>,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    call(error, || {
        let to = out(partitions, "partitions")?;
        to.write(bw_partitions { id: 0 });
        let found =
            blockwright_ffi::partitions(path.path("path")?, allow_backing(flags, "flags")?)?;
        let id = PARTITIONS.insert(found)?;
        to.write(bw_partitions { id });
        Ok(())
    })
}

/// The table.
#[unsafe(no_mangle)]
pub extern "C" fn bw_partitions_table(
    partitions: bw_partitions,
    table: Option<&mut MaybeUninit<bw_table>>,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    call(error, || {
        let to = out(table, "table")?;
        let found = PARTITIONS.get(partitions.id)?;
        let to = to.write(bw_table {
            scheme: match found.scheme {
                None => BW_TABLE_NONE,
                Some(Scheme::Gpt) => BW_TABLE_GPT,
                Some(Scheme::Mbr) => BW_TABLE_MBR,
            },
            sector_bytes: found.sector_bytes,
            disk_bytes: found.disk_bytes,
            count: found.partitions.len(),
            remarks: found.remarks.len(),
            id: [0; BW_PARTITION_ID_BYTES],
        });
        copy_text(&found.id, &mut to.id);
        Ok(())
    })
}

/// The partition at an index.
fn at(all: &[PartitionData], index: usize) -> Result<&PartitionData> {
    let count = all.len();
    let what = || {
        Fault::Misuse(format!(
            "index is {index}, and there are {count} partitions"
        ))
    };
    all.get(index).ok_or_else(what)
}

/// Gets a partition; `index` is from 0.
#[unsafe(no_mangle)]
pub extern "C" fn bw_partitions_get(
    partitions: bw_partitions,
    index: usize,
    partition: Option<&mut MaybeUninit<bw_partition>>,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    call(error, || {
        let to = out(partition, "partition")?;
        let found = PARTITIONS.get(partitions.id)?;
        let p = at(&found.partitions, index)?;
        let to = to.write(bw_partition {
            number: p.number,
            reserved: 0,
            start: p.start,
            bytes: p.bytes,
            name: [0; BW_PARTITION_NAME_BYTES],
            uuid: [0; BW_PARTITION_ID_BYTES],
            kind: [0; BW_PARTITION_ID_BYTES],
            kind_name: [0; BW_PARTITION_ID_BYTES],
            format: [0; BW_PARTITION_ID_BYTES],
            label: [0; BW_PARTITION_LABEL_BYTES],
            problem: [0; BW_PARTITION_TEXT_BYTES],
        });
        copy_text(&p.name, &mut to.name);
        copy_text(p.uuid.as_deref().unwrap_or_default(), &mut to.uuid);
        copy_text(&p.kind, &mut to.kind);
        copy_text(p.kind_name.unwrap_or_default(), &mut to.kind_name);
        copy_text(p.format.unwrap_or_default(), &mut to.format);
        copy_text(&p.label, &mut to.label);
        copy_text(p.problem.as_deref().unwrap_or_default(), &mut to.problem);
        Ok(())
    })
}

/// Frees the table.
#[unsafe(no_mangle)]
pub extern "C" fn bw_partitions_close(
    partitions: bw_partitions,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    call(error, || PARTITIONS.remove(partitions.id).map(drop))
}
