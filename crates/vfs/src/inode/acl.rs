//! POSIX access control lists: the value format of `system.posix_acl_access` and
//! `system.posix_acl_default` (setxattr(2): version 2, then entries of tag, permissions, id), their
//! validity, evaluation, and how they follow the mode bits.
//!
//! Pure functions; nothing here does I/O. Reference: acl(5), POSIX 1003.1e draft 17.

use crate::error::{Error, ErrorKind, Result};
use smallvec::SmallVec;

/// The attribute that holds the access ACL.
pub const ACCESS_NAME: &[u8] = b"system.posix_acl_access";
/// The attribute that holds a directory's default ACL.
pub const DEFAULT_NAME: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const ID_NONE: u32 = u32::MAX;

/// Whom an entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tag {
    /// The owner.
    UserObj,
    /// A user by id.
    User(u32),
    /// The owning group.
    GroupObj,
    /// A group by id.
    Group(u32),
    /// Upper bound of all but owner and others.
    Mask,
    /// All others.
    Other,
}

/// One entry: a tag and three permission bits (read 4, write 2, execute 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AclEntry {
    /// Whom it is about.
    pub tag: Tag,
    /// What they may do, `0..=7`.
    pub perm: u8,
}

/// A valid ACL: entries in tag order, each tag once, a mask whenever a user or group is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl(SmallVec<[AclEntry; 8]>);

impl Acl {
    /// The ACL that says what these mode bits say.
    #[must_use]
    pub fn from_mode(mode: u32) -> Self {
        let entry = |tag, shift: u32| AclEntry {
            tag,
            perm: ((mode >> shift) & 7) as u8,
        };
        Acl(SmallVec::from_iter([
            entry(Tag::UserObj, 6),
            entry(Tag::GroupObj, 3),
            entry(Tag::Other, 0),
        ]))
    }

    /// Parses and validates an attribute's value.
    ///
    /// # Errors
    /// `Invalid` when it is malformed or breaks a rule of acl(5); `Unsupported` for another version.
    pub fn parse(value: &[u8]) -> Result<Self> {
        let bad = |why: &str| Error::new(ErrorKind::Invalid, "parse ACL").detail(why);
        let word = |at: usize| -> Option<u32> {
            Some(u32::from_le_bytes(value.get(at..at + 4)?.try_into().ok()?))
        };
        let half = |at: usize| -> Option<u16> {
            Some(u16::from_le_bytes(value.get(at..at + 2)?.try_into().ok()?))
        };
        match word(0) {
            Some(VERSION) => {}
            Some(_) => return Err(Error::new(ErrorKind::Unsupported, "parse ACL")),
            None => return Err(bad("shorter than its header")),
        }
        if !(value.len() - 4).is_multiple_of(8) {
            return Err(bad("not a whole number of entries"));
        }
        let mut entries = SmallVec::new();
        for at in (4..value.len()).step_by(8) {
            let (Some(tag), Some(perm), Some(id)) = (half(at), half(at + 2), word(at + 4)) else {
                return Err(bad("a truncated entry"));
            };
            let tag = match tag {
                0x01 => Tag::UserObj,
                0x02 if id != ID_NONE => Tag::User(id),
                0x04 => Tag::GroupObj,
                0x08 if id != ID_NONE => Tag::Group(id),
                0x10 => Tag::Mask,
                0x20 => Tag::Other,
                _ => return Err(bad("an unknown tag or id")),
            };
            if perm > 7 {
                return Err(bad("unknown permission bits"));
            }
            entries.push(AclEntry {
                tag,
                perm: perm as u8,
            });
        }
        Self::from_entries(entries)
    }

    /// An ACL of these entries, in any order.
    ///
    /// # Errors
    /// `Invalid` when a tag is there twice, a required one is missing, or a user or group is named without
    /// a mask.
    pub fn from_entries(mut entries: SmallVec<[AclEntry; 8]>) -> Result<Self> {
        let bad = |why: &str| Error::new(ErrorKind::Invalid, "validate ACL").detail(why);
        entries.sort_by_key(|e| e.tag);
        if entries.windows(2).any(|w| w[0].tag == w[1].tag) {
            return Err(bad("a tag is there twice"));
        }
        let has = |tag| entries.iter().any(|e| e.tag == tag);
        if !has(Tag::UserObj) || !has(Tag::GroupObj) || !has(Tag::Other) {
            return Err(bad("owner, group or others are missing"));
        }
        let named = entries
            .iter()
            .any(|e| matches!(e.tag, Tag::User(_) | Tag::Group(_)));
        if named && !has(Tag::Mask) {
            return Err(bad("named entries need a mask"));
        }
        Ok(Acl(entries))
    }

    /// The attribute's value.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(4 + 8 * self.0.len());
        out.extend_from_slice(&VERSION.to_le_bytes());
        for e in &self.0 {
            let (tag, id) = match e.tag {
                Tag::UserObj => (0x01u16, ID_NONE),
                Tag::User(id) => (0x02, id),
                Tag::GroupObj => (0x04, ID_NONE),
                Tag::Group(id) => (0x08, id),
                Tag::Mask => (0x10, ID_NONE),
                Tag::Other => (0x20, ID_NONE),
            };
            out.extend_from_slice(&tag.to_le_bytes());
            out.extend_from_slice(&u16::from(e.perm).to_le_bytes());
            out.extend_from_slice(&id.to_le_bytes());
        }
        out
    }

    /// The entries, in tag order.
    #[must_use]
    pub fn entries(&self) -> &[AclEntry] {
        &self.0
    }

    fn perm_of(&self, tag: Tag) -> Option<u8> {
        self.0.iter().find(|e| e.tag == tag).map(|e| e.perm)
    }

    /// The nine permission bits this ACL shows in `stat`: the group bits are the mask's.
    #[must_use]
    pub fn mode_bits(&self) -> u32 {
        let user = u32::from(self.perm_of(Tag::UserObj).unwrap_or(0));
        let group = self
            .perm_of(Tag::Mask)
            .or_else(|| self.perm_of(Tag::GroupObj))
            .unwrap_or(0);
        let other = u32::from(self.perm_of(Tag::Other).unwrap_or(0));
        user << 6 | u32::from(group) << 3 | other
    }

    /// Whether the mode bits say all this ACL says, so that it need not be stored.
    #[must_use]
    pub fn equals_mode(&self) -> bool {
        self.0.len() == 3
    }

    /// The ACL after a chmod to these bits: owner, others, and the mask (or the group).
    #[must_use]
    pub fn with_mode(&self, mode: u32) -> Self {
        let masked = self.perm_of(Tag::Mask).is_some();
        let mut acl = self.clone();
        for e in &mut acl.0 {
            match e.tag {
                Tag::UserObj => e.perm = (mode >> 6 & 7) as u8,
                Tag::Mask => e.perm = (mode >> 3 & 7) as u8,
                Tag::GroupObj if !masked => e.perm = (mode >> 3 & 7) as u8,
                Tag::Other => e.perm = (mode & 7) as u8,
                _ => {}
            }
        }
        acl
    }

    /// The ACLs of a new file with these permission bits under its directory's default ACL
    /// (`self`). Each class keeps only the bits that the creator asked for.
    #[must_use]
    pub fn inherited(&self, mode: u32) -> Self {
        let masked = self.perm_of(Tag::Mask).is_some();
        let mut acl = self.clone();
        for e in &mut acl.0 {
            match e.tag {
                Tag::UserObj => e.perm &= (mode >> 6 & 7) as u8,
                Tag::Mask => e.perm &= (mode >> 3 & 7) as u8,
                Tag::GroupObj if !masked => e.perm &= (mode >> 3 & 7) as u8,
                Tag::Other => e.perm &= (mode & 7) as u8,
                _ => {}
            }
        }
        acl
    }

    /// Whether user `uid`, a member of the groups for which `in_group` is true, may do all of
    /// `want` (bits 4, 2, 1) with a file of this owner and group.
    pub fn allows(
        &self,
        uid: u32,
        in_group: impl Fn(u32) -> bool,
        owner: u32,
        group: u32,
        want: u8,
    ) -> bool {
        let mask = self.perm_of(Tag::Mask).unwrap_or(7);
        if uid == owner {
            return self.perm_of(Tag::UserObj).unwrap_or(0) & want == want;
        }
        if let Some(perm) = self.perm_of(Tag::User(uid)) {
            return perm & mask & want == want;
        }
        let mut member = false;
        for e in &self.0 {
            let gid = match e.tag {
                Tag::GroupObj => group,
                Tag::Group(gid) => gid,
                _ => continue,
            };
            if in_group(gid) {
                member = true;
                if e.perm & mask & want == want {
                    return true;
                }
            }
        }
        // A member of a group entry never falls through to "others".
        !member && self.perm_of(Tag::Other).unwrap_or(0) & want == want
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(Tag, u8)]) -> Acl {
        Acl::from_entries(
            entries
                .iter()
                .map(|&(tag, perm)| AclEntry { tag, perm })
                .collect(),
        )
        .unwrap()
    }

    #[test]
    fn bytes_round_trip_and_rules() {
        let a = acl(&[
            (Tag::UserObj, 7),
            (Tag::User(5), 6),
            (Tag::GroupObj, 5),
            (Tag::Mask, 4),
            (Tag::Other, 0),
        ]);
        assert_eq!(Acl::parse(&a.to_bytes()).unwrap(), a);
        assert_eq!(a.mode_bits(), 0o740);
        assert!(!a.equals_mode());
        assert!(Acl::from_mode(0o640).equals_mode());
        assert_eq!(Acl::parse(&[]).unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(
            Acl::parse(&1u32.to_le_bytes()).unwrap_err().kind(),
            ErrorKind::Unsupported
        );
        let mut torn = a.to_bytes();
        torn.pop();
        assert_eq!(Acl::parse(&torn).unwrap_err().kind(), ErrorKind::Invalid);
        // No mask beside a named entry.
        assert!(
            Acl::from_entries(
                [
                    (Tag::UserObj, 7),
                    (Tag::User(5), 6),
                    (Tag::GroupObj, 5),
                    (Tag::Other, 0)
                ]
                .into_iter()
                .map(|(tag, perm)| AclEntry { tag, perm })
                .collect()
            )
            .is_err()
        );
    }

    #[test]
    fn evaluation_follows_the_mask_and_never_falls_from_group_to_others() {
        let a = acl(&[
            (Tag::UserObj, 7),
            (Tag::User(5), 6),
            (Tag::GroupObj, 4),
            (Tag::Group(9), 6),
            (Tag::Mask, 4),
            (Tag::Other, 7),
        ]);
        assert!(a.allows(1, |_| false, 1, 1, 7));
        assert!(a.allows(5, |_| false, 1, 1, 4));
        assert!(!a.allows(5, |_| false, 1, 1, 2), "cut by the mask");
        assert!(
            !a.allows(6, |g| g == 9, 1, 1, 1),
            "a group entry matched; others do not count"
        );
        assert!(a.allows(6, |_| false, 1, 1, 7));
    }

    #[test]
    fn chmod_and_inheritance() {
        let a = acl(&[
            (Tag::UserObj, 7),
            (Tag::User(5), 6),
            (Tag::GroupObj, 7),
            (Tag::Mask, 7),
            (Tag::Other, 5),
        ]);
        let b = a.with_mode(0o640);
        assert_eq!(b.mode_bits(), 0o640);
        assert_eq!(b.perm_of(Tag::GroupObj), Some(7), "chmod sets the mask");
        let c = a.inherited(0o660);
        assert_eq!(c.mode_bits(), 0o660);
        assert_eq!(c.perm_of(Tag::User(5)), Some(6));
    }
}
