//! Reserved inodes: bad blocks, journal, quota and those without a use. The resize inode has a file of its own.

use std::collections::BTreeSet;

use blockwright_ondisk::ext4::extent;
use blockwright_ondisk::ext4::inode::InodeFlags;
use blockwright_ondisk::ext4::{BlockNo, Compat, FileKind, GroupFlags, Ino, Inode, RoCompat};

use super::CheckError;
use super::context::{Checker, RawEdit};
use super::inode_fields::Fields;
use super::issue::IssueKind;

/// Most blocks that a list of bad blocks has extents of.
const BAD_EXTENTS_MAX: u64 = 1 << 16;

/// What the list of bad blocks names.
#[derive(Default)]
struct BadList {
    seen: BTreeSet<BlockNo>,
    /// Blocks of the list itself, in the order in which they were read.
    tree: Vec<BlockNo>,
    /// Blocks that cannot be on it.
    wrong: BTreeSet<BlockNo>,
    /// Blocks that are on it more than once.
    repeated: BTreeSet<BlockNo>,
}

impl BadList {
    /// Removes wrong numbers from a part of the list, and repeated ones that are `kept` already.
    /// Whether there were any.
    fn remove_from(&self, words: &mut [u8], kept: &mut BTreeSet<BlockNo>) -> bool {
        let mut changed = false;
        for word in words.chunks_exact_mut(4) {
            let n = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
            let block = BlockNo(u64::from(n));
            let again = self.repeated.contains(&block) && !kept.insert(block);
            if again || self.wrong.contains(&block) {
                word.fill(0);
                changed = true;
            }
        }
        changed
    }
}

impl Checker {
    /// An inode below the first one for files.
    pub fn check_reserved_inode(
        &mut self,
        ino: Ino,
        raw: &[u8],
        inode: &Inode,
        bad_sum: bool,
    ) -> Result<(), CheckError> {
        let f = self.geo.features;
        let is_quota = self.is_quota_file(ino);
        let is_journal = f.has_compat(Compat::HAS_JOURNAL) && self.sb.journal_inum.get() == ino.0;
        if ino == Ino::BAD {
            self.check_bad_blocks(ino, raw, inode)?;
        } else if ino == Ino::RESIZE && f.has_compat(Compat::RESIZE_INODE) {
            let size = RawEdit {
                raw: &mut raw.to_vec(),
            }
            .stored_size();
            self.check_resize_inode(inode, size)?;
        } else if is_journal || is_quota {
            return self.check_hidden_file(ino, raw, inode, bad_sum);
        } else if let Some(what) = self.unused_reserved_problem(ino, inode) {
            if self.problem(IssueKind::InodeReserved { ino, what }) {
                return self.clear_inode(ino);
            }
            return Ok(());
        } else if inode.mode != 0 && !matches!(ino, Ino::USR_QUOTA | Ino::GRP_QUOTA) {
            let boot = ino == Ino::BOOT && inode.kind() == Some(FileKind::Regular);
            if boot {
                return self.check_hidden_file(ino, raw, inode, bad_sum);
            }
            if self.problem(IssueKind::InodeReserved {
                ino,
                what: "reserved, but in use",
            }) {
                return self.clear_inode(ino);
            }
            return Ok(());
        }
        // The list of bad blocks may have been repaired meanwhile.
        let mut edited = self.read_raw_inode(ino)?.unwrap_or_else(|| raw.to_vec());
        let mut repair = bad_sum && self.problem(IssueKind::InodeChecksum { ino });
        let dtime = inode.dtime;
        if self.low_dtime(inode) && self.problem(IssueKind::InodeDtimeLow { ino, dtime }) {
            RawEdit { raw: &mut edited }.dtime(0);
            repair = true;
        }
        let lists_blocks =
            ino == Ino::BAD || ino == Ino::RESIZE && f.has_compat(Compat::RESIZE_INODE);
        if !lists_blocks {
            repair |= self.check_unused_reserved(ino, inode, &mut edited);
        }
        repair |= self.check_reserved_flags(ino, &mut edited);
        if repair {
            self.write_raw_inode(ino, edited)?;
        }
        Ok(())
    }

    /// Contents that a reserved inode must not have when this volume does not use it.
    fn unused_reserved_problem(&self, ino: Ino, inode: &Inode) -> Option<&'static str> {
        let mapped = inode.block.iter().any(|b| *b != 0);
        // e2fsck looks at the low half of the count.
        let sectors = inode.sectors as u32 != 0;
        let both = InodeFlags::EXTENTS | InodeFlags::INLINE_DATA;
        if inode.mode == 0 && inode.flags.contains(both) {
            return Some("flags that contradict");
        }
        if inode.mode == 0 && self.examined(ino) && self.has_attribute_block(inode) {
            return Some("attributes of an inode that is not in use");
        }
        match ino {
            // Its links, the first block number or the count of sectors make it a file to e2fsck.
            Ino::JOURNAL if !self.examined(ino) => {
                let used = sectors || inode.links != 0 || inode.block[..4] != [0; 4];
                used.then_some("a journal without the feature")
            }
            Ino::RESIZE => mapped.then_some("blocks without the feature resize_inode"),
            Ino::USR_QUOTA | Ino::GRP_QUOTA if !self.examined(ino) => {
                let used = sectors || inode.links != 0 || inode.block[..4] != [0; 4];
                used.then_some("quota without the feature")
            }
            _ => None,
        }
    }

    /// Whether anything but the beginning of a reserved inode counts: the kernel never reads the inodes of a journal
    /// and of quota on volumes without, and e2fsck takes what is in them for nothing.
    fn examined(&self, ino: Ino) -> bool {
        let f = self.geo.features;
        match ino {
            Ino::JOURNAL => f.has_compat(Compat::HAS_JOURNAL),
            Ino::USR_QUOTA | Ino::GRP_QUOTA => f.has_ro_compat(RoCompat::QUOTA),
            _ => true,
        }
    }

    /// Whether an inode without a name has a block of attributes that e2fsck reads.
    fn has_attribute_block(&self, inode: &Inode) -> bool {
        let block = inode.file_acl;
        block.0 != 0 && self.inside(block) && self.geo.features.has_compat(Compat::EXT_ATTR)
    }

    /// Flags of directories, which a reserved inode is none of. Whether `raw` was repaired.
    fn check_reserved_flags(&mut self, ino: Ino, raw: &mut Vec<u8>) -> bool {
        let found = RawEdit { raw }.get32(0x20);
        let flags = InodeFlags::from_bits_retain(found);
        let indexed = ino != Ino::BAD && self.examined(ino) && flags.contains(InodeFlags::INDEX);
        let mut repair = false;
        for (there, flag, what) in [
            (indexed, InodeFlags::INDEX, "an index, but no directory"),
            (
                flags.contains(InodeFlags::CASEFOLD),
                InodeFlags::CASEFOLD,
                "casefold where it cannot be",
            ),
        ] {
            let flags = found;
            if there && self.problem(IssueKind::InodeFlags { ino, flags, what }) {
                RawEdit { raw }.flags(flag.bits(), 0);
                repair = true;
            }
        }
        repair
    }

    /// Sizes and counts of a reserved inode without contents. Whether `raw` was repaired.
    fn check_unused_reserved(&mut self, ino: Ino, inode: &Inode, raw: &mut Vec<u8>) -> bool {
        if !self.examined(ino) {
            return false;
        }
        let mut repair = false;
        let found = RawEdit { raw }.stored_size();
        let expected = 0;
        if found > super::inode_fields::max_file_size(&self.geo, false)
            && self.problem(IssueKind::InodeSize {
                ino,
                found,
                expected,
            })
        {
            RawEdit { raw }.size(0, true);
            repair = true;
        }
        let mapped = inode.block.iter().any(|b| *b != 0);
        if !mapped
            && inode.sectors != 0
            && inode.file_acl.0 == 0
            && self.problem(IssueKind::InodeBlocks {
                ino,
                found: inode.sectors,
                counted: 0,
            })
        {
            let mut edit = RawEdit { raw };
            edit.put32(0x1C, 0);
            edit.put16(0x74, 0);
            repair = true;
        }
        repair
    }

    /// The journal, quota files: regular files without a name.
    fn check_hidden_file(
        &mut self,
        ino: Ino,
        raw: &[u8],
        inode: &Inode,
        bad_sum: bool,
    ) -> Result<(), CheckError> {
        let (mut raw, mut inode, mut repair) = (raw.to_vec(), inode.clone(), false);
        if inode.kind() != Some(FileKind::Regular) || inode.links == 0 {
            if inode.mode == 0 && inode.links == 0 {
                return Ok(());
            }
            repair = self.problem(IssueKind::InodeReserved {
                ino,
                what: "hidden file is no regular file",
            });
            // Its blocks are in use, repaired or not.
            let mut edit = RawEdit { raw: &mut raw };
            edit.put16(0, 0o100_600);
            edit.links(1);
            inode.mode = 0o100_600;
            inode.links = 1;
        }
        let mut fields = Fields::new(ino, &raw, &inode, FileKind::Regular);
        fields.edited = repair;
        self.check_inode_fields(&mut fields)?;
        self.check_inode_attributes(&mut fields)?;
        let mapped = self.check_inode_mapping(&mut fields, FileKind::Regular)?;
        self.check_inode_size(&mut fields, FileKind::Regular, mapped)?;
        if bad_sum && self.problem(IssueKind::InodeChecksum { ino }) {
            fields.edited = true;
        }
        if fields.edited {
            self.write_raw_inode(ino, fields.raw)?;
        }
        Ok(())
    }

    fn check_bad_blocks(&mut self, ino: Ino, raw: &[u8], inode: &Inode) -> Result<(), CheckError> {
        let odd = inode.mode != 0
            || inode.links != 0
            || inode.flags.contains(InodeFlags::INLINE_DATA)
            // e2fsck looks at the low halves.
            || inode.file_acl.0 as u32 != 0
            || inode.uid & 0xFFFF != 0
            || inode.gid & 0xFFFF != 0;
        if odd
            && self.problem(IssueKind::InodeReserved {
                ino,
                what: "list of bad blocks looks like a file",
            })
        {
            return self.clear_inode(ino);
        }
        if odd {
            return Ok(());
        }
        // Nothing reads the sector count of its inode: tools leave the list itself out of it.
        let mut list = BadList::default();
        if inode.flags.contains(InodeFlags::EXTENTS) {
            return self.check_bad_extents(ino, raw, inode, list);
        }
        // Blocks of the list first: a number that is both a block of the list and on it leads to more of them.
        for n in (12..15).chain(0..12) {
            let level = n.max(11) - 11;
            self.read_bad_list(&mut list, &inode.block[n * 4..n * 4 + 4], level)?;
        }
        if list.wrong.is_empty() && list.repeated.is_empty() {
            return Ok(());
        }
        let what = "list of bad blocks names metadata, blocks outside of the volume, or some twice";
        if !self.problem(IssueKind::InodeReserved { ino, what }) {
            return Ok(());
        }
        let mut kept = BTreeSet::new();
        let mut raw = raw.to_vec();
        let (direct, indirect) = raw[0x28..0x28 + 60].split_at_mut(48);
        list.remove_from(indirect, &mut kept);
        list.remove_from(direct, &mut kept);
        self.write_raw_inode(ino, raw)?;
        for block in &list.tree {
            let block = *block;
            let mut bytes = self.store.read(block, "list of bad blocks")?;
            if list.remove_from(&mut bytes, &mut kept) {
                self.write(block, bytes);
            }
        }
        Ok(())
    }

    /// A list of bad blocks that says it has extents. e2fsck takes such a list, and what is no extent for nothing. Blocks that the bitmaps call used are
    /// a list whose flag is the damage.
    fn check_bad_extents(
        &mut self,
        ino: Ino,
        raw: &[u8],
        inode: &Inode,
        mut list: BadList,
    ) -> Result<(), CheckError> {
        let magic = inode.block[..2] == extent::MAGIC.to_le_bytes();
        if !magic && self.lists_used_blocks(inode)? {
            let flags = inode.flags.bits();
            let what = "extents, but a list of bad blocks";
            let inode = Inode {
                flags: inode.flags - InodeFlags::EXTENTS,
                ..inode.clone()
            };
            let mut raw = raw.to_vec();
            let mut edit = RawEdit { raw: &mut raw };
            edit.flags(InodeFlags::EXTENTS.bits(), 0);
            if self.problem(IssueKind::InodeFlags { ino, flags, what }) {
                self.write_raw_inode(ino, raw.clone())?;
            }
            return self.check_bad_blocks(ino, &raw, &inode);
        }
        if !magic {
            return Ok(());
        }
        let map = self.mapping_of(ino, inode)?;
        let words = |block: u64| (block as u32).to_le_bytes();
        let count: u64 = map.pieces.iter().map(|p| u64::from(p.len)).sum();
        if count <= BAD_EXTENTS_MAX {
            for block in &map.tree {
                self.read_bad_list(&mut list, &words(block.0), 0)?;
            }
            let blocks = map.pieces.iter();
            for block in blocks.flat_map(|p| (0..u64::from(p.len)).map(|n| p.physical.0 + n)) {
                self.read_bad_list(&mut list, &words(block), 0)?;
            }
        }
        let wrong = !(list.wrong.is_empty() && list.repeated.is_empty());
        let what = "list of bad blocks names metadata, blocks outside of the volume, or some twice";
        if (wrong || count > BAD_EXTENTS_MAX)
            && self.problem(IssueKind::InodeReserved { ino, what })
        {
            return self.clear_inode(ino);
        }
        Ok(())
    }

    /// Whether an inode's direct blocks are all possible bad blocks, and the bitmaps on the device call one of them used.
    fn lists_used_blocks(&self, inode: &Inode) -> Result<bool, CheckError> {
        let words = inode.block.chunks_exact(4).take(12);
        let blocks = words.map(|w| u64::from(u32::from_le_bytes([w[0], w[1], w[2], w[3]])));
        let blocks: Vec<BlockNo> = blocks.filter(|b| *b != 0).map(BlockNo).collect();
        let possible =
            |b: &BlockNo| self.geo.contains_run(*b, 1) && !self.scan.metadata.contains(*b);
        if !blocks.iter().all(possible) {
            return Ok(false);
        }
        for block in blocks {
            let Some((group, offset)) = self.geo.split_block(block) else {
                continue;
            };
            let place = self.descs[group.0 as usize].block_bitmap;
            if !self.geo.contains_run(place, 1) {
                continue;
            }
            let bitmap = self.store.read(place, "block bitmap")?;
            let bit = (offset >> self.geo.cluster_bits) as usize;
            if bitmap.get(bit / 8).is_some_and(|b| b >> (bit % 8) & 1 != 0) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads words of the list of bad blocks, which are `level` levels above what they name, and
    /// enters what is good among the used blocks.
    fn read_bad_list(
        &mut self,
        list: &mut BadList,
        words: &[u8],
        level: usize,
    ) -> Result<(), CheckError> {
        for word in words.chunks_exact(4) {
            let block = BlockNo(u64::from(u32::from_le_bytes([
                word[0], word[1], word[2], word[3],
            ])));
            if block.0 == 0 {
                continue;
            }
            let inside = self.geo.contains_run(block, 1);
            if !inside || self.scan.metadata.contains(block) {
                list.wrong.insert(block);
                continue;
            }
            if !list.seen.insert(block) {
                list.repeated.insert(block);
                continue;
            }
            self.scan
                .used
                .insert_run(block, 1, Some(&mut self.scan.twice));
            if level > 0 {
                list.tree.push(block);
                let bytes = self.store.read(block, "list of bad blocks")?;
                self.read_bad_list(list, &bytes, level - 1)?;
            }
        }
        Ok(())
    }

    /// A block that is free by the bitmaps on the device and by all that is known so far. For
    /// repairs that come before all inodes were seen.
    pub fn find_unused_now(&mut self) -> Result<Option<BlockNo>, CheckError> {
        let geo = self.geo.clone();
        for group in geo.groups() {
            let desc = self.descs[group.0 as usize];
            if !geo.contains_run(desc.block_bitmap, 1)
                || desc.flags.contains(GroupFlags::BLOCK_UNINIT)
            {
                continue;
            }
            let bitmap = self.store.read(desc.block_bitmap, "block bitmap")?;
            for n in 0..geo.group_clusters(group) as usize {
                let block =
                    BlockNo(geo.group_first_block(group).0 + ((n as u64) << geo.cluster_bits));
                let free = bitmap.get(n / 8).is_some_and(|b| b >> (n % 8) & 1 == 0);
                if free && !self.scan.used.contains(block) && geo.contains_run(block, 1) {
                    return Ok(Some(block));
                }
            }
        }
        Ok(None)
    }

    /// Files the superblock names: they must exist.
    pub fn check_special_inodes(&mut self) -> Result<(), CheckError> {
        for ino in self.hidden_inodes() {
            self.need_inode(ino)?;
        }
        self.check_root()
    }

    fn check_root(&mut self) -> Result<(), CheckError> {
        let root = self.scan.inodes.get(Ino::ROOT).copied();
        let what = match root {
            None => "there is none",
            Some(state) if state.kind != Some(FileKind::Directory) => "it is no directory",
            Some(_) => return Ok(()),
        };
        if self.problem(IssueKind::RootMissing { what }) {
            self.make_root()?;
        }
        Ok(())
    }
}
