//! Volumes on NBD servers that are killed: what the commands that do this share.

use crate::load::Figures;
use crate::scratch::Scratch;
use crate::steps::run_tool;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a server may be away, or take to start.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// Waits until a server answers on its socket.
///
/// # Errors
/// It ended, or took too long.
pub(crate) fn answering(server: &mut Child, socket: &Path, name: &str) -> Result<(), String> {
    let start = Instant::now();
    while UnixStream::connect(socket).is_err() {
        if start.elapsed() > PATIENCE || !matches!(server.try_wait(), Ok(None)) {
            return Err(format!("{name} does not answer"));
        }
        sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Mounts an export. The server stays in the foreground, so that it can be killed.
///
/// # Errors
/// The server ended, or took too long.
pub(crate) fn mount(
    scratch: &Scratch,
    program: &Path,
    address: &str,
    mnt: &Path,
) -> Result<Child, String> {
    let mut command = Command::new(program);
    command.args(["mount", "-f", "-q", address]).arg(mnt);
    let mut server = scratch.start(&mut command, "mount.log")?;
    let start = Instant::now();
    while !is_mounted(mnt) {
        if start.elapsed() > PATIENCE || !matches!(server.try_wait(), Ok(None)) {
            return Err(format!("{address} is not mounted"));
        }
        sleep(Duration::from_millis(20));
    }
    Ok(server)
}

fn is_mounted(mnt: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    mounts.lines().any(|l| l.split(' ').nth(1) == mnt.to_str())
}

/// Kills a server that this command started.
///
/// # Errors
/// The host's.
pub(crate) fn kill(server: &mut Child) -> Result<(), String> {
    server
        .kill()
        .and_then(|()| server.wait())
        .map(drop)
        .map_err(|e| format!("cannot kill process {}: {e}", server.id()))
}

/// What our checker and the format's own find in a copy of a volume.
///
/// # Errors
/// They found something.
pub(crate) fn faultless(program: &Path, format: &str, copy: &Path) -> Result<(), String> {
    run_tool(Command::new(program).args(["check", "-n"]).arg(copy))?;
    match format {
        "ext4" => run_tool(Command::new("e2fsck").arg("-fn").arg(copy)).map(drop),
        _ => fsck_f2fs(copy),
    }
}

/// fsck.f2fs ends well when it finds damage that it was told not to mend.
fn fsck_f2fs(image: &Path) -> Result<(), String> {
    let told = run_tool(Command::new("fsck.f2fs").arg("--dry-run").arg(image))?;
    let bad = |line: &&str| {
        ["[Fail]", "ASSERT", "[FIX]", "[ERR"]
            .iter()
            .any(|word| line.contains(word))
    };
    match told.lines().find(bad) {
        None => Ok(()),
        Some(line) => Err(format!("fsck.f2fs: {line}")),
    }
}

/// Prints figures.
pub(crate) fn tell(format: &str, what: &str, figures: Figures) {
    println!(
        "{format}: {what}: {:.0} s, {:.0} fsyncs/s, {:.1} MB/s, longest write with its fsync {:.2} s",
        figures.seconds,
        figures.syncs as f64 / figures.seconds,
        figures.bytes as f64 / 1e6 / figures.seconds,
        figures.longest.as_secs_f64()
    );
}
