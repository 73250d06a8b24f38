//! Contents of files: where blocks are, and the engine's half of reading and writing them.
//!
//! [`Data`] owns nothing beside the other parts; writes under way are noted in the inode's `body`. It changes nodes through the tree, begins
//! operations, and asks cleaning whether there is room. It never waits for cleaning and moves no bytes of the page cache.
//!
//! # Locks and crash order
//! `write` has both.

mod compressed;
mod direct;
mod inline;
mod map;
mod shift;
mod write;

use crate::checkpoint::Checkpoints;
use crate::gc::Cleaning;
use crate::node::Nodes;
use crate::node::inode::Body;
use crate::node::tree::Tree;
use crate::options::ActiveLogs;
use crate::volume::Volume;
use crate::writer::{Access, Writer};
use blockwright_ondisk::f2fs::Log;
use blockwright_ondisk::f2fs::inode::Advise;

blockwright_vfs::part! {
    /// See the module's head.
    pub struct Data {
        volume: Volume,
        access: Access,
        nodes: Nodes,
        tree: Tree,
        checkpoints: Checkpoints,
        cleaning: Cleaning,
    }
}

/// Blocks that are left to the next checkpoint beside those that it needs for what is dirty already.
pub(crate) const SPARE_MIN: u64 = 64;

/// The log for a file's data.
pub(crate) fn log_of(w: &Writer, body: &Body) -> Log {
    // With fewer logs, files are not distinguished.
    if w.logs != ActiveLogs::Six {
        w.logs.of(Log::WarmData)
    } else if body.inode.advise.contains(Advise::HOT) {
        Log::HotData
    } else if body.inode.advise.contains(Advise::COLD) {
        Log::ColdData
    } else {
        Log::WarmData
    }
}
