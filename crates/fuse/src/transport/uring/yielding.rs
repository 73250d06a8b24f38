//! Whether a queue's thread yields its CPU to everybody else.
//!
//! A reply wakes the client while the queue's thread still runs on the client's CPU. The scheduler then looks for an idle
//! CPU for the client, and on a machine that has one the client moves, request after request, and every move
//! wakes a CPU that sleeps, which costs more than the request. A CPU on which nothing but threads of class
//! SCHED_IDLE runs counts as idle: there the client stays.
//!
//! But such a thread starves beside any busy process, perhaps with an engine's lock in its hands. So it is of
//! this class only while the machine has fewer runnable threads than CPUs (looked at once a second at most, while requests
//! come), with a short time slice, which bounds how long a busy process keeps it away; and when it had to wait for its
//! CPU it leaves the class at once, for a time that doubles each time.
//!
//! It needs no privileges to enter the class; where it may not be left again, or nothing of this can be looked up, the
//! thread stays as it is.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// How often the machine's load is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Between two requests: after a longer pause the thread may have been kept waiting.
const SUSPICIOUS: Duration = Duration::from_millis(3);
/// So much waiting for the CPU in one pause is starving.
const STARVED_NS: u64 = 2_000_000;
/// How long it keeps out of the class after it starved; doubled each time, up to the second.
const KEEP_OUT: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(64));
/// The time slice, the shortest that the kernel takes.
const SLICE_NS: u64 = 100_000;

/// What a thread knows about its class.
pub(super) struct Yielding {
    /// `/proc/thread-self/schedstat`: time run, time waited to run (ns), slices.
    waits: File,
    /// `/proc/loadavg`: the fourth word is runnable/all threads.
    load: File,
    cpus: usize,
    yields: bool,
    /// What was waited until last looked at.
    waited_ns: u64,
    looked: Option<Instant>,
    last: Instant,
    keep_out: Duration,
    out_until: Option<Instant>,
}

impl Yielding {
    /// For the calling thread, which is of the ordinary class. `None` where it cannot be done.
    pub(super) fn new(cpus: usize) -> Option<Self> {
        let waits = File::open("/proc/thread-self/schedstat").ok()?;
        let load = File::open("/proc/loadavg").ok()?;
        // On one CPU there is nowhere to move to.
        if cpus < 2 {
            return None;
        }
        short_slice().ok()?;
        // Whether the class can be left again (before Linux 2.6.39 it could not, without privileges).
        set_class(libc::SCHED_IDLE).ok()?;
        set_class(libc::SCHED_OTHER).ok()?;
        Some(Yielding {
            waits,
            load,
            cpus,
            yields: false,
            waited_ns: 0,
            looked: None,
            last: Instant::now(),
            keep_out: KEEP_OUT.0,
            out_until: None,
        })
    }

    /// Requests have come; the thread is about to work on them. Returns the class if that has changed.
    pub(super) fn woken(&mut self) -> Option<bool> {
        let now = Instant::now();
        let pause = now.saturating_duration_since(self.last);
        self.last = now;
        let before = self.yields;
        if self.yields && pause > SUSPICIOUS {
            let waited = number(&self.waits, 1).unwrap_or(u64::MAX);
            if waited.saturating_sub(self.waited_ns) > STARVED_NS {
                self.leave(now);
            }
            self.waited_ns = waited;
        }
        let due = self
            .looked
            .is_none_or(|at| now.saturating_duration_since(at) > LOOK_EVERY);
        if due && self.out_until.is_none_or(|until| now > until) {
            self.looked = Some(now);
            // This thread and whoever waits for it are among those that run.
            let quiet = runnable(&self.load).is_some_and(|n| n <= self.cpus);
            if quiet && !self.yields {
                self.waited_ns = number(&self.waits, 1).unwrap_or(u64::MAX);
                self.yields = set_class(libc::SCHED_IDLE).is_ok();
            } else if !quiet && self.yields {
                self.yields = set_class(libc::SCHED_OTHER).is_err();
            }
        }
        (self.yields != before).then_some(self.yields)
    }

    fn leave(&mut self, now: Instant) {
        self.yields = set_class(libc::SCHED_OTHER).is_err();
        self.out_until = Some(now + self.keep_out);
        self.keep_out = (self.keep_out * 2).min(KEEP_OUT.1);
    }
}

/// The `at`th word of a one-line file, as a number.
fn number(file: &File, at: usize) -> Option<u64> {
    word(file, at, |word| word.parse().ok())
}

/// Runnable threads of the machine.
fn runnable(load: &File) -> Option<usize> {
    word(load, 3, |word| word.split_once('/')?.0.parse().ok())
}

fn word<T>(file: &File, at: usize, read: impl FnOnce(&str) -> Option<T>) -> Option<T> {
    let mut line = [0; 128];
    let bytes = file.read_at(&mut line, 0).ok()?;
    let line = std::str::from_utf8(&line[..bytes]).ok()?;
    read(line.split_ascii_whitespace().nth(at)?)
}

fn set_class(class: libc::c_int) -> io::Result<()> {
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: reads one struct, which lives; 0 is the calling thread.
    let result = unsafe { libc::sched_setscheduler(0, class, &raw const param) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// `struct sched_attr` of sched_setattr(2), in its first version.
#[repr(C)]
struct SchedAttr {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Asks for a short time slice (Linux 6.12), which the thread keeps when its class changes. Older kernels ignore it.
fn short_slice() -> io::Result<()> {
    let attr = SchedAttr {
        size: size_of::<SchedAttr>() as u32,
        policy: libc::SCHED_OTHER.cast_unsigned(),
        flags: 0,
        nice: 0,
        priority: 0,
        runtime: SLICE_NS,
        deadline: 0,
        period: 0,
    };
    // SAFETY: reads a struct of the length that it says; 0 is the calling thread.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class() -> libc::c_int {
        // SAFETY: looks at the calling thread.
        unsafe { libc::sched_getscheduler(0) }
    }

    fn says(line: &str) -> File {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(line.as_bytes(), 0).unwrap();
        file
    }

    fn body() {
        let Some(mut yielding) = Yielding::new(4) else {
            return blockwright_oracles::leave("the class cannot be left here");
        };
        yielding.load = says("9.00 9.00 9.00 3/300 77\n");
        yielding.waits = says("1000000000 5000000 30\n");
        assert_eq!(class(), libc::SCHED_OTHER);
        assert_eq!(
            yielding.woken(),
            Some(true),
            "fewer run than there are CPUs"
        );
        assert_eq!(class(), libc::SCHED_IDLE);
        assert_eq!(yielding.woken(), None);
        // A pause without waiting; then one in which it waited for its CPU.
        yielding.last = Instant::now() - 2 * SUSPICIOUS;
        assert_eq!(yielding.woken(), None);
        yielding.waits = says("1000000000 8000000 31\n");
        yielding.last = Instant::now() - 2 * SUSPICIOUS;
        assert_eq!(yielding.woken(), Some(false));
        assert_eq!(class(), libc::SCHED_OTHER);
        assert_eq!(yielding.keep_out, 2 * KEEP_OUT.0);
        yielding.looked = None;
        assert_eq!(yielding.woken(), None, "not again so soon");
        yielding.out_until = Some(Instant::now());
        assert_eq!(yielding.woken(), Some(true));
        // The machine has more to do than it has CPUs.
        yielding.load = says("9.00 9.00 9.00 5/300 77\n");
        yielding.last = Instant::now();
        assert_eq!(yielding.woken(), None, "not looked at again so soon");
        yielding.looked = None;
        assert_eq!(yielding.woken(), Some(false));
        assert_eq!(class(), libc::SCHED_OTHER);
    }

    #[test]
    fn a_thread_yields_on_a_quiet_machine_until_it_starves() {
        // In a thread of its own: its class is changed.
        std::thread::spawn(body).join().unwrap();
    }

    #[test]
    fn what_the_kernel_says_is_understood() {
        assert!(runnable(&File::open("/proc/loadavg").unwrap()).unwrap() > 0);
        number(&File::open("/proc/thread-self/schedstat").unwrap(), 1).unwrap();
        assert!(Yielding::new(1).is_none(), "one CPU");
    }
}
