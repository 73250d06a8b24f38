//! An f2fs inode in memory: what the format needs beyond [`blockwright_vfs::Attr`].
//!
//! The vfs's `Attr` is the truth for what `stat` shows; [`Body`] for the rest of the metadata. Addresses,
//! inline contents and inline attributes stay where they are, in the node.
//!
//! # Locks
//! `body`, rank `InodeMap`: shared to look, exclusive to change.

use crate::volume::Volume;
use crate::volume::vfs_ino;
use crate::{Error, ErrorKind, Result};
use blockwright_ondisk::f2fs as disk;
use blockwright_ondisk::f2fs::inode::{Advise, InodeLayout};
use blockwright_ondisk::f2fs::{BlockAddr, FileKind, Ino};
use blockwright_vfs as vfs;
use blockwright_vfs::locks::{Rank, RwLock};
use blockwright_vfs::quota::Owner;
use blockwright_vfs::range_set::RangeSet;
use blockwright_vfs::types as vt;
use std::collections::BTreeMap;

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
    /// The meaning of the words of its node.
    pub layout: InodeLayout,
    /// Blocks of a cluster; 1 where nothing is compressed.
    pub cluster: usize,
    /// Changes whenever mappings change other than by filling holes.
    pub generation: u64,
    /// The size on disk: at most the size in memory.
    pub disk_size: u64,
    /// Behind that end its block may hold what no reader may see: what a crash left of an append, or what was cut off. So until
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
    /// The owner that `delayed` blocks were promised to, where quota is kept.
    pub(crate) promised_to: Option<Owner>,
    /// Its nodes were freed, its own among them. It gets no others: nothing would name them.
    pub(crate) gone: bool,
}

impl Body {
    pub(crate) fn new(volume: &Volume, inode: disk::Inode) -> Self {
        Body {
            layout: inode.layout(volume.features()),
            cluster: inode.cluster_blocks(),
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
    /// Of a directory.
    pub(crate) last_sought: crate::node::sought::LastSought,
}

impl F2fsInode {
    pub(crate) fn new(ino: Ino, body: Body) -> Self {
        F2fsInode {
            ino,
            body: RwLock::new(Rank::InodeMap, body),
            last_sought: crate::node::sought::LastSought::default(),
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
