//! A few blocks in huge pages, for large transfers that are over soon.
//!
//! A device's queue holds a limited number of segments (virtio-blk's often 256 in all). A buffer of pages that lie anywhere in memory is
//! one segment for each page, so that a few large requests fill the queue; memory that lies together is one segment.
//! Huge pages are the only such memory that a process can ask for. Where there are none these blocks are as good as others.
//!
//! Huge pages that were received stay, at most [`REGIONS_MAX`], so none is ever split. A caller that finds no free block takes an ordinary
//! buffer. The lock is a leaf, held for bookkeeping, and for the mapping of a region, which happens [`REGIONS_MAX`] times.

use super::pages;
use crate::lender::Lender;
use parking_lot::Mutex;
use std::ops::Range;
use std::ptr::NonNull;

/// What huge pages are aligned to, and as long as, on most machines.
const REGION_BYTES: usize = 2 << 20;
/// A block; also the least that is worth one.
const BLOCK_BYTES: usize = 256 << 10;
const BLOCK_BYTES_LEAST: usize = 128 << 10;
const BLOCKS: u32 = (REGION_BYTES / BLOCK_BYTES) as u32;
/// Two windows of a stream's readahead.
const REGIONS_MAX: usize = 4;

struct Region {
    start: NonNull<u8>,
    /// A bit for each block.
    free: u32,
}

// SAFETY: a region is plain memory without a tie to a thread.
unsafe impl Send for Region {}

static REGIONS: Mutex<Vec<Region>> = Mutex::new(Vec::new());

/// A block that is in use, which is free again when this is dropped.
pub(crate) struct Lease {
    region: usize,
    block: u32,
}

impl Lender for Lease {
    fn give_out(&self, _range: Range<usize>) -> bool {
        false
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        REGIONS.lock()[self.region].free |= 1 << self.block;
    }
}

/// Memory of [`REGION_BYTES`] that asks for a huge page; `None` when the system has none.
fn map() -> Option<NonNull<u8>> {
    let start = pages::map_aligned(REGION_BYTES)?;
    // SAFETY: what was just mapped. What is no huge page serves as well.
    unsafe { pages::huge(start.as_ptr(), REGION_BYTES) };
    Some(start)
}

/// A free block for this many bytes, and what keeps it. It contains anything, but is initialised: zero when it came, and only written since.
pub(crate) fn take(len: usize) -> Option<(NonNull<u8>, Lease)> {
    if !(BLOCK_BYTES_LEAST..=BLOCK_BYTES).contains(&len) {
        return None;
    }
    let mut regions = REGIONS.lock();
    let index = match regions.iter().position(|region| region.free != 0) {
        Some(index) => index,
        None if regions.len() < REGIONS_MAX => {
            let free = (1 << BLOCKS) - 1;
            regions.push(Region {
                start: map()?,
                free,
            });
            regions.len() - 1
        }
        None => return None,
    };
    let region = &mut regions[index];
    let block = region.free.trailing_zeros();
    region.free &= !(1 << block);
    // SAFETY: the block lies within its region.
    let ptr = unsafe { region.start.add(block as usize * BLOCK_BYTES) };
    Some((
        ptr,
        Lease {
            region: index,
            block,
        },
    ))
}

#[cfg(test)]
mod tests {
    use crate::AlignedBuf;
    use std::collections::HashSet;

    #[test]
    fn blocks_are_disjoint_few_and_used_again() {
        // More than there are; the rest are ordinary pages, and no caller can tell the difference.
        let mut bufs: Vec<AlignedBuf> = (0..64)
            .map(|_| AlignedBuf::for_transfer(256 << 10))
            .collect();
        for (n, buf) in bufs.iter_mut().enumerate() {
            assert_eq!(buf.len(), 256 << 10);
            buf.fill(n as u8);
        }
        for (n, buf) in bufs.iter().enumerate() {
            assert!(buf.iter().all(|byte| *byte == n as u8));
        }
        let regions: HashSet<usize> = super::REGIONS
            .lock()
            .iter()
            .map(|region| region.start.addr().get())
            .collect();
        assert_eq!(regions.len(), super::REGIONS_MAX);
        let inside = |buf: &AlignedBuf| {
            regions.contains(&(buf.as_ptr().addr() / super::REGION_BYTES * super::REGION_BYTES))
        };
        assert_eq!(bufs.iter().filter(|buf| inside(buf)).count(), 32);
        drop(bufs);
        assert!(inside(&AlignedBuf::for_transfer(200_000)));
        assert!(!inside(&AlignedBuf::for_transfer(4096)));
        assert!(!inside(&AlignedBuf::for_transfer(1 << 20)));
        assert!(
            super::REGIONS
                .lock()
                .iter()
                .all(|region| region.free == 0xFF)
        );
    }
}
