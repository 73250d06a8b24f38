//! The archive that `docker save` writes. Its member `manifest.json` names the configuration and the layers of each image.
//!
//! Not responsible for JSON (`manifest`), nor for the entries of a layer.

use super::blob::{Digest, Store};
use super::manifest::{Config, Saved, listed, parse};
use super::oci::check_platform;
use super::{Choice, Image, Layer, at, invalid};
use crate::{Error, ErrorKind, Result};

const MANIFEST: &str = "manifest.json";

/// The image that was chosen.
pub(crate) fn image(store: &impl Store, choice: &Choice<'_>) -> Result<Image> {
    let manifest = store.find(MANIFEST).map_err(|e| match e.kind() {
        ErrorKind::NotFound => {
            invalid("this is not an archive of docker save: it has no manifest.json")
        }
        _ => e,
    })?;
    let saved: Vec<Saved> = parse(&manifest.small(MANIFEST)?, MANIFEST)?;
    let image = chosen(&saved, choice)?;
    let config = store.find(&image.config)?;
    let bytes = config.small(&image.config)?;
    // Its name is its digest: HEX.json, or blobs/sha256/HEX.
    let stem = image.config.rsplit('/').next().unwrap_or_default();
    let stem = stem.strip_suffix(".json").unwrap_or(stem);
    if let Ok(digest) = Digest::parse(&format!("sha256:{stem}")) {
        let sum = digest.hasher();
        sum.update(&bytes);
        digest.compare(&sum).map_err(|e| at(e, &image.config))?;
    }
    let parsed: Config = parse(&bytes, &image.config)?;
    check_platform(&parsed, choice)?;
    let (ids, count) = (&parsed.rootfs.diff_ids, image.layers.len());
    if ids.len() != count {
        return Err(invalid(format!(
            "manifest.json has {count} layers, and the configuration {}",
            ids.len()
        )));
    }
    let layers: Result<Vec<Layer>> = image
        .layers
        .iter()
        .zip(ids)
        .map(|(name, id)| {
            Ok(Layer {
                blob: store.find(name)?,
                name: name.clone(),
                stored: None,
                unpacked: Digest::parse(id)?,
            })
        })
        .collect();
    Ok(Image {
        config,
        layers: layers?,
    })
}

/// By a name of its tags, `debian:12` or a part of it that is clear; or the only one.
fn chosen<'s>(saved: &'s [Saved], choice: &Choice<'_>) -> Result<&'s Saved> {
    let tags = |image: &Saved| image.repo_tags.clone().unwrap_or_default();
    let all = || listed(saved.iter().flat_map(tags));
    let Some(wanted) = choice.reference else {
        return match saved {
            [only] => Ok(only),
            [] => Err(invalid("the archive has no image")),
            _ => Err(invalid(format!(
                "the archive has several images: choose one by its name ({})",
                all()
            ))),
        };
    };
    let names = |tag: &String| {
        tag == wanted || tag.strip_suffix(":latest") == Some(wanted) || {
            tag.rsplit_once(':')
                .is_some_and(|(_, short)| short == wanted)
        }
    };
    let found = saved.iter().find(|image| tags(image).iter().any(names));
    found.ok_or_else(|| {
        Error::new(
            ErrorKind::NotFound,
            format!("the archive has no image `{wanted}` (it has: {})", all()),
        )
    })
}
