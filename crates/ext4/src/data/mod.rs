//! Contents of files: reservations and blocks for what is written, small files in their inodes, commits, and changes of size.
//!
//! # Parts in this folder, from the bottom
//! - `delayed`: [`Delayed`](delayed::Delayed), reservations, and blocks for what is written.
//! - `inline`: [`InlineData`], files kept in their inodes.
//! - `commit`: [`Commits`], writes become visible.
//! - `truncate`: [`Truncation`], truncate and fallocate.
//!
//! Nothing here moves data: the vfs does, except for the bytes of a file that leaves its inode.

mod commit;
pub(crate) mod delayed;
mod inline;
mod truncate;

pub(crate) use commit::Commits;
pub(crate) use inline::InlineData;
pub(crate) use truncate::Truncation;
