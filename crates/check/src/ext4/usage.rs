//! What each block of an ext4 volume holds: the metadata that descriptors and geometry name, what inodes map, and
//! what the bitmaps say of the rest.
//!
//! Volumes with bigalloc are counted in whole clusters. A cluster that several structures share counts for the first.

use std::sync::Arc;

use blockwright_device::SharedDevice;
use blockwright_ondisk::ext4::inode::InodeFlags;
use blockwright_ondisk::ext4::{
    BlockNo, ChecksumKind, Compat, FileKind, Geometry, GroupDesc, GroupFlags, GroupNo, Incompat,
    Ino, Inode, RoCompat,
};

use super::blockmap::BlockMap;
use super::context::{Checker, Log, decode_lenient};
use super::groups::mmp_block;
use super::issue::{IssueKind, Metadata};
use super::mapping::{MapSink, Piece, Walk};
use super::{CheckError, CheckOptions, Phase, Usage};
use crate::usage::{Collector, FragmentedFile, Kind, Parts, UsageOptions};

/// Bytes of an inode table read at once.
const READ_BYTES: u64 = 1 << 20;
/// A file in more pieces than one per so many bytes is fragmented.
const PIECE_BYTES: u64 = 8 << 20;
/// Pieces of a file that are kept until it is known whether it is fragmented. Of a longer list, the beginning decides.
const PIECES_MAX: usize = 1 << 16;
/// The word of `i_block` that holds the doubly indirect block.
const DOUBLE: usize = 13;

/// Describes what each block of a volume holds, as a mount would find it: a journal is replayed in memory.
///
/// # Errors
/// As [`super::check`]: when nothing can be said about the volume.
pub fn usage(device: SharedDevice, options: &UsageOptions) -> Result<Usage, CheckError> {
    let check = CheckOptions {
        journal: options.journal.clone(),
        progress: options.progress.clone(),
        ..CheckOptions::default()
    };
    let mut checker = Checker::open_or(device, &check, |_| Ok(()))?;
    let table = checker.descs.first().map_or(0, |desc| desc.inode_table.0);
    let sought = checker.seek_first_table();
    let journal = checker.recover_journal();
    let geo = checker.geo.clone();
    let mut claims = Claims::new(&geo, options);
    claims.tolerate("start of the first inode table", table, 1, sought)?;
    claims.tolerate("journal", 0, 1, journal)?;
    checker.begin_round(0);
    let groups = checker.check_groups();
    claims.tolerate("metadata of the groups", 0, 1, groups)?;
    // Descriptors that could not be read again name no places.
    let all = geo.groups_count as usize;
    checker.descs.resize(all, GroupDesc::default());
    let orphans = checker.check_orphan_list();
    claims.tolerate("list of orphans", 0, 1, orphans)?;
    claims.metadata(&checker);
    checker.claim_inodes(&mut claims)?;
    checker.claim_free(&mut claims)?;
    let parts = Parts {
        name: "group",
        first: geo.first_data_block.0,
        blocks: u64::from(geo.blocks_per_group),
    };
    let report = checker.log.into_report(checker.scan.stats, false, true);
    Ok(claims.out.finish(report, parts))
}

/// Which blocks have an owner.
struct Claims {
    geo: Arc<Geometry>,
    claimed: BlockMap,
    out: Collector,
}

impl Claims {
    fn new(geo: &Arc<Geometry>, options: &UsageOptions) -> Self {
        let mut out = Collector::new(geo.block_size, geo.blocks_count, options);
        out.add(Kind::Unusable, 0, geo.first_data_block.0);
        Self {
            claimed: BlockMap::new(geo),
            out,
            geo: geo.clone(),
        }
    }

    /// Goes on after an error of the device, which is noted.
    fn tolerate(
        &mut self,
        what: &'static str,
        first: u64,
        len: u64,
        result: Result<(), CheckError>,
    ) -> Result<(), CheckError> {
        match result {
            Err(CheckError::Device { source, .. }) => {
                self.out.unread(what, first, len, &source);
                Ok(())
            }
            other => other,
        }
    }

    /// Gives blocks to an owner. How many clusters had one already.
    fn claim(&mut self, kind: Kind, first: BlockNo, len: u64) -> u64 {
        let bits = self.geo.cluster_bits;
        let start = first.0 >> bits << bits;
        let end = first.0.saturating_add(len);
        let out = &mut self.out;
        self.claimed
            .insert_fresh(BlockNo(start), end - start, &mut |at, n| {
                out.add(kind, at, n);
            })
    }

    /// Counts clusters that had an owner already. With `shared_blocks` they may have several.
    fn count_again(&mut self, clusters: u64) {
        if !self.geo.features.has_ro_compat(RoCompat::SHARED_BLOCKS) {
            self.out.claimed_twice += clusters << self.geo.cluster_bits;
        }
    }

    /// The volume's own metadata.
    fn metadata(&mut self, checker: &Checker) {
        let geo = self.geo.clone();
        for group in geo.groups() {
            let first = geo.group_first_block(group).0;
            let end = first + u64::from(geo.group_blocks(group));
            let mut at = first;
            if let Some(sb) = geo.group_super_block(group) {
                self.claim(Kind::Superblock, BlockNo(at), sb.0 + 1 - at);
                at = sb.0 + 1;
            }
            let descs = u64::from(geo.group_desc_blocks(group)).min(end.saturating_sub(at));
            self.claim(Kind::GroupDescriptors, BlockNo(at), descs);
            at += descs;
            let all = (first + u64::from(geo.base_meta_blocks(group))).min(end);
            self.claim(
                Kind::ReservedDescriptors,
                BlockNo(at),
                all.saturating_sub(at),
            );
        }
        if let Some(block) = mmp_block(&checker.sb, &geo) {
            self.claim(Kind::SystemFile, block, 1);
        }
        let table_blocks = u64::from(geo.inode_table_blocks);
        for desc in &checker.descs {
            for (kind, first, len) in [
                (Kind::InodeTable, desc.inode_table, table_blocks),
                (Kind::BlockBitmap, desc.block_bitmap, 1),
                (Kind::InodeBitmap, desc.inode_bitmap, 1),
            ] {
                if geo.contains_run(first, len) {
                    self.claim(kind, first, len);
                }
            }
        }
    }
}

/// What an inode maps.
struct Owner<'a> {
    claims: &'a mut Claims,
    log: &'a mut Log,
    kind: Kind,
    tree_kind: Kind,
    /// Pieces whose kind is not decided yet; only of regular files.
    waiting: Option<Vec<(BlockNo, u64)>>,
    /// Where the file would go on in one piece: on the volume and in the file.
    next: (u64, u64),
    pieces: u64,
    blocks: u64,
    first: u64,
}

impl Owner<'_> {
    fn is_fragmented(&self) -> bool {
        let bytes = self.blocks << self.claims.geo.block_bits;
        self.pieces > bytes.div_ceil(PIECE_BYTES).max(1)
    }

    fn take(&mut self, first: BlockNo, len: u64) {
        let again = self.claims.claim(self.kind, first, len);
        self.claims.count_again(again);
    }

    /// Decides what the pieces are that were met so far.
    fn decide(&mut self) {
        if let Some(waiting) = self.waiting.take() {
            if self.is_fragmented() {
                self.kind = Kind::FragmentedFile;
            }
            for (first, len) in waiting {
                self.take(first, len);
            }
        }
    }
}

impl MapSink for Owner<'_> {
    fn tree(&mut self, block: BlockNo) -> bool {
        let again = self.claims.claim(self.tree_kind, block, 1);
        self.claims.count_again(again);
        again == 0
    }

    fn piece(&mut self, piece: Piece) {
        let (mut first, mut len) = (piece.physical, u64::from(piece.len));
        let ahead = piece.physical.0.checked_sub(self.next.0);
        // A hole takes no space where the file could have it: then it is no break.
        let goes_on = ahead == Some(0) || ahead == piece.logical.checked_sub(self.next.1);
        if self.pieces == 0 {
            self.first = first.0;
        }
        if self.pieces == 0 || ahead.is_none() || !goes_on {
            self.pieces += 1;
        }
        let bits = self.claims.geo.cluster_bits;
        // Extents of one file may share a cluster.
        if bits > 0 && self.blocks > 0 && (self.next.0 - 1) >> bits == first.0 >> bits {
            let skip = len.min((((first.0 >> bits) + 1) << bits) - first.0);
            first.0 += skip;
            len -= skip;
        }
        self.next = (piece.physical.0 + u64::from(piece.len), piece.end());
        self.blocks += u64::from(piece.len);
        if len == 0 {
            return;
        }
        let Some(waiting) = &mut self.waiting else {
            return self.take(first, len);
        };
        match waiting.last_mut() {
            Some((start, n)) if start.0 + *n == first.0 && bits == 0 => *n += len,
            _ => waiting.push((first, len)),
        }
        if waiting.len() >= PIECES_MAX {
            self.decide();
        }
    }

    fn problem(&mut self, kind: IssueKind) {
        self.log.problem(kind);
    }
}

impl Checker {
    /// What the blocks of an inode are, and those of its map; `None` for an inode without blocks.
    fn kinds_of(&self, ino: Ino, inode: &Inode) -> Option<(Kind, Kind)> {
        let geo = &self.geo;
        if ino == Ino::BAD {
            return Some((Kind::Bad, Kind::SystemFile));
        }
        if ino == Ino(self.sb.journal_inum.get()) && geo.features.has_compat(Compat::HAS_JOURNAL) {
            return Some((Kind::Journal, Kind::Journal));
        }
        let in_use = inode.links > 0 || ino == Ino::ROOT || self.scan.orphans.contains(&ino.0);
        if !in_use || !inode.maps_blocks(geo) {
            return None;
        }
        if self.is_hidden(ino) || ino < geo.first_ino && ino != Ino::ROOT {
            return Some((Kind::SystemFile, Kind::SystemFile));
        }
        let values = inode.flags.contains(InodeFlags::EA_INODE)
            && geo.features.has_incompat(Incompat::EA_INODE);
        match inode.kind()? {
            _ if values => Some((Kind::Attributes, Kind::Attributes)),
            FileKind::Directory => Some((Kind::Directory, Kind::Mapping)),
            _ => Some((Kind::File, Kind::Mapping)),
        }
    }

    /// Gives blocks to inodes.
    fn claim_inodes(&mut self, claims: &mut Claims) -> Result<(), CheckError> {
        let geo = self.geo.clone();
        let inode_size = usize::from(geo.inode_size);
        let read_blocks = (READ_BYTES >> geo.block_bits).max(1);
        for group in geo.groups() {
            if group.0.is_multiple_of(64) {
                let (done, total) = (u64::from(group.0), u64::from(geo.groups_count));
                self.report_progress(Phase::Inodes, done, total)?;
            }
            let in_use = self.table_in_use(group);
            let table = self.descs[group.0 as usize].inode_table;
            let blocks = u64::from(in_use.div_ceil(geo.inodes_per_block));
            if blocks == 0 || !geo.contains_run(table, blocks) || self.store.is_hole(table, blocks)
            {
                continue;
            }
            let mut at = 0;
            while at < blocks {
                let count = read_blocks.min(blocks - at);
                let first = BlockNo(table.0 + at);
                let index = at as u32 * geo.inodes_per_block;
                at += count;
                let bytes = match self.store.read_run(first, count, "inode table") {
                    Ok(bytes) => bytes,
                    Err(CheckError::Device { source, .. }) => {
                        claims.out.unread("inode table", first.0, count, &source);
                        continue;
                    }
                    Err(e) => return Err(e),
                };
                for (index, raw) in (index..).zip(bytes.chunks_exact(inode_size)) {
                    if index < in_use
                        && let Some(ino) = geo.ino_at(group, index)
                        && raw.iter().any(|b| *b != 0)
                        && let Some(inode) = decode_lenient(raw, &geo, ino)
                    {
                        self.claim_inode(claims, ino, &inode)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn claim_inode(
        &mut self,
        claims: &mut Claims,
        ino: Ino,
        inode: &Inode,
    ) -> Result<(), CheckError> {
        let geo = self.geo.clone();
        if ino == Ino::RESIZE {
            let word = inode.block.get(DOUBLE * 4..DOUBLE * 4 + 4);
            let block = word.map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
            let block = BlockNo(u64::from(block));
            let resizes = geo.features.has_compat(Compat::RESIZE_INODE);
            if resizes && block.0 != 0 && geo.contains_run(block, 1) {
                claims.claim(Kind::ReservedDescriptors, block, 1);
            }
            return Ok(());
        }
        let alive = inode.links > 0 || self.scan.orphans.contains(&ino.0);
        let attributes = inode.file_acl;
        // Several inodes may share one.
        if alive && attributes.0 != 0 && geo.contains_run(attributes, 1) {
            claims.claim(Kind::Attributes, attributes, 1);
        }
        let Some((kind, tree_kind)) = self.kinds_of(ino, inode) else {
            return Ok(());
        };
        let mut owner = Owner {
            claims,
            log: &mut self.log,
            kind,
            tree_kind,
            waiting: (kind == Kind::File).then(Vec::new),
            next: (0, 0),
            pieces: 0,
            blocks: 0,
            first: 0,
        };
        let walk = Walk {
            store: &self.store,
            geo: &geo,
            ino,
            inode,
        };
        let walked = walk.run(&mut owner);
        owner.decide();
        let file = FragmentedFile {
            ino: u64::from(ino.0),
            pieces: owner.pieces,
            blocks: owner.blocks,
            first: owner.first,
        };
        let fragmented = owner.is_fragmented();
        if inode.kind() == Some(FileKind::Regular) && kind == Kind::File && file.blocks > 0 {
            claims.out.files += 1;
            if fragmented {
                claims.out.fragmented(file);
            }
        }
        let place = self.inode_place(ino).map_or(0, |(block, _)| block.0);
        claims.tolerate("map of an inode in this block", place, 1, walked)
    }

    /// What bitmaps say of the blocks without an owner.
    fn claim_free(&mut self, claims: &mut Claims) -> Result<(), CheckError> {
        let geo = self.geo.clone();
        for group in geo.groups() {
            if group.0.is_multiple_of(256) {
                let (done, total) = (u64::from(group.0), u64::from(geo.groups_count));
                self.report_progress(Phase::Bitmaps, done, total)?;
            }
            let bits = geo.group_clusters(group);
            let desc = self.descs[group.0 as usize];
            let uninit = desc.flags.contains(GroupFlags::BLOCK_UNINIT)
                && geo.checksums != ChecksumKind::None;
            let bitmap = if uninit {
                Some(vec![0; geo.block_bitmap_bytes()])
            } else {
                self.bitmap_of(claims, group)?
            };
            let claimed = claims.claimed.group_bytes(group, geo.block_bitmap_bytes());
            let start = geo.group_first_block(group).0;
            let out = &mut claims.out;
            let wrong = classify(&claimed, bitmap.as_deref(), bits, &mut |kind, from, to| {
                let first = start + (u64::from(from) << geo.cluster_bits);
                out.add(kind, first, u64::from(to - from) << geo.cluster_bits);
            });
            // A bitmap that was never written says nothing.
            if !uninit {
                out.marked_free += u64::from(wrong) << geo.cluster_bits;
            }
        }
        Ok(())
    }

    /// A group's bitmap, if it can be relied on.
    fn bitmap_of(
        &mut self,
        claims: &mut Claims,
        group: GroupNo,
    ) -> Result<Option<Vec<u8>>, CheckError> {
        let desc = self.descs[group.0 as usize];
        if !self.geo.contains_run(desc.block_bitmap, 1) {
            return Ok(None);
        }
        let found = match self.store.read(desc.block_bitmap, "block bitmap") {
            Ok(found) => found,
            Err(CheckError::Device { source, .. }) => {
                let place = desc.block_bitmap.0;
                claims.out.unread("block bitmap", place, 1, &source);
                return Ok(None);
            }
            Err(e) => return Err(e),
        };
        if desc.verify_block_bitmap(&found, &self.geo, group).is_err() {
            self.log.problem(IssueKind::BitmapChecksum {
                group,
                what: Metadata::BlockBitmap,
            });
            return Ok(None);
        }
        Ok(Some(found))
    }
}

/// Tells runs of clusters without an owner: free, in use, or unknown without a bitmap. How many clusters have an owner and
/// are free in the bitmap.
fn classify(
    claimed: &[u8],
    bitmap: Option<&[u8]>,
    bits: u32,
    tell: &mut dyn FnMut(Kind, u32, u32),
) -> u32 {
    let mut wrong = 0;
    let mut run: Option<(Kind, u32)> = None;
    let mut step = |kind: Option<Kind>, at: u32| {
        if run.map(|(kind, _)| kind) != kind {
            if let Some((kind, from)) = run.take() {
                tell(kind, from, at);
            }
            run = kind.map(|kind| (kind, at));
        }
    };
    let mut at = 0;
    while at < bits {
        let byte = (at / 8) as usize;
        let owned = claimed.get(byte).copied().unwrap_or(0);
        let used = bitmap.map(|b| b.get(byte).copied().unwrap_or(0xFF));
        let whole = at.is_multiple_of(8) && bits - at >= 8;
        let uniform = |b: u8| b == 0 || b == 0xFF;
        let n = if whole && uniform(owned) && used.is_none_or(uniform) {
            8
        } else {
            1
        };
        let bit = 1u8 << (at % 8);
        let kind = match (owned & bit != 0, used.map(|b| b & bit != 0)) {
            (true, Some(false)) => {
                wrong += n;
                None
            }
            (true, _) => None,
            (false, Some(true)) => Some(Kind::Unclaimed),
            (false, Some(false)) => Some(Kind::Free),
            (false, None) => Some(Kind::Unknown),
        };
        step(kind, at);
        at += n;
    }
    step(None, bits);
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(claimed: &[u8], bitmap: Option<&[u8]>, bits: u32) -> (Vec<(Kind, u32, u32)>, u32) {
        let mut out = Vec::new();
        let wrong = classify(claimed, bitmap, bits, &mut |kind, from, to| {
            out.push((kind, from, to));
        });
        (out, wrong)
    }

    #[test]
    fn bits_without_an_owner_are_told_once() {
        let claimed = [0xFF, 0, 0b0000_1111, 0];
        let bitmap = [0xFF, 0xFF, 0b0011_1110, 0];
        let (found, wrong) = runs(&claimed, Some(&bitmap), 30);
        let expected = [
            (Kind::Unclaimed, 8, 16),
            (Kind::Unclaimed, 20, 22),
            (Kind::Free, 22, 30),
        ];
        assert_eq!((found.as_slice(), wrong), (&expected[..], 1));
        let (found, wrong) = runs(&claimed, None, 9);
        assert_eq!((found.as_slice(), wrong), (&[(Kind::Unknown, 8, 9)][..], 0));
    }
}
