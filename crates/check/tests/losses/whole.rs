//! Features, counts and lists of the whole volume.

use blockwright_check::Mode;
use blockwright_ondisk::ext4::{BlockNo, Compat, FileKind, Incompat, Ino, RoCompat};

use crate::common::volume::Volume;
use crate::common::{Lab, repair, show, tools, verify};
use crate::judge::{judge, listing, put32, with};

#[test]
fn large_files_make_the_feature() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let mut wrong = Vec::new();
    for args in [
        &["-t", "ext2", "-b", "4096", "-r", "0"][..],
        &["-t", "ext2", "-b", "4096"],
        &["-t", "ext4", "-b", "4096", "-O", "^has_journal"],
    ] {
        let Some(image) = lab.make("16M", args) else {
            continue;
        };
        let mut v = Volume::new(image);
        if v.sb().rev_level.get() > 0 {
            v.edit_sb(|sb| {
                let mut f = sb.features();
                f.ro_compat.remove(RoCompat::LARGE_FILE);
                sb.set_features(f);
            });
        }
        let ino = v.lookup("dir/small");
        v.edit_inode(ino, |i| i.size = 3 << 30);
        // debugfs would write out the hole: only verdicts are compared.
        assert!(!verify(&v.image).unwrap().is_clean(), "{args:?}");
        assert_ne!(lab.e2fsck(&v.image).0, 0, "{args:?}");
        let (report, after) = repair(&v.image, Mode::Yes);
        let (code, text) = lab.e2fsck(&after);
        let again = verify(&after).unwrap();
        if code != 0 || !again.is_clean() {
            let (found, again) = (show(&report.unwrap()), show(&again));
            wrong.push(format!(
                "{args:?}: {found}e2fsck {code}: {text}again:\n{again}"
            ));
        }
        assert_eq!(Volume::new(after).inode(ino).size, 3 << 30);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Directory blocks with this many entries, each of the next inode, or all of the same.
fn crowded(dir: Ino, first: u32, count: u32, same: bool) -> Vec<u8> {
    let kind = if same { 1 } else { 2 };
    let mut out = vec![0u8; 24];
    put32(&mut out, 0, dir.0);
    out[4..9].copy_from_slice(&[12, 0, 1, 2, b'.']);
    put32(&mut out, 12, Ino::ROOT.0);
    out[16..22].copy_from_slice(&[12, 0, 2, 2, b'.', b'.']);
    let mut last = 12;
    for n in 0..count {
        if out.len() % 4096 + 16 > 4096 {
            let end = out.len().next_multiple_of(4096);
            out[last + 4..last + 6].copy_from_slice(&((end - last) as u16).to_le_bytes());
            out.resize(end, 0);
        }
        last = out.len();
        let target = if same { first } else { first + n };
        out.extend(target.to_le_bytes());
        out.extend([16, 0, 6, kind]);
        out.extend(format!("{n:06}").bytes());
        out.extend([0; 2]);
    }
    let end = out.len().next_multiple_of(4096);
    out[last + 4..last + 6].copy_from_slice(&((end - last) as u16).to_le_bytes());
    out.resize(end, 0);
    out
}

#[test]
fn more_links_than_a_count_holds() {
    if !tools() {
        return;
    }
    let mut lab = Lab::new();
    lab.tree = lab.dir.path().join("crowd");
    std::fs::create_dir(&lab.tree).unwrap();
    for (same, count) in [(true, 66_000), (false, 65_100)] {
        // The directory is inode 12, the file behind it 13; directories follow.
        let first = if same { 13 } else { 14 };
        std::fs::write(lab.tree.join("a"), crowded(Ino(12), first, count, same)).unwrap();
        std::fs::write(lab.tree.join("b"), b"hello").unwrap();
        let args = [
            "-t",
            "ext4",
            "-b",
            "4096",
            "-I",
            "256",
            "-N",
            "66000",
            "-O",
            "inline_data,^metadata_csum,^has_journal,^resize_inode,^dir_nlink",
        ];
        let mut v = Volume::new(lab.make("40M", &args).unwrap());
        assert_eq!(v.lookup("a"), Ino(12));
        v.edit_raw(Ino(12), |raw| {
            raw[..2].copy_from_slice(&0o040_755u16.to_le_bytes())
        });
        let (block, at, _) = v.find(Ino::ROOT, "a");
        v.block(block)[at + 7] = 2;
        if !same {
            let model = v.inode(Ino::ROOT);
            for n in 0..count {
                let ino = Ino(first + n);
                let mut raw = vec![0; 256];
                raw[..2].copy_from_slice(&0o040_755u16.to_le_bytes());
                put32(&mut raw, 4, 60);
                put32(&mut raw, 8, model.mtime.secs as u32);
                raw[0x1A] = 2;
                put32(&mut raw, 0x20, 0x1000_0000);
                put32(&mut raw, 0x28, 12);
                raw[0x28 + 8] = 56;
                raw[0x80] = 32;
                put32(&mut raw, 160, 0xEA02_0000);
                raw[164..166].copy_from_slice(&[4, 7]);
                raw[180..184].copy_from_slice(b"data");
                v.raw_inode(ino).copy_from_slice(&raw);
            }
        }
        let (report, after) = repair(&v.image, Mode::Yes);
        let report = report.unwrap();
        let (code, text) = lab.e2fsck(&after);
        let again = verify(&after).unwrap();
        let found: String = show(&report).lines().take(20).collect();
        assert!(again.is_clean(), "{found}\n{}", show(&again));
        assert!(code == 0 && !text.contains("? no"), "{found}\n{text}");
        let after = Volume::new(after);
        let nlink = after.sb().features().has_ro_compat(RoCompat::DIR_NLINK);
        assert_eq!(nlink, !same);
        assert_eq!(after.inode(Ino(12)).links, if same { 2 } else { 1 });
        assert_eq!(after.inode(Ino(12)).kind(), Some(FileKind::Directory));
    }
}

#[test]
fn bad_blocks_are_listed_once_and_outside_of_metadata() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let args = with("^metadata_csum,^has_journal");
    let image = lab.make("8M", &args).unwrap();
    let path = lab.dir.path().join("bad.img");
    let list = lab.dir.path().join("bad.txt");
    std::fs::write(&path, &image).unwrap();
    let numbers: Vec<String> = (7000..7040).map(|n: u32| n.to_string()).collect();
    std::fs::write(&list, numbers.join("\n")).unwrap();
    let done = std::process::Command::new("e2fsck")
        .args(["-fy", "-l"])
        .args([&list, &path])
        .output()
        .unwrap();
    assert!(done.status.code().unwrap() <= 1);
    let clean = Volume::new(std::fs::read(&path).unwrap());
    // e2fsck does not count the list's own block.
    assert!(verify(&clean.image).unwrap().is_clean());
    let before = listing(&lab, &clean.image);
    let big = clean.blocks(clean.lookup("dir/big"))[2].0 as u32;
    let indirect = u32::from_le_bytes(clean.inode(Ino::BAD).block[48..52].try_into().unwrap());
    let mut wrong = Vec::new();
    for bad in [40, 7005, 99_999_999, big] {
        for inside in [false, true] {
            let mut v = clean.clone();
            if inside {
                let block = blockwright_ondisk::ext4::BlockNo(u64::from(indirect));
                put32(v.block(block), 4, bad);
            } else {
                v.edit_inode(Ino::BAD, |i| put32(&mut i.block, 4, bad));
            }
            let what = format!("bad block {bad}, in the list's block: {inside}");
            assert!(!verify(&v.image).unwrap().is_clean(), "{what}");
            let (mut found, ours) = judge(&lab, &what, &v.image);
            wrong.append(&mut found);
            if listing(&lab, &ours) != before {
                wrong.push(format!("{what}: paths or bytes differ"));
            }
            // A number that is there twice stays once.
            let mut after = Volume::new(ours);
            let mut words = after.inode(Ino::BAD).block[..48].to_vec();
            words.extend_from_slice(after.block(BlockNo(u64::from(indirect))));
            let same = |w: &&[u8]| **w == bad.to_le_bytes();
            let count = words.chunks_exact(4).filter(same).count();
            if bad == 7005 && count != 1 {
                wrong.push(format!("{what}: listed {count} times"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn deletion_times_that_are_links_go() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let args = with("^metadata_csum,^has_journal");
    let clean = Volume::new(lab.make("8M", &args).unwrap());
    let free = Ino(clean.lookup("many/a-file-with-a-long-name-0149").0 + 40);
    let mut wrong = Vec::new();
    for (made, checked, mounted) in [
        (true, true, false),
        (false, true, false),
        (true, false, false),
        (true, true, true),
    ] {
        let mut v = clean.clone();
        v.edit_sb(|sb| {
            if !made {
                sb.mkfs_time.set(0);
            }
            if !checked {
                sb.set_check_time(0);
            }
            if mounted {
                sb.set_mount_time(100);
            }
        });
        v.edit_raw(free, |raw| {
            raw[..2].copy_from_slice(&0o100_644u16.to_le_bytes());
            put32(raw, 0x14, 15);
        });
        let what = format!("times of making {made}, check {checked}, mount {mounted}");
        let ours_clean = verify(&v.image).unwrap().is_clean();
        let theirs_clean = lab.e2fsck(&v.image).0 == 0;
        if ours_clean != theirs_clean {
            wrong.push(format!("{what}: verdicts differ, ours clean: {ours_clean}"));
        }
        wrong.append(&mut judge(&lab, &what, &v.image).0);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn inline_data_makes_the_feature() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let args = with("inline_data,^metadata_csum,^has_journal");
    let mut v = Volume::new(lab.make("8M", &args).unwrap());
    let before = listing(&lab, &v.image);
    v.edit_sb(|sb| {
        let mut f = sb.features();
        f.incompat.remove(Incompat::INLINE_DATA);
        sb.set_features(f);
    });
    let (wrong, ours) = judge(&lab, "no feature for inline data", &v.image);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(listing(&lab, &ours) == before);
}

#[test]
fn no_blocks_are_reserved_for_growth_without_the_feature() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let args = with("^resize_inode,^metadata_csum,^has_journal");
    let mut v = Volume::new(lab.make("8M", &args).unwrap());
    let before = listing(&lab, &v.image);
    v.edit_sb(|sb| sb.reserved_gdt_blocks.set(1));
    assert!(!verify(&v.image).unwrap().is_clean());
    let (wrong, ours) = judge(&lab, "reserved blocks", &v.image);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(listing(&lab, &ours) == before);
}

/// How many blocks are reserved for descriptors is part of the geometry: with a wrong number the first bitmaps and the
/// first table seem to lie in them. Copies of the superblock and the resize inode's list have the right one.
#[test]
fn reserved_descriptor_blocks_are_counted_by_their_list() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let mut wrong = Vec::new();
    for (size, more) in [("4M", ""), ("10M", "^metadata_csum,^flex_bg")] {
        let args = ["-t", "ext4", "-b", "1024", "-O", more];
        let args = &args[..if more.is_empty() { 4 } else { 6 }];
        let clean = Volume::new(lab.make(size, args).unwrap());
        let before = listing(&lab, &clean.image);
        let right = clean.sb().reserved_gdt_blocks.get();
        for number in [right + 1, right + 16, right - 5] {
            let mut v = clean.clone();
            v.edit_sb(|sb| sb.reserved_gdt_blocks.set(number));
            let what = format!("{size} {more} {number} for {right}");
            let (mut bad, ours) = judge(&lab, &what, &v.image);
            wrong.append(&mut bad);
            if listing(&lab, &ours) != before {
                wrong.push(format!("{what}: paths or bytes differ"));
            }
            let now = Volume::new(ours).sb().reserved_gdt_blocks.get();
            if number > right && now != right {
                wrong.push(format!("{what}: now {now}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// e2fsck takes the attributes away; the kernel reads them all the same.
#[test]
fn attribute_blocks_make_the_feature() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    for args in [
        &["-t", "ext4", "-b", "1024", "-I", "128"][..],
        &["-t", "ext2", "-b", "1024", "-I", "128"],
    ] {
        let mut v = Volume::new(lab.make("8M", args).unwrap());
        let ino = v.lookup("dir/big");
        let block = v.inode(ino).file_acl;
        assert!(block.0 != 0, "{args:?}: no attribute block");
        let before = listing(&lab, &v.image);
        v.edit_sb(|sb| {
            let mut f = sb.features();
            f.compat.remove(Compat::EXT_ATTR);
            sb.set_features(f);
        });
        assert!(lab.e2fsck(&v.image).0 != 0, "{args:?}");
        assert!(!verify(&v.image).unwrap().is_clean(), "{args:?}");
        let (wrong, ours) = judge(&lab, "no feature for attributes", &v.image);
        assert!(wrong.is_empty(), "{args:?}: {}", wrong.join("\n"));
        assert!(listing(&lab, &ours) == before, "{args:?}");
        assert_eq!(Volume::new(ours).inode(ino).file_acl, block, "{args:?}");
    }
}
