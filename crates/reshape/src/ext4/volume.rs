//! A volume that is about to be changed: superblock, descriptors, bitmaps and inodes, as they will be.
//!
//! Owns: the superblock that will be committed, all group descriptors, and the [`Disk`] with its staged blocks.
//! A volume that is in use, damaged or not recovered is refused when it is opened.

use std::collections::BTreeMap;

use blockwright_device::SharedDevice;
use blockwright_ondisk::ext4::mmp::{self, RawMmp};
use blockwright_ondisk::ext4::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, State};
use blockwright_ondisk::ext4::{
    BlockNo, Geometry, GroupDesc, GroupFlags, GroupNo, Incompat, Ino, Inode, RawSuperblock,
    RoCompat, Superblock,
};

use super::disk::Disk;
use super::journal_device::{ExternalJournal, Place};
use crate::error::{ReshapeError, Result};
use crate::watch::Watch;

const DESCRIPTORS: &str = "group descriptors";

/// Read-only-compatible features of volumes that are not changed, although their structures are known.
const UNCHANGED: RoCompat = RoCompat::BTREE_DIR
    .union(RoCompat::READ_ONLY)
    .union(RoCompat::SHARED_BLOCKS);

/// A volume being changed.
pub(crate) struct Volume {
    pub disk: Disk,
    /// As it will be. Its geometry follows [`Volume::follow`].
    pub sb: Superblock,
    /// As it is on the device.
    pub committed: RawSuperblock,
    /// As they will be.
    pub descs: Vec<GroupDesc>,
    /// The first block that nothing new is put at or behind: the volume is getting smaller.
    pub limit: Option<u64>,
    /// A new journal is put at or behind this block.
    pub floor: u64,
    /// The blocks that the journal had before it was made larger for the time of the change.
    pub enlarged_from: Option<u64>,
    /// Whether something was committed since it was opened.
    pub has_committed: bool,
    /// The journal on another device that the caller has named.
    pub journal: Option<ExternalJournal>,
}

/// The superblock of a volume, for which nothing but itself is read.
pub(crate) fn read_super(device: &SharedDevice) -> Result<Superblock> {
    let bytes = Disk::read_bytes(device, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, "superblock")?;
    Ok(Superblock::parse(&bytes, Some(device.geometry().bytes))?)
}

/// Refuses features whose structures are not known.
fn check_known(sb: &Superblock) -> Result<()> {
    let features = sb.features();
    // `NEEDS_RECOVERY` has its own sentence.
    let mut unknown = features.unsupported_incompat(Incompat::KNOWN);
    unknown.extend(features.unsupported_ro_compat(RoCompat::KNOWN.difference(UNCHANGED)));
    if unknown.is_empty() {
        return Ok(());
    }
    Err(ReshapeError::Unsupported(format!(
        "volumes with the feature {} are not changed",
        unknown.join(", ")
    )))
}

/// Refuses a volume that another host uses, as its block of multiple-mount protection says.
///
/// # Errors
/// `NotClean`; `Format`, `Device`.
pub(super) fn check_use(device: &SharedDevice, sb: &Superblock) -> Result<()> {
    let Some(block) = sb.mmp_block()? else {
        return Ok(());
    };
    let disk = Disk::new(device.clone(), sb.geo.block_size);
    let bytes = disk.read(block.0, "multiple-mount protection")?;
    match RawMmp::parse(&bytes, &sb.geo)?.seq.get() == mmp::SEQ_CLEAN {
        true => Ok(()),
        false => Err(ReshapeError::NotClean(
            "the volume is in use by another host",
        )),
    }
}

/// Writes a superblock that needs no recovery in its place, durably, and then its copies.
///
/// # Errors
/// `Device`.
pub(super) fn write_super_copies(
    device: &SharedDevice,
    sb: &Superblock,
    raw: &RawSuperblock,
) -> Result<()> {
    let disk = Disk::new(device.clone(), sb.geo.block_size);
    let bytes = with_recovery(raw, false).to_bytes();
    disk.write_bytes(SUPERBLOCK_OFFSET, &bytes, "superblock")?;
    disk.flush("superblock")?;
    write_copies(&disk, &sb.geo, raw)?;
    disk.flush("superblock copies")
}

/// Writes the copies of a superblock.
fn write_copies(disk: &Disk, geo: &Geometry, raw: &RawSuperblock) -> Result<()> {
    for group in geo.groups().skip(1) {
        if let Some(block) = geo.group_super_block(group) {
            let mut raw = with_recovery(raw, false);
            raw.block_group_nr.set(group.0 as u16);
            raw.set_checksum();
            let mut bytes = vec![0; geo.block_len()];
            bytes[..SUPERBLOCK_SIZE].copy_from_slice(&raw.to_bytes());
            disk.write_now(block.0, &bytes, "superblock copy")?;
        }
    }
    Ok(())
}

impl Volume {
    /// Opens a volume for a change.
    ///
    /// # Errors
    /// `NotClean` for volumes that must be recovered or repaired, or are in use; `Unsupported` for features that are not known.
    pub fn open(place: &Place) -> Result<Self> {
        let device = &place.device;
        let sb = read_super(device)?;
        check_known(&sb)?;
        let features = sb.features();
        let state = sb.raw.state();
        let why = if features.has_incompat(Incompat::NEEDS_RECOVERY) {
            Some("the journal must be replayed")
        } else if state.contains(State::ERROR) || sb.raw.error_count.get() != 0 {
            Some("errors are recorded in the superblock")
        } else if !state.contains(State::CLEAN) {
            Some("the volume was not unmounted")
        } else if sb.raw.last_orphan.get() != 0 || features.has_ro_compat(RoCompat::ORPHAN_PRESENT)
        {
            Some("removed files are not cleaned up")
        } else {
            None
        };
        if let Some(why) = why {
            return Err(ReshapeError::NotClean(why));
        }
        let disk = Disk::new(device.clone(), sb.geo.block_size);
        check_use(device, &sb)?;
        let mut volume = Self::with_descs(disk, sb)?;
        volume.disk.rehearses = place.rehearses;
        volume.journal.clone_from(&place.journal);
        Ok(volume)
    }

    /// As [`Volume::open`], for a change that is watched.
    ///
    /// # Errors
    /// As [`Volume::open`].
    pub fn open_watched(place: &Place, watch: &Watch) -> Result<Self> {
        let mut volume = Self::open(place)?;
        volume.disk.watch = watch.clone();
        Ok(volume)
    }

    /// Opens a volume that the caller has mounted, to plan a change. The device shows its state with all that is committed, and nothing changes
    /// meanwhile.
    ///
    /// # Errors
    /// `NotClean` when errors are recorded; `Unsupported` for features that are not known.
    pub fn open_mounted(device: &SharedDevice) -> Result<Self> {
        let sb = read_super(device)?;
        check_known(&sb)?;
        if sb.raw.state().contains(State::ERROR) || sb.raw.error_count.get() != 0 {
            return Err(ReshapeError::NotClean(
                "errors are recorded in the superblock",
            ));
        }
        Self::with_descs(Disk::new(device.clone(), sb.geo.block_size), sb)
    }

    fn with_descs(disk: Disk, sb: Superblock) -> Result<Self> {
        let mut volume = Self {
            disk,
            committed: sb.raw,
            sb,
            descs: Vec::new(),
            limit: None,
            floor: 0,
            enlarged_from: None,
            has_committed: false,
            journal: None,
        };
        volume.read_descs()?;
        Ok(volume)
    }

    /// Reads all descriptors, as they are on the device or staged.
    pub fn read_descs(&mut self) -> Result<()> {
        let geo = &self.sb.geo;
        let mut descs = Vec::with_capacity(geo.groups_count as usize);
        let mut block = Vec::new();
        for group in geo.groups() {
            let (index, at) = geo.desc_position(group);
            if at == 0 {
                block = self.disk.read(self.desc_block(index)?, DESCRIPTORS)?;
            }
            descs.push(GroupDesc::parse(&block[at..], geo, group)?);
        }
        self.descs = descs;
        Ok(())
    }

    fn desc_block(&self, index: u32) -> Result<u64> {
        let block = self.sb.geo.desc_block(index);
        block
            .map(|b| b.0)
            .ok_or_else(|| ReshapeError::Damaged("a descriptor has no place".into()))
    }

    /// The block of descriptors with this index, as it will be.
    pub fn desc_image(&self, index: u32) -> Result<Vec<u8>> {
        let geo = &self.sb.geo;
        let mut bytes = vec![0; geo.block_len()];
        let first = index * geo.descs_per_block;
        for group in (first..geo.groups_count.min(first + geo.descs_per_block)).map(GroupNo) {
            let (_, at) = geo.desc_position(group);
            let desc = self
                .descs
                .get(group.0 as usize)
                .ok_or_else(|| ReshapeError::Damaged("a group has no descriptor".into()))?;
            desc.encode_into(&mut bytes[at..], geo, group)?;
        }
        Ok(bytes)
    }

    /// Stages the blocks of descriptors that differ from what is on the device.
    pub fn stage_descs(&mut self) -> Result<()> {
        for index in 0..self.sb.geo.desc_blocks {
            let block = self.desc_block(index)?;
            let image = self.desc_image(index)?;
            // Behind the end of the volume as it is, nothing refers to it yet.
            if block >= self.committed.blocks_count() {
                self.disk.write_now(block, &image, DESCRIPTORS)?;
            } else if self.disk.read(block, DESCRIPTORS)? != image {
                self.disk.stage(block, image);
            }
        }
        Ok(())
    }

    /// The geometry after a change of the superblock.
    pub fn follow(&mut self) -> Result<()> {
        self.sb = Superblock::from_raw(self.sb.raw, None)?;
        Ok(())
    }

    /// Stages the superblock as it will be, with and without a log that must be replayed.
    pub fn stage_super(&mut self, needs_recovery: bool) -> Result<()> {
        let geo = &self.sb.geo;
        let block = geo.super_block().0;
        let at = (SUPERBLOCK_OFFSET - block * u64::from(geo.block_size)) as usize;
        let mut image = self.disk.read(block, "superblock")?;
        let bytes = with_recovery(&self.sb.raw, needs_recovery).to_bytes();
        image[at..at + SUPERBLOCK_SIZE].copy_from_slice(&bytes);
        self.disk.stage(block, image);
        Ok(())
    }

    /// Writes a superblock in its place.
    pub fn write_super(&self, raw: &RawSuperblock, needs_recovery: bool) -> Result<()> {
        let bytes = with_recovery(raw, needs_recovery).to_bytes();
        self.disk
            .write_bytes(SUPERBLOCK_OFFSET, &bytes, "superblock")
    }

    /// A group's descriptor.
    pub fn desc(&self, group: GroupNo) -> Result<GroupDesc> {
        let desc = self.descs.get(group.0 as usize).copied();
        desc.ok_or_else(|| ReshapeError::Damaged(format!("there is no group {group}")))
    }

    /// A group's block bitmap; one that was never written is made.
    pub fn block_bitmap(&self, group: GroupNo) -> Result<Vec<u8>> {
        let desc = self.desc(group)?;
        if desc.flags.contains(GroupFlags::BLOCK_UNINIT) {
            return Ok(self.fresh_bitmap(group));
        }
        let bytes = self.disk.read(desc.block_bitmap.0, "block bitmap")?;
        desc.verify_block_bitmap(&bytes, &self.sb.geo, group)?;
        Ok(bytes)
    }

    /// The bitmap of a group that holds nothing but metadata: its own, and that of other groups.
    pub fn fresh_bitmap(&self, group: GroupNo) -> Vec<u8> {
        let geo = &self.sb.geo;
        let mut bits = vec![0; geo.block_len()];
        let base = geo.group_first_block(group).0;
        let mut take = |first: u64, len: u64| {
            let end = (first + len).min(base + u64::from(geo.group_blocks(group)));
            for block in first.max(base)..end {
                set_bit(&mut bits, ((block - base) >> geo.cluster_bits) as usize);
            }
        };
        take(base, u64::from(geo.base_meta_blocks(group)));
        let first = geo.flex_first_group(group).0;
        let end = first
            .saturating_add(geo.groups_per_flex)
            .min(self.descs.len() as u32);
        // Metadata of a flexible group lies in it, where `mke2fs` and this crate put it.
        for desc in &self.descs[first as usize..end as usize] {
            take(desc.block_bitmap.0, 1);
            take(desc.inode_bitmap.0, 1);
            take(desc.inode_table.0, u64::from(geo.inode_table_blocks));
        }
        set_padding(&mut bits, geo.group_clusters(group) as usize);
        bits
    }

    /// Stages a group's block bitmap, with its checksum in the descriptor.
    pub fn stage_block_bitmap(&mut self, group: GroupNo, bits: Vec<u8>) -> Result<()> {
        let geo = &self.sb.geo;
        let clusters = geo.group_clusters(group) as usize;
        let mut desc = self.desc(group)?;
        desc.flags.remove(GroupFlags::BLOCK_UNINIT);
        let whole = clusters / 8;
        let zeros: u32 = bits[..whole].iter().map(|byte| byte.count_zeros()).sum();
        let rest = (whole * 8..clusters).filter(|n| !bit(&bits, *n)).count();
        desc.free_clusters = zeros + rest as u32;
        desc.set_block_bitmap_csum(&bits, geo);
        self.descs[group.0 as usize] = desc;
        self.disk.stage(desc.block_bitmap.0, bits);
        Ok(())
    }

    /// Marks blocks as used or free, cluster by cluster.
    pub fn mark_blocks(&mut self, first: u64, len: u64, used: bool) -> Result<()> {
        let mut at = first;
        while at < first + len {
            let geo = &self.sb.geo;
            let (group, offset) = geo.split_block(BlockNo(at)).ok_or_else(|| {
                ReshapeError::Damaged(format!("block {at} is outside of the volume"))
            })?;
            let count = (first + len - at).min(u64::from(geo.group_blocks(group) - offset));
            let shift = geo.cluster_bits;
            let mut bits = self.block_bitmap(group)?;
            for n in (u64::from(offset) >> shift)..=((u64::from(offset) + count - 1) >> shift) {
                match used {
                    true => set_bit(&mut bits, n as usize),
                    false => clear_bit(&mut bits, n as usize),
                }
            }
            self.stage_block_bitmap(group, bits)?;
            at += count;
        }
        Ok(())
    }

    /// Marks many runs, each group's bitmap once. A later mark of a block outweighs an earlier one.
    pub fn mark_many(&mut self, marks: &[(u64, u64, bool)]) -> Result<()> {
        let mut groups: BTreeMap<u32, Vec<(u32, u32, bool)>> = BTreeMap::new();
        for (first, len, used) in marks {
            let mut at = *first;
            while at < first + len {
                let geo = &self.sb.geo;
                let (group, offset) = geo.split_block(BlockNo(at)).ok_or_else(|| {
                    ReshapeError::Damaged(format!("block {at} is outside of the volume"))
                })?;
                let count = (first + len - at).min(u64::from(geo.group_blocks(group) - offset));
                let runs = groups.entry(group.0).or_default();
                runs.push((offset, count as u32, *used));
                at += count;
            }
        }
        for (group, runs) in groups {
            let group = GroupNo(group);
            let mut bits = self.block_bitmap(group)?;
            let shift = self.sb.geo.cluster_bits;
            for (offset, count, used) in runs {
                for n in (offset >> shift)..=((offset + count - 1) >> shift) {
                    match used {
                        true => set_bit(&mut bits, n as usize),
                        false => clear_bit(&mut bits, n as usize),
                    }
                }
            }
            self.stage_block_bitmap(group, bits)?;
        }
        Ok(())
    }

    /// Where an inode is: block, and offset in it.
    pub fn inode_place(&self, ino: Ino) -> Result<(u64, usize)> {
        let geo = &self.sb.geo;
        let place = geo.split_ino(ino).and_then(|(group, _)| {
            let table = self.descs.get(group.0 as usize)?.inode_table;
            geo.inode_location(ino, table)
        });
        place
            .map(|(block, at)| (block.0, at))
            .ok_or_else(|| ReshapeError::Damaged(format!("there is no inode {ino}")))
    }

    /// An inode.
    pub fn inode(&self, ino: Ino) -> Result<Inode> {
        let (block, at) = self.inode_place(ino)?;
        let bytes = self.disk.read(block, "inode table")?;
        Ok(Inode::parse(&bytes[at..], &self.sb.geo, ino)?)
    }

    /// The bytes of an inode.
    pub fn raw_inode(&self, ino: Ino) -> Result<Vec<u8>> {
        let (block, at) = self.inode_place(ino)?;
        let bytes = self.disk.read(block, "inode table")?;
        Ok(bytes[at..at + usize::from(self.sb.geo.inode_size)].to_vec())
    }

    /// Stages an inode; `None` for one that is free.
    pub fn stage_inode(&mut self, ino: Ino, inode: Option<&Inode>) -> Result<()> {
        let (block, at) = self.inode_place(ino)?;
        let mut bytes = self.disk.read(block, "inode table")?;
        let size = usize::from(self.sb.geo.inode_size);
        let raw = &mut bytes[at..at + size];
        match inode {
            Some(inode) => inode.encode_into(raw, &self.sb.geo, ino)?,
            None => raw.fill(0),
        }
        self.disk.stage(block, bytes);
        Ok(())
    }

    /// The superblock's counts of free blocks and inodes, from the descriptors.
    pub fn count_free(&mut self) {
        let clusters: u64 = self.descs.iter().map(|d| u64::from(d.free_clusters)).sum();
        let inodes: u64 = self.descs.iter().map(|d| u64::from(d.free_inodes)).sum();
        let shift = self.sb.geo.cluster_bits;
        self.sb.raw.set_free_blocks_count(clusters << shift);
        self.sb.raw.free_inodes_count.set(inodes as u32);
    }

    /// Whether descriptors have checksums, so that bitmaps and tables may be left unwritten.
    pub fn has_uninit(&self) -> bool {
        let f = self.sb.features();
        f.metadata_csum() || f.has_ro_compat(RoCompat::UNINIT_BG)
    }

    /// Writes the copies of the superblock, and with `descriptors` those of the descriptors. They serve when the originals are lost, so a
    /// crash meanwhile costs nothing. A rehearsal leaves them out, because nothing reads them.
    pub fn write_backups(&self, descriptors: bool) -> Result<()> {
        if self.disk.rehearses {
            return Ok(());
        }
        let geo = &self.sb.geo;
        write_copies(&self.disk, geo, &self.sb.raw)?;
        if !descriptors {
            return self.disk.flush("superblock copies");
        }
        let mut images = Vec::with_capacity(geo.desc_blocks as usize);
        for index in 0..geo.desc_blocks {
            images.push(self.desc_image(index)?);
        }
        let meta_bg = geo.features.has_incompat(Incompat::META_BG);
        for group in geo.groups().skip(1) {
            if geo.group_desc_blocks(group) == 0 {
                continue;
            }
            // In a meta group only one index, else those of the whole list.
            let own = group.0 / geo.descs_per_block;
            let range = match meta_bg && own >= geo.first_meta_bg {
                true => own..own + 1,
                false => 0..geo.group_desc_blocks(group),
            };
            let copies = range.filter_map(|index| {
                let block = geo.desc_block_copy(group, index)?;
                Some((block.0, images[index as usize].as_slice()))
            });
            self.disk.write_all(copies, "descriptor copies")?;
        }
        self.disk.flush("copies")
    }
}

/// A superblock that does or does not ask for a replay, with its checksum.
fn with_recovery(raw: &RawSuperblock, needs_recovery: bool) -> RawSuperblock {
    let mut raw = *raw;
    let mut features = raw.features();
    features
        .incompat
        .set(Incompat::NEEDS_RECOVERY, needs_recovery);
    raw.set_features(features);
    raw.set_checksum();
    raw
}

/// Whether a bit of a bitmap is set.
pub(crate) fn bit(bits: &[u8], n: usize) -> bool {
    bits[n / 8] & (1 << (n % 8)) != 0
}

/// Sets a bit of a bitmap.
pub(crate) fn set_bit(bits: &mut [u8], n: usize) {
    bits[n / 8] |= 1 << (n % 8);
}

/// Clears a bit of a bitmap.
pub(crate) fn clear_bit(bits: &mut [u8], n: usize) {
    bits[n / 8] &= !(1 << (n % 8));
}

/// Sets all bits from `from` to the end of the block: they stand for nothing.
pub(crate) fn set_padding(bits: &mut [u8], from: usize) {
    let whole = from.next_multiple_of(8);
    for n in from..whole.min(bits.len() * 8) {
        set_bit(bits, n);
    }
    if let Some(rest) = bits.get_mut(whole / 8..) {
        rest.fill(0xFF);
    }
}
