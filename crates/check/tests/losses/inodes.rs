//! Inodes and what they map.

use blockwright_check::Mode;
use blockwright_ondisk::ext4::inode::InodeFlags;
use blockwright_ondisk::ext4::{FileKind, Ino};

use crate::common::volume::Volume;
use crate::common::{Lab, repair, show, tools, verify};
use crate::judge::{Damage, PLAIN, find, judge, listing, put32, with};

#[test]
fn inline_data_is_kept() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    std::fs::write(lab.tree.join("hundred"), [b'y'; 100]).unwrap();
    let args = with("inline_data,^metadata_csum,^has_journal");
    let clean = Volume::new(lab.make("8M", &args).unwrap());
    let (small, hundred, big) = (
        clean.lookup("a"),
        clean.lookup("hundred"),
        clean.lookup("sparse"),
    );
    let both = InodeFlags::EXTENTS | InodeFlags::INLINE_DATA;
    let hash = |v: &mut Volume, ino: Ino| {
        v.edit_raw(ino, |raw| {
            let at = 128 + find(&raw[128..], b"data");
            put32(raw, at - 4, 0x1234_5678);
        });
    };
    type Damage<'a> = (&'a str, Box<dyn Fn(&mut Volume) + 'a>);
    let cases: Vec<Damage<'_>> = vec![
        (
            "a hash of a file's inline data",
            Box::new(|v| hash(v, hundred)),
        ),
        (
            "a hash of a directory's inline data",
            Box::new(|v| {
                let dir = v.lookup("empty");
                hash(v, dir);
            }),
        ),
        (
            "a long hole behind inline data",
            Box::new(|v| {
                v.edit_inode(small, |i| i.size = 1 << 20);
            }),
        ),
        (
            "a long hole behind an attribute",
            Box::new(|v| {
                v.edit_inode(hundred, |i| i.size = 1 << 20);
            }),
        ),
        (
            "extents and inline data",
            Box::new(|v| {
                v.edit_inode(big, |i| i.flags |= both);
            }),
        ),
        (
            "inline data and extents",
            Box::new(|v| {
                v.edit_inode(hundred, |i| i.flags |= both);
            }),
        ),
        (
            "inline data, but extents",
            Box::new(|v| {
                v.edit_inode(big, |i| {
                    i.flags |= InodeFlags::INLINE_DATA;
                    i.flags -= InodeFlags::EXTENTS;
                });
            }),
        ),
        (
            "no extra fields, attributes behind them",
            Box::new(|v| {
                v.edit_raw(hundred, |raw| raw[0x80..0x82].fill(0));
            }),
        ),
        (
            "a smaller extra size, attributes elsewhere",
            Box::new(|v| {
                v.edit_raw(hundred, |raw| raw[0x80] = 24);
            }),
        ),
        (
            "a wild place of an empty value",
            Box::new(|v| {
                let dir = v.lookup("empty");
                v.edit_raw(dir, |raw| {
                    let at = 128 + find(&raw[128..], b"data");
                    raw[at - 14..at - 12].copy_from_slice(&0xF803u16.to_le_bytes());
                });
            }),
        ),
        (
            "another name of the attribute",
            Box::new(|v| {
                v.edit_raw(hundred, |raw| {
                    let at = 128 + find(&raw[128..], b"data");
                    raw[at] = b'c';
                });
            }),
        ),
        (
            "an inline directory without a mode",
            Box::new(|v| {
                let dir = v.lookup("empty");
                v.edit_inode(dir, |i| i.mode = 0);
            }),
        ),
        (
            "inline data without its attribute",
            Box::new(|v| {
                v.edit_raw(small, |raw| raw[160..].fill(0));
            }),
        ),
        (
            "an inline directory without its attribute",
            Box::new(|v| {
                let dir = v.lookup("empty");
                v.edit_raw(dir, |raw| raw[160..].fill(0));
            }),
        ),
    ];
    let mut wrong = Vec::new();
    let before = listing(&lab, &clean.image);
    for (what, damage) in cases {
        let mut v = clean.clone();
        damage(&mut v);
        let (mut bad, ours) = judge(&lab, what, &v.image);
        wrong.append(&mut bad);
        let after = listing(&lab, &ours);
        if !before.keys().eq(after.keys()) {
            wrong.push(format!("{what}: paths are gone"));
        }
        if !what.contains("hole") && after != before {
            wrong.push(format!("{what}: bytes are gone"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Damages copies of a volume; each is repaired without a loss. What was wrong.
fn all_kept(lab: &Lab, clean: &Volume, cases: &[Damage]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (what, damage) in cases {
        let mut v = clean.clone();
        damage(&mut v);
        if verify(&v.image).unwrap().is_clean() {
            wrong.push(format!("{what}: not found"));
        }
        wrong.append(&mut judge(lab, what, &v.image).0);
    }
    wrong
}

#[test]
fn attributes_behind_a_bad_extra_size_are_kept() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let clean = Volume::new(lab.make("8M", &["-t", "ext4", "-b", "1024"]).unwrap());
    let ino = clean.lookup("a");
    for size in [2, 7, 0xFFFF, 200] {
        let mut v = clean.clone();
        let before = v.raw_inode(ino)[160..].to_vec();
        v.edit_raw(ino, |raw| {
            raw[0x80..0x82].copy_from_slice(&u16::to_le_bytes(size))
        });
        let (wrong, ours) = judge(&lab, "extra size", &v.image);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert_eq!(
            Volume::new(ours).raw_inode(ino)[160..],
            before,
            "size {size}"
        );
    }
}

#[test]
fn values_as_lustre_stored_them_are_kept() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let args = with("ea_inode,^metadata_csum,^has_journal");
    let image = lab.make("8M", &args).unwrap();
    let value = lab.dir.path().join("value");
    std::fs::write(&value, [b'v'; 3000]).unwrap();
    let image = lab.debugfs(
        &image,
        &[&format!("ea_set -f {} zero user.large", value.display())],
    );
    let mut v = Volume::new(image);
    let owner = v.lookup("zero");
    let holder = (11..v.geo.inodes_per_group)
        .map(Ino)
        .find(|i| v.inode(*i).flags.contains(InodeFlags::EA_INODE) && v.inode(*i).links > 0)
        .unwrap();
    // No hash; the owner's number and generation instead. It counts for itself.
    v.edit_inode(owner, |i| i.generation = 77);
    v.edit_inode(holder, |i| {
        i.mtime.secs = i64::from(owner.0);
        i.generation = 77;
        i.atime.secs = 0x5F00_0000;
    });
    let (wrong, ours) = judge(&lab, "Lustre", &v.image);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let ours = Volume::new(ours);
    assert_eq!(ours.inode(holder).links, 1);
    let path = lab.dir.path().join("listed.img");
    std::fs::write(&path, &ours.image).unwrap();
    let out = std::process::Command::new("debugfs")
        .args(["-R", "ea_list zero"])
        .arg(&path)
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&out.stdout).contains("user.large"));
}

#[test]
fn targets_and_mappings_are_kept() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let clean = Volume::new(lab.make("8M", &["-t", "ext4", "-b", "1024"]).unwrap());
    let mut wrong = all_kept(
        &lab,
        &clean,
        &[
            ("extents flag of a short symbolic link", |v| {
                let ino = v.lookup("short-link");
                v.edit_inode(ino, |i| i.flags |= InodeFlags::EXTENTS);
            }),
            ("index that names no beginning", |v| {
                let ino = v.lookup("sparse");
                v.edit_inode(ino, |i| put32(&mut i.block, 12, u32::MAX));
            }),
            ("index that names a later beginning", |v| {
                let ino = v.lookup("sparse");
                v.edit_inode(ino, |i| put32(&mut i.block, 12, 700));
            }),
            ("encrypted without a context", |v| {
                v.edit_sb(|sb| {
                    let mut f = sb.features();
                    f.incompat |= blockwright_ondisk::ext4::Incompat::ENCRYPT;
                    sb.set_features(f);
                });
                for path in ["dir", "dir/big", "short-link"] {
                    let ino = v.lookup(path);
                    v.edit_inode(ino, |i| i.flags |= InodeFlags::ENCRYPT);
                }
            }),
        ],
    );
    let inline = with("inline_data,^metadata_csum,^has_journal");
    let clean = Volume::new(lab.make("8M", &inline).unwrap());
    wrong.append(&mut all_kept(
        &lab,
        &clean,
        &[
            ("inline target longer than its size", |v| {
                let ino = v.lookup("long-link");
                v.edit_inode(ino, |i| i.size = 90);
            }),
            ("inline target shorter than its size", |v| {
                let ino = v.lookup("long-link");
                v.edit_inode(ino, |i| i.size = 110);
            }),
        ],
    ));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A context of the first version: modes, flags, the key's name, and a nonce.
fn context(key: u8, nonce: u8) -> [u8; 28] {
    let mut out = [nonce; 28];
    out[..4].copy_from_slice(&[1, 1, 4, 2]);
    out[4..12].fill(key);
    out
}

/// Gives an inode the flag and a context, in the place of its attributes.
fn encrypt(v: &mut Volume, ino: Ino, key: u8) {
    v.edit_inode(ino, |i| i.flags |= InodeFlags::ENCRYPT);
    v.edit_raw(ino, |raw| {
        let area = &mut raw[160..];
        area.fill(0);
        put32(area, 0, 0xEA02_0000);
        let at = area.len() - 28;
        area[4..6].copy_from_slice(&[1, 9]);
        area[6..8].copy_from_slice(&(at as u16 - 4).to_le_bytes());
        put32(area, 12, 28);
        area[20] = b'c';
        area[at..].copy_from_slice(&context(key, ino.0 as u8));
    });
}

#[test]
fn encrypted_directories_hold_what_they_may() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    for dir in [
        "secret/an inner directory",
        "secret/another plain directory",
    ] {
        std::fs::create_dir_all(lab.tree.join(dir)).unwrap();
    }
    for name in [
        "a name long enough",
        "another long name",
        "name of a third file",
        "short",
    ] {
        std::fs::write(lab.tree.join("secret").join(name), name).unwrap();
    }
    let args = with("encrypt,^metadata_csum,^has_journal");
    let mut clean = Volume::new(lab.make("8M", &args).unwrap());
    for path in [
        "secret",
        "secret/an inner directory",
        "secret/another plain directory",
        "secret/a name long enough",
        "secret/another long name",
        "secret/name of a third file",
    ] {
        let ino = clean.lookup(path);
        encrypt(&mut clean, ino, b'k');
    }
    let short = clean.lookup("secret/short");
    // The entry goes; what it named is found again.
    let (wrong, ours) = judge(&lab, "a short name", &clean.image);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(!verify(&clean.image).unwrap().is_clean());
    let clean = Volume::new(ours);
    assert_eq!(clean.inode(short).kind(), Some(FileKind::Regular));
    assert_eq!(clean.inode(short).links, 1);
    let wrong = all_kept(
        &lab,
        &clean,
        &[
            ("another policy", |v| {
                let ino = v.lookup("secret/another long name");
                encrypt(v, ino, b'j');
            }),
            ("a file that is not encrypted", |v| {
                let ino = v.lookup("secret/name of a third file");
                v.edit_inode(ino, |i| i.flags -= InodeFlags::ENCRYPT);
            }),
            ("a directory that is not encrypted", |v| {
                let ino = v.lookup("secret/another plain directory");
                v.edit_inode(ino, |i| i.flags -= InodeFlags::ENCRYPT);
            }),
        ],
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn reserved_inodes_are_judged_as_e2fsck_does() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let args = with("^resize_inode,^metadata_csum,^has_journal");
    let clean = Volume::new(lab.make("8M", &args).unwrap());
    let cases: &[Damage] = &[
        ("the high half of an owner of the list of bad blocks", |v| {
            v.edit_inode(Ino::BAD, |i| i.uid = 0x20_0000);
        }),
        ("a link of the orphan list in inode 1", |v| {
            v.edit_raw(Ino::BAD, |raw| put32(raw, 0x14, 15));
        }),
        ("the high half of a size of inode 5", |v| {
            v.edit_raw(Ino(5), |raw| put32(raw, 0x6C, u32::MAX));
        }),
        ("an attribute block of inode 5", |v| {
            v.edit_raw(Ino(5), |raw| put32(raw, 0x68, 0x687));
        }),
        ("extents and inline data of inode 3", |v| {
            v.edit_raw(Ino(3), |raw| put32(raw, 0x20, u32::MAX));
        }),
        ("a block of inode 8", |v| {
            v.edit_inode(Ino(8), |i| i.block[0] = 70);
        }),
        ("links of inode 10", |v| {
            v.edit_inode(Ino(10), |i| i.links = 1);
        }),
        ("sectors of inode 3", |v| {
            v.edit_inode(Ino(3), |i| i.sectors = 2219);
        }),
        ("a block of inode 4", |v| {
            v.edit_inode(Ino(4), |i| i.block[0] = 77);
        }),
        ("a mode of inode 4", |v| {
            v.edit_inode(Ino(4), |i| i.mode = 0o100_600);
        }),
        ("sectors of inode 6", |v| {
            v.edit_inode(Ino(6), |i| i.sectors = 2);
        }),
        ("a link of the orphan list in inode 6", |v| {
            v.edit_raw(Ino(6), |raw| put32(raw, 0x14, 15));
        }),
        ("a block of inode 7", |v| {
            v.edit_inode(Ino(7), |i| i.block[12] = 1);
        }),
    ];
    let mut wrong = Vec::new();
    for (what, damage) in cases {
        let mut v = clean.clone();
        damage(&mut v);
        let (code, text) = lab.e2fsck(&v.image);
        let theirs_clean = code == 0 && !text.contains("? no");
        let report = verify(&v.image).unwrap();
        if report.is_clean() != theirs_clean {
            let ours = crate::common::show(&report);
            wrong.push(format!("{what}: ours\n{ours}e2fsck {code}:\n{text}"));
        }
        wrong.append(&mut judge(&lab, what, &v.image).0);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn files_without_a_name_are_kept_even_when_empty() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    std::fs::write(lab.tree.join("nothing"), b"").unwrap();
    let mut v = Volume::new(lab.make("8M", &["-t", "ext4", "-b", "1024"]).unwrap());
    let (block, at, ino) = v.find(Ino::ROOT, "nothing");
    v.edit_leaf(Ino::ROOT, block, |leaf| put32(leaf, at, 0));
    let (wrong, ours) = judge(&lab, "an empty file without a name", &v.image);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let path = format!("lost+found/#{}", ino.0);
    assert!(listing(&lab, &ours).contains_key(&path), "{path}");
}

#[test]
fn flags_of_noise_do_not_become_features() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let args = ["-t", "ext2", "-b", "1024", "-r", "0"];
    let mut v = Volume::new(lab.make("2M", &args).unwrap());
    let before = listing(&lab, &v.image);
    let dir = v.lookup("dir/sub");
    v.edit_raw(dir, |raw| put32(raw, 0x20, u32::MAX));
    let (wrong, ours) = judge(&lab, "all flags of a directory", &v.image);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(listing(&lab, &ours) == before);
    assert_eq!(Volume::new(ours).sb().rev_level.get(), 0);
}

#[test]
fn extents_under_one_that_is_too_long_are_kept() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let clean = Volume::new(lab.make("8M", &["-t", "ext4", "-b", "1024"]).unwrap());
    let before = listing(&lab, &clean.image);
    let ino = clean.lookup("sparse");
    let block = clean.extent_blocks(ino)[0];
    let mut v = clean.clone();
    v.edit_extent_block(ino, block, |b| {
        b[12 + 5 * 12 + 4..][..2].copy_from_slice(&1153u16.to_le_bytes());
    });
    assert!(!verify(&v.image).unwrap().is_clean());
    let (mut wrong, ours) = judge(&lab, "a long extent", &v.image);
    // e2fsck leaves blocks of others in what was a hole.
    wrong.retain(|w| !w.contains("\"sparse\" was"));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(listing(&lab, &ours) == before);
}

#[test]
fn leaves_of_another_depth_are_kept() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let clean = Volume::new(lab.make("8M", &["-t", "ext4", "-b", "1024"]).unwrap());
    let before = listing(&lab, &clean.image);
    let ino = clean.lookup("sparse");
    let block = clean.extent_blocks(ino)[0];
    for depth in [1u16, 4, 0xFFFF] {
        let mut v = clean.clone();
        v.edit_extent_block(ino, block, |b| {
            b[6..8].copy_from_slice(&depth.to_le_bytes())
        });
        let what = format!("depth {depth}");
        let (wrong, ours) = judge(&lab, &what, &v.image);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(listing(&lab, &ours) == before, "{what}");
    }
}

#[test]
fn links_with_wrong_counts_and_blocks_are_kept() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let args = ["-t", "ext2", "-b", "1024"];
    let clean = Volume::new(lab.make("8M", &args).unwrap());
    let before = listing(&lab, &clean.image);
    let cases: &[Damage] = &[
        ("sectors of a link in its inode", |v| {
            let ino = v.lookup("short-link");
            v.edit_raw(ino, |raw| put32(raw, 0x1C, 4));
        }),
        ("a second block of a link", |v| {
            let ino = v.lookup("long-link");
            v.edit_raw(ino, |raw| put32(raw, 0x4C, 1));
        }),
    ];
    let mut wrong = all_kept(&lab, &clean, cases);
    for (what, damage) in cases {
        let mut v = clean.clone();
        damage(&mut v);
        if listing(&lab, &judge(&lab, what, &v.image).1) != before {
            wrong.push(format!("{what}: paths or bytes differ"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A byte that no name can have becomes a point, as e2fsck has it.
#[test]
fn names_with_bytes_that_cannot_be_are_kept() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let clean = Volume::new(lab.make("8M", PLAIN).unwrap());
    let wrong = all_kept(
        &lab,
        &clean,
        &[
            ("a slash in a name", |v| {
                let (block, at, _) = v.find(v.lookup("dir"), "small");
                v.block(block)[at + 8 + 2] = b'/';
            }),
            ("a zero byte in a name", |v| {
                let (block, at, _) = v.find(v.lookup("dir"), "small");
                v.block(block)[at + 8] = 0;
            }),
            ("slashes in the name of a directory", |v| {
                let (block, at, _) = v.find(v.lookup("dir"), "sub");
                v.block(block)[at + 8..at + 11].copy_from_slice(b"//b");
            }),
            ("a slash in a name of an indexed directory", |v| {
                let name = "a-file-with-a-long-name-0077";
                let (block, at, _) = v.find(v.lookup("many"), name);
                v.block(block)[at + 8 + 5] = b'/';
            }),
        ],
    );
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A directory that has names in two others stays in the one that its ".." says. Blocks that a directory claims by mistake hold such names.
#[test]
fn directories_stay_where_they_say_they_belong() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    for features in [
        "^has_journal",
        "inline_data,^has_journal",
        "^metadata_csum,^dir_index,^has_journal",
    ] {
        let image = lab.make("8M", &with(features)).unwrap();
        let mut before = vec!["mkdir one".to_owned()];
        // An inline directory continues in its attribute.
        before.extend((0..4).map(|n| format!("mkdir one/quite-a-long-name-{n}")));
        before.extend(["mkdir two", "mkdir two/sub", "mkdir two/sub/deep"].map(str::to_owned));
        let commands: Vec<&str> = before.iter().map(String::as_str).collect();
        let clean = lab.debugfs(&image, &commands);
        let list = listing(&lab, &clean);
        assert!(list.contains_key("two/sub/deep"));
        for links in [
            &["link two/sub one/sub"][..],
            &[
                "link two/sub/deep one/deep",
                "link two/sub one/quite-a-long-name-4",
            ],
            &["link two one/two", "link two/sub one/sub"],
        ] {
            let damaged = lab.debugfs(&clean, links);
            let what = format!("{features}: {links:?}");
            let found = verify(&damaged).unwrap();
            assert!(!found.is_clean(), "{what}");
            let (report, ours) = repair(&damaged, Mode::Yes);
            let report = show(&report.unwrap());
            let again = verify(&ours).unwrap();
            assert!(again.is_clean(), "{what}: {report}{}", show(&again));
            let (code, text) = lab.e2fsck(&ours);
            assert_eq!(code, 0, "{what}: {report}{text}");
            assert_eq!(listing(&lab, &ours), list, "{what}: {report}");
        }
    }
}

/// A ".." that leads into a directory's own subtree, where a second name is, decides nothing: the first name stays.
#[test]
fn a_directory_does_not_move_below_itself() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    for features in ["^has_journal", "^metadata_csum,^dir_index,^has_journal"] {
        let image = lab.make("8M", &with(features)).unwrap();
        let clean = lab.debugfs(
            &image,
            &["mkdir two", "mkdir two/sub", "mkdir two/sub/deep"],
        );
        let list = listing(&lab, &clean);
        let mut v = Volume::new(lab.debugfs(&clean, &["link two two/sub/again"]));
        let (two, sub) = (v.lookup("two"), v.lookup("two/sub"));
        let first = v.blocks(two)[0];
        v.edit_leaf(two, first, |bytes| put32(bytes, 12, sub.0));
        let (report, ours) = repair(&v.image, Mode::Yes);
        let report = show(&report.unwrap());
        let again = verify(&ours).unwrap();
        assert!(again.is_clean(), "{features}: {report}{}", show(&again));
        let (code, text) = lab.e2fsck(&ours);
        assert_eq!(code, 0, "{features}: {report}{text}");
        assert_eq!(listing(&lab, &ours), list, "{features}: {report}");
    }
}
