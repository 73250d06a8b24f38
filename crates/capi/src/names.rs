//! Making, renaming and removing names.

use crate::attr::{fill, kind_from};
use crate::call::on_volume;
use crate::error::{Fault, bw_error, bw_status};
use crate::handles::bw_volume;
use crate::raw::{Output, Text};
use blockwright::RenameMode;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;

/// Makes a directory with these permission bits.
#[unsafe(no_mangle)]
pub extern "C" fn bw_mkdir(
    volume: bw_volume,
    path: Text,
    mode: u32,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    on_volume(volume, error, |volume| {
        Ok(volume.create_dir_mode(path.path("path")?, mode & 0o7777)?)
    })
}

/// Makes a directory and those that are missing on the way to it, with permission bits 0755. One that is there is left as it is.
#[unsafe(no_mangle)]
pub extern "C" fn bw_mkdir_all(
    volume: bw_volume,
    path: Text,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    on_volume(volume, error, |volume| {
        Ok(volume.create_dir_all(path.path("path")?)?)
    })
}

/// Makes a regular file, device, pipe or socket: `kind` is a `BW_TYPE_`. `rdev`: the number of a device, as `makedev` codes it.
#[unsafe(no_mangle)]
pub extern "C" fn bw_mknod(
    volume: bw_volume,
    path: Text,
    kind: u32,
    mode: u32,
    rdev: u64,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    on_volume(volume, error, |volume| {
        Ok(volume.mknod(path.path("path")?, kind_from(kind)?, mode & 0o7777, rdev)?)
    })
}

/// Makes a symbolic link at `path` with this target.
#[unsafe(no_mangle)]
pub extern "C" fn bw_symlink(
    volume: bw_volume,
    target: Text,
    path: Text,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    on_volume(volume, error, |volume| {
        Ok(volume.symlink(target.path("target")?, path.path("path")?)?)
    })
}

/// Gets the target of a symbolic link, with a NUL behind it, which `bytes` counts. With `room` 0 nothing is copied; `BW_RANGE` when `room` is too small.
#[unsafe(no_mangle)]
pub extern "C" fn bw_readlink(
    volume: bw_volume,
    path: Text,
    mut buffer: Output,
    room: usize,
    bytes: Option<&mut MaybeUninit<usize>>,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    on_volume(volume, error, |volume| {
        let target = volume.read_link(path.path("path")?)?;
        let mut target = target.as_os_str().as_bytes().to_vec();
        target.push(0);
        fill(&target, &mut buffer, room, bytes)
    })
}

/// Gives a file one more name.
#[unsafe(no_mangle)]
pub extern "C" fn bw_link(
    volume: bw_volume,
    original: Text,
    path: Text,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    on_volume(volume, error, |volume| {
        Ok(volume.hard_link(original.path("original")?, path.path("path")?)?)
    })
}

/// Replaces what the new name named.
pub const BW_RENAME_REPLACE: u32 = 0;
/// Fails when the new name exists.
pub const BW_RENAME_NO_REPLACE: u32 = 1;
/// Exchanges the two names.
pub const BW_RENAME_EXCHANGE: u32 = 2;

/// Renames; `mode` is a `BW_RENAME_`.
#[unsafe(no_mangle)]
pub extern "C" fn bw_rename(
    volume: bw_volume,
    from: Text,
    to: Text,
    mode: u32,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    on_volume(volume, error, |volume| {
        let mode = match mode {
            BW_RENAME_REPLACE => RenameMode::Replace,
            BW_RENAME_NO_REPLACE => RenameMode::NoReplace,
            BW_RENAME_EXCHANGE => RenameMode::Exchange,
            _ => return Err(Fault::Misuse(format!("mode: {mode} is no BW_RENAME_"))),
        };
        Ok(volume.rename_with(from.path("from")?, to.path("to")?, mode)?)
    })
}

/// Removes a name of anything but a directory.
#[unsafe(no_mangle)]
pub extern "C" fn bw_unlink(
    volume: bw_volume,
    path: Text,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    on_volume(volume, error, |volume| {
        Ok(volume.remove_file(path.path("path")?)?)
    })
}

/// Removes an empty directory.
#[unsafe(no_mangle)]
pub extern "C" fn bw_rmdir(
    volume: bw_volume,
    path: Text,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    on_volume(volume, error, |volume| {
        Ok(volume.remove_dir(path.path("path")?)?)
    })
}

/// Removes what is at a path, a directory with all that is in it. Symbolic links are not followed.
#[unsafe(no_mangle)]
pub extern "C" fn bw_remove_all(
    volume: bw_volume,
    path: Text,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    on_volume(volume, error, |volume| {
        Ok(volume.remove_dir_all(path.path("path")?)?)
    })
}
