//! Removes the output of a confined command that fails.
//!
//! A confined process cannot remove a file. So a second process, which sees no image, waits at the end of a pipe: it learns whether to
//! remove the file when the pipe closes, and does so. That holds for a command that crashes or is killed, too.

use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The hidden command that it is.
pub const COMMAND: &str = "debug-janitor";

pub(super) struct Janitor(Child);

impl Janitor {
    /// Starts one for the file at `path`. `remove`: whether it is to go unless something else is said.
    pub(super) fn start(path: &Path, remove: bool) -> io::Result<Self> {
        let child = Command::new("/proc/self/exe")
            .args([OsStr::new(COMMAND), OsStr::new("--")])
            .arg(std::path::absolute(path)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let mut janitor = Janitor(child);
        janitor.expect(remove)?;
        Ok(janitor)
    }

    /// Says whether the file is to be removed from now on.
    pub(super) fn expect(&mut self, remove: bool) -> io::Result<()> {
        match &mut self.0.stdin {
            Some(pipe) => pipe.write_all(if remove { b"r" } else { b"k" }),
            None => Ok(()),
        }
    }
}

impl Drop for Janitor {
    /// Waits until it has carried out the last order. By its pipe: waiting for a process is not among the calls of a confined one.
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        if let Some(mut out) = self.0.stdout.take() {
            let _ = out.read(&mut [0]);
        }
    }
}

/// The janitor itself.
pub fn wait(path: &Path) {
    // A signal of the terminal is for the command; this process ends with it.
    let _ = rustix::process::setsid();
    let _ = std::env::set_current_dir("/");
    let mut said = Vec::new();
    let _ = io::stdin().lock().read_to_end(&mut said);
    if said.last() == Some(&b'r') {
        let _ = std::fs::remove_file(path);
    }
}
