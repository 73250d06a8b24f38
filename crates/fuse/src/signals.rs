//! Noticing SIGTERM, SIGINT and SIGHUP without a thread's signal mask mattering.
//!
//! A signal goes to any thread that does not block it. signalfd needs all threads to block it, but
//! threads of the volume exist before this code runs, so it would miss some signals. A handler that
//! writes to an eventfd works in any thread.

use crate::error::{FuseError, FuseErrorKind, Result};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::Duration;

const SIGNALS: [libc::c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP];

/// The eventfd the handler writes to; −1 while none is watched.
static WAKE: AtomicI32 = AtomicI32::new(-1);
/// The signals that came since this was last asked for, one bit for each number.
static CAME: AtomicU32 = AtomicU32::new(0);

fn bit(signal: libc::c_int) -> u32 {
    1u32.wrapping_shl(signal.unsigned_abs())
}

extern "C" fn on_signal(signal: libc::c_int) {
    CAME.fetch_or(bit(signal), Ordering::AcqRel);
    let fd = WAKE.load(Ordering::Acquire);
    if fd < 0 {
        return;
    }
    let one = 1u64;
    // SAFETY: `write` and access to `errno` are allowed in signal handlers; the buffer is a live
    // local of eight bytes. The interrupted code's `errno` is put back.
    unsafe {
        let errno = libc::__errno_location();
        let saved = *errno;
        libc::write(fd, (&raw const one).cast(), size_of::<u64>());
        *errno = saved;
    }
}

/// Something that can be waited for, together with signals.
#[derive(Clone, Debug)]
pub struct Event(Arc<OwnedFd>);

impl Event {
    /// An event that was not woken yet.
    ///
    /// # Errors
    /// When the system has no descriptor left.
    pub fn new() -> Result<Self> {
        rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map(|fd| Event(Arc::new(fd)))
            .map_err(|e| FuseError::os("cannot make an event", e))
    }

    /// Wakes the waiting threads.
    pub fn wake(&self) {
        // It fails only when the counter is full, and then the waiter is awake already.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }

    /// Waits until woken, or for `limit`.
    pub fn wait(&self, limit: Option<Duration>) {
        let limit = limit.map(|limit| Timespec {
            tv_sec: limit.as_secs().cast_signed(),
            tv_nsec: limit.subsec_nanos().into(),
        });
        let mut fds = [PollFd::new(&*self.0, PollFlags::IN)];
        match rustix::event::poll(&mut fds, limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            // Out of kernel memory: do not spin.
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
        let _ = rustix::io::read(&*self.0, &mut [0u8; 8]);
    }
}

/// Signals that are caught from now on, to be acted on later by [`Session::run_until`](crate::Session::run_until):
/// a program that catches them before mounting loses none in between. A lost one would end the process with the volume mounted.
pub struct Signals {
    pub(crate) event: Event,
    pub(crate) watch: SignalWatch,
}

impl Signals {
    /// Catches SIGTERM, SIGINT and SIGHUP from now on.
    ///
    /// # Errors
    /// As [`SignalWatch::new`].
    pub fn catch() -> Result<Self> {
        let event = Event::new()?;
        let watch = SignalWatch::new(&event)?;
        Ok(Signals { event, watch })
    }
}

/// While it lives, signals wake the event instead of ending the process.
pub struct SignalWatch {
    old: Vec<(libc::c_int, libc::sigaction)>,
    _event: Event,
}

impl SignalWatch {
    /// Starts watching. Only one watch can exist in a process.
    ///
    /// # Errors
    /// When there is one, or the system refuses.
    pub fn new(event: &Event) -> Result<Self> {
        Self::with_flags(event, libc::SA_RESTART)
    }

    /// As [`SignalWatch::new`], for the first of each signal: a second one ends the process.
    ///
    /// # Errors
    /// As [`SignalWatch::new`].
    pub fn first_only(event: &Event) -> Result<Self> {
        Self::with_flags(event, libc::SA_RESTART | libc::SA_RESETHAND)
    }

    /// Catches the signals with these flags of sigaction(2). One watch at a time is possible in a process.
    fn with_flags(event: &Event, flags: libc::c_int) -> Result<Self> {
        if WAKE
            .compare_exchange(-1, event.0.as_raw_fd(), Ordering::AcqRel, Ordering::Acquire)
            .is_err()
        {
            return Err(FuseError::new(
                FuseErrorKind::Os,
                "signals are being watched already in this process",
            ));
        }
        CAME.store(0, Ordering::Release);
        let mut watch = SignalWatch {
            old: Vec::with_capacity(SIGNALS.len()),
            _event: event.clone(),
        };
        for signal in SIGNALS {
            // SAFETY: both structs are plain data for which zeroes are valid; the handler is a function
            // of the right type that only does what is allowed in a handler.
            let result = unsafe {
                let mut new: libc::sigaction = std::mem::zeroed();
                let mut old: libc::sigaction = std::mem::zeroed();
                new.sa_sigaction = on_signal as extern "C" fn(libc::c_int) as usize;
                new.sa_flags = flags;
                libc::sigemptyset(&raw mut new.sa_mask);
                if libc::sigaction(signal, &raw const new, &raw mut old) == 0 {
                    Ok(old)
                } else {
                    Err(std::io::Error::last_os_error())
                }
            };
            match result {
                // Started with nohup(1): hanging up must not end it.
                Ok(old) if signal == libc::SIGHUP && old.sa_sigaction == libc::SIG_IGN => {
                    // SAFETY: `old` is what the kernel gave us for this signal.
                    unsafe { libc::sigaction(signal, &raw const old, std::ptr::null_mut()) };
                }
                Ok(old) => watch.old.push((signal, old)),
                Err(e) => return Err(FuseError::os("cannot catch signals", e)),
            }
        }
        Ok(watch)
    }

    /// Whether a signal came since this was last asked.
    pub fn take(&self) -> bool {
        self.take_signal().is_some()
    }

    /// Ends the watch. Whether a signal came since this was last asked: one that comes later has its old effect.
    pub fn end(mut self) -> bool {
        self.restore();
        self.take()
    }

    fn restore(&mut self) {
        for (signal, old) in self.old.drain(..) {
            // SAFETY: `old` is what the kernel gave us for this signal.
            unsafe { libc::sigaction(signal, &raw const old, std::ptr::null_mut()) };
        }
    }

    /// The number of the signal that came since this was last asked. If several came, SIGTERM is before SIGHUP, and SIGINT last.
    pub fn take_signal(&self) -> Option<i32> {
        let came = CAME.swap(0, Ordering::AcqRel);
        [libc::SIGTERM, libc::SIGHUP, libc::SIGINT]
            .into_iter()
            .find(|signal| came & bit(*signal) != 0)
    }
}

impl Drop for SignalWatch {
    fn drop(&mut self) {
        self.restore();
        // After the handlers are gone; a handler still running writes to an eventfd that `_event`
        // keeps open until after this.
        WAKE.store(-1, Ordering::Release);
    }
}
