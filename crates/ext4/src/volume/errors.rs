//! The reaction to damage: record it in the superblock, then continue, turn read-only, or stop, as
//! the volume's error behaviour says.
//!
//! Records go out with the next transaction, or, when there will be none, straight into the
//! superblock on the device: only the record's own fields are patched there, so that no uncommitted
//! change slips past the journal.

use crate::ErrorKind;
use blockwright_device::{DevOffset, DeviceExt, Flags, SharedDevice};
use blockwright_ondisk::ext4::superblock::{
    ErrorBehaviour, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, State,
};
use blockwright_ondisk::ext4::{BlockNo, Ino, RawSuperblock};
use std::sync::atomic::{AtomicU64, Ordering};

/// The errno-like codes of `s_*_error_errcode`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum ErrorCode {
    /// Anything else.
    Unknown = 1,
    /// A device error.
    Io = 2,
    /// A structure made no sense.
    Corrupt = 5,
    /// No space.
    NoSpace = 6,
    /// The journal gave up.
    Aborted = 12,
}

impl ErrorCode {
    fn of(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Io => ErrorCode::Io,
            ErrorKind::Corrupt => ErrorCode::Corrupt,
            ErrorKind::NoSpace => ErrorCode::NoSpace,
            ErrorKind::Poisoned => ErrorCode::Aborted,
            _ => ErrorCode::Unknown,
        }
    }
}

/// One error, as the superblock keeps the first and the last.
#[derive(Clone, Debug)]
pub struct ErrorRecord {
    seconds: u64,
    ino: Option<Ino>,
    block: Option<BlockNo>,
    op: &'static str,
    code: ErrorCode,
}

impl ErrorRecord {
    /// A record of an error met now.
    #[must_use]
    pub fn new(
        op: &'static str,
        ino: Option<Ino>,
        block: Option<BlockNo>,
        kind: ErrorKind,
    ) -> Self {
        let seconds = super::now_seconds();
        ErrorRecord {
            seconds,
            ino,
            block,
            op,
            code: ErrorCode::of(kind),
        }
    }

    /// Puts the record into a superblock: as the last error, and as the first if there was none.
    pub fn apply(&self, raw: &mut RawSuperblock) {
        let mut function = [0; 32];
        // One byte stays zero: the field is NUL-terminated.
        let name = &self.op.as_bytes()[..self.op.len().min(31)];
        function[..name.len()].copy_from_slice(name);
        let ino = self.ino.map_or(0, |i| i.0);
        let block = self.block.map_or(0, |b| b.0);
        let (low, high) = (self.seconds as u32, (self.seconds >> 32) as u8);
        if raw.error_count.get() == 0 || raw.first_error_time.get() == 0 {
            raw.first_error_time.set(low);
            raw.first_error_time_hi = high;
            raw.first_error_ino.set(ino);
            raw.first_error_block.set(block);
            raw.first_error_func = function;
            raw.first_error_line.set(0);
            raw.first_error_errcode = self.code as u8;
        }
        raw.last_error_time.set(low);
        raw.last_error_time_hi = high;
        raw.last_error_ino.set(ino);
        raw.last_error_block.set(block);
        raw.last_error_func = function;
        raw.last_error_line.set(0);
        raw.last_error_errcode = self.code as u8;
        raw.error_count.set(raw.error_count.get().saturating_add(1));
        let state = raw.state() | State::ERROR;
        raw.state.set(state.bits());
    }
}

/// Errors seen since the mount.
pub struct ErrorState {
    behaviour: ErrorBehaviour,
    count: AtomicU64,
}

impl ErrorState {
    /// No errors yet.
    #[must_use]
    pub fn new(behaviour: ErrorBehaviour) -> Self {
        ErrorState {
            behaviour,
            count: AtomicU64::new(0),
        }
    }

    /// What is done about an error.
    #[must_use]
    pub fn behaviour(&self) -> ErrorBehaviour {
        self.behaviour
    }

    /// How many errors were found since the mount.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Counts an error.
    pub(crate) fn note(&self) {
        self.count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Puts a record straight into the device's superblock, past the journal. Best effort: called when
/// things are bad already.
pub(crate) fn write_record(device: &SharedDevice, record: &ErrorRecord) {
    // Devices may have logical blocks of more than 1 KiB: read and write whole ones.
    let unit = u64::from(device.geometry().logical_block_bytes).max(1);
    let start = SUPERBLOCK_OFFSET / unit * unit;
    let end = (SUPERBLOCK_OFFSET + SUPERBLOCK_SIZE as u64).next_multiple_of(unit);
    let at = (SUPERBLOCK_OFFSET - start) as usize;
    let Ok(mut buf) = device.read_buf(DevOffset(start), (end - start) as usize) else {
        return;
    };
    let Some(place) = buf.get_mut(at..at + SUPERBLOCK_SIZE) else {
        return;
    };
    let Ok(mut raw) = RawSuperblock::read(place) else {
        return;
    };
    record.apply(&mut raw);
    raw.set_checksum();
    place.copy_from_slice(&raw.to_bytes());
    // A failure here needs no report: the caller knows of a worse one.
    let _ = device.write_at(DevOffset(start), &buf, Flags::FUA | Flags::META);
}
