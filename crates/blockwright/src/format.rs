//! Which format a device holds.

use crate::{Error, ErrorKind, Result};
use blockwright_device::{DevOffset, SharedDevice};
use std::fmt;

/// A format this library reads and writes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Format {
    /// ext2, ext3 and ext4, which differ in features only.
    Ext4,
    /// f2fs.
    F2fs,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Ext4 => "ext4",
            Format::F2fs => "f2fs",
        })
    }
}

/// Finds out which format a device holds.
///
/// # Errors
/// `Io`; `Corrupt` when the device is too small for anything; `UnsupportedFeature` when it holds nothing this
/// library knows (naming what it is, if that is known).
pub(crate) fn detect(device: &SharedDevice) -> Result<Format> {
    // Both superblocks of f2fs end here. Only what is foreign needs a larger read.
    const SUPERBLOCKS: u64 = 0x2000;
    let head = head_of(device, SUPERBLOCKS)?;
    if head.len() < 2048 {
        return Err(Error::new(
            ErrorKind::Corrupt,
            "too small for any file system",
        ));
    }
    if head.get(0x438..0x43A) == Some(&[0x53, 0xEF]) {
        return Ok(Format::Ext4);
    }
    // In either superblock: the first may be damaged.
    for at in [0x400, 0x1400] {
        if head.get(at..at + 4) == Some(&[0x10, 0x20, 0xF5, 0xF2]) {
            return Ok(Format::F2fs);
        }
    }
    let head = head_of(device, HEAD)?;
    #[cfg(feature = "disk")]
    if let Some(what) = foreign(device, &head)? {
        return Err(Error::new(ErrorKind::UnsupportedFeature, what));
    }
    let what = if head.iter().all(|b| *b == 0) {
        "no file system: only zeroes where one begins"
    } else {
        "no file system that blockwright knows (neither ext4's magic at byte 1080 nor f2fs's at byte 1024)"
    };
    Err(Error::new(ErrorKind::UnsupportedFeature, what))
}

/// What a device holds that is no file system of this library, in words: a disk with partitions, or another known format.
///
/// A message of what is missing ("no superblock") helps less than one of what is there. So front ends that read superblocks
/// themselves ask this when they found none.
///
/// # Errors
/// `Io`.
#[cfg(feature = "disk")]
pub fn foreign_contents(device: &SharedDevice) -> Result<Option<String>> {
    let head = head_of(device, HEAD)?;
    foreign(device, &head)
}

/// The bytes at the beginning of a device by which foreign formats are known.
const HEAD: u64 = 0x10080;

/// So many bytes at the beginning of a device, or a few more; fewer of a smaller device.
fn head_of(device: &SharedDevice, bytes: u64) -> Result<Vec<u8>> {
    let geometry = device.geometry();
    let unit = u64::from(geometry.logical_block_bytes).max(512);
    let bytes = bytes
        .next_multiple_of(unit)
        .min(geometry.bytes / unit * unit);
    let mut head = vec![0u8; bytes as usize];
    device.read_at(DevOffset(0), &mut head)?;
    Ok(head)
}

#[cfg(feature = "disk")]
fn foreign(device: &SharedDevice, head: &[u8]) -> Result<Option<String>> {
    if let Some(contents) = blockwright_disk::probe::of_head(head) {
        return Ok(Some(format!("this is {}", contents.noun)));
    }
    let Some(table) =
        blockwright_disk::Table::read(device).map_err(blockwright_device::DeviceError::from)?
    else {
        return Ok(None);
    };
    let first = table.partitions.iter().find(|p| p.problem.is_none());
    let hint = match first {
        Some(p) => format!(": `:p{}` behind the image's name selects one", p.number),
        None => String::new(),
    };
    let listed = table.listed();
    Ok(Some(format!(
        "this is a disk with partitions; {listed}{hint}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockwright_device::{Flags, MemoryDevice};
    use std::sync::Arc;

    #[test]
    fn strangers_are_named() {
        let device: SharedDevice = Arc::new(MemoryDevice::new(1 << 20));
        assert!(
            detect(&device)
                .expect_err("empty")
                .to_string()
                .contains("only zeroes")
        );
        let mut block = vec![0u8; 512];
        block[..4].copy_from_slice(b"XFSB");
        device
            .write_at(DevOffset(0), &block, Flags::empty())
            .expect("written");
        #[cfg(feature = "disk")]
        assert!(
            detect(&device)
                .expect_err("XFS")
                .to_string()
                .contains("XFS")
        );
        let mut block = vec![0u8; 512];
        block[0x38..0x3A].copy_from_slice(&[0x53, 0xEF]);
        device
            .write_at(DevOffset(1024), &block, Flags::empty())
            .expect("written");
        assert_eq!(detect(&device).expect("ext4"), Format::Ext4);
        let mut block = vec![0u8; 512];
        block[..4].copy_from_slice(&[0x10, 0x20, 0xF5, 0xF2]);
        for at in [0x1400, 0x400] {
            let device: SharedDevice = Arc::new(MemoryDevice::new(1 << 20));
            device
                .write_at(DevOffset(at), &block, Flags::empty())
                .expect("written");
            assert_eq!(detect(&device).expect("f2fs"), Format::F2fs);
        }
        let tiny: SharedDevice = Arc::new(MemoryDevice::new(512));
        assert_eq!(detect(&tiny).expect_err("tiny").kind(), ErrorKind::Corrupt);
    }
}
