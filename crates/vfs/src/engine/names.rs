//! [`Names`]: directories, and what their names lead to.
//!
//! The vfs takes the locks of all inodes that an operation changes, and checks permissions, ancestor loops and rules that all formats share. The
//! engine makes the whole change visible at once: after a crash a rename has happened or has not.

use crate::error::{Error, ErrorKind, Result};
use crate::inode::Inode;
use crate::types::{DirEntry, FileKind, Ino, NewInode, RenameMode, Timestamp};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Options of [`Names::rename`].
#[derive(Clone, Copy)]
pub struct Rename<'a> {
    /// The directory that names `inode`.
    pub old_dir: &'a Arc<Inode>,
    /// The name there.
    pub old_name: &'a [u8],
    /// The inode that gets a new name.
    pub inode: &'a Arc<Inode>,
    /// The directory of the new name.
    pub new_dir: &'a Arc<Inode>,
    /// The new name.
    pub new_name: &'a [u8],
    /// The inode that had this name before.
    pub target: Option<&'a Arc<Inode>>,
    /// How.
    pub mode: RenameMode,
    /// The time of the change.
    pub now: Timestamp,
}

impl<'a> Rename<'a> {
    /// Whether both names are in one directory.
    #[must_use]
    pub fn same_dir(&self) -> bool {
        self.old_dir.ino() == self.new_dir.ino()
    }

    /// The inode that gets the old name in exchange.
    #[must_use]
    pub fn exchanged(&self) -> Option<&'a Arc<Inode>> {
        self.target.filter(|_| self.mode == RenameMode::Exchange)
    }

    /// The directory that loses the new name. It must be empty, which the engine checks.
    #[must_use]
    pub fn replaced_dir(&self) -> Option<&'a Arc<Inode>> {
        let replaced = self.target.filter(|_| self.mode != RenameMode::Exchange);
        replaced.filter(|target| target.kind() == FileKind::Directory)
    }

    /// Compares what an engine finds under the old and the new name with `inode` and `target`.
    ///
    /// # Errors
    /// `Stale` when a name names another inode by now; `NotFound` for an exchange with nothing.
    pub fn check_found(&self, op: &'static str, old: Option<Ino>, new: Option<Ino>) -> Result<()> {
        let target = self.target.map(|target| target.ino());
        for (dir, found, expected) in [
            (self.old_dir, old, Some(self.inode.ino())),
            (self.new_dir, new, target),
        ] {
            if found != expected {
                return Err(Error::new(ErrorKind::Stale, op)
                    .ino(dir.ino())
                    .detail("the name names another inode by now"));
            }
        }
        if self.mode == RenameMode::Exchange && target.is_none() {
            return Err(Error::new(ErrorKind::NotFound, op).ino(self.new_dir.ino()));
        }
        Ok(())
    }
}

/// Names.
///
/// The directory's inode lock is held: shared for looking, exclusively for changes. The vfs has checked what is the same for all
/// formats:
/// * a name has 1 to 255 bytes, and is neither `.` nor `..`;
/// * a directory that is changed has not been removed;
/// * the kinds of the inodes suit the operation;
/// * the target of a symlink fits a block;
/// * projects match where a directory passes its own on.
///
/// Each method changes the times of the directories that it changes, and the change time of the inode whose names it changes.
pub trait Names: Send + Sync {
    /// Finds a name. `None` when it is not there.
    ///
    /// # Errors
    /// `Corrupt` and `Io`.
    fn lookup(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<Option<(Ino, Option<FileKind>)>>;

    /// Lists the entries after `cookie` (0: from the start), `.` and `..` included, until `sink` breaks. The entry at which `sink`
    /// broke counts as not listed.
    ///
    /// # Errors
    /// `Corrupt` and `Io`.
    fn readdir(
        &self,
        dir: &Arc<Inode>,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()>;

    /// Says that these directories are about to be listed. An engine may start reading their first blocks, and does not wait for
    /// them. No lock is held.
    fn list_ahead(&self, _dirs: &[Arc<Inode>]) {}

    /// The parent of a directory, as its `..` entry says.
    ///
    /// # Errors
    /// `Corrupt` and `Io`.
    fn parent(&self, dir: &Arc<Inode>) -> Result<Ino>;

    /// The target of a symlink.
    ///
    /// # Errors
    /// `Corrupt` and `Io`.
    fn read_link(&self, inode: &Arc<Inode>) -> Result<Vec<u8>>;

    /// Makes an inode and its name. The vfs puts the inode into its cache.
    ///
    /// # Errors
    /// `Exists` when the name is there; `NoSpace`: nothing was made, and the call may be repeated; `QuotaExceeded`.
    fn create(&self, dir: &Arc<Inode>, name: &[u8], new: &NewInode) -> Result<Arc<Inode>>;

    /// Makes an inode without a name (`O_TMPFILE`), as an orphan.
    ///
    /// # Errors
    /// As [`Names::create`].
    fn create_unnamed(&self, dir: &Arc<Inode>, new: &NewInode) -> Result<Arc<Inode>>;

    /// Adds a name. The inode's lock is held exclusively, too. An inode without a name stops being an orphan.
    ///
    /// # Errors
    /// `Exists` when the name is there; `TooManyLinks`; `NoSpace`: nothing was changed.
    fn link(&self, dir: &Arc<Inode>, name: &[u8], inode: &Arc<Inode>, now: Timestamp)
    -> Result<()>;

    /// Removes a name of an inode that is no directory. Both locks are held exclusively. An inode without a name becomes an
    /// orphan, and lives until [`evict`](super::Attributes::evict).
    ///
    /// # Errors
    /// `Corrupt` and `Io`.
    fn unlink(
        &self,
        dir: &Arc<Inode>,
        name: &[u8],
        inode: &Arc<Inode>,
        now: Timestamp,
    ) -> Result<()>;

    /// Removes an empty directory, which becomes an orphan. Both locks are held exclusively.
    ///
    /// # Errors
    /// `NotEmpty`.
    fn rmdir(
        &self,
        dir: &Arc<Inode>,
        name: &[u8],
        inode: &Arc<Inode>,
        now: Timestamp,
    ) -> Result<()>;

    /// Renames in one transaction. All inodes concerned are locked exclusively. `target` is the inode of `new_name`, if there is
    /// one. The vfs guarantees:
    /// * `target` is another inode than `inode`;
    /// * there is a `target` with `Exchange`, and none with `NoReplace`;
    /// * otherwise `target` is a directory exactly if `inode` is one;
    /// * no directory gets below itself.
    ///
    /// # Errors
    /// `NotEmpty` when a directory with entries would be replaced; `NoSpace`: nothing was changed.
    fn rename(&self, rename: &Rename<'_>) -> Result<()>;
}
