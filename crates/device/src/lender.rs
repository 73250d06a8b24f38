//! The owner of memory that buffers borrow.

use std::ops::Range;

/// The lender of memory: dropped when the loan and all that was cut from it are gone.
pub trait Lender: Send + Sync {
    /// These bytes of the loan are about to be cut from it; nothing of them was before. `false` refuses.
    fn give_out(&self, range: Range<usize>) -> bool;
}
