//! The variants of writeback that [`Comparison`](crate::comparison) chooses.
//!
//! *Legacy writeback* is writeback as of 2008: flusher and writers share the index, it moves past pages that were looked at and not
//! written, a visit ends after a small budget, and limits are checked for every page. Every page is still written, and
//! integrity passes are the same.

#[cfg(any(test, feature = "comparison"))]
mod variants {
    use crate::core::Core;
    use crate::inode::holds::WritebackOwner;
    use crate::writeback::Stream;
    use std::ops::Range;
    use std::sync::Arc;

    /// What one visit of a file writes.
    const VISIT_BYTES: u64 = 4 << 20;
    /// Limits are checked for every page.
    const BALANCE_BYTES: u64 = 4096;

    impl Core {
        pub(crate) fn has_legacy_writeback(&self) -> bool {
            self.comparison.legacy_writeback
        }

        pub(crate) fn defers_completion(&self) -> bool {
            self.comparison.deferred_completion
        }

        /// How often legacy writers check the dirty limits, in bytes copied.
        pub(crate) fn legacy_balance_bytes(&self) -> u64 {
            BALANCE_BYTES.max(self.block())
        }

        /// One visit of legacy writeback, by the flusher or a writer: looks at the run of dirty pages behind the shared index,
        /// writes as much of it as the budget allows, and moves the index past all of it.
        pub(crate) fn write_legacy(
            &self,
            stream: &mut Stream<'_>,
            owner: &Arc<WritebackOwner>,
        ) -> u64 {
            self.write_legacy_some(stream, owner, VISIT_BYTES)
        }

        pub(crate) fn write_legacy_some(
            &self,
            stream: &mut Stream<'_>,
            owner: &Arc<WritebackOwner>,
            budget: u64,
        ) -> u64 {
            let looked_at = {
                let table = owner.inode.pages.lock();
                let from = table.flusher_index;
                table
                    .first_dirty_in(from..u64::MAX, u64::MAX)
                    .or_else(|| table.first_dirty_in(0..from, u64::MAX))
            };
            let Some(run) = looked_at else {
                return 0;
            };
            let Range { start, end } = run;
            let (_, written) = stream.write(owner, start..end, budget);
            owner.inode.pages.lock().flusher_index = end;
            written
        }
    }
}

#[cfg(not(any(test, feature = "comparison")))]
#[allow(clippy::unused_self, reason = "constant without the feature")]
mod product {
    use crate::core::Core;
    use crate::inode::holds::WritebackOwner;
    use crate::writeback::Stream;
    use std::sync::Arc;

    impl Core {
        #[inline]
        pub(crate) fn has_legacy_writeback(&self) -> bool {
            false
        }

        #[inline]
        pub(crate) fn defers_completion(&self) -> bool {
            false
        }

        #[inline]
        pub(crate) fn legacy_balance_bytes(&self) -> u64 {
            0
        }

        #[inline]
        pub(crate) fn write_legacy(&self, _: &mut Stream<'_>, _: &Arc<WritebackOwner>) -> u64 {
            0
        }
    }
}
