//! Independent verification and repair of file systems.
//!
//! [`ext4::check`] and [`f2fs::check`] read a whole volume, compare every structure with every other
//! one that says something about it, and return typed issues; they never print. They share the raw
//! structures and checksums with the engines (crate `ondisk`) and nothing else: the journal is
//! replayed, trees are walked and names are hashed by code of their own, so that a mistake in an
//! engine is found rather than repeated.
//!
//! Not responsible for: printing, asking questions, locking the device against others.
//!
//! Invariants: no input makes it panic, loop, or use memory out of proportion to what the volume
//! really holds; [`Mode::ReadOnly`] never writes.
#![forbid(unsafe_code)]

pub mod ext4;
pub mod f2fs;
mod log;
mod progress;
mod report;

pub use progress::{Phase, Progress, ProgressFn};
pub use report::{Issue, Outcome, Report, Severity, Stats, fsck_exit_code};

/// What a check may change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// Nothing: a dirty journal is replayed in memory and the result is checked.
    #[default]
    ReadOnly,
    /// Only what is safe without a human: replay, orphans, counts and bitmaps that were left
    /// behind. When anything else is found, nothing but the journal's replay is written.
    Preen,
    /// Everything that can be repaired.
    Yes,
}
