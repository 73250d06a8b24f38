//! A file system in memory for what the tests keep in files. Most of them write an image, run e2fsck or fsck.f2fs on it, and throw it away; on a disk
//! each such step waits for an fsync. Tests of I/O on a real disk use the folder of the build.
//!
//! It is mounted in the host's temporary directory, which takes root. `/dev/shm` is no place for it: Linux in user mode has the host's tree as its own,
//! with another `/dev` over it.

use crate::guard::quiet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What memory has to be free: several times what the largest tests keep.
const ROOM: u64 = 8 << 30;
/// Begins the directory's name. The number of the process follows.
const PREFIX: &str = "blockwright-tests-";

/// It goes with the value.
pub(crate) struct MemoryDir(PathBuf);

impl MemoryDir {
    /// `None` without root, where memory is short, and where `TMPDIR` names a directory.
    pub(crate) fn new() -> Option<Self> {
        let temporary = std::env::temp_dir();
        remove_leftovers(&temporary);
        let memory = fs::read_to_string("/proc/meminfo").ok()?;
        if available(&memory)? < ROOM || std::env::var_os("TMPDIR").is_some() {
            return None;
        }
        let dir = temporary.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&dir).ok()?;
        // Removed with the value also when it cannot be mounted.
        let made = MemoryDir(dir);
        let options = "mode=1777,nosuid,nodev";
        let mounted = run("mount", &["-t", "tmpfs", "-o", options, PREFIX], &made.0);
        mounted.then_some(made)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for MemoryDir {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

/// Whether a command succeeds on a directory.
fn run(program: &str, args: &[&str], dir: &Path) -> bool {
    dir.to_str()
        .is_some_and(|dir| quiet(program, &[args, &[dir]].concat()))
}

/// Unmounts what is there, also if a process has a file of it open, and removes the directory, which is empty then.
fn remove(dir: &Path) {
    while run("umount", &["--lazy"], dir) {}
    // What is in it, if it was never mounted, is not ours.
    let _removed = fs::remove_dir(dir);
}

/// Removes the directories of runs that were killed: no process has the number in their names.
fn remove_leftovers(temporary: &Path) {
    for entry in fs::read_dir(temporary).into_iter().flatten().flatten() {
        // What another user has put there may be a link to what must stay mounted.
        let own = fs::metadata("/proc/self").is_ok_and(|own| {
            let left = entry.metadata();
            left.is_ok_and(|left| left.is_dir() && left.uid() == own.uid())
        });
        let name = entry.file_name();
        let id = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        let id = id.filter(|id| id.parse::<u32>().is_ok());
        if own && id.is_some_and(|id| !Path::new("/proc").join(id).exists()) {
            remove(&entry.path());
        }
    }
}

/// Bytes that programs can have without swapping.
fn available(memory: &str) -> Option<u64> {
    let line = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn directories_of_killed_runs_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let mut ended = Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        let own = format!("{PREFIX}{}", std::process::id());
        let gone = dir.path().join(format!("{PREFIX}{}", ended.id()));
        fs::create_dir(&gone).unwrap();
        if blockwright_oracles::is_root() {
            // In a container that refuses it, an empty directory has to do.
            if run("mount", &["-t", "tmpfs", "none"], &gone) {
                fs::write(gone.join("file"), "left").unwrap();
            }
        }
        let link = format!("{PREFIX}{}", u32::MAX);
        std::os::unix::fs::symlink(dir.path(), dir.path().join(&link)).unwrap();
        let others = [own.as_str(), PREFIX, "other-1"];
        for name in others {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        remove_leftovers(dir.path());
        assert!(!gone.exists());
        assert!(dir.path().join(link).is_symlink());
        for name in others {
            assert!(dir.path().join(name).exists(), "{name}");
        }
    }

    #[test]
    fn free_memory_is_read() {
        let memory = "MemTotal:       24684096 kB\nMemAvailable:    9000000 kB\n";
        assert_eq!(available(memory), Some(9_000_000 << 10));
        assert_eq!(available("MemTotal: 1 kB"), None);
    }
}
