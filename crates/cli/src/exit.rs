//! Exit codes: part of the interface.

/// All was done.
pub const SUCCESS: u8 = 0;
/// Something failed; standard error says what.
pub const FAILURE: u8 = 1;
/// The arguments are invalid.
pub const USAGE: u8 = 2;
/// A signal interrupted the command: the code that a shell shows for a death by SIGINT.
pub const INTERRUPTED: u8 = 130;
/// The reader of our output has gone: the code that a shell shows for a death by SIGPIPE.
pub const BROKEN_PIPE: u8 = 141;

/// The codes of `check`, as fsck(8) defines them. (0, 1 and 4 come with the check's report.)
pub mod fsck {
    /// The check could not be done.
    pub const OPERATIONAL: u8 = 8;
    /// The arguments are invalid.
    pub const USAGE: u8 = 16;
    /// A signal stopped a repair before it wrote anything; at most the journal was replayed.
    pub const CANCELED: u8 = 32;
}
