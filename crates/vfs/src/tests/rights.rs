//! Set-id bits and protected files, for callers with credentials. The mounted tables of `cli/tests/rights` compare the same rules
//! with the kernel's ext4.

use super::{Fixture, Submit, quiet};
use crate::engine::FallocMode;
use crate::error::ErrorKind;
use crate::testing::MemOptions;
use crate::types::InodeFlags;
use crate::{Cred, InodeRef, OpenFlags, SetAttr, SetTime, Timestamp, WriteAt, WriteOp};
use blockwright_device::AlignedBuf;

const OWNER: u32 = 1001;
const GROUP: u32 = 2001;

fn fixture() -> Fixture {
    Fixture::new(8 << 20, MemOptions::default(), quiet())
}

fn protect(f: &Fixture, inode: &InodeRef, flags: InodeFlags) {
    let change = SetAttr {
        flags: Some(flags),
        ..SetAttr::default()
    };
    f.vfs.set_attr(&f.cred, inode, &change).unwrap();
}

fn own(f: &Fixture, inode: &InodeRef, mode: u32) {
    let change = SetAttr {
        mode: Some(mode),
        uid: Some(OWNER),
        gid: Some(GROUP),
        ..SetAttr::default()
    };
    f.vfs.set_attr(&f.cred, inode, &change).unwrap();
}

#[test]
fn a_handle_opened_before_changes_no_immutable_file() {
    let f = fixture();
    let x = f.file("x");
    let (plain, direct) = (f.open(&x), f.open_direct(&x));
    plain.write_at(&[1; 16384], 0).unwrap();
    plain.sync(crate::SyncScope::All).unwrap();
    protect(&f, &x, InodeFlags::IMMUTABLE);
    let refused = |what: &str, kind: Option<ErrorKind>| {
        assert_eq!(kind, Some(ErrorKind::NotPermitted), "{what}");
    };
    let kind = |r: crate::Result<()>| r.err().map(|e| e.kind());
    refused("write", kind(plain.write_at(&[2; 10], 5).map(drop)));
    refused("append", kind(plain.append(&[2; 10]).map(drop)));
    let aligned = || vec![AlignedBuf::zeroed(8192).into()];
    refused(
        "direct",
        kind(direct.run(WriteOp::at(0, aligned())).map(drop)),
    );
    let (tell, told) = std::sync::mpsc::channel();
    let done = Box::new(move |result: crate::Result<usize>| {
        let _ = tell.send(result.err().map(|e| e.kind()));
    });
    direct.submit_write(aligned(), 0, done);
    refused("submitted", told.recv().unwrap());
    refused("truncate", kind(plain.set_len(3)));
    for mode in [
        FallocMode::Allocate { keep_size: false },
        FallocMode::PunchHole,
        FallocMode::ZeroRange { keep_size: true },
    ] {
        refused("fallocate", kind(plain.fallocate(0..4096, mode)));
        refused(
            "fallocate of a front end",
            kind(plain.fallocate_keeping_times(0..4096, mode)),
        );
    }
    let from = f.file("from");
    let from = f.open(&from);
    from.write_at(&[3; 4096], 0).unwrap();
    refused("copy", kind(from.copy_range(0, &plain, 0, 4096).map(drop)));
    assert!(super::read_all(&plain) == vec![1; 16384]);
    // What a front end's cache has taken before is kept.
    let back = WriteOp::borrowed(WriteAt::Offset(0), &[4; 4096]).written_back();
    plain.run(back).unwrap();
    assert_eq!(super::read_all(&plain)[..4096], [4; 4096]);
}

#[test]
fn an_append_only_file_keeps_what_it_has() {
    let f = fixture();
    let x = f.file("x");
    let h = f.open(&x);
    h.write_at(&[1; 8192], 0).unwrap();
    protect(&f, &x, InodeFlags::APPEND);
    let kind = |r: crate::Result<()>| r.err().map(|e| e.kind());
    let refused = Some(ErrorKind::NotPermitted);
    let keep_size = true;
    assert_eq!(kind(h.fallocate(0..4096, FallocMode::PunchHole)), refused);
    let zero = FallocMode::ZeroRange { keep_size };
    assert_eq!(kind(h.fallocate(0..4096, zero)), refused);
    assert_eq!(kind(h.set_len(0)), refused);
    h.fallocate(0..65536, FallocMode::Allocate { keep_size })
        .unwrap();
    assert!(super::read_all(&h) == vec![1; 8192]);
}

#[test]
fn touching_is_no_setting_of_times() {
    let f = fixture();
    let x = f.file("x");
    own(&f, &x, 0o666);
    let now = SetTime::Now;
    let at = SetTime::At(Timestamp { secs: 5, nanos: 6 });
    let as_read = SetTime::NowAs(Timestamp { secs: 7, nanos: 8 });
    let (owner, other) = (Cred::user(OWNER, GROUP), Cred::user(3, 3));
    let denied = Some(ErrorKind::NotPermitted);
    // (times, plain file by another user, append-only by its owner, immutable by its owner)
    for (atime, mtime, plain, append, immutable) in [
        (Some(now), Some(now), None, None, denied),
        (Some(now), Some(as_read), None, None, denied),
        (Some(now), None, denied, denied, denied),
        (None, Some(now), denied, denied, denied),
        (Some(at), Some(at), denied, denied, denied),
        (Some(at), Some(now), denied, denied, denied),
        (None, Some(at), denied, denied, denied),
    ] {
        for (cred, flags, expected) in [
            (&other, InodeFlags::empty(), plain),
            (&owner, InodeFlags::empty(), None),
            (&owner, InodeFlags::APPEND, append),
            (&owner, InodeFlags::IMMUTABLE, immutable),
        ] {
            protect(&f, &x, flags);
            let mut change = SetAttr {
                atime,
                mtime,
                ..SetAttr::default()
            };
            let kind = |r: crate::Result<crate::Attr>| r.err().map(|e| e.kind());
            let seen = kind(f.vfs.set_attr(cred, &x, &change));
            assert_eq!(seen, expected, "{atime:?} {mtime:?} {flags:?}");
            // What a front end has kept belongs to earlier changes.
            change.kept_times = true;
            assert_eq!(kind(f.vfs.set_attr(&f.cred, &x, &change)), None);
        }
    }
}

#[test]
fn set_gid_without_execution_stays_for_the_group() {
    let f = fixture();
    let change = |what: &str, cred: &Cred, x: &InodeRef| match what {
        "open" => {
            let flags = OpenFlags {
                truncate: true,
                ..OpenFlags::read_write()
            };
            drop(f.vfs.open(cred, x, flags).unwrap());
        }
        "size" => {
            let cut = SetAttr {
                size: Some(10),
                ..SetAttr::default()
            };
            f.vfs.set_attr(cred, x, &cut).unwrap();
        }
        "write" => {
            let h = f.vfs.open(cred, x, OpenFlags::read_write()).unwrap();
            h.write_at(&[1; 100], 50).unwrap();
        }
        _ => {
            let h = f.vfs.open(cred, x, OpenFlags::read_write()).unwrap();
            h.fallocate(0..8192, FallocMode::PunchHole).unwrap();
        }
    };
    for what in ["open", "size", "write", "punch"] {
        for (mode, cred, expected) in [
            (0o2666, Cred::user(3, GROUP), 0o2666),
            (0o2666, Cred::user(3, 3), 0o666),
            (0o2666, Cred::user(OWNER, 3), 0o666),
            (0o6676, Cred::user(3, GROUP), 0o676),
            (0o6666, Cred::root(), 0o6666),
        ] {
            let x = f.file(&format!("{what}{mode}{}{}", cred.uid, cred.gid));
            f.open(&x).write_at(&[1; 12288], 0).unwrap();
            own(&f, &x, 0o666);
            own(&f, &x, mode);
            change(what, &cred, &x);
            assert_eq!(f.vfs.stat(&x).perm, expected, "{what} {mode:o} {cred:?}");
        }
    }
    // A change of the owner, by members and others.
    for (gid, expected) in [(GROUP, 0o2666), (3, 0o666)] {
        let x = f.file(&format!("chown{gid}"));
        own(&f, &x, 0o6666);
        own(&f, &x, 0o6666);
        let same = SetAttr {
            uid: Some(OWNER),
            ..SetAttr::default()
        };
        f.vfs.set_attr(&Cred::user(OWNER, gid), &x, &same).unwrap();
        assert_eq!(f.vfs.stat(&x).perm, expected, "{gid}");
    }
}

#[test]
fn protected_files_keep_their_bits_and_contents() {
    let f = fixture();
    let x = f.file("x");
    own(&f, &x, 0o6777);
    protect(&f, &x, InodeFlags::APPEND);
    let append = OpenFlags {
        append: true,
        ..OpenFlags::read_write()
    };
    // Linux, too: to write, the bits would have to go, and they may not.
    let other = f.vfs.open(&Cred::user(3, 3), &x, append).unwrap();
    let refused = other.append(b"more").unwrap_err().kind();
    assert_eq!(refused, ErrorKind::NotPermitted);
    f.vfs
        .open(&f.cred, &x, append)
        .unwrap()
        .append(b"more")
        .unwrap();
    assert_eq!((f.vfs.stat(&x).perm, f.vfs.stat(&x).size), (0o6777, 4));
}
