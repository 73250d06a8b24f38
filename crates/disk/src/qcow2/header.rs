//! The header of a qcow2 file. All numbers are big-endian.
//!
//! Source of the format: "Qcow2 Image File Format", docs/interop/qcow2 of QEMU's documentation.

use crate::bytes::{be32, be64};
use crate::{Error, Result};

/// How a file begins.
pub(crate) const MAGIC: [u8; 4] = *b"QFI\xFB";
/// Bytes from the beginning that hold the header, its extensions and the backing file's name in every file that is read here.
pub(crate) const HEAD_BYTES: usize = 64 << 10;
/// The largest L1 table that is read, in bytes (as QEMU has it): a disk of 256 TiB with clusters of 64 KiB takes all of it.
const L1_BYTES_MAX: u64 = 32 << 20;
/// The largest refcount table that is read, in bytes (as QEMU has it).
const REFCOUNT_TABLE_BYTES_MAX: u64 = 8 << 20;
/// The longest name of a backing file.
const NAME_BYTES_MAX: usize = 1023;

/// Incompatible features.
pub(super) mod incompatible {
    /// Refcounts may be wrong.
    pub const DIRTY: u64 = 1;
    /// Found damaged by another program.
    pub const CORRUPT: u64 = 1 << 1;
    /// Data is in another file.
    pub const EXTERNAL_DATA: u64 = 1 << 2;
    /// Clusters are compressed by another method than deflate.
    pub const COMPRESSION: u64 = 1 << 3;
    /// L2 entries of 16 bytes.
    pub const EXTENDED_L2: u64 = 1 << 4;
}

/// Features that a program that does not know them clears when it writes.
pub(super) mod autoclear {
    /// The external data file alone has the disk's contents, without looking at the mapping.
    pub const RAW_EXTERNAL: u64 = 1 << 1;
}

/// Types of header extensions.
pub(super) mod extension {
    /// The backing file's format.
    pub const BACKING_FORMAT: u32 = 0xE279_2ACA;
    /// The external data file's name.
    pub const DATA_FILE: u32 = 0x4441_5441;
}

/// How clusters are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    Deflate,
    Zstd,
}

/// A header whose numbers make sense.
#[derive(Clone, Debug)]
pub(super) struct Header {
    pub version: u32,
    pub cluster_bits: u32,
    /// Bytes of the disk, in whole sectors.
    pub bytes: u64,
    pub l1_entries: usize,
    pub l1_offset: u64,
    pub table_offset: u64,
    pub table_clusters: u64,
    pub snapshots: u32,
    pub snapshots_offset: u64,
    pub incompatible: u64,
    pub autoclear: u64,
    pub refcount_order: u32,
    pub compression: Compression,
    /// The first sector as it is, for changing fields of it.
    pub sector: Vec<u8>,
}

fn corrupt(what: impl std::fmt::Display) -> Error {
    Error::Corrupt(format!("qcow2: {what}"))
}

fn unsupported(what: impl std::fmt::Display) -> Error {
    Error::Unsupported(format!("qcow2: {what}"))
}

/// What another file a file refers to.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct References {
    /// The backing file's name, as it is written in the image.
    pub backing: Option<Vec<u8>>,
    /// The backing file's format, as it is written in the image.
    pub backing_format: Option<Vec<u8>>,
    /// Data is in another file.
    pub external_data: bool,
    /// That file's name, as it is written in the image.
    pub data_file: Option<Vec<u8>>,
}

/// What other files a qcow2 file refers to, from its first bytes. `None` when it is no qcow2 file.
///
/// # Errors
/// [`Error::Corrupt`] when a name does not lie in these bytes, or is too long.
pub fn references(head: &[u8]) -> Result<Option<References>> {
    if head.get(..4) != Some(&MAGIC) {
        return Ok(None);
    }
    let mut found = References::default();
    let version = be32(head, 4);
    let (at, len) = (be64(head, 8), be32(head, 16) as usize);
    if at != 0 && len != 0 {
        let range = usize::try_from(at)
            .ok()
            .and_then(|at| Some(at..at.checked_add(len)?));
        let name = range.and_then(|range| head.get(range));
        let name = name.filter(|_| len <= NAME_BYTES_MAX);
        let name = name.ok_or_else(|| corrupt("the backing file's name is not in the header"))?;
        found.backing = Some(name.to_vec());
    }
    if version >= 3 {
        found.external_data = be64(head, 72) & incompatible::EXTERNAL_DATA != 0;
    }
    let mut at = if version >= 3 {
        be32(head, 100) as usize
    } else {
        72
    };
    // Each extension takes eight bytes at least, so this ends.
    while let Some(rest) = head.get(at..).filter(|rest| rest.len() >= 8) {
        let (kind, len) = (be32(rest, 0), be32(rest, 4) as usize);
        let Some(data) = rest.get(8..).and_then(|rest| rest.get(..len)) else {
            break;
        };
        match kind {
            0 => break,
            extension::BACKING_FORMAT => found.backing_format = Some(data.to_vec()),
            extension::DATA_FILE if len > NAME_BYTES_MAX => {
                return Err(corrupt("the external data file's name is too long"));
            }
            extension::DATA_FILE => found.data_file = Some(data.to_vec()),
            _ => {}
        }
        at += 8 + len.next_multiple_of(8);
    }
    Ok(Some(found))
}

impl Header {
    /// Reads a header from a file's first bytes; `file_bytes` is the file's size.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Unsupported`].
    pub fn parse(head: &[u8], file_bytes: u64) -> Result<Self> {
        let version = be32(head, 4);
        if !(2..=3).contains(&version) {
            return Err(unsupported(format_args!("version {version}")));
        }
        let cluster_bits = be32(head, 20);
        if !(9..=21).contains(&cluster_bits) {
            return Err(corrupt(format_args!("clusters of 2^{cluster_bits} bytes")));
        }
        let bytes = be64(head, 24);
        if bytes > 1 << 60 {
            return Err(corrupt(format_args!("a disk of {bytes} bytes")));
        }
        if be32(head, 32) != 0 {
            return Err(unsupported("it is encrypted"));
        }
        let three = version == 3;
        let field = |at| if three { be64(head, at) } else { 0 };
        let (incompatible, autoclear) = (field(72), field(88));
        let known = incompatible::DIRTY
            | incompatible::CORRUPT
            | incompatible::EXTERNAL_DATA
            | incompatible::COMPRESSION;
        if incompatible & incompatible::EXTENDED_L2 != 0 {
            return Err(unsupported("it has extended L2 entries (subclusters)"));
        }
        if incompatible & !known != 0 {
            return Err(unsupported(format_args!(
                "unknown incompatible features {:#x}",
                incompatible & !known
            )));
        }
        let refcount_order = if three { be32(head, 96) } else { 4 };
        let header_bytes = if three { be32(head, 100) } else { 72 };
        if refcount_order > 6 || (three && header_bytes < 104) || header_bytes > 1 << cluster_bits {
            return Err(corrupt(format_args!(
                "refcounts of 2^{refcount_order} bits, a header of {header_bytes} bytes"
            )));
        }
        let method = match head.get(104) {
            Some(method) if three && header_bytes > 104 => *method,
            _ => 0,
        };
        let compression = match method {
            0 => Compression::Deflate,
            1 => Compression::Zstd,
            other => return Err(unsupported(format_args!("compression method {other}"))),
        };
        let cluster = 1u64 << cluster_bits;
        let (l1_entries, l1_offset) = (u64::from(be32(head, 36)), be64(head, 40));
        // An L2 table is one cluster of entries of eight bytes.
        let needed = bytes.div_ceil(cluster << (cluster_bits - 3));
        let in_file = |at: u64, len: u64| {
            at.is_multiple_of(cluster) && at.checked_add(len).is_some_and(|end| end <= file_bytes)
        };
        if l1_entries < needed
            || l1_entries * 8 > L1_BYTES_MAX
            || !in_file(l1_offset, l1_entries * 8)
        {
            return Err(corrupt(format_args!(
                "an L1 table of {l1_entries} entries at byte {l1_offset}; the disk needs {needed}, the file has {file_bytes} bytes"
            )));
        }
        let (table_offset, table_clusters) = (be64(head, 48), u64::from(be32(head, 56)));
        let table_bytes = table_clusters * cluster;
        if table_bytes == 0
            || table_bytes > REFCOUNT_TABLE_BYTES_MAX
            || !in_file(table_offset, table_bytes)
        {
            return Err(corrupt(format_args!(
                "a refcount table of {table_bytes} bytes at byte {table_offset}; the file has {file_bytes} bytes"
            )));
        }
        let overlap = |a: u64, a_len: u64, b: u64, b_len: u64| a < b + b_len && b < a + a_len;
        let l1_bytes = (l1_entries * 8).next_multiple_of(cluster);
        if (l1_entries > 0 && overlap(0, cluster, l1_offset, l1_bytes))
            || overlap(0, cluster, table_offset, table_bytes)
            || (l1_entries > 0 && overlap(l1_offset, l1_bytes, table_offset, table_bytes))
        {
            return Err(corrupt("header, L1 table and refcount table overlap"));
        }
        Ok(Header {
            version,
            cluster_bits,
            bytes: bytes & !511,
            l1_entries: l1_entries as usize,
            l1_offset,
            table_offset,
            table_clusters,
            snapshots: be32(head, 60),
            snapshots_offset: be64(head, 64),
            incompatible,
            autoclear,
            refcount_order,
            compression,
            sector: head[..512].to_vec(),
        })
    }
}
