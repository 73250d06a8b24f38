//! New regions, populated before they are needed.
//!
//! The first touch of a page is an exception and the clearing of the page; a server meets it while a client waits. So once a
//! process uses more than a few regions, some more are mapped and populated ahead by a thread that ends when they are ready.
//! Populating holds the lock of the process's memory map, which others need for a moment whenever the C library grows a heap: so it is done
//! in small steps.

use super::REGION_BYTES;
use super::pages;
use parking_lot::Mutex;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A process that has used this many regions is one that will use more.
const FEW: usize = 4;
/// Regions that are ready.
const READY_MAX: usize = 6;
/// Fewer are made up to that.
const READY_LOW: usize = 4;
/// What is populated in one step, in bytes.
const STEP_BYTES: usize = 64 << 10;

/// Memory of [`REGION_BYTES`], aligned to as much; zero when it comes. Unmapped when dropped.
pub(super) struct Region(NonNull<u8>);

// SAFETY: a region is memory without other references; it has no tie to a thread.
unsafe impl Send for Region {}

static READY: Mutex<Vec<Region>> = Mutex::new(Vec::new());
/// Whether a thread fills.
static FILLING: AtomicBool = AtomicBool::new(false);
static USED: AtomicUsize = AtomicUsize::new(0);

impl Region {
    /// `None` when the system has no memory for it, or the process may not have more.
    fn map() -> Option<Self> {
        pages::map_aligned(REGION_BYTES).map(Region)
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.0
    }

    /// Gives the memory of a part back; it is zero then.
    ///
    /// # Safety
    /// The part lies within the region at whole pages, and no reference to it exists.
    pub(super) unsafe fn cool(&self, at: usize, bytes: usize) {
        // SAFETY: promised by the caller.
        unsafe { pages::clear(self.0.as_ptr().add(at), bytes) };
    }

    /// Has the kernel put memory there. One that cannot (it is older than Linux 5.14, or has none) leaves it to the first touch.
    fn populate(&self) {
        for at in (0..REGION_BYTES).step_by(STEP_BYTES) {
            // SAFETY: within the region; contents stay as they are.
            if !unsafe { pages::populate(self.0.as_ptr().add(at), STEP_BYTES) } {
                return;
            }
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and a dropped region has no user.
        unsafe { pages::unmap(self.0, REGION_BYTES) };
    }
}

/// A region. `None` when there is no memory.
pub(super) fn take() -> Option<Region> {
    let (ready, left) = {
        let mut ready = READY.lock();
        (ready.pop(), ready.len())
    };
    if USED.fetch_add(1, Ordering::Relaxed) >= FEW && left < READY_LOW {
        fill_behind();
    }
    ready.or_else(Region::map)
}

/// Starts a thread that fills, unless there is one.
fn fill_behind() {
    if FILLING.swap(true, Ordering::Acquire) {
        return;
    }
    let thread = std::thread::Builder::new()
        .name("bw-memory".to_owned())
        .spawn(fill);
    if thread.is_err() {
        FILLING.store(false, Ordering::Release);
    }
}

fn fill() {
    while READY.lock().len() < READY_MAX
        && let Some(region) = Region::map()
    {
        region.populate();
        READY.lock().push(region);
    }
    FILLING.store(false, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_aligned_zero_and_writable() {
        let mut regions: Vec<Region> = (0..4 * READY_MAX).map(|_| take().unwrap()).collect();
        for region in &mut regions {
            let start = region.start().as_ptr();
            assert_eq!(start as usize % REGION_BYTES, 0);
            // SAFETY: a region is so long, initialised by the kernel, and this test's alone.
            let bytes = unsafe { std::slice::from_raw_parts_mut(start, REGION_BYTES) };
            assert!(bytes.iter().all(|byte| *byte == 0));
            bytes.fill(7);
        }
        drop(regions);
        // Some are ready at last, and never too many.
        let ready = (0..5000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            take().is_some() && READY.lock().len() >= READY_LOW - 1
        });
        assert!(ready);
        assert!(READY.lock().len() <= READY_MAX);
    }
}
