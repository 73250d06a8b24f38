//! What messages travel over: a connection, plain or within TLS.

use super::stream::Stream;
use super::tls::TlsSession;
use std::io::{self, IoSlice, Read};
use std::net::Shutdown;

/// See the module's head. One thread sends and another one receives.
pub(super) struct Wire {
    stream: Stream,
    tls: Option<TlsSession>,
}

impl Wire {
    pub(super) fn plain(stream: Stream) -> Self {
        Wire { stream, tls: None }
    }

    /// Everything from here on goes through TLS, which was agreed on over the same socket.
    pub(super) fn secured(self, tls: TlsSession) -> Self {
        Wire {
            stream: self.stream,
            tls: Some(tls),
        }
    }

    pub(super) fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Takes some of these bytes. Bytes are on their way when [`Wire::push`] has returned `Ok`.
    pub(super) fn send(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match &self.tls {
            None => self.stream.send(slices),
            Some(tls) => {
                tls.push(&self.stream)?;
                tls.take(slices)
            }
        }
    }

    /// Sends what was taken.
    pub(super) fn push(&self) -> io::Result<()> {
        match &self.tls {
            None => Ok(()),
            Some(tls) => tls.push(&self.stream),
        }
    }

    pub(super) fn shutdown(&self) {
        self.stream.shutdown(Shutdown::Both);
    }
}

impl Read for &Wire {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match &self.tls {
            None => (&self.stream).read(buf),
            Some(tls) => tls.read(&self.stream, buf),
        }
    }
}
