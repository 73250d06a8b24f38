//! A power failure while metadata gets or loses checksums: Linux mounts the image and writes, or refuses it until e2fsck has replayed the journal. Either way
//! e2fsck finds nothing afterwards, and no file is lost.

use blockwright::device::{MemoryDevice, SharedDevice};
use blockwright::reshape::{self, Settings};
use blockwright_device::{CrashPolicy, RecordingDevice};
use blockwright_test_support::testing::{have, run_ok};
use blockwright_test_support::uml;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// Images of one boot.
const MOST: usize = 15;

/// Whether the superblock has the feature `needs_recovery`.
fn asks_for_recovery(image: &MemoryDevice) -> bool {
    image.to_vec()[1024 + 0x60] & 4 != 0
}

fn e2fsck(image: &Path, how: &str) -> (i32, String) {
    let out = Command::new("e2fsck").arg(how).arg(image).output();
    let out = out.expect("e2fsck");
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    (out.status.code().unwrap_or(99), said)
}

/// What is on the device after a power failure, from the moment on at which the superblock asks for recovery.
fn crashed(dir: &Path, features: &str, list: &str) -> Vec<PathBuf> {
    let image = dir.join("image");
    let files = dir.join("files");
    std::fs::create_dir_all(files.join("dir")).expect("made");
    for n in 0..400 {
        let name = format!("dir/a name of some length {n}");
        std::fs::write(files.join(name), format!("{n}")).expect("written");
    }
    let (name, from) = (image.display().to_string(), files.display().to_string());
    let options = [
        "-q", "-F", "-b", "1024", "-I", "256", "-O", features, "-J", "size=2", "-d", &from, &name,
        "24M",
    ];
    let _old = std::fs::remove_file(&image);
    run_ok("mke2fs", &options);
    // Indexes, which `mke2fs -d` does not make.
    assert!(e2fsck(&image, "-fyD").0 < 2);
    let base = MemoryDevice::load(&image).expect("loaded");
    let recording = Arc::new(RecordingDevice::new(&base));
    let settings = Settings {
        features: Some(list.to_owned()),
        ..Settings::default()
    };
    let device: SharedDevice = Arc::clone(&recording) as SharedDevice;
    reshape::set(&device, &settings).expect("set");
    let length = recording.log_len();
    // The last transaction is the one: from its end backwards, also before the superblock asks for recovery.
    let waits = |cut: &usize| asks_for_recovery(&recording.image_at(*cut, CrashPolicy::AllKept));
    let last = (0..=length).rev().find(waits).expect("a transaction");
    let (mut seen, mut images) = (HashSet::new(), Vec::new());
    for cut in (0..=last).rev() {
        for policy in [CrashPolicy::AllKept, CrashPolicy::NoneKept] {
            let image = recording.image_at(cut, policy);
            if images.len() == MOST || !seen.insert(image.to_vec()) {
                continue;
            }
            let path = dir.join(format!("{}.img", images.len()));
            image.save(&path).expect("saved");
            images.push(path);
        }
    }
    images
}

#[test]
fn linux_writes_or_refuses() {
    if !uml::available() || !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let base = "has_journal,extent,dir_index,flex_bg,resize_inode";
    for (more, list) in [
        (",uninit_bg", "metadata_csum"),
        ("", "metadata_csum"),
        (",metadata_csum", "^metadata_csum"),
    ] {
        let dir = tempfile::tempdir().expect("a directory");
        let images = crashed(dir.path(), &format!("{base}{more}"), list);
        let mut script = String::new();
        for (n, letter) in ('a'..).take(images.len()).enumerate() {
            script += &format!(
                "mkdir -p /mnt/{letter}\n\
                 if mount -t ext4 /dev/ubd{letter} /mnt/{letter}; then\n\
                 cat /mnt/{letter}/dir/*7 > /dev/null; mkdir /mnt/{letter}/new\n\
                 for n in 1 2 3 4 5 6 7 8 9; do echo $n > /mnt/{letter}/dir/another$n; echo $n > /mnt/{letter}/new/$n; done\n\
                 rm /mnt/{letter}/dir/*33\n\
                 umount /mnt/{letter}; echo image {n}: written\n\
                 else echo image {n}: refused; fi\n"
            );
        }
        let out = tempfile::tempdir().expect("a directory");
        let paths: Vec<&Path> = images.iter().map(PathBuf::as_path).collect();
        let said = uml::run(out.path(), &paths, &script, Duration::from_secs(120));
        println!("{more} {list}:\n{said}");
        assert!(
            said.contains("written") && said.contains("refused"),
            "{said}"
        );
        for (n, image) in images.iter().enumerate() {
            let what = format!("{more} {list}, image {n}");
            if said.contains(&format!("image {n}: refused")) {
                let (code, said) = e2fsck(image, "-fy");
                assert!(code < 4 && !said.contains("lost+found"), "{what}: {said}");
            }
            let (code, said) = e2fsck(image, "-fn");
            assert_eq!(code, 0, "{what}: {said}");
        }
    }
}
