//! `--overlay`: changes in a file of their own, over images of every kind that are only read.

mod common;

use blockwright_device::host::nbd::server::{NbdServer, ServerOptions};
use blockwright_device::{HostDevice, OpenMode};
use common::run::{bw, good, hash, refused, source_tree};
use common::{Mounted, Scratch, e2fsck_clean, fsck_f2fs_clean, have, have_fuse, ok};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn text(path: &Path) -> &str {
    path.to_str().expect("a path that is text")
}

/// A volume of a small tree.
fn volume(scratch: &Scratch, format: &str) -> PathBuf {
    let tree = source_tree(scratch, "tree");
    let image = scratch.path("disk.img");
    let args = [
        "mkfs",
        "-q",
        "-t",
        format,
        "--from",
        text(&tree),
        "IMAGE",
        "128M",
    ];
    good(&image, &args);
    image
}

/// The whole disk with the overlay's changes, as a raw file: what the format's own tool finds in it.
fn converted(scratch: &Scratch, image: &Path, overlay: &Path, format: &str) {
    let raw = scratch.path("converted.img");
    let _absent = fs::remove_file(&raw);
    let args = [
        "disk",
        "convert",
        "-q",
        "--overlay",
        text(overlay),
        "IMAGE",
        text(&raw),
    ];
    good(image, &args);
    match format {
        "ext4" => e2fsck_clean(&raw, "converted"),
        _ => fsck_f2fs_clean(&raw, "converted"),
    }
}

/// Changes in an overlay over this image; `part` is where the volume is in it.
fn work(scratch: &Scratch, image: &Path, part: &str, behind: &Path) {
    let before = hash(behind);
    let local = scratch.path("local");
    fs::write(&local, "of the fork").unwrap();
    for sandbox in ["--sandbox=auto", "--sandbox=off"] {
        let overlay = scratch.path("fork");
        let other = scratch.path("other fork");
        let over = |overlay: &Path, args: &[&str]| {
            let place = format!("IMAGE{part}");
            let args: Vec<String> = args.iter().map(|a| a.replace("IMAGE", &place)).collect();
            let mut all: Vec<&str> = args.iter().map(String::as_str).collect();
            all.extend([sandbox, "--overlay", text(overlay)]);
            good(image, &all)
        };
        over(&overlay, &["cp", text(&local), "IMAGE:/new"]);
        over(&overlay, &["rm", "IMAGE:/big"]);
        over(&overlay, &["mv", "IMAGE:/sub/file", "IMAGE:/moved"]);
        over(&other, &["mkdir", "IMAGE:/otherwise"]);
        assert_eq!(over(&overlay, &["cat", "IMAGE:/new"]), "of the fork");
        assert_eq!(over(&overlay, &["cat", "IMAGE:/moved"]), "contents");
        let names = over(&overlay, &["ls", "IMAGE:/"]);
        assert!(
            !names.contains("big") && !names.contains("otherwise"),
            "{names}"
        );
        let names = over(&other, &["ls", "IMAGE:/"]);
        assert!(
            names.contains("big") && names.contains("otherwise"),
            "{names}"
        );
        over(&overlay, &["check", "-n", "IMAGE"]);
        over(&overlay, &["df", "IMAGE"]);
        over(&overlay, &["info", "IMAGE"]);
        let tar = scratch.path("fork.tar");
        over(&overlay, &["export", "-o", text(&tar), "IMAGE"]);
        assert!(ok(Command::new("tar").arg("-tf").arg(&tar)).contains("moved"));
        over(&overlay, &["set", "IMAGE", "label=fork"]);
        over(&overlay, &["trim", "IMAGE"]);
        over(&overlay, &["check", "-n", "IMAGE"]);
        assert!(hash(behind) == before, "{} was changed", behind.display());
        assert!(overlay.metadata().unwrap().len() < 64 << 20);
        fs::remove_file(&overlay).unwrap();
        fs::remove_file(&other).unwrap();
    }
}

#[test]
fn over_files_partitions_and_containers() {
    if !have("e2fsck") || !have("qemu-img") {
        return;
    }
    let scratch = Scratch::new();
    let image = volume(&scratch, "ext4");
    work(&scratch, &image, "", &image);
    let qcow2 = scratch.path("disk.qcow2");
    good(&image, &["disk", "convert", "-q", "IMAGE", text(&qcow2)]);
    work(&scratch, &qcow2, "", &qcow2);
    let disk = scratch.path("whole.qcow2");
    let part = format!("root={}:raw", image.display());
    good(&disk, &["disk", "create", "-q", "-o", "IMAGE", &part]);
    work(&scratch, &disk, ":p1", &disk);

    // qemu's tools know the file: its changes, and its base.
    let overlay = scratch.path("fork");
    good(&image, &["mkdir", "IMAGE:/x", "--overlay", text(&overlay)]);
    let told = ok(Command::new("qemu-img").arg("check").arg(&overlay));
    assert!(told.contains("No errors"), "{told}");
    let told = ok(Command::new("qemu-img").arg("info").arg(&overlay));
    assert!(told.contains(text(&image)), "{told}");
    converted(&scratch, &image, &overlay, "ext4");
    let raw = scratch.path("by qemu");
    let convert = ["convert", "-O", "raw", text(&overlay), text(&raw)];
    ok(Command::new("qemu-img").args(convert));
    assert!(hash(&raw) == hash(&scratch.path("converted.img")));
}

#[test]
fn over_an_export_and_over_chunks() {
    if !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new();
    let image = volume(&scratch, "ext4");
    let mode = OpenMode {
        lock: false,
        ..OpenMode::read_only()
    };
    let device = HostDevice::open(&image, mode).unwrap();
    let server = NbdServer::unix(device, ServerOptions::default(), &scratch.path("socket"));
    work(&scratch, Path::new(server.address()), "", &image);
    drop(server);

    let (store, index) = (scratch.path("store"), scratch.path("disk.caibx"));
    let make = [
        "chunk",
        "make",
        "--store",
        text(&store),
        "-o",
        text(&index),
        "IMAGE",
    ];
    good(&image, &make);
    let address = format!("chunks:{}?store={}", index.display(), store.display());
    work(&scratch, Path::new(&address), "", &index);
    // A fork is published as an image is, and continues with another cache.
    let overlay = scratch.path("fork");
    let address = Path::new(&address);
    good(address, &["mkdir", "IMAGE:/x", "--overlay", text(&overlay)]);
    let forked = scratch.path("fork.caibx");
    let make = [
        "chunk",
        "make",
        "--store",
        text(&store),
        "-o",
        text(&forked),
        "IMAGE",
    ];
    let cached = format!(
        "{}&cache={}",
        address.display(),
        scratch.path("cache").display()
    );
    let cached = Path::new(&cached);
    good(
        cached,
        &[&make[..], &["--overlay", text(&overlay)]].concat(),
    );
    let fork = format!("chunks:{}?store={}", forked.display(), store.display());
    assert!(good(Path::new(&fork), &["ls", "IMAGE:/"]).contains('x'));
    converted(&scratch, cached, &overlay, "ext4");
}

/// Mounts of one image at the same time, each with its overlay; mounted again; a server that was killed.
fn mounts(format: &str) {
    if !have_fuse() || !have("e2fsck") || !have("fsck.f2fs") {
        return;
    }
    let scratch = Scratch::new();
    let image = volume(&scratch, format);
    let before = hash(&image);
    let overlays = [scratch.path("a.fork"), scratch.path("b.fork")];
    let points = [scratch.dir("a"), scratch.dir("b")];
    let options = |n: usize| format!("transport=dev_fuse,overlay={}", overlays[n].display());
    let both = [0, 1].map(|n| Mounted::new(&image, &points[n], &options(n)));
    for (n, point) in points.iter().enumerate() {
        fs::remove_file(point.join("big")).unwrap();
        fs::write(point.join("large"), vec![n as u8; 20 << 20]).unwrap();
    }
    refused(
        &mut bw(&image, &["ls", "IMAGE:/", "--overlay", text(&overlays[0])]),
        1,
        &["in use by process"],
    );
    let [a, b] = both;
    a.unmount();
    b.unmount();
    let again = Mounted::new(&image, &points[0], &options(0));
    assert!(fs::read(points[0].join("large")).unwrap() == vec![0; 20 << 20]);
    fs::write(points[0].join("synced"), "here").unwrap();
    fs::File::open(points[0].join("synced"))
        .unwrap()
        .sync_all()
        .unwrap();
    again.kill();
    let over = ["--overlay", text(&overlays[0])];
    assert_eq!(
        good(&image, &[&["cat", "IMAGE:/synced"][..], &over].concat()),
        "here"
    );
    // In the background, and with umount's wait.
    let mount = ["mount", "IMAGE", text(&points[0])];
    good(&image, &[&mount[..], &over].concat());
    assert!(points[0].join("synced").exists());
    good(&image, &["umount", text(&points[0])]);
    for overlay in &overlays {
        good(
            &image,
            &["check", "-n", "IMAGE", "--overlay", text(overlay)],
        );
        converted(&scratch, &image, overlay, format);
    }
    assert!(hash(&image) == before, "the image was changed");
}

#[test]
fn mounts_of_one_ext4_image() {
    mounts("ext4");
}

#[test]
fn mounts_of_one_f2fs_image() {
    mounts("f2fs");
}

#[test]
fn what_is_refused() {
    let scratch = Scratch::new();
    let image = volume(&scratch, "ext4");
    let other = scratch.path("other.img");
    fs::copy(&image, &other).unwrap();
    let overlay = scratch.path("fork");
    let over = ["--overlay", text(&overlay)];
    let absent = scratch.path("absent");
    for sandbox in ["--sandbox=auto", "--sandbox=off"] {
        let deny = |image: &Path, args: &[&str], code, says: &[&str]| {
            let all = [args, &[sandbox], &over].concat();
            refused(&mut bw(image, &all), code, says);
        };
        // Reading needs one that is there, and no image makes none.
        deny(
            &image,
            &["ls", "IMAGE:/"],
            1,
            &["the overlay", "no such file"],
        );
        deny(&absent, &["mkdir", "IMAGE:/x"], 1, &["absent"]);
        assert!(!overlay.exists());
        good(
            &image,
            &[&["mkdir", "IMAGE:/x", sandbox][..], &over].concat(),
        );
        deny(
            &other,
            &["mkdir", "IMAGE:/y"],
            1,
            &["is over", "disk.img", "not over this image"],
        );
        let from_other = format!("{}:/sub/file", other.display());
        deny(
            &image,
            &["cp", &from_other, "IMAGE:/z"],
            1,
            &["--overlay goes with one image"],
        );
        deny(&image, &["mkfs", "-F", "IMAGE"], 2, &["takes no --overlay"]);
        deny(
            &image,
            &["resize", "IMAGE", "200M"],
            2,
            &["takes no --overlay"],
        );
        deny(
            &image,
            &["ls", "IMAGE:/", "--journal", text(&other)],
            2,
            &["cannot be used with"],
        );
        refused(
            &mut bw(
                &image,
                &["mkdir", "IMAGE:/y", sandbox, "--overlay", text(&image)],
            ),
            1,
            &["disk.img"],
        );
        fs::remove_file(&overlay).unwrap();
    }
    good(&image, &["check", "-n", "IMAGE"]);
}
