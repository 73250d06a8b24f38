//! The scan of all inodes: which are in use, and which blocks they own.
//!
//! Inode tables are read in large pieces, in order. Blocks are entered into the map of used ones
//! as they are met; a block met twice is only remembered here, its owners are found afterwards
//! (see `shared`), because most volumes have none.

use std::collections::HashSet;

use blockwright_ondisk::ext4::FileBlock;
use blockwright_ondisk::ext4::dir::{DirBlock, DirFormat};
use blockwright_ondisk::ext4::inode::{self, InodeFlags};
use blockwright_ondisk::ext4::{BlockNo, Compat, FileKind, Geometry, Incompat, Ino, Inode};

use super::blockmap::BlockMap;
use super::context::{Checker, Log, decode_lenient};
use super::issue::IssueKind;
use super::mapping::{MapSink, Piece, Walk};
use super::state::{DirInfo, DirRun, InodeState, Mapped, Marks};
use super::{CheckError, Phase};

/// Bytes of inode table read at once.
const READ_BYTES: u64 = 1 << 20;
/// How often a tree block that was met before is followed again, in all: enough to say what
/// shares it, too little for a hostile image to make the scan quadratic.
const REENTRIES_MAX: u32 = 10_000;

/// Enters blocks into the map of used ones.
pub(super) struct Claimer<'a> {
    pub geo: &'a Geometry,
    pub used: &'a mut BlockMap,
    pub twice: &'a mut BlockMap,
    pub log: &'a mut Log,
    pub reentries: &'a mut u32,
    /// Where to note a directory's blocks.
    pub runs: Option<&'a mut Vec<DirRun>>,
    /// Clusters claimed.
    pub clusters: u64,
    /// First file block behind everything mapped.
    pub end: u64,
    /// The same, of what is written.
    pub written_end: u64,
    /// Something is wrong, and repairs were asked for.
    pub repair: bool,
    last_cluster: Option<u64>,
    visited: HashSet<u64>,
    ino: Ino,
}

impl<'a> Claimer<'a> {
    pub fn new(
        ino: Ino,
        geo: &'a Geometry,
        scan: &'a mut super::state::Scan,
        log: &'a mut Log,
        is_dir: bool,
    ) -> Self {
        Self {
            geo,
            used: &mut scan.used,
            twice: &mut scan.twice,
            log,
            reentries: &mut scan.reentries,
            runs: is_dir.then_some(&mut scan.dir_runs),
            clusters: 0,
            end: 0,
            written_end: 0,
            repair: false,
            last_cluster: None,
            visited: HashSet::new(),
            ino,
        }
    }

    fn note_dir_run(&mut self, piece: Piece) {
        let Some(runs) = self.runs.as_deref_mut() else {
            return;
        };
        // Blocks of another owner are not examined here. Their owner examines them, or the next round does after they
        // were copied.
        let taken = self.used.runs_within(piece.physical, u64::from(piece.len));
        let mut push = |from: u64, to: u64| {
            if let Ok(logical) = u32::try_from(piece.logical + (from - piece.physical.0))
                && to > from
            {
                runs.push(DirRun {
                    logical,
                    physical: BlockNo(from),
                    len: (to - from) as u32,
                });
            }
        };
        let mut at = piece.physical.0;
        if self.geo.cluster_ratio == 1 {
            for (first, len) in taken {
                push(at, first.0);
                at = first.0 + len;
            }
        }
        push(at, piece.physical.0 + u64::from(piece.len));
    }
}

impl MapSink for Claimer<'_> {
    fn tree(&mut self, block: BlockNo) -> bool {
        self.clusters += 1;
        let again = self.used.insert_run(block, 1, Some(self.twice));
        if again == 0 {
            return true;
        }
        if !self.visited.insert(block.0) {
            self.problem(IssueKind::MappingLoop {
                ino: self.ino,
                block,
            });
            return false;
        }
        *self.reentries += 1;
        *self.reentries < REENTRIES_MAX
    }

    fn piece(&mut self, piece: Piece) {
        if piece.unwritten && self.runs.is_some() {
            self.problem(IssueKind::ExtentEntry {
                ino: self.ino,
                logical: FileBlock(piece.logical),
                physical: piece.physical,
                len: piece.len,
                what: "no contents, in a directory",
            });
        }
        self.note_dir_run(piece);
        let bits = self.geo.cluster_bits;
        let (mut first, last) = (
            piece.physical.0 >> bits,
            (piece.physical.0 + u64::from(piece.len) - 1) >> bits,
        );
        // Extents of one file may share a cluster; it counts once.
        if bits > 0 && self.last_cluster == Some(first) {
            first += 1;
        } else if bits > 0 && self.end > piece.logical >> bits << bits {
            // The file's cluster began in another cluster of the device.
            self.problem(IssueKind::ClusterMisaligned {
                ino: self.ino,
                logical: FileBlock(piece.logical),
            });
        }
        if first <= last {
            let count = last - first + 1;
            if bits > 0 {
                self.used
                    .insert_run(BlockNo(first << bits), count << bits, Some(self.twice));
            } else {
                self.used
                    .insert_run(piece.physical, count, Some(self.twice));
            }
            self.clusters += count;
        }
        self.last_cluster = Some(last);
        self.end = self.end.max(piece.end());
        if !piece.unwritten {
            self.written_end = self.written_end.max(piece.end());
        }
    }

    fn problem(&mut self, kind: IssueKind) {
        self.repair |= self.log.problem(kind);
    }
}

impl Checker {
    /// Scans all inode tables.
    pub fn check_inodes(&mut self) -> Result<(), CheckError> {
        let geo = self.geo.clone();
        let inode_size = usize::from(geo.inode_size);
        let read_blocks = (READ_BYTES >> geo.block_bits).max(1);
        for group in geo.groups() {
            if group.0.is_multiple_of(64) {
                self.report_progress(
                    Phase::Inodes,
                    u64::from(group.0),
                    u64::from(geo.groups_count),
                )?;
            }
            let in_use = self.table_in_use(group);
            let table = self.descs[group.0 as usize].inode_table;
            let blocks = u64::from(in_use.div_ceil(geo.inodes_per_block));
            if blocks == 0 || !geo.contains_run(table, blocks) {
                continue;
            }
            // Only the first group has inodes that must be something.
            if group.0 > 0 && self.store.is_hole(table, blocks) {
                continue;
            }
            let mut index = 0;
            let mut at = 0;
            while at < blocks {
                let count = read_blocks.min(blocks - at);
                let bytes = self
                    .store
                    .read_run(BlockNo(table.0 + at), count, "inode table")?;
                for raw in bytes.chunks_exact(inode_size) {
                    if index < in_use
                        && let Some(ino) = geo.ino_at(group, index)
                    {
                        self.check_inode(ino, raw)?;
                    }
                    index += 1;
                }
                at += count;
            }
        }
        self.scan.stats.inodes = u64::from(geo.inodes_count);
        self.scan.stats.used_inodes = self.scan.inodes.len() as u64;
        self.scan.stats.blocks = geo.blocks_count;
        Ok(())
    }

    fn check_inode(&mut self, ino: Ino, raw: &[u8]) -> Result<(), CheckError> {
        let geo = self.geo.clone();
        let resize = ino == Ino::RESIZE && geo.features.has_compat(Compat::RESIZE_INODE);
        if !resize && raw.iter().all(|b| *b == 0) {
            return Ok(());
        }
        let Some(inode) = decode_lenient(raw, &geo, ino) else {
            return Ok(());
        };
        let orphan = self.scan.orphans.contains(&ino.0);
        let reserved = ino < geo.first_ino && ino != Ino::ROOT;
        let bad_sum = inode::verify_checksum(raw, &geo, ino).is_err();
        if reserved {
            return self.check_reserved_inode(ino, raw, &inode, bad_sum);
        }
        // The root is in use, whatever its count says: all names depend on it.
        let root = ino == Ino::ROOT && inode.links == 0 && self.names_of_root(&inode)?.is_some();
        if inode.links == 0 && !orphan && !root {
            return self.check_free_inode(ino, raw, &inode, bad_sum);
        }
        self.check_used_inode(ino, raw, &inode, bad_sum, orphan)
    }

    /// An inode that is not in use: only its deletion time says something.
    fn check_free_inode(
        &mut self,
        ino: Ino,
        raw: &[u8],
        inode: &Inode,
        bad_sum: bool,
    ) -> Result<(), CheckError> {
        let mut edited = raw.to_vec();
        let mut repair = false;
        let now = self.now as u32;
        let low = self.low_dtime(inode);
        if low
            && self.problem(IssueKind::InodeDtimeLow {
                ino,
                dtime: inode.dtime,
            })
        {
            super::context::RawEdit { raw: &mut edited }.dtime(now);
            repair = true;
        }
        if inode.dtime == 0 && inode.mode != 0 && self.problem(IssueKind::InodeDtimeZero { ino }) {
            super::context::RawEdit { raw: &mut edited }.dtime(now);
            repair = true;
        }
        if bad_sum && self.problem(IssueKind::InodeChecksum { ino }) {
            repair = true;
        }
        if repair {
            self.write_raw_inode(ino, edited)?;
        }
        Ok(())
    }

    /// Whether a deletion time is really the next inode of an orphan list that got lost.
    pub fn low_dtime(&self, inode: &Inode) -> bool {
        let inodes = u64::from(self.geo.inodes_count);
        // On a volume as old as that, such a time could be one. (Old tools stored no time of making.)
        let known = |time: u64| time == 0 || time >= inodes;
        let possible = known(self.sb.mkfs_time())
            && known(self.sb.mount_time())
            && self.sb.write_time() >= inodes;
        possible && inode.dtime != 0 && inode.dtime < self.geo.inodes_count
    }

    /// Whether inline data is a directory's: the number of a parent, then entries that fill the
    /// rest of `i_block`.
    fn holds_inline_directory(&self, inode: &Inode) -> bool {
        let (parent, entries) = inode.block.split_at(4);
        let parent = u32::from_le_bytes([parent[0], parent[1], parent[2], parent[3]]);
        let block = DirBlock::entries_of(entries, DirFormat::of(&self.geo, inode.flags));
        let valid = parent == Ino::ROOT.0
            || (self.geo.first_ino.0..=self.geo.inodes_count).contains(&parent);
        self.geo.features.has_incompat(Incompat::INLINE_DATA)
            && valid
            && inode.size >= inode.block.len() as u64
            && block.iter().all(|e| e.is_ok())
    }

    /// Whether an inode's first block begins as that of a directory of this number.
    fn holds_directory(&self, ino: Ino, inode: &Inode) -> Result<bool, CheckError> {
        if inode.flags.contains(InodeFlags::INLINE_DATA) {
            return Ok(self.holds_inline_directory(inode));
        }
        let first = if inode.flags.contains(InodeFlags::EXTENTS) {
            let map = self.mapping_of(ino, inode)?;
            map.pieces.first().map(|p| p.physical)
        } else {
            let word = |n: usize| u32::from(inode.block[n]) << (8 * n);
            Some(BlockNo(u64::from(word(0) | word(1) | word(2) | word(3))))
        };
        let Some(first) = first.filter(|b| b.0 > 0 && self.geo.contains_run(*b, 1)) else {
            return Ok(false);
        };
        let bytes = self.store.read(first, "directory")?;
        let dot = bytes[..4] == ino.0.to_le_bytes() && bytes[4..6] == [12, 0] && bytes[6] == 1;
        Ok(dot && bytes[8..10] == *b".\0" && bytes[18] == 2 && bytes[20..22] == *b"..")
    }

    fn check_used_inode(
        &mut self,
        ino: Ino,
        raw: &[u8],
        inode: &Inode,
        bad_sum: bool,
        orphan: bool,
    ) -> Result<(), CheckError> {
        let kind = inode.kind();
        let special = !matches!(
            kind,
            Some(FileKind::Regular | FileKind::Directory | FileKind::Symlink)
        );
        if special && self.holds_directory(ino, inode)? {
            let mode = FileKind::Directory.mode_bits() | (inode.mode & 0o7777);
            let mut raw = raw.to_vec();
            raw[..2].copy_from_slice(&mode.to_le_bytes());
            if self.problem(IssueKind::SpecialIsDirectory { ino }) {
                self.write_raw_inode(ino, raw.clone())?;
            }
            // Looked at as what it is, repaired or not.
            let Some(inode) = decode_lenient(&raw, &self.geo.clone(), ino) else {
                return Ok(());
            };
            return self.check_used_inode(ino, &raw, &inode, false, orphan);
        }
        let Some(kind) = kind else {
            if self.problem(IssueKind::InodeMode {
                ino,
                mode: inode.mode,
            }) {
                self.clear_inode(ino)?;
            }
            return Ok(());
        };
        let mut fields = super::inode_fields::Fields::new(ino, raw, inode, kind);
        if orphan {
            fields.dtime_is_link = true;
        }
        self.check_inode_fields(&mut fields)?;
        if fields.clear {
            self.clear_inode(ino)?;
            return Ok(());
        }
        let inode = fields.inode.clone();
        self.check_inode_attributes(&mut fields)?;
        let mapped = self.check_inode_mapping(&mut fields, kind)?;
        self.check_inode_size(&mut fields, kind, mapped)?;
        if fields.clear {
            self.clear_inode(ino)?;
            return Ok(());
        }
        if bad_sum && self.problem(IssueKind::InodeChecksum { ino }) {
            fields.edited = true;
        }
        if fields.edited {
            self.write_raw_inode(ino, std::mem::take(&mut fields.raw))?;
        }
        self.register(ino, kind, &inode, orphan, mapped, fields.values.inodes);
        Ok(())
    }

    fn register(
        &mut self,
        ino: Ino,
        kind: FileKind,
        inode: &Inode,
        orphan: bool,
        mapped: Mapped,
        value_inodes: u64,
    ) {
        let ea_inode = inode.flags.contains(InodeFlags::EA_INODE)
            && self.geo.features.has_incompat(Incompat::EA_INODE);
        self.scan.inodes.push(InodeState {
            ino,
            kind: Some(kind),
            links: inode.links,
            marks: Marks {
                ea_inode,
                orphan: orphan && inode.links == 0,
                bad: false,
            },
            found: 0,
        });
        match kind {
            FileKind::Regular => self.scan.stats.files += 1,
            FileKind::Directory => self.scan.stats.directories += 1,
            FileKind::Symlink => self.scan.stats.symlinks += 1,
            _ => self.scan.stats.specials += 1,
        }
        if !ea_inode && !self.is_hidden(ino) {
            self.account(inode, mapped.sectors, 1 + value_inodes);
            if kind == FileKind::Symlink && inode.flags.contains(InodeFlags::INLINE_DATA) {
                for (map, id) in
                    self.scan
                        .inline_links
                        .iter_mut()
                        .zip([inode.uid, inode.gid, inode.projid])
                {
                    *map.entry(id).or_default() += 1;
                }
            }
        }
    }

    /// Walks the mapping and enters its blocks.
    pub fn check_inode_mapping(
        &mut self,
        fields: &mut super::inode_fields::Fields,
        kind: FileKind,
    ) -> Result<Mapped, CheckError> {
        let geo = self.geo.clone();
        let ino = fields.ino;
        let inode = &fields.inode;
        let is_dir = kind == FileKind::Directory;
        let runs_from = self.scan.dir_runs.len();
        let mut mapped = Mapped::default();
        if inode.maps_blocks(&geo) {
            let mut claimer = Claimer::new(ino, &geo, &mut self.scan, &mut self.log, is_dir);
            let walk = Walk {
                store: &self.store,
                geo: &geo,
                ino,
                inode,
            };
            walk.run(&mut claimer)?;
            mapped = Mapped {
                sectors: (claimer.clusters << geo.cluster_bits) << (geo.block_bits - 9),
                end: claimer.end,
                written_end: claimer.written_end,
            };
            if claimer.repair {
                self.scan.remap.insert(ino.0);
            }
        }
        if fields.attribute_block {
            mapped.sectors += u64::from(geo.cluster_ratio) << (geo.block_bits - 9);
        }
        mapped.sectors += fields.values.sectors;
        if is_dir {
            let flags = fields.inode.flags;
            self.scan.dirs.push(DirInfo {
                ino,
                generation: fields.inode.generation,
                size: fields.inode.size,
                index: flags.contains(InodeFlags::INDEX),
                inline: flags.contains(InodeFlags::INLINE_DATA),
                encrypted: flags.contains(InodeFlags::ENCRYPT),
                casefold: flags.contains(InodeFlags::CASEFOLD),
                runs: runs_from..self.scan.dir_runs.len(),
                dotdot: Ino(0),
                parent: Ino(0),
            });
        }
        Ok(mapped)
    }
}
