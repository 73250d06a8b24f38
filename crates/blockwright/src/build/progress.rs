//! What a builder tells while it works.

/// Progress of a builder. Called from several threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BuildProgress {
    /// This many more files of the sources are known.
    Reading {
        /// Files since the last call.
        files: u64,
    },
    /// The volume is planned; copying begins.
    Planned {
        /// Bytes of data to copy, in whole blocks.
        bytes: u64,
        /// Bytes of the volume.
        volume_bytes: u64,
    },
    /// So much has been copied by now.
    Copied {
        /// Bytes so far.
        bytes: u64,
        /// Files that are complete so far.
        files: u64,
    },
    /// All data is in the volume; metadata is being written.
    Finishing,
}
