use super::*;
use crate::f2fs::checkpoint::LogHead;
use crate::f2fs::superblock::{self, Superblock};
use crate::f2fs::{BlockAddr, Ino};
use proptest::prelude::*;

fn geo() -> Geometry {
    let raw = superblock::tests::sample();
    Superblock::parse(&raw.to_block(), None).unwrap().geo
}

fn summary(n: usize) -> Summary {
    Summary {
        nid: Nid(n as u32 + 1),
        version: n as u8,
        offset: n as u16,
    }
}

fn journals() -> (NatJournal, SitJournal) {
    let entry = |n: u32| NatEntry {
        version: 1,
        ino: Ino(n),
        block: BlockAddr(4096 + n),
    };
    let nat = (3..41).map(|n| (Nid(n), entry(n))).collect();
    let sit = (0..6).map(|n| (SegNo(n), SitEntry::free())).collect();
    (NatJournal(nat), SitJournal(sit))
}

#[test]
fn blocks_round_trip() {
    let mut block = SummaryBlock::new(SummaryKind::Node);
    block.entries = (0..ENTRIES).map(summary).collect();
    let (nat, _) = journals();
    block.journal = nat.encode().unwrap();
    let bytes = block.encode();
    assert_eq!(SummaryBlock::parse(&bytes), Ok(block.clone()));
    assert_eq!(NatJournal::parse(&block.journal, &geo()), Ok(nat));
    let mut bad = block.encode_with_checksum();
    assert!(SummaryBlock::parse(&bad).is_ok());
    bad[4091] = 2;
    assert_eq!(
        SummaryBlock::parse(&bad),
        Err(FormatError::SummaryType { found: 2 })
    );
    assert!(SummaryBlock::parse(&bad[1..]).is_err());
}

#[test]
fn journals_are_bounded() {
    let geo = geo();
    let (mut nat, mut sit) = journals();
    let mut bytes = sit.encode().unwrap();
    assert_eq!(SitJournal::parse(&bytes, &geo), Ok(sit.clone()));
    bytes[0] = 7;
    assert!(matches!(
        SitJournal::parse(&bytes, &geo),
        Err(FormatError::JournalCount { max: 6, .. })
    ));
    bytes[0] = 6;
    bytes[2] = 42;
    assert!(matches!(
        SitJournal::parse(&bytes, &geo),
        Err(FormatError::SegmentRange { .. })
    ));
    sit.0.push((SegNo(9), SitEntry::free()));
    assert_eq!(sit.encode(), None);
    nat.0[0].1.block = BlockAddr(7);
    let bytes = nat.encode().unwrap();
    assert!(matches!(
        NatJournal::parse(&bytes, &geo),
        Err(FormatError::NatBlock { .. })
    ));
    nat.0.push(nat.0[0]);
    assert_eq!(nat.encode(), None);
    assert!(NatJournal::parse(&[0; 100], &geo).is_err());
}

#[test]
fn compact_form_round_trips() {
    let geo = geo();
    for counts in [
        [0, 0, 0],
        [100, 200, 139],
        [100, 200, 140],
        [511, 511, 511],
        [440, 0, 3],
    ] {
        let mut raw = RawCheckpoint::zeroed();
        for (log, n) in Log::DATA.into_iter().zip(counts) {
            let head = LogHead {
                segment: SegNo(0),
                offset: n as u16,
                alloc: 0,
            };
            raw.set_log(log, head);
        }
        let (nat, sit) = journals();
        let entries = counts.map(|n: usize| {
            (0..ENTRIES)
                .map(|i| {
                    if i < n {
                        summary(i + n)
                    } else {
                        Summary::default()
                    }
                })
                .collect()
        });
        let all = CompactSummaries { nat, sit, entries };
        let bytes = all.encode(&raw).unwrap();
        assert_eq!(bytes.len(), compact_blocks(&raw) as usize * BLOCK_SIZE);
        assert_eq!(CompactSummaries::parse(&bytes, &raw, &geo), Ok(all));
        assert!(CompactSummaries::parse(&bytes[1..], &raw, &geo).is_err());
        // Footers stay free.
        for block in bytes.chunks(BLOCK_SIZE) {
            assert_eq!(block[BLOCK_SIZE - FOOTER_BYTES..], [0; FOOTER_BYTES]);
        }
    }
}

proptest! {
    #[test]
    fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 3 * 4096)) {
        let geo = geo();
        let _ = SummaryBlock::parse(&bytes[..4096]);
        let _ = NatJournal::parse(&bytes[..507], &geo);
        let _ = SitJournal::parse(&bytes[..507], &geo);
        let mut raw = RawCheckpoint::zeroed();
        raw.cur_data_blkoff[0].set(u16::from(bytes[0]) * 2);
        let _ = CompactSummaries::parse(&bytes, &raw, &geo);
    }
}
