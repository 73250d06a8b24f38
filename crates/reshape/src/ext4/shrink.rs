//! A smaller volume: what lies behind the new end moves in front of it, and then the end moves.
//!
//! # Crash order
//! Blocks are copied to blocks that are free in the committed state, and no block that was given up is used again before the end has moved. So
//! every state between has each file whole. The moves are transactions of the volume as it was, each of which leaves a consistent
//! volume: a change that is interrupted leaves the old size and some files in new places. The last transaction, whose order is
//! [`Order::Superblock`], takes the empty groups away.
//!
//! A journal behind the new end is not copied: a log cannot move under its own transaction. It is removed, and made again in front of the end.
//! A temporary one can stay behind the new end ([`shrink_before_journal`]): the volume is cut behind the journal first, and when that is removed, the
//! rest of the last group goes without a transaction, which takes its blocks in the bitmap before the superblock forgets them.
//! New nodes of extent trees and new indirect blocks are free blocks, too: they are written at once and not logged.
//!
//! # Not responsible for
//! Inodes in groups that go (`renumber` moves them first), and clusters (`bigalloc`): refused by name.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use blockwright_device::CopyBatch;
use blockwright_ondisk::ext4::extent::{
    self, Extent, ExtentIndex, MAX_DEPTH, ROOT_ENTRIES, max_entries, write_inner, write_leaf,
};
use blockwright_ondisk::ext4::{
    BlockNo, Compat, FileBlock, FileKind, Geometry, GroupNo, Incompat, Ino, Inode, InodeFlags,
    Superblock, orphan_file, xattr,
};

use super::commit::Order;
use super::files::{DIRECT, words};
use super::log::Log;
use super::volume::{Volume, bit, set_padding};
use crate::error::{ReshapeError, Result};
use crate::watch::Phase;

const WHAT: &str = "file";
/// Largest piece that is copied at once, in bytes.
const COPY_BYTES: u64 = 4 << 20;
/// Bits of this many runs change in one transaction that moves metadata.
const METADATA_BATCH: usize = 256;
/// Most blocks of one transaction, where the journal has room for them.
const BATCH_BLOCKS: usize = 4096;

/// Free blocks in front of the new end, by place and by length.
#[derive(Default)]
struct Free {
    by_start: BTreeMap<u64, u64>,
    by_len: BTreeSet<(u64, u64)>,
}

impl Free {
    fn new(volume: &Volume, range: Range<u64>) -> Result<Self> {
        let mut free = Self::default();
        let geo = &volume.sb.geo;
        let mut run: Option<(u64, u64)> = None;
        for group in geo.groups() {
            let base = geo.group_first_block(group).0;
            let last = base + u64::from(geo.group_blocks(group));
            let outside = base >= range.end || last <= range.start;
            if outside || volume.desc(group)?.free_clusters == 0 {
                continue;
            }
            let bits = volume.block_bitmap(group)?;
            let from = range.start.saturating_sub(base);
            for n in from..(last.min(range.end) - base) {
                if bit(&bits, n as usize) {
                    continue;
                }
                match &mut run {
                    Some((start, len)) if *start + *len == base + n => *len += 1,
                    _ => {
                        if let Some((start, len)) = run.replace((base + n, 1)) {
                            free.insert(start, len);
                        }
                    }
                }
            }
        }
        if let Some((start, len)) = run {
            free.insert(start, len);
        }
        Ok(free)
    }

    fn insert(&mut self, start: u64, len: u64) {
        self.by_start.insert(start, len);
        self.by_len.insert((len, start));
    }

    /// This many blocks in one run, if there is one.
    fn take_whole(&mut self, want: u64) -> Option<u64> {
        let (len, start) = self.by_len.range((want, 0)..).next().copied()?;
        self.by_len.remove(&(len, start));
        self.by_start.remove(&start);
        if len > want {
            self.insert(start + want, len - want);
        }
        Some(start)
    }

    /// At most this many blocks in one run: the shortest run that holds them all, else the longest.
    fn take(&mut self, want: u64) -> Result<(u64, u64)> {
        let fits = self.by_len.range((want, 0)..).next();
        let (len, start) = fits
            .or_else(|| self.by_len.last())
            .copied()
            .ok_or_else(|| ReshapeError::NoSpace("the files do not fit into that size".into()))?;
        self.by_len.remove(&(len, start));
        self.by_start.remove(&start);
        let taken = len.min(want);
        if len > taken {
            self.insert(start + taken, len - taken);
        }
        Ok((start, taken))
    }
}

/// What has to move.
#[derive(Default)]
struct Doomed {
    /// Inodes with data, nodes or indirect blocks behind the end.
    files: Vec<Ino>,
    /// Attribute blocks behind the end, and the inodes that share each.
    attributes: BTreeMap<u64, Vec<Ino>>,
    /// The journal lies behind the end, at least in part.
    journal: bool,
    /// Blocks of files behind the end.
    blocks: u64,
}

/// The mover.
struct Mover<'v> {
    volume: &'v mut Volume,
    log: Log,
    free: Free,
    /// The first block that goes.
    end: u64,
    /// Blocks whose bits change with the transaction: first, count, used.
    marks: Vec<(u64, u64, bool)>,
    /// Blocks of files that were copied, and how many there are.
    copied: u64,
    to_copy: u64,
    /// The progress is told again when so many are copied.
    tell_at: u64,
    /// Copies that are ordered; made before the transaction that has the files refer to them.
    copies: CopyBatch,
    /// The bytes that are copied are read by nothing: a rehearsal, and the contents of a file.
    elides: bool,
}

/// Makes the volume smaller. It has a journal, which is empty.
pub(super) fn shrink(volume: &mut Volume, target: &Superblock) -> Result<()> {
    let mut log = empty_end(volume, &target.geo, true)?;
    cut(volume, target, &mut log)
}

/// As [`shrink`], of a volume without a journal that has no room in front of the new end for one of this many blocks.
///
/// # Errors
/// `NoSpace` also where the journal would not lie in the last group of the new size, behind its end.
pub(super) fn shrink_before_journal(
    volume: &mut Volume,
    target: &Superblock,
    blocks: u64,
) -> Result<()> {
    let old = volume.sb.geo.clone();
    let end = target.geo.blocks_count;
    let until = (end + super::journal_file::with_nodes(&old, blocks)).min(old.blocks_count);
    let wide = super::shape::target(&volume.sb, until << old.block_bits)?;
    if wide.geo.groups_count != target.geo.groups_count || wide.geo.blocks_count != until {
        return Err(ReshapeError::NoSpace(
            "a journal for the time of the change does not fit behind the end".into(),
        ));
    }
    // Behind what the volume has in between; where that is its end, behind the new one.
    volume.floor = until;
    match volume.add_journal(blocks) {
        Err(ReshapeError::NoSpace(_)) => {
            volume.floor = end;
            volume.add_journal(blocks)?;
        }
        added => added?,
    }
    empty_end(volume, &target.geo, false)?;
    (volume.floor, volume.limit) = (end, Some(until));
    let map = volume.runs(Ino::JOURNAL, &volume.inode(Ino::JOURNAL)?)?;
    let within = |start: u64, len: u64| start >= end && start + len <= until;
    let stays = map.runs.iter().all(|run| within(run.start, run.len))
        && map.nodes.iter().all(|node| within(*node, 1));
    if !stays {
        volume.replace_journal(blocks)?;
    }
    if until < old.blocks_count {
        let mut log = Log::open(volume)?
            .ok_or_else(|| ReshapeError::Damaged("there is no journal".into()))?;
        cut(volume, &wide, &mut log)?;
    }
    volume.remove_journal()?;
    stage_cut(volume, target.geo.blocks_count)?;
    volume.commit_unlogged()
}

/// Moves all in front of the new end, but the journal where that may stay. The journal, which is empty.
fn empty_end(volume: &mut Volume, new: &Geometry, moves_journal: bool) -> Result<Log> {
    let end = new.blocks_count;
    check(volume, new)?;
    let enlarged = super::renumber::renumber(volume, new)?;
    if enlarged.is_some() && !moves_journal {
        return Err(ReshapeError::NoSpace(
            "the journal for the time of the change is too small".into(),
        ));
    }
    let doomed = look(volume, new)?;
    volume.limit = Some(end);
    place_metadata(volume, new)?;
    if moves_journal && (doomed.journal || enlarged.is_some()) {
        let log = Log::open(volume)?;
        let blocks = enlarged.or(log.map(|log| log.len() as u64));
        volume.replace_journal(blocks.unwrap_or(0))?;
    }
    let log =
        Log::open(volume)?.ok_or_else(|| ReshapeError::Damaged("there is no journal".into()))?;
    let free = Free::new(volume, 0..end)?;
    let copies = volume.disk.copies();
    let mut mover = Mover {
        volume,
        log,
        free,
        end,
        marks: Vec::new(),
        copied: 0,
        to_copy: doomed.blocks,
        tell_at: 0,
        copies,
        elides: false,
    };
    for (block, owners) in &doomed.attributes {
        mover.attribute_block(*block, owners)?;
        mover.commit_if_full()?;
    }
    for ino in &doomed.files {
        mover.file(*ino)?;
        mover.commit_if_full()?;
    }
    mover.resize_list()?;
    mover.commit()?;
    Ok(mover.log)
}

/// Refuses what cannot be made smaller.
fn check(volume: &Volume, new: &Geometry) -> Result<()> {
    let geo = &volume.sb.geo;
    let end = new.blocks_count;
    if geo.cluster_ratio > 1 {
        return Err(ReshapeError::Unsupported(
            "volumes with bigalloc are not made smaller".into(),
        ));
    }
    let flexible = geo.features.has_incompat(Incompat::FLEX_BG);
    for group in new.groups().filter(|_| !flexible) {
        let desc = volume.desc(group)?;
        let table = desc.inode_table.0 + u64::from(geo.inode_table_blocks);
        if desc.block_bitmap.0 >= end || desc.inode_bitmap.0 >= end || table > end {
            return Err(ReshapeError::Unsupported(format!(
                "the bitmaps or the inode table of group {group} lie behind block {end}"
            )));
        }
    }
    if volume.sb.mmp_block()?.is_some_and(|block| block.0 >= end) {
        return Err(ReshapeError::Unsupported(format!(
            "the block of the multiple-mount protection lies behind block {end}"
        )));
    }
    volume.scan_inodes(&mut |ino, inode| {
        let bad = ino == Ino::BAD
            && volume
                .runs(ino, inode)?
                .runs
                .iter()
                .any(|run| run.start + run.len > end);
        match bad {
            true => Err(ReshapeError::Unsupported(
                "there are bad blocks in the part that would go".into(),
            )),
            false => Ok(()),
        }
    })
}

/// Finds what has to move.
fn look(volume: &Volume, new: &Geometry) -> Result<Doomed> {
    let end = new.blocks_count;
    let mut doomed = Doomed::default();
    let journal = Ino(volume.sb.raw.journal_inum.get());
    volume.scan_inodes(&mut |ino, inode| {
        if inode.file_acl.0 >= end {
            doomed
                .attributes
                .entry(inode.file_acl.0)
                .or_default()
                .push(ino);
        }
        if ino == Ino::RESIZE {
            return Ok(());
        }
        let map = volume.runs(ino, inode)?;
        let behind = map.runs.iter().any(|run| run.start + run.len > end)
            || map.nodes.iter().any(|node| *node >= end);
        if !behind {
            return Ok(());
        }
        if ino == journal {
            doomed.journal = true;
        } else {
            let behind = map.runs.iter().map(|run| {
                let last = run.start + run.len;
                last.saturating_sub(run.start.max(end))
            });
            doomed.blocks += behind.sum::<u64>();
            doomed.files.push(ino);
        }
        Ok(())
    })?;
    Ok(doomed)
}

/// Bitmaps and tables of flexible groups: those of groups that stay move in front of the end, those of groups that go move behind it, so that
/// files have the room in front. One that finds no room behind the end stays until its group goes.
fn place_metadata(volume: &mut Volume, new: &Geometry) -> Result<()> {
    let geo = volume.sb.geo.clone();
    let end = new.blocks_count;
    if !geo.features.has_incompat(Incompat::FLEX_BG) {
        return Ok(());
    }
    let mut log =
        Log::open(volume)?.ok_or_else(|| ReshapeError::Damaged("there is no journal".into()))?;
    let mut front = Free::new(volume, 0..end)?;
    let mut behind = Free::new(volume, end..geo.blocks_count)?;
    let mut marks = Vec::new();
    for group in geo.groups() {
        volume.tell_group(Phase::Metadata, group)?;
        let stays = group.0 < new.groups_count;
        let mut desc = volume.desc(group)?;
        let table = u64::from(geo.inode_table_blocks);
        for (place, len) in [
            (&mut desc.block_bitmap, 1),
            (&mut desc.inode_bitmap, 1),
            (&mut desc.inode_table, table),
        ] {
            let first = place.0;
            let right = if stays {
                first + len <= end
            } else {
                first >= end
            };
            if right {
                continue;
            }
            let to = match stays {
                true => front.take_whole(len).ok_or_else(|| {
                    ReshapeError::NoSpace(format!("there is no room for metadata of group {group}"))
                })?,
                false => match behind.take_whole(len) {
                    Some(to) => to,
                    None => continue,
                },
            };
            // No inode of a group that goes is in use.
            if len == table && !stays {
                volume.disk.zero_now(to, len, "inode table")?;
            } else {
                let bytes = volume.disk.read_run(first, len, "metadata")?;
                volume.disk.write_now(to, &bytes, "metadata")?;
            }
            *place = BlockNo(to);
            marks.extend([(to, len, true), (first, len, false)]);
        }
        volume.descs[group.0 as usize] = desc;
        // The following steps read bitmaps where they are now.
        if marks.len() >= METADATA_BATCH {
            commit_marks(volume, &mut log, &mut marks)?;
        }
    }
    commit_marks(volume, &mut log, &mut marks)
}

/// Commits what is staged, with bits that change.
fn commit_marks(
    volume: &mut Volume,
    log: &mut Log,
    marks: &mut Vec<(u64, u64, bool)>,
) -> Result<()> {
    if marks.is_empty() && volume.disk.staged().is_empty() {
        return Ok(());
    }
    volume.mark_many(&std::mem::take(marks))?;
    volume.count_free();
    volume.stage_descs()?;
    volume.commit_through(log, Order::Log)
}

impl Mover<'_> {
    /// Takes free blocks for this many, copies nothing.
    fn take(&mut self, want: u64) -> Result<(u64, u64)> {
        let (start, len) = self.free.take(want)?;
        self.marks.push((start, len, true));
        Ok((start, len))
    }

    fn give_up(&mut self, start: u64, len: u64) {
        self.marks.push((start, len, false));
    }

    /// Orders a copy. See [`Mover::finish_copies`].
    fn copy(&mut self, from: u64, to: u64, len: u64) -> Result<()> {
        let disk = &self.volume.disk;
        let block = disk.block_len() as u64;
        let piece = (COPY_BYTES / block).max(1);
        let mut at = 0;
        while at < len {
            // Files without extents are copied block by block.
            if self.copied >= self.tell_at {
                let total = self.to_copy.max(self.copied) * block;
                disk.watch.tell(Phase::Data, self.copied * block, total)?;
                self.tell_at = self.copied + piece;
            }
            let count = piece.min(len - at);
            // Otherwise it is planned only.
            if !self.elides {
                disk.copy(&mut self.copies, from + at, to + at, count, WHAT)?;
            }
            at += count;
            self.copied += count;
        }
        Ok(())
    }

    fn commit_if_full(&mut self) -> Result<()> {
        // A bitmap for each mark at worst, and all descriptors.
        let groups = self.volume.sb.geo.groups_count as usize;
        let staged = self.volume.disk.staged().len()
            + self.marks.len().min(groups)
            + self.volume.sb.geo.desc_blocks as usize
            + 2;
        if staged >= BATCH_BLOCKS || !self.log.fits(staged * 2) {
            return self.commit();
        }
        Ok(())
    }

    /// Makes the copies that are ordered.
    fn finish_copies(&mut self) -> Result<()> {
        self.copies.finish().map_err(ReshapeError::device(WHAT))
    }

    fn commit(&mut self) -> Result<()> {
        self.finish_copies()?;
        commit_marks(self.volume, &mut self.log, &mut self.marks)
    }

    /// Moves an attribute block. All its owners change in one transaction.
    fn attribute_block(&mut self, block: u64, owners: &[Ino]) -> Result<()> {
        let geo = self.volume.sb.geo.clone();
        let mut bytes = self.volume.disk.read(block, "attributes")?;
        xattr::verify_block_checksum(&bytes, BlockNo(block), &geo)?;
        let (to, _) = self.take(1)?;
        xattr::set_block_checksum(&mut bytes, BlockNo(to), &geo)?;
        self.volume.disk.write_now(to, &bytes, "attributes")?;
        self.give_up(block, 1);
        for ino in owners {
            let mut inode = self.volume.inode(*ino)?;
            inode.file_acl = BlockNo(to);
            self.volume.stage_inode(*ino, Some(&inode))?;
        }
        Ok(())
    }

    /// Moves what a file has behind the end.
    fn file(&mut self, ino: Ino) -> Result<()> {
        let mut inode = self.volume.inode(ino)?;
        let is_orphans = ino.0 == self.volume.sb.raw.orphan_file_inum.get();
        let is_data = inode.kind() == Some(FileKind::Regular) && !is_orphans;
        self.elides = self.volume.disk.rehearses && is_data;
        if inode.flags.contains(InodeFlags::EXTENTS) {
            self.extents(ino, &mut inode)?;
        } else {
            self.block_map(&mut inode)?;
        }
        self.elides = false;
        if is_orphans {
            self.finish_copies()?;
            self.orphan_tails(ino, &inode)?;
        }
        self.volume.stage_inode(ino, Some(&inode))
    }

    /// The checksum of an orphan file's block depends on its place.
    fn orphan_tails(&self, ino: Ino, inode: &Inode) -> Result<()> {
        let geo = &self.volume.sb.geo;
        let seed = geo.inode_seed(ino, inode.generation);
        for run in self.volume.runs(ino, inode)?.runs {
            // Those in front of the end have not moved: they stay the same.
            for block in run.start..run.start + run.len {
                let mut bytes = self.volume.disk.read(block, WHAT)?;
                let before = bytes.clone();
                orphan_file::write_tail(&mut bytes, BlockNo(block), geo, seed).ok_or_else(
                    || ReshapeError::Damaged("a block of the orphan file is too short".into()),
                )?;
                if bytes != before {
                    self.volume.disk.write_now(block, &bytes, WHAT)?;
                }
            }
        }
        Ok(())
    }

    fn extents(&mut self, ino: Ino, inode: &mut Inode) -> Result<()> {
        let (list, nodes) = self.volume.extents(ino, inode)?;
        let mut moved: Vec<Extent> = Vec::with_capacity(list.len());
        for extent in list {
            let kept = self.end.saturating_sub(extent.physical.0);
            let kept = kept.min(u64::from(extent.len)) as u32;
            if kept > 0 {
                push(
                    &mut moved,
                    Extent {
                        len: kept,
                        ..extent
                    },
                );
            }
            let mut done = kept;
            while done < extent.len {
                let (start, len) = self.take(u64::from(extent.len - done))?;
                let from = extent.physical.0 + u64::from(done);
                if !extent.unwritten {
                    self.copy(from, start, len)?;
                }
                self.give_up(from, len);
                push(
                    &mut moved,
                    Extent {
                        logical: FileBlock(extent.logical.0 + u64::from(done)),
                        physical: BlockNo(start),
                        len: len as u32,
                        unwritten: extent.unwritten,
                    },
                );
                done += len as u32;
            }
        }
        let new_nodes = self.write_tree(ino, inode, &moved)?;
        for node in &nodes {
            self.give_up(*node, 1);
        }
        let sectors = u64::from(self.volume.sb.geo.block_size / 512);
        inode.sectors =
            (inode.sectors + new_nodes * sectors).saturating_sub(nodes.len() as u64 * sectors);
        Ok(())
    }

    /// Writes the nodes of a tree of these extents, and its root into the inode. How many nodes there are.
    fn write_tree(&mut self, ino: Ino, inode: &mut Inode, list: &[Extent]) -> Result<u64> {
        let geo = self.volume.sb.geo.clone();
        let seed = geo.inode_seed(ino, inode.generation);
        let too_deep = || ReshapeError::Damaged(format!("inode {ino} has too many extents"));
        let root = usize::from(ROOT_ENTRIES);
        if list.len() <= root {
            write_leaf(&mut inode.block, list).ok_or_else(too_deep)?;
            return Ok(0);
        }
        let room = usize::from(max_entries(geo.block_len()));
        let mut count = 0;
        let mut level: Vec<ExtentIndex> = Vec::new();
        for chunk in list.chunks(room) {
            let (block, _) = self.take(1)?;
            let mut bytes = vec![0; geo.block_len()];
            write_leaf(&mut bytes, chunk).ok_or_else(too_deep)?;
            extent::set_checksum(&mut bytes, &geo, seed)?;
            self.volume.disk.write_now(block, &bytes, WHAT)?;
            count += 1;
            level.push(ExtentIndex {
                logical: chunk[0].logical,
                child: BlockNo(block),
            });
        }
        let mut depth = 1;
        while level.len() > root {
            let mut above = Vec::new();
            for chunk in level.chunks(room) {
                let (block, _) = self.take(1)?;
                let mut bytes = vec![0; geo.block_len()];
                write_inner(&mut bytes, depth, chunk).ok_or_else(too_deep)?;
                extent::set_checksum(&mut bytes, &geo, seed)?;
                self.volume.disk.write_now(block, &bytes, WHAT)?;
                count += 1;
                above.push(ExtentIndex {
                    logical: chunk[0].logical,
                    child: BlockNo(block),
                });
            }
            level = above;
            depth += 1;
        }
        if depth > MAX_DEPTH {
            return Err(too_deep());
        }
        write_inner(&mut inode.block, depth, &level).ok_or_else(too_deep)?;
        Ok(count)
    }

    fn block_map(&mut self, inode: &mut Inode) -> Result<()> {
        let list: Vec<u32> = words(&inode.block).collect();
        for (slot, block) in list.into_iter().enumerate() {
            let level = (slot + 1).saturating_sub(DIRECT) as u32;
            let to = self.mapped(u64::from(block), level)?;
            inode.block[slot * 4..slot * 4 + 4].copy_from_slice(&(to as u32).to_le_bytes());
        }
        Ok(())
    }

    /// Where a block of a block map lies from now on, with all that it lists.
    fn mapped(&mut self, block: u64, level: u32) -> Result<u64> {
        if block == 0 {
            return Ok(0);
        }
        if level == 0 {
            if block < self.end {
                return Ok(block);
            }
            let (to, _) = self.take(1)?;
            self.copy(block, to, 1)?;
            self.give_up(block, 1);
            return Ok(to);
        }
        let before = self.volume.disk.read(block, WHAT)?;
        let mut after = before.clone();
        let list: Vec<u32> = words(&before).collect();
        for (slot, child) in list.into_iter().enumerate() {
            let to = self.mapped(u64::from(child), level - 1)?;
            after[slot * 4..slot * 4 + 4].copy_from_slice(&(to as u32).to_le_bytes());
        }
        if after == before && block < self.end {
            return Ok(block);
        }
        let (to, _) = self.take(1)?;
        self.volume.disk.write_now(to, &after, WHAT)?;
        self.give_up(block, 1);
        Ok(to)
    }

    /// Moves the list of the resize inode.
    fn resize_list(&mut self) -> Result<()> {
        if !self.volume.sb.features().has_compat(Compat::RESIZE_INODE) {
            return Ok(());
        }
        let mut inode = self.volume.inode(Ino::RESIZE)?;
        let at = (DIRECT + 1) * 4;
        let block = words(&inode.block[at..]).next().map_or(0, u64::from);
        if block < self.end {
            return Ok(());
        }
        let (to, _) = self.take(1)?;
        self.copy(block, to, 1)?;
        self.give_up(block, 1);
        inode.block[at..at + 4].copy_from_slice(&(to as u32).to_le_bytes());
        self.volume.stage_inode(Ino::RESIZE, Some(&inode))
    }
}

/// Adds an extent to a list, or makes the last one longer.
fn push(list: &mut Vec<Extent>, next: Extent) {
    if let Some(last) = list.last_mut() {
        let joins = last.end() == next.logical
            && last.physical.0 + u64::from(last.len) == next.physical.0
            && last.unwritten == next.unwritten
            && last.len + next.len <= Extent::max_len(last.unwritten);
        if joins {
            last.len += next.len;
            return;
        }
    }
    list.push(next);
}

/// Takes the groups away that are empty now, and the end of the last one.
fn cut(volume: &mut Volume, target: &Superblock, log: &mut Log) -> Result<()> {
    stage_cut(volume, target.geo.blocks_count)?;
    volume.commit_through(log, Order::Superblock)
}

/// Stages what [`cut`] changes. The volume will have exactly this many blocks, and no file has any behind them.
pub(super) fn stage_cut(volume: &mut Volume, blocks: u64) -> Result<()> {
    let old = volume.sb.geo.clone();
    // Changes of the superblock by the moves stay: counts, times, the journal.
    let target = Superblock::from_raw(super::shape::shaped(&volume.sb, blocks)?, None)?;
    let gone: Vec<GroupNo> = (target.geo.groups_count..old.groups_count)
        .map(GroupNo)
        .collect();
    let mut freed = Vec::new();
    for group in &gone {
        let desc = volume.desc(*group)?;
        for (first, len) in [
            (desc.block_bitmap.0, 1),
            (desc.inode_bitmap.0, 1),
            (desc.inode_table.0, u64::from(old.inode_table_blocks)),
        ] {
            if first < blocks {
                freed.push((first, len, false));
            }
        }
    }
    let last = GroupNo(target.geo.groups_count - 1);
    let mut last_bits = volume.block_bitmap(last)?;
    volume.sb = target;
    let geo = volume.sb.geo.clone();
    volume.descs.truncate(geo.groups_count as usize);
    set_padding(&mut last_bits, geo.group_clusters(last) as usize);
    volume.stage_block_bitmap(last, last_bits)?;
    for group in geo.groups() {
        let base = geo.group_first_block(group).0;
        let (had, has) = (old.base_meta_blocks(group), geo.base_meta_blocks(group));
        if has > had {
            return Err(ReshapeError::Unsupported(format!(
                "group {group} has no room for a copy of the superblock"
            )));
        }
        if has < had {
            freed.push((base + u64::from(has), u64::from(had - has), false));
        }
    }
    volume.mark_many(&freed)?;
    super::shape::change_resize_inode(volume, &old)?;
    super::shape::count_overhead(volume, &old);
    volume.count_free();
    volume.follow()?;
    volume.stage_descs()
}
