//! Every command, run as users run it: on volumes of our own and of mke2fs, with good and with bad input.

mod common;

use common::{
    Scratch, available, e2fsck_clean, have, have_fuse, mke2fs, ok, our_mkfs, output, program,
};
use rustix::fs::FlockOperation;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The program with these arguments; `IMAGE` at the start of one stands for the image.
fn bw(image: &Path, args: &[&str]) -> Command {
    let mut command = program();
    for arg in args {
        match arg.strip_prefix("IMAGE") {
            Some(rest) => {
                let mut text = image.as_os_str().to_owned();
                text.push(rest);
                command.arg(text)
            }
            None => command.arg(arg),
        };
    }
    command
}

fn good(image: &Path, args: &[&str]) -> String {
    ok(&mut bw(image, args))
}

fn json(image: &Path, args: &[&str]) -> Value {
    let text = good(image, args);
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{args:?}: {e}\n{text}"))
}

fn stderr(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// Insists on failure with this code and a message that has all of these in it.
fn refused(command: &mut Command, code: i32, says: &[&str]) -> String {
    let out = output(command);
    let text = stderr(&out);
    assert_eq!(
        out.status.code(),
        Some(code),
        "{command:?}: {}\n{text}",
        out.status
    );
    for part in says {
        assert!(text.contains(part), "{command:?}: no `{part}` in:\n{text}");
    }
    assert!(!text.contains("panicked"), "{text}");
    text
}

fn hash(path: &Path) -> Vec<u8> {
    Sha256::digest(fs::read(path).unwrap()).to_vec()
}

/// Runs a command with bytes on its standard input.
fn with_input(command: &mut Command, input: &[u8]) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = child.stdin.take().unwrap();
    let input = input.to_vec();
    let feeder = std::thread::spawn(move || {
        let _ = pipe.write_all(&input);
    });
    let out = child.wait_with_output().unwrap();
    feeder.join().unwrap();
    out
}

/// A volume of each maker.
fn volumes(scratch: &Scratch) -> Vec<PathBuf> {
    let ours = scratch.path("ours.img");
    our_mkfs(&ours, &[], "32M");
    let mut all = vec![ours];
    if have("mke2fs") {
        let theirs = scratch.path("theirs.img");
        mke2fs(&theirs, &["-t", "ext4"], "32M");
        all.push(theirs);
        let old = scratch.path("old.img");
        mke2fs(&old, &["-t", "ext2", "-b", "1024"], "32M");
        all.push(old);
    }
    all
}

/// A tree on the host with one of everything that needs no root.
fn source_tree(scratch: &Scratch, name: &str) -> PathBuf {
    let dir = scratch.dir(name);
    fs::create_dir(dir.join("sub")).unwrap();
    fs::write(dir.join("sub/file"), b"contents").unwrap();
    fs::set_permissions(dir.join("sub/file"), fs::Permissions::from_mode(0o4711)).unwrap();
    fs::hard_link(dir.join("sub/file"), dir.join("linked")).unwrap();
    symlink("sub/file", dir.join("link")).unwrap();
    symlink("nowhere", dir.join("dangling")).unwrap();
    let sparse = fs::File::create(dir.join("sparse")).unwrap();
    sparse.write_all_at(b"middle", 5_000_000).unwrap();
    sparse.set_len(9_000_001).unwrap();
    fs::write(dir.join("big"), vec![0xA5; 3_000_001]).unwrap();
    fs::write(dir.join(OsStr::from_bytes(b"bytes \xff\xfe")), b"x").unwrap();
    let path = dir.join("big");
    let _ = rustix::fs::setxattr(&path, "user.note", b"kept", rustix::fs::XattrFlags::empty());
    dir
}

#[test]
fn editing_and_listing() {
    let scratch = Scratch::new();
    for image in volumes(&scratch) {
        let image = &image;
        good(image, &["mkdir", "IMAGE:/a"]);
        good(
            image,
            &["mkdir", "-p", "-m", "750", "IMAGE:/a/b/c", "IMAGE:/a"],
        );
        refused(&mut bw(image, &["mkdir", "IMAGE:/a"]), 1, &["/a", "exists"]);
        assert_eq!(
            json(image, &["stat", "--json", "IMAGE:/a/b/c"])[0]["mode"],
            "0750"
        );

        let out = with_input(&mut bw(image, &["cp", "-", "IMAGE:/a/file"]), b"hello\n");
        assert!(out.status.success(), "{}", stderr(&out));
        assert_eq!(
            good(image, &["cat", "IMAGE:/a/file", "IMAGE:/a/file"]),
            "hello\nhello\n"
        );
        assert_eq!(good(image, &["cp", "IMAGE:/a/file", "-"]), "hello\n");

        good(image, &["ln", "IMAGE:/a/file", "IMAGE:/hard"]);
        good(image, &["ln", "-s", "a/file", "IMAGE:/soft"]);
        refused(
            &mut bw(image, &["ln", "-s", "x", "IMAGE:/soft"]),
            1,
            &["exists"],
        );
        good(image, &["ln", "-sf", "a/file", "IMAGE:/soft"]);
        refused(
            &mut bw(image, &["ln", "IMAGE:/a", "IMAGE:/dirlink"]),
            1,
            &["director"],
        );
        assert_eq!(good(image, &["cat", "IMAGE:/soft"]), "hello\n");
        assert_eq!(
            json(image, &["stat", "--json", "IMAGE:/hard"])[0]["links"],
            2
        );
        assert_eq!(
            json(image, &["stat", "--json", "IMAGE:/soft"])[0]["target"],
            "a/file"
        );

        good(image, &["chmod", "u+x,go-r", "IMAGE:/hard"]);
        assert_eq!(
            json(image, &["stat", "--json", "IMAGE:/a/file"])[0]["mode"],
            "0700"
        );
        good(image, &["chmod", "-R", "a+rX", "IMAGE:/a"]);
        assert_eq!(
            json(image, &["stat", "--json", "IMAGE:/a/b/c"])[0]["mode"],
            "0755"
        );
        refused(&mut bw(image, &["chmod", "u+q", "IMAGE:/a"]), 2, &["u+q"]);
        good(image, &["chown", "-R", "12:34", "IMAGE:/a"]);
        good(image, &["chown", ":35", "IMAGE:/a"]);
        let stat = json(image, &["stat", "--json", "IMAGE:/a", "IMAGE:/a/b"]);
        assert_eq!(
            (&stat[0]["uid"], &stat[0]["gid"]),
            (&Value::from(12), &Value::from(35))
        );
        assert_eq!(
            (&stat[1]["uid"], &stat[1]["gid"]),
            (&Value::from(12), &Value::from(34))
        );
        refused(&mut bw(image, &["chown", "root", "IMAGE:/a"]), 2, &["root"]);

        good(
            image,
            &["setxattr", "-n", "user.note", "-v", "0x00ff", "IMAGE:/hard"],
        );
        good(
            image,
            &["setxattr", "-n", "user.word", "-v", "plain", "IMAGE:/hard"],
        );
        let text = good(image, &["getxattr", "IMAGE:/a/file"]);
        assert!(
            text.contains("user.note=0sAP8=") && text.contains("user.word=\"plain\""),
            "{text}"
        );
        let attributes = json(
            image,
            &["getxattr", "--json", "-n", "user.note", "IMAGE:/hard"],
        );
        assert_eq!(attributes[0]["xattrs"][0]["value_base64"], "AP8=");
        good(image, &["setxattr", "-x", "user.note", "IMAGE:/hard"]);
        refused(
            &mut bw(image, &["getxattr", "-n", "user.note", "IMAGE:/hard"]),
            1,
            &["user.note", "no such attribute"],
        );

        let text = good(image, &["ls", "-l", "IMAGE"]);
        assert!(
            text.contains("lrwxrwxrwx 1  0  0 ") && text.contains("soft -> a/file"),
            "{text}"
        );
        assert_eq!(good(image, &["ls", "IMAGE:/a"]), "b\nfile\n");
        assert_eq!(good(image, &["ls", "-d", "IMAGE:/a"]), "/a\n");
        assert!(good(image, &["ls", "-R", "IMAGE"]).contains(":/a/b:\nc\n"));
        let listing = json(image, &["ls", "--json", "IMAGE:/a"]);
        assert_eq!(listing[0]["entries"][1]["name"], "file");
        assert_eq!(listing[0]["entries"][1]["size"], 6);
        let text = good(image, &["tree", "IMAGE"]);
        assert!(
            text.contains("├── a/\n│   ├── b/\n│   │   └── c/\n│   └── file\n"),
            "{text}"
        );
        assert!(!good(image, &["tree", "-L", "1", "IMAGE"]).contains("b/"));
        assert_eq!(
            json(image, &["tree", "--json", "IMAGE:/a"])["entries"][0]["entries"][0]["name"],
            "c"
        );

        good(image, &["mv", "IMAGE:/hard", "IMAGE:/a/b"]);
        good(image, &["mv", "IMAGE:/a/b", "IMAGE:/moved"]);
        assert_eq!(good(image, &["ls", "IMAGE:/moved"]), "c\nhard\n");
        refused(
            &mut bw(image, &["mv", "IMAGE:/a", "IMAGE:/a/sub"]),
            1,
            &["into itself"],
        );
        refused(
            &mut bw(image, &["mv", "IMAGE:/none", "IMAGE:/x"]),
            1,
            &["/none", "no such"],
        );
        good(image, &["mv", "-n", "IMAGE:/soft", "IMAGE:/a/file"]);
        assert_eq!(
            json(image, &["stat", "--json", "IMAGE:/a/file"])[0]["kind"],
            "file"
        );

        refused(&mut bw(image, &["rm", "IMAGE:/a"]), 1, &["/a", "directory"]);
        refused(
            &mut bw(image, &["rm", "-d", "IMAGE:/moved"]),
            1,
            &["not empty"],
        );
        refused(&mut bw(image, &["rm", "IMAGE:/none"]), 1, &["no such"]);
        good(image, &["rm", "-f", "IMAGE:/none"]);
        good(
            image,
            &["rm", "-r", "IMAGE:/a", "IMAGE:/moved", "IMAGE:/soft"],
        );
        refused(&mut bw(image, &["rm", "-r", "IMAGE:/"]), 1, &["root"]);
        assert_eq!(good(image, &["ls", "IMAGE"]), "lost+found\n");
        if have("e2fsck") {
            e2fsck_clean(image, "after editing");
        }
    }
}

#[test]
fn copies_keep_everything() {
    let scratch = Scratch::new();
    let source = source_tree(&scratch, "source");
    let source_text = source.to_str().unwrap();
    let root = rustix::process::geteuid().is_root();
    for (n, image) in volumes(&scratch).into_iter().enumerate() {
        let image = &image;
        good(image, &["cp", "-a", source_text, "IMAGE:/tree"]);
        // Inside the image, then to another one, then back to the host.
        good(image, &["cp", "-a", "IMAGE:/tree", "IMAGE:/again"]);
        let second = scratch.path(&format!("second{n}.img"));
        our_mkfs(&second, &[], "48M");
        let other = format!("{}:/", second.display());
        good(image, &["cp", "-a", "IMAGE:/again", &other]);
        let back = scratch.path(&format!("back{n}"));
        let from = format!("{}:/again", second.display());
        good(image, &["cp", "-a", &from, back.to_str().unwrap()]);

        for (name, kept) in [("big", true), ("sparse", true), ("sub/file", root)] {
            let (a, b) = (source.join(name), back.join(name));
            assert!(fs::read(&a).unwrap() == fs::read(&b).unwrap(), "{name}");
            let (a, b) = (fs::metadata(&a).unwrap(), fs::metadata(&b).unwrap());
            assert_eq!(
                (a.mtime(), a.mtime_nsec()),
                (b.mtime(), b.mtime_nsec()),
                "{name}"
            );
            if kept {
                assert_eq!(
                    (a.mode(), a.uid(), a.gid()),
                    (b.mode(), b.uid(), b.gid()),
                    "{name}"
                );
            }
        }
        assert!(
            fs::metadata(back.join("sparse")).unwrap().blocks() < 1000,
            "holes stay holes"
        );
        assert_eq!(
            fs::read_link(back.join("link")).unwrap(),
            Path::new("sub/file")
        );
        assert_eq!(
            fs::read_link(back.join("dangling")).unwrap(),
            Path::new("nowhere")
        );
        let ino = |name: &str| fs::metadata(back.join(name)).unwrap().ino();
        assert_eq!(ino("linked"), ino("sub/file"), "hard links stay together");
        assert!(back.join(OsStr::from_bytes(b"bytes \xff\xfe")).exists());
        let listing = json(image, &["ls", "--json", "IMAGE:/again"]);
        let odd = listing[0]["entries"]
            .as_array()
            .unwrap()
            .iter()
            .find(|e| e["name_base64"].is_string());
        assert!(odd.is_some(), "names that are not UTF-8 are exact in JSON");
        let mut buffer = [0u8; 16];
        if rustix::fs::getxattr(source.join("big"), "user.note", &mut buffer).is_ok() {
            let length = rustix::fs::getxattr(back.join("big"), "user.note", &mut buffer).unwrap();
            assert_eq!(&buffer[..length], b"kept");
        }
        if have("e2fsck") {
            e2fsck_clean(image, "after copying");
            e2fsck_clean(&second, "after copying");
        }

        let du = json(image, &["du", "-s", "--json", "IMAGE:/tree"]);
        let inodes = fs::read_dir(&source).unwrap().count() as u64 + 1;
        assert_eq!(
            du[0]["inodes"],
            Value::from(inodes),
            "hard links count once"
        );
        let extents = json(image, &["extents", "--json", "IMAGE:/tree/big"]);
        let total: u64 = extents[0]["extents"]
            .as_array()
            .unwrap()
            .iter()
            .map(|e| e["length"].as_u64().unwrap())
            .sum();
        assert_eq!(
            total,
            3_000_001u64.next_multiple_of(extents[0]["block_bytes"].as_u64().unwrap())
        );
        let first = extents[0]["extents"][0]["physical"].as_u64().unwrap();
        let mut bytes = [0u8; 512];
        fs::File::open(image)
            .unwrap()
            .read_exact_at(&mut bytes, first)
            .unwrap();
        assert_eq!(bytes, [0xA5; 512], "the data is where it is said to be");
        assert!(good(image, &["extents", "IMAGE:/tree/sparse"]).contains("Logical"));
    }
}

#[test]
fn the_rules_of_cp() {
    let scratch = Scratch::new();
    let image = &scratch.path("disk.img");
    our_mkfs(image, &[], "32M");
    let (a, b) = (scratch.path("a"), scratch.path("b"));
    fs::write(&a, "A").unwrap();
    fs::write(&b, "B").unwrap();
    let (a, b) = (a.to_str().unwrap(), b.to_str().unwrap());
    good(image, &["mkdir", "IMAGE:/d"]);
    good(image, &["cp", "--owner", "7:8", a, b, "IMAGE:/d"]);
    assert_eq!(good(image, &["cat", "IMAGE:/d/a", "IMAGE:/d/b"]), "AB");
    assert_eq!(json(image, &["stat", "--json", "IMAGE:/d/a"])[0]["uid"], 7);
    refused(&mut bw(image, &["cp", a, b, "IMAGE:/none"]), 1, &["/none"]);
    refused(
        &mut bw(image, &["cp", a, b, "IMAGE:/d/a"]),
        1,
        &["not a directory"],
    );
    refused(&mut bw(image, &["cp", a, "IMAGE:/none/"]), 1, &["/none/"]);
    refused(
        &mut bw(image, &["cp", "IMAGE:/d", "IMAGE:/e"]),
        1,
        &["directory", "-r"],
    );
    refused(
        &mut bw(image, &["cp", "-r", "IMAGE:/d", "IMAGE:/d/e"]),
        1,
        &["into itself"],
    );
    refused(
        &mut bw(image, &["cp", "IMAGE:/d/a", "IMAGE:/d/a"]),
        1,
        &["same file"],
    );
    refused(
        &mut bw(image, &["cp", "IMAGE:/d/none", b]),
        1,
        &["/d/none", "no such"],
    );
    refused(&mut bw(image, &["cp", a, b]), 2, &["IMAGE:/path"]);
    good(image, &["cp", "-n", b, "IMAGE:/d/a"]);
    assert_eq!(good(image, &["cat", "IMAGE:/d/a"]), "A");
    good(image, &["cp", b, "IMAGE:/d/a"]);
    assert_eq!(good(image, &["cat", "IMAGE:/d/a"]), "B");
    // Into a directory that is there, onto a new name, and the contents alone.
    good(image, &["cp", "-r", "IMAGE:/d", "IMAGE:/new"]);
    good(image, &["cp", "-r", "IMAGE:/d", "IMAGE:/new"]);
    good(image, &["cp", "-r", "IMAGE:/d/.", "IMAGE:/new/d"]);
    assert_eq!(good(image, &["ls", "IMAGE:/new"]), "a\nb\nd\n");
    assert_eq!(good(image, &["ls", "IMAGE:/new/d"]), "a\nb\n");
    refused(
        &mut bw(image, &["cp", "-r", "IMAGE:/d", "IMAGE:/new/a"]),
        1,
        &["overwritten"],
    );
    // Through a symlink, and the symlink itself.
    good(image, &["ln", "-s", "d/b", "IMAGE:/link"]);
    good(image, &["cp", "IMAGE:/link", "IMAGE:/followed"]);
    good(image, &["cp", "-r", "IMAGE:/link", "IMAGE:/copied"]);
    assert_eq!(
        json(image, &["stat", "--json", "IMAGE:/followed"])[0]["kind"],
        "file"
    );
    assert_eq!(
        json(image, &["stat", "--json", "IMAGE:/copied"])[0]["target"],
        "d/b"
    );
    // One failure does not keep the others from being copied.
    refused(
        &mut bw(image, &["cp", "/none such", b, "IMAGE:/new/d"]),
        1,
        &["/none such"],
    );
    if have("e2fsck") {
        e2fsck_clean(image, "after cp");
    }
}

#[test]
fn reports() {
    let scratch = Scratch::new();
    let image = &scratch.path("disk.img");
    our_mkfs(
        image,
        &["-L", "named", "-U", "01234567-89ab-cdef-0123-456789abcdef"],
        "64M",
    );
    let info = json(image, &["info", "--json", "IMAGE"]);
    assert_eq!(info["label"], "named");
    assert_eq!(info["uuid"], "01234567-89ab-cdef-0123-456789abcdef");
    assert_eq!(info["format"], "ext4");
    assert_eq!(info["state"][0], "clean");
    assert_eq!(info["checksum_ok"], true);
    assert_eq!(info["size"], 64 << 20);
    let text = good(image, &["info", "IMAGE"]);
    assert!(
        text.contains("named") && text.contains("Journal:"),
        "{text}"
    );
    let df = json(image, &["df", "--json", "IMAGE"]);
    let number = |key: &str| df[key].as_u64().unwrap();
    assert_eq!(number("used") + number("free"), number("size"));
    assert_eq!(
        number("inodes_used") + number("inodes_free"),
        number("inodes")
    );
    assert!(good(image, &["df", "IMAGE"]).contains("Use%"));
    let check = json(image, &["check", "--json", "IMAGE"]);
    assert_eq!(
        (&check["clean"], &check["exit_code"]),
        (&Value::from(true), &Value::from(0))
    );
    assert!(good(image, &["check", "-n", "IMAGE"]).contains("clean"));
    // dumpe2fs agrees.
    if have("dumpe2fs") {
        let theirs = ok(Command::new("dumpe2fs").arg("-h").arg(image));
        let field = |name: &str| {
            let line = theirs.lines().find(|l| l.starts_with(name)).unwrap();
            line.split_once(':').unwrap().1.trim().to_owned()
        };
        assert_eq!(field("Free blocks"), info["blocks_free"].to_string());
        assert_eq!(field("Inode count"), info["inodes"].to_string());
        let mut names: Vec<&str> = info["features"]
            .as_array()
            .unwrap()
            .iter()
            .map(|f| f.as_str().unwrap())
            .collect();
        let features = field("Filesystem features");
        let mut expected: Vec<&str> = features.split_whitespace().collect();
        names.sort_unstable();
        expected.sort_unstable();
        assert_eq!(names, expected);
    }
    let made = json(
        &scratch.path("made.img"),
        &["mkfs", "--json", "--size", "16M", "-t", "ext2", "IMAGE"],
    );
    assert_eq!(
        (&made["format"], &made["size"]),
        (&Value::from("ext2"), &Value::from(16 << 20))
    );
}

#[test]
fn damage_is_found_and_repaired_with_fsck_codes() {
    let scratch = Scratch::new();
    let image = &scratch.path("disk.img");
    our_mkfs(image, &[], "32M");
    // A wrong number of free blocks, with a right checksum no longer.
    let file = fs::OpenOptions::new()
        .write(true)
        .read(true)
        .open(image)
        .unwrap();
    let mut byte = [0u8; 1];
    file.read_exact_at(&mut byte, 1024 + 12).unwrap();
    file.write_all_at(&[byte[0] ^ 1], 1024 + 12).unwrap();
    drop(file);
    let before = hash(image);
    let out = output(&mut bw(image, &["check", "IMAGE"]));
    assert_eq!(
        out.status.code(),
        Some(4),
        "{}{}",
        String::from_utf8_lossy(&out.stdout),
        stderr(&out)
    );
    assert!(before == hash(image), "a check changes nothing");
    let out = output(&mut bw(image, &["check", "-y", "--json", "IMAGE"]));
    assert_eq!(out.status.code(), Some(1), "{}", stderr(&out));
    let report: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(report["issues"][0]["outcome"], "repaired");
    assert_eq!(report["changed"], true);
    good(image, &["check", "-n", "IMAGE"]);
    if have("e2fsck") {
        e2fsck_clean(image, "repaired");
    }
    refused(&mut bw(image, &["check", "-n", "-y", "IMAGE"]), 16, &[]);
    refused(
        &mut bw(image, &["check", "IMAGE.none"]),
        8,
        &["disk.img.none"],
    );
}

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
    says("missing.img", "No such file");
    says("directory.img", "directory");
    says("zeroes.img", "zeroes");
    says("checksum.img", "checksum");
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
        1,
        &["frobnicate"],
    );
    refused(
        &mut bw(new, &["mkfs", "--size", "16M", "-b", "1000", "IMAGE"]),
        1,
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

/// Nobody to read the output: quiet, and no panic.
#[test]
fn a_closed_pipe_is_quiet() {
    let scratch = Scratch::new();
    let image = &scratch.path("disk.img");
    our_mkfs(image, &[], "16M");
    let out = with_input(
        &mut bw(image, &["cp", "-", "IMAGE:/big"]),
        &vec![b'x'; 4_000_000],
    );
    assert!(out.status.success());
    for args in [
        &["cat", "IMAGE:/big"][..],
        &["export", "IMAGE"],
        &["cp", "IMAGE:/big", "-"],
    ] {
        let mut child = bw(image, args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let out = child.wait_with_output().unwrap();
        assert_eq!(out.status.code(), Some(141), "{args:?}");
        assert_eq!(stderr(&out), "", "{args:?}");
    }
}

fn tar(dir: &Path, to: &Path, flags: &[&str]) {
    ok(Command::new("tar")
        .args(flags)
        .arg("-cf")
        .arg(to)
        .arg("-C")
        .arg(dir)
        .arg("."));
}

#[test]
fn volumes_from_trees_and_archives() {
    let scratch = Scratch::new();
    let source = source_tree(&scratch, "source");
    let check = |image: &Path, what: &str| {
        assert_eq!(
            good(image, &["cat", "IMAGE:/sub/file"]),
            "contents",
            "{what}"
        );
        let stat = json(
            image,
            &[
                "stat",
                "--json",
                "IMAGE:/linked",
                "IMAGE:/sub/file",
                "IMAGE:/link",
            ],
        );
        assert_eq!(stat[0]["ino"], stat[1]["ino"], "{what}");
        assert_eq!(stat[0]["mode"], "4711", "{what}");
        assert_eq!(stat[2]["target"], "sub/file", "{what}");
        let sparse = json(image, &["stat", "--json", "IMAGE:/sparse"]);
        assert_eq!(sparse[0]["size"], 9_000_001, "{what}");
        if have("e2fsck") {
            e2fsck_clean(image, what);
        }
    };
    let image = scratch.path("dir.img");
    good(
        &image,
        &[
            "mkfs",
            "-q",
            "--size",
            "auto",
            "--free",
            "2M",
            "--owner",
            "5:6",
            "--from",
            source.to_str().unwrap(),
            "IMAGE",
        ],
    );
    check(&image, "a directory");
    assert_eq!(json(&image, &["stat", "--json", "IMAGE:/sub"])[0]["uid"], 5);
    assert!(
        json(&image, &["df", "--json", "IMAGE"])["free"]
            .as_u64()
            .unwrap()
            >= 2 << 20
    );
    assert!(
        fs::metadata(&image).unwrap().blocks() * 512 < fs::metadata(&image).unwrap().len(),
        "the image is sparse"
    );

    for (suffix, tool, flags) in [
        ("tar", "tar", &["-S"][..]),
        ("tar.gz", "gzip", &["-z"]),
        ("tar.xz", "xz", &["-J"]),
        ("tar.zst", "zstd", &["--zstd"]),
    ] {
        if !have(tool) {
            continue;
        }
        let archive = scratch.path(&format!("source.{suffix}"));
        tar(&source, &archive, flags);
        let image = scratch.path(&format!("{suffix}.img"));
        good(
            &image,
            &[
                "mkfs",
                "-q",
                "--size",
                "48M",
                "--from",
                archive.to_str().unwrap(),
                "IMAGE",
            ],
        );
        check(&image, suffix);
        let image = scratch.path(&format!("{suffix}-stdin.img"));
        let mut command = bw(
            &image,
            &["mkfs", "-q", "--size", "auto", "--from", "-", "IMAGE"],
        );
        let out = with_input(&mut command, &fs::read(&archive).unwrap());
        assert!(out.status.success(), "{}", stderr(&out));
        check(&image, &format!("{suffix} from standard input"));
    }

    // And out again.
    let out = scratch.path("out.tar");
    good(&image, &["export", "-o", out.to_str().unwrap(), "IMAGE"]);
    let names = ok(Command::new("tar").arg("-tf").arg(&out));
    assert!(names.contains("sub/file"), "{names}");
    let again = scratch.path("again.img");
    good(
        &again,
        &[
            "mkfs",
            "-q",
            "--size",
            "auto",
            "--from",
            out.to_str().unwrap(),
            "IMAGE",
        ],
    );
    check(&again, "our own export");
    let part = output(&mut bw(&image, &["export", "IMAGE:/sub"]));
    assert!(part.status.success());
    let part_path = scratch.path("part.tar");
    fs::write(&part_path, &part.stdout).unwrap();
    assert!(ok(Command::new("tar").arg("-tf").arg(&part_path)).contains("file"));
}

#[test]
fn layers_and_whiteouts() {
    let scratch = Scratch::new();
    let (lower, upper) = (scratch.dir("lower"), scratch.dir("upper"));
    for name in ["keep", "gone", "replaced"] {
        fs::write(lower.join(name), "lower").unwrap();
    }
    fs::create_dir(lower.join("opaque")).unwrap();
    fs::write(lower.join("opaque/old"), "lower").unwrap();
    fs::write(upper.join(".wh.gone"), "").unwrap();
    fs::write(upper.join("replaced"), "upper").unwrap();
    fs::create_dir(upper.join("opaque")).unwrap();
    fs::write(upper.join("opaque/.wh..wh..opq"), "").unwrap();
    fs::write(upper.join("opaque/new"), "upper").unwrap();
    let (first, second) = (scratch.path("1.tar"), scratch.path("2.tar"));
    tar(&lower, &first, &[]);
    tar(&upper, &second, &[]);
    let (first, second) = (first.to_str().unwrap(), second.to_str().unwrap());
    let image = &scratch.path("disk.img");
    good(
        image,
        &["mkfs", "-q", "--from", first, "--from", second, "IMAGE"],
    );
    assert_eq!(
        good(image, &["ls", "IMAGE"]),
        "keep\nlost+found\nopaque\nreplaced\n"
    );
    assert_eq!(good(image, &["ls", "-a", "IMAGE:/opaque"]), "new\n");
    assert_eq!(good(image, &["cat", "IMAGE:/replaced"]), "upper");
}

#[test]
fn the_same_input_gives_the_same_bytes() {
    let scratch = Scratch::new();
    let source = source_tree(&scratch, "source");
    let make = |name: &str| {
        let image = scratch.path(name);
        ok(bw(
            &image,
            &[
                "mkfs",
                "-q",
                "-U",
                "01234567-89ab-cdef-0123-456789abcdef",
                "--size",
                "auto",
                "--from",
            ],
        )
        .arg(&source)
        .arg(&image)
        .env("SOURCE_DATE_EPOCH", "1700000000"));
        hash(&image)
    };
    let first = make("1.img");
    std::thread::sleep(Duration::from_millis(20));
    assert!(first == make("2.img"));
    refused(
        bw(&scratch.path("x.img"), &["mkfs", "--size", "16M", "IMAGE"])
            .env("SOURCE_DATE_EPOCH", "soon"),
        2,
        &["SOURCE_DATE_EPOCH"],
    );
}

/// What is mounted goes away also when a test fails.
struct Unmounts(PathBuf);

impl Drop for Unmounts {
    fn drop(&mut self) {
        if is_mounted(&self.0) {
            let _ = output(Command::new("fusermount3").args(["-u", "-z"]).arg(&self.0));
        }
    }
}

fn is_mounted(mnt: &Path) -> bool {
    let table = fs::read_to_string("/proc/mounts").unwrap();
    table
        .lines()
        .any(|l| l.split(' ').nth(1).map(Path::new) == Some(mnt))
}

/// The process that serves a mount, found by its arguments.
fn server_of(mnt: &Path) -> Option<i32> {
    fs::read_dir("/proc").unwrap().find_map(|entry| {
        let path = entry.ok()?.path();
        let pid: i32 = path.file_name()?.to_str()?.parse().ok()?;
        let line = fs::read(path.join("cmdline")).ok()?;
        let mut words = line.split(|&b| b == 0);
        let ours = words.next()? == b"blockwright" && words.next()? == b"mount";
        (ours && words.any(|w| w == mnt.as_os_str().as_bytes())).then_some(pid)
    })
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn mounts_in_the_background() {
    if !have_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let (image, mnt) = (&scratch.path("disk.img"), scratch.dir("mnt"));
    let _unmounts = Unmounts(mnt.clone());
    let mnt_text = mnt.to_str().unwrap();
    our_mkfs(image, &[], "32M");

    // Up when the command returns, and a daemon.
    good(image, &["mount", "IMAGE", mnt_text]);
    fs::write(mnt.join("file"), "mounted").unwrap();
    let pid = server_of(&mnt).expect("a server");
    assert_eq!(
        fs::read_link(format!("/proc/{pid}/cwd")).unwrap(),
        Path::new("/")
    );
    assert_eq!(
        fs::read_link(format!("/proc/{pid}/fd/2")).unwrap(),
        Path::new("/dev/null")
    );
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let session = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .nth(3)
        .unwrap();
    assert_eq!(session, pid.to_string(), "it leads its session");
    // In use, and busy.
    refused(&mut bw(image, &["ls", "IMAGE"]), 1, &["in use"]);
    refused(
        &mut bw(image, &["mkfs", "-F", "--size", "32M", "IMAGE"]),
        1,
        &["in use"],
    );
    let open = fs::File::open(mnt.join("file")).unwrap();
    refused(&mut bw(image, &["umount", mnt_text]), 1, &["mnt"]);
    drop(open);
    // Free when the command returns.
    good(image, &["umount", mnt_text]);
    assert_eq!(good(image, &["cat", "IMAGE:/file"]), "mounted");
    assert_eq!(
        json(image, &["info", "--json", "IMAGE"])["state"][0],
        "clean"
    );

    // A failure of the background process is the command's.
    refused(
        &mut bw(image, &["mount", "-o", "threads=none", "IMAGE", mnt_text]),
        2,
        &["threads"],
    );
    assert!(!is_mounted(&mnt));

    // fusermount3, and lazily with a file open.
    good(image, &["mount", "-o", "ro", "IMAGE", mnt_text]);
    assert_eq!(
        fs::write(mnt.join("file"), "x").unwrap_err().kind(),
        std::io::ErrorKind::ReadOnlyFilesystem
    );
    ok(Command::new("fusermount3").arg("-u").arg(&mnt));
    wait_for("the server ends", || server_of(&mnt).is_none());
    good(image, &["mount", "IMAGE", mnt_text]);
    let open = fs::File::create(mnt.join("late")).unwrap();
    good(image, &["umount", "-l", mnt_text]);
    assert!(!is_mounted(&mnt));
    (&open).write_all(b"still here").unwrap();
    drop(open);
    wait_for("the image is free", || {
        output(&mut bw(image, &["ls", "IMAGE"])).status.success()
    });
    assert_eq!(good(image, &["cat", "IMAGE:/late"]), "still here");

    // SIGTERM unmounts cleanly.
    good(image, &["mount", "IMAGE", mnt_text]);
    fs::write(mnt.join("file"), "terminated").unwrap();
    let pid = server_of(&mnt).expect("a server");
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    wait_for("the mount goes", || !is_mounted(&mnt));
    wait_for("the image is free", || {
        output(&mut bw(image, &["ls", "IMAGE"])).status.success()
    });
    assert_eq!(good(image, &["cat", "IMAGE:/file"]), "terminated");
    assert_eq!(
        json(image, &["info", "--json", "IMAGE"])["state"][0],
        "clean"
    );
    if have("e2fsck") {
        e2fsck_clean(image, "after mounts");
    }
}

#[test]
fn mount_8_knows_us() {
    if !have_fuse()
        || !available("root", rustix::process::geteuid().is_root())
        || !have("mount.fuse3")
    {
        return;
    }
    let scratch = Scratch::new();
    let (image, mnt) = (&scratch.path("disk.img"), scratch.dir("mnt"));
    let _unmounts = Unmounts(mnt.clone());
    let mnt_text = mnt.to_str().unwrap();
    our_mkfs(image, &[], "32M");
    let directory = Path::new(env!("CARGO_BIN_EXE_blockwright"))
        .parent()
        .unwrap();
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", directory.display());

    // As `mount -t fuse.blockwright` has it: mount.fuse3 runs `blockwright IMAGE MOUNTPOINT -o …`.
    ok(Command::new("mount.fuse3")
        .arg(image)
        .arg(&mnt)
        .args(["-t", "fuse.blockwright", "-o", "noatime,nofail,x-test=1"])
        .env("PATH", &path));
    fs::write(mnt.join("file"), "by mount").unwrap();
    let table = fs::read_to_string("/proc/mounts").unwrap();
    let line = table.lines().find(|l| l.contains(mnt_text)).unwrap();
    assert!(
        line.contains("fuse.blockwright") && line.contains("noatime"),
        "{line}"
    );
    good(image, &["umount", mnt_text]);

    // mount(8) itself clears PATH, so a program that is not installed is given by its path.
    let mut source = std::ffi::OsString::from(env!("CARGO_BIN_EXE_blockwright"));
    source.push("#");
    source.push(image);
    ok(Command::new("mount")
        .args(["-t", "fuse", "-o", "ro"])
        .arg(source)
        .arg(&mnt));
    assert_eq!(fs::read_to_string(mnt.join("file")).unwrap(), "by mount");
    good(image, &["umount", mnt_text]);

    // By the helper's own name, as from fstab.
    let helper = scratch.path("mount.fuse.blockwright");
    symlink(env!("CARGO_BIN_EXE_blockwright"), &helper).unwrap();
    ok(Command::new(&helper)
        .arg(image)
        .arg(&mnt)
        .args(["-n", "-o", "rw,relatime"]));
    assert_eq!(fs::read_to_string(mnt.join("file")).unwrap(), "by mount");
    good(image, &["umount", mnt_text]);
    // A fake mount mounts nothing.
    ok(Command::new(&helper)
        .arg(image)
        .arg(&mnt)
        .args(["-f", "-o", "rw"]));
    assert!(!is_mounted(&mnt));
    refused(
        Command::new(&helper)
            .arg(image)
            .arg(&mnt)
            .args(["-o", "frobnicate"]),
        2,
        &["frobnicate"],
    );
}
