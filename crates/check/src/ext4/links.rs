//! Link counts, and inodes that no directory names.

use blockwright_ondisk::ext4::types::LINK_MAX;
use blockwright_ondisk::ext4::{Compat, FileKind, Ino, RoCompat};

use super::CheckError;
use super::context::Checker;
use super::groups::dir_nlink;
use super::issue::IssueKind;

impl Checker {
    /// Inodes the superblock names; no directory does.
    pub fn hidden_inodes(&self) -> impl Iterator<Item = Ino> + use<> {
        let (f, sb) = (self.geo.features, &self.sb);
        let quota = f.has_ro_compat(RoCompat::QUOTA);
        let named = [
            (f.has_compat(Compat::HAS_JOURNAL), sb.journal_inum),
            (f.has_compat(Compat::ORPHAN_FILE), sb.orphan_file_inum),
            (quota, sb.usr_quota_inum),
            (quota, sb.grp_quota_inum),
            (quota, sb.prj_quota_inum),
        ];
        let named = named.into_iter().filter(|(there, _)| *there);
        named.map(|(_, n)| Ino(n.get())).filter(|ino| ino.0 != 0)
    }

    /// Whether an inode is a quota file of the volume.
    pub fn is_quota_file(&self, ino: Ino) -> bool {
        let sb = &self.sb;
        let files = [sb.usr_quota_inum, sb.grp_quota_inum, sb.prj_quota_inum];
        self.geo.features.has_ro_compat(RoCompat::QUOTA) && files.iter().any(|n| n.get() == ino.0)
    }

    /// Whether an inode is one of these.
    pub fn is_hidden(&self, ino: Ino) -> bool {
        self.hidden_inodes().any(|hidden| hidden == ino)
    }

    /// Whether an inode is a directory with an index. A count of 1 stands for any number there: the kernel stores it for too many subdirectories, and
    /// leaves it when they go.
    fn is_indexed(&self, ino: Ino) -> bool {
        let n = self.scan.dir_position(ino);
        n.is_some_and(|n| self.scan.dirs[n].index)
    }

    /// Compares link counts with the names found.
    pub fn check_links(&mut self) -> Result<(), CheckError> {
        let hidden: Vec<Ino> = self.hidden_inodes().collect();
        let many = |s: &super::state::InodeState| {
            s.kind == Some(FileKind::Directory) && s.found > LINK_MAX
        };
        if !dir_nlink(&self.geo)
            && self.scan.inodes.iter().any(many)
            && self.problem(IssueKind::FeatureContradiction {
                what: "a directory has more than 65000 subdirectories, but dir_nlink is not set",
            })
        {
            let mut features = self.sb.features();
            features.ro_compat |= RoCompat::DIR_NLINK;
            self.set_first_features(features);
        }
        let nlink = dir_nlink(&self.geo);
        let wrong: Vec<_> = self
            .scan
            .inodes
            .iter()
            .filter(|s| !s.marks.orphan && !s.marks.bad)
            .filter(|s| !hidden.contains(&s.ino))
            // Their counts are looked at once they have a name.
            .filter(|s| !self.scan.unnamed.contains(&s.ino.0))
            .map(|s| match s.marks.ea_inode {
                // No directory names it, and one link says that attributes do.
                true => super::state::InodeState { found: 1, ..*s },
                false => *s,
            })
            .filter(|s| {
                expected_links(s.kind, s.found, nlink) != u32::from(s.links) || s.found == 0
            })
            .filter(|s| !(s.found > 0 && s.links == 1 && self.is_indexed(s.ino)))
            .collect();
        for state in wrong {
            let ino = state.ino;
            let is_dir = state.kind == Some(FileKind::Directory);
            if state.found == 0 && !is_dir {
                if self.problem(IssueKind::InodeUnattached { ino }) {
                    // Empty files, too: they have an owner, rights and attributes.
                    self.scan.unattached.push(ino);
                }
                continue;
            }
            let counted = expected_links(state.kind, state.found, nlink);
            if counted == u32::from(state.links) {
                continue;
            }
            if self.problem(IssueKind::LinkCount {
                ino,
                found: u32::from(state.links),
                counted,
            }) {
                self.edit_inode(ino, |edit| {
                    edit.links(u16::try_from(counted).unwrap_or(u16::MAX));
                })?;
            }
        }
        Ok(())
    }
}

/// The link count for a number of names: directories may have more subdirectories than a count
/// holds, which a count of 1 stands for.
fn expected_links(kind: Option<FileKind>, found: u32, nlink: bool) -> u32 {
    if kind == Some(FileKind::Directory) && found > LINK_MAX {
        // Without the feature it is set.
        if nlink { 1 } else { found }
    } else {
        found.min(u32::from(u16::MAX))
    }
}
