//! The machine: what it is, and how it is brought to a known state.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Builds the program under test.
pub fn build_release(root: &Path) -> Result<PathBuf, String> {
    run(
        Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(["build", "--release", "--quiet", "-p", "blockwright-cli"])
            .current_dir(root),
    )?;
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    Ok(target.join("release/blockwright"))
}

/// A line for the report.
pub fn describe() -> String {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let memory = fs::read_to_string("/proc/meminfo")
        .unwrap_or_default()
        .lines()
        .find_map(|l| l.strip_prefix("MemTotal:").map(|v| v.trim().to_owned()))
        .unwrap_or_default();
    format!("machine: Linux {}, {cpus} CPUs, {memory}", kernel.trim())
}

/// Memory that can be had without swapping, in bytes.
pub fn available_bytes() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = text
        .lines()
        .find_map(|l| l.strip_prefix("MemAvailable:"))
        .and_then(|v| v.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(1 << 20) << 10
}

/// Processor time of all threads of this process so far.
pub fn cpu_seconds() -> f64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
}

/// Runs to the end, quietly; success or a sentence.
pub fn run(command: &mut Command) -> Result<(), String> {
    let out = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()
        .map_err(|e| format!("{:?}: {e}", command.get_program()))?;
    if out.status.success() {
        Ok(())
    } else {
        Err(format!(
            "{command:?}: {}: {}",
            out.status,
            String::from_utf8_lossy(&out.stderr)
        ))
    }
}

/// Everything dirty on disk, then the host's caches dropped (where permitted).
pub fn drop_caches() {
    rustix::fs::sync();
    let _ = fs::write("/proc/sys/vm/drop_caches", "3");
}

/// Everything dirty on disk, so that one run does not pay for the one before.
pub fn sync_all() {
    rustix::fs::sync();
}

/// Whether a program can be run.
pub fn have(tool: &str) -> bool {
    Command::new(tool)
        .arg("-V")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok()
}

/// Seconds since 1970, for names of files.
pub fn stamp() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |since| since.as_secs())
}
