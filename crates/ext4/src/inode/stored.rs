//! [`StoredInodes`]: inodes as their tables have them. Reading one with all checks before it is believed, and writing one.
//!
//! It owns nothing but its references. It calls `volume`, `groups`, `InodeTable` and `Orphans`. It never charges quota: [`Inodes`] does.
//!
//! [`Inodes`]: super::Inodes
//!
//! # Locks
//! The inode's `body`, then the orphans' state where the inode is on the list, then the buffer.
//!
//! # Crash order
//! An inode on the orphan list is written with the link that is true at that moment: see [`Orphans::with_link`].

use super::orphan::Orphans;
use super::table::InodeTable;
use super::{
    Body, Ext4Inode, MapState, PlacementState, Purpose, disk_kind, disk_time, ext4, make_dev,
    vfs_kind, vfs_time,
};
use crate::alloc::groups::Groups;
use crate::journal::buffer::BufferRef;
use crate::journal::{AtomicTid, Handle};
use crate::vfs_ino;
use crate::volume::Volume;
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
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

blockwright_vfs::part! {
    /// See the module's head.
    pub struct StoredInodes {
        volume: Volume,
        groups: Groups,
        table: InodeTable,
        orphans: Orphans,
    }
}

impl StoredInodes {
    /// Writes an inode into its table block, and charges its owner nothing.
    ///
    /// # Errors
    /// A device error, or a value the volume's format cannot hold.
    pub(crate) fn write(&self, h: &Handle<'_>, inode: &vfs::Inode, map: &MapState) -> Result<()> {
        let place = self.table.stored_in(ext4(inode))?;
        self.write_at(h, inode, map, place)
    }

    /// [`Self::write`] for a caller that has the table block.
    ///
    /// # Errors
    /// As there.
    pub(super) fn write_at(
        &self,
        h: &Handle<'_>,
        inode: &vfs::Inode,
        map: &MapState,
        (buffer, offset): (BufferRef, usize),
    ) -> Result<()> {
        const OP: &str = "store inode";
        let own = ext4(inode);
        let geo = self.volume.geometry();
        let mut body = own.body.lock();
        let attr = inode.attr();
        let i = disk::Inode {
            mode: disk_kind(attr.kind).mode_bits() | (attr.perm & 0o7777) as u16,
            uid: attr.uid,
            gid: attr.gid,
            size: map.disk_size,
            atime: disk_time(attr.atime),
            ctime: disk_time(attr.ctime),
            mtime: disk_time(attr.mtime),
            crtime: attr.crtime.map(disk_time),
            dtime: body.dtime,
            links: u16::try_from(attr.nlink)
                .map_err(|_| Error::new(ErrorKind::TooManyLinks, OP).ino(attr.ino))?,
            sectors: map.blocks,
            flags: map.flags,
            version: body.version,
            block: map.root,
            generation: attr.generation,
            file_acl: body.file_acl,
            extra_isize: body.extra_isize,
            projid: attr.project,
        };
        i.encode_into(&mut body.raw, geo, own.ino).map_err(|e| {
            Error::new(ErrorKind::FileTooLarge, OP)
                .ino(attr.ino)
                .detail(e.to_string())
        })?;
        if own.on_orphan_list.load(Ordering::Acquire) {
            self.orphans.with_link(own.ino, |next| {
                if let Some(next) = next {
                    body.raw[0x14..0x18].copy_from_slice(&next.to_le_bytes());
                    disk::inode::set_checksum(&mut body.raw, geo, own.ino)
                        .map_err(|e| Error::corrupt(OP, e.to_string()).ino(attr.ino))?;
                }
                h.modify(&buffer, |block| {
                    block[offset..offset + body.raw.len()].copy_from_slice(&body.raw);
                })
            })?;
        } else {
            h.modify(&buffer, |block| {
                block[offset..offset + body.raw.len()].copy_from_slice(&body.raw);
            })?;
        }
        *own.stored_times.lock() = [attr.atime, attr.mtime, attr.ctime];
        own.sync_tid.raise(h.tid());
        Ok(())
    }

    /// Reads an inode for users.
    ///
    /// # Errors
    /// `Stale` when it is not in use, `Corrupt` when it is invalid.
    pub fn load(&self, ino: Ino) -> Result<Arc<vfs::Inode>> {
        self.load_for(ino, Purpose::User)
    }

    /// Reads an inode.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn load_for(&self, ino: Ino, purpose: Purpose) -> Result<Arc<vfs::Inode>> {
        const OP: &str = "load inode";
        let geo = self.volume.geometry();
        if ino.0 < geo.first_ino.0 && ino != Ino::ROOT && purpose != Purpose::Special {
            return Err(Error::new(ErrorKind::Stale, OP)
                .ino(vfs_ino(ino))
                .detail("the inode is reserved for the format's own use"));
        }
        let (buffer, offset) = self.table.buffer(ino)?;
        let data = buffer.data();
        let raw = &data[offset..offset + usize::from(geo.inode_size)];
        let bad = |detail: String| {
            self.volume
                .corrupt(OP, Some(ino), Some(buffer.block()), detail)
        };
        let parsed = disk::Inode::parse(raw, geo, ino).map_err(|e| bad(e.to_string()))?;
        let stale = || {
            Error::new(ErrorKind::Stale, OP)
                .ino(vfs_ino(ino))
                .detail("the inode is not in use")
        };
        if parsed.links == 0 && (parsed.mode == 0 || purpose == Purpose::User) {
            return Err(stale());
        }
        self.check(ino, &parsed, purpose).map_err(bad)?;
        let kind = match parsed.kind() {
            Some(kind) => kind,
            // The quota and journal files of old volumes have no mode.
            None if purpose == Purpose::Special => FileKind::Regular,
            None => return Err(stale()),
        };
        if parsed.file_acl.0 != 0 {
            self.groups
                .check_block_range(OP, Some(ino), parsed.file_acl, 1)?;
        }
        Ok(self.make(ino, kind, &parsed, raw.to_vec(), (buffer.block(), offset)))
    }

    /// Checks fields against each other and the volume's features.
    fn check(
        &self,
        ino: Ino,
        i: &disk::Inode,
        purpose: Purpose,
    ) -> std::result::Result<(), String> {
        let geo = self.volume.geometry();
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
            if !self.volume.has_incompat(Incompat::INLINE_DATA) {
                return Err("inline data without the inline_data feature".into());
            }
            if flags.contains(InodeFlags::EXTENTS) {
                return Err("both inline data and extents".into());
            }
        }
        if flags.contains(InodeFlags::CASEFOLD)
            && kind == FileKind::Directory
            && !self.volume.has_incompat(Incompat::CASEFOLD)
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

    pub(super) fn make(
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
            seed: self.volume.geometry().inode_seed(ino, i.generation),
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
                holes: crate::map::extents::Holes::default(),
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
            sync_tid: AtomicTid::new(self.volume.journal.newest_tid()),
            datasync_tid: AtomicTid::new(self.volume.journal.newest_tid()),
            on_orphan_list: AtomicBool::new(false),
            charged_sectors: AtomicU64::new(i.sectors),
            stored_times: Mutex::new(times),
            last_sought: crate::dir::sought::LastSought::default(),
        };
        Arc::new(vfs::Inode::new(attr, private))
    }
}
