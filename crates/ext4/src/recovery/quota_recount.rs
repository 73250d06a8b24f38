//! Counts the usage of all owners anew, where quota files fell behind.
//!
//! Fast commits do not log quota files: after they were redone, usage is that of the last full commit.
//! Differences of the inodes redone would not do, since a crash while they are redone leaves some
//! of them done. So all inodes are counted, which a kernel leaves to a check of the volume.
//!
//! Not responsible for: keeping usage exact afterwards (`quota`).

use super::Recovery;
use crate::Result;
use crate::journal::buffer::BlockKind;
use crate::quota::{Kind, Owner, Usage, id_of};
use blockwright_ondisk::ext4::features::{Incompat, RoCompat};
use blockwright_ondisk::ext4::group_desc::GroupFlags;
use blockwright_ondisk::ext4::xattr::{XattrList, XattrValue};
use blockwright_ondisk::ext4::{self as disk, InodeFlags};
use std::collections::HashMap;

const OP: &str = "count quota";
/// Credits for one owner's entry: new ones add blocks to the file's tree.
const CREDITS: u32 = 16;

/// What every owner of one kind uses.
type Counted = HashMap<u32, Usage>;

impl Recovery {
    /// Makes the quota files say what is used. For a volume that is not in use yet.
    ///
    /// # Errors
    /// Damage, or a device error.
    pub(crate) fn recount_quota(&self) -> Result<()> {
        if !self.volume.has_ro_compat(RoCompat::QUOTA) || self.quota.load().is_err() {
            // Faults of the files are reported when the mount opens them.
            return Ok(());
        }
        let mut counted = [Counted::new(), Counted::new(), Counted::new()];
        for group in self.volume.geometry().groups() {
            self.count_group(group, &mut counted)?;
        }
        for (kind, counted) in [Kind::User, Kind::Group, Kind::Project]
            .into_iter()
            .zip(counted)
        {
            self.quota.set_usage(kind, counted, |id, change| {
                let h = self.volume.journal.start(CREDITS, OP)?;
                change(&h, id)
            })?;
        }
        Ok(())
    }

    fn count_group(&self, no: disk::GroupNo, counted: &mut [Counted; 3]) -> Result<()> {
        let geo = self.volume.geometry();
        let in_use = {
            let group = self.groups.group(no)?;
            let st = group.lock();
            if !self.groups.has_group_checksums() {
                geo.inodes_per_group
            } else if st.desc.flags.contains(GroupFlags::INODE_UNINIT) {
                0
            } else {
                geo.inodes_per_group.saturating_sub(st.desc.itable_unused)
            }
        };
        for index in 0..in_use {
            let Some(ino) = geo.ino_at(no, index) else {
                break;
            };
            if !self.ialloc.is_used(ino)? {
                continue;
            }
            let (buffer, at) = self.table.buffer(ino)?;
            let raw = buffer.data()[at..at + usize::from(geo.inode_size)].to_vec();
            let Ok(inode) = disk::Inode::parse(&raw, geo, ino) else {
                // Reported when it is used.
                continue;
            };
            if inode.mode == 0 || !self.quota.is_charged(ino, inode.flags) {
                continue;
            }
            let owner = Owner {
                uid: inode.uid,
                gid: inode.gid,
                project: inode.projid,
            };
            let inodes = 1 + self.count_values(&raw, &inode)?;
            for (kind, counted) in [Kind::User, Kind::Group, Kind::Project]
                .into_iter()
                .zip(counted.iter_mut())
            {
                let usage = counted.entry(id_of(&owner, kind)).or_default();
                usage.bytes += inode.sectors * 512;
                usage.inodes += inodes;
            }
        }
        Ok(())
    }

    /// Attribute values of an inode that have inodes of their own.
    fn count_values(&self, raw: &[u8], inode: &disk::Inode) -> Result<u64> {
        let geo = self.volume.geometry();
        if !self.volume.has_incompat(Incompat::EA_INODE)
            || inode.flags.contains(InodeFlags::EA_INODE)
        {
            return Ok(0);
        }
        let values = |list: &XattrList<'_>| {
            list.iter()
                .filter(|e| matches!(e.value, XattrValue::Inode { .. }))
                .count() as u64
        };
        let mut count = 0;
        let area = inode.attributes_offset(geo).and_then(|at| raw.get(at..));
        if let Some(Ok(Some(list))) = area.map(|area| XattrList::parse_ibody(area, geo)) {
            count += values(&list);
        }
        if inode.file_acl.0 != 0 {
            let buffer = self
                .volume
                .cache
                .read(inode.file_acl, BlockKind::Xattr, |_| Ok(()))?;
            if let Ok((_, list)) = XattrList::parse_block(&buffer.data(), geo) {
                count += values(&list);
            }
        }
        Ok(count)
    }
}
