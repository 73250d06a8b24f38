//! Directory entries that may be damaged: read, changed, added.

use blockwright_ondisk::f2fs::dir::{DentryLayout, DentrySlots, DentryView, NameBytes, slots_of};
use blockwright_ondisk::f2fs::{
    BLOCK_SIZE, FileKind, FormatError, InlineFlags, Ino, dir_geometry, hash,
};

use super::CheckError;
use super::context::Checker;
use super::state::{DirBlock, DirInfo, EntryPlace, Scan};

/// An entry.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub slot: usize,
    pub hash: u32,
    pub ino: Ino,
    pub kind: Option<FileKind>,
    pub name: Vec<u8>,
}

impl Entry {
    /// Whether it is "." or "..".
    pub fn is_dot(&self) -> bool {
        matches!(self.name.as_slice(), b"." | b"..")
    }

    /// The name for people.
    pub fn shown(&self) -> String {
        String::from_utf8_lossy(&self.name).into_owned()
    }
}

/// Whether a slot is marked in use.
pub(super) fn is_used(bytes: &[u8], slot: usize) -> bool {
    bytes
        .get(slot / 8)
        .is_some_and(|b| b & (1 << (slot % 8)) != 0)
}

/// The entries that can be read, and what is wrong with the others' slots.
pub(super) fn read(
    bytes: &[u8],
    layout: DentryLayout,
    names: NameBytes,
    max_ino: u32,
) -> (Vec<Entry>, Vec<(usize, FormatError)>) {
    let mut copy = bytes.to_vec();
    let mut errors = Vec::new();
    for _ in 0..=layout.slots {
        let error = match DentryView::parse(&copy, layout, names, max_ino) {
            Ok(view) => {
                let entries = view.iter().map(|e| Entry {
                    slot: e.slot,
                    hash: e.hash,
                    ino: e.ino,
                    kind: e.kind,
                    name: e.name.to_vec(),
                });
                return (entries.collect(), errors);
            }
            Err(error) => error,
        };
        let slot = match error {
            FormatError::DirNameLength { slot, .. }
            | FormatError::DirNamePastEnd { slot, .. }
            | FormatError::DirNameByte { slot, .. }
            | FormatError::DirInode { slot, .. } => slot,
            _ => return (Vec::new(), vec![(0, error)]),
        };
        errors.push((slot, error));
        if let Ok(mut slots) = DentrySlots::new(&mut copy, layout) {
            slots.remove(slot, 1);
        }
    }
    (Vec::new(), errors)
}

/// The hash that a name must have; `None` where only the holder of a key knows, or one that knows the volume's encoding.
pub(super) fn hash_of(dir: &DirInfo, name: &[u8]) -> Option<u32> {
    match (dir.encrypted, dir.casefold) {
        (true, true) => None,
        (false, true) if !dir.folding_known => None,
        (false, true) => {
            let folded = hash::fold_name(name);
            Some(hash::casefold_hash(name, Some(&folded)))
        }
        _ => Some(hash::name_hash(name)),
    }
}

impl Checker {
    /// The entries of a place, and their shape.
    pub(super) fn read_entries(
        &self,
        dir: Ino,
        place: EntryPlace,
    ) -> Result<Option<(Vec<u8>, DentryLayout)>, CheckError> {
        match place {
            EntryPlace::Block(b) => {
                let bytes = self.store.read(b.block, "directory block")?;
                Ok(Some((bytes, DentryLayout::BLOCK)))
            }
            EntryPlace::Inline => {
                let Some((_, block)) = self.read_node(dir.nid())? else {
                    return Ok(None);
                };
                let Some((inode, _)) = super::mend::decode(&block, dir, &self.geo) else {
                    return Ok(None);
                };
                let layout = inode.layout(self.geo.features);
                let bytes = block[layout.inline_bytes()].to_vec();
                Ok(Some((bytes, layout.inline_dentries())))
            }
        }
    }

    /// Stores the entries of a place.
    pub(super) fn write_entries(
        &mut self,
        dir: Ino,
        place: EntryPlace,
        bytes: &[u8],
    ) -> Result<(), CheckError> {
        match place {
            EntryPlace::Block(b) => {
                self.write(b.block, bytes.to_vec());
                Ok(())
            }
            EntryPlace::Inline => {
                let geo = self.geo.clone();
                self.edit_node(dir.nid(), |block| {
                    let Some((inode, _)) = super::mend::decode(block, dir, &geo) else {
                        return;
                    };
                    let range = inode.layout(geo.features).inline_bytes();
                    if let Some(dest) = block.get_mut(range)
                        && dest.len() == bytes.len()
                    {
                        dest.copy_from_slice(bytes);
                    }
                })
            }
        }
    }

    /// Changes the slots of a place.
    pub(super) fn edit_entries<T>(
        &mut self,
        dir: Ino,
        place: EntryPlace,
        edit: impl FnOnce(&mut DentrySlots<'_>) -> Option<T>,
    ) -> Result<Option<T>, CheckError> {
        let Some((mut bytes, layout)) = self.read_entries(dir, place)? else {
            return Ok(None);
        };
        let Ok(mut slots) = DentrySlots::new(&mut bytes, layout) else {
            return Ok(None);
        };
        let done = edit(&mut slots);
        if done.is_some() {
            self.write_entries(dir, place, &bytes)?;
        }
        Ok(done)
    }

    /// Adds a name where a lookup finds it: in a free row of slots, in a new block, or on a new level. Whether there
    /// was room.
    pub(super) fn add_name(
        &mut self,
        dir: Ino,
        name: &[u8],
        ino: Ino,
        kind: FileKind,
    ) -> Result<bool, CheckError> {
        let Some(mut info) = self.scan.dirs.iter().find(|d| d.ino == dir).copied() else {
            return Ok(false);
        };
        let Some(hash) = hash_of(&info, name) else {
            return Ok(false);
        };
        let need = slots_of(name.len());
        let insert = |slots: &mut DentrySlots<'_>| {
            let room = slots.find_room(need)?;
            slots.insert(room, name, hash, ino, kind)
        };
        if info.inline {
            let done = self.edit_entries(dir, EntryPlace::Inline, insert)?;
            if done.is_some() {
                return Ok(true);
            }
            match self.leave_inline(&info)? {
                Some(moved) => info = moved,
                None => return Ok(false),
            }
        }
        for level in 0..dir_geometry::LEVELS_MAX {
            let (first, count) = dir_geometry::bucket(level, info.dir_level, hash);
            for at in first..first + count {
                let block = match self.dir_block(dir, at) {
                    Some(block) => block,
                    None => match self.add_dir_block(&info, at)? {
                        Some(block) => block,
                        None => return Ok(false),
                    },
                };
                let place = EntryPlace::Block(block);
                if self.edit_entries(dir, place, insert)?.is_none() {
                    continue;
                }
                if level >= info.depth {
                    self.set_depth(dir, level + 1)?;
                }
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Moves the entries of a directory from its inode to a block, where there is room for more. `None` when there is no free block, or the entries
    /// do not belong into one block.
    fn leave_inline(&mut self, dir: &DirInfo) -> Result<Option<DirInfo>, CheckError> {
        let ino = dir.ino;
        let Some((bytes, layout)) = self.read_entries(ino, EntryPlace::Inline)? else {
            return Ok(None);
        };
        let (entries, errors) = read(&bytes, layout, NameBytes::Any, self.geo.nids());
        let Some((place, before)) = self.read_node(ino.nid())? else {
            return Ok(None);
        };
        // Names may be anywhere in the first bucket when it is the only one.
        if !errors.is_empty() || dir.dir_level != 0 {
            return Ok(None);
        }
        self.edit_inode(ino, |head| {
            head.inline &= !InlineFlags::DENTRY.bits();
            head.current_depth.set(1);
        })?;
        let geo = self.geo.clone();
        self.edit_node(ino.nid(), |block| {
            if let Some((inode, _)) = super::mend::decode(block, ino, &geo) {
                block[inode.layout(geo.features).address_bytes()].fill(0);
            }
        })?;
        let Some(block) = self.add_dir_block(dir, 0)? else {
            self.write(place, before);
            return Ok(None);
        };
        let done = self.edit_entries(ino, EntryPlace::Block(block), |slots| {
            for e in &entries {
                let kind = e.kind.unwrap_or(FileKind::Regular);
                slots.insert(e.slot, &e.name, e.hash, e.ino, kind)?;
            }
            Some(())
        })?;
        if done.is_none() {
            self.scan.dir_blocks.pop();
            self.scan.dir_index = None;
            self.write(place, before);
            return Ok(None);
        }
        let moved = DirInfo {
            inline: false,
            depth: 1,
            blocks: self.scan.dir_blocks.len() - 1,
            size: BLOCK_SIZE as u64,
            ..*dir
        };
        for known in self.scan.dirs.iter_mut().filter(|d| d.ino == ino) {
            *known = moved;
        }
        for d in self.scan.dotdots.iter_mut().filter(|d| d.dir == ino) {
            d.place = EntryPlace::Block(block);
        }
        Ok(Some(moved))
    }

    /// Gives a directory an empty block at a hole. `None` when there is no room, or no directory has such a block.
    fn add_dir_block(&mut self, dir: &DirInfo, at: u64) -> Result<Option<DirBlock>, CheckError> {
        let Some(block) = self.add_block(dir.ino, at, vec![0; BLOCK_SIZE])? else {
            return Ok(None);
        };
        let size = (at + 1) * BLOCK_SIZE as u64;
        self.edit_inode(dir.ino, |head| {
            let old = head.size.get();
            head.size.set(old.max(size));
        })?;
        self.scan.dir_blocks.push(block);
        if let Some(index) = &mut self.scan.dir_index {
            index.insert((dir.ino, at), block);
        }
        Ok(Some(block))
    }

    /// A directory's block; `None` at a hole.
    fn dir_block(&mut self, dir: Ino, at: u64) -> Option<DirBlock> {
        let Scan {
            dir_blocks,
            dir_index,
            lost,
            ..
        } = &mut self.scan;
        let index = dir_index.get_or_insert_with(|| {
            let kept = |b: &&DirBlock| !lost.contains(&(b.owner.0.0, b.owner.1));
            let blocks = dir_blocks.iter().filter(kept);
            blocks.map(|b| ((b.dir, b.at), *b)).collect()
        });
        index.get(&(dir, at)).copied()
    }
}
