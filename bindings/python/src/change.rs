//! Changing volumes that are not open: their size and settings.

use crate::place::Place;
use crate::watch::Watched;
use blockwright::reshape::{ErrorBehaviour, Mode, Reserved, Settings, Watch, random_uuid};
use blockwright_ffi::{Image, Target};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::Arc;

/// Makes a change. An exception of the progress function or a signal stops it, and comes out.
fn watched<R: Send>(
    py: Python<'_>,
    progress: Option<Py<PyAny>>,
    change: impl Send + FnOnce(&Watch) -> blockwright::Result<R>,
) -> PyResult<R> {
    let watched = Watched::new(progress);
    let teller = Arc::clone(&watched);
    let watch = Watch::new(move |p| teller.tell(p.phase.name(), p.done, p.total, false));
    watched.run(py, || change(&watch))
}

/// Changes the size of the volume in an image; the bytes before and now. Without a size: all of the image, or with `minimum` as few as possible. With `grow_partition` the
/// image is a partition, which becomes larger first.
#[pyfunction]
#[pyo3(signature = (place, size, *, minimum, free, dry_run, grow_partition, progress))]
#[expect(
    clippy::too_many_arguments,
    reason = "the Python half passes each option"
)]
pub(crate) fn resize(
    py: Python<'_>,
    place: Place,
    size: Option<u64>,
    minimum: bool,
    free: u64,
    dry_run: bool,
    grow_partition: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<(u64, u64)> {
    let target = match (size, minimum) {
        (Some(bytes), _) => Target::Bytes(bytes),
        (None, true) => Target::Minimum { free },
        (None, false) => Target::Fill,
    };
    let mode = match dry_run {
        true => Mode::DryRun,
        false => Mode::Change,
    };
    let image = Image::from(place);
    let resize = match grow_partition {
        true => blockwright_ffi::resize_with_partition,
        false => blockwright_ffi::resize,
    };
    let done = watched(py, progress, |watch| resize(&image, target, mode, watch))?;
    Ok((done.bytes_before(), done.bytes()))
}

/// Changes settings of the volume in an image.
#[pyfunction]
#[pyo3(signature = (place, *, label, uuid, random_uuid, hash_seed, reserved_bytes, reserved_percent, errors, default_options, features, cold_extensions, hot_extensions, journal_bytes, progress))]
#[expect(
    clippy::too_many_arguments,
    reason = "the Python half passes each setting"
)]
pub(crate) fn settings(
    py: Python<'_>,
    place: Place,
    label: Option<Vec<u8>>,
    uuid: Option<[u8; 16]>,
    random_uuid: bool,
    hash_seed: Option<[u8; 16]>,
    reserved_bytes: Option<u64>,
    reserved_percent: Option<f64>,
    errors: Option<&str>,
    default_options: Option<String>,
    features: Option<String>,
    cold_extensions: Option<String>,
    hot_extensions: Option<String>,
    journal_bytes: Option<u64>,
    progress: Option<Py<PyAny>>,
) -> PyResult<()> {
    let errors = match errors {
        None => None,
        Some("continue") => Some(ErrorBehaviour::Continue),
        Some("remount-ro") => Some(ErrorBehaviour::RemountReadOnly),
        Some("panic") => Some(ErrorBehaviour::Panic),
        Some(other) => {
            let what = format!("errors={other:?}: continue, remount-ro or panic");
            return Err(PyValueError::new_err(what));
        }
    };
    let percent = reserved_percent.map(Reserved::Percent);
    let settings = Settings {
        label,
        uuid: uuid.or_else(|| random_uuid.then(self::random_uuid)),
        reserved: percent.or(reserved_bytes.map(Reserved::Bytes)),
        errors,
        hash_seed,
        default_options,
        features,
        cold_extensions,
        hot_extensions,
        journal_bytes,
        ..Settings::default()
    };
    let image = Image::from(place);
    watched(py, progress, |watch| {
        blockwright_ffi::set(&image, &settings, watch)
    })
}
