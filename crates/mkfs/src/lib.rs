//! Makes file systems on a device: empty ones, and ones that hold a given tree from the start.
//!
//! A volume is *planned* first, in memory and without I/O: which file gets which inode and which blocks. Then it is
//! written front to back. So planning alone finds the smallest size that fits, the same plan always gives the same bytes,
//! and the data of each file lies in one piece.
//!
//! # Parts
//! - [`tree`]: the files that go into a volume. [`flags`]: inode flags that a format keeps.
//! - [`ext4`], [`f2fs`], [`fat`]: options, plan and writer of each format.
//! - `output`: writes of a plan to a device, by several threads. [`DataSource`] gives the contents of files.
//!
//! # Calls
//! It calls `ondisk` for structures and checksums, and `device` for I/O. It never calls an engine.
//!
//! # Locks
//! Plans are owned by one thread. The threads of `output` share one mutex, which is held for bookkeeping only.
//!
//! # Crash order
//! The superblock (FAT: the boot sector) is wiped first and written last, each behind a flush. So an interrupted volume is not taken for a complete one.
//!
//! # Not responsible for
//! The origin of the tree and its data (the library's `build`); changes of a volume that exists (the engines, and `reshape`).

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
pub use output::{DataSource, Progress, ProgressFn, SourceError};

/// Shorthand for results of this crate.
pub type Result<T> = std::result::Result<T, MkfsError>;
