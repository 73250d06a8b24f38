//! The keeper: a small process beside a confined server, which does for it what the server gave up.
//!
//! A server that reads an untrusted image opens no path, starts no program and has no privileges (docs/SECURITY.md). But a mount has to be made
//! after the volume was opened, and taken away at the end. So the server starts a keeper before it confines itself, and asks it over sockets. The keeper
//! never sees the image. What it may be asked for is fixed: the mount point and all options come from its own command line, given by the user.
//!
//! Three sockets, each with a thread of the keeper's, so that nothing waits for what takes long:
//! mounting and messages; emergencies; what requests need. A request is one packet: an operation's number and its argument. A reply is one packet: a
//! status and a text, sometimes with a descriptor.
//!
//! The keeper ends when the server does: its sockets close. A killed server may not be able to end. A thread that drops pages of the kernel's
//! cache (`dispatch/coherence`) waits inside the kernel for a page lock, which a READ holds that the server will never answer. SIGKILL does not end
//! that wait, so the process keeps its connection and its sockets open. The kernel tells the keeper when the server's first thread ends
//! (`PR_SET_PDEATHSIG`). If the process still exists after [`LINGER`], the keeper ends the connection, which ends all waits.

use super::{DEV_FUSE, Elsewhere, Mount, MountPoint, Unmount, tune_bdi};
use crate::error::{FuseError, FuseErrorKind, Result};
use crate::options::FuseOptions;
use crate::process;
use parking_lot::Mutex;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use smallvec::SmallVec;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// The largest packet.
const PACKET_BYTES_MAX: usize = 8192;
/// How often a server may mount: once more for each way that requests can travel.
const MOUNTS_MAX: usize = 4;
/// How long a server's process may exist after its first thread ended. Ending takes milliseconds, and the connection of a server that ends by itself
/// is none of the keeper's business: its number may be another's by then.
const LINGER: Duration = Duration::from_millis(1500);
/// Kinds of errors, by the number that travels. `Os` stands for all that are not listed.
const KINDS: [FuseErrorKind; 9] = [
    FuseErrorKind::Os,
    FuseErrorKind::NoDevice,
    FuseErrorKind::NoHelper,
    FuseErrorKind::NotPermitted,
    FuseErrorKind::BadMountpoint,
    FuseErrorKind::DeadMount,
    FuseErrorKind::Busy,
    FuseErrorKind::BadOption,
    FuseErrorKind::Mount,
];

#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Ask {
    Mount = 1,
    MountReadOnly,
    Unmount,
    Detach,
    WriteBack,
    Abort,
    Break,
    ForceEnd,
    Tune,
    Device,
    Log,
    Groups,
    Trace,
    Elsewhere,
}

impl Ask {
    const ALL: [Ask; 14] = [
        Ask::Mount,
        Ask::MountReadOnly,
        Ask::Unmount,
        Ask::Detach,
        Ask::WriteBack,
        Ask::Abort,
        Ask::Break,
        Ask::ForceEnd,
        Ask::Tune,
        Ask::Device,
        Ask::Log,
        Ask::Groups,
        Ask::Trace,
        Ask::Elsewhere,
    ];
}

/// Which socket a request takes.
#[derive(Clone, Copy)]
enum Line {
    Mount,
    Emergency,
    Request,
}

type Answer = Result<(Vec<u8>, Option<OwnedFd>)>;

/// The server's end.
pub struct Keeper {
    lines: [Mutex<OwnedFd>; 3],
    owner: u32,
}

impl std::fmt::Debug for Keeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Keeper")
    }
}

fn pair() -> Result<(OwnedFd, OwnedFd)> {
    rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|e| FuseError::os("cannot make a socket pair", e))
}

impl Keeper {
    /// Starts the keeper: `command` calls [`keep`] for the same mount point and options. Call it before the process
    /// confines itself, as the user that the mount belongs to.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn start(mut command: Command) -> Result<Self> {
        let (mount, their_mount) = pair()?;
        let (emergency, their_emergency) = pair()?;
        let (request, their_request) = pair()?;
        let failed = |e: io::Error| FuseError::os("cannot start the mount's keeper", e);
        command
            .stdin(Stdio::from(their_mount))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(failed)?;
        drop(command);
        let more = [their_emergency.as_fd(), their_request.as_fd()];
        send(mount.as_fd(), b"", &more).map_err(failed)?;
        Ok(Keeper {
            lines: [mount, emergency, request].map(Mutex::new),
            owner: rustix::process::geteuid().as_raw(),
        })
    }

    /// The user whom the process belonged to when it started the keeper.
    pub(crate) fn owner(&self) -> u32 {
        self.owner
    }

    fn ask(&self, line: Line, ask: Ask, argument: &[u8]) -> Answer {
        let gone = |e: io::Error| FuseError::os("the mount's keeper does not answer", e);
        let mut packet = Vec::with_capacity(argument.len() + 1);
        packet.push(ask as u8);
        packet.extend_from_slice(argument);
        let socket = self.lines[line as usize].lock();
        send(socket.as_fd(), &packet, &[]).map_err(gone)?;
        let mut bytes = [0; PACKET_BYTES_MAX];
        let (len, fds) = receive(socket.as_fd(), &mut bytes).map_err(gone)?;
        drop(socket);
        match bytes[..len].split_first() {
            Some((0, text)) => Ok((text.to_vec(), fds.into_iter().next())),
            Some((status, text)) => {
                let kind = KINDS.get(usize::from(*status) - 1);
                Err(FuseError::new(
                    kind.copied().unwrap_or(FuseErrorKind::Os),
                    String::from_utf8_lossy(text),
                ))
            }
            None => Err(gone(io::ErrorKind::UnexpectedEof.into())),
        }
    }

    /// Mounts. The connection, and where it is.
    pub(super) fn mount(&self, read_only: bool) -> Result<(OwnedFd, PathBuf)> {
        use std::os::unix::ffi::OsStrExt;
        let ask = match read_only {
            true => Ask::MountReadOnly,
            false => Ask::Mount,
        };
        let (path, fd) = self.ask(Line::Mount, ask, &[])?;
        let fd = fd.ok_or_else(|| {
            FuseError::new(
                FuseErrorKind::Mount,
                "the mount's keeper sent no connection",
            )
        })?;
        Ok((fd, std::ffi::OsStr::from_bytes(&path).into()))
    }

    pub(super) fn unmount(&self, how: Unmount) -> Result<()> {
        let ask = match how {
            Unmount::IfIdle => Ask::Unmount,
            Unmount::Detach => Ask::Detach,
        };
        self.ask(Line::Mount, ask, &[]).map(drop)
    }

    /// Has the kernel write back what programs have written.
    pub(super) fn write_back(&self) -> Result<()> {
        self.ask(Line::Mount, Ask::WriteBack, &[]).map(drop)
    }

    pub(super) fn abort(&self) -> Result<()> {
        self.ask(Line::Emergency, Ask::Abort, &[]).map(drop)
    }

    pub(super) fn break_connection(&self) -> Result<()> {
        self.ask(Line::Emergency, Ask::Break, &[]).map(drop)
    }

    pub(super) fn force_end(&self) -> Result<()> {
        self.ask(Line::Emergency, Ask::ForceEnd, &[]).map(drop)
    }

    /// Whether the connection lives on in another mount namespace, and where, if that can be found.
    pub(super) fn held_elsewhere(&self) -> Option<Option<Elsewhere>> {
        use std::os::unix::ffi::OsStrExt;
        let (answer, _) = self.ask(Line::Mount, Ask::Elsewhere, &[]).ok()?;
        let (held, place) = answer.split_first()?;
        let place = place.split_first_chunk().map(|(pid, point)| Elsewhere {
            pid: u32::from_le_bytes(*pid),
            point: std::ffi::OsStr::from_bytes(point).into(),
        });
        (*held == 1).then_some(place)
    }

    /// As [`tune_bdi`], for what was mounted.
    pub(super) fn tune(&self, read_ahead_kib: u32) -> Option<String> {
        let argument = read_ahead_kib.to_le_bytes();
        match self.ask(Line::Mount, Ask::Tune, &argument) {
            Ok((hint, _)) if hint.is_empty() => None,
            Ok((hint, _)) => Some(String::from_utf8_lossy(&hint).into_owned()),
            Err(e) => Some(e.to_string()),
        }
    }

    /// A new descriptor of `/dev/fuse`, for another reader of a connection.
    pub(crate) fn device(&self) -> Result<OwnedFd> {
        let (_, fd) = self.ask(Line::Request, Ask::Device, &[])?;
        fd.ok_or_else(|| FuseError::new(FuseErrorKind::NoDevice, "no descriptor came"))
    }

    /// As [`process::supplementary_groups`].
    pub(crate) fn groups(&self, process: u32) -> SmallVec<[u32; 8]> {
        let argument = process.to_le_bytes();
        let (list, _) = self
            .ask(Line::Request, Ask::Groups, &argument)
            .unwrap_or_default();
        list.as_chunks()
            .0
            .iter()
            .copied()
            .map(u32::from_le_bytes)
            .collect()
    }

    /// The file that a `blockwright trace` has open under this number, and which it has just made.
    pub(crate) fn trace_file(&self, process: u32, number: u32) -> Result<OwnedFd> {
        let argument = [process.to_le_bytes(), number.to_le_bytes()].concat();
        let (_, fd) = self.ask(Line::Request, Ask::Trace, &argument)?;
        fd.ok_or_else(|| FuseError::new(FuseErrorKind::Os, "no descriptor came"))
    }

    /// Puts a line into the system's log.
    pub fn log(&self, line: &str) {
        let line = line.as_bytes();
        let cut = &line[..line.len().min(PACKET_BYTES_MAX / 2)];
        let _ = self.ask(Line::Request, Ask::Log, cut);
    }
}

// ---- the keeper's own end ----

/// Keeps a mount: serves the socket that is standard input until it is closed. `log` puts a line into the system's log.
///
/// # Errors
/// When it was not started by [`Keeper::start`].
pub fn keep(
    mountpoint: &Path,
    options: &FuseOptions,
    log: impl Fn(&str) + Send + Sync + 'static,
) -> Result<()> {
    let failed = |e: io::Error| FuseError::os("not started by a server", e);
    // What a terminal or a service manager sends is for the server; the keeper is needed until it has ended.
    let _ = rustix::process::setsid();
    let signals = crate::Signals::catch()?;
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
            let answer = match Ask::ALL.into_iter().find(|ask| *ask as u8 == bytes[0]) {
                Some(ask) => self.answer(ask, &bytes[1..len]),
                None => Err(FuseError::new(FuseErrorKind::Os, "unknown request")),
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
    fn watch(&self, server: rustix::process::Pid, signalled: &crate::Event) {
        loop {
            signalled.wait(None);
            std::thread::sleep(LINGER);
            if is_ending(server)
                && let Ok(point) = self.point()
            {
                let _ = point.break_connection().or_else(|_| point.force_end());
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

// ---- packets ----

fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(fds));
    }
    // A packet without bytes would look like the end.
    let bytes = if bytes.is_empty() { &[0] } else { bytes };
    let parts = [IoSlice::new(bytes)];
    rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(socket, &parts, &mut control, SendFlags::NOSIGNAL)
    })?;
    Ok(())
}

fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(bytes)];
    let message = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut fds = Vec::new();
    for item in control.drain() {
        if let RecvAncillaryMessage::ScmRights(list) = item {
            fds.extend(list);
        }
    }
    Ok((message.bytes, fds))
}
