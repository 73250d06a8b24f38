//! Disk quota: what users, groups and projects use, kept in hidden files.
//!
//! A quota file's blocks are changed in the cache of directories' blocks. So the next checkpoint writes
//! them with everything else, each to a new place, and after a crash they are as exact as the rest. Whenever an inode is stored, its
//! blocks are compared with what was last charged. So no path that allocates or frees blocks can forget the charge. An inode's own node
//! is not charged; all its other blocks are.
//!
//! Limits are checked when an inode is made and when space is asked for, because whatever is stored must be counted. Space that was
//! asked for and has no block yet is *promised*: it counts against limits, and is not in the files.
//!
//! # Never half done
//! Counting never fails an operation that is under way. Entries are made before anything is changed. Damage
//! in a file marks the volume (`quota_need_fsck`), and the next mount counts anew. A mount that recovers what was fsynced counts anew as well.
//!
//! # Locks
//! The promises, then each file's places, then the file's own `body` (nested: the inode that is charged is locked).
//!
//! # References
//! The VFS quota format, version 2 revision 1 (`ondisk::common::quota`).

use crate::node::inode::{Body, F2fsInode, f2fs};
use crate::node::load::Purpose;
use crate::node::tree::Tree;
use crate::volume::vfs_ino;
use crate::{Error, ErrorKind, Result};
use blockwright_device::AlignedBuf;
use blockwright_ondisk::common::quota::layout::QuotaKind;
use blockwright_ondisk::common::quota::tree::{self, Blocks, Places, Usage};
use blockwright_ondisk::common::quota::{self as format, RawQuotaEntry};
use blockwright_ondisk::f2fs as disk;
use blockwright_ondisk::f2fs::checkpoint::CheckpointFlags;
use blockwright_ondisk::f2fs::inode::InlineFlags;
use blockwright_ondisk::f2fs::{BLOCK_SIZE, Ino};
use blockwright_vfs as vfs;
use blockwright_vfs::locks::{Mutex, Rank};
use blockwright_vfs::quota::Owner;
use hashbrown::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

const KINDS: [QuotaKind; 3] = [QuotaKind::User, QuotaKind::Group, QuotaKind::Project];
/// Quota blocks of a block.
const PER_BLOCK: u32 = (BLOCK_SIZE / format::BLOCK_SIZE) as u32;

pub(crate) struct File {
    /// Which of an owner's ids it counts.
    pub(crate) which: usize,
    inode: Arc<vfs::Inode>,
    /// Behind the `body` of the inode that is charged, before the quota file's own.
    pub(crate) places: Mutex<Places>,
}

/// The quota files of a volume; none when it has none.
pub(crate) struct Quota {
    pub(crate) files: OnceLock<Vec<File>>,
    /// Bytes asked for and not charged yet. Behind the `body` of the inode that is charged, before the files' places.
    promises: Mutex<HashMap<(usize, u32), u64>>,
    /// Something could not be counted.
    stale: AtomicBool,
}

impl Default for Quota {
    fn default() -> Self {
        Quota {
            files: OnceLock::new(),
            promises: Mutex::new(Rank::InodeMap, HashMap::new()),
            stale: AtomicBool::new(false),
        }
    }
}

/// Seconds since the epoch.
pub(crate) fn now() -> u64 {
    vfs::Timestamp::now().secs.max(0) as u64
}

/// The owner in an inode as stored.
pub(crate) fn owner_of(inode: &disk::Inode) -> Owner {
    Owner {
        uid: inode.uid,
        gid: inode.gid,
        project: inode.extra.map_or(0, |e| e.projid),
    }
}

impl Quota {
    pub(crate) fn files(&self) -> &[File] {
        self.files.get().map_or(&[], Vec::as_slice)
    }

    /// Whether anything is counted.
    pub(crate) fn is_on(&self) -> bool {
        !self.files().is_empty()
    }

    /// What a checkpoint says about the files, given what the last one said.
    pub(crate) fn flag(&self, before: CheckpointFlags) -> CheckpointFlags {
        let stale = if self.is_on() {
            self.stale.load(Ordering::Relaxed)
        } else {
            before.contains(CheckpointFlags::QUOTA_NEED_FSCK)
        };
        if stale {
            CheckpointFlags::QUOTA_NEED_FSCK
        } else {
            CheckpointFlags::empty()
        }
    }

    fn promised(promises: &HashMap<(usize, u32), u64>, which: usize, id: u32) -> u64 {
        promises.get(&(which, id)).copied().unwrap_or(0)
    }

    /// Changes what is promised to an owner.
    fn change_promise(promises: &mut HashMap<(usize, u32), u64>, owner: &Owner, bytes: i64) {
        for (which, id) in owner.ids().into_iter().enumerate() {
            let left = Self::promised(promises, which, id).saturating_add_signed(bytes);
            if left == 0 {
                promises.remove(&(which, id));
            } else {
                promises.insert((which, id), left);
            }
        }
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

/// The file that counts by this kind.
pub(crate) fn of_kind<'f>(
    mut files: impl Iterator<Item = &'f File>,
    kind: vfs::quota::Kind,
) -> Option<&'f File> {
    let which = match kind {
        vfs::quota::Kind::User => 0,
        vfs::quota::Kind::Group => 1,
        vfs::quota::Kind::Project => 2,
    };
    files.find(|file| file.which == which)
}

/// Limits as quota files have them.
pub(crate) fn stored(limits: &vfs::quota::Limits) -> tree::StoredLimits {
    let limits = blockwright_ondisk::common::quota::Limits {
        space_soft: limits.space_soft,
        space_hard: limits.space_hard,
        inodes_soft: limits.inodes_soft,
        inodes_hard: limits.inodes_hard,
    };
    limits.stored()
}

/// A quota file's blocks, in the cache of directories' blocks.
pub(crate) struct At<'a> {
    tree: &'a Tree,
    file: &'a File,
}

impl At<'_> {
    /// The block a quota block is in, and its bytes there.
    fn place(&self, block: u32) -> Result<(u64, std::ops::Range<usize>)> {
        let end = (u64::from(block) + 1) * format::BLOCK_SIZE as u64;
        if end > self.file.inode.size() {
            return Err(self.bad(format!("quota block {block} is past the file's end")));
        }
        let at = (block % PER_BLOCK) as usize * format::BLOCK_SIZE;
        Ok((u64::from(block / PER_BLOCK), at..at + format::BLOCK_SIZE))
    }

    fn read(&self, at: u64) -> Result<crate::node::cache::Bytes> {
        let own = f2fs(&self.file.inode);
        let body = own.body.read_nested();
        self.tree
            .nodes
            .meta_block(own.ino, &body, at)?
            .ok_or_else(|| self.bad(format!("block {at} is a hole")))
    }
}

impl Blocks for At<'_> {
    type Error = Error;

    fn look<R>(&self, block: u32, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
        let (at, range) = self.place(block)?;
        let bytes = self.read(at)?;
        Ok(f(&bytes[range]))
    }

    fn change<R>(&self, block: u32, f: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        let (at, range) = self.place(block)?;
        let key = (f2fs(&self.file.inode).ino, at);
        let mut f = Some(f);
        loop {
            let changed = self.tree.nodes.blocks.change(key, |bytes| {
                let f = f.take()?;
                Some(f(&mut bytes[range.clone()]))
            });
            match changed {
                Some(Some(result)) => return Ok(result),
                Some(None) => return Err(self.bad("a block changed twice".to_owned())),
                None => drop(self.read(at)?),
            }
        }
    }

    fn grow(&self, block: u32) -> Result<()> {
        let (tree, own) = (self.tree, f2fs(&self.file.inode));
        let w = tree.access.writer("grow quota file")?;
        let at = u64::from(block / PER_BLOCK);
        let mut body = own.body.write_nested();
        if tree.nodes.meta_block(own.ino, &body, at)?.is_none() {
            tree.make_meta_block(w, own, &mut body, at, AlignedBuf::zeroed(BLOCK_SIZE))?;
        }
        let end = (u64::from(block) + 1) * format::BLOCK_SIZE as u64;
        let size = end.max(self.file.inode.size());
        body.disk_size = size;
        self.file.inode.update_attr(|a| a.size = size);
        tree.store_inode(&self.file.inode, &mut body)?;
        drop(body);
        self.change(block, |bytes| bytes.fill(0))
    }

    fn bad(&self, what: String) -> Error {
        let ino = f2fs(&self.file.inode).ino;
        self.tree
            .volume
            .corrupt("keep quota", Some(ino), None, format!("quota file: {what}"))
    }
}

impl Tree {
    pub(crate) fn at<'a>(&'a self, file: &'a File) -> At<'a> {
        At { tree: self, file }
    }

    pub(crate) fn open_quota_files(&self) -> Result<Vec<File>> {
        let mut files = Vec::new();
        for (which, ino) in self.volume.quota_inodes().into_iter().enumerate() {
            if ino.0 == 0 {
                continue;
            }
            let bad = |what: String| {
                let what = format!("the {:?} quota file, inode {ino}: {what}", KINDS[which]);
                Error::new(ErrorKind::Corrupt, "open quota").detail(what)
            };
            let inode = self
                .nodes
                .load_inode_for(ino, Purpose::Quota)
                .map_err(|e| bad(e.to_string()))?;
            let inline = f2fs(&inode).body.read().inode.inline;
            if inode.kind() != vfs::FileKind::Regular || inline.contains(InlineFlags::DATA) {
                return Err(bad("has no blocks".to_owned()));
            }
            let file = File {
                which,
                inode,
                places: Mutex::new(Rank::InodeMap, Places::default()),
            };
            match tree::check_head(&self.at(&file), KINDS[which]) {
                Ok(Ok(())) => {}
                Ok(Err(what)) => return Err(bad(what)),
                Err(e) => return Err(bad(e.to_string())),
            }
            files.push(file);
        }
        Ok(files)
    }

    /// Usage and limits by id; `None` when the volume does not count by this kind.
    ///
    /// # Errors
    /// Damage, or a device error.
    pub(crate) fn quotas(&self, kind: vfs::quota::Kind) -> Result<Option<Vec<vfs::quota::Quota>>> {
        // A volume that is only read has not opened them.
        let opened = if self.quota.is_on() {
            Vec::new()
        } else {
            self.open_quota_files()?
        };
        let files = self.quota.files().iter().chain(&opened);
        let Some(file) = of_kind(files, kind) else {
            return Ok(None);
        };
        let entries = tree::entries(&self.at(file))?;
        Ok(Some(entries.iter().map(|(id, e)| shown(*id, e)).collect()))
    }

    /// Something could not be counted: the next checkpoint says so.
    fn quota_failed(&self, e: &Error) {
        // Damage has been noted where it was met; what else there is (a device's error) shows again.
        let _ = e;
        self.quota.stale.store(true, Ordering::Relaxed);
    }

    fn add_usage(&self, owner: &Owner, bytes: i64, inodes: i64) {
        for file in self.quota.files() {
            let (at, id) = (self.at(file), owner.ids()[file.which]);
            let mut places = file.places.lock_nested();
            if let Err(e) = tree::add(&at, id, bytes, inodes, now(), &mut places) {
                self.quota_failed(&e);
            }
        }
    }

    fn allows(&self, file: &File, id: u32, more: Usage) -> Result<()> {
        let allowed = tree::allows(
            &self.at(file),
            id,
            more,
            now(),
            &mut file.places.lock_nested(),
        );
        match allowed {
            Ok(true) => Ok(()),
            Ok(false) => {
                let kind = KINDS[file.which];
                Err(Error::new(ErrorKind::QuotaExceeded, "charge quota")
                    .detail(format!("{kind:?} {id} is over its quota")))
            }
            Err(e) => {
                self.quota_failed(&e);
                Ok(())
            }
        }
    }

    /// Sees to it that an owner has its entries, so that counting needs no room.
    fn ensure_entries(&self, owner: &Owner) -> Result<()> {
        for file in self.quota.files() {
            let (at, id) = (self.at(file), owner.ids()[file.which]);
            let made = tree::ensure(&at, id, &mut file.places.lock_nested());
            match made {
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::NoSpace => return Err(e),
                Err(e) => self.quota_failed(&e),
            }
        }
        Ok(())
    }

    /// Whether an owner may have one more inode; makes room for counting it.
    ///
    /// # Errors
    /// `QuotaExceeded`, `NoSpace`; nothing is charged.
    pub(crate) fn check_inode_quota(&self, owner: &Owner) -> Result<()> {
        let one = Usage {
            bytes: 0,
            inodes: 1,
        };
        for file in self.quota.files() {
            self.allows(file, owner.ids()[file.which], one)?;
        }
        self.ensure_entries(owner)
    }

    /// Counts an inode that was made (1) or freed (-1), with all that it was charged for.
    pub(crate) fn count_inode(&self, inode: &vfs::Inode, body: &mut Body, by: i64) {
        if self.quota.is_on() && !self.volume.is_quota_file(f2fs(inode).ino) {
            let bytes = (std::mem::take(&mut body.charged) << 12) as i64;
            self.add_usage(&Owner::of(&inode.attr()), bytes * by.min(0), by);
        }
    }

    /// Charges what an inode that is being stored has more or less than before.
    pub(crate) fn charge_blocks(&self, ino: Ino, body: &mut Body) {
        if !self.quota.is_on() || self.volume.is_quota_file(ino) {
            return;
        }
        let has = body.inode.blocks.saturating_sub(1);
        let more = has.wrapping_sub(body.charged) as i64;
        if more != 0 {
            self.add_usage(&owner_of(&body.inode), more << 12, 0);
            body.charged = has;
        }
    }

    /// Bytes of an inode that were not charged yet, because they are not stored yet.
    fn uncharged(body: &Body) -> u64 {
        let has = body.inode.blocks.saturating_sub(1);
        has.saturating_sub(body.charged) << 12
    }

    /// Whether an inode's owner may have this many more blocks.
    ///
    /// # Errors
    /// `QuotaExceeded`.
    pub(crate) fn check_block_quota(
        &self,
        own: &F2fsInode,
        body: &Body,
        blocks: u64,
    ) -> Result<()> {
        if !self.quota.is_on() || self.volume.is_quota_file(own.ino) {
            return Ok(());
        }
        let owner = owner_of(&body.inode);
        let promises = self.quota.promises.lock_nested();
        self.allow_space(&promises, &owner, (blocks << 12) + Self::uncharged(body))
            .map_err(|e| e.ino(vfs_ino(own.ino)))
    }

    fn allow_space(
        &self,
        promises: &HashMap<(usize, u32), u64>,
        owner: &Owner,
        bytes: u64,
    ) -> Result<()> {
        for file in self.quota.files() {
            let id = owner.ids()[file.which];
            let more = Usage {
                bytes: bytes + Quota::promised(promises, file.which, id),
                inodes: 0,
            };
            self.allows(file, id, more)?;
        }
        Ok(())
    }

    /// Promises blocks to an inode's owner; with `limit` only what fits its quota.
    ///
    /// # Errors
    /// `QuotaExceeded`, with nothing promised.
    pub(crate) fn promise_blocks(
        &self,
        own: &F2fsInode,
        body: &mut Body,
        blocks: u64,
        limit: bool,
    ) -> Result<()> {
        if !self.quota.is_on() || self.volume.is_quota_file(own.ino) {
            return Ok(());
        }
        let owner = body.promised_to.unwrap_or_else(|| owner_of(&body.inode));
        let mut promises = self.quota.promises.lock_nested();
        if limit {
            self.allow_space(&promises, &owner, (blocks << 12) + Self::uncharged(body))
                .map_err(|e| e.ino(vfs_ino(own.ino)))?;
        }
        Quota::change_promise(&mut promises, &owner, (blocks << 12) as i64);
        body.promised_to = Some(owner);
        Ok(())
    }

    /// Promised blocks were charged, or are not wanted any more.
    pub(crate) fn unpromise_blocks(&self, body: &Body, blocks: u64) {
        if let Some(owner) = &body.promised_to {
            let mut promises = self.quota.promises.lock_nested();
            Quota::change_promise(&mut promises, owner, -((blocks << 12) as i64));
        }
    }

    /// An inode is about to change its owner: `to` must have room for all of it.
    ///
    /// # Errors
    /// `QuotaExceeded`, `NoSpace`; nothing is moved.
    pub(crate) fn check_transfer(&self, body: &Body, from: &Owner, to: &Owner) -> Result<()> {
        if !self.quota.is_on() || from == to {
            return Ok(());
        }
        {
            let promises = self.quota.promises.lock_nested();
            let own = (body.charged + body.delayed_blocks) << 12;
            for file in self.quota.files() {
                let (before, id) = (from.ids()[file.which], to.ids()[file.which]);
                if before != id {
                    let more = Usage {
                        bytes: own + Quota::promised(&promises, file.which, id),
                        inodes: 1,
                    };
                    self.allows(file, id, more)?;
                }
            }
        }
        self.ensure_entries(to)
    }

    /// An inode has changed its owner.
    pub(crate) fn transfer(&self, body: &mut Body, from: &Owner, to: &Owner) {
        if !self.quota.is_on() || from == to {
            return;
        }
        let bytes = (body.charged << 12) as i64;
        self.add_usage(from, -bytes, -1);
        self.add_usage(to, bytes, 1);
        if body.promised_to.is_some() {
            self.unpromise_blocks(body, body.delayed_blocks);
            let mut promises = self.quota.promises.lock_nested();
            Quota::change_promise(&mut promises, to, (body.delayed_blocks << 12) as i64);
            body.promised_to = Some(*to);
        }
    }
}
