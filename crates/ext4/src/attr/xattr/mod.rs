//! [`Xattrs`]: extended attributes in the inode, in a block of their own, and large values in inodes of their own.
//!
//! It owns nothing but its references. It calls `Inodes`, `Maps`, `Orphans`, `quota` and the block allocator. It never starts the
//! transaction of a change and never deletes the inode of a value: its callers do both.
//!
//! An attribute is put where there is room: in the inode first, then in the block. A block may be shared by
//! several inodes (other implementations do so); it is then copied before it is changed, and its reference
//! count lowered. Values that fit neither go into an inode each where the volume has `ea_inode`.
//!
//! # Locks
//! The vfs holds the inode lock: shared for reading, exclusive for changes. A shared block's reference
//! count is changed only inside the buffer's write lock.
//!
//! # Crash order
//! One handle changes the inode, its block and the values' inodes together.
//!
//! References: kernel documentation, "ext4 Data Structures: Extended Attributes".

pub mod area;
mod block;
mod ea_inode;

use crate::alloc::Allocator;
use crate::alloc::groups::Groups;
use crate::inode::{Body, InodeTable, Inodes, Orphans, StoredInodes, ext4, orphan};
use crate::journal::Handle;
use crate::map::{META_BLOCK_CREDITS, Maps};
use crate::quota::Quota;
use crate::volume::Volume;
use crate::{Error, ErrorKind, Result};
use area::{Attribute, BadArea, Value};
use blockwright_ondisk::ext4::acl::Acl;
use blockwright_ondisk::ext4::features::Incompat;
use blockwright_ondisk::ext4::xattr::{
    self, INDEX_ACL_ACCESS, INDEX_ACL_DEFAULT, INDEX_SYSTEM, INLINE_DATA_NAME,
};
use blockwright_vfs as vfs;
use blockwright_vfs::types::XattrMode;
use std::sync::Arc;

/// Largest value `setxattr(2)` passes.
const VALUE_BYTES_MAX: usize = 65536;

/// The value of an attribute kept in the inode.
///
/// # Errors
/// An area that is invalid.
pub fn ibody_get(
    body: &Body,
    index: u8,
    name: &[u8],
) -> std::result::Result<Option<Vec<u8>>, BadArea> {
    let attrs = area::parse_inode(&body.raw, body.extra_isize)?;
    Ok(attrs
        .into_iter()
        .find(|a| a.is(index, name))
        .and_then(|a| match a.value {
            Value::Here(value) => Some(value),
            Value::Inode { .. } => None,
        }))
}

/// Sets or removes an attribute kept in the inode. `false`, with nothing changed, without room.
///
/// # Errors
/// An area that is invalid.
pub fn ibody_set(
    body: &mut Body,
    index: u8,
    name: &[u8],
    value: Option<&[u8]>,
) -> std::result::Result<bool, BadArea> {
    let mut attrs = area::parse_inode(&body.raw, body.extra_isize)?;
    match (attrs.iter().position(|a| a.is(index, name)), value) {
        (Some(at), Some(value)) => attrs[at].value = Value::Here(value.to_vec()),
        (Some(at), None) => {
            attrs.remove(at);
        }
        (None, Some(value)) => attrs.push(Attribute {
            index,
            name: name.to_vec(),
            value: Value::Here(value.to_vec()),
        }),
        (None, None) => return Ok(true),
    }
    let extra = body.extra_isize;
    Ok(area::encode_inode(&mut body.raw, extra, &attrs))
}

/// Bytes an attribute's value may have to stay in the inode, with all others where they are.
///
/// # Errors
/// An area that is invalid.
pub fn ibody_room_for(body: &Body, index: u8, name: &[u8]) -> std::result::Result<usize, BadArea> {
    let mut attrs = area::parse_inode(&body.raw, body.extra_isize)?;
    attrs.retain(|a| !a.is(index, name));
    let taken = area::needed(&attrs) + area::entry_bytes(name.len());
    let room = area::inode_room(&body.raw, body.extra_isize);
    Ok(room.saturating_sub(taken) / 4 * 4)
}

/// All attributes of an inode.
#[derive(Clone, Default)]
struct Set {
    inode: Vec<Attribute>,
    block: Vec<Attribute>,
}

impl Set {
    fn find(&self, index: u8, name: &[u8]) -> Option<&Attribute> {
        self.inode
            .iter()
            .chain(&self.block)
            .find(|a| a.is(index, name))
    }

    fn remove(&mut self, index: u8, name: &[u8]) {
        self.inode.retain(|a| !a.is(index, name));
        self.block.retain(|a| !a.is(index, name));
    }
}

blockwright_vfs::part! {
    /// See the module's head.
    pub struct Xattrs {
        volume: Volume,
        groups: Groups,
        alloc: Allocator,
        quota: Quota,
        table: InodeTable,
        orphans: Orphans,
        stored: StoredInodes,
        inodes: Inodes,
        maps: Maps,
    }
}

impl Xattrs {
    fn bad(&self, op: &'static str, inode: &vfs::Inode, bad: BadArea) -> Error {
        self.volume.corrupt(op, Some(ext4(inode).ino), None, bad.0)
    }

    fn set_of(&self, op: &'static str, inode: &vfs::Inode) -> Result<Set> {
        let (inside, file_acl) = {
            let body = ext4(inode).body.lock();
            (
                area::parse_inode(&body.raw, body.extra_isize),
                body.file_acl,
            )
        };
        let inside = inside.map_err(|bad| self.bad(op, inode, bad))?;
        let block = match self.block(op, inode, file_acl)? {
            Some(buffer) => {
                area::parse_block(&buffer.data()).map_err(|bad| self.bad(op, inode, bad))?
            }
            None => Vec::new(),
        };
        Ok(Set {
            inode: inside,
            block,
        })
    }

    /// See [`blockwright_vfs::engine::Attributes::get_xattr`].
    ///
    /// # Errors
    /// `NoAttribute`, `Unsupported` for a name of no known prefix, damage, or a device error.
    pub(crate) fn get(&self, inode: &Arc<vfs::Inode>, full: &[u8]) -> Result<Vec<u8>> {
        const OP: &str = "get attribute";
        let missing = || Error::new(ErrorKind::NoAttribute, OP).ino(inode.ino());
        let (index, name) = xattr::split_name(full)
            .ok_or_else(|| Error::new(ErrorKind::Unsupported, OP).ino(inode.ino()))?;
        let set = self.set_of(OP, inode)?;
        let value = match &set.find(index, name).ok_or_else(missing)?.value {
            Value::Here(value) => value.clone(),
            Value::Inode { ino, size, .. } => self.value(OP, inode, *ino, *size)?,
        };
        if matches!(index, INDEX_ACL_ACCESS | INDEX_ACL_DEFAULT) {
            let acl = Acl::from_disk(&value).map_err(|e| {
                self.volume
                    .corrupt(OP, Some(ext4(inode).ino), None, e.to_string())
            })?;
            return Ok(acl.to_xattr());
        }
        Ok(value)
    }

    /// See [`blockwright_vfs::engine::Attributes::list_xattr`].
    ///
    /// # Errors
    /// Damage, or a device error.
    pub(crate) fn list(&self, inode: &Arc<vfs::Inode>) -> Result<Vec<Vec<u8>>> {
        let set = self.set_of("list attributes", inode)?;
        Ok(set
            .inode
            .iter()
            .chain(&set.block)
            .filter_map(|a| xattr::full_name(a.index, &a.name))
            .collect())
    }

    /// Blocks a handle must reserve for changing one attribute.
    pub(crate) fn credits(&self) -> u32 {
        let ea = if self.volume.has_incompat(Incompat::EA_INODE) {
            // A value of 64 KiB in blocks of its own, mapped, and the inode; the old one is unlinked.
            let blocks = (VALUE_BYTES_MAX / self.volume.block_bytes() + 1) as u32;
            blocks + 4 * META_BLOCK_CREDITS + 8 + 2 * orphan::CREDITS
        } else {
            0
        };
        3 + META_BLOCK_CREDITS + ea + 2 * self.quota.credits()
    }

    /// Sets or removes an attribute in the caller's handle; the caller stores the inode. Returns the inode
    /// of the old value when that has to be freed after the handle.
    ///
    /// # Errors
    /// `Exists`, `NoAttribute`, `NoSpace`, `TooBig`, damage, or a device error.
    pub(crate) fn set_in(
        &self,
        h: &Handle<'_>,
        inode: &vfs::Inode,
        full: &[u8],
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Result<Option<Arc<vfs::Inode>>> {
        const OP: &str = "set attribute";
        let fail = |kind| Error::new(kind, OP).ino(inode.ino());
        let (index, name) = xattr::split_name(full).ok_or_else(|| fail(ErrorKind::Unsupported))?;
        let converted;
        let value = match value {
            Some(v) if matches!(index, INDEX_ACL_ACCESS | INDEX_ACL_DEFAULT) => {
                converted = Acl::from_xattr(v)
                    .map_err(|_| fail(ErrorKind::Invalid))?
                    .to_disk();
                Some(&converted[..])
            }
            other => other,
        };
        if value.is_some_and(|v| v.len() > VALUE_BYTES_MAX) {
            return Err(fail(ErrorKind::TooBig));
        }
        let set = self.set_of(OP, inode)?;
        let old = set.find(index, name).cloned();
        match (&old, mode) {
            (Some(_), XattrMode::Create) => return Err(fail(ErrorKind::Exists)),
            (None, XattrMode::Replace) => return Err(fail(ErrorKind::NoAttribute)),
            _ => {}
        }
        if let (
            Some(Attribute {
                value: Value::Here(had),
                ..
            }),
            Some(new),
        ) = (&old, value)
            && had == new
        {
            return Ok(None);
        }
        let mut rest = set.clone();
        rest.remove(index, name);
        let attribute = |value| Attribute {
            index,
            name: name.to_vec(),
            value,
        };
        let new_set = match value {
            None => Some(rest.clone()),
            Some(value) => self.place(inode, &rest, attribute(Value::Here(value.to_vec()))),
        };
        match (new_set, value) {
            (Some(new), _) => self.put(h, inode, &set, &new)?,
            (None, Some(value)) => {
                // The space of such a value counts as the file's, by which other readers tell a link kept
                // in its inode from one kept in a block: links get none.
                if !self.volume.has_incompat(Incompat::EA_INODE)
                    || inode.kind() == vfs::FileKind::Symlink
                {
                    return Err(fail(ErrorKind::NoSpace)
                        .detail("the inode and its attribute block have no room for the value"));
                }
                let (ea, made) = self.create_value(h, inode, value)?;
                let new = self.place(inode, &rest, attribute(ea));
                let done = match new {
                    Some(new) => self.put(h, inode, &set, &new),
                    None => Err(fail(ErrorKind::NoSpace)
                        .detail("the inode and its attribute block have no room for the name")),
                };
                if let Err(e) = done {
                    self.unlink_value(h, inode, &made)?;
                    return Err(e);
                }
            }
            (None, None) => {}
        }
        match old.map(|o| o.value) {
            Some(Value::Inode { ino, size, .. }) => self.release_value(h, inode, ino, size),
            _ => Ok(None),
        }
    }

    /// Where an attribute goes: the new contents of inode and block. `None` when it fits nowhere.
    fn place(&self, inode: &vfs::Inode, rest: &Set, new: Attribute) -> Option<Set> {
        let body = ext4(inode).body.lock();
        let room = area::inode_room(&body.raw, body.extra_isize);
        let block_room = self.volume.block_bytes() - area::BLOCK_HEADER;
        let inside = |attrs: &[Attribute]| attrs.is_empty() || area::needed(attrs) <= room;
        let in_block = |attrs: &[Attribute]| area::needed(attrs) <= block_room;
        let mut set = rest.clone();
        set.inode.push(new);
        if inside(&set.inode) {
            return Some(set);
        }
        let new = set.inode.pop()?;
        set.block.push(new);
        if in_block(&set.block) {
            return Some(set);
        }
        // Pack anew, largest first, over both. Inline data's attribute must stay in the inode.
        let mut all: Vec<Attribute> = set.inode.drain(..).chain(set.block.drain(..)).collect();
        all.sort_by_key(|a| std::cmp::Reverse(a.bytes()));
        let (stay, all): (Vec<_>, Vec<_>) = all
            .into_iter()
            .partition(|a| a.is(INDEX_SYSTEM, INLINE_DATA_NAME));
        set.inode = stay;
        for attr in all {
            set.inode.push(attr);
            if !inside(&set.inode) {
                let attr = set.inode.pop()?;
                set.block.push(attr);
            }
        }
        in_block(&set.block).then_some(set)
    }

    /// Stores what differs between two sets; the caller stores the inode.
    fn put(&self, h: &Handle<'_>, inode: &vfs::Inode, old: &Set, new: &Set) -> Result<()> {
        // The block first: that is what can fail for lack of space.
        if old.block != new.block {
            self.put_block(h, inode, &new.block)?;
        }
        if old.inode != new.inode {
            let mut body = ext4(inode).body.lock();
            let extra = body.extra_isize;
            if !area::encode_inode(&mut body.raw, extra, &new.inode) {
                return Err(Error::new(ErrorKind::NoSpace, "store attributes").ino(inode.ino()));
            }
        }
        Ok(())
    }

    /// Frees everything the attributes of a deleted inode hold, in handles of its own. `reap` deletes a value's inode.
    ///
    /// # Errors
    /// Damage, or a device error.
    pub(crate) fn drop_all(
        &self,
        inode: &Arc<vfs::Inode>,
        reap: impl Fn(Option<Arc<vfs::Inode>>) -> Result<()>,
    ) -> Result<()> {
        const OP: &str = "drop attributes";
        let set = self.set_of(OP, inode)?;
        let shared = self.block_is_shared(OP, inode)?;
        for attr in set.inode.iter().chain(&set.block) {
            let Value::Inode { ino, size, .. } = attr.value else {
                continue;
            };
            if shared && set.block.iter().any(|a| a == attr) {
                // The other holders of the block hold its values' inodes too.
                continue;
            }
            let old = {
                let h = self.volume.journal.start(self.credits(), OP)?;
                // The entry goes in the same handle, or a crash in between frees the value twice.
                let mut rest = self.set_of(OP, inode)?;
                let before = rest.clone();
                rest.remove(attr.index, &attr.name);
                self.put(&h, inode, &before, &rest)?;
                let old = self.release_value(&h, inode, ino, size)?;
                self.inodes.store(&h, inode)?;
                old
            };
            reap(old)?;
        }
        if ext4(inode).body.lock().file_acl.0 != 0 {
            let h = self.volume.journal.start(self.credits(), OP)?;
            self.put_block(&h, inode, &[])?;
            self.inodes.store(&h, inode)?;
        }
        Ok(())
    }
}
