use super::*;
use crate::ext4::types::GroupNo;

/// A plausible volume: 4 KiB blocks, 5 full groups and a short one, all checksums.
pub(crate) fn sample() -> RawSuperblock {
    let mut raw = RawSuperblock::zeroed();
    raw.magic.set(MAGIC);
    raw.rev_level.set(1);
    raw.log_block_size.set(2);
    raw.log_cluster_size.set(2);
    raw.blocks_per_group.set(32768);
    raw.clusters_per_group.set(32768);
    raw.inodes_per_group.set(8192);
    raw.set_blocks_count(5 * 32768 + 1000);
    raw.inodes_count.set(6 * 8192);
    raw.first_ino.set(11);
    raw.inode_size.set(256);
    raw.desc_size.set(64);
    raw.min_extra_isize.set(32);
    raw.want_extra_isize.set(32);
    raw.log_groups_per_flex = 4;
    raw.checksum_type = CHECKSUM_TYPE_CRC32C;
    raw.journal_inum.set(8);
    raw.reserved_gdt_blocks.set(100);
    raw.uuid = *b"0123456789abcdef";
    let names = "has_journal,ext_attr,resize_inode,dir_index,filetype,extent,64bit,flex_bg,\
                 sparse_super,large_file,huge_file,dir_nlink,extra_isize,metadata_csum";
    raw.set_features(Features::default().parse(names).unwrap());
    raw.set_checksum();
    raw
}

/// The geometry of [`sample`] with features changed.
pub(crate) fn sample_geometry(features: &str) -> Geometry {
    let mut raw = sample();
    raw.set_features(raw.features().parse(features).unwrap());
    Geometry::from_superblock(&raw, None).unwrap()
}

fn refused(change: impl FnOnce(&mut RawSuperblock)) -> FormatError {
    let mut raw = sample();
    change(&mut raw);
    raw.set_checksum();
    Superblock::parse(&raw.to_bytes(), Some(5 * 32768 * 4096 + 1000 * 4096)).unwrap_err()
}

fn features(raw: &mut RawSuperblock, list: &str) {
    raw.set_features(raw.features().parse(list).unwrap());
}

#[test]
fn sample_is_accepted() {
    let sb = Superblock::parse(&sample().to_bytes(), None).unwrap();
    assert_eq!(sb.geo.groups_count, 6);
    assert_eq!(sb.geo.group_blocks(GroupNo(5)), 1000);
    assert_eq!(sb.geo.group_blocks(GroupNo(6)), 0);
    assert_eq!(sb.geo.split_block(BlockNo(32768)), Some((GroupNo(1), 0)));
    assert_eq!(sb.geo.split_block(BlockNo(sb.geo.blocks_count)), None);
    assert_eq!(sb.geo.split_ino(Ino(8193)), Some((GroupNo(1), 0)));
    assert_eq!(sb.geo.split_ino(Ino(0)), None);
    assert_eq!(sb.geo.ino_at(GroupNo(1), 0), Some(Ino(8193)));
    assert_eq!(sb.journal(), Some(JournalLocation::Internal(Ino::JOURNAL)));
    assert!(!sb.geo.contains_run(BlockNo(u64::MAX), 2));
}

#[test]
fn every_absurd_value_has_its_own_error() {
    use FormatError as E;
    assert_eq!(
        refused(|r| r.magic.set(0x1234)),
        E::SuperMagic { found: 0x1234 }
    );
    assert_eq!(
        refused(|r| r.rev_level.set(2)),
        E::SuperRevision { found: 2 }
    );
    assert_eq!(
        refused(|r| r.checksum_type = 9),
        E::SuperChecksumType { found: 9 }
    );
    assert_eq!(
        refused(|r| features(r, "journal_dev")),
        E::SuperIsJournalDevice
    );
    for log in [7, 31, 32, u32::MAX] {
        assert_eq!(
            refused(|r| r.log_block_size.set(log)),
            E::SuperBlockSize { log }
        );
    }
    for log in [1, 3, u32::MAX] {
        assert!(matches!(
            refused(|r| r.log_cluster_size.set(log)),
            E::SuperClusterSize { .. }
        ));
    }
    let over_log = |r: &mut RawSuperblock| {
        features(r, "bigalloc");
        r.log_cluster_size.set(40);
    };
    assert!(matches!(refused(over_log), E::SuperClusterSize { .. }));
    for size in [0, 64, 200, 8192] {
        assert!(matches!(
            refused(|r| r.inode_size.set(size)),
            E::SuperInodeSize { .. }
        ));
    }
    for n in [0, 12, 32776, u32::MAX] {
        assert!(matches!(
            refused(|r| r.blocks_per_group.set(n)),
            E::SuperClustersPerGroup { .. }
        ));
    }
    let bigalloc = |r: &mut RawSuperblock| {
        features(r, "bigalloc");
        r.log_cluster_size.set(4);
    };
    assert!(matches!(refused(bigalloc), E::SuperBlocksPerGroup { .. }));
    for n in [0, 8, 8193, 40000] {
        assert!(matches!(
            refused(|r| r.inodes_per_group.set(n)),
            E::SuperInodesPerGroup { .. }
        ));
    }
    assert!(matches!(
        refused(|r| r.first_data_block.set(1)),
        E::SuperFirstDataBlock {
            found: 1,
            expected: 0
        }
    ));
    assert!(matches!(
        refused(|r| r.set_blocks_count(0)),
        E::SuperBlocksCount { .. }
    ));
    assert!(matches!(
        refused(|r| r.set_blocks_count(u64::MAX)),
        E::SuperBlocksCount { .. }
    ));
    assert!(matches!(
        refused(|r| r.set_blocks_count(5 * 32768 + 1001)),
        E::SuperPastDevice { .. }
    ));
    for size in [0, 32, 65, 2048] {
        assert_eq!(
            refused(|r| r.desc_size.set(size)),
            E::SuperDescSize { found: size }
        );
    }
    assert!(matches!(
        refused(|r| r.inodes_count.set(5)),
        E::SuperInodesCount { found: 5, .. }
    ));
    assert_eq!(
        refused(|r| r.first_ino.set(5)),
        E::SuperFirstInode { found: 5 }
    );
    assert!(matches!(
        refused(|r| r.first_ino.set(1 << 30)),
        E::SuperFirstInode { .. }
    ));
    assert!(matches!(
        refused(|r| r.reserved_gdt_blocks.set(1025)),
        E::SuperReservedGdt {
            found: 1025,
            max: 1024
        }
    ));
    let meta_bg = |r: &mut RawSuperblock| {
        features(r, "meta_bg");
        r.first_meta_bg.set(2);
    };
    assert!(matches!(
        refused(meta_bg),
        E::SuperFirstMetaBg {
            found: 2,
            desc_blocks: 1
        }
    ));
    assert_eq!(
        refused(|r| r.log_groups_per_flex = 32),
        E::SuperFlexSize { log: 32 }
    );
    assert!(matches!(
        refused(|r| r.want_extra_isize.set(200)),
        E::SuperExtraIsize { .. }
    ));
    assert_eq!(
        refused(|r| r.journal_inum.set(9)),
        E::SuperJournalInode { ino: 9 }
    );
    assert_eq!(refused(|r| r.journal_inum.set(0)), E::SuperJournalMissing);
    assert_eq!(
        refused(|r| features(r, "orphan_file")),
        E::SuperOrphanFileInode { ino: 0 }
    );
    let quota = |r: &mut RawSuperblock| {
        features(r, "quota");
        r.usr_quota_inum.set(4);
    };
    assert_eq!(refused(quota), E::SuperQuotaInode { ino: 4 });
    let small = |r: &mut RawSuperblock| {
        r.set_blocks_count(100);
        r.inodes_count.set(8192);
    };
    assert!(matches!(refused(small), E::SuperDescriptorsDontFit { .. }));
    let many = |r: &mut RawSuperblock| {
        r.blocks_per_group.set(8);
        r.set_blocks_count(1 << 47);
    };
    let mut raw = sample();
    many(&mut raw);
    let err = Geometry::from_superblock(&raw, None).unwrap_err();
    assert!(matches!(err, E::SuperGroupsCount { .. }));
}

#[test]
fn checksum_and_truncation() {
    let mut raw = sample();
    raw.mnt_count.set(77);
    let err = Superblock::parse(&raw.to_bytes(), None).unwrap_err();
    assert!(matches!(err, FormatError::SuperChecksum { .. }));
    assert_eq!(
        err.to_string()
            .split_whitespace()
            .take(2)
            .collect::<Vec<_>>(),
        ["superblock:", "checksum"]
    );
    let err = Superblock::parse(&sample().to_bytes()[..1023], None).unwrap_err();
    let expected = FormatError::Truncated {
        structure: "superblock",
        needed: 1024,
        found: 1023,
    };
    assert_eq!(err, expected);
    let bad = FormatError::SuperMagic { found: 0x1234 };
    assert_eq!(
        bad.to_string(),
        "superblock: bad magic 0x1234, expected 0xef53"
    );
}

#[test]
fn random_bytes_never_panic() {
    // A small generator keeps the test free of dependencies; the seed is the constant.
    let mut state = 0x1234_5678_9ABC_DEF1u64;
    let mut raw = sample().to_bytes();
    for _ in 0..200_000 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let at = (state >> 33) as usize % 0x180;
        let old = raw[at];
        raw[at] = (state >> 56) as u8;
        if let Ok(sb) = RawSuperblock::read(&raw).and_then(|r| Superblock::from_raw(r, None)) {
            let g = GroupNo((state >> 40) as u32);
            let _ = (
                sb.geo.group_blocks(g),
                sb.geo.base_meta_blocks(g),
                sb.geo.desc_block(g.0),
            );
            let _ = (
                sb.geo.desc_block_copy(g, g.0),
                sb.mmp_block(),
                sb.geo.group_of_block(BlockNo(state)),
            );
        }
        if state & 7 != 0 {
            raw[at] = old;
        }
        if state & 0xFFF == 0 {
            raw = sample().to_bytes();
        }
    }
}
