//! The JSON documents that describe container images, and the choice of one image among several.
//!
//! Everything here comes from an untrusted image: documents are bounded before they are parsed, and no name in them is used as a path
//! of the host.

use super::invalid;
use crate::Result;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::path::Path;

/// Parses one of the documents.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8], name: &str) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|e| {
        invalid(format!("this is not what an image has here: {e}")).at(Path::new(name))
    })
}

/// Points to a blob.
#[derive(Deserialize, Clone, Debug)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    #[serde(default)]
    pub media_type: String,
    pub digest: String,
    pub size: u64,
    #[serde(default)]
    pub platform: Option<Platform>,
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
}

/// `index.json` and other indexes; docker calls them manifest lists.
#[derive(Deserialize, Debug)]
pub(crate) struct Index {
    pub manifests: Vec<Descriptor>,
}

/// An image's manifest.
#[derive(Deserialize, Debug)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Manifest {
    #[serde(default)]
    pub artifact_type: Option<String>,
    pub config: Descriptor,
    pub layers: Vec<Descriptor>,
}

/// What is needed of an image's configuration.
#[derive(Deserialize, Debug)]
pub(crate) struct Config {
    #[serde(default)]
    pub architecture: String,
    #[serde(default)]
    pub os: String,
    #[serde(default)]
    pub variant: Option<String>,
    pub rootfs: RootFs,
}

#[derive(Deserialize, Debug)]
pub(crate) struct RootFs {
    #[serde(default)]
    pub diff_ids: Vec<String>,
}

/// An image of `manifest.json`.
#[derive(Deserialize, Debug)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Saved {
    pub config: String,
    #[serde(default)]
    pub repo_tags: Option<Vec<String>>,
    pub layers: Vec<String>,
}

/// What an image runs on.
#[derive(Deserialize, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Platform {
    pub os: String,
    pub architecture: String,
    #[serde(default)]
    pub variant: Option<String>,
}

impl Platform {
    /// From `os/architecture[/variant]`, as container tools write it.
    pub fn parse(text: &str) -> Result<Self> {
        let bad = || {
            invalid(format!(
                "`{text}` is not a platform (os/architecture[/variant])"
            ))
        };
        let mut parts = text.split('/').map(str::to_owned);
        let (Some(os), Some(architecture)) = (parts.next(), parts.next()) else {
            return Err(bad());
        };
        let variant = parts.next();
        let empty = |text: &String| text.is_empty();
        let extra = parts.next().is_some();
        if empty(&os) || empty(&architecture) || variant.as_ref().is_some_and(empty) || extra {
            return Err(bad());
        }
        Ok(Platform {
            os,
            architecture,
            variant,
        })
    }

    /// Linux on this machine's processor, by Go's names.
    pub fn host() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "x86" => "386",
            "aarch64" => "arm64",
            "powerpc64" => "ppc64le",
            "loongarch64" => "loong64",
            other => other,
        };
        Platform {
            os: "linux".to_owned(),
            architecture: architecture.to_owned(),
            variant: None,
        }
    }

    /// Whether an image for `self` is one for `wanted`.
    pub fn suits(&self, wanted: &Platform) -> bool {
        self.os == wanted.os
            && self.architecture == wanted.architecture
            && (wanted.variant.is_none() || self.variant == wanted.variant)
    }

    /// Of what is no image, but says something about one.
    pub fn is_unknown(&self) -> bool {
        self.os == "unknown" && self.architecture == "unknown"
    }
}

impl std::fmt::Display for Platform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        match &self.variant {
            Some(variant) => write!(f, "/{variant}"),
            None => Ok(()),
        }
    }
}

/// At most this many names are listed in a message.
const LISTED_MAX: usize = 10;

/// Names in a message: images say how many there are, and what they are called.
pub(crate) fn listed(names: impl Iterator<Item = String>) -> String {
    let mut names: Vec<String> = names.collect();
    names.sort();
    names.dedup();
    let more = names.len().saturating_sub(LISTED_MAX);
    names.truncate(LISTED_MAX);
    let mut text = names.join(", ");
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}
