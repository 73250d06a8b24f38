//! An open volume.

use crate::error::{closed, detached, exception_of_sync};
use crate::place::Place;
use blockwright::{Format, Metadata, VolumeOptions};
use blockwright_ffi::Image;
use parking_lot::RwLock;
use pyo3::prelude::*;
use std::path::PathBuf;

/// Attributes as the Python half takes them apart: mode, inode, links, owner, group, size, blocks, device, and the times in nanoseconds.
pub(crate) type Stat = (
    (u32, u64, u32, u32, u32, u64, u64, u64),
    (i128, i128, i128, Option<i128>),
);

pub(crate) fn stat_of(m: &Metadata) -> Stat {
    let attr = m.attr();
    let nanos =
        |t: blockwright::Timestamp| i128::from(t.secs) * 1_000_000_000 + i128::from(t.nanos);
    (
        (
            m.mode(),
            m.ino(),
            m.nlink(),
            m.uid(),
            m.gid(),
            m.len(),
            m.blocks(),
            m.rdev(),
        ),
        (
            nanos(attr.atime),
            nanos(attr.mtime),
            nanos(attr.ctime),
            attr.crtime.map(nanos),
        ),
    )
}

/// An open volume.
#[pyclass(frozen, module = "blockwright._native")]
pub(crate) struct Volume {
    /// Methods hold it shared, closing exclusively: closing waits for the methods of other threads.
    inner: RwLock<Option<blockwright::Volume>>,
}

impl Volume {
    /// Does something with the volume, without the interpreter.
    pub(crate) fn with<R: Send>(
        &self,
        py: Python<'_>,
        f: impl Send + FnOnce(&blockwright::Volume) -> blockwright::Result<R>,
    ) -> PyResult<R> {
        detached(py, || match &*self.inner.read() {
            Some(volume) => f(volume),
            None => Err(closed("volume")),
        })
    }
}

#[pymethods]
impl Volume {
    #[new]
    #[pyo3(signature = (place, read_only, lock, cache_bytes))]
    fn new(
        py: Python<'_>,
        place: Place,
        read_only: bool,
        lock: bool,
        cache_bytes: Option<u64>,
    ) -> PyResult<Self> {
        let mut options = VolumeOptions::new().read_only(read_only).lock(lock);
        if let Some(bytes) = cache_bytes {
            options = options.cache_bytes(bytes);
        }
        let image = Image::from(place);
        let volume = detached(py, || image.open_volume(&options))?;
        Ok(Volume {
            inner: RwLock::new(Some(volume)),
        })
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        detached(py, || {
            let taken = self.inner.write().take();
            taken.map_or(Ok(()), blockwright::Volume::close)
        })
    }

    #[getter]
    fn closed(&self, py: Python<'_>) -> bool {
        py.detach(|| self.inner.read().is_none())
    }

    #[getter]
    fn read_only(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |v| Ok(v.is_read_only()))
    }

    #[getter]
    fn format(&self, py: Python<'_>) -> PyResult<&'static str> {
        self.with(py, |v| {
            Ok(match v.format() {
                Format::Ext4 => "ext4",
                Format::F2fs => "f2fs",
                _ => "unknown",
            })
        })
    }

    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        let synced = self.with(py, |v| Ok(v.sync()))?;
        synced.map_err(|e| exception_of_sync(&e))
    }

    fn trim(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, blockwright::Volume::trim)
    }

    /// Block size, blocks, free, available; inodes, free; longest name.
    fn statfs(&self, py: Python<'_>) -> PyResult<(u32, u64, u64, u64, u64, u64, u32)> {
        self.with(py, |v| {
            let s = v.statfs()?;
            Ok((
                s.block_bytes,
                s.blocks,
                s.blocks_free,
                s.blocks_available,
                s.files,
                s.files_free,
                s.name_bytes_max,
            ))
        })
    }

    fn stat(&self, py: Python<'_>, path: PathBuf, follow: bool) -> PyResult<Stat> {
        self.with(py, |v| {
            Ok(stat_of(&match follow {
                true => v.metadata(&path)?,
                false => v.symlink_metadata(&path)?,
            }))
        })
    }
}
