//! Where the memory of buffers comes from, and goes back to.
//!
//! Two costs are saved. The C library puts a page-aligned 4 KiB allocation into 8 KiB of heap,
//! because its own header breaks the alignment of the next one; and a large buffer that is given
//! back to the kernel costs a page fault per page when it is allocated again, more than the copy
//! it is used for.
//!
//! Sizes are rounded up to a power of two, 4 KiB to 1 MiB, when that wastes at most a quarter.
//! Small classes are carved from regions that stay with the process, so they hold what was once in
//! use at the same time; of each large class a bounded number of bytes is kept, and the rest goes
//! back to the allocator. Other sizes are not pooled.
//!
//! Invariant: all memory here came from `alloc_zeroed` and was only written since, so it is
//! initialised, whatever it contains.
//!
//! Locks: one per class, a leaf, held to push or pop a pointer, or to allocate a region.

use crate::BUFFER_ALIGN;
use parking_lot::Mutex;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

const CLASSES: usize = 9;
const SMALLEST: usize = 4096;
const LARGEST: usize = SMALLEST << (CLASSES - 1);
/// Classes up to this size are carved from regions.
const CARVED_MAX: usize = 32 * 1024;
const REGION_BYTES: usize = 512 * 1024;
/// Free memory kept per class that is not carved.
const KEPT_BYTES_MAX: usize = 16 << 20;

struct Slot(NonNull<u8>);

// SAFETY: a slot is memory that nobody else refers to; it has no tie to a thread.
unsafe impl Send for Slot {}

struct Class {
    free: Vec<Slot>,
    /// What is left of the newest region, never used and so still zero.
    fresh: Option<(Slot, usize)>,
}

static POOL: [Mutex<Class>; CLASSES] = [const {
    Mutex::new(Class {
        free: Vec::new(),
        fresh: None,
    })
}; CLASSES];

/// The class whose slots hold `len` bytes without much waste, and the slots' size.
fn class_of(len: usize) -> Option<(usize, usize)> {
    if len > LARGEST {
        return None;
    }
    let size = len.next_power_of_two().max(SMALLEST);
    if size > SMALLEST && size - len > size / 4 {
        return None;
    }
    Some(((size / SMALLEST).trailing_zeros() as usize, size))
}

fn layout(len: usize) -> Layout {
    Layout::from_size_align(len.max(1), BUFFER_ALIGN).expect("buffer length fits in isize")
}

fn alloc(len: usize) -> NonNull<u8> {
    let layout = layout(len);
    // SAFETY: the layout's size is at least 1.
    let raw = unsafe { alloc_zeroed(layout) };
    NonNull::new(raw).unwrap_or_else(|| handle_alloc_error(layout))
}

/// Initialised memory for `len` bytes, aligned to [`BUFFER_ALIGN`], and whether it is all zero.
/// To be given back with [`give`] and the same length.
pub(crate) fn take(len: usize) -> (NonNull<u8>, bool) {
    let Some((class, size)) = class_of(len) else {
        return (alloc(len), true);
    };
    let mut state = POOL[class].lock();
    if let Some(Slot(ptr)) = state.free.pop() {
        return (ptr, false);
    }
    if size > CARVED_MAX {
        drop(state);
        return (alloc(size), true);
    }
    let (Slot(ptr), left) = state
        .fresh
        .take()
        .unwrap_or_else(|| (Slot(alloc(REGION_BYTES)), REGION_BYTES));
    if left > size {
        // SAFETY: `left` bytes of the region begin at `ptr`, and `size` is less.
        state.fresh = Some((Slot(unsafe { ptr.add(size) }), left - size));
    }
    (ptr, true)
}

/// Takes memory back.
///
/// # Safety
/// `ptr` came from [`take`] with the same `len`, is given back once, and not used afterwards.
pub(crate) unsafe fn give(ptr: NonNull<u8>, len: usize) {
    let Some((class, size)) = class_of(len) else {
        // SAFETY: `take` allocated it with this very layout, because its length has no class.
        return unsafe { dealloc(ptr.as_ptr(), layout(len)) };
    };
    let mut state = POOL[class].lock();
    if size <= CARVED_MAX || (state.free.len() + 1) * size <= KEPT_BYTES_MAX {
        state.free.push(Slot(ptr));
        return;
    }
    drop(state);
    // SAFETY: slots of this class are allocations of `size` bytes of their own.
    unsafe { dealloc(ptr.as_ptr(), layout(size)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_waste_little() {
        assert_eq!(class_of(0), Some((0, 4096)));
        assert_eq!(class_of(512), Some((0, 4096)));
        assert_eq!(class_of(4097), None);
        assert_eq!(class_of(6144), Some((1, 8192)));
        assert_eq!(class_of(1 << 20), Some((8, 1 << 20)));
        assert_eq!(class_of((1 << 20) + 1), None);
        assert_eq!(class_of(usize::MAX), None);
    }

    #[test]
    fn slots_are_aligned_and_disjoint() {
        let mut taken = Vec::new();
        for round in 0..600 {
            let len = [1, 4096, 8192, 30_000, 65536, 100, 200_000, 3 << 20][round % 8];
            let (ptr, zero) = take(len);
            assert_eq!(ptr.as_ptr() as usize % BUFFER_ALIGN, 0);
            // SAFETY: `take` gave `len` initialised bytes to this test alone.
            let bytes = unsafe { std::slice::from_raw_parts_mut(ptr.as_ptr(), len) };
            assert!(!zero || bytes.iter().all(|byte| *byte == 0));
            bytes.fill(round as u8);
            taken.push((ptr, len, round as u8));
        }
        for (ptr, len, value) in taken {
            // SAFETY: as above.
            let bytes = unsafe { std::slice::from_raw_parts(ptr.as_ptr(), len) };
            assert!(
                bytes.iter().all(|byte| *byte == value),
                "overlap at {len} bytes"
            );
            // SAFETY: taken with this length above, given back once.
            unsafe { give(ptr, len) };
        }
    }
}
