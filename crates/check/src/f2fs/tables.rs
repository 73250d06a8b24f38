//! NAT and SIT, with their journals; and the NAT bits that sum the NAT up.

use blockwright_ondisk::f2fs::nat::{self, NatBlock};
use blockwright_ondisk::f2fs::pack::{NatBits, PackLayout};
use blockwright_ondisk::f2fs::sit::{self, RawSitEntry, ValidMap};
use blockwright_ondisk::f2fs::{
    BLOCK_SIZE, BlockAddr, FormatError, Ino, Log as F2Log, NatEntry, Nid, SegNo, SitEntry,
};

use super::CheckError;
use super::context::Checker;
use super::issue::IssueKind;

/// Blocks read at once.
const RUN: u32 = 256;

impl Checker {
    /// A SIT entry whose type or count may be wrong: its bitmap counts.
    pub(super) fn lenient_sit(&mut self, raw: &RawSitEntry, segment: SegNo) -> SitEntry {
        match SitEntry::parse(raw, segment) {
            Ok(entry) => entry,
            Err(error) => {
                if self.problem(IssueKind::SitEntry {
                    error: error.into(),
                }) {
                    self.changes += 1;
                }
                SitEntry {
                    log: F2Log::from_code((raw.vblocks.get() >> 10) as u8)
                        .unwrap_or(F2Log::HotData),
                    valid: ValidMap(raw.valid_map),
                    mtime: raw.mtime.get(),
                }
            }
        }
    }

    /// Reads the NAT.
    pub(super) fn load_nat(&mut self, journal: &[(Nid, NatEntry)]) -> Result<(), CheckError> {
        let geo = self.geo.clone();
        let bitmap = self.pack.checkpoint.nat_bitmap.clone();
        let journaled: std::collections::BTreeSet<u32> =
            journal.iter().map(|(nid, _)| nid.0).collect();
        let mut used = vec![0u16; geo.nat_blocks() as usize];
        let per = nat::ENTRIES_PER_BLOCK as u32;
        let mut index = 0;
        while index < geo.nat_blocks() {
            // A run: neighbours of the same copy. Segments of the two copies alternate, and runs are
            // a part of a segment.
            let count = RUN.min(geo.nat_blocks() - index);
            let run = self.read_copies(index, count, |i| geo.nat_block(i, bitmap.get(i)))?;
            for (n, block) in run.chunks_exact(BLOCK_SIZE).enumerate() {
                let at = index + n as u32;
                let Ok(view) = NatBlock::parse(block) else {
                    continue;
                };
                for (position, entry) in view.iter().enumerate() {
                    let nid = at * per + position as u32;
                    if nid < Ino::ROOT.0 {
                        self.keep_reserved(Nid(nid), entry);
                    }
                    if entry.is_free() || nid >= geo.nids() {
                        continue;
                    }
                    used[at as usize] += 1;
                    if !journaled.contains(&nid) {
                        self.keep_nat(Nid(nid), entry);
                    }
                }
            }
            index += count;
        }
        for (nid, entry) in journal {
            self.keep_nat(*nid, *entry);
        }
        self.check_nat_bits(&used, &journaled)
    }

    /// Blocks of a table, each from its valid copy, with few reads.
    fn read_copies(
        &self,
        index: u32,
        count: u32,
        place: impl Fn(u32) -> Option<BlockAddr>,
    ) -> Result<Vec<u8>, CheckError> {
        let mut out = Vec::with_capacity(count as usize * BLOCK_SIZE);
        let mut at = index;
        while at < index + count {
            let Some(first) = place(at) else {
                break;
            };
            let mut run = 1;
            while at + run < index + count && place(at + run) == Some(BlockAddr(first.0 + run)) {
                run += 1;
            }
            out.extend(self.store.read_run(first, run, "table")?);
            at += run;
        }
        Ok(out)
    }

    /// The first three numbers are no nodes': nothing, and the two inodes that exist in memory only,
    /// at block 1.
    fn keep_reserved(&mut self, nid: Nid, entry: NatEntry) {
        let expected = BlockAddr(u32::from(nid.0 > 0));
        if entry.block != expected
            && self.problem(IssueKind::NatReserved {
                nid,
                found: entry.block,
                expected,
            })
        {
            self.changes += 1;
        }
    }

    fn keep_nat(&mut self, nid: Nid, entry: NatEntry) {
        if entry.is_free() || nid.0 < Ino::ROOT.0 {
            return;
        }
        let error = match self.geo.check_nat_entry(nid, &entry) {
            Ok(()) if !self.geo.in_main(entry.block) => FormatError::NatBlock {
                nid,
                block: entry.block,
            },
            Ok(()) => {
                self.tables.nat.insert(nid.0, entry);
                return;
            }
            Err(error) => error,
        };
        // A wrong owner can be found again from the node; a wrong place cannot.
        if matches!(error, FormatError::NatInode { .. }) {
            self.tables.nat.insert(nid.0, entry);
        }
        if self.problem(IssueKind::NatEntry {
            error: error.into(),
        }) {
            self.changes += 1;
        }
    }

    fn check_nat_bits(
        &mut self,
        used: &[u16],
        journaled: &std::collections::BTreeSet<u32>,
    ) -> Result<(), CheckError> {
        let geo = self.geo.clone();
        let cp = self.pack.checkpoint.clone();
        let Some((first, count)) = PackLayout::new(&cp, &geo).ok().and_then(|l| l.nat_bits) else {
            return Ok(());
        };
        let start = geo.pack_start(self.pack.which).0;
        let blocks = self
            .store
            .read_run(BlockAddr(start + first), count, "NAT bits")?;
        let bits = match NatBits::parse(&blocks, &cp, &geo) {
            Ok(bits) => bits,
            Err(error) => {
                if self.problem(IssueKind::NatBits {
                    error: error.into(),
                }) {
                    self.changes += 1;
                }
                return Ok(());
            }
        };
        let per = nat::ENTRIES_PER_BLOCK as u32;
        let bit = |map: &[u8], n: usize| map.get(n / 8).is_some_and(|b| b & (1 << (n % 8)) != 0);
        for (index, used) in used.iter().enumerate() {
            let from = index as u32 * per;
            if journaled.range(from..from + per).next().is_some() {
                continue;
            }
            // Number 0 is never free.
            let used = u32::from(*used) + u32::from(index == 0);
            let (full, empty) = (bit(&bits.full, index), bit(&bits.empty, index));
            // A bit that is not set only costs a read; one that is wrongly set hides nodes or
            // gives a number out twice.
            if (full && used < per || empty && used > 0)
                && self.problem(IssueKind::NatBitsWrong {
                    index: index as u32,
                    used,
                })
            {
                self.changes += 1;
            }
        }
        Ok(())
    }

    /// Reads the SIT.
    pub(super) fn load_sit(&mut self, journal: &[(SegNo, SitEntry)]) -> Result<(), CheckError> {
        let geo = self.geo.clone();
        let bitmap = self.pack.checkpoint.sit_bitmap.clone();
        let journaled: std::collections::BTreeSet<u32> =
            journal.iter().map(|(seg, _)| seg.0).collect();
        let per = sit::ENTRIES_PER_BLOCK as u32;
        let mut index = 0;
        while index < geo.sit_blocks_used() {
            let count = RUN.min(geo.sit_blocks_used() - index);
            let run = self.read_copies(index, count, |i| geo.sit_block(i, bitmap.get(i)))?;
            for (n, block) in run.chunks_exact(BLOCK_SIZE).enumerate() {
                for position in 0..sit::ENTRIES_PER_BLOCK {
                    let segment = (index + n as u32) * per + position as u32;
                    let Ok(raw) = sit::entry_at(block, position) else {
                        continue;
                    };
                    if segment >= geo.main_segments {
                        continue;
                    }
                    if journaled.contains(&segment) {
                        // The journal's entry counts. But the kernel looks at this one first, and mounts nothing when
                        // its type or its count is wrong.
                        self.lenient_sit(raw, SegNo(segment));
                        continue;
                    }
                    if raw.vblocks.get() == 0
                        && raw.mtime.get() == 0
                        && raw.valid_map.iter().all(|b| *b == 0)
                    {
                        continue;
                    }
                    let entry = self.lenient_sit(raw, SegNo(segment));
                    self.tables.sit.insert(segment, entry);
                }
            }
            index += count;
        }
        for (segment, entry) in journal {
            self.tables.sit.insert(segment.0, *entry);
        }
        let stored = self.tables.sit.iter().filter(|(_, e)| e.valid.count() > 0);
        self.tables.held = stored.map(|(segment, e)| (*segment, e.valid)).collect();
        let nodes = self.tables.nat.values();
        let places: Vec<_> = nodes.filter_map(|e| geo.segment_of(e.block)).collect();
        for (segment, at) in places {
            self.tables.hold(segment, at);
        }
        self.tables.newest = self.tables.sit.values().map(|e| e.mtime).max().unwrap_or(0);
        Ok(())
    }
}
