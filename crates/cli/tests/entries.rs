//! What `mkfs` applies to the files of all its sources: what is left out, owners, times, Android's lists; and listings of composefs.

mod common;

use common::run::{bw, good, hash, json, refused, source_tree};
use common::{Scratch, check_clean, e2fsck_clean, fsck_f2fs_clean, ok, output, program};
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Owner and group.
fn owner(image: &Path, path: &str) -> (u64, u64) {
    let stat = json(image, &["stat", "--json", &format!("IMAGE:{path}")]);
    let of = |name: &str| stat[0][name].as_u64().expect("a number");
    (of("uid"), of("gid"))
}

fn stat(image: &Path, path: &str, field: &str) -> String {
    let stat = json(image, &["stat", "--json", &format!("IMAGE:{path}")]);
    stat[0][field].as_str().unwrap_or_default().to_owned()
}

/// Extended attributes: text, or base64 of what is none.
fn attributes(image: &Path, path: &str) -> Vec<(String, String)> {
    let got = json(image, &["getxattr", "--json", &format!("IMAGE:{path}")]);
    let list = got[0]["xattrs"].as_array().unwrap();
    let text = |v: &serde_json::Value| v.as_str().unwrap_or_default().to_owned();
    list.iter()
        .map(|x| {
            let value = x.get("value").or(x.get("value_base64")).unwrap();
            (text(&x["name"]), text(value))
        })
        .collect()
}

fn there(image: &Path, path: &str) -> bool {
    output(&mut bw(image, &["stat", &format!("IMAGE:{path}")]))
        .status
        .success()
}

fn tar(dir: &Path, options: &[&str]) -> PathBuf {
    let file = dir.with_extension("tar");
    ok(Command::new("tar")
        .args(options)
        .arg("-cf")
        .arg(&file)
        .arg("-C")
        .arg(dir)
        .arg("."));
    file
}

/// The same options of the same tree as a directory and as an archive give the same volume.
#[test]
fn rules_are_the_same_for_every_source() {
    let scratch = Scratch::new();
    let dir = source_tree(&scratch, "tree");
    fs::create_dir_all(dir.join("cache/deep")).unwrap();
    fs::write(dir.join("cache/deep/x"), "x").unwrap();
    fs::write(dir.join("sub/a.o"), "object").unwrap();
    let archive = tar(&dir, &["--xattrs", "--sparse", "--numeric-owner"]);
    let me = (
        u64::from(rustix::process::getuid().as_raw()),
        u64::from(rustix::process::getgid().as_raw()),
    );
    let map = format!("u:{}:70000,g:{}:80000,0-65535:100000", me.0, me.1);
    let mut hashes = Vec::new();
    for (n, source) in [&dir, &archive].iter().enumerate() {
        let image = scratch.path(&format!("{n}.img"));
        let mut mkfs = program();
        ok(mkfs
            .env("SOURCE_DATE_EPOCH", "1700000000")
            .args(["mkfs", "-q", "--exclude", "*.o", "--exclude", "/cache/*"])
            .args(["--owner-map", &map, "--mtime", "@1600000000", "--from"])
            .arg(source)
            .arg(&image));
        check_clean(&image, "rules");
        e2fsck_clean(&image, "rules");
        assert_eq!(owner(&image, "/sub/file"), (70000, 80000));
        assert_eq!(owner(&image, "/"), (70000, 80000));
        let modified = "2020-09-13T12:26:40";
        for path in ["/sub/file", "/sub", "/link"] {
            assert!(
                stat(&image, path, "modified").starts_with(modified),
                "{path}"
            );
        }
        for (path, is_there) in [
            ("/cache", true),
            ("/cache/deep", false),
            ("/sub/a.o", false),
        ] {
            assert_eq!(there(&image, path), is_there, "{path}");
        }
        // Where holes begin may differ by less than a block, so the UUIDs do.
        let exported = scratch.path(&format!("{n}.tar"));
        good(
            &image,
            &["export", "IMAGE:/", "-o", exported.to_str().unwrap()],
        );
        hashes.push(hash(&exported));
    }
    assert!(hashes[0] == hashes[1], "directory and archive differ");
}

/// Protected files by pattern; the same input gives the same bytes.
#[test]
fn files_are_protected_by_fs_verity() {
    let scratch = Scratch::new();
    let dir = source_tree(&scratch, "tree");
    fs::write(dir.join("sub/data.bin"), vec![7; 300_000]).unwrap();
    fs::hard_link(dir.join("sub/data.bin"), dir.join("other-name")).unwrap();
    for format in ["ext4", "f2fs"] {
        let image = scratch.path("protected.img");
        let mut hashes = Vec::new();
        for patterns in [["/sub/*.bin", "nothing"], ["other-name", "*.bin"]] {
            let _gone = fs::remove_file(&image);
            let [a, b] = patterns;
            let mut mkfs = program();
            let made = ok(mkfs
                .env("SOURCE_DATE_EPOCH", "1700000000")
                .args(["mkfs", "-t", format, "--size", "64M", "--json"])
                .args(["--fsverity", a, "--fsverity", b, "-d"])
                .arg(&dir)
                .arg(&image));
            assert!(made.contains("\"files_protected\": 1"), "{made}");
            hashes.push(hash(&image));
        }
        assert!(hashes[0] == hashes[1], "{format}: the same bytes");
        check_clean(&image, "protected");
        match format {
            "ext4" => e2fsck_clean(&image, "protected"),
            _ => fsck_f2fs_clean(&image, "protected"),
        }
        let listed = json(&image, &["stat", "--json", "IMAGE:/other-name"]);
        assert!(listed[0].to_string().contains("verity"), "{listed}");
        refused(
            &mut bw(&image, &["cp", "/etc/hostname", "IMAGE:/sub/data.bin"]),
            1,
            &["fs-verity"],
        );
        good(&image, &["mv", "IMAGE:/sub/data.bin", "IMAGE:/moved"]);
        good(&image, &["rm", "IMAGE:/moved", "IMAGE:/other-name"]);
        check_clean(&image, "removed");
    }
    // A few bytes of an archive can claim any size, and holes are hashed too.
    let sparse = fs::File::create(dir.join("sparse")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    for (options, reason) in [
        (&["-b", "1024"][..], "blocks of 4096"),
        (&[], "/sparse: 0 bytes of data"),
        (&["-O", "^extent"], "extent"),
        (&["-O", "^verity"], "switched off"),
        (&["--fsverity", "/"], "names nothing"),
    ] {
        let mut mkfs = program();
        let pattern = if reason.contains("sparse") {
            "sparse"
        } else {
            "*.bin"
        };
        mkfs.args(["mkfs", "--fsverity", pattern, "--size", "64M", "-d"])
            .arg(&dir)
            .args(options)
            .arg(scratch.path("refused.img"));
        let out = output(&mut mkfs);
        let told = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && told.contains(reason), "{told}");
    }
}

#[test]
fn what_is_left_out_need_not_be_readable() {
    let scratch = Scratch::new();
    let dir = scratch.dir("tree");
    fs::create_dir(dir.join("closed")).unwrap();
    fs::write(dir.join("closed/secret"), "s").unwrap();
    fs::write(dir.join("open"), "o").unwrap();
    fs::set_permissions(dir.join("closed"), fs::Permissions::from_mode(0o0)).unwrap();
    // A FIFO has no data, but a name.
    ok(Command::new("mkfifo").arg(dir.join("pipe")));
    let image = scratch.path("x.img");
    let from = dir.to_str().unwrap();
    let base = ["mkfs", "-q", "--from", from, "IMAGE"];
    good(
        &image,
        &[&base[..], &["--exclude", "closed/", "--exclude", "pipe"]].concat(),
    );
    fs::set_permissions(dir.join("closed"), fs::Permissions::from_mode(0o700)).unwrap();
    assert!(there(&image, "/open") && !there(&image, "/closed") && !there(&image, "/pipe"));
}

#[test]
fn times_are_clamped_when_asked() {
    let scratch = Scratch::new();
    let dir = scratch.dir("tree");
    for (name, time) in [("old", "@1000"), ("new", "@1700000000")] {
        fs::write(dir.join(name), name).unwrap();
        ok(Command::new("touch").args(["-d", time]).arg(dir.join(name)));
    }
    let image = scratch.path("x.img");
    let from = dir.to_str().unwrap();
    let base = ["mkfs", "-q", "-F", "--from", from, "IMAGE", "--mtime"];
    good(&image, &[&base[..], &["2000", "--clamp-mtime"]].concat());
    let times = || {
        [
            stat(&image, "/old", "modified"),
            stat(&image, "/new", "modified"),
        ]
    };
    let [old, new] = times();
    assert!(old.starts_with("1970-01-01T00:16:40") && new.starts_with("1970-01-01T00:33:20"));
    good(&image, &[&base[..], &["-1"]].concat());
    let [old, new] = times();
    assert!(
        old.starts_with("1969-12-31T23:59:59") && new == old,
        "{old} {new}"
    );
}

/// Labels, owners, modes and capabilities of an Android image, on both formats.
#[test]
fn androids_lists_apply_beneath_the_mount_point() {
    let scratch = Scratch::new();
    let dir = scratch.dir("system");
    fs::create_dir(dir.join("bin")).unwrap();
    fs::write(dir.join("bin/ping"), "ping").unwrap();
    fs::write(dir.join("bin/sh"), "sh").unwrap();
    let contexts = scratch.path("file_contexts");
    fs::write(
        &contexts,
        "/system(/.*)? u:object_r:system_file:s0\n/system/bin/sh -- u:object_r:shell_exec:s0\n",
    )
    .unwrap();
    let config = scratch.path("fs_config");
    fs::write(
        &config,
        "system 0 0 755\nsystem/bin 0 2000 751\nsystem/bin/ping 0 2000 750 capabilities=0x3000\n",
    )
    .unwrap();
    for format in ["ext4", "f2fs"] {
        let image = scratch.path(&format!("{format}.img"));
        ok(program()
            .args([
                "mkfs",
                "-q",
                "-t",
                format,
                "--size",
                "128M",
                "--mount-point",
                "/system",
            ])
            .args(["--owner-map", "0-100000:0"])
            .arg("--file-contexts")
            .arg(&contexts)
            .arg("--fs-config")
            .arg(&config)
            .arg("--from")
            .arg(&dir)
            .arg(&image));
        check_clean(&image, format);
        match format {
            "ext4" => e2fsck_clean(&image, format),
            _ => fsck_f2fs_clean(&image, format),
        }
        assert_eq!(owner(&image, "/bin/ping"), (0, 2000));
        assert_eq!(stat(&image, "/bin/ping", "mode"), "0750");
        assert_eq!(stat(&image, "/bin", "mode"), "0751");
        let attributes = |path: &str| attributes(&image, path);
        for (path, label) in [
            ("/", "u:object_r:system_file:s0"),
            ("/bin/ping", "u:object_r:system_file:s0"),
            ("/bin/sh", "u:object_r:shell_exec:s0"),
        ] {
            let expected = ("security.selinux".to_owned(), format!("{label}\0"));
            let found = attributes(path);
            assert!(found.contains(&expected), "{format} {path}: {found:?}");
        }
        // 0x02000001, then CAP_NET_RAW and CAP_NET_ADMIN.
        let capability = (
            "security.capability".to_owned(),
            format!("\u{1}\0\0\u{2}\0\u{30}{}", "\0".repeat(14)),
        );
        assert!(
            attributes("/bin/ping").contains(&capability),
            "{:?}",
            attributes("/bin/ping")
        );
    }
}

#[test]
fn a_listing_of_composefs_is_a_source() {
    let scratch = Scratch::new();
    let objects = scratch.dir("objects");
    fs::create_dir(objects.join("35")).unwrap();
    let big: Vec<u8> = (0..700_001u32).map(|n| (n / 3) as u8).collect();
    fs::write(objects.join("35/big"), &big).unwrap();
    let digest = if common::have("fsverity") {
        let out = ok(Command::new("fsverity")
            .args(["digest", "--compact"])
            .arg(objects.join("35/big")));
        out.trim().to_owned()
    } else {
        "-".to_owned()
    };
    let listing = scratch.path("listing");
    let lines = format!(
        "/ 4096 40755 4 10 20 0 1695372970.944925700 - - - user.x=a\\x3db security.selinux=u:r:t:s0\\x00\n\
         /a\\x20dir 27 41777 2 1000 1000 0 5.1 - - -\n\
         /later-hardlink 3 @0 2 0 0 0 0.0 /a\\x20dir/inline - -\n\
         /a\\x20dir/inline 10 100600 2 1 2 0 7.0 - some-text\\n -\n\
         /big 700001 100644 1 0 0 0 0.0 35/big - {digest}\n\
         /empty 0 100644 1 0 0 0 0.0 - - -\n\
         /link 1 120777 1 0 0 0 0.0 \\x2d - -\n\
         /null 0 20666 1 0 0 259 0.0 - - -\n\
         /fifo 0 10644 1 0 0 0 0.0 - - -\n\
         /.wh.plain 0 100644 1 0 0 0 0.0 - - -"
    );
    fs::write(&listing, lines).unwrap();
    let image = scratch.path("x.img");
    ok(program()
        .args(["mkfs", "-q", "--dumpfile"])
        .arg(&listing)
        .arg("--objects")
        .arg(&objects)
        .arg(&image));
    check_clean(&image, "from a listing");
    e2fsck_clean(&image, "from a listing");
    assert_eq!(owner(&image, "/"), (10, 20));
    assert_eq!(stat(&image, "/a dir", "mode"), "1777");
    assert!(stat(&image, "/a dir", "modified").starts_with("1970-01-01T00:00:05.000000001"));
    assert_eq!(
        good(&image, &["cat", "IMAGE:/later-hardlink"]),
        "some-text\n"
    );
    let out = output(&mut bw(&image, &["cat", "IMAGE:/big"]));
    assert!(out.stdout == big);
    assert_eq!(stat(&image, "/link", "target"), "-");
    let null = json(&image, &["stat", "--json", "IMAGE:/null"]);
    assert_eq!(null[0]["device"], serde_json::json!([1, 3]));
    assert!(there(&image, "/.wh.plain"));
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let expected = [
        pair("security.selinux", "u:r:t:s0\0"),
        pair("user.x", "a=b"),
    ];
    assert_eq!(attributes(&image, "/"), expected);
}

#[test]
fn listings_that_lie_or_lead_out_are_refused() {
    let scratch = Scratch::new();
    let objects = scratch.dir("objects");
    fs::write(objects.join("six"), "object").unwrap();
    std::os::unix::fs::symlink("/etc/hostname", objects.join("out")).unwrap();
    let listing = scratch.path("listing");
    let root = "/ 0 40755 2 0 0 0 0.0 - - -\n";
    let cases: [(&str, &[&str]); 20] = [
        ("x 0 100644 1 0 0 0 0.0 - - -", &["line 2", "slash"]),
        ("/x 0 100644 1 0 0 0 0.0 - -", &["line 2", "10 fields"]),
        ("/x z 100644 1 0 0 0 0.0 - - -", &["line 2", "size"]),
        ("/x 0 190644 1 0 0 0 0.0 - - -", &["line 2", "octal"]),
        ("/x 0 644 1 0 0 0 0.0 - - -", &["line 2", "kind"]),
        ("/x 0 100644 1 -1 0 0 0.0 - - -", &["line 2", "owner"]),
        (
            "/x 0 100644 1 0 4294967296 0 0.0 - - -",
            &["line 2", "group"],
        ),
        ("/x 0 100644 1 0 0 0 0 - - -", &["line 2", "time"]),
        (
            "/x 1 100644 1 0 0 0 0.0 - - -",
            &["line 2", "neither content nor payload"],
        ),
        (
            "/x 2 100644 1 0 0 0 0.0 - a -",
            &["line 2", "1 bytes", "size is 2"],
        ),
        (
            "/x 6 100644 1 0 0 0 0.0 ../objects/six - -",
            &["line 2", "leads out"],
        ),
        (
            "/x 6 100644 1 0 0 0 0.0 /etc/hostname - -",
            &["line 2", "leads out"],
        ),
        ("/x 6 100644 1 0 0 0 0.0 out - -", &["line 2"]),
        ("/x 7 100644 1 0 0 0 0.0 six - -", &["line 2", "6 bytes"]),
        (
            "/x 6 100644 1 0 0 0 0.0 six - 00",
            &["line 2", "fs-verity digest is"],
        ),
        (
            "/x\\x2f..\\x2fy 0 100644 1 0 0 0 0.0 - - -",
            &["line 2", ".."],
        ),
        (
            "/a/x 0 100644 1 0 0 0 0.0 - - -",
            &["line 2", "no such file"],
        ),
        (
            "/x 0 @100644 1 0 0 0 0.0 /y - -",
            &["line 2", "hard link to /y"],
        ),
        (
            "/x 0 120777 1 0 0 0 0.0 - - -",
            &["line 2", "symbolic link"],
        ),
        ("/x\\q 0 100644 1 0 0 0 0.0 - - -", &["line 2", "escape"]),
    ];
    for (line, says) in cases {
        fs::write(&listing, format!("{root}{line}\n")).unwrap();
        let image = scratch.path("x.img");
        let mut mkfs = program();
        mkfs.args(["mkfs", "-q", "--dumpfile"])
            .arg(&listing)
            .arg("--objects")
            .arg(&objects)
            .arg(&image);
        refused(&mut mkfs, 1, says);
        assert!(!image.exists(), "{line}");
    }
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let scratch = Scratch::new();
    let dir = scratch.dir("tree");
    fs::write(dir.join("file"), "x").unwrap();
    let file = |name: &str, text: &str| {
        let path = scratch.path(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (lookahead, huge) = (
        file("lookahead", "/.* ok\n/(?!x).* label\n"),
        file("huge", "/((((((a{99}){99}){99}){99}){99}){99})?.* label\n"),
    );
    let (fields, compiled) = (file("fields", "/a -x label\n"), scratch.path("compiled"));
    fs::write(&compiled, [0x8A, 0xFF, 0x7C, 0xF9, 1, 0, 0, 0]).unwrap();
    let config = file("config", "a 0 0 999\n");
    let usage: [(&[&str], i32, &[&str]); 11] = [
        (&["--exclude", "a["], 2, &["--exclude", "a["]),
        (&["--exclude", "/"], 2, &["--exclude", "names nothing"]),
        (&["--owner-map", "5"], 2, &["--owner-map", "FROM:TO"]),
        (&["--owner-map", "0-4294967294:1"], 2, &["past 4294967294"]),
        (&["--mtime", "yesterday"], 2, &["--mtime", "yesterday"]),
        (
            &["--file-contexts", &lookahead],
            1,
            &["line 2", "look-around"],
        ),
        (&["--file-contexts", &huge], 1, &["line 1", "256 KiB"]),
        (
            &["--file-contexts", &fields],
            1,
            &["fields", "line 1", "the kind"],
        ),
        (
            &["--file-contexts", compiled.to_str().unwrap()],
            1,
            &["a compiled file_contexts"],
        ),
        (
            &["--file-contexts", "/nonexistent/fc"],
            1,
            &["/nonexistent/fc", "no such file"],
        ),
        (&["--fs-config", &config], 1, &["config", "line 1", "octal"]),
    ];
    for (options, code, says) in usage {
        let image = scratch.path("x.img");
        let mut mkfs = program();
        mkfs.args(["mkfs", "-q", "--from"])
            .arg(&dir)
            .args(options)
            .arg(&image);
        refused(&mut mkfs, code, says);
        assert!(!image.exists(), "{options:?}");
    }
    // Not a listing at all, and one that is all of one line.
    let image = scratch.path("x.img");
    let binary = scratch.path("binary");
    let data = fs::File::create(&binary).unwrap();
    data.write_all_at(&[0xFF; 100], 0).unwrap();
    data.set_len(70 << 20).unwrap();
    let mut mkfs = program();
    mkfs.args(["mkfs", "-q", "--dumpfile"])
        .arg(&binary)
        .arg(&image);
    refused(&mut mkfs, 1, &["line 1", "longer than 64 MiB"]);
}
