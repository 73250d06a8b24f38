//! [`Space`]: room, and the limits on it.
//!
//! A cached write is refused when it is made, not when it is written back: each hole under a dirty page has been reserved. So writeback
//! fails for lack of room only where the engine could not keep its promise.

use crate::error::{Error, ErrorKind, Result};
use crate::inode::Inode;
use crate::quota;
use crate::types::StatFs;
use std::ops::Range;
use std::sync::Arc;

/// The size that a mounted volume is to get, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NewSize {
    /// This many.
    Bytes(u64),
    /// So many more than it has.
    More(u64),
    /// All that the device has.
    Fill,
}

/// What a growth came to, in bytes of the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grown {
    /// Before.
    pub before: u64,
    /// Now.
    pub now: u64,
}

/// Room on the volume: promised to cached data, limited by quota, given back to the device.
pub trait Space: Send + Sync {
    /// How full the volume is. Reserved blocks are not free.
    ///
    /// # Errors
    /// `Corrupt` and `Io`.
    fn statfs(&self) -> Result<StatFs>;

    /// Reserves room for every hole in the range that has none reserved yet. The range is aligned to blocks.
    ///
    /// In a file with inline data the range may end at any byte. While the data fits the inode, only the inode's own room is taken.
    /// Otherwise the data has a block afterwards.
    ///
    /// # Errors
    /// `NoSpace`, `QuotaExceeded`: nothing was reserved. Metadata that the range needs may have been made.
    fn reserve(&self, inode: &Arc<Inode>, range: Range<u64>) -> Result<()>;

    /// As [`Space::reserve`]. True if all of the range was a hole without a reservation, so that it holds only zeroes. False
    /// when the engine does not know.
    ///
    /// # Errors
    /// As [`Space::reserve`].
    fn reserve_hole(&self, inode: &Arc<Inode>, range: Range<u64>) -> Result<bool> {
        self.reserve(inode, range).map(|()| false)
    }

    /// Gives back what [`Space::reserve`] took for delayed blocks in the range: their pages were dropped unwritten.
    fn unreserve(&self, inode: &Arc<Inode>, range: Range<u64>);

    /// Whether writeback may move the file's data into the inode, where it is not now, and give back what was reserved. A thread
    /// that makes such a file larger owns its writeback until it has grown.
    fn may_go_inline(&self, _inode: &Arc<Inode>) -> bool {
        false
    }

    /// Sets whether blocks are placed at writeback (the default) or by [`Space::reserve`]. Called only if
    /// [`Format::reserve_allocates`](super::Format::reserve_allocates) says that the engine can do the latter.
    fn set_delayed_allocation(&self, _on: bool) {}

    /// The last writer closed the file: preallocated blocks may go.
    fn release_write(&self, _inode: &Arc<Inode>) {}

    /// Prepares for a change that writes `bytes` of data. An engine that writes out of place sees to it that these bytes, and those
    /// that are dirty in the cache, have room when they are written back. The caller holds no lock and owns no file's writeback: the
    /// engine may clean, and call its [`Host`](super::Host).
    fn make_room(&self, _bytes: u64) {}

    /// How many bytes may be dirty in the cache or on their way to the device, as far as the engine has room to put them. Asked after
    /// [`Space::make_room`]. The limits of the mount options hold in any case.
    fn unwritten_bytes_max(&self) -> u64 {
        u64::MAX
    }

    /// Whether the owner of a file may have this many more bytes. Nothing is reserved.
    ///
    /// # Errors
    /// `QuotaExceeded` if not.
    fn check_quota(&self, _inode: &Arc<Inode>, _bytes: u64) -> Result<()> {
        Ok(())
    }

    /// What is used and allowed, by id. `None` when the volume does not count by this kind.
    ///
    /// # Errors
    /// `Corrupt` and `Io`.
    fn quotas(&self, _kind: quota::Kind) -> Result<Option<Vec<quota::Quota>>> {
        Ok(None)
    }

    /// Sets what an id may have. The vfs has checked that the limits make sense and that the volume is writable.
    ///
    /// # Errors
    /// `Unsupported` when the volume does not count by this kind.
    fn set_quota_limits(
        &self,
        _kind: quota::Kind,
        _id: u32,
        _limits: &quota::Limits,
    ) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "set quota"))
    }

    /// Makes the volume larger while it is in use, and the device before where that is a file. The volume may be a little smaller than asked.
    ///
    /// # Errors
    /// `Unsupported` where the format or the volume's layout does not allow it, `Invalid` for a smaller size, `NoSpace` where the journal is too
    /// small: nothing was changed.
    fn grow(&self, _size: NewSize) -> Result<Grown> {
        Err(Error::new(ErrorKind::Unsupported, "grow"))
    }

    /// Discards unused blocks in the byte range of the device, in runs of at least `bytes_min`. Earlier frees are made durable first.
    /// Returns how many bytes were discarded.
    ///
    /// # Errors
    /// `Invalid` for a range that begins behind the end or is shorter than a block.
    fn trim(&self, range: Range<u64>, bytes_min: u64) -> Result<u64>;
}
