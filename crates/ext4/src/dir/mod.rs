//! [`Directories`]: the contents of directories: finding, adding, removing and listing names.
//!
//! It owns nothing but its references. It calls `Maps`, `Inodes` and the attribute area of an inode. It never starts a transaction and
//! never changes the inode that a name names (`names`).
//!
//! Four forms: inline (in the inode), one block, many blocks in no order, and blocks under a hash
//! index. A directory starts inline (with `inline_data`) or as one block; with `dir_index` a full
//! single block becomes an index. Blocks that become empty stay.
//!
//! A damaged index does not make names unreachable: lookups then walk all blocks. Changes are refused,
//! since an entry put in a wrong place is lost to every other reader.
//!
//! # Locks
//! The vfs holds the directory's inode lock: shared for looking, exclusive for changes. So blocks do
//! not change under a reader; map and buffer locks are held for moments only.
//!
//! # Crash order
//! One handle changes all blocks a name needs. New blocks are allocated before anything is changed, so
//! that a full volume leaves the directory as it was.

mod block;
mod casefold;
mod htree;
mod index;
mod inline;
mod list;
pub(crate) mod names;
mod query;
pub(crate) mod sought;

use crate::inode::{Inodes, ext4};
use crate::journal::Handle;
use crate::journal::buffer::{BlockKind, BufferRef};
use crate::map::{BlockState, META_BLOCK_CREDITS, Maps};
use crate::vfs_ino;
use crate::volume::Volume;
use crate::{Error, ErrorKind, Result};
use block::{BadEntry, DirFormat, Entry};
use blockwright_ondisk::ext4::features::{Compat, Incompat};
use blockwright_ondisk::ext4::hash::{HashAlgorithm, HashVersion, NameHash, name_hash};
use blockwright_ondisk::ext4::{BlockNo, FileBlock, FileKind, Ino, InodeFlags, InodeSeed};
use blockwright_vfs as vfs;
use query::Query;
use std::borrow::Cow;

/// What every step on a directory needs to know of it, gathered once per operation.
#[derive(Clone, Copy)]
pub(crate) struct Dir<'a> {
    pub inode: &'a vfs::Inode,
    pub ino: Ino,
    pub layout: DirFormat,
    pub seed: InodeSeed,
    pub flags: InodeFlags,
    pub blocks: u32,
}

impl Dir<'_> {
    pub(crate) fn is_inline(&self) -> bool {
        self.flags.contains(InodeFlags::INLINE_DATA)
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.flags.contains(InodeFlags::ENCRYPT)
    }

    pub(crate) fn is_casefolded(&self) -> bool {
        self.flags.contains(InodeFlags::CASEFOLD)
    }
}

/// Where an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In this block of the directory.
    Block(u32),
    /// In `i_block`.
    InlineRoot,
    /// In the `system.data` attribute.
    InlineMore,
}

/// An entry that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub place: Place,
    pub offset: usize,
    pub ino: Ino,
    pub file_type: u8,
}

blockwright_vfs::part! {
    /// See the module's head.
    pub struct Directories {
        volume: Volume,
        inodes: Inodes,
        maps: Maps,
    }
}

impl Directories {
    /// Gathers what operations on a directory need.
    pub(crate) fn open<'a>(&self, inode: &'a vfs::Inode) -> Result<Dir<'a>> {
        let own = ext4(inode);
        let geo = self.volume.geometry();
        if inode.kind() != vfs::FileKind::Directory {
            return Err(Error::new(ErrorKind::NotDirectory, "directory").ino(inode.ino()));
        }
        let map = own.map.read();
        let flags = map.flags;
        Ok(Dir {
            inode,
            ino: own.ino,
            layout: DirFormat::of(geo, flags),
            seed: own.seed,
            flags,
            blocks: u32::try_from(map.disk_size >> geo.block_bits).unwrap_or(u32::MAX),
        })
    }

    /// Whether the volume may have indexed directories.
    pub(crate) fn has_dir_index(&self) -> bool {
        self.volume
            .geometry()
            .features
            .has_compat(Compat::DIR_INDEX)
    }

    /// Whether the hashes of a directory's names can be computed. Otherwise it is searched and listed block by block.
    pub(crate) fn is_hashed(&self, dir: &Dir<'_>) -> bool {
        let folds = dir.is_casefolded() && !dir.is_encrypted();
        self.has_dir_index() && (!folds || self.knows_encoding())
    }

    /// Whether a directory's index is to be used.
    pub(crate) fn is_indexed(&self, dir: &Dir<'_>) -> bool {
        self.is_hashed(dir) && dir.flags.contains(InodeFlags::INDEX) && !dir.is_inline()
    }

    pub(crate) fn bad_entry(
        &self,
        op: &'static str,
        dir: &Dir<'_>,
        place: u32,
        bad: &BadEntry,
    ) -> Error {
        self.volume.corrupt(
            op,
            Some(dir.ino),
            None,
            format!("block {place} of the directory: {bad}"),
        )
    }

    /// The physical block of a directory's block; `None` for a hole.
    fn physical(&self, op: &'static str, dir: &Dir<'_>, lblk: u32) -> Result<Option<BlockNo>> {
        let (state, _) = self.maps.lookup(dir.inode, FileBlock(u64::from(lblk)), 1)?;
        match state {
            BlockState::Mapped(block) => Ok(Some(block)),
            BlockState::Hole | BlockState::Delayed => Ok(None),
            BlockState::Unwritten(block) => Err(self.volume.corrupt(
                op,
                Some(dir.ino),
                Some(block),
                format!("block {lblk} of the directory was never written"),
            )),
        }
    }

    /// Reads the first block of a directory at or after `lblk` that is not in a hole. Holes are stepped over
    /// whole: a damaged size may say that there are billions of blocks.
    pub(crate) fn next_block(
        &self,
        op: &'static str,
        dir: &Dir<'_>,
        mut lblk: u32,
    ) -> Result<Option<(u32, BufferRef)>> {
        while lblk < dir.blocks {
            if let Some(buffer) = self.block(op, dir, lblk)? {
                return Ok(Some((lblk, buffer)));
            }
            let left = u64::from(dir.blocks - lblk);
            let (_, len) = self
                .maps
                .lookup(dir.inode, FileBlock(u64::from(lblk)), left)?;
            lblk += len.clamp(1, left) as u32;
        }
        Ok(None)
    }

    /// Reads a block of a directory, checksum verified. `None` for a hole.
    pub(crate) fn block(
        &self,
        op: &'static str,
        dir: &Dir<'_>,
        lblk: u32,
    ) -> Result<Option<BufferRef>> {
        let Some(block) = self.physical(op, dir, lblk)? else {
            return Ok(None);
        };
        let (layout, seed) = (dir.layout, dir.seed);
        let indexed = dir.flags.contains(InodeFlags::INDEX);
        let buffer = self.volume.cache.read(block, BlockKind::Directory, |data| {
            let good = if indexed && lblk == 0 {
                index::checksum_ok(data, index::DxPlace::Root, &layout, seed)
            } else {
                block::leaf_checksum_ok(data, &layout, seed)
                    || (indexed
                        && index::looks_like_node(data)
                        && index::checksum_ok(data, index::DxPlace::Node, &layout, seed))
            };
            if good {
                Ok(())
            } else {
                Err(Error::corrupt(
                    op,
                    format!("the checksum of directory block {lblk} is wrong"),
                )
                .ino(vfs_ino(dir.ino))
                .block(block.0))
            }
        });
        match buffer {
            Err(e) if e.kind() == ErrorKind::Corrupt => {
                Err(self
                    .volume
                    .corrupt(op, Some(dir.ino), Some(block), e.to_string()))
            }
            other => other.map(Some),
        }
    }

    /// The area of a block that holds entries, for walking all blocks whatever their role. In an index,
    /// the root has `.` and `..` only, and nodes have none.
    fn walk_area<'d>(&self, dir: &Dir<'_>, lblk: u32, data: &'d [u8]) -> &'d [u8] {
        if dir.flags.contains(InodeFlags::INDEX) {
            if lblk == 0 {
                // `..` claims the rest of the root, index included; its name ends at 24.
                return &[];
            }
            if index::looks_like_node(data) && dir.layout.checksums {
                return &[];
            }
        }
        &data[..dir.layout.leaf_space()]
    }

    /// The hash of an entry of this directory, as its index has it.
    pub(crate) fn entry_hash(
        &self,
        dir: &Dir<'_>,
        version: HashVersion,
        entry: &Entry<'_>,
    ) -> Result<NameHash> {
        if version.algorithm == HashAlgorithm::SipHash || dir.layout.stored_hash {
            let (hash, minor) = entry.stored_hash().unwrap_or_default();
            return Ok(NameHash {
                hash: hash & !1,
                minor,
            });
        }
        self.hash_for(dir, version, entry.name)
    }

    /// The hash a name has in this directory.
    pub(crate) fn hash_for(
        &self,
        dir: &Dir<'_>,
        version: HashVersion,
        name: &[u8],
    ) -> Result<NameHash> {
        let seed = self.volume.superblock().raw.hash_seed();
        let folded = if dir.is_casefolded() && !dir.is_encrypted() {
            self.fold_name(name)?
        } else {
            Cow::Borrowed(name)
        };
        name_hash(version, seed, None, &folded).map_err(|e| {
            Error::new(ErrorKind::KeyRequired, "hash a name")
                .ino(vfs_ino(dir.ino))
                .detail(e.to_string())
        })
    }

    /// Finds a name.
    ///
    /// # Errors
    /// Damage on the way, or a device error.
    pub(crate) fn find(&self, inode: &vfs::Inode, name: &[u8]) -> Result<Option<Found>> {
        const OP: &str = "lookup";
        let dir = self.open(inode)?;
        if name == b"." || name == b".." {
            return self.find_dot(OP, &dir, name);
        }
        let last = &ext4(inode).last_sought;
        if let Some(found) = last.get(name) {
            return Ok(found);
        }
        let found = self.search(OP, &dir, name)?;
        last.set(name, found);
        Ok(found)
    }

    fn search(&self, op: &'static str, dir: &Dir<'_>, name: &[u8]) -> Result<Option<Found>> {
        if name.len() > 255 {
            return Err(Error::new(ErrorKind::NameTooLong, op).ino(dir.inode.ino()));
        }
        let query = self.query(op, dir, name)?;
        if dir.is_encrypted() && query.nokey.is_none() {
            return Ok(None);
        }
        if dir.is_inline() {
            return self.inline_find(op, dir, &query);
        }
        if self.is_indexed(dir) {
            match self.htree_find(op, dir, &query) {
                Err(e) if e.kind() == ErrorKind::Corrupt => {}
                other => return other,
            }
        }
        let mut next = 0;
        while let Some((lblk, buffer)) = self.next_block(op, dir, next)? {
            next = lblk + 1;
            let data = buffer.data();
            let area = self.walk_area(dir, lblk, &data);
            if let Some(found) = self.find_in(op, dir, lblk, area, &query)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Finds a name in one block.
    fn find_in(
        &self,
        op: &'static str,
        dir: &Dir<'_>,
        lblk: u32,
        area: &[u8],
        query: &Query<'_>,
    ) -> Result<Option<Found>> {
        let bad = |b: BadEntry| self.bad_entry(op, dir, lblk, &b);
        let found = match query.exact() {
            Some(name) => block::find_name(area, name, &dir.layout).map_err(bad)?,
            None => {
                let mut found = None;
                for entry in block::entries(area, &dir.layout) {
                    let entry = entry.map_err(bad)?;
                    if query.matches(self, &entry) {
                        found = Some(entry);
                        break;
                    }
                }
                found
            }
        };
        let Some(entry) = found else {
            return Ok(None);
        };
        self.check_target(op, dir, &entry)?;
        Ok(Some(Found {
            place: Place::Block(lblk),
            offset: entry.offset,
            ino: entry.ino,
            file_type: entry.file_type,
        }))
    }

    /// Checks that an entry names an inode that can exist.
    fn check_target(&self, op: &'static str, dir: &Dir<'_>, entry: &Entry<'_>) -> Result<()> {
        let geo = self.volume.geometry();
        let ino = entry.ino;
        if ino.0 > geo.inodes_count || (ino.0 < geo.first_ino.0 && ino != Ino::ROOT) {
            return Err(self.volume.corrupt(
                op,
                Some(dir.ino),
                None,
                format!(
                    "the entry `{}` names inode {ino}, which no entry may name",
                    entry.name.escape_ascii()
                ),
            ));
        }
        Ok(())
    }

    fn find_dot(&self, op: &'static str, dir: &Dir<'_>, name: &[u8]) -> Result<Option<Found>> {
        if dir.is_inline() {
            let ino = if name == b"." {
                dir.ino
            } else {
                self.inline_parent(dir)
            };
            return Ok(Some(Found {
                place: Place::InlineRoot,
                offset: 0,
                ino,
                file_type: FileKind::Directory.dirent_code(),
            }));
        }
        let damaged = |what: &str| {
            self.volume
                .corrupt(op, Some(dir.ino), None, what.to_owned())
        };
        let buffer = self
            .block(op, dir, 0)?
            .ok_or_else(|| damaged("the directory's first block is a hole"))?;
        let data = buffer.data();
        let mut offset = 0;
        // They are the first two; in an index `..` hides the index behind it.
        for _ in 0..2 {
            let entry = block::entry_at(&data, offset, &dir.layout)
                .map_err(|b| self.bad_entry(op, dir, 0, &b))?;
            if entry.name == name && entry.is_used() {
                self.check_target(op, dir, &entry)?;
                return Ok(Some(Found {
                    place: Place::Block(0),
                    offset,
                    ino: entry.ino,
                    file_type: entry.file_type,
                }));
            }
            offset += entry.rec_len;
        }
        Err(damaged("the directory does not start with `.` and `..`"))
    }

    /// The parent, as `..` says.
    pub(crate) fn parent(&self, inode: &vfs::Inode) -> Result<Ino> {
        match self.find(inode, b"..")? {
            Some(found) => Ok(found.ino),
            None => Err(self.volume.corrupt(
                "parent",
                Some(ext4(inode).ino),
                None,
                "the directory has no `..`",
            )),
        }
    }

    /// Whether a directory has no names but `.` and `..`.
    pub(crate) fn is_empty(&self, inode: &vfs::Inode) -> Result<bool> {
        const OP: &str = "is directory empty";
        let dir = self.open(inode)?;
        if dir.is_inline() {
            return self.inline_is_empty(OP, &dir);
        }
        let mut next = 0;
        while let Some((lblk, buffer)) = self.next_block(OP, &dir, next)? {
            next = lblk + 1;
            let data = buffer.data();
            for entry in block::entries(self.walk_area(&dir, lblk, &data), &dir.layout) {
                let entry = entry.map_err(|b| self.bad_entry(OP, &dir, lblk, &b))?;
                if entry.is_used() && entry.name != b"." && entry.name != b".." {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Blocks a handle must reserve for one [`Self::insert`].
    pub(crate) fn insert_credits(&self) -> u32 {
        // The leaf and its new half; up to three index levels, each of which may split; the root;
        // and for each of up to four new blocks a bitmap, a descriptor, and extent tree blocks.
        8 + 4 * META_BLOCK_CREDITS
    }

    /// Adds a name that the caller knows is not there.
    ///
    /// # Errors
    /// `NoSpace` (the directory is as it was), damage, or a device error.
    pub(crate) fn insert(
        &self,
        h: &Handle<'_>,
        inode: &vfs::Inode,
        name: &[u8],
        ino: Ino,
        kind: FileKind,
    ) -> Result<()> {
        const OP: &str = "add name";
        ext4(inode).last_sought.forget();
        let mut dir = self.open(inode)?;
        self.check_new_name(OP, &dir, name)?;
        let file_type = kind.dirent_code();
        if dir.is_inline() {
            if self.inline_insert(h, &dir, name, ino, file_type)? {
                return Ok(());
            }
            self.inline_to_block(h, &dir)?;
            dir = self.open(inode)?;
        }
        if self.is_indexed(&dir) {
            return self.htree_insert(h, &dir, name, ino, file_type);
        }
        if dir.flags.contains(InodeFlags::INDEX) {
            // Without `dir_index` the index is not kept up to date: it is given up for good.
            ext4(inode).map.write().flags -= InodeFlags::INDEX;
            dir.flags -= InodeFlags::INDEX;
        }
        let mut next = 0;
        while let Some((lblk, buffer)) = self.next_block(OP, &dir, next)? {
            next = lblk + 1;
            if self.leaf_insert(OP, h, &dir, lblk, &buffer, name, ino, file_type)? {
                return Ok(());
            }
        }
        if self.has_dir_index() && dir.blocks == 1 {
            self.make_index(h, &dir)?;
            let dir = self.open(inode)?;
            return self.htree_insert(h, &dir, name, ino, file_type);
        }
        let layout = dir.layout;
        self.append(h, &dir, |block| {
            block::pack_leaf(block, std::iter::once((ino, file_type, name)), &layout);
            block::seal_leaf(block, &layout, dir.seed);
        })?;
        Ok(())
    }

    fn check_new_name(&self, op: &'static str, dir: &Dir<'_>, name: &[u8]) -> Result<()> {
        let fail =
            |kind, detail: &str| Err(Error::new(kind, op).ino(vfs_ino(dir.ino)).detail(detail));
        if dir.is_encrypted() {
            return fail(
                ErrorKind::KeyRequired,
                "names cannot be added to an encrypted directory without its key",
            );
        }
        if dir.is_casefolded() {
            self.check_casefold_writable(op)?;
            self.check_strict_name(op, name)?;
        }
        if name.is_empty() || name.contains(&b'/') || name.contains(&0) {
            return fail(
                ErrorKind::Invalid,
                "the name is empty, or contains `/` or a zero byte",
            );
        }
        if name.len() > 255 {
            return fail(ErrorKind::NameTooLong, "the name is longer than 255 bytes");
        }
        Ok(())
    }

    /// Adds an entry to a leaf, if it has room.
    #[allow(clippy::too_many_arguments)]
    fn leaf_insert(
        &self,
        op: &'static str,
        h: &Handle<'_>,
        dir: &Dir<'_>,
        lblk: u32,
        buffer: &BufferRef,
        name: &[u8],
        ino: Ino,
        file_type: u8,
    ) -> Result<bool> {
        let layout = dir.layout;
        let usable = layout.leaf_space();
        let slot = block::find_slot(&buffer.data()[..usable], name.len(), &layout)
            .map_err(|b| self.bad_entry(op, dir, lblk, &b))?;
        let Some(slot) = slot else {
            return Ok(false);
        };
        h.modify(buffer, |data| {
            let done = block::insert_at(&mut data[..usable], slot, ino, file_type, name, &layout);
            block::seal_leaf(data, &layout, dir.seed);
            done
        })?
        .map_err(|b| self.bad_entry(op, dir, lblk, &b))?;
        Ok(true)
    }

    /// Adds a block to the end of a directory. Returns its number in the directory.
    fn append(&self, h: &Handle<'_>, dir: &Dir<'_>, init: impl FnOnce(&mut [u8])) -> Result<u32> {
        let geo = self.volume.geometry();
        let own = ext4(dir.inode);
        // The index has 28 bits for a block number; old readers take sizes past 2 GiB for negative.
        let lblk = own.map.read().disk_size >> geo.block_bits;
        let bytes_max = if self.volume.has_incompat(Incompat::LARGE_DIR) {
            u64::from(geo.block_size) << 28
        } else {
            1 << 31
        };
        let size = (lblk + 1) << geo.block_bits;
        if size > bytes_max {
            return Err(Error::new(ErrorKind::NoSpace, "grow directory")
                .ino(dir.inode.ino())
                .detail("the directory has reached the format's limit"));
        }
        let block = self.maps.create_meta(h, dir.inode, FileBlock(lblk))?;
        h.create(block, BlockKind::Directory, init)?;
        own.map.write().disk_size = size;
        dir.inode.update_attr(|a| a.size = size);
        Ok(lblk as u32)
    }

    /// Removes an entry that was found, under the same lock.
    ///
    /// # Errors
    /// Damage, or a device error.
    pub(crate) fn remove(&self, h: &Handle<'_>, inode: &vfs::Inode, found: &Found) -> Result<()> {
        const OP: &str = "remove name";
        ext4(inode).last_sought.forget();
        let dir = self.open(inode)?;
        let layout = dir.layout;
        match found.place {
            Place::Block(lblk) => {
                let buffer = self.block_there(OP, &dir, lblk)?;
                h.modify(&buffer, |data| {
                    let usable = layout.leaf_space();
                    let done = block::remove_at(&mut data[..usable], found.offset, &layout);
                    block::seal_leaf(data, &layout, dir.seed);
                    done
                })?
                .map_err(|b| self.bad_entry(OP, &dir, lblk, &b))
            }
            place => self.inline_edit(h, &dir, place, |area| {
                block::remove_at(area, found.offset, &layout)
            }),
        }
    }

    /// Makes an entry that was found name another inode.
    ///
    /// # Errors
    /// Damage, or a device error.
    pub(crate) fn retarget(
        &self,
        h: &Handle<'_>,
        inode: &vfs::Inode,
        found: &Found,
        ino: Ino,
        kind: FileKind,
    ) -> Result<()> {
        const OP: &str = "change name's target";
        ext4(inode).last_sought.forget();
        let dir = self.open(inode)?;
        let layout = dir.layout;
        let file_type = kind.dirent_code();
        match found.place {
            Place::Block(lblk) => {
                let buffer = self.block_there(OP, &dir, lblk)?;
                let is_root = lblk == 0 && dir.flags.contains(InodeFlags::INDEX);
                h.modify(&buffer, |data| {
                    let done = block::retarget_at(data, found.offset, ino, file_type, &layout);
                    if is_root {
                        index::seal(data, index::DxPlace::Root, &layout, dir.seed);
                    } else {
                        block::seal_leaf(data, &layout, dir.seed);
                    }
                    done
                })?
                .map_err(|b| self.bad_entry(OP, &dir, lblk, &b))
            }
            place => self.inline_edit(h, &dir, place, |area| {
                block::retarget_at(area, found.offset, ino, file_type, &layout)
            }),
        }
    }

    fn block_there(&self, op: &'static str, dir: &Dir<'_>, lblk: u32) -> Result<BufferRef> {
        self.block(op, dir, lblk)?.ok_or_else(|| {
            self.volume.corrupt(
                op,
                Some(dir.ino),
                None,
                format!("block {lblk} of the directory is a hole"),
            )
        })
    }

    /// Changes what `..` names.
    ///
    /// # Errors
    /// Damage, or a device error.
    pub(crate) fn set_parent(&self, h: &Handle<'_>, inode: &vfs::Inode, parent: Ino) -> Result<()> {
        let dir = self.open(inode)?;
        if dir.is_inline() {
            return self.inline_set_parent(h, &dir, parent);
        }
        match self.find_dot("change parent", &dir, b"..")? {
            Some(found) => self.retarget(h, inode, &found, parent, FileKind::Directory),
            None => Err(self
                .volume
                .corrupt("change parent", Some(dir.ino), None, "no `..` entry")),
        }
    }

    /// Gives a new directory its first contents.
    ///
    /// # Errors
    /// `NoSpace`, or a device error.
    pub(crate) fn init(&self, h: &Handle<'_>, inode: &vfs::Inode, parent: Ino) -> Result<()> {
        ext4(inode).last_sought.forget();
        if self.volume.has_incompat(Incompat::INLINE_DATA) && self.inline_init(h, inode, parent)? {
            return Ok(());
        }
        let dir = self.open(inode)?;
        let layout = dir.layout;
        self.append(h, &dir, |block| {
            block::init_dots(block, dir.ino, parent, &layout);
            block::seal_leaf(block, &layout, dir.seed);
        })?;
        Ok(())
    }
}
