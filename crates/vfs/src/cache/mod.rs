//! What is kept in memory of files: pages, places, and what a front end's own cache holds.
//!
//! [`page_cache`] has the pages of a file, [`budget`] the bytes that all of them may take, and [`extent_cache`] where blocks are.
//! [`block_set`] and [`range_set`] are the sets that they and the engines are made of.

pub mod block_set;
pub(crate) mod budget;
pub(crate) mod extent_cache;
pub(crate) mod front_pages;
pub mod page_cache;
pub mod range_set;

/// What `front_pages` needs; its test puts loom's here.
mod front_sync {
    use crate::locks;

    /// A leaf.
    pub(crate) struct Mutex<T>(locks::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Mutex(locks::Mutex::new(locks::Rank::Leaf, value))
        }

        pub(crate) fn lock(&self) -> locks::MutexGuard<'_, T> {
            self.0.lock()
        }
    }
}
