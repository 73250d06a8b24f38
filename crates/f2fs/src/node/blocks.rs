//! Mappings of files: the state of a file block, and how many blocks share it.
//!
//! A block that is reserved but was never written (`fallocate`) reads as zeroes; it has no place on the
//! device until it is. A compressed cluster's data is not where its addresses say: it is
//! `Encoded`, and `compressed` reads it.

use crate::Result;
use crate::node::Nodes;
use crate::node::Place as NodePlace;
use crate::node::inode::{Body, f2fs};
use blockwright_ondisk::f2fs::inode::InlineFlags;
use blockwright_ondisk::f2fs::{BlockAddr, Ino, Nid, node};
use blockwright_vfs::Inode;

const OP: &str = "map block";
/// A hole of "to the end of what can be addressed".
pub(crate) const ENDLESS: u64 = u64::MAX >> 17;

/// What is at a file block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// Nothing.
    Hole,
    /// Reserved, never written.
    Reserved,
    /// Data from this block on.
    Stored(BlockAddr),
}

impl Nodes {
    fn state(&self, ino: Ino, nid: Nid, position: usize, word: &[u8]) -> Result<BlockState> {
        let mut le = [0; 4];
        le.copy_from_slice(word);
        let block = BlockAddr(u32::from_le_bytes(le));
        match block {
            BlockAddr::NULL => Ok(BlockState::Hole),
            BlockAddr::NEW => Ok(BlockState::Reserved),
            BlockAddr::COMPRESSED => {
                let detail = format!(
                    "node {nid}, address {position} is marked as compressed, which cannot be"
                );
                Err(self.volume.corrupt(OP, Some(ino), None, detail))
            }
            _ => {
                node::check_address(block, nid, position, &self.volume.geo).map_err(|e| {
                    self.volume
                        .corrupt(OP, Some(ino), Some(block), e.to_string())
                })?;
                Ok(BlockState::Stored(block))
            }
        }
    }

    /// The state of file block `at`, and for how many blocks it holds: consecutive ones are joined, up to `max`; holes
    /// that whole nodes stand for may go on beyond.
    ///
    /// # Errors
    /// A compressed cluster, which is no single block; damage, or a device error.
    pub(crate) fn find_blocks(
        &self,
        ino: Ino,
        body: &Body,
        at: u64,
        max: u64,
    ) -> Result<(BlockState, u64)> {
        let mut first = None;
        let mut len = 0u64;
        // Whether `state` continues where `first` is after `len` blocks.
        let continues = |first: BlockState, len: u64, state: BlockState| match (first, state) {
            (BlockState::Stored(a), BlockState::Stored(b)) => {
                u64::from(b.0) == u64::from(a.0) + len
            }
            (a, b) => a == b,
        };
        while len < max.max(1) {
            match self.find_address_of(ino, body, at + len, max - len)? {
                NodePlace::Beyond => match first {
                    None | Some(BlockState::Hole) => return Ok((BlockState::Hole, ENDLESS)),
                    Some(state) => return Ok((state, len)),
                },
                NodePlace::Missing { end } => {
                    if !continues(
                        *first.get_or_insert(BlockState::Hole),
                        len,
                        BlockState::Hole,
                    ) {
                        break;
                    }
                    len = end - at;
                }
                NodePlace::In {
                    nid,
                    bytes,
                    start,
                    position,
                    count,
                } => {
                    let words = bytes
                        .get(start + position * 4..start + count * 4)
                        .unwrap_or(&[]);
                    if words.is_empty() {
                        return Err(self.volume.corrupt(
                            OP,
                            Some(ino),
                            None,
                            "a node without addresses",
                        ));
                    }
                    for (n, word) in words.chunks_exact(4).enumerate() {
                        let state = match self.state(ino, nid, position + n, word) {
                            Ok(state) => state,
                            // Everything before it is valid.
                            Err(_) if first.is_some() && len > 0 => {
                                return Ok((first.unwrap_or(BlockState::Hole), len));
                            }
                            Err(e) => return Err(e),
                        };
                        if !continues(*first.get_or_insert(state), len, state) {
                            return Ok((first.unwrap_or(state), len));
                        }
                        len += 1;
                        // The caller asked for no more: a look at one block of a directory must not cost its neighbours'.
                        if len >= max.max(1) {
                            return Ok((first.unwrap_or(state), len));
                        }
                    }
                }
            }
        }
        Ok((first.unwrap_or(BlockState::Hole), len.max(1)))
    }

    /// The bytes of an inline file, at most its size.
    ///
    /// # Errors
    /// Damage; a device error.
    pub(crate) fn read_inline(&self, inode: &Inode) -> Result<Vec<u8>> {
        let own = f2fs(inode);
        let body = own.body.read();
        if !body.inode.inline.contains(InlineFlags::DATA) {
            return Ok(Vec::new());
        }
        let node = self.inode_node(own.ino)?;
        let bytes = node.get(body.layout.inline_bytes()).unwrap_or(&[]);
        let size = usize::try_from(inode.size()).unwrap_or(usize::MAX);
        Ok(bytes[..bytes.len().min(size)].to_vec())
    }
}
