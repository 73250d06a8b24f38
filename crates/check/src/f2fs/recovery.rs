//! Files written by fsync since the checkpoint: a chain of nodes, from where the warm node log goes
//! on, each naming the next. The next mount follows it.

use std::collections::BTreeSet;

use blockwright_ondisk::f2fs::{BlockAddr, Footer, Log as F2Log};

use super::CheckError;
use super::context::Checker;
use super::issue::IssueKind;
use crate::Mode;

impl Checker {
    /// Follows the chain. When files wait there, nothing is repaired: a new checkpoint would lose
    /// them.
    pub(super) fn find_recoverable(&mut self) -> Result<(), CheckError> {
        let geo = self.geo.clone();
        let cp = self.pack.checkpoint.clone();
        let head = cp.raw.log(F2Log::WarmNode);
        let Some(start) = geo.segment_start(head.segment) else {
            return Ok(());
        };
        let mut at = BlockAddr(start.0 + u32::from(head.offset));
        let (mut nodes, mut files) = (0u64, BTreeSet::new());
        let mut pending = 0;
        let mut met = std::collections::HashSet::new();
        while geo.in_main(at) && met.insert(at.0) {
            let block = self.store.read(at, "node")?;
            let Ok(footer) = Footer::read(&block) else {
                break;
            };
            if !cp.footer_matches(footer.version) {
                break;
            }
            nodes += 1;
            if footer.fsync {
                // Nodes before the last node of an fsync are recovered; later ones are not.
                pending = nodes;
                files.insert(footer.ino.0);
            }
            at = footer.next;
        }
        if !files.is_empty() {
            self.problem(IssueKind::RecoveryPending {
                nodes: pending,
                files: files.len() as u64,
            });
            self.log.mode = Mode::ReadOnly;
        }
        Ok(())
    }
}
