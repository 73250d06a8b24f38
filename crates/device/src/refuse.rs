//! The refusals every device owes its callers: read-only, off the device, not aligned. For implementations of devices.

use crate::{DevOffset, DeviceError, DeviceErrorKind, Geometry, IoSlice, Op, Request, Result};

/// Checks a range against the geometry. `writes` says whether the medium would change.
///
/// # Errors
/// [`DeviceErrorKind::ReadOnly`] or [`DeviceErrorKind::OutOfRange`].
pub fn range(
    geometry: &Geometry,
    op: &'static str,
    offset: DevOffset,
    bytes: u64,
    writes: bool,
) -> Result<()> {
    let error = |kind| {
        Err(DeviceError {
            op,
            offset,
            bytes,
            kind,
        })
    };
    if writes && geometry.read_only {
        return error(DeviceErrorKind::ReadOnly);
    }
    let mask = u64::from(geometry.logical_block_bytes) - 1;
    let end = offset.0.checked_add(bytes);
    if (offset.0 | bytes) & mask != 0 || end.is_none_or(|end| end > geometry.bytes) {
        return error(DeviceErrorKind::OutOfRange {
            device_bytes: geometry.bytes,
        });
    }
    Ok(())
}

/// Checks a whole request.
///
/// # Errors
/// As [`range`] and [`slices`].
pub fn request(geometry: &Geometry, request: &Request) -> Result<()> {
    let (op, offset, bytes) = (request.op.name(), request.offset, request.op.bytes());
    match &request.op {
        Op::Flush => Ok(()),
        Op::Read(_) => range(geometry, op, offset, bytes, false),
        Op::Discard { .. } | Op::WriteZeroes { .. } => range(geometry, op, offset, bytes, true),
        Op::Write(list) => slices(geometry, offset, list),
    }
}

/// Checks a vectored write.
///
/// # Errors
/// As [`range`]; also refused when a slice is not a multiple of the logical block, because a
/// device could not hand such a slice to the hardware by itself.
pub fn slices(geometry: &Geometry, offset: DevOffset, slices: &[IoSlice]) -> Result<()> {
    let bytes = slices.iter().map(|slice| slice.len() as u64).sum();
    range(geometry, "write", offset, bytes, true)?;
    let block = geometry.logical_block_bytes as usize;
    if slices
        .iter()
        .any(|slice| !slice.len().is_multiple_of(block))
    {
        let kind = DeviceErrorKind::OutOfRange {
            device_bytes: geometry.bytes,
        };
        return Err(DeviceError {
            op: "write",
            offset,
            bytes,
            kind,
        });
    }
    Ok(())
}
