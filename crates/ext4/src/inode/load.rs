//! Inodes from their table: where they are, reading them, and what is checked before one is believed.

use super::{
    Body, Ext4Inode, MapState, PlacementState, Purpose, make_dev, vfs_ino, vfs_kind, vfs_time,
};
use crate::buffer::{BlockKind, BufferRef};
use crate::fs::Fs;
use crate::jbd2::AtomicTid;
use crate::{Error, ErrorKind, Result};
use blockwright_ondisk::ext4 as disk;
use blockwright_vfs as vfs;
use blockwright_vfs::block_set::BlockSet;
use blockwright_vfs::types as vt;
use disk::features::Incompat;
use disk::{BlockNo, FileKind, Ino, InodeFlags};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

impl Fs {
    /// Where in the inode tables an inode is.
    pub(crate) fn inode_location(&self, ino: Ino) -> Result<(BlockNo, usize, disk::GroupNo)> {
        let geo = self.geometry();
        if ino.0 == 0 || ino.0 > geo.inodes_count {
            return Err(Error::new(ErrorKind::Stale, "load inode")
                .ino(vfs_ino(ino))
                .detail("the inode number is past the volume's last"));
        }
        let index = ino.0 - 1;
        let group = disk::GroupNo(index / geo.inodes_per_group);
        let within = index % geo.inodes_per_group;
        let table = self.inode_table(group)?;
        let block = BlockNo(table.0 + u64::from(within / geo.inodes_per_block));
        let offset = (within % geo.inodes_per_block) as usize * usize::from(geo.inode_size);
        Ok((block, offset, group))
    }

    /// Starts reading the stretch of a group's inode table that `block` lies in: a caller that looks at one
    /// inode of a cold volume (a listing, say) soon looks at its neighbours, and a device takes as
    /// long for one block as for these.
    fn read_ahead_inodes(&self, group: disk::GroupNo, block: BlockNo) {
        let geo = self.geometry();
        let Ok(table) = self.inode_table(group) else {
            return;
        };
        let stretch = self.tuning.inode_readahead_blks();
        if stretch == 0 {
            return;
        }
        let within = block.0.saturating_sub(table.0);
        let first = within / stretch * stretch;
        let count = stretch.min(u64::from(geo.inode_table_blocks).saturating_sub(first));
        // At most what `stretch` says, which is small.
        self.cache
            .read_around(Some(block), &[(BlockNo(table.0 + first), count as u32)]);
    }

    /// The inode table block an inode lives in.
    pub(crate) fn inode_buffer(&self, ino: Ino) -> Result<(BufferRef, usize)> {
        let (block, offset, group) = self.inode_location(ino)?;
        if self.cache.find(block).is_none() {
            self.read_ahead_inodes(group, block);
        }
        // Inodes carry a checksum each, verified when one is loaded; the block has none.
        let buffer = self
            .cache
            .read(block, BlockKind::InodeTable(group), |_| Ok(()))?;
        Ok((buffer, offset))
    }

    /// The inode table block of an inode in memory.
    pub(crate) fn stored_in(&self, own: &Ext4Inode) -> Result<(BufferRef, usize)> {
        let (block, offset) = own.location;
        match self.cache.find(block) {
            Some(buffer) => Ok((buffer, offset)),
            None => self.inode_buffer(own.ino),
        }
    }

    /// Reads an inode for users.
    ///
    /// # Errors
    /// `Stale` when it is not in use, `Corrupt` when it makes no sense.
    pub fn load_inode(&self, ino: Ino) -> Result<Arc<vfs::Inode>> {
        self.load_inode_for(ino, Purpose::User)
    }

    /// Reads an inode.
    ///
    /// # Errors
    /// As [`Self::load_inode`].
    pub fn load_inode_for(&self, ino: Ino, purpose: Purpose) -> Result<Arc<vfs::Inode>> {
        const OP: &str = "load inode";
        let geo = self.geometry();
        if ino.0 < geo.first_ino.0 && ino != Ino::ROOT && purpose != Purpose::Special {
            return Err(Error::new(ErrorKind::Stale, OP)
                .ino(vfs_ino(ino))
                .detail("the inode is reserved for the format's own use"));
        }
        let (buffer, offset) = self.inode_buffer(ino)?;
        let data = buffer.data();
        let raw = &data[offset..offset + usize::from(geo.inode_size)];
        let bad = |detail: String| self.corrupt(OP, Some(ino), Some(buffer.block()), detail);
        let parsed = disk::Inode::parse(raw, geo, ino).map_err(|e| bad(e.to_string()))?;
        let stale = || {
            Error::new(ErrorKind::Stale, OP)
                .ino(vfs_ino(ino))
                .detail("the inode is not in use")
        };
        if parsed.links == 0 && (parsed.mode == 0 || purpose == Purpose::User) {
            return Err(stale());
        }
        self.check_inode(ino, &parsed, purpose).map_err(bad)?;
        let kind = match parsed.kind() {
            Some(kind) => kind,
            // The quota and journal files of old volumes have no mode.
            None if purpose == Purpose::Special => FileKind::Regular,
            None => return Err(stale()),
        };
        if parsed.file_acl.0 != 0 {
            self.check_block_range(OP, Some(ino), parsed.file_acl, 1)?;
        }
        Ok(self.make_inode(ino, kind, &parsed, raw.to_vec(), (buffer.block(), offset)))
    }

    /// Checks fields against each other and the volume's features.
    fn check_inode(
        &self,
        ino: Ino,
        i: &disk::Inode,
        purpose: Purpose,
    ) -> std::result::Result<(), String> {
        let geo = self.geometry();
        let flags = i.flags;
        let kind = match i.kind() {
            Some(kind) => kind,
            None if purpose == Purpose::Special && i.mode & disk::types::S_IFMT == 0 => {
                FileKind::Regular
            }
            None => return Err(format!("mode {:#o} is of no file type", i.mode)),
        };
        if flags.contains(InodeFlags::EA_INODE) != (purpose == Purpose::EaInode) {
            return Err(match purpose {
                Purpose::EaInode => "an attribute's value should be here, and is not".into(),
                _ => "the inode holds an attribute's value and has no business here".into(),
            });
        }
        if flags.contains(InodeFlags::INLINE_DATA) {
            if !self.has_incompat(Incompat::INLINE_DATA) {
                return Err("inline data without the inline_data feature".into());
            }
            if flags.contains(InodeFlags::EXTENTS) {
                return Err("both inline data and extents".into());
            }
        }
        if flags.contains(InodeFlags::CASEFOLD)
            && kind == FileKind::Directory
            && !self.has_incompat(Incompat::CASEFOLD)
        {
            return Err("a casefolded directory without the casefold feature".into());
        }
        if ino == Ino::ROOT && kind != FileKind::Directory {
            return Err(format!("the root directory is a {kind}"));
        }
        let block = u64::from(geo.block_size);
        match kind {
            FileKind::Directory => {
                let inline = flags.contains(InodeFlags::INLINE_DATA);
                if !inline && !i.size.is_multiple_of(block) {
                    return Err(format!("directory size {} is not whole blocks", i.size));
                }
                if i.size >> geo.block_bits > u64::from(u32::MAX) {
                    return Err(format!("directory size {} is past the limit", i.size));
                }
            }
            FileKind::Symlink
                if !flags.contains(InodeFlags::ENCRYPT) && (i.size == 0 || i.size > block) =>
            {
                return Err(format!("symbolic link of {} bytes", i.size));
            }
            FileKind::Regular => {
                let limit = if flags.contains(InodeFlags::EXTENTS) {
                    block.saturating_mul(u64::from(u32::MAX))
                } else {
                    i64::MAX as u64
                };
                if i.size > limit {
                    return Err(format!("size {} is past the limit {limit}", i.size));
                }
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn make_inode(
        &self,
        ino: Ino,
        kind: FileKind,
        i: &disk::Inode,
        raw: Vec<u8>,
        location: (BlockNo, usize),
    ) -> Arc<vfs::Inode> {
        let rdev = match kind {
            FileKind::CharDevice | FileKind::BlockDevice => {
                let (major, minor) = i.device();
                make_dev(major, minor)
            }
            _ => 0,
        };
        let times = [i.atime, i.mtime, i.ctime].map(vfs_time);
        let attr = vt::Attr {
            ino: vfs_ino(ino),
            generation: i.generation,
            kind: vfs_kind(kind),
            perm: u32::from(i.mode & 0o7777),
            nlink: u32::from(i.links),
            uid: i.uid,
            gid: i.gid,
            project: i.projid,
            rdev,
            size: i.size,
            blocks512: i.sectors,
            atime: times[0],
            mtime: times[1],
            ctime: times[2],
            crtime: i.crtime.map(vfs_time),
            flags: vt::InodeFlags::from_bits_truncate(i.flags.bits()),
        };
        let private = Ext4Inode {
            ino,
            seed: self.geometry().inode_seed(ino, i.generation),
            location,
            map: RwLock::new(MapState {
                root: i.block,
                flags: i.flags,
                disk_size: i.size,
                blocks: i.sectors,
                delayed: BlockSet::default(),
                meta_promised: 0,
                pointers_promised: 0,
                pending: BTreeMap::new(),
                pending_direct: 0,
                holes: crate::extents::Holes::default(),
                generation: 0,
                placement: PlacementState::default(),
            }),
            body: Mutex::new(Body {
                raw,
                extra_isize: i.extra_isize,
                file_acl: i.file_acl,
                version: i.version,
                dtime: i.dtime,
            }),
            // Changed before it was last evicted, perhaps, in a transaction that is not durable yet.
            sync_tid: AtomicTid::new(self.journal.newest_tid()),
            datasync_tid: AtomicTid::new(self.journal.newest_tid()),
            on_orphan_list: AtomicBool::new(false),
            charged_sectors: AtomicU64::new(i.sectors),
            stored_times: Mutex::new(times),
            last_sought: crate::dir::LastSought::default(),
        };
        Arc::new(vfs::Inode::new(attr, private))
    }
}
