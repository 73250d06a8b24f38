//! Walking a volume, reading what is in it.

use blockwright::{ErrorKind, FileType, Volume};
use std::path::PathBuf;

/// More names are not looked at: a directory may claim any number.
const NAMES_MAX: usize = 400;
/// Deeper directories are not entered: one may be its own ancestor.
const DEPTH_MAX: usize = 12;
/// As much of a file is read at its beginning and its end.
const READ_BYTES: usize = 16 << 10;

/// What a walk met.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Walked {
    /// A line per name: path, kind, size, links.
    pub names: Vec<String>,
    /// Operations that failed.
    pub errors: Vec<String>,
}

impl Walked {
    fn note<T>(&mut self, path: &std::path::Path, result: blockwright::Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(e) => {
                self.errors.push(format!("{}: {e}", path.display()));
                None
            }
        }
    }
}

/// Reads all there is, within limits.
pub(crate) fn walk(volume: &Volume) -> Walked {
    let mut walked = Walked::default();
    let mut left = vec![PathBuf::from("/")];
    let mut buf = vec![0; READ_BYTES];
    walked.note("/".as_ref(), volume.statfs());
    while let Some(dir) = left.pop() {
        let Some(entries) = walked.note(&dir, volume.read_dir(&dir)) else {
            continue;
        };
        for entry in entries {
            let Some(entry) = walked.note(&dir, entry) else {
                break;
            };
            if walked.names.len() == NAMES_MAX {
                return walked;
            }
            let path = entry.path();
            let Some(meta) = walked.note(&path, volume.symlink_metadata(&path)) else {
                continue;
            };
            let (kind, size, links) = (meta.file_type(), meta.len(), meta.nlink());
            let size = if kind == FileType::Directory { 0 } else { size };
            walked
                .names
                .push(format!("{} {kind:?} {size} {links}", path.display()));
            for name in walked
                .note(&path, volume.list_xattr(&path))
                .unwrap_or_default()
            {
                walked.note(&path, volume.get_xattr(&path, name));
            }
            match kind {
                FileType::Directory if path.components().count() <= DEPTH_MAX => left.push(path),
                FileType::Symlink => {
                    walked.note(&path, volume.read_link(&path));
                }
                FileType::Regular => {
                    let Some(file) = walked.note(&path, volume.open_file(&path)) else {
                        continue;
                    };
                    walked.note(&path, file.read_at(&mut buf, 0));
                    if size > READ_BYTES as u64 {
                        walked.note(&path, file.read_at(&mut buf, size - READ_BYTES as u64));
                    }
                    walked.note(&path, file.extents());
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
