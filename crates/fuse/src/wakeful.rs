//! Idle CPUs kept awake while many requests come.
//!
//! A program that works in a mount waits for every reply, and its CPU or the server's is idle meanwhile. Waking a CPU
//! that sleeps costs more than the whole request, most of all in a virtual machine, where sleeping means leaving
//! it: a byte through a pipe and back took 49 µs on the machine that docs/BENCHMARKS.md tells of, and 6 µs with CPUs that
//! poll. The kernel lets a process ask for that by the CPU latency it can bear, in
//! microseconds: 0 means that idle CPUs poll for work. The wish holds for the whole machine, while the file is open.
//!
//! So it is asked for only while requests come in quick succession, and taken back a twentieth of a second after: a volume
//! that rests costs nothing. Only root may ask, unless the file's mode was changed.
//!
//! # Locks
//! `state`, a leaf; the wish is written under it.
//!
//! Reference: the kernel's Documentation/power/pm_qos_interface.rst.

use blockwright_vfs::{Stats, Unit};
use parking_lot::{Condvar, Mutex};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Where the wish is told.
pub(crate) const DEVICE: &str = "/dev/cpu_dma_latency";
/// The latency (µs) that everybody can bear: what the kernel assumes of those who do not ask.
const ANY_US: i32 = 2_000_000_000;
/// Time is looked at once for so many requests.
const GROUP: u64 = 16;
/// So many requests in no more than this are many.
const GROUP_MAX: Duration = Duration::from_millis(4);
/// How often it is looked whether they still come. Long enough for what lies between two small files: a large one.
const TICK: Duration = Duration::from_millis(50);
/// Fewer requests between two looks are few.
const FEW: u64 = 32;

#[derive(Default)]
struct State {
    held: bool,
    ended: bool,
}

struct Shared {
    file: File,
    born: Instant,
    requests: AtomicU64,
    /// When the last group was complete, in ns since `born`.
    group_ns: AtomicU64,
    /// What `state` says, for those who only want to know whether to look.
    held: AtomicBool,
    /// How often it was asked for.
    times: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
}

/// See the module's head. Dropped, it takes back what it asked for.
pub(crate) struct Wakeful {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Wakeful {
    /// Opens the device.
    ///
    /// # Errors
    /// When there is none, or this user may not ask.
    pub(crate) fn open() -> io::Result<File> {
        Self::open_at(Path::new(DEVICE))
    }

    fn open_at(path: &Path) -> io::Result<File> {
        let file = OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_CLOEXEC)
            .open(path)?;
        // An open file without a wish counts as one for 0.
        file.write_all_at(&ANY_US.to_ne_bytes(), 0)?;
        Ok(file)
    }

    #[cfg(test)]
    fn at(path: &Path) -> io::Result<Self> {
        Self::on(Self::open_at(path)?)
    }

    /// Wishes by this file of [`Wakeful::open`]'s.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(crate) fn on(file: File) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            file,
            born: Instant::now(),
            requests: AtomicU64::new(0),
            group_ns: AtomicU64::new(0),
            held: AtomicBool::new(false),
            times: AtomicU64::new(0),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let mine = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("fuse-wakeful".to_owned())
            .spawn(move || mine.watch())?;
        Ok(Wakeful {
            shared,
            thread: Some(thread),
        })
    }

    /// A request has come.
    pub(crate) fn request(&self) {
        self.shared.request();
    }

    /// Whether idle CPUs are kept awake now.
    pub(crate) fn is_held(&self) -> bool {
        self.shared.held.load(Ordering::Relaxed)
    }

    /// Adds what there is to a snapshot.
    pub(crate) fn stats(&self, out: &mut Stats) {
        out.gauge(
            "fuse_wakeful",
            Unit::Count,
            "1 while idle CPUs are kept from sleeping (cpu_latency=auto)",
            u64::from(self.shared.held.load(Ordering::Relaxed)),
        );
        out.counter(
            "fuse_wakeful_times",
            Unit::Count,
            "how often that was asked for",
            self.shared.times.load(Ordering::Relaxed),
        );
    }
}

impl Drop for Wakeful {
    fn drop(&mut self) {
        self.shared.state.lock().ended = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn tell(&self, latency_us: i32) -> io::Result<()> {
        self.file.write_all_at(&latency_us.to_ne_bytes(), 0)
    }

    fn request(&self) {
        let count = self.requests.fetch_add(1, Ordering::Relaxed) + 1;
        if !count.is_multiple_of(GROUP) {
            return;
        }
        // Wraps after 584 years.
        let now = self.born.elapsed().as_nanos() as u64;
        let before = self.group_ns.swap(now, Ordering::Relaxed);
        let quick = now.saturating_sub(before) < GROUP_MAX.as_nanos() as u64;
        if quick && !self.held.load(Ordering::Relaxed) {
            self.hold();
        }
    }

    fn hold(&self) {
        let mut state = self.state.lock();
        // Should the kernel refuse, requests are as slow as they were.
        if !state.held && !state.ended && self.tell(0).is_ok() {
            state.held = true;
            self.held.store(true, Ordering::Relaxed);
            self.times.fetch_add(1, Ordering::Relaxed);
            self.changed.notify_all();
        }
    }

    /// Takes the wish back when requests have become few.
    fn watch(&self) {
        let mut state = self.state.lock();
        while !state.ended {
            if !state.held {
                self.changed.wait(&mut state);
                continue;
            }
            let seen = self.requests.load(Ordering::Relaxed);
            let deadline = Instant::now() + TICK;
            while !state.ended && !self.changed.wait_until(&mut state, deadline).timed_out() {}
            let come = self.requests.load(Ordering::Relaxed).wrapping_sub(seen);
            if come < FEW || state.ended {
                // A wish that cannot be taken back ends with the file.
                let _ = self.tell(ANY_US);
                state.held = false;
                self.held.store(false, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(path: &Path) -> i32 {
        let bytes = std::fs::read(path).unwrap();
        i32::from_ne_bytes(bytes.try_into().unwrap())
    }

    fn becomes(path: &Path, value: i32) -> bool {
        (0..2000).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            wish(path) == value
        })
    }

    #[test]
    fn asked_for_while_requests_come_in_quick_succession() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let wakeful = Wakeful::at(file.path()).unwrap();
        assert_eq!(wish(file.path()), ANY_US, "nothing is asked for at first");
        for _ in 0..GROUP - 1 {
            wakeful.request();
        }
        assert_eq!(wish(file.path()), ANY_US, "a few requests are no reason");
        // On a busy machine a group may take longer than it should: there are many.
        let held = (0..100_000).any(|_| {
            wakeful.request();
            wakeful.shared.held.load(Ordering::Relaxed)
        });
        assert!(held);
        assert!(wakeful.shared.times.load(Ordering::Relaxed) >= 1);
        assert!(becomes(file.path(), ANY_US), "taken back when none come");
        assert!(!wakeful.shared.held.load(Ordering::Relaxed));
    }

    #[test]
    fn asked_for_again_and_taken_back_by_the_end() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let wakeful = Wakeful::at(file.path()).unwrap();
        for round in 1..=2 {
            while wakeful.shared.times.load(Ordering::Relaxed) < round {
                wakeful.request();
            }
            if round == 1 {
                assert!(becomes(file.path(), ANY_US));
            }
        }
        drop(wakeful);
        assert_eq!(wish(file.path()), ANY_US);
    }

    #[test]
    fn who_may_not_ask_is_told() {
        assert!(Wakeful::at(Path::new("/nonexistent/latency")).is_err());
    }
}
