use super::*;
use crate::ext4::superblock::tests::sample_geometry;

fn extent(logical: u64, physical: u64, len: u32) -> Extent {
    Extent {
        logical: FileBlock(logical),
        physical: BlockNo(physical),
        len,
        unwritten: false,
    }
}

fn parse_root(bytes: &[u8]) -> Result<usize, FormatError> {
    let geo = sample_geometry("");
    ExtentNode::parse(bytes, NodePlace::Inode, NodeRules::ROOT, &geo).map(|n| n.len())
}

fn root(extents: &[Extent]) -> [u8; 60] {
    let mut bytes = [0; 60];
    write_leaf(&mut bytes, extents).unwrap();
    bytes
}

#[test]
fn lengths_and_the_unwritten_mark() {
    for (len, unwritten) in [(1, false), (32768, false), (1, true), (32767, true)] {
        let e = Extent {
            len,
            unwritten,
            ..extent(7, 0xFFFF_FFFF_FFFF, 1)
        };
        assert_eq!(Extent::from_raw(&e.to_raw().unwrap()), e);
    }
    assert_eq!(extent(0, 1, 32769).to_raw(), None);
    assert_eq!(extent(0, 1, 0).to_raw(), None);
    assert_eq!(extent(1 << 32, 1, 1).to_raw(), None);
    assert_eq!(extent(0, 1 << 48, 1).to_raw(), None);
    assert_eq!(
        Extent {
            unwritten: true,
            ..extent(0, 1, 32768)
        }
        .to_raw(),
        None
    );
}

#[test]
fn good_nodes() {
    let geo = sample_geometry("");
    let list = [extent(0, 100, 5), extent(5, 90, 5), extent(20, 300, 1)];
    let bytes = root(&list);
    let node = ExtentNode::parse(&bytes, NodePlace::Inode, NodeRules::ROOT, &geo).unwrap();
    assert_eq!(node.extents().collect::<Vec<_>>(), list);
    assert_eq!((node.capacity(), node.depth()), (4, 0));
    let found = [0, 4, 5, 19, 20, 99].map(|b| node.find(FileBlock(b)));
    assert_eq!(
        found,
        [Some(0), Some(0), Some(1), Some(1), Some(2), Some(2)]
    );
    assert_eq!(parse_root(&root(&[])), Ok(0));

    let mut inner = [0; 60];
    let pointers = [(3, 50), (10, 60)].map(|(l, c)| ExtentIndex {
        logical: FileBlock(l),
        child: BlockNo(c),
    });
    write_inner(&mut inner, 2, &pointers).unwrap();
    let node = ExtentNode::parse(&inner, NodePlace::Inode, NodeRules::ROOT, &geo).unwrap();
    assert_eq!(node.indexes().collect::<Vec<_>>(), pointers);
    assert_eq!(node.find(FileBlock(2)), None);
    let child = node.child_rules(0, NodeRules::ROOT).unwrap();
    assert_eq!(
        (child.depth, child.first, child.end),
        (Some(1), FileBlock(3), FileBlock(10))
    );
    assert_eq!(node.child_rules(2, NodeRules::ROOT).map(|r| r.first), None);
}

#[test]
fn each_damage_has_its_own_error() {
    use FormatError as E;
    let good = root(&[extent(0, 100, 5), extent(5, 90, 5)]);
    let with = |at: usize, value: u8| {
        let mut bytes = good;
        bytes[at] = value;
        parse_root(&bytes).unwrap_err()
    };
    assert!(matches!(with(0, 0), E::ExtentMagic { .. }));
    assert!(matches!(
        with(4, 5),
        E::ExtentMax {
            found: 5,
            room: 4,
            ..
        }
    ));
    assert!(matches!(with(4, 0), E::ExtentMax { .. }));
    assert!(matches!(with(2, 5), E::ExtentEntries { .. }));
    assert!(matches!(
        with(6, 6),
        E::ExtentDepth {
            found: 6,
            expected: 5,
            ..
        }
    ));
    assert!(matches!(
        with(16, 0),
        E::ExtentLength {
            logical: FileBlock(0),
            ..
        }
    ));
    assert!(matches!(
        with(16, 6),
        E::ExtentOrder {
            logical: FileBlock(5),
            ..
        }
    ));
    assert!(matches!(with(18, 9), E::ExtentOutside { .. }));
    assert!(matches!(parse_root(&good[..11]), Err(E::Truncated { .. })));
    let past = root(&[extent(0xFFFF_FFFF, 100, 1)]);
    assert!(matches!(parse_root(&past), Err(E::ExtentOrder { .. })));
    let zero = root(&[extent(0, 0, 2)]);
    assert!(matches!(parse_root(&zero), Err(E::ExtentOutside { .. })));
    let mut empty = root(&[]);
    empty[6] = 1;
    assert!(matches!(parse_root(&empty), Err(E::ExtentEmptyNode { .. })));

    let geo = sample_geometry("");
    let mut own = [0; 60];
    let pointer = ExtentIndex {
        logical: FileBlock(0),
        child: BlockNo(9),
    };
    write_inner(&mut own, 1, &[pointer]).unwrap();
    let place = NodePlace::Block(BlockNo(9));
    let err = ExtentNode::parse(&own, place, NodeRules::ROOT, &geo).unwrap_err();
    assert_eq!(
        err.to_string(),
        "extent block 9: entry at file block 0 points outside of the volume (1 blocks at 9)"
    );
    let rules = NodeRules {
        depth: Some(0),
        ..NodeRules::ROOT
    };
    let err = ExtentNode::parse(&own, NodePlace::Inode, rules, &geo).unwrap_err();
    assert!(matches!(
        err,
        E::ExtentDepth {
            found: 1,
            expected: 0,
            ..
        }
    ));
}

#[test]
fn checksums() {
    let geo = sample_geometry("");
    let seed = geo.inode_seed(crate::ext4::Ino(12), 5);
    let mut block = vec![0; 4096];
    write_leaf(&mut block, &[extent(0, 100, 5)]).unwrap();
    set_checksum(&mut block, &geo, seed).unwrap();
    verify_checksum(&block, BlockNo(7), &geo, seed).unwrap();
    block[20] ^= 1;
    let err = verify_checksum(&block, BlockNo(7), &geo, seed).unwrap_err();
    assert!(matches!(
        err,
        FormatError::ExtentChecksum {
            block: BlockNo(7),
            ..
        }
    ));
    block[4..6].copy_from_slice(&[255, 255]);
    assert!(verify_checksum(&block, BlockNo(7), &geo, seed).is_err());
    assert!(set_checksum(&mut block, &geo, seed).is_err());
}
