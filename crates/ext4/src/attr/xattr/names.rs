//! Names of extended attributes, and the on-disk form of POSIX ACLs.
//!
//! A name is stored as the index of its prefix and the rest. ACLs are stored in a form of their own,
//! shorter than what `setxattr(2)` passes: only named users and groups carry an id.

/// `user.`
pub const INDEX_USER: u8 = 1;
/// `system.posix_acl_access`
pub const INDEX_ACL_ACCESS: u8 = 2;
/// `system.posix_acl_default`
pub const INDEX_ACL_DEFAULT: u8 = 3;
/// `trusted.`
pub const INDEX_TRUSTED: u8 = 4;
/// `security.`
pub const INDEX_SECURITY: u8 = 6;
/// `system.`
pub const INDEX_SYSTEM: u8 = 7;
/// `system.richacl`
pub const INDEX_RICHACL: u8 = 8;
/// The encryption context, hidden.
#[cfg(test)]
pub const INDEX_ENCRYPTION: u8 = 9;
/// Hurd's attributes.
pub const INDEX_HURD: u8 = 10;
/// Name, behind `system.`, of the part of inline data that does not fit `i_block`.
pub const INLINE_DATA: &[u8] = b"data";

const PREFIXES: [(u8, &[u8]); 5] = [
    (INDEX_USER, b"user."),
    (INDEX_TRUSTED, b"trusted."),
    (INDEX_SECURITY, b"security."),
    (INDEX_SYSTEM, b"system."),
    (INDEX_HURD, b"gnu."),
];
const WHOLE: [(u8, &[u8]); 3] = [
    (INDEX_ACL_ACCESS, b"system.posix_acl_access"),
    (INDEX_ACL_DEFAULT, b"system.posix_acl_default"),
    (INDEX_RICHACL, b"system.richacl"),
];

/// Splits a full name. `None` when no prefix is known, the rest is empty or longer than 255 bytes, or
/// the name is one users must not touch.
#[must_use]
pub fn split(full: &[u8]) -> Option<(u8, &[u8])> {
    if let Some((index, _)) = WHOLE.iter().find(|(_, n)| *n == full) {
        return Some((*index, b""));
    }
    let (index, rest) = PREFIXES
        .iter()
        .find_map(|(i, p)| full.strip_prefix(*p).map(|rest| (*i, rest)))?;
    let hidden = index == INDEX_SYSTEM && rest == INLINE_DATA;
    (!rest.is_empty() && rest.len() <= 255 && !rest.contains(&0) && !hidden)
        .then_some((index, rest))
}

/// Joins a stored name. `None` for what users do not see.
#[must_use]
pub fn join(index: u8, rest: &[u8]) -> Option<Vec<u8>> {
    if let Some((_, whole)) = WHOLE.iter().find(|(i, _)| *i == index) {
        return Some(whole.to_vec());
    }
    if index == INDEX_SYSTEM && rest == INLINE_DATA {
        return None;
    }
    let (_, prefix) = PREFIXES.iter().find(|(i, _)| *i == index)?;
    Some([*prefix, rest].concat())
}

const USER_FORM_VERSION: u32 = 2;
const DISK_FORM_VERSION: u32 = 1;
const TAG_USER: u16 = 0x02;
const TAG_GROUP: u16 = 0x08;

/// Converts an ACL from the form of `setxattr(2)` to that on disk. `None` when it is none.
#[must_use]
pub fn acl_to_disk(value: &[u8]) -> Option<Vec<u8>> {
    let (version, entries) = value.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*version) != USER_FORM_VERSION || !entries.len().is_multiple_of(8) {
        return None;
    }
    let mut out = DISK_FORM_VERSION.to_le_bytes().to_vec();
    for e in entries.chunks_exact(8) {
        let tag = u16::from_le_bytes([e[0], e[1]]);
        match tag {
            TAG_USER | TAG_GROUP => out.extend_from_slice(e),
            0x01 | 0x04 | 0x10 | 0x20 => out.extend_from_slice(&e[..4]),
            _ => return None,
        }
    }
    Some(out)
}

/// Converts an ACL from the form on disk to that of `getxattr(2)`. `None` when it is damaged.
#[must_use]
pub fn acl_from_disk(value: &[u8]) -> Option<Vec<u8>> {
    let (version, mut rest) = value.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*version) != DISK_FORM_VERSION {
        return None;
    }
    let mut out = USER_FORM_VERSION.to_le_bytes().to_vec();
    while !rest.is_empty() {
        let tag = u16::from_le_bytes([*rest.first()?, *rest.get(1)?]);
        let len = match tag {
            TAG_USER | TAG_GROUP => 8,
            0x01 | 0x04 | 0x10 | 0x20 => 4,
            _ => return None,
        };
        out.extend_from_slice(rest.get(..len)?);
        if len == 4 {
            out.extend_from_slice(&u32::MAX.to_le_bytes());
        }
        rest = rest.get(len..)?;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_split_and_join() {
        for full in [
            &b"user.x"[..],
            b"trusted.overlay.opaque",
            b"security.capability",
            b"system.posix_acl_access",
            b"system.posix_acl_default",
        ] {
            let (index, rest) = split(full).unwrap();
            assert_eq!(join(index, rest).unwrap(), full);
        }
        for bad in [
            &b"user."[..],
            b"other.x",
            b"x",
            b"system.data",
            b"user.a\0b",
        ] {
            assert_eq!(split(bad), None);
        }
        assert_eq!(join(INDEX_ENCRYPTION, b"c"), None);
    }

    #[test]
    fn acls_convert_both_ways() {
        let mut user = 2u32.to_le_bytes().to_vec();
        for (tag, perm, id) in [
            (1u16, 7u16, u32::MAX),
            (2, 6, 1000),
            (4, 5, u32::MAX),
            (8, 4, 7),
            (16, 7, u32::MAX),
            (32, 0, u32::MAX),
        ] {
            user.extend(tag.to_le_bytes());
            user.extend(perm.to_le_bytes());
            user.extend(id.to_le_bytes());
        }
        let disk = acl_to_disk(&user).unwrap();
        assert_eq!(disk.len(), 4 + 4 * 4 + 2 * 8);
        assert_eq!(acl_from_disk(&disk).unwrap(), user);
        assert_eq!(acl_from_disk(&disk[..disk.len() - 1]), None);
        assert_eq!(acl_to_disk(&user[..9]), None);
    }
}
