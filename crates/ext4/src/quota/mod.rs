//! [`Quota`]: disk quota kept by the file system (`quota` and `project` features).
//!
//! It owns the quota files (one hidden file for users, one for groups, one for projects) and the promises of space. It calls the block
//! allocator, the mapping of its own files and `StoredInodes`. It never refuses what is stored: that has happened and must be counted.
//!
//! It lies below `map` and `inode::Inodes`, because both charge it. Its own files belong to no owner, so it maps and stores them
//! without them.
//!
//! Every change of an inode's space or of the number of inodes changes the owner's entries in the same handle. Space follows the
//! inode: it is compared with what was last stored whenever an inode is stored, so no path that allocates or frees can be forgotten.
//!
//! Limits: inodes are refused when made. Space is refused when it is asked for (before anything is
//! done), not when it is stored. Reserved usage that is not stored yet (delayed blocks, the worst
//! case of their metadata, direct writes in flight) is *promised*: it counts against limits, and is
//! not in the quota files.
//!
//! # Locks
//! The promises have a mutex below the map of the inode they are for. Each file has a mutex below
//! that, and above the quota file's own map.
//!
//! # Crash order
//! Entries change in the handle that changes the inode, so after a crash they are as exact as everything else.
//!
//! Reference: the VFS quota format, version 2 revision 1 ("vfsv1").

mod space;

pub(crate) use space::Limit;

use crate::alloc::Allocator;
use crate::inode::{Purpose, StoredInodes, ext4};
use crate::journal::Handle;
use crate::journal::buffer::{BlockKind, BufferRef};
use crate::map::{BlockState, create_block, look_up};
use crate::volume::Volume;
use crate::{Error, ErrorKind, Result};
pub(crate) use blockwright_ondisk::common::quota::layout::QuotaKind as Kind;
pub(crate) use blockwright_ondisk::common::quota::tree::Usage;
use blockwright_ondisk::common::quota::tree::{self, Blocks, Places};
use blockwright_ondisk::common::quota::{BLOCK_SIZE, RawQuotaEntry};
use blockwright_ondisk::ext4::features::RoCompat;
use blockwright_ondisk::ext4::{FileBlock, Ino};
use blockwright_vfs as vfs;
pub(crate) use blockwright_vfs::quota::Owner;
use hashbrown::HashMap;
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};

struct File {
    kind: Kind,
    inode: Arc<vfs::Inode>,
    /// Where each id's entry is.
    places: Mutex<Places>,
}

/// Space asked for and not charged yet.
#[derive(Default)]
struct Promises {
    by_inode: HashMap<Ino, (Owner, u64)>,
    by_owner: HashMap<(Kind, u32), u64>,
}

/// See the module's head.
pub struct Quota {
    volume: Arc<Volume>,
    alloc: Arc<Allocator>,
    stored: Arc<StoredInodes>,
    /// None without the feature.
    files: OnceLock<Vec<File>>,
    promises: Mutex<Promises>,
}

/// The id of an owner that a kind of quota counts by.
pub(crate) fn id_of(owner: &Owner, kind: Kind) -> u32 {
    owner.ids()[kind as usize]
}

impl Quota {
    /// Without its files: see [`Quota::load`].
    pub(crate) fn new(alloc: &Arc<Allocator>, stored: &Arc<StoredInodes>) -> Self {
        Quota {
            volume: Arc::clone(&alloc.volume),
            alloc: Arc::clone(alloc),
            stored: Arc::clone(stored),
            files: OnceLock::new(),
            promises: Mutex::default(),
        }
    }

    fn files(&self) -> &[File] {
        self.files.get().map_or(&[], Vec::as_slice)
    }

    /// Whether anything is counted.
    pub(crate) fn is_on(&self) -> bool {
        !self.files().is_empty()
    }

    /// Opens the volume's quota files. Called once, at mount.
    ///
    /// # Errors
    /// Quota files that cannot be kept exact: the volume must then be mounted read-only.
    pub fn load(&self) -> Result<()> {
        const OP: &str = "open quota";
        let mut files = Vec::new();
        if self.volume.has_ro_compat(RoCompat::QUOTA) {
            let raw = &self.volume.superblock().raw;
            let listed = [
                (Kind::User, raw.usr_quota_inum.get()),
                (Kind::Group, raw.grp_quota_inum.get()),
                (Kind::Project, raw.prj_quota_inum.get()),
            ];
            for (kind, ino) in listed {
                if ino == 0 {
                    continue;
                }
                let inode = self.stored.load_for(Ino(ino), Purpose::Special)?;
                let file = File {
                    kind,
                    inode,
                    places: Mutex::default(),
                };
                if let Err(what) = tree::check_head(&file.at(self), kind)? {
                    return Err(Error::new(ErrorKind::UnsupportedFeature, OP)
                        .detail(format!("the quota file in inode {ino} {what}")));
                }
                files.push(file);
            }
        }
        // Loaded once: a second call finds the files in place.
        let _ = self.files.set(files);
        Ok(())
    }

    /// Blocks a handle must reserve for charging one owner.
    #[must_use]
    pub fn credits(&self) -> u32 {
        // Head, entry, neighbours in the list of free entries; a new entry adds tree blocks.
        self.files().len() as u32 * 10
    }

    /// Adds to an owner's use, within limits.
    ///
    /// # Errors
    /// `QuotaExceeded` with nothing charged, damage, or a device error.
    pub fn charge(&self, h: &Handle<'_>, owner: &Owner, bytes: i64, inodes: i64) -> Result<()> {
        for file in self.files() {
            file.check(
                self,
                id_of(owner, file.kind),
                bytes.max(0) as u64,
                inodes.max(0) as u64,
            )?;
        }
        self.add(h, owner, bytes, inodes)
    }

    /// Takes from an owner's use.
    ///
    /// # Errors
    /// Damage, or a device error.
    pub fn refund(&self, h: &Handle<'_>, owner: &Owner, bytes: i64, inodes: i64) -> Result<()> {
        self.add(h, owner, -bytes, -inodes)
    }

    /// Adds to an owner's use what has already happened.
    ///
    /// # Errors
    /// Damage, or a device error.
    pub fn add(&self, h: &Handle<'_>, owner: &Owner, bytes: i64, inodes: i64) -> Result<()> {
        if bytes == 0 && inodes == 0 {
            return Ok(());
        }
        for file in self.files() {
            file.add(self, h, id_of(owner, file.kind), bytes, inodes)?;
        }
        Ok(())
    }

    /// Moves an inode's use from one owner to another. The usage promised to it must fit, too, and
    /// moves when its attributes have changed.
    ///
    /// # Errors
    /// `QuotaExceeded` with nothing moved, damage, or a device error.
    #[allow(clippy::too_many_arguments)]
    pub fn transfer(
        &self,
        h: &Handle<'_>,
        from: &Owner,
        to: &Owner,
        ino: Ino,
        bytes: u64,
        inodes: u64,
    ) -> Result<()> {
        let moved = || {
            self.files()
                .iter()
                .filter(|f| id_of(from, f.kind) != id_of(to, f.kind))
        };
        {
            let promises = self.promises.lock();
            let own = promises.by_inode.get(&ino).map_or(0, |(_, bytes)| *bytes);
            for file in moved() {
                let id = id_of(to, file.kind);
                let more = bytes + own + promises.of(file.kind, id);
                file.check(self, id, more, inodes)?;
            }
        }
        for file in moved() {
            file.add(
                self,
                h,
                id_of(from, file.kind),
                -(bytes as i64),
                -(inodes as i64),
            )?;
            file.add(self, h, id_of(to, file.kind), bytes as i64, inodes as i64)?;
        }
        Ok(())
    }

    /// Makes the entries of one kind say what was counted, whatever they said. `each` gives a
    /// handle for one owner's entry.
    ///
    /// # Errors
    /// Damage, or a device error.
    pub(crate) fn set_usage(
        &self,
        kind: Kind,
        mut counted: std::collections::HashMap<u32, Usage>,
        each: impl Fn(u32, &dyn Fn(&Handle<'_>, u32) -> Result<()>) -> Result<()>,
    ) -> Result<()> {
        for file in self.files().iter().filter(|f| f.kind == kind) {
            let said = tree::entries(&file.at(self))?;
            for id in said.keys() {
                counted.entry(*id).or_default();
            }
            for (id, now) in &counted {
                let before = said.get(id).map_or(Usage::default(), |e| Usage {
                    bytes: e.curspace.get(),
                    inodes: e.curinodes.get(),
                });
                let bytes = now.bytes as i64 - before.bytes as i64;
                let inodes = now.inodes as i64 - before.inodes as i64;
                if bytes != 0 || inodes != 0 {
                    each(*id, &|h, id| file.add(self, h, id, bytes, inodes))?;
                }
            }
        }
        Ok(())
    }

    /// Whether an owner may have this much more space.
    ///
    /// # Errors
    /// `QuotaExceeded`, damage, or a device error.
    pub fn check_space(&self, owner: &Owner, bytes: u64) -> Result<()> {
        if self.files().is_empty() || bytes == 0 {
            return Ok(());
        }
        let promises = self.promises.lock();
        self.files().iter().try_for_each(|f| {
            let id = id_of(owner, f.kind);
            f.check(self, id, bytes + promises.of(f.kind, id), 0)
        })
    }

    /// Sets the promise to an inode to `bytes`. With `limit`, the promise must fit its owner's
    /// quota; otherwise it stays unchanged.
    ///
    /// # Errors
    /// `QuotaExceeded`; damage, or a device error. Only with `limit`.
    pub(crate) fn promise(&self, ino: Ino, owner: Owner, bytes: u64, limit: bool) -> Result<()> {
        if self.files().is_empty() {
            return Ok(());
        }
        let mut promises = self.promises.lock();
        let before = promises.by_inode.get(&ino).copied();
        if before == Some((owner, bytes)) || (before.is_none() && bytes == 0) {
            return Ok(());
        }
        if limit && before.is_none_or(|(_, known)| bytes > known) {
            let own = before.filter(|(o, _)| *o == owner).map_or(0, |(_, b)| b);
            for file in self.files() {
                let id = id_of(&owner, file.kind);
                let others = promises.of(file.kind, id).saturating_sub(own);
                file.check(self, id, others + bytes, 0)?;
            }
        }
        for file in self.files() {
            if let Some((owner, bytes)) = before {
                promises.change(file.kind, id_of(&owner, file.kind), -(bytes as i64));
            }
            promises.change(file.kind, id_of(&owner, file.kind), bytes as i64);
        }
        if bytes == 0 {
            promises.by_inode.remove(&ino);
        } else {
            promises.by_inode.insert(ino, (owner, bytes));
        }
        Ok(())
    }

    fn file(&self, kind: vfs::quota::Kind) -> Option<&File> {
        let kind = match kind {
            vfs::quota::Kind::User => Kind::User,
            vfs::quota::Kind::Group => Kind::Group,
            vfs::quota::Kind::Project => Kind::Project,
        };
        self.files().iter().find(|file| file.kind == kind)
    }

    /// What is used and allowed, by id; `None` when the volume does not count by this kind.
    ///
    /// # Errors
    /// Damage, or a device error.
    pub(crate) fn quotas(&self, kind: vfs::quota::Kind) -> Result<Option<Vec<vfs::quota::Quota>>> {
        let Some(file) = self.file(kind) else {
            return Ok(None);
        };
        let entries = tree::entries(&file.at(self))?;
        Ok(Some(entries.iter().map(|(id, e)| shown(*id, e)).collect()))
    }

    /// Sets what an id may have.
    ///
    /// # Errors
    /// `Unsupported` when the volume does not count by this kind; damage, no space, a device error.
    pub(crate) fn set_limits(
        &self,
        kind: vfs::quota::Kind,
        id: u32,
        limits: &vfs::quota::Limits,
    ) -> Result<()> {
        const OP: &str = "set quota";
        let Some(file) = self.file(kind) else {
            return Err(Error::new(ErrorKind::Unsupported, OP));
        };
        let h = self.volume.journal.start(self.credits().max(10), OP)?;
        let at = At {
            quota: self,
            file,
            handle: Some(&h),
        };
        tree::set_limits(&at, id, &stored(limits), now(), &mut file.places.lock())
    }
}

/// An entry of a quota file as front ends see it.
fn shown(id: u32, e: &RawQuotaEntry) -> vfs::quota::Quota {
    let limits = e.limits();
    let (space_until, inodes_until) = e.grace_ends();
    vfs::quota::Quota {
        id,
        bytes: e.curspace.get(),
        inodes: e.curinodes.get(),
        limits: vfs::quota::Limits {
            space_soft: limits.space_soft,
            space_hard: limits.space_hard,
            inodes_soft: limits.inodes_soft,
            inodes_hard: limits.inodes_hard,
        },
        space_until,
        inodes_until,
    }
}

/// Limits as quota files have them.
fn stored(limits: &vfs::quota::Limits) -> tree::StoredLimits {
    let limits = blockwright_ondisk::common::quota::Limits {
        space_soft: limits.space_soft,
        space_hard: limits.space_hard,
        inodes_soft: limits.inodes_soft,
        inodes_hard: limits.inodes_hard,
    };
    limits.stored()
}

impl Promises {
    fn of(&self, kind: Kind, id: u32) -> u64 {
        self.by_owner.get(&(kind, id)).copied().unwrap_or(0)
    }

    fn change(&mut self, kind: Kind, id: u32, bytes: i64) {
        let left = self.of(kind, id).saturating_add_signed(bytes);
        if left == 0 {
            self.by_owner.remove(&(kind, id));
        } else {
            self.by_owner.insert((kind, id), left);
        }
    }
}

/// A quota file's blocks: read, or changed in a handle.
struct At<'a, 'h> {
    quota: &'a Quota,
    file: &'a File,
    /// Nothing is changed without.
    handle: Option<&'a Handle<'h>>,
}

impl At<'_, '_> {
    /// The buffer a block of the file is in, and its offset there.
    fn read(&self, block: u32) -> Result<(BufferRef, usize)> {
        let at = u64::from(block) * BLOCK_SIZE as u64;
        let inode = &self.file.inode;
        if at + BLOCK_SIZE as u64 > inode.size() {
            return Err(self.bad(format!("quota block {block} is past the file's end")));
        }
        let bytes = self.quota.volume.block_bytes() as u64;
        let own = ext4(inode);
        let lblk = FileBlock(at / bytes);
        let (state, _) = look_up(&self.quota.alloc, own, &own.map.read(), lblk, 1)?;
        let BlockState::Mapped(physical) = state else {
            return Err(self.bad(format!("quota block {block} is a hole")));
        };
        let cache = &self.quota.volume.cache;
        let buffer = cache.read(physical, BlockKind::Quota, |_| Ok(()))?;
        Ok((buffer, (at % bytes) as usize))
    }

    fn handle(&self) -> Result<&Handle<'_>> {
        self.handle
            .ok_or_else(|| self.bad("changed without a handle".to_owned()))
    }
}

impl Blocks for At<'_, '_> {
    type Error = Error;

    fn look<R>(&self, block: u32, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
        let (buffer, at) = self.read(block)?;
        let data = buffer.data();
        Ok(f(&data[at..at + BLOCK_SIZE]))
    }

    fn change<R>(&self, block: u32, f: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        let (buffer, at) = self.read(block)?;
        self.handle()?
            .modify(&buffer, |data| f(&mut data[at..at + BLOCK_SIZE]))
    }

    fn grow(&self, block: u32) -> Result<()> {
        let (quota, h, inode) = (self.quota, self.handle()?, &self.file.inode);
        let own = ext4(inode);
        let bytes = quota.volume.block_bytes() as u64;
        let start = u64::from(block) * BLOCK_SIZE as u64;
        let lblk = FileBlock(start / bytes);
        let mut map = own.map.write();
        if let (BlockState::Hole, _) = look_up(&quota.alloc, own, &map, lblk, 1)? {
            // Not charged: quota files belong to no owner.
            let (physical, _) = create_block(&quota.alloc, h, own, &mut map, lblk, |_| Ok(()))?;
            h.create(physical, BlockKind::Quota, |_| ())?;
        }
        map.disk_size = (start + BLOCK_SIZE as u64).max(inode.size());
        inode.update_attr(|a| a.size = map.disk_size);
        quota.stored.write(h, inode, &map)?;
        drop(map);
        self.change(block, |data| data.fill(0))
    }

    fn bad(&self, what: String) -> Error {
        let ino = ext4(&self.file.inode).ino;
        self.quota
            .volume
            .corrupt("keep quota", Some(ino), None, what)
    }
}

/// Seconds since the epoch.
fn now() -> u64 {
    vfs::Timestamp::now().secs.max(0) as u64
}

impl File {
    fn at<'a>(&'a self, quota: &'a Quota) -> At<'a, 'a> {
        At {
            quota,
            file: self,
            handle: None,
        }
    }

    /// Whether an id may use this much more.
    fn check(&self, quota: &Quota, id: u32, bytes: u64, inodes: u64) -> Result<()> {
        let more = Usage { bytes, inodes };
        if tree::allows(&self.at(quota), id, more, now(), &mut self.places.lock())? {
            return Ok(());
        }
        Err(Error::new(ErrorKind::QuotaExceeded, "charge quota")
            .detail(format!("{:?} {id} is over its quota", self.kind)))
    }

    fn add(&self, quota: &Quota, h: &Handle<'_>, id: u32, bytes: i64, inodes: i64) -> Result<()> {
        h.ensure_credits(10)?;
        let at = At {
            quota,
            file: self,
            handle: Some(h),
        };
        tree::add(&at, id, bytes, inodes, now(), &mut self.places.lock())
    }
}
