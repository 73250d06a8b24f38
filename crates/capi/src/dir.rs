//! Listing directories.

use crate::attr::kind_of;
use crate::call::{call, on_dir, on_open_volume, out};
use crate::error::{Fault, bw_error, bw_status};
use crate::handles::{DIRS, OpenDir, bw_dir, bw_volume};
use crate::raw::Text;
use blockwright::ErrorKind;
use parking_lot::Mutex;
use std::ffi::c_char;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

/// Bytes of a name, with its NUL.
pub const BW_NAME_BYTES: usize = 256;

/// An entry of a directory.
#[repr(C)]
pub struct bw_dir_entry {
    /// Inode number.
    pub ino: u64,
    /// `BW_TYPE_` of the entry.
    pub kind: u32,
    /// Bytes of the name.
    pub name_bytes: u32,
    /// The name, with a NUL behind it. It may have any other bytes but `/`.
    pub name: [c_char; BW_NAME_BYTES],
}

/// Opens a directory for listing.
#[unsafe(no_mangle)]
pub extern "C" fn bw_dir_open(
    volume: bw_volume,
    path: Text,
    dir: Option<&mut MaybeUninit<bw_dir>>,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    on_open_volume(volume, error, |open| {
        let dir = out(dir, "dir")?;
        dir.write(bw_dir { id: 0 });
        let path = path.path("path")?;
        let stream = open.with(|volume| Ok(volume.dir_stream(path)?))?;
        let id = DIRS.insert(OpenDir {
            stream: Mutex::new(stream),
            health: Arc::clone(open.health()),
        })?;
        dir.write(bw_dir { id });
        Ok(())
    })
}

/// Gets the next entry, in the directory's own order, without `.` and `..`. `BW_END` behind the last. Entries that come and go meanwhile may or may not be
/// seen; all others are seen once.
#[unsafe(no_mangle)]
pub extern "C" fn bw_dir_next(
    dir: bw_dir,
    entry: Option<&mut MaybeUninit<bw_dir_entry>>,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    on_dir(dir, error, |open| {
        let to = out(entry, "entry")?;
        let mut stream = open.stream.lock();
        let (entry, kind) = loop {
            let entry = stream.next().ok_or(Fault::End)??;
            match stream.file_type(&entry) {
                // Removed since it was listed.
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                kind => break (entry, kind?),
            }
        };
        let name = entry.name.as_bytes();
        if name.len() >= BW_NAME_BYTES {
            return Err(Fault::Range(name.len() + 1));
        }
        let to = to.write(bw_dir_entry {
            ino: entry.ino,
            kind: kind_of(kind),
            name_bytes: name.len() as u32,
            name: [0; BW_NAME_BYTES],
        });
        for (to, from) in to.name.iter_mut().zip(name) {
            *to = *from as c_char;
        }
        Ok(())
    })
}

/// Closes the directory.
#[unsafe(no_mangle)]
pub extern "C" fn bw_dir_close(
    dir: bw_dir,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    call(error, || DIRS.remove(dir.id).map(drop))
}
