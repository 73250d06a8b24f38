//! f2fs volumes made from trees: fsck.f2fs finds nothing, Linux shows the same as the sources and goes
//! on working, and this library reads the same.

use blockwright_test_support::uml;

use blockwright::{Format, Volume, VolumeBuilder};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const ANDROID: &str = "extra_attr,project_quota,inode_checksum,sb_checksum,inode_crtime,\
                       flexible_inline_xattr,verity,casefold,compression";

fn have(tool: &str) -> bool {
    blockwright_oracles::have(&[tool])
}

fn shell(script: &str, dir: &Path) -> String {
    let out = Command::new("timeout")
        .args(["-k", "5", "60", "sh", "-ec", script])
        .current_dir(dir)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .expect("a shell");
    assert!(
        out.status.success(),
        "{script}: {}{}",
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// fsck.f2fs proposes nothing, and dump.f2fs reads the volume.
fn fsck(path: &Path) {
    if !have("fsck.f2fs") {
        return;
    }
    for (tool, args) in [("fsck.f2fs", &["--dry-run", "-f"][..]), ("dump.f2fs", &[])] {
        let out = Command::new("timeout")
            .args(["-k", "5", "60", tool])
            .args(args)
            .arg(path)
            .stdin(Stdio::null())
            .output()
            .expect("it runs");
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let bad: Vec<&str> = text
            .lines()
            .filter(|l| {
                ["[Fail]", "[FIX]", "[ASSERT]"]
                    .iter()
                    .any(|b| l.contains(b))
            })
            .collect();
        assert!(out.status.success() && bad.is_empty(), "{bad:?}\n{text}");
    }
}

fn bytes(seed: u32, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(2_654_435_761) | 1;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 17;
            x ^= x << 5;
            x as u8
        })
        .collect()
}

/// A tree with a bit of everything that the format stores in more than one way.
fn make_tree(root: &Path) {
    for dir in ["many", "long", "files/sub/deep", "empty"] {
        std::fs::create_dir_all(root.join(dir)).expect("a directory");
    }
    for n in 0..1500usize {
        let name = format!("many/{}-{n}", "x".repeat(n % 70));
        std::fs::write(root.join(name), n.to_string()).expect("a file");
    }
    // Just more entries than fit inline.
    for n in 0..7 {
        std::fs::write(root.join(format!("long/{n}{}", "l".repeat(254))), b"").expect("a file");
    }
    let edges = [0, 1, 3451, 3452, 3453, 3487, 3488, 3489, 4096, 4097];
    let large = [864 << 12, (873 << 12) + 1, (923 << 12) + 5, 3_000 << 12];
    for len in edges.into_iter().chain(large) {
        let path = root.join(format!("files/file{len}"));
        std::fs::write(path, bytes(len as u32, len)).expect("a file");
    }
    for name in ["photo.jpg", "films.MKV.part", "places.db"] {
        std::fs::write(root.join("files").join(name), bytes(7, 70_000)).expect("a file");
    }
    let sparse = std::fs::File::create(root.join("files/sparse")).expect("a file");
    // The inode, both indirect nodes, the double-indirect one.
    for (n, block) in [0u64, 1000, 5_000, 1_050_000, 2_100_000]
        .into_iter()
        .enumerate()
    {
        sparse
            .write_all_at(&bytes(n as u32, 5000), block << 12)
            .expect("written");
    }
    sparse.set_len((2_200_000 << 12) + 77).expect("a size");
    std::fs::File::create(root.join("files/hole"))
        .and_then(|f| f.set_len(1 << 20))
        .expect("a file");
    std::fs::hard_link(root.join("files/file4096"), root.join("files/sub/again")).expect("a link");
    std::fs::hard_link(root.join("files/file4096"), root.join("again")).expect("a link");
    for len in [1, 60, 3451, 3453, 3489, 4095] {
        let link = root.join(format!("files/link{len}"));
        std::os::unix::fs::symlink("s".repeat(len), link).expect("a link");
    }
    shell(
        "cd files
         mkfifo fifo
         mknod chr c 1 3; mknod blk b 259 70000; chmod 0624 chr
         setfattr -n user.a -v 1 file1
         setfattr -n trusted.t -v \"$(printf '%100s')\" file1
         for n in $(seq 60); do setfattr -n user.name$n -v \"value $n\" file4097; done
         setfattr -n user.big -v \"$(printf '%3000s')\" file3488
         setfattr -n user.dir -v \"$(printf '%500s')\" sub
         setfacl -m u:1000:rw,g:70000:r,m::rwx file3489
         setfacl -d -m u:1:rwx sub
         chown 1000:70000 file3487; chmod 6755 file3487
         touch -d '1969-12-31 23:59:50.5 UTC' file3487
         touch -h -d '2242-03-16 12:56:32.123456789 UTC' link60
         touch -d '2001-02-03 04:05:06.7 UTC' sub/deep sub ../many ../empty .",
        root,
    );
}

/// What a tree is, as text: the same commands on the host and in the guest. Directories' link counts
/// and sizes are the host file system's own affair.
const SNAPSHOT: &str = r#"
snapshot() (
    cd "$1"
    find . -mindepth 1 -path ./lost+found -prune -o -type d -printf '%P|%y|%m|%U|%G|%T@\n' | sort
    find . ! -type d -printf '%P|%y|%m|%U|%G|%n|%s|%T@|%l\n' | sort
    find . -type f -size -40M -print0 | sort -z | xargs -0 sha256sum
    for block in 0 1000 1001 5000 1050000 2100000 2199999; do
        dd if=files/sparse bs=4096 skip=$block count=2 status=none | sha256sum
    done
    stat -c '%n %t:%T' files/chr files/blk
    find files -print0 | xargs -0 getfattr -hd -m - -e hex 2>/dev/null |
        awk '/^# file: /{f=$3;next} NF{print f" "$0}' | sort
)
"#;

struct Made {
    dir: tempfile::TempDir,
    tree: PathBuf,
}

fn made() -> Made {
    let dir = tempfile::tempdir().expect("a directory");
    let tree = dir.path().join("tree");
    std::fs::create_dir(&tree).expect("a directory");
    make_tree(&tree);
    Made { dir, tree }
}

fn root() -> bool {
    blockwright_oracles::root()
}

fn build(made: &Made, name: &str, features: &str, size: Option<u64>) -> PathBuf {
    let path = made.dir.path().join(name);
    let builder = VolumeBuilder::new()
        .format(Format::F2fs)
        .features(features)
        .label("built")
        .from(&made.tree);
    let builder = match size {
        Some(bytes) => builder.size(bytes),
        None => builder.size_auto(0),
    };
    let report = builder.create(&path).expect("made");
    assert_eq!(report.format(), Format::F2fs);
    assert_eq!(report.bytes, path.metadata().expect("made").len());
    path
}

#[test]
fn linux_shows_the_sources_and_goes_on() {
    if !root() || !have("fsck.f2fs") || !uml::available() {
        return;
    }
    let made = made();
    let no_casefold = ANDROID.replace("casefold,", "");
    let sets = [
        ("plain", "", Some(300 << 20)),
        // The UML kernel has no casefold; everything else of Android's.
        ("android", no_casefold.as_str(), Some(300 << 20)),
        (
            "quota",
            "extra_attr,quota,project_quota,lost_found",
            Some(2 << 30),
        ),
        ("smallest", "extra_attr,inode_checksum", None),
    ];
    let images: Vec<PathBuf> = sets
        .iter()
        .map(|(name, features, size)| build(&made, name, features, *size))
        .collect();
    images.iter().for_each(|image| fsck(image));
    let expected = shell(&format!("{SNAPSHOT}snapshot ."), &made.tree);
    let out = made.dir.path().join("out");
    std::fs::create_dir(&out).expect("a directory");
    let script = format!(
        r#"{SNAPSHOT}
        attach a
        snapshot /mnt/a > $OUT/tree-a
        for d in b c d; do
            attach $d
            find /mnt/$d -path /mnt/$d/lost+found -prune -o -printf x | wc -c >> $OUT/counts
            sha256sum < /mnt/$d/files/file12288000 >> $OUT/sums
        done
        snapshot /mnt/b > $OUT/tree-b
        # Linux's own work on our volumes.
        for d in a b c; do
            cd /mnt/$d
            rm -r many/*1* long
            cp -a files/file12288000 copy
            cp -a many many2
            mkdir -p new/dir; mv files/file4096 new/dir/; ln again new/link
            setfattr -n user.new -v "$(printf '%300s')" again
            dd if=/dev/zero of=files/file3576833 bs=4096 seek=500 count=300 conv=notrunc,fsync status=none
            for n in $(seq 200); do echo $n > empty/name-number-$n; done
            truncate -s 10 files/file12288000
            echo 1 > files/hole
            cd /
        done
        sync
        for d in a b c d; do umount /mnt/$d; done
        attach a; attach b
        cmp /mnt/a/copy /mnt/b/copy
        cat /mnt/a/empty/name-number-200
        ls /mnt/a/many2 | wc -l
        umount /mnt/a /mnt/b"#
    );
    let paths: Vec<&Path> = images.iter().map(PathBuf::as_path).collect();
    let log = uml::run(&out, &paths, &script, Duration::from_secs(200));
    for letter in ["a", "b"] {
        let found = std::fs::read_to_string(out.join(format!("tree-{letter}"))).expect("written");
        let mut differing = expected.lines().zip(found.lines()).filter(|(a, b)| a != b);
        assert_eq!(differing.next(), None, "{letter}");
        assert_eq!(found.lines().count(), expected.lines().count());
    }
    let entries = shell("find . -printf x | wc -c", &made.tree);
    let counts = std::fs::read_to_string(out.join("counts")).expect("written");
    assert_eq!(counts, entries.repeat(3));
    assert!(log.contains("200\n"), "{log}");
    let dmesg = std::fs::read_to_string(out.join("dmesg")).expect("written");
    for line in dmesg.lines().filter(|l| l.contains("F2FS-fs")) {
        let fine = ["Mounted with checkpoint", "nat_bits"];
        assert!(fine.iter().any(|f| line.contains(f)), "{line}");
    }
    images.iter().for_each(|image| fsck(image));
}

/// Everything of a source that the library shows of a volume.
fn compare(volume: &Volume, tree: &Path, below: &str) -> usize {
    let mut count = 0;
    for entry in std::fs::read_dir(tree.join(below)).expect("a listing") {
        let name = entry.expect("an entry").file_name();
        let name = name.to_str().expect("text");
        let path = if below.is_empty() {
            name.to_owned()
        } else {
            format!("{below}/{name}")
        };
        let (host, full) = (tree.join(&path), format!("/{path}"));
        let theirs = host.symlink_metadata().expect("metadata");
        let ours = volume.symlink_metadata(&full).expect("found");
        count += 1;
        assert_eq!(ours.mode(), theirs.permissions().mode(), "{path}");
        assert_eq!(
            (ours.uid(), ours.gid()),
            (theirs.uid(), theirs.gid()),
            "{path}"
        );
        if theirs.is_dir() {
            count += compare(volume, tree, &path);
            continue;
        }
        assert_eq!(u64::from(ours.nlink()), theirs.nlink(), "{path}");
        if theirs.is_symlink() {
            let (a, b) = (volume.read_link(&full), std::fs::read_link(&host));
            let (a, b) = (a.expect("a target"), b.expect("a target"));
            assert_eq!(a.as_os_str().as_bytes(), b.as_os_str().as_bytes(), "{path}");
        } else if theirs.is_file() {
            assert_eq!(ours.len(), theirs.len(), "{path}");
            if theirs.len() < 40 << 20 {
                let (a, b) = (volume.read(&full), std::fs::read(&host));
                assert!(a.expect("contents") == b.expect("contents"), "{path}");
            }
        }
    }
    count
}

#[test]
fn androids_set_is_checked_and_read_back() {
    if !root() {
        return;
    }
    let made = made();
    let path = build(&made, "android", ANDROID, Some(300 << 20));
    fsck(&path);
    let volume = Volume::open_read_only(&path).expect("opened");
    let count = compare(&volume, &made.tree, "");
    assert!(count > 1500, "{count}");
    let names = volume.list_xattr("/files/file4097").expect("names");
    assert_eq!(names.len(), 60);
    let file = volume.open_file("/files/sparse").expect("opened");
    let mut buf = vec![0; 5000];
    assert_eq!(file.read_at(&mut buf, 2_100_000 << 12).expect("read"), 5000);
    assert!(buf == bytes(4, 5000));
    volume.close().expect("closed");
}

#[test]
fn the_smallest_size_is_the_smallest_and_deterministic() {
    if !root() {
        return;
    }
    let made = made();
    let make = |name: &str, size: Option<u64>, free: u64| {
        let path = made.dir.path().join(name);
        let builder = VolumeBuilder::new()
            .format(Format::F2fs)
            .features("extra_attr,inode_crtime")
            .uuid([9; 16])
            .source_date_epoch(1_700_000_000)
            .from(&made.tree);
        let builder = match size {
            Some(bytes) => builder.size(bytes),
            None => builder.size_auto(free),
        };
        builder.create(&path).map(|report| (path, report))
    };
    let (first, report) = make("first", None, 0).expect("made");
    fsck(&first);
    let e = make("smaller", Some(report.bytes - (2 << 20)), 0).expect_err("too small");
    assert_eq!(e.kind(), blockwright::ErrorKind::NoSpace, "{e}");
    let (again, _) = make("again", None, 0).expect("made");
    assert!(std::fs::read(&first).expect("read") == std::fs::read(&again).expect("read"));
    let (roomy, report) = make("roomy", None, 20 << 20).expect("made");
    assert!(report.free_blocks * 4096 >= 20 << 20);
    fsck(&roomy);
    // What no one wrote takes no space.
    let used = roomy.metadata().expect("made").blocks() * 512;
    assert!(
        used < report.bytes - (15 << 20),
        "{used} of {}",
        report.bytes
    );
}

#[test]
fn what_f2fs_does_not_have_is_refused_by_name() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("image");
    let base = || VolumeBuilder::new().format(Format::F2fs).size(100 << 20);
    for (builder, word) in [
        (base().inode_size(512), "inode size"),
        (base().inodes(7), "number of inodes"),
        (base().journal_bytes(1 << 20), "journal"),
        (base().reserved_percent(3.0), "reserved"),
        (base().block_size(1024), "4096"),
        (base().features("has_journal"), "has_journal"),
        (base().features("blkzoned"), "blkzoned"),
        (base().features("inode_checksum"), "extra_attr"),
        (base().size(20 << 20), "too small"),
    ] {
        let e = builder.create(&path).expect_err(word);
        assert!(e.to_string().contains(word), "{e}");
        assert!(!path.exists(), "{word}");
    }
}
