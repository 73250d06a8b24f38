//! Whether a client keeps many small direct writes in flight.
//!
//! A queue's thread that carries out direct writes in its own ring saves each of them two wake-ups. A client with many writes in
//! flight causes no wake-ups: the device's thread is awake, and takes half of each request's work off the queue's thread, which has
//! all of that client's requests to itself. So such a client's writes go to the device's thread, if there is a CPU for it: the client and
//! the queue's thread have one each. With fewer than [`DEEP_CPUS_MIN`] CPUs all writes use the ring, because the handover between the
//! threads costs more than it gains. Many clients with one request each are the first case: their requests are spread over the
//! queues, and each wakes a thread.

use super::limits::{DEEP, DEEP_ALONE, DEEP_BYTES_MAX, DEEP_CPUS_MIN, DEEP_LOOK_EVERY};

/// The depth of the clients of one queue, as its thread observes it.
#[derive(Debug, Default)]
pub(crate) struct ClientDepth {
    /// CPUs that the server and its clients run on.
    cpus: usize,
    is_deep: bool,
    alone: u32,
    seen: u32,
}

impl ClientDepth {
    pub(crate) fn new(cpus: usize) -> Self {
        ClientDepth {
            cpus,
            ..Self::default()
        }
    }

    /// A direct request of `bytes` has come; `in_work` requests are in progress, this one included. Whether the device's thread serves
    /// it better.
    pub(crate) fn is_deep(
        &mut self,
        bytes: usize,
        in_work: usize,
        has_many_clients: impl FnOnce() -> bool,
    ) -> bool {
        if bytes > DEEP_BYTES_MAX || self.cpus < DEEP_CPUS_MIN {
            return false;
        }
        self.seen = self.seen.wrapping_add(1);
        if self.is_deep {
            self.alone = if in_work == 1 { self.alone + 1 } else { 0 };
            self.is_deep = self.alone < DEEP_ALONE
                && (!self.seen.is_multiple_of(DEEP_LOOK_EVERY) || !has_many_clients());
        } else if in_work > DEEP && self.seen.is_multiple_of(DEEP_LOOK_EVERY) {
            self.is_deep = !has_many_clients();
            self.alone = 0;
        }
        self.is_deep
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of `count` requests go to the device's thread.
    fn of(depth: &mut ClientDepth, count: u32, bytes: usize, in_work: usize, many: bool) -> u32 {
        let requests = 0..count;
        requests
            .map(|_| u32::from(depth.is_deep(bytes, in_work, || many)))
            .sum()
    }

    #[test]
    fn one_client_with_many_in_flight_goes_to_the_device() {
        let depth = &mut ClientDepth::new(DEEP_CPUS_MIN);
        assert_eq!(of(depth, 1000, 4096, DEEP, false), 0);
        assert!(of(depth, 1000, 4096, 64, false) >= 1000 - DEEP_LOOK_EVERY);
        // Also when few are in flight for a moment, or large ones come between.
        assert_eq!(of(depth, DEEP_ALONE - 1, 4096, 1, false), DEEP_ALONE - 1);
        assert_eq!(of(depth, 10, 128 << 10, 64, false), 0);
        assert_eq!(of(depth, 10, 4096, 3, false), 10);
        // And no longer when it does one after another.
        assert!(of(depth, 1000, 4096, 1, false) <= DEEP_ALONE);
        assert_eq!(of(depth, 1000, 4096, 1, false), 0);
    }

    #[test]
    fn without_a_cpu_for_the_device_thread_none_go_there() {
        let depth = &mut ClientDepth::new(DEEP_CPUS_MIN - 1);
        assert_eq!(of(depth, 1000, 4096, 64, false), 0);
    }

    #[test]
    fn many_clients_with_one_each_do_not() {
        let depth = &mut ClientDepth::new(DEEP_CPUS_MIN);
        assert_eq!(of(depth, 1000, 4096, 8, true), 0);
        assert!(of(depth, 1000, 4096, 64, false) > 0);
        assert!(of(depth, 1000, 4096, 8, true) <= DEEP_LOOK_EVERY);
    }
}
