//! Where issues of ext4 are.

use super::issue::IssueKind;
use crate::usage::Place;

impl IssueKind {
    /// The blocks or the group that an issue is about. `None` for issues that name an inode or nothing.
    #[must_use]
    pub fn place(&self) -> Option<Place> {
        match self {
            IssueKind::SuperblockBad { backup: block, .. }
            | IssueKind::JournalBlockOutside { block, .. }
            | IssueKind::GroupDescLocation { block, .. }
            | IssueKind::MetadataOverlap { block, .. }
            | IssueKind::BlockBitmap { first: block, .. }
            | IssueKind::ExtentChecksum { block, .. }
            | IssueKind::ExtentIndexStart { block, .. }
            | IssueKind::MappingLoop { block, .. }
            | IssueKind::XattrBlock { block, .. }
            | IssueKind::XattrChecksum { block }
            | IssueKind::XattrRefcount { block, .. }
            | IssueKind::DirEntry { block, .. } => Place::block(block.0),
            IssueKind::ExtentEntry { physical, len, .. } => Some(Place::Blocks {
                first: physical.0,
                len: u64::from(*len),
            }),
            IssueKind::BlocksShared { first, count, .. } => Some(Place::Blocks {
                first: first.0,
                len: *count,
            }),
            IssueKind::GroupDescChecksum { group }
            | IssueKind::GroupFlags { group, .. }
            | IssueKind::GroupUnusedInodes { group, .. }
            | IssueKind::GroupFreeBlocks { group, .. }
            | IssueKind::GroupFreeInodes { group, .. }
            | IssueKind::GroupDirs { group, .. }
            | IssueKind::InodeBitmap { group, .. }
            | IssueKind::BitmapPadding { group, .. }
            | IssueKind::BitmapChecksum { group, .. } => Some(Place::Part(u64::from(group.0))),
            _ => None,
        }
    }
}
