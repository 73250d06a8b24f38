//! Files written by fsync since the checkpoint: a chain of nodes, from where the warm node log goes
//! on, each naming the next. The next mount follows it.

use std::collections::BTreeMap;

use blockwright_ondisk::f2fs::xattr::{self, XattrList};
use blockwright_ondisk::f2fs::{
    BlockAddr, Footer, FormatError, InlineFlags, Ino, Inode, Log as F2Log, Nid, NodeOffset,
};

use super::CheckError;
use super::context::Checker;
use super::issue::IssueKind;
use crate::Mode;

/// The nodes that the next mount recovers: the latest of each inode, and of each node of attributes.
#[derive(Default)]
pub(super) struct Recoverable {
    inodes: BTreeMap<Ino, BlockAddr>,
    attributes: BTreeMap<Nid, BlockAddr>,
}

impl Recoverable {
    fn add(&mut self, footer: &Footer, at: BlockAddr) {
        if footer.nid == footer.ino.nid() {
            self.inodes.insert(footer.ino, at);
        } else if footer.offset == NodeOffset::XATTR {
            self.attributes.insert(footer.nid, at);
        }
    }
}

impl Checker {
    /// Follows the chain. When files wait there, nothing is repaired: a new checkpoint would lose
    /// them.
    pub(super) fn find_recoverable(&mut self) -> Result<Recoverable, CheckError> {
        let mut found = Recoverable::default();
        let geo = self.geo.clone();
        let cp = self.pack.checkpoint.clone();
        let head = cp.raw.log(F2Log::WarmNode);
        let Some(start) = geo.segment_start(head.segment) else {
            return Ok(found);
        };
        let mut at = BlockAddr(start.0 + u32::from(head.offset));
        // By file: the nodes since its last fsync. They count once another fsync follows.
        let mut since: BTreeMap<Ino, Vec<(Footer, BlockAddr)>> = BTreeMap::new();
        let (mut nodes, mut files) = (0u64, std::collections::BTreeSet::new());
        let mut pending = 0;
        let mut met = std::collections::HashSet::new();
        while geo.in_main(at) && met.insert(at.0) {
            let block = self.store.read(at, "node")?;
            let Ok(footer) = Footer::read(&block) else {
                break;
            };
            if !cp.footer_matches(footer.version) {
                break;
            }
            nodes += 1;
            let (fsync, next) = (footer.fsync, footer.next);
            let of_file = since.entry(footer.ino).or_default();
            let ino = footer.ino;
            of_file.push((footer, at));
            if fsync {
                for (footer, at) in of_file.drain(..) {
                    found.add(&footer, at);
                }
                // Nodes before the last node of an fsync are recovered; later ones are not.
                pending = nodes;
                files.insert(ino.0);
            }
            at = next;
        }
        if !files.is_empty() {
            self.problem(IssueKind::RecoveryPending {
                nodes: pending,
                files: files.len() as u64,
            });
            self.log.mode = Mode::ReadOnly;
        }
        Ok(found)
    }

    /// Looks at the attributes of the files that the next mount recovers. Their inodes and nodes of attributes come from the chain.
    pub(super) fn check_recoverable(&mut self, found: &Recoverable) -> Result<(), CheckError> {
        for (&ino, &at) in &found.inodes {
            let block = self.store.read(at, "node")?;
            let Ok(inode) = Inode::parse_unverified(&block, ino, &self.geo) else {
                continue;
            };
            let range = match inode.inline.contains(InlineFlags::XATTR) {
                true => inode.layout(self.geo.features).xattr_bytes(),
                false => 0..0,
            };
            let inline = block.get(range).unwrap_or(&[]);
            let parsed = match self.recoverable_attributes(ino, inode.xattr_nid, found)? {
                // The list goes on in a node that is not there.
                Some(None) => Err(FormatError::XattrEntry {
                    offset: inline.len(),
                }),
                Some(Some(node)) => xattr::assemble(inline, Some(&node)),
                None => xattr::assemble(inline, None),
            };
            let parsed = parsed.and_then(|list| XattrList::parse(&list).map(|_| ()));
            if let Err(error) = parsed {
                let error = error.into();
                self.problem(IssueKind::Xattr { ino, error });
            }
        }
        Ok(())
    }

    /// The node of attributes of a file that is recovered: `None` when it has none, `Some(None)` when it is not there.
    fn recoverable_attributes(
        &self,
        ino: Ino,
        nid: Nid,
        found: &Recoverable,
    ) -> Result<Option<Option<Vec<u8>>>, CheckError> {
        if nid.0 == 0 {
            return Ok(None);
        }
        let stored = self.tables.nat.get(&nid.0).map(|entry| entry.block);
        let Some(at) = found.attributes.get(&nid).copied().or(stored) else {
            return Ok(Some(None));
        };
        if !self.geo.in_main(at) {
            return Ok(Some(None));
        }
        let block = self.store.read(at, "node")?;
        let is_its = Footer::read(&block).is_ok_and(|f| f.nid == nid && f.ino == ino);
        Ok(Some(is_its.then_some(block)))
    }
}
