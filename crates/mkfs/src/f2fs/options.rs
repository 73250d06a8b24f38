//! Options of a new f2fs volume. Every default is what mkfs.f2fs 1.15 does for the same arguments.

use crate::options::Before;
use crate::{MkfsError, Result};
use blockwright_ondisk::ext4::quota_layout::QuotaKind;
use blockwright_ondisk::f2fs::Features;
use blockwright_ondisk::f2fs::types::BLOCK_SIZE;

blockwright_device::with_defaults! {
/// Options of a new volume.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// Features, as mkfs.f2fs's `-O`: `extra_attr,inode_checksum`. None by default.
    pub features: String = String::new(),
    /// Bytes per block: 4096, the only size that every kernel reads.
    pub block_bytes: Option<u32> = None,
    /// Segments (of 2 MiB) per section, the unit of cleaning.
    pub segs_per_sec: u32 = 1,
    /// Sections per zone, the unit that keeps logs apart.
    pub secs_per_zone: u32 = 1,
    /// Percentage of the main area kept for cleaning; the best for the size when not given.
    pub overprovision_percent: Option<f64> = None,
    /// Label, at most 511 UTF-16 units.
    pub label: String = String::new(),
    /// UUID; random when not given.
    pub uuid: Option<[u8; 16]> = None,
    /// Size of the volume in bytes; the whole device when not given.
    pub bytes: Option<u64> = None,
    /// Owner and group of the root directory of an empty volume.
    pub root_owner: (u32, u32) = (0, 0),
    /// When the volume is made, in seconds since 1970.
    pub now: u64 = crate::options::seconds_now(),
    /// What the device holds before.
    pub before: Before = Before::Unknown,
}
}

/// Features a volume can be made with.
const POSSIBLE: Features = Features::ENCRYPT
    .union(Features::EXTRA_ATTR)
    .union(Features::PROJECT_QUOTA)
    .union(Features::INODE_CHECKSUM)
    .union(Features::FLEXIBLE_INLINE_XATTR)
    .union(Features::QUOTA)
    .union(Features::INODE_CRTIME)
    .union(Features::LOST_FOUND)
    .union(Features::VERITY)
    .union(Features::SB_CHECKSUM)
    .union(Features::CASEFOLD)
    .union(Features::COMPRESSION);

/// Features whose fields are among the extra attributes.
const EXTRA: Features = Features::PROJECT_QUOTA
    .union(Features::INODE_CHECKSUM)
    .union(Features::FLEXIBLE_INLINE_XATTR)
    .union(Features::INODE_CRTIME)
    .union(Features::COMPRESSION);

impl FormatOptions {
    /// The features the volume will have, after the rules about which go together.
    ///
    /// # Errors
    /// Unknown names, features no volume can be made with, and contradictions.
    pub fn effective_features(&self) -> Result<Features> {
        let refuse = |e: blockwright_ondisk::f2fs::FormatError| MkfsError::features(e.to_string());
        let mut f = Features::default().parse(&self.features).map_err(refuse)?;
        let bad = f.unsupported(POSSIBLE);
        if !bad.is_empty() {
            return Err(MkfsError::features(format!(
                "no volume can be made with {}",
                bad.join(", ")
            )));
        }
        if f.intersects(EXTRA) && !f.contains(Features::EXTRA_ATTR) {
            return Err(MkfsError::features(format!(
                "{} needs extra_attr",
                (f & EXTRA).names().join(", ")
            )));
        }
        // As mkfs.f2fs: projects are counted in a quota file.
        if f.contains(Features::PROJECT_QUOTA) {
            f |= Features::QUOTA;
        }
        Ok(f)
    }

    /// Which quota files the volume has: `quota` alone counts users and groups.
    pub(crate) fn quota_kinds(&self) -> Result<Vec<QuotaKind>> {
        let refuse = |e: blockwright_ondisk::f2fs::FormatError| MkfsError::features(e.to_string());
        let asked = Features::default().parse(&self.features).map_err(refuse)?;
        let mut kinds = Vec::new();
        if asked.contains(Features::QUOTA) {
            kinds.extend([QuotaKind::User, QuotaKind::Group]);
        }
        if asked.contains(Features::PROJECT_QUOTA) {
            kinds.push(QuotaKind::Project);
        }
        Ok(kinds)
    }

    /// Checks what does not depend on the size.
    pub(crate) fn check(&self) -> Result<()> {
        if let Some(bytes) = self.block_bytes
            && bytes as usize != BLOCK_SIZE
        {
            return Err(MkfsError::option(
                "-b",
                format!("f2fs volumes are made with blocks of {BLOCK_SIZE} bytes, not {bytes}"),
            ));
        }
        if self.segs_per_sec == 0 || self.secs_per_zone == 0 {
            return Err(MkfsError::option(
                "-s, -z",
                "a section has at least one segment, a zone at least one section",
            ));
        }
        if let Some(percent) = self.overprovision_percent
            && !(percent > 0.0 && percent < 100.0)
        {
            return Err(MkfsError::option("-o", "more than 0 and less than 100"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictions_are_refused() {
        let with = |features: &str| {
            FormatOptions {
                features: features.into(),
                ..Default::default()
            }
            .effective_features()
        };
        assert_eq!(with("").unwrap(), Features::empty());
        assert!(with("inode_checksum").is_err());
        assert!(with("ro").is_err());
        assert!(with("blkzoned").is_err());
        assert!(with("nonsense").is_err());
        let f = with("extra_attr,project_quota").unwrap();
        assert!(f.contains(Features::QUOTA));
    }

    #[test]
    fn impossible_sizes_are_refused() {
        let check = |change: fn(&mut FormatOptions)| {
            let mut o = FormatOptions::default();
            change(&mut o);
            o.check()
        };
        assert!(check(|_| ()).is_ok());
        assert!(check(|o| o.block_bytes = Some(4096)).is_ok());
        assert!(check(|o| o.block_bytes = Some(16_384)).is_err());
        assert!(check(|o| o.segs_per_sec = 0).is_err());
        assert!(check(|o| o.overprovision_percent = Some(f64::NAN)).is_err());
    }
}
