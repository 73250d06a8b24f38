//! The other end of the control ioctl: asks the server of a mount.
//!
//! For programs beside the server (`blockwright stats`, `tune`, `trace`). An open root directory is all it needs: no socket, no privilege, and the same
//! answer over each transport. `protocol::control` has the packets, `dispatch::control` the answers.

use crate::protocol::control::{
    IOCTL, Lines, OPEN_IT, Packet, Request, Status, TraceReport, lines, read_stats, read_tunables,
};
use blockwright_vfs::{Stats, Tunable};
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

/// Why the server could not be asked.
#[derive(Debug)]
pub enum ControlError {
    /// The root directory cannot be opened, or the mount is dead.
    Os(io::Error),
    /// Nothing of ours is mounted there.
    NotOurs,
    /// The server says no, and why.
    Refused(String),
    /// The answer is invalid: the server is of another version.
    Garbled,
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ControlError::Os(e) => e.fmt(f),
            ControlError::NotOurs => f.write_str("not a volume that blockwright has mounted"),
            ControlError::Refused(why) => f.write_str(why),
            ControlError::Garbled => {
                f.write_str("the server's answer makes no sense; it is of another version")
            }
        }
    }
}

impl std::error::Error for ControlError {}

type Result<T> = std::result::Result<T, ControlError>;

/// A line to the server of a mount. Keeps the mount busy while it lives.
pub struct Control {
    root: File,
}

impl Control {
    /// Opens the root directory of a mount.
    ///
    /// # Errors
    /// `Os`.
    pub fn open(mountpoint: &Path) -> Result<Self> {
        let root = File::open(mountpoint).map_err(ControlError::Os)?;
        Ok(Control { root })
    }

    fn exchange(&self, packet: &mut Packet) -> Result<()> {
        // SAFETY: the ioctl's number says that it reads and writes PACKET_BYTES at the pointer, which is the
        // size of `Packet` (asserted there); any bytes are a valid `Packet`; the borrow is exclusive and lives
        // until the call returns. A file system that does not know the number returns an error.
        let result = unsafe {
            libc::ioctl(
                self.root.as_raw_fd(),
                libc::c_ulong::from(IOCTL) as _,
                std::ptr::from_mut(packet),
            )
        };
        if result == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        Err(match error.raw_os_error() {
            Some(libc::ENOTTY | libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP) => {
                ControlError::NotOurs
            }
            _ => ControlError::Os(error),
        })
    }

    /// Sends a request with these fields, and fetches all pages of the answer.
    fn ask(&self, request: Request, fields: &[&str]) -> Result<String> {
        let mut text = Lines::default();
        if !fields.is_empty() {
            text.line(fields.iter().copied());
        }
        let text = text.into_text();
        let asked = Packet::new(request as u32, 0, text.as_bytes(), 0);
        if (asked.len as usize) < text.len() {
            return Err(ControlError::Refused("the path is too long".to_owned()));
        }
        // An answer that was pushed out by others' is asked for again.
        for _ in 0..16 {
            let mut answer = asked;
            self.exchange(&mut answer)?;
            let status = answer.code;
            let mut bytes = answer.text().ok_or(ControlError::Garbled)?.to_vec();
            let (token, total) = (answer.token, answer.total as usize);
            let mut stale = false;
            while bytes.len() < total && token != 0 {
                let mut next = Packet::new(request as u32, token, b"", 0);
                next.offset = bytes.len() as u32;
                self.exchange(&mut next)?;
                let page = next.text().ok_or(ControlError::Garbled)?;
                if next.code == Status::Stale as u32 {
                    stale = true;
                    break;
                }
                if page.is_empty() {
                    return Err(ControlError::Garbled);
                }
                bytes.extend_from_slice(page);
            }
            if stale {
                continue;
            }
            let text = String::from_utf8(bytes).map_err(|_| ControlError::Garbled)?;
            return match status {
                0 => Ok(text),
                _ => Err(ControlError::Refused(text)),
            };
        }
        Err(ControlError::Refused(
            "the server is busy with others' questions".to_owned(),
        ))
    }

    /// All statistics.
    ///
    /// # Errors
    /// See [`ControlError`].
    pub fn stats(&self) -> Result<Stats> {
        read_stats(&self.ask(Request::Stats, &[])?).ok_or(ControlError::Garbled)
    }

    /// Makes everything durable that was written to the mount before: the kernel's cached pages first, then the volume.
    /// For sync(2) and syncfs(2) the kernel sends no request to a FUSE server.
    ///
    /// # Errors
    /// See [`ControlError`]; `Refused` when the volume could not be written, `Os` when cached pages could not, now or since a caller
    /// asked last: what could be written is durable anyway.
    pub fn sync(&self) -> Result<()> {
        let cached = rustix::fs::syncfs(&self.root).map_err(|e| ControlError::Os(e.into()));
        self.ask(Request::Sync, &[])?;
        cached
    }

    /// Makes the volume larger: to this many bytes, by this many (`+`), or to all that its device has (`fill`). Returns its bytes before and now.
    ///
    /// # Errors
    /// See [`ControlError`]; `Refused` says why the volume does not grow.
    pub fn grow(&self, size: &str) -> Result<(u64, u64)> {
        let text = self.ask(Request::Grow, &[size])?;
        let numbers: Vec<u64> = lines(&text)
            .next()
            .unwrap_or_default()
            .iter()
            .filter_map(|field| field.parse().ok())
            .collect();
        match numbers[..] {
            [before, now] => Ok((before, now)),
            _ => Err(ControlError::Garbled),
        }
    }

    /// What can be changed.
    ///
    /// # Errors
    /// See [`ControlError`].
    pub fn tunables(&self) -> Result<Vec<Tunable>> {
        read_tunables(&self.ask(Request::Tunables, &[])?).ok_or(ControlError::Garbled)
    }

    /// Changes one of [`Control::tunables`]. Returns it with the value now in force.
    ///
    /// # Errors
    /// See [`ControlError`].
    pub fn tune(&self, name: &str, value: u64) -> Result<Tunable> {
        let text = self.ask(Request::Tune, &[name, &value.to_string()])?;
        let found = read_tunables(&text).and_then(|all| all.into_iter().next());
        found.ok_or(ControlError::Garbled)
    }

    /// Has the server record device requests to the file at `path`, which it makes or empties.
    ///
    /// # Errors
    /// See [`ControlError`].
    pub fn start_trace(&self, path: &Path, bytes_max: u64) -> Result<()> {
        let path = path
            .to_str()
            .ok_or_else(|| ControlError::Refused("the path is not UTF-8".to_owned()))?;
        let bytes_max = bytes_max.to_string();
        let answer = self.ask(Request::TraceStart, &[path, &bytes_max])?;
        if answer != OPEN_IT {
            return Ok(());
        }
        let file = File::create(path).map_err(|e| ControlError::Refused(format!("{path}: {e}")))?;
        let number = file.as_raw_fd().to_string();
        self.ask(Request::TraceStart, &[path, &bytes_max, &number])
            .map(drop)
    }

    /// How the recording goes; `None` when there is none.
    ///
    /// # Errors
    /// See [`ControlError`].
    pub fn trace_status(&self) -> Result<Option<TraceReport>> {
        let text = self.ask(Request::TraceStatus, &[])?;
        match text.is_empty() {
            true => Ok(None),
            false => TraceReport::read(&text)
                .map(Some)
                .ok_or(ControlError::Garbled),
        }
    }

    /// Ends the recording.
    ///
    /// # Errors
    /// See [`ControlError`].
    pub fn stop_trace(&self) -> Result<TraceReport> {
        TraceReport::read(&self.ask(Request::TraceStop, &[])?).ok_or(ControlError::Garbled)
    }
}
