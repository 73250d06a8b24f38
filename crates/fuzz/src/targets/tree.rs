//! Walking a volume, reading what is in it. By inodes, not by paths: a path is looked up again for each operation.

use blockwright::{FileType, Volume};
use blockwright_ondisk::ext4::checksum::{CRC32C_INIT, crc32c};
use blockwright_vfs::{Error, ErrorKind, InodeRef, OpenFlags};
use std::ops::ControlFlow;

/// More names are not looked at: a directory may claim any number.
const NAMES_MAX: usize = 400;
/// Deeper directories are not entered: one may be its own ancestor.
const DEPTH_MAX: usize = 12;
/// As much of a file is read at its beginning and its end.
const READ_BYTES: usize = 16 << 10;

/// What a walk met.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Walked {
    /// A line per name: path, kind, size, links. Lines for the beginning and the end of a file: path, offset, checksum.
    pub names: Vec<String>,
    /// Operations that failed.
    pub errors: Vec<String>,
}

impl Walked {
    /// Whether nothing was left out because there is too much.
    pub fn is_whole(&self) -> bool {
        self.names.len() < NAMES_MAX
    }

    fn note<T>(&mut self, path: &str, result: Result<T, Error>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(e) => {
                self.errors.push(format!("{path}: {e}"));
                None
            }
        }
    }
}

/// Reads all there is, within limits.
pub(crate) fn walk(volume: &Volume) -> Walked {
    let (vfs, cred) = (volume.vfs(), volume.cred());
    let mut walked = Walked::default();
    let mut buf = vec![0; READ_BYTES];
    walked.note("/", vfs.statfs());
    let mut left: Vec<(String, usize, InodeRef)> = Vec::new();
    left.extend(
        walked
            .note("/", vfs.root())
            .map(|root| (String::new(), 0, root)),
    );
    while let Some((dir, depth, inode)) = left.pop() {
        let mut names = Vec::new();
        let listed = vfs.readdir(cred, &inode, 0, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                names.push(entry.name.to_vec());
            }
            match names.len() {
                0..NAMES_MAX => ControlFlow::Continue(()),
                _ => ControlFlow::Break(()),
            }
        });
        walked.note(&dir, listed);
        for name in names {
            if walked.names.len() >= NAMES_MAX {
                return walked;
            }
            let path = format!("{dir}/{}", String::from_utf8_lossy(&name));
            let Some(child) = walked.note(&path, vfs.lookup(cred, &inode, &name)) else {
                continue;
            };
            let attr = vfs.stat(&child);
            let size = if attr.kind == FileType::Directory {
                0
            } else {
                attr.size
            };
            walked
                .names
                .push(format!("{path} {:?} {size} {}", attr.kind, attr.nlink));
            for name in walked
                .note(&path, vfs.list_xattr(cred, &child))
                .unwrap_or_default()
            {
                walked.note(&path, vfs.get_xattr(cred, &child, &name));
            }
            match attr.kind {
                FileType::Directory if depth < DEPTH_MAX => left.push((path, depth + 1, child)),
                FileType::Symlink => {
                    walked.note(&path, vfs.read_link(&child));
                }
                FileType::Regular => {
                    let flags = OpenFlags {
                        noatime: true,
                        ..OpenFlags::read_only()
                    };
                    let Some(file) = walked.note(&path, vfs.open(cred, &child, flags)) else {
                        continue;
                    };
                    let mut starts = vec![0];
                    if size > READ_BYTES as u64 {
                        starts.push(size - READ_BYTES as u64);
                    }
                    for start in starts {
                        let read = walked.note(&path, file.read_at(&mut buf, start));
                        let sum = read.map(|n| crc32c(CRC32C_INIT, &buf[..n]));
                        walked
                            .names
                            .extend(sum.map(|sum| format!("{path} {start} {sum:x}")));
                    }
                    match file.seek_hole(1) {
                        Err(e) if e.kind() == ErrorKind::NoData => {}
                        found => drop(walked.note(&path, found)),
                    }
                }
                _ => {}
            }
        }
    }
    walked
}
