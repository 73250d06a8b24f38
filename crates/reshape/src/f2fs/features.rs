//! Features: those that only say what files may have from now on, and the reasons why others stay as they are.
//!
//! A feature that can change here is a bit of the superblock alone. `casefold` also needs an encoding, and `quota` the files that [`super::quota`] makes before. No structure that exists means something else
//! with it, so either copy of the superblock is right in a crash between the two.

use blockwright_ondisk::common::features::{Change, changes};
use blockwright_ondisk::f2fs::Features;
use blockwright_ondisk::f2fs::superblock::{ENCODING_UTF8_12_1, RawSuperblock};

use crate::error::{ReshapeError, Result};

/// Bits that can be set.
const SET: Features = Features::ENCRYPT
    .union(Features::VERITY)
    .union(Features::CASEFOLD)
    .union(Features::LOST_FOUND)
    .union(Features::SB_CHECKSUM)
    .union(Features::QUOTA)
    .union(IN_EXTRA);
/// Bits that can be set where inodes have room for what they promise: a part of the extra attributes. An inode that was written before may have a shorter part, and says so.
const IN_EXTRA: Features = Features::COMPRESSION
    .union(Features::INODE_CRTIME)
    .union(Features::PROJECT_QUOTA);
/// Bits that can be cleared.
const CLEAR: Features = Features::LOST_FOUND.union(Features::SB_CHECKSUM);

/// Changes the features of a superblock. Its checksum is not made. Returns the features that the list sets, with those that the volume has already.
///
/// # Errors
/// `Unsupported` for a feature that cannot be changed, `Invalid` for a name that is none.
pub(super) fn change(raw: &mut RawSuperblock, list: &str) -> Result<Features> {
    let mut named = Features::empty();
    for change in changes(list, &['^', '-'], &['+']) {
        let (name, on) = match change {
            Change::Set(name) => (name, true),
            Change::Clear(name) => (name, false),
            Change::ClearAll => {
                return Err(ReshapeError::Invalid(
                    "`none` clears no features of a volume that exists: name them".into(),
                ));
            }
        };
        let one = Features::by_name(name)
            .ok_or_else(|| ReshapeError::Invalid(format!("`{name}` is no feature of f2fs")))?;
        named.set(one, on);
        let have = raw.features();
        if have.contains(one) == on {
            continue;
        }
        if let Some(why) = refusal(have, one, on) {
            let verb = if on { "set" } else { "cleared" };
            return Err(ReshapeError::Unsupported(format!(
                "`{name}` cannot be {verb}: {why}"
            )));
        }
        let mut features = have;
        features.set(one, on);
        raw.feature.set(features.bits());
        if one == Features::CASEFOLD && raw.s_encoding.get() == 0 {
            raw.s_encoding.set(ENCODING_UTF8_12_1);
        }
        if one == Features::SB_CHECKSUM && !on {
            raw.checksum_offset.set(0);
            raw.crc.set(0);
        }
    }
    Ok(named)
}

/// Why a feature cannot be changed, if it cannot.
fn refusal(have: Features, one: Features, on: bool) -> Option<&'static str> {
    if on && IN_EXTRA.contains(one) && !have.contains(Features::EXTRA_ATTR) {
        return Some("inodes have no room for it without `extra_attr`, which mkfs gives");
    }
    let possible = if on { SET } else { CLEAR };
    if possible.contains(one) {
        return None;
    }
    Some(match one {
        Features::EXTRA_ATTR | Features::FLEXIBLE_INLINE_XATTR => {
            "the layout of the inodes that exist depends on it"
        }
        Features::INODE_CHECKSUM => "all inodes would be written anew",
        Features::QUOTA => "limits would be lost with its files",
        Features::ZONED => "it says what the device is",
        Features::READ_ONLY => "a read-only volume has other logs",
        Features::ATOMIC_WRITE => "no volume has it",
        Features::DEVICE_ALIAS => "it is for volumes on several devices",
        _ if on => "it is unknown",
        _ => "files may use it",
    })
}
