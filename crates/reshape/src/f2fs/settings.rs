//! Label, UUID, lists of extensions, and features.
//!
//! All are in the superblock, of which there are two copies of the same contents, in the first two blocks. None belongs to a checkpoint. The feature `quota` needs files
//! as well, which [`super::quota`] makes.
//!
//! # Crash order
//! Quota files, by a checkpoint; the second copy of the superblock, a flush, the first one, a flush. Whichever write is torn, the other copy is whole.

use blockwright_device::{DevOffset, Flags, SharedDevice};
use blockwright_ondisk::common::quota::layout::QuotaKind;
use blockwright_ondisk::f2fs::superblock::RawSuperblock;
use blockwright_ondisk::f2fs::{BLOCK_SIZE, Features, Superblock};
use zerocopy::IntoBytes;

use super::quota;
use super::store::Store;
use super::volume::Volume;
use crate::error::{ReshapeError, Result};
use crate::ext4::settings::Settings;
use crate::watch::Watch;

/// Where the copies are in bytes.
const COPIES: [u64; 2] = [1024, 4096 + 1024];
/// Bytes that hold both blocks.
const HEAD: usize = 8192;
const WHAT: &str = "superblock";

/// What is to be written.
struct Plan {
    /// Both blocks of the superblock, as they are.
    head: Vec<u8>,
    /// The superblock that is to be, but for its checksum and the quota files.
    raw: RawSuperblock,
    quota: Vec<QuotaKind>,
}

/// Changes settings of the f2fs volume on a device.
///
/// # Errors
/// `Unsupported` for settings that f2fs does not have, for features that cannot be changed, and for the UUID where checksums of inodes depend on it; `Invalid` for a
/// label that is too long or not UTF-8, and for lists that are invalid; `F2fs` when no copy of the superblock is valid. With `quota`, `NotClean`, `NoSpace` and damage
/// that is met on the way. Nothing was written then. Only `Device` and `Interrupted` may come after a part was changed.
pub fn set(device: &SharedDevice, settings: &Settings, watch: &Watch) -> Result<()> {
    rehearse(device, settings, watch)?;
    set_rehearsed(device, settings, watch)
}

/// Finds what would refuse [`set`], in memory. Nothing is written.
///
/// # Errors
/// As [`set`].
pub fn rehearse(device: &SharedDevice, settings: &Settings, watch: &Watch) -> Result<()> {
    let plan = planned(device, settings)?;
    if !plan.quota.is_empty() {
        let mut volume = Volume::open(Store::rehearsal(device.clone(), watch))?;
        quota::make(&mut volume, &plan.quota)?;
    }
    Ok(())
}

/// As [`set`], for a caller that has rehearsed the change ([`rehearse`]) while the volume was as it is now.
///
/// # Errors
/// As [`set`].
pub fn set_rehearsed(device: &SharedDevice, settings: &Settings, watch: &Watch) -> Result<()> {
    let mut plan = planned(device, settings)?;
    if !plan.quota.is_empty() {
        let mut volume = Volume::open(Store::new(device.clone(), watch.clone()))?;
        let files = quota::make(&mut volume, &plan.quota)?;
        if !volume.raw.features().contains(Features::QUOTA) {
            // What was there named no file.
            plan.raw.qf_ino.iter_mut().for_each(|ino| ino.set(0));
        }
        for (kind, ino) in files {
            plan.raw.qf_ino[kind as usize].set(ino.0);
        }
    }
    write(device, &mut plan)
}

/// Whether more than the superblock changes: then the volume must be clean.
///
/// # Errors
/// As [`set`].
pub fn is_more_than_superblock(device: &SharedDevice, settings: &Settings) -> Result<bool> {
    Ok(!planned(device, settings)?.quota.is_empty())
}

/// The copy of the superblock that counts, of a volume that is no larger than `bytes`. It is the one of [`Volume::open`].
fn valid(head: &[u8], bytes: Option<u64>) -> Result<RawSuperblock> {
    let parse = |block: &[u8]| Superblock::parse(block, bytes).map(|sb| sb.raw);
    let (first, second) = head.split_at(BLOCK_SIZE);
    Ok(parse(first).or_else(|e| parse(second).map_err(|_| e))?)
}

/// The superblock that these settings make.
fn planned(device: &SharedDevice, settings: &Settings) -> Result<Plan> {
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
    let mut quota = Vec::new();
    if let Some(list) = &settings.features {
        let old = raw;
        let named = super::features::change(&mut raw, list)?;
        // Also where the volume has the feature: a superblock that was torn may name no files.
        if named.intersects(Features::QUOTA | Features::PROJECT_QUOTA) {
            quota = quota::missing(&old, raw.features());
        }
    }
    let (cold, hot) = (&settings.cold_extensions, &settings.hot_extensions);
    if cold.is_some() || hot.is_some() {
        super::extensions::change(&mut raw, cold.as_deref(), hot.as_deref())?;
    }
    Ok(Plan { head, raw, quota })
}

fn write(device: &SharedDevice, plan: &mut Plan) -> Result<()> {
    let Plan { head, raw, .. } = plan;
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
