//! [`Data`]: where the data of a regular file is, and will be.
//!
//! The engine answers with places on the device, and the vfs does the I/O. Until [`Data::commit_write`], nothing on disk refers to blocks that
//! [`Data::allocate`] has returned: a crash in between frees them. A mapping holds until its generation changes.

use crate::error::{Error, ErrorKind, Result};
use crate::inode::Inode;
use crate::types::Timestamp;
use blockwright_device::{AlignedBuf, DevOffset};
use std::ops::Range;
use std::sync::Arc;

/// Where a stretch of a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Nowhere: reads as zeroes.
    Hole,
    /// Reserved in memory, not yet allocated; the bytes are in the page cache. An engine may call it a hole instead.
    Delayed,
    /// On the device from this byte on.
    Mapped(DevOffset),
    /// Allocated, but not yet written: reads as zeroes.
    Unwritten(DevOffset),
    /// Allocated, but not yet written, and without a place until then: reads as zeroes.
    Reserved,
    /// In the inode; ask [`Data::read_inline`].
    Inline,
    /// On the device, but not as the file shows it (compressed): ask [`Data::read_encoded`] for the whole stretch.
    Encoded,
}

/// One stretch of a file. It starts at or before the asked offset, and is never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First byte of the stretch in the file.
    pub offset: u64,
    /// Its length in bytes: a multiple of the block size.
    pub bytes: u64,
    /// Where it is.
    pub place: Place,
    /// Changes when the inode's mappings change in any other way than by filling holes.
    pub generation: u64,
}

impl Mapping {
    /// The stretch at `offset` of a file whose data is in its inode: the first block, and behind it a hole. No inode holds more
    /// than a block, whatever size a damaged one claims.
    #[must_use]
    pub fn of_inline(offset: u64, block_bytes: u64, generation: u64) -> Self {
        let (offset, bytes, place) = match offset < block_bytes {
            true => (0, block_bytes, Place::Inline),
            false => {
                let endless = u64::MAX / block_bytes * block_bytes;
                (block_bytes, endless - block_bytes, Place::Hole)
            }
        };
        Mapping {
            offset,
            bytes,
            place,
            generation,
        }
    }
}

/// Why [`Data::allocate`] is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// Writeback of cached pages: every hole in the range has been reserved.
    Writeback,
    /// A direct write: holes are not reserved, `NoSpace` is possible.
    Direct,
}

/// Where one stretch of dirty data must be written, and whether a commit must follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteTarget {
    /// First byte in the file, a multiple of the block size.
    pub offset: u64,
    /// Length in bytes, a multiple of the block size. May be less than asked for; ask again.
    pub bytes: u64,
    /// Where to write it. `None` when the data belongs in the inode: call [`Data::write_inline`] instead of writing to the device.
    pub device: Option<DevOffset>,
    /// The blocks are new or unwritten, or the size grows: commit or abandon the target after the write. Without this flag, call
    /// neither.
    pub commit: bool,
    /// The blocks are new: all of them must be written, with zeroes where the cache holds nothing.
    pub fresh: bool,
}

/// The most targets that [`Data::allocate_runs`] gives at once.
pub const TARGETS_MAX: usize = 512;

/// The next part of the ranges behind these targets, for [`Data::allocate_runs`].
#[must_use]
pub fn uncovered(ranges: &[Range<u64>], targets: &[WriteTarget]) -> Option<Range<u64>> {
    let end = targets
        .last()
        .map_or(0, |t| t.offset.saturating_add(t.bytes));
    let next = ranges.get(ranges.partition_point(|r| r.end <= end))?;
    Some(next.start.max(end)..next.end)
}

/// One of the arguments of [`Data::commit_writes`].
#[derive(Clone, Copy)]
pub struct CommitWrite<'a> {
    /// The file.
    pub inode: &'a Arc<Inode>,
    /// Where the data was written.
    pub target: &'a WriteTarget,
    /// As for [`Data::commit_write`].
    pub data_end: u64,
}

/// How [`Data::fallocate`] changes a range. The vfs has written back and dropped its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallocMode {
    /// Allocate unwritten blocks for the holes.
    Allocate {
        /// Do not grow the file.
        keep_size: bool,
    },
    /// Free whole blocks in the range. The vfs has zeroed partial blocks.
    PunchHole,
    /// Make the range read as zeroes, with blocks kept or allocated, unwritten.
    ZeroRange {
        /// Do not grow the file.
        keep_size: bool,
    },
    /// Remove the range. Data behind it moves down. Block-aligned.
    CollapseRange,
    /// Insert a hole. Data behind it moves up. Block-aligned.
    InsertRange,
}

/// The data of regular files.
pub trait Data: Send + Sync {
    /// The largest size in bytes that this inode's format allows a regular file.
    fn file_bytes_max(&self, inode: &Inode) -> u64;

    /// Where the file's byte `offset` is, and how far the same holds. A contiguous stretch is reported for at least `bytes`. Behind
    /// the last extent there are only holes; a hole may be reported in parts.
    ///
    /// # Errors
    /// `KeyRequired` for an encrypted file; `Corrupt` and `Io`.
    fn map(&self, inode: &Arc<Inode>, offset: u64, bytes: u64) -> Result<Mapping>;

    /// The stretch at `offset`, if an overwrite of it needs nothing of the engine: its blocks hold data, stay where they are, and
    /// lie below the size on disk. A contiguous stretch is reported for at least `bytes`, but ends at the size on disk, even inside a
    /// block. `None`, or a stretch that does not reach `offset`, means that there is none. Asked only if
    /// [`Format::keeps_places`](super::Format::keeps_places).
    ///
    /// # Errors
    /// As [`Data::map`]; those of a file whose contents cannot be changed.
    fn extent_in_place(
        &self,
        _inode: &Arc<Inode>,
        _offset: u64,
        _bytes: u64,
    ) -> Result<Option<Mapping>> {
        Ok(None)
    }

    /// In how many pieces a regular file is on the device, as the format counts them, for statistics. `None` when it has none, when
    /// it is being changed, or when more than `leaves` nodes had to be looked at. `leaves` is counted down.
    fn extents(&self, _inode: &Arc<Inode>, _leaves: &mut usize) -> Option<u64> {
        None
    }

    /// The bytes of an inline file, at most its size.
    ///
    /// # Errors
    /// As [`Data::map`].
    fn read_inline(&self, inode: &Arc<Inode>) -> Result<Vec<u8>>;

    /// The bytes of a stretch that [`Data::map`] calls [`Place::Encoded`], as the file shows them: as many as the mapping has.
    /// `offset` is the mapping's.
    ///
    /// # Errors
    /// As [`Data::map`].
    fn read_encoded(&self, inode: &Arc<Inode>, _offset: u64) -> Result<AlignedBuf> {
        Err(Error::new(ErrorKind::Unsupported, "read encoded data").ino(inode.ino()))
    }

    /// Refuses a file whose contents this engine cannot change, by name. Asked when a file is opened for writing: a later refusal
    /// would come too late for a mapping or for the front end's cache.
    ///
    /// # Errors
    /// `Unsupported`, `NotPermitted`, `KeyRequired`.
    fn check_changeable(&self, _inode: &Arc<Inode>) -> Result<()> {
        Ok(())
    }

    /// Decides where the start of `range` (block-aligned) is written. `data_end` is the file's size as far as this write knows it,
    /// so that the engine can tell whether the size on disk grows.
    ///
    /// # Errors
    /// `NoSpace` and `QuotaExceeded` with [`Intent::Direct`]; those of a file whose contents cannot be changed.
    fn allocate(
        &self,
        inode: &Arc<Inode>,
        range: Range<u64>,
        data_end: u64,
        intent: Intent,
    ) -> Result<WriteTarget>;

    /// As [`Data::allocate`] of a direct write, for all of a hole, if nothing has to be waited for: no device, no lock that is held
    /// across I/O, no thread that waits for direct I/O. Preallocated blocks can be handed out so. `None` changed nothing.
    ///
    /// Always `None` where the size on disk would pass an end inside a block ([`Data::open_end`]), because that block may be dirty in
    /// the cache; and behind [`Data::file_bytes_max`].
    fn allocate_nowait(
        &self,
        _inode: &Arc<Inode>,
        _range: &Range<u64>,
        _data_end: u64,
    ) -> Option<WriteTarget> {
        None
    }

    /// As [`Data::allocate`] for several ranges of one file, ascending and apart. The targets cover them without gaps, from the first
    /// on. There is at least one. Ask again for the rest.
    ///
    /// # Errors
    /// When there is no first target.
    fn allocate_runs(
        &self,
        inode: &Arc<Inode>,
        ranges: &[Range<u64>],
        data_end: u64,
        intent: Intent,
    ) -> Result<Vec<WriteTarget>> {
        let mut targets: Vec<WriteTarget> = Vec::with_capacity(ranges.len());
        while targets.len() < TARGETS_MAX
            && let Some(range) = uncovered(ranges, &targets)
        {
            match self.allocate(inode, range, data_end, intent) {
                Ok(target) => {
                    targets.push(target);
                    if target.device.is_none() || target.bytes == 0 {
                        break;
                    }
                }
                Err(e) if targets.is_empty() => return Err(e),
                Err(_) => break,
            }
        }
        Ok(targets)
    }

    /// Commits a target whose data is on the device: inserts or converts its blocks, and raises the size on disk to
    /// `min(data_end, the target's end)` if that is more.
    ///
    /// # Errors
    /// Those of the device and of damaged metadata.
    fn commit_write(&self, inode: &Arc<Inode>, target: &WriteTarget, data_end: u64) -> Result<()>;

    /// Commits several targets of one or several inodes, whose writes ended at about the same time, in as few transactions as the
    /// format can. Gives one result for each, in their order. A target that fails does not keep the others from being committed.
    fn commit_writes(&self, writes: &[CommitWrite<'_>]) -> Vec<Result<()>> {
        writes
            .iter()
            .map(|w| self.commit_write(w.inode, w.target, w.data_end))
            .collect()
    }

    /// Whether [`Data::commit_writes`] most likely begins at once, and never waits for direct I/O, not even for reads. A thread that
    /// has direct I/O to complete may then commit in between.
    fn commits_at_once(&self) -> bool {
        false
    }

    /// Gives up a target whose data could not be written. Fresh blocks become holes.
    fn abandon_write(&self, inode: &Arc<Inode>, target: &WriteTarget);

    /// The size on disk, if it lies inside a block outside the inode.
    ///
    /// Behind it that block may hold anything: data of an append that a crash cut off, or truncated bytes. These would show once the
    /// size on disk is larger. As soon as the file has grown in memory, the cache has zeroes or new bytes there, and the block is
    /// dirty. So the vfs writes that block before it asks for anything that makes the size on disk larger.
    fn open_end(&self, inode: &Arc<Inode>) -> Option<u64>;

    /// Replaces an inline file's bytes, in a transaction of its own. `data_end` becomes the size on disk. `false`: the file
    /// has left its inode since [`Data::allocate_runs`] answered, because a writer made it grow meanwhile, and nothing was
    /// written; its data needs a place on the device now.
    ///
    /// # Errors
    /// Those of the device and of damaged metadata.
    fn write_inline(&self, inode: &Arc<Inode>, bytes: &[u8], data_end: u64) -> Result<bool>;

    /// Changes the size, and sets mtime and ctime. Blocks behind the new end are freed, with the inode on the orphan list if that takes
    /// several transactions. The inode and invalidate locks are held exclusively.
    ///
    /// The vfs has dropped pages behind `size` and has waited for writeback. It will write the zeroed rest of the last block.
    ///
    /// # Errors
    /// `NoSpace`: nothing was changed.
    fn truncate(&self, inode: &Arc<Inode>, size: u64, now: Timestamp) -> Result<()>;

    /// Refuses what [`Data::fallocate`] cannot do to this file. Asked before the vfs zeroes partial blocks, so that a refusal leaves the
    /// file as it was.
    ///
    /// # Errors
    /// `Unsupported`.
    fn check_fallocate(&self, _inode: &Arc<Inode>, _mode: FallocMode) -> Result<()> {
        Ok(())
    }

    /// Changes a range as [`FallocMode`] says, and the size on disk with it. The vfs sets the size in memory afterwards. The inode and
    /// invalidate locks are held exclusively.
    ///
    /// # Errors
    /// `NoSpace`, `QuotaExceeded`.
    fn fallocate(
        &self,
        inode: &Arc<Inode>,
        range: Range<u64>,
        mode: FallocMode,
        now: Timestamp,
    ) -> Result<()>;
}
