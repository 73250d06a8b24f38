//! From options to numbers: block and inode sizes, groups, inodes, descriptors, journal. The rules
//! are those that mke2fs is known by, so that the same arguments give the same counts.

use super::options::FormatOptions;
use crate::{MkfsError, Result};
use blockwright_ondisk::ext4::superblock::{
    CHECKSUM_TYPE_CRC32C, DefaultMountOpts, MAGIC, MiscFlags, State,
};
use blockwright_ondisk::ext4::{
    Compat, Features, Geometry, Incompat, MetaSeed, RawSuperblock, RoCompat,
};

const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;

/// Fewer blocks than that are not worth a group of their own at the end of the volume.
const LAST_GROUP_SLACK: u64 = 50;

/// A volume's numbers, before anything is placed.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// Complete except what placement decides (free counts, journal backup, checksum).
    pub raw: RawSuperblock,
    pub geo: Geometry,
    /// Journal blocks, fast-commit area included; 0 for none.
    pub journal_blocks: u32,
    /// Blocks of the fast-commit area at the journal's end.
    pub fast_commit_blocks: u32,
    /// Blocks of the orphan file; 0 for none.
    pub orphan_blocks: u32,
}

/// Blocks of a journal by default, for a volume of this many blocks.
pub(crate) fn default_journal_blocks(blocks: u64) -> u32 {
    const STEPS: [(u64, u32); 8] = [
        (2048, 0),
        (32_768, 1024),
        (256 << 10, 4096),
        (512 << 10, 8192),
        (4096 << 10, 16_384),
        (8192 << 10, 32_768),
        (16_384 << 10, 65_536),
        (32_768 << 10, 131_072),
    ];
    STEPS
        .iter()
        .find(|(below, _)| blocks < *below)
        .map_or(262_144, |(_, size)| *size)
}

/// Block size by default, for a volume of this many bytes.
pub(crate) fn default_block_bytes(bytes: u64) -> u32 {
    if bytes < 512 * MIB { 1024 } else { 4096 }
}

fn default_inode_ratio(bytes: u64) -> u64 {
    match bytes {
        b if b < 3 * MIB => 8192,
        b if b < 512 * MIB => 4096,
        b if b < 4 * TIB => 16_384,
        b if b < 16 * TIB => 32_768,
        _ => 65_536,
    }
}

fn random_uuid() -> [u8; 16] {
    *uuid::Uuid::new_v4().as_bytes()
}

/// A hash seed that looks like a random UUID but follows from the volume's own.
fn derived_hash_seed(uuid: &[u8; 16]) -> [u8; 16] {
    let mut seed = [0u8; 16];
    let mut state = MetaSeed::from_uuid(uuid);
    for (round, chunk) in seed.chunks_mut(4).enumerate() {
        state = MetaSeed(state.bitmap(&[round as u8; 8]));
        chunk.copy_from_slice(&state.0.to_le_bytes());
    }
    seed[6] = seed[6] & 0x0F | 0x40;
    seed[8] = seed[8] & 0x3F | 0x80;
    seed
}

/// Refuses inode sizes that the format does not have.
pub(crate) fn check_inode_bytes(inode_bytes: u16, block_bytes: u32) -> Result<()> {
    if inode_bytes.is_power_of_two()
        && (128..=1024).contains(&inode_bytes)
        && u32::from(inode_bytes) <= block_bytes
    {
        return Ok(());
    }
    Err(MkfsError::option(
        "-I",
        format!("inode size {inode_bytes} is not a power of two from 128 to 1024"),
    ))
}

impl Shape {
    /// Turns a compat feature on that only what is stored depends on.
    pub fn add_feature(&mut self, feature: Compat) {
        self.geo.features.compat |= feature;
        self.raw.set_features(self.geo.features);
    }

    /// Makes checksums of metadata start from another volume's seed, if the feature for that is on.
    pub fn start_checksums_from(&mut self, seed: u32) {
        if self.geo.features.has_incompat(Incompat::METADATA_CSUM_SEED) {
            self.raw.checksum_seed.set(seed);
            self.geo.seed = MetaSeed(seed);
        }
    }

    /// As [`Shape::add_feature`], for a ro_compat feature.
    pub fn add_ro_feature(&mut self, feature: RoCompat) {
        self.geo.features.ro_compat |= feature;
        self.raw.set_features(self.geo.features);
    }

    /// The numbers for a volume of `bytes` bytes that must have at least `inodes_needed` inodes
    /// besides the reserved ones.
    pub fn new(options: &FormatOptions, bytes: u64, inodes_needed: u64) -> Result<Self> {
        let mut features = options.effective_features()?;
        let block_bytes = options
            .block_bytes
            .unwrap_or_else(|| default_block_bytes(bytes));
        if !block_bytes.is_power_of_two() || !(1024..=65536).contains(&block_bytes) {
            return Err(MkfsError::option(
                "-b",
                format!("block size {block_bytes} is not a power of two from 1024 to 65536"),
            ));
        }
        let inode_bytes = options.inode_bytes;
        check_inode_bytes(inode_bytes, block_bytes)?;
        let block_bits = block_bytes.trailing_zeros();
        let ratio = cluster_ratio(options, &features, block_bytes)?;
        let mut blocks = bytes >> block_bits;
        // Whole clusters, and whole pages: loop devices and page caches have no smaller ends.
        blocks -= blocks % u64::from(ratio.max(4096 / block_bytes.min(4096)));
        if blocks > u64::from(u32::MAX) {
            if !features.has_incompat(Incompat::BIT64) {
                return Err(MkfsError::features(format!(
                    "a volume of {blocks} blocks needs 64bit"
                )));
            }
            // The reserved descriptor blocks are listed as 32-bit numbers.
            features.compat -= Compat::RESIZE_INODE;
        }
        let asked = blocks.max(1);

        let mut raw = RawSuperblock::zeroed();
        raw.magic.set(MAGIC);
        raw.rev_level.set(1);
        raw.log_block_size.set(block_bits - 10);
        raw.log_cluster_size
            .set(block_bits - 10 + ratio.trailing_zeros());
        raw.inode_size.set(inode_bytes);
        raw.first_ino.set(11);
        let first = u64::from(block_bytes == 1024 && ratio == 1);
        raw.first_data_block.set(first as u32);
        let bpg = set_group_size(&mut raw, options, block_bytes, ratio)?;
        let desc_bytes: u32 = if features.has_incompat(Incompat::BIT64) {
            64
        } else {
            32
        };
        raw.desc_size.set(if desc_bytes == 64 { 64 } else { 0 });

        let too_small = |blocks, what| MkfsError::TooSmall { blocks, what };
        let hard = inodes_needed.saturating_add(10);
        let wanted = wanted_inodes(options, bytes, block_bytes * ratio).max(hard);
        let (groups, ipg, reserved_gdt) = loop {
            if blocks <= first + 8 {
                return Err(too_small(blocks, "a file system"));
            }
            let groups = (blocks - first).div_ceil(bpg);
            let groups32 =
                u32::try_from(groups).map_err(|_| too_small(blocks, "its own groups"))?;
            let descs_per_block = u64::from(block_bytes / desc_bytes);
            let desc_blocks = groups.div_ceil(descs_per_block);
            let ipg = inodes_per_group((wanted, hard), groups, block_bytes, inode_bytes)?;
            let table = u64::from(ipg) * u64::from(inode_bytes) / u64::from(block_bytes);
            let reserved = if features.has_compat(Compat::RESIZE_INODE) {
                reserved_gdt_blocks(options, blocks, first, bpg, block_bytes, desc_bytes)
            } else {
                0
            };
            raw.set_features(features);
            set_backup_groups(&mut raw, &features, groups32);
            let rest = (blocks - first) % bpg;
            let mut overhead = 2 + table;
            if last_group_has_super(&features, &raw, groups32 - 1) {
                overhead += 1 + desc_blocks + u64::from(reserved);
            }
            if groups == 1 && rest != 0 && rest < overhead {
                return Err(too_small(blocks, "its own metadata"));
            }
            if groups > 1 && rest != 0 && rest < overhead + LAST_GROUP_SLACK {
                blocks -= rest;
                continue;
            }
            break (groups32, ipg, reserved);
        };
        raw.inodes_per_group.set(ipg);
        raw.inodes_count.set(
            groups.checked_mul(ipg).ok_or_else(|| {
                MkfsError::option("-N", "the number of inodes does not fit 32 bits")
            })?,
        );
        raw.reserved_gdt_blocks.set(reserved_gdt as u16);
        raw.set_blocks_count(blocks);
        let percent = options.reserved_percent;
        if !(0.0..=50.0).contains(&percent) {
            return Err(MkfsError::option(
                "-m",
                "reserved percentage is not within 0 to 50",
            ));
        }
        // Reckoned before a last group was dropped, then scaled: mke2fs's order.
        let reserved = (asked as f64 * percent / 100.0) as u64;
        raw.set_reserved_blocks_count(
            (u128::from(reserved) * u128::from(blocks) / u128::from(asked)) as u64,
        );
        if features.has_incompat(Incompat::FLEX_BG) {
            let flex = options.groups_per_flex;
            if !flex.is_power_of_two() {
                return Err(MkfsError::option(
                    "-G",
                    "groups per flexible group: a power of two",
                ));
            }
            raw.log_groups_per_flex = flex.trailing_zeros() as u8;
        }
        set_identity(&mut raw, options, &features)?;

        let geo = Geometry::from_superblock(&raw, None)?;
        let fast_commit = features.has_compat(Compat::FAST_COMMIT);
        let elsewhere = options.journal_device;
        if elsewhere.is_some() && options.journal_blocks.is_some() {
            return Err(MkfsError::option(
                "-J",
                "a journal on another device has the size of that device",
            ));
        }
        let journal = if features.has_compat(Compat::HAS_JOURNAL) && elsewhere.is_none() {
            options
                .journal_blocks
                .unwrap_or_else(|| default_journal_blocks(blocks))
        } else {
            0
        };
        if journal != 0 && (journal < 1024 || u64::from(journal) > blocks / 2) {
            return Err(MkfsError::option(
                "-J",
                format!(
                    "a journal has 1024 blocks at least and half the volume at most, not {journal} (of {block_bytes} bytes)"
                ),
            ));
        }
        if let Some(name) = elsewhere {
            raw.journal_uuid = name.uuid;
            raw.journal_dev.set(name.number);
        } else if journal == 0 {
            // Too small for one: then it has none, as mke2fs does it.
            features.compat -= Compat::HAS_JOURNAL | Compat::FAST_COMMIT | Compat::ORPHAN_FILE;
            raw.set_features(features);
        }
        let fast_commit_blocks = if fast_commit { journal / 64 } else { 0 };
        let orphan_blocks = if features.has_compat(Compat::ORPHAN_FILE) {
            (blocks / 4096).clamp(32, 512) as u32
        } else {
            0
        };
        let geo = Geometry { features, ..geo };
        Ok(Shape {
            raw,
            geo,
            journal_blocks: journal + fast_commit_blocks,
            fast_commit_blocks,
            orphan_blocks,
        })
    }
}

fn cluster_ratio(options: &FormatOptions, features: &Features, block_bytes: u32) -> Result<u32> {
    if !features.has_ro_compat(RoCompat::BIGALLOC) {
        return match options.cluster_bytes {
            Some(bytes) if bytes != block_bytes => Err(MkfsError::option(
                "-C",
                "clusters larger than blocks need bigalloc",
            )),
            _ => Ok(1),
        };
    }
    let bytes = options
        .cluster_bytes
        .unwrap_or_else(|| block_bytes.saturating_mul(16));
    if !bytes.is_power_of_two() || bytes <= block_bytes || bytes > 1 << 29 {
        return Err(MkfsError::option(
            "-C",
            format!("cluster size {bytes} is not a power of two above the block size"),
        ));
    }
    Ok(bytes / block_bytes)
}

/// Blocks per group; also stored in `raw`.
fn set_group_size(
    raw: &mut RawSuperblock,
    options: &FormatOptions,
    block_bytes: u32,
    ratio: u32,
) -> Result<u64> {
    // 16-bit counters of old descriptors must hold a full group.
    let most = (block_bytes * 8).min(65_528);
    let clusters = match options.blocks_per_group {
        None => most,
        Some(blocks) => blocks / ratio,
    };
    if clusters % 8 != 0 || !(256..=most).contains(&clusters) {
        return Err(MkfsError::option(
            "-g",
            format!(
                "blocks per group: a multiple of {} up to {}",
                8 * ratio,
                u64::from(most) * u64::from(ratio)
            ),
        ));
    }
    let blocks = clusters
        .checked_mul(ratio)
        .ok_or_else(|| MkfsError::option("-C", "clusters of that size make groups too large"))?;
    raw.blocks_per_group.set(blocks);
    raw.clusters_per_group.set(clusters);
    Ok(u64::from(blocks))
}

fn wanted_inodes(options: &FormatOptions, bytes: u64, unit_bytes: u32) -> u64 {
    if let Some(inodes) = options.inodes {
        return inodes;
    }
    let ratio = options
        .inode_ratio
        .unwrap_or_else(|| default_inode_ratio(bytes));
    bytes / ratio.max(u64::from(unit_bytes)).max(1)
}

/// Inodes of each group: whole table blocks, and whole bytes of the bitmap.
///
/// The first count of `inodes` may be missed by a little, as mke2fs misses it; the second not.
fn inodes_per_group(
    inodes: (u64, u64),
    groups: u64,
    block_bytes: u32,
    inode_bytes: u16,
) -> Result<u32> {
    let (wanted, hard) = inodes;
    let per_block = u64::from(block_bytes / u32::from(inode_bytes));
    let ipg = wanted.div_ceil(groups);
    let ipg = ipg.div_ceil(per_block) * per_block;
    let unit = per_block.max(8);
    let mut rounded = ipg - ipg % unit;
    if rounded == 0 || rounded.saturating_mul(groups) < hard {
        rounded += unit;
    }
    let most = u64::from(block_bytes * 8).min(65_536 - per_block);
    if rounded > most {
        return Err(MkfsError::option(
            "-N",
            format!("{wanted} inodes in {groups} groups are more than {most} in a group"),
        ));
    }
    Ok(rounded as u32)
}

/// How many blocks to keep behind the descriptors for online growth.
fn reserved_gdt_blocks(
    options: &FormatOptions,
    blocks: u64,
    first: u64,
    bpg: u64,
    block_bytes: u32,
    desc_bytes: u32,
) -> u32 {
    let most = u64::from(u32::MAX);
    let grown = options
        .resize_blocks
        .unwrap_or_else(|| blocks.saturating_mul(1024))
        .min(most);
    let per_block = u64::from(block_bytes / desc_bytes);
    let groups = grown.saturating_sub(first).div_ceil(bpg);
    let now = (blocks - first).div_ceil(bpg).div_ceil(per_block);
    groups
        .div_ceil(per_block)
        .saturating_sub(now)
        .min(u64::from(block_bytes / 4)) as u32
}

fn set_backup_groups(raw: &mut RawSuperblock, features: &Features, groups: u32) {
    let mut backups = [0, 0];
    if features.has_compat(Compat::SPARSE_SUPER2) {
        if groups > 1 {
            backups[0] = 1;
        }
        if groups > 2 {
            backups[1] = groups - 1;
        }
    }
    raw.backup_bgs[0].set(backups[0]);
    raw.backup_bgs[1].set(backups[1]);
}

fn last_group_has_super(features: &Features, raw: &RawSuperblock, group: u32) -> bool {
    if group == 0 {
        return true;
    }
    if features.has_compat(Compat::SPARSE_SUPER2) {
        return raw.backup_bgs.iter().any(|g| g.get() == group);
    }
    let power = |base: u32| {
        let mut n = group;
        while n.is_multiple_of(base) {
            n /= base;
        }
        n == 1
    };
    !features.has_ro_compat(RoCompat::SPARSE_SUPER) || power(3) || power(5) || power(7)
}

/// UUID, label, times, seeds and defaults.
fn set_identity(
    raw: &mut RawSuperblock,
    options: &FormatOptions,
    features: &Features,
) -> Result<()> {
    let uuid = options.uuid.unwrap_or_else(random_uuid);
    raw.uuid = uuid;
    let label = &options.label;
    match raw.volume_name.get_mut(..label.len()) {
        Some(field) => field.copy_from_slice(label),
        None => return Err(MkfsError::option("-L", "a label has 16 bytes at most")),
    }
    raw.set_mkfs_time(options.now);
    raw.set_write_time(options.now);
    raw.set_check_time(options.now);
    raw.state.set(State::CLEAN.bits());
    raw.errors.set(options.errors.to_raw());
    raw.max_mnt_count.set(u16::MAX);
    let seed = options
        .hash_seed
        .unwrap_or_else(|| derived_hash_seed(&uuid));
    for (word, bytes) in raw.hash_seed.iter_mut().zip(seed.chunks_exact(4)) {
        word.set(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
    }
    // Half MD4 over signed characters on every host: the same input, the same bytes.
    raw.def_hash_version = 1;
    raw.flags.set(MiscFlags::SIGNED_HASH.bits());
    raw.default_mount_opts
        .set((DefaultMountOpts::XATTR_USER | DefaultMountOpts::ACL).bits());
    if options.inode_bytes > 128 {
        raw.min_extra_isize.set(32);
        raw.want_extra_isize.set(32);
    }
    if features.metadata_csum() {
        raw.checksum_type = CHECKSUM_TYPE_CRC32C;
    }
    if features.has_incompat(Incompat::METADATA_CSUM_SEED) {
        raw.checksum_seed.set(MetaSeed::from_uuid(&uuid).0);
    }
    if features.has_incompat(Incompat::CASEFOLD) {
        // Unicode 12.1, not strict.
        raw.encoding.set(1);
    }
    if features.has_incompat(Incompat::MMP) {
        if !(1..=300).contains(&options.mmp_interval) {
            return Err(MkfsError::option(
                "-E mmp_update_interval",
                "not within 1 to 300",
            ));
        }
        raw.mmp_interval.set(options.mmp_interval);
    }
    if features.has_incompat(Incompat::ENCRYPT) {
        // AES-256 in XTS mode for contents, in CTS mode for names.
        raw.encrypt_algos = [1, 4, 0, 0];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(bytes: u64, change: impl FnOnce(&mut FormatOptions)) -> Shape {
        let mut options = FormatOptions {
            uuid: Some([1; 16]),
            now: 0,
            ..Default::default()
        };
        change(&mut options);
        Shape::new(&options, bytes, 0).expect("a shape")
    }

    #[test]
    fn counts_are_mke2fs_s() {
        // (bytes, block size, blocks, inodes, reserved descriptor blocks, journal), from dumpe2fs.
        for (bytes, bs, blocks, inodes, gdt, journal) in [
            (8 * MIB, 1024, 8192, 2048, 63, 1024),
            (100 * MIB, 1024, 102_400, 25_584, 256, 4096),
            (600 * MIB, 4096, 153_600, 38_400, 74, 4096),
            (3 << 30, 4096, 786_432, 196_608, 383, 16_384),
            (20 << 30, 4096, 5_242_880, 1_310_720, 1024, 32_768),
            (200 << 30, 4096, 52_428_800, 13_107_200, 1024, 262_144),
        ] {
            let s = shape(bytes, |_| ());
            let got = (
                s.geo.block_size,
                s.geo.blocks_count,
                s.geo.inodes_count,
                s.geo.reserved_gdt_blocks,
                s.journal_blocks,
            );
            assert_eq!(got, (bs, blocks, inodes, gdt, journal), "{bytes} bytes");
        }
        let s = shape(600 * MIB, |o| o.block_bytes = Some(65536));
        assert_eq!(
            (
                s.geo.inodes_count,
                s.geo.reserved_gdt_blocks,
                s.journal_blocks
            ),
            (9728, 0, 1024)
        );
        let s = shape(600 * MIB, |o| o.features = "bigalloc".into());
        assert_eq!((s.geo.inodes_count, s.geo.reserved_gdt_blocks), (9600, 4));
        let s = shape(3 << 30, |o| o.features = "fast_commit,orphan_file".into());
        assert_eq!(
            (s.journal_blocks, s.fast_commit_blocks, s.orphan_blocks),
            (16_640, 256, 192)
        );
    }

    #[test]
    fn sizes_that_make_no_sense_are_refused() {
        let with = |bytes, change: fn(&mut FormatOptions)| {
            let mut options = FormatOptions::default();
            change(&mut options);
            Shape::new(&options, bytes, 0)
        };
        assert!(with(0, |_| ()).is_err());
        assert!(with(9000, |_| ()).is_err());
        assert!(with(1 << 30, |o| o.block_bytes = Some(3000)).is_err());
        assert!(with(1 << 30, |o| o.block_bytes = Some(512)).is_err());
        assert!(with(1 << 30, |o| o.inode_bytes = 100).is_err());
        assert!(with(1 << 30, |o| o.inodes = Some(u64::MAX)).is_err());
        assert!(with(1 << 30, |o| o.reserved_percent = f64::NAN).is_err());
        assert!(with(1 << 30, |o| o.label = vec![b'x'; 17]).is_err());
        assert!(with(1 << 62, |_| ()).is_err());
        assert!(with(32 << 40, |o| o.features = "^64bit".into()).is_err());
    }
}
