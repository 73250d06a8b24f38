//! The dispatcher alone, fed by hand: what a mount cannot easily show. No kernel, no privileges.

mod support;

#[path = "dispatch/listings.rs"]
mod listings;
#[path = "dispatch/remembered.rs"]
mod remembered;

use blockwright_device::IoPriority;
use blockwright_fuse::protocol::flags::{InitFlags, SetAttrValid};
use blockwright_fuse::protocol::reply::{
    AttrOut, DirentPlus, EntryOut, GetXattrOut, InitOut, OpenOut, OutHeader, StatFsOut, WriteOut,
};
use blockwright_fuse::protocol::request::{
    BatchForgetIn, CreateIn, ForgetIn, ForgetOne, FsyncIn, GetXattrIn, InHeader, InitIn, IoctlIn,
    OpenIn, ReadIn, ReleaseIn, SetAttrIn, WriteIn,
};
use blockwright_fuse::protocol::{Opcode, ROOT_ID, Request};
use blockwright_fuse::{Dispatcher, FuseOptions, PermissionChecks};
use blockwright_fuse::{Notifier, ReplySink};
use parking_lot::Mutex;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::Arc;
use support::{Volume, log, volume};
use zerocopy::{FromBytes, IntoBytes};

/// A sink that keeps the reply, or refuses it as the kernel does when no client waits any more.
struct Kept<'a> {
    reply: &'a Mutex<Vec<Vec<u8>>>,
    refuse: bool,
}

impl ReplySink for Kept<'_> {
    fn send(self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        if self.refuse {
            return Err(io::Error::from_raw_os_error(libc::ENOENT));
        }
        self.reply
            .lock()
            .push(parts.iter().flat_map(|part| part.to_vec()).collect());
        Ok(())
    }
}

#[derive(Default)]
struct Notes(Mutex<Vec<u64>>, bool);

impl Notifier for Notes {
    fn drop_cached_range(&self, nodeid: u64, _: Range<u64>) -> io::Result<()> {
        self.0.lock().push(nodeid);
        assert!(!self.1, "asked to panic");
        Ok(())
    }

    fn forget_attributes(&self, _: u64) -> io::Result<()> {
        Ok(())
    }
}

struct Kernel {
    volume: Volume,
    dispatcher: Dispatcher,
    lines: Arc<Mutex<Vec<String>>>,
    uid: u32,
    pid: u32,
}

fn pod<T: FromBytes>(bytes: &[u8]) -> T {
    T::read_from_prefix(bytes)
        .map_err(|_| "too short")
        .unwrap()
        .0
}

impl Kernel {
    fn new(options: &FuseOptions) -> Self {
        let volume = volume();
        let (log, lines) = log();
        let options = FuseOptions {
            log,
            ..options.clone()
        };
        let dispatcher = Dispatcher::new(volume.vfs.clone(), &options).unwrap();
        Kernel {
            volume,
            dispatcher,
            lines,
            uid: 0,
            pid: 0,
        }
    }

    fn raw(&self, opcode: u32, nodeid: u64, body: &[u8], refuse: bool) -> Option<(i32, Vec<u8>)> {
        let header = InHeader {
            len: (size_of::<InHeader>() + body.len()) as u32,
            opcode,
            unique: 42,
            nodeid,
            uid: self.uid,
            gid: self.uid,
            pid: self.pid,
            ..InHeader::default()
        };
        let bytes = [header.as_bytes(), body].concat();
        let reply = Mutex::new(Vec::new());
        let sink = Kept {
            reply: &reply,
            refuse,
        };
        self.dispatcher
            .handle(Request::parse(&bytes).unwrap(), sink);
        let mut replies = reply.into_inner();
        assert!(replies.len() <= 1, "one request, one reply");
        replies.pop().map(|bytes| {
            let head: OutHeader = pod(&bytes);
            assert_eq!((head.len as usize, head.unique), (bytes.len(), 42));
            (head.error, bytes[size_of::<OutHeader>()..].to_vec())
        })
    }

    fn call(&self, opcode: Opcode, nodeid: u64, body: &[u8]) -> Result<Vec<u8>, i32> {
        match self
            .raw(opcode as u32, nodeid, body, false)
            .expect("a reply")
        {
            (0, bytes) => Ok(bytes),
            (error, _) => Err(-error),
        }
    }

    fn init(&self, flags: InitFlags, minor: u32) -> Result<InitOut, i32> {
        let (low, high) = flags.words();
        let init = InitIn {
            major: 7,
            minor,
            max_readahead: 131_072,
            flags: low,
            flags2: high,
            ..InitIn::default()
        };
        self.call(Opcode::Init, 0, init.as_bytes())
            .map(|bytes| pod(&bytes))
    }

    fn create(&self, name: &str, flags: i32) -> (EntryOut, OpenOut) {
        let head = CreateIn {
            flags: flags.cast_unsigned(),
            mode: 0o100_644,
            ..CreateIn::default()
        };
        let body = [head.as_bytes(), name.as_bytes(), b"\0"].concat();
        let reply = self.call(Opcode::Create, ROOT_ID, &body).unwrap();
        (pod(&reply), pod(&reply[size_of::<EntryOut>()..]))
    }

    fn lookup(&self, name: &str) -> EntryOut {
        let body = [name.as_bytes(), b"\0"].concat();
        pod(&self.call(Opcode::Lookup, ROOT_ID, &body).unwrap())
    }

    fn forget(&self, nodeid: u64, nlookup: u64) {
        assert!(
            self.raw(
                Opcode::Forget as u32,
                nodeid,
                ForgetIn { nlookup }.as_bytes(),
                false
            )
            .is_none()
        );
    }

    fn write(&self, node: u64, fh: u64, offset: u64, data: &[u8]) -> Result<u32, i32> {
        let head = WriteIn {
            fh,
            offset,
            size: data.len() as u32,
            ..WriteIn::default()
        };
        let body = [head.as_bytes(), data].concat();
        self.call(Opcode::Write, node, &body)
            .map(|bytes| pod::<WriteOut>(&bytes).size)
    }

    fn read(&self, node: u64, fh: u64, offset: u64, size: u32) -> Result<Vec<u8>, i32> {
        let head = ReadIn {
            fh,
            offset,
            size,
            ..ReadIn::default()
        };
        self.call(Opcode::Read, node, head.as_bytes())
    }
}

#[test]
fn init_agrees_on_what_both_have() {
    let kernel = Kernel::new(&FuseOptions::default());
    let out = kernel.init(InitFlags::from_bits_retain(!0), 45).unwrap();
    assert_eq!((out.major, out.minor), (7, 45));
    assert_eq!((out.max_write, out.max_pages), (256 << 10, 64));
    assert!(out.max_background >= 128 && out.congestion_threshold < out.max_background);
    let flags = InitFlags::from_words(out.flags, out.flags2);
    assert!(flags.contains(
        InitFlags::WRITEBACK_CACHE
            | InitFlags::POSIX_ACL
            | InitFlags::HANDLE_KILLPRIV_V2
            | InitFlags::CREATE_SUPP_GROUP
    ));
    assert!(!flags.intersects(
        InitFlags::POSIX_LOCKS
            | InitFlags::FLOCK_LOCKS
            | InitFlags::HANDLE_KILLPRIV
            | InitFlags::NO_OPENDIR_SUPPORT
            | InitFlags::SECURITY_CTX
            | InitFlags::PASSTHROUGH
            | InitFlags::OVER_IO_URING
    ));
    assert!(kernel.dispatcher.wait_ready(std::time::Duration::ZERO));

    // An older kernel gets what it has, in the version it has.
    let kernel = Kernel::new(&FuseOptions {
        permissions: PermissionChecks::Volume,
        ..FuseOptions::default()
    });
    let old = InitFlags::ASYNC_READ | InitFlags::WRITEBACK_CACHE | InitFlags::POSIX_ACL;
    let out = kernel.init(old, 31).unwrap();
    assert_eq!(out.minor, 31);
    assert_eq!(
        InitFlags::from_words(out.flags, out.flags2),
        InitFlags::ASYNC_READ | InitFlags::WRITEBACK_CACHE
    );
    assert_eq!(out.max_write, 128 << 10);

    let kernel = Kernel::new(&FuseOptions::default());
    assert_eq!(kernel.init(old, 30).err(), Some(libc::EPROTO));
    assert!(!kernel.dispatcher.wait_ready(std::time::Duration::ZERO));
}

#[test]
fn the_root_is_number_one_and_unknown_things_are_refused() {
    let kernel = Kernel::new(&FuseOptions::default());
    let attr: AttrOut = pod(&kernel.call(Opcode::GetAttr, ROOT_ID, &[0; 16]).unwrap());
    assert_eq!(attr.attr.ino, 2, "programs see the volume's own number");
    assert_eq!(attr.attr.mode, 0o040_755);
    assert_eq!(kernel.lookup(".").nodeid, ROOT_ID);
    assert_eq!(kernel.lookup("..").nodeid, ROOT_ID);
    assert_eq!(
        kernel.call(Opcode::GetAttr, 4711, &[0; 16]),
        Err(libc::ESTALE)
    );
    assert_eq!(
        kernel.raw(999, ROOT_ID, &[], false).unwrap().0,
        -libc::ENOSYS
    );
    for op in [
        Opcode::Flush,
        Opcode::GetLk,
        Opcode::SetLkW,
        Opcode::Bmap,
        Opcode::Poll,
    ] {
        assert_eq!(
            kernel.call(op, ROOT_ID, &[0; 64]),
            Err(libc::ENOSYS),
            "{op:?}"
        );
    }
    // Too short for its arguments: an error, and a line in the log.
    assert_eq!(kernel.call(Opcode::Write, ROOT_ID, &[0; 8]), Err(libc::EIO));
    assert!(
        kernel
            .lines
            .lock()
            .iter()
            .any(|line| line.contains("too short"))
    );
    assert_eq!(
        kernel.call(Opcode::Lookup, ROOT_ID, b"unterminated"),
        Err(libc::EIO)
    );
}

#[test]
fn lookups_are_counted_and_names_that_are_not_there_can_be_cached() {
    let kernel = Kernel::new(&FuseOptions::default());
    let (entry, open) = kernel.create("file", libc::O_RDWR);
    assert_eq!(kernel.dispatcher.held(), (1, 1));
    assert_eq!(kernel.lookup("file").nodeid, entry.nodeid);
    assert_eq!(entry.entry_valid, 3600);
    let missing = kernel.lookup("missing");
    assert_eq!((missing.nodeid, missing.entry_valid), (0, 3600));

    let release = ReleaseIn {
        fh: open.fh,
        ..ReleaseIn::default()
    };
    kernel
        .call(Opcode::Release, entry.nodeid, release.as_bytes())
        .unwrap();
    assert_eq!(kernel.read(entry.nodeid, open.fh, 0, 1), Err(libc::EBADF));
    kernel.forget(entry.nodeid, 1);
    assert_eq!(
        kernel.dispatcher.held(),
        (1, 0),
        "one of two lookups is left"
    );
    let batch = [
        BatchForgetIn { count: 2, dummy: 0 }.as_bytes(),
        ForgetOne {
            nodeid: entry.nodeid,
            nlookup: 1,
        }
        .as_bytes(),
        ForgetOne {
            nodeid: 4711,
            nlookup: 9,
        }
        .as_bytes(),
    ]
    .concat();
    assert!(
        kernel
            .raw(Opcode::BatchForget as u32, 0, &batch, false)
            .is_none()
    );
    assert_eq!(kernel.dispatcher.held(), (0, 0));
    // A file handle brings it back.
    let dot: EntryOut = pod(&kernel.call(Opcode::Lookup, entry.nodeid, b".\0").unwrap());
    assert_eq!(
        (dot.nodeid, dot.generation),
        (entry.nodeid, entry.generation)
    );
}

#[test]
fn what_nobody_waits_for_is_taken_back() {
    let kernel = Kernel::new(&FuseOptions::default());
    let head = CreateIn {
        flags: libc::O_RDWR.cast_unsigned(),
        mode: 0o644,
        ..CreateIn::default()
    };
    let body = [head.as_bytes(), b"file\0"].concat();
    assert!(
        kernel
            .raw(Opcode::Create as u32, ROOT_ID, &body, true)
            .is_none()
    );
    assert_eq!(kernel.dispatcher.held(), (0, 0));
    let entry = kernel.lookup("file");
    let open = OpenIn {
        flags: libc::O_RDWR.cast_unsigned(),
        open_flags: 0,
    };
    assert!(
        kernel
            .raw(Opcode::Open as u32, entry.nodeid, open.as_bytes(), true)
            .is_none()
    );
    assert_eq!(kernel.dispatcher.held(), (1, 0));
}

#[test]
fn an_unlinked_file_lives_until_forgotten() {
    let kernel = Kernel::new(&FuseOptions::default());
    let (entry, open) = kernel.create("file", libc::O_RDWR);
    kernel.write(entry.nodeid, open.fh, 0, b"data").unwrap();
    kernel.call(Opcode::Unlink, ROOT_ID, b"file\0").unwrap();
    assert_eq!(kernel.read(entry.nodeid, open.fh, 0, 10).unwrap(), b"data");
    let release = ReleaseIn {
        fh: open.fh,
        ..ReleaseIn::default()
    };
    kernel
        .call(Opcode::Release, entry.nodeid, release.as_bytes())
        .unwrap();
    let attr: AttrOut = pod(&kernel
        .call(Opcode::GetAttr, entry.nodeid, &[0; 16])
        .unwrap());
    assert_eq!(attr.attr.nlink, 0);
    let set = SetAttrIn {
        valid: (SetAttrValid::MTIME | SetAttrValid::CTIME).bits(),
        mtime: 1,
        ctime: 2,
        ..SetAttrIn::default()
    };
    let attr: AttrOut = pod(&kernel
        .call(Opcode::SetAttr, entry.nodeid, set.as_bytes())
        .unwrap());
    assert_eq!((attr.attr.mtime, attr.attr.ctime), (1, 2));
    kernel.forget(entry.nodeid, 1);
    assert_eq!(
        kernel.call(Opcode::GetAttr, entry.nodeid, &[0; 16]),
        Err(libc::ESTALE)
    );
}

fn counted(kernel: &Kernel, name: &str) -> u64 {
    kernel.dispatcher.stats().get(name).expect(name)
}

/// What is given back and was held is let go of by another thread; a name that is looked up again meanwhile is the same
/// inode, and nothing is left at the end.
#[test]
fn what_is_given_back_is_let_go_of_behind() {
    let kernel = Kernel::new(&FuseOptions::default());
    let free = |kernel: &Kernel| -> u64 {
        let out: StatFsOut = pod(&kernel.call(Opcode::StatFs, ROOT_ID, &[]).unwrap());
        out.bfree
    };
    let (mut entry, open) = kernel.create("file", libc::O_RDWR);
    let release = |open: OpenOut| ReleaseIn {
        fh: open.fh,
        ..ReleaseIn::default()
    };
    kernel.write(entry.nodeid, open.fh, 0, b"data").unwrap();
    kernel
        .call(Opcode::Release, entry.nodeid, release(open).as_bytes())
        .unwrap();
    let mut given_back = 1;
    for _ in 0..1000 {
        kernel.forget(entry.nodeid, 1);
        // With a name it was not held: there is nothing to let go of.
        entry = kernel.lookup("file");
    }
    // Many files made, removed and forgotten: their space is there when it is asked for.
    let before = free(&kernel);
    for n in 0..3000 {
        let name = format!("f{n}");
        let (entry, open) = kernel.create(&name, libc::O_RDWR);
        kernel.write(entry.nodeid, open.fh, 0, &[7; 4096]).unwrap();
        let name = [name.as_bytes(), b"\0"].concat();
        kernel.call(Opcode::Unlink, ROOT_ID, &name).unwrap();
        kernel
            .call(Opcode::Release, entry.nodeid, release(open).as_bytes())
            .unwrap();
        kernel.forget(entry.nodeid, 1);
        given_back += 2;
    }
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while free(&kernel) < before {
        assert!(std::time::Instant::now() < deadline, "space is lost");
    }
    let (behind, at_once) = (
        counted(&kernel, "fuse_released_behind"),
        counted(&kernel, "fuse_released_at_once"),
    );
    assert_eq!(behind + at_once, given_back);
    assert!(behind > 0);
    // The end waits for what is left.
    kernel.call(Opcode::Unlink, ROOT_ID, b"file\0").unwrap();
    kernel.forget(entry.nodeid, 1);
    kernel.dispatcher.close();
    assert_eq!(kernel.dispatcher.held(), (0, 0));
    assert_eq!(
        counted(&kernel, "fuse_released_behind") + counted(&kernel, "fuse_released_at_once"),
        given_back + 1
    );
}

#[test]
fn appends_go_where_the_kernel_says_and_write_only_handles_can_read() {
    let kernel = Kernel::new(&FuseOptions::default());
    let (entry, open) = kernel.create("file", libc::O_WRONLY | libc::O_APPEND);
    assert_eq!(
        kernel.write(entry.nodeid, open.fh, 0, b"0123456789"),
        Ok(10)
    );
    // Writeback of a page that was in the cache, through a handle opened to append.
    assert_eq!(kernel.write(entry.nodeid, open.fh, 2, b"xx"), Ok(2));
    assert_eq!(
        kernel.read(entry.nodeid, open.fh, 0, 100).unwrap(),
        b"01xx456789"
    );
    assert_eq!(kernel.read(entry.nodeid, open.fh, 8, 1).unwrap(), b"8");
    assert_eq!(kernel.read(entry.nodeid, open.fh, 10, 1).unwrap(), b"");
}

/// Programs that know f2fs's atomic writes ask for them, and keep a journal of their own where there are none.
#[test]
fn atomic_and_volatile_writes_are_not_offered() {
    let kernel = Kernel::new(&FuseOptions::default());
    let (entry, open) = kernel.create("file", libc::O_RDWR);
    // _IO(0xf5, 1) to _IO(0xf5, 5): start, commit, start volatile, release volatile, abort.
    for cmd in 0xf501..=0xf505 {
        let ioctl = IoctlIn {
            fh: open.fh,
            cmd,
            ..IoctlIn::default()
        };
        let answer = kernel.call(Opcode::Ioctl, entry.nodeid, ioctl.as_bytes());
        assert_eq!(answer, Err(libc::ENOTTY));
    }
}

#[test]
fn times_and_owner_are_set_as_told() {
    let kernel = Kernel::new(&FuseOptions {
        uid: Some(1000),
        ..FuseOptions::default()
    });
    let (entry, _) = kernel.create("file", libc::O_RDWR);
    assert_eq!(entry.attr.uid, 1000, "shown as asked for");
    let set = SetAttrIn {
        valid: (SetAttrValid::MTIME | SetAttrValid::CTIME | SetAttrValid::UID).bits(),
        mtime: -5,
        mtimensec: 6,
        ctime: 7,
        ctimensec: 8,
        uid: 1000,
        ..SetAttrIn::default()
    };
    let out: AttrOut = pod(&kernel
        .call(Opcode::SetAttr, entry.nodeid, set.as_bytes())
        .unwrap());
    assert_eq!((out.attr.mtime, out.attr.mtimensec), (-5, 6));
    assert_eq!((out.attr.ctime, out.attr.ctimensec), (7, 8));
    assert_eq!(out.attr.uid, 1000);
    let root = kernel.volume.vfs.root().unwrap();
    let cred = blockwright_vfs::Cred::unchecked();
    let inode = kernel.volume.vfs.lookup(&cred, &root, b"file").unwrap();
    assert_eq!(inode.attr().uid, 1000, "stored as it was set");
}

#[test]
fn listings_hand_over_inodes_and_fit_the_buffer() {
    let kernel = Kernel::new(&FuseOptions::default());
    for n in 0..50 {
        let (entry, open) = kernel.create(&format!("file-{n}"), libc::O_RDWR);
        let release = ReleaseIn {
            fh: open.fh,
            ..ReleaseIn::default()
        };
        kernel
            .call(Opcode::Release, entry.nodeid, release.as_bytes())
            .unwrap();
        kernel.forget(entry.nodeid, 1);
    }
    assert_eq!(kernel.dispatcher.held(), (0, 0));
    let (mut offset, mut seen) = (0, 0);
    loop {
        let head = ReadIn {
            offset,
            size: 1000,
            ..ReadIn::default()
        };
        let list = kernel
            .call(Opcode::ReadDirPlus, ROOT_ID, head.as_bytes())
            .unwrap();
        assert!(list.len() <= 1000);
        if list.is_empty() {
            break;
        }
        let mut rest = &list[..];
        while !rest.is_empty() {
            let plus: DirentPlus = pod(rest);
            let name = &rest[size_of::<DirentPlus>()..][..plus.dirent.namelen as usize];
            if name == b"." || name == b".." {
                assert_eq!(plus.entry.nodeid, 0, "the kernel would not give these back");
            } else {
                assert_eq!(plus.entry.nodeid, plus.dirent.ino);
                assert_eq!(plus.dirent.kind, u32::from(libc::DT_REG));
                seen += 1;
            }
            offset = plus.dirent.off;
            rest = &rest[(size_of::<DirentPlus>() + name.len()).next_multiple_of(8)..];
        }
    }
    assert_eq!(seen, 50);
    assert_eq!(kernel.dispatcher.held(), (50, 0));
    // Room for nothing: an empty answer, no loop.
    let head = ReadIn {
        size: 10,
        ..ReadIn::default()
    };
    assert_eq!(
        kernel
            .call(Opcode::ReadDir, ROOT_ID, head.as_bytes())
            .unwrap(),
        b""
    );
}

#[test]
fn attribute_sizes() {
    let kernel = Kernel::new(&FuseOptions::default());
    // Without SETXATTR_EXT agreed on, the short arguments are used.
    let set = [
        &5u32.to_ne_bytes()[..],
        &0u32.to_ne_bytes(),
        b"user.a\0value",
    ]
    .concat();
    kernel.call(Opcode::SetXattr, ROOT_ID, &set).unwrap();
    let get = |size| {
        let head = GetXattrIn { size, padding: 0 };
        kernel.call(
            Opcode::GetXattr,
            ROOT_ID,
            &[head.as_bytes(), b"user.a\0"].concat(),
        )
    };
    assert_eq!(pod::<GetXattrOut>(&get(0).unwrap()).size, 5);
    assert_eq!(get(4), Err(libc::ERANGE));
    assert_eq!(get(5).unwrap(), b"value");
    kernel.init(InitFlags::SETXATTR_EXT, 45).unwrap();
    let long = [&1u32.to_ne_bytes()[..], &[0; 12], b"user.b\0x"].concat();
    kernel.call(Opcode::SetXattr, ROOT_ID, &long).unwrap();
    let head = GetXattrIn {
        size: 100,
        padding: 0,
    };
    let list = kernel
        .call(Opcode::ListXattr, ROOT_ID, head.as_bytes())
        .unwrap();
    assert_eq!(list, b"user.a\0user.b\0");
}

#[test]
fn dirty_pages_are_called_in_before_a_hole_is_looked_for() {
    let kernel = Kernel::new(&FuseOptions::default());
    let notes = Arc::new(Notes::default());
    kernel.dispatcher.set_notifier(notes.clone());
    let (entry, open) = kernel.create("file", libc::O_RDWR);
    kernel.write(entry.nodeid, open.fh, 0, &[1; 4096]).unwrap();
    let seek = |fh: u64| {
        let body = [fh, 0, u64::from(libc::SEEK_DATA.cast_unsigned())];
        kernel.call(Opcode::Lseek, entry.nodeid, body.as_bytes())
    };
    seek(open.fh).unwrap();
    assert_eq!(*notes.0.lock(), [entry.nodeid]);
    let release = ReleaseIn {
        fh: open.fh,
        ..ReleaseIn::default()
    };
    kernel
        .call(Opcode::Release, entry.nodeid, release.as_bytes())
        .unwrap();
    let ro = OpenIn::default();
    let reader: OpenOut = pod(&kernel
        .call(Opcode::Open, entry.nodeid, ro.as_bytes())
        .unwrap());
    seek(reader.fh).unwrap();
    assert_eq!(
        notes.0.lock().len(),
        1,
        "no file is written: nothing to call in"
    );
}

#[test]
fn panics_become_errors_and_closing_refuses_everything() {
    let kernel = Kernel::new(&FuseOptions::default());
    kernel
        .dispatcher
        .set_notifier(Arc::new(Notes(Mutex::default(), true)));
    let (entry, open) = kernel.create("file", libc::O_RDWR);
    let seek = [open.fh, 0, u64::from(libc::SEEK_DATA.cast_unsigned())];
    assert_eq!(
        kernel.call(Opcode::Lseek, entry.nodeid, seek.as_bytes()),
        Err(libc::EIO)
    );
    let lines = kernel.lines.lock().clone();
    assert!(
        lines
            .iter()
            .any(|line| line.contains("internal error in Lseek: asked to")),
        "{lines:?}"
    );
    assert_eq!(kernel.write(entry.nodeid, open.fh, 0, b"goes on"), Ok(7));

    kernel.dispatcher.close();
    assert_eq!(kernel.dispatcher.held(), (0, 0));
    assert_eq!(
        kernel.call(Opcode::Lookup, ROOT_ID, b"file\0"),
        Err(libc::ENODEV)
    );
    kernel.volume.vfs.unmount().unwrap();
}

#[test]
fn the_volume_checks_permissions_when_the_kernel_does_not() {
    let mut kernel = Kernel::new(&FuseOptions {
        permissions: PermissionChecks::Volume,
        ..FuseOptions::default()
    });
    let (entry, _) = kernel.create("file", libc::O_RDWR);
    kernel.uid = 1000;
    let open = |flags: i32| {
        let open = OpenIn {
            flags: flags.cast_unsigned(),
            open_flags: 0,
        };
        kernel
            .call(Opcode::Open, entry.nodeid, open.as_bytes())
            .map(|_| ())
    };
    assert_eq!(open(libc::O_RDONLY), Ok(()));
    assert_eq!(open(libc::O_WRONLY), Err(libc::EACCES));
    assert_eq!(open(libc::O_RDONLY | libc::O_TRUNC), Err(libc::EACCES));
    assert_eq!(
        kernel.call(Opcode::Unlink, ROOT_ID, b"file\0"),
        Err(libc::EACCES)
    );
    let mask = [2u32, 0];
    assert_eq!(
        kernel.call(Opcode::Access, entry.nodeid, mask.as_bytes()),
        Err(libc::EACCES)
    );
}

#[test]
fn fsync_has_the_priority_of_the_calling_thread() {
    let mut kernel = Kernel::new(&FuseOptions::default());
    kernel.init(InitFlags::empty(), 40).unwrap();
    let (entry, open) = kernel.create("file", libc::O_RDWR);
    let fsync = |kernel: &Kernel| {
        kernel
            .write(entry.nodeid, open.fh, 0, b"new")
            .expect("written");
        let args = FsyncIn {
            fh: open.fh,
            ..FsyncIn::default()
        };
        kernel
            .call(Opcode::Fsync, entry.nodeid, args.as_bytes())
            .expect("durable");
        let device = &kernel.volume.device;
        device.written_at.load(std::sync::atomic::Ordering::Relaxed)
    };
    let own = u64::from(IoPriority::current().0);
    assert_eq!(fsync(&kernel), own);
    let (tell, told) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let client = std::thread::spawn(move || {
        IoPriority(7).adopt();
        tell.send(rustix::thread::gettid().as_raw_nonzero().get())
            .unwrap();
        let _ended = ended.recv();
    });
    kernel.pid = told.recv().unwrap().cast_unsigned();
    assert_eq!(fsync(&kernel), 7);
    kernel.pid = 0;
    assert_eq!(fsync(&kernel), own, "and only for that request");
    drop(end);
    client.join().unwrap();
}
