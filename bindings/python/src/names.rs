//! Names and attributes: methods of the volume that take paths.

use crate::error::exception;
use crate::volume::Volume;
use blockwright::{DirStream, FileType, RenameMode, Times, Timestamp, XattrMode};
use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::ffi::OsString;
use std::path::PathBuf;

/// The names of kinds.
const KINDS: [(FileType, &str); 7] = [
    (FileType::Regular, "file"),
    (FileType::Directory, "directory"),
    (FileType::Symlink, "symlink"),
    (FileType::CharDevice, "char"),
    (FileType::BlockDevice, "block"),
    (FileType::Fifo, "fifo"),
    (FileType::Socket, "socket"),
];

fn kind_name(kind: FileType) -> &'static str {
    let found = KINDS.iter().find(|(known, _)| *known == kind);
    found.map_or("unknown", |(_, name)| name)
}

fn stamp(nanos: i128) -> PyResult<Timestamp> {
    const SECOND: i128 = 1_000_000_000;
    let secs = i64::try_from(nanos.div_euclid(SECOND))
        .map_err(|_| PyValueError::new_err("a time that no volume can have"))?;
    Ok(Timestamp {
        secs,
        nanos: nanos.rem_euclid(SECOND) as u32,
    })
}

/// The entries of a directory: name, inode number and kind.
#[pyclass(frozen, module = "blockwright._native")]
pub(crate) struct Listing {
    stream: Mutex<DirStream>,
}

#[pymethods]
impl Listing {
    fn __iter__(this: PyRef<'_, Self>) -> PyRef<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<(OsString, u64, &'static str)>> {
        let next = py.detach(|| {
            let mut stream = self.stream.lock();
            let entry = stream.next()?;
            Some(entry.and_then(|entry| Ok((stream.file_type(&entry)?, entry))))
        });
        next.transpose()
            .map_err(|e| exception(&e))
            .map(|found| found.map(|(kind, entry)| (entry.name, entry.ino, kind_name(kind))))
    }
}

#[pymethods]
impl Volume {
    fn listdir(&self, py: Python<'_>, path: PathBuf) -> PyResult<Listing> {
        let stream = self.with(py, |v| v.dir_stream(&path))?;
        Ok(Listing {
            stream: Mutex::new(stream),
        })
    }

    fn mkdir(&self, py: Python<'_>, path: PathBuf, mode: u32) -> PyResult<()> {
        self.with(py, |v| v.create_dir_mode(&path, mode & 0o7777))
    }

    fn makedirs(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.with(py, |v| v.create_dir_all(&path))
    }

    fn mknod(
        &self,
        py: Python<'_>,
        path: PathBuf,
        kind: &str,
        mode: u32,
        rdev: u64,
    ) -> PyResult<()> {
        let Some((kind, _)) = KINDS.iter().find(|(_, name)| *name == kind) else {
            return Err(PyValueError::new_err(format!(
                "{kind:?} is no kind of file"
            )));
        };
        self.with(py, |v| v.mknod(&path, *kind, mode & 0o7777, rdev))
    }

    fn symlink(&self, py: Python<'_>, target: PathBuf, path: PathBuf) -> PyResult<()> {
        self.with(py, |v| v.symlink(&target, &path))
    }

    fn readlink(&self, py: Python<'_>, path: PathBuf) -> PyResult<OsString> {
        self.with(py, |v| Ok(v.read_link(&path)?.into_os_string()))
    }

    fn link(&self, py: Python<'_>, original: PathBuf, path: PathBuf) -> PyResult<()> {
        self.with(py, |v| v.hard_link(&original, &path))
    }

    fn unlink(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.with(py, |v| v.remove_file(&path))
    }

    fn rmdir(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.with(py, |v| v.remove_dir(&path))
    }

    fn rmtree(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.with(py, |v| v.remove_dir_all(&path))
    }

    fn rename(&self, py: Python<'_>, from: PathBuf, to: PathBuf, mode: &str) -> PyResult<()> {
        let mode = match mode {
            "replace" => RenameMode::Replace,
            "noreplace" => RenameMode::NoReplace,
            "exchange" => RenameMode::Exchange,
            _ => return Err(PyValueError::new_err(format!("{mode:?} is no mode"))),
        };
        self.with(py, |v| v.rename_with(&from, &to, mode))
    }

    fn copy(&self, py: Python<'_>, from: PathBuf, to: PathBuf) -> PyResult<u64> {
        self.with(py, |v| v.copy(&from, &to))
    }

    fn chmod(&self, py: Python<'_>, path: PathBuf, mode: u32) -> PyResult<()> {
        self.with(py, |v| v.set_permissions(&path, mode))
    }

    fn chown(
        &self,
        py: Python<'_>,
        path: PathBuf,
        uid: Option<u32>,
        gid: Option<u32>,
        follow: bool,
    ) -> PyResult<()> {
        self.with(py, |v| match follow {
            true => v.chown(&path, uid, gid),
            false => v.lchown(&path, uid, gid),
        })
    }

    fn utime(
        &self,
        py: Python<'_>,
        path: PathBuf,
        atime: Option<i128>,
        mtime: Option<i128>,
        follow: bool,
    ) -> PyResult<()> {
        let mut times = Times::new();
        if let Some(t) = atime {
            times = times.accessed_at(stamp(t)?);
        }
        if let Some(t) = mtime {
            times = times.modified_at(stamp(t)?);
        }
        self.with(py, |v| match follow {
            true => v.set_times(&path, times),
            false => v.set_symlink_times(&path, times),
        })
    }

    fn getxattr<'py>(
        &self,
        py: Python<'py>,
        path: PathBuf,
        name: OsString,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let value = self.with(py, |v| v.get_xattr(&path, &name))?;
        Ok(PyBytes::new(py, &value))
    }

    fn setxattr(
        &self,
        py: Python<'_>,
        path: PathBuf,
        name: OsString,
        value: Vec<u8>,
        mode: &str,
    ) -> PyResult<()> {
        let mode = match mode {
            "any" => XattrMode::Any,
            "create" => XattrMode::Create,
            "replace" => XattrMode::Replace,
            _ => return Err(PyValueError::new_err(format!("{mode:?} is no mode"))),
        };
        self.with(py, |v| v.set_xattr(&path, &name, &value, mode))
    }

    fn removexattr(&self, py: Python<'_>, path: PathBuf, name: OsString) -> PyResult<()> {
        self.with(py, |v| v.remove_xattr(&path, &name))
    }

    fn listxattr(&self, py: Python<'_>, path: PathBuf) -> PyResult<Vec<OsString>> {
        self.with(py, |v| v.list_xattr(&path))
    }
}
