use super::*;
use proptest::prelude::*;

#[test]
fn footers_round_trip() {
    let mut block = vec![0xEEu8; BLOCK_SIZE];
    let footer = Footer {
        nid: Nid(9),
        ino: Ino(7),
        offset: NodeOffset::XATTR,
        cold: true,
        fsync: false,
        dentry: true,
        version: 0x1234_5678_9ABC,
        next: BlockAddr(77),
    };
    assert_eq!(footer.write(&mut block), Some(()));
    assert_eq!(Footer::read(&block), Ok(footer));
    assert_eq!(Footer::expect(&block, Nid(9), Some(Ino(7))), Ok(footer));
    assert!(matches!(
        Footer::expect(&block, Nid(8), None),
        Err(FormatError::NodeNid { .. })
    ));
    assert!(matches!(
        Footer::expect(&block, Nid(9), Some(Ino(8))),
        Err(FormatError::NodeInode { .. })
    ));
    // An inode's own node has the inode's number, and no other has.
    let inode = Footer {
        offset: NodeOffset::INODE,
        ..footer
    };
    inode.write(&mut block).unwrap();
    assert!(Footer::expect(&block, Nid(9), None).is_err());
    assert!(Footer::read(&block[..4095]).is_err());
    assert_eq!(footer.write(&mut block[..100]), None);
}

#[test]
fn paths_at_every_edge() {
    let n = 923u64;
    let per = PER_NODE as u64;
    let at = |block| node_path(block, n as usize, 1);
    let path = at(n - 1).unwrap();
    assert_eq!((path.depth, path.positions[0]), (0, 922));
    let path = at(n).unwrap();
    assert_eq!(
        (path.depth, path.positions, path.offsets[1]),
        (1, [0, 0, 0, 0], NodeOffset(1))
    );
    let path = at(n + per).unwrap();
    assert_eq!((path.positions[0], path.offsets[1]), (1, NodeOffset(2)));
    let path = at(n + 2 * per).unwrap();
    assert_eq!(path.depth, 2);
    assert_eq!(
        (path.offsets[1], path.offsets[2]),
        (NodeOffset(3), NodeOffset(4))
    );
    let path = at(n + 2 * per + per * per).unwrap();
    assert_eq!(
        (path.positions[0], path.offsets[1]),
        (3, NodeOffset(4 + 1018))
    );
    assert_eq!(path.offsets[2], NodeOffset(5 + 1018));
    let path = at(n + 2 * per + 2 * per * per).unwrap();
    assert_eq!((path.depth, path.positions), (3, [4, 0, 0, 0]));
    assert_eq!(
        path.offsets[1..],
        [5 + 2036, 6 + 2036, 7 + 2036].map(NodeOffset)
    );
    assert!(at(file_blocks_max(n as usize) - 1).is_some());
    assert_eq!(at(file_blocks_max(n as usize)), None);
    assert_eq!(at(u64::MAX), None);
}

proptest! {
    #[test]
    fn offsets_lead_back(block in 0u64..1_000_000_000, cluster in prop::sample::select(vec![1usize, 4, 16])) {
        let path = node_path(block, 873, cluster).unwrap();
        if path.depth > 0 {
            let leaf = path.offsets[path.depth];
            let first = first_block_of(leaf, 873, cluster).unwrap();
            prop_assert_eq!(first + path.positions[path.depth] as u64, block);
            for above in 1..path.depth {
                prop_assert!(path.offsets[above].is_indirect());
            }
            prop_assert!(!leaf.is_indirect());
        }
    }

    #[test]
    fn any_offset(offset: u32, bytes in proptest::collection::vec(any::<u8>(), 4096)) {
        let _ = first_block_of(NodeOffset(offset), 873, 1);
        let _ = Footer::read(&bytes);
        let _ = Footer::expect(&bytes, Nid(offset), None);
        let _ = words(&bytes);
    }
}
