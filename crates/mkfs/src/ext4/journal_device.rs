//! Makes journal devices: journals that are not on their volumes.
//!
//! # Crash order
//! The old superblock is wiped, then the whole log, because blocks of an earlier journal could be taken for a part of a later one. The superblocks come last, behind
//! a flush.

use crate::options::Before;
use crate::output::zero;
use crate::{MkfsError, Result};
use blockwright_device::{DevOffset, Flags, SharedDevice};
use blockwright_ondisk::ext4::journal_device::JournalDevice;
use std::ops::ControlFlow;

/// Fewest blocks of a journal that the kernel accepts.
const BLOCKS_MIN: u64 = 1024;
/// Most blocks, as tools make them.
const BLOCKS_MAX: u64 = 10_240_000;

blockwright_device::with_defaults! {
/// Options of a new journal device.
#[derive(Clone, Debug)]
pub struct JournalOptions {
    /// Bytes per block (1024 to 65536), which are those of the volume that will use it; 4096 when not given, or 1024 for less than 4 MiB.
    pub block_bytes: Option<u32> = None,
    /// Its size in bytes; the whole device when not given.
    pub bytes: Option<u64> = None,
    /// Label, at most 16 bytes.
    pub label: Vec<u8> = Vec::new(),
    /// UUID; random when not given.
    pub uuid: Option<[u8; 16]> = None,
    /// When it is made, in seconds since 1970.
    pub now: u64 = crate::options::seconds_now(),
    /// What the device holds before.
    pub before: Before = Before::Unknown,
}
}

/// Makes a journal device without a user.
///
/// # Errors
/// Sizes that no journal has; a device that is too small, or fails.
pub fn format_journal(device: &SharedDevice, options: &JournalOptions) -> Result<JournalDevice> {
    format_journal_watched(device, options, &|_, _| ControlFlow::Continue(()))
}

/// As [`format_journal`]. While the log is wiped, `watch` is told how many of how many bytes are, and stops the call when it breaks: first before anything is
/// written, at last before the superblocks are.
///
/// # Errors
/// As [`format_journal`]; [`MkfsError::Stopped`] when `watch` breaks. The device holds no journal then, and what it held before only if `watch` broke at the first call.
pub fn format_journal_watched(
    device: &SharedDevice,
    options: &JournalOptions,
    watch: &dyn Fn(u64, u64) -> ControlFlow<()>,
) -> Result<JournalDevice> {
    let there = device.geometry().bytes;
    let bytes = options.bytes.unwrap_or(there);
    let by_size = if bytes < BLOCKS_MIN << 12 { 1024 } else { 4096 };
    let block_bytes = options.block_bytes.unwrap_or(by_size);
    if !block_bytes.is_power_of_two() || !(1024..=65_536).contains(&block_bytes) {
        return Err(MkfsError::option(
            "-b",
            format!("block size {block_bytes} is not a power of two from 1024 to 65536"),
        ));
    }
    let blocks = (bytes / u64::from(block_bytes)).min(BLOCKS_MAX);
    if blocks < BLOCKS_MIN {
        return Err(MkfsError::TooSmall {
            blocks,
            what: "a journal, which has at least 1024",
        });
    }
    if bytes > there {
        return Err(MkfsError::option(
            "--size",
            format!("the device has {there} bytes, fewer than {bytes}"),
        ));
    }
    let mut label = [0; 16];
    match label.get_mut(..options.label.len()) {
        Some(field) => field.copy_from_slice(&options.label),
        None => return Err(MkfsError::option("-L", "a label has 16 bytes at most")),
    }
    let uuid = options
        .uuid
        .unwrap_or_else(|| *uuid::Uuid::new_v4().as_bytes());
    if uuid == [0; 16] {
        return Err(MkfsError::option(
            "-U",
            "volumes name a journal by its UUID, which is not nil",
        ));
    }
    let made = JournalDevice::new(block_bytes, blocks as u32, uuid, label, options.now)?;
    let unit = u64::from(device.geometry().logical_block_bytes);
    let mut head = made.to_head();
    head.resize((head.len() as u64).next_multiple_of(unit) as usize, 0);
    if options.before == Before::Unknown {
        let log = head.len() as u64;
        let end = blocks * u64::from(block_bytes) / unit * unit;
        let bytes = end.saturating_sub(log);
        let goes_on = |done| match watch(done, bytes) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(MkfsError::Stopped),
        };
        goes_on(0)?;
        device.write_zeroes(DevOffset(0), log)?;
        device.flush()?;
        zero(device, log, bytes, &|done| match done {
            0 => Ok(()),
            done => goes_on(done),
        })?;
        goes_on(bytes)?;
        device.flush()?;
    }
    device.write_at(DevOffset(0), &head, Flags::empty())?;
    device.flush()?;
    Ok(made)
}
