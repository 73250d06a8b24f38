//! I/O priorities of threads, as the host has them: ioprio_set(2). Levels are those of the best-effort class, 0 (first) to 7. Hosts other than Linux have none.

#[cfg(target_os = "linux")]
pub(crate) use linux::{of, of_thread, set_for_thread};

#[cfg(target_os = "linux")]
mod linux {
    const WHO_PROCESS: libc::c_int = 1;
    const CLASS_SHIFT: u32 = 13;
    const REAL_TIME: i64 = 1;
    const BEST_EFFORT: i64 = 2;
    const IDLE: i64 = 3;

    /// The calling thread's, if one was given to it.
    pub(crate) fn of_thread() -> Option<u8> {
        of(0)
    }

    /// That of a thread of the host, 0 for the calling one, if one was given to it.
    pub(crate) fn of(thread: libc::pid_t) -> Option<u8> {
        // SAFETY: takes two numbers and returns one.
        let value = unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_PROCESS, thread) };
        let level = (value & 7) as u8;
        match value >> CLASS_SHIFT {
            _ if value < 0 => None,
            REAL_TIME => Some(0),
            BEST_EFFORT => Some(level),
            IDLE => Some(7),
            _ => None,
        }
    }

    /// Gives the calling thread a best-effort level. Advice: a host that refuses it loses nothing.
    pub(crate) fn set_for_thread(level: u8) {
        let value = BEST_EFFORT << CLASS_SHIFT | i64::from(level.min(7));
        // SAFETY: takes three numbers; 0 means the calling thread.
        let _refused = unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, 0, value) };
    }
}

#[cfg(not(target_os = "linux"))]
mod elsewhere {
    pub(crate) fn of_thread() -> Option<u8> {
        None
    }

    pub(crate) fn of(_thread: i32) -> Option<u8> {
        None
    }

    pub(crate) fn set_for_thread(_level: u8) {}
}

#[cfg(not(target_os = "linux"))]
pub(crate) use elsewhere::{of, of_thread, set_for_thread};

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::IoPriority;

    #[test]
    fn who_acts_for_another_has_its_priority_for_that_long() {
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || {
            IoPriority(6).adopt();
            // SAFETY: takes nothing and returns a number.
            let thread = unsafe { libc::syscall(libc::SYS_gettid) };
            tell.send(thread as u32).unwrap();
            let _ended = ended.recv();
        });
        let thread = told.recv().unwrap();
        let before = IoPriority::current();
        // A sandbox may refuse the call.
        if of(thread as libc::pid_t).is_some() {
            assert_eq!(
                IoPriority::acting_for(thread, IoPriority::current),
                IoPriority(6)
            );
        }
        assert_eq!(IoPriority::acting_for(0, IoPriority::current), before);
        assert_eq!(IoPriority::current(), before);
        drop(end);
        other.join().unwrap();
        // Gone, or another's number by now.
        let _any = IoPriority::acting_for(thread, IoPriority::current);
        assert_eq!(IoPriority::current(), before);
    }

    #[test]
    fn a_thread_gets_what_it_adopts() {
        std::thread::spawn(|| {
            IoPriority(6).adopt();
            assert_eq!(IoPriority::current(), IoPriority(6));
            // A sandbox may refuse the call.
            assert!(of_thread().is_none_or(|level| level == 6));
            std::thread::spawn(|| assert!(IoPriority::current().0 <= 7))
                .join()
                .unwrap();
        })
        .join()
        .unwrap();
    }
}
