//! Presents files with another owner (`uid=`, `gid=`).
//!
//! Only what is shown changes. New files, and files that are given away, are stored with the numbers that the caller
//! has or names: a volume that such a mount wrote to looks the same to its user on every other mount.

/// How owners on the volume are shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdMap {
    uid: Option<u32>,
    gid: Option<u32>,
}

impl IdMap {
    /// Everything is shown as owned by `uid` and `gid`, where given.
    pub(crate) fn new(uid: Option<u32>, gid: Option<u32>) -> Self {
        IdMap { uid, gid }
    }

    pub(crate) fn shown_uid(&self, uid: u32) -> u32 {
        self.uid.unwrap_or(uid)
    }

    pub(crate) fn shown_gid(&self, gid: u32) -> u32 {
        self.gid.unwrap_or(gid)
    }
}
