//! A directory of the host as a source.
//!
//! Reads metadata, attributes and names into the tree. The files' data is read later, when the volume is written.

use super::data::DataRef;
use super::progress::told;
use super::tree::{LayerTree, NameKind, name_kind};
use super::{BuildProgress, Rules};
use crate::host::{self, HostFile};
use crate::{Error, ErrorKind, Result};
use blockwright_device::{os_name, positional};
use blockwright_mkfs::tree::{Node, NodeId};
use blockwright_ondisk::ext4::{FileKind, Timestamp};
use blockwright_ondisk::f2fs::xattr;
use std::collections::{HashMap, HashSet};
use std::fs::Metadata;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Lays the directory at `path` over the tree.
pub(crate) fn apply(tree: &mut LayerTree, path: &Path, rules: &Rules<'_>) -> Result<()> {
    let metadata = std::fs::metadata(path).map_err(|e| Error::from(e).at(path))?;
    if !metadata.is_dir() {
        return Err(Error::new(ErrorKind::NotDirectory, "not a directory").at(path));
    }
    let mut scan = Scan {
        tree,
        rules,
        linked: HashMap::new(),
        names: vec![0; 4096],
        plain: HashSet::new(),
        files: 0,
    };
    let mut root = scan.node(path, &metadata, FileKind::Directory)?;
    // The source itself may be given as a symbolic link.
    scan.flags(&path.join("."), &metadata, &mut root)?;
    scan.tree.describe(NodeId::ROOT, root);
    let mut todo = vec![Found {
        path: path.to_owned(),
        inside: Vec::new(),
        id: NodeId::ROOT,
    }];
    while let Some(found) = todo.pop() {
        scan.directory(&found, &mut todo)?;
    }
    Ok(())
}

/// A directory whose entries are to be read.
struct Found {
    path: PathBuf,
    /// Its path in the volume.
    inside: Vec<u8>,
    id: NodeId,
}

struct Scan<'a, 'r> {
    tree: &'a mut LayerTree,
    rules: &'a Rules<'r>,
    /// Files with several names, by device and inode.
    linked: HashMap<(u64, u64), NodeId>,
    /// Space for lists of attribute names.
    names: Vec<u8>,
    /// File systems that know neither inode flags nor projects.
    plain: HashSet<u64>,
    files: u64,
}

fn kind_of(found: &HostFile) -> Option<FileKind> {
    FileKind::from_mode((found.mode & 0o170_000) as u16)
}

impl Scan<'_, '_> {
    fn directory(&mut self, dir: &Found, todo: &mut Vec<Found>) -> Result<()> {
        let (path, id) = (&*dir.path, dir.id);
        let at = |e: io::Error| Error::from(e).at(path);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(path).map_err(at)? {
            names.push(os_name::into_bytes(entry.map_err(at)?.file_name()));
        }
        // The same tree always gives the same volume, whatever order the host lists it in.
        names.sort_unstable();
        for name in names {
            match name_kind(&name) {
                NameKind::Plain => {}
                NameKind::Ignored => continue,
                NameKind::Opaque => {
                    self.tree.opaque(id);
                    continue;
                }
                NameKind::Whiteout(gone) => {
                    self.tree.whiteout(id, gone);
                    continue;
                }
            }
            let path = path.join(os_name::of(&name));
            self.entry(&path, dir, &name, todo)?;
        }
        Ok(())
    }

    fn entry(
        &mut self,
        path: &Path,
        parent: &Found,
        name: &[u8],
        todo: &mut Vec<Found>,
    ) -> Result<()> {
        let dir = parent.id;
        let at = |e: io::Error| Error::from(e).at(path);
        let metadata = std::fs::symlink_metadata(path).map_err(at)?;
        let found = HostFile::of(&metadata);
        if found.identity.is_some() && self.rules.image == found.identity {
            return Ok(());
        }
        let inside = match &parent.inside[..] {
            b"" => name.to_vec(),
            above => [above, b"/", name].concat(),
        };
        // Files that are left out need not be readable.
        if self.rules.policy.leaves_out(&inside, metadata.is_dir()) {
            return Ok(());
        }
        self.files += 1;
        if self.files.is_multiple_of(512) {
            told(self.rules.progress, &BuildProgress::Reading { files: 512 })?;
        }
        if let Some(known) = found.identity.and_then(|id| self.linked.get(&id)) {
            return self.tree.link(dir, name, *known).map_err(|e| e.at(path));
        }
        let Some(kind) = kind_of(&found) else {
            return Err(
                Error::new(ErrorKind::Unsupported, "a kind of file that is not known").at(path),
            );
        };
        let mut node = self.node(path, &metadata, kind)?;
        if matches!(kind, FileKind::Regular | FileKind::Directory) {
            self.flags(path, &metadata, &mut node)?;
        }
        let mut data = None;
        match kind {
            FileKind::Regular => {
                node.size = metadata.len();
                node.data = data_ranges(path, &metadata).map_err(at)?;
                data = Some(DataRef::Host(path.to_owned()));
            }
            FileKind::Symlink => {
                let target = std::fs::read_link(path).map_err(at)?;
                node.symlink = os_name::into_bytes(target.into_os_string());
            }
            FileKind::CharDevice | FileKind::BlockDevice => {
                node.device = found.device;
            }
            FileKind::Directory | FileKind::Fifo | FileKind::Socket => {}
        }
        let id = self.tree.insert(dir, name, node, data);
        if kind == FileKind::Directory {
            todo.push(Found {
                path: path.to_owned(),
                inside,
                id,
            });
        } else if found.names > 1
            && let Some(identity) = found.identity
        {
            self.linked.insert(identity, id);
        }
        Ok(())
    }

    /// A node with a host file's metadata.
    fn node(&mut self, path: &Path, metadata: &Metadata, kind: FileKind) -> Result<Node> {
        let found = HostFile::of(metadata);
        let mut node = Node::new(kind, (found.mode & 0o7777) as u16, self.rules.now);
        (node.uid, node.gid) = self.rules.owner.unwrap_or((found.uid, found.gid));
        let time = |(secs, nanos): host::Time| Timestamp {
            secs,
            nanos: u32::try_from(nanos).unwrap_or(0),
        };
        node.mtime = time(found.mtime);
        node.atime = time(found.atime);
        node.ctime = time(found.ctime);
        node.xattrs =
            host::xattrs(path, &mut self.names, storable).map_err(|e| Error::from(e).at(path))?;
        Ok(node)
    }

    /// Inode flags and project. Only of what can be opened without side effects.
    fn flags(&mut self, path: &Path, metadata: &Metadata, node: &mut Node) -> Result<()> {
        let Some((device, _)) = HostFile::of(metadata).identity else {
            return Ok(());
        };
        if self.plain.contains(&device) {
            return Ok(());
        }
        let file = match host::open(path) {
            Ok(file) => file,
            // Reading it, or what is in it, says so.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
            Err(e) => return Err(Error::from(e).at(path)),
        };
        match host::flags(&file).map_err(|e| Error::from(e).at(path))? {
            Some(found) => (node.flags, node.project) = found,
            None => {
                self.plain.insert(device);
            }
        }
        Ok(())
    }
}

/// Whether the format has a place for attributes of this name; others belong to the host's own file
/// system.
pub(crate) fn storable(name: &[u8]) -> bool {
    // Those of f2fs are those that both formats have. A name of theirs that is too long is refused later, not left out.
    xattr::PREFIXES.iter().any(|(_, prefix)| {
        let rest = name.strip_prefix(prefix.as_bytes());
        rest.is_some_and(|rest| rest.is_empty() != prefix.ends_with('.'))
    })
}

/// Where a host's file has data. Only files that take less room than they are long are asked.
fn data_ranges(path: &Path, metadata: &Metadata) -> io::Result<Vec<Range<u64>>> {
    let size = metadata.len();
    if size == 0 {
        return Ok(Vec::new());
    }
    let whole: Vec<Range<u64>> = std::iter::once(0..size).collect();
    let allocated = HostFile::of(metadata).allocated;
    if allocated.is_none_or(|bytes| bytes >= size) {
        return Ok(whole);
    }
    let file = host::open(path)?;
    let mut out = Vec::new();
    let mut at = 0;
    loop {
        match positional::next_run(&file, at, size) {
            Ok(None) => return Ok(out),
            Ok(Some((start, end))) if start < end => {
                out.push(start..end);
                at = end;
            }
            Ok(Some(_)) => return Ok(out),
            // A file system that cannot tell has data everywhere.
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => return Ok(whole),
            Err(e) => return Err(e),
        }
    }
}
