//! The commands, one module a concept. Each takes its arguments and returns when all is done and
//! everything is written.

pub mod cat;
pub mod check;
pub mod chunk;
pub mod copy;
pub mod disk;
mod disk_build;
pub mod edit;
pub mod entries;
pub mod export;
pub mod extents;
pub mod generate;
pub mod info;
pub mod list;
pub mod mkfs;
pub mod mode;
pub mod mount;
pub mod place;
mod progress;
pub mod quota;
mod remount;
pub mod resize;
pub mod set;
pub mod space;
pub mod stat;
pub mod stats;
pub mod streams;
pub mod sync;
pub mod touch;
pub mod trace;
pub mod trees;
pub mod trim;
pub mod tune;
pub mod umount;
pub mod xattr;
