//! Bad images, locked images, wrong arguments: every command fails with a code and a message that names the place,
//! and nothing is changed.

mod common;

use common::run::{bw, good, hash, refused};
use common::{Scratch, have_fuse, our_mkfs, output};
use rustix::fs::FlockOperation;
use std::fs;

/// Bad images: every command fails, names the place, and changes nothing.
#[test]
fn bad_images_are_refused_and_left_alone() {
    let scratch = Scratch::new();
    let whole = scratch.path("whole.img");
    our_mkfs(&whole, &[], "32M");
    let bytes = fs::read(&whole).unwrap();
    let bad = |name: &str, contents: &[u8]| {
        let path = scratch.path(name);
        fs::write(&path, contents).unwrap();
        path
    };
    let mut magic = bytes.clone();
    magic[1024 + 0x38] ^= 0xFF;
    let mut sums = bytes.clone();
    sums[1024 + 0x78] ^= 0xFF;
    let mut absurd = bytes.clone();
    absurd[1024 + 0x18..1024 + 0x1C].copy_from_slice(&[0xFF; 4]);
    let images = [
        bad("empty.img", b""),
        bad("short.img", &bytes[..1500]),
        bad("truncated.img", &bytes[..1 << 20]),
        bad("zeroes.img", &vec![0; 1 << 20]),
        bad("text.img", "not a file system\n".repeat(1000).as_bytes()),
        bad("magic.img", &magic),
        bad("checksum.img", &sums),
        bad("absurd.img", &absurd),
        scratch.path("missing.img"),
        scratch.dir("directory.img"),
    ];
    let a = scratch.path("a");
    fs::write(&a, "x").unwrap();
    let a = a.to_str().unwrap();
    let commands: &[&[&str]] = &[
        &["ls", "IMAGE"],
        &["tree", "IMAGE"],
        &["cat", "IMAGE:/x"],
        &["cp", a, "IMAGE:/x"],
        &["cp", "IMAGE:/x", "-"],
        &["mv", "IMAGE:/x", "IMAGE:/y"],
        &["rm", "-rf", "IMAGE:/x"],
        &["mkdir", "IMAGE:/x"],
        &["ln", "-s", "x", "IMAGE:/y"],
        &["stat", "IMAGE:/"],
        &["chmod", "755", "IMAGE:/"],
        &["chown", "1", "IMAGE:/"],
        &["getxattr", "IMAGE:/"],
        &["setxattr", "-n", "user.x", "IMAGE:/"],
        &["du", "IMAGE"],
        &["df", "IMAGE"],
        &["export", "IMAGE"],
        &["extents", "IMAGE:/"],
        &["info", "IMAGE"],
        &["info", "--json", "IMAGE"],
    ];
    for image in &images {
        let before = image.is_file().then(|| hash(image));
        let name = image.file_name().unwrap().to_str().unwrap();
        for args in commands {
            if args[0] == "cp" && image.is_dir() {
                // What is below a local directory is a local path.
                refused(&mut bw(image, args), 2, &["IMAGE:/path"]);
                continue;
            }
            refused(&mut bw(image, args), 1, &[name, "blockwright: "]);
        }
        if have_fuse() {
            refused(
                &mut bw(
                    image,
                    &["mount", "IMAGE", scratch.dir("mnt").to_str().unwrap()],
                ),
                1,
                &[name],
            );
        }
        if let Some(before) = before {
            assert!(before == hash(image), "{name} was changed");
        } else {
            assert!(!scratch.path("missing.img").exists());
        }
    }
    // What is wrong is said.
    let says = |name: &str, what: &str| {
        refused(&mut bw(&scratch.path(name), &["ls", "IMAGE"]), 1, &[what])
    };
    says("missing.img", "no such file");
    says("directory.img", "directory");
    says("zeroes.img", "zeroes");
    says("checksum.img", "checksum");
}

/// `info` tells what it can of a cut image, and that it is one, and which part of it is missing.
#[test]
fn what_a_cut_image_lacks_is_said() {
    let scratch = Scratch::new();
    let image = &scratch.path("disk.img");
    for (format, size, first, last) in [("ext4", "32M", 1024, 32767), ("f2fs", "64M", 256, 16383)] {
        let args = ["mkfs", "-q", "-F", "-t", format, "--size", size, "IMAGE"];
        good(image, &args);
        good(image, &["info", "IMAGE"]);
        let file = fs::OpenOptions::new().write(true).open(image).unwrap();
        file.set_len(1 << 20).unwrap();
        let missing = format!("ends after 1048576 bytes: blocks {first} to {last} are missing");
        let mut command = bw(image, &["info", "--json", "IMAGE"]);
        refused(&mut command, 1, &["disk.img: superblock", &missing]);
        let told = serde_json::from_slice::<serde_json::Value>(&output(&mut command).stdout);
        assert_eq!(told.unwrap()["device_size"], 1 << 20);
        let text = output(&mut bw(image, &["info", "IMAGE"])).stdout;
        assert!(String::from_utf8_lossy(&text).contains("TRUNCATED"));
    }
}

#[test]
fn read_only_files_and_locked_images() {
    let scratch = Scratch::new();
    let image = &scratch.path("disk.img");
    our_mkfs(image, &[], "16M");
    let before = hash(image);
    // Another process has it: exclusively as a writer would, then shared as readers do.
    let holder = fs::File::open(image).unwrap();
    rustix::fs::flock(&holder, FlockOperation::NonBlockingLockExclusive).unwrap();
    for args in [
        &["ls", "IMAGE"][..],
        &["mkdir", "IMAGE:/x"],
        &["mkfs", "-F", "--size", "16M", "IMAGE"],
    ] {
        refused(&mut bw(image, args), 1, &["disk.img", "in use"]);
    }
    refused(
        &mut bw(image, &["check", "-y", "IMAGE"]),
        8,
        &["disk.img", "in use"],
    );
    good(image, &["info", "IMAGE"]);
    rustix::fs::flock(&holder, FlockOperation::NonBlockingLockShared).unwrap();
    good(image, &["ls", "IMAGE"]);
    refused(&mut bw(image, &["mkdir", "IMAGE:/x"]), 1, &["in use"]);
    drop(holder);
    assert!(before == hash(image));
    // mkfs asks before it overwrites.
    refused(
        &mut bw(image, &["mkfs", "--size", "16M", "IMAGE"]),
        1,
        &["-F"],
    );
    assert!(before == hash(image));
    good(image, &["ls", "IMAGE"]);
    assert!(before == hash(image), "reading changes nothing");
}

#[test]
fn usage_errors() {
    let scratch = Scratch::new();
    let image = &scratch.path("disk.img");
    our_mkfs(image, &[], "16M");
    let before = hash(image);
    refused(&mut bw(image, &["frobnicate"]), 2, &["frobnicate"]);
    refused(
        &mut bw(image, &["ls", "--frobnicate", "IMAGE"]),
        2,
        &["--frobnicate"],
    );
    refused(&mut bw(image, &["ls"]), 2, &["PATHS"]);
    refused(&mut bw(image, &["cat", "IMAGE"]), 1, &["IMAGE:/path"]);
    let mnt = scratch.dir("mnt");
    let mnt = mnt.to_str().unwrap();
    refused(
        &mut bw(image, &["mount", "-o", "frobnicate", "IMAGE", mnt]),
        2,
        &["frobnicate"],
    );
    refused(
        &mut bw(image, &["mount", "IMAGE", "/none/such"]),
        1,
        &["/none/such"],
    );
    refused(
        &mut bw(image, &["mount", "IMAGE", "IMAGE"]),
        1,
        &["not a directory"],
    );
    refused(&mut bw(image, &["umount", mnt]), 1, &["not mounted"]);
    refused(&mut bw(image, &["umount", "/proc"]), 1, &["proc"]);
    let new = &scratch.path("new.img");
    refused(&mut bw(new, &["mkfs", "IMAGE"]), 2, &["--size"]);
    refused(
        &mut bw(new, &["mkfs", "--size", "16M", "-O", "frobnicate", "IMAGE"]),
        2,
        &["features", "frobnicate"],
    );
    refused(
        &mut bw(new, &["mkfs", "--size", "16M", "-b", "1000", "IMAGE"]),
        2,
        &["1000"],
    );
    refused(
        &mut bw(new, &["mkfs", "--size", "16M", "-U", "x", "IMAGE"]),
        2,
        &["UUID"],
    );
    refused(
        &mut bw(new, &["mkfs", "--size", "1K", "IMAGE"]),
        1,
        &["new.img"],
    );
    refused(
        &mut bw(new, &["mkfs", "--from", "/none/such", "IMAGE"]),
        1,
        &["/none/such"],
    );
    assert!(!new.exists(), "a failed mkfs leaves nothing");
    assert!(before == hash(image));
    // Help, completions, man pages.
    assert!(good(image, &["--help"]).contains("mkfs"));
    assert!(good(image, &["mount", "--help"]).contains("MOUNTPOINT"));
    for shell in ["bash", "zsh", "fish"] {
        assert!(good(image, &["completions", shell]).contains("blockwright"));
    }
    let man = scratch.path("man");
    good(image, &["man", man.to_str().unwrap()]);
    for page in ["blockwright.1", "blockwright-mkfs.1", "blockwright-mount.1"] {
        assert!(
            fs::read_to_string(man.join(page)).unwrap().contains(".TH"),
            "{page}"
        );
    }
}
