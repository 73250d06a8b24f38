//! A volume as a whole: its format and how full it is, making all of it durable, and giving free blocks back. `open` opens and closes volumes.

use crate::call::{on_volume, out};
use crate::error::{Fault, bw_error, bw_status};
use crate::handles::bw_volume;
use blockwright::Format;
use std::mem::MaybeUninit;

/// ext4, ext3 or ext2.
pub const BW_FORMAT_EXT4: u32 = 1;
/// f2fs.
pub const BW_FORMAT_F2FS: u32 = 2;

/// What a volume is like, and how full it is.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct bw_volume_info {
    /// `BW_FORMAT_EXT4`, `BW_FORMAT_F2FS`, or 0 for a format that is newer than this header.
    pub format: u32,
    /// 1 when changes are refused.
    pub read_only: u32,
    /// The unit of the block counts, in bytes.
    pub block_bytes: u32,
    /// The longest name in bytes.
    pub name_bytes_max: u32,
    /// Blocks for data.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks for users other than root.
    pub blocks_available: u64,
    /// Inodes.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
}

/// Tells what the volume is like, and how full it is.
#[unsafe(no_mangle)]
pub extern "C" fn bw_volume_stat(
    volume: bw_volume,
    info: Option<&mut MaybeUninit<bw_volume_info>>,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    on_volume(volume, error, |volume| {
        let info = out(info, "info")?;
        let stat = volume.statfs()?;
        info.write(bw_volume_info {
            format: match volume.format() {
                Format::Ext4 => BW_FORMAT_EXT4,
                Format::F2fs => BW_FORMAT_F2FS,
                _ => 0,
            },
            read_only: u32::from(volume.is_read_only()),
            block_bytes: stat.block_bytes,
            name_bytes_max: stat.name_bytes_max,
            blocks: stat.blocks,
            blocks_free: stat.blocks_free,
            blocks_available: stat.blocks_available,
            inodes: stat.files,
            inodes_free: stat.files_free,
        });
        Ok(())
    })
}

/// Makes everything durable that was done before.
#[unsafe(no_mangle)]
pub extern "C" fn bw_volume_sync(
    volume: bw_volume,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    on_volume(volume, error, |volume| volume.sync().map_err(Fault::Sync))
}

/// Discards all free blocks: in an image file they become holes. `bytes` may be null; it gets how many bytes were discarded.
#[unsafe(no_mangle)]
pub extern "C" fn bw_volume_trim(
    volume: bw_volume,
    bytes: Option<&mut MaybeUninit<u64>>,
    error: Option<&mut MaybeUninit<bw_error>>,
) -> bw_status {
    on_volume(volume, error, |volume| {
        let trimmed = volume.trim()?;
        if let Some(bytes) = bytes {
            bytes.write(trimmed);
        }
        Ok(())
    })
}
