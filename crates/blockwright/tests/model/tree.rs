//! The reference: a tree of nodes in memory that does what the operations should do.

use std::collections::BTreeMap;

/// A place in [`Tree::nodes`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Id(pub usize);

#[derive(Clone, Debug)]
pub enum Body {
    File(Vec<u8>),
    Dir(BTreeMap<String, Id>),
    Symlink(String),
    Fifo,
}

#[derive(Clone, Debug)]
pub struct Node {
    pub body: Body,
    pub perm: u32,
    pub owner: (u32, u32),
    /// Names of a file; not kept for directories.
    pub names: u32,
    /// When set, and not changed by a write since.
    pub mtime: Option<(i64, u32)>,
    pub xattrs: BTreeMap<String, Vec<u8>>,
}

impl Node {
    pub fn new(body: Body, perm: u32) -> Self {
        Node {
            body,
            perm,
            owner: (0, 0),
            names: 1,
            mtime: None,
            xattrs: BTreeMap::new(),
        }
    }

    pub fn is_dir(&self) -> bool {
        matches!(self.body, Body::Dir(_))
    }

    pub fn is_file(&self) -> bool {
        matches!(self.body, Body::File(_))
    }

    pub fn bytes(&self) -> &[u8] {
        match &self.body {
            Body::File(bytes) => bytes,
            _ => &[],
        }
    }
}

/// A name: the directory it is in and what it is.
#[derive(Clone, Debug)]
pub struct Entry {
    pub dir: Id,
    pub name: String,
    pub path: String,
    pub id: Id,
}

pub struct Tree {
    pub nodes: Vec<Node>,
}

pub const ROOT: Id = Id(0);

impl Tree {
    pub fn new() -> Self {
        Tree {
            nodes: vec![Node::new(Body::Dir(BTreeMap::new()), 0o755)],
        }
    }

    pub fn node(&self, id: Id) -> &Node {
        &self.nodes[id.0]
    }

    pub fn node_mut(&mut self, id: Id) -> &mut Node {
        &mut self.nodes[id.0]
    }

    pub fn add(&mut self, node: Node) -> Id {
        self.nodes.push(node);
        Id(self.nodes.len() - 1)
    }

    pub fn names(&self, dir: Id) -> &BTreeMap<String, Id> {
        match &self.node(dir).body {
            Body::Dir(names) => names,
            other => panic!("not a directory: {other:?}"),
        }
    }

    pub fn names_mut(&mut self, dir: Id) -> &mut BTreeMap<String, Id> {
        match &mut self.node_mut(dir).body {
            Body::Dir(names) => names,
            other => panic!("not a directory: {other:?}"),
        }
    }

    pub fn bytes_mut(&mut self, id: Id) -> &mut Vec<u8> {
        let node = self.node_mut(id);
        node.mtime = None;
        match &mut node.body {
            Body::File(bytes) => bytes,
            other => panic!("not a file: {other:?}"),
        }
    }

    /// All names, directories before what is in them.
    pub fn entries(&self) -> Vec<Entry> {
        let mut out = Vec::new();
        let mut todo = vec![(ROOT, String::new())];
        while let Some((dir, path)) = todo.pop() {
            for (name, id) in self.names(dir) {
                let path = format!("{path}/{name}");
                if self.node(*id).is_dir() {
                    todo.push((*id, path.clone()));
                }
                out.push(Entry {
                    dir,
                    name: name.clone(),
                    path,
                    id: *id,
                });
            }
        }
        out.sort_by(|a, b| a.path.cmp(&b.path));
        out
    }

    /// All directories with their paths, the root first.
    pub fn dirs(&self) -> Vec<(Id, String)> {
        let mut out = vec![(ROOT, String::new())];
        for e in self.entries() {
            if self.node(e.id).is_dir() {
                out.push((e.id, e.path));
            }
        }
        out
    }

    /// Whether `dir` is `top` or below it.
    pub fn is_below(&self, dir: Id, top: Id) -> bool {
        if dir == top {
            return true;
        }
        match &self.node(top).body {
            Body::Dir(names) => names.values().any(|id| self.is_below(dir, *id)),
            _ => false,
        }
    }

    pub fn write(&mut self, id: Id, at: usize, data: &[u8]) {
        let bytes = self.bytes_mut(id);
        if data.is_empty() {
            return;
        }
        if bytes.len() < at + data.len() {
            bytes.resize(at + data.len(), 0);
        }
        bytes[at..at + data.len()].copy_from_slice(data);
    }

    pub fn zero(&mut self, id: Id, at: usize, end: usize) {
        let bytes = self.bytes_mut(id);
        let end = end.min(bytes.len());
        if at < end {
            bytes[at..end].fill(0);
        }
    }

    /// Touches the mtime of a directory whose names change.
    pub fn touched(&mut self, dir: Id) {
        self.node_mut(dir).mtime = None;
    }
}
