//! Counters and histograms that many threads add to without waiting for each other.
//!
//! A [`Counter`] is split into shards on cache lines of their own; a thread always adds to the same one.
//! Adding costs one relaxed atomic addition on a line that other processors rarely have. Sums are exact
//! once no thread adds any more, and never run backwards.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Shards of what is split; a power of two.
pub(crate) const SHARDS: usize = 16;

thread_local! {
    static SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// The shard this thread adds to.
#[inline]
pub(crate) fn shard() -> usize {
    let known = SHARD.get();
    if known != usize::MAX {
        return known;
    }
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let mine = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
    SHARD.set(mine);
    mine
}

#[derive(Default)]
#[repr(align(128))]
struct Line(AtomicU64);

/// A number that only grows.
#[derive(Default)]
pub struct Counter {
    shards: [Line; SHARDS],
}

impl Counter {
    /// Adds.
    #[inline]
    pub fn add(&self, n: u64) {
        self.shards[shard()].0.fetch_add(n, Ordering::Relaxed);
    }

    /// The sum.
    #[must_use]
    pub fn get(&self) -> u64 {
        let shards = self.shards.iter();
        shards.fold(0, |sum, s| sum.wrapping_add(s.0.load(Ordering::Relaxed)))
    }
}

impl std::fmt::Debug for Counter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.get())
    }
}

/// Buckets of a histogram. Bucket 0 has values up to 1, bucket `i` those above 2^(i-1) and up to 2^i, the last
/// one everything above.
pub const BUCKETS: usize = 48;

/// The bucket of a value.
#[inline]
#[must_use]
pub fn bucket_of(value: u64) -> usize {
    let bucket = (u64::BITS - value.saturating_sub(1).leading_zeros()) as usize;
    bucket.min(BUCKETS - 1)
}

/// The largest value that a bucket has; `None`: any.
#[must_use]
pub fn bucket_max(bucket: usize) -> Option<u64> {
    (bucket + 1 < BUCKETS).then(|| 1 << bucket)
}

/// How often values of which magnitude occurred. Not split: for what happens less often than every
/// microsecond.
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            buckets: [const { AtomicU64::new(0) }; BUCKETS],
            sum: AtomicU64::new(0),
        }
    }
}

impl Histogram {
    /// Notes a value.
    #[inline]
    pub fn note(&self, value: u64) {
        self.buckets[bucket_of(value)].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(value, Ordering::Relaxed);
    }

    /// What was noted.
    #[must_use]
    pub fn get(&self) -> Distribution {
        Distribution {
            buckets: self.buckets.each_ref().map(|b| b.load(Ordering::Relaxed)),
            sum: self.sum.load(Ordering::Relaxed),
        }
    }
}

impl std::fmt::Debug for Histogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.get().fmt(f)
    }
}

/// A histogram at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distribution {
    /// Values by magnitude, see [`BUCKETS`].
    pub buckets: [u64; BUCKETS],
    /// The values' sum.
    pub sum: u64,
}

impl Default for Distribution {
    fn default() -> Self {
        Distribution {
            buckets: [0; BUCKETS],
            sum: 0,
        }
    }
}

impl Distribution {
    /// How many values there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The mean, 0 without values.
    #[must_use]
    pub fn mean(&self) -> f64 {
        match self.count() {
            0 => 0.0,
            n => self.sum as f64 / n as f64,
        }
    }

    /// An upper bound of the value that this share (0 to 1) of the values does not exceed: the largest value
    /// of its bucket. 0 without values.
    #[must_use]
    pub fn quantile(&self, share: f64) -> u64 {
        let count = self.count();
        let rank = ((count as f64 * share).ceil() as u64).clamp(1, count.max(1));
        let mut seen = 0;
        for (bucket, n) in self.buckets.iter().enumerate() {
            seen += n;
            if *n > 0 && seen >= rank {
                return bucket_max(bucket).unwrap_or(u64::MAX);
            }
        }
        0
    }

    /// Adds another one to it.
    pub fn merge(&mut self, other: &Distribution) {
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.sum += other.sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_end_at_powers_of_two() {
        for (value, bucket) in [
            (0, 0),
            (1, 0),
            (2, 1),
            (3, 2),
            (4, 2),
            (5, 3),
            (4096, 12),
            (4097, 13),
            (u64::MAX, BUCKETS - 1),
        ] {
            assert_eq!(bucket_of(value), bucket, "{value}");
        }
        for bucket in 0..BUCKETS - 1 {
            let max = bucket_max(bucket).unwrap();
            assert_eq!(bucket_of(max), bucket);
            assert_eq!(bucket_of(max + 1), bucket + 1);
        }
        assert_eq!(bucket_max(BUCKETS - 1), None);
    }

    #[test]
    fn sums_of_threads_are_exact() {
        let counter = Counter::default();
        let histogram = Histogram::default();
        std::thread::scope(|scope| {
            for t in 0..8 {
                let (counter, histogram) = (&counter, &histogram);
                scope.spawn(move || {
                    for i in 0..1000 {
                        counter.add(t);
                        histogram.note(i);
                    }
                });
            }
        });
        assert_eq!(counter.get(), 28_000);
        let seen = histogram.get();
        assert_eq!((seen.count(), seen.sum), (8000, 8 * 999 * 500));
        assert_eq!(seen.buckets[..4], [16, 8, 16, 32]);
    }

    #[test]
    fn quantiles() {
        let histogram = Histogram::default();
        assert_eq!(histogram.get().quantile(0.5), 0);
        for _ in 0..99 {
            histogram.note(100);
        }
        histogram.note(5000);
        let seen = histogram.get();
        assert_eq!((seen.quantile(0.5), seen.quantile(0.99)), (128, 128));
        assert_eq!(seen.quantile(1.0), 8192);
        assert!((seen.mean() - 149.0).abs() < 1e-9);
    }
}
