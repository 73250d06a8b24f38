//! [`Commits`]: makes writes visible, with blocks, extents, size and inode, once the data is on the device.
//!
//! It owns nothing but its references. It calls the block allocator, `map`, `Inodes` and `Delayed`. It never takes blocks and never
//! writes data.
//!
//! Many writes are made visible together: all that fit in one journal handle, sorted by file and offset. Those of one file
//! share its lock and one store of the inode; extents that belong in the same leaf are put there by one edit (one
//! checksum); blocks of one group are marked by one edit of its bitmap. Neighbours in one file are one stretch, which
//! fails or succeeds as a whole.
//!
//! # Crash order
//! An extent, the bits of its blocks and the size that shows it are in one handle, so in one transaction. A batch may end up
//! in several transactions, in file order: each leaves a file without a hole where none will be.
//!
//! # Locks
//! A handle, then one inode's `map` after the other, then the groups.

use super::delayed::{Delayed, pending_in, split_pending};
use crate::Result;
use crate::alloc::{Allocator, Run};
use crate::inode::{Ext4Inode, Inodes, MapState, PendingRun, ext4};
use crate::journal::Handle;
use crate::map::extents::{Extent, Tree};
use crate::map::{BlockState, Mapper, Maps};
use crate::quota::Quota;
use crate::volume::Volume;
use blockwright_ondisk::ext4::{BlockNo, FileBlock};
use blockwright_vfs::Inode;
use blockwright_vfs::engine::{CommitWrite, WriteTarget};
use std::cell::Cell;

/// The most extents that are put into a tree together.
const TOGETHER_MAX: usize = 64;
/// The most groups that one such step marks blocks in.
const GROUPS_MAX: usize = 4;

/// Neighbours in one file, and how far they are visible.
struct Stretch<'a> {
    /// Places in the list of writes.
    members: Vec<usize>,
    inode: &'a Inode,
    target: WriteTarget,
    data_end: u64,
    /// File blocks.
    at: u64,
    end: u64,
}

impl Stretch<'_> {
    fn is_of(&self, inode: &Inode) -> bool {
        std::ptr::eq(self.inode, inode)
    }
}

blockwright_vfs::part! {
    /// See the module's head.
    pub struct Commits {
        volume: Volume,
        alloc: Allocator,
        quota: Quota,
        inodes: Inodes,
        maps: Maps,
        delayed: Delayed,
    }
}

impl Commits {
    fn stretch<'a>(&self, inode: &'a Inode, target: &WriteTarget, data_end: u64) -> Stretch<'a> {
        let bytes = target.offset..target.offset.saturating_add(target.bytes);
        let blocks = self.volume.block_range(&bytes);
        Stretch {
            members: Vec::new(),
            inode,
            target: *target,
            data_end,
            at: blocks.start,
            end: blocks.end,
        }
    }

    /// Sorts writes by file and offset, and joins neighbours.
    fn stretches<'a>(&self, writes: &[CommitWrite<'a>]) -> Vec<Stretch<'a>> {
        let mut order: Vec<usize> = (0..writes.len()).collect();
        order.sort_by_key(|k| (writes[*k].inode.ino(), writes[*k].target.offset));
        let mut out: Vec<Stretch<'a>> = Vec::with_capacity(writes.len());
        for k in order {
            let w = &writes[k];
            let next = self.stretch(w.inode, w.target, w.data_end);
            match out.last_mut() {
                Some(last) if last.is_of(w.inode) && last.end == next.at => {
                    last.target.bytes += w.target.bytes;
                    last.data_end = last.data_end.max(w.data_end);
                    last.end = next.end;
                    last.members.push(k);
                }
                _ => out.push(Stretch {
                    members: vec![k],
                    ..next
                }),
            }
        }
        out
    }

    /// [`blockwright_vfs::engine::Data::commit_writes`].
    pub fn commit_writes(&self, writes: &[CommitWrite<'_>]) -> Vec<Result<()>> {
        let mut results: Vec<Result<()>> = writes.iter().map(|_| Ok(())).collect();
        let mut todo = self.stretches(writes);
        self.commit_stretches(&mut todo, |members, error| {
            for k in members {
                results[*k] = Err(error.clone());
            }
        });
        results
    }

    /// [`blockwright_vfs::engine::Data::commit_write`].
    ///
    /// # Errors
    /// As there.
    pub fn commit_write(&self, inode: &Inode, target: &WriteTarget, data_end: u64) -> Result<()> {
        let mut result = Ok(());
        let mut todo = [self.stretch(inode, target, data_end)];
        self.commit_stretches(&mut todo, |_, error| result = Err(error));
        result
    }

    /// Makes all stretches visible, telling of those that fail.
    fn commit_stretches(
        &self,
        todo: &mut [Stretch<'_>],
        mut failed: impl FnMut(&[usize], crate::Error),
    ) {
        let mut left = todo;
        while !left.is_empty() {
            let mut done = 0;
            let promised = Cell::new(false);
            let outcome = self.delayed.keep_promise(
                || promised.get(),
                || {
                    while done < left.len() {
                        let (more, result) = self.commit_in_handle(&mut left[done..]);
                        done += more;
                        if result.is_err()
                            && let Some(bad) = left.get(done)
                        {
                            let map = ext4(bad.inode).map.read();
                            let mut runs = pending_in(&map, &(bad.at..bad.end));
                            promised.set(runs.any(|(_, run)| run.was_delayed));
                        }
                        result?;
                    }
                    Ok(())
                },
            );
            left = &mut left[done..];
            let (Err(error), Some(bad)) = (outcome, left.first()) else {
                return;
            };
            // The rest of it is not written again: its blocks are holes again.
            self.delayed.abandon_write(bad.inode, &bad.target);
            failed(&bad.members, error);
            left = &mut left[1..];
        }
    }

    /// Makes as many stretches visible as fit one handle: how many, and why the next one was not if that is an error.
    fn commit_in_handle(&self, todo: &mut [Stretch<'_>]) -> (usize, Result<()>) {
        let Some(first) = todo.first() else {
            return (0, Ok(()));
        };
        let credits = {
            let e = ext4(first.inode);
            self.commit_credits(e, &e.map.read()) + 1
        };
        let h = match self
            .volume
            .journal
            .start(credits.saturating_mul(2), "commit write")
        {
            Ok(h) => h,
            Err(error) => return (0, Err(error)),
        };
        let mut done = 0;
        while let Some(first) = todo.get(done) {
            let inode = first.inode;
            let of_inode = todo[done..].iter().take_while(|s| s.is_of(inode)).count();
            let (more, result) = self.commit_inode(&h, inode, &mut todo[done..done + of_inode]);
            done += more;
            if more < of_inode || result.is_err() {
                return (done, result);
            }
        }
        (done, Ok(()))
    }

    /// Credits for one step, and for storing the inode after it.
    fn commit_credits(&self, e: &Ext4Inode, map: &MapState) -> u32 {
        Mapper::new(&self.alloc, e, map).insert_credits(map) + self.quota.credits() + 1
    }

    /// As [`Commits::commit_in_handle`], for stretches of one inode.
    fn commit_inode(
        &self,
        h: &Handle<'_>,
        inode: &Inode,
        todo: &mut [Stretch<'_>],
    ) -> (usize, Result<()>) {
        let e = ext4(inode);
        let bits = self.volume.geometry().block_bits;
        let mut map = e.map.write();
        let (mut done, mut changed) = (0, false);
        let mut result = Ok(());
        while done < todo.len() {
            let need = self.commit_credits(e, &map) + 1 + 2 * GROUPS_MAX as u32;
            // A fresh handle has enough for one step alone.
            let roomy = h.has_credits(need) || h.extend(need.saturating_mul(4)) || h.extend(need);
            if !roomy && (changed || !h.has_credits(self.commit_credits(e, &map))) {
                break;
            }
            changed = true;
            let together = match roomy {
                true => self.commit_together(h, e, &mut map, &mut todo[done..]),
                false => Ok(()),
            };
            let s = &mut todo[done];
            let step = together.and_then(|()| {
                if s.at < s.end {
                    s.at = self.commit_step(h, e, &mut map, s.at, s.end)?;
                }
                Ok(())
            });
            // Up to where it is visible, whatever else happened.
            let ready = todo[done..].iter().take_while(|s| s.at >= s.end).count();
            for s in &todo[done..(done + ready + 1).min(todo.len())] {
                if s.at > s.target.offset >> bits {
                    map.disk_size = map.disk_size.max(s.data_end.min(s.at << bits));
                }
            }
            done += ready;
            if let Err(error) = step {
                result = Err(error);
                break;
            }
        }
        if changed {
            let stored = self.inodes.store_locked(h, inode, &map);
            self.maps.show_blocks(inode, &map);
            result = result.and(stored);
        }
        (done, result)
    }

    /// Makes the first blocks of stretches visible whose extents go into one leaf, as far as that can be done by one edit.
    fn commit_together(
        &self,
        h: &Handle<'_>,
        e: &Ext4Inode,
        map: &mut MapState,
        todo: &mut [Stretch<'_>],
    ) -> Result<()> {
        let mapper = Mapper::new(&self.alloc, e, map);
        let Mapper::Extents(tree) = &mapper else {
            return Ok(());
        };
        let pieces = self.pieces(map, todo);
        if pieces.len() < 2 {
            return Ok(());
        }
        let extents: Vec<Extent> = pieces
            .iter()
            .map(|(_, at, p)| Extent {
                logical: FileBlock(*at),
                physical: p.block,
                len: p.len,
                unwritten: false,
            })
            .collect();
        let (path, n) = tree.leaf_room(map, &extents)?;
        if n < 2 {
            return Ok(());
        }
        let runs: Vec<Run> = pieces[..n]
            .iter()
            .map(|(_, _, p)| Run {
                start: p.block,
                len: p.len,
            })
            .collect();
        // Marked first: an error here leaves no extent whose blocks count as free.
        self.alloc.mark_used_runs(h, &runs)?;
        tree.insert_leaf(h, map, &path, &extents[..n])?;
        for (k, at, piece) in &pieces[..n] {
            self.now_visible(map, *at, piece);
            todo[*k].at = at + u64::from(piece.len);
        }
        Ok(())
    }

    /// The runs with which the first stretches begin: index of the stretch, first file block, and run. They lie in at most [`GROUPS_MAX`] groups.
    fn pieces(&self, map: &MapState, todo: &[Stretch<'_>]) -> Vec<(usize, u64, PendingRun)> {
        let mut pieces = Vec::new();
        let mut groups = smallvec::SmallVec::<[_; GROUPS_MAX]>::new();
        for (k, s) in todo.iter().enumerate() {
            let mut at = s.at;
            for (start, p) in pending_in(map, &(s.at..s.end)) {
                if start > at || pieces.len() >= TOGETHER_MAX {
                    return pieces;
                }
                let skip = at - start;
                let piece = PendingRun {
                    block: BlockNo(p.block.0 + skip),
                    len: (u64::from(p.len) - skip).min(s.end - at) as u32,
                    ..p
                };
                let last = BlockNo(piece.block.0 + u64::from(piece.len) - 1);
                for block in [piece.block, last] {
                    let group = self.volume.geometry().group_of_block(block);
                    if !groups.contains(&group) {
                        groups.push(group);
                    }
                }
                if groups.len() > GROUPS_MAX {
                    return pieces;
                }
                at += u64::from(piece.len);
                pieces.push((k, at - u64::from(piece.len), piece));
            }
            if at < s.end {
                break;
            }
        }
        pieces
    }

    /// Makes what is at `at` visible; returns where to go on.
    fn commit_step(
        &self,
        h: &Handle<'_>,
        e: &Ext4Inode,
        map: &mut MapState,
        at: u64,
        end: u64,
    ) -> Result<u64> {
        let mapper = Mapper::new(&self.alloc, e, map);
        let pending = pending_in(map, &(at..at + 1)).next();
        let Some((start, p)) = pending else {
            let found = mapper.find(e.ino, map, FileBlock(at), end - at)?;
            let stop = at.saturating_add(found.len).min(end);
            return match found.state {
                BlockState::Unwritten(_) => {
                    let tree = Tree::new(&self.alloc, e.ino, e.seed);
                    let next = tree.convert_step(h, map, FileBlock(at), FileBlock(stop), false)?;
                    Ok(next.0.min(end))
                }
                // A concurrent writer of the same blocks was faster.
                _ => Ok(stop),
            };
        };
        let skip = at - start;
        let run = Run {
            start: BlockNo(p.block.0 + skip),
            len: (u64::from(p.len) - skip).min(end - at) as u32,
        };
        let n = mapper.insert_some(h, map, FileBlock(at), run, false)?;
        let done = Run { len: n, ..run };
        self.alloc.mark_used_runs(h, &[done])?;
        let piece = PendingRun {
            block: done.start,
            len: n,
            ..p
        };
        self.now_visible(map, at, &piece);
        Ok(at + u64::from(n))
    }

    /// Blocks of a pending run are in the tree and in the bitmap.
    fn now_visible(&self, map: &mut MapState, at: u64, piece: &PendingRun) {
        let stop = at + u64::from(piece.len);
        map.blocks = map
            .blocks
            .saturating_add(u64::from(piece.len) * self.volume.block_units());
        split_pending(map, at);
        split_pending(map, stop);
        map.pending.remove(&FileBlock(at));
        if piece.was_delayed {
            // The data's claim went into the bitmap; the metadata's is free now.
            self.delayed.drop_delayed(map, at..stop, false);
        } else {
            map.pending_direct -= u64::from(piece.len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inode::Purpose;
    use crate::testing::Parts;
    use blockwright_ondisk::ext4::{Ino, InodeFlags};
    use blockwright_vfs::engine::Intent;
    use blockwright_vfs::types::{FileKind, NewInode, Timestamp};
    use std::sync::Arc;

    struct Written {
        parts: Parts,
        delayed: Arc<Delayed>,
        file: Arc<Inode>,
        target: WriteTarget,
    }

    /// A file with four blocks that were reserved and found, and whose data could be written now.
    fn before_the_commit() -> Written {
        let p = Parts::new();
        let delayed = Arc::new(Delayed::new(&p.volume, &p.alloc, &p.quota, &p.maps));
        let root = p.stored.load_for(Ino::ROOT, Purpose::User).expect("root");
        let new = NewInode {
            kind: FileKind::Regular,
            perm: 0o644,
            uid: 0,
            gid: 0,
            rdev: 0,
            symlink: Vec::new(),
            now: Timestamp::default(),
            xattrs: Vec::new(),
        };
        let h = p.volume.journal.start(16, "create").expect("handle");
        let file = p.inodes.create(&h, &root, &new, 1, InodeFlags::empty());
        let file = file.expect("an inode");
        drop(h);
        let bytes = 4 * p.volume.block_bytes() as u64;
        let reserved = delayed.reserve_hole(&file, 0..bytes).expect("room");
        assert_eq!(reserved, Some(true), "all of it was a hole");
        let target = delayed
            .allocate(&file, 0..bytes, bytes, Intent::Writeback)
            .expect("promised");
        assert_eq!(target.bytes, bytes, "an empty volume has a run");
        Written {
            parts: p,
            delayed,
            file,
            target,
        }
    }

    fn claimed(p: &Parts) -> u64 {
        let counters = p.alloc.counters();
        let found = counters.iter().find(|(n, _)| n == "alloc_blocks_claimed");
        found.expect("counted").1
    }

    #[test]
    fn blocks_are_visible_from_the_commit_on() {
        let w = before_the_commit();
        let (p, target) = (&w.parts, &w.target);
        let free = p.volume.sb.free_blocks();
        let state = || p.maps.lookup(&w.file, FileBlock(0), 4).expect("lookup").0;
        assert_eq!(state(), BlockState::Delayed);
        assert_eq!(claimed(p), 4);
        let commits = Commits::new(
            &p.volume, &p.alloc, &p.quota, &p.inodes, &p.maps, &w.delayed,
        );
        let end = target.bytes;
        commits
            .commit_write(&w.file, target, end)
            .expect("committed");
        let block = target.device.expect("blocks").0 / p.volume.block_bytes() as u64;
        assert_eq!(state(), BlockState::Mapped(BlockNo(block)));
        assert_eq!((p.volume.sb.free_blocks(), claimed(p)), (free - 4, 0));
        assert_eq!(ext4(&w.file).map.read().disk_size, end);
    }

    #[test]
    fn an_abandoned_write_leaves_nothing_behind() {
        let w = before_the_commit();
        w.delayed.abandon_write(&w.file, &w.target);
        w.delayed.release_blocks_in_memory(&w.file);
        let (state, _) = w
            .parts
            .maps
            .lookup(&w.file, FileBlock(0), 4)
            .expect("lookup");
        assert_eq!(state, BlockState::Hole);
        assert_eq!(claimed(&w.parts), 0);
    }
}
