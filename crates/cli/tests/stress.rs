//! Many threads at once in one tree of a mounted volume, then the checkers.

mod common;

use common::populate::Rng;
use common::{Mounted, Scratch, check_clean, e2fsck_clean, have, have_fuse, our_mkfs};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Failures that threads in one tree cause each other.
fn expected(e: &std::io::Error) -> bool {
    matches!(
        e.kind(),
        ErrorKind::NotFound
            | ErrorKind::AlreadyExists
            | ErrorKind::DirectoryNotEmpty
            | ErrorKind::NotADirectory
            | ErrorKind::IsADirectory
            | ErrorKind::InvalidInput
            | ErrorKind::StorageFull
    ) || e.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error())
}

fn one_thread(root: &Path, seed: u64, steps: usize) {
    let mut rng = Rng::new(seed);
    let place = |rng: &mut Rng| -> PathBuf {
        let mut path = root.to_path_buf();
        for _ in 0..rng.below(3) {
            path.push(format!("d{}", rng.below(4)));
        }
        path
    };
    for step in 0..steps {
        let path = place(&mut rng).join(format!("f{}", rng.below(24)));
        let result = match rng.below(13) {
            0 | 1 => fs::create_dir(place(&mut rng).join(format!("d{}", rng.below(4)))),
            2..=4 => {
                let n = rng.below(60_000) as usize;
                fs::write(&path, vec![seed as u8; n])
            }
            5 => {
                let n = rng.below(9000) as usize;
                OpenOptions::new()
                    .append(true)
                    .create(true)
                    .open(&path)
                    .and_then(|mut f| f.write_all(&vec![1; n]))
            }
            6 => fs::remove_file(&path),
            7 => fs::rename(&path, place(&mut rng).join(format!("f{}", rng.below(24)))),
            8 => fs::rename(
                place(&mut rng).join(format!("d{}", rng.below(4))),
                place(&mut rng).join(format!("d{}", rng.below(4))),
            ),
            9 => fs::hard_link(&path, place(&mut rng).join(format!("f{}", rng.below(24)))),
            10 => OpenOptions::new()
                .write(true)
                .open(&path)
                .and_then(|f| f.set_len(rng.below(100_000))),
            11 => fs::read(&path).map(drop),
            _ => {
                if step % 5 == 0 {
                    File::open(&path).and_then(|f| f.sync_all())
                } else {
                    fs::read_dir(place(&mut rng)).map(|d| {
                        d.count();
                    })
                }
            }
        };
        if let Err(e) = result {
            assert!(
                expected(&e),
                "seed {seed}, step {step}, {}: {e}",
                path.display()
            );
        }
    }
}

fn storm(mkfs: &[&str], size: &str, options: &str, threads: u64, steps: usize) {
    if !have_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let image = scratch.path("disk.img");
    our_mkfs(&image, mkfs, size);
    let mounted = Mounted::new(&image, &scratch.dir("mnt"), options);
    let root = mounted.mountpoint.join("tree");
    fs::create_dir(&root).unwrap();
    std::thread::scope(|scope| {
        for seed in 0..threads {
            let root = &root;
            scope.spawn(move || one_thread(root, seed + 1, steps));
        }
    });
    // Everything that is there can be read.
    common::ok(
        std::process::Command::new("tar")
            .arg("cf")
            .arg("/dev/null")
            .arg("-C")
            .arg(&root)
            .arg("."),
    );
    mounted.unmount();
    check_clean(&image, "after the storm");
    if mkfs.contains(&"f2fs") {
        if have("fsck.f2fs") {
            common::fsck_f2fs_clean(&image, "after the storm");
        }
    } else if have("e2fsck") {
        e2fsck_clean(&image, "after the storm");
    }
}

#[test]
fn storm_in_one_tree() {
    storm(&[], "256M", "", 8, 2500);
}

/// So little memory that inodes leave it as soon as no program uses them.
#[test]
fn storm_with_hardly_any_memory() {
    storm(&[], "256M", "cache=1M", 8, 1500);
}

#[test]
fn storm_on_f2fs_with_hardly_any_memory() {
    storm(&["-t", "f2fs"], "256M", "cache=1M", 8, 1500);
}

/// What was unlinked lives as long as a program holds it, whether or not its inode was in memory when its name went, and
/// no other file gets its number.
fn held_without_names(mkfs: &[&str]) {
    use rustix::fs::{CWD, Mode, OFlags, fstat, openat};
    if !have_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let image = scratch.path("disk.img");
    our_mkfs(&image, mkfs, "256M");
    let mounted = Mounted::new(&image, &scratch.dir("mnt"), "cache=1M");
    let root = &mounted.mountpoint;
    let crowd = |name: &str| {
        (0..500).for_each(|k| drop(File::create(root.join(format!("{name}{k}"))).unwrap()));
    };
    let mut held = Vec::new();
    for k in 0..60 {
        let path = root.join(format!("held{k}"));
        match k % 3 {
            0 => fs::create_dir(&path).unwrap(),
            1 => fs::write(&path, "held").unwrap(),
            _ => std::os::unix::fs::symlink("nowhere", &path).unwrap(),
        }
        // Names the inode and opens nothing.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = openat(CWD, &path, flags, Mode::empty()).unwrap();
        held.push((path, fstat(&fd).unwrap().st_ino, fd));
    }
    crowd("before");
    for (k, (path, ..)) in held.iter().enumerate() {
        match k % 3 {
            0 => fs::remove_dir(path).unwrap(),
            1 => fs::rename(root.join(format!("before{k}")), path).unwrap(),
            _ => fs::remove_file(path).unwrap(),
        }
    }
    crowd("after");
    let taken: std::collections::HashSet<u64> = fs::read_dir(root)
        .unwrap()
        .map(|e| std::os::unix::fs::DirEntryExt::ino(&e.unwrap()))
        .collect();
    for (path, ino, fd) in &held {
        // Past what the kernel knows of it.
        let flags = rustix::fs::AtFlags::EMPTY_PATH | rustix::fs::AtFlags::STATX_FORCE_SYNC;
        let st = rustix::fs::statx(fd, "", flags, rustix::fs::StatxFlags::BASIC_STATS).unwrap();
        assert_eq!((st.stx_ino, st.stx_nlink), (*ino, 0), "{}", path.display());
        assert!(
            !taken.contains(ino),
            "the number of {} was given away",
            path.display()
        );
    }
    drop(held);
    mounted.unmount();
    check_clean(&image, "after holding files without names");
}

#[test]
fn files_without_names_live_while_they_are_held() {
    held_without_names(&[]);
}

#[test]
fn files_without_names_live_while_they_are_held_on_f2fs() {
    held_without_names(&["-t", "f2fs"]);
}

#[test]
fn storm_on_small_blocks_until_full() {
    storm(&["-b", "1024", "-O", "inline_data"], "16M", "", 8, 2500);
}

#[test]
fn storm_on_ext3() {
    storm(&["-t", "ext3"], "128M", "", 6, 1500);
}

#[test]
fn appenders_of_one_file_lose_nothing() {
    if !have_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let image = scratch.path("disk.img");
    our_mkfs(&image, &[], "128M");
    let mounted = Mounted::new(&image, &scratch.dir("mnt"), "");
    let path = mounted.mountpoint.join("log");
    std::thread::scope(|scope| {
        for k in 0..8u8 {
            let path = &path;
            scope.spawn(move || {
                let mut f = OpenOptions::new()
                    .append(true)
                    .create(true)
                    .open(path)
                    .unwrap();
                for _ in 0..500 {
                    f.write_all(&[b'a' + k; 64]).unwrap();
                }
            });
        }
    });
    let text = fs::read(&path).unwrap();
    assert_eq!(text.len(), 8 * 500 * 64);
    for record in text.chunks(64) {
        assert!(
            record.iter().all(|b| *b == record[0]),
            "a record was torn by another"
        );
    }
    for k in 0..8u8 {
        assert_eq!(text.iter().filter(|b| **b == b'a' + k).count(), 500 * 64);
    }
    mounted.unmount();
    check_clean(&image, "after appending");
}

/// A full volume refuses, and what it accepted stays; after a removal there is room again. Twenty rounds.
#[test]
fn full_volume_loses_nothing() {
    if !have_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let image = scratch.path("disk.img");
    our_mkfs(&image, &[], "64M");
    let mounted = Mounted::new(&image, &scratch.dir("mnt"), "");
    let root = mounted.mountpoint.clone();
    let free = || rustix::fs::statvfs(&root).unwrap().f_bfree;
    common::ok(std::process::Command::new("sync").arg("-f").arg(&root));
    let at_first = free();
    for round in 0..20u64 {
        let accepted = Arc::new(AtomicU64::new(0));
        std::thread::scope(|scope| {
            for writer in 0..4u64 {
                let (root, accepted) = (&root, Arc::clone(&accepted));
                scope.spawn(move || {
                    for k in 0.. {
                        let path = root.join(format!("r{round}-w{writer}-{k}"));
                        let result = File::create(&path).and_then(|f| {
                            f.write_all_at(&vec![(round + writer) as u8 + 1; 700_000], 0)?;
                            f.sync_all()
                        });
                        match result {
                            Ok(()) => {
                                accepted.fetch_add(1, Ordering::Relaxed);
                            }
                            Err(e) => {
                                assert_eq!(e.kind(), ErrorKind::StorageFull, "{e}");
                                let _ = fs::remove_file(&path);
                                return;
                            }
                        }
                    }
                });
            }
        });
        assert!(
            accepted.load(Ordering::Relaxed) > 20,
            "the volume took hardly anything"
        );
        for entry in fs::read_dir(&root).unwrap() {
            let path = entry.unwrap().path();
            if !path.is_file() {
                continue;
            }
            let mut bytes = Vec::new();
            File::open(&path).unwrap().read_to_end(&mut bytes).unwrap();
            assert_eq!(bytes.len(), 700_000, "{}", path.display());
            assert!(
                bytes.iter().all(|b| *b == bytes[0] && *b != 0),
                "{}",
                path.display()
            );
            fs::remove_file(&path).unwrap();
        }
    }
    // A failed writeback counts for the superblock, too, until a syncfs has told of it: the first one repeats
    // what fsync told the writers.
    let _ = common::output(std::process::Command::new("sync").arg("-f").arg(&root));
    common::ok(std::process::Command::new("sync").arg("-f").arg(&root));
    // The root directory may have grown by a block or two; nothing else may be missing.
    assert!(
        free() + 8 >= at_first,
        "free blocks went from {at_first} to {}",
        free()
    );
    mounted.unmount();
    check_clean(&image, "after twenty times full");
    if have("e2fsck") {
        e2fsck_clean(&image, "after twenty times full");
    }
}

/// A directory of many entries is listed once each while others come and go.
#[test]
fn listing_while_changing() {
    if !have_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let image = scratch.path("disk.img");
    our_mkfs(&image, &["-N", "60000"], "256M");
    let mounted = Mounted::new(&image, &scratch.dir("mnt"), "");
    let dir = mounted.mountpoint.join("dir");
    fs::create_dir(&dir).unwrap();
    for k in 0..20_000 {
        File::create(dir.join(format!("stays {k}"))).unwrap();
    }
    std::thread::scope(|scope| {
        let changing = &dir;
        let changer = scope.spawn(move || {
            for k in 0..8000 {
                File::create(changing.join(format!("comes {k}"))).unwrap();
                if k >= 100 {
                    fs::remove_file(changing.join(format!("comes {}", k - 100))).unwrap();
                }
            }
        });
        let mut rounds = 0;
        while !changer.is_finished() || rounds == 0 {
            let mut names: Vec<_> = fs::read_dir(&dir)
                .unwrap()
                .map(|e| e.unwrap().file_name())
                .collect();
            let listed = names.len();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), listed, "a name was listed twice");
            let stays = names
                .iter()
                .filter(|n| n.to_string_lossy().starts_with("stays"))
                .count();
            assert_eq!(
                stays, 20_000,
                "an entry that was there all the time was not listed"
            );
            rounds += 1;
        }
        changer.join().unwrap();
    });
    mounted.unmount();
    check_clean(&image, "after listing");
}
