//! The in-memory inode: identity, locks, attributes, pages, and the engine's own part.
//!
//! There is at most one `Inode` per number in a mounted volume (the inode cache sees to it), so
//! that its locks mean something.
//!
//! # Locks (see `vfs::locks` for ranks)
//! `lock`: exclusive for namespace changes, attribute changes, truncation and extending writes;
//! shared for lookups, reads and overwrites. `invalidate`: shared while pages are inserted,
//! exclusive while blocks are taken away. `attr` is a leaf.

pub mod acl;
pub(crate) mod attributes;
pub(crate) mod cache;
pub(crate) mod holds;
pub mod permissions;
pub(crate) mod times;

use crate::cache::budget::{Reclaim, Tag};
use crate::cache::extent_cache::ExtentCache;
use crate::cache::front_pages::FrontPages;
use crate::cache::page_cache::FilePages;
use crate::inode::acl::Acl;
use crate::locks::{Mutex, Rank, RwLock};
use crate::types::{Attr, FileKind, Ino};
use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

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
    /// Where direct overwrites go without asking the engine.
    pub(crate) extent_cache: ExtentCache,
    /// Where direct reads find data without asking the engine.
    pub(crate) placed: ExtentCache,
    /// Which pages a front end's own cache may hold, once something was written past it.
    front_pages: OnceLock<Arc<FrontPages>>,
    pub(crate) acls: Mutex<AclCache>,
    /// Known to have no `security.capability`, so that a write need not look.
    pub(crate) no_capability: AtomicBool,
    /// Since when the in-memory times differ from what was given to the engine: milliseconds
    /// of the volume's clock plus one; 0 when they do not.
    lazy_since: AtomicU64,
    private: Box<dyn Any + Send + Sync>,
}

/// What is known of an inode's ACLs. `None`: not looked up yet.
#[derive(Default)]
pub(crate) struct AclCache {
    pub(crate) access: Option<Option<Arc<Acl>>>,
    pub(crate) default: Option<Option<Arc<Acl>>>,
}

impl Inode {
    /// An inode with these attributes and the engine's own part.
    #[must_use]
    pub fn new<P: Any + Send + Sync>(attr: Attr, private: P) -> Self {
        Inode {
            ino: attr.ino,
            generation: attr.generation,
            kind: attr.kind,
            lock: RwLock::new(Rank::Inode, ()),
            invalidate: RwLock::new(Rank::Invalidate, ()),
            attr: Mutex::new(Rank::Leaf, attr),
            pages: FilePages::default(),
            extent_cache: ExtentCache::default(),
            placed: ExtentCache::default(),
            front_pages: OnceLock::new(),
            acls: Mutex::new(Rank::Leaf, AclCache::default()),
            no_capability: AtomicBool::new(false),
            lazy_since: AtomicU64::new(0),
            private: Box::new(private),
        }
    }

    /// Its number.
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// Ranges that a front end's cache may hold, if a write went past it.
    #[must_use]
    pub fn front_pages(&self) -> Option<&Arc<FrontPages>> {
        self.front_pages.get()
    }

    /// Ranges that a front end's cache may hold, for a write that goes past it.
    pub fn front_pages_for_write(&self) -> &Arc<FrontPages> {
        self.front_pages.get_or_init(Arc::default)
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

    /// Takes one from the count of names, in memory. A directory has one name, so none is left. Returns how many names are left.
    pub fn count_name_removed(&self, now: crate::types::Timestamp) -> u32 {
        self.update_attr(|a| {
            a.ctime = now;
            a.nlink = match a.kind {
                crate::types::FileKind::Directory => 0,
                _ => a.nlink.saturating_sub(1),
            };
            a.nlink
        })
    }

    /// Whether something of this inode is in memory only: dirty pages or lazy times.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.lazy_since().is_some() || self.pages.is_dirty()
    }

    /// Since when times are lazily dirty, in milliseconds of the volume's clock.
    pub(crate) fn lazy_since(&self) -> Option<u64> {
        self.lazy_since.load(Ordering::Acquire).checked_sub(1)
    }

    /// Whether times are lazily dirty. A thread that has just changed them and finds the mark need not set it: the thread that clears the mark reads them
    /// after that.
    pub(crate) fn is_lazy(&self) -> bool {
        self.lazy_since.load(Ordering::SeqCst) != 0
    }

    /// Notes that times were changed in memory only. Whether they were clean before.
    pub(crate) fn set_lazy(&self, now_ms: u64) -> bool {
        self.lazy_since
            .compare_exchange(0, now_ms + 1, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Notes that the times are about to be given to the engine. Whether they were dirty.
    pub(crate) fn take_lazy(&self) -> bool {
        self.lazy_since.swap(0, Ordering::SeqCst) != 0
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

impl Reclaim for Inode {
    fn reclaim(&self, tags: &[Arc<Tag>], kept: &mut Vec<Weak<Tag>>) -> u64 {
        self.pages.reclaim(tags, kept)
    }
}

impl std::fmt::Debug for Inode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Inode({} {:?})", self.ino.0, self.kind)
    }
}
