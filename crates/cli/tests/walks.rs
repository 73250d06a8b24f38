//! Walks over deep, looped and damaged trees: every command that walks ends, says what it could not do, and does the rest.

mod common;

use common::run::bw;
use common::{Scratch, check_clean, have, have_kernel, mkfs_f2fs, ok, our_mkfs, output, program};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

fn in_image(image: &Path, path: &str) -> OsString {
    let mut operand = image.as_os_str().to_owned();
    operand.push(format!(":{path}"));
    operand
}

/// Deeper than recursion on an ordinary stack, and than paths of the host, may be.
const DEPTH: usize = 8000;

#[test]
fn a_deep_tree_is_walked_by_every_command() {
    let scratch = Scratch::new();
    let image = scratch.path("deep.img");
    our_mkfs(&image, &["-N", "40000"], "256M");
    let bottom = "/d".repeat(DEPTH);
    ok(program()
        .args(["mkdir", "-p"])
        .arg(in_image(&image, &bottom)));
    let hello = scratch.path("hello");
    fs::write(&hello, "hello").unwrap();
    let file = format!("{bottom}/file");
    ok(program().arg("cp").arg(&hello).arg(in_image(&image, &file)));

    let text = ok(bw(&image, &["tree", "IMAGE"]).arg("-L").arg("100000"));
    // lost+found is one more everywhere, and the root where it is counted.
    assert!(text.ends_with(&format!("{} directories, 1 file\n", DEPTH + 1)));
    let json = ok(&mut bw(&image, &["tree", "--json", "IMAGE"]));
    assert_eq!(json.matches("\"kind\":\"directory\"").count(), DEPTH + 2);
    assert_eq!(json.matches('{').count(), json.matches('}').count());
    let text = ok(&mut bw(&image, &["ls", "-R", "IMAGE"]));
    assert_eq!(text.matches("\nd\n").count(), DEPTH);
    let text = ok(&mut bw(&image, &["du", "IMAGE"]));
    assert_eq!(text.lines().count(), DEPTH + 2);
    ok(program()
        .args(["chmod", "-R", "700"])
        .arg(in_image(&image, "/d")));
    ok(program()
        .args(["chown", "-R", "5:6"])
        .arg(in_image(&image, "/d")));
    let stat = ok(program().args(["ls", "-ld"]).arg(in_image(&image, &bottom)));
    assert!(
        stat.starts_with("drwx------ ") && stat.contains(" 5 6 "),
        "{stat}"
    );

    // Out, in, and inside the image; then all three are the same.
    let out = scratch.dir("out");
    ok(program()
        .args(["cp", "-r"])
        .arg(in_image(&image, "/d"))
        .arg(&out));
    ok(program()
        .args(["cp", "-r"])
        .arg(out.join("d"))
        .arg(in_image(&image, "/in")));
    ok(program()
        .args(["cp", "-a"])
        .arg(in_image(&image, "/d"))
        .arg(in_image(&image, "/inside")));
    let below = "/d".repeat(DEPTH - 1);
    for copy in ["/in", "/inside"] {
        let file = in_image(&image, &format!("{copy}{below}/file"));
        assert_eq!(ok(program().arg("cat").arg(file)), "hello");
    }
    ok(Command::new("rm").arg("-r").arg(out.join("d")));

    // The archive is as long as its names are together, and comes back whole.
    let tar = scratch.path("deep.tar.zst");
    ok(program()
        .args(["export", "-o"])
        .arg(&tar)
        .arg(in_image(&image, "/inside")));
    let again = scratch.path("again.img");
    ok(program()
        .args(["mkfs", "-q", "--from"])
        .arg(&tar)
        .arg(&again));
    let file = in_image(&again, &format!("{below}/file"));
    assert_eq!(ok(program().arg("cat").arg(file)), "hello");

    for tree in ["/d", "/in", "/inside"] {
        ok(program().args(["rm", "-r"]).arg(in_image(&image, tree)));
    }
    let text = ok(&mut bw(&image, &["tree", "IMAGE"]));
    assert!(text.ends_with("1 directory, 0 files\n"), "{text}");
    check_clean(&image, "after removing all");
}

/// Each command ends, names the second path of the directory, and has done the rest.
fn walk_a_loop(image: &Path, scratch: &Scratch) {
    let names = |args: &[&str], operand: &str| {
        let out = output(program().args(args).arg(in_image(image, operand)));
        let err = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(1), "{args:?}: {err}");
        assert!(
            err.contains("/a/b/loop: directory loop: inode"),
            "{args:?}: {err}"
        );
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    assert!(names(&["tree"], "/a").contains("── f\n"));
    assert!(names(&["ls", "-R"], "/a").contains("\nf\n"));
    assert!(names(&["du"], "/a").contains("/a/b/c\n"));
    assert!(names(&["export"], "/a").contains("b/c/f"));
    names(&["chmod", "-R", "750"], "/a");
    names(&["chown", "-R", "3:4"], "/a");
    let long = ok(program()
        .args(["ls", "-l"])
        .arg(in_image(image, "/a/b/c/f")));
    assert!(
        long.starts_with("-rwxr-x---") && long.contains(" 3 4 "),
        "{long}"
    );
    let out = scratch.dir("loop-out");
    let copied = output(
        program()
            .args(["cp", "-r"])
            .arg(in_image(image, "/a"))
            .arg(&out),
    );
    let err = String::from_utf8_lossy(&copied.stderr);
    assert_eq!(copied.status.code(), Some(1), "{err}");
    assert!(err.contains("/a/b/loop: directory loop: inode"), "{err}");
    assert_eq!(fs::read(out.join("a/b/c/f")).unwrap(), b"hello");
    fs::remove_dir_all(&out).unwrap();
    names(&["rm", "-r"], "/a");
    assert!(
        output(program().arg("cat").arg(in_image(image, "/a/b/c/f")))
            .status
            .code()
            == Some(1)
    );
}

fn tree_to_loop(image: &Path, scratch: &Scratch) {
    ok(program()
        .args(["mkdir", "-p"])
        .arg(in_image(image, "/a/b/c")));
    let hello = scratch.path("hello");
    fs::write(&hello, "hello").unwrap();
    ok(program()
        .arg("cp")
        .arg(&hello)
        .arg(in_image(image, "/a/b/c/f")));
}

#[test]
fn a_loop_of_directories_ends_walks_of_ext4() {
    if !have("debugfs") {
        return;
    }
    let scratch = Scratch::new();
    let image = scratch.path("loop.img");
    our_mkfs(&image, &[], "16M");
    tree_to_loop(&image, &scratch);
    ok(Command::new("debugfs")
        .args(["-w", "-R", "link /a /a/b/loop"])
        .arg(&image));
    walk_a_loop(&image, &scratch);
}

fn ino(image: &Path, path: &str) -> u32 {
    let text = ok(program().args(["ls", "-di"]).arg(in_image(image, path)));
    text.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn a_loop_of_directories_ends_walks_of_f2fs() {
    if !have("mkfs.f2fs") {
        return;
    }
    let scratch = Scratch::new();
    let image = scratch.path("loop.img");
    mkfs_f2fs(&image, 64 << 20);
    tree_to_loop(&image, &scratch);
    ok(program().arg("mkdir").arg(in_image(&image, "/a/b/loop")));
    // The entry's inode number, the length of its name, and its kind (a directory).
    let entry = |ino: u32| [&ino.to_le_bytes()[..], &4u16.to_le_bytes(), &[2]].concat();
    let (old, new) = (entry(ino(&image, "/a/b/loop")), entry(ino(&image, "/a")));
    let mut bytes = fs::read(&image).unwrap();
    let found: Vec<usize> = (0..bytes.len() - 7)
        .filter(|&at| bytes[at..at + 7] == old)
        .collect();
    assert!(!found.is_empty());
    for at in found {
        bytes[at..at + 7].copy_from_slice(&new);
    }
    fs::write(&image, bytes).unwrap();
    walk_a_loop(&image, &scratch);
}

/// Where debugfs says that an inode is in the image.
fn place_of_inode(image: &Path, path: &str) -> usize {
    let text = ok(Command::new("debugfs")
        .arg("-R")
        .arg(format!("imap {path}"))
        .arg(image));
    let number = |after: &str| {
        let rest = text.split(after).nth(1).unwrap();
        let word: String = rest
            .chars()
            .take_while(|c| c.is_ascii_alphanumeric())
            .collect();
        match word.strip_prefix("0x") {
            Some(hex) => usize::from_str_radix(hex, 16).unwrap(),
            None => word.parse().unwrap(),
        }
    };
    number("located at block ") * 4096 + number("offset ")
}

/// Rescue: what can be read of a damaged volume comes out of it, and what cannot is named.
#[test]
fn rescue_goes_on_past_what_cannot_be_read() {
    if !have("debugfs") {
        return;
    }
    let scratch = Scratch::new();
    let tree = scratch.dir("tree");
    for name in ["a", "b", "m", "z"] {
        fs::create_dir(tree.join(name)).unwrap();
        fs::write(tree.join(name).join("file"), vec![b'x'; 20_000]).unwrap();
    }
    let image = scratch.path("hurt.img");
    ok(program()
        .args(["mkfs", "-q", "-b", "4096", "--size", "16M", "--from"])
        .arg(&tree)
        .arg(&image));
    // A file and a directory that cannot be read any more, and no repair in between.
    let places = ["/b/file", "/m"].map(|path| place_of_inode(&image, path));
    let mut bytes = fs::read(&image).unwrap();
    for at in places {
        bytes[at + 4] ^= 0x55;
    }
    fs::write(&image, bytes).unwrap();

    let told = |err: &[u8]| {
        let err = String::from_utf8_lossy(err).into_owned();
        for path in ["/b/file: ", "/m: "] {
            let lines = err.lines().filter(|line| line.contains(path)).count();
            assert_eq!(lines, 1, "{path} in {err}");
        }
    };
    let tar = scratch.path("rescued.tar");
    let out = output(program().args(["export", "-o"]).arg(&tar).arg(&image));
    assert_eq!(out.status.code(), Some(1));
    told(&out.stderr);
    let list = ok(Command::new("tar").arg("-tf").arg(&tar));
    assert_eq!(
        list.lines()
            .filter(|l| !l.contains("lost+found"))
            .collect::<Vec<_>>(),
        ["./", "a/", "a/file", "b/", "z/", "z/file"]
    );
    let to = scratch.dir("rescued");
    let out = output(
        program()
            .args(["cp", "-r"])
            .arg(in_image(&image, "/"))
            .arg(&to),
    );
    assert_eq!(out.status.code(), Some(1));
    told(&out.stderr);
    assert_eq!(fs::read(to.join("z/file")).unwrap(), vec![b'x'; 20_000]);
    assert!(to.join("b").is_dir() && !to.join("b/file").exists() && !to.join("m").exists());
}

/// A directory of the host that the user may not read is named, and what follows it lands where it belongs.
#[test]
fn a_directory_of_the_host_that_cannot_be_read() {
    if !have_kernel() || !have("setpriv") {
        return;
    }
    let scratch = Scratch::new();
    let (image, tree) = (scratch.path("disk.img"), scratch.dir("tree"));
    our_mkfs(&image, &[], "4M");
    for name in ["a", "b", "c"] {
        fs::create_dir(tree.join(name)).unwrap();
        fs::write(tree.join(name).join("file"), name).unwrap();
    }
    let allow = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    allow(&image, 0o666);
    allow(&tree.join("b"), 0);
    allow(tree.parent().unwrap(), 0o755);
    let out = output(
        Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(env!("CARGO_BIN_EXE_blockwright"))
            .args(["cp", "-r"])
            .arg(&tree)
            .arg(in_image(&image, "/")),
    );
    let err = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{err}");
    assert!(
        err.contains("tree/b: ") && err.lines().count() == 1,
        "{err}"
    );
    let text = ok(program().arg("ls").arg(in_image(&image, "/tree")));
    assert_eq!(text, "a\nb\nc\n");
    for name in ["a", "c"] {
        let file = in_image(&image, &format!("/tree/{name}/file"));
        assert_eq!(ok(program().arg("cat").arg(file)), name);
    }
    check_clean(&image, "after a copy with a gap");
}
