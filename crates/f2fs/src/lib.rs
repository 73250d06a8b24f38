//! The f2fs engine: a [`blockwright_vfs::engine::Engine`] for the format.
//!
//! [`fs::Fs`] ties the parts together: `mount` finds the valid superblock and checkpoint; `nat` knows
//! where nodes are and `node` reads them and walks a file's tree; `inode`, `map`, `dir` and `xattr` answer
//! the vfs's questions from them; `engine` is the trait itself.
//!
//! Writing: `segments` hands out blocks, `tree` changes nodes, `write` and `direct` the data path's half, `dir_change` and
//! `namei` names, `attrs` inodes and attributes; `checkpoint` makes it durable, `merge` for all who want that at the same
//! time, `disable` not at all for a time, `gc` frees sections by moving what is valid in them, and `writer` keeps operations and checkpoints apart.
//!
//! `fsync` makes single files durable without a checkpoint, and `recovery` finds them again at the next mount.
//!
//! Not here yet: writing compressed files.
#![forbid(unsafe_code)]

mod attrs;
pub mod cache;
mod chain;
mod change;
mod checkpoint;
#[cfg(feature = "comparison")]
pub mod comparison;
mod compressed;
mod data_map;
pub mod dir;
mod dir_change;
mod direct;
mod disable;
mod early;
pub mod engine;
pub mod fs;
mod fsync;
mod gate;
mod gc;
mod inline_data;
pub mod inode;
mod io;
pub mod map;
mod merge;
mod mount;
mod namei;
pub mod nat;
pub mod node;
pub mod options;
mod owned;
mod quota;
mod quota_files;
mod recovery;
mod relocation;
mod seg_table;
pub mod segments;
mod sharing;
mod shift;
mod sought;
mod store;
mod tickets;
mod trace;
mod tree;
mod tuning;
pub mod volume;
mod write;
pub mod writer;
pub mod xattr;

pub use blockwright_vfs::error::{Error, ErrorKind, Result};
/// What `tickets` needs; its test puts loom's here.
mod atomics {
    pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
}

pub use engine::F2fs;
pub use fs::{Fs, FsRef};
pub use options::{ActiveLogs, BackgroundCleaning, FsyncMode, Mode, Options};
pub use recovery::Recovered;
pub use trace::SlowWait;
