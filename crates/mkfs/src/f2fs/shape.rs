//! Sizes and places of a volume's areas, and how much of the main area cleaning needs for itself.

use super::options::FormatOptions;
use crate::{MkfsError, Result};
use blockwright_ondisk::f2fs::checkpoint::{BITMAP_OFFSET, CHECKSUM_OFFSET};
use blockwright_ondisk::f2fs::superblock::{
    ENCODING_UTF8_12_1, RawSuperblock, SEGMENTS_MAX, Superblock,
};
use blockwright_ondisk::f2fs::types::{BLOCK_BITS, BLOCK_SIZE, BLOCKS_PER_SEG, LOG_BLOCKS_PER_SEG};
use blockwright_ondisk::f2fs::{Features, Geometry, Ino, Log, SegNo, checksum, nat, sit};

/// Extensions of files whose data is unlikely to change: mkfs.f2fs's default list.
const COLD_EXTENSIONS: [&str; 36] = [
    "mp", "wm", "og", "jp", "avi", "m4v", "m4p", "mkv", "mov", "webm", "wav", "m4a", "3gp", "opus",
    "flac", "gif", "png", "svg", "webp", "jar", "deb", "iso", "gz", "xz", "zst", "pdf", "pyc",
    "ttc", "ttf", "exe", "apk", "cnt", "exo", "odex", "vdex", "so",
];
/// Extensions of files whose data changes often.
const HOT_EXTENSIONS: [&str; 4] = ["db", "vmdk", "vdi", "qcow2"];

/// Logs that are written at once.
const LOGS: u32 = 6;

/// How much of the main area is not for users.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Reserve {
    /// Segments that cleaning must find free.
    pub reserved: u32,
    /// Segments that users cannot fill, the reserved ones included.
    pub overprovisioned: u32,
}

/// A volume's shape.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub raw: RawSuperblock,
    pub geo: Geometry,
    pub reserve: Reserve,
    /// Version of the first checkpoint: what an older volume left must not be taken for newer.
    pub version: u64,
    pub uuid: [u8; 16],
}

impl Shape {
    /// Of a volume of so many bytes.
    pub fn new(options: &FormatOptions, bytes: u64) -> Result<Self> {
        options.check()?;
        let features = options.effective_features()?;
        let uuid = options
            .uuid
            .unwrap_or_else(|| *uuid::Uuid::new_v4().as_bytes());
        let mut raw = RawSuperblock::zeroed();
        raw.magic.set(checksum::MAGIC);
        raw.major_ver.set(1);
        raw.minor_ver.set(15);
        raw.log_sectorsize.set(9);
        raw.log_sectors_per_block.set(BLOCK_BITS - 9);
        raw.log_blocksize.set(BLOCK_BITS);
        raw.log_blocks_per_seg.set(LOG_BLOCKS_PER_SEG);
        raw.segs_per_sec.set(options.segs_per_sec);
        raw.secs_per_zone.set(options.secs_per_zone);
        raw.root_ino.set(Ino::ROOT.0);
        raw.node_ino.set(Ino::NODE.0);
        raw.meta_ino.set(Ino::META.0);
        raw.uuid = uuid;
        raw.feature.set(features.bits());
        raw.set_label(&options.label)
            .ok_or_else(|| MkfsError::option("-L", "a label has at most 511 UTF-16 units"))?;
        raw.set_extensions(&COLD_EXTENSIONS, &HOT_EXTENSIONS)
            .ok_or_else(|| MkfsError::option("-e", "too many extensions"))?;
        if features.contains(Features::CASEFOLD) {
            raw.s_encoding.set(ENCODING_UTF8_12_1);
        }
        let version = concat!("blockwright ", env!("CARGO_PKG_VERSION")).as_bytes();
        raw.version[..version.len()].copy_from_slice(version);
        raw.init_version[..version.len()].copy_from_slice(version);
        place_areas(&mut raw, bytes)?;
        raw.set_checksum();
        let geo = Superblock::parse(&raw.to_block(), Some(bytes))
            .map_err(|e| MkfsError::option("--size", e.to_string()))?
            .geo;
        let reserve = reserve(options, &geo)?;
        // Any number but 0; a function of the UUID, so that it differs from an old volume's.
        let version = u64::from(checksum::crc32(!0, &uuid) & 0x7FFF_FFFF) | 1 << 16;
        Ok(Self {
            raw,
            geo,
            reserve,
            version,
            uuid,
        })
    }

    /// Blocks of the main area that users can fill.
    pub fn user_blocks(&self) -> u64 {
        let segments = self.geo.main_segments - self.reserve.overprovisioned;
        u64::from(segments) << LOG_BLOCKS_PER_SEG
    }

    /// Segments where the logs of an empty volume begin: node logs and hot data at the front, a zone
    /// apart, cold data at a quarter and warm data at the middle, so that each can grow.
    pub fn log_starts(&self) -> [(Log, SegNo); 6] {
        let zone = self.geo.segs_per_sec * self.geo.secs_per_zone;
        let zones = self.geo.main_segments / zone;
        let cold = ((zones / 4).saturating_sub(1)).max(4);
        let warm = ((zones / 2).saturating_sub(1)).max(cold + 1);
        [
            (Log::HotNode, 0),
            (Log::WarmNode, 1),
            (Log::ColdNode, 2),
            (Log::HotData, 3),
            (Log::ColdData, cold),
            (Log::WarmData, warm),
        ]
        .map(|(log, at)| (log, SegNo(at * zone)))
    }
}

/// Fills in sizes and places of the areas.
fn place_areas(raw: &mut RawSuperblock, bytes: u64) -> Result<()> {
    let blocks = bytes >> BLOCK_BITS;
    let too_small = |what| MkfsError::TooSmall { blocks, what };
    raw.block_count.set(blocks);
    let per_sec = raw.segs_per_sec.get();
    let zone = per_sec
        .checked_mul(raw.secs_per_zone.get())
        .filter(|z| *z <= SEGMENTS_MAX)
        .ok_or_else(|| MkfsError::option("-s, -z", "a zone larger than any volume"))?;
    // The superblocks' two blocks, rounded up to whole zones.
    let zone_blocks = u64::from(zone) << LOG_BLOCKS_PER_SEG;
    let start = 2u64.next_multiple_of(zone_blocks);
    let segments = blocks.saturating_sub(start) / zone_blocks * u64::from(zone);
    let segments = u32::try_from(segments)
        .ok()
        .filter(|s| *s <= SEGMENTS_MAX)
        .ok_or_else(|| MkfsError::option("--size", "an f2fs volume has at most 16 TiB"))?;
    let segs_of = |blocks: u32| blocks.div_ceil(BLOCKS_PER_SEG);
    let left = |used: u32| {
        segments
            .checked_sub(used)
            .filter(|s| *s > 0)
            .ok_or_else(|| too_small("the metadata areas"))
    };
    let ckpt = 2;
    let sit = 2 * segs_of(segments.div_ceil(sit::ENTRIES_PER_BLOCK as u32));
    // One node number for each block that could hold a node, bounded by the room for the bitmap.
    let nodes = u64::from(left(ckpt + sit)?) << LOG_BLOCKS_PER_SEG;
    let wanted = segs_of(nodes.div_ceil(nat::ENTRIES_PER_BLOCK as u64) as u32);
    let sit_bitmap = sit / 2 * BLOCKS_PER_SEG / 8;
    let room = (CHECKSUM_OFFSET - BITMAP_OFFSET) as u32;
    let (payload, nat_bitmap_max) = if sit_bitmap > room - 64 {
        // The SIT's bitmap moves out of the checkpoint's head.
        (sit_bitmap.div_ceil(BLOCK_SIZE as u32), room)
    } else {
        (0, room - sit_bitmap)
    };
    let nat = 2 * wanted.min(nat_bitmap_max * 8 / BLOCKS_PER_SEG).max(1);
    // One summary block for each segment that is left, and one more.
    let mut ssa = segs_of(left(ckpt + sit + nat)? + 1);
    let meta = ckpt + sit + nat + ssa;
    // The main area begins with a zone.
    ssa += meta.next_multiple_of(zone) - meta;
    let sections = left(ckpt + sit + nat + ssa)? / per_sec;
    let main = sections * per_sec;
    raw.segment_count.set(segments);
    raw.segment_count_ckpt.set(ckpt);
    raw.segment_count_sit.set(sit);
    raw.segment_count_nat.set(nat);
    raw.segment_count_ssa.set(ssa);
    raw.segment_count_main.set(main);
    raw.section_count.set(sections);
    raw.cp_payload.set(payload);
    let mut at = start as u32;
    raw.segment0_blkaddr.set(at);
    for (place, segments) in [
        (&mut raw.cp_blkaddr, ckpt),
        (&mut raw.sit_blkaddr, sit),
        (&mut raw.nat_blkaddr, nat),
        (&mut raw.ssa_blkaddr, ssa),
        (&mut raw.main_blkaddr, main),
    ] {
        place.set(at);
        at += segments << LOG_BLOCKS_PER_SEG;
    }
    Ok(())
}

/// How much a percentage of over-provisioning costs.
///
/// Cleaning a section that is full up to the percentage frees that part of one, so it takes 100 /
/// percentage sections to gain one; twice that, and one section for each log, must be free before
/// cleaning begins. The rest of the percentage comes on top.
fn cost(percent: f64, geo: &Geometry) -> Option<Reserve> {
    let main = geo.main_segments;
    let sections = (2.0 * (100.0 / percent + 1.0) + f64::from(LOGS)) as u32;
    let reserved = sections.checked_mul(geo.segs_per_sec)?;
    let rest = main.checked_sub(reserved)?;
    let over = (f64::from(rest) * percent / 100.0) as u32;
    let overprovisioned = over + reserved;
    (overprovisioned < main).then_some(Reserve {
        reserved,
        overprovisioned,
    })
}

/// The given percentage, or the one that leaves most to users.
fn reserve(options: &FormatOptions, geo: &Geometry) -> Result<Reserve> {
    let too_small = MkfsError::TooSmall {
        blocks: geo.blocks_count,
        what: "cleaning, which needs free segments",
    };
    let percent = match options.overprovision_percent {
        Some(percent) => percent,
        None => best_percent(geo).ok_or(too_small.clone())?,
    };
    let reserve = cost(percent, geo).ok_or(too_small.clone())?;
    // Each log needs a section beside the reserved ones.
    if geo.main_segments < reserve.reserved + LOGS * geo.segs_per_sec {
        return Err(too_small);
    }
    Ok(reserve)
}

/// Small volumes try steps of 5 percent from 10 on, large ones of a hundredth of a percent.
fn best_percent(geo: &Geometry) -> Option<f64> {
    let (first, last, step) = if geo.main_segments < 256 {
        (10.0, 95.0, 5.0)
    } else {
        (0.01, 10.0, 0.01)
    };
    let main = f64::from(geo.main_segments);
    let per_sec = f64::from(geo.segs_per_sec);
    let mut best: Option<(f64, f64)> = None;
    let mut percent: f64 = first;
    while percent <= last {
        let reserved = (2.0 * (100.0 / percent + 1.0) + f64::from(LOGS)) * per_sec;
        let over = (main - reserved) * percent / 100.0;
        if over >= 0.0 {
            let space = main - reserved - over;
            if best.is_none_or(|(most, _)| space > most) {
                best = Some((space, percent));
            }
        }
        percent += step;
    }
    best.filter(|(space, _)| *space > 0.0).map(|(_, p)| p)
}
