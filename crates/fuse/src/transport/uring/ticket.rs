//! A request in progress: the right to use one entry's memory until its reply is given back.
//!
//! From the completion that brings a request, exactly one ticket exists for its entry. Dropping the ticket gives the entry back to
//! its queue, with the reply that was written, or with EIO when none was. So no request is lost, wherever its ticket is dropped.

use super::memory::Memory;
use crate::connection::ReplySink;
use crate::protocol::BadRequest;
use crate::protocol::reply::OutHeader;
use crate::protocol::request::InHeader;
use blockwright_device::{AlignedBuf, IoSlice as DeviceSlice, Lender, Loan};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use zerocopy::{FromBytes, IntoBytes};

/// A WRITE's data of at least this size stay where they are. Copying less is cheaper than lending.
const LENT_BYTES_MIN: usize = 4 << 10;
/// The largest reply that can wait until the memory that it belongs in is free.
const WAITING_BYTES_MAX: usize = 64;

/// An entry that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answered {
    pub(super) index: usize,
    /// How much of its payload request and reply have touched.
    pub(super) payload_bytes: usize,
}

/// What a queue's thread shares with the threads that work on its requests.
pub(super) struct Shared {
    pub(super) memory: Memory,
    /// Entries to be given back to the kernel.
    answered: Mutex<Vec<Answered>>,
    /// The thread sleeps, or is about to and will look once more.
    asleep: AtomicBool,
    /// The thread's ring polls this.
    wake: OwnedFd,
    /// The connection has ended.
    ended: AtomicBool,
    /// The thread polls on another CPU than its clients'.
    polls: AtomicBool,
    /// Requests to the device that went through the thread's own ring.
    device_requests: AtomicU64,
}

impl Shared {
    pub(super) fn new(memory: Memory, wake: OwnedFd) -> Self {
        Shared {
            memory,
            answered: Mutex::default(),
            asleep: AtomicBool::new(false),
            wake,
            ended: AtomicBool::new(false),
            polls: AtomicBool::new(false),
            device_requests: AtomicU64::new(0),
        }
    }

    pub(super) fn wake_fd(&self) -> &OwnedFd {
        &self.wake
    }

    /// Wakes the thread, also when it is not known to sleep.
    fn wake(&self) {
        // The counter is never read, and takes 2^64 wake-ups to fill.
        while let Err(rustix::io::Errno::INTR) = rustix::io::write(&self.wake, &1u64.to_ne_bytes())
        {
        }
    }

    fn push(&self, answered: Answered) {
        self.answered.lock().push(answered);
        if self.asleep.swap(false, Ordering::SeqCst) {
            self.wake();
        }
    }

    /// For the thread: takes what was answered. When that is nothing (`false`), the thread is taken to sleep
    /// from now on: the next thread that answers wakes it.
    pub(super) fn take_or_sleep(&self, into: &mut Vec<Answered>) -> bool {
        into.append(&mut self.answered.lock());
        if !into.is_empty() {
            return true;
        }
        self.asleep.store(true, Ordering::SeqCst);
        // Either this sees what was pushed before, or the pushing thread sees `asleep`.
        into.append(&mut self.answered.lock());
        if into.is_empty() {
            return false;
        }
        self.awake();
        true
    }

    /// For the thread: it is awake, there is no need to wake it.
    pub(super) fn awake(&self) {
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// The connection has ended: tells the thread to leave.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.wake();
    }

    pub(super) fn polls(&self) -> bool {
        self.polls.load(Ordering::Relaxed)
    }

    pub(super) fn set_polls(&self, polls: bool) {
        self.polls.store(polls, Ordering::Relaxed);
    }

    /// For the thread: how many requests to the device have gone through its own ring.
    pub(super) fn note_device_requests(&self, requests: u64) {
        self.device_requests.store(requests, Ordering::Relaxed);
    }

    pub(super) fn device_requests(&self) -> u64 {
        self.device_requests.load(Ordering::Relaxed)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }
}

/// A payload that was lent to a device: the entry goes back when the ticket and all that was lent were dropped.
struct Lent {
    shared: Arc<Shared>,
    /// Set by the ticket when it goes.
    answered: OnceLock<Answered>,
    given_out: Mutex<GivenOut>,
    /// A reply that belongs where the lent bytes still are.
    waiting: Mutex<SmallVec<[u8; 16]>>,
}

/// The bytes of a payload that other requests use.
#[derive(Default)]
struct GivenOut {
    ranges: SmallVec<[Range<usize>; 2]>,
    /// The reply is being put together: no more.
    closed: bool,
}

impl Lender for Lent {
    fn give_out(&self, range: Range<usize>) -> bool {
        let mut out = self.given_out.lock();
        if !out.closed {
            out.ranges.push(range);
        }
        !out.closed
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(answered) = self.answered.take() {
            let reply = self.waiting.get_mut();
            let payload = self.shared.memory.payload(answered.index);
            // SAFETY: the ticket is gone, and the entry has not been given back; what was lent has come back, because otherwise this would not be dropped.
            // `send` has seen to it that the reply fits.
            unsafe { payload.copy_from_nonoverlapping(reply.as_ptr(), reply.len()) };
            self.shared.push(answered);
        }
    }
}

/// See the module's head.
pub(super) struct Ticket {
    shared: Arc<Shared>,
    index: usize,
    payload_bytes: usize,
    /// Bytes of the request before its payload, once it is one run of bytes.
    staged_bytes: usize,
    replied: bool,
    lent: Option<Arc<Lent>>,
}

impl Ticket {
    /// The ticket of an entry whose request has just come.
    ///
    /// # Safety
    /// The entry's command has completed with a request, no other ticket of it exists, and no thread submits
    /// the entry before this one was dropped.
    pub(super) unsafe fn new(shared: &Arc<Shared>, index: usize) -> Self {
        Ticket {
            shared: Arc::clone(shared),
            index,
            payload_bytes: 0,
            staged_bytes: 0,
            replied: false,
            lent: None,
        }
    }

    /// Bytes of the request's payload, as the kernel says.
    fn payload_said(&self) -> usize {
        // SAFETY: the ticket makes the entry's memory ours; plain data.
        unsafe { (*self.shared.memory.header(self.index)).payload_bytes as usize }
    }

    /// The request as one run of bytes: header, arguments.
    ///
    /// # Errors
    /// When the lengths contradict each other.
    pub(super) fn request(&mut self) -> Result<&[u8], BadRequest> {
        let memory = &self.shared.memory;
        let header = memory.header(self.index);
        let payload = self.payload_said();
        assert!(self.lent.is_none(), "the payload is lent");
        // SAFETY: the ticket makes the entry's memory ours, and no reference into it exists: those given
        // out borrow `self`. `header` is valid and aligned, and plain data.
        let (head, op) = unsafe { (&(*header).in_out, &(*header).op_in) };
        let head = &head[..size_of::<InHeader>()];
        let mut len = [0; 4];
        len.copy_from_slice(&head[..4]);
        let len = u32::from_le_bytes(len);
        let wrong = BadRequest::WrongLength {
            header: len,
            found: size_of::<InHeader>() + payload,
        };
        let op_bytes = usize::try_from(len)
            .ok()
            .and_then(|len| len.checked_sub(size_of::<InHeader>() + payload))
            .filter(|&bytes| bytes <= op.len() && payload <= memory.payload_bytes())
            .ok_or(wrong)?;
        let before = head.len() + op_bytes;
        self.payload_bytes = payload;
        // SAFETY: `staging` gives `before` bytes that end where the payload begins, which lie in the entry's
        // first page, apart from its header: no overlap. The payload's length was checked. Everything is
        // initialised (mappings begin as zeroes), and ours as long as `self` is borrowed.
        unsafe {
            let at = memory.staging(self.index, before);
            at.copy_from_nonoverlapping(head.as_ptr(), head.len());
            at.add(head.len())
                .copy_from_nonoverlapping(op.as_ptr(), op_bytes);
        }
        self.staged_bytes = before;
        Ok(self.bytes())
    }

    /// What [`Ticket::request`] gave; nothing if it was not called, or failed.
    pub(super) fn bytes(&self) -> &[u8] {
        if self.staged_bytes == 0 {
            return &[];
        }
        assert!(self.lent.is_none(), "the payload is lent");
        // SAFETY: `request` has put `staged_bytes` bytes there, which end where the payload begins, and has checked the payload's
        // length. Both are initialised, and ours as long as `self` is borrowed: only `&mut self` writes to them.
        unsafe {
            let at = self.shared.memory.staging(self.index, self.staged_bytes);
            std::slice::from_raw_parts(at, self.staged_bytes + self.payload_bytes)
        }
    }

    /// The data of the WRITE whose [`Ticket::request`] this is: the last `bytes` of its payload, for a device, which may hold on to them for longer
    /// than the ticket lives. Much stays where it is: the entry goes back only when it is not in use any more.
    pub(super) fn data(&mut self, bytes: usize) -> Option<Vec<DeviceSlice>> {
        let skip = self.payload_bytes.checked_sub(bytes)?;
        if bytes == 0 {
            return Some(Vec::new());
        }
        let lent = match bytes {
            LENT_BYTES_MIN.. => self.lend().and_then(|mut loan| loan.cut(skip, bytes)),
            _ => None,
        };
        if let Some(data) = lent {
            return Some(vec![data.into()]);
        }
        // SAFETY: `request` has checked that so much is in the payload, which is initialised, and the ticket's as long as `self` is borrowed;
        // nothing was cut from a loan of it.
        let data = unsafe {
            let payload = self.shared.memory.payload(self.index);
            std::slice::from_raw_parts(payload.add(skip), bytes)
        };
        Some(vec![AlignedBuf::copy_of(data).into()])
    }

    fn out_header(&mut self, header: OutHeader, payload: usize) {
        let entry = self.shared.memory.header(self.index);
        // SAFETY: the ticket makes the entry's memory ours, and `&mut self` says that no reference into it
        // exists; `entry` is valid and aligned.
        let entry = unsafe { &mut *entry };
        entry.in_out[..size_of::<OutHeader>()].copy_from_slice(header.as_bytes());
        entry.flags = 0;
        // No more than a payload, which is counted in 32 bits.
        entry.payload_bytes = payload as u32;
        self.replied = true;
    }

    fn fail(&mut self) {
        let entry = self.shared.memory.header(self.index);
        // SAFETY: as in `out_header`.
        let in_out = unsafe { &(*entry).in_out };
        // Requests and replies have it at the same place.
        let mut unique = [0; 8];
        unique.copy_from_slice(&in_out[8..16]);
        let header = OutHeader {
            len: size_of::<OutHeader>() as u32,
            error: -libc::EIO,
            unique: u64::from_le_bytes(unique),
        };
        self.out_header(header, 0);
    }
}

impl ReplySink for Ticket {
    fn send(mut self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
        let (head, rest) = parts.split_first().ok_or_else(invalid)?;
        let (header, _) = OutHeader::read_from_prefix(head).map_err(|_| invalid())?;
        let bytes: usize = rest.iter().map(|part| part.len()).sum();
        if head.len() != size_of::<OutHeader>() || bytes > self.shared.memory.payload_bytes() {
            return Err(invalid());
        }
        let given_out = self.lent.as_ref().map_or_else(SmallVec::new, |lent| {
            let mut out = lent.given_out.lock();
            out.closed = true;
            std::mem::take(&mut out.ranges)
        });
        if let Some(lent) = &self.lent
            && bytes <= WAITING_BYTES_MAX
            && given_out.iter().any(|range| range.start < bytes)
        {
            // The data of a WRITE is there.
            let mut reply = lent.waiting.lock();
            rest.iter().for_each(|part| reply.extend_from_slice(part));
            drop(reply);
            self.payload_bytes = self.payload_bytes.max(bytes);
            self.out_header(header, bytes);
            return Ok(());
        }
        let payload = self.shared.memory.payload(self.index);
        let mut at = 0;
        for part in rest {
            let end = at + part.len();
            // What the device has put there need not be copied.
            let there = part.as_ptr() == payload.wrapping_add(at).cast_const();
            let others = |range: &Range<usize>| at < range.end && end > range.start;
            if !there && !part.is_empty() {
                if given_out.iter().any(others) {
                    return Err(invalid());
                }
                // SAFETY: inside the payload: the sum of the lengths was checked. The ticket makes the payload ours, `self` was
                // moved here, and these bytes were not lent and will not be: nothing of them is borrowed, so `part`, which
                // may be lent itself, lies elsewhere.
                unsafe {
                    payload
                        .add(at)
                        .copy_from_nonoverlapping(part.as_ptr(), part.len());
                }
            }
            at = end;
        }
        self.payload_bytes = self.payload_bytes.max(bytes);
        self.out_header(header, bytes);
        Ok(())
    }

    fn lend(&mut self) -> Option<Loan> {
        if self.lent.is_some() {
            return None;
        }
        let memory = &self.shared.memory;
        let start = NonNull::new(memory.payload(self.index))?;
        let lent = Arc::new(Lent {
            shared: Arc::clone(&self.shared),
            answered: OnceLock::new(),
            given_out: Mutex::default(),
            waiting: Mutex::default(),
        });
        self.lent = Some(Arc::clone(&lent));
        // SAFETY: the ticket makes the payload ours; it is initialised (mappings begin as zeroes), and lives as long as `shared`,
        // which `lent` keeps. No reference into it exists (`&mut self`), and none is made: `request` gives none out any more, and
        // `send` leaves alone what was given out. The entry, and with it the payload, goes back to the kernel when `lent` is dropped.
        Some(unsafe { Loan::new(start, memory.payload_bytes(), lent) })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.replied {
            self.fail();
        }
        let answered = Answered {
            index: self.index,
            payload_bytes: self.payload_bytes,
        };
        match &self.lent {
            None => self.shared.push(answered),
            Some(lent) => {
                // Only this ticket sets it.
                let _ = lent.answered.set(answered);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::request::{InHeader, OpenIn};
    use crate::protocol::{Opcode, Request};

    fn shared() -> Arc<Shared> {
        let wake = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        Arc::new(Shared::new(Memory::new(2, 128 << 10, 0).unwrap(), wake))
    }

    /// Does what the kernel does.
    fn bring(shared: &Arc<Shared>, op: &[u8], payload: &[u8], len: usize) -> Ticket {
        let header = InHeader {
            len: len as u32,
            opcode: Opcode::Open as u32,
            unique: 77,
            ..InHeader::default()
        };
        // SAFETY: no ticket of the entry exists.
        unsafe {
            let entry = &mut *shared.memory.header(1);
            entry.in_out[..40].copy_from_slice(header.as_bytes());
            entry.op_in[..op.len()].copy_from_slice(op);
            entry.payload_bytes = payload.len() as u32;
            shared
                .memory
                .payload(1)
                .copy_from_nonoverlapping(payload.as_ptr(), payload.len());
            Ticket::new(shared, 1)
        }
    }

    fn reply(shared: &Arc<Shared>) -> (OutHeader, Vec<u8>, Vec<Answered>) {
        let mut answered = Vec::new();
        assert!(shared.take_or_sleep(&mut answered));
        // SAFETY: no ticket of the entry exists any more.
        unsafe {
            let entry = &*shared.memory.header(1);
            let header = OutHeader::read_from_prefix(&entry.in_out).unwrap().0;
            let bytes =
                std::slice::from_raw_parts(shared.memory.payload(1), entry.payload_bytes as usize);
            (header, bytes.to_vec(), answered)
        }
    }

    #[test]
    fn a_request_is_put_together_and_its_reply_taken_apart() {
        let shared = shared();
        let args = OpenIn {
            flags: 5,
            open_flags: 6,
        };
        let mut ticket = bring(&shared, args.as_bytes(), b"rest", 40 + 8 + 4);
        {
            let request = Request::parse(ticket.request().unwrap()).unwrap();
            assert_eq!(request.opcode(), Some(Opcode::Open));
            let mut cursor = request.args();
            assert_eq!(cursor.take::<OpenIn>().unwrap(), args);
            assert_eq!(cursor.bytes(4).unwrap(), b"rest");
        }
        let head = OutHeader {
            len: 21,
            error: 0,
            unique: 77,
        };
        ticket
            .send(&[
                IoSlice::new(head.as_bytes()),
                IoSlice::new(b"ab"),
                IoSlice::new(b"cde"),
            ])
            .unwrap();
        let (header, payload, answered) = reply(&shared);
        assert_eq!((header, &payload[..]), (head, &b"abcde"[..]));
        assert_eq!(
            answered,
            [Answered {
                index: 1,
                payload_bytes: 5
            }]
        );
    }

    #[test]
    fn a_dropped_request_is_answered_with_eio() {
        let shared = shared();
        drop(bring(&shared, &[], b"", 40));
        let (header, payload, answered) = reply(&shared);
        assert_eq!((header.error, header.unique), (-libc::EIO, 77));
        assert_eq!((payload.len(), answered.len()), (0, 1));
        // A reply that does not fit as well.
        let head = OutHeader::default();
        let large = vec![0; (128 << 10) + 1];
        let parts = [IoSlice::new(head.as_bytes()), IoSlice::new(&large)];
        assert!(bring(&shared, &[], b"", 40).send(&parts).is_err());
        assert_eq!(reply(&shared).0.error, -libc::EIO);
    }

    #[test]
    fn lying_lengths_are_refused() {
        let shared = shared();
        for len in [39, 43, 40 + 4 + 129] {
            let mut ticket = bring(&shared, &[], b"four", len);
            assert!(
                matches!(ticket.request(), Err(BadRequest::WrongLength { .. })),
                "{len}"
            );
            drop(ticket);
            assert_eq!(reply(&shared).0.unique, 77);
        }
    }

    #[test]
    fn a_lent_payload_is_replied_in_place_and_given_back_last() {
        let shared = shared();
        let bytes = 128 << 10;
        let head = OutHeader {
            len: (16 + bytes) as u32,
            error: 0,
            unique: 77,
        };
        let mut ticket = bring(&shared, &[], b"", 40);
        let mut loan = ticket.lend().unwrap();
        assert!(ticket.lend().is_none(), "once");
        // In two pieces, and one in the middle that comes from elsewhere.
        let mut first = loan.cut(0, 4096).unwrap();
        let mut last = loan.cut(8192, bytes - 8192).unwrap();
        first.fill(1);
        last.fill(3);
        let middle = [2; 4096];
        ticket
            .send(&[
                IoSlice::new(head.as_bytes()),
                IoSlice::new(&first),
                IoSlice::new(&middle),
                IoSlice::new(&last),
            ])
            .unwrap();
        assert!(loan.cut(bytes - 4096, 4096).is_none(), "it is over");
        let mut answered = Vec::new();
        drop((loan, first));
        assert!(!shared.take_or_sleep(&mut answered), "the last is out");
        drop(last);
        let (header, payload, answered) = reply(&shared);
        assert_eq!((header, answered[0].payload_bytes), (head, bytes));
        let expected = |at: usize| match at {
            0..4096 => 1,
            4096..8192 => 2,
            _ => 3,
        };
        assert!(payload.iter().enumerate().all(|(at, b)| *b == expected(at)));
    }

    #[test]
    fn what_a_write_brought_stays_until_the_device_has_let_go_of_it() {
        let shared = shared();
        let data: Vec<u8> = (0..LENT_BYTES_MIN).map(|n| (n % 251) as u8).collect();
        let head = OutHeader {
            len: 16 + 8,
            error: 0,
            unique: 77,
        };
        let parts = [IoSlice::new(head.as_bytes()), IoSlice::new(b"eightlng")];
        let bring = |data: &[u8]| {
            let mut ticket = bring(&shared, &[1; 40], data, 40 + 40 + data.len());
            assert_eq!(ticket.request().unwrap()[80..], *data);
            ticket
        };
        // The reply is written when it is too early, by one that still has the data.
        let mut ticket = bring(&data);
        assert!(ticket.data(data.len() + 1).is_none(), "there is less");
        let mut slices = ticket.data(data.len()).unwrap();
        let there = shared.memory.payload(1).cast_const();
        assert_eq!(slices[0].as_ptr(), there, "not copied");
        ticket.send(&parts).unwrap();
        let slice = slices.pop().unwrap();
        let kept = slice.to_keep();
        assert_ne!(kept.as_ptr(), there, "a copy");
        assert!(!shared.take_or_sleep(&mut Vec::new()), "the slice is out");
        assert_eq!(slice[..], data[..], "untouched");
        drop(slice);
        let (header, payload, answered) = reply(&shared);
        assert_eq!((header, &payload[..]), (head, &b"eightlng"[..]));
        assert_eq!(answered[0].payload_bytes, data.len());
        assert_eq!(kept[..], data[..]);
        // Dropped without a reply.
        let mut ticket = bring(&data);
        let slices = ticket.data(data.len()).unwrap();
        drop(ticket);
        assert!(!shared.take_or_sleep(&mut Vec::new()));
        drop(slices);
        assert_eq!(reply(&shared).0.error, -libc::EIO);
        // Little is copied.
        let mut ticket = bring(&data[1..]);
        let slices = ticket.data(data.len() - 1).unwrap();
        ticket.send(&parts).unwrap();
        assert_eq!(reply(&shared).1, b"eightlng");
        assert_eq!(slices[0][..], data[1..]);
    }

    #[test]
    fn what_is_lent_is_neither_overwritten_nor_moved() {
        let shared = shared();
        let head = OutHeader {
            len: 16 + 4096,
            error: 0,
            unique: 77,
        };
        // Nothing was cut: as if nothing had been lent.
        let mut ticket = bring(&shared, &[], b"", 40);
        let loan = ticket.lend().unwrap();
        let parts = [IoSlice::new(head.as_bytes()), IoSlice::new(&[5; 4096])];
        ticket.send(&parts).unwrap();
        drop(loan);
        let (header, payload, _) = reply(&shared);
        assert_eq!((header, &payload[..]), (head, &[5; 4096][..]));
        // Cut, but the reply has other bytes there.
        let mut ticket = bring(&shared, &[], b"", 40);
        let mut loan = ticket.lend().unwrap();
        let cut = loan.cut(0, 4096).unwrap();
        assert!(ticket.send(&parts).is_err());
        drop((loan, cut));
        assert_eq!(reply(&shared).0.error, -libc::EIO);
        // In another place than it was read to.
        let mut ticket = bring(&shared, &[], b"", 40);
        let mut loan = ticket.lend().unwrap();
        let mut cut = loan.cut(8192, 8192).unwrap();
        cut.fill(6);
        let parts = [IoSlice::new(head.as_bytes()), IoSlice::new(&cut[4096..])];
        ticket.send(&parts).unwrap();
        drop((loan, cut));
        assert_eq!(reply(&shared).1, [6; 4096], "copied from there");
        // Dropped without a reply, while the device still has it.
        let mut ticket = bring(&shared, &[], b"", 40);
        let cut = ticket.lend().unwrap().cut(0, 4096).unwrap();
        drop(ticket);
        assert!(!shared.take_or_sleep(&mut Vec::new()));
        drop(cut);
        assert_eq!(reply(&shared).0.error, -libc::EIO);
    }

    #[test]
    fn who_answers_wakes_who_sleeps() {
        let shared = shared();
        let mut answered = Vec::new();
        assert!(!shared.take_or_sleep(&mut answered));
        assert!(answered.is_empty() && shared.asleep.load(Ordering::SeqCst));
        drop(bring(&shared, &[], b"", 40));
        assert!(!shared.asleep.load(Ordering::SeqCst), "woken once");
        let mut count = [0; 8];
        rustix::io::read(shared.wake_fd(), &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 1);
        assert!(shared.take_or_sleep(&mut answered));
        assert_eq!(answered.len(), 1);
        assert!(!shared.asleep.load(Ordering::SeqCst));
    }
}
