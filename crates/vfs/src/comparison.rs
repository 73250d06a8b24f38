//! Variants of the data path that exist to be measured beside it (cargo feature `comparison`).
//!
//! Benchmarks and tests choose them when they mount. The shipped program is built without the feature. Then the functions
//! that ask for them (`writeback::legacy`) are constant, so no hot path has a branch for a variant.

/// The variants in use.
#[cfg(any(test, feature = "comparison"))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Writeback as of 2008, not ordered streams.
    pub legacy_writeback: bool,
    /// The finisher completes every direct overwrite. The vfs completes them in the device's context, where it can.
    pub deferred_completion: bool,
}
