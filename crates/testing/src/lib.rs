//! Helpers that the test programs of several crates share. No product code imports this crate.
//!
//! Here: seeds, and a guard that turns a hang or a panic in any of the library's threads into a failure with a name.
//! [`testing`] compares volumes with other programs' view of them, [`uml`] boots a Linux with f2fs, and [`lab`] damages volumes and
//! asks the checkers about them.

#![forbid(unsafe_code)]
#![allow(
    missing_docs,
    clippy::new_without_default,
    clippy::should_implement_trait,
    reason = "helpers of tests"
)]

pub mod f2fs;
pub mod heart;
pub mod lab;
pub mod quota;
pub mod testing;
pub mod uml;

use blockwright_device::sim::rng::SplitMix64;
use std::panic::AssertUnwindSafe;
use std::sync::mpsc;
use std::sync::{Mutex, Once};
use std::time::Duration;

/// The seed of a run: `BLOCKWRIGHT_SEED`, or the test's own. Printed, so that a failure can be repeated.
pub fn seed(own: u64) -> u64 {
    let seed = std::env::var("BLOCKWRIGHT_SEED")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(own);
    eprintln!("BLOCKWRIGHT_SEED={seed}");
    seed
}

/// A number below `limit`.
pub fn below(rng: &mut SplitMix64, limit: u64) -> u64 {
    rng.next_u64() % limit.max(1)
}

/// Panics of threads other than those of the test harness.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());
static HOOK: Once = Once::new();

fn panics() -> std::sync::MutexGuard<'static, Vec<String>> {
    PANICS
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn watch_panics() {
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let thread = std::thread::current();
            let name = thread.name().unwrap_or("a thread without a name");
            // The library's threads have such names; cases report on their own.
            if name.starts_with("bw-")
                || name.starts_with("jbd")
                || name.starts_with("ext4")
                || name.starts_with("f2fs")
            {
                panics().push(format!("{name}: {info}"));
            }
            before(info);
        }));
    });
}

/// Runs a case in a separate thread. Fails with the case's name when the case or a thread of the library
/// panics, or when it takes longer than `limit`.
pub fn guarded<R: Send + 'static>(
    what: &str,
    limit: Duration,
    case: impl FnOnce() -> R + Send + 'static,
) -> R {
    watch_panics();
    let (tell, told) = mpsc::channel();
    std::thread::Builder::new()
        .name(format!("case {what}"))
        .spawn(move || {
            let result = std::panic::catch_unwind(AssertUnwindSafe(case));
            // The waiting thread may have given up.
            let _ = tell.send(result);
        })
        .expect("a thread");
    let result = match told.recv_timeout(limit) {
        Ok(Ok(result)) => result,
        Ok(Err(panic)) => {
            let text = panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string))
                .unwrap_or_default();
            panic!("{what}: panicked: {text}");
        }
        Err(_) => panic!("{what}: not finished within {limit:?}"),
    };
    let others = std::mem::take(&mut *panics());
    assert!(others.is_empty(), "{what}: {}", others.join("\n"));
    result
}

/// The most memory this process ever had, in bytes.
pub fn peak_memory() -> u64 {
    memory("VmHWM:")
}

/// Starts [`peak_memory`] again from what is in use now.
pub fn reset_peak_memory() {
    // Where this is not allowed, the peak is that of the whole run: larger, never smaller.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// The memory this process has now, in bytes.
pub fn resident_memory() -> u64 {
    memory("VmRSS:")
}

fn memory(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|l| l.strip_prefix(field))
        .and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok())
        .unwrap_or(0)
        * 1024
}

/// Whether a tool is there. Missing on a user's machine: said loudly; in CI: a failure.
pub fn have_tool(tool: &str) -> bool {
    blockwright_oracles::have(&[tool])
}

/// Makes an f2fs volume with mkfs.f2fs.
pub fn mkfs_f2fs(image: &std::path::Path, features: &str, bytes: u64) {
    let file = std::fs::File::create(image).expect("an image");
    file.set_len(bytes).expect("a size");
    let mut mkfs = std::process::Command::new("mkfs.f2fs");
    mkfs.arg("-q");
    if !features.is_empty() {
        mkfs.args(["-O", features]);
    }
    if features.split(',').any(|feature| feature == "casefold") {
        // Without an encoding mkfs.f2fs makes a volume that nothing mounts for writing.
        mkfs.args(["-C", "utf8"]);
    }
    let out = mkfs.arg(image).output().expect("mkfs.f2fs runs");
    assert!(out.status.success(), "{out:?}");
}

/// fsck.f2fs must find nothing and propose nothing.
pub fn assert_fsck_f2fs_clean(image: &std::path::Path) {
    let out = std::process::Command::new("fsck.f2fs")
        .arg("--dry-run")
        .arg(image)
        .output()
        .expect("fsck.f2fs runs");
    let text = String::from_utf8_lossy(&out.stdout);
    let bad: Vec<&str> = text
        .lines()
        .filter(|l| {
            ["[Fail]", "ASSERT", "FIX", "[ERR", "unexpected"]
                .iter()
                .any(|w| l.contains(w))
        })
        .collect();
    assert!(
        out.status.success() && bad.is_empty(),
        "fsck.f2fs: {}\n{}",
        out.status,
        bad.join("\n")
    );
}
