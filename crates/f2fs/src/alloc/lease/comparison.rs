//! The two other ways to hand out a data log's blocks (cargo feature `comparison`): one at a time.
//!
//! It uses the leases, and never hands out a block that a lease does not have. The shipped program is built without it.
//!
//! # Locks
//! Each log's `turn`, then its `step`, both of rank `Log`.
//!
//! # References
//! linux-f2fs-devel, "serialize block allocation of dio writes to enhance multithread performance", December 2015.

use super::{Cut, Enough, Lease, pack, unpack};
use crate::Result;
use crate::alloc::Need;
use crate::alloc::Segments;
use crate::comparison::DirectAllocation;
use blockwright_device::sim::turns::give_way;
use blockwright_ondisk::f2fs::summary::Summary;
use blockwright_ondisk::f2fs::{BLOCKS_PER_SEG, BlockAddr, Log};
use blockwright_vfs::locks::{Mutex, Rank};
use std::sync::atomic::Ordering;

/// The locks of a log whose blocks are handed out one at a time.
pub(super) struct SingleBlocks {
    /// [`DirectAllocation::Serialized`]: a large write's turn.
    turn: Mutex<()>,
    /// Held for each block.
    step: Mutex<()>,
}

impl Default for SingleBlocks {
    fn default() -> Self {
        SingleBlocks {
            turn: Mutex::new(Rank::Log, ()),
            step: Mutex::new(Rank::Log, ()),
        }
    }
}

impl Segments {
    /// As [`Segments::take_run`], with the variant that is in use. `large`: the write is one that the report serializes.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn take_run_as(
        &self,
        way: DirectAllocation,
        need: Need,
        log: Log,
        want: u32,
        large: bool,
    ) -> Result<(BlockAddr, u32)> {
        match way {
            DirectAllocation::Reserved => self.take_run(need, log, want),
            DirectAllocation::None => self.take_singly(need, log, want, true),
            DirectAllocation::Serialized => {
                let turn = large.then(|| self.lease(log).single.turn.lock());
                let taken = self.take_singly(need, log, want, !large);
                drop(turn);
                taken
            }
        }
    }

    /// Takes blocks one by one, as long as they follow each other. The lock for each goes to the thread that has waited
    /// longest, as a queueing lock of the kernel does. `gives_way`: other threads run after each block. A path that takes
    /// several locks for a block may sleep for each of them; the step here is too short for writers to meet on their own.
    fn take_singly(
        &self,
        need: Need,
        log: Log,
        want: u32,
        gives_way: bool,
    ) -> Result<(BlockAddr, u32)> {
        let lease = self.lease(log);
        let step = || lease.single.step.lock_nested();
        let first = {
            let held = step();
            let taken = loop {
                match lease.cut(1, Enough::Some, None) {
                    Cut::Run(block, _) => break Ok(block),
                    _ => {
                        if let Err(e) = self.renew(need, log, lease) {
                            break Err(e);
                        }
                    }
                }
            };
            held.unlock_fair();
            taken?
        };
        let mut n = 1;
        while n < want {
            if gives_way {
                give_way();
            }
            let held = step();
            let next = lease.cut(1, Enough::Some, Some(BlockAddr(first.0 + n)));
            held.unlock_fair();
            match next {
                Cut::Run(..) => n += 1,
                _ => break,
            }
        }
        Ok((first, n))
    }

    /// Renews the lease, unless another thread did.
    fn renew(&self, need: Need, log: Log, lease: &Lease) -> Result<()> {
        let _renewal = lease.renewal.lock_nested();
        if unpack(lease.word.load(Ordering::Acquire)).1 > 0 {
            return Ok(());
        }
        // Short of room a lease holds no more than is written.
        let most = if self.is_short() { 1 } else { BLOCKS_PER_SEG };
        let (block, n) = self.take_for(need, log, most, |_| Summary::default())?;
        lease.word.store(pack(block.0, n), Ordering::Release);
        Ok(())
    }
}
