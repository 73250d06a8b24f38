//! A file or block special of the host as a device.
//!
//! [`HostDevice`] opens, locks and sizes it (`open`), performs synchronous requests in
//! the caller's thread (`file`), and hands submitted ones to a back end: io_uring (`uring`) or,
//! where that is not permitted, not compiled (feature `uring`) or unknown, a small pool of threads (`plain`).
//! What differs between hosts is in `sys`. Discard and write-zeroes may
//! take long in the host's file system, so both back ends run them in the pool.
//!
//! Geometry: a regular file whose size is not a multiple of the logical block is rounded *down*;
//! the bytes after that are never touched. The size is read once: a file truncated underneath
//! gives [`DeviceErrorKind::Short`] reads, not zeroes.
//!
//! Dropping the device waits for everything that was submitted, except what is in the ring of a thread's own ([`OwnRing`]), which
//! keeps the file open and locked. It does not flush.
//!
//! [`open()`] takes addresses of NBD servers' exports (`nbd`) as well as paths: what a user calls an image.

mod file;
#[cfg(target_os = "linux")]
mod flags;
mod mode;
#[cfg(all(feature = "nbd", target_os = "linux"))]
pub mod nbd;
pub mod nbd_address;
#[cfg(not(all(feature = "uring", target_os = "linux")))]
mod no_uring;
#[cfg(target_os = "linux")]
mod open;
#[cfg(not(target_os = "linux"))]
mod open_elsewhere;
#[cfg(all(feature = "uring", target_os = "linux"))]
mod own_ring;
#[cfg(all(feature = "uring", target_os = "linux"))]
mod parts;
mod plain;
pub(crate) mod priority;
#[cfg(all(feature = "uring", target_os = "linux"))]
pub mod probe;
mod queue;
#[cfg(all(feature = "uring", target_os = "linux"))]
mod slab;
pub(crate) mod sys;
#[cfg(all(test, target_os = "linux"))]
mod tests;
#[cfg(all(feature = "uring", target_os = "linux"))]
mod uring;

#[cfg(target_os = "linux")]
pub use flags::{FileFlags, file_flags, trim_mounted};
pub use mode::{DirectIo, Engine, OpenMode};
#[cfg(all(feature = "uring", target_os = "linux"))]
pub use own_ring::OwnRing;
#[cfg(all(feature = "uring", target_os = "linux"))]
pub use uring::restrict as restrict_ring;

use crate::monitor::{Kind, Monitor, Seen};
use crate::{
    AlignedBuf, BlockDevice, DevOffset, DeviceError, DeviceErrorKind, Flags, Geometry, IoSlice, Op,
    Request, Result, SharedDevice, refuse,
};
use file::HostFile;
#[cfg(not(all(feature = "uring", target_os = "linux")))]
use no_uring::{self as own_ring, Uring};
#[cfg(not(target_os = "linux"))]
use open_elsewhere as open;
use plain::Pool;
use std::path::Path;
use std::sync::Arc;
#[cfg(all(feature = "uring", target_os = "linux"))]
use uring::Uring;

/// Opens what a user calls an image: a regular file, a block special, or the export of an NBD server, by its address
/// (see [`nbd_address::NbdAddress`]; of `mode` only `read_only` and `lock` concern it).
///
/// # Errors
/// As [`HostDevice::open`] and opening an export; [`DeviceErrorKind::Refused`] for an address that is invalid.
pub fn open(place: impl AsRef<Path>, mode: OpenMode) -> Result<SharedDevice> {
    hold(place, mode)?.start()
}

/// An image that is open, locked and measured, and of which nothing was read: a file without the threads that will
/// serve it. A process that confines itself does so between [`hold`] and [`Held::start`], while it has one thread.
pub struct Held(Holding);

enum Holding {
    File(Box<HostFile>, OpenMode),
    /// The connection to an NBD server, after the handshake.
    #[cfg(all(feature = "nbd", target_os = "linux"))]
    Export(Box<nbd::NbdDevice>),
    /// A device of another crate.
    Other(Box<dyn FnOnce() -> Result<SharedDevice> + Send>),
}

impl Held {
    #[cfg(all(feature = "nbd", target_os = "linux"))]
    /// The same, for a process that can make no connections later: those to an export that are lost are made again in this way.
    #[must_use]
    pub fn reconnect_by(self, connector: nbd::Connector) -> Self {
        match self.0 {
            Holding::Export(device) => {
                Held(Holding::Export(Box::new(device.reconnect_by(connector))))
            }
            other => Held(other),
        }
    }

    /// An image of another kind. `start` finds everything that it needs open.
    pub fn later(start: impl FnOnce() -> Result<SharedDevice> + Send + 'static) -> Self {
        Held(Holding::Other(Box::new(start)))
    }

    /// Makes a device of it: starts its threads.
    ///
    /// # Errors
    /// As [`HostDevice::open`].
    pub fn start(self) -> Result<SharedDevice> {
        match self.0 {
            Holding::File(file, mode) => HostDevice::start(*file, &mode),
            #[cfg(all(feature = "nbd", target_os = "linux"))]
            Holding::Export(device) => device.begin(),
            Holding::Other(start) => start(),
        }
    }
}

/// Opens an image as [`open()`] does, without its threads.
///
/// # Errors
/// As [`open()`].
pub fn hold(place: impl AsRef<Path>, mode: OpenMode) -> Result<Held> {
    let place = place.as_ref();
    match nbd_address::NbdAddress::parse(place) {
        None => {
            let file = open::open(place, &mode)?;
            Ok(Held(Holding::File(Box::new(file), mode)))
        }
        #[cfg(all(feature = "nbd", target_os = "linux"))]
        Some(Ok(address)) => {
            let options = nbd::NbdOptions {
                read_only: mode.read_only,
                lock: mode.lock,
                ..nbd::NbdOptions::default()
            };
            nbd::NbdDevice::connect(&address, &options).map(|d| Held(Holding::Export(Box::new(d))))
        }
        #[cfg(not(all(feature = "nbd", target_os = "linux")))]
        Some(Ok(_)) => Err(sys::refused(DeviceErrorKind::Refused {
            why: "this build has no NBD client: it needs Linux and the feature `nbd`".to_owned(),
        })),
        Some(Err(why)) => Err(sys::refused(DeviceErrorKind::Refused { why })),
    }
}

/// A file or block special of the host. See the module's head.
pub struct HostDevice {
    file: Arc<HostFile>,
    ring: Option<Uring>,
    pool: Pool,
}

impl HostDevice {
    /// Opens the regular file or block special at `path`.
    ///
    /// # Errors
    /// [`DeviceErrorKind::Os`] of the failed system call; [`DeviceErrorKind::InUse`] when the lock
    /// is asked for and the device is in use; [`DeviceErrorKind::Unsupported`] when the path is
    /// neither a file nor a block special, or [`DirectIo::Always`] cannot be had.
    pub fn open(path: impl AsRef<Path>, mode: OpenMode) -> Result<SharedDevice> {
        Self::start(open::open(path.as_ref(), &mode)?, &mode)
    }

    /// Creates a sparse regular file of `bytes` zero bytes and opens it for writing, locked.
    ///
    /// # Errors
    /// As [`HostDevice::open`]; `EEXIST` when there is something at `path`.
    pub fn create(path: impl AsRef<Path>, bytes: u64) -> Result<SharedDevice> {
        Self::create_with(path, bytes, OpenMode::default())
    }

    /// As [`HostDevice::create`], opened as `mode` says.
    ///
    /// # Errors
    /// As [`HostDevice::create`].
    pub fn create_with(path: impl AsRef<Path>, bytes: u64, mode: OpenMode) -> Result<SharedDevice> {
        Self::start(open::create(path.as_ref(), bytes, &mode)?, &mode)
    }

    fn start(file: HostFile, mode: &OpenMode) -> Result<SharedDevice> {
        let file = Arc::new(file);
        let ring = match mode.engine {
            Engine::Plain => None,
            Engine::Auto => Uring::start(&file).ok(),
            Engine::Uring => Some(Uring::start(&file).map_err(|error| {
                let kind = match error.raw_os_error() {
                    Some(errno) => file::kind_of(errno),
                    None => DeviceErrorKind::Unsupported,
                };
                DeviceError {
                    op: "open",
                    offset: DevOffset(0),
                    bytes: 0,
                    kind,
                }
            })?),
        };
        let pool = Pool::new(Arc::clone(&file));
        Ok(Arc::new(HostDevice { file, ring, pool }))
    }

    /// Does a request in the caller's thread, under the instruments' eyes.
    fn watch<T>(
        &self,
        kind: Kind,
        offset: DevOffset,
        bytes: u64,
        flags: Flags,
        job: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let seen = Seen {
            kind,
            offset,
            bytes,
            fua: flags.contains(Flags::FUA),
        };
        self.file.monitor.watch(&seen, job)
    }
}

fn write_kind(flags: Flags) -> Kind {
    if flags.contains(Flags::META) {
        Kind::MetaWrite
    } else {
        Kind::Write
    }
}

impl BlockDevice for HostDevice {
    fn geometry(&self) -> Geometry {
        self.file.geometry()
    }

    fn submit(&self, mut request: Request) {
        if let Err(error) = refuse::request(&self.file.geometry(), &request) {
            return request.complete(Err(error));
        }
        if let Op::Flush = request.op
            && self.file.opened.read_only
        {
            return request.complete(Ok(()));
        }
        self.file.monitor.note_submitted(&mut request);
        let Some(ring) = &self.ring else {
            return self.pool.push(request);
        };
        match &mut request.op {
            Op::Read(_) | Op::Flush => {}
            Op::Write(slices) => {
                if !slices.iter().all(|slice| self.file.is_aligned(slice)) {
                    let parts: Vec<&[u8]> = slices.iter().map(|slice| &**slice).collect();
                    *slices = vec![AlignedBuf::concat(&parts).into()];
                }
            }
            Op::Discard { .. } | Op::WriteZeroes { .. } => return self.pool.push(request),
        }
        if let Err(request) = own_ring::offer(&self.file, request) {
            ring.push(request);
        }
    }

    fn read_at(&self, offset: DevOffset, buf: &mut [u8]) -> Result<()> {
        refuse::range(
            &self.file.geometry(),
            "read",
            offset,
            buf.len() as u64,
            false,
        )?;
        self.watch(Kind::Read, offset, buf.len() as u64, Flags::empty(), || {
            self.file.read(offset, buf)
        })
    }

    fn write_at(&self, offset: DevOffset, buf: &[u8], flags: Flags) -> Result<()> {
        refuse::range(
            &self.file.geometry(),
            "write",
            offset,
            buf.len() as u64,
            true,
        )?;
        let kind = write_kind(flags);
        self.watch(kind, offset, buf.len() as u64, flags, || {
            self.file.write(offset, &[buf], flags)
        })
    }

    fn read_aligned(&self, offset: DevOffset, mut buf: AlignedBuf) -> Result<AlignedBuf> {
        self.read_at(offset, &mut buf)?;
        Ok(buf)
    }

    fn write_vectored_at(&self, offset: DevOffset, slices: &[IoSlice], flags: Flags) -> Result<()> {
        refuse::slices(&self.file.geometry(), offset, slices)?;
        let slices: Vec<&[u8]> = slices.iter().map(|slice| &**slice).collect();
        let bytes = slices.iter().map(|slice| slice.len() as u64).sum();
        self.watch(write_kind(flags), offset, bytes, flags, || {
            self.file.write(offset, &slices, flags)
        })
    }

    fn flush(&self) -> Result<()> {
        if self.file.opened.read_only {
            return Ok(());
        }
        self.watch(Kind::Flush, DevOffset(0), 0, Flags::empty(), || {
            self.file.flush()
        })
    }

    fn discard(&self, offset: DevOffset, bytes: u64) -> Result<()> {
        refuse::range(&self.file.geometry(), "discard", offset, bytes, true)?;
        self.watch(Kind::Discard, offset, bytes, Flags::empty(), || {
            self.file.discard(offset, bytes)
        })
    }

    fn write_zeroes(&self, offset: DevOffset, bytes: u64) -> Result<()> {
        refuse::range(&self.file.geometry(), "write-zeroes", offset, bytes, true)?;
        self.watch(Kind::WriteZeroes, offset, bytes, Flags::empty(), || {
            self.file.write_zeroes(offset, bytes)
        })
    }

    fn next_data(&self, offset: DevOffset) -> DevOffset {
        self.file.next_data(offset)
    }

    fn grow(&self, bytes: u64) -> Result<()> {
        self.file.grow(bytes)
    }

    fn tail(&self) -> Result<Vec<u8>> {
        self.file.tail()
    }

    fn monitor(&self) -> Option<&Monitor> {
        Some(&self.file.monitor)
    }

    fn name(&self) -> String {
        self.file.path.display().to_string()
    }
}

/// Performs a request synchronously; the buffer of a read is filled in place.
fn perform(file: &HostFile, request: &mut Request) -> std::result::Result<(), DeviceError> {
    let (offset, flags) = (request.offset, request.flags);
    match &mut request.op {
        Op::Read(buf) => file.read(offset, buf),
        Op::Write(slices) => {
            let slices: Vec<&[u8]> = slices.iter().map(|slice| &**slice).collect();
            file.write(offset, &slices, flags)
        }
        Op::Flush => file.flush(),
        Op::Discard { bytes } => file.discard(offset, *bytes),
        Op::WriteZeroes { bytes } => file.write_zeroes(offset, *bytes),
    }
}
