//! Which sections hold garbage, and how much: an order kept beside the counts, so that no choice has to look at all sections.
//!
//! Changed sections are noted. They are put in order when a victim is chosen, or when many have gathered. So the change of a block
//! costs next to nothing. The choice of a victim looks at the sections that changed since, and at few others,
//! however large the volume is.
//!
//! # Invariants
//! * Every section whose state here may be wrong is in `stale`.
//! * `order` and `places` hold the same sections: those that cleaning would gain something from. `emptied` holds those in use that
//!   have no valid block.

use super::Inner;
use hashbrown::{HashMap, HashSet};
use std::collections::BTreeSet;

/// Sections that changed before they are put in order in any case.
const STALE_MAX: usize = 256;
/// Fractions of a section that are distinguished.
const LEVELS: u64 = 512;

/// A section's place in the order: how much of it is valid, when it was last written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Place {
    level: u16,
    mtime: u32,
}

/// See the module's head.
#[derive(Default)]
pub(super) struct Garbage {
    order: BTreeSet<(Place, u32)>,
    places: HashMap<u32, Place>,
    emptied: HashSet<u32>,
    stale: HashSet<u32>,
    /// Sections looked at since the mount.
    #[cfg(test)]
    pub(super) looked_at: std::cell::Cell<u64>,
}

/// What there is to know of a section.
struct State {
    in_use: bool,
    movable: bool,
    valid: u64,
    mtime: u64,
}

impl Garbage {
    /// Notes that a section changed. Whether it is time to put those in order.
    pub(super) fn note(&mut self, section: u32) -> bool {
        self.stale.insert(section);
        self.stale.len() >= STALE_MAX
    }

    fn put(&mut self, section: u32, state: &State, capacity: u64) {
        self.look();
        if let Some(place) = self.places.remove(&section) {
            self.order.remove(&(place, section));
        }
        if !state.in_use || state.valid > 0 {
            self.emptied.remove(&section);
        } else {
            self.emptied.insert(section);
        }
        if state.in_use && state.movable && is_worth_it(state.valid, capacity) {
            let place = Place {
                level: (state.valid * LEVELS / capacity) as u16,
                mtime: u32::try_from(state.mtime).unwrap_or(u32::MAX),
            };
            self.places.insert(section, place);
            self.order.insert((place, section));
        }
    }

    fn look(&self) {
        #[cfg(test)]
        self.looked_at.set(self.looked_at.get() + 1);
    }

    /// Sections with garbage, those with the most first; of several with as much, those first that were written longest ago.
    pub(super) fn most_first(&self) -> impl Iterator<Item = u32> {
        self.order.iter().map(|(_, section)| {
            self.look();
            *section
        })
    }

    /// For each amount of garbage the section that was written longest ago and is `fit`, those with the most first.
    pub(super) fn oldest_of_each(&self, fit: impl Fn(u32) -> bool) -> impl Iterator<Item = u32> {
        let mut level = 0;
        let next = move || {
            let from = Place { level, mtime: 0 };
            let first = self.order.range((from, 0)..).find(|(place, section)| {
                self.look();
                // Only the first of the next level is of interest.
                level = place.level;
                fit(*section)
            })?;
            level = first.0.level + 1;
            Some(first.1)
        };
        std::iter::from_fn(next)
    }

    /// Sections in use that hold nothing valid.
    pub(super) fn emptied(&self) -> impl Iterator<Item = u32> {
        self.emptied.iter().copied()
    }
}

/// Whether something is won by cleaning a section. A segment without valid blocks is free after the next
/// checkpoint.
pub(super) fn is_worth_it(valid: u64, capacity: u64) -> bool {
    valid > 0 && valid + (capacity / 64).max(8) <= capacity
}

impl Inner {
    /// Puts every section in order, at mount.
    pub(super) fn sort_all_garbage(&mut self, per: u32) {
        let used: Vec<u32> = {
            let all = self.used_sections.iter_from(super::SegNo(0)).map(|s| s.0);
            let capacity = u64::from(per) * u64::from(super::BLOCKS_PER_SEG);
            // Most are full of valid blocks, and need no place in the order.
            let of_interest = |s: &u32| {
                let valid = u64::from(self.valid_in[*s as usize]);
                valid == 0 || is_worth_it(valid, capacity)
            };
            all.filter(of_interest).collect()
        };
        for section in used {
            if self.garbage.note(section) {
                self.sort_garbage(per);
            }
        }
        self.sort_garbage(per);
    }

    /// Puts sections that changed in order; `per` are the segments of a section.
    pub(super) fn sort_garbage(&mut self, per: u32) {
        let capacity = u64::from(per) * u64::from(super::BLOCKS_PER_SEG);
        let stale = std::mem::take(&mut self.garbage.stale);
        for section in &stale {
            let first = section * per;
            let mtime = (first..first + per).map(|s| self.segs.get(super::SegNo(s)).mtime);
            let state = State {
                in_use: self.used_in[*section as usize] > 0,
                movable: !self.unmovable.contains(section),
                valid: u64::from(self.valid_in[*section as usize]),
                mtime: mtime.max().unwrap_or(0),
            };
            self.garbage.put(*section, &state, capacity);
        }
        // Its memory is used again.
        self.garbage.stale = stale;
        self.garbage.stale.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: u64 = 512;

    fn random(seed: &mut u64) -> u64 {
        // An LCG's upper half: any spread will do.
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *seed >> 33
    }

    fn state(valid: u64, mtime: u64) -> State {
        State {
            in_use: true,
            movable: true,
            valid,
            mtime,
        }
    }

    /// A million sections, as of a volume of 2 TiB; some change between one choice and the next. The choice is the best of all,
    /// and few are looked at for it.
    #[test]
    fn a_choice_among_a_million_looks_at_few() {
        const SECTIONS: u32 = 1 << 20;
        const CHANGES: usize = 40;
        let mut seed = 1;
        let mut garbage = Garbage::default();
        let mut valid: Vec<u64> = Vec::new();
        for section in 0..SECTIONS {
            // Some are full, a few are empty.
            valid.push((random(&mut seed) % 600).min(CAPACITY));
            let mtime = random(&mut seed) % 10_000;
            garbage.put(section, &state(valid[section as usize], mtime), CAPACITY);
        }
        for round in 0..50u64 {
            let unfit: Vec<u32> = garbage.most_first().take(8).collect();
            garbage.looked_at.set(0);
            for _ in 0..CHANGES {
                let section = (random(&mut seed) % u64::from(SECTIONS)) as u32;
                valid[section as usize] = (random(&mut seed) % 600).min(CAPACITY);
                let new = state(valid[section as usize], 10_000 + round);
                garbage.put(section, &new, CAPACITY);
            }
            // Those that a log writes to, or that were tried.
            let fit = |s: &u32| !unfit.contains(s);
            let chosen = garbage.most_first().find(fit).unwrap();
            let looked_at = garbage.looked_at.get();
            assert!(looked_at < 64, "{looked_at} sections were looked at");
            let all = (0..SECTIONS).filter(fit).map(|s| valid[s as usize]);
            let best = all.filter(|v| is_worth_it(*v, CAPACITY)).min();
            assert_eq!(Some(valid[chosen as usize]), best);
            let each = garbage.oldest_of_each(|s| fit(&s)).count();
            let looked_at = garbage.looked_at.get();
            assert!(each > 400 && looked_at < 2000, "{each}, {looked_at}");
        }
        let empty = valid.iter().filter(|v| **v == 0).count();
        assert_eq!(garbage.emptied().count(), empty);
    }

    #[test]
    fn of_each_level_the_oldest_that_is_fit() {
        let mut garbage = Garbage::default();
        for (section, valid, mtime) in [
            (1, 100, 9),
            (2, 100, 5),
            (3, 100, 7),
            (4, 200, 1),
            (5, 510, 1),
            (6, 300, 4),
            (7, 300, 3),
        ] {
            garbage.put(section, &state(valid, mtime), CAPACITY);
        }
        let each = |fit: &dyn Fn(u32) -> bool| garbage.oldest_of_each(fit).collect::<Vec<_>>();
        assert_eq!(each(&|_| true), [2, 4, 7]);
        assert_eq!(each(&|s| s != 2 && s != 4), [3, 7]);
        assert_eq!(each(&|s| s > 3), [4, 7]);
        assert_eq!(each(&|s| s == 5), [0; 0], "nothing is won by that one");
        let order: Vec<u32> = garbage.most_first().collect();
        assert_eq!(order, [2, 3, 1, 4, 7, 6]);
    }

    #[test]
    fn what_is_freed_or_cannot_be_moved_is_no_choice() {
        let mut garbage = Garbage::default();
        garbage.put(3, &state(50, 1), CAPACITY);
        garbage.put(4, &state(0, 1), CAPACITY);
        garbage.put(5, &state(60, 1), CAPACITY);
        assert_eq!(garbage.most_first().collect::<Vec<_>>(), [3, 5]);
        assert_eq!(garbage.emptied().collect::<Vec<_>>(), [4]);
        let unmovable = State {
            movable: false,
            ..state(50, 1)
        };
        garbage.put(3, &unmovable, CAPACITY);
        let free = State {
            in_use: false,
            ..state(0, 1)
        };
        garbage.put(4, &free, CAPACITY);
        assert_eq!(garbage.most_first().collect::<Vec<_>>(), [5]);
        assert_eq!(garbage.emptied().count(), 0);
        assert_eq!(garbage.order.len(), garbage.places.len());
    }
}
