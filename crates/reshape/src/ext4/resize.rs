//! The size of a volume.
//!
//! # Growth
//! Nothing that a volume has moves. New groups lie behind its end, where nothing refers to them before the superblock counts them: their
//! bitmaps, tables and descriptors are written at once. One transaction holds the rest: the superblock, the last group that was cut, the
//! descriptors that share a block with old ones or lie in reserved blocks, and the resize inode.
//!
//! The cost does not depend on the size: tables of new groups are marked as never written (or are holes of the image). Descriptors that find no
//! reserved block begin meta groups (`meta_bg`), as in the kernel's growth while mounted: no block has to make room for them.
//!
//! # Shrinkage
//! The parts of a file that lie behind the new end are copied in front of it, and then the end moves (`shrink`).
//!
//! A volume without a journal gets one for the time of the change, in front of the new end, or behind it where files need all the room.

use std::ops::Range;

use blockwright_device::SharedDevice;
use blockwright_ondisk::ext4::superblock::{JournalLocation, State};
use blockwright_ondisk::ext4::{
    BlockNo, Compat, Geometry, GroupDesc, GroupFlags, GroupNo, RawSuperblock, Superblock,
};

use super::commit::Order;
use super::journal_device::Place;
use super::journal_file::{JOURNAL_BLOCKS_MIN, now, with_nodes};
use super::log::Log;
use super::renumber::last_fixed;
use super::shape::{
    LAST_GROUP_SLACK, change_resize_inode, count_overhead, free_descriptor_blocks, metadata_blocks,
    shaped, target,
};
use super::volume::{Volume, clear_bit, set_padding};
use crate::error::{ReshapeError, Result};
use crate::options::{ResizeOptions, Size};
use crate::resized::Parts;
use crate::watch::{Phase, Watch};

pub use super::journal_device::ExternalJournal;
pub use crate::resized::{Mode, Resized};

fn resized(old: &Geometry, new: &Geometry) -> Resized {
    Resized {
        block_bytes: new.block_size,
        blocks_before: old.blocks_count,
        blocks: new.blocks_count,
        parts: Parts::Groups {
            before: old.groups_count,
            now: new.groups_count,
        },
    }
}

/// Changes the size of the volume on a device.
///
/// # Errors
/// `Invalid` for sizes beyond the device; `Unsupported` for sizes that the volume's layout does not allow, and for a volume whose journal is on another device that is not
/// given; `NotClean` for a volume that must be recovered or repaired first; `NoSpace`; `Interrupted` when the watch stops it: the volume has its old size then. With
/// all others but that and `Device` nothing was written: a change is made in memory first, without the contents of files.
pub fn resize(device: &SharedDevice, options: &ResizeOptions) -> Result<Resized> {
    let place = Place::new(device, options.journal.as_ref());
    match options.size {
        Size::Bytes(bytes) => resize_to(&place, bytes, options),
        Size::Minimum { free } => resize_to_minimum(&place, free, options),
    }
}

/// Makes the volume `bytes` bytes large, or a little smaller: whole blocks, and no last group that holds hardly more than its own metadata.
///
/// A volume without a journal gets smaller with one in front of the new end where there is room, else behind it. A rehearsal finds out which, also
/// where none was asked for.
fn resize_to(place: &Place, bytes: u64, options: &ResizeOptions) -> Result<Resized> {
    let (mode, watch) = (options.mode, &options.watch);
    let mut room = Room::Front;
    if mode != Mode::DryRun {
        let volume = Volume::open(place)?;
        let new = target(&volume.sb, bytes)?.geo.blocks_count;
        let chooses = volume.sb.journal().is_none() && new < volume.sb.geo.blocks_count;
        drop(volume);
        if mode == Mode::Rehearsal || options.rehearse || chooses {
            let rehearsed = match rehearse(place, bytes, watch, room) {
                Err(ReshapeError::NoSpace(_)) if chooses => {
                    room = Room::Behind;
                    rehearse(place, bytes, watch, room)?
                }
                rehearsed => rehearsed?,
            };
            if mode == Mode::Rehearsal {
                return Ok(rehearsed);
            }
        }
    }
    make(place, bytes, mode, watch, room)
}

/// Where the journal for the time of a shrinkage lies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    /// In front of the new end.
    Front,
    /// Behind it.
    Behind,
}

/// Makes the volume `bytes` bytes large in memory.
fn rehearse(place: &Place, bytes: u64, watch: &Watch, room: Room) -> Result<Resized> {
    make(
        &place.rehearsal(),
        bytes,
        Mode::Change,
        &watch.planning(),
        room,
    )
}

/// Makes what [`resize`] has looked at.
fn make(place: &Place, bytes: u64, mode: Mode, watch: &Watch, room: Room) -> Result<Resized> {
    let device = &place.device;
    let mut volume = Volume::open_watched(place, watch)?;
    let old = volume.sb.geo.clone();
    if mode == Mode::Change && bytes > device.geometry().bytes {
        return Err(ReshapeError::Invalid(format!(
            "the device has {} bytes, fewer than the {bytes} asked for",
            device.geometry().bytes
        )));
    }
    let target = target(&volume.sb, bytes)?;
    let resized = resized(&old, &target.geo);
    if mode == Mode::DryRun || resized.blocks == resized.blocks_before {
        return Ok(resized);
    }
    let journal_blocks = Log::open(&volume)?.map_or(0, |log| log.len() as u64);
    let smaller = resized.blocks < resized.blocks_before;
    let behind = smaller && room == Room::Behind;
    let temporary = journal_blocks == 0;
    let needed = u64::from(old.reserved_gdt_blocks + target.geo.desc_blocks) * 2;
    let needed = JOURNAL_BLOCKS_MIN + needed;
    let had = volume.sb.raw;
    if temporary && !behind {
        volume.limit = Some(resized.blocks);
        match volume.add_journal(needed) {
            Err(ReshapeError::NoSpace(_)) if !smaller => {
                extend(&mut volume, needed, target.geo.blocks_count)?;
                if let Err(error) = volume.add_journal(needed) {
                    if !matches!(error, ReshapeError::Device { .. }) {
                        give_up(place, Some(0), true)?;
                        cut_back(place, &had)?;
                    }
                    return Err(error);
                }
            }
            added => added?,
        }
    }
    let changed = match smaller {
        true if temporary && behind => {
            super::shrink::shrink_before_journal(&mut volume, &target, needed)
        }
        true => super::shrink::shrink(&mut volume, &target),
        false => grow(&mut volume, bytes),
    };
    if let Err(error) = changed {
        // After a device error nothing more is written.
        if !matches!(error, ReshapeError::Device { .. }) {
            give_up(place, Some(journal_blocks), volume.has_committed)?;
            if temporary && !smaller {
                cut_back(place, &had)?;
            }
        }
        return Err(error);
    }
    if temporary && !behind {
        volume.remove_journal()?;
    }
    volume.write_backups(true)?;
    Ok(resized)
}

/// Ends a change that failed. The volume is consistent, but it may have another journal than before, and other metadata than its copies name, if
/// something was committed. `journal`: the blocks that the journal had, 0 without one; `None` where it has not changed.
pub(super) fn give_up(place: &Place, journal: Option<u64>, committed: bool) -> Result<()> {
    let mut volume = Volume::open(place)?;
    let elsewhere = matches!(volume.sb.journal(), Some(JournalLocation::External { .. }));
    if elsewhere && volume.journal.is_none() {
        // It is lost, and its removal has not begun.
        return Ok(());
    }
    let log = Log::open(&volume)?.map(|log| log.len() as u64);
    let restored = match (log, journal) {
        (Some(_), Some(0)) => {
            volume.remove_journal()?;
            true
        }
        (Some(now), Some(had)) if now != had => {
            volume.replace_journal(had)?;
            true
        }
        _ => false,
    };
    match restored || committed {
        true => volume.write_backups(true),
        false => Ok(()),
    }
}

/// Makes the last group of a full volume longer, without a journal, so that there is room for one of this many blocks. The volume will have `most` blocks.
///
/// # Errors
/// `NoSpace` where the group is too long for that already.
fn extend(volume: &mut Volume, blocks: u64, most: u64) -> Result<()> {
    let geo = &volume.sb.geo;
    let last = geo.group_first_block(GroupNo(geo.groups_count - 1)).0;
    let most = most.min(last + u64::from(geo.blocks_per_group));
    let until = geo.blocks_count + with_nodes(geo, blocks);
    if until > most || geo.cluster_ratio > 1 {
        return Err(ReshapeError::NoSpace(
            "the volume has no journal, and no room for one for the time of the change".into(),
        ));
    }
    let bytes = until << geo.block_bits;
    stage_growth(volume, bytes)?;
    volume.commit_unlogged()
}

/// Gives a volume that [`extend`] has made longer the end that it had. The journal is gone, so nothing is behind that end.
fn cut_back(place: &Place, had: &RawSuperblock) -> Result<()> {
    let mut volume = Volume::open(place)?;
    if volume.sb.geo.blocks_count <= had.blocks_count() {
        return Ok(());
    }
    super::shrink::stage_cut(&mut volume, had.blocks_count())?;
    volume
        .sb
        .raw
        .set_reserved_blocks_count(had.reserved_blocks_count());
    volume.commit_unlogged()?;
    volume.write_backups(true)
}

/// Makes the volume larger. Its journal exists and is empty.
fn grow(volume: &mut Volume, bytes: u64) -> Result<()> {
    let mut log =
        Log::open(volume)?.ok_or_else(|| ReshapeError::Damaged("there is no journal".into()))?;
    stage_growth(volume, bytes)?;
    volume.commit_through(&mut log, Order::Log)
}

/// What makes a mounted volume larger. Its new groups are on the device, behind the end of the volume.
pub struct Growth {
    volume: Volume,
    before: u64,
}

impl Growth {
    /// Plans a growth to `bytes` bytes, or a little less (see [`resize`]), and writes the new groups. The volume is mounted by the caller: the device
    /// shows all that is committed, and nothing changes until the blocks of [`Growth::images`] are.
    ///
    /// # Errors
    /// `Invalid` for sizes that are not larger, or beyond the device; `Unsupported` where a copy of the superblock would move, or, without a journal, the
    /// resize inode would change; `NotClean`.
    pub fn plan(device: &SharedDevice, bytes: u64) -> Result<Self> {
        let mut volume = Volume::open_mounted(device)?;
        if bytes > device.geometry().bytes {
            return Err(ReshapeError::Invalid(format!(
                "the device has {} bytes, fewer than the {bytes} asked for",
                device.geometry().bytes
            )));
        }
        let old = volume.sb.geo.clone();
        let new = target(&volume.sb, bytes)?.geo;
        if new.blocks_count < old.blocks_count {
            return Err(ReshapeError::Invalid(
                "a mounted volume only becomes larger: unmount it to make it smaller".into(),
            ));
        }
        // The engine does not write such volumes; it would have to free clusters.
        if old.cluster_ratio > 1 {
            return Err(ReshapeError::Unsupported(
                "a volume with bigalloc does not grow while it is mounted: unmount it and run `blockwright resize`".into(),
            ));
        }
        // The superblock would name the new place before the bitmap frees the old one.
        if new.backup_bgs != old.backup_bgs && volume.sb.journal().is_none() {
            return Err(ReshapeError::Unsupported(
                "without a journal, the second copy of the superblock cannot move (sparse_super2): unmount the volume and run `blockwright resize`".into(),
            ));
        }
        let most = unlogged_blocks_max(&old);
        if volume.sb.journal().is_none() && new.blocks_count > most {
            return Err(ReshapeError::Unsupported(format!(
                "without a journal, this volume grows to at most {} bytes while it is mounted, because its reserved descriptor blocks (resize_inode) would \
                 change: unmount it and run `blockwright resize`",
                most << old.block_bits
            )));
        }
        if new.blocks_count > old.blocks_count {
            stage_growth(&mut volume, bytes)?;
            volume.disk.flush("new groups")?;
        }
        Ok(Self {
            volume,
            before: old.blocks_count,
        })
    }

    /// Blocks of the volume before.
    #[must_use]
    pub fn blocks_before(&self) -> u64 {
        self.before
    }

    /// The superblock as it will be, with counts of what is free.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.volume.sb
    }

    /// A group's descriptor as it will be.
    #[must_use]
    pub fn desc(&self, group: GroupNo) -> Option<GroupDesc> {
        self.volume.descs.get(group.0 as usize).copied()
    }

    /// The blocks that change together, as they will be. The superblock is not among them.
    pub fn images(&self) -> impl ExactSizeIterator<Item = (BlockNo, &[u8])> {
        let staged = self.volume.disk.staged();
        staged
            .iter()
            .map(|(block, image)| (BlockNo(*block), image.as_slice()))
    }

    /// A block among [`Growth::images`].
    #[must_use]
    pub fn image(&self, block: BlockNo) -> Option<&[u8]> {
        self.volume.disk.staged().get(&block.0).map(Vec::as_slice)
    }

    /// Makes a growth without a journal begin: what a checker would not mend by itself is written in an order that needs none. The blocks of
    /// [`Growth::images`] may then reach the device in any order.
    ///
    /// Descriptors of new groups come first, which nothing reads before the superblock counts the groups. Then comes the superblock, without the mark of a
    /// clean volume. What is new in the last group that was cut still counts as used.
    ///
    /// # Errors
    /// `Device`. The volume must not be written any more then.
    pub fn begin_unlogged(&self) -> Result<()> {
        let volume = &self.volume;
        let geo = &volume.sb.geo;
        let known = volume.committed.blocks_count();
        let old_groups = (known - geo.first_data_block.0).div_ceil(u64::from(geo.blocks_per_group));
        // Descriptors of other blocks are behind the end, and written.
        let (index, at) = geo.desc_position(GroupNo(old_groups as u32));
        let block = geo.desc_block(index).map(|block| block.0);
        if let Some(block) = block.filter(|block| at > 0 && *block < known) {
            let mut image = volume.disk.read_unstaged(block, "group descriptors")?;
            image[at..].copy_from_slice(&volume.desc_image(index)?[at..]);
            volume.disk.write_now(block, &image, "group descriptors")?;
            volume.disk.flush("group descriptors")?;
        }
        let mut raw = volume.sb.raw;
        raw.state.set((raw.state() - State::CLEAN).bits());
        volume.write_super(&raw, false)?;
        volume.disk.flush("superblock")
    }

    /// Writes the copies of superblock and descriptors, once the growth is committed.
    ///
    /// # Errors
    /// `Device`. The volume is whole without them.
    pub fn write_copies(&self) -> Result<()> {
        self.volume.write_backups(true)
    }
}

/// The most blocks to which a volume grows without a journal while it is mounted.
///
/// The resize inode changes with the first descriptor in a reserved block, and with the first new group that has a copy of the superblock. No checker mends, without
/// a question, one that does not fit the superblock.
fn unlogged_blocks_max(old: &Geometry) -> u64 {
    if !old.features.has_compat(Compat::RESIZE_INODE) {
        return u64::MAX;
    }
    let with_room = old.desc_blocks.saturating_mul(old.descs_per_block);
    let groups = (old.groups_count..with_room)
        .find(|group| old.group_has_super(GroupNo(*group)))
        .unwrap_or(with_room);
    old.first_data_block.0 + u64::from(groups) * u64::from(old.blocks_per_group)
}

/// Stages all of a growth but the superblock, and writes the new groups.
fn stage_growth(volume: &mut Volume, bytes: u64) -> Result<()> {
    let old = volume.sb.geo.clone();
    let new = target(&volume.sb, bytes)?;
    // With the old geometry: the bitmap of the group that was cut.
    let cut = GroupNo(old.groups_count - 1);
    let cut_bits = volume.block_bitmap(cut)?;
    volume.sb = new;
    let geo = volume.sb.geo.clone();
    lay_out(volume, old.groups_count)?;
    write_groups(volume, old.groups_count)?;

    let (before, after) = (old.group_clusters(cut), geo.group_clusters(cut));
    if before != after {
        let mut bits = cut_bits;
        for n in before..after {
            clear_bit(&mut bits, n as usize);
        }
        volume.stage_block_bitmap(cut, bits)?;
    }
    free_descriptor_blocks(volume, &old)?;
    change_resize_inode(volume, &old)?;
    count_overhead(volume, &old);
    volume.count_free();
    volume.sb.raw.set_write_time(now() as u64);
    volume.follow()?;
    volume.stage_descs()
}

/// Most room for the nodes of files that come to lie in more pieces.
const PIECES_SLACK_MAX: u64 = 1 << 20;
/// The same, while the journal for the time of the change is behind the end: more is left to the journal in front of it.
const BEHIND_SLACK_MAX: u64 = 256;

/// The fewest bytes that the volume's files need, with `free` bytes more and `slack` blocks for files in more pieces.
fn fewest(volume: &Volume, free: u64, slack: u64) -> Result<u64> {
    let geo = &volume.sb.geo;
    let bpg = u64::from(geo.blocks_per_group);
    let taken: u64 = geo
        .groups()
        .zip(&volume.descs)
        .map(|(g, desc)| {
            u64::from(geo.group_clusters(g)).saturating_sub(u64::from(desc.free_clusters))
        })
        .sum();
    let data = taken.saturating_sub(metadata_blocks(geo))
        + slack
        + free.div_ceil(u64::from(geo.block_size));
    let free_inodes: u32 = volume.descs.iter().map(|desc| desc.free_inodes).sum();
    let inodes = geo.inodes_count.saturating_sub(free_inodes);
    let inodes = inodes.max(last_fixed(volume)?.0);
    let first = geo.first_data_block.0;
    let mut groups = u64::from(inodes.div_ceil(geo.inodes_per_group));
    // Each more group gives room for what its own metadata leaves.
    loop {
        let blocks = (first + groups * bpg).min(geo.blocks_count);
        let new = Superblock::from_raw(shaped(&volume.sb, blocks)?, None)?.geo;
        let room = (blocks - first).saturating_sub(metadata_blocks(&new));
        if room < data && blocks < geo.blocks_count {
            groups += 1;
            continue;
        }
        let own = u64::from(new.base_meta_blocks(GroupNo(new.groups_count - 1)));
        let floor = first
            + (groups - 1) * bpg
            + own
            + 2
            + u64::from(geo.inode_table_blocks)
            + LAST_GROUP_SLACK;
        let fewest = blocks.saturating_sub(room.saturating_sub(data)).max(floor);
        return Ok(fewest.min(geo.blocks_count) << geo.block_bits);
    }
}

/// Makes the volume as small as its files allow, with `free` bytes left free. A rehearsal finds how small that is, also when the caller has made one.
fn resize_to_minimum(place: &Place, free: u64, options: &ResizeOptions) -> Result<Resized> {
    let (mode, watch) = (options.mode, &options.watch);
    let has_journal = Volume::open(place)?.sb.journal().is_some();
    let (mut slack, mut room) = match has_journal {
        true => (0, Room::Front),
        false => (0, Room::Behind),
    };
    loop {
        let bytes = fewest(&Volume::open_watched(place, watch)?, free, slack)?;
        let tried = match mode {
            Mode::DryRun => make(place, bytes, mode, watch, room),
            Mode::Rehearsal | Mode::Change => rehearse(place, bytes, watch, room),
        };
        let slack_max = match room {
            Room::Front => PIECES_SLACK_MAX,
            Room::Behind => BEHIND_SLACK_MAX,
        };
        match tried {
            Err(ReshapeError::NoSpace(_)) if slack < slack_max => slack = (slack * 2).max(1),
            Err(ReshapeError::NoSpace(_)) if room == Room::Behind => {
                (slack, room) = (0, Room::Front);
            }
            Ok(_) if mode == Mode::Change => return make(place, bytes, mode, watch, room),
            result => return result,
        }
    }
}

/// Where a run of blocks is found in groups, front to back.
struct Cursor<'a> {
    geo: &'a Geometry,
    groups: Range<u32>,
    at: u32,
}

impl Cursor<'_> {
    fn take(&mut self, len: u32) -> Result<BlockNo> {
        while !self.groups.is_empty() {
            let group = GroupNo(self.groups.start);
            let start = self.at.max(self.geo.base_meta_blocks(group));
            if start + len <= self.geo.group_blocks(group) {
                self.at = start + len;
                return Ok(BlockNo(
                    self.geo.group_first_block(group).0 + u64::from(start),
                ));
            }
            self.groups.start += 1;
            self.at = 0;
        }
        Err(ReshapeError::Unsupported(
            "new groups have no room for their own metadata".into(),
        ))
    }
}

/// Descriptors of the groups from `first` on. Bitmaps and tables of a flexible group lie together in the first of its new groups.
fn lay_out(volume: &mut Volume, first: u32) -> Result<()> {
    let geo = volume.sb.geo.clone();
    let flex = geo.groups_per_flex;
    let mut start = first;
    while start < geo.groups_count {
        let end = (start - start % flex)
            .saturating_add(flex)
            .min(geo.groups_count);
        let mut cursor = Cursor {
            geo: &geo,
            groups: start..end,
            at: 0,
        };
        let mut descs = vec![GroupDesc::default(); (end - start) as usize];
        for desc in &mut descs {
            desc.block_bitmap = cursor.take(1)?;
        }
        for desc in &mut descs {
            desc.inode_bitmap = cursor.take(1)?;
        }
        for desc in &mut descs {
            desc.inode_table = cursor.take(geo.inode_table_blocks)?;
            desc.free_inodes = geo.inodes_per_group;
        }
        volume.descs.extend(descs);
        start = end;
    }
    Ok(())
}

/// Writes bitmaps and tables of the groups from `first` on, where they must be written.
fn write_groups(volume: &mut Volume, first: u32) -> Result<()> {
    let geo = volume.sb.geo.clone();
    let uninit = volume.has_uninit();
    // Which groups hold metadata of others.
    let mut crowded = vec![false; (geo.groups_count - first) as usize];
    for (n, desc) in volume.descs.iter().enumerate().skip(first as usize) {
        for block in [desc.block_bitmap, desc.inode_bitmap, desc.inode_table] {
            if let Some(group) = geo.group_of_block(block).filter(|g| g.0 as usize != n) {
                crowded[(group.0 - first) as usize] = true;
            }
        }
    }
    let mut inode_bits = vec![0; geo.block_len()];
    set_padding(&mut inode_bits, geo.inodes_per_group as usize);
    for group in (first..geo.groups_count).map(GroupNo) {
        volume.tell_group(Phase::Metadata, group)?;
        let bits = volume.fresh_bitmap(group);
        let mut desc = volume.desc(group)?;
        // Padding counts as taken.
        desc.free_clusters = bits.iter().map(|byte| byte.count_zeros()).sum();
        let last = group.0 + 1 == geo.groups_count;
        let unwritten = uninit && !crowded[(group.0 - first) as usize] && !last;
        if unwritten {
            desc.flags |= GroupFlags::BLOCK_UNINIT;
        } else {
            desc.set_block_bitmap_csum(&bits, &geo);
        }
        // Tools that recover from a copy of the superblock read the bitmaps of unwritten groups, too.
        if !unwritten || geo.base_meta_blocks(group) > 0 {
            volume
                .disk
                .write_now(desc.block_bitmap.0, &bits, "block bitmap")?;
        }
        let table = u64::from(geo.inode_table_blocks);
        if uninit {
            desc.flags |= GroupFlags::INODE_UNINIT;
            desc.itable_unused = geo.inodes_per_group;
            if volume.disk.is_hole(desc.inode_table.0, table) {
                desc.flags |= GroupFlags::INODE_ZEROED;
            }
        } else {
            desc.set_inode_bitmap_csum(&inode_bits, &geo);
            volume
                .disk
                .write_now(desc.inode_bitmap.0, &inode_bits, "inode bitmap")?;
            volume
                .disk
                .zero_now(desc.inode_table.0, table, "inode table")?;
        }
        volume.descs[group.0 as usize] = desc;
    }
    Ok(())
}
