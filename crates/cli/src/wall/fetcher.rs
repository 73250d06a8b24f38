//! Fetches chunks for a confined process.
//!
//! A confined process can open neither a file of a store nor a connection. So a second process does, which sees no image: it passes on what stores hold,
//! without unpacking it. It answers at the other end of a socket until that is closed. It can be asked for chunks of its stores and for its index.
//! For a command that makes chunks, it can be asked to keep them in one store that is not a folder, and for nothing else.

use crate::args::FetcherArgs;
use blockwright_chunks::{ChunkAddress, Error, Remote, Site, Stores, open_sink, serve, serve_sink};
use blockwright_device::{DeviceError, Held, NbdAddress, OpenMode};
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
    spawn(address, None)
}

/// Starts one that keeps chunks in a store.
///
/// # Errors
/// As [`open_sink`]; [`Error::Host`].
pub(super) fn start_sink(store: &Site, ca: Option<&Path>) -> Result<Remote, Error> {
    drop(open_sink(store, ca)?);
    // It has no index.
    let address = ChunkAddress {
        ca: ca.map(Path::to_owned),
        ..ChunkAddress::new(Site::Path("/".into()), vec![store.clone()])
    };
    spawn(&address, Some("--keep"))
}

fn spawn(address: &ChunkAddress, option: Option<&str>) -> Result<Remote, Error> {
    let spawn = || -> io::Result<Remote> {
        let (ours, theirs) = UnixStream::pair()?;
        Command::new("/proc/self/exe")
            .arg(COMMAND)
            .args(option)
            .arg("--")
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
/// As [`Stores::open`], [`open_sink`] and [`serve`].
pub fn run(args: &FetcherArgs) -> crate::failure::Result<()> {
    use crate::failure::Failure;
    // A signal of the terminal is for the command; this process ends with it.
    let _ = rustix::process::setsid();
    let _ = std::env::set_current_dir("/");
    let Some(address) = ChunkAddress::parse(&args.address) else {
        return Err(Failure::usage("not an image in chunks"));
    };
    let address = address.map_err(Failure::new)?;
    let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    if args.keep {
        let Some(store) = address.stores.first() else {
            return Err(Failure::usage("no store"));
        };
        let sink = open_sink(store, address.ca.as_deref()).map_err(Failure::new)?;
        serve_sink(&*sink, &stream)?;
    } else {
        let stores = Stores::open(&address).map_err(Failure::new)?;
        serve(&stores, &stream)?;
    }
    Ok(())
}
