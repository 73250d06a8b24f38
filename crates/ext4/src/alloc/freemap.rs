//! The free blocks of one group in memory: a bitmap, and how many free runs there are of each order.
//!
//! A classical buddy knows aligned powers of two only, and finds a run of 3·2ⁿ blocks or an
//! unaligned one in pieces. This keeps the exact histogram of maximal free runs instead (order =
//! log₂ of the length, rounded down): the largest order and the fragmentation are read off it, and a
//! search is a scan of 64-bit words (512 of them for a 4 KiB-block group).
//!
//! No locks, no I/O; the owner is the group's state.

/// Orders a group can have: a 64 KiB-block group has 2^19 blocks.
pub(crate) const ORDERS: usize = 20;

/// Bits of a group: set = not available.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FreeMap {
    words: Box<[u64]>,
    /// Blocks in the group; bits behind are set.
    len: u32,
    free: u32,
    /// Maximal free runs by order.
    runs: [u32; ORDERS],
}

/// log₂ of a run's length, rounded down.
pub(crate) fn order_of(len: u32) -> usize {
    (31 - len.max(1).leading_zeros()) as usize
}

impl FreeMap {
    /// From an on-disk bitmap of `len` bits (least significant bit first).
    pub(crate) fn from_bitmap(bitmap: &[u8], len: u32) -> Self {
        let count = (len as usize).div_ceil(64);
        let mut words = vec![u64::MAX; count].into_boxed_slice();
        for (i, word) in words.iter_mut().enumerate() {
            let mut raw = [0xFFu8; 8];
            let from = (i * 8).min(bitmap.len());
            let bytes = &bitmap[from..(from + 8).min(bitmap.len())];
            raw[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(raw);
        }
        if let Some(last) = words.last_mut()
            && !len.is_multiple_of(64)
        {
            *last |= u64::MAX << (len % 64);
        }
        let mut map = FreeMap {
            words,
            len,
            free: 0,
            runs: [0; ORDERS],
        };
        let mut at = 0;
        while let Some((start, run)) = map.next_run(at) {
            map.free += run;
            map.runs[order_of(run)] += 1;
            at = start + run;
        }
        map
    }

    /// The same of a group that has become longer: what is new is available.
    pub(crate) fn extended(&self, len: u32) -> Self {
        let mut words = self.words.to_vec();
        if let Some(last) = words.last_mut()
            && !self.len.is_multiple_of(64)
        {
            *last &= !(u64::MAX << (self.len % 64));
        }
        words.resize((len.max(self.len) as usize).div_ceil(64), 0);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        FreeMap::from_bitmap(&bytes, len.max(self.len))
    }

    /// Blocks of the group.
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    /// Available blocks.
    pub(crate) fn free(&self) -> u32 {
        self.free
    }

    /// Order of the longest available run; `None` when there is none.
    pub(crate) fn largest_order(&self) -> Option<usize> {
        self.runs.iter().rposition(|n| *n > 0)
    }

    /// Number of available runs.
    #[cfg(test)]
    pub(crate) fn fragments(&self) -> u32 {
        self.runs.iter().sum()
    }

    /// Whether a block is available.
    pub(crate) fn is_free(&self, at: u32) -> bool {
        at < self.len && self.words[(at / 64) as usize] >> (at % 64) & 1 == 0
    }

    /// First bit at or after `from` with the wanted value; `len` when there is none.
    fn seek(&self, from: u32, set: bool) -> u32 {
        if from >= self.len {
            return self.len;
        }
        let mut index = (from / 64) as usize;
        let mut mask = u64::MAX << (from % 64);
        while let Some(word) = self.words.get(index) {
            let hit = (if set { *word } else { !*word }) & mask;
            if hit != 0 {
                return (index as u32 * 64 + hit.trailing_zeros()).min(self.len);
            }
            mask = u64::MAX;
            index += 1;
        }
        self.len
    }

    /// First bit of the run of available blocks that ends just before `at`.
    fn run_start(&self, at: u32) -> u32 {
        let mut at = at;
        while at > 0 {
            let index = ((at - 1) / 64) as usize;
            let bits = (at - 1) % 64 + 1;
            // The word's bits below `at`, moved to the top.
            let word = self.words[index] << (64 - bits);
            let clear = word.leading_zeros().min(bits);
            at -= clear;
            if clear < bits {
                break;
            }
        }
        at
    }

    /// The first available run that ends after `from`, cut to begin at `from` at the earliest.
    pub(crate) fn next_run(&self, from: u32) -> Option<(u32, u32)> {
        let start = self.seek(from, false);
        (start < self.len).then(|| (start, self.seek(start, true) - start))
    }

    /// How many blocks from `at` on are available, at most `max`.
    pub(crate) fn run_at(&self, at: u32, max: u32) -> u32 {
        if !self.is_free(at) {
            return 0;
        }
        (self.seek(at, true) - at).min(max)
    }

    /// The first run of at least `want` blocks from `from` on, else, going round, before it.
    pub(crate) fn first_fit(&self, from: u32, want: u32) -> Option<u32> {
        let scan = |mut at: u32, end: u32| {
            while let Some((start, run)) = self.next_run(at) {
                if start >= end {
                    return None;
                }
                if run >= want {
                    return Some(start);
                }
                at = start + run;
            }
            None
        };
        let from = if from >= self.len { 0 } else { from };
        scan(from, self.len).or_else(|| scan(0, from))
    }

    /// The shortest run of at least `want` blocks, or else the longest there is: (start, length).
    pub(crate) fn best_run(&self, want: u32) -> Option<(u32, u32)> {
        let mut best: Option<(u32, u32)> = None;
        let mut at = 0;
        while let Some((start, run)) = self.next_run(at) {
            let better = match best {
                None => true,
                Some((_, have)) if have < want => run > have,
                Some((_, have)) => run >= want && run < have,
            };
            if better {
                best = Some((start, run));
                if run == want {
                    break;
                }
            }
            at = start + run;
        }
        best
    }

    fn fill(&mut self, start: u32, len: u32, set: bool) {
        let (mut at, end) = (start, start + len);
        while at < end {
            let bit = at % 64;
            let n = (64 - bit).min(end - at);
            let mask = (u64::MAX >> (64 - n)) << bit;
            let word = &mut self.words[(at / 64) as usize];
            if set {
                *word |= mask
            } else {
                *word &= !mask
            }
            at += n;
        }
    }

    /// Whether all of the run is available.
    pub(crate) fn all_free(&self, start: u32, len: u32) -> bool {
        len > 0
            && start.checked_add(len).is_some_and(|end| end <= self.len)
            && self.run_at(start, len) == len
    }

    /// Whether none of the run is available.
    pub(crate) fn all_used(&self, start: u32, len: u32) -> bool {
        let Some(end) = start.checked_add(len) else {
            return false;
        };
        len > 0 && end <= self.len && self.seek(start, false) >= end
    }

    /// Makes a run unavailable. `false`, changing nothing, unless all of it was available.
    #[must_use]
    pub(crate) fn take(&mut self, start: u32, len: u32) -> bool {
        if !self.all_free(start, len) {
            return false;
        }
        let left = self.run_start(start);
        let right = self.seek(start, true);
        self.runs[order_of(right - left)] -= 1;
        if left < start {
            self.runs[order_of(start - left)] += 1;
        }
        if start + len < right {
            self.runs[order_of(right - start - len)] += 1;
        }
        self.fill(start, len, true);
        self.free -= len;
        true
    }

    /// Makes a run available again. `false`, changing nothing, unless none of it was available.
    #[must_use]
    pub(crate) fn give(&mut self, start: u32, len: u32) -> bool {
        if !self.all_used(start, len) {
            return false;
        }
        let end = start + len;
        let left = self.run_start(start);
        let right = self.seek(end, true);
        if left < start {
            self.runs[order_of(start - left)] -= 1;
        }
        if end < right {
            self.runs[order_of(right - end)] -= 1;
        }
        self.runs[order_of(right - left)] += 1;
        self.fill(start, len, false);
        self.free += len;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recount(map: &FreeMap) -> FreeMap {
        let mut bytes = Vec::new();
        for w in &map.words {
            bytes.extend_from_slice(&w.to_le_bytes());
        }
        FreeMap::from_bitmap(&bytes, map.len)
    }

    #[test]
    fn agrees_with_a_recount_after_random_changes() {
        for len in [1u32, 63, 64, 65, 1000, 8192] {
            let mut map = FreeMap::from_bitmap(&vec![0; 1024], len);
            assert_eq!((map.free(), map.fragments()), (len, 1));
            let mut bits = vec![false; len as usize];
            let mut x = u64::from(len) * 77 + 5;
            for _ in 0..2000 {
                x = x
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                let start = (x >> 33) as u32 % len;
                let n = ((x >> 13) as u32 % 90 + 1).min(len - start);
                let part = &mut bits[start as usize..(start + n) as usize];
                if x >> 63 == 0 {
                    let ok = part.iter().all(|b| !b);
                    assert_eq!(map.take(start, n), ok);
                    if ok {
                        part.fill(true);
                    }
                } else {
                    let ok = part.iter().all(|b| *b);
                    assert_eq!(map.give(start, n), ok);
                    if ok {
                        part.fill(false);
                    }
                }
            }
            assert_eq!(map, recount(&map));
            assert_eq!(map.free() as usize, bits.iter().filter(|b| !**b).count());
        }
    }

    #[test]
    fn searches() {
        let mut map = FreeMap::from_bitmap(&[0; 512], 4096);
        assert_eq!(map.largest_order(), Some(12));
        assert!(map.take(100, 10));
        assert!(map.take(200, 1000));
        assert_eq!(map.next_run(100), Some((110, 90)));
        assert_eq!(map.run_at(150, 1000), 50);
        assert_eq!(map.first_fit(0, 95), Some(0));
        assert_eq!(map.first_fit(105, 95), Some(1200));
        assert_eq!(map.first_fit(4000, 200), Some(1200));
        assert_eq!(map.best_run(80), Some((110, 90)));
        assert_eq!(map.best_run(4096), Some((1200, 2896)));
        assert!(!map.take(195, 10));
        assert!(!map.give(195, 10));
        assert!(map.give(100, 10));
        assert_eq!(map.fragments(), 2);
        assert!(!map.give(4090, 100));
    }

    #[test]
    fn bits_behind_the_end_are_used() {
        let map = FreeMap::from_bitmap(&[0; 16], 70);
        assert_eq!(map.free(), 70);
        assert!(!map.is_free(70));
        assert_eq!(map.next_run(70), None);
        assert_eq!(FreeMap::from_bitmap(&[0xFF; 2], 64).free(), 0);
    }
}
