use super::*;
use crate::ext4::superblock::tests::sample_geometry;

const INO: Ino = Ino(12);

fn filled(geo: &Geometry) -> Inode {
    let mut inode = Inode::new(geo, 0o100_644);
    inode.uid = 0x0012_3456;
    inode.gid = 0x00AB_CDEF;
    inode.size = 0x12_3456_789A;
    inode.mtime = Timestamp {
        secs: 5_000_000_000,
        nanos: 123_456_789,
    };
    inode.atime = Timestamp {
        secs: -1,
        nanos: 999_999_999,
    };
    inode.crtime = Some(Timestamp { secs: 1, nanos: 2 });
    inode.links = 3;
    inode.sectors = 0x1_0000_0001;
    inode.flags = InodeFlags::EXTENTS;
    inode.version = 0xA_BBBB_CCCC;
    inode.generation = 77;
    inode.file_acl = BlockNo(0x1234_5678_9ABC);
    inode.projid = 42;
    inode
}

#[test]
fn round_trip_keeps_unknown_bytes() {
    let geo = sample_geometry("project");
    let inode = filled(&geo);
    let mut raw = vec![0xEEu8; 256];
    inode.encode_into(&mut raw, &geo, INO).unwrap();
    assert_eq!(Inode::parse(&raw, &geo, INO), Ok(inode));
    assert_eq!(raw[160..], [0xEE; 96], "attributes were overwritten");
    assert_eq!(
        raw[0x70..0x74],
        [0xEE; 4],
        "an obsolete field was overwritten"
    );
    raw[200] = 1;
    let err = Inode::parse(&raw, &geo, INO).unwrap_err();
    assert!(matches!(err, FormatError::InodeChecksum { ino: INO, .. }));
}

#[test]
fn extra_size_decides_what_exists() {
    let geo = sample_geometry("");
    let mut inode = filled(&geo);
    inode.extra_isize = 16;
    let mut raw = vec![0u8; 256];
    inode.encode_into(&mut raw, &geo, INO).unwrap();
    let back = Inode::parse(&raw, &geo, INO).unwrap();
    assert_eq!(back.crtime, None);
    assert_eq!((back.projid, back.version), (0, 0xBBBB_CCCC));
    assert_eq!(back.mtime, inode.mtime);
    assert_eq!(raw[144..], [0; 112]);
    for bad in [2u16, 130, u16::MAX] {
        raw[0x80..0x82].copy_from_slice(&bad.to_le_bytes());
        let err = Inode::decode(&raw, &geo, INO).unwrap_err();
        assert_eq!(
            err,
            FormatError::InodeExtraSize {
                ino: INO,
                found: bad,
                max: 128
            }
        );
    }
    assert!(matches!(
        Inode::decode(&raw[..255], &geo, INO),
        Err(FormatError::Truncated { .. })
    ));
}

#[test]
fn space_counts() {
    let geo = sample_geometry("");
    for sectors in [
        0,
        1,
        0xFFFF_FFFF,
        0x1_0000_0000,
        (1 << 48) - 1,
        1 << 48,
        1 << 50,
    ] {
        let mut inode = filled(&geo);
        inode.sectors = sectors;
        let mut raw = vec![0u8; 256];
        inode.encode_into(&mut raw, &geo, INO).unwrap();
        let back = Inode::parse(&raw, &geo, INO).unwrap();
        assert_eq!(back.sectors, sectors);
        assert_eq!(
            back.flags.contains(InodeFlags::HUGE_FILE),
            sectors >= 1 << 48
        );
    }
    let geo = sample_geometry("^huge_file");
    let err = filled(&geo)
        .encode_into(&mut [0u8; 256], &geo, INO)
        .unwrap_err();
    assert_eq!(
        err,
        FormatError::InodeSectors {
            ino: INO,
            sectors: 0x1_0000_0001
        }
    );
}

#[test]
fn sizes() {
    let geo = sample_geometry("");
    let mut raw = vec![0u8; 256];
    let mut dir = Inode::new(&geo, 0o040_755);
    dir.size = 1 << 32;
    assert!(matches!(
        dir.encode_into(&mut raw, &geo, INO),
        Err(FormatError::InodeSize { .. })
    ));
    let large = sample_geometry("large_dir");
    dir.encode_into(&mut raw, &large, INO).unwrap();
    assert_eq!(Inode::parse(&raw, &large, INO).unwrap().size, 1 << 32);
    assert_eq!(Inode::parse(&raw, &geo, INO).unwrap().size, 0);
    let file = Inode::new(&geo, 0o100_644);
    file.encode_into(&mut raw, &geo, INO).unwrap();
    raw[0x6F] = 0x80;
    assert!(matches!(
        Inode::decode(&raw, &geo, INO),
        Err(FormatError::InodeSize { .. })
    ));
}

#[test]
fn device_numbers() {
    let geo = sample_geometry("");
    let mut inode = Inode::new(&geo, 0o060_600);
    for dev in [
        (0, 0),
        (8, 1),
        (255, 255),
        (256, 0),
        (259, 0xF_FFFF),
        (4095, 70_000),
    ] {
        inode.set_device(dev.0, dev.1);
        assert_eq!(inode.device(), dev);
    }
    inode.set_device(8, 1);
    assert_eq!(inode.block[..8], [1, 8, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn fast_links() {
    let geo = sample_geometry("");
    let mut link = Inode::new(&geo, 0o120_777);
    link.size = 59;
    assert!(link.is_fast_symlink(&geo));
    link.file_acl = BlockNo(5);
    link.sectors = 8;
    assert!(
        link.is_fast_symlink(&geo),
        "an attribute block is not the target's"
    );
    link.sectors = 16;
    assert!(!link.is_fast_symlink(&geo));
    link.sectors = 8;
    link.size = 60;
    assert!(!link.is_fast_symlink(&geo));
    link.size = 5;
    link.flags = InodeFlags::INLINE_DATA;
    assert!(!link.is_fast_symlink(&geo) && !link.maps_blocks(&geo));
}

#[test]
fn value_inodes_keep_their_counters() {
    let geo = sample_geometry("ea_inode");
    let mut inode = Inode::new(&geo, 0o100_600);
    inode.set_ea_inode_refs(0x8000_0001_0000_0002);
    inode.set_ea_inode_hash(0xFEDC_BA98);
    let mut raw = vec![0u8; 256];
    inode.encode_into(&mut raw, &geo, INO).unwrap();
    let back = Inode::parse(&raw, &geo, INO).unwrap();
    assert_eq!(back.ea_inode_refs(), 0x8000_0001_0000_0002);
    assert_eq!(back.ea_inode_hash(), 0xFEDC_BA98);
}

#[test]
fn unused_inodes_have_no_checksum() {
    let geo = sample_geometry("");
    verify_checksum(&[0; 256], &geo, INO).unwrap();
}
