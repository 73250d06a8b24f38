//! Planning a volume: the inode number and the blocks of each file.
//!
//! Order of allocation: journal (in the middle of the volume when there is room); the volume's own
//! files; all directories, attribute blocks and long symlinks with their owners; file data in the
//! order of the walk. So a cold walk reads one stretch, and every file lies in one piece.

use super::base::{self, Base};
use super::files::{self, kept_flags, link_count, lost_found_blocks};
use super::layout::{GroupPlace, Layout};
use super::mapping::{self, MapRun, MetaBlock};
use super::options::FormatOptions;
use super::planned::{Content, Plan, PlannedInode};
use super::shape::{Shape, check_inode_bytes, default_block_bytes};
use super::space::{Run, Space};
use super::special;
use super::xattrs::{self, Placed, Stored, ValueInodes};
use crate::tree::{Node, NodeId, Tree, block_ranges, valid_name};
use crate::{MkfsError, Result};
use blockwright_ondisk::ext4::dir_layout::{self, DirRules, DirShape, Entry};
use blockwright_ondisk::ext4::quota::RawQuotaEntry;
use blockwright_ondisk::ext4::quota_layout::{Grace, QuotaKind, quota_file, usage_entry};
use blockwright_ondisk::ext4::superblock::Superblock;
use blockwright_ondisk::ext4::xattr::REFCOUNT_MAX;
use blockwright_ondisk::ext4::{
    BlockNo, Compat, FileKind, GroupNo, Incompat, Ino, Inode, InodeFlags, RawSuperblock, RoCompat,
    Timestamp,
};
use std::collections::{BTreeMap, HashMap};

/// Plans a volume of `bytes` bytes that holds `tree`.
///
/// # Errors
/// Options that are invalid, a tree the format cannot hold, [`MkfsError::NoSpace`] when it does
/// not fit.
pub fn plan(options: &FormatOptions, tree: &Tree, bytes: u64) -> Result<Plan> {
    plan_over(options, tree, bytes, None)
}

/// As [`plan`], with what an earlier build has in common with the tree in its places. With the feature `metadata_csum_seed`, checksums start from the
/// earlier build's seed, so that unchanged metadata stays the same although the UUID is another one.
///
/// # Errors
/// As [`plan`]; a base with other blocks, or clusters.
pub fn plan_over(
    options: &FormatOptions,
    tree: &Tree,
    bytes: u64,
    base: Option<&Base>,
) -> Result<Plan> {
    let order = tree.reachable();
    let block_bytes = options
        .block_bytes
        .unwrap_or_else(|| default_block_bytes(bytes));
    let features = options.effective_features()?;
    check_inode_bytes(options.inode_bytes, block_bytes)?;
    let extra = if options.inode_bytes > 128 { 32 } else { 0 };
    let body_room = usize::from(options.inode_bytes - 128 - extra);
    let ea_inode = features.has_incompat(Incompat::EA_INODE);
    let mut placed: Vec<Placed> = Vec::with_capacity(order.len());
    for (id, _) in &order {
        let node = tree.node(*id);
        let p = xattrs::place(node, body_room, block_bytes as usize, ea_inode)
            .map_err(|e| e.of_node(tree, *id))?;
        placed.push(p);
    }
    let value_inodes = large_values(&placed);
    let extras = 8; // lost+found, project quota, orphan file, and a few to spare for later
    let needed = (order.len() + value_inodes.len() + extras) as u64;
    let mut shape = Shape::new(options, bytes, needed)?;
    if !placed
        .iter()
        .all(|p| p.block.is_empty() && p.body.is_empty())
    {
        shape.add_feature(Compat::EXT_ATTR);
    }
    if order
        .iter()
        .any(|(id, _)| tree.node(*id).size > i32::MAX as u64)
    {
        shape.add_ro_feature(RoCompat::LARGE_FILE);
    }
    if let Some(base) = base {
        if shape.geo.block_size != base.block_bytes {
            return Err(MkfsError::option(
                "--base",
                format!(
                    "the base has blocks of {} bytes, and the volume blocks of {}",
                    base.block_bytes, shape.geo.block_size
                ),
            ));
        }
        if shape.geo.cluster_bits > 0 {
            let what = "a volume with bigalloc is not laid over another one";
            return Err(MkfsError::option("--base", what));
        }
        if let Some(seed) = base.checksum_seed {
            shape.start_checksums_from(seed);
        }
    }
    let layout = Layout::new(&shape)?;
    let hash = Superblock {
        raw: shape.raw,
        geo: shape.geo.clone(),
    }
    .default_hash()?;
    let rules = DirRules::new(&shape.geo, hash, shape.raw.hash_seed());
    let planner = Planner {
        now: Timestamp {
            secs: i64::try_from(options.now).unwrap_or(i64::MAX),
            nanos: 0,
        },
        body_room,
        raw: shape.raw,
        space: layout.space,
        inodes: Vec::with_capacity(order.len() + 16),
        meta: Vec::new(),
        ino_of: vec![Ino(0); tree.nodes.len()],
        usage: [BTreeMap::new(), BTreeMap::new(), BTreeMap::new()],
        shared_blocks: HashMap::new(),
        values: ValueInodes::new(),
        lost_found: None,
        parent_of: HashMap::new(),
        next_ino: 11,
        rules,
        shape,
        tree,
        base,
        kept: HashMap::new(),
    };
    planner.run(
        layout.places,
        layout.overhead_clusters,
        &order,
        placed,
        value_inodes,
        options,
    )
}

/// Values that get an inode of their own, with how many attributes have each.
fn large_values(placed: &[Placed]) -> BTreeMap<Vec<u8>, u64> {
    let mut out = BTreeMap::new();
    for s in placed.iter().flat_map(|p| p.body.iter().chain(&p.block)) {
        if s.in_inode {
            *out.entry(s.value.clone()).or_insert(0) += 1;
        }
    }
    out
}

pub(crate) struct Planner<'t> {
    pub shape: Shape,
    pub raw: RawSuperblock,
    pub space: Space,
    pub rules: DirRules,
    pub now: Timestamp,
    pub body_room: usize,
    tree: &'t Tree,
    inodes: Vec<PlannedInode>,
    meta: Vec<MetaBlock>,
    ino_of: Vec<Ino>,
    lost_found: Option<NodeId>,
    parent_of: HashMap<NodeId, Ino>,
    next_ino: u32,
    /// By user, group and project.
    usage: [BTreeMap<u32, RawQuotaEntry>; 3],
    /// Attribute blocks by contents: where, position in `meta`, users so far.
    shared_blocks: HashMap<Vec<Stored>, (BlockNo, usize, u32)>,
    values: ValueInodes,
    base: Option<&'t Base>,
    /// Blocks that files have where the base had them; each leaves when its file is planned.
    kept: HashMap<NodeId, Vec<MapRun>>,
}

impl<'t> Planner<'t> {
    /// Plans all files, in the order of their inodes, then the volume around them.
    fn run(
        mut self,
        places: Vec<GroupPlace>,
        overhead_clusters: u64,
        order: &[(NodeId, u32)],
        placed: Vec<Placed>,
        value_inodes: BTreeMap<Vec<u8>, u64>,
        options: &FormatOptions,
    ) -> Result<Plan> {
        let f = self.shape.geo.features;
        let quota = f.has_ro_compat(RoCompat::QUOTA);
        let project = quota && f.has_ro_compat(RoCompat::PROJECT);
        let orphan_blocks = self.shape.orphan_blocks;

        // Numbers first: directories hold the numbers of what they name.
        self.ino_of[0] = Ino::ROOT;
        let lost_ino = self.new_ino()?;
        self.lost_found = self.find_lost_found()?;
        if let Some(id) = self.lost_found {
            self.ino_of[id.0 as usize] = lost_ino;
        }
        let project_ino = if project { Some(self.new_ino()?) } else { None };
        let orphan_ino = if orphan_blocks > 0 {
            Some(self.new_ino()?)
        } else {
            None
        };
        self.number_nodes(order, value_inodes.len())?;

        self.bad_blocks_inode();
        self.journal()?;
        self.space.seek(BlockNo(0));
        self.resize_inode()?;
        self.plan_value_inodes(&value_inodes)?;
        self.keep_blocks(order, &placed);

        let links: Vec<u32> = order.iter().map(|(_, l)| *l).collect();
        let mut placed: Vec<Option<Placed>> = placed.into_iter().map(Some).collect();
        // Directories before anything else that a tree has.
        for dirs_now in [true, false] {
            for (at, (id, _)) in order.iter().enumerate() {
                let node = self.tree.node(*id);
                if (node.kind == FileKind::Directory) == dirs_now {
                    let attributes = placed[at].take().unwrap_or_default();
                    self.node(*id, node, links[at], attributes)
                        .map_err(|e| e.of_node(self.tree, *id))?;
                }
            }
            if dirs_now && self.lost_found.is_none() {
                self.make_lost_found(lost_ino)?;
            }
        }
        if let Some(ino) = orphan_ino {
            self.orphan_file(ino, orphan_blocks)?;
        }
        if quota {
            self.quota_files(project_ino)?;
        }
        if f.has_incompat(Incompat::MMP) {
            let block = self.space.take_one();
            self.raw.mmp_block.set(block.0);
            self.meta.push((block, special::mmp_block(&self.shape)));
        }
        self.finish(places, overhead_clusters, options)
    }

    /// Fills in bitmaps, counts and the superblock, once all blocks are taken.
    fn finish(
        mut self,
        places: Vec<GroupPlace>,
        overhead_clusters: u64,
        options: &FormatOptions,
    ) -> Result<Plan> {
        let geo = &self.shape.geo;
        let missing = self.space.missing_blocks();
        if missing > 0 {
            return Err(MkfsError::NoSpace {
                blocks: geo.blocks_count,
                missing,
                block_bytes: geo.block_size,
            });
        }
        let journal_clusters = u64::from(self.shape.journal_blocks) >> geo.cluster_bits;
        let overhead = overhead_clusters + journal_clusters;
        self.raw
            .overhead_blocks
            .set(u32::try_from(overhead).unwrap_or(0));
        let last_ino = self.next_ino - 1;
        let reserved = Ino::FIRST_NON_RESERVED.0 - 1;
        let planned = self.inodes.iter().filter(|i| i.ino.0 > reserved).count();
        let used = reserved + u32::try_from(planned).unwrap_or(u32::MAX);
        self.raw
            .free_inodes_count
            .set(geo.inodes_count.saturating_sub(used));
        self.raw.set_free_blocks_count(self.space.free_blocks());
        self.raw.set_features(geo.features);
        self.inodes.sort_by_key(|i| i.ino);
        Ok(Plan {
            raw: self.raw,
            places,
            space: self.space,
            inodes: self.inodes,
            meta: self.meta,
            ino_of: self.ino_of,
            lost_found: self.lost_found,
            parent_of: self.parent_of,
            last_ino,
            before: options.before,
            body_room: self.body_room,
            values: self.values,
            rules: self.rules,
            shape: self.shape,
        })
    }

    pub fn new_ino(&mut self) -> Result<Ino> {
        let ino = self.next_ino;
        let inodes = self.shape.geo.inodes_count;
        if ino > inodes {
            let needed = self.tree.nodes.len() as u64 + 11;
            return Err(MkfsError::NoInodes {
                inodes: u64::from(inodes),
                needed,
            });
        }
        self.next_ino += 1;
        Ok(Ino(ino))
    }

    pub fn push(&mut self, ino: Ino, inode: Inode, runs: Vec<MapRun>, content: Content) {
        self.inodes.push(PlannedInode {
            ino,
            inode,
            body: Vec::new(),
            runs,
            content,
        });
    }

    /// An inode of the volume's own: owned by root, made now.
    pub fn own_inode(&self, mode: u16) -> Inode {
        let mut inode = Inode::new(&self.shape.geo, mode);
        inode.links = 1;
        (inode.atime, inode.mtime, inode.ctime) = (self.now, self.now, self.now);
        inode.crtime = inode.crtime.map(|_| self.now);
        inode
    }

    /// Maps `runs` in `inode`, with the feature's way of doing it, and counts the space.
    pub fn map(&mut self, ino: Ino, inode: &mut Inode, runs: &[MapRun], taken: u64) -> Result<()> {
        let geo = &self.shape.geo;
        let mapping = if geo.features.has_incompat(Incompat::EXTENT) {
            inode.flags |= InodeFlags::EXTENTS;
            let seed = geo.inode_seed(ino, inode.generation);
            mapping::extents(runs, geo, seed, &mut self.space)?
        } else {
            mapping::block_map(runs, geo, &mut self.space)?
        };
        inode.block = mapping.root;
        let meta = mapping.meta.len() as u64 * u64::from(geo.cluster_ratio);
        inode.sectors = (taken + meta) << (geo.block_bits - 9);
        self.meta.extend(mapping.meta);
        Ok(())
    }

    /// Takes blocks for `ranges` of a file (in file blocks). Returns the runs and how many blocks
    /// are taken (whole clusters).
    pub fn take_ranges(&mut self, ranges: &[(u64, u64)]) -> (Vec<MapRun>, u64) {
        let (mut runs, taken) =
            files::take_ranges(&mut self.space, self.shape.geo.cluster_ratio, ranges);
        files::cut_at(&mut runs, ranges.last().map_or(0, |r| r.1));
        (runs, taken)
    }

    /// Numbers for what has none yet. `spare` numbers stay free behind the last one.
    fn number_nodes(&mut self, order: &[(NodeId, u32)], spare: usize) -> Result<()> {
        let ids = order.iter().map(|(id, _)| *id);
        let open: Vec<NodeId> = ids.filter(|id| self.ino_of[id.0 as usize].0 == 0).collect();
        let inodes = self.shape.geo.inodes_count;
        let numbers = base::numbers(self.base, &open, self.next_ino..=inodes, spare);
        let numbers = numbers.ok_or(MkfsError::NoInodes {
            inodes: u64::from(inodes),
            needed: self.tree.nodes.len() as u64 + 11,
        })?;
        for (id, number) in open.into_iter().zip(numbers) {
            self.ino_of[id.0 as usize] = Ino(number);
            self.next_ino = self.next_ino.max(number + 1);
        }
        Ok(())
    }

    /// Takes the blocks that the base's files have, before anything else of the tree gets blocks. A file needs as many as it had, or fewer.
    fn keep_blocks(&mut self, order: &[(NodeId, u32)], placed: &[Placed]) {
        let Some(base) = self.base else { return };
        self.space.prefer_whole();
        for ((id, _), attributes) in order.iter().zip(placed) {
            let Some(file) = base.files.get(id) else {
                continue;
            };
            let node = self.tree.node(*id);
            let ranges = match node.kind {
                FileKind::Regular if !self.is_inline(node, attributes) => {
                    block_ranges(&node.data, node.stored_bytes(), self.shape.geo.block_bits)
                }
                FileKind::Directory => {
                    let entries = self.all_entries(*id, node);
                    match dir_layout::shape(&entries, &self.rules) {
                        Ok(shape) => vec![(0, self.dir_blocks(*id, &shape))],
                        // Planning the directory will say what is wrong.
                        Err(_) => continue,
                    }
                }
                _ => continue,
            };
            let Some(runs) = base::runs(file, &ranges).filter(|runs| !runs.is_empty()) else {
                continue;
            };
            let blocks = runs.iter().map(|r| Run {
                start: r.physical,
                len: r.len,
            });
            if self.space.take_exactly(blocks) {
                self.kept.insert(*id, runs);
            }
        }
    }

    /// As [`Planner::take_ranges`], for a file that may have kept its blocks.
    fn take_for(&mut self, id: NodeId, ranges: &[(u64, u64)]) -> (Vec<MapRun>, u64) {
        match self.kept.remove(&id) {
            Some(runs) => {
                let taken = runs.iter().map(|r| r.len).sum();
                (runs, taken)
            }
            None => self.take_ranges(ranges),
        }
    }

    /// The entries of a directory, with the lost+found that the volume adds.
    fn all_entries(&self, id: NodeId, node: &'t Node) -> Vec<Entry<'t>> {
        let mut entries = Self::entries(self.tree, &self.ino_of, node);
        if id == NodeId::ROOT && self.lost_found.is_none() {
            files::insert_lost_found(&mut entries);
        }
        entries
    }

    /// Blocks of a directory: a lost+found of the tree has room for what a checker finds.
    fn dir_blocks(&self, id: NodeId, shape: &DirShape) -> u64 {
        match self.lost_found == Some(id) && !shape.indexed {
            true => shape
                .blocks
                .max(lost_found_blocks(self.shape.geo.block_bits)),
            false => shape.blocks,
        }
    }

    /// Whether a regular file's data lies in its inode.
    fn is_inline(&self, node: &Node, attributes: &Placed) -> bool {
        self.shape.geo.features.has_incompat(Incompat::INLINE_DATA)
            && node.verity.is_none()
            && node.size > 0
            && node.size <= files::inline_bytes_max(self.body_room, &attributes.body)
            && node.data.first() == Some(&(0..node.size))
    }

    fn find_lost_found(&self) -> Result<Option<NodeId>> {
        let root = self.tree.node(NodeId::ROOT);
        let Some(id) = root.children.get(&b"lost+found"[..]) else {
            return Ok(None);
        };
        if self.tree.node(*id).kind != FileKind::Directory {
            return Err(MkfsError::Tree {
                name: "/lost+found".into(),
                reason: "checkers need this name for a directory".into(),
            });
        }
        Ok(Some(*id))
    }

    fn charge(&mut self, node: (u32, u32, u32), bytes: u64, inodes: u64) {
        let ids = [node.0, node.1, node.2];
        for (usage, id) in self.usage.iter_mut().zip(ids) {
            let used = usage.entry(id).or_insert_with(|| usage_entry(id, 0, 0));
            used.curspace += bytes;
            used.curinodes += inodes;
        }
    }

    /// lost+found with blocks in it: a checker must not have to allocate any to a full volume.
    fn make_lost_found(&mut self, ino: Ino) -> Result<()> {
        let blocks = lost_found_blocks(self.shape.geo.block_bits);
        let mut inode = self.own_inode(FileKind::Directory.mode_bits() | 0o700);
        inode.links = 2;
        inode.size = blocks << self.shape.geo.block_bits;
        let (runs, taken) = self.take_ranges(&[(0, blocks)]);
        self.map(ino, &mut inode, &runs, taken)?;
        self.charge((0, 0, 0), inode.sectors << 9, 1);
        self.push(ino, inode, runs, Content::EmptyDir(blocks));
        Ok(())
    }

    /// The entries of a directory, in name order.
    pub(crate) fn entries<'a>(tree: &'a Tree, ino_of: &[Ino], node: &'a Node) -> Vec<Entry<'a>> {
        let entry = |(name, id): (&'a Vec<u8>, &NodeId)| Entry {
            name,
            ino: ino_of[id.0 as usize],
            kind: tree.node(*id).kind,
            hash: None,
        };
        node.children.iter().map(entry).collect()
    }

    /// Plans one file: its inode, its attributes and its blocks.
    fn node(&mut self, id: NodeId, node: &'t Node, links: u32, attributes: Placed) -> Result<()> {
        let ino = self.ino_of[id.0 as usize];
        let geo = &self.shape.geo;
        let mut inode = Inode::new(geo, node.kind.mode_bits() | node.perm & 0o7777);
        (inode.uid, inode.gid) = (node.uid, node.gid);
        (inode.atime, inode.mtime, inode.ctime) = (node.atime, node.mtime, node.ctime);
        inode.crtime = inode.crtime.map(|_| node.crtime);
        if geo.features.has_ro_compat(RoCompat::PROJECT) {
            inode.projid = node.project;
        }
        let own_lost_found = id == NodeId::ROOT && self.lost_found.is_none();
        let flags = kept_flags(&geo.features).of(node.kind, node.flags);
        inode.flags |= InodeFlags::from_bits_truncate(flags.bits());
        inode.links = link_count(node, links + u32::from(own_lost_found), &geo.features)?;
        let (runs, content) = match node.kind {
            FileKind::Directory => self.directory(id, node, ino, &mut inode)?,
            FileKind::Regular => self.regular(id, node, ino, &mut inode, &attributes)?,
            FileKind::Symlink => self.symlink(node, ino, &mut inode)?,
            FileKind::CharDevice | FileKind::BlockDevice => {
                inode.set_device(node.device.0, node.device.1);
                (Vec::new(), Content::Nothing)
            }
            FileKind::Fifo | FileKind::Socket => (Vec::new(), Content::Nothing),
        };
        let body = if matches!(content, Content::Inline(..)) {
            // Filled in when the data is read; see `write`.
            Vec::new()
        } else {
            xattrs::body(&attributes.body, self.body_room, &self.values)?
        };
        if !attributes.block.is_empty() {
            inode.file_acl = self.attribute_block(attributes.block.clone())?;
            let geo = &self.shape.geo;
            inode.sectors += u64::from(geo.cluster_ratio) << (geo.block_bits - 9);
        }
        let owner = (node.uid, node.gid, inode.projid);
        let cluster = u64::from(self.shape.geo.cluster_ratio) << self.shape.geo.block_bits;
        let values = attributes.body.iter().chain(&attributes.block);
        for s in values.filter(|s| s.in_inode) {
            // Each user of a shared value is charged as if it were its own.
            inode.sectors += (s.value.len() as u64).next_multiple_of(cluster) >> 9;
            self.charge(owner, 0, 1);
        }
        self.charge(owner, inode.sectors << 9, 1);
        self.inodes.push(PlannedInode {
            ino,
            inode,
            body,
            runs,
            content,
        });
        Ok(())
    }

    fn directory(
        &mut self,
        id: NodeId,
        node: &'t Node,
        ino: Ino,
        inode: &mut Inode,
    ) -> Result<(Vec<MapRun>, Content)> {
        let entries = self.all_entries(id, node);
        if let Some(e) = entries.iter().find(|e| !valid_name(e.name)) {
            return Err(MkfsError::Tree {
                name: String::from_utf8_lossy(e.name).into_owned(),
                reason: "not a name the format can hold".into(),
            });
        }
        for child in node.children.values() {
            if self.tree.node(*child).kind == FileKind::Directory
                && self.parent_of.insert(*child, ino).is_some()
            {
                return Err(MkfsError::Tree {
                    name: String::new(),
                    reason: "one of its directories has two parents".into(),
                });
            }
        }
        let mut shape = dir_layout::shape(&entries, &self.rules)?;
        shape.blocks = self.dir_blocks(id, &shape);
        if shape.indexed {
            inode.flags |= InodeFlags::INDEX;
        }
        inode.size = shape.blocks << self.shape.geo.block_bits;
        let (runs, taken) = self.take_for(id, &[(0, shape.blocks)]);
        self.map(ino, inode, &runs, taken)?;
        Ok((runs, Content::Dir(id, shape)))
    }

    fn regular(
        &mut self,
        id: NodeId,
        node: &'t Node,
        ino: Ino,
        inode: &mut Inode,
        attributes: &Placed,
    ) -> Result<(Vec<MapRun>, Content)> {
        inode.size = node.size;
        let geo = &self.shape.geo;
        if self.is_inline(node, attributes) {
            inode.flags |= InodeFlags::INLINE_DATA;
            return Ok((Vec::new(), Content::Inline(id, attributes.body.clone())));
        }
        if let Some(verity) = node.verity {
            files::check_verity(&verity, geo)?;
            inode.flags |= InodeFlags::VERITY;
        }
        let ranges = block_ranges(&node.data, node.stored_bytes(), geo.block_bits);
        let (runs, taken) = self.take_for(id, &ranges);
        self.map(ino, inode, &runs, taken)?;
        Ok((runs, Content::Data(id)))
    }

    fn symlink(
        &mut self,
        node: &'t Node,
        ino: Ino,
        inode: &mut Inode,
    ) -> Result<(Vec<MapRun>, Content)> {
        let target = &node.symlink;
        let most = self.shape.geo.block_len().min(4096) - 1;
        if target.is_empty() || target.len() > most || target.contains(&0) {
            return Err(MkfsError::Tree {
                name: format!("symbolic link to {}", String::from_utf8_lossy(target)),
                reason: format!("a target has 1 to {most} bytes"),
            });
        }
        inode.size = target.len() as u64;
        if target.len() < 60 {
            inode.block[..target.len()].copy_from_slice(target);
            return Ok((Vec::new(), Content::Nothing));
        }
        let (runs, taken) = self.take_ranges(&[(0, 1)]);
        self.map(ino, inode, &runs, taken)?;
        Ok((runs, Content::Bytes(target.clone())))
    }

    /// The block for these attributes: one that has the same already, or a new one.
    fn attribute_block(&mut self, list: Vec<Stored>) -> Result<BlockNo> {
        let geo = &self.shape.geo;
        if let Some((block, at, users)) = self.shared_blocks.get_mut(&list)
            && *users < REFCOUNT_MAX
        {
            *users += 1;
            self.meta[*at].1[4..8].copy_from_slice(&users.to_le_bytes());
            return Ok(*block);
        }
        let block = self.space.take_one();
        let bytes = xattrs::block(&list, 1, geo.block_len(), &self.values)?;
        // Checksums are set when the block is written, once its users are counted.
        self.meta.push((block, bytes));
        self.shared_blocks
            .insert(list, (block, self.meta.len() - 1, 1));
        Ok(block)
    }

    fn plan_value_inodes(&mut self, values: &BTreeMap<Vec<u8>, u64>) -> Result<()> {
        for (value, refs) in values {
            let ino = self.new_ino()?;
            let hash = self.shape.geo.seed.ea_inode_value(value);
            let mut inode = self.own_inode(FileKind::Regular.mode_bits() | 0o600);
            inode.flags |= InodeFlags::EA_INODE;
            inode.size = value.len() as u64;
            inode.set_ea_inode_refs(*refs);
            inode.set_ea_inode_hash(hash);
            let blocks = inode.size.div_ceil(u64::from(self.shape.geo.block_size));
            let (runs, taken) = self.take_ranges(&[(0, blocks)]);
            self.map(ino, &mut inode, &runs, taken)?;
            self.push(ino, inode, runs, Content::Bytes(value.clone()));
            self.values.insert(value.clone(), (ino, hash));
        }
        Ok(())
    }

    /// The quota files, counting everything planned so far.
    fn quota_files(&mut self, project: Option<Ino>) -> Result<()> {
        let kinds = [
            (QuotaKind::User, Some(Ino::USR_QUOTA)),
            (QuotaKind::Group, Some(Ino::GRP_QUOTA)),
            (QuotaKind::Project, project),
        ];
        for (at, (kind, ino)) in kinds.into_iter().enumerate() {
            let Some(ino) = ino else { continue };
            let file = quota_file(kind, Grace::default(), &self.usage[at]);
            let mut inode = self.own_inode(FileKind::Regular.mode_bits() | 0o600);
            inode.flags |= InodeFlags::IMMUTABLE;
            inode.size = file.len() as u64;
            let blocks = inode.size.div_ceil(u64::from(self.shape.geo.block_size));
            let (runs, taken) = self.take_ranges(&[(0, blocks)]);
            self.map(ino, &mut inode, &runs, taken)?;
            self.push(ino, inode, runs, Content::Bytes(file));
            match kind {
                QuotaKind::User => self.raw.usr_quota_inum.set(ino.0),
                QuotaKind::Group => self.raw.grp_quota_inum.set(ino.0),
                QuotaKind::Project => self.raw.prj_quota_inum.set(ino.0),
            }
        }
        Ok(())
    }

    /// The journal goes to the middle of the volume, in one piece if there is one.
    fn journal(&mut self) -> Result<()> {
        let blocks = u64::from(self.shape.journal_blocks);
        if blocks == 0 {
            return Ok(());
        }
        let geo = &self.shape.geo;
        let middle = geo.flex_first_group(GroupNo(geo.groups_count / 2));
        let middle = geo.group_first_block(middle);
        let mut inode = self.own_inode(FileKind::Regular.mode_bits() | 0o600);
        inode.size = blocks << geo.block_bits;
        let whole = self
            .space
            .take_contiguous(middle, blocks)
            .or_else(|| self.space.take_contiguous(BlockNo(0), blocks));
        let (runs, taken) = match whole {
            Some(start) => {
                let ratio = u64::from(self.shape.geo.cluster_ratio);
                (
                    vec![MapRun {
                        logical: 0,
                        physical: start,
                        len: blocks,
                    }],
                    blocks.next_multiple_of(ratio),
                )
            }
            None => self.take_ranges(&[(0, blocks)]),
        };
        self.map(Ino::JOURNAL, &mut inode, &runs, taken)?;
        self.raw.journal_inum.set(Ino::JOURNAL.0);
        // A copy of the journal's map, for checkers that find its inode damaged.
        self.raw.jnl_backup_type = 1;
        for (word, bytes) in self
            .raw
            .jnl_blocks
            .iter_mut()
            .zip(inode.block.chunks_exact(4))
        {
            word.set(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
        }
        self.raw.jnl_blocks[15].set((inode.size >> 32) as u32);
        self.raw.jnl_blocks[16].set(inode.size as u32);
        self.push(Ino::JOURNAL, inode, runs, Content::Journal);
        Ok(())
    }

    fn orphan_file(&mut self, ino: Ino, blocks: u32) -> Result<()> {
        let mut inode = self.own_inode(FileKind::Regular.mode_bits() | 0o600);
        let blocks = u64::from(blocks);
        inode.size = blocks << self.shape.geo.block_bits;
        let (runs, taken) = self.take_ranges(&[(0, blocks)]);
        self.map(ino, &mut inode, &runs, taken)?;
        self.raw.orphan_file_inum.set(ino.0);
        self.push(ino, inode, runs, Content::Orphans);
        Ok(())
    }

    /// The resize inode holds every reserved descriptor block, so that nothing else uses them.
    fn resize_inode(&mut self) -> Result<()> {
        let geo = &self.shape.geo;
        if !geo.features.has_compat(Compat::RESIZE_INODE) {
            return Ok(());
        }
        let reserved = u64::from(geo.reserved_gdt_blocks);
        let copies = geo.groups().filter(|g| geo.group_has_super(*g)).count() as u64;
        let per = u64::from(geo.block_size / 4);
        let mut inode = self.own_inode(FileKind::Regular.mode_bits() | 0o600);
        let dind = self.space.take_one();
        let number = u32::try_from(dind.0)
            .map_err(|_| MkfsError::features("resize_inode needs fewer than 2^32 blocks"))?;
        inode.block[13 * 4..14 * 4].copy_from_slice(&number.to_le_bytes());
        let ratio = u64::from(self.shape.geo.cluster_ratio);
        inode.sectors = ((1 + reserved * copies) * ratio) << (self.shape.geo.block_bits - 9);
        inode.size = (per * per + per + 12) << self.shape.geo.block_bits;
        let meta = special::resize_blocks(&self.shape, dind)?;
        self.meta.extend(meta);
        self.push(Ino::RESIZE, inode, Vec::new(), Content::Nothing);
        Ok(())
    }

    /// The list of bad blocks is empty, but checkers expect its inode to have times.
    fn bad_blocks_inode(&mut self) {
        let mut inode = self.own_inode(0);
        inode.links = 0;
        inode.extra_isize = 0;
        inode.crtime = None;
        self.push(Ino::BAD, inode, Vec::new(), Content::Nothing);
    }
}
