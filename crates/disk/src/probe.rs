//! Detects the contents of a device by signatures.
//!
//! Sources of the signatures' offsets: each format's documentation. The names are those of blkid(8).

use crate::Result;
use crate::bytes::{array, le16};
use blockwright_device::{DevOffset, DeviceExt, SharedDevice};

/// Where a signature is, what it is, and what it is a signature of: a short name, and a noun for sentences.
const SIGNATURES: [(usize, &[u8], &str, &str); 15] = [
    (0x438, &[0x53, 0xEF], "ext4", "an ext2, ext3 or ext4 volume"),
    (0x400, &[0x10, 0x20, 0xF5, 0xF2], "f2fs", "an f2fs volume"),
    (0x1400, &[0x10, 0x20, 0xF5, 0xF2], "f2fs", "an f2fs volume"),
    (0, b"XFSB", "xfs", "an XFS volume"),
    (0x10040, b"_BHRfS_M", "btrfs", "a Btrfs volume"),
    (0, b"hsqs", "squashfs", "a SquashFS image"),
    (0x400, &[0xE2, 0xE1, 0xF5, 0xE0], "erofs", "an EROFS image"),
    (0, b"LUKS\xBA\xBE", "luks", "an encrypted (LUKS) volume"),
    (0x218, b"LVM2 001", "lvm2", "an LVM2 physical volume"),
    (0x52, b"FAT32   ", "fat32", "a FAT volume"),
    (0x36, b"FAT16   ", "fat16", "a FAT volume"),
    (0x36, b"FAT12   ", "fat12", "a FAT volume"),
    (3, b"NTFS    ", "ntfs", "an NTFS volume"),
    (3, b"EXFAT   ", "exfat", "an exFAT volume"),
    (0x8001, b"CD001", "iso9660", "an ISO 9660 image"),
];

/// Bytes from the beginning that have all signatures.
pub const HEAD_BYTES: u64 = 0x10080;

/// What a device holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    /// The format, as blkid names it.
    pub format: &'static str,
    /// The format in a sentence: `an XFS volume`.
    pub noun: &'static str,
    /// The volume's label, where the format is one whose labels are read here (ext4, f2fs, FAT). Control characters are replaced.
    pub label: String,
}

fn printable(text: &str) -> String {
    let replaced = |c: char| {
        if c.is_control() {
            char::REPLACEMENT_CHARACTER
        } else {
            c
        }
    };
    text.trim_end().chars().map(replaced).collect()
}

fn bytes_label(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    printable(&String::from_utf8_lossy(&bytes[..end]))
}

fn utf16_label(head: &[u8], at: usize) -> String {
    let units = (at..).step_by(2).take(512).map(|at| le16(head, at));
    let text: String = char::decode_utf16(units.take_while(|&u| u != 0))
        .map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER))
        .collect();
    printable(&text)
}

/// The contents that begin with these bytes: [`HEAD_BYTES`] of them, or fewer if there are fewer.
#[must_use]
pub fn of_head(head: &[u8]) -> Option<Contents> {
    let (at, _, format, noun) = SIGNATURES
        .into_iter()
        .find(|(at, magic, ..)| head.get(*at..at + magic.len()) == Some(magic))?;
    let fat = |at| match bytes_label(&array::<11>(head, at)) {
        none if none == "NO NAME" => String::new(),
        label => label,
    };
    let label = match format {
        "ext4" => bytes_label(&array::<16>(head, 0x478)),
        "f2fs" => utf16_label(head, at + 0x7C),
        "fat32" => fat(0x47),
        "fat16" | "fat12" => fat(0x2B),
        _ => String::new(),
    };
    Some(Contents {
        format,
        noun,
        label,
    })
}

/// What a device holds; `None` when it is nothing that is known here.
///
/// # Errors
/// As reading the device.
pub fn contents(device: &SharedDevice) -> Result<Option<Contents>> {
    let geometry = device.geometry();
    let unit = u64::from(geometry.logical_block_bytes);
    let bytes = HEAD_BYTES
        .next_multiple_of(unit)
        .min(geometry.bytes / unit * unit);
    let head = device.read_buf(DevOffset(0), bytes as usize)?;
    Ok(of_head(&head))
}
