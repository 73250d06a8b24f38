//! No page in the kernel's cache is older than a direct write that was acknowledged.
//!
//! The kernel drops cached pages before it sends a direct WRITE, and after it only when the writer waits in the system call: not for
//! `libaio` and `io_uring`. A READ that it sends in between, before the WRITE or during it, leaves old bytes in its cache. Having READs wait
//! for the WRITEs in flight does not suffice, because the server cannot see a WRITE that the kernel has prepared and not sent. So READs that
//! fill the kernel's cache are noted ([`FrontPages`]), and the pages that they may have brought are dropped when a direct WRITE has
//! completed, before it is answered. After its write has returned, a program finds no older data, neither by `read` nor by `mmap`.
//!
//! # Waiting
//! The kernel drops a page when it has its lock, which a READ on its way and the writeback of a dirty page hold. A queue's thread never
//! drops pages: a READ may be in its own queue. WRITEs that the kernel sends with locked pages (`writethrough`) have no lock owner;
//! nothing is dropped for these.
//!
//! The kernel limits the requests in flight. A READ that it has prepared, with its pages locked, may have to wait until a WRITE is
//! answered that waits here for these very pages. Such a READ brings what the WRITE has written, so the WRITE need not wait for it: a
//! WRITE whose drop has been waiting inside the kernel for [`PATIENCE`] is answered when the server holds no READ of its range that began
//! before the WRITE completed. The drop continues.
//!
//! [`FrontPages`]: blockwright_vfs::FrontPages

use super::{Dispatcher, Processed};
use crate::connection::{Notifier, ReplySink};
use crate::protocol::flags::WriteFlags;
use crate::threads::Threads;
use blockwright_vfs::{Fill, FrontPages, Inode};
use parking_lot::Mutex;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a WRITE waits at least for a page that is locked.
const PATIENCE: Duration = Duration::from_millis(30);

/// A direct WRITE in flight, as far as its completion needs it. Holds no reference to the file, so it may be dropped anywhere.
pub(super) struct DirectWrite {
    pages: Arc<FrontPages>,
    nodeid: u64,
    range: Range<u64>,
}

type Then = Box<dyn FnOnce() + Send>;

/// A drop that has begun.
struct Running {
    written: DirectWrite,
    /// READs that begin from here on see what was written.
    fresh: Fill,
    thread: i32,
    since: Instant,
    /// Answers the WRITE, once.
    then: Mutex<Option<Then>>,
}

impl Running {
    fn answer(&self) {
        let then = self.then.lock().take();
        if let Some(then) = then {
            let _ = catch_unwind(AssertUnwindSafe(then));
        }
    }

    /// Whether the pages that are not yet dropped can only be locked for a READ that brings what was written. Its thread has to wait
    /// inside the kernel, as far as that can be seen.
    fn is_fresh(&self) -> bool {
        let DirectWrite { pages, range, .. } = &self.written;
        if pages.is_filling_since_before(self.fresh, range) {
            return false;
        }
        let path = format!("/proc/self/task/{}/stat", self.thread);
        std::fs::read_to_string(path)
            .ok()
            .and_then(|stat| Some(stat.rsplit_once(") ")?.1.starts_with('D')))
            .unwrap_or(true)
    }
}

#[derive(Default)]
struct Begun {
    running: Vec<Arc<Running>>,
    /// A thread looks after them.
    watched: bool,
}

/// The drops that are under way. Each occupies a thread of the pool, which may wait for a READ.
pub(super) struct Drops {
    threads: Arc<Threads>,
    begun: Arc<Mutex<Begun>>,
}

impl Drops {
    pub(super) fn new(threads: &Arc<Threads>) -> Self {
        Drops {
            threads: Arc::clone(threads),
            begun: Arc::default(),
        }
    }

    /// Drops the pages that `range` has of the file, and answers then.
    fn add(
        &self,
        written: DirectWrite,
        range: Range<u64>,
        notifier: Arc<dyn Notifier>,
        then: Then,
    ) {
        let begun = Arc::clone(&self.begun);
        let fresh = written.pages.next_fill();
        self.threads.run_blocked(move || {
            let me = Arc::new(Running {
                written,
                fresh,
                thread: rustix::thread::gettid().as_raw_nonzero().get(),
                since: Instant::now(),
                then: Mutex::new(Some(then)),
            });
            {
                let mut list = begun.lock();
                list.running.push(Arc::clone(&me));
                if !list.watched {
                    list.watched = Self::watch(&begun);
                }
            }
            // When the connection has ended, there is no cache any more.
            let _ = notifier.drop_cached_range(me.written.nodeid, range.clone());
            me.written.pages.end_drop(&range);
            me.answer();
            begun.lock().running.retain(|r| !Arc::ptr_eq(r, &me));
        });
    }

    /// Has a thread look after what has begun, until all is done. Whether there is one.
    fn watch(begun: &Arc<Mutex<Begun>>) -> bool {
        let begun = Arc::clone(begun);
        std::thread::Builder::new()
            .name("fuse-drops".to_owned())
            .spawn(move || {
                loop {
                    std::thread::sleep(PATIENCE / 2);
                    let mut list = begun.lock();
                    if list.running.is_empty() {
                        list.watched = false;
                        return;
                    }
                    let late = |r: &&Arc<Running>| r.since.elapsed() > PATIENCE;
                    let late: Vec<_> = list.running.iter().filter(late).cloned().collect();
                    drop(list);
                    late.iter()
                        .filter(|r| r.is_fresh())
                        .for_each(|r| r.answer());
                }
            })
            .is_ok()
    }
}

impl Dispatcher {
    /// A direct WRITE begins.
    pub(super) fn direct_write(inode: &Inode, nodeid: u64, range: Range<u64>) -> DirectWrite {
        DirectWrite {
            pages: Arc::clone(inode.front_pages_for_write()),
            nodeid,
            range,
        }
    }

    /// A direct WRITE has completed or failed, so the file may hold other bytes: drops the pages that the kernel has of them, and answers
    /// then. Waits for nothing.
    pub(super) fn finish_direct_write<S: ReplySink + Send + 'static>(
        self: &Arc<Self>,
        written: DirectWrite,
        processed: Processed,
        sink: S,
    ) {
        let (Some(notifier), Some(range)) = (
            self.notifier.get(),
            written.pages.begin_drop(&written.range),
        ) else {
            return self.finish(processed, sink);
        };
        let me = Arc::clone(self);
        let then = Box::new(move || me.finish(processed, sink));
        self.drops.add(written, range, Arc::clone(notifier), then);
    }

    /// As [`Dispatcher::finish_direct_write`], in a thread that may wait for the kernel.
    pub(super) fn drop_stale_pages(&self, written: &DirectWrite) {
        if let Some(notifier) = self.notifier.get()
            && let Some(range) = written.pages.begin_drop(&written.range)
        {
            let _ = (self.threads)
                .while_blocked(|| notifier.drop_cached_range(written.nodeid, range.clone()));
            written.pages.end_drop(&range);
        }
    }
}

/// Whether a WRITE goes past the kernel's cache.
pub(super) fn is_past_cache(flags: WriteFlags) -> bool {
    flags.contains(WriteFlags::LOCKOWNER) && !flags.contains(WriteFlags::CACHE)
}
