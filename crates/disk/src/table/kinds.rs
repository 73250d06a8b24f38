//! Names of partition types.
//!
//! Sources: UEFI specification 2.10, table 5.7; the Discoverable Partitions Specification; fdisk(8).

use super::{PartitionType, Scheme};

const ESP: &str = "c12a7328-f81f-11d2-ba4b-00a0c93ec93b";
const LINUX: &str = "0fc63daf-8483-4772-8e79-3d69d8477de4";
const ROOT_X86_64: &str = "4f68bce3-e8cd-4db1-96e7-fbcaf984b709";
const ROOT_ARM64: &str = "b921b045-1df0-41c3-af44-4c6f280d3fae";
const ROOT_RISCV64: &str = "72ec70a6-cf74-40e6-bd49-4bda08e8f224";
const ROOT_X86: &str = "44479540-f297-41b2-9af7-d131d5f0458a";
const ROOT_ARM: &str = "69dad710-2ce4-4e3c-b16c-21a1d49abed3";
const HOME: &str = "933ac7e1-2eb4-4f13-b844-0e14e2aef915";
const SERVER: &str = "3b8f8425-20e0-4f3b-907f-1a25a76f98e8";
const SWAP: &str = "0657fd6d-a4ab-43c4-84e5-0933c84b4f4f";
const EXTENDED_BOOT: &str = "bc13c2ff-59e6-4262-a352-b275fd6f7172";
const BIOS_BOOT: &str = "21686148-6449-6e6f-744e-656564454649";
const BASIC_DATA: &str = "ebd0a0a2-b9e5-4433-87c0-68b6b72699c7";

/// GPT types by name.
const GUIDS: [(&str, &str); 16] = [
    (ESP, "EFI system"),
    (LINUX, "Linux data"),
    (ROOT_X86_64, "Linux root (x86-64)"),
    (ROOT_ARM64, "Linux root (ARM64)"),
    (ROOT_RISCV64, "Linux root (RISC-V 64)"),
    (ROOT_X86, "Linux root (x86)"),
    (ROOT_ARM, "Linux root (ARM)"),
    (HOME, "Linux home"),
    (SERVER, "Linux server data"),
    (
        "4d21b016-b534-45c2-a9fb-5c16e091fd2d",
        "Linux variable data",
    ),
    (EXTENDED_BOOT, "Linux extended boot"),
    (SWAP, "Linux swap"),
    ("e6d6d379-f507-44c2-a23c-238f2a3df928", "Linux LVM"),
    ("a19d880f-05fc-4d3b-a006-743f0f84911e", "Linux RAID"),
    (BIOS_BOOT, "BIOS boot"),
    (BASIC_DATA, "Microsoft basic data"),
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

/// A processor that a system is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Architecture {
    /// `x86_64`
    X86_64,
    /// `x86`
    X86,
    /// `aarch64`
    Arm64,
    /// `arm`
    Arm,
    /// `riscv64`
    RiscV64,
}

impl Architecture {
    /// By the name that Rust, and mostly `uname -m`, have for it; Debian's names are known as well.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "x86_64" | "amd64" => Self::X86_64,
            "x86" | "i386" | "i686" => Self::X86,
            "aarch64" | "arm64" => Self::Arm64,
            "arm" | "armhf" | "armv7l" => Self::Arm,
            "riscv64" => Self::RiscV64,
            _ => return None,
        })
    }

    /// This machine's.
    #[must_use]
    pub fn host() -> Option<Self> {
        Self::parse(std::env::consts::ARCH)
    }
}

/// The purpose of a partition. It decides the type that the table says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Purpose {
    /// The EFI system partition.
    Esp,
    /// The root volume of a system for a processor; `None` where there is no type for it.
    Root(Option<Architecture>),
    /// `/home`.
    Home,
    /// `/srv`.
    Server,
    /// Swap space.
    Swap,
    /// `/boot` beside the EFI system partition.
    ExtendedBoot,
    /// Room for a boot loader's code.
    BiosBoot,
    /// Any volume of Linux.
    Linux,
    /// Any FAT volume.
    BasicData,
}

impl Purpose {
    /// The purpose of a partition with this name, by the words of the Discoverable Partitions Specification; `root` is for
    /// `architecture`.
    #[must_use]
    pub fn of_name(name: &str, architecture: Option<Architecture>) -> Option<Self> {
        Some(match name {
            "esp" | "efi" => Self::Esp,
            "root" => Self::Root(architecture),
            "home" => Self::Home,
            "srv" => Self::Server,
            "swap" => Self::Swap,
            "boot" | "xbootldr" => Self::ExtendedBoot,
            "bios" => Self::BiosBoot,
            _ => return None,
        })
    }

    /// The type in a table.
    #[must_use]
    pub fn kind(self, scheme: Scheme) -> PartitionType {
        match scheme {
            Scheme::Gpt => {
                let text = match self {
                    Self::Esp => ESP,
                    Self::Root(Some(Architecture::X86_64)) => ROOT_X86_64,
                    Self::Root(Some(Architecture::X86)) => ROOT_X86,
                    Self::Root(Some(Architecture::Arm64)) => ROOT_ARM64,
                    Self::Root(Some(Architecture::Arm)) => ROOT_ARM,
                    Self::Root(Some(Architecture::RiscV64)) => ROOT_RISCV64,
                    Self::Root(None) | Self::Linux => LINUX,
                    Self::Home => HOME,
                    Self::Server => SERVER,
                    Self::Swap => SWAP,
                    Self::ExtendedBoot => EXTENDED_BOOT,
                    Self::BiosBoot => BIOS_BOOT,
                    Self::BasicData => BASIC_DATA,
                };
                // All of them are GUIDs: see the tests.
                PartitionType::Guid(parse_guid(text).unwrap_or_default())
            }
            Scheme::Mbr => PartitionType::Byte(match self {
                Self::Esp => 0xEF,
                Self::Swap => 0x82,
                Self::BasicData => 0x0C,
                _ => 0x83,
            }),
        }
    }
}

/// Where each byte of a GUID's text is on the disk: the first three fields are little-endian there.
const ORDER: [usize; 16] = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];

/// A GUID from its text, in the order of the bytes on the disk.
#[must_use]
pub fn parse_guid(text: &str) -> Option<[u8; 16]> {
    let digits: Option<Vec<u32>> = text
        .chars()
        .filter(|&c| c != '-')
        .map(|c| c.to_digit(16))
        .collect();
    let digits = digits.filter(|digits| digits.len() == 32)?;
    let mut guid = [0; 16];
    for (pair, at) in digits.chunks_exact(2).zip(ORDER) {
        guid[at] = (pair[0] << 4 | pair[1]) as u8;
    }
    Some(guid)
}

/// A GUID as text: the first three fields are little-endian on the disk.
#[must_use]
pub fn guid_text(guid: &[u8; 16]) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_types_are_guids() {
        for (text, name) in GUIDS {
            let guid = parse_guid(text).unwrap_or_else(|| panic!("{name}"));
            assert_eq!(guid_text(&guid), text);
        }
        assert_eq!(parse_guid("c12a7328"), None);
        assert_eq!(parse_guid("x12a7328-f81f-11d2-ba4b-00a0c93ec93b"), None);
    }

    #[test]
    fn types_by_name() {
        let named = |name| {
            let purpose =
                Purpose::of_name(name, Some(Architecture::Arm64)).unwrap_or(Purpose::Linux);
            (
                type_name(purpose.kind(Scheme::Gpt)).1,
                type_name(purpose.kind(Scheme::Mbr)).1,
            )
        };
        assert_eq!(named("esp"), (Some("EFI system"), Some("EFI system")));
        assert_eq!(named("root"), (Some("Linux root (ARM64)"), Some("Linux")));
        assert_eq!(named("swap"), (Some("Linux swap"), Some("Linux swap")));
        assert_eq!(named("data"), (Some("Linux data"), Some("Linux")));
    }
}
