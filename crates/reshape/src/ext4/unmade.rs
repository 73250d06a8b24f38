//! A change that its journal holds, and that the superblock has not made.
//!
//! A power failure leaves that between the two writes that commit a change by the superblock (`commit`, `Order::Superblock`). The journal holds one transaction of this crate then,
//! and the superblock, from before the change, asks for no replay. Nothing else of the volume has changed. A mount, by Linux or this library, drops the transaction, and `e2fsck -y`
//! replays it: both are right.
//!
//! Any other transaction of which the superblock knows nothing is left to the user: see [`ReshapeError::Undecided`](crate::ReshapeError::Undecided).

use blockwright_device::SharedDevice;
use blockwright_ondisk::ext4::jbd2::{DescriptorTags, JournalBlockType, TagFlags, block_header};
use blockwright_ondisk::ext4::superblock::SUPERBLOCK_OFFSET;
use blockwright_ondisk::ext4::{Incompat, RawSuperblock};

use super::journal_device::{ExternalJournal, Place};
use super::log::Log;
use super::volume::Volume;
use crate::error::Result;

/// Whether a mount may drop what the journal holds, because it is such a change. `false` for a volume that is not clean, and for one without its journal.
///
/// # Errors
/// `Device`.
pub fn holds_unmade_change(
    device: &SharedDevice,
    journal: Option<&ExternalJournal>,
) -> Result<bool> {
    // Whatever else is wrong is found by the change.
    let Ok(volume) = Volume::open(&Place::new(device, journal)) else {
        return Ok(false);
    };
    match Log::find(&volume) {
        Ok(Some(log)) => is_unmade(&volume, &log),
        Ok(None) | Err(_) => Ok(false),
    }
}

fn is_unmade(volume: &Volume, log: &Log) -> Result<bool> {
    if log.sb.start != Some(log.sb.first) || log.sb.errno != 0 {
        return Ok(false);
    }
    let sequence = log.sb.sequence;
    let superblock = volume.sb.geo.super_block();
    let mut logged: Option<RawSuperblock> = None;
    let mut at = log.sb.first;
    loop {
        let Some(block) = log.read(&volume.disk, at)? else {
            return Ok(false);
        };
        match block_header(&block) {
            Some((JournalBlockType::Descriptor, found)) if found == sequence => {}
            Some((JournalBlockType::Commit, found)) if found == sequence => break,
            _ => return Ok(false),
        }
        at += 1;
        for tag in DescriptorTags::new(&block, &log.sb.format) {
            let Ok(tag) = tag else { return Ok(false) };
            if tag.block == superblock && !tag.flags.contains(TagFlags::ESCAPE) {
                let offset = SUPERBLOCK_OFFSET - superblock.0 * u64::from(volume.sb.geo.block_size);
                let image = log.read(&volume.disk, at)?.unwrap_or_default();
                let image = image.get(offset as usize..).unwrap_or_default();
                logged = RawSuperblock::read(image).ok();
            }
            at += 1;
        }
    }
    // One transaction and no more.
    let next = log.read(&volume.disk, at + 1)?;
    let follows = next
        .as_deref()
        .and_then(block_header)
        .is_some_and(|(_, found)| found == sequence.wrapping_add(1));
    Ok(!follows && logged.is_some_and(|new| is_announced(&volume.committed, &new)))
}

/// Whether a superblock is that of a change that the superblock makes.
fn is_announced(old: &RawSuperblock, new: &RawSuperblock) -> bool {
    let mut features = new.features();
    features.incompat.remove(Incompat::NEEDS_RECOVERY);
    let announced = new.blocks_count() < old.blocks_count() || features != old.features();
    announced
        && new.features().has_incompat(Incompat::NEEDS_RECOVERY)
        && new.uuid == old.uuid
        && new.verify_checksum().is_ok()
}
