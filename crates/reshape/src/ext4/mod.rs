//! ext2, ext3 and ext4.
//!
//! # Parts, lowest first
//! - `disk`: blocks, staged and written.
//! - `volume`: superblock, descriptors, bitmaps, inodes.
//! - `files`: the blocks of a file. `inodes`: all inodes in use.
//! - `log`: a transaction in the journal. `commit`: the order in which a change reaches the device.
//! - `journal_file`: making and removing a journal.
//! - `shape`: the shape of a volume of a given size.
//! - `renumber`: moves inodes of groups that go. `shrink`: moves everything behind the new end.
//! - Above them, [`settings`] and [`resize`].

pub mod commit;
mod disk;
mod files;
mod inodes;
mod journal_file;
mod log;
mod orphan_file;
mod renumber;
pub mod resize;
pub mod settings;
mod shape;
mod shrink;
mod volume;
