//! Checkpoint packs: which of the two counts, and what it holds: journals, summaries of the logs'
//! segments, orphans.

use std::collections::BTreeMap;

use blockwright_ondisk::f2fs::checkpoint::CheckpointFlags;
use blockwright_ondisk::f2fs::geometry::Copy2;
use blockwright_ondisk::f2fs::nat::NatEntry;
use blockwright_ondisk::f2fs::pack::{self, Pack, PackLayout};
use blockwright_ondisk::f2fs::summary::{
    self, CompactSummaries, RawNatJournalEntry, RawSitJournalEntry, SummaryBlock, SummaryKind,
};
use blockwright_ondisk::f2fs::{
    BLOCK_SIZE, BlockAddr, Checkpoint, FormatError, Geometry, Ino, Log as F2Log, Nid, SegNo,
    SitEntry,
};
use zerocopy::FromBytes;

use super::CheckError;
use super::context::{Checker, Log};
use super::issue::IssueKind;
use super::store::Store;

/// Summaries of the segments that the logs are in: those of the checkpoint pack, not of the SSA.
#[derive(Default)]
pub(super) struct LogSummaries {
    /// By segment; `None` where the pack has none.
    pub by_segment: BTreeMap<u32, (F2Log, Option<SummaryBlock>)>,
}

/// What journals hold.
#[derive(Default)]
pub(super) struct Journals {
    pub nat: Vec<(Nid, NatEntry)>,
    pub sit: Vec<(SegNo, SitEntry)>,
}

fn number(which: Copy2) -> u8 {
    u8::from(which == Copy2::Second)
}

fn read_one(
    store: &Store,
    geo: &Geometry,
    which: Copy2,
) -> Result<Result<Checkpoint, FormatError>, CheckError> {
    let what = "checkpoint";
    let start = geo.pack_start(which);
    let head = store.read_run(start, 1 + geo.cp_payload, what)?;
    let checkpoint = match Checkpoint::parse(&head, geo) {
        Ok(checkpoint) => checkpoint,
        Err(e) => return Ok(Err(e)),
    };
    let tail = checkpoint.raw.cp_pack_total_block_count.get() - 1;
    let tail = store.read(BlockAddr(start.0 + tail), what)?;
    Ok(pack::verify_pair(&head, &tail).map(|_| checkpoint))
}

/// The pack that counts.
///
/// Says also whether the other one is to be written anew.
pub(super) fn open(
    store: &Store,
    geo: &Geometry,
    log: &mut Log,
) -> Result<(Pack, bool), CheckError> {
    let mut anew = false;
    let [first, second] = [
        read_one(store, geo, Copy2::First)?,
        read_one(store, geo, Copy2::Second)?,
    ];
    if first.is_ok() || second.is_ok() {
        for (which, result) in [(Copy2::First, &first), (Copy2::Second, &second)] {
            if let Err(error) = result {
                anew |= log.problem(IssueKind::CheckpointBad {
                    pack: number(which),
                    error: error.clone().into(),
                });
            }
        }
    }
    pack::newer(first, second)
        .map(|pack| (pack, anew))
        .map_err(|source| CheckError::NoCheckpoint { source })
}

impl Checker {
    /// Reads what the pack holds behind its head.
    pub(super) fn load_pack(&mut self) -> Result<Journals, CheckError> {
        let geo = self.geo.clone();
        let cp = self.pack.checkpoint.clone();
        let flags = cp.flags();
        for (flag, name) in [
            (CheckpointFlags::ERROR, "error"),
            (CheckpointFlags::FSCK, "fsck"),
        ] {
            if flags.contains(flag) && self.problem(IssueKind::MarkedErroneous { flags: name }) {
                self.changes += 1;
                let left = self.pack.checkpoint.raw.flags() - flag;
                self.pack.checkpoint.raw.ckpt_flags.set(left.bits());
            }
        }
        if flags.contains(CheckpointFlags::QUOTA_NEED_FSCK) {
            self.problem(IssueKind::QuotaUncounted);
        }
        for log in self.logs() {
            let segment = cp.raw.log(*log).segment.0;
            self.summaries.by_segment.insert(segment, (*log, None));
        }
        let layout = match PackLayout::new(&cp, &geo) {
            Ok(layout) => layout,
            Err(error) => {
                if self.problem(IssueKind::PackLayout {
                    error: error.into(),
                }) {
                    self.changes += 1;
                }
                return Ok(Journals::default());
            }
        };
        let start = geo.pack_start(self.pack.which).0;
        if flags.contains(CheckpointFlags::ORPHAN_PRESENT) {
            self.load_orphans(BlockAddr(start + layout.orphans.0), layout.orphans.1)?;
        }
        let first = layout.data_summaries;
        let data = self.store.read_run(
            BlockAddr(start + first),
            layout.node_summaries.unwrap_or(layout.tail) - first,
            "summaries",
        )?;
        let journals = if flags.contains(CheckpointFlags::COMPACT_SUM) {
            self.load_compact(data, &cp)
        } else {
            self.load_normal(&data, &cp, &F2Log::DATA)
        };
        if let Some(first) = layout.node_summaries {
            let nodes = self
                .store
                .read_run(BlockAddr(start + first), 3, "summaries")?;
            self.load_normal(&nodes, &cp, &F2Log::NODE);
        }
        Ok(journals)
    }

    fn load_orphans(&mut self, first: BlockAddr, count: u32) -> Result<(), CheckError> {
        let geo = self.geo.clone();
        for n in 0..count {
            let block = BlockAddr(first.0 + n);
            let bytes = self.store.read(block, "orphan block")?;
            match pack::parse_orphans(&bytes, &geo) {
                Ok(list) => self.tables.orphans.extend(list.iter().map(|ino| ino.0)),
                Err(error) => {
                    if self.problem(IssueKind::OrphanBlock {
                        block,
                        error: error.into(),
                    }) {
                        self.changes += 1;
                    }
                    // What can be read of it still counts.
                    let words = bytes.chunks_exact(4).take(pack::ORPHANS_PER_BLOCK);
                    let inos = words.map(|w| Ino(u32::from_le_bytes([w[0], w[1], w[2], w[3]])));
                    let inos = inos.take_while(|ino| ino.0 != 0);
                    let good = inos.filter(|ino| geo.check_nid(ino.nid()).is_ok());
                    self.tables.orphans.extend(good.map(|ino| ino.0));
                }
            }
        }
        Ok(())
    }

    fn load_compact(&mut self, mut data: Vec<u8>, cp: &Checkpoint) -> Journals {
        let len = summary::JOURNAL_BYTES;
        let journals = self.journals(&data[..len], &data[len..2 * len]);
        // The entries are readable whatever the journals are.
        data[..2 * len].fill(0);
        let geo = self.geo.clone();
        if let Ok(all) = CompactSummaries::parse(&data, &cp.raw, &geo) {
            for (log, entries) in F2Log::DATA.into_iter().zip(all.entries) {
                let mut block = SummaryBlock::new(SummaryKind::Data);
                block.entries = entries;
                self.keep_summary(log, cp, block);
            }
        }
        journals
    }

    /// Whole blocks of three logs; the journals of the data ones.
    fn load_normal(&mut self, blocks: &[u8], cp: &Checkpoint, logs: &[F2Log; 3]) -> Journals {
        let mut bytes = [Vec::new(), Vec::new()];
        for (log, block) in logs.iter().zip(blocks.chunks_exact(BLOCK_SIZE)) {
            let mut fixed = block.to_vec();
            let kind = SummaryKind::of(*log);
            let code = u8::from(kind == SummaryKind::Node);
            let used = self.logs().contains(log);
            let type_at = BLOCK_SIZE - summary::FOOTER_BYTES;
            if fixed[type_at] != code {
                fixed[type_at] = code;
                if used && self.problem(IssueKind::PackSummary { log: *log }) {
                    self.changes += 1;
                }
            }
            let Ok(parsed) = SummaryBlock::parse(&fixed) else {
                continue;
            };
            match log {
                F2Log::HotData => bytes[0].clone_from(&parsed.journal),
                F2Log::ColdData => bytes[1].clone_from(&parsed.journal),
                _ => {}
            }
            if used {
                self.keep_summary(*log, cp, parsed);
            }
        }
        if logs[0].is_node() {
            return Journals::default();
        }
        self.journals(&bytes[0], &bytes[1])
    }

    fn keep_summary(&mut self, log: F2Log, cp: &Checkpoint, mut block: SummaryBlock) {
        block.journal.fill(0);
        let segment = cp.raw.log(log).segment.0;
        if let Some(slot) = self.summaries.by_segment.get_mut(&segment) {
            slot.1 = Some(block);
        }
    }

    fn journals(&mut self, nat: &[u8], sit: &[u8]) -> Journals {
        let geo = self.geo.clone();
        let mut out = Journals::default();
        let count = self.journal_count(nat, summary::NAT_JOURNAL_ENTRIES, "NAT");
        if let Some(body) = nat.get(2..)
            && let Ok((raw, _)) = <[RawNatJournalEntry]>::ref_from_prefix_with_elems(body, count)
        {
            for (index, r) in raw.iter().enumerate() {
                let (nid, entry) = (Nid(r.nid.get()), NatEntry::decode(&r.ne));
                match geo.check_nid(nid) {
                    Ok(()) => out.nat.push((nid, entry)),
                    Err(error) => self.journal_entry("NAT", index, error),
                }
            }
        }
        let count = self.journal_count(sit, summary::SIT_JOURNAL_ENTRIES, "SIT");
        if let Some(body) = sit.get(2..)
            && let Ok((raw, _)) = <[RawSitJournalEntry]>::ref_from_prefix_with_elems(body, count)
        {
            for (index, r) in raw.iter().enumerate() {
                let segment = SegNo(r.segno.get());
                if segment.0 >= geo.main_segments {
                    let max = geo.main_segments;
                    self.journal_entry("SIT", index, FormatError::SegmentRange { segment, max });
                    continue;
                }
                let entry = self.lenient_sit(&r.se, segment);
                out.sit.push((segment, entry));
            }
        }
        out
    }

    fn journal_entry(&mut self, what: &'static str, index: usize, error: FormatError) {
        let error = error.into();
        if self.problem(IssueKind::JournalEntry { what, index, error }) {
            self.changes += 1;
        }
    }

    fn journal_count(&mut self, bytes: &[u8], max: usize, what: &'static str) -> usize {
        let Some([a, b]) = bytes.first_chunk::<2>().copied() else {
            return 0;
        };
        let found = u16::from_le_bytes([a, b]);
        if usize::from(found) > max {
            if self.problem(IssueKind::JournalCount { what, found, max }) {
                self.changes += 1;
            }
            return 0;
        }
        usize::from(found)
    }
}
