//! Who is charged for what, as every format has it.
//!
//! Not responsible for: the files that count, limits, what is charged when (the engines).

use crate::types::Attr;

/// Who is charged for an inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Project.
    pub project: u32,
}

impl Owner {
    /// The owner in an inode's attributes.
    #[must_use]
    pub fn of(attr: &Attr) -> Self {
        Owner {
            uid: attr.uid,
            gid: attr.gid,
            project: attr.project,
        }
    }

    /// User, group and project, in the order in which volumes list their quota files.
    #[must_use]
    pub fn ids(&self) -> [u32; 3] {
        [self.uid, self.gid, self.project]
    }
}
