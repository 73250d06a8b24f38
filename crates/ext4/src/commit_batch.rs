//! Several writes made visible together: neighbours in one file share a transaction handle, an inode update and a walk of
//! the extent tree.
//!
//! Writes that were in flight together land in any order; sorted by file and offset, appends of one file become one
//! stretch. A stretch fails or succeeds as a whole.

use crate::Result;
use crate::fs::Fs;
use blockwright_vfs::engine::{CommitWrite, WriteTarget};
use std::sync::Arc;

/// Neighbours among the writes, sorted: indices into the list, and what is committed for them.
fn stretches(writes: &[CommitWrite<'_>]) -> Vec<(Vec<usize>, WriteTarget, u64)> {
    let mut order: Vec<usize> = (0..writes.len()).collect();
    order.sort_by_key(|k| (writes[*k].inode.ino(), writes[*k].target.offset));
    let mut out: Vec<(Vec<usize>, WriteTarget, u64)> = Vec::new();
    for k in order {
        let w = &writes[k];
        if let Some((members, target, data_end)) = out.last_mut()
            && members
                .last()
                .is_some_and(|m| Arc::ptr_eq(writes[*m].inode, w.inode))
            && target.offset + target.bytes == w.target.offset
        {
            target.bytes += w.target.bytes;
            *data_end = (*data_end).max(w.data_end);
            members.push(k);
        } else {
            out.push((vec![k], *w.target, w.data_end));
        }
    }
    out
}

impl Fs {
    /// [`blockwright_vfs::Engine::commit_writes`].
    pub fn commit_writes(&self, writes: &[CommitWrite<'_>]) -> Vec<Result<()>> {
        let mut results: Vec<Result<()>> = writes.iter().map(|_| Ok(())).collect();
        for (members, target, data_end) in stretches(writes) {
            let Some(first) = members.first() else {
                continue;
            };
            if let Err(e) = self.commit_write(writes[*first].inode, &target, data_end) {
                for k in members {
                    results[k] = Err(e.clone());
                }
            }
        }
        results
    }
}
