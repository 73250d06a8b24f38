//! Making and removing the journal of a volume.
//!
//! # Crash order
//! Making: the journal's blocks, which are free, hold an empty log; then its first transaction, which takes the blocks and the inode. Inode 8
//! is written before that transaction is committed by the superblock that names the journal. Until then it is a reserved inode that no
//! feature uses: checkers clear it.
//!
//! Order of removal: the superblock without a journal, marked unclean; the blocks and the inode; the clean superblock. In between, a
//! checker finds blocks that are taken and belong to no file, or the other way round a stale checksum of a bitmap. Neither costs data.
//!
//! Replacing, where there is room for both: the new journal's blocks, with an empty log; a transaction of the old one that takes them; the inode,
//! by one write while the old log is empty; a transaction of the new one that gives the old blocks back. In between, blocks are taken and belong
//! to no file.
//!
//! A volume that had no journal and was given one for a change keeps it after a crash. That is harmless.

use blockwright_ondisk::ext4::extent::{
    self, Extent, ExtentIndex, ROOT_ENTRIES, max_entries, write_inner, write_leaf,
};
use blockwright_ondisk::ext4::jbd2::{
    self, JournalBlockType, JournalSuperblock, RawJournalSuperblock, SUPERBLOCK_SIZE,
};
use blockwright_ondisk::ext4::superblock::State;
use blockwright_ondisk::ext4::{
    BlockNo, Compat, FileBlock, Geometry, Incompat, Ino, Inode, InodeFlags, RawSuperblock,
};
use zerocopy::IntoBytes;

use super::commit::Order;
use super::files::DIRECT;
use super::log::Log;
use super::volume::{Volume, bit};
use crate::error::{ReshapeError, Result};
pub(crate) use crate::now;

/// Fewest blocks of a journal that the kernel and e2fsck accept.
pub(crate) const JOURNAL_BLOCKS_MIN: u64 = 1024;
/// Most blocks of a journal, as tools make them.
pub(crate) const JOURNAL_BLOCKS_MAX: u64 = 10_240_000;
/// `s_jnl_backup_type` of a copy of the inode's block list.
const BACKUP_BLOCKS: u8 = 1;
/// Extents that the root of an extent tree has room for.
const ROOT_MAX: usize = ROOT_ENTRIES as usize;

/// The most blocks of a file that [`Volume::write_block_map`] lists: two levels of indirect blocks.
pub(crate) fn mapped_blocks_max(geo: &Geometry) -> u64 {
    let per = geo.block_len() as u64 / 4;
    DIRECT as u64 + per + per * per
}

/// This many blocks of a file, and the most blocks that list them in a volume without extents.
pub(crate) fn with_nodes(geo: &Geometry, blocks: u64) -> u64 {
    blocks + blocks.div_ceil(geo.block_len() as u64 / 4) + 2
}

/// Blocks of a journal by default, for a volume of this many blocks, as `mke2fs` has it.
pub(crate) fn default_blocks(blocks: u64) -> u64 {
    const STEPS: [(u64, u64); 7] = [
        (32_768, 1024),
        (256 << 10, 4096),
        (512 << 10, 8192),
        (4096 << 10, 16_384),
        (8192 << 10, 32_768),
        (16_384 << 10, 65_536),
        (32_768 << 10, 131_072),
    ];
    let found = STEPS.iter().find(|(below, _)| blocks < *below);
    found.map_or(262_144, |(_, size)| *size)
}

/// A journal that nothing refers to yet.
struct NewJournal {
    inode: Inode,
    log: Log,
}

impl Volume {
    /// Writes an empty journal of this many blocks into free blocks, makes an inode for it, and stages that the blocks are taken. Nothing refers
    /// to it yet.
    fn lay_journal(&mut self, blocks: u64) -> Result<NewJournal> {
        let geo = self.sb.geo.clone();
        let mut inode = own_inode(&geo);
        let data = self.lay_blocks(Ino::JOURNAL, &mut inode, blocks, "journal")?;
        let head = journal_head(&self.sb.raw, geo.block_size, blocks);
        let mut first = vec![0; geo.block_len()];
        first[..SUPERBLOCK_SIZE].copy_from_slice(head.as_bytes());
        self.disk.write_now(data[0], &first, "journal")?;
        let sb = JournalSuperblock::parse(&first, Some(blocks))?;
        Ok(NewJournal {
            inode,
            log: Log::new(data, sb),
        })
    }

    /// Takes so many free blocks for a file, zeroed, and lists them in its inode. That they are taken is staged; the inode is the caller's. The
    /// file's blocks, in order.
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn lay_blocks(
        &mut self,
        ino: Ino,
        inode: &mut Inode,
        blocks: u64,
        what: &'static str,
    ) -> Result<Vec<u64>> {
        let geo = self.sb.geo.clone();
        let extents = geo.features.has_incompat(Incompat::EXTENT);
        let per = geo.block_len() / 4;
        // Indirect blocks, where there are no extents.
        let nodes = match extents {
            true => 0,
            false => {
                let rest = (blocks as usize).saturating_sub(DIRECT + per);
                usize::from(blocks as usize > DIRECT) + usize::from(rest > 0) + rest.div_ceil(per)
            }
        };
        // With extents: a node, when the file is in more pieces than the inode has room for. Nodes and data share no cluster.
        let most = usize::from(max_entries(geo.block_len())) / 2;
        let rounded = blocks.next_multiple_of(u64::from(geo.cluster_ratio));
        let found = match extents {
            true => self.find_free(blocks, ROOT_MAX / 2),
            false => self.find_free(rounded + nodes as u64, usize::MAX),
        };
        let (pieces, nodes) = match found {
            Err(ReshapeError::NoSpace(_)) if extents => (self.find_free(rounded + 1, most)?, 1),
            found => (found?, nodes),
        };
        debug_assert!(!extents || nodes <= 1);
        let all: Vec<u64> = pieces.iter().flat_map(|(s, n)| *s..s + n).collect();
        let data = &all[..blocks as usize];
        let nodes = &all[rounded as usize..][..nodes];
        for (start, count) in &pieces {
            self.disk.zero_now(*start, *count, what)?;
        }
        inode.size = blocks << geo.block_bits;
        inode.sectors =
            (clusters(&pieces, geo.cluster_bits) << geo.cluster_bits) << (geo.block_bits - 9);
        if extents {
            inode.flags |= InodeFlags::EXTENTS;
            let list = extent_list(&pieces, blocks);
            let too_many = || ReshapeError::NoSpace("free blocks are in too many pieces".into());
            match nodes.first() {
                None => write_leaf(&mut inode.block, &list).ok_or_else(too_many)?,
                Some(node) => {
                    let mut bytes = vec![0; geo.block_len()];
                    write_leaf(&mut bytes, &list).ok_or_else(too_many)?;
                    let seed = geo.inode_seed(ino, inode.generation);
                    extent::set_checksum(&mut bytes, &geo, seed)?;
                    self.disk.write_now(*node, &bytes, what)?;
                    let index = ExtentIndex {
                        logical: FileBlock(0),
                        child: BlockNo(*node),
                    };
                    write_inner(&mut inode.block, 1, &[index]).ok_or_else(too_many)?;
                }
            }
        } else {
            self.write_block_map(inode, data, nodes)?;
        }
        for (start, count) in &pieces {
            self.mark_blocks(*start, *count, true)?;
        }
        Ok(data.to_vec())
    }

    /// Writes the journal's inode at once. It lies in one sector.
    fn write_journal_inode(&mut self, inode: &Inode) -> Result<()> {
        self.stage_inode(Ino::JOURNAL, Some(inode))?;
        let (block, _) = self.inode_place(Ino::JOURNAL)?;
        let table = self.disk.read(block, "inode table")?;
        self.disk.write_now(block, &table, "journal")?;
        self.disk.flush("journal")
    }

    /// Gives the volume a journal of this many blocks.
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn add_journal(&mut self, blocks: u64) -> Result<()> {
        let NewJournal { inode, mut log } = self.lay_journal(blocks)?;
        // Before the superblock names the journal, its inode must be there.
        self.write_journal_inode(&inode)?;
        self.name_journal(Some(&inode));
        self.count_free();
        self.follow()?;
        self.stage_descs()?;
        self.commit_through(&mut log, Order::Superblock)
    }

    /// Takes the volume's journal away, which must be empty. One on another device is detached.
    pub fn remove_journal(&mut self) -> Result<()> {
        if Log::open(self)?.is_some_and(|log| log.is_elsewhere()) {
            return self.detach_journal();
        }
        let ino = Ino(self.sb.raw.journal_inum.get());
        let inode = self.inode(ino)?;
        let map = self.runs(ino, &inode)?;
        self.name_journal(None);
        self.follow()?;
        let mut features = self.sb.raw.features();
        features.compat.remove(Compat::FAST_COMMIT);
        self.sb.raw.set_features(features);
        self.follow()?;
        self.free_map(&map)?;
        self.stage_inode(ino, None)?;
        self.count_free();
        self.stage_descs()?;
        let mut dirty = self.sb.raw;
        dirty.state.set((dirty.state() - State::CLEAN).bits());
        self.write_super(&dirty, false)?;
        self.disk.flush("superblock")?;
        let staged = self.disk.staged();
        let images = staged
            .iter()
            .map(|(block, image)| (*block, image.as_slice()));
        self.disk.write_all(images, "metadata")?;
        self.disk.flush("metadata")?;
        self.disk.clear_staged();
        self.commit_super()
    }

    /// Gives the volume another journal of this many blocks in place of its own, which must be empty.
    ///
    /// # Errors
    /// `NoSpace`: the volume has a journal of the old size, somewhere. `Unsupported`: one on another device is not replaced.
    pub fn replace_journal(&mut self, blocks: u64) -> Result<()> {
        if let Some(log) = Log::open(self)?.filter(Log::is_elsewhere) {
            return Err(ReshapeError::Unsupported(format!(
                "the change needs a journal of {blocks} blocks, and the one on another device has {}: detach it first (features=^has_journal)",
                log.len()
            )));
        }
        match self.swap_journal(blocks) {
            Err(ReshapeError::NoSpace(_)) => {}
            swapped => return swapped,
        }
        // There is no room for both.
        let had = Log::open(self)?.map_or(0, |log| log.len() as u64);
        let fast = self.sb.features().has_compat(Compat::FAST_COMMIT);
        self.remove_journal()?;
        let added = self.add_journal(blocks);
        if added.is_err() {
            let limit = self.limit.take();
            self.add_journal(had)?;
            self.limit = limit;
        }
        if fast {
            let mut features = self.sb.raw.features();
            features.compat |= Compat::FAST_COMMIT;
            self.sb.raw.set_features(features);
            self.follow()?;
            self.commit_super()?;
        }
        added
    }

    /// As [`Volume::replace_journal`], where there is room for both journals: the volume has one at every moment.
    fn swap_journal(&mut self, blocks: u64) -> Result<()> {
        let no_room = || ReshapeError::NoSpace("there is no room for a second journal".into());
        if self.sb.raw.journal_inum.get() != Ino::JOURNAL.0 {
            return Err(no_room());
        }
        let mut old = Log::open(self)?.ok_or_else(no_room)?;
        let old_map = self.runs(Ino::JOURNAL, &self.inode(Ino::JOURNAL)?)?;
        let NewJournal { inode, mut log } = self.lay_journal(blocks)?;
        self.count_free();
        self.stage_descs()?;
        if !old.fits(self.disk.staged().len() + 1) {
            self.disk.clear_staged();
            self.read_descs()?;
            self.count_free();
            return Err(no_room());
        }
        self.commit_through(&mut old, Order::Log)?;
        self.write_journal_inode(&inode)?;
        self.name_journal(Some(&inode));
        self.follow()?;
        self.free_map(&old_map)?;
        self.count_free();
        self.stage_descs()?;
        self.commit_through(&mut log, Order::Log)
    }

    /// What the superblock says of the journal.
    pub fn name_journal(&mut self, inode: Option<&Inode>) {
        name_journal(&mut self.sb.raw, inode);
    }

    /// Free runs of at least `blocks` blocks together, in at most this many pieces: whole clusters, the longest ones.
    fn find_free(&self, blocks: u64, pieces_max: usize) -> Result<Vec<(u64, u64)>> {
        let geo = &self.sb.geo;
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for group in geo.groups() {
            if self.desc(group)?.free_clusters == 0 {
                continue;
            }
            let bits = self.block_bitmap(group)?;
            let base = geo.group_first_block(group).0;
            // A last cluster that the volume's end cuts is left alone.
            let end = self.limit.unwrap_or(geo.blocks_count).saturating_sub(base);
            let count = u64::from(geo.group_blocks(group)).min(end) >> geo.cluster_bits;
            let front = self
                .floor
                .saturating_sub(base)
                .div_ceil(u64::from(geo.cluster_ratio));
            for n in front as usize..count as usize {
                if bit(&bits, n) {
                    continue;
                }
                let start = base + ((n as u64) << geo.cluster_bits);
                let len = u64::from(geo.cluster_ratio);
                match runs.last_mut() {
                    Some((s, l)) if *s + *l == start => *l += len,
                    _ => runs.push((start, len)),
                }
            }
            if runs.iter().any(|(_, len)| *len >= blocks) {
                break;
            }
        }
        runs.sort_by_key(|(start, len)| (u64::MAX - len, *start));
        let mut found = Vec::new();
        let mut missing = blocks;
        for (start, len) in runs.into_iter().take(pieces_max) {
            let len = len.min(missing.next_multiple_of(u64::from(geo.cluster_ratio)));
            found.push((start, len));
            missing = missing.saturating_sub(len);
            if missing == 0 {
                return Ok(found);
            }
        }
        Err(ReshapeError::NoSpace(format!(
            "there are no {blocks} free blocks in few enough pieces"
        )))
    }

    /// Writes the indirect blocks of a file, which are free, and lists them in the inode.
    fn write_block_map(&self, inode: &mut Inode, data: &[u64], nodes: &[u64]) -> Result<()> {
        let per = self.sb.geo.block_len() / 4;
        let mut put = |slot: usize, block: u64| {
            inode.block[slot * 4..slot * 4 + 4].copy_from_slice(&(block as u32).to_le_bytes());
        };
        let (direct, rest) = data.split_at(data.len().min(DIRECT));
        for (slot, block) in direct.iter().enumerate() {
            put(slot, *block);
        }
        let (single, rest) = rest.split_at(rest.len().min(per));
        if rest.len() > per * per {
            return Err(ReshapeError::Damaged(
                "a file of the volume's own is too large for a volume without extents".into(),
            ));
        }
        let list = |blocks: &[u64]| {
            let mut bytes = vec![0; per * 4];
            for (word, block) in bytes.chunks_exact_mut(4).zip(blocks) {
                word.copy_from_slice(&(*block as u32).to_le_bytes());
            }
            bytes
        };
        if !single.is_empty() {
            put(DIRECT, nodes[0]);
            self.disk
                .write_now(nodes[0], &list(single), "indirect block")?;
        }
        if !rest.is_empty() {
            put(DIRECT + 1, nodes[1]);
            self.disk
                .write_now(nodes[1], &list(&nodes[2..]), "indirect block")?;
            for (node, blocks) in nodes[2..].iter().zip(rest.chunks(per)) {
                self.disk
                    .write_now(*node, &list(blocks), "indirect block")?;
            }
        }
        Ok(())
    }
}

/// Makes a superblock name the journal in this inode, or none.
pub(super) fn name_journal(raw: &mut RawSuperblock, inode: Option<&Inode>) {
    let mut features = raw.features();
    features.compat.set(Compat::HAS_JOURNAL, inode.is_some());
    raw.set_features(features);
    raw.journal_inum.set(inode.map_or(0, |_| Ino::JOURNAL.0));
    raw.journal_uuid = [0; 16];
    raw.journal_dev.set(0);
    raw.jnl_backup_type = inode.map_or(0, |_| BACKUP_BLOCKS);
    raw.jnl_blocks = Default::default();
    if let Some(inode) = inode {
        for (word, bytes) in raw.jnl_blocks.iter_mut().zip(inode.block.chunks_exact(4)) {
            word.set(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
        }
        raw.jnl_blocks[15].set((inode.size >> 32) as u32);
        raw.jnl_blocks[16].set(inode.size as u32);
    }
}

/// An inode of a file that only the superblock knows: of the super user, without blocks.
pub(super) fn own_inode(geo: &Geometry) -> Inode {
    let mut inode = Inode::new(geo, 0o100_600);
    inode.links = 1;
    let now = now();
    for time in [&mut inode.mtime, &mut inode.ctime, &mut inode.atime] {
        time.secs = now;
    }
    inode
}

fn clusters(pieces: &[(u64, u64)], bits: u32) -> u64 {
    pieces.iter().map(|(_, len)| len >> bits).sum()
}

/// Extents of a file that lies in these pieces.
fn extent_list(pieces: &[(u64, u64)], blocks: u64) -> Vec<Extent> {
    let mut list = Vec::new();
    let mut logical = 0;
    for (start, len) in pieces {
        let mut start = *start;
        let mut len = (*len).min(blocks - logical);
        while len > 0 {
            let piece = len.min(u64::from(Extent::max_len(false)));
            list.push(Extent {
                logical: FileBlock(logical),
                physical: BlockNo(start),
                len: piece as u32,
                unwritten: false,
            });
            logical += piece;
            start += piece;
            len -= piece;
        }
    }
    list
}

/// The superblock of an empty journal.
fn journal_head(sb: &RawSuperblock, block_size: u32, blocks: u64) -> RawJournalSuperblock {
    let mut raw = RawJournalSuperblock::zeroed();
    raw.header.magic.set(jbd2::MAGIC);
    raw.header
        .blocktype
        .set(JournalBlockType::SuperblockV2.to_raw());
    raw.blocksize.set(block_size);
    raw.maxlen.set(blocks as u32);
    raw.first.set(1);
    raw.sequence.set((now() as u32 & 0x3FFF_FFFF).max(1));
    raw.nr_users.set(1);
    raw.uuid = sb.uuid;
    raw
}
