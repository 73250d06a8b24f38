//! What the crates above ask the host about a thread and its time. They have no `unsafe`.

/// The number of the CPU that runs this thread. The thread may be moved at any moment. Hosts other than Linux do not tell: there, each thread has a
/// number, in the order in which they call this.
#[must_use]
pub fn current_cpu() -> usize {
    host::current_cpu()
}

/// The host's clock as of its last tick, 1 to 10 ms old at most: seconds and nanoseconds since 1970. It is what kernel file systems give to inodes. Hosts
/// other than Linux have no such clock, and tell the time.
#[must_use]
pub fn time_of_last_tick() -> (i64, u32) {
    host::time_of_last_tick()
}

#[cfg(target_os = "linux")]
mod host {
    pub(super) fn current_cpu() -> usize {
        // SAFETY: takes nothing and returns a number.
        let cpu = unsafe { libc::sched_getcpu() };
        // A kernel without the call has one CPU as far as this can tell.
        usize::try_from(cpu).unwrap_or(0)
    }

    pub(super) fn time_of_last_tick() -> (i64, u32) {
        let mut now = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: writes the time to `now`. Each Linux has this clock.
        unsafe { libc::clock_gettime(libc::CLOCK_REALTIME_COARSE, &mut now) };
        #[allow(clippy::unnecessary_cast, reason = "it is 32 bits long on small hosts")]
        let secs = now.tv_sec as i64;
        // Less than a second's.
        (secs, now.tv_nsec as u32)
    }
}

#[cfg(not(target_os = "linux"))]
mod host {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::SystemTime;

    pub(super) fn current_cpu() -> usize {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static NUMBER: usize = THREADS.fetch_add(1, Ordering::Relaxed);
        }
        NUMBER.with(|number| *number)
    }

    pub(super) fn time_of_last_tick() -> (i64, u32) {
        // A clock before the epoch is wrong in any case.
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        (now.as_secs() as i64, now.subsec_nanos())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    /// In nanoseconds.
    fn now() -> i128 {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap();
        now.as_nanos() as i128
    }

    #[test]
    fn the_tick_is_not_later_than_the_time() {
        for _ in 0..1000 {
            let before = now();
            let (secs, nanos) = time_of_last_tick();
            assert!(nanos < 1_000_000_000);
            let tick = i128::from(secs) * 1_000_000_000 + i128::from(nanos);
            // The longest tick of Linux is 10 ms.
            assert!(before - 20_000_000 < tick && tick <= now());
        }
    }
}
