//! The wall around untrusted images, tried from inside and from outside.
//!
//! From inside: `debug-sandbox` confines itself as a command or a server and tries to get out. From outside: what the kernel says of every thread of a
//! server that serves. And everything still works, for root and for a user who is not.

#[path = "../common/mod.rs"]
mod common;
mod volumes;

use common::run::{bw, good, refused, stderr};
use common::{
    Scratch, available, e2fsck_clean, fsck_f2fs_clean, have, have_fuse, ok, our_mkfs, output,
    program,
};
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// Whether the kernel has Landlock, as its crate sees it. Without it a part of these tests cannot be made, which is said.
fn have_landlock() -> bool {
    let scratch = Scratch::new();
    let image = scratch.path("disk.img");
    our_mkfs(&image, &[], "8M");
    let out = output(&mut bw(&image, &["ls", "-v", "IMAGE"]));
    available(
        "Landlock in the kernel",
        !stderr(&out).contains("no Landlock"),
    )
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Attempts that must be refused in every plan, and those that only need paths.
const ALWAYS: [&str; 16] = [
    "open-by-ring",
    "new-ring",
    "connect",
    "connect-local",
    "socket",
    "socket-local",
    "spawn",
    "fork",
    "exec",
    "ptrace",
    "read-memory",
    "kill",
    "mount",
    "map-executable",
    "type",
    "dumpable",
];
const PATHS: [&str; 3] = ["open", "create", "list"];

fn attempts(out: &Output) -> Vec<(String, String)> {
    String::from_utf8_lossy(&out.stdout)
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(what, how)| (what.to_owned(), how.to_owned()))
        .collect()
}

/// Nothing that a hostile image would want to do works; and without the wall the same attempts succeed, so they can.
#[test]
fn a_confined_process_cannot_get_out() {
    let scratch = Scratch::new();
    let image = scratch.path("disk.img");
    our_mkfs(&image, &[], "8M");
    let landlock = have_landlock();
    for plan in ["image", "server", "host"] {
        let paths = plan != "host";
        if !paths && !landlock {
            continue;
        }
        let args = [
            "debug-sandbox",
            "--sandbox=require",
            "--plan",
            plan,
            "IMAGE",
        ];
        let out = output(&mut bw(&image, &args));
        let tried = attempts(&out);
        assert!(out.status.success(), "{plan}: {tried:?}\n{}", stderr(&out));
        for what in ALWAYS.iter().chain(&PATHS) {
            let Some((_, how)) = tried.iter().find(|(name, _)| name == what) else {
                assert!(
                    *what == "open-by-ring" && stderr(&out).contains("no io_uring"),
                    "{plan}: {what} was not tried: {tried:?}"
                );
                continue;
            };
            // By the filter, by Landlock or by the ring's restrictions; not because there was nothing to be had.
            let ours = how.contains("Operation not permitted") || how.contains("Permission denied");
            assert!(how.starts_with("refused") && ours, "{plan}: {what} {how}");
        }
    }
    let out = output(&mut bw(
        &image,
        &["debug-sandbox", "--sandbox=off", "IMAGE"],
    ));
    let tried = attempts(&out);
    for what in [
        "open",
        "create",
        "list",
        "connect",
        "socket",
        "spawn",
        "fork",
        "kill",
        "map-executable",
    ] {
        let found = tried.iter().find(|(name, _)| name == what);
        assert!(
            found.is_some_and(|(_, how)| how == "SUCCEEDED"),
            "without the wall: {what}: {found:?}"
        );
    }
    assert!(!out.status.success());
    // The ring of the device is bounded with and without the wall.
    if let Some((_, how)) = tried.iter().find(|(name, _)| name == "open-by-ring") {
        assert!(how.contains("Permission denied"), "{how}");
    }
}

/// A confined server reads the clock as others do: in its own memory, without a system call.
#[test]
fn the_clock_needs_no_system_call() {
    if !have_fuse() || !have("strace") {
        return;
    }
    let scratch = Scratch::new();
    let (image, mnt) = (scratch.path("disk.img"), scratch.dir("mnt"));
    let _unmounts = Unmounts(mnt.clone());
    our_mkfs(&image, &[], "8M");
    let log = scratch.path("calls");
    let point = mnt.to_str().unwrap();
    let mut traced = Command::new("strace");
    traced.args(["-f", "-e", "trace=seccomp,clock_gettime,unlinkat", "-o"]);
    traced.arg(&log).arg(program().get_program());
    traced.args(["mount", "--foreground", "--sandbox=require"]);
    let mut server = traced.arg(&image).arg(&mnt).spawn().unwrap();
    let start = Instant::now();
    while !mnt.join("lost+found").exists() {
        assert!(start.elapsed() < Duration::from_secs(60), "no mount");
        std::thread::sleep(Duration::from_millis(10));
    }
    for n in 0..20 {
        fs::write(mnt.join(format!("f{n}")), b"times").unwrap();
    }
    good(&image, &["umount", point]);
    assert!(server.wait().unwrap().success());
    let calls = fs::read_to_string(&log).unwrap();
    let (_, confined) = calls.split_once("seccomp(").expect("a filter");
    assert!(!confined.contains("clock_gettime("), "{calls}");
}

/// What every command prints under the wall is what it prints without.
#[test]
fn commands_do_the_same_under_the_wall() {
    let scratch = Scratch::new();
    let source = scratch.dir("source");
    fs::create_dir(source.join("dir")).unwrap();
    fs::write(source.join("dir/file"), b"contents\n").unwrap();
    fs::write(source.join("large"), vec![7; 3 << 20]).unwrap();
    let missing = scratch.path("missing.img");
    for format in ["ext4", "f2fs"] {
        let image = scratch.path(&format!("{format}.img"));
        let text = source.to_str().unwrap();
        good(
            &image,
            &[
                "mkfs", "-q", "-t", format, "--size", "64M", "--from", text, "IMAGE",
            ],
        );
        let twice = format!("{}/./{format}.img:/dir/file", scratch.path("").display());
        let absent = format!("{}:/x", missing.display());
        let both = |args: &[&str]| {
            let run = |mode: &str| {
                let mut command = bw(&image, args);
                output(command.arg(format!("--sandbox={mode}")))
            };
            let (with, without) = (run("require"), run("off"));
            assert_eq!(
                with.status.code(),
                without.status.code(),
                "{args:?}: {}",
                stderr(&with)
            );
            assert_eq!(stderr(&with), stderr(&without), "{args:?}");
            assert!(with.stdout == without.stdout, "{args:?}");
            assert!(
                !stderr(&with).contains("not permitted"),
                "{args:?}: {}",
                stderr(&with)
            );
        };
        both(&["ls", "-laR", "IMAGE"]);
        both(&["tree", "IMAGE"]);
        both(&["cat", "IMAGE:/dir/file", "IMAGE:/large"]);
        both(&["cat", "IMAGE:/dir/file", &twice, &absent, &absent]);
        both(&["ls", &absent]);
        both(&["stat", "IMAGE:/dir/file"]);
        both(&["extents", "IMAGE:/large"]);
        both(&["du", "IMAGE"]);
        both(&["df", "IMAGE"]);
        both(&["info", "IMAGE"]);
        both(&["map", "--json", "IMAGE"]);
        both(&["find", "IMAGE", "--name", "f*"]);
        both(&["info", missing.to_str().unwrap()]);
        both(&["getxattr", "IMAGE:/dir/file"]);
        both(&["check", "-n", "IMAGE"]);
        both(&["check", "-y", "IMAGE"]);
        both(&["check", missing.to_str().unwrap()]);
        both(&["export", "IMAGE"]);
        both(&["cp", "IMAGE:/dir/file", "-"]);
        both(&["cp", "IMAGE:/large", "IMAGE:/copy"]);
        // Output that the wall leaves no path to is made before, and goes when the command fails.
        let tar = scratch.path("out.tar");
        let tar_text = tar.to_str().unwrap();
        good(
            &image,
            &["export", "--sandbox=require", "IMAGE", "-o", tar_text],
        );
        assert!(ok(Command::new("tar").arg("-tf").arg(&tar)).contains("dir/file"));
        fs::remove_file(&tar).unwrap();
        let absent_path = [
            "export",
            "--sandbox=require",
            "IMAGE:/nothing",
            "-o",
            tar_text,
        ];
        refused(&mut bw(&image, &absent_path), 1, &["nothing"]);
        assert!(!tar.exists(), "half an archive");
        assert!(fs::metadata(&image).unwrap().permissions().mode() & 0o777 == 0o644);
    }
}

/// Commands that change an image print the same under the wall as without it, and leave the same.
#[test]
fn changes_are_the_same_under_the_wall() {
    let scratch = Scratch::new();
    for format in ["ext4", "f2fs"] {
        let images = ["require", "off"].map(|mode| scratch.path(&format!("{format}-{mode}.img")));
        for image in &images {
            let args = ["mkfs", "-q", "-t", format, "--size", "64M", "IMAGE"];
            good(image, &args);
        }
        let both = |args: &[&str]| {
            let [with, without] =
                [("require", &images[0]), ("off", &images[1])].map(|(mode, image)| {
                    let out = output(bw(image, args).arg(format!("--sandbox={mode}")));
                    let text = |bytes: &[u8]| {
                        let text = String::from_utf8_lossy(bytes);
                        text.replace(image.to_str().unwrap(), "IMAGE")
                    };
                    (out.status.code(), text(&out.stdout), text(&out.stderr))
                });
            assert_eq!(with, without, "{format}: {args:?}");
            assert!(!with.2.contains("not permitted"), "{args:?}: {}", with.2);
            with.0 == Some(0)
        };
        for args in [
            &["mkdir", "-p", "IMAGE:/a/b/c", "IMAGE:/d"][..],
            &["touch", "IMAGE:/a/file", "IMAGE:/d/other"],
            &["ln", "IMAGE:/a/file", "IMAGE:/hard"],
            &["ln", "-s", "/etc/passwd", "IMAGE:/soft"],
            &["mv", "IMAGE:/d/other", "IMAGE:/a/b"],
            &["chmod", "-R", "go-rwx", "IMAGE:/a"],
            &["chmod", "+w", "IMAGE:/hard"],
            &["chown", "-R", "12:34", "IMAGE:/a/b"],
            &["setxattr", "-n", "user.note", "-v", "text", "IMAGE:/hard"],
            &["getxattr", "IMAGE:/a/file"],
            &["touch", "-d", "@1000000000", "IMAGE:/a/file"],
            &["rm", "-r", "IMAGE:/d", "IMAGE:/a/b/c"],
            &["tree", "IMAGE"],
            &["check", "-n", "IMAGE"],
        ] {
            assert!(both(args), "{format}: {args:?}");
        }
        for args in [
            &["rm", "IMAGE:/nothing", "IMAGE:/a"][..],
            &["mkdir", "IMAGE:/a"],
            &["mv", "IMAGE:/nothing", "IMAGE:/a"],
            &["chmod", "u+x", "/no/such/image:/a"],
            &["quota", "IMAGE"],
        ] {
            assert!(!both(args), "{format}: {args:?}");
        }
    }
}

/// `cp` reaches what it was told to, in both directions, and nothing else.
#[test]
fn copies_to_and_from_the_host() {
    if !have_landlock() {
        return;
    }
    let scratch = Scratch::new();
    let image = scratch.path("disk.img");
    our_mkfs(&image, &[], "32M");
    let source = scratch.dir("source");
    fs::create_dir(source.join("dir")).unwrap();
    fs::write(source.join("dir/file"), b"contents\n").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", source.join("link")).unwrap();
    let back = scratch.dir("back");
    let (source_text, back_text) = (source.to_str().unwrap(), back.to_str().unwrap());
    good(
        &image,
        &["cp", "--sandbox=require", "-a", source_text, "IMAGE:/"],
    );
    good(
        &image,
        &["cp", "--sandbox=require", "-a", "IMAGE:/source", back_text],
    );
    assert_eq!(
        fs::read(back.join("source/dir/file")).unwrap(),
        b"contents\n"
    );
    assert_eq!(
        fs::read_link(back.join("source/link")).unwrap(),
        Path::new("/etc/passwd")
    );
    let file = scratch.path("one");
    good(
        &image,
        &[
            "cp",
            "--sandbox=require",
            "IMAGE:/source/dir/file",
            file.to_str().unwrap(),
        ],
    );
    assert_eq!(fs::read(&file).unwrap(), b"contents\n");
    good(
        &image,
        &[
            "cp",
            "--sandbox=require",
            file.to_str().unwrap(),
            "IMAGE:/one",
        ],
    );
    e2fsck_clean(&image, "copied to");
    // A link in the destination that leads elsewhere: the wall stands in the way.
    let outside = scratch.dir("elsewhere").join("target");
    fs::write(&outside, b"mine").unwrap();
    let file = back.join("source/dir/file");
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink(&outside, &file).unwrap();
    let _refused = output(&mut bw(
        &image,
        &["cp", "--sandbox=require", "-r", "IMAGE:/source", back_text],
    ));
    assert_eq!(fs::read(&outside).unwrap(), b"mine");
    // Named itself, it is written through.
    good(
        &image,
        &[
            "cp",
            "--sandbox=require",
            "IMAGE:/one",
            file.to_str().unwrap(),
        ],
    );
}

/// Symlinks of an image are copied as symlinks, and nothing is written through one that was just copied: with or without the wall.
#[test]
fn copies_do_not_follow_links_of_the_image() {
    if !have_landlock() {
        return;
    }
    let scratch = Scratch::new();
    let image = scratch.path("disk.img");
    our_mkfs(&image, &[], "32M");
    let outside = scratch.dir("outside");
    let (secret, dir) = (outside.join("secret"), outside.join("dir"));
    fs::write(&secret, b"mine").unwrap();
    fs::create_dir(&dir).unwrap();
    let (secret, dir) = (secret.to_str().unwrap(), dir.to_str().unwrap());
    good(&image, &["mkdir", "-p", "IMAGE:/one", "IMAGE:/two/to-dir"]);
    good(&image, &["ln", "-s", secret, "IMAGE:/one/to-file"]);
    good(&image, &["ln", "-s", dir, "IMAGE:/one/to-dir"]);
    good(
        &image,
        &["touch", "IMAGE:/two/to-file", "IMAGE:/two/to-dir/planted"],
    );
    for mode in ["require", "off"] {
        let mode = format!("--sandbox={mode}");
        for how in ["-r", "-a"] {
            let back = scratch.dir(&format!("back{how}{mode}"));
            let to = back.to_str().unwrap();
            good(&image, &["cp", &mode, how, "IMAGE:/one", to]);
            for (name, target) in [("to-file", secret), ("to-dir", dir)] {
                let link = fs::read_link(back.join("one").join(name)).unwrap();
                assert_eq!(link, Path::new(target));
            }
            // The same names once more, of another kind.
            for name in ["to-file", "to-dir"] {
                let (first, second) = (format!("IMAGE:/one/{name}"), format!("IMAGE:/two/{name}"));
                let args = ["cp", &mode, how, &first, &second, to];
                refused(&mut bw(&image, &args), 1, &["just copied"]);
            }
            assert_eq!(fs::read(secret).unwrap(), b"mine");
            assert_eq!(fs::read_dir(dir).unwrap().count(), 0);
        }
    }
}

struct Unmounts(PathBuf);

impl Drop for Unmounts {
    fn drop(&mut self) {
        let table = fs::read_to_string("/proc/mounts").unwrap();
        if table
            .lines()
            .any(|l| l.split(' ').nth(1).map(Path::new) == Some(&self.0))
        {
            let _ = output(Command::new("fusermount3").args(["-u", "-z"]).arg(&self.0));
        }
    }
}

/// The processes whose arguments begin so and name the directory.
fn processes(command: &str, dir: &Path) -> Vec<u32> {
    fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let line = fs::read(entry.path().join("cmdline")).ok()?;
            let text = String::from_utf8_lossy(&line).replace('\0', " ");
            let ours = text.starts_with(&format!("blockwright {command} "));
            (ours && text.contains(dir.to_str()?)).then_some(pid)
        })
        .collect()
}

/// What `/proc` tells of every thread of a process, in these fields.
fn of_threads(pid: u32, field: &str) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let status = tasks
        .flatten()
        .filter_map(|t| fs::read_to_string(t.path().join("status")).ok());
    status
        .map(|text| {
            let line = text.lines().find_map(|l| l.strip_prefix(field));
            line.unwrap_or_else(|| panic!("no {field}"))
                .trim()
                .to_owned()
        })
        .collect()
}

fn work_in(mnt: &Path) {
    fs::create_dir(mnt.join("dir")).unwrap();
    for n in 0..200 {
        fs::write(mnt.join(format!("dir/{n}")), format!("file {n}")).unwrap();
    }
    let large = fs::File::options()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .open(mnt.join("large"))
        .unwrap();
    let bytes = vec![5; 1 << 20];
    for n in 0..8u64 {
        large.write_all_at(&bytes, n << 20).unwrap();
    }
    large.sync_all().unwrap();
    rustix::fs::fallocate(
        &large,
        rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE,
        1 << 20,
        1 << 20,
    )
    .unwrap();
    let direct = fs::File::options()
        .read(true)
        .write(true)
        .open(mnt.join("large"))
        .unwrap();
    rustix::fs::fcntl_setfl(&direct, rustix::fs::OFlags::DIRECT).unwrap();
    let mut memory = vec![9u8; 8192];
    let skip = memory.as_ptr().align_offset(4096);
    let page = &mut memory[skip..skip + 4096];
    direct.write_all_at(page, 4096).unwrap();
    page.fill(0);
    direct.read_exact_at(page, 4096).unwrap();
    assert!(page.iter().all(|b| *b == 9));
    // Many at once: more workers are started, and each has a descriptor of its own.
    std::thread::scope(|scope| {
        for n in 0..8 {
            scope.spawn(move || {
                let file = fs::File::create(mnt.join(format!("parallel{n}"))).unwrap();
                file.write_all_at(&[n as u8; 9000], 0).unwrap();
                file.sync_all().unwrap();
            });
        }
    });
    assert_eq!(fs::read_dir(mnt.join("dir")).unwrap().count(), 200);
    fs::rename(mnt.join("dir/7"), mnt.join("seven")).unwrap();
    fs::remove_file(mnt.join("dir/8")).unwrap();
}

/// A server is confined on all its threads, works, lets itself be traced into a file, and unmounts by `umount` and by a signal.
#[test]
fn servers_are_confined_and_work() {
    if !have_fuse() {
        return;
    }
    let scratch = Scratch::new();
    for (format, transport) in [
        ("ext4", "io_uring"),
        ("ext4", "dev_fuse"),
        ("f2fs", "io_uring"),
        ("f2fs", "dev_fuse"),
    ] {
        let (image, mnt) = (
            scratch.path(&format!("{format}-{transport}")),
            scratch.dir("mnt"),
        );
        let _unmounts = Unmounts(mnt.clone());
        let point = mnt.to_str().unwrap();
        our_mkfs(&image, &["-t", format], "128M");
        let option = format!("transport={transport}");
        let started = output(&mut bw(
            &image,
            &["mount", "--sandbox=require", "-o", &option, "IMAGE", point],
        ));
        if transport == "io_uring"
            && stderr(&started).contains("io_uring")
            && !started.status.success()
        {
            let _skipped = available("FUSE over io_uring", false);
            continue;
        }
        assert!(started.status.success(), "{}", stderr(&started));
        work_in(&mnt);
        let servers = processes("mount", &mnt);
        let [server] = servers[..] else {
            panic!("{servers:?}")
        };
        let all = |field: &str, value: &str| {
            let told = of_threads(server, field);
            assert!(
                told.iter().all(|v| v == value),
                "{transport}: {field} {told:?}"
            );
        };
        all("Seccomp:", "2");
        all("NoNewPrivs:", "1");
        if is_root() {
            all("Uid:", "65534\t65534\t65534\t65534");
            all("Gid:", "65534\t65534\t65534\t65534");
            all("Groups:", "");
            all("CapPrm:", "0000000000000000");
        }
        let keepers = processes("debug-keeper", &mnt);
        assert_eq!(keepers.len(), 1, "one keeper");
        // The keeper has nothing of the image.
        for fd in fs::read_dir(format!("/proc/{}/fd", keepers[0]))
            .unwrap()
            .flatten()
        {
            let to = fs::read_link(fd.path()).unwrap_or_default();
            assert!(to != image, "the keeper holds the image");
        }
        let trace = scratch.path("trace");
        fs::write(&trace, b"an older one").unwrap();
        let trace_text = trace.to_str().unwrap();
        ok(program()
            .args([
                "trace", "record", "-o", trace_text, point, "--", "sync", "-f",
            ])
            .arg(mnt.join("large")));
        assert!(ok(program().args(["trace", "show"]).arg(&trace)).contains("requests"));
        if transport == "dev_fuse" {
            rustix::process::kill_process(
                rustix::process::Pid::from_raw(server.cast_signed()).unwrap(),
                rustix::process::Signal::TERM,
            )
            .unwrap();
            gone(&mnt);
        } else {
            good(&image, &["umount", point]);
        }
        gone(&mnt);
        good(&image, &["check", "-n", "IMAGE"]);
        match format {
            "ext4" => e2fsck_clean(&image, transport),
            _ if have("fsck.f2fs") => fsck_f2fs_clean(&image, transport),
            _ => {}
        }
    }
}

/// Server and keeper have ended.
fn gone(mnt: &Path) {
    let start = Instant::now();
    while !processes("mount", mnt).is_empty() || !processes("debug-keeper", mnt).is_empty() {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "a process is left"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A server that is killed takes its keeper with it.
#[test]
fn a_keeper_ends_with_its_server() {
    if !have_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let (image, mnt) = (scratch.path("disk.img"), scratch.dir("mnt"));
    let _unmounts = Unmounts(mnt.clone());
    our_mkfs(&image, &[], "32M");
    good(
        &image,
        &["mount", "--sandbox=require", "IMAGE", mnt.to_str().unwrap()],
    );
    let server = processes("mount", &mnt)[0];
    let pid = rustix::process::Pid::from_raw(server.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    gone(&mnt);
}

/// What a server would look up by path is found out before: this host's name (the option `host_name`) stands in the volume's MMP block.
#[test]
fn the_host_is_named_in_a_volume_that_is_held() {
    if !have_fuse() || !have("mke2fs") || !have("debugfs") {
        return;
    }
    let scratch = Scratch::new();
    let (image, mnt) = (scratch.path("disk.img"), scratch.dir("mnt"));
    let _unmounts = Unmounts(mnt.clone());
    common::mke2fs(&image, &["-t", "ext4", "-O", "mmp"], "32M");
    let point = mnt.to_str().unwrap();
    good(&image, &["mount", "--sandbox=require", "IMAGE", point]);
    let held = ok(Command::new("debugfs").args(["-R", "dump_mmp"]).arg(&image));
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    good(&image, &["umount", point]);
    assert!(held.contains(host.trim()), "{held}");
}

/// All of it for a user who is not root: through the set-uid helper, which a confined process could not start.
#[test]
fn users_who_are_not_root_are_confined_too() {
    if !have_fuse()
        || !available("root", is_root())
        || !have("setpriv")
        || !have("fusermount3")
        || Path::new("/dev/fuse")
            .metadata()
            .is_ok_and(|m| m.permissions().mode() & 0o006 != 0o006)
    {
        return;
    }
    let dir = tempfile::Builder::new()
        .prefix("bw-user-")
        .tempdir_in("/var/tmp")
        .unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::copy(env!("CARGO_BIN_EXE_blockwright"), path("blockwright")).unwrap();
    let (image, mnt) = (path("disk.img"), path("mnt"));
    fs::create_dir(&mnt).unwrap();
    our_mkfs(&image, &["--owner", "1234:1234"], "64M");
    for place in [dir.path(), &image, &mnt] {
        std::os::unix::fs::chown(place, Some(1234), Some(1234)).unwrap();
    }
    let _unmounts = Unmounts(mnt.clone());
    let user = || {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=1234", "--regid=1234", "--clear-groups"])
            .arg(path("blockwright"));
        command
    };
    let out = output(
        user()
            .args(["debug-sandbox", "--sandbox=require"])
            .arg(&image),
    );
    assert!(
        out.status.success(),
        "{}{}",
        String::from_utf8_lossy(&out.stdout),
        stderr(&out)
    );
    ok(user()
        .args(["check", "--sandbox=require", "-n"])
        .arg(&image));
    ok(user().args(["ls", "--sandbox=require"]).arg(&image));
    for transport in ["dev_fuse", "auto"] {
        ok(user()
            .args([
                "mount",
                "--sandbox=require",
                "-o",
                &format!("transport={transport}"),
            ])
            .args([&image, &mnt]));
        let server = processes("mount", &mnt)[0];
        assert!(
            of_threads(server, "Seccomp:")
                .iter()
                .all(|mode| mode == "2")
        );
        let file = mnt.join(format!("file-{transport}"));
        ok(Command::new("setpriv")
            .args(["--reuid=1234", "--regid=1234", "--clear-groups", "sh", "-c"])
            .arg(format!(
                "echo hello > {0} && sync {0} && grep -q hello {0}",
                file.display()
            )));
        ok(user().arg("umount").arg(&mnt));
        gone(&mnt);
    }
    e2fsck_clean(&image, "a user's");
}

/// What is asked for and cannot be had is refused by name; `off` is off.
#[test]
fn modes() {
    let scratch = Scratch::new();
    let image = scratch.path("disk.img");
    our_mkfs(&image, &[], "8M");
    let out = output(&mut bw(&image, &["ls", "-v", "--sandbox=auto", "IMAGE"]));
    assert!(stderr(&out).contains("sandbox: "), "{}", stderr(&out));
    let out = output(&mut bw(&image, &["ls", "-v", "--sandbox=off", "IMAGE"]));
    assert_eq!(stderr(&out), "");
    refused(
        &mut bw(&image, &["ls", "--sandbox=maybe", "IMAGE"]),
        2,
        &["maybe"],
    );
}
