//! Cached pages of regular files.

/// The cached pages of one file.
#[derive(Default)]
pub struct FilePages {}
