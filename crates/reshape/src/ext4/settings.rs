//! Settings of a volume: label, UUID, reserved blocks, behaviour on errors, mount options, features.
//!
//! A setting in the superblock alone changes by one write of the superblock, which is atomic. A setting that touches more goes through
//! `commit`. Everything asked for is checked before anything is written.
//!
//! A setting that cannot be changed safely is refused by its name. The list is that of
//! `FeatureRule`.

use blockwright_device::SharedDevice;
use blockwright_ondisk::ext4::superblock::{
    DefaultMountOpts, ErrorBehaviour, JournalLocation, MiscFlags,
};
use blockwright_ondisk::ext4::{Compat, Features, GroupFlags, Incompat, InodeFlags, RoCompat};

use super::commit::Order;
use super::journal_file::{JOURNAL_BLOCKS_MAX, JOURNAL_BLOCKS_MIN, default_blocks, now};
use super::log::Log;
use super::volume::Volume;
use crate::error::{ReshapeError, Result};

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
    /// Size of the journal in bytes: of a new one, or of one that replaces the volume's.
    pub journal_bytes: Option<u64>,
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

/// What a feature's change takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FeatureRule {
    /// The bit alone.
    Flag,
    /// The journal is made, or removed with the file of orphans, which needs it.
    Journal,
    /// The file of orphans is removed.
    Orphans,
    /// The descriptors' checksums change.
    Descriptors,
    /// The seed is stored, or derived from the UUID again.
    Seed,
    /// The hash of new indexes is chosen.
    Index,
    /// The encoding of names is chosen.
    Casefold,
    /// Refused, for this reason.
    No(&'static str),
}

/// The rule for setting (`on`) or clearing one feature.
fn rule(one: &Features, on: bool) -> FeatureRule {
    use FeatureRule::{Casefold, Descriptors, Flag, Index, Journal, No, Orphans, Seed};
    let uses = "files of the volume may need it";
    if let Some(compat) = Some(one.compat).filter(|c| !c.is_empty()) {
        return match (compat, on) {
            (Compat::HAS_JOURNAL, _) => Journal,
            (Compat::ORPHAN_FILE, false) => Orphans,
            (Compat::FAST_COMMIT | Compat::EXT_ATTR, true) | (Compat::FAST_COMMIT, false) => Flag,
            (Compat::STABLE_INODES, true) => Flag,
            (Compat::STABLE_INODES, false) => No("encryption policies may depend on it"),
            (Compat::DIR_INDEX, true) => Index,
            (Compat::DIR_INDEX, false) => No("directories may have indexes"),
            _ => No("it changes the layout of the volume"),
        };
    }
    if let Some(incompat) = Some(one.incompat).filter(|c| !c.is_empty()) {
        return match (incompat, on) {
            (Incompat::METADATA_CSUM_SEED, _) => Seed,
            (Incompat::CASEFOLD, true) => Casefold,
            (
                Incompat::LARGE_DIR | Incompat::EA_INODE | Incompat::EXTENT | Incompat::ENCRYPT,
                true,
            ) => Flag,
            (
                Incompat::LARGE_DIR
                | Incompat::EA_INODE
                | Incompat::EXTENT
                | Incompat::ENCRYPT
                | Incompat::CASEFOLD
                | Incompat::INLINE_DATA,
                false,
            ) => No(uses),
            _ => No("it changes the layout of the volume"),
        };
    }
    match (one.ro_compat, on) {
        (RoCompat::UNINIT_BG, _) => Descriptors,
        (
            RoCompat::LARGE_FILE
            | RoCompat::HUGE_FILE
            | RoCompat::DIR_NLINK
            | RoCompat::EXTRA_ISIZE
            | RoCompat::VERITY
            | RoCompat::PROJECT,
            true,
        ) => Flag,
        (RoCompat::PROJECT, false) => Flag,
        (
            RoCompat::LARGE_FILE
            | RoCompat::HUGE_FILE
            | RoCompat::DIR_NLINK
            | RoCompat::EXTRA_ISIZE
            | RoCompat::VERITY,
            false,
        ) => No(uses),
        (RoCompat::METADATA_CSUM, _) => No("every block of metadata would have to change at once"),
        (RoCompat::QUOTA, _) => No("quota files are made by mkfs only"),
        _ => No("it changes the layout of the volume"),
    }
}

/// The features that differ, one by one, with whether each is to be set.
fn changes(old: Features, new: Features) -> Vec<(Features, bool)> {
    let mut list = Vec::new();
    for bit in (0..32).map(|n| 1u32 << n) {
        let mut one = |on: bool, feature: Features| list.push((feature, on));
        if (old.compat.bits() ^ new.compat.bits()) & bit != 0 {
            let compat = Compat::from_bits_retain(bit);
            one(
                new.compat.contains(compat),
                Features {
                    compat,
                    ..Features::default()
                },
            );
        }
        if (old.incompat.bits() ^ new.incompat.bits()) & bit != 0 {
            let incompat = Incompat::from_bits_retain(bit);
            one(
                new.incompat.contains(incompat),
                Features {
                    incompat,
                    ..Features::default()
                },
            );
        }
        if (old.ro_compat.bits() ^ new.ro_compat.bits()) & bit != 0 {
            let ro_compat = RoCompat::from_bits_retain(bit);
            one(
                new.ro_compat.contains(ro_compat),
                Features {
                    ro_compat,
                    ..Features::default()
                },
            );
        }
    }
    list
}

/// The result of a change of settings, with everything checked.
#[derive(Default)]
struct Plan {
    /// Whether descriptors get other checksums.
    descriptors: bool,
    /// The journal may have fast commits once it is there.
    fast_commit: bool,
    /// The file of orphans goes.
    remove_orphans: bool,
    /// The journal goes.
    remove_journal: bool,
    /// A journal of this many blocks is made.
    add_journal: Option<u64>,
}

/// Changes settings of the volume on a device.
///
/// # Errors
/// `Invalid` and `Unsupported` for settings that are invalid or cannot be changed; `NotClean` for a volume that must be recovered or repaired first.
/// Nothing was changed then, and neither with `NoSpace`.
pub fn set(device: &SharedDevice, settings: &Settings) -> Result<()> {
    let (mut volume, mut plan) = planned(device, settings)?;
    let temporary = plan.descriptors && volume.sb.journal().is_none();
    if temporary {
        let descriptors = u64::from(volume.sb.geo.desc_blocks) * 2;
        Volume::open(device)?.add_journal(JOURNAL_BLOCKS_MIN + descriptors)?;
        // One that was asked for takes its place.
        let wanted = plan.add_journal;
        (volume, plan) = planned(device, settings)?;
        plan.remove_journal = true;
        plan.add_journal = wanted;
    }
    let fast_commit = plan.fast_commit;
    if plan.descriptors {
        // Before anything is staged.
        let mut log = Log::open(&volume)?
            .ok_or_else(|| ReshapeError::Damaged("there is no journal".into()))?;
        volume.follow()?;
        volume.stage_descs()?;
        volume.commit_through(&mut log, Order::Log)?;
    } else {
        volume.follow()?;
        volume.commit_super()?;
    }
    if plan.remove_orphans {
        volume.remove_orphan_file()?;
    }
    match plan.add_journal {
        Some(blocks) if plan.remove_journal => volume.replace_journal(blocks)?,
        Some(blocks) => volume.add_journal(blocks)?,
        None if plan.remove_journal => volume.remove_journal()?,
        None => {}
    }
    if fast_commit {
        let mut features = volume.sb.raw.features();
        features.compat |= Compat::FAST_COMMIT;
        volume.sb.raw.set_features(features);
        volume.follow()?;
        volume.commit_super()?;
    }
    volume.write_backups(plan.descriptors || plan.remove_journal || plan.add_journal.is_some())
}

/// The volume with its new superblock, and what else is to be done. Nothing is written.
fn planned(device: &SharedDevice, settings: &Settings) -> Result<(Volume, Plan)> {
    let mut volume = Volume::open(device)?;
    let mut plan = Plan::default();
    plan_features(&mut volume, settings, &mut plan)?;
    plan_identity(&mut volume, settings, &mut plan)?;
    plan_policy(&mut volume, settings)?;
    volume.sb.raw.set_write_time(now() as u64);
    Ok((volume, plan))
}

fn plan_features(volume: &mut Volume, settings: &Settings, plan: &mut Plan) -> Result<()> {
    let old = volume.sb.features();
    let list = settings.features.as_deref().unwrap_or_default();
    let new = old
        .parse(list)
        .map_err(|e| ReshapeError::Invalid(e.to_string()))?;
    let mut plain = old;
    for (one, on) in changes(old, new) {
        let name = one.to_string();
        let refuse = |why: &str| {
            let verb = if on { "set" } else { "cleared" };
            ReshapeError::Unsupported(format!("the feature {name} is not {verb}: {why}"))
        };
        let mut flip = || {
            plain.compat.set(one.compat, on);
            plain.incompat.set(one.incompat, on);
            plain.ro_compat.set(one.ro_compat, on);
        };
        match rule(&one, on) {
            FeatureRule::No(why) => return Err(refuse(why)),
            FeatureRule::Flag => flip(),
            FeatureRule::Journal if on => plan.add_journal = Some(0),
            FeatureRule::Orphans => plan.remove_orphans = true,
            FeatureRule::Journal => {
                plan.remove_journal = true;
                plan.remove_orphans |= old.has_compat(Compat::ORPHAN_FILE);
                plain.compat.remove(Compat::FAST_COMMIT);
            }
            FeatureRule::Descriptors => {
                let flags = GroupFlags::INODE_UNINIT | GroupFlags::BLOCK_UNINIT;
                if !on && volume.descs.iter().any(|d| d.flags.intersects(flags)) {
                    return Err(refuse("parts of the volume were never written"));
                }
                if old.metadata_csum() {
                    return Err(refuse("metadata_csum takes its place"));
                }
                flip();
                plan.descriptors = true;
            }
            FeatureRule::Seed => {
                let raw = &mut volume.sb.raw;
                let derived = blockwright_ondisk::ext4::MetaSeed::from_uuid(&raw.uuid).0;
                if !old.metadata_csum() {
                    return Err(refuse("the volume has no metadata_csum"));
                }
                if !on && raw.checksum_seed.get() != derived {
                    return Err(refuse("the UUID has changed since the seed was stored"));
                }
                raw.checksum_seed.set(if on { derived } else { 0 });
                flip();
            }
            FeatureRule::Index => {
                let raw = &mut volume.sb.raw;
                if raw.def_hash_version == 0 {
                    // Half MD4, which mke2fs chooses.
                    raw.def_hash_version = 1;
                }
                let signs = MiscFlags::SIGNED_HASH | MiscFlags::UNSIGNED_HASH;
                if !raw.misc_flags().intersects(signs) {
                    let flags = raw.misc_flags() | MiscFlags::SIGNED_HASH;
                    raw.flags.set(flags.bits());
                }
                flip();
            }
            FeatureRule::Casefold => {
                if old.has_incompat(Incompat::ENCRYPT) {
                    return Err(refuse(
                        "names of encrypted directories would change their hash",
                    ));
                }
                // UTF-8 of Unicode 12.1, not strict.
                volume.sb.raw.encoding.set(1);
                volume.sb.raw.encoding_flags.set(0);
                flip();
            }
        }
    }
    if plain.has_compat(Compat::FAST_COMMIT)
        && !(plain.has_compat(Compat::HAS_JOURNAL) || plan.add_journal.is_some())
    {
        return Err(ReshapeError::Invalid(
            "fast_commit needs has_journal".into(),
        ));
    }
    if plain.has_compat(Compat::FAST_COMMIT) && plan.add_journal.is_some() {
        plain.compat.remove(Compat::FAST_COMMIT);
        plan.fast_commit = true;
    }
    let needs_room = RoCompat::EXTRA_ISIZE | RoCompat::PROJECT;
    if plain.ro_compat.intersects(needs_room - old.ro_compat) && volume.sb.geo.inode_size <= 128 {
        return Err(ReshapeError::Unsupported(
            "inodes of 128 bytes have no room for the feature".into(),
        ));
    }
    volume.sb.raw.set_features(plain);
    plan_journal(volume, settings, plan)
}

fn plan_journal(volume: &Volume, settings: &Settings, plan: &mut Plan) -> Result<()> {
    let has = volume.sb.features().has_compat(Compat::HAS_JOURNAL);
    if has && (plan.remove_journal || settings.journal_bytes.is_some()) {
        // Says so now if it is on another device, or not empty.
        Log::open(volume)?;
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
    if let Some(uuid) = settings.uuid.filter(|uuid| *uuid != old) {
        let mut features = volume.sb.raw.features();
        if let Some(JournalLocation::External { .. }) = volume.sb.journal() {
            return Err(ReshapeError::Unsupported(
                "the journal on another device knows the volume by its UUID".into(),
            ));
        }
        if features.has_compat(Compat::STABLE_INODES) {
            return Err(ReshapeError::Unsupported(
                "the keys of encrypted files depend on the UUID (stable_inodes)".into(),
            ));
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

fn plan_policy(volume: &mut Volume, settings: &Settings) -> Result<()> {
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
