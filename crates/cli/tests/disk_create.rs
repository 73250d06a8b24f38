//! Whole disks made by `disk create`, and changed by `disk add` and `resize --grow-partition`: other programs find nothing wrong with them.

mod common;

use blockwright_test_support::uml;
use common::run::{bw, good, hash, json, refused, source_tree};
use common::{Scratch, e2fsck_clean, fsck_f2fs_clean, have, have_fuse, ok, output, program};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// A tree for an EFI system partition.
fn esp(scratch: &Scratch) -> PathBuf {
    let dir = scratch.dir("esp");
    fs::create_dir_all(dir.join("EFI/BOOT")).unwrap();
    fs::write(dir.join("EFI/BOOT/BOOTX64.EFI"), vec![0x4D; 300_001]).unwrap();
    fs::write(dir.join("a long name.conf"), "title Linux\n").unwrap();
    dir
}

/// An archive of a tree, in which owners are numbers.
fn tar(tree: &Path, to: &Path) {
    ok(Command::new("tar")
        .args([
            "--sort=name",
            "--owner=0",
            "--group=0",
            "--numeric-owner",
            "-C",
        ])
        .arg(tree)
        .args(["-cf".as_ref(), to.as_os_str(), ".".as_ref()]));
}

fn create(scratch: &Scratch, name: &str, more: &[&str]) -> PathBuf {
    let disk = scratch.path(name);
    let (esp, root) = (esp(scratch), scratch.path("root.tar"));
    if !root.exists() {
        tar(&source_tree(scratch, "tree"), &root);
    }
    let mut command = program();
    command
        .env("SOURCE_DATE_EPOCH", "1700000000")
        .args(["disk", "create", "--sandbox=require", "-q", "-o"])
        .arg(&disk)
        .args(more)
        .arg(format!("esp={}:fat32", esp.display()))
        .arg(format!("root={}:ext4:auto+20M", root.display()));
    ok(command.args(["home=:f2fs:64M", "swap=:swap:8M"]));
    disk
}

/// A partition in a file of its own.
fn extracted(scratch: &Scratch, disk: &Path, part: &str) -> PathBuf {
    let to = scratch.path(&format!("extracted-{part}"));
    let _absent = fs::remove_file(&to);
    good(
        disk,
        &[
            "disk",
            "extract",
            "-q",
            "-o",
            to.to_str().unwrap(),
            &format!("IMAGE:{part}"),
        ],
    );
    to
}

fn verify(disk: &Path) {
    let said = ok(Command::new("sgdisk").arg("-v").arg(disk));
    assert!(said.contains("No problems found"), "{said}");
    let out = output(Command::new("sfdisk").arg("--verify").arg(disk));
    let said = [out.stdout, out.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(said.contains("No errors detected"), "{said}");
}

#[test]
fn a_whole_disk() {
    if ![
        "sgdisk",
        "sfdisk",
        "mtype",
        "fsck.fat",
        "fsck.f2fs",
        "qemu-img",
    ]
    .into_iter()
    .all(have)
    {
        return;
    }
    let scratch = Scratch::new();
    let disk = &create(&scratch, "disk.img", &["--gpt"]);
    verify(disk);
    let listed = json(disk, &["disk", "ls", "--json", "IMAGE"]);
    let column = |name: &str| -> Vec<String> {
        let parts = listed["partitions"].as_array().unwrap();
        parts
            .iter()
            .map(|p| p[name].as_str().unwrap_or("-").to_owned())
            .collect()
    };
    assert_eq!(column("name"), ["esp", "root", "home", "swap"]);
    assert_eq!(column("format")[..3], ["fat32", "ext4", "f2fs"]);
    let root = format!(
        "Linux root ({})",
        if cfg!(target_arch = "x86_64") {
            "x86-64"
        } else {
            "ARM64"
        }
    );
    assert_eq!(
        column("type_name"),
        ["EFI system", &root, "Linux home", "Linux swap"]
    );
    for part in listed["partitions"].as_array().unwrap() {
        assert_eq!(part["start"].as_u64().unwrap() % MIB, 0);
    }
    // FAT, as other programs read it.
    let volume = extracted(&scratch, disk, "p1");
    ok(Command::new("fsck.fat").arg("-n").arg(&volume));
    let file = output(
        Command::new("mtype")
            .arg("-i")
            .arg(&volume)
            .arg("::/EFI/BOOT/BOOTX64.EFI"),
    );
    assert!(file.stdout == vec![0x4D; 300_001]);
    let volume_start = u32::from_le_bytes(fs::read(&volume).unwrap()[28..32].try_into().unwrap());
    assert_eq!(volume_start, 2048, "sectors in front of the volume");
    // ext4 and f2fs.
    let volume = extracted(&scratch, disk, "p=root");
    e2fsck_clean(&volume, "the root partition");
    assert_eq!(good(disk, &["cat", "IMAGE:p2:/sub/file"]), "contents");
    fsck_f2fs_clean(&extracted(&scratch, disk, "p3"), "the home partition");
    for part in ["IMAGE:p2", "IMAGE:p=home"] {
        good(disk, &["check", part]);
    }
    let swap = ok(Command::new("blkid")
        .args(["-p", "-o", "export"])
        .arg(extracted(&scratch, disk, "p4")));
    assert!(swap.contains("TYPE=swap"), "{swap}");
}

#[test]
fn the_same_input_makes_the_same_bytes() {
    if !have("qemu-img") {
        return;
    }
    let scratch = Scratch::new();
    let raw = hash(&create(&scratch, "a.img", &[]));
    assert!(raw == hash(&create(&scratch, "b.img", &[])));
    for format in ["qcow2", "simg", "vhd", "vhd-fixed"] {
        let one = match format {
            "vhd-fixed" => create(&scratch, "a.fixed", &["--format", format]),
            _ => create(&scratch, &format!("a.{format}"), &[]),
        };
        let other = create(&scratch, "other", &["--format", format]);
        assert!(hash(&one) == hash(&other), "{format}");
        if format == "qcow2" {
            ok(Command::new("qemu-img").args(["check", "-q"]).arg(&one));
            let qemu = scratch.path("qemu.raw");
            ok(Command::new("qemu-img")
                .args(["convert", "-O", "raw"])
                .arg(&one)
                .arg(&qemu));
            assert!(hash(&qemu) == raw);
        }
        fs::remove_file(other).unwrap();
    }
    // Ids of volumes with the same contents differ, and do so without the variable as well.
    for epoch in [Some("1"), None] {
        let disk = scratch.path(&format!("twins-{epoch:?}"));
        let mut command = program();
        command
            .args(["disk", "create", "--json", "a=:ext4:8M", "b=:ext4:8M", "-o"])
            .arg(&disk);
        if let Some(epoch) = epoch {
            command.env("SOURCE_DATE_EPOCH", epoch);
        }
        let said: serde_json::Value = serde_json::from_str(&ok(&mut command)).unwrap();
        assert_ne!(said["partitions"][0]["uuid"], said["partitions"][1]["uuid"]);
    }
}

#[test]
fn an_mbr_sizes_and_images() {
    if !have("sfdisk") {
        return;
    }
    let scratch = Scratch::new();
    let image = scratch.path("data.img");
    good(&image, &["mkfs", "-q", "-L", "DATA", "IMAGE", "5M"]);
    let disk = &scratch.path("mbr.img");
    let raw = format!("data={}:raw", image.display());
    let args = [
        "disk",
        "create",
        "--mbr",
        "--size",
        "100M",
        "-o",
        "IMAGE",
        &raw,
        "rest=:ext4:fill",
        "swap=:swap:4M",
    ];
    let said = good(disk, &args);
    assert!(said.contains("Linux swap"), "{said}");
    assert_eq!(fs::metadata(disk).unwrap().len(), 100 * MIB);
    let out = output(Command::new("sfdisk").arg("--verify").arg(disk));
    let all = [out.stdout, out.stderr].concat();
    assert!(String::from_utf8_lossy(&all).contains("No errors detected"));
    let parts = json(disk, &["disk", "ls", "--json", "IMAGE"]);
    let bytes: Vec<u64> = (0..3)
        .map(|n| parts["partitions"][n]["bytes"].as_u64().unwrap() / MIB)
        .collect();
    assert_eq!(bytes, [5, 90, 4]);
    assert_eq!(parts["partitions"][0]["label"], "DATA");
    assert!(hash(&image) == hash(&extracted(&scratch, disk, "p1")));
    e2fsck_clean(&extracted(&scratch, disk, "p2"), "the rest of the disk");
}

#[test]
fn an_mbr_with_logical_partitions() {
    if !["sfdisk", "fdisk", "qemu-img"].into_iter().all(have) {
        return;
    }
    let scratch = Scratch::new();
    let tree = source_tree(&scratch, "tree");
    let root = format!("root={}:ext4:32M", tree.display());
    let sfdisk_clean = |disk: &Path| {
        let out = output(Command::new("sfdisk").arg("--verify").arg(disk));
        let all = [out.stdout, out.stderr].concat();
        let all = String::from_utf8_lossy(&all);
        assert!(all.contains("No errors detected"), "{all}");
    };
    for name in ["mbr.img", "mbr.qcow2"] {
        let disk = &scratch.path(name);
        let args = [
            "disk",
            "create",
            "--sandbox=require",
            "-q",
            "--mbr",
            "--size",
            "300M",
            "-o",
            "IMAGE",
        ];
        let parts = [
            "a=:swap:1M",
            "b=:ext4:2M",
            "c=:swap:1M",
            &root,
            "e=:f2fs:64M",
            "f=:swap:3M",
        ];
        let mut command = bw(disk, &args);
        ok(command.args(parts).env("SOURCE_DATE_EPOCH", "1"));
        let numbers = || -> Vec<u64> {
            let listed = json(disk, &["disk", "ls", "--json", "IMAGE"]);
            let parts = listed["partitions"].as_array().unwrap();
            parts
                .iter()
                .map(|p| p["number"].as_u64().unwrap())
                .collect()
        };
        assert_eq!(numbers(), [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(good(disk, &["cat", "IMAGE:p5:/sub/file"]), "contents");
        // The last one grows into the room behind it; then one is added behind that.
        let grow = [
            "resize",
            "--sandbox=require",
            "IMAGE:p6",
            "70M",
            "--grow-partition",
        ];
        refused(&mut bw(disk, &grow), 1, &["67108864"]);
        good(
            disk,
            &[
                "disk",
                "add",
                "--sandbox=require",
                "-q",
                "IMAGE",
                "g=:ext4:8M",
            ],
        );
        good(disk, &["disk", "add", "-q", "IMAGE", "h=:ext4:8M"]);
        good(disk, &["resize", "IMAGE:p9", "--fill", "--grow-partition"]);
        assert_eq!(numbers(), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
        refused(&mut bw(disk, &["ls", "IMAGE:p4"]), 1, &["extended"]);
        let raw = &scratch.path("as.raw");
        let _absent = fs::remove_file(raw);
        good(
            disk,
            &["disk", "convert", "-q", "IMAGE", raw.to_str().unwrap()],
        );
        sfdisk_clean(raw);
        // Each volume is where fdisk says, and the program that extracts it agrees.
        let dump = ok(Command::new("sfdisk").arg("--dump").arg(raw));
        let at = |number: u32| {
            let line = dump
                .lines()
                .find(|l| l.contains(&format!("as.raw{number} :")))
                .unwrap();
            let field = |name: &str| {
                let (_, after) = line.split_once(name).unwrap();
                let number = after.split(',').next().unwrap().trim();
                number.parse::<usize>().unwrap() * 512
            };
            let (start, bytes) = (field("start="), field("size="));
            fs::read(raw).unwrap()[start..start + bytes].to_vec()
        };
        for number in [5, 6, 9] {
            let volume = extracted(&scratch, disk, &format!("p{number}"));
            assert!(fs::read(&volume).unwrap() == at(number), "p{number}");
            match number {
                6 => fsck_f2fs_clean(&volume, "p6"),
                _ => e2fsck_clean(&volume, "a logical partition"),
            }
        }
    }
}

#[test]
fn what_cannot_be_leaves_nothing() {
    let scratch = Scratch::new();
    let disk = &scratch.path("disk.img");
    let tree = scratch.dir("tree");
    symlink("nowhere", tree.join("link")).unwrap();
    let fat = format!("esp={}:fat32", tree.display());
    let small = format!("root={}:ext4:1G", tree.display());
    for (args, code, says) in [
        (vec!["a=dir:xfs"], 2, vec!["xfs", "no type"]),
        (vec!["a=:ext4"], 1, vec!["partition a", "needs a size"]),
        (vec!["a=:ext4:1M", "a=:ext4:1M"], 1, vec!["two partitions"]),
        (vec![&fat[..]], 1, vec!["/link", "symbolic"]),
        (
            vec!["esp=:fat32:20M"],
            1,
            vec!["partition esp", "at least 33 MiB"],
        ),
        (
            vec!["--size", "100M", &small],
            1,
            vec!["too small", "1026 MiB"],
        ),
        (
            ["--mbr"].into_iter().chain(["=:swap:1M"; 60]).collect(),
            1,
            vec!["59"],
        ),
        (
            vec![
                "--mbr",
                "--size",
                "10M",
                "a=:swap:2M",
                "b=:swap:2M",
                "c=:swap:2M",
                "d=:swap:2M",
                "e=:swap:1M",
            ],
            1,
            vec!["too small", "12 MiB"],
        ),
        (vec!["a=/does/not/exist:ext4"], 1, vec!["/does/not/exist"]),
        (vec!["a=-:ext4", "b=-:ext4"], 2, vec!["read once"]),
        (vec!["a/b=:ext4:1M"], 1, vec!["`/`"]),
    ] {
        for name in ["disk.img", "disk.qcow2"] {
            let disk = &scratch.path(name);
            let mut command = bw(disk, &["disk", "create", "-q", "-o", "IMAGE"]);
            refused(command.args(&args).stdin(Stdio::null()), code, &says);
            assert!(!disk.exists());
        }
    }
    fs::write(disk, "precious").unwrap();
    refused(
        &mut bw(disk, &["disk", "create", "-o", "IMAGE", "a=:ext4:1M"]),
        1,
        &["exists"],
    );
    assert_eq!(fs::read(disk).unwrap(), b"precious");
    let left: Vec<_> = fs::read_dir(disk.parent().unwrap())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn a_partition_is_added_and_another_one_grows() {
    if !["sgdisk", "sfdisk", "qemu-img", "fsck.fat"]
        .into_iter()
        .all(have)
    {
        return;
    }
    let scratch = Scratch::new();
    let tree = source_tree(&scratch, "tree");
    for name in ["disk.img", "disk.qcow2"] {
        let disk = &scratch.path(name);
        let root = format!("root={}:ext4:32M", tree.display());
        let args = [
            "disk",
            "create",
            "-q",
            "--size",
            "256M",
            "-o",
            "IMAGE",
            &root,
            "home=:ext4:16M",
        ];
        good(disk, &args);
        let raw = |check: &dyn Fn(&Path)| {
            let copy = scratch.path("copy.raw");
            let _absent = fs::remove_file(&copy);
            good(
                disk,
                &["disk", "convert", "-q", "IMAGE", copy.to_str().unwrap()],
            );
            check(&copy);
        };
        // In front of it is no room; behind it there is.
        let said = bw(disk, &["resize", "IMAGE:p1", "64M", "--grow-partition"]);
        refused(&mut { said }, 1, &["33554432 bytes", "67108864"]);
        good(
            disk,
            &[
                "resize",
                "--sandbox=require",
                "IMAGE:p2",
                "64M",
                "--grow-partition",
            ],
        );
        raw(&verify);
        e2fsck_clean(&extracted(&scratch, disk, "p2"), "grown");
        let bytes = json(disk, &["df", "--json", "IMAGE:p2"])["size"]
            .as_u64()
            .unwrap();
        assert!(bytes > 50 * MIB, "{bytes}");
        let esp = format!("esp={}:fat32:40M", esp(&scratch).display());
        good(
            disk,
            &["disk", "add", "--sandbox=require", "-q", "IMAGE", &esp],
        );
        good(disk, &["disk", "add", "-q", "IMAGE", "data=:f2fs:fill"]);
        raw(&verify);
        ok(Command::new("fsck.fat")
            .arg("-n")
            .arg(extracted(&scratch, disk, "p3")));
        fsck_f2fs_clean(&extracted(&scratch, disk, "p4"), "added");
        good(disk, &["check", "IMAGE:p=data"]);
        assert_eq!(good(disk, &["cat", "IMAGE:p1:/sub/file"]), "contents");
        refused(
            &mut bw(disk, &["disk", "add", "IMAGE", "more=:ext4:1M"]),
            1,
            &["largest free range"],
        );
        refused(
            &mut bw(disk, &["disk", "add", "IMAGE", "data=:ext4:1M"]),
            1,
            &["data already"],
        );
    }
    // A longer disk: the last partition takes what is new, and the backup of the table moves.
    let disk = &scratch.path("long.img");
    good(
        disk,
        &["disk", "create", "-q", "-o", "IMAGE", "root=:ext4:16M"],
    );
    fs::File::options()
        .write(true)
        .open(disk)
        .unwrap()
        .set_len(300 * MIB)
        .unwrap();
    let before = hash(disk);
    good(
        disk,
        &["resize", "-n", "IMAGE:p=root", "--fill", "--grow-partition"],
    );
    assert!(hash(disk) == before);
    good(
        disk,
        &["resize", "IMAGE:p=root", "--fill", "--grow-partition"],
    );
    verify(disk);
    e2fsck_clean(&extracted(&scratch, disk, "p1"), "grown to the end");
    let size = json(disk, &["disk", "ls", "--json", "IMAGE"])["partitions"][0]["bytes"]
        .as_u64()
        .unwrap();
    assert!(size > 297 * MIB, "{size}");
    refused(
        &mut bw(disk, &["resize", "IMAGE", "--fill", "--grow-partition"]),
        2,
        &["needs a partition"],
    );
}

/// A first program without libraries: see its head.
fn first_program(scratch: &Scratch) -> PathBuf {
    let program = scratch.path("init");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/boot/init.c");
    let mut cc = Command::new("cc");
    ok(cc.args(["-static", "-Os", "-o"]).arg(&program).arg(source));
    program
}

/// An archive for an initial RAM disk, in cpio's "newc" format.
fn initial_ram_disk(files: &[(&str, PathBuf)]) -> Vec<u8> {
    let mut out = Vec::new();
    let contents = |path: &PathBuf| fs::read(path).unwrap();
    let files = files.iter().map(|(name, path)| (*name, contents(path)));
    for (number, (name, data)) in (1..).zip(files.chain([("TRAILER!!!", Vec::new())])) {
        let (length, name_length) = (data.len(), name.len() + 1);
        out.extend(b"070701");
        for field in [
            number,
            0o100_755,
            0,
            0,
            1,
            0,
            length,
            0,
            0,
            0,
            0,
            name_length,
            0,
        ] {
            out.extend(format!("{field:08X}").bytes());
        }
        for part in [[name.as_bytes(), b"\0"].concat(), data] {
            out.extend(part);
            out.resize(out.len().next_multiple_of(4), 0);
        }
    }
    out
}

/// Linux has its root on a partition that `disk create` made, writes to it, and powers off. `cargo xtask boot` does this with a whole Debian.
#[test]
fn linux_boots_from_a_disk_made_by_one_command() {
    if !uml::available()
        || !["cc", "e2fsck", "fsck.f2fs", "qemu-img"]
            .into_iter()
            .all(have)
    {
        return;
    }
    let scratch = Scratch::new();
    let tree = source_tree(&scratch, "tree");
    let init = first_program(&scratch);
    for dir in ["sbin", "proc", "dev"] {
        fs::create_dir_all(tree.join(dir)).unwrap();
    }
    fs::copy(&init, tree.join("sbin/init")).unwrap();
    let modules = fs::read_dir("/usr/lib/uml/modules").unwrap();
    let modules = modules.last().unwrap().unwrap().path().join("kernel");
    let ram_disk = scratch.path("initrd");
    let files = [
        ("init", init),
        ("crc32_generic.ko", modules.join("crypto/crc32_generic.ko")),
        ("f2fs.ko", modules.join("fs/f2fs/f2fs.ko")),
    ];
    fs::write(&ram_disk, initial_ram_disk(&files)).unwrap();
    let on_f2fs = [format!("initrd={}", ram_disk.display())];
    let on_ext4 = ["root=/dev/ubda2".to_owned(), "rootfstype=ext4".to_owned()];
    for (kind, size, arguments) in [("ext4", "auto+8M", &on_ext4[..]), ("f2fs", "64M", &on_f2fs)] {
        let disk = &scratch.path(&format!("{kind}.qcow2"));
        let root = format!("root={}:{kind}:{size}", tree.display());
        let args = [
            "disk",
            "create",
            "-q",
            "--gpt",
            "-o",
            "IMAGE",
            "boot=:ext4:4M",
            &root,
        ];
        good(disk, &[&args[..], &["home=:f2fs:64M"]].concat());
        let raw = &scratch.path("disk.raw");
        let _absent = fs::remove_file(raw);
        good(
            disk,
            &["disk", "convert", "-q", "IMAGE", raw.to_str().unwrap()],
        );
        let out = scratch.dir(&format!("out-{kind}"));
        let console = uml::boot(&out, raw, arguments, Duration::from_secs(120));
        let mounts = output(&mut bw(raw, &["cat", "IMAGE:p2:/mounts-inside"]));
        let mounts = String::from_utf8_lossy(&mounts.stdout).into_owned();
        assert!(
            mounts.contains(&format!(" / {kind} rw")),
            "{mounts}\n{console}"
        );
        // In the container again: the same file, and nothing is wrong.
        let after = &scratch.path(&format!("after-{kind}.qcow2"));
        good(
            raw,
            &["disk", "convert", "-q", "IMAGE", after.to_str().unwrap()],
        );
        assert_eq!(good(after, &["cat", "IMAGE:p=root:/mounts-inside"]), mounts);
        good(after, &["check", "-n", "IMAGE:p2"]);
        verify(raw);
        let volume = extracted(&scratch, after, "p2");
        match kind {
            "ext4" => e2fsck_clean(&volume, "the root that was booted"),
            _ => fsck_f2fs_clean(&volume, "the root that was booted"),
        }
    }
}

/// The commands of a section of README: lines of its first block that begin with `$ `, without their remarks.
fn readme_commands(section: &str) -> Vec<String> {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = fs::read_to_string(readme).unwrap();
    let (_, after) = readme.split_once(&format!("## {section}\n")).unwrap();
    let (_, block) = after.split_once("```console\n").unwrap();
    let (block, _) = block.split_once("```\n").unwrap();
    let lines = block.lines().filter_map(|line| line.strip_prefix("$ "));
    let command = |line: &str| line.split("  #").next().unwrap_or(line).trim().to_owned();
    lines.map(command).collect()
}

#[test]
fn the_life_of_a_disk_goes_as_the_readme_tells() {
    if !["sgdisk", "sfdisk", "fsck.f2fs", "e2fsck"]
        .into_iter()
        .all(have)
    {
        return;
    }
    let scratch = Scratch::new();
    fs::rename(esp(&scratch), scratch.path("boot")).unwrap();
    let tree = source_tree(&scratch, "tree");
    fs::create_dir_all(tree.join("etc")).unwrap();
    tar(&tree, &scratch.path("rootfs.tar"));
    fs::write(scratch.path("motd"), "Welcome\n").unwrap();
    fs::create_dir_all(scratch.path("photos")).unwrap();
    fs::write(scratch.path("photos/1.jpg"), vec![0x11; 3 << 20]).unwrap();
    scratch.dir("mnt");
    let program = PathBuf::from(program().get_program());
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", program.parent().unwrap().display());
    let commands = readme_commands("The life of a disk in ten commands");
    assert_eq!(commands.len(), 10);
    let mut printed = Vec::new();
    for command in &commands {
        if command.contains(" mount ") && !have_fuse() {
            continue;
        }
        let mut shell = Command::new("sh");
        shell.args(["-ec", command]).current_dir(scratch.path("."));
        printed.push(ok(shell.env("PATH", &path)));
    }
    assert_eq!(printed[3], "Welcome\n");
    let disk = scratch.path("vm.img");
    verify(&disk);
    e2fsck_clean(&extracted(&scratch, &disk, "p=root"), "root");
    fsck_f2fs_clean(&extracted(&scratch, &disk, "p=home"), "home");
    let info = json(&disk, &["info", "--json", "IMAGE:p=root"]);
    assert_eq!(info["label"], "system", "{info}");
}
