use super::*;
use crate::f2fs::superblock::{self, Superblock};
use proptest::prelude::*;

fn geo() -> Geometry {
    let raw = superblock::tests::sample();
    Superblock::parse(&raw.to_block(), None).unwrap().geo
}

/// What mkfs.f2fs writes on 100 MiB.
pub(crate) fn sample(geo: &Geometry) -> Checkpoint {
    let mut raw = RawCheckpoint::zeroed();
    raw.checkpoint_ver.set(77);
    raw.user_block_count.set(10_240);
    raw.valid_block_count.set(2);
    raw.rsvd_segment_count.set(16);
    raw.overprov_segment_count.set(22);
    raw.free_segment_count.set(36);
    for (n, log) in Log::ALL.into_iter().enumerate() {
        raw.set_log(
            log,
            LogHead {
                segment: SegNo(n as u32),
                offset: 1,
                alloc: ALLOC_LFS,
            },
        );
    }
    raw.ckpt_flags.set(0x185);
    raw.cp_pack_total_block_count.set(6);
    raw.cp_pack_start_sum.set(1);
    raw.valid_node_count.set(1);
    raw.valid_inode_count.set(1);
    raw.next_free_nid.set(4);
    Checkpoint {
        raw,
        sit_bitmap: VersionBitmap::new(geo.sit_bitmap_bytes()),
        nat_bitmap: VersionBitmap::new(geo.nat_bitmap_bytes()),
        checksum: 0,
    }
}

#[test]
fn round_trip_in_every_shape() {
    let plain = geo();
    let mut payload = geo();
    payload.cp_payload = 2;
    for (geo, large) in [
        (&plain, false),
        (&plain, true),
        (&payload, false),
        (&payload, true),
    ] {
        let mut cp = sample(geo);
        if large {
            cp.raw.ckpt_flags.set(0x585);
        }
        cp.raw.cp_pack_start_sum.set(1 + geo.cp_payload);
        cp.raw.cp_pack_total_block_count.set(6 + geo.cp_payload);
        cp.sit_bitmap.set(0, Copy2::Second);
        cp.nat_bitmap.set(9, Copy2::Second);
        let blocks = cp.encode(geo).unwrap();
        let back = Checkpoint::parse(&blocks, geo).unwrap();
        assert_eq!(back.sit_bitmap, cp.sit_bitmap);
        assert_eq!(back.nat_bitmap.get(9), Copy2::Second);
        assert_eq!(back.nat_bitmap.get(8), Copy2::First);
        assert_eq!(back.version_with_checksum() as u32, 77);
        assert_eq!(back.version_with_checksum() >> 32, u64::from(cp.checksum));
        assert_eq!(back.raw.log(Log::ColdNode).segment, SegNo(5));
    }
}

#[test]
fn each_check_has_its_error() {
    type Damage = fn(&mut RawCheckpoint);
    type Is = fn(&FormatError) -> bool;
    use FormatError as E;
    let cases: &[(Damage, Is)] = &[
        (
            |r| r.rsvd_segment_count.set(43),
            |e| matches!(e, E::CpSegments { .. }),
        ),
        (
            |r| r.user_block_count.set(0),
            |e| matches!(e, E::CpUserBlocks { .. }),
        ),
        (
            |r| r.user_block_count.set(1 << 40),
            |e| matches!(e, E::CpUserBlocks { .. }),
        ),
        (
            |r| r.valid_block_count.set(10_241),
            |e| matches!(e, E::CpValidBlocks { .. }),
        ),
        (
            |r| r.valid_inode_count.set(2),
            |e| matches!(e, E::CpNodes { .. }),
        ),
        (
            |r| r.next_free_nid.set(u32::MAX),
            |e| matches!(e, E::CpNextNid { .. }),
        ),
        (
            |r| r.cur_data_segno[1].set(42),
            |e| matches!(e, E::CpLog { .. }),
        ),
        (
            |r| r.cur_data_blkoff[1].set(512),
            |e| matches!(e, E::CpLog { .. }),
        ),
        (
            |r| r.cur_data_segno[1].set(4),
            |e| matches!(e, E::CpLogTwice { .. }),
        ),
        (
            |r| r.cp_pack_start_sum.set(0),
            |e| matches!(e, E::CpPackShape { .. }),
        ),
        (
            |r| r.cp_pack_start_sum.set(2),
            |e| matches!(e, E::CpPackShape { .. }),
        ),
        (
            |r| r.cp_pack_total_block_count.set(513),
            |e| matches!(e, E::CpPackShape { .. }),
        ),
        (
            |r| r.cp_pack_total_block_count.set(2),
            |e| matches!(e, E::CpPackShape { .. }),
        ),
    ];
    let geo = geo();
    for (n, (damage, is)) in cases.iter().enumerate() {
        let mut cp = sample(&geo);
        damage(&mut cp.raw);
        let blocks = cp.encode(&geo).unwrap();
        let e = Checkpoint::parse(&blocks, &geo).unwrap_err();
        assert!(is(&e), "case {n}: {e}");
    }
    let mut blocks = sample(&geo).encode(&geo).unwrap();
    blocks[300] ^= 1;
    assert!(matches!(
        Checkpoint::parse(&blocks, &geo),
        Err(E::CpChecksum { .. })
    ));
    blocks[164..168].copy_from_slice(&4093u32.to_le_bytes());
    assert!(matches!(
        Checkpoint::parse(&blocks, &geo),
        Err(E::CpChecksumOffset { .. })
    ));
}

#[test]
fn footers() {
    let geo = geo();
    let mut cp = sample(&geo);
    cp.encode(&geo).unwrap();
    assert_eq!(cp.footer_version(), 77);
    cp.raw.ckpt_flags.set(0x1C5);
    assert!(cp.footer_matches(cp.version_with_checksum()));
    assert!(!cp.footer_matches(77));
    cp.raw.ckpt_flags.set(0x3C5);
    assert!(cp.footer_matches(77));
    assert!(!cp.footer_matches(78));
    assert_eq!(cp.flags().names().len(), 6);
}

proptest! {
    #[test]
    fn any_head(bytes in proptest::collection::vec(any::<u8>(), 192), flags in 0u32..0x8000) {
        let geo = geo();
        let mut raw = RawCheckpoint::read_from_bytes(&bytes[..]).unwrap();
        raw.ckpt_flags.set(flags);
        let mut cp = sample(&geo);
        cp.raw = raw;
        if let Some(blocks) = cp.encode(&geo)
            && let Ok(cp) = Checkpoint::parse(&blocks, &geo)
        {
            let _ = crate::f2fs::pack::PackLayout::new(&cp, &geo);
        }
        let _ = verify_block(&bytes);
    }
}
