//! The policy of one io_uring queue.
//!
//! Owned by the queue's thread alone. It may call the other files of this folder.

use super::affinity::Affinity;
use super::client_depth::ClientDepth;
use super::limits::{
    AWAY_TICK, DEEP_CPUS_MIN, DEVICE_BATCH, DEVICE_BATCH_MANY, HELPED_MIN, HELPED_PART,
};
use super::slow_kinds::{SlowKinds, is_slow_by_nature};
use super::waits::{Begun, Waits};
use crate::protocol::Opcode;
use std::time::Duration;

/// The policy of one queue's thread, which asks it before each decision.
pub(crate) struct QueuePolicy {
    /// None where the thread cannot change its CPU, or there is one only.
    affinity: Option<Affinity>,
    depth: ClientDepth,
    waits: Waits,
    /// There were so many requests in progress since the last choice of a CPU that the neighbour helps.
    helped: bool,
}

/// How many of the `depth` entries of a queue are with the thread of another CPU, of `cpus` that run.
pub(crate) fn helper_entries(depth: usize, cpus: usize) -> usize {
    match cpus {
        2..DEEP_CPUS_MIN => depth / HELPED_PART,
        _ => 0,
    }
}

impl QueuePolicy {
    /// Moves the calling thread to its CPU.
    pub(crate) fn on_cpu(cpu: u16) -> Self {
        Self::with(Affinity::pin(cpu))
    }

    fn with(affinity: Option<Affinity>) -> Self {
        let cpus = affinity.as_ref().map_or(1, Affinity::cpus);
        QueuePolicy {
            affinity,
            depth: ClientDepth::new(cpus),
            waits: Waits::default(),
            helped: false,
        }
    }

    /// A request of this client, a thread's number, has come. `in_work`: requests in progress of this thread, this one included.
    /// `of_neighbour`: it was made on the CPU of the neighbour.
    pub(crate) fn request_came(&mut self, client: u32, in_work: usize, of_neighbour: bool) {
        self.helped |= in_work > HELPED_MIN;
        if let Some(affinity) = &mut self.affinity {
            affinity.served(client, of_neighbour);
        }
    }

    /// Whether a direct request goes through the queue's own ring rather than to the device's thread. `in_work`: requests in progress
    /// of this queue, this one included.
    pub(crate) fn uses_own_ring(&mut self, bytes: usize, in_work: usize) -> bool {
        let affinity = self.affinity.as_ref();
        let many_clients = || affinity.is_none_or(Affinity::has_many_clients);
        !self.depth.is_deep(bytes, in_work, many_clients)
    }

    /// How many device requests are submitted together. `in_work`: requests in progress of this thread.
    pub(crate) fn device_batch(in_work: usize) -> usize {
        match in_work > HELPED_MIN {
            true => DEVICE_BATCH_MANY,
            false => DEVICE_BATCH,
        }
    }

    /// Whether a request goes to the pool, because it is expected to wait. `in_work`: requests in progress of this queue, this one included.
    ///
    /// The FSYNC of a queue's only client stays with the queue's thread: no other request waits for the thread, and the handover and
    /// the reply would each wake a thread. On slow devices FSYNC becomes a slow kind, and goes to the pool like others. With several
    /// clients, an FSYNC that comes alone is handed over, too: pgbench ran at 0.83 when it was not, because READs came meanwhile.
    pub(crate) fn goes_to_pool(
        &self,
        opcode: Opcode,
        bytes: usize,
        in_work: usize,
        kinds: &SlowKinds,
    ) -> bool {
        let one_client = || self.affinity.as_ref().is_some_and(Affinity::has_one_client);
        let stays = opcode == Opcode::Fsync && in_work == 1 && one_client();
        (!stays && is_slow_by_nature(opcode, bytes)) || kinds.is_slow(opcode)
    }

    /// A request is about to be served by this thread.
    pub(crate) fn begin(&self) -> Begun {
        self.waits.begin()
    }

    /// The request was served: how long it took, if it waited.
    pub(crate) fn end(&mut self, begun: &Begun) -> Option<Duration> {
        self.waits.end(begun)
    }

    /// Whether the thread polls for the next request before it sleeps: it is on another CPU than its clients.
    pub(crate) fn polls(&self) -> bool {
        self.affinity.as_ref().is_some_and(Affinity::is_away)
    }

    /// How long the thread may sleep before it has to look at its place again. `None`: for as long as nothing comes.
    pub(crate) fn sleep_max(&self) -> Option<Duration> {
        self.polls().then_some(AWAY_TICK)
    }

    /// Requests have come. Moves the thread where it serves them best, and returns whether it is away from its clients, if that has
    /// changed. `cpus_awake`: idle CPUs poll. `polling`: other queue threads that poll.
    pub(crate) fn choose_cpu(&mut self, cpus_awake: bool, polling: usize) -> Option<bool> {
        let affinity = self.affinity.as_mut()?;
        let helped =
            std::mem::take(&mut self.helped) && helper_entries(HELPED_PART, affinity.cpus()) > 0;
        affinity.woken(cpus_awake, polling, helped)
    }

    /// No request has come for [`QueuePolicy::sleep_max`]. Returns whether the thread went back to its CPU.
    pub(crate) fn idle(&mut self, cpus_awake: bool) -> bool {
        self.affinity.as_mut().is_some_and(|a| a.idle(cpus_awake))
    }
}

#[cfg(test)]
mod tests {
    use super::super::limits::CLIENTS_REMEMBERED;
    use super::*;

    /// A queue without a choice of CPUs: what a machine with one CPU has.
    fn bound() -> QueuePolicy {
        QueuePolicy::with(None)
    }

    /// A queue on a machine with this many CPUs, whose clients' number is not known.
    fn with_cpus(cpus: usize) -> QueuePolicy {
        QueuePolicy {
            depth: ClientDepth::new(cpus),
            affinity: Some(Affinity::simulated(cpus)),
            ..bound()
        }
    }

    #[test]
    fn a_thread_without_a_choice_neither_polls_nor_moves() {
        let mut policy = bound();
        assert!(!policy.polls() && policy.sleep_max().is_none());
        assert_eq!(policy.choose_cpu(true, 0), None);
        assert!(!policy.idle(false));
    }

    /// CPU time (µs) of a direct overwrite of 4 KiB in the client and the kernel, in the queue's thread, for the device I/O in whichever
    /// thread submits and completes it, and for handing it from one thread to the other. Measured with `perf` on two CPUs.
    const CLIENT_US: f64 = 5.0;
    const QUEUE_US: f64 = 4.0;
    const DEVICE_US: f64 = 4.0;
    const HANDOVER_US: f64 = 5.0;

    /// Requests per second of one client that keeps many in flight: its three stages run on as many CPUs as there are, each on
    /// one at a time.
    fn rate(cpus: usize, own_ring: bool) -> f64 {
        let stages = match own_ring {
            true => vec![CLIENT_US, QUEUE_US + DEVICE_US],
            false => vec![
                CLIENT_US,
                QUEUE_US + HANDOVER_US / 2.0,
                DEVICE_US + HANDOVER_US / 2.0,
            ],
        };
        let slowest = stages.iter().copied().fold(0.0, f64::max);
        let shared = stages.iter().sum::<f64>() / cpus as f64;
        1e6 / slowest.max(shared)
    }

    /// Clients of several kinds against a model of their costs: nearly all requests go where the model serves more of them.
    #[test]
    fn requests_go_where_they_are_served_best() {
        for cpus in 1..=8 {
            let ring_is_better = rate(cpus, true) >= rate(cpus, false);
            // Requests, bytes, in progress at a time, wanted place.
            for (count, bytes, in_work, own_ring) in [
                (10_000, 4096, 1, true),
                (10_000, 128 << 10, 64, true),
                (10_000, 1 << 20, 2, true),
                (10_000, 4096, 64, ring_is_better),
            ] {
                let mut policy = with_cpus(cpus);
                let chosen = (0..count)
                    .filter(|_| policy.uses_own_ring(bytes, in_work) == own_ring)
                    .count();
                let what = format!("{bytes} bytes, {in_work} in work, {cpus} CPUs");
                assert!(chosen * 100 >= count * 99, "{what}: {chosen}");
            }
        }
        let kinds = SlowKinds::default();
        let policy = bound();
        for (opcode, bytes, to_pool) in [
            (Opcode::Lookup, 80, false),
            (Opcode::Write, 4096, false),
            (Opcode::Write, 1 << 20, true),
            (Opcode::Fsync, 80, true),
            (Opcode::Read, 80, true),
        ] {
            assert_eq!(
                policy.goes_to_pool(opcode, bytes, 1, &kinds),
                to_pool,
                "{opcode:?}"
            );
        }
        kinds.note(Opcode::Rename, Duration::from_millis(50));
        assert!(policy.goes_to_pool(Opcode::Rename, 80, 1, &kinds));
    }

    #[test]
    fn two_cpus_help_each_other_and_more_have_a_thread_for_the_device() {
        assert_eq!(helper_entries(64, 1), 0, "there is no other");
        assert_eq!(helper_entries(64, 2), 32);
        assert_eq!(helper_entries(4, 2), 2);
        for cpus in DEEP_CPUS_MIN..9 {
            assert_eq!(helper_entries(64, cpus), 0);
        }
        let alone = QueuePolicy::device_batch(1);
        assert!(alone < QueuePolicy::device_batch(64));
    }

    #[test]
    fn the_only_clients_fsync_stays_until_it_turns_out_slow() {
        let kinds = SlowKinds::default();
        let mut policy = with_cpus(2);
        let goes = |policy: &QueuePolicy, in_work: usize| {
            policy.goes_to_pool(Opcode::Fsync, 80, in_work, &kinds)
        };
        assert!(goes(&policy, 1), "no client is known yet");
        policy.request_came(0, 1, false);
        policy.request_came(7, 1, false);
        assert!(!goes(&policy, 1));
        assert!(goes(&policy, 2), "another request is in work");
        policy.request_came(8, 1, false);
        assert!(goes(&policy, 1), "two clients");
        (0..CLIENTS_REMEMBERED).for_each(|_| policy.request_came(7, 1, false));
        assert!(!goes(&policy, 1), "the second client has left");
        kinds.note(Opcode::Fsync, Duration::from_millis(50));
        assert!(goes(&policy, 1), "the device is slow");
        assert!(policy.goes_to_pool(Opcode::SyncFs, 80, 1, &SlowKinds::default()));
    }
}
