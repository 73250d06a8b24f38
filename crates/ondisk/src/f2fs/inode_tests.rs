use super::*;
use crate::f2fs::node::{Footer, NodeOffset};
use crate::f2fs::superblock::{self, Superblock};
use proptest::prelude::*;

const ANDROID: Features = Features::EXTRA_ATTR
    .union(Features::PROJECT_QUOTA)
    .union(Features::INODE_CHECKSUM)
    .union(Features::INODE_CRTIME)
    .union(Features::FLEXIBLE_INLINE_XATTR)
    .union(Features::COMPRESSION);

fn geo(features: Features) -> Geometry {
    let mut raw = superblock::tests::sample();
    raw.feature.set(features.bits());
    raw.uuid = [7; 16];
    Superblock::parse(&raw.to_block(), None).unwrap().geo
}

fn encode(inode: &Inode, ino: Ino, geo: &Geometry) -> Vec<u8> {
    let mut block = vec![0u8; BLOCK_SIZE];
    inode.encode_into(&mut block).unwrap();
    let footer = Footer {
        nid: ino.nid(),
        ino,
        offset: NodeOffset::INODE,
        cold: true,
        fsync: false,
        dentry: false,
        version: 1,
        next: BlockAddr(4097),
    };
    footer.write(&mut block).unwrap();
    set_checksum(&mut block, ino, geo);
    block
}

fn sample(features: Features) -> Inode {
    let mut inode = Inode::new(0o100_644, features);
    inode.inline |= InlineFlags::XATTR | InlineFlags::DATA | InlineFlags::DATA_EXIST;
    if let Some(e) = &mut inode.extra {
        e.inline_xattr_words = 50;
        e.projid = 12;
        e.crtime = Timestamp { secs: -5, nanos: 9 };
    }
    (inode.uid, inode.gid, inode.size, inode.generation) = (1000, 1001, 77, 0xABCD);
    inode.mtime = Timestamp {
        secs: 1 << 40,
        nanos: 999_999_999,
    };
    inode.name = b"name".to_vec();
    inode.pino = Ino(3);
    inode
}

#[test]
fn round_trip_with_and_without_extra() {
    for features in [Features::empty(), ANDROID] {
        let geo = geo(features);
        let inode = sample(features);
        let block = encode(&inode, Ino(9), &geo);
        assert_eq!(Inode::parse(&block, Ino(9), &geo), Ok(inode));
    }
}

#[test]
fn layouts() {
    let inode = sample(ANDROID);
    let layout = inode.layout(ANDROID);
    assert_eq!(layout.addresses(), 923 - 9 - 50);
    assert_eq!(layout.address_bytes(), 396..396 + 864 * 4);
    assert_eq!(layout.inline_bytes().len(), 863 * 4);
    assert_eq!(layout.xattr_bytes(), 3852..4052);
    assert_eq!(layout.addresses_used(16), 864);
    assert_eq!(layout.addresses_used(0), 864);
    let plain = sample(Features::empty());
    assert_eq!(plain.layout(Features::empty()).addresses(), 873);
    let mut bare = plain.clone();
    bare.inline = InlineFlags::empty();
    assert_eq!(bare.layout(Features::empty()).addresses(), 923);
    // Never beyond the address words, for any inode.
    let odd = InodeLayout::new(36, 923);
    assert_eq!(odd.addresses(), 0);
    assert!(odd.inline_bytes().is_empty());
}

#[test]
fn each_check_has_its_error() {
    type Damage = fn(&mut Inode);
    type Is = fn(&FormatError) -> bool;
    use FormatError as E;
    let cases: &[(Damage, Is)] = &[
        (|i| i.mode = 0o644, |e| matches!(e, E::InodeMode { .. })),
        (
            |i| i.extra.as_mut().unwrap().bytes = 40,
            |e| matches!(e, E::InodeExtraSize { .. }),
        ),
        (
            |i| i.extra.as_mut().unwrap().bytes = 10,
            |e| matches!(e, E::InodeExtraSize { .. }),
        ),
        (
            |i| i.extra.as_mut().unwrap().inline_xattr_words = 904,
            |e| matches!(e, E::InodeXattrSize { .. }),
        ),
        (
            |i| i.extra.as_mut().unwrap().inline_xattr_words = 0,
            |e| matches!(e, E::InodeXattrSize { .. }),
        ),
        (
            |i| i.mode = 0o040_755,
            |e| matches!(e, E::InodeInline { .. }),
        ),
        (
            |i| i.inline |= InlineFlags::DENTRY,
            |e| matches!(e, E::InodeInline { .. }),
        ),
        (
            |i| i.size = 863 * 4 + 1,
            |e| matches!(e, E::InodeSize { .. }),
        ),
        (|i| i.blocks = 0, |e| matches!(e, E::InodeBlocks { .. })),
        (|i| i.nids[2] = Nid(9), |e| matches!(e, E::InodeNode { .. })),
        (
            |i| i.xattr_nid = Nid(u32::MAX),
            |e| matches!(e, E::InodeNode { .. }),
        ),
        (
            |i| i.extent = (FileBlock(0), BlockAddr(5), 1),
            |e| matches!(e, E::InodeExtent { .. }),
        ),
        (
            |i| {
                i.mode = 0o040_755;
                i.inline -= InlineFlags::DATA;
                i.current_depth = 64;
            },
            |e| matches!(e, E::InodeDepth { .. }),
        ),
    ];
    let geo = geo(ANDROID);
    for (n, (damage, is)) in cases.iter().enumerate() {
        let mut inode = sample(ANDROID);
        damage(&mut inode);
        let e = Inode::parse(&encode(&inode, Ino(9), &geo), Ino(9), &geo).unwrap_err();
        assert!(is(&e), "case {n}: {e}");
    }
    let mut block = encode(&sample(ANDROID), Ino(9), &geo);
    block[2000] ^= 1;
    assert!(matches!(
        Inode::parse(&block, Ino(9), &geo),
        Err(E::InodeChecksum { .. })
    ));
    assert!(Inode::parse_unverified(&block, Ino(9), &geo).is_ok());
    block[88..92].fill(0xFF);
    assert!(matches!(
        Inode::parse_unverified(&block, Ino(9), &geo),
        Err(E::InodeNameLength { .. })
    ));
    assert!(Inode::parse(&block[..100], Ino(9), &geo).is_err());
}

#[test]
fn devices() {
    for (major, minor) in [
        (0, 1),
        (8, 3),
        (255, 255),
        (256, 0),
        (4095, 0xF_FFFF),
        (1, 256),
    ] {
        assert_eq!(decode_device(encode_device(major, minor)), (major, minor));
    }
}

proptest! {
    #[test]
    fn any_block(mut bytes in proptest::collection::vec(any::<u8>(), 4096), mode in 0u16..8, feature: bool) {
        // A plausible type, so that more than the first check is reached.
        bytes[1] = (mode as u8) << 5 | 0x01;
        let geo = geo(if feature { ANDROID } else { Features::empty() });
        if feature {
            bytes[3] |= 0x20;
            bytes[360..362].copy_from_slice(&36u16.to_le_bytes());
            bytes[363] &= 3;
        }
        bytes[90..92].fill(0);
        bytes[89] = 0;
        if let Ok(inode) = Inode::parse_unverified(&bytes, Ino(9), &geo) {
            let layout = inode.layout(geo.features);
            prop_assert!(bytes.get(layout.inline_bytes()).is_some());
            prop_assert!(bytes.get(layout.xattr_bytes()).is_some());
            let _ = layout.inline_dentries();
            let _ = inode.cluster_blocks();
        }
        let _ = Inode::parse(&bytes, Ino(9), &geo);
    }
}
