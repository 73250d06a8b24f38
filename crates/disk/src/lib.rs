//! Disks: partitions as block devices.
//!
//! * [`Place`] splits what a user calls an image (`disk.img:p2`, `disk.img:p=root`) into a file and a partition.
//! * [`Disk`] is an open disk: its partition [`Table`], and [`Disk::part`], a partition as a device.
//! * [`probe`] says what a device holds by its signatures.
//!
//! Everything here reads hostile input. Each structure has a bound: at most [`table::ENTRIES_MAX`] entries of a GPT,
//! [`table::LOGICAL_MAX`] logical partitions. What is wrong with one partition keeps that partition from being opened, and no other.
//!
//! Not responsible for: file systems, files of the host (callers open them), locks.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod bytes;
mod disk;
mod error;
pub mod place;
pub mod probe;
pub mod table;

pub use disk::{Disk, open};
pub use error::{Error, Result};
pub use place::{Place, Selector};
pub use table::{Partition, Scheme, Table};
