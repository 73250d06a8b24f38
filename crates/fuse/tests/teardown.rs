//! How connections begin and end, also when they end badly: over both transports, watched from outside,
//! with a limit of time on everything (see `support::scene`).

mod support;

use blockwright_fuse::{FuseOptions, Log, Session, Unmount};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Signal;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};
use support::can_mount;
use support::scene::{Scene, Switch, role, say, serve};

const TRANSPORTS: [&str; 2] = ["io_uring", "dev_fuse"];
/// As a server is told: with idle CPUs kept awake, and not.
const SERVERS: [&str; 3] = ["io_uring", "io_uring 0 asleep", "dev_fuse"];
/// For what takes milliseconds, on a machine that is busy with other things.
const SOON: Duration = Duration::from_secs(20);

/// Not a test: what this program does when another one starts it with a role.
#[test]
fn a_role() {
    let Some((role, dir, extra)) = role() else {
        return;
    };
    match role.as_str() {
        "server" => serve(&dir, &extra),
        "worker" => work(&dir, &extra),
        "keeper" => blockwright_fuse::keep(&dir, &FuseOptions::default(), |_| {}).expect("keeps"),
        "locker" => lock_a_page(&dir),
        "cycles" => cycles(&dir, &extra),
        "users" => each_killed_while_it_waits(Some(NOBODY)),
        // Killed when not needed any more; ends by itself in any case.
        "hog" => {
            let end = Instant::now() + Duration::from_secs(60);
            while Instant::now() < end {}
        }
        other => panic!("no such role: {other}"),
    }
}

fn one_file(root: &OwnedFd, name: &str, direct: bool) -> rustix::io::Result<()> {
    let mut flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
    flags.set(OFlags::DIRECT, direct);
    let file = rustix::fs::openat(root, name, flags, Mode::RWXU)?;
    let page = blockwright_device::AlignedBuf::zeroed(16384);
    rustix::io::pwrite(&file, &page, 0)?;
    if !direct {
        rustix::fs::fsync(&file)?;
    }
    rustix::fs::statat(root, name, AtFlags::empty())?;
    drop(file);
    rustix::fs::unlinkat(root, name, AtFlags::empty())
}

/// Works on files until the time is up or something fails, and says how often it succeeded and what failed.
/// `extra`: a name, seconds, and `direct` or `cached`.
fn work(dir: &Path, extra: &str) {
    let words: Vec<&str> = extra.split(' ').collect();
    let end = Instant::now() + Duration::from_secs_f32(words[1].parse().expect("seconds"));
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::openat(CWD, dir, flags, Mode::empty()).expect("opens the root");
    say("works");
    let mut count = 0u64;
    while Instant::now() < end {
        // Relative to the root, also when that is not mounted any more.
        if let Err(e) = one_file(&root, words[0], words[2] == "direct") {
            say(&format!("failed {}", e.raw_os_error()));
            return;
        }
        count += 1;
    }
    say(&format!("did {count}"));
}

/// Mounts, uses and unmounts, this many times.
fn cycles(dir: &Path, extra: &str) {
    let (transport, times) = extra.split_once(' ').expect("transport and times");
    for n in 0..times.parse().expect("a number") {
        let volume = support::volume();
        let options = FuseOptions {
            transport: support::scene::choice(transport),
            log: Log::new(|line| say(&format!("log {line}"))),
            ..FuseOptions::default()
        };
        let session = Session::mount(volume.vfs.clone(), dir, &options).expect("mounts");
        assert_eq!(session.transport().to_string(), transport);
        std::fs::write(dir.join("file"), b"x").expect("writes");
        // By turns: by us, by another program, by dropping.
        match n % 3 {
            0 => session.unmount().expect("unmounts"),
            1 => {
                let unmounter = session.unmount_handle();
                let run = std::thread::spawn(move || session.run());
                unmounter.unmount(Unmount::IfIdle).expect("unmounts");
                run.join().expect("no panic").expect("ends well");
            }
            _ => drop(session),
        }
        assert!(!dir.join("file").exists(), "unmounted");
    }
    // Threads and descriptors do not pile up.
    let count = |what: &str| std::fs::read_dir(what).map_or(0, Iterator::count);
    let deadline = Instant::now() + SOON;
    while count("/proc/self/task") > 12 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    let (threads, files) = (count("/proc/self/task"), count("/proc/self/fd"));
    assert!(
        threads <= 12 && files <= 24,
        "{threads} threads, {files} files"
    );
    say("done");
}

#[test]
fn the_transport_is_chosen_by_switch_and_option() {
    if !can_mount() {
        return;
    }
    let outcome = |extra: &str| {
        let mut scene = Scene::new();
        let kind = scene.serve(extra);
        let server = &mut scene.actors[0];
        if kind.is_ok() {
            // It may not be listening yet, so how it ends does not matter here.
            server.signal(Signal::TERM);
        }
        assert!(server.ends_well(SOON).is_some(), "{extra}");
        kind
    };
    {
        let Some(_off) = Switch::set(false) else {
            return;
        };
        assert_eq!(outcome("auto").as_deref(), Ok("dev_fuse"));
        assert_eq!(outcome("dev_fuse").as_deref(), Ok("dev_fuse"));
        let error = outcome("io_uring").unwrap_err();
        assert!(error.contains("enable_uring"), "{error}");
    }
    let _on = Switch::set(true);
    assert_eq!(outcome("auto").as_deref(), Ok("io_uring"));
    assert_eq!(outcome("io_uring").as_deref(), Ok("io_uring"));
    assert_eq!(outcome("dev_fuse").as_deref(), Ok("dev_fuse"));
}

#[test]
fn mounting_again_and_again_leaves_nothing_behind() {
    if !can_mount() {
        return;
    }
    let Some(_on) = Switch::set(true) else { return };
    for transport in TRANSPORTS {
        let mut scene = Scene::new();
        let actor = scene.start("cycles", &format!("{transport} 50"));
        let actor = &mut scene.actors[actor];
        assert!(
            actor.hears(&["done"], Duration::from_secs(60)).is_some(),
            "{transport}: stuck or failed"
        );
        assert_eq!(actor.ends_well(SOON), Some(true));
    }
}

/// Starts a server and workers, and waits until all of them work.
fn busy(transport: &str, workers: usize, seconds: f32) -> Scene {
    let mut scene = Scene::new();
    assert_eq!(
        scene.serve(transport).as_deref(),
        Ok(transport.split(' ').next().unwrap())
    );
    for n in 0..workers {
        let how = if n % 2 == 0 { "cached" } else { "direct" };
        scene.start("worker", &format!("file-{n} {seconds} {how}"));
    }
    for worker in &scene.actors[1..] {
        assert!(worker.hears(&["works"], SOON).is_some(), "{transport}");
    }
    std::thread::sleep(Duration::from_millis(300));
    scene
}

#[test]
fn when_the_server_is_killed_nobody_waits_for_it() {
    if !can_mount() {
        return;
    }
    let Some(_on) = Switch::set(true) else { return };
    for transport in SERVERS {
        let mut scene = busy(transport, 8, 60.0);
        let (server, workers) = scene.actors.split_first_mut().unwrap();
        server.signal(Signal::KILL);
        assert_eq!(server.ends_well(SOON), Some(false), "{transport}: lives on");
        for worker in workers {
            let said = worker.hears(&["failed", "did"], SOON);
            let said = said.unwrap_or_else(|| panic!("{transport}: a client hangs"));
            // Cancelled, interrupted: its request was just being handed over, by a server that was dying.
            let gone = [
                Errno::INTR,
                Errno::NOTCONN,
                Errno::CONNABORTED,
                Errno::CANCELED,
                Errno::IO,
            ];
            assert!(
                gone.iter()
                    .any(|e| said == format!("failed {}", e.raw_os_error())),
                "{transport}: {said}"
            );
            assert_eq!(worker.ends_well(SOON), Some(true), "{transport}");
        }
    }
}

/// Reads a page while a direct write of it is in flight. The server answers neither: it waits for the page, which the kernel has locked
/// for the read.
fn lock_a_page(dir: &Path) {
    let path = dir.join("file");
    // Past the server's cache, which would answer the read.
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::DIRECT;
    let made = rustix::fs::open(&path, flags, Mode::RWXU).expect("a file");
    rustix::io::pwrite(&made, &blockwright_device::AlignedBuf::zeroed(4096), 0).expect("writes");
    rustix::fs::fsync(&made).expect("syncs");
    let cached = std::fs::File::open(&path).expect("opens");
    let write = std::thread::spawn(move || {
        rustix::io::pwrite(&made, &blockwright_device::AlignedBuf::zeroed(4096), 0).is_ok()
    });
    std::thread::sleep(Duration::from_millis(300));
    say("works");
    let read = cached.read_at(&mut [0; 4096], 0).is_ok();
    let written = write.join().expect("no panic");
    say(&format!("failed: read {read}, written {written}"));
}

/// SIGKILL does not end a thread of the server that waits for a page, and while it waits the connection lives on. `detach`: the mount is taken
/// out of the tree at once.
fn killed_while_it_waits(user: Option<u32>, transport: &str, detach: bool) {
    let mut scene = Scene::of_user(user);
    let extra = format!("{transport} 1000 kept");
    assert_eq!(scene.serve(&extra).as_deref(), Ok(transport));
    scene.start("locker", "");
    assert!(scene.actors[1].hears(&["works"], SOON).is_some());
    std::thread::sleep(Duration::from_millis(1500));
    scene.actors[0].signal(Signal::KILL);
    if detach {
        scene.detach();
    }
    let case = format!("{transport}, detached: {detach}");
    let (server, others) = scene.actors.split_first_mut().unwrap();
    assert_eq!(server.ends_well(SOON), Some(false), "{case}: lives on");
    let said = others[0].hears(&["failed"], SOON);
    let expected = "failed: read false, written false";
    assert_eq!(said.as_deref(), Some(expected), "{case}");
    assert_eq!(others[0].ends_well(SOON), Some(true), "{case}");
}

/// All of it at once: each case waits for seconds.
fn each_killed_while_it_waits(user: Option<u32>) {
    std::thread::scope(|scope| {
        for transport in TRANSPORTS {
            for detach in [false, true] {
                scope.spawn(move || killed_while_it_waits(user, transport, detach));
            }
        }
    });
}

#[test]
fn a_killed_server_that_waits_for_a_page_is_ended_by_its_keeper() {
    if !can_mount() {
        return;
    }
    let Some(_on) = Switch::set(true) else { return };
    each_killed_while_it_waits(None);
}

/// A user whom every system has: the helper asks for the name.
const NOBODY: u32 = 65534;
/// A mount namespace in which every user may open the FUSE device, reach this program, and has the control file system.
const OF_USERS: &str = r#"
    mount -t tmpfs none "$1"
    chmod 755 "$1"
    mknod -m 666 "$1/fuse" c 10 229
    mount --bind "$1/fuse" /dev/fuse
    mountpoint -q /sys/fs/fuse/connections || mount -t fusectl none /sys/fs/fuse/connections
    touch "$1/program"
    mount --bind "$2" "$1/program"
    exec "$1/program" --exact a_role --nocapture
"#;

#[test]
fn the_keeper_of_a_user_ends_a_detached_mount_too() {
    if !can_mount() || !blockwright_oracles::have(&["unshare", "fusermount3"]) {
        return;
    }
    let Some(_on) = Switch::set(true) else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut command = std::process::Command::new("unshare");
    command.args(["-m", "sh", "-ec", OF_USERS, "sh"]);
    command
        .arg(dir.path())
        .arg(std::env::current_exe().unwrap());
    support::scene::with_role(&mut command, dir.path(), "users", "");
    assert!(command.status().unwrap().success());
}

#[test]
fn detached_under_load_it_serves_until_the_last_file_is_closed() {
    if !can_mount() {
        return;
    }
    let Some(_on) = Switch::set(true) else { return };
    for transport in SERVERS {
        let mut scene = busy(transport, 4, 1.5);
        rustix::mount::unmount(scene.dir(), rustix::mount::UnmountFlags::DETACH).unwrap();
        let (server, workers) = scene.actors.split_first_mut().unwrap();
        for worker in workers {
            let said = worker.hears(&["failed", "did"], SOON);
            assert!(said.is_some_and(|s| s.starts_with("did")), "{transport}");
            assert_eq!(worker.ends_well(SOON), Some(true), "{transport}");
        }
        let said = server.hears(&["ended"], SOON);
        assert_eq!(said.as_deref(), Some("ended"), "{transport}");
        assert_eq!(server.ends_well(SOON), Some(true), "{transport}");
    }
}

#[test]
fn a_server_that_is_told_to_go_goes_although_requests_are_in_work() {
    if !can_mount() {
        return;
    }
    let Some(_on) = Switch::set(true) else { return };
    for transport in TRANSPORTS {
        // Every write to the device takes long, so that all workers are inside a request.
        let mut scene = busy(&format!("{transport} 200"), 6, 60.0);
        let (server, workers) = scene.actors.split_first_mut().unwrap();
        server.signal(Signal::TERM);
        assert!(
            server.hears(&["ended"], SOON).is_some(),
            "{transport}: does not go"
        );
        assert_eq!(server.ends_well(SOON), Some(true), "{transport}");
        for worker in workers {
            let said = worker.hears(&["failed", "did"], SOON);
            assert!(said.is_some_and(|s| s.starts_with("failed")), "{transport}");
            assert_eq!(worker.ends_well(SOON), Some(true), "{transport}");
        }
    }
}

#[test]
fn beside_processes_that_take_all_cpus_it_gets_its_share() {
    if !can_mount() {
        return;
    }
    let Some(_on) = Switch::set(true) else { return };
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    for transport in SERVERS {
        let mut hogs = Scene::new();
        for _ in 0..cpus {
            hogs.start("hog", "");
        }
        let scene = busy(transport, 1, 2.0);
        let said = scene.actors[1].hears(&["failed", "did"], SOON).unwrap();
        drop(hogs);
        let count: u64 = said.strip_prefix("did ").unwrap().parse().unwrap();
        // Fair scheduling makes a request wait for a time slice or two of a few milliseconds; starving would
        // let through next to none.
        assert!(count >= 10, "{transport}: {count} files in two seconds");
    }
}
