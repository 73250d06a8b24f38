//! Normalising a request: how much of the file around it to allocate at once, and where in that window a
//! run goes that is shorter. In 64 bits, so that nothing overflows at the end of the file's blocks.

use blockwright_ondisk::ext4::FileBlock;
use std::ops::Range;

/// The largest window, in blocks, for writes that append: one extent's worth.
const APPEND_WINDOW_MAX: u64 = 32768;
/// The largest window, in bytes, for writes elsewhere.
const SPARSE_WINDOW_BYTES_MAX: u64 = 8 << 20;
/// Files of this many bytes that are appended to get the largest window.
const LONG_BYTES: u64 = 16 << 20;
/// The smallest window, in bytes.
const WINDOW_BYTES_MIN: u64 = 64 << 10;
/// Behind the last block a file can have.
const FILE_BLOCKS_MAX: u64 = 1 << 32;

/// Whether a request continues at a file's end: nothing is allocated behind it, and it begins where the
/// last one ended. The size in memory does not tell: writeback is far behind it.
pub(crate) fn appends(
    at: FileBlock,
    len: u32,
    file_blocks: u64,
    hole: &Range<u64>,
    before: Option<FileBlock>,
) -> bool {
    let end = at.0.saturating_add(u64::from(len));
    end >= file_blocks || hole.end >= file_blocks && before.unwrap_or_default() == at
}

/// The window of logical blocks for a request at `at`, given the file's size in blocks as far as it is
/// known, the hole the request lies in, and how many blocks there are to spare. Contains the request; not
/// clipped by preallocations.
pub(crate) fn window(
    at: FileBlock,
    len: u32,
    file_blocks: u64,
    appends: bool,
    hole: Range<u64>,
    spare: u64,
    block_bits: u32,
) -> Range<u64> {
    let end = at.0.saturating_add(u64::from(len));
    let max = if appends {
        APPEND_WINDOW_MAX
    } else {
        SPARSE_WINDOW_BYTES_MAX >> block_bits
    };
    let min = (WINDOW_BYTES_MIN >> block_bits).max(1);
    let chunk = file_blocks
        .max(end)
        .checked_next_power_of_two()
        .unwrap_or(max)
        .clamp(min, max.max(min));
    // A file that has grown so far is likely to become long: its first extent should be a whole one, too.
    let long = appends && file_blocks.max(end) << block_bits >= LONG_BYTES;
    let chunk = if long { max } else { chunk };
    let start = at.0 / chunk * chunk;
    let mut whole = start..start.saturating_add(chunk).min(FILE_BLOCKS_MAX).max(end);
    if whole.end - whole.start > spare {
        // A volume that fills up: what lies before is asked for less often than what comes behind.
        whole = at.0..at.0.saturating_add(spare).min(whole.end).max(end);
    }
    whole.start.max(hole.start).min(at.0)..whole.end.min(hole.end).max(end)
}

/// Where a run of `got` blocks, shorter than the window, begins in the file: so that it covers the
/// request and as much of the window as possible, preferring the window's end.
pub(crate) fn place(at: FileBlock, len: u32, got: u32, window: &Range<u64>) -> FileBlock {
    let (got, end) = (u64::from(got), at.0 + u64::from(len));
    if got >= window.end - window.start {
        return FileBlock(window.start);
    }
    let at_end = window.end - got;
    if at_end <= at.0 && end <= window.end {
        FileBlock(at_end)
    } else if window.start + got >= end {
        FileBlock(window.start)
    } else {
        at
    }
}
