//! The keeper's own process: serves what [`Keeper`](crate::Keeper) asks for. See `keeper` for what it is.

use super::{DEV_FUSE, Mount, MountPoint, Unmount, tune_bdi};
use crate::error::{FuseError, FuseErrorKind, Result};
use crate::keeper::{Answer, Ask, KINDS, PACKET_BYTES_MAX, receive, send};
use crate::options::FuseOptions;
use crate::process;
use crate::signals::{Event, Signals};
use parking_lot::Mutex;
use rustix::fs::{FileType, Mode, OFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use zerocopy::TryFromBytes;

/// How often a server may mount: once more for each way that requests can travel.
const MOUNTS_MAX: usize = 4;
/// How long a server's process may exist after its first thread ended. Ending takes milliseconds, and the connection of a server that ends by itself
/// is none of the keeper's business: its number may be another's by then.
const LINGER: Duration = Duration::from_millis(1500);
/// Keeps a mount: serves the socket that is standard input until it is closed. `log` puts a line into the system's log.
///
/// # Errors
/// When it was not started by [`Keeper::start`](crate::Keeper::start).
pub fn keep(
    mountpoint: &Path,
    options: &FuseOptions,
    log: impl Fn(&str) + Send + Sync + 'static,
) -> Result<()> {
    let failed = |e: io::Error| FuseError::os("not started by a server", e);
    // Signals of a terminal or a service manager are for the server; the keeper is needed until it has
    // ended.
    let _ = rustix::process::setsid();
    let signals = Signals::catch()?;
    let server = rustix::process::getppid();
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM));
    let _ = std::env::set_current_dir("/");
    let first = io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
    let (_, more) = receive(first.as_fd(), &mut [0; 16]).map_err(failed)?;
    let desk = Desk {
        mountpoint: mountpoint.to_owned(),
        options: FuseOptions {
            keeper: None,
            ..options.clone()
        },
        log: Box::new(log),
        state: Mutex::default(),
    };
    let desk = Arc::new(desk);
    for socket in more {
        let desk = Arc::clone(&desk);
        std::thread::Builder::new()
            .name("fuse-keeper".to_owned())
            .spawn(move || desk.serve(&socket))
            .map_err(failed)?;
    }
    if let Some(server) = server {
        let (desk, event) = (Arc::clone(&desk), signals.event.clone());
        std::thread::Builder::new()
            .name("fuse-keeper-end".to_owned())
            .spawn(move || desk.watch(server, &event))
            .map_err(failed)?;
    }
    desk.serve(&first);
    // All sockets of a server close together; what is still being done has no reader.
    Ok(())
}

#[derive(Default)]
struct State {
    point: Option<MountPoint>,
    mounts: usize,
    /// The root directory, kept open until the connection is cut.
    root: Option<OwnedFd>,
}

struct Desk {
    mountpoint: PathBuf,
    options: FuseOptions,
    log: Box<dyn Fn(&str) + Send + Sync>,
    state: Mutex<State>,
}

impl Desk {
    fn serve(&self, socket: &OwnedFd) {
        let mut bytes = [0; PACKET_BYTES_MAX];
        while let Ok((len @ 1.., _)) = receive(socket.as_fd(), &mut bytes) {
            let answer = match Ask::try_read_from_bytes(&bytes[..1]) {
                Ok(ask) => self.answer(ask, &bytes[1..len]),
                Err(_) => Err(FuseError::new(FuseErrorKind::Os, "unknown request")),
            };
            let sent = match &answer {
                Ok((text, fd)) => {
                    let packet = [&[0], &text[..text.len().min(PACKET_BYTES_MAX - 1)]].concat();
                    let fds: Vec<BorrowedFd<'_>> = fd.iter().map(AsFd::as_fd).collect();
                    send(socket.as_fd(), &packet, &fds)
                }
                Err(e) => {
                    let known = KINDS.iter().position(|kind| *kind == e.kind());
                    let status = known.unwrap_or(0) as u8 + 1;
                    let text = e.to_string().into_bytes();
                    let packet = [&[status], &text[..text.len().min(PACKET_BYTES_MAX - 1)]];
                    send(socket.as_fd(), &packet.concat(), &[])
                }
            };
            if sent.is_err() {
                return;
            }
        }
    }

    /// Ends the connection of a server that was killed and cannot end. This process exits meanwhile if the server can.
    fn watch(&self, server: rustix::process::Pid, signalled: &Event) {
        loop {
            signalled.wait(None);
            std::thread::sleep(LINGER);
            if is_ending(server)
                && let Ok(point) = self.point()
            {
                let ended = point.break_connection().or_else(|_| point.force_end());
                if ended.is_err() {
                    (self.log)(&point.advice());
                }
            }
        }
    }

    /// Where it is mounted. No lock is held while that is worked on.
    fn point(&self) -> Result<MountPoint> {
        let point = self.state.lock().point.clone();
        point.ok_or_else(|| FuseError::new(FuseErrorKind::Mount, "nothing is mounted"))
    }

    fn answer(&self, ask: Ask, argument: &[u8]) -> Answer {
        let number = |at: usize| {
            let bytes = argument.get(at..at + 4).and_then(|b| b.try_into().ok());
            bytes
                .map(u32::from_le_bytes)
                .ok_or_else(|| FuseError::new(FuseErrorKind::Os, "a number is missing"))
        };
        let nothing = |()| (Vec::new(), None);
        match ask {
            Ask::Mount => self.mount(false),
            Ask::MountReadOnly => self.mount(true),
            Ask::Unmount => self.point()?.unmount(Unmount::IfIdle).map(nothing),
            Ask::Detach => self.point()?.unmount(Unmount::Detach).map(nothing),
            Ask::WriteBack => self.write_back().map(nothing),
            Ask::Abort => {
                let point = self.point()?;
                let root = self.state.lock().root.take();
                point.abort(root).map(nothing)
            }
            Ask::Break => self
                .point()?
                .break_connection()
                .map(nothing)
                .map_err(|e| FuseError::os("cannot end the connection", e)),
            Ask::ForceEnd => self.point()?.force_end().map(nothing),
            Ask::Tune => {
                let hint = tune_bdi(self.point()?.path(), number(0)?);
                Ok((hint.unwrap_or_default().into_bytes(), None))
            }
            Ask::Elsewhere => {
                use std::os::unix::ffi::OsStrExt;
                let point = self.point()?;
                let mut answer = vec![u8::from(point.is_held_elsewhere())];
                if let Some(there) = point.elsewhere() {
                    answer.extend(there.pid.to_le_bytes());
                    answer.extend(there.point.as_os_str().as_bytes());
                }
                Ok((answer, None))
            }
            Ask::Device => {
                let flags = OFlags::RDWR | OFlags::CLOEXEC;
                let fd = rustix::fs::open(DEV_FUSE, flags, Mode::empty())
                    .map_err(|e| FuseError::os("cannot open the device", e))?;
                Ok((Vec::new(), Some(fd)))
            }
            Ask::Log => {
                let line = String::from_utf8_lossy(argument);
                let clean: String = line.chars().filter(|c| !c.is_control()).collect();
                (self.log)(&clean);
                Ok((Vec::new(), None))
            }
            Ask::Groups => {
                let groups = process::supplementary_groups(number(0)?);
                let bytes = groups.iter().flat_map(|id| id.to_le_bytes());
                Ok((bytes.take(PACKET_BYTES_MAX - 4).collect(), None))
            }
            Ask::Trace => trace_file(number(0)?, number(4)?).map(|fd| (Vec::new(), Some(fd))),
        }
    }

    fn mount(&self, read_only: bool) -> Answer {
        use std::os::unix::ffi::OsStrExt;
        let mut state = self.state.lock();
        if state.mounts == MOUNTS_MAX {
            return Err(FuseError::new(
                FuseErrorKind::Mount,
                "mounted too often already",
            ));
        }
        state.mounts += 1;
        let mut options = self.options.clone();
        options.read_only |= read_only;
        let (fd, point) = Mount::new(&self.mountpoint, &options)?.into_parts();
        let path = point.path().as_os_str().as_bytes().to_vec();
        state.point = Some(point);
        Ok((path, Some(fd)))
    }

    fn write_back(&self) -> Result<()> {
        let Some(root) = self.point()?.open_root() else {
            return Ok(());
        };
        let written = rustix::fs::syncfs(&root);
        self.state.lock().root = Some(root);
        written.map_err(|e| FuseError::os("syncfs", e))
    }
}

/// Whether a process's first thread has ended, and the process has not.
fn is_ending(process: rustix::process::Pid) -> bool {
    let path = format!("/proc/{}/stat", process.as_raw_nonzero());
    std::fs::read_to_string(path)
        .ok()
        .and_then(|stat| Some(stat.rsplit_once(") ")?.1.starts_with(['Z', 'X'])))
        .unwrap_or(false)
}

/// Opens again what another process has open: a new, empty file that this very program has opened for writing. So a server that was taken over can
/// have nothing of other programs, and no file with something in it.
fn trace_file(process: u32, number: u32) -> Result<OwnedFd> {
    let os = |e: rustix::io::Errno| FuseError::os("cannot reach the file to record to", e);
    let refused = |why: &str| FuseError::new(FuseErrorKind::NotPermitted, why);
    let place = format!("/proc/{process}");
    let theirs = rustix::fs::stat(format!("{place}/exe")).map_err(os)?;
    let ours = rustix::fs::stat("/proc/self/exe").map_err(os)?;
    if (theirs.st_dev, theirs.st_ino) != (ours.st_dev, ours.st_ino) {
        return Err(refused("only blockwright may have a mount recorded"));
    }
    let told = std::fs::read_to_string(format!("{place}/fdinfo/{number}"))
        .map_err(|e| FuseError::os("cannot reach the file to record to", e))?;
    let flags = told
        .lines()
        .find_map(|line| line.strip_prefix("flags:"))
        .and_then(|text| u32::from_str_radix(text.trim(), 8).ok());
    if flags.is_none_or(|flags| flags & 3 != OFlags::WRONLY.bits()) {
        return Err(refused("the file to record to is not open for writing"));
    }
    let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let path = format!("{place}/fd/{number}");
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(os)?;
    let stat = rustix::fs::fstat(&file).map_err(os)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_size != 0 {
        return Err(refused("the file to record to is not a new one"));
    }
    Ok(file)
}
