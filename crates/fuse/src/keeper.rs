//! The keeper: a small process beside a confined server, which does for it what the server gave up.
//!
//! A server that reads an untrusted image opens no path, starts no program and has no privileges (docs/SECURITY.md). But a mount has to be made
//! after the volume was opened, and taken away at the end. So the server starts a keeper before it confines itself, and asks it over sockets. The keeper
//! never sees the image. It serves a fixed set of operations: the mount point and all options come from its own command line, which the user gave.
//!
//! There are three sockets, each with a thread in the keeper, so that a long operation delays no other:
//! * mounting and messages
//! * emergencies
//! * operations that FUSE requests need.
//!
//! A request is one packet: the number of an operation and its argument. A reply is one packet: a status and a text, sometimes with a descriptor.
//!
//! The keeper ends when the server does: its sockets close. A killed server may not be able to end. A thread that drops pages of the kernel's
//! cache (`dispatch/coherence`) waits inside the kernel for a page lock, which a READ holds that the server will never answer. SIGKILL does not end
//! that wait, so the process keeps its connection and its sockets open. The kernel tells the keeper when the server's first thread ends
//! (`PR_SET_PDEATHSIG`). If the process still exists 1.5 s later, the keeper ends the connection, which ends all waits. It opened the control file for
//! that when it mounted (`mount/control`), so the mount may have been detached since.

use crate::error::{FuseError, FuseErrorKind, Result};
use parking_lot::Mutex;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use smallvec::SmallVec;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The largest packet.
pub(crate) const PACKET_BYTES_MAX: usize = 8192;
/// Kinds of errors, by the number that travels. `Os` stands for all that are not listed.
pub(crate) const KINDS: [FuseErrorKind; 9] = [
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

/// An operation of the keeper, by the number that travels.
#[derive(Clone, Copy, PartialEq, Eq, zerocopy::TryFromBytes)]
#[repr(u8)]
pub(crate) enum Ask {
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

/// Which socket a request takes.
#[derive(Clone, Copy)]
enum Line {
    Mount,
    Emergency,
    Request,
}

pub(crate) type Answer = Result<(Vec<u8>, Option<OwnedFd>)>;

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
    /// Starts the keeper: `command` calls [`keep`](crate::keep) for the same mount point and options. Call it before the process
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
    pub(crate) fn mount(&self, read_only: bool) -> Result<(OwnedFd, PathBuf)> {
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

    /// Unmounts if no file is open.
    pub(crate) fn unmount(&self) -> Result<()> {
        self.ask(Line::Mount, Ask::Unmount, &[]).map(drop)
    }

    /// Takes the mount out of the tree now.
    pub(crate) fn detach(&self) -> Result<()> {
        self.ask(Line::Mount, Ask::Detach, &[]).map(drop)
    }

    /// Has the kernel write back what programs have written.
    pub(crate) fn write_back(&self) -> Result<()> {
        self.ask(Line::Mount, Ask::WriteBack, &[]).map(drop)
    }

    pub(crate) fn abort(&self) -> Result<()> {
        self.ask(Line::Emergency, Ask::Abort, &[]).map(drop)
    }

    pub(crate) fn break_connection(&self) -> Result<()> {
        self.ask(Line::Emergency, Ask::Break, &[]).map(drop)
    }

    pub(crate) fn force_end(&self) -> Result<()> {
        self.ask(Line::Emergency, Ask::ForceEnd, &[]).map(drop)
    }

    /// Whether the connection lives on in another mount namespace, and if that can be found, a process of it and where it is
    /// mounted there.
    pub(crate) fn held_elsewhere(&self) -> Option<Option<(u32, PathBuf)>> {
        use std::os::unix::ffi::OsStrExt;
        let (answer, _) = self.ask(Line::Mount, Ask::Elsewhere, &[]).ok()?;
        let (held, place) = answer.split_first()?;
        let place = place.split_first_chunk().map(|(pid, point)| {
            let point = std::ffi::OsStr::from_bytes(point).into();
            (u32::from_le_bytes(*pid), point)
        });
        (*held == 1).then_some(place)
    }

    /// As `mount::tune_bdi`, for what was mounted.
    pub(crate) fn tune(&self, read_ahead_kib: u32) -> Option<String> {
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

    /// As `process::supplementary_groups`.
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

// ---- packets ----

/// Sends a packet, with copies of these descriptors: two at most.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
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

/// Waits for a packet, and puts it into `bytes`. How many bytes it has (0: the other end is closed), and the descriptors that came with it.
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
) -> io::Result<(usize, Vec<OwnedFd>)> {
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
