//! A directory in memory for what the tests keep in files. Most of them write an image, run e2fsck or fsck.f2fs on it, and throw it away; on a disk
//! each such step waits for an fsync. Tests of I/O on a real disk use the folder of the build.

use crate::tools::output;
use std::fs;
use std::process::Command;
use tempfile::TempDir;

const SHARED_MEMORY: &str = "/dev/shm";
/// What has to be free, in the file system and in memory: several times what the largest tests keep.
const ROOM: u64 = 8 << 30;

/// Makes the directory, for this user alone; it goes with the value. `None` where memory is short, and where `TMPDIR` names a directory.
pub(crate) fn new() -> Option<TempDir> {
    let mounts = fs::read_to_string("/proc/mounts").ok()?;
    let memory = fs::read_to_string("/proc/meminfo").ok()?;
    let free = output(Command::new("df").args(["--output=avail", "-B1", SHARED_MEMORY])).ok()?;
    let fits = is_usable(&mounts) && available(&memory)? >= ROOM && last_number(&free)? >= ROOM;
    if !fits || std::env::var_os("TMPDIR").is_some() {
        return None;
    }
    let made = tempfile::Builder::new()
        .prefix("blockwright-tests-")
        .tempdir_in(SHARED_MEMORY);
    made.ok()
}

/// Whether it is a tmpfs from which programs can be started: user-mode Linux maps its memory there.
fn is_usable(mounts: &str) -> bool {
    let line = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let [_, SHARED_MEMORY, kind, options, ..] = words[..] else {
            return None;
        };
        Some(kind == "tmpfs" && options.split(',').all(|option| option != "noexec"))
    };
    // The last one is on top.
    mounts.lines().filter_map(line).next_back() == Some(true)
}

/// Bytes that programs can have without swapping.
fn available(memory: &str) -> Option<u64> {
    let line = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib << 10)
}

fn last_number(text: &str) -> Option<u64> {
    text.split_whitespace().next_back()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_tmpfs_with_programs_is_usable() {
        let good = "tmpfs /dev/shm tmpfs rw,nosuid 0 0\n";
        let bad = "shm /dev/shm tmpfs rw,noexec,size=65536k 0 0\n";
        assert!(is_usable(good));
        assert!(!is_usable(bad));
        assert!(!is_usable("/dev/vda / ext4 rw 0 0\n"));
        assert!(!is_usable(&format!("{good}{bad}")));
        assert!(is_usable(&format!("{bad}{good}")));
    }

    #[test]
    fn free_memory_is_read() {
        let memory = "MemTotal:       24684096 kB\nMemAvailable:    9000000 kB\n";
        assert_eq!(available(memory), Some(9_000_000 << 10));
        assert_eq!(available("MemTotal: 1 kB"), None);
        assert_eq!(
            last_number("     Avail\n25276514304\n"),
            Some(25_276_514_304)
        );
    }
}
