//! How much space is promised: the counters behind "no space left".
//!
//! Three numbers: free blocks on disk (of the state in memory; `SuperState::free_blocks`), blocks
//! *claimed* (reserved by delayed allocation, or taken and not yet marked used), and what is held back:
//! a pool for metadata that must never fail, and the root reserve when asked for. A claim succeeds
//! when `free ≥ claimed + held back + n`; marking blocks used lowers `free` and `claimed` together.
//! Preallocated blocks are not claimed: they are given up when they are needed.
//!
//! So a successful reservation always finds a block: blocks not claimed by others exist on disk,
//! at worst inside preallocations (discarded on demand) or freed by a transaction
//! that has yet to commit (which is then forced).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Pointer blocks that one write into a block-mapped file may need, and some more.
const CHAIN: u64 = 8;

/// The kind of claimant, and so how much of the free space is held back from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Data of files: neither the metadata pool nor, when honoured, the root reserve.
    Data,
    /// Metadata that a user asked for (a directory block): the root reserve is held back only.
    Metadata,
    /// Metadata without which data already promised could not be stored: everything.
    NoFail,
    /// Already claimed by [`super::Allocator::reserve_space`].
    Reserved,
}

/// What ext4 keeps for metadata: 2 %, at most 4096 blocks.
fn pool_of(blocks: u64, extents: bool) -> u64 {
    if extents { (blocks / 50).min(4096) } else { 0 }
}

/// The counters.
#[derive(Debug)]
pub(crate) struct Space {
    claimed: AtomicU64,
    /// Freed in transactions that have not committed; part of `free`.
    pending: AtomicU64,
    pool: AtomicU64,
    root_reserve: AtomicU64,
    honour_root_reserve: AtomicBool,
}

impl Space {
    /// For a volume with these many blocks, of which some are reserved for root. `extents`: it may
    /// have unwritten extents, whose conversion needs metadata that was not reserved.
    pub(crate) fn new(blocks: u64, root_reserve: u64, extents: bool) -> Self {
        Space {
            claimed: AtomicU64::new(0),
            pending: AtomicU64::new(0),
            pool: AtomicU64::new(pool_of(blocks, extents)),
            root_reserve: AtomicU64::new(root_reserve),
            honour_root_reserve: AtomicBool::new(false),
        }
    }

    /// The volume has grown to this many blocks.
    pub(crate) fn set_size(&self, blocks: u64, root_reserve: u64, extents: bool) {
        self.pool.store(pool_of(blocks, extents), Ordering::Relaxed);
        self.root_reserve.store(root_reserve, Ordering::Relaxed);
    }

    pub(crate) fn honours_root_reserve(&self) -> bool {
        self.honour_root_reserve.load(Ordering::Relaxed)
    }

    pub(crate) fn set_honour_root_reserve(&self, on: bool) {
        self.honour_root_reserve.store(on, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn pool(&self) -> u64 {
        self.pool.load(Ordering::Relaxed)
    }

    pub(crate) fn claimed(&self) -> u64 {
        self.claimed.load(Ordering::Acquire)
    }

    pub(crate) fn pending(&self) -> u64 {
        self.pending.load(Ordering::Acquire)
    }

    pub(crate) fn add_pending(&self, n: u64) {
        self.pending.fetch_add(n, Ordering::AcqRel);
    }

    pub(crate) fn sub_pending(&self, n: u64) {
        self.pending.fetch_sub(n, Ordering::AcqRel);
    }

    fn held_back(&self, claim: Claim) -> u64 {
        let root = if self.honour_root_reserve.load(Ordering::Relaxed) {
            self.root_reserve.load(Ordering::Relaxed)
        } else {
            0
        };
        match claim {
            Claim::Data => self.pool.load(Ordering::Relaxed).max(CHAIN) + root,
            Claim::Metadata => root,
            Claim::NoFail | Claim::Reserved => 0,
        }
    }

    /// Claims between 1 and `want` blocks, all of them when `all`; returns how many (0: no space).
    pub(crate) fn claim(&self, free: impl Fn() -> u64, want: u64, all: bool, claim: Claim) -> u64 {
        let held = self.held_back(claim);
        // `claimed` is read before `free`: marking used lowers `free` first, so that the difference
        // is never overestimated.
        let mut claimed = self.claimed.load(Ordering::Acquire);
        loop {
            let room = free().saturating_sub(claimed.saturating_add(held));
            let n = want.min(room);
            if n == 0 || (all && n < want) {
                return 0;
            }
            match self.claimed.compare_exchange_weak(
                claimed,
                claimed + n,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return n,
                Err(now) => claimed = now,
            }
        }
    }

    /// Gives claimed blocks up, or hands them over to `free` (which the caller has lowered).
    pub(crate) fn unclaim(&self, n: u64) {
        let mut now = self.claimed.load(Ordering::Acquire);
        loop {
            debug_assert!(now >= n, "{n} blocks given back of {now} claimed");
            let left = now.saturating_sub(n);
            match self
                .claimed
                .compare_exchange_weak(now, left, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return,
                Err(seen) => now = seen,
            }
        }
    }

    /// (free, available to users), as `statfs` reports them.
    pub(crate) fn statfs(&self, free: u64) -> (u64, u64) {
        let free = free.saturating_sub(self.claimed());
        let held = self.root_reserve.load(Ordering::Relaxed) + self.pool.load(Ordering::Relaxed);
        (free, free.saturating_sub(held))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_exact_under_contention() {
        let free = AtomicU64::new(10_000);
        let left = || free.load(Ordering::Acquire);
        let space = Space::new(10_000, 500, true);
        assert_eq!(space.pool(), 200);
        let got = AtomicU64::new(0);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    while space.claim(left, 7, true, Claim::Data) == 7 {
                        got.fetch_add(7, Ordering::Relaxed);
                        if got.load(Ordering::Relaxed).is_multiple_of(3) {
                            // Marked used.
                            free.fetch_sub(7, Ordering::AcqRel);
                            space.unclaim(7);
                        }
                    }
                });
            }
        });
        let got = got.into_inner();
        assert_eq!(got, 9800 / 7 * 7);
        assert_eq!(space.claim(left, 100, false, Claim::Data), 9800 - got);
        assert_eq!(space.claim(left, 1000, false, Claim::NoFail), 200);
        assert_eq!(space.claim(left, 1, false, Claim::NoFail), 0);
    }

    #[test]
    fn root_reserve_is_optional() {
        let left = || 1000;
        let space = Space::new(1000, 300, true);
        space.set_honour_root_reserve(true);
        assert_eq!(space.claim(left, 1000, false, Claim::Data), 680);
        assert_eq!(space.statfs(1000), (320, 0));
        assert_eq!(space.claim(left, 21, true, Claim::Metadata), 0);
        assert_eq!(space.claim(left, 20, true, Claim::Metadata), 20);
    }
}
