//! Errors of the library as Python exceptions: `OSError` with an errno, so that `FileNotFoundError` and its like come out.

use blockwright::{Error, ErrorKind};
use blockwright_ffi::{errno_of, errno_of_sync};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

pyo3::create_exception!(
    blockwright,
    CorruptError,
    PyOSError,
    "The volume's structures contradict the format or themselves."
);
pyo3::create_exception!(
    blockwright,
    UnsupportedFeatureError,
    PyOSError,
    "The image holds no known format, or uses a feature that this package does not have."
);
pyo3::create_exception!(
    blockwright,
    PoisonedError,
    PyOSError,
    "A write of metadata failed earlier; the volume refuses all changes since."
);

/// The exception of an error. `OSError` picks its subclass by the errno.
pub(crate) fn exception(error: &Error) -> PyErr {
    with_errno(error, errno_of(error))
}

/// The exception of a sync that failed: data may be lost, whatever the reason.
pub(crate) fn exception_of_sync(error: &Error) -> PyErr {
    with_errno(error, errno_of_sync(error))
}

fn with_errno(error: &Error, errno: i32) -> PyErr {
    let path = error.path().map(|p| p.as_os_str().to_owned());
    // The path is a field of its own; the sentence does not repeat it.
    let text = error.to_string();
    let text = match error.path() {
        Some(path) => text
            .strip_prefix(&format!("{}: ", path.display()))
            .map_or(text.clone(), str::to_owned),
        None => text,
    };
    let args = (errno, text, path);
    match error.kind() {
        ErrorKind::Corrupt => PyErr::new::<CorruptError, _>(args),
        ErrorKind::UnsupportedFeature => PyErr::new::<UnsupportedFeatureError, _>(args),
        ErrorKind::Poisoned => PyErr::new::<PoisonedError, _>(args),
        _ => PyErr::new::<PyOSError, _>(args),
    }
}

/// Does something without the interpreter, and turns its error into an exception.
pub(crate) fn detached<R: Send>(
    py: Python<'_>,
    f: impl Send + FnOnce() -> blockwright::Result<R>,
) -> PyResult<R> {
    py.detach(f).map_err(|e| exception(&e))
}

/// The error of a call on something that was closed.
pub(crate) fn closed(what: &str) -> Error {
    Error::new(ErrorKind::Stale, format!("the {what} is closed"))
}
