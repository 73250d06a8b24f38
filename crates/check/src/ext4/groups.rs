//! Group descriptors, and the places of the volume's own metadata.
//!
//! A descriptor that cannot be used gets its places from a copy; without a good copy they are guessed. Its counts are computed anew later
//! (`bitmaps`). The work on copies is bounded, also where a superblock claims groups that were never made.

use blockwright_ondisk::ext4::{
    BlockNo, ChecksumKind, Geometry, GroupDesc, GroupFlags, GroupNo, Incompat, RawSuperblock,
    RoCompat, group_desc,
};

use super::CheckError;
use super::context::Checker;
use super::issue::{IssueKind, Metadata};

/// A descriptor's bytes in one of its copies.
pub(super) fn slot<'a>(bytes: &'a [u8], geo: &Geometry, group: GroupNo) -> Option<&'a [u8]> {
    let (_, at) = geo.desc_position(group);
    bytes.get(at..at + usize::from(geo.desc_size))
}

/// Whether bitmaps and table of a descriptor can be where it says.
pub(super) fn location_problem(
    desc: &GroupDesc,
    geo: &Geometry,
    group: GroupNo,
) -> Option<(Metadata, BlockNo)> {
    let flex = geo.features.has_incompat(Incompat::FLEX_BG);
    let start = geo.group_first_block(group).0;
    let end = start + u64::from(geo.group_blocks(group));
    [
        (Metadata::BlockBitmap, desc.block_bitmap, 1),
        (Metadata::InodeBitmap, desc.inode_bitmap, 1),
        (
            Metadata::InodeTable,
            desc.inode_table,
            u64::from(geo.inode_table_blocks),
        ),
    ]
    .into_iter()
    .find(|(_, first, len)| {
        let in_group = first.0 >= start && first.0.saturating_add(*len) <= end;
        !geo.contains_run(*first, *len) || !(flex || in_group)
    })
    .map(|(what, block, _)| (what, block))
}

/// Most copies of a block of descriptors that are read, and kept up to date: enough to repair a volume by, and no
/// more work on one whose every group has a copy.
const COPIES_MAX: usize = 16;
/// A volume whose metadata is missing in more groups than this is not a damaged one, but a superblock that claims one.
const GROUPS_MISSING_MAX: u32 = 512;

/// The first copies of a block of descriptors. They are in early groups, in the block's own groups (`meta_bg`), or in
/// two groups that the superblock names.
fn desc_copy_places(geo: &Geometry, index: u32) -> impl Iterator<Item = BlockNo> {
    const EARLY: u32 = 2048;
    let own = index.saturating_mul(geo.descs_per_block);
    (1..EARLY)
        .chain(own.max(EARLY)..own.saturating_add(geo.descs_per_block).max(EARLY))
        .chain(geo.backup_bgs.into_iter().filter(|g| *g >= EARLY))
        .filter_map(move |g| geo.desc_block_copy(GroupNo(g), index))
        .take(COPIES_MAX)
}

impl Checker {
    /// Reads all descriptors; where one is unusable and a copy is not, the copy is taken.
    pub fn load_groups(&mut self) -> Result<(), CheckError> {
        let geo = self.geo.clone();
        self.descs = Vec::with_capacity(geo.groups_count as usize);
        for index in 0..geo.desc_blocks {
            let Some(place) = geo.desc_block(index) else {
                break;
            };
            let bytes = self.store.read(place, "group descriptors")?;
            let first = index * geo.descs_per_block;
            let last = first
                .saturating_add(geo.descs_per_block)
                .min(geo.groups_count);
            for group in (first..last).map(GroupNo) {
                let raw = slot(&bytes, &geo, group).unwrap_or(&[]);
                let desc = GroupDesc::decode(raw, &geo).unwrap_or_default();
                self.descs.push(desc);
            }
        }
        Ok(())
    }

    /// Where copies of a descriptor are.
    pub fn desc_copy_places(&self, group: GroupNo) -> Vec<BlockNo> {
        let geo = &self.geo;
        let (index, _) = geo.desc_position(group);
        desc_copy_places(geo, index).collect()
    }

    /// Copies of a descriptor that name possible places; those with a right checksum first.
    pub fn desc_copies(&self, group: GroupNo) -> Result<Vec<GroupDesc>, CheckError> {
        let geo = &self.geo;
        let (index, _) = geo.desc_position(group);
        // Groups of one block of descriptors come one after the other: their copies are read once.
        let mut kept = self.copies_read.borrow_mut();
        if kept.0 != Some(index) {
            let mut blocks = Vec::new();
            for place in self.desc_copy_places(group) {
                if !self.store.is_hole(place, 1) {
                    blocks.push(self.store.read(place, "copy of the group descriptors")?);
                }
            }
            *kept = (Some(index), blocks);
        }
        let (mut right, mut wrong) = (Vec::new(), Vec::new());
        for bytes in &kept.1 {
            let Some(raw) = slot(bytes, geo, group) else {
                continue;
            };
            let Ok(desc) = GroupDesc::decode(raw, geo) else {
                continue;
            };
            if location_problem(&desc, geo, group).is_some() {
                continue;
            }
            if group_desc::verify_checksum(raw, geo, group).is_ok() {
                right.push(desc);
            } else {
                wrong.push(desc);
            }
        }
        right.extend(wrong);
        Ok(right)
    }

    /// Whether a group's block bitmap must have bits: the group holds its own table.
    fn needs_bits(&self, group: GroupNo) -> bool {
        let desc = &self.descs[group.0 as usize];
        let uninit = desc.flags.contains(GroupFlags::BLOCK_UNINIT);
        !(uninit && self.geo.checksums != ChecksumKind::None)
            && self.geo.group_of_block(desc.inode_table) == Some(group)
    }

    /// Counts a group whose metadata is not there.
    ///
    /// # Errors
    /// When there are so many that making all of it anew is not repairing a volume.
    pub fn group_is_not_there(&mut self) -> Result<(), CheckError> {
        self.scan.groups_missing += 1;
        if self.scan.groups_missing > GROUPS_MISSING_MAX {
            return Err(CheckError::GroupsMissing {
                groups: self.geo.groups_count,
                missing: self.scan.groups_missing,
            });
        }
        Ok(())
    }

    /// Brings the copies of changed descriptors up to date. Once, when everything else is done: there may be as many
    /// copies as groups.
    pub fn store_desc_copies(&mut self) -> Result<(), CheckError> {
        let geo = self.geo.clone();
        for index in std::mem::take(&mut self.stale_copies) {
            let Some(primary) = geo.desc_block(index) else {
                continue;
            };
            let bytes = self.store.read(primary, "group descriptors")?;
            for place in desc_copy_places(&geo, index) {
                if place != primary && self.store.read(place, "group descriptors")? != bytes {
                    self.write(place, bytes.clone());
                }
            }
        }
        Ok(())
    }

    /// Checks all descriptors and enters the volume's metadata into the map of used blocks.
    pub fn check_groups(&mut self) -> Result<(), CheckError> {
        *self.copies_read.borrow_mut() = (None, Vec::new());
        self.load_groups()?;
        let geo = self.geo.clone();
        self.claim_fixed_metadata();
        self.seek_first_table()?;
        for index in 0..geo.desc_blocks {
            let Some(place) = geo.desc_block(index) else {
                break;
            };
            let bytes = self.store.read(place, "group descriptors")?;
            let first = index * geo.descs_per_block;
            let last = first
                .saturating_add(geo.descs_per_block)
                .min(geo.groups_count);
            for group in (first..last).map(GroupNo) {
                if let Some(raw) = slot(&bytes, &geo, group) {
                    self.check_desc(group, raw)?;
                }
            }
        }
        for group in geo.groups() {
            self.claim_inode_table(group)?;
        }
        self.check_marks()?;
        for group in geo.groups() {
            self.claim_bitmaps(group)?;
        }
        Ok(())
    }

    fn check_desc(&mut self, group: GroupNo, raw: &[u8]) -> Result<(), CheckError> {
        let geo = self.geo.clone();
        let at = group.0 as usize;
        if let Some((what, block)) = location_problem(&self.descs[at], &geo, group) {
            let repair = self.problem(IssueKind::GroupDescLocation { group, what, block });
            match self.desc_copies(group)?.first() {
                Some(copy) if group.0 > 0 || self.may_hold_root(copy.inode_table)? => {
                    self.take_places(group, copy);
                }
                _ => {
                    self.group_is_not_there()?;
                    self.guess_places(group);
                }
            }
            if repair {
                self.write_desc(group, true)?;
            }
            return Ok(());
        }
        if group_desc::verify_checksum(raw, &geo, group).is_err() {
            let repair = self.problem(IssueKind::GroupDescChecksum { group });
            // The descriptor's count of unused inodes is not reliable.
            self.descs[at].flags -= GroupFlags::INODE_UNINIT | GroupFlags::BLOCK_UNINIT;
            self.descs[at].itable_unused = 0;
            if let Some(copy) = self.desc_copies(group)?.first()
                && (group.0 > 0 || self.may_hold_root(copy.inode_table)?)
            {
                self.take_places(group, copy);
            }
            if repair {
                self.write_desc(group, true)?;
            }
        }
        self.check_desc_flags(group)
    }

    /// Takes the places of bitmaps and table from a copy. Its counts are as old as it is.
    fn take_places(&mut self, group: GroupNo, copy: &GroupDesc) {
        let desc = &mut self.descs[group.0 as usize];
        desc.block_bitmap = copy.block_bitmap;
        desc.inode_bitmap = copy.inode_bitmap;
        desc.inode_table = copy.inode_table;
        desc.flags = copy.flags & GroupFlags::INODE_ZEROED;
        desc.itable_unused = 0;
    }

    fn check_desc_flags(&mut self, group: GroupNo) -> Result<(), CheckError> {
        let geo = self.geo.clone();
        let at = group.0 as usize;
        let flags = self.descs[at].flags;
        let uninit = GroupFlags::INODE_UNINIT | GroupFlags::BLOCK_UNINIT;
        let mut repair = false;
        if geo.checksums == ChecksumKind::None {
            if flags.intersects(uninit) || self.descs[at].itable_unused != 0 {
                repair |= self.problem(IssueKind::GroupFlags {
                    group,
                    flags: flags.bits(),
                    what: "without checksums of group descriptors",
                });
                self.descs[at].flags -= uninit;
                self.descs[at].itable_unused = 0;
            }
        } else {
            if flags.contains(GroupFlags::BLOCK_UNINIT) && group.0 + 1 == geo.groups_count {
                repair |= self.problem(IssueKind::GroupFlags {
                    group,
                    flags: flags.bits(),
                    what: "the last group's block bitmap must exist",
                });
                self.descs[at].flags -= GroupFlags::BLOCK_UNINIT;
            }
            let unused = self.descs[at].itable_unused;
            if unused > geo.inodes_per_group {
                repair |= self.problem(IssueKind::GroupUnusedInodes {
                    group,
                    found: unused,
                });
                self.descs[at].itable_unused = 0;
            }
        }
        if repair {
            self.write_desc(group, false)?;
        }
        Ok(())
    }

    /// Places for a group's metadata when no descriptor names them: where `mke2fs` puts them without flexible groups. Data
    /// in a table elsewhere is lost, but the group is usable again.
    fn guess_places(&mut self, group: GroupNo) {
        let geo = self.geo.clone();
        let base = geo.group_first_block(group).0 + u64::from(geo.base_meta_blocks(group));
        let desc = &mut self.descs[group.0 as usize];
        if !geo.contains_run(desc.inode_table, u64::from(geo.inode_table_blocks)) {
            desc.inode_table = BlockNo(base + 2);
        }
        // A bitmap without a place is given one when it is known what is free.
        if !geo.contains_run(desc.block_bitmap, 1) {
            desc.block_bitmap = BlockNo(0);
        }
        if !geo.contains_run(desc.inode_bitmap, 1) {
            desc.inode_bitmap = BlockNo(0);
        }
        desc.flags = GroupFlags::empty();
        desc.itable_unused = 0;
    }

    /// Superblock copies and descriptors: their place follows from the geometry alone.
    fn claim_fixed_metadata(&mut self) {
        let geo = self.geo.clone();
        for group in geo.groups() {
            let count =
                u64::from(geo.base_meta_blocks(group)).min(u64::from(geo.group_blocks(group)));
            if count > 0 {
                let first = geo.group_first_block(group);
                self.scan.claim_metadata(first, count);
            }
        }
        if let Some(block) = mmp_block(&self.sb, &geo) {
            self.scan.claim_metadata(block, 1);
        }
    }

    fn claim_inode_table(&mut self, group: GroupNo) -> Result<(), CheckError> {
        let geo = self.geo.clone();
        let len = u64::from(geo.inode_table_blocks);
        let what = Metadata::InodeTable;
        let mut first = self.descs[group.0 as usize].inode_table;
        if !geo.contains_run(first, len) {
            return Ok(());
        }
        let overlaps =
            |scan: &super::state::Scan, first: BlockNo| scan.metadata_overlaps(first, len);
        if overlaps(&self.scan, first) {
            let block = first;
            let repair = self.problem(IssueKind::MetadataOverlap { group, what, block });
            let better = self
                .desc_copies(group)?
                .into_iter()
                .find(|copy| !overlaps(&self.scan, copy.inode_table));
            if let Some(copy) = better {
                self.descs[group.0 as usize].inode_table = copy.inode_table;
                first = copy.inode_table;
                if repair {
                    self.write_desc(group, true)?;
                }
            }
        }
        self.scan.claim_metadata(first, len);
        Ok(())
    }

    fn claim_bitmaps(&mut self, group: GroupNo) -> Result<(), CheckError> {
        let geo = self.geo.clone();
        let desc = self.descs[group.0 as usize];
        if self.needs_bits(group) && self.store.is_hole(desc.block_bitmap, 1) {
            self.group_is_not_there()?;
        }
        for (what, first) in [
            (Metadata::BlockBitmap, desc.block_bitmap),
            (Metadata::InodeBitmap, desc.inode_bitmap),
        ] {
            if !geo.contains_run(first, 1) {
                self.scan.relocate.push((group, what));
                continue;
            }
            if self.scan.metadata_overlaps(first, 1)
                && self.problem(IssueKind::MetadataOverlap {
                    group,
                    what,
                    block: first,
                })
            {
                self.scan.relocate.push((group, what));
                continue;
            }
            self.scan.claim_metadata(first, 1);
        }
        Ok(())
    }

    /// Gives bitmaps without a place of their own one, now that it is known what is free. Their
    /// contents are computed right afterwards.
    pub fn relocate_bitmaps(&mut self) -> Result<(), CheckError> {
        for (group, what) in std::mem::take(&mut self.scan.relocate) {
            if !self.repairing() {
                continue;
            }
            let near = self.geo.group_first_block(group);
            let Some(place) = self.scan.used.find_free(near) else {
                continue;
            };
            self.scan
                .used
                .insert_run(place, u64::from(self.geo.cluster_ratio), None);
            self.scan.metadata.insert_run(place, 1, None);
            let desc = &mut self.descs[group.0 as usize];
            match what {
                Metadata::BlockBitmap => desc.block_bitmap = place,
                _ => desc.inode_bitmap = place,
            }
            self.write_desc(group, true)?;
        }
        Ok(())
    }

    /// Inodes of a group's table that may be in use: all but the unused ones at its end.
    pub fn table_in_use(&self, group: GroupNo) -> u32 {
        let geo = &self.geo;
        let Some(desc) = self.descs.get(group.0 as usize) else {
            return 0;
        };
        if geo.checksums == ChecksumKind::None {
            return geo.inodes_per_group;
        }
        if desc.flags.contains(GroupFlags::INODE_UNINIT) {
            return 0;
        }
        geo.inodes_per_group.saturating_sub(desc.itable_unused)
    }
}

/// The multiple-mount-protection block, where it is plausible.
pub(super) fn mmp_block(sb: &RawSuperblock, geo: &Geometry) -> Option<BlockNo> {
    if !geo.features.has_incompat(Incompat::MMP) {
        return None;
    }
    Some(BlockNo(sb.mmp_block.get())).filter(|b| geo.contains_run(*b, 1))
}

/// Whether directories of this volume may have more subdirectories than a link count holds.
pub(super) fn dir_nlink(geo: &Geometry) -> bool {
    geo.features.has_ro_compat(RoCompat::DIR_NLINK)
}
