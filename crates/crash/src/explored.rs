//! Counts of an exploration.

/// What an exploration did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Explored {
    /// Operations that ran.
    pub operations: usize,
    /// Entries of the device's log.
    pub log: usize,
    /// Crash images that were verified.
    pub images: usize,
    /// Of them, images that e2fsck looked at too.
    pub e2fsck: usize,
    /// Files that mounts rolled forward.
    pub recovered: u64,
    /// Of the images, those cut once more during their recovery.
    pub nested: usize,
    /// Blocks of files and directories that cleaning moved.
    pub moved_data: u64,
    /// Nodes that cleaning moved.
    pub moved_nodes: u64,
    /// Nodes that were written before checkpoints, while operations went on.
    pub early_nodes: u64,
    /// Sections that were cleaned because there was no room to write.
    pub cleaned_by_writers: u64,
    /// Sections that a thread cleaned before there was none.
    pub cleaned_ahead: u64,
    /// Times that writeback had cleaning run for accepted writes.
    pub room_waits: u64,
    /// Segments in use whose holes were filled.
    pub refilled: u64,
    /// Bytes of ranges that were copied.
    pub copied: u64,
    /// Direct writes for which blocks were available.
    pub preallocated: u64,
    /// Those finished by the thread that completed them.
    pub finished_here: u64,
}
