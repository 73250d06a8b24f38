//! Directories kept in their inode: the parent's number and entries in `i_block`, more entries in
//! the hidden attribute `system.data`. There are no entries for `.` and `..`, and no checksum of their own.

use super::block::{self, BadEntry, DirFormat};
use super::{Dir, Directories, Found, Place, Query};
use crate::attr::xattr::{ibody_get, ibody_room_for, ibody_set};
use crate::inode::{empty_extent_root, ext4};
use crate::journal::Handle;
use crate::journal::buffer::BlockKind;
use crate::{Error, Result};
use blockwright_ondisk::ext4::features::Incompat;
use blockwright_ondisk::ext4::xattr::{INDEX_SYSTEM, INLINE_DATA_NAME};
use blockwright_ondisk::ext4::{FileBlock, Ino, InodeFlags};
use blockwright_vfs as vfs;
use std::ops::Range;

/// Entries in `i_block`, behind the parent's number.
const ROOT_AREA: Range<usize> = 4..60;
/// The offset, as a position in a listing, at which an inline directory's first entry is: where it
/// will be when the directory becomes a block and gets `.` and `..`.
pub(super) const FIRST_OFFSET: u64 = 24;

impl Directories {
    fn bad_inline(&self, op: &'static str, dir: &Dir<'_>, what: &str) -> Error {
        self.volume
            .corrupt(op, Some(dir.ino), None, format!("inline directory: {what}"))
    }

    /// The two areas of entries. Either is walked as a block would be.
    pub(super) fn inline_areas(
        &self,
        op: &'static str,
        dir: &Dir<'_>,
    ) -> Result<[(Place, Vec<u8>); 2]> {
        let own = ext4(dir.inode);
        let map = own.map.read();
        let more = ibody_get(&own.body.lock(), INDEX_SYSTEM, INLINE_DATA_NAME);
        let root = map.root[ROOT_AREA].to_vec();
        drop(map);
        match more {
            Ok(Some(more)) => Ok([(Place::InlineRoot, root), (Place::InlineMore, more)]),
            Ok(None) => Err(self.bad_inline(op, dir, "there is no `system.data` attribute")),
            Err(bad) => Err(self.bad_inline(op, dir, bad.0)),
        }
    }

    pub(super) fn inline_parent(&self, dir: &Dir<'_>) -> Ino {
        let map = ext4(dir.inode).map.read();
        Ino(u32::from_le_bytes([
            map.root[0],
            map.root[1],
            map.root[2],
            map.root[3],
        ]))
    }

    pub(super) fn inline_set_parent(
        &self,
        h: &Handle<'_>,
        dir: &Dir<'_>,
        parent: Ino,
    ) -> Result<()> {
        let mut map = ext4(dir.inode).map.write();
        map.root[..4].copy_from_slice(&parent.0.to_le_bytes());
        self.inodes.store_locked(h, dir.inode, &map)
    }

    pub(super) fn inline_find(
        &self,
        op: &'static str,
        dir: &Dir<'_>,
        query: &Query<'_>,
    ) -> Result<Option<Found>> {
        for (place, area) in self.inline_areas(op, dir)? {
            for entry in block::entries(&area, &dir.layout) {
                let entry = entry.map_err(|b| self.bad_entry(op, dir, 0, &b))?;
                if query.matches(self, &entry) {
                    self.check_target(op, dir, &entry)?;
                    return Ok(Some(Found {
                        place,
                        offset: entry.offset,
                        ino: entry.ino,
                        file_type: entry.file_type,
                    }));
                }
            }
        }
        Ok(None)
    }

    pub(super) fn inline_is_empty(&self, op: &'static str, dir: &Dir<'_>) -> Result<bool> {
        for (_, area) in self.inline_areas(op, dir)? {
            for entry in block::entries(&area, &dir.layout) {
                if entry.map_err(|b| self.bad_entry(op, dir, 0, &b))?.is_used() {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Changes one of the areas in place and stores the inode.
    pub(super) fn inline_edit(
        &self,
        h: &Handle<'_>,
        dir: &Dir<'_>,
        place: Place,
        edit: impl FnOnce(&mut [u8]) -> std::result::Result<(), BadEntry>,
    ) -> Result<()> {
        const OP: &str = "change inline directory";
        let [(_, mut root), (_, mut more)] = self.inline_areas(OP, dir)?;
        let area = match place {
            Place::InlineMore => &mut more,
            _ => &mut root,
        };
        edit(area).map_err(|b| self.bad_entry(OP, dir, 0, &b))?;
        self.inline_put(h, dir, &root, &more)
    }

    fn inline_put(&self, h: &Handle<'_>, dir: &Dir<'_>, root: &[u8], more: &[u8]) -> Result<()> {
        let own = ext4(dir.inode);
        let mut map = own.map.write();
        map.root[ROOT_AREA].copy_from_slice(root);
        let fits = ibody_set(
            &mut own.body.lock(),
            INDEX_SYSTEM,
            INLINE_DATA_NAME,
            Some(more),
        );
        match fits {
            Ok(true) => {}
            Ok(false) => {
                return Err(self.bad_inline("store inline directory", dir, "no longer fits"));
            }
            Err(bad) => return Err(self.bad_inline("store inline directory", dir, bad.0)),
        }
        map.disk_size = 60 + more.len() as u64;
        dir.inode.update_attr(|a| a.size = map.disk_size);
        self.inodes.store_locked(h, dir.inode, &map)
    }

    /// Adds an entry, if there is room in the inode.
    pub(super) fn inline_insert(
        &self,
        h: &Handle<'_>,
        dir: &Dir<'_>,
        name: &[u8],
        ino: Ino,
        file_type: u8,
    ) -> Result<bool> {
        const OP: &str = "add name";
        let layout = dir.layout;
        let [(_, mut root), (_, mut more)] = self.inline_areas(OP, dir)?;
        for which in [Place::InlineRoot, Place::InlineMore] {
            let area = match which {
                Place::InlineMore => &mut more,
                _ => &mut root,
            };
            let slot = block::find_slot(area, name.len(), &layout)
                .map_err(|b| self.bad_entry(OP, dir, 0, &b))?;
            if let Some(slot) = slot {
                block::insert_at(area, slot, ino, file_type, name, &layout)
                    .map_err(|b| self.bad_entry(OP, dir, 0, &b))?;
                self.inline_put(h, dir, &root, &more)?;
                return Ok(true);
            }
        }
        // Grow the attribute by one entry, if the inode has room.
        let needed = layout.min_rec_len(name.len());
        let grown = more.len() + needed;
        let room = ibody_room_for(&ext4(dir.inode).body.lock(), INDEX_SYSTEM, INLINE_DATA_NAME);
        if room.map_err(|bad| self.bad_inline(OP, dir, bad.0))? < grown {
            return Ok(false);
        }
        let at = more.len();
        more.resize(grown, 0);
        block::write_entry(&mut more, at, needed, ino, file_type, name, &layout);
        self.inline_put(h, dir, &root, &more)?;
        Ok(true)
    }

    /// Moves an inline directory's entries into a block.
    pub(super) fn inline_to_block(&self, h: &Handle<'_>, dir: &Dir<'_>) -> Result<()> {
        const OP: &str = "convert inline directory";
        let own = ext4(dir.inode);
        let areas = self.inline_areas(OP, dir)?;
        let parent = self.inline_parent(dir);
        let layout = dir.layout;
        // Entries keep the distance to each other that they had, so that a listing under way finds
        // its place again.
        let mut block = vec![0; layout.block_size];
        block::init_dots(&mut block, dir.ino, parent, &layout);
        let mut at = FIRST_OFFSET as usize;
        let mut last = 12;
        for (_, area) in &areas {
            for entry in block::entries(area, &layout) {
                let entry = entry.map_err(|b| self.bad_entry(OP, dir, 0, &b))?;
                block::write_entry(
                    &mut block,
                    at,
                    entry.rec_len,
                    entry.ino,
                    entry.file_type,
                    entry.name,
                    &layout,
                );
                last = at;
                at += entry.rec_len;
            }
        }
        if last != 12 {
            block::set_rec_len(&mut block, 12, 12, &layout);
        }
        let usable = layout.leaf_space();
        block::set_rec_len(&mut block, last, usable - last, &layout);
        block::seal_leaf(&mut block, &layout, dir.seed);

        // The inode becomes an empty block-mapped one first. Without a block for it, it gets its old contents back. No
        // reader sees that: the directory is locked.
        let (old_map, old_body) = {
            let mut map = own.map.write();
            let mut body = own.body.lock();
            let old = (map.clone(), body.clone());
            if let Err(bad) = ibody_set(&mut body, INDEX_SYSTEM, INLINE_DATA_NAME, None) {
                return Err(self.bad_inline(OP, dir, bad.0));
            }
            map.flags -= InodeFlags::INLINE_DATA;
            if self.volume.has_incompat(Incompat::EXTENT) {
                map.flags |= InodeFlags::EXTENTS;
                map.root = empty_extent_root();
            } else {
                map.root = [0; 60];
            }
            map.disk_size = 0;
            old
        };
        let done = self
            .maps
            .create_meta(h, dir.inode, FileBlock(0))
            .and_then(|physical| {
                h.create(physical, BlockKind::Directory, |data| {
                    data.copy_from_slice(&block)
                })
            });
        if let Err(e) = done {
            *own.map.write() = old_map;
            *own.body.lock() = old_body;
            self.inodes.store(h, dir.inode)?;
            return Err(e);
        }
        let size = layout.block_size as u64;
        own.map.write().disk_size = size;
        dir.inode.update_attr(|a| a.size = size);
        self.inodes.store(h, dir.inode)
    }

    /// Makes a new directory inline. `false` when its inode has no room for attributes.
    pub(super) fn inline_init(
        &self,
        h: &Handle<'_>,
        inode: &vfs::Inode,
        parent: Ino,
    ) -> Result<bool> {
        let own = ext4(inode);
        let mut map = own.map.write();
        match ibody_set(
            &mut own.body.lock(),
            INDEX_SYSTEM,
            INLINE_DATA_NAME,
            Some(&[]),
        ) {
            Ok(true) => {}
            _ => return Ok(false),
        }
        map.flags -= InodeFlags::EXTENTS;
        map.flags |= InodeFlags::INLINE_DATA;
        map.root = [0; 60];
        map.root[..4].copy_from_slice(&parent.0.to_le_bytes());
        let layout = DirFormat {
            checksums: false,
            filetype: true,
            ..DirFormat::new(self.volume.geometry())
        };
        block::init_empty(&mut map.root[ROOT_AREA], &layout);
        map.disk_size = 60;
        inode.update_attr(|a| a.size = 60);
        self.inodes.store_locked(h, inode, &map)?;
        Ok(true)
    }
}
