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
use std::sync::Arc;

/// See the module's head.
pub struct Data {
    pub(crate) volume: Arc<Volume>,
    pub(crate) access: Arc<Access>,
    pub(crate) nodes: Arc<Nodes>,
    pub(crate) tree: Arc<Tree>,
    pub(crate) checkpoints: Arc<Checkpoints>,
    pub(crate) cleaning: Arc<Cleaning>,
}

impl Data {
    pub(crate) fn new(
        volume: &Arc<Volume>,
        access: &Arc<Access>,
        nodes: &Arc<Nodes>,
        tree: &Arc<Tree>,
        checkpoints: &Arc<Checkpoints>,
        cleaning: &Arc<Cleaning>,
    ) -> Self {
        Data {
            volume: Arc::clone(volume),
            access: Arc::clone(access),
            nodes: Arc::clone(nodes),
            tree: Arc::clone(tree),
            checkpoints: Arc::clone(checkpoints),
            cleaning: Arc::clone(cleaning),
        }
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
