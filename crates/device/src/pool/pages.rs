//! Pages of the system: mapped by Linux, and allocated elsewhere.

#[cfg(not(target_os = "linux"))]
pub(super) use elsewhere::{clear, huge, map_aligned, populate, unmap};
#[cfg(target_os = "linux")]
pub(super) use linux::{clear, huge, map_aligned, populate, unmap};

#[cfg(target_os = "linux")]
mod linux {
    use libc::{MAP_ANONYMOUS, MAP_PRIVATE, PROT_READ, PROT_WRITE, madvise, mmap, munmap};
    use std::ptr::NonNull;

    /// New memory, zero, of so many bytes and aligned to as many, which are a power of two and whole pages; `None` when the system has none,
    /// or the process may not have more. It has no other reference.
    pub(in crate::pool) fn map_aligned(bytes: usize) -> Option<NonNull<u8>> {
        let (access, flags) = (PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
        // SAFETY: new memory at a place of the kernel's choice.
        let raw = unsafe { mmap(std::ptr::null_mut(), 2 * bytes, access, flags, -1, 0) };
        if raw == libc::MAP_FAILED {
            return None;
        }
        let raw = raw.cast::<u8>();
        let before = raw.align_offset(bytes);
        // SAFETY: within what was just mapped, which is twice as long; no other reference exists yet. What cannot be
        // unmapped stays, untouched.
        unsafe {
            if before > 0 {
                let _ = munmap(raw.cast(), before);
            }
            let start = raw.add(before);
            if before < bytes {
                let _ = munmap(start.add(bytes).cast(), bytes - before);
            }
            NonNull::new(start)
        }
    }

    /// Gives the memory of a part back; it is zero then.
    ///
    /// # Safety
    /// The part is whole pages of a mapping, and no reference to it exists.
    pub(in crate::pool) unsafe fn clear(start: *mut u8, bytes: usize) {
        // SAFETY: promised by the caller. Should the kernel refuse, which it does for locked memory only, the part is cleared below.
        let done = unsafe { madvise(start.cast(), bytes, libc::MADV_DONTNEED) };
        if done != 0 {
            // SAFETY: as above.
            unsafe { start.write_bytes(0, bytes) };
        }
    }

    /// Has the kernel put memory there. `false` when it cannot: it is older than Linux 5.14, or has none.
    ///
    /// # Safety
    /// The part is whole pages of a mapping.
    pub(in crate::pool) unsafe fn populate(start: *mut u8, bytes: usize) -> bool {
        // SAFETY: promised by the caller; contents stay as they are.
        unsafe { madvise(start.cast(), bytes, libc::MADV_POPULATE_WRITE) == 0 }
    }

    /// Asks for huge pages; what is none serves as well.
    ///
    /// # Safety
    /// The part is whole pages of a mapping.
    pub(in crate::pool) unsafe fn huge(start: *mut u8, bytes: usize) {
        // SAFETY: promised by the caller; contents stay as they are.
        let _ = unsafe { madvise(start.cast(), bytes, libc::MADV_HUGEPAGE) };
    }

    /// Ends a mapping. If it cannot be unmapped it stays.
    ///
    /// # Safety
    /// It was mapped by [`map_aligned`] with this length, and has no user.
    pub(in crate::pool) unsafe fn unmap(start: NonNull<u8>, bytes: usize) {
        // SAFETY: promised by the caller.
        let _ = unsafe { munmap(start.as_ptr().cast(), bytes) };
    }
}

#[cfg(not(target_os = "linux"))]
mod elsewhere {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;

    /// New memory, zero, of so many bytes and aligned to as many, which are a power of two; `None` when there is none.
    pub(in crate::pool) fn map_aligned(bytes: usize) -> Option<NonNull<u8>> {
        let layout = Layout::from_size_align(bytes, bytes)
            .ok()
            .filter(|_| bytes > 0)?;
        // SAFETY: the size is not zero.
        NonNull::new(unsafe { alloc_zeroed(layout) })
    }

    /// Makes a part zero. Its memory stays.
    ///
    /// # Safety
    /// The part lies in what was allocated, and no reference to it exists.
    pub(in crate::pool) unsafe fn clear(start: *mut u8, bytes: usize) {
        // SAFETY: promised by the caller.
        unsafe { start.write_bytes(0, bytes) };
    }

    /// Does nothing.
    ///
    /// # Safety
    /// None is needed.
    pub(in crate::pool) unsafe fn populate(_: *mut u8, _: usize) -> bool {
        false
    }

    /// Does nothing.
    ///
    /// # Safety
    /// None is needed.
    pub(in crate::pool) unsafe fn huge(_: *mut u8, _: usize) {}

    /// Frees what [`map_aligned`] returned.
    ///
    /// # Safety
    /// It was allocated with this length, and has no user.
    pub(in crate::pool) unsafe fn unmap(start: NonNull<u8>, bytes: usize) {
        if let Ok(layout) = Layout::from_size_align(bytes, bytes) {
            // SAFETY: promised by the caller: it was allocated with this layout.
            unsafe { dealloc(start.as_ptr(), layout) };
        }
    }
}
