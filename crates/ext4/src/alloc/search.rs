//! Finding a run: goal, goal's group, flexible group, index, whatever there is. Files that grow and cannot
//! go on where they are go to the emptiest group near by instead, half-way into its longest run: so that
//! many of them that are written side by side end up with room of their own each, and a file of many
//! extents gets whole groups.
//!
//! Every step looks at group counters first and locks a group only when it promises something.

use super::{AllocRequest, Allocator, FreeMap, Run, order_of};
use crate::Result;
use blockwright_ondisk::ext4::{BlockNo, GroupNo};
use std::sync::atomic::Ordering;

/// From this many blocks on (an eighth of small groups), a file that grows looks for room to grow.
const ROOM_BLOCKS_MIN: u32 = 256;

/// How a group is entered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Enter {
    /// Wait for its lock.
    Wait,
    /// Go elsewhere when another thread allocates in it.
    IfFree,
}

impl Allocator {
    /// Takes a run of at most `len` blocks; `None` when there is not one available block.
    pub(super) fn search(&self, req: &AllocRequest, len: u32) -> Result<Option<Run>> {
        let geo = self.volume.geometry();
        let len = len.clamp(1, geo.blocks_per_group);
        let groups = match req.limit {
            Some(limit) => geo
                .group_of_block(BlockNo(limit.0.saturating_sub(1)))
                .map_or(geo.groups_count, |g| g.0),
            None => geo.groups_count,
        };
        let groups = groups.max(1);
        let goal = geo.split_block(req.goal).filter(|(g, _)| g.0 < groups);
        let (home, offset) = goal.unwrap_or((GroupNo(req.ino.0 % groups), 0));

        let roomy = req.room && len >= ROOM_BLOCKS_MIN.min(geo.blocks_per_group / 8);
        // 1. Exactly at the goal, then in its group behind it.
        if goal.is_some() && self.shared.index.free(home) > 0 {
            let exact = |map: &FreeMap| {
                let run = map.run_at(offset, len);
                // A request for whole groups must not be cut at the end of each group.
                let whole = roomy && len == geo.blocks_per_group && self.has_free_groups(len);
                let short = req.contiguous && !whole;
                (run == len || (run > 0 && short)).then_some((offset, run))
            };
            if let Some(run) = self.take_from(home, Enter::Wait, exact)? {
                self.goal_hits.fetch_add(1, Ordering::Relaxed);
                return Ok(Some(run));
            }
        }
        if roomy && let Some(run) = self.take_roomy(home, groups, len)? {
            return Ok(Some(run));
        }
        let fit = |from: u32| move |map: &FreeMap| Some((map.first_fit(from, len)?, len));
        if self.shared.index.free(home) >= len
            && let Some(run) = self.take_from(home, Enter::Wait, fit(offset))?
        {
            return Ok(Some(run));
        }

        // 2. The goal's flexible group, whose metadata is together.
        let flex = geo.flex_first_group(home).0;
        let flex_len = geo.groups_per_flex.min(64).min(groups.saturating_sub(flex));
        for i in 1..flex_len {
            let g = GroupNo(flex + (home.0 - flex + i) % flex_len);
            if self.shared.index.free(g) >= len
                && let Some(run) = self.take_from(g, Enter::IfFree, fit(0))?
            {
                return Ok(Some(run));
            }
        }

        // 3. Any group with a run long enough: certain from the next order up, possible in this one.
        // Streams go on where the last one ended, so that they fill the volume in one sweep.
        let floor = order_of(len);
        let certain = if len.is_power_of_two() {
            floor
        } else {
            floor + 1
        };
        let from = match u32::try_from(self.stream.load(Ordering::Relaxed)) {
            Ok(stream) if goal.is_none() && stream < groups => GroupNo(stream),
            _ => home,
        };
        for enter in [Enter::IfFree, Enter::Wait] {
            for order in certain..super::freemap::ORDERS {
                for g in self.shared.index.groups_of_order(order, from) {
                    if g.0 < groups
                        && let Some(run) = self.take_from(g, enter, fit(0))?
                    {
                        self.stream.store(u64::from(g.0), Ordering::Relaxed);
                        return Ok(Some(run));
                    }
                }
            }
        }
        if floor < certain {
            let maybe = self.shared.index.groups_of_order(floor, from);
            for g in maybe.take(self.volume.tuning.mb_max_to_scan()) {
                if g.0 < groups
                    && let Some(run) = self.take_from(g, Enter::Wait, fit(0))?
                {
                    return Ok(Some(run));
                }
            }
        }

        // 4. The longest runs left, wherever.
        let longest = |map: &FreeMap| map.best_run(len).map(|(at, run)| (at, run.min(len)));
        for order in (0..=floor).rev() {
            for g in self.shared.index.groups_of_order(order, home) {
                if g.0 < groups
                    && let Some(run) = self.take_from(g, Enter::Wait, longest)?
                {
                    return Ok(Some(run));
                }
            }
        }
        Ok(None)
    }

    /// Whether there is a group that is free from end to end.
    fn has_free_groups(&self, blocks_per_group: u32) -> bool {
        self.shared
            .index
            .groups_of_order(order_of(blocks_per_group), GroupNo(0))
            .next()
            .is_some()
    }

    /// Takes a run where it has room behind it: in the emptiest group from `home` on.
    fn take_roomy(&self, home: GroupNo, groups: u32, len: u32) -> Result<Option<Run>> {
        let fits = order_of(len.next_power_of_two());
        let middle = |map: &FreeMap| {
            let (start, run) = map.best_run(u32::MAX)?;
            let spare = run.checked_sub(len)?;
            // A file may end right before it, and grow; an empty group has no such file.
            let used = map.free() < map.len();
            Some((start + if used { spare / 2 } else { 0 }, len))
        };
        for order in (fits..super::freemap::ORDERS).rev() {
            for g in self.shared.index.groups_of_order(order, home) {
                if g.0 < groups
                    && let Some(run) = self.take_from(g, Enter::IfFree, middle)?
                {
                    return Ok(Some(run));
                }
            }
        }
        Ok(None)
    }

    /// Takes what `choose` picks in a group, waiting for its lock.
    pub(crate) fn take_from_group(
        &self,
        group: GroupNo,
        choose: impl FnOnce(&FreeMap) -> Option<(u32, u32)>,
    ) -> Result<Option<Run>> {
        self.take_from(group, Enter::Wait, choose)
    }

    /// Takes what `choose` picks in a group, if anything.
    fn take_from(
        &self,
        group: GroupNo,
        enter: Enter,
        choose: impl FnOnce(&FreeMap) -> Option<(u32, u32)>,
    ) -> Result<Option<Run>> {
        let group = match self.groups.group(group) {
            Ok(group) => group,
            // Reported when it was found; the volume has other groups.
            Err(e) if e.kind() == crate::ErrorKind::Corrupt => {
                self.shared.index.set(group, 0, None);
                return Ok(None);
            }
            Err(e) => return Err(e),
        };
        let mut st = match enter {
            Enter::Wait => group.lock(),
            Enter::IfFree => match group.try_lock() {
                Some(st) => st,
                None => return Ok(None),
            },
        };
        self.groups_scanned.fetch_add(1, Ordering::Relaxed);
        let Some(map) = self.load_map(group, &mut st)? else {
            return Ok(None);
        };
        let Some((start, len)) = choose(map) else {
            return Ok(None);
        };
        if !map.take(start, len) {
            return Ok(None);
        }
        st.taken += len;
        self.reindex(group, &st);
        let start =
            BlockNo(self.volume.geometry().group_first_block(group.no).0 + u64::from(start));
        Ok(Some(Run { start, len }))
    }
}
