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
