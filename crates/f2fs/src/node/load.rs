//! Loading inodes, and the blocks of files whose contents are the format's own business.
//!
//! # Locks
//! The inode's `body`, shared, where one is given.

use super::Nodes;
use super::blocks::BlockState;
use super::impossible::why_impossible;
use super::inode::{Body, F2fsInode, f2fs, make_dev, vfs_kind, vfs_time};
use crate::volume::vfs_ino;
use crate::{Error, ErrorKind, Result};
use blockwright_ondisk::f2fs as disk;
use blockwright_ondisk::f2fs::inode::Advise;
use blockwright_ondisk::f2fs::{FileKind, Ino};
use blockwright_vfs as vfs;
use blockwright_vfs::types as vt;
use std::sync::Arc;

/// What an inode is loaded for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// For users: none without a name.
    User,
    /// To finish the deletion of an orphan.
    Orphan,
    /// To keep quota in it.
    Quota,
}

/// Flags as users see them: those of chattr(1), and what hints say.
fn user_flags(inode: &disk::Inode) -> vt::InodeFlags {
    let mut flags = vt::InodeFlags::from_bits_truncate(inode.flags.bits());
    flags -= vt::InodeFlags::ENCRYPT | vt::InodeFlags::VERITY;
    flags.set(
        vt::InodeFlags::ENCRYPT,
        inode.advise.contains(Advise::ENCRYPT),
    );
    flags.set(
        vt::InodeFlags::VERITY,
        inode.advise.contains(Advise::VERITY),
    );
    flags
}

impl Nodes {
    /// Reads an inode that is in use.
    ///
    /// # Errors
    /// `Stale` when it is not, `Corrupt` when it is invalid, or a device error.
    pub(crate) fn load_inode(&self, ino: Ino) -> Result<Arc<vfs::Inode>> {
        self.load_inode_for(ino, Purpose::User)
    }

    /// Reads an inode.
    ///
    /// # Errors
    /// As [`Nodes::load_inode`].
    pub(crate) fn load_inode_for(&self, ino: Ino, purpose: Purpose) -> Result<Arc<vfs::Inode>> {
        const OP: &str = "load inode";
        let node = self.inode_node(ino)?;
        let parsed = disk::Inode::parse_unverified(&node, ino, &self.volume.geo)
            .map_err(|e| self.volume.refused(OP, ino, &e))?;
        let stale = |why: &str| {
            Error::new(ErrorKind::Stale, OP)
                .ino(vfs_ino(ino))
                .detail(why)
        };
        if parsed.links == 0 && purpose == Purpose::User {
            return Err(stale("the inode has no name left"));
        }
        if purpose != Purpose::Quota && self.volume.is_quota_file(ino) {
            return Err(stale("the inode is reserved for the format's own use"));
        }
        let Some(kind) = parsed.kind() else {
            return Err(self
                .volume
                .corrupt(OP, Some(ino), None, "a mode of no file type"));
        };
        if ino == Ino::ROOT && kind != FileKind::Directory {
            let detail = format!("the root directory is a {kind}");
            return Err(self.volume.corrupt(OP, Some(ino), None, detail));
        }
        // Orphans are only freed.
        if purpose == Purpose::User
            && self.volume.reason.is_none()
            && let Some(why) = why_impossible(&parsed, kind, self.volume.features())
        {
            return Err(self.volume.corrupt(OP, Some(ino), None, why));
        }
        let layout = parsed.layout(self.volume.features());
        let rdev = match kind {
            FileKind::CharDevice | FileKind::BlockDevice => {
                let at = layout.address_bytes().start;
                let word = |n: usize| {
                    let mut le = [0; 4];
                    let at = at + n * 4;
                    le.copy_from_slice(node.get(at..at + 4).unwrap_or(&[0; 4]));
                    u32::from_le_bytes(le)
                };
                let (major, minor) = disk::inode::decode_device([word(0), word(1)]);
                make_dev(major, minor)
            }
            _ => 0,
        };
        let attr = vt::Attr {
            ino: vfs_ino(ino),
            generation: parsed.generation,
            kind: vfs_kind(kind),
            perm: u32::from(parsed.mode & 0o7777),
            nlink: parsed.links,
            uid: parsed.uid,
            gid: parsed.gid,
            project: parsed.extra.map_or(0, |e| e.projid),
            rdev,
            size: parsed.size,
            // Users do not see the inode's own block.
            blocks512: parsed.blocks.saturating_sub(1).saturating_mul(8),
            atime: vfs_time(parsed.atime),
            mtime: vfs_time(parsed.mtime),
            ctime: vfs_time(parsed.ctime),
            crtime: parsed
                .extra
                .filter(|e| {
                    e.has_crtime()
                        && self
                            .volume
                            .features()
                            .contains(disk::Features::INODE_CRTIME)
                })
                .map(|e| vfs_time(e.crtime)),
            flags: user_flags(&parsed),
        };
        let own = F2fsInode::new(ino, Body::new(&self.volume, parsed));
        Ok(Arc::new(vfs::Inode::new(attr, own)))
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// `KeyRequired`, damage, or a device error.
    pub(crate) fn read_link(&self, inode: &vfs::Inode) -> Result<Vec<u8>> {
        const OP: &str = "read symbolic link";
        let own = f2fs(inode);
        own.check_readable(OP)?;
        let size = usize::try_from(inode.size()).unwrap_or(usize::MAX);
        let mut target = self.read_inline(inode)?;
        let body = own.body.read();
        if !body.inode.inline.contains(disk::inode::InlineFlags::DATA) {
            let Some(block) = self.meta_block(own.ino, &body, 0)? else {
                return Err(self
                    .volume
                    .corrupt(OP, Some(own.ino), None, "the target is nowhere"));
            };
            target = block[..block.len().min(size)].to_vec();
        }
        if let Some(end) = target.iter().position(|b| *b == 0) {
            target.truncate(end);
        }
        if target.is_empty() || target.len() < size.min(1) {
            return Err(self
                .volume
                .corrupt(OP, Some(own.ino), None, "the target is empty"));
        }
        Ok(target)
    }

    /// A block of a file whose contents are the format's business: a long symbolic link's target, a quota file.
    /// `None` for a hole.
    ///
    /// # Errors
    /// Damage; a device error.
    pub(crate) fn meta_block(
        &self,
        ino: Ino,
        body: &Body,
        at: u64,
    ) -> Result<Option<crate::node::cache::Bytes>> {
        self.meta_block_checked(ino, body, at, |_| Ok(()))
    }

    /// As [`Nodes::meta_block`]. The block is kept in the cache only when `check` accepts it.
    ///
    /// # Errors
    /// Damage; a device error.
    pub(crate) fn meta_block_checked(
        &self,
        ino: Ino,
        body: &Body,
        at: u64,
        check: impl FnOnce(&[u8]) -> Result<()>,
    ) -> Result<Option<crate::node::cache::Bytes>> {
        use blockwright_device::{DevOffset, DeviceExt};
        if let Some(bytes) = self.blocks.find((ino, at)) {
            return Ok(Some(bytes));
        }
        let (BlockState::Stored(block), _) = self.find_blocks(ino, body, at, 1)? else {
            return Ok(None);
        };
        let bytes = self
            .volume
            .device
            .read_buf(DevOffset(u64::from(block.0) << 12), disk::BLOCK_SIZE)
            .map_err(|e| Error::io("read directory", e))?;
        check(&bytes)?;
        Ok(Some(self.blocks.insert_clean((ino, at), bytes)))
    }
}
