//! An f2fs inode in memory: what the format needs beyond [`blockwright_vfs::Attr`].
//!
//! The vfs's `Attr` is the truth for what `stat` shows; [`Body`] for the rest of the metadata. Addresses,
//! inline contents and inline attributes stay where they are, in the node.
//!
//! # Locks
//! `body`, rank `InodeMap`: shared to look, exclusive to change.

use crate::node::Nodes;
use crate::volume::Volume;
use crate::volume::vfs_ino;
use crate::{Error, ErrorKind, Result};
use blockwright_ondisk::f2fs as disk;
use blockwright_ondisk::f2fs::inode::{Advise, InodeLayout};
use blockwright_ondisk::f2fs::{BlockAddr, FileKind, Ino};
use blockwright_vfs as vfs;
use blockwright_vfs::locks::{Mutex, Rank, RwLock};
use blockwright_vfs::quota::Owner;
use blockwright_vfs::range_set::RangeSet;
use blockwright_vfs::types as vt;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Blocks that `allocate` took and `commit_write` has not made visible yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// The first block.
    pub block: BlockAddr,
    /// How many.
    pub len: u32,
    /// Writes under way into them.
    pub writers: u32,
}

/// The format's part of an inode, guarded by [`F2fsInode::body`].
pub struct Body {
    /// The metadata as last read or stored.
    pub inode: disk::Inode,
    /// What the words of its node are.
    pub layout: InodeLayout,
    /// Blocks of a cluster; 1 where nothing is compressed.
    pub cluster: usize,
    /// Changes whenever mappings change other than by filling holes.
    pub generation: u64,
    /// The size on disk: at most the size in memory.
    pub disk_size: u64,
    /// Behind that end its block may hold what nobody may see: what a crash left of an append, or what was cut off. So until
    /// the block was written again and the size grew.
    pub(crate) end_is_open: bool,
    /// File blocks that are promised and have no place.
    pub delayed: RangeSet,
    /// How many those are.
    pub delayed_blocks: u64,
    /// Runs taken but not committed, by first file block.
    pub pending: BTreeMap<u64, Pending>,
    /// Blocks that its owner has been charged for.
    pub(crate) charged: u64,
    /// To whom `delayed` blocks were promised, where quota is kept.
    pub(crate) promised_to: Option<Owner>,
    /// Its nodes were freed, its own among them. It gets no others: nothing would name them.
    pub(crate) gone: bool,
}

impl Body {
    pub(crate) fn new(volume: &Volume, inode: disk::Inode) -> Self {
        // Only files are compressed; a directory passes the wish on.
        let cluster = match inode.kind() {
            Some(FileKind::Regular) => inode.cluster_blocks(),
            _ => 1,
        };
        Body {
            layout: inode.layout(volume.features()),
            cluster,
            disk_size: inode.size,
            end_is_open: !inode.size.is_multiple_of(4096),
            charged: inode.blocks.saturating_sub(1),
            promised_to: None,
            gone: false,
            inode,
            generation: 0,
            delayed: RangeSet::default(),
            delayed_blocks: 0,
            pending: BTreeMap::new(),
        }
    }

    /// From an inode's node.
    ///
    /// # Errors
    /// Damage.
    pub(crate) fn parse(volume: &Volume, ino: Ino, node: &[u8]) -> Result<Self> {
        let inode = disk::Inode::parse_unverified(node, ino, &volume.geo)
            .map_err(|e| volume.refused("load inode", ino, &e))?;
        Ok(Body::new(volume, inode))
    }
}

/// The engine's part of a [`blockwright_vfs::Inode`].
pub struct F2fsInode {
    /// Its number.
    pub ino: Ino,
    /// The rest.
    pub body: RwLock<Body>,
    /// Generation and blocks that the file had when it was found to hold data everywhere.
    pub(crate) dense: Mutex<Option<(u64, u64)>>,
    /// Of a directory.
    pub(crate) last_sought: crate::sought::LastSought,
}

impl F2fsInode {
    pub(crate) fn new(ino: Ino, body: Body) -> Self {
        F2fsInode {
            ino,
            body: RwLock::new(Rank::InodeMap, body),
            dense: Mutex::new(Rank::Leaf, None),
            last_sought: crate::sought::LastSought::default(),
        }
    }
}

/// The engine's part of an inode.
#[must_use]
pub fn f2fs(inode: &vfs::Inode) -> &F2fsInode {
    inode.private::<F2fsInode>()
}

/// The kind as the vfs has it.
#[must_use]
pub fn vfs_kind(kind: FileKind) -> vt::FileKind {
    match kind {
        FileKind::Regular => vt::FileKind::Regular,
        FileKind::Directory => vt::FileKind::Directory,
        FileKind::CharDevice => vt::FileKind::CharDevice,
        FileKind::BlockDevice => vt::FileKind::BlockDevice,
        FileKind::Fifo => vt::FileKind::Fifo,
        FileKind::Socket => vt::FileKind::Socket,
        FileKind::Symlink => vt::FileKind::Symlink,
    }
}

pub(crate) fn vfs_time(t: disk::Timestamp) -> vt::Timestamp {
    vt::Timestamp {
        secs: t.secs,
        nanos: t.nanos,
    }
}

pub(crate) fn disk_time(t: vt::Timestamp) -> disk::Timestamp {
    disk::Timestamp {
        secs: t.secs,
        nanos: t.nanos,
    }
}

/// `makedev` in the user-space coding of 64 bits.
pub(crate) fn make_dev(major: u32, minor: u32) -> u64 {
    let (major, minor) = (u64::from(major), u64::from(minor));
    ((major & 0xFFFF_F000) << 32)
        | ((major & 0xFFF) << 8)
        | ((minor & 0xFFFF_FF00) << 12)
        | (minor & 0xFF)
}

impl F2fsInode {
    /// Fails for contents and names that cannot be had without a key.
    ///
    /// # Errors
    /// `KeyRequired`.
    pub(crate) fn check_readable(&self, op: &'static str) -> Result<()> {
        if self.is_encrypted() {
            return Err(Error::new(ErrorKind::KeyRequired, op)
                .ino(vfs_ino(self.ino))
                .detail("the file is encrypted"));
        }
        Ok(())
    }

    /// Whether its contents and the names in it are encrypted.
    pub(crate) fn is_encrypted(&self) -> bool {
        let advise = self.body.read().inode.advise;
        advise.contains(Advise::ENCRYPT)
    }
}

/// For whom an inode is loaded.
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
    /// `Stale` when it is not, `Corrupt` when it makes no sense, or a device error.
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
    ) -> Result<Option<crate::cache::Bytes>> {
        self.meta_block_checked(ino, body, at, |_| Ok(()))
    }

    /// As [`Nodes::meta_block`]. What is read is kept only when `check` finds it good.
    ///
    /// # Errors
    /// Damage; a device error.
    pub(crate) fn meta_block_checked(
        &self,
        ino: Ino,
        body: &Body,
        at: u64,
        check: impl FnOnce(&[u8]) -> Result<()>,
    ) -> Result<Option<crate::cache::Bytes>> {
        use crate::map::BlockState;
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
