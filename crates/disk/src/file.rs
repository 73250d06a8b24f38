//! Byte-granular reads of a container's file, its last bytes included, which may be no whole logical block.

use crate::Result;
use blockwright_device::{DevOffset, DeviceExt, SharedDevice};

/// The first bytes of a device, as many as there are.
pub(crate) fn head(device: &SharedDevice, bytes: usize) -> Result<Vec<u8>> {
    let geometry = device.geometry();
    let unit = u64::from(geometry.logical_block_bytes);
    let bytes = (bytes as u64)
        .next_multiple_of(unit)
        .min(geometry.bytes / unit * unit);
    Ok(device.read_buf(DevOffset(0), bytes as usize)?.to_vec())
}

/// Bytes at any place of a file, its last few included; zeroes behind its end.
pub(crate) fn read_any(file: &SharedDevice, offset: u64, bytes: usize) -> Result<Vec<u8>> {
    let geometry = file.geometry();
    let unit = u64::from(geometry.logical_block_bytes);
    let mut out = vec![0; bytes];
    let end = offset.saturating_add(bytes as u64);
    let (from, to) = (
        offset / unit * unit,
        end.min(geometry.bytes)
            .next_multiple_of(unit)
            .min(geometry.bytes),
    );
    if from < to {
        let found = file.read_buf(DevOffset(from), (to - from) as usize)?;
        let found = &found[(offset - from) as usize..];
        let len = found.len().min(bytes);
        out[..len].copy_from_slice(&found[..len]);
    }
    if end > geometry.bytes {
        let tail = file.tail()?;
        for (at, byte) in (geometry.bytes..).zip(tail) {
            if (offset..end).contains(&at) {
                out[(at - offset) as usize] = byte;
            }
        }
    }
    Ok(out)
}

/// Bytes of a file, those behind its last whole block included.
pub(crate) fn file_bytes(file: &SharedDevice) -> Result<u64> {
    Ok(file.geometry().bytes + file.tail()?.len() as u64)
}
