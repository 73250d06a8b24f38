//! Which owners are charged for what, and their limits, as every format has it.
//!
//! Not responsible for: the files that count, what is charged when, and whether that is within limits (the engines).

use crate::error::{Error, ErrorKind, Result};
use crate::types::Attr;
use crate::vfs::Vfs;

/// What a quota counts by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Users.
    User,
    /// Groups.
    Group,
    /// Projects.
    Project,
}

/// Limits of one user, group or project. 0 is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes that may be exceeded for a while; stored in units of 1024 bytes.
    pub space_soft: u64,
    /// Bytes that are never exceeded; stored in units of 1024 bytes.
    pub space_hard: u64,
    /// Inodes that may be exceeded for a while.
    pub inodes_soft: u64,
    /// Inodes that are never exceeded.
    pub inodes_hard: u64,
}

/// Usage and limits of one user, group or project.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// User, group or project.
    pub id: u32,
    /// Bytes in use.
    pub bytes: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// What they may have.
    pub limits: Limits,
    /// While the soft limit of space is exceeded: when the time for that ends, in seconds since 1970.
    pub space_until: Option<u64>,
    /// The same for inodes.
    pub inodes_until: Option<u64>,
}

impl Vfs {
    /// What is used and allowed, by id; `None` when the volume does not count by this kind.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub fn quotas(&self, kind: Kind) -> Result<Option<Vec<Quota>>> {
        self.core.alive("quota")?;
        self.core.engine.quotas(kind)
    }

    /// Sets what a user, group or project may have, whether or not more is used already.
    ///
    /// # Errors
    /// `Invalid` for a soft limit above the hard one, and for id 0, which has no limits; `Unsupported` when the volume does
    /// not count by this kind; `ReadOnly`, `NoSpace`, `Corrupt`, `Io`.
    pub fn set_quota_limits(&self, kind: Kind, id: u32, limits: &Limits) -> Result<()> {
        const OP: &str = "set quota";
        self.core.alive(OP)?;
        let refuse = |what: &str| Err(Error::new(ErrorKind::Invalid, OP).detail(what.to_owned()));
        if id == 0 {
            return refuse("id 0 is counted, but never limited");
        }
        let above = |soft: u64, hard: u64| hard > 0 && soft > hard;
        if above(limits.space_soft, limits.space_hard)
            || above(limits.inodes_soft, limits.inodes_hard)
        {
            return refuse("a soft limit is above its hard limit");
        }
        if self.options().read_only || self.core.engine.is_read_only() {
            return Err(Error::new(ErrorKind::ReadOnly, OP));
        }
        self.core.engine.set_quota_limits(kind, id, limits)
    }
}

/// The owners that are charged for an inode.
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
