//! Running cargo, and installing the tools of tests that come as crates.

use crate::workspace;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Runs cargo with these arguments and gives its exit code on.
pub(crate) fn cargo(first: &[&str], rest: &[String]) -> ExitCode {
    cargo_with(first, rest, &[])
}

/// The same with more in its environment.
pub(crate) fn cargo_with(first: &[&str], rest: &[String], env: &[(&str, &str)]) -> ExitCode {
    let status = Command::new(cargo_path())
        .args(first)
        .args(rest)
        .envs(env.iter().copied())
        .current_dir(workspace())
        .status();
    match status {
        Ok(s) => ExitCode::from(u8::try_from(s.code().unwrap_or(1)).unwrap_or(1)),
        Err(e) => {
            eprintln!("cannot run cargo: {e}");
            ExitCode::FAILURE
        }
    }
}

/// What a command prints, run at the root of the workspace.
///
/// # Errors
/// Its error messages, when it cannot be run or fails.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    output_in(command, &workspace())
}

/// As [`output`], in another folder.
///
/// # Errors
/// As [`output`].
pub(crate) fn output_in(command: &mut Command, dir: &Path) -> Result<String, String> {
    let out = command
        .current_dir(dir)
        .output()
        .map_err(|e| e.to_string())?;
    match out.status.success() {
        true => Ok(String::from_utf8_lossy(&out.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&out.stderr).into_owned()),
    }
}

/// What the compiler says of itself under this key.
///
/// # Errors
/// It cannot be run, or does not say this.
pub(crate) fn compiler(key: &str) -> Result<String, String> {
    let told = output(Command::new("rustc").arg("-vV"))?;
    let found = told
        .lines()
        .find_map(|l| l.strip_prefix(key)?.strip_prefix(": "));
    let found = found.ok_or_else(|| format!("rustc -vV: no {key}"))?;
    Ok(found.to_owned())
}

/// The compiler's host, as a target.
///
/// # Errors
/// As [`compiler`].
pub(crate) fn host() -> Result<String, String> {
    compiler("host")
}

/// Whether this program is found in `PATH`.
pub(crate) fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// Cargo's own folder: crates that were downloaded, and databases of its tools.
pub(crate) fn cargo_home() -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cargo");
    std::env::var_os("CARGO_HOME").map_or_else(home, |dir| workspace().join(dir))
}

/// The cargo that runs us.
pub(crate) fn cargo_path() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// Where the suites' programs are: `target/tools/bin`.
pub(crate) fn tools_dir() -> PathBuf {
    workspace().join("target/tools")
}

/// Test suites that other people keep, installed once into `target/tools`. What they do is mostly the kernel's work, so they
/// are compiled quickly and not to run fast.
const SUITES: [(&str, &str); 2] = [("pjdfstest", "0.2.2"), ("fsx", "0.3.2")];

/// Installs the suites that are not there yet.
///
/// # Errors
/// The name of the suite that could not be installed.
pub(crate) fn install_suites() -> Result<(), String> {
    // One folder for both: they have crates in common.
    let compiled = tools_dir().join("compiled");
    for (name, version) in SUITES {
        if tools_dir().join("bin").join(name).exists() {
            continue;
        }
        eprintln!("xtask: installing {name} {version}");
        let status = Command::new(cargo_path())
            .args(["install", "--quiet", "--locked"])
            .args(["--config", "profile.release.opt-level=0"])
            .args(["--config", "profile.release.lto=false"])
            .args(["--config", "profile.release.codegen-units=16"])
            .arg("--target-dir")
            .arg(&compiled)
            .arg("--root")
            .arg(tools_dir())
            .args(["--version", version, name])
            .current_dir(std::env::temp_dir())
            .status()
            .map_err(|e| format!("{name}: {e}"))?;
        if !status.success() {
            return Err(format!("{name}: cargo install failed"));
        }
    }
    match std::fs::remove_dir_all(&compiled) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("{}: {e}", compiled.display()))
        }
        _ => Ok(()),
    }
}
