//! A connection: TCP or a socket of this host, with the same face.

use super::super::nbd_address::NbdEndpoint;
use rustix::net::{SendAncillaryBuffer, SendFlags, sockopt};
use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// How long a host may leave what was sent to it without an acknowledgement of its kernel.
const VANISHED: Duration = Duration::from_secs(30);
/// Silence after which the kernel asks whether a host is there at all; after four questions without an answer it is not.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// A socket.
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}

impl From<Stream> for OwnedFd {
    fn from(stream: Stream) -> Self {
        match stream {
            Stream::Tcp(stream) => stream.into(),
            Stream::Unix(stream) => stream.into(),
        }
    }
}

impl Stream {
    /// Connects, to the first of a host's addresses that answers.
    pub(super) fn connect(endpoint: &NbdEndpoint, deadline: Instant) -> io::Result<Self> {
        let (host, port) = match endpoint {
            NbdEndpoint::Unix(path) => return UnixStream::connect(path).map(Stream::Unix),
            NbdEndpoint::Tcp { host, port } => (host, *port),
        };
        let mut failed = io::Error::from_raw_os_error(libc::EHOSTUNREACH);
        for address in (&**host, port).to_socket_addrs()? {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::from_raw_os_error(libc::ETIMEDOUT));
            }
            match TcpStream::connect_timeout(&address, left) {
                Ok(stream) => {
                    prepare(&stream)?;
                    return Ok(Stream::Tcp(stream));
                }
                Err(error) => failed = error,
            }
        }
        // The standard library's own time limit has no errno.
        if failed.raw_os_error().is_none() && failed.kind() == io::ErrorKind::TimedOut {
            failed = io::Error::from_raw_os_error(libc::ETIMEDOUT);
        }
        Err(failed)
    }

    /// A socket that another process connected to this endpoint.
    pub(super) fn passed(endpoint: &NbdEndpoint, socket: OwnedFd) -> Self {
        match endpoint {
            NbdEndpoint::Unix(_) => Stream::Unix(socket.into()),
            NbdEndpoint::Tcp { .. } => Stream::Tcp(socket.into()),
        }
    }

    pub(super) fn set_read_limit(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_read_timeout(limit),
            Stream::Unix(stream) => stream.set_read_timeout(limit),
        }
    }

    pub(super) fn set_write_limit(&self, limit: Option<Duration>) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_write_timeout(limit),
            Stream::Unix(stream) => stream.set_write_timeout(limit),
        }
    }

    /// Sends some of these bytes. A closed connection is an error, not a signal.
    pub(super) fn send(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut nothing = SendAncillaryBuffer::default();
        Ok(rustix::net::sendmsg(
            self,
            slices,
            &mut nothing,
            SendFlags::NOSIGNAL,
        )?)
    }

    pub(super) fn shutdown(&self, how: Shutdown) {
        // Fails when the other side was first.
        let _closed_already = match self {
            Stream::Tcp(stream) => stream.shutdown(how),
            Stream::Unix(stream) => stream.shutdown(how),
        };
    }
}

/// Requests are written whole: waiting to fill packets would only delay them. And a host that vanishes is noticed while replies are waited for.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE / 2)?;
    sockopt::set_tcp_keepcnt(stream, 4)?;
    sockopt::set_tcp_user_timeout(stream, VANISHED.as_millis() as u32)?;
    Ok(())
}

impl Read for &Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => (&*stream).read(buf),
            Stream::Unix(stream) => (&*stream).read(buf),
        }
    }
}

impl Write for &Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.send(&[IoSlice::new(buf)])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
