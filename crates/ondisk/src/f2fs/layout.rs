//! How large the areas of a volume are, and how much of the main area cleaning keeps for itself: for making volumes and for resizing them.
//!
//! Pure arithmetic. The rules are those of mkfs.f2fs, as its volumes show them: a SIT entry and a summary block for each segment, a node number for
//! each block that could hold a node as far as the checkpoint has room for the version bitmap, a main area that begins with a zone.

use super::checkpoint::{BITMAP_OFFSET, CHECKSUM_OFFSET};
use super::superblock::{RawSuperblock, SEGMENTS_MAX};
use super::types::{BLOCK_SIZE, BLOCKS_PER_SEG, LOG_BLOCKS_PER_SEG};
use super::{nat, sit};

/// Logs that are written at once.
pub const LOGS: u32 = 6;
/// Segments of the checkpoint area.
const CHECKPOINT_SEGMENTS: u32 = 2;
/// Bytes of version bitmaps in a checkpoint's head.
const HEAD_BITMAP_BYTES: u32 = (CHECKSUM_OFFSET - BITMAP_OFFSET) as u32;

crate::with_messages! {
/// Why there is no layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // the messages say it
pub enum LayoutError {
    TooSmall = "no room for the metadata areas",
    Zone = "a zone larger than any volume",
    TooLarge = "an f2fs volume has at most 16 TiB",
    Bitmaps = "the version bitmaps do not fit into a checkpoint",
}
}

/// What a layout is to be made for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LayoutRequest {
    /// Blocks of the volume.
    pub blocks: u64,
    /// First block of the checkpoint area.
    pub start: u32,
    /// Segments of a section.
    pub segs_per_sec: u32,
    /// Sections of a zone.
    pub secs_per_zone: u32,
    /// The main area begins this many segments behind a multiple of a zone, counted from `start`.
    pub phase: u32,
    /// Segments of the NAT (both copies) at least.
    pub nat_min: u32,
    /// The checkpoint has its checksum in front of the bitmaps, which have room behind it and in its payload (`large_nat_bitmap`).
    pub large_bitmaps: bool,
}

impl LayoutRequest {
    /// Blocks of a zone.
    ///
    /// # Errors
    /// [`LayoutError::Zone`].
    pub fn zone_segments(&self) -> Result<u32, LayoutError> {
        self.segs_per_sec
            .checked_mul(self.secs_per_zone)
            .filter(|zone| (1..=SEGMENTS_MAX).contains(zone))
            .ok_or(LayoutError::Zone)
    }
}

/// Sizes and places of a volume's areas, in segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Areas {
    /// Blocks of the volume.
    pub blocks: u64,
    /// First block of the checkpoint area.
    pub start: u32,
    /// Segments from there on, whole zones.
    pub segments: u32,
    /// Of the checkpoint area.
    pub ckpt: u32,
    /// Of the SIT, both copies.
    pub sit: u32,
    /// Of the NAT, both copies.
    pub nat: u32,
    /// Of the SSA.
    pub ssa: u32,
    /// Of the main area.
    pub main: u32,
    /// Sections of the main area.
    pub sections: u32,
    /// Extra blocks of each checkpoint pack.
    pub payload: u32,
}

fn segments_of(blocks: u64) -> u32 {
    u32::try_from(blocks.div_ceil(u64::from(BLOCKS_PER_SEG))).unwrap_or(u32::MAX)
}

impl Areas {
    /// The layout of a volume of this many blocks.
    ///
    /// # Errors
    /// [`LayoutError`].
    pub fn new(request: &LayoutRequest) -> Result<Self, LayoutError> {
        let zone = request.zone_segments()?;
        let per_sec = request.segs_per_sec;
        let zone_blocks = u64::from(zone) << LOG_BLOCKS_PER_SEG;
        let behind = request.blocks.saturating_sub(u64::from(request.start));
        let segments = u32::try_from(behind / zone_blocks * u64::from(zone))
            .ok()
            .filter(|segments| *segments <= SEGMENTS_MAX)
            .ok_or(LayoutError::TooLarge)?;
        let left = |used: u32| {
            segments
                .checked_sub(used)
                .filter(|left| *left > 0)
                .ok_or(LayoutError::TooSmall)
        };
        let ckpt = CHECKPOINT_SEGMENTS;
        let sit = 2 * segments_of(u64::from(segments.div_ceil(sit::ENTRIES_PER_BLOCK as u32)));
        let nodes = u64::from(left(ckpt + sit)?) << LOG_BLOCKS_PER_SEG;
        let wanted = segments_of(nodes.div_ceil(nat::ENTRIES_PER_BLOCK as u64));
        let (nat, payload) = nat_and_payload(sit, wanted, request)?;
        // One summary block for each segment that is left, and one more.
        let mut ssa = segments_of(u64::from(left(ckpt + sit + nat)?) + 1);
        let meta = ckpt + sit + nat + ssa;
        // The main area begins with a zone.
        let phase = request.phase % zone;
        ssa += (phase + zone - meta % zone) % zone;
        let sections = left(ckpt + sit + nat + ssa)? / per_sec;
        if sections == 0 {
            return Err(LayoutError::TooSmall);
        }
        Ok(Self {
            blocks: request.blocks,
            start: request.start,
            segments,
            ckpt,
            sit,
            nat,
            ssa,
            main: sections * per_sec,
            sections,
            payload,
        })
    }

    /// Those of a superblock.
    #[must_use]
    pub fn of(raw: &RawSuperblock) -> Self {
        Self {
            blocks: raw.block_count.get(),
            start: raw.segment0_blkaddr.get(),
            segments: raw.segment_count.get(),
            ckpt: raw.segment_count_ckpt.get(),
            sit: raw.segment_count_sit.get(),
            nat: raw.segment_count_nat.get(),
            ssa: raw.segment_count_ssa.get(),
            main: raw.segment_count_main.get(),
            sections: raw.section_count.get(),
            payload: raw.cp_payload.get(),
        }
    }

    /// Puts them into a superblock. Its checksum is left to the caller.
    pub fn store(&self, raw: &mut RawSuperblock) {
        raw.block_count.set(self.blocks);
        raw.segment_count.set(self.segments);
        raw.segment_count_ckpt.set(self.ckpt);
        raw.segment_count_sit.set(self.sit);
        raw.segment_count_nat.set(self.nat);
        raw.segment_count_ssa.set(self.ssa);
        raw.segment_count_main.set(self.main);
        raw.section_count.set(self.sections);
        raw.cp_payload.set(self.payload);
        raw.segment0_blkaddr.set(self.start);
        let mut at = self.start;
        for (place, segments) in [
            (&mut raw.cp_blkaddr, self.ckpt),
            (&mut raw.sit_blkaddr, self.sit),
            (&mut raw.nat_blkaddr, self.nat),
            (&mut raw.ssa_blkaddr, self.ssa),
            (&mut raw.main_blkaddr, self.main),
        ] {
            place.set(at);
            at = at.saturating_add(segments.saturating_mul(BLOCKS_PER_SEG));
        }
    }

    /// Segments of all areas in front of the main area.
    #[must_use]
    pub fn meta(&self) -> u32 {
        self.ckpt + self.sit + self.nat + self.ssa
    }

    /// First block of the main area.
    #[must_use]
    pub fn main_start(&self) -> u64 {
        u64::from(self.start) + (u64::from(self.meta()) << LOG_BLOCKS_PER_SEG)
    }

    /// Block behind the main area.
    #[must_use]
    pub fn main_end(&self) -> u64 {
        self.main_start() + (u64::from(self.main) << LOG_BLOCKS_PER_SEG)
    }

    /// Most segments of a main area that SIT and SSA of these sizes describe.
    #[must_use]
    pub fn main_max(&self) -> u32 {
        let sit = u64::from(self.sit / 2) * u64::from(BLOCKS_PER_SEG);
        let sit = sit * sit::ENTRIES_PER_BLOCK as u64;
        let ssa = u64::from(self.ssa) * u64::from(BLOCKS_PER_SEG);
        u32::try_from(sit.min(ssa)).unwrap_or(u32::MAX)
    }
}

/// Segments of the NAT, and blocks of a checkpoint's payload. `wanted` is the NAT's size without its second copy.
fn nat_and_payload(
    sit: u32,
    wanted: u32,
    request: &LayoutRequest,
) -> Result<(u32, u32), LayoutError> {
    let per_segment = BLOCKS_PER_SEG / 8;
    let sit_bytes = sit / 2 * per_segment;
    let at_least = request.nat_min / 2;
    if request.large_bitmaps {
        // Both bitmaps run on from the head into the payload.
        let nat = wanted
            .min(HEAD_BITMAP_BYTES / per_segment)
            .max(at_least)
            .max(1);
        let bytes = BITMAP_OFFSET as u32 + 4 + sit_bytes + nat * per_segment;
        return Ok((2 * nat, bytes.saturating_sub(1) / BLOCK_SIZE as u32));
    }
    // The SIT's bitmap moves out of the head where it fills it, or where the NAT's would not fit beside it.
    let beside = HEAD_BITMAP_BYTES.saturating_sub(sit_bytes);
    let (payload, nat_bytes_max) =
        if sit_bytes > HEAD_BITMAP_BYTES - 64 || at_least * per_segment > beside {
            (sit_bytes.div_ceil(BLOCK_SIZE as u32), HEAD_BITMAP_BYTES)
        } else {
            (0, beside)
        };
    let nat = wanted.max(at_least).min(nat_bytes_max / per_segment).max(1);
    if nat < at_least {
        return Err(LayoutError::Bitmaps);
    }
    Ok((2 * nat, payload))
}

/// How much of the main area is not for users.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reserve {
    /// Segments that cleaning must find free.
    pub reserved: u32,
    /// Segments that users cannot fill, the reserved ones included.
    pub overprovisioned: u32,
}

impl Reserve {
    /// The cost of a percentage of over-provisioning. `None` when it leaves nothing.
    ///
    /// Cleaning a section that is full up to the percentage frees that part of one, so it takes 100 /
    /// percentage sections to gain one; twice that, and one section for each log, must be free before
    /// cleaning begins. The rest of the percentage comes on top.
    #[must_use]
    pub fn of_percent(percent: f64, main_segments: u32, segs_per_sec: u32) -> Option<Self> {
        let sections = (2.0 * (100.0 / percent + 1.0) + f64::from(LOGS)) as u32;
        let reserved = sections.checked_mul(segs_per_sec)?;
        let rest = main_segments.checked_sub(reserved)?;
        let over = (f64::from(rest) * percent / 100.0) as u32;
        let overprovisioned = over + reserved;
        (overprovisioned < main_segments).then_some(Self {
            reserved,
            overprovisioned,
        })
    }

    /// That of the percentage that leaves most to users. `None` for a main area that is too small for cleaning: each log needs a section
    /// beside the reserved ones.
    #[must_use]
    pub fn best(main_segments: u32, segs_per_sec: u32) -> Option<Self> {
        let percent = best_percent(main_segments, segs_per_sec)?;
        Self::of_percent(percent, main_segments, segs_per_sec)
            .filter(|reserve| reserve.leaves_logs(main_segments, segs_per_sec))
    }

    /// Whether each log has a section beside the reserved ones.
    #[must_use]
    pub fn leaves_logs(&self, main_segments: u32, segs_per_sec: u32) -> bool {
        u64::from(main_segments)
            >= u64::from(self.reserved) + u64::from(LOGS) * u64::from(segs_per_sec)
    }
}

/// Small volumes try steps of 5 percent from 10 on, large ones of a hundredth of a percent.
#[must_use]
pub fn best_percent(main_segments: u32, segs_per_sec: u32) -> Option<f64> {
    let (first, last, step) = if main_segments < 256 {
        (10.0, 95.0, 5.0)
    } else {
        (0.01, 10.0, 0.01)
    };
    let main = f64::from(main_segments);
    let per_sec = f64::from(segs_per_sec);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn request(blocks: u64) -> LayoutRequest {
        LayoutRequest {
            blocks,
            start: 512,
            segs_per_sec: 1,
            secs_per_zone: 1,
            phase: 0,
            nat_min: 0,
            large_bitmaps: false,
        }
    }

    #[test]
    fn areas_describe_what_they_must() {
        for shift in 14..32 {
            for per_sec in [1, 4] {
                let mut wanted = request(1 << shift);
                wanted.segs_per_sec = per_sec;
                wanted.secs_per_zone = 2;
                wanted.start = 512 * per_sec * 2;
                for phase in 0..2 * per_sec {
                    wanted.phase = phase;
                    let Ok(areas) = Areas::new(&wanted) else {
                        assert!(shift < 16, "{wanted:?}");
                        continue;
                    };
                    assert_eq!(areas.meta() % (2 * per_sec), phase);
                    assert!(areas.main <= areas.main_max(), "{areas:?}");
                    assert!(areas.main_end() <= wanted.blocks);
                    let mut raw = RawSuperblock::zeroed();
                    areas.store(&mut raw);
                    assert_eq!(Areas::of(&raw), areas);
                    assert_eq!(u64::from(raw.main_blkaddr.get()), areas.main_start());
                }
            }
        }
    }

    #[test]
    fn a_nat_is_kept_where_its_bitmap_fits() {
        let mut wanted = request(1 << 31);
        wanted.nat_min = 120;
        let areas = Areas::new(&wanted).expect("a layout");
        assert_eq!(areas.nat, 120);
        assert!(areas.payload > 0);
        wanted.nat_min = 200;
        assert_eq!(Areas::new(&wanted), Err(LayoutError::Bitmaps));
        wanted.large_bitmaps = true;
        let areas = Areas::new(&wanted).expect("a layout");
        assert_eq!(areas.nat, 200);
        assert!(areas.payload > 0);
    }

    #[test]
    fn reserves_fit() {
        assert_eq!(Reserve::best(10, 1), None);
        for main in [40, 100, 255, 256, 1000, 100_000] {
            let reserve = Reserve::best(main, 1).expect("room");
            assert!(reserve.reserved <= reserve.overprovisioned);
            assert!(reserve.overprovisioned < main);
        }
    }
}
