//! The queue of requests for checkpoints, in every order in which clients, daemon and shutdown can meet, by
//! loom: the very source file, with loom's atomics in the place of std's.

#[path = "../src/checkpoint"]
mod queue {
    pub mod atomics {
        pub use loom::sync::atomic::{AtomicU64, Ordering};
    }

    pub mod tickets;
}

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use queue::tickets::Tickets;

/// What is asked for: `done` shall hold all that was `wanted` before. And where the server and its clients sleep.
struct World {
    tickets: Tickets,
    wanted: AtomicU64,
    done: AtomicU64,
    bed: Mutex<()>,
    work: Condvar,
    served: Condvar,
}

impl World {
    fn new() -> Arc<Self> {
        let world = World {
            tickets: Tickets::new(),
            wanted: AtomicU64::new(0),
            done: AtomicU64::new(0),
            bed: Mutex::new(()),
            work: Condvar::new(),
            served: Condvar::new(),
        };
        world.tickets.open();
        Arc::new(world)
    }

    fn serve_one_batch(&self) {
        if let Some(batch) = self.tickets.take() {
            let all = self.wanted.load(Ordering::Acquire);
            self.done.fetch_max(all, Ordering::AcqRel);
            self.tickets.complete(batch, true);
            drop(self.bed.lock().unwrap());
            self.served.notify_all();
        }
    }

    /// The daemon's life: until the queue is closed and no request waits.
    fn serve(&self) {
        loop {
            if self.tickets.doze(1) {
                let mut bed = self.bed.lock().unwrap();
                while self.tickets.is_asleep() {
                    bed = self.work.wait(bed).unwrap();
                }
            }
            // In this order: no request is queued once it is closed.
            let open = self.tickets.is_open();
            self.serve_one_batch();
            if !open {
                return;
            }
        }
    }

    /// Wants something, and returns when it is done. Whether the daemon did it.
    fn client(&self) -> bool {
        let mine = self.wanted.fetch_add(1, Ordering::AcqRel) + 1;
        let Some(asked) = self.tickets.ask() else {
            let all = self.wanted.load(Ordering::Acquire);
            self.done.fetch_max(all, Ordering::AcqRel);
            return false;
        };
        if asked.wake {
            drop(self.bed.lock().unwrap());
            self.work.notify_one();
        }
        let mut bed = self.bed.lock().unwrap();
        while self.tickets.outcome(asked.ticket).is_none() {
            bed = self.served.wait(bed).unwrap();
        }
        drop(bed);
        assert_eq!(self.tickets.outcome(asked.ticket), Some(true));
        assert!(self.done.load(Ordering::Acquire) >= mine, "not done");
        true
    }

    fn stop(&self) {
        if self.tickets.close() {
            drop(self.bed.lock().unwrap());
            self.work.notify_one();
        }
    }
}

fn model(check: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(check);
}

/// No client waits forever, and its request has been served when it returns.
#[test]
fn clients_and_a_daemon_that_stops() {
    model(|| {
        let world = World::new();
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let world = Arc::clone(&world);
                loom::thread::spawn(move || world.client())
            })
            .collect();
        let daemon = {
            let world = Arc::clone(&world);
            loom::thread::spawn(move || world.serve())
        };
        world.stop();
        for t in threads {
            t.join().unwrap();
        }
        daemon.join().unwrap();
        assert_eq!(world.tickets.waiting(), 0);
        assert!(world.tickets.ask().is_none(), "it is closed");
    });
}

/// A failure reaches the requests that it concerns, and none that was served before.
#[test]
fn failures_are_told_to_those_who_failed() {
    model(|| {
        let world = World::new();
        let first = world.tickets.ask().unwrap();
        let batch = world.tickets.take().unwrap();
        let other = {
            let world = Arc::clone(&world);
            loom::thread::spawn(move || world.tickets.ask().unwrap().ticket)
        };
        world.tickets.complete(batch, true);
        let second = other.join().unwrap();
        let batch = world.tickets.take().unwrap();
        world.tickets.complete(batch, false);
        assert_eq!(world.tickets.outcome(first.ticket), Some(true));
        assert_eq!(world.tickets.outcome(second), Some(false));
    });
}

/// The daemon that waits for company is woken by each request, and loses none.
#[test]
fn a_daemon_that_waits_for_company() {
    model(|| {
        let world = World::new();
        let client = {
            let world = Arc::clone(&world);
            loom::thread::spawn(move || world.client())
        };
        // Two are expected, one comes; the time runs out.
        if world.tickets.doze(2) {
            world.tickets.rouse();
        }
        world.stop();
        world.serve();
        client.join().unwrap();
        assert_eq!(world.tickets.waiting(), 0);
    });
}
