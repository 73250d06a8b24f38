//! Names of extended attributes: a new volume is given only what is read back, and the kernel's ext4 takes, reads and refuses
//! the same names as the engine.

use blockwright_test_support as common;

use blockwright::{ErrorKind, Format, Volume, VolumeBuilder, XattrMode};
use common::testing::LoopMount;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::io::Cursor;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Volumes made.
static COUNT: AtomicU32 = AtomicU32::new(0);

const FILES: [(&str, &str, &str); 4] = [
    ("/dir", "40755", "-"),
    ("/file", "100644", "-"),
    ("/link", "120777", "target"),
    ("/fifo", "10644", "-"),
];

/// Every namespace that Linux or an archive may name, and the lengths at the limit.
fn names() -> Vec<OsString> {
    let mut names: Vec<OsString> = [
        "user.a",
        "trusted.a",
        "security.a",
        "gnu.a",
        "system.a",
        "system.data",
        "system.richacl",
        "system.posix_acl_other",
        "encryption.c",
        "btrfs.compression",
        "plain",
    ]
    .map(OsString::from)
    .into();
    for prefix in ["user.", "trusted.", "security.", "gnu."] {
        for bytes in [254, 255, 256, 260, 300] {
            let name = format!("{prefix}{}", "n".repeat(bytes - prefix.len()));
            names.push(name.into());
        }
    }
    names
}

/// A volume of [`FILES`] where each has this attribute.
fn volume_with(dir: &Path, format: Format, name: &OsStr) -> blockwright::Result<PathBuf> {
    let mut listing = b"/ 0 40755 1 0 0 0 0.0 - - -\n".to_vec();
    for (path, mode, target) in FILES {
        let line = format!("{path} 0 {mode} 1 0 0 0 0.0 {target} - - ");
        listing.extend([line.as_bytes(), name.as_bytes(), b"=value\n"].concat());
    }
    // A name of its own: a loop device lets go of its file a moment after it was detached.
    let image = dir.join(format!("{}.img", COUNT.fetch_add(1, Ordering::Relaxed)));
    VolumeBuilder::new()
        .format(format)
        .size(64 << 20)
        .from_dumpfile_reader(Cursor::new(listing), None, "listing")
        .create(&image)?;
    Ok(image)
}

#[test]
fn what_a_new_volume_is_given_is_listed_and_read_or_refused_by_name() {
    let dir = tempfile::tempdir().expect("a directory");
    for format in [Format::Ext4, Format::F2fs] {
        let mut stored = 0;
        for name in names() {
            let shown = name.to_string_lossy().into_owned();
            let image = match volume_with(dir.path(), format, &name) {
                Ok(image) => image,
                Err(e) => {
                    let told = e.to_string();
                    assert!(told.contains(&shown[..shown.len().min(80)]), "{told}");
                    continue;
                }
            };
            stored += 1;
            let volume = Volume::open_read_only(&image).expect("opens");
            for (path, ..) in FILES {
                let listed = volume.list_xattr(path).expect("listed");
                assert_eq!(listed, std::slice::from_ref(&name), "{format:?} {path}");
                let value = volume.get_xattr(path, &name).expect("read");
                assert_eq!(value, b"value", "{format:?} {path} {shown}");
            }
            drop(volume);
            if format == Format::Ext4 {
                common::testing::assert_e2fsck_clean(&image);
                kernel_reads(&image, &name);
            } else if common::have_tool("fsck.f2fs") {
                common::assert_fsck_f2fs_clean(&image);
            }
        }
        // Three or four names of a byte, and two of the right length of each namespace.
        let namespaces = if format == Format::Ext4 { 4 } else { 3 };
        assert_eq!(stored, namespaces * 3, "{format:?}");
    }
}

/// The kernel lists an attribute of all [`FILES`], and reads it where its rules allow any process to.
fn kernel_reads(image: &Path, name: &OsStr) {
    let Some(mount) = LoopMount::new(image, "ro,noload") else {
        return;
    };
    for (path, ..) in FILES {
        let at = mount.path().join(path.trim_start_matches('/'));
        let mut list = vec![0; 1024];
        let bytes = rustix::fs::llistxattr(&at, &mut list).expect("listed");
        let listed = list[..bytes].strip_suffix(&[0]).expect("a name");
        assert_eq!(listed, name.as_bytes(), "{path}");
        let mut value = [0; 16];
        let hidden = name.as_bytes().starts_with(b"user.") && matches!(path, "/link" | "/fifo");
        match rustix::fs::lgetxattr(&at, name, &mut value) {
            Ok(bytes) => assert_eq!(&value[..bytes], b"value"),
            Err(e) => assert!(hidden, "{path} {}: {e}", name.display()),
        }
    }
}

#[test]
fn the_engine_takes_and_refuses_the_names_that_the_kernel_does() {
    let dir = tempfile::tempdir().expect("a directory");
    let image = volume_with(dir.path(), Format::Ext4, OsStr::new("user.first")).expect("made");
    let own = dir.path().join("own.img");
    std::fs::copy(&image, &own).expect("copied");
    let Some(mount) = LoopMount::new(&image, "rw") else {
        return;
    };
    let volume = Volume::open(&own).expect("opens");
    for name in names() {
        let shown = name.to_string_lossy().into_owned();
        let file = mount.path().join("file");
        let theirs = rustix::fs::lsetxattr(&file, &name, b"value", XattrFlags::empty());
        let ours = volume.set_xattr("/file", &name, b"value", XattrMode::Any);
        let ours = ours.as_ref().map_err(blockwright::Error::kind);
        match theirs {
            Ok(()) => {
                assert_eq!(ours, Ok(&()), "{shown}");
                // All of them together have no room.
                rustix::fs::lremovexattr(&file, &name).expect("removed");
                volume.remove_xattr("/file", &name).expect("removed");
            }
            Err(Errno::RANGE) => assert_eq!(ours, Err(ErrorKind::Range), "{shown}"),
            Err(Errno::OPNOTSUPP) => assert_eq!(ours, Err(ErrorKind::Unsupported), "{shown}"),
            Err(e) => panic!("{shown}: the kernel says {e}, the engine {ours:?}"),
        }
    }
}
