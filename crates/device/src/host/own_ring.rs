//! Device I/O in the ring of a thread that has one of its own.
//!
//! A request to a host device goes to the device's thread, and its completion comes from there: two wake-ups, although
//! the submitting thread may sleep in an io_uring of its own anyhow. Such a thread keeps an [`OwnRing`] and hands its [`RingIntake`]
//! in with its reads and writes ([`Request::ring`]). While the thread runs [`OwnRing::collect`], the device gives these requests to
//! the intake. The thread puts them into its ring with what else it has for the kernel, and passes on what completes: completions
//! then run in this very thread.
//!
//! # What the thread must not do
//! No other thread completes the I/O in its ring. So while [`OwnRing::is_idle`] is false the thread must not wait for
//! anything that may wait for device I/O: a lock that is held over it, another thread's read, the end of a file's direct I/O.
//!
//! # Not taken
//! Flushes, discards, zeroing, requests beyond `parts_max`, requests without an intake, and devices that are no files of the
//! host go the usual way. Synchronous requests never pass here.
//!
//! # Locks
//! The intake's, a leaf, held for a push or to take what was collected.
//!
//! References: io_uring_enter(2).

use super::file::HostFile;
use super::parts::{Finished, Parts};
use crate::request::RingIntake;
use crate::{Op, Request};
use io_uring::squeue;
use parking_lot::Mutex;
use std::sync::Arc;

type Requests = Vec<(Arc<HostFile>, Request)>;

/// The state behind a [`RingIntake`].
#[derive(Default)]
struct Intake {
    requests: Requests,
    /// How many more it takes; none, unless the thread collects.
    room: usize,
}

/// Gives a request to the ring that it came with, if its thread collects. Otherwise the request comes back.
pub(super) fn offer(file: &Arc<HostFile>, mut request: Request) -> Result<(), Request> {
    let Some(Ok(intake)) = request
        .ring
        .take()
        .map(RingIntake::downcast::<Mutex<Intake>>)
    else {
        return Err(request);
    };
    let mut intake = intake.lock();
    if intake.room == 0 || !matches!(request.op, Op::Read(_) | Op::Write(_)) {
        return Err(request);
    }
    intake.room -= 1;
    file.monitor.note_queued(intake.requests.len() + 1);
    intake.requests.push((Arc::clone(file), request));
    Ok(())
}

/// See the module's head.
pub struct OwnRing {
    intake: Arc<Mutex<Intake>>,
    parts: Parts,
    parts_max: usize,
    taken: u64,
    /// Requests that needed no entry. Their completions are still to be called.
    finished: Vec<Finished>,
    /// Empty; swapped with the intake's requests, to keep its memory.
    spare: Requests,
}

impl OwnRing {
    /// A ring that has room for `parts_max` entries of the device's, beside its own.
    #[must_use]
    pub fn new(parts_max: usize) -> Self {
        OwnRing {
            intake: Arc::default(),
            parts: Parts::default(),
            parts_max,
            taken: 0,
            finished: Vec::new(),
            spare: Vec::new(),
        }
    }

    /// How this thread's requests are submitted.
    #[must_use]
    pub fn intake(&self) -> RingIntake {
        RingIntake::new(self.intake.clone())
    }

    /// Does something; the reads and writes that are submitted meanwhile with this ring's intake are collected.
    /// [`OwnRing::next_entry`] returns them.
    pub fn collect<R>(&mut self, job: impl FnOnce() -> R) -> R {
        /// Ends the collecting, also when the job panics: what was submitted is still carried out.
        struct Ending<'a>(&'a mut OwnRing);
        impl Drop for Ending<'_> {
            fn drop(&mut self) {
                let OwnRing {
                    intake,
                    parts,
                    taken,
                    finished,
                    spare,
                    ..
                } = &mut *self.0;
                {
                    let mut intake = intake.lock();
                    intake.room = 0;
                    std::mem::swap(&mut intake.requests, spare);
                }
                *taken += spare.len() as u64;
                for (file, request) in spare.drain(..) {
                    finished.extend(parts.begin(request, &file));
                }
            }
        }
        let used = self.parts.in_flight() + self.parts.waiting();
        self.intake.lock().room = self.parts_max.saturating_sub(used);
        let _ending = Ending(self);
        job()
    }

    /// The next entry for the ring, as long as there is room for it. The caller must pass its `user_data`, below
    /// 2³², to [`OwnRing::completed`].
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

    /// Whether [`OwnRing::tell_finished`] has something to do.
    #[must_use]
    pub fn has_finished(&self) -> bool {
        !self.finished.is_empty()
    }

    /// Calls the completions of requests that needed no entry.
    pub fn tell_finished(&mut self) {
        self.finished.drain(..).for_each(Finished::tell);
    }

    /// How many requests were collected so far.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// No request is in progress here.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.parts.requests() == 0 && self.finished.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::Scratch;
    use super::*;
    use crate::{
        AlignedBuf, BlockDevice, DevOffset, DeviceErrorKind, Geometry, HostDevice, SharedDevice,
        conformance,
    };
    use io_uring::IoUring;
    use std::cell::Cell;
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
    use std::thread::ThreadId;

    const PARTS_MAX: usize = 2;

    /// Does something, and carries out in a ring of this thread's what it submits with that ring's intake. Returns how many requests
    /// that were.
    fn ride(job: impl FnOnce(&RingIntake)) -> u64 {
        let mut kernel = IoUring::new(PARTS_MAX as u32).expect("was asked for before");
        let mut own = OwnRing::new(PARTS_MAX);
        let intake = own.intake();
        let job = || own.collect(|| job(&intake));
        // Requests that were submitted before a panic are carried out, too.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
        while !own.is_idle() {
            own.tell_finished();
            if own.is_idle() {
                break;
            }
            let mut waits = false;
            // SAFETY: `own` lives until all of it has completed.
            while let Some(entry) = unsafe { own.next_entry() } {
                // SAFETY: as above.
                unsafe { kernel.submission().push(&entry) }.expect("there is room");
                waits = true;
            }
            assert!(waits || own.parts.in_flight() > 0, "nothing to wait for");
            kernel.submit_and_wait(1).expect("submits");
            let completed: Vec<_> = kernel.completion().collect();
            for entry in completed {
                // SAFETY: each completion once.
                unsafe { own.completed(entry.user_data(), entry.result()) };
            }
        }
        own.taken()
    }

    /// A device whose submitted requests all go through rings of their submitters' own.
    struct Riding {
        inner: SharedDevice,
        taken: AtomicU64,
    }

    impl BlockDevice for Riding {
        fn geometry(&self) -> Geometry {
            self.inner.geometry()
        }
        fn submit(&self, mut request: Request) {
            let taken = ride(|ring| {
                request.ring = Some(ring.clone());
                self.inner.submit(request);
            });
            self.taken.fetch_add(taken, Ordering::Relaxed);
        }
        fn name(&self) -> String {
            self.inner.name()
        }
    }

    fn device(bytes: u64) -> Option<(Scratch, SharedDevice)> {
        if IoUring::new(2).is_err() {
            blockwright_oracles::leave("this host does not permit io_uring");
            return None;
        }
        let path = Scratch::new();
        let device = HostDevice::create(&path.0, bytes).unwrap();
        Some((path, device))
    }

    #[test]
    fn a_ring_of_ones_own_conforms() {
        let Some((_path, inner)) = device(conformance::BYTES_MIN) else {
            return;
        };
        let riding = Arc::new(Riding {
            inner,
            taken: AtomicU64::new(0),
        });
        let shared: SharedDevice = riding.clone();
        conformance::run(&shared, 12);
        assert!(riding.taken.load(Ordering::Relaxed) > 0);
    }

    thread_local! {
        static DONE_HERE: Cell<usize> = const { Cell::new(0) };
    }

    fn write(
        device: &SharedDevice,
        ring: &RingIntake,
        page: u64,
        then: impl FnOnce() + Send + 'static,
    ) {
        let slices = vec![AlignedBuf::copy_of(&[page as u8 + 1; 4096]).into()];
        let at = DevOffset(page * 4096);
        let mut request = Request::new(Op::Write(slices), at, move |done| {
            done.result.expect("writes");
            then();
        });
        request.ring = Some(ring.clone());
        device.submit(request);
    }

    #[test]
    fn what_has_no_room_and_what_is_submitted_later_goes_the_usual_way() {
        let Some((_path, device)) = device(1 << 20) else {
            return;
        };
        let elsewhere = Arc::new(AtomicUsize::new(0));
        let me: ThreadId = std::thread::current().id();
        let note = |elsewhere: &Arc<AtomicUsize>| {
            let elsewhere = Arc::clone(elsewhere);
            move || {
                if std::thread::current().id() == me {
                    DONE_HERE.set(DONE_HERE.get() + 1);
                } else {
                    elsewhere.fetch_add(1, Ordering::Relaxed);
                }
            }
        };
        let taken = ride(|ring| {
            for page in 0..4 {
                let (note_this, note_next) = (note(&elsewhere), note(&elsewhere));
                let (again, later) = (Arc::clone(&device), ring.clone());
                write(&device, ring, page, move || {
                    note_this();
                    // The thread does not collect any more.
                    write(&again, &later, page + 8, note_next);
                });
            }
        });
        assert_eq!((taken, DONE_HERE.get()), (2, 2));
        // Waits for the rest.
        drop(device);
        let limit = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while elsewhere.load(Ordering::Relaxed) < 6 && std::time::Instant::now() < limit {
            std::thread::yield_now();
        }
        assert_eq!(elsewhere.load(Ordering::Relaxed), 6);
    }

    #[test]
    fn a_panic_loses_nothing_and_errors_arrive() {
        let Some((path, device)) = device(1 << 20) else {
            return;
        };
        let told = Arc::new(AtomicUsize::new(0));
        let tell = Arc::clone(&told);
        ride(|ring| {
            write(&device, ring, 3, move || {
                tell.fetch_add(1, Ordering::Relaxed);
            });
            panic!("expected by the test");
        });
        assert_eq!(told.load(Ordering::Relaxed), 1);
        let mut page = [0; 4096];
        device.read_at(DevOffset(3 * 4096), &mut page).unwrap();
        assert_eq!(page, [4; 4096]);
        // The file loses its end.
        let file = std::fs::File::options().write(true).open(&path.0).unwrap();
        file.set_len(8192).unwrap();
        let tell = Arc::clone(&told);
        ride(|ring| {
            let buf = AlignedBuf::zeroed(8192);
            let mut request = Request::new(Op::Read(buf), DevOffset(4096), move |done| {
                let kind = done.result.expect_err("there is less").kind;
                assert_eq!(kind, DeviceErrorKind::Short { transferred: 4096 });
                tell.fetch_add(1, Ordering::Relaxed);
            });
            request.ring = Some(ring.clone());
            device.submit(request);
        });
        assert_eq!(told.load(Ordering::Relaxed), 2);
    }
}
