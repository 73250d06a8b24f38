//! Whether a client keeps many small direct writes in flight.
//!
//! A queue's thread that carries out its clients' direct writes in its own ring spares each of them two wake-ups. A client that has many
//! in flight wakes nobody anyhow: the device's thread is awake, and takes half of the work of each request off the queue's thread, which
//! has all of that client's requests to itself. Many clients with a request each are the first case: what is in flight is spread over
//! the queues, and wakes somebody every time.

/// So many requests in work are many.
const DEEP: usize = 4;
/// As large as what counts as small, in bytes: of a larger one most of the work is in moving its data.
const SMALL: usize = 32 << 10;
/// So many requests that were alone when they came: the client does something else now.
const ALONE: u32 = 64;
/// How often it is asked whose the requests are.
const LOOK_EVERY: u32 = 16;

/// What a queue's thread knows of the depth of its clients.
#[derive(Debug, Default)]
pub(super) struct Depth {
    is_deep: bool,
    alone: u32,
    seen: u32,
}

impl Depth {
    /// A direct request of so many bytes has come, and so many are in work, itself included. Whether it is better off with the device's
    /// thread.
    pub(super) fn is_deep(
        &mut self,
        bytes: usize,
        in_work: usize,
        has_many_clients: impl FnOnce() -> bool,
    ) -> bool {
        if bytes > SMALL {
            return false;
        }
        self.seen = self.seen.wrapping_add(1);
        if self.is_deep {
            self.alone = if in_work == 1 { self.alone + 1 } else { 0 };
            self.is_deep = self.alone < ALONE
                && (!self.seen.is_multiple_of(LOOK_EVERY) || !has_many_clients());
        } else if in_work > DEEP && self.seen.is_multiple_of(LOOK_EVERY) {
            self.is_deep = !has_many_clients();
            self.alone = 0;
        }
        self.is_deep
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of so many requests go to the device's thread.
    fn of(depth: &mut Depth, count: u32, bytes: usize, in_work: usize, many: bool) -> u32 {
        let requests = 0..count;
        requests
            .map(|_| u32::from(depth.is_deep(bytes, in_work, || many)))
            .sum()
    }

    #[test]
    fn one_client_with_many_in_flight_goes_to_the_device() {
        let depth = &mut Depth::default();
        assert_eq!(of(depth, 1000, 4096, DEEP, false), 0);
        assert!(of(depth, 1000, 4096, 64, false) >= 1000 - LOOK_EVERY);
        // Also when few are in flight for a moment, or large ones come between.
        assert_eq!(of(depth, ALONE - 1, 4096, 1, false), ALONE - 1);
        assert_eq!(of(depth, 10, 128 << 10, 64, false), 0);
        assert_eq!(of(depth, 10, 4096, 3, false), 10);
        // And no longer when it does one after another.
        assert!(of(depth, 1000, 4096, 1, false) <= ALONE);
        assert_eq!(of(depth, 1000, 4096, 1, false), 0);
    }

    #[test]
    fn many_clients_with_one_each_do_not() {
        let depth = &mut Depth::default();
        assert_eq!(of(depth, 1000, 4096, 8, true), 0);
        assert!(of(depth, 1000, 4096, 64, false) > 0);
        assert!(of(depth, 1000, 4096, 8, true) <= LOOK_EVERY);
    }
}
