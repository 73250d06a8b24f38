//! Disks: their partitions as data, and maps of volumes.

use crate::error::detached;
use crate::place::Place;
use blockwright_ffi::{Image, MapForm};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::PathBuf;

/// The partitions of the disk in an image, each as a dictionary.
#[pyfunction]
pub(crate) fn partitions(
    py: Python<'_>,
    path: PathBuf,
    allow_backing: bool,
) -> PyResult<Vec<Py<PyDict>>> {
    let found = detached(py, || blockwright_ffi::partitions(&path, allow_backing))?;
    let partitions = found.partitions.into_iter().map(|p| {
        let all = PyDict::new(py);
        all.set_item("number", p.number)?;
        all.set_item("start", p.start)?;
        all.set_item("size", p.bytes)?;
        all.set_item("name", p.name)?;
        all.set_item("uuid", p.uuid)?;
        all.set_item("type", p.kind)?;
        all.set_item("type_name", p.kind_name)?;
        all.set_item("format", p.format)?;
        all.set_item("label", p.label)?;
        all.set_item("problem", p.problem)?;
        Ok(all.unbind())
    });
    partitions.collect()
}

/// A map of the volume in an image, as HTML or as SVG.
#[pyfunction]
pub(crate) fn map(py: Python<'_>, place: Place, html: bool) -> PyResult<String> {
    let form = match html {
        true => MapForm::Html,
        false => MapForm::Svg,
    };
    let image = Image::from(place);
    detached(py, || blockwright_ffi::map(&image, form))
}
