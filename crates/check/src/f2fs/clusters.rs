//! Compressed clusters: their addresses, and whether their contents can be unpacked.
//!
//! Addresses are part of the structure: wrong ones are damage, and are repaired. Contents are the file's own: no other
//! place on the volume has them, so nothing can repair them, and they stay as they are. They are told of as a note, because
//! a reader gets an error. (fsck.f2fs does not look at contents.)
//!
//! # Cost
//! Contents are read and unpacked once, after the last round, and only [`CONTENTS_MAX`] bytes of them. The report says when
//! there were more.

use std::collections::BTreeMap;

use blockwright_ondisk::f2fs::compress::{self, Algorithm};
use blockwright_ondisk::f2fs::{
    BLOCK_SIZE, BlockAddr, FileKind, FormatError, Ino, InodeFlags, Nid, node,
};

use super::CheckError;
use super::context::Checker;
use super::issue::IssueKind;
use super::nodes::Walk;
use super::state::{Cluster, Clusters};

/// Compressed bytes that are read to look at contents.
const CONTENTS_MAX: u64 = 256 << 20;

impl Clusters {
    fn add(&mut self, cluster: Cluster) {
        let bytes = (cluster.blocks.len() * BLOCK_SIZE) as u64;
        if self.bytes + bytes > CONTENTS_MAX {
            self.skipped += 1;
            return;
        }
        self.bytes += bytes;
        self.list.push(cluster);
    }
}

impl Checker {
    /// Looks at the compressed clusters among the addresses of a node: one that is not laid out as such cannot be read,
    /// and neither can any of a file whose algorithm is none.
    pub(super) fn check_clusters(
        &mut self,
        w: &mut Walk,
        nid: Nid,
        addresses: &[BlockAddr],
    ) -> Result<(), CheckError> {
        let compressed =
            w.kind == FileKind::Regular && w.inode.flags.contains(InodeFlags::COMPRESS);
        if !compressed || w.cluster <= 1 {
            return Ok(());
        }
        let ino = w.ino;
        let code = w.inode.extra.map_or(u8::MAX, |e| e.compress_algorithm);
        let flag = w.inode.extra.map_or(0, |e| e.compress_flag);
        let algorithm = Algorithm::from_code(code);
        for (n, cluster) in addresses.chunks(w.cluster).enumerate() {
            if cluster[0] != BlockAddr::COMPRESSED {
                continue;
            }
            if let Err(error) = &algorithm {
                self.problem(IssueKind::CompressAlgorithm {
                    ino,
                    error: error.clone().into(),
                });
            }
            let first = n * w.cluster;
            let error = match compress::cluster_blocks(cluster) {
                Ok(blocks) => {
                    let blocks = blocks.unwrap_or_default();
                    // The mark and what is reserved behind the data.
                    let saved =
                        |a: &&BlockAddr| matches!(**a, BlockAddr::COMPRESSED | BlockAddr::NEW);
                    w.saved += cluster.iter().filter(saved).count() as u64;
                    // Wrong addresses are told of where each address is looked at.
                    let sound = blocks.iter().enumerate().all(|(n, block)| {
                        node::check_address(*block, nid, first + 1 + n, &self.geo).is_ok()
                    });
                    if let Ok(algorithm) = algorithm
                        && sound
                    {
                        self.scan.clusters.add(Cluster {
                            ino,
                            blocks: blocks.to_vec(),
                            algorithm,
                            summed: flag & compress::FLAG_CHECKSUM != 0,
                            len: cluster.len(),
                        });
                    }
                    continue;
                }
                Err(error) => error,
            };
            if self.problem(IssueKind::CompressCluster {
                ino,
                nid,
                position: first as u16,
                error: error.into(),
            }) {
                for position in first..first + cluster.len() {
                    self.clear_address(ino, nid, position)?;
                }
            }
        }
        Ok(())
    }

    /// Looks at the contents of the clusters that the last round found.
    pub(super) fn check_cluster_contents(&mut self) -> Result<(), CheckError> {
        let clusters = std::mem::take(&mut self.scan.clusters);
        let mut bad: BTreeMap<Ino, (u64, FormatError)> = BTreeMap::new();
        for cluster in &clusters.list {
            if let Err(error) = self.unpack(cluster)? {
                bad.entry(cluster.ino).or_insert((0, error)).0 += 1;
            }
        }
        for (ino, (count, error)) in bad {
            self.problem(IssueKind::CompressContents {
                ino,
                count,
                error: error.into(),
            });
        }
        if clusters.skipped > 0 {
            self.problem(IssueKind::CompressUnseen {
                count: clusters.skipped,
            });
        }
        Ok(())
    }

    /// Whether a cluster's contents can be unpacked.
    fn unpack(&self, cluster: &Cluster) -> Result<Result<(), FormatError>, CheckError> {
        let mut packed = Vec::with_capacity(cluster.blocks.len() * BLOCK_SIZE);
        for run in cluster.blocks.chunk_by(|a, b| b.0 == a.0.wrapping_add(1)) {
            let count = run.len() as u32;
            packed.extend(self.store.read_run(run[0], count, "compressed data")?);
        }
        let bytes = cluster.len * BLOCK_SIZE;
        Ok(compress::payload(&packed, cluster.summed)
            .and_then(|payload| compress::decompress(cluster.algorithm, payload, bytes))
            .map(drop))
    }
}
