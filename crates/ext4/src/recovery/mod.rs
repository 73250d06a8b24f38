//! [`Recovery`]: what a mount has left to do when the journal's blocks are home.
//!
//! It owns nothing but its references, and only the mount calls it. It stands above all parts that change a volume.
//! - `orphans`: inodes that were being deleted or truncated are finished.
//! - `fast_commits`: the operations of fast commits are redone.
//! - `quota_recount`: usage is counted anew after that.
//!
//! # Locks
//! None: no other thread uses the volume yet.
//!
//! # Crash order
//! Each step can be repeated: the journal stays marked as in use until fast commits are redone, and orphans stay on the list until they
//! are finished.

mod fast_commits;
mod orphans;
mod quota_recount;

use crate::alloc::Allocator;
use crate::alloc::groups::Groups;
use crate::alloc::inodes::InodeAllocator;
use crate::dir::Directories;
use crate::inode::{Eviction, InodeTable, Inodes, Orphans, StoredInodes};
use crate::map::Maps;
use crate::quota::Quota;
use crate::volume::Volume;

blockwright_vfs::part! {
    /// See the module's head.
    pub struct Recovery {
        volume: Volume,
        groups: Groups,
        alloc: Allocator,
        ialloc: InodeAllocator,
        table: InodeTable,
        orphans: Orphans,
        stored: StoredInodes,
        quota: Quota,
        inodes: Inodes,
        maps: Maps,
        dirs: Directories,
        eviction: Eviction,
    }
}

impl Recovery {}
