//! Options become those of the format, and with the tree the plan of a volume.

use super::{Size, VolumeBuilder};
use crate::build::target::{TargetOptions, TargetPlan, not_for_f2fs};
use crate::build::tree::LayerTree;
use crate::build::{base, digest, fsverity, journal};
use crate::{Error, ErrorKind, Format, Result};
use blockwright_mkfs::ext4::FormatOptions;
use blockwright_mkfs::tree::Tree;
use blockwright_mkfs::{Before, MkfsError, f2fs};

/// The end of a message about a size that is too small: the least size, rounded up.
pub(super) fn at_least(bytes: u64) -> String {
    match bytes.div_ceil(1 << 10) {
        kib @ 0..1024 => format!("at least {kib} KiB are needed"),
        kib => format!("at least {} MiB are needed", kib.div_ceil(1 << 10)),
    }
}

impl VolumeBuilder {
    /// The changes to the default features, with what the policy needs.
    fn wanted_features(&self) -> Result<String> {
        let own = &self.options.features;
        if self.policy.protected().is_empty() {
            return Ok(own.clone());
        }
        if own.split(',').any(|f| f.trim() == "^verity") {
            let what = "files are to be protected by fs-verity, and the feature is switched off";
            return Err(Error::new(ErrorKind::Invalid, what));
        }
        Ok(match own.is_empty() {
            true => "verity".to_owned(),
            false => format!("{own},verity"),
        })
    }

    fn format_options_for(&self, before: Before) -> Result<FormatOptions> {
        let mut options = self.options.clone();
        options.before = before;
        options.features = self.wanted_features()?;
        if !self.policy.protected().is_empty() {
            options
                .block_bytes
                .get_or_insert(fsverity::BLOCK_BYTES as u32);
        }
        if let Some(epoch) = self.epoch {
            options.now = epoch;
        }
        if matches!(self.size, Size::Auto(_)) && !self.reserved_given {
            options.reserved_percent = 0.0;
        }
        if let Some(bytes) = self.journal_bytes {
            let block = u64::from(options.block_bytes.unwrap_or(4096));
            let blocks = u32::try_from(bytes / block)
                .map_err(|_| Error::new(ErrorKind::Invalid, "the journal is too large"))?;
            options.block_bytes.get_or_insert(4096);
            options.journal_blocks = Some(blocks);
        }
        if let Some(journal) = &self.journal {
            journal::name_in(&mut options, journal)?;
        }
        Ok(options)
    }

    fn f2fs_options(&self, before: Before) -> Result<f2fs::FormatOptions> {
        let o = &self.options;
        let defaults = FormatOptions::default();
        for (given, option) in [
            (o.inode_bytes != defaults.inode_bytes, "inode size"),
            (o.inode_ratio.is_some(), "inode ratio"),
            (o.inodes.is_some(), "number of inodes"),
            (o.hash_seed.is_some(), "hash seed"),
            (self.reserved_given, "percentage reserved for root"),
            (
                self.journal_bytes.is_some() || self.journal.is_some(),
                "journal",
            ),
        ] {
            if given {
                return Err(not_for_f2fs(option));
            }
        }
        if self.base.is_some() {
            let what = "an f2fs volume is a log, and is not laid over an earlier build";
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        let label = String::from_utf8(o.label.clone())
            .map_err(|_| Error::new(ErrorKind::Invalid, "an f2fs label is text"))?;
        Ok(f2fs::FormatOptions {
            features: self.wanted_features()?,
            block_bytes: o.block_bytes,
            label,
            uuid: o.uuid,
            root_owner: o.root_owner,
            now: self.epoch.unwrap_or(o.now),
            before,
            ..f2fs::FormatOptions::default()
        })
    }

    pub(super) fn target(&self, before: Before, tree: &LayerTree) -> Result<TargetOptions> {
        let options = |before| -> Result<TargetOptions> {
            Ok(match self.format {
                Format::Ext4 => TargetOptions::Ext4(self.format_options_for(before)?, None),
                Format::F2fs => TargetOptions::F2fs(self.f2fs_options(before)?),
            })
        };
        // Leftovers on the device do not change the volume.
        let neutral = options(Before::Unknown)?;
        let mut options = options(before)?;
        if self.epoch.is_some() && self.options.uuid.is_none() {
            let text = format!("{neutral:?}");
            let uuid = digest::uuid(tree, &self.size_text(), &text, &*self.progress)?;
            options.set_uuid(uuid);
        }
        if let Some(base) = &self.base {
            options.lay_over(base::read(base, &tree.tree, &*self.progress)?)?;
        }
        Ok(options)
    }

    /// The size that was asked for, and the salt, as the digest has them.
    pub(super) fn size_text(&self) -> String {
        let size = match self.size {
            Size::AsDevice => "as the device".to_owned(),
            Size::Bytes(bytes) => format!("{bytes} bytes"),
            Size::Auto(free) => format!("smallest with {free} bytes free"),
        };
        size + &self.salt
    }

    /// Plans the volume for what it is made on, which has this many bytes.
    pub(super) fn plan(
        &self,
        tree: &Tree,
        options: &TargetOptions,
        device_bytes: Option<u64>,
    ) -> Result<TargetPlan> {
        let bytes = match self.size {
            Size::Bytes(bytes) => bytes,
            Size::Auto(free_bytes) => {
                return options.smallest(tree, free_bytes);
            }
            Size::AsDevice => match device_bytes {
                Some(bytes) if bytes > 0 => bytes,
                _ => return Err(Error::new(ErrorKind::Invalid, "a new image needs a size")),
            },
        };
        options.plan(tree, bytes).map_err(|e| {
            let cause = std::error::Error::source(&e).and_then(|e| e.downcast_ref());
            let Some(MkfsError::TooSmall { .. } | MkfsError::NoSpace { .. }) = cause else {
                return e;
            };
            match options.smallest(tree, 0) {
                Ok(plan) => {
                    let least = at_least(plan.report().bytes);
                    Error::new(e.kind(), format!("{e}; {least}"))
                }
                Err(_) => e,
            }
        })
    }
}
