//! Roll-forward recovery: what was fsynced after the last checkpoint.
//!
//! The chain of nodes that fsync wrote (`walk`) is applied to the volume as the checkpoint has it, in memory: each file's
//! newest inode and nodes up to its last fsync mark (`files`), then the names of new files. Nothing is written, so a
//! volume mounted read-only shows what was fsynced, too; one mounted for writing then writes a checkpoint.
//!
//! # Part
//! [`Recovery`] owns nothing beside the other parts, and is used once, by the mount. It changes nodes, names and inodes in memory. It never writes to the
//! device and begins no checkpoint.
//!
//! # Crash order
//! The chain's blocks, and all that it names, are not handed out before that checkpoint is durable ([`keep`]): a
//! crash before it leaves the chain as it was.
//!
//! # Damage
//! A chain that is invalid is not recovered in part: the volume is then mounted read-only, as its checkpoint has
//! it, with the reason.
//!
//! # Locks
//! None: the volume is not in use yet. The gate, shared, as for every change.
//!
//! # References
//! See `fsync`.
//!
//! [`keep`]: crate::alloc::Segments::keep

mod files;
pub(crate) mod fsync;
mod walk;

pub(crate) use walk::{Link, walk};

use crate::attr::Attributes;
use crate::dir::Directories;
use crate::node::Nodes;
use crate::node::inode::f2fs;
use crate::node::load::Purpose;
use crate::node::tree::Tree;
use crate::volume::Volume;
use crate::writer::Access;
use crate::writer::Writer;
use crate::{Error, Result};
use blockwright_ondisk::f2fs::Ino;
use blockwright_vfs as vfs;
use blockwright_vfs::FileKind;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use walk::{OP, Reader};

/// What was recovered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Files.
    pub files: u64,
    /// Blocks of the chain.
    pub nodes: u64,
}

/// A new file's place among the names.
struct Name {
    ino: Ino,
    parent: Ino,
    name: Vec<u8>,
}

blockwright_vfs::part! {
    /// See the module's head.
    pub struct Recovery {
        volume: Volume,
        access: Access,
        nodes: Nodes,
        tree: Tree,
        directories: Directories,
        attributes: Attributes,
    }
}

impl Recovery {
    /// Applies a chain. Nothing is written.
    ///
    /// # Errors
    /// `Corrupt` when the chain and the volume do not fit each other, `NoSpace`, or a device error. The volume in
    /// memory is of no use then.
    pub(crate) fn recover(&self, links: &[Link]) -> Result<Recovered> {
        let w = self.access.writer(OP)?;
        let _gate = w.gate.read();
        w.dirty.store(true, Ordering::Release);
        for link in links {
            if w.segments.is_valid(link.at) {
                let detail = "a node of the chain is in a block that is in use";
                return Err(Error::corrupt(OP, detail).block(u64::from(link.at.0)));
            }
            w.segments.keep(link.at);
        }
        let files = walk::by_file(links);
        let mut reader = Reader::new(&self.volume.device, &self.volume.geo);
        // Numbers of new inodes first: nodes that are made meanwhile must not get them.
        let mut new = BTreeSet::new();
        let mut names = BTreeMap::new();
        for (ino, file) in &files {
            let entry = self.nodes.nat.get(ino.nid())?;
            if !entry.is_free() {
                continue;
            }
            // Without an entry there is no way to it: it never had a durable name.
            let Some(at) = file.dentry else { continue };
            let (parent, name) = match &links[at].entry {
                Some(entry) => (**entry).clone(),
                // It is invalid: the later check of the block reports that.
                None => {
                    let inode = self.chain_inode(&mut reader, &links[at], *ino)?.1;
                    (inode.pino, inode.name)
                }
            };
            let name = Name {
                ino: *ino,
                parent,
                name,
            };
            names.insert(at, name);
            self.nodes.nat.take_inode(*ino)?;
            new.insert(*ino);
        }
        let mut order: Vec<_> = files.iter().collect();
        order.sort_unstable_by_key(|(_, f)| f.last);
        let mut done = Recovered {
            files: 0,
            nodes: links.len() as u64,
        };
        for (ino, file) in order {
            let is_new = new.contains(ino);
            if is_new || !self.nodes.nat.get(ino.nid())?.is_free() {
                self.recover_file(w, &mut reader, links, *ino, file, is_new)?;
                done.files += 1;
            }
        }
        for name in names.into_values() {
            self.recover_name(w, &name)?;
        }
        w.segments.leave_recovered()?;
        Ok(done)
    }

    /// Adds a new file's name. A file that still has it was removed before the new one was made.
    fn recover_name(&self, w: &Writer, new: &Name) -> Result<()> {
        let bad = |what: &str| {
            let name = String::from_utf8_lossy(&new.name);
            let detail = format!("the name {name:?} in directory {}: {what}", new.parent);
            self.volume.corrupt(OP, Some(new.ino), None, detail)
        };
        let name = &new.name[..];
        if name.is_empty()
            || name == b"."
            || name == b".."
            || name.iter().any(|b| matches!(b, 0 | b'/'))
        {
            return Err(bad("no file is called that"));
        }
        let dir = self.nodes.load_inode_for(new.parent, Purpose::User)?;
        if dir.kind() != FileKind::Directory {
            return Err(bad("that is no directory"));
        }
        f2fs(&dir).check_readable(OP)?;
        let there = self
            .directories
            .find_entry(&dir, &f2fs(&dir).body.read(), name)?;
        if let Some(entry) = there {
            if entry.ino == new.ino {
                return Ok(());
            }
            let other = self.nodes.load_inode_for(entry.ino, Purpose::Orphan)?;
            if other.kind() == FileKind::Directory {
                return Err(bad("a directory that was removed has it"));
            }
            {
                let mut body = f2fs(&dir).body.write();
                self.directories.remove_entry(w, &dir, &mut body, &entry)?;
                self.tree.store_inode(&dir, &mut body)?;
            }
            self.drop_replaced(w, &other)?;
        }
        let mut body = f2fs(&dir).body.write();
        self.directories
            .insert_entry(w, &dir, &mut body, name, new.ino, FileKind::Regular)?;
        self.tree.store_inode(&dir, &mut body)
    }

    /// A file lost a name to a new one; perhaps its last.
    fn drop_replaced(&self, w: &Writer, inode: &vfs::Inode) -> Result<()> {
        let left = inode.update_attr(|a| {
            a.nlink = a.nlink.saturating_sub(1);
            a.nlink
        });
        if left == 0 {
            return self.attributes.free_inode(w, inode);
        }
        self.tree.store_inode(inode, &mut f2fs(inode).body.write())
    }
}
