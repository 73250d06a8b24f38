//! The in-memory inode: identity, locks, attributes, pages, and the engine's own part.
//!
//! There is at most one `Inode` per number in a mounted volume (the inode cache sees to it), so
//! that its locks mean something.
//!
//! # Locks (see `vfs::locks` for ranks)
//! `lock`: exclusive for namespace changes, attribute changes, truncation and extending writes;
//! shared for lookups, reads and overwrites. `invalidate`: shared while pages are inserted,
//! exclusive while blocks are taken away. `attr` is a leaf.

use crate::page_cache::FilePages;
use crate::types::{Attr, FileKind, Ino};
use parking_lot::{Mutex, RwLock};
use std::any::Any;

/// An inode in memory. Shared as `Arc<Inode>`.
pub struct Inode {
    ino: Ino,
    generation: u32,
    kind: FileKind,
    /// The inode lock.
    pub lock: RwLock<()>,
    /// Truncation and hole punching against page insertion.
    pub invalidate: RwLock<()>,
    attr: Mutex<Attr>,
    /// Cached pages of a regular file, with their writeback state.
    pub pages: FilePages,
    private: Box<dyn Any + Send + Sync>,
}

impl Inode {
    /// An inode with these attributes and the engine's own part.
    #[must_use]
    pub fn new<P: Any + Send + Sync>(attr: Attr, private: P) -> Self {
        Inode {
            ino: attr.ino,
            generation: attr.generation,
            kind: attr.kind,
            lock: RwLock::new(()),
            invalidate: RwLock::new(()),
            attr: Mutex::new(attr),
            pages: FilePages::default(),
            private: Box::new(private),
        }
    }

    /// Its number.
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// Its generation.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    /// A copy of its attributes.
    #[must_use]
    pub fn attr(&self) -> Attr {
        *self.attr.lock()
    }

    /// Its size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.attr.lock().size
    }

    /// Changes attributes in memory. The closure must not block.
    pub fn update_attr<R>(&self, change: impl FnOnce(&mut Attr) -> R) -> R {
        change(&mut self.attr.lock())
    }

    /// The engine's own part.
    ///
    /// # Panics
    /// When `P` is not the type the inode was made with: an inode of one engine was given to another.
    #[must_use]
    pub fn private<P: Any>(&self) -> &P {
        self.private
            .downcast_ref()
            .expect("an inode of another engine")
    }
}

impl std::fmt::Debug for Inode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Inode({} {:?})", self.ino.0, self.kind)
    }
}
