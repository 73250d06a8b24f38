//! An ext4 inode in memory: what the format needs beyond [`blockwright_vfs::Attr`].
//!
//! The vfs's `Attr` is the truth for what `stat` shows; [`MapState`] for the block mapping and the
//! size on disk (which lags behind the size in memory until data is written); [`Body`] for the rest
//! of the bytes on disk: the extended attribute area, and fields that this engine does not know.
//!
//! # Locks
//! vfs inode lock → journal handle → `map` → `body` → group → buffer. `tid`s are atomics.
//!
//! # References
//! kernel documentation, "ext4 Data Structures: Index Nodes".

mod create;
mod load;

use disk::features::{Incompat, RoCompat};
use disk::{BlockNo, FileBlock, FileKind, Ino, InodeFlags, InodeSeed};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;

use crate::fs::Fs;
use crate::jbd2::{AtomicTid, Handle};
use crate::{Error, ErrorKind, Result};
use blockwright_ondisk::ext4 as disk;
use blockwright_vfs as vfs;
use blockwright_vfs::block_set::BlockSet;
use blockwright_vfs::types as vt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Blocks that `allocate` took from the allocator and `commit_write` has not made visible yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingRun {
    /// First physical block.
    pub block: BlockNo,
    /// Length in blocks.
    pub len: u32,
    /// The logical blocks were in `MapState::delayed` when they were taken.
    pub was_delayed: bool,
    /// Writes under way into it: concurrent ones share it.
    pub writers: u32,
}

/// What guides the placement of an inode's next blocks, and what is preallocated for them.
pub use crate::preallocation::InodeAlloc as PlacementState;

/// The mapping of an inode's blocks, guarded by [`Ext4Inode::map`].
#[derive(Clone, Debug)]
pub struct MapState {
    /// `i_block`: extent root, block pointers, inline data, fast symlink, or device number.
    pub root: [u8; 60],
    /// All of `i_flags`; those that users see are in the vfs's `Attr` too.
    pub flags: InodeFlags,
    /// The size on disk: at most the size in memory.
    pub disk_size: u64,
    /// Space in use on disk, in units of 512 bytes, the attribute block included.
    pub blocks: u64,
    /// Logical blocks with a reservation and no block.
    pub delayed: BlockSet<1>,
    /// Metadata blocks that are promised for the delayed ones (with extents).
    pub meta_promised: u64,
    /// The same of a block-mapped file: pointer blocks that its delayed blocks need at worst.
    pub pointers_promised: u64,
    /// Runs taken but not committed, by first logical block.
    pub pending: BTreeMap<FileBlock, PendingRun>,
    /// Blocks in `pending` that were not delayed: a direct write's.
    pub pending_direct: u64,
    /// Where the extent tree surely has nothing.
    pub holes: crate::extents::Holes,
    /// Changes whenever mappings change other than by filling holes.
    pub generation: u64,
    /// Placement hints.
    pub placement: PlacementState,
}

/// What the inode's bytes hold besides attributes and mapping, guarded by [`Ext4Inode::body`].
#[derive(Clone, Debug)]
pub struct Body {
    /// All `inode_size` bytes as last read or stored. The extended attribute area in them is the
    /// truth; the fields before it are refreshed from attributes and mapping at each store.
    pub raw: Vec<u8>,
    /// `i_extra_isize`.
    pub extra_isize: u16,
    /// `i_file_acl`: the external attribute block, 0 for none.
    pub file_acl: BlockNo,
    /// `i_version`.
    pub version: u64,
    /// `i_dtime`: deletion time, or the next inode of the orphan list.
    pub dtime: u32,
}

/// The engine's part of a [`blockwright_vfs::Inode`].
pub struct Ext4Inode {
    /// Its number.
    pub ino: Ino,
    /// Start of its metadata checksums.
    pub seed: InodeSeed,
    /// Block of the inode table it lives in, and the byte offset there.
    pub location: (BlockNo, usize),
    /// The mapping (the kernel's `i_data_sem`).
    pub map: RwLock<MapState>,
    /// The rest of its bytes.
    pub body: Mutex<Body>,
    /// Transaction that last changed anything of the inode.
    pub sync_tid: AtomicTid,
    /// Transaction that last changed what `fdatasync` must make durable.
    pub datasync_tid: AtomicTid,
    /// The inode is on the orphan list: its deletion time is a link.
    pub(crate) on_orphan_list: AtomicBool,
    /// Space in use as last stored, in units of 512 bytes: what its owner has been charged for.
    charged_sectors: AtomicU64,
    /// Access, modification and change time as last stored, to tell lazily changed ones.
    stored_times: Mutex<[vt::Timestamp; 3]>,
    /// Of a directory: the name that was last looked for.
    pub(crate) last_sought: crate::dir::LastSought,
}

/// The engine's part of an inode.
#[must_use]
pub fn ext4(inode: &vfs::Inode) -> &Ext4Inode {
    inode.private::<Ext4Inode>()
}

/// The number as the vfs has it.
#[must_use]
pub fn vfs_ino(ino: Ino) -> vt::Ino {
    vt::Ino(u64::from(ino.0))
}

/// The kind as the vfs has it.
#[must_use]
pub fn vfs_kind(kind: FileKind) -> vt::FileKind {
    match kind {
        FileKind::Regular => vt::FileKind::Regular,
        FileKind::Directory => vt::FileKind::Directory,
        FileKind::CharDevice => vt::FileKind::CharDevice,
        FileKind::BlockDevice => vt::FileKind::BlockDevice,
        FileKind::Fifo => vt::FileKind::Fifo,
        FileKind::Socket => vt::FileKind::Socket,
        FileKind::Symlink => vt::FileKind::Symlink,
    }
}

/// The kind as the format has it.
#[must_use]
pub fn disk_kind(kind: vt::FileKind) -> FileKind {
    match kind {
        vt::FileKind::Regular => FileKind::Regular,
        vt::FileKind::Directory => FileKind::Directory,
        vt::FileKind::CharDevice => FileKind::CharDevice,
        vt::FileKind::BlockDevice => FileKind::BlockDevice,
        vt::FileKind::Fifo => FileKind::Fifo,
        vt::FileKind::Socket => FileKind::Socket,
        vt::FileKind::Symlink => FileKind::Symlink,
    }
}

fn vfs_time(t: disk::Timestamp) -> vt::Timestamp {
    vt::Timestamp {
        secs: t.secs,
        nanos: t.nanos,
    }
}

fn disk_time(t: vt::Timestamp) -> disk::Timestamp {
    disk::Timestamp {
        secs: t.secs,
        nanos: t.nanos,
    }
}

/// `makedev` in the user-space coding of 64 bits.
fn make_dev(major: u32, minor: u32) -> u64 {
    let (major, minor) = (u64::from(major), u64::from(minor));
    ((major & 0xFFFF_F000) << 32)
        | ((major & 0xFFF) << 8)
        | ((minor & 0xFFFF_FF00) << 12)
        | (minor & 0xFF)
}

/// Major and minor number of a `dev_t`.
fn split_dev(dev: u64) -> (u32, u32) {
    (
        (((dev >> 8) & 0xFFF) | ((dev >> 32) & 0xFFFF_F000)) as u32,
        ((dev & 0xFF) | ((dev >> 12) & 0xFFFF_FF00)) as u32,
    )
}

/// Flags that users see and may change with `set_attr` (as far as the format lets them).
pub const USER_FLAGS: u32 = vt::InodeFlags::all().bits();

/// Flags a user cannot change: they say how contents are stored.
const FIXED_USER_FLAGS: u32 = vt::InodeFlags::ENCRYPT.bits() | vt::InodeFlags::VERITY.bits();

/// What an inode is loaded for, and so which inodes may be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// For users: no special inodes, none without a name.
    User,
    /// To finish the deletion of an orphan.
    Orphan,
    /// One of the format's own: journal, quota, orphan file.
    Special,
    /// One that holds an attribute's value.
    EaInode,
}

/// An empty extent root.
#[must_use]
pub fn empty_extent_root() -> [u8; 60] {
    let mut root = [0; 60];
    root[..2].copy_from_slice(&0xF30Au16.to_le_bytes());
    root[4..6].copy_from_slice(&4u16.to_le_bytes());
    root
}

impl Ext4Inode {
    /// A copy of `i_flags`.
    #[must_use]
    pub fn flags(&self) -> InodeFlags {
        self.map.read().flags
    }
}

impl Fs {
    /// Whether the volume has an incompat feature.
    #[must_use]
    pub fn has_incompat(&self, bits: Incompat) -> bool {
        self.geometry().features.has_incompat(bits)
    }

    /// Whether the volume has a ro_compat feature.
    #[must_use]
    pub fn has_ro_compat(&self, bits: RoCompat) -> bool {
        self.geometry().features.has_ro_compat(bits)
    }

    /// Writes an inode into its table block. Takes the map lock for reading.
    ///
    /// # Errors
    /// A device error, or a value the volume's format cannot hold.
    pub fn store_inode(&self, h: &Handle<'_>, inode: &vfs::Inode) -> Result<()> {
        let map = ext4(inode).map.read();
        self.store_inode_locked(h, inode, &map)
    }

    /// [`Self::store_inode`] for a holder of the map lock.
    ///
    /// # Errors
    /// As [`Self::store_inode`].
    pub fn store_inode_locked(
        &self,
        h: &Handle<'_>,
        inode: &vfs::Inode,
        map: &MapState,
    ) -> Result<()> {
        self.write_inode(h, inode, map)?;
        ext4(inode).datasync_tid.raise(h.tid());
        Ok(())
    }

    /// Writes an inode of which only times have changed: `fdatasync` need not wait for it.
    ///
    /// # Errors
    /// As [`Self::store_inode`].
    pub fn store_inode_times(&self, h: &Handle<'_>, inode: &vfs::Inode) -> Result<()> {
        let map = ext4(inode).map.read();
        self.write_inode(h, inode, &map)
    }

    fn write_inode(&self, h: &Handle<'_>, inode: &vfs::Inode, map: &MapState) -> Result<()> {
        const OP: &str = "store inode";
        let own = ext4(inode);
        let geo = self.geometry();
        let (buffer, offset) = self.stored_in(own)?;
        let charged = own.charged_sectors.swap(map.blocks, Ordering::AcqRel);
        if charged != map.blocks && self.is_charged(own.ino, map.flags) {
            let owner = crate::quota::Owner::of(&inode.attr());
            let sectors = map.blocks as i64 - charged as i64;
            self.quota.add(self, h, &owner, sectors * 512, 0)?;
        }
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
            self.with_orphan_link(own.ino, |next| {
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

    /// Whether an inode's space is charged to its owner.
    pub(crate) fn is_charged(&self, ino: Ino, flags: InodeFlags) -> bool {
        let raw = &self.geo.raw;
        let hidden = [
            raw.usr_quota_inum.get(),
            raw.grp_quota_inum.get(),
            raw.prj_quota_inum.get(),
            raw.orphan_file_inum.get(),
        ];
        !flags.contains(InodeFlags::EA_INODE)
            && (ino == Ino::ROOT || ino.0 >= self.geometry().first_ino.0)
            && !hidden.contains(&ino.0)
    }

    /// Whether times were changed in memory since the inode was stored.
    fn times_are_dirty(inode: &vfs::Inode) -> bool {
        let attr = inode.attr();
        *ext4(inode).stored_times.lock() != [attr.atime, attr.mtime, attr.ctime]
    }

    /// Journals attributes that were changed in memory only.
    ///
    /// # Errors
    /// A device error.
    pub fn write_attr(&self, inode: &Arc<vfs::Inode>) -> Result<()> {
        if self.is_read_only() || !Self::times_are_dirty(inode) {
            return Ok(());
        }
        let h = self.journal.start(1, "write inode times")?;
        self.store_inode_times(&h, inode)
    }

    /// See [`blockwright_vfs::engine::Attributes::set_attr`].
    ///
    /// # Errors
    /// `ReadOnly`, `QuotaExceeded`, `Unsupported` for what the volume has no room for.
    pub fn set_attr(&self, inode: &Arc<vfs::Inode>, change: &vt::AttrChange) -> Result<()> {
        const OP: &str = "change attributes";
        self.check_writable(OP)?;
        let own = ext4(inode);
        let old = inode.attr();
        if let Some(project) = change.project
            && project != old.project
            && (!self.has_ro_compat(RoCompat::PROJECT) || own.body.lock().extra_isize < 32)
        {
            return Err(Error::new(ErrorKind::Unsupported, OP)
                .ino(old.ino)
                .detail("the inode has no room for a project id"));
        }
        let mut bits = None;
        if let Some(new) = change.flags {
            let changed = new.bits() ^ old.flags.bits();
            if changed & FIXED_USER_FLAGS != 0 {
                return Err(Error::new(ErrorKind::Unsupported, OP)
                    .ino(old.ino)
                    .detail("encryption and verity are not flags that can be switched"));
            }
            if changed & vt::InodeFlags::CASEFOLD.bits() != 0 {
                if !self.has_incompat(Incompat::CASEFOLD) || old.kind != vt::FileKind::Directory {
                    return Err(Error::new(ErrorKind::Unsupported, OP).ino(old.ino));
                }
                if !self.dir_is_empty(inode)? {
                    return Err(Error::new(ErrorKind::NotEmpty, OP).ino(old.ino));
                }
                self.check_casefold_writable(OP)?;
            }
            bits = Some((changed, new.bits()));
        }
        let owner = crate::quota::Owner::of(&old);
        let new_owner = crate::quota::Owner {
            uid: change.uid.unwrap_or(old.uid),
            gid: change.gid.unwrap_or(old.gid),
            project: change.project.unwrap_or(old.project),
        };
        let h = self.journal.start(2 + 2 * self.quota.credits(), OP)?;
        if owner != new_owner {
            let bytes = own.map.read().blocks * 512;
            self.quota
                .transfer(self, &h, &owner, &new_owner, own.ino, bytes, 1)?;
        }
        let all = vt::InodeFlags::from_bits_retain(u32::MAX);
        inode.update_attr(|a| change.apply(a, all));
        if owner != new_owner {
            self.show_blocks(inode, &own.map.read());
        }
        if let Some((changed, new)) = bits {
            let mut map = own.map.write();
            let kept = map.flags.bits() & !changed;
            map.flags = InodeFlags::from_bits_retain(kept | (new & changed));
        }
        self.store_inode(&h, inode)
    }

    /// See [`blockwright_vfs::engine::Attributes::evict`].
    ///
    /// # Errors
    /// A device error; the inode then stays on the orphan list for the next mount.
    pub fn evict_inode(&self, inode: &Arc<vfs::Inode>) -> Result<()> {
        const OP: &str = "delete inode";
        let own = ext4(inode);
        if inode.kind() == vt::FileKind::Regular {
            self.release_blocks_in_memory(inode);
        }
        if inode.attr().nlink > 0 {
            return self.write_attr(inode);
        }
        if self.is_read_only() {
            return Ok(());
        }
        let kind = inode.kind();
        let flags = own.flags();
        let maps = match kind {
            vt::FileKind::Regular | vt::FileKind::Directory => true,
            vt::FileKind::Symlink => !self.is_fast_symlink(inode),
            _ => false,
        } && !flags.contains(InodeFlags::INLINE_DATA);
        let all = FileBlock(0)..FileBlock(1 << 32);
        if maps && !self.is_small_map(inode) {
            self.map_remove(inode, all.start, all.end, OP)?;
        }
        self.xattr_drop_all(inode)?;
        let mut credits =
            3 + self.orphan_credits() + self.inode_free_credits() + 2 * self.quota.credits();
        if maps && self.is_small_map(inode) {
            credits += self.small_map_credits(inode);
        }
        let mut h = self.journal.start(credits, OP)?;
        if maps && self.is_small_map(inode) && !self.map_remove_in(&h, inode, all.clone(), OP)? {
            // More than one handle takes.
            drop(h);
            self.map_remove(inode, all.start, all.end, OP)?;
            h = self.journal.start(credits, OP)?;
        }
        self.orphan_unlist(&h, inode)?;
        inode.update_attr(|a| {
            a.size = 0;
        });
        {
            let mut map = own.map.write();
            map.disk_size = 0;
            own.body.lock().dtime = u32::try_from(vt::Timestamp::now().secs.max(1)).unwrap_or(1);
            self.store_inode_locked(&h, inode, &map)?;
        }
        if self.is_charged(own.ino, flags) {
            let owner = crate::quota::Owner::of(&inode.attr());
            self.quota.refund(self, &h, &owner, 0, 1)?;
        }
        self.inodes
            .free(&h, own.ino, kind == vt::FileKind::Directory)
    }

    /// Whether a symlink's target is kept in `i_block`.
    pub(crate) fn is_fast_symlink(&self, inode: &vfs::Inode) -> bool {
        let own = ext4(inode);
        let map = own.map.read();
        if inode.kind() != vt::FileKind::Symlink
            || map
                .flags
                .intersects(InodeFlags::INLINE_DATA | InodeFlags::EXTENTS)
            || map.disk_size >= 60
        {
            return false;
        }
        // Values of attributes in inodes of their own count as the link's space, so that its space says
        // nothing; old links of less than 60 bytes in a block only exist without them.
        if self.has_incompat(Incompat::EA_INODE) {
            return true;
        }
        let attr_sectors = match own.body.lock().file_acl.0 {
            0 => 0,
            _ => (u64::from(self.geometry().cluster_ratio) << self.geometry().block_bits) >> 9,
        };
        map.blocks.saturating_sub(attr_sectors) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_round_trip() {
        for (major, minor) in [(0, 0), (8, 1), (259, 70_000), (4095, 0xF_FFFF)] {
            assert_eq!(split_dev(make_dev(major, minor)), (major, minor));
        }
        assert_eq!(make_dev(8, 1), 0x801);
    }
}
