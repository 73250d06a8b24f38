//! Disks with partitions, as sgdisk and sfdisk make them: every command takes one, and what is beside it stays as it is.

mod common;

use common::run::{bw, good, hash, json, refused, stderr, with_input};
use common::{Mounted, Scratch, e2fsck_clean, have, have_fuse, ok, output, program};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const MIB: u64 = 1 << 20;

/// A disk with a small first partition, 16 MiB for `root` and 64 MiB for `home`.
fn gpt(scratch: &Scratch) -> PathBuf {
    let disk = scratch.path("disk.img");
    fs::File::create(&disk).unwrap().set_len(100 * MIB).unwrap();
    ok(Command::new("sgdisk")
        .args(["-n1:1M:+1M", "-c1:esp", "-t1:ef00"])
        .args(["-n2:4M:+16M", "-c2:root", "-n3:24M:+64M", "-c3:home disk"])
        .arg(&disk));
    disk
}

/// An MBR with two primary and two logical partitions.
fn mbr(scratch: &Scratch) -> PathBuf {
    let disk = scratch.path("mbr.img");
    fs::File::create(&disk).unwrap().set_len(64 * MIB).unwrap();
    let script = "label: dos\nstart=2048, size=16384, type=83\nstart=20480, size=100000, type=f\n\
        start=22528, size=16384, type=83\nstart=45056, size=32768, type=82\n";
    let out = with_input(Command::new("sfdisk").arg(&disk), script.as_bytes());
    assert!(out.status.success(), "{}", stderr(&out));
    disk
}

fn part(disk: &Path, selector: &str) -> PathBuf {
    let mut name = disk.as_os_str().to_owned();
    name.push(selector);
    name.into()
}

/// Copies a range of a disk into a file of its own.
fn cut(disk: &Path, start: u64, bytes: u64, to: &Path) {
    let mut all = vec![0; bytes as usize];
    fs::File::open(disk)
        .unwrap()
        .read_exact_at(&mut all, start)
        .unwrap();
    fs::write(to, all).unwrap();
}

/// A command that is given the disk and not a partition says so, and which partitions there are.
#[test]
fn a_disk_without_a_partition_s_name_is_told_apart_from_a_volume() {
    if !have("sgdisk") || !have("sfdisk") {
        return;
    }
    let scratch = Scratch::new();
    for disk in [gpt(&scratch), mbr(&scratch)] {
        let before = hash(&disk);
        for (args, code) in [
            (&["ls", "IMAGE:/"][..], 1),
            (&["tree", "IMAGE:/"], 1),
            (&["cat", "IMAGE:/a"], 1),
            (&["stat", "IMAGE:/a"], 1),
            (&["du", "IMAGE:/"], 1),
            (&["df", "IMAGE"], 1),
            (&["extents", "IMAGE:/a"], 1),
            (&["getxattr", "IMAGE:/a"], 1),
            (&["info", "IMAGE"], 1),
            (&["check", "IMAGE"], 8),
            (&["check", "-y", "IMAGE"], 8),
            (&["export", "IMAGE"], 1),
            (&["cp", "IMAGE:/a", "-"], 1),
            (&["mv", "IMAGE:/a", "IMAGE:/b"], 1),
            (&["rm", "IMAGE:/a"], 1),
            (&["mkdir", "IMAGE:/a"], 1),
            (&["touch", "IMAGE:/a"], 1),
            (&["chmod", "644", "IMAGE:/a"], 1),
            (&["setxattr", "-n", "user.a", "IMAGE:/a"], 1),
            (&["quota", "IMAGE"], 1),
            (&["trim", "IMAGE"], 1),
            (&["set", "IMAGE", "label=x"], 1),
            (&["resize", "IMAGE", "--minimum"], 1),
        ] {
            let says = ["a disk with partitions", "`:p1` behind the image's name"];
            refused(&mut bw(&disk, args), code, &says);
        }
        assert_eq!(hash(&disk), before);
    }
}

#[test]
fn every_command_takes_a_partition() {
    if !have("sgdisk") {
        return;
    }
    let scratch = Scratch::new();
    let disk = &gpt(&scratch);
    let sandbox = "--sandbox=require";
    fs::File::options()
        .write(true)
        .open(disk)
        .unwrap()
        .write_all_at(&[0xA5; 512], MIB)
        .unwrap();
    let tree = scratch.dir("tree");
    fs::write(tree.join("hosts"), "127.0.0.1 localhost\n").unwrap();
    let from = tree.to_str().unwrap();
    good(
        disk,
        &["mkfs", "-q", "-L", "ROOT", "--from", from, "IMAGE:p2"],
    );
    good(disk, &["mkfs", "-q", "-t", "f2fs", "IMAGE:p=home disk"]);
    refused(
        &mut bw(disk, &["mkfs", "IMAGE:p2"]),
        1,
        &["holds an ext2", "-F"],
    );
    for how in [sandbox, "--sandbox=off"] {
        assert_eq!(
            good(disk, &["cat", how, "IMAGE:p2:/hosts"]),
            "127.0.0.1 localhost\n"
        );
        assert_eq!(
            good(disk, &["ls", how, "IMAGE:p=root"]),
            "hosts\nlost+found\n"
        );
        let copy = ["cp", how, "IMAGE:p2:/hosts", "IMAGE:p3:/copied"];
        good(disk, &copy);
        assert_eq!(
            good(disk, &["cat", how, "IMAGE:p3:copied"]),
            "127.0.0.1 localhost\n"
        );
        good(disk, &["mkdir", how, "-p", "IMAGE:p2:/a/b"]);
        good(disk, &["mv", how, "IMAGE:p2:/a/b", "IMAGE:p2:/a/c"]);
        refused(
            &mut bw(disk, &["mv", how, "IMAGE:p2:/a/c", "IMAGE:p3:/"]),
            2,
            &["inside one image"],
        );
        good(disk, &["rm", how, "-r", "IMAGE:p2:/a"]);
        for selector in ["IMAGE:p2", "IMAGE:p3"] {
            good(disk, &["check", how, selector]);
            let bytes = json(disk, &["df", how, "--json", selector])["size"]
                .as_u64()
                .unwrap();
            assert!(bytes < 64 * MIB, "{bytes}");
            good(disk, &["info", how, selector]);
        }
        let tar = scratch.path("out.tar");
        good(
            disk,
            &["export", how, "-o", tar.to_str().unwrap(), "IMAGE:p2"],
        );
        assert!(ok(Command::new("tar").arg("tf").arg(&tar)).contains("hosts"));
        refused(
            &mut bw(
                disk,
                &["export", how, "-o", disk.to_str().unwrap(), "IMAGE:p2"],
            ),
            2,
            &["disk.img"],
        );
        refused(
            &mut bw(disk, &["cp", how, "IMAGE:p=root:/hosts", "IMAGE:p2:/twice"]),
            1,
            &["name it the same way"],
        );
    }
    // All that was written is where it belongs.
    let volume = scratch.path("root.img");
    cut(disk, 4 * MIB, 16 * MIB, &volume);
    e2fsck_clean(&volume, "a partition");
    let mut beside = [0; 1024];
    fs::File::open(disk)
        .unwrap()
        .read_exact_at(&mut beside, MIB)
        .unwrap();
    assert!(beside[..512] == [0xA5; 512] && beside[512..] == [0; 512]);
    let verdict = ok(Command::new("sgdisk").arg("-v").arg(disk));
    assert!(verdict.contains("No problems found"), "{verdict}");
}

#[test]
fn a_partition_is_mounted() {
    if !have("sgdisk") || !have_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let (disk, mnt) = (&gpt(&scratch), scratch.dir("mnt"));
    good(disk, &["mkfs", "-q", "IMAGE:p2"]);
    good(disk, &["mkfs", "-q", "-t", "f2fs", "IMAGE:p3"]);
    for selector in [":p=root", ":p3"] {
        let image = part(disk, selector);
        let mounted = Mounted::new(&image, &mnt, "rw");
        fs::write(mnt.join("file"), "hello").unwrap();
        refused(&mut bw(disk, &["ls", "IMAGE:p2"]), 1, &["in use"]);
        mounted.unmount();
        assert_eq!(good(&image, &["cat", "IMAGE:/file"]), "hello");
        good(&image, &["check", "IMAGE"]);
        // A server that dies is noticed: the state is looked for where the partition is.
        let mounted = Mounted::new(&image, &mnt, "rw");
        fs::write(mnt.join("file"), "again").unwrap();
        ok(Command::new("kill").args(["-9", &mounted.pid().to_string()]));
        std::thread::sleep(std::time::Duration::from_millis(300));
        refused(
            program().arg("umount").arg(&mnt),
            1,
            &["did not close the volume cleanly"],
        );
        drop(mounted);
    }
    let volume = scratch.path("root.img");
    cut(disk, 4 * MIB, 16 * MIB, &volume);
    let out = output(Command::new("e2fsck").arg("-fp").arg(&volume));
    assert!(out.status.code().is_some_and(|code| code <= 1), "{out:?}");
}

#[test]
fn tables_are_listed() {
    if !have("sgdisk") || !have("sfdisk") {
        return;
    }
    let scratch = Scratch::new();
    let disk = &gpt(&scratch);
    good(disk, &["mkfs", "-q", "-L", "ROOT", "IMAGE:p2"]);
    let before = hash(disk);
    let found = json(disk, &["disk", "ls", "--json", "IMAGE"]);
    assert_eq!(found["table"], "gpt");
    let printed = ok(Command::new("sgdisk").arg("-p").arg(disk)).to_lowercase();
    assert!(
        printed.contains(found["id"].as_str().unwrap()),
        "{printed}\n{found}"
    );
    let parts = found["partitions"].as_array().unwrap();
    let row = |n: usize| {
        (
            parts[n]["start"].as_u64().unwrap(),
            parts[n]["bytes"].as_u64().unwrap(),
        )
    };
    assert_eq!(
        [row(0), row(1), row(2)],
        [(MIB, MIB), (4 * MIB, 16 * MIB), (24 * MIB, 64 * MIB)]
    );
    assert_eq!(
        (&parts[1]["format"], &parts[1]["label"], &parts[1]["name"]),
        (&"ext4".into(), &"ROOT".into(), &"root".into())
    );
    assert_eq!(parts[0]["type_name"], "EFI system");
    assert!(found.get("remarks").is_none());
    let text = good(disk, &["disk", "ls", "IMAGE"]);
    assert!(text.contains("home disk") && text.contains("p3"), "{text}");
    // The table in the front is gone: its copy is used, and that is said.
    let file = fs::File::options().write(true).open(disk).unwrap();
    file.write_all_at(&[0; 512], 512).unwrap();
    let out = output(&mut bw(disk, &["disk", "ls", "IMAGE"]));
    assert!(
        out.status.success() && stderr(&out).contains("the backup is"),
        "{out:?}"
    );
    good(disk, &["ls", "IMAGE:p=root"]);
    ok(Command::new("sgdisk").arg("-e").arg(disk));
    assert_eq!(hash(disk), before, "sgdisk has restored what was there");

    let disk = &mbr(&scratch);
    let found = json(disk, &["disk", "ls", "--json", "IMAGE"]);
    let numbers: Vec<u64> = found["partitions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| p["number"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, [1, 2, 5, 6]);
    let dump: serde_json::Value =
        serde_json::from_str(&ok(Command::new("sfdisk").arg("--json").arg(disk))).unwrap();
    let table = &dump["partitiontable"];
    assert_eq!(
        table["id"].as_str().unwrap(),
        format!("0x{}", found["id"].as_str().unwrap())
    );
    for (ours, theirs) in found["partitions"]
        .as_array()
        .unwrap()
        .iter()
        .zip(table["partitions"].as_array().unwrap())
    {
        assert_eq!(
            ours["start"].as_u64().unwrap(),
            theirs["start"].as_u64().unwrap() * 512
        );
        assert_eq!(
            ours["bytes"].as_u64().unwrap(),
            theirs["size"].as_u64().unwrap() * 512
        );
    }
    good(disk, &["mkfs", "-q", "IMAGE:p5"]);
    good(disk, &["check", "IMAGE:p5"]);
}

#[test]
fn mistakes_with_partitions_are_explained() {
    if !have("sgdisk") || !have("sfdisk") {
        return;
    }
    let scratch = Scratch::new();
    let disk = &gpt(&scratch);
    refused(
        &mut bw(disk, &["ls", "IMAGE"]),
        1,
        &["disk with partitions", "p2 (root)", "`:p1`"],
    );
    refused(
        &mut bw(disk, &["ls", "IMAGE:p7"]),
        1,
        &["no partition p7", "p3 (home disk)"],
    );
    refused(
        &mut bw(disk, &["check", "IMAGE:p=nothing"]),
        8,
        &["no partition p=nothing"],
    );
    refused(
        &mut bw(disk, &["ls", "IMAGE:p1"]),
        1,
        &["disk.img:p1", "only zeroes"],
    );
    refused(
        &mut bw(disk, &["mount", "IMAGE:p7", "/mnt"]),
        1,
        &["no partition p7"],
    );
    let plain = &scratch.path("plain.img");
    good(plain, &["mkfs", "-q", "IMAGE", "8M"]);
    refused(
        &mut bw(plain, &["ls", "IMAGE:p1"]),
        1,
        &["no table of partitions"],
    );
    let text = good(plain, &["disk", "ls", "IMAGE"]);
    assert!(text.contains("raw, without partitions: ext4"), "{text}");
    let missing = &scratch.path("missing.img");
    refused(&mut bw(missing, &["ls", "IMAGE:p1"]), 1, &["no such file"]);
    let disk = &mbr(&scratch);
    refused(&mut bw(disk, &["ls", "IMAGE:p2"]), 1, &["extended", "p5"]);
    // A file whose name looks like a partition is that file.
    let odd = &scratch.path("odd.img:p1");
    fs::rename(plain, odd).unwrap();
    good(odd, &["ls", "IMAGE"]);
    good(odd, &["ls", "IMAGE:/"]);
}

/// A partition that cannot grow: the reason is told, and no byte changes, neither of the disk nor of the file around it.
#[test]
fn a_refused_growth_of_a_partition_changes_nothing() {
    let tools = ["sgdisk", "sfdisk", "qemu-img", "debugfs"];
    if !tools.into_iter().all(have) {
        return;
    }
    let scratch = Scratch::new();
    let keeps = |disk: &Path, part: &str, size: &str, says: &[&str]| {
        let before = fs::read(disk).unwrap();
        let image = format!("IMAGE:{part}");
        let all: [&[&str]; 2] = [&[], &["-n"]];
        for more in &all {
            let words = ["resize", &image, size, "--grow-partition"];
            refused(&mut bw(disk, &[&words[..], more].concat()), 1, says);
            assert!(
                fs::read(disk).unwrap() == before,
                "{disk:?} {part} {size} {more:?}"
            );
        }
    };
    let disk = &gpt(&scratch);
    good(disk, &["mkfs", "-q", "IMAGE:p2"]);
    good(disk, &["mkfs", "-q", "-t", "f2fs", "IMAGE:p3"]);
    let next = ["20971520 bytes", "33554432", "partition 3 begins"];
    keeps(disk, "p2", "32M", &next);
    keeps(disk, "p=root", "+5M", &["20971520 bytes", "22020096"]);
    let end = ["209715200 asked for", "the disk has 104857600"];
    keeps(disk, "p3", "200M", &end);
    keeps(disk, "p7", "32M", &["no partition p7"]);
    keeps(disk, "p1", "2M", &["disk.img:p1", "only zeroes"]);
    // In containers: the disk does not become larger, and some are only read.
    for format in ["qcow2", "vhd-fixed", "vhd", "simg"] {
        let inside = &scratch.path(&format!("d.{format}"));
        let to = inside.to_str().unwrap();
        let convert = ["disk", "convert", "-q", "IMAGE", to, "--format", format];
        good(disk, &convert);
        match format {
            "qcow2" | "vhd-fixed" => {
                keeps(inside, "p2", "32M", &next);
                keeps(inside, "p3", "200M", &end);
            }
            _ => keeps(inside, "p2", "18M", &["read-only"]),
        }
    }
    // A volume that refuses to change, in a partition that could.
    let errors = scratch.path("errors.img");
    fs::copy(disk, &errors).unwrap();
    ok(Command::new("debugfs")
        .args(["-w", "-R", "set_super_value state 2"])
        .arg(format!("{}?offset={}", errors.display(), 4 * MIB)));
    keeps(&errors, "p2", "18M", &["check"]);
    // Entries in another place than usual.
    let moved = &scratch.path("moved.img");
    fs::copy(disk, moved).unwrap();
    ok(Command::new("sgdisk").args(["-j", "40"]).arg(moved));
    keeps(moved, "p2", "18M", &["not in sector 2"]);
    // Both copies of the table.
    let file = fs::File::options().write(true).open(disk).unwrap();
    file.write_all_at(&[0; 512], 100 * MIB - 512).unwrap();
    file.write_all_at(&[0xFF; 8], 512 + 56).unwrap();
    keeps(disk, "p2", "18M", &["GPT"]);

    let disk = &mbr(&scratch);
    for part in ["IMAGE:p1", "IMAGE:p5", "IMAGE:p6"] {
        good(disk, &["mkfs", "-q", part]);
    }
    keeps(disk, "p1", "10M", &["9437184 bytes", "partition 2 begins"]);
    // In front of p6 is the record that leads to it. Behind p6 the extended partition can grow, to the end of the disk.
    keeps(disk, "p5", "16M", &["10485760 bytes", "16777216"]);
    keeps(
        disk,
        "p6",
        "64M",
        &["44040192 bytes", "the disk has 67108864"],
    );
    keeps(disk, "p2", "30M", &["extended"]);
    let whole = fs::read(disk).unwrap();
    let changed = |at: u64, bytes: &[u8]| {
        let damaged = scratch.path("damaged.img");
        fs::write(&damaged, &whole).unwrap();
        let file = fs::File::options().write(true).open(&damaged).unwrap();
        file.write_all_at(bytes, at).unwrap();
        damaged
    };
    // The record of p6 is none; p1 reaches into the extended partition; p6 lies in p5.
    let not_changed = "a table with such a partition is not changed";
    let broken = changed(43008 * 512 + 510, &[0, 0]);
    keeps(&broken, "p5", "9M", &[not_changed]);
    keeps(&broken, "p1", "9M", &[not_changed]);
    let overlaps = changed(0x1BE + 12, &40_000u32.to_le_bytes());
    keeps(&overlaps, "p1", "20M", &["overlaps"]);
    keeps(&overlaps, "p6", "17M", &[not_changed]);
    let inside = changed(43008 * 512 + 0x1BE + 8, &0u32.to_le_bytes());
    keeps(&inside, "p1", "9M", &[not_changed]);
}

/// The volume in a qcow2 image, a partition of one, and an image with a backing file: as any other image, and qemu finds no fault.
#[test]
fn qcow2_images_are_images() {
    if !have("qemu-img") || !have("sgdisk") {
        return;
    }
    let scratch = Scratch::new();
    let tree = scratch.dir("tree");
    fs::write(tree.join("file"), vec![7; 300_000]).unwrap();
    let image = &scratch.path("d.qcow2");
    let checked = |image: &Path| {
        let text = ok(Command::new("qemu-img").arg("check").arg(image));
        assert!(text.contains("No errors"), "{text}");
    };
    ok(Command::new("qemu-img")
        .args(["create", "-q", "-f", "qcow2"])
        .arg(image)
        .arg("64M"));
    let from = tree.to_str().unwrap();
    good(image, &["mkfs", "-q", "--from", from, "IMAGE"]);
    refused(
        &mut bw(image, &["mkfs", "IMAGE"]),
        1,
        &["holds an ext2", "-F"],
    );
    checked(image);
    let raw = scratch.path("raw");
    ok(Command::new("qemu-img")
        .args(["convert", "-O", "raw"])
        .args([image, &raw]));
    e2fsck_clean(&raw, "the disk in a qcow2 image");
    for how in ["--sandbox=require", "--sandbox=off"] {
        assert_eq!(good(image, &["cat", how, "IMAGE:/file"]).len(), 300_000);
        good(image, &["cp", how, "-r", from, "IMAGE:/copied"]);
        good(image, &["check", how, "IMAGE"]);
        good(image, &["rm", how, "-r", "IMAGE:/copied"]);
        checked(image);
        let found = json(image, &["disk", "ls", how, "--json", "IMAGE"]);
        assert_eq!(
            (&found["container"], &found["format"]),
            (&"qcow2".into(), &"ext4".into())
        );
    }
    // The volume changes its size, and the file is not cut.
    for size in ["40M", "--minimum", "--fill"] {
        good(image, &["resize", "IMAGE", size]);
        good(image, &["check", "IMAGE"]);
        assert_eq!(good(image, &["cat", "IMAGE:/file"]).len(), 300_000);
        checked(image);
    }
    // On top of it, with the lower image untouched.
    let top = &scratch.path("top.qcow2");
    ok(Command::new("qemu-img")
        .args([
            "create", "-q", "-f", "qcow2", "-b", "d.qcow2", "-F", "qcow2",
        ])
        .arg(top));
    let before = hash(image);
    for how in ["--sandbox=require", "--sandbox=off"] {
        good(top, &["mkdir", how, "-p", "IMAGE:/a/b"]);
        assert_eq!(good(top, &["cat", how, "IMAGE:/file"]).len(), 300_000);
        good(top, &["check", how, "IMAGE"]);
        checked(top);
    }
    assert_eq!(hash(image), before);
    let below = scratch.dir("below");
    let away = &below.join("away.qcow2");
    ok(Command::new("qemu-img")
        .args([
            "create",
            "-q",
            "-f",
            "qcow2",
            "-b",
            "../d.qcow2",
            "-F",
            "qcow2",
        ])
        .arg(away));
    for how in ["--sandbox=require", "--sandbox=off"] {
        refused(
            &mut bw(away, &["ls", how, "IMAGE"]),
            1,
            &["outside of the image's folder", "--allow-backing"],
        );
        good(away, &["ls", how, "--allow-backing", "IMAGE"]);
    }
    // An external data file, beside the image and elsewhere.
    for raw in ["off", "on"] {
        let (image, data) = (
            &below.join(format!("e-{raw}.qcow2")),
            below.join(format!("e-{raw}.raw")),
        );
        let options = format!("data_file={},data_file_raw={raw}", data.display());
        ok(Command::new("qemu-img")
            .args(["create", "-q", "-f", "qcow2", "-o", &options])
            .arg(image)
            .arg("96M"));
        // Only the image names that file: it is read, and written when the user allows that.
        let says = ["external data file", "written to", "--allow-backing"];
        let allow = "--allow-backing";
        let mkfs = ["mkfs", "-q", "--from", from, "IMAGE"];
        refused(&mut bw(image, &mkfs), 1, &says);
        good(image, &[&mkfs[..], &[allow]].concat());
        for how in ["--sandbox=require", "--sandbox=off"] {
            let copy = ["cp", how, "IMAGE:/file", "IMAGE:/twice"];
            refused(&mut bw(image, &copy), 1, &says);
            good(image, &[&copy[..], &[allow]].concat());
            assert_eq!(good(image, &["cat", how, "IMAGE:/twice"]).len(), 300_000);
            good(image, &["check", "-n", how, "IMAGE"]);
        }
        ok(Command::new("qemu-img").arg("check").arg(image));
        if raw == "on" {
            assert_eq!(good(&data, &["cat", "IMAGE:/twice"]).len(), 300_000);
        }
        let inner = scratch.dir(&format!("inner-{raw}"));
        let away = &inner.join("away.qcow2");
        fs::copy(image, away).unwrap();
        for how in ["--sandbox=require", "--sandbox=off"] {
            let says = [
                "external data file",
                "outside of the image's folder",
                "--allow-backing",
            ];
            refused(&mut bw(away, &["ls", how, "IMAGE"]), 1, &says);
            good(away, &["rm", how, "--allow-backing", "IMAGE:/twice"]);
            good(
                away,
                &["cp", how, "--allow-backing", "IMAGE:/file", "IMAGE:/twice"],
            );
        }
    }
    // A disk with partitions inside.
    let disk = &gpt(&scratch);
    let packed = &scratch.path("disk.qcow2");
    ok(Command::new("qemu-img")
        .args(["convert", "-O", "qcow2"])
        .args([disk, packed]));
    good(packed, &["mkfs", "-q", "--from", from, "IMAGE:p2"]);
    good(packed, &["mkfs", "-q", "-t", "f2fs", "IMAGE:p=home disk"]);
    good(packed, &["cp", "IMAGE:p2:/file", "IMAGE:p3:/file"]);
    assert_eq!(good(packed, &["cat", "IMAGE:p3:/file"]).len(), 300_000);
    checked(packed);
    if have_fuse() {
        let mnt = scratch.dir("mnt");
        for selector in [":p2", ":p3"] {
            let part = part(packed, selector);
            let mounted = Mounted::new(&part, &mnt, "rw");
            fs::write(mnt.join("written"), vec![3; 5 << 20]).unwrap();
            mounted.unmount();
            good(&part, &["check", "IMAGE"]);
            assert_eq!(good(&part, &["cat", "IMAGE:/written"]).len(), 5 << 20);
            checked(packed);
        }
    }
}

#[test]
fn disks_are_converted_and_extracted() {
    if !have("qemu-img") || !have("sgdisk") {
        return;
    }
    let scratch = Scratch::new();
    let disk = &gpt(&scratch);
    let tree = scratch.dir("tree");
    fs::write(tree.join("file"), vec![7; 300_000]).unwrap();
    good(
        disk,
        &["mkfs", "-q", "--from", tree.to_str().unwrap(), "IMAGE:p2"],
    );
    for how in ["--sandbox=require", "--sandbox=off"] {
        for name in ["d.qcow2", "d.vhd", "d.simg", "d.raw"] {
            let path = scratch.path(name);
            let to = path.to_str().unwrap();
            good(disk, &["disk", "convert", how, "IMAGE", to]);
            assert_eq!(
                good(&path, &["cat", how, "IMAGE:p=root:/file"]).len(),
                300_000,
                "{name}"
            );
            refused(
                &mut bw(disk, &["disk", "convert", how, "IMAGE", to]),
                1,
                &["file exists"],
            );
            fs::remove_file(&path).unwrap();
        }
        let volume = scratch.path("volume.img");
        good(
            disk,
            &[
                "disk",
                "extract",
                how,
                "-o",
                volume.to_str().unwrap(),
                "IMAGE:p2",
            ],
        );
        e2fsck_clean(&volume, "an extracted partition");
        fs::remove_file(&volume).unwrap();
        refused(
            &mut bw(disk, &["disk", "extract", how, "-o", "x", "IMAGE"]),
            2,
            &["disk.img:p2"],
        );
    }
}
