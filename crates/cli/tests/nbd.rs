//! Volumes on NBD exports, by the program's commands: served by the device room's own small server, and by
//! nbd-server.

mod common;

use blockwright_device::host::nbd::server::{NbdServer, ServerOptions};
use blockwright_device::{HostDevice, OpenMode};
use common::run::{bw, good, hash, json, refused};
use common::{Scratch, e2fsck_clean, have, have_fuse, output, program};
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const BYTES: u64 = 64 << 20;

/// What is mounted goes away also when a test fails.
struct Unmounts(PathBuf);

impl Drop for Unmounts {
    fn drop(&mut self) {
        let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
        let at = self.0.to_str().expect("a path that is text");
        if mounts.lines().any(|l| l.split(' ').nth(1) == Some(at)) {
            let _ = output(Command::new("fusermount3").args(["-u", "-z", at]));
        }
    }
}

/// What a user does with an export, and what the image behind it is afterwards.
fn work(scratch: &Scratch, address: &str, behind: &Path) {
    let export = Path::new(address);
    let tree = scratch.dir("tree");
    fs::create_dir(tree.join("etc")).unwrap();
    fs::write(tree.join("etc/hosts"), "127.0.0.1 localhost\n").unwrap();
    let large: Vec<u8> = (0..5_000_000u32)
        .map(|n| (n.wrapping_mul(n) >> 7) as u8)
        .collect();
    fs::write(tree.join("large"), &large).unwrap();
    let tree = tree.to_str().unwrap();

    good(
        export,
        &["mkfs", "-q", "-t", "ext4", "--from", tree, "IMAGE"],
    );
    e2fsck_clean(behind, "made");
    refused(
        &mut bw(export, &["mkfs", "-q", "IMAGE"]),
        1,
        &["holds an ext2, ext3 or ext4 file system", "-F"],
    );
    assert_eq!(json(export, &["info", "--json", "IMAGE"])["size"], BYTES);
    assert_eq!(
        good(export, &["cat", "IMAGE:/etc/hosts"]),
        "127.0.0.1 localhost\n"
    );
    good(export, &["cp", "IMAGE:/large", "IMAGE:/copy"]);
    good(export, &["mv", "IMAGE:/copy", "IMAGE:/etc/copy"]);
    let out = scratch.path("out");
    good(export, &["cp", "IMAGE:/etc/copy", out.to_str().unwrap()]);
    assert!(fs::read(&out).unwrap() == large);
    let tree = good(export, &["ls", "IMAGE:"]);
    assert_eq!(tree, "etc\nlarge\nlost+found\n");
    let told = refused(
        &mut bw(export, &["cat", "IMAGE:/absent"]),
        1,
        &["absent", "no such file"],
    );
    assert!(told.contains(address), "{told}");
    good(export, &["check", "-n", "IMAGE"]);
    if !have_fuse() {
        return;
    }
    let mnt = scratch.dir("mnt");
    let _unmounts = Unmounts(mnt.clone());
    let at = mnt.to_str().unwrap();
    good(export, &["mount", "IMAGE", at]);
    for command in [&["rm", "IMAGE:/large"][..], &["check", "-y", "IMAGE"]] {
        let code = if command[0] == "check" { 8 } else { 1 };
        refused(&mut bw(export, command), code, &["in use by process"]);
    }
    assert!(fs::read(mnt.join("etc/copy")).unwrap() == large);
    fs::write(mnt.join("written"), &large).unwrap();
    fs::remove_file(mnt.join("large")).unwrap();
    good(export, &["umount", at]);
    // The server has let go of it when umount returns.
    good(export, &["check", "-n", "IMAGE"]);
    e2fsck_clean(behind, "unmounted");
    good(export, &["cp", "IMAGE:/written", out.to_str().unwrap()]);
    assert!(fs::read(&out).unwrap() == large);
}

fn image(scratch: &Scratch) -> PathBuf {
    let path = scratch.path("behind");
    fs::File::create(&path).unwrap().set_len(BYTES).unwrap();
    path
}

fn ours(scratch: &Scratch, behind: &Path) -> NbdServer {
    // e2fsck looks at it meanwhile.
    let mode = OpenMode {
        lock: false,
        ..OpenMode::default()
    };
    let device = HostDevice::open(behind, mode).unwrap();
    let options = ServerOptions {
        export: "a disk".into(),
        ..ServerOptions::default()
    };
    NbdServer::unix(device, options, &scratch.path("socket"))
}

#[test]
fn every_command_takes_an_export() {
    if !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new();
    let behind = image(&scratch);
    let server = ours(&scratch, &behind);
    work(&scratch, &server.address().replace(' ', "%20"), &behind);
}

/// What only plans and only looks writes nothing, so an export for reading is enough: also for a volume that was not unmounted.
#[test]
fn an_export_for_reading_is_checked_and_planned_for() {
    for (format, smaller) in [("ext4", "32M"), ("f2fs", "56M")] {
        let scratch = Scratch::new();
        let behind = image(&scratch);
        good(&behind, &["mkfs", "-q", "-t", format, "IMAGE"]);
        let before = hash(&behind);
        let mode = OpenMode {
            lock: false,
            ..OpenMode::read_only()
        };
        let device = HostDevice::open(&behind, mode).unwrap();
        let server = NbdServer::unix(device, ServerOptions::default(), &scratch.path("socket"));
        let address = server.address();
        let export = Path::new(&address);
        for sandbox in ["--sandbox=require", "--sandbox=off"] {
            good(export, &["check", "-n", sandbox, "IMAGE"]);
            for size in [smaller, "--minimum", "--fill"] {
                let args = ["resize", "-n", "--json", sandbox, "IMAGE", size];
                let (of_export, of_file) = (json(export, &args), json(&behind, &args));
                assert_eq!(of_export["size"], of_file["size"], "{format} {size}");
            }
            refused(
                &mut bw(export, &["resize", sandbox, "IMAGE", smaller]),
                1,
                &["read-only"],
            );
            refused(
                &mut bw(export, &["check", "-y", sandbox, "IMAGE"]),
                8,
                &["read-only"],
            );
        }
        assert_eq!(hash(&behind), before, "{format}");
    }
}

/// The server goes away under a mount that is told not to wait: errors, no hang; what was synced is there afterwards.
#[test]
fn a_server_that_goes_away() {
    if !have("e2fsck") || !have_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let behind = image(&scratch);
    let server = ours(&scratch, &behind);
    let address = server.address().replace(' ', "%20") + "&reconnect=0";
    let export = Path::new(&address);
    good(export, &["mkfs", "-q", "IMAGE"]);
    let mnt = scratch.dir("mnt");
    let _unmounts = Unmounts(mnt.clone());
    good(export, &["mount", "IMAGE", mnt.to_str().unwrap()]);
    fs::write(mnt.join("synced"), "here").unwrap();
    fs::File::open(mnt.join("synced"))
        .unwrap()
        .sync_all()
        .unwrap();
    drop(server);
    fs::write(mnt.join("lost"), "gone").unwrap_or_default();
    let file = fs::File::open(mnt.join("synced")).unwrap();
    assert!(file.sync_all().is_err() || fs::File::open(&mnt).unwrap().sync_all().is_err());
    drop(file);
    let _fails_to_close = output(program().arg("umount").arg(&mnt));
    let out = scratch.path("out");
    let told = refused(
        &mut bw(export, &["cp", "IMAGE:/synced", out.to_str().unwrap()]),
        1,
        &["no such file"],
    );
    assert!(told.contains("nbd+unix"), "{told}");
    let replayed = output(&mut bw(&behind, &["check", "-p", "IMAGE"]));
    assert_eq!(replayed.status.code(), Some(1));
    good(&behind, &["check", "-n", "IMAGE"]);
    assert_eq!(good(&behind, &["cat", "IMAGE:/synced"]), "here");
}

/// nbdkit in the foreground, killed when dropped.
struct Nbdkit(std::process::Child);

impl Nbdkit {
    fn start(socket: &Path, args: &[&str]) -> Self {
        let _absent = fs::remove_file(socket);
        let mut command = Command::new("nbdkit");
        command.arg("-f").arg("-U").arg(socket).args(args);
        let child = command.stdin(Stdio::null()).spawn().unwrap();
        let start = Instant::now();
        while UnixStream::connect(socket).is_err() {
            assert!(start.elapsed() < Duration::from_secs(30), "nbdkit");
            std::thread::sleep(Duration::from_millis(5));
        }
        Nbdkit(child)
    }
}

impl Drop for Nbdkit {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _ended = self.0.wait();
    }
}

/// A mount in the sandbox outlives its server: programs wait while it is away, and everything is there afterwards.
fn outlives(format: &str, parameters: &str) {
    if !have("nbdkit") || !have("e2fsck") || !have("fsck.f2fs") || !have_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let behind = image(&scratch);
    // nbdkit ends with the thread that started it.
    let (socket, file) = (scratch.path("socket"), behind.to_str().unwrap());
    let start = || Nbdkit::start(&socket, &["file", file]);
    let mut server = Some(start());
    let address = format!("nbd+unix:///?socket={}{parameters}", socket.display());
    let export = Path::new(&address);
    good(export, &["mkfs", "-q", "-t", format, "IMAGE"]);
    let mnt = scratch.dir("mnt");
    let _unmounts = Unmounts(mnt.clone());
    good(export, &["mount", "IMAGE", mnt.to_str().unwrap()]);
    let contents = |n: usize| vec![n as u8 | 1; 100_000 + n];
    for n in 0..60 {
        let path = mnt.join(format!("file {n}"));
        fs::write(&path, contents(n)).unwrap();
        if n % 7 == 0 {
            fs::File::open(&path).unwrap().sync_all().unwrap();
        }
        if n % 20 == 10 {
            drop(server.take());
            // A sync that begins while the server is away.
            let synced = std::thread::spawn(move || fs::File::open(&path)?.sync_all());
            std::thread::sleep(Duration::from_millis(300));
            assert!(!synced.is_finished(), "a sync without a server");
            server = Some(start());
            synced.join().unwrap().unwrap();
        }
    }
    good(export, &["umount", mnt.to_str().unwrap()]);
    drop(server);
    match format {
        "ext4" => e2fsck_clean(&behind, "unmounted"),
        _ => common::fsck_f2fs_clean(&behind, "unmounted"),
    }
    good(&behind, &["check", "-n", "IMAGE"]);
    let out = scratch.path("out");
    for n in 0..60 {
        let inside = format!("IMAGE:/file {n}");
        good(&behind, &["cp", &inside, out.to_str().unwrap()]);
        assert!(fs::read(&out).unwrap() == contents(n), "file {n}");
    }
}

#[test]
fn an_ext4_mount_outlives_its_server() {
    outlives("ext4", "");
}

#[test]
fn an_f2fs_mount_outlives_its_server() {
    outlives("f2fs", "&connections=4");
}

/// nbd-server, which cannot stay in the foreground; ended when dropped.
struct Daemon(rustix::process::Pid);

impl Daemon {
    fn start(config: &Path, pid_file: &Path) -> Self {
        let mut command = Command::new("nbd-server");
        command.arg("-C").arg(config).arg("-p").arg(pid_file);
        // It keeps our pipes for as long as it lives.
        let status = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        assert!(status.unwrap().success(), "nbd-server");
        let start = Instant::now();
        loop {
            let text = fs::read_to_string(pid_file).unwrap_or_default();
            let pid = text.trim().parse().ok();
            if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
                return Daemon(pid);
            }
            assert!(start.elapsed() < Duration::from_secs(30), "nbd-server");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ended = rustix::process::kill_process(self.0, rustix::process::Signal::TERM);
    }
}

#[test]
fn nbd_server_serves() {
    if !have("nbd-server") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new();
    let behind = image(&scratch);
    let port = TcpListener::bind("127.0.0.1:0")
        .and_then(|l| l.local_addr())
        .unwrap()
        .port();
    let config = scratch.path("config");
    let text = format!(
        "[generic]\nlistenaddr = 127.0.0.1\nport = {port}\nallowlist = true\n\
         [disk]\nexportname = {}\nflush = true\nfua = true\ntrim = true\n",
        behind.display()
    );
    fs::write(&config, text).unwrap();
    let _daemon = Daemon::start(&config, &scratch.path("pid"));
    let start = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(start.elapsed() < Duration::from_secs(30), "nbd-server");
        std::thread::sleep(Duration::from_millis(10));
    }
    let address = format!("nbd://127.0.0.1:{port}/disk");
    work(&scratch, &address, &behind);
    refused(
        &mut bw(
            &scratch.path("unused"),
            &["ls", &format!("nbd://127.0.0.1:{port}/absent:/")],
        ),
        1,
        &["no export `absent`"],
    );
}
