//! `mount` and `umount`: in the background, by signals, and through mount(8).

mod common;

use common::run::{bw, good, json, refused};
use common::{Scratch, available, e2fsck_clean, have, have_fuse, ok, our_mkfs, output, program};
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// What is mounted goes away also when a test fails.
struct Unmounts(PathBuf);

impl Drop for Unmounts {
    fn drop(&mut self) {
        if is_mounted(&self.0) {
            let _ = output(Command::new("fusermount3").args(["-u", "-z"]).arg(&self.0));
        }
    }
}

fn is_mounted(mnt: &Path) -> bool {
    let table = fs::read_to_string("/proc/mounts").unwrap();
    table
        .lines()
        .any(|l| l.split(' ').nth(1).map(Path::new) == Some(mnt))
}

/// The process that serves a mount, found by its arguments.
fn server_of(mnt: &Path) -> Option<i32> {
    fs::read_dir("/proc").unwrap().find_map(|entry| {
        let path = entry.ok()?.path();
        let pid: i32 = path.file_name()?.to_str()?.parse().ok()?;
        let line = fs::read(path.join("cmdline")).ok()?;
        let mut words = line.split(|&b| b == 0);
        let ours = words.next()? == b"blockwright" && words.next()? == b"mount";
        (ours && words.any(|w| w == mnt.as_os_str().as_bytes())).then_some(pid)
    })
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A mount that is busy for a moment is waited for; one that stays busy is told to be, soon.
#[test]
fn busy_mounts_are_waited_for_briefly() {
    if !have_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let (image, mnt) = (&scratch.path("disk.img"), scratch.dir("mnt"));
    let _unmounts = Unmounts(mnt.clone());
    let mnt_text = mnt.to_str().unwrap();
    our_mkfs(image, &[], "32M");
    good(image, &["mount", "IMAGE", mnt_text]);
    let file = fs::File::create(mnt.join("file")).unwrap();
    let start = Instant::now();
    refused(
        &mut bw(image, &["umount", mnt_text]),
        1,
        &["files are open"],
    );
    assert!(start.elapsed() < Duration::from_secs(20));
    let holder = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        drop(file);
    });
    good(image, &["umount", mnt_text]);
    holder.join().unwrap();
    assert!(!is_mounted(&mnt));
    e2fsck_clean(image, "waited for");
}

#[test]
fn mounts_in_the_background() {
    if !have_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let (image, mnt) = (&scratch.path("disk.img"), scratch.dir("mnt"));
    let _unmounts = Unmounts(mnt.clone());
    let mnt_text = mnt.to_str().unwrap();
    our_mkfs(image, &[], "32M");

    // Up when the command returns, and a daemon.
    good(image, &["mount", "IMAGE", mnt_text]);
    fs::write(mnt.join("file"), "mounted").unwrap();
    let pid = server_of(&mnt).expect("a server");
    assert_eq!(
        fs::read_link(format!("/proc/{pid}/cwd")).unwrap(),
        Path::new("/")
    );
    assert_eq!(
        fs::read_link(format!("/proc/{pid}/fd/2")).unwrap(),
        Path::new("/dev/null")
    );
    // What `ps` shows, and "in use by process …".
    let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
    assert_eq!(comm, "blockwright\n");
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let session = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .nth(3)
        .unwrap();
    assert_eq!(session, pid.to_string(), "it leads its session");
    // In use, and busy.
    refused(&mut bw(image, &["ls", "IMAGE"]), 1, &["in use"]);
    refused(
        &mut bw(image, &["mkfs", "-F", "--size", "32M", "IMAGE"]),
        1,
        &["in use"],
    );
    let open = fs::File::open(mnt.join("file")).unwrap();
    refused(&mut bw(image, &["umount", mnt_text]), 1, &["mnt"]);
    drop(open);
    // Free when the command returns.
    good(image, &["umount", mnt_text]);
    assert_eq!(good(image, &["cat", "IMAGE:/file"]), "mounted");
    assert_eq!(
        json(image, &["info", "--json", "IMAGE"])["state"][0],
        "clean"
    );

    // A failure of the background process is the command's.
    refused(
        &mut bw(image, &["mount", "-o", "threads=none", "IMAGE", mnt_text]),
        2,
        &["threads"],
    );
    assert!(!is_mounted(&mnt));

    // fusermount3, and lazily with a file open.
    good(image, &["mount", "-o", "ro", "IMAGE", mnt_text]);
    assert_eq!(
        fs::write(mnt.join("file"), "x").unwrap_err().kind(),
        std::io::ErrorKind::ReadOnlyFilesystem
    );
    ok(Command::new("fusermount3").arg("-u").arg(&mnt));
    wait_for("the server ends", || server_of(&mnt).is_none());
    good(image, &["mount", "IMAGE", mnt_text]);
    let open = fs::File::create(mnt.join("late")).unwrap();
    good(image, &["umount", "-l", mnt_text]);
    assert!(!is_mounted(&mnt));
    (&open).write_all(b"still here").unwrap();
    drop(open);
    wait_for("the image is free", || {
        output(&mut bw(image, &["ls", "IMAGE"])).status.success()
    });
    assert_eq!(good(image, &["cat", "IMAGE:/late"]), "still here");

    // SIGTERM unmounts cleanly.
    good(image, &["mount", "IMAGE", mnt_text]);
    fs::write(mnt.join("file"), "terminated").unwrap();
    let pid = server_of(&mnt).expect("a server");
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    wait_for("the mount goes", || !is_mounted(&mnt));
    wait_for("the image is free", || {
        output(&mut bw(image, &["ls", "IMAGE"])).status.success()
    });
    assert_eq!(good(image, &["cat", "IMAGE:/file"]), "terminated");
    assert_eq!(
        json(image, &["info", "--json", "IMAGE"])["state"][0],
        "clean"
    );
    if have("e2fsck") {
        e2fsck_clean(image, "after mounts");
    }
}

/// A child that is killed when a test fails.
struct Child(std::process::Child);

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `umount` of a mount whose server was killed says what that means, on both formats.
#[test]
fn a_killed_server_is_not_a_clean_end() {
    if !have_fuse() {
        return;
    }
    for format in ["ext4", "f2fs"] {
        let scratch = Scratch::new();
        let (image, mnt) = (&scratch.path("disk.img"), scratch.dir("mnt"));
        let _unmounts = Unmounts(mnt.clone());
        let mnt_text = mnt.to_str().unwrap();
        good(image, &["mkfs", "-t", format, "--size", "64M", "IMAGE"]);
        good(image, &["mount", "IMAGE", mnt_text]);
        fs::write(mnt.join("file"), "durable").unwrap();
        fs::File::open(mnt.join("file"))
            .unwrap()
            .sync_all()
            .unwrap();
        let pid = server_of(&mnt).expect("a server");
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        wait_for("the server is gone", || server_of(&mnt).is_none());
        refused(
            &mut bw(image, &["umount", mnt_text]),
            1,
            &["did not close the volume cleanly"],
        );
        assert!(!is_mounted(&mnt));
        assert_eq!(good(image, &["cat", "IMAGE:/file"]), "durable");
    }
}

/// As a kernel would stop: no thread continues after the damage.
#[test]
fn errors_panic_ends_the_server() {
    if !have_fuse() || !have("debugfs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new();
    let (image, mnt) = (&scratch.path("disk.img"), scratch.dir("mnt"));
    let _unmounts = Unmounts(mnt.clone());
    let mnt_text = mnt.to_str().unwrap();
    our_mkfs(image, &["-b", "4096"], "32M");
    good(image, &["mkdir", "IMAGE:/dir"]);
    // "Inode 12 is part of block group 0\n\tlocated at block 38, offset 0x0b00"
    let out = Command::new("debugfs")
        .args(["-R", "imap /dir"])
        .arg(image)
        .output()
        .unwrap();
    let out = String::from_utf8(out.stdout).unwrap();
    let (block, offset) = out
        .split_once("at block ")
        .and_then(|(_, rest)| rest.trim().split_once(", offset 0x"))
        .unwrap();
    let at = block.parse::<u64>().unwrap() * 4096 + u64::from_str_radix(offset, 16).unwrap();
    let file = fs::OpenOptions::new().write(true).open(image).unwrap();
    file.write_all_at(&[0x5A; 4], at + 0x10).unwrap();

    good(image, &["mount", "-o", "errors=panic", "IMAGE", mnt_text]);
    fs::write(mnt.join("before"), "x").unwrap();
    assert!(fs::metadata(mnt.join("dir")).is_err());
    wait_for("the server is gone", || server_of(&mnt).is_none());
    refused(
        &mut bw(image, &["umount", mnt_text]),
        1,
        &["did not close the volume cleanly"],
    );
    // What was met is on record, for the next fsck.
    let told = Command::new("e2fsck")
        .arg("-fn")
        .arg(image)
        .output()
        .unwrap();
    assert_eq!(told.status.code(), Some(4));
}

/// SIGTERM as soon as the mount is there, before the server has begun to listen for signals of its own.
#[test]
fn a_signal_right_after_mounting_unmounts_cleanly() {
    if !have_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let (image, mnt) = (&scratch.path("disk.img"), scratch.dir("mnt"));
    let _unmounts = Unmounts(mnt.clone());
    let mnt_text = mnt.to_str().unwrap();
    our_mkfs(image, &[], "32M");
    for round in 0..8 {
        let mut mount = bw(image, &["mount", "-f", "IMAGE", mnt_text]);
        let mut child = Child(mount.spawn().unwrap());
        let start = Instant::now();
        while !is_mounted(&mnt) {
            assert!(start.elapsed() < Duration::from_secs(30), "mounts");
            assert!(child.0.try_wait().unwrap().is_none(), "did not mount");
        }
        // From at once to well into serving.
        std::thread::sleep(Duration::from_micros(300 * round));
        let pid = rustix::process::Pid::from_child(&child.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let mut status = None;
        wait_for("the server ends", || {
            status = child.0.try_wait().unwrap();
            status.is_some()
        });
        let status = status.unwrap();
        assert!(status.success(), "round {round}: {status}");
        assert!(!is_mounted(&mnt), "round {round}");
        assert_eq!(
            json(image, &["info", "--json", "IMAGE"])["state"][0],
            "clean"
        );
    }
}

#[test]
fn mount_8_knows_us() {
    if !have_fuse()
        || !available("root", rustix::process::geteuid().is_root())
        || !have("mount.fuse3")
    {
        return;
    }
    let scratch = Scratch::new();
    let (image, mnt) = (&scratch.path("disk.img"), scratch.dir("mnt"));
    let _unmounts = Unmounts(mnt.clone());
    let mnt_text = mnt.to_str().unwrap();
    our_mkfs(image, &[], "32M");
    let directory = Path::new(env!("CARGO_BIN_EXE_blockwright"))
        .parent()
        .unwrap();
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", directory.display());

    // As `mount -t fuse.blockwright` has it: mount.fuse3 runs `blockwright IMAGE MOUNTPOINT -o …`.
    ok(Command::new("mount.fuse3")
        .arg(image)
        .arg(&mnt)
        .args(["-t", "fuse.blockwright", "-o", "noatime,nofail,x-test=1"])
        .env("PATH", &path));
    fs::write(mnt.join("file"), "by mount").unwrap();
    let table = fs::read_to_string("/proc/mounts").unwrap();
    let line = table.lines().find(|l| l.contains(mnt_text)).unwrap();
    assert!(
        line.contains("fuse.blockwright") && line.contains("noatime"),
        "{line}"
    );
    good(image, &["umount", mnt_text]);

    // mount(8) itself clears PATH, so a program that is not installed is given by its path.
    let mut source = std::ffi::OsString::from(env!("CARGO_BIN_EXE_blockwright"));
    source.push("#");
    source.push(image);
    ok(Command::new("mount")
        .args(["-t", "fuse", "-o", "ro"])
        .arg(source)
        .arg(&mnt));
    assert_eq!(fs::read_to_string(mnt.join("file")).unwrap(), "by mount");
    good(image, &["umount", mnt_text]);

    // By the helper's own name, as from fstab.
    let helper = scratch.path("mount.fuse.blockwright");
    symlink(env!("CARGO_BIN_EXE_blockwright"), &helper).unwrap();
    ok(Command::new(&helper)
        .arg(image)
        .arg(&mnt)
        .args(["-n", "-o", "rw,relatime"]));
    assert_eq!(fs::read_to_string(mnt.join("file")).unwrap(), "by mount");
    good(image, &["umount", mnt_text]);
    // A fake mount mounts nothing.
    ok(Command::new(&helper)
        .arg(image)
        .arg(&mnt)
        .args(["-f", "-o", "rw"]));
    assert!(!is_mounted(&mnt));
    refused(
        Command::new(&helper)
            .arg(image)
            .arg(&mnt)
            .args(["-o", "frobnicate"]),
        2,
        &["frobnicate"],
    );
}

/// Whether a file's last access, as it is on the disk of a mounted image at this moment, is of 2001-09-09.
fn is_old_on_disk(image: &Path, copy: &Path) -> bool {
    fs::copy(image, copy).unwrap();
    let told = json(copy, &["stat", "--json", "IMAGE:/file"]);
    let text = told[0]["accessed"].as_str().unwrap();
    assert!(text.ends_with('Z'), "{text}");
    text.starts_with("2001-09-09T01:46:40")
}

/// What reading does to the time of the last access over a mount, and when that is written, on both formats.
#[test]
fn access_times() {
    if !have_fuse() {
        return;
    }
    const OLD: u64 = 1_000_000_000;
    let scratch = Scratch::new();
    let (image, copy) = (&scratch.path("disk.img"), &scratch.path("copy.img"));
    let mnt = scratch.dir("mnt");
    let _unmounts = Unmounts(mnt.clone());
    let mnt_text = mnt.to_str().unwrap();
    let file = &mnt.join("file");
    let mount = |options: &str| good(image, &["mount", "-o", options, "IMAGE", mnt_text]);
    let unmount = || good(image, &["umount", mnt_text]);
    let atime = || fs::metadata(file).unwrap().atime();
    let read = || {
        drop(fs::read(file).unwrap());
        atime()
    };
    let set = |accessed: u64, modified: u64| {
        let at = |seconds| std::time::UNIX_EPOCH + Duration::from_secs(seconds);
        let times = fs::FileTimes::new().set_accessed(at(accessed));
        let file = fs::File::options().write(true).open(file).unwrap();
        file.set_times(times.set_modified(at(modified))).unwrap();
    };
    for format in ["ext4", "f2fs"] {
        good(
            image,
            &["mkfs", "-q", "-F", "-t", format, "--size", "64M", "IMAGE"],
        );
        mount("noatime");
        fs::write(file, "contents").unwrap();
        set(OLD, OLD + 5);
        unmount();
        mount("noatime");
        assert_eq!(read(), OLD as i64, "{format}");
        unmount();
        // Older than the modification, or a day old: both are due with relatime, which is what is done unless asked.
        for options in ["rw", "relatime", "strictatime", "lazytime"] {
            mount("noatime");
            set(OLD, OLD + 5);
            unmount();
            mount(options);
            let first = read();
            assert!(first > OLD as i64 + 5, "{format}, {options}");
            // The kernel has the contents by now, and no READ tells the server of another read.
            assert_eq!(read(), first, "{format}, {options}");
            unmount();
            mount("noatime");
            assert_eq!(atime(), first, "{format}, {options}: kept");
            unmount();
        }
        // Newer than both other times and less than a day old: for relatime that is good enough.
        for (options, changes) in [("relatime", false), ("strictatime", true)] {
            mount("noatime");
            let ctime = fs::metadata(file).unwrap().ctime() as u64;
            let recent = ctime + 3000;
            set(recent, OLD);
            unmount();
            mount(options);
            assert_eq!(read() != recent as i64, changes, "{format}, {options}");
            unmount();
        }
        // In memory for a day, or until it is synced; without lazytime, as soon as the time for that has come.
        mount("noatime");
        set(OLD, OLD + 5);
        unmount();
        mount("lazytime,commit=1");
        let shown = read();
        std::thread::sleep(Duration::from_secs(3));
        assert!(is_old_on_disk(image, copy), "{format}");
        assert_eq!(atime(), shown);
        good(image, &["sync", mnt_text]);
        assert!(!is_old_on_disk(image, copy), "{format}");
        set(OLD, OLD + 5);
        unmount();
        mount("nolazytime,commit=1");
        good(image, &["tune", mnt_text, "lazy_time_interval_ms=100"]);
        read();
        wait_for("times that are written", || !is_old_on_disk(image, copy));
        unmount();
        good(image, &["check", "-n", "IMAGE"]);
    }
}

/// A mount that needs nothing said says nothing: what would make it faster is for `-v`.
#[test]
fn a_mount_gives_no_hints_unless_asked() {
    if !have_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let mnt = scratch.dir("mnt");
    let at = mnt.to_str().unwrap();
    for (name, mkfs, size) in [
        ("ext4.img", &[][..], "8M"),
        ("f2fs.img", &["-t", "f2fs"][..], "64M"),
    ] {
        let image = scratch.path(name);
        our_mkfs(&image, mkfs, size);
        let _unmounts = Unmounts(mnt.clone());
        // Over `/dev/fuse`, which is where io_uring would be a hint.
        let quiet = ["mount", "-o", "transport=dev_fuse", "IMAGE", at];
        let out = output(&mut bw(&image, &quiet));
        assert!(out.status.success(), "{out:?}");
        assert!(out.stdout.is_empty() && out.stderr.is_empty(), "{out:?}");
        good(&image, &["umount", at]);
    }
}

/// `df` of a mount has what `df` of the image has, and refuses what is not ours.
#[test]
fn the_space_of_a_mounted_volume_is_told() {
    if !have_fuse() {
        return;
    }
    let scratch = Scratch::new();
    for format in ["ext4", "f2fs"] {
        let (image, mnt) = (scratch.path(format), scratch.dir(&format!("mnt-{format}")));
        our_mkfs(&image, &["-t", format], "96M");
        let before = json(&image, &["df", "--json", "IMAGE"]);
        let _unmounts = Unmounts(mnt.clone());
        ok(program().arg("mount").arg(&image).arg(&mnt));
        fs::create_dir(mnt.join("dir")).unwrap();
        for place in [mnt.clone(), mnt.join("dir")] {
            let now = json(&place, &["df", "--json", "IMAGE"]);
            for field in ["format", "block_bytes", "size", "inodes"] {
                assert_eq!(now[field], before[field], "{format}: {field}");
            }
            assert_eq!(now["image"], place.to_str().unwrap());
            let near = |field: &str| {
                let of = |space: &serde_json::Value| space[field].as_i64().unwrap();
                (of(&now) - of(&before)).abs() < 1 << 20
            };
            assert!(
                near("used") && near("available"),
                "{format}: {now} {before}"
            );
        }
        let both = &["is a directory"];
        refused(program().arg("df").arg(&mnt).arg(&image), 1, both);
        let out = ok(program().arg("df").arg(&mnt));
        assert!(
            out.contains(mnt.to_str().unwrap()) && out.contains("Use%"),
            "{out}"
        );
        ok(program().arg("umount").arg(&mnt));
    }
    let says = &["not a volume that blockwright has mounted"];
    refused(program().arg("df").arg(scratch.dir("plain")), 1, says);
}
