//! Space against quota: the promise to a file, and the space that an operation may take.
//!
//! Not responsible for: counting what is stored (`quota`, through every store of an inode).

use super::{Owner, Quota};
use crate::Result;
use crate::inode::{Ext4Inode, MapState};
use crate::map::extents::node;
use crate::map::{BlockState, look_up};
use blockwright_ondisk::ext4::{FileBlock, Ino, InodeFlags};
use blockwright_vfs::Inode;
use std::ops::Range;

/// Whether a promise must fit the owner's quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// It must.
    Enforced,
    /// What was promised became less, or belongs to another owner now.
    Ignored,
}

impl Quota {
    /// Makes the promise to an inode what its map says: delayed blocks, the worst case of their
    /// metadata, and blocks that direct writes took and have not committed.
    ///
    /// # Errors
    /// `QuotaExceeded`, damage, or a device error; only with [`Limit::Enforced`].
    pub(crate) fn promise_space(&self, inode: &Inode, map: &MapState, limit: Limit) -> Result<()> {
        let ino = inode.private::<Ext4Inode>().ino;
        if !self.is_on() || !self.is_charged(ino, map.flags) {
            return Ok(());
        }
        let delayed = map.delayed.total();
        // Kept count of: without delayed allocation there is a pending run for every dirty stretch.
        let direct = map.pending_direct;
        let meta = if map.flags.contains(InodeFlags::EXTENTS) {
            map.meta_promised
        } else {
            map.pointers_promised
        };
        let meta = match direct {
            0 => meta,
            _ => meta + Self::insert_blocks_max(map),
        };
        let bytes = (delayed + direct + meta) * self.volume.block_units() * 512;
        let owner = Owner::of(&inode.attr());
        let limited = limit == Limit::Enforced;
        self.promise(ino, owner, bytes, limited)
    }

    /// Whether the owner of an inode may have this many more blocks.
    ///
    /// # Errors
    /// `QuotaExceeded`, damage, or a device error.
    pub(crate) fn check_blocks(&self, inode: &Inode, blocks: u64) -> Result<()> {
        let own = inode.private::<Ext4Inode>();
        if !self.is_on() || !self.is_charged(own.ino, own.flags()) {
            return Ok(());
        }
        let bytes = blocks * self.volume.block_units() * 512;
        self.check_space(&Owner::of(&inode.attr()), bytes)
    }

    /// Whether one more block of metadata, and what its mapping may need, fits the owner's quota.
    ///
    /// # Errors
    /// `QuotaExceeded`, damage, or a device error.
    pub(crate) fn check_meta(&self, inode: &Inode, map: &MapState) -> Result<()> {
        let ino = inode.private::<Ext4Inode>().ino;
        if !self.is_on() || !self.is_charged(ino, map.flags) {
            return Ok(());
        }
        let bytes = (1 + Self::insert_blocks_max(map)) * self.volume.block_units() * 512;
        self.check_space(&Owner::of(&inode.attr()), bytes)
    }

    /// Blocks that one insertion into a mapping takes at worst.
    fn insert_blocks_max(map: &MapState) -> u64 {
        if !map.flags.contains(InodeFlags::EXTENTS) {
            return if map.blocks == 0 { 0 } else { 3 };
        }
        let depth = u64::from(node::depth(&map.root));
        if depth == 0 && node::count(&map.root) < node::capacity(&map.root) {
            0
        } else {
            depth + 1
        }
    }

    /// Whether what a direct write just took fits the owner's quota.
    ///
    /// # Errors
    /// `QuotaExceeded`: the caller gives the blocks back. Damage, or a device error.
    pub(crate) fn limit_direct_write(&self, inode: &Inode) -> Result<()> {
        if !self.is_on() {
            return Ok(());
        }
        let map = inode.private::<Ext4Inode>().map.read();
        self.promise_space(inode, &map, Limit::Enforced)
    }

    /// Whether the blocks that are missing in a range of bytes fit the owner's quota.
    ///
    /// # Errors
    /// `QuotaExceeded`, damage, or a device error.
    pub(crate) fn check_fallocate(&self, inode: &Inode, range: &Range<u64>) -> Result<()> {
        if !self.is_on() {
            return Ok(());
        }
        let own = inode.private::<Ext4Inode>();
        let bytes = self.volume.block_bytes() as u64;
        let (mut at, end) = (range.start / bytes, range.end.div_ceil(bytes));
        let mut missing = 0u64;
        if own.is_inline() {
            missing = end - at;
            at = end;
        }
        while at < end {
            let (state, len) = look_up(&self.alloc, own, &own.map.read(), FileBlock(at), end - at)?;
            let next = at.saturating_add(len.max(1)).min(end);
            if state == BlockState::Hole {
                missing += next - at;
            }
            at = next;
        }
        if missing == 0 {
            return Ok(());
        }
        let meta = Self::insert_blocks_max(&own.map.read()) + missing.div_ceil(1 << 20);
        self.check_blocks(inode, missing + meta)
    }

    /// Whether an inode's space is charged to its owner.
    pub(crate) fn is_charged(&self, ino: Ino, flags: InodeFlags) -> bool {
        let raw = &self.volume.superblock().raw;
        let hidden = [
            raw.usr_quota_inum.get(),
            raw.grp_quota_inum.get(),
            raw.prj_quota_inum.get(),
            raw.orphan_file_inum.get(),
        ];
        !flags.contains(InodeFlags::EA_INODE)
            && (ino == Ino::ROOT || ino.0 >= self.volume.geometry().first_ino.0)
            && !hidden.contains(&ino.0)
    }
}
