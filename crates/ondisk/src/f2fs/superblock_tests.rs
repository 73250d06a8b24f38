use super::*;
use crate::f2fs::geometry::Copy2;
use crate::f2fs::{BlockAddr, Features, Log, Nid, SegNo};
use proptest::prelude::*;

/// What mkfs.f2fs makes of 100 MiB.
pub(crate) fn sample() -> RawSuperblock {
    let mut raw = RawSuperblock::zeroed();
    raw.magic.set(MAGIC);
    raw.major_ver.set(1);
    raw.minor_ver.set(15);
    raw.log_sectorsize.set(9);
    raw.log_sectors_per_block.set(3);
    raw.log_blocksize.set(12);
    raw.log_blocks_per_seg.set(9);
    raw.segs_per_sec.set(1);
    raw.secs_per_zone.set(1);
    raw.block_count.set(25_600);
    raw.section_count.set(42);
    raw.segment_count.set(49);
    raw.segment_count_ckpt.set(2);
    raw.segment_count_sit.set(2);
    raw.segment_count_nat.set(2);
    raw.segment_count_ssa.set(1);
    raw.segment_count_main.set(42);
    raw.segment0_blkaddr.set(512);
    raw.cp_blkaddr.set(512);
    raw.sit_blkaddr.set(1536);
    raw.nat_blkaddr.set(2560);
    raw.ssa_blkaddr.set(3584);
    raw.main_blkaddr.set(4096);
    raw.root_ino.set(3);
    raw.node_ino.set(1);
    raw.meta_ino.set(2);
    raw
}

fn parse(raw: &RawSuperblock) -> Result<Superblock, FormatError> {
    Superblock::parse(&raw.to_block(), Some(100 << 20))
}

#[test]
fn places() {
    let geo = parse(&sample()).unwrap().geo;
    assert_eq!(geo.nids(), 512 * 455);
    assert_eq!(geo.main_end(), 25_600);
    assert_eq!(geo.segment_of(BlockAddr(4095)), None);
    assert_eq!(geo.segment_of(BlockAddr(4096)), Some((SegNo(0), 0)));
    assert_eq!(geo.segment_of(BlockAddr(25_599)), Some((SegNo(41), 511)));
    assert_eq!(geo.segment_of(BlockAddr(25_600)), None);
    assert_eq!(geo.segment_of(BlockAddr::NEW), None);
    assert_eq!(geo.segment_start(SegNo(42)), None);
    assert_eq!(geo.nat_position(Nid(456)), (1, 1));
    assert_eq!(geo.nat_block(1, Copy2::First), Some(BlockAddr(2561)));
    assert_eq!(geo.nat_block(1, Copy2::Second), Some(BlockAddr(3073)));
    assert_eq!(geo.nat_block(512, Copy2::First), None);
    assert_eq!(geo.sit_block(3, Copy2::Second), Some(BlockAddr(1536 + 515)));
    assert_eq!(geo.ssa_block(SegNo(41)), Some(BlockAddr(3584 + 41)));
    assert_eq!(geo.pack_start(Copy2::Second), BlockAddr(1024));
    assert!(geo.check_nid(Nid(0)).is_err());
    assert!(geo.check_nid(Nid(3)).is_ok());
    assert!(geo.check_nid(Nid(512 * 455)).is_err());
}

#[test]
fn each_check_has_its_error() {
    type Damage = fn(&mut RawSuperblock);
    type Is = fn(&FormatError) -> bool;
    use FormatError as E;
    let cases: &[(Damage, Is)] = &[
        (|r| r.magic.set(1), |e| matches!(e, E::SuperMagic { .. })),
        (
            |r| r.log_blocksize.set(14),
            |e| matches!(e, E::SuperBlockSize { log: 14 }),
        ),
        (
            |r| r.log_blocks_per_seg.set(10),
            |e| matches!(e, E::SuperSegmentSize { .. }),
        ),
        (
            |r| r.log_sectorsize.set(8),
            |e| matches!(e, E::SuperSectorSize { .. }),
        ),
        (
            |r| r.log_sectors_per_block.set(2),
            |e| matches!(e, E::SuperSectorSize { .. }),
        ),
        (
            |r| r.segment_count.set(8),
            |e| matches!(e, E::SuperSegments { .. }),
        ),
        (
            |r| r.segment_count.set(u32::MAX),
            |e| matches!(e, E::SuperSegments { .. }),
        ),
        (
            |r| r.block_count.set(48 * 512),
            |e| matches!(e, E::SuperBlocks { .. }),
        ),
        (
            |r| r.segs_per_sec.set(0),
            |e| matches!(e, E::SuperSections { .. }),
        ),
        (
            |r| r.section_count.set(41),
            |e| matches!(e, E::SuperSections { .. }),
        ),
        (
            |r| r.secs_per_zone.set(43),
            |e| matches!(e, E::SuperZone { .. }),
        ),
        (
            |r| r.extension_count.set(65),
            |e| matches!(e, E::SuperExtensions { .. }),
        ),
        (
            |r| r.cp_payload.set(505),
            |e| matches!(e, E::SuperPayload { .. }),
        ),
        (
            |r| r.root_ino.set(2),
            |e| matches!(e, E::SuperInode { what: "root", .. }),
        ),
        (
            |r| r.segment0_blkaddr.set(0),
            |e| matches!(e, E::SuperAreaStart { .. }),
        ),
        (
            |r| r.nat_blkaddr.set(2561),
            |e| matches!(e, E::SuperArea { what: "NAT", .. }),
        ),
        (
            |r| r.segment_count_sit.set(0),
            |e| matches!(e, E::SuperAreaSize { what: "SIT", .. }),
        ),
        (
            |r| r.segment_count_nat.set(3),
            |e| matches!(e, E::SuperAreaSize { what: "NAT", .. }),
        ),
        (
            |r| r.segment_count.set(48),
            |e| matches!(e, E::SuperAreasEnd { .. }),
        ),
        (
            |r| r.feature.set(0x800),
            |e| matches!(e, E::SuperChecksumOffset { .. }),
        ),
        (
            |r| {
                r.feature.set(0x800);
                r.checksum_offset.set(3068);
            },
            |e| matches!(e, E::SuperChecksum { .. }),
        ),
        (
            |r| {
                r.devs[0].path[0] = b'x';
                r.devs[0].total_segments.set(7);
            },
            |e| matches!(e, E::SuperDevices { .. }),
        ),
    ];
    for (n, (damage, is)) in cases.iter().enumerate() {
        let mut raw = sample();
        damage(&mut raw);
        let e = parse(&raw).unwrap_err();
        assert!(is(&e), "case {n}: {e}");
    }
    let e = Superblock::parse(&sample().to_block(), Some((100 << 20) - 1)).unwrap_err();
    assert!(matches!(e, E::SuperPastDevice { .. }));
    let e = Superblock::parse(&[0; 100], None).unwrap_err();
    assert!(matches!(e, E::Truncated { .. }));
}

#[test]
fn tables_must_hold_the_main_area() {
    let mut raw = sample();
    // 60 000 segments need 1091 SIT blocks.
    raw.segment_count.set(60_007);
    raw.segment_count_main.set(60_000);
    raw.section_count.set(60_000);
    raw.block_count.set(60_100 * 512);
    let e = Superblock::parse(&raw.to_block(), None).unwrap_err();
    assert!(matches!(e, FormatError::SuperAreaRoom { what: "SIT", .. }));
}

#[test]
fn extensions_tell_temperatures() {
    let mut raw = sample();
    raw.set_extensions(&["mp", "gz"], &["db"]).unwrap();
    for (name, log) in [
        (&b"song.mp3"[..], Log::ColdData),
        (b"song.MP3.part", Log::ColdData),
        (b"a.tar.gz", Log::ColdData),
        (b".mp3", Log::WarmData),
        (b"mp3", Log::WarmData),
        (b"x.", Log::WarmData),
        (b"x.m", Log::WarmData),
        (b"places.db", Log::HotData),
        (b"places.db.gz", Log::ColdData),
    ] {
        assert_eq!(raw.temperature(name), log, "{name:?}");
    }
}

#[test]
fn labels_extensions_checksum() {
    let mut raw = sample();
    assert_eq!(raw.set_label("données 🦀"), Some(()));
    assert_eq!(raw.label(), "données 🦀");
    assert_eq!(raw.set_label(&"x".repeat(512)), None);
    assert_eq!(raw.set_label(&"x".repeat(511)), Some(()));
    assert_eq!(raw.set_extensions(&["jpg", "mp4"], &["db"]), Some(()));
    let (cold, hot) = raw.extensions();
    assert_eq!(cold, [&b"jpg"[..], b"mp4"]);
    assert_eq!(hot, [&b"db"[..]]);
    assert_eq!(raw.set_extensions(&["toolongext"], &[""; 0]), None);
    raw.feature.set(Features::SB_CHECKSUM.bits());
    raw.set_checksum();
    assert!(parse(&raw).is_ok());
    raw.uuid[0] ^= 1;
    assert!(matches!(
        parse(&raw),
        Err(FormatError::SuperChecksum { .. })
    ));
}

proptest! {
    #[test]
    fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..4200)) {
        let _ = Superblock::parse(&bytes, Some(1 << 30));
    }

    #[test]
    fn any_damage(at in 0usize..176, value: [u8; 4], second in 0usize..3072) {
        let mut block = sample().to_block();
        block[1024 + at..1024 + at + 4].copy_from_slice(&value);
        block[1024 + second] ^= value[0];
        if let Ok(sb) = Superblock::parse(&block, None) {
            // Accepted values never overflow.
            let geo = &sb.geo;
            let last = geo.nat_blocks() - 1;
            prop_assert!(geo.nat_block(last, Copy2::Second).unwrap() < geo.ssa);
            let seg = SegNo(geo.main_segments - 1);
            let (sit, _) = geo.sit_position(seg);
            prop_assert!(geo.sit_block(sit, Copy2::Second).unwrap() < geo.nat);
            prop_assert!(geo.ssa_block(seg).unwrap() < geo.main);
            prop_assert!(geo.segment_start(seg).is_some());
            let _ = sb.raw.extensions();
            let _ = sb.raw.label();
        }
    }
}
