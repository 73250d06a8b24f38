//! Whether a request that took long waited for something, or lost its CPU to other threads.
//!
//! With more runnable threads than CPUs, a queue's thread is now and then preempted for some milliseconds in the middle of a
//! request. Handing that kind of request to the pool would make it worse: more threads would want to run. A thread that waits
//! gives up its CPU voluntarily, and the kernel counts that.
//!
//! Asking costs a system call before and one after a request, so requests are asked about only after one took long.

use super::limits::{ASK_FOR, HAS_WAITED, MAY_HAVE_WAITED};
use std::time::{Duration, Instant};

/// The state of one queue's thread.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    suspicious_until: Option<Instant>,
}

/// A request that has begun.
pub(crate) struct Begun {
    at: Instant,
    switches: Option<u64>,
}

impl Waits {
    pub(crate) fn begin(&self) -> Begun {
        let at = Instant::now();
        let asks = self.suspicious_until.is_some_and(|until| at < until);
        Begun {
            at,
            switches: asks.then(own_switches).flatten(),
        }
    }

    /// The request was answered: how long it took if it waited.
    pub(crate) fn end(&mut self, begun: &Begun) -> Option<Duration> {
        self.end_after(begun, begun.at.elapsed(), own_switches)
    }

    fn end_after(
        &mut self,
        begun: &Begun,
        took: Duration,
        switches: impl FnOnce() -> Option<u64>,
    ) -> Option<Duration> {
        if took <= MAY_HAVE_WAITED {
            return None;
        }
        self.suspicious_until = Some(begun.at + took + ASK_FOR);
        let waited = begun.switches.is_some_and(|b| switches() != Some(b));
        (waited || took > HAS_WAITED).then_some(took)
    }
}

/// Voluntary context switches of this thread. `None` when the kernel does not say.
fn own_switches() -> Option<u64> {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the kernel fills the structure it is given, or says that it did not.
    let usage = unsafe {
        if libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) != 0 {
            return None;
        }
        usage.assume_init()
    };
    u64::try_from(usage.ru_nvcsw).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_thread_that_sleeps_is_told_from_one_that_works() {
        let before = own_switches().expect("counted");
        std::thread::sleep(2 * MS);
        assert!(own_switches().expect("counted") > before);
    }

    #[test]
    fn a_preempted_thread_did_not_wait() {
        let mut waits = Waits::default();
        let begun = waits.begin();
        assert!(begun.switches.is_none(), "not asked as a rule");
        let never = || -> Option<u64> { unreachable!("the count before is not known") };
        assert_eq!(waits.end_after(&begun, MS, never), None);
        assert!(waits.suspicious_until.is_none());
        // The first one is not known about, unless it is beyond doubt.
        assert_eq!(waits.end_after(&begun, 3 * MS, never), None);
        let begun = waits.begin();
        let switches = begun.switches.expect("asked");
        assert_eq!(waits.end_after(&begun, 3 * MS, || Some(switches)), None);
        let more = || Some(switches + 1);
        assert_eq!(waits.end_after(&begun, 3 * MS, more), Some(3 * MS));
        assert_eq!(
            waits.end_after(&begun, 20 * MS, || Some(switches)),
            Some(20 * MS)
        );
    }

    #[test]
    fn suspicion_ends() {
        let mut waits = Waits::default();
        let begun = Begun {
            at: Instant::now() - 3 * ASK_FOR,
            switches: None,
        };
        waits.end_after(&begun, 3 * MS, || None);
        assert!(waits.begin().switches.is_none());
    }
}
