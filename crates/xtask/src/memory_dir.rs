//! A directory in memory for what the tests keep in files. Most of them write an image, run e2fsck or fsck.f2fs on it, and throw it away; on a disk
//! each such step waits for an fsync. Tests of I/O on a real disk use the folder of the build.

use crate::tools::output;
use std::fs;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

const SHARED_MEMORY: &str = "/dev/shm";
/// Begins the directory's name. The number of the process follows.
const PREFIX: &str = "blockwright-tests-";
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
    remove_leftovers(Path::new(SHARED_MEMORY));
    let made = tempfile::Builder::new()
        .prefix(&format!("{PREFIX}{}-", std::process::id()))
        .tempdir_in(SHARED_MEMORY);
    made.ok()
}

/// Removes directories of runs that were killed: no process has the number in their names.
fn remove_leftovers(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some((id, _)) = name
            .to_str()
            .and_then(|name| name.strip_prefix(PREFIX)?.split_once('-'))
        else {
            continue;
        };
        if id.parse::<u32>().is_ok() && !Path::new("/proc").join(id).exists() {
            // One of another user stays.
            let _removed = fs::remove_dir_all(entry.path());
        }
    }
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
    fn directories_of_killed_runs_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let mut ended = Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        let own = format!("{PREFIX}{}-a", std::process::id());
        let gone = format!("{PREFIX}{}-b", ended.id());
        let others = [own.as_str(), "blockwright-tests-", "other-1-a"];
        for name in others.into_iter().chain([gone.as_str()]) {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        remove_leftovers(dir.path());
        assert!(!dir.path().join(gone).exists());
        for name in others {
            assert!(dir.path().join(name).exists(), "{name}");
        }
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
