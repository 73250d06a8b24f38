//! The mark in a group's descriptor behind which no inode of its table was ever used.
//!
//! The mark saves reading tables. It is one number, so it is believed only as long as nothing else
//! says that an inode behind it is in use: the group's inode bitmap, the superblock, the orphan
//! list, an attribute, or a name in a directory. Then the mark is raised, and the round begins
//! anew. No name is removed, and no block is taken for free, because of a mark.
//!
//! A table that was never zeroed may hold anything behind the mark. There the mark is raised as
//! far as necessary; elsewhere it goes.

use blockwright_ondisk::ext4::dir::{DirBlock, DirFormat};
use blockwright_ondisk::ext4::inode;
use blockwright_ondisk::ext4::{BlockNo, ChecksumKind, GroupFlags, GroupNo, Ino};

use super::CheckError;
use super::context::{Checker, decode_lenient};
use super::issue::IssueKind;

impl Checker {
    /// The group an inode lies in, when its table says it was never used.
    pub fn unused_part(&self, ino: Ino) -> Option<GroupNo> {
        let (group, index) = self.geo.split_ino(ino)?;
        (index >= self.table_in_use(group)).then_some(group)
    }

    /// Whether what lies behind a mark is an inode in use.
    pub fn used_behind_mark(&self, ino: Ino) -> Result<bool, CheckError> {
        let Some(raw) = self.read_raw_inode(ino)? else {
            return Ok(false);
        };
        let Some(inode) = decode_lenient(&raw, &self.geo, ino) else {
            return Ok(false);
        };
        if inode.kind().is_none() || inode.links == 0 {
            return Ok(false);
        }
        let zeroed = self.geo.split_ino(ino).is_some_and(|(group, _)| {
            self.descs[group.0 as usize]
                .flags
                .contains(GroupFlags::INODE_ZEROED)
        });
        Ok(zeroed || inode::verify_checksum(&raw, &self.geo, ino).is_ok())
    }

    /// An inode must be in use: if it lies behind a mark, [`Self::raise_marks`] raises that.
    pub fn need_inode(&mut self, ino: Ino) -> Result<(), CheckError> {
        if self.unused_part(ino).is_some() && self.used_behind_mark(ino)? {
            self.note_behind_mark(ino);
        }
        Ok(())
    }

    /// Remembers that an inode behind a mark is in use.
    pub fn note_behind_mark(&mut self, ino: Ino) {
        if let Some((group, index)) = self.geo.split_ino(ino) {
            let most = self.scan.behind_marks.entry(group.0).or_default();
            *most = index.max(*most);
        }
    }

    /// Inodes that the bitmap has in use behind the mark. Called before the tables are read.
    pub fn check_marks(&mut self) -> Result<(), CheckError> {
        let geo = self.geo.clone();
        if geo.checksums == ChecksumKind::None {
            return Ok(());
        }
        for group in geo.groups() {
            let mut desc = self.descs[group.0 as usize];
            if let Some(unused) = self.raised_marks.get(&group.0) {
                desc.itable_unused = desc.itable_unused.min(*unused);
                desc.flags -= GroupFlags::INODE_UNINIT;
                self.descs[group.0 as usize] = desc;
            }
            let from = self.table_in_use(group);
            // Nothing to check: no inode lies behind the mark, the bitmap lies outside of the volume, or nothing tells whether the
            // bitmap of an unused group was ever written.
            let uninit = desc.flags.contains(GroupFlags::INODE_UNINIT);
            if from == geo.inodes_per_group
                || !geo.contains_run(desc.inode_bitmap, 1)
                || (uninit && !geo.metadata_csum())
            {
                continue;
            }
            let bitmap = self.store.read(desc.inode_bitmap, "inode bitmap")?;
            let used = |index: u32| {
                let byte = bitmap.get(index as usize / 8).copied().unwrap_or(0);
                byte >> (index % 8) & 1 != 0
            };
            if uninit && desc.verify_inode_bitmap(&bitmap, &geo, group).is_err() {
                continue;
            }
            for index in (from..geo.inodes_per_group).rev().filter(|n| used(*n)) {
                if let Some(ino) = geo.ino_at(group, index)
                    && self.used_behind_mark(ino)?
                {
                    self.note_behind_mark(ino);
                    break;
                }
            }
        }
        for ino in (1..geo.first_ino.0).map(Ino).collect::<Vec<_>>() {
            self.need_inode(ino)?;
        }
        // Before the tables are read: this round continues with the new marks.
        self.raise_marks()?;
        self.scan.marks_raised = false;
        Ok(())
    }

    /// Raises the marks in front of inodes that are in use. Whether there were any: then what is
    /// behind them was not looked at.
    pub fn raise_marks(&mut self) -> Result<bool, CheckError> {
        let geo = self.geo.clone();
        let noted = std::mem::take(&mut self.scan.behind_marks);
        for (group, index) in &noted {
            let group = GroupNo(*group);
            let found = geo.inodes_per_group - self.table_in_use(group);
            let repair = self.problem(IssueKind::GroupUnusedInodes { group, found });
            let desc = &mut self.descs[group.0 as usize];
            desc.itable_unused = if desc.flags.contains(GroupFlags::INODE_ZEROED) {
                0
            } else {
                let keep = (index + 1).next_multiple_of(geo.inodes_per_block);
                geo.inodes_per_group.saturating_sub(keep)
            };
            desc.flags -= GroupFlags::INODE_UNINIT;
            let unused = desc.itable_unused;
            self.raised_marks.insert(group.0, unused);
            if repair {
                self.write_desc(group, false)?;
            }
        }
        self.scan.marks_raised |= !noted.is_empty();
        Ok(!noted.is_empty())
    }

    /// Looks for names of inodes behind marks, before blocks are given out: what such inodes map
    /// must not be taken for free. Whether there were any.
    pub fn seek_names_behind_marks(&mut self) -> Result<bool, CheckError> {
        let geo = self.geo.clone();
        let marked = geo
            .groups()
            .any(|g| self.table_in_use(g) < geo.inodes_per_group);
        if !marked || std::mem::replace(&mut self.scan.names_sought, true) {
            return Ok(false);
        }
        for n in 0..self.scan.dirs.len() {
            let dir = self.scan.dirs[n].clone();
            if dir.inline {
                if let (Some(inode), Some(raw)) =
                    (self.read_inode(dir.ino)?, self.read_raw_inode(dir.ino)?)
                {
                    for range in self.inline_parts(&inode, &raw) {
                        self.note_names(&raw[range], dir.format(&self.geo))?;
                    }
                }
                continue;
            }
            let format = dir.format(&self.geo);
            for at in dir.runs {
                let run = self.scan.dir_runs[at];
                for block in 0..u64::from(run.len) {
                    let place = BlockNo(run.physical.0 + block);
                    let bytes = self.store.read(place, "directory")?;
                    self.note_names(&bytes, format)?;
                }
            }
        }
        self.raise_marks()
    }

    fn note_names(&mut self, bytes: &[u8], format: DirFormat) -> Result<(), CheckError> {
        let named: Vec<Ino> = DirBlock::entries_of(bytes, format)
            .iter()
            .map_while(Result::ok)
            .filter(|e| e.is_used())
            .map(|e| e.ino)
            .collect();
        for ino in named {
            self.need_inode(ino)?;
        }
        Ok(())
    }
}
