//! Checksums of metadata (`metadata_csum`), put on a volume and taken off.
//!
//! # Crash order
//! A volume without the feature ignores the places of checksums: in inodes, extent nodes, attribute blocks, the last entry of a directory's leaf, the block
//! of multiple-mount protection and the file of orphans. So they are written in place, while the superblock does not name the feature. What the
//! feature changes otherwise is one transaction of the journal: the superblock, all descriptors, and index blocks of directories, which have room for
//! an entry less.
//!
//! - Put on: directories get room first (`tails`), then checksums are written, then comes the transaction.
//! - Taken off: the transaction; then what is left of checksums is cleared.
//!
//! The superblock of the transaction is written first, both times (`Order::Superblock`): a kernel that replays a log keeps what it has derived from the
//! superblock that it had read, the seed of checksums among them. Descriptors have the other kind of checksum until they are written in place.
//! Meanwhile a kernel refuses to mount until e2fsck has replayed the journal.
//!
//! Reference: kernel documentation, "ext4 Data Structures: Checksums".

use std::collections::HashSet;

use blockwright_ondisk::ext4::checksum::inode_has_checksum_hi;
use blockwright_ondisk::ext4::checksum::{INODE_CHECKSUM_HI_OFFSET, INODE_CHECKSUM_LO_OFFSET};
use blockwright_ondisk::ext4::dir::DirFormat;
use blockwright_ondisk::ext4::htree::DxPlace;
use blockwright_ondisk::ext4::mmp::{self, RawMmp};
use blockwright_ondisk::ext4::superblock::CHECKSUM_TYPE_CRC32C;
use blockwright_ondisk::ext4::{
    BlockNo, Geometry, GroupDesc, GroupFlags, Incompat, Ino, Inode, InodeFlags, MetaSeed,
    RawSuperblock, RoCompat, Superblock, dir, extent, orphan_file, xattr,
};
use zerocopy::{FromBytes, IntoBytes};

use super::commit::Order;
use super::indexes::is_indexed;
use super::marked_tables::{MarkedTables, mark};
use super::tails::{has_dir_blocks, with_capacity};
use super::volume::Volume;
use crate::error::{ReshapeError, Result};
use crate::watch::Phase;

/// Blocks of the transaction beside descriptors and index blocks.
const FIXED_WEIGHT: usize = 8;
/// Byte offset of an attribute block's checksum.
const XATTR_CHECKSUM: usize = 16;

/// The superblock with checksums, and with `stored_seed` with the seed that they start from.
pub(super) fn with_checksums(old: &RawSuperblock, stored_seed: bool) -> RawSuperblock {
    let mut raw = *old;
    let mut features = raw.features();
    features.ro_compat.remove(RoCompat::UNINIT_BG);
    features.ro_compat |= RoCompat::METADATA_CSUM;
    if stored_seed {
        features.incompat |= Incompat::METADATA_CSUM_SEED;
        raw.checksum_seed.set(MetaSeed::from_uuid(&raw.uuid).0);
    }
    raw.set_features(features);
    raw.checksum_type = CHECKSUM_TYPE_CRC32C;
    raw
}

/// The superblock without checksums of metadata; its descriptors have checksums of the older kind, as `tune2fs` has it.
fn without_checksums(old: &RawSuperblock) -> RawSuperblock {
    let mut raw = *old;
    let mut features = raw.features();
    features.ro_compat.remove(RoCompat::METADATA_CSUM);
    features.incompat.remove(Incompat::METADATA_CSUM_SEED);
    features.ro_compat |= RoCompat::UNINIT_BG;
    raw.set_features(features);
    raw.checksum_seed.set(0);
    raw.checksum_type = 0;
    raw.checksum.set(0);
    raw
}

/// Whether checksums cannot be taken off, and why. That a new UUID comes with it is looked at where the UUID is (`settings`).
pub(super) fn keeps_checksums(sb: &Superblock) -> Option<&'static str> {
    let derived = MetaSeed::from_uuid(&sb.raw.uuid);
    let values = sb.features().has_incompat(Incompat::EA_INODE);
    (values && sb.geo.seed != derived).then_some(
        "values of attributes in inodes are hashed from the seed that is stored, and the UUID has changed since",
    )
}

impl Volume {
    /// Puts checksums on all metadata.
    ///
    /// # Errors
    /// As [`Volume::make_room_for_tails`]; damage; `NoSpace`.
    pub fn add_checksums(&mut self, stored_seed: bool) -> Result<()> {
        let new = Superblock::from_raw(with_checksums(&self.sb.raw, stored_seed), None)?.geo;
        let index_blocks = self.make_room_for_tails(&new)?;
        // Before checksums are written: another journal would have none.
        let weight = index_blocks + new.desc_blocks as usize + FIXED_WEIGHT;
        let mut log = self.log_for(weight)?;
        self.mark_all(&new, true)?;
        if self.disk.rehearses {
            let mut tables = MarkedTables::new(&new);
            for group in new.groups() {
                let desc = self.desc(group)?;
                if !desc.flags.contains(GroupFlags::INODE_UNINIT) {
                    tables.add(desc.inode_table.0, group, self.used_inodes(&desc));
                }
            }
            self.disk.marked = Some(tables);
        }
        self.stage_indexes(&new)?;
        self.bitmap_checksums(&new)?;
        self.sb.raw = with_checksums(&self.sb.raw, stored_seed);
        self.commit_staged(&mut log, Order::Superblock)
    }

    /// Takes checksums off all descriptors (`uninit_bg`), where metadata has none. What was never written is written before.
    ///
    /// # Errors
    /// Damage; `NoSpace`.
    pub fn remove_descriptor_checksums(&mut self) -> Result<()> {
        self.write_unwritten()?;
        let mut log = self.log_for(self.sb.geo.desc_blocks as usize + FIXED_WEIGHT)?;
        let mut features = self.sb.raw.features();
        features.ro_compat.remove(RoCompat::UNINIT_BG);
        self.sb.raw.set_features(features);
        self.commit_staged(&mut log, Order::Log)
    }

    /// Takes checksums off all metadata.
    ///
    /// # Errors
    /// Damage; `NoSpace`.
    pub fn remove_checksums(&mut self) -> Result<()> {
        let old = self.sb.geo.clone();
        let new = Superblock::from_raw(without_checksums(&self.sb.raw), None)?.geo;
        let mut index_blocks = 0;
        self.scan_inodes(&mut |ino, inode| {
            if is_indexed(inode) {
                let map = self.runs(ino, inode)?;
                let format = DirFormat::of(&self.sb.geo, inode.flags);
                index_blocks += self.index_blocks(ino, &map, &format)?.len();
            }
            Ok(())
        })?;
        let weight = index_blocks + new.desc_blocks as usize + FIXED_WEIGHT;
        let mut log = self.log_for(weight)?;
        self.stage_indexes(&new)?;
        self.sb.raw = without_checksums(&self.sb.raw);
        for desc in &mut self.descs {
            (desc.block_bitmap_csum, desc.inode_bitmap_csum) = (0, 0);
        }
        self.commit_staged(&mut log, Order::Superblock)?;
        // The feature is gone, so no later change would do the rest.
        let watch = std::mem::take(&mut self.disk.watch);
        let marked = self.mark_all(&old, false);
        self.disk.watch = watch;
        marked
    }

    /// Stages all index blocks with the capacity that they have in the new geometry.
    fn stage_indexes(&mut self, new: &Geometry) -> Result<()> {
        let mut found: Vec<(u64, DxPlace, Ino)> = Vec::new();
        self.scan_inodes(&mut |ino, inode| {
            if is_indexed(inode) {
                let map = self.runs(ino, inode)?;
                let format = DirFormat::of(&self.sb.geo, inode.flags);
                let blocks = self.index_blocks(ino, &map, &format)?;
                found.extend(blocks.into_iter().map(|(block, place)| (block, place, ino)));
            }
            Ok(())
        })?;
        for (block, place, ino) in found {
            let inode = self.inode(ino)?;
            let old = &self.sb.geo;
            let (from, to) = (
                DirFormat::of(old, inode.flags),
                DirFormat::of(new, inode.flags),
            );
            let seed = new.inode_seed(ino, inode.generation);
            let bytes = self.disk.read(block, "directory")?;
            let image = with_capacity(&bytes, place, &from, &to, seed)?;
            self.disk.stage(block, image);
        }
        Ok(())
    }

    /// Checksums of all bitmaps that were written, in the descriptors.
    pub fn bitmap_checksums(&mut self, new: &Geometry) -> Result<()> {
        let geo = self.sb.geo.clone();
        for group in geo.groups() {
            let mut desc = self.desc(group)?;
            if !desc.flags.contains(GroupFlags::BLOCK_UNINIT) {
                let bits = self.block_bitmap(group)?;
                desc.set_block_bitmap_csum(&bits, new);
            }
            if !desc.flags.contains(GroupFlags::INODE_UNINIT) {
                let bits = self.inode_bitmap(group)?;
                desc.set_inode_bitmap_csum(&bits, new);
            }
            self.descs[group.0 as usize] = desc;
        }
        Ok(())
    }

    /// Writes (`on`) or clears checksums in place, which no opener looks at: the superblock does not name the feature. `geo` has it.
    fn mark_all(&self, geo: &Geometry, on: bool) -> Result<()> {
        if let Some(block) = self.sb.mmp_block()? {
            let mut bytes = self.disk.read(block.0, "multiple-mount protection")?;
            let (mut raw, _) = RawMmp::read_from_prefix(&bytes).map_err(|_| {
                ReshapeError::Damaged("the block of multiple-mount protection is too short".into())
            })?;
            raw.checksum.set(0);
            if on {
                raw.set_checksum(geo);
            }
            bytes[..mmp::SIZE].copy_from_slice(raw.as_bytes());
            self.write_mark(block.0, &bytes, on, "multiple-mount protection")?;
        }
        let mut seen = HashSet::new();
        self.scan_inodes(&mut |ino, inode| {
            self.mark_map(ino, inode, geo, on)?;
            if inode.file_acl.0 != 0 && seen.insert(inode.file_acl.0) {
                let mut bytes = self.disk.read(inode.file_acl.0, "attributes")?;
                match on {
                    true => xattr::set_block_checksum(&mut bytes, inode.file_acl, geo)?,
                    false => bytes[XATTR_CHECKSUM..XATTR_CHECKSUM + 4].fill(0),
                }
                self.write_mark(inode.file_acl.0, &bytes, on, "attributes")?;
            }
            Ok(())
        })?;
        self.mark_tables(geo, on)?;
        self.disk.flush("checksums")
    }

    /// Checksums of a file's extent nodes, of the file of orphans, and, where they are cleared, of a directory's leaves.
    fn mark_map(&self, ino: Ino, inode: &Inode, geo: &Geometry, on: bool) -> Result<()> {
        let is_orphans = ino.0 == self.sb.raw.orphan_file_inum.get();
        let clears_leaves = !on && has_dir_blocks(inode, geo);
        let extents = inode.flags.contains(InodeFlags::EXTENTS);
        if !inode.maps_blocks(&self.sb.geo) || !(extents || is_orphans || clears_leaves) {
            return Ok(());
        }
        let seed = geo.inode_seed(ino, inode.generation);
        let map = self.runs(ino, inode)?;
        let blocks = map
            .runs
            .iter()
            .flat_map(|run| run.start..run.start + run.len);
        if is_orphans {
            for block in blocks {
                let mut bytes = self.disk.read(block, "orphan file")?;
                // Where the feature is off in this geometry, the tail has no checksum.
                let tail = if on { geo } else { &self.sb.geo };
                orphan_file::write_tail(&mut bytes, BlockNo(block), tail, seed).ok_or_else(
                    || ReshapeError::Damaged("a block of the orphan file is too short".into()),
                )?;
                self.write_mark(block, &bytes, on, "orphan file")?;
            }
        } else if clears_leaves {
            let format = DirFormat::of(geo, inode.flags);
            for block in blocks {
                let mut bytes = self.disk.read(block, "directory")?;
                if dir::verify_leaf_checksum(&bytes, &format, seed).is_ok() {
                    let at = bytes.len() - 4;
                    bytes[at..].fill(0);
                    self.write_mark(block, &bytes, on, "directory")?;
                }
            }
        }
        if extents {
            for node in map.nodes {
                let mut bytes = self.disk.read(node, "map of a file")?;
                match on {
                    true => extent::set_checksum(&mut bytes, geo, seed)?,
                    false => extent::clear_checksum(&mut bytes),
                }
                self.write_mark(node, &bytes, on, "map of a file")?;
            }
        }
        Ok(())
    }

    /// How many inodes of a group, from its first one on, may have been in use at some time.
    fn used_inodes(&self, desc: &GroupDesc) -> u32 {
        let all = self.sb.geo.inodes_per_group;
        match self.has_uninit() {
            true => all - desc.itable_unused.min(all),
            false => all,
        }
    }

    /// Writes checksums, or clears them. A rehearsal does not clear them, because nothing reads them then.
    fn write_mark(&self, block: u64, bytes: &[u8], on: bool, what: &'static str) -> Result<()> {
        match self.disk.rehearses && !on {
            true => Ok(()),
            false => self.disk.write_now(block, bytes, what),
        }
    }

    /// Checksums of all inodes that have been in use at some time. A rehearsal does not write them, see [`MarkedTables`].
    fn mark_tables(&self, geo: &Geometry, on: bool) -> Result<()> {
        let size = usize::from(geo.inode_size);
        for group in self.sb.geo.groups() {
            self.tell_group(Phase::Metadata, group)?;
            let desc = self.desc(group)?;
            if desc.flags.contains(GroupFlags::INODE_UNINIT) {
                continue;
            }
            let used = self.used_inodes(&desc);
            let count = u64::from(used.div_ceil(geo.inodes_per_block));
            let first = desc.inode_table.0;
            let before = self.disk.read_run(first, count, "inode table")?;
            let mut table = before.clone();
            if on {
                mark(&mut table, geo, group, 0, used)?;
            } else {
                for raw in table.chunks_exact_mut(size).take(used as usize) {
                    raw[INODE_CHECKSUM_LO_OFFSET..INODE_CHECKSUM_LO_OFFSET + 2].fill(0);
                    if inode_has_checksum_hi(raw) {
                        raw[INODE_CHECKSUM_HI_OFFSET..INODE_CHECKSUM_HI_OFFSET + 2].fill(0);
                    }
                }
            }
            if self.disk.rehearses {
                continue;
            }
            // Holes of an image stay holes.
            let blocks = (first..).zip(table.chunks_exact(geo.block_len()));
            let blocks = blocks.zip(before.chunks_exact(geo.block_len()));
            let changed = blocks.filter(|((_, after), before)| after != before);
            self.disk
                .write_all(changed.map(|(block, _)| block), "inode table")?;
        }
        Ok(())
    }
}
