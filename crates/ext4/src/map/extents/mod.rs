//! [`Tree`]: an inode's extents: looking up, inserting, converting, removing and shifting them.
//!
//! It owns nothing: the root is in the inode's `MapState`. It calls the block allocator and the metadata cache.
//!
//! Every operation leaves a valid tree at its end, and at every point where it can fail for lack
//! of space: room in the nodes is made first (splits keep the tree valid), entries change after.
//!
//! A node is verified (checksum, order, ranges, depth) when it enters the metadata cache; walking
//! then checks that its depth and first block are what its parent says, so a loop cannot go on.
//!
//! It never starts a handle, never marks or frees data blocks except in `Tree::remove_step`, and counts only its nodes in the inode.
//!
//! # Locks
//! The caller holds the inode's `map`, exclusively for changes.
//!
//! # References
//! kernel documentation, "Extent Tree".

mod holes;
mod insert;
pub(crate) mod node;
mod remove;
mod shift;
mod tree;

pub use blockwright_ondisk::ext4::extent::Extent;
pub use holes::Holes;
pub(crate) use remove::Progress;
pub(crate) use tree::Tree;
