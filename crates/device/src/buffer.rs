//! Page-aligned, owned buffers, and counted slices of them.
//!
//! `O_DIRECT` wants memory aligned to the logical block; page alignment satisfies every device.

use crate::lender::Lender;
use crate::pool;
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;

/// An owned, page-aligned, initialised run of bytes. Its memory is recycled, or goes back to its lender ([`crate::Loan`]).
pub struct AlignedBuf {
    ptr: NonNull<u8>,
    len: usize,
    /// No lender: the memory is the pool's.
    lender: Option<Arc<dyn Lender>>,
}

// SAFETY: the buffer is uniquely owned plain memory; moving or sharing the owner between threads
// follows the ordinary borrow rules enforced by `Deref`/`DerefMut`.
unsafe impl Send for AlignedBuf {}
// SAFETY: as above; `&AlignedBuf` only gives `&[u8]`.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// A buffer of `len` zero bytes.
    ///
    /// # Panics
    /// When `len` exceeds `isize::MAX` minus the alignment; aborts when memory is exhausted.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        let (ptr, is_zero) = pool::take(len);
        let mut buf = AlignedBuf {
            ptr,
            len,
            lender: None,
        };
        if !is_zero {
            buf.fill(0);
        }
        buf
    }

    /// A buffer of `len` bytes of unspecified, though initialised contents: a recycled buffer
    /// holds its old bytes. Only for a caller that overwrites all of it at once, which saves the zeroing. Any other
    /// use would carry one file's bytes into another. Debug builds fill it with a pattern.
    ///
    /// # Panics
    /// As [`AlignedBuf::zeroed`].
    #[must_use]
    pub fn for_overwrite(len: usize) -> Self {
        let mut buf = Self::stale(len);
        if cfg!(debug_assertions) {
            buf.fill(0xD7);
        }
        buf
    }

    /// As [`AlignedBuf::for_overwrite`], for a short transfer between the device and another owner. A large buffer lies in memory that
    /// devices take in few segments, as long as such memory is free.
    ///
    /// # Panics
    /// As [`AlignedBuf::zeroed`].
    #[must_use]
    pub fn for_transfer(len: usize) -> Self {
        let Some((ptr, lease)) = pool::huge::take(len) else {
            return Self::for_overwrite(len);
        };
        // SAFETY: initialised and page-aligned, at least so long, and not used otherwise until the lease is dropped.
        let mut buf = unsafe { Self::lent(ptr, len, Arc::new(lease)) };
        if cfg!(debug_assertions) {
            buf.fill(0xD7);
        }
        buf
    }

    fn stale(len: usize) -> Self {
        let (ptr, _) = pool::take(len);
        AlignedBuf {
            ptr,
            len,
            lender: None,
        }
    }

    /// Lent memory.
    ///
    /// # Safety
    /// `len` initialised, aligned bytes at `ptr` are this buffer's alone until `lender` is dropped.
    pub(crate) unsafe fn lent(ptr: NonNull<u8>, len: usize, lender: Arc<dyn Lender>) -> Self {
        AlignedBuf {
            ptr,
            len,
            lender: Some(lender),
        }
    }

    /// A buffer with a copy of `bytes`.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut buf = Self::stale(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    /// As [`AlignedBuf::copy_of`], for a transfer that is over soon: see [`AlignedBuf::for_transfer`].
    #[must_use]
    pub fn copy_for_transfer(bytes: &[u8]) -> Self {
        let mut buf = Self::for_transfer(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    /// A buffer with copies of several runs of bytes, one after another.
    #[must_use]
    pub fn concat(parts: &[&[u8]]) -> Self {
        let mut buf = Self::stale(parts.iter().map(|part| part.len()).sum());
        let mut at = 0;
        for part in parts {
            buf[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        buf
    }

    /// Where the bytes are, for the kernel to fill while several parts of one read are in flight:
    /// no reference to the bytes exists meanwhile.
    pub(crate) fn as_raw(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if self.lender.is_none() {
            // SAFETY: `ptr` was taken with this very length and is given back once.
            unsafe { pool::give(self.ptr, self.len) }
        }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `ptr` is valid for `len` initialised bytes as long as `self` lives.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl Clone for AlignedBuf {
    fn clone(&self) -> Self {
        Self::copy_of(self)
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.len)
    }
}

/// A counted, immutable slice of an [`AlignedBuf`]: what a write carries.
///
/// Holding one keeps the bytes unchanged: an owner of the same `Arc` must go through
/// `Arc::make_mut` to change it, which copies while a slice is alive.
#[derive(Clone)]
pub struct IoSlice {
    buf: Arc<AlignedBuf>,
    start: usize,
    end: usize,
}

impl IoSlice {
    /// The bytes `range` of `buf`.
    ///
    /// # Panics
    /// When the range does not lie in the buffer.
    #[must_use]
    pub fn new(buf: Arc<AlignedBuf>, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= buf.len(),
            "slice outside its buffer"
        );
        IoSlice {
            buf,
            start: range.start,
            end: range.end,
        }
    }

    /// A part of this slice, by offsets into it, sharing the same bytes.
    ///
    /// # Panics
    /// When the range does not lie in the slice.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.len(),
            "part outside its slice"
        );
        IoSlice {
            buf: Arc::clone(&self.buf),
            start: self.start + range.start,
            end: self.start + range.end,
        }
    }
}

impl IoSlice {
    /// The same bytes without a limit in time: a copy where the memory is lent ([`crate::Loan`]), because the lender waits for it.
    #[must_use]
    pub fn to_keep(&self) -> Self {
        match self.buf.lender {
            Some(_) => AlignedBuf::copy_of(self).into(),
            None => self.clone(),
        }
    }
}

impl From<Arc<AlignedBuf>> for IoSlice {
    fn from(buf: Arc<AlignedBuf>) -> Self {
        let end = buf.len();
        IoSlice { buf, start: 0, end }
    }
}

impl From<AlignedBuf> for IoSlice {
    fn from(buf: AlignedBuf) -> Self {
        Arc::new(buf).into()
    }
}

impl Deref for IoSlice {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.buf[self.start..self.end]
    }
}

impl fmt::Debug for IoSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IoSlice({} bytes)", self.len())
    }
}
