//! Which groups have long free runs, found without looking at all groups.
//!
//! One bitmap over the groups per order; a group is in the bitmap of the order of its longest
//! available run (its best guess while its bitmap is not loaded). Bits are atomics, changed under the
//! lock of the group they speak about and read without any lock, so that allocators in
//! different groups never wait for each other. A reader may see a stale bit: it only costs a look
//! at a group that has less than hoped for.
//!
//! Memory: 20 bits per group, 320 KiB for 16 TiB of 4 KiB blocks.

use super::freemap::ORDERS;
use crate::growing::Growing;
use blockwright_ondisk::ext4::GroupNo;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// A set of group numbers with lock-free search.
struct GroupSet {
    words: Box<[AtomicU64]>,
    /// One bit per word that may be non-zero.
    summary: Box<[AtomicU64]>,
}

fn zeroed(count: usize) -> Box<[AtomicU64]> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

/// First set bit at or after `from` in an array of words.
fn seek(words: &[AtomicU64], from: usize) -> Option<usize> {
    let mut index = from / 64;
    let mut mask = u64::MAX << (from % 64);
    while let Some(word) = words.get(index) {
        let hit = word.load(Ordering::Acquire) & mask;
        if hit != 0 {
            return Some(index * 64 + hit.trailing_zeros() as usize);
        }
        mask = u64::MAX;
        index += 1;
    }
    None
}

impl GroupSet {
    fn new(groups: usize) -> Self {
        let words = groups.div_ceil(64);
        GroupSet {
            words: zeroed(words),
            summary: zeroed(words.div_ceil(64)),
        }
    }

    fn insert(&self, group: usize) {
        self.words[group / 64].fetch_or(1 << (group % 64), Ordering::AcqRel);
        self.summary[group / 4096].fetch_or(1 << (group / 64 % 64), Ordering::AcqRel);
    }

    fn remove(&self, group: usize) {
        let word = &self.words[group / 64];
        let bit = 1u64 << (group % 64);
        if word.fetch_and(!bit, Ordering::AcqRel) & !bit == 0 {
            let summary = &self.summary[group / 4096];
            let bit = 1u64 << (group / 64 % 64);
            summary.fetch_and(!bit, Ordering::AcqRel);
            // Another thread may have inserted between the two steps and must not be lost.
            if word.load(Ordering::Acquire) != 0 {
                summary.fetch_or(bit, Ordering::AcqRel);
            }
        }
    }

    fn next(&self, from: usize) -> Option<usize> {
        let mut index = from / 64;
        let word = self.words.get(index)?.load(Ordering::Acquire) & (u64::MAX << (from % 64));
        if word != 0 {
            return Some(index * 64 + word.trailing_zeros() as usize);
        }
        loop {
            index = seek(&self.summary, index + 1)?;
            let word = self.words.get(index)?.load(Ordering::Acquire);
            if word != 0 {
                return Some(index * 64 + word.trailing_zeros() as usize);
            }
        }
    }
}

/// No available block.
const NONE: u8 = u8::MAX;

/// What is known of this many groups.
struct Table {
    sets: Vec<GroupSet>,
    order: Box<[AtomicU8]>,
    free: Box<[AtomicU32]>,
}

impl Table {
    /// An index of groups that all seem full.
    fn new(groups: u32) -> Self {
        let groups = groups as usize;
        Table {
            sets: (0..ORDERS).map(|_| GroupSet::new(groups)).collect(),
            order: (0..groups).map(|_| AtomicU8::new(NONE)).collect(),
            free: (0..groups).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// Records a group's available blocks and the order of its longest run. Call with the group's
    /// lock held.
    fn set(&self, group: GroupNo, free: u32, order: Option<usize>) {
        let g = group.0 as usize;
        let (Some(slot), Some(count)) = (self.order.get(g), self.free.get(g)) else {
            return;
        };
        count.store(free, Ordering::Release);
        let new = order.map_or(NONE, |o| o.min(ORDERS - 1) as u8);
        let old = slot.swap(new, Ordering::AcqRel);
        if old == new {
            return;
        }
        if let Some(set) = self.sets.get(usize::from(new)) {
            set.insert(g);
        }
        if let Some(set) = self.sets.get(usize::from(old)) {
            set.remove(g);
        }
    }

    /// Available blocks of a group.
    fn free(&self, group: GroupNo) -> u32 {
        self.free
            .get(group.0 as usize)
            .map_or(0, |n| n.load(Ordering::Acquire))
    }

    /// The next group from `from` on, going round once, whose longest run has exactly this order.
    fn groups_of_order(&self, order: usize, from: GroupNo) -> impl Iterator<Item = GroupNo> + '_ {
        let from = (from.0 as usize).min(self.free.len());
        let set = self.sets.get(order);
        let mut at = from;
        let mut wrapped = false;
        std::iter::from_fn(move || {
            loop {
                match set?.next(at) {
                    Some(g) if !wrapped || g < from => {
                        at = g + 1;
                        return Some(GroupNo(g as u32));
                    }
                    _ if wrapped => return None,
                    _ => {
                        wrapped = true;
                        at = 0;
                    }
                }
            }
        })
    }

    /// Bytes this takes.
    #[cfg(test)]
    fn bytes(&self) -> usize {
        self.free.len() * 5 + self.sets.iter().map(|s| s.words.len() * 8).sum::<usize>()
    }
}

/// What is known of every group without its lock.
pub(crate) struct FreeIndex {
    table: Growing<Table>,
}

impl FreeIndex {
    /// An index of groups that all seem full.
    pub(crate) fn new(groups: u32) -> Self {
        FreeIndex {
            table: Growing::new(Table::new(groups)),
        }
    }

    /// Makes room for more groups, which seem full. Entries that other threads set meanwhile may be lost: the caller sets loaded
    /// groups again.
    pub(crate) fn grow(&self, groups: u32) {
        let old = self.table.get();
        let new = Table::new(groups.max(old.free.len() as u32));
        for g in 0..old.free.len() {
            let group = GroupNo(g as u32);
            let order = old.order[g].load(Ordering::Acquire);
            let order = (order != NONE).then_some(usize::from(order));
            new.set(group, old.free(group), order);
        }
        self.table.replace(new);
    }

    /// Records a group's available blocks and the order of its longest run. Call with the group's
    /// lock held.
    pub(crate) fn set(&self, group: GroupNo, free: u32, order: Option<usize>) {
        self.table.get().set(group, free, order);
    }

    /// Available blocks of a group.
    pub(crate) fn free(&self, group: GroupNo) -> u32 {
        self.table.get().free(group)
    }

    /// The next group from `from` on, going round once, whose longest run has exactly this order.
    pub(crate) fn groups_of_order(
        &self,
        order: usize,
        from: GroupNo,
    ) -> impl Iterator<Item = GroupNo> + '_ {
        self.table.get().groups_of_order(order, from)
    }

    /// Bytes this takes.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.table.get().bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_by_order_going_round() {
        let index = FreeIndex::new(10_000);
        for g in [3u32, 64, 5000, 9999] {
            index.set(GroupNo(g), 100, Some(6));
        }
        index.set(GroupNo(7), 9, Some(3));
        let found: Vec<u32> = index.groups_of_order(6, GroupNo(65)).map(|g| g.0).collect();
        assert_eq!(found, [5000, 9999, 3, 64]);
        index.set(GroupNo(5000), 0, None);
        index.set(GroupNo(3), 50, Some(5));
        let found: Vec<u32> = index.groups_of_order(6, GroupNo(0)).map(|g| g.0).collect();
        assert_eq!(found, [64, 9999]);
        assert_eq!(
            index.groups_of_order(5, GroupNo(9999)).next(),
            Some(GroupNo(3))
        );
        assert_eq!(index.groups_of_order(19, GroupNo(0)).next(), None);
        assert_eq!(index.free(GroupNo(7)), 9);
        index.set(GroupNo(10_000), 1, Some(0));
        assert_eq!(index.free(GroupNo(10_000)), 0);
        assert!(index.bytes() < 100_000);
        index.grow(20_000);
        index.set(GroupNo(19_999), 100, Some(6));
        let found: Vec<u32> = index.groups_of_order(6, GroupNo(65)).map(|g| g.0).collect();
        assert_eq!(found, [9999, 19_999, 64]);
        assert_eq!(index.free(GroupNo(7)), 9);
    }

    #[test]
    fn concurrent_changes_lose_nothing() {
        let index = FreeIndex::new(4096);
        std::thread::scope(|s| {
            for t in 0..4u32 {
                let index = &index;
                s.spawn(move || {
                    for round in 0..200usize {
                        for g in (t..256).step_by(4) {
                            index.set(GroupNo(g), 1, Some(round % 2));
                        }
                    }
                });
            }
        });
        assert_eq!(index.groups_of_order(1, GroupNo(0)).count(), 256);
        assert_eq!(index.groups_of_order(0, GroupNo(0)).count(), 0);
    }
}
