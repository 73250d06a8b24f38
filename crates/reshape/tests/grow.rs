//! Growth in every layout that `mke2fs` makes, beside `resize2fs` on the same image.

mod common;

use blockwright_device::{BlockDevice, DevOffset, Geometry, Request, SharedDevice};
use blockwright_reshape::ResizeOptions;
use blockwright_reshape::ext4::resize::{Mode, resize};
use common::{clean, contents, device, field, have_tools, mke2fs, ok, scratch, set_len, tree};
use std::fs;
use std::process::Command;
use std::sync::Arc;

/// A device that says it is larger than any file.
struct Large(SharedDevice);

impl BlockDevice for Large {
    fn geometry(&self) -> Geometry {
        Geometry {
            bytes: 1 << 50,
            ..self.0.geometry()
        }
    }

    fn submit(&self, request: Request) {
        self.0.submit(request);
    }

    fn next_data(&self, offset: DevOffset) -> DevOffset {
        self.0.next_data(offset)
    }

    fn name(&self) -> String {
        "large".into()
    }
}

/// Options of `mke2fs`, size before, sizes after in MiB.
const LAYOUTS: &[(&str, &[&str], &str, &[u64])] = &[
    (
        "ext4",
        &[
            "-t",
            "ext4",
            "-O",
            "extent,64bit,metadata_csum,flex_bg,uninit_bg,huge_file,dir_nlink,extra_isize",
            "-I",
            "256",
            "-G",
            "16",
        ],
        "24M",
        &[25, 100, 700, 9000],
    ),
    (
        "ext4 1k",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-O",
            "extent,64bit,metadata_csum,flex_bg,^resize_inode,has_journal",
            "-G",
            "4",
        ],
        "24M",
        &[33, 70, 2100],
    ),
    (
        "resize_inode 1k",
        &[
            "-b",
            "1024",
            "-O",
            "extent,has_journal,flex_bg,uninit_bg,resize_inode",
            "-G",
            "8",
        ],
        "24M",
        &[25, 64, 129, 4000],
    ),
    (
        "few reserved",
        &[
            "-b",
            "1024",
            "-O",
            "extent,has_journal,flex_bg,metadata_csum,resize_inode",
            "-E",
            "resize=200000",
        ],
        "40M",
        &[190, 1000, 5000],
    ),
    (
        "ext2",
        &["-b", "1024", "-O", "resize_inode,sparse_super,filetype"],
        "24M",
        &[25, 300],
    ),
    (
        "ext3",
        &[
            "-O",
            "resize_inode,sparse_super,filetype,has_journal,dir_index",
        ],
        "24M",
        &[200, 1000],
    ),
    (
        "no sparse_super",
        &["-b", "1024", "-O", "^sparse_super,^resize_inode,filetype"],
        "24M",
        &[60],
    ),
    (
        "meta_bg",
        &[
            "-b",
            "1024",
            "-O",
            "extent,has_journal,meta_bg,^resize_inode,64bit,metadata_csum,flex_bg",
        ],
        "24M",
        &[26, 137, 600],
    ),
    (
        "meta_bg 1 group",
        &[
            "-b",
            "1024",
            "-O",
            "extent,has_journal,meta_bg,^resize_inode,^flex_bg,uninit_bg",
        ],
        "20M",
        &[300],
    ),
    (
        "sparse_super2",
        &[
            "-O",
            "extent,has_journal,sparse_super2,^resize_inode,64bit,metadata_csum,flex_bg",
        ],
        "400M",
        &[401, 900],
    ),
    (
        "bigalloc",
        &[
            "-O",
            "extent,has_journal,bigalloc,metadata_csum,flex_bg,64bit,^resize_inode",
            "-C",
            "65536",
        ],
        "200M",
        &[260, 3000],
    ),
    (
        "orphan_file",
        &[
            "-O",
            "extent,has_journal,orphan_file,metadata_csum,flex_bg,64bit,resize_inode,metadata_csum_seed",
        ],
        "64M",
        &[400],
    ),
];

#[test]
fn grows_as_resize2fs_does() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let files = tree(dir.path());
    for (name, options, size, targets) in LAYOUTS {
        let made = dir.path().join("made");
        mke2fs(&made, options, size, &files);
        clean(&made, name);
        let before = contents(&made);
        for mib in *targets {
            let what = format!("{name} to {mib} MiB");
            let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
            fs::copy(&made, &ours).expect("copied");
            fs::copy(&made, &theirs).expect("copied");
            let bytes = mib << 20;
            set_len(&ours, bytes);
            let resized = resize(&device(&ours), &ResizeOptions::to_bytes(bytes))
                .unwrap_or_else(|e| panic!("{what}: {e}"));
            clean(&ours, &what);
            assert_eq!(contents(&ours), before, "{what}");
            ok(Command::new("resize2fs")
                .arg("-f")
                .arg(&theirs)
                .arg(format!("{mib}M")));
            for known in [
                "Block count",
                "Inode count",
                "Reserved block count",
                "Free inodes",
            ] {
                assert_eq!(
                    field(&ours, known),
                    field(&theirs, known),
                    "{what}: {known}"
                );
            }
            assert_eq!(field(&ours, "Block count"), resized.blocks.to_string());
            let free = |image| {
                field(image, "Free blocks")
                    .parse::<i64>()
                    .expect("a number")
            };
            let (a, b) = (free(&ours), free(&theirs));
            println!("{what}: {a} free, {b} by resize2fs");
            // resize2fs 1.47 counts clusters as if they were blocks, and more than there are.
            if *name == "bigalloc" {
                continue;
            }
            // Meta groups take fewer blocks for descriptors than copies everywhere, or a few more.
            assert!(
                a + resized.blocks as i64 / 200 >= b,
                "{what}: {a} free, {b} by resize2fs"
            );
            fs::remove_file(&theirs).expect("removed");
            fs::remove_file(&ours).expect("removed");
        }
        fs::remove_file(&made).expect("removed");
    }
}

#[test]
fn copies_of_the_superblock_serve() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let files = tree(dir.path());
    for (name, options, size, targets) in LAYOUTS {
        let image = dir.path().join("image");
        mke2fs(&image, options, size, &files);
        let bytes = targets.last().expect("a size") << 20;
        set_len(&image, bytes);
        resize(&device(&image), &ResizeOptions::to_bytes(bytes))
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let said = ok(Command::new("dumpe2fs").arg(&image));
        let copies = said.lines().filter_map(|line| {
            line.trim()
                .strip_prefix("Backup superblock at ")?
                .split(',')
                .next()?
                .parse::<u64>()
                .ok()
        });
        let block_size = field(&image, "Block size");
        let mut seen = 0;
        for copy in copies {
            let out = common::output(
                Command::new("e2fsck")
                    .args(["-fn", "-B", &block_size, "-b", &copy.to_string()])
                    .arg(&image),
            );
            // With a copy, e2fsck reads the bitmaps that were never written, also those of mke2fs: what it says in pass 5 counts for
            // nothing. Superblock and descriptors must lead to every file.
            let text = String::from_utf8_lossy(&out.stdout).into_owned();
            let (files, _) = text.split_once("Pass 5").unwrap_or_else(|| {
                panic!("{name}, copy {copy}: {text}");
            });
            let wrong: Vec<&str> = files
                .lines()
                .filter(|line| !line.is_empty() && !line.starts_with("Pass "))
                .collect();
            assert!(wrong.is_empty(), "{name}, copy {copy}: {wrong:?}");
            seen += 1;
            if seen == 4 {
                break;
            }
        }
        assert!(seen > 0, "{name}: {said}");
        fs::remove_file(&image).expect("removed");
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    if !have_tools() {
        return;
    }
    let dir = scratch();
    let files = tree(dir.path());
    let image = dir.path().join("image");
    mke2fs(&image, &["-t", "ext4", "-O", "^64bit"], "32M", &files);
    let untouched = fs::read(&image).expect("read");
    let refused = |bytes: u64, says: &str| {
        let error = resize(&device(&image), &ResizeOptions::to_bytes(bytes))
            .expect_err(says)
            .to_string();
        assert!(error.contains(says), "{error}");
    };
    refused(33 << 20, "fewer than");
    let large: SharedDevice = Arc::new(Large(device(&image)));
    let error = resize(&large, &ResizeOptions::to_bytes(1 << 45)).expect_err("too large");
    assert!(error.to_string().contains("64bit"), "{error}");
    drop(large);
    set_len(&image, untouched.len() as u64);
    // A mark of errors, and one of a journal to be replayed.
    for (request, says) in [
        ("ssv state 2", "check -p"),
        ("feature +needs_recovery", "replayed"),
    ] {
        fs::write(&image, &untouched).expect("written");
        ok(Command::new("debugfs")
            .args(["-w", "-R", request])
            .arg(&image));
        set_len(&image, 64 << 20);
        refused(64 << 20, says);
    }
    resize(
        &device(&image),
        &ResizeOptions::to_bytes(64 << 20).mode(Mode::DryRun),
    )
    .expect_err("not clean");
}
