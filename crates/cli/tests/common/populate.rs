//! Fills a mounted volume with one of everything, through ordinary system calls, from a seed.

use blockwright_device::sim::rng::SplitMix64;
use rustix::fs::{CWD, FallocateFlags, FileType, Mode, XattrFlags};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt, chown, symlink};
use std::path::Path;

/// A generator, so that a seed gives the same tree everywhere.
pub struct Rng(SplitMix64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Rng(SplitMix64::new(seed))
    }

    pub fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        let mut v = vec![0; n];
        self.0.fill(&mut v);
        v
    }
}

/// What a volume can hold.
#[derive(Clone, Copy)]
pub struct Can {
    /// Extended attributes and ACLs.
    pub xattrs: bool,
    /// Attributes larger than a block (ea_inode).
    pub big_xattrs: bool,
    /// fallocate.
    pub fallocate: bool,
}

impl Can {
    pub const ALL: Can = Can {
        xattrs: true,
        big_xattrs: false,
        fallocate: true,
    };
}

/// Makes the tree.
pub fn populate(root: &Path, seed: u64, can: Can) {
    let mut rng = Rng::new(seed);
    let put = |path: &Path, bytes: &[u8]| {
        fs::write(path, bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    };

    // Sizes around every boundary.
    let sizes = root.join("sizes");
    fs::create_dir(&sizes).unwrap();
    for n in [
        0,
        1,
        59,
        60,
        61,
        100,
        150,
        160,
        511,
        1023,
        1024,
        1025,
        4095,
        4096,
        4097,
        12 * 1024,
        65_535,
        65_537,
        300_000,
        5_000_001,
    ] {
        put(&sizes.join(format!("f{n}")), &rng.bytes(n));
    }

    // Sparse, overwritten, truncated, appended, punched.
    let shapes = root.join("shapes");
    fs::create_dir(&shapes).unwrap();
    let f = File::create(shapes.join("sparse")).unwrap();
    for k in 0..40 {
        f.write_all_at(&rng.bytes(3000), k * 1_234_567).unwrap();
    }
    f.set_len(60_000_000).unwrap();
    let f = File::create(shapes.join("truncated")).unwrap();
    f.write_all_at(&rng.bytes(700_000), 0).unwrap();
    f.set_len(123_457).unwrap();
    f.set_len(200_000).unwrap();
    let f = File::create(shapes.join("backwards")).unwrap();
    for k in (0..60).rev() {
        f.write_all_at(&rng.bytes(4096), k * 8192).unwrap();
        if k % 8 == 0 {
            f.sync_all().unwrap();
        }
    }
    if can.fallocate {
        let f = File::create(shapes.join("fallocated")).unwrap();
        rustix::fs::fallocate(&f, FallocateFlags::empty(), 0, 1_000_000).unwrap();
        f.write_all_at(&rng.bytes(5000), 300_000).unwrap();
        rustix::fs::fallocate(&f, FallocateFlags::KEEP_SIZE, 1_000_000, 2_000_000).unwrap();
        let f = File::create(shapes.join("punched")).unwrap();
        f.write_all_at(&rng.bytes(500_000), 0).unwrap();
        f.sync_all().unwrap();
        rustix::fs::fallocate(
            &f,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            100_001,
            200_003,
        )
        .unwrap();
        let f = File::create(shapes.join("zeroed")).unwrap();
        f.write_all_at(&rng.bytes(500_000), 0).unwrap();
        rustix::fs::fallocate(&f, FallocateFlags::ZERO_RANGE, 50_000, 100_000).unwrap();
        // The kernel's FUSE client passes neither of these two on: there the file stays as it is.
        for (name, mode) in [
            ("collapsed", FallocateFlags::COLLAPSE_RANGE),
            ("inserted", FallocateFlags::INSERT_RANGE),
        ] {
            let f = File::create(shapes.join(name)).unwrap();
            f.write_all_at(&rng.bytes(655_360), 0).unwrap();
            match rustix::fs::fallocate(&f, mode, 65_536, 131_072) {
                Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => {}
                Err(e) => panic!("{name}: {e}"),
            }
        }
    }

    // Names.
    let names = root.join("names");
    fs::create_dir(&names).unwrap();
    for name in [
        "ä ö ü",
        "日本語",
        "with\nnewline",
        "-dash",
        ".hidden",
        "trailing ",
        "a".repeat(255).as_str(),
        "x",
    ] {
        put(&names.join(name), name.as_bytes());
    }
    let mut deep = root.join("deep");
    for k in 0..40 {
        fs::create_dir(&deep).unwrap();
        put(&deep.join("file"), &[k; 10]);
        deep = deep.join(format!("level{k}"));
    }

    // A directory large enough for an index, with holes left by removals.
    let many = root.join("many");
    fs::create_dir(&many).unwrap();
    for k in 0..2500 {
        put(
            &many.join(format!("entry number {k} {:x}", rng.below(1 << 30))),
            b"",
        );
    }
    let mut listed: Vec<_> = fs::read_dir(&many)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    listed.sort();
    for name in listed.iter().step_by(3) {
        fs::remove_file(many.join(name)).unwrap();
    }
    for k in 0..400 {
        put(&many.join(format!("later {k}")), b"later");
    }

    // Links, symlinks, special files, renames.
    let links = root.join("links");
    fs::create_dir(&links).unwrap();
    put(&links.join("one"), b"linked");
    for k in 0..20 {
        fs::hard_link(links.join("one"), links.join(format!("also{k}"))).unwrap();
    }
    for n in [1, 59, 60, 61, 500, 1000] {
        symlink("t".repeat(n), links.join(format!("symlink{n}"))).unwrap();
    }
    symlink("../sizes/f4096", links.join("relative")).unwrap();
    for (name, kind, dev) in [
        ("fifo", FileType::Fifo, 0),
        ("socket", FileType::Socket, 0),
        ("null", FileType::CharacterDevice, rustix::fs::makedev(1, 3)),
        (
            "disk",
            FileType::BlockDevice,
            rustix::fs::makedev(259, 70_000),
        ),
    ] {
        if rustix::process::geteuid().is_root() || matches!(kind, FileType::Fifo | FileType::Socket)
        {
            rustix::fs::mknodat(CWD, links.join(name), kind, Mode::from_raw_mode(0o640), dev)
                .unwrap();
        }
    }
    put(&links.join("before"), b"renamed");
    fs::rename(links.join("before"), links.join("after")).unwrap();
    put(&links.join("victim"), &rng.bytes(10_000));
    fs::rename(links.join("after"), links.join("victim")).unwrap();
    fs::create_dir(links.join("dir-a")).unwrap();
    fs::create_dir(links.join("dir-b")).unwrap();
    put(&links.join("dir-a/inside"), b"moved");
    fs::rename(links.join("dir-a"), links.join("dir-b/moved")).unwrap();

    // Owners, modes, times.
    let meta = root.join("meta");
    fs::create_dir(&meta).unwrap();
    for (k, mode) in [0o000, 0o644, 0o755, 0o4755, 0o2755, 0o1777, 0o7777]
        .into_iter()
        .enumerate()
    {
        let path = meta.join(format!("mode{mode:o}"));
        put(&path, b"m");
        if rustix::process::geteuid().is_root() {
            chown(
                &path,
                Some(1000 + k as u32 * 70_000),
                Some(100_000 * k as u32),
            )
            .unwrap();
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }
    for (name, secs, nanos) in [
        ("old", -1_000_000_000i64, 1),
        ("epoch", 0, 999_999_999),
        ("late", 4_200_000_000, 5),
        ("latest", 15_032_385_535, 0),
    ] {
        let path = meta.join(name);
        put(&path, b"t");
        let t = rustix::fs::Timespec {
            tv_sec: secs,
            tv_nsec: nanos,
        };
        let times = rustix::fs::Timestamps {
            last_access: t,
            last_modification: t,
        };
        rustix::fs::utimensat(CWD, &path, &times, rustix::fs::AtFlags::empty()).unwrap();
    }

    if can.xattrs {
        let x = root.join("xattrs");
        fs::create_dir(&x).unwrap();
        for n in [0usize, 1, 30, 100, 400, 900] {
            let path = x.join(format!("value{n}"));
            put(&path, b"x");
            rustix::fs::lsetxattr(&path, "user.value", &rng.bytes(n), XattrFlags::empty()).unwrap();
        }
        let path = x.join("several");
        put(&path, b"x");
        for k in 0..12 {
            rustix::fs::lsetxattr(
                &path,
                format!("user.name{k}"),
                &rng.bytes(20),
                XattrFlags::empty(),
            )
            .unwrap();
        }
        for k in (0..12).step_by(2) {
            rustix::fs::lremovexattr(&path, format!("user.name{k}")).unwrap();
        }
        if rustix::process::geteuid().is_root() {
            rustix::fs::lsetxattr(&path, "trusted.overlay.opaque", b"y", XattrFlags::empty())
                .unwrap();
            rustix::fs::lsetxattr(&path, "security.test", b"label", XattrFlags::empty()).unwrap();
        }
        // user::rw-, user:1234:rw-, group::r--, mask::rw-, other::r--
        let mut acl = vec![2, 0, 0, 0];
        for (tag, perm, id) in [
            (1u16, 6u16, u32::MAX),
            (2, 6, 1234),
            (4, 4, u32::MAX),
            (0x10, 6, u32::MAX),
            (0x20, 4, u32::MAX),
        ] {
            acl.extend_from_slice(&tag.to_le_bytes());
            acl.extend_from_slice(&perm.to_le_bytes());
            acl.extend_from_slice(&id.to_le_bytes());
        }
        let path = x.join("acl");
        put(&path, b"x");
        rustix::fs::lsetxattr(&path, "system.posix_acl_access", &acl, XattrFlags::empty()).unwrap();
        let dir = x.join("acl-dir");
        fs::create_dir(&dir).unwrap();
        rustix::fs::lsetxattr(&dir, "system.posix_acl_default", &acl, XattrFlags::empty()).unwrap();
        put(&dir.join("inherits"), b"x");
        fs::create_dir(dir.join("inherits-too")).unwrap();
        if can.big_xattrs {
            let path = x.join("big");
            put(&path, b"x");
            rustix::fs::lsetxattr(&path, "user.big", &rng.bytes(20_000), XattrFlags::empty())
                .unwrap();
        }
    }

    // Churn: make and remove, so that free space is in pieces.
    let churn = root.join("churn");
    fs::create_dir(&churn).unwrap();
    for k in 0..150 {
        put(&churn.join(format!("c{k}")), &rng.bytes((k * 997) % 40_000));
    }
    for k in (0..150).step_by(2) {
        fs::remove_file(churn.join(format!("c{k}"))).unwrap();
    }
    let mut appended = OpenOptions::new()
        .append(true)
        .create(true)
        .open(churn.join("appended"))
        .unwrap();
    for _ in 0..200 {
        let n = rng.below(3000) as usize;
        std::io::Write::write_all(&mut appended, &rng.bytes(n)).unwrap();
    }
}
