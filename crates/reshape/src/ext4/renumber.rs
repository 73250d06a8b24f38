//! Inodes of groups that go get numbers in groups that stay.
//!
//! # What knows an inode's number
//! - Names: entries of directories (`.` and `..` among them), in blocks and in inodes. An index by hashes knows names only.
//! - Attributes whose value is in an inode (`ea_inode`).
//! - The superblock: quota files, the orphan file, `lost+found`.
//! - With `metadata_csum`, checksums start from number and generation: those of the inode itself, of the nodes of its extent tree, of
//!   a directory's blocks, of the orphan file's blocks. Those of attribute blocks do not.
//! - With `stable_inodes`, keys of encrypted files: such volumes are refused.
//!
//! # Crash order
//! All that knows an inode changes with it in one transaction, in place. Each transaction leaves a consistent volume of the old size. One that
//! does not fit into the journal (a directory with very many subdirectories) has the journal made larger for the time of the change.
//!
//! # Not responsible for
//! Blocks that lie behind the end (`shrink`).
//!
//! Reference: kernel documentation, "ext4 Data Structures and Algorithms": checksums, directory entries, extended attributes.

use std::collections::{BTreeMap, HashSet};

use blockwright_ondisk::ext4::checksum::InodeSeed;
use blockwright_ondisk::ext4::dir::{self, DirBlock, DirFormat};
use blockwright_ondisk::ext4::extent;
use blockwright_ondisk::ext4::htree::{self, DxPlace};
use blockwright_ondisk::ext4::inode;
use blockwright_ondisk::ext4::xattr::{
    self, INDEX_SYSTEM, INLINE_DATA_NAME, XattrList, XattrValue,
};
use blockwright_ondisk::ext4::{
    BlockNo, Compat, FileKind, Geometry, GroupFlags, GroupNo, Incompat, Ino, Inode, InodeFlags,
    orphan_file,
};

use super::commit::Order;
use super::log::Log;
use super::volume::{Volume, bit, clear_bit, set_bit};
use crate::error::{ReshapeError, Result};
use crate::watch::Phase;

const WHAT: &str = "directory";
/// Largest piece of a directory that is read at once, in blocks.
const READ_BLOCKS: u64 = 64;
/// Most blocks of one transaction, where the journal has room for them.
const BATCH_BLOCKS: usize = 4096;
/// Blocks of a transaction beside those that know the inode: two tables, bitmaps, descriptors, the superblock, with room to spare.
const FIXED_WEIGHT: usize = 12;
/// Byte offset of `i_block` in an inode.
const INODE_BLOCK: usize = 0x28;
/// Byte offset of `e_value_inum` in an attribute's entry.
const VALUE_INUM: usize = 4;

/// A place that knows an inode's number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Place {
    /// A block of a directory.
    Block { dir: Ino, block: u64 },
    /// Entries inside of a directory's inode.
    Inline(Ino),
    /// Attributes inside of an inode.
    Attributes(Ino),
    /// An attribute block.
    AttributeBlock(u64),
}

/// An inode that gets another number.
#[derive(Debug)]
struct Moving {
    to: Ino,
    is_dir: bool,
    /// Names that there must be: links of a file, 1 for a directory. `None` for values of attributes.
    links: Option<u32>,
    /// Names that were found.
    names: u32,
    /// Blocks whose checksum depends on the number.
    own: usize,
    places: Vec<Place>,
}

impl Moving {
    /// At most this many blocks change with the inode.
    fn weight(&self) -> usize {
        self.own + self.places.len() + FIXED_WEIGHT
    }
}

/// Gives inodes in groups that the new size has no more other numbers. The blocks that the journal had, if it was made larger for that.
pub(super) fn renumber(volume: &mut Volume, new: &Geometry) -> Result<Option<u64>> {
    let mut moving = choose(volume, new)?;
    if moving.is_empty() {
        return Ok(None);
    }
    find_places(volume, &mut moving)?;
    for (ino, file) in &moving {
        let wrong = match file.links {
            Some(links) => file.names != links,
            None => file.places.is_empty(),
        };
        if wrong {
            return Err(ReshapeError::Damaged(format!(
                "inode {ino} does not have as many names as it counts"
            )));
        }
    }
    let most = moving.values().map(Moving::weight).max().unwrap_or(0);
    let no_journal = || ReshapeError::Damaged("there is no journal".into());
    let mut log = Log::open(volume)?.ok_or_else(no_journal)?;
    let mut enlarged = None;
    if !log.fits(most) {
        enlarged = Some(log.len() as u64);
        let limit = volume.limit.take();
        let blocks = log.len() as u64 + (most + most / 32) as u64;
        let replaced = volume.replace_journal(blocks);
        volume.limit = limit;
        replaced?;
        log = Log::open(volume)?.ok_or_else(no_journal)?;
    }
    let mut mover = Renumber {
        volume,
        log,
        moved: BTreeMap::new(),
        used: BTreeMap::new(),
        batch: Vec::new(),
    };
    let total = moving.len() as u64;
    for (done, (ino, file)) in moving.iter().enumerate() {
        let watch = &mover.volume.disk.watch;
        watch.tell(Phase::Numbers, done as u64, total)?;
        mover.make_room(file.weight())?;
        mover.inode(*ino, file)?;
    }
    mover.commit()?;
    Ok(enlarged)
}

/// The highest inode that keeps its number whatever the size.
pub(super) fn last_fixed(volume: &Volume) -> Result<Ino> {
    let geo = &volume.sb.geo;
    let mut last = Ino(geo.first_ino.0).max(Ino(volume.sb.raw.journal_inum.get()));
    if geo.features.has_compat(Compat::STABLE_INODES) {
        volume.scan_inodes(&mut |ino, _| {
            last = last.max(ino);
            Ok(())
        })?;
    }
    Ok(last)
}

/// The inodes that get other numbers, and which.
fn choose(volume: &Volume, new: &Geometry) -> Result<BTreeMap<Ino, Moving>> {
    let geo = &volume.sb.geo;
    let mut moving = BTreeMap::new();
    let last = last_fixed(volume)?;
    volume.scan_inodes(&mut |ino, inode| {
        if ino.0 <= new.inodes_count {
            return Ok(());
        }
        if ino <= last {
            let why = match geo.features.has_compat(Compat::STABLE_INODES) {
                true => "keys of encrypted files may depend on its number (stable_inodes)",
                false => "it is the journal, or reserved",
            };
            let groups = u64::from((last.0 - 1) / geo.inodes_per_group);
            return Err(ReshapeError::Unsupported(format!(
                "inode {ino} lies in a group that would go, and {why}: at least {} blocks are needed",
                groups * u64::from(geo.blocks_per_group)
            )));
        }
        let is_dir = inode.kind() == Some(FileKind::Directory);
        let is_value = inode.flags.contains(InodeFlags::EA_INODE);
        // Files that only the superblock knows have one link and no name.
        let links = match () {
            () if is_value => None,
            () if is_dir => Some(1),
            () if is_named_by_super(volume, ino) => Some(0),
            () => Some(u32::from(inode.links)),
        };
        moving.insert(
            ino,
            Moving {
                to: Ino(0),
                is_dir,
                links,
                names: 0,
                own: own_blocks(volume, ino, inode)?,
                places: Vec::new(),
            },
        );
        Ok(())
    })?;
    let mut missing = moving.values_mut();
    let mut next = missing.next();
    'groups: for group in new.groups() {
        if next.is_none() {
            break;
        }
        if volume.desc(group)?.free_inodes == 0 {
            continue;
        }
        let bits = volume.inode_bitmap(group)?;
        for index in 0..geo.inodes_per_group {
            let Some(ino) = geo.ino_at(group, index).filter(|i| *i >= geo.first_ino) else {
                continue;
            };
            if bit(&bits, index as usize) {
                continue;
            }
            let Some(file) = next else { break 'groups };
            file.to = ino;
            next = missing.next();
        }
    }
    if next.is_some() {
        return Err(ReshapeError::NoSpace(format!(
            "a volume of that size has {} inodes, fewer than are in use",
            new.inodes_count
        )));
    }
    Ok(moving)
}

/// Whether the superblock names this inode as one of its own files.
fn is_named_by_super(volume: &Volume, ino: Ino) -> bool {
    let raw = &volume.sb.raw;
    [
        raw.usr_quota_inum.get(),
        raw.grp_quota_inum.get(),
        raw.prj_quota_inum.get(),
        raw.orphan_file_inum.get(),
    ]
    .contains(&ino.0)
}

/// How many blocks of a file change with its number.
fn own_blocks(volume: &Volume, ino: Ino, inode: &Inode) -> Result<usize> {
    let csum = volume.sb.geo.metadata_csum();
    let is_dir = inode.kind() == Some(FileKind::Directory);
    let is_orphans = ino.0 == volume.sb.raw.orphan_file_inum.get();
    if !csum && !is_dir || !inode.maps_blocks(&volume.sb.geo) {
        return Ok(0);
    }
    let map = volume.runs(ino, inode)?;
    let mut count = if csum { map.nodes.len() } else { 0 };
    if is_dir || is_orphans {
        count += map.runs.iter().map(|run| run.len as usize).sum::<usize>();
    }
    Ok(count)
}

/// Finds every place that knows one of these inodes.
fn find_places(volume: &Volume, moving: &mut BTreeMap<Ino, Moving>) -> Result<()> {
    let geo = &volume.sb.geo;
    let values = geo.features.has_incompat(Incompat::EA_INODE)
        && moving.values().any(|file| file.links.is_none());
    let mut seen = HashSet::new();
    let mut note = |ino: Ino, place: Place, is_name: bool| {
        if let Some(file) = moving.get_mut(&ino) {
            file.names += u32::from(is_name);
            if file.places.last() != Some(&place) {
                file.places.push(place);
            }
        }
    };
    volume.scan_inodes(&mut |ino, inode| {
        let is_dir = inode.kind() == Some(FileKind::Directory);
        let format = DirFormat::of(geo, inode.flags);
        if is_dir && inode.flags.contains(InodeFlags::INLINE_DATA) {
            let raw = volume.raw_inode(ino)?;
            note(parent_of(inode), Place::Inline(ino), false);
            for range in inline_entries(&raw, inode, geo)? {
                for entry in DirBlock::entries_of(&raw[range], format).iter() {
                    note(entry?.ino, Place::Inline(ino), true);
                }
            }
        } else if is_dir {
            for run in volume.runs(ino, inode)?.runs {
                let end = run.start + run.len;
                let mut at = run.start;
                while at < end {
                    let count = (end - at).min(READ_BLOCKS);
                    let bytes = volume.disk.read_run(at, count, WHAT)?;
                    for (n, block) in bytes.chunks_exact(geo.block_len()).enumerate() {
                        let place = Place::Block {
                            dir: ino,
                            block: at + n as u64,
                        };
                        for entry in DirBlock::entries_of(block, format).iter() {
                            let entry = entry?;
                            note(entry.ino, place, !entry.is_dot_or_dotdot());
                        }
                    }
                    at += count;
                }
            }
        }
        if !values {
            return Ok(());
        }
        let raw = volume.raw_inode(ino)?;
        for value in value_inodes(&raw, inode, geo)? {
            note(value.0, Place::Attributes(ino), false);
        }
        if inode.file_acl.0 != 0 && seen.insert(inode.file_acl.0) {
            let bytes = volume.disk.read(inode.file_acl.0, "attributes")?;
            let (_, list) = XattrList::parse_block(&bytes, geo)?;
            for entry in list.iter() {
                if let XattrValue::Inode { ino, .. } = entry.value {
                    note(ino, Place::AttributeBlock(inode.file_acl.0), false);
                }
            }
        }
        Ok(())
    })
}

/// The parent of a directory in its inode.
fn parent_of(inode: &Inode) -> Ino {
    let b = &inode.block;
    Ino(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

/// Where the entries of a directory in its inode are: in `i_block` behind the parent's number, and in an attribute.
fn inline_entries(
    raw: &[u8],
    inode: &Inode,
    geo: &Geometry,
) -> Result<Vec<std::ops::Range<usize>>> {
    let mut list = Vec::with_capacity(2);
    list.push(INODE_BLOCK + 4..INODE_BLOCK + inode::BLOCK_AREA);
    let Some(at) = inode.attributes_offset(geo) else {
        return Ok(list);
    };
    if let Some(attributes) = XattrList::parse_ibody(&raw[at..], geo)?
        && let Some(entry) = attributes.find(INDEX_SYSTEM, INLINE_DATA_NAME)
        && let XattrValue::Local(value) = entry.value
        && !value.is_empty()
    {
        let start = value.as_ptr() as usize - raw.as_ptr() as usize;
        list.push(start..start + value.len());
    }
    Ok(list)
}

/// Inodes that hold values of an inode's own attributes, with the offset in the inode where each number is.
fn value_inodes(raw: &[u8], inode: &Inode, geo: &Geometry) -> Result<Vec<(Ino, usize)>> {
    let Some(at) = inode.attributes_offset(geo) else {
        return Ok(Vec::new());
    };
    let Some(attributes) = XattrList::parse_ibody(&raw[at..], geo)? else {
        return Ok(Vec::new());
    };
    let values = attributes.iter().filter_map(|entry| match entry.value {
        XattrValue::Inode { ino, .. } => Some((ino, at + entry.offset + VALUE_INUM)),
        XattrValue::Local(_) => None,
    });
    Ok(values.collect())
}

/// How the checksum of a directory's block is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sum {
    None,
    Leaf,
    Index(DxPlace),
}

/// Finds the checksum of a directory's block by verifying it.
fn sum_of(block: &[u8], format: &DirFormat, seed: InodeSeed) -> Result<Sum> {
    if !format.checksums {
        return Ok(Sum::None);
    }
    let leaf = dir::verify_leaf_checksum(block, format, seed);
    if leaf.is_ok() {
        return Ok(Sum::Leaf);
    }
    for place in [DxPlace::Root, DxPlace::Node] {
        if htree::verify_checksum(block, place, format, seed).is_ok() {
            return Ok(Sum::Index(place));
        }
    }
    leaf?;
    Ok(Sum::Leaf)
}

/// Replaces a number in entries.
fn replace(bytes: &mut [u8], format: DirFormat, from: Ino, to: Ino) -> Result<()> {
    let mut found = Vec::new();
    for entry in DirBlock::entries_of(bytes, format).iter() {
        let entry = entry?;
        if entry.ino == from {
            found.push(entry.offset);
        }
    }
    for at in found {
        bytes[at..at + 4].copy_from_slice(&to.0.to_le_bytes());
    }
    Ok(())
}

/// The mover of inodes.
struct Renumber<'v> {
    volume: &'v mut Volume,
    log: Log,
    /// Inodes that have other numbers by now.
    moved: BTreeMap<Ino, Ino>,
    /// Inodes at the start of each group's table that have been in use at some time.
    used: BTreeMap<u32, u32>,
    /// Inodes whose bits change with the transaction: from, to, whether a directory.
    batch: Vec<(Ino, Ino, bool)>,
}

impl Renumber<'_> {
    /// The number that an inode has now.
    fn now(&self, ino: Ino) -> Ino {
        self.moved.get(&ino).copied().unwrap_or(ino)
    }

    /// Commits what is staged, unless this many blocks more have room beside it.
    fn make_room(&mut self, weight: usize) -> Result<()> {
        // Bitmaps and descriptors are staged with the commit: three blocks an inode are in the weight.
        let waiting = self.volume.disk.staged().len() + self.batch.len() * FIXED_WEIGHT;
        if waiting > 0 && (waiting + weight > BATCH_BLOCKS || !self.log.fits(waiting + weight)) {
            self.commit()?;
        }
        Ok(())
    }

    /// Gives an inode its new number.
    fn inode(&mut self, from: Ino, file: &Moving) -> Result<()> {
        let to = file.to;
        let inode = self.volume.inode(from)?;
        self.own_blocks(from, to, &inode)?;
        self.tables(from, to, &inode)?;
        self.moved.insert(from, to);
        for place in &file.places {
            self.place(*place, from, to)?;
        }
        let raw = &mut self.volume.sb.raw;
        for known in [
            &mut raw.usr_quota_inum,
            &mut raw.grp_quota_inum,
            &mut raw.prj_quota_inum,
            &mut raw.orphan_file_inum,
            &mut raw.lpf_ino,
        ] {
            if known.get() == from.0 {
                known.set(to.0);
            }
        }
        self.batch.push((from, to, file.is_dir));
        Ok(())
    }

    /// Stages the blocks of an inode whose checksum depends on its number, and a directory's own entry.
    fn own_blocks(&mut self, from: Ino, to: Ino, inode: &Inode) -> Result<()> {
        let geo = self.volume.sb.geo.clone();
        let is_dir = inode.kind() == Some(FileKind::Directory);
        let is_orphans = from.0 == self.volume.sb.raw.orphan_file_inum.get();
        let csum = geo.metadata_csum();
        if !csum && !is_dir || !inode.maps_blocks(&geo) {
            return Ok(());
        }
        let (before, after) = (
            geo.inode_seed(from, inode.generation),
            geo.inode_seed(to, inode.generation),
        );
        let map = self.volume.runs(from, inode)?;
        let blocks = map
            .runs
            .iter()
            .flat_map(|run| run.start..run.start + run.len);
        if is_dir {
            let format = DirFormat::of(&geo, inode.flags);
            for block in blocks {
                let mut bytes = self.volume.disk.read(block, WHAT)?;
                let sum = sum_of(&bytes, &format, before)?;
                replace(&mut bytes, format, from, to)?;
                self.stage_dir(block, bytes, sum, &format, after)?;
            }
        } else if is_orphans {
            for block in blocks {
                let mut bytes = self.volume.disk.read(block, "orphan file")?;
                orphan_file::verify(&bytes, BlockNo(block), &geo, before)?;
                orphan_file::write_tail(&mut bytes, BlockNo(block), &geo, after).ok_or_else(
                    || ReshapeError::Damaged("a block of the orphan file is too short".into()),
                )?;
                self.volume.disk.stage(block, bytes);
            }
        }
        if csum && inode.flags.contains(InodeFlags::EXTENTS) {
            for node in map.nodes {
                let mut bytes = self.volume.disk.read(node, "map of a file")?;
                extent::set_checksum(&mut bytes, &geo, after)?;
                self.volume.disk.stage(node, bytes);
            }
        }
        Ok(())
    }

    fn stage_dir(
        &mut self,
        block: u64,
        mut bytes: Vec<u8>,
        sum: Sum,
        format: &DirFormat,
        seed: InodeSeed,
    ) -> Result<()> {
        match sum {
            Sum::None => {}
            Sum::Leaf => dir::set_leaf_checksum(&mut bytes, format, seed)?,
            Sum::Index(place) => htree::set_checksum(&mut bytes, place, format, seed)?,
        }
        self.volume.disk.stage(block, bytes);
        Ok(())
    }

    /// Stages the inode in its new place, and the old place as free.
    fn tables(&mut self, from: Ino, to: Ino, inode: &Inode) -> Result<()> {
        let geo = self.volume.sb.geo.clone();
        let size = usize::from(geo.inode_size);
        let mut raw = self.volume.raw_inode(from)?;
        if geo.features.has_incompat(Incompat::EA_INODE) {
            for (value, _) in value_inodes(&raw, inode, &geo)? {
                let value = self.volume.inode(self.now(value))?;
                // Such a value knows its only owner, by number and generation.
                if value.mtime.secs == i64::from(from.0) && value.generation == inode.generation {
                    return Err(ReshapeError::Unsupported(format!(
                        "inode {from} has an attribute in Lustre's form, which depends on its number"
                    )));
                }
            }
        }
        inode::set_checksum(&mut raw, &geo, to)?;
        let (group, index) = geo
            .split_ino(to)
            .ok_or_else(|| ReshapeError::Damaged(format!("there is no inode {to}")))?;
        let desc = self.volume.desc(group)?;
        let used = self.used.entry(group.0).or_insert_with(|| {
            let unused = match desc.flags.contains(GroupFlags::INODE_UNINIT) {
                true => geo.inodes_per_group,
                false => desc.itable_unused.min(geo.inodes_per_group),
            };
            geo.inodes_per_group - unused
        });
        let (block, at) = self.volume.inode_place(to)?;
        let mut bytes = self.volume.disk.read(block, "inode table")?;
        if index >= *used {
            // The table behind the last inode in use may never have been written.
            let first = index - index % geo.inodes_per_block;
            let clean = (*used).max(first) - first;
            bytes[clean as usize * size..].fill(0);
            *used = index + 1;
        }
        bytes[at..at + size].copy_from_slice(&raw);
        self.volume.disk.stage(block, bytes);
        self.volume.stage_inode(from, None)
    }

    /// Replaces the number in a place that knows it.
    fn place(&mut self, place: Place, from: Ino, to: Ino) -> Result<()> {
        let geo = self.volume.sb.geo.clone();
        match place {
            // Among its own blocks.
            Place::Block { dir, .. } if dir == from => Ok(()),
            Place::Block { dir, block } => {
                let dir = self.now(dir);
                let inode = self.volume.inode(dir)?;
                let seed = geo.inode_seed(dir, inode.generation);
                let format = DirFormat::of(&geo, inode.flags);
                let mut bytes = self.volume.disk.read(block, WHAT)?;
                let sum = sum_of(&bytes, &format, seed)?;
                replace(&mut bytes, format, from, to)?;
                self.stage_dir(block, bytes, sum, &format, seed)
            }
            Place::Inline(dir) => {
                let dir = self.now(dir);
                let inode = self.volume.inode(dir)?;
                let mut raw = self.volume.raw_inode(dir)?;
                if parent_of(&inode) == from {
                    raw[INODE_BLOCK..INODE_BLOCK + 4].copy_from_slice(&to.0.to_le_bytes());
                }
                let format = DirFormat::of(&geo, inode.flags);
                for range in inline_entries(&raw, &inode, &geo)? {
                    replace(&mut raw[range], format, from, to)?;
                }
                self.stage_raw(dir, raw)
            }
            Place::Attributes(owner) => {
                let owner = self.now(owner);
                let inode = self.volume.inode(owner)?;
                let mut raw = self.volume.raw_inode(owner)?;
                for (value, at) in value_inodes(&raw, &inode, &geo)? {
                    if value == from {
                        raw[at..at + 4].copy_from_slice(&to.0.to_le_bytes());
                    }
                }
                self.stage_raw(owner, raw)
            }
            Place::AttributeBlock(block) => {
                let mut bytes = self.volume.disk.read(block, "attributes")?;
                xattr::verify_block_checksum(&bytes, BlockNo(block), &geo)?;
                let (_, list) = XattrList::parse_block(&bytes, &geo)?;
                let found: Vec<usize> = list
                    .iter()
                    .filter(|e| matches!(e.value, XattrValue::Inode { ino, .. } if ino == from))
                    .map(|e| e.offset + VALUE_INUM)
                    .collect();
                for at in found {
                    bytes[at..at + 4].copy_from_slice(&to.0.to_le_bytes());
                }
                xattr::set_block_checksum(&mut bytes, BlockNo(block), &geo)?;
                self.volume.disk.stage(block, bytes);
                Ok(())
            }
        }
    }

    fn stage_raw(&mut self, ino: Ino, mut raw: Vec<u8>) -> Result<()> {
        inode::set_checksum(&mut raw, &self.volume.sb.geo, ino)?;
        let (block, at) = self.volume.inode_place(ino)?;
        let mut bytes = self.volume.disk.read(block, "inode table")?;
        bytes[at..at + raw.len()].copy_from_slice(&raw);
        self.volume.disk.stage(block, bytes);
        Ok(())
    }

    /// Commits the inodes that have other numbers by now, with bitmaps and counts.
    fn commit(&mut self) -> Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let geo = self.volume.sb.geo.clone();
        let mut groups: BTreeMap<GroupNo, Vec<(u32, bool, bool)>> = BTreeMap::new();
        for (from, to, is_dir) in self.batch.drain(..) {
            for (ino, taken) in [(from, false), (to, true)] {
                let (group, index) = geo
                    .split_ino(ino)
                    .ok_or_else(|| ReshapeError::Damaged(format!("there is no inode {ino}")))?;
                groups
                    .entry(group)
                    .or_default()
                    .push((index, taken, is_dir));
            }
        }
        for (group, changes) in groups {
            let mut bits = self.volume.inode_bitmap(group)?;
            let mut desc = self.volume.desc(group)?;
            for (index, taken, is_dir) in changes {
                let step = |count: u32, up: bool, by: u32| match up {
                    true => count + by,
                    false => count.saturating_sub(by),
                };
                desc.free_inodes = step(desc.free_inodes, !taken, 1);
                desc.used_dirs = step(desc.used_dirs, taken, u32::from(is_dir));
                match taken {
                    true => set_bit(&mut bits, index as usize),
                    false => clear_bit(&mut bits, index as usize),
                }
            }
            if self.volume.has_uninit()
                && let Some(used) = self.used.get(&group.0)
            {
                desc.itable_unused = geo.inodes_per_group - used;
                desc.flags.remove(GroupFlags::INODE_UNINIT);
            }
            desc.set_inode_bitmap_csum(&bits, &geo);
            self.volume.descs[group.0 as usize] = desc;
            self.volume.disk.stage(desc.inode_bitmap.0, bits);
            // The kernel writes both bitmaps of a group when it takes the first inode of it.
            if desc.flags.contains(GroupFlags::BLOCK_UNINIT) {
                let bits = self.volume.block_bitmap(group)?;
                self.volume.stage_block_bitmap(group, bits)?;
            }
        }
        self.volume.count_free();
        self.volume.follow()?;
        self.volume.stage_descs()?;
        self.volume.commit_through(&mut self.log, Order::Log)
    }
}
