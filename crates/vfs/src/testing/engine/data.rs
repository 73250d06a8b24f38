//! Mappings in memory; the data is on the device.

use crate::engine::{Data, FallocMode, Intent, Mapping, Place, WriteTarget};
use crate::error::{ErrorKind, Result};
use crate::inode::Inode;
use crate::testing::{Contents, MemEngine, State};
use crate::types::Timestamp;
use blockwright_device::DevOffset;
use std::ops::Range;
use std::sync::Arc;

impl Data for MemEngine {
    fn file_bytes_max(&self, _inode: &Inode) -> u64 {
        1 << 44
    }

    fn map(&self, inode: &Arc<Inode>, offset: u64, bytes: u64) -> Result<Mapping> {
        let block = self.block();
        let mut v = self.volume.lock();
        let file = Self::file(&mut v, inode);
        let generation = file.generation;
        if file.inline.is_some() {
            return Ok(Mapping::of_inline(offset, block, generation));
        }
        let place = |u: u64| match file.blocks.get(&u) {
            Some((p, State::Written)) => Place::Mapped(DevOffset(p * block)),
            Some((p, State::Unwritten)) => Place::Unwritten(DevOffset(p * block)),
            None if file.delayed.contains(&u) || file.pending.contains_key(&u) => Place::Delayed,
            None => Place::Hole,
        };
        let first = offset / block;
        let start = place(first);
        let stop = offset.saturating_add(bytes.max(1)).div_ceil(block);
        let next = |p: Place, i: u64| match p {
            Place::Mapped(d) => Place::Mapped(DevOffset(d.0 + i * block)),
            Place::Unwritten(d) => Place::Unwritten(DevOffset(d.0 + i * block)),
            other => other,
        };
        let last = file
            .blocks
            .keys()
            .next_back()
            .max(file.delayed.last())
            .max(file.pending.keys().next_back())
            .copied();
        if last.is_none_or(|l| l < first) {
            return Ok(Mapping {
                offset: first * block,
                bytes: (u64::MAX / block - first) * block,
                place: Place::Hole,
                generation,
            });
        }
        let mut n = 1;
        while first + n < stop && place(first + n) == next(start, n) {
            n += 1;
        }
        Ok(Mapping {
            offset: first * block,
            bytes: n * block,
            place: start,
            generation,
        })
    }

    fn extent_in_place(&self, inode: &Arc<Inode>, at: u64, bytes: u64) -> Result<Option<Mapping>> {
        let mut m = self.map(inode, at, bytes)?;
        let mut v = self.volume.lock();
        let disk_size = Self::file(&mut v, inode).disk_size;
        m.bytes = disk_size.min(m.offset + m.bytes).saturating_sub(m.offset);
        let holds = |m: &Mapping| matches!(m.place, Place::Mapped(_)) && m.offset + m.bytes > at;
        Ok(Some(m).filter(holds))
    }

    fn read_inline(&self, inode: &Arc<Inode>) -> Result<Vec<u8>> {
        let mut v = self.volume.lock();
        Ok(Self::file(&mut v, inode).inline.clone().unwrap_or_default())
    }

    fn allocate(
        &self,
        inode: &Arc<Inode>,
        range: Range<u64>,
        data_end: u64,
        intent: Intent,
    ) -> Result<WriteTarget> {
        self.writable()?;
        let block = self.block();
        let units = self.units(&range);
        let mut v = self.volume.lock();
        let Contents {
            files,
            free,
            reserved,
            ..
        } = &mut *v;
        let file = files.get_mut(&inode.ino()).expect("in use");
        if file.inline.is_some() {
            if data_end <= self.options.inline_bytes_max {
                if file.delayed.remove(&0) {
                    *reserved -= 1;
                }
                return Ok(WriteTarget {
                    offset: range.start,
                    bytes: range.end - range.start,
                    device: None,
                    commit: false,
                    fresh: false,
                });
            }
            let held = file.inline.as_ref().is_some_and(|b| !b.is_empty());
            assert!(
                units.start == 0 || !held || file.blocks.contains_key(&0),
                "inline data leaves the inode with the first block"
            );
            file.inline = None;
        }
        let limit = (self.options.allocate_bytes_max / block).max(1);
        let grows = range.start < data_end && {
            let end = data_end.min(range.end);
            end > file.disk_size
        };
        for u in units.clone() {
            assert!(
                !file.pending.contains_key(&u),
                "two writebacks of block {u} of {inode:?}"
            );
        }
        let first = units.start;
        let want = (units.end - first).min(limit);
        if let Some((p, state)) = file.blocks.get(&first).copied() {
            let mut n = 1;
            while n < want && file.blocks.get(&(first + n)) == Some(&(p + n, state)) {
                n += 1;
            }
            let commit = state == State::Unwritten || grows;
            if commit {
                for u in first..first + n {
                    file.pending.insert(u, None);
                }
                let mut written = self.device.written.lock();
                for q in p..p + n {
                    written.remove(&q);
                }
            }
            return Ok(WriteTarget {
                offset: range.start,
                bytes: n * block,
                device: Some(DevOffset(p * block)),
                commit,
                fresh: false,
            });
        }
        let mut n = 0;
        while n < want && !file.blocks.contains_key(&(first + n)) {
            if intent == Intent::Writeback {
                assert!(
                    file.delayed.contains(&(first + n)),
                    "block {} of {inode:?} is written back without reservation",
                    first + n
                );
            }
            n += 1;
        }
        if intent == Intent::Direct && free.len() as u64 - *reserved < n {
            n = free.len() as u64 - *reserved;
            if n == 0 {
                return Err(ErrorKind::NoSpace.into());
            }
        }
        let after = first
            .checked_sub(1)
            .and_then(|u| {
                file.blocks
                    .get(&u)
                    .map(|b| b.0)
                    .or(file.pending.get(&u).copied().flatten())
            })
            .map(|p| p + 1);
        let (p, n) = Self::take_run(free, n, after).ok_or(ErrorKind::NoSpace)?;
        let mut written = self.device.written.lock();
        for i in 0..n {
            if file.delayed.remove(&(first + i)) {
                *reserved -= 1;
            }
            file.pending.insert(first + i, Some(p + i));
            written.remove(&(p + i));
        }
        Ok(WriteTarget {
            offset: range.start,
            bytes: n * block,
            device: Some(DevOffset(p * block)),
            commit: true,
            fresh: true,
        })
    }

    fn allocate_nowait(
        &self,
        inode: &Arc<Inode>,
        range: &Range<u64>,
        data_end: u64,
    ) -> Option<WriteTarget> {
        let holds_nothing = {
            let units = self.units(range);
            let mut v = self.volume.lock();
            let file = Self::file(&mut v, inode);
            let clear = |u: u64| {
                !file.blocks.contains_key(&u)
                    && !file.pending.contains_key(&u)
                    && !file.delayed.contains(&u)
            };
            let open = !file.disk_size.is_multiple_of(self.block());
            file.inline.is_none() && !open && units.clone().all(clear)
        };
        if !self.options.preallocated || !holds_nothing || range.end > self.file_bytes_max(inode) {
            return None;
        }
        let target = self
            .allocate(inode, range.clone(), data_end, Intent::Direct)
            .ok()?;
        if target.bytes == range.end - range.start {
            return Some(target);
        }
        self.abandon_write(inode, &target);
        None
    }

    fn commit_write(&self, inode: &Arc<Inode>, target: &WriteTarget, data_end: u64) -> Result<()> {
        assert!(target.commit);
        let block = self.block();
        let mut v = self.volume.lock();
        let file = Self::file(&mut v, inode);
        let written = self.device.written.lock();
        for u in target.offset / block..(target.offset + target.bytes) / block {
            let p = match file.pending.remove(&u) {
                Some(Some(p)) => p,
                Some(None) => file.blocks[&u].0,
                None => panic!("block {u} of {inode:?} was not allocated"),
            };
            assert!(
                written.contains(&p),
                "block {u} of {inode:?} is committed before it is written"
            );
            file.blocks.insert(u, (p, State::Written));
        }
        drop(written);
        file.disk_size = file
            .disk_size
            .max(data_end.min(target.offset + target.bytes));
        Self::refresh_blocks(inode, file, block);
        Ok(())
    }

    fn commits_at_once(&self) -> bool {
        self.options.preallocated
    }

    fn abandon_write(&self, inode: &Arc<Inode>, target: &WriteTarget) {
        assert!(target.commit);
        let block = self.block();
        let mut v = self.volume.lock();
        let Contents { files, free, .. } = &mut *v;
        let file = files.get_mut(&inode.ino()).expect("in use");
        for u in target.offset / block..(target.offset + target.bytes) / block {
            if let Some(Some(p)) = file.pending.remove(&u) {
                free.insert(p);
            }
        }
    }

    fn open_end(&self, inode: &Arc<Inode>) -> Option<u64> {
        let block = self.block();
        let mut v = self.volume.lock();
        let file = Self::file(&mut v, inode);
        let open = file.inline.is_none() && !file.disk_size.is_multiple_of(block);
        open.then_some(file.disk_size)
    }

    fn write_inline(&self, inode: &Arc<Inode>, bytes: &[u8], data_end: u64) -> Result<bool> {
        assert!(bytes.len() as u64 <= self.options.inline_bytes_max);
        let mut v = self.volume.lock();
        let Contents {
            files, reserved, ..
        } = &mut *v;
        let file = files.get_mut(&inode.ino()).expect("in use");
        if self
            .outgrow_inline
            .swap(false, std::sync::atomic::Ordering::Relaxed)
        {
            file.inline = None;
            if file.delayed.insert(0) {
                *reserved += 1;
            }
        }
        if file.inline.is_none() {
            return Ok(false);
        }
        file.inline = Some(bytes.to_vec());
        file.disk_size = data_end;
        Ok(true)
    }

    fn truncate(&self, inode: &Arc<Inode>, size: u64, now: Timestamp) -> Result<()> {
        self.writable()?;
        Self::locked_exclusively(inode);
        assert!(
            inode.invalidate.try_read().is_none(),
            "invalidate is held exclusively"
        );
        let block = self.block();
        let cut = size.div_ceil(block);
        assert!(
            !inode.pages.lock().holds(cut * block..u64::MAX, block),
            "pages behind the new end are gone"
        );
        let mut v = self.volume.lock();
        let file = Self::file(&mut v, inode);
        let grew_out = size > self.options.inline_bytes_max;
        if let Some(inline) = &mut file.inline {
            if grew_out {
                assert!(
                    inline.is_empty() || file.delayed.contains(&0),
                    "inline data is in the cache when its file outgrows the inode"
                );
                file.inline = None;
            } else {
                inline.resize((size as usize).min(inline.len()), 0);
            }
        }
        if size <= inode.size() {
            Self::free_range(&mut v, inode.ino(), cut..u64::MAX);
        }
        let file = Self::file(&mut v, inode);
        file.disk_size = size;
        Self::refresh_blocks(inode, file, block);
        inode.update_attr(|a| {
            a.size = size;
            a.mtime = now;
            a.ctime = now;
        });
        Ok(())
    }

    fn fallocate(
        &self,
        inode: &Arc<Inode>,
        range: Range<u64>,
        mode: FallocMode,
        _now: Timestamp,
    ) -> Result<()> {
        self.writable()?;
        Self::locked_exclusively(inode);
        assert!(inode.invalidate.try_read().is_none());
        let block = self.block();
        let outer = range.start / block..range.end.div_ceil(block);
        assert!(
            !inode
                .pages
                .lock()
                .holds(outer.start * block..outer.end * block, block),
            "pages of the range are gone"
        );
        let inner = range.start.div_ceil(block)..range.end / block;
        let mut v = self.volume.lock();
        if Self::file(&mut v, inode).inline.is_some() {
            return Err(ErrorKind::Unsupported.into());
        }
        let size = inode.size();
        let mut new_size = size;
        match mode {
            FallocMode::PunchHole => {
                if !inner.is_empty() {
                    Self::free_range(&mut v, inode.ino(), inner);
                }
            }
            FallocMode::Allocate { keep_size } | FallocMode::ZeroRange { keep_size } => {
                let zero = matches!(mode, FallocMode::ZeroRange { .. });
                let Contents {
                    files,
                    free,
                    reserved,
                    ..
                } = &mut *v;
                let file = files.get_mut(&inode.ino()).expect("in use");
                for u in outer {
                    if let Some(b) = file.blocks.get_mut(&u) {
                        if zero && inner.contains(&u) {
                            b.1 = State::Unwritten;
                        }
                    } else if !file.delayed.contains(&u) {
                        if free.len() as u64 <= *reserved {
                            return Err(ErrorKind::NoSpace.into());
                        }
                        let (p, _) = Self::take_run(free, 1, None).ok_or(ErrorKind::NoSpace)?;
                        file.blocks.insert(u, (p, State::Unwritten));
                    }
                }
                if !keep_size {
                    new_size = size.max(range.end);
                }
            }
            FallocMode::CollapseRange | FallocMode::InsertRange => {
                let n = outer.end - outer.start;
                if mode == FallocMode::CollapseRange {
                    Self::free_range(&mut v, inode.ino(), outer.clone());
                    new_size = size - n * block;
                } else {
                    new_size = size + n * block;
                }
                let file = Self::file(&mut v, inode);
                assert!(file.delayed.range(outer.start..).next().is_none());
                assert!(file.pending.is_empty());
                let tail = file.blocks.split_off(&outer.start);
                for (u, b) in tail {
                    let to = if mode == FallocMode::CollapseRange {
                        u - n
                    } else {
                        u + n
                    };
                    file.blocks.insert(to, b);
                }
            }
        }
        let file = Self::file(&mut v, inode);
        file.generation += 1;
        if new_size != size {
            file.disk_size = new_size;
        }
        Self::refresh_blocks(inode, file, block);
        inode.update_attr(|a| a.size = new_size);
        Ok(())
    }
}
