//! Makes file systems on a device: empty ones, and ones that hold a given tree from the start.
//!
//! A volume is *planned* first (in memory, without I/O: which file gets which inode and which blocks) and
//! then written front to back. So the smallest size that fits can be computed by planning alone,
//! the same plan always gives the same bytes, and file data lies in one piece.
//!
//! Not responsible for: where the tree and its data come from (the library's `build`), changing a
//! volume that exists (the engines).

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod attributes;
mod error;
pub mod ext4;
pub mod f2fs;
pub mod fat;
pub mod flags;
mod options;
mod output;
pub mod tree;

pub use error::MkfsError;
pub use options::{Before, SizeGoal};
pub use output::{DataSource, Progress, SourceError};

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, MkfsError>;
