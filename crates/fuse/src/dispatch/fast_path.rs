//! The fast path of READ and WRITE: answered from the cache, or left to the device and answered in its context.
//!
//! A transport asks [`Dispatcher::data_request`] what a request is, and calls [`Dispatcher::submit`] where it must
//! not wait. A request that would wait is given back, for [`Dispatcher::carry_out`] in a thread that may.

use super::answer::{Answer, Failure};
use super::coherence::is_past_cache;
use super::files::OpenFile;
use super::{Dispatcher, Processed};
use crate::protocol::flags::{ReadFlags, WriteFlags};
use crate::protocol::reply::WriteOut;
use crate::protocol::request::{ReadIn, WriteIn};
use crate::protocol::{Opcode, Request};
use crate::transport::ReplySink;
use blockwright_device::{AlignedBuf, IoSlice};
use blockwright_vfs::{Carrier, Patience, ReadDone, ReadOp, WouldWait, WriteDone, WriteOp};
use rustix::io::Errno;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The smallest READ (bytes) whose reply lends its memory. Copying less is cheaper than lending.
const LENT_BYTES_MIN: usize = 64 << 10;

#[derive(Clone, Copy)]
enum What {
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
    /// Out of the kernel's cache.
    WriteBack { bytes: u32 },
}

/// A READ, or a WRITE past the cache, of an open file.
pub struct DataRequest {
    file: Arc<OpenFile>,
    unique: u64,
    nodeid: u64,
    offset: u64,
    what: What,
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

impl DataRequest {
    /// How many bytes of data a WRITE brought, at the end of its request; 0 for a READ.
    #[must_use]
    pub fn data_bytes(&self) -> usize {
        match self.what {
            What::Read { .. } => 0,
            // Was counted in 32 bits.
            What::Write { bytes, .. } | What::WriteBack { bytes } => bytes as usize,
        }
    }

    /// How many bytes are moved.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self.what {
            What::Read { bytes, .. } => bytes,
            What::Write { bytes, .. } | What::WriteBack { bytes } => bytes as usize,
        }
    }

    /// A copy of a WRITE's data, for the device, which may hold on to it for longer than the request lives; nothing
    /// for a READ. `request`: the one this was made of.
    #[must_use]
    pub fn slices(&self, request: &Request<'_>) -> Vec<IoSlice> {
        match self.data_bytes() {
            0 => Vec::new(),
            bytes => {
                let start = request.body.len().saturating_sub(bytes);
                vec![AlignedBuf::copy_for_transfer(&request.body[start..]).into()]
            }
        }
    }
}

/// Whether a READ fills the kernel's cache.
pub(super) fn fills_cache(read_flags: u32) -> bool {
    !ReadFlags::from_bits_retain(read_flags).contains(ReadFlags::LOCKOWNER)
}

impl Dispatcher {
    /// The request, if it is one that `submit` may take. Everything else goes to `process`.
    #[must_use]
    pub fn data_request(&self, request: &Request<'_>) -> Option<DataRequest> {
        if self.closed.load(Ordering::Acquire) {
            return None;
        }
        let mut args = request.args();
        let (fh, offset, what) = match request.opcode()? {
            Opcode::Read => {
                let args = args.take::<ReadIn>().ok()?;
                let bytes = usize::try_from(args.size).ok()?;
                let fills = fills_cache(args.read_flags);
                (args.fh, args.offset, What::Read { bytes, fills })
            }
            Opcode::Write => {
                let args_in = args.take::<WriteIn>().ok()?;
                let flags = WriteFlags::from_bits_retain(args_in.write_flags);
                let whole = usize::try_from(args_in.size) == Ok(args.remaining());
                let bytes = args_in.size;
                if flags.contains(WriteFlags::KILL_SUIDGID) || !whole || bytes == 0 {
                    return None;
                }
                let what = match flags.contains(WriteFlags::CACHE) {
                    false => What::Write {
                        bytes,
                        past: is_past_cache(flags),
                    },
                    true if self.kernel_keeps_times() => What::WriteBack { bytes },
                    true => return None,
                };
                (args_in.fh, args_in.offset, what)
            }
            _ => return None,
        };
        let file = self.files.get(fh)?;
        let goes_past = match what {
            What::Read { .. } => true,
            What::Write { .. } => file.handle.flags().direct,
            // The rest goes from the kernel's cache into ours.
            What::WriteBack { bytes } => file.handle.writes_back_past(offset, bytes as usize),
        };
        if !goes_past {
            return None;
        }
        Some(DataRequest {
            file,
            unique: request.header.unique,
            nodeid: request.header.nodeid,
            offset,
            what,
        })
    }

    /// Starts a request, and replies when it is done, perhaps in the device's context. `data`: what a WRITE
    /// brought. `carrier`: the calling thread, if it carries device I/O itself. Does not wait for locks, metadata or the device.
    ///
    /// # Errors
    /// Gives the request back when waiting may be needed, to be carried out where that is allowed.
    pub fn submit<S: ReplySink + Send + 'static>(
        self: &Arc<Self>,
        request: DataRequest,
        data: Vec<IoSlice>,
        mut sink: S,
        carrier: Option<&Arc<Carrier>>,
    ) -> std::result::Result<(), Later> {
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
                };
                let handle = &request.file.handle;
                handle.start(op, done, Patience::Nowait).map(Rest::Read)
            }
            What::Write { bytes, .. } | What::WriteBack { bytes } => {
                self.count(Some(Opcode::Write));
                let back = matches!(request.what, What::WriteBack { .. });
                let gate = request.file.gate.clone().filter(|_| back);
                let past = matches!(request.what, What::Write { past: true, .. });
                let landing = past.then(|| {
                    let end = request.offset.saturating_add(u64::from(bytes));
                    let inode = request.file.handle.inode();
                    Self::landing(inode, request.nodeid, request.offset..end)
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
                    match landing {
                        Some(landing) => me.finish_landed(landing, processed, sink),
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

    /// Carries out a request that `submit` gave back, waiting for what has to be waited for.
    pub fn carry_out(&self, later: Later) {
        let Later { request, rest } = later;
        let handle = &request.file.handle;
        let attempt = || match *rest {
            Rest::Write(back) => drop(handle.start(back.op, back.done, Patience::Wait)),
            Rest::Read(back) => drop(handle.start(back.op, back.done, Patience::Wait)),
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(attempt)) {
            self.log_panic("data request", &*panic);
        }
    }
}
