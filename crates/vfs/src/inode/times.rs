//! Whether the vfs or a front end sets the times of a file that is written to.

use super::Inode;
use crate::types::Timestamp;

/// The party that keeps the times of a file that is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimesKeeper {
    /// The vfs: the contents change now.
    Vfs,
    /// A front end with a cache of its own. It sets the times to when its user wrote. Set by a later write-back, the file would
    /// seem to have changed after it was closed.
    FrontEnd,
}

impl TimesKeeper {
    /// The modification and change times of an inode that is locked and changed now.
    pub(crate) fn of_change(self, inode: &Inode) -> (Timestamp, Timestamp) {
        match self {
            TimesKeeper::Vfs => {
                let now = Timestamp::now();
                (now, now)
            }
            TimesKeeper::FrontEnd => {
                let attr = inode.attr();
                (attr.mtime, attr.ctime)
            }
        }
    }
}
