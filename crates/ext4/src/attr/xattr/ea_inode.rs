//! Attribute values that live in inodes of their own (`ea_inode`).
//!
//! Such an inode is an ordinary file by its mapping, hidden by a flag, with no name. It counts its
//! references in the fields of the change time and version, and keeps a CRC-32C of the value in that of
//! the access time. Values are written through the journal: they are metadata to the file that has them.
//!
//! Space and quota: the inode itself is not charged; each reference counts as space of the file that has the
//! attribute (the value's size in whole blocks), and as one inode of its owner.

use super::Xattrs;
use super::area::Value;
use crate::Result;
use crate::inode::{Purpose, ext4};
use crate::journal::Handle;
use crate::journal::buffer::BlockKind;
use crate::map::BlockState;
use crate::quota::Owner;
use blockwright_ondisk::ext4::{self as disk, FileBlock, Ino, InodeFlags};
use blockwright_vfs as vfs;
use blockwright_vfs::types::{FileKind, NewInode};
use std::sync::Arc;

impl Xattrs {
    /// Reads a value.
    pub(super) fn value(
        &self,
        op: &'static str,
        holder: &vfs::Inode,
        ino: Ino,
        size: u32,
    ) -> Result<Vec<u8>> {
        let bad = |what: String| self.volume.corrupt(op, Some(ext4(holder).ino), None, what);
        let ea = self.stored.load_for(ino, Purpose::EaInode)?;
        if ea.size() != u64::from(size) || size > 1 << 24 {
            return Err(bad(format!(
                "the attribute's value has {size} bytes, its inode {ino} {}",
                ea.size()
            )));
        }
        let bytes = self.volume.block_bytes();
        let mut value = Vec::with_capacity(size as usize);
        for lblk in 0..u64::from(size).div_ceil(bytes as u64) {
            let (state, _) = self.maps.lookup(&ea, FileBlock(lblk), 1)?;
            let BlockState::Mapped(block) = state else {
                return Err(bad(format!(
                    "block {lblk} of the value's inode {ino} is missing"
                )));
            };
            let buffer = self
                .volume
                .cache
                .read(block, BlockKind::EaInode, |_| Ok(()))?;
            let want = (size as usize - value.len()).min(bytes);
            value.extend_from_slice(&buffer.data()[..want]);
        }
        let hash = self.volume.geometry().seed.ea_inode_value(&value);
        let stored = ea.attr().atime.secs as u32;
        // Inodes made by an older, foreign scheme (Lustre's) carry no hash but a reference to their parent.
        let points_back = ea.attr().mtime.secs as u32 == ext4(holder).ino.0
            && ea.generation() == holder.generation();
        if stored != hash && stored != 0 && !points_back {
            return Err(bad(format!(
                "the value in inode {ino} has hash {hash:#x}, not {stored:#x}"
            )));
        }
        Ok(value)
    }

    /// Makes an inode with a value, referenced once.
    pub(super) fn create_value(
        &self,
        h: &Handle<'_>,
        holder: &vfs::Inode,
        value: &[u8],
    ) -> Result<(Value, Arc<vfs::Inode>)> {
        let attr = holder.attr();
        let hash = self.volume.geometry().seed.ea_inode_value(value);
        let new = NewInode {
            kind: FileKind::Regular,
            perm: 0o600,
            uid: attr.uid,
            gid: attr.gid,
            rdev: 0,
            symlink: Vec::new(),
            now: vfs::Timestamp::now(),
            xattrs: Vec::new(),
        };
        let ea = self
            .inodes
            .create(h, holder, &new, 1, InodeFlags::EA_INODE)?;
        let own = ext4(&ea);
        let bytes = self.volume.block_bytes();
        let filled = (|| {
            for (lblk, piece) in value.chunks(bytes).enumerate() {
                let block = self.maps.create_meta(h, &ea, FileBlock(lblk as u64))?;
                h.create(block, BlockKind::EaInode, |data| {
                    data[..piece.len()].copy_from_slice(piece);
                })?;
            }
            Ok(())
        })();
        {
            let mut map = own.map.write();
            map.disk_size = value.len() as u64;
            let mut body = own.body.lock();
            body.version = (body.version & !0xFFFF_FFFF) | 1;
            ea.update_attr(|a| {
                a.size = map.disk_size;
                a.ctime = vfs::Timestamp::default();
                a.atime = vfs::Timestamp {
                    secs: i64::from(hash as i32),
                    nanos: 0,
                };
            });
        }
        let charged = match filled {
            Ok(()) => {
                let owner = Owner::of(&holder.attr());
                let bytes = self.value_bytes(value.len());
                self.quota
                    .check_space(&owner, bytes.unsigned_abs())
                    .and_then(|()| self.quota.charge(h, &owner, 0, 1))
                    .map(|()| self.add_space(holder, bytes))
            }
            Err(e) => Err(e),
        };
        if let Err(e) = charged {
            // Left on the orphan list; the next mount or eviction frees it.
            ea.update_attr(|a| a.nlink = 0);
            self.orphans.add(h, &ea)?;
            self.inodes.store(h, &ea)?;
            return Err(e);
        }
        self.inodes.store(h, &ea)?;
        let value = Value::Inode {
            ino: own.ino,
            size: value.len() as u32,
            value_hash: Some(hash),
            entry_hash: 0,
        };
        Ok((value, ea))
    }

    fn value_bytes(&self, len: usize) -> i64 {
        let geo = self.volume.geometry();
        let unit = u64::from(geo.block_size) * u64::from(geo.cluster_ratio);
        (len as u64).next_multiple_of(unit) as i64
    }

    /// Gives up a value that was just made.
    pub(super) fn unlink_value(
        &self,
        h: &Handle<'_>,
        holder: &vfs::Inode,
        ea: &Arc<vfs::Inode>,
    ) -> Result<()> {
        let owner = Owner::of(&holder.attr());
        let bytes = self.value_bytes(ea.size() as usize);
        self.quota.refund(h, &owner, 0, 1)?;
        self.add_space(holder, -bytes);
        ea.update_attr(|a| a.nlink = 0);
        ext4(ea).body.lock().version &= !0xFFFF_FFFF;
        self.orphans.add(h, ea)?;
        self.inodes.store(h, ea)
    }

    /// Drops one reference on a value's inode. Returns it when that was the last one: its blocks are freed
    /// after the handle, by [`Eviction::reap`].
    pub(super) fn release_value(
        &self,
        h: &Handle<'_>,
        holder: &vfs::Inode,
        ino: Ino,
        size: u32,
    ) -> Result<Option<Arc<vfs::Inode>>> {
        const OP: &str = "release attribute value";
        let geo = self.volume.geometry();
        let (buffer, offset) = self.table.buffer(ino)?;
        let end = offset + usize::from(geo.inode_size);
        // Several holders may do this at once: the count is changed inside the buffer's lock.
        let left = h.modify(&buffer, |block| {
            let raw = &mut block[offset..end];
            let mut i = disk::Inode::parse(raw, geo, ino).map_err(|e| e.to_string())?;
            if !i.flags.contains(InodeFlags::EA_INODE) {
                return Err("an attribute's value should be here, and is not".to_owned());
            }
            let left = i.ea_inode_refs().saturating_sub(1);
            i.set_ea_inode_refs(left);
            i.encode_into(raw, geo, ino).map_err(|e| e.to_string())?;
            Ok(left)
        })?;
        let left = left.map_err(|e| self.volume.corrupt(OP, Some(ino), Some(buffer.block()), e))?;
        let owner = Owner::of(&holder.attr());
        self.quota.refund(h, &owner, 0, 1)?;
        self.add_space(holder, -self.value_bytes(size as usize));
        if left > 0 {
            return Ok(None);
        }
        let ea = self.stored.load_for(ino, Purpose::EaInode)?;
        ea.update_attr(|a| a.nlink = 0);
        self.orphans.add(h, &ea)?;
        self.inodes.store(h, &ea)?;
        Ok(Some(ea))
    }
}
