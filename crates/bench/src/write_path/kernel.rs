//! The running kernel's ext4 on the same image, through a loop device with direct I/O.

use super::place::Place;
use crate::machine::{have, run};
use crate::peers::{self, Mounted, Peer};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A fresh volume, mounted by the kernel; `None` where that is not possible (no root, no path, no mke2fs).
pub fn mount(place: &Place) -> Result<Option<(Mounted, PathBuf)>, String> {
    let Some(image) = place.path().filter(|_| available(place)) else {
        return Ok(None);
    };
    run(Command::new("mke2fs")
        .args([
            "-q",
            "-F",
            "-t",
            "ext4",
            "-b",
            "4096",
            "-E",
            "nodiscard,lazy_itable_init=0,lazy_journal_init=0",
        ])
        .arg(image))?;
    let mnt = place.dir.join("kernel-mnt");
    let mounted = peers::mount(Peer::Kernel, Path::new(""), image, &mnt)?;
    Ok(Some((mounted, mnt)))
}

/// Whether [`mount`] can work.
pub fn available(place: &Place) -> bool {
    place.path().is_some_and(|p| p.is_file())
        && rustix::process::geteuid().is_root()
        && have("mke2fs")
}

/// How many extents a file of a mounted volume has.
pub fn extents(path: &Path) -> Result<f64, String> {
    let out = Command::new("filefrag")
        .arg(path)
        .output()
        .map_err(|e| format!("filefrag: {e}"))?;
    let text = String::from_utf8_lossy(&out.stdout);
    text.rsplit(": ")
        .next()
        .and_then(|tail| tail.split(' ').next())
        .and_then(|n| n.parse().ok())
        .ok_or_else(|| format!("filefrag said: {text}"))
}

/// Runs fio and gives its write rate in bytes a second.
pub fn fio(arguments: &[String]) -> Result<f64, String> {
    let out = Command::new("fio")
        .args(["--output-format=json", "--group_reporting", "--name=bench"])
        .args(arguments)
        .output()
        .map_err(|e| format!("fio: {e}"))?;
    let text = String::from_utf8_lossy(&out.stdout);
    // Warnings come before the document.
    let json = text.find('{').map_or("", |at| &text[at..]);
    let value: serde_json::Value = serde_json::from_str(json)
        .map_err(|e| format!("fio: {e}: {}", String::from_utf8_lossy(&out.stderr)))?;
    value["jobs"][0]["write"]["bw_bytes"]
        .as_f64()
        .filter(|rate| out.status.success() && *rate > 0.0)
        .ok_or_else(|| format!("fio: {}", String::from_utf8_lossy(&out.stderr)))
}
