//! Where every node is: the node address table, seen through its journal.
//!
//! A node's entry is looked up first among the changes since the table's blocks were written: the
//! journal of the last checkpoint, then everything newer. Otherwise it comes from the copy of its block
//! that the last checkpoint calls valid.
//!
//! Not responsible for: the nodes themselves (`node`).
//!
//! # Invariants
//! * An entry is checked when it comes from the device: a block of the main area, an inode's number.
//! * `changed` holds at least what the last checkpoint's journal held, so that a checkpoint can always
//!   be written from it and the valid copies alone.
//! * `bits` never calls a block full or empty that is not. It need not know.
//!
//! # Locks
//! `inner`, rank `Group`, shared to look. Never held while the device works.
//!
//! # References
//! kernel documentation, "Flash-Friendly File System (F2FS)": Node Address Table.

use crate::{Error, ErrorKind, Result};
use blockwright_device::{AlignedBuf, DevOffset, DeviceExt, SharedDevice, WriteBatch};
use blockwright_ondisk::f2fs::checkpoint::VersionBitmap;
use blockwright_ondisk::f2fs::nat::{self, NatBlock, NatEntry};
use blockwright_ondisk::f2fs::pack::NatBits;
use blockwright_ondisk::f2fs::summary::{NAT_JOURNAL_ENTRIES, NatJournal};
use blockwright_ondisk::f2fs::{BLOCK_SIZE, BlockAddr, Geometry, Ino, Nid};
use blockwright_vfs::locks::{Rank, RwLock};
use hashbrown::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const OP: &str = "look up node";
/// Blocks of the table kept in memory: 16 MiB.
const BLOCKS_MAX: usize = 4096;
/// Blocks that are read together when numbers are looked for: they have some 29 000.
const SCAN_AHEAD: u32 = 64;

struct Inner {
    valid: VersionBitmap,
    changed: HashMap<Nid, NatEntry>,
    blocks: HashMap<u32, Arc<AlignedBuf>>,
    /// Free numbers found by the last scan, lowest last.
    spare: Vec<Nid>,
    /// Block of the table where the next scan begins.
    scan_at: u32,
    /// Given up since the last checkpoint: the node it calls valid has this number still.
    given_up: HashSet<Nid>,
    /// No free number was found since the last checkpoint.
    ran_out: bool,
    /// Blocks known to be full or empty, what is in `changed` included.
    bits: NatBits,
    /// Taken since the last checkpoint, which does not know them.
    fresh: HashSet<Nid>,
}

impl Inner {
    /// Takes a free number; `index` is its block's.
    fn take(&mut self, index: u32, nid: Nid, ino: Ino, version: u8) {
        let entry = NatEntry {
            version,
            ino,
            block: BlockAddr::NEW,
        };
        self.changed.insert(nid, entry);
        self.fresh.insert(nid);
        let full = self.bits.is_full(index);
        self.bits.set(index, full, false);
    }
}

/// See the module's head.
pub struct Nat {
    device: SharedDevice,
    geo: Arc<Geometry>,
    inner: RwLock<Inner>,
    /// How often a node got another place, or its number to another inode.
    changes: AtomicU64,
}

impl Nat {
    /// The table of a checkpoint with its journal.
    #[must_use]
    pub fn new(
        device: SharedDevice,
        geo: Arc<Geometry>,
        valid: VersionBitmap,
        journal: &NatJournal,
        mut bits: NatBits,
    ) -> Self {
        for (nid, _) in &journal.0 {
            bits.set(geo.nat_position(*nid).0, false, false);
        }
        Nat {
            device,
            geo,
            changes: AtomicU64::new(0),
            inner: RwLock::new(
                Rank::Group,
                Inner {
                    valid,
                    changed: journal.0.iter().copied().collect(),
                    blocks: HashMap::new(),
                    spare: Vec::new(),
                    scan_at: 0,
                    given_up: HashSet::new(),
                    ran_out: false,
                    bits,
                    fresh: HashSet::new(),
                },
            ),
        }
    }

    /// The entry of a node number that was checked to be in range.
    ///
    /// # Errors
    /// `Corrupt` when it is invalid; a device error.
    pub fn get(&self, nid: Nid) -> Result<NatEntry> {
        self.geo
            .check_nid(nid)
            .map_err(|e| Error::corrupt(OP, e.to_string()))?;
        let (index, position) = self.geo.nat_position(nid);
        loop {
            let at = {
                let inner = self.inner.read();
                if let Some(entry) = inner.changed.get(&nid) {
                    return Ok(*entry);
                }
                if let Some(block) = inner.blocks.get(&index) {
                    return self.entry_in(block, nid, position);
                }
                self.block_at(&inner, index)?
            };
            let block = self
                .device
                .read_buf(DevOffset(u64::from(at.0) << 12), BLOCK_SIZE)
                .map_err(|e| Error::io(OP, e))?;
            let mut inner = self.inner.write();
            self.keep(&mut inner, index, at, block)?;
        }
    }

    /// Keeps a block of the table that was read, unless a checkpoint made the other copy the valid one meanwhile, or another thread was faster.
    fn keep(&self, inner: &mut Inner, index: u32, at: BlockAddr, block: AlignedBuf) -> Result<()> {
        if self.block_at(inner, index)? == at && !inner.blocks.contains_key(&index) {
            if inner.blocks.len() >= BLOCKS_MAX {
                // Rare, and what is in use comes back at once.
                inner.blocks.clear();
            }
            inner.blocks.insert(index, Arc::new(block));
        }
        Ok(())
    }

    /// Reads a block of the table if it is not in memory, with those of the following blocks that are not either and lie behind it: creating files one
    /// after the other needs them next. A block that cannot be read is left to the caller that needs it.
    fn read_on(&self, index: u32) -> Result<()> {
        let (at, count) = {
            let inner = self.inner.read();
            if inner.blocks.contains_key(&index) {
                return Ok(());
            }
            let at = self.block_at(&inner, index)?;
            let follows = |n: &u32| {
                let behind = index + n;
                behind < self.geo.nat_blocks()
                    && !inner.blocks.contains_key(&behind)
                    && self.block_at(&inner, behind).is_ok_and(|b| b.0 == at.0 + n)
            };
            (at, 1 + (1..SCAN_AHEAD).take_while(follows).count())
        };
        let offset = DevOffset(u64::from(at.0) << 12);
        let Ok(bytes) = self.device.read_buf(offset, count * BLOCK_SIZE) else {
            return Ok(());
        };
        let mut inner = self.inner.write();
        for (n, block) in (0..).zip(bytes.chunks_exact(BLOCK_SIZE)) {
            let block = AlignedBuf::copy_of(block);
            self.keep(&mut inner, index + n, BlockAddr(at.0 + n), block)?;
        }
        Ok(())
    }

    /// Counts changes of nodes' places. While it is unchanged, a node that was read meanwhile and is not in memory is
    /// as it was read. (A number is given up before another inode can have it.)
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    fn block_at(&self, inner: &Inner, index: u32) -> Result<BlockAddr> {
        self.geo
            .nat_block(index, inner.valid.get(index))
            .ok_or_else(|| Error::corrupt(OP, format!("the NAT has no block {index}")))
    }

    fn entry_in(&self, block: &AlignedBuf, nid: Nid, position: usize) -> Result<NatEntry> {
        let bad = |e: blockwright_ondisk::f2fs::FormatError| Error::corrupt(OP, e.to_string());
        let entry = NatBlock::parse(block)
            .map_err(bad)?
            .get(position)
            .ok_or_else(|| Error::corrupt(OP, format!("no entry {position} in a NAT block")))?;
        self.geo.check_nat_entry(nid, &entry).map_err(bad)?;
        Ok(entry)
    }

    /// Takes a free number for a node of `ino`; for a new inode's own node when `None`. The node is as good
    /// as reserved from here on.
    ///
    /// # Errors
    /// `NoSpace` when all numbers are in use; damage; a device error.
    pub(crate) fn take(&self, ino: Option<Ino>) -> Result<Nid> {
        loop {
            let index = {
                let mut inner = self.inner.write();
                while let Some(nid) = inner.spare.pop() {
                    let version = match inner.changed.get(&nid) {
                        // Recovery may have taken it since the scan.
                        Some(entry) if !entry.is_free() => continue,
                        Some(entry) => entry.version,
                        None => self.cached_version(&inner, nid),
                    };
                    let index = self.geo.nat_position(nid).0;
                    inner.take(index, nid, ino.unwrap_or(nid.as_ino()), version);
                    return Ok(nid);
                }
                inner.scan_at
            };
            self.scan(index)?;
        }
    }

    /// Takes this very number for an inode's own node; whether it was free.
    ///
    /// # Errors
    /// `Corrupt` for a number out of range; a device error.
    pub(crate) fn take_inode(&self, ino: Ino) -> Result<bool> {
        let entry = self.get(ino.nid())?;
        if entry.is_free() {
            let index = self.geo.nat_position(ino.nid()).0;
            self.inner
                .write()
                .take(index, ino.nid(), ino, entry.version);
        }
        Ok(entry.is_free())
    }

    /// Whether the last checkpoint does not know a node: its number was taken since.
    pub(crate) fn is_fresh(&self, nid: Nid) -> bool {
        self.inner.read().fresh.contains(&nid)
    }

    /// Nodes that the last checkpoint does not know, where they are now.
    pub(crate) fn fresh_nodes(&self) -> Vec<(Nid, NatEntry)> {
        let inner = self.inner.read();
        let entry = |nid: &Nid| Some((*nid, *inner.changed.get(nid)?));
        let nodes = inner.fresh.iter().filter_map(entry);
        nodes.filter(|(_, e)| !e.is_free()).collect()
    }

    fn cached_version(&self, inner: &Inner, nid: Nid) -> u8 {
        let (index, position) = self.geo.nat_position(nid);
        inner
            .blocks
            .get(&index)
            .and_then(|b| NatBlock::parse(b).ok()?.get(position))
            .map_or(0, |e| e.version)
    }

    /// Looks for free numbers from a block of the table on, once around, unless another thread finds some meanwhile.
    fn scan(&self, from: u32) -> Result<()> {
        let (blocks, per) = (self.geo.nat_blocks(), nat::ENTRIES_PER_BLOCK as u32);
        for n in 0..blocks {
            let index = (from + n) % blocks;
            let first = Nid((index * per).max(Ino::ROOT.0));
            if self.inner.read().bits.is_full(index) {
                continue;
            }
            self.read_on(index)?;
            // If that failed, or a checkpoint came in between.
            self.get(first)?;
            let mut inner = self.inner.write();
            if !inner.spare.is_empty() {
                // Another thread found some, and there are enough for all.
                return Ok(());
            }
            let mut found = Vec::new();
            {
                let block = inner.blocks.get(&index).cloned();
                let view = block.as_ref().and_then(|b| NatBlock::parse(b).ok());
                for position in (0..per).rev() {
                    let nid = Nid(index * per + position);
                    if nid.0 <= Ino::ROOT.0 || nid.0 >= self.geo.nids() {
                        continue;
                    }
                    let entry = match inner.changed.get(&nid) {
                        Some(entry) => Some(*entry),
                        None => view.and_then(|v| v.get(position as usize)),
                    };
                    if entry.is_some_and(|e| e.is_free()) && !inner.given_up.contains(&nid) {
                        found.push(nid);
                    }
                }
            }
            if !found.is_empty() {
                inner.spare = found;
                inner.scan_at = (index + 1) % blocks;
                return Ok(());
            }
        }
        self.inner.write().ran_out = true;
        Err(Error::new(ErrorKind::NoSpace, "take node number")
            .detail("all node numbers are in use"))
    }

    /// Gives a node another place, and returns its old one. A thread that writes nodes ahead of a checkpoint may have
    /// moved it by then, and the block that is given up must be the node's own.
    pub(crate) fn replace(&self, nid: Nid, block: BlockAddr) -> Result<BlockAddr> {
        let mut entry = self.get(nid)?;
        let mut inner = self.inner.write();
        if let Some(newer) = inner.changed.get(&nid) {
            entry = *newer;
        }
        let before = std::mem::replace(&mut entry.block, block);
        inner.changed.insert(nid, entry);
        self.changes.fetch_add(1, Ordering::AcqRel);
        Ok(before)
    }

    /// Gives a node another place, if it is where `before` says and still its inode's. Returns whether it was: other threads may have
    /// moved or freed it, because the caller holds no lock that keeps them out.
    pub(crate) fn replace_if(&self, nid: Nid, before: &NatEntry, block: BlockAddr) -> bool {
        let mut inner = self.inner.write();
        // An entry that is not here is as the last checkpoint has it, and so is one that was found before: no checkpoint is
        // written meanwhile.
        let same = inner.changed.get(&nid).is_none_or(|now| now == before);
        if same {
            inner.changed.insert(nid, NatEntry { block, ..*before });
            self.changes.fetch_add(1, Ordering::AcqRel);
        }
        same
    }

    /// Removes a node. Its number stays taken until the next checkpoint is durable.
    ///
    /// Returns its entry at that very moment: a thread that writes nodes ahead of a checkpoint may move it until then, and
    /// the block that is given up must be the node's last.
    pub(crate) fn give_up(&self, nid: Nid) -> Result<NatEntry> {
        let mut old = self.get(nid)?;
        let mut inner = self.inner.write();
        if let Some(newer) = inner.changed.get(&nid) {
            old = *newer;
        }
        let free = NatEntry {
            // Summaries of the old node's blocks must not match the next node.
            version: old.version.wrapping_add(1),
            ino: Ino(0),
            block: BlockAddr::NULL,
        };
        inner.changed.insert(nid, free);
        inner.given_up.insert(nid);
        self.changes.fetch_add(1, Ordering::AcqRel);
        inner.bits.set(self.geo.nat_position(nid).0, false, false);
        Ok(old)
    }

    /// Writes the table where the journal is too small, and returns the journal. `bitmap` is brought up to
    /// date. Nothing changes the table meanwhile.
    pub(crate) fn flush(
        &self,
        batch: &mut WriteBatch,
        bitmap: &mut VersionBitmap,
    ) -> Result<NatJournal> {
        let (count, indexes) = {
            let inner = self.inner.read();
            *bitmap = inner.valid.clone();
            let mut list: Vec<u32> = inner
                .changed
                .keys()
                .map(|nid| self.geo.nat_position(*nid).0)
                .collect();
            list.sort_unstable();
            list.dedup();
            (inner.changed.len(), list)
        };
        if count <= NAT_JOURNAL_ENTRIES {
            let inner = self.inner.read();
            let mut list: Vec<(Nid, NatEntry)> =
                inner.changed.iter().map(|(n, e)| (*n, *e)).collect();
            list.sort_unstable_by_key(|(n, _)| *n);
            return Ok(NatJournal(list));
        }
        let per = nat::ENTRIES_PER_BLOCK as u32;
        for index in indexes {
            let at = {
                let inner = self.inner.read();
                match inner.blocks.get(&index) {
                    Some(_) => None,
                    None => Some(self.block_at(&inner, index)?),
                }
            };
            let read = match at {
                Some(at) => Some(
                    self.device
                        .read_buf(DevOffset(u64::from(at.0) << 12), BLOCK_SIZE)
                        .map_err(|e| Error::io(OP, e))?,
                ),
                None => None,
            };
            let mut inner = self.inner.write();
            let mut block = match (read, inner.blocks.get(&index)) {
                (Some(block), _) => block,
                (None, Some(block)) => AlignedBuf::copy_of(block),
                (None, None) => return Err(Error::corrupt(OP, "a NAT block vanished")),
            };
            for position in 0..per {
                if let Some(entry) = inner.changed.remove(&Nid(index * per + position)) {
                    // The position is below the number of entries.
                    let _ = nat::set_entry(&mut block, position as usize, entry);
                }
            }
            let copy = inner.valid.get(index).other();
            let to = self
                .geo
                .nat_block(index, copy)
                .ok_or_else(|| Error::corrupt(OP, format!("the NAT has no block {index}")))?;
            let block = Arc::new(block);
            batch.push(DevOffset(u64::from(to.0) << 12), Arc::clone(&block).into());
            let used = self.used_in(&block, index);
            inner.bits.set(index, used == per, used == 0);
            inner.blocks.insert(index, block);
            inner.valid.set(index, copy);
        }
        *bitmap = self.inner.read().valid.clone();
        Ok(NatJournal::default())
    }

    /// Numbers in use in a block of the table; 0, which no node has, counts as one.
    fn used_in(&self, block: &AlignedBuf, index: u32) -> u32 {
        let Ok(view) = NatBlock::parse(block) else {
            return 1;
        };
        let per = nat::ENTRIES_PER_BLOCK;
        let entries = (0..per).filter_map(|at| view.get(at));
        let used = entries.filter(|e| !e.is_free()).count() as u32;
        // An entry of number 0 is free by its contents.
        used + u32::from(index == 0)
    }

    /// Whether a block of the table is known to have no number in use.
    pub(crate) fn is_empty_block(&self, index: u32) -> bool {
        self.inner.read().bits.is_empty(index)
    }

    /// Which of the table's blocks are full or empty, as far as known, for a pack.
    pub(crate) fn bits(&self) -> NatBits {
        self.inner.read().bits.clone()
    }

    /// Whether numbers ran out that the next checkpoint gives back.
    pub(crate) fn checkpoint_frees(&self) -> bool {
        let inner = self.inner.read();
        inner.ran_out && !inner.given_up.is_empty()
    }

    /// The checkpoint is durable: numbers given up before may be taken.
    pub(crate) fn checkpointed(&self) {
        let mut inner = self.inner.write();
        inner.given_up.clear();
        inner.ran_out = false;
        inner.fresh.clear();
        // Lower numbers may be free again.
        inner.scan_at = 0;
    }
}
