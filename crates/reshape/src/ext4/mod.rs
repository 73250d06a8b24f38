//! ext2, ext3 and ext4.
//!
//! Parts, lowest first: `disk` (blocks, staged and written), `volume` (superblock, descriptors, bitmaps, inodes), `files` (where a file's blocks
//! are), `inodes` (all that are in use), `log` (a transaction in the journal), `commit` (the order in which a change reaches the device), `journal_file` (making and removing a
//! journal), `shape` (what a size makes of a volume), `renumber` (moving inodes of groups that go), `shrink` (moving what lies behind the new end); above them [`settings`], [`resize`].

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
