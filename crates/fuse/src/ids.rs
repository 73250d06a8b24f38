//! Presenting files as owned by somebody else (`uid=`, `gid=`).

use blockwright_vfs::Attr;

#[derive(Clone, Copy, Debug)]
struct Mapped {
    shown: u32,
    stored: u32,
}

/// How owners on the volume and owners as shown belong together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdMap {
    uid: Option<Mapped>,
    gid: Option<Mapped>,
}

impl IdMap {
    /// Everything is shown as owned by `uid` and `gid`, where given; what those create is stored as owned
    /// like the root directory.
    pub(crate) fn new(uid: Option<u32>, gid: Option<u32>, root: &Attr) -> Self {
        let mapped = |shown: Option<u32>, stored| shown.map(|shown| Mapped { shown, stored });
        IdMap {
            uid: mapped(uid, root.uid),
            gid: mapped(gid, root.gid),
        }
    }

    pub(crate) fn shown_uid(&self, uid: u32) -> u32 {
        self.uid.map_or(uid, |m| m.shown)
    }

    pub(crate) fn shown_gid(&self, gid: u32) -> u32 {
        self.gid.map_or(gid, |m| m.shown)
    }

    pub(crate) fn stored_uid(&self, uid: u32) -> u32 {
        self.uid
            .filter(|m| m.shown == uid)
            .map_or(uid, |m| m.stored)
    }

    pub(crate) fn stored_gid(&self, gid: u32) -> u32 {
        self.gid
            .filter(|m| m.shown == gid)
            .map_or(gid, |m| m.stored)
    }
}
