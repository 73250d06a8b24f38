use super::*;
use crate::ext4::htree;
use crate::ext4::htree::{DxEntry, DxNode, DxPlace, DxRootInfo};
use crate::ext4::superblock::tests::sample_geometry;

const FILE: Option<FileKind> = Some(FileKind::Regular);

fn format() -> DirFormat {
    DirFormat::new(&sample_geometry(""))
}

fn leaf() -> Vec<u8> {
    let format = format();
    let mut block = vec![0; 4096];
    write_empty_leaf(&mut block, &format).unwrap();
    write_entry(&mut block, 0, 12, Ino(11), FILE, b"one", &format).unwrap();
    write_entry(&mut block, 12, 16, Ino(12), FILE, b"three", &format).unwrap();
    write_entry(&mut block, 28, 4084 - 28, Ino(0), None, b"", &format).unwrap();
    block
}

fn first_error(block: &[u8]) -> FormatError {
    DirBlock::leaf(block, format())
        .unwrap()
        .iter()
        .find_map(Result::err)
        .unwrap()
}

#[test]
fn entries_and_tail() {
    let format = format();
    let seed = sample_geometry("").inode_seed(Ino(2), 0);
    let mut block = leaf();
    set_leaf_checksum(&mut block, &format, seed).unwrap();
    verify_leaf_checksum(&block, &format, seed).unwrap();
    let entries: Vec<_> = DirBlock::leaf(&block, format)
        .unwrap()
        .iter()
        .map(|e| e.unwrap())
        .collect();
    assert_eq!(entries.len(), 3);
    assert_eq!(
        (entries[1].name, entries[1].ino, entries[1].kind),
        (&b"three"[..], Ino(12), FILE)
    );
    assert!(!entries[2].is_used());
    block[100] = 1;
    let err = verify_leaf_checksum(&block, &format, seed).unwrap_err();
    assert!(matches!(err, FormatError::DirChecksum { .. }));
    block[4091] = 0;
    assert_eq!(
        DirBlock::leaf(&block, format).unwrap_err(),
        FormatError::DirTail
    );
}

#[test]
fn each_damage_has_its_own_error() {
    use FormatError as E;
    let with = |at: usize, bytes: &[u8]| {
        let mut block = leaf();
        block[at..at + bytes.len()].copy_from_slice(bytes);
        first_error(&block)
    };
    assert_eq!(
        with(4, &[13, 0]),
        E::DirRecLenUnaligned {
            offset: 0,
            rec_len: 13
        }
    );
    assert_eq!(
        with(4, &[0, 0]),
        E::DirRecLenSmall {
            offset: 0,
            rec_len: 0
        }
    );
    assert_eq!(
        with(4, &[0, 16]),
        E::DirRecLenPastEnd {
            offset: 0,
            rec_len: 4096,
            left: 4084
        }
    );
    assert_eq!(
        with(6, &[5]),
        E::DirNameTooLong {
            offset: 0,
            name_len: 5,
            rec_len: 12
        }
    );
    assert_eq!(with(6, &[0]), E::DirNameEmpty { offset: 0 });
    assert_eq!(
        with(20, b"a/"),
        E::DirNameByte {
            offset: 12,
            byte: b'/'
        }
    );
    assert_eq!(
        with(20, b"a\0"),
        E::DirNameByte {
            offset: 12,
            byte: 0
        }
    );
    let max = sample_geometry("").inodes_count;
    let ino = Ino(u32::MAX);
    assert_eq!(
        with(12, &[255; 4]),
        E::DirInode {
            offset: 12,
            ino,
            max
        }
    );
    let short = DirBlock::entries_of(&[1, 0, 0, 0, 12], format());
    assert_eq!(
        short.iter().next(),
        Some(Err(E::DirEntryTruncated { offset: 0, left: 5 }))
    );
    assert_eq!(short.iter().count(), 1);
}

#[test]
fn record_lengths_of_64k_blocks() {
    assert_eq!(encode_rec_len(65536, 65536), Some(u16::MAX));
    assert_eq!(encode_rec_len(65532, 65536), Some(65532));
    assert_eq!(encode_rec_len(4100, 4096), None);
    assert_eq!(encode_rec_len(10, 4096), None);
    assert_eq!(decode_rec_len(0, 65536), 65536);
    assert_eq!(decode_rec_len(u16::MAX, 65536), 65536);
    assert_eq!(decode_rec_len(0, 4096), 0);
}

/// Names of encrypted directories are ciphertext: each byte may stand in them, in other names neither 0 nor a slash.
#[test]
fn ciphertext_has_any_byte() {
    for byte in 0..=u8::MAX {
        let (plain, encrypted) = (
            format(),
            DirFormat {
                encrypted: true,
                ..format()
            },
        );
        let name = [b'a', byte, b'b'];
        let mut block = vec![0; 4096];
        write_entry(&mut block, 0, 16, Ino(12), FILE, &name, &encrypted).unwrap();
        write_entry(&mut block, 16, 4080, Ino(13), FILE, b"behind", &encrypted).unwrap();
        let names = |format| -> Vec<Vec<u8>> {
            let entries = DirBlock::entries_of(&block, format);
            let entries = entries.iter().map_while(Result::ok);
            entries.map(|e| e.name.to_vec()).collect()
        };
        assert_eq!(names(encrypted), [&name[..], b"behind"], "{byte}");
        assert_eq!(names(plain).is_empty(), matches!(byte, 0 | b'/'), "{byte}");
    }
}

#[test]
fn stored_hashes() {
    let format = DirFormat {
        stored_hash: true,
        ..format()
    };
    assert_eq!(format.min_rec_len(5), 24);
    let mut block = vec![0; 4096];
    write_entry(&mut block, 0, 12, Ino(12), None, b".", &format).unwrap();
    write_entry(&mut block, 12, 4084, Ino(13), FILE, b"five5", &format).unwrap();
    write_stored_hash(&mut block, 12, 5, 0xAABB_CCDD, 7).unwrap();
    let entries: Vec<_> = DirBlock::entries_of(&block, format)
        .iter()
        .map(|e| e.unwrap())
        .collect();
    assert_eq!(entries[0].stored_hash, None);
    assert_eq!(entries[1].stored_hash, Some((0xAABB_CCDD, 7)));
}

#[test]
fn index_blocks() {
    let format = format();
    let seed = sample_geometry("").inode_seed(Ino(2), 0);
    let entries = [(0, 1), (0x1000, 2), (0x2001, 3)].map(|(hash, block)| DxEntry { hash, block });
    for place in [DxPlace::Root, DxPlace::Node] {
        let mut block = vec![0; 4096];
        let info = DxRootInfo {
            dot: Ino(12),
            dotdot: Ino(2),
            hash_version: 1,
            indirect_levels: 1,
        };
        if place == DxPlace::Root {
            info.write(&mut block, &format).unwrap();
        }
        htree::write_entries(&mut block, place, &entries, &format).unwrap();
        htree::set_checksum(&mut block, place, &format, seed).unwrap();
        htree::verify_checksum(&block, place, &format, seed).unwrap();
        if place == DxPlace::Root {
            assert_eq!(DxRootInfo::parse(&block, &format, 1), Ok(info));
            let err = DxRootInfo::parse(&block, &format, 0).unwrap_err();
            assert_eq!(err, FormatError::DxLevels { found: 1, max: 0 });
        }
        let node = DxNode::parse(&block, place, &format).unwrap();
        assert_eq!(node.iter().collect::<Vec<_>>(), entries);
        let found = [0, 0xFFF, 0x1000, 0x2000, 0x2002].map(|h| node.find(h));
        assert_eq!(found, [0, 0, 1, 1, 2]);

        let at = place.entries_offset();
        let with = |offset: usize, value: u8| {
            let mut bad = block.clone();
            bad[offset] = value;
            let parsed = DxNode::parse(&bad, place, &format).map(|n| n.len());
            assert!(htree::verify_checksum(&bad, place, &format, seed).is_err());
            parsed.unwrap_err()
        };
        assert!(matches!(with(at, 1), FormatError::DxLimit { .. }));
        assert!(matches!(
            with(at + 2, 0),
            FormatError::DxCount { found: 0, .. }
        ));
        assert!(matches!(with(at + 3, 255), FormatError::DxCount { .. }));
        assert!(matches!(
            with(at + 9, 0x30),
            FormatError::DxOrder { position: 2 }
        ));
        let mut twice = block.clone();
        let hash = |n: usize| at + n * 8..at + n * 8 + 4;
        twice.copy_within(hash(1), at + 16);
        for (low, fine) in [(0, false), (1, true)] {
            for n in [1, 2] {
                twice[at + n * 8] = twice[at + n * 8] & !1 | low;
            }
            assert_eq!(DxNode::parse(&twice, place, &format).is_ok(), fine);
        }
        if place == DxPlace::Node {
            assert_eq!(with(0, 1), FormatError::DxFakeEntry);
        }
    }
}
