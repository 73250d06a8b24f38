//! Connectivity: the root leads to every inode; link counts; "..".

use std::collections::BTreeMap;

use blockwright_ondisk::f2fs::{Features, FileKind, Ino};

use super::CheckError;
use super::context::Checker;
use super::issue::IssueKind;
use crate::Phase;

impl Checker {
    /// The quota files, which no directory names.
    pub(super) fn quota_inodes(&self) -> impl Iterator<Item = (&'static str, Ino)> + use<> {
        let on = self.geo.features.contains(Features::QUOTA);
        let list: Vec<(&'static str, Ino)> = ["user", "group", "project"]
            .into_iter()
            .zip(self.sb.qf_ino)
            .map(|(kind, ino)| (kind, Ino(ino.get())))
            .filter(|(_, ino)| on && ino.0 != 0)
            .collect();
        list.into_iter()
    }

    /// Finds inodes that nothing leads to, and compares link counts.
    pub(super) fn check_links(&mut self) -> Result<(), CheckError> {
        self.report_progress(Phase::Links, 0, 1)?;
        self.check_quota_inodes();
        self.check_orphans();
        self.reach();
        self.check_unreached()?;
        self.check_counts_of_links()?;
        self.check_dotdots()?;
        self.check_parents()?;
        self.report_progress(Phase::Links, 1, 1)?;
        Ok(())
    }

    fn check_quota_inodes(&mut self) {
        for (kind, ino) in self.quota_inodes() {
            let what = match self.scan.inodes.get_mut(&ino.0) {
                None => "does not exist",
                Some(state) => {
                    state.reached = true;
                    // It counts as named, by the superblock.
                    state.names += 1;
                    if state.kind == FileKind::Regular {
                        continue;
                    }
                    "is no regular file"
                }
            };
            self.problem(IssueKind::QuotaInode { kind, ino, what });
        }
    }

    fn check_orphans(&mut self) {
        for ino in self.tables.orphans.clone() {
            let ino = Ino(ino);
            match self.scan.inodes.get_mut(&ino.0) {
                Some(state) => {
                    state.reached = true;
                    self.problem(IssueKind::OrphanPending { ino });
                }
                None => {
                    if self.problem(IssueKind::OrphanMissing { ino }) {
                        self.tables.orphans.remove(&ino.0);
                        self.changes += 1;
                    }
                }
            }
        }
    }

    /// Marks everything that the root leads to.
    fn reach(&mut self) {
        let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (ino, state) in &self.scan.inodes {
            if state.parent.0 != 0 && *ino != Ino::ROOT.0 {
                children.entry(state.parent.0).or_default().push(*ino);
            }
        }
        let mut starts = vec![Ino::ROOT.0];
        // Files below a directory that waits to be deleted are not lost.
        starts.extend(&self.tables.orphans);
        self.reach_from(&children, starts);
        // Then from each directory without a parent, and from one of each loop: only their tops are
        // reported.
        let tops: Vec<u32> = self
            .scan
            .inodes
            .iter()
            .filter(|(_, s)| s.kind == FileKind::Directory && !s.reached && s.parent.0 == 0)
            .map(|(ino, _)| *ino)
            .collect();
        let loops: Vec<u32> = self
            .scan
            .inodes
            .iter()
            .filter(|(_, s)| s.kind == FileKind::Directory && !s.reached && s.parent.0 != 0)
            .map(|(ino, _)| *ino)
            .collect();
        for top in tops.into_iter().chain(loops) {
            if self.scan.inodes.get(&top).is_some_and(|s| !s.reached) {
                self.reach_from(&children, vec![top]);
                self.scan.unreached.push(Ino(top));
            }
        }
        let files = self
            .scan
            .inodes
            .iter()
            .filter(|(_, s)| s.kind != FileKind::Directory && s.names == 0 && !s.reached);
        let files: Vec<Ino> = files.map(|(ino, _)| Ino(*ino)).collect();
        self.scan.unreached.extend(files);
    }

    /// Each inode has one parent, so that none is met twice.
    fn reach_from(&mut self, children: &BTreeMap<u32, Vec<u32>>, mut todo: Vec<u32>) {
        while let Some(ino) = todo.pop() {
            if let Some(state) = self.scan.inodes.get_mut(&ino) {
                state.reached = true;
            }
            let inodes = &self.scan.inodes;
            let below = children.get(&ino).into_iter().flatten();
            todo.extend(below.filter(|c| inodes.get(c).is_some_and(|s| !s.reached)));
        }
    }

    fn check_unreached(&mut self) -> Result<(), CheckError> {
        for ino in std::mem::take(&mut self.scan.unreached) {
            if ino == Ino::ROOT || !self.problem(IssueKind::InodeUnreachable { ino }) {
                continue;
            }
            let Some(state) = self.scan.inodes.get(&ino.0).copied() else {
                continue;
            };
            let name = format!("lost_found_{}", ino.0);
            // Where names are counted is over for this round: the next one sees this one.
            let found = self.scan.lost_found.filter(|dir| *dir != ino);
            // Better a strange name in the root than no file.
            let mut kept = false;
            for dir in found.into_iter().chain([Ino::ROOT]) {
                kept = kept
                    || state.links > 0 && self.add_name(dir, name.as_bytes(), ino, state.kind)?;
            }
            // Where segments have no room, it stays without a name: a file that is only unnamed is not lost.
            if !kept && (state.links == 0 || !self.new_blocks.lacks_room()) {
                self.free_node(ino.nid());
            }
            self.scan.restart = true;
        }
        Ok(())
    }

    fn check_counts_of_links(&mut self) -> Result<(), CheckError> {
        if self.scan.restart {
            // Names changed: the next round counts.
            return Ok(());
        }
        let wrong: Vec<(Ino, u32, u64)> = self
            .scan
            .inodes
            .iter()
            .filter(|(ino, s)| {
                !self.tables.orphans.contains(ino)
                    && !self.is_hidden(Ino(**ino))
                    && (s.names > 0 || s.kind == FileKind::Directory)
            })
            .map(|(ino, s)| {
                let counted = match s.kind {
                    FileKind::Directory => 2 + s.subdirs,
                    _ => s.names,
                };
                (Ino(*ino), s.links, counted)
            })
            .filter(|(_, found, counted)| u64::from(*found) != *counted)
            .collect();
        for (ino, found, counted) in wrong {
            if self.problem(IssueKind::InodeLinks {
                ino,
                found,
                counted,
            }) {
                self.edit_inode(ino, |head| head.links.set(counted as u32))?;
            }
        }
        Ok(())
    }

    fn check_dotdots(&mut self) -> Result<(), CheckError> {
        for d in std::mem::take(&mut self.scan.dotdots) {
            let parent = self.scan.inodes.get(&d.dir.0).map_or(Ino(0), |s| s.parent);
            if parent.0 == 0 || parent == d.found {
                continue;
            }
            if self.problem(IssueKind::DotTarget {
                dir: d.dir,
                name: "..",
                found: d.found,
                expected: parent,
            }) {
                self.edit_entries(d.dir, d.place, |slots| {
                    slots.set_target(d.slot, parent, FileKind::Directory)
                })?;
            }
        }
        Ok(())
    }

    /// Directories' inodes name their parents. Recovery of names relies on it.
    fn check_parents(&mut self) -> Result<(), CheckError> {
        let wrong: Vec<(Ino, Ino, Ino)> = self
            .scan
            .inodes
            .iter()
            .filter(|(ino, s)| {
                let has_parent = **ino != Ino::ROOT.0 && s.parent.0 != 0;
                s.kind == FileKind::Directory && has_parent && s.pino != s.parent
            })
            .map(|(ino, s)| (Ino(*ino), s.pino, s.parent))
            .collect();
        for (dir, found, expected) in wrong {
            if self.problem(IssueKind::DirParent {
                dir,
                found,
                expected,
            }) {
                self.edit_inode(dir, |head| head.pino.set(expected.0))?;
            }
        }
        Ok(())
    }
}
