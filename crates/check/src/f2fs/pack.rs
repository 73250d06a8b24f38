//! Checkpoint packs: which of the two counts, and what it holds: journals, summaries of the logs'
//! segments, orphans.

use blockwright_ondisk::f2fs::checkpoint::{CheckpointFlags, LogHead, verify_block};
use blockwright_ondisk::f2fs::geometry::Copy2;
use blockwright_ondisk::f2fs::nat::NatEntry;
use blockwright_ondisk::f2fs::pack::{self, Pack, PackLayout};
use blockwright_ondisk::f2fs::summary::{
    self, CompactSummaries, RawNatJournalEntry, RawSitJournalEntry, SummaryBlock, SummaryKind,
};
use blockwright_ondisk::f2fs::{
    BLOCK_SIZE, BLOCKS_PER_SEG, BlockAddr, Checkpoint, FormatError, Geometry, Ino, Log as F2Log,
    Nid, RawCheckpoint, SegNo, SitEntry, checksum,
};
use zerocopy::FromBytes;

use super::CheckError;
use super::context::{Checker, Log};
use super::issue::IssueKind;
use super::store::Store;

/// What journals hold.
#[derive(Default)]
pub(super) struct Journals {
    pub nat: Vec<(Nid, NatEntry)>,
    pub sit: Vec<(SegNo, SitEntry)>,
}

fn number(which: Copy2) -> u8 {
    u8::from(which == Copy2::Second)
}

fn read_head(store: &Store, geo: &Geometry, which: Copy2) -> Result<Vec<u8>, CheckError> {
    store.read_run(geo.pack_start(which), 1 + geo.cp_payload, "checkpoint")
}

/// A pack from its head; of a valid one the tail belongs to it.
fn parse(
    store: &Store,
    geo: &Geometry,
    which: Copy2,
    head: &[u8],
) -> Result<Result<Checkpoint, FormatError>, CheckError> {
    let checkpoint = match Checkpoint::parse(head, geo) {
        Ok(checkpoint) => checkpoint,
        Err(e) => return Ok(Err(e)),
    };
    let tail = checkpoint.raw.cp_pack_total_block_count.get() - 1;
    let tail = store.read(BlockAddr(geo.pack_start(which).0 + tail), "checkpoint")?;
    Ok(pack::verify_pair(head, &tail).map(|_| checkpoint))
}

/// The version of a pack that was written whole: both ends have the right checksum and belong together, whatever they say.
fn whole(
    store: &Store,
    geo: &Geometry,
    which: Copy2,
    head: &[u8],
) -> Result<Option<u64>, CheckError> {
    let Ok((raw, _)) = verify_block(head) else {
        return Ok(None);
    };
    let total = raw.cp_pack_total_block_count.get();
    if !(2..=BLOCKS_PER_SEG).contains(&total) {
        return Ok(None);
    }
    let tail = BlockAddr(geo.pack_start(which).0 + total - 1);
    let tail = store.read(tail, "checkpoint")?;
    Ok(pack::verify_pair(head, &tail).ok())
}

/// Repairs a pack that was written whole (both ends have the right checksum) but has invalid fields in its head. It repairs fields that
/// follow from the volume, and fields that are the same in the other pack. Returns the checkpoint and the faults found; `None`
/// when the pack cannot be repaired.
fn mend(
    store: &Store,
    geo: &Geometry,
    which: Copy2,
    mut head: Vec<u8>,
    other: Option<&Checkpoint>,
) -> Result<Option<(Checkpoint, Vec<FormatError>)>, CheckError> {
    // Not a head that was torn while it was written.
    let Ok((_, written)) = verify_block(&head) else {
        return Ok(None);
    };
    let mut errors = Vec::new();
    // Each field is put right at most once.
    while errors.len() < 16 {
        match parse(store, geo, which, &head)? {
            Ok(checkpoint) => {
                // Nodes written after it and NAT bits name it by the checksum that it was written with.
                let checksum = written;
                let checkpoint = Checkpoint {
                    checksum,
                    ..checkpoint
                };
                return Ok(Some((checkpoint, errors)));
            }
            Err(error) => {
                let Ok((raw, _)) = RawCheckpoint::mut_from_prefix(&mut head) else {
                    return Ok(None);
                };
                if mend_field(raw, &error, geo, other).is_none() {
                    return Ok(None);
                }
                let offset = raw.checksum_offset.get() as usize;
                let Some(sum) = checksum::checkpoint(&head[..BLOCK_SIZE], offset) else {
                    return Ok(None);
                };
                head[offset..offset + 4].copy_from_slice(&sum.to_le_bytes());
                errors.push(error);
            }
        }
    }
    Ok(None)
}

/// Makes a refused field one that is accepted. Counts are counted later.
fn mend_field(
    raw: &mut RawCheckpoint,
    error: &FormatError,
    geo: &Geometry,
    other: Option<&Checkpoint>,
) -> Option<()> {
    match error {
        // One of the two is wrong. Blocks in use are counted later, but the size for users is not: it follows from the segments.
        FormatError::CpValidBlocks { user, .. } => {
            let spare = raw.overprov_segment_count.get();
            let segments = geo.main_segments.saturating_sub(spare);
            let most = u64::from(segments) * u64::from(BLOCKS_PER_SEG);
            match other.map(|other| other.raw.user_block_count.get()) {
                Some(size) if size > *user => raw.user_block_count.set(size),
                None if most > *user => raw.user_block_count.set(most),
                _ => raw.valid_block_count.set(*user),
            }
        }
        FormatError::CpBitmapSize { what, expected, .. } => {
            let expected = u32::try_from(*expected).ok()?;
            match *what {
                "SIT" => raw.sit_ver_bitmap_bytesize.set(expected),
                _ => raw.nat_ver_bitmap_bytesize.set(expected),
            }
        }
        // The flag says where the checksum is, and it is where it is found.
        FormatError::CpChecksumOffset { .. } => {
            let flags = raw.flags() ^ CheckpointFlags::LARGE_NAT_BITMAP;
            raw.ckpt_flags.set(flags.bits());
        }
        FormatError::CpNodes { .. } => {
            raw.valid_node_count.set(0);
            raw.valid_inode_count.set(0);
        }
        FormatError::CpSegments { what: "free", .. } => raw.free_segment_count.set(0),
        FormatError::CpSegments { .. } => {
            let other = &other?.raw;
            raw.rsvd_segment_count = other.rsvd_segment_count;
            raw.overprov_segment_count = other.overprov_segment_count;
        }
        FormatError::CpUserBlocks { .. } => raw.user_block_count = other?.raw.user_block_count,
        FormatError::CpNextNid { .. } => raw.next_free_nid.set(0),
        FormatError::CpLog { log, .. } | FormatError::CpLogTwice { log, .. } => {
            // Whether it may go on there is looked at with the other logs.
            let alloc = raw.log(*log).alloc;
            let kept = other.map(|other| other.raw.log(*log));
            let free = (0..geo.main_segments).rev().map(|n| LogHead {
                segment: SegNo(n),
                offset: 0,
                alloc,
            });
            let taken = |head: &LogHead| {
                F2Log::ALL
                    .iter()
                    .any(|l| l != log && raw.log(*l).segment == head.segment)
            };
            let possible = |head: &LogHead| {
                head.segment.0 < geo.main_segments && u32::from(head.offset) < BLOCKS_PER_SEG
            };
            let head = kept
                .into_iter()
                .chain(free)
                .find(|head| possible(head) && !taken(head))?;
            raw.set_log(*log, head);
        }
        FormatError::CpPackShape { .. }
            if !raw.flags().contains(CheckpointFlags::ORPHAN_PRESENT) =>
        {
            raw.cp_pack_start_sum.set(1 + geo.cp_payload);
        }
        _ => return None,
    }
    Some(())
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
    let mut impossible = None;
    let heads = [
        read_head(store, geo, Copy2::First)?,
        read_head(store, geo, Copy2::Second)?,
    ];
    let mut packs = [
        parse(store, geo, Copy2::First, &heads[0])?,
        parse(store, geo, Copy2::Second, &heads[1])?,
    ];
    for ((n, which), head) in [Copy2::First, Copy2::Second]
        .into_iter()
        .enumerate()
        .zip(heads)
    {
        let other = packs[1 - n].as_ref().ok();
        if packs[n].is_ok() {
            continue;
        }
        // An old pack is of no use, however it is mended. Tools write the same version into both: then the first counts.
        let counts = |version: u64| {
            other.is_none_or(|other| {
                let newer = version.wrapping_sub(other.version()) as i64;
                newer > 0 || newer == 0 && which == Copy2::First
            })
        };
        let written = whole(store, geo, which, &head)?.filter(|version| counts(*version));
        if let Some((checkpoint, errors)) = mend(store, geo, which, head, other)?
            && counts(checkpoint.version())
        {
            for error in errors {
                anew |= log.problem(IssueKind::CheckpointField {
                    pack: number(which),
                    error: error.into(),
                });
            }
            packs[n] = Ok(checkpoint);
        } else if written.is_some()
            && other.is_some()
            && let Err(error) = &packs[n]
        {
            anew |= log.problem(IssueKind::CheckpointImpossible {
                pack: number(which),
                error: error.clone().into(),
            });
            impossible = Some(n);
        }
    }
    let [first, second] = packs;
    if first.is_ok() || second.is_ok() {
        for (which, result) in [(Copy2::First, &first), (Copy2::Second, &second)] {
            if impossible == Some(usize::from(number(which))) {
                continue;
            }
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
