//! Keeps two writers on this host away from one export.
//!
//! NBD has no locks: two clients may write to one export, and destroy a volume. At least two writers
//! of one host, and a reader beside a writer, are kept apart: a writer listens on an abstract socket whose name
//! follows from the address. It goes with the process, and leaves nothing on disk. Names of one server that differ
//! (`localhost` and `127.0.0.1`) are not seen as one.

use super::super::nbd_address::NbdAddress;
use crate::DeviceErrorKind;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

/// A writer's right; held as long as it lives.
pub(super) struct Claim {
    _listener: UnixListener,
}

fn place(address: &NbdAddress) -> io::Result<SocketAddr> {
    let mut hasher = DefaultHasher::new();
    address.identity().to_string().hash(&mut hasher);
    SocketAddr::from_abstract_name(format!("blockwright-nbd-{:016x}", hasher.finish()))
}

/// The process that writes to the export, if it is visible from here.
fn holder(place: &SocketAddr) -> Option<String> {
    let stream = UnixStream::connect_addr(place).ok()?;
    let pid = rustix::net::sockopt::socket_peercred(&stream).ok()?.pid;
    let pid = pid.as_raw_nonzero();
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some(format!("process {pid} ({})", name.trim()))
}

/// Whether some process of this host has the export open for writing.
#[must_use]
pub fn is_claimed(address: &NbdAddress) -> bool {
    place(address).is_ok_and(|place| UnixStream::connect_addr(&place).is_ok())
}

/// Claims the export for writing; for reading only looks whether it is claimed.
pub(super) fn claim(address: &NbdAddress, write: bool) -> Result<Option<Claim>, DeviceErrorKind> {
    let failed = |e: io::Error| DeviceErrorKind::Os(e.raw_os_error().unwrap_or(libc::EIO));
    let place = place(address).map_err(failed)?;
    if !write {
        return match holder(&place) {
            Some(holder) => Err(DeviceErrorKind::InUse {
                holder: Some(holder),
            }),
            None => Ok(None),
        };
    }
    match UnixListener::bind_addr(&place) {
        Ok(listener) => Ok(Some(Claim {
            _listener: listener,
        })),
        Err(e) if e.kind() == io::ErrorKind::AddrInUse => Err(DeviceErrorKind::InUse {
            holder: holder(&place),
        }),
        Err(e) => Err(failed(e)),
    }
}
