//! The kernel's writeback and readahead knobs for one mount (its "backing device info").
//!
//! FUSE mounts start with a strict dirty limit and 128 KiB of readahead. The first makes random
//! buffered writes about three times slower here, the second streaming reads. Both need root to change.

use std::path::{Path, PathBuf};

/// Relaxes the dirty limit and raises the readahead of the mount at `mountpoint`. Returns a hint for
/// people when something could not be set; nothing depends on it but speed.
///
/// Call it after INIT was answered: the kernel caps the readahead then.
#[must_use]
pub fn tune_bdi(mountpoint: &Path, read_ahead_kib: u32) -> Option<String> {
    let dev = match rustix::fs::stat(mountpoint) {
        Ok(stat) => stat.st_dev,
        Err(e) => {
            return Some(format!(
                "{}: cannot look at the mount to tune it: {e}",
                mountpoint.display()
            ));
        }
    };
    let dir = PathBuf::from(format!(
        "/sys/class/bdi/{}:{}",
        rustix::fs::major(dev),
        rustix::fs::minor(dev)
    ));
    let settings = [
        ("strict_limit", "0".to_owned()),
        ("max_ratio", "100".to_owned()),
        ("read_ahead_kb", read_ahead_kib.to_string()),
    ];
    let mut missed = Vec::new();
    for (name, value) in settings {
        match std::fs::write(dir.join(name), &value) {
            Ok(()) => {}
            // Kernels before 6.2 have no strict_limit file; they had no such limit to lift either.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && name == "strict_limit" => {}
            Err(_) => missed.push(format!("echo {value} > {}", dir.join(name).display())),
        }
    }
    if missed.is_empty() {
        return None;
    }
    Some(format!(
        "buffered writes and streaming reads are faster when root runs: {}",
        missed.join("; ")
    ))
}
