//! The segments in a checkpoint: what it writes of them, and which are free once it is durable.
//!
//! The caller holds the gate exclusively, so nothing changes between what is written and what is called durable.

use super::*;

impl Segments {
    /// Writes summaries of segments that logs have left, and the table where the journal is too small.
    /// Returns the journal; `bitmap` is brought up to date.
    pub(crate) fn flush(&self, batch: &mut WriteBatch, bitmap: &mut VersionBitmap) -> SitJournal {
        self.flush_summaries(batch);
        self.flush_table(batch, bitmap)
    }

    /// Writes summaries of segments that logs have left.
    pub(crate) fn flush_summaries(&self, batch: &mut WriteBatch) {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        for (seg, entries) in std::mem::take(&mut inner.summaries) {
            if inner.is_log(seg) {
                continue;
            }
            let kind = SummaryKind::of(inner.segs.get(seg).log);
            let mut block = SummaryBlock::new(kind);
            if inner.busy.contains_key(&seg) {
                // Their owners are noted when they are committed.
                inner.summaries.insert(seg, entries.clone());
            }
            block.entries = entries.into_all();
            if let Some(at) = self.geo.ssa_block(seg) {
                let bytes = AlignedBuf::copy_of(&block.encode());
                batch.push(DevOffset(u64::from(at.0) << 12), bytes.into());
            }
        }
    }

    fn flush_table(&self, batch: &mut WriteBatch, bitmap: &mut VersionBitmap) -> SitJournal {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let entry = |segs: &SegTable, seg: SegNo| {
            let s = segs.get(seg);
            SitEntry {
                log: s.log,
                valid: s.now,
                mtime: s.mtime,
            }
        };
        if inner.dirty.len() <= SIT_JOURNAL_ENTRIES {
            let list = inner.dirty.iter().map(|s| (*s, entry(&inner.segs, *s)));
            *bitmap = inner.sit_valid.clone();
            return SitJournal(list.collect());
        }
        let per = ENTRIES_PER_BLOCK as u32;
        let blocks: BTreeSet<u32> = inner.dirty.iter().map(|s| s.0 / per).collect();
        for index in blocks {
            let copy = inner.sit_valid.get(index).other();
            let Some(at) = self.geo.sit_block(index, copy) else {
                continue;
            };
            let mut bytes = AlignedBuf::zeroed(BLOCK_SIZE);
            for position in 0..per {
                let seg = index * per + position;
                if seg < self.geo.main_segments {
                    let e = entry(&inner.segs, SegNo(seg));
                    // The position is below the number of entries.
                    let _ = sit::set_entry(&mut bytes, position as usize, &e);
                }
            }
            batch.push(DevOffset(u64::from(at.0) << 12), bytes.into());
            inner.sit_valid.set(index, copy);
        }
        inner.dirty.clear();
        *bitmap = inner.sit_valid.clone();
        SitJournal::default()
    }

    /// Heads of the logs and their summaries, for a pack.
    pub(crate) fn logs(&self) -> Vec<(Log, LogHead, Vec<Summary>)> {
        let inner = self.inner.lock();
        Log::ALL
            .into_iter()
            .map(|log| {
                let head = &inner.logs[index(log)];
                let stored = LogHead {
                    segment: head.seg,
                    offset: head.next,
                    alloc: if head.ssr { ALLOC_SSR } else { ALLOC_LFS },
                };
                (log, stored, head.entries.clone())
            })
            .collect()
    }

    /// The checkpoint is durable: what it does not call valid may be handed out. Returns segments that
    /// became free with it.
    pub(crate) fn checkpointed(&self) -> Vec<SegNo> {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let mut freed = Vec::new();
        (inner.blocks_then, inner.charged, inner.freed) = (inner.counts.blocks, 0, 0);
        for seg in std::mem::take(&mut inner.changed) {
            let Segment { now, then, .. } = inner.segs.get(seg);
            if then == now {
                inner.segs.pack(seg);
                continue;
            }
            inner.segs.get_mut(seg).then = now;
            inner.segs.pack(seg);
            let gone = (0..512).filter(|at| then.get(*at) && !now.get(*at));
            self.held.fetch_sub(gone.count() as u64, Ordering::Relaxed);
            let was = inner.free.contains(seg);
            self.refresh_free(inner, seg);
            if !was && inner.free.contains(seg) {
                freed.push(seg);
            }
        }
        freed
    }
}
