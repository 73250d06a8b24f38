//! [`InlineData`]: small files kept in their inode: 60 bytes in `i_block`, more in the hidden attribute `system.data`.
//!
//! It owns nothing but its references. It calls `Delayed`, `Maps`, `Inodes` and the attribute area of an inode. It never writes file
//! data except when it moves a file's bytes to a block.
//!
//! A new regular file starts inline where the volume has `inline_data`. Room for a block is reserved when the first bytes are written, as for
//! any file; writeback, which knows the size, puts what fits into the inode and gives the block back. A write past what the inode can hold
//! converts the file, at the time room is reserved: the bytes go to a block, and from then on the file is like any other. A caller that learns
//! that bytes fit owns the inode's room for them, in memory: the hidden attribute is as long as that takes, so that no other attribute takes it.
//!
//! # Locks
//! The inode's `map` decides whether a file is inline; conversion re-checks under it. Writers of the inode
//! are kept apart by the vfs.
//!
//! # Crash order
//! A conversion writes the block before its transaction can commit: the handle is open meanwhile. So a
//! crash leaves either the inline bytes or the block with the same bytes.

use super::delayed::Delayed;
use crate::alloc::Allocator;
use crate::attr::xattr::{ibody_get, ibody_room_for, ibody_set};
use crate::inode::{Body, Inodes, MapState, empty_extent_root, ext4};
use crate::map::{META_BLOCK_CREDITS, Maps};
use crate::quota::Quota;
use crate::volume::Volume;
use crate::{Error, ErrorKind, Result};
use blockwright_device::{AlignedBuf, DevOffset, Flags, IoSlice};
use blockwright_ondisk::ext4::features::Incompat;
use blockwright_ondisk::ext4::xattr::{INDEX_SYSTEM, INLINE_DATA_NAME};
use blockwright_ondisk::ext4::{FileBlock, InodeFlags};
use blockwright_vfs as vfs;
use blockwright_vfs::engine::WriteTarget;
use std::ops::Range;

/// Bytes of `i_block`.
const ROOT_BYTES: usize = 60;

/// Gives the hidden attribute room for what `bytes` have more than `i_block`, if there is any. What was there stays.
fn lengthen(body: &mut Body, bytes: u64) -> bool {
    let more = usize::try_from(bytes).map_or(usize::MAX, |n| n.saturating_sub(ROOT_BYTES));
    let Ok(value) = ibody_get(body, INDEX_SYSTEM, INLINE_DATA_NAME) else {
        return false;
    };
    match value {
        Some(value) if value.len() >= more => true,
        value => {
            let mut value = value.unwrap_or_default();
            value.resize(more, 0);
            matches!(
                ibody_set(body, INDEX_SYSTEM, INLINE_DATA_NAME, Some(&value)),
                Ok(true)
            )
        }
    }
}

/// How many bytes an inline file can have. None, when its attributes are damaged.
fn capacity(inode: &vfs::Inode) -> u64 {
    let room = ibody_room_for(&ext4(inode).body.lock(), INDEX_SYSTEM, INLINE_DATA_NAME);
    room.map_or(0, |room| (ROOT_BYTES + room) as u64)
}

/// Whether a file has no block, is to get none but the first, and no writer is in that one.
fn has_nothing(map: &MapState) -> bool {
    let empty = match map.flags.contains(InodeFlags::EXTENTS) {
        true => crate::map::extents::node::is_empty(&map.root),
        false => map.root == [0; ROOT_BYTES],
    };
    let refused = InodeFlags::INLINE_DATA
        | InodeFlags::ENCRYPT
        | InodeFlags::VERITY
        | InodeFlags::EA_INODE
        | InodeFlags::JOURNAL_DATA;
    empty
        && !map.flags.intersects(refused)
        && !map.delayed.intersects(1..u64::MAX)
        && map
            .pending
            .iter()
            .all(|(at, run)| at.0 == 0 && run.len == 1 && run.writers == 0)
}

blockwright_vfs::part! {
    /// See the module's head.
    pub struct InlineData {
        volume: Volume,
        alloc: Allocator,
        quota: Quota,
        inodes: Inodes,
        maps: Maps,
        delayed: Delayed,
    }
}

impl InlineData {
    /// Makes a new, empty file inline if its inode has room for that. The caller stores it.
    pub(crate) fn start(&self, inode: &vfs::Inode) {
        let own = ext4(inode);
        let mut map = own.map.write();
        let started = ibody_set(
            &mut own.body.lock(),
            INDEX_SYSTEM,
            INLINE_DATA_NAME,
            Some(&[]),
        );
        if matches!(started, Ok(true)) {
            map.flags -= InodeFlags::EXTENTS;
            map.flags |= InodeFlags::INLINE_DATA;
            map.root = [0; ROOT_BYTES];
        }
    }

    fn fits(&self, inode: &vfs::Inode, bytes: u64) -> bool {
        let map = ext4(inode).map.read();
        map.flags.contains(InodeFlags::INLINE_DATA) && bytes <= capacity(inode)
    }

    /// Whether `bytes` fit the inode; they will, then.
    fn promise(&self, inode: &vfs::Inode, bytes: u64) -> bool {
        let own = ext4(inode);
        let map = own.map.write();
        map.flags.contains(InodeFlags::INLINE_DATA)
            && bytes <= capacity(inode)
            && lengthen(&mut own.body.lock(), bytes)
    }

    /// [`vfs::engine::Space::may_go_inline`].
    pub(crate) fn may_go_inline(&self, inode: &vfs::Inode) -> bool {
        self.volume.has_incompat(Incompat::INLINE_DATA)
            && inode.kind() == vfs::FileKind::Regular
            && has_nothing(&ext4(inode).map.read())
    }

    /// Puts a file without blocks into its inode, which `bytes` fit, and gives back what was reserved for them. Nothing is
    /// stored.
    pub(crate) fn go_inline(&self, inode: &vfs::Inode, bytes: u64) -> bool {
        if bytes > self.volume.block_bytes() as u64 || !self.may_go_inline(inode) {
            return false;
        }
        let own = ext4(inode);
        let mut map = own.map.write();
        let fits = bytes <= capacity(inode);
        if !fits || !has_nothing(&map) || map.disk_size > bytes {
            return false;
        }
        if !lengthen(&mut own.body.lock(), bytes) {
            return false;
        }
        self.delayed.unreserve_in(&mut map, 0..1);
        map.flags -= InodeFlags::EXTENTS;
        map.flags |= InodeFlags::INLINE_DATA;
        map.root = [0; ROOT_BYTES];
        map.generation = map.generation.wrapping_add(1);
        self.maps.show_blocks(inode, &map);
        true
    }

    /// Whether a range needs no room outside of the inode. A file that cannot hold it inline has blocks
    /// by now.
    ///
    /// # Errors
    /// `NoSpace`, damage, or a device error.
    pub(crate) fn reserve(&self, inode: &vfs::Inode, range: &Range<u64>) -> Result<bool> {
        if !ext4(inode).is_inline() {
            return Ok(false);
        }
        if self.promise(inode, range.end) {
            return Ok(true);
        }
        self.to_blocks(inode)?;
        Ok(false)
    }

    /// [`blockwright_vfs::engine::Space::reserve_hole`]: in the inode if the bytes fit there, otherwise in blocks.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn reserve_hole(&self, inode: &vfs::Inode, range: Range<u64>) -> Result<bool> {
        loop {
            match self.delayed.reserve_hole(inode, range.clone())? {
                Some(all_new) => return Ok(all_new),
                None if self.reserve(inode, &range)? => return Ok(false),
                // It has blocks by now.
                None => {}
            }
        }
    }

    /// Decides where an inline file's data is written: `None` when it has, by now, blocks, or will have.
    ///
    /// # Errors
    /// `NoSpace`, damage, or a device error.
    pub(crate) fn allocate(
        &self,
        inode: &vfs::Inode,
        range: &Range<u64>,
        data_end: u64,
    ) -> Result<Option<WriteTarget>> {
        if !ext4(inode).is_inline() && (range.start > 0 || !self.go_inline(inode, data_end)) {
            return Ok(None);
        }
        if self.fits(inode, data_end) {
            return Ok(Some(WriteTarget {
                offset: range.start,
                bytes: range.end.saturating_sub(range.start),
                device: None,
                commit: false,
                fresh: false,
            }));
        }
        self.to_blocks(inode)?;
        Ok(None)
    }

    /// The bytes of an inline file.
    ///
    /// # Errors
    /// `KeyRequired` for an encrypted file; damage.
    pub fn read(&self, inode: &vfs::Inode) -> Result<Vec<u8>> {
        const OP: &str = "read inline data";
        let own = ext4(inode);
        let map = own.map.read();
        if map.flags.contains(InodeFlags::ENCRYPT) {
            return Err(Error::new(ErrorKind::KeyRequired, OP).ino(inode.ino()));
        }
        let mut bytes = map.root.to_vec();
        let size = map.disk_size as usize;
        let more = ibody_get(&own.body.lock(), INDEX_SYSTEM, INLINE_DATA_NAME);
        drop(map);
        match more {
            Ok(more) => bytes.extend_from_slice(&more.unwrap_or_default()),
            Err(bad) => return Err(self.volume.corrupt(OP, Some(own.ino), None, bad.0)),
        }
        // A file may have been made longer than its inode has room for: the rest is a hole.
        if size > bytes.len() && inode.kind() != vfs::FileKind::Regular {
            let detail = format!("{size} bytes of inline data in room for {}", bytes.len());
            return Err(self.volume.corrupt(OP, Some(own.ino), None, detail));
        }
        bytes.truncate(size);
        Ok(bytes)
    }

    /// Replaces an inline file's bytes, in a transaction of its own. Data that no longer fits (an attribute has taken the
    /// room) moves to a block. `data_end`: the file's size as far as this write knows it. `false`, and nothing is written,
    /// if the file is no longer inline.
    ///
    /// # Errors
    /// `NoSpace`, damage, or a device error.
    pub fn write(&self, inode: &vfs::Inode, bytes: &[u8], data_end: u64) -> Result<bool> {
        const OP: &str = "write inline data";
        self.volume.check_writable(OP)?;
        let end = usize::try_from(data_end).unwrap_or(usize::MAX);
        let mut bytes = bytes.to_vec();
        if end <= bytes.len() {
            bytes.truncate(end);
        } else if self.fits(inode, end as u64) {
            bytes.resize(end, 0);
        }
        {
            let h = self.volume.journal.start(1 + self.quota.credits(), OP)?;
            let mut map = ext4(inode).map.write();
            if !map.flags.contains(InodeFlags::INLINE_DATA) {
                return Ok(false);
            }
            if self.put(inode, &mut map, &bytes)? {
                self.inodes.store_locked(&h, inode, &map)?;
                return Ok(true);
            }
        }
        self.convert_with(inode, Some(bytes))?;
        Ok(true)
    }

    /// Stores bytes inline, if they fit. The caller stores the inode.
    fn put(&self, inode: &vfs::Inode, map: &mut MapState, bytes: &[u8]) -> Result<bool> {
        let own = ext4(inode);
        let (root, more) = bytes.split_at(bytes.len().min(ROOT_BYTES));
        let fits = ibody_set(
            &mut own.body.lock(),
            INDEX_SYSTEM,
            INLINE_DATA_NAME,
            Some(more),
        );
        match fits {
            Ok(true) => {
                map.root = [0; ROOT_BYTES];
                map.root[..root.len()].copy_from_slice(root);
                map.disk_size = bytes.len() as u64;
                Ok(true)
            }
            Ok(false) => Ok(false),
            Err(bad) => Err(self
                .volume
                .corrupt("store inline data", Some(own.ino), None, bad.0)),
        }
    }

    /// Moves an inline file's bytes to a block. Nothing happens to other files.
    ///
    /// # Errors
    /// `NoSpace`, damage, or a device error; the file is then inline as before.
    pub fn to_blocks(&self, inode: &vfs::Inode) -> Result<()> {
        if !ext4(inode).is_inline() {
            return Ok(());
        }
        self.convert_with(inode, None)
    }

    fn convert_with(&self, inode: &vfs::Inode, new: Option<Vec<u8>>) -> Result<()> {
        const OP: &str = "convert inline data";
        self.volume.check_writable(OP)?;
        let own = ext4(inode);
        self.alloc.retry_after_commit(|| {
            let bytes = match &new {
                Some(bytes) => bytes.clone(),
                None if ext4(inode).is_inline() => self.read(inode)?,
                None => return Ok(()),
            };
            let credits = 4 + META_BLOCK_CREDITS + self.quota.credits();
            let h = self.volume.journal.start(credits, OP)?;
            let saved = {
                let mut map = own.map.write();
                if !map.flags.contains(InodeFlags::INLINE_DATA) {
                    // Another writer was faster.
                    return Ok(());
                }
                let mut body = own.body.lock();
                let saved = (map.root, map.flags, map.disk_size, body.raw.clone());
                ibody_set(&mut body, INDEX_SYSTEM, INLINE_DATA_NAME, None)
                    .map_err(|bad| self.volume.corrupt(OP, Some(own.ino), None, bad.0))?;
                map.flags -= InodeFlags::INLINE_DATA;
                map.root = [0; ROOT_BYTES];
                if self.volume.has_incompat(Incompat::EXTENT) {
                    map.flags |= InodeFlags::EXTENTS;
                    map.root = empty_extent_root();
                }
                map.generation = map.generation.wrapping_add(1);
                map.disk_size = bytes.len() as u64;
                if new.is_none() {
                    // With a hole at its end it stays as long as it was.
                    map.disk_size = map.disk_size.max(saved.2);
                }
                saved
            };
            let done = if bytes.is_empty() {
                Ok(())
            } else {
                self.maps
                    .create_meta(&h, inode, FileBlock(0))
                    .and_then(|block| {
                        let mut data = AlignedBuf::zeroed(self.volume.block_bytes());
                        data[..bytes.len()].copy_from_slice(&bytes);
                        let at = DevOffset(self.volume.geometry().block_offset(block));
                        self.volume
                            .device
                            .write_vectored_at(at, &[IoSlice::from(data)], Flags::default())
                            .map_err(|e| Error::io(OP, e).block(block.0))
                    })
            };
            if done.is_err() && own.map.read().blocks == 0 {
                let mut map = own.map.write();
                (map.root, map.flags, map.disk_size) = (saved.0, saved.1, saved.2);
                own.body.lock().raw = saved.3;
            }
            self.inodes.store(&h, inode)?;
            done
        })
    }

    /// Changes an inline file's size, if the new one fits the inode. `false` when the file has, by now,
    /// blocks.
    ///
    /// # Errors
    /// Damage, or a device error.
    pub(crate) fn truncate(
        &self,
        inode: &vfs::Inode,
        size: u64,
        now: vfs::Timestamp,
    ) -> Result<bool> {
        const OP: &str = "truncate inline data";
        if !ext4(inode).is_inline() {
            return Ok(false);
        }
        if !self.fits(inode, size) {
            self.to_blocks(inode)?;
            return Ok(false);
        }
        let mut bytes = self.read(inode)?;
        bytes.resize(size as usize, 0);
        let h = self.volume.journal.start(1 + self.quota.credits(), OP)?;
        let mut map = ext4(inode).map.write();
        if !self.put(inode, &mut map, &bytes)? {
            drop(map);
            drop(h);
            self.to_blocks(inode)?;
            return Ok(false);
        }
        map.generation = map.generation.wrapping_add(1);
        inode.update_attr(|a| {
            a.size = size;
            (a.mtime, a.ctime) = (now, now);
        });
        self.inodes.store_locked(&h, inode, &map)?;
        Ok(true)
    }
}
