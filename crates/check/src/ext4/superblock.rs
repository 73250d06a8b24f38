//! The superblock: finding one, its fields, and storing it again.

use blockwright_device::SharedDevice;
use blockwright_ondisk::common::casefold::ENCODING_UTF8_12_1;
use blockwright_ondisk::ext4::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, State};
use blockwright_ondisk::ext4::{
    BlockNo, Compat, FormatError, GroupNo, Incompat, Ino, RawSuperblock, RoCompat, Superblock, mmp,
};

use super::context::{Checker, Log};
use super::issue::IssueKind;
use super::layout_features;
use super::lost_features;
use super::store::Store;
use super::{CheckError, CheckOptions, Phase};
use crate::Mode;

/// Copies of the superblock that are kept up to date; before `sparse_super` every group had one.
const SUPER_COPIES_MAX: usize = 64;
/// Clocks differ; a day is not the future.
const TIME_FUDGE: u64 = 24 * 60 * 60;

fn read_super(device: &SharedDevice, offset: u64) -> Result<RawSuperblock, CheckError> {
    let bytes = Store::read_bytes(&**device, offset, SUPERBLOCK_SIZE, "superblock")?;
    RawSuperblock::read(&bytes).map_err(|source| CheckError::NoSuperblock { source })
}

/// Validates a superblock, checksum included, as far as everything else depends on it.
fn validate(raw: &RawSuperblock, bytes: u64) -> Result<Superblock, FormatError> {
    if raw.magic.get() != blockwright_ondisk::ext4::superblock::MAGIC {
        return Err(FormatError::SuperMagic {
            found: raw.magic.get(),
        });
    }
    // Revision 0 has no features; a superblock with both has lost its revision, and with it what
    // the fields behind it mean.
    let words = [
        raw.feature_compat.get(),
        raw.feature_incompat.get(),
        raw.feature_ro_compat.get(),
    ];
    if raw.rev_level.get() == 0 && words != [0; 3] {
        return Err(FormatError::SuperRevision { found: 0 });
    }
    let sb = lenient(raw, bytes)?;
    raw.verify_checksum()?;
    Ok(sb)
}

/// Validates only the geometry: wrong special inode numbers are issues of their own.
fn lenient(raw: &RawSuperblock, bytes: u64) -> Result<Superblock, FormatError> {
    let geo = blockwright_ondisk::ext4::Geometry::from_superblock(raw, Some(bytes))?;
    Ok(Superblock { raw: *raw, geo })
}

/// No volume was ever made with another first inode; with a larger one, all files below it would be taken for misused reserved inodes, and cleared. It becomes the
/// usual one: what it was.
pub(super) fn first_inode(sb: &mut Superblock) -> Option<IssueKind> {
    let first = sb.raw.first_ino.get();
    let standard = Ino::FIRST_NON_RESERVED.0;
    if sb.raw.rev_level.get() == 0 || first == standard {
        return None;
    }
    sb.raw.first_ino.set(standard);
    sb.geo.first_ino = Ino(standard);
    Some(IssueKind::SuperblockField {
        field: "first inode",
        found: u64::from(first),
    })
}

/// Looks for a copy of the superblock where volumes of each block size keep them.
fn find_copy(
    device: &SharedDevice,
    bytes: u64,
    primary: &RawSuperblock,
) -> Option<(Superblock, BlockNo)> {
    let sizes = [4096u64, 1024, 2048, 8192, 16384, 32768, 65536];
    // Groups of the size nearly all volumes have; then of the size the bad superblock says.
    let said = u64::from(primary.blocks_per_group.get());
    let places = sizes
        .iter()
        .map(|size| (*size, size * 8))
        .chain(sizes.iter().map(|size| (*size, said)))
        .filter(|(_, per_group)| *per_group > 0);
    for (block_size, per_group) in places {
        let first = u64::from(block_size == 1024);
        for group in [1, 3, 5, 7, 9, 25] {
            let block = first + group * per_group;
            let offset = block * block_size;
            if offset + SUPERBLOCK_SIZE as u64 > bytes {
                break;
            }
            let Ok(raw) = read_super(device, offset) else {
                continue;
            };
            match validate(&raw, bytes) {
                Ok(sb) if u64::from(sb.geo.block_size) == block_size => {
                    return Some((sb, BlockNo(block)));
                }
                _ => {}
            }
        }
    }
    None
}

impl Checker {
    /// Finds a usable superblock.
    pub fn open(device: SharedDevice, options: &CheckOptions) -> Result<Self, CheckError> {
        Self::open_or(device, options, Err)
    }

    /// As [`Checker::open`]. `unread` is asked when the device cannot read what speaks for or against the features of the layout: with `Ok` they
    /// stay as they are.
    pub fn open_or(
        device: SharedDevice,
        options: &CheckOptions,
        unread: impl FnOnce(CheckError) -> Result<(), CheckError>,
    ) -> Result<Self, CheckError> {
        let bytes = device.geometry().bytes;
        let mut log = Log::new(options.mode, options.max_issues);
        if bytes < SUPERBLOCK_OFFSET + SUPERBLOCK_SIZE as u64 {
            return Err(CheckError::TooSmall { bytes });
        }
        let mut found_bad = None;
        let sb = if let Some(block) = options.superblock {
            Self::open_copy(&device, block, bytes)?
        } else {
            let raw = read_super(&device, SUPERBLOCK_OFFSET)?;
            match validate(&raw, bytes) {
                Ok(sb) if lost_features::suspected(&sb) => {
                    let copy = find_copy(&device, bytes, &raw)
                        .filter(|(copy, _)| copy.raw.uuid == raw.uuid || raw.uuid == [0; 16])
                        .filter(|(copy, _)| !lost_features::suspected(copy))
                        .map(|(copy, _)| copy);
                    let found = match copy {
                        Some(copy) => Some(copy),
                        None => lost_features::evident(&device, &sb)?
                            .and_then(|raw| lenient(&raw, bytes).ok()),
                    };
                    match found {
                        Some(found) => {
                            found_bad = Some(IssueKind::FeaturesLost);
                            found
                        }
                        None => sb,
                    }
                }
                Ok(sb) => {
                    let copy = || find_copy(&device, bytes, &raw).map(|(copy, _)| copy);
                    let lenient = |raw: &RawSuperblock| lenient(raw, bytes).ok();
                    let fitting = layout_features::fitting(&device, &sb, copy, lenient)
                        .or_else(|e| unread(e).map(|()| None))?;
                    match fitting {
                        Some(fitting) => {
                            found_bad = Some(IssueKind::FeaturesContradicted {
                                what: layout_features::difference(&sb, &fitting),
                            });
                            fitting
                        }
                        None => sb,
                    }
                }
                Err(source @ FormatError::SuperPastDevice { .. }) => {
                    return Err(CheckError::DeviceTooSmall { source });
                }
                Err(source @ FormatError::SuperIsJournalDevice) => {
                    return Err(CheckError::NoSuperblock { source });
                }
                Err(source) => match find_copy(&device, bytes, &raw) {
                    Some((copy, backup)) => {
                        found_bad = Some(IssueKind::SuperblockBad {
                            error: source.into(),
                            backup,
                        });
                        copy
                    }
                    None => match (lenient(&raw, bytes), &source) {
                        (Ok(sb), FormatError::SuperChecksum { .. }) => {
                            found_bad = Some(IssueKind::SuperblockChecksum {
                                error: source.into(),
                            });
                            sb
                        }
                        _ => return Err(CheckError::NoSuperblock { source }),
                    },
                },
            }
        };
        let mut sb = sb;
        let first_repaired = first_inode(&mut sb).is_some_and(|kind| log.problem(kind));
        let features = sb.geo.features;
        let mut names = features.unsupported_incompat(Incompat::KNOWN);
        names.extend(features.unsupported_ro_compat(RoCompat::KNOWN - RoCompat::BTREE_DIR));
        let unknown_compat = features.compat.difference(Compat::KNOWN);
        if unknown_compat != Compat::empty() {
            let only = blockwright_ondisk::ext4::Features {
                compat: unknown_compat,
                ..Default::default()
            };
            names.extend(only.names());
        }
        // Nothing says how its names are folded; neither Linux nor e2fsck takes it.
        let encoding = sb.raw.encoding.get();
        if features.has_incompat(Incompat::CASEFOLD) && encoding != ENCODING_UTF8_12_1 {
            names.push(format!("name encoding {encoding}"));
        }
        if !names.is_empty() {
            return Err(CheckError::Unsupported { names });
        }
        let repair = found_bad.is_some_and(|kind| log.problem(kind));
        let store = Store::new(device, sb.geo.block_len(), sb.geo.blocks_count);
        let mut checker = Self::new(store, sb.geo, sb.raw, log, options);
        if first_repaired || repair || (options.superblock.is_some() && options.mode == Mode::Yes) {
            checker.sb.block_group_nr.set(0);
            checker.touch_superblock();
        }
        checker.check_mmp()?;
        checker.load_groups()?;
        Ok(checker)
    }

    fn open_copy(device: &SharedDevice, block: u64, bytes: u64) -> Result<Superblock, CheckError> {
        let mut error = FormatError::SuperMagic { found: 0 };
        for log in 0..7u32 {
            let size = 1024u64 << log;
            let offset = match block {
                0 => SUPERBLOCK_OFFSET,
                n => n.saturating_mul(size),
            };
            if offset.saturating_add(SUPERBLOCK_SIZE as u64) > bytes {
                break;
            }
            let raw = read_super(device, offset)?;
            match validate(&raw, bytes) {
                Ok(sb) if u64::from(sb.geo.block_size) == size => return Ok(sb),
                Ok(_) => {}
                Err(found) => error = found,
            }
        }
        Err(CheckError::NoSuperblockCopy {
            block,
            source: error,
        })
    }

    fn check_mmp(&mut self) -> Result<(), CheckError> {
        let sb = Superblock {
            raw: self.sb,
            geo: (*self.geo).clone(),
        };
        let block = match sb.mmp_block() {
            Ok(None) => return Ok(()),
            Ok(Some(block)) => block,
            Err(error) => {
                if self.problem(IssueKind::Mmp {
                    error: error.into(),
                }) {
                    // Without a place for it the protection goes.
                    let mut features = self.sb.features();
                    features.incompat.remove(Incompat::MMP);
                    self.sb.mmp_block.set(0);
                    self.sb.set_features(features);
                    self.follow_features();
                }
                return Ok(());
            }
        };
        let bytes = self.store.read(block, "multiple-mount-protection block")?;
        match mmp::RawMmp::parse(&bytes, &self.geo) {
            Ok(raw) => {
                let seq = raw.seq.get();
                if seq != mmp::SEQ_CLEAN {
                    let host = String::from_utf8_lossy(raw.host()).into_owned();
                    if self.repairing() && seq != mmp::SEQ_FSCK {
                        return Err(CheckError::InUse { host });
                    }
                    self.problem(IssueKind::MmpInUse { host });
                }
            }
            Err(error) => {
                if self.problem(IssueKind::Mmp {
                    error: error.into(),
                }) {
                    self.reset_mmp(block, bytes)?;
                }
            }
        }
        Ok(())
    }

    fn reset_mmp(&mut self, block: BlockNo, mut bytes: Vec<u8>) -> Result<(), CheckError> {
        bytes.fill(0);
        bytes[..4].copy_from_slice(&mmp::MAGIC.to_le_bytes());
        bytes[4..8].copy_from_slice(&mmp::SEQ_CLEAN.to_le_bytes());
        let interval = self.sb.mmp_interval.get().max(5);
        bytes[0x70..0x72].copy_from_slice(&interval.to_le_bytes());
        if self.geo.metadata_csum() {
            let sum = self.geo.seed.mmp(&bytes);
            bytes[0x3FC..0x400].copy_from_slice(&sum.to_le_bytes());
        }
        self.write(block, bytes);
        Ok(())
    }

    /// The features of the superblock were changed: everything derived from them follows.
    pub fn follow_features(&mut self) {
        let bytes = u64::MAX;
        if let Ok(sb) = lenient(&self.sb, bytes) {
            self.geo = std::sync::Arc::new(sb.geo);
        }
        self.sb_copies = true;
        self.touch_superblock();
    }

    /// Sets features that what is on the volume shows. A volume of revision 0, which has none, becomes
    /// one of revision 1 with the sizes that revision 0 implies.
    pub fn set_first_features(&mut self, features: blockwright_ondisk::ext4::Features) {
        if self.sb.rev_level.get() == 0 {
            self.sb.rev_level.set(1);
            self.sb.first_ino.set(self.geo.first_ino.0);
            self.sb.inode_size.set(self.geo.inode_size);
        }
        self.sb.set_features(features);
        self.follow_features();
    }

    /// Checks the superblock's remaining fields.
    pub fn check_superblock(&mut self) -> Result<(), CheckError> {
        self.report_progress(Phase::Volume, 0, 1)?;
        self.check_superblock_numbers();
        self.check_reserved_descriptors()?;
        self.check_feature_contradictions()?;
        self.check_superblock_times();
        if self.sb.uuid == [0; 16] && self.problem(IssueKind::UuidMissing) {
            // Not a random one: repairs are reproducible. The checksum seed moves with it, so
            // only volumes without checksums can get one here.
            if !self.geo.metadata_csum() {
                let mut uuid = [0u8; 16];
                uuid[..8].copy_from_slice(&self.now.to_le_bytes());
                uuid[6] = 0x40;
                uuid[8..].copy_from_slice(&[0x80, 0, 0, 0, 0, 0, 0, 1]);
                self.sb.uuid = uuid;
                self.follow_features();
            }
        }
        let state = self.sb.state();
        if state.contains(State::ERROR) || self.sb.error_count.get() != 0 {
            self.problem(IssueKind::MarkedErroneous);
        } else if !state.contains(State::CLEAN) && self.replayed == 0 {
            self.problem(IssueKind::NotUnmounted);
        }
        Ok(())
    }

    fn check_superblock_numbers(&mut self) {
        let geo = self.geo.clone();
        let reserved = self.sb.reserved_blocks_count();
        if reserved > geo.blocks_count / 2
            && self.problem(IssueKind::SuperblockField {
                field: "number of reserved blocks",
                found: reserved,
            })
        {
            self.sb.set_reserved_blocks_count(geo.blocks_count / 20);
            self.touch_superblock();
        }
        let for_growth = u64::from(self.sb.reserved_gdt_blocks.get());
        if for_growth != 0
            && !geo.features.has_compat(Compat::RESIZE_INODE)
            && self.problem(IssueKind::SuperblockField {
                field: "number of blocks reserved for descriptors",
                found: for_growth,
            })
        {
            self.sb.reserved_gdt_blocks.set(0);
            self.follow_features();
            self.touch_superblock();
        }
        // Without clusters the field is a second copy of the blocks per group.
        let clusters = self.sb.clusters_per_group.get();
        if clusters != geo.clusters_per_group
            && self.problem(IssueKind::SuperblockField {
                field: "number of clusters per group",
                found: u64::from(clusters),
            })
        {
            self.sb.clusters_per_group.set(geo.clusters_per_group);
            self.touch_superblock();
        }
        let room = geo.inode_size - 128;
        let bad = |n: u16| n != 0 && (n < 4 || n > room || !n.is_multiple_of(4));
        let (least, wanted) = (
            self.sb.min_extra_isize.get(),
            self.sb.want_extra_isize.get(),
        );
        for (field, found, is_least) in [
            ("least extra inode size", least, true),
            ("wanted extra inode size", wanted, false),
        ] {
            if room > 0
                && bad(found)
                && self.problem(IssueKind::SuperblockField {
                    field,
                    found: u64::from(found),
                })
            {
                let size = room.min(32);
                if is_least {
                    self.sb.min_extra_isize.set(size);
                } else {
                    self.sb.want_extra_isize.set(size);
                }
                self.touch_superblock();
            }
        }
        let first = geo.first_ino.0;
        let f = geo.features;
        let journal = self.sb.journal_inum.get();
        let legal =
            |ino: u32, reserved: u32| ino == reserved || (ino >= first && ino <= geo.inodes_count);
        if f.has_compat(Compat::HAS_JOURNAL)
            && journal != 0
            && !legal(journal, 8)
            && self.problem(IssueKind::SuperblockField {
                field: "journal inode",
                found: u64::from(journal),
            })
        {
            self.sb.journal_inum.set(8);
            self.touch_superblock();
        }
        let orphan_file = self.sb.orphan_file_inum.get();
        if f.has_compat(Compat::ORPHAN_FILE)
            && (orphan_file < first || orphan_file > geo.inodes_count)
            && self.problem(IssueKind::SuperblockField {
                field: "orphan file inode",
                found: u64::from(orphan_file),
            })
        {
            let mut features = self.sb.features();
            features.compat.remove(Compat::ORPHAN_FILE);
            features.ro_compat.remove(RoCompat::ORPHAN_PRESENT);
            self.sb.orphan_file_inum.set(0);
            self.sb.set_features(features);
            self.follow_features();
        }
        let quota = [
            (self.sb.usr_quota_inum.get(), 3, "user quota inode"),
            (self.sb.grp_quota_inum.get(), 4, "group quota inode"),
            (self.sb.prj_quota_inum.get(), 0, "project quota inode"),
        ];
        let keeps_quota = f.has_ro_compat(RoCompat::QUOTA);
        for (n, (ino, reserved, field)) in quota.into_iter().enumerate() {
            // Without the feature only e2fsck looks at them: it removes the names of such an inode.
            let odd = !legal(ino, reserved) || !keeps_quota && ino >= first;
            if ino != 0
                && odd
                && self.problem(IssueKind::SuperblockField {
                    field,
                    found: u64::from(ino),
                })
            {
                match n {
                    0 => self.sb.usr_quota_inum.set(0),
                    1 => self.sb.grp_quota_inum.set(0),
                    _ => self.sb.prj_quota_inum.set(0),
                }
                self.touch_superblock();
            }
        }
        let last_orphan = self.sb.last_orphan.get();
        if last_orphan != 0
            && (last_orphan < first || last_orphan > geo.inodes_count)
            && self.problem(IssueKind::OrphanList {
                ino: last_orphan.into(),
                what: "head of the list is no inode",
            })
        {
            self.sb.last_orphan.set(0);
            self.touch_superblock();
        }
    }

    fn check_feature_contradictions(&mut self) -> Result<(), CheckError> {
        let features = self.sb.features();
        let mut fixed = features;
        if features.has_ro_compat(RoCompat::METADATA_CSUM)
            && features.has_ro_compat(RoCompat::UNINIT_BG)
            && self.problem(IssueKind::FeatureContradiction {
                what: "metadata_csum and uninit_bg are both set",
            })
        {
            fixed.ro_compat.remove(RoCompat::UNINIT_BG);
        }
        if features.has_compat(Compat::RESIZE_INODE)
            && features.has_incompat(Incompat::META_BG)
            && self.problem(IssueKind::FeatureContradiction {
                what: "resize_inode and meta_bg are both set",
            })
        {
            fixed.compat.remove(Compat::RESIZE_INODE);
        }
        if features.has_incompat(Incompat::METADATA_CSUM_SEED)
            && !features.has_ro_compat(RoCompat::METADATA_CSUM)
            && self.problem(IssueKind::FeatureContradiction {
                what: "metadata_csum_seed is set without metadata_csum",
            })
        {
            fixed.incompat.remove(Incompat::METADATA_CSUM_SEED);
            self.sb.checksum_seed.set(0);
        }
        if self.sb.journal_inum.get() != 0
            && !features.has_compat(Compat::HAS_JOURNAL)
            && self.problem(IssueKind::FeatureContradiction {
                what: "a journal inode is named, but has_journal is not set",
            })
        {
            self.sb.journal_inum.set(0);
            self.touch_superblock();
        }
        let external = self.names_journal_device();
        let internal = self.sb.journal_inum.get() != 0;
        if external
            && (internal || !features.has_compat(Compat::HAS_JOURNAL))
            && self.problem(IssueKind::FeatureContradiction {
                what: "a journal device is named, but there is a journal inode, or no journal",
            })
        {
            self.sb.journal_uuid = [0; 16];
            self.sb.journal_dev.set(0);
            self.touch_superblock();
        }
        if features.has_ro_compat(RoCompat::ORPHAN_PRESENT)
            && !features.has_compat(Compat::ORPHAN_FILE)
            && self.problem(IssueKind::FeatureContradiction {
                what: "orphan_present is set without orphan_file",
            })
        {
            fixed.ro_compat.remove(RoCompat::ORPHAN_PRESENT);
        }
        if features.has_compat(Compat::ORPHAN_FILE)
            && !features.has_compat(Compat::HAS_JOURNAL)
            && self.new_journal.is_none()
            && self.problem(IssueKind::FeatureContradiction {
                what: "orphan_file is set, but there is no journal",
            })
        {
            fixed.compat.remove(Compat::ORPHAN_FILE);
            fixed.ro_compat.remove(RoCompat::ORPHAN_PRESENT);
            self.give_up_orphan_file()?;
        }
        if !features.has_compat(Compat::ORPHAN_FILE)
            && let Some(is_one) = self.names_orphan_file()?
            && self.problem(IssueKind::FeatureContradiction {
                what: "a file of orphans is named, but orphan_file is not set",
            })
        {
            if is_one && fixed.has_compat(Compat::HAS_JOURNAL) {
                fixed.compat |= Compat::ORPHAN_FILE;
            } else {
                self.give_up_orphan_file()?;
            }
        }
        if fixed != features {
            self.sb.set_features(fixed);
            self.follow_features();
        }
        let hash_flags = self.sb.flags.get();
        if features.has_compat(Compat::DIR_INDEX)
            && hash_flags & 3 == 0
            && self.problem(IssueKind::HashFlavourMissing)
        {
            self.sb.flags.set(hash_flags | 1);
            self.touch_superblock();
        }
        Ok(())
    }

    fn check_superblock_times(&mut self) {
        let limit = self.now.saturating_add(TIME_FUDGE);
        let mounted = self.sb.mount_time();
        if mounted > limit
            && self.problem(IssueKind::TimeInFuture {
                what: "last mount time",
                found: mounted,
            })
        {
            self.sb.set_mount_time(self.now);
            self.touch_superblock();
        }
        let written = self.sb.write_time();
        if written > limit
            && self.problem(IssueKind::TimeInFuture {
                what: "last write time",
                found: written,
            })
        {
            self.sb.set_write_time(self.now);
            self.touch_superblock();
        }
    }

    /// Puts the superblock, if it was changed, into the overlay.
    pub fn store_superblock(&mut self) -> Result<(), CheckError> {
        if !self.sb_changed || !self.repairing() {
            return Ok(());
        }
        self.sb_changed = false;
        let geo = self.geo.clone();
        let primary = geo.super_block();
        let at = if primary.0 == 0 { 1024 } else { 0 };
        self.sb.set_checksum();
        let mut bytes = self.store.read(primary, "superblock")?;
        bytes[at..at + SUPERBLOCK_SIZE].copy_from_slice(&self.sb.to_bytes());
        self.write(primary, bytes);
        if !self.sb_copies {
            return Ok(());
        }
        self.sb_copies = false;
        let copies = geo
            .groups()
            .skip(1)
            .filter_map(|group| Some((group, geo.group_super_block(group)?)));
        for (group, block) in copies.take(SUPER_COPIES_MAX) {
            self.store_copy(group, block)?;
        }
        Ok(())
    }

    fn store_copy(&mut self, group: GroupNo, block: BlockNo) -> Result<(), CheckError> {
        let mut copy = self.sb;
        copy.block_group_nr.set(group.0 as u16);
        copy.set_checksum();
        let mut bytes = self.store.read(block, "superblock copy")?;
        bytes[..SUPERBLOCK_SIZE].copy_from_slice(&copy.to_bytes());
        self.write(block, bytes);
        Ok(())
    }

    /// Whether the volume is marked as having errors or as not unmounted, and nothing is wrong with it any more.
    pub fn marks_are_outdated(&self) -> bool {
        let state = self.sb.state();
        let marked = state.contains(State::ERROR)
            || !state.contains(State::CLEAN)
            || self.sb.error_count.get() != 0;
        marked && !self.errors_left()
    }

    fn errors_left(&self) -> bool {
        self.log
            .round
            .iter()
            .any(|k| k.severity() > crate::Severity::Note)
    }

    /// Records in the superblock that the volume was checked; the last change before writing.
    pub fn mark_checked(&mut self) -> Result<(), CheckError> {
        if !self.errors_left() {
            let state = (self.sb.state() | State::CLEAN) - State::ERROR;
            self.sb.state.set(state.bits());
            self.sb.mnt_count.set(0);
            self.sb.set_check_time(self.now);
            self.sb.clear_errors();
            self.log.round.remove(&IssueKind::MarkedErroneous);
            self.log.round.remove(&IssueKind::NotUnmounted);
        }
        self.sb.set_write_time(self.now);
        self.sb_changed = true;
        self.store_superblock()
    }
}
