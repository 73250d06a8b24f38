//! A volume whose journal was on another device, which is lost.
//!
//! A clean volume loses nothing with its journal: `settings` takes the journal away beside the other changes. Of one that was not unmounted, this part changes nothing but
//! the superblock, because nothing else can be trusted before a check.
//!
//! # Crash order
//! One write of the superblock, then its copies.
//!
//! # Not responsible for
//! The files that transactions in the lost journal had changed: a check makes the volume consistent without them.

use blockwright_device::SharedDevice;
use blockwright_ondisk::ext4::superblock::{JournalLocation, State};
use blockwright_ondisk::ext4::{Compat, Features, Incompat, RawSuperblock, RoCompat};

use super::features::clears_journal;
use super::journal_file::name_journal;
use super::volume::{check_use, read_super, write_super_copies};
use crate::error::{ReshapeError, Result};

/// What a caller gives up with a journal whose device is lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LostJournal {
    /// The journal alone. Refused while transactions may wait in it.
    Journal,
    /// The transactions that wait in it as well: changes that programs were told are durable are gone, and the volume must be checked.
    Transactions,
}

/// Whether the volume must be checked, or its journal replayed, before anything but the superblock may change.
fn is_unclean(raw: &RawSuperblock) -> bool {
    let (features, state) = (raw.features(), raw.state());
    features.has_incompat(Incompat::NEEDS_RECOVERY)
        || features.has_ro_compat(RoCompat::ORPHAN_PRESENT)
        || raw.last_orphan.get() != 0
        || !state.contains(State::CLEAN)
        || state.contains(State::ERROR)
        || raw.error_count.get() != 0
}

/// The features without the journal.
fn without_journal(mut features: Features) -> Features {
    features.compat -= Compat::HAS_JOURNAL | Compat::FAST_COMMIT;
    features.incompat -= Incompat::NEEDS_RECOVERY;
    features
}

/// What a caller asks for beside the removal of a lost journal.
pub(super) struct Asked<'a> {
    /// Changes of the features.
    pub features: &'a str,
    /// Whether other settings are to change.
    pub more: bool,
}

/// Takes the lost journal of a volume that is not clean from its superblock, and tells what is given up. `None`: the volume is clean, and nothing was done. With `write` off
/// it only finds what would refuse that.
///
/// # Errors
/// `Invalid` when something else is asked for, too, or the journal is not on another device; `Unsupported` when transactions wait that are not given up; `NotClean` for
/// a volume in use; `Format`, `Device`.
pub(super) fn forget(
    device: &SharedDevice,
    lost: LostJournal,
    asked: &Asked<'_>,
    write: bool,
) -> Result<Option<LostJournal>> {
    let sb = read_super(device)?;
    if !is_unclean(&sb.raw) {
        return Ok(None);
    }
    let old = sb.features();
    match sb.journal() {
        Some(JournalLocation::External { .. }) => {}
        Some(JournalLocation::Internal(_)) => return Err(not_elsewhere()),
        None => {
            return Err(ReshapeError::NotClean(
                "the volume has no journal, and was not unmounted",
            ));
        }
    }
    let list = asked.features;
    let new = old
        .parse(list)
        .map_err(|e| ReshapeError::Invalid(e.to_string()))?;
    if !clears_journal(old, list)? || without_journal(new) != without_journal(old) || asked.more {
        return Err(ReshapeError::Invalid(
            "the volume was not unmounted: its lost journal is taken away alone (features=^has_journal), and other settings change after a check".into(),
        ));
    }
    check_use(device, &sb)?;
    let waits = old.has_incompat(Incompat::NEEDS_RECOVERY);
    if waits && lost != LostJournal::Transactions {
        return Err(ReshapeError::Unsupported(
            "transactions wait in the lost journal, and would be lost with it: --lose-transactions gives them up".into(),
        ));
    }
    let given_up = Some(match waits {
        true => LostJournal::Transactions,
        false => LostJournal::Journal,
    });
    if !write {
        return Ok(given_up);
    }
    let mut raw = sb.raw;
    name_journal(&mut raw, None);
    raw.set_features(without_journal(raw.features()));
    if waits {
        // Of what the transactions changed, some blocks are old and some are new.
        raw.state
            .set(((raw.state() - State::CLEAN) | State::ERROR).bits());
    }
    write_super_copies(device, &sb, &raw)?;
    Ok(given_up)
}

/// The journal that is said to be lost is in the volume.
pub(super) fn not_elsewhere() -> ReshapeError {
    ReshapeError::Invalid(
        "the volume's journal is not on another device: features=^has_journal removes it without --force".into(),
    )
}
