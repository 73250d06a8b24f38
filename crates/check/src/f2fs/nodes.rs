//! Nodes: every one that the NAT names, from its inode down; and the blocks they map.

use std::mem::offset_of;

use blockwright_ondisk::f2fs::inode::{NIDS_OFFSET, RawInodeHead};
use blockwright_ondisk::f2fs::node::{self, PER_NODE};
use blockwright_ondisk::f2fs::summary::{Summary, SummaryBlock, SummaryKind};
use blockwright_ondisk::f2fs::{
    BlockAddr, FileKind, Footer, FormatError, InlineFlags, Ino, Inode, InodeFlags, InodeLayout,
    Nid, NodeOffset, SegNo,
};

use super::CheckError;
use super::context::Checker;
use super::issue::IssueKind;
use super::state::{DirBlock, Disputed, Named};
use crate::Phase;

/// A file whose nodes are followed.
pub(super) struct Walk {
    pub ino: Ino,
    pub inode: Inode,
    pub layout: InodeLayout,
    pub kind: FileKind,
    /// Blocks counted: nodes, data, reserved.
    pub blocks: u64,
    /// Blocks of the inode's extent that are where it says.
    pub extent_matched: u64,
    /// Blocks of a cluster; 1 without compression.
    pub cluster: usize,
    /// The cluster size in a compressed file's inode, when no such size exists. `cluster` is 1 then.
    pub cluster_log_unknown: Option<u8>,
    /// Marks of compressed clusters, where their size is not known.
    pub marks: u64,
    /// Blocks that compression saved.
    pub saved: u64,
    /// One past the last block of a directory that is stored.
    pub end: u64,
    /// One of the quota files.
    pub hidden: bool,
}

/// Where a node's number or a block's address is kept.
#[derive(Clone, Copy)]
pub(super) enum Place {
    /// One of the inode's five.
    Inode(usize),
    /// The inode's node of attributes.
    Xattr,
    /// A word of a node.
    Node(Nid, usize),
}

/// The footer of a block that is node `nid` of inode `ino`. Its own statement of its place in the tree may be wrong: the
/// numbers are enough evidence, and the pointer to it gives its place.
pub(super) fn footer_of(block: &[u8], nid: Nid, ino: Ino) -> Result<Footer, FormatError> {
    Footer::expect(block, nid, Some(ino)).or_else(|error| {
        Footer::read(block)
            .ok()
            .filter(|footer| footer.nid == nid && footer.ino == ino)
            .ok_or(error)
    })
}

impl Checker {
    /// Follows all nodes. Whether there is a root directory.
    pub(super) fn check_nodes(&mut self) -> Result<bool, CheckError> {
        let inodes: Vec<u32> = self
            .tables
            .nat
            .iter()
            .filter(|(nid, e)| **nid == e.ino.0)
            .map(|(nid, _)| *nid)
            .collect();
        let total = inodes.len() as u64;
        for (n, ino) in inodes.into_iter().enumerate() {
            if n % 256 == 0 {
                self.report_progress(Phase::Inodes, n as u64, total)?;
            }
            self.check_inode(Ino(ino))?;
        }
        self.check_left_nodes()?;
        self.resolve_disputes()?;
        let root = self.scan.inodes.get(&Ino::ROOT.0);
        let rooted = root.is_some_and(|r| r.kind == FileKind::Directory);
        if !rooted {
            self.problem(IssueKind::RootMissing);
        }
        Ok(rooted)
    }

    /// Nodes that no inode led to: inodes whose NAT entry names another owner, and nodes without an owner.
    fn check_left_nodes(&mut self) -> Result<(), CheckError> {
        let left: Vec<(u32, Ino)> = self
            .tables
            .nat
            .iter()
            .filter(|(nid, e)| **nid != e.ino.0 && !self.scan.visited.contains(nid))
            .map(|(nid, e)| (*nid, e.ino))
            .collect();
        for (nid, owner) in &left {
            let nid = Nid(*nid);
            let Some((_, block)) = self.read_node(nid)? else {
                continue;
            };
            if Footer::expect(&block, nid, Some(nid.as_ino())).is_err()
                || Inode::parse(&block, nid.as_ino(), &self.geo).is_err()
            {
                continue;
            }
            let repair = self.problem(IssueKind::NodeOwner {
                nid,
                found: *owner,
                expected: nid.as_ino(),
            });
            if repair {
                if let Some(e) = self.tables.nat.get_mut(&nid.0) {
                    e.ino = nid.as_ino();
                }
                self.changes += 1;
            }
            self.check_inode(nid.as_ino())?;
        }
        for (nid, ino) in left {
            if self.scan.visited.contains(&nid) {
                continue;
            }
            // Not a separate issue: the pointer to it was already reported.
            if self.problem(IssueKind::NodeUnreachable { nid: Nid(nid), ino }) {
                self.free_node(Nid(nid));
            }
        }
        Ok(())
    }

    /// Follows all nodes of an inode.
    pub(super) fn walk_tree(&mut self, w: &mut Walk, block: &[u8]) -> Result<(), CheckError> {
        let ino = w.ino;
        let inline = w.inode.inline;
        let special = !matches!(
            w.kind,
            FileKind::Regular | FileKind::Directory | FileKind::Symlink
        );
        let contents_inline = inline.intersects(InlineFlags::DATA | InlineFlags::DENTRY);
        if contents_inline || special {
            for (n, nid) in w.inode.nids.into_iter().enumerate() {
                if nid.0 != 0 && self.problem(IssueKind::InlineNode { ino, nid }) {
                    self.clear(w.ino, Place::Inode(n))?;
                }
            }
        } else {
            let used = w.layout.addresses_used(w.cluster);
            let bytes = &block[w.layout.address_bytes()];
            for (position, word) in bytes.chunks_exact(4).take(used).enumerate() {
                let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
                self.check_address(w, ino.nid(), position, position as u64, BlockAddr(word))?;
            }
            let words = bytes.chunks_exact(4).take(used);
            let addresses = words.map(|w| BlockAddr(u32::from_le_bytes([w[0], w[1], w[2], w[3]])));
            self.check_clusters(w, ino.nid(), &addresses.collect::<Vec<_>>())?;
            let per = PER_NODE as u32;
            let offsets = [1, 2, 3, 4 + per, 5 + 2 * per];
            for (n, nid) in w.inode.nids.into_iter().enumerate() {
                if nid.0 != 0 {
                    let levels = [0, 0, 1, 1, 2][n];
                    self.follow(w, nid, Place::Inode(n), NodeOffset(offsets[n]), levels)?;
                }
            }
        }
        Ok(())
    }

    /// Follows a node: one of addresses when `levels` is 0, of nodes above.
    fn follow(
        &mut self,
        w: &mut Walk,
        nid: Nid,
        place: Place,
        offset: NodeOffset,
        levels: u32,
    ) -> Result<(), CheckError> {
        let Some(block) = self.open_node(w, nid, place, offset)? else {
            return Ok(());
        };
        let Ok(words) = node::words(&block) else {
            return Ok(());
        };
        if levels == 0 {
            let in_inode = w.layout.addresses_used(w.cluster);
            let first = node::first_block_of(offset, in_inode, w.cluster).unwrap_or(0);
            let used = PER_NODE / w.cluster * w.cluster;
            for (position, word) in words.iter().take(used).enumerate() {
                let at = first + position as u64;
                self.check_address(w, nid, position, at, BlockAddr(word.get()))?;
            }
            let addresses = words.iter().take(used).map(|word| BlockAddr(word.get()));
            self.check_clusters(w, nid, &addresses.collect::<Vec<_>>())?;
            return Ok(());
        }
        let per = PER_NODE as u32;
        // How many numbers of the depth-first order each child takes.
        let stride = if levels == 1 { 1 } else { per + 1 };
        for (position, word) in words.iter().enumerate() {
            if word.get() != 0 {
                let child = NodeOffset(offset.0 + 1 + position as u32 * stride);
                let place = Place::Node(nid, position);
                self.follow(w, Nid(word.get()), place, child, levels - 1)?;
            }
        }
        Ok(())
    }

    /// A node below an inode, when it is what it should be; otherwise its number is dropped.
    pub(super) fn open_node(
        &mut self,
        w: &mut Walk,
        nid: Nid,
        place: Place,
        offset: NodeOffset,
    ) -> Result<Option<Vec<u8>>, CheckError> {
        let ino = w.ino;
        let Some(entry) = self.tables.nat.get(&nid.0).copied() else {
            if self.problem(IssueKind::NodeMissing { ino, nid }) {
                self.clear(ino, place)?;
            }
            return Ok(None);
        };
        let block = self.store.read(entry.block, "node")?;
        let footer = match footer_of(&block, nid, ino) {
            Ok(_) if self.scan.visited.contains(&nid.0) || nid.0 == ino.0 => {
                if self.problem(IssueKind::NodeShared { ino, nid }) {
                    self.clear(ino, place)?;
                }
                return Ok(None);
            }
            Ok(footer) => footer,
            Err(error) => {
                // Another file's node is only wrong here. A damaged one is useless.
                let shared = self.scan.visited.contains(&nid.0)
                    || (entry.ino != ino && Footer::expect(&block, nid, Some(entry.ino)).is_ok());
                let kind = if shared {
                    IssueKind::NodeShared { ino, nid }
                } else {
                    IssueKind::NodeFooter {
                        nid,
                        error: error.into(),
                    }
                };
                if self.problem(kind) {
                    self.clear(ino, place)?;
                }
                return Ok(None);
            }
        };
        if entry.ino != ino
            && self.problem(IssueKind::NodeOwner {
                nid,
                found: entry.ino,
                expected: ino,
            })
        {
            if let Some(e) = self.tables.nat.get_mut(&nid.0) {
                e.ino = ino;
            }
            self.changes += 1;
        }
        if footer.offset != offset
            && self.problem(IssueKind::NodeOffset {
                nid,
                ino,
                found: footer.offset.0,
                expected: offset.0,
            })
        {
            self.edit_node(nid, |bytes| {
                let _ = Footer { offset, ..footer }.write(bytes);
            })?;
        }
        if !self.take_node(nid, entry.block)? {
            if self.problem(IssueKind::NodeShared { ino, nid }) {
                self.clear(ino, place)?;
            }
            return Ok(None);
        }
        self.check_next(ino, nid, &footer)?;
        w.blocks += 1;
        Ok(Some(block))
    }

    /// Takes a node's block.
    pub(super) fn take_node(&mut self, nid: Nid, block: BlockAddr) -> Result<bool, CheckError> {
        let Some((segment, at)) = self.geo.segment_of(block) else {
            return Ok(false);
        };
        if !self.scan.take(segment.0, at, true) {
            return Ok(false);
        }
        self.scan.visited.insert(nid.0);
        self.scan.nodes += 1;
        self.scan.blocks += 1;
        let version = self.tables.nat.get(&nid.0).map_or(0, |e| e.version);
        let expected = Summary {
            nid,
            version,
            offset: 0,
        };
        let list = match self.summary_at(segment, at)? {
            None => &mut self.scan.summaries_missing,
            Some(s) if s.nid != expected.nid => &mut self.scan.summaries_wrong,
            Some(_) => return Ok(true),
        };
        list.entry(segment.0).or_default().push((at, expected));
        Ok(true)
    }

    /// Looks at an address of a file.
    fn check_address(
        &mut self,
        w: &mut Walk,
        nid: Nid,
        position: usize,
        at: u64,
        block: BlockAddr,
    ) -> Result<(), CheckError> {
        let ino = w.ino;
        if block == BlockAddr::NULL {
            return Ok(());
        }
        if block == BlockAddr::NEW {
            self.count_data(w);
            return Ok(());
        }
        if block == BlockAddr::COMPRESSED {
            let compressed = w.kind == FileKind::Regular
                && w.inode.flags.contains(InodeFlags::COMPRESS)
                && (w.cluster > 1 || w.cluster_log_unknown.is_some())
                && at.is_multiple_of(w.cluster as u64);
            if compressed {
                // It counts until what compression saved was given back.
                if !w.inode.inline.contains(InlineFlags::COMPRESS_RELEASED) {
                    self.count_data(w);
                }
            } else {
                let position = position as u16;
                if self.problem(IssueKind::CompressMark { ino, nid, position }) {
                    self.clear_address(ino, nid, usize::from(position))?;
                }
            }
            return Ok(());
        }
        if let Err(error) = node::check_address(block, nid, position, &self.geo) {
            let error = error.into();
            if self.problem(IssueKind::DataAddress { ino, error }) {
                self.clear_address(ino, nid, position)?;
            }
            return Ok(());
        }
        let Some((segment, offset)) = self.geo.segment_of(block) else {
            return Ok(());
        };
        if self.repairing() && !self.new_blocks.places.contains(&block.0) {
            self.tables.hold(segment, offset);
        }
        self.count_data(w);
        let (first, start, len) = w.inode.extent;
        if at >= first.0 && at - first.0 < u64::from(len) {
            let expected = u64::from(start.0) + (at - first.0);
            w.extent_matched += u64::from(expected == u64::from(block.0));
        }
        if w.kind == FileKind::Directory {
            w.end = w.end.max(at + 1);
            self.scan.dir_blocks.push(DirBlock {
                dir: ino,
                at,
                block,
                owner: (nid, position as u16),
            });
        }
        if w.hidden {
            let owner = (nid, position as u16);
            let dir = ino;
            self.note_quota_block(
                w,
                DirBlock {
                    dir,
                    at,
                    block,
                    owner,
                },
            );
        }
        let version = self.tables.nat.get(&nid.0).map_or(0, |e| e.version);
        let summary = Summary {
            nid,
            version,
            offset: position as u16,
        };
        // The owner that the summary names goes first. In a segment of nodes, nodes do.
        let named = match self.summary_at(segment, offset)? {
            None => Named::Unknown,
            Some(s) if s.nid == nid && s.offset == summary.offset => {
                if s.version != version {
                    let wrong = self.scan.summaries_wrong.entry(segment.0).or_default();
                    wrong.push((offset, summary));
                }
                Named::Yes
            }
            Some(_) => Named::Other,
        };
        let later = named == Named::Other || self.is_said_of_nodes(segment);
        if later || !self.scan.take(segment.0, offset, false) {
            self.scan.disputed.push(Disputed {
                ino,
                block,
                summary,
                named,
            });
        } else if named == Named::Unknown {
            let missing = self.scan.summaries_missing.entry(segment.0).or_default();
            missing.push((offset, summary));
        }
        Ok(())
    }

    /// Whether the SIT or the checkpoint's logs say that a segment is of nodes.
    fn is_said_of_nodes(&self, segment: SegNo) -> bool {
        let log = self.summaries.by_segment.get(&segment.0);
        let sit = self.tables.sit.get(&segment.0);
        log.is_some_and(|(log, _)| log.is_node()) || sit.is_some_and(|e| e.log.is_node())
    }

    /// Whether the segment of an address of data is of nodes, by two sources: of the log that is in it, and the SIT or the nodes there; or of its
    /// summaries and the nodes there, unless the SIT says that data is in the very block.
    fn is_of_nodes(&self, segment: SegNo, at: u16) -> Result<bool, CheckError> {
        let used = self.scan.segments.get(&segment.0);
        let only_nodes = used.is_some_and(|u| u.nodes > 0 && u.data == 0);
        if let Some((log, _)) = self.summaries.by_segment.get(&segment.0) {
            let sit = self.tables.sit.get(&segment.0);
            let sit = sit.is_some_and(|e| e.log.is_node());
            return Ok(log.is_node() && (sit || only_nodes));
        }
        let sit = self.tables.sit.get(&segment.0);
        let is_data = sit.is_some_and(|e| !e.log.is_node() && e.valid.get(at));
        let possible = only_nodes && !is_data;
        let Some(place) = self.geo.ssa_block(segment).filter(|_| possible) else {
            return Ok(false);
        };
        let block = self.store.read(place, "summaries")?;
        let kind = SummaryBlock::parse(&block).map(|b| b.kind);
        Ok(kind.is_ok_and(|kind| kind == SummaryKind::Node))
    }

    fn count_data(&mut self, w: &mut Walk) {
        w.blocks += 1;
        self.scan.blocks += 1;
    }

    /// Blocks that more than one address names, or the nodes' own: the first inode that maps them keeps them, after the one that their summary
    /// names. An address of data never leads into a segment of nodes.
    fn resolve_disputes(&mut self) -> Result<(), CheckError> {
        let mut disputed = std::mem::take(&mut self.scan.disputed);
        disputed.sort_by_key(|d| d.named);
        for d in disputed {
            let Some((segment, offset)) = self.geo.segment_of(d.block) else {
                continue;
            };
            let unused = (self.tables.sit.get(&segment.0))
                .is_some_and(|e| e.log.is_node() && !e.valid.get(offset));
            let foreign = unused && d.named == Named::Other || self.is_of_nodes(segment, offset)?;
            if !foreign && self.scan.take(segment.0, offset, false) {
                let list = match d.named {
                    Named::Yes => continue,
                    Named::Unknown => &mut self.scan.summaries_missing,
                    Named::Other => &mut self.scan.summaries_wrong,
                };
                list.entry(segment.0).or_default().push((offset, d.summary));
                continue;
            }
            let (nid, position) = (d.summary.nid, d.summary.offset);
            self.scan.lost.insert((nid.0, position));
            self.scan.blocks = self.scan.blocks.saturating_sub(1);
            let (ino, block) = (d.ino, d.block);
            let kind = if foreign {
                IssueKind::BlockForeign {
                    ino,
                    nid,
                    position,
                    block,
                }
            } else {
                IssueKind::BlockShared {
                    ino,
                    nid,
                    position,
                    block,
                }
            };
            if self.problem(kind) {
                self.clear_address(d.ino, nid, usize::from(position))?;
            }
        }
        Ok(())
    }

    /// Makes an address of a node a hole.
    pub(super) fn clear_address(
        &mut self,
        ino: Ino,
        nid: Nid,
        position: usize,
    ) -> Result<(), CheckError> {
        self.put_address(ino, nid, position, BlockAddr::NULL)
    }

    /// Stores an address in a node.
    pub(super) fn put_address(
        &mut self,
        ino: Ino,
        nid: Nid,
        position: usize,
        block: BlockAddr,
    ) -> Result<(), CheckError> {
        let geo = self.geo.clone();
        self.edit_node(nid, |bytes| {
            let start = if nid == ino.nid() {
                match super::mend::decode(bytes, ino, &geo) {
                    Some((inode, _)) => inode.layout(geo.features).address_bytes().start,
                    None => return,
                }
            } else {
                0
            };
            let at = start + position * 4;
            if let Some(word) = bytes.get_mut(at..at + 4) {
                word.copy_from_slice(&block.0.to_le_bytes());
            }
        })
    }

    /// Drops a node's number.
    fn clear(&mut self, ino: Ino, place: Place) -> Result<(), CheckError> {
        let (nid, at) = match place {
            Place::Inode(n) => (ino.nid(), NIDS_OFFSET + n * 4),
            Place::Xattr => (ino.nid(), offset_of!(RawInodeHead, xattr_nid)),
            Place::Node(nid, n) => (nid, n * 4),
        };
        self.edit_node(nid, |bytes| {
            if let Some(word) = bytes.get_mut(at..at + 4) {
                word.fill(0);
            }
        })
    }
}
