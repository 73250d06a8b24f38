//! TLS around a connection, by rustls with ring. Certificates lie in a folder as other NBD programs have them.
//!
//! The folder holds `ca-cert.pem`, and `client-cert.pem` with `client-key.pem` where the server asks for a client's certificate. They are
//! read when the device is opened, before a process confines itself, and not again. The server's certificate must name the host (as a subject alternative
//! name). TLS 1.2 and 1.3.
//!
//! # Locks
//! `out` (the sender's), `incoming` (the receiver's), then `session`, which is held for no I/O.

use super::super::nbd_address::{NbdAddress, NbdEndpoint};
use super::stream::Stream;
use super::wire::{lost, refused};
use crate::DeviceErrorKind;
use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use std::io::{self, IoSlice, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// How much is encrypted at once.
const TAKE_BYTES: usize = 256 << 10;
/// How much is read from the socket at once.
const INCOMING_BYTES: usize = 64 << 10;

/// What a client needs to know for TLS.
#[derive(Clone)]
pub(super) struct Tls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

fn wrong(path: &Path, why: impl std::fmt::Display) -> DeviceErrorKind {
    refused(format!("TLS: {}: {why}", path.display()))
}

impl Tls {
    /// Reads the certificates of an address; `None` when it is one without TLS.
    pub(super) fn load(address: &NbdAddress) -> Result<Option<Self>, DeviceErrorKind> {
        let Some(folder) = &address.tls else {
            return Ok(None);
        };
        let (ca, cert, key) = (
            folder.join("ca-cert.pem"),
            folder.join("client-cert.pem"),
            folder.join("client-key.pem"),
        );
        let mut roots = RootCertStore::empty();
        for found in CertificateDer::pem_file_iter(&ca).map_err(|e| wrong(&ca, e))? {
            let found = found.map_err(|e| wrong(&ca, e))?;
            roots.add(found).map_err(|e| wrong(&ca, e))?;
        }
        if roots.is_empty() {
            return Err(wrong(&ca, "no certificate is in it"));
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| refused(format!("TLS: {e}")))?
            .with_root_certificates(roots);
        let config = match cert.exists() {
            false => builder.with_no_client_auth(),
            true => {
                let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(&cert)
                    .map_err(|e| wrong(&cert, e))?
                    .collect();
                let chain = chain.map_err(|e| wrong(&cert, e))?;
                let key_der = PrivateKeyDer::from_pem_file(&key).map_err(|e| wrong(&key, e))?;
                builder
                    .with_client_auth_cert(chain, key_der)
                    .map_err(|e| wrong(&cert, e))?
            }
        };
        let host = match (&address.tls_hostname, &address.endpoint) {
            (Some(name), _) => name.clone(),
            (None, NbdEndpoint::Tcp { host, .. }) => host.clone(),
            (None, NbdEndpoint::Unix(_)) => "localhost".to_owned(),
        };
        let name = ServerName::try_from(host.clone())
            .map_err(|_| refused(format!("TLS: `{host}` is no name that a certificate has")))?;
        Ok(Some(Tls {
            config: Arc::new(config),
            name,
        }))
    }

    /// Agrees on keys with the server.
    pub(super) fn begin(
        &self,
        stream: &Stream,
        deadline: Instant,
    ) -> Result<TlsSession, DeviceErrorKind> {
        let told = |e: rustls::Error| refused(format!("TLS: {e}"));
        let mut session =
            ClientConnection::new(Arc::clone(&self.config), self.name.clone()).map_err(told)?;
        session.set_buffer_limit(None);
        while session.is_handshaking() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(DeviceErrorKind::Os(libc::ETIMEDOUT));
            }
            stream
                .set_read_limit(Some(left))
                .and_then(|()| stream.set_write_limit(Some(left)))
                .map_err(|e| lost(&e))?;
            let mut socket = stream;
            session
                .complete_io(&mut socket)
                .map_err(|e| match e.get_ref() {
                    Some(inner) if e.kind() == io::ErrorKind::InvalidData => {
                        refused(format!("TLS: {inner}"))
                    }
                    _ => lost(&e),
                })?;
        }
        Ok(TlsSession {
            session: Mutex::new(session),
            out: Mutex::default(),
            incoming: Mutex::default(),
        })
    }
}

/// Bytes, of which those before `at` are done.
#[derive(Default)]
struct Buffered {
    bytes: Vec<u8>,
    at: usize,
}

impl Buffered {
    fn rest(&self) -> &[u8] {
        &self.bytes[self.at..]
    }
}

/// The keys of one connection, and what is between them and the socket.
pub(super) struct TlsSession {
    session: Mutex<ClientConnection>,
    out: Mutex<Buffered>,
    incoming: Mutex<Buffered>,
}

fn broken(e: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, e)
}

impl TlsSession {
    /// Encrypts some of these bytes.
    pub(super) fn take(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut out = self.out.lock();
        let mut session = self.session.lock();
        let mut taken = 0;
        for slice in slices {
            let now = slice.len().min(TAKE_BYTES - taken);
            session.writer().write_all(&slice[..now])?;
            taken += now;
            if now < slice.len() {
                break;
            }
        }
        if out.rest().is_empty() {
            out.bytes.clear();
            out.at = 0;
        }
        while session.wants_write() {
            session.write_tls(&mut out.bytes)?;
        }
        Ok(taken)
    }

    /// Sends what was encrypted.
    pub(super) fn push(&self, stream: &Stream) -> io::Result<()> {
        let mut out = self.out.lock();
        while !out.rest().is_empty() {
            match stream.send(&[IoSlice::new(out.rest())]) {
                Ok(n) => out.at += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Decrypts what comes from the socket.
    pub(super) fn read(&self, stream: &Stream, buf: &mut [u8]) -> io::Result<usize> {
        let mut incoming = self.incoming.lock();
        let Buffered { bytes, at } = &mut *incoming;
        loop {
            {
                let mut session = self.session.lock();
                match session.reader().read(buf) {
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                    done => return done,
                }
                if *at < bytes.len() {
                    let mut rest = &bytes[*at..];
                    *at += session.read_tls(&mut rest)?;
                    session.process_new_packets().map_err(broken)?;
                    continue;
                }
            }
            bytes.resize(INCOMING_BYTES, 0);
            let mut socket = stream;
            let n = match socket.read(bytes) {
                Ok(n) => n,
                Err(e) => {
                    bytes.clear();
                    *at = 0;
                    return Err(e);
                }
            };
            bytes.truncate(n);
            *at = 0;
            if n == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}
