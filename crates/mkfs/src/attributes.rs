//! Extended attributes of a tree: which of them a new volume is given, and their form on disk, which both formats share.
//!
//! A volume that is made holds no attribute that Linux would not read back, or would not have let a program set: what is
//! stored and never seen again is lost without a word.

use blockwright_ondisk::ext4::FileKind;
use blockwright_ondisk::ext4::acl::Acl;
use blockwright_ondisk::ext4::xattr::{INDEX_ACL_ACCESS, INDEX_ACL_DEFAULT};
use blockwright_ondisk::f2fs;

/// Most bytes of a full name that `getxattr(2)` takes (`XATTR_NAME_MAX`).
const FULL_NAME_MAX: usize = 255;
// Both formats have the same.
const _: () = assert!(
    INDEX_ACL_ACCESS == f2fs::xattr::INDEX_ACL_ACCESS
        && INDEX_ACL_DEFAULT == f2fs::xattr::INDEX_ACL_DEFAULT
);

/// Divides a full name into the index of its prefix and the rest; `None` for a name that the format does not store.
pub(crate) type SplitName = fn(&[u8]) -> Option<(u8, &[u8])>;

/// An attribute as both formats store it: index of the name's prefix, the rest of the name, the value.
pub(crate) type Stored = (u8, Vec<u8>, Vec<u8>);

/// The stored form of an attribute of a file of this kind.
///
/// # Errors
/// Why the volume cannot have it, with its name.
pub(crate) fn to_stored(
    split: SplitName,
    kind: FileKind,
    full: &[u8],
    value: &[u8],
) -> Result<Stored, String> {
    let refuse = |reason: &str| {
        let shown: String = String::from_utf8_lossy(full).chars().take(80).collect();
        format!("attribute {shown}: {reason}")
    };
    if full.len() > FULL_NAME_MAX {
        return Err(refuse("a name has at most 255 bytes"));
    }
    let (index, rest) =
        split(full).ok_or_else(|| refuse("the format does not store attributes of this name"))?;
    let value = match index {
        INDEX_ACL_ACCESS | INDEX_ACL_DEFAULT => {
            match kind {
                FileKind::Symlink => return Err(refuse("a symbolic link has no access list")),
                FileKind::Directory => {}
                _ if index == INDEX_ACL_DEFAULT => {
                    return Err(refuse("only a directory has a default access list"));
                }
                _ => {}
            }
            let acl = Acl::from_xattr(value).map_err(|e| refuse(&e.to_string()))?;
            if !acl.is_valid() {
                return Err(refuse("the entries do not form a valid access list"));
            }
            acl.to_disk()
        }
        _ => value.to_vec(),
    };
    Ok((index, rest.to_vec(), value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockwright_ondisk::ext4;

    const ACL_OF_A_MODE: &[u8] = b"\x02\0\0\0\x01\0\x07\0\xFF\xFF\xFF\xFF\x04\0\x05\0\xFF\xFF\xFF\xFF\x20\0\x05\0\xFF\xFF\xFF\xFF";

    #[test]
    fn what_linux_would_not_read_back_is_refused() {
        let long = |bytes: usize| [b"user.", &vec![b'n'; bytes - 5][..]].concat();
        let (dir, file, link) = (FileKind::Directory, FileKind::Regular, FileKind::Symlink);
        let access = b"system.posix_acl_access".to_vec();
        let default = b"system.posix_acl_default".to_vec();
        let mut unordered = ACL_OF_A_MODE.to_vec();
        unordered[4] = 0x20;
        let cases = [
            (file, long(255), &b"v"[..], true),
            (file, long(256), b"v", false),
            (file, b"user.a\0b".to_vec(), b"v", false),
            (file, b"system.data".to_vec(), b"v", false),
            (file, b"system.other".to_vec(), b"v", false),
            (file, b"encryption.c".to_vec(), b"v", false),
            (file, b"btrfs.compression".to_vec(), b"v", false),
            (link, b"user.a".to_vec(), b"v", true),
            (link, b"security.selinux".to_vec(), b"v", true),
            (dir, default.clone(), ACL_OF_A_MODE, true),
            (file, default, ACL_OF_A_MODE, false),
            (file, access.clone(), ACL_OF_A_MODE, true),
            (link, access.clone(), ACL_OF_A_MODE, false),
            (file, access.clone(), &ACL_OF_A_MODE[..4], false),
            (file, access, &unordered, false),
        ];
        for (kind, name, value, stored) in cases {
            let formats: [SplitName; 2] = [ext4::xattr::split_name, f2fs::xattr::split_name];
            for split in formats {
                let got = to_stored(split, kind, &name, value);
                let shown = String::from_utf8_lossy(&name);
                assert_eq!(got.is_ok(), stored, "{shown} on {kind:?}: {got:?}");
            }
        }
    }
}
