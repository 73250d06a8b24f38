//! Which blocks of which regions are free: the buddy scheme, by numbers alone.
//!
//! A region is [`PAGES`] pages. A block of order `k` is `2^k` pages at a multiple of its size; the two halves of a block
//! of the next order are buddies. A block that is given back joins its buddy if that is free, and so on upwards.
//! Regions with the least number are used first, so that the others become idle.
//!
//! A page that was taken has memory, and keeps it when it is free: those pages are counted, and free blocks that have some
//! are found by [`Buddy::forget`] when the pool wants to return memory to the system.
//!
//! Reference: D. E. Knuth, The Art of Computer Programming, vol. 1, 2.5 (buddy systems).

use std::collections::BTreeSet;

/// Pages of a region.
pub(super) const PAGES: usize = 1 << TOP;
/// The order of a whole region.
const TOP: u32 = 8;
const WORDS: usize = PAGES / 64;

/// A block: `2^order` pages from `page` of `region`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Block {
    pub(super) region: u32,
    pub(super) page: u32,
    pub(super) order: u32,
}

type Bits = [u64; WORDS];

struct Region {
    /// Of every order: the free blocks, by their number within the region.
    free: [Bits; TOP as usize + 1],
    /// Pages that were taken since they last had no memory.
    touched: Bits,
    /// Touched pages in free blocks.
    warm: usize,
    /// No free block with touched pages has a greater order. `None`: there is no such block.
    warmest: Option<u32>,
}

/// See the module's head.
pub(super) struct Buddy {
    regions: Vec<Option<Region>>,
    /// Of every order: the regions that have a free block of just that order.
    having: [BTreeSet<u32>; TOP as usize + 1],
    /// Of every order: the regions of which it is `warmest`. So memory to give back is found without looking at regions that have none.
    warmest: [BTreeSet<u32>; TOP as usize + 1],
    /// Touched pages in free blocks.
    warm: usize,
    /// How many regions `forget` has looked at.
    #[cfg(test)]
    looked: usize,
}

fn is_set(bits: &Bits, at: u32) -> bool {
    bits[at as usize / 64] & (1 << (at % 64)) != 0
}

fn set(bits: &mut Bits, at: u32) {
    bits[at as usize / 64] |= 1 << (at % 64);
}

fn clear(bits: &mut Bits, at: u32) {
    bits[at as usize / 64] &= !(1 << (at % 64));
}

fn first(bits: &Bits) -> Option<u32> {
    let word = bits.iter().position(|word| *word != 0)?;
    Some(word as u32 * 64 + bits[word].trailing_zeros())
}

/// Sets or clears the bits of `pages` from `page` on; returns how many were set.
fn fill(bits: &mut Bits, page: u32, pages: u32, value: bool) -> usize {
    let mut were = 0;
    let (mut at, end) = (page, page + pages);
    while at < end {
        let upto = end.min((at / 64 + 1) * 64);
        // Up to 64 bits from `at % 64` on.
        let mask = (u64::MAX >> (64 - (upto - at))) << (at % 64);
        let word = &mut bits[at as usize / 64];
        were += (*word & mask).count_ones() as usize;
        if value {
            *word |= mask;
        } else {
            *word &= !mask;
        }
        at = upto;
    }
    were
}

impl Region {
    /// The first page of a free block of `order` with touched pages, and how many; they are untouched from now on.
    fn forget(&mut self, order: u32) -> Option<(u32, usize)> {
        for word in 0..WORDS {
            let mut left = self.free[order as usize][word];
            if order == 0 {
                left &= self.touched[word];
            }
            while left != 0 {
                let page = (word as u32 * 64 + left.trailing_zeros()) << order;
                left &= left - 1;
                let pages = fill(&mut self.touched, page, 1 << order, false);
                if pages > 0 {
                    return Some((page, pages));
                }
            }
        }
        None
    }
}

impl Buddy {
    pub(super) fn new() -> Self {
        Buddy {
            regions: Vec::new(),
            having: Default::default(),
            warmest: Default::default(),
            warm: 0,
            #[cfg(test)]
            looked: 0,
        }
    }

    /// A new region, all of it free and untouched; its number is the least that no other has.
    pub(super) fn add(&mut self) -> u32 {
        let mut region = Region {
            free: Default::default(),
            touched: Bits::default(),
            warm: 0,
            warmest: None,
        };
        set(&mut region.free[TOP as usize], 0);
        let index = self.regions.iter().position(Option::is_none);
        let index = index.unwrap_or_else(|| {
            self.regions.push(None);
            self.regions.len() - 1
        });
        self.regions[index] = Some(region);
        // Never as many as 2^32 of a mebibyte each.
        let number = index as u32;
        self.having[TOP as usize].insert(number);
        number
    }

    fn region(&mut self, number: u32) -> &mut Region {
        self.regions[number as usize]
            .as_mut()
            .expect("the region is there")
    }

    fn put(&mut self, number: u32, order: u32, at: u32) {
        set(&mut self.region(number).free[order as usize], at);
        self.having[order as usize].insert(number);
    }

    fn pull(&mut self, number: u32, order: u32, at: u32) {
        let bits = &mut self.region(number).free[order as usize];
        clear(bits, at);
        if first(bits).is_none() {
            self.having[order as usize].remove(&number);
        }
    }

    /// A free block of `order`, and whether none of its pages was taken since it had no memory. `None` when there is none.
    pub(super) fn take(&mut self, order: u32) -> Option<(Block, bool)> {
        let (mut found, region) =
            (order..=TOP).find_map(|order| Some((order, *self.having[order as usize].first()?)))?;
        let mut at = first(&self.region(region).free[found as usize])?;
        self.pull(region, found, at);
        while found > order {
            found -= 1;
            at *= 2;
            self.put(region, found, at + 1);
        }
        let page = at << order;
        let of = self.region(region);
        let touched = fill(&mut of.touched, page, 1 << order, true);
        of.warm -= touched;
        self.warm -= touched;
        Some((
            Block {
                region,
                page,
                order,
            },
            touched == 0,
        ))
    }

    /// Takes a block back.
    ///
    /// # Panics
    /// When (a part of) it is free already.
    pub(super) fn give(&mut self, block: Block) {
        let (mut order, mut at) = (block.order, block.page >> block.order);
        let region = block.region;
        loop {
            assert!(
                !is_set(&self.region(region).free[order as usize], at),
                "a buffer was given back twice"
            );
            if order == TOP || !is_set(&self.region(region).free[order as usize], at ^ 1) {
                break;
            }
            self.pull(region, order, at ^ 1);
            order += 1;
            at /= 2;
        }
        self.put(region, order, at);
        let of = self.region(region);
        of.warm += 1 << block.order;
        if of.warmest < Some(order) {
            self.set_warmest(region, Some(order));
        }
        self.warm += 1 << block.order;
    }

    fn set_warmest(&mut self, number: u32, order: Option<u32>) {
        let before = std::mem::replace(&mut self.region(number).warmest, order);
        if let Some(before) = before {
            self.warmest[before as usize].remove(&number);
        }
        if let Some(order) = order {
            self.warmest[order as usize].insert(number);
        }
    }

    /// Pages of free blocks that have memory.
    pub(super) fn warm(&self) -> usize {
        self.warm
    }

    /// A free block of which some pages have memory; they count as without from now on. Greater blocks first, and of regions
    /// with greater numbers, which are used last.
    pub(super) fn forget(&mut self) -> Option<Block> {
        for order in (0..=TOP).rev() {
            while let Some(&region) = self.warmest[order as usize].last() {
                #[cfg(test)]
                {
                    self.looked += 1;
                }
                let of = self.region(region);
                if let Some((page, pages)) = of.forget(order) {
                    of.warm -= pages;
                    self.warm -= pages;
                    return Some(Block {
                        region,
                        page,
                        order,
                    });
                }
                // All blocks of this order were taken or are forgotten: the order is skipped until a block is given
                // back.
                let lower = (of.warm > 0).then(|| order.checked_sub(1)).flatten();
                self.set_warmest(region, lower);
            }
        }
        None
    }

    /// How many regions are free as a whole.
    pub(super) fn idle(&self) -> usize {
        self.having[TOP as usize].len()
    }

    /// Takes out the idle region with the greatest number, which is free for others then.
    pub(super) fn remove_idle(&mut self) -> Option<u32> {
        let number = self.having[TOP as usize].pop_last()?;
        self.set_warmest(number, None);
        let region = self.regions[number as usize].take()?;
        self.warm -= region.warm;
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random takes and gives beside a plain map of pages.
    #[test]
    fn blocks_are_disjoint_aligned_and_come_together_again() {
        for seed in 1..=20u64 {
            let mut state = seed;
            let mut random = |below: u64| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (state >> 33) % below
            };
            let mut buddy = Buddy::new();
            let mut owner: Vec<Vec<bool>> = Vec::new();
            let mut touched: Vec<Vec<bool>> = Vec::new();
            let mut taken: Vec<Block> = Vec::new();
            for _ in 0..3000 {
                if random(100) < 55 {
                    let order = random(9) as u32;
                    let (block, untouched) = buddy.take(order).unwrap_or_else(|| {
                        let number = buddy.add() as usize;
                        if owner.len() <= number {
                            owner.push(vec![]);
                            touched.push(vec![]);
                        }
                        owner[number] = vec![false; PAGES];
                        touched[number] = vec![false; PAGES];
                        buddy.take(order).expect("a whole region is free")
                    });
                    assert_eq!(block.page % (1 << order), 0);
                    let pages = block.page as usize..(block.page + (1 << order)) as usize;
                    let region = block.region as usize;
                    assert!(owner[region][pages.clone()].iter().all(|owned| !owned));
                    assert_eq!(
                        untouched,
                        touched[region][pages.clone()]
                            .iter()
                            .all(|touched| !touched)
                    );
                    owner[region][pages.clone()].fill(true);
                    touched[region][pages].fill(true);
                    taken.push(block);
                } else if !taken.is_empty() {
                    let block = taken.swap_remove(random(taken.len() as u64) as usize);
                    let pages = block.page as usize..(block.page + (1 << block.order)) as usize;
                    owner[block.region as usize][pages].fill(false);
                    buddy.give(block);
                }
                let warm = |owner: &[Vec<bool>], touched: &[Vec<bool>]| {
                    let pages = owner.iter().flatten().zip(touched.iter().flatten());
                    pages
                        .filter(|(owned, touched)| !**owned && **touched)
                        .count()
                };
                assert_eq!(buddy.warm(), warm(&owner, &touched));
                // Of the greatest blocks that are free and have some.
                let greatest = (0..=TOP).rev().find(|order| {
                    buddy.regions.iter().flatten().any(|region| {
                        (0..PAGES as u32 >> order).any(|at| {
                            let (page, mut touched) = (at << order, region.touched);
                            is_set(&region.free[*order as usize], at)
                                && fill(&mut touched, page, 1 << order, false) > 0
                        })
                    })
                });
                if random(10) == 0
                    && let Some(block) = buddy.forget()
                {
                    assert_eq!(Some(block.order), greatest);
                    let pages = block.page as usize..(block.page + (1 << block.order)) as usize;
                    let region = block.region as usize;
                    assert!(owner[region][pages.clone()].iter().all(|owned| !owned));
                    assert!(
                        touched[region][pages.clone()]
                            .iter()
                            .any(|touched| *touched)
                    );
                    touched[region][pages].fill(false);
                }
                if buddy.idle() > 2 {
                    let number = buddy.remove_idle().expect("three are idle") as usize;
                    assert!(owner[number].iter().all(|owned| !owned));
                    touched[number].fill(false);
                }
            }
            for block in taken {
                buddy.give(block);
            }
            let regions = buddy.regions.iter().flatten().count();
            assert_eq!(buddy.idle(), regions, "everything came together again");
            while buddy.forget().is_some() {}
            assert_eq!(buddy.warm(), 0);
        }
    }

    #[test]
    fn memory_to_give_back_is_found_without_a_walk() {
        const REGIONS: usize = 500;
        let mut buddy = Buddy::new();
        for _ in 0..REGIONS {
            buddy.add();
        }
        let pages = REGIONS * PAGES;
        let taken: Vec<Block> = (0..pages)
            .map(|_| buddy.take(0).expect("there are as many").0)
            .collect();
        // As a cache is dropped whose pages were used in another order: never more than a little is warm.
        for step in 0..pages {
            buddy.give(taken[(step * 7919) % pages]);
            while buddy.warm() > 1000 {
                buddy.forget().expect("something is warm");
            }
        }
        while buddy.forget().is_some() {}
        assert_eq!((buddy.warm(), buddy.idle()), (0, REGIONS));
        assert!(
            buddy.looked < 4 * pages,
            "looked at {} regions",
            buddy.looked
        );
    }

    #[test]
    #[should_panic(expected = "given back twice")]
    fn giving_back_twice_is_noticed() {
        let mut buddy = Buddy::new();
        buddy.add();
        let (block, _) = buddy.take(0).unwrap();
        let (_other, _) = buddy.take(0).unwrap();
        buddy.give(block);
        buddy.give(block);
    }
}
