//! Quota limits: what a user, a group and a project may take, down to the last block, with what
//! debugfs reads from the quota files and e2fsck's count as judges.

use blockwright_test_support as common;

use blockwright::{ErrorKind, OpenOptions, Volume, VolumeBuilder, XattrMode};
use blockwright_ondisk::ext4::extent::{ExtentNode, NodePlace, NodeRules};
use blockwright_ondisk::ext4::quota::{BLOCK_SIZE, RawQuotaEntry};
use blockwright_ondisk::ext4::{GroupDesc, Ino, Inode, InodeFlags, Superblock};
use common::quota::{exceeded, open_as, set_project};
use common::testing::{assert_e2fsck_clean, have};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

const KIB: u64 = 1024;
const MIB: u64 = 1 << 20;
const USER: u32 = 1000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    User,
    Group,
    Project,
}

/// What an entry of a quota file says; limits of space in KiB.
type Entry = RawQuotaEntry;

struct Fixture {
    _dir: tempfile::TempDir,
    image: PathBuf,
}

impl Fixture {
    /// A volume with an empty file of the user, the group and the project 1000.
    fn new(features: &str, block: u32) -> Self {
        Self::sized(64 * MIB, features, block)
    }

    fn sized(bytes: u64, features: &str, block: u32) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let image = dir.path().join("disk.img");
        VolumeBuilder::new()
            .size(bytes)
            .block_size(block)
            .features(features)
            .create(&image)
            .expect("made");
        let f = Fixture { _dir: dir, image };
        let v = f.open_as(0);
        v.create_dir_mode("/home", 0o777).expect("made");
        v.write("/home/first", b"").expect("made");
        v.chown("/home/first", Some(USER), Some(USER)).expect("set");
        set_project(&v, "/home/first", USER).expect("set");
        v.close().expect("closed");
        f
    }

    fn open_as(&self, id: u32) -> Volume {
        open_as(&self.image, id)
    }

    /// Where the entry of an id is in the image, and what it says.
    fn find(&self, kind: Kind, id: u32) -> (u64, Entry) {
        use zerocopy::FromBytes;
        let image = std::fs::read(&self.image).expect("read");
        let sb = Superblock::parse(&image[1024..], None).expect("a superblock");
        let geo = &sb.geo;
        let ino = match kind {
            Kind::User => sb.raw.usr_quota_inum.get(),
            Kind::Group => sb.raw.grp_quota_inum.get(),
            Kind::Project => sb.raw.prj_quota_inum.get(),
        };
        let ino = Ino(ino);
        let (group, _) = geo.split_ino(ino).expect("an inode");
        let (index, offset) = geo.desc_position(group);
        let at = geo.block_offset(geo.desc_block(index).expect("there")) as usize + offset;
        let desc = GroupDesc::decode(&image[at..], geo).expect("a descriptor");
        let (block, offset) = geo.inode_location(ino, desc.inode_table).expect("there");
        let at = geo.block_offset(block) as usize + offset;
        let raw = &image[at..at + usize::from(geo.inode_size)];
        let inode = Inode::parse(raw, geo, ino).expect("an inode");
        let runs: Vec<(u64, u64)> = if inode.flags.contains(InodeFlags::EXTENTS) {
            ExtentNode::parse(&inode.block, NodePlace::Inode, NodeRules::ROOT, geo)
                .expect("extents")
                .extents()
                .map(|e| (e.physical.0, u64::from(e.len)))
                .collect()
        } else {
            let word = |n: usize| inode.block[n * 4..n * 4 + 4].try_into().expect("four");
            (0..12)
                .map(|n| (u64::from(u32::from_le_bytes(word(n))), 1))
                .collect()
        };
        for (first, len) in runs.into_iter().filter(|(first, _)| *first > 0) {
            let start = first * u64::from(geo.block_size);
            let end = start + len * u64::from(geo.block_size);
            for at in (start..end).step_by(BLOCK_SIZE) {
                for slot in 0..14 {
                    let at = at + 16 + slot * 72;
                    let bytes = &image[at as usize..at as usize + 72];
                    let entry = Entry::read_from_bytes(bytes).expect("72 bytes");
                    // Nothing else in the file has this id and a count below it.
                    if entry.id.get() == id
                        && entry.pad.get() == 0
                        && entry.curinodes.get() < 100_000
                    {
                        return (at, entry);
                    }
                }
            }
        }
        panic!("{kind:?} {id} has no entry");
    }

    fn set(&self, kind: Kind, edit: impl FnOnce(&mut Entry)) {
        use zerocopy::IntoBytes;
        let (at, mut entry) = self.find(kind, USER);
        edit(&mut entry);
        let image = std::fs::OpenOptions::new()
            .write(true)
            .open(&self.image)
            .expect("opens");
        image.write_all_at(entry.as_bytes(), at).expect("written");
    }

    fn entry(&self, kind: Kind) -> Entry {
        self.find(kind, USER).1
    }

    /// What debugfs says the user has in use, in bytes and inodes; it says 0 where it finds nothing.
    fn by_debugfs(&self) -> Option<(u64, u64)> {
        if !have("debugfs") {
            return None;
        }
        let out = std::process::Command::new("debugfs")
            .args(["-R", "list_quota user"])
            .arg(&self.image)
            .output()
            .expect("runs");
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let line = text
            .lines()
            .find(|l| l.trim_start().starts_with("1000 "))
            .unwrap_or_else(|| panic!("no line for 1000 in {text}"));
        let words: Vec<u64> = line
            .split_whitespace()
            .filter_map(|w| w.parse().ok())
            .collect();
        Some((words[1], words[4]))
    }
}

const FEATURES: &str = "quota,project";

#[test]
fn space_has_a_hard_limit_that_nothing_passes() {
    for (features, block) in [
        (FEATURES, 4096),
        (FEATURES, 1024),
        ("quota,project,^extent,^64bit", 1024),
        ("quota,project,inline_data", 4096),
    ] {
        let f = Fixture::new(features, block);
        let limit = 600 * KIB;
        f.set(Kind::User, |e| e.bhardlimit.set(limit / KIB));
        let v = f.open_as(USER);
        // Sparse writes: their mapping needs blocks of its own, which count, too.
        let file = v.create_file("/home/sparse").expect("made");
        let mut refused = 0;
        for n in 0..1200u64 {
            refused += u32::from(exceeded(
                file.write_at(&[1; 1024], (n * 7919 % 4001) * 8192),
            ));
        }
        assert!(refused > 0, "{features}: nothing was refused");
        // Delayed blocks of all files count together, before any of them is written back.
        let mut files = 0;
        for n in 0..50 {
            match v.write(format!("/home/f{n}"), vec![n as u8; 20_000]) {
                Ok(()) => files += 1,
                Err(e) => assert_eq!(e.kind(), ErrorKind::QuotaExceeded, "{e}"),
            }
        }
        assert!(files < 30, "{features}: {files} files");
        v.sync().expect("what was accepted has room");
        file.sync_all().expect("synced");
        drop(file);
        v.close().expect("closed");
        let used = f.entry(Kind::User).curspace.get();
        assert!(used <= limit, "{features}: {used} of {limit}");
        assert!(used > limit / 2, "{features}: {used} of {limit}");
        if let Some((bytes, inodes)) = f.by_debugfs() {
            let e = f.entry(Kind::User);
            assert_eq!((bytes, inodes), (used, e.curinodes.get()), "{features}");
        }
        assert_e2fsck_clean(&f.image);
        // Room that is given back can be used again.
        let v = f.open_as(USER);
        assert!(exceeded(v.write("/home/more", vec![1; 400_000])));
        v.remove_file("/home/sparse").expect("removed");
        v.write("/home/more", vec![1; 200_000]).expect("room again");
        v.close().expect("closed");
        assert_e2fsck_clean(&f.image);
    }
}

#[test]
fn overwriting_needs_no_room() {
    let f = Fixture::new(FEATURES, 4096);
    let v = f.open_as(USER);
    v.write("/home/full", vec![1; 400 * 1024]).expect("written");
    v.close().expect("closed");
    let used = f.entry(Kind::User).curspace.get();
    f.set(Kind::User, |e| e.bhardlimit.set(used / KIB));
    let v = f.open_as(USER);
    for direct in [false, true] {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .direct(direct)
            .open(&v, "/home/full")
            .expect("opens");
        file.write_all_at(&[2; 64 * 1024], 64 * 1024)
            .expect("in place");
        file.allocate(0, 400 * 1024).expect("is there already");
        assert!(exceeded(file.write_at(&[3; 4096], 400 * 1024)), "{direct}");
        assert!(exceeded(file.allocate(0, 408 * 1024)), "{direct}");
        file.sync_all().expect("synced");
    }
    assert!(exceeded(v.create_dir("/home/dir")));
    assert!(exceeded(v.symlink("x".repeat(200), "/home/link")));
    v.symlink("short", "/home/short").expect("in the inode");
    let long = vec![1; 3000];
    assert!(exceeded(v.set_xattr(
        "/home/full",
        "user.long",
        &long,
        XattrMode::Any
    )));
    v.close().expect("closed");
    assert_eq!(f.entry(Kind::User).curspace.get(), used);
    assert_e2fsck_clean(&f.image);
}

#[test]
fn inodes_and_owners_are_limited() {
    let f = Fixture::new(FEATURES, 4096);
    for kind in [Kind::User, Kind::Group, Kind::Project] {
        f.set(kind, |e| e.ihardlimit.set(5));
        let v = f.open_as(0);
        let give = |path: &str| match kind {
            Kind::User => v.chown(path, Some(USER), None),
            Kind::Group => v.chown(path, None, Some(USER)),
            Kind::Project => set_project(&v, path, USER),
        };
        for n in 0..8 {
            let path = format!("/home/{kind:?}{n}");
            v.write(&path, b"x").expect("root has no limit");
            assert_eq!(exceeded(give(&path)), n >= 4, "{path}");
        }
        let last = v.metadata(format!("/home/{kind:?}7")).expect("there");
        assert_eq!(
            (last.uid(), last.gid()),
            (0, 0),
            "a refused change was made"
        );
        v.close().expect("closed");
        assert_eq!(f.entry(kind).curinodes.get(), 5, "{kind:?}");
        f.set(kind, |e| e.ihardlimit.set(0));
    }
    // What a file has, and what it was promised, moves with it.
    f.set(Kind::User, |e| e.bhardlimit.set(100));
    let v = f.open_as(0);
    v.write("/home/large", vec![1; 200_000]).expect("written");
    assert!(exceeded(v.chown("/home/large", Some(USER), None)));
    v.write("/home/fits", vec![1; 50_000]).expect("written");
    v.chown("/home/fits", Some(USER), None).expect("fits");
    v.write("/home/too", vec![1; 50_000]).expect("written");
    assert!(exceeded(v.chown("/home/too", Some(USER), None)));
    v.close().expect("closed");
    assert!(f.entry(Kind::User).curspace.get() <= 100 * KIB);
    assert_e2fsck_clean(&f.image);
}

#[test]
fn soft_limits_hold_after_their_grace() {
    let f = Fixture::new(FEATURES, 4096);
    f.set(Kind::User, |e| {
        e.bsoftlimit.set(100);
        e.isoftlimit.set(3);
    });
    let now = || {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        since.expect("after 1970").as_secs()
    };
    let week = 7 * 24 * 3600;
    let v = f.open_as(USER);
    v.write("/home/a", vec![1; 200_000])
        .expect("over the soft limit");
    v.write("/home/b", b"b").expect("three inodes");
    v.write("/home/c", b"c").expect("four");
    v.close().expect("closed");
    let e = f.entry(Kind::User);
    for until in [e.btime.get(), e.itime.get()] {
        assert!(
            until > now() + week - 600 && until <= now() + week,
            "{until}"
        );
    }
    // The grace is over.
    f.set(Kind::User, |e| {
        e.btime.set(now() - 10);
        e.itime.set(now() - 10);
    });
    let v = f.open_as(USER);
    assert!(exceeded(v.write("/home/d", b"no more inodes")));
    let file = OpenOptions::new()
        .write(true)
        .open(&v, "/home/b")
        .expect("opens");
    assert!(exceeded(file.write_at(&[1; 8192], 8192)));
    drop(file);
    // Below the limits time no longer runs.
    v.remove_file("/home/a").expect("removed");
    v.remove_file("/home/c").expect("removed");
    v.sync().expect("synced");
    v.write("/home/e", b"fits").expect("room again");
    v.close().expect("closed");
    let e = f.entry(Kind::User);
    assert_eq!((e.btime.get(), e.itime.get()), (0, 0));
    assert_e2fsck_clean(&f.image);
}

/// A copy that a quota ends, on a volume with ample room: the target is as long as what was copied.
#[test]
fn a_copy_that_a_limit_ends_leaves_nothing_behind_it() {
    let f = Fixture::sized(256 * MIB, FEATURES, 4096);
    let v = f.open_as(0);
    let bytes: Vec<u8> = (0..9 * MIB + 77_777)
        .map(|at| (at / 4096 % 251) as u8 + 1)
        .collect();
    v.write("/source", &bytes).expect("written");
    v.close().expect("closed");
    let mut wrong = Vec::new();
    let mut refused = 0;
    for limit in [MIB, 3 * MIB, 4 * MIB + 500 * KIB, 5 * MIB, 7 * MIB, 9 * MIB] {
        f.set(Kind::User, |e| e.bhardlimit.set(limit / KIB));
        let v = f.open_as(USER);
        for n in 0..5 {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true);
            let target = options.open(&v, "/home/target").expect("made");
            let source = OpenOptions::new()
                .read(true)
                .open(&v, "/source")
                .expect("opens");
            let copied = match source.copy_range(0, &target, 0, bytes.len() as u64) {
                Ok(n) => n,
                Err(e) if e.kind() == ErrorKind::QuotaExceeded => 0,
                Err(e) => panic!("{e}"),
            };
            refused += u32::from(copied < bytes.len() as u64);
            let size = target.metadata().expect("known").len();
            if size != copied {
                wrong.push((limit, n, copied, size));
            }
            drop(target);
            v.remove_file("/home/target").expect("removed");
        }
        v.close().expect("closed");
    }
    assert!(refused > 0, "nothing was refused");
    assert!(wrong.is_empty(), "(limit, round, copied, size): {wrong:?}");
}
