//! Independent verification and repair of file systems.
//!
//! [`ext4::check`] reads a whole volume, compares every structure with every other one that says
//! something about it, and returns typed issues; it never prints. It shares the raw structures and
//! checksums with the engines (crate `ondisk`) and nothing else: the journal is replayed, trees
//! are walked and names are hashed by code of its own, so that a mistake in an engine is found
//! rather than repeated.
//!
//! Not responsible for: printing, asking questions, locking the device against others.
//!
//! Invariants: no input makes it panic, loop, or use memory out of proportion to what the volume
//! really holds; [`Mode::ReadOnly`] never writes.
#![forbid(unsafe_code)]

pub mod ext4;
mod report;

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
