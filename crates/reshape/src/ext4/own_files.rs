//! Files and blocks that a volume keeps for itself: the file of orphans, quota files, the block of multiple-mount protection. They are made and
//! taken away.
//!
//! # Crash order
//! Contents of what is made go to free blocks. One transaction of the journal has the rest: the superblock with or without the feature, the blocks and
//! the inode taken or given back.
//!
//! # Not responsible for
//! The journal (`journal_file`). Limits of owners: a new quota file has none.
//!
//! Reference: kernel documentation, "ext4 Data Structures": special inodes, orphan file, multiple mount protection; quota tools' format "vfsv1".

use std::collections::BTreeMap;

use blockwright_ondisk::ext4::mmp::{self, RawMmp};
use blockwright_ondisk::ext4::quota_layout::{Grace, QuotaKind, quota_file, usage_entry};
use blockwright_ondisk::ext4::xattr::{XattrList, XattrValue};
use blockwright_ondisk::ext4::{
    BlockNo, Compat, GroupFlags, Incompat, Ino, Inode, InodeFlags, RoCompat, orphan_file,
};
use zerocopy::{FromZeros, IntoBytes};

use super::commit::Order;
use super::journal_file::{now, own_inode};
use super::volume::{Volume, bit, clear_bit, set_bit};
use crate::error::{ReshapeError, Result};

/// Seconds between two writes of the protection's block, as `mke2fs` has them.
const MMP_INTERVAL: u16 = 5;

/// What an owner uses.
#[derive(Clone, Copy, Default)]
struct Usage {
    bytes: u64,
    inodes: u64,
}

impl Volume {
    /// Takes the file of orphans away. It is empty: a volume with orphans is not opened.
    ///
    /// # Errors
    /// `Damaged` without a journal, and for a file that makes no sense.
    pub fn remove_orphan_file(&mut self) -> Result<()> {
        let mut log = self.open_log()?;
        self.free_file(Ino(self.sb.raw.orphan_file_inum.get()))?;
        let mut features = self.sb.raw.features();
        features.compat.remove(Compat::ORPHAN_FILE);
        self.sb.raw.set_features(features);
        self.sb.raw.orphan_file_inum.set(0);
        self.commit_staged(&mut log, Order::Log)
    }

    /// Makes a file of orphans, of the size that `mke2fs` gives it.
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn add_orphan_file(&mut self) -> Result<()> {
        let mut log = self.open_log()?;
        let geo = self.sb.geo.clone();
        let blocks = (geo.blocks_count / 4096).clamp(32, 512);
        let ino = self.take_inode()?;
        let mut inode = own_inode(&geo);
        let seed = geo.inode_seed(ino, inode.generation);
        for block in self.lay_blocks(ino, &mut inode, blocks, "orphan file")? {
            let mut bytes = vec![0; geo.block_len()];
            orphan_file::write_tail(&mut bytes, BlockNo(block), &geo, seed).ok_or_else(|| {
                ReshapeError::Damaged("a block is too short for the orphan file".into())
            })?;
            self.disk.write_now(block, &bytes, "orphan file")?;
        }
        self.stage_inode(ino, Some(&inode))?;
        let mut features = self.sb.raw.features();
        features.compat |= Compat::ORPHAN_FILE;
        self.sb.raw.set_features(features);
        self.sb.raw.orphan_file_inum.set(ino.0);
        self.commit_staged(&mut log, Order::Log)
    }

    /// Gives back an inode with its blocks.
    fn free_file(&mut self, ino: Ino) -> Result<()> {
        let geo = self.sb.geo.clone();
        let (group, index) = geo
            .split_ino(ino)
            .ok_or_else(|| ReshapeError::Damaged(format!("there is no inode {ino}")))?;
        let inode = self.inode(ino)?;
        let map = self.runs(ino, &inode)?;
        self.free_map(&map)?;
        self.stage_inode(ino, None)?;
        // Reserved inodes count as used, also those that are empty.
        if ino >= geo.first_ino {
            let mut bits = self.inode_bitmap(group)?;
            clear_bit(&mut bits, index as usize);
            let mut desc = self.desc(group)?;
            desc.free_inodes += 1;
            desc.set_inode_bitmap_csum(&bits, &geo);
            self.descs[group.0 as usize] = desc;
            self.disk.stage(desc.inode_bitmap.0, bits);
        }
        Ok(())
    }

    /// Takes the first free inode. Its place in the table is zeroed; the bitmap and the descriptor are staged.
    fn take_inode(&mut self) -> Result<Ino> {
        let geo = self.sb.geo.clone();
        for group in geo.groups() {
            let mut desc = self.desc(group)?;
            if desc.free_inodes == 0 {
                continue;
            }
            let mut bits = self.inode_bitmap(group)?;
            let free = (0..geo.inodes_per_group).find_map(|index| {
                let ino = geo.ino_at(group, index)?;
                (ino >= geo.first_ino && !bit(&bits, index as usize)).then_some((ino, index))
            });
            let Some((ino, index)) = free else { continue };
            set_bit(&mut bits, index as usize);
            let (block, at) = self.inode_place(ino)?;
            let mut bytes = self.disk.read(block, "inode table")?;
            let size = usize::from(geo.inode_size);
            bytes[at..at + size].fill(0);
            if self.has_uninit() {
                let used = match desc.flags.contains(GroupFlags::INODE_UNINIT) {
                    true => 0,
                    false => geo.inodes_per_group - desc.itable_unused.min(geo.inodes_per_group),
                };
                if index >= used {
                    // What lies behind the inodes that were in use may never have been written.
                    let first = index - index % geo.inodes_per_block;
                    let clean = used.max(first) - first;
                    bytes[clean as usize * size..].fill(0);
                    desc.itable_unused = geo.inodes_per_group - index - 1;
                }
                desc.flags.remove(GroupFlags::INODE_UNINIT);
            }
            self.disk.stage(block, bytes);
            desc.free_inodes -= 1;
            desc.set_inode_bitmap_csum(&bits, &geo);
            self.descs[group.0 as usize] = desc;
            self.disk.stage(desc.inode_bitmap.0, bits);
            // The kernel writes both bitmaps of a group when it takes the first inode of it.
            if desc.flags.contains(GroupFlags::BLOCK_UNINIT) {
                let bits = self.block_bitmap(group)?;
                self.stage_block_bitmap(group, bits)?;
            }
            return Ok(ino);
        }
        Err(ReshapeError::NoSpace("no inode is free".into()))
    }

    /// Makes the quota files that the volume lacks, which say what is used; with `project` also that of projects.
    ///
    /// # Errors
    /// `NoSpace`; damage of an inode.
    pub fn add_quota(&mut self, project: bool) -> Result<()> {
        let mut log = self.open_log()?;
        let geo = self.sb.geo.clone();
        let usage = self.count_usage()?;
        let raw = &self.sb.raw;
        let kinds = [
            (QuotaKind::User, raw.usr_quota_inum.get()),
            (QuotaKind::Group, raw.grp_quota_inum.get()),
            (QuotaKind::Project, raw.prj_quota_inum.get()),
        ];
        for ((kind, present), usage) in kinds.into_iter().zip(&usage) {
            if present != 0 || (kind == QuotaKind::Project && !project) {
                continue;
            }
            let ino = match kind {
                QuotaKind::User => Ino::USR_QUOTA,
                QuotaKind::Group => Ino::GRP_QUOTA,
                QuotaKind::Project => self.take_inode()?,
            };
            let entries = usage
                .iter()
                .map(|(id, used)| (*id, usage_entry(*id, used.bytes, used.inodes)))
                .collect();
            let bytes = quota_file(kind, Grace::default(), &entries);
            let mut inode = own_inode(&geo);
            inode.flags |= InodeFlags::IMMUTABLE;
            let blocks = bytes.len().div_ceil(geo.block_len()) as u64;
            let places = self.lay_blocks(ino, &mut inode, blocks, "quota file")?;
            inode.size = bytes.len() as u64;
            for (block, piece) in places.into_iter().zip(bytes.chunks(geo.block_len())) {
                let mut image = piece.to_vec();
                image.resize(geo.block_len(), 0);
                self.disk.write_now(block, &image, "quota file")?;
            }
            self.stage_inode(ino, Some(&inode))?;
            let raw = &mut self.sb.raw;
            match kind {
                QuotaKind::User => raw.usr_quota_inum.set(ino.0),
                QuotaKind::Group => raw.grp_quota_inum.set(ino.0),
                QuotaKind::Project => raw.prj_quota_inum.set(ino.0),
            }
        }
        let mut features = self.sb.raw.features();
        features.ro_compat |= RoCompat::QUOTA;
        if project {
            features.ro_compat |= RoCompat::PROJECT;
        }
        self.sb.raw.set_features(features);
        self.commit_staged(&mut log, Order::Log)
    }

    /// Takes quota files away: that of projects, or all. Limits go with them.
    ///
    /// # Errors
    /// Damage of the files.
    pub fn remove_quota(&mut self, only_project: bool) -> Result<()> {
        let mut log = self.open_log()?;
        let raw = &mut self.sb.raw;
        let mut files = vec![std::mem::take(&mut raw.prj_quota_inum)];
        if !only_project {
            files.push(std::mem::take(&mut raw.usr_quota_inum));
            files.push(std::mem::take(&mut raw.grp_quota_inum));
        }
        let mut features = raw.features();
        features.ro_compat.remove(RoCompat::PROJECT);
        if !only_project {
            features.ro_compat.remove(RoCompat::QUOTA);
        }
        raw.set_features(features);
        for ino in files
            .into_iter()
            .filter_map(|ino| Ino(ino.get()).non_zero())
        {
            self.free_file(ino)?;
        }
        self.commit_staged(&mut log, Order::Log)
    }

    /// What each user, group and project uses.
    fn count_usage(&self) -> Result<[BTreeMap<u32, Usage>; 3]> {
        let geo = &self.sb.geo;
        let raw = &self.sb.raw;
        let hidden = [
            raw.usr_quota_inum.get(),
            raw.grp_quota_inum.get(),
            raw.prj_quota_inum.get(),
            raw.orphan_file_inum.get(),
        ];
        let mut usage: [BTreeMap<u32, Usage>; 3] = Default::default();
        self.scan_inodes(&mut |ino, inode| {
            let charged = (ino == Ino::ROOT || ino >= geo.first_ino)
                && inode.links != 0
                && !hidden.contains(&ino.0)
                && !inode.flags.contains(InodeFlags::EA_INODE);
            if !charged {
                return Ok(());
            }
            // Values of attributes in inodes of their own count as inodes of the owner.
            let inodes = 1 + self.values_in_inodes(ino, inode)?;
            for (map, id) in usage.iter_mut().zip([inode.uid, inode.gid, inode.projid]) {
                let used = map.entry(id).or_default();
                used.bytes += inode.sectors * 512;
                used.inodes += inodes;
            }
            Ok(())
        })?;
        Ok(usage)
    }

    /// How many attributes of an inode have their value in an inode.
    fn values_in_inodes(&self, ino: Ino, inode: &Inode) -> Result<u64> {
        let geo = &self.sb.geo;
        if !geo.features.has_incompat(Incompat::EA_INODE) {
            return Ok(0);
        }
        let count = |list: &XattrList<'_>| {
            let values = list
                .iter()
                .filter(|e| matches!(e.value, XattrValue::Inode { .. }));
            values.count() as u64
        };
        let mut values = 0;
        if let Some(at) = inode.attributes_offset(geo) {
            let raw = self.raw_inode(ino)?;
            if let Some(list) = XattrList::parse_ibody(&raw[at..], geo)? {
                values += count(&list);
            }
        }
        if inode.file_acl.0 != 0 {
            let bytes = self.disk.read(inode.file_acl.0, "attributes")?;
            let (_, list) = XattrList::parse_block(&bytes, geo)?;
            values += count(&list);
        }
        Ok(values)
    }

    /// Turns multiple-mount protection on.
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn add_mmp(&mut self) -> Result<()> {
        let mut log = self.open_log()?;
        let geo = self.sb.geo.clone();
        let mut inode = own_inode(&geo);
        let block = self.lay_blocks(Ino(0), &mut inode, 1, "multiple-mount protection")?[0];
        let interval = match self.sb.raw.mmp_interval.get() {
            0 => MMP_INTERVAL,
            chosen => chosen,
        };
        let mut raw = RawMmp::new_zeroed();
        raw.magic.set(mmp::MAGIC);
        raw.seq.set(mmp::SEQ_CLEAN);
        raw.time.set(now() as u64);
        raw.nodename[..11].copy_from_slice(b"blockwright");
        raw.check_interval.set(interval);
        raw.set_checksum(&geo);
        let mut bytes = vec![0; geo.block_len()];
        bytes[..mmp::SIZE].copy_from_slice(raw.as_bytes());
        self.disk
            .write_now(block, &bytes, "multiple-mount protection")?;
        let mut features = self.sb.raw.features();
        features.incompat |= Incompat::MMP;
        let sb = &mut self.sb.raw;
        sb.set_features(features);
        sb.mmp_block.set(block);
        sb.mmp_interval.set(interval);
        self.commit_staged(&mut log, Order::Log)
    }

    /// Turns multiple-mount protection off.
    ///
    /// # Errors
    /// Damage.
    pub fn remove_mmp(&mut self) -> Result<()> {
        let mut log = self.open_log()?;
        if let Some(block) = self.sb.mmp_block()? {
            self.mark_blocks(block.0, 1, false)?;
        }
        let mut features = self.sb.raw.features();
        features.incompat.remove(Incompat::MMP);
        let sb = &mut self.sb.raw;
        sb.set_features(features);
        sb.mmp_block.set(0);
        sb.mmp_interval.set(0);
        self.commit_staged(&mut log, Order::Log)
    }
}
