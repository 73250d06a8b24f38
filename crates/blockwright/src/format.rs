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

/// Signatures of what people open by mistake, to tell them what it is: offset, bytes, name.
const STRANGERS: [(usize, &[u8], &str); 9] = [
    (0, b"XFSB", "an XFS volume"),
    (0x10040, b"_BHRfS_M", "a Btrfs volume"),
    (0, b"hsqs", "a SquashFS image"),
    (0x400, &[0xE2, 0xE1, 0xF5, 0xE0], "an EROFS image"),
    (0, b"QFI\xFB", "a QCOW2 image: a raw one is needed"),
    (0, b"LUKS\xBA\xBE", "an encrypted (LUKS) volume"),
    (0x52, b"FAT32", "a FAT volume"),
    (3, b"NTFS    ", "an NTFS volume"),
    (0x8001, b"CD001", "an ISO 9660 image"),
];

/// Finds out which format a device holds.
///
/// # Errors
/// `Io`; `Corrupt` when the device is too small for anything; `UnsupportedFeature` when it holds nothing this
/// library knows (naming what it is, if that is known).
pub(crate) fn detect(device: &SharedDevice) -> Result<Format> {
    const HEAD: u64 = 0x10080;
    let geometry = device.geometry();
    let unit = u64::from(geometry.logical_block_bytes).max(512);
    let bytes = HEAD
        .next_multiple_of(unit)
        .min(geometry.bytes / unit * unit);
    if bytes < 2048 {
        return Err(Error::new(
            ErrorKind::Corrupt,
            "too small for any file system",
        ));
    }
    let mut head = vec![0u8; bytes as usize];
    device.read_at(DevOffset(0), &mut head)?;
    if head.get(0x438..0x43A) == Some(&[0x53, 0xEF]) {
        return Ok(Format::Ext4);
    }
    // In either superblock: the first may be damaged.
    for at in [0x400, 0x1400] {
        if head.get(at..at + 4) == Some(&[0x10, 0x20, 0xF5, 0xF2]) {
            return Ok(Format::F2fs);
        }
    }
    for (at, magic, name) in STRANGERS {
        if head.get(at..at + magic.len()) == Some(magic) {
            return Err(Error::new(
                ErrorKind::UnsupportedFeature,
                format!("this is {name}"),
            ));
        }
    }
    if let Some(starts) = partitions(&head) {
        let shown: Vec<String> = starts.iter().take(4).map(u64::to_string).collect();
        let what = match &shown[..] {
            [] => "this is a disk with partitions: `mount -o offset=BYTES` mounts one".to_owned(),
            shown => format!(
                "this is a disk with partitions, at the bytes {}{}: `mount -o offset={}` mounts the first",
                shown.join(", "),
                if starts.len() > shown.len() {
                    " …"
                } else {
                    ""
                },
                shown[0],
            ),
        };
        return Err(Error::new(ErrorKind::UnsupportedFeature, what));
    }
    let what = if head.iter().all(|b| *b == 0) {
        "no file system: only zeroes where one begins"
    } else {
        "no file system that is known here (neither ext4's magic at byte 1080 nor f2fs's at byte 1024)"
    };
    Err(Error::new(ErrorKind::UnsupportedFeature, what))
}

/// Where the partitions of a disk begin, in bytes; `None` when it has no table of partitions. Sectors have 512 bytes, as in
/// all images but those of 4Kn disks.
fn partitions(head: &[u8]) -> Option<Vec<u64>> {
    const SECTOR: u64 = 512;
    let word = |at: usize| Some(u32::from_le_bytes(head.get(at..at + 4)?.try_into().ok()?));
    let long = |at: usize| Some(u64::from_le_bytes(head.get(at..at + 8)?.try_into().ok()?));
    if head.get(0x200..0x208) == Some(b"EFI PART") {
        let table = usize::try_from(long(0x248)?.checked_mul(SECTOR)?).ok()?;
        let (count, size) = (word(0x250)?.min(128) as usize, word(0x254)? as usize);
        let start = |n: usize| {
            let at = table.checked_add(n.checked_mul(size)?)?;
            // An entry without a kind is free.
            let used = head.get(at..at.checked_add(16)?)?.iter().any(|b| *b != 0);
            if used {
                long(at + 32)?.checked_mul(SECTOR)
            } else {
                None
            }
        };
        return Some((0..count).filter_map(start).collect());
    }
    if head.get(0x1FE..0x200) != Some(&[0x55, 0xAA]) {
        return None;
    }
    // Boot code of other formats ends with the same mark: every entry must make sense.
    let mut starts = Vec::new();
    for at in (0x1BE..0x1FE).step_by(16) {
        let (active, kind) = (head[at], head[at + 4]);
        let (first, sectors) = (word(at + 8)?, word(at + 12)?);
        if active & 0x7F != 0 || (kind != 0) != (sectors != 0) || (kind != 0 && first == 0) {
            return None;
        }
        if kind != 0 {
            starts.push(u64::from(first) * SECTOR);
        }
    }
    (!starts.is_empty()).then_some(starts)
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
