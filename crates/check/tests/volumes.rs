//! Undamaged volumes of every kind are clean; dirty journals are replayed; hostile input ends.

use blockwright_test_support::lab as common;

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use blockwright_check::ext4::{CheckError, CheckOptions, IssueKind, Progress, check};
use blockwright_check::{Mode, fsck_exit_code};
use blockwright_device::{MemoryDevice, SharedDevice};
use blockwright_ondisk::ext4::{BlockNo, Incompat, Ino};
use common::volume::Volume;
use common::{Lab, Rng, repair, show, tools, verify};

#[test]
fn undamaged_volumes_are_clean() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let matrix: &[(&str, &str)] = &[
        ("16M", "-t ext4"),
        ("16M", "-t ext4 -b 2048"),
        ("16M", "-t ext4 -b 4096 -I 128"),
        ("16M", "-t ext4 -b 1024 -I 1024"),
        ("8M", "-t ext2"),
        ("16M", "-t ext2 -b 4096"),
        ("16M", "-t ext3 -b 1024 -O ^resize_inode"),
        ("16M", "-t ext4 -O ^64bit"),
        ("16M", "-t ext4 -O ^flex_bg"),
        ("16M", "-t ext4 -b 1024 -g 1024 -O meta_bg,^resize_inode"),
        ("16M", "-t ext4 -O ^metadata_csum,uninit_bg"),
        ("16M", "-t ext4 -O ^metadata_csum"),
        ("16M", "-t ext4 -O ^has_journal"),
        ("16M", "-t ext4 -O sparse_super2"),
        (
            "16M",
            "-t ext4 -O ^sparse_super,^resize_inode -g 2048 -b 1024",
        ),
        ("16M", "-t ext4 -O inline_data"),
        ("16M", "-t ext4 -O inline_data -I 1024"),
        ("16M", "-t ext4 -b 1024 -C 8192 -O bigalloc"),
        ("16M", "-t ext4 -O ea_inode,orphan_file"),
        ("16M", "-t ext4 -O quota,project"),
        ("16M", "-t ext4 -O casefold"),
        ("16M", "-t ext4 -O large_dir,encrypt"),
        ("16M", "-t ext4 -O metadata_csum_seed"),
        ("16M", "-t ext4 -O ^extents,^64bit"),
        ("16M", "-t ext4 -O ^dir_index"),
        ("16M", "-t ext4 -O ^filetype"),
        ("16M", "-t ext4 -O ^huge_file,^dir_nlink,^extra_isize"),
        ("16M", "-t ext4 -O fast_commit"),
        ("256M", "-t ext4 -b 65536"),
    ];
    let mut failures = Vec::new();
    for (size, args) in matrix {
        let args: Vec<&str> = args.split(' ').collect();
        let Some(image) = lab.make(size, &args) else {
            continue;
        };
        let (code, text) = lab.e2fsck(&image);
        let report = verify(&image).unwrap();
        if code != 0 || !report.is_clean() || fsck_exit_code(&report) != 0 {
            failures.push(format!("{args:?}: {}e2fsck {code}: {text}", show(&report)));
        }
        assert!(report.stats.directories >= 7 && report.stats.files > 100);
        // Repairing what is clean writes nothing.
        let (report, after) = repair(&image, Mode::Yes);
        assert!(!report.unwrap().changed && after == image, "{args:?}");
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// A volume whose journal holds a transaction that overwrites a data block.
fn dirty_journal(lab: &Lab, args: &[&str], open: &str) -> (Volume, Vec<u8>, BlockNo) {
    let volume = Volume::new(lab.make("8M", args).unwrap());
    let target = volume.blocks(volume.lookup("dir/big"))[3];
    let mut data = vec![0x5A; 1024];
    // Begins with the journal's magic, so it must be escaped.
    data[..4].copy_from_slice(&[0xC0, 0x3B, 0x39, 0x98]);
    let file = lab.dir.path().join("logged");
    std::fs::write(&file, &data).unwrap();
    let image = lab.debugfs(
        &volume.image,
        &[open, &format!("jw -b {target} {}", file.display()), "jc"],
    );
    (Volume::new(image), data, target)
}

#[test]
fn dirty_journals_are_replayed() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    for (args, open) in [
        (
            &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"][..],
            "jo",
        ),
        (&["-t", "ext4", "-b", "1024"][..], "jo -c"),
        (&["-t", "ext4", "-b", "1024", "-O", "^64bit"][..], "jo -c"),
        (&["-t", "ext3", "-b", "1024"][..], "jo"),
    ] {
        let (volume, data, target) = dirty_journal(&lab, args, open);
        let report = verify(&volume.image).unwrap();
        assert!(report.is_clean(), "{args:?} {}", show(&report));
        assert_eq!(report.stats.transactions_replayed, 1, "{args:?}");
        for mode in [Mode::Preen, Mode::Yes] {
            let (report, after) = repair(&volume.image, mode);
            let report = report.unwrap();
            assert_eq!(fsck_exit_code(&report), 1, "{}", show(&report));
            let mut after = Volume::new(after);
            assert_eq!(after.block(target), data, "{args:?}");
            let (code, text) = lab.e2fsck(&after.image);
            assert!(code == 0 && !text.contains("recovery"), "{text}");
        }
        // Without the flag the transactions are still there.
        let mut unsaid = volume.clone();
        unsaid.edit_sb(|sb| {
            let mut f = sb.features();
            f.incompat.remove(Incompat::NEEDS_RECOVERY);
            sb.set_features(f);
        });
        let report = verify(&unsaid.image).unwrap();
        assert!(
            report
                .issues
                .iter()
                .any(|i| i.kind == IssueKind::RecoveryFlagMissing)
        );
        let (report, after) = repair(&unsaid.image, Mode::Yes);
        assert_eq!(fsck_exit_code(&report.unwrap()), 1);
        assert_eq!(lab.e2fsck(&after).0, 0);
        // They are, too, when the superblock does not say where: no journal at all is damage, and not one that is elsewhere.
        let mut lost = volume.clone();
        lost.edit_sb(|sb| sb.journal_inum.set(0));
        assert!(!verify(&lost.image).unwrap().is_clean(), "{args:?}");
        let (report, after) = repair(&lost.image, Mode::Yes);
        assert_eq!(fsck_exit_code(&report.unwrap()), 1);
        let mut after = Volume::new(after);
        assert_eq!(after.block(target), data, "{args:?}");
        assert_eq!(lab.e2fsck(&after.image).0, 0);
    }
}

#[test]
fn damaged_transactions_are_said() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let args = ["-t", "ext4", "-b", "1024"];
    let (volume, _, _) = dirty_journal(&lab, &args, "jo -c");
    // Log: descriptor, data, commit.
    let log = volume.blocks(Ino::JOURNAL);
    let mut bad_data = volume.clone();
    bad_data.block(log[2])[100] ^= 1;
    let report = verify(&bad_data.image).unwrap();
    let is = |k: &IssueKind| matches!(k, IssueKind::JournalTransaction { .. });
    assert!(
        report.issues.iter().any(|i| is(&i.kind)),
        "{}",
        show(&report)
    );
    let (_, after) = repair(&bad_data.image, Mode::Yes);
    assert_eq!(lab.e2fsck(&after).0, 0);

    let args = ["-t", "ext3", "-b", "1024"];
    let (mut outside, _, _) = dirty_journal(&lab, &args, "jo");
    let log = outside.blocks(Ino::JOURNAL);
    outside.block(log[1])[12..16].copy_from_slice(&[0x7F; 4]);
    let report = verify(&outside.image).unwrap();
    let is = |k: &IssueKind| matches!(k, IssueKind::JournalBlockOutside { .. });
    assert!(
        report.issues.iter().any(|i| is(&i.kind)),
        "{}",
        show(&report)
    );
    let (_, after) = repair(&outside.image, Mode::Yes);
    assert_eq!(lab.e2fsck(&after).0, 0);
}

/// Whether a directory has an index.
fn index_of(volume: &Volume, dir: Ino) -> bool {
    use blockwright_ondisk::ext4::inode::InodeFlags;
    volume.inode(dir).flags.contains(InodeFlags::INDEX)
}

#[test]
fn damaged_indexes_are_built_anew() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    for n in 0..2500 {
        std::fs::write(lab.tree.join(format!("many/more of the names {n:05}")), b"").unwrap();
    }
    for args in [
        &["-t", "ext4", "-b", "1024", "-N", "4000"][..],
        &["-t", "ext4", "-b", "4096", "-N", "4000"],
        &["-t", "ext3", "-b", "1024", "-N", "4000", "-O", "dir_index"],
    ] {
        let clean = Volume::new(lab.make("16M", args).unwrap());
        let many = clean.lookup("many");
        assert!(index_of(&clean, many), "{args:?}");
        let root = clean.blocks(many)[0];
        let names = verify(&clean.image).unwrap().stats.names;
        // The hash version, the number of entries, a leaf's hash, a block twice.
        for at in [28, 34, 43, 44] {
            let mut bad = clean.clone();
            bad.block(root)[at] ^= 0x55;
            assert!(!verify(&bad.image).unwrap().is_clean(), "{args:?} {at}");
            let (report, after) = repair(&bad.image, Mode::Yes);
            assert_eq!(fsck_exit_code(&report.unwrap()), 1);
            let (code, text) = lab.e2fsck(&after);
            assert_eq!(code, 0, "{args:?} {at}: {text}");
            let again = verify(&after).unwrap();
            assert!(again.is_clean(), "{}", show(&again));
            assert_eq!(again.stats.names, names, "{args:?} {at}");
            let after = Volume::new(after);
            assert!(index_of(&after, many), "{args:?} {at}: no index");
        }
    }
}

#[test]
fn lost_journals_are_made_anew() {
    use blockwright_ondisk::ext4::Compat;
    if !tools() {
        return;
    }
    let lab = Lab::new();
    for args in [
        &["-t", "ext4", "-b", "1024", "-J", "size=2"][..],
        &["-t", "ext3", "-b", "1024", "-J", "size=2"],
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-O",
            "orphan_file",
            "-J",
            "size=2",
        ],
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-O",
            "fast_commit",
            "-J",
            "size=2",
        ],
    ] {
        let clean = Volume::new(lab.make("12M", args).unwrap());
        let size = clean.inode(Ino::JOURNAL).size;
        let features = clean.sb().features();
        let damage: [fn(&mut Volume); 2] = [
            |v| v.edit_raw(Ino::JOURNAL, |raw| raw.fill(0)),
            |v| v.edit_raw(Ino::JOURNAL, |raw| raw[0x28..0x64].fill(0x11)),
        ];
        for damage in damage {
            let mut bad = clean.clone();
            damage(&mut bad);
            let (report, after) = repair(&bad.image, Mode::Yes);
            assert_eq!(fsck_exit_code(&report.unwrap()), 1, "{args:?}");
            let (code, text) = lab.e2fsck(&after);
            assert_eq!(code, 0, "{args:?}: {text}");
            let after = Volume::new(after);
            assert!(verify(&after.image).unwrap().is_clean());
            assert_eq!(after.inode(Ino::JOURNAL).size, size, "{args:?}");
            let now = after.sb().features();
            assert!(now.has_compat(Compat::HAS_JOURNAL), "{args:?}");
            assert_eq!(now, features, "{args:?}");
        }
    }
}

#[test]
fn damaged_quota_files_are_written_anew() {
    use blockwright_ondisk::ext4::quota::BLOCK_SIZE;
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let mut clean = Volume::new(
        lab.make("12M", &["-t", "ext4", "-b", "1024", "-O", "quota"])
            .unwrap(),
    );
    // The super-user has the only entry; give it a limit.
    let entry_of = |v: &mut Volume| {
        let blocks = v.blocks(Ino(3));
        let place = *blocks[2..]
            .iter()
            .find(|b| {
                let used = u64::from_le_bytes(v.clone().block(**b)[64..72].try_into().unwrap());
                used > 100_000
            })
            .unwrap();
        v.at(place) + 16
    };
    let at = entry_of(&mut clean);
    clean.image[at + 32..at + 40].copy_from_slice(&777u64.to_le_bytes());
    assert_eq!(clean.geo.block_len(), BLOCK_SIZE);
    assert!(verify(&clean.image).unwrap().is_clean());
    // Its magic, its tree, its inode.
    let damage: [fn(&mut Volume); 3] = [
        |v| {
            let block = v.blocks(Ino(3))[0];
            v.block(block)[0] ^= 1;
        },
        |v| {
            let block = v.blocks(Ino(3))[1];
            v.block(block)[..4].copy_from_slice(&9999u32.to_le_bytes());
        },
        |v| v.edit_raw(Ino(3), |raw| raw.fill(0)),
    ];
    for (n, damage) in damage.into_iter().enumerate() {
        let mut bad = clean.clone();
        damage(&mut bad);
        assert!(!verify(&bad.image).unwrap().is_clean(), "{n}");
        let (report, after) = repair(&bad.image, Mode::Yes);
        assert_eq!(fsck_exit_code(&report.unwrap()), 1, "{n}");
        let (code, text) = lab.e2fsck(&after);
        assert_eq!(code, 0, "{n}: {text}");
        let mut after = Volume::new(after);
        assert!(verify(&after.image).unwrap().is_clean(), "{n}");
        assert_eq!(after.sb().usr_quota_inum.get(), 3, "{n}");
        if n == 0 {
            // What could be read is kept.
            let at = entry_of(&mut after);
            assert_eq!(after.image[at + 32..at + 40], 777u64.to_le_bytes());
        }
    }
}

#[test]
fn preen_leaves_real_damage_alone() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let clean = Volume::new(lab.make("8M", &["-t", "ext4", "-b", "1024"]).unwrap());
    let mut counts = clean.clone();
    counts.edit_desc(0, |d| d.free_clusters += 1);
    let (report, after) = repair(&counts.image, Mode::Preen);
    assert_eq!(fsck_exit_code(&report.unwrap()), 1);
    assert_eq!(lab.e2fsck(&after).0, 0);

    let mut both = counts.clone();
    both.edit_raw(Ino::ROOT, |raw| raw.fill(0));
    let (report, after) = repair(&both.image, Mode::Preen);
    let report = report.unwrap();
    assert_eq!(fsck_exit_code(&report), 4);
    assert!(!report.changed && after == both.image);
}

#[test]
fn what_is_no_volume_is_refused() {
    let blank = |bytes: u64| -> SharedDevice { Arc::new(MemoryDevice::new(bytes)) };
    for bytes in [0, 512, 1024, 2048, 1 << 20] {
        let error = check(blank(bytes), &CheckOptions::default()).unwrap_err();
        if bytes < 2048 {
            assert!(matches!(error, CheckError::TooSmall { .. }), "{error}");
        } else {
            assert!(matches!(error, CheckError::NoSuperblock { .. }), "{error}");
        }
    }
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let image = lab.make("8M", &["-t", "ext4", "-b", "1024"]).unwrap();
    let error = verify(&image[..4 << 20]).unwrap_err();
    assert!(
        matches!(error, CheckError::DeviceTooSmall { .. }),
        "{error}"
    );
    let mut unknown = Volume::new(image.clone());
    unknown.edit_sb(|sb| {
        sb.feature_incompat
            .set(sb.feature_incompat.get() | 0x0800_0000)
    });
    let error = verify(&unknown.image).unwrap_err();
    assert!(matches!(error, CheckError::Unsupported { .. }), "{error}");
    let read_only: SharedDevice = Arc::new(MemoryDevice::from_image(&image).into_read_only());
    let options = CheckOptions {
        mode: Mode::Yes,
        ..CheckOptions::default()
    };
    let error = check(read_only, &options).unwrap_err();
    assert!(matches!(error, CheckError::ReadOnlyDevice), "{error}");
}

#[test]
fn noise_never_panics_nor_hangs() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let bases = [
        lab.make("8M", &["-t", "ext4", "-b", "1024"]).unwrap(),
        lab.make("8M", &["-t", "ext2", "-b", "1024"]).unwrap(),
    ];
    let began = Instant::now();
    for seed in 0..60u64 {
        let mut rng = Rng::new(seed);
        let mut image = bases[seed as usize % 2].clone();
        // Whole stretches of noise over the metadata, the superblock left alone.
        for _ in 0..1 + rng.below(6) {
            let at = 2048 + rng.below(900 * 1024) as usize;
            let len = 1 + rng.below(20_000) as usize;
            rng.bytes(&mut image[at..at + len]);
        }
        let _ = verify(&image);
        if let (Ok(_), after) = repair(&image, Mode::Yes) {
            let _ = verify(&after);
        }
        assert!(began.elapsed() < Duration::from_secs(240), "seed {seed}");
    }
}

#[test]
fn a_huge_sparse_volume_is_quick() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let path = lab.dir.path().join("huge.img");
    let out = Command::new("mke2fs")
        .args([
            "-q",
            "-F",
            "-t",
            "ext4",
            "-E",
            "lazy_itable_init=1,nodiscard",
        ])
        .args(["-O", "^has_journal"])
        .arg(&path)
        .arg("1T")
        .output()
        .unwrap();
    if !out.status.success() {
        blockwright_oracles::leave("no room for a huge sparse volume");
        return;
    }
    let mode = blockwright_device::OpenMode {
        lock: false,
        ..blockwright_device::OpenMode::read_only()
    };
    let device = blockwright_device::HostDevice::open(&path, mode).unwrap();
    let calls = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counter = calls.clone();
    let options = CheckOptions {
        progress: Some(Arc::new(move |_: Progress| {
            counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            std::ops::ControlFlow::Continue(())
        })),
        ..CheckOptions::default()
    };
    let began = Instant::now();
    let report = check(device, &options).unwrap();
    assert!(report.is_clean(), "{}", show(&report));
    assert!(calls.load(std::sync::atomic::Ordering::Relaxed) > 10);
    let took = began.elapsed();
    eprintln!("1 TiB, empty: {took:?}");
    assert!(took < Duration::from_secs(60), "{took:?}");
}

/// A quota file takes its next block at its number of blocks. With a smaller number that is a block in use.
#[test]
fn quota_files_with_too_small_a_number_of_blocks() {
    if !tools() {
        return;
    }
    let lab = Lab::new();
    let base = lab
        .make("12M", &["-t", "ext4", "-b", "1024", "-O", "quota"])
        .unwrap();
    let files: Vec<_> = (0..40u32)
        .flat_map(|n| {
            [
                format!("mknod p{n} p"),
                format!("sif p{n} uid {}", n * 70_000 + 1),
            ]
        })
        .collect();
    let files: Vec<_> = files.iter().map(String::as_str).collect();
    let clean = repair(&lab.debugfs(&base, &files), Mode::Yes).1;
    assert_eq!(lab.e2fsck(&clean).0, 0);
    let mut clean = Volume::new(clean);
    let head = clean.blocks(Ino::USR_QUOTA)[0];
    let word = |v: &mut Volume, at: usize| {
        u32::from_le_bytes(v.block(head)[at..at + 4].try_into().unwrap())
    };
    let blocks = word(&mut clean, 20);
    assert_eq!(clean.blocks(Ino::USR_QUOTA).len() as u32, blocks);
    assert!(blocks > 40, "{blocks}");
    let cases = [1, 2, 5, blocks / 2, blocks - 1].map(|n| (20, n));
    for (at, n) in cases.into_iter().chain([(24, blocks), (28, blocks + 9)]) {
        let mut bad = clean.clone();
        bad.block(head)[at..at + 4].copy_from_slice(&n.to_le_bytes());
        let report = verify(&bad.image).unwrap();
        assert!(!report.is_clean(), "word at {at}: {n} of {blocks}");
        let (_, ours) = repair(&bad.image, Mode::Yes);
        let again = verify(&ours).unwrap();
        assert!(again.is_clean(), "word at {at}: {n}: {}", show(&again));
        let (code, text) = lab.e2fsck(&ours);
        assert_eq!(code, 0, "word at {at}: {n}: {text}");
    }
    // Behind all that is in use, a larger file is none that is damaged.
    clean.edit_inode(Ino::USR_QUOTA, |i| i.size += 1024);
    assert!(verify(&clean.image).unwrap().is_clean());
}
