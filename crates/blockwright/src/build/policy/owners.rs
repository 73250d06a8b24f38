//! A map of owners: user and group numbers of the sources to those of the volume.

use crate::{Error, ErrorKind, Result};
use blockwright_ondisk::ext4::acl::{Acl, AclTag};
use std::collections::BTreeMap;

/// The number that stands for no owner, to chown(2) and in access control lists.
const NOBODY_AT_ALL: u32 = u32::MAX;
/// `security.capability` of version 3: its length, and where the number of the user namespace's root is.
const CAPABILITY_V3_BYTES: usize = 24;
const CAPABILITY_V3: u8 = 3;
const ROOT_ID: std::ops::Range<usize> = 20..24;

const ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];
const CAPABILITY: &[u8] = b"security.capability";

/// Owners of the sources, and which ones they become. Numbers that no rule has stay what they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerMap {
    users: Vec<Range>,
    groups: Vec<Range>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    first: u32,
    last: u32,
    to: u32,
}

fn find(ranges: &[Range], id: u32) -> u32 {
    ranges
        .iter()
        .find(|range| (range.first..=range.last).contains(&id))
        .map_or(id, |range| range.to + (id - range.first))
}

impl OwnerMap {
    /// Adds rules: `FROM:TO` or `FIRST-LAST:TO` (`FIRST` becomes `TO`, the next one `TO` + 1, …), several with commas between.
    /// A rule is about users and groups; with `u:` or `g:` in front, about users or groups only. The first rule that has a
    /// number counts.
    ///
    /// # Errors
    /// `Invalid` for other text, and for numbers past 4294967294.
    pub fn add(&mut self, text: &str) -> Result<()> {
        for rule in text.split(',') {
            let invalid = |what: &str| {
                let shown: String = rule.chars().take(80).collect();
                Error::new(
                    ErrorKind::Invalid,
                    format!("the owner rule `{shown}`: {what}"),
                )
            };
            let (users, groups, body) = match (rule.strip_prefix("u:"), rule.strip_prefix("g:")) {
                (Some(body), _) => (true, false, body),
                (_, Some(body)) => (false, true, body),
                _ => (true, true, rule),
            };
            let form = "not of the form FROM:TO or FIRST-LAST:TO";
            let (from, to) = body.split_once(':').ok_or_else(|| invalid(form))?;
            let (first, last) = from.split_once('-').unwrap_or((from, from));
            let number = |digits: &str| -> Result<u32> {
                if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
                    return Err(invalid(form));
                }
                let n = digits.parse().ok().filter(|n| *n != NOBODY_AT_ALL);
                n.ok_or_else(|| invalid("a number is larger than 4294967294"))
            };
            let (first, last, to) = (number(first)?, number(last)?, number(to)?);
            if last < first {
                return Err(invalid("the range ends before it begins"));
            }
            let end = to.checked_add(last - first);
            if end.is_none_or(|end| end == NOBODY_AT_ALL) {
                return Err(invalid("the range leads past 4294967294"));
            }
            let range = Range { first, last, to };
            if users {
                self.users.push(range);
            }
            if groups {
                self.groups.push(range);
            }
        }
        Ok(())
    }

    /// Whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.users.is_empty() && self.groups.is_empty()
    }

    /// A user's number in the volume.
    #[must_use]
    pub fn user(&self, id: u32) -> u32 {
        find(&self.users, id)
    }

    /// A group's number in the volume.
    #[must_use]
    pub fn group(&self, id: u32) -> u32 {
        find(&self.groups, id)
    }

    /// Users and groups in attributes: those that access control lists name, and the root of the user namespace that a file's
    /// capabilities are for. Invalid values stay in the map and are refused when they are stored.
    pub(crate) fn attributes(&self, xattrs: &mut BTreeMap<Vec<u8>, Vec<u8>>) {
        for name in ACLS {
            let Some(value) = xattrs.get_mut(name) else {
                continue;
            };
            let Ok(mut acl) = Acl::from_xattr(value) else {
                continue;
            };
            for entry in &mut acl.entries {
                match &mut entry.tag {
                    AclTag::User(id) => *id = self.user(*id),
                    AclTag::Group(id) => *id = self.group(*id),
                    _ => {}
                }
            }
            // Two that became one: what the first may counts.
            let mut seen = Vec::new();
            acl.entries.retain(|entry| {
                let new = !seen.contains(&entry.tag);
                seen.push(entry.tag);
                new
            });
            *value = acl.to_xattr();
        }
        if let Some(value) = xattrs.get_mut(CAPABILITY)
            && value.len() == CAPABILITY_V3_BYTES
            && value[3] == CAPABILITY_V3
        {
            let mut id = [0; 4];
            id.copy_from_slice(&value[ROOT_ID]);
            let id = self.user(u32::from_le_bytes(id));
            value[ROOT_ID].copy_from_slice(&id.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockwright_ondisk::ext4::acl::AclEntry;

    fn map(rules: &[&str]) -> OwnerMap {
        let mut map = OwnerMap::default();
        for rule in rules {
            map.add(rule).expect("a rule");
        }
        map
    }

    #[test]
    fn the_first_rule_with_the_number_counts() {
        let m = map(&["1000:0,0-65535:100000", "g:0:7", "u:70000-70001:1"]);
        for (id, user, group) in [
            (0, 100_000, 100_000),
            (1000, 0, 0),
            (65_535, 165_535, 165_535),
            (65_536, 65_536, 65_536),
            (70_001, 2, 70_001),
        ] {
            assert_eq!((m.user(id), m.group(id)), (user, group), "{id}");
        }
        assert!(map(&[]).is_empty() && !m.is_empty());
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (bad, why) in [
            ("", "form"),
            ("5", "form"),
            (":5", "form"),
            ("5:", "form"),
            ("x:5", "form"),
            ("-5:1", "form"),
            ("+5:1", "form"),
            ("u:5", "form"),
            ("1:2,", "form"),
            ("1:2:3", "form"),
            ("4294967295:1", "larger"),
            ("99999999999999999999:1", "larger"),
            ("9-8:1", "before"),
            ("0-4294967294:1", "past"),
            ("0-1:4294967294", "past"),
        ] {
            let e = OwnerMap::default().add(bad).expect_err(bad);
            assert_eq!(e.kind(), ErrorKind::Invalid);
            assert!(e.to_string().contains(why), "{bad}: {e}");
        }
        let all = map(&["0-4294967294:0"]);
        assert_eq!(all.user(4_294_967_294), 4_294_967_294);
    }

    #[test]
    fn attributes_name_owners_too() {
        let entry = |tag| AclEntry { tag, perm: 7 };
        let acl = |user, group| Acl {
            entries: vec![entry(AclTag::User(user)), entry(AclTag::Group(group))],
        };
        let capability = |root: u8| {
            let mut value = vec![0; CAPABILITY_V3_BYTES];
            (value[3], value[20]) = (3, root);
            value
        };
        let mut xattrs = BTreeMap::from([
            (ACLS[0].to_vec(), acl(1, 1).to_xattr()),
            (ACLS[1].to_vec(), b"nonsense".to_vec()),
            (CAPABILITY.to_vec(), capability(1)),
            (b"user.x".to_vec(), vec![1; 24]),
        ]);
        map(&["u:1:9", "g:1:8"]).attributes(&mut xattrs);
        assert_eq!(xattrs[ACLS[0]], acl(9, 8).to_xattr());
        let two = Acl {
            entries: vec![entry(AclTag::User(1)), entry(AclTag::User(9))],
        };
        let mut both = BTreeMap::from([(ACLS[0].to_vec(), two.to_xattr())]);
        map(&["1:9"]).attributes(&mut both);
        let one = Acl {
            entries: vec![entry(AclTag::User(9))],
        };
        assert_eq!(both[ACLS[0]], one.to_xattr());
        assert_eq!(xattrs[ACLS[1]], b"nonsense");
        assert_eq!(xattrs[CAPABILITY], capability(9));
        assert_eq!(xattrs[&b"user.x"[..]], vec![1; 24]);
    }
}
