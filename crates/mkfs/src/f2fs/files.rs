//! Small decisions about files: flags that are kept, attributes.

use crate::attributes::{Stored, to_stored};
use crate::flags::{Flags, Kept};
use crate::tree::Node;
use crate::{MkfsError, Result};
use blockwright_ondisk::f2fs::Features;
use blockwright_ondisk::f2fs::xattr::{self, Xattr};

/// What such volumes keep of inode flags and projects. Files are written uncompressed, so only directories can have the
/// flag that new files in them are compressed.
pub(crate) fn kept_flags(features: Features) -> Kept {
    let mut files = Flags::SYNC | Flags::IMMUTABLE | Flags::APPEND | Flags::NODUMP | Flags::NOATIME;
    let projects = features.contains(Features::PROJECT_QUOTA);
    let compression = features.contains(Features::COMPRESSION);
    files.set(Flags::NOCOMPRESS, compression);
    let mut directories = files | Flags::DIRSYNC;
    directories.set(Flags::COMPRESSED, compression);
    directories.set(Flags::PROJECT_INHERIT, projects);
    Kept {
        files,
        directories,
        projects,
    }
}

/// A node's attributes in the form on disk.
pub(crate) struct Attributes(Vec<Stored>);

impl Attributes {
    pub fn of(node: &Node, name: &str) -> Result<Self> {
        let list = node.xattrs.iter().map(|(full, value)| {
            to_stored(xattr::split_name, node.kind, full, value).map_err(|reason| MkfsError::Tree {
                name: name.to_owned(),
                reason,
            })
        });
        let mut list: Vec<Stored> = list.collect::<Result<_>>()?;
        if let Some(verity) = node.verity {
            let place = xattr::VerityPlace {
                descriptor_bytes: verity.descriptor_bytes,
                descriptor_at: verity.at + verity.tree_bytes,
            };
            let name = xattr::VERITY_NAME.to_vec();
            list.push((xattr::INDEX_VERITY, name, place.to_value()));
        }
        Ok(Attributes(list))
    }

    /// The inode's part of `inline` bytes, and the node's if one is needed.
    pub fn build(&self, inline: usize, name: &str) -> Result<(Vec<u8>, Option<Vec<u8>>)> {
        let list: Vec<Xattr<'_>> = self
            .0
            .iter()
            .map(|(index, name, value)| Xattr {
                index: *index,
                name,
                value,
            })
            .collect();
        xattr::build(&list, inline).ok_or_else(|| MkfsError::Tree {
            name: name.to_owned(),
            reason: format!(
                "its extended attributes take {} bytes, an inode has room for {}",
                xattr::list_bytes(&list),
                inline + xattr::NODE_BYTES
            ),
        })
    }
}
