//! What is done to a file or a directory, by names alone, so that a table of them is a list of words.

use blockwright_device::{AlignedBuf, mapped::MappedRange};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Gid, IFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps,
    UTIME_NOW, UTIME_OMIT, Uid, XattrFlags,
};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// What every file in the table holds.
pub const FILE_BYTES: u64 = 16384;

/// How an operation went: `ok`, or the step that failed and how.
pub type Outcome = String;

fn step<T>(name: &str, result: rustix::io::Result<T>) -> Result<T, Outcome> {
    result.map_err(|e| format!("{name}: {}", errno_name(e)))
}

fn errno_name(e: Errno) -> String {
    match e {
        Errno::PERM => "EPERM".into(),
        Errno::ACCESS => "EACCES".into(),
        Errno::NOTSUP => "EOPNOTSUPP".into(),
        Errno::INVAL => "EINVAL".into(),
        Errno::IO => "EIO".into(),
        Errno::NODATA => "ENODATA".into(),
        other => format!("{other:?}"),
    }
}

fn open(path: &Path, flags: OFlags) -> Result<OwnedFd, Outcome> {
    step(
        "open",
        rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o666)),
    )
}

/// Operations on a file that open it first, with these flags.
pub const OPENS: [(&str, OFlags); 9] = [
    ("open r", OFlags::RDONLY),
    ("open w", OFlags::WRONLY),
    ("open rw", OFlags::RDWR),
    ("open r|trunc", OFlags::TRUNC),
    ("open w|trunc", OFlags::WRONLY.union(OFlags::TRUNC)),
    ("open w|creat", OFlags::WRONLY.union(OFlags::CREATE)),
    ("open w|append", OFlags::WRONLY.union(OFlags::APPEND)),
    (
        "open w|append|trunc",
        OFlags::WRONLY.union(OFlags::APPEND).union(OFlags::TRUNC),
    ),
    ("open r|noatime", OFlags::NOATIME),
];

/// Operations through a handle: opened for reading and writing, or with `append`, `direct`.
pub const HANDLES: [&str; 19] = [
    "write",
    "write beyond",
    "append write",
    "direct write",
    "direct write beyond",
    "append direct write",
    "mmap write",
    "ftruncate shorter",
    "ftruncate longer",
    "ftruncate same",
    "allocate",
    "allocate beyond",
    "allocate keep",
    "punch",
    "zero",
    "zero beyond",
    "zero keep",
    "copy to",
    "append copy to",
];

/// Operations on a name, or through a handle that is open for reading.
pub const NAMES: [&str; 30] = [
    "chmod 600",
    "chmod 6755",
    "chmod 2744",
    "chown none",
    "chown same",
    "chown to root",
    "chgrp same",
    "chgrp to mine",
    "times now",
    "times now/omit",
    "times omit/now",
    "times omit",
    "times set",
    "times set/omit",
    "times omit/set",
    "times set/now",
    "link",
    "unlink",
    "rename",
    "rename over it",
    "rename exchange",
    "set user.x",
    "remove user.x",
    "set trusted.x",
    "set security.x",
    "set capability",
    "set flag nodump",
    "set flag immutable",
    "set flag append",
    "clear flags",
];

/// Operations on a directory that has a file `in` and a directory `sub`, both writable for every
/// user.
pub const DIRECTORIES: [&str; 22] = [
    "create in",
    "mkdir in",
    "symlink in",
    "link in",
    "tmpfile in",
    "unlink in",
    "rmdir in",
    "rename in",
    "rename into",
    "rename out of",
    "write to in",
    "chmod 700",
    "chmod 2711",
    "chown same",
    "chgrp same",
    "times now",
    "times set",
    "set user.x",
    "remove user.x",
    "rename itself",
    "rmdir itself",
    "clear flags",
];

pub fn flags_of(op: &str) -> OFlags {
    let mut flags = OFlags::RDWR;
    flags.set(OFlags::APPEND, op.starts_with("append"));
    flags.set(OFlags::DIRECT, op.contains("direct"));
    flags
}

/// A path beside another, with something behind its name.
pub fn beside(path: &Path, more: &str) -> PathBuf {
    let mut name = path.file_name().expect("a name").to_owned();
    name.push(more);
    path.with_file_name(name)
}

/// Does it through a handle that is open.
pub fn with_handle(op: &str, path: &Path, fd: &OwnedFd) -> Result<(), Outcome> {
    let beyond = FILE_BYTES - 4096;
    let falloc = |flags, at, len| step("fallocate", rustix::fs::fallocate(fd, flags, at, len));
    let keep = FallocateFlags::KEEP_SIZE;
    match op {
        "write" => step("write", rustix::io::pwrite(fd, &[7; 100], 50)).map(drop),
        "write beyond" => step("write", rustix::io::pwrite(fd, &[7; 8192], beyond)).map(drop),
        "append write" => step("write", rustix::io::write(fd, &[7; 100])).map(drop),
        "direct write" | "direct write beyond" | "append direct write" => {
            let mut bytes = AlignedBuf::for_transfer(8192);
            bytes.fill(9);
            let at = if op == "direct write" { 0 } else { beyond };
            step("write", rustix::io::pwrite(fd, &bytes, at)).map(drop)
        }
        "mmap write" => {
            let mut map = MappedRange::new(fd, 0, 8192).map_err(|e| format!("mmap: {e}"))?;
            map.write(10, &[3; 100]);
            Ok(())
        }
        "ftruncate shorter" => step("ftruncate", rustix::fs::ftruncate(fd, 5000)),
        "ftruncate longer" => step("ftruncate", rustix::fs::ftruncate(fd, 50_000)),
        "ftruncate same" => step("ftruncate", rustix::fs::ftruncate(fd, FILE_BYTES)),
        "allocate" => falloc(FallocateFlags::empty(), 0, 8192),
        "allocate beyond" => falloc(FallocateFlags::empty(), beyond, 8192),
        "allocate keep" => falloc(keep, beyond, 8192),
        "punch" => falloc(FallocateFlags::PUNCH_HOLE | keep, 0, 4096),
        "zero" => falloc(FallocateFlags::ZERO_RANGE, 0, 4096),
        "zero beyond" => falloc(FallocateFlags::ZERO_RANGE, beyond, 8192),
        "zero keep" => falloc(FallocateFlags::ZERO_RANGE | keep, beyond, 8192),
        "copy to" | "append copy to" => {
            let from = open(&path.with_file_name("source"), OFlags::RDONLY)?;
            let copied = rustix::fs::copy_file_range(&from, Some(&mut 0), fd, Some(&mut 0), 4096);
            step("copy", copied).map(drop)
        }
        other => panic!("no such operation: {other}"),
    }
}

fn times(op: &str) -> Timestamps {
    let at = |nsec| Timespec {
        tv_sec: 1_000_000_000,
        tv_nsec: nsec,
    };
    let (now, omit, set) = (at(UTIME_NOW), at(UTIME_OMIT), at(5));
    let (last_access, last_modification) = match op {
        "times now" => (now, now),
        "times now/omit" => (now, omit),
        "times omit/now" => (omit, now),
        "times omit" => (omit, omit),
        "times set" => (set, set),
        "times set/omit" => (set, omit),
        "times omit/set" => (omit, set),
        "times set/now" => (set, now),
        other => panic!("no such operation: {other}"),
    };
    Timestamps {
        last_access,
        last_modification,
    }
}

/// Does it by name. `gid` is the group of the one who does.
pub fn by_name(op: &str, path: &Path, gid: u32) -> Result<(), Outcome> {
    use rustix::fs as f;
    let chmod = |bits| step("chmod", f::chmod(path, Mode::from_raw_mode(bits)));
    let chown = |uid: Option<u32>, gid: Option<u32>| {
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        step("chown", f::chown(path, uid, gid))
    };
    let set = |name: &str, value: &[u8]| {
        step(
            "setxattr",
            f::setxattr(path, name, value, XattrFlags::empty()),
        )
    };
    let flags = |flags: IFlags| {
        let fd = open(path, OFlags::RDONLY)?;
        let old = step("getflags", f::ioctl_getflags(&fd))?;
        let ours = IFlags::IMMUTABLE | IFlags::APPEND | IFlags::NODUMP;
        step(
            "setflags",
            f::ioctl_setflags(&fd, old.difference(ours) | flags),
        )
    };
    match op {
        "chmod 600" => chmod(0o600),
        "chmod 700" => chmod(0o700),
        "chmod 6755" => chmod(0o6755),
        "chmod 2744" => chmod(0o2744),
        "chmod 2711" => chmod(0o2711),
        "chown none" => chown(None, None),
        "chown same" => chown(Some(super::actors::OWNER), None),
        "chown to root" => chown(Some(0), None),
        "chgrp same" => chown(None, Some(super::actors::GROUP)),
        "chgrp to mine" => chown(None, Some(gid)),
        "link" => step("link", f::link(path, beside(path, ".link"))),
        "unlink" => step("unlink", f::unlink(path)),
        "rename" => step("rename", f::rename(path, beside(path, ".new"))),
        "rename over it" => {
            let from = beside(path, ".from");
            drop(open(&from, OFlags::WRONLY | OFlags::CREATE)?);
            step("rename", f::rename(from, path))
        }
        "rename exchange" => {
            let from = beside(path, ".from");
            drop(open(&from, OFlags::WRONLY | OFlags::CREATE)?);
            let swap = RenameFlags::EXCHANGE;
            step("rename", f::renameat_with(CWD, from, CWD, path, swap))
        }
        "set user.x" => set("user.x", b"new"),
        "remove user.x" => step("removexattr", f::removexattr(path, "user.x")),
        "set trusted.x" => set("trusted.x", b"new"),
        "set security.x" => set("security.x", b"new"),
        // Version 2, no capabilities at all.
        "set capability" => set(
            "security.capability",
            &[0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ),
        "set flag nodump" => flags(IFlags::NODUMP),
        "set flag immutable" => flags(IFlags::IMMUTABLE),
        "set flag append" => flags(IFlags::APPEND),
        "clear flags" => flags(IFlags::empty()),
        _ if op.starts_with("times") => step(
            "utimensat",
            f::utimensat(CWD, path, &times(op), AtFlags::empty()),
        ),
        _ => in_directory(op, path),
    }
}

fn in_directory(op: &str, dir: &Path) -> Result<(), Outcome> {
    use rustix::fs as f;
    let all = Mode::from_raw_mode(0o777);
    match op {
        "create in" => open(&dir.join("new"), OFlags::WRONLY | OFlags::CREATE).map(drop),
        "mkdir in" => step("mkdir", f::mkdir(dir.join("new"), all)),
        "symlink in" => step("symlink", f::symlink("in", dir.join("new"))),
        "link in" => step("link", f::link(dir.join("in"), dir.join("new"))),
        "tmpfile in" => open(dir, OFlags::RDWR | OFlags::TMPFILE).map(drop),
        "unlink in" => step("unlink", f::unlink(dir.join("in"))),
        "rmdir in" => step("rmdir", f::rmdir(dir.join("sub"))),
        "rename in" => step("rename", f::rename(dir.join("in"), dir.join("new"))),
        "rename into" => {
            let from = beside(dir, ".from");
            drop(open(&from, OFlags::WRONLY | OFlags::CREATE)?);
            step("rename", f::rename(from, dir.join("new")))
        }
        "rename out of" => step("rename", f::rename(dir.join("in"), beside(dir, ".out"))),
        "write to in" => {
            let fd = open(&dir.join("in"), OFlags::WRONLY)?;
            step("write", rustix::io::pwrite(&fd, b"bytes", 0)).map(drop)
        }
        "rename itself" => step("rename", f::rename(dir, beside(dir, ".new"))),
        "rmdir itself" => step("rmdir", f::rmdir(dir)),
        other => panic!("no such operation: {other}"),
    }
}

/// Opens, and closes again.
pub fn open_only(path: &Path, flags: OFlags) -> Result<(), Outcome> {
    open(path, flags).map(drop)
}

/// The handle an operation needs.
pub fn handle(op: &str, path: &Path) -> Result<OwnedFd, Outcome> {
    open(path, flags_of(op))
}

/// The same, after a write of what is there.
pub fn used_handle(op: &str, path: &Path) -> Result<OwnedFd, Outcome> {
    let fd = handle(op, path)?;
    if !op.starts_with("append") {
        let mut bytes = AlignedBuf::for_transfer(4096);
        bytes.fill(1);
        step("write", rustix::io::pwrite(&fd, &bytes, 0))?;
    }
    Ok(fd)
}
