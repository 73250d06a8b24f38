//! Variants of the engine that exist to be measured beside it (cargo feature `comparison`).
//!
//! Benchmarks and tests switch them on. The shipped program is built without the feature, so none of its code has a
//! branch for a variant.

/// How a file's preallocated blocks are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Preallocation {
    /// Ordered by logical start, without a limit: what the engine does.
    #[default]
    Tree,
    /// A list of at most 512 entries, searched from its newest.
    List,
    /// No preallocation: a request gets what it asks for.
    None,
}

/// The variants in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// How preallocated blocks are kept.
    pub preallocation: Preallocation,
    /// Concurrent commit requests share one commit, as the engine does. `false`: each caller commits on its own.
    pub group_commit: bool,
}

impl Default for Comparison {
    fn default() -> Self {
        Comparison {
            preallocation: Preallocation::Tree,
            group_commit: true,
        }
    }
}
