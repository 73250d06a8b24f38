//! Sizes and places of a volume's areas, and how much of the main area cleaning needs for itself.

use super::options::FormatOptions;
use crate::{MkfsError, Result};
use blockwright_ondisk::f2fs::layout::{Areas, LayoutError, LayoutRequest, Reserve};
use blockwright_ondisk::f2fs::superblock::{ENCODING_UTF8_12_1, RawSuperblock, Superblock};
use blockwright_ondisk::f2fs::types::{BLOCK_BITS, LOG_BLOCKS_PER_SEG};
use blockwright_ondisk::f2fs::{Features, Geometry, Ino, Log, SegNo, checksum};

/// Extensions of files whose data is unlikely to change: mkfs.f2fs's default list.
const COLD_EXTENSIONS: [&str; 36] = [
    "mp", "wm", "og", "jp", "avi", "m4v", "m4p", "mkv", "mov", "webm", "wav", "m4a", "3gp", "opus",
    "flac", "gif", "png", "svg", "webp", "jar", "deb", "iso", "gz", "xz", "zst", "pdf", "pyc",
    "ttc", "ttf", "exe", "apk", "cnt", "exo", "odex", "vdex", "so",
];
/// Extensions of files whose data changes often.
const HOT_EXTENSIONS: [&str; 4] = ["db", "vmdk", "vdi", "qcow2"];

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
    /// Of a volume of this many bytes.
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
    let mut request = LayoutRequest {
        blocks,
        start: 0,
        segs_per_sec: raw.segs_per_sec.get(),
        secs_per_zone: raw.secs_per_zone.get(),
        phase: 0,
        nat_min: 0,
        large_bitmaps: false,
    };
    let failed = |e: LayoutError| match e {
        LayoutError::TooSmall | LayoutError::Bitmaps => MkfsError::TooSmall {
            blocks,
            what: "the metadata areas",
        },
        LayoutError::Zone => MkfsError::option("-s, -z", e.to_string()),
        LayoutError::TooLarge => MkfsError::option("--size", e.to_string()),
    };
    // The superblocks' two blocks, rounded up to whole zones.
    let zone_blocks = request.zone_segments().map_err(failed)? << LOG_BLOCKS_PER_SEG;
    request.start = 2u32.next_multiple_of(zone_blocks);
    Areas::new(&request).map_err(failed)?.store(raw);
    Ok(())
}

/// The given percentage, or the one that leaves most to users.
fn reserve(options: &FormatOptions, geo: &Geometry) -> Result<Reserve> {
    let (main, per_sec) = (geo.main_segments, geo.segs_per_sec);
    let reserve = match options.overprovision_percent {
        Some(percent) => Reserve::of_percent(percent, main, per_sec)
            .filter(|reserve| reserve.leaves_logs(main, per_sec)),
        None => Reserve::best(main, per_sec),
    };
    reserve.ok_or(MkfsError::TooSmall {
        blocks: geo.blocks_count,
        what: "cleaning, which needs free segments",
    })
}
