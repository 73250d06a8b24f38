//! Finds the tools, privileges and kernel features that tests of all rooms need before they begin.
//!
//! A test that cannot run says so in a line of its own on standard error, past the test harness, which would keep
//! it to itself; `cargo xtask test` counts these tests as skipped, not as passed. Where `CI` is set a missing
//! oracle fails the test. The line begins with [`MARK`] and names the test.
//!
//! Not responsible for: running oracles and judging what they say. But what one needs to run on this machine is known here.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

/// How the line of a test that cannot run begins; the test's name and a colon follow.
pub const MARK: &str = "SKIPPED ";

/// Whether a missing oracle is a failure: in CI.
#[must_use]
pub fn required() -> bool {
    std::env::var_os("CI").is_some()
}

/// Says that the running test ends here, because of something that this host may lack even in CI (files of
/// 16 TiB, a kernel's module).
pub fn leave(why: &str) {
    let thread = std::thread::current();
    // The harness runs each test in a thread of its name; with one thread it may be the main one.
    let test = match thread.name() {
        Some(name) if name != "main" => name,
        _ => "a test",
    };
    // One write, so that lines of several tests do not mix.
    let line = format!("{MARK}{test}: {why}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Says that the running test cannot run.
///
/// # Panics
/// In CI.
pub fn skip(why: &str) {
    assert!(!required(), "must not be skipped in CI: {why}");
    leave(why);
}

/// `there`; when it is not, says that the running test is skipped for lack of `what`.
///
/// # Panics
/// In CI, when it is not.
#[must_use]
pub fn available(what: &str, there: bool) -> bool {
    if !there {
        skip(&format!("{what} is missing"));
    }
    there
}

/// The search path with the directories of system tools, which users often lack.
#[must_use]
pub fn search_path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/local/sbin:/usr/sbin:/sbin");
    path
}

/// Where a program is.
#[must_use]
pub fn find(tool: &str) -> Option<PathBuf> {
    std::env::split_paths(&search_path())
        .map(|dir| dir.join(tool))
        .find(|path| path.is_file())
}

/// Whether all these programs are installed; the running test is skipped when one is not.
///
/// # Panics
/// In CI, when one is missing.
#[must_use]
pub fn have(tools: &[&str]) -> bool {
    let missing: Vec<&str> = tools
        .iter()
        .copied()
        .filter(|tool| find(tool).is_none())
        .collect();
    available(&missing.join(", "), missing.is_empty())
}

/// What the environment of `linux.uml` has to have on this machine, for [`std::process::Command::envs`]: user-mode-linux ends at once on processors whose
/// extended state is larger than it knows (AMX), unless a library of ours completes what it hands to ptrace(2) (`uml_xstate.c`).
#[must_use]
pub fn uml_environment() -> Option<(&'static str, PathBuf)> {
    let library = PathBuf::from(concat!(env!("OUT_DIR"), "/uml_xstate.so"));
    library.is_file().then_some(("LD_PRELOAD", library))
}

/// Whether this process runs as root, by the owner of what it makes in `/proc`.
#[must_use]
pub fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}

/// Whether root runs this; the running test is skipped otherwise.
///
/// # Panics
/// In CI, when not.
#[must_use]
pub fn root() -> bool {
    available("root's privilege", is_root())
}

/// Whether `/dev/fuse` can be opened; the running test is skipped otherwise.
///
/// # Panics
/// In CI, when not.
#[must_use]
pub fn fuse() -> bool {
    let opened = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/fuse");
    available("/dev/fuse", opened.is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_found_beside_the_path() {
        assert!(find("sh").is_some());
        assert!(find("no-such-tool-anywhere").is_none());
    }

    #[test]
    fn what_is_there_is_not_skipped() {
        assert!(available("nothing", true));
        assert!(have(&["sh"]));
    }
}
