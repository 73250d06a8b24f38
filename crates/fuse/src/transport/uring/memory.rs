//! The memory of one thread's entries, which it shares with the kernel.
//!
//! # One entry
//! An entry has a page for its header, and its payload follows. A request is assembled at the end of the page, right before the
//! payload: header and first argument are copied there. Together with the payload they are one run of bytes, as on
//! `/dev/fuse`. A WRITE's data stays in place, on a page boundary.
//!
//! # All entries
//! Memory is mapped once and touched when it is used. The kernel hands out the entry that was used last, so only a few become
//! resident.
//! * The first entries get huge pages ([`HUGE_PAGE`]) and keep them. The queue of a device holds a limited number of segments (virtio-blk
//!   often has 256), and a payload of scattered pages needs one for each page. A few large requests would fill the queue.
//! * The other entries are used when many large requests come at once. When more than the budget is resident, the memory of each beyond
//!   [`KEPT_BYTES`] is given back, least recently used first.
//! * All threads share the budget, because usually one stream needs it, on one CPU after another.

use super::abi::EntryHeader;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const PAGE: usize = 4096;
/// How much of every payload stays resident.
pub(super) const KEPT_BYTES: usize = 16 << 10;
/// The size and alignment of huge pages on the machines that have this size; elsewhere they are pages like others.
pub(super) const HUGE_PAGE: usize = 2 << 20;
/// The longest header and first argument together, with room.
const STAGING_BYTES: usize = 40 + 128;

/// Memory for a number of entries.
pub(super) struct Memory {
    /// The mapping, which begins before the first entry.
    map: NonNull<u8>,
    map_bytes: usize,
    base: NonNull<u8>,
    entries: usize,
    payload_bytes: usize,
    /// Entries before this one are in huge pages, where the system has some.
    huge: usize,
}

// SAFETY: plain memory without a tie to a thread; `Ticket`s decide which thread may access an entry.
unsafe impl Send for Memory {}
// SAFETY: as above; the methods give out raw pointers only.
unsafe impl Sync for Memory {}

impl Memory {
    /// Memory for `entries` entries with payloads of `payload_bytes`, a multiple of the page size. As many as fit into `huge_bytes`, a multiple
    /// of [`HUGE_PAGE`], are in huge pages.
    ///
    /// # Errors
    /// When the system gives none.
    pub(super) fn new(entries: usize, payload_bytes: usize, huge_bytes: usize) -> io::Result<Self> {
        let payload_bytes = payload_bytes.next_multiple_of(PAGE);
        let stride = PAGE + payload_bytes;
        let bytes = stride
            .checked_mul(entries)
            .ok_or(io::ErrorKind::OutOfMemory)?;
        // Whole huge pages of entries only.
        let huge_bytes = huge_bytes.min(bytes / HUGE_PAGE * HUGE_PAGE);
        let slack = if huge_bytes > 0 { HUGE_PAGE - PAGE } else { 0 };
        let map_bytes = bytes.checked_add(slack).ok_or(io::ErrorKind::OutOfMemory)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches no other memory.
        let map = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                map_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
            )?
        };
        let map = NonNull::new(map.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // A child made by fork must not share (and so copy) what the kernel writes to; it does no harm if an
        // old kernel does not know this.
        // SAFETY: the advice does not change our own view of the mapping just made.
        let _ = unsafe { madvise(map.as_ptr().cast(), map_bytes, Advice::LinuxDontFork) };
        let base = if huge_bytes > 0 {
            let before = map.addr().get().next_multiple_of(HUGE_PAGE) - map.addr().get();
            // SAFETY: both are page-aligned, so that is at most the slack.
            let base = unsafe { map.add(before) };
            // Where the system has no huge pages, it is as it would be without.
            // SAFETY: inside the mapping; the advice does not change our view of it.
            let _ = unsafe { madvise(base.as_ptr().cast(), huge_bytes, Advice::LinuxHugepage) };
            base
        } else {
            map
        };
        Ok(Memory {
            map,
            map_bytes,
            base,
            entries,
            payload_bytes,
            huge: huge_bytes / stride,
        })
    }

    /// Entries before this one are in huge pages that stay in memory. They should be used first.
    pub(super) fn huge_entries(&self) -> usize {
        self.huge
    }

    fn entry(&self, index: usize) -> *mut u8 {
        assert!(index < self.entries, "no such entry");
        // SAFETY: inside the mapping, because the index is.
        unsafe { self.base.as_ptr().add(index * (PAGE + self.payload_bytes)) }
    }

    /// Where the entry's header is.
    pub(super) fn header(&self, index: usize) -> *mut EntryHeader {
        self.entry(index).cast()
    }

    /// Where the entry's payload is; [`Memory::payload_bytes`] long.
    pub(super) fn payload(&self, index: usize) -> *mut u8 {
        // SAFETY: the payload follows the entry's first page.
        unsafe { self.entry(index).add(PAGE) }
    }

    /// How long a payload can be.
    pub(super) fn payload_bytes(&self) -> usize {
        self.payload_bytes
    }

    /// The `len` bytes before the payload.
    ///
    /// # Panics
    /// When that is more than a request's header and first argument take.
    pub(super) fn staging(&self, index: usize, len: usize) -> *mut u8 {
        assert!(len <= STAGING_BYTES, "more than goes before a payload");
        // SAFETY: the first page has room for it behind the entry's header.
        unsafe { self.payload(index).sub(len) }
    }

    /// The argument of REGISTER for the kernel.
    pub(super) fn pieces(&self, index: usize) -> [libc::iovec; 2] {
        [
            libc::iovec {
                iov_base: self.header(index).cast(),
                iov_len: size_of::<EntryHeader>(),
            },
            libc::iovec {
                iov_base: self.payload(index).cast(),
                iov_len: self.payload_bytes,
            },
        ]
    }

    /// Gives back what a payload holds beyond what is always kept.
    ///
    /// # Safety
    /// The entry must not be in use, by the kernel included.
    pub(super) unsafe fn cool(&self, index: usize) {
        if self.payload_bytes > KEPT_BYTES {
            // SAFETY: inside the mapping, whole pages, and not in use by the caller's promise.
            let _ = unsafe {
                madvise(
                    self.payload(index).add(KEPT_BYTES).cast(),
                    self.payload_bytes - KEPT_BYTES,
                    Advice::LinuxDontNeed,
                )
            };
        }
    }
}

const _: () = assert!(size_of::<EntryHeader>() + STAGING_BYTES <= PAGE);

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, unmapped once; the owner drops it only when the kernel is done
        // with it (see `Server`, which leaks it otherwise).
        let _ = unsafe { munmap(self.map.as_ptr().cast(), self.map_bytes) };
    }
}

/// How much payloads outside of huge pages may hold beyond what is always kept: of all threads together.
pub(super) struct WarmBudget {
    bytes: usize,
    /// Each thread's share in any case, so that threads which took much before leave some for the others.
    share: usize,
    sum: AtomicUsize,
}

impl WarmBudget {
    pub(super) fn new(bytes: usize, threads: usize) -> Arc<Self> {
        Arc::new(WarmBudget {
            bytes,
            share: bytes / 2 / threads.max(1),
            sum: AtomicUsize::new(0),
        })
    }
}

/// How much of one thread's payloads is warm, and which of them.
pub(super) struct Warmth {
    budget: Arc<WarmBudget>,
    /// Warm bytes of every entry, and when it was used last.
    entries: Box<[(usize, u64)]>,
    sum: usize,
    clock: u64,
}

impl Warmth {
    pub(super) fn new(entries: usize, budget: &Arc<WarmBudget>) -> Self {
        Warmth {
            budget: Arc::clone(budget),
            entries: vec![(0, 0); entries].into_boxed_slice(),
            sum: 0,
            clock: 0,
        }
    }

    fn change(&mut self, index: usize, warm: usize) {
        let before = std::mem::replace(&mut self.entries[index].0, warm);
        self.sum = self.sum - before + warm;
        // Wraps below zero and back where it shrinks.
        self.budget
            .sum
            .fetch_add(warm.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Notes how many bytes of an entry's payload were used.
    pub(super) fn used(&mut self, index: usize, bytes: usize) {
        self.clock += 1;
        let (warm, last) = &mut self.entries[index];
        *last = self.clock;
        let beyond = bytes.saturating_sub(KEPT_BYTES);
        if beyond > *warm {
            self.change(index, beyond);
        }
    }

    /// Which entry is to be cooled, of those that `idle` says may be: the one that was not used for longest, while more
    /// is warm than should be. Takes it as done.
    pub(super) fn too_warm(&mut self, idle: impl Fn(usize) -> bool) -> Option<usize> {
        if self.sum <= self.budget.share
            || self.budget.sum.load(Ordering::Relaxed) <= self.budget.bytes
        {
            return None;
        }
        let warm = self.entries.iter().enumerate();
        let (index, _) = warm
            .filter(|(index, (warm, _))| *warm > 0 && idle(*index))
            .min_by_key(|(_, (_, last))| *last)?;
        self.change(index, 0);
        Some(index)
    }
}

impl Drop for Warmth {
    fn drop(&mut self) {
        self.budget.sum.fetch_sub(self.sum, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_lie_beside_each_other() {
        let memory = Memory::new(3, 128 << 10, 0).unwrap();
        for index in 0..3 {
            let pieces = memory.pieces(index);
            assert_eq!(pieces[0].iov_len, 288);
            assert_eq!(pieces[1].iov_len, 128 << 10);
            assert_eq!(pieces[1].iov_base as usize % PAGE, 0);
            assert_eq!(
                memory.staging(index, 80) as usize + 80,
                memory.payload(index) as usize
            );
            // SAFETY: no other thread uses the entry.
            unsafe {
                memory.payload(index).write_bytes(7, memory.payload_bytes());
                memory.cool(index);
                assert_eq!(memory.payload(index).read(), 7, "the beginning stays");
                assert_eq!(memory.payload(index).add(KEPT_BYTES).read(), 0);
            }
        }
    }

    #[test]
    fn the_first_entries_are_in_huge_pages() {
        let memory = Memory::new(64, 256 << 10, 2 * HUGE_PAGE).unwrap();
        assert_eq!(memory.huge_entries(), 15);
        assert_eq!(memory.header(0).addr() % HUGE_PAGE, 0);
        // The last one ends inside.
        let last = memory.payload(63);
        // SAFETY: no other thread uses the entry.
        unsafe { last.add(memory.payload_bytes() - 1).write(1) };
        for (entries, huge_bytes) in [(64, 0), (7, 2 * HUGE_PAGE)] {
            let memory = Memory::new(entries, 256 << 10, huge_bytes).unwrap();
            assert_eq!(memory.huge_entries(), 0, "not all of a huge page is theirs");
        }
        if let Ok(told) = std::fs::read_to_string("/proc/self/smaps") {
            // The mapping that begins with the first entry has the advice.
            let start = format!("{:x}-", memory.header(0).addr());
            let ours = told.lines().skip_while(|line| !line.starts_with(&start));
            let flags = ours.into_iter().find(|line| line.starts_with("VmFlags:"));
            assert!(flags.unwrap().split(' ').any(|flag| flag == "hg"));
        }
    }

    #[test]
    fn warm_payloads_are_bounded() {
        const MIB: usize = 1 << 20;
        let budget = WarmBudget::new(2 * MIB, 2);
        let mut warmth = Warmth::new(4, &budget);
        let all = |_| true;
        warmth.used(0, 4096);
        assert_eq!(warmth.sum, 0, "small requests never count");
        for index in [0, 1, 0, 1, 0] {
            warmth.used(index, MIB);
        }
        assert_eq!(warmth.too_warm(all), None, "the same memory again");
        warmth.used(2, MIB);
        assert_eq!(warmth.too_warm(|i| i != 1), Some(0), "1 is in use");
        assert_eq!(warmth.too_warm(all), None);
        warmth.used(3, MIB);
        assert_eq!(warmth.too_warm(all), Some(1), "not used for longest");
        assert_eq!(warmth.too_warm(all), None);
        // Another thread has its share, in spite of that.
        let mut other = Warmth::new(4, &budget);
        other.used(0, MIB / 2);
        assert_eq!(other.too_warm(all), None);
        other.used(1, MIB);
        assert_eq!(other.too_warm(all), Some(0));
        assert_eq!(warmth.too_warm(|_| false), None, "all are in use");
        assert_eq!(warmth.too_warm(all), Some(2), "those here count as well");
        drop(warmth);
        other.used(2, MIB);
        assert_eq!(other.too_warm(all), None, "there is room again");
        drop(other);
        assert_eq!(budget.sum.load(Ordering::Relaxed), 0);
    }
}
