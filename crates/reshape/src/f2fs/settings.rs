//! Label and UUID.
//!
//! Both are in the superblock, of which there are two copies of the same contents, in the first two blocks. Neither belongs to a checkpoint.
//!
//! # Crash order
//! The second copy, a flush, the first one, a flush. Whichever write is torn, the other copy is whole.

use blockwright_device::{DevOffset, Flags, SharedDevice};
use blockwright_ondisk::f2fs::Features;
use blockwright_ondisk::f2fs::checksum::MAGIC;
use blockwright_ondisk::f2fs::superblock::RawSuperblock;
use zerocopy::{FromBytes, IntoBytes};

use crate::error::{ReshapeError, Result};
use crate::ext4::settings::Settings;

/// Where the copies are in bytes.
const COPIES: [u64; 2] = [1024, 4096 + 1024];
/// Bytes that hold both blocks.
const HEAD: usize = 8192;
const WHAT: &str = "superblock";

/// Changes the label and the UUID of the f2fs volume on a device.
///
/// # Errors
/// `Unsupported` for every other setting, and for the UUID where checksums of inodes depend on it; `Invalid` for a label that is too long or not
/// UTF-8; `Damaged` when no copy of the superblock is valid.
pub fn set(device: &SharedDevice, settings: &Settings) -> Result<()> {
    let others = [
        ("reserved", settings.reserved.is_some()),
        ("errors", settings.errors.is_some()),
        ("hash-seed", settings.hash_seed.is_some()),
        ("default-options", settings.default_options.is_some()),
        ("features", settings.features.is_some()),
        ("journal-size", settings.journal_bytes.is_some()),
        ("force", settings.lost_journal.is_some()),
    ];
    if let Some((name, _)) = others.iter().find(|(_, asked)| *asked) {
        return Err(ReshapeError::Unsupported(format!(
            "the setting `{name}` cannot be changed on f2fs; `label` and `uuid` can"
        )));
    }
    let mut head = vec![0; HEAD];
    device
        .read_at(DevOffset(0), &mut head)
        .map_err(ReshapeError::device(WHAT))?;
    let mut raw = COPIES
        .iter()
        .filter_map(|at| RawSuperblock::read_from_prefix(&head[*at as usize..]).ok())
        .map(|(raw, _)| raw)
        .find(|raw| raw.magic.get() == MAGIC && raw.verify_checksum().is_ok())
        .ok_or_else(|| ReshapeError::Damaged("no copy of the superblock is valid".into()))?;
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
