//! Opening volumes.

use crate::call::{call, close_volume, known, out};
use crate::device::{CallbackDevice, bw_device};
use crate::error::{Fault, Result, bw_error, bw_status};
use crate::handles::{OpenVolume, VOLUMES, bw_volume};
use crate::place::{beside_device, bw_place, image_at};
use crate::raw::{Text, Versioned, sized};
use blockwright::VolumeOptions;
use blockwright_device::SharedDevice;
use std::mem::MaybeUninit;
use std::sync::Arc;

/// Open for reading only; nothing is written to the device.
pub const BW_OPEN_READ_ONLY: u32 = 1;
/// Do not lock the image against other processes.
pub const BW_OPEN_NO_LOCK: u32 = 2;

/// How a volume is opened. A structure of zeroes with `struct_size` set has the defaults, as null has.
#[repr(C)]
pub struct bw_open_options {
    /// `sizeof(bw_open_options)`.
    pub struct_size: usize,
    /// `BW_OPEN_` flags.
    pub flags: u32,
    /// 0.
    pub reserved: u32,
    /// Budget of the volume's cache in bytes; 0: the default.
    pub cache_bytes: u64,
    /// Where the volume is.
    pub place: bw_place,
}

// SAFETY: numbers and texts after `struct_size`.
unsafe impl Versioned for bw_open_options {}

fn options_of(options: Option<&bw_open_options>) -> Result<VolumeOptions> {
    let mut made = VolumeOptions::new();
    let Some(o) = options else {
        return Ok(made);
    };
    known(
        o.flags,
        BW_OPEN_READ_ONLY | BW_OPEN_NO_LOCK,
        "options.flags",
    )?;
    if o.reserved != 0 {
        return Err(Fault::Misuse("options.reserved is not 0".to_owned()));
    }
    made = made
        .read_only(o.flags & BW_OPEN_READ_ONLY != 0)
        .lock(o.flags & BW_OPEN_NO_LOCK == 0);
    if o.cache_bytes != 0 {
        made = made.cache_bytes(o.cache_bytes);
    }
    Ok(made)
}

/// Opens the volume in an image or on a block device. `path` may name a partition (`disk.img:p2`, `disk.img:p=root`) or an NBD export. `options` may be
/// null.
#[unsafe(no_mangle)]
pub extern "C" fn bw_volume_open(
    path: Text,
    options: *const bw_open_options,
    volume: Option<&mut MaybeUninit<bw_volume>>,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    call(error, || {
        let volume = out(volume, "volume")?;
        volume.write(bw_volume { id: 0 });
        let options = sized(options, "options")?;
        let image = image_at(path, options.map(|o| &o.place))?;
        let opened = image.open_volume(&options_of(options)?)?;
        let id = VOLUMES.insert(OpenVolume::new(opened))?;
        volume.write(bw_volume { id });
        Ok(())
    })
}

/// Opens the volume on a device of the program. `options` may be null. Of its `place`, only `journal` and `flags` may be set.
#[unsafe(no_mangle)]
pub extern "C" fn bw_volume_open_device(
    device: *const bw_device,
    options: *const bw_open_options,
    volume: Option<&mut MaybeUninit<bw_volume>>,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    call(error, || {
        let volume = out(volume, "volume")?;
        volume.write(bw_volume { id: 0 });
        let options = sized(options, "options")?;
        let beside = beside_device(options.map(|o| &o.place))?;
        let mut options = options_of(options)?.allow_backing(beside.allow_backing);
        if let Some(journal) = beside.journal {
            options = options.journal(journal);
        }
        let device = CallbackDevice::new(device)?;
        if device.is_read_only() {
            options = options.read_only(true);
        }
        let opened = options.open_device(Arc::new(device) as SharedDevice)?;
        let id = VOLUMES.insert(OpenVolume::new(opened))?;
        volume.write(bw_volume { id });
        Ok(())
    })
}

/// Writes everything, marks the volume clean and closes it, also when that fails. Calls of other threads are finished first. Files and directories that are
/// still open fail from then on with `BW_STALE`; they have to be closed all the same.
#[unsafe(no_mangle)]
pub extern "C" fn bw_volume_close(
    volume: bw_volume,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    close_volume(volume, error)
}
