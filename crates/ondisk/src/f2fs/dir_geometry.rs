//! Where in a directory a name may be: levels of hash tables, each with twice the buckets of the
//! one before, two blocks a bucket in the first 31 levels and four in the others.
//!
//! A name goes into the first level that has room for it in the name's bucket; a lookup visits one
//! bucket of each level up to the directory's depth. Blocks that never held a name are holes.

/// Most levels.
pub const LEVELS_MAX: u32 = 63;
const DOUBLING_LEVELS: u32 = LEVELS_MAX / 2;
const BUCKETS_MAX: u64 = 1 << (DOUBLING_LEVELS - 1);

/// Buckets of a level; a directory may begin at a higher level (`dir_level`).
#[must_use]
pub const fn buckets(level: u32, dir_level: u8) -> u64 {
    let sum = level.saturating_add(dir_level as u32);
    if sum < DOUBLING_LEVELS {
        1 << sum
    } else {
        BUCKETS_MAX
    }
}

/// Blocks of each bucket of a level.
#[must_use]
pub const fn bucket_blocks(level: u32) -> u64 {
    if level < DOUBLING_LEVELS { 2 } else { 4 }
}

/// First file block of a level.
#[must_use]
pub fn level_start(level: u32, dir_level: u8) -> u64 {
    (0..level.min(LEVELS_MAX))
        .map(|l| buckets(l, dir_level) * bucket_blocks(l))
        .sum()
}

/// File blocks of the bucket for a hash: first, and how many.
#[must_use]
pub fn bucket(level: u32, dir_level: u8, hash: u32) -> (u64, u64) {
    let index = u64::from(hash) % buckets(level, dir_level);
    let blocks = bucket_blocks(level);
    (level_start(level, dir_level) + index * blocks, blocks)
}

/// Level, bucket and block in the bucket of a file block; `None` past the last level.
#[must_use]
pub fn locate(block: u64, dir_level: u8) -> Option<(u32, u64, u64)> {
    let mut start = 0;
    for level in 0..LEVELS_MAX {
        let blocks = buckets(level, dir_level) * bucket_blocks(level);
        if block - start < blocks {
            let at = block - start;
            let per = bucket_blocks(level);
            return Some((level, at / per, at % per));
        }
        start += blocks;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_follow_one_another() {
        assert_eq!(level_start(0, 0), 0);
        assert_eq!(level_start(1, 0), 2);
        assert_eq!(level_start(2, 0), 6);
        assert_eq!(level_start(3, 0), 14);
        assert_eq!(bucket(2, 0, 7), (6 + 3 * 2, 2));
        assert_eq!(bucket(0, 2, 7), (6, 2));
        for dir_level in [0, 3, 255] {
            for level in 0..LEVELS_MAX {
                let (start, blocks) = bucket(level, dir_level, u32::MAX);
                let last = start + blocks - 1;
                let index = u64::from(u32::MAX) % buckets(level, dir_level);
                assert_eq!(locate(last, dir_level), Some((level, index, blocks - 1)));
            }
        }
        assert_eq!(buckets(31, 0), 1 << 30);
        assert_eq!(buckets(62, 255), 1 << 30);
        assert_eq!(bucket_blocks(31), 4);
        assert_eq!(locate(u64::MAX, 0), None);
        let _ = level_start(u32::MAX, 255);
    }
}
