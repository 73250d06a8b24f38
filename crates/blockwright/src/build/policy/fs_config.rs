//! Owners, modes and capabilities by path: Android's `fs_config`, as its `mkuserimg_mke2fs -C` and `fs_config` write it.
//!
//! A line is `PATH UID GID MODE`, and optionally `capabilities=MASK` and `selabel=LABEL`. Paths have no slash in front. A line
//! that begins with a space, and one with the path `/`, is about the root.

use super::contexts;
use crate::{Error, ErrorKind, Result};
use blockwright_mkfs::tree::Node;
use blockwright_ondisk::ext4::acl::{Acl, AclTag};
use std::collections::HashMap;
use std::io::Read;
use std::path::Path;

const FILE_BYTES_MAX: u64 = 64 << 20;
const CAPABILITY: &[u8] = b"security.capability";
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";

/// What a line says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Attributes {
    uid: u32,
    gid: u32,
    perm: u16,
    /// `Some(0)` takes those of the source away.
    capabilities: Option<u64>,
    label: Option<Vec<u8>>,
}

/// Owners, modes and capabilities by path.
#[derive(Clone, Debug, Default)]
pub struct FsConfig {
    by_path: HashMap<Vec<u8>, Attributes>,
}

/// `security.capability` of version 2, with its flag that they are effective: version and flags, permitted and inheritable,
/// low and high half.
fn capability(mask: u64) -> Vec<u8> {
    const VERSION_2_EFFECTIVE: u32 = 0x0200_0001;
    let [low, high] = [mask as u32, (mask >> 32) as u32];
    let words = [VERSION_2_EFFECTIVE, low, 0, high, 0];
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

impl FsConfig {
    /// Reads the file.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` for an invalid line, with its number.
    pub fn read(path: &Path) -> Result<Self> {
        let fail = |e: std::io::Error| Error::from(e).at(path);
        let mut bytes = Vec::new();
        let file = std::fs::File::open(path).map_err(fail)?;
        file.take(FILE_BYTES_MAX + 1)
            .read_to_end(&mut bytes)
            .map_err(fail)?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(Error::new(ErrorKind::Invalid, "longer than 64 MiB").at(path));
        }
        Self::parse(&bytes).map_err(|e| e.at(path))
    }

    /// From the file's text. The last line about a path counts.
    ///
    /// # Errors
    /// As [`FsConfig::read`].
    pub fn parse(text: &[u8]) -> Result<Self> {
        let mut by_path = HashMap::new();
        for (index, line) in text.split(|b| *b == b'\n').enumerate() {
            let invalid =
                |what: &str| Error::new(ErrorKind::Invalid, format!("line {}: {what}", index + 1));
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.trim_ascii().is_empty() || line.starts_with(b"#") {
                continue;
            }
            let space = |b: &u8| matches!(b, b' ' | b'\t');
            let (path, rest) = match line.iter().position(space) {
                Some(end) => line.split_at(end),
                None => (line, &[][..]),
            };
            let path = path.strip_prefix(b"/").unwrap_or(path);
            let path = path.strip_suffix(b"/").unwrap_or(path);
            let rest =
                std::str::from_utf8(rest).map_err(|_| invalid("not text behind the path"))?;
            let mut fields = rest.split_ascii_whitespace();
            let (Some(uid), Some(gid), Some(mode)) = (fields.next(), fields.next(), fields.next())
            else {
                return Err(invalid("not of the form PATH UID GID MODE"));
            };
            let owner = |text: &str| {
                let id = text.parse().ok().filter(|id| *id != u32::MAX);
                id.ok_or_else(|| invalid(&format!("`{text}` is not the number of an owner")))
            };
            let perm = u16::from_str_radix(mode, 8).ok().filter(|m| *m <= 0o7777);
            let mut attributes = Attributes {
                uid: owner(uid)?,
                gid: owner(gid)?,
                perm: perm.ok_or_else(|| invalid(&format!("`{mode}` is not an octal mode")))?,
                capabilities: None,
                label: None,
            };
            for field in fields {
                match field.split_once('=') {
                    Some(("capabilities", text)) => {
                        let mask = match text.strip_prefix("0x") {
                            Some(digits) => u64::from_str_radix(digits, 16),
                            None => text.parse(),
                        };
                        let mask = mask.map_err(|_| {
                            invalid(&format!("`{text}` is not a mask of capabilities"))
                        })?;
                        attributes.capabilities = Some(mask);
                    }
                    Some(("selabel", label)) if !label.is_empty() => {
                        attributes.label = Some(label.as_bytes().to_vec());
                    }
                    _ => {
                        return Err(invalid(&format!(
                            "`{field}` is neither capabilities=MASK nor selabel=LABEL"
                        )));
                    }
                }
            }
            by_path.insert(path.to_vec(), attributes);
        }
        Ok(FsConfig { by_path })
    }

    /// Gives a file what its line says; its path has no slash in front.
    pub(crate) fn apply(&self, path: &[u8], node: &mut Node) {
        let Some(attributes) = self.by_path.get(path) else {
            return;
        };
        (node.uid, node.gid) = (attributes.uid, attributes.gid);
        node.perm = attributes.perm;
        if let Some(value) = node.xattrs.get_mut(ACCESS_ACL) {
            chmod(value, attributes.perm);
        }
        match attributes.capabilities {
            None => {}
            Some(0) => {
                node.xattrs.remove(CAPABILITY);
            }
            Some(mask) => {
                node.xattrs.insert(CAPABILITY.to_vec(), capability(mask));
            }
        }
        if let Some(label) = &attributes.label {
            let value = [label, &[0][..]].concat();
            node.xattrs.insert(contexts::ATTRIBUTE.to_vec(), value);
        }
    }
}

/// Changes an access control list as chmod(2) does: where the list has a mask, the group's bits go to
/// the mask.
fn chmod(value: &mut Vec<u8>, perm: u16) {
    // Invalid values are refused when they are stored.
    let Ok(mut acl) = Acl::from_xattr(value) else {
        return;
    };
    let masked = acl.entries.iter().any(|e| e.tag == AclTag::Mask);
    for entry in &mut acl.entries {
        entry.perm = match entry.tag {
            AclTag::UserObj => perm >> 6 & 7,
            AclTag::Mask => perm >> 3 & 7,
            AclTag::GroupObj if !masked => perm >> 3 & 7,
            AclTag::Other => perm & 7,
            _ => continue,
        };
    }
    *value = acl.to_xattr();
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockwright_ondisk::ext4::acl::AclEntry;
    use blockwright_ondisk::ext4::{FileKind, Timestamp};

    fn node() -> Node {
        let now = Timestamp { secs: 0, nanos: 0 };
        Node::new(FileKind::Regular, 0o644, now)
    }

    #[test]
    fn lines_say_owner_mode_and_capabilities() {
        let config = FsConfig::parse(
            b" 0 0 755 selabel=u:object_r:rootfs:s0\n\
              /system/bin/ping 0 2000 0755 capabilities=0x3000\r\n\
              \n# comment\n\
              system/bin/plain 1 2 4711 capabilities=0\n\
              system/high 1 2 700 capabilities=0x8000000001\n",
        )
        .expect("lines");
        let mut root = node();
        config.apply(b"", &mut root);
        assert_eq!((root.uid, root.gid, root.perm), (0, 0, 0o755));
        assert_eq!(root.xattrs[contexts::ATTRIBUTE], b"u:object_r:rootfs:s0\0");
        let mut ping = node();
        config.apply(b"system/bin/ping", &mut ping);
        assert_eq!((ping.uid, ping.gid, ping.perm), (0, 2000, 0o755));
        let expected = [
            1, 0, 0, 2, 0, 0x30, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ];
        assert_eq!(ping.xattrs[CAPABILITY], expected);
        config.apply(b"system/bin/plain", &mut ping);
        assert_eq!((ping.uid, ping.gid, ping.perm), (1, 2, 0o4711));
        assert!(ping.xattrs.is_empty());
        config.apply(b"system/high", &mut ping);
        assert_eq!(ping.xattrs[CAPABILITY][12], 0x80);
        let before = ping.clone();
        config.apply(b"not/there", &mut ping);
        assert_eq!(ping.perm, before.perm);
    }

    #[test]
    fn a_mode_changes_the_list_as_chmod_does() {
        let acl = |perms: [u16; 5]| Acl {
            entries: [
                AclTag::UserObj,
                AclTag::User(5),
                AclTag::GroupObj,
                AclTag::Mask,
                AclTag::Other,
            ]
            .into_iter()
            .zip(perms)
            .map(|(tag, perm)| AclEntry { tag, perm })
            .collect(),
        };
        let mut value = acl([6, 7, 5, 7, 4]).to_xattr();
        chmod(&mut value, 0o741);
        assert_eq!(value, acl([7, 7, 5, 4, 1]).to_xattr());
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for (line, why) in [
            ("a", "PATH UID GID MODE"),
            ("a 0 0", "PATH UID GID MODE"),
            ("a x 0 644", "`x` is not the number"),
            ("a 0 4294967295 644", "`4294967295` is not the number"),
            ("a 0 4294967296 644", "is not the number"),
            ("a 0 0 888", "octal"),
            ("a 0 0 17777", "octal"),
            ("a 0 0 644 capabilities=0xg", "mask"),
            ("a 0 0 644 other=1", "neither"),
        ] {
            let e = FsConfig::parse(format!("ok 0 0 644\n{line}\n").as_bytes()).expect_err(line);
            let text = e.to_string();
            assert!(text.contains("line 2") && text.contains(why), "{line}: {e}");
        }
    }
}
