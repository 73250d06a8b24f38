//! A read-only device over a container: a map from ranges of the disk to places in the file.
//!
//! simg, VHD and VMDK build such a map when they are opened. The map does not change afterwards.
//!
//! # Locks
//! `unpacked`, a leaf, holds the piece that was decompressed last. Reads of other data take no lock.

use crate::file::{file_bytes, read_any};
use crate::pool::Pool;
use crate::{Error, Result};
use blockwright_device::{
    BlockDevice, DevOffset, DeviceError, Flags, Geometry, Op, Request, SharedDevice, refuse,
};
use parking_lot::Mutex;
use std::sync::Arc;

/// The contents of a stretch of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Zeroes.
    Zero,
    /// A pattern of four bytes, repeated. The stretch begins at a multiple of four.
    Fill([u8; 4]),
    /// Bytes of the file, from this offset on.
    Data(u64),
    /// A part of a compressed piece: the key of the piece, and the offset within it after decompression.
    Packed { key: u64, within: usize },
}

/// The map from the disk to the file.
pub(crate) trait Map: Send + Sync + 'static {
    /// The contents of the disk at `offset`, and for how many bytes they go on: at least one, at most to `end`.
    fn piece(&self, offset: u64, end: u64) -> Result<(Piece, u64)>;

    /// Decompresses the piece that [`Piece::Packed`] names.
    fn unpack(&self, _file: &SharedDevice, key: u64) -> Result<Vec<u8>> {
        Err(Error::Corrupt(format!("nothing is compressed at {key}")))
    }
}

struct Shared<M> {
    file: SharedDevice,
    file_bytes: u64,
    map: M,
    geometry: Geometry,
    unpacked: Mutex<Option<(u64, Arc<Vec<u8>>)>>,
}

/// A read-only disk in a file.
pub(crate) struct Mapped<M> {
    shared: Arc<Shared<M>>,
    pool: Pool,
}

impl<M: Map> Mapped<M> {
    /// The disk of `bytes` bytes (whole sectors of it) that `map` finds in `file`.
    pub(crate) fn new(file: SharedDevice, bytes: u64, map: M) -> Result<Self> {
        let inner = file.geometry();
        let geometry = Geometry {
            bytes: bytes / 512 * 512,
            logical_block_bytes: 512,
            optimal_io_bytes: inner.optimal_io_bytes.max(4096),
            request_bytes_max: inner.request_bytes_max,
            fua: false,
            discard: false,
            read_only: true,
        };
        let shared = Arc::new(Shared {
            file_bytes: file_bytes(&file)?,
            file,
            map,
            geometry,
            unpacked: Mutex::new(None),
        });
        let theirs = Arc::clone(&shared);
        let pool = Pool::new(move |request| theirs.perform(request));
        Ok(Mapped { shared, pool })
    }
}

impl<M: Map> Shared<M> {
    fn perform(&self, request: &mut Request) -> blockwright_device::Result<()> {
        match &mut request.op {
            Op::Read(buf) => self.read(request.offset, buf),
            // Others were refused, or have nothing to do.
            _ => Ok(()),
        }
    }

    fn read(&self, offset: DevOffset, buf: &mut [u8]) -> blockwright_device::Result<()> {
        let bytes = buf.len() as u64;
        self.fill(offset.0, buf).map_err(|e| DeviceError {
            op: "read",
            offset,
            bytes,
            kind: DeviceError::from(e).kind,
        })
    }

    fn unpacked(&self, key: u64) -> Result<Arc<Vec<u8>>> {
        if let Some((known, bytes)) = &*self.unpacked.lock()
            && *known == key
        {
            return Ok(Arc::clone(bytes));
        }
        let bytes = Arc::new(self.map.unpack(&self.file, key)?);
        *self.unpacked.lock() = Some((key, Arc::clone(&bytes)));
        Ok(bytes)
    }

    fn fill(&self, mut offset: u64, mut buf: &mut [u8]) -> Result<()> {
        while !buf.is_empty() {
            let (piece, bytes) = self.map.piece(offset, offset + buf.len() as u64)?;
            let (part, rest) = buf.split_at_mut(bytes as usize);
            match piece {
                Piece::Zero => part.fill(0),
                Piece::Fill(pattern) => {
                    for (byte, value) in part.iter_mut().zip(pattern.iter().cycle()) {
                        *byte = *value;
                    }
                }
                Piece::Data(at) => self.copy(at, part)?,
                Piece::Packed { key, within } => {
                    let unpacked = self.unpacked(key)?;
                    let found = unpacked.get(within..within + part.len());
                    let found = found.ok_or_else(|| {
                        Error::Corrupt(
                            "a compressed stretch is shorter than it should be".to_owned(),
                        )
                    })?;
                    part.copy_from_slice(found);
                }
            }
            buf = rest;
            offset += bytes;
        }
        Ok(())
    }

    fn copy(&self, at: u64, part: &mut [u8]) -> Result<()> {
        let end = at.checked_add(part.len() as u64);
        if end.is_none_or(|end| end > self.file_bytes) {
            return Err(Error::Corrupt(format!(
                "data is said to be at byte {at}; the file has {} bytes",
                self.file_bytes
            )));
        }
        let inner = self.file.geometry();
        let unit = u64::from(inner.logical_block_bytes);
        if (at | part.len() as u64).is_multiple_of(unit) && at + part.len() as u64 <= inner.bytes {
            return Ok(self.file.read_at(DevOffset(at), part)?);
        }
        part.copy_from_slice(&read_any(&self.file, at, part.len())?);
        Ok(())
    }
}

impl<M: Map> BlockDevice for Mapped<M> {
    fn geometry(&self) -> Geometry {
        self.shared.geometry
    }

    fn submit(&self, request: Request) {
        match refuse::request(&self.shared.geometry, &request) {
            Err(error) => request.complete(Err(error)),
            Ok(()) => self.pool.push(request),
        }
    }

    fn read_at(&self, offset: DevOffset, buf: &mut [u8]) -> blockwright_device::Result<()> {
        let bytes = buf.len() as u64;
        refuse::range(&self.shared.geometry, "read", offset, bytes, false)?;
        self.shared.read(offset, buf)
    }

    fn write_at(&self, offset: DevOffset, buf: &[u8], _: Flags) -> blockwright_device::Result<()> {
        refuse::range(
            &self.shared.geometry,
            "write",
            offset,
            buf.len() as u64,
            true,
        )
    }

    fn flush(&self) -> blockwright_device::Result<()> {
        Ok(())
    }

    fn next_data(&self, offset: DevOffset) -> DevOffset {
        let end = self.shared.geometry.bytes;
        let mut at = offset.0;
        while at < end {
            match self.shared.map.piece(at, end) {
                Ok((Piece::Zero | Piece::Fill([0, 0, 0, 0]), bytes)) => at += bytes,
                _ => return DevOffset(self.shared.geometry.block_start(at).max(offset.0)),
            }
        }
        DevOffset(end.max(offset.0))
    }

    fn monitor(&self) -> Option<&blockwright_device::Monitor> {
        self.shared.file.monitor()
    }

    fn name(&self) -> String {
        self.shared.file.name()
    }
}
