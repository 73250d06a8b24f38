//! Following the chain of fsynced nodes.
//!
//! The chain ends at the first block that is no node written since the checkpoint. Every block is visited at most
//! once, so the work is bounded by the volume, whatever it holds; reads grow only while blocks that follow each other are asked for.

use crate::alloc::chain_start;
use crate::{Error, Result};
use blockwright_device::{AlignedBuf, DevOffset, SharedDevice};
use blockwright_ondisk::f2fs as disk;
use blockwright_ondisk::f2fs::inode::InodeFlags;
use blockwright_ondisk::f2fs::node::{Footer, NodeOffset};
use blockwright_ondisk::f2fs::{
    BLOCK_SIZE, BLOCKS_PER_SEG, BlockAddr, Checkpoint, FileKind, Geometry, Ino,
};
use hashbrown::HashSet;
use std::collections::BTreeMap;

pub(super) const OP: &str = "recover fsynced files";

/// A block of the chain.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(super) at: BlockAddr,
    pub(super) footer: Footer,
    /// Of an inode that asks for a directory entry and makes sense: which. Noted in passing, or every new file's inode would be
    /// read once more for it.
    pub(super) entry: Option<Box<(Ino, Vec<u8>)>>,
}

/// What an inode of the chain says of its place among the names.
fn entry_of(bytes: &[u8], footer: &Footer, geo: &Geometry) -> Option<Box<(Ino, Vec<u8>)>> {
    if !footer.dentry || footer.offset != NodeOffset::INODE {
        return None;
    }
    let inode = disk::Inode::parse(bytes, footer.ino, geo).ok()?;
    is_plain(&inode).then(|| Box::new((inode.pino, inode.name)))
}

/// Whether an inode is of a kind that is fsynced without a checkpoint.
pub(super) fn is_plain(inode: &disk::Inode) -> bool {
    inode.kind() == Some(FileKind::Regular) && !inode.flags.contains(InodeFlags::COMPRESS)
}

/// What the chain has of one file. Positions in the chain; none behind the file's last fsync mark.
#[derive(Debug, Default)]
pub(super) struct FileChain {
    /// The last node with an fsync mark.
    pub(super) last: usize,
    /// The newest inode.
    pub(super) inode: Option<usize>,
    /// The newest inode that asks for a directory entry.
    pub(super) dentry: Option<usize>,
    /// The newest of every other node, by place in the tree.
    pub(super) nodes: BTreeMap<NodeOffset, usize>,
}

/// Reads blocks of the main area, more at once while they are asked for in order.
pub(super) struct Reader<'a> {
    device: &'a SharedDevice,
    geo: &'a Geometry,
    start: u64,
    bytes: Option<AlignedBuf>,
    ahead: u64,
    /// Blocks that were asked for of those in `bytes`.
    asked: u64,
}

impl<'a> Reader<'a> {
    pub(super) fn new(device: &'a SharedDevice, geo: &'a Geometry) -> Self {
        Reader {
            device,
            geo,
            start: 0,
            bytes: None,
            ahead: 1,
            asked: 0,
        }
    }

    /// A block of the main area.
    ///
    /// # Errors
    /// A device error.
    pub(super) fn block(&mut self, at: BlockAddr) -> Result<&[u8]> {
        let at = u64::from(at.0);
        let len = self
            .bytes
            .as_ref()
            .map_or(0, |b| (b.len() / BLOCK_SIZE) as u64);
        if !(self.start..self.start + len).contains(&at) {
            // Only where most of the last ones were wanted: no more is read than a few times what is asked for.
            let goes_on = len > 0 && at == self.start + len && self.asked * 2 > len;
            self.ahead = match goes_on {
                true => (self.ahead * 2).min(u64::from(BLOCKS_PER_SEG)),
                false => 1,
            };
            self.asked = 0;
            let n = self
                .ahead
                .min(self.geo.main_end().saturating_sub(at))
                .max(1);
            let bytes = n as usize * BLOCK_SIZE;
            // Large ones come from the system, page by page: the same one again and again.
            let buf = self.bytes.take().filter(|b| b.len() == bytes);
            let buf = buf.unwrap_or_else(|| AlignedBuf::for_overwrite(bytes));
            let read = self.device.read_aligned(DevOffset(at << 12), buf);
            self.bytes = Some(read.map_err(|e| Error::io(OP, e))?);
            self.start = at;
        }
        self.asked += 1;
        let from = (at - self.start) as usize * BLOCK_SIZE;
        let bytes = self
            .bytes
            .as_ref()
            .and_then(|b| b.get(from..from + BLOCK_SIZE));
        bytes.ok_or_else(|| Error::corrupt(OP, "a read that is too short"))
    }
}

/// The chain behind a checkpoint, up to its last fsync mark; nothing when there is none.
///
/// # Errors
/// `Corrupt` when it goes in circles or holds nodes that cannot be; a device error.
pub(crate) fn walk(device: &SharedDevice, geo: &Geometry, cp: &Checkpoint) -> Result<Vec<Link>> {
    let mut links = Vec::new();
    let mut at = chain_start(geo, cp);
    let mut reader = Reader::new(device, geo);
    let mut met = HashSet::new();
    let mut recovered = 0;
    while geo.in_main(at) {
        let bytes = reader.block(at)?;
        let Ok(footer) = Footer::read(bytes) else {
            break;
        };
        if !cp.footer_matches(footer.version) {
            break;
        }
        if !met.insert(at) {
            if recovered == 0 {
                break;
            }
            let detail = "the chain of fsynced nodes goes in circles";
            return Err(Error::corrupt(OP, detail).block(u64::from(at.0)));
        }
        let entry = entry_of(bytes, &footer, geo);
        let (fsync, next) = (footer.fsync, footer.next);
        links.push(Link { at, footer, entry });
        if fsync {
            recovered = links.len();
        }
        at = next;
    }
    links.truncate(recovered);
    for link in &links {
        let f = &link.footer;
        let is_inode = f.offset == NodeOffset::INODE;
        let numbers = |n: u32| (Ino::ROOT.0..geo.nids()).contains(&n);
        if !numbers(f.nid.0) || !numbers(f.ino.0) || is_inode != (f.nid == f.ino.nid()) {
            let detail = format!(
                "the chain has a node {} of inode {} at place {}",
                f.nid, f.ino, f.offset.0
            );
            return Err(Error::corrupt(OP, detail).block(u64::from(link.at.0)));
        }
    }
    Ok(links)
}

/// The chain by files.
pub(super) fn by_file(links: &[Link]) -> BTreeMap<Ino, FileChain> {
    let mut files: BTreeMap<Ino, FileChain> = BTreeMap::new();
    for (n, link) in links.iter().enumerate().filter(|(_, l)| l.footer.fsync) {
        files.entry(link.footer.ino).or_default().last = n;
    }
    for (n, link) in links.iter().enumerate() {
        let Some(file) = files.get_mut(&link.footer.ino).filter(|f| n <= f.last) else {
            continue;
        };
        if link.footer.offset == NodeOffset::INODE {
            file.inode = Some(n);
            if link.footer.dentry {
                file.dentry = Some(n);
            }
        } else {
            file.nodes.insert(link.footer.offset, n);
        }
    }
    files
}
