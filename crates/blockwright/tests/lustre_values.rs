//! Attribute values in inodes of their own as Lustre made them before Linux had the feature: without a hash, but with their
//! owner's number and generation.

use blockwright_test_support as common;

use blockwright::{Volume, VolumeBuilder};
use blockwright_device::{MemoryDevice, SharedDevice};
use blockwright_vfs::types::XattrMode;
use common::testing::{assert_e2fsck_clean, have};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

fn debugfs(path: &Path, command: &str) -> String {
    let out = Command::new("debugfs")
        .args(["-w", "-R", command])
        .arg(path)
        .output()
        .expect("debugfs");
    String::from_utf8_lossy(&out.stdout).into_owned()
}

#[test]
fn values_that_point_back_are_read() {
    if !have("debugfs") || !have("e2fsck") {
        return;
    }
    let device = Arc::new(MemoryDevice::new(64 << 20));
    let shared: SharedDevice = device.clone();
    VolumeBuilder::new()
        .size(64 << 20)
        .features("ea_inode")
        .create_on(&shared)
        .expect("made");
    let v = Volume::open_device(shared).expect("opened");
    drop(v.create_file("f").expect("created"));
    let value = vec![b'v'; 20_000];
    v.set_xattr("f", "user.large", &value, XattrMode::Any)
        .expect("stored");
    v.close().expect("closed");
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().join("image");
    device.save(&path).expect("saved");
    let stat = debugfs(&path, "stat f");
    let owner: u32 = stat
        .split_whitespace()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .expect("a number");
    let holder = (owner + 1..owner + 20)
        .find(|n| debugfs(&path, &format!("stat <{n}>")).contains("Flags: 0x280000"))
        .expect("the value's inode");
    let open = || {
        let image = std::fs::read(&path).expect("image");
        let device: SharedDevice = Arc::new(MemoryDevice::from_image(&image));
        Volume::open_device(device).expect("opened")
    };
    debugfs(
        &path,
        &format!("set_inode_field <{holder}> atime @1593835520"),
    );
    assert!(open().get_xattr("f", "user.large").is_err(), "a wrong hash");
    debugfs(&path, "set_inode_field f generation 77");
    debugfs(&path, &format!("set_inode_field <{holder}> generation 77"));
    debugfs(&path, &format!("set_inode_field <{holder}> mtime @{owner}"));
    assert_eq!(open().get_xattr("f", "user.large").expect("read"), value);
    // Such a value counts for itself, not for the file.
    debugfs(&path, "set_inode_field f blocks 0");
    assert_e2fsck_clean(&path);
}
