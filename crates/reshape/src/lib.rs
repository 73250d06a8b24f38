//! Offline changes to the shape of a volume: its size, its features, its identity.
//!
//! # Parts
//! - [`ext4`]: superblock settings, growth and shrinkage of ext2, ext3 and ext4.
//! - [`f2fs`]: superblock settings, growth and shrinkage of f2fs.
//! - [`options`]: a change of size, and how it is made.
//! - [`resized`]: the result of a change of size.
//! - [`watch`]: the progress of a change, and how it is stopped.
//! - [`error`]: one type, with a kind and a sentence.
//!
//! # Calls
//! It calls `ondisk` for structures and checksums, and `device` for I/O. The ext4 engine calls this crate for the plan of a growth, so that only one
//! place lays out new groups. This crate never calls an engine, and never runs on a mounted volume.
//!
//! # Locks
//! None: one thread owns the volume.
//!
//! # Crash order
//! The program that opens the volume next (this library, the kernel, e2fsck or fsck.f2fs) undoes or finishes a change. [`ext4::commit`] and
//! [`f2fs::resize`] say how.
//!
//! # Not responsible for
//! Opening images, growing and cutting image files, replaying a journal (the library `blockwright` does all three), damage (the checker).

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod error;
pub mod ext4;
pub mod f2fs;
pub mod options;
pub mod resized;
pub mod watch;

pub use error::{ReshapeError, Result};
pub use options::{ResizeOptions, Size};
pub use watch::{Phase, Progress, Watch};

/// A random UUID, of version 4.
#[must_use]
pub fn random_uuid() -> [u8; 16] {
    *uuid::Uuid::new_v4().as_bytes()
}

/// Seconds since 1970.
pub(crate) fn now() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.unwrap_or_default().as_secs() as i64
}
