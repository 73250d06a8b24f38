//! Names, permissions, attributes, ACLs.

use super::{Fixture, quiet};
use crate::error::ErrorKind;
use crate::inode::acl::{ACCESS_NAME, Acl, AclEntry, DEFAULT_NAME, Tag};
use crate::testing::MemOptions;
use crate::types::InodeFlags;
use crate::{
    Access, CreateRequest, Cred, FileKind, OpenFlags, RenameMode, SetAttr, SetTime, Timestamp,
    XattrMode,
};

fn fixture() -> Fixture {
    Fixture::new(8 << 20, MemOptions::default(), quiet())
}

fn kind<T: std::fmt::Debug>(r: crate::Result<T>) -> ErrorKind {
    r.unwrap_err().kind()
}

#[test]
fn paths_symlinks_and_loops() {
    let f = fixture();
    let a = f.dir(&f.root, "a");
    let b = f.dir(&a, "b");
    let link = |dir, name: &str, to: &str| {
        let mut req = CreateRequest::new(FileKind::Symlink, 0o777);
        req.symlink = to.as_bytes().to_vec();
        f.vfs.create(&f.cred, dir, name.as_bytes(), &req).unwrap();
    };
    link(&f.root, "to-b", "a/b");
    link(&b, "up", "../../to-b");
    link(&f.root, "loop", "loop");
    let find = |p: &str| f.vfs.resolve(&f.cred, p.as_bytes(), true);
    assert_eq!(find("/a/b").unwrap().ino(), b.ino());
    assert_eq!(find("to-b").unwrap().ino(), b.ino());
    assert_eq!(find("/to-b/up/./../b").unwrap().ino(), b.ino());
    assert_eq!(find("/").unwrap().ino(), f.root.ino());
    assert_eq!(find("/..").unwrap().ino(), f.root.ino());
    assert_eq!(kind(find("/loop")), ErrorKind::TooManySymlinks);
    assert_eq!(kind(find("/nothing/x")), ErrorKind::NotFound);
    let (dir, name) = f.vfs.resolve_parent(&f.cred, b"/a/new").unwrap();
    assert_eq!((dir.ino(), &name[..]), (a.ino(), &b"new"[..]));
    assert_eq!(
        f.vfs.resolve(&f.cred, b"loop", false).unwrap().kind(),
        FileKind::Symlink
    );
}

#[test]
fn names_and_symlink_targets_have_rules() {
    let f = fixture();
    let make = |name: &[u8]| {
        let req = CreateRequest::new(FileKind::Regular, 0o644);
        f.vfs.create(&f.cred, &f.root, name, &req).map(drop)
    };
    make(&[b'n'; 255]).unwrap();
    let long = [b'n'; 256];
    assert_eq!(kind(make(&long)), ErrorKind::NameTooLong);
    assert_eq!(kind(make(b"")), ErrorKind::NotFound);
    assert_eq!(kind(make(b"a/b")), ErrorKind::Invalid);
    assert_eq!(kind(make(b"a\0b")), ErrorKind::Invalid);
    let file = f.file("file");
    assert_eq!(
        kind(f.vfs.link(&f.cred, &file, &f.root, &long)),
        ErrorKind::NameTooLong
    );
    let to_long = f.vfs.rename(
        &f.cred,
        &f.root,
        b"file",
        &f.root,
        &long,
        RenameMode::Replace,
    );
    assert_eq!(kind(to_long), ErrorKind::NameTooLong);
    let link = |target: Vec<u8>| {
        let mut req = CreateRequest::new(FileKind::Symlink, 0o777);
        req.symlink = target;
        f.vfs.create(&f.cred, &f.root, b"link", &req).map(drop)
    };
    let block = f.vfs.format().block_bytes as usize;
    assert_eq!(kind(link(Vec::new())), ErrorKind::NotFound);
    assert_eq!(kind(link(b"a\0b".to_vec())), ErrorKind::Invalid);
    assert_eq!(kind(link(vec![b't'; block])), ErrorKind::NameTooLong);
    link(vec![b't'; block - 1]).unwrap();
}

#[test]
fn renames_refuse_loops_and_mismatched_kinds() {
    let f = fixture();
    let a = f.dir(&f.root, "a");
    let b = f.dir(&a, "b");
    f.file("file");
    let mv = |od, on: &str, nd, nn: &str, mode| {
        f.vfs
            .rename(&f.cred, od, on.as_bytes(), nd, nn.as_bytes(), mode)
    };
    use RenameMode::{Exchange, NoReplace, Replace};
    assert_eq!(kind(mv(&f.root, "a", &b, "x", Replace)), ErrorKind::Invalid);
    assert_eq!(kind(mv(&f.root, "a", &a, "x", Replace)), ErrorKind::Invalid);
    assert_eq!(
        kind(mv(&a, "b", &f.root, "a", Replace)),
        ErrorKind::NotEmpty
    );
    assert_eq!(
        kind(mv(&a, "b", &f.root, "a", Exchange)),
        ErrorKind::Invalid
    );
    assert_eq!(
        kind(mv(&f.root, "file", &f.root, "a", Replace)),
        ErrorKind::IsDirectory
    );
    assert_eq!(
        kind(mv(&f.root, "a", &f.root, "file", Replace)),
        ErrorKind::NotDirectory
    );
    assert_eq!(
        kind(mv(&f.root, "file", &f.root, "a", NoReplace)),
        ErrorKind::Exists
    );
    mv(&f.root, "file", &b, "moved", Replace).unwrap();
    mv(&a, "b", &f.root, "c", Replace).unwrap();
    assert_eq!(
        f.vfs.resolve(&f.cred, b"/c/..", true).unwrap().ino(),
        f.root.ino()
    );
    assert!(f.vfs.resolve(&f.cred, b"/c/moved", true).is_ok());
    mv(&f.root, "a", &f.root, "c", Exchange).unwrap();
    assert!(f.vfs.resolve(&f.cred, b"/a/moved", true).is_ok());
}

#[test]
fn unnamed_files_can_be_linked_or_vanish() {
    let f = fixture();
    let req = CreateRequest::new(FileKind::Regular, 0o600);
    let gone = f.vfs.create_unnamed(&f.cred, &f.root, &req).unwrap();
    f.open(&gone).write_at(b"x", 0).unwrap();
    drop(gone);
    assert_eq!(f.engine.inode_count(), 1);
    let kept = f.vfs.create_unnamed(&f.cred, &f.root, &req).unwrap();
    f.vfs.link(&f.cred, &kept, &f.root, b"kept").unwrap();
    drop(kept);
    assert!(f.vfs.resolve(&f.cred, b"kept", true).is_ok());
    assert_eq!(f.engine.free_blocks(), (8 << 20) / 4096 - 1);
}

#[test]
fn modes_ownership_and_inheritance() {
    let f = fixture();
    let user = Cred::user(1000, 100);
    let d = f.dir(&f.root, "d");
    assert_eq!(
        kind(f.vfs.create(
            &user,
            &d,
            b"x",
            &CreateRequest::new(FileKind::Regular, 0o644)
        )),
        ErrorKind::AccessDenied
    );
    let chmod = |inode, mode| {
        let req = SetAttr {
            mode: Some(mode),
            ..SetAttr::default()
        };
        f.vfs.set_attr(&f.cred, inode, &req).unwrap()
    };
    chmod(&d, 0o3777);
    let mut req = CreateRequest::new(FileKind::Regular, 0o666);
    req.umask = 0o027;
    let (x, created) = f.vfs.create(&user, &d, b"x", &req).unwrap();
    assert!(created);
    let attr = f.vfs.stat(&x);
    assert_eq!((attr.perm, attr.uid, attr.gid), (0o640, 1000, 0));
    let (sub, _) = f
        .vfs
        .create(
            &user,
            &d,
            b"sub",
            &CreateRequest::new(FileKind::Directory, 0o755),
        )
        .unwrap();
    assert_eq!(
        f.vfs.stat(&sub).perm & 0o2000,
        0o2000,
        "set-gid is inherited"
    );
    // Sticky: others cannot remove it.
    let other = Cred::user(1001, 100);
    assert_eq!(
        kind(f.vfs.unlink(&other, &d, b"x")),
        ErrorKind::NotPermitted
    );
    assert_eq!(
        kind(f.vfs.access(&other, &x, Access::READ)),
        ErrorKind::AccessDenied
    );
    // Only root gives files away; owners may change modes and times.
    let chown = SetAttr {
        uid: Some(1),
        ..SetAttr::default()
    };
    assert_eq!(
        kind(f.vfs.set_attr(&user, &x, &chown)),
        ErrorKind::NotPermitted
    );
    let at = Timestamp { secs: 5, nanos: 6 };
    let times = SetAttr {
        mtime: Some(SetTime::At(at)),
        ..SetAttr::default()
    };
    assert_eq!(f.vfs.set_attr(&user, &x, &times).unwrap().mtime, at);
    assert_eq!(
        kind(f.vfs.set_attr(&other, &x, &times)),
        ErrorKind::NotPermitted
    );
    // Set-id bits go when the owner changes, and when another user writes.
    chmod(&x, 0o6777);
    assert_eq!(f.vfs.set_attr(&f.cred, &x, &chown).unwrap().perm, 0o777);
    chmod(&x, 0o4777);
    let h = f.vfs.open(&user, &x, OpenFlags::read_write()).unwrap();
    h.write_at(b"1", 0).unwrap();
    assert_eq!(f.vfs.stat(&x).perm, 0o777);
}

#[test]
fn immutable_and_append_only() {
    let f = fixture();
    let x = f.file("x");
    let flags = |flags| {
        let req = SetAttr {
            flags: Some(flags),
            ..SetAttr::default()
        };
        f.vfs.set_attr(&f.cred, &x, &req).unwrap();
    };
    flags(InodeFlags::IMMUTABLE);
    assert_eq!(
        kind(f.vfs.open(&f.cred, &x, OpenFlags::read_write()).map(|_| ())),
        ErrorKind::NotPermitted
    );
    assert_eq!(
        kind(f.vfs.unlink(&f.cred, &f.root, b"x")),
        ErrorKind::NotPermitted
    );
    assert_eq!(
        kind(f.vfs.link(&f.cred, &x, &f.root, b"y")),
        ErrorKind::NotPermitted
    );
    flags(InodeFlags::APPEND);
    assert_eq!(
        kind(f.vfs.open(&f.cred, &x, OpenFlags::read_write()).map(|_| ())),
        ErrorKind::NotPermitted
    );
    let append = OpenFlags {
        append: true,
        ..OpenFlags::read_write()
    };
    f.vfs
        .open(&f.cred, &x, append)
        .unwrap()
        .append(b"log")
        .unwrap();
    let cut = SetAttr {
        size: Some(0),
        ..SetAttr::default()
    };
    assert_eq!(
        kind(f.vfs.set_attr(&f.cred, &x, &cut)),
        ErrorKind::NotPermitted
    );
    flags(InodeFlags::empty());
    f.vfs.unlink(&f.cred, &f.root, b"x").unwrap();
}

#[test]
fn acls_follow_modes_and_are_inherited() {
    let f = fixture();
    let entry = |tag, perm| AclEntry { tag, perm };
    let acl = Acl::from_entries(
        [
            entry(Tag::UserObj, 7),
            entry(Tag::User(1000), 6),
            entry(Tag::GroupObj, 0),
            entry(Tag::Mask, 6),
            entry(Tag::Other, 0),
        ]
        .into_iter()
        .collect(),
    )
    .unwrap();
    let d = f.dir(&f.root, "d");
    let set = |inode, name, acl: &Acl| {
        f.vfs
            .set_xattr(&f.cred, inode, name, &acl.to_bytes(), XattrMode::Any)
    };
    set(&d, DEFAULT_NAME, &acl).unwrap();
    let mut req = CreateRequest::new(FileKind::Regular, 0o664);
    req.umask = 0o077;
    let (x, _) = f.vfs.create(&f.cred, &d, b"x", &req).unwrap();
    assert_eq!(f.vfs.stat(&x).perm, 0o660, "the umask does not count");
    let user = Cred::user(1000, 1);
    f.vfs
        .access(&user, &x, Access::READ | Access::WRITE)
        .unwrap();
    assert!(
        f.vfs
            .access(&Cred::user(1001, 1), &x, Access::READ)
            .is_err()
    );
    // chmod changes the mask.
    let chmod = SetAttr {
        mode: Some(0o640),
        ..SetAttr::default()
    };
    f.vfs.set_attr(&f.cred, &x, &chmod).unwrap();
    assert!(f.vfs.access(&user, &x, Access::WRITE).is_err());
    let stored = Acl::parse(&f.vfs.get_xattr(&f.cred, &x, ACCESS_NAME).unwrap()).unwrap();
    assert_eq!(stored.mode_bits(), 0o640);
    // Subdirectories hand the default on.
    let (sub, _) = f
        .vfs
        .create(
            &f.cred,
            &d,
            b"s",
            &CreateRequest::new(FileKind::Directory, 0o777),
        )
        .unwrap();
    assert_eq!(
        f.vfs.get_xattr(&f.cred, &sub, DEFAULT_NAME).unwrap(),
        acl.to_bytes()
    );
    // One that only repeats the mode is not stored.
    set(&x, ACCESS_NAME, &Acl::from_mode(0o604)).unwrap();
    assert_eq!(f.vfs.stat(&x).perm, 0o604);
    assert_eq!(
        kind(f.vfs.get_xattr(&f.cred, &x, ACCESS_NAME)),
        ErrorKind::NoAttribute
    );
    assert_eq!(
        kind(
            f.vfs
                .set_xattr(&f.cred, &x, ACCESS_NAME, b"junk!", XattrMode::Any)
        ),
        ErrorKind::Unsupported
    );
    assert_eq!(kind(set(&x, DEFAULT_NAME, &acl)), ErrorKind::AccessDenied);
}

#[test]
fn attribute_namespaces() {
    let f = fixture();
    let x = f.file("x");
    let user = Cred::user(1000, 1000);
    let set = |cred, name: &str| {
        f.vfs
            .set_xattr(cred, &x, name.as_bytes(), b"v", XattrMode::Any)
    };
    set(&f.cred, "user.a").unwrap();
    set(&f.cred, "trusted.b").unwrap();
    set(&f.cred, "security.c").unwrap();
    assert_eq!(kind(set(&user, "user.a")), ErrorKind::AccessDenied);
    assert_eq!(kind(set(&user, "trusted.b")), ErrorKind::NotPermitted);
    assert_eq!(kind(set(&f.cred, "other.x")), ErrorKind::Unsupported);
    assert_eq!(kind(set(&f.cred, "user.")), ErrorKind::Unsupported);
    assert_eq!(f.vfs.list_xattr(&f.cred, &x).unwrap().len(), 3);
    assert_eq!(f.vfs.list_xattr(&user, &x).unwrap().len(), 2);
    assert_eq!(
        kind(f.vfs.get_xattr(&user, &x, b"trusted.b")),
        ErrorKind::NoAttribute
    );
    f.vfs.remove_xattr(&f.cred, &x, b"user.a").unwrap();
    assert_eq!(
        kind(f.vfs.remove_xattr(&f.cred, &x, b"user.a")),
        ErrorKind::NoAttribute
    );
}

#[test]
fn read_only_mounts_refuse_changes() {
    let f = fixture();
    let x = f.file("x");
    let mut options = (*f.vfs.options()).clone();
    options.read_only = true;
    f.vfs.remount(options).unwrap();
    assert_eq!(
        kind(f.vfs.unlink(&f.cred, &f.root, b"x")),
        ErrorKind::ReadOnly
    );
    assert_eq!(
        kind(f.vfs.open(&f.cred, &x, OpenFlags::read_write()).map(|_| ())),
        ErrorKind::ReadOnly
    );
    assert!(f.vfs.open(&f.cred, &x, OpenFlags::read_only()).is_ok());
}

#[test]
fn copies_between_files() {
    let f = fixture();
    let (a, b) = (f.open(&f.file("a")), f.open(&f.file("b")));
    let data: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
    a.write_at(&data, 0).unwrap();
    assert_eq!(a.copy_range(100, &b, 5, 10_000_000).unwrap(), 2_999_900);
    let all = super::read_all(&b);
    assert!(all[5..] == data[100..]);
    assert_eq!(kind(a.copy_range(0, &a, 10, 100)), ErrorKind::Invalid);
}
