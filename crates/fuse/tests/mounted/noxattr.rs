//! A mount without extended attributes: the kernel is told once, and asks no more.

use crate::TRANSPORT;
use crate::support::{Mounted, can_mount};
use blockwright_fuse::{Control, FuseOptions};
use blockwright_vfs::stats::Value;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

/// Requests of this kind since the mount began.
pub fn requests(m: &Mounted, opcode: &str) -> u64 {
    let stats = Control::open(&m.path("")).unwrap().stats().unwrap();
    let of = |opcode: &str| {
        let counts = stats.metrics().iter().filter(|m| {
            let label = m.label.as_ref().map(|(_, value)| value.as_ref());
            m.name == "fuse_requests" && label == Some(opcode)
        });
        let values = counts.map(|m| match m.value {
            Value::Counter(n) => n,
            _ => panic!("fuse_requests counts"),
        });
        values.sum::<u64>()
    };
    assert!(of("Ioctl") > 0, "names have changed");
    of(opcode)
}

const FILES: u64 = 20;

/// Requests about attributes that making some files takes, as `tar x` makes them.
fn made(m: &Mounted) -> u64 {
    for n in 0..FILES {
        let path = m.path(&format!("f{n}"));
        fs::write(&path, b"something").unwrap();
        chown(&path, Some(7), Some(7)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let meta = fs::metadata(&path).unwrap();
        assert_eq!((meta.uid(), meta.mode() & 0o777), (7, 0o640));
    }
    requests(m, "GetXattr")
}

#[test]
fn without_attributes_the_kernel_asks_once() {
    if !can_mount() {
        return;
    }
    let with = FuseOptions {
        transport: TRANSPORT,
        ..FuseOptions::default()
    };
    let without = FuseOptions {
        xattrs: false,
        ..with.clone()
    };
    let asked = made(&Mounted::new(with));
    assert!(asked >= FILES, "{asked}: the kernel has learnt something");
    let m = Mounted::new(without);
    assert!(made(&m) <= 1);
    let path = m.path("f0");
    let set = || rustix::fs::setxattr(&path, "user.a", b"1", XattrFlags::empty());
    assert_eq!(set(), Err(Errno::OPNOTSUPP));
    assert_eq!(set(), Err(Errno::OPNOTSUPP));
    assert!(requests(&m, "SetXattr") <= 1);
    let mut names = [0u8; 100];
    assert_eq!(
        rustix::fs::listxattr(&path, &mut names[..]),
        Err(Errno::OPNOTSUPP)
    );
    let acl = c"system.posix_acl_access";
    assert!(rustix::fs::setxattr(&path, acl, &[2, 0, 0, 0], XattrFlags::empty()).is_err());
    assert_eq!(fs::read(&path).unwrap(), b"something");
}
