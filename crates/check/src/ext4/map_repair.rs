//! Laying the mapping of an inode out anew, from all that is good in the old one.
//!
//! It serves damaged trees, blocks that two inodes share (they are copied), and truncations that were interrupted. New tree
//! blocks come from free space. The next round finds that the old ones are free. Copies of data go straight to the device,
//! because nothing refers to their target before the overlay is written.

use std::collections::BTreeSet;

use blockwright_ondisk::ext4::extent::{self, Extent, ExtentIndex};
use blockwright_ondisk::ext4::inode::InodeFlags;
use blockwright_ondisk::ext4::{BlockNo, FileBlock, FileKind, Geometry, Ino, Inode};

use super::CheckError;
use super::context::Checker;
use super::inode_fields::max_file_size;
use super::mapping::DIRECT;
use super::mapping::{Collect, Piece};

impl Checker {
    /// Repairs all mappings found to need it. A round that did so ends: everything behind it
    /// depends on mappings.
    pub fn repair_mappings(&mut self) -> Result<(), CheckError> {
        if !self.repairing() {
            return Ok(());
        }
        if !self.scan.remap.is_empty() && self.seek_names_behind_marks()? {
            self.scan.restart = true;
            return Ok(());
        }
        for ino in std::mem::take(&mut self.scan.remap) {
            self.scan.restart = true;
            self.repair_mapping(Ino(ino))?;
        }
        Ok(())
    }

    /// Lays one mapping out anew.
    pub fn repair_mapping(&mut self, ino: Ino) -> Result<(), CheckError> {
        let geo = self.geo.clone();
        let Some(mut inode) = self.read_inode(ino)? else {
            return Ok(());
        };
        let shared = merged(self.scan.unshare.remove(&ino.0).unwrap_or_default());
        if inode.file_acl.0 != 0
            && shared
                .iter()
                .any(|(first, n)| inode.file_acl >= *first && inode.file_acl.0 < first.0 + n)
        {
            self.move_attribute_block(ino, &mut inode)?;
        }
        if !inode.maps_blocks(&geo) {
            return Ok(());
        }
        let map = self.mapping_of(ino, &inode)?;
        let mut pieces = map.pieces;
        if inode.kind() == Some(FileKind::Directory) {
            pieces.iter_mut().for_each(|p| p.unwritten = false);
        }
        if self.scan.truncate.remove(&ino.0) {
            let ratio = u64::from(geo.cluster_ratio);
            let keep = inode
                .size
                .div_ceil(u64::from(geo.block_size))
                .next_multiple_of(ratio);
            pieces = cut(pieces, keep);
        }
        if !inode.flags.contains(InodeFlags::EXTENTS) {
            pieces = cut(
                pieces,
                max_file_size(&geo, false).div_ceil(u64::from(geo.block_size)),
            );
        }
        if self.scan.compact.remove(&ino.0) {
            let mut next = 0;
            for piece in &mut pieces {
                piece.logical = next;
                next = piece.end();
            }
        }
        if let Some(extra) = self.scan.append.remove(&ino.0) {
            let logical = pieces.last().map_or(0, Piece::end);
            pieces.push(Piece {
                logical,
                physical: extra,
                len: 1,
                unwritten: false,
            });
        }
        let misplaced = misplaced_clusters(&pieces, u64::from(geo.cluster_ratio));
        if !shared.is_empty() || !misplaced.is_empty() {
            pieces = self.copy_pieces(pieces, &shared, &misplaced)?;
        }
        let attribute = u64::from(inode.file_acl.0 != 0) << geo.cluster_bits;
        let extra = attribute << (geo.block_bits - 9);
        if !self.store_mapping(ino, &inode, &pieces, extra)? {
            // No room for the tree: what remains is an empty file.
            return self.clear_inode(ino);
        }
        Ok(())
    }

    /// Stores pieces as the mapping of an inode. `extra` is the space besides data and tree, in
    /// sectors. Whether there was room for the tree.
    pub fn store_mapping(
        &mut self,
        ino: Ino,
        inode: &Inode,
        pieces: &[Piece],
        extra: u64,
    ) -> Result<bool, CheckError> {
        let geo = self.geo.clone();
        let Some((area, tree_blocks)) = self.build_map(ino, inode, pieces)? else {
            return Ok(false);
        };
        let sectors = Self::mapping_sectors(&geo, pieces, tree_blocks) + extra;
        let is_dir = inode.kind() == Some(FileKind::Directory);
        let end = pieces.last().map_or(0, Piece::end);
        self.edit_inode(ino, |edit| {
            edit.block_area(&area);
            if is_dir {
                edit.size(end << geo.block_bits, true);
            }
        })?;
        self.store_sectors(ino, sectors)?;
        Ok(true)
    }

    /// Space of data and tree, in sectors.
    pub fn mapping_sectors(geo: &Geometry, pieces: &[Piece], tree_blocks: u64) -> u64 {
        let clusters = count_clusters(pieces, geo.cluster_bits) + tree_blocks;
        (clusters << geo.cluster_bits) << (geo.block_bits - 9)
    }

    fn move_attribute_block(&mut self, ino: Ino, inode: &mut Inode) -> Result<(), CheckError> {
        let old = inode.file_acl;
        let new = match self.scan.used.find_free(old) {
            Some(new) => {
                self.scan.used.insert_run(new, 1, None);
                let mut bytes = self.store.read(old, "attribute block")?;
                if bytes.len() > 8 {
                    bytes[4..8].copy_from_slice(&1u32.to_le_bytes());
                }
                let geo = self.geo.clone();
                if blockwright_ondisk::ext4::xattr::set_block_checksum(&mut bytes, new, &geo)
                    .is_ok()
                {
                    self.write(new, bytes);
                }
                new
            }
            None => BlockNo(0),
        };
        inode.file_acl = new;
        self.edit_inode(ino, |edit| {
            edit.put32(0x68, new.0 as u32);
            edit.put16(0x76, (new.0 >> 32) as u16);
        })
    }

    /// Replaces blocks shared with others, and clusters of the file that do not lie in one
    /// cluster of the device, by copies.
    fn copy_pieces(
        &mut self,
        pieces: Vec<Piece>,
        shared: &[(BlockNo, u64)],
        misplaced: &BTreeSet<u64>,
    ) -> Result<Vec<Piece>, CheckError> {
        let ratio = u64::from(self.geo.cluster_ratio);
        let must_move = |block: u64, logical: u64| {
            misplaced.contains(&(logical / ratio))
                || shared[..shared.partition_point(|(first, _)| first.0 <= block)]
                    .last()
                    .is_some_and(|(first, n)| block < first.0 + n)
        };
        let mut out = Collect::default();
        // Cluster by cluster of the file: a copy of one takes one. (A file may have mapped the
        // same cluster of the device twice.)
        let mut copies: Option<(u64, BlockNo)> = None;
        for piece in pieces {
            let len = u64::from(piece.len);
            if !(0..len).any(|n| must_move(piece.physical.0 + n, piece.logical + n)) {
                super::mapping::MapSink::piece(&mut out, piece);
                continue;
            }
            for n in 0..len {
                let from = BlockNo(piece.physical.0 + n);
                let logical = piece.logical + n;
                let mut to = from;
                if must_move(from.0, logical) {
                    let base = match copies {
                        Some((cluster, base)) if cluster == logical / ratio => base,
                        _ => {
                            let Some(base) = self.scan.used.find_free(from) else {
                                continue;
                            };
                            self.scan.used.insert_run(base, ratio, None);
                            copies = Some((logical / ratio, base));
                            base
                        }
                    };
                    to = BlockNo(base.0 + logical % ratio);
                    if !piece.unwritten {
                        self.store.copy_to_free(from, to)?;
                    }
                }
                super::mapping::MapSink::piece(
                    &mut out,
                    Piece {
                        logical,
                        physical: to,
                        len: 1,
                        unwritten: piece.unwritten,
                    },
                );
            }
        }
        Ok(out.pieces)
    }

    /// A block for a tree.
    fn tree_block(&mut self, near: BlockNo) -> Option<BlockNo> {
        let block = self.scan.used.find_free(near)?;
        self.scan
            .used
            .insert_run(block, u64::from(self.geo.cluster_ratio), None);
        Some(block)
    }

    fn build_map(
        &mut self,
        ino: Ino,
        inode: &Inode,
        pieces: &[Piece],
    ) -> Result<Option<(Vec<u8>, u64)>, CheckError> {
        if inode.flags.contains(InodeFlags::EXTENTS) {
            Ok(self.build_extents(ino, inode, pieces))
        } else {
            Ok(self.build_indirect(pieces))
        }
    }

    fn build_extents(
        &mut self,
        ino: Ino,
        inode: &Inode,
        pieces: &[Piece],
    ) -> Option<(Vec<u8>, u64)> {
        let geo = self.geo.clone();
        let near = pieces.first().map_or(geo.first_data_block, |p| p.physical);
        let extents = split_extents(pieces);
        let mut area = vec![0u8; 60];
        if extents.len() <= usize::from(extent::ROOT_ENTRIES) {
            extent::write_leaf(&mut area, &extents)?;
            return Some((area, 0));
        }
        let seed = geo.inode_seed(ino, inode.generation);
        let per = usize::from(extent::max_entries(geo.block_len()));
        let mut blocks = 0;
        let mut level: Vec<ExtentIndex> = Vec::new();
        for chunk in extents.chunks(per) {
            let block = self.tree_block(near)?;
            let mut bytes = vec![0u8; geo.block_len()];
            extent::write_leaf(&mut bytes, chunk)?;
            extent::set_checksum(&mut bytes, &geo, seed).ok()?;
            self.write_fresh(block, bytes);
            blocks += 1;
            level.push(ExtentIndex {
                logical: chunk[0].logical,
                child: block,
            });
        }
        let mut depth = 1;
        while level.len() > usize::from(extent::ROOT_ENTRIES) {
            let mut up = Vec::new();
            for chunk in level.chunks(per) {
                let block = self.tree_block(near)?;
                let mut bytes = vec![0u8; geo.block_len()];
                extent::write_inner(&mut bytes, depth, chunk)?;
                extent::set_checksum(&mut bytes, &geo, seed).ok()?;
                self.write_fresh(block, bytes);
                blocks += 1;
                up.push(ExtentIndex {
                    logical: chunk[0].logical,
                    child: block,
                });
            }
            level = up;
            depth += 1;
        }
        extent::write_inner(&mut area, depth, &level)?;
        Some((area, blocks))
    }

    fn build_indirect(&mut self, pieces: &[Piece]) -> Option<(Vec<u8>, u64)> {
        let per = u64::from(self.geo.block_size / 4);
        let mut area = vec![0u8; 60];
        let mut blocks = 0;
        for n in 0..DIRECT {
            if let Some(block) = block_at(pieces, n) {
                let at = n as usize * 4;
                area[at..at + 4].copy_from_slice(&(block.0 as u32).to_le_bytes());
            }
        }
        let mut base = DIRECT;
        let mut span = 1;
        for level in 1..=3usize {
            span *= per;
            if let Some(block) = self.build_table(pieces, base, span, level, &mut blocks)? {
                let at = (11 + level) * 4;
                area[at..at + 4].copy_from_slice(&(block.0 as u32).to_le_bytes());
            }
            base += span;
        }
        Some((area, blocks))
    }

    /// A table for `span` file blocks from `base` on; inner `None` when none of them is mapped.
    fn build_table(
        &mut self,
        pieces: &[Piece],
        base: u64,
        span: u64,
        level: usize,
        blocks: &mut u64,
    ) -> Option<Option<BlockNo>> {
        let from = pieces.partition_point(|p| p.end() <= base);
        let Some(first) = pieces.get(from).filter(|p| p.logical < base + span) else {
            return Some(None);
        };
        let block = self.tree_block(first.physical)?;
        if block.0 > u64::from(u32::MAX) {
            return None;
        }
        *blocks += 1;
        let per = u64::from(self.geo.block_size / 4);
        let step = span / per;
        let mut bytes = vec![0u8; self.geo.block_len()];
        for (n, slot) in bytes.chunks_exact_mut(4).enumerate() {
            let at = base + n as u64 * step;
            let child = if level == 1 {
                block_at(pieces, at)
            } else {
                self.build_table(pieces, at, step, level - 1, blocks)?
            };
            if let Some(child) = child {
                slot.copy_from_slice(&(child.0 as u32).to_le_bytes());
            }
        }
        self.write_fresh(block, bytes);
        Some(Some(block))
    }
}

/// Runs in order, overlapping ones joined.
fn merged(mut runs: Vec<(BlockNo, u64)>) -> Vec<(BlockNo, u64)> {
    runs.sort_unstable();
    let mut out: Vec<(BlockNo, u64)> = Vec::with_capacity(runs.len());
    for (first, n) in runs {
        match out.last_mut() {
            Some((start, len)) if first.0 <= start.0 + *len => {
                *len = (*len).max(first.0 + n - start.0);
            }
            _ => out.push((first, n)),
        }
    }
    out
}

/// Pieces in front of file block `keep`.
fn cut(pieces: Vec<Piece>, keep: u64) -> Vec<Piece> {
    pieces
        .into_iter()
        .filter(|p| p.logical < keep)
        .map(|p| Piece {
            len: u64::from(p.len).min(keep - p.logical) as u32,
            ..p
        })
        .collect()
}

/// Clusters of a file that are not in one cluster of the device, in the same order.
fn misplaced_clusters(pieces: &[Piece], ratio: u64) -> BTreeSet<u64> {
    let mut bad = BTreeSet::new();
    if ratio == 1 {
        return bad;
    }
    let mut last: Option<(u64, u64)> = None;
    for piece in pieces {
        if piece.logical % ratio != piece.physical.0 % ratio {
            bad.extend(piece.logical / ratio..=(piece.end() - 1) / ratio);
        }
        let here = (piece.logical / ratio, piece.physical.0 / ratio);
        if last.is_some_and(|(logical, physical)| logical == here.0 && physical != here.1) {
            bad.insert(here.0);
        }
        last = Some((
            (piece.end() - 1) / ratio,
            (piece.physical.0 + u64::from(piece.len) - 1) / ratio,
        ));
    }
    bad
}

fn block_at(pieces: &[Piece], logical: u64) -> Option<BlockNo> {
    let n = pieces.partition_point(|p| p.end() <= logical);
    let piece = pieces.get(n).filter(|p| p.logical <= logical)?;
    Some(BlockNo(piece.physical.0 + (logical - piece.logical)))
}

fn split_extents(pieces: &[Piece]) -> Vec<Extent> {
    let mut out = Vec::new();
    for piece in pieces {
        let max = Extent::max_len(piece.unwritten);
        let mut done = 0;
        while done < piece.len {
            let len = max.min(piece.len - done);
            out.push(Extent {
                logical: FileBlock(piece.logical + u64::from(done)),
                physical: BlockNo(piece.physical.0 + u64::from(done)),
                len,
                unwritten: piece.unwritten,
            });
            done += len;
        }
    }
    out
}

/// Clusters of a file's pieces; pieces next to each other may share one.
fn count_clusters(pieces: &[Piece], bits: u32) -> u64 {
    let mut count = 0;
    let mut last = None;
    for p in pieces {
        let first = p.physical.0 >> bits;
        let end = (p.physical.0 + u64::from(p.len) - 1) >> bits;
        count += end - first + 1;
        if bits > 0 && last == Some(first) {
            count -= 1;
        }
        last = Some(end);
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(logical: u64, physical: u64, len: u32) -> Piece {
        Piece {
            logical,
            physical: BlockNo(physical),
            len,
            unwritten: false,
        }
    }

    #[test]
    fn pieces_are_cut_split_and_counted() {
        let pieces = vec![piece(0, 100, 10), piece(20, 300, 40_000)];
        assert_eq!(cut(pieces.clone(), 25)[1], piece(20, 300, 5));
        let extents = split_extents(&pieces);
        assert_eq!(extents.len(), 3);
        assert_eq!((extents[1].len, extents[2].len), (32768, 7232));
        assert_eq!(block_at(&pieces, 21), Some(BlockNo(301)));
        assert_eq!(block_at(&pieces, 12), None);
        // Blocks 3 and 4 of one cluster of four count once.
        assert_eq!(count_clusters(&[piece(0, 8, 3), piece(3, 11, 1)], 2), 1);
        assert!(misplaced_clusters(&[piece(0, 8, 8)], 4).is_empty());
        assert_eq!(misplaced_clusters(&[piece(0, 9, 4)], 4), [0].into());
    }

    #[test]
    fn runs_are_merged() {
        let run = |first, n| (BlockNo(first), n);
        assert_eq!(
            merged(vec![run(9, 2), run(1, 3), run(3, 4), run(9, 1)]),
            [run(1, 6), run(9, 2)]
        );
    }
}
