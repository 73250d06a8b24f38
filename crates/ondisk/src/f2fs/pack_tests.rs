use super::*;
use crate::f2fs::superblock::{self, Superblock};
use proptest::prelude::*;

fn geo() -> Geometry {
    let raw = superblock::tests::sample();
    Superblock::parse(&raw.to_block(), None).unwrap().geo
}

fn sample() -> Checkpoint {
    crate::f2fs::checkpoint::tests::sample(&geo())
}

#[test]
fn layouts() {
    let geo = geo();
    let mut cp = sample();
    let layout = PackLayout::new(&cp, &geo).unwrap();
    assert_eq!(
        layout,
        PackLayout {
            orphans: (1, 0),
            data_summaries: 1,
            node_summaries: Some(2),
            tail: 5,
            nat_bits: Some((511, 1)),
        }
    );
    // Whole summaries without nodes, two orphan blocks.
    cp.raw.ckpt_flags.set(0x2);
    cp.raw.cp_pack_start_sum.set(3);
    cp.raw.cp_pack_total_block_count.set(7);
    let layout = PackLayout::new(&cp, &geo).unwrap();
    assert_eq!(
        (layout.orphans, layout.data_summaries, layout.tail),
        ((1, 2), 3, 6)
    );
    cp.raw.cp_pack_total_block_count.set(8);
    assert!(matches!(
        PackLayout::new(&cp, &geo),
        Err(FormatError::CpPackRoom { .. })
    ));
    let mut cp = sample();
    cp.raw.cp_pack_total_block_count.set(512);
    assert!(PackLayout::new(&cp, &geo).is_err());
}

#[test]
fn orphans_round_trip() {
    let geo = geo();
    let list: Vec<Ino> = (3..2003).map(Ino).collect();
    let blocks = encode_orphans(&list);
    assert_eq!(blocks.len(), 2);
    let back: Vec<Ino> = blocks
        .iter()
        .flat_map(|b| parse_orphans(b, &geo).unwrap())
        .collect();
    assert_eq!(back, list);
    let mut bad = blocks[0].clone();
    bad[4088..4092].copy_from_slice(&1021u32.to_le_bytes());
    assert_eq!(
        parse_orphans(&bad, &geo),
        Err(FormatError::OrphanCount { found: 1021 })
    );
    bad[4088..4092].copy_from_slice(&1u32.to_le_bytes());
    bad[..4].fill(0);
    assert!(matches!(
        parse_orphans(&bad, &geo),
        Err(FormatError::NidRange { .. })
    ));
}

#[test]
fn the_newer_pack_counts() {
    let geo = geo();
    let with = |version: u64| {
        let mut cp = sample();
        cp.raw.checkpoint_ver.set(version);
        let blocks = cp.encode(&geo).unwrap();
        Checkpoint::parse(&blocks, &geo)
    };
    let bad = || {
        Err(FormatError::CpChecksum {
            found: 0,
            expected: 1,
        })
    };
    assert_eq!(newer(with(4), with(5)).unwrap().which, Copy2::Second);
    assert_eq!(newer(with(6), with(5)).unwrap().which, Copy2::First);
    assert_eq!(newer(with(u64::MAX), with(0)).unwrap().which, Copy2::Second);
    assert_eq!(newer(bad(), with(0)).unwrap().which, Copy2::Second);
    assert_eq!(newer(with(0), bad()).unwrap().which, Copy2::First);
    assert!(newer(bad(), bad()).is_err());
}

#[test]
fn both_ends_belong_together() {
    let geo = geo();
    let mut cp = sample();
    let head = cp.encode(&geo).unwrap();
    cp.raw.checkpoint_ver.set(78);
    let tail = cp.encode(&geo).unwrap();
    assert_eq!(verify_pair(&head, &head), Ok(77));
    assert_eq!(
        verify_pair(&head, &tail),
        Err(FormatError::CpVersions { head: 77, tail: 78 })
    );
}

#[test]
fn nat_bits_belong_to_their_checkpoint() {
    let geo = geo();
    let mut cp = sample();
    cp.encode(&geo).unwrap();
    let bits = NatBits {
        full: vec![1; 64],
        empty: vec![2; 64],
    };
    let blocks = bits.encode(&cp);
    assert_eq!(blocks.len(), BLOCK_SIZE);
    assert_eq!(NatBits::parse(&blocks, &cp, &geo), Ok(bits));
    assert!(NatBits::parse(&blocks[..100], &cp, &geo).is_err());
    cp.raw.checkpoint_ver.set(1);
    assert!(matches!(
        NatBits::parse(&blocks, &cp, &geo),
        Err(FormatError::NatBitsVersion { .. })
    ));
}

proptest! {
    #[test]
    fn any_orphans(bytes in proptest::collection::vec(any::<u8>(), 4096)) {
        let _ = parse_orphans(&bytes, &geo());
        let _ = parse_orphans(&bytes[..100], &geo());
    }
}
