//! How simultaneous data writes share the logs, and counts of what they were given.
//!
//! A writer reserves a run of blocks in one step and writes it without a lock. The other ways exist to be measured against (cargo feature `comparison`).

#[cfg(feature = "comparison")]
use crate::comparison::DirectAllocation;
use crate::options::Options;
use std::sync::atomic::{AtomicU64, Ordering};

/// How writes share logs, and what that came to.
#[derive(Debug)]
pub(crate) struct Sharing {
    #[cfg(feature = "comparison")]
    way: std::sync::atomic::AtomicU8,
    serialized_dio_pages: AtomicU64,
    /// Runs that were handed out, and their blocks.
    pub(crate) runs: AtomicU64,
    pub(crate) blocks: AtomicU64,
}

impl Sharing {
    pub(crate) fn new(options: &Options) -> Self {
        Sharing {
            #[cfg(feature = "comparison")]
            way: std::sync::atomic::AtomicU8::new(options.dio_alloc as u8),
            serialized_dio_pages: AtomicU64::new(options.serialized_dio_pages),
            runs: AtomicU64::new(0),
            blocks: AtomicU64::new(0),
        }
    }

    /// Whether a run is reserved in one step.
    #[cfg(not(feature = "comparison"))]
    pub(crate) fn reserves_runs(&self) -> bool {
        true
    }

    #[cfg(feature = "comparison")]
    pub(crate) fn reserves_runs(&self) -> bool {
        self.way() == DirectAllocation::Reserved
    }

    #[cfg(feature = "comparison")]
    pub(crate) fn way(&self) -> DirectAllocation {
        self.way.load(Ordering::Relaxed).into()
    }

    /// Changes the variant, for what is allocated next.
    #[cfg(feature = "comparison")]
    pub(crate) fn set_way(&self, way: DirectAllocation) {
        self.way.store(way as u8, Ordering::Relaxed);
    }

    /// A run of this many blocks was handed out.
    pub(crate) fn count(&self, blocks: u32) {
        self.runs.fetch_add(1, Ordering::Relaxed);
        self.blocks.fetch_add(u64::from(blocks), Ordering::Relaxed);
    }

    pub(crate) fn serialized_dio_pages(&self) -> u64 {
        self.serialized_dio_pages.load(Ordering::Relaxed)
    }

    pub(crate) fn set_serialized_dio_pages(&self, pages: u64) {
        self.serialized_dio_pages.store(pages, Ordering::Relaxed);
    }
}
