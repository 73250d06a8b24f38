//! Changing directories: adding, removing and redirecting names.
//!
//! Entries live in the inode until they do not fit; then they move to the first block, each keeping its slot, or all stay when there
//! is no room for it.
//! A name goes into the first level of hash tables whose bucket has room; when none has, there is one
//! level more.
//!
//! # Locks
//! An operation is under way; the directory's `body`, exclusively.

use crate::dir::Directories;
use crate::dir::disk_kind;
use crate::node::inode::{Body, F2fsInode, f2fs};
use crate::node::sought::Entry;
use crate::writer::Writer;
use crate::{Error, ErrorKind, Result};
use blockwright_device::AlignedBuf;
use blockwright_ondisk::common::casefold;
use blockwright_ondisk::f2fs::dir::{DentryLayout, DentrySlots, DentryView, NameBytes, slots_of};
use blockwright_ondisk::f2fs::inode::{InlineFlags, InodeFlags};
use blockwright_ondisk::f2fs::node::NodeOffset;
use blockwright_ondisk::f2fs::{BLOCK_SIZE, FileKind, Ino, dir_geometry};
use blockwright_vfs as vfs;
use std::collections::BTreeMap;

const OP: &str = "change directory";

impl Directories {
    /// Where a name's entry is.
    pub(crate) fn find_entry(
        &self,
        dir: &vfs::Inode,
        body: &Body,
        name: &[u8],
    ) -> Result<Option<Entry>> {
        let last = &f2fs(dir).last_sought;
        if let Some(found) = last.get(name) {
            return Ok(found);
        }
        let mut found = None;
        self.find_in(dir, body, name, &mut |block, e| {
            found = Some(Entry {
                ino: e.ino,
                kind: e.kind,
                block,
                slot: e.slot,
                slots: slots_of(e.name.len()),
            });
        })?;
        last.set(name, found);
        Ok(found)
    }

    /// Changes the slots where an entry is, or could be.
    fn change_slots<R>(
        &self,
        own: &F2fsInode,
        body: &Body,
        block: Option<u64>,
        mut change: impl FnMut(&mut DentrySlots<'_>) -> R,
    ) -> Result<R> {
        own.last_sought.forget();
        let result = match block {
            None => {
                let range = body.layout.inline_bytes();
                let layout = body.layout.inline_dentries();
                self.nodes
                    .change_node(own.ino.nid(), own.ino, NodeOffset::INODE, |b| {
                        DentrySlots::new(&mut b[range.clone()], layout).map(|mut s| change(&mut s))
                    })?
            }
            Some(at) => loop {
                let changed = self.nodes.blocks.change((own.ino, at), |b| {
                    DentrySlots::new(b, DentryLayout::BLOCK).map(|mut s| change(&mut s))
                });
                if let Some(changed) = changed {
                    break changed;
                }
                if self.dir_block(own.ino, body, at)?.is_none() {
                    return Err(self
                        .volume
                        .corrupt(OP, Some(own.ino), None, "a block is gone"));
                }
            },
        };
        result.map_err(|e| self.volume.refused(OP, own.ino, &e))
    }

    /// The blocks that the entries of an inode go to.
    fn blocks_of_entries(
        &self,
        own: &F2fsInode,
        body: &Body,
        entries: &[u8],
    ) -> Result<BTreeMap<u64, AlignedBuf>> {
        let refused = |e| self.volume.refused(OP, own.ino, &e);
        let nids = self.volume.geo.nids();
        let layout = body.layout.inline_dentries();
        let view = DentryView::parse(entries, layout, NameBytes::Plain, nids).map_err(refused)?;
        let level = body.inode.dir_level;
        let mut blocks = BTreeMap::new();
        for e in view.iter() {
            // Level 0 is two blocks of one bucket: all names may be there, wherever their hashes point. A directory that begins at
            // a higher level has them put where they belong. A block has more slots than an inode.
            let at = match level {
                0 => 0,
                _ => dir_geometry::bucket(0, level, e.hash).0,
            };
            let bytes = blocks
                .entry(at)
                .or_insert_with(|| AlignedBuf::zeroed(BLOCK_SIZE));
            let mut slots = DentrySlots::new(bytes, DentryLayout::BLOCK).map_err(refused)?;
            let slot = match level {
                0 => Some(e.slot),
                _ => slots.find_room(slots_of(e.name.len())),
            };
            let kind = e.kind.unwrap_or(FileKind::Regular);
            slot.and_then(|slot| slots.insert(slot, e.name, e.hash, e.ino, kind))
                .ok_or_else(|| {
                    self.volume
                        .corrupt(OP, Some(own.ino), None, "entries do not fit a block")
                })?;
        }
        Ok(blocks)
    }

    /// Moves entries out of the inode: all of them, or none when it fails. The caller stores the directory in either case.
    fn entries_to_blocks(&self, w: &Writer, dir: &vfs::Inode, body: &mut Body) -> Result<()> {
        let own = f2fs(dir);
        own.last_sought.forget();
        let node = self.nodes.inode_node(own.ino)?;
        let entries = &node[body.layout.inline_bytes()];
        let blocks = self.blocks_of_entries(own, body, entries)?;
        let end = blocks.last_key_value().map_or(1, |(at, _)| at + 1);
        let places: Vec<u64> = blocks.keys().copied().collect();
        let (inline, layout) = (body.inode.inline, body.layout);
        body.inode.inline -= InlineFlags::DENTRY | InlineFlags::DOTS;
        body.layout = body.inode.layout(self.volume.features());
        let words = body.layout.address_bytes();
        let old = node[words.clone()].to_vec();
        // A change copies the bytes while another reference to them is held.
        drop(node);
        let set_words = |bytes: &[u8]| {
            self.nodes
                .change_node(own.ino.nid(), own.ino, NodeOffset::INODE, |b| {
                    b[words.clone()].copy_from_slice(bytes);
                })
        };
        if let Err(e) = set_words(&vec![0; old.len()]) {
            (body.inode.inline, body.layout) = (inline, layout);
            return Err(e);
        }
        let made = blocks
            .into_iter()
            .try_for_each(|(at, bytes)| self.tree.make_meta_block(w, own, body, at, bytes));
        if let Err(e) = made {
            // The entries are nowhere else.
            let freed = self.tree.free_from(w, own, body, 0);
            for at in places {
                self.nodes.blocks.remove((own.ino, at));
            }
            (body.inode.inline, body.layout) = (inline, layout);
            set_words(&old)?;
            freed?;
            return Err(e);
        }
        body.inode.current_depth = 1;
        dir.update_attr(|a| a.size = end << 12);
        Ok(())
    }

    #[allow(clippy::too_many_arguments)]
    fn insert_hashed(
        &self,
        w: &Writer,
        dir: &vfs::Inode,
        body: &mut Body,
        name: &[u8],
        hash: u32,
        ino: Ino,
        kind: FileKind,
    ) -> Result<()> {
        let own = f2fs(dir);
        let need = slots_of(name.len());
        for level in 0..dir_geometry::LEVELS_MAX {
            let (first, count) = dir_geometry::bucket(level, body.inode.dir_level, hash);
            for at in first..first + count {
                if self.dir_block(own.ino, body, at)?.is_none() {
                    let bytes = AlignedBuf::zeroed(BLOCK_SIZE);
                    self.tree.make_meta_block(w, own, body, at, bytes)?;
                    dir.update_attr(|a| a.size = a.size.max((at + 1) << 12));
                }
                // Looked at before it is changed: a block that is changed is written again by the next checkpoint, and
                // most blocks on the way are full.
                let Some(block) = self.dir_block(own.ino, body, at)? else {
                    return Err(self
                        .volume
                        .corrupt(OP, Some(own.ino), None, "a block is gone"));
                };
                let room = DentryView::verified(&block, DentryLayout::BLOCK)
                    .map_err(|e| self.volume.refused(OP, own.ino, &e))?
                    .find_room(need);
                // A change copies the bytes while another reference to them is held.
                drop(block);
                let Some(room) = room else { continue };
                let done = self.change_slots(own, body, Some(at), |s| {
                    s.insert(room, name, hash, ino, kind)
                })?;
                if done.is_some() {
                    body.inode.current_depth = body.inode.current_depth.max(level + 1);
                    return Ok(());
                }
            }
        }
        Err(Error::new(ErrorKind::NoSpace, OP)
            .ino(dir.ino())
            .detail("the directory can have no more names"))
    }

    /// Adds a name that is not there. The caller stores the directory.
    pub(crate) fn insert_entry(
        &self,
        w: &Writer,
        dir: &vfs::Inode,
        body: &mut Body,
        name: &[u8],
        ino: Ino,
        kind: vfs::FileKind,
    ) -> Result<()> {
        let own = f2fs(dir);
        if body.inode.flags.contains(InodeFlags::CASEFOLD) {
            self.check_encoded(OP, body, name)?;
            match std::str::from_utf8(name) {
                Ok(text) if casefold::is_newer(text) => {
                    return Err(Error::new(ErrorKind::Unsupported, OP).detail(
                        "the name has characters that are newer than the volume's Unicode 12.1",
                    ));
                }
                _ => {}
            }
        }
        let hash = self.name_hash(body, name)?;
        let kind = disk_kind(kind);
        if body.inode.inline.contains(InlineFlags::DENTRY) {
            let need = slots_of(name.len());
            let done = self.change_slots(own, body, None, |s| {
                let slot = s.find_room(need)?;
                s.insert(slot, name, hash, ino, kind)
            })?;
            if done.is_some() {
                return Ok(());
            }
            let moved = self.entries_to_blocks(w, dir, body);
            self.tree.store_inode(dir, body)?;
            moved?;
        }
        let result = self.insert_hashed(w, dir, body, name, hash, ino, kind);
        // Blocks and nodes may have been made even if it failed.
        self.tree.store_inode(dir, body)?;
        result
    }

    /// Removes an entry that was found. The caller stores the directory.
    pub(crate) fn remove_entry(
        &self,
        w: &Writer,
        dir: &vfs::Inode,
        body: &mut Body,
        entry: &Entry,
    ) -> Result<()> {
        let own = f2fs(dir);
        let empty = self.change_slots(own, body, entry.block, |s| {
            s.remove(entry.slot, entry.slots);
            s.is_empty()
        })?;
        if let Some(at) = entry.block
            && empty
        {
            // A block without names is a hole.
            self.tree.free_range(w, own, body, at..at + 1)?;
            self.nodes.blocks.remove((own.ino, at));
        }
        Ok(())
    }

    /// Makes an entry name another inode.
    pub(crate) fn retarget_entry(
        &self,
        dir: &vfs::Inode,
        body: &Body,
        entry: &Entry,
        ino: Ino,
        kind: vfs::FileKind,
    ) -> Result<()> {
        let done = self.change_slots(f2fs(dir), body, entry.block, |s| {
            s.set_target(entry.slot, ino, disk_kind(kind))
        })?;
        done.ok_or_else(|| {
            self.volume
                .corrupt(OP, Some(f2fs(dir).ino), None, "an entry vanished")
        })
    }

    /// Puts the two dots into a new directory, which is inline. The caller stores it.
    pub(crate) fn init_dir(&self, dir: &vfs::Inode, body: &mut Body, parent: Ino) -> Result<()> {
        let own = f2fs(dir);
        let done = self.change_slots(own, body, None, |s| {
            s.insert(0, b".", 0, own.ino, FileKind::Directory)?;
            s.insert(1, b"..", 0, parent, FileKind::Directory)
        })?;
        dir.update_attr(|a| a.size = body.layout.inline_bytes().len() as u64);
        done.ok_or_else(|| {
            self.volume
                .corrupt(OP, Some(own.ino), None, "no room for two entries")
        })
    }

    /// Whether a directory has no names but its own.
    pub(crate) fn dir_is_empty(&self, dir: &vfs::Inode, body: &Body) -> Result<bool> {
        let mut empty = true;
        self.list_in(dir, body, 0, &mut |e| {
            if e.name == b"." || e.name == b".." {
                return std::ops::ControlFlow::Continue(());
            }
            empty = false;
            std::ops::ControlFlow::Break(())
        })?;
        Ok(empty)
    }
}
