//! Going to the background once the mount is up.
//!
//! A process with threads cannot fork, and the volume has threads before the mount is up. So the
//! program starts itself again in the foreground, with a pipe as the child's standard output: the child
//! writes one line into it when the files are there, and lets go of the terminal. Until then
//! the child's errors go to the parent's standard error, and its exit code becomes the parent's.

use crate::exit;
use crate::failure::{Failure, Result};
use rustix::fs::{Mode, OFlags};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

/// Tells the child that it is one.
const CHILD: &str = "BLOCKWRIGHT_BACKGROUND";
const READY: &str = "ready";

/// Whether this process is to go to the background when it is ready.
pub fn is_child() -> bool {
    std::env::var_os(CHILD).is_some()
}

/// Starts the program again with these arguments and waits until it is ready or has failed.
///
/// # Errors
/// When it failed; it has said why.
pub fn start(arguments: &[OsString]) -> Result<()> {
    let mut child = Command::new("/proc/self/exe")
        .arg0("blockwright")
        .args(arguments)
        .env(CHILD, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| Failure::new(format_args!("cannot start the server: {e}")))?;
    let mut line = String::new();
    if let Some(pipe) = child.stdout.take() {
        BufReader::new(pipe).read_line(&mut line)?;
    }
    if line.trim_end() == READY {
        return Ok(());
    }
    let status = child.wait()?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    match code {
        Some(exit::SUCCESS) | None => Err(Failure::new(format_args!(
            "the server ended before the volume was mounted ({status})"
        ))),
        Some(code) => Err(Failure::said(code)),
    }
}

/// Opens what [`detach`] puts in the place of the standard descriptors, and leaves the directory that the program was called in:
/// later nothing may be opened any more.
///
/// # Errors
/// The host's.
pub fn prepare() -> Result<OwnedFd> {
    std::env::set_current_dir("/")?;
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    Ok(rustix::fs::open("/dev/null", flags, Mode::empty())?)
}

/// In the child: reports success to the parent, and becomes a daemon: a session of its own, with nothing on its
/// standard descriptors. `null` is from [`prepare`].
///
/// # Errors
/// When the parent is gone or the descriptors cannot be replaced.
pub fn detach(null: &OwnedFd) -> Result<()> {
    // Started as /proc/self/exe: `ps` and "in use by process …" would call it "exe".
    let _ = rustix::thread::set_name(c"blockwright");
    // Fails only for a process that leads a session already, which is what is wanted.
    let _ = rustix::process::setsid();
    let mut out = std::io::stdout().lock();
    writeln!(out, "{READY}")?;
    out.flush()?;
    rustix::stdio::dup2_stdin(null)?;
    rustix::stdio::dup2_stdout(null)?;
    rustix::stdio::dup2_stderr(null)?;
    Ok(())
}
