//! What is run and cut: a plan, and the generator that every choice is drawn from.

mod combined;

use blockwright_device::sim::recording::Completions;
use blockwright_device::sim::rng::SplitMix64;
use blockwright_ext4::comparison::Comparison;
use blockwright_f2fs::comparison::DirectAllocation;
use blockwright_f2fs::{BackgroundCleaning, FsyncMode};

/// The byte that no operation writes: it was on the device before.
pub const STALE: u8 = 0xdb;

/// The generator.
#[derive(Clone, Debug)]
pub struct Rng(SplitMix64);

impl Rng {
    /// From a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Rng(SplitMix64::new(seed))
    }

    /// 64 bits.
    #[allow(clippy::should_implement_trait)] // there is no end to them
    pub fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// A byte that is never [`STALE`] and never 0.
    pub(crate) fn byte(&mut self) -> u8 {
        loop {
            let b = self.next() as u8;
            if b != 0 && b != STALE {
                return b;
            }
        }
    }
}

/// What a write with this fill puts at an offset of a file: each sector differs from its neighbours, so that blocks which change
/// places are seen. Never 0 and never [`STALE`].
pub(crate) fn pattern(fill: u8, at: usize) -> u8 {
    match fill.wrapping_add(((at >> 9) as u8).wrapping_mul(37)) {
        0 | STALE => 1,
        b => b,
    }
}

/// Which format's volume is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// As our own mkfs makes it.
    Ext4,
    /// As mkfs.f2fs makes it.
    F2fs,
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// On which format.
    pub format: Format,
    /// Decides everything.
    pub seed: u64,
    /// How many operations.
    pub operations: usize,
    /// Features over mkfs's defaults, as `-O` takes them.
    pub features: &'static str,
    /// Block size in bytes.
    pub block_bytes: u32,
    /// The features have a journal.
    pub journal: bool,
    /// How the device completes requests.
    pub completions: Completions,
    /// Largest offset that a write begins at.
    pub file_bytes_max: u64,
    /// Half of the writes go past the cache, submitted; some are synchronous (`O_DSYNC`).
    pub direct: bool,
    /// All writes begin and end with blocks: most direct ones find preallocated blocks then.
    pub whole_blocks: bool,
    /// The data path's variants for comparison: legacy writeback and deferred completion.
    pub compared: bool,
    /// Blocks are placed at writeback, not when they are written to.
    pub delayed_allocation: bool,
    /// How blocks are preallocated.
    pub comparison: Comparison,
    /// Every other buffered write is many small ones with holes between them, some of which are allocated and unwritten: what is
    /// written back and made visible in batches.
    pub scattered: bool,
    /// Most files are removed while they are open, and let go of in any order: many orphans at a time.
    pub orphans: bool,
    /// f2fs: sections are cleaned between operations, of a volume that is full of holes.
    pub cleaning: Option<Cleaning>,
    /// Ranges are copied between and within files, collapsed and inserted, and files change owners.
    pub rich: bool,
    /// Largest write. From 1 MiB on volumes are larger, too.
    pub write_bytes_max: u64,
    /// If not 0: no buffered or direct write is larger. With a small [`Plan::file_bytes_max`] most files fit their inodes, at times.
    pub small_writes: u64,
    /// Nodes, inodes and pages hardly stay in memory.
    pub small_caches: bool,
    /// Threads that work in a directory each.
    pub threads: usize,
    /// Once explored, the workload continues on one of the crash images, and is cut again; so often.
    pub sequels: usize,
    /// f2fs: what else can be switched.
    pub f2fs: F2fsSwitches,
    /// Tunables of the mounted volume, and their values.
    pub tuned: &'static [(&'static str, u64)],
}

/// f2fs mount options that decide what is written when.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct F2fsSwitches {
    /// What fsync does.
    pub fsync: FsyncMode,
    /// How a log is shared.
    pub alloc: DirectAllocation,
    /// Whether a daemon writes checkpoints.
    pub merge: Option<bool>,
    /// Where new blocks come from, unless [`Plan::cleaning`] says.
    pub mode: blockwright_f2fs::Mode,
    /// How many logs are written to.
    pub logs: blockwright_f2fs::ActiveLogs,
    /// Dirty nodes that a checkpoint writes itself, if not as many as by default: the tunable.
    pub nodes_left: Option<u64>,
    /// The device is not told about free blocks.
    pub no_discard: bool,
}

/// f2fs that cleans.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cleaning {
    /// Where new blocks come from.
    pub mode: blockwright_f2fs::Mode,
    /// Segments of a section.
    pub segments: u32,
    /// How much room there is, and where.
    pub room: Room,
    /// Whether a thread cleans, too.
    pub background: BackgroundCleaning,
}

/// What a volume that cleans begins with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    /// Enough, between segments full of holes. Sections are cleaned between operations.
    Ample,
    /// None: operations are refused. Only writers clean, and small volumes keep so much in reserve that they need not.
    None,
    /// Enough, but no section is free beyond those that users' data leaves alone. A writer cleans first, or fills holes.
    InHoles,
}

impl Plan {
    /// Whether the threads of the workload run one at a time, as the seed says, and nothing else beside them: the run can be repeated.
    ///
    /// ext4's journal has a thread of its own, and release builds have locks that know of no turns.
    #[must_use]
    pub fn takes_turns(&self) -> bool {
        cfg!(debug_assertions) && self.threads > 1 && self.format == Format::F2fs
    }

    /// The plan without the threads that would run beside those of the workload, where these take turns.
    pub(crate) fn without_others(&self) -> Plan {
        let mut plan = self.clone();
        if plan.takes_turns() {
            plan.completions = Completions::Inline;
            plan.f2fs.merge = Some(false);
            if let Some(cleaning) = &mut plan.cleaning {
                cleaning.background = BackgroundCleaning::Off;
            }
        }
        plan
    }

    /// A small workload on a default volume.
    #[must_use]
    pub fn small(seed: u64) -> Self {
        Plan {
            format: Format::Ext4,
            seed,
            operations: 60,
            features: "",
            block_bytes: 1024,
            journal: true,
            completions: Completions::Inline,
            file_bytes_max: 40_000,
            direct: false,
            whole_blocks: false,
            compared: false,
            delayed_allocation: true,
            comparison: Comparison::default(),
            scattered: false,
            orphans: false,
            cleaning: None,
            rich: false,
            write_bytes_max: 20_000,
            small_writes: 0,
            small_caches: false,
            threads: 1,
            sequels: 0,
            f2fs: F2fsSwitches::default(),
            tuned: &[],
        }
    }
}
