//! What applies to every source of a volume.

use super::budget::Budget;
use super::policy::EntryPolicy;
use super::progress::Tell;
use blockwright_ondisk::ext4::Timestamp;
use std::path::PathBuf;
use std::sync::Arc;

/// What applies to every source.
pub(crate) struct Rules<'a> {
    /// Owner and group of everything from directories.
    pub owner: Option<(u32, u32)>,
    /// What is left out, which a source need not read.
    pub policy: &'a EntryPolicy,
    /// Times of what no source describes.
    pub now: Timestamp,
    /// The image itself, which a source must not contain: device and inode.
    pub image: Option<(u64, u64)>,
    /// Where to keep data that cannot be read in place.
    pub spool_dir: PathBuf,
    /// The common limit of all archives.
    pub budget: Arc<Budget>,
    pub progress: Tell<'a>,
}
