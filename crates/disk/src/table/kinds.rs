//! Names of partition types.
//!
//! Sources: UEFI specification 2.10, table 5.7; the Discoverable Partitions Specification; fdisk(8).

use super::PartitionType;

/// GPT types by name.
const GUIDS: [(&str, &str); 14] = [
    ("c12a7328-f81f-11d2-ba4b-00a0c93ec93b", "EFI system"),
    ("0fc63daf-8483-4772-8e79-3d69d8477de4", "Linux data"),
    (
        "4f68bce3-e8cd-4db1-96e7-fbcaf984b709",
        "Linux root (x86-64)",
    ),
    ("b921b045-1df0-41c3-af44-4c6f280d3fae", "Linux root (ARM64)"),
    (
        "72ec70a6-cf74-40e6-bd49-4bda08e8f224",
        "Linux root (RISC-V 64)",
    ),
    ("933ac7e1-2eb4-4f13-b844-0e14e2aef915", "Linux home"),
    ("3b8f8425-20e0-4f3b-907f-1a25a76f98e8", "Linux server data"),
    (
        "4d21b016-b534-45c2-a9fb-5c16e091fd2d",
        "Linux variable data",
    ),
    (
        "bc13c2ff-59e6-4262-a352-b275fd6f7172",
        "Linux extended boot",
    ),
    ("0657fd6d-a4ab-43c4-84e5-0933c84b4f4f", "Linux swap"),
    ("e6d6d379-f507-44c2-a23c-238f2a3df928", "Linux LVM"),
    ("a19d880f-05fc-4d3b-a006-743f0f84911e", "Linux RAID"),
    ("21686148-6449-6e6f-744e-656564454649", "BIOS boot"),
    (
        "ebd0a0a2-b9e5-4433-87c0-68b6b72699c7",
        "Microsoft basic data",
    ),
];

/// MBR types by name.
const BYTES: [(u8, &str); 16] = [
    (0x01, "FAT12"),
    (0x04, "FAT16 <32M"),
    (0x05, "extended"),
    (0x06, "FAT16"),
    (0x07, "NTFS or exFAT"),
    (0x0B, "FAT32"),
    (0x0C, "FAT32 (LBA)"),
    (0x0E, "FAT16 (LBA)"),
    (0x0F, "extended (LBA)"),
    (0x82, "Linux swap"),
    (0x83, "Linux"),
    (0x85, "Linux extended"),
    (0x8E, "Linux LVM"),
    (0xEE, "GPT"),
    (0xEF, "EFI system"),
    (0xFD, "Linux RAID"),
];

/// A GUID as text: the first three fields are little-endian on the disk.
#[must_use]
pub fn guid_text(guid: &[u8; 16]) -> String {
    const ORDER: [usize; 16] = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];
    let mut text = String::with_capacity(36);
    for (index, at) in ORDER.into_iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{:02x}", guid[at]));
    }
    text
}

/// The type as text, and what it is called, if it is known.
#[must_use]
pub fn type_name(kind: PartitionType) -> (String, Option<&'static str>) {
    match kind {
        PartitionType::Guid(guid) => {
            let text = guid_text(&guid);
            let name = GUIDS
                .iter()
                .find(|(guid, _)| *guid == text)
                .map(|(_, n)| *n);
            (text, name)
        }
        PartitionType::Byte(byte) => {
            let name = BYTES.iter().find(|(b, _)| *b == byte).map(|(_, n)| *n);
            (format!("0x{byte:02x}"), name)
        }
    }
}
