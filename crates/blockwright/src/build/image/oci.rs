//! An OCI image layout: the file `oci-layout`, `index.json`, and one file for each blob, named by its digest.
//!
//! Not responsible for JSON (`manifest`), nor for the entries of a layer.

use super::blob::{Blob, Digest, Store};
use super::manifest::{Config, Descriptor, Index, Manifest, Platform, listed, parse};
use super::{Choice, Image, Layer, at, invalid};
use crate::{Error, ErrorKind, Result};

/// An index may point to another one; deeper than that no tool goes.
const INDEXES_MAX: usize = 4;
/// The tag of a manifest in `index.json`.
const REF_NAME: &str = "org.opencontainers.image.ref.name";
/// containerd's: the whole name.
const CONTAINERD_NAME: &str = "io.containerd.image.name";

const INDEX_TYPES: [&str; 2] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
];
const MANIFEST_TYPES: [&str; 2] = [
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];
const CONFIG_TYPES: [&str; 2] = [
    "application/vnd.oci.image.config.v1+json",
    "application/vnd.docker.container.image.v1+json",
];
/// Types of layers without what they are compressed with.
const LAYER_TYPES: [&str; 4] = [
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.nondistributable.v1.tar",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.foreign.diff.tar",
];

#[derive(serde::Deserialize)]
struct LayoutFile {
    #[serde(rename = "imageLayoutVersion")]
    version: String,
}

/// The image that was chosen.
pub(crate) fn image(store: &impl Store, choice: &Choice<'_>) -> Result<Image> {
    let layout = store.find("oci-layout").map_err(|e| match e.kind() {
        ErrorKind::NotFound => invalid("this is not an OCI image layout: it has no oci-layout"),
        _ => e,
    })?;
    let layout: LayoutFile = parse(&layout.small("oci-layout")?, "oci-layout")?;
    if !layout.version.starts_with("1.") {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!("an image layout of version {}", layout.version),
        ));
    }
    let index = store.find("index.json")?;
    let index: Index = parse(&index.small("index.json")?, "index.json")?;
    let mut found = tagged(index, choice)?;
    let host = Platform::host();
    let wanted = choice.platform.unwrap_or(&host);
    for _ in 0..INDEXES_MAX {
        let (name, bytes) = document(store, &found)?;
        if is_index(&found, &bytes) {
            found = for_platform(parse::<Index>(&bytes, &name)?, wanted)?;
            continue;
        }
        return from_manifest(store, &found, parse(&bytes, &name)?, choice);
    }
    Err(invalid(format!(
        "indexes lead to one another more than {INDEXES_MAX} times"
    )))
}

/// By the media type; old layouts leave it out of descriptors, and then the document tells.
fn is_index(descriptor: &Descriptor, bytes: &[u8]) -> bool {
    if descriptor.media_type.is_empty() {
        return serde_json::from_slice::<Index>(bytes).is_ok();
    }
    INDEX_TYPES.contains(&&*descriptor.media_type)
}

/// The entry of `index.json` that has the tag, or the only one.
fn tagged(index: Index, choice: &Choice<'_>) -> Result<Descriptor> {
    let names = |d: &Descriptor| -> Vec<String> {
        [REF_NAME, CONTAINERD_NAME]
            .iter()
            .filter_map(|key| d.annotations.get(*key).cloned())
            .collect()
    };
    let all = || listed(index.manifests.iter().flat_map(names));
    let Some(wanted) = choice.reference else {
        let mut images = index
            .manifests
            .iter()
            .filter(|d| !d.platform.as_ref().is_some_and(Platform::is_unknown));
        return match (images.next(), images.next()) {
            (Some(only), None) => Ok(only.clone()),
            (None, _) => Err(invalid("the image layout has no image")),
            (Some(first), Some(_)) => {
                // One tag for several platforms, without an index of its own.
                let same = index.manifests.iter().all(|d| names(d) == names(first));
                let platforms = index.manifests.iter().all(|d| d.platform.is_some());
                if same && platforms {
                    let host = Platform::host();
                    return for_platform(index, choice.platform.unwrap_or(&host));
                }
                Err(invalid(format!(
                    "the image layout has several images: choose one by its tag ({})",
                    all()
                )))
            }
        };
    };
    let found = index.manifests.iter().find(|d| {
        names(d).iter().any(|name| {
            name == wanted || name.rsplit_once(':').is_some_and(|(_, tag)| tag == wanted)
        })
    });
    found.cloned().ok_or_else(|| {
        Error::new(
            ErrorKind::NotFound,
            format!(
                "the image layout has no image `{wanted}` (it has: {})",
                all()
            ),
        )
    })
}

fn for_platform(index: Index, wanted: &Platform) -> Result<Descriptor> {
    let suits = |d: &&Descriptor| d.platform.as_ref().is_some_and(|p| p.suits(wanted));
    if let Some(found) = index.manifests.iter().find(suits) {
        return Ok(found.clone());
    }
    // An index of one image need not say what it is for; its configuration does.
    if let [only] = &index.manifests[..]
        && only.platform.is_none()
    {
        return Ok(only.clone());
    }
    let has = listed(
        index
            .manifests
            .iter()
            .filter_map(|d| d.platform.as_ref())
            .filter(|p| !p.is_unknown())
            .map(Platform::to_string),
    );
    Err(Error::new(
        ErrorKind::NotFound,
        format!("the image has nothing for the platform {wanted} (it has: {has})"),
    ))
}

/// A descriptor's blob, of the size that it says.
fn blob(store: &impl Store, descriptor: &Descriptor) -> Result<(Digest, Blob)> {
    let digest = Digest::parse(&descriptor.digest)?;
    let name = digest.path();
    let blob = store.find(&name)?;
    if blob.len() != descriptor.size {
        let what = format!(
            "{} bytes, and the image says {}",
            blob.len(),
            descriptor.size
        );
        return Err(at(Error::new(ErrorKind::Corrupt, what), &name));
    }
    Ok((digest, blob))
}

/// A blob that is JSON, with its name, after its digest was compared.
fn document(store: &impl Store, descriptor: &Descriptor) -> Result<(String, Vec<u8>)> {
    let (digest, blob) = blob(store, descriptor)?;
    let name = digest.path();
    let bytes = blob.small(&name)?;
    let sum = digest.hasher();
    sum.update(&bytes);
    digest.compare(&sum).map_err(|e| at(e, &name))?;
    Ok((name, bytes))
}

/// The layers and the configuration that a manifest names, if they are of kinds that can be applied.
fn from_manifest(
    store: &impl Store,
    descriptor: &Descriptor,
    manifest: Manifest,
    choice: &Choice<'_>,
) -> Result<Image> {
    let kind = &descriptor.media_type;
    if !kind.is_empty() && !MANIFEST_TYPES.contains(&&**kind) {
        let what = format!("a manifest of type {kind}");
        return Err(Error::new(ErrorKind::Unsupported, what));
    }
    if !CONFIG_TYPES.contains(&&*manifest.config.media_type) {
        let kind = manifest.artifact_type.unwrap_or(manifest.config.media_type);
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!("this is an artifact of type {kind}, not the image of a container"),
        ));
    }
    let (name, bytes) = document(store, &manifest.config)?;
    let config: Config = parse(&bytes, &name)?;
    check_platform(&config, choice)?;
    let (ids, count) = (&config.rootfs.diff_ids, manifest.layers.len());
    if ids.len() != count {
        return Err(invalid(format!(
            "the manifest has {count} layers, and the configuration {}",
            ids.len()
        )));
    }
    let (_, config) = blob(store, &manifest.config)?;
    let layers = manifest.layers.iter().zip(ids);
    let layers: Result<Vec<Layer>> = layers
        .map(|(descriptor, id)| {
            let kind = &*descriptor.media_type;
            let plain = kind.split_once("tar").map_or(kind, |(before, after)| {
                let known = matches!(after, "" | "+gzip" | "+zstd" | ".gzip" | ".zstd");
                if known {
                    &kind[..before.len() + 3]
                } else {
                    kind
                }
            });
            if !LAYER_TYPES.contains(&plain) {
                let what = format!("a layer of type {kind}");
                return Err(Error::new(ErrorKind::Unsupported, what));
            }
            let (digest, blob) = blob(store, descriptor)?;
            Ok(Layer {
                blob,
                name: digest.to_string(),
                stored: Some(digest),
                unpacked: Digest::parse(id)?,
            })
        })
        .collect();
    Ok(Image {
        config,
        layers: layers?,
    })
}

/// A platform that was asked for is refused when the only image there is for another one.
pub(crate) fn check_platform(config: &Config, choice: &Choice<'_>) -> Result<()> {
    let has = Platform {
        os: config.os.clone(),
        architecture: config.architecture.clone(),
        variant: config.variant.clone(),
    };
    match choice.platform {
        Some(wanted) if !has.suits(wanted) => Err(Error::new(
            ErrorKind::NotFound,
            format!("the image has nothing for the platform {wanted} (it has: {has})"),
        )),
        _ => Ok(()),
    }
}
