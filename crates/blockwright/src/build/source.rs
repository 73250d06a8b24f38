//! The kinds of sources, and how each is merged into the tree.

use super::image;
use super::tree::LayerTree;
use super::{Rules, directory, dumpfile, layer};
use crate::{Error, Result};
use std::io::Read;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A stream that is read once, and its name for messages.
pub(crate) struct Stream {
    reader: Mutex<Box<dyn Read + Send>>,
    name: String,
}

impl Stream {
    pub fn new(reader: impl Read + Send + 'static, name: impl Into<String>) -> Self {
        Stream {
            reader: Mutex::new(Box::new(reader)),
            name: name.into(),
        }
    }

    fn reader(&self) -> MutexGuard<'_, Box<dyn Read + Send>> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A source.
pub(crate) enum Source {
    /// A directory, or an archive by its magic.
    Path(PathBuf),
    Stream(Stream),
    /// A listing of composefs, and the directory of its objects.
    Listing(PathBuf, Option<PathBuf>),
    ListingStream(Stream, Option<PathBuf>),
    /// A container image, and its tag or name.
    Image(image::Place, Option<String>),
    /// `docker save` on a stream.
    ImageStream(Stream, Option<String>),
}

impl Source {
    /// Lays it over the tree. `choice`: how a container image is chosen, by its tag or name.
    pub fn lay<'s>(
        &'s self,
        tree: &mut LayerTree,
        choice: impl Fn(Option<&'s str>) -> image::Choice<'s>,
        rules: &Rules<'_>,
    ) -> Result<()> {
        match self {
            Source::Path(path) => {
                let metadata = std::fs::metadata(path).map_err(|e| Error::from(e).at(path))?;
                if metadata.is_dir() {
                    directory::apply(tree, path, rules)
                } else {
                    layer::apply_file(tree, path, rules).map_err(|e| e.at(path))
                }
            }
            Source::Stream(stream) => {
                let read = layer::apply_stream(tree, &mut **stream.reader(), rules);
                read.map_err(|e| e.at(&stream.name))
            }
            Source::Listing(path, objects) => {
                dumpfile::apply_file(tree, path, objects.as_deref(), rules)
            }
            Source::ListingStream(stream, objects) => {
                let read = dumpfile::apply(tree, &mut **stream.reader(), objects.as_deref(), rules);
                read.map_err(|e| image::within(e, &stream.name))
            }
            Source::Image(place, reference) => {
                image::apply(tree, place, &choice(reference.as_deref()), rules)
            }
            Source::ImageStream(stream, reference) => {
                let choice = choice(reference.as_deref());
                let reader = &mut **stream.reader();
                image::apply_docker_stream(tree, reader, &choice, rules)
                    .map_err(|e| image::within(e, &stream.name))
            }
        }
    }
}
