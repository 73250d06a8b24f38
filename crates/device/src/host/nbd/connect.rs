//! How a device gets a connection again, also in a process that can open none.
//!
//! A confined process has a socket to a second process without the wall ([`serve_connections`]). It asks with one byte. The answer
//! is a zero and a connected socket, or an error's number. The second process connects to one place only, and never sees what travels.

use super::super::nbd_address::NbdEndpoint;
use super::stream::Stream;
use parking_lot::Mutex;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// How long the second process tries.
const CONNECT_LIMIT: Duration = Duration::from_secs(20);
/// Bytes of an answer.
const ANSWER_BYTES: usize = 4;

/// The maker of connections.
pub enum Connector {
    /// This process.
    Direct,
    /// The process at the other end of this socket, which runs [`serve_connections`].
    Passed(PassedConnector),
}

/// See [`Connector::Passed`].
pub struct PassedConnector(Mutex<UnixStream>);

impl Connector {
    /// Connections are made by the process at the other end of a socket.
    #[must_use]
    pub fn passed(socket: UnixStream) -> Self {
        Connector::Passed(PassedConnector(Mutex::new(socket)))
    }

    pub(super) fn connect(&self, endpoint: &NbdEndpoint, deadline: Instant) -> io::Result<Stream> {
        match self {
            Connector::Direct => Stream::connect(endpoint, deadline),
            Connector::Passed(passed) => {
                let socket = passed.ask()?;
                Ok(Stream::passed(endpoint, socket))
            }
        }
    }
}

impl PassedConnector {
    fn ask(&self) -> io::Result<OwnedFd> {
        let socket = self.0.lock();
        let gone = || io::Error::from_raw_os_error(libc::EPIPE);
        let mut nothing = SendAncillaryBuffer::default();
        rustix::net::sendmsg(
            &*socket,
            &[IoSlice::new(&[1])],
            &mut nothing,
            SendFlags::NOSIGNAL,
        )?;
        let mut answer = [0; ANSWER_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut with_it = RecvAncillaryBuffer::new(&mut space);
        let got = rustix::net::recvmsg(
            &*socket,
            &mut [IoSliceMut::new(&mut answer)],
            &mut with_it,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        if got.bytes != ANSWER_BYTES {
            return Err(gone());
        }
        let passed = with_it.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut sockets) => sockets.next(),
            _ => None,
        });
        match (i32::from_ne_bytes(answer), passed) {
            (0, Some(socket)) => Ok(socket),
            (0, None) => Err(gone()),
            (errno, _) => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

/// Makes connections to one place for the process at the other end of a socket, until that is closed.
///
/// # Errors
/// Those of the socket.
pub fn serve_connections(endpoint: &NbdEndpoint, socket: &UnixStream) -> io::Result<()> {
    let mut byte = [0];
    while (&*socket).read(&mut byte)? == 1 {
        let connected = Stream::connect(endpoint, Instant::now() + CONNECT_LIMIT);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut with_it = SendAncillaryBuffer::new(&mut space);
        let connected = connected.map(OwnedFd::from);
        let (errno, fds) = match &connected {
            Ok(fd) => (0, vec![fd.as_fd()]),
            Err(e) => (e.raw_os_error().unwrap_or(libc::EHOSTUNREACH), Vec::new()),
        };
        if !fds.is_empty() && !with_it.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        rustix::net::sendmsg(
            socket,
            &[IoSlice::new(&errno.to_ne_bytes())],
            &mut with_it,
            SendFlags::NOSIGNAL,
        )?;
    }
    Ok(())
}
