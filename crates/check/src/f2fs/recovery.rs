//! Files written by fsync since the checkpoint: a chain of nodes, from where the warm node log goes
//! on, each naming the next. The next mount follows it.
//!
//! The rules are those of the mount, written again:
//! - The chain ends at the first block that is no node written since the checkpoint. Nodes behind its last fsync mark do not
//!   count, and of a file none behind its own last mark.
//! - Of each place in a file's tree the newest node counts, whatever its number is. So it is with attributes.
//! - A file that the NAT does not have, and whose inodes ask for no directory entry, never had a durable name: it is left
//!   out.
//! - A chain that is invalid, or does not fit the checkpoint, is not recovered in part. The mount stays read-only then, so
//!   that is damage ([`IssueKind::RecoveryRefused`]); the first reason is reported.
//!
//! Not looked at: whether data that the chain names belongs to another file, and which file has a new file's name already.
//!
//! Memory: a few words for each node of the chain.

use std::collections::{BTreeMap, HashSet};

use blockwright_ondisk::f2fs::inode::RawInodeHead;
use blockwright_ondisk::f2fs::node::{self, PER_NODE};
use blockwright_ondisk::f2fs::xattr::{self, XattrList};
use blockwright_ondisk::f2fs::{
    Advise, BlockAddr, FileKind, Footer, FormatError, Geometry, InlineFlags, Ino, Inode,
    InodeFlags, Log as F2Log, Nid, NodeOffset, RECOVERED_SEGMENTS_MAX,
};

use zerocopy::FromBytes;

use super::CheckError;
use super::context::Checker;
use super::issue::IssueKind;
use super::nodes::footer_of;
use crate::Mode;

/// What is said of a chain whose addresses are in too many free segments.
const TOO_MANY_SEGMENTS: &str = "its data is in more free segments than a mount brings into use";

/// Why a mount refuses the chain, and at which of its blocks.
type Refusal = (BlockAddr, &'static str);

/// A node of the chain.
#[derive(Clone, Copy)]
struct Link {
    /// Nodes of the chain in front of it.
    n: usize,
    at: BlockAddr,
}

/// The newest nodes of a file.
#[derive(Default)]
struct FileNodes {
    inode: Option<Link>,
    /// The newest inode that asks for a directory entry.
    dentry: Option<Link>,
    /// Every other node, by place in the tree.
    others: BTreeMap<NodeOffset, Link>,
}

impl FileNodes {
    fn add(&mut self, footer: &Footer, link: Link) {
        if footer.offset != NodeOffset::INODE {
            self.others.insert(footer.offset, link);
            return;
        }
        self.inode = Some(link);
        if footer.dentry {
            self.dentry = Some(link);
        }
    }
}

/// A file while the chain is followed.
#[derive(Default)]
struct ChainFile {
    /// Nodes up to its last fsync mark.
    marked: Option<FileNodes>,
    /// Nodes since. They count once another mark follows.
    since: Vec<(Footer, Link)>,
}

impl ChainFile {
    /// The file's next node. Returns how many count from now on: each does once, however many did before.
    fn add(&mut self, footer: Footer, link: Link) -> u64 {
        let is_marked = footer.fsync;
        self.since.push((footer, link));
        if !is_marked {
            return 0;
        }
        let marked = self.marked.get_or_insert_default();
        let new = self.since.drain(..);
        new.map(|(footer, link)| marked.add(&footer, link)).count() as u64
    }
}

/// What the next mount recovers.
#[derive(Default)]
pub(super) struct Recoverable {
    files: BTreeMap<Ino, FileNodes>,
    /// The chain up to its last mark.
    links: Vec<BlockAddr>,
    refused: Option<Refusal>,
    /// Nodes and files that are given up when a mount cannot recover them.
    discardable: Option<(u64, u64)>,
}

/// A block with an inode of the chain or of the checkpoint.
struct Found {
    block: Vec<u8>,
    inode: Inode,
}

/// Whether a node's footer contradicts itself.
fn is_impossible(footer: &Footer, geo: &Geometry) -> bool {
    let number = |n: u32| (Ino::ROOT.0..geo.nids()).contains(&n);
    let is_inode = footer.offset == NodeOffset::INODE;
    !number(footer.nid.0) || !number(footer.ino.0) || is_inode != (footer.nid == footer.ino.nid())
}

/// Whether a direct node of the chain that is older than the inode is still part of the file.
fn is_kept(inode: &Inode, offset: NodeOffset, nid: Nid) -> bool {
    let named = inode.nids[offset.root()];
    let other = offset.0 <= 2 && named != nid;
    !inode.inline.contains(InlineFlags::DATA) && named.0 != 0 && !other
}

impl Checker {
    /// Follows the chain. When files wait there, nothing is repaired: a new checkpoint would lose
    /// them. Whether a repair that may `discard` them does so is decided once the tables are read.
    pub(super) fn find_recoverable(&mut self, discard: bool) -> Result<Recoverable, CheckError> {
        let mut found = Recoverable::default();
        let geo = self.geo.clone();
        let cp = self.pack.checkpoint.clone();
        let head = cp.raw.log(F2Log::WarmNode);
        let Some(start) = geo.segment_start(head.segment) else {
            return Ok(found);
        };
        let mut at = BlockAddr(start.0 + u32::from(head.offset));
        let mut files: BTreeMap<Ino, ChainFile> = BTreeMap::new();
        let mut met = HashSet::new();
        let mut impossible = None;
        let mut marked = 0;
        while geo.in_main(at) {
            let block = self.store.read(at, "node")?;
            let Ok(footer) = Footer::read(&block) else {
                break;
            };
            if !cp.footer_matches(footer.version) {
                break;
            }
            if !met.insert(at.0) {
                if marked > 0 {
                    found.refused = Some((at, "the chain of nodes goes in circles"));
                }
                break;
            }
            let n = found.links.len();
            found.links.push(at);
            if is_impossible(&footer, &geo) {
                impossible.get_or_insert(Link { n, at });
            }
            if footer.fsync {
                marked = found.links.len();
            }
            at = footer.next;
            let file = files.entry(footer.ino).or_default();
            file.add(
                footer,
                Link {
                    n,
                    at: found.links[n],
                },
            );
        }
        found.links.truncate(marked);
        if let Some(link) = impossible.filter(|link| link.n < marked) {
            let what = "its number, its inode and its place contradict each other";
            found.refused.get_or_insert((link.at, what));
        }
        let files = files.into_iter();
        found.files = files
            .filter_map(|(ino, file)| Some((ino, file.marked?)))
            .collect();
        let (nodes, files) = (marked as u64, found.files.len() as u64);
        if files > 0 && discard && self.mode() == Mode::Yes {
            found.discardable = Some((nodes, files));
        } else if files > 0 {
            self.keep_chain(nodes, files);
        }
        Ok(found)
    }

    /// Leaves the chain, and so the volume, as it is.
    fn keep_chain(&mut self, nodes: u64, files: u64) {
        self.problem(IssueKind::RecoveryPending { nodes, files });
        self.log.mode = Mode::ReadOnly;
    }

    /// Looks at what the next mount recovers, once the tables are read: whether it can, and whether the attributes are
    /// valid then.
    pub(super) fn check_recoverable(&mut self, found: &Recoverable) -> Result<(), CheckError> {
        let mut refused = found.refused.or_else(|| {
            let used = found.links.iter().find(|at| self.is_in_use(**at));
            used.map(|at| (*at, "the checkpoint says that the block is in use"))
        });
        let mut new = HashSet::new();
        for (&ino, file) in &found.files {
            if refused.is_some() {
                break;
            }
            refused = self.check_recoverable_file(ino, file, &mut new)?;
        }
        if let Some((block, what)) = refused {
            self.problem(IssueKind::RecoveryRefused { block, what });
        }
        let mut lost = refused.is_some();
        if let Some((nodes, files)) = found.discardable {
            lost = lost || self.has_damaged_owner(found)?;
            if lost && self.mode() == Mode::Yes {
                // A repair writes a checkpoint that the chain is not behind.
                self.log
                    .problem_beyond(IssueKind::RecoveryDiscarded { nodes, files });
                self.changes += 1;
            } else {
                self.keep_chain(nodes, files);
            }
        }
        if lost {
            for (&ino, file) in &found.files {
                let name = self.name_of(ino, file)?;
                self.log
                    .problem_beyond(IssueKind::RecoveryFile { ino, name });
            }
        }
        Ok(())
    }

    /// Whether an inode of the checkpoint is damaged that the chain needs: that of one of its files, or of a new file's directory. A mount recovers
    /// nothing then. Putting it right in its place would be a guess that nothing checks before the mount follows the chain. The check of the node
    /// reports the damage.
    fn has_damaged_owner(&self, found: &Recoverable) -> Result<bool, CheckError> {
        for (&ino, file) in &found.files {
            let owner = match (self.tables.nat.contains_key(&ino.0), file.dentry) {
                (true, _) => Some(ino),
                (false, Some(link)) => self.chain_inode(ino, link)?.ok().map(|f| f.inode.pino),
                (false, None) => None,
            };
            let entry = owner.and_then(|ino| self.tables.nat.get(&ino.0));
            let (Some(owner), Some(entry)) = (owner, entry) else {
                continue;
            };
            if !self.geo.in_main(entry.block) {
                return Ok(true);
            }
            let block = self.store.read(entry.block, "node")?;
            if footer_of(&block, owner.nid(), owner).is_err()
                || Inode::parse(&block, owner, &self.geo).is_err()
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The name that a file's newest inode has, which may be damaged, for people; empty where there is no inode.
    fn name_of(&self, ino: Ino, file: &FileNodes) -> Result<String, CheckError> {
        let stored = self.tables.nat.get(&ino.0).map(|entry| entry.block);
        let at = file.inode.map(|link| link.at).or(stored);
        let Some(at) = at.filter(|at| self.geo.in_main(*at)) else {
            return Ok(String::new());
        };
        let block = self.store.read(at, "node")?;
        let name = RawInodeHead::ref_from_prefix(&block)
            .ok()
            .and_then(|(head, _)| {
                let len = head.namelen.get() as usize;
                head.name.get(..len)
            });
        Ok(String::from_utf8_lossy(name.unwrap_or_default()).into_owned())
    }

    fn is_in_use(&self, block: BlockAddr) -> bool {
        let place = self.geo.segment_of(block);
        place.is_some_and(|(segment, at)| {
            let entry = self.tables.sit.get(&segment.0);
            entry.is_some_and(|entry| entry.valid.get(at))
        })
    }

    /// Whether a mount refuses a file of the chain. `new`: segments without a block in use that the chain names.
    fn check_recoverable_file(
        &mut self,
        ino: Ino,
        file: &FileNodes,
        new: &mut HashSet<u32>,
    ) -> Result<Option<Refusal>, CheckError> {
        let Some(link) = file.inode.or(file.others.values().next().copied()) else {
            return Ok(None);
        };
        let stored = self.tables.nat.get(&ino.0).copied();
        let old = match stored {
            None => None,
            Some(entry) if entry.ino != ino => {
                return Ok(Some((link.at, "its inode's number is another node's")));
            }
            Some(entry) => match self.stored_inode(ino, entry.block)? {
                // The check of the node reports it.
                None => return Ok(None),
                Some(found) if found.inode.kind() != Some(FileKind::Regular) => {
                    return Ok(Some((link.at, "the checkpoint has no regular file there")));
                }
                found => found,
            },
        };
        if old.is_none() {
            // Without an entry there is no way to it.
            let Some(dentry) = file.dentry else {
                return Ok(None);
            };
            if let Some(refused) = self.check_new_name(ino, dentry)? {
                return Ok(Some(refused));
            }
        }
        let newest = match file.inode {
            None => None,
            Some(link) => match self.chain_inode(ino, link)? {
                Ok(found) => Some(found),
                Err(refused) => return Ok(Some(refused)),
            },
        };
        if let (None, Some(old)) = (&newest, &old)
            && old.inode.flags.contains(InodeFlags::COMPRESS)
        {
            return Ok(Some((
                link.at,
                "the checkpoint has a compressed file there",
            )));
        }
        if let (Some(newest), Some(old)) = (&newest, &old) {
            let words = |i: &Inode| i.layout(self.geo.features).address_bytes();
            let inline = |i: &Inode| i.inline.contains(InlineFlags::DATA);
            if !inline(&newest.inode)
                && !inline(&old.inode)
                && words(&newest.inode) != words(&old.inode)
            {
                return Ok(Some((link.at, "the inode has another layout than before")));
            }
        }
        let newest = file.inode.zip(newest.as_ref());
        if let Some(refused) = self.check_recoverable_nodes(file, newest, old.as_ref(), new)? {
            return Ok(Some(refused));
        }
        self.check_recoverable_attributes(ino, file, newest, old.as_ref())
    }

    /// The checkpoint's inode.
    fn stored_inode(&self, ino: Ino, at: BlockAddr) -> Result<Option<Found>, CheckError> {
        if !self.geo.in_main(at) {
            return Ok(None);
        }
        let block = self.store.read(at, "node")?;
        let inode = Inode::parse_unverified(&block, ino, &self.geo).ok();
        Ok(inode.map(|inode| Found { block, inode }))
    }

    /// An inode of the chain: of a plain regular file. Others are not fsynced without a checkpoint.
    fn chain_inode(&self, ino: Ino, link: Link) -> Result<Result<Found, Refusal>, CheckError> {
        let block = self.store.read(link.at, "node")?;
        let Ok(inode) = Inode::parse(&block, ino, &self.geo) else {
            return Ok(Err((link.at, "its inode is invalid")));
        };
        if inode.inline.contains(InlineFlags::DATA)
            && inode.advise.intersects(Advise::ENCRYPT | Advise::VERITY)
        {
            let what = "its contents are inline, which no encrypted or protected file's are";
            return Ok(Err((link.at, what)));
        }
        let plain =
            inode.kind() == Some(FileKind::Regular) && !inode.flags.contains(InodeFlags::COMPRESS);
        Ok(match plain {
            true => Ok(Found { block, inode }),
            false => Err((link.at, "its inode is of no plain regular file")),
        })
    }

    /// The name that a new file asks for.
    fn check_new_name(&self, ino: Ino, link: Link) -> Result<Option<Refusal>, CheckError> {
        let inode = match self.chain_inode(ino, link)? {
            Ok(found) => found.inode,
            Err(refused) => return Ok(Some(refused)),
        };
        let name = &inode.name[..];
        let impossible = name.is_empty()
            || name == b"."
            || name == b".."
            || name.iter().any(|b| matches!(b, 0 | b'/'));
        if impossible {
            return Ok(Some((link.at, "no file has such a name")));
        }
        let no_directory = Some((link.at, "its name is to be in what is no directory"));
        let Some(entry) = self.tables.nat.get(&inode.pino.0).copied() else {
            return Ok(no_directory);
        };
        let parent = self.stored_inode(inode.pino, entry.block)?;
        let directory = parent.is_none_or(|p| p.inode.kind() == Some(FileKind::Directory));
        Ok(no_directory.filter(|_| entry.ino != inode.pino || !directory))
    }

    /// Places and addresses of a file's nodes: `newest` is the newest inode in the chain.
    fn check_recoverable_nodes(
        &self,
        file: &FileNodes,
        newest: Option<(Link, &Found)>,
        old: Option<&Found>,
        new: &mut HashSet<u32>,
    ) -> Result<Option<Refusal>, CheckError> {
        let Some(of) = newest.map(|(_, found)| found).or(old) else {
            return Ok(None);
        };
        let mut layout = of.inode.layout(self.geo.features);
        let in_inode = layout.addresses_used(1);
        let bad = "it names a block that cannot be the file's data";
        if let Some((link, found)) = newest
            && !found.inode.inline.contains(InlineFlags::DATA)
        {
            let start = layout.address_bytes().start;
            let words = found.block.get(start..start + in_inode * 4).unwrap_or(&[]);
            if self.names_impossible(words, new) {
                return Ok(Some((link.at, bad)));
            }
        }
        if of.inode.inline.contains(InlineFlags::DATA) {
            // Data that moved to blocks.
            let mut inode = of.inode.clone();
            inode.inline -= InlineFlags::DATA | InlineFlags::DATA_EXIST;
            layout = inode.layout(self.geo.features);
        }
        let in_inode = layout.addresses_used(1);
        for (&offset, &link) in &file.others {
            if offset == NodeOffset::XATTR || offset.is_indirect() {
                continue;
            }
            let block = self.store.read(link.at, "node")?;
            if let Some((at, found)) = newest
                && link.n < at.n
                && let Ok(footer) = Footer::read(&block)
                && !is_kept(&found.inode, offset, footer.nid)
            {
                continue;
            }
            let place = node::first_block_of(offset, in_inode, 1)
                .filter(|first| node::node_path(*first, in_inode, 1).is_some());
            if place.is_none() {
                return Ok(Some((link.at, "no file has a node at its place")));
            }
            if self.names_impossible(block.get(..PER_NODE * 4).unwrap_or(&[]), new) {
                return Ok(Some((link.at, bad)));
            }
            if new.len() > RECOVERED_SEGMENTS_MAX {
                return Ok(Some((link.at, TOO_MANY_SEGMENTS)));
            }
        }
        // Those of the inode alone.
        let last = newest.filter(|_| new.len() > RECOVERED_SEGMENTS_MAX);
        Ok(last.map(|(link, _)| (link.at, TOO_MANY_SEGMENTS)))
    }

    /// Whether one of these addresses can be of no data of a plain file. Notes segments without a block in use in `new`.
    fn names_impossible(&self, words: &[u8], new: &mut HashSet<u32>) -> bool {
        let cp = &self.pack.checkpoint.raw;
        let addresses = words.chunks_exact(4).map(|w| [w[0], w[1], w[2], w[3]]);
        addresses
            .map(|word| BlockAddr(u32::from_le_bytes(word)))
            .any(|address| {
                if !address.is_stored() {
                    return address == BlockAddr::COMPRESSED;
                }
                let Some((segment, _)) = self.geo.segment_of(address) else {
                    return true;
                };
                let log = self.logs().iter().find(|l| cp.log(**l).segment == segment);
                let entry = self.tables.sit.get(&segment.0);
                match (log, entry.filter(|entry| !entry.valid.is_empty())) {
                    (Some(log), _) => log.is_node(),
                    (None, Some(entry)) => entry.log.is_node(),
                    (None, None) => {
                        new.insert(segment.0);
                        false
                    }
                }
            })
    }

    /// The attributes of a file as the mount leaves them.
    fn check_recoverable_attributes(
        &mut self,
        ino: Ino,
        file: &FileNodes,
        newest: Option<(Link, &Found)>,
        old: Option<&Found>,
    ) -> Result<Option<Refusal>, CheckError> {
        let written = file.others.get(&NodeOffset::XATTR).copied();
        let here = old.map_or(Nid(0), |old| old.inode.xattr_nid);
        let node = match (newest, written) {
            // Nothing of them changes.
            (None, None) => return Ok(None),
            // The node goes.
            (Some((link, found)), w)
                if found.inode.xattr_nid.0 == 0 && w.is_none_or(|w| w.n < link.n) =>
            {
                None
            }
            // Its contents count. The file keeps its node, or gets one.
            (_, Some(written)) => Some(Some(self.store.read(written.at, "node")?)),
            (Some((link, found)), None) if found.inode.xattr_nid != here => {
                let what = "its node of attributes is not in the chain";
                return Ok(Some((link.at, what)));
            }
            (Some(_), None) => Some(self.stored_attributes(ino, here)?),
        };
        let Some(of) = newest.map(|(_, found)| found).or(old) else {
            return Ok(None);
        };
        let range = match of.inode.inline.contains(InlineFlags::XATTR) {
            true => of.inode.layout(self.geo.features).xattr_bytes(),
            false => 0..0,
        };
        let inline = of.block.get(range).unwrap_or(&[]);
        let list = match node {
            // The list goes on in a node that is not there.
            Some(None) => Err(FormatError::XattrEntry {
                offset: inline.len(),
            }),
            Some(Some(node)) => xattr::assemble(inline, Some(&node)),
            None => xattr::assemble(inline, None),
        };
        let parsed = list.and_then(|list| XattrList::parse(&list).map(|_| ()));
        if let Err(error) = parsed {
            let error = error.into();
            self.problem(IssueKind::Xattr { ino, error });
        }
        Ok(None)
    }

    /// The checkpoint's node of attributes; `None` when it is not there.
    fn stored_attributes(&self, ino: Ino, nid: Nid) -> Result<Option<Vec<u8>>, CheckError> {
        let stored = self.tables.nat.get(&nid.0).map(|entry| entry.block);
        let Some(at) = stored.filter(|at| self.geo.in_main(*at)) else {
            return Ok(None);
        };
        let block = self.store.read(at, "node")?;
        let is_its = Footer::read(&block).is_ok_and(|f| f.nid == nid && f.ino == ino);
        Ok(is_its.then_some(block))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file with an fsync behind each of its nodes takes no more steps than nodes.
    #[test]
    fn each_node_is_taken_once() {
        let mut file = ChainFile::default();
        let mut taken = 0;
        for n in 0..3000 {
            let footer = Footer {
                nid: Nid(100 + n),
                ino: Ino(5),
                offset: NodeOffset(1 + n % 2000),
                cold: true,
                fsync: n != 2999,
                dentry: false,
                version: 1,
                next: BlockAddr(n + 1),
            };
            let (n, at) = (n as usize, BlockAddr(n));
            taken += file.add(footer, Link { n, at });
        }
        assert_eq!(taken, 2999);
        let marked = file.marked.expect("marked");
        assert_eq!(marked.others.len(), 2000);
        // The newest one, and none behind the last mark.
        assert_eq!(marked.others[&NodeOffset(999)].n, 2998);
        assert_eq!(marked.others[&NodeOffset(1000)].n, 999);
    }
}
