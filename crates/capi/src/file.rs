//! Open files.

use crate::attr::{BW_NO_FOLLOW, bw_stat, stat_of};
use crate::call::{call, known, on_file, on_open_volume, out};
use crate::error::{Fault, bw_error, bw_status};
use crate::handles::{FILES, OpenFile, bw_file, bw_volume};
use crate::raw::{Input, Output, Text};
use blockwright::{OpenOptions, SyncMode};
use std::mem::MaybeUninit;
use std::sync::Arc;

/// For reading.
pub const BW_READ: u32 = 1;
/// For writing.
pub const BW_WRITE: u32 = 2;
/// For writing at the end, wherever that is at the time of each write.
pub const BW_APPEND: u32 = 4;
/// Make the file when it is not there.
pub const BW_CREATE: u32 = 8;
/// Make the file; fail when it is there.
pub const BW_CREATE_NEW: u32 = 16;
/// Cut the file to nothing.
pub const BW_TRUNCATE: u32 = 32;
/// Every write is durable when it returns.
pub const BW_SYNC: u32 = 128;
/// Bypass the page cache where alignment allows.
pub const BW_DIRECT: u32 = 256;

const ALL_FLAGS: u32 = 511;

/// Opens a file. `mode` has the permission bits of a file that is made.
#[unsafe(no_mangle)]
pub extern "C" fn bw_file_open(
    volume: bw_volume,
    path: Text,
    flags: u32,
    mode: u32,
    file: Option<&mut MaybeUninit<bw_file>>,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    on_open_volume(volume, error, |open| {
        let file = out(file, "file")?;
        file.write(bw_file { id: 0 });
        known(flags, ALL_FLAGS, "flags")?;
        let has = |flag: u32| flags & flag != 0;
        let mut options = OpenOptions::new();
        options
            .read(has(BW_READ))
            .write(has(BW_WRITE))
            .create(has(BW_CREATE))
            .create_new(has(BW_CREATE_NEW))
            .truncate(has(BW_TRUNCATE))
            .follow(!has(BW_NO_FOLLOW))
            .direct(has(BW_DIRECT))
            .mode(mode & 0o7777);
        if has(BW_APPEND) {
            options.append(true);
        }
        if has(BW_SYNC) {
            options.sync(SyncMode::All);
        }
        let path = path.path("path")?;
        let opened = open.with(|volume| Ok(options.open(volume, path)?))?;
        let id = FILES.insert(OpenFile {
            file: opened,
            health: Arc::clone(open.health()),
        })?;
        file.write(bw_file { id });
        Ok(())
    })
}

/// Reads up to `bytes` bytes at `offset`. `done` gets how many were read: fewer only at the end of the file.
#[unsafe(no_mangle)]
pub extern "C" fn bw_file_read(
    file: bw_file,
    offset: u64,
    mut buffer: Output,
    bytes: usize,
    done: Option<&mut MaybeUninit<usize>>,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    on_file(file, error, |open| {
        let done = out(done, "done")?;
        done.write(0);
        done.write(open.file.read_at(buffer.slice(bytes, "buffer")?, offset)?);
        Ok(())
    })
}

/// Writes `bytes` bytes at `offset`, or at the end of a file that was opened with `BW_APPEND`. `done` may be null; it gets how many were written. When it
/// is not null, a write that finds room for a part succeeds with that part; otherwise such a write fails with `BW_NO_SPACE`.
#[unsafe(no_mangle)]
pub extern "C" fn bw_file_write(
    file: bw_file,
    offset: u64,
    buffer: Input,
    bytes: usize,
    done: Option<&mut MaybeUninit<usize>>,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    on_file(file, error, |open| {
        let bytes = buffer.slice(bytes, "buffer")?;
        match done {
            Some(done) => {
                done.write(0);
                done.write(open.file.write_at(bytes, offset)?);
            }
            None => open.file.write_all_at(bytes, offset)?,
        }
        Ok(())
    })
}

/// Writes at the end of the file, in one piece. `offset` may be null; it gets where that was.
#[unsafe(no_mangle)]
pub extern "C" fn bw_file_append(
    file: bw_file,
    buffer: Input,
    bytes: usize,
    offset: Option<&mut MaybeUninit<u64>>,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    on_file(file, error, |open| {
        let at = open.file.append(buffer.slice(bytes, "buffer")?)?;
        if let Some(offset) = offset {
            offset.write(at);
        }
        Ok(())
    })
}

/// The file's attributes, its size among them.
#[unsafe(no_mangle)]
pub extern "C" fn bw_file_stat(
    file: bw_file,
    stat: Option<&mut MaybeUninit<bw_stat>>,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    on_file(file, error, |open| {
        out(stat, "stat")?.write(stat_of(&open.file.metadata()?));
        Ok(())
    })
}

/// Cuts or extends the file.
#[unsafe(no_mangle)]
pub extern "C" fn bw_file_truncate(
    file: bw_file,
    bytes: u64,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    on_file(file, error, |open| Ok(open.file.set_len(bytes)?))
}

/// Makes the file's data and metadata durable (fsync).
#[unsafe(no_mangle)]
pub extern "C" fn bw_file_sync(
    file: bw_file,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    on_file(file, error, |open| {
        open.file.sync_all().map_err(Fault::Sync)
    })
}

/// Makes the file's data durable, with the metadata that is needed to read it back (fdatasync).
#[unsafe(no_mangle)]
pub extern "C" fn bw_file_sync_data(
    file: bw_file,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    on_file(file, error, |open| {
        open.file.sync_data().map_err(Fault::Sync)
    })
}

/// Allocates space for a range. The file grows to the range's end if it is shorter.
#[unsafe(no_mangle)]
pub extern "C" fn bw_file_allocate(
    file: bw_file,
    offset: u64,
    bytes: u64,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    on_file(file, error, |open| Ok(open.file.allocate(offset, bytes)?))
}

/// Frees the space of a range, which reads as zeroes afterwards.
#[unsafe(no_mangle)]
pub extern "C" fn bw_file_punch_hole(
    file: bw_file,
    offset: u64,
    bytes: u64,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    on_file(file, error, |open| {
        Ok(open.file.punch_hole(offset, bytes)?)
    })
}

/// The first byte at or after `offset` that holds data. `BW_NO_DATA` when there is none.
#[unsafe(no_mangle)]
pub extern "C" fn bw_file_seek_data(
    file: bw_file,
    offset: u64,
    found: Option<&mut MaybeUninit<u64>>,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    on_file(file, error, |open| {
        out(found, "found")?.write(open.file.seek_data(offset)?);
        Ok(())
    })
}

/// The first byte at or after `offset` that is in a hole; the end of the file counts as one.
#[unsafe(no_mangle)]
pub extern "C" fn bw_file_seek_hole(
    file: bw_file,
    offset: u64,
    found: Option<&mut MaybeUninit<u64>>,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    on_file(file, error, |open| {
        out(found, "found")?.write(open.file.seek_hole(offset)?);
        Ok(())
    })
}

/// Copies a range to another file of the same volume, holes as holes. `done` gets how many bytes: fewer only at the end of `from`, or when the volume is full.
#[unsafe(no_mangle)]
pub extern "C" fn bw_file_copy_range(
    from: bw_file,
    offset: u64,
    to: bw_file,
    to_offset: u64,
    bytes: u64,
    done: Option<&mut MaybeUninit<u64>>,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    on_file(from, error, |open| {
        let done = out(done, "done")?;
        done.write(0);
        let target = FILES.get(to.id)?;
        target.health.check()?;
        if !Arc::ptr_eq(&open.health, &target.health) {
            let what = "the two files are on different volumes";
            let error = blockwright::Error::new(blockwright::ErrorKind::CrossDevice, what);
            return Err(Fault::Library(error));
        }
        done.write(
            open.file
                .copy_range(offset, &target.file, to_offset, bytes)?,
        );
        Ok(())
    })
}

/// Closes the file, without making it durable. Calls of other threads on it are finished by themselves.
#[unsafe(no_mangle)]
pub extern "C" fn bw_file_close(
    file: bw_file,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    call(error, || FILES.remove(file.id).map(drop))
}
