//! Disks: partitions and container formats as block devices.
//!
//! # Parts
//! * [`Place`] splits the name of an image (`disk.img:p2`, `disk.img:p=root`) into a file and a partition.
//! * [`Disk`] is an open disk in any container: its partition [`Table`], and [`Disk::part`], a partition as a device.
//! * [`container`] detects the format of a file and opens it: [`qcow2`], and for reading Android sparse images, VHD and VMDK. [`convert()`] writes
//!   disks in these formats.
//! * [`overlay`] keeps the changes of a disk that is only read in a separate file.
//! * [`probe`] says what a device holds by its signatures.
//!
//! # Calls
//! It calls `device`, and `chunks` for images in chunks.
//!
//! # Hostile input
//! Everything here reads hostile input. Each structure has a bound: at most [`table::ENTRIES_MAX`] entries of a GPT,
//! [`table::LOGICAL_MAX`] logical partitions, [`container::CHAIN_MAX`] backing files. A fault of one partition keeps only that partition
//! from being opened.
//!
//! # Locks
//! Only `qcow2` and the pool of threads have locks; see [`qcow2`]. None is held during a completion.
//!
//! # Crash order
//! [`table`] writes the backup of a GPT before the primary. [`qcow2`] orders refcounts, data and tables with flushes. After a crash,
//! the old table or mapping counts, or the new one.
//!
//! # Not responsible for
//! File systems; which files may be opened (callers decide); locks between processes (`device` has them).
//!
//! References: UEFI specification 2.10, chapter 5 (GPT); QEMU's `docs/interop/qcow2.txt`; the formats' modules name theirs.

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
pub use disk::{Disk, open, open_file, open_with};
pub use error::{Error, Result};
pub use place::{Place, Selector};
pub use table::{Partition, Scheme, Table};
