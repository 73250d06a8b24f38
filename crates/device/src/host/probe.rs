//! Attempts of actions that a confined process must not be able to do, for the test command
//! `debug-sandbox`.
//!
//! Here because these attempts need `unsafe`. Each returns what the kernel said; success is bad news.

use io_uring::{IoUring, opcode, types};
use std::ffi::CStr;
use std::io;

/// A ring as the device's threads have it, made before the process is confined.
pub struct RingProbe(IoUring);

impl RingProbe {
    /// Makes the ring as the device's back end does.
    ///
    /// # Errors
    /// When the host has no io_uring.
    pub fn new() -> io::Result<Self> {
        super::uring::build_ring().map(RingProbe)
    }

    /// Opens a file through the ring (`IORING_OP_OPENAT`).
    ///
    /// # Errors
    /// What the kernel said.
    pub fn open(&mut self, path: &CStr) -> io::Result<()> {
        open_through(&mut self.0, path)
    }
}

fn open_through(ring: &mut IoUring, path: &CStr) -> io::Result<()> {
    let entry = opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), path.as_ptr())
        .flags(libc::O_RDONLY | libc::O_CLOEXEC)
        .build();
    // SAFETY: the path outlives the wait for the only entry's completion below.
    unsafe { ring.submission().push(&entry) }.map_err(|_| io::ErrorKind::WouldBlock)?;
    ring.submit_and_wait(1)?;
    let result = ring.completion().next().map_or(0, |entry| entry.result());
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    // SAFETY: the number is that of a descriptor which the kernel has just made, and nothing else knows.
    unsafe { libc::close(result) };
    Ok(())
}

/// Makes another ring, without restrictions, and opens a file through it.
///
/// # Errors
/// What the kernel said.
pub fn open_through_new_ring(path: &CStr) -> io::Result<()> {
    open_through(&mut IoUring::new(2)?, path)
}

fn checked(result: libc::c_long) -> io::Result<()> {
    match result {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Traces another process, and lets it go.
///
/// # Errors
/// What the kernel said.
pub fn trace(process: u32) -> io::Result<()> {
    let none = std::ptr::null_mut::<libc::c_void>();
    let process = process.cast_signed();
    // SAFETY: neither request reads or writes memory of this process.
    unsafe {
        checked(libc::ptrace(libc::PTRACE_SEIZE, process, none, none))?;
        libc::ptrace(libc::PTRACE_DETACH, process, none, none);
    }
    Ok(())
}

/// Reads another process's memory; no byte is asked for.
///
/// # Errors
/// What the kernel said.
pub fn read_memory(process: u32) -> io::Result<()> {
    // SAFETY: the lists of pieces are empty.
    let result = unsafe {
        libc::process_vm_readv(
            process.cast_signed(),
            std::ptr::null(),
            0,
            std::ptr::null(),
            0,
            0,
        )
    };
    checked(result as libc::c_long)
}

/// Forks; the child ends at once.
///
/// # Errors
/// What the kernel said.
pub fn fork() -> io::Result<()> {
    // SAFETY: the child calls nothing but `_exit`, which is allowed after a fork of a process with threads.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
    checked(child.into())
}

/// Maps memory that can be executed.
///
/// # Errors
/// What the kernel said.
pub fn map_executable() -> io::Result<()> {
    let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping at an address of the kernel's choice, unmapped below; nothing uses it.
    unsafe {
        let at = libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0);
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        libc::munmap(at, 4096);
    }
    Ok(())
}

/// Puts a character into the terminal's input, as if it had been typed.
///
/// # Errors
/// What the kernel said.
pub fn type_into_terminal() -> io::Result<()> {
    let letter = b'x';
    // SAFETY: TIOCSTI reads one byte from the pointer.
    checked(unsafe { libc::ioctl(0, libc::TIOCSTI, &raw const letter) }.into())
}
