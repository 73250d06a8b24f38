//! What is put into a volume, and the rules for it.

use crate::watch::Watched;
use blockwright::VolumeBuilder;
use blockwright::build::{ContainerImage, EntryPolicy, FileContexts, FsConfig, Mtime, OwnerMap};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;

/// A source that is a Python object with `read`. The caller's thread reads it.
struct Stream {
    object: Arc<Py<PyAny>>,
    watched: Arc<Watched>,
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let bytes = self.watched.read(&self.object, buf.len())?;
        let Some(to) = buf.get_mut(..bytes.len()) else {
            return Err(io::Error::other("read() returned more than was asked for"));
        };
        to.copy_from_slice(&bytes);
        Ok(bytes.len())
    }
}

/// A path of the host, or an object with `read`.
#[derive(FromPyObject)]
enum Place {
    Path(PathBuf),
    Stream(Py<PyAny>),
}

/// Something to put into a volume: its kind, where it is, and what belongs to it (an image's name, a listing's objects).
#[derive(FromPyObject)]
pub(crate) struct Source(String, Place, Option<PathBuf>);

/// For messages about a stream.
const STREAM: &str = "a Python object";

impl Source {
    /// Adds it to a builder.
    pub(crate) fn put_into(
        self,
        builder: VolumeBuilder,
        watched: &Arc<Watched>,
    ) -> PyResult<VolumeBuilder> {
        let Source(kind, place, beside) = self;
        let stream = |object| Stream {
            object: Arc::new(object),
            watched: Arc::clone(watched),
        };
        Ok(match (kind.as_str(), place) {
            ("files", Place::Path(path)) => builder.from(path),
            ("files", Place::Stream(object)) => builder.from_reader(stream(object), STREAM),
            ("image", Place::Path(path)) => {
                if beside.is_some() {
                    return Err(PyValueError::new_err(
                        "name is for streams: an image at a path is named behind it, as docker-archive:FILE:NAME",
                    ));
                }
                let image = ContainerImage::parse(path.as_os_str()).ok_or_else(|| {
                    let path = path.display();
                    PyValueError::new_err(format!(
                        "{path}: a container image is oci:DIR[:TAG], oci-archive:FILE[:TAG] or docker-archive:FILE[:NAME]"
                    ))
                })?;
                builder.from_image(image)
            }
            ("image", Place::Stream(object)) => {
                let name = beside.map(|name| name.to_string_lossy().into_owned());
                builder.from_image_reader(stream(object), name, STREAM)
            }
            ("dumpfile", Place::Path(path)) => builder.from_dumpfile(path, beside),
            ("dumpfile", Place::Stream(object)) => {
                builder.from_dumpfile_reader(stream(object), beside, STREAM)
            }
            (kind, _) => {
                return Err(PyValueError::new_err(format!(
                    "{kind:?} is no kind of source"
                )));
            }
        })
    }
}

/// Rules for the entries of all sources; a dictionary.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Rules {
    exclude: Vec<String>,
    fsverity: Vec<String>,
    owner_map: Vec<String>,
    mtime: Option<i64>,
    mtime_max: Option<i64>,
    file_contexts: Option<PathBuf>,
    fs_config: Option<PathBuf>,
    mount_point: Option<Vec<u8>>,
}

impl Rules {
    /// The policy of these rules. It reads files.
    pub(crate) fn policy(&self) -> blockwright::Result<EntryPolicy> {
        let mut policy = EntryPolicy::new();
        for pattern in &self.exclude {
            policy = policy.exclude(pattern)?;
        }
        for pattern in &self.fsverity {
            policy = policy.fsverity(pattern)?;
        }
        let mut owners = OwnerMap::default();
        for rule in &self.owner_map {
            owners.add(rule)?;
        }
        policy = policy.owners(owners);
        let max = self.mtime_max.map(Mtime::Clamp);
        if let Some(mtime) = self.mtime.map(Mtime::Set).or(max) {
            policy = policy.mtime(mtime);
        }
        if let Some(path) = &self.file_contexts {
            policy = policy.file_contexts(FileContexts::read(path)?);
        }
        if let Some(path) = &self.fs_config {
            policy = policy.fs_config(FsConfig::read(path)?);
        }
        if let Some(path) = &self.mount_point {
            policy = policy.mount_point(path);
        }
        Ok(policy)
    }
}
