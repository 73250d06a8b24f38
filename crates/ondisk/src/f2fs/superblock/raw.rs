//! The superblock as it is stored: layout, constants, and values that need no validation.

use std::mem::{offset_of, size_of};

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::f2fs::checksum;
use crate::f2fs::error::FormatError;
use crate::f2fs::features::Features;
use crate::f2fs::types::{BLOCK_SIZE, Log};

/// Byte offset of each copy in its block.
pub const SUPERBLOCK_OFFSET: usize = 1024;
/// Bytes of the structure.
pub const SUPERBLOCK_SIZE: usize = size_of::<RawSuperblock>();
/// Entries of the list of extensions.
pub const EXTENSIONS_MAX: usize = 64;
/// Bytes per extension, NUL-padded.
pub const EXTENSION_LEN: usize = 8;
/// UTF-16 units of the label.
pub const LABEL_UNITS: usize = 512;
/// Devices a volume may span.
pub const DEVICES_MAX: usize = 8;
/// Most segments of a volume: 16 TiB.
pub const SEGMENTS_MAX: u32 = 8 << 20;
/// Fewest segments of a volume: each area has one, the main area one for each log.
pub const SEGMENTS_MIN: u32 = 9;
/// `s_encoding` of UTF-8 as of Unicode 12.1.
pub const ENCODING_UTF8_12_1: u16 = 1;
/// `s_encoding_flags`: names that are not UTF-8 are refused.
pub const ENCODING_STRICT: u16 = 1;

/// One of several devices of a volume.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawDevice {
    pub path: [u8; 64],
    pub total_segments: U32,
}

/// The superblock. Fields keep their published names.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawSuperblock {
    pub magic: U32,
    pub major_ver: U16,
    pub minor_ver: U16,
    pub log_sectorsize: U32,
    pub log_sectors_per_block: U32,
    pub log_blocksize: U32,
    pub log_blocks_per_seg: U32,
    pub segs_per_sec: U32,
    pub secs_per_zone: U32,
    pub checksum_offset: U32,
    pub block_count: U64,
    pub section_count: U32,
    pub segment_count: U32,
    pub segment_count_ckpt: U32,
    pub segment_count_sit: U32,
    pub segment_count_nat: U32,
    pub segment_count_ssa: U32,
    pub segment_count_main: U32,
    pub segment0_blkaddr: U32,
    pub cp_blkaddr: U32,
    pub sit_blkaddr: U32,
    pub nat_blkaddr: U32,
    pub ssa_blkaddr: U32,
    pub main_blkaddr: U32,
    pub root_ino: U32,
    pub node_ino: U32,
    pub meta_ino: U32,
    pub uuid: [u8; 16],
    pub volume_name: [U16; LABEL_UNITS],
    pub extension_count: U32,
    pub extension_list: [[u8; EXTENSION_LEN]; EXTENSIONS_MAX],
    pub cp_payload: U32,
    pub version: [u8; 256],
    pub init_version: [u8; 256],
    pub feature: U32,
    pub encryption_level: u8,
    pub encrypt_pw_salt: [u8; 16],
    pub devs: [RawDevice; DEVICES_MAX],
    pub qf_ino: [U32; 3],
    pub hot_ext_count: u8,
    pub s_encoding: U16,
    pub s_encoding_flags: U16,
    pub s_stop_reason: [u8; 32],
    pub s_errors: [u8; 16],
    pub reserved: [u8; 258],
    pub crc: U32,
}

const _: () = {
    assert!(size_of::<RawSuperblock>() == 3072);
    assert!(offset_of!(RawSuperblock, block_count) == 36);
    assert!(offset_of!(RawSuperblock, segment0_blkaddr) == 72);
    assert!(offset_of!(RawSuperblock, uuid) == 108);
    assert!(offset_of!(RawSuperblock, volume_name) == 124);
    assert!(offset_of!(RawSuperblock, extension_count) == 1148);
    assert!(offset_of!(RawSuperblock, cp_payload) == 1664);
    assert!(offset_of!(RawSuperblock, version) == 1668);
    assert!(offset_of!(RawSuperblock, feature) == 2180);
    assert!(offset_of!(RawSuperblock, devs) == 2201);
    assert!(offset_of!(RawSuperblock, qf_ino) == 2745);
    assert!(offset_of!(RawSuperblock, s_encoding) == 2758);
    assert!(offset_of!(RawSuperblock, s_stop_reason) == 2762);
    assert!(offset_of!(RawSuperblock, crc) == 3068);
};

/// Offset of the checksum, and the only value `checksum_offset` may have with `sb_checksum`.
pub const CRC_OFFSET: usize = offset_of!(RawSuperblock, crc);

/// An extension as it is stored, with zero bytes behind it.
type Extension = [u8; EXTENSION_LEN];

fn extension_text(raw: &Extension) -> &[u8] {
    let len = raw.iter().position(|b| *b == 0);
    &raw[..len.unwrap_or(EXTENSION_LEN)]
}

/// See [`RawSuperblock::temperature`].
fn has_extension(name: &[u8], extension: &[u8]) -> bool {
    let dots = name.iter().enumerate().skip(1);
    dots.filter(|(_, b)| **b == b'.').any(|(at, _)| {
        name.get(at + 1..at + 1 + extension.len())
            .is_some_and(|part| part.eq_ignore_ascii_case(extension))
    })
}

impl RawSuperblock {
    /// All-zero superblock, the starting point for making a volume.
    #[must_use]
    pub fn zeroed() -> Self {
        Self::new_zeroed()
    }

    /// Copy of the structure in a superblock's block, or in anything that begins with such a block.
    ///
    /// # Errors
    /// [`FormatError::Truncated`].
    pub fn read(block: &[u8]) -> Result<Self, FormatError> {
        let short = || FormatError::Truncated {
            structure: "superblock",
            needed: SUPERBLOCK_OFFSET + SUPERBLOCK_SIZE,
            found: block.len(),
        };
        let bytes = block.get(SUPERBLOCK_OFFSET..).ok_or_else(short)?;
        Self::read_from_prefix(bytes)
            .map(|(raw, _)| raw)
            .map_err(|_| short())
    }

    /// The structure as bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; SUPERBLOCK_SIZE] {
        zerocopy::transmute!(*self)
    }

    /// A whole block with this superblock in it.
    #[must_use]
    pub fn to_block(&self) -> Vec<u8> {
        let mut block = vec![0; BLOCK_SIZE];
        block[SUPERBLOCK_OFFSET..SUPERBLOCK_OFFSET + SUPERBLOCK_SIZE]
            .copy_from_slice(self.as_bytes());
        block
    }

    /// The features.
    #[must_use]
    pub fn features(&self) -> Features {
        Features::from_bits_retain(self.feature.get())
    }

    /// The label, up to its first NUL; what is not UTF-16 is replaced.
    #[must_use]
    pub fn label(&self) -> String {
        let units = self.volume_name.iter().map(|u| u.get());
        char::decode_utf16(units.take_while(|u| *u != 0))
            .map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER))
            .collect()
    }

    /// Stores a label. `None`, and nothing changed, when it is too long (a NUL ends it) or holds a NUL.
    #[must_use]
    pub fn set_label(&mut self, label: &str) -> Option<()> {
        let units: Vec<u16> = label.encode_utf16().collect();
        if units.len() >= LABEL_UNITS || units.contains(&0) {
            return None;
        }
        self.volume_name = [U16::ZERO; LABEL_UNITS];
        for (to, from) in self.volume_name.iter_mut().zip(units) {
            to.set(from);
        }
        Some(())
    }

    /// The extensions that make files cold or hot: cold ones first, then `hot_ext_count` hot ones.
    /// Counts past the list are cut.
    #[must_use]
    pub fn extensions(&self) -> (Vec<&[u8]>, Vec<&[u8]>) {
        let (cold, hot) = self.extension_lists();
        (
            cold.iter().map(extension_text).collect(),
            hot.iter().map(extension_text).collect(),
        )
    }

    fn extension_lists(&self) -> (&[Extension], &[Extension]) {
        let cold = self.extension_count.get().min(EXTENSIONS_MAX as u32) as usize;
        let hot = (cold + usize::from(self.hot_ext_count)).min(EXTENSIONS_MAX);
        (
            &self.extension_list[..cold],
            &self.extension_list[cold..hot],
        )
    }

    /// The log for the data of a file that is created with this name: the volume's lists of extensions name cold and hot files. An extension
    /// counts wherever a part of the name behind a dot (but the first byte) begins with it, in any case of letters: so `x.mp4.part`, which
    /// is still being downloaded, does, and `mp` stands for all of its kind.
    #[must_use]
    pub fn temperature(&self, name: &[u8]) -> Log {
        if !name.contains(&b'.') {
            return Log::WarmData;
        }
        let (cold, hot) = self.extension_lists();
        let has = |raw: &Extension| has_extension(name, extension_text(raw));
        if cold.iter().any(has) {
            Log::ColdData
        } else if hot.iter().any(has) {
            Log::HotData
        } else {
            Log::WarmData
        }
    }

    /// Stores lists of extensions. `None`, and nothing changed, when there are too many or one is too
    /// long.
    #[must_use]
    pub fn set_extensions(
        &mut self,
        cold: &[impl AsRef<[u8]>],
        hot: &[impl AsRef<[u8]>],
    ) -> Option<()> {
        let cold_names = cold.iter().map(AsRef::as_ref);
        let hot_names = hot.iter().map(AsRef::as_ref);
        let all = || cold_names.clone().chain(hot_names.clone());
        if all().count() > EXTENSIONS_MAX || all().any(|e: &[u8]| e.len() > EXTENSION_LEN) {
            return None;
        }
        self.extension_list = [[0; EXTENSION_LEN]; EXTENSIONS_MAX];
        for (to, from) in self.extension_list.iter_mut().zip(all()) {
            to[..from.len()].copy_from_slice(from);
        }
        self.extension_count.set(cold.len() as u32);
        self.hot_ext_count = hot.len() as u8;
        Some(())
    }

    /// Checksum of the structure.
    #[must_use]
    pub fn checksum(&self) -> u32 {
        checksum::crc32_magic(&self.as_bytes()[..CRC_OFFSET])
    }

    /// Stores the checksum; nothing without `sb_checksum`.
    pub fn set_checksum(&mut self) {
        if self.features().contains(Features::SB_CHECKSUM) {
            self.checksum_offset.set(CRC_OFFSET as u32);
            self.crc.set(self.checksum());
        }
    }

    /// Verifies the checksum; `Ok` without `sb_checksum`.
    ///
    /// # Errors
    /// [`FormatError::SuperChecksumOffset`], [`FormatError::SuperChecksum`].
    pub fn verify_checksum(&self) -> Result<(), FormatError> {
        if !self.features().contains(Features::SB_CHECKSUM) {
            return Ok(());
        }
        let found = self.checksum_offset.get();
        if found as usize != CRC_OFFSET {
            return Err(FormatError::SuperChecksumOffset { found });
        }
        let (found, expected) = (self.crc.get(), self.checksum());
        if crate::sums_differ(found, expected) {
            return Err(FormatError::SuperChecksum { found, expected });
        }
        Ok(())
    }
}
