//! What can go wrong while a volume is made.

use crate::tree::{NodeId, Tree};
use blockwright_device::DeviceError;
use blockwright_ondisk::ext4::FormatError;
use std::fmt;
use std::sync::Arc;

/// Why a volume could not be made. Nothing usable is on the device then.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum MkfsError {
    /// The device failed.
    Device(DeviceError),
    /// An option's value is out of range or contradicts another.
    Option {
        /// Which option, as mke2fs and the `mkfs` command call it.
        option: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// Features that cannot go together, or that no volume can be made with.
    Features {
        /// What is wrong with them.
        reason: String,
    },
    /// The device or the given size is too small for any volume of this shape.
    TooSmall {
        /// The size in blocks.
        blocks: u64,
        /// What did not fit.
        what: &'static str,
    },
    /// The tree does not fit.
    NoSpace {
        /// The volume's size in blocks.
        blocks: u64,
        /// How many more would be needed, at least.
        missing: u64,
        /// Bytes per block.
        block_bytes: u32,
    },
    /// The tree has more inodes than the volume.
    NoInodes {
        /// Inodes of the volume.
        inodes: u64,
        /// Inodes needed.
        needed: u64,
    },
    /// Something in the tree cannot be stored in this format.
    Tree {
        /// The name of the file concerned.
        name: String,
        /// What cannot be stored.
        reason: String,
    },
    /// The data of a file could not be read.
    Source(Arc<dyn std::error::Error + Send + Sync>),
    /// The progress function has ended it.
    Stopped,
    /// The format's own rules were broken by the values chosen.
    Format(FormatError),
}

impl MkfsError {
    pub(crate) fn option(option: &'static str, reason: impl Into<String>) -> Self {
        MkfsError::Option {
            option,
            reason: reason.into(),
        }
    }

    /// Says which file of the tree it is that cannot be stored.
    pub(crate) fn of_node(self, tree: &Tree, id: NodeId) -> Self {
        match self {
            MkfsError::Tree { name, reason } => {
                let path = tree.path_of(id);
                let known = path == name || path.rsplit('/').next() == Some(&name[..]);
                let reason = if known || name.is_empty() {
                    reason
                } else {
                    format!("{name}: {reason}")
                };
                MkfsError::Tree { name: path, reason }
            }
            other => other,
        }
    }

    pub(crate) fn features(reason: impl Into<String>) -> Self {
        MkfsError::Features {
            reason: reason.into(),
        }
    }
}

impl fmt::Display for MkfsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MkfsError::Device(e) => write!(f, "making a file system: {e}"),
            MkfsError::Option { option, reason } => write!(f, "option {option}: {reason}"),
            MkfsError::Features { reason } => write!(f, "features: {reason}"),
            MkfsError::TooSmall { blocks, what } => {
                write!(f, "a volume of {blocks} blocks is too small for {what}")
            }
            MkfsError::NoSpace {
                blocks,
                missing,
                block_bytes,
            } => write!(
                f,
                "the contents do not fit: a volume of {blocks} blocks of {block_bytes} bytes lacks {missing}"
            ),
            MkfsError::NoInodes { inodes, needed } => {
                write!(
                    f,
                    "the contents need {needed} inodes, the volume has {inodes}"
                )
            }
            MkfsError::Tree { name, reason } => write!(f, "{name}: {reason}"),
            MkfsError::Source(e) => write!(f, "{e}"),
            MkfsError::Stopped => f.write_str("the build was stopped"),
            MkfsError::Format(e) => write!(f, "making a file system: {e}"),
        }
    }
}

impl std::error::Error for MkfsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            MkfsError::Device(e) => Some(e),
            MkfsError::Format(e) => Some(e),
            _ => None,
        }
    }
}

impl From<DeviceError> for MkfsError {
    fn from(e: DeviceError) -> Self {
        MkfsError::Device(e)
    }
}

impl From<FormatError> for MkfsError {
    fn from(e: FormatError) -> Self {
        MkfsError::Format(e)
    }
}
