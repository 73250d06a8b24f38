//! State for fsync: the chain of nodes behind the last checkpoint, and the changes since then that a chain cannot express.
//! Such a change makes the next fsync of its file write a checkpoint ([`CheckpointReason`]).
//!
//! It calls no other part. `fsync` extends the chain, operations mark files and names, a checkpoint begins the next chain.
//!
//! # Locks
//! `marks`, a leaf. `node_writeback`, rank `EngineGate`: see there.

use blockwright_ondisk::f2fs::hash::fold_name;
use blockwright_ondisk::f2fs::{BlockAddr, Ino};
use blockwright_vfs as vfs;
use blockwright_vfs::locks::{Mutex, Rank};
use hashbrown::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

/// Why an fsync writes a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CheckpointReason {
    /// Not a regular file, or a compressed one.
    Kind,
    /// The file has no name, or several.
    Links,
    /// Its names changed since the last checkpoint.
    Renamed,
    /// It lost nodes since the last checkpoint.
    Freed,
    /// It is new, and the last checkpoint does not have its parent.
    Parent,
    /// It is new, and its name was that of another file that still exists.
    Name,
    /// `strict`: it is new, and other names were removed from its directory.
    Strict,
    /// The chain is long, or there is no room to go on with it or to recover it.
    Room,
    /// The last checkpoint has no checksum to tell its nodes by.
    Version,
    /// Nodes of it were written ahead of the next checkpoint, and are not in the chain.
    Preflushed,
    /// Two logs: fsync has none of its own.
    Logs,
}

/// How many there are: the last one counts them. All are named, so that another one must be added here to compile.
const REASONS: usize = {
    use CheckpointReason as R;
    let last = R::Logs;
    match last {
        R::Kind | R::Links | R::Renamed | R::Freed | R::Parent | R::Name => {}
        R::Strict | R::Room | R::Version | R::Preflushed | R::Logs => {}
    }
    last as usize + 1
};

/// What happened since the last checkpoint that a chain cannot tell.
pub(crate) struct Marks {
    pub(crate) files: HashMap<Ino, CheckpointReason>,
    /// Names that files lost which still exist.
    pub(crate) names: HashSet<u64>,
    /// Directories that lost names.
    pub(crate) directories: HashSet<Ino>,
    /// Where the chain continues; `NULL` when it cannot.
    pub(crate) next: BlockAddr,
}

impl Marks {
    /// The marks right after a checkpoint: the chain begins at `next`.
    fn new(next: BlockAddr) -> Self {
        Marks {
            files: HashMap::new(),
            names: HashSet::new(),
            directories: HashSet::new(),
            next,
        }
    }
}

/// What writing has for fsync.
pub(crate) struct Chain {
    pub(crate) marks: Mutex<Marks>,
    /// [`crate::alloc::Segments::commits`] that are durable.
    pub(crate) flushed: AtomicU64,
    /// Held from the scan for dirty nodes until those nodes are on the device. So the pre-flush
    /// makes none of them clean meanwhile.
    pub(crate) node_writeback: Mutex<()>,
    /// Blocks written since the last checkpoint.
    pub(crate) blocks: AtomicU64,
    hasher: hashbrown::DefaultHashBuilder,
    pub(crate) chained: AtomicU64,
    pub(crate) nodes: AtomicU64,
    pub(crate) flushes: AtomicU64,
    reasons: [AtomicU64; REASONS],
}

impl Chain {
    /// `start`: where the chain behind the last checkpoint begins.
    pub(crate) fn new(start: BlockAddr) -> Self {
        Chain {
            marks: Mutex::new(Rank::Leaf, Marks::new(start)),
            flushed: AtomicU64::new(0),
            node_writeback: Mutex::new(Rank::EngineGate, ()),
            blocks: AtomicU64::new(0),
            hasher: hashbrown::DefaultHashBuilder::default(),
            chained: AtomicU64::new(0),
            nodes: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
            reasons: Default::default(),
        }
    }

    /// Blocks of the chain: what recovery may need once more.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Relaxed)
    }

    pub(crate) fn name_key(&self, dir: Ino, name: &[u8]) -> u64 {
        // Folded in any case: two names taken for one cost a checkpoint.
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u32(dir.0);
        hasher.write(&fold_name(name));
        hasher.finish()
    }

    /// The next fsync of a file needs a checkpoint.
    pub(crate) fn mark_file(&self, ino: Ino, why: CheckpointReason) {
        self.marks.lock().files.insert(ino, why);
    }

    /// A name went from a directory; `survives`: what it named did not go with it.
    pub(crate) fn mark_name(&self, dir: Ino, name: &[u8], survives: bool) {
        let key = survives.then(|| self.name_key(dir, name));
        let mut marks = self.marks.lock();
        marks.directories.insert(dir);
        marks.names.extend(key);
    }

    /// A checkpoint is durable: the next chain begins. The gate is held exclusively.
    pub(crate) fn checkpointed(&self, commits: u64, start: BlockAddr) {
        *self.marks.lock() = Marks::new(start);
        self.blocks.store(0, Ordering::Relaxed);
        self.flushed.store(commits, Ordering::Release);
    }

    pub(crate) fn count(&self, why: CheckpointReason) {
        self.reasons[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn stats(&self, out: &mut vfs::Stats) {
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        let reason = |why: CheckpointReason| get(&self.reasons[why as usize]);
        vfs::stat_lines! { out;
            counter "fsyncs_chained", Count, "fsyncs of files that needed no checkpoint" => get(&self.chained);
            counter "fsync_nodes", Count, "nodes written by fsync for the next mount to find" => get(&self.nodes);
            counter "fsync_flushes", Count, "device flushes by fsync" => get(&self.flushes);
            counter "fsync_checkpoints_kind", Count, "fsyncs that wrote a checkpoint: not a plain regular file" => reason(CheckpointReason::Kind);
            counter "fsync_checkpoints_links", Count, "fsyncs that wrote a checkpoint: several names, or none" => reason(CheckpointReason::Links);
            counter "fsync_checkpoints_renamed", Count, "fsyncs that wrote a checkpoint: the file was renamed or linked since the last one"
                => reason(CheckpointReason::Renamed);
            counter "fsync_checkpoints_freed", Count, "fsyncs that wrote a checkpoint: the file lost nodes since the last one"
                => reason(CheckpointReason::Freed);
            counter "fsync_checkpoints_parent", Count, "fsyncs that wrote a checkpoint: the file is in a new directory"
                => reason(CheckpointReason::Parent);
            counter "fsync_checkpoints_name", Count, "fsyncs that wrote a checkpoint: the new file has the former name of another"
                => reason(CheckpointReason::Name);
            counter "fsync_checkpoints_strict", Count, "fsyncs that wrote a checkpoint: names were removed from the new file's directory (fsync_mode=strict)"
                => reason(CheckpointReason::Strict);
            counter "fsync_checkpoints_room", Count, "fsyncs that wrote a checkpoint: the chain got too long for the room there is"
                => reason(CheckpointReason::Room);
            counter "fsync_checkpoints_version", Count, "fsyncs that wrote a checkpoint: the first after another program's"
                => reason(CheckpointReason::Version);
            counter "fsync_checkpoints_early", Count, "fsyncs that waited for the checkpoint in progress: it had already written nodes of the file"
                => reason(CheckpointReason::Preflushed);
            counter "fsync_checkpoints_logs", Count, "fsyncs that wrote a checkpoint: there are two logs, none for fsync (active_logs=2)"
                => reason(CheckpointReason::Logs);
        }
    }
}
