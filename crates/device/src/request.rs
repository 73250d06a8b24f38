//! Requests to a device, and their completions.

use crate::{AlignedBuf, DevOffset, DeviceError, DeviceErrorKind, IoSlice};
use std::any::Any;
use std::cell::Cell;
use std::sync::Arc;

bitflags::bitflags! {
    /// Modifiers of a request.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Flags: u32 {
        /// Durable on completion (force unit access). Devices without it flush after the write.
        const FUA = 1;
        /// Metadata: for traces and statistics only.
        const META = 2;
    }
}

/// I/O priority of a request, as Linux has it: class best-effort, level 0 (first) to 7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IoPriority(pub u8);

impl Default for IoPriority {
    fn default() -> Self {
        IoPriority(4)
    }
}

thread_local! {
    /// The calling thread's, once it is known.
    static CURRENT: Cell<Option<IoPriority>> = const { Cell::new(None) };
}

impl IoPriority {
    /// The calling thread's: what it adopted, else what the host gave it (`ionice`). Requests begin with it.
    #[must_use]
    pub fn current() -> Self {
        if let Some(known) = CURRENT.get() {
            return known;
        }
        let found = crate::host::priority::of_thread().map_or_else(Self::default, IoPriority);
        CURRENT.set(Some(found));
        found
    }

    /// Does something for another thread of the host, with that thread's priority if it was given one. 0 means no thread.
    pub fn acting_for<R>(thread: u32, job: impl FnOnce() -> R) -> R {
        struct Before(IoPriority);
        impl Drop for Before {
            fn drop(&mut self) {
                self.0.adopt();
            }
        }
        let number = i32::try_from(thread).ok().filter(|n| *n > 0);
        let Some(theirs) = number.and_then(crate::host::priority::of).map(IoPriority) else {
            return job();
        };
        let _before = Before(Self::current());
        theirs.adopt();
        job()
    }

    /// Makes it the calling thread's, for requests and for what the thread does at the host itself.
    pub fn adopt(self) {
        if CURRENT.replace(Some(self)) != Some(self) {
            crate::host::priority::set_for_thread(self.0);
        }
    }
}

/// What to do.
#[derive(Debug)]
pub enum Op {
    /// Fill the buffer; it comes back in [`Done::read`].
    Read(AlignedBuf),
    /// Write these slices one after another, starting at the request's offset. Every slice's
    /// length is a multiple of the logical block size. A device that keeps one for longer than the
    /// request lives keeps [`IoSlice::to_keep`] of it.
    Write(Vec<IoSlice>),
    /// Make all writes durable that completed before this was submitted.
    Flush,
    /// See [`crate::BlockDevice::discard`].
    Discard {
        /// Length of the range.
        bytes: u64,
    },
    /// See [`crate::BlockDevice::write_zeroes`].
    WriteZeroes {
        /// Length of the range.
        bytes: u64,
    },
}

impl Op {
    /// How many bytes of the device the operation covers.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        match self {
            Op::Read(buf) => buf.len() as u64,
            Op::Write(slices) => slices.iter().map(|s| s.len() as u64).sum(),
            Op::Flush => 0,
            Op::Discard { bytes } | Op::WriteZeroes { bytes } => *bytes,
        }
    }

    /// The operation's name in messages.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Op::Read(_) => "read",
            Op::Write(_) => "write",
            Op::Flush => "flush",
            Op::Discard { .. } => "discard",
            Op::WriteZeroes { .. } => "write-zeroes",
        }
    }
}

/// Kinds of requests, as counters and traces tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// A read.
    Read = 0,
    /// A write of file data.
    Write = 1,
    /// A write of metadata ([`Flags::META`]).
    MetaWrite = 2,
    /// A flush of the device's cache.
    Flush = 3,
    /// A discard.
    Discard = 4,
    /// Zeroing without data.
    WriteZeroes = 5,
}

impl Kind {
    /// All of them, in the order of their numbers.
    pub const ALL: [Kind; 6] = [
        Kind::Read,
        Kind::Write,
        Kind::MetaWrite,
        Kind::Flush,
        Kind::Discard,
        Kind::WriteZeroes,
    ];

    /// The kind of an operation.
    #[must_use]
    pub fn of(op: &Op, flags: Flags) -> Kind {
        match op {
            Op::Read(_) => Kind::Read,
            Op::Write(_) if flags.contains(Flags::META) => Kind::MetaWrite,
            Op::Write(_) => Kind::Write,
            Op::Flush => Kind::Flush,
            Op::Discard { .. } => Kind::Discard,
            Op::WriteZeroes { .. } => Kind::WriteZeroes,
        }
    }

    /// Its name, as statistics and traces show it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::MetaWrite => "meta_write",
            Kind::Flush => "flush",
            Kind::Discard => "discard",
            Kind::WriteZeroes => "write_zeroes",
        }
    }
}

/// A request, as its device records it.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// What kind.
    pub kind: Kind,
    /// Where.
    pub offset: DevOffset,
    /// How many bytes.
    pub bytes: u64,
    /// Durable on completion.
    pub fua: bool,
}

impl Seen {
    /// The properties of an operation that are recorded.
    #[must_use]
    pub fn new(op: &Op, offset: DevOffset, flags: Flags) -> Self {
        Seen {
            kind: Kind::of(op, flags),
            offset,
            bytes: op.bytes(),
            fua: flags.contains(Flags::FUA),
        }
    }
}

/// When a request was submitted, if it is timed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stamp(pub(crate) u64);

/// A finished request.
#[derive(Debug)]
pub struct Done {
    /// How it went.
    pub result: Result<(), DeviceError>,
    /// The buffer of a read: filled when `result` is `Ok`, otherwise with unspecified contents.
    pub read: Option<AlignedBuf>,
}

/// Called once when the request has finished, in the device's context. Must not block.
pub type Completion = Box<dyn FnOnce(Done) + Send>;

/// Takes requests for the ring of one thread, while that thread collects (`OwnRing::collect`). Only the device
/// that keeps the ring knows the type behind it.
#[derive(Clone)]
#[cfg_attr(not(all(feature = "uring", target_os = "linux")), expect(dead_code))]
pub struct RingIntake(Arc<dyn Any + Send + Sync>);

#[cfg(all(feature = "uring", target_os = "linux"))]
impl RingIntake {
    pub(crate) fn new(intake: Arc<dyn Any + Send + Sync>) -> Self {
        RingIntake(intake)
    }

    pub(crate) fn downcast<T: Any + Send + Sync>(self) -> Result<Arc<T>, Self> {
        self.0.downcast().map_err(RingIntake)
    }
}

/// A request to a device.
pub struct Request {
    /// What to do.
    pub op: Op,
    /// Where; a multiple of the logical block size.
    pub offset: DevOffset,
    /// How.
    pub flags: Flags,
    /// At which priority.
    pub priority: IoPriority,
    /// Called when the request has finished.
    pub done: Completion,
    /// The ring of the submitting thread, if it has one of its own that a device may use instead.
    pub ring: Option<RingIntake>,
    /// When it was submitted, for the instruments of the device that does the I/O.
    pub(crate) stamp: Stamp,
}

impl Request {
    /// A request of the calling thread's priority without flags.
    pub fn new(op: Op, offset: DevOffset, done: impl FnOnce(Done) + Send + 'static) -> Self {
        Request {
            op,
            offset,
            flags: Flags::empty(),
            priority: IoPriority::current(),
            done: Box::new(done),
            ring: None,
            stamp: Stamp::default(),
        }
    }

    /// Completes the request; for implementations of devices. A read's buffer goes back with it. A write's memory is released first.
    pub fn complete(self, result: Result<(), DeviceError>) {
        let read = match self.op {
            Op::Read(buf) => Some(buf),
            others => {
                drop(others);
                None
            }
        };
        (self.done)(Done { result, read });
    }

    /// The record of the request for its device's counters and traces.
    pub(crate) fn seen(&self) -> Seen {
        Seen::new(&self.op, self.offset, self.flags)
    }

    /// The error of this request for a reason; for implementations of devices.
    #[must_use]
    pub fn error(&self, kind: DeviceErrorKind) -> DeviceError {
        DeviceError {
            op: self.op.name(),
            offset: self.offset,
            bytes: self.op.bytes(),
            kind,
        }
    }
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Request")
            .field("op", &self.op.name())
            .field("offset", &self.offset)
            .field("bytes", &self.op.bytes())
            .field("flags", &self.flags)
            .finish_non_exhaustive()
    }
}
