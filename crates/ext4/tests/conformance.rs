//! The engine keeps the promises of the vfs's engine traits, on volumes of several features.

use blockwright_check::ext4::{CheckOptions, check};
use blockwright_device::{MemoryDevice, SharedDevice};
use blockwright_ext4::{Ext4, Options};
use blockwright_mkfs::ext4::{FormatOptions, format};
use blockwright_vfs::engine::Engine;
use blockwright_vfs::engine::conformance::{Access, OnDevice, Shape, Subject};
use std::sync::Arc;

fn mount(device: SharedDevice, access: Access) -> Arc<dyn Engine> {
    let options = Options {
        read_only: access == Access::ReadOnly,
        ..Options::default()
    };
    Ext4::mount(device, options).expect("mounted")
}

fn assert_sound(device: SharedDevice) {
    let report = check(device, &CheckOptions::default()).expect("checked");
    assert!(report.is_clean(), "{:#?}", report.issues);
}

/// A volume with the features of the shape and some more.
fn make(shape: Shape, features: &str, block_bytes: u32) -> Box<dyn Subject> {
    let mut all = vec![features];
    if shape.inline_data {
        all.push("inline_data");
    }
    if shape.quota {
        all.push("quota");
    }
    all.retain(|f| !f.is_empty());
    let options = FormatOptions {
        features: all.join(","),
        block_bytes: Some(block_bytes),
        ..FormatOptions::default()
    };
    let memory = Arc::new(MemoryDevice::new(shape.bytes));
    let device: SharedDevice = memory.clone();
    format(&device, &options).expect("formatted");
    OnDevice::mount(memory, mount, assert_sound)
}

fn default(shape: Shape) -> Option<Box<dyn Subject>> {
    Some(make(shape, "", 4096))
}

blockwright_vfs::engine_conformance!(default);

/// Blocks of 1 KiB, mapped by indirect blocks, in a volume without checksums.
mod indirect {
    use super::{Shape, Subject, make};

    fn volume(shape: Shape) -> Option<Box<dyn Subject>> {
        // Inline data is kept with extents only.
        let features = "^extent,^64bit,^metadata_csum";
        (!shape.inline_data).then(|| make(shape, features, 1024))
    }

    blockwright_vfs::engine_conformance!(volume);
}
