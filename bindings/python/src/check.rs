//! Checking, repairing, resizing.

use crate::build::Teller;
use crate::error::detached;
use blockwright::reshape;
use blockwright_device::OpenMode;
use blockwright_ffi::{CheckOptions, Mode, Phase, ProgressFn, Target, Window, open_device};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::PathBuf;
use std::sync::Arc;

/// Checks the volume in an image. Issues are tuples of kind, severity, outcome and text.
#[pyfunction]
#[pyo3(signature = (path, *, mode, issues_max, offset, size, progress))]
pub(crate) fn check(
    py: Python<'_>,
    path: PathBuf,
    mode: &str,
    issues_max: Option<usize>,
    offset: u64,
    size: Option<u64>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Py<PyDict>> {
    let mode = match mode {
        "read-only" => Mode::ReadOnly,
        "preen" => Mode::Preen,
        "repair" => Mode::Yes,
        _ => return Err(PyValueError::new_err(format!("{mode:?} is no mode"))),
    };
    let teller = progress.map(Teller::new);
    let progress = teller.clone().map(|teller| {
        let tell: ProgressFn = Arc::new(move |p| {
            let phase = match p.phase {
                Phase::Volume => "volume",
                Phase::Inodes => "inodes",
                Phase::Directories => "directories",
                Phase::Links => "links",
                Phase::Bitmaps => "bitmaps",
            };
            teller.tell(phase, p.done, p.total, false);
        });
        tell
    });
    let options = CheckOptions {
        mode,
        issues_max,
        progress,
    };
    let window = Window {
        offset,
        bytes: size,
    };
    let report = detached(py, || {
        let open = OpenMode {
            read_only: mode == Mode::ReadOnly,
            ..OpenMode::default()
        };
        let device = open_device(&path, window, open)?;
        blockwright_ffi::check(device, &options).map_err(|e| e.at(&path))
    })?;
    if let Some(e) = teller.and_then(|t| t.failed()) {
        return Err(e);
    }
    let issues: Vec<_> = report
        .issues
        .iter()
        .map(|i| (&i.kind, i.severity.name(), i.outcome.name(), &i.text))
        .collect();
    let all = PyDict::new(py);
    all.set_item("issues", issues)?;
    all.set_item("suppressed", report.suppressed)?;
    all.set_item("clean", report.clean)?;
    all.set_item("uncorrected", report.uncorrected)?;
    all.set_item("changed", report.changed)?;
    all.set_item("exit_code", report.exit_code)?;
    let stats = &report.stats;
    for (name, value) in [
        ("inodes", stats.inodes),
        ("inodes_used", stats.used_inodes),
        ("blocks", stats.blocks),
        ("blocks_used", stats.used_blocks),
        ("directories", stats.directories),
        ("files", stats.files),
        ("symlinks", stats.symlinks),
        ("specials", stats.specials),
        ("names", stats.names),
    ] {
        all.set_item(name, value)?;
    }
    Ok(all.unbind())
}

/// Changes the size of the volume in an image; the bytes before and now. Without a size: all of the image, or with `minimum` as few as possible.
#[pyfunction]
#[pyo3(signature = (path, size, *, minimum, free, dry_run))]
pub(crate) fn resize(
    py: Python<'_>,
    path: PathBuf,
    size: Option<u64>,
    minimum: bool,
    free: u64,
    dry_run: bool,
) -> PyResult<(u64, u64)> {
    let target = match (size, minimum) {
        (Some(bytes), _) => Target::Bytes(bytes),
        (None, true) => Target::Minimum { free },
        (None, false) => Target::Fill,
    };
    let mode = match dry_run {
        true => reshape::Mode::DryRun,
        false => reshape::Mode::Change,
    };
    let done = detached(py, || blockwright_ffi::resize(&path, target, mode))?;
    Ok((done.bytes_before(), done.bytes()))
}
