//! Directories, sorted and in parts; and what is told of an entry.

use crate::names::coded;
use crate::request::{Attributes, EntryOf, Listing};
use blockwright::{FileType, Metadata, Result, Volume};
use blockwright_device::os_name;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Names that are kept of one directory.
const NAMES_MAX: usize = 250_000;

/// The names in a directory: directories first, then by their bytes.
pub(crate) struct Listed {
    path: PathBuf,
    names: Vec<(OsString, Option<FileType>)>,
    trouble: Option<String>,
}

impl Listed {
    /// Reads all names, or those before the first that cannot be read.
    ///
    /// # Errors
    /// When the path is no directory, or none of it can be read.
    pub(crate) fn read(volume: &Volume, path: &Path) -> Result<Self> {
        let mut names = Vec::new();
        let mut trouble = None;
        for entry in volume.dir_stream(path)? {
            match entry {
                Ok(_) if names.len() == NAMES_MAX => {
                    trouble = Some(format!("only {NAMES_MAX} entries are shown"));
                    break;
                }
                Ok(entry) => names.push((entry.name, entry.kind)),
                Err(e) => {
                    trouble = Some(format!("the rest cannot be read: {e}"));
                    break;
                }
            }
        }
        names.sort_by(|a, b| {
            let key = |kind: Option<FileType>| kind != Some(FileType::Directory);
            (key(a.1), &a.0).cmp(&(key(b.1), &b.0))
        });
        Ok(Listed {
            path: path.to_owned(),
            names,
            trouble,
        })
    }

    pub(crate) fn is_of(&self, path: &Path) -> bool {
        self.path == path
    }

    /// A part of it, with attributes. What cannot be read of an entry is said there.
    pub(crate) fn part(&self, volume: &Volume, first: usize, count: usize) -> Listing {
        let names = self.names.iter().skip(first).take(count);
        let told = |(name, kind): &(OsString, Option<FileType>)| {
            let path = self.path.join(name);
            entry(volume, &path, *kind)
        };
        Listing {
            total: self.names.len(),
            trouble: self.trouble.clone(),
            entries: names.map(told).collect(),
        }
    }
}

fn attributes(metadata: &Metadata) -> Attributes {
    Attributes {
        size: metadata.len(),
        mode: metadata.permissions(),
        modified: metadata.attr().mtime.secs,
    }
}

/// What is at a path, whose kind the directory may have told.
pub(crate) fn entry(volume: &Volume, path: &Path, kind: Option<FileType>) -> EntryOf {
    let name = path.file_name().map(os_name::bytes).unwrap_or_default();
    let mut told = EntryOf {
        name: coded(name),
        kind: kind.map(FileType::name),
        attributes: None,
        target: None,
        leads_to: None,
        leads_to_bytes: None,
        trouble: None,
    };
    match volume.symlink_metadata(path) {
        Ok(metadata) => {
            told.kind = Some(metadata.file_type().name());
            told.attributes = Some(attributes(&metadata));
            if metadata.is_symlink() {
                match volume.read_link(path) {
                    Ok(target) => told.target = Some(coded(os_name::bytes(&target))),
                    Err(e) => told.trouble = Some(e.to_string()),
                }
                let to = volume.metadata(path).ok();
                told.leads_to = to.as_ref().map(|to| to.file_type().name());
                told.leads_to_bytes = to.map(|to| to.len());
            }
        }
        Err(e) => told.trouble = Some(e.to_string()),
    }
    told
}
