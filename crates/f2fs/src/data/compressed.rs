//! Reading compressed files: clusters of blocks of which fewer hold the data, packed.
//!
//! A cluster is compressed when the first of its addresses is a mark. The next ones name the blocks of the
//! packed data, which begins with a small head; the others are reserved or given back. Addresses of one
//! cluster are always in one node.
//!
//! Memory is bounded by the cluster, of 1 MiB at most, whatever its head and its data say.
//!
//! # Locks
//! The inode's `body`, shared. The vfs keeps blocks from being taken away meanwhile.

use crate::data::Data;
use crate::node::Place;
use crate::node::change::address_in;
use crate::node::inode::{Body, f2fs};
use crate::{Error, ErrorKind, Result};
use blockwright_device::{AlignedBuf, DevOffset, DeviceExt};
use blockwright_ondisk::f2fs::compress;
use blockwright_ondisk::f2fs::{BLOCK_SIZE, BlockAddr, FormatError, Ino, node};
use blockwright_vfs::Inode;

const OP: &str = "read compressed data";

impl Data {
    /// The blocks of a compressed cluster's data; `None` when the cluster at `start` is not compressed.
    ///
    /// # Errors
    /// Damage; a device error.
    pub(crate) fn cluster_data(
        &self,
        ino: Ino,
        body: &Body,
        start: u64,
    ) -> Result<Option<Vec<BlockAddr>>> {
        if body.cluster <= 1 {
            return Ok(None);
        }
        let Place::In {
            nid,
            bytes,
            start: first,
            position,
            count,
        } = self.nodes.find_address(ino, body, start)?
        else {
            return Ok(None);
        };
        let end = (position + body.cluster).min(count);
        let addresses: Vec<BlockAddr> = (position..end)
            .map(|n| address_in(&bytes, first, n))
            .collect();
        let found =
            compress::cluster_blocks(&addresses).map_err(|e| self.volume.refused(OP, ino, &e))?;
        let Some(blocks) = found else {
            return Ok(None);
        };
        for (n, block) in blocks.iter().enumerate() {
            node::check_address(*block, nid, position + 1 + n, &self.volume.geo).map_err(|e| {
                self.volume
                    .corrupt(OP, Some(ino), Some(*block), e.to_string())
            })?;
        }
        Ok(Some(blocks.to_vec()))
    }

    /// [`blockwright_vfs::engine::Data::read_encoded`].
    pub(crate) fn read_encoded(&self, inode: &Inode, offset: u64) -> Result<AlignedBuf> {
        let own = f2fs(inode);
        let body = own.body.read();
        let refused = |e| self.volume.refused(OP, own.ino, &e);
        let Some(blocks) = self.cluster_data(own.ino, &body, offset >> 12)? else {
            return Err(self.volume.corrupt(
                OP,
                Some(own.ino),
                None,
                "the cluster is not compressed",
            ));
        };
        let extra = body.inode.extra.ok_or_else(|| {
            let what = "a compressed file without extra attributes";
            self.volume.corrupt(OP, Some(own.ino), None, what)
        })?;
        let algorithm = compress::algorithm(extra.compress_algorithm).map_err(refused)?;
        let mut packed = Vec::with_capacity(blocks.len() * BLOCK_SIZE);
        for run in blocks.chunk_by(|a, b| b.0 == a.0.wrapping_add(1)) {
            let at = DevOffset(u64::from(run[0].0) << 12);
            let bytes = self
                .volume
                .device
                .read_buf(at, run.len() * BLOCK_SIZE)
                .map_err(|e| Error::io(OP, e).ino(inode.ino()))?;
            packed.extend_from_slice(&bytes);
        }
        let verify = extra.compress_flag & compress::FLAG_CHECKSUM != 0;
        let payload = compress::payload(&packed, verify).map_err(refused)?;
        let bytes = body.cluster * BLOCK_SIZE;
        let plain = compress::decompress(algorithm, payload, bytes).map_err(|e| match e {
            FormatError::CompressNotBuilt { .. } => Error::new(ErrorKind::UnsupportedFeature, OP)
                .ino(inode.ino())
                .detail(e.to_string()),
            e => refused(e),
        })?;
        Ok(AlignedBuf::copy_of(&plain))
    }
}
