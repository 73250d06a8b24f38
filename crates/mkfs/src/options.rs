//! Options that all formats have.

/// What the device holds before.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Before {
    /// Anything: what must read as zero is zeroed, and old signatures are wiped.
    #[default]
    Unknown,
    /// Zeroes only, like a file just created: nothing needs to be zeroed.
    Zeroes,
}

/// Seconds since 1970, by this host's clock.
pub(crate) fn seconds_now() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |d| d.as_secs())
}

/// The room of a volume in addition to its contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SizeGoal {
    /// Bytes that are free for all users when the volume is made.
    pub free_bytes: u64,
}
