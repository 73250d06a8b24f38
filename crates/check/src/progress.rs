//! How far a check is.

use std::ops::ControlFlow;
use std::sync::Arc;

/// Where a check is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    /// What describes the volume as a whole: superblocks, journal or checkpoint, tables.
    Volume,
    /// Inodes and their mappings.
    Inodes,
    /// Directories.
    Directories,
    /// Connectivity and link counts.
    Links,
    /// Bitmaps, and counts that sum up.
    Bitmaps,
}

impl Phase {
    /// Its name, which is stable: `volume`, `inodes`, `directories`, `links` or `bitmaps`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Phase::Volume => "volume",
            Phase::Inodes => "inodes",
            Phase::Directories => "directories",
            Phase::Links => "links",
            Phase::Bitmaps => "bitmaps",
        }
    }
}

/// How far a check is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// What is being looked at.
    pub phase: Phase,
    /// How much of it is done.
    pub done: u64,
    /// How much there is.
    pub total: u64,
}

/// Called now and then with how far the check is. The check ends with an error when it breaks. Repairs are written at the end, without calls in between: a
/// check that is stopped has written nothing, but the transactions of an ext4 journal that it replayed before.
pub type ProgressFn = Arc<dyn Fn(Progress) -> ControlFlow<()> + Send + Sync>;
