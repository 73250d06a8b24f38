//! Block devices: every file system here reads from and writes to one.
//!
//! A [`BlockDevice`] takes [`Request`]s and completes each exactly once. It calls the request's completion
//! **in the device's own context**: its completion thread, or the submitter's thread when the request
//! finishes immediately. So a completion must be short and must not block. A completion that still has
//! blocking work hands it to a queue.
//!
//! Buffers are owned: a read carries an [`AlignedBuf`] that comes back filled. A write carries a
//! cheap [`IoSlice`], a counted reference to an immutable buffer, so bytes in flight
//! never change. Writers of a shared page copy it first.
//!
//! # Parts, lowest first
//! - `pool`, `buffer`, `lender`, `loan`: aligned memory, and memory that a front end lends. `heap`: the C library's allocator. `thread`: a
//!   thread's CPU, and the clock of ticks.
//! - `request`, `batch`, `sync`: requests, batches of writes, and waiting for requests.
//! - `monitor`, [`metrics`], [`trace`]: counters and recordings. [`refuse`]: the checks that every device makes.
//! - [`host`]: [`HostDevice`] (a file or block special) and `NbdDevice` (the export of a server).
//! - Devices over devices: [`OffsetDevice`] (a partition), [`JoinedDevice`], [`OverlayDevice`] (changes in memory), `mapped`,
//!   [`ZeroingDevice`] (discards become zeroes), [`CountingDevice`].
//! - [`sim`]: [`MemoryDevice`]; for tests and benchmarks [`RecordingDevice`] (crash images), [`FaultyDevice`] and
//!   [`sim::modelled`] (hardware in virtual time).
//! - `conformance`: the tests that every device passes.
//!
//! # Durability model
//! A completed write is visible to later reads. It is durable only after a later [`Op::Flush`]
//! completed, or when it was submitted with [`Flags::FUA`]. Writes between two flushes may reach
//! the medium in any order. A write larger than a logical block may be torn at logical-block
//! boundaries. The crash explorer's recording device implements exactly this.
//!
//! # Calls and locks
//! This crate calls the host alone, and no other crate of the workspace. It is one of two with `unsafe`; each block has its proof.
//! No lock of a device is held during I/O or a completion. `host` and `pool` list their own.
//!
//! # Hosts and features
//! `uring` (default) has the io_uring back end, `nbd` (default) the NBD client; both are of Linux alone. Elsewhere, files are read and written by positional
//! system calls, without direct I/O, holes and block specials.
//!
//! # Not responsible for
//! Caching, retries, file-system blocks. Offsets and lengths are bytes, multiples of the
//! logical block size.
//!
//! References: io_uring(7), open(2) for `O_DIRECT`, the NBD project's `doc/proto.md`.

#![warn(missing_docs)]

mod batch;
mod buffer;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
mod copying;
mod counting;
mod defaults;
mod heap;
pub mod host;
mod in_flight;
mod joined;
mod lender;
mod loan;
#[cfg(all(any(test, feature = "conformance"), target_os = "linux"))]
pub mod mapped;
pub mod metrics;
pub mod monitor;
mod offset;
pub mod os_name;
mod overlay;
mod pool;
pub mod positional;
pub mod refuse;
mod request;
pub mod sim;
mod split_blocks;
mod sync;
mod thread;
pub mod trace;
mod zeroing;

pub use batch::WriteBatch;
pub use buffer::{AlignedBuf, IoSlice};
pub use copying::CopyBatch;
pub use counting::{CountingDevice, DeviceStats, OpCount};
pub use heap::{limit_arenas, trim_heap};
#[cfg(all(feature = "uring", target_os = "linux"))]
pub use host::OwnRing;
#[cfg(all(feature = "nbd", target_os = "linux"))]
pub use host::nbd::NbdDevice;
pub use host::nbd_address::NbdAddress;
#[cfg(target_os = "linux")]
pub use host::trim_mounted;
pub use host::{DirectIo, Engine, Held, HostDevice, OpenMode, hold, open};
pub use joined::JoinedDevice;
pub use lender::Lender;
pub use loan::Loan;
pub use monitor::Monitor;
pub use offset::OffsetDevice;
pub use overlay::OverlayDevice;
pub use pool::BUFFER_ALIGN;
pub use request::{Completion, Done, Flags, IoPriority, Op, Request, RingIntake};
pub use sim::faulty::FaultyDevice;
pub use sim::memory::MemoryDevice;
pub use sim::recording::{CrashPolicy, RecordingDevice};
pub use split_blocks::SplitBlocksDevice;
pub use sync::DeviceExt;
pub use thread::{current_cpu, time_of_last_tick};
pub use zeroing::ZeroingDevice;

use std::fmt;
use std::sync::Arc;

/// A byte offset on a device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct DevOffset(pub u64);

impl fmt::Display for DevOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {}", self.0)
    }
}

/// The abilities of a device. Constant for the life of the device, except `bytes` of a growing
/// file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size of the device in bytes.
    pub bytes: u64,
    /// Smallest unit of a request and of tearing: a power of two, 512 ..= 65536.
    pub logical_block_bytes: u32,
    /// Preferred alignment of large requests; at least `logical_block_bytes`.
    pub optimal_io_bytes: u32,
    /// The largest request worth submitting as one; larger ones are split by the device.
    pub request_bytes_max: u32,
    /// `Flags::FUA` is cheaper than write + flush.
    pub fua: bool,
    /// `Op::Discard` does something.
    pub discard: bool,
    /// No write is accepted.
    pub read_only: bool,
}

impl Geometry {
    /// The beginning of the logical block that has this byte.
    #[must_use]
    pub fn block_start(&self, at: u64) -> u64 {
        at & !(u64::from(self.logical_block_bytes) - 1)
    }
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceErrorKind {
    /// The host reported this number: an errno (`EIO`, `ENOSPC`, …), on Windows a system error code.
    Os(i32),
    /// Fewer bytes were transferred than asked for, and trying the rest gave nothing more.
    Short {
        /// Bytes that were transferred.
        transferred: usize,
    },
    /// The request does not lie on the device, or is not aligned to the logical block.
    OutOfRange {
        /// The device's size in bytes.
        device_bytes: u64,
    },
    /// The device is read-only.
    ReadOnly,
    /// The device has gone away (disconnected, closed, or cut by a test).
    Gone,
    /// The operation is not supported by this device.
    Unsupported,
    /// The device is in use: by another process, or by the kernel (mounted, part of an array).
    InUse {
        /// The user, when the host reports one.
        holder: Option<String>,
    },
    /// The table of partitions, or the container that the device is in, is damaged.
    BadDisk {
        /// How, as a sentence.
        why: String,
    },
    /// Opening is refused: by the server at the other end, which may also not keep to the protocol; or because the request is invalid.
    Refused {
        /// What it was, as a sentence.
        why: String,
    },
}

/// A failed request: what was asked, where, and why it failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceError {
    /// The operation's name: `read`, `write`, `flush`, `discard`, `write-zeroes`, `open`.
    pub op: &'static str,
    /// Where it began.
    pub offset: DevOffset,
    /// How many bytes it covered.
    pub bytes: u64,
    /// Why it failed.
    pub kind: DeviceErrorKind,
}

impl DeviceError {
    /// Whether the host has no room for the bytes (a sparse image on a full disk, a thin volume, a quota), rather than a fault. The device
    /// holds what was written before.
    #[must_use]
    pub fn is_out_of_room(&self) -> bool {
        use host::sys::{EDQUOT, ENOSPC};
        matches!(self.kind, DeviceErrorKind::Os(ENOSPC | EDQUOT))
    }
}

/// Whether a file is a block special of the host.
#[must_use]
pub fn is_block_device(metadata: &std::fs::Metadata) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        metadata.file_type().is_block_device()
    }
    #[cfg(not(unix))]
    {
        let _no_such_files = metadata;
        false
    }
}

/// The text of a host's error without its number, for the middle of a sentence: "no such file or directory".
#[must_use]
pub fn host_reason(e: &std::io::Error) -> String {
    let mut text = e.to_string();
    if let Some(at) = text.find(" (os error") {
        text.truncate(at);
    }
    let mut chars = text.chars();
    // An abbreviation (RPC, I/O) stays.
    if let (Some('A'..='Z'), Some('a'..='z')) = (chars.next(), chars.next()) {
        text[..1].make_ascii_lowercase();
    }
    text
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.op {
            "open" | "flush" => write!(f, "device {}: ", self.op)?,
            op => write!(
                f,
                "device {op} of {} bytes at {}: ",
                self.bytes, self.offset
            )?,
        }
        match &self.kind {
            DeviceErrorKind::Os(errno) => {
                write!(f, "{}", std::io::Error::from_raw_os_error(*errno))
            }
            DeviceErrorKind::Short { transferred } => {
                write!(f, "only {transferred} bytes were transferred")
            }
            DeviceErrorKind::OutOfRange { device_bytes } => {
                match self.offset.0.checked_add(self.bytes) {
                    Some(end) if end <= *device_bytes => {
                        f.write_str("not aligned to the device's blocks")
                    }
                    _ => write!(f, "outside the device ({device_bytes} bytes)"),
                }
            }
            DeviceErrorKind::ReadOnly => write!(f, "the device is read-only"),
            DeviceErrorKind::Gone => write!(f, "the device is gone"),
            DeviceErrorKind::Unsupported => write!(f, "not supported by this device"),
            DeviceErrorKind::InUse {
                holder: Some(holder),
            } => write!(f, "in use by {holder}"),
            DeviceErrorKind::Refused { why } | DeviceErrorKind::BadDisk { why } => f.write_str(why),
            DeviceErrorKind::InUse { holder: None } => write!(f, "in use by another process"),
        }
    }
}

impl std::error::Error for DeviceError {}

/// Shorthand for a device result.
pub type Result<T> = std::result::Result<T, DeviceError>;

/// A block device. See the module's head for the rules of completion and durability.
pub trait BlockDevice: Send + Sync {
    /// The abilities of the device.
    fn geometry(&self) -> Geometry;

    /// Queues a request. Its completion is called exactly once, also when the request is refused.
    ///
    /// May block while the device's queue is full; never blocks on the completion of another
    /// request that was submitted by the same thread's completion.
    fn submit(&self, request: Request);

    /// Reads synchronously into `buf`; any alignment of the memory, logical-block aligned range.
    ///
    /// # Errors
    /// As the device reports. On an error the contents of `buf` are unspecified.
    fn read_at(&self, offset: DevOffset, buf: &mut [u8]) -> Result<()> {
        sync::read_through_submit(self, offset, buf)
    }

    /// Writes synchronously; any alignment of the memory, logical-block aligned range.
    ///
    /// # Errors
    /// As the device reports. On an error any part of the range may have been written.
    fn write_at(&self, offset: DevOffset, buf: &[u8], flags: Flags) -> Result<()> {
        sync::write_through_submit(self, offset, buf, flags)
    }

    /// Reads synchronously into an owned buffer, which devices can fill without a copy.
    ///
    /// # Errors
    /// As the device reports; the buffer is lost.
    fn read_aligned(&self, offset: DevOffset, buf: AlignedBuf) -> Result<AlignedBuf> {
        let bytes = buf.len();
        let filled = sync::wait(self, Op::Read(buf), offset, Flags::empty())?;
        Ok(filled.unwrap_or_else(|| AlignedBuf::zeroed(bytes)))
    }

    /// Writes counted slices one after another, synchronously and without copying them.
    ///
    /// # Errors
    /// As [`BlockDevice::write_at`].
    fn write_vectored_at(&self, offset: DevOffset, slices: &[IoSlice], flags: Flags) -> Result<()> {
        sync::wait(self, Op::Write(slices.to_vec()), offset, flags).map(|_| ())
    }

    /// Makes all writes durable whose completion was reported before this call.
    ///
    /// # Errors
    /// As the device reports; after an error the durability of those writes is unknown.
    fn flush(&self) -> Result<()> {
        sync::wait(self, Op::Flush, DevOffset(0), Flags::empty()).map(|_| ())
    }

    /// Tells the device that the range's contents are no longer needed. Reads of it may then
    /// return anything (in practice the old bytes or zeroes). Advisory: succeeds without effect
    /// on a device that cannot ([`Geometry::discard`]).
    ///
    /// # Errors
    /// As the device reports.
    fn discard(&self, offset: DevOffset, bytes: u64) -> Result<()> {
        sync::wait(self, Op::Discard { bytes }, offset, Flags::empty()).map(|_| ())
    }

    /// Makes the range read as zeroes, without transferring them where the device can.
    ///
    /// # Errors
    /// As the device reports.
    fn write_zeroes(&self, offset: DevOffset, bytes: u64) -> Result<()> {
        sync::wait(self, Op::WriteZeroes { bytes }, offset, Flags::empty()).map(|_| ())
    }

    /// Where the next bytes begin that may be anything but zeroes: at `offset` or behind it, at most at the end.
    /// Between `offset` and there everything reads as zero. A device that cannot tell says `offset`.
    ///
    /// The answer is `offset` itself or begins a logical block, so it can be read at ([`Geometry::block_start`]).
    ///
    /// For programs that look for what a sparse image really holds; not a promise about space.
    fn next_data(&self, offset: DevOffset) -> DevOffset {
        offset
    }

    /// Makes the device larger: what is new reads as zeroes. Only files of the host grow, and nothing shrinks. If another program has made
    /// it larger meanwhile, the new size is noticed, independent of `bytes`.
    ///
    /// # Errors
    /// [`DeviceErrorKind::Unsupported`]; as the host.
    fn grow(&self, bytes: u64) -> Result<()> {
        Err(DeviceError {
            op: "grow",
            offset: DevOffset(0),
            bytes,
            kind: DeviceErrorKind::Unsupported,
        })
    }

    /// The bytes of a file behind its last whole logical block, which no request reaches: fewer than a block. Containers whose files have any
    /// length end there.
    ///
    /// # Errors
    /// As reading.
    fn tail(&self) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }

    /// The instruments of the device that does the I/O, if it has any.
    fn monitor(&self) -> Option<&Monitor> {
        None
    }

    /// A name for messages: the path, or what kind of simulated device it is.
    fn name(&self) -> String;
}

/// A device shared by all its users.
pub type SharedDevice = Arc<dyn BlockDevice>;
