//! Moves blocks out of segments, as cleaning does, and commits that in checkpoints of the volume as it is.
//!
//! A node that names a moved block changes, so it moves as well. Only addresses of data are stored in nodes; nodes name each other by number.
//!
//! # Crash order
//! Copies and changed nodes go to blocks that the committed checkpoint does not use (`room`), and count with the next checkpoint. A change that is
//! interrupted leaves each file whole, some of them in new places.
//!
//! # Rehearsal
//! Blocks of data are neither read nor copied then, as nothing looks into them.
//!
//! # Refused by name
//! Files that are pinned: their owner may have noted where their blocks are.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use blockwright_ondisk::f2fs::inode::{self, InlineFlags, RawInodeHead};
use blockwright_ondisk::f2fs::node::{Footer, NodeOffset, PER_NODE};
use blockwright_ondisk::f2fs::summary::{Summary, SummaryKind};
use blockwright_ondisk::f2fs::{
    BLOCK_SIZE, BLOCKS_PER_SEG, BlockAddr, FormatError, Ino, Inode, Log, NatEntry, Nid, SegNo,
};
use zerocopy::FromBytes;

use super::room::{Room, Taken};
use super::volume::Volume;
use crate::error::{ReshapeError, Result};
use crate::watch::Phase;

/// Changed nodes between two commits.
const NODES_MAX: usize = 4096;
/// Copied blocks that wait to be written.
const COPIES_MAX: usize = 2048;
/// Nodes that are kept after they were read.
const READ_NODES_MAX: usize = 4096;

/// A node that has changed and has its new place.
struct Changed {
    bytes: Vec<u8>,
    from: BlockAddr,
    to: BlockAddr,
}

/// Moves blocks of a volume.
pub(crate) struct Mover<'v> {
    volume: &'v mut Volume,
    room: Room,
    allowed: Range<u32>,
    changed: BTreeMap<u32, Changed>,
    read: HashMap<u32, Vec<u8>>,
    copies: BTreeMap<u32, Vec<u8>>,
}

/// Whether a block was moved, or found no room before the next commit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Done,
    NoRoom,
}

/// Empties segments: blocks in use move to the segments of `allowed`, and logs go on there. All is committed at the end.
///
/// # Errors
/// `NoSpace` when the blocks do not fit, `Unsupported` for pinned files, `Damaged`, `Interrupted`: the volume is whole then, and some files have moved.
pub(crate) fn evacuate(
    volume: &mut Volume,
    segments: impl Iterator<Item = u32>,
    allowed: Range<u32>,
) -> Result<()> {
    let busy = volume.busy_segments();
    let from: Vec<u32> = segments.filter(|seg| busy.contains(seg)).collect();
    if from.is_empty() {
        return Ok(());
    }
    let room = Room::new(volume, allowed.clone());
    let mut mover = Mover {
        volume,
        room,
        allowed,
        changed: BTreeMap::new(),
        read: HashMap::new(),
        copies: BTreeMap::new(),
    };
    mover.move_logs(&from)?;
    let total: u64 = from.iter().map(|seg| mover.used_bytes(*seg)).sum();
    let mut done = 0;
    for seg in &from {
        if let Err(stop) = mover.volume.store.watch.tell(Phase::Data, done, total) {
            // What has moved stays there.
            mover.commit()?;
            return Err(stop);
        }
        done += mover.used_bytes(*seg);
        mover.empty(*seg)?;
    }
    mover.commit()
}

fn no_room() -> ReshapeError {
    ReshapeError::NoSpace("the files do not fit into that size".into())
}

fn lost(what: impl std::fmt::Display) -> ReshapeError {
    ReshapeError::Damaged(format!("{what}"))
}

impl Mover<'_> {
    /// Bytes in use in a segment.
    fn used_bytes(&self, seg: u32) -> u64 {
        u64::from(self.volume.sit(seg).valid.count()) * BLOCK_SIZE as u64
    }

    /// Logs whose segments are emptied go on elsewhere.
    fn move_logs(&mut self, from: &[u32]) -> Result<()> {
        for log in Log::ALL {
            let head = self.volume.cp.raw.log(log).segment.0;
            if from.contains(&head) {
                let to = self
                    .room
                    .take_segment(self.volume, log)
                    .ok_or_else(no_room)?;
                self.volume.move_log(log, to);
            }
        }
        Ok(())
    }

    /// Moves all blocks of a segment.
    fn empty(&mut self, seg: u32) -> Result<()> {
        let entry = self.volume.sit(seg);
        if entry.valid.is_empty() {
            return Ok(());
        }
        let summary = self.volume.summary(seg)?;
        if (summary.kind == SummaryKind::Node) != entry.log.is_node() {
            return Err(lost(format_args!(
                "the summaries of segment {seg} are of the wrong kind"
            )));
        }
        let start = self
            .volume
            .geo
            .segment_start(SegNo(seg))
            .ok_or_else(|| lost(format_args!("there is no segment {seg}")))?;
        // Nodes are read one by one.
        let copies = !entry.log.is_node() && !self.volume.store.rehearses();
        let bytes = match copies {
            true => self.volume.store.read(start, BLOCKS_PER_SEG, "segment")?,
            false => Vec::new(),
        };
        for at in 0..BLOCKS_PER_SEG as u16 {
            let here = BlockAddr(start.0 + u32::from(at));
            let Some(owner) = summary.entries.get(usize::from(at)) else {
                break;
            };
            // A node may have moved with its data already.
            for attempt in 0..2 {
                if !self.volume.sit(seg).valid.get(at) {
                    break;
                }
                let block = copies.then(|| &bytes[usize::from(at) * BLOCK_SIZE..][..BLOCK_SIZE]);
                let step = if entry.log.is_node() {
                    self.node(owner.nid, here)?
                } else {
                    self.data(owner, here, entry.log, block)?
                };
                match (step, attempt) {
                    (Step::Done, _) => break,
                    (Step::NoRoom, 0) => self.commit()?,
                    (Step::NoRoom, _) => {
                        self.commit()?;
                        return Err(no_room());
                    }
                }
            }
            if self.changed.len() >= NODES_MAX {
                self.commit()?;
            }
            if self.copies.len() >= COPIES_MAX {
                self.write_copies()?;
            }
        }
        Ok(())
    }

    /// Moves a node that must be in this block.
    fn node(&mut self, nid: Nid, here: BlockAddr) -> Result<Step> {
        let entry = self.volume.nat(nid)?;
        if entry.block != here {
            return Err(lost(format_args!(
                "block {here} is in use, but its node {nid} is in {}",
                entry.block
            )));
        }
        self.change(nid)
    }

    /// Moves a block of data with these contents.
    fn data(
        &mut self,
        owner: &Summary,
        here: BlockAddr,
        log: Log,
        bytes: Option<&[u8]>,
    ) -> Result<Step> {
        let nid = owner.nid;
        let footer = Footer::expect(self.node_bytes(nid)?, nid, None)?;
        let place = self.address_place(nid, &footer, owner.offset)?;
        let node = self.node_bytes(nid)?;
        let mut word = [0; 4];
        word.copy_from_slice(&node[place..place + 4]);
        if u32::from_le_bytes(word) != here.0 {
            return Err(lost(format_args!(
                "block {here} is in use, but node {nid} does not name it"
            )));
        }
        let inode = RawInodeHead::ref_from_prefix(self.inode_bytes(footer.ino)?)
            .map_err(|_| lost("an inode is cut"))?
            .0;
        if inode.inline & InlineFlags::PIN_FILE.bits() != 0 {
            return Err(ReshapeError::Unsupported(format!(
                "the file of inode {} is pinned: its blocks must not move",
                footer.ino
            )));
        }
        let (first, len) = (inode.ext.blk.get(), inode.ext.len.get());
        let hinted = here.0.checked_sub(first).is_some_and(|at| at < len);
        if self.change(nid)? == Step::NoRoom {
            return Ok(Step::NoRoom);
        }
        if hinted && self.change(footer.ino.nid())? == Step::NoRoom {
            return Ok(Step::NoRoom);
        }
        let Some(to) = self.take(log, *owner)? else {
            return Ok(Step::NoRoom);
        };
        if hinted && let Some(inode) = self.changed.get_mut(&footer.ino.0) {
            // The hint would name the old blocks.
            let (head, _) = RawInodeHead::mut_from_prefix(&mut inode.bytes)
                .map_err(|_| lost("an inode is cut"))?;
            head.ext.len.set(0);
        }
        if let Some(node) = self.changed.get_mut(&nid.0) {
            node.bytes[place..place + 4].copy_from_slice(&to.block.0.to_le_bytes());
        }
        self.give_up(here)?;
        if let Some(bytes) = bytes {
            self.copies.insert(to.block.0, bytes.to_vec());
        }
        Ok(Step::Done)
    }

    /// Where in a node an address is.
    fn address_place(&mut self, nid: Nid, footer: &Footer, offset: u16) -> Result<usize> {
        let offset = usize::from(offset);
        let bad = || lost(format_args!("node {nid} has no address {offset}"));
        if footer.offset == NodeOffset::INODE {
            let geo = self.volume.geo.clone();
            let bytes = self.node_bytes(nid)?;
            let words = Inode::parse_unverified(bytes, footer.ino, &geo)?
                .layout(geo.features)
                .address_bytes();
            return Some(words.start + offset * 4)
                .filter(|at| at + 4 <= words.end)
                .ok_or_else(bad);
        }
        if footer.offset.is_indirect() || footer.offset == NodeOffset::XATTR || offset >= PER_NODE {
            return Err(bad());
        }
        Ok(offset * 4)
    }

    /// A node as it will be.
    fn node_bytes(&mut self, nid: Nid) -> Result<&[u8]> {
        if self.changed.contains_key(&nid.0) {
            return Ok(&self.changed[&nid.0].bytes);
        }
        if !self.read.contains_key(&nid.0) {
            let entry = self.volume.nat(nid)?;
            if !self.volume.geo.in_main(entry.block) {
                let block = entry.block;
                return Err(FormatError::NatBlock { nid, block }.into());
            }
            let bytes = self.volume.store.read(entry.block, 1, "node")?;
            Footer::expect(&bytes, nid, Some(entry.ino))?;
            if entry.ino.nid() == nid {
                inode::verify_checksum(&bytes, entry.ino, &self.volume.geo)?;
            }
            if self.read.len() >= READ_NODES_MAX {
                self.read.clear();
            }
            self.read.insert(nid.0, bytes);
        }
        Ok(&self.read[&nid.0])
    }

    fn inode_bytes(&mut self, ino: Ino) -> Result<&[u8]> {
        let nid = ino.nid();
        self.node_bytes(nid)
    }

    /// Gives a node a new place, so that it can change.
    fn change(&mut self, nid: Nid) -> Result<Step> {
        if self.changed.contains_key(&nid.0) {
            return Ok(Step::Done);
        }
        let bytes = self.node_bytes(nid)?.to_vec();
        let entry = self.volume.nat(nid)?;
        let (seg, _) = self
            .volume
            .geo
            .segment_of(entry.block)
            .ok_or_else(|| lost(format_args!("node {nid} is outside of the main area")))?;
        let log = self.volume.sit(seg.0).log;
        if !log.is_node() {
            return Err(lost(format_args!("node {nid} is in a segment of data")));
        }
        let summary = Summary {
            nid,
            version: 0,
            offset: 0,
        };
        let Some(to) = self.take(log, summary)? else {
            return Ok(Step::NoRoom);
        };
        self.give_up(entry.block)?;
        let moved = NatEntry {
            block: to.block,
            ..entry
        };
        self.volume.set_nat(nid, moved)?;
        self.read.remove(&nid.0);
        let (from, to) = (entry.block, to.block);
        self.changed.insert(nid.0, Changed { bytes, from, to });
        Ok(Step::Done)
    }

    fn take(&mut self, log: Log, owner: Summary) -> Result<Option<Taken>> {
        self.room.take_for(self.volume, log, owner)
    }

    fn give_up(&mut self, block: BlockAddr) -> Result<()> {
        let place = self.volume.geo.segment_of(block);
        let (seg, at) =
            place.ok_or_else(|| lost(format_args!("block {block} is outside of the main area")))?;
        self.volume.give_up(seg.0, at);
        Ok(())
    }

    fn write_copies(&mut self) -> Result<()> {
        let copies = std::mem::take(&mut self.copies);
        let blocks = copies
            .iter()
            .map(|(block, bytes)| (BlockAddr(*block), bytes.as_slice()));
        self.volume.store.write_all(blocks, "data")
    }

    /// Makes all moves count.
    fn commit(&mut self) -> Result<()> {
        self.write_copies()?;
        let mut nodes: Vec<Changed> = Vec::with_capacity(self.changed.len());
        for (nid, mut node) in std::mem::take(&mut self.changed) {
            let footer = Footer::expect(&node.bytes, Nid(nid), None)?;
            // Where its log went on may not be there any more.
            let next = BlockAddr(node.to.0 + 1);
            Footer { next, ..footer }
                .write(&mut node.bytes)
                .ok_or_else(|| lost("a node is cut"))?;
            if footer.offset == NodeOffset::INODE {
                inode::set_checksum(&mut node.bytes, footer.ino, &self.volume.geo);
            }
            nodes.push(node);
        }
        nodes.sort_unstable_by_key(|node| node.to);
        let blocks = nodes
            .iter()
            .map(|node| (node.to, node.from, node.bytes.as_slice()));
        self.volume.store.write_edited(blocks, "nodes")?;
        self.volume.commit()?;
        self.read.clear();
        self.room = Room::new(self.volume, self.allowed.clone());
        Ok(())
    }
}
