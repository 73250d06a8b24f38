//! f2fs volumes on several devices.
//!
//! The superblock lists the devices with how much of each is used, and paths that are only the maker's: they are
//! not opened, since an image may name anything. The caller gives the other devices, in the list's order.

use crate::format::{self, Format};
use crate::{Error, ErrorKind, Result};
use blockwright_device::{OpenMode, SharedDevice};
use std::path::{Path, PathBuf};

/// What opens a device by its path, or by its address.
pub(crate) type Opener<'a> =
    dyn FnMut(&Path, OpenMode) -> blockwright_device::Result<SharedDevice> + 'a;

/// Opens what a user calls an image: with the feature `disk` whatever container it is in, and a partition of it. `allow_backing` is
/// [`crate::VolumeOptions::allow_backing`].
pub(crate) fn open(
    path: &Path,
    mode: OpenMode,
    allow_backing: bool,
) -> blockwright_device::Result<SharedDevice> {
    #[cfg(feature = "disk")]
    return blockwright_disk::open_with(path, mode, allow_backing);
    #[cfg(not(feature = "disk"))]
    {
        let _no_containers = allow_backing;
        blockwright_device::open(path, mode)
    }
}

/// The first device joined with the others at `more`, as one that is only read. Without others it is the
/// first alone.
///
/// # Errors
/// `Invalid` when the volume is no f2fs volume of this many devices; as opening; `Io`.
pub fn join_devices(first: SharedDevice, more: &[PathBuf], mode: OpenMode) -> Result<SharedDevice> {
    join_devices_by(first, more, mode, &mut |path, mode| {
        self::open(path, mode, false)
    })
}

/// As [`join_devices`], with `open` for the others.
///
/// # Errors
/// As [`join_devices`].
pub fn join_devices_by(
    first: SharedDevice,
    more: &[PathBuf],
    mode: OpenMode,
    open: &mut Opener<'_>,
) -> Result<SharedDevice> {
    if more.is_empty() {
        return Ok(first);
    }
    let invalid = |what: String| Err(Error::new(ErrorKind::Invalid, what));
    if format::detect(&first)? != Format::F2fs {
        return invalid(
            "several devices are given, but only an f2fs volume can be on several devices"
                .to_owned(),
        );
    }
    join(first, more, mode, open)
}

#[cfg(not(feature = "f2fs"))]
fn join(_: SharedDevice, _: &[PathBuf], _: OpenMode, _: &mut Opener<'_>) -> Result<SharedDevice> {
    let what = "this build has no f2fs (feature `f2fs`)";
    Err(Error::new(ErrorKind::UnsupportedFeature, what))
}

#[cfg(feature = "f2fs")]
fn join(
    first: SharedDevice,
    more: &[PathBuf],
    mode: OpenMode,
    open: &mut Opener<'_>,
) -> Result<SharedDevice> {
    use blockwright_device::{DevOffset, DeviceExt, JoinedDevice};
    use blockwright_ondisk::f2fs::superblock::RawSuperblock;
    use blockwright_ondisk::f2fs::{BLOCK_SIZE, BLOCKS_PER_SEG};
    use std::sync::Arc;

    let invalid = |what: String| Err(Error::new(ErrorKind::Invalid, what));
    let head = first.read_buf(DevOffset(0), 2 * BLOCK_SIZE)?;
    let magic = blockwright_ondisk::f2fs::checksum::MAGIC;
    let raw = head
        .chunks_exact(BLOCK_SIZE)
        .filter_map(|block| RawSuperblock::read(block).ok())
        .find(|raw| raw.magic.get() == magic);
    let Some(raw) = raw else {
        return invalid("there is no superblock".to_owned());
    };
    let listed: Vec<u64> = raw
        .devs
        .iter()
        .take_while(|d| d.path[0] != 0)
        .map(|d| u64::from(d.total_segments.get()) * u64::from(BLOCKS_PER_SEG))
        .collect();
    if listed.len() != more.len() + 1 {
        return invalid(format!(
            "the volume is on {} devices, and {} are given",
            listed.len().max(1),
            more.len() + 1
        ));
    }
    let mut parts = Vec::with_capacity(listed.len());
    for (n, blocks) in listed.into_iter().enumerate() {
        let before = match n {
            0 => u64::from(raw.segment0_blkaddr.get()),
            _ => 0,
        };
        let device = match n.checked_sub(1).and_then(|n| more.get(n)) {
            None => Arc::clone(&first),
            Some(path) => {
                let read_only = OpenMode {
                    read_only: true,
                    ..mode
                };
                open(path, read_only).map_err(|e| Error::from(e).at(path))?
            }
        };
        parts.push((device, (blocks + before) * BLOCK_SIZE as u64));
    }
    Ok(Arc::new(JoinedDevice::new(parts)?))
}
