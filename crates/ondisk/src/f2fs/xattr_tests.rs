use super::*;
use proptest::prelude::*;

fn x<'a>(index: u8, name: &'a [u8], value: &'a [u8]) -> Xattr<'a> {
    Xattr { index, name, value }
}

#[test]
fn lists_cross_the_seam() {
    let long = vec![7u8; 1000];
    let list = [x(1, b"a", b"1"), x(6, b"selinux", &long), x(2, b"", b"acl")];
    for inline in [0, 4, 36, 200, 1084] {
        let (part, node) = build(&list, inline).unwrap();
        assert_eq!(part.len(), inline);
        assert_eq!(node.is_some(), list_bytes(&list) > inline);
        let whole = assemble(&part, node.as_deref()).unwrap();
        let view = XattrList::parse(&whole).unwrap();
        assert_eq!(view.iter().collect::<Vec<_>>(), list);
        assert_eq!(view.find(2, b"").unwrap().value, b"acl");
        assert_eq!(view.find(3, b""), None);
    }
    assert_eq!(build(&[], 200), Some((vec![0; 200], None)));
}

#[test]
fn limits() {
    let most = vec![1u8; VALUE_MAX];
    assert!(build(&[x(1, b"", &most[..VALUE_MAX - 4])], 0).is_some());
    assert!(build(&[x(1, b"", &most)], 0).is_none());
    assert!(build(&[x(1, b"name", &most)], 200).is_some());
    assert!(build(&[x(1, &[b'n'; 256], b"")], 1000).is_none());
    assert!(build(&[x(0, b"n", b"")], 1000).is_none());
    assert!(assemble(&[], Some(&[0; 10])).is_err());
}

#[test]
fn names() {
    assert_eq!(split_name(b"user.a"), Some((1, &b"a"[..])));
    assert_eq!(split_name(b"system.posix_acl_access"), Some((2, &b""[..])));
    assert_eq!(split_name(b"user."), None);
    assert_eq!(split_name(b"system.other"), None);
    assert_eq!(full_name(6, b"x"), Some(b"security.x".to_vec()));
    assert_eq!(full_name(9, b"c"), None);
}

#[test]
fn damage_is_refused() {
    let (mut list, _) = build(&[x(1, b"abc", b"de")], 60).unwrap();
    list[26] = 200;
    assert_eq!(
        XattrList::parse(&list).unwrap_err(),
        FormatError::XattrEntry { offset: 24 }
    );
    list[0] = 0;
    assert_eq!(XattrList::parse(&list).unwrap().iter().count(), 0);
    assert_eq!(XattrList::parse(&[]).unwrap().iter().count(), 0);
}

proptest! {
    #[test]
    fn any_bytes(mut bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        if let Some(head) = bytes.get_mut(..4) {
            head.copy_from_slice(&MAGIC.to_le_bytes());
        }
        if let Ok(list) = XattrList::parse(&bytes) {
            prop_assert!(list.iter().count() <= 100);
        }
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
