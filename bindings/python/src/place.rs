//! Where a volume is, and what belongs to it beside its image.

use blockwright_ffi::{Image, Window};
use pyo3::prelude::*;
use std::path::PathBuf;

/// What the Python half says in a dictionary.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Place {
    image: PathBuf,
    offset: u64,
    size: Option<u64>,
    journal: Option<PathBuf>,
    overlay: Option<PathBuf>,
    devices: Vec<PathBuf>,
    allow_backing: bool,
}

impl From<Place> for Image {
    fn from(place: Place) -> Self {
        Image {
            path: place.image,
            window: Window {
                offset: place.offset,
                bytes: place.size,
            },
            more_devices: place.devices,
            journal: place.journal,
            overlay: place.overlay,
            allow_backing: place.allow_backing,
        }
    }
}
