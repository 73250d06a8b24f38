//! The engine's answer to the vfs: what is at a place of a file.
//!
//! It holds the inode's `body`, shared, and changes nothing. Compressed clusters are one stretch each, which the vfs reads decoded. Blocks that fallocate keeps
//! behind the end are shown as a hole.

use crate::Result;
use crate::data::Data;
use crate::node::blocks::{BlockState, ENDLESS};
use crate::node::inode::f2fs;
use blockwright_device::DevOffset;
use blockwright_ondisk::f2fs::inode::InlineFlags;
use blockwright_vfs::Inode;
use blockwright_vfs::engine::{Mapping, Place};

impl Data {
    /// [`blockwright_vfs::engine::Data::map`].
    ///
    /// # Errors
    /// As there.
    pub(crate) fn map(&self, inode: &Inode, offset: u64, bytes: u64) -> Result<Mapping> {
        let own = f2fs(inode);
        let body = own.body.read();
        let generation = body.generation;
        if body.inode.inline.contains(InlineFlags::DATA) {
            return Ok(Mapping::of_inline(offset, 4096, generation));
        }
        let at = offset >> 12;
        let end = inode.size().div_ceil(4096);
        let to_end = (u64::MAX >> 12 << 12) - (at << 12);
        let endless = Mapping {
            offset: at << 12,
            bytes: to_end,
            place: Place::Hole,
            generation,
        };
        let max = (bytes >> 12).saturating_add(2).min(end.saturating_sub(at));
        if at >= end {
            // Blocks that fallocate keeps behind the end are not readable.
            return Ok(endless);
        }
        let cluster = body.cluster as u64;
        let start = at / cluster * cluster;
        if self.cluster_data(own.ino, &body, start)?.is_some() {
            return Ok(Mapping {
                offset: start << 12,
                bytes: cluster << 12,
                place: Place::Encoded,
                generation,
            });
        }
        let (state, len) = self.nodes.find_blocks(own.ino, &body, at, max)?;
        if len >= ENDLESS >> 1 {
            return Ok(endless);
        }
        let place = match state {
            BlockState::Hole => Place::Hole,
            BlockState::Reserved => Place::Reserved,
            BlockState::Stored(b) => Place::Mapped(DevOffset(u64::from(b.0) << 12)),
        };
        Ok(Mapping {
            offset: at << 12,
            bytes: (len << 12).min(to_end),
            place,
            generation,
        })
    }
}
