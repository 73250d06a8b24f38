//! The two superblocks.

use std::sync::Arc;

use blockwright_device::SharedDevice;
use blockwright_ondisk::common::casefold::ENCODING_UTF8_12_1;
use blockwright_ondisk::f2fs::checksum::MAGIC;
use blockwright_ondisk::f2fs::superblock::{RawSuperblock, Superblock};
use blockwright_ondisk::f2fs::{BLOCK_SIZE, Features, FormatError, Geometry};

use super::CheckError;
use super::context::Log;
use super::issue::IssueKind;
use super::store::Store;

/// Features that this check knows. What it writes to a zoned volume would be refused by the device.
const KNOWN: Features = Features::KNOWN.difference(Features::ZONED);

/// `s_encoding` of volumes that name none.
pub(super) const ENCODING_NONE: u16 = 0;

fn read(device: &SharedDevice) -> Result<Vec<u8>, CheckError> {
    if device.geometry().bytes < 2 * BLOCK_SIZE as u64 {
        return Err(CheckError::NoSuperblock {
            source: FormatError::Truncated {
                structure: "volume",
                needed: 2 * BLOCK_SIZE,
                found: device.geometry().bytes as usize,
            },
        });
    }
    Store::read_device(&**device, 0, 2, "superblock")
}

/// Whether either copy has the magic.
pub(super) fn has_magic(device: &SharedDevice) -> Result<bool, CheckError> {
    if device.geometry().bytes < 2 * BLOCK_SIZE as u64 {
        return Ok(false);
    }
    let both = read(device)?;
    let mut copies = both.chunks_exact(BLOCK_SIZE).map(RawSuperblock::read);
    Ok(copies.any(|c| c.is_ok_and(|raw| raw.magic.get() == MAGIC)))
}

/// The superblock that counts, and which copies must be written anew.
pub(super) fn open(
    device: &SharedDevice,
    log: &mut Log,
) -> Result<(RawSuperblock, Arc<Geometry>, [bool; 2]), CheckError> {
    let both = read(device)?;
    let bytes = Some(device.geometry().bytes);
    let parsed = [0, 1].map(|n| Superblock::parse(&both[n * BLOCK_SIZE..], bytes));
    let mut stale = [false; 2];
    for (copy, result) in parsed.iter().enumerate() {
        if let Err(error) = result
            && parsed.iter().any(Result::is_ok)
        {
            stale[copy] = log.problem(IssueKind::SuperblockBad {
                copy: copy as u8,
                error: error.clone().into(),
            });
        }
    }
    if let [Ok(first), Ok(second)] = &parsed
        && first.raw.to_bytes() != second.raw.to_bytes()
    {
        stale[1] = log.problem(IssueKind::SuperblockCopies);
    }
    let sb = match parsed {
        [Ok(sb), _] | [Err(_), Ok(sb)] => sb,
        [Err(source), Err(_)] => return Err(CheckError::NoSuperblock { source }),
    };
    let mut names = sb.geo.features.unsupported(KNOWN);
    let several = sb.raw.devs[0].path[0] != 0 && sb.raw.devs[1].path[0] != 0;
    // Joined to one they are as long as the volume.
    if several && device.geometry().bytes / (BLOCK_SIZE as u64) < sb.geo.main_end() {
        names.push("several devices".to_owned());
    }
    let casefold = sb.geo.features.contains(Features::CASEFOLD);
    let encoding = sb.raw.s_encoding.get();
    if !names.is_empty() {
        return Err(CheckError::Unsupported { names });
    }
    let mut raw = sb.raw;
    // `mkfs.f2fs -O casefold` without `-C` makes such volumes. There is one encoding only.
    if casefold && encoding == ENCODING_NONE && log.problem(IssueKind::EncodingMissing) {
        raw.s_encoding.set(ENCODING_UTF8_12_1);
        stale = [true; 2];
    }
    // Nothing says how its names are folded, and what would be right instead.
    if casefold && encoding != ENCODING_UTF8_12_1 && encoding != ENCODING_NONE {
        log.problem(IssueKind::EncodingUnknown { encoding });
    }
    Ok((raw, Arc::new(sb.geo), stale))
}
