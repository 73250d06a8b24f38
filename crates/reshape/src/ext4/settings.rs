//! Settings of a volume: label, UUID, reserved blocks, behaviour on errors, mount options, features.
//!
//! A setting in the superblock alone changes by one write of the superblock, which is atomic. A setting that touches more goes through
//! `commit`. What is not possible is refused before anything is written: by a plan, and by a rehearsal. A change of more than the superblock is made over the volume in memory
//! first, so that damage or a lack of space that is met on the way ends it there. The memory is that of the metadata that changes.
//!
//! What cannot be changed safely is refused by its name (`features` has the rules).

use blockwright_device::SharedDevice;
use blockwright_ondisk::ext4::superblock::{DefaultMountOpts, ErrorBehaviour, JournalLocation};
use blockwright_ondisk::ext4::{Compat, Incompat, InodeFlags, RoCompat, Superblock};

use super::checksums::with_checksums;
use super::commit::Order;
use super::features::{self, Plan, Step};
use super::journal_device::Place;
use super::journal_file::{
    JOURNAL_BLOCKS_MAX, JOURNAL_BLOCKS_MIN, default_blocks, mapped_blocks_max, now,
};
use super::log::Log;
use super::lost_journal;
use super::volume::Volume;
use crate::error::{ReshapeError, Result};
use crate::watch::Watch;

pub use super::journal_device::ExternalJournal;
pub use super::lost_journal::LostJournal;

/// How much of a volume is kept for the super user.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Reserved {
    /// Hundredths of the volume, 0 to 50.
    Percent(f64),
    /// Bytes, rounded down to blocks.
    Bytes(u64),
}

/// What to change. `None` leaves a setting as it is.
#[derive(Clone, Default, Debug)]
pub struct Settings {
    /// The label: at most 16 bytes.
    pub label: Option<Vec<u8>>,
    /// The volume's UUID.
    pub uuid: Option<[u8; 16]>,
    /// Blocks for the super user.
    pub reserved: Option<Reserved>,
    /// The reaction to damage.
    pub errors: Option<ErrorBehaviour>,
    /// Seed of the directory hashes. Only volumes without indexed directories can change it.
    pub hash_seed: Option<[u8; 16]>,
    /// Changes of the default mount options, such as `acl,^user_xattr`.
    pub default_options: Option<String>,
    /// Changes of the features, such as `+fast_commit,^has_journal`.
    pub features: Option<String>,
    /// f2fs: changes of the names that make files cold, such as `mp4,^jpg`.
    pub cold_extensions: Option<String>,
    /// f2fs: changes of the names that make files hot.
    pub hot_extensions: Option<String>,
    /// Size of the journal in bytes: of a new one, or of one that replaces the volume's.
    pub journal_bytes: Option<u64>,
    /// The journal on another device: the one that the volume has, or with `has_journal` the one that it gets.
    pub journal: Option<ExternalJournal>,
    /// The journal on another device that `^has_journal` takes away is lost, and what is given up with it.
    pub lost_journal: Option<LostJournal>,
}

/// The names of default mount options, as `tune2fs -o` has them.
const OPTION_NAMES: [(&str, DefaultMountOpts); 12] = [
    ("debug", DefaultMountOpts::DEBUG),
    ("bsdgroups", DefaultMountOpts::BSDGROUPS),
    ("user_xattr", DefaultMountOpts::XATTR_USER),
    ("acl", DefaultMountOpts::ACL),
    ("uid16", DefaultMountOpts::UID16),
    ("journal_data", DefaultMountOpts::JMODE_DATA),
    ("journal_data_ordered", DefaultMountOpts::JMODE_ORDERED),
    (
        "journal_data_writeback",
        DefaultMountOpts::JMODE_DATA.union(DefaultMountOpts::JMODE_ORDERED),
    ),
    ("nobarrier", DefaultMountOpts::NOBARRIER),
    ("block_validity", DefaultMountOpts::BLOCK_VALIDITY),
    ("discard", DefaultMountOpts::DISCARD),
    ("nodelalloc", DefaultMountOpts::NODELALLOC),
];

/// Changes settings of the volume on a device.
///
/// # Errors
/// `Invalid` and `Unsupported` for what makes no sense or cannot be changed; `NotClean` for a volume that must be recovered or repaired first.
/// `NoSpace`, `Damaged` and `Format` for what is met on the way. Nothing was changed then: a change of more than the superblock is made in memory first. Only `Device` and
/// `Interrupted` (`watch` stops it) may come after a part of the list was changed. The volume is whole after the second, and its journal as large as before.
pub fn set(device: &SharedDevice, settings: &Settings, watch: &Watch) -> Result<()> {
    rehearse(device, settings, watch)?;
    set_rehearsed(device, settings, watch).map(|_| ())
}

/// As [`set`], for a caller that has rehearsed the change ([`rehearse`]) while the volume was as it is now. Tells what a volume that was not unmounted lost with its
/// journal.
///
/// # Errors
/// As [`set`].
pub fn set_rehearsed(
    device: &SharedDevice,
    settings: &Settings,
    watch: &Watch,
) -> Result<Option<LostJournal>> {
    let given_up = forget_lost(device, settings, true)?;
    if given_up.is_none() {
        let place = Place::new(device, settings.journal.as_ref());
        make(&place, settings, watch)?;
    }
    Ok(given_up)
}

/// Finds what would refuse [`set`], in memory. Nothing is written.
///
/// # Errors
/// As [`set`].
pub fn rehearse(device: &SharedDevice, settings: &Settings, watch: &Watch) -> Result<()> {
    if forget_lost(device, settings, false)?.is_some() {
        return Ok(());
    }
    let place = Place::new(device, settings.journal.as_ref());
    let (_, plan) = planned(&place, settings, watch)?;
    match plan.is_more_than_superblock() {
        true => make(&place.rehearsal(), settings, &watch.planning()),
        false => Ok(()),
    }
}

/// Takes a lost journal from a volume that is not clean, or only looks at that. `None`: the settings change as usual.
fn forget_lost(
    device: &SharedDevice,
    settings: &Settings,
    write: bool,
) -> Result<Option<LostJournal>> {
    let Some(lost) = settings.lost_journal else {
        return Ok(None);
    };
    let asked = lost_journal::Asked {
        features: settings.features.as_deref().unwrap_or_default(),
        more: settings.label.is_some()
            || settings.uuid.is_some()
            || settings.reserved.is_some()
            || settings.errors.is_some()
            || settings.hash_seed.is_some()
            || settings.default_options.is_some()
            || settings.cold_extensions.is_some()
            || settings.hot_extensions.is_some()
            || settings.journal_bytes.is_some()
            || settings.journal.is_some(),
    };
    lost_journal::forget(device, lost, &asked, write)
}

/// Makes what [`set`] has looked at.
fn make(place: &Place, settings: &Settings, watch: &Watch) -> Result<()> {
    let (mut volume, mut plan) = planned(place, settings, watch)?;
    let needs_log = plan.descriptors || !plan.steps.is_empty();
    let temporary = needs_log && (volume.sb.journal().is_none() || plan.lost) && !plan.attach;
    let begun = match (temporary, plan.attach) {
        (true, _) => with_journal(place, settings, watch, &plan).map(Some),
        (_, true) => attached(place, settings, watch).map(Some),
        _ => Ok(None),
    };
    let attach = plan.attach;
    let changed = begun.and_then(|begun| {
        if let Some(begun) = begun {
            (volume, plan) = begun;
        }
        apply(&mut volume, &plan)
    });
    if let Err(error) = changed {
        // A device that fails is left alone, and what was rehearsed goes anyway.
        if matches!(error, ReshapeError::Device { .. }) || place.rehearses {
            return Err(error);
        }
        let had = match temporary || attach {
            true => Some(0),
            false => volume.enlarged_from,
        };
        // What was committed stays.
        super::resize::give_up(place, had, volume.has_committed)?;
        return Err(error);
    }
    let whole = needs_log || plan.remove_journal || plan.add_journal.is_some();
    volume.write_backups(whole)
}

/// Gives the volume the journal that the caller has named, and plans the rest.
fn attached(place: &Place, settings: &Settings, watch: &Watch) -> Result<(Volume, Plan)> {
    Volume::open(place)?.attach_journal()?;
    planned(place, settings, watch)
}

/// Gives the volume a journal for the time of the change, which the plan removes. The one that was planned before takes its place.
fn with_journal(
    place: &Place,
    settings: &Settings,
    watch: &Watch,
    before: &Plan,
) -> Result<(Volume, Plan)> {
    let mut volume = Volume::open(place)?;
    let descriptors = u64::from(volume.sb.geo.desc_blocks) * 2;
    volume.add_journal(JOURNAL_BLOCKS_MIN + descriptors)?;
    // One that is lost has gone with this. One that is named is not the volume's: it only has to forget it.
    let settings = Settings {
        lost_journal: None,
        journal: None,
        ..settings.clone()
    };
    let (volume, mut plan) = planned(place, &settings, watch)?;
    plan.remove_journal = true;
    plan.add_journal = before.add_journal;
    plan.forget_in_journal = before.forget_in_journal;
    Ok((volume, plan))
}

/// Makes the changes of a plan.
fn apply(volume: &mut Volume, plan: &Plan) -> Result<()> {
    if plan.descriptors {
        if plan.unwritten {
            // With the superblock as it is: the new one knows no unwritten parts.
            volume.write_unwritten()?;
        }
        // Before anything is staged.
        let mut log = volume.log_for(volume.sb.geo.desc_blocks as usize + 2)?;
        volume.follow()?;
        volume.stage_descs()?;
        if plan.list_in_journal {
            volume.list_in_journal()?;
        }
        volume.commit_through(&mut log, Order::Log)?;
    } else {
        volume.follow()?;
        if plan.list_in_journal {
            volume.list_in_journal()?;
        }
        volume.commit_super()?;
    }
    for step in &plan.steps {
        match *step {
            Step::RemoveOrphans => volume.remove_orphan_file()?,
            Step::RemoveQuota { only_project } => volume.remove_quota(only_project)?,
            Step::RemoveMmp => volume.remove_mmp()?,
            Step::RemoveIndexes => volume.remove_indexes()?,
            Step::RemoveChecksums => volume.remove_checksums()?,
            Step::RemoveDescriptorChecksums => volume.remove_descriptor_checksums()?,
            Step::Width { on } => volume.set_width(on)?,
            Step::AddChecksums { stored_seed } => volume.add_checksums(stored_seed)?,
            Step::AddQuota { project } => volume.add_quota(project)?,
            Step::AddOrphans => volume.add_orphan_file()?,
            Step::AddMmp => volume.add_mmp()?,
        }
    }
    match plan.add_journal {
        Some(blocks) if plan.remove_journal => volume.replace_journal(blocks)?,
        Some(blocks) => volume.add_journal(blocks)?,
        None if plan.lost => volume.forget_journal()?,
        None if plan.remove_journal => volume.remove_journal()?,
        None => {
            if let Some(had) = volume.enlarged_from.take() {
                volume.replace_journal(had)?;
            }
        }
    }
    if plan.fast_commit {
        let mut features = volume.sb.raw.features();
        features.compat |= Compat::FAST_COMMIT;
        volume.sb.raw.set_features(features);
        volume.follow()?;
        volume.commit_super()?;
    }
    if let Some(uuid) = plan.forget_in_journal {
        volume.forget_in_journal(uuid)?;
    }
    Ok(())
}

/// The volume with its new superblock, and what else is to be done. Nothing is written.
fn planned(place: &Place, settings: &Settings, watch: &Watch) -> Result<(Volume, Plan)> {
    let mut volume = Volume::open_watched(place, watch)?;
    let mut plan = Plan::default();
    let list = settings.features.as_deref().unwrap_or_default();
    features::plan(&mut volume, list, &mut plan)?;
    plan_journal(&volume, settings, &mut plan)?;
    plan_identity(&mut volume, settings, &mut plan)?;
    plan_policy(&mut volume, settings)?;
    check_steps(&volume, &plan)?;
    volume.sb.raw.set_write_time(now() as u64);
    Ok((volume, plan))
}

/// Finds the reasons for which a step would be refused.
fn check_steps(volume: &Volume, plan: &Plan) -> Result<()> {
    if !plan.lost && (plan.descriptors || !plan.steps.is_empty()) {
        // Every transaction needs a journal that is here, and empty.
        Log::open(volume)?;
    }
    for step in &plan.steps {
        if let Step::AddChecksums { stored_seed } = *step {
            let new = Superblock::from_raw(with_checksums(&volume.sb.raw, stored_seed), None)?;
            let goes = |step| plan.steps.contains(&step);
            let all = Step::RemoveQuota {
                only_project: false,
            };
            // Files of quota that the list asks for come later.
            let quota = volume.sb.geo.features.has_ro_compat(RoCompat::QUOTA) && !goes(all);
            volume.check_room_for_tails(&new.geo, (quota, !goes(Step::RemoveIndexes)))?;
        }
    }
    Ok(())
}

/// Plans that the journal goes, whose device is lost.
fn plan_lost(volume: &Volume, settings: &Settings, plan: &mut Plan) -> Result<()> {
    let list = settings.features.as_deref().unwrap_or_default();
    if !features::clears_journal(volume.sb.features(), list)? {
        return Err(ReshapeError::Invalid(
            "a journal that is lost is taken away (features=^has_journal)".into(),
        ));
    }
    if settings.journal.is_some() {
        return Err(ReshapeError::Invalid(
            "a journal device is named: --force is for one that is lost".into(),
        ));
    }
    match volume.sb.journal() {
        // It was taken away before.
        None => {}
        Some(JournalLocation::External { .. }) => plan.lost = true,
        Some(JournalLocation::Internal(_)) => return Err(lost_journal::not_elsewhere()),
    }
    Ok(())
}

fn plan_journal(volume: &Volume, settings: &Settings, plan: &mut Plan) -> Result<()> {
    if settings.lost_journal.is_some() {
        plan_lost(volume, settings, plan)?;
    }
    if plan.lost {
        return match settings.journal_bytes {
            None => Ok(()),
            Some(_) => Err(ReshapeError::Invalid(
                "a size was given for the journal that is to be removed".into(),
            )),
        };
    }
    let has = volume.sb.features().has_compat(Compat::HAS_JOURNAL);
    let named = settings.journal.is_some();
    let elsewhere = matches!(volume.sb.journal(), Some(JournalLocation::External { .. }));
    if has && (plan.remove_journal || settings.journal_bytes.is_some() || (named && elsewhere)) {
        // Says so now if it is on a device that is not named, or not empty.
        Log::open(volume)?;
    }
    if named || elsewhere {
        let list = settings.features.as_deref().unwrap_or_default();
        if settings.journal_bytes.is_some() {
            return Err(ReshapeError::Invalid(
                "a journal on another device has the size of that device".into(),
            ));
        }
        match (has, elsewhere, plan.add_journal.take()) {
            (true, true, _) => {}
            (true, false, _) => {
                return Err(ReshapeError::Invalid(
                    "a journal device is named, but the volume's journal is not on another device (features=^has_journal removes it)".into(),
                ));
            }
            (false, _, Some(_)) => {
                volume.check_attachable()?;
                plan.attach = true;
            }
            // A detachment that was interrupted is made again.
            (false, _, None) if features::clears_journal(volume.sb.features(), list)? => {
                plan.forget_in_journal = Some(volume.committed.uuid);
            }
            (false, _, None) => {
                return Err(ReshapeError::Invalid(
                    "a journal device is named, but the volume has no journal (features=has_journal attaches it)".into(),
                ));
            }
        }
        return Ok(());
    }
    let geo = &volume.sb.geo;
    match settings.journal_bytes {
        Some(_) if plan.remove_journal => {
            return Err(ReshapeError::Invalid(
                "a size was given for the journal that is to be removed".into(),
            ));
        }
        Some(bytes) => {
            if !has && plan.add_journal.is_none() {
                return Err(ReshapeError::Invalid(
                    "the volume has no journal (features=+has_journal makes one)".into(),
                ));
            }
            plan.remove_journal = has;
            plan.add_journal = Some(bytes >> geo.block_bits);
        }
        None if plan.add_journal.is_some() => {
            plan.add_journal = Some(default_blocks(geo.blocks_count));
        }
        None => {}
    }
    if let Some(blocks) = plan.add_journal
        && !(JOURNAL_BLOCKS_MIN..=JOURNAL_BLOCKS_MAX).contains(&blocks)
    {
        return Err(ReshapeError::Invalid(format!(
            "a journal has {JOURNAL_BLOCKS_MIN} to {JOURNAL_BLOCKS_MAX} blocks, not {blocks}"
        )));
    }
    if let Some(blocks) = plan.add_journal
        && !volume.sb.features().has_incompat(Incompat::EXTENT)
        && blocks > mapped_blocks_max(geo)
    {
        return Err(ReshapeError::Invalid(format!(
            "a journal of {blocks} blocks is too large for a volume without extents, where it may have {}",
            mapped_blocks_max(geo)
        )));
    }
    // A new journal leaves half of what is free; one that replaces another has its room as well.
    let free = volume.sb.raw.free_blocks_count();
    let room = match plan.remove_journal {
        true => free + Log::open(volume)?.map_or(0, |log| log.len() as u64),
        false => free / 2,
    };
    if let Some(blocks) = plan.add_journal.filter(|blocks| *blocks > room) {
        return Err(ReshapeError::NoSpace(format!(
            "a journal of {blocks} blocks is too large for {free} free ones"
        )));
    }
    Ok(())
}

fn plan_identity(volume: &mut Volume, settings: &Settings, plan: &mut Plan) -> Result<()> {
    if let Some(label) = &settings.label {
        let raw = &mut volume.sb.raw;
        if label.len() > raw.volume_name.len() || label.contains(&0) {
            return Err(ReshapeError::Invalid(
                "a label has at most 16 bytes, none of them 0".into(),
            ));
        }
        raw.volume_name = [0; 16];
        raw.volume_name[..label.len()].copy_from_slice(label);
    }
    let old = volume.sb.raw.uuid;
    let elsewhere = matches!(volume.sb.journal(), Some(JournalLocation::External { .. }));
    if elsewhere && plan.remove_journal && !plan.lost {
        // It lists the volume by this one, which may change with the same list.
        plan.forget_in_journal = Some(old);
    }
    if let Some(uuid) = settings.uuid.filter(|_| elsewhere && !plan.remove_journal) {
        if settings.journal.is_none() {
            return Err(ReshapeError::Unsupported(
                "the journal on another device knows the volume by its UUID: name it (--journal)"
                    .into(),
            ));
        }
        volume.check_listed(uuid)?;
        plan.list_in_journal = true;
    }
    if let Some(uuid) = settings.uuid.filter(|uuid| *uuid != old) {
        let mut features = volume.sb.raw.features();
        if features.has_compat(Compat::STABLE_INODES) {
            return Err(ReshapeError::Unsupported(
                "the keys of encrypted files depend on the UUID (stable_inodes)".into(),
            ));
        }
        let loses = plan.steps.contains(&Step::RemoveChecksums);
        if features.has_incompat(Incompat::EA_INODE) && (loses || !features.metadata_csum()) {
            refuse_values(volume)?;
        }
        if features.metadata_csum() && !features.has_incompat(Incompat::METADATA_CSUM_SEED) {
            // Every checksum starts from the UUID. The stored seed keeps them valid.
            volume.sb.raw.checksum_seed.set(volume.sb.geo.seed.0);
            features.incompat |= Incompat::METADATA_CSUM_SEED;
            volume.sb.raw.set_features(features);
        }
        plan.descriptors |=
            features.has_ro_compat(RoCompat::UNINIT_BG) && !features.metadata_csum();
        volume.sb.raw.uuid = uuid;
    }
    if let Some(seed) = settings.hash_seed {
        let words: [u32; 4] = std::array::from_fn(|n| {
            u32::from_le_bytes([
                seed[n * 4],
                seed[n * 4 + 1],
                seed[n * 4 + 2],
                seed[n * 4 + 3],
            ])
        });
        if words != volume.sb.raw.hash_seed() {
            volume.scan_inodes(
                &mut |ino, inode| match inode.flags.contains(InodeFlags::INDEX) {
                    true => Err(ReshapeError::Unsupported(format!(
                        "directory {ino} has an index by the hash seed that the volume has"
                    ))),
                    false => Ok(()),
                },
            )?;
            for (to, word) in volume.sb.raw.hash_seed.iter_mut().zip(words) {
                to.set(word);
            }
        }
    }
    Ok(())
}

/// Refuses a new UUID where values of attributes lie in inodes and no seed is stored: their hashes start from the UUID.
fn refuse_values(volume: &Volume) -> Result<()> {
    volume.scan_inodes(
        &mut |ino, inode| match inode.flags.contains(InodeFlags::EA_INODE) {
            true => Err(ReshapeError::Unsupported(format!(
                "inode {ino} has the value of an attribute, whose hash starts from the UUID (metadata_csum would store the seed)"
            ))),
            false => Ok(()),
        },
    )
}

fn plan_policy(volume: &mut Volume, settings: &Settings) -> Result<()> {
    if settings.cold_extensions.is_some() || settings.hot_extensions.is_some() {
        return Err(ReshapeError::Unsupported(
            "lists of cold and hot extensions are f2fs's: ext4 has none".into(),
        ));
    }
    let geo = &volume.sb.geo;
    if let Some(reserved) = settings.reserved {
        let blocks = match reserved {
            Reserved::Bytes(bytes) => bytes >> geo.block_bits,
            Reserved::Percent(percent) if (0.0..=50.0).contains(&percent) => {
                (geo.blocks_count as f64 * percent / 100.0) as u64
            }
            Reserved::Percent(_) => geo.blocks_count,
        };
        if blocks > geo.blocks_count / 2 {
            return Err(ReshapeError::Invalid(
                "at most half of a volume is reserved".into(),
            ));
        }
        volume.sb.raw.set_reserved_blocks_count(blocks);
    }
    if let Some(errors) = settings.errors {
        volume.sb.raw.errors.set(errors.to_raw());
    }
    if let Some(list) = &settings.default_options {
        let jmode = DefaultMountOpts::JMODE_DATA | DefaultMountOpts::JMODE_ORDERED;
        let mut options =
            DefaultMountOpts::from_bits_retain(volume.sb.raw.default_mount_opts.get());
        for name in list
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty())
        {
            let clear = name.strip_prefix(['^', '-']);
            let plain = clear.unwrap_or_else(|| name.strip_prefix('+').unwrap_or(name));
            let Some((_, bits)) = OPTION_NAMES.iter().find(|(known, _)| *known == plain) else {
                let known: Vec<&str> = OPTION_NAMES.iter().map(|(name, _)| *name).collect();
                return Err(ReshapeError::Invalid(format!(
                    "`{plain}` is no default mount option (there are {})",
                    known.join(", ")
                )));
            };
            if bits.intersects(jmode) {
                options -= jmode;
            }
            options.set(*bits, clear.is_none());
        }
        volume.sb.raw.default_mount_opts.set(options.bits());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;
    use std::sync::Arc;

    use blockwright_device::{MemoryDevice, OverlayDevice};

    use super::*;

    /// A volume with many small files, made without checksums or with them.
    fn volume(dir: &Path, features: &str) -> SharedDevice {
        let tree = dir.join("tree");
        if !tree.exists() {
            std::fs::create_dir(&tree).expect("made");
            for n in 0..3000 {
                std::fs::write(tree.join(format!("{n}")), b"").expect("written");
            }
        }
        let image = dir.join("image");
        let mut mke2fs = Command::new("mke2fs");
        mke2fs.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-N", "4096", "-O"]);
        mke2fs.arg(features).arg("-d").arg(&tree).arg(&image);
        let out = mke2fs.arg("64M").output().expect("mke2fs runs");
        assert!(out.status.success(), "{out:?}");
        Arc::new(MemoryDevice::load(&image).expect("loaded"))
    }

    /// A rehearsal of checksums needs what later steps read, and not the inode tables: they are most of what a change writes.
    #[test]
    fn a_rehearsal_of_checksums_holds_no_inode_table() {
        if !blockwright_oracles::have(&["mke2fs"]) {
            return;
        }
        let dir = tempfile::tempdir().expect("a directory");
        for (before, list) in [
            ("^metadata_csum", "metadata_csum"),
            (
                "^metadata_csum",
                "metadata_csum,quota,project,orphan_file,mmp",
            ),
            ("metadata_csum", "^metadata_csum"),
        ] {
            let device = volume(dir.path(), before);
            let settings = Settings {
                features: Some(list.to_owned()),
                ..Settings::default()
            };
            let held = |rehearses| {
                let overlay = Arc::new(OverlayDevice::new(device.clone()));
                let place = Place {
                    device: overlay.clone(),
                    journal: None,
                    rehearses,
                };
                make(&place, &settings, &Watch::default()).expect("made");
                overlay.written_bytes()
            };
            let (change, rehearsal) = (held(false), held(true));
            // A few blocks of them change in later steps. Where checksums are cleared, the directory is not kept, either.
            let leaves = if list.starts_with('^') { 12 * 4096 } else { 0 };
            let saved = 3000 * 256 - 4 * 4096 + leaves;
            assert!(
                rehearsal + saved <= change,
                "{list}: {rehearsal} of {change} bytes"
            );
        }
    }
}
