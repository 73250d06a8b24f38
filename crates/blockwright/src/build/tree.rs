//! The tree that sources are merged into, before any of it is in a volume.
//!
//! Every path is resolved inside the tree: symbolic links lead where they would inside the finished
//! volume, `..` never leads above its root, and the host is not touched at all.
//!
//! Layers: every source has a number, every node that of the source it came from. A whiteout removes
//! what came from sources before its own, never what its own brings.

use super::data::DataRef;
use crate::{Error, ErrorKind, Result};
use blockwright_device::os_name;
use blockwright_mkfs::tree::{Node, NodeId, Tree};
use blockwright_ondisk::ext4::{FileKind, Timestamp};
use std::collections::HashMap;
use std::path::PathBuf;

/// How many symbolic links one resolution follows.
const SYMLINKS_MAX: usize = 40;
/// The prefix of whiteouts.
const WHITEOUT: &[u8] = b".wh.";
/// The name that empties a directory of what came from below.
const OPAQUE: &[u8] = b".wh..wh..opq";

/// Sources laid over one another.
pub(crate) struct LayerTree {
    pub tree: Tree,
    /// Where the data of regular files is.
    pub data: HashMap<NodeId, DataRef>,
    /// Per node: the source it came from last.
    layers: Vec<u32>,
    layer: u32,
    /// Times of directories that no source describes.
    now: Timestamp,
}

/// What a name means besides naming a file.
pub(crate) enum NameKind<'a> {
    /// A file's name.
    Plain,
    /// Removes this name from the sources below.
    Whiteout(&'a [u8]),
    /// Removes everything in its directory from the sources below.
    Opaque,
    /// Bookkeeping of other tools, to be ignored.
    Ignored,
}

/// What a name in a layer means.
pub(crate) fn name_kind(name: &[u8]) -> NameKind<'_> {
    if name == OPAQUE {
        return NameKind::Opaque;
    }
    match name.strip_prefix(WHITEOUT) {
        None | Some(b"") => NameKind::Plain,
        Some(rest) if rest.starts_with(WHITEOUT) => NameKind::Ignored,
        Some(rest) => NameKind::Whiteout(rest),
    }
}

fn show(path: &[u8]) -> PathBuf {
    PathBuf::from(&*os_name::of(path))
}

impl LayerTree {
    pub fn new(root: Node, now: Timestamp) -> Self {
        LayerTree {
            tree: Tree::new(root),
            data: HashMap::new(),
            layers: vec![0],
            layer: 0,
            now,
        }
    }

    /// A new source begins.
    pub fn next_layer(&mut self) {
        self.layer += 1;
    }

    fn add(&mut self, node: Node) -> NodeId {
        let id = self.tree.add(node);
        self.layers.push(self.layer);
        id
    }

    fn child(&self, dir: NodeId, name: &[u8]) -> Option<NodeId> {
        self.tree.node(dir).children.get(name).copied()
    }

    fn is_dir(&self, id: NodeId) -> bool {
        self.tree.node(id).kind == FileKind::Directory
    }

    /// The components of a path from a source; `..` is refused.
    fn parts(path: &[u8]) -> Result<Vec<&[u8]>> {
        let mut out = Vec::new();
        for part in path.split(|b| *b == b'/') {
            match part {
                b"" | b"." => {}
                b".." => {
                    return Err(Error::new(
                        ErrorKind::Invalid,
                        "a name that leads upwards (..) is refused",
                    )
                    .at(show(path)));
                }
                _ if part.len() > 255 => {
                    return Err(Error::new(
                        ErrorKind::NameTooLong,
                        "a component of the name is longer than 255 bytes",
                    )
                    .at(show(path)));
                }
                _ if part.contains(&0) => {
                    return Err(
                        Error::new(ErrorKind::Invalid, "a name with a zero byte in it")
                            .at(show(path)),
                    );
                }
                _ => out.push(part),
            }
        }
        Ok(out)
    }

    /// The directory that a path's last component is in, made if missing, and that component. `None`
    /// for the root itself.
    pub fn parent_of<'p>(&mut self, path: &'p [u8]) -> Result<Option<(NodeId, &'p [u8])>> {
        let parts = Self::parts(path)?;
        let Some((name, dirs)) = parts.split_last() else {
            return Ok(None);
        };
        let mut links = 0;
        let mut stack = vec![NodeId::ROOT];
        for part in dirs {
            self.step(&mut stack, part, true, &mut links)
                .map_err(|e| e.at(show(path)))?;
        }
        let dir = stack.last().copied().unwrap_or(NodeId::ROOT);
        Ok(Some((dir, name)))
    }

    /// Goes one component further, following symbolic links. The stack holds the directories from the
    /// root to where the walk is.
    fn step(
        &mut self,
        stack: &mut Vec<NodeId>,
        part: &[u8],
        make: bool,
        links: &mut usize,
    ) -> Result<()> {
        match part {
            b"" | b"." => return Ok(()),
            b".." => {
                if stack.len() > 1 {
                    stack.pop();
                }
                return Ok(());
            }
            _ => {}
        }
        let dir = stack.last().copied().unwrap_or(NodeId::ROOT);
        let next = match self.child(dir, part) {
            Some(next) => next,
            None if make => {
                let node = Node::new(FileKind::Directory, 0o755, self.now);
                let id = self.add(node);
                self.tree.node_mut(dir).children.insert(part.to_vec(), id);
                id
            }
            None => {
                return Err(Error::new(
                    ErrorKind::NotFound,
                    "no such file in the sources",
                ));
            }
        };
        match self.tree.node(next).kind {
            FileKind::Directory => stack.push(next),
            FileKind::Symlink => {
                *links += 1;
                if *links > SYMLINKS_MAX {
                    return Err(Error::new(
                        ErrorKind::TooManySymlinks,
                        "too many levels of symbolic links",
                    ));
                }
                let target = self.tree.node(next).symlink.clone();
                if target.first() == Some(&b'/') {
                    stack.truncate(1);
                }
                for part in target.split(|b| *b == b'/') {
                    self.step(stack, part, make, links)?;
                }
            }
            _ => {
                return Err(Error::new(
                    ErrorKind::NotDirectory,
                    format!(
                        "{} is not a directory, but a file is to go into it",
                        String::from_utf8_lossy(part)
                    ),
                ));
            }
        }
        Ok(())
    }

    /// What a path names, symbolic links on the way followed, one at its end not.
    pub fn find(&mut self, path: &[u8]) -> Result<NodeId> {
        let parts = Self::parts(path)?;
        let Some((name, dirs)) = parts.split_last() else {
            return Ok(NodeId::ROOT);
        };
        let mut stack = vec![NodeId::ROOT];
        let mut links = 0;
        for part in dirs {
            self.step(&mut stack, part, false, &mut links)?;
        }
        let dir = stack.last().copied().unwrap_or(NodeId::ROOT);
        self.child(dir, name)
            .ok_or_else(|| Error::new(ErrorKind::NotFound, "no such file in the sources"))
    }

    /// Gives a node a name in `dir`. A directory over a directory keeps the entries of the one below;
    /// everything else replaces what has the name.
    pub fn insert(
        &mut self,
        dir: NodeId,
        name: &[u8],
        node: Node,
        data: Option<DataRef>,
    ) -> NodeId {
        if let Some(old) = self.child(dir, name)
            && node.kind == FileKind::Directory
            && self.is_dir(old)
        {
            self.describe(old, node);
            return old;
        }
        let id = self.add(node);
        if let Some(data) = data {
            self.data.insert(id, data);
        }
        self.tree.node_mut(dir).children.insert(name.to_vec(), id);
        id
    }

    /// Replaces a directory's metadata, keeping its entries.
    pub fn describe(&mut self, dir: NodeId, node: Node) {
        let old = self.tree.node_mut(dir);
        let children = std::mem::take(&mut old.children);
        *old = node;
        old.children = children;
        self.layers[dir.0 as usize] = self.layer;
    }

    /// Gives a node that has a name another one.
    pub fn link(&mut self, dir: NodeId, name: &[u8], to: NodeId) -> Result<()> {
        if self.is_dir(to) {
            return Err(Error::new(
                ErrorKind::NotPermitted,
                "a hard link to a directory",
            ));
        }
        self.layers[to.0 as usize] = self.layer;
        self.tree.node_mut(dir).children.insert(name.to_vec(), to);
        Ok(())
    }

    /// Takes what a whiteout names away.
    pub fn whiteout(&mut self, dir: NodeId, name: &[u8]) {
        let Some(id) = self.child(dir, name) else {
            return;
        };
        if self.layers[id.0 as usize] < self.layer {
            self.tree.node_mut(dir).children.remove(name);
        } else if self.is_dir(id) {
            self.opaque(id);
        }
    }

    /// Takes everything away from a directory that came from sources below.
    pub fn opaque(&mut self, dir: NodeId) {
        let mut todo = vec![dir];
        while let Some(dir) = todo.pop() {
            let mut children = std::mem::take(&mut self.tree.node_mut(dir).children);
            children.retain(|_, id| self.layers[id.0 as usize] >= self.layer);
            todo.extend(children.values().copied().filter(|id| self.is_dir(*id)));
            self.tree.node_mut(dir).children = children;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        Timestamp { secs: 7, nanos: 0 }
    }

    fn empty() -> LayerTree {
        LayerTree::new(Node::new(FileKind::Directory, 0o755, now()), now())
    }

    fn put(t: &mut LayerTree, path: &str, kind: FileKind) -> NodeId {
        let (dir, name) = t
            .parent_of(path.as_bytes())
            .expect("resolves")
            .expect("not the root");
        t.insert(dir, name, Node::new(kind, 0o644, now()), None)
    }

    fn link_to(t: &mut LayerTree, path: &str, target: &str) {
        let id = put(t, path, FileKind::Symlink);
        t.tree.node_mut(id).symlink = target.as_bytes().to_vec();
    }

    #[test]
    fn links_lead_nowhere_but_inside() {
        let mut t = empty();
        link_to(&mut t, "up", "../../../etc");
        let a = put(&mut t, "up/passwd", FileKind::Regular);
        assert_eq!(t.find(b"etc/passwd").expect("inside"), a);
        link_to(&mut t, "abs", "/etc");
        let b = put(&mut t, "abs/shadow", FileKind::Regular);
        assert_eq!(t.find(b"/etc/shadow").expect("inside"), b);
        link_to(&mut t, "x/loop", "loop");
        assert_eq!(
            t.parent_of(b"x/loop/y").expect_err("loops").kind(),
            ErrorKind::TooManySymlinks
        );
        assert_eq!(
            t.parent_of(b"a/../b").expect_err("refused").kind(),
            ErrorKind::Invalid
        );
        assert_eq!(
            t.parent_of(b"etc/passwd/z").expect_err("a file").kind(),
            ErrorKind::NotDirectory
        );
    }

    #[test]
    fn whiteouts_reach_below_only() {
        let mut t = empty();
        put(&mut t, "d/old", FileKind::Regular);
        put(&mut t, "d/sub/old", FileKind::Regular);
        put(&mut t, "gone/x", FileKind::Regular);
        t.next_layer();
        put(&mut t, "d/new", FileKind::Regular);
        put(&mut t, "d/sub/new", FileKind::Regular);
        t.whiteout(NodeId::ROOT, b"gone");
        assert!(t.find(b"gone").is_err());
        let d = t.find(b"d").expect("there");
        let sub = t.find(b"d/sub").expect("there");
        let fresh = Node::new(FileKind::Directory, 0o700, now());
        t.describe(sub, fresh);
        t.opaque(d);
        assert!(t.find(b"d/old").is_err());
        assert!(t.find(b"d/sub/old").is_err());
        assert!(t.find(b"d/new").is_ok());
        assert!(t.find(b"d/sub/new").is_ok());
        t.whiteout(d, b"new");
        assert!(t.find(b"d/new").is_ok());
    }

    #[test]
    fn kinds_replace_each_other_but_directories_merge() {
        let mut t = empty();
        put(&mut t, "a/b", FileKind::Regular);
        put(&mut t, "a", FileKind::Directory);
        assert!(t.find(b"a/b").is_ok());
        put(&mut t, "a", FileKind::Regular);
        assert!(t.find(b"a/b").is_err());
    }
}
