//! What users do wrong, each with what they are told, and with what exit code.

mod common;

use common::run::{bw, good, hash, refused, with_input};
use common::{Mounted, Scratch, have, have_fuse, have_kernel, ok, our_mkfs, output};
use rustix::fs::{CWD, FileType, Mode};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// The name of a device that does not exist is mistyped: a new image there would be a file in the host's memory.
#[test]
fn no_image_is_made_among_devices() {
    let scratch = Scratch::new();
    let image = scratch.path("disk.img");
    let create = ["disk", "create", "-q", "-o", "IMAGE", "swap=:swap:4M"];
    ok(&mut bw(&image, &create));
    let link = scratch.path("devices");
    std::os::unix::fs::symlink("/dev", &link).unwrap();
    let through_a_link = link.join("blockwright-none");
    for path in [
        "/dev/blockwright-none",
        "/dev/mapper/blockwright-none",
        "/dev/disk/by-id/blockwright-none",
        "/dev/shm/../blockwright-none",
        through_a_link.to_str().unwrap(),
    ] {
        for args in [
            &["mkfs", path, "1M"][..],
            &["disk", "create", "-o", path, "swap=:swap:4M"],
            &["disk", "convert", "IMAGE", path],
            &["disk", "extract", "IMAGE:p1", "-o", path],
        ] {
            refused(&mut bw(&image, args), 1, &["no such device"]);
            assert!(!Path::new(path).exists(), "{args:?}");
        }
    }
    if Path::new("/dev/shm").is_dir() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let made = dir.path().join("a.img");
        ok(&mut bw(&made, &["mkfs", "-q", "IMAGE", "1M"]));
    }
}

/// What is no archive is not taken for an empty one because it begins with zeroes.
#[test]
fn an_image_is_no_archive() {
    let scratch = Scratch::new();
    let (image, new) = (scratch.path("disk.img"), scratch.path("new.img"));
    our_mkfs(&image, &[], "2M");
    let mkfs = |source: &str| bw(&new, &["mkfs", "--from", source, "IMAGE"]);
    refused(
        &mut mkfs(image.to_str().unwrap()),
        1,
        &["disk.img", "not a tar archive"],
    );
    let bytes = fs::read(&image).unwrap();
    let out = with_input(&mut mkfs("-"), &bytes);
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{text}");
    assert!(text.contains("standard input: "), "{text}");
    assert!(!new.exists());
    // An empty archive is one, however long.
    let empty = scratch.path("empty.tar");
    fs::write(&empty, [0; 10_240]).unwrap();
    ok(&mut mkfs(empty.to_str().unwrap()));
    fs::remove_file(&new).unwrap();
    let out = with_input(&mut mkfs("-"), &[0; 512]);
    assert!(out.status.success());
}

#[test]
fn values_that_no_volume_can_have_are_usage_errors() {
    let scratch = Scratch::new();
    let new = &scratch.path("new.img");
    for (option, value, says) in [
        ("-I", "100", "inode size 100"),
        ("-I", "0", "inode size 0"),
        ("-b", "3000", "3000"),
        ("-N", "4000000000", "4000000000"),
        ("-m", "51", "-m"),
        ("-J", "size=1", "256 (of 4096 bytes)"),
        ("-O", "^has_journal,nonsense", "nonsense"),
    ] {
        let args = ["mkfs", option, value, "--size", "5M", "IMAGE"];
        refused(&mut bw(new, &args), 2, &[says]);
    }
    let args = [
        "mkfs", "-t", "f2fs", "-O", "nonsense", "--size", "60M", "IMAGE",
    ];
    refused(&mut bw(new, &args), 2, &["nonsense"]);
    assert!(!new.exists());
}

/// mkfs does not wait for a writer of the pipe, and says what a dead link is.
#[test]
fn pipes_and_dead_links_are_no_images() {
    let scratch = Scratch::new();
    let (pipe, link) = (scratch.path("pipe"), scratch.path("link.img"));
    rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
    let start = Instant::now();
    for args in [&["mkfs", "--size", "5M", "IMAGE"][..], &["ls", "IMAGE"]] {
        let mut command = Command::new("timeout");
        let inner = bw(&pipe, args);
        command
            .arg("20")
            .arg(inner.get_program())
            .args(inner.get_args());
        refused(&mut command, 1, &["neither a file nor a block device"]);
    }
    assert!(start.elapsed() < Duration::from_secs(20));
    std::os::unix::fs::symlink("nothing", &link).unwrap();
    let args = ["mkfs", "--size", "5M", "IMAGE"];
    refused(&mut bw(&link, &args), 1, &["link to what does not exist"]);
}

#[test]
fn options_of_the_other_format_are_not_taken_for_done() {
    if !have_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let (ext4, f2fs) = (&scratch.path("e.img"), &scratch.path("f.img"));
    our_mkfs(ext4, &[], "8M");
    good(
        f2fs,
        &["mkfs", "-q", "-t", "f2fs", "--size", "60M", "IMAGE"],
    );
    let mnt = scratch.dir("mnt");
    let mnt = mnt.to_str().unwrap();
    for (image, option, says) in [
        (ext4, "mode=lfs", "mode is for f2fs; this is ext4"),
        (
            f2fs,
            "ro,nodelalloc",
            "nodelalloc is for ext4; this is f2fs",
        ),
    ] {
        let mut command = bw(image, &["mount", "-o", option, "IMAGE", mnt]);
        let name = image.file_name().unwrap().to_str().unwrap();
        refused(&mut command, 2, &[name, says]);
    }
    // Both can be opened again: nothing holds them.
    good(ext4, &["check", "-n", "IMAGE"]);
    good(f2fs, &["check", "-n", "IMAGE"]);
}

#[test]
fn places_are_named_with_their_image() {
    let scratch = Scratch::new();
    let image = &scratch.path("disk.img");
    our_mkfs(image, &[], "8M");
    let args = ["export", "IMAGE:/no/such"];
    let text = refused(
        &mut bw(image, &args),
        1,
        &["disk.img:/no/such: no such file"],
    );
    assert!(!text.contains("inode"), "{text}");
    // The root's other spelling is good everywhere.
    assert!(good(image, &["df", "IMAGE:"]).contains("disk.img"));
    assert!(good(image, &["df", "IMAGE:/"]).contains("disk.img"));
    let holder = fs::File::open(image).unwrap();
    rustix::fs::flock(
        &holder,
        rustix::fs::FlockOperation::NonBlockingLockExclusive,
    )
    .unwrap();
    for args in [
        &["check", "-y", "IMAGE"][..],
        &["mount", "-o", "offset=0", "IMAGE", "/"],
    ] {
        let text = String::from_utf8_lossy(&output(&mut bw(image, args)).stderr).into_owned();
        assert!(text.contains("disk.img: in use by process"), "{text}");
    }
}

#[test]
fn help_that_cannot_be_written_is_a_failure() {
    let shell = |script: &str| {
        let program = env!("CARGO_BIN_EXE_blockwright");
        output(
            Command::new("sh")
                .arg("-c")
                .arg(script)
                .arg("sh")
                .arg(program),
        )
    };
    let out = shell("\"$1\" --help > /dev/full");
    assert_eq!(out.status.code(), Some(1), "{out:?}");
    assert!(String::from_utf8_lossy(&out.stderr).contains("standard output: no space left"));
}

/// The image's own disk may be full, too: a message says which one is.
#[test]
fn a_full_standard_output_is_named() {
    let scratch = Scratch::new();
    let (image, text) = (&scratch.path("disk.img"), scratch.path("text"));
    our_mkfs(image, &[], "8M");
    fs::write(&text, "hello\n").unwrap();
    good(image, &["cp", text.to_str().unwrap(), "IMAGE:/text"]);
    for args in [
        &["ls", "IMAGE"][..],
        &["cat", "IMAGE:/text"],
        &["cp", "IMAGE:/text", "-"],
        &["info", "--json", "IMAGE"],
        &["export", "IMAGE"],
        &["completions", "bash"],
    ] {
        let full = fs::OpenOptions::new()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let says = ["standard output: no space left"];
        let text = refused(bw(image, args).stdout(full), 1, &says);
        assert!(!text.contains("os error"), "{text}");
    }
}

/// Options as find(1) has them, and a directory that is none is named once.
#[test]
fn habits_of_other_programs() {
    let scratch = Scratch::new();
    let image = &scratch.path("disk.img");
    our_mkfs(image, &[], "8M");
    good(image, &["mkdir", "IMAGE:/a", "IMAGE:/a/b"]);
    good(image, &["touch", "IMAGE:/t"]);
    let args = [
        "find",
        "IMAGE",
        "-maxdepth",
        "1",
        "-type",
        "d",
        "-name",
        "[ab]",
    ];
    assert_eq!(good(image, &args), "/a\n");
    let args = ["shell", "IMAGE", "-c", "cd /t"];
    let text = refused(&mut bw(image, &args), 1, &["/t/: not a directory"]);
    assert_eq!(text.matches("not a directory").count(), 1, "{text}");
}

/// A block device that is set read-only is refused when it is opened, by name, and mounts with `ro`.
#[test]
fn a_read_only_block_device() {
    if !have_kernel() || !have_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let image = scratch.path("disk.img");
    our_mkfs(&image, &[], "8M");
    let before = hash(&image);
    let device = ok(Command::new("losetup")
        .args(["-r", "-f", "--show"])
        .arg(&image));
    let device = Detached(device.trim().to_owned());
    let path = Path::new(&device.0);
    let mnt = scratch.dir("mnt");
    let at = mnt.to_str().unwrap();
    good(path, &["ls", "IMAGE"]);
    let says = ["the device is read-only"];
    refused(&mut bw(path, &["mkdir", "IMAGE:/x"]), 1, &says);
    refused(&mut bw(path, &["mkfs", "-F", "IMAGE"]), 1, &says);
    refused(&mut bw(path, &["check", "-y", "IMAGE"]), 8, &says);
    let hint = ["the device is read-only; `-o ro` mounts it"];
    refused(&mut bw(path, &["mount", "IMAGE", at]), 1, &hint);
    let mounted = Mounted::new(path, &mnt, "ro");
    assert!(mnt.join("lost+found").is_dir());
    mounted.unmount();
    drop(device);
    assert!(before == hash(&image));
}

struct Detached(String);

impl Drop for Detached {
    fn drop(&mut self) {
        let _ = output(Command::new("losetup").args(["-d", &self.0]));
    }
}

/// The host's disk is full: a copy says so once, not for every file that follows.
#[test]
fn a_copy_ends_when_the_volume_refuses_changes() {
    if !have_kernel() {
        return;
    }
    let scratch = Scratch::new();
    let (full, tree) = (scratch.dir("full"), scratch.dir("tree"));
    for n in 0..400 {
        fs::write(tree.join(format!("f{n}")), vec![7; 20_000]).unwrap();
    }
    let mount = ["-t", "tmpfs", "-o", "size=3m", "none"];
    ok(Command::new("mount").args(mount).arg(&full));
    let full = Unmounted(&full);
    let image = full.0.join("disk.img");
    our_mkfs(&image, &[], "60M");
    let args = ["cp", "-r", tree.to_str().unwrap(), "IMAGE:/"];
    let says = ["the host's disk is full", "space left on device"];
    let text = refused(&mut bw(&image, &args), 1, &says);
    assert!(text.lines().count() <= 4, "{text}");
    assert!(!text.contains("os error"), "{text}");
}

struct Unmounted<'a>(&'a Path);

impl Drop for Unmounted<'_> {
    fn drop(&mut self) {
        let _ = output(Command::new("umount").arg("-l").arg(self.0));
    }
}

/// With the first superblock gone, a copy of it still opens the volume, as the documentation says.
#[test]
fn a_wiped_superblock() {
    if !have_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let image = &scratch.path("disk.img");
    our_mkfs(image, &["-b", "1024"], "16M");
    let mut bytes = fs::read(image).unwrap();
    bytes[1024..2048].fill(0);
    fs::write(image, bytes).unwrap();
    refused(&mut bw(image, &["ls", "IMAGE"]), 1, &["no file system"]);
    let mnt = scratch.dir("mnt");
    let at = mnt.to_str().unwrap();
    let wrong = ["mount", "-o", "ro,sb=9999999", "IMAGE", at];
    refused(&mut bw(image, &wrong), 1, &["the device ends before"]);
    let mounted = Mounted::new(image, &mnt, "ro,sb=8193");
    assert!(mnt.join("lost+found").is_dir());
    mounted.unmount();
    let repair = output(&mut bw(image, &["check", "-y", "-b", "8193", "IMAGE"]));
    assert_eq!(repair.status.code(), Some(1), "{repair:?}");
    good(image, &["ls", "IMAGE"]);
}

/// Messages name the mistake and what to do, rather than an inner reason.
#[test]
fn common_mistakes_are_named() {
    let scratch = Scratch::new();
    let image = &scratch.path("disk.img");
    our_mkfs(image, &[], "8M");
    let text = scratch.path("notes.txt");
    fs::write(&text, "hello\n").unwrap();
    let text = text.to_str().unwrap();
    let (plain, new) = (scratch.dir("plain"), scratch.path("new.img"));
    let (plain, new) = (plain.to_str().unwrap(), new.to_str().unwrap());
    for (args, code, says) in [
        (
            &["ls", text][..],
            1,
            &["notes.txt", "too small for any file system"][..],
        ),
        (
            &["info", text],
            1,
            &["notes.txt", "too small for a superblock"],
        ),
        (
            &["check", text],
            8,
            &["notes.txt", "too small for a superblock"],
        ),
        (
            &["check", "-b", "99", "IMAGE"],
            8,
            &["disk.img", "no usable superblock copy at block 99"],
        ),
        (
            &["mkdir", "IMAGE:/lost+found"],
            1,
            &["disk.img:/lost+found: already exists"],
        ),
        (
            &["ls", "no-such-image"],
            1,
            &["no-such-image: no such file or directory"],
        ),
        (&["rm", "IMAGE:/"], 1, &["the root directory cannot be"]),
        (&["mkdir", "IMAGE:/"], 1, &["the root directory cannot be"]),
        (
            &["chmod", "abc", "IMAGE:/"],
            2,
            &["`abc` is not a mode", "644"],
        ),
        (
            &["getxattr", "--name", "plain", "IMAGE:/"],
            1,
            &["`plain` does not begin with a namespace", "`user.plain`"],
        ),
        (
            &["cp", text, text, "IMAGE:/new"],
            1,
            &["disk.img:/new", "not a directory (several files"],
        ),
        (
            &["quota", "IMAGE", "user", "bob"],
            2,
            &["bob", "a number is needed"],
        ),
        // It would trim the file system that the directory lies on.
        (&["trim", plain], 1, &["not a mount point"]),
        // It would be a file in the host's memory.
        (
            &["mkfs", "/dev/blockwright-none", "1M"],
            1,
            &["/dev/blockwright-none: no such device"],
        ),
        (
            &["mkfs", new, "1000"],
            1,
            &["too small for a file system", "at least", "KiB are needed"],
        ),
        (
            &["setxattr", "--name", "user.", "--value", "x", "IMAGE:/"],
            1,
            &["`user.` is a namespace, with no name behind it"],
        ),
        (
            &["find", "IMAGE", "--name", "["],
            2,
            &["--name: the pattern `[`: unclosed"],
        ),
        (
            &["tree", "-L", "deep", "IMAGE"],
            2,
            &["`deep` is not a number"],
        ),
        (
            &["mkfs", "-N", "1K", new, "8M"],
            2,
            &["`1K` is not a number"],
        ),
        // Its kind is wrong, and not its size.
        (
            &["disk", "create", "-o", new, "a=:ext5:8M"],
            2,
            &["`ext5` is no type"],
        ),
        (
            &["disk", "create", "-o", new, "a=notes:none"],
            2,
            &["`none` is no type"],
        ),
        (
            &[
                "mkfs",
                "-t",
                "f2fs",
                "-E",
                "hash_seed=11111111-1111-1111-1111-111111111111",
                new,
                "60M",
            ],
            2,
            &["hash seed", "f2fs volumes have none"],
        ),
        (&["set", "IMAGE", "fast=1"], 2, &["unknown setting `fast`"]),
        (&["set", "IMAGE", "label"], 2, &["a setting is NAME=VALUE"]),
        (
            &["ls", "IMAGE", "--overlay", "none.qcow2"],
            1,
            &["the overlay none.qcow2: no such file or directory"],
        ),
    ] {
        refused(&mut bw(image, args), code, says);
    }
}

/// The helper's own message does not say what to do about it.
#[test]
fn a_user_who_may_not_open_the_fuse_device_is_told_what_to_do() {
    if !have_fuse() || !have_kernel() || !have("unshare") || !have("setpriv") {
        return;
    }
    let dir = tempfile::Builder::new()
        .prefix("bw-device-")
        .tempdir_in("/var/tmp")
        .unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::copy(env!("CARGO_BIN_EXE_blockwright"), path("blockwright")).unwrap();
    our_mkfs(&path("disk.img"), &["--owner", "1234:1234"], "8M");
    fs::create_dir(path("mnt")).unwrap();
    for name in ["", "disk.img", "mnt"] {
        std::os::unix::fs::chown(path(name), Some(1234), Some(1234)).unwrap();
    }
    // In a namespace of its own, in which root alone may open the device.
    fs::write(path("device"), "").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(path("device"), mode).unwrap();
    let script = "mount --bind device /dev/fuse
        exec setpriv --reuid=1234 --regid=1234 --clear-groups ./blockwright mount -f disk.img mnt";
    refused(
        Command::new("unshare")
            .args(["-m", "sh", "-ec", script])
            .current_dir(dir.path()),
        1,
        &[
            "/dev/fuse: this user may not open it",
            "chmod 666 /dev/fuse",
        ],
    );
}

/// The number behind these words.
fn number_after(text: &str, words: &str) -> u64 {
    let (_, rest) = text.split_once(words).unwrap_or_else(|| panic!("{text}"));
    let digits = rest.trim_start().split(|c: char| !c.is_ascii_digit());
    digits.into_iter().next().unwrap().parse().unwrap()
}

#[test]
fn a_size_that_is_too_small_comes_with_one_that_works() {
    for format in ["ext4", "f2fs"] {
        let scratch = Scratch::new();
        let image = &scratch.path("disk.img");
        good(image, &["mkfs", "-q", "-t", format, "IMAGE", "100M"]);
        let bytes: Vec<u8> = (0..20_000_000u32).map(|n| (n % 251) as u8).collect();
        let mut cp = bw(image, &["cp", "-", "IMAGE:/data"]);
        assert!(with_input(&mut cp, &bytes).status.success());
        let before = hash(image);
        let mut least = 0;
        for size in ["4K", "12M"] {
            for more in [
                &["resize", "IMAGE", size][..],
                &["resize", "IMAGE", size, "--sandbox=off"],
            ] {
                let told = refused(&mut bw(image, more), 1, &["the smallest size is"]);
                least = number_after(&told, "the smallest size is");
            }
        }
        assert_eq!(hash(image), before, "{format}");
        good(image, &["resize", "IMAGE", &least.to_string()]);
        good(image, &["check", "-n", "IMAGE"]);
        assert_eq!(fs::metadata(image).unwrap().len(), least);
    }
}

#[test]
fn a_disk_without_room_says_how_much_longer_it_must_be() {
    for table in [&[][..], &["--mbr"]] {
        let scratch = Scratch::new();
        let image = &scratch.path("disk.img");
        let parts = [
            "a=:swap:8M",
            "b=:swap:8M",
            "c=:swap:8M",
            "d=:swap:8M",
            "e=:swap:8M",
        ];
        let create = ["disk", "create", "-q", "-o", "IMAGE"];
        good(image, &[&create[..], table, &parts].concat());
        let add = ["disk", "add", "-q", "IMAGE", "more=:swap:20M"];
        let told = refused(&mut bw(image, &add), 1, &["20971520 are needed"]);
        let more = number_after(&told, "a disk that is");
        let file = fs::OpenOptions::new().write(true).open(image).unwrap();
        let length = file.metadata().unwrap().len();
        file.set_len(length + more - 1024 * 1024).unwrap();
        refused(&mut bw(image, &add), 1, &["are needed"]);
        file.set_len(length + more).unwrap();
        good(image, &add);
    }
}

/// Contents of small files are in their inodes, and no block is copied: that is not "0 B copied".
#[test]
fn small_files_are_not_reported_as_no_bytes() {
    let scratch = Scratch::new();
    let tree = scratch.dir("tree");
    fs::write(tree.join("small"), "three").unwrap();
    let tree = tree.to_str().unwrap();
    for (options, blocks) in [
        (&["-t", "f2fs"][..], false),
        (&["-O", "inline_data"], false),
        (&[], true),
    ] {
        let image = &scratch.path("disk.img");
        let args = ["mkfs", "-F", "--size", "60M", "--from", tree, "IMAGE"];
        let told = good(image, &[&args[..], options].concat());
        assert!(told.contains("1 file, 0 directories, "), "{told}");
        assert!(!told.contains("0 B"), "{told}");
        assert_eq!(told.contains(" copied in "), blocks, "{told}");
        fs::remove_file(image).unwrap();
    }
}
