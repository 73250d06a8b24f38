//! The pool of buffers' memory.
//!
//! Three costs are saved. The C library puts a page-aligned 4 KiB allocation into 8 KiB of heap,
//! because its own header breaks the alignment of the next one; a large buffer that is given
//! back to the kernel costs a page fault per page when it is allocated again, more than the copy
//! it is used for; and the first touch of new memory costs as much, while a request waits for the buffer.
//!
//! Sizes are rounded up to a power of two, 4 KiB to 1 MiB, when that wastes at most a quarter. These are
//! carved from regions of 1 MiB by the buddy scheme ([`buddy`]), all sizes from the same ones, so
//! that what one size gives back another can have. New regions come from [`supply`], which has them ready. What is free stays
//! warm, up to [`WARM_BYTES_MAX`]; beyond that free blocks give their memory back to the system, the largest first,
//! and some unused regions are kept while others are unmapped. So small buffers that live for long, or are dropped here
//! and there, do not hold the memory of what was around them. Other sizes are not pooled.
//!
//! Invariant: all memory here was zero when it came and was only written since, or is zero again, so it is initialised,
//! with unspecified contents.
//!
//! Locks: that of the pool, then that of the supply, and that of [`huge`], which is taken alone; leaves, held for bookkeeping and, of the first, while memory that is free goes
//! back, at most [`COLD_STEPS`] blocks at a time.

mod buddy;
pub(crate) mod huge;
mod pages;
mod supply;

use buddy::{Block, Buddy, PAGES};
use parking_lot::Mutex;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::HashMap;
use std::ptr::NonNull;
use supply::Region;

/// Alignment of every buffer, in bytes.
pub const BUFFER_ALIGN: usize = 4096;

/// The unit of the buddy scheme, and the smallest buffer.
const PAGE: usize = BUFFER_ALIGN;
const REGION_BYTES: usize = PAGE * PAGES;
/// Idle regions kept, at most.
const IDLE_MAX: usize = 16;
/// Free memory that is kept: more than a page cache makes free at once ahead of its writers, or they would take cold memory all
/// the time.
const WARM_BYTES_MAX: usize = 24 << 20;
/// This many blocks give theirs back at once.
const COLD_STEPS: usize = 8;

struct Pool {
    buddy: Buddy,
    /// By the buddy's number.
    regions: Vec<Option<Region>>,
    /// A region's number by its address.
    numbers: HashMap<usize, u32>,
}

static POOL: Mutex<Option<Pool>> = Mutex::new(None);

/// The order of the block that holds `len` bytes without much waste.
fn order_of(len: usize) -> Option<u32> {
    if len > REGION_BYTES {
        return None;
    }
    let size = len.next_power_of_two().max(PAGE);
    if size > PAGE && size - len > size / 4 {
        return None;
    }
    Some((size / PAGE).trailing_zeros())
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

impl Pool {
    fn new() -> Self {
        Pool {
            buddy: Buddy::new(),
            regions: Vec::new(),
            numbers: HashMap::new(),
        }
    }

    fn add(&mut self, region: Region) {
        let number = self.buddy.add();
        let index = number as usize;
        if self.regions.len() <= index {
            self.regions.resize_with(index + 1, || None);
        }
        self.numbers
            .insert(region.start().as_ptr() as usize, number);
        self.regions[index] = Some(region);
    }

    /// Gives back memory of what is free, if there is too much.
    fn cool(&mut self) {
        if self.buddy.idle() > IDLE_MAX {
            let number = self.buddy.remove_idle().expect("some are idle");
            let region = self.regions[number as usize].take().expect("it was added");
            self.numbers.remove(&(region.start().as_ptr() as usize));
        }
        for _ in 0..COLD_STEPS {
            if self.buddy.warm() * PAGE <= WARM_BYTES_MAX {
                return;
            }
            let block = self.buddy.forget().expect("what is warm is found");
            let region = self.regions[block.region as usize].as_ref();
            let region = region.expect("blocks are of regions that are there");
            // SAFETY: the block is free: no reference exists, and it counts as untouched, so zero is what it may be.
            unsafe { region.cool(block.page as usize * PAGE, PAGE << block.order) };
        }
    }

    fn address(&self, block: Block) -> NonNull<u8> {
        let region = self.regions[block.region as usize]
            .as_ref()
            .expect("blocks are of regions that are there");
        // SAFETY: a block lies within its region.
        unsafe { region.start().add(block.page as usize * PAGE) }
    }
}

/// Initialised memory for `len` bytes, aligned to [`BUFFER_ALIGN`], and whether it is all zero.
/// To be given back with [`give`] and the same length.
pub(crate) fn take(len: usize) -> (NonNull<u8>, bool) {
    let Some(order) = order_of(len) else {
        return (alloc(len), true);
    };
    let mut pool = POOL.lock();
    if let Some(pool) = &mut *pool
        && let Some((block, untouched)) = pool.buddy.take(order)
    {
        return (pool.address(block), untouched);
    }
    drop(pool);
    let Some(region) = supply::take() else {
        handle_alloc_error(layout(REGION_BYTES));
    };
    let mut pool = POOL.lock();
    let pool = pool.get_or_insert_with(Pool::new);
    pool.add(region);
    let (block, untouched) = pool
        .buddy
        .take(order)
        .expect("a new region has a block of every order");
    (pool.address(block), untouched)
}

/// Takes memory back.
///
/// # Safety
/// `ptr` came from [`take`] with the same `len`, is given back once, and not used afterwards.
pub(crate) unsafe fn give(ptr: NonNull<u8>, len: usize) {
    let Some(order) = order_of(len) else {
        // SAFETY: `take` allocated it with this very layout, because its length has no order.
        return unsafe { dealloc(ptr.as_ptr(), layout(len)) };
    };
    let address = ptr.as_ptr() as usize;
    let start = address - address % REGION_BYTES;
    let mut pool = POOL.lock();
    let pool = pool
        .as_mut()
        .expect("memory is given back after it was taken");
    let region = pool.numbers[&start];
    pool.buddy.give(Block {
        region,
        page: ((address - start) / PAGE) as u32,
        order,
    });
    pool.cool();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_waste_little() {
        assert_eq!(order_of(0), Some(0));
        assert_eq!(order_of(512), Some(0));
        assert_eq!(order_of(4097), None);
        assert_eq!(order_of(6144), Some(1));
        assert_eq!(order_of(1 << 20), Some(8));
        assert_eq!(order_of((1 << 20) + 1), None);
        assert_eq!(order_of(usize::MAX), None);
    }

    #[test]
    fn buffers_are_aligned_disjoint_and_zero_when_they_say_so() {
        // Several threads, as the pool is one for all tests of the process anyway.
        let work = |seed: usize| {
            let mut taken = Vec::new();
            for round in 0..2000 {
                let len = [1, 4096, 8192, 30_000, 65536, 100, 200_000, 3 << 20][(round * seed) % 8];
                let (ptr, zero) = take(len);
                assert_eq!(ptr.as_ptr() as usize % BUFFER_ALIGN, 0);
                // SAFETY: `take` gave `len` initialised bytes to this test alone.
                let bytes = unsafe { std::slice::from_raw_parts_mut(ptr.as_ptr(), len) };
                assert!(!zero || bytes.iter().all(|byte| *byte == 0));
                let value = (round + seed) as u8 | 1;
                bytes.fill(value);
                taken.push((ptr, len, value));
                if round % 3 != 0 {
                    let (ptr, len, value) = taken.swap_remove((round * 7) % taken.len());
                    // SAFETY: as above.
                    let bytes = unsafe { std::slice::from_raw_parts(ptr.as_ptr(), len) };
                    assert!(bytes.iter().all(|byte| *byte == value), "overlap at {len}");
                    // SAFETY: taken with this length above, given back once.
                    unsafe { give(ptr, len) };
                }
                if taken.len() > 40 {
                    for (ptr, len, value) in taken.drain(..) {
                        // SAFETY: as above.
                        let bytes = unsafe { std::slice::from_raw_parts(ptr.as_ptr(), len) };
                        assert!(bytes.iter().all(|byte| *byte == value), "overlap at {len}");
                        // SAFETY: as above.
                        unsafe { give(ptr, len) };
                    }
                }
            }
            for (ptr, len, _) in taken {
                // SAFETY: as above.
                unsafe { give(ptr, len) };
            }
        };
        std::thread::scope(|scope| {
            for seed in [1, 3, 5] {
                scope.spawn(move || work(seed));
            }
        });
    }

    #[test]
    fn what_nobody_uses_goes_back_to_the_system() {
        let regions = || POOL.lock().as_ref().map_or(0, |pool| pool.numbers.len());
        let taken: Vec<_> = (0..4 * IDLE_MAX).map(|_| take(1 << 20).0).collect();
        assert!(regions() >= 4 * IDLE_MAX);
        for ptr in taken {
            // SAFETY: taken with this length above, given back once.
            unsafe { give(ptr, 1 << 20) };
        }
        // Other tests of this process hold some meanwhile.
        assert!(regions() < 3 * IDLE_MAX, "{}", regions());
    }

    #[test]
    fn small_buffers_that_stay_do_not_hold_what_was_around_them() {
        const REGIONS: usize = 64;
        let mut taken: Vec<_> = (0..REGIONS * PAGES).map(|_| take(PAGE).0).collect();
        // One buffer of each region or so stays.
        let stay = taken.split_off(taken.len() - 1);
        let mut stay: Vec<_> = stay.into_iter().collect();
        for (at, ptr) in taken.into_iter().enumerate() {
            if at % PAGES == 7 {
                stay.push(ptr);
            } else {
                // SAFETY: taken with this length above, given back once.
                unsafe { give(ptr, PAGE) };
            }
        }
        let warm = POOL.lock().as_ref().unwrap().buddy.warm() * PAGE;
        // Others of this process give back meanwhile; without cooling it is some 60 MiB.
        assert!(warm <= WARM_BYTES_MAX + (8 << 20), "{warm}");
        for ptr in stay {
            // SAFETY: as above.
            unsafe { give(ptr, PAGE) };
        }
    }
}
