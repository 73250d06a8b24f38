//! POSIX access control lists: the packed form on disk and the form of the system call interface.
//!
//! On disk (version 1) entries that need no id take 4 bytes, others 8; the interface (version 2)
//! uses 8 for all, with an undefined id of all ones.
//!
//! Not responsible for: evaluating a list, inheriting it, its relation to the mode.

use super::error::FormatError;

/// Version of the form on disk.
pub const DISK_VERSION: u32 = 1;
/// Version of the interface's form.
pub const XATTR_VERSION: u32 = 2;
/// Id of entries that have none, in the interface's form.
pub const UNDEFINED_ID: u32 = u32::MAX;

/// Whom an entry is about. The order is the order entries must have.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum AclTag {
    /// The owner.
    UserObj,
    /// A user by id.
    User(u32),
    /// The group of the file.
    GroupObj,
    /// A group by id.
    Group(u32),
    /// Upper bound of all entries but owner and others.
    Mask,
    /// All others.
    Other,
}

impl AclTag {
    fn from_raw(raw: u16, id: u32) -> Option<Self> {
        match raw {
            0x01 => Some(Self::UserObj),
            0x02 => Some(Self::User(id)),
            0x04 => Some(Self::GroupObj),
            0x08 => Some(Self::Group(id)),
            0x10 => Some(Self::Mask),
            0x20 => Some(Self::Other),
            _ => None,
        }
    }

    fn to_raw(self) -> (u16, Option<u32>) {
        match self {
            Self::UserObj => (0x01, None),
            Self::User(id) => (0x02, Some(id)),
            Self::GroupObj => (0x04, None),
            Self::Group(id) => (0x08, Some(id)),
            Self::Mask => (0x10, None),
            Self::Other => (0x20, None),
        }
    }
}

/// An entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AclEntry {
    /// Whom it is about.
    pub tag: AclTag,
    /// Permissions, as `rwx` bits (4, 2, 1).
    pub perm: u16,
}

/// An access control list.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Acl {
    /// Entries in stored order.
    pub entries: Vec<AclEntry>,
}

fn le16(b: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes([*b.get(at)?, *b.get(at + 1)?]))
}

fn le32(b: &[u8], at: usize) -> Option<u32> {
    let b = b.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

impl Acl {
    /// From the form on disk.
    ///
    /// # Errors
    /// [`FormatError::AclVersion`], [`FormatError::AclEntry`].
    pub fn from_disk(bytes: &[u8]) -> Result<Self, FormatError> {
        check_version(bytes, DISK_VERSION)?;
        let mut entries = Vec::new();
        let mut at = 4;
        while at < bytes.len() {
            let entry = (|| {
                let (raw, perm) = (le16(bytes, at)?, le16(bytes, at + 2)?);
                let short = AclTag::from_raw(raw, 0)?;
                let has_id = short.to_raw().1.is_some();
                let id = if has_id { le32(bytes, at + 4)? } else { 0 };
                let tag = AclTag::from_raw(raw, id)?;
                Some((AclEntry { tag, perm }, if has_id { 8 } else { 4 }))
            })();
            let (entry, size) = entry.ok_or(FormatError::AclEntry { offset: at })?;
            entries.push(entry);
            at += size;
        }
        Ok(Self { entries })
    }

    /// The form on disk.
    #[must_use]
    pub fn to_disk(&self) -> Vec<u8> {
        let mut out = DISK_VERSION.to_le_bytes().to_vec();
        for e in &self.entries {
            let (tag, id) = e.tag.to_raw();
            out.extend(tag.to_le_bytes());
            out.extend(e.perm.to_le_bytes());
            if let Some(id) = id {
                out.extend(id.to_le_bytes());
            }
        }
        out
    }

    /// From the interface's form.
    ///
    /// # Errors
    /// [`FormatError::AclVersion`], [`FormatError::AclEntry`].
    pub fn from_xattr(bytes: &[u8]) -> Result<Self, FormatError> {
        check_version(bytes, XATTR_VERSION)?;
        let list = &bytes[4..];
        let mut entries = Vec::with_capacity(list.len() / 8);
        for (n, raw) in list.chunks(8).enumerate() {
            let entry = (|| {
                let (tag, perm, id) = (le16(raw, 0)?, le16(raw, 2)?, le32(raw, 4)?);
                Some(AclEntry {
                    tag: AclTag::from_raw(tag, id)?,
                    perm,
                })
            })();
            entries.push(entry.ok_or(FormatError::AclEntry { offset: 4 + n * 8 })?);
        }
        Ok(Self { entries })
    }

    /// The interface's form.
    #[must_use]
    pub fn to_xattr(&self) -> Vec<u8> {
        let mut out = XATTR_VERSION.to_le_bytes().to_vec();
        for e in &self.entries {
            let (tag, id) = e.tag.to_raw();
            out.extend(tag.to_le_bytes());
            out.extend(e.perm.to_le_bytes());
            out.extend(id.unwrap_or(UNDEFINED_ID).to_le_bytes());
        }
        out
    }

    /// Whether the list is one POSIX allows: owner, group and others once each, entries in order
    /// without repetition, and a mask when users or groups are named.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let count = |tag: AclTag| self.entries.iter().filter(|e| e.tag == tag).count();
        let class = |tag: AclTag| tag.to_raw().0;
        let ordered = self
            .entries
            .windows(2)
            .all(|w| class(w[0].tag) <= class(w[1].tag));
        // Ids need not ascend, but must not repeat.
        let mut tags: Vec<AclTag> = self.entries.iter().map(|e| e.tag).collect();
        tags.sort_unstable();
        let repeated = tags.windows(2).any(|w| w[0] == w[1]);
        let named = self
            .entries
            .iter()
            .any(|e| matches!(e.tag, AclTag::User(_) | AclTag::Group(_)));
        ordered
            && !repeated
            && self.entries.iter().all(|e| e.perm <= 7)
            && [AclTag::UserObj, AclTag::GroupObj, AclTag::Other].map(count) == [1; 3]
            && (!named || count(AclTag::Mask) == 1)
    }
}

fn check_version(bytes: &[u8], expected: u32) -> Result<(), FormatError> {
    match le32(bytes, 0) {
        Some(found) if found == expected => Ok(()),
        found => Err(FormatError::AclVersion { found, expected }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Acl {
        let e = |tag, perm| AclEntry { tag, perm };
        Acl {
            entries: vec![
                e(AclTag::UserObj, 7),
                e(AclTag::User(1000), 6),
                e(AclTag::User(70_000), 4),
                e(AclTag::GroupObj, 5),
                e(AclTag::Group(5), 1),
                e(AclTag::Mask, 7),
                e(AclTag::Other, 0),
            ],
        }
    }

    #[test]
    fn both_forms_round_trip() {
        let acl = sample();
        assert!(acl.is_valid());
        let disk = acl.to_disk();
        assert_eq!(disk.len(), 4 + 4 * 4 + 3 * 8);
        assert_eq!(Acl::from_disk(&disk), Ok(acl.clone()));
        let xattr = acl.to_xattr();
        assert_eq!(xattr.len(), 4 + 7 * 8);
        assert_eq!(xattr[..12], [2, 0, 0, 0, 1, 0, 7, 0, 255, 255, 255, 255]);
        assert_eq!(Acl::from_xattr(&xattr), Ok(acl));
    }

    #[test]
    fn damage_is_refused() {
        let disk = sample().to_disk();
        assert_eq!(
            Acl::from_disk(&disk[..disk.len() - 2]),
            Err(FormatError::AclEntry {
                offset: disk.len() - 4
            })
        );
        assert!(matches!(
            Acl::from_disk(&[]),
            Err(FormatError::AclVersion { .. })
        ));
        assert!(matches!(
            Acl::from_xattr(&disk),
            Err(FormatError::AclVersion { .. })
        ));
        let mut bad = sample().to_xattr();
        bad[4] = 0x40;
        assert_eq!(
            Acl::from_xattr(&bad),
            Err(FormatError::AclEntry { offset: 4 })
        );
    }

    #[test]
    fn validity() {
        let mut no_mask = sample();
        no_mask.entries.retain(|e| e.tag != AclTag::Mask);
        assert!(!no_mask.is_valid());
        let mut twice = sample();
        twice.entries.insert(
            2,
            AclEntry {
                tag: AclTag::User(1000),
                perm: 1,
            },
        );
        assert!(!twice.is_valid());
        let mut disorder = sample();
        disorder.entries.swap(0, 3);
        assert!(!disorder.is_valid());
        assert!(!Acl::default().is_valid());
    }
}
