use super::*;
use crate::ext4::superblock::tests::sample_geometry;

fn attribute<'a>(name_index: u8, name: &'a [u8], value: &'a [u8]) -> NewXattr<'a> {
    NewXattr {
        name_index,
        name,
        value: XattrValue::Local(value),
        value_inode_hash: 0,
    }
}

#[test]
fn names() {
    assert_eq!(split_name(b"user.x"), Some((1, &b"x"[..])));
    assert_eq!(split_name(b"system.posix_acl_access"), Some((2, &b""[..])));
    for hidden in [
        &b"system.data"[..],
        b"system.richacl",
        b"encryption.c",
        b"user.",
        b"user.a\0b",
        b"x",
    ] {
        assert_eq!(split_name(hidden), None);
    }
    let long = [b"user.", &[b'n'; 256][..]].concat();
    assert_eq!(split_name(&long), None);
    assert_eq!(split_name(&long[..260]), Some((1, &long[5..260])));
    assert_eq!(full_name(INDEX_SYSTEM, INLINE_DATA_NAME), None);
    assert_eq!(full_name(INDEX_ENCRYPTION, b"c"), None);
    assert_eq!(split_name(b"nothing.x"), None);
    assert_eq!(full_name(3, b"").unwrap(), b"system.posix_acl_default");
    assert_eq!(full_name(200, b"x"), None);
    for name in [
        "user.a",
        "trusted.b",
        "security.selinux",
        "gnu.translator",
        "system.posix_acl_default",
    ] {
        let (index, rest) = split_name(name.as_bytes()).unwrap();
        assert_eq!(full_name(index, rest).unwrap(), name.as_bytes());
    }
}

#[test]
fn ibody_round_trip() {
    let geo = sample_geometry("ea_inode");
    let remote = NewXattr {
        name_index: 1,
        name: b"remote",
        value: XattrValue::Inode {
            ino: Ino(50),
            size: 100_000,
        },
        value_inode_hash: 0x1234,
    };
    let list = [
        attribute(1, b"a", b"12345"),
        remote,
        attribute(7, b"data", b""),
    ];
    let mut area = vec![0xEE; 96];
    write_ibody(&mut area, &list).unwrap();
    let parsed = XattrList::parse_ibody(&area, &geo).unwrap().unwrap();
    let back: Vec<_> = parsed
        .iter()
        .map(|e| (e.name_index, e.name, e.value))
        .collect();
    assert_eq!(back, list.map(|a| (a.name_index, a.name, a.value)));
    assert_eq!(
        parsed.find(1, b"a").unwrap().value,
        XattrValue::Local(b"12345")
    );
    parsed
        .find(1, b"remote")
        .unwrap()
        .verify_hash(Some(0x1234))
        .unwrap();
    assert!(
        parsed
            .find(1, b"remote")
            .unwrap()
            .verify_hash(Some(0x1235))
            .is_err()
    );
    let before = area.clone();
    assert_eq!(
        write_ibody(&mut area, &[attribute(1, b"a", &[1; 90])]),
        None
    );
    assert_eq!(area, before);
    write_ibody(&mut area, &[]).unwrap();
    assert!(XattrList::parse_ibody(&area, &geo).unwrap().is_none());
}

#[test]
fn block_is_sorted_hashed_and_summed() {
    let geo = sample_geometry("");
    let list = [
        attribute(6, b"selinux", b"label"),
        attribute(1, b"bb", b"2"),
        attribute(1, b"c", b"3"),
    ];
    let mut block = vec![0; 4096];
    write_block(&mut block, &list).unwrap();
    set_block_checksum(&mut block, BlockNo(77), &geo).unwrap();
    verify_block_checksum(&block, BlockNo(77), &geo).unwrap();
    assert!(
        verify_block_checksum(&block, BlockNo(78), &geo).is_err(),
        "tied to its place"
    );
    let (head, parsed) = XattrList::parse_block(&block, &geo).unwrap();
    assert_eq!(head.refcount.get(), 1);
    let names: Vec<&[u8]> = parsed.iter().map(|e| e.name).collect();
    assert_eq!(names, [&b"c"[..], b"bb", b"selinux"]);
    parsed.iter().for_each(|e| e.verify_hash(None).unwrap());
    assert_eq!(head.hash.get(), block_hash(parsed.iter().map(|e| e.hash)));
}

#[test]
fn each_damage_has_its_own_error() {
    use FormatError as E;
    let geo = sample_geometry("");
    let mut block = vec![0; 4096];
    write_block(&mut block, &[attribute(1, b"abcd", b"value")]).unwrap();
    let with = |at: usize, bytes: &[u8]| {
        let mut bad = block.clone();
        bad[at..at + bytes.len()].copy_from_slice(bytes);
        XattrList::parse_block(&bad, &geo).map(|_| ()).unwrap_err()
    };
    assert!(matches!(with(0, &[1]), E::XattrMagic { .. }));
    assert!(matches!(with(8, &[2]), E::XattrBlocks { found: 2 }));
    assert!(matches!(
        with(34, &[40, 0]),
        E::XattrValue {
            offset: 32,
            start: 40,
            size: 5
        }
    ));
    assert!(matches!(with(40, &[255; 4]), E::XattrValue { .. }));
    assert!(matches!(with(36, &[255; 4]), E::XattrValueInode { .. }));
    // A table that never ends.
    assert!(matches!(with(52, &[1; 4044]), E::XattrTable { .. }));
    assert!(matches!(
        XattrList::parse_block(&block[..31], &geo),
        Err(E::Truncated { .. })
    ));
    block[4090] ^= 1;
    let (_, list) = XattrList::parse_block(&block, &geo).unwrap();
    let err = list.iter().next().unwrap().verify_hash(None).unwrap_err();
    assert!(matches!(err, E::XattrHash { offset: 32, .. }));
}

#[test]
fn both_character_flavours_are_accepted() {
    let name = "größe".as_bytes();
    let value = ValueToHash::Local(b"x");
    let (new, old) = (
        entry_hash(name, value, true),
        entry_hash(name, value, false),
    );
    assert_ne!(new, old);
    for hash in [new, old, 0] {
        let value = XattrValue::Local(b"x");
        let e = XattrEntry {
            offset: 0,
            name_index: 1,
            name,
            value,
            hash,
        };
        e.verify_hash(None).unwrap();
    }
}

/// What is listed can be asked for by that name.
#[test]
fn full_names_are_those_that_can_be_split() {
    for index in 0..=u8::MAX {
        for name in [&b""[..], b"x", b"a.b", b"nul\0", &[b'n'; 255]] {
            let Some(full) = full_name(index, name) else {
                continue;
            };
            assert_eq!(split_name(&full), Some((index, name)));
        }
    }
    assert_eq!(full_name(1, b"x").as_deref(), Some(&b"user.x"[..]));
    assert_eq!(full_name(1, b""), None);
    let acl = full_name(2, b"");
    assert_eq!(acl.as_deref(), Some(&b"system.posix_acl_access"[..]));
    assert_eq!(full_name(2, b"x"), None);
}
