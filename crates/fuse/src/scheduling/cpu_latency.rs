//! Keeps idle CPUs awake while many requests come.
//!
//! A program that works in a mount waits for every reply, and its CPU or the server's is idle meanwhile. Waking a sleeping CPU
//! costs more than the whole request, most of all in a virtual machine, where sleeping leaves the guest: a byte through a
//! pipe and back took 49 µs on one such machine, and 6 µs with polling CPUs. The kernel lets a process request a CPU latency in
//! microseconds. With 0, idle CPUs poll for work. The request holds for the whole machine, while the file is open.
//!
//! So the latency is requested only while requests come in quick succession, and given up 50 ms later: a mount at rest costs
//! nothing. Only root may request it, unless the file's mode was changed.
//!
//! # Locks
//! `state`, a leaf; the file is written under it.
//!
//! Reference: the kernel's Documentation/power/pm_qos_interface.rst.

use super::limits::{LATENCY_FEW, LATENCY_GROUP, LATENCY_GROUP_MAX, LATENCY_TICK};
use blockwright_vfs::Stats;
use parking_lot::{Condvar, Mutex};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

/// The kernel's file for latency requests.
pub(crate) const DEVICE: &str = "/dev/cpu_dma_latency";
/// The latency (µs) that the kernel assumes where none is requested.
const ANY_US: i32 = 2_000_000_000;

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
    /// A copy of `state.held` that is read without the lock.
    held: AtomicBool,
    /// How often it was asked for.
    times: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
}

/// See the module's head. Dropped, it gives up its request.
pub(crate) struct LatencyRequest {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl LatencyRequest {
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
        // The kernel takes an open file that was not written to for a request of 0.
        file.write_all_at(&ANY_US.to_ne_bytes(), 0)?;
        Ok(file)
    }

    #[cfg(test)]
    fn at(path: &Path) -> io::Result<Self> {
        Self::on(Self::open_at(path)?)
    }

    /// Requests latencies through this file of [`LatencyRequest::open`]'s.
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
            .name("fuse-latency".to_owned())
            .spawn(move || mine.watch())?;
        Ok(LatencyRequest {
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
        blockwright_vfs::stat_lines! { out;
            gauge "fuse_cpu_latency", Count, "1 while idle CPUs are kept from sleeping (cpu_latency=auto)"
                => u64::from(self.shared.held.load(Ordering::Relaxed));
            counter "fuse_cpu_latency_requests", Count, "how often that was requested" => self.shared.times.load(Ordering::Relaxed);
        }
    }
}

impl Drop for LatencyRequest {
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
        if !count.is_multiple_of(LATENCY_GROUP) {
            return;
        }
        // Wraps after 584 years.
        let now = self.born.elapsed().as_nanos() as u64;
        let before = self.group_ns.swap(now, Ordering::Relaxed);
        let quick = now.saturating_sub(before) < LATENCY_GROUP_MAX.as_nanos() as u64;
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

    /// Gives the request up when requests have become few.
    fn watch(&self) {
        let mut state = self.state.lock();
        while !state.ended {
            if !state.held {
                self.changed.wait(&mut state);
                continue;
            }
            let seen = self.requests.load(Ordering::Relaxed);
            let deadline = Instant::now() + LATENCY_TICK;
            while !state.ended && !self.changed.wait_until(&mut state, deadline).timed_out() {}
            let come = self.requests.load(Ordering::Relaxed).wrapping_sub(seen);
            if come < LATENCY_FEW || state.ended {
                // A request that cannot be given up ends with the file.
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
    use std::time::Duration;

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
        let latency = LatencyRequest::at(file.path()).unwrap();
        assert_eq!(wish(file.path()), ANY_US, "nothing is asked for at first");
        for _ in 0..LATENCY_GROUP - 1 {
            latency.request();
        }
        assert_eq!(wish(file.path()), ANY_US, "a few requests are no reason");
        // On a busy machine a group may take longer than it should: there are many.
        let held = (0..100_000).any(|_| {
            latency.request();
            latency.shared.held.load(Ordering::Relaxed)
        });
        assert!(held);
        assert!(latency.shared.times.load(Ordering::Relaxed) >= 1);
        assert!(becomes(file.path(), ANY_US), "taken back when none come");
        assert!(!latency.shared.held.load(Ordering::Relaxed));
    }

    #[test]
    fn asked_for_again_and_taken_back_by_the_end() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let latency = LatencyRequest::at(file.path()).unwrap();
        for round in 1..=2 {
            while latency.shared.times.load(Ordering::Relaxed) < round {
                latency.request();
            }
            if round == 1 {
                assert!(becomes(file.path(), ANY_US));
            }
        }
        drop(latency);
        assert_eq!(wish(file.path()), ANY_US);
    }

    #[test]
    fn who_may_not_ask_is_told() {
        assert!(LatencyRequest::at(Path::new("/nonexistent/latency")).is_err());
    }
}
