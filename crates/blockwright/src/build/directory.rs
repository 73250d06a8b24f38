//! A directory of the host as a source.
//!
//! Reads metadata, attributes and names into the tree. The files' data is read later, when the volume is written.

use super::data::DataRef;
use super::tree::{LayerTree, NameKind, name_kind};
use super::{BuildProgress, Rules};
use crate::{Error, ErrorKind, Result};
use blockwright_device::host::file_flags;
use blockwright_mkfs::tree::{Node, NodeId};
use blockwright_ondisk::ext4::{FileKind, Timestamp};
use blockwright_ondisk::f2fs::xattr;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::CStr;
use std::fs::Metadata;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
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

fn kind_of(metadata: &Metadata) -> Option<FileKind> {
    FileKind::from_mode((metadata.mode() & 0o170_000) as u16)
}

impl Scan<'_, '_> {
    fn directory(&mut self, dir: &Found, todo: &mut Vec<Found>) -> Result<()> {
        let (path, id) = (&*dir.path, dir.id);
        let at = |e: io::Error| Error::from(e).at(path);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(path).map_err(at)? {
            names.push(entry.map_err(at)?.file_name().into_vec());
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
            let path = path.join(std::ffi::OsString::from_vec(name.clone()));
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
        let identity = (metadata.dev(), metadata.ino());
        if self.rules.image == Some(identity) {
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
            (self.rules.progress)(&BuildProgress::Reading { files: 512 });
        }
        if let Some(known) = self.linked.get(&identity) {
            return self.tree.link(dir, name, *known).map_err(|e| e.at(path));
        }
        let Some(kind) = kind_of(&metadata) else {
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
                node.symlink = std::fs::read_link(path)
                    .map_err(at)?
                    .into_os_string()
                    .into_vec();
            }
            FileKind::CharDevice | FileKind::BlockDevice => {
                let dev = metadata.rdev();
                node.device = (rustix::fs::major(dev), rustix::fs::minor(dev));
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
        } else if metadata.nlink() > 1 {
            self.linked.insert(identity, id);
        }
        Ok(())
    }

    /// A node with a host file's metadata.
    fn node(&mut self, path: &Path, metadata: &Metadata, kind: FileKind) -> Result<Node> {
        let mut node = Node::new(kind, (metadata.mode() & 0o7777) as u16, self.rules.now);
        (node.uid, node.gid) = self.rules.owner.unwrap_or((metadata.uid(), metadata.gid()));
        let time = |secs, nanos: i64| Timestamp {
            secs,
            nanos: u32::try_from(nanos).unwrap_or(0),
        };
        node.mtime = time(metadata.mtime(), metadata.mtime_nsec());
        node.atime = time(metadata.atime(), metadata.atime_nsec());
        node.ctime = time(metadata.ctime(), metadata.ctime_nsec());
        node.xattrs = self.xattrs(path).map_err(|e| Error::from(e).at(path))?;
        Ok(node)
    }

    /// Inode flags and project. Only of what can be opened without side effects.
    fn flags(&mut self, path: &Path, metadata: &Metadata, node: &mut Node) -> Result<()> {
        if self.plain.contains(&metadata.dev()) {
            return Ok(());
        }
        let file = match super::data::open_host(path) {
            Ok(file) => file,
            // Reading it, or what is in it, says so.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
            Err(e) => return Err(Error::from(e).at(path)),
        };
        match file_flags(&file).map_err(|e| Error::from(e).at(path))? {
            Some(found) => (node.flags, node.project) = (found.flags, found.project),
            None => {
                self.plain.insert(metadata.dev());
            }
        }
        Ok(())
    }

    fn xattrs(&mut self, path: &Path) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
        let mut out = BTreeMap::new();
        let used = loop {
            match rustix::fs::llistxattr(path, &mut self.names[..]) {
                Ok(0) => return Ok(out),
                Ok(n) => break n,
                Err(Errno::RANGE) => self.names.resize(self.names.len() * 2, 0),
                Err(Errno::NOTSUP) => return Ok(out),
                Err(e) => return Err(e.into()),
            }
        };
        for name in self.names[..used].split_inclusive(|b| *b == 0) {
            let Ok(name) = CStr::from_bytes_with_nul(name) else {
                continue;
            };
            if !storable(name.to_bytes()) {
                continue;
            }
            let mut value = vec![0u8; 256];
            let got = loop {
                match rustix::fs::lgetxattr(path, name, &mut value[..]) {
                    Ok(n) => break Some(n),
                    Err(Errno::RANGE) if value.len() < 1 << 17 => {
                        value.resize(value.len() * 4, 0);
                    }
                    // Gone meanwhile, or not for us to see.
                    Err(Errno::NODATA | Errno::ACCESS | Errno::PERM) => break None,
                    Err(e) => return Err(e.into()),
                }
            };
            if let Some(n) = got {
                value.truncate(n);
                out.insert(name.to_bytes().to_vec(), value);
            }
        }
        Ok(out)
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
    if metadata.blocks().saturating_mul(512) >= size {
        return Ok(whole);
    }
    let file = super::data::open_host(path)?;
    let mut out = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match rustix::fs::seek(&file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            // A file system that cannot tell has data everywhere.
            Err(Errno::INVAL) => return Ok(whole),
            Err(e) => return Err(e.into()),
        };
        let end = rustix::fs::seek(&file, SeekFrom::Hole(start))?.min(size);
        if start >= end {
            break;
        }
        out.push(start..end);
        at = end;
    }
    Ok(out)
}
