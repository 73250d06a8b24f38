//! A tree of files to be put into a new volume: metadata in memory, data by reference.
//!
//! Names are ordered by their bytes, so that the same tree always gives the same volume.

use blockwright_ondisk::ext4::types::NAME_MAX;
use blockwright_ondisk::ext4::{FileKind, Timestamp};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// A file's position in [`Tree::nodes`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub u32);

impl NodeId {
    /// The root directory of every tree.
    pub const ROOT: Self = Self(0);
}

/// fs-verity's metadata behind a file's end, where its file system keeps it: the Merkle tree, then the descriptor.
///
/// Source: the kernel's documentation of ext4, "fs-verity files"; f2fs begins at the same place, and keeps the descriptor's
/// place and length in an attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VerityMetadata {
    /// Byte of the file where the tree begins: the first multiple of 64 KiB that is not below its size.
    pub at: u64,
    /// Bytes of the tree.
    pub tree_bytes: u64,
    /// Bytes of the descriptor.
    pub descriptor_bytes: u32,
    /// Bytes from `at` on that are stored: whole blocks of 4096 bytes.
    pub bytes: u64,
}

/// One inode-to-be.
#[derive(Clone, Debug)]
pub struct Node {
    /// Kind.
    pub kind: FileKind,
    /// Permission bits with set-id and sticky (`0o7777`).
    pub perm: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Project.
    pub project: u32,
    /// Inode flags, as `FS_IOC_GETFLAGS` returns them. Flags that the format does not keep are left
    /// out ([`crate::flags`]).
    pub flags: u32,
    /// Device number of a device file: major and minor.
    pub device: (u32, u32),
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the contents.
    pub mtime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Birth.
    pub crtime: Timestamp,
    /// Extended attributes by full name (`user.x`, `system.posix_acl_access` as setxattr(2) takes it).
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Size in bytes of a regular file.
    pub size: u64,
    /// Where a regular file has data: sorted, disjoint, not empty, within [`Node::stored_bytes`]. The rest are holes.
    pub data: Vec<Range<u64>>,
    /// A regular file is protected by fs-verity, and has this metadata as the last range of its data.
    pub verity: Option<VerityMetadata>,
    /// Target of a symbolic link.
    pub symlink: Vec<u8>,
    /// Entries of a directory.
    pub children: BTreeMap<Vec<u8>, NodeId>,
}

impl Node {
    /// A node of `kind` with these bits, owned by root, with all times at `now`.
    #[must_use]
    pub fn new(kind: FileKind, perm: u16, now: Timestamp) -> Self {
        Node {
            kind,
            perm,
            uid: 0,
            gid: 0,
            project: 0,
            flags: 0,
            device: (0, 0),
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            xattrs: BTreeMap::new(),
            size: 0,
            data: Vec::new(),
            verity: None,
            symlink: Vec::new(),
            children: BTreeMap::new(),
        }
    }

    /// Bytes of a regular file that are stored: its size, and the metadata of fs-verity behind it.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        self.verity.map_or(self.size, |v| v.at + v.bytes)
    }
}

/// A tree of files. Node 0 is the root directory; nodes that no directory names are ignored.
#[derive(Clone, Debug)]
pub struct Tree {
    /// All nodes.
    pub nodes: Vec<Node>,
}

impl Tree {
    /// A tree of nothing but this root directory.
    #[must_use]
    pub fn new(root: Node) -> Self {
        Tree { nodes: vec![root] }
    }

    /// That of an empty volume made at this time (seconds since 1970): a root directory of these owners.
    #[must_use]
    pub fn empty(now: u64, (uid, gid): (u32, u32)) -> Self {
        let now = Timestamp {
            secs: i64::try_from(now).unwrap_or(i64::MAX),
            nanos: 0,
        };
        let mut root = Node::new(FileKind::Directory, 0o755, now);
        (root.uid, root.gid) = (uid, gid);
        Tree::new(root)
    }

    /// A node.
    ///
    /// # Panics
    /// When the id is not from this tree.
    #[must_use]
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    /// A node, to change it.
    ///
    /// # Panics
    /// When the id is not from this tree.
    pub fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.0 as usize]
    }

    /// A path that leads to a node, for messages; the first one in the order of a walk.
    #[must_use]
    pub fn path_of(&self, id: NodeId) -> String {
        let mut named: HashMap<NodeId, (NodeId, &[u8])> = HashMap::new();
        for (dir, _) in self.reachable() {
            for (name, child) in &self.node(dir).children {
                named.entry(*child).or_insert((dir, name));
            }
        }
        let mut names = Vec::new();
        let mut at = id;
        // No longer than the tree is large: names of a tree that is refused may form a loop.
        while at != NodeId::ROOT && names.len() < self.nodes.len() {
            let Some((dir, name)) = named.get(&at) else {
                break;
            };
            names.push(String::from_utf8_lossy(name));
            at = *dir;
        }
        if names.is_empty() {
            return "/".to_owned();
        }
        let mut path = String::new();
        for name in names.iter().rev() {
            path.push('/');
            path.push_str(name);
        }
        path
    }

    /// Adds a node that has no name yet.
    pub fn add(&mut self, node: Node) -> NodeId {
        let id = NodeId(u32::try_from(self.nodes.len()).unwrap_or(u32::MAX));
        self.nodes.push(node);
        id
    }

    /// The nodes that names reach, in the order of a walk that finishes a directory's own entries
    /// before it descends (so that what is listed together lies together), with how many names
    /// each has (for a directory: its parent's, its own `.`, and its children's `..`).
    #[must_use]
    pub fn reachable(&self) -> Vec<(NodeId, u32)> {
        let mut links = vec![0u32; self.nodes.len()];
        let mut order = vec![NodeId::ROOT];
        links[0] = 2;
        let mut next = 0;
        while next < order.len() {
            let dir = order[next];
            next += 1;
            for child in self.node(dir).children.values() {
                let index = child.0 as usize;
                let is_dir = self.nodes[index].kind == FileKind::Directory;
                if links[index] == 0 {
                    order.push(*child);
                }
                if is_dir {
                    links[index] += 2;
                    links[dir.0 as usize] += 1;
                } else {
                    links[index] += 1;
                }
            }
        }
        order
            .into_iter()
            .map(|id| (id, links[id.0 as usize]))
            .collect()
    }
}

/// Whether a directory entry may have this name, in either format.
pub(crate) fn valid_name(name: &[u8]) -> bool {
    !name.is_empty()
        && name.len() <= NAME_MAX
        && name != b"."
        && name != b".."
        && !name.iter().any(|b| matches!(b, 0 | b'/'))
}

/// The file blocks that hold data: byte ranges rounded outwards, and merged.
pub(crate) fn block_ranges(data: &[Range<u64>], size: u64, bits: u32) -> Vec<(u64, u64)> {
    let mut out: Vec<(u64, u64)> = Vec::with_capacity(data.len());
    for r in data {
        let end = r.end.min(size);
        if r.start >= end {
            continue;
        }
        let (start, end) = (r.start >> bits, ((end - 1) >> bits) + 1);
        match out.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => out.push((start, end)),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert!(valid_name(b"a"));
        assert!(valid_name(&[0xFF; 255]));
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0", &[b'x'; 256]] {
            assert!(!valid_name(bad));
        }
    }

    #[test]
    fn ranges_round_outwards_and_merge() {
        let ranges = block_ranges(&[0..1, 4095..4097, 20_000..20_001], 20_001, 12);
        assert_eq!(ranges, [(0, 2), (4, 5)]);
        assert_eq!(block_ranges(&[0..10, 5000..6000], 10, 12), [(0, 1)]);
    }
}
