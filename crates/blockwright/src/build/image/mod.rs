//! Container images as sources: the layers of an OCI layout or of a docker archive, laid over the tree in order.
//!
//! # Trust
//! * An image is found by names inside its layout or archive only: a digest names a blob, and `manifest.json` names members of the
//!   archive. Nothing outside is read, and links that lead out of a layout are not followed.
//! * JSON documents have a bounded size.
//! * The digest of a layer is compared before an entry of it is used. The digest of the unpacked layer is compared before the next
//!   layer is used.
//!
//! Not responsible for whiteouts: [`super::tree`] applies them.
//!
//! References: OCI image specification 1.1 (image layout, index, manifest, config, layer); the docker image specification
//! 1.2 for `manifest.json`.

mod blob;
mod docker;
mod manifest;
mod oci;

use super::archive::Input;
use super::tar::End;
use super::tree::LayerTree;
use super::{Rules, layer};
use crate::{Error, ErrorKind, Result};
use blob::{Blob, Digest, Directory, Members};
use blockwright_device::os_name;
use std::io::Read;
use std::path::{Path, PathBuf};

pub(crate) use manifest::Platform;

/// Where a container image is, and which one of several: for [`VolumeBuilder::from_image`](super::VolumeBuilder::from_image).
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ContainerImage {
    /// An OCI image layout in a directory.
    OciLayout {
        /// The directory with `oci-layout` and `index.json`.
        dir: PathBuf,
        /// The tag, where the layout has several images.
        tag: Option<String>,
    },
    /// An OCI image layout in a tar archive (also compressed).
    OciArchive {
        /// The archive.
        file: PathBuf,
        /// The tag, where the layout has several images.
        tag: Option<String>,
    },
    /// An archive that `docker save` wrote (also compressed).
    DockerArchive {
        /// The archive.
        file: PathBuf,
        /// The image's name, where the archive has several.
        name: Option<String>,
    },
}

impl ContainerImage {
    /// From what container tools write: `oci:DIR[:TAG]`, `oci-archive:FILE[:TAG]`, `docker-archive:FILE[:NAME]`. `None` for
    /// any other text, which is a path.
    #[must_use]
    pub fn parse(text: &std::ffi::OsStr) -> Option<Self> {
        let bytes = os_name::bytes(text);
        let colon = bytes.iter().position(|b| *b == b':')?;
        let (kind, rest) = (&bytes[..colon], &bytes[colon + 1..]);
        // A name may have colons itself: docker-archive:FILE:debian:12.
        let (path, which) = match rest.iter().position(|b| *b == b':') {
            Some(at) => (
                &rest[..at],
                Some(String::from_utf8_lossy(&rest[at + 1..]).into_owned()),
            ),
            None => (rest, None),
        };
        let path = PathBuf::from(&*os_name::of(path));
        Some(match kind {
            b"oci" => ContainerImage::OciLayout {
                dir: path,
                tag: which,
            },
            b"oci-archive" => ContainerImage::OciArchive {
                file: path,
                tag: which,
            },
            b"docker-archive" => ContainerImage::DockerArchive {
                file: path,
                name: which,
            },
            _ => return None,
        })
    }

    /// The directory or file that is read.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            ContainerImage::OciLayout { dir, .. } => dir,
            ContainerImage::OciArchive { file, .. }
            | ContainerImage::DockerArchive { file, .. } => file,
        }
    }
}

/// Where a container image is.
pub(crate) enum Place {
    /// An image layout in a directory.
    OciLayout(PathBuf),
    /// An image layout in a tar archive.
    OciArchive(PathBuf),
    /// What `docker save` writes.
    DockerArchive(PathBuf),
}

/// How an image is chosen, and what is taken from it.
pub(crate) struct Choice<'a> {
    /// A tag or name; without it there must be one image only.
    pub reference: Option<&'a str>,
    /// Chooses from an index; the host's when not given.
    pub platform: Option<&'a Platform>,
    /// The configuration goes to `/.blockwright/config.json`.
    pub keep_config: bool,
}

/// An image: its configuration and its layers, lowest first.
struct Image {
    config: Blob,
    layers: Vec<Layer>,
}

struct Layer {
    blob: Blob,
    /// For messages: the digest, or the member's name.
    name: String,
    /// Digest of the blob as it is stored, where a manifest says it.
    stored: Option<Digest>,
    /// Digest of the archive that it unpacks to.
    unpacked: Digest,
}

/// Lays an image over the tree.
pub(crate) fn apply(
    tree: &mut LayerTree,
    place: &Place,
    choice: &Choice<'_>,
    rules: &Rules<'_>,
) -> Result<()> {
    let find = || match place {
        Place::OciLayout(dir) => oci::image(&Directory::open(dir)?, choice),
        Place::OciArchive(file) => oci::image(&members(Input::open(file, rules)?, rules)?, choice),
        Place::DockerArchive(file) => {
            docker::image(&members(Input::open(file, rules)?, rules)?, choice)
        }
    };
    let (Place::OciLayout(path) | Place::OciArchive(path) | Place::DockerArchive(path)) = place;
    find()
        .and_then(|image| lay(tree, &image, choice, rules))
        .map_err(|e| within(e, &path.display().to_string()))
}

fn members<'a>(input: Input<'a>, rules: &Rules<'a>) -> Result<Members> {
    Members::read(input, rules.progress)
}

/// Lays the image that a stream of `docker save` has over the tree.
pub(crate) fn apply_docker_stream(
    tree: &mut LayerTree,
    reader: impl Read,
    choice: &Choice<'_>,
    rules: &Rules<'_>,
) -> Result<()> {
    let image = docker::image(&members(Input::stream(reader, rules)?, rules)?, choice)?;
    lay(tree, &image, choice, rules)
}

fn lay(tree: &mut LayerTree, image: &Image, choice: &Choice<'_>, rules: &Rules<'_>) -> Result<()> {
    let count = image.layers.len();
    for (index, layer) in image.layers.iter().enumerate() {
        let place = || format!("layer {} of {count} ({})", index + 1, layer.name);
        if index > 0 {
            tree.next_layer();
        }
        lay_one(tree, layer, rules).map_err(|e| within(e, &place()))?;
    }
    if choice.keep_config {
        layer::put_config(tree, image.config.data(), image.config.len(), rules)?;
    }
    Ok(())
}

/// Names what holds the thing that an error is about in front of it.
pub(crate) fn within(error: Error, place: &str) -> Error {
    let kind = error.kind();
    Error::new(kind, format!("{place}: {error}"))
}

fn lay_one(tree: &mut LayerTree, layer: &Layer, rules: &Rules<'_>) -> Result<()> {
    if let Some(stored) = &layer.stored {
        stored.verify(&layer.blob, rules.progress)?;
    }
    let plain = !Input::is_compressed(layer.blob.reader())?;
    if plain {
        // Read in place, so not all of its bytes pass by.
        if layer.stored.as_ref() != Some(&layer.unpacked) {
            layer.unpacked.verify(&layer.blob, rules.progress)?;
        }
        let input = Input::section(layer.blob.reader());
        return layer::apply(tree, input, End::Digest, rules);
    }
    let sum = layer.unpacked.hasher();
    let watch = |bytes: &[u8]| sum.update(bytes);
    let input = Input::unpacked(layer.blob.reader(), watch, rules)?;
    layer::apply(tree, input, End::Digest, rules)?;
    layer.unpacked.compare(&sum)
}

/// An error about the image as such.
fn invalid(what: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, what)
}

/// The path of a layout's or an archive's member, for messages.
fn at(error: Error, name: &str) -> Error {
    error.at(Path::new(name))
}
