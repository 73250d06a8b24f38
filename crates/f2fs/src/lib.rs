//! The f2fs engine: a [`blockwright_vfs::engine::Engine`] for the format.
//!
//! [`fs::Fs`] ties the parts together: `mount` finds the valid superblock and checkpoint; `nat` knows
//! where nodes are and `node` reads them and walks a file's tree; `inode`, `map`, `dir` and `xattr` answer
//! the vfs's questions from them; `engine` is the trait itself.
//!
//! Writing is not here yet: every volume is mounted read-only, and says so.
#![forbid(unsafe_code)]

pub mod cache;
pub mod dir;
pub mod engine;
pub mod fs;
pub mod inode;
pub mod map;
mod mount;
pub mod nat;
pub mod node;
pub mod options;
pub mod xattr;

pub use blockwright_vfs::error::{Error, ErrorKind, Result};
pub use engine::F2fs;
pub use fs::{Fs, FsRef};
pub use options::Options;
