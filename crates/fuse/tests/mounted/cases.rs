//! The front end under a real kernel: ordinary system calls on a mounted memory volume. Once per transport.

use crate::TRANSPORT;
use crate::support::{Mounted, can_mount};
use blockwright_fuse::{FuseOptions, Visibility};
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, SeekFrom, XattrFlags};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{
    DirBuilderExt, FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink,
};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

pub fn options() -> FuseOptions {
    FuseOptions {
        transport: TRANSPORT,
        ..FuseOptions::default()
    }
}

pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed | 1;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 32) as u8
        })
        .collect()
}

fn names(dir: &std::path::Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn files_directories_links_and_devices() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(options());
    fs::create_dir_all(m.path("a/b/c")).unwrap();
    let data = noise(3_000_001, 1);
    fs::write(m.path("a/b/file"), &data).unwrap();
    assert!(fs::read(m.path("a/b/file")).unwrap() == data);
    assert_eq!(fs::metadata(m.path("a/b/file")).unwrap().len(), 3_000_001);
    assert_eq!(fs::metadata(m.path("a")).unwrap().nlink(), 3);

    fs::hard_link(m.path("a/b/file"), m.path("a/link")).unwrap();
    assert_eq!(fs::metadata(m.path("a/link")).unwrap().nlink(), 2);
    fs::remove_file(m.path("a/b/file")).unwrap();
    assert_eq!(fs::metadata(m.path("a/link")).unwrap().nlink(), 1);
    assert!(fs::read(m.path("a/link")).unwrap() == data);

    symlink("../a/link", m.path("a/sym")).unwrap();
    assert_eq!(
        fs::read_link(m.path("a/sym")).unwrap().to_str(),
        Some("../a/link")
    );
    assert_eq!(fs::metadata(m.path("a/sym")).unwrap().len(), 3_000_001);

    rustix::fs::mknodat(
        CWD,
        m.path("fifo"),
        rustix::fs::FileType::Fifo,
        Mode::RWXU,
        0,
    )
    .unwrap();
    assert!(fs::metadata(m.path("fifo")).unwrap().file_type().is_fifo());
    let dev = rustix::fs::makedev(300, 70_000);
    rustix::fs::mknodat(
        CWD,
        m.path("dev"),
        rustix::fs::FileType::CharacterDevice,
        Mode::RWXU,
        dev,
    )
    .unwrap();
    assert_eq!(fs::metadata(m.path("dev")).unwrap().rdev(), dev);

    assert_eq!(names(&m.path("")), ["a", "dev", "fifo"]);
    assert_eq!(
        fs::remove_dir(m.path("a")).unwrap_err().raw_os_error(),
        Some(libc::ENOTEMPTY)
    );
    assert_eq!(
        fs::metadata(m.path("nothing")).unwrap_err().raw_os_error(),
        Some(libc::ENOENT)
    );
    let long = "x".repeat(256);
    assert_eq!(
        File::create(m.path(&long)).unwrap_err().raw_os_error(),
        Some(libc::ENAMETOOLONG)
    );
    fs::remove_dir_all(m.path("a")).unwrap();
    assert_eq!(names(&m.path("")), ["dev", "fifo"]);
    let vfs = m.volume.vfs.clone();
    m.unmount().unwrap();
    assert!(vfs.statfs().is_err(), "the volume was unmounted too");
}

#[test]
fn every_kind_of_write_ends_up_where_it_belongs() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(options());
    let path = m.path("file");
    fs::write(&path, b"0123456789").unwrap();

    // Appending from two descriptors, one of them write-only, with partial pages in between.
    let mut one = OpenOptions::new().append(true).open(&path).unwrap();
    let mut two = OpenOptions::new()
        .append(true)
        .read(true)
        .open(&path)
        .unwrap();
    one.write_all(b"a").unwrap();
    two.write_all(b"bb").unwrap();
    one.write_all(b"c").unwrap();
    drop((one, two));
    assert_eq!(fs::read(&path).unwrap(), b"0123456789abbc");

    // A write-only handle that touches part of a page makes the kernel read through it.
    let cold = m.path("cold");
    fs::write(&cold, noise(10_000, 2)).unwrap();
    let file = OpenOptions::new().write(true).open(&cold).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    file.write_all_at(b"here", 5000).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let mut expected = noise(10_000, 2);
    expected[5000..5004].copy_from_slice(b"here");
    assert!(fs::read(&cold).unwrap() == expected);

    // Truncation both ways, and O_TRUNC.
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(4).unwrap();
    file.set_len(8).unwrap();
    drop(file);
    assert_eq!(fs::read(&path).unwrap(), b"0123\0\0\0\0");
    File::create(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 0);

    // Data and times survive the kernel forgetting everything.
    fs::write(&path, b"kept").unwrap();
    let time = std::time::UNIX_EPOCH + Duration::new(1_000_000_007, 123_456_789);
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_modified(time).unwrap();
    drop(file);
    fs::write("/proc/sys/vm/drop_caches", b"3").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"kept");
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), time);
}

#[test]
fn direct_io_agrees_with_the_page_cache() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(options());
    let path = m.path("file");
    let mut data = noise(2 << 20, 3);
    fs::write(&path, &data).unwrap();
    let direct = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_DIRECT)
        .open(&path)
        .unwrap();
    let mut buffer = blockwright_device::AlignedBuf::zeroed(1 << 20);
    direct.read_exact_at(&mut buffer, 1 << 20).unwrap();
    assert!(buffer[..] == data[1 << 20..]);

    let old = fs::metadata(&path).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    let fresh = blockwright_device::AlignedBuf::copy_of(&noise(8192, 4));
    direct.write_all_at(&fresh, 4096).unwrap();
    direct.write_all_at(&fresh, 2 << 20).unwrap();
    data[4096..4096 + 8192].copy_from_slice(&fresh);
    data.extend_from_slice(&fresh);
    assert!(fs::read(&path).unwrap() == data);
    let new = fs::metadata(&path).unwrap();
    assert!(
        new.modified().unwrap() > old.modified().unwrap(),
        "a direct write changes mtime"
    );
    assert_eq!(new.len(), data.len() as u64);
    // Buffered on top of direct, and back.
    let buffered = OpenOptions::new().write(true).open(&path).unwrap();
    buffered.write_all_at(b"buffered", 4096).unwrap();
    let mut page = blockwright_device::AlignedBuf::zeroed(4096);
    direct.read_exact_at(&mut page, 4096).unwrap();
    assert_eq!(&page[..8], b"buffered");
}

#[test]
fn an_unlinked_file_lives_while_open_and_a_nameless_one_can_get_a_name() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(options());
    let path = m.path("file");
    let mut file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(&path)
        .unwrap();
    file.write_all(b"still here").unwrap();
    fs::remove_file(&path).unwrap();
    assert!(!path.exists());
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.rewind().unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "still here");
    drop(file);

    let dir = m.path("");
    // A mode that no umask changes: another test sets it for the whole process.
    let tmp = rustix::fs::open(&dir, OFlags::TMPFILE | OFlags::RDWR, Mode::from(0o600)).unwrap();
    rustix::io::write(&tmp, b"nameless").unwrap();
    let proc = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&tmp));
    rustix::fs::linkat(CWD, proc, CWD, m.path("named"), AtFlags::SYMLINK_FOLLOW).unwrap();
    drop(tmp);
    assert_eq!(fs::read(m.path("named")).unwrap(), b"nameless");
    let meta = fs::metadata(m.path("named")).unwrap();
    assert_eq!((meta.nlink(), meta.mode() & 0o777), (1, 0o600));
}

#[test]
fn renames_of_every_kind() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(options());
    let rename = |from: &str, to: &str, flags| {
        rustix::fs::renameat_with(CWD, m.path(from), CWD, m.path(to), flags)
    };
    fs::create_dir(m.path("dir")).unwrap();
    fs::write(m.path("a"), b"a").unwrap();
    fs::write(m.path("b"), b"b").unwrap();
    assert_eq!(rename("a", "b", RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename("a", "b", RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read(m.path("a")).unwrap(), b"b");
    rename("a", "dir/a", RenameFlags::NOREPLACE).unwrap();
    rename("dir/a", "b", RenameFlags::empty()).unwrap();
    assert_eq!(fs::read(m.path("b")).unwrap(), b"b");
    assert_eq!(
        rename("dir", "dir/in", RenameFlags::empty()),
        Err(Errno::INVAL)
    );
    rename("b", "c", RenameFlags::WHITEOUT).unwrap();
    let white = fs::metadata(m.path("b")).unwrap();
    assert!(white.file_type().is_char_device() && white.rdev() == 0);
    assert_eq!(names(&m.path("")), ["b", "c", "dir"]);
}

#[test]
fn attributes_and_acls() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(options());
    let path = m.path("file");
    fs::write(&path, b"").unwrap();
    rustix::fs::setxattr(&path, "user.one", b"1", XattrFlags::CREATE).unwrap();
    assert_eq!(
        rustix::fs::setxattr(&path, "user.one", b"1", XattrFlags::CREATE),
        Err(Errno::EXIST)
    );
    let big = noise(60_000, 5);
    rustix::fs::setxattr(&path, "trusted.big", &big, XattrFlags::empty()).unwrap();
    let mut value = vec![0; 65_536];
    let n = rustix::fs::getxattr(&path, "trusted.big", &mut value).unwrap();
    assert!(value[..n] == big);
    assert_eq!(
        rustix::fs::getxattr(&path, "trusted.big", &mut [0u8; 10]),
        Err(Errno::RANGE)
    );
    let n = rustix::fs::listxattr(&path, &mut value).unwrap();
    let mut list: Vec<_> = value[..n]
        .split(|b| *b == 0)
        .filter(|n| !n.is_empty())
        .collect();
    list.sort();
    assert_eq!(list, [&b"trusted.big"[..], b"user.one"]);
    rustix::fs::removexattr(&path, "user.one").unwrap();
    assert_eq!(
        rustix::fs::getxattr(&path, "user.one", &mut [0u8; 10]),
        Err(Errno::NODATA)
    );

    // A default ACL replaces the umask; without one the umask is applied here, not by the kernel.
    let dir = m.path("dir");
    fs::create_dir(&dir).unwrap();
    let entry = |tag: u16, perm: u16, id: u32| {
        [
            &tag.to_le_bytes()[..],
            &perm.to_le_bytes(),
            &id.to_le_bytes(),
        ]
        .concat()
    };
    let none = u32::MAX;
    let acl = [
        2u32.to_le_bytes().to_vec(),
        entry(1, 7, none),
        entry(2, 7, 1234),
        entry(4, 7, none),
        entry(16, 7, none),
        entry(32, 0, none),
    ]
    .concat();
    rustix::fs::setxattr(&dir, "system.posix_acl_default", &acl, XattrFlags::empty()).unwrap();
    let umask = rustix::process::umask(Mode::from(0o077));
    fs::write(dir.join("inherits"), b"").unwrap();
    fs::write(m.path("masked"), b"").unwrap();
    rustix::process::umask(umask);
    let mode = |path| fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!(mode(dir.join("inherits")), 0o660);
    assert_eq!(mode(m.path("masked")), 0o600);
    let n =
        rustix::fs::getxattr(dir.join("inherits"), "system.posix_acl_access", &mut value).unwrap();
    assert!(n > 4, "the access ACL was inherited");
    // chmod changes the mask, and the kernel sees it.
    fs::set_permissions(dir.join("inherits"), fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(mode(dir.join("inherits")), 0o640);
}

#[test]
fn listings_stay_right_while_the_directory_changes() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(options());
    let dir = m.path("many");
    fs::create_dir(&dir).unwrap();
    for i in 0..3000 {
        fs::write(dir.join(format!("file-{i:05}")), b"").unwrap();
    }
    assert_eq!(names(&dir).len(), 3000);
    // Remove every other file while listing: those that stay must all be seen, once.
    let mut seen = Vec::new();
    for (i, entry) in fs::read_dir(&dir).unwrap().enumerate() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if i % 2 == 0 {
            fs::remove_file(dir.join(&name)).unwrap();
        }
        seen.push(name);
    }
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 3000);
    let mut left = names(&dir);
    assert_eq!(left.len(), 1500);
    // Positions taken before a change hold after it, also when a program rewound in between.
    let fd = rustix::fs::open(&dir, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let mut buffer = Vec::with_capacity(4096);
    let mut raw = rustix::fs::RawDir::new(&fd, buffer.spare_capacity_mut());
    let mut cookie = 0;
    for _ in 0..40 {
        cookie = raw.next().unwrap().unwrap().next_entry_cookie();
    }
    let victim = left.remove(0);
    fs::remove_file(dir.join(victim)).unwrap();
    assert_eq!(names(&dir), left);
    rustix::fs::seek(&fd, SeekFrom::Start(cookie)).unwrap();
    let mut raw = rustix::fs::RawDir::new(&fd, buffer.spare_capacity_mut());
    let mut rest = 0;
    while let Some(entry) = raw.next() {
        entry.unwrap();
        rest += 1;
    }
    // 40 entries were before the position: `.`, `..` and 38 files.
    assert_eq!(rest, 1500 - 38);
}

#[test]
fn holes_are_found_although_the_kernel_has_dirty_pages() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(options());
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(m.path("sparse"))
        .unwrap();
    file.set_len(1 << 20).unwrap();
    file.write_all_at(&noise(4096, 6), 256 << 10).unwrap();
    let seek = |from| rustix::fs::seek(&file, from);
    assert_eq!(seek(SeekFrom::Data(0)), Ok(256 << 10));
    assert_eq!(seek(SeekFrom::Hole(256 << 10)), Ok((256 << 10) + 4096));
    assert_eq!(seek(SeekFrom::Data((256 << 10) + 4096)), Err(Errno::NXIO));
    assert_eq!(seek(SeekFrom::Hole(0)), Ok(0));

    let both = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, both, 256 << 10, 4096).unwrap();
    assert_eq!(seek(SeekFrom::Data(0)), Err(Errno::NXIO));
    let mut page = [1; 4096];
    file.read_exact_at(&mut page, 256 << 10).unwrap();
    assert_eq!(page, [0; 4096]);
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 1 << 20, 4096).unwrap();
    assert_eq!(file.metadata().unwrap().len(), (1 << 20) + 4096);
    rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 2 << 20, 4096).unwrap();
    assert_eq!(file.metadata().unwrap().len(), (1 << 20) + 4096);
}

#[test]
fn many_seekers_at_once_do_not_starve_the_writes_they_wait_for() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(FuseOptions {
        threads_min: 1,
        threads_max: 2,
        ..options()
    });
    std::thread::scope(|scope| {
        for n in 0..8 {
            let path = m.path(&format!("file-{n}"));
            scope.spawn(move || {
                let file = File::options()
                    .read(true)
                    .write(true)
                    .create(true)
                    .truncate(true)
                    .open(path)
                    .unwrap();
                for round in 0..20u64 {
                    let at = (round + 1) << 16;
                    file.write_all_at(&[7; 4096], at).unwrap();
                    let found = rustix::fs::seek(&file, SeekFrom::Data(at - 4096)).unwrap();
                    assert_eq!(found, at);
                }
            });
        }
    });
}

#[test]
fn copies_inside_the_volume() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(options());
    let data = noise(1_000_000, 7);
    fs::write(m.path("from"), &data).unwrap();
    let from = File::open(m.path("from")).unwrap();
    let to = File::create(m.path("to")).unwrap();
    let (mut at, mut out) = (1000, 10);
    while at < 1_000_000 {
        let n = rustix::fs::copy_file_range(&from, Some(&mut at), &to, Some(&mut out), 600_000)
            .unwrap();
        assert!(n > 0);
    }
    drop(to);
    let copied = fs::read(m.path("to")).unwrap();
    assert!(copied[..10] == [0; 10] && copied[10..] == data[1000..]);
}

#[test]
fn shared_mappings_reach_the_file() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(options());
    let path = m.path("mapped");
    fs::write(&path, vec![b'.'; 8192]).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    // SAFETY: a fresh mapping of 8192 bytes of an 8192-byte file, unmapped before it goes; no thread
    // truncates the file meanwhile.
    unsafe {
        use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
        let at = mmap(
            std::ptr::null_mut(),
            8192,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            &file,
            0,
        )
        .unwrap();
        std::ptr::copy_nonoverlapping(b"through".as_ptr(), at.cast::<u8>().add(4000), 7);
        msync(at, 8192, MsyncFlags::SYNC).unwrap();
        munmap(at, 8192).unwrap();
    }
    drop(file);
    fs::write("/proc/sys/vm/drop_caches", b"3").unwrap();
    assert_eq!(&fs::read(&path).unwrap()[4000..4007], b"through");
}

/// Runs a shell command as `nobody` in the mount.
fn as_nobody(m: &Mounted, script: &str) -> bool {
    Command::new("sh")
        .args(["-c", script])
        .current_dir(m.path(""))
        .uid(65534)
        .gid(65534)
        .status()
        .unwrap()
        .success()
}

#[test]
fn permissions_and_set_id_bits() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(FuseOptions {
        visibility: Visibility::Everyone,
        ..options()
    });
    fs::write(m.path("secret"), b"x").unwrap();
    fs::set_permissions(m.path("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    assert!(!as_nobody(&m, "cat secret 2>/dev/null"));
    assert!(!as_nobody(&m, "touch new 2>/dev/null"));
    fs::DirBuilder::new()
        .mode(0o777)
        .create(m.path("open"))
        .unwrap();
    fs::set_permissions(m.path("open"), fs::Permissions::from_mode(0o1777)).unwrap();
    fs::write(m.path("open/mine"), b"").unwrap();
    assert!(as_nobody(
        &m,
        "touch open/theirs && ! rm -f open/mine 2>/dev/null"
    ));
    assert_eq!(fs::metadata(m.path("open/theirs")).unwrap().uid(), 65534);

    // A write by a user strips set-id bits; one by root does not.
    let mode = |name: &str| fs::metadata(m.path(name)).unwrap().mode() & 0o7777;
    for name in ["suid", "suid2", "suid3"] {
        fs::write(m.path(name), b"x").unwrap();
        fs::set_permissions(m.path(name), fs::Permissions::from_mode(0o6777)).unwrap();
    }
    OpenOptions::new()
        .append(true)
        .open(m.path("suid"))
        .unwrap()
        .write_all(b"root")
        .unwrap();
    assert_eq!(mode("suid"), 0o6777);
    assert!(as_nobody(&m, "echo x >> suid"));
    assert_eq!(mode("suid"), 0o777);
    assert!(as_nobody(&m, ": > suid2"));
    assert_eq!(mode("suid2"), 0o777);
    // A change of owner always does.
    rustix::fs::chown(m.path("suid3"), Some(rustix::fs::Uid::from_raw(5)), None).unwrap();
    assert_eq!(mode("suid3"), 0o777);

    // Set-gid directories hand down their group.
    fs::create_dir(m.path("team")).unwrap();
    rustix::fs::chown(m.path("team"), None, Some(rustix::fs::Gid::from_raw(77))).unwrap();
    fs::set_permissions(m.path("team"), fs::Permissions::from_mode(0o2777)).unwrap();
    assert!(as_nobody(&m, "mkdir team/sub && touch team/sub/file"));
    assert_eq!(fs::metadata(m.path("team/sub/file")).unwrap().gid(), 77);
    assert_eq!(mode("team/sub") & 0o2000, 0o2000);
}

#[test]
fn owners_can_be_shown_otherwise() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(FuseOptions {
        visibility: Visibility::Everyone,
        uid: Some(65534),
        gid: Some(65534),
        ..options()
    });
    assert!(as_nobody(&m, "echo hello > file"));
    let meta = fs::metadata(m.path("file")).unwrap();
    assert_eq!((meta.uid(), meta.gid()), (65534, 65534));
    let root = m.volume.vfs.root().unwrap();
    let cred = blockwright_vfs::Cred::unchecked();
    let inode = m.volume.vfs.lookup(&cred, &root, b"file").unwrap();
    // What is shown does not change what is stored: the file belongs to its maker.
    assert_eq!((inode.attr().uid, inode.attr().gid), (65534, 65534));
}

#[test]
fn a_slow_write_does_not_delay_a_lookup() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(options());
    fs::write(m.path("other"), b"x").unwrap();
    let files: Vec<_> = (0..10)
        .map(|n| {
            File::options()
                .write(true)
                .create(true)
                .truncate(true)
                .custom_flags(libc::O_DIRECT)
                .open(m.path(&format!("slow-{n}")))
                .unwrap()
        })
        .collect();
    m.volume
        .device
        .write_millis
        .store(700, std::sync::atomic::Ordering::Relaxed);
    std::thread::scope(|scope| {
        for file in &files {
            scope.spawn(move || {
                let page = blockwright_device::AlignedBuf::zeroed(4096);
                file.write_all_at(&page, 0).unwrap();
            });
        }
        std::thread::sleep(Duration::from_millis(150));
        let start = Instant::now();
        for n in 0..20 {
            let _ = fs::metadata(m.path(&format!("absent-{n}")));
        }
        let took = start.elapsed();
        assert!(took < Duration::from_millis(300), "lookups took {took:?}");
    });
    m.volume
        .device
        .write_millis
        .store(0, std::sync::atomic::Ordering::Relaxed);
}

#[test]
fn flags_of_files_and_trim() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(options());
    let path = m.path("file");
    fs::write(&path, b"x").unwrap();
    let file = File::open(&path).unwrap();
    let flags = rustix::fs::ioctl_getflags(&file).unwrap();
    assert!(flags.is_empty());
    rustix::fs::ioctl_setflags(&file, rustix::fs::IFlags::APPEND).unwrap();
    assert_eq!(
        rustix::fs::ioctl_getflags(&file).unwrap(),
        rustix::fs::IFlags::APPEND
    );
    assert_eq!(
        OpenOptions::new()
            .write(true)
            .open(&path)
            .unwrap_err()
            .raw_os_error(),
        Some(libc::EPERM)
    );
    let mut append = OpenOptions::new().append(true).open(&path).unwrap();
    append.write_all(b"yz").unwrap();
    drop(append);
    assert_eq!(fs::read(&path).unwrap(), b"xyz");
    assert_eq!(
        OpenOptions::new()
            .append(true)
            .truncate(false)
            .open(&path)
            .map(|f| f.set_len(0).unwrap_err().raw_os_error())
            .unwrap(),
        Some(libc::EPERM)
    );
    rustix::fs::ioctl_setflags(&file, rustix::fs::IFlags::empty()).unwrap();
    fs::remove_file(&path).unwrap();
    if let Ok(status) = Command::new("fstrim").arg(m.path("")).status() {
        assert!(status.success());
    }
}

#[test]
fn the_end_is_clean_and_statfs_tells_the_type() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(FuseOptions {
        fsname: "some,image.img".to_owned(),
        ..options()
    });
    let st = rustix::fs::statvfs(m.path("")).unwrap();
    assert_eq!((st.f_bsize, st.f_namemax), (4096, 255));
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = mounts
        .lines()
        .find(|line| line.contains(m.path("").to_str().unwrap().trim_end_matches('/')))
        .unwrap();
    assert!(line.starts_with("some,image.img "), "{line}");
    assert!(line.contains(" fuse.blockwright "), "{line}");
    let open = File::create(m.path("open")).unwrap();
    assert_eq!(open.metadata().unwrap().blksize(), 4096);
    drop(open);
    m.unmount().unwrap();
}

/// With the kernel's writeback cache a buffered write is accepted before we hear of it. Without, a full volume says so at
/// once, keeps all that it accepted, and has room again after files are removed.
#[test]
fn without_the_kernels_writeback_cache_a_full_volume_says_so_at_write() {
    if !can_mount() {
        return;
    }
    for direct_io in [false, true] {
        let m = Mounted::new(FuseOptions {
            writeback_cache: false,
            direct_io,
            ..options()
        });
        let chunk = noise(1 << 20, 11);
        let fill = |name: &str| {
            let mut file = File::create(m.path(name)).unwrap();
            let (mut at, limit) = (0, 1 << 30);
            let error = loop {
                match file.write(&chunk[at % chunk.len()..]) {
                    Ok(n) => at += n,
                    Err(e) => break e,
                }
                assert!(at < limit, "more than the volume has");
            };
            assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{name}");
            // What was accepted is there, and making it durable does not fail.
            file.sync_all().unwrap();
            drop(file);
            let data = fs::read(m.path(name)).unwrap();
            assert_eq!(data.len(), at);
            assert!(
                data.chunks(chunk.len())
                    .all(|part| part == &chunk[..part.len()])
            );
            at
        };
        let first = fill("first");
        assert!(first > 100 << 20, "{first} bytes");
        // What is allocated can still be overwritten.
        let file = OpenOptions::new()
            .write(true)
            .open(m.path("first"))
            .unwrap();
        file.write_all_at(&chunk[..8192], 0).unwrap();
        file.sync_all().unwrap();
        drop(file);
        fs::remove_file(m.path("first")).unwrap();
        // The kernel tells us a moment later that no program has the file open any more.
        let deadline = Instant::now() + Duration::from_secs(20);
        while rustix::fs::statvfs(m.path("")).unwrap().f_bfree * 4096 < first as u64 {
            assert!(Instant::now() < deadline, "the space does not come back");
        }
        let second = fill("second");
        assert!(
            second + (8 << 20) > first,
            "{second} bytes instead of {first}"
        );
        m.unmount().unwrap();
    }
}
