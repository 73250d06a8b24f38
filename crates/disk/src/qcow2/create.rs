//! Creates empty qcow2 files: header, refcounts and an L1 table without entries.

use super::header::{MAGIC, autoclear, extension, incompatible};
use crate::{Error, Result};
use blockwright_device::{DevOffset, Flags, SharedDevice};

/// Properties of a new file.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// Bytes of the disk.
    pub bytes: u64,
    /// log2 of the bytes of a cluster: 9 to 21. 16 (64 KiB) suits most.
    pub cluster_bits: u32,
    /// The backing file's name as the header will hold it, and its format.
    pub backing: Option<(Vec<u8>, &'static str)>,
    /// Where the data is, if not in the file itself.
    pub data_file: Option<DataFile>,
}

/// The external data file of a new file.
#[derive(Clone, Debug)]
pub struct DataFile {
    /// Its name as the header will hold it.
    pub name: Vec<u8>,
    /// Whether it must always have the disk's contents by itself. Such an image has no backing file.
    pub raw: bool,
}

/// The least size in bytes of the file that [`create`] writes to.
#[must_use]
pub fn file_bytes(options: &CreateOptions) -> u64 {
    let (clusters, ..) = layout(options);
    clusters << options.cluster_bits
}

/// Clusters of the whole file; clusters of the L1 table; entries of the L1 table; clusters of the refcount table.
fn layout(options: &CreateOptions) -> (u64, u64, u64, u64) {
    let cluster = 1u64 << options.cluster_bits;
    let entries = options.bytes.div_ceil(cluster * (cluster / 8));
    let l1 = (entries * 8).div_ceil(cluster).max(1);
    // Refcounts of 16 bits: room for all clusters of the disk, its tables and as much again, so that the table needs not move.
    let counted = 2 * options.bytes.div_ceil(cluster) + l1 + 64;
    let blocks = counted.div_ceil(cluster / 2);
    let table = (blocks * 8).div_ceil(cluster);
    // Header, table, blocks for all of these, L1.
    let used = 1 + table + l1;
    let first_blocks = (used + used.div_ceil(cluster / 2) + 1).div_ceil(cluster / 2);
    (used + first_blocks, l1, entries, table)
}

/// Makes an empty disk in a file, which must read as zeroes and have [`file_bytes`] bytes at least.
///
/// # Errors
/// [`Error::Unsupported`] for a cluster size, disk size or name that the format does not allow; [`Error::Device`].
pub fn create(file: &SharedDevice, options: &CreateOptions) -> Result<()> {
    let bits = options.cluster_bits;
    let cluster = 1usize << bits.min(21);
    let name_bytes = options.backing.as_ref().map_or(0, |(name, _)| name.len());
    let data_name = options.data_file.as_ref().map_or(0, |data| data.name.len());
    let (clusters, l1, entries, table) = match (9..=21).contains(&bits) {
        true => layout(options),
        false => {
            return Err(Error::Unsupported(format!(
                "qcow2: clusters of 2^{bits} bytes"
            )));
        }
    };
    if entries * 8 > 32 << 20 || table << bits > 8 << 20 || !options.bytes.is_multiple_of(512) {
        return Err(Error::Unsupported(format!(
            "qcow2: a disk of {} bytes in clusters of {cluster}",
            options.bytes
        )));
    }
    let names = name_bytes + data_name.next_multiple_of(8);
    if name_bytes > 1023 || data_name > 1023 || 104 + 8 + 8 + 8 + 32 + names > cluster {
        return Err(Error::Unsupported(
            "qcow2: the name of the backing file or of the data file is too long".to_owned(),
        ));
    }
    if options.backing.is_some() && options.data_file.as_ref().is_some_and(|data| data.raw) {
        return Err(Error::Unsupported(
            "qcow2: a raw data file and a backing file exclude each other".to_owned(),
        ));
    }
    let blocks = clusters - 1 - table - l1;
    let l1_at = (1 + table + blocks) << bits;
    let mut head = vec![0u8; cluster];
    head[..4].copy_from_slice(&MAGIC);
    let mut put32 = |at: usize, value: u32| head[at..at + 4].copy_from_slice(&value.to_be_bytes());
    put32(4, 3);
    put32(20, bits);
    put32(36, entries as u32);
    put32(56, table as u32);
    put32(96, 4);
    put32(100, 104);
    let mut put64 = |at: usize, value: u64| head[at..at + 8].copy_from_slice(&value.to_be_bytes());
    put64(24, options.bytes);
    put64(40, l1_at);
    put64(48, 1 << bits);
    if let Some(data) = &options.data_file {
        put64(72, incompatible::EXTERNAL_DATA);
        put64(88, if data.raw { autoclear::RAW_EXTERNAL } else { 0 });
    }
    let mut at = 104;
    let mut extend = |head: &mut [u8], kind: u32, data: &[u8]| {
        head[at..at + 4].copy_from_slice(&kind.to_be_bytes());
        head[at + 4..at + 8].copy_from_slice(&(data.len() as u32).to_be_bytes());
        head[at + 8..at + 8 + data.len()].copy_from_slice(data);
        at += 8 + data.len().next_multiple_of(8);
    };
    if let Some(data) = &options.data_file {
        extend(&mut head, extension::DATA_FILE, &data.name);
    }
    if let Some((name, format)) = &options.backing {
        extend(&mut head, extension::BACKING_FORMAT, format.as_bytes());
        // The list ends with eight zero bytes.
        let at = at + 8;
        head[8..16].copy_from_slice(&(at as u64).to_be_bytes());
        head[16..20].copy_from_slice(&(name.len() as u32).to_be_bytes());
        head[at..at + name.len()].copy_from_slice(name);
    }
    let mut entries_of_table = vec![0u8; (table << bits) as usize];
    for block in 0..blocks {
        let place = (1 + table + block) << bits;
        entries_of_table[block as usize * 8..][..8].copy_from_slice(&place.to_be_bytes());
    }
    let mut counts = vec![0u8; (blocks << bits) as usize];
    for n in 0..clusters as usize {
        counts[2 * n..2 * n + 2].copy_from_slice(&1u16.to_be_bytes());
    }
    let none = Flags::empty();
    let (first, rest) = head.split_at((file.geometry().logical_block_bytes as usize).min(cluster));
    file.write_zeroes(DevOffset(l1_at), l1 << bits)?;
    file.write_at(DevOffset(1 << bits), &entries_of_table, none)?;
    file.write_at(DevOffset((1 + table) << bits), &counts, none)?;
    if !rest.is_empty() {
        file.write_at(DevOffset(first.len() as u64), rest, none)?;
    }
    // The first block last, which no power failure tears: before it there is no qcow2 file.
    file.flush()?;
    file.write_at(DevOffset(0), first, none)?;
    Ok(file.flush()?)
}
