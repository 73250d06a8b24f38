//! `mkfs --verity`: veritysetup is the oracle, in both directions.

mod common;

use blockwright_test_support::uml;
use common::run::{bw, good, hash, json, refused, source_tree};
use common::{Scratch, check_clean, e2fsck_clean, have, ok, output, program};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

fn verify(image: &Path, tree: &Path, offset: u64, root: &str) -> bool {
    let out = output(
        Command::new("veritysetup")
            .arg("verify")
            .args([image, tree])
            .arg(root)
            .arg(format!("--hash-offset={offset}")),
    );
    out.status.success()
}

/// The tree behind a volume and in a file of its own is what veritysetup verifies, and what it makes itself.
#[test]
fn trees_are_those_of_veritysetup() {
    if !have("veritysetup") {
        return;
    }
    let scratch = Scratch::new();
    let source = source_tree(&scratch, "source");
    let from = source.to_str().unwrap();
    // One level, two, and three: 128 blocks are 512 KiB, and 128 times that are 64 MiB.
    for (format, size) in [
        ("ext4", "512K"),
        ("ext2", "20M"),
        ("ext4", "80M"),
        ("f2fs", "100M"),
    ] {
        let what = format!("{format}, {size}");
        let sources = if size == "512K" {
            vec![]
        } else {
            vec!["--from", from]
        };
        let image = scratch.path("disk.img");
        let _ = fs::remove_file(&image);
        let block = ["-t", format, "--size", size, "-b", "4096"];
        let args = [
            &["mkfs", "--json", "--verity", "IMAGE"],
            &block[..],
            &sources,
        ]
        .concat();
        let report = json(&image, &args);
        let (size, verity) = (report["size"].as_u64().unwrap(), &report["verity"]);
        let root = verity["root_hash"].as_str().unwrap();
        assert_eq!(verity["hash_offset"].as_u64(), Some(size), "{what}");
        let all = size + verity["tree_bytes"].as_u64().unwrap();
        assert_eq!(fs::metadata(&image).unwrap().len(), all, "{what}");
        assert!(verify(&image, &image, size, root), "{what}");
        check_clean(&image, &what);
        if format != "f2fs" {
            e2fsck_clean(&image, &what);
        }
        // The same tree from their side: in a file of its own it begins at 0.
        let theirs = scratch.path("theirs");
        let _ = fs::remove_file(&theirs);
        let made = ok(Command::new("veritysetup")
            .arg("format")
            .args([&image, &theirs])
            .arg(format!("--salt={}", verity["salt"].as_str().unwrap()))
            .arg(format!("--uuid={}", report["uuid"].as_str().unwrap()))
            .arg(format!("--data-blocks={}", verity["data_blocks"])));
        assert!(made.contains(root), "{what}: {made}");
        let bytes = fs::read(&image).unwrap();
        let tree = fs::read(&theirs).unwrap();
        // Theirs says nothing of the rest of the superblock's block.
        assert!(bytes[size as usize..] == tree[..], "{what}");
        // A block that is not the one of the build.
        let file = fs::OpenOptions::new().write(true).open(&image).unwrap();
        file.write_all_at(&[bytes[5000] ^ 1], 5000).unwrap();
        assert!(!verify(&image, &image, size, root), "{what}");
    }
}

/// The sums of all files below a directory, by a shell that is in it.
const SUMS: &str = "find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum";

/// A kernel's dm-verity opens trees of ours, behind a volume and in a file; the volumes are mounted through it. What is not what the tree says cannot be read.
#[test]
fn a_kernel_reads_through_trees_of_ours() {
    if !have("veritysetup") || !uml::available() {
        return;
    }
    let scratch = Scratch::new();
    let source = source_tree(&scratch, "source");
    fs::write(source.join("large"), vec![0x6B; 9 << 20]).unwrap();
    let from = source.to_str().unwrap();
    let (one, two, tree) = (
        scratch.path("one.img"),
        scratch.path("two.img"),
        scratch.path("two.tree"),
    );
    let make = |image: &Path, args: &[&str]| {
        let start = ["mkfs", "--json", "IMAGE", "--from", from, "-b", "4096"];
        let report = json(image, &[&start[..], args].concat());
        let root = report["verity"]["root_hash"].as_str().unwrap().to_owned();
        (report["size"].as_u64().unwrap(), root)
    };
    let (size, first) = make(&one, &["--size", "32M", "--verity"]);
    let tree_file = ["--verity-tree", tree.to_str().unwrap()];
    let f2fs = [
        &["-t", "f2fs", "--size", "64M", "--verity=5a"],
        &tree_file[..],
    ]
    .concat();
    let (_, second) = make(&two, &f2fs);
    // A block in the middle of the large file.
    let damaged = scratch.path("damaged.img");
    let mut bytes = fs::read(&one).unwrap();
    let middle = bytes.windows(4096).step_by(4096);
    let places: Vec<usize> = middle
        .enumerate()
        .filter(|(_, block)| block.iter().all(|b| *b == 0x6B))
        .map(|(n, _)| n)
        .collect();
    bytes[places[places.len() / 2] * 4096 + 77] ^= 1;
    fs::write(&damaged, bytes).unwrap();
    let script = format!(
        r"
export DM_DISABLE_UDEV=1
mount -t tmpfs none /run
for m in dm-mod dm-bufio dm-verity; do insmod $modules/drivers/md/$m.ko; done
# Opens /dev/ubdDATA by the tree in /dev/ubdTREE, mounts it, and reads all of it.
through() {{
    veritysetup open /dev/ubd$2 $1 /dev/ubd$3 $4 --hash-offset=$5
    mkdir /mnt/$1
    mount -t $6 -o ro /dev/mapper/$1 /mnt/$1
    (cd /mnt/$1 && {SUMS}) > $OUT/$1
    umount /mnt/$1
    veritysetup close $1
}}
through one a a {first} {size} ext4
through two b c {second} 0 f2fs
veritysetup open /dev/ubdd damaged /dev/ubdd {first} --hash-offset={size}
if dd if=/dev/mapper/damaged of=/dev/null bs=1M; then exit 7; fi
mkdir /mnt/damaged
mount -t ext4 -o ro /dev/mapper/damaged /mnt/damaged
if cat /mnt/damaged/large > /dev/null; then exit 8; fi
umount /mnt/damaged
veritysetup close damaged
# The root of another tree.
if veritysetup open /dev/ubda other /dev/ubda {second} --hash-offset={size}; then
    if dd if=/dev/mapper/other of=/dev/null bs=4096 count=1; then exit 9; fi
    veritysetup close other
fi
"
    );
    let out = scratch.dir("out");
    let images = [&*one, &*two, &*tree, &*damaged];
    uml::run(&out, &images, &script, Duration::from_secs(300));
    let expected = output(Command::new("sh").args(["-c", SUMS]).current_dir(&source)).stdout;
    assert!(expected.split(|b| *b == b'\n').count() > 3);
    for name in ["one", "two"] {
        // Names are bytes.
        let found = fs::read(out.join(name)).unwrap();
        let (found, expected) = (found.escape_ascii(), expected.escape_ascii());
        assert_eq!(found.to_string(), expected.to_string(), "{name}");
    }
}

#[test]
fn salts_files_and_mistakes() {
    let scratch = Scratch::new();
    let source = source_tree(&scratch, "source");
    let from = source.to_str().unwrap();
    let (image, tree) = (scratch.path("disk.img"), scratch.path("disk.verity"));
    let path = tree.to_str().unwrap();
    let make = |args: &[&str]| {
        let _ = fs::remove_file(&image);
        let mut mkfs = program();
        mkfs.env("SOURCE_DATE_EPOCH", "1700000000")
            .args(["mkfs", "-q", "--from", from])
            .args(args)
            .arg(&image);
        ok(&mut mkfs).trim().to_owned()
    };
    // -q prints the root hash alone, and the same input has the same.
    let first = make(&["--verity"]);
    assert!(
        first.len() == 64 && first.bytes().all(|b| b.is_ascii_hexdigit()),
        "{first}"
    );
    let whole = hash(&image);
    assert_eq!(make(&["--verity"]), first);
    assert!(hash(&image) == whole);
    let salted = make(&["--verity=00ff", "--verity-tree", path]);
    assert_ne!(salted, first);
    if have("veritysetup") {
        assert!(verify(&image, &tree, 0, &salted));
    }
    // No salt at all, over the longer tree that was there.
    fs::write(&tree, vec![1; 9 << 20]).unwrap();
    let plain = make(&["--verity=", "--verity-tree", path]);
    assert!(fs::metadata(&tree).unwrap().len() < 1 << 20);
    if have("veritysetup") {
        assert!(verify(&image, &tree, 0, &plain));
    }
    fs::remove_file(&image).unwrap();
    let refuse = |args: &[&str], code: i32, says: &[&str]| {
        refused(
            &mut bw(&image, &[&["mkfs", "IMAGE"][..], args].concat()),
            code,
            says,
        );
        assert!(!image.exists(), "{args:?}");
    };
    refuse(
        &["--size", "8M", "--verity=xyz"],
        2,
        &["`xyz` is not a salt"],
    );
    refuse(&["--size", "8M", "--verity-tree", path], 2, &["--verity"]);
    refuse(
        &[
            "--size",
            "8M",
            "--verity",
            "--verity-tree",
            "/no/such/dir/x",
        ],
        1,
        &["/no/such/dir/x"],
    );
    // A volume with a tree behind it is mounted and read like any other.
    make(&["--verity"]);
    assert_eq!(good(&image, &["cat", "IMAGE:/sub/file"]), "contents");
}
