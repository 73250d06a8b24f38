//! Puts a plan on a device: data, directories and tables; the boot sector last.

use super::{Dir, ENTRY_BYTES, FIRST_CLUSTER, Placed, Plan, SECTOR, TABLES};
use crate::Result;
use crate::options::Before;
use crate::output::{
    BlockWriter, Chunks, DataSource, Progress, ProgressFn, ask, check_device, copy_data, tell, zero,
};
use crate::tree::{Node, NodeId, Tree, block_ranges};
use blockwright_device::{DevOffset, Flags, SharedDevice};
use blockwright_ondisk::ext4::{FileKind, Timestamp};

/// log2 of [`SECTOR`].
const SECTOR_BITS: u32 = 9;
/// Marks the end of a chain of clusters.
const CHAIN_END: u32 = 0x0FFF_FFFF;
/// The kind of medium, in the boot sector and the first entry of the table: a fixed disk.
const MEDIUM: u8 = 0xF8;
/// Entries of the table that are made at once.
const STEP: usize = 128 << 10;
/// Where the boot sector's copy is, in sectors.
const COPY_AT: u64 = 6;

const ATTR_LABEL: u8 = 0x08;
const ATTR_DIR: u8 = 0x10;
const ATTR_ARCHIVE: u8 = 0x20;

/// Writes a planned volume.
///
/// # Errors
/// Failures of the device and of the source; the device holds no volume then.
pub fn write(
    device: &SharedDevice,
    plan: &Plan,
    tree: &Tree,
    source: &dyn DataSource,
    progress: ProgressFn<'_>,
) -> Result<()> {
    let shape = &plan.shape;
    check_device(device, shape.sectors * SECTOR, SECTOR as u32)?;
    let zeroed = plan.options.before == Before::Zeroes;
    if !zeroed {
        // The tables are written as far as clusters are used.
        zero(device, 0, shape.data_start * SECTOR, &|_| ask(progress))?;
        device.flush()?;
    }
    let bits = SECTOR_BITS + shape.cluster_sectors.trailing_zeros();
    // Clusters are aligned to their size, so they can be counted from the volume's beginning.
    let block_of = |cluster: u64| shape.sector_of(cluster) / shape.cluster_sectors;
    let mut chunks = Chunks::new(bits);
    for file in &plan.files {
        let node = tree.node(file.node);
        let ranges = match zeroed {
            true => block_ranges(&node.data, node.size, bits),
            false => vec![(0, file.clusters)],
        };
        let first = block_of(file.first);
        for (n, (start, end)) in ranges.iter().enumerate() {
            let last = n + 1 == ranges.len();
            chunks.push(file.node, *start, first + start, end - start, last);
        }
    }
    copy_data(device, bits, &chunks.finish(), tree, source, progress)?;
    tell(progress, Progress::Metadata)?;
    let mut out = BlockWriter::new(device, SECTOR_BITS);
    write_tables(&mut out, plan)?;
    for dir in &plan.dirs {
        let bytes = directory(plan, tree, dir);
        out.put(shape.sector_of(dir.place.first), &bytes)?;
    }
    out.flush()?;
    device.flush()?;
    let head = reserved(plan);
    device.write_at(DevOffset(0), &head, Flags::empty())?;
    device.flush()?;
    Ok(())
}

/// Both copies of the table, as far as clusters are used.
fn write_tables(out: &mut BlockWriter<'_>, plan: &Plan) -> Result<()> {
    let shape = &plan.shape;
    for copy in 0..TABLES {
        let mut sector = shape.reserved_sectors() + copy * shape.table_sectors;
        let mut bytes: Vec<u8> = Vec::with_capacity(4 * STEP);
        bytes.extend_from_slice(&(0x0FFF_FF00 | u32::from(MEDIUM)).to_le_bytes());
        bytes.extend_from_slice(&CHAIN_END.to_le_bytes());
        let mut places: Vec<(u64, u64)> = Vec::with_capacity(plan.dirs.len() + plan.files.len());
        let place = |p: &Placed| (p.first, p.clusters);
        places.extend(plan.dirs.iter().map(|dir| place(&dir.place)));
        places.extend(plan.files.iter().map(place));
        // They lie one behind the other, from the first cluster on.
        for (first, clusters) in places {
            for n in 1..=clusters {
                let next = match n == clusters {
                    true => CHAIN_END,
                    // Numbers of clusters have 28 bits.
                    false => (first + n) as u32,
                };
                bytes.extend_from_slice(&next.to_le_bytes());
                if bytes.len() == 4 * STEP {
                    out.put(sector, &bytes)?;
                    sector += bytes.len() as u64 / SECTOR;
                    bytes.clear();
                }
            }
        }
        bytes.resize(bytes.len().next_multiple_of(SECTOR as usize), 0);
        if !bytes.is_empty() {
            out.put(sector, &bytes)?;
        }
    }
    Ok(())
}

/// A date and a time of day, in two seconds; what lies outside of 1980 to 2107 becomes the nearest.
fn date_time(at: Timestamp) -> (u16, u16, u8) {
    const FIRST: i64 = 315_532_800;
    const LAST: i64 = 4_354_819_199;
    let secs = at.secs.clamp(FIRST, LAST);
    let (mut day, second) = (secs / 86_400, secs % 86_400);
    let leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let mut year = 1970;
    loop {
        let days = if leap(year) { 366 } else { 365 };
        if day < days {
            break;
        }
        (day, year) = (day - days, year + 1);
    }
    let february = if leap(year) { 29 } else { 28 };
    let mut month = 1;
    for days in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if day < days {
            break;
        }
        (day, month) = (day - days, month + 1);
    }
    let date = (year - 1980) << 9 | month << 5 | (day + 1);
    let time = (second / 3600) << 11 | (second / 60 % 60) << 5 | (second % 60 / 2);
    let hundredths = (second % 2) as u32 * 100
        + match secs == at.secs {
            true => at.nanos / 10_000_000,
            false => 0,
        };
    (date as u16, time as u16, hundredths as u8)
}

fn entry(
    short: &[u8; 11],
    attributes: u8,
    node: &Node,
    first: u64,
    bytes: u64,
) -> [u8; ENTRY_BYTES as usize] {
    let mut entry = [0u8; ENTRY_BYTES as usize];
    let mut put = |at: usize, value: &[u8]| entry[at..at + value.len()].copy_from_slice(value);
    put(0, short);
    put(11, &[attributes]);
    let (date, time, hundredths) = date_time(node.crtime);
    put(13, &[hundredths]);
    put(14, &time.to_le_bytes());
    put(16, &date.to_le_bytes());
    put(18, &date_time(node.atime).0.to_le_bytes());
    let (date, time, _) = date_time(node.mtime);
    put(22, &time.to_le_bytes());
    put(24, &date.to_le_bytes());
    let first = first as u32;
    put(20, &(first >> 16).to_le_bytes()[..2]);
    put(26, &first.to_le_bytes()[..2]);
    // Planning has refused larger files.
    put(28, &(bytes as u32).to_le_bytes());
    entry
}

/// The bytes of a directory, in whole clusters.
fn directory(plan: &Plan, tree: &Tree, dir: &Dir) -> Vec<u8> {
    let mut out = Vec::new();
    let own = tree.node(dir.place.node);
    if dir.place.node == NodeId::ROOT {
        if !plan.options.label.is_empty() {
            let label = entry(&padded(&plan.options.label), ATTR_LABEL, own, 0, 0);
            out.extend_from_slice(&label);
        }
    } else {
        out.extend_from_slice(&entry(&padded("."), ATTR_DIR, own, dir.place.first, 0));
        out.extend_from_slice(&entry(&padded(".."), ATTR_DIR, own, dir.parent, 0));
    }
    for (name, place) in &dir.entries {
        let node = tree.node(place.node);
        let (attributes, bytes) = match node.kind {
            FileKind::Directory => (ATTR_DIR, 0),
            _ => (ATTR_ARCHIVE, node.size),
        };
        name.put_long(&mut out);
        out.extend_from_slice(&entry(&name.short, attributes, node, place.first, bytes));
    }
    let bytes = dir.place.clusters * plan.shape.cluster_bytes();
    out.resize(bytes as usize, 0);
    out
}

/// Eleven characters, padded with spaces.
fn padded(text: &str) -> [u8; 11] {
    let mut out = [b' '; 11];
    for (to, byte) in out.iter_mut().zip(text.bytes()) {
        *to = byte;
    }
    out
}

/// The sectors in front of the tables that hold something: boot sector and information, and their copies.
fn reserved(plan: &Plan) -> Vec<u8> {
    let shape = &plan.shape;
    let sector = SECTOR as usize;
    let mut boot = vec![0u8; sector];
    let mut put = |at: usize, value: &[u8]| boot[at..at + value.len()].copy_from_slice(value);
    // A jump over the parameters, to code that stops: nothing boots from here but through EFI.
    put(0, &[0xEB, 0x58, 0x90]);
    put(0x5A, &[0xF4, 0xEB, 0xFD]);
    put(3, b"blkwrght");
    put(11, &(SECTOR as u16).to_le_bytes());
    put(13, &[shape.cluster_sectors as u8]);
    put(14, &(shape.reserved_sectors() as u16).to_le_bytes());
    put(16, &[TABLES as u8]);
    put(21, &[MEDIUM]);
    // Sectors of a track and heads, for programs that still count in them.
    put(24, &63u16.to_le_bytes());
    put(26, &255u16.to_le_bytes());
    put(28, &plan.hidden_sectors.to_le_bytes());
    put(32, &(shape.sectors as u32).to_le_bytes());
    put(36, &(shape.table_sectors as u32).to_le_bytes());
    put(44, &(FIRST_CLUSTER as u32).to_le_bytes());
    put(48, &1u16.to_le_bytes());
    put(50, &(COPY_AT as u16).to_le_bytes());
    put(64, &[0x80]);
    put(66, &[0x29]);
    put(67, &plan.options.id.to_le_bytes());
    put(
        71,
        &padded(match plan.options.label.as_str() {
            "" => "NO NAME",
            label => label,
        }),
    );
    put(82, b"FAT32   ");
    put(510, &[0x55, 0xAA]);
    let mut information = vec![0u8; sector];
    let mut put =
        |at: usize, value: u32| information[at..at + 4].copy_from_slice(&value.to_le_bytes());
    put(0, 0x4161_5252);
    put(484, 0x6141_7272);
    put(488, (shape.clusters - plan.used_clusters) as u32);
    put(492, (FIRST_CLUSTER + plan.used_clusters) as u32);
    put(508, 0xAA55_0000);
    let copy = COPY_AT as usize * sector;
    let mut head = vec![0u8; copy + 2 * sector];
    for at in [0, copy] {
        head[at..at + sector].copy_from_slice(&boot);
        head[at + sector..at + 2 * sector].copy_from_slice(&information);
    }
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        let at = |secs, nanos| date_time(Timestamp { secs, nanos });
        assert_eq!(at(0, 0), (33, 0, 0));
        // 2024-02-29 12:34:57.5
        assert_eq!(
            at(1_709_210_097, 500_000_000),
            (44 << 9 | 2 << 5 | 29, 12 << 11 | 34 << 5 | 28, 150)
        );
        assert_eq!(
            at(i64::MAX, 0),
            (127 << 9 | 12 << 5 | 31, 23 << 11 | 59 << 5 | 29, 100)
        );
    }
}
