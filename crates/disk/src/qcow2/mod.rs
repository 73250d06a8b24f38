//! qcow2, versions 2 and 3, as a block device.
//!
//! # Parts
//! * `header`: the header, and which other files it refers to; `entry`: entries of tables
//! * `refcounts`: which clusters of the file are free
//! * `mapping`: the mapping, and the order in which changes of it reach the file
//! * `transfer`: what a request does; this module: how requests travel.
//!
//! # How requests travel
//! A read or write of clusters that are in the file and contiguous there goes to the file at once, with another offset, and completes in the
//! file's context. Everything else (tables that are not in memory, allocation, compressed clusters, flushes) is done by a few threads, which start with
//! the first such request.
//!
//! # External data files
//! An image can keep its data in another file, at the offsets of the disk, and only the mapping in its own. Where the image says so ("raw"), the data file
//! is the disk's contents by itself: zeroes are then written to it, and never only noted in the mapping.
//!
//! # Durability
//! As [`BlockDevice`]'s: a write is durable after a flush. Changes of the mapping reach the file with flushes, when too many wait, and when the
//! device is dropped.
//!
//! # Locks
//! `core`'s, held by one thread for a lookup, an allocation with its write, or a flush. `in_flight` is a leaf.

mod create;
mod entry;
mod header;
mod mapping;
mod refcounts;
mod transfer;

pub use create::{CreateOptions, DataFile, create, file_bytes};
pub(crate) use header::{HEAD_BYTES, MAGIC};
pub use header::{References, references};

use crate::pool::Pool;
use crate::{Error, Result};
use blockwright_device::{
    AlignedBuf, BlockDevice, DevOffset, DeviceError, DeviceErrorKind, DeviceExt, Done, Flags,
    Geometry, IoSlice, Op, Request, SharedDevice, refuse,
};
use entry::Entry;
use header::Header;
use mapping::Core;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;

/// A qcow2 file as a device. See the module's head.
pub struct Qcow2 {
    shared: Arc<Shared>,
    pool: Option<Pool>,
}

/// Requests that use data of the file, outside of the core's lock.
#[derive(Default)]
struct InFlight {
    count: Mutex<usize>,
    none: Condvar,
}

impl InFlight {
    fn enter(&self) {
        *self.count.lock() += 1;
    }

    fn leave(&self) {
        let mut count = self.count.lock();
        *count -= 1;
        if *count == 0 {
            self.none.notify_all();
        }
    }

    /// Returns when there is none. The caller holds the core's lock, without which none begins.
    fn wait_for_none(&self) {
        let mut count = self.count.lock();
        while *count > 0 {
            self.none.wait(&mut count);
        }
    }
}

struct Shared {
    file: SharedDevice,
    backing: Option<SharedDevice>,
    /// The external data file, if data is in one.
    external: Option<SharedDevice>,
    geometry: Geometry,
    core: Mutex<Core>,
    in_flight: Arc<InFlight>,
    /// The compressed cluster that was read last: readers want its other parts next.
    unpacked: Mutex<Option<(u64, Arc<Vec<u8>>)>>,
}

impl Qcow2 {
    /// Opens the disk in a qcow2 file. `backing` is the device of its backing file, if it has one ([`references`]).
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Unsupported`], [`Error::Device`].
    pub fn open(file: SharedDevice, backing: Option<SharedDevice>) -> Result<Self> {
        Self::open_with_data(file, backing, None)
    }

    /// As [`Qcow2::open`]; `data` is the device of the external data file, if it has one ([`references`]). It grows when it is shorter than the disk.
    /// The disk can be written when both can.
    ///
    /// # Errors
    /// As [`Qcow2::open`].
    pub fn open_with_data(
        file: SharedDevice,
        backing: Option<SharedDevice>,
        data: Option<SharedDevice>,
    ) -> Result<Self> {
        let inner = file.geometry();
        let head = crate::file::head(&file, HEAD_BYTES)?;
        if references(&head)?.is_none() || head.len() < 512 {
            return Err(Error::Corrupt("not a qcow2 file".to_owned()));
        }
        let header = Header::parse(&head, crate::file::file_bytes(&file)?)?;
        let is_external = header.incompatible & header::incompatible::EXTERNAL_DATA != 0;
        let external = match (is_external, data) {
            (true, Some(data)) => Some(data),
            (true, None) => {
                return Err(Error::Unsupported(
                    "qcow2: its data is in an external data file".to_owned(),
                ));
            }
            (false, _) => None,
        };
        let outer = external.as_ref().map(|data| data.geometry());
        let sector = inner
            .logical_block_bytes
            .max(outer.map_or(0, |outer| outer.logical_block_bytes));
        let read_only = inner.read_only || outer.is_some_and(|outer| outer.read_only);
        if sector > 1 << header.cluster_bits {
            return Err(Error::Unsupported(format!(
                "qcow2: its clusters are smaller than the sectors of {sector} bytes below"
            )));
        }
        let geometry = Geometry {
            bytes: header.bytes,
            logical_block_bytes: sector,
            optimal_io_bytes: inner.optimal_io_bytes.max(1 << header.cluster_bits),
            request_bytes_max: outer
                .map_or(inner.request_bytes_max, |outer| outer.request_bytes_max),
            fua: false,
            discard: !read_only,
            read_only,
        };
        let geometry = Geometry {
            bytes: geometry.bytes / u64::from(geometry.logical_block_bytes)
                * u64::from(geometry.logical_block_bytes),
            ..geometry
        };
        let mut core = Core::load(
            Arc::clone(&file),
            header,
            backing.is_some(),
            external.clone(),
        )?;
        if !read_only {
            core.begin_writing()?;
        }
        let shared = Arc::new(Shared {
            file,
            backing,
            external,
            geometry,
            core: Mutex::new(core),
            in_flight: Arc::default(),
            unpacked: Mutex::new(None),
        });
        let theirs = Arc::clone(&shared);
        let pool = Some(Pool::new(move |request| theirs.perform(request)));
        Ok(Qcow2 { shared, pool })
    }
}

/// An error in terms of the disk's request, whatever happened below.
fn told(error: Error, op: &'static str, offset: DevOffset, bytes: u64) -> DeviceError {
    let below = DeviceError::from(error);
    DeviceError {
        op,
        offset,
        bytes,
        kind: below.kind,
    }
}

impl Shared {
    /// The file that has the data.
    fn data(&self) -> &SharedDevice {
        self.external.as_ref().unwrap_or(&self.file)
    }

    fn perform(&self, request: &mut Request) -> std::result::Result<(), DeviceError> {
        let (name, offset, bytes) = (request.op.name(), request.offset, request.op.bytes());
        let flags = request.flags;
        let result = match &mut request.op {
            Op::Read(buf) => self.read(offset.0, buf),
            Op::Write(slices) => self.write(offset.0, slices, flags),
            Op::Flush => self.flush(),
            Op::Discard { bytes } => self.drop_range(offset.0, *bytes, true),
            Op::WriteZeroes { bytes } => self
                .drop_range(offset.0, *bytes, false)
                .and_then(|()| self.force(flags)),
        };
        result.map_err(|e| told(e, name, offset, bytes))
    }

    fn force(&self, flags: Flags) -> Result<()> {
        match flags.contains(Flags::FUA) {
            true => self.flush(),
            false => Ok(()),
        }
    }

    fn flush(&self) -> Result<()> {
        if self.geometry.read_only {
            return Ok(());
        }
        self.core.lock().flush(|| self.in_flight.wait_for_none())
    }

    /// Where a whole request lies in the file, if it lies there in one piece and that is known without I/O.
    fn at_once(&self, request: &Request) -> Option<u64> {
        let writes = match &request.op {
            Op::Read(_) => false,
            Op::Write(_) if !request.flags.contains(Flags::FUA) => true,
            _ => return None,
        };
        let (offset, bytes) = (request.offset.0, request.op.bytes());
        let mut core = self.core.try_lock()?;
        if bytes == 0 || !core.is_in_memory(offset) {
            return None;
        }
        let run = core.run(offset, offset + bytes).ok()?;
        let Entry::Data { host, copied } = run.entry else {
            return None;
        };
        let place = host + offset % core.cluster_bytes();
        let in_file = place.checked_add(bytes)? <= self.data().geometry().bytes;
        if run.bytes < bytes || (writes && !copied) || !in_file {
            return None;
        }
        // Under the lock: from here on a flush waits for the request before it frees clusters.
        self.in_flight.enter();
        Some(place)
    }
}

impl BlockDevice for Qcow2 {
    fn geometry(&self) -> Geometry {
        self.shared.geometry
    }

    fn submit(&self, mut request: Request) {
        if let Err(error) = refuse::request(&self.shared.geometry, &request) {
            return request.complete(Err(error));
        }
        let Some(place) = self.shared.at_once(&request) else {
            return match &self.pool {
                Some(pool) => pool.push(request),
                None => {
                    let error = request.error(DeviceErrorKind::Gone);
                    request.complete(Err(error));
                }
            };
        };
        let (op, offset, bytes) = (request.op.name(), request.offset, request.op.bytes());
        let in_flight = Arc::clone(&self.shared.in_flight);
        let done = request.done;
        request.offset = DevOffset(place);
        request.done = Box::new(move |Done { result, read }| {
            in_flight.leave();
            let result = result.map_err(|e| told(e.into(), op, offset, bytes));
            done(Done { result, read });
        });
        self.shared.data().submit(request);
    }

    fn read_at(&self, offset: DevOffset, buf: &mut [u8]) -> blockwright_device::Result<()> {
        let bytes = buf.len() as u64;
        refuse::range(&self.shared.geometry, "read", offset, bytes, false)?;
        let result = self.shared.read(offset.0, buf);
        result.map_err(|e| told(e, "read", offset, bytes))
    }

    fn write_at(
        &self,
        offset: DevOffset,
        buf: &[u8],
        flags: Flags,
    ) -> blockwright_device::Result<()> {
        let bytes = buf.len() as u64;
        refuse::range(&self.shared.geometry, "write", offset, bytes, true)?;
        let slice = IoSlice::from(AlignedBuf::copy_of(buf));
        let result = self.shared.write(offset.0, &[slice], flags);
        result.map_err(|e| told(e, "write", offset, bytes))
    }

    fn write_vectored_at(
        &self,
        offset: DevOffset,
        slices: &[IoSlice],
        flags: Flags,
    ) -> blockwright_device::Result<()> {
        refuse::slices(&self.shared.geometry, offset, slices)?;
        let bytes = slices.iter().map(|slice| slice.len() as u64).sum();
        let result = self.shared.write(offset.0, slices, flags);
        result.map_err(|e| told(e, "write", offset, bytes))
    }

    fn flush(&self) -> blockwright_device::Result<()> {
        let result = self.shared.flush();
        result.map_err(|e| told(e, "flush", DevOffset(0), 0))
    }

    fn next_data(&self, offset: DevOffset) -> DevOffset {
        // A range of unknown state may be data.
        DevOffset(self.shared.next_data(offset.0).unwrap_or(offset.0))
    }

    fn monitor(&self) -> Option<&blockwright_device::Monitor> {
        self.shared.file.monitor()
    }

    fn name(&self) -> String {
        self.shared.file.name()
    }
}

impl Drop for Qcow2 {
    fn drop(&mut self) {
        // Waits for what was submitted.
        self.pool = None;
        // Twice: what the first one frees is written by the second.
        for _ in 0..2 {
            let _reported_by_flushes = self.shared.flush();
        }
    }
}

/// Bytes of an `AlignedBuf` for a cluster.
fn buffer(file: &SharedDevice, at: u64, bytes: usize) -> Result<AlignedBuf> {
    Ok(file.read_buf(DevOffset(at), bytes)?)
}
