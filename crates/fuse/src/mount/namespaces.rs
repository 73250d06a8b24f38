//! A connection's mounts in other mount namespaces.
//!
//! A namespace that is made while a volume is mounted has the mount, too (`unshare -m`, a container, a service with a
//! private /tmp). Unmounting it here leaves it there: the connection lives on, and the server with it.
//!
//! References: mount_namespaces(7), proc(5).

use super::table::{MountEntry, entries};
use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// Where a connection is mounted in another mount namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// A process in that namespace.
    pub pid: u32,
    /// The mount point, as that process sees it.
    pub point: PathBuf,
}

impl Elsewhere {
    /// The mount point, as this process reaches it.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        let inner = self.point.strip_prefix("/").unwrap_or(&self.point);
        Path::new("/proc")
            .join(self.pid.to_string())
            .join("root")
            .join(inner)
    }
}

/// Finds a process whose mount namespace has the connection with this number mounted. Only processes that the caller may
/// look at are found.
#[must_use]
pub fn mounted_elsewhere(minor: u32) -> Option<Elsewhere> {
    let mut seen = HashSet::new();
    for entry in std::fs::read_dir("/proc").ok()?.flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        let namespace = std::fs::read_link(entry.path().join("ns/mnt"));
        if !namespace.is_ok_and(|namespace| seen.insert(namespace)) {
            continue;
        }
        let Ok(mounts) = std::fs::read(entry.path().join("mountinfo")) else {
            continue;
        };
        if let Some(point) = point_of(&mounts, minor) {
            return Some(Elsewhere { pid, point });
        }
    }
    None
}

/// The mount point of our connection with this number, from the text of a `mountinfo`.
fn point_of(mountinfo: &[u8], minor: u32) -> Option<PathBuf> {
    let ours = |entry: &MountEntry| entry.minor == minor && entry.kind == "fuse.blockwright";
    Some(entries(mountinfo).find(ours)?.point)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_is_found_by_its_number() {
        let table = b"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n\
            2 1 0:40 / /mnt/a\\040b rw,nosuid shared:1 - fuse.blockwright /disk.img rw\n\
            3 1 0:41 / /mnt/c rw - fuse.sshfs x rw\n";
        assert_eq!(point_of(table, 40), Some(PathBuf::from("/mnt/a b")));
        assert_eq!(point_of(table, 41), None, "not ours");
        assert_eq!(point_of(table, 4), None);
        let there = Elsewhere {
            pid: 7,
            point: "/mnt/a".into(),
        };
        assert_eq!(there.path(), Path::new("/proc/7/root/mnt/a"));
    }
}
