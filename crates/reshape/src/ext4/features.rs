//! What a change of the feature set takes, feature by feature.
//!
//! Everything is checked here, before anything is written. What cannot be changed safely is refused by its name, with the reason.

use blockwright_ondisk::ext4::superblock::MiscFlags;
use blockwright_ondisk::ext4::{Compat, Features, GroupFlags, Incompat, MetaSeed, RoCompat};

use super::checksums::keeps_checksums;
use super::volume::Volume;
use super::width::widened;
use crate::error::{ReshapeError, Result};

/// A change that is committed on its own, in the order in which changes are made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Step {
    /// The file of orphans goes.
    RemoveOrphans,
    /// Quota files go: that of projects, or all.
    RemoveQuota { only_project: bool },
    /// The block of multiple-mount protection goes.
    RemoveMmp,
    /// Directories lose their indexes.
    RemoveIndexes,
    /// Metadata loses its checksums.
    RemoveChecksums,
    /// Descriptors lose the checksums that metadata's leave behind.
    RemoveDescriptorChecksums,
    /// Block numbers become 64 bits wide (`on`), or 32.
    Width { on: bool },
    /// Metadata gets checksums, with a seed that is stored or that of the UUID.
    AddChecksums { stored_seed: bool },
    /// Quota files that are missing are made, with `project` also that of projects.
    AddQuota { project: bool },
    /// The file of orphans is made.
    AddOrphans,
    /// The block of multiple-mount protection is made.
    AddMmp,
}

/// What a change of settings comes to, all of it checked.
#[derive(Default)]
pub(super) struct Plan {
    /// Whether descriptors get other checksums.
    pub descriptors: bool,
    /// What was never written must be written before.
    pub unwritten: bool,
    /// The journal may have fast commits once it is there.
    pub fast_commit: bool,
    /// Changes that have transactions of their own, in their order.
    pub steps: Vec<Step>,
    /// The journal goes.
    pub remove_journal: bool,
    /// A journal of so many blocks is made.
    pub add_journal: Option<u64>,
    /// The journal that the caller has named becomes the volume's.
    pub attach: bool,
    /// The journal that goes is on a device that is lost.
    pub lost: bool,
    /// The journal on another device lists the volume by its new UUID.
    pub list_in_journal: bool,
    /// The journal on another device does not list the volume by this UUID any more: the volume has none, or will have none.
    pub forget_in_journal: Option<[u8; 16]>,
}

impl Plan {
    /// Whether more than the superblock and its copies changes.
    pub fn is_more_than_superblock(&self) -> bool {
        let journal = self.remove_journal || self.add_journal.is_some() || self.attach;
        self.descriptors || !self.steps.is_empty() || journal
    }
}

/// What a feature's change takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FeatureRule {
    /// The bit alone.
    Flag,
    /// The journal is made, or removed with the file of orphans, which needs it.
    Journal,
    /// One step.
    Step(Step),
    /// Quota files are made or removed. Quota and projects are looked at together.
    Quota,
    /// The descriptors' checksums change.
    Descriptors,
    /// All metadata gets or loses checksums.
    Checksums,
    /// Block numbers become wider or narrower.
    Width,
    /// The seed is stored, or derived from the UUID again.
    Seed,
    /// The hash of new indexes is chosen.
    Index,
    /// The encoding of names is chosen.
    Casefold,
    /// Small files may lie in inodes, which need room for attributes.
    InlineData,
    /// Refused, for this reason.
    No(&'static str),
}

/// The rule for setting (`on`) or clearing one feature.
fn rule(one: &Features, on: bool) -> FeatureRule {
    use FeatureRule::{
        Casefold, Checksums, Descriptors, Flag, Index, InlineData, Journal, No, Quota, Seed,
        Step as One, Width,
    };
    let uses = "files of the volume may need it";
    let layout = "it changes the layout of the volume, which mkfs decides";
    if let Some(compat) = Some(one.compat).filter(|c| !c.is_empty()) {
        return match (compat, on) {
            (Compat::HAS_JOURNAL, _) => Journal,
            (Compat::ORPHAN_FILE, false) => One(Step::RemoveOrphans),
            (Compat::ORPHAN_FILE, true) => One(Step::AddOrphans),
            (Compat::FAST_COMMIT | Compat::EXT_ATTR, true) | (Compat::FAST_COMMIT, false) => Flag,
            (Compat::STABLE_INODES, true) => Flag,
            (Compat::STABLE_INODES, false) => No("encryption policies may depend on it"),
            (Compat::DIR_INDEX, true) => Index,
            (Compat::DIR_INDEX, false) => One(Step::RemoveIndexes),
            (Compat::EXT_ATTR, false) => No(uses),
            (Compat::SPARSE_SUPER2, _) => {
                No("copies of the superblock would move to groups whose blocks may be in use")
            }
            (Compat::RESIZE_INODE, _) => {
                No("blocks for descriptors are reserved by mkfs, and are given up by a resize only")
            }
            _ => No(layout),
        };
    }
    if let Some(incompat) = Some(one.incompat).filter(|c| !c.is_empty()) {
        return match (incompat, on) {
            (Incompat::METADATA_CSUM_SEED, _) => Seed,
            (Incompat::BIT64, _) => Width,
            (Incompat::CASEFOLD, true) => Casefold,
            (Incompat::INLINE_DATA, true) => InlineData,
            (Incompat::MMP, true) => One(Step::AddMmp),
            (Incompat::MMP, false) => One(Step::RemoveMmp),
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
            (Incompat::FILETYPE, _) => No("every entry of every directory would change"),
            _ => No(layout),
        };
    }
    match (one.ro_compat, on) {
        (RoCompat::UNINIT_BG, _) => Descriptors,
        (RoCompat::QUOTA | RoCompat::PROJECT, _) => Quota,
        (
            RoCompat::LARGE_FILE
            | RoCompat::HUGE_FILE
            | RoCompat::DIR_NLINK
            | RoCompat::EXTRA_ISIZE
            | RoCompat::VERITY,
            true,
        ) => Flag,
        (
            RoCompat::LARGE_FILE
            | RoCompat::HUGE_FILE
            | RoCompat::DIR_NLINK
            | RoCompat::EXTRA_ISIZE
            | RoCompat::VERITY,
            false,
        ) => No(uses),
        (RoCompat::METADATA_CSUM, _) => Checksums,
        (RoCompat::READ_ONLY, _) => No("such a volume is not changed any more"),
        _ => No(layout),
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

fn parse(old: Features, list: &str) -> Result<Features> {
    old.parse(list)
        .map_err(|e| ReshapeError::Invalid(e.to_string()))
}

/// Whether a list clears `uninit_bg`, which a volume with `metadata_csum` does not have.
fn clears_uninit(mut old: Features, list: &str) -> Result<bool> {
    old.ro_compat |= RoCompat::UNINIT_BG;
    Ok(!parse(old, list)?.has_ro_compat(RoCompat::UNINIT_BG))
}

/// Whether the list says that there is to be no journal, also where there is none.
pub(super) fn clears_journal(mut features: Features, list: &str) -> Result<bool> {
    features.compat |= Compat::HAS_JOURNAL;
    Ok(!parse(features, list)?.has_compat(Compat::HAS_JOURNAL))
}

/// Plans the change that a list of features asks for. What is a bit alone is set in the volume's superblock, in memory.
///
/// # Errors
/// `Invalid` for unknown names and combinations that make no sense, `Unsupported` for what is refused.
pub(super) fn plan(volume: &mut Volume, list: &str, plan: &mut Plan) -> Result<()> {
    let old = volume.sb.features();
    let new = parse(old, list)?;
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
            FeatureRule::Step(step) => plan.steps.push(step),
            FeatureRule::Quota => {}
            FeatureRule::Journal if on => plan.add_journal = Some(0),
            FeatureRule::Journal => {
                plan.remove_journal = true;
                if new.has_compat(Compat::ORPHAN_FILE) && old.has_compat(Compat::ORPHAN_FILE) {
                    plan.steps.push(Step::RemoveOrphans);
                }
                plain.compat.remove(Compat::FAST_COMMIT);
            }
            FeatureRule::Checksums if on => plan.steps.push(Step::AddChecksums {
                stored_seed: new.has_incompat(Incompat::METADATA_CSUM_SEED),
            }),
            FeatureRule::Checksums => {
                if let Some(why) = keeps_checksums(&volume.sb) {
                    return Err(refuse(why));
                }
                plan.steps.push(Step::RemoveChecksums);
                if clears_uninit(old, list)? {
                    plan.steps.push(Step::RemoveDescriptorChecksums);
                }
            }
            FeatureRule::Width => {
                widened(&volume.sb, on)?;
                plan.steps.push(Step::Width { on });
            }
            // Metadata's checksums bring them along, or leave them behind.
            FeatureRule::Descriptors if old.metadata_csum() != new.metadata_csum() => {}
            FeatureRule::Descriptors => {
                if old.metadata_csum() {
                    return Err(refuse("metadata_csum takes its place"));
                }
                let flags = GroupFlags::INODE_UNINIT | GroupFlags::BLOCK_UNINIT;
                plan.unwritten |= !on
                    && volume
                        .descs
                        .iter()
                        .any(|d| d.flags.intersects(flags) || d.itable_unused != 0);
                flip();
                plan.descriptors = true;
            }
            FeatureRule::Seed => {
                let raw = &mut volume.sb.raw;
                let derived = MetaSeed::from_uuid(&raw.uuid).0;
                if !new.metadata_csum() && on {
                    return Err(refuse("the volume has no metadata_csum"));
                }
                if new.metadata_csum() != old.metadata_csum() {
                    // It comes and goes with the checksums.
                    continue;
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
            FeatureRule::InlineData => {
                if volume.sb.geo.inode_size <= 128 {
                    return Err(refuse("inodes of 128 bytes have no room for data"));
                }
                flip();
                // The data's second part is an attribute.
                plain.compat |= Compat::EXT_ATTR;
            }
        }
    }
    plan_quota(old, new, &mut plain, plan)?;
    check_together(volume, old, new, &mut plain, plan)?;
    volume.sb.raw.set_features(plain);
    plan.steps.sort_unstable();
    Ok(())
}

/// Quota files follow both features. Projects bring quota with them, and quota takes projects along when it goes, as with tune2fs.
fn plan_quota(old: Features, new: Features, plain: &mut Features, plan: &mut Plan) -> Result<()> {
    let has = |f: Features, bit: RoCompat| f.has_ro_compat(bit);
    let (quota, project) = (RoCompat::QUOTA, RoCompat::PROJECT);
    let started =
        (has(new, quota) && !has(old, quota)) || (has(new, project) && !has(old, project));
    if has(old, quota) && !has(new, quota) {
        if started {
            return Err(ReshapeError::Invalid("project needs quota".into()));
        }
        plan.steps.push(Step::RemoveQuota {
            only_project: false,
        });
    } else if started {
        plan.steps.push(Step::AddQuota {
            project: has(new, project),
        });
    }
    if has(old, project) && !has(new, project) {
        match (has(old, quota), has(new, quota)) {
            (true, true) => plan.steps.push(Step::RemoveQuota { only_project: true }),
            (true, false) => {}
            (false, _) => plain.ro_compat.remove(project),
        }
    }
    Ok(())
}

/// Features that need each other, or room in the inodes.
fn check_together(
    volume: &Volume,
    old: Features,
    new: Features,
    plain: &mut Features,
    plan: &mut Plan,
) -> Result<()> {
    let journal = new.has_compat(Compat::HAS_JOURNAL);
    for (bit, name) in [
        (Compat::FAST_COMMIT, "fast_commit"),
        (Compat::ORPHAN_FILE, "orphan_file"),
    ] {
        let stays = plain.has_compat(bit) || plan.steps.contains(&Step::AddOrphans);
        if new.has_compat(bit) && !old.has_compat(bit) && stays && !journal {
            return Err(ReshapeError::Invalid(format!("{name} needs has_journal")));
        }
    }
    if plain.has_compat(Compat::FAST_COMMIT) && plan.add_journal.is_some() {
        plain.compat.remove(Compat::FAST_COMMIT);
        plan.fast_commit = true;
    }
    let needs_room = (RoCompat::EXTRA_ISIZE | RoCompat::PROJECT) - old.ro_compat;
    if new.ro_compat.intersects(needs_room) && volume.sb.geo.inode_size <= 128 {
        return Err(ReshapeError::Unsupported(
            "inodes of 128 bytes have no room for the feature".into(),
        ));
    }
    Ok(())
}
