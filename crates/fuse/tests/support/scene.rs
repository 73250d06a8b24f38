//! Servers and clients in processes of their own, so that nothing that happens to them can hang a test.
//!
//! A test binary starts itself anew with a role. The watching process never touches the mount: a system call
//! on it could wait for a server that is gone. When the time is up, and at the end in any case, every
//! process is killed, the connection is aborted and the mount taken away.

use blockwright_device::HostDevice;
use blockwright_fuse::{
    CpuLatency, DirectRing, FuseOptions, Keeper, Log, Session, TransportChoice,
};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// What a process shall be.
const ROLE: &str = "BLOCKWRIGHT_TEST_ROLE";
/// Where the mount is.
const DIR: &str = "BLOCKWRIGHT_TEST_DIR";
/// The transport, and whatever else a role wants to know.
const EXTRA: &str = "BLOCKWRIGHT_TEST_EXTRA";
/// Lines for the watcher begin so.
const SAID: &str = "said: ";
/// How large an image is that a server makes.
const IMAGE_BYTES: u64 = 16 << 20;
/// The kernel's switch.
pub const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Holds the kernel's switch in a position; puts it back. Positions exclude each other across processes.
pub struct Switch {
    old: String,
    _lock: OwnedFd,
}

impl Switch {
    /// `None`, loudly, when the kernel has no such switch.
    pub fn set(on: bool) -> Option<Self> {
        let Ok(old) = fs::read_to_string(SWITCH) else {
            blockwright_oracles::leave("the kernel has no FUSE over io_uring");
            return None;
        };
        let lock = fs::File::create(std::env::temp_dir().join("blockwright-enable-uring.lock"))
            .expect("a lock file");
        let lock = OwnedFd::from(lock);
        let deadline = Instant::now() + Duration::from_secs(300);
        while rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive)
            .is_err()
        {
            assert!(Instant::now() < deadline, "the switch is in use");
            std::thread::sleep(Duration::from_millis(20));
        }
        fs::write(SWITCH, if on { "Y" } else { "N" }).expect("root may switch");
        Some(Switch { old, _lock: lock })
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = fs::write(SWITCH, self.old.trim());
    }
}

/// What this process shall be, if it is not a test.
pub fn role() -> Option<(String, PathBuf, String)> {
    let role = std::env::var(ROLE).ok()?;
    let dir = std::env::var_os(DIR).map(PathBuf::from)?;
    Some((role, dir, std::env::var(EXTRA).unwrap_or_default()))
}

/// Tells the watcher something.
pub fn say(line: &str) {
    println!("\n{SAID}{line}");
}

/// `auto`, `io_uring` or `dev_fuse`.
pub fn choice(name: &str) -> TransportChoice {
    match name {
        "io_uring" => TransportChoice::IoUring,
        "dev_fuse" => TransportChoice::DevFuse,
        _ => TransportChoice::Auto,
    }
}

/// The server's role: `extra` is the transport, the device's delay per write in milliseconds, `asleep` if
/// idle CPUs shall not be kept awake, `uncached` if the kernel shall cache no contents and reads take as long, `kept` if a keeper mounts and
/// reads take a minute, or `device_thread` if the device's thread shall carry all direct I/O (`DirectRing::Off`), and the path of an
/// image file to be made (its device is in memory otherwise). Says
/// `direct` when direct I/O has gone through a queue's own ring.
pub fn serve(dir: &Path, extra: &str) {
    let words: Vec<&str> = extra.split(' ').collect();
    let (transport, delay) = (words[0], *words.get(1).unwrap_or(&"0"));
    let slow = super::slow_memory();
    let (_, vfs) = super::vfs_on(match words.get(3) {
        None => slow.clone(),
        Some(path) => HostDevice::create(path, IMAGE_BYTES).expect("an image"),
    });
    let options = FuseOptions {
        transport: choice(transport),
        cpu_latency: match words.get(2) {
            Some(&"asleep") => CpuLatency::Off,
            _ => CpuLatency::Auto,
        },
        direct_io: words.get(2) == Some(&"uncached"),
        direct_ring: match words.get(2) {
            Some(&"device_thread") => DirectRing::Off,
            _ => DirectRing::On,
        },
        shutdown_grace: Duration::from_millis(500),
        log: Log::new(|line| say(&format!("log {line}"))),
        ..FuseOptions::default()
    };
    // A user has all files.
    let me = rustix::process::geteuid();
    let owner = (!me.is_root()).then(|| me.as_raw());
    let kept = words.get(2) == Some(&"kept");
    let options = FuseOptions {
        uid: owner,
        gid: owner,
        keeper: kept.then(|| Arc::new(Keeper::start(actor(dir, "keeper", "")).expect("a keeper"))),
        ..options
    };
    let session = match Session::mount(vfs, dir, &options) {
        Ok(session) => session,
        Err(e) => return say(&format!("error {e}")),
    };
    let millis = delay.parse().expect("a number");
    slow.write_millis
        .store(millis, std::sync::atomic::Ordering::Relaxed);
    if kept {
        slow.read_millis
            .store(60_000, std::sync::atomic::Ordering::Relaxed);
    }
    if options.direct_io {
        slow.read_millis
            .store(millis, std::sync::atomic::Ordering::Relaxed);
    }
    let dispatcher = Arc::downgrade(&session.dispatcher());
    std::thread::spawn(move || {
        while let Some(dispatcher) = dispatcher.upgrade() {
            if dispatcher.stats().get("fuse_queue_device_requests") > Some(0) {
                return say("direct");
            }
            drop(dispatcher);
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    for hint in session.hints() {
        say(&format!("hint {hint}"));
    }
    say(&format!("ready {}", session.transport()));
    match session.run_until_signal() {
        Ok(()) => say("ended"),
        Err(e) => say(&format!("ended {e}")),
    }
}

/// This program with a role.
fn actor(dir: &Path, role: &str, extra: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "a_role", "--nocapture", "--test-threads=1"]);
    with_role(&mut command, dir, role, extra);
    command
}

/// Has this program, which a command starts, play a role.
pub fn with_role(command: &mut Command, dir: &Path, role: &str, extra: &str) {
    command.env(ROLE, role).env(DIR, dir).env(EXTRA, extra);
}

/// A process with a role.
pub struct Actor {
    pub child: Child,
    lines: Receiver<String>,
}

impl Actor {
    /// The next thing it says that begins with one of these.
    pub fn hears(&self, any: &[&str], limit: Duration) -> Option<String> {
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).ok()?;
            eprintln!("  {line}");
            if any.iter().any(|start| line.starts_with(start)) {
                return Some(line);
            }
        }
    }

    /// Whether it ends in time, with success.
    pub fn ends_well(&mut self, limit: Duration) -> Option<bool> {
        let deadline = Instant::now() + limit;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status.success()),
                Ok(None) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                _ => return None,
            }
        }
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// A mount point, and all processes around it.
pub struct Scene {
    dir: PathBuf,
    user: Option<u32>,
    /// Connections that were detached.
    detached: Vec<String>,
    pub actors: Vec<Actor>,
}

impl Scene {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("blockwright-scene-{}-{n}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        fs::create_dir(&dir).expect("a mount point");
        Scene {
            dir,
            user: None,
            detached: Vec::new(),
            actors: Vec::new(),
        }
    }

    /// A scene whose processes belong to this user, as the mount point does.
    pub fn of_user(user: Option<u32>) -> Self {
        let mut scene = Scene::new();
        std::os::unix::fs::chown(&scene.dir, user, user).expect("root may");
        scene.user = user;
        scene
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// As `umount -l`.
    pub fn detach(&mut self) {
        self.detached = connections(&self.dir);
        rustix::mount::unmount(&self.dir, rustix::mount::UnmountFlags::DETACH).expect("mounted");
    }

    /// Starts a process with a role.
    pub fn start(&mut self, role: &str, extra: &str) -> usize {
        let mut command = actor(&self.dir, role, extra);
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let out = child.stdout.take().expect("piped");
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if let Some(said) = line.strip_prefix(SAID)
                    && tell.send(said.to_owned()).is_err()
                {
                    return;
                }
            }
        });
        self.actors.push(Actor { child, lines });
        self.actors.len() - 1
    }

    /// Starts a server, and returns the transport that it runs, or its error.
    pub fn serve(&mut self, extra: &str) -> Result<String, String> {
        let server = self.start("server", extra);
        let said = self.actors[server]
            .hears(&["ready ", "error "], Duration::from_secs(20))
            .expect("the server says something in time");
        match said.split_once(' ') {
            Some(("ready", kind)) => Ok(kind.to_owned()),
            _ => Err(said),
        }
    }
}

/// The device numbers of FUSE mounts at a place.
fn connections(dir: &Path) -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let dir = dir.to_string_lossy();
    mounts
        .lines()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let minor = fields.get(2)?.split_once(':')?.1;
            (*fields.get(4)? == dir).then(|| minor.to_owned())
        })
        .collect()
}

/// Ends these connections. The control file system is mounted at a place of our own for it, so that the machine is
/// left as it was.
fn abort(minors: &[String]) {
    if minors.is_empty() {
        return;
    }
    let Ok(place) = tempfile::tempdir() else {
        return;
    };
    let flags = rustix::mount::MountFlags::empty();
    if rustix::mount::mount("none", place.path(), "fusectl", flags, c"").is_err() {
        return;
    }
    for minor in minors {
        let _ = fs::write(place.path().join(minor).join("abort"), "1");
    }
    let _ = rustix::mount::unmount(place.path(), rustix::mount::UnmountFlags::DETACH);
}

impl Drop for Scene {
    fn drop(&mut self) {
        for actor in &mut self.actors {
            let _ = actor.child.kill();
        }
        abort(&connections(&self.dir));
        // Otherwise they have ended, and the numbers may be others' by now.
        if std::thread::panicking() {
            abort(&self.detached);
        }
        while !connections(&self.dir).is_empty() {
            let flags = rustix::mount::UnmountFlags::DETACH | rustix::mount::UnmountFlags::FORCE;
            if rustix::mount::unmount(&self.dir, flags).is_err() {
                break;
            }
        }
        for actor in &mut self.actors {
            if actor.ends_well(Duration::from_secs(10)).is_none() {
                eprintln!("process {} cannot be ended", actor.child.id());
            }
        }
        let _ = fs::remove_dir(&self.dir);
    }
}
