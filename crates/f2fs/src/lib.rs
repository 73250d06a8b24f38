//! The f2fs engine: a [`blockwright_vfs::engine::Engine`] for the format.
//!
//! # Parts
//! Each part is a struct that owns its state and is constructed from the parts that it calls. Only [`Fs`], which the mount assembles, and
//! [`F2fs`], the engine, see all parts. From the bottom:
//! - `volume`: the device, superblock and options; reports damage.
//! - `alloc`: segments, logs and their leases, victims for cleaning.
//! - `writer`: what a writable volume has beside a read one: segments, gate, marks for fsync, the first failure.
//! - `node`: the NAT, the caches, inodes in memory; `node::tree`: files' trees of nodes, stored inodes, quota.
//! - `checkpoint`: the gate, packs, the merging daemon, nodes written ahead of a checkpoint, disabled checkpoints.
//! - `gc`: cleaning. `data`: contents of files. `dir`: contents of directories, and changes of names. `attr`: attributes, the life of
//!   inodes, extended attributes, opening of quota files.
//! - `recovery`: fsync without a checkpoint, and how the next mount finds what was fsynced.
//! - `mount`: reads what a mount needs, and constructs the parts. `engine`: answers the vfs.
//!
//! Compressed files can be read but not written.
#![forbid(unsafe_code)]

mod alloc;
mod attr;
mod checkpoint;
#[cfg(feature = "comparison")]
pub mod comparison;
mod data;
mod dir;
mod engine;
mod gc;
mod mount;
mod node;
pub mod options;
mod recovery;
mod volume;
mod writer;

pub use blockwright_vfs::error::{Error, ErrorKind, Result};

pub use engine::F2fs;
pub use mount::{Fs, FsRef};
pub use node::inode;
pub use options::{ActiveLogs, BackgroundCleaning, FsyncMode, Mode, Options};
pub use recovery::Recovered;
pub use writer::trace::SlowWait;
