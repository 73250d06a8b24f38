//! Variants of the engine that exist to be measured beside it (cargo feature `comparison`).
//!
//! Benchmarks and tests switch them on. The shipped program is built without the feature, so none of its code has a
//! branch for a variant.

/// How simultaneous writes share a data log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum DirectAllocation {
    /// A run is reserved in one atomic step, and no writer waits: what the engine does.
    #[default]
    Reserved,
    /// Blocks are handed out one at a time, and large writes take turns. Writeback counts as large.
    Serialized,
    /// Blocks are handed out one at a time, in the order in which writers come.
    None,
}

impl From<u8> for DirectAllocation {
    /// The variant of that number, modulo three.
    fn from(n: u8) -> Self {
        [Self::Reserved, Self::Serialized, Self::None][usize::from(n % 3)]
    }
}
