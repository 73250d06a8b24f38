//! Checking and repairing.

use crate::place::Place;
use crate::watch::Watched;
use blockwright_device::OpenMode;
use blockwright_ffi::{CheckOptions, Image, Mode, Phase, ProgressFn};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::Arc;

/// Checks the volume in an image. Issues are tuples of kind, severity, outcome and text.
#[pyfunction]
#[pyo3(signature = (place, *, mode, issues_max, superblock, discard_fsynced, progress))]
pub(crate) fn check(
    py: Python<'_>,
    place: Place,
    mode: &str,
    issues_max: Option<usize>,
    superblock: Option<u64>,
    discard_fsynced: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<Py<PyDict>> {
    let mode = match mode {
        "read-only" => Mode::ReadOnly,
        "preen" => Mode::Preen,
        "repair" => Mode::Yes,
        _ => return Err(PyValueError::new_err(format!("{mode:?} is no mode"))),
    };
    let watched = Watched::new(progress);
    let teller = Arc::clone(&watched);
    let progress: ProgressFn = Arc::new(move |p| {
        let phase = match p.phase {
            Phase::Volume => "volume",
            Phase::Inodes => "inodes",
            Phase::Directories => "directories",
            Phase::Links => "links",
            Phase::Bitmaps => "bitmaps",
        };
        teller.tell(phase, p.done, p.total, false)
    });
    let mut options = CheckOptions {
        mode,
        issues_max,
        progress: Some(progress),
        superblock,
        discard_fsynced,
        ..CheckOptions::default()
    };
    let image = Image::from(place);
    let report = watched.run(py, || {
        let open = OpenMode {
            read_only: mode == Mode::ReadOnly,
            ..OpenMode::default()
        };
        let device = image.open_device(open)?;
        options.journal = image.open_journal(open)?.map(|journal| journal.device);
        blockwright_ffi::check(device, &options).map_err(|e| e.at(&image.path))
    })?;
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
        ("transactions_replayed", stats.transactions_replayed),
        ("blocks_written", stats.blocks_written),
    ] {
        all.set_item(name, value)?;
    }
    Ok(all.unbind())
}
