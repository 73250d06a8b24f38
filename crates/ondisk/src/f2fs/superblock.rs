//! The superblock: what never changes in a volume's life but its label, counters of errors, and
//! (when it is resized) the sizes. It is stored twice, 1024 bytes into each of the first two blocks.
//!
//! [`Superblock::parse`] checks all that later arithmetic relies on: areas lie behind one another in
//! the order of the format, the SIT and NAT are large enough for what they describe, nothing reaches
//! past the device.
//!
//! Not responsible for: which features are supported, which of the two copies to take when both are
//! good but differ (the first).

pub(super) mod raw;

use super::checksum::MAGIC;
use super::error::FormatError;
use super::geometry::Geometry;
use super::types::{BLOCK_BITS, BLOCKS_PER_SEG, Ino, LOG_BLOCKS_PER_SEG};

pub use raw::*;

/// A validated superblock.
#[derive(Clone, Debug)]
pub struct Superblock {
    /// As stored, for what is not needed often.
    pub raw: RawSuperblock,
    /// Where everything is.
    pub geo: Geometry,
}

impl Superblock {
    /// From a superblock's block.
    ///
    /// `device_bytes` is the size of the device, when the volume lies on a single one and must fit.
    ///
    /// # Errors
    /// One variant per check.
    pub fn parse(block: &[u8], device_bytes: Option<u64>) -> Result<Self, FormatError> {
        let raw = RawSuperblock::read(block)?;
        let found = raw.magic.get();
        if found != MAGIC {
            return Err(FormatError::SuperMagic { found });
        }
        raw.verify_checksum()?;
        check_units(&raw)?;
        check_counts(&raw)?;
        check_areas(&raw)?;
        let devices = check_devices(&raw)?;
        if let (Some(bytes), false) = (device_bytes, devices) {
            let end = u64::from(raw.segment0_blkaddr.get())
                + (u64::from(raw.segment_count.get()) << LOG_BLOCKS_PER_SEG);
            let device_blocks = bytes >> BLOCK_BITS;
            if end > device_blocks {
                return Err(FormatError::SuperPastDevice {
                    blocks: end,
                    device_blocks,
                });
            }
        }
        Ok(Self {
            geo: Geometry::new(&raw),
            raw,
        })
    }
}

fn check_units(raw: &RawSuperblock) -> Result<(), FormatError> {
    let log = raw.log_blocksize.get();
    if log != BLOCK_BITS {
        return Err(FormatError::SuperBlockSize { log });
    }
    let log = raw.log_blocks_per_seg.get();
    if log != LOG_BLOCKS_PER_SEG {
        return Err(FormatError::SuperSegmentSize { log });
    }
    let (log, per_block) = (raw.log_sectorsize.get(), raw.log_sectors_per_block.get());
    if !(9..=BLOCK_BITS).contains(&log) || per_block != BLOCK_BITS - log {
        return Err(FormatError::SuperSectorSize { log, per_block });
    }
    Ok(())
}

fn check_counts(raw: &RawSuperblock) -> Result<(), FormatError> {
    let segments = raw.segment_count.get();
    if !(SEGMENTS_MIN..=SEGMENTS_MAX).contains(&segments) {
        return Err(FormatError::SuperSegments { found: segments });
    }
    let blocks = raw.block_count.get();
    if blocks >> LOG_BLOCKS_PER_SEG < u64::from(segments) {
        return Err(FormatError::SuperBlocks { blocks, segments });
    }
    let (sections, per) = (raw.section_count.get(), raw.segs_per_sec.get());
    let main = raw.segment_count_main.get();
    if per == 0 || sections == 0 || u64::from(sections) * u64::from(per) != u64::from(main) {
        return Err(FormatError::SuperSections {
            sections,
            per,
            main,
        });
    }
    let zone = raw.secs_per_zone.get();
    if zone == 0 || zone > sections {
        return Err(FormatError::SuperZone { zone, sections });
    }
    let (cold, hot) = (raw.extension_count.get(), raw.hot_ext_count);
    if u64::from(cold) + u64::from(hot) > EXTENSIONS_MAX as u64 {
        return Err(FormatError::SuperExtensions { cold, hot });
    }
    // A pack holds two heads, the payload and a summary for each log at least.
    let payload = raw.cp_payload.get();
    if payload > BLOCKS_PER_SEG - 2 - 6 {
        return Err(FormatError::SuperPayload { found: payload });
    }
    for (what, found, expected) in [
        ("root", &raw.root_ino, Ino::ROOT),
        ("node", &raw.node_ino, Ino::NODE),
        ("meta", &raw.meta_ino, Ino::META),
    ] {
        if found.get() != expected.0 {
            return Err(FormatError::SuperInode {
                what,
                found: found.get(),
                expected: expected.0,
            });
        }
    }
    Ok(())
}

fn check_areas(raw: &RawSuperblock) -> Result<(), FormatError> {
    let start = raw.segment0_blkaddr.get();
    // Block 0 and 1 are the superblocks'.
    if start < 2 {
        return Err(FormatError::SuperAreaStart { found: start });
    }
    let areas = [
        ("checkpoint", &raw.cp_blkaddr, &raw.segment_count_ckpt),
        ("SIT", &raw.sit_blkaddr, &raw.segment_count_sit),
        ("NAT", &raw.nat_blkaddr, &raw.segment_count_nat),
        ("SSA", &raw.ssa_blkaddr, &raw.segment_count_ssa),
        ("main", &raw.main_blkaddr, &raw.segment_count_main),
    ];
    let mut expected = u64::from(start);
    for (what, at, segments) in areas {
        let (found, segments) = (at.get(), segments.get());
        if u64::from(found) != expected {
            return Err(FormatError::SuperArea {
                what,
                found,
                expected,
            });
        }
        // Checkpoint, SIT and NAT have two halves.
        let halves = matches!(what, "checkpoint" | "SIT" | "NAT");
        if segments == 0 || (halves && !segments.is_multiple_of(2)) {
            return Err(FormatError::SuperAreaSize { what, segments });
        }
        expected += u64::from(segments) << LOG_BLOCKS_PER_SEG;
    }
    let ckpt = raw.segment_count_ckpt.get();
    if ckpt != 2 {
        return Err(FormatError::SuperAreaSize {
            what: "checkpoint",
            segments: ckpt,
        });
    }
    let end = u64::from(start) + (u64::from(raw.segment_count.get()) << LOG_BLOCKS_PER_SEG);
    if expected > end || expected > u64::from(u32::MAX) {
        return Err(FormatError::SuperAreasEnd {
            found: expected,
            end,
        });
    }
    // A SIT block describes 55 segments, an SSA block one.
    let main = u64::from(raw.segment_count_main.get());
    let sit = u64::from(raw.segment_count_sit.get() / 2) << LOG_BLOCKS_PER_SEG;
    if sit * super::sit::ENTRIES_PER_BLOCK as u64 <= main.saturating_sub(1) {
        return Err(FormatError::SuperAreaRoom { what: "SIT", main });
    }
    let ssa = u64::from(raw.segment_count_ssa.get()) << LOG_BLOCKS_PER_SEG;
    if ssa < main {
        return Err(FormatError::SuperAreaRoom { what: "SSA", main });
    }
    Ok(())
}

/// Whether there are several devices; they must make up the volume.
fn check_devices(raw: &RawSuperblock) -> Result<bool, FormatError> {
    let used = raw.devs.iter().take_while(|d| d.path[0] != 0);
    let (mut count, mut segments) = (0usize, 0u64);
    for d in used {
        count += 1;
        segments += u64::from(d.total_segments.get());
    }
    if count == 0 {
        return Ok(false);
    }
    let expected = raw.segment_count.get();
    // The first device also holds what lies before segment 0, in whole segments.
    let before = u64::from(raw.segment0_blkaddr.get()) >> LOG_BLOCKS_PER_SEG;
    if segments != u64::from(expected) && segments != u64::from(expected) + before {
        return Err(FormatError::SuperDevices { segments, expected });
    }
    Ok(count > 1)
}

#[cfg(test)]
#[path = "superblock_tests.rs"]
pub(crate) mod tests;
