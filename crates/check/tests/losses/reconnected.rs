//! Inodes without a name, for which a directory with inline data has no room.

use blockwright_check::Mode;
use blockwright_check::ext4::IssueKind;
use blockwright_ondisk::ext4::inode::InodeFlags;
use blockwright_ondisk::ext4::{Ino, dir, xattr};

use crate::common::volume::Volume;
use crate::common::{Lab, repair, show, tools, verify};
use crate::judge::{judge, listing};

/// Moves the names of the root, which are few, into its inode: mke2fs makes no such root. An attribute is beside them.
fn make_root_inline(v: &mut Volume, names: &[&str]) {
    let format = v.format();
    let entries = names
        .iter()
        .map(|name| (*name, v.lookup(name), v.inode(v.lookup(name))));
    let entries: Vec<_> = entries.map(|(n, ino, i)| (n, ino, i.kind())).collect();
    let at = v.inode(Ino::ROOT).attributes_offset(&v.geo).unwrap();
    let mut first = [0; 56];
    let mut from = 0;
    for (n, (name, ino, kind)) in entries.iter().enumerate() {
        let len = match n + 1 == entries.len() {
            true => first.len() - from,
            false => format.min_rec_len(name.len()),
        };
        dir::write_entry(&mut first, from, len, *ino, *kind, name.as_bytes(), &format).unwrap();
        from += len;
    }
    let mut rest = [0; 24];
    dir::write_entry(&mut rest, 0, 24, Ino(0), None, b"", &format).unwrap();
    v.edit_raw(Ino::ROOT, |raw| {
        raw[0x28..0x2C].copy_from_slice(&Ino::ROOT.0.to_le_bytes());
        raw[0x2C..0x64].copy_from_slice(&first);
        let attribute = |name_index, name, value| xattr::NewXattr {
            name_index,
            name,
            value: xattr::XattrValue::Local(value),
            value_inode_hash: 0,
        };
        let list = [
            attribute(xattr::INDEX_SYSTEM, xattr::INLINE_DATA_NAME, &rest[..]),
            attribute(1, b"a", b"b"),
        ];
        xattr::write_ibody(&mut raw[at..], &list).unwrap();
        // Inline data has no hash.
        raw[at + 16..at + 20].fill(0);
    });
    v.edit_inode(Ino::ROOT, |i| {
        i.size = 60 + rest.len() as u64;
        i.sectors = 0;
        i.flags -= InodeFlags::EXTENTS;
        i.flags |= InodeFlags::INLINE_DATA;
    });
}

/// Adds links until the next one would not fit the inline directory `dir`.
fn fill(lab: &Lab, image: Vec<u8>, dir: &str) -> Volume {
    let inline = |v: &Volume, ino: Ino| v.inode(ino).flags.contains(InodeFlags::INLINE_DATA);
    let mut v = Volume::new(image);
    let ino = match dir {
        "" => Ino::ROOT,
        _ => v.lookup(dir),
    };
    assert!(inline(&v, ino), "{dir}: not inline");
    for n in 0..60 {
        let next = lab.debugfs(&v.image, &[&format!("ln keep {dir}/n{n}")]);
        let mut next = Volume::new(next);
        let same = next.raw_inode(ino) == v.raw_inode(ino);
        if same || !inline(&next, ino) {
            return v;
        }
        v = next;
    }
    panic!("{dir:?} is never full");
}

/// A volume with a root of few names, an attribute in each inode that may get blocks, and no lost+found.
fn base(lab: &mut Lab, features: &str) -> Vec<u8> {
    lab.tree = lab.dir.path().join("few");
    let _ = std::fs::create_dir(&lab.tree);
    for name in ["keep", "lose"] {
        std::fs::write(lab.tree.join(name), name.repeat(500)).unwrap();
    }
    let features = format!("inline_data,{features}");
    let args = ["-t", "ext4", "-b", "1024", "-I", "256", "-O", &features];
    let image = lab.make("4M", &args).unwrap();
    lab.debugfs(&image, &["rmdir lost+found"])
}

/// The same with a root in its inode, which is sound.
fn inline_root(lab: &Lab, image: &[u8], names: &[&str]) -> Vec<u8> {
    let mut v = Volume::new(image.to_vec());
    make_root_inline(&mut v, names);
    let (report, sound) = repair(&v.image, Mode::Yes);
    let report = report.unwrap();
    let counts = |k: &IssueKind| {
        matches!(
            k,
            IssueKind::BlockBitmap { .. }
                | IssueKind::GroupFreeBlocks { .. }
                | IssueKind::FreeBlocks { .. }
        )
    };
    assert!(
        report.issues.iter().all(|i| counts(&i.kind)),
        "{}",
        show(&report)
    );
    let (code, text) = lab.e2fsck(&sound);
    // e2fsck wants lost+found there.
    assert!(code == 0 || text.contains("lost+found"), "{text}");
    sound
}

/// lost+found is missing and the root is full, or lost+found itself is full.
#[test]
fn full_inline_directories_get_blocks() {
    if !tools() {
        return;
    }
    let mut lab = Lab::new();
    for features in [
        "^has_journal",
        "^has_journal,^metadata_csum,^extents,^64bit",
        "^has_journal,casefold",
    ] {
        let image = base(&mut lab, features);
        let root = inline_root(&lab, &image, &["keep", "lose"]);
        let root = lab.debugfs(&root, &["unlink lose"]);
        let root = fill(&lab, root, "");
        let found = lab.debugfs(
            &image,
            &[
                "mkdir lost+found",
                "ea_set lost+found user.a b",
                "unlink lose",
            ],
        );
        let found = fill(&lab, found, "lost+found");
        for (what, v) in [("the root", root), ("lost+found", found)] {
            let what = format!("{features}: {what}");
            let dir = match what.ends_with("root") {
                true => Ino::ROOT,
                false => v.lookup("lost+found"),
            };
            let before = listing(&lab, &v.image);
            let (wrong, ours) = judge(&lab, &what, &v.image);
            assert!(wrong.is_empty(), "{}", wrong.join("\n"));
            let after = listing(&lab, &ours);
            for (path, entry) in &before {
                assert_eq!(after.get(path), Some(entry), "{what}: {path}");
            }
            let lost: Vec<_> = (after.iter())
                .filter(|(path, _)| path.starts_with("lost+found/#"))
                .map(|(_, entry)| &entry.2[..])
                .collect();
            assert_eq!(lost, [&b"lose".repeat(500)[..]], "{what}");
            let mut ours = Volume::new(ours);
            let inode = ours.inode(dir);
            assert!(!inode.flags.contains(InodeFlags::INLINE_DATA), "{what}");
            // What else is in the inode stays.
            let at = inode.attributes_offset(&ours.geo).unwrap();
            let geo = ours.geo.clone();
            let area = ours.raw_inode(dir)[at..].to_vec();
            let list = xattr::XattrList::parse_ibody(&area, &geo).unwrap().unwrap();
            let names: Vec<_> = list.iter().map(|e| e.name).collect();
            assert_eq!(names, [b"a"], "{what}");
        }
    }
}

/// Without a free block the inode waits for room. Nothing is lost, and nothing is made in its place.
#[test]
fn without_room_everything_stays() {
    if !tools() {
        return;
    }
    let mut lab = Lab::new();
    let image = base(&mut lab, "^has_journal");
    let image = lab.debugfs(&image, &["mkdir d"]);
    let image = inline_root(&lab, &image, &["keep", "lose", "d"]);
    let image = lab.debugfs(&image, &["unlink lose"]);
    for left in [0, 1] {
        let free = Volume::new(image.clone()).sb().free_blocks_count() - left;
        let file = lab.dir.path().join("rest");
        std::fs::write(&file, vec![7; free as usize * 1024]).unwrap();
        let write = format!("write {} rest", file.display());
        let full = lab.debugfs(&image, &["cd d", &write]);
        let full = fill(&lab, full, "");
        assert_eq!(full.sb().free_blocks_count(), left);
        let before = listing(&lab, &full.image);
        let (report, ours) = repair(&full.image, Mode::Yes);
        let report = report.unwrap();
        assert!(report.has_uncorrected(), "{left} free: {}", show(&report));
        let after = listing(&lab, &ours);
        assert_eq!(after, before, "{left} free");
        let again = verify(&ours).unwrap();
        let unnamed = |k: &IssueKind| matches!(k, IssueKind::InodeUnattached { .. });
        assert!(
            again.issues.len() == 1 && unnamed(&again.issues[0].kind),
            "{left} free: {}",
            show(&again)
        );
    }
}

/// lost+found gets the last blocks, and some inodes find no room in it. What was given blocks has them in the bitmaps, too: a mount would give them to others.
#[test]
fn names_that_find_no_room_cost_no_bitmap() {
    if !tools() {
        return;
    }
    let mut lab = Lab::new();
    let args = [
        "-t",
        "ext4",
        "-b",
        "1024",
        "-O",
        "^has_journal",
        "-N",
        "512",
    ];
    lab.tree = lab.dir.path().join("few");
    std::fs::create_dir(&lab.tree).unwrap();
    let image = lab.make("4M", &args).unwrap();
    let empty = lab.dir.path().join("empty");
    std::fs::write(&empty, b"").unwrap();
    // Regular files and directories: `rdump` of debugfs, which lists a volume, leaves others out.
    let made: Vec<_> = (0..300)
        .map(|n| format!("write {} f{n}", empty.display()))
        .collect();
    let gone: Vec<_> = (0..300).map(|n| format!("unlink f{n}")).collect();
    let made: Vec<_> = made
        .into_iter()
        .chain((0..30).map(|n| format!("mkdir d{n}")))
        .collect();
    let gone: Vec<_> = gone
        .into_iter()
        .chain((0..30).map(|n| format!("unlink d{n}")))
        .collect();
    let mut commands = vec!["rmdir lost+found"];
    commands.extend(made.iter().chain(&gone).map(String::as_str));
    let image = lab.debugfs(&image, &commands);
    for left in [1, 2, 3] {
        let free = Volume::new(image.clone()).sb().free_blocks_count() - left;
        // A mapping in the inode, or its nodes take blocks as well.
        let file = lab.dir.path().join("rest");
        std::fs::write(&file, vec![7; free as usize * 1024]).unwrap();
        let full = lab.debugfs(&image, &[&format!("write {} rest", file.display())]);
        assert_eq!(Volume::new(full.clone()).sb().free_blocks_count(), left);
        let (report, ours) = repair(&full, Mode::Yes);
        let report = report.unwrap();
        assert!(report.has_uncorrected(), "{left} free: {}", show(&report));
        let found = listing(&lab, &ours);
        let named = found.keys().filter(|p| p.starts_with("lost+found/#"));
        let named = named.count();
        assert!(named > 40 && named < 330, "{left} free: {named} names");
        let again = verify(&ours).unwrap();
        // No count of links: the repair names none either.
        let unnamed = |k: &IssueKind| {
            matches!(
                k,
                IssueKind::InodeUnattached { .. } | IssueKind::DirUnreachable { .. }
            )
        };
        assert!(
            again.issues.iter().all(|i| unnamed(&i.kind)),
            "{left} free: {}",
            show(&again)
        );
        assert_eq!(again.issues.len(), 330 - named, "{left} free");
        let (_, text) = lab.e2fsck(&ours);
        assert!(!text.contains("bitmap differences"), "{left} free: {text}");
    }
}
