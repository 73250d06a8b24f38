//! Summaries: for each block of a segment, which node owns it (data) or which node it is (nodes). The
//! SSA keeps one block for each segment; those of the logs' own segments are in the checkpoint pack.
//!
//! A summary block also has room for a journal: the last few changed NAT or SIT entries, so that a
//! checkpoint need not rewrite a table block for each. In a pack the NAT's journal is in the first
//! data summary and the SIT's in the last one.
//!
//! Compact summaries hold both journals and only those entries of the three data logs that are in
//! use, one after another.

use std::mem::{offset_of, size_of};

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::checkpoint::RawCheckpoint;
use super::checksum;
use super::error::FormatError;
use super::geometry::Geometry;
use super::nat::{NatEntry, RawNatEntry};
use super::sit::{RawSitEntry, SitEntry};
use super::types::{BLOCK_SIZE, BLOCKS_PER_SEG, Log, Nid, SegNo};

/// Entries of a summary block.
pub const ENTRIES: usize = BLOCKS_PER_SEG as usize;
/// Bytes of an entry.
pub const ENTRY_BYTES: usize = size_of::<RawSummary>();
/// Bytes of a journal, count included.
pub const JOURNAL_BYTES: usize = BLOCK_SIZE - ENTRIES * ENTRY_BYTES - FOOTER_BYTES;
/// Bytes of the footer.
pub const FOOTER_BYTES: usize = size_of::<RawSummaryFooter>();
/// NAT entries a journal holds.
pub const NAT_JOURNAL_ENTRIES: usize = (JOURNAL_BYTES - 2) / size_of::<RawNatJournalEntry>();
/// SIT entries a journal holds.
pub const SIT_JOURNAL_ENTRIES: usize = (JOURNAL_BYTES - 2) / size_of::<RawSitJournalEntry>();

/// An entry as stored. Fields keep their published names.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawSummary {
    pub nid: U32,
    pub version: u8,
    pub ofs_in_node: U16,
}

/// Tail of a summary block.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawSummaryFooter {
    pub entry_type: u8,
    pub check_sum: U32,
}

/// A NAT entry in a journal.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawNatJournalEntry {
    pub nid: U32,
    pub ne: RawNatEntry,
}

/// A SIT entry in a journal.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawSitJournalEntry {
    pub segno: U32,
    pub se: RawSitEntry,
}

/// A summary block.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
#[allow(missing_docs)] // named as in the format reference
pub struct RawSummaryBlock {
    pub entries: [RawSummary; ENTRIES],
    pub journal: [u8; JOURNAL_BYTES],
    pub footer: RawSummaryFooter,
}

const _: () = {
    assert!(ENTRY_BYTES == 7);
    assert!(FOOTER_BYTES == 5);
    assert!(JOURNAL_BYTES == 507);
    assert!(NAT_JOURNAL_ENTRIES == 38);
    assert!(SIT_JOURNAL_ENTRIES == 6);
    assert!(size_of::<RawSummaryBlock>() == BLOCK_SIZE);
    assert!(offset_of!(RawSummaryBlock, journal) == 3584);
    assert!(offset_of!(RawSummaryBlock, footer) == 4091);
};

/// The kind of the blocks of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SummaryKind {
    /// File and directory data.
    Data,
    /// Nodes.
    Node,
}

impl SummaryKind {
    /// Of a log's segments.
    #[must_use]
    pub const fn of(log: Log) -> Self {
        if log.is_node() {
            Self::Node
        } else {
            Self::Data
        }
    }

    const fn code(self) -> u8 {
        match self {
            Self::Data => 0,
            Self::Node => 1,
        }
    }
}

/// Whose a block is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Summary {
    /// For data: the node that maps it. For a node: itself. 0 where nothing was written.
    pub nid: Nid,
    /// For data: the version of that node's NAT entry.
    pub version: u8,
    /// For data: which of the node's addresses it is. 0 for nodes.
    pub offset: u16,
}

impl Summary {
    fn decode(raw: &RawSummary) -> Self {
        Self {
            nid: Nid(raw.nid.get()),
            version: raw.version,
            offset: raw.ofs_in_node.get(),
        }
    }

    fn encode(self) -> RawSummary {
        RawSummary {
            nid: U32::new(self.nid.0),
            version: self.version,
            ofs_in_node: U16::new(self.offset),
        }
    }
}

/// A summary block: entries, and its journal as bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SummaryBlock {
    /// What the segment holds.
    pub kind: SummaryKind,
    /// One for each block.
    pub entries: Vec<Summary>,
    /// The journal: see [`NatJournal`] and [`SitJournal`].
    pub journal: Vec<u8>,
}

impl SummaryBlock {
    /// One without entries.
    #[must_use]
    pub fn new(kind: SummaryKind) -> Self {
        Self {
            kind,
            entries: vec![Summary::default(); ENTRIES],
            journal: vec![0; JOURNAL_BYTES],
        }
    }

    /// From a block. The footer's checksum is ignored: implementations do not set it reliably.
    ///
    /// # Errors
    /// [`FormatError::Truncated`], [`FormatError::SummaryType`].
    pub fn parse(block: &[u8]) -> Result<Self, FormatError> {
        let raw = RawSummaryBlock::ref_from_bytes(block).map_err(|_| FormatError::Truncated {
            structure: "summary block",
            needed: BLOCK_SIZE,
            found: block.len(),
        })?;
        let kind = match raw.footer.entry_type {
            0 => SummaryKind::Data,
            1 => SummaryKind::Node,
            found => return Err(FormatError::SummaryType { found }),
        };
        Ok(Self {
            kind,
            entries: raw.entries.iter().map(Summary::decode).collect(),
            journal: raw.journal.to_vec(),
        })
    }

    /// The block. Entries past the 512th and journal bytes past the 507th are dropped.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut raw = RawSummaryBlock::new_zeroed();
        for (to, from) in raw.entries.iter_mut().zip(&self.entries) {
            *to = from.encode();
        }
        let len = self.journal.len().min(JOURNAL_BYTES);
        raw.journal[..len].copy_from_slice(&self.journal[..len]);
        raw.footer.entry_type = self.kind.code();
        raw.as_bytes().to_vec()
    }

    /// The block, with a checksum over all before it in the footer.
    #[must_use]
    pub fn encode_with_checksum(&self) -> Vec<u8> {
        let mut block = self.encode();
        let at = BLOCK_SIZE - 4;
        let sum = checksum::crc32_magic(&block[..at]);
        block[at..].copy_from_slice(&sum.to_le_bytes());
        block
    }
}

fn journal_count(bytes: &[u8], max: usize, what: &'static str) -> Result<usize, FormatError> {
    let count = bytes
        .first_chunk::<2>()
        .map(|c| u16::from_le_bytes(*c))
        .filter(|_| bytes.len() >= JOURNAL_BYTES)
        .ok_or(FormatError::Truncated {
            structure: "journal",
            needed: JOURNAL_BYTES,
            found: bytes.len(),
        })?;
    if usize::from(count) > max {
        return Err(FormatError::JournalCount {
            what,
            found: count,
            max,
        });
    }
    Ok(usize::from(count))
}

/// The contents of the journal's place in the hot node log's summary: KiB written to the volume in its life. It is there only where a pack has node
/// summaries, so a crash sets it back to 0, as it does Linux's.
///
/// Source: `/sys/fs/f2fs/*/lifetime_write_kbytes` of Linux 6.1, on volumes with known bytes here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lifetime {
    /// KiB.
    pub kib: u64,
}

impl Lifetime {
    /// From a journal's bytes; the first two count entries elsewhere. 0 where they are too few.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Self {
        let kib = bytes.get(2..).and_then(<[u8]>::first_chunk::<8>);
        Self {
            kib: kib.map_or(0, |le| u64::from_le_bytes(*le)),
        }
    }

    /// A journal's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; 2];
        out.extend(self.kib.to_le_bytes());
        out.resize(JOURNAL_BYTES, 0);
        out
    }
}

/// NAT entries newer than the NAT's blocks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NatJournal(pub Vec<(Nid, NatEntry)>);

impl NatJournal {
    /// From a journal's bytes.
    ///
    /// # Errors
    /// [`FormatError::Truncated`], [`FormatError::JournalCount`], [`FormatError::NidRange`], and those
    /// of [`Geometry::check_nat_entry`].
    pub fn parse(bytes: &[u8], geo: &Geometry) -> Result<Self, FormatError> {
        let count = journal_count(bytes, NAT_JOURNAL_ENTRIES, "NAT")?;
        let (raw, _) = <[RawNatJournalEntry]>::ref_from_prefix_with_elems(&bytes[2..], count)
            .map_err(|_| FormatError::Truncated {
                structure: "NAT journal",
                needed: JOURNAL_BYTES,
                found: bytes.len(),
            })?;
        let mut out = Vec::with_capacity(count);
        for r in raw {
            let (nid, entry) = (Nid(r.nid.get()), NatEntry::decode(&r.ne));
            geo.check_nid(nid)?;
            geo.check_nat_entry(nid, &entry)?;
            out.push((nid, entry));
        }
        Ok(Self(out))
    }

    /// A journal's bytes. `None` when there are more than [`NAT_JOURNAL_ENTRIES`].
    #[must_use]
    pub fn encode(&self) -> Option<Vec<u8>> {
        if self.0.len() > NAT_JOURNAL_ENTRIES {
            return None;
        }
        let mut out = (self.0.len() as u16).to_le_bytes().to_vec();
        for (nid, entry) in &self.0 {
            out.extend(nid.0.to_le_bytes());
            out.extend(entry.encode().as_bytes());
        }
        out.resize(JOURNAL_BYTES, 0);
        Some(out)
    }
}

/// SIT entries newer than the SIT's blocks.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SitJournal(pub Vec<(SegNo, SitEntry)>);

impl SitJournal {
    /// From a journal's bytes.
    ///
    /// # Errors
    /// [`FormatError::Truncated`], [`FormatError::JournalCount`], [`FormatError::SegmentRange`], and
    /// those of [`SitEntry::parse`].
    pub fn parse(bytes: &[u8], geo: &Geometry) -> Result<Self, FormatError> {
        let count = journal_count(bytes, SIT_JOURNAL_ENTRIES, "SIT")?;
        let (raw, _) = <[RawSitJournalEntry]>::ref_from_prefix_with_elems(&bytes[2..], count)
            .map_err(|_| FormatError::Truncated {
                structure: "SIT journal",
                needed: JOURNAL_BYTES,
                found: bytes.len(),
            })?;
        let mut out = Vec::with_capacity(count);
        for r in raw {
            let segment = SegNo(r.segno.get());
            if segment.0 >= geo.main_segments {
                return Err(FormatError::SegmentRange {
                    segment,
                    max: geo.main_segments,
                });
            }
            out.push((segment, SitEntry::parse(&r.se, segment)?));
        }
        Ok(Self(out))
    }

    /// A journal's bytes. `None` when there are more than [`SIT_JOURNAL_ENTRIES`].
    #[must_use]
    pub fn encode(&self) -> Option<Vec<u8>> {
        if self.0.len() > SIT_JOURNAL_ENTRIES {
            return None;
        }
        let mut out = (self.0.len() as u16).to_le_bytes().to_vec();
        for (seg, entry) in &self.0 {
            out.extend(seg.0.to_le_bytes());
            out.extend(entry.encode().as_bytes());
        }
        out.resize(JOURNAL_BYTES, 0);
        Some(out)
    }
}

/// Compact entries of the first block, behind the journals, and of each further one.
const COMPACT_FIRST: usize = (BLOCK_SIZE - FOOTER_BYTES - 2 * JOURNAL_BYTES) / ENTRY_BYTES;
const COMPACT_MORE: usize = (BLOCK_SIZE - FOOTER_BYTES) / ENTRY_BYTES;

/// How many entries of each data log a pack keeps: those before its head.
///
/// A log that fills holes keeps all of its segment's.
fn kept(raw: &RawCheckpoint) -> [usize; 3] {
    Log::DATA.map(|log| {
        let head = raw.log(log);
        if head.alloc == super::checkpoint::ALLOC_SSR {
            ENTRIES
        } else {
            usize::from(head.offset).min(ENTRIES)
        }
    })
}

/// Blocks that the data logs' summaries take in compact form, at most 3 of which are ever used.
#[must_use]
pub fn compact_blocks(raw: &RawCheckpoint) -> u32 {
    let entries: usize = kept(raw).iter().sum();
    if entries <= COMPACT_FIRST {
        return 1;
    }
    1 + (entries - COMPACT_FIRST).div_ceil(COMPACT_MORE) as u32
}

/// What compact summaries hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CompactSummaries {
    /// The NAT's journal.
    pub nat: NatJournal,
    /// The SIT's journal.
    pub sit: SitJournal,
    /// Entries of the hot, warm and cold data logs' segments: 512 each, unused ones zero.
    pub entries: [Vec<Summary>; 3],
}

impl CompactSummaries {
    /// From the blocks between a pack's orphans and its node summaries.
    ///
    /// # Errors
    /// [`FormatError::Truncated`] when they are too few, and those of the journals.
    pub fn parse(blocks: &[u8], raw: &RawCheckpoint, geo: &Geometry) -> Result<Self, FormatError> {
        let needed = compact_blocks(raw) as usize * BLOCK_SIZE;
        if blocks.len() < needed {
            return Err(FormatError::Truncated {
                structure: "compact summaries",
                needed,
                found: blocks.len(),
            });
        }
        let nat = NatJournal::parse(&blocks[..JOURNAL_BYTES], geo)?;
        let sit = SitJournal::parse(&blocks[JOURNAL_BYTES..2 * JOURNAL_BYTES], geo)?;
        let mut stored = compact_places().filter_map(|at| {
            RawSummary::ref_from_prefix(blocks.get(at..)?)
                .ok()
                .map(|(raw, _)| Summary::decode(raw))
        });
        let entries = kept(raw).map(|count| {
            let mut list: Vec<Summary> = stored.by_ref().take(count).collect();
            list.resize(ENTRIES, Summary::default());
            list
        });
        Ok(Self { nat, sit, entries })
    }

    /// The blocks. `None` when a journal is too long.
    #[must_use]
    pub fn encode(&self, raw: &RawCheckpoint) -> Option<Vec<u8>> {
        let mut out = vec![0; compact_blocks(raw) as usize * BLOCK_SIZE];
        out[..JOURNAL_BYTES].copy_from_slice(&self.nat.encode()?);
        out[JOURNAL_BYTES..2 * JOURNAL_BYTES].copy_from_slice(&self.sit.encode()?);
        let mut places = compact_places();
        for (list, count) in self.entries.iter().zip(kept(raw)) {
            for n in 0..count {
                let at = places.next()?;
                let entry = list.get(n).copied().unwrap_or_default();
                out.get_mut(at..at + ENTRY_BYTES)?
                    .copy_from_slice(entry.encode().as_bytes());
            }
        }
        Some(out)
    }
}

/// Offsets of compact entries, in order: behind the journals of the first block, then from the start
/// of each further block; none reaches into a footer.
fn compact_places() -> impl Iterator<Item = usize> {
    let first = (0..COMPACT_FIRST).map(|n| 2 * JOURNAL_BYTES + n * ENTRY_BYTES);
    let more = (0..COMPACT_MORE * 3)
        .map(|n| (1 + n / COMPACT_MORE) * BLOCK_SIZE + n % COMPACT_MORE * ENTRY_BYTES);
    first.chain(more)
}

#[cfg(test)]
#[path = "summary_tests.rs"]
mod tests;
