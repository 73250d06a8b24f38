//! Open files: positioned I/O. The cursor is the Python half's.

use crate::error::{closed, detached, exception, exception_of_sync};
use crate::volume::{Stat, Volume, stat_of};
use blockwright::OpenOptions;
use parking_lot::RwLock;
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{PyMemoryView, PySlice};
use std::path::PathBuf;

/// The most that one `readinto` takes, so that the memory beside the caller's buffer is bounded. Raw files may read less than is asked for.
const READ_BYTES_MAX: usize = 4 << 20;

/// An open file.
#[pyclass(frozen, module = "blockwright._native")]
pub(crate) struct File {
    inner: RwLock<Option<blockwright::File>>,
}

impl File {
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        f: impl Send + FnOnce(&blockwright::File) -> blockwright::Result<R>,
    ) -> PyResult<R> {
        detached(py, || match &*self.inner.read() {
            Some(file) => f(file),
            None => Err(closed("file")),
        })
    }
}

#[pymethods]
impl File {
    /// Reads into a view of bytes; how many bytes.
    fn readinto(&self, view: &Bound<'_, PyMemoryView>, offset: u64) -> PyResult<usize> {
        let (py, wanted) = (view.py(), PyBuffer::<u8>::get(view)?.len_bytes());
        // Other threads of Python may use the buffer while the interpreter is released, so the file is read to memory of our own.
        let mut bytes = vec![0; wanted.min(READ_BYTES_MAX)];
        let done = self.with(py, |file| file.read_at(&mut bytes, offset))?;
        let read = view.get_item(PySlice::new(py, 0, done as isize, 1))?;
        PyBuffer::get(&read)?.copy_from_slice(py, &bytes[..done])?;
        Ok(done)
    }

    /// Writes a buffer; how many bytes. `None` for the offset: at the end.
    fn write(&self, py: Python<'_>, buffer: PyBuffer<u8>, offset: Option<u64>) -> PyResult<usize> {
        // As for reading: the bytes must not change while they are written.
        let bytes = buffer.to_vec(py)?;
        self.with(py, |file| match offset {
            Some(offset) => file.write_at(&bytes, offset),
            None => file.append(&bytes).map(|_| bytes.len()),
        })
    }

    fn truncate(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        self.with(py, |file| file.set_len(size))
    }

    fn sync(&self, py: Python<'_>, data_only: bool) -> PyResult<()> {
        let synced = self.with(py, |file| {
            Ok(match data_only {
                true => file.sync_data(),
                false => file.sync_all(),
            })
        })?;
        synced.map_err(|e| exception_of_sync(&e))
    }

    fn stat(&self, py: Python<'_>) -> PyResult<Stat> {
        self.with(py, |file| Ok(stat_of(&file.metadata()?)))
    }

    fn seek_data(&self, py: Python<'_>, offset: u64) -> PyResult<u64> {
        self.with(py, |file| file.seek_data(offset))
    }

    fn seek_hole(&self, py: Python<'_>, offset: u64) -> PyResult<u64> {
        self.with(py, |file| file.seek_hole(offset))
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.inner.write().take()));
    }
}

#[pymethods]
impl Volume {
    #[pyo3(signature = (path, read, write, append, truncate, create, exclusive, mode))]
    #[expect(
        clippy::too_many_arguments,
        reason = "the Python half passes each flag of a mode"
    )]
    fn open(
        &self,
        py: Python<'_>,
        path: PathBuf,
        read: bool,
        write: bool,
        append: bool,
        truncate: bool,
        create: bool,
        exclusive: bool,
        mode: u32,
    ) -> PyResult<File> {
        let mut options = OpenOptions::new();
        options
            .read(read)
            .write(write)
            .truncate(truncate)
            .create(create)
            .create_new(exclusive)
            .mode(mode & 0o7777);
        if append {
            options.append(true);
        }
        let file = self.with(py, |v| options.open(v, &path))?;
        // As the host's open(2) for reading succeeds on directories, and Python's does not.
        let is_dir = file.metadata().map_err(|e| exception(&e))?.is_dir();
        if is_dir {
            let error = blockwright::Error::new(blockwright::ErrorKind::IsDirectory, "a directory");
            return Err(exception(&error.at(&path)));
        }
        Ok(File {
            inner: RwLock::new(Some(file)),
        })
    }
}
