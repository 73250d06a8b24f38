//! Room for checksums in directories: the last 12 bytes of a leaf, and one entry less in a block of an index.
//!
//! A leaf's checksum looks like an unused entry, so a leaf with room for it is right on a volume without checksums as well.
//!
//! # Crash order
//! Leaves change by transactions of the journal, block by block. A directory whose leaves or index blocks are too full is laid out anew in free blocks;
//! one transaction has the inode, which names them. Blocks that it had before are given back by the same transaction, and no block of a transaction
//! is used again by the same one.
//!
//! # Not responsible for
//! Index blocks of directories that have room: their capacity changes with the superblock (`checksums`).

use std::collections::HashSet;

use blockwright_ondisk::common::casefold;
use blockwright_ondisk::ext4::dir::{self, DirBlock, DirEntry, DirFormat, MIN_REC_LEN, TAIL_SIZE};
use blockwright_ondisk::ext4::dir_layout::{self, DirRules, Entry};
use blockwright_ondisk::ext4::hash::{HashAlgorithm, HashVersion, NameHash, name_hash};
use blockwright_ondisk::ext4::htree::{self, DxNode, DxPlace};
use blockwright_ondisk::ext4::{FileKind, Geometry, Ino, Inode, InodeFlags, InodeSeed, RoCompat};

use super::commit::Order;
use super::files::FileMap;
use super::indexes::is_indexed;
use super::log::Log;
use super::volume::Volume;
use crate::error::{ReshapeError, Result};
use crate::watch::Phase;

const WHAT: &str = "directory";
/// Blocks that a transaction has beside directories' own.
const FIXED_WEIGHT: usize = 24;

/// Whether an inode is a directory that has blocks.
pub(super) fn has_dir_blocks(inode: &Inode, geo: &Geometry) -> bool {
    inode.kind() == Some(FileKind::Directory)
        && !inode.flags.contains(InodeFlags::INLINE_DATA)
        && inode.maps_blocks(geo)
}

/// An index block with the capacity of another form, its checksum included.
pub(super) fn with_capacity(
    block: &[u8],
    place: DxPlace,
    from: &DirFormat,
    to: &DirFormat,
    seed: InodeSeed,
) -> Result<Vec<u8>> {
    let entries: Vec<_> = DxNode::parse(block, place, from)?.iter().collect();
    let mut bytes = block.to_vec();
    htree::write_entries(&mut bytes, place, &entries, to).ok_or_else(|| {
        ReshapeError::Damaged("a block of an index has no room for a checksum".into())
    })?;
    htree::set_checksum(&mut bytes, place, to, seed)?;
    Ok(bytes)
}

/// A leaf with its checksum, where its entries leave room for one.
fn with_tail(
    block: &[u8],
    from: &DirFormat,
    to: &DirFormat,
    seed: InodeSeed,
) -> Result<Option<Vec<u8>>> {
    let entries: Vec<DirEntry<'_>> = DirBlock::entries_of(block, *from)
        .iter()
        .collect::<std::result::Result<_, _>>()?;
    let end = block.len() - TAIL_SIZE;
    let needed = |e: &DirEntry<'_>| match e.is_used() {
        true => from.entry_len(e.name),
        false => MIN_REC_LEN,
    };
    let mut bytes = block.to_vec();
    let Some(last) = entries.last() else {
        return Ok(None);
    };
    if last.offset + needed(last) <= end {
        put_length(&mut bytes, last.offset, end - last.offset)?;
    } else if last.offset != end || last.is_used() {
        let used: Vec<&DirEntry<'_>> = entries.iter().filter(|e| e.is_used()).collect();
        if used.iter().map(|e| needed(e)).sum::<usize>() > end {
            return Ok(None);
        }
        dir::write_empty_leaf(&mut bytes, to)
            .ok_or_else(|| ReshapeError::Damaged("a block is too short".into()))?;
        let mut at = 0;
        for (n, entry) in used.iter().enumerate() {
            let len = needed(entry);
            bytes[at..at + len].copy_from_slice(&block[entry.offset..entry.offset + len]);
            let rest = if n + 1 == used.len() { end - at } else { len };
            put_length(&mut bytes, at, rest)?;
            at += len;
        }
    }
    dir::write_tail(&mut bytes, to)
        .ok_or_else(|| ReshapeError::Damaged("a block is too short".into()))?;
    dir::set_leaf_checksum(&mut bytes, to, seed)?;
    Ok(Some(bytes))
}

/// Changes the length of an entry.
fn put_length(bytes: &mut [u8], at: usize, len: usize) -> Result<()> {
    let stored = dir::encode_rec_len(len, bytes.len())
        .ok_or_else(|| ReshapeError::Damaged("an entry has an odd length".into()))?;
    bytes[at + 4..at + 6].copy_from_slice(&stored.to_le_bytes());
    Ok(())
}

/// How a directory gets room in its own blocks.
struct Room {
    /// How many blocks of an index it has.
    index_blocks: usize,
    /// The leaves that change.
    changed: Vec<(u64, Vec<u8>)>,
}

/// Gives directories room for checksums, transaction by transaction.
struct Tails<'v> {
    volume: &'v mut Volume,
    log: Log,
    /// The geometry with checksums.
    new: Geometry,
    /// What directories that were laid out anew had before.
    old_maps: Vec<FileMap>,
}

impl Volume {
    /// Gives every directory room for checksums, and leaves theirs. `new` is the geometry with checksums. The number of index blocks that there
    /// are afterwards.
    ///
    /// # Errors
    /// `Unsupported` for directories that are too full and cannot be laid out anew; `NoSpace`; damage.
    pub fn make_room_for_tails(&mut self, new: &Geometry) -> Result<usize> {
        let dirs = self.directories()?;
        let log = self.log_for(FIXED_WEIGHT * 4)?;
        let mut tails = Tails {
            volume: self,
            log,
            new: new.clone(),
            old_maps: Vec::new(),
        };
        let mut index_blocks = 0;
        let total = dirs.len() as u64;
        for (done, ino) in dirs.into_iter().enumerate() {
            let watch = &tails.volume.disk.watch;
            watch.tell(Phase::Metadata, done as u64, total)?;
            index_blocks += tails.directory(ino)?;
        }
        tails.commit()?;
        Ok(index_blocks)
    }

    /// Whether [`Volume::make_room_for_tails`] would refuse a directory: nothing is written. With `quota` the volume has quota then, and without `indexes`
    /// no directory has an index.
    ///
    /// # Errors
    /// `Unsupported`, as it; damage of a directory; `Interrupted`.
    pub fn check_room_for_tails(
        &self,
        new: &Geometry,
        (quota, indexes): (bool, bool),
    ) -> Result<()> {
        let dirs = self.directories()?;
        let total = dirs.len() as u64;
        for (done, ino) in dirs.into_iter().enumerate() {
            self.disk.watch.tell(Phase::Metadata, done as u64, total)?;
            let mut inode = self.inode(ino)?;
            if !indexes {
                inode.flags.remove(InodeFlags::INDEX);
            }
            let map = self.runs(ino, &inode)?;
            if self.room_for_tails(ino, &inode, &map, new)?.is_none() {
                refuse_with_quota(ino, quota)?;
                self.new_layout(ino, &inode, &map, new)?;
            }
        }
        Ok(())
    }

    /// Directories that have blocks.
    fn directories(&self) -> Result<Vec<Ino>> {
        let mut dirs = Vec::new();
        self.scan_inodes(&mut |ino, inode| {
            if has_dir_blocks(inode, &self.sb.geo) {
                dirs.push(ino);
            }
            Ok(())
        })?;
        Ok(dirs)
    }

    /// How a directory gets room in the blocks that it has; `None` where it is too full.
    fn room_for_tails(
        &self,
        ino: Ino,
        inode: &Inode,
        map: &FileMap,
        new: &Geometry,
    ) -> Result<Option<Room>> {
        let (from, to) = (
            DirFormat::of(&self.sb.geo, inode.flags),
            DirFormat::of(new, inode.flags),
        );
        let seed = new.inode_seed(ino, inode.generation);
        let index = match is_indexed(inode) {
            true => self.index_blocks(ino, map, &from)?,
            false => Default::default(),
        };
        for (block, place) in &index {
            let bytes = self.disk.read(*block, WHAT)?;
            if DxNode::parse(&bytes, *place, &from)?.len() > place.limit(&to) {
                return Ok(None);
            }
        }
        let mut changed = Vec::new();
        for block in blocks_of(map).filter(|block| !index.contains_key(block)) {
            let bytes = self.disk.read(block, WHAT)?;
            match with_tail(&bytes, &from, &to, seed)? {
                None => return Ok(None),
                Some(image) if image == bytes => {}
                Some(image) => changed.push((block, image)),
            }
        }
        Ok(Some(Room {
            index_blocks: index.len(),
            changed,
        }))
    }

    /// The blocks of a directory that is laid out anew, with room for checksums, and whether they begin with an index.
    fn new_layout(
        &self,
        ino: Ino,
        inode: &Inode,
        map: &FileMap,
        new: &Geometry,
    ) -> Result<(Vec<Vec<u8>>, bool)> {
        let (from, to) = (
            DirFormat::of(&self.sb.geo, inode.flags),
            DirFormat::of(new, inode.flags),
        );
        let seed = new.inode_seed(ino, inode.generation);
        let sb = &self.sb;
        let indexed = is_indexed(inode);
        let mut index = HashSet::new();
        let mut hash = sb.default_hash().ok();
        let (mut dot, mut dotdot) = (ino, Ino(0));
        if indexed {
            index.extend(self.index_blocks(ino, map, &from)?.into_keys());
            let first = blocks_of(map).next().unwrap_or_default();
            let root = self.disk.read(first, WHAT)?;
            let levels = htree::MAX_INDIRECT_LEVELS_LARGE;
            let info = htree::DxRootInfo::parse(&root, &from, levels)?;
            (dot, dotdot) = (info.dot, info.dotdot);
            hash = Some(sb.hash_version(info.hash_version)?);
        }
        let mut leaves = Vec::new();
        for block in blocks_of(map).filter(|block| !index.contains(block)) {
            leaves.push(self.disk.read(block, WHAT)?);
        }
        let hash = hash.unwrap_or(HashVersion::from_raw(1)?);
        let seeds = sb.raw.hash_seed();
        let folds = inode.flags.contains(InodeFlags::CASEFOLD);
        let mut entries = Vec::new();
        for leaf in &leaves {
            for entry in DirBlock::entries_of(leaf, from).iter() {
                let entry = entry?;
                match (entry.is_used(), entry.name) {
                    (false, _) => {}
                    (true, b".") => dot = entry.ino,
                    (true, b"..") => dotdot = entry.ino,
                    (true, name) => entries.push(Entry {
                        name,
                        ino: entry.ino,
                        kind: self.kind_of(&entry)?,
                        hash: hash_of(&entry, hash, seeds, folds, indexed)?,
                    }),
                }
            }
        }
        let mut rules = DirRules::new(new, hash, seeds);
        rules.format = to;
        if !indexed {
            rules.levels = None;
        }
        let blocks = dir_layout::build(dot, dotdot, &entries, &rules, seed, 0)?;
        Ok((blocks, dir_layout::shape(&entries, &rules)?.indexed))
    }

    /// What an entry names; its inode says so where the entry does not.
    fn kind_of(&self, entry: &DirEntry<'_>) -> Result<FileKind> {
        match entry.kind {
            Some(kind) => Ok(kind),
            None => self
                .inode(entry.ino)?
                .kind()
                .ok_or_else(|| ReshapeError::Damaged(format!("inode {} is of no kind", entry.ino))),
        }
    }
}

/// A larger directory would change what its owner uses.
fn refuse_with_quota(ino: Ino, quota: bool) -> Result<()> {
    if !quota {
        return Ok(());
    }
    Err(ReshapeError::Unsupported(format!(
        "directory {ino} is too full for checksums, and a larger one would change what its owner uses: clear quota first"
    )))
}

impl Tails<'_> {
    fn commit(&mut self) -> Result<()> {
        for map in std::mem::take(&mut self.old_maps) {
            self.volume.free_map(&map)?;
        }
        if self.volume.disk.staged().is_empty() {
            return Ok(());
        }
        self.volume.commit_staged(&mut self.log, Order::Log)
    }

    /// Commits, unless so many blocks more have room.
    fn make_room(&mut self, blocks: usize) -> Result<()> {
        let waiting = self.volume.disk.staged().len() + self.old_maps.len() * FIXED_WEIGHT;
        match self.log.fits(waiting + blocks + FIXED_WEIGHT) {
            true => Ok(()),
            false => self.commit(),
        }
    }

    /// Gives one directory room. How many index blocks it has.
    fn directory(&mut self, ino: Ino) -> Result<usize> {
        let inode = self.volume.inode(ino)?;
        let map = self.volume.runs(ino, &inode)?;
        let room = self.volume.room_for_tails(ino, &inode, &map, &self.new)?;
        let Some(Room {
            index_blocks,
            changed,
        }) = room
        else {
            return self.lay_out(ino, inode, map);
        };
        for (block, image) in changed {
            self.make_room(1)?;
            self.volume.disk.stage(block, image);
        }
        Ok(index_blocks)
    }

    /// Lays a directory out anew, in free blocks. How many index blocks it has then.
    fn lay_out(&mut self, ino: Ino, mut inode: Inode, map: FileMap) -> Result<usize> {
        refuse_with_quota(
            ino,
            self.volume.sb.features().has_ro_compat(RoCompat::QUOTA),
        )?;
        let geo = self.volume.sb.geo.clone();
        let (from, to) = (
            DirFormat::of(&geo, inode.flags),
            DirFormat::of(&self.new, inode.flags),
        );
        let seed = self.new.inode_seed(ino, inode.generation);
        let (mut blocks, indexed) = self.volume.new_layout(ino, &inode, &map, &self.new)?;
        self.make_room(FIXED_WEIGHT * 2)?;
        let mut fresh = Inode::new(&geo, inode.mode);
        let places = self
            .volume
            .lay_blocks(ino, &mut fresh, blocks.len() as u64, WHAT)?;
        // What belongs to the inode and not to its map: an attribute block, and values of attributes in inodes of their own.
        let extra = inode.sectors.saturating_sub(map.sectors(&geo));
        inode.block = fresh.block;
        inode.size = fresh.size;
        inode.sectors = fresh.sectors + extra;
        inode.flags.remove(InodeFlags::EXTENTS | InodeFlags::INDEX);
        inode.flags |= fresh.flags & InodeFlags::EXTENTS;
        let mut index_blocks = 0;
        if indexed {
            inode.flags |= InodeFlags::INDEX;
            // The volume as it is has index blocks of its own capacity.
            for (block, place) in index_positions(&blocks, &to)? {
                blocks[block] = with_capacity(&blocks[block], place, &to, &from, seed)?;
                index_blocks += 1;
            }
        }
        for (place, bytes) in places.into_iter().zip(&blocks) {
            self.volume.disk.write_now(place, bytes, WHAT)?;
        }
        self.volume.stage_inode(ino, Some(&inode))?;
        self.old_maps.push(map);
        Ok(index_blocks)
    }
}

/// The blocks of a file on the device, in its order.
fn blocks_of(map: &FileMap) -> impl Iterator<Item = u64> + '_ {
    map.runs
        .iter()
        .flat_map(|run| run.start..run.start + run.len)
}

/// The hash by which the index of a case-insensitive directory finds an entry; `None` where that is the hash of the name's bytes. Encrypted directories store
/// it with the entry. `folds`: names are compared without case. `indexed`: the directory has an index.
fn hash_of(
    entry: &DirEntry<'_>,
    version: HashVersion,
    seeds: [u32; 4],
    folds: bool,
    indexed: bool,
) -> Result<Option<NameHash>> {
    if let Some((hash, minor)) = entry.stored_hash {
        return Ok(Some(NameHash {
            hash: hash & !1,
            minor,
        }));
    }
    if !folds || !indexed || version.algorithm == HashAlgorithm::SipHash {
        return Ok(None);
    }
    if std::str::from_utf8(entry.name).is_ok_and(casefold::is_newer) {
        return Err(ReshapeError::Unsupported(
            "a directory that ignores case has names in characters newer than its encoding".into(),
        ));
    }
    let folded = casefold::fold_name(entry.name);
    Ok(Some(name_hash(version, seeds, None, &folded)?))
}

/// Where the index blocks of a new directory are among its blocks.
fn index_positions(blocks: &[Vec<u8>], format: &DirFormat) -> Result<Vec<(usize, DxPlace)>> {
    let Some(root) = blocks.first() else {
        return Ok(Vec::new());
    };
    let levels = htree::DxRootInfo::parse(root, format, htree::MAX_INDIRECT_LEVELS_LARGE)?;
    let mut found = vec![(0, DxPlace::Root)];
    let mut level = vec![(0, DxPlace::Root)];
    for _ in 0..levels.indirect_levels {
        let mut below = Vec::new();
        for (at, place) in level {
            for entry in DxNode::parse(&blocks[at], place, format)?.iter() {
                below.push((entry.block as usize, DxPlace::Node));
            }
        }
        found.extend(&below);
        level = below;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockwright_ondisk::ext4::MetaSeed;

    const SIZE: usize = 1024;

    fn form(checksums: bool) -> DirFormat {
        DirFormat {
            block_size: SIZE,
            max_ino: 1000,
            filetype: true,
            checksums,
            stored_hash: true,
            encrypted: true,
        }
    }

    /// A block of an encrypted directory that ignores case, with these names one behind the other; the last one has the rest.
    fn leaf(names: &[&[u8]]) -> Vec<u8> {
        let format = form(false);
        let (mut block, mut at) = (vec![0; SIZE], 0);
        for (n, name) in names.iter().enumerate() {
            let len = match n + 1 == names.len() {
                true => SIZE - at,
                false => format.entry_len(name),
            };
            let kind = Some(FileKind::Directory);
            dir::write_entry(&mut block, at, len, Ino(12), kind, name, &format).expect("room");
            if !matches!(*name, b"." | b"..") {
                dir::write_stored_hash(&mut block, at, name.len(), 7, 8).expect("room");
            }
            at += len;
        }
        block
    }

    fn lengths(block: &[u8], format: DirFormat) -> Vec<(Vec<u8>, usize)> {
        let entries = DirBlock::entries_of(block, format);
        entries
            .iter()
            .map(|entry| entry.expect("valid"))
            .filter(DirEntry::is_used)
            .map(|entry| (entry.name.to_vec(), entry.rec_len))
            .collect()
    }

    #[test]
    fn dots_have_no_hash() {
        let (from, to) = (form(false), form(true));
        let seed = InodeSeed(MetaSeed::from_uuid(&[1; 16]).0);
        // One long record between others, which is packed.
        let mut block = leaf(&[b".", b"..", b"first", b"second"]);
        let last = 24 + from.entry_len(b"first");
        put_length(&mut block, 24, SIZE - 24 - from.entry_len(b"second")).expect("even");
        block.copy_within(last..last + from.entry_len(b"second"), SIZE - 24);
        put_length(&mut block, SIZE - 24, 24).expect("even");
        let packed = with_tail(&block, &from, &to, seed)
            .expect("valid")
            .expect("room");
        let found = lengths(&packed, to);
        assert_eq!(found[0], (b".".to_vec(), 12));
        assert_eq!(found[1], (b"..".to_vec(), 12));
        assert_eq!(found.len(), 4);
    }

    #[test]
    fn a_dot_at_the_end_is_no_panic() {
        let (from, to) = (form(false), form(true));
        let seed = InodeSeed(MetaSeed::from_uuid(&[1; 16]).0);
        for dot in [&b"."[..], b".."] {
            let mut block = leaf(&[b"name", dot]);
            // The first record reaches to the last 12 bytes, where the dot lies.
            let at = from.entry_len(b"name");
            block.copy_within(at..at + 12, SIZE - 12);
            put_length(&mut block, 0, SIZE - 12).expect("even");
            put_length(&mut block, SIZE - 12, 12).expect("even");
            let packed = with_tail(&block, &from, &to, seed)
                .expect("valid")
                .expect("room");
            assert_eq!(lengths(&packed, to)[1].0, dot);
        }
    }
}
