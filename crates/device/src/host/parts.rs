//! Requests cut into parts for an io_uring, whosever ring it is.
//!
//! A request is cut into parts of at most `request_bytes_max`; each becomes a submission entry, a short transfer another one for
//! its rest; the request's completion is called when its last part is done.
//!
//! Invariants: memory that an in-flight part points to belongs to its request in `active`, which is removed when
//! `outstanding` has reached zero, never before; neither heap memory moves or is written meanwhile. The file stays open as
//! long as a request of it is here, so that a number in an entry never means another file.
//!
//! A short transfer of a file that the host keeps in memory is a copy. The submitting thread makes it at once by a plain system call. io_uring would
//! hand it to another thread, because the file system cannot say that it will not wait.
//!
//! Not responsible for the ring, nor for discard and write-zeroes.

use super::file::{HostFile, RETRIES_MAX, SLICES_MAX, Step};
use super::perform;
use super::queue::completing;
use super::slab::Slab;
use crate::{DeviceError, DeviceErrorKind, Flags, IoSlice, Op, Request};
use io_uring::{opcode, squeue, types};
use std::collections::VecDeque;
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// The largest transfer (bytes) that is copied at once. Of larger ones several threads of the host copy at the same time.
const COPIED_BYTES_MAX: usize = 32 << 10;

/// A request being worked on.
struct Active {
    request: Request,
    file: Arc<HostFile>,
    /// Parts that are queued or in flight.
    outstanding: usize,
    error: Option<DeviceError>,
}

/// A part of a request, no larger than the device takes at once.
struct Part {
    active: usize,
    /// Where the part begins in the request, its length, and how much of it is done.
    start: usize,
    len: usize,
    moved: usize,
    retries: u32,
    /// What a vectored write in flight points to.
    iovecs: Vec<libc::iovec>,
}

/// A request whose last part is done; its completion is still to be called.
#[must_use]
pub(super) struct Finished {
    request: Request,
    file: Arc<HostFile>,
    error: Option<DeviceError>,
}

impl Finished {
    /// Calls the completion.
    pub(super) fn tell(self) {
        let Finished {
            request,
            file,
            error,
        } = self;
        completing(|| file.monitor.complete(request, error.map_or(Ok(()), Err)));
    }
}

/// See the module's head.
#[derive(Default)]
pub(super) struct Parts {
    active: Slab<Active>,
    parts: Slab<Part>,
    /// Parts waiting for a place in the ring.
    ready: VecDeque<usize>,
    in_flight: usize,
}

impl Parts {
    /// Requests that are not finished.
    pub(super) fn requests(&self) -> usize {
        self.active.len()
    }

    /// Parts that wait for a place in the ring.
    pub(super) fn waiting(&self) -> usize {
        self.ready.len()
    }

    /// Parts that the ring has.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Takes a read, write or flush, and cuts it. One without bytes is finished, and so is one that is copied at once.
    pub(super) fn begin(&mut self, mut request: Request, file: &Arc<HostFile>) -> Option<Finished> {
        if let Op::Write(slices) = &mut request.op {
            slices.retain(|slice| !slice.is_empty());
        }
        let bytes = request.op.bytes() as usize;
        if bytes == 0 && !matches!(request.op, Op::Flush) {
            return Some(Finished {
                request,
                file: Arc::clone(file),
                error: None,
            });
        }
        if file.in_memory && bytes <= COPIED_BYTES_MAX && !matches!(request.op, Op::Flush) {
            let error = perform(file, &mut request).err();
            return Some(Finished {
                request,
                file: Arc::clone(file),
                error,
            });
        }
        let max = file.opened.request_bytes_max as usize;
        let slices = match &request.op {
            Op::Write(slices) => slices.len(),
            _ => 1,
        };
        if bytes <= max && slices <= SLICES_MAX {
            let active = self.activate(request, file, 1);
            self.ready_part(active, 0, bytes);
            return None;
        }
        let mut lengths = Vec::new();
        match &request.op {
            Op::Write(slices) => cut_slices(slices, max, &mut lengths),
            _ => {
                let mut rest = bytes;
                while rest > max {
                    lengths.push(max);
                    rest -= max;
                }
                lengths.push(rest);
            }
        }
        let active = self.activate(request, file, lengths.len());
        let mut start = 0;
        for len in lengths {
            self.ready_part(active, start, len);
            start += len;
        }
        None
    }

    fn activate(&mut self, request: Request, file: &Arc<HostFile>, outstanding: usize) -> usize {
        self.active.insert(Active {
            request,
            file: Arc::clone(file),
            outstanding,
            error: None,
        })
    }

    fn ready_part(&mut self, active: usize, start: usize, len: usize) {
        let part = Part {
            active,
            start,
            len,
            moved: 0,
            retries: 0,
            iovecs: Vec::new(),
        };
        self.ready.push_back(self.parts.insert(part));
    }

    /// The next part that waits, as a submission entry whose `user_data` is what [`Parts::done`] wants to know. It counts as
    /// in flight from now on.
    ///
    /// The entry points into the request's buffers and the part's `iovecs`. They stay where they are until `done` is called
    /// for it, if `self` lives as long.
    pub(super) fn next_entry(&mut self) -> Option<squeue::Entry> {
        while let Some(index) = self.ready.pop_front() {
            if let Some(entry) = self.entry(index) {
                self.in_flight += 1;
                return Some(entry);
            }
        }
        None
    }

    /// The submission entry of what is left of a part.
    fn entry(&mut self, index: usize) -> Option<squeue::Entry> {
        let part = self.parts.get_mut(index)?;
        let Active { request, file, .. } = self.active.get_mut(part.active)?;
        let fd = types::Fd(file.file.as_raw_fd());
        let at = part.start + part.moved;
        let left = part.len - part.moved;
        let offset = request.offset.0 + at as u64;
        // Class best-effort, see ioprio_set(2).
        let priority = 2u16 << 13 | u16::from(request.priority.0.min(7));
        let dsync = if request.flags.contains(Flags::FUA) {
            libc::RWF_DSYNC
        } else {
            0
        };
        let entry = match &request.op {
            Op::Read(buf) => {
                // Inside the buffer, because parts partition it; through the raw pointer, because
                // other parts of the buffer are being written by the kernel at this time.
                let to = buf.as_raw().wrapping_add(at);
                opcode::Read::new(fd, to, left as u32)
                    .offset(offset)
                    .ioprio(priority)
                    .build()
            }
            Op::Write(slices) => match &slices[..] {
                [one] => opcode::Write::new(fd, one[at..at + left].as_ptr(), left as u32)
                    .offset(offset)
                    .ioprio(priority)
                    .rw_flags(dsync)
                    .build(),
                slices => {
                    gather(slices, at, left, &mut part.iovecs);
                    let list = &part.iovecs;
                    opcode::Writev::new(fd, list.as_ptr(), list.len() as u32)
                        .offset(offset)
                        .ioprio(priority)
                        .rw_flags(dsync)
                        .build()
                }
            },
            Op::Flush | Op::Discard { .. } | Op::WriteZeroes { .. } => opcode::Fsync::new(fd)
                .flags(types::FsyncFlags::DATASYNC)
                .build(),
        };
        Some(entry.user_data(index as u64))
    }

    /// A part's entry has completed. Returns its request if that was the last of it.
    pub(super) fn done(&mut self, index: usize, result: i32) -> Option<Finished> {
        let part = self.parts.get_mut(index)?;
        let active = self.active.get_mut(part.active)?;
        self.in_flight -= 1;
        let request = &active.request;
        let outcome = if matches!(request.op, Op::Flush) {
            match result {
                0.. => Ok(Step::Advance(0)),
                _ if part.retries < RETRIES_MAX && is_transient(-result) => {
                    part.retries += 1;
                    Ok(Step::Again)
                }
                _ => Err(super::file::kind_of(-result)),
            }
        } else {
            let result = usize::try_from(result).map_err(|_| -result);
            active
                .file
                .step(result, part.moved, part.len, &mut part.retries)
        };
        let error = match outcome {
            Ok(Step::Again) => {
                self.ready.push_back(index);
                return None;
            }
            Ok(Step::Advance(more)) => {
                part.moved += more;
                if part.moved < part.len {
                    self.ready.push_back(index);
                    return None;
                }
                None
            }
            Err(DeviceErrorKind::Short { transferred }) => Some(DeviceErrorKind::Short {
                transferred: part.start + transferred,
            }),
            Err(kind) => Some(kind),
        };
        if let Some(kind) = error
            && active.error.is_none()
        {
            active.error = Some(request.error(kind));
        }
        active.outstanding -= 1;
        let (owner, finished) = (part.active, active.outstanding == 0);
        self.parts.remove(index);
        if !finished {
            return None;
        }
        let Active {
            request,
            file,
            error,
            ..
        } = self.active.remove(owner)?;
        Some(Finished {
            request,
            file,
            error,
        })
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        if self.in_flight > 0 {
            // Only a panic of this program's own gets here. The kernel would go on writing to
            // memory that unwinding is about to free.
            std::process::abort();
        }
    }
}

fn is_transient(errno: i32) -> bool {
    matches!(errno, libc::EINTR | libc::EAGAIN | libc::ECANCELED)
}

/// Cuts a vectored write into parts of at most `max` bytes and `SLICES_MAX` slices. Parts end at
/// multiples of the logical block because slices and `max` are such.
fn cut_slices(slices: &[IoSlice], max: usize, lengths: &mut Vec<usize>) {
    let (mut len, mut count) = (0, 0);
    for slice in slices {
        let mut rest = slice.len();
        while rest > 0 {
            if len == max || count == SLICES_MAX {
                lengths.push(len);
                (len, count) = (0, 0);
            }
            let take = rest.min(max - len);
            (len, count, rest) = (len + take, count + 1, rest - take);
        }
    }
    lengths.push(len);
}

/// Lists the memory of bytes `at .. at + left` of a vectored write.
fn gather(slices: &[IoSlice], mut at: usize, mut left: usize, list: &mut Vec<libc::iovec>) {
    list.clear();
    for slice in slices {
        if at >= slice.len() {
            at -= slice.len();
            continue;
        }
        let part = &slice[at..slice.len().min(at.saturating_add(left))];
        list.push(libc::iovec {
            iov_base: part.as_ptr().cast_mut().cast(),
            iov_len: part.len(),
        });
        (at, left) = (0, left - part.len());
        if left == 0 {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AlignedBuf;

    fn slices(lengths: &[usize]) -> Vec<IoSlice> {
        lengths
            .iter()
            .map(|len| AlignedBuf::zeroed(*len).into())
            .collect()
    }

    #[test]
    fn parts_respect_both_limits() {
        let cut = |lens: &[usize], max| {
            let mut lengths = Vec::new();
            cut_slices(&slices(lens), max, &mut lengths);
            lengths
        };
        assert_eq!(cut(&[512], 4096), [512]);
        assert_eq!(cut(&[4096, 4096], 4096), [4096, 4096]);
        assert_eq!(cut(&[1024, 8192, 512], 4096), [4096, 4096, 1536]);
        assert_eq!(cut(&[512; 1030], 1 << 20), [1024 * 512, 6 * 512]);
    }

    #[test]
    fn gathering_starts_and_ends_inside_slices() {
        let slices = slices(&[1024, 512, 2048]);
        let mut list = Vec::new();
        let lens = |list: &Vec<libc::iovec>| list.iter().map(|v| v.iov_len).collect::<Vec<_>>();
        gather(&slices, 0, 3584, &mut list);
        assert_eq!(lens(&list), [1024, 512, 2048]);
        gather(&slices, 512, 1024, &mut list);
        assert_eq!(lens(&list), [512, 512]);
        gather(&slices, 1536, 512, &mut list);
        assert_eq!(lens(&list), [512]);
        assert_eq!(list[0].iov_base.cast_const().cast(), slices[2].as_ptr());
    }
}
