//! What all parts of a check share: the volume, the log of issues, and the state of a round.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use blockwright_ondisk::f2fs::inode::{self, RawInodeHead};
use blockwright_ondisk::f2fs::pack::Pack;
use blockwright_ondisk::f2fs::sit::ValidMap;
use blockwright_ondisk::f2fs::{
    BlockAddr, Geometry, Ino, Log as F2Log, NatEntry, Nid, RawSuperblock, SegNo, SitEntry,
};
use zerocopy::FromBytes;

use super::issue::IssueKind;
use super::state::Scan;
use super::store::Store;
use super::{CheckError, Report};
use crate::{Mode, Phase, Progress, ProgressFn, Stats};

pub(super) type Log = crate::log::Log<IssueKind>;

/// The tables of a volume, as repaired so far.
#[derive(Default)]
pub(super) struct Tables {
    /// Nodes that exist, by number; the first three numbers are left out.
    pub nat: BTreeMap<u32, NatEntry>,
    /// Segments with something to say: blocks in use, or a type.
    pub sit: BTreeMap<u32, SitEntry>,
    /// Blocks that the checkpoint on the device names, by segment: in the SIT, which damage may have zeroed, in the NAT, or in a node that
    /// was met. None is overwritten before the repair is written.
    pub held: BTreeMap<u32, ValidMap>,
    /// When the youngest segment was written.
    pub newest: u64,
    /// Inodes on the orphan list.
    pub orphans: BTreeSet<u32>,
}

impl Tables {
    /// Remembers a block that the checkpoint on the device names.
    pub fn hold(&mut self, segment: SegNo, at: u16) {
        self.held.entry(segment.0).or_default().set(at, true);
    }

    /// Whether the checkpoint on the device names a block.
    pub fn is_held(&self, segment: SegNo, at: u16) -> bool {
        let map = self.held.get(&segment.0);
        map.is_some_and(|map| map.get(at))
    }
}

/// A check under way.
pub(super) struct Checker {
    pub store: Store,
    pub geo: Arc<Geometry>,
    /// The superblock that counts.
    pub sb: RawSuperblock,
    /// Copies of the superblock to be written anew.
    pub sb_stale: [bool; 2],
    /// The checkpoint that counts, as repaired so far.
    pub pack: Pack,
    pub tables: Tables,
    pub summaries: super::state::LogSummaries,
    pub log: Log,
    pub scan: Scan,
    pub progress: Option<ProgressFn>,
    /// Changes to anything but the store's blocks.
    pub changes: u64,
    changes_before: u64,
    pending_before: usize,
    pub wrote: u64,
    /// The counts of the quota files are known to be right.
    pub quota_settled: bool,
    /// A quota file could not be repaired: a flag makes the next mount do it.
    pub quota_marked: bool,
    /// Where files that grow go on.
    pub new_blocks: super::state::NewBlocks,
}

/// Everything that opening a volume found.
pub(super) struct Opened {
    pub store: Store,
    pub geo: Arc<Geometry>,
    pub sb: RawSuperblock,
    pub sb_stale: [bool; 2],
    pub pack: Pack,
    pub log: Log,
}

impl Checker {
    pub fn new(opened: Opened, progress: Option<ProgressFn>) -> Self {
        Self {
            store: opened.store,
            scan: Scan::default(),
            geo: opened.geo,
            sb: opened.sb,
            sb_stale: opened.sb_stale,
            pack: opened.pack,
            tables: Tables::default(),
            summaries: super::state::LogSummaries::default(),
            log: opened.log,
            progress,
            changes: 0,
            changes_before: 0,
            pending_before: 0,
            wrote: 0,
            quota_settled: false,
            quota_marked: false,
            new_blocks: super::state::NewBlocks::default(),
        }
    }

    pub fn mode(&self) -> Mode {
        self.log.mode
    }

    /// Whether this check repairs anything.
    pub fn repairing(&self) -> bool {
        self.log.mode != Mode::ReadOnly
    }

    /// Records an issue. Whether the caller is to repair it.
    pub fn problem(&mut self, kind: IssueKind) -> bool {
        self.log.problem(kind)
    }

    pub fn begin_round(&mut self, round: usize) {
        self.log.begin_round(round);
        self.scan = Scan::default();
        self.new_blocks.begin_round();
        self.changes_before = self.changes;
        self.pending_before = self.store.pending();
    }

    pub fn changed_in_round(&self) -> bool {
        self.changes != self.changes_before || self.store.pending() != self.pending_before
    }

    /// Tells how far the check is. It no longer stops once a repair has written something.
    ///
    /// # Errors
    /// [`CheckError::Interrupted`] when it is to stop here.
    pub fn report_progress(&self, phase: Phase, done: u64, total: u64) -> Result<(), CheckError> {
        match &self.progress {
            Some(progress)
                if progress(Progress { phase, done, total }).is_break() && self.wrote == 0 =>
            {
                Err(CheckError::Interrupted)
            }
            _ => Ok(()),
        }
    }

    /// The logs that the volume has.
    pub fn logs(&self) -> &'static [F2Log] {
        use blockwright_ondisk::f2fs::Features;
        const TWO: [F2Log; 2] = [F2Log::HotData, F2Log::HotNode];
        if self.geo.features.contains(Features::READ_ONLY) {
            &TWO
        } else {
            &F2Log::ALL
        }
    }

    /// Changes a block.
    pub fn write(&mut self, block: BlockAddr, bytes: Vec<u8>) {
        self.changes += 1;
        if self.store.write(block, bytes) {
            self.count_changed(block);
        }
    }

    /// Counts a changed block among those that need a new place. In a segment of nodes and data it may be either, and in one of which nothing was
    /// looked at yet, too.
    fn count_changed(&mut self, block: BlockAddr) {
        if self.new_blocks.places.contains(&block.0) {
            return;
        }
        let place = self.geo.segment_of(block);
        let Some((segment, _)) = place else {
            return;
        };
        let used = self.scan.segments.get(&segment.0);
        let [data, nodes] = used.map_or([0, 0], |used| [used.data, used.nodes]);
        self.new_blocks.changed[0] += usize::from(data > 0 || nodes == 0);
        self.new_blocks.changed[1] += usize::from(nodes > 0 || data == 0);
    }

    /// A node's block; `None` for one that does not exist.
    pub fn read_node(&self, nid: Nid) -> Result<Option<(BlockAddr, Vec<u8>)>, CheckError> {
        let Some(entry) = self.tables.nat.get(&nid.0) else {
            return Ok(None);
        };
        Ok(Some((entry.block, self.store.read(entry.block, "node")?)))
    }

    /// Changes a node's block.
    pub fn edit_node(&mut self, nid: Nid, edit: impl FnOnce(&mut [u8])) -> Result<(), CheckError> {
        let Some((block, mut bytes)) = self.read_node(nid)? else {
            return Ok(());
        };
        let is_inode = self
            .tables
            .nat
            .get(&nid.0)
            .is_some_and(|e| e.ino.0 == nid.0);
        let before = bytes.clone();
        edit(&mut bytes);
        if is_inode {
            inode::set_checksum(&mut bytes, nid.as_ino(), &self.geo);
        }
        if bytes != before {
            self.write(block, bytes);
        }
        Ok(())
    }

    /// Changes an inode's metadata.
    pub fn edit_inode(
        &mut self,
        ino: Ino,
        edit: impl FnOnce(&mut RawInodeHead),
    ) -> Result<(), CheckError> {
        self.edit_node(ino.nid(), |bytes| {
            if let Ok((head, _)) = RawInodeHead::mut_from_prefix(bytes) {
                edit(head);
            }
        })
    }

    /// Forgets a node: its number is free. What it maps is found to be free by the next round.
    pub fn free_node(&mut self, nid: Nid) {
        if self.tables.nat.remove(&nid.0).is_some() {
            self.changes += 1;
        }
    }

    /// Ends a check that found what its mode must not repair: nothing is written.
    pub fn finish_left(self) -> Report {
        let stats = self.stats();
        self.log.into_report(stats, false, true)
    }

    /// What was on the volume.
    pub fn stats(&self) -> Stats {
        Stats {
            inodes: u64::from(self.geo.nids()).saturating_sub(3),
            blocks: self.geo.main_blocks(),
            used_blocks: self.scan.blocks,
            used_inodes: self.scan.inodes.len() as u64,
            blocks_written: self.wrote,
            ..self.scan.stats
        }
    }
}
