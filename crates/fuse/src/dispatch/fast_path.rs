//! A request as a transport sees it: decoded once, with the open file that it names.
//!
//! A transport calls [`Dispatcher::decode`], and the [`Call`] says where the request may be served:
//! - READs, and WRITEs past the cache, may be started and left to the device ([`Dispatcher::start`]). They are answered in the device's
//!   context. A request that would have to wait is given back, for [`Dispatcher::carry_out`] in a thread that may wait.
//! - All others are served by [`Dispatcher::serve`], in a thread that may wait if the request does.

use super::answer::{Answer, Failure};
use super::coherence::is_past_cache;
use super::files::OpenFile;
use super::{Dispatcher, Processed};
use crate::connection::ReplySink;
use crate::protocol::flags::{GETATTR_FH, ReadFlags, WriteFlags};
use crate::protocol::reply::WriteOut;
use crate::protocol::request::{GetAttrIn, InHeader, ReadIn, WriteIn};
use crate::protocol::{Opcode, Request};
use blockwright_device::{AlignedBuf, IoSlice};
use blockwright_vfs::{Carrier, Patience, ReadDone, ReadOp, WouldWait, WriteDone, WriteOp};
use rustix::io::Errno;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The smallest READ (bytes) whose reply lends its memory. Copying less is cheaper than lending.
const LENT_BYTES_MIN: usize = 64 << 10;

#[derive(Clone, Copy)]
pub(super) enum What {
    Read {
        bytes: usize,
        /// Into the kernel's cache.
        fills: bool,
    },
    /// Not out of the kernel's cache.
    Write {
        bytes: u32,
        /// Past the kernel's cache.
        past: bool,
    },
    /// Out of the kernel's cache, by a kernel that keeps the times.
    WriteBack { bytes: u32 },
}

/// A READ or WRITE of an open file.
pub(super) struct DataRequest {
    pub(super) file: Arc<OpenFile>,
    pub(super) unique: u64,
    pub(super) nodeid: u64,
    pub(super) offset: u64,
    pub(super) what: What,
    /// The caller loses set-id bits and capabilities of the file.
    pub(super) strips: bool,
    may_start: bool,
}

impl DataRequest {
    /// Number of bytes moved.
    pub(super) fn bytes(&self) -> usize {
        match self.what {
            What::Read { bytes, .. } => bytes,
            // Was counted in 32 bits.
            What::Write { bytes, .. } | What::WriteBack { bytes } => bytes as usize,
        }
    }

    /// A WRITE's data in its request.
    pub(super) fn data<'a>(&self, request: &Request<'a>) -> &'a [u8] {
        let after = request.body.get(size_of::<WriteIn>()..).unwrap_or_default();
        &after[..self.bytes().min(after.len())]
    }
}

/// The target of a request, as far as it was looked up.
pub(super) enum Subject {
    Data(DataRequest),
    /// A READ or WRITE that fails.
    Refused(Failure),
    /// An open file that a GETATTR names, on a volume that is nearly full: the kernel may be about to write to it.
    Gate(Arc<OpenFile>),
    Other,
}

/// See the module's head.
pub struct Call {
    pub(super) header: InHeader,
    pub(super) opcode: Option<Opcode>,
    pub(super) subject: Subject,
}

impl Call {
    /// The kind of request, if it is known.
    #[must_use]
    pub fn opcode(&self) -> Option<Opcode> {
        self.opcode
    }

    /// The number that its reply carries.
    #[must_use]
    pub fn unique(&self) -> u64 {
        self.header.unique
    }

    /// The thread that made it.
    #[must_use]
    pub fn client(&self) -> u32 {
        self.header.pid
    }

    /// The request again, from the bytes that it was decoded from.
    #[must_use]
    pub fn request<'a>(&self, bytes: &'a [u8]) -> Request<'a> {
        Request::again(self.header, bytes)
    }

    /// How many bytes [`Dispatcher::start`] would move; `None` when the request is not one that it takes.
    #[must_use]
    pub fn startable_bytes(&self) -> Option<usize> {
        match &self.subject {
            Subject::Data(data) if data.may_start => Some(data.bytes()),
            _ => None,
        }
    }

    /// How many bytes of data a WRITE brought, at the end of its request; 0 for other requests.
    #[must_use]
    pub fn data_bytes(&self) -> usize {
        match &self.subject {
            Subject::Data(data) if !matches!(data.what, What::Read { .. }) => data.bytes(),
            _ => 0,
        }
    }

    /// A copy of a WRITE's data, for the device, which may hold on to it for longer than the request lives; nothing
    /// for a READ. `request`: the one this was made of.
    #[must_use]
    pub fn slices(&self, request: &Request<'_>) -> Vec<IoSlice> {
        match &self.subject {
            Subject::Data(data) if self.data_bytes() > 0 => {
                vec![AlignedBuf::copy_for_transfer(data.data(request)).into()]
            }
            _ => Vec::new(),
        }
    }

    /// Whether serving it may wait for other requests of the kernel, so that the only thread that reads requests must not do it.
    /// (Kinds that always do count as slow by nature.)
    #[must_use]
    pub fn waits_for_kernel(&self) -> bool {
        match &self.subject {
            Subject::Data(data) => matches!(data.what, What::Write { past: true, .. }),
            Subject::Gate(_) => true,
            Subject::Refused(_) | Subject::Other => false,
        }
    }
}

/// A request that could not be done at once.
pub struct Later {
    request: DataRequest,
    rest: Box<Rest>,
}

enum Rest {
    Read(WouldWait<ReadOp>),
    Write(WouldWait<WriteOp<'static>>),
}

/// Whether a READ fills the kernel's cache.
fn fills_cache(read_flags: u32) -> bool {
    !ReadFlags::from_bits_retain(read_flags).contains(ReadFlags::LOCKOWNER)
}

impl Dispatcher {
    /// Decodes the part of a request that decides where it is served.
    #[must_use]
    pub fn decode(&self, request: &Request<'_>) -> Call {
        let opcode = request.opcode();
        let subject = match opcode {
            Some(Opcode::Read | Opcode::Write) => match self.data_request(request) {
                Ok(data) => Subject::Data(data),
                Err(failure) => Subject::Refused(failure),
            },
            Some(Opcode::GetAttr) if self.is_tight() => match self.asks_with_handle(request) {
                Some(file) => Subject::Gate(file),
                None => Subject::Other,
            },
            _ => Subject::Other,
        };
        Call {
            header: request.header,
            opcode,
            subject,
        }
    }

    fn asks_with_handle(&self, request: &Request<'_>) -> Option<Arc<OpenFile>> {
        let args = request.args().take::<GetAttrIn>().ok()?;
        (args.getattr_flags & GETATTR_FH != 0)
            .then(|| self.files.get(args.fh))
            .flatten()
    }

    /// What a READ or WRITE asks for: file, range, and how it is to be done.
    fn data_request(&self, request: &Request<'_>) -> Result<DataRequest, Failure> {
        let mut args = request.args();
        let (fh, offset, what, strips, whole) = if request.opcode() == Some(Opcode::Read) {
            let args = args.take::<ReadIn>()?;
            let bytes = usize::try_from(args.size).map_err(|_| Errno::INVAL)?;
            let fills = fills_cache(args.read_flags);
            (
                args.fh,
                args.offset,
                What::Read { bytes, fills },
                false,
                true,
            )
        } else {
            let head = args.take::<WriteIn>()?;
            let there = args.remaining();
            let bytes = head.size;
            args.bytes(bytes)?;
            let flags = WriteFlags::from_bits_retain(head.write_flags);
            let what = match flags.contains(WriteFlags::CACHE) && self.kernel_keeps_times() {
                false => What::Write {
                    bytes,
                    past: is_past_cache(flags),
                },
                true => What::WriteBack { bytes },
            };
            let strips = flags.contains(WriteFlags::KILL_SUIDGID);
            // The kernel is not asked to cache these, but reports that it does.
            let odd = flags.contains(WriteFlags::CACHE) && !self.kernel_keeps_times();
            let whole = bytes as usize == there && bytes > 0 && !odd;
            (head.fh, head.offset, what, strips, whole)
        };
        let file = self.files.get(fh).ok_or(Failure::Errno(Errno::BADF))?;
        if let What::Read { .. } = what
            && offset == 0
            && !file.handle.flags().direct
        {
            self.read_ahead.read(file.handle.inode().ino());
        }
        let goes_past = match what {
            What::Read { .. } => true,
            What::Write { .. } => file.handle.flags().direct,
            // The rest goes from the kernel's cache into ours.
            What::WriteBack { bytes } => file.handle.writes_back_past(offset, bytes as usize),
        };
        Ok(DataRequest {
            file,
            unique: request.header.unique,
            nodeid: request.header.nodeid,
            offset,
            what,
            strips,
            may_start: goes_past && whole && !strips,
        })
    }

    /// Starts a request that [`Call::startable_bytes`] calls startable, and replies when it is done, perhaps in the device's context.
    /// `data`: the data of a WRITE. `carrier`: the calling thread, if it carries device I/O itself. Does not wait for locks, metadata or
    /// the device.
    ///
    /// # Errors
    /// Gives the request back when waiting may be needed, to be carried out where that is allowed.
    pub fn start<S: ReplySink + Send + 'static>(
        self: &Arc<Self>,
        call: Call,
        data: Vec<IoSlice>,
        mut sink: S,
        carrier: Option<&Arc<Carrier>>,
    ) -> std::result::Result<(), Later> {
        let request = match call.subject {
            Subject::Data(request) if request.may_start && !self.has_ended() => request,
            subject => {
                // No transport does this. Dropped, the sink answers with an error.
                drop((subject, sink));
                return Ok(());
            }
        };
        let me = Arc::clone(self);
        let unique = request.unique;
        let attempt = || match request.what {
            What::Read { bytes, fills } => {
                self.count(Some(Opcode::Read));
                let filling = fills.then(|| request.file.fill(request.offset, bytes));
                let room = (bytes >= LENT_BYTES_MIN).then(|| sink.lend()).flatten();
                let done: ReadDone = Box::new(move |result| {
                    me.finish(
                        Processed {
                            opcode: Some(Opcode::Read),
                            unique,
                            outcome: result.map(Answer::Slices).map_err(Failure::Fs),
                        },
                        sink,
                    );
                    drop(filling);
                });
                let op = ReadOp {
                    offset: request.offset,
                    len: bytes,
                    room,
                    carrier: carrier.cloned(),
                };
                let handle = &request.file.handle;
                handle.start(op, done, Patience::Nowait).map(Rest::Read)
            }
            What::Write { bytes, .. } | What::WriteBack { bytes } => {
                self.count(Some(Opcode::Write));
                let back = matches!(request.what, What::WriteBack { .. });
                let gate = request.file.gate.clone().filter(|_| back);
                let past = matches!(request.what, What::Write { past: true, .. });
                let direct = past.then(|| {
                    let end = request.offset.saturating_add(u64::from(bytes));
                    let inode = request.file.handle.inode();
                    Self::direct_write(inode, request.nodeid, request.offset..end)
                });
                let done: WriteDone = Box::new(move |result| {
                    let outcome = match result {
                        // The kernel does not look at how much of its cached pages was taken, see `write`.
                        Ok(written) if back && written < bytes as usize => Err(Errno::NOSPC.into()),
                        Ok(written) => Ok(Answer::of(&WriteOut {
                            // No more than was given, which was counted in 32 bits.
                            size: u32::try_from(written).unwrap_or(bytes),
                            padding: 0,
                        })),
                        Err(e) => Err(Failure::Fs(e)),
                    };
                    if back {
                        let refused = outcome.as_ref().err().map(Failure::errno);
                        me.note_write_back(gate.as_deref(), u64::from(bytes), refused);
                    }
                    let processed = Processed {
                        opcode: Some(Opcode::Write),
                        unique,
                        outcome,
                    };
                    match direct {
                        Some(direct) => me.finish_direct_write(direct, processed, sink),
                        None => me.finish(processed, sink),
                    }
                });
                let mut op = WriteOp::at(request.offset, data);
                if back {
                    op = op.written_back();
                }
                op.carrier = carrier.cloned();
                let handle = &request.file.handle;
                handle.start(op, done, Patience::Nowait).map(Rest::Write)
            }
        };
        // After a panic the sink was dropped, and answers by that.
        match catch_unwind(AssertUnwindSafe(attempt)) {
            Ok(None) => Ok(()),
            Ok(Some(rest)) => Err(Later {
                request,
                rest: Box::new(rest),
            }),
            Err(panic) => {
                self.log_panic("data request", &*panic);
                Ok(())
            }
        }
    }

    /// Carries out a request that [`Dispatcher::start`] gave back, waiting for what has to be waited for, in any thread but one that
    /// carries device I/O.
    pub fn carry_out(&self, later: Later) {
        let Later { request, rest } = later;
        let handle = &request.file.handle;
        let attempt = || match *rest {
            Rest::Write(mut back) => {
                back.op.carrier = None;
                drop(handle.start(back.op, back.done, Patience::Wait));
            }
            Rest::Read(mut back) => {
                back.op.carrier = None;
                drop(handle.start(back.op, back.done, Patience::Wait));
            }
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(attempt)) {
            self.log_panic("data request", &*panic);
        }
    }
}
