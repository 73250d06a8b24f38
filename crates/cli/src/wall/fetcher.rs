//! Fetches chunks for a confined process.
//!
//! A confined process can open neither a file of a store nor a connection. So a second process does, which sees no image: it passes on what stores hold,
//! without unpacking it. It answers at the other end of a socket until that is closed. It can be asked for chunks of its stores and for its index.

use blockwright_chunks::{ChunkAddress, Error, Remote, Stores, serve};
use blockwright_device::{DeviceError, Held, NbdAddress, OpenMode};
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

/// The hidden command that it is.
pub const COMMAND: &str = "debug-fetcher";

/// Starts one for an address.
///
/// # Errors
/// [`Error::Host`].
pub(super) fn start(address: &ChunkAddress) -> Result<Remote, Error> {
    // A file that cannot be opened is reported now, by name.
    drop(Stores::open(address)?);
    let spawn = || -> io::Result<Remote> {
        let (ours, theirs) = UnixStream::pair()?;
        Command::new("/proc/self/exe")
            .args([OsStr::new(COMMAND), OsStr::new("--")])
            .arg(address.clone().absolute()?.path())
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Remote::new(ours))
    };
    spawn().map_err(|e| Error::Host {
        place: "the fetching process".to_owned(),
        why: e.to_string(),
        errno: e.raw_os_error(),
    })
}

/// Opens an image in chunks, or of another kind.
///
/// # Errors
/// As opening it.
pub(super) fn hold(path: &Path, mode: OpenMode) -> Result<Held, DeviceError> {
    if let Some(Ok(address)) = NbdAddress::parse(path) {
        return super::connector::hold(path, &address, mode);
    }
    let Some(address) = ChunkAddress::parse(path) else {
        return blockwright_device::hold(path, mode);
    };
    let address = address?;
    blockwright_chunks::check_mode(mode)?;
    let remote = start(&address)?;
    Ok(blockwright_chunks::hold(
        Box::new(remote),
        address.to_string(),
    ))
}

/// The fetching process itself. Its standard input is the socket.
///
/// # Errors
/// As [`Stores::open`] and [`serve`].
pub fn run(path: &Path) -> crate::failure::Result<()> {
    // A signal of the terminal is for the command; this process ends with it.
    let _ = rustix::process::setsid();
    let _ = std::env::set_current_dir("/");
    let Some(address) = ChunkAddress::parse(path) else {
        return Err(crate::failure::Failure::usage("not an image in chunks"));
    };
    let stores = address
        .and_then(|address| Stores::open(&address))
        .map_err(crate::failure::Failure::new)?;
    let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    serve(&stores, &stream)?;
    Ok(())
}
