//! Compressed clusters: their addresses, and whether their contents can be unpacked.
//!
//! Addresses are part of the structure: wrong ones are damage, and are repaired. Contents are the file's own: no other
//! place on the volume has them, so nothing can repair them, and they stay as they are. They are reported as a note,
//! because a reader gets an error. (fsck.f2fs does not look at contents.)
//!
//! A wrong address is no reason to drop the others of its cluster: without it the cluster is often whole, since behind the
//! data are only places that are reserved. A cluster goes only when its data cannot be unpacked without the wrong one.
//! Nothing is removed either when the inode's cluster size is invalid: the starts of clusters are unknown then.
//!
//! # Cost
//! Contents are read and unpacked once, after the last round, and only [`CONTENTS_MAX`] bytes of them. The report says how many
//! clusters were not looked at, also because this build has no code for their algorithm.

use std::collections::BTreeMap;

use blockwright_ondisk::f2fs::compress::{self, CLUSTER_LOGS};
use blockwright_ondisk::f2fs::{
    BLOCK_SIZE, BlockAddr, Features, FileKind, FormatError, InlineFlags, Ino, InodeFlags, Nid, node,
};

use super::CheckError;
use super::context::Checker;
use super::issue::IssueKind;
use super::nodes::Walk;
use super::state::{Cluster, Clusters};

/// Compressed bytes that are read to look at contents.
const CONTENTS_MAX: u64 = 256 << 20;

/// What came of unpacking a cluster.
enum Unpacked {
    Whole,
    Broken(FormatError),
    /// This build has no code for the algorithm.
    Unseen,
}

impl From<Result<Vec<u8>, FormatError>> for Unpacked {
    fn from(unpacked: Result<Vec<u8>, FormatError>) -> Self {
        match unpacked {
            Ok(_) => Unpacked::Whole,
            Err(FormatError::CompressNotBuilt { .. }) => Unpacked::Unseen,
            Err(error) => Unpacked::Broken(error),
        }
    }
}

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

/// Blocks that a cluster counts although it stores less: its mark, and what is reserved behind the data; none once these were
/// given back.
fn saved_by(addresses: &[BlockAddr], released: bool) -> u64 {
    let counts = |a: &&BlockAddr| matches!(**a, BlockAddr::COMPRESSED | BlockAddr::NEW);
    match released {
        true => 0,
        false => addresses.iter().filter(counts).count() as u64,
    }
}

impl Checker {
    /// Looks at the compressed clusters among the addresses of a node: one that is not laid out as such cannot be read,
    /// and neither can any of a file whose algorithm or size of a cluster is none.
    pub(super) fn check_clusters(
        &mut self,
        w: &mut Walk,
        nid: Nid,
        addresses: &[BlockAddr],
    ) -> Result<(), CheckError> {
        let compressed =
            w.kind == FileKind::Regular && w.inode.flags.contains(InodeFlags::COMPRESS);
        let ino = w.ino;
        if let Some(found) = w.cluster_log_unknown {
            let marks = addresses.iter().filter(|a| **a == BlockAddr::COMPRESSED);
            let marks = marks.count();
            w.marks += marks as u64;
            if marks > 0 {
                self.problem(IssueKind::CompressClusterSize { ino, found });
            }
            return Ok(());
        }
        if !compressed || w.cluster <= 1 {
            return Ok(());
        }
        let released = w.inode.inline.contains(InlineFlags::COMPRESS_RELEASED);
        let code = w.inode.extra.map_or(u8::MAX, |e| e.compress_algorithm);
        let flag = w.inode.extra.map_or(0, |e| e.compress_flag);
        let algorithm = compress::algorithm(code);
        for (n, cluster) in addresses.chunks(w.cluster).enumerate() {
            if cluster[0] != BlockAddr::COMPRESSED {
                continue;
            }
            w.marks += 1;
            if let Err(error) = &algorithm {
                self.problem(IssueKind::CompressAlgorithm {
                    ino,
                    error: error.clone().into(),
                });
            }
            let first = n * w.cluster;
            // The check of each address reports wrong ones and clears them.
            let mut kept = cluster.to_vec();
            for (n, address) in kept.iter_mut().enumerate().skip(1) {
                let wrong = *address == BlockAddr::COMPRESSED
                    || address.is_stored()
                        && node::check_address(*address, nid, first + n, &self.geo).is_err();
                if wrong {
                    *address = BlockAddr::NULL;
                }
            }
            let of = |blocks: &[BlockAddr], algorithm| Cluster {
                ino,
                blocks: blocks.to_vec(),
                algorithm,
                summed: flag & compress::FLAG_CHECKSUM != 0,
                len: cluster.len(),
            };
            match compress::cluster_blocks(&kept) {
                Ok(blocks) => {
                    if let Ok(algorithm) = algorithm {
                        let cluster = of(blocks.unwrap_or_default(), algorithm);
                        self.scan.clusters.add(cluster);
                    }
                    w.saved += saved_by(&kept, released);
                }
                Err(error) => {
                    let behind = 1 + kept[1..].iter().take_while(|a| a.is_stored()).count();
                    let whole = match algorithm {
                        Ok(algorithm) if behind > 1 => {
                            let cluster = of(&kept[1..behind], algorithm);
                            // Data that this build cannot unpack may be good, and stays.
                            !matches!(self.unpack(&cluster)?, Unpacked::Broken(_))
                        }
                        _ => false,
                    };
                    let mut dropped = Vec::new();
                    for (n, address) in kept.iter_mut().enumerate() {
                        if !whole || (n >= behind && address.is_stored()) {
                            *address = BlockAddr::NULL;
                            dropped.push(first + n);
                        }
                    }
                    w.saved += saved_by(&kept, released);
                    if self.problem(IssueKind::CompressCluster {
                        ino,
                        nid,
                        position: first as u16,
                        error: error.into(),
                    }) {
                        for position in dropped {
                            self.clear_address(ino, nid, position)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Checks the compression fields of an inode without compressed clusters: the kernel refuses an inode with wrong fields
    /// even then. Nothing depends on it, so the flag goes.
    pub(super) fn check_compression(&mut self, w: &Walk) -> Result<(), CheckError> {
        let possible = self.geo.features.contains(Features::COMPRESSION)
            && w.inode.flags.contains(InodeFlags::COMPRESS)
            && w.marks == 0;
        let Some(extra) = w.inode.extra.filter(|_| possible) else {
            return Ok(());
        };
        let (ino, log) = (w.ino, extra.log_cluster_size);
        let algorithm = extra.compress_algorithm;
        let known = compress::algorithm(algorithm).is_ok() && CLUSTER_LOGS.contains(&log);
        if !known
            && self.problem(IssueKind::CompressUnknown {
                ino,
                algorithm,
                log,
            })
        {
            let flag = InodeFlags::COMPRESS.bits();
            self.edit_inode(ino, |head| head.flags.set(head.flags.get() & !flag))?;
        }
        Ok(())
    }

    /// Looks at the contents of the clusters that the last round found.
    pub(super) fn check_cluster_contents(&mut self) -> Result<(), CheckError> {
        let mut clusters = std::mem::take(&mut self.scan.clusters);
        let mut bad: BTreeMap<Ino, (u64, FormatError)> = BTreeMap::new();
        for cluster in &clusters.list {
            match self.unpack(cluster)? {
                Unpacked::Whole => {}
                Unpacked::Broken(error) => bad.entry(cluster.ino).or_insert((0, error)).0 += 1,
                Unpacked::Unseen => clusters.skipped += 1,
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
    fn unpack(&self, cluster: &Cluster) -> Result<Unpacked, CheckError> {
        let mut packed = Vec::with_capacity(cluster.blocks.len() * BLOCK_SIZE);
        for run in cluster.blocks.chunk_by(|a, b| b.0 == a.0.wrapping_add(1)) {
            let count = run.len() as u32;
            packed.extend(self.store.read_run(run[0], count, "compressed data")?);
        }
        let bytes = cluster.len * BLOCK_SIZE;
        let unpacked = compress::payload(&packed, cluster.summed)
            .and_then(|payload| compress::decompress(cluster.algorithm, payload, bytes));
        Ok(unpacked.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockwright_ondisk::f2fs::compress::Algorithm;

    #[test]
    fn what_this_build_cannot_unpack_is_neither_whole_nor_broken() {
        let algorithm = Algorithm::Zstd;
        let unseen = Unpacked::from(Err(FormatError::CompressNotBuilt { algorithm }));
        assert!(matches!(unseen, Unpacked::Unseen));
        assert!(matches!(Unpacked::from(Ok(vec![1])), Unpacked::Whole));
        let reason = "cut".to_owned();
        let broken = FormatError::CompressData { algorithm, reason };
        assert!(matches!(Unpacked::from(Err(broken)), Unpacked::Broken(_)));
    }
}
