//! Page-aligned, owned buffers, and counted slices of them.
//!
//! `O_DIRECT` wants memory aligned to the logical block; page alignment satisfies every device.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;

/// Alignment of every buffer, in bytes.
pub const BUFFER_ALIGN: usize = 4096;

/// An owned, page-aligned, zero-initialised run of bytes.
pub struct AlignedBuf {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: the buffer is uniquely owned plain memory; moving or sharing the owner between threads
// follows the ordinary borrow rules enforced by `Deref`/`DerefMut`.
unsafe impl Send for AlignedBuf {}
// SAFETY: as above; `&AlignedBuf` only gives `&[u8]`.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len.max(1), BUFFER_ALIGN).expect("buffer length fits in isize")
    }

    /// A buffer of `len` zero bytes.
    ///
    /// # Panics
    /// When `len` exceeds `isize::MAX` minus the alignment; aborts when memory is exhausted.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        let layout = Self::layout(len);
        // SAFETY: the layout's size is at least 1.
        let raw = unsafe { alloc_zeroed(layout) };
        let Some(ptr) = NonNull::new(raw) else {
            handle_alloc_error(layout)
        };
        AlignedBuf { ptr, len }
    }

    /// A buffer with copies of several runs of bytes, one after another.
    #[must_use]
    pub fn concat(parts: &[&[u8]]) -> Self {
        let mut buf = Self::zeroed(parts.iter().map(|part| part.len()).sum());
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

    /// A buffer with a copy of `bytes`.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut buf = Self::zeroed(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        // SAFETY: `ptr` came from `alloc_zeroed` with this very layout and is dropped once.
        unsafe { dealloc(self.ptr.as_ptr(), Self::layout(self.len)) }
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
/// Holding one keeps the bytes unchanged: whoever owns the same `Arc` must go through
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
