//! Directories: every entry, where it is and what it names.

use std::collections::HashSet;

use blockwright_ondisk::f2fs::dir::{DentrySlots, NameBytes, slots_of};
use blockwright_ondisk::f2fs::{BLOCK_SIZE, FileKind, Ino, dir_geometry};

use super::CheckError;
use super::context::Checker;
use super::dirents::{self, Entry, hash_of};
use super::issue::IssueKind;
use super::state::{DirInfo, DotDot, EntryPlace};
use crate::Phase;

/// Findings in a directory's blocks.
#[derive(Default)]
struct Seen {
    dot: bool,
    dotdot: bool,
    names: HashSet<Vec<u8>>,
    /// One past the last level with an entry.
    depth: u32,
    /// One past the last block with an entry.
    end: u64,
    /// File block and hash of each name in a block.
    placed: Vec<(u64, u32)>,
    /// Entries in another bucket than that of their hash.
    displaced: Vec<Displaced>,
}

/// An entry that a lookup does not find.
struct Displaced {
    place: EntryPlace,
    at: u64,
    hash: u32,
    entry: Entry,
}

/// From this level on, the buckets of the first hash table go on behind the largest possible file.
const LEVEL_IMPOSSIBLE: u8 = 29;

/// Whether a lookup for a hash visits the block.
fn is_found(at: u64, hash: u32, dir_level: u8) -> bool {
    dir_geometry::locate(at, dir_level).is_none_or(|(level, bucket, _)| {
        bucket == u64::from(hash) % dir_geometry::buckets(level, dir_level)
    })
}

impl Checker {
    /// Looks at all directories.
    pub(super) fn check_directories(&mut self) -> Result<(), CheckError> {
        if let Some(root) = self.scan.inodes.get_mut(&Ino::ROOT.0) {
            root.parent = Ino::ROOT;
        }
        let dirs = self.scan.dirs.clone();
        let total = dirs.len() as u64;
        // Blocks were met directory by directory.
        for (n, dir) in dirs.iter().enumerate() {
            if n % 64 == 0 {
                self.report_progress(Phase::Directories, n as u64, total)?;
            }
            self.check_directory(dir)?;
        }
        Ok(())
    }

    fn check_directory(&mut self, dir: &DirInfo) -> Result<(), CheckError> {
        let mut seen = Seen::default();
        if dir.inline {
            self.check_entries(dir, EntryPlace::Inline, &mut seen)?;
        } else {
            let own = self.scan.dir_blocks[dir.blocks..]
                .iter()
                .take_while(|b| b.dir == dir.ino)
                .copied()
                .collect::<Vec<_>>();
            for block in own {
                let owner = (block.owner.0.0, block.owner.1);
                if !self.scan.lost.contains(&owner) {
                    self.check_entries(dir, EntryPlace::Block(block), &mut seen)?;
                }
            }
        }
        let ino = dir.ino;
        let dir = &self.check_dir_level(dir, &mut seen)?;
        let size = seen.end * BLOCK_SIZE as u64;
        if size > dir.size
            && self.problem(IssueKind::DirSize {
                dir: ino,
                found: dir.size,
                expected: size,
            })
        {
            self.edit_inode(ino, |head| head.size.set(size))?;
        }
        if seen.depth > dir.depth
            && self.problem(IssueKind::DirDepth {
                dir: ino,
                found: dir.depth,
                expected: seen.depth,
            })
        {
            self.set_depth(ino, seen.depth)?;
        }
        self.check_dots(dir, &seen)?;
        for d in seen.displaced {
            let (name, block) = (d.entry.shown(), d.at);
            if !self.problem(IssueKind::DirPlace {
                dir: ino,
                name,
                block,
            }) {
                continue;
            }
            let kind = d.entry.kind.unwrap_or(FileKind::Regular);
            if self.add_name(ino, &d.entry.name, d.entry.ino, kind)? {
                let slots = slots_of(d.entry.name.len());
                self.edit_entries(ino, d.place, |s| {
                    s.remove(d.entry.slot, slots);
                    Some(())
                })?;
            }
        }
        Ok(())
    }

    /// Compares the level at which a directory's hash tables begin with the places of its names. Where another level explains more of them, that one
    /// counts: the names stay where they are. Returns the directory with the level that counts, and keeps of the displaced names those that it does
    /// not explain.
    fn check_dir_level(&mut self, dir: &DirInfo, seen: &mut Seen) -> Result<DirInfo, CheckError> {
        let (ino, found) = (dir.ino, dir.dir_level);
        let mut dir = *dir;
        if seen.displaced.is_empty() && found < LEVEL_IMPOSSIBLE {
            return Ok(dir);
        }
        let names = |level: u8| {
            let elsewhere = |(at, hash): &&(u64, u32)| !is_found(*at, *hash, level);
            seen.placed.iter().filter(elsewhere).count()
        };
        let levels = 0..LEVEL_IMPOSSIBLE;
        let best = levels.min_by_key(|level| (names(*level), *level != found, *level));
        let expected = best.unwrap_or(0);
        if expected == found {
            return Ok(dir);
        }
        seen.displaced.retain(|d| !is_found(d.at, d.hash, expected));
        let levels = (seen.placed.iter()).filter_map(|(at, _)| dir_geometry::locate(*at, expected));
        seen.depth = levels.map(|(level, ..)| level + 1).max().unwrap_or(0);
        dir.dir_level = expected;
        if self.problem(IssueKind::DirLevel {
            dir: ino,
            found,
            expected,
        }) {
            self.edit_inode(ino, |head| head.dir_level = expected)?;
            if let Some(known) = self.scan.dirs.iter_mut().find(|d| d.ino == ino) {
                known.dir_level = expected;
            }
        }
        Ok(dir)
    }

    /// Sets how many levels of a directory a lookup visits.
    pub(super) fn set_depth(&mut self, dir: Ino, depth: u32) -> Result<(), CheckError> {
        self.edit_inode(dir, |head| head.current_depth.set(depth))?;
        if let Some(known) = self.scan.dirs.iter_mut().find(|d| d.ino == dir) {
            known.depth = depth;
        }
        Ok(())
    }

    fn check_dots(&mut self, dir: &DirInfo, seen: &Seen) -> Result<(), CheckError> {
        let ino = dir.ino;
        if dir.dots_pending {
            self.problem(IssueKind::DotsPending { dir: ino });
            return Ok(());
        }
        let mut add = false;
        for (name, there) in [(".", seen.dot), ("..", seen.dotdot)] {
            if !there {
                add |= self.problem(IssueKind::DotMissing { dir: ino, name });
            }
        }
        if add {
            let parent = self.scan.inodes.get(&ino.0).map_or(Ino(0), |s| s.parent);
            // A directory without a name is its own parent until its parent is known.
            let parent = parent.non_zero().unwrap_or(ino);
            for (name, there, target) in [(".", seen.dot, ino), ("..", seen.dotdot, parent)] {
                if !there {
                    self.add_name(ino, name.as_bytes(), target, FileKind::Directory)?;
                }
            }
        }
        Ok(())
    }

    fn check_entries(
        &mut self,
        dir: &DirInfo,
        place: EntryPlace,
        seen: &mut Seen,
    ) -> Result<(), CheckError> {
        let ino = dir.ino;
        let Some((mut bytes, layout)) = self.read_entries(ino, place)? else {
            return Ok(());
        };
        let before = bytes.clone();
        let names = if dir.encrypted {
            NameBytes::Any
        } else {
            NameBytes::Plain
        };
        let at = match place {
            EntryPlace::Inline => 0,
            EntryPlace::Block(b) => b.at,
        };
        let (entries, errors) = dirents::read(&bytes, layout, names, self.geo.nids());
        let mut drop = Vec::new();
        for (slot, error) in errors {
            if self.problem(IssueKind::DirEntry {
                dir: ino,
                block: at,
                error: error.into(),
            }) {
                drop.push((slot, 1));
            }
        }
        let mut edits = Vec::new();
        for entry in &entries {
            let slots = slots_of(entry.name.len());
            let end = entry.slot + slots;
            if (entry.slot..end).any(|s| !dirents::is_used(&bytes, s))
                && self.problem(IssueKind::DirSlots {
                    dir: ino,
                    block: at,
                    name: entry.shown(),
                })
            {
                for s in entry.slot..end {
                    bytes[s / 8] |= 1 << (s % 8);
                }
            }
            match self.check_entry(dir, place, at, entry, seen) {
                Verdict::Keep => {}
                Verdict::Remove => drop.push((entry.slot, slots)),
                Verdict::Edit(edit) => edits.push((entry.clone(), edit)),
            }
        }
        if let Ok(mut slots) = DentrySlots::new(&mut bytes, layout) {
            for (slot, count) in drop {
                slots.remove(slot, count);
            }
            for (entry, edit) in edits {
                let target = edit.target.unwrap_or(entry.ino);
                let kind = edit.kind.or(entry.kind).unwrap_or(FileKind::Regular);
                let hash = edit.hash.unwrap_or(entry.hash);
                slots.remove(entry.slot, slots_of(entry.name.len()));
                let _ = slots.insert(entry.slot, &entry.name, hash, target, kind);
            }
        }
        if bytes != before {
            self.write_entries(ino, place, &bytes)?;
        }
        Ok(())
    }

    fn check_entry(
        &mut self,
        dir: &DirInfo,
        place: EntryPlace,
        at: u64,
        entry: &Entry,
        seen: &mut Seen,
    ) -> Verdict {
        let ino = dir.ino;
        seen.end = seen.end.max(at + 1);
        let located = match place {
            EntryPlace::Inline => None,
            EntryPlace::Block(b) => dir_geometry::locate(b.at, dir.dir_level),
        };
        if matches!(place, EntryPlace::Inline) {
            seen.end = 0;
        }
        if let Some((level, _, _)) = located {
            seen.depth = seen.depth.max(level + 1);
        }
        let mut edit = Edit::default();
        if !seen.names.insert(entry.name.clone())
            && self.problem(IssueKind::NameTwice {
                dir: ino,
                name: entry.shown(),
            })
        {
            return Verdict::Remove;
        }
        let hash = match hash_of(dir, &entry.name) {
            Some(expected) if expected != entry.hash => {
                if self.problem(IssueKind::DirHash {
                    dir: ino,
                    name: entry.shown(),
                    found: entry.hash,
                    expected,
                }) {
                    edit.hash = Some(expected);
                }
                expected
            }
            _ => entry.hash,
        };
        if entry.is_dot() {
            self.check_dot(dir, place, entry, seen, &mut edit);
            return edit.verdict();
        }
        if !self.check_target(dir, entry, &mut edit) {
            return Verdict::Remove;
        }
        if let EntryPlace::Block(_) = place {
            seen.placed.push((at, hash));
            if !is_found(at, hash, dir.dir_level) {
                let mut entry = entry.clone();
                entry.kind = edit.kind.or(entry.kind);
                seen.displaced.push(Displaced {
                    place,
                    at,
                    hash,
                    entry,
                });
            }
        }
        if ino == Ino::ROOT && entry.name == b"lost+found" {
            self.scan.lost_found = Some(entry.ino);
        }
        self.scan.stats.names += 1;
        edit.verdict()
    }

    fn check_dot(
        &mut self,
        dir: &DirInfo,
        place: EntryPlace,
        entry: &Entry,
        seen: &mut Seen,
        edit: &mut Edit,
    ) {
        let ino = dir.ino;
        if entry.name == b"." {
            seen.dot = true;
            if entry.ino != ino
                && self.problem(IssueKind::DotTarget {
                    dir: ino,
                    name: ".",
                    found: entry.ino,
                    expected: ino,
                })
            {
                edit.target = Some(ino);
            }
        } else {
            seen.dotdot = true;
            self.scan.dotdots.push(DotDot {
                dir: ino,
                found: entry.ino,
                place,
                slot: entry.slot,
            });
        }
        if entry.kind != Some(FileKind::Directory)
            && self.problem(IssueKind::EntryType {
                dir: ino,
                name: entry.shown(),
                ino: entry.ino,
            })
        {
            edit.kind = Some(FileKind::Directory);
        }
    }

    /// Looks at what an entry names. `false`: the entry must go.
    fn check_target(&mut self, dir: &DirInfo, entry: &Entry, edit: &mut Edit) -> bool {
        let (ino, name) = (dir.ino, entry.shown());
        let target = entry.ino;
        if self.is_hidden(target) {
            return !self.problem(IssueKind::EntryHidden {
                dir: ino,
                name,
                ino: target,
            });
        }
        let Some(state) = self.scan.inodes.get(&target.0).copied() else {
            return !self.problem(IssueKind::EntryDangling {
                dir: ino,
                name,
                ino: target,
            });
        };
        if state.kind == FileKind::Directory && state.parent.0 != 0 {
            return !self.problem(IssueKind::EntryDirTwice {
                dir: ino,
                name,
                ino: target,
            });
        }
        if entry.kind != Some(state.kind)
            && self.problem(IssueKind::EntryType {
                dir: ino,
                name,
                ino: target,
            })
        {
            edit.kind = Some(state.kind);
        }
        if let Some(state) = self.scan.inodes.get_mut(&target.0) {
            state.names += 1;
            if state.parent.0 == 0 {
                state.parent = ino;
            }
        }
        if state.kind == FileKind::Directory
            && let Some(own) = self.scan.inodes.get_mut(&ino.0)
        {
            own.subdirs += 1;
        }
        true
    }

    /// Whether an inode is one of the volume's own, that no directory names.
    pub(super) fn is_hidden(&self, ino: Ino) -> bool {
        self.quota_inodes().any(|(_, hidden)| hidden == ino)
    }
}

/// What to change in an entry.
#[derive(Default)]
struct Edit {
    hash: Option<u32>,
    target: Option<Ino>,
    kind: Option<FileKind>,
}

impl Edit {
    fn verdict(self) -> Verdict {
        if self.hash.is_none() && self.target.is_none() && self.kind.is_none() {
            Verdict::Keep
        } else {
            Verdict::Edit(self)
        }
    }
}

enum Verdict {
    Keep,
    Remove,
    Edit(Edit),
}
