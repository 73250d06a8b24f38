//! The last name that was looked up in a directory.

use blockwright_ondisk::f2fs::{FileKind, Ino};
use blockwright_vfs::locks::{Mutex, Rank};

/// Where an entry is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) ino: Ino,
    pub(crate) kind: Option<FileKind>,
    /// Its block; `None` in the inode.
    pub(crate) block: Option<u64>,
    pub(crate) slot: usize,
    pub(crate) slots: usize,
}

/// The name that was last looked up in a directory, and where it is. The vfs looks a name up just before it is added or
/// removed, under the same lock; the engine then looks again to be sure, in one bucket of every level.
///
/// Set with the directory's `body` held, shared at least. A change of entries holds it exclusively, and forgets the name.
pub(crate) struct LastSought(Mutex<Option<(Vec<u8>, Option<Entry>)>>);

impl Default for LastSought {
    fn default() -> Self {
        LastSought(Mutex::new(Rank::Leaf, None))
    }
}

impl LastSought {
    pub(crate) fn get(&self, name: &[u8]) -> Option<Option<Entry>> {
        let last = self.0.lock();
        let (sought, found) = last.as_ref()?;
        (sought == name).then_some(*found)
    }

    pub(crate) fn set(&self, name: &[u8], found: Option<Entry>) {
        *self.0.lock() = Some((name.to_vec(), found));
    }

    pub(crate) fn forget(&self) {
        *self.0.lock() = None;
    }
}
