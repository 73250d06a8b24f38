//! Steps of the commands that chain programs: run one, write a file, install what is missing.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// What a program prints. Its errors go to ours.
///
/// # Errors
/// It cannot be run, or fails.
pub(crate) fn run_tool(command: &mut Command) -> Result<String, String> {
    let out = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("{command:?}: {e}"))?;
    match out.status.success() {
        true => Ok(String::from_utf8_lossy(&out.stdout).into_owned()),
        false => Err(format!("{command:?}: {}", out.status)),
    }
}

/// A result of the host, with the path in its error.
///
/// # Errors
/// The host's.
pub(crate) fn file<T>(path: &Path, done: std::io::Result<T>) -> Result<T, String> {
    done.map_err(|e| format!("{}: {e}", path.display()))
}

/// Writes a file, and makes its folder.
///
/// # Errors
/// The host's.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), String> {
    if let Some(parent) = path.parent() {
        file(parent, fs::create_dir_all(parent))?;
    }
    file(path, fs::write(path, text))
}

/// Installs what is missing, as root on Debian. Each item is a program or a file, and the package with it.
///
/// # Errors
/// apt-get's.
pub(crate) fn install(needed: &[(&str, &str)]) -> Result<(), String> {
    let path = std::env::var("PATH").unwrap_or_default();
    let there = |name: &str| {
        Path::new(name).is_absolute() && Path::new(name).exists()
            || format!("{path}:/usr/sbin")
                .split(':')
                .any(|dir| Path::new(dir).join(name).exists())
    };
    let missing: Vec<&str> = needed
        .iter()
        .filter(|(name, _)| !there(name))
        .map(|(_, package)| *package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    println!("installing {}", missing.join(", "));
    let mut command = Command::new("apt-get");
    command
        .args(["install", "-y", "-qq", "--no-install-recommends"])
        .args(&missing);
    run_tool(command.env("DEBIAN_FRONTEND", "noninteractive")).map(drop)
}
