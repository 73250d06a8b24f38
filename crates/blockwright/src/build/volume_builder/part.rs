//! Volumes that become partitions of a disk. They are planned first, so that the disk can be laid out, and written
//! later.

use super::plan::at_least;
use super::{Size, VolumeBuilder};
use crate::build::copying::copied;
use crate::build::digest;
use crate::build::progress::ProgressFn;
use crate::build::target::{BuildReport, TargetPlan};
use crate::build::tree::LayerTree;
use crate::{Error, ErrorKind, Result};
use blockwright_device::SharedDevice;
use blockwright_mkfs::{Before, MkfsError, SizeGoal, fat};
use sha2::{Digest, Sha256};
use std::path::Path;

/// The context of a volume: everything that the builder of one volume does not know.
pub(crate) struct Place<'a> {
    /// Tells the volume from others of the disk.
    pub salt: String,
    /// For volumes whose builder has none.
    pub epoch: Option<u64>,
    /// Bytes that there are, where the builder has no size.
    pub fill: Option<u64>,
    /// Where data that cannot be read in place is kept.
    pub spool: &'a Path,
    /// What is on the device.
    pub before: Before,
    /// The image that is being written, which no source may contain: device and inode.
    pub image: Option<(u64, u64)>,
}

/// A planned volume.
pub(crate) struct Planned {
    builder: VolumeBuilder,
    tree: LayerTree,
    plan: Format,
}

enum Format {
    Volume(TargetPlan),
    Fat(Box<fat::Plan>, [u8; 16]),
}

impl VolumeBuilder {
    /// Whether neither a size nor a source says how large the volume is.
    pub(crate) fn is_unsized(&self) -> bool {
        self.size == Size::AsDevice && self.sources.is_empty()
    }

    /// Whether it is to take what there is.
    pub(crate) fn fills(&self) -> bool {
        self.size == Size::AsDevice
    }

    /// As small as the sources allow, where no size was given.
    pub(crate) fn default_size(&mut self) {
        if self.fills() && !self.sources.is_empty() {
            self.size = Size::Auto(0);
        }
    }

    /// Tells another function how far it is.
    pub(crate) fn set_progress(&mut self, progress: ProgressFn) {
        self.progress = progress;
    }

    fn adopt(&mut self, place: &Place<'_>) {
        self.epoch = self.epoch.or(place.epoch);
        self.salt.clone_from(&place.salt);
        if let (Size::AsDevice, Some(bytes)) = (self.size, place.fill) {
            self.size = Size::Bytes(bytes);
        }
    }

    fn gather_for(&self, place: &Place<'_>) -> Result<LayerTree> {
        self.gather(place.image, place.spool, None)
    }
}

impl Planned {
    /// Decides about a volume of a builder's format.
    pub fn volume(mut builder: VolumeBuilder, place: &Place<'_>) -> Result<Self> {
        builder.adopt(place);
        let tree = builder.gather_for(place)?;
        let options = builder.target(place.before, &tree)?;
        let plan = Format::Volume(builder.plan(&tree.tree, &options, None)?);
        Ok(Planned {
            builder,
            tree,
            plan,
        })
    }

    /// Decides about a FAT32 volume; of the builder's options, sources, size, owner and label count.
    pub fn fat32(mut builder: VolumeBuilder, place: &Place<'_>) -> Result<Self> {
        builder.adopt(place);
        let tree = builder.gather_for(place)?;
        let label = String::from_utf8_lossy(&builder.options.label).into_owned();
        let uuid = match (builder.options.uuid, builder.epoch) {
            (Some(uuid), _) => uuid,
            (None, Some(_)) => {
                let text = format!("fat32 {label:?}");
                digest::uuid(&tree, &builder.size_text(), &text, &*builder.progress)?
            }
            (None, None) => blockwright_reshape::random_uuid(),
        };
        let mut id = [0; 4];
        id.copy_from_slice(&uuid[..4]);
        let options = fat::FormatOptions {
            id: u32::from_be_bytes(id),
            label,
            before: place.before,
        };
        let plan = match builder.size {
            Size::Bytes(bytes) => fat::plan(&options, &tree.tree, bytes).map_err(|e| {
                let tight = matches!(e, MkfsError::TooSmall { .. } | MkfsError::NoSpace { .. });
                let least = fat::smallest(&options, &tree.tree, SizeGoal::default());
                match least {
                    Ok(plan) if tight => {
                        let least = at_least(plan.report().bytes);
                        Error::new(ErrorKind::NoSpace, format!("{e}; {least}"))
                    }
                    _ => e.into(),
                }
            })?,
            Size::Auto(free_bytes) => fat::smallest(&options, &tree.tree, SizeGoal { free_bytes })?,
            Size::AsDevice => {
                return Err(Error::new(ErrorKind::Invalid, "a new volume needs a size"));
            }
        };
        Ok(Planned {
            builder,
            tree,
            plan: Format::Fat(Box::new(plan), uuid),
        })
    }

    /// Bytes of the volume.
    pub fn bytes(&self) -> u64 {
        match &self.plan {
            Format::Volume(plan) => match self.builder.size {
                Size::Bytes(bytes) => bytes,
                _ => plan.report().bytes,
            },
            Format::Fat(plan, _) => plan.report().bytes,
        }
    }

    /// Bytes of data to copy, in whole blocks.
    pub fn data_bytes(&self) -> u64 {
        match &self.plan {
            Format::Volume(plan) => plan.data_bytes(),
            Format::Fat(plan, _) => plan.data_bytes(),
        }
    }

    /// The volume's UUID; for a FAT volume what its serial number is the beginning of.
    pub fn uuid(&self) -> [u8; 16] {
        match &self.plan {
            Format::Volume(plan) => plan.report().uuid,
            Format::Fat(_, uuid) => *uuid,
        }
    }

    /// Writes the volume. `start`: where it begins on the disk.
    pub fn write(mut self, device: &SharedDevice, start: u64) -> Result<Option<BuildReport>> {
        match &mut self.plan {
            Format::Volume(plan) => Ok(Some(self.builder.write(device, plan, &self.tree)?)),
            Format::Fat(plan, _) => {
                plan.hidden_sectors = u32::try_from(start / 512).unwrap_or(u32::MAX);
                let planned = (plan.data_bytes(), plan.report().bytes);
                let tree = &self.tree;
                copied(tree, &*self.builder.progress, planned, |data, tell| {
                    Ok(fat::write(device, plan, &tree.tree, data, tell)?)
                })?;
                Ok(None)
            }
        }
    }
}

/// A UUID that follows from these texts and bytes.
pub(crate) fn derived(parts: &[&[u8]]) -> [u8; 16] {
    let mut hash = Sha256::new();
    for part in parts {
        digest::put(&mut hash, part);
    }
    digest::as_uuid(hash)
}
