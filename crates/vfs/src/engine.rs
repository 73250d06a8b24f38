//! The trait a format implements.
//!
//! The vfs owns locks, caches and all data I/O; an engine owns the format. The engine is asked for
//! *mappings* and never sees file data (but for inline data, which lives in metadata).
//!
//! # Locking
//! The vfs holds the inode locks named at each method when it calls; the engine takes only locks of
//! the ranks "engine gate" and below (see `vfs::locks`). No page or table lock is ever held
//! across a call. In-memory attributes ([`Inode::attr`]) are the truth; the engine persists
//! them whenever it writes the inode, and keeps for itself what must lag behind (the size on disk).
//!
//! # A buffered write, end to end
//! 1. [`Engine::reserve`] at write time: room for every hole in the range, or `NoSpace` now.
//! 2. Later, writeback takes a dirty run and calls [`Engine::allocate`]: blocks for delayed ranges
//!    are taken in memory only; nothing on disk refers to them yet.
//! 3. The vfs writes the data to the device.
//! 4. [`Engine::commit_write`]: one short transaction makes blocks, extents and size visible. So a
//!    crash exposes either the old state or the new data, never stale blocks.
//!
//! A direct write is steps 2–4 with `Intent::Direct`, and step 1 folded into `allocate`.

use crate::error::{Error, ErrorKind, Result};
use crate::inode::Inode;
use crate::quota;
use crate::stats::Stats;
use crate::tuning::Tunable;
use crate::types::{
    Attr, AttrChange, DirEntry, FileKind, Ino, NewInode, RenameMode, StatFs, Timestamp, XattrMode,
};
use blockwright_device::{AlignedBuf, DevOffset};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

/// Where a stretch of a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Nowhere: reads as zeroes.
    Hole,
    /// Reserved in memory, not yet allocated; the bytes are in the page cache.
    Delayed,
    /// On the device from this byte on.
    Mapped(DevOffset),
    /// Allocated, but not yet written: reads as zeroes.
    Unwritten(DevOffset),
    /// Allocated, but not yet written, and without a place until then: reads as zeroes.
    Reserved,
    /// In the inode; ask [`Engine::read_inline`].
    Inline,
    /// On the device, but not as the file shows it (compressed): ask [`Engine::read_encoded`] for the whole
    /// stretch.
    Encoded,
}

/// One stretch of a file. Starts at or before the asked offset; never empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First byte of the stretch in the file.
    pub offset: u64,
    /// Its length in bytes: a multiple of the block size, save for inline data.
    pub bytes: u64,
    /// Where it is.
    pub place: Place,
    /// Changes whenever the inode's mappings are changed other than by filling holes.
    pub generation: u64,
}

/// Why [`Engine::allocate`] is called.
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
    /// Where to write it; `None` when the data belongs in the inode (use
    /// [`Engine::write_inline`] instead of the device).
    pub device: Option<DevOffset>,
    /// `commit_write` must be called after the data is on the device (new blocks, unwritten blocks,
    /// or a size that grows); otherwise neither commit nor abandon is called.
    pub commit: bool,
    /// Of `bytes`, how many at the start must be written whole, zero-filled where the cache holds
    /// nothing, because the blocks are new: all or none.
    pub fresh: bool,
}

/// The most targets that [`Engine::allocate_runs`] gives at once.
pub const TARGETS_MAX: usize = 512;

/// What of the ranges comes next behind these targets, for [`Engine::allocate_runs`].
#[must_use]
pub fn uncovered(ranges: &[Range<u64>], targets: &[WriteTarget]) -> Option<Range<u64>> {
    let end = targets
        .last()
        .map_or(0, |t| t.offset.saturating_add(t.bytes));
    let next = ranges.get(ranges.partition_point(|r| r.end <= end))?;
    Some(next.start.max(end)..next.end)
}

/// One of the arguments of [`Engine::commit_writes`].
#[derive(Clone, Copy)]
pub struct CommitWrite<'a> {
    /// Whose data it is.
    pub inode: &'a Arc<Inode>,
    /// Where it was written.
    pub target: &'a WriteTarget,
    /// As for [`Engine::commit_write`].
    pub data_end: u64,
}

/// How much of an inode an fsync makes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncScope {
    /// Data, and the metadata needed to read it back (`fdatasync`).
    Data,
    /// All of the inode's data and metadata (`fsync`).
    All,
}

/// How [`Engine::fallocate`] changes a range; the vfs has written back and dropped its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallocMode {
    /// Allocate unwritten blocks for the holes; `keep_size` leaves the size alone.
    Allocate {
        /// Do not grow the file.
        keep_size: bool,
    },
    /// Free whole blocks in the range (partial blocks were zeroed by the vfs).
    PunchHole,
    /// Make the range read as zeroes with blocks kept or allocated, unwritten.
    ZeroRange {
        /// Do not grow the file.
        keep_size: bool,
    },
    /// Remove the range; what follows moves down. Block-aligned.
    CollapseRange,
    /// Insert a hole; what follows moves up. Block-aligned.
    InsertRange,
}

/// What an engine that moves blocks of files asks of the vfs above it ([`Engine::attach`]).
///
/// The caller holds no lock and owns no file's writeback. Otherwise cleaning ([`Engine::make_room`]) could wait for its own
/// caller.
pub trait Host: Send + Sync {
    /// Runs `work` while a file's blocks stay where they are but for what `work` does: no thread writes to them,
    /// writes them back, or changes the file. Reads that began before may be under way still
    /// ([`Host::await_reads`]); those that begin later see what `work` did.
    ///
    /// # Errors
    /// As loading the inode; `Invalid` when it is not a regular file's; `Stale` when the volume is being unmounted;
    /// those of `work`.
    fn with_relocation_barrier(
        &self,
        ino: Ino,
        work: &mut dyn FnMut(&Arc<Inode>) -> Result<()>,
    ) -> Result<()>;
    /// Writes back all that is dirty.
    ///
    /// # Errors
    /// The first of the files'.
    fn write_back(&self) -> Result<()>;
    /// Bytes of the cache that must still be written to the device.
    fn unwritten_bytes(&self) -> u64;
    /// Waits until every read of file data that may have been told where blocks were before this call has ended.
    /// Waits for the device alone: may be called with locks of the rank `EngineGate`.
    fn await_reads(&self);
}

/// A file-system format, mounted.
///
/// Every method that changes something fails with `ReadOnly` on a read-only mount and with
/// `Poisoned` after a failed metadata write.
pub trait Engine: Send + Sync {
    /// The name of the format: `ext4`, `f2fs`.
    fn format(&self) -> &'static str;
    /// The root directory's inode number.
    fn root(&self) -> Ino;
    /// File-system block size in bytes.
    fn block_bytes(&self) -> u32;
    /// The largest size of a regular file that this inode's format allows, in bytes.
    fn file_bytes_max(&self, inode: &Inode) -> u64;
    /// Whether changes are refused.
    fn is_read_only(&self) -> bool;
    /// Why changes are refused although the mount is not meant to be read-only, in a sentence, where the engine
    /// knows.
    fn read_only_reason(&self) -> Option<String> {
        None
    }
    /// How full the volume is.
    fn statfs(&self) -> Result<StatFs>;
    /// Whether the owner of a file may have so many more bytes. Nothing is reserved. `QuotaExceeded` if not.
    fn check_quota(&self, _inode: &Arc<Inode>, _bytes: u64) -> Result<()> {
        Ok(())
    }
    /// What is used and allowed, by id; `None` when the volume does not count by this kind.
    fn quotas(&self, _kind: quota::Kind) -> Result<Option<Vec<quota::Quota>>> {
        Ok(None)
    }
    /// Sets what an id may have. The limits make sense, and the volume is writable.
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
    /// Adds the engine's live counters to a snapshot.
    fn stats(&self, out: &mut Stats);
    /// What of the engine can be changed while it is mounted, with the values in force.
    fn tunables(&self) -> Vec<Tunable> {
        Vec::new()
    }
    /// Changes a tunable. The name is one of [`Engine::tunables`], the value is in its range.
    ///
    /// # Errors
    /// `NotFound` for any other name.
    fn set_tunable(&self, name: &str, _value: u64) -> Result<()> {
        Err(Error::new(ErrorKind::NotFound, "tune").detail(format!("no tunable {name}")))
    }

    // ---- blocks that move ----

    /// Hands the vfs above to an engine that cleans. Called once, before anything else is asked of it through the
    /// vfs.
    fn attach(&self, _host: Arc<dyn Host>) {}
    /// Something is about to be changed: `bytes` of data to be written. An engine that writes out of place sees to it
    /// that they, and what is dirty in the cache, have room when they are written back. No lock is held, no
    /// writeback owned: the engine may clean, and call its [`Host`].
    fn make_room(&self, _bytes: u64) {}
    /// How many bytes may be dirty in the cache or on their way to the device, for want of room to put them: asked after
    /// [`Engine::make_room`]. The options' limits hold in any case.
    fn unwritten_bytes_max(&self) -> u64 {
        u64::MAX
    }
    /// How many bytes of metadata the engine keeps in memory. They are part of the volume's budget for caches: pages have
    /// what is left. Asked for often.
    fn memory_bytes(&self) -> u64 {
        0
    }
    /// Whether blocks that hold data may move without the file being changed, or overwrites go elsewhere. Then the vfs
    /// keeps count of reads under way, for [`Host::await_reads`].
    fn moves_blocks(&self) -> bool {
        false
    }
    /// Whether overwrites go where the data is. Otherwise each takes blocks, and they take turns on a file.
    fn overwrites_in_place(&self) -> bool {
        true
    }
    /// Ends threads of the engine's that call its [`Host`]. Called before the vfs goes away or evicts all inodes.
    fn stop_cleaning(&self) {}

    // ---- inodes ----

    /// Reads an inode that is in use. The vfs's inode cache guarantees one `Inode` per number.
    ///
    /// # Errors
    /// `Stale` when the number is not in use, `Corrupt` when it makes no sense.
    fn load(&self, ino: Ino) -> Result<Arc<Inode>>;
    /// These inodes are about to be loaded: an engine that has each in a block of its own brings those into memory together that
    /// lie side by side. Numbers may be free.
    fn load_ahead(&self, _wanted: &[Ino]) {}
    /// The last reference went away. With no name left, frees the inode and its blocks; otherwise
    /// persists what is dirty. Called once, when no other thread can reach the inode.
    fn evict(&self, inode: &Arc<Inode>) -> Result<()>;
    /// Applies and journals a change. Inode lock held exclusively.
    fn set_attr(&self, inode: &Arc<Inode>, change: &AttrChange) -> Result<()>;
    /// Journals attributes that were changed in memory only (lazy times).
    fn write_attr(&self, inode: &Arc<Inode>) -> Result<()>;
    /// Makes an inode's metadata durable. Its data has been written and committed before.
    fn sync_inode(&self, inode: &Arc<Inode>, scope: SyncScope) -> Result<()>;
    /// Makes everything durable that was committed in memory before.
    fn sync_volume(&self) -> Result<()>;
    /// Last call: everything on disk, the volume marked clean. The vfs has evicted all inodes.
    fn unmount(&self) -> Result<()>;

    // ---- names; the directory's inode lock is held: shared for looking, exclusive for changes ----
    //
    // The rules that are the same for all formats are the vfs's, and hold when these are called: names are valid (1 to
    // 255 bytes, neither `.` nor `..`), directories that are changed have not been removed, kinds suit the
    // operation, symlink targets fit a block, and projects match where a directory passes its own on.

    /// Finds a name. `None` when it is not there.
    fn lookup(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<Option<(Ino, Option<FileKind>)>>;
    /// Lists entries after `cookie` (0 = from the start), `.` and `..` included, until `sink` breaks.
    /// A broken entry is not consumed.
    fn readdir(
        &self,
        dir: &Arc<Inode>,
        cookie: u64,
        sink: &mut dyn FnMut(DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()>;
    /// Makes an inode and its name. `Exists` when the name is there. Returns the new inode, which
    /// the vfs puts into its cache.
    fn create(&self, dir: &Arc<Inode>, name: &[u8], new: &NewInode) -> Result<Arc<Inode>>;
    /// Makes an inode without a name (`O_TMPFILE`), on the orphan list.
    fn create_unnamed(&self, dir: &Arc<Inode>, new: &NewInode) -> Result<Arc<Inode>>;
    /// Adds a name. The inode's lock is held exclusively too; takes it off the orphan list if unnamed.
    fn link(&self, dir: &Arc<Inode>, name: &[u8], inode: &Arc<Inode>, now: Timestamp)
    -> Result<()>;
    /// Removes a name of a non-directory. Both locks held exclusively. At zero names the inode goes on
    /// the orphan list and lives until `evict`.
    fn unlink(
        &self,
        dir: &Arc<Inode>,
        name: &[u8],
        inode: &Arc<Inode>,
        now: Timestamp,
    ) -> Result<()>;
    /// Removes an empty directory. `NotEmpty` otherwise. Both locks held exclusively.
    fn rmdir(
        &self,
        dir: &Arc<Inode>,
        name: &[u8],
        inode: &Arc<Inode>,
        now: Timestamp,
    ) -> Result<()>;
    /// Renames, in one transaction. All inodes concerned are locked exclusively. `target` is what `new_name` names, if
    /// anything; it is another inode than `inode`. It is there with `Exchange`, and is not with `NoReplace`; otherwise
    /// it is a directory exactly if `inode` is one (and `NotEmpty` is the engine's to find). No directory gets below itself.
    #[allow(clippy::too_many_arguments)]
    fn rename(
        &self,
        old_dir: &Arc<Inode>,
        old_name: &[u8],
        inode: &Arc<Inode>,
        new_dir: &Arc<Inode>,
        new_name: &[u8],
        target: Option<&Arc<Inode>>,
        mode: RenameMode,
        now: Timestamp,
    ) -> Result<()>;
    /// The target of a symlink.
    fn read_link(&self, inode: &Arc<Inode>) -> Result<Vec<u8>>;

    // ---- extended attributes, by full name (`user.x`, `system.posix_acl_access` in the
    //      format of setxattr(2)); inode lock shared for reading, exclusive for changes ----

    /// The value, or `NoAttribute`.
    fn get_xattr(&self, inode: &Arc<Inode>, name: &[u8]) -> Result<Vec<u8>>;
    /// Sets a value. ACLs that equal the mode bits are the vfs's business, not the engine's.
    fn set_xattr(
        &self,
        inode: &Arc<Inode>,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()>;
    /// Removes a value, or `NoAttribute`.
    fn remove_xattr(&self, inode: &Arc<Inode>, name: &[u8]) -> Result<()>;
    /// All full names.
    fn list_xattr(&self, inode: &Arc<Inode>) -> Result<Vec<Vec<u8>>>;

    // ---- mappings of regular files ----

    /// Where the file's byte `offset` is, and how far the same holds (up to `bytes` ahead at least
    /// when contiguous). Past the last extent: a hole to `u64::MAX` rounded down to the block.
    fn map(&self, inode: &Arc<Inode>, offset: u64, bytes: u64) -> Result<Mapping>;
    /// Reserves room for every hole in the range that is not reserved yet. Idempotent.
    /// `NoSpace` reserves nothing. The range is aligned to blocks, but for a file with inline data, of which it may end at any byte: as
    /// long as that fits the inode nothing is taken but the inode's own room, and otherwise the data has a block afterwards.
    fn reserve(&self, inode: &Arc<Inode>, range: Range<u64>) -> Result<()>;
    /// As [`Engine::reserve`]; also says whether all of the range was a hole without a reservation, so that it
    /// holds zeroes and nothing else. May say no when it does not know.
    fn reserve_hole(&self, inode: &Arc<Inode>, range: Range<u64>) -> Result<bool> {
        self.reserve(inode, range).map(|()| false)
    }
    /// Whether [`Engine::allocate`] may decide that writeback puts the file's data into the inode, where it is not now, and give
    /// back what was reserved. A thread that makes such a file larger owns its writeback until that has happened.
    fn may_go_inline(&self, _inode: &Arc<Inode>) -> bool {
        false
    }
    /// Gives back what `reserve` took for delayed blocks in the range (pages dropped unwritten).
    fn unreserve(&self, inode: &Arc<Inode>, range: Range<u64>);
    /// Decides where the start of `range` (block-aligned) is written. `data_end`: the file's size as
    /// far as this write knows it, so that the engine can tell whether the size on disk grows.
    fn allocate(
        &self,
        inode: &Arc<Inode>,
        range: Range<u64>,
        data_end: u64,
        intent: Intent,
    ) -> Result<WriteTarget>;
    /// As [`Engine::allocate`] of a direct write, for all of a hole, if that can be done without waiting: for the device, for a lock that others hold
    /// over its work, or for a thread that waits for direct I/O. Blocks that were preallocated can be handed out so. Not where the size on disk would pass an end inside a block
    /// ([`Engine::open_end`]), which takes a look at the cache, and not behind [`Engine::file_bytes_max`]. `None` changed nothing.
    fn allocate_nowait(
        &self,
        _inode: &Arc<Inode>,
        _range: &Range<u64>,
        _data_end: u64,
    ) -> Option<WriteTarget> {
        None
    }
    /// As [`Engine::allocate`] for several ranges of one file, ascending and apart: targets that cover them from the first on,
    /// one behind the other. At least one; for what is not covered, ask again.
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
    /// The target's data is on the device: insert or convert its blocks, and raise the size on disk
    /// to `min(data_end, target's end)` if that is more.
    fn commit_write(&self, inode: &Arc<Inode>, target: &WriteTarget, data_end: u64) -> Result<()>;
    /// Commits several targets, of one or several inodes, in as few transactions as the format can: those of
    /// writes that ended at about the same time. One result for each, in their order; a target that fails
    /// does not keep the others from being committed.
    fn commit_writes(&self, writes: &[CommitWrite<'_>]) -> Vec<Result<()>> {
        writes
            .iter()
            .map(|w| self.commit_write(w.inode, w.target, w.data_end))
            .collect()
    }
    /// The size on disk, if it lies inside a block, not in the inode. Behind it that block may hold anything: what a crash
    /// left of an append, or what was cut off, which would show once the size on disk is larger. In the cache there are zeroes or
    /// new bytes in that place, and the block is dirty, as soon as the file has grown in memory; so the vfs writes it
    /// before it asks for anything that makes the size on disk larger.
    fn open_end(&self, inode: &Arc<Inode>) -> Option<u64>;
    /// Whether [`Engine::commit_writes`] would most likely begin at once, and whatever it waits for then never waits for direct I/O, reads included: so that a thread
    /// that has direct I/O to bring to its end may do it in between.
    fn commits_at_once(&self) -> bool {
        false
    }
    /// Whether a direct write of the range, which lies below the size, needs blocks, if the engine can tell without looking at
    /// each of them.
    fn must_allocate(&self, _inode: &Arc<Inode>, _range: &Range<u64>) -> Result<Option<bool>> {
        Ok(None)
    }
    /// Whether a block that holds data stays where it is until truncation, fallocate or eviction: then the vfs
    /// remembers places instead of asking for each overwrite. Not so where a cleaner moves blocks, or
    /// overwrites go elsewhere.
    fn keeps_places(&self) -> bool {
        false
    }
    /// The stretch at `offset` (up to `bytes` ahead at least when contiguous), if an overwrite of it needs nothing
    /// of the engine: its blocks hold data, will stay where they are, and lie below the size on disk. It ends there,
    /// even inside a block. Only engines that keep places have any.
    fn extent_in_place(
        &self,
        _inode: &Arc<Inode>,
        _offset: u64,
        _bytes: u64,
    ) -> Result<Option<Mapping>> {
        Ok(None)
    }
    /// Whether everything that [`Engine::sync_inode`] would have to make durable is on the device already, apart
    /// from what the device's own cache holds. An overwrite that was written with FUA then needs no flush.
    /// May say no when it does not know.
    fn is_durable(&self, _inode: &Arc<Inode>, _scope: SyncScope) -> bool {
        false
    }
    /// The target's data could not be written: give fresh blocks back (they become holes).
    fn abandon_write(&self, inode: &Arc<Inode>, target: &WriteTarget);
    /// The bytes of an inline file (at most its size).
    fn read_inline(&self, inode: &Arc<Inode>) -> Result<Vec<u8>>;
    /// The bytes of a stretch that [`Engine::map`] calls [`Place::Encoded`], as the file shows them: as many as
    /// the mapping has. `offset` is the mapping's.
    fn read_encoded(&self, inode: &Arc<Inode>, _offset: u64) -> Result<AlignedBuf> {
        Err(Error::new(ErrorKind::Unsupported, "read encoded data").ino(inode.ino()))
    }
    /// Replaces an inline file's bytes, in a transaction of its own.
    fn write_inline(&self, inode: &Arc<Inode>, bytes: &[u8], data_end: u64) -> Result<()>;
    /// Changes the size. Shrinking frees blocks past it (in as many transactions as it takes, orphan
    /// list first); the vfs has dropped pages past `size`, waited for writeback, and will write the zeroed
    /// tail of the last block. Also sets mtime and ctime. Inode and invalidate lock held exclusively.
    fn truncate(&self, inode: &Arc<Inode>, size: u64, now: Timestamp) -> Result<()>;
    /// Refuses files whose contents this engine cannot change, by name. Asked when a file is opened for writing: what a mapping
    /// or a cache of the front end's changed later could not be refused in time.
    fn check_changeable(&self, _inode: &Arc<Inode>) -> Result<()> {
        Ok(())
    }
    /// Refuses, with `Unsupported`, what [`Engine::fallocate`] cannot do to this file. Asked before the vfs
    /// zeroes partial blocks, so that a refusal leaves the file as it was.
    fn check_fallocate(&self, _inode: &Arc<Inode>, _mode: FallocMode) -> Result<()> {
        Ok(())
    }
    /// See [`FallocMode`]. Inode and invalidate lock held exclusively.
    fn fallocate(
        &self,
        inode: &Arc<Inode>,
        range: Range<u64>,
        mode: FallocMode,
        now: Timestamp,
    ) -> Result<()>;

    // ---- the rest ----

    /// Whether blocks are placed at writeback (the default) or as soon as they are written to. Returns
    /// whether the engine does the latter itself, within [`Engine::reserve`]; for one that cannot, the
    /// vfs writes back before a write returns.
    fn set_delayed_allocation(&self, _on: bool) -> bool {
        false
    }

    /// The last writer closed the file: preallocations may go.
    fn release_write(&self, _inode: &Arc<Inode>) {}
    /// The parent of a directory, as its `..` entry says (for ancestor checks and NFS-style lookups).
    fn parent(&self, dir: &Arc<Inode>) -> Result<Ino>;
    /// Discards unused blocks in the byte range of the device, runs of at least `bytes_min`; what was freed before is made durable
    /// first. Returns bytes discarded. `Invalid` for a range that begins behind the end or is shorter than a block.
    fn trim(&self, range: Range<u64>, bytes_min: u64) -> Result<u64>;
    /// In how many pieces a regular file is on the device, as the format counts them; `None` when it has none, or is
    /// being changed, or more than `leaves` nodes, which are counted down, had to be looked at. For statistics.
    fn extents(&self, _inode: &Arc<Inode>, _leaves: &mut usize) -> Option<u64> {
        None
    }
    /// Fresh attributes for `stat`, where the engine knows more than [`Inode::attr`].
    fn stat(&self, inode: &Inode) -> Attr {
        inode.attr()
    }
    /// For downcasting by code that knows the format (the checker's tests, `info`).
    fn as_any(&self) -> &dyn std::any::Any;
}
