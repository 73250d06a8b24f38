//! Label, UUID, lists of extensions, and features.
//!
//! All are in the superblock, of which there are two copies of the same contents, in the first two blocks. None belongs to a checkpoint.
//!
//! # Crash order
//! The second copy, a flush, the first one, a flush. Whichever write is torn, the other copy is whole.

use blockwright_device::{DevOffset, Flags, SharedDevice};
use blockwright_ondisk::f2fs::superblock::RawSuperblock;
use blockwright_ondisk::f2fs::{BLOCK_SIZE, Features, Superblock};
use zerocopy::IntoBytes;

use crate::error::{ReshapeError, Result};
use crate::ext4::settings::Settings;

/// Where the copies are in bytes.
const COPIES: [u64; 2] = [1024, 4096 + 1024];
/// Bytes that hold both blocks.
const HEAD: usize = 8192;
const WHAT: &str = "superblock";

/// Changes settings of the f2fs volume on a device.
///
/// # Errors
/// `Unsupported` for settings that f2fs does not have, for features that cannot be changed, and for the UUID where checksums of inodes depend on it; `Invalid` for a
/// label that is too long or not UTF-8, and for lists that are invalid; `F2fs` when no copy of the superblock is valid. Nothing was written then. Only `Device` may come
/// after a copy was changed.
pub fn set(device: &SharedDevice, settings: &Settings) -> Result<()> {
    let (mut head, mut raw) = planned(device, settings)?;
    write(device, &mut head, &mut raw)
}

/// The copy of the superblock that counts, of a volume that is no larger than `bytes`.
fn valid(head: &[u8], bytes: Option<u64>) -> Result<RawSuperblock> {
    let parse = |block: &[u8]| Superblock::parse(block, bytes).map(|sb| sb.raw);
    let (first, second) = head.split_at(BLOCK_SIZE);
    Ok(parse(first).or_else(|e| parse(second).map_err(|_| e))?)
}

/// Both blocks of the superblock as they are, and the superblock that these settings make, but for its checksum.
fn planned(device: &SharedDevice, settings: &Settings) -> Result<(Vec<u8>, RawSuperblock)> {
    let others = [
        ("reserved", settings.reserved.is_some()),
        ("errors", settings.errors.is_some()),
        ("hash-seed", settings.hash_seed.is_some()),
        ("default-options", settings.default_options.is_some()),
        ("journal-size", settings.journal_bytes.is_some()),
        ("force", settings.lost_journal.is_some()),
    ];
    if let Some((name, _)) = others.iter().find(|(_, asked)| *asked) {
        return Err(ReshapeError::Unsupported(format!(
            "the setting `{name}` cannot be changed on f2fs; label, uuid, features, cold-extensions and hot-extensions can"
        )));
    }
    let mut head = vec![0; HEAD];
    device
        .read_at(DevOffset(0), &mut head)
        .map_err(ReshapeError::device(WHAT))?;
    let mut raw = valid(&head, Some(device.geometry().bytes))
        // The first one of several devices is smaller than the volume.
        .or_else(|_| valid(&head, None))?;
    if let Some(label) = &settings.label {
        let label = std::str::from_utf8(label)
            .map_err(|_| ReshapeError::Invalid("the label is not UTF-8".into()))?;
        raw.set_label(label).ok_or_else(|| {
            ReshapeError::Invalid("a label has at most 511 UTF-16 units, none of them 0".into())
        })?;
    }
    if let Some(uuid) = settings.uuid.filter(|uuid| *uuid != raw.uuid) {
        if raw.features().contains(Features::INODE_CHECKSUM) {
            return Err(ReshapeError::Unsupported(
                "the checksums of all inodes start from the UUID (inode_checksum)".into(),
            ));
        }
        raw.uuid = uuid;
    }
    if let Some(list) = &settings.features {
        super::features::change(&mut raw, list)?;
    }
    let (cold, hot) = (&settings.cold_extensions, &settings.hot_extensions);
    if cold.is_some() || hot.is_some() {
        super::extensions::change(&mut raw, cold.as_deref(), hot.as_deref())?;
    }
    Ok((head, raw))
}

fn write(device: &SharedDevice, head: &mut [u8], raw: &mut RawSuperblock) -> Result<()> {
    raw.set_checksum();
    for at in COPIES.into_iter().rev() {
        // Whole blocks: the device's may be of 4096 bytes.
        let start = at as usize / 4096 * 4096;
        let inside = at as usize;
        head[inside..inside + raw.as_bytes().len()].copy_from_slice(raw.as_bytes());
        device
            .write_at(
                DevOffset(start as u64),
                &head[start..start + 4096],
                Flags::empty(),
            )
            .and_then(|()| device.flush())
            .map_err(ReshapeError::device(WHAT))?;
    }
    Ok(())
}
