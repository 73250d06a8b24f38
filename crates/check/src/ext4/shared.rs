//! Blocks used more than once: finding their users, and giving each user its own copy.
//!
//! The scan of inodes only notes *that* a block was met twice. When there is one, a second walk over all inodes finds its
//! owners.
//!
//! With the feature `shared_blocks`, which the images of Android have, files with the same contents share their blocks on
//! purpose. The volume is never written by a mount, so that nothing can go wrong with them. They stay shared, also with `-y`:
//! there need not be room for copies, and e2fsck separates them only when it is told to. As there, any two inodes may share
//! any block, whatever it holds. One that shares a block with the volume's metadata is damage nevertheless.

use std::collections::{BTreeMap, BTreeSet};

use blockwright_ondisk::ext4::{BlockNo, Ino, RoCompat};

use super::CheckError;
use super::context::Checker;
use super::issue::{IssueKind, Owner};
use super::mapping::{MapSink, Piece, Walk};

/// Runs of shared blocks that are examined one by one; a hostile image could have billions.
const RUNS_MAX: usize = 100_000;

/// Notes what of a mapping lies in the shared blocks.
struct Finder<'a> {
    twice: &'a super::blockmap::BlockMap,
    runs: Vec<(BlockNo, u64)>,
    tree: BTreeSet<BlockNo>,
    last_cluster: Option<u64>,
    bits: u32,
}

impl MapSink for Finder<'_> {
    fn tree(&mut self, block: BlockNo) -> bool {
        if self.twice.contains(block) && self.runs.len() < RUNS_MAX {
            self.runs.push((block, 1));
        }
        self.tree.insert(block)
    }

    fn piece(&mut self, piece: Piece) {
        let mut found = self.twice.runs_within(piece.physical, u64::from(piece.len));
        // The tail of the last piece's cluster is not shared: it is the same file's.
        if self.bits > 0 && self.last_cluster == Some(piece.physical.0 >> self.bits) {
            found.retain(|(b, n)| (b.0 + n - 1) >> self.bits != piece.physical.0 >> self.bits);
        }
        self.last_cluster = Some((piece.physical.0 + u64::from(piece.len) - 1) >> self.bits);
        let room = RUNS_MAX.saturating_sub(self.runs.len());
        self.runs.extend(found.into_iter().take(room));
    }

    fn problem(&mut self, _: IssueKind) {}
}

impl Checker {
    /// Finds the owners of blocks used more than once.
    pub fn check_shared_blocks(&mut self) -> Result<(), CheckError> {
        if self.scan.twice.is_empty() {
            return Ok(());
        }
        let geo = self.geo.clone();
        if geo.features.has_ro_compat(RoCompat::SHARED_BLOCKS) {
            let blocks = self.scan.twice.blocks();
            self.problem(IssueKind::BlocksSharedByFeature { blocks });
            if !self.scan.twice.meets(&self.scan.metadata) {
                return Ok(());
            }
        }
        let mut first_owner: BTreeMap<u64, Owner> = BTreeMap::new();
        let mut order: Vec<Ino> = (1..geo.first_ino.0)
            .map(Ino)
            .filter(|i| *i != Ino::ROOT && *i != Ino::RESIZE)
            .collect();
        order.extend(self.scan.inodes.iter().map(|s| s.ino));
        let mut seen_ea: BTreeSet<u64> = BTreeSet::new();
        for ino in order {
            let Some(inode) = self.read_inode(ino)? else {
                continue;
            };
            let mut finder = Finder {
                twice: &self.scan.twice,
                runs: Vec::new(),
                tree: BTreeSet::new(),
                last_cluster: None,
                bits: geo.cluster_bits,
            };
            if inode.maps_blocks(&geo) || (ino == Ino::BAD && inode.kind().is_none()) {
                let walk = Walk {
                    store: &self.store,
                    geo: &geo,
                    ino,
                    inode: &inode,
                };
                walk.run(&mut finder)?;
            }
            let ea = inode.file_acl;
            if ea.0 != 0 && self.scan.twice.contains(ea) && seen_ea.insert(ea.0) {
                finder.runs.push((ea, 1));
            }
            let runs = finder.runs;
            self.compare_owners(ino, &runs, &mut first_owner)?;
        }
        Ok(())
    }

    fn compare_owners(
        &mut self,
        ino: Ino,
        runs: &[(BlockNo, u64)],
        first_owner: &mut BTreeMap<u64, Owner>,
    ) -> Result<(), CheckError> {
        let me = Owner::Inode(ino);
        let allowed = self.geo.features.has_ro_compat(RoCompat::SHARED_BLOCKS);
        let mut shared: Option<(BlockNo, u64, Owner)> = None;
        let mut all: Vec<(BlockNo, u64, Owner)> = Vec::new();
        for (first, len) in runs {
            for block in (first.0..first.0 + len).map(BlockNo) {
                let owner = if self.scan.metadata.contains(block) {
                    Owner::Metadata
                } else if allowed {
                    continue;
                } else if let Some(owner) = first_owner.get(&block.0) {
                    *owner
                } else {
                    if first_owner.len() < RUNS_MAX * 10 {
                        first_owner.insert(block.0, me);
                    }
                    continue;
                };
                match &mut shared {
                    Some((start, n, o)) if start.0 + *n == block.0 && *o == owner => *n += 1,
                    other => {
                        if let Some(done) = other.replace((block, 1, owner)) {
                            all.push(done);
                        }
                    }
                }
            }
        }
        all.extend(shared);
        for (first, count, other) in all {
            if self.problem(IssueKind::BlocksShared {
                first,
                count,
                owner: me,
                other,
            }) {
                self.scan
                    .unshare
                    .entry(ino.0)
                    .or_default()
                    .push((first, count));
                self.scan.remap.insert(ino.0);
            }
        }
        Ok(())
    }
}
