//! The system calls that a confined process may make.
//!
//! A call is here because serving a volume makes it, or because the C library makes it for memory and threads. Whatever reaches another process,
//! another file or another privilege is not. A call that the filter refuses fails with EPERM, so a call that is missing here shows as an error, not
//! as a crash.

use libc::c_long;

/// How a call is bounded.
pub(crate) enum When {
    Always,
    /// This argument (a 32-bit one) is one of these.
    OneOf(u8, &'static [u32]),
    /// Of this argument's bits these are as given: mask, value.
    Bits(u8, u32, u32),
    /// The first argument is this process, or 0.
    Own,
}

/// Memory, threads, time, and descriptors that are open.
pub(crate) const BASE: &[(c_long, When)] = &[
    // Descriptors.
    (libc::SYS_read, When::Always),
    (libc::SYS_write, When::Always),
    (libc::SYS_readv, When::Always),
    (libc::SYS_writev, When::Always),
    (libc::SYS_pread64, When::Always),
    (libc::SYS_pwrite64, When::Always),
    (libc::SYS_preadv, When::Always),
    (libc::SYS_pwritev, When::Always),
    (libc::SYS_preadv2, When::Always),
    (libc::SYS_pwritev2, When::Always),
    (libc::SYS_copy_file_range, When::Always),
    (libc::SYS_sendfile, When::Always),
    (libc::SYS_splice, When::Always),
    (libc::SYS_lseek, When::Always),
    (libc::SYS_close, When::Always),
    (libc::SYS_fstat, When::Always),
    (
        libc::SYS_newfstatat,
        When::Bits(3, AT_EMPTY_PATH, AT_EMPTY_PATH),
    ),
    (libc::SYS_statx, When::Bits(2, AT_EMPTY_PATH, AT_EMPTY_PATH)),
    (libc::SYS_fstatfs, When::Always),
    (libc::SYS_fsync, When::Always),
    (libc::SYS_fdatasync, When::Always),
    (libc::SYS_sync_file_range, When::Always),
    (libc::SYS_fallocate, When::Always),
    (libc::SYS_ftruncate, When::Always),
    (libc::SYS_fadvise64, When::Always),
    (libc::SYS_flock, When::Always),
    // Not F_SETOWN and F_SETSIG: signals to other processes.
    (libc::SYS_fcntl, When::OneOf(1, FCNTL)),
    (libc::SYS_ioctl, When::OneOf(1, IOCTL)),
    (libc::SYS_dup, When::Always),
    (libc::SYS_dup3, When::Always),
    (libc::SYS_eventfd2, When::Always),
    (libc::SYS_pipe2, When::Always),
    (libc::SYS_ppoll, When::Always),
    // Rings are there already, and restricted.
    (libc::SYS_io_uring_enter, When::Always),
    // Memory. Nothing that can be executed comes into being.
    (libc::SYS_mmap, When::Bits(2, PROT_EXEC, 0)),
    (libc::SYS_mprotect, When::Bits(2, PROT_EXEC, 0)),
    (libc::SYS_munmap, When::Always),
    (libc::SYS_mremap, When::Always),
    (libc::SYS_madvise, When::Always),
    (libc::SYS_mincore, When::Always),
    (libc::SYS_msync, When::Always),
    (libc::SYS_brk, When::Always),
    // Threads of this process.
    (libc::SYS_clone, When::Bits(0, CLONE_THREAD, CLONE_THREAD)),
    // Its flags are in memory, where a filter does not see them: answered with ENOSYS, upon which the C library calls `clone`.
    (libc::SYS_clone3, When::Always),
    (libc::SYS_futex, When::Always),
    (libc::SYS_set_robust_list, When::Always),
    (libc::SYS_rseq, When::Always),
    (libc::SYS_membarrier, When::Always),
    (libc::SYS_exit, When::Always),
    (libc::SYS_exit_group, When::Always),
    (libc::SYS_gettid, When::Always),
    (libc::SYS_getpid, When::Always),
    (libc::SYS_getppid, When::Always),
    (libc::SYS_getuid, When::Always),
    (libc::SYS_geteuid, When::Always),
    (libc::SYS_getgid, When::Always),
    (libc::SYS_getegid, When::Always),
    (libc::SYS_sched_yield, When::Always),
    (libc::SYS_sched_getaffinity, When::Always),
    (libc::SYS_sched_setaffinity, When::Own),
    (libc::SYS_getcpu, When::Always),
    (libc::SYS_ioprio_get, When::Always),
    // Of processes (1), the own thread: the second argument is not looked at, and other threads take a capability.
    (libc::SYS_ioprio_set, When::OneOf(0, &[1])),
    (libc::SYS_prctl, When::OneOf(0, &[PR_SET_NAME])),
    (libc::SYS_umask, When::Always),
    (libc::SYS_getrusage, When::Always),
    (libc::SYS_sysinfo, When::Always),
    (libc::SYS_uname, When::Always),
    (libc::SYS_getrandom, When::Always),
    // Signals, of this process: `abort` sends itself one.
    (libc::SYS_rt_sigaction, When::Always),
    (libc::SYS_rt_sigprocmask, When::Always),
    (libc::SYS_rt_sigreturn, When::Always),
    (libc::SYS_sigaltstack, When::Always),
    (libc::SYS_tgkill, When::Own),
    (libc::SYS_restart_syscall, When::Always),
    // Time.
    (libc::SYS_clock_gettime, When::Always),
    (libc::SYS_clock_getres, When::Always),
    (libc::SYS_clock_nanosleep, When::Always),
    (libc::SYS_nanosleep, When::Always),
    (libc::SYS_gettimeofday, When::Always),
    // Sockets that are there: to the keeper of a mount, to an NBD server. `sendto` is not here with an address: nothing can make a socket.
    (libc::SYS_sendto, When::Always),
    (libc::SYS_recvfrom, When::Always),
    (libc::SYS_sendmsg, When::Always),
    (libc::SYS_recvmsg, When::Always),
    (libc::SYS_shutdown, When::Always),
    (libc::SYS_getsockopt, When::Always),
    (libc::SYS_setsockopt, When::Always),
];

/// Calls that only some machines have.
#[cfg(target_arch = "x86_64")]
pub(crate) const BASE_MORE: &[(c_long, When)] = &[
    (libc::SYS_poll, When::Always),
    (libc::SYS_dup2, When::Always),
    (libc::SYS_time, When::Always),
    (libc::SYS_arch_prctl, When::Always),
];
#[cfg(not(target_arch = "x86_64"))]
pub(crate) const BASE_MORE: &[(c_long, When)] = &[];

/// A server that goes to the background, after it has mounted.
pub(crate) const SERVING: &[(c_long, When)] = &[(libc::SYS_setsid, When::Always)];

/// Files of the host, by path.
pub(crate) const PATHS: &[(c_long, When)] = &[
    (libc::SYS_openat, When::Always),
    (libc::SYS_openat2, When::Always),
    (libc::SYS_newfstatat, When::Always),
    (libc::SYS_statx, When::Always),
    (libc::SYS_statfs, When::Always),
    (libc::SYS_readlinkat, When::Always),
    (libc::SYS_getdents64, When::Always),
    (libc::SYS_faccessat, When::Always),
    (libc::SYS_faccessat2, When::Always),
    (libc::SYS_mkdirat, When::Always),
    (libc::SYS_mknodat, When::Always),
    (libc::SYS_symlinkat, When::Always),
    (libc::SYS_linkat, When::Always),
    (libc::SYS_unlinkat, When::Always),
    // Of a descriptor: what was written beneath an open path becomes durable.
    (libc::SYS_syncfs, When::Always),
    (libc::SYS_renameat, When::Always),
    (libc::SYS_renameat2, When::Always),
    (libc::SYS_truncate, When::Always),
    (libc::SYS_fchmod, When::Always),
    (libc::SYS_fchmodat, When::Always),
    (libc::SYS_fchmodat2, When::Always),
    (libc::SYS_fchown, When::Always),
    (libc::SYS_fchownat, When::Always),
    (libc::SYS_utimensat, When::Always),
    (libc::SYS_getxattr, When::Always),
    (libc::SYS_lgetxattr, When::Always),
    (libc::SYS_fgetxattr, When::Always),
    (libc::SYS_listxattr, When::Always),
    (libc::SYS_llistxattr, When::Always),
    (libc::SYS_flistxattr, When::Always),
    (libc::SYS_setxattr, When::Always),
    (libc::SYS_lsetxattr, When::Always),
    (libc::SYS_fsetxattr, When::Always),
    (libc::SYS_removexattr, When::Always),
    (libc::SYS_lremovexattr, When::Always),
    (libc::SYS_fremovexattr, When::Always),
    (libc::SYS_getcwd, When::Always),
    (
        libc::SYS_ioctl,
        When::OneOf(1, &[FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_IOC_FSGETXATTR]),
    ),
];

#[cfg(target_arch = "x86_64")]
pub(crate) const PATHS_MORE: &[(c_long, When)] = &[
    (libc::SYS_open, When::Always),
    (libc::SYS_stat, When::Always),
    (libc::SYS_lstat, When::Always),
    (libc::SYS_readlink, When::Always),
    (libc::SYS_access, When::Always),
    (libc::SYS_mkdir, When::Always),
    (libc::SYS_rmdir, When::Always),
    (libc::SYS_mknod, When::Always),
    (libc::SYS_symlink, When::Always),
    (libc::SYS_link, When::Always),
    (libc::SYS_unlink, When::Always),
    (libc::SYS_rename, When::Always),
    (libc::SYS_chmod, When::Always),
    (libc::SYS_chown, When::Always),
    (libc::SYS_lchown, When::Always),
];
#[cfg(not(target_arch = "x86_64"))]
pub(crate) const PATHS_MORE: &[(c_long, When)] = &[];

const AT_EMPTY_PATH: u32 = libc::AT_EMPTY_PATH.cast_unsigned();
const PROT_EXEC: u32 = libc::PROT_EXEC.cast_unsigned();
const CLONE_THREAD: u32 = libc::CLONE_THREAD.cast_unsigned();
const PR_SET_NAME: u32 = libc::PR_SET_NAME.cast_unsigned();
const FCNTL: &[u32] = &[
    libc::F_GETFD.cast_unsigned(),
    libc::F_SETFD.cast_unsigned(),
    libc::F_GETFL.cast_unsigned(),
    libc::F_SETFL.cast_unsigned(),
    libc::F_DUPFD_CLOEXEC.cast_unsigned(),
    libc::F_GETPIPE_SZ.cast_unsigned(),
];
const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
const FS_IOC_FSGETXATTR: u32 = 0x801C_581F;
/// Not TIOCSTI and TIOCLINUX, which type into the user's terminal.
const IOCTL: &[u32] = &[
    0x5401,      // TCGETS: is it a terminal?
    0x5413,      // TIOCGWINSZ: how wide is it?
    0x1268,      // BLKSSZGET
    0x127B,      // BLKPBSZGET
    0x125E,      // BLKROGET
    0x1277,      // BLKDISCARD
    0x127F,      // BLKZEROOUT
    0x8008_1272, // BLKGETSIZE64
    0x8004_E500, // FUSE_DEV_IOC_CLONE
];
