//! Disks: partitions and container formats as block devices.
//!
//! * [`Place`] splits what a user calls an image (`disk.img:p2`, `disk.img:p=root`) into a file and a partition.
//! * [`Disk`] is an open disk, whichever container it is in: its partition [`Table`], and [`Disk::part`], a partition as a device.
//! * [`container`] finds out which format a file has, and opens it: [`qcow2`], and for reading Android sparse images, VHD and VMDK. [`convert()`] writes
//!   disks in these formats.
//! * [`overlay`] keeps the changes of a disk that is only read in a file of their own.
//! * [`probe`] says what a device holds by its signatures.
//!
//! Everything here reads hostile input. Each structure has a bound: at most [`table::ENTRIES_MAX`] entries of a GPT, [`table::LOGICAL_MAX`] logical
//! partitions, [`container::CHAIN_MAX`] backing files. A fault of one partition keeps only that partition from being opened.
//!
//! Not responsible for: file systems, which files may be opened (callers decide), locks.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod bytes;
pub mod container;
mod convert;
mod disk;
mod error;
mod file;
mod mapped;
pub mod overlay;
pub mod place;
mod pool;
pub mod probe;
pub mod qcow2;
mod simg;
pub mod table;
mod vhd;
mod vmdk;

pub use convert::convert;
pub use disk::{Disk, open, open_file};
pub use error::{Error, Result};
pub use place::{Place, Selector};
pub use table::{Partition, Scheme, Table};
