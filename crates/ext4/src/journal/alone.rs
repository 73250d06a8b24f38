//! A transaction with no handle beside it: for changes of what every handle relies on.
//!
//! The growth of a mounted volume needs it: no operation runs while the number of groups and the sizes of tables change.

use super::transaction::Transaction;
use super::{Handle, Journal, Running, Shared, State};
use crate::{Error, ErrorKind, Result};
use std::sync::Arc;

impl Journal {
    /// Runs `f` in a transaction while no handle is open, and commits it. Whatever metadata the volume has is as the last handle left it, and no
    /// handle starts before `f` returns. `f` brings in at most [`Journal::credits_max`] blocks, and fails before it changes one.
    ///
    /// # Errors
    /// Those of `f`, with nothing changed; as [`Journal::commit`].
    pub(crate) fn alone<R>(
        &self,
        op: &'static str,
        f: impl FnOnce(&Handle<'_>) -> Result<R>,
    ) -> Result<R> {
        // The transaction then holds little beside what `f` adds.
        self.commit_running()?;
        drop(self.start(0, op)?);
        let mut f = Some(f);
        let mut outcome = None;
        self.shared.lead_alone(&mut |txn| {
            let handle = Handle::internal(&self.shared, Arc::clone(txn), op);
            if let Some(f) = f.take() {
                outcome = Some(f(&handle));
            }
        })?;
        outcome.unwrap_or_else(|| Err(Error::new(ErrorKind::Busy, op)))
    }
}

impl Shared {
    /// Commits the running transaction, or an empty new one, in this thread. `before` runs when it has no handle left.
    fn lead_alone(&self, before: &mut dyn FnMut(&Arc<Transaction>)) -> Result<()> {
        let mut state = self.state.lock();
        while state.committing.is_some() {
            self.check_alive("commit")?;
            self.committed.wait(&mut state);
        }
        self.check_alive("commit")?;
        let State {
            running,
            last_started,
            ..
        } = &mut *state;
        let running = running.get_or_insert_with(|| {
            *last_started = last_started.next();
            Running {
                txn: Arc::new(Transaction::new(*last_started)),
                handles: 0,
                outstanding: 0,
                locked: false,
            }
        });
        let tid = running.txn.tid;
        self.lead_with(state, tid, before).1
    }
}
