//! The volume that a builder makes: one interface to the plans of both formats.

use crate::{Error, Format, Result};
use blockwright_device::SharedDevice;
use blockwright_mkfs::flags::{LeftOut, left_out};
use blockwright_mkfs::tree::Tree;
use blockwright_mkfs::{DataSource, ProgressFn, SizeGoal, ext4, f2fs};

/// Properties of a volume that was made.
#[derive(Clone, Debug)]
pub struct BuildReport {
    /// Bytes of the volume.
    pub bytes: u64,
    /// Bytes per block.
    pub block_bytes: u32,
    /// Blocks of the volume.
    pub blocks: u64,
    /// Free blocks.
    pub free_blocks: u64,
    /// Free blocks kept for root.
    pub reserved_blocks: u64,
    /// Inodes of the volume (for f2fs: node numbers, of which large files take several).
    pub inodes: u32,
    /// Free ones of these.
    pub free_inodes: u32,
    /// Features by name.
    pub features: Vec<String>,
    /// UUID.
    pub uuid: [u8; 16],
    /// What of the sources' inode flags and projects the volume does not keep.
    pub left_out: Vec<LeftOut>,
    /// Files of every kind that came from the sources, each once however many names it has; directories are not among
    /// them.
    pub files: u64,
    /// Files of these that fs-verity protects.
    pub protected: u64,
    /// Directories that came from the sources, without the root directory.
    pub directories: u64,
    /// Properties of this format alone.
    pub details: BuildDetails,
}

/// Properties that only one format has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BuildDetails {
    /// Of ext2, ext3 and ext4.
    Ext4 {
        /// Bytes per inode.
        inode_bytes: u16,
        /// Block groups.
        groups: u32,
        /// Blocks of the journal; 0 without one.
        journal_blocks: u32,
    },
    /// Of f2fs.
    F2fs {
        /// Segments of the main area.
        segments: u32,
        /// Free ones.
        free_segments: u32,
        /// Segments that users cannot fill, the reserved ones included.
        overprovisioned_segments: u32,
        /// Segments that cleaning must find free.
        reserved_segments: u32,
    },
}

impl BuildReport {
    /// The format.
    #[must_use]
    pub fn format(&self) -> Format {
        match self.details {
            BuildDetails::Ext4 { .. } => Format::Ext4,
            BuildDetails::F2fs { .. } => Format::F2fs,
        }
    }
}

/// Options of the format to make.
#[derive(Debug)]
pub(crate) enum TargetOptions {
    Ext4(ext4::FormatOptions, Option<Box<ext4::Base>>),
    F2fs(f2fs::FormatOptions),
}

/// A planned volume.
pub(crate) enum TargetPlan {
    Ext4(Box<ext4::Plan>),
    F2fs(Box<f2fs::Plan>),
}

impl TargetOptions {
    /// Sets the volume's UUID.
    pub fn set_uuid(&mut self, uuid: [u8; 16]) {
        match self {
            TargetOptions::Ext4(o, _) => o.uuid = Some(uuid),
            TargetOptions::F2fs(o) => o.uuid = Some(uuid),
        }
    }

    /// Takes over what the tree has in common with an earlier build. Options that were given stay.
    pub fn lay_over(&mut self, base: ext4::Base) -> Result<()> {
        let TargetOptions::Ext4(o, over) = self else {
            // Refused when the options were made.
            return Ok(());
        };
        o.block_bytes.get_or_insert(base.block_bytes);
        o.hash_seed.get_or_insert(base.hash_seed);
        let named = o.features.contains("metadata_csum_seed");
        if base.checksum_seed.is_some() && !named && o.effective_features()?.metadata_csum() {
            let comma = if o.features.is_empty() { "" } else { "," };
            o.features += &format!("{comma}metadata_csum_seed");
        }
        *over = Some(Box::new(base));
        Ok(())
    }

    /// Plans a volume of a size.
    pub fn plan(&self, tree: &Tree, bytes: u64) -> Result<TargetPlan> {
        Ok(match self {
            TargetOptions::Ext4(o, base) => {
                TargetPlan::Ext4(Box::new(ext4::plan_over(o, tree, bytes, base.as_deref())?))
            }
            TargetOptions::F2fs(o) => TargetPlan::F2fs(Box::new(f2fs::plan(o, tree, bytes)?)),
        })
    }

    /// Plans the smallest volume.
    pub fn smallest(&self, tree: &Tree, free_bytes: u64) -> Result<TargetPlan> {
        let goal = SizeGoal { free_bytes };
        Ok(match self {
            TargetOptions::Ext4(o, base) => TargetPlan::Ext4(Box::new(
                ext4::smallest_over(o, tree, goal, base.as_deref())?.1,
            )),
            TargetOptions::F2fs(o) => TargetPlan::F2fs(Box::new(f2fs::smallest(o, tree, goal)?.1)),
        })
    }
}

impl TargetPlan {
    /// What the volume will be like.
    pub fn report(&self) -> BuildReport {
        match self {
            TargetPlan::Ext4(plan) => {
                let r = plan.report();
                BuildReport {
                    bytes: r.bytes,
                    block_bytes: r.block_bytes,
                    blocks: r.blocks,
                    free_blocks: r.free_blocks,
                    reserved_blocks: r.reserved_blocks,
                    inodes: r.inodes,
                    free_inodes: r.free_inodes,
                    features: r.features,
                    uuid: r.uuid,
                    left_out: Vec::new(),
                    files: 0,
                    protected: 0,
                    directories: 0,
                    details: BuildDetails::Ext4 {
                        inode_bytes: r.inode_bytes,
                        groups: r.groups,
                        journal_blocks: r.journal_blocks,
                    },
                }
            }
            TargetPlan::F2fs(plan) => {
                let r = plan.report();
                BuildReport {
                    bytes: r.bytes,
                    block_bytes: r.block_bytes,
                    blocks: r.blocks,
                    free_blocks: r.free_blocks,
                    reserved_blocks: 0,
                    inodes: r.nids,
                    free_inodes: r.nids - r.nodes,
                    features: r.features,
                    uuid: r.uuid,
                    left_out: Vec::new(),
                    files: 0,
                    protected: 0,
                    directories: 0,
                    details: BuildDetails::F2fs {
                        segments: r.segments,
                        free_segments: r.free_segments,
                        overprovisioned_segments: r.overprovisioned_segments,
                        reserved_segments: r.reserved_segments,
                    },
                }
            }
        }
    }

    /// What of the sources' inode flags and projects the volume does not keep.
    pub fn left_out(&self, tree: &Tree) -> Vec<LeftOut> {
        let kept = match self {
            TargetPlan::Ext4(plan) => plan.kept_flags(),
            TargetPlan::F2fs(plan) => plan.kept_flags(),
        };
        left_out(tree, &kept)
    }

    /// Bytes of data to copy, in whole blocks.
    pub fn data_bytes(&self) -> u64 {
        match self {
            TargetPlan::Ext4(plan) => plan.data_bytes(),
            TargetPlan::F2fs(plan) => plan.data_bytes(),
        }
    }

    /// Writes the volume.
    pub fn write(
        &self,
        device: &SharedDevice,
        tree: &Tree,
        source: &dyn DataSource,
        progress: ProgressFn<'_>,
    ) -> Result<()> {
        match self {
            TargetPlan::Ext4(plan) => ext4::write(device, plan, tree, source, progress)?,
            TargetPlan::F2fs(plan) => f2fs::write(device, plan, tree, source, progress)?,
        }
        Ok(())
    }
}

/// An option that the format does not have.
pub(crate) fn not_for_f2fs(option: &'static str) -> Error {
    let reason = "f2fs volumes have none".to_owned();
    blockwright_mkfs::MkfsError::Option { option, reason }.into()
}
