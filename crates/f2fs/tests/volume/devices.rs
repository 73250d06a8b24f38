//! f2fs volumes on several devices: read and checked when all of them are given, refused by name otherwise.

use crate::common;
use blockwright::{ErrorKind, Volume, join_devices};
use blockwright_check::f2fs as check;
use blockwright_device::{HostDevice, OpenMode};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn run(tool: &str, args: &[&str]) {
    let out = Command::new(tool)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .expect("runs");
    assert!(out.status.success(), "{tool} {args:?}: {out:?}");
}

fn sized(path: &Path, mib: u64) {
    let file = std::fs::File::create(path).expect("an image");
    file.set_len(mib << 20).expect("a size");
}

#[test]
fn all_devices_make_a_volume() {
    if !common::have_tool("mkfs.f2fs") || !common::have_tool("sload.f2fs") {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let paths: Vec<PathBuf> = (0..3)
        .map(|n| dir.path().join(format!("d{n}.img")))
        .collect();
    for (path, mib) in paths.iter().zip([60, 40, 100]) {
        sized(path, mib);
    }
    let text = |p: &PathBuf| p.to_str().expect("text").to_owned();
    let names: Vec<String> = paths.iter().map(text).collect();
    run(
        "mkfs.f2fs",
        &["-q", "-c", &names[1], "-c", &names[2], &names[0]],
    );
    // More than the first device holds.
    let tree = dir.path().join("tree");
    std::fs::create_dir(&tree).expect("made");
    let contents = |n: usize| -> Vec<u8> { (0..5_000_000).map(|i| (i / 97 * n) as u8).collect() };
    for n in 0..24 {
        std::fs::write(tree.join(format!("f{n}")), contents(n)).expect("written");
    }
    run("sload.f2fs", &["-f", &text(&tree), "-t", "/", &names[0]]);

    let alone = Volume::open_read_only(&paths[0]).expect_err("refused");
    assert_eq!(alone.kind(), ErrorKind::UnsupportedFeature, "{alone}");
    assert!(alone.to_string().contains("3 devices"), "{alone}");
    let two = Volume::options().read_only(true).more_devices([&paths[1]]);
    let e = two.open(&paths[0]).expect_err("refused");
    assert!(e.to_string().contains("2 are given"), "{e}");
    let all = Volume::options().more_devices(&paths[1..]);
    let volume = all.open(&paths[0]).expect("opens");
    let why = volume.read_only_reason().expect("a reason");
    assert!(why.contains("several devices"), "{why}");
    let mut behind = 0;
    for n in 0..24 {
        let name = format!("/f{n}");
        assert!(volume.read(&name).expect("read") == contents(n), "{name}");
        let extents = volume.open_file(&name).expect("opens").extents();
        for e in extents.expect("known") {
            if let blockwright::ExtentKind::Data(at) = e.kind {
                behind += u64::from(at > 60 << 20) * e.bytes;
            }
        }
    }
    assert!(behind > 10 << 20, "{behind} bytes are on the other devices");
    volume.close().expect("closed");
    let mode = OpenMode::read_only();
    let device = HostDevice::open(&paths[0], mode).expect("opens");
    let options = check::CheckOptions::default();
    assert!(check::check(device.clone(), &options).is_err());
    let device = join_devices(device, &paths[1..], mode).expect("joined");
    let report = check::check(device, &options).expect("checked");
    assert!(report.is_clean(), "{:?}", report.issues);
}
