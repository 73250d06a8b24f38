use super::*;
use proptest::prelude::*;

#[test]
fn entries_round_trip_in_both_layouts() {
    for layout in [DentryLayout::BLOCK, DentryLayout::inline(3488)] {
        let mut bytes = vec![0u8; 4096];
        let mut slots = DentrySlots::new(&mut bytes, layout).unwrap();
        assert!(slots.is_empty());
        let long = [b'n'; 255];
        let names = [&b"."[..], b"..", b"file", b"12345678", b"123456789", &long];
        for (n, name) in (0u32..).zip(names) {
            let at = slots.find_room(slots_of(name.len())).unwrap();
            slots
                .insert(at, name, n, Ino(3 + n), FileKind::Regular)
                .unwrap();
        }
        // Slots in use are not overwritten.
        assert_eq!(slots.insert(0, b"x", 0, Ino(3), FileKind::Fifo), None);
        assert_eq!(
            slots.insert(layout.slots, b"x", 0, Ino(3), FileKind::Fifo),
            None
        );
        slots.remove(2, 1);
        assert_eq!(slots.find_room(1), Some(2));
        slots.set_target(1, Ino(99), FileKind::Directory).unwrap();
        let view = DentryView::parse(&bytes, layout, NameBytes::Plain, 100).unwrap();
        let names: Vec<_> = view.iter().map(|e| (e.slot, e.name.len())).collect();
        assert_eq!(names, [(0, 1), (1, 2), (3, 8), (4, 9), (6, 255)]);
        assert_eq!(view.find(1, b"..").unwrap().ino, Ino(99));
        assert_eq!(view.iter_from(4).next().unwrap().name, b"123456789");
        assert!(view.find(0, b"..").is_none());
        let verified = DentryView::verified(&bytes, layout).unwrap();
        for entry in view.iter() {
            assert!(verified.with_hash(entry.hash).any(|e| e == entry));
            assert!(verified.with_hash(entry.hash).all(|e| e.hash == entry.hash));
        }
        let e = DentryView::parse(&bytes, layout, NameBytes::Plain, 99).unwrap_err();
        assert!(matches!(e, FormatError::DirInode { slot: 1, .. }));
    }
}

#[test]
fn inline_shape() {
    // What the format gives an inode with 50 words of attributes and none of extra ones.
    let layout = DentryLayout::inline((873 - 1) * 4);
    assert_eq!(layout.slots, 182);
    assert_eq!(layout.names, 3488 - 182 * 8);
    assert_eq!(layout.entries, 3488 - 182 * 19);
    assert_eq!(DentryLayout::inline(0).slots, 0);
}

#[test]
fn damage_is_refused() {
    let layout = DentryLayout::BLOCK;
    let mut bytes = vec![0u8; 4096];
    let mut slots = DentrySlots::new(&mut bytes, layout).unwrap();
    slots
        .insert(213, b"abc", 1, Ino(4), FileKind::Regular)
        .unwrap();
    let parse = |bytes: &[u8]| DentryView::parse(bytes, layout, NameBytes::Plain, 100).map(|_| ());
    assert_eq!(parse(&bytes), Ok(()));
    let len_at = 30 + 213 * 11 + 8;
    let with_len = |len: u16| {
        let mut b = bytes.clone();
        b[len_at..len_at + 2].copy_from_slice(&len.to_le_bytes());
        parse(&b).unwrap_err()
    };
    assert!(matches!(with_len(0), FormatError::DirNameLength { .. }));
    assert!(matches!(with_len(256), FormatError::DirNameLength { .. }));
    assert!(matches!(with_len(9), FormatError::DirNamePastEnd { .. }));
    bytes[2384 + 213 * 8] = b'/';
    assert!(matches!(
        parse(&bytes).unwrap_err(),
        FormatError::DirNameByte { byte: b'/', .. }
    ));
    assert!(DentryView::parse(&bytes, layout, NameBytes::Any, 100).is_ok());
    assert!(parse(&bytes[..4000]).is_err());
}

proptest! {
    #[test]
    fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 4096), bitmap: bool) {
        let mut bytes = bytes;
        if bitmap {
            // Few entries, so that some pass.
            bytes[..27].fill(0);
            bytes[0] = 1;
            bytes[39] = 0;
            bytes[34..38].copy_from_slice(&5u32.to_le_bytes());
        }
        for layout in [DentryLayout::BLOCK, DentryLayout::inline(3000), DentryLayout::inline(7)] {
            // Unverified bytes give nonsense, and no panic.
            if let Ok(view) = DentryView::verified(&bytes, layout) {
                prop_assert!(view.with_hash(0).count() <= layout.slots);
            }
            if let Ok(view) = DentryView::parse(&bytes, layout, NameBytes::Any, u32::MAX) {
                prop_assert!(view.iter().count() <= layout.slots);
            }
        }
    }
}
