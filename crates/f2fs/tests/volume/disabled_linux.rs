//! `checkpoint=disable` between Linux 6.1's f2fs (under user-mode-linux) and us: a volume that one left with its checkpoints disabled
//! is to the other what it was when they were, and the other enables them again.

use crate::common;
use crate::uml;
use blockwright::{Volume, VolumeOptions};
use blockwright_check::{Mode, f2fs as check};
use blockwright_device::{HostDevice, OpenMode};
use blockwright_f2fs::F2fs;
use blockwright_f2fs::options::{Checkpointing, Unusable};
use blockwright_ondisk::f2fs::checkpoint::CheckpointFlags;
use sha2::{Digest, Sha256};
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

/// What `sha256sum` prints of all files, by name.
fn sums(volume: &Volume, dir: &str, out: &mut Vec<String>) {
    for entry in volume.read_dir(dir).expect("listed") {
        let entry = entry.expect("an entry");
        let path = entry.path().to_str().expect("text").to_owned();
        if volume.symlink_metadata(&path).expect("there").is_dir() {
            sums(volume, &path, out);
        } else {
            let sum = Sha256::digest(volume.read(&path).expect("read"));
            let hex: String = sum.iter().map(|b| format!("{b:02x}")).collect();
            out.push(format!("{hex}  .{path}"));
        }
    }
}

fn tree(image: &Path) -> Vec<String> {
    let volume = Volume::open_read_only(image).expect("opens");
    let mut out = Vec::new();
    sums(&volume, "/", &mut out);
    out.sort();
    volume.close().expect("closed");
    out
}

/// The same, as Linux printed it.
fn printed(out: &Path, name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(out.join(name)).expect("printed");
    let mut lines: Vec<String> = text.lines().map(ToOwned::to_owned).collect();
    lines.sort();
    lines
}

fn flags(image: &Path) -> CheckpointFlags {
    let volume = Volume::open_read_only(image).expect("opens");
    let engine = volume.vfs().engine().as_any();
    let fs = engine.downcast_ref::<F2fs>().expect("f2fs").fs();
    fs.volume.checkpoint.flags()
}

fn assert_clean(image: &Path) {
    let device = HostDevice::open(image, OpenMode::default()).expect("opens");
    let options = check::CheckOptions {
        mode: Mode::ReadOnly,
        ..check::CheckOptions::default()
    };
    let report = check::check(device, &options).expect("checked");
    assert!(report.issues.is_empty(), "{:#?}", report.issues);
    common::assert_fsck_f2fs_clean(image);
}

fn fill(volume: &Volume, seed: u8) {
    volume.create_dir(format!("/ours{seed}")).expect("made");
    for n in 0..80u8 {
        let bytes = vec![n ^ seed; 700 * usize::from(n)];
        volume
            .write(format!("/ours{seed}/{n}"), bytes)
            .expect("written");
    }
}

/// Changes, replaces and removes much of what is there, and adds to it.
fn churn(volume: &Volume, seed: u8) {
    for round in 0..3u8 {
        for n in 0..80u8 {
            let path = format!("/ours{seed}/{n}");
            if n % 5 == round {
                volume.remove_file(&path).expect("removed");
            }
            let bytes = vec![n ^ round ^ 0x55; 900 * usize::from(n)];
            volume.write(path, bytes).expect("written");
        }
        volume
            .write("/more", vec![round; 3 << 20])
            .expect("written");
        volume.sync().expect("as far as it goes");
    }
    for n in 0..1500 {
        volume.write(format!("/m{n}"), b"inline").expect("written");
    }
}

fn disabled() -> VolumeOptions {
    let mut options = VolumeOptions::default();
    options.parts.f2fs.checkpoint = Checkpointing::Disabled {
        unusable_max: Unusable::Percent(100),
    };
    // Little: nodes and directories are written out.
    options.parts.f2fs.metadata_cache_bytes = 1 << 20;
    options
}

const SHELL: &str = r"
sums() { (cd /mnt/$1; find . -type f | sort | xargs sha256sum) > $OUT/$2; }
";

#[test]
fn what_one_disabled_the_other_enables() {
    if !common::have_tool("mkfs.f2fs") || !common::have_tool("fsck.f2fs") || !uml::available() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let place = |name: &str| dir.path().join(name);
    let out = place("out");
    std::fs::create_dir(&out).expect("made");

    // Ours: left by an unmount, by a crash, and enabled again.
    let (unmounted, crashed, enabled) = (place("a"), place("b"), place("c"));
    common::mkfs_f2fs(
        &unmounted,
        "extra_attr,inode_checksum,inode_crtime",
        200 << 20,
    );
    let volume = Volume::open(&unmounted).expect("opens");
    fill(&volume, 1);
    volume.close().expect("closed");
    let before = tree(&unmounted);
    let volume = disabled().open(&unmounted).expect("opens");
    churn(&volume, 1);
    // As a power failure would leave it.
    std::fs::copy(&unmounted, &crashed).expect("copied");
    volume.close().expect("closed");
    std::fs::copy(&unmounted, &enabled).expect("copied");
    let volume = disabled().open(&enabled).expect("opens");
    churn(&volume, 1);
    volume.vfs().tune("checkpoint", 1).expect("enabled");
    volume.close().expect("closed");
    let after = tree(&enabled);
    for image in [&unmounted, &crashed] {
        assert!(flags(image).contains(CheckpointFlags::DISABLED));
    }
    assert!(!flags(&enabled).contains(CheckpointFlags::DISABLED));
    // Linux's, whose checkpoints are disabled inside: unmounted, and not unmounted.
    let (theirs, dropped) = (place("d"), place("e"));
    for image in [&theirs, &dropped] {
        common::mkfs_f2fs(image, "extra_attr,inode_checksum,inode_crtime", 200 << 20);
        let volume = Volume::open(image).expect("opens");
        fill(&volume, 2);
        volume.close().expect("closed");
    }
    let given = tree(&theirs);
    let script = format!(
        "{SHELL}
        for x in a b c; do
            attach $x; sums $x got-$x
            mkdir /mnt/$x/linux; cp /usr/lib/uml/modules/*/modules.* /mnt/$x/linux
            rm -rf /mnt/$x/ours1/1*
            sync; sums $x left-$x; umount /mnt/$x
        done
        for x in d e; do
            attach $x checkpoint=disable:100%
            grep /mnt/$x /proc/mounts
            cp -r /usr/lib/uml/modules/*/kernel/fs /mnt/$x/linux
            rm -rf /mnt/$x/ours2/2*; for n in 30 31 32; do echo new > /mnt/$x/ours2/$n; done
            sync
        done
        umount /mnt/d"
    );
    let images = [&unmounted, &crashed, &enabled, &theirs, &dropped];
    let images: Vec<&Path> = images.into_iter().map(|p| p.as_path()).collect();
    let log = uml::run(&out, &images, &script, LIMIT);
    assert_eq!(log.matches("checkpoint=disable").count(), 2, "{log}");
    let dmesg = std::fs::read_to_string(out.join("dmesg")).expect("written");
    for line in dmesg.lines().filter(|l| l.contains("F2FS-fs")) {
        let fine = [
            "Mounted with checkpoint",
            "nat_bits",
            "Adjust unusable cap",
            "checkpoint disabled",
            "checkpoint enabled",
        ];
        assert!(fine.iter().any(|f| line.contains(f)), "{line}");
    }
    for (name, image, expected) in [
        ("a", &unmounted, &before),
        ("b", &crashed, &before),
        ("c", &enabled, &after),
    ] {
        assert_eq!(&printed(&out, &format!("got-{name}")), expected, "{name}");
        // Linux enabled them, and we go on from there.
        assert!(!flags(image).contains(CheckpointFlags::DISABLED), "{name}");
        assert_eq!(
            tree(image),
            printed(&out, &format!("left-{name}")),
            "{name}"
        );
        assert_clean(image);
        let volume = Volume::open(image).expect("opens");
        fill(&volume, 3);
        volume.close().expect("closed");
        assert_clean(image);
    }
    // What Linux did while they were disabled is gone, and we enable them.
    for (name, image) in [("d", &theirs), ("e", &dropped)] {
        assert!(flags(image).contains(CheckpointFlags::DISABLED), "{name}");
        assert_eq!(tree(image), given, "{name}");
        let volume = Volume::open(image).expect("opens");
        assert_eq!(volume.read_only_reason(), None, "{name}");
        fill(&volume, 4);
        volume.close().expect("closed");
        assert!(!flags(image).contains(CheckpointFlags::DISABLED), "{name}");
        assert_clean(image);
    }
    let script = format!("{SHELL}attach a; sums a d; attach b; sums b e; umount /mnt/a /mnt/b");
    let images = [theirs.as_path(), dropped.as_path()];
    uml::run(&out, &images, &script, LIMIT);
    for (name, image) in [("d", &theirs), ("e", &dropped)] {
        assert_eq!(printed(&out, name), tree(image), "{name}");
        assert_clean(image);
    }
}
