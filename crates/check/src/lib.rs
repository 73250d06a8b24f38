//! Independent verification and repair of file systems.
//!
//! [`ext4::check`] and [`f2fs::check`] read a whole volume. They compare every structure with all others
//! that describe the same thing, and return typed issues.
//!
//! They share the raw structures and checksums of crate `ondisk` with the engines, and nothing else. This crate has its own code to
//! replay the journal, walk trees and look names up. So it finds a mistake of an engine instead of repeating it.
//!
//! # Parts
//! - [`ext4`], [`f2fs`]: one folder for each format, with rounds, repairs and the overlay that holds them.
//! - `log`, `report`: the issues of a check, and their outcome. `progress`: the position of a check.
//!
//! # Calls
//! It calls `ondisk` and `device`.
//!
//! # Never
//! It never prints, asks a question, calls an engine, or locks the device against others. [`Mode::ReadOnly`] never writes.
//!
//! # Invariants
//! No input makes it panic, loop, or use memory out of proportion to what the volume really holds.
//!
//! # Locks
//! None: a check runs in the caller's thread.
//!
//! # Crash order
//! Repairs stay in memory until a round changes nothing. `ext4::store` and `f2fs::write` have the order in which they reach the device:
//! after a crash the volume still asks for a check (ext4), or is as before the repair (f2fs).
#![forbid(unsafe_code)]

pub mod ext4;
pub mod f2fs;
mod format_error;
mod log;
mod progress;
mod report;
pub mod usage;

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
