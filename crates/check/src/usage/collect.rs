//! Runs, as they are found, become cells and sorted runs.

use super::{Cell, FragmentedFile, Kind, Parts, Run, Unread, Usage, UsageOptions};
use crate::report::Report;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Unreadable places that are listed.
const UNREAD_MAX: usize = 1000;

/// Pieces, inode, blocks and first block of a file, in the order of badness.
type Fragmentation = (u64, Reverse<u64>, u64, u64);

/// Collects what is found. The caller adds each block once.
pub(crate) struct Collector {
    block_bytes: u32,
    blocks: u64,
    cell_bits: u32,
    cells: Vec<Cell>,
    runs: Option<Vec<Run>>,
    runs_max: usize,
    files_max: usize,
    worst: BinaryHeap<Reverse<Fragmentation>>,
    unread: Vec<Unread>,
    unread_more: u64,
    pub files: u64,
    pub fragmented_files: u64,
    pub now: Option<u64>,
    pub claimed_twice: u64,
    pub marked_free: u64,
}

impl Collector {
    pub fn new(block_bytes: u32, blocks: u64, options: &UsageOptions) -> Self {
        let cells_max = options.cells_max.max(1) as u64;
        let mut cell_bits = 0;
        while blocks.div_ceil(1 << cell_bits) > cells_max {
            cell_bits += 1;
        }
        Self {
            block_bytes,
            blocks,
            cell_bits,
            cells: vec![Cell::EMPTY; blocks.div_ceil(1 << cell_bits) as usize],
            runs: Some(Vec::new()),
            runs_max: options.runs_max,
            files_max: options.files_max,
            worst: BinaryHeap::new(),
            unread: Vec::new(),
            unread_more: 0,
            files: 0,
            fragmented_files: 0,
            now: None,
            claimed_twice: 0,
            marked_free: 0,
        }
    }

    /// Counts blocks that were not counted before. What lies behind the volume is left out.
    pub fn add(&mut self, kind: Kind, first: u64, len: u64) {
        let end = first.saturating_add(len).min(self.blocks);
        let mut at = first;
        while at < end {
            let cell = at >> self.cell_bits;
            let next = ((cell + 1) << self.cell_bits).min(end);
            self.cells[cell as usize].counts[kind.index()] += next - at;
            at = next;
        }
        if first < end {
            self.keep(Run {
                first,
                len: end - first,
                kind,
            });
        }
    }

    fn keep(&mut self, run: Run) {
        let Some(runs) = &mut self.runs else { return };
        match runs.last_mut() {
            Some(last) if last.kind == run.kind && last.first + last.len == run.first => {
                last.len += run.len;
            }
            _ => runs.push(run),
        }
        // Joining may make them half as many; otherwise there are too many.
        if runs.len() > self.runs_max.saturating_mul(2) {
            join(runs);
            if runs.len() > self.runs_max {
                self.runs = None;
            }
        }
    }

    /// f2fs: blocks in use were written at this time.
    pub fn written(&mut self, first: u64, len: u64, time: u64) {
        let end = first.saturating_add(len).min(self.blocks);
        let cells = first >> self.cell_bits..end.div_ceil(1 << self.cell_bits);
        for cell in
            &mut self.cells[cells.start as usize..(cells.end as usize).max(cells.start as usize)]
        {
            cell.written = cell.written.max(Some(time));
        }
    }

    /// A fragmented file.
    pub fn fragmented(&mut self, file: FragmentedFile) {
        self.fragmented_files += 1;
        // Of equal ones, those of lower numbers stay.
        let key = (file.pieces, Reverse(file.ino), file.blocks, file.first);
        self.worst.push(Reverse(key));
        if self.worst.len() > self.files_max {
            self.worst.pop();
        }
    }

    /// Something could not be read.
    pub fn unread(
        &mut self,
        what: &'static str,
        first: u64,
        len: u64,
        reason: &dyn std::fmt::Display,
    ) {
        if self.unread.len() < UNREAD_MAX {
            self.unread.push(Unread {
                what,
                first,
                len,
                reason: reason.to_string(),
            });
        } else {
            self.unread_more += 1;
        }
    }

    /// Whether everything could be read so far.
    pub fn is_complete(&self) -> bool {
        self.unread.is_empty() && self.unread_more == 0
    }

    /// The result. Blocks that nothing was said of are unknown.
    pub fn finish<K>(mut self, report: Report<K>, parts: Parts) -> Usage<K> {
        self.fill_up();
        let runs = self.runs.take().and_then(|mut runs| {
            join(&mut runs);
            (runs.len() <= self.runs_max).then_some(runs)
        });
        let mut worst: Vec<_> = self.worst.into_iter().map(|Reverse(key)| key).collect();
        worst.sort_by(|a, b| b.cmp(a));
        let fragmented = worst
            .into_iter()
            .map(|(pieces, Reverse(ino), blocks, first)| FragmentedFile {
                ino,
                pieces,
                blocks,
                first,
            });
        Usage {
            block_bytes: self.block_bytes,
            blocks: self.blocks,
            cell_blocks: 1 << self.cell_bits,
            fragmented: fragmented.collect(),
            cells: self.cells,
            runs,
            files: self.files,
            fragmented_files: self.fragmented_files,
            now: self.now,
            parts,
            claimed_twice: self.claimed_twice,
            marked_free: self.marked_free,
            issues: report.issues,
            suppressed: report.suppressed,
            unread: self.unread,
            unread_more: self.unread_more,
        }
    }

    fn fill_up(&mut self) {
        if let Some(runs) = &mut self.runs {
            join(runs);
            let mut gaps = Vec::new();
            let mut at = 0;
            for run in runs.iter() {
                if run.first > at {
                    gaps.push((at, run.first - at));
                }
                at = at.max(run.first + run.len);
            }
            if at < self.blocks {
                gaps.push((at, self.blocks - at));
            }
            for (first, len) in gaps {
                self.add(Kind::Unknown, first, len);
            }
            return;
        }
        for (n, cell) in self.cells.iter_mut().enumerate() {
            let start = (n as u64) << self.cell_bits;
            let blocks = (self.blocks - start).min(1 << self.cell_bits);
            let missing = blocks.saturating_sub(cell.blocks());
            cell.counts[Kind::Unknown.index()] += missing;
        }
    }
}

/// Sorts runs and joins neighbours of one kind.
fn join(runs: &mut Vec<Run>) {
    runs.sort_unstable();
    runs.dedup_by(|next, run| {
        let joins = run.kind == next.kind && run.first + run.len == next.first;
        if joins {
            run.len += next.len;
        }
        joins
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Stats;

    fn usage(collector: Collector) -> Usage<()> {
        let report = Report {
            issues: Vec::new(),
            suppressed: 0,
            suppressed_left: false,
            stats: Stats::default(),
            changed: false,
        };
        let parts = Parts {
            name: "part",
            first: 0,
            blocks: 10,
        };
        collector.finish(report, parts)
    }

    fn options(cells_max: usize, runs_max: usize) -> UsageOptions {
        UsageOptions {
            cells_max,
            runs_max,
            files_max: 2,
            ..UsageOptions::default()
        }
    }

    #[test]
    fn cells_and_runs_add_up() {
        for runs_max in [0, 2, 100] {
            let mut all = Collector::new(4096, 1000, &options(7, runs_max));
            all.add(Kind::Free, 500, 1_000_000);
            all.add(Kind::File, 10, 100);
            all.add(Kind::File, 110, 5);
            all.add(Kind::Directory, 300, 1);
            let all = usage(all);
            assert_eq!((all.cell_blocks, all.cells.len()), (256, 4));
            assert_eq!(all.cells[3].blocks(), 1000 - 768);
            assert_eq!(all.count(Kind::Free), 500);
            assert_eq!(all.count(Kind::File), 105);
            assert_eq!(all.count(Kind::Unknown), 1000 - 606);
            assert_eq!(all.cells[0].kinds().count(), 2);
            assert!(all.cells[3].kinds().any(|found| found == (Kind::Free, 232)));
            let runs = all.runs.as_deref();
            if runs_max < 100 {
                assert_eq!(runs, None);
                continue;
            }
            let runs: Vec<_> = runs.unwrap().iter().map(|r| (r.first, r.len)).collect();
            let expected = [
                (0, 10),
                (10, 105),
                (115, 185),
                (300, 1),
                (301, 199),
                (500, 500),
            ];
            assert_eq!(runs, expected);
        }
    }

    #[test]
    fn runs_are_given_up_when_there_are_too_many() {
        let mut all = Collector::new(4096, 1 << 20, &options(16, 50));
        for n in 0..10_000 {
            all.add(Kind::File, n * 2, 1);
            assert!(all.runs.as_ref().is_none_or(|runs| runs.len() <= 101));
        }
        let all = usage(all);
        assert_eq!((all.runs, all.cells.len()), (None, 16));
    }

    #[test]
    fn the_worst_files_are_kept() {
        let mut all = Collector::new(4096, 1000, &options(1, 10));
        for (ino, pieces) in [(11, 5), (12, 9), (13, 7), (14, 9), (15, 2)] {
            all.fragmented(FragmentedFile {
                ino,
                pieces,
                blocks: 10,
                first: 1,
            });
        }
        let all = usage(all);
        let kept: Vec<_> = all.fragmented.iter().map(|f| f.ino).collect();
        assert_eq!((kept, all.fragmented_files), (vec![12, 14], 5));
    }
}
