//! The resize inode, and the blocks that it keeps free for group descriptors of a larger volume.
//!
//! Three places say how many there are: the superblock, its copies, and the resize inode's list. The number is a part of
//! the geometry: with a wrong one in the superblock, bitmaps and tables seem to lie in reserved blocks.

use blockwright_ondisk::ext4::inode::InodeFlags;
use blockwright_ondisk::ext4::{BlockNo, Compat, FileKind, Ino, Inode, RawSuperblock};

use super::CheckError;
use super::context::Checker;
use super::issue::IssueKind;
use super::mapping::DIRECT;

/// Copies of the superblock that are asked for the number of reserved blocks.
const COPIES_ASKED: usize = 4;

impl Checker {
    /// The number of reserved descriptor blocks, when bitmaps or tables lie where these should be. It is changed to
    /// what a copy of the superblock or the resize inode's list says, if nothing lies in the way then.
    pub fn check_reserved_descriptors(&mut self) -> Result<(), CheckError> {
        let geo = self.geo.clone();
        let current = geo.reserved_gdt_blocks;
        if current == 0
            || !geo.features.has_compat(Compat::RESIZE_INODE)
            || self.reserved_fit(current)
        {
            return Ok(());
        }
        let mut told = self.reserved_by_copies()?;
        told.extend(self.reserved_by_list()?);
        let better = told
            .into_iter()
            .find(|n| *n != current && self.reserved_fit(*n));
        if let Some(better) = better
            && let Ok(better) = u16::try_from(better)
        {
            // Everything else is looked at with the right number, repaired or not.
            self.problem(IssueKind::SuperblockField {
                field: "number of blocks reserved for descriptors",
                found: u64::from(current),
            });
            self.sb.reserved_gdt_blocks.set(better);
            self.follow_features();
        }
        Ok(())
    }

    /// Whether no bitmap and no table begins in one of this many reserved blocks.
    fn reserved_fit(&self, reserved: u32) -> bool {
        let geo = &self.geo;
        let inside = |block: BlockNo| {
            geo.group_of_block(block).is_some_and(|group| {
                let at = block.0 - geo.group_first_block(group).0;
                let first = 1 + u64::from(geo.desc_blocks);
                geo.group_has_super(group) && (first..first + u64::from(reserved)).contains(&at)
            })
        };
        !self
            .descs
            .iter()
            .any(|d| inside(d.block_bitmap) || inside(d.inode_bitmap) || inside(d.inode_table))
    }

    /// What copies of the superblock say.
    fn reserved_by_copies(&self) -> Result<Vec<u32>, CheckError> {
        let geo = &self.geo;
        let places = geo
            .groups()
            .skip(1)
            .filter_map(|group| geo.group_super_block(group));
        let mut told = Vec::new();
        for block in places.take(COPIES_ASKED) {
            let bytes = self.store.read(block, "superblock copy")?;
            if let Ok(copy) = RawSuperblock::read(&bytes)
                && copy.magic == self.sb.magic
                && copy.uuid == self.sb.uuid
                && copy.verify_checksum().is_ok()
            {
                told.push(u32::from(copy.reserved_gdt_blocks.get()));
            }
        }
        Ok(told)
    }

    /// How many blocks the resize inode's list has, when it is a list of reserved blocks at all.
    fn reserved_by_list(&self) -> Result<Option<u32>, CheckError> {
        let geo = &self.geo;
        let Some(inode) = self.read_inode(Ino::RESIZE)? else {
            return Ok(None);
        };
        let dind = BlockNo(u64::from(word(&inode.block, 13)));
        if !geo.contains_run(dind, 1) {
            return Ok(None);
        }
        let list = self.store.read(dind, "resize inode")?;
        let per = list.len() / 4;
        let first = geo.super_block().0 + 1 + u64::from(geo.desc_blocks);
        let count = (0..per)
            .take_while(|n| {
                let slot = (geo.desc_blocks as usize + n) % per;
                u64::from(word(&list, slot)) == first + *n as u64
            })
            .count();
        let others = (0..per).filter(|n| word(&list, *n) != 0).count();
        Ok((count > 0 && count == others).then_some(count as u32))
    }

    /// The resize inode maps the blocks reserved for descriptors: one doubly indirect block whose
    /// entries are the reserved blocks of group 0, each listing its own copies.
    /// `size` is the stored one: an impossible one is not in `inode`.
    pub fn check_resize_inode(&mut self, inode: &Inode, size: u64) -> Result<(), CheckError> {
        let geo = self.geo.clone();
        let what = if inode.kind() != Some(FileKind::Regular) || inode.links == 0 {
            Some("no regular file in use")
        } else if inode
            .flags
            .intersects(InodeFlags::EXTENTS | InodeFlags::INLINE_DATA)
        {
            Some("mapped by extents")
        } else if size > super::inode_fields::max_file_size(&geo, false) {
            Some("larger than any file")
        } else {
            let area = &inode.block;
            let dind = BlockNo(u64::from(word(area, 13)));
            if (0..15).any(|n| n != 13 && word(area, n) != 0) {
                Some("blocks where there should be none")
            } else if dind.0 == 0 {
                (geo.reserved_gdt_blocks > 0).then_some("no list of blocks")
            } else if !geo.contains_run(dind, 1) || self.scan.metadata.contains(dind) {
                Some("list of blocks in an impossible place")
            } else {
                // Another owner of this block gets a copy.
                self.scan.claim_metadata(dind, 1);
                self.resize_list_problem(inode, dind, size)?
            }
        };
        let Some(what) = what else {
            // With blocks of 4 KiB it has 4 GiB.
            self.check_large_file(size);
            return Ok(());
        };
        if self.problem(IssueKind::ResizeInode { what }) {
            self.rebuild_resize_inode(inode)?;
        }
        Ok(())
    }

    /// Copies of a reserved descriptor block: the primary and where they are.
    fn resize_copies(&self, n: u32) -> Vec<u32> {
        let geo = &self.geo;
        // As far from the beginning of each group as the primary is from block 0. With blocks of 1 KiB and clusters
        // (`bigalloc`) that is one behind the reserved block itself: so tools and kernels have it.
        let primary = geo.super_block().0 + 1 + u64::from(geo.desc_blocks) + u64::from(n);
        geo.groups()
            .skip(1)
            .filter(|g| geo.group_has_super(*g))
            .map(|g| (u64::from(g.0) * u64::from(geo.blocks_per_group) + primary) as u32)
            // One more than a list has room for is as wrong as a million.
            .take(geo.block_len() / 4 + 1)
            .collect()
    }

    fn resize_list_problem(
        &self,
        inode: &Inode,
        dind: BlockNo,
        size: u64,
    ) -> Result<Option<&'static str>, CheckError> {
        let geo = &self.geo;
        let list = self.store.read(dind, "resize inode")?;
        let per = (geo.block_size / 4) as usize;
        let first = geo.super_block().0 + 1 + u64::from(geo.desc_blocks);
        let mut expected = vec![0u32; per];
        for n in 0..geo.reserved_gdt_blocks {
            // The list begins at the index of the first reserved block, and wraps around.
            let slot = (geo.desc_blocks as usize + n as usize) % per;
            expected[slot] = (first + u64::from(n)) as u32;
        }
        if (0..per).any(|n| word(&list, n) != expected[n]) {
            return Ok(Some("wrong list of reserved blocks"));
        }
        let mut blocks = 1u64;
        // The last block that is mapped. Its beginning at least is inside of the file, as e2fsck has it.
        let mut last = 0;
        for n in 0..geo.reserved_gdt_blocks {
            let primary = BlockNo(first + u64::from(n));
            let bytes = self.store.read(primary, "resize inode")?;
            let copies = self.resize_copies(n);
            blocks += 1 + copies.len() as u64;
            if !copies.is_empty() {
                let slot = (geo.desc_blocks as usize + n as usize) % per;
                last = last.max(DIRECT as usize + per + slot * per + copies.len() - 1);
            }
            if (0..per).any(|i| word(&bytes, i) != copies.get(i).copied().unwrap_or(0)) {
                return Ok(Some("wrong list of copies"));
            }
        }
        if size < (last as u64) << geo.block_bits {
            return Ok(Some("smaller than its blocks"));
        }
        let sectors = (blocks << geo.cluster_bits) << (geo.block_bits - 9);
        Ok((inode.sectors != sectors).then_some("wrong number of sectors"))
    }

    /// Lays the resize inode out anew.
    fn rebuild_resize_inode(&mut self, inode: &Inode) -> Result<(), CheckError> {
        let geo = self.geo.clone();
        let at = 13 * 4;
        let old = BlockNo(u64::from(word(&inode.block, 13)));
        let usable = geo.contains_run(old, 1) && !self.scan.metadata.contains(old);
        let dind = if usable && !self.scan.twice.contains(old) {
            Some(old)
        } else {
            self.find_unused_now()?
        };
        let Some(dind) = dind else {
            return self.drop_resize_inode();
        };
        self.scan.claim_metadata(dind, 1);
        let per = (geo.block_size / 4) as usize;
        let first = geo.super_block().0 + 1 + u64::from(geo.desc_blocks);
        let mut list = vec![0u8; geo.block_len()];
        let mut blocks = 1u64;
        for n in 0..geo.reserved_gdt_blocks {
            let slot = (geo.desc_blocks as usize + n as usize) % per;
            let primary = BlockNo(first + u64::from(n));
            list[slot * 4..slot * 4 + 4].copy_from_slice(&(primary.0 as u32).to_le_bytes());
            let mut bytes = vec![0u8; geo.block_len()];
            let copies = self.resize_copies(n);
            for (slot, copy) in bytes.chunks_exact_mut(4).zip(&copies) {
                slot.copy_from_slice(&copy.to_le_bytes());
            }
            blocks += 1 + copies.len() as u64;
            self.write(primary, bytes);
        }
        self.write(dind, list);
        let mut new = Inode::new(&geo, 0o100_600);
        new.links = 1;
        new.block[at..at + 4].copy_from_slice(&(dind.0 as u32).to_le_bytes());
        let per = u64::from(geo.block_size / 4);
        new.size = (per * per + per + 12) * u64::from(geo.block_size);
        // Each of them counts as a cluster.
        new.sectors = (blocks << geo.cluster_bits) << (geo.block_bits - 9);
        new.mtime.secs = self.now as i64;
        let mut raw = vec![0; usize::from(geo.inode_size)];
        if new.encode_into(&mut raw, &geo, Ino::RESIZE).is_ok() {
            self.write_raw_inode(Ino::RESIZE, raw)?;
        }
        Ok(())
    }

    fn drop_resize_inode(&mut self) -> Result<(), CheckError> {
        let mut features = self.sb.features();
        features.compat.remove(Compat::RESIZE_INODE);
        self.sb.set_features(features);
        self.sb.reserved_gdt_blocks.set(0);
        self.follow_features();
        self.clear_inode(Ino::RESIZE)
    }
}

/// A word of a list of block numbers; 0 behind its end.
fn word(bytes: &[u8], n: usize) -> u32 {
    bytes
        .get(n * 4..n * 4 + 4)
        .map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}
