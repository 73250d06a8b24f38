//! Entries of L1 and L2 tables. They have eight bytes.

use crate::{Error, Result};

/// Nothing else refers to the cluster.
pub(super) const COPIED: u64 = 1 << 63;
pub(super) const COMPRESSED: u64 = 1 << 62;
pub(super) const ZERO: u64 = 1;
/// Where the cluster is.
pub(super) const OFFSET: u64 = 0x00FF_FFFF_FFFF_FE00;

/// The state of a cluster of the disk in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// What the backing file has; zeroes without one.
    Unallocated,
    /// Zeroes. The host cluster, if it has one, belongs to it.
    Zero { host: Option<u64>, copied: bool },
    /// In the file, uncompressed.
    Data { host: u64, copied: bool },
    /// Compressed bytes from `host` on.
    Compressed { host: u64, bytes: u64 },
}

/// A run of the disk whose clusters are alike and contiguous in the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub entry: Entry,
    /// From the asked offset on.
    pub bytes: u64,
}

/// What an entry of a compressed cluster says.
pub(super) fn compressed(raw: u64, cluster_bits: u32) -> Entry {
    let bits = 62 - (cluster_bits - 8);
    let host = raw & ((1 << bits) - 1);
    let sectors = (raw & (COMPRESSED - 1)) >> bits;
    let bytes = (sectors + 1) * 512 - host % 512;
    Entry::Compressed { host, bytes }
}

/// What an entry says of the cluster at `guest` of a disk whose data is in an external data file.
///
/// # Errors
/// [`Error::Corrupt`]: data is at the same offset there, and is never compressed.
pub(super) fn external(raw: u64, guest: u64) -> Result<Entry> {
    let corrupt = |what: String| Err(Error::Corrupt(format!("qcow2: {what}")));
    if raw & COMPRESSED != 0 {
        return corrupt(format!(
            "byte {guest} of the disk is said to be compressed in the external data file"
        ));
    }
    let (host, copied) = (raw & OFFSET, raw & COPIED != 0);
    // The first cluster is at offset 0 of the data file, so the other bit tells whether it is there.
    let is_there = host != 0 || copied;
    if is_there && host != guest {
        return corrupt(format!(
            "byte {guest} of the disk is said to be at byte {host} of the external data file"
        ));
    }
    Ok(match (raw & ZERO != 0, is_there) {
        (true, _) => Entry::Zero {
            host: None,
            copied: false,
        },
        (false, true) => Entry::Data { host, copied: true },
        (false, false) => Entry::Unallocated,
    })
}
