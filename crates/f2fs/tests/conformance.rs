//! The engine keeps the promises of the vfs's engine traits, with overwrites in place and without.

use blockwright_check::f2fs::{CheckOptions, check};
use blockwright_device::{MemoryDevice, SharedDevice};
use blockwright_f2fs::{F2fs, Mode, Options};
use blockwright_mkfs::f2fs::{FormatOptions, format};
use blockwright_vfs::engine::Engine;
use blockwright_vfs::engine::conformance::{Access, OnDevice, Shape, Subject};
use std::sync::Arc;

fn mount_with(device: SharedDevice, access: Access, mode: Mode) -> Arc<dyn Engine> {
    let options = Options {
        read_only: access == Access::ReadOnly,
        mode,
        ..Options::default()
    };
    F2fs::mount(device, options).expect("mounted")
}

fn assert_sound(device: SharedDevice) {
    let report = check(device, &CheckOptions::default()).expect("checked");
    assert!(report.is_clean(), "{:#?}", report.issues);
}

/// A volume that was made and not mounted yet. Small files live in their inodes on every volume.
fn formatted(shape: Shape) -> Arc<MemoryDevice> {
    let features = match shape.quota {
        true => "extra_attr,inode_checksum,inode_crtime,quota",
        false => "",
    };
    let options = FormatOptions {
        features: features.to_owned(),
        ..FormatOptions::default()
    };
    let memory = Arc::new(MemoryDevice::new(shape.bytes));
    let device: SharedDevice = memory.clone();
    format(&device, &options).expect("formatted");
    memory
}

fn adaptive(shape: Shape) -> Option<Box<dyn Subject>> {
    let mount = |device, access| mount_with(device, access, Mode::Adaptive);
    Some(OnDevice::mount(formatted(shape), mount, assert_sound))
}

blockwright_vfs::engine_conformance!(adaptive);

/// Nothing is overwritten in place.
mod lfs {
    use super::{Mode, OnDevice, Shape, Subject, assert_sound, formatted, mount_with};

    fn volume(shape: Shape) -> Option<Box<dyn Subject>> {
        let mount = |device, access| mount_with(device, access, Mode::Lfs);
        Some(OnDevice::mount(formatted(shape), mount, assert_sound))
    }

    blockwright_vfs::engine_conformance!(volume);
}
