//! One file of the chain: its inode, its nodes' addresses, its attributes, its size.
//!
//! The chain has every node that changed since the checkpoint, except indirect ones. So the node numbers in the newest inode
//! show which subtrees are still those of the checkpoint. Each direct node of the chain replaces all addresses of its place
//! in the tree. Numbers of nodes are not taken over: nodes are made where the tree lacks them.

use super::Recovery;
use super::walk::{FileChain, Link, OP, Reader, is_plain};
use crate::alloc::Claim;
use crate::data::log_of;
use crate::node::Place;
use crate::node::change::address_in;
use crate::node::impossible::why_impossible;
use crate::node::inode::{Body, F2fsInode, f2fs};
use crate::node::load::Purpose;
use crate::node::tree::Slot;
use crate::writer::Writer;
use crate::{Error, Result};
use blockwright_device::AlignedBuf;
use blockwright_ondisk::f2fs as disk;
use blockwright_ondisk::f2fs::inode::{Advise, InlineFlags, InodeFlags};
use blockwright_ondisk::f2fs::node::{self, Footer, NodeOffset, PER_NODE};
use blockwright_ondisk::f2fs::summary::Summary;
use blockwright_ondisk::f2fs::xattr::NODE_BYTES;
use blockwright_ondisk::f2fs::{BLOCK_SIZE, BlockAddr, FileKind, Ino, Nid};

impl Recovery {
    fn bad_chain(&self, ino: Ino, at: BlockAddr, what: impl Into<String>) -> Error {
        self.volume.corrupt(OP, Some(ino), Some(at), what)
    }

    /// An inode of the chain.
    pub(super) fn chain_inode(
        &self,
        reader: &mut Reader<'_>,
        link: &Link,
        ino: Ino,
    ) -> Result<(AlignedBuf, disk::Inode)> {
        let bytes = AlignedBuf::copy_of(reader.block(link.at)?);
        let inode = disk::Inode::parse(&bytes, ino, &self.volume.geo)
            .map_err(|e| self.bad_chain(ino, link.at, e.to_string()))?;
        if !is_plain(&inode) {
            let what = "only plain regular files are fsynced without a checkpoint";
            return Err(self.bad_chain(ino, link.at, what));
        }
        // No user could load it afterwards.
        if let Some(why) = why_impossible(&inode, FileKind::Regular, self.volume.features()) {
            return Err(self.bad_chain(ino, link.at, why));
        }
        Ok((bytes, inode))
    }

    pub(super) fn recover_file(
        &self,
        w: &Writer,
        reader: &mut Reader<'_>,
        links: &[Link],
        ino: Ino,
        file: &FileChain,
        is_new: bool,
    ) -> Result<()> {
        let newest = match file.inode {
            Some(n) => {
                let (bytes, inode) = self.chain_inode(reader, &links[n], ino)?;
                self.place_inode(w, ino, links[n].at, &bytes, &inode, is_new)?;
                Some((n, bytes, inode))
            }
            None => None,
        };
        let inode = self.nodes.load_inode_for(ino, Purpose::Orphan)?;
        let own = f2fs(&inode);
        let mut body = own.body.write();
        if body.inode.kind() != Some(FileKind::Regular)
            || body.inode.flags.contains(InodeFlags::COMPRESS)
        {
            let what = "the checkpoint has something else than a plain file there";
            return Err(self.bad_chain(ino, links[file.last].at, what));
        }
        if let Some((n, bytes, _)) = &newest
            && !body.inode.inline.contains(InlineFlags::DATA)
        {
            let start = body.layout.address_bytes().start;
            let slot = Slot {
                nid: ino.nid(),
                start,
                position: 0,
                left: body.layout.addresses_used(1),
            };
            let at = links[*n].at;
            self.recover_addresses(
                w,
                own,
                &mut body,
                (slot, NodeOffset::INODE),
                &bytes[start..],
                at,
            )?;
        }
        let mut size = inode.size();
        let mut nodes: Vec<(NodeOffset, usize)> =
            file.nodes.iter().map(|(o, n)| (*o, *n)).collect();
        nodes.sort_unstable_by_key(|(_, n)| *n);
        for (offset, n) in nodes {
            let link = &links[n];
            if offset == NodeOffset::XATTR || offset.is_indirect() {
                continue;
            }
            let mut newer = true;
            if let Some((at, _, i)) = &newest
                && n < *at
            {
                // The inode is newer, and knows whether the node is still there.
                let root = offset.root();
                let named = i.nids[root];
                let other = offset.0 <= 2 && named != link.footer.nid;
                if i.inline.contains(InlineFlags::DATA) || named.0 == 0 || other {
                    continue;
                }
                newer = false;
            }
            self.leave_inline(own, &mut body)?;
            let bytes = AlignedBuf::copy_of(reader.block(link.at)?);
            let end = self.recover_node(w, own, &mut body, offset, &bytes, link.at)?;
            // An inode that did not change except its size is not in the chain.
            if newer && !body.inode.advise.contains(Advise::KEEP_SIZE) {
                size = if end << 12 > size.next_multiple_of(4096) {
                    end << 12
                } else {
                    size
                };
            }
        }
        let newest = newest.as_ref().map(|(n, _, i)| (*n, i.xattr_nid));
        self.recover_attributes(w, reader, links, own, &mut body, newest, file)?;
        inode.update_attr(|a| a.size = size);
        body.disk_size = size;
        body.end_is_open = !size.is_multiple_of(4096);
        if !body.inode.inline.contains(InlineFlags::DATA)
            && !body.inode.advise.contains(Advise::KEEP_SIZE)
        {
            self.tree
                .free_from(w, own, &mut body, size.div_ceil(4096))?;
        }
        self.tree.store_inode(&inode, &mut body)
    }

    /// Puts the chain's inode in the place of the checkpoint's, which keeps what is not the inode's own: its tree, its
    /// name, its links.
    fn place_inode(
        &self,
        w: &Writer,
        ino: Ino,
        at: BlockAddr,
        bytes: &[u8],
        new: &disk::Inode,
        is_new: bool,
    ) -> Result<()> {
        let mut block = AlignedBuf::copy_of(bytes);
        let layout = new.layout(self.volume.features());
        let words = layout.address_bytes();
        let inline = new.inline.contains(InlineFlags::DATA);
        let mut i = new.clone();
        // The hint may name what is freed.
        i.extent.2 = 0;
        if !i.inline.contains(InlineFlags::PIN_FILE) {
            // How often cleaning a pinned file failed; of others it says nothing.
            i.current_depth = 0;
        }
        if is_new {
            w.segments.charge(1, 0)?;
            let counts = &mut w.segments.lock().counts;
            counts.nodes += 1;
            counts.inodes += 1;
            (i.links, i.blocks, i.xattr_nid) = (1, 1, Nid(0));
            i.nids = Default::default();
            if !inline {
                block[words].fill(0);
            }
        } else {
            let old = self.nodes.load_inode_for(ino, Purpose::Orphan)?;
            let own = f2fs(&old);
            let mut body = own.body.write();
            if body.inode.kind() != Some(FileKind::Regular) {
                return Err(self.bad_chain(ino, at, "the checkpoint has no regular file there"));
            }
            let was_inline = body.inode.inline.contains(InlineFlags::DATA);
            if !was_inline {
                if inline {
                    self.tree.free_from(w, own, &mut body, 0)?;
                } else if body.layout.address_bytes() != words {
                    return Err(self.bad_chain(
                        ino,
                        at,
                        "the inode has another layout than before",
                    ));
                }
                for (n, nid) in new.nids.iter().enumerate() {
                    if body.inode.nids[n] != *nid {
                        self.tree.free_subtree(w, own, &mut body, n)?;
                    }
                }
            }
            if !inline {
                let node = self.nodes.inode_node(ino)?;
                match node.get(words.clone()).filter(|_| !was_inline) {
                    Some(old) => block[words].copy_from_slice(old),
                    None => block[words].fill(0),
                }
            }
            let o = &body.inode;
            (i.links, i.blocks, i.xattr_nid) = (o.links, o.blocks, o.xattr_nid);
            (i.nids, i.pino, i.name) = (o.nids, o.pino, o.name.clone());
        }
        i.encode_into(&mut block)
            .ok_or_else(|| self.bad_chain(ino, at, "the inode cannot be encoded"))?;
        self.nodes.cache.insert_dirty(ino.nid(), block);
        Ok(())
    }

    /// A node with addresses came behind an inode that held data: its data moved to blocks.
    fn leave_inline(&self, own: &F2fsInode, body: &mut Body) -> Result<()> {
        if !body.inode.inline.contains(InlineFlags::DATA) {
            return Ok(());
        }
        body.inode.inline -= InlineFlags::DATA | InlineFlags::DATA_EXIST;
        body.layout = body.inode.layout(self.volume.features());
        let words = body.layout.address_bytes();
        self.nodes
            .change_node(own.ino.nid(), own.ino, NodeOffset::INODE, |b| {
                b[words.clone()].fill(0);
            })
    }

    /// Applies a direct node of the chain. Returns the file block behind its last address in use.
    fn recover_node(
        &self,
        w: &Writer,
        own: &F2fsInode,
        body: &mut Body,
        offset: NodeOffset,
        bytes: &[u8],
        at: BlockAddr,
    ) -> Result<u64> {
        let in_inode = body.layout.addresses_used(1);
        let first = node::first_block_of(offset, in_inode, 1)
            .filter(|first| node::node_path(*first, in_inode, 1).is_some())
            .ok_or_else(|| self.bad_chain(own.ino, at, "no file has a node at its place"))?;
        let last = (0..PER_NODE).rfind(|n| address_in(bytes, 0, *n) != BlockAddr::NULL);
        let slot = match (last, self.nodes.find_address(own.ino, body, first)?) {
            (_, Place::In { nid, count, .. }) => Slot {
                nid,
                start: 0,
                position: 0,
                left: count,
            },
            (None, _) => return Ok(0),
            (Some(_), _) => self.tree.ensure_slot(w, own, body, first)?,
        };
        self.recover_addresses(w, own, body, (slot, offset), bytes, at)?;
        Ok(last.map_or(0, |last| first + last as u64 + 1))
    }

    /// Makes a node's addresses those of the chain; `words` begins with the first.
    fn recover_addresses(
        &self,
        w: &Writer,
        own: &F2fsInode,
        body: &mut Body,
        (slot, offset): (Slot, NodeOffset),
        words: &[u8],
        at: BlockAddr,
    ) -> Result<()> {
        let look = || match offset {
            NodeOffset::INODE => self.nodes.inode_node(own.ino),
            offset => self.nodes.node(slot.nid, own.ino, offset),
        };
        let version = self.nodes.nat.get(slot.nid)?.version;
        let now = w.age();
        let mut node = look()?;
        for position in 0..slot.left {
            let new = address_in(words, 0, position);
            let old = address_in(&node, slot.start, position);
            if new == old {
                continue;
            }
            match new {
                BlockAddr::NULL => self.tree.free_blocks(w, own.ino, body, &[old])?,
                BlockAddr::COMPRESSED => {
                    return Err(self.bad_chain(own.ino, at, "a compressed cluster"));
                }
                _ => {
                    if new.is_stored() {
                        let summary = Summary {
                            nid: slot.nid,
                            version,
                            offset: position as u16,
                        };
                        let mut claim = w.segments.claim(new, log_of(w, body), summary, now)?;
                        if claim == Claim::Taken {
                            self.take_from_owner(w, own, body, new, at)?;
                            node = look()?;
                            claim = w.segments.claim(new, log_of(w, body), summary, now)?;
                        }
                        if claim != Claim::Granted {
                            let what =
                                format!("it names block {}, which cannot be its data", new.0);
                            return Err(self.bad_chain(own.ino, at, what));
                        }
                    }
                    // Once more: it may have been this very address that lost its block.
                    let old = address_in(&node, slot.start, position);
                    if old.is_stored() {
                        w.segments.invalidate(old);
                    } else if old == BlockAddr::NULL {
                        w.segments.charge(1, 0)?;
                        body.inode.blocks += 1;
                    }
                }
            }
            self.nodes
                .set_address(slot.nid, slot.start, position, new)?;
        }
        Ok(())
    }

    /// A block that a newer node of the chain names was another's: that one had given it up.
    fn take_from_owner(
        &self,
        w: &Writer,
        own: &F2fsInode,
        body: &mut Body,
        block: BlockAddr,
        at: BlockAddr,
    ) -> Result<()> {
        let bad = |what: &str| {
            let what = format!("it names block {}, which {what}", block.0);
            Err(self.bad_chain(own.ino, at, what))
        };
        let Some(summary) = w.segments.owner_of(block)? else {
            return bad("belongs to no file");
        };
        let entry = self.nodes.nat.get(summary.nid)?;
        if entry.is_free() {
            return bad("belongs to no file");
        }
        let inode = if entry.ino == own.ino {
            body.inode.clone()
        } else {
            let node = self.nodes.inode_node(entry.ino)?;
            disk::Inode::parse_unverified(&node, entry.ino, &self.volume.geo)
                .map_err(|e| self.volume.refused(OP, entry.ino, &e))?
        };
        let position = usize::from(summary.offset);
        let start = if summary.nid == entry.ino.nid() {
            inode.layout(self.volume.features()).address_bytes().start
        } else {
            0
        };
        let bytes = match self.nodes.cache.find(summary.nid) {
            Some(bytes) => AlignedBuf::copy_of(&bytes),
            None => self.nodes.read_any(summary.nid, &entry)?,
        };
        let fits = Footer::expect(&bytes, summary.nid, Some(entry.ino)).is_ok()
            && start + position * 4 + 4 <= BLOCK_SIZE
            && address_in(&bytes, start, position) == block;
        if inode.kind() != Some(FileKind::Regular) || !fits {
            return bad("is in use otherwise");
        }
        self.nodes
            .set_address(summary.nid, start, position, BlockAddr::NULL)?;
        if entry.ino == own.ino {
            self.tree.free_blocks(w, own.ino, body, &[block])
        } else {
            let mut theirs = Body::new(&self.volume, inode);
            self.tree.free_blocks(w, entry.ino, &mut theirs, &[block])?;
            let i = &theirs.inode;
            self.nodes
                .change_node(entry.ino.nid(), entry.ino, NodeOffset::INODE, |b| {
                    i.encode_into(b)
                })?
                .ok_or_else(|| {
                    self.volume
                        .corrupt(OP, Some(entry.ino), None, "the inode cannot be encoded")
                })
        }
    }

    /// The node of attributes: `newest` is where the newest inode is in the chain, and which node it names.
    #[allow(clippy::too_many_arguments)]
    fn recover_attributes(
        &self,
        w: &Writer,
        reader: &mut Reader<'_>,
        links: &[Link],
        own: &F2fsInode,
        body: &mut Body,
        newest: Option<(usize, Nid)>,
        file: &FileChain,
    ) -> Result<()> {
        let written = file.nodes.get(&NodeOffset::XATTR).copied();
        let here = body.inode.xattr_nid;
        match (newest, written) {
            (Some((at, Nid(0))), n) if n.is_none_or(|n| n < at) => {
                if let Some(nid) = here.non_zero() {
                    self.tree.free_node(w, body, nid)?;
                    body.inode.xattr_nid = Nid(0);
                }
                Ok(())
            }
            (_, Some(n)) => {
                let nid = match here.non_zero() {
                    Some(nid) => nid,
                    None => self.tree.make_node(w, own, body, NodeOffset::XATTR)?,
                };
                body.inode.xattr_nid = nid;
                let bytes = AlignedBuf::copy_of(reader.block(links[n].at)?);
                self.nodes
                    .change_node(nid, own.ino, NodeOffset::XATTR, |b| {
                        b[..NODE_BYTES].copy_from_slice(&bytes[..NODE_BYTES]);
                    })
            }
            (Some((at, named)), None) if named != here => {
                let what = "its node of attributes is not in the chain";
                Err(self.bad_chain(own.ino, links[at].at, what))
            }
            _ => Ok(()),
        }
    }
}
