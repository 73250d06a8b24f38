//! The plan of an f2fs volume: for each file its node number, its nodes and the places of its blocks, all in memory.
//!
//! [`plan`] walks the tree once, fills the logs in the order of the walk, and gives each log its place when all blocks are counted.
//! It does no I/O and reads no file data. `tables` derives the volume's tables from a plan, and `write` puts both on a device.

use super::describe;
use super::dirs::{self, Entry};
use super::files::{Attributes, kept_flags};
use super::inodes::{AddressRun, Blocks, Body, NodeContent, PlannedInode, PlannedNode, node_log};
use super::logs::{LogPlaces, Logs, Place};
use super::options::FormatOptions;
use super::shape::Shape;
use crate::flags::{Flags, Kept};
use crate::options::Before;
use crate::output::{Chunk, Chunks};
use crate::tree::{Node, NodeId, Tree, block_ranges, valid_name};
use crate::{MkfsError, Result};
use blockwright_ondisk::ext4::Timestamp as TreeTime;
use blockwright_ondisk::ext4::quota_layout::{Grace, QuotaKind, quota_file, usage_entry};
use blockwright_ondisk::f2fs::inode::{INLINE_XATTR_WORDS, encode_device};
use blockwright_ondisk::f2fs::node::{self, PER_NODE, node_path};
use blockwright_ondisk::f2fs::types::BLOCK_BITS;
use blockwright_ondisk::f2fs::{
    Advise, BLOCK_SIZE, Features, FileBlock, FileKind, InlineFlags, Ino, Inode, InodeFlags, Log,
    Nid, NodeOffset, Timestamp,
};
use std::collections::{BTreeMap, HashMap};

/// Compression of directories with that flag: Linux's default.
const COMPRESS_LZ4: u8 = 1;
const CLUSTER_LOG_MIN: u8 = 2;
/// The directory that checkers put inodes without a name into.
const LOST_FOUND: &[u8] = b"lost+found";

/// A planned volume that is not yet written.
pub struct Plan {
    pub(crate) shape: Shape,
    pub(crate) places: LogPlaces,
    pub(crate) logs: Logs,
    /// Nodes of the hot, warm and cold node logs.
    pub(crate) nodes: [Vec<PlannedNode>; 3],
    /// Directories, links and quota files: a run of each.
    pub(crate) blocks: Vec<(Ino, Blocks, Place)>,
    /// Runs of regular files: node, first file block, place, blocks, whether it is the last.
    pub(crate) data: Vec<(NodeId, u64, Place, u64, bool)>,
    pub(crate) ino_of: Vec<Ino>,
    pub(crate) parent_of: HashMap<NodeId, Ino>,
    pub(crate) lost_found: Option<Ino>,
    pub(crate) inodes: u32,
    /// The first node number that is not in use.
    pub(crate) next_nid: u32,
    pub(crate) before: Before,
}

/// What was made.
#[derive(Clone, Debug)]
pub struct FormatReport {
    /// Bytes per block.
    pub block_bytes: u32,
    /// Blocks of the volume.
    pub blocks: u64,
    /// Blocks that users can fill.
    pub user_blocks: u64,
    /// Free ones of these.
    pub free_blocks: u64,
    /// Segments of the main area.
    pub segments: u32,
    /// Free segments.
    pub free_segments: u32,
    /// Segments kept for cleaning, the reserved ones included.
    pub overprovisioned_segments: u32,
    /// Segments that cleaning must find free.
    pub reserved_segments: u32,
    /// Inodes in use.
    pub inodes: u32,
    /// Nodes in use, inodes included.
    pub nodes: u32,
    /// Node numbers.
    pub nids: u32,
    /// Features by name.
    pub features: Vec<String>,
    /// UUID.
    pub uuid: [u8; 16],
    /// Bytes of the volume.
    pub bytes: u64,
}

impl Plan {
    /// Segments without valid blocks that no log writes to.
    pub(crate) fn free_segments(&self) -> u32 {
        let segments = |log: Log| self.places.segments(log, self.logs.used(log)).count() as u32;
        let used: u32 = Log::ALL.into_iter().map(segments).sum();
        self.shape.geo.main_segments - used
    }

    /// What the volume will be like.
    #[must_use]
    pub fn report(&self) -> FormatReport {
        let geo = &self.shape.geo;
        let nodes: usize = self.nodes.iter().map(Vec::len).sum();
        FormatReport {
            block_bytes: BLOCK_SIZE as u32,
            blocks: geo.blocks_count,
            user_blocks: self.shape.user_blocks(),
            free_blocks: self.shape.user_blocks() - self.logs.used_all(),
            segments: geo.main_segments,
            free_segments: self.free_segments(),
            overprovisioned_segments: self.shape.reserve.overprovisioned,
            reserved_segments: self.shape.reserve.reserved,
            inodes: self.inodes,
            nodes: nodes as u32,
            nids: geo.nids(),
            features: geo.features.names(),
            uuid: self.shape.uuid,
            bytes: geo.blocks_count << BLOCK_BITS,
        }
    }

    /// What the volume keeps of its files' inode flags and projects.
    #[must_use]
    pub fn kept_flags(&self) -> Kept {
        kept_flags(self.shape.geo.features)
    }

    /// Bytes of file data to copy, in whole blocks.
    #[must_use]
    pub fn data_bytes(&self) -> u64 {
        let blocks: u64 = self.data.iter().map(|(.., len, _)| *len).sum();
        blocks << BLOCK_BITS
    }

    /// The data of regular files as large pieces of the device.
    pub(crate) fn chunks(&self) -> Vec<Chunk> {
        // Logs interleave in the order of files; each is contiguous by itself.
        let mut runs: Vec<_> = self.data.iter().collect();
        runs.sort_by_key(|(_, _, place, ..)| self.places.address(*place));
        let mut out = Chunks::new(BLOCK_BITS);
        for (node, logical, place, len, last) in runs {
            let start = u64::from(self.places.address(*place).0);
            out.push(*node, *logical, start, *len, *last);
        }
        out.finish()
    }

    /// Entries of a directory, in name order.
    pub(crate) fn entries<'a>(&self, tree: &'a Tree, id: NodeId) -> Vec<Entry<'a>> {
        let children = &tree.node(id).children;
        let mut out: Vec<Entry<'a>> = children
            .iter()
            .map(|(name, child)| Entry {
                name,
                ino: self.ino_of[child.0 as usize],
                kind: tree.node(*child).kind,
            })
            .collect();
        if id == NodeId::ROOT
            && let Some(ino) = self.lost_found
        {
            let at = out.partition_point(|e| e.name < LOST_FOUND);
            out.insert(
                at,
                Entry {
                    name: LOST_FOUND,
                    ino,
                    kind: FileKind::Directory,
                },
            );
        }
        out
    }
}

/// Plans a volume of `bytes` bytes that holds `tree`.
///
/// # Errors
/// Options that are invalid together or for the size; trees that do not fit or cannot be stored.
pub fn plan(options: &FormatOptions, tree: &Tree, bytes: u64) -> Result<Plan> {
    let shape = Shape::new(options, bytes)?;
    let mut planner = Planner {
        features: shape.geo.features,
        shape,
        logs: Logs::default(),
        nodes: Default::default(),
        blocks: Vec::new(),
        data: Vec::new(),
        ino_of: vec![Ino(0); tree.nodes.len()],
        parent_of: HashMap::new(),
        inodes: 0,
        next_nid: Ino::ROOT.0,
        usage: Default::default(),
        now: TreeTime {
            secs: i64::try_from(options.now).unwrap_or(i64::MAX),
            nanos: 0,
        },
    };
    let lost_found = planner.tree(tree, options)?;
    let places = planner.logs.place(&planner.shape)?;
    Ok(Plan {
        shape: planner.shape,
        places,
        logs: planner.logs,
        nodes: planner.nodes,
        blocks: planner.blocks,
        data: planner.data,
        ino_of: planner.ino_of,
        parent_of: planner.parent_of,
        lost_found,
        inodes: planner.inodes,
        next_nid: planner.next_nid,
        before: options.before,
    })
}

struct Planner {
    features: Features,
    shape: Shape,
    logs: Logs,
    nodes: [Vec<PlannedNode>; 3],
    blocks: Vec<(Ino, Blocks, Place)>,
    data: Vec<(NodeId, u64, Place, u64, bool)>,
    ino_of: Vec<Ino>,
    parent_of: HashMap<NodeId, Ino>,
    inodes: u32,
    next_nid: u32,
    /// Bytes and inodes of users, groups and projects.
    usage: [BTreeMap<u32, (u64, u64)>; 3],
    now: TreeTime,
}

/// A file's run: first file block, place, blocks.
type Run = (u64, Place, u64);

impl Planner {
    /// Plans all files of the tree. Returns the inode of a lost+found that the tree does not have.
    fn tree(&mut self, tree: &Tree, options: &FormatOptions) -> Result<Option<Ino>> {
        let order = tree.reachable();
        let root = self.new_nid()?.as_ino();
        self.ino_of[0] = root;
        let quota = self.quota_inodes(options)?;
        let has = tree.node(NodeId::ROOT).children.contains_key(LOST_FOUND);
        let lost_found = if self.features.contains(Features::LOST_FOUND) && !has {
            Some(self.new_nid()?.as_ino())
        } else {
            None
        };
        // The first name of a node: for recovery, which finds a file's directory by it.
        let mut named: HashMap<NodeId, (NodeId, &[u8])> = HashMap::new();
        for (id, _) in &order {
            let node = tree.node(*id);
            for (name, child) in &node.children {
                if !valid_name(name) {
                    return Err(MkfsError::Tree {
                        name: String::from_utf8_lossy(name).into_owned(),
                        reason: "not a name the format can hold".into(),
                    });
                }
                let twice = named.insert(*child, (*id, name));
                if let Some(first) = twice {
                    if tree.node(*child).kind == FileKind::Directory {
                        return Err(MkfsError::Tree {
                            name: String::from_utf8_lossy(name).into_owned(),
                            reason: "a directory with two parents".into(),
                        });
                    }
                    named.insert(*child, first);
                }
            }
        }
        for (id, links) in &order {
            let parent = named.get(id).copied();
            let own = *id == NodeId::ROOT && lost_found.is_some();
            self.node(tree, *id, links + u32::from(own), parent, own)
                .map_err(|e| e.of_node(tree, *id))?;
            if own && let Some(ino) = lost_found {
                self.make_lost_found(ino)?;
            }
        }
        self.quota_files(&quota)?;
        Ok(lost_found)
    }

    fn new_nid(&mut self) -> Result<Nid> {
        let nid = self.next_nid;
        let nids = self.shape.geo.nids();
        if nid >= nids {
            return Err(MkfsError::NoInodes {
                inodes: u64::from(nids),
                needed: u64::from(nid) + 1,
            });
        }
        self.next_nid += 1;
        Ok(Nid(nid))
    }

    /// Adds a node at the end of a log; its position among the log's nodes.
    fn push(
        &mut self,
        log: Log,
        nid: Nid,
        ino: Ino,
        offset: NodeOffset,
        content: NodeContent,
    ) -> usize {
        self.logs.take(log, 1);
        self.logs.own(log, nid, 0, 1);
        let list = &mut self.nodes[log.temperature()];
        list.push(PlannedNode {
            nid,
            ino,
            offset,
            content,
            addresses: Vec::new(),
        });
        list.len() - 1
    }

    fn charge(&mut self, inode: &Inode, ids: (u32, u32, u32)) {
        // Everything but the inode's own block.
        let bytes = (inode.blocks - 1) << BLOCK_BITS;
        let ids = [ids.0, ids.1, ids.2];
        for (usage, id) in self.usage.iter_mut().zip(ids) {
            let used = usage.entry(id).or_default();
            used.0 += bytes;
            used.1 += 1;
        }
    }

    fn base_inode(&self, mode: u16, node: Option<&Node>) -> Inode {
        let mut inode = Inode::new(mode, self.features);
        let time = |f: fn(&Node) -> TreeTime| Timestamp::from(node.map_or(self.now, f));
        inode.atime = time(|n| n.atime);
        inode.mtime = time(|n| n.mtime);
        inode.ctime = time(|n| n.ctime);
        let crtime = time(|n| n.crtime);
        inode.inline |= InlineFlags::XATTR;
        let kept = kept_flags(self.features);
        let flags = node.map_or(Flags::empty(), |n| kept.of(n.kind, n.flags));
        if let Some(extra) = &mut inode.extra {
            if self.features.contains(Features::INODE_CRTIME) {
                extra.crtime = crtime;
            }
            if self.features.contains(Features::FLEXIBLE_INLINE_XATTR) {
                extra.inline_xattr_words = INLINE_XATTR_WORDS as u16;
            }
            if let (true, Some(n)) = (self.features.contains(Features::PROJECT_QUOTA), node) {
                extra.projid = n.project;
            }
            if flags.contains(Flags::COMPRESSED) {
                extra.compress_algorithm = COMPRESS_LZ4;
                extra.log_cluster_size = CLUSTER_LOG_MIN;
            }
        }
        inode.flags |= InodeFlags::from_bits_truncate(flags.bits());
        if let Some(n) = node {
            (inode.uid, inode.gid) = (n.uid, n.gid);
        }
        inode
    }

    /// Plans one file: its inode, its blocks, and the nodes that point to them.
    fn node(
        &mut self,
        tree: &Tree,
        id: NodeId,
        links: u32,
        parent: Option<(NodeId, &[u8])>,
        own_lost_found: bool,
    ) -> Result<()> {
        let node = tree.node(id);
        let shown = match parent {
            Some((_, name)) => String::from_utf8_lossy(name).into_owned(),
            None if id == NodeId::ROOT => "/".to_owned(),
            None => describe(id),
        };
        let ino = if id == NodeId::ROOT {
            Ino::ROOT
        } else {
            self.new_nid()?.as_ino()
        };
        self.ino_of[id.0 as usize] = ino;
        let directory = node.kind == FileKind::Directory;
        let mut inode = self.base_inode(node.kind.mode_bits() | node.perm & 0o7777, Some(node));
        inode.links = links;
        if let Some((dir, name)) = parent {
            inode.pino = self.ino_of[dir.0 as usize];
            inode.name = name.to_vec();
            if directory {
                self.parent_of.insert(id, inode.pino);
            }
        }
        let layout = inode.layout(self.features);
        let log = node_log(directory);
        let at = self.push(log, ino.nid(), ino, NodeOffset::INODE, NodeContent::Direct);
        let attributes = Attributes::of(node, &shown)?;
        let (xattrs, xattr_node) = attributes.build(layout.xattr_bytes().len(), &shown)?;
        if let Some(bytes) = xattr_node {
            let nid = self.new_nid()?;
            self.push(log, nid, ino, NodeOffset::XATTR, NodeContent::Xattr(bytes));
            inode.xattr_nid = nid;
            inode.blocks += 1;
        }
        let mut planned = PlannedInode {
            inode,
            layout,
            body: Body::Addresses,
            xattrs,
            extent: None,
        };
        match node.kind {
            FileKind::Directory => {
                self.directory(node, id, ino, &mut planned, at, own_lost_found)?;
            }
            FileKind::Regular => {
                let name = parent.map_or(&b""[..], |(_, name)| name);
                self.regular(node, id, ino, &mut planned, at, name)?;
            }
            FileKind::Symlink => self.symlink(node, ino, &mut planned, at)?,
            FileKind::CharDevice | FileKind::BlockDevice => {
                let (major, minor) = node.device;
                if major > 0xFFF || minor > 0xF_FFFF {
                    return Err(MkfsError::Tree {
                        name: shown,
                        reason: format!("device {major}:{minor} cannot be stored"),
                    });
                }
                planned.body = Body::Device(encode_device(major, minor));
            }
            FileKind::Fifo | FileKind::Socket => {}
        }
        let project = planned.inode.extra.map_or(0, |e| e.projid);
        self.finish(planned, log, at, (node.uid, node.gid, project));
        Ok(())
    }

    /// Puts the finished inode into its place.
    fn finish(&mut self, planned: PlannedInode, log: Log, at: usize, ids: (u32, u32, u32)) {
        self.inodes += 1;
        self.charge(&planned.inode, ids);
        if let Some(node) = self.nodes[log.temperature()].get_mut(at) {
            node.content = NodeContent::Inode(Box::new(planned));
        }
    }

    /// Plans the blocks of a directory's entries.
    fn directory(
        &mut self,
        node: &Node,
        id: NodeId,
        ino: Ino,
        planned: &mut PlannedInode,
        at: usize,
        own_lost_found: bool,
    ) -> Result<()> {
        let mut names: Vec<&[u8]> = node.children.keys().map(Vec::as_slice).collect();
        if own_lost_found {
            let at = names.partition_point(|n| *n < LOST_FOUND);
            names.insert(at, LOST_FOUND);
        }
        planned.inode.current_depth = 1;
        let inline = planned.layout.inline_dentries();
        // The root is never inline, as mkfs.f2fs makes it.
        if id != NodeId::ROOT && dirs::fits_inline(names.iter().copied(), &inline) {
            planned.inode.inline |= InlineFlags::DENTRY;
            planned.inode.size = planned.layout.inline_bytes().len() as u64;
            planned.body = Body::InlineDir(id);
            return Ok(());
        }
        let shape = dirs::shape(names.into_iter())?;
        planned.inode.current_depth = shape.depth;
        let end = shape.blocks.last().map_or(0, |b| b + 1);
        planned.inode.size = end << BLOCK_BITS;
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for b in &shape.blocks {
            match ranges.last_mut() {
                Some(last) if last.1 == *b => last.1 += 1,
                _ => ranges.push((*b, b + 1)),
            }
        }
        let runs = self.map(ino, planned, at, Log::HotNode, Log::HotData, &ranges)?;
        // Ranges are taken one after the other from one log, so all blocks lie in a row.
        if let Some((_, place, _)) = runs.first() {
            self.blocks.push((ino, Blocks::Dir(id, shape), *place));
        }
        Ok(())
    }

    /// Plans where the data of a regular file lie: inline, or in the log of its temperature.
    fn regular(
        &mut self,
        node: &Node,
        id: NodeId,
        ino: Ino,
        planned: &mut PlannedInode,
        at: usize,
        name: &[u8],
    ) -> Result<()> {
        planned.inode.size = node.size;
        let log = self.shape.raw.temperature(name);
        match log {
            Log::ColdData => planned.inode.advise |= Advise::COLD,
            Log::HotData => planned.inode.advise |= Advise::HOT,
            _ => {}
        }
        let room = planned.layout.inline_bytes().len() as u64;
        if node.verity.is_some() {
            if !self.features.contains(Features::VERITY) {
                return Err(MkfsError::Tree {
                    name: String::from_utf8_lossy(name).into_owned(),
                    reason: "fs-verity needs -O verity".to_owned(),
                });
            }
            planned.inode.advise |= Advise::VERITY;
        } else if node.size > 0 && node.size <= room && node.data.first() == Some(&(0..node.size)) {
            planned.inode.inline |= InlineFlags::DATA | InlineFlags::DATA_EXIST;
            planned.body = Body::InlineData(id);
            return Ok(());
        }
        let max = node::file_blocks_max(planned.layout.addresses());
        if node.stored_bytes() > max << BLOCK_BITS {
            return Err(MkfsError::Tree {
                name: String::from_utf8_lossy(name).into_owned(),
                reason: format!("{} bytes are more than a file can have", node.size),
            });
        }
        let ranges = block_ranges(&node.data, node.stored_bytes(), BLOCK_BITS);
        let runs = self.map(ino, planned, at, Log::WarmNode, log, &ranges)?;
        let longest = runs
            .iter()
            .max_by_key(|(logical, _, len)| (*len, u64::MAX - logical));
        planned.extent = longest
            .and_then(|(logical, place, len)| Some((*logical, *place, u32::try_from(*len).ok()?)));
        let count = runs.len();
        for (n, (logical, place, len)) in runs.into_iter().enumerate() {
            self.data.push((id, logical, place, len, n + 1 == count));
        }
        Ok(())
    }

    fn symlink(
        &mut self,
        node: &Node,
        ino: Ino,
        planned: &mut PlannedInode,
        at: usize,
    ) -> Result<()> {
        let target = &node.symlink;
        let most = BLOCK_SIZE - 1;
        if target.is_empty() || target.len() > most || target.contains(&0) {
            return Err(MkfsError::Tree {
                name: format!("symbolic link to {}", String::from_utf8_lossy(target)),
                reason: format!("a target has 1 to {most} bytes"),
            });
        }
        planned.inode.size = target.len() as u64;
        if target.len() <= planned.layout.inline_bytes().len() {
            planned.inode.inline |= InlineFlags::DATA | InlineFlags::DATA_EXIST;
            planned.body = Body::InlineBytes(target.clone());
            return Ok(());
        }
        self.bytes(ino, planned, at, target.clone())
    }

    /// Data that is known already.
    fn bytes(
        &mut self,
        ino: Ino,
        planned: &mut PlannedInode,
        at: usize,
        bytes: Vec<u8>,
    ) -> Result<()> {
        let blocks = (bytes.len() as u64).div_ceil(BLOCK_SIZE as u64);
        let ranges = [(0, blocks)];
        let runs = self.map(ino, planned, at, Log::WarmNode, Log::WarmData, &ranges)?;
        if let Some((_, place, _)) = runs.first() {
            self.blocks.push((ino, Blocks::Bytes(bytes), *place));
        }
        Ok(())
    }

    /// Takes blocks for ranges of file blocks, and makes the nodes that map them. `at` is the inode's
    /// position among its log's nodes.
    fn map(
        &mut self,
        ino: Ino,
        planned: &mut PlannedInode,
        at: usize,
        node_log: Log,
        data_log: Log,
        ranges: &[(u64, u64)],
    ) -> Result<Vec<Run>> {
        let in_inode = planned.layout.addresses();
        let mut runs: Vec<Run> = Vec::with_capacity(ranges.len());
        // Indirect nodes of the file: position among their log's nodes.
        let mut indirect: HashMap<NodeOffset, usize> = HashMap::new();
        let mut leaf: Option<(NodeOffset, usize)> = None;
        for (start, end) in ranges {
            let first = self.logs.take(data_log, end - start);
            runs.push((*start, first, end - start));
            planned.inode.blocks += end - start;
            let mut block = *start;
            while block < *end {
                let path = node_path(block, in_inode, 1).ok_or_else(|| MkfsError::Tree {
                    name: format!("inode {ino}"),
                    reason: "its data lies past the end of the largest file".into(),
                })?;
                let position = path.positions[path.depth];
                let (owner, room) = if path.depth == 0 {
                    (at, in_inode - position)
                } else {
                    let offset = path.offsets[path.depth];
                    let index = match leaf {
                        Some((o, index)) if o == offset => index,
                        _ => self.leaf(ino, planned, node_log, &path, &mut indirect)?,
                    };
                    leaf = Some((offset, index));
                    (index, PER_NODE - position)
                };
                let len = (end - block).min(room as u64) as usize;
                let place = Place {
                    log: data_log,
                    index: first.index + (block - start),
                };
                let node = &mut self.nodes[node_log.temperature()][owner];
                node.addresses.push(AddressRun {
                    position,
                    place,
                    len,
                });
                let nid = node.nid;
                self.logs.own(data_log, nid, position, len);
                block += len as u64;
            }
        }
        Ok(runs)
    }

    /// Makes a direct node and the indirect ones above it, as far as they are not there; its
    /// position among its log's nodes.
    fn leaf(
        &mut self,
        ino: Ino,
        planned: &mut PlannedInode,
        node_log: Log,
        path: &node::NodePath,
        indirect: &mut HashMap<NodeOffset, usize>,
    ) -> Result<usize> {
        let mut above: Option<usize> = None;
        let mut index = 0;
        for level in 1..=path.depth {
            let offset = path.offsets[level];
            if let Some(known) = indirect.get(&offset) {
                above = Some(*known);
                continue;
            }
            let is_leaf = level == path.depth;
            let nid = self.new_nid()?;
            planned.inode.blocks += 1;
            index = if is_leaf {
                self.push(node_log, nid, ino, offset, NodeContent::Direct)
            } else {
                let content = NodeContent::Indirect(Vec::new());
                self.push(Log::ColdNode, nid, ino, offset, content)
            };
            // Named by the node above, or by the inode.
            let position = path.positions[level - 1];
            match above {
                None => planned.inode.nids[position] = nid,
                Some(above) => {
                    let parent = &mut self.nodes[Log::ColdNode.temperature()][above];
                    if let NodeContent::Indirect(list) = &mut parent.content {
                        list.push((position, nid));
                    }
                }
            }
            if !is_leaf {
                indirect.insert(offset, index);
                above = Some(index);
            }
        }
        Ok(index)
    }

    fn make_lost_found(&mut self, ino: Ino) -> Result<()> {
        let mut inode = self.base_inode(FileKind::Directory.mode_bits() | 0o700, None);
        inode.links = 2;
        inode.pino = Ino::ROOT;
        inode.name = LOST_FOUND.to_vec();
        inode.current_depth = 1;
        inode.size = BLOCK_SIZE as u64;
        let layout = inode.layout(self.features);
        let log = Log::HotNode;
        let at = self.push(log, ino.nid(), ino, NodeOffset::INODE, NodeContent::Direct);
        let mut planned = PlannedInode {
            inode,
            layout,
            body: Body::Addresses,
            xattrs: vec![0; layout.xattr_bytes().len()],
            extent: None,
        };
        let runs = self.map(ino, &mut planned, at, log, Log::HotData, &[(0, 1)])?;
        if let Some((_, place, _)) = runs.first() {
            let empty = dirs::shape(std::iter::empty())?;
            let mut blocks = dirs::build(ino, Ino::ROOT, &[], &empty)?;
            let bytes = blocks.pop().unwrap_or_default();
            self.blocks.push((ino, Blocks::Bytes(bytes), *place));
        }
        self.finish(planned, log, at, (0, 0, 0));
        Ok(())
    }

    /// Numbers of the quota files.
    fn quota_inodes(&mut self, options: &FormatOptions) -> Result<Vec<(QuotaKind, Ino)>> {
        let mut out = Vec::new();
        for kind in options.quota_kinds()? {
            let ino = self.new_nid()?.as_ino();
            let at = match kind {
                QuotaKind::User => 0,
                QuotaKind::Group => 1,
                QuotaKind::Project => 2,
            };
            self.shape.raw.qf_ino[at].set(ino.0);
            out.push((kind, ino));
        }
        self.shape.raw.set_checksum();
        Ok(out)
    }

    /// The quota files, counting everything planned so far; they are not counted themselves.
    fn quota_files(&mut self, files: &[(QuotaKind, Ino)]) -> Result<()> {
        let usage = std::mem::take(&mut self.usage);
        for (kind, ino) in files {
            let of = match kind {
                QuotaKind::User => &usage[0],
                QuotaKind::Group => &usage[1],
                QuotaKind::Project => &usage[2],
            };
            let entries = of
                .iter()
                .map(|(id, (bytes, inodes))| (*id, usage_entry(*id, *bytes, *inodes)))
                .collect();
            let bytes = quota_file(*kind, Grace::default(), &entries);
            let mut inode = self.base_inode(FileKind::Regular.mode_bits() | 0o600, None);
            inode.flags |= InodeFlags::IMMUTABLE;
            inode.size = bytes.len() as u64;
            let layout = inode.layout(self.features);
            let log = Log::WarmNode;
            let at = self.push(log, ino.nid(), *ino, NodeOffset::INODE, NodeContent::Direct);
            let mut planned = PlannedInode {
                inode,
                layout,
                body: Body::Addresses,
                xattrs: vec![0; layout.xattr_bytes().len()],
                extent: None,
            };
            self.bytes(*ino, &mut planned, at, bytes)?;
            self.finish(planned, log, at, (0, 0, 0));
        }
        Ok(())
    }
}

impl PlannedInode {
    /// The inode with its extent's address.
    pub(crate) fn resolved(&self, places: &LogPlaces) -> Inode {
        let mut inode = self.inode.clone();
        if let Some((logical, place, len)) = self.extent {
            inode.extent = (FileBlock(logical), places.address(place), len);
        }
        inode
    }
}
