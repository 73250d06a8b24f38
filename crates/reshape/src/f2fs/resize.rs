//! The size of a volume.
//!
//! # Growth
//! A larger main area needs more SIT, NAT and SSA. The areas lie behind one another in front of it, so its start moves, and what lies at its beginning moves
//! away first:
//!
//! ```text
//! old        | CP SIT NAT SSA | main ..................... |
//! in between |                          | CP SIT NAT SSA | main ................... |
//! new        | CP  SIT  NAT  SSA  | main .......................................... |
//! ```
//! 1. Blocks at the beginning of the main area move behind it (`mover`), by checkpoints of the volume as it is.
//! 2. All metadata is written there, where nothing is in use, and the superblock names it (`switch`).
//! 3. The old place is free. The larger areas are written there, and the superblock names them.
//!
//! Where SIT, NAT and SSA are large enough already, only the end moves.
//!
//! A volume that is so full that the beginning cannot be emptied grows in several such steps, each as large as its free room allows.
//!
//! # Shrinkage
//! Blocks behind the new end move in front of it, and then the end moves. After that the metadata areas become smaller by the same way as they became larger, if
//! the free room allows it.
//!
//! # Crash order
//! - Each step leaves a volume that Linux mounts and that fsck.f2fs finds nothing in: the moves are ordinary checkpoints, and a layout counts by one
//!   superblock that names metadata which is complete. An interrupted change leaves the volume between two steps. It has all files, and the next change
//!   of size continues from there, also one to the size that it has.
//! - When only the end moves, superblock and checkpoint change one after the other. The checkpoint with the smaller capacity counts for as long as either is
//!   the old one. In between, the checkpoint's number of free segments is too small, which nothing relies on: mounts count free segments. A second checkpoint
//!   follows, so that each of the two packs describes the volume as it is.

use std::ops::Range;

use blockwright_device::SharedDevice;
use blockwright_ondisk::f2fs::checkpoint::CheckpointFlags;
use blockwright_ondisk::f2fs::layout::{Areas, LayoutError, LayoutRequest, Reserve};
use blockwright_ondisk::f2fs::nat::NatBlock;
use blockwright_ondisk::f2fs::types::{BLOCK_BITS, LOG_BLOCKS_PER_SEG};
use blockwright_ondisk::f2fs::{BLOCK_SIZE, BLOCKS_PER_SEG};

use super::mover::evacuate;
use super::store::Store;
use super::switch::{apart, switch};
use super::volume::{Counts, Volume, read_superblocks, superblock};
use crate::error::{ReshapeError, Result};
use crate::options::{ResizeOptions, Size};
use crate::resized::{Mode, Parts, Resized};
use crate::watch::Watch;

/// Segments of room that a volume keeps beside its files while its metadata areas become smaller.
const SPARE_SEGMENTS: u32 = 8;

impl From<LayoutError> for ReshapeError {
    fn from(e: LayoutError) -> Self {
        match e {
            LayoutError::TooSmall => Self::Invalid(format!("the size is too small: {e}")),
            LayoutError::TooLarge => Self::Invalid(e.to_string()),
            LayoutError::Zone | LayoutError::Bitmaps => Self::Unsupported(e.to_string()),
        }
    }
}

/// Bytes of the volume on a device, which may be larger.
///
/// # Errors
/// `F2fs` when no copy of the superblock is valid.
pub fn volume_bytes(device: &SharedDevice) -> Result<u64> {
    let sb = superblock(&Store::new(device.clone(), Watch::default()))?;
    Ok(sb.raw.block_count.get() << BLOCK_BITS)
}

/// The most bytes that either copy of the superblock asks for.
///
/// # Errors
/// `F2fs` when a copy is not valid: it cannot be said what it asks for.
pub fn bytes_asked_for(device: &SharedDevice) -> Result<u64> {
    let [first, second] = read_superblocks(&Store::new(device.clone(), Watch::default()))?;
    let blocks = first?
        .raw
        .block_count
        .get()
        .max(second?.raw.block_count.get());
    Ok(blocks << BLOCK_BITS)
}

/// Refuses by name what is not resized, whatever state it is in.
///
/// # Errors
/// `Unsupported`; `F2fs` when no copy of the superblock is valid.
pub fn refuse(device: &SharedDevice) -> Result<()> {
    super::volume::refuse(&superblock(&Store::new(device.clone(), Watch::default()))?)
}

fn resized(before: &Areas, after: &Areas) -> Resized {
    Resized {
        block_bytes: BLOCK_SIZE as u32,
        blocks_before: before.blocks,
        blocks: after.blocks,
        parts: Parts::Segments {
            before: before.main,
            now: after.main,
        },
    }
}

/// Changes the size of the volume on a device.
///
/// # Errors
/// `Invalid` for sizes beyond the device and for those that no volume has; `Unsupported` for zoned and read-only volumes, for those on several devices, and for pinned
/// files in the way; `NotClean` for a volume that must be recovered or repaired first; `NoSpace`; damage; `Interrupted` when the watch stops it: the volume is
/// between two steps then. With all others but that and `Device` nothing was written: a change is made in memory first, without the contents of files.
pub fn resize(device: &SharedDevice, options: &ResizeOptions) -> Result<Resized> {
    let change = |store: Store, mode| match options.size {
        Size::Bytes(bytes) => make(store, bytes, mode),
        Size::Minimum { free } => make_smallest(store, free, mode),
    };
    let watch = &options.watch;
    let store = Store::new(device.clone(), watch.clone());
    let rehearse = || change(Store::rehearsal(device.clone(), watch), Mode::Change);
    match options.mode {
        Mode::DryRun => change(store, Mode::DryRun),
        Mode::Rehearsal => rehearse(),
        Mode::Change => {
            if options.rehearse {
                rehearse()?;
            }
            change(store, Mode::Change)
        }
    }
}

/// Makes the volume `bytes` bytes large, less what does not make up a block; or plans that.
fn make(store: Store, bytes: u64, mode: Mode) -> Result<Resized> {
    let device_bytes = store.bytes();
    let volume = Volume::open(store)?;
    let before = volume.areas();
    let blocks = bytes >> BLOCK_BITS;
    if mode != Mode::DryRun && bytes > device_bytes {
        return Err(ReshapeError::Invalid(format!(
            "the device has {device_bytes} bytes, fewer than the {bytes} asked for"
        )));
    }
    let shape = Shape::of(&volume);
    // Impossible sizes are refused before anything is moved.
    let planned = match blocks >= before.blocks {
        true => shape.ideal(blocks, before.nat)?,
        false => shape.cut(&before, blocks)?,
    };
    let counts = shape.counts(&volume, planned.main)?;
    if counts.user_blocks < volume.used_blocks() {
        return Err(too_full(volume.used_blocks(), &counts));
    }
    if mode != Mode::Change {
        let same = blocks == before.blocks;
        return Ok(resized(&before, if same { &before } else { &planned }));
    }
    volume.even_superblocks()?;
    let volume = match blocks < before.blocks {
        true => shrink(volume, blocks)?,
        false if blocks > before.blocks || shape.interrupted(&volume) => grow(volume, blocks)?,
        // One that was made smaller, and stopped, may have areas of metadata for its old size.
        false => compact(volume)?,
    };
    Ok(resized(&before, &volume.areas()))
}

fn too_full(used: u64, counts: &Counts) -> ReshapeError {
    ReshapeError::NoSpace(format!(
        "the files need {used} blocks, and a volume of that size has room for {}",
        counts.user_blocks
    ))
}

/// What does not change with the size.
#[derive(Clone, Copy)]
struct Shape {
    segs_per_sec: u32,
    secs_per_zone: u32,
    /// Blocks of a zone.
    zone: u32,
    phase: u32,
    large_bitmaps: bool,
    /// Where the checkpoint area begins unless a change was interrupted.
    home: u32,
}

impl Shape {
    fn of(volume: &Volume) -> Self {
        let areas = volume.areas();
        let geo = &volume.geo;
        let zone_segments = geo.segs_per_sec.saturating_mul(geo.secs_per_zone).max(1);
        let zone = zone_segments.saturating_mul(BLOCKS_PER_SEG);
        // Behind the superblocks, and a multiple of zones in front of where it is.
        let rest = areas.start % zone;
        let home = if rest < 2 { rest + zone } else { rest };
        let flags = volume.cp.flags();
        Self {
            segs_per_sec: geo.segs_per_sec,
            secs_per_zone: geo.secs_per_zone,
            zone,
            phase: areas.meta() % zone_segments,
            large_bitmaps: flags.contains(CheckpointFlags::LARGE_NAT_BITMAP),
            home: home.min(areas.start),
        }
    }

    /// The layout that a volume of this size has when it is made, with a NAT that is at least so large.
    fn ideal(&self, blocks: u64, nat_min: u32) -> Result<Areas> {
        Ok(Areas::new(&LayoutRequest {
            blocks,
            start: self.home,
            segs_per_sec: self.segs_per_sec,
            secs_per_zone: self.secs_per_zone,
            phase: self.phase,
            nat_min,
            large_bitmaps: self.large_bitmaps,
        })?)
    }

    /// The same metadata areas with another end.
    fn cut(&self, areas: &Areas, blocks: u64) -> Result<Areas> {
        let zone_segments = u64::from(self.zone / BLOCKS_PER_SEG);
        let behind = blocks.saturating_sub(u64::from(areas.start));
        let segments = behind / u64::from(self.zone) * zone_segments;
        let main = segments.saturating_sub(u64::from(areas.meta()));
        let sections = u32::try_from(main).map_err(|_| LayoutError::TooLarge)? / self.segs_per_sec;
        if sections == 0 {
            return Err(LayoutError::TooSmall.into());
        }
        Ok(Areas {
            blocks,
            segments: segments as u32,
            sections,
            main: sections * self.segs_per_sec,
            ..*areas
        })
    }

    /// The capacity of a volume with this number of segments.
    fn counts(&self, volume: &Volume, main: u32) -> Result<Counts> {
        let reserve = Reserve::best(main, self.segs_per_sec).ok_or_else(|| {
            ReshapeError::Invalid("the size is too small: cleaning needs free segments".to_owned())
        })?;
        let user_blocks = u64::from(main - reserve.overprovisioned) << LOG_BLOCKS_PER_SEG;
        let counts = Counts {
            user_blocks,
            reserve,
        };
        let old = volume.counts();
        if main >= volume.areas().main && old.user_blocks > user_blocks {
            // The volume was made with less over-provisioning: it holds what it held.
            return Ok(squeezed(main, old.user_blocks, reserve));
        }
        Ok(counts)
    }

    /// What the volume can hold while its metadata lies in between.
    fn counts_between(&self, volume: &Volume, main: u32) -> Counts {
        let old = volume.counts();
        let most = u64::from(main.saturating_sub(old.reserve.reserved)) << LOG_BLOCKS_PER_SEG;
        let user = old.user_blocks.min(most).max(volume.used_blocks());
        squeezed(main, user, old.reserve)
    }

    /// Whether a change of size was interrupted.
    fn interrupted(&self, volume: &Volume) -> bool {
        let (areas, counts) = (volume.areas(), volume.counts());
        let user = counts.user_blocks.div_ceil(u64::from(BLOCKS_PER_SEG));
        let whole = user + u64::from(counts.reserve.overprovisioned);
        areas.start != self.home || whole != u64::from(areas.main)
    }

    /// These areas further behind: from this block on, in whole zones.
    fn moved(&self, areas: &Areas, from: u64) -> Result<Areas> {
        let distance = from
            .saturating_sub(u64::from(areas.start))
            .next_multiple_of(u64::from(self.zone));
        let start =
            u32::try_from(u64::from(areas.start) + distance).map_err(|_| LayoutError::TooLarge)?;
        Ok(Areas { start, ..*areas })
    }
}

/// This many blocks for users, whatever that leaves to cleaning.
fn squeezed(main: u32, user_blocks: u64, reserve: Reserve) -> Counts {
    let user = user_blocks.div_ceil(u64::from(BLOCKS_PER_SEG));
    let over = u64::from(main).saturating_sub(user).max(1);
    let overprovisioned = u32::try_from(over).unwrap_or(u32::MAX);
    Counts {
        user_blocks,
        reserve: Reserve {
            reserved: reserve.reserved.min(overprovisioned),
            overprovisioned,
        },
    }
}

/// Segments of the main area in front of a block.
fn segments_before(volume: &Volume, block: u64) -> u32 {
    let blocks = block.saturating_sub(u64::from(volume.geo.main.0));
    let segments = blocks.div_ceil(u64::from(BLOCKS_PER_SEG));
    segments.min(u64::from(volume.geo.main_segments)) as u32
}

/// Empties what lies in front of and behind the main area that these areas have.
fn empty_for(volume: &mut Volume, areas: &Areas) -> Result<()> {
    let all = volume.geo.main_segments;
    let first = segments_before(volume, areas.main_start());
    let end = segments_before(volume, areas.main_end()).max(first);
    let kept: Range<u32> = first..end;
    evacuate(volume, (0..first).chain(end..all), kept)
}

/// Writes the metadata in between, so that its place becomes free: sizes are those of `sizes`, and the place is behind `from`.
fn step_aside(mut volume: Volume, sizes: &Areas, from: u64, blocks: u64) -> Result<Volume> {
    let shape = Shape::of(&volume);
    let between = shape.cut(&shape.moved(sizes, from)?, blocks)?;
    // No more segments than these sizes describe.
    let main = between
        .main
        .min(sizes.main_max().min(sizes.main.max(volume.areas().main)));
    let sections = main / shape.segs_per_sec;
    let main = sections * shape.segs_per_sec;
    let segments = between.meta() + main;
    let between = Areas {
        main,
        sections,
        segments,
        ..between
    };
    let room = u64::from(main) << LOG_BLOCKS_PER_SEG;
    if sections < shape.secs_per_zone || room < volume.used_blocks() {
        return Err(ReshapeError::NoSpace(
            "there is no room to move the metadata".into(),
        ));
    }
    empty_for(&mut volume, &between)?;
    let counts = shape.counts_between(&volume, main);
    switch(volume, &between, &counts)
}

/// One step of growth.
fn grow_once(mut volume: Volume, blocks: u64) -> Result<Volume> {
    let shape = Shape::of(&volume);
    let now = volume.areas();
    let wanted = shape.ideal(blocks, now.nat)?;
    let counts = shape.counts(&volume, wanted.main)?;
    if now.start == wanted.start && fits(&now, &wanted) {
        return move_end_back(volume, blocks);
    }
    if apart(&now, &wanted) {
        empty_for(&mut volume, &wanted)?;
        return switch(volume, &wanted, &counts);
    }
    let volume = step_aside(volume, &now, wanted.main_start(), blocks)?;
    debug_assert!(apart(&volume.areas(), &wanted));
    switch(volume, &wanted, &counts)
}

/// Whether the areas need not become larger.
fn fits(now: &Areas, wanted: &Areas) -> bool {
    now.sit >= wanted.sit && now.nat >= wanted.nat && now.ssa >= wanted.ssa
}

/// Moves the end alone, into a larger main area.
fn move_end_back(mut volume: Volume, blocks: u64) -> Result<Volume> {
    let shape = Shape::of(&volume);
    let now = volume.areas();
    let wanted = shape.cut(&now, blocks)?;
    if wanted.main > now.main_max() {
        return Err(ReshapeError::NoSpace(
            "the metadata areas are too small for that size".into(),
        ));
    }
    let counts = shape.counts(&volume, wanted.main)?;
    // Entries of new segments say that they are free, whatever was there.
    let first = volume.geo.sit_blocks_used().saturating_sub(1);
    let mut raw = volume.raw;
    wanted.store(&mut raw);
    raw.set_checksum();
    let per = blockwright_ondisk::f2fs::sit::ENTRIES_PER_BLOCK as u32;
    volume.rewrite_sit(first..wanted.main.div_ceil(per));
    volume.commit()?;
    volume.write_superblocks(raw)?;
    volume.set_counts(&counts);
    volume.commit()?;
    // The older pack has the smaller capacity.
    volume.commit()?;
    Ok(volume)
}

/// Makes a volume larger, in as many steps as its free room asks for.
fn grow(mut volume: Volume, blocks: u64) -> Result<Volume> {
    let store = volume.store.clone();
    let mut goal = blocks;
    loop {
        let now = volume.areas();
        let result = match grow_once(volume, goal) {
            // It may have room for more segments without larger areas.
            Err(ReshapeError::NoSpace(_)) => {
                let volume = Volume::open(store.clone())?;
                let here = volume.areas() == now;
                match here {
                    true => move_end_back(volume, goal),
                    false => Ok(volume),
                }
            }
            result => result,
        };
        match result {
            Ok(grown) if goal == blocks && grown.areas().blocks == blocks => return Ok(grown),
            Ok(grown) => {
                // What is new has room for a larger step.
                let moved = grown.areas() != now;
                volume = grown;
                if !moved {
                    return Err(ReshapeError::NoSpace(NO_ROOM_TO_GROW.into()));
                }
                goal = blocks;
            }
            Err(ReshapeError::NoSpace(_)) => {
                volume = Volume::open(store.clone())?;
                let now = volume.areas().blocks;
                goal = now + goal.saturating_sub(now) / 2;
                if goal <= now {
                    return Err(ReshapeError::NoSpace(NO_ROOM_TO_GROW.into()));
                }
            }
            Err(e) => return Err(e),
        }
    }
}

const NO_ROOM_TO_GROW: &str = "the volume is too full to make room for larger metadata areas";

/// Makes a volume smaller.
fn shrink(volume: Volume, blocks: u64) -> Result<Volume> {
    let volume = move_end_forward(volume, blocks)?;
    compact(volume)
}

/// Moves the end alone, into a smaller main area.
fn move_end_forward(mut volume: Volume, blocks: u64) -> Result<Volume> {
    let shape = Shape::of(&volume);
    let now = volume.areas();
    let wanted = shape.cut(&now, blocks)?;
    let counts = shape.counts(&volume, wanted.main)?;
    if counts.user_blocks < volume.used_blocks() {
        return Err(too_full(volume.used_blocks(), &counts));
    }
    let mut raw = volume.raw;
    wanted.store(&mut raw);
    raw.set_checksum();
    if wanted.main < now.main {
        evacuate(&mut volume, wanted.main..now.main, 0..wanted.main)?;
        let free = volume.free_segments() - (now.main - wanted.main);
        volume.set_counts(&counts);
        volume.commit_with(free)?;
    }
    let store = volume.store.clone();
    volume.write_superblocks(raw)?;
    let mut volume = Volume::open(store)?;
    // The older pack may name segments behind the new end.
    volume.commit()?;
    Ok(volume)
}

/// Makes the metadata areas as large as the volume needs them, if there is room to move them aside meanwhile.
fn compact(mut volume: Volume) -> Result<Volume> {
    let store = volume.store.clone();
    let shape = Shape::of(&volume);
    let now = volume.areas();
    let nat_min = nat_needed(&mut volume)?;
    let wanted = shape.ideal(now.blocks, nat_min)?;
    if wanted.meta() >= now.meta() && now.start == wanted.start {
        return Ok(volume);
    }
    let counts = shape.counts(&volume, wanted.main)?;
    let aside = match apart(&now, &wanted) {
        true => Ok(volume),
        false => step_aside(volume, &wanted, now.main_start(), now.blocks),
    };
    match aside {
        Ok(volume) => switch(volume, &wanted, &counts),
        // The areas stay as large as they are.
        Err(ReshapeError::NoSpace(_) | ReshapeError::Unsupported(_)) => Volume::open(store),
        Err(e) => Err(e),
    }
}

/// Segments of the NAT, both copies, that hold all nodes.
fn nat_needed(volume: &mut Volume) -> Result<u32> {
    for index in (0..volume.geo.nat_blocks()).rev() {
        let block = volume.nat_bytes(index)?;
        if NatBlock::parse(&block)?.iter().any(|e| !e.is_free()) {
            return Ok(2 * (index + 1).div_ceil(BLOCKS_PER_SEG));
        }
    }
    Ok(2)
}

/// Makes the volume as small as its files allow, with `free` bytes left free; or plans that.
fn make_smallest(store: Store, free: u64, mode: Mode) -> Result<Resized> {
    let mut volume = Volume::open(store.clone())?;
    let before = volume.areas();
    let needed = volume.used_blocks() + free.div_ceil(BLOCK_SIZE as u64);
    let shape = Shape::of(&volume);
    let nat_min = nat_needed(&mut volume)?;
    let goal = smallest(&volume, needed, before.blocks, |blocks| {
        shape.ideal(blocks, nat_min)
    });
    let Some(goal) = goal.filter(|goal| goal.blocks < before.blocks) else {
        return Ok(resized(&before, &before));
    };
    if mode != Mode::Change {
        return Ok(resized(&before, &goal));
    }
    volume.even_superblocks()?;
    // First so small that the metadata areas become smaller, with room to move them aside.
    let room = goal.main + 2 * goal.meta() + SPARE_SEGMENTS * shape.segs_per_sec;
    let zone_segments = shape.zone / BLOCKS_PER_SEG;
    let room = u64::from(room.next_multiple_of(zone_segments)) << LOG_BLOCKS_PER_SEG;
    let first = volume.areas().main_start() + room;
    if first < before.blocks {
        volume = shrink(volume, first)?;
    } else {
        volume = compact(volume)?;
    }
    let mut slack = 0;
    loop {
        let now = volume.areas();
        let fitting = smallest(&volume, needed + slack, now.blocks, |blocks| {
            shape.cut(&now, blocks)
        });
        let Some(goal) = fitting.filter(|goal| goal.blocks < now.blocks) else {
            return Ok(resized(&before, &now));
        };
        match move_end_forward(volume, goal.blocks) {
            Err(ReshapeError::NoSpace(_)) => {
                volume = Volume::open(store.clone())?;
                slack = (slack * 2).max(u64::from(BLOCKS_PER_SEG));
            }
            result => return Ok(resized(&before, &result?.areas())),
        }
    }
}

/// The smallest volume, in whole zones, in which users have `needed` blocks. It ends before block `most`. `layout` says which areas a volume has that ends
/// at a block.
fn smallest(
    volume: &Volume,
    needed: u64,
    most: u64,
    layout: impl Fn(u64) -> Result<Areas>,
) -> Option<Areas> {
    let shape = Shape::of(volume);
    let zone = u64::from(shape.zone);
    let start = u64::from(volume.areas().start);
    let holds = |zones: u64| {
        let areas = layout(start + zones * zone).ok()?;
        let reserve = Reserve::best(areas.main, shape.segs_per_sec)?;
        let user = u64::from(areas.main - reserve.overprovisioned) << LOG_BLOCKS_PER_SEG;
        (user >= needed && areas.sections >= shape.secs_per_zone).then_some(areas)
    };
    let (mut low, mut high) = (0, most.saturating_sub(start) / zone);
    let mut best = holds(high)?;
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        match holds(middle) {
            Some(areas) => (high, best) = (middle, areas),
            None => low = middle,
        }
    }
    Some(best)
}
