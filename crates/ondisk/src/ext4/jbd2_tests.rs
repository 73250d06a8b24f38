use super::*;
use crate::ext4::BlockNo;

fn format(wide: bool, checksums: JournalChecksums) -> JournalFormat {
    let uuid = *b"journal-uuid-16b";
    let seed = JournalSeed::from_uuid(&uuid);
    JournalFormat {
        block_size: 1024,
        wide,
        checksums,
        seed,
        uuid,
    }
}

fn all_formats() -> impl Iterator<Item = JournalFormat> {
    use JournalChecksums::{None, V1, V2, V3};
    [None, V1, V2, V3]
        .into_iter()
        .flat_map(|c| [true, false].map(|wide| format(wide, c)))
}

#[test]
fn descriptors_round_trip_when_full() {
    for format in all_formats() {
        let mut block = vec![0xFF; 1024];
        let mut builder = DescriptorBuilder::new(&mut block, &format, 9).unwrap();
        let mut pushed = Vec::new();
        let high = if format.wide { 0x12_0000_0000u64 } else { 0 };
        while builder
            .push(
                BlockNo(high + pushed.len() as u64),
                pushed.len() % 3 == 0,
                0xABCD,
            )
            .is_some()
        {
            pushed.push(BlockNo(high + pushed.len() as u64));
        }
        builder.finish();
        assert_eq!(pushed.len(), format.tags_per_block(), "{format:?}");
        assert_eq!(
            block_header(&block),
            Some((JournalBlockType::Descriptor, 9))
        );
        format.verify_tail(&block).unwrap();
        let tags: Vec<Tag> = DescriptorTags::new(&block, &format)
            .map(|t| t.unwrap())
            .collect();
        assert_eq!(tags.iter().map(|t| t.block).collect::<Vec<_>>(), pushed);
        for (n, tag) in tags.iter().enumerate() {
            assert_eq!(tag.flags.contains(TagFlags::ESCAPE), n % 3 == 0);
            assert_eq!(tag.flags.contains(TagFlags::SAME_UUID), n != 0);
            assert_eq!(tag.flags.contains(TagFlags::LAST_TAG), n + 1 == tags.len());
            assert_eq!(tag.checksum, 0xABCD);
        }
        block[500] ^= 1;
        assert_eq!(
            format.verify_tail(&block).is_err(),
            format.block_checksums()
        );
    }
}

#[test]
fn known_tag_sizes() {
    let sizes: Vec<usize> = all_formats().map(|f| f.tag_size()).collect();
    assert_eq!(sizes, [12, 8, 12, 8, 14, 10, 16, 16]);
}

#[test]
fn narrow_journals_refuse_wide_numbers() {
    let format = format(false, JournalChecksums::None);
    let mut block = vec![0; 1024];
    let mut builder = DescriptorBuilder::new(&mut block, &format, 1).unwrap();
    assert_eq!(builder.push(BlockNo(1 << 32), false, 0), None);
    let mut revokes = RevokeBuilder::new(&mut block, &format, 1).unwrap();
    assert_eq!(revokes.push(BlockNo(1 << 32)), None);
    assert!(DescriptorBuilder::new(&mut [0; 512], &format, 1).is_none());
}

#[test]
fn revokes_round_trip_when_full() {
    for format in all_formats() {
        let mut block = vec![0xFF; 1024];
        let mut builder = RevokeBuilder::new(&mut block, &format, 3).unwrap();
        let mut pushed = Vec::new();
        while builder.push(BlockNo(1000 + pushed.len() as u64)).is_some() {
            pushed.push(BlockNo(1000 + pushed.len() as u64));
        }
        builder.finish();
        assert_eq!(pushed.len(), format.revokes_per_block());
        format.verify_tail(&block).unwrap();
        let back: Vec<BlockNo> = RevokedBlocks::parse(&block, &format).unwrap().collect();
        assert_eq!(back, pushed);
        for bad in [15u32, 1025, u32::MAX] {
            block[12..16].copy_from_slice(&bad.to_be_bytes());
            let err = RevokedBlocks::parse(&block, &format).unwrap_err();
            assert!(
                matches!(err, FormatError::JournalRevokeCount { .. }),
                "{bad}"
            );
        }
    }
}

#[test]
fn commits() {
    for format in all_formats() {
        let mut block = vec![0xFF; 1024];
        format
            .write_commit(&mut block, 5, 1_700_000_000, 42, 0xDEAD_BEEF)
            .unwrap();
        format.verify_commit(&block).unwrap();
        let commit = Commit::parse(&block, &format).unwrap();
        assert_eq!((commit.time_secs, commit.time_nanos), (1_700_000_000, 42));
        let v1 = format.checksums == JournalChecksums::V1;
        assert_eq!(commit.transaction_checksum, v1.then_some(0xDEAD_BEEF));
        block[0x37] ^= 1;
        assert_eq!(
            format.verify_commit(&block).is_err(),
            format.block_checksums()
        );
    }
}

fn sample() -> RawJournalSuperblock {
    let mut raw = RawJournalSuperblock::zeroed();
    raw.header.magic.set(MAGIC);
    raw.header.blocktype.set(4);
    raw.blocksize.set(4096);
    raw.maxlen.set(1024);
    raw.first.set(1);
    raw.sequence.set(7);
    raw.feature_incompat
        .set((JournalIncompat::CSUM_V3 | JournalIncompat::BIT64).bits());
    raw.set_checksum();
    raw
}

fn refused(change: impl FnOnce(&mut RawJournalSuperblock)) -> FormatError {
    let mut raw = sample();
    change(&mut raw);
    raw.set_checksum();
    JournalSuperblock::parse(raw.as_bytes(), Some(1024)).unwrap_err()
}

#[test]
fn superblock_checks() {
    use FormatError as E;
    let good = JournalSuperblock::parse(sample().as_bytes(), Some(1024)).unwrap();
    assert_eq!(
        (good.len, good.first, good.log_end, good.start),
        (1024, 1, 1024, None)
    );
    assert_eq!(
        refused(|r| r.header.magic.set(1)),
        E::JournalMagic { found: 1 }
    );
    assert_eq!(
        refused(|r| r.header.blocktype.set(1)),
        E::JournalSuperType { found: 1 }
    );
    assert_eq!(
        refused(|r| r.blocksize.set(512)),
        E::JournalBlockSize { found: 512 }
    );
    assert!(matches!(
        refused(|r| r.maxlen.set(1025)),
        E::JournalLength { .. }
    ));
    assert!(matches!(
        refused(|r| r.maxlen.set(0)),
        E::JournalLength { .. }
    ));
    assert!(matches!(
        refused(|r| r.first.set(0)),
        E::JournalFirst { .. }
    ));
    assert!(matches!(
        refused(|r| r.first.set(1024)),
        E::JournalFirst { .. }
    ));
    assert!(matches!(
        refused(|r| r.start.set(1024)),
        E::JournalStart { .. }
    ));
    assert_eq!(
        refused(|r| r.feature_incompat.set(0x18)),
        E::JournalChecksumMix
    );
    assert_eq!(refused(|r| r.feature_compat.set(1)), E::JournalChecksumMix);
    let fast = |r: &mut RawJournalSuperblock| {
        r.feature_incompat.set(0x32);
        r.num_fc_blks.set(1023);
    };
    assert!(matches!(
        refused(fast),
        E::JournalFirst { found: 1, end: 1 }
    ));
    let mut raw = sample();
    raw.sequence.set(8);
    let err = JournalSuperblock::parse(raw.as_bytes(), None).unwrap_err();
    assert!(matches!(err, E::JournalSuperChecksum { .. }));
}

#[test]
fn damaged_descriptors_end() {
    let format = format(true, JournalChecksums::V3);
    // No tag says that it is the last one: the list ends with the block.
    let block = vec![0u8; 1024];
    assert!(DescriptorTags::new(&block, &format).count() <= 1024 / 16);
    assert_eq!(DescriptorTags::new(&block[..5], &format).count(), 0);
}
