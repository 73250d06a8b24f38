//! Lent memory: the destination of a read that the device fills in place, for example the payload of a reply.
//!
//! A buffer cut from a loan is an ordinary [`AlignedBuf`]. When the last reference to the loan goes, its lender is dropped, and
//! no thread or device uses the memory any more. So bytes travel from the device into a reply without a copy or an allocation.

use crate::buffer::AlignedBuf;
use crate::lender::Lender;
use crate::pool::BUFFER_ALIGN;
use parking_lot::Mutex;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

/// The lender of one buffer, which gets it back.
struct Buffer<F: FnOnce(AlignedBuf) + Send>(Mutex<Option<(AlignedBuf, F)>>);

impl<F: FnOnce(AlignedBuf) + Send> Lender for Buffer<F> {
    fn give_out(&self, _range: Range<usize>) -> bool {
        true
    }
}

impl<F: FnOnce(AlignedBuf) + Send> Drop for Buffer<F> {
    fn drop(&mut self) {
        if let Some((buf, back)) = self.0.get_mut().take() {
            back(buf);
        }
    }
}

/// See the module's head.
pub struct Loan {
    start: NonNull<u8>,
    len: usize,
    /// Where the next buffer may begin: what is before was given out.
    next: usize,
    lender: Arc<dyn Lender>,
}

// SAFETY: plain memory that no other code uses until the lender, which is `Send`, is dropped.
unsafe impl Send for Loan {}

impl Loan {
    /// Lends a buffer; `back` gets it, with the bytes read into it, after its last use.
    pub fn of(buf: AlignedBuf, back: impl FnOnce(AlignedBuf) + Send + 'static) -> Self {
        let (start, len) = (NonNull::new(buf.as_raw()), buf.len());
        let start = start.expect("buffers have an address");
        let lender = Arc::new(Buffer(Mutex::new(Some((buf, back)))));
        // SAFETY: a buffer is aligned and initialised, and stays where it is; this one is not touched until its lender is dropped.
        unsafe { Loan::new(start, len, lender) }
    }

    /// The `len` bytes at `start`.
    ///
    /// # Safety
    /// The bytes are initialised and stay mapped until `lender` is dropped, and no other code reads or
    /// writes a byte that it gives out until then.
    ///
    /// # Panics
    /// When `start` is not aligned to [`BUFFER_ALIGN`].
    #[must_use]
    pub unsafe fn new(start: NonNull<u8>, len: usize, lender: Arc<dyn Lender>) -> Self {
        assert!(
            start.addr().get().is_multiple_of(BUFFER_ALIGN),
            "lent memory must be aligned"
        );
        Loan {
            start,
            len,
            next: 0,
            lender,
        }
    }

    /// The `len` bytes at `at`, if they are aligned, inside, behind all that was cut before, and the lender agrees. What they hold is what
    /// the lender left there: only for a caller that overwrites all of it, as with [`AlignedBuf::for_overwrite`].
    pub fn cut(&mut self, at: usize, len: usize) -> Option<AlignedBuf> {
        let end = at.checked_add(len)?;
        if at < self.next || end > self.len || !at.is_multiple_of(BUFFER_ALIGN) || len == 0 {
            return None;
        }
        self.next = end;
        if !self.lender.give_out(at..end) {
            return None;
        }
        // SAFETY: inside the loan, given out, so initialised and ours as long as the buffer keeps the lender; nothing else
        // that was cut overlaps, because each lies behind those before.
        Some(unsafe { AlignedBuf::lent(self.start.add(at), len, Arc::clone(&self.lender)) })
    }
}

impl std::fmt::Debug for Loan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Loan({} of {} bytes)", self.len - self.next, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::memory::MemoryDevice;
    use crate::{BlockDevice, DevOffset, DeviceExt, IoSlice, Op, Request};
    use std::sync::mpsc;

    fn lend(len: usize) -> (Loan, mpsc::Receiver<AlignedBuf>) {
        let (send, back) = mpsc::channel();
        let loan = Loan::of(AlignedBuf::zeroed(len), move |buf| send.send(buf).unwrap());
        (loan, back)
    }

    #[test]
    fn what_is_cut_neither_overlaps_nor_leaves_the_loan() {
        let (mut loan, back) = lend(64 << 10);
        assert!(loan.cut(0, (64 << 10) + 1).is_none(), "too long");
        assert!(loan.cut(512, 512).is_none(), "not aligned");
        assert!(loan.cut(usize::MAX - 4095, 8192).is_none(), "absurd");
        assert!(loan.cut(0, 0).is_none(), "nothing");
        let mut first = loan.cut(4096, 8000).unwrap();
        assert!(loan.cut(0, 4096).is_none(), "before");
        assert!(loan.cut(8192, 4096).is_none(), "overlaps");
        let mut second = loan.cut(16_384, 48 << 10).unwrap();
        assert!(loan.cut(60 << 10, 4096).is_none(), "all gone");
        first.fill(1);
        second.fill(2);
        // A copy owns its memory.
        let mut copy = first.clone();
        copy.fill(3);
        drop((loan, first));
        assert!(back.try_recv().is_err(), "the second is still out");
        drop(second);
        let bytes = back.recv().unwrap();
        let expected = |at: usize| match at {
            4096..12_096 => 1,
            16_384.. => 2,
            _ => 0,
        };
        assert!(bytes.iter().enumerate().all(|(at, b)| *b == expected(at)));
    }

    #[test]
    fn a_device_fills_it_and_slices_keep_it() {
        let device = MemoryDevice::new(1 << 20);
        let data: Vec<u8> = (0..65_536u32).map(|i| (i % 253) as u8).collect();
        device
            .write_slices(
                DevOffset(8192),
                vec![AlignedBuf::copy_of(&data).into()],
                crate::Flags::empty(),
            )
            .unwrap();
        let (mut loan, back) = lend(64 << 10);
        let buf = loan.cut(0, 64 << 10).unwrap();
        drop(loan);
        let (send, done) = mpsc::channel();
        let read = Request::new(Op::Read(buf), DevOffset(8192), move |d| {
            send.send(d).unwrap();
        });
        device.submit(read);
        let slice = IoSlice::from(done.recv().unwrap().read.unwrap());
        let part = slice.slice(100..200);
        drop(slice);
        assert_eq!(part[..], data[100..200]);
        assert!(back.try_recv().is_err());
        drop(part);
        assert_eq!(back.recv().unwrap()[..], data[..]);
    }
}
