//! A common limit on the memory and space that all archives of one volume may take, independent of
//! what they claim.
//!
//! A few kilobytes can unpack to terabytes, and a million names take memory although they take no space. The budget is shared by
//! all sources of a volume, so that many layers get no more than one.

use crate::{Error, ErrorKind, Result};
use std::sync::atomic::{AtomicU64, Ordering};

/// The most entries.
const ENTRIES_MAX: u64 = 1 << 24;
/// The most bytes of names, attributes, link targets and sparse maps: they are kept in memory.
const METADATA_BYTES_MAX: u64 = 2 << 30;
/// Without a size of the volume: what a volume can hold.
const UNPACKED_BYTES_MAX: u64 = 16 << 40;
/// Lower layers may hold what upper ones remove.
const TIMES: u64 = 16;

/// Counts down.
pub(crate) struct Budget {
    unpacked: Count,
    entries: Count,
    metadata: Count,
}

struct Count {
    limit: u64,
    left: AtomicU64,
}

impl Count {
    fn new(limit: u64) -> Self {
        Count {
            limit,
            left: AtomicU64::new(limit),
        }
    }

    fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    /// Takes `n`; `false` when that is more than there is.
    fn take(&self, n: u64) -> bool {
        let take = |left: u64| left.checked_sub(n);
        self.left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .is_ok()
    }
}

impl Budget {
    /// For a volume of this many bytes, where that is known: many times its size.
    pub fn new(volume_bytes: Option<u64>) -> Self {
        let (unpacked, entries) = match volume_bytes {
            None => (UNPACKED_BYTES_MAX, ENTRIES_MAX),
            Some(bytes) => (
                bytes.saturating_mul(TIMES).saturating_add(64 << 20),
                // An inode takes 128 bytes at least.
                (bytes / 128)
                    .saturating_mul(TIMES)
                    .saturating_add(1 << 16)
                    .min(ENTRIES_MAX),
            ),
        };
        Budget {
            unpacked: Count::new(unpacked),
            entries: Count::new(entries),
            metadata: Count::new(METADATA_BYTES_MAX),
        }
    }

    /// Bytes that may still be unpacked.
    pub fn unpacked_left(&self) -> u64 {
        self.unpacked.left()
    }

    /// This many bytes were unpacked, no more than were left.
    pub fn unpacked(&self, bytes: u64) {
        let _within = self.unpacked.take(bytes);
    }

    /// What to say when more than that unpacks.
    pub fn too_much(&self) -> String {
        format!(
            "the archives unpack to more than {} bytes, many times what the volume holds",
            self.unpacked.limit
        )
    }

    /// An entry, with this much metadata.
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn entry(&self, metadata_bytes: u64) -> Result<()> {
        if !self.entries.take(1) {
            let what = format!(
                "the sources have more than {} entries, many times what the volume holds",
                self.entries.limit
            );
            return Err(Error::new(ErrorKind::NoSpace, what));
        }
        if !self.metadata.take(metadata_bytes) {
            let what = format!(
                "names and attributes of the sources take more than {} bytes",
                self.metadata.limit
            );
            return Err(Error::new(ErrorKind::NoSpace, what));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_and_their_names_are_bounded() {
        let budget = Budget {
            unpacked: Count::new(10),
            entries: Count::new(3),
            metadata: Count::new(100),
        };
        budget.entry(60).expect("room");
        let e = budget.entry(60).expect_err("too many bytes");
        assert!(e.to_string().contains("more than 100 bytes"), "{e}");
        budget.entry(40).expect("room");
        let e = budget.entry(0).expect_err("too many entries");
        assert!(e.to_string().contains("more than 3 entries"), "{e}");
        assert_eq!(e.kind(), ErrorKind::NoSpace);
        budget.unpacked(4);
        budget.unpacked(6);
        assert_eq!(budget.unpacked_left(), 0);
    }

    #[test]
    fn a_small_volume_takes_few_entries() {
        let of = |bytes| Budget::new(bytes).entries.limit;
        assert_eq!(of(Some(1 << 20)), (1 << 17) + (1 << 16));
        assert_eq!(of(Some(1 << 50)), ENTRIES_MAX);
        assert_eq!(of(None), ENTRIES_MAX);
    }
}
