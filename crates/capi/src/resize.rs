//! Changing the size of volumes.

use crate::call::{call, known};
use crate::error::{Fault, Result, bw_error, bw_status};
use crate::raw::Text;
use blockwright::reshape::Mode;
use blockwright_ffi::Target;
use std::mem::MaybeUninit;

/// As few bytes as the files need; `bytes` is how much stays free.
pub const BW_RESIZE_MINIMUM: u32 = 1;
/// All of the image, partition or device; `bytes` is 0.
pub const BW_RESIZE_FILL: u32 = 2;
/// Only find out what would be done.
pub const BW_RESIZE_DRY_RUN: u32 = 4;

/// What a change of size came to.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct bw_resized {
    /// Bytes of the volume before.
    pub bytes_before: u64,
    /// Bytes of the volume now.
    pub bytes: u64,
    /// Bytes per block.
    pub block_bytes: u32,
    /// 0.
    pub reserved: u32,
}

fn target(bytes: u64, flags: u32) -> Result<Target> {
    let all = BW_RESIZE_MINIMUM | BW_RESIZE_FILL | BW_RESIZE_DRY_RUN;
    known(flags, all, "flags")?;
    match (flags & !BW_RESIZE_DRY_RUN, bytes) {
        (0, bytes) => Ok(Target::Bytes(bytes)),
        (BW_RESIZE_MINIMUM, free) => Ok(Target::Minimum { free }),
        (BW_RESIZE_FILL, 0) => Ok(Target::Fill),
        _ => Err(Fault::Misuse(
            "BW_RESIZE_FILL takes no size and no BW_RESIZE_MINIMUM".to_owned(),
        )),
    }
}

/// Makes the volume at `path`, which must not be open, as large as `bytes`, or a little smaller. The file of a plain image gets longer or shorter with it.
/// `flags` has `BW_RESIZE_` flags. `resized` may be null.
#[unsafe(no_mangle)]
pub extern "C" fn bw_resize(
    path: Text,
    bytes: u64,
    flags: u32,
    resized: Option<&mut MaybeUninit<bw_resized>>,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    call(error, || {
        let mode = match flags & BW_RESIZE_DRY_RUN {
            0 => Mode::Change,
            _ => Mode::DryRun,
        };
        let done = blockwright_ffi::resize(path.path("path")?, target(bytes, flags)?, mode)?;
        if let Some(resized) = resized {
            resized.write(bw_resized {
                bytes_before: done.bytes_before(),
                bytes: done.bytes(),
                block_bytes: done.block_bytes,
                reserved: 0,
            });
        }
        Ok(())
    })
}
