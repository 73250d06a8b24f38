//! `debug-sandbox`: a confined process tries to get out. For tests, and for users who want to see it.
//!
//! It is confined exactly as a command or a server is, on a real image; then it makes each attempt and prints a line of two words:
//! what it tried, and `refused` or `SUCCEEDED`, followed by the kernel's answer.

use super::{hold, raise};
use crate::args::{TrialArgs, TrialPlan};
use crate::failure::{Failure, Result};
use crate::output::Out;
use blockwright_device::OpenMode;
use blockwright_device::host::probe::{self, RingProbe};
use blockwright_sandbox::{HostPaths, Plan};
use std::fs::File;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

type Attempt<'a> = (&'a str, Box<dyn FnOnce() -> io::Result<()> + 'a>);

/// Runs `debug-sandbox`.
///
/// # Errors
/// When an attempt succeeded, or the image cannot be opened.
pub fn run(args: &TrialArgs) -> Result<()> {
    let plan = Plan {
        serves: args.plan == TrialPlan::Server,
        starting: Vec::new(),
        host: (args.plan == TrialPlan::Host).then(|| HostPaths {
            read: vec![args.image.clone()],
            write: Vec::new(),
        }),
    };
    // As in a server, whose rings are there before the wall.
    let ring = RingProbe::new();
    hold(&args.image, OpenMode::read_only());
    raise(plan)?;
    // What the wall is for still works.
    let device = super::device(&args.image, OpenMode::read_only())?;
    blockwright_check::ext4::check(device, &blockwright_check::ext4::CheckOptions::default())
        .map_err(Failure::new)?;
    std::thread::Builder::new()
        .spawn(|| ())
        .and_then(|thread| thread.join().map_err(|_| io::Error::other("panicked")))?;
    let mut out = Out::new();
    let mut free = Vec::new();
    for (what, attempt) in attempts(args.plan, ring) {
        out.flush()?;
        match attempt() {
            Ok(()) => {
                writeln!(out, "{what} SUCCEEDED")?;
                free.push(what);
            }
            Err(e) => writeln!(out, "{what} refused: {e}")?,
        }
    }
    out.finish()?;
    if free.is_empty() {
        Ok(())
    } else {
        Err(Failure::new(format_args!(
            "the wall let through: {}",
            free.join(", ")
        )))
    }
}

/// What a confined process must not be able to do: names, and functions that try it.
fn attempts<'a>(plan: TrialPlan, ring: io::Result<RingProbe>) -> Vec<Attempt<'a>> {
    let parent = rustix::process::getppid();
    let parent_number = parent.map_or(1, |pid| pid.as_raw_nonzero().get().cast_unsigned());
    let mut list: Vec<Attempt<'a>> = Vec::new();
    list.push(("open", Box::new(|| File::open("/etc/passwd").map(drop))));
    list.push((
        "create",
        Box::new(|| File::create("/tmp/blockwright-escaped").map(drop)),
    ));
    list.push(("list", Box::new(|| std::fs::read_dir("/").map(drop))));
    // Where paths are open, Landlock looks for the file first.
    if plan != TrialPlan::Host {
        list.push((
            "remove",
            Box::new(|| match std::fs::remove_file("/tmp/blockwright-escaped") {
                // Looked for, and not there: the way was open.
                Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
                result => result,
            }),
        ));
        list.push((
            "look",
            Box::new(|| std::fs::symlink_metadata("/etc").map(drop)),
        ));
    }
    match ring {
        Ok(mut ring) => list.push(("open-by-ring", Box::new(move || ring.open(c"/etc/passwd")))),
        Err(e) => crate::failure::warn(format_args!("this host has no io_uring: {e}")),
    }
    list.push((
        "new-ring",
        Box::new(|| probe::open_through_new_ring(c"/etc/passwd")),
    ));
    list.push(("connect", Box::new(connect)));
    list.push((
        "connect-local",
        Box::new(|| UnixStream::connect("/dev/log").map(drop)),
    ));
    list.push((
        "socket",
        Box::new(|| UdpSocket::bind("127.0.0.1:0").map(drop)),
    ));
    list.push((
        "socket-local",
        Box::new(|| UnixDatagram::unbound().map(drop)),
    ));
    list.push((
        "spawn",
        Box::new(|| Command::new("/bin/true").status().map(drop)),
    ));
    list.push(("fork", Box::new(probe::fork)));
    list.push(("ptrace", Box::new(move || probe::trace(parent_number))));
    list.push((
        "read-memory",
        Box::new(move || probe::read_memory(parent_number)),
    ));
    list.push((
        "kill",
        Box::new(move || match parent {
            Some(pid) => Ok(rustix::process::test_kill_process(pid)?),
            None => Err(io::ErrorKind::NotFound.into()),
        }),
    ));
    list.push((
        "mount",
        Box::new(|| {
            let flags = rustix::mount::MountFlags::empty();
            // On nothing: that it was looked for is enough.
            match rustix::mount::mount("none", "/proc/no-such", "tmpfs", flags, None) {
                Err(rustix::io::Errno::NOENT) => Ok(()),
                result => Ok(result?),
            }
        }),
    ));
    list.push(("become-root", Box::new(become_root)));
    list.push(("map-executable", Box::new(probe::map_executable)));
    list.push(("type", Box::new(probe::type_into_terminal)));
    list.push((
        "dumpable",
        Box::new(|| {
            let dumpable = rustix::process::DumpableBehavior::Dumpable;
            Ok(rustix::process::set_dumpable_behavior(dumpable)?)
        }),
    ));
    // Last: it returns only when it is refused.
    list.push(("exec", Box::new(|| Err(Command::new("/bin/false").exec()))));
    list
}

fn connect() -> io::Result<()> {
    let to = SocketAddr::from(([127, 0, 0, 1], 9));
    match TcpStream::connect_timeout(&to, Duration::from_secs(1)) {
        // A socket was made, and the machine was asked.
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        result => result.map(drop),
    }
}

fn become_root() -> io::Result<()> {
    let root = rustix::process::Uid::ROOT;
    Ok(rustix::thread::set_thread_res_uid(root, root, root)?)
}
