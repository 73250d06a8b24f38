//! ext2, ext3 and ext4.
//!
//! # Parts, lowest first
//! - `marked_tables`: inode tables whose checksums a rehearsal has not written. `disk`: blocks, staged and written. `journal_device`: the journal on another device.
//! - `volume`: superblock, descriptors, bitmaps, inodes.
//! - `files`: the blocks of a file. `inodes`: all inodes in use.
//! - `log`: a transaction in the journal. `commit`: the order in which a change reaches the device.
//! - `attachment`: a journal on another device, attached and detached. `lost_journal`: one whose device is lost. `journal_file`: making and removing a journal. `transaction`: a transaction with descriptors and counts.
//! - [`unmade`]: a change that a power failure left in the journal.
//! - `own_files`: quota files, the file of orphans, the block of multiple-mount protection.
//! - `indexes`: indexes of directories. `unwritten`: bitmaps and tables that were never written.
//! - `tails`: room for checksums in directories. `checksums`: checksums of all metadata. `width`: the width of block numbers.
//! - `shape`: the shape of a volume of a given size.
//! - `renumber`: moves inodes of groups that go. `shrink`: moves everything behind the new end.
//! - Above them, `features` (the rule for each feature), [`settings`] and [`resize`].
//!
//! # Stops
//! The parts that take long ask the watch (`disk.watch`) between blocks, inodes, directories or groups. What is staged then is dropped, and the volume is as
//! the last commit left it. [`resize`] and [`settings`] then give the volume the journal that it had, and write the copies of superblock and descriptors.
//! `journal_file` and `commit` never ask: a volume between two journals has no place for a transaction.

mod attachment;
mod checksums;
pub mod commit;
mod disk;
mod features;
mod files;
mod indexes;
mod inodes;
pub(crate) mod journal_device;
mod journal_file;
mod log;
mod lost_journal;
mod marked_tables;
mod own_files;
mod renumber;
pub mod resize;
pub mod settings;
mod shape;
mod shrink;
mod tails;
mod transaction;
pub mod unmade;
mod unwritten;
mod volume;
mod width;
