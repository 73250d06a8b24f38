//! Directories: finding a name, and listing.
//!
//! A directory's entries are in its inode, or in blocks arranged as levels of hash tables. A lookup
//! visits one bucket of each level; a listing visits all blocks in order, holes aside.
//!
//! A listing's cookies are positions: block number times the slots of a block, plus the slot, plus one.
//! Entries never move (but when inline ones leave the inode, where they keep their slots' order), so
//! cookies are stable while entries come and go.
//!
//! Names in an encrypted directory are ciphertext, and there are no keys here. They are shown and found in the form of `ondisk`'s `nokey`.
//!
//! # Part
//! [`Directories`] owns nothing beside the other parts. It calls nodes and the tree. It begins no operation and knows nothing of the inodes that
//! entries name: `names` does.
//!
//! # Locks
//! The directory's `body`, shared.
//!
//! # References
//! kernel documentation, "Flash-Friendly File System (F2FS)": Directory Structure.

pub(crate) mod change;
pub(crate) mod names;

use crate::node::Nodes;
use crate::node::inode::{Body, f2fs, vfs_kind};
use crate::node::tree::Tree;
use crate::volume::Volume;
use crate::volume::vfs_ino;
use crate::{Error, ErrorKind, Result};
use blockwright_ondisk::common::casefold;
use blockwright_ondisk::f2fs::dir::{
    DentryLayout, DentryView, DirEntry, NameBytes, SLOTS_PER_BLOCK,
};
use blockwright_ondisk::f2fs::inode::{Advise, InlineFlags, InodeFlags};
use blockwright_ondisk::f2fs::superblock::ENCODING_STRICT;
use blockwright_ondisk::f2fs::types::NAME_MAX;
use blockwright_ondisk::f2fs::{FileKind, Ino, dir_geometry, hash};
use blockwright_ondisk::nokey;
use blockwright_vfs as vfs;
use blockwright_vfs::types as vt;
use std::borrow::Cow;
use std::ops::ControlFlow;

const OP: &str = "read directory";

/// A name that is looked for.
struct Wanted<'a> {
    name: &'a [u8],
    /// Its folded form, in a case-insensitive directory.
    folded: Option<Cow<'a, [u8]>>,
    /// `None` in a case-insensitive directory of an unknown encoding: all entries are compared.
    hash: Option<u32>,
    /// The directory is encrypted: the name is what an entry is shown by.
    shown: bool,
}

impl Wanted<'_> {
    fn is(&self, entry: &DirEntry<'_>) -> bool {
        if self.hash.is_some_and(|hash| hash != entry.hash) {
            return false;
        }
        if self.shown {
            return !is_dots(entry.name) && nokey::encode((entry.hash, 0), entry.name) == self.name;
        }
        match &self.folded {
            Some(folded) => hash::fold_name(entry.name) == *folded,
            None => entry.name == self.name,
        }
    }
}

/// Whether a directory's names are encrypted. The two dots never are.
fn is_encrypted(dir: &Body) -> bool {
    dir.inode.advise.contains(Advise::ENCRYPT)
}

fn is_dots(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

blockwright_vfs::part! {
    /// See the module's head.
    pub struct Directories {
        volume: Volume,
        nodes: Nodes,
        tree: Tree,
    }
}

impl Directories {
    fn view<'a>(
        &self,
        ino: Ino,
        body: &Body,
        bytes: &'a [u8],
        layout: DentryLayout,
    ) -> Result<DentryView<'a>> {
        let names = match is_encrypted(body) {
            true => NameBytes::Any,
            false => NameBytes::Plain,
        };
        DentryView::parse(bytes, layout, names, self.volume.geo.nids())
            .map_err(|e| self.volume.refused(OP, ino, &e))
    }

    /// `None`: no entry of this directory can be called so.
    fn wanted<'a>(&self, body: &Body, name: &'a [u8]) -> Option<Wanted<'a>> {
        if is_encrypted(body) {
            return nokey::hash_of(name).map(|(hash, _)| Wanted {
                name,
                folded: None,
                hash: Some(hash),
                shown: true,
            });
        }
        if !body.inode.flags.contains(InodeFlags::CASEFOLD) {
            return Some(Wanted {
                name,
                folded: None,
                hash: Some(hash::name_hash(name)),
                shown: false,
            });
        }
        if !casefold::is_known(self.volume.sb.raw.s_encoding.get()) {
            return Some(Wanted {
                name,
                folded: None,
                hash: None,
                shown: false,
            });
        }
        let folded = hash::fold_name(name);
        Some(Wanted {
            name,
            hash: Some(hash::casefold_hash(name, Some(&folded))),
            folded: Some(folded),
            shown: false,
        })
    }

    /// A block of a directory; `None` where there is none. Its entries are checked when it is read.
    pub(crate) fn dir_block(
        &self,
        ino: Ino,
        body: &Body,
        at: u64,
    ) -> Result<Option<crate::node::cache::Bytes>> {
        self.nodes.meta_block_checked(ino, body, at, |bytes| {
            self.view(ino, body, bytes, DentryLayout::BLOCK).map(|_| ())
        })
    }

    /// Levels of hash tables that a directory has; bounded by the format whatever the inode says.
    fn depth(body: &Body) -> u32 {
        body.inode.current_depth.min(dir_geometry::LEVELS_MAX)
    }

    /// Refuses what is not UTF-8 in a casefolded directory of a strict volume.
    pub(crate) fn check_encoded(&self, op: &'static str, body: &Body, name: &[u8]) -> Result<()> {
        let strict = self.volume.sb.raw.s_encoding_flags.get() & ENCODING_STRICT != 0;
        if strict
            && body.inode.flags.contains(InodeFlags::CASEFOLD)
            && std::str::from_utf8(name).is_err()
        {
            return Err(Error::new(ErrorKind::Invalid, op)
                .detail("the volume takes only names in UTF-8 in casefolded directories"));
        }
        Ok(())
    }

    /// Finds a name. Where damage put one that a strict volume does not take, it is found, so that it can be read and removed.
    ///
    /// # Errors
    /// `Invalid` for a name that is not there and cannot be, as Linux has it; damage, or a device error.
    pub(crate) fn lookup(
        &self,
        dir: &vfs::Inode,
        name: &[u8],
    ) -> Result<Option<(vfs::Ino, Option<vt::FileKind>)>> {
        if name.len() > NAME_MAX {
            return Err(Error::new(ErrorKind::NameTooLong, "look up").ino(dir.ino()));
        }
        let body = f2fs(dir).body.read();
        let found = self.find_entry(dir, &body, name)?;
        if found.is_none() && !is_encrypted(&body) {
            self.check_encoded("look up", &body, name)?;
        }
        Ok(found.map(|e| (vfs_ino(e.ino), e.kind.map(vfs_kind))))
    }

    /// Hash of a name as this directory has it.
    ///
    /// # Errors
    /// `KeyRequired` for an encrypted directory; `UnsupportedFeature` for a case-insensitive one of an unknown encoding.
    pub(crate) fn name_hash(&self, body: &Body, name: &[u8]) -> Result<u32> {
        const OP: &str = "hash a name";
        match self.wanted(body, name) {
            Some(wanted) if !wanted.shown => wanted.hash.ok_or_else(|| {
                let encoding = self.volume.sb.raw.s_encoding.get();
                Error::new(ErrorKind::UnsupportedFeature, OP).detail(format!(
                    "the volume's name encoding {encoding} is not known"
                ))
            }),
            _ => Err(Error::new(ErrorKind::KeyRequired, OP).detail("the directory is encrypted")),
        }
    }

    /// Finds a name; `give` gets its entry and the block it is in (`None`: the inode).
    pub(crate) fn find_in(
        &self,
        dir: &vfs::Inode,
        body: &Body,
        name: &[u8],
        give: &mut dyn FnMut(Option<u64>, DirEntry<'_>),
    ) -> Result<()> {
        let own = f2fs(dir);
        let Some(wanted) = self.wanted(body, name) else {
            return Ok(());
        };
        let Some(hash) = wanted.hash else {
            return self.each_entry(dir, body, 0, &mut |at, entry| {
                if !wanted.is(entry) {
                    return ControlFlow::Continue(());
                }
                give(at, *entry);
                ControlFlow::Break(())
            });
        };
        if body.inode.inline.contains(InlineFlags::DENTRY) {
            let node = self.nodes.inode_node(own.ino)?;
            let bytes = node.get(body.layout.inline_bytes()).unwrap_or(&[]);
            let view = self.view(own.ino, body, bytes, body.layout.inline_dentries())?;
            if let Some(entry) = view.iter().find(|e| wanted.is(e)) {
                give(None, entry);
            }
            return Ok(());
        }
        for level in 0..Self::depth(body) {
            let (first, count) = dir_geometry::bucket(level, body.inode.dir_level, hash);
            for at in first..first + count {
                if at >= dir.size().div_ceil(4096) {
                    break;
                }
                let Some(block) = self.dir_block(own.ino, body, at)? else {
                    continue;
                };
                let view = DentryView::verified(&block, DentryLayout::BLOCK)
                    .map_err(|e| self.volume.refused(OP, own.ino, &e))?;
                if let Some(entry) = view.with_hash(hash).find(|e| wanted.is(e)) {
                    give(Some(at), entry);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Lists entries after `cookie`.
    ///
    /// # Errors
    /// Damage, or a device error.
    pub(crate) fn list(
        &self,
        dir: &vfs::Inode,
        cookie: u64,
        sink: &mut dyn FnMut(vt::DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let body = f2fs(dir).body.read();
        self.list_in(dir, &body, cookie, sink)
    }

    /// As [`Directories::list`], for a caller that holds the directory's `body`.
    pub(crate) fn list_in(
        &self,
        dir: &vfs::Inode,
        body: &Body,
        cookie: u64,
        sink: &mut dyn FnMut(vt::DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let encrypted = is_encrypted(body);
        self.each_entry(dir, body, cookie, &mut |block, entry| {
            let name = match encrypted && !is_dots(entry.name) {
                true => Cow::Owned(nokey::encode((entry.hash, 0), entry.name)),
                false => Cow::Borrowed(entry.name),
            };
            sink(vt::DirEntry {
                ino: vfs_ino(entry.ino),
                kind: entry.kind.map(vfs_kind),
                name: &name,
                cookie: block.unwrap_or(0) * SLOTS_PER_BLOCK as u64 + entry.slot as u64 + 1,
            })
        })
    }

    /// Goes through the entries after `cookie`; `give` gets each with the block it is in (`None`: the inode).
    fn each_entry(
        &self,
        dir: &vfs::Inode,
        body: &Body,
        cookie: u64,
        give: &mut dyn FnMut(Option<u64>, &DirEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let own = f2fs(dir);
        let per = SLOTS_PER_BLOCK as u64;
        if body.inode.inline.contains(InlineFlags::DENTRY) {
            let node = self.nodes.inode_node(own.ino)?;
            let bytes = node.get(body.layout.inline_bytes()).unwrap_or(&[]);
            let view = self.view(own.ino, body, bytes, body.layout.inline_dentries())?;
            let from = usize::try_from(cookie).unwrap_or(usize::MAX);
            for entry in view.iter_from(from) {
                if give(None, &entry).is_break() {
                    break;
                }
            }
            return Ok(());
        }
        let end = dir.size().div_ceil(4096);
        let mut at = cookie / per;
        let mut from = (cookie % per) as usize;
        while at < end {
            let (state, len) = self
                .nodes
                .find_blocks(own.ino, body, at, (end - at).min(512))?;
            if !matches!(state, crate::node::blocks::BlockState::Stored(_))
                && self.nodes.blocks.find((own.ino, at)).is_none()
            {
                at = at.saturating_add(len);
                from = 0;
                continue;
            }
            for block in at..at.saturating_add(len).min(end) {
                let Some(bytes) = self.dir_block(own.ino, body, block)? else {
                    continue;
                };
                let view = DentryView::verified(&bytes, DentryLayout::BLOCK)
                    .map_err(|e| self.volume.refused(OP, own.ino, &e))?;
                for entry in view.iter_from(std::mem::take(&mut from)) {
                    if give(Some(block), &entry).is_break() {
                        return Ok(());
                    }
                }
            }
            at = at.saturating_add(len);
        }
        Ok(())
    }

    /// The directory a directory is in.
    ///
    /// # Errors
    /// Damage; a device error.
    pub(crate) fn parent(&self, dir: &vfs::Inode) -> Result<vfs::Ino> {
        let mut parent = None;
        // The two dots are always the first entries.
        self.list(dir, 0, &mut |e| {
            if e.name == b".." {
                parent = Some(e.ino);
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        let own = f2fs(dir).ino;
        parent.ok_or_else(|| {
            self.volume
                .corrupt(OP, Some(own), None, "there is no entry \"..\"")
        })
    }
}

/// The kind in the format's own terms, for directory entries.
#[must_use]
pub fn disk_kind(kind: vt::FileKind) -> FileKind {
    match kind {
        vt::FileKind::Regular => FileKind::Regular,
        vt::FileKind::Directory => FileKind::Directory,
        vt::FileKind::CharDevice => FileKind::CharDevice,
        vt::FileKind::BlockDevice => FileKind::BlockDevice,
        vt::FileKind::Fifo => FileKind::Fifo,
        vt::FileKind::Socket => FileKind::Socket,
        vt::FileKind::Symlink => FileKind::Symlink,
    }
}
