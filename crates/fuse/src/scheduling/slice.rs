//! How soon the server's threads run after they wake.
//!
//! A thread that wakes takes a busy CPU only if its deadline comes before that of the thread that runs there. Linux sets the deadline
//! to the end of a slice of some milliseconds. The server's threads work for tens of microseconds and sleep, and a client waits for
//! each of them. On busy CPUs most of a request's time is then spent between waking and running.
//!
//! A shorter slice brings the deadline forward. The thread's share of the CPU stays the same, so other programs lose nothing but
//! their turn. Threads inherit the slice from the thread that starts them.
//!
//! Needs no privilege. Linux before 6.12 takes the request and does nothing.
//!
//! References: Linux documentation, "EEVDF Scheduler"; sched_setattr(2).

use super::limits::SLICE;
use std::io;

/// Asks the scheduler to run the calling thread, and the threads that it starts from now on, soon after they wake.
///
/// For a program that serves a mount. Call it before the volume is opened, because the volume starts threads that requests wait
/// for. A thread with a real-time or idle policy, or with a shorter slice, stays as it is.
///
/// # Errors
/// The host's error. The mount then works all the same, and is slower on busy CPUs.
pub fn request_short_slices() -> io::Result<()> {
    let mut attr = attributes()?;
    let slice_ns = u64::try_from(SLICE.as_nanos()).unwrap_or(u64::MAX);
    let shares = [libc::SCHED_OTHER, libc::SCHED_BATCH].contains(&attr.sched_policy.cast_signed());
    let is_short = (1..=slice_ns).contains(&attr.sched_runtime);
    if !shares || is_short {
        return Ok(());
    }
    attr.sched_runtime = slice_ns;
    // SAFETY: the kernel reads as many bytes as `size` says, and that is the size of what the pointer points to.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The scheduling attributes of the calling thread.
fn attributes() -> io::Result<libc::sched_attr> {
    let bytes = size_of::<libc::sched_attr>();
    let mut attr = std::mem::MaybeUninit::<libc::sched_attr>::zeroed();
    // SAFETY: the kernel writes at most `bytes` bytes to the pointer, and what it leaves is zero. All fields are numbers.
    unsafe {
        if libc::syscall(libc::SYS_sched_getattr, 0, attr.as_mut_ptr(), bytes, 0) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(attr.assume_init())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_are_started_later_have_short_slices_too() {
        // In a thread of its own, whose children inherit from it.
        let test = || {
            let before = attributes().expect("told");
            request_short_slices().expect("needs no privilege");
            let child = std::thread::spawn(attributes).join().expect("no panic");
            (before, attributes().expect("told"), child.expect("told"))
        };
        let (before, own, child) = std::thread::spawn(test).join().expect("no panic");
        let kept = |attr: &libc::sched_attr| (attr.sched_policy, attr.sched_nice);
        assert_eq!((kept(&own), kept(&child)), (kept(&before), kept(&before)));
        if before.sched_runtime == 0 {
            return blockwright_oracles::leave("this kernel does not tell slices");
        }
        let slice_ns = SLICE.as_nanos() as u64;
        assert!(own.sched_runtime <= slice_ns, "{}", own.sched_runtime);
        assert_eq!(child.sched_runtime, own.sched_runtime);
    }

    #[test]
    fn a_shorter_slice_stays() {
        let test = || {
            request_short_slices().expect("needs no privilege");
            let first = attributes().expect("told").sched_runtime;
            request_short_slices().expect("needs no privilege");
            (first, attributes().expect("told").sched_runtime)
        };
        let (first, second) = std::thread::spawn(test).join().expect("no panic");
        assert_eq!(first, second);
    }
}
