//! Whether concurrent callers share a commit. They do: [`Shared`](super::Shared) takes no turns.
//!
//! The cargo feature `comparison` adds a switch that makes each caller commit on its own, so that a benchmark can show
//! the difference.

/// How callers that want a commit meet.
pub(super) trait Sharing {
    /// Proof that the caller commits alone.
    type Turn<'a>
    where
        Self: 'a;

    /// The caller's turn to commit on its own, and to pay for a flush of its own; `None` where commits are shared.
    fn turn(&self) -> Option<Self::Turn<'_>>;
}

/// Commits are shared.
#[cfg(not(feature = "comparison"))]
#[derive(Default)]
pub(super) struct Together {}

#[cfg(not(feature = "comparison"))]
impl Sharing for Together {
    type Turn<'a> = std::convert::Infallible;

    fn turn(&self) -> Option<Self::Turn<'_>> {
        None
    }
}

#[cfg(feature = "comparison")]
pub(super) use compared::Together;

#[cfg(feature = "comparison")]
mod compared {
    use super::super::Journal;
    use super::Sharing;
    use parking_lot::{Mutex, MutexGuard};
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Commits are shared, unless switched off.
    #[derive(Default)]
    pub(in super::super) struct Together {
        alone: AtomicBool,
        turn: Mutex<()>,
    }

    impl Sharing for Together {
        type Turn<'a> = MutexGuard<'a, ()>;

        fn turn(&self) -> Option<Self::Turn<'_>> {
            self.alone.load(Ordering::Relaxed).then(|| self.turn.lock())
        }
    }

    impl Journal {
        /// Whether concurrent callers share commits.
        #[must_use]
        pub fn group_commit(&self) -> bool {
            !self.shared.sharing.alone.load(Ordering::Relaxed)
        }

        /// Switches sharing of commits.
        pub fn set_group_commit(&self, on: bool) {
            self.shared.sharing.alone.store(!on, Ordering::Relaxed);
        }
    }
}
