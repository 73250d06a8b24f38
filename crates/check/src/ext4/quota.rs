//! Quota files: their structure, and whether what they say is used is.

use std::collections::{BTreeMap, BTreeSet};

use blockwright_ondisk::ext4::quota::{
    BLOCK_SIZE, ENTRIES_PER_BLOCK, GROUP_MAGIC, PROJECT_MAGIC, REFS_PER_BLOCK, RawQuotaBlockHeader,
    RawQuotaEntry, RawQuotaHeader, RawQuotaInfo, TREE_DEPTH, TREE_ROOT, USER_MAGIC, VERSION,
};
use blockwright_ondisk::ext4::{BlockNo, Ino, Inode, RoCompat};
use zerocopy::{FromBytes, IntoBytes};

use super::CheckError;
use super::context::Checker;
use super::issue::IssueKind;
use super::mapping::{Collect, Walk};
use super::state::Usage;

const KINDS: [(&str, u32); 3] = [
    ("user", USER_MAGIC),
    ("group", GROUP_MAGIC),
    ("project", PROJECT_MAGIC),
];
/// Blocks of a quota file that are read at most: as many as 4 million owners take.
const BLOCKS_MAX: usize = 1 << 19;

/// A quota file in memory, read block by block.
struct QuotaFile {
    ino: Ino,
    /// Device block of each file block, by position.
    blocks: BTreeMap<u64, BlockNo>,
    visited: BTreeSet<u32>,
    /// Entry of each id, and where it is: block of the file, byte offset.
    entries: BTreeMap<u32, (RawQuotaEntry, u32, usize)>,
    problem: Option<&'static str>,
    /// The size it should have, when that alone is wrong.
    right_size: Option<u64>,
}

impl Checker {
    /// Adds an inode, and the inodes of its attributes' values, to its owners' usage.
    pub fn account(&mut self, inode: &Inode, sectors: u64, inodes: u64) {
        if !self.geo.features.has_ro_compat(RoCompat::QUOTA) {
            return;
        }
        for (map, id) in self
            .scan
            .usage
            .iter_mut()
            .zip([inode.uid, inode.gid, inode.projid])
        {
            let usage = map.entry(id).or_default();
            usage.bytes += sectors * 512;
            usage.inodes += inodes;
        }
    }

    /// Compares the quota files with the usage counted.
    pub fn check_quota(&mut self) -> Result<(), CheckError> {
        if !self.geo.features.has_ro_compat(RoCompat::QUOTA) {
            return Ok(());
        }
        let files = [
            self.sb.usr_quota_inum.get(),
            self.sb.grp_quota_inum.get(),
            self.sb.prj_quota_inum.get(),
        ];
        for (n, inum) in files.into_iter().enumerate() {
            if inum != 0 {
                self.check_quota_file(n, Ino(inum))?;
            }
        }
        Ok(())
    }

    fn check_quota_file(&mut self, which: usize, ino: Ino) -> Result<(), CheckError> {
        let (kind, magic) = KINDS[which];
        let usage = std::mem::take(&mut self.scan.usage[which]);
        let file = self.read_quota_file(ino, magic)?;
        if let Some(what) = file.problem {
            if self.problem(IssueKind::QuotaFile { kind, ino, what }) {
                if let Some(size) = file.right_size {
                    return self.edit_inode(ino, |edit| edit.size(size, true));
                }
                // Without a file there is nothing to keep: a kernel makes one of its own when
                // quota is turned on again.
                self.drop_quota(which, ino)?;
            }
            return Ok(());
        }
        let ids: BTreeSet<u32> = usage.keys().chain(file.entries.keys()).copied().collect();
        let mut wrong = false;
        for id in ids {
            let counted = usage.get(&id).copied().unwrap_or_default();
            let found = file
                .entries
                .get(&id)
                .map_or(Usage::default(), |(e, _, _)| Usage {
                    bytes: e.curspace.get(),
                    inodes: e.curinodes.get(),
                });
            if counted == found {
                continue;
            }
            // Fast commits do not log quota files: bringing them up to date is part of the replay.
            let fix = if self.usage_is_old {
                self.repairing()
            } else {
                self.problem(IssueKind::QuotaUsage {
                    kind,
                    id,
                    found_bytes: found.bytes,
                    found_inodes: found.inodes,
                    bytes: counted.bytes,
                    inodes: counted.inodes,
                })
            };
            if fix {
                match file.entries.get(&id) {
                    Some((entry, block, at)) => {
                        self.store_usage(&file, *entry, (*block, *at), counted)?;
                    }
                    None => wrong = true,
                }
            }
        }
        if wrong {
            self.drop_quota(which, ino)?;
        }
        Ok(())
    }

    fn store_usage(
        &mut self,
        file: &QuotaFile,
        mut entry: RawQuotaEntry,
        (block, at): (u32, usize),
        usage: Usage,
    ) -> Result<(), CheckError> {
        entry.curspace.set(usage.bytes);
        entry.curinodes.set(usage.inodes);
        let byte = u64::from(block) * BLOCK_SIZE as u64 + at as u64;
        let size = u64::from(self.geo.block_size);
        let Some(place) = file.blocks.get(&(byte / size)).copied() else {
            return Ok(());
        };
        let mut bytes = self.store.read(place, "quota file")?;
        let offset = (byte % size) as usize;
        if let Some(dest) = bytes.get_mut(offset..offset + size_of::<RawQuotaEntry>()) {
            dest.copy_from_slice(entry.as_bytes());
            self.write(place, bytes);
        }
        Ok(())
    }

    fn drop_quota(&mut self, which: usize, ino: Ino) -> Result<(), CheckError> {
        match which {
            0 => self.sb.usr_quota_inum.set(0),
            1 => self.sb.grp_quota_inum.set(0),
            _ => self.sb.prj_quota_inum.set(0),
        }
        self.clear_inode(ino)?;
        self.sb_copies = true;
        self.touch_superblock();
        Ok(())
    }

    fn read_quota_file(&self, ino: Ino, magic: u32) -> Result<QuotaFile, CheckError> {
        let mut file = QuotaFile {
            ino,
            blocks: BTreeMap::new(),
            visited: BTreeSet::new(),
            entries: BTreeMap::new(),
            problem: None,
            right_size: None,
        };
        let Some(inode) = self.read_inode(ino)?.filter(|i| i.links > 0) else {
            file.problem = Some("there is no such file");
            return Ok(file);
        };
        let mut map = Collect::default();
        let walk = Walk {
            store: &self.store,
            geo: &self.geo,
            ino,
            inode: &inode,
        };
        walk.run(&mut map)?;
        for piece in &map.pieces {
            for n in 0..u64::from(piece.len) {
                if file.blocks.len() < BLOCKS_MAX {
                    file.blocks
                        .insert(piece.logical + n, BlockNo(piece.physical.0 + n));
                }
            }
        }
        let head = self.quota_block(&file, 0)?;
        match RawQuotaHeader::read_from_prefix(&head) {
            Ok((raw, _)) if raw.magic.get() == magic && raw.version.get() == VERSION => {}
            _ => {
                file.problem = Some("bad magic or version");
                return Ok(file);
            }
        }
        self.read_quota_tree(&mut file, TREE_ROOT, TREE_DEPTH)?;
        if file.problem.is_none()
            && let Some(Ok(info)) = head.get(8..32).map(RawQuotaInfo::read_from_bytes)
        {
            let size = u64::from(info.blocks.get()) * BLOCK_SIZE as u64;
            if size != inode.size {
                file.problem = Some("size and number of blocks disagree");
                file.right_size = Some(size);
            }
        }
        Ok(file)
    }

    /// A block of a quota file; zeroes where nothing is mapped.
    fn quota_block(&self, file: &QuotaFile, n: u32) -> Result<Vec<u8>, CheckError> {
        let byte = u64::from(n) * BLOCK_SIZE as u64;
        let size = u64::from(self.geo.block_size);
        let Some(place) = file.blocks.get(&(byte / size)).copied() else {
            return Ok(vec![0; BLOCK_SIZE]);
        };
        let bytes = self.store.read(place, "quota file")?;
        let at = (byte % size) as usize;
        Ok(bytes[at..at + BLOCK_SIZE].to_vec())
    }

    fn read_quota_tree(
        &self,
        file: &mut QuotaFile,
        block: u32,
        depth: usize,
    ) -> Result<(), CheckError> {
        if !file.visited.insert(block) && depth > 0 {
            file.problem = Some("the tree has a loop");
            return Ok(());
        }
        let per = (self.geo.block_size as usize / BLOCK_SIZE).max(1) as u64;
        if u64::from(block) / per > u64::from(u32::MAX)
            || !file.blocks.contains_key(&(u64::from(block) / per))
        {
            file.problem = Some("the tree leaves the file");
            return Ok(());
        }
        let bytes = self.quota_block(file, block)?;
        if depth == 0 {
            Self::read_quota_entries(file, block, &bytes);
            return Ok(());
        }
        for n in 0..REFS_PER_BLOCK {
            let child = u32::from_le_bytes([
                bytes[n * 4],
                bytes[n * 4 + 1],
                bytes[n * 4 + 2],
                bytes[n * 4 + 3],
            ]);
            // Several ids share a data block; it is read once.
            if child != 0 && !(depth == 1 && file.visited.contains(&child)) {
                self.read_quota_tree(file, child, depth - 1)?;
            }
            if file.problem.is_some() {
                break;
            }
        }
        Ok(())
    }

    fn read_quota_entries(file: &mut QuotaFile, block: u32, bytes: &[u8]) {
        let head = size_of::<RawQuotaBlockHeader>();
        let size = size_of::<RawQuotaEntry>();
        for n in 0..ENTRIES_PER_BLOCK {
            let at = head + n * size;
            let Some(Ok(entry)) = bytes.get(at..at + size).map(RawQuotaEntry::read_from_bytes)
            else {
                continue;
            };
            // All zero is a free slot; an entry of id 0 has something in it.
            if entry.as_bytes().iter().any(|b| *b != 0) {
                file.entries.insert(entry.id.get(), (entry, block, at));
            }
        }
        let _ = file.ino;
    }
}
