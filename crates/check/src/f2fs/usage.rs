//! What each block of an f2fs volume holds: the areas that the superblock names, and what the SIT of the last
//! checkpoint says of the main area.
//!
//! Files that fsync wrote since that checkpoint are not part of it. The next mount recovers them.

use std::collections::BTreeMap;

use blockwright_device::SharedDevice;
use blockwright_ondisk::f2fs::checkpoint::ALLOC_LFS;
use blockwright_ondisk::f2fs::sit::{self, ValidMap};
use blockwright_ondisk::f2fs::{
    BLOCK_SIZE, BLOCKS_PER_SEG, Geometry, Log as F2Log, SegNo, SitEntry,
};

use super::context::{Checker, Log, Opened};
use super::issue::IssueKind;
use super::store::Store;
use super::{CheckError, CheckOptions, Usage, pack, superblock};
use crate::usage::{Collector, Kind, Parts, UsageOptions};
use crate::{Phase, Stats};

const SEGMENT: u64 = BLOCKS_PER_SEG as u64;

/// Describes what each block of a volume holds, by its last checkpoint.
///
/// # Errors
/// As [`super::check`]. A volume without a usable checkpoint is no error here: its main area is unknown.
pub fn usage(device: SharedDevice, options: &UsageOptions) -> Result<Usage, CheckError> {
    let check = CheckOptions::default();
    let mut log = Log::new(check.mode, check.max_issues);
    let (sb, geo, sb_stale) = superblock::open(&device, &mut log)?;
    let blocks = geo.main_end().max(geo.blocks_count);
    let mut out = Collector::new(BLOCK_SIZE as u32, blocks, options);
    areas(&geo, blocks, &mut out);
    let parts = Parts {
        name: "segment",
        first: u64::from(geo.main.0),
        blocks: SEGMENT,
    };
    let store = Store::new(device, blocks);
    let pack = match pack::open(&store, &geo, &mut log) {
        Ok((pack, _)) => pack,
        Err(e @ (CheckError::NoCheckpoint { .. } | CheckError::Device { .. })) => {
            out.unread("checkpoints", u64::from(geo.cp.0), 2 * SEGMENT, &e);
            let report = log.into_report(Stats::default(), false, true);
            return Ok(out.finish(report, parts));
        }
        Err(e) => return Err(e),
    };
    let opened = Opened {
        store,
        geo,
        sb,
        sb_stale,
        pack,
        log,
    };
    let mut checker = Checker::new(opened, options.progress.clone());
    checker.main_area(&mut out)?;
    let report = checker.log.into_report(Stats::default(), false, true);
    Ok(out.finish(report, parts))
}

/// Everything but the main area.
fn areas(geo: &Geometry, blocks: u64, out: &mut Collector) {
    let start = [geo.cp, geo.sit, geo.nat, geo.ssa, geo.main].map(|block| u64::from(block.0));
    let [cp, sit, nat, ssa, main] = start;
    for (kind, from, to) in [
        (Kind::Superblock, 0, 2),
        (Kind::Unusable, 2, cp),
        (Kind::Checkpoint, cp, sit),
        (Kind::Sit, sit, nat),
        (Kind::Nat, nat, ssa),
        (Kind::Ssa, ssa, main),
        (Kind::Unusable, geo.main_end(), blocks),
    ] {
        out.add(kind, from, to.saturating_sub(from));
    }
}

fn kind_of(log: F2Log) -> Kind {
    match log {
        F2Log::HotData => Kind::HotData,
        F2Log::WarmData => Kind::WarmData,
        F2Log::ColdData => Kind::ColdData,
        F2Log::HotNode => Kind::HotNode,
        F2Log::WarmNode => Kind::WarmNode,
        F2Log::ColdNode => Kind::ColdNode,
    }
}

impl Checker {
    fn main_area(&mut self, out: &mut Collector) -> Result<(), CheckError> {
        let geo = self.geo.clone();
        let cp = self.pack.checkpoint.clone();
        out.now = Some(cp.raw.elapsed_time.get());
        let journal: BTreeMap<u32, SitEntry> = match self.load_pack() {
            Ok(journals) => journals.sit.into_iter().map(|(n, e)| (n.0, e)).collect(),
            Err(CheckError::Device { source, .. }) => {
                let first = u64::from(geo.pack_start(self.pack.which).0);
                out.unread("summaries of the checkpoint", first, 1, &source);
                BTreeMap::new()
            }
            Err(e) => return Err(e),
        };
        // Where logs go on in free blocks.
        let heads: BTreeMap<u32, u16> = (self.logs().iter())
            .map(|log| cp.raw.log(*log))
            .map(|head| match head.alloc {
                ALLOC_LFS => (head.segment.0, head.offset),
                _ => (head.segment.0, BLOCKS_PER_SEG as u16),
            })
            .collect();
        let per = sit::ENTRIES_PER_BLOCK as u32;
        let mut valid = 0;
        for index in 0..geo.sit_blocks_used() {
            if index % 256 == 0 {
                let (done, total) = (u64::from(index), u64::from(geo.sit_blocks_used()));
                self.report_progress(Phase::Bitmaps, done, total)?;
            }
            let Some(place) = geo.sit_block(index, cp.sit_bitmap.get(index)) else {
                continue;
            };
            let block = match self.store.read(place, "SIT") {
                Ok(block) => Some(block),
                Err(CheckError::Device { source, .. }) => {
                    out.unread("SIT", u64::from(place.0), 1, &source);
                    None
                }
                Err(e) => return Err(e),
            };
            let first = index * per;
            for segment in first..first.saturating_add(per).min(geo.main_segments) {
                let entry = match (journal.get(&segment), &block) {
                    (Some(entry), _) => *entry,
                    (None, Some(block)) => {
                        let Ok(raw) = sit::entry_at(block, (segment - first) as usize) else {
                            continue;
                        };
                        self.lenient_sit(raw, SegNo(segment))
                    }
                    // Unknown.
                    (None, None) => continue,
                };
                valid += u64::from(entry.valid.count());
                let head = heads.get(&segment).copied();
                self.segment(SegNo(segment), &entry, head, out);
            }
        }
        let found = cp.raw.valid_block_count.get();
        if found != valid && out.is_complete() {
            self.problem(IssueKind::ValidBlocks {
                found,
                counted: valid,
            });
        }
        Ok(())
    }

    fn segment(&self, segment: SegNo, entry: &SitEntry, head: Option<u16>, out: &mut Collector) {
        let Some(start) = self.geo.segment_start(segment) else {
            return;
        };
        let start = u64::from(start.0);
        if entry.valid.is_empty() && head.is_none() {
            out.add(Kind::Free, start, SEGMENT);
            return;
        }
        // Behind the head, a log writes blocks that are free.
        let head = head.unwrap_or(BLOCKS_PER_SEG as u16);
        let kind = |map: &ValidMap, at: u16| match (map.get(at), at >= head) {
            (true, _) => kind_of(entry.log),
            (false, true) => Kind::Free,
            (false, false) => Kind::Stale,
        };
        let mut from = 0;
        for at in 1..=BLOCKS_PER_SEG as u16 {
            let now = kind(&entry.valid, from);
            if at == BLOCKS_PER_SEG as u16 || kind(&entry.valid, at) != now {
                out.add(now, start + u64::from(from), u64::from(at - from));
                from = at;
            }
        }
        if !entry.valid.is_empty() {
            out.written(start, SEGMENT, entry.mtime);
        }
    }
}
