//! The SIT: for each segment of the main area, which of its blocks are valid, which log filled it and
//! when. 55 entries of 74 bytes to a block, without checksum.

use std::mem::size_of;
use std::ops::Range;

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::error::FormatError;
use super::types::{BLOCK_SIZE, BLOCKS_PER_SEG, Log, SegNo};

/// Bytes of a segment's bitmap.
pub const MAP_BYTES: usize = BLOCKS_PER_SEG as usize / 8;
const VALID_BITS: u16 = 10;

/// An entry as stored. Fields keep their published names.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawSitEntry {
    pub vblocks: U16,
    pub valid_map: [u8; MAP_BYTES],
    pub mtime: U64,
}

/// Bytes of an entry.
pub const ENTRY_BYTES: usize = size_of::<RawSitEntry>();
/// Entries of a block.
pub const ENTRIES_PER_BLOCK: usize = BLOCK_SIZE / ENTRY_BYTES;

const _: () = {
    assert!(ENTRY_BYTES == 74);
    assert!(ENTRIES_PER_BLOCK == 55);
};

/// Which blocks of a segment are valid. The first block's bit is the most significant of the first
/// byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ValidMap(pub [u8; MAP_BYTES]);

impl Default for ValidMap {
    fn default() -> Self {
        Self([0; MAP_BYTES])
    }
}

impl ValidMap {
    /// Whether a block is valid; never past the end.
    #[must_use]
    pub fn get(&self, offset: u16) -> bool {
        let byte = self.0.get(usize::from(offset) / 8).copied().unwrap_or(0);
        byte & (0x80 >> (offset % 8)) != 0
    }

    /// Makes a block valid or not; nothing past the end.
    pub fn set(&mut self, offset: u16, valid: bool) {
        if let Some(byte) = self.0.get_mut(usize::from(offset) / 8) {
            let bit = 0x80 >> (offset % 8);
            if valid {
                *byte |= bit;
            } else {
                *byte &= !bit;
            }
        }
    }

    /// Makes blocks valid or not; nothing past the end.
    pub fn set_range(&mut self, range: Range<u16>, valid: bool) {
        let mut at = range.start;
        while at < range.end {
            // Whole bytes at once.
            match self.0.get_mut(usize::from(at) / 8) {
                Some(byte) if at.is_multiple_of(8) && range.end - at >= 8 => {
                    *byte = if valid { 0xFF } else { 0 };
                    at += 8;
                }
                Some(_) => {
                    self.set(at, valid);
                    at += 1;
                }
                None => return,
            }
        }
    }

    fn words(&self) -> impl Iterator<Item = u64> {
        self.0
            .chunks_exact(8)
            .map(|word| word.try_into().map_or(0, u64::from_ne_bytes))
    }

    /// Valid blocks.
    #[must_use]
    pub fn count(&self) -> u16 {
        self.words().map(|word| word.count_ones() as u16).sum()
    }

    /// Whether no block is valid.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words().all(|word| word == 0)
    }
}

/// A segment's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SitEntry {
    /// Which log filled it; means nothing for a free segment.
    pub log: Log,
    /// Its valid blocks.
    pub valid: ValidMap,
    /// When it was last written, in seconds of the volume's mounted time.
    pub mtime: u64,
}

impl SitEntry {
    /// A free segment.
    #[must_use]
    pub fn free() -> Self {
        Self {
            log: Log::HotData,
            valid: ValidMap::default(),
            mtime: 0,
        }
    }

    /// From the stored form of segment `seg`.
    ///
    /// # Errors
    /// [`FormatError::SitType`], [`FormatError::SitCount`].
    pub fn parse(raw: &RawSitEntry, seg: SegNo) -> Result<Self, FormatError> {
        let word = raw.vblocks.get();
        let code = (word >> VALID_BITS) as u8;
        let log = Log::from_code(code).ok_or(FormatError::SitType {
            segment: seg,
            found: code,
        })?;
        let valid = ValidMap(raw.valid_map);
        let (found, counted) = (word & ((1 << VALID_BITS) - 1), valid.count());
        if found != counted {
            return Err(FormatError::SitCount {
                segment: seg,
                found,
                counted,
            });
        }
        Ok(Self {
            log,
            valid,
            mtime: raw.mtime.get(),
        })
    }

    /// The stored form.
    #[must_use]
    pub fn encode(&self) -> RawSitEntry {
        let word = u16::from(self.log.code()) << VALID_BITS | self.valid.count();
        RawSitEntry {
            vblocks: U16::new(word),
            valid_map: self.valid.0,
            mtime: U64::new(self.mtime),
        }
    }
}

/// The raw entry at a position of a SIT block.
///
/// # Errors
/// [`FormatError::Truncated`].
pub fn entry_at(block: &[u8], position: usize) -> Result<&RawSitEntry, FormatError> {
    let short = || FormatError::Truncated {
        structure: "SIT block",
        needed: ENTRIES_PER_BLOCK * ENTRY_BYTES,
        found: block.len(),
    };
    if position >= ENTRIES_PER_BLOCK {
        return Err(short());
    }
    let bytes = block.get(position * ENTRY_BYTES..).ok_or_else(short)?;
    let (raw, _) = RawSitEntry::ref_from_prefix(bytes).map_err(|_| short())?;
    Ok(raw)
}

/// Stores an entry in a SIT block. `None`, and nothing changed, past its end.
#[must_use]
pub fn set_entry(block: &mut [u8], position: usize, entry: &SitEntry) -> Option<()> {
    if position >= ENTRIES_PER_BLOCK {
        return None;
    }
    let at = position * ENTRY_BYTES;
    block
        .get_mut(at..at + ENTRY_BYTES)?
        .copy_from_slice(entry.encode().as_bytes());
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_round_trip() {
        let mut e = SitEntry::free();
        e.log = Log::WarmNode;
        e.mtime = 77;
        e.valid.set(0, true);
        e.valid.set(511, true);
        e.valid.set(512, true);
        assert_eq!(e.valid.count(), 2);
        assert_eq!((e.valid.0[0], e.valid.0[63]), (0x80, 1));
        let mut block = vec![0u8; BLOCK_SIZE];
        assert_eq!(set_entry(&mut block, 54, &e), Some(()));
        assert_eq!(set_entry(&mut block, 55, &e), None);
        let raw = entry_at(&block, 54).unwrap();
        assert_eq!(SitEntry::parse(raw, SegNo(54)), Ok(e));
        assert!(entry_at(&block, 55).is_err());
        assert!(entry_at(&block[..74], 1).is_err());
    }

    #[test]
    fn ranges_are_their_blocks() {
        for range in [0..512, 0..0, 3..5, 3..8, 8..16, 7..17, 5..509, 500..600] {
            for valid in [true, false] {
                let mut one_by_one = ValidMap([if valid { 0x42 } else { 0xBD }; MAP_BYTES]);
                let mut at_once = one_by_one;
                range.clone().for_each(|at| one_by_one.set(at, valid));
                at_once.set_range(range.clone(), valid);
                assert_eq!(at_once, one_by_one, "{range:?} {valid}");
                let counted = (0..512).filter(|at| at_once.get(*at)).count();
                assert_eq!(usize::from(at_once.count()), counted);
                assert_eq!(at_once.is_empty(), counted == 0);
            }
        }
    }

    #[test]
    fn disagreement_is_refused() {
        let mut raw = SitEntry::free().encode();
        raw.valid_map[3] = 1;
        assert_eq!(
            SitEntry::parse(&raw, SegNo(5)),
            Err(FormatError::SitCount {
                segment: SegNo(5),
                found: 0,
                counted: 1
            })
        );
        raw.vblocks.set(6 << 10 | 1);
        assert!(matches!(
            SitEntry::parse(&raw, SegNo(5)),
            Err(FormatError::SitType { found: 6, .. })
        ));
    }
}
