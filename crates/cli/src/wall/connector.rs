//! Makes connections to an NBD server for a confined process.
//!
//! A confined process can make no connection, so it could not go on when its own is lost. A second process makes new ones for it, to one
//! place, and passes them on. It sees nothing of what travels: the handshake and TLS are the confined process's.

use blockwright_device::host::nbd::{Connector, serve_connections};
use blockwright_device::{DevOffset, DeviceError, DeviceErrorKind, Held, NbdAddress, OpenMode};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The hidden command that it is.
pub const COMMAND: &str = "debug-connector";

fn start(address: &NbdAddress) -> io::Result<Connector> {
    let (ours, theirs) = UnixStream::pair()?;
    let address = address.clone().absolute()?.to_string();
    Command::new("/proc/self/exe")
        .args([OsStr::new(COMMAND), OsStr::new("--"), OsStr::new(&address)])
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    Ok(Connector::passed(ours))
}

/// Opens an export, with a process that connects to it again.
///
/// # Errors
/// As opening it.
pub(super) fn hold(path: &Path, address: &NbdAddress, mode: OpenMode) -> Result<Held, DeviceError> {
    let held = blockwright_device::hold(path, mode)?;
    if address.reconnect.is_some_and(|time| time.is_zero()) {
        return Ok(held);
    }
    let connector = start(address).map_err(|e| DeviceError {
        op: "open",
        offset: DevOffset(0),
        bytes: 0,
        kind: DeviceErrorKind::Refused {
            why: format!("the process that connects again: {e}"),
        },
    })?;
    Ok(held.reconnect_by(connector))
}

/// The connecting process itself. Its standard input is the socket.
///
/// # Errors
/// Those of the socket.
pub fn run(path: &Path) -> crate::failure::Result<()> {
    // A signal of the terminal is for the command; this process ends with it.
    let _ = rustix::process::setsid();
    let _ = std::env::set_current_dir(PathBuf::from("/"));
    let Some(Ok(address)) = NbdAddress::parse(path) else {
        return Err(crate::failure::Failure::usage("not an NBD export"));
    };
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    Ok(serve_connections(&address.endpoint, &socket)?)
}
