//! Volumes from tar streams, and tar streams from volumes: against GNU tar, and against archives that
//! mean harm.

use blockwright_test_support as common;

use blockwright::{ErrorKind, Volume, VolumeBuilder, export::export_tar};
use common::testing::{
    assert_e2fsck_clean, assert_same, have, run_ok, snapshot_host, snapshot_volume,
};
use std::fs;
use std::io::{Cursor, Write};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

const MIB: u64 = 1 << 20;

/// A header of a hand-made archive.
struct Maker(Vec<u8>);

impl Maker {
    fn new() -> Self {
        Maker(Vec::new())
    }

    fn header(&mut self, typeflag: u8, name: &[u8], link: &[u8], size: u64) -> &mut [u8] {
        let mut h = [0u8; 512];
        h[..name.len().min(100)].copy_from_slice(&name[..name.len().min(100)]);
        h[100..108].copy_from_slice(b"0000644\0");
        h[108..116].copy_from_slice(b"0000000\0");
        h[116..124].copy_from_slice(b"0000000\0");
        h[124..136].copy_from_slice(format!("{size:011o}\0").as_bytes());
        h[136..148].copy_from_slice(b"14524756400\0");
        h[156] = typeflag;
        h[157..157 + link.len().min(100)].copy_from_slice(&link[..link.len().min(100)]);
        h[257..265].copy_from_slice(b"ustar\x0000");
        let at = self.0.len();
        self.0.extend_from_slice(&h);
        self.seal(at);
        &mut self.0[at..]
    }

    fn seal(&mut self, at: usize) {
        let h = &mut self.0[at..at + 512];
        h[148..156].fill(b' ');
        let sum: u32 = h.iter().map(|b| u32::from(*b)).sum();
        h[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }

    fn data(&mut self, data: &[u8]) -> &mut Self {
        self.0.extend_from_slice(data);
        let len = self.0.len().next_multiple_of(512);
        self.0.resize(len, 0);
        self
    }

    fn file(&mut self, name: &str, data: &[u8]) -> &mut Self {
        self.header(b'0', name.as_bytes(), b"", data.len() as u64);
        self.data(data)
    }

    fn link(&mut self, typeflag: u8, name: &str, target: &str) -> &mut Self {
        self.header(typeflag, name.as_bytes(), target.as_bytes(), 0);
        self
    }

    fn dir(&mut self, name: &str) -> &mut Self {
        self.header(b'5', name.as_bytes(), b"", 0);
        self
    }

    fn pax(&mut self, records: &[(&str, &str)]) -> &mut Self {
        let mut body = String::new();
        for (k, v) in records {
            let rest = k.len() + v.len() + 3;
            let mut len = rest + 1;
            while rest + len.to_string().len() != len {
                len = rest + len.to_string().len();
            }
            body += &format!("{len} {k}={v}\n");
        }
        self.header(b'x', b"pax", b"", body.len() as u64);
        self.data(body.as_bytes())
    }

    fn end(&self) -> Vec<u8> {
        let mut out = self.0.clone();
        out.resize(out.len() + 1024, 0);
        out
    }
}

fn build(archives: Vec<Vec<u8>>) -> blockwright::Result<(tempfile::TempDir, Volume)> {
    let dir = tempfile::tempdir().expect("a directory");
    let image = dir.path().join("disk.img");
    let mut builder = VolumeBuilder::new().size_auto(MIB);
    for archive in archives {
        builder = builder.from_reader(Cursor::new(archive), "archive");
    }
    builder.create(&image)?;
    assert_e2fsck_clean(&image);
    let volume = Volume::open_read_only(&image)?;
    Ok((dir, volume))
}

fn refused(archive: Vec<u8>) -> blockwright::Error {
    match build(vec![archive]) {
        Ok(_) => panic!("it was taken"),
        Err(e) => e,
    }
}

fn sample(root: &Path) {
    let p = |name: &str| root.join(name);
    fs::create_dir_all(p("deep/er/and/deeper")).expect("made");
    fs::write(p("deep/file"), vec![7u8; 10_000]).expect("written");
    fs::write(p(&format!("deep/{}", "n".repeat(200))), b"long name").expect("written");
    fs::create_dir_all(p(&"d".repeat(120)).join("e".repeat(130))).expect("made");
    fs::write(p(&"d".repeat(120)).join("e".repeat(130)).join("f"), b"x").expect("written");
    fs::hard_link(p("deep/file"), p("hard")).expect("made");
    symlink("deep/file", p("link")).expect("made");
    symlink("t".repeat(300), p("long-link")).expect("made");
    fs::write(p("\u{e9}t\u{e9}"), b"not ASCII").expect("written");
    let f = fs::File::create(p("sparse")).expect("made");
    for i in 0..40u64 {
        f.write_all_at(&[i as u8 + 1; 5000], i * 100_000)
            .expect("written");
    }
    f.set_len(5 * MIB).expect("extended");
    fs::File::create(p("hole"))
        .expect("made")
        .set_len(3 * MIB)
        .expect("extended");
    rustix::fs::lsetxattr(
        p("deep/file"),
        "user.x",
        b"a\0b",
        rustix::fs::XattrFlags::empty(),
    )
    .expect("set");
    if rustix::process::geteuid().is_root() {
        rustix::fs::mknodat(
            rustix::fs::CWD,
            p("tty"),
            rustix::fs::FileType::CharacterDevice,
            0o620.into(),
            rustix::fs::makedev(4, 64),
        )
        .expect("made");
        std::os::unix::fs::chown(p("deep"), Some(3_000_000), Some(4_000_000_000)).expect("changed");
        if have("setfacl") {
            run_ok(
                "setfacl",
                &["-m", "u:1234:rw", &p("hard").display().to_string()],
            );
        }
    }
}

#[test]
fn archives_of_gnu_tar_in_every_format_and_compression() {
    if !have("tar") {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).expect("made");
    sample(&tree);
    let want = snapshot_host(&tree).expect("read");
    let (tar, image) = (dir.path().join("a.tar"), dir.path().join("disk.img"));
    let (t, r) = (tar.display().to_string(), tree.display().to_string());
    for (args, compress, exact) in [
        (
            &["--format=pax", "--xattrs", "--acls", "--sparse"][..],
            None,
            true,
        ),
        (
            &[
                "--format=pax",
                "--xattrs",
                "--acls",
                "--sparse",
                "--sparse-version=0.1",
            ],
            None,
            true,
        ),
        (
            &[
                "--format=pax",
                "--xattrs",
                "--acls",
                "--sparse",
                "--sparse-version=0.0",
            ],
            None,
            true,
        ),
        (&["--format=pax", "--xattrs", "--acls"], Some("gzip"), true),
        (
            &["--format=pax", "--xattrs", "--acls", "--sparse"],
            Some("zstd"),
            true,
        ),
        (&["--format=pax", "--xattrs", "--acls"], Some("xz"), true),
        (
            &["--format=gnu", "--sparse", "--numeric-owner"],
            None,
            false,
        ),
        (&["--format=gnu"], Some("zstd"), false),
    ] {
        let mut all = vec!["-C", &r, "-cf", &t, "--sort=name"];
        all.extend_from_slice(args);
        all.push(".");
        run_ok("tar", &all);
        let mut path = tar.clone();
        if let Some(tool) = compress {
            if !have(tool) {
                continue;
            }
            run_ok(tool, &["-f", "-k", &t]);
            let extension = match tool {
                "gzip" => "gz",
                "zstd" => "zst",
                other => other,
            };
            path = dir.path().join(format!("a.tar.{extension}"));
        }
        for stream in [false, true] {
            let builder = VolumeBuilder::new().size_auto(0);
            let builder = if stream {
                builder.from_reader(fs::File::open(&path).expect("there"), "stdin")
            } else {
                builder.from(&path)
            };
            builder
                .create(&image)
                .unwrap_or_else(|e| panic!("{args:?} {compress:?}: {e}"));
            assert_e2fsck_clean(&image);
            let volume = Volume::open_read_only(&image).expect("opens");
            let mut got = snapshot_volume(&volume, "/").expect("read");
            let mut want = want.clone();
            if !exact {
                // This format has whole seconds and no attributes.
                for item in got.values_mut().chain(want.values_mut()) {
                    item.mtime.1 = 0;
                    item.xattrs.clear();
                }
            }
            assert_same(&want, &got, &["lost+found"]);
            if args.contains(&"--sparse") {
                let blocks = volume.metadata("/sparse").expect("there").blocks();
                assert!(blocks * 512 < 2 * MIB, "{args:?}: {blocks} sectors");
                assert_eq!(volume.metadata("/hole").expect("there").blocks(), 0);
            }
        }
    }
}

#[test]
fn exports_are_understood_by_gnu_tar_and_by_us() {
    let dir = tempfile::tempdir().expect("a directory");
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).expect("made");
    sample(&tree);
    let image = dir.path().join("disk.img");
    VolumeBuilder::new()
        .size_auto(0)
        .from(&tree)
        .create(&image)
        .expect("made");
    let volume = Volume::open_read_only(&image).expect("opens");
    let (mut first, mut second) = (Vec::new(), Vec::new());
    let report = export_tar(&volume, "/", &mut first).expect("exported");
    export_tar(&volume, "/", &mut second).expect("exported");
    assert!(first == second, "the same volume, the same archive");
    assert_eq!(report.bytes, first.len() as u64);
    assert!(
        first.len() < 3_000_000,
        "holes are not written out: {}",
        first.len()
    );

    let (_dir, again) = build(vec![first.clone()]).expect("built");
    let want = snapshot_volume(&volume, "/").expect("read");
    let got = snapshot_volume(&again, "/").expect("read");
    assert_same(&want, &got, &[]);

    if have("tar") && rustix::process::geteuid().is_root() {
        let (tar, out) = (dir.path().join("e.tar"), dir.path().join("out"));
        fs::write(&tar, &first).expect("written");
        fs::create_dir(&out).expect("made");
        run_ok(
            "tar",
            &[
                "-C",
                &out.display().to_string(),
                "--xattrs",
                "--xattrs-include=*",
                "--acls",
                "--numeric-owner",
                "-xpf",
                &tar.display().to_string(),
            ],
        );
        assert_same(
            &snapshot_host(&tree).expect("read"),
            &snapshot_host(&out).expect("read"),
            &["lost+found"],
        );
    }
    // A part of a volume, and a single file.
    let mut part = Vec::new();
    export_tar(&volume, "/deep", &mut part).expect("exported");
    let (_dir, again) = build(vec![part]).expect("built");
    assert!(again.exists("/er/and/deeper").expect("known"));
    let mut one = Vec::new();
    export_tar(&volume, "/deep/file", &mut one).expect("exported");
    let (_dir, again) = build(vec![one]).expect("built");
    assert_eq!(again.read("/file").expect("there"), vec![7u8; 10_000]);
}

#[test]
fn layers_with_whiteouts() {
    let base = Maker::new()
        .dir("etc/")
        .file("etc/keep", b"1")
        .file("etc/gone", b"1")
        .file("var/a", b"1")
        .file("var/sub/b", b"1")
        .file("tree/x", b"1")
        .end();
    let upper = Maker::new()
        .file("etc/.wh.gone", b"")
        .file("etc/new", b"2")
        .file("var/c", b"2")
        .file("var/.wh..wh..opq", b"")
        .file(".wh.tree", b"")
        .file("etc/keep", b"22")
        .end();
    let (_dir, v) = build(vec![base, upper]).expect("built");
    let all: Vec<String> = v
        .walk("/")
        .map(|e| e.expect("read").path.display().to_string())
        .filter(|p| p != "/lost+found")
        .collect();
    assert_eq!(
        all,
        ["/", "/etc", "/etc/keep", "/etc/new", "/var", "/var/c"]
    );
    assert_eq!(v.read("/etc/keep").expect("there"), b"22");
}

#[test]
fn directories_and_archives_over_one_another() {
    let dir = tempfile::tempdir().expect("a directory");
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("d")).expect("made");
    fs::write(tree.join("d/f"), b"from the directory").expect("written");
    fs::write(tree.join("only"), b"x").expect("written");
    let image = dir.path().join("disk.img");
    let archive = Maker::new()
        .file("d/f", b"from the archive")
        .file("d/g", b"new")
        .end();
    VolumeBuilder::new()
        .size_auto(0)
        .from(&tree)
        .from_reader(Cursor::new(archive), "archive")
        .create(&image)
        .expect("made");
    let v = Volume::open_read_only(&image).expect("opens");
    assert_eq!(v.read("/d/f").expect("there"), b"from the archive");
    assert_eq!(v.read("/d/g").expect("there"), b"new");
    assert_eq!(v.read("/only").expect("there"), b"x");
}

#[test]
fn hostile_names_stay_inside_or_are_refused() {
    for name in ["../outside", "a/../../outside", "..", "a/.."] {
        let e = refused(Maker::new().file(name, b"x").end());
        assert_eq!(e.kind(), ErrorKind::Invalid, "{name}: {e}");
    }
    let outside = Path::new("/tmp/blockwright-must-not-exist");
    let archive = Maker::new()
        .file("/tmp/blockwright-must-not-exist", b"absolute")
        .link(b'2', "esc", "../../../../tmp")
        .file("esc/blockwright-must-not-exist", b"through a link")
        .link(b'2', "root", "/")
        .file("root/at-the-root", b"x")
        .end();
    let (_dir, v) = build(vec![archive]).expect("built");
    assert!(!outside.exists());
    assert_eq!(
        v.read("/tmp/blockwright-must-not-exist").expect("inside"),
        b"through a link"
    );
    assert_eq!(v.read("/at-the-root").expect("inside"), b"x");
    // Hard links reach nothing outside either.
    for target in ["/etc/passwd", "../../etc/passwd", "missing"] {
        let e = refused(Maker::new().link(b'1', "h", target).end());
        assert!(
            matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Invalid),
            "{e}"
        );
    }
    let e = refused(Maker::new().dir("d").link(b'1', "h", "d").end());
    assert_eq!(e.kind(), ErrorKind::NotPermitted);
    let e = refused(Maker::new().file("f", b"x").file("f/g", b"x").end());
    assert_eq!(e.kind(), ErrorKind::NotDirectory);
    let e = refused(Maker::new().link(b'2', "l", "l").file("l/f", b"x").end());
    assert_eq!(e.kind(), ErrorKind::TooManySymlinks);
}

#[test]
fn of_duplicates_the_last_counts() {
    let archive = Maker::new()
        .file("f", b"first")
        .file("f", b"second, longer")
        .dir("d")
        .file("d/in", b"x")
        .dir("d")
        .link(b'2', "f2", "a")
        .file("f2", b"file")
        .end();
    let (_dir, v) = build(vec![archive]).expect("built");
    assert_eq!(v.read("/f").expect("there"), b"second, longer");
    assert_eq!(v.read("/d/in").expect("kept"), b"x");
    assert!(v.symlink_metadata("/f2").expect("there").is_file());
}

#[test]
fn truncated_and_damaged_archives_are_refused() {
    let whole = Maker::new()
        .file("a", &[1; 3000])
        .file("b", &[2; 700])
        .end();
    for cut in [
        1,
        511,
        512,
        513,
        1000,
        3583,
        3584,
        3585,
        4096,
        4100,
        4800,
        whole.len() - 1024,
    ] {
        let e = refused(whole[..cut].to_vec());
        assert_eq!(e.kind(), ErrorKind::Corrupt, "cut at {cut}: {e}");
        assert!(e.to_string().contains("truncated"), "{e}");
    }
    // In a file, too, where data is not read at once.
    let dir = tempfile::tempdir().expect("a directory");
    let (tar, image) = (dir.path().join("a.tar"), dir.path().join("disk.img"));
    fs::write(&tar, &whole[..2000]).expect("written");
    let e = VolumeBuilder::new()
        .size_auto(0)
        .from(&tar)
        .create(&image)
        .expect_err("truncated");
    assert!(e.to_string().contains("truncated"), "{e}");
    let mut damaged = whole.clone();
    damaged[3] ^= 1;
    assert!(refused(damaged).to_string().contains("not a tar archive"));
    let mut damaged = whole.clone();
    damaged[512 + 3072 + 3] ^= 1;
    assert!(refused(damaged).to_string().contains("checksum"));
    assert_eq!(refused(b"hello".to_vec()).kind(), ErrorKind::Corrupt);
    assert_eq!(refused(Vec::new()).kind(), ErrorKind::Corrupt);
    // A compressed stream that breaks off.
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(&whole).expect("compressed");
    let gz = gz.finish().expect("compressed");
    assert!(build(vec![gz.clone()]).is_ok());
    assert_eq!(
        refused(gz[..gz.len() / 2].to_vec()).kind(),
        ErrorKind::Corrupt
    );
}

#[test]
fn absurd_headers_are_refused() {
    // A size past everything.
    let mut m = Maker::new();
    m.header(b'0', b"f", b"", 0);
    m.0[124..136].copy_from_slice(&[
        0x80, 0, 0, 0, 0x7F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF,
    ]);
    m.seal(0);
    assert_eq!(refused(m.end()).kind(), ErrorKind::Corrupt);
    // Sparse maps that contradict themselves.
    for map in [
        "0,10,5,10",
        "0,10",
        "100,10",
        "0",
        "0,99999999999999999999",
        "5,18446744073709551615",
    ] {
        let mut m = Maker::new();
        m.pax(&[
            ("GNU.sparse.map", map),
            ("GNU.sparse.size", "50"),
            ("GNU.sparse.name", "f"),
        ]);
        m.file("f", &[1; 5]);
        let e = refused(m.end());
        assert_eq!(e.kind(), ErrorKind::Corrupt, "{map}: {e}");
    }
    for records in [&[("size", "x")][..], &[("uid", "5000000000")]] {
        let mut m = Maker::new();
        m.pax(records);
        m.file("f", b"x");
        assert_eq!(refused(m.end()).kind(), ErrorKind::Corrupt, "{records:?}");
    }
    let name = "n".repeat(256);
    let mut m = Maker::new();
    m.pax(&[("path", &name)]);
    m.file("f", b"x");
    assert_eq!(refused(m.end()).kind(), ErrorKind::NameTooLong);
}

#[test]
fn pax_says_more_than_headers() {
    let mut m = Maker::new();
    m.pax(&[
        ("path", "dir/from-pax"),
        ("uid", "4000000000"),
        ("mtime", "-5.25"),
        ("SCHILY.xattr.user.k", "v"),
        (
            "SCHILY.acl.access",
            "user::rw-,user:55:r--,group::r--,mask::r--,other::---",
        ),
    ]);
    m.file("ignored", b"data");
    let (_dir, v) = build(vec![m.end()]).expect("built");
    let meta = v.metadata("/dir/from-pax").expect("there");
    assert_eq!(meta.uid(), 4_000_000_000);
    assert_eq!(
        (meta.attr().mtime.secs, meta.attr().mtime.nanos),
        (-6, 750_000_000)
    );
    assert_eq!(v.get_xattr("/dir/from-pax", "user.k").expect("there"), b"v");
    assert_eq!(v.list_xattr("/dir/from-pax").expect("listed").len(), 2);
}

#[test]
fn same_archive_same_bytes() {
    let dir = tempfile::tempdir().expect("a directory");
    let archive = Maker::new()
        .file("a", b"x")
        .dir("d")
        .file("d/y", &[3; 9000])
        .end();
    let mut images = Vec::new();
    for name in ["1", "2"] {
        let image = dir.path().join(name);
        VolumeBuilder::new()
            .size_auto(0)
            .uuid([9; 16])
            .source_date_epoch(1_000_000_000)
            .from_reader(Cursor::new(archive.clone()), "archive")
            .create(&image)
            .expect("made");
        images.push(fs::read(image).expect("read"));
    }
    assert!(images[0] == images[1]);
}

#[test]
fn large_attribute_values_get_inodes_of_their_own() {
    let value = "0123456789".repeat(2500);
    let mut m = Maker::new();
    for name in ["a", "b"] {
        m.pax(&[
            ("SCHILY.xattr.user.large", &value),
            ("SCHILY.xattr.user.small", "s"),
        ]);
        m.file(name, b"x");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let image = dir.path().join("disk.img");
    let builder = |features: &str| {
        VolumeBuilder::new()
            .size_auto(MIB)
            .features(features)
            .from_reader(Cursor::new(m.end()), "archive")
    };
    let e = builder("")
        .create(&image)
        .expect_err("too large for a block");
    assert!(e.to_string().contains("attributes"), "{e}");
    for features in ["ea_inode", "ea_inode,quota", "ea_inode,^metadata_csum"] {
        builder(features)
            .create(&image)
            .unwrap_or_else(|e| panic!("{features}: {e}"));
        assert_e2fsck_clean(&image);
        let v = Volume::open_read_only(&image).expect("opens");
        for name in ["/a", "/b"] {
            let got = v.get_xattr(name, "user.large").expect("there");
            assert!(got == value.as_bytes(), "{features}");
        }
        drop(v);
        if let Some(mount) = common::testing::LoopMount::new(&image, "ro") {
            let got = snapshot_host(mount.path()).expect("read");
            let large = got[Path::new("a")].xattrs["user.large"];
            assert_eq!(large.0, value.len());
        }
    }
}

#[test]
fn a_directory_of_many_entries_has_a_deep_index() {
    const COUNT: usize = 40_000;
    let mut m = Maker::new();
    for i in 0..COUNT {
        m.file(&format!("d/{i:06}-{}", "x".repeat(30)), b"");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let image = dir.path().join("disk.img");
    VolumeBuilder::new()
        .size_auto(40 * MIB)
        .block_size(1024)
        .from_reader(Cursor::new(m.end()), "archive")
        .create(&image)
        .expect("made");
    assert_e2fsck_clean(&image);
    let v = Volume::open(&image).expect("opens");
    assert_eq!(v.read_dir("/d").expect("listed").count(), COUNT);
    for i in (0..COUNT).step_by(997) {
        let name = format!("/d/{i:06}-{}", "x".repeat(30));
        assert!(v.exists(&name).expect("known"), "{name}");
    }
    // Full leaves are split like any others.
    for i in 0..2000 {
        v.write(format!("/d/more-{i}"), b"x").expect("written");
    }
    v.close().expect("closed");
    assert_e2fsck_clean(&image);
    if let Some(mount) = common::testing::LoopMount::new(&image, "rw") {
        let names = fs::read_dir(mount.path().join("d"))
            .expect("listed")
            .count();
        assert_eq!(names, COUNT + 2000);
        assert!(
            mount
                .path()
                .join(format!("d/000997-{}", "x".repeat(30)))
                .exists()
        );
    }
}
