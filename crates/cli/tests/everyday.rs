//! What people try on their first day: options they know from other programs, sizes as they write them, builds that give the
//! same bytes, archives named `.tar.zst`, quota, and what they are told when something is wrong.

mod common;

use common::run::{bw, good, hash, json, refused, source_tree, with_input};
use common::{
    Scratch, check_clean, e2fsck_clean, fsck_f2fs_clean, have, have_kernel, ok, our_mkfs, output,
    program,
};
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn the_same_input_makes_the_same_bytes() {
    let scratch = Scratch::new();
    let tree = source_tree(&scratch, "tree");
    let tar = scratch.path("tree.tar");
    ok(Command::new("tar")
        .arg("-C")
        .arg(&tree)
        .arg("-cf")
        .arg(&tar)
        .arg("."));
    let make = |name: &str, epoch: &str, args: &[&str]| {
        let image = scratch.path(name);
        let _ = fs::remove_file(&image);
        let mut command = program();
        command
            .env("SOURCE_DATE_EPOCH", epoch)
            .args(["mkfs", "-q"])
            .args(args)
            .arg(&image);
        ok(&mut command);
        hash(&image)
    };
    let from = tree.to_str().unwrap();
    for args in [
        &["--from", from][..],
        &["-t", "f2fs", "--from", from],
        &["--from", tar.to_str().unwrap()],
        &["--size", "8M"],
    ] {
        let first = make("a.img", "1700000000", args);
        std::thread::sleep(Duration::from_millis(1100));
        // Read since: access times of the sources differ.
        let _ = fs::read(tree.join("big"));
        assert!(first == make("b.img", "1700000000", args), "{args:?}");
        assert!(first != make("b.img", "1700000001", args), "{args:?}");
        let with_label = [args, &["-L", "x"]].concat();
        assert!(
            first != make("b.img", "1700000000", &with_label),
            "{args:?}"
        );
    }
    // Contents make another UUID, at the same size and time.
    let uuid = |name: &str| json(&scratch.path(name), &["info", "--json", "IMAGE"])["uuid"].clone();
    make("a.img", "1700000000", &["--from", from]);
    let file = fs::OpenOptions::new()
        .write(true)
        .open(tree.join("big"))
        .unwrap();
    let time = fs::metadata(tree.join("big")).unwrap().modified().unwrap();
    file.write_all_at(b"?", 2_000_000).unwrap();
    file.set_modified(time).unwrap();
    make("b.img", "1700000000", &["--from", from]);
    assert_ne!(uuid("a.img"), uuid("b.img"));
    check_clean(&scratch.path("b.img"), "made with an epoch");
}

#[test]
fn archives_are_compressed_as_their_names_say() {
    let scratch = Scratch::new();
    let (image, tree) = (scratch.path("disk.img"), source_tree(&scratch, "tree"));
    good(
        &image,
        &["mkfs", "-q", "--from", tree.to_str().unwrap(), "IMAGE"],
    );
    let plain = scratch.path("x.tar");
    good(&image, &["export", "-o", plain.to_str().unwrap(), "IMAGE"]);
    for (name, magic) in [
        ("x.tar.gz", &[0x1F, 0x8B][..]),
        ("x.tgz", &[0x1F, 0x8B]),
        ("x.tar.zst", &[0x28, 0xB5, 0x2F, 0xFD]),
        ("x.tar.xz", &[0xFD, b'7', b'z', b'X', b'Z', 0]),
    ] {
        let file = scratch.path(name);
        good(&image, &["export", "-o", file.to_str().unwrap(), "IMAGE"]);
        let bytes = fs::read(&file).unwrap();
        assert!(bytes.starts_with(magic), "{name}");
        assert!(bytes.len() < fs::read(&plain).unwrap().len() / 2, "{name}");
        let again = scratch.path("again.img");
        good(
            &again,
            &["mkfs", "-q", "--from", file.to_str().unwrap(), "IMAGE"],
        );
        assert_eq!(good(&again, &["cat", "IMAGE:/sub/file"]), "contents");
        fs::remove_file(&again).unwrap();
    }
    let odd = scratch.path("x.tar.bz2");
    refused(
        &mut bw(&image, &["export", "-o", odd.to_str().unwrap(), "IMAGE"]),
        1,
        &["x.tar.bz2", "use .gz, .zst or .xz"],
    );
    assert!(!odd.exists());
}

#[test]
fn everyday_options() {
    let scratch = Scratch::new();
    let (image, tree) = (scratch.path("disk.img"), scratch.dir("tree"));
    fs::write(tree.join("small"), "s").unwrap();
    fs::write(tree.join("large"), vec![b'l'; 5000]).unwrap();
    // mke2fs's way of saying it, and a size as people write it.
    let from = tree.to_str().unwrap();
    let out = good(
        &image,
        &[
            "mkfs",
            "-d",
            from,
            "-E",
            "root_owner=7:8,lazy_itable_init=1",
            "IMAGE",
            "1.5M",
        ],
    );
    assert!(
        out.contains("1.5 MiB") && out.contains("2 files, 0 directories"),
        "{out}"
    );
    assert_eq!(fs::metadata(&image).unwrap().len(), 3 << 19);
    refused(
        &mut bw(&image, &["mkfs", "-F", "-E", "stride=8", "IMAGE", "2M"]),
        2,
        &["-E stride=8"],
    );
    good(
        &image,
        &["touch", "-d", "2020-01-02T03:04:05Z", "IMAGE:/small"],
    );
    good(&image, &["touch", "-d", "@0", "IMAGE:/large"]);
    let names = |args: &[&str]| good(&image, args).replace("lost+found\n", "");
    assert_eq!(names(&["ls", "-t", "-1", "IMAGE"]), "small\nlarge\n");
    assert_eq!(names(&["ls", "-tr", "IMAGE"]), "large\nsmall\n");
    assert_eq!(names(&["ls", "-S", "IMAGE"]), "large\nsmall\n");
    assert!(good(&image, &["ls", "-n", "IMAGE:/small"]).starts_with("-rw"));
    let stat = json(&image, &["stat", "--json", "IMAGE:/small"]);
    assert_eq!(stat[0]["modified"], "2020-01-02T03:04:05.000000000Z");
    // New files, not with -c; directories and what is there keep their contents.
    good(&image, &["touch", "IMAGE:/new", "IMAGE:/small"]);
    good(&image, &["touch", "-c", "IMAGE:/none"]);
    assert_eq!(good(&image, &["cat", "IMAGE:/small"]), "s");
    refused(
        &mut bw(&image, &["ls", "IMAGE:/none"]),
        1,
        &["/none: no such file"],
    );
    let told = good(&image, &["cp", "-v", "IMAGE:/small", "IMAGE:/copy"]);
    assert!(
        told.contains("disk.img:/small' -> '") && told.contains("disk.img:/copy'"),
        "{told}"
    );
    let told = good(&image, &["mv", "-f", "-v", "IMAGE:/copy", "IMAGE:/new"]);
    assert!(told.starts_with("renamed '"), "{told}");
    // The last of -n and -f counts, as in coreutils.
    good(&image, &["cp", "-f", "-n", "IMAGE:/large", "IMAGE:/new"]);
    assert_eq!(good(&image, &["cat", "IMAGE:/new"]), "s");
    good(&image, &["cp", "-n", "-f", "IMAGE:/large", "IMAGE:/new"]);
    assert_eq!(good(&image, &["cat", "IMAGE:/new"]).len(), 5000);
    let text = good(&image, &["check", "-v", "IMAGE"]);
    assert!(
        text.contains("regular files") && text.contains("blocks in use"),
        "{text}"
    );
    good(&image, &["check", "-a", "IMAGE"]);
}

#[test]
fn every_file_is_counted() {
    let scratch = Scratch::new();
    let (image, tree) = (scratch.path("disk.img"), source_tree(&scratch, "tree"));
    fs::write(tree.join("empty"), "").unwrap();
    let made = json(
        &image,
        &["mkfs", "--json", "--from", tree.to_str().unwrap(), "IMAGE"],
    );
    let checked = json(&image, &["check", "--json", "IMAGE"]);
    let number = |value: &serde_json::Value| value.as_u64().unwrap();
    let files =
        number(&checked["files"]) + number(&checked["symlinks"]) + number(&checked["specials"]);
    assert_eq!(number(&made["files_copied"]), files);
    // The root directory and lost+found came from nowhere.
    assert_eq!(
        number(&made["directories_copied"]),
        number(&checked["directories"]) - 2
    );
}

/// A new image that is not complete is no image: an interrupt takes it away.
#[test]
fn an_interrupt_leaves_no_partial_image() {
    let scratch = Scratch::new();
    let tree = scratch.dir("tree");
    fs::write(tree.join("file"), vec![1; 4 << 20]).unwrap();
    let image = scratch.path("new.img");
    for signal in ["-INT", "-TERM"] {
        // The end of the standard input never comes: the image is there, or will be, when the signal does.
        let mut child = program()
            .args(["mkfs", "-q", "--size", "64M", "--from"])
            .arg(&tree)
            .args(["--from", "-"])
            .arg(&image)
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(400));
        // As one that had begun to write would have left it.
        fs::write(&image, "partial").unwrap();
        ok(Command::new("kill").args([signal, &child.id().to_string()]));
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            assert!(start.elapsed() < Duration::from_secs(10));
            std::thread::sleep(Duration::from_millis(5));
        };
        assert_eq!(status.code(), Some(130));
        assert!(!image.exists(), "{signal}");
    }
}

#[test]
fn messages_lead_on() {
    let scratch = Scratch::new();
    let image = &scratch.path("disk.img");
    our_mkfs(image, &["-b", "1024", "-L", "la\u{1b}[31mbel"], "4M");
    good(image, &["touch", "IMAGE:/f"]);
    let large = "v".repeat(3000);
    refused(
        &mut bw(
            image,
            &["setxattr", "-n", "user.big", "-v", &large, "IMAGE:/f"],
        ),
        1,
        &["/f: user.big: 3000 bytes do not fit"],
    );
    refused(
        &mut bw(image, &["setxattr", "-n", "plain", "-v", "x", "IMAGE:/f"]),
        1,
        &["`plain` does not begin with a namespace", "`user.plain`"],
    );
    let long = format!("user.{}", "n".repeat(251));
    refused(
        &mut bw(image, &["setxattr", "-n", &long, "-v", "x", "IMAGE:/f"]),
        1,
        &["the name has 256 bytes, and 255 are the most"],
    );
    let info = good(image, &["info", "IMAGE"]);
    assert!(
        !info.contains('\u{1b}') && info.contains("la\\u{1b}[31mbel"),
        "{info}"
    );
    // A text file, and one that is shorter than a header.
    let new = &scratch.path("new.img");
    for (name, text) in [
        ("notes.txt", "some text\n".repeat(200)),
        ("short.txt", "hi\n".into()),
    ] {
        let path = scratch.path(name);
        fs::write(&path, text).unwrap();
        let args = ["mkfs", "--from", path.to_str().unwrap(), "IMAGE"];
        refused(&mut bw(new, &args), 1, &[name, "not a tar archive"]);
    }
    let args = ["mkfs", "-t", "f2fs", "--size", "10M", "IMAGE"];
    refused(&mut bw(new, &args), 1, &["at least", "MiB"]);
    let args = ["mkfs", "--size", "1,5G", "IMAGE"];
    refused(&mut bw(new, &args), 2, &["`1,5G` is not a size"]);
    assert!(!new.exists());
}

/// The file is named whose attributes do not fit, with both formats.
#[test]
fn attributes_that_do_not_fit_are_named_with_their_file() {
    let scratch = Scratch::new();
    let tree = scratch.dir("tree");
    fs::create_dir(tree.join("dir")).unwrap();
    let tar = scratch.path("big.tar");
    // A tar stream can carry what the host's own file system could not hold.
    let name = b"SCHILY.xattr.user.big=";
    let value = vec![b'v'; 30_000];
    let rest = 1 + name.len() + value.len() + 1;
    let record = [format!("{} ", rest + 5).as_bytes(), name, &value, b"\n"].concat();
    assert_eq!(record.len(), rest + 5);
    let header = |name: &str, kind: u8, size: usize| {
        let mut block = [0u8; 512];
        block[..name.len()].copy_from_slice(name.as_bytes());
        block[100..107].copy_from_slice(b"0000644");
        block[124..135].copy_from_slice(format!("{size:011o}").as_bytes());
        block[136..147].copy_from_slice(b"00000000000");
        block[156] = kind;
        block[257..265].copy_from_slice(b"ustar\x0000");
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|b| u32::from(*b)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        block.to_vec()
    };
    let mut bytes = header("dir/", b'5', 0);
    bytes.extend(header("pax", b'x', record.len()));
    bytes.extend(&record);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes.extend(header("dir/culprit", b'0', 0));
    bytes.resize(bytes.len() + 1024, 0);
    fs::write(&tar, bytes).unwrap();
    let new = &scratch.path("new.img");
    for kind in ["ext4", "f2fs"] {
        let args = [
            "mkfs",
            "-t",
            kind,
            "--size",
            "64M",
            "--from",
            tar.to_str().unwrap(),
            "IMAGE",
        ];
        refused(&mut bw(new, &args), 1, &["/dir/culprit", "attributes take"]);
    }
    // With inodes for large values there is a place for it.
    let args = [
        "mkfs",
        "-q",
        "-O",
        "ea_inode",
        "--size",
        "8M",
        "--from",
        tar.to_str().unwrap(),
        "IMAGE",
    ];
    good(new, &args);
    assert!(good(new, &["getxattr", "IMAGE:/dir/culprit"]).len() > 30_000);
}

/// What is allowed is shown and set offline, and holds.
fn limits(image: &Path, clean: &dyn Fn(&Path)) {
    let quota = |args: &[&str]| json(image, &[&["quota", "--json"], args].concat());
    good(image, &["touch", "IMAGE:/f", "IMAGE:/g"]);
    good(image, &["chown", "1000:2000", "IMAGE:/f", "IMAGE:/g"]);
    let user = quota(&["IMAGE", "user", "1000"]);
    assert_eq!(
        (&user[0]["inodes"], &user[0]["hard"]),
        (&2.into(), &0.into())
    );
    good(
        image,
        &[
            "quota",
            "--soft",
            "1.5M",
            "--hard",
            "2M",
            "--inodes-soft",
            "1",
            "IMAGE",
            "user",
            "1000",
        ],
    );
    good(
        image,
        &["quota", "--inodes-hard", "9", "IMAGE", "group", "2000"],
    );
    // One that has nothing yet.
    good(image, &["quota", "--hard", "4K", "IMAGE", "user", "4711"]);
    let user = quota(&["IMAGE", "user", "1000"]);
    assert_eq!(user[0]["soft"], 3 << 19);
    assert_eq!(user[0]["hard"], 2 << 20);
    assert_eq!(user[0]["inodes_soft"], 1);
    assert!(
        user[0]["inodes_grace_ends"].is_string(),
        "two are more than one: {user}"
    );
    assert_eq!(quota(&["IMAGE", "group", "2000"])[0]["inodes_hard"], 9);
    assert_eq!(quota(&["IMAGE", "user"]).as_array().unwrap().len(), 3);
    let table = good(image, &["quota", "IMAGE"]);
    assert!(
        table.contains("4711") && table.contains("2.0 MiB"),
        "{table}"
    );
    // What was not named stays; 0 takes a limit away.
    good(
        image,
        &["quota", "--inodes-soft", "0", "IMAGE", "user", "1000"],
    );
    let user = quota(&["IMAGE", "user", "1000"]);
    assert_eq!(
        (&user[0]["inodes_soft"], &user[0]["hard"]),
        (&0.into(), &(2 << 20).into())
    );
    assert!(user[0].get("inodes_grace_ends").is_none());
    refused(
        &mut bw(image, &["quota", "--soft", "3M", "IMAGE", "user", "1000"]),
        1,
        &["above its hard limit"],
    );
    refused(
        &mut bw(image, &["quota", "--hard", "3M", "IMAGE", "user", "0"]),
        1,
        &["never limited"],
    );
    clean(image);
    // Within the limit, then past it.
    let out = with_input(&mut bw(image, &["cp", "-", "IMAGE:/f"]), &vec![1; 1 << 20]);
    assert!(out.status.success(), "{out:?}");
    let out = with_input(&mut bw(image, &["cp", "-", "IMAGE:/g"]), &vec![1; 3 << 20]);
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(
        out.status.code() == Some(1) && text.contains("quota"),
        "{text}"
    );
    clean(image);
}

#[test]
fn quota_limits_of_ext4() {
    let scratch = Scratch::new();
    let image = &scratch.path("disk.img");
    our_mkfs(image, &["-O", "quota"], "16M");
    limits(image, &|image| {
        check_clean(image, "limits");
        if have("e2fsck") {
            e2fsck_clean(image, "limits");
        }
    });
    if have("dumpe2fs") {
        let text = ok(Command::new("dumpe2fs").arg("-h").arg(image));
        assert!(text.contains("quota"));
    }
    our_mkfs(image, &[], "8M");
    refused(
        &mut bw(image, &["quota", "IMAGE"]),
        1,
        &["does not count", "-O quota"],
    );
}

#[test]
fn quota_limits_of_f2fs() {
    let scratch = Scratch::new();
    let image = &scratch.path("disk.img");
    our_mkfs(image, &["-t", "f2fs", "-O", "extra_attr,quota"], "64M");
    limits(image, &|image| {
        check_clean(image, "limits");
        if have("fsck.f2fs") {
            fsck_f2fs_clean(image, "limits");
        }
    });
}

/// What a user without root makes through a mount that shows all files as theirs is theirs without that option, too.
#[test]
fn new_files_belong_to_their_maker() {
    if !common::have_fuse() || !have_kernel() {
        return;
    }
    let scratch = Scratch::new();
    let (image, mnt) = (scratch.path("disk.img"), scratch.dir("mnt"));
    our_mkfs(&image, &[], "8M");
    let mounted = common::Mounted::new(&image, &mnt, "uid=1234,gid=2345,allow_other");
    assert_eq!(fs::metadata(&mnt).unwrap().uid(), 1234);
    let made = output(
        Command::new("setpriv")
            .args(["--reuid=1234", "--regid=2345", "--clear-groups", "touch"])
            .arg(mnt.join("mine")),
    );
    mounted.unmount();
    if made.status.success() {
        let stat = json(&image, &["stat", "--json", "IMAGE:/mine"]);
        assert_eq!(
            (&stat[0]["uid"], &stat[0]["gid"]),
            (&1234.into(), &2345.into())
        );
    } else {
        eprintln!("skipped: {made:?}");
    }
}
