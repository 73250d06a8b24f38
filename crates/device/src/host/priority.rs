//! I/O priorities of threads, as the host has them: ioprio_set(2).

use crate::IoPriority;

const WHO_PROCESS: libc::c_int = 1;
const CLASS_SHIFT: u32 = 13;
const REAL_TIME: i64 = 1;
const BEST_EFFORT: i64 = 2;
const IDLE: i64 = 3;

/// The calling thread's, if one was given to it.
pub(crate) fn of_thread() -> Option<IoPriority> {
    // SAFETY: takes two numbers and returns one; 0 means the calling thread.
    let value = unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_PROCESS, 0) };
    let level = (value & 7) as u8;
    match value >> CLASS_SHIFT {
        _ if value < 0 => None,
        REAL_TIME => Some(IoPriority(0)),
        BEST_EFFORT => Some(IoPriority(level)),
        IDLE => Some(IoPriority(7)),
        _ => None,
    }
}

/// Gives the calling thread a best-effort level. Advice: a host that refuses it loses nothing.
pub(crate) fn set_for_thread(priority: IoPriority) {
    let value = BEST_EFFORT << CLASS_SHIFT | i64::from(priority.0.min(7));
    // SAFETY: takes three numbers; 0 means the calling thread.
    let _refused = unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0, value) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_gets_what_it_adopts() {
        std::thread::spawn(|| {
            IoPriority(6).adopt();
            assert_eq!(IoPriority::current(), IoPriority(6));
            // A sandbox may refuse the call.
            assert!(of_thread().is_none_or(|p| p == IoPriority(6)));
            std::thread::spawn(|| assert!(IoPriority::current().0 <= 7))
                .join()
                .unwrap();
        })
        .join()
        .unwrap();
    }
}
