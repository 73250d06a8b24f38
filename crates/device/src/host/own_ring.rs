//! Device I/O in the ring of a thread that has one of its own.
//!
//! A request to a host device goes to the device's thread, and its completion comes from there: two wake-ups, when
//! whoever submits sleeps in an io_uring of its own anyhow. Such a thread keeps an [`OwnRing`], and while it runs
//! [`OwnRing::collect`] the reads and writes that it submits stay here. It puts them into its ring with what else it has for the
//! kernel, and passes on what completes: completions then run in this very thread.
//!
//! # What the thread must not do
//! Nobody else brings the I/O in its ring to an end. So while [`OwnRing::is_idle`] is false the thread must not wait for
//! anything that may wait for device I/O: a lock that is held over it, a read by somebody else, the end of a file's direct I/O.
//!
//! # Not taken
//! Flushes, discards, zeroing, requests beyond `parts_max`, what completions submit, and devices that are no files of the
//! host go the usual way. Synchronous requests never pass here.
//!
//! References: io_uring_enter(2).

use super::file::HostFile;
use super::parts::Parts;
use crate::{Op, Request};
use io_uring::squeue;
use std::cell::RefCell;
use std::sync::Arc;

/// Requests that a thread collects.
struct Collected {
    requests: Vec<(Arc<HostFile>, Request)>,
    /// How many more it takes.
    room: usize,
}

thread_local! {
    static COLLECTED: RefCell<Option<Collected>> = const { RefCell::new(None) };
}

/// Gives a request to the calling thread's own ring, if it collects. Otherwise the request comes back.
pub(super) fn offer(file: &Arc<HostFile>, request: Request) -> Result<(), Request> {
    if !matches!(request.op, Op::Read(_) | Op::Write(_)) {
        return Err(request);
    }
    COLLECTED.with_borrow_mut(|collected| match collected {
        Some(collected) if collected.room > 0 => {
            collected.room -= 1;
            file.monitor.note_queued(collected.requests.len() + 1);
            collected.requests.push((Arc::clone(file), request));
            Ok(())
        }
        _ => Err(request),
    })
}

/// See the module's head.
pub struct OwnRing {
    parts: Parts,
    parts_max: usize,
    taken: u64,
    /// Empty between two calls of `collect`; kept for its memory.
    spare: Vec<(Arc<HostFile>, Request)>,
}

impl OwnRing {
    /// A ring that has room for `parts_max` entries of the device's, beside its own.
    #[must_use]
    pub fn new(parts_max: usize) -> Self {
        OwnRing {
            parts: Parts::default(),
            parts_max,
            taken: 0,
            spare: Vec::new(),
        }
    }

    /// Does something; the reads and writes that it submits are collected, to be had from [`OwnRing::next_entry`].
    pub fn collect<R>(&mut self, job: impl FnOnce() -> R) -> R {
        /// Ends the collecting, also when the job panics: what was submitted is still carried out.
        struct Ending<'a>(&'a mut OwnRing);
        impl Drop for Ending<'_> {
            fn drop(&mut self) {
                let Some(mut collected) = COLLECTED.take() else {
                    return;
                };
                self.0.taken += collected.requests.len() as u64;
                for (file, request) in collected.requests.drain(..) {
                    // One without bytes is complete at once.
                    if let Some(finished) = self.0.parts.begin(request, &file) {
                        finished.tell();
                    }
                }
                self.0.spare = collected.requests;
            }
        }
        let used = self.parts.in_flight() + self.parts.waiting();
        COLLECTED.set(Some(Collected {
            requests: std::mem::take(&mut self.spare),
            room: self.parts_max.saturating_sub(used),
        }));
        let _ending = Ending(self);
        job()
    }

    /// The next entry for the ring, as long as there is room for it. Its `user_data`, below 2³², is to be told to
    /// [`OwnRing::completed`].
    ///
    /// # Safety
    /// The entry must be submitted by the ring of this thread, or never. It points to memory that belongs to `self`, which must
    /// live until the entry has completed; to be dropped before that ends the process.
    pub unsafe fn next_entry(&mut self) -> Option<squeue::Entry> {
        if self.parts.in_flight() >= self.parts_max {
            return None;
        }
        self.parts.next_entry()
    }

    /// An entry has completed with this result. Calls the request's completion, if that was all of it; what is left of it
    /// otherwise is among the next entries.
    ///
    /// # Safety
    /// `user_data` and `result` are those of the completion of an entry from [`OwnRing::next_entry`], passed on for the first time.
    pub unsafe fn completed(&mut self, user_data: u64, result: i32) {
        if let Some(finished) = self.parts.done(user_data as usize, result) {
            finished.tell();
        }
    }

    /// How many requests were collected so far.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// No request is in work here.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.parts.requests() == 0
    }
}
