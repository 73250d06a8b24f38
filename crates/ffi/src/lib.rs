//! What the bindings to other languages share, in safe Rust: errors as errno, opening a part of an image,
//! a check of either format with its issues as data, changes of size and settings, with the length of the image file, the partitions of a disk, and maps.
//!
//! Errno is for Unix alone; the rest is for every host.
//!
//! Not responsible for: the languages themselves. `crates/capi`, `bindings/python` and `crates/web` translate types and own the handles.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod check;
#[cfg(unix)]
mod errno;
mod image;
mod map;
mod partitions;
mod resize;

pub use check::{CheckOptions, CheckReport, IssueData, check};
#[cfg(unix)]
pub use errno::{errno_of, errno_of_sync};
pub use image::{Image, Window};
pub use map::{MapForm, map};
pub use partitions::{PartitionData, TableData, partitions};
pub use resize::{Target, resize, resize_with_partition, set};

pub use blockwright_check::{Mode, Outcome, Phase, ProgressFn, Severity, Stats};
