//! Where issues of f2fs are.

use super::issue::IssueKind;
use crate::usage::Place;

impl IssueKind {
    /// The blocks or the segment that an issue is about. `None` for issues that name a node, an inode or nothing.
    #[must_use]
    pub fn place(&self) -> Option<Place> {
        match self {
            IssueKind::OrphanBlock { block, .. }
            | IssueKind::RecoveryRefused { block, .. }
            | IssueKind::SitBitmap { first: block, .. }
            | IssueKind::SummaryEntries { first: block, .. }
            | IssueKind::BlockShared { block, .. }
            | IssueKind::BlockForeign { block, .. } => Place::block(u64::from(block.0)),
            IssueKind::LogSegmentType { segment, .. }
            | IssueKind::LogOffset { segment, .. }
            | IssueKind::SegmentType { segment, .. }
            | IssueKind::SummaryKind { segment } => Some(Place::Part(u64::from(segment.0))),
            _ => None,
        }
    }
}
