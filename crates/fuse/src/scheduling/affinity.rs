//! On which CPU a queue's thread runs: its clients' CPU, or another one, where it polls for the next request.
//!
//! On the CPU whose queue it serves, a thread and its client take turns: a request costs two switches between address spaces. The
//! reply wakes the client while the thread still runs there, so the scheduler looks for another CPU for the client. With CPUs to
//! spare it is quicker to leave that CPU to the client, and to poll for a moment on another one before sleeping.
//!
//! On two CPUs the thread also helps its neighbour, whose clients are on the other CPU. It polls for these on its own CPU.
//!
//! This holds for few clients. Many clients take turns on a CPU by themselves, and a polling thread only takes time from them. So
//! the thread returns when the last requests came from many clients.
//!
//! Polling takes a CPU. So the thread leaves its CPU only while idle CPUs poll anyway (`cpu_latency`) and fewer threads are runnable
//! than the machine has CPUs. It returns
//! - when more threads are runnable than there are CPUs, at two looks in succession, not counting queue threads that only poll;
//! - at once when it had to wait for a CPU since the last look; it then stays for a time that doubles each time it starves again soon;
//! - when requests cease and idle CPUs sleep again.
//!
//! Where the host does not tell what this needs, the thread stays on its CPU.

use super::limits::{
    CLIENTS_MANY, CLIENTS_REMEMBERED, LOAD_INTERVAL, LOOKS_CROWDED, PAUSE_SUSPICIOUS, POLLED_WELL,
    STARVED_NS, STAY_LOCAL,
};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// The state of one thread: its CPUs, and the signs of contention.
pub(crate) struct Affinity {
    /// The CPU whose queue it serves.
    local: CpuSet,
    /// All other CPUs that this thread may run on.
    others: CpuSet,
    /// `/proc/thread-self/schedstat`: time run, time waited to run (ns), slices.
    waits: File,
    /// `/proc/loadavg`: the fourth word is runnable/all threads.
    load: File,
    cpus: usize,
    is_away: bool,
    /// The thread's time on the run queue (ns) at the last look.
    waited_ns: u64,
    looked: Option<Instant>,
    last: Instant,
    stay_local: Duration,
    local_until: Option<Instant>,
    /// Since when it is away.
    since: Instant,
    /// How often in succession there was no CPU to spare, or there were many clients.
    crowded: u32,
    /// The clients of the last requests, in a ring; 0 where the kernel names none.
    clients: [u32; CLIENTS_REMEMBERED],
    /// Number of requests so far.
    served: usize,
    /// How many of the last requests, in succession, came from the CPU of the neighbour.
    of_neighbour: usize,
    /// It polls on its own CPU, because its clients are on the neighbour's.
    polls_on_own_cpu: bool,
}

impl Affinity {
    /// Moves the calling thread to its CPU. `None` when it may not run there, or there is no other CPU.
    pub(crate) fn pin(cpu: u16) -> Option<Self> {
        let allowed = rustix::thread::sched_getaffinity(None).ok();
        let cpu = usize::from(cpu);
        if cpu >= CpuSet::MAX_CPU {
            return None;
        }
        let mut local = CpuSet::new();
        local.set(cpu);
        sched_setaffinity(None, &local).ok()?;
        let mut others = allowed?;
        others.unset(cpu);
        Self::new(local, others).ok()
    }

    fn new(local: CpuSet, others: CpuSet) -> io::Result<Self> {
        let cpus = others.count() as usize + 1;
        if cpus < 2 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let waits = File::open("/proc/thread-self/schedstat")?;
        let load = File::open("/proc/loadavg")?;
        Ok(Self::reading(waits, load, local, others, cpus))
    }

    /// One that reads waiting times and load from these files.
    fn reading(waits: File, load: File, local: CpuSet, others: CpuSet, cpus: usize) -> Self {
        Affinity {
            local,
            others,
            waits,
            load,
            cpus,
            is_away: false,
            waited_ns: 0,
            looked: None,
            last: Instant::now(),
            stay_local: STAY_LOCAL.0,
            local_until: None,
            since: Instant::now(),
            crowded: 0,
            clients: [0; CLIENTS_REMEMBERED],
            served: 0,
            of_neighbour: 0,
            polls_on_own_cpu: false,
        }
    }

    /// Whether the thread is on another CPU.
    pub(crate) fn is_away(&self) -> bool {
        self.is_away
    }

    /// One that knows no clients and never moves.
    #[cfg(test)]
    pub(super) fn simulated(cpus: usize) -> Self {
        let nothing = || File::open("/dev/null").expect("there is a null device");
        Self::reading(nothing(), nothing(), CpuSet::new(), CpuSet::new(), cpus)
    }

    /// How many CPUs the thread may run on.
    pub(crate) fn cpus(&self) -> usize {
        self.cpus
    }

    /// A request has come from this client: a thread's number. `of_neighbour`: from another CPU than this thread's.
    pub(crate) fn served(&mut self, client: u32, of_neighbour: bool) {
        self.of_neighbour = match of_neighbour {
            true => self.of_neighbour.saturating_add(1),
            false => 0,
        };
        self.clients[self.served % CLIENTS_REMEMBERED] = client;
        self.served = self.served.wrapping_add(1);
    }

    /// Whether the requests that came last are of many clients.
    pub(crate) fn has_many_clients(&self) -> bool {
        let mut clients = self.clients;
        clients.sort_unstable();
        let known = clients.iter().filter(|client| **client != 0);
        let mut last = 0;
        let differ = known.filter(|client| std::mem::replace(&mut last, **client) != **client);
        differ.count() >= CLIENTS_MANY
    }

    /// Whether all requests that came last, as far as the kernel names their clients, are of one client.
    pub(crate) fn has_one_client(&self) -> bool {
        let mut known = self.clients.iter().filter(|client| **client != 0);
        known
            .next()
            .is_some_and(|first| known.all(|client| client == first))
    }

    /// Requests have come; the thread is about to work on them. `cpus_awake`: idle CPUs poll for work. `polling`: other queue threads that
    /// poll. `helped`: it has so many requests that another thread takes some of them, and needs the other CPU. Returns whether it is
    /// away, if that has changed.
    pub(crate) fn woken(&mut self, cpus_awake: bool, polling: usize, helped: bool) -> Option<bool> {
        self.woken_at(Instant::now(), cpus_awake, polling, helped)
    }

    fn woken_at(
        &mut self,
        now: Instant,
        cpus_awake: bool,
        polling: usize,
        helped: bool,
    ) -> Option<bool> {
        let pause = now.saturating_duration_since(self.last);
        self.last = now;
        let before = self.is_away;
        if self.is_away && pause > PAUSE_SUSPICIOUS {
            let waited = number(&self.waits, 1).unwrap_or(u64::MAX);
            if waited.saturating_sub(self.waited_ns) > STARVED_NS {
                self.return_to_cpu();
                if now.saturating_duration_since(self.since) > POLLED_WELL {
                    self.stay_local = STAY_LOCAL.0;
                }
                self.local_until = Some(now + self.stay_local);
                self.stay_local = (self.stay_local * 2).min(STAY_LOCAL.1);
            }
            self.waited_ns = waited;
        }
        let due = self
            .looked
            .is_none_or(|at| now.saturating_duration_since(at) > LOAD_INTERVAL);
        if due && self.local_until.is_none_or(|until| now > until) {
            self.looked = Some(now);
            if self.is_away {
                self.waited_ns = number(&self.waits, 1).unwrap_or(u64::MAX);
            }
            // This thread is among those that run.
            let most = self.cpus - usize::from(!self.is_away) + polling;
            let room = !helped
                && !self.has_many_clients()
                && runnable(&self.load).is_some_and(|n| n <= most);
            self.crowded = if room { 0 } else { self.crowded + 1 };
            let own_cpu = self.of_neighbour >= CLIENTS_REMEMBERED;
            if cpus_awake && room && (!self.is_away || self.polls_on_own_cpu != own_cpu) {
                self.waited_ns = number(&self.waits, 1).unwrap_or(u64::MAX);
                let away = if own_cpu { &self.local } else { &self.others };
                self.is_away = sched_setaffinity(None, away).is_ok();
                self.polls_on_own_cpu = own_cpu;
                self.since = now;
            } else if self.is_away && (!cpus_awake || self.crowded >= LOOKS_CROWDED) {
                self.return_to_cpu();
            }
        }
        (self.is_away != before).then_some(self.is_away)
    }

    /// No requests have come for a while. Returns whether the thread returned to its CPU, because idle CPUs do not poll any more. The
    /// next request finds it there.
    pub(crate) fn idle(&mut self, cpus_awake: bool) -> bool {
        let goes = self.is_away && !cpus_awake;
        if goes {
            self.return_to_cpu();
        }
        goes
    }

    fn return_to_cpu(&mut self) {
        // Its CPU may be offline. Wherever the thread runs then, it does not poll.
        let _ = sched_setaffinity(None, &self.local);
        self.is_away = false;
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
        let Some(mut affinity) = Affinity::pin(u16::try_from(cpu).unwrap()) else {
            return blockwright_oracles::leave("there is one CPU only");
        };
        assert!(may_run_on(cpu), "on its CPU");
        // A clock of the test's own: a busy machine makes no pauses.
        let mut now = Instant::now();
        affinity.last = now;
        affinity.cpus = 4;
        affinity.load = says("9.00 9.00 9.00 4/300 77\n");
        assert_eq!(
            affinity.woken_at(now, true, 0, false),
            None,
            "no CPU to spare"
        );
        affinity.looked = None;
        affinity.load = says("9.00 9.00 9.00 3/300 77\n");
        affinity.waits = says("1000000000 5000000 30\n");
        assert_eq!(
            affinity.woken_at(now, false, 0, false),
            None,
            "idle CPUs sleep"
        );
        affinity.looked = None;
        assert_eq!(affinity.woken_at(now, true, 0, false), Some(true));
        assert!(affinity.is_away() && !may_run_on(cpu));
        assert_eq!(affinity.woken_at(now, true, 0, false), None);
        // A pause without waiting; then one in which it waited for a CPU.
        now += 2 * PAUSE_SUSPICIOUS;
        assert_eq!(affinity.woken_at(now, true, 0, false), None);
        affinity.waits = says("1000000000 8000000 31\n");
        // Many short waits are not starvation.
        affinity.looked = None;
        assert_eq!(affinity.woken_at(now, true, 0, false), None);
        now += 2 * PAUSE_SUSPICIOUS;
        assert_eq!(affinity.woken_at(now, true, 0, false), None);
        affinity.waits = says("1000000000 11000000 32\n");
        now += 2 * PAUSE_SUSPICIOUS;
        assert_eq!(affinity.woken_at(now, true, 0, false), Some(false));
        assert!(may_run_on(cpu));
        assert_eq!(affinity.stay_local, 2 * STAY_LOCAL.0);
        affinity.looked = None;
        assert_eq!(
            affinity.woken_at(now, true, 0, false),
            None,
            "not again so soon"
        );
        affinity.local_until = Some(now - Duration::from_nanos(1));
        assert_eq!(affinity.woken_at(now, true, 0, false), Some(true));
        // The machine has other things to do.
        affinity.looked = None;
        affinity.load = says("9.00 9.00 9.00 4/300 77\n");
        assert_eq!(
            affinity.woken_at(now, true, 0, false),
            None,
            "there is still room"
        );
        affinity.looked = None;
        affinity.load = says("9.00 9.00 9.00 6/300 77\n");
        assert_eq!(
            affinity.woken_at(now, true, 2, false),
            None,
            "two of these only poll"
        );
        affinity.load = says("9.00 9.00 9.00 5/300 77\n");
        affinity.last = now;
        assert_eq!(
            affinity.woken_at(now, true, 0, false),
            None,
            "not looked at again so soon"
        );
        affinity.looked = None;
        assert_eq!(
            affinity.woken_at(now, true, 0, false),
            None,
            "a crowd at one look"
        );
        affinity.looked = None;
        assert_eq!(affinity.woken_at(now, true, 0, false), Some(false));
        assert!(!affinity.is_away() && may_run_on(cpu));
        // It was well for long: starving again is not starving soon.
        affinity.load = says("9.00 9.00 9.00 3/300 77\n");
        affinity.looked = None;
        assert_eq!(affinity.woken_at(now, true, 0, false), Some(true));
        affinity.stay_local = STAY_LOCAL.1;
        affinity.since = now - 2 * POLLED_WELL;
        affinity.waits = says("1000000000 21000000 33\n");
        now += 2 * PAUSE_SUSPICIOUS;
        assert_eq!(affinity.woken_at(now, true, 0, false), Some(false));
        assert_eq!(affinity.stay_local, 2 * STAY_LOCAL.0);
        // Idle CPUs sleep again: at once.
        affinity.local_until = None;
        affinity.looked = None;
        assert_eq!(affinity.woken_at(now, true, 0, false), Some(true));
        affinity.looked = None;
        assert_eq!(affinity.woken_at(now, false, 0, false), Some(false));
        // Many clients take turns by themselves; a few that come and go do not.
        affinity.local_until = None;
        affinity.looked = None;
        let some = [7, 8, 9, 0];
        (0..2 * CLIENTS_REMEMBERED).for_each(|k| affinity.served(some[k % some.len()], false));
        assert_eq!(affinity.woken_at(now, true, 0, false), Some(true));
        affinity.served(10, false);
        affinity.looked = None;
        assert_eq!(affinity.woken_at(now, true, 0, false), None, "at one look");
        affinity.looked = None;
        assert_eq!(affinity.woken_at(now, true, 0, false), Some(false));
        affinity.looked = None;
        assert_eq!(
            affinity.woken_at(now, true, 0, false),
            None,
            "they are still there"
        );
        (0..CLIENTS_REMEMBERED).for_each(|_| affinity.served(10, false));
        affinity.looked = None;
        assert_eq!(affinity.woken_at(now, true, 0, false), Some(true));
        affinity.return_to_cpu();
        // With many requests the neighbour helps, and needs the other CPU.
        affinity.looked = None;
        assert_eq!(affinity.woken_at(now, true, 0, false), Some(true));
        for left in [None, Some(false)] {
            affinity.looked = None;
            assert_eq!(affinity.woken_at(now, true, 0, true), left);
        }
        // It polls on its own CPU for a client of the neighbour.
        (0..CLIENTS_REMEMBERED).for_each(|_| affinity.served(10, true));
        affinity.looked = None;
        assert_eq!(affinity.woken_at(now, true, 0, false), Some(true));
        assert!(affinity.is_away() && may_run_on(cpu));
        affinity.served(10, false);
        affinity.looked = None;
        assert_eq!(affinity.woken_at(now, true, 0, false), None);
        assert!(affinity.is_away() && !may_run_on(cpu));
        affinity.return_to_cpu();
        // Requests cease.
        assert!(!affinity.idle(false), "on its CPU already");
        affinity.local_until = None;
        affinity.looked = None;
        affinity.load = says("9.00 9.00 9.00 1/300 77\n");
        assert_eq!(affinity.woken_at(now, true, 0, false), Some(true));
        assert!(!affinity.idle(true), "there are requests of others");
        assert!(affinity.is_away() && !may_run_on(cpu));
        assert!(affinity.idle(false));
        assert!(!affinity.is_away() && may_run_on(cpu));
    }

    #[test]
    fn a_thread_leaves_its_cpu_on_a_quiet_machine_until_it_starves() {
        // In a thread of its own: its CPU is changed.
        std::thread::spawn(body).join().unwrap();
    }

    #[test]
    fn what_the_kernel_says_is_understood() {
        assert!(runnable(&File::open("/proc/loadavg").unwrap()).unwrap() > 0);
        number(&File::open("/proc/thread-self/schedstat").unwrap(), 1).unwrap();
        let mut one = CpuSet::new();
        one.set(0);
        assert!(Affinity::new(one, CpuSet::new()).is_err(), "one CPU");
    }
}
