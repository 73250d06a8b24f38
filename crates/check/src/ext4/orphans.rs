//! Orphans: inodes being deleted or truncated when the volume went down, in a list through their
//! deletion times or in a file of their own.
//!
//! Having them is not damage: a mount finishes what was begun. So do repairs.

use blockwright_ondisk::ext4::{Compat, FileKind, Ino, RoCompat, orphan_file};

use super::CheckError;
use super::context::Checker;
use super::issue::IssueKind;
use super::mapping::{Collect, Walk};

impl Checker {
    /// Reads the list and the file; repairs finish what orphans were waiting for.
    pub fn check_orphan_list(&mut self) -> Result<(), CheckError> {
        let mut found: Vec<Ino> = Vec::new();
        let mut broken = None;
        let mut next = Ino(self.sb.last_orphan.get());
        while next.0 != 0 {
            let inode = match self.read_inode(next)? {
                Some(inode) if next >= self.geo.first_ino => inode,
                _ => {
                    broken = Some((next, "no such inode"));
                    break;
                }
            };
            if inode.kind().is_none() {
                broken = Some((next, "not in use"));
                break;
            }
            if !self.scan.orphans.insert(next.0) {
                broken = Some((next, "the list has a loop"));
                break;
            }
            self.need_inode(next)?;
            found.push(next);
            // The last one has no successor, but a file system that lost its journal may have
            // left a real deletion time there.
            next = Ino(inode.dtime);
            if inode.links == 0 && next.0 > self.geo.inodes_count {
                broken = Some((next, "the list leaves the volume"));
                break;
            }
        }
        if let Some((ino, what)) = broken {
            if self.problem(IssueKind::OrphanList { ino, what }) {
                self.sb.last_orphan.set(0);
                self.touch_superblock();
            } else {
                return Ok(());
            }
        }
        let from_list = found.len();
        self.read_orphan_file(&mut found)?;
        for (n, ino) in found.into_iter().enumerate() {
            if self.problem(IssueKind::OrphanPending { ino }) {
                self.finish_orphan(ino)?;
                if n < from_list {
                    self.sb.last_orphan.set(0);
                    self.touch_superblock();
                }
                self.scan.orphans.remove(&ino.0);
            }
        }
        Ok(())
    }

    /// Whether the inode that the superblock calls the file of orphans is one; `None` when there is nothing in it. For a volume without the feature.
    pub fn names_orphan_file(&self) -> Result<Option<bool>, CheckError> {
        let geo = self.geo.clone();
        let ino = Ino(self.sb.orphan_file_inum.get());
        if ino < geo.first_ino || ino.0 > geo.inodes_count {
            return Ok(None);
        }
        let Some(inode) = self.read_inode(ino)? else {
            return Ok(None);
        };
        if inode.links == 0 && inode.block.iter().all(|b| *b == 0) {
            return Ok(None);
        }
        if inode.kind() != Some(FileKind::Regular) {
            return Ok(Some(false));
        }
        let map = self.mapping_of(ino, &inode)?;
        let Some(first) = map.pieces.first().filter(|p| p.logical == 0) else {
            return Ok(Some(false));
        };
        let bytes = self.store.read(first.physical, "orphan file")?;
        let seed = geo.inode_seed(ino, inode.generation);
        let sound = orphan_file::verify(&bytes, first.physical, &geo, seed).is_ok();
        Ok(Some(sound))
    }

    /// The superblock names no file of orphans any more. One that was named is freed; any other inode stays as it is.
    pub fn give_up_orphan_file(&mut self) -> Result<(), CheckError> {
        if self.names_orphan_file()? == Some(true) {
            self.clear_inode(Ino(self.sb.orphan_file_inum.get()))?;
        }
        self.sb.orphan_file_inum.set(0);
        self.touch_superblock();
        Ok(())
    }

    fn read_orphan_file(&mut self, found: &mut Vec<Ino>) -> Result<(), CheckError> {
        let geo = self.geo.clone();
        if !geo.features.has_compat(Compat::ORPHAN_FILE) {
            return Ok(());
        }
        let file = Ino(self.sb.orphan_file_inum.get());
        let Some(inode) = self.read_inode(file)? else {
            return Ok(());
        };
        let seed = geo.inode_seed(file, inode.generation);
        let mut map = Collect::default();
        let regular = inode.kind() == Some(FileKind::Regular) && inode.links > 0;
        if regular {
            let walk = Walk {
                store: &self.store,
                geo: &geo,
                ino: file,
                inode: &inode,
            };
            walk.run(&mut map)?;
        }
        let mut mapped = 0;
        for piece in &map.pieces {
            if piece.logical == mapped {
                mapped = piece.end();
            }
        }
        let what = if !regular {
            Some("the file itself is no regular file")
        } else if mapped == 0 || mapped << geo.block_bits != inode.size {
            Some("the file itself has holes")
        } else {
            None
        };
        if let Some(what) = what
            && self.problem(IssueKind::OrphanFile { ino: file, what })
        {
            self.clear_inode(file)?;
            let mut features = self.sb.features();
            features.compat.remove(Compat::ORPHAN_FILE);
            features.ro_compat.remove(RoCompat::ORPHAN_PRESENT);
            self.sb.orphan_file_inum.set(0);
            self.sb.set_features(features);
            self.follow_features();
            return Ok(());
        }
        let present = geo.features.has_ro_compat(RoCompat::ORPHAN_PRESENT);
        let mut entries = 0u64;
        // Kernels make it at most 512 blocks long; a hostile one may be any size.
        let blocks = map
            .pieces
            .iter()
            .flat_map(|p| (0..u64::from(p.len)).map(|n| p.physical.0 + n))
            .take(1 << 16);
        for block in blocks {
            let block = blockwright_ondisk::ext4::BlockNo(block);
            let mut bytes = self.store.read(block, "orphan file")?;
            let mut changed = false;
            if let Err(error) = orphan_file::verify(&bytes, block, &geo, seed) {
                if self.problem(IssueKind::OrphanBlock {
                    error: error.into(),
                }) {
                    bytes.fill(0);
                    changed = true;
                } else {
                    continue;
                }
            }
            let slots: Vec<(usize, Ino)> = orphan_file::orphans(&bytes).collect();
            // Without orphans e2fsck expects the block as it was made: a checksum from when the volume had them is dirt.
            let mut made = bytes.clone();
            if slots.is_empty()
                && !changed
                && orphan_file::write_tail(&mut made, block, &geo, seed).is_some()
                && made != bytes
                && self.problem(IssueKind::OrphanFile {
                    ino: file,
                    what: "a block without orphans is not as it was made",
                })
            {
                changed = true;
            }
            for (slot, ino) in slots {
                entries += 1;
                let known = match self.read_inode(ino)? {
                    Some(inode) => ino >= geo.first_ino && inode.kind().is_some(),
                    None => false,
                };
                if !known
                    && !self.problem(IssueKind::OrphanFile {
                        ino,
                        what: "no such inode",
                    })
                {
                    continue;
                }
                if known && self.scan.orphans.insert(ino.0) {
                    found.push(ino);
                }
                if self.repairing() && orphan_file::set_slot(&mut bytes, slot, Ino(0)).is_some() {
                    changed = true;
                }
            }
            if changed && orphan_file::write_tail(&mut bytes, block, &geo, seed).is_some() {
                self.write(block, bytes);
            }
        }
        let mut fix = None;
        if entries > 0 && !present && self.problem(IssueKind::OrphanPresentMissing) {
            fix = Some(false);
        }
        if entries > 0 && present && self.repairing() {
            // All entries are dealt with now.
            fix = Some(false);
        }
        if entries == 0 && present && self.problem(IssueKind::OrphanPresentSet) {
            fix = Some(false);
        }
        if fix.is_some() {
            let mut features = self.sb.features();
            features.ro_compat.remove(RoCompat::ORPHAN_PRESENT);
            self.sb.set_features(features);
            self.follow_features();
        }
        Ok(())
    }

    /// Deletes an inode without links, or cuts one with links to its size.
    fn finish_orphan(&mut self, ino: Ino) -> Result<(), CheckError> {
        let now = self.now as u32;
        let Some(inode) = self.read_inode(ino)? else {
            return Ok(());
        };
        if inode.links == 0 {
            // Its blocks are found to be free by this very round: only inodes in use claim any.
            return self.edit_inode(ino, |edit| edit.dtime(now));
        }
        self.edit_inode(ino, |edit| edit.dtime(0))?;
        if inode.maps_blocks(&self.geo) {
            self.scan.remap.insert(ino.0);
            self.scan.truncate.insert(ino.0);
        }
        Ok(())
    }
}
