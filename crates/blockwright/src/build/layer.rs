//! A tar archive as a source: its entries laid over the tree, in order.

use super::archive::Input;
use super::data::DataRef;
use super::progress::told;
use super::tar::{End, Entry, EntryKind, TarReader};
use super::tree::{LayerTree, NameKind, name_kind};
use super::{BuildProgress, Rules};
use crate::{Error, ErrorKind, Result};
use blockwright_device::os_name;
use blockwright_mkfs::tree::{Node, NodeId};
use blockwright_ondisk::ext4::FileKind;
use std::io::Read;
use std::path::Path;

/// Lays the archive in a file over the tree.
pub(crate) fn apply_file(tree: &mut LayerTree, path: &Path, rules: &Rules<'_>) -> Result<()> {
    apply(tree, Input::open(path, rules)?, End::Mark, rules)
}

/// Lays the archive of a stream over the tree.
pub(crate) fn apply_stream(
    tree: &mut LayerTree,
    reader: impl Read,
    rules: &Rules<'_>,
) -> Result<()> {
    apply(tree, Input::stream(reader, rules)?, End::Mark, rules)
}

/// Lays an archive over the tree.
pub(crate) fn apply(
    tree: &mut LayerTree,
    input: Input<'_>,
    end: End,
    rules: &Rules<'_>,
) -> Result<()> {
    let mut reader = TarReader::new(input, end);
    let mut files = 0u64;
    while let Some(entry) = reader.next()? {
        files += 1;
        if files.is_multiple_of(512) {
            told(rules.progress, &BuildProgress::Reading { files: 512 })?;
        }
        let path = entry.path.clone();
        let counted = rules.budget.entry(metadata_bytes(&entry));
        counted
            .and_then(|()| put(tree, entry, rules))
            .map_err(|e| {
                let name = os_name::of(&path);
                e.at(name)
            })?;
    }
    Ok(())
}

/// Bytes of memory that an entry takes while the volume is made.
fn metadata_bytes(entry: &Entry) -> u64 {
    let attributes = entry
        .xattrs
        .iter()
        .map(|(name, value)| name.len() + value.len());
    // A piece of a sparse file is a range and a segment.
    let bytes = entry.path.len() + entry.symlink.len() + entry.ranges.len() * 40;
    (bytes + attributes.sum::<usize>()) as u64
}

/// Lays one entry of an archive over the tree; whiteouts remove what lies below.
fn put(tree: &mut LayerTree, entry: Entry, rules: &Rules<'_>) -> Result<()> {
    let path = entry.path.clone();
    let Some((dir, name)) = tree.parent_of(&path)? else {
        // The root itself: its metadata only.
        if entry.kind == EntryKind::File(FileKind::Directory) {
            tree.describe(NodeId::ROOT, node(entry, FileKind::Directory, rules));
            return Ok(());
        }
        return Err(Error::new(
            ErrorKind::Invalid,
            "the root can only be a directory",
        ));
    };
    match name_kind(name) {
        NameKind::Plain => {}
        NameKind::Ignored => return Ok(()),
        NameKind::Opaque => {
            tree.opaque(dir);
            return Ok(());
        }
        NameKind::Whiteout(gone) => {
            tree.whiteout(dir, gone);
            return Ok(());
        }
    }
    match entry.kind.clone() {
        EntryKind::HardLink(target) => {
            let to = tree.find(&target).map_err(|e| {
                let target = String::from_utf8_lossy(&target).into_owned();
                Error::new(e.kind(), format!("a hard link to {target}: {e}"))
            })?;
            tree.link(dir, name, to)
        }
        EntryKind::File(kind) => {
            let mut entry = entry;
            let data = entry.data.take();
            tree.insert(dir, name, node(entry, kind, rules), data);
            Ok(())
        }
    }
}

/// Puts a container image's configuration where it is found again.
pub(crate) fn put_config(
    tree: &mut LayerTree,
    data: DataRef,
    bytes: u64,
    rules: &Rules<'_>,
) -> Result<()> {
    let Some((dir, name)) = tree.parent_of(b".blockwright/config.json")? else {
        return Ok(());
    };
    let mut node = Node::new(FileKind::Regular, 0o644, rules.now);
    (node.mtime, node.atime) = (rules.now, rules.now);
    node.size = bytes;
    node.data = std::iter::once(0..bytes).collect();
    tree.insert(dir, name, node, Some(data));
    Ok(())
}

fn node(entry: Entry, kind: FileKind, rules: &Rules<'_>) -> Node {
    let mut node = Node::new(kind, entry.perm, rules.now);
    (node.uid, node.gid) = (entry.uid, entry.gid);
    node.mtime = entry.mtime;
    node.atime = entry.atime.unwrap_or(entry.mtime);
    node.ctime = entry.ctime.unwrap_or(entry.mtime);
    node.device = entry.device;
    node.symlink = entry.symlink;
    node.size = entry.size;
    node.data = entry.ranges;
    node.xattrs = entry.xattrs;
    node
}
