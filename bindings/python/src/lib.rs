//! The native half of the Python package `blockwright`: thin methods without policy. The Python half (`python/blockwright`) shapes them.
//!
//! Every method that may wait for a device or a lock releases the interpreter (`detach`). A lock is never taken while the interpreter is held, and the
//! interpreter is taken inside the library only by progress functions, on threads that hold no lock of this crate. Sources that are Python objects are read by the caller's thread.
//!
//! Not responsible for: what the operations do (`blockwright`), and what all languages share (`blockwright-ffi`).

#![warn(missing_docs)]

mod build;
mod change;
mod check;
mod disk;
mod error;
mod file;
mod names;
mod place;
mod source;
mod verity;
mod volume;
mod watch;

use pyo3::prelude::*;

#[pymodule]
fn _native(m: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = m.py();
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    m.add("CorruptError", py.get_type::<error::CorruptError>())?;
    let feature = py.get_type::<error::UnsupportedFeatureError>();
    m.add("UnsupportedFeatureError", feature)?;
    m.add("PoisonedError", py.get_type::<error::PoisonedError>())?;
    m.add_class::<volume::Volume>()?;
    m.add_class::<file::File>()?;
    m.add_class::<names::Listing>()?;
    m.add_function(wrap_pyfunction!(build::build, m)?)?;
    m.add_function(wrap_pyfunction!(check::check, m)?)?;
    m.add_function(wrap_pyfunction!(verity::seal, m)?)?;
    m.add_function(wrap_pyfunction!(build::journal, m)?)?;
    m.add_function(wrap_pyfunction!(disk::partitions, m)?)?;
    m.add_function(wrap_pyfunction!(disk::map, m)?)?;
    m.add_function(wrap_pyfunction!(change::resize, m)?)?;
    m.add_function(wrap_pyfunction!(change::settings, m)?)?;
    Ok(())
}
