//! Whether a queue's thread stands aside of its clients and polls for their next request.
//!
//! At home, on the CPU whose queue it serves, a thread and its client take turns: two switches between address spaces for a
//! request, and the reply wakes the client while the thread still runs there, so the scheduler looks for another CPU for
//! the client. On a machine with CPUs to spare it is quicker to leave that CPU to the client, and to look for the next request
//! for a moment on another before sleeping: nobody switches then.
//!
//! That holds for few clients. Many take turns on a CPU by themselves, and whoever polls has nothing to look for but takes time from them:
//! with eight writers a queue (docs/BENCHMARKS.md, appends by 32 jobs) a thread at home served a fifth more. So it goes home when
//! the requests that came last are of many clients.
//!
//! Standing aside takes a CPU. So it is done only while idle CPUs poll for work anyhow (`crate::wakeful`); it begins while fewer threads
//! are runnable than the machine has CPUs, and ends when there are more, not counting those of its kind that only poll. That is
//! looked at fifty times a second at most, while requests come; one look that finds a crowd is not believed. When the thread had
//! to wait for a CPU since it last looked it goes home at once: for a moment, which doubles each time it starves again soon.
//! When requests cease and idle CPUs sleep again, it goes home, too, without waiting for the next.
//!
//! Where something of this cannot be looked up the thread stays at home.

use rustix::thread::{CpuSet, sched_setaffinity};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// How often the machine's load is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Between two requests: after a longer pause the thread may have been kept waiting.
const SUSPICIOUS: Duration = Duration::from_millis(3);
/// So much waiting for a CPU in one pause is starving.
const STARVED_NS: u64 = 2_000_000;
/// How long it stays at home after it starved: doubled each time, up to the second, and the first again when it stood aside
/// for [`WELL`] without starving.
const STAY_HOME: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(64));
/// So long aside without starving: what starved it before is gone.
const WELL: Duration = Duration::from_millis(100);
/// The clients of so many requests are remembered.
const LATELY: usize = 16;
/// So many clients among them do not take turns with the thread: while one waits, others run.
const CLIENTS_MANY: usize = 4;
/// It goes home when there was no CPU to spare at so many looks in succession.
const CROWDED: u32 = 2;

/// What a thread knows about its place.
pub(super) struct Aside {
    home: CpuSet,
    /// All other CPUs that this thread may run on.
    others: CpuSet,
    /// `/proc/thread-self/schedstat`: time run, time waited to run (ns), slices.
    waits: File,
    /// `/proc/loadavg`: the fourth word is runnable/all threads.
    load: File,
    cpus: usize,
    is_aside: bool,
    /// What was waited until last looked at.
    waited_ns: u64,
    looked: Option<Instant>,
    last: Instant,
    stay_home: Duration,
    home_until: Option<Instant>,
    /// Since when it stands aside.
    since: Instant,
    /// How often in succession there was no CPU to spare, or there were many clients.
    crowded: u32,
    /// The clients of the last requests, in a ring; 0 where the kernel names none.
    clients: [u32; LATELY],
    /// How many requests there were.
    served: usize,
}

/// Takes the calling thread to its CPU, and tells where else it could run. It stays where it is if it may not run there,
/// and `None` is told when there is no other.
pub(super) fn settle(cpu: u16) -> Option<Aside> {
    let allowed = rustix::thread::sched_getaffinity(None).ok();
    let cpu = usize::from(cpu);
    if cpu >= CpuSet::MAX_CPU {
        return None;
    }
    let mut home = CpuSet::new();
    home.set(cpu);
    sched_setaffinity(None, &home).ok()?;
    let mut others = allowed?;
    others.unset(cpu);
    Aside::new(home, others).ok()
}

impl Aside {
    fn new(home: CpuSet, others: CpuSet) -> io::Result<Self> {
        let cpus = others.count() as usize + 1;
        if cpus < 2 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Aside {
            home,
            others,
            waits: File::open("/proc/thread-self/schedstat")?,
            load: File::open("/proc/loadavg")?,
            cpus,
            is_aside: false,
            waited_ns: 0,
            looked: None,
            last: Instant::now(),
            stay_home: STAY_HOME.0,
            home_until: None,
            since: Instant::now(),
            crowded: 0,
            clients: [0; LATELY],
            served: 0,
        })
    }

    /// Whether the thread stands aside.
    pub(super) fn is_aside(&self) -> bool {
        self.is_aside
    }

    /// A request has come from this client: a thread's number.
    pub(super) fn served(&mut self, client: u32) {
        self.clients[self.served % LATELY] = client;
        self.served = self.served.wrapping_add(1);
    }

    /// Whether the requests that came last are of many clients.
    pub(super) fn has_many_clients(&self) -> bool {
        let mut clients = self.clients;
        clients.sort_unstable();
        let known = clients.iter().filter(|client| **client != 0);
        let mut last = 0;
        let differ = known.filter(|client| std::mem::replace(&mut last, **client) != **client);
        differ.count() >= CLIENTS_MANY
    }

    /// Requests have come; the thread is about to work on them. `wakeful`: idle CPUs poll for work. `polling`: so many other
    /// threads of this kind do. Returns whether it stands aside if that has changed.
    pub(super) fn woken(&mut self, wakeful: bool, polling: usize) -> Option<bool> {
        let now = Instant::now();
        let pause = now.saturating_duration_since(self.last);
        self.last = now;
        let before = self.is_aside;
        if self.is_aside && pause > SUSPICIOUS {
            let waited = number(&self.waits, 1).unwrap_or(u64::MAX);
            if waited.saturating_sub(self.waited_ns) > STARVED_NS {
                self.go_home();
                if now.saturating_duration_since(self.since) > WELL {
                    self.stay_home = STAY_HOME.0;
                }
                self.home_until = Some(now + self.stay_home);
                self.stay_home = (self.stay_home * 2).min(STAY_HOME.1);
            }
            self.waited_ns = waited;
        }
        let due = self
            .looked
            .is_none_or(|at| now.saturating_duration_since(at) > LOOK_EVERY);
        if due && self.home_until.is_none_or(|until| now > until) {
            self.looked = Some(now);
            if self.is_aside {
                self.waited_ns = number(&self.waits, 1).unwrap_or(u64::MAX);
            }
            // This thread is among those that run.
            let most = self.cpus - usize::from(!self.is_aside) + polling;
            let room = !self.has_many_clients() && runnable(&self.load).is_some_and(|n| n <= most);
            self.crowded = if room { 0 } else { self.crowded + 1 };
            if wakeful && room && !self.is_aside {
                self.waited_ns = number(&self.waits, 1).unwrap_or(u64::MAX);
                self.is_aside = sched_setaffinity(None, &self.others).is_ok();
                self.since = now;
            } else if self.is_aside && (!wakeful || self.crowded >= CROWDED) {
                self.go_home();
            }
        }
        (self.is_aside != before).then_some(self.is_aside)
    }

    /// No requests have come for a while. Returns whether the thread went home, because idle CPUs do not poll any more: the
    /// next request shall find it there.
    pub(super) fn idle(&mut self, wakeful: bool) -> bool {
        let goes = self.is_aside && !wakeful;
        if goes {
            self.go_home();
        }
        goes
    }

    fn go_home(&mut self) {
        // Its CPU may have gone; wherever it is then, it does not poll.
        let _ = sched_setaffinity(None, &self.home);
        self.is_aside = false;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn says(line: &str) -> File {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(line.as_bytes(), 0).unwrap();
        file
    }

    fn may_run_on(cpu: usize) -> bool {
        rustix::thread::sched_getaffinity(None).unwrap().is_set(cpu)
    }

    fn body() {
        let cpu = rustix::thread::sched_getcpu();
        let Some(mut aside) = settle(u16::try_from(cpu).unwrap()) else {
            return blockwright_oracles::leave("there is one CPU only");
        };
        assert!(may_run_on(cpu), "at home");
        aside.cpus = 4;
        aside.load = says("9.00 9.00 9.00 4/300 77\n");
        assert_eq!(aside.woken(true, 0), None, "no CPU to spare");
        aside.looked = None;
        aside.load = says("9.00 9.00 9.00 3/300 77\n");
        aside.waits = says("1000000000 5000000 30\n");
        assert_eq!(aside.woken(false, 0), None, "idle CPUs sleep");
        aside.looked = None;
        assert_eq!(aside.woken(true, 0), Some(true));
        assert!(aside.is_aside() && !may_run_on(cpu));
        assert_eq!(aside.woken(true, 0), None);
        // A pause without waiting; then one in which it waited for a CPU.
        aside.last = Instant::now() - 2 * SUSPICIOUS;
        assert_eq!(aside.woken(true, 0), None);
        aside.waits = says("1000000000 8000000 31\n");
        // What it waited little by little is no starving.
        aside.looked = None;
        assert_eq!(aside.woken(true, 0), None);
        aside.last = Instant::now() - 2 * SUSPICIOUS;
        assert_eq!(aside.woken(true, 0), None);
        aside.waits = says("1000000000 11000000 32\n");
        aside.last = Instant::now() - 2 * SUSPICIOUS;
        assert_eq!(aside.woken(true, 0), Some(false));
        assert!(may_run_on(cpu));
        assert_eq!(aside.stay_home, 2 * STAY_HOME.0);
        aside.looked = None;
        assert_eq!(aside.woken(true, 0), None, "not again so soon");
        aside.home_until = Some(Instant::now());
        assert_eq!(aside.woken(true, 0), Some(true));
        // The machine has other things to do.
        aside.looked = None;
        aside.load = says("9.00 9.00 9.00 4/300 77\n");
        assert_eq!(aside.woken(true, 0), None, "there is still room");
        aside.looked = None;
        aside.load = says("9.00 9.00 9.00 6/300 77\n");
        assert_eq!(aside.woken(true, 2), None, "two of these only poll");
        aside.load = says("9.00 9.00 9.00 5/300 77\n");
        aside.last = Instant::now();
        assert_eq!(aside.woken(true, 0), None, "not looked at again so soon");
        aside.looked = None;
        assert_eq!(aside.woken(true, 0), None, "a crowd at one look");
        aside.looked = None;
        assert_eq!(aside.woken(true, 0), Some(false));
        assert!(!aside.is_aside() && may_run_on(cpu));
        // It was well for long: starving again is not starving soon.
        aside.load = says("9.00 9.00 9.00 3/300 77\n");
        aside.looked = None;
        assert_eq!(aside.woken(true, 0), Some(true));
        aside.stay_home = STAY_HOME.1;
        aside.since = Instant::now() - 2 * WELL;
        aside.waits = says("1000000000 21000000 33\n");
        aside.last = Instant::now() - 2 * SUSPICIOUS;
        assert_eq!(aside.woken(true, 0), Some(false));
        assert_eq!(aside.stay_home, 2 * STAY_HOME.0);
        // Idle CPUs sleep again: at once.
        aside.home_until = None;
        aside.looked = None;
        assert_eq!(aside.woken(true, 0), Some(true));
        aside.looked = None;
        assert_eq!(aside.woken(false, 0), Some(false));
        // Many clients take turns by themselves; a few that come and go do not.
        aside.home_until = None;
        aside.looked = None;
        let some = [7, 8, 9, 0];
        (0..2 * LATELY).for_each(|k| aside.served(some[k % some.len()]));
        assert_eq!(aside.woken(true, 0), Some(true));
        aside.served(10);
        aside.looked = None;
        assert_eq!(aside.woken(true, 0), None, "at one look");
        aside.looked = None;
        assert_eq!(aside.woken(true, 0), Some(false));
        aside.looked = None;
        assert_eq!(aside.woken(true, 0), None, "they are still there");
        (0..LATELY).for_each(|_| aside.served(10));
        aside.looked = None;
        assert_eq!(aside.woken(true, 0), Some(true));
        aside.go_home();
        // Requests cease.
        assert!(!aside.idle(false), "at home already");
        aside.home_until = None;
        aside.looked = None;
        aside.load = says("9.00 9.00 9.00 1/300 77\n");
        assert_eq!(aside.woken(true, 0), Some(true));
        assert!(!aside.idle(true), "there are requests of others");
        assert!(aside.is_aside() && !may_run_on(cpu));
        assert!(aside.idle(false));
        assert!(!aside.is_aside() && may_run_on(cpu));
    }

    #[test]
    fn a_thread_stands_aside_on_a_quiet_machine_until_it_starves() {
        // In a thread of its own: its CPU is changed.
        std::thread::spawn(body).join().unwrap();
    }

    #[test]
    fn what_the_kernel_says_is_understood() {
        assert!(runnable(&File::open("/proc/loadavg").unwrap()).unwrap() > 0);
        number(&File::open("/proc/thread-self/schedstat").unwrap(), 1).unwrap();
        let mut one = CpuSet::new();
        one.set(0);
        assert!(Aside::new(one, CpuSet::new()).is_err(), "one CPU");
    }
}
