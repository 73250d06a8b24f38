//! What a change of size is to come to, and how it is made. For both formats.

use crate::ext4::journal_device::ExternalJournal;
use crate::resized::Mode;
use crate::watch::Watch;

/// The size that a volume is to have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Size {
    /// So many bytes, or a little fewer: whole blocks, and of ext4 no last group that holds hardly more than its own metadata.
    Bytes(u64),
    /// As few bytes as the files allow.
    Minimum {
        /// Bytes that stay free.
        free: u64,
    },
}

/// A change of size, and how it is made: see [`ResizeOptions::to_bytes`] and [`ResizeOptions::to_minimum`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ResizeOptions {
    /// The size that the volume is to have.
    pub size: Size,
    /// Whether the change is only computed, rehearsed or made.
    pub mode: Mode,
    /// The journal of an ext4 volume that has it on another device.
    pub journal: Option<ExternalJournal>,
    /// Sees the progress, and can stop the change.
    pub watch: Watch,
    /// Whether a change is rehearsed before it is made.
    pub rehearse: bool,
}

impl ResizeOptions {
    fn new(size: Size) -> Self {
        Self {
            size,
            mode: Mode::Change,
            journal: None,
            watch: Watch::default(),
            rehearse: true,
        }
    }

    /// Makes a volume `bytes` bytes large, or a little smaller ([`Size::Bytes`]).
    #[must_use]
    pub fn to_bytes(bytes: u64) -> Self {
        Self::new(Size::Bytes(bytes))
    }

    /// Makes a volume as small as its files allow, with `free` bytes left free.
    #[must_use]
    pub fn to_minimum(free: u64) -> Self {
        Self::new(Size::Minimum { free })
    }

    /// Whether the change is only computed, rehearsed or made. The default is [`Mode::Change`].
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// The journal of an ext4 volume that has it on another device.
    #[must_use]
    pub fn journal(mut self, journal: Option<ExternalJournal>) -> Self {
        self.journal = journal;
        self
    }

    /// Sees the progress, and can stop the change between two steps.
    #[must_use]
    pub fn watch(mut self, watch: Watch) -> Self {
        self.watch = watch;
        self
    }

    /// Leaves out the rehearsal before [`Mode::Change`]. For a caller that has made it ([`Mode::Rehearsal`]) while the volume was as it is now. What it would have found
    /// ends the change on the way otherwise, with a volume that is whole and has its files. The minimum of an ext4 volume is found by a rehearsal in any case.
    #[must_use]
    pub fn without_rehearsal(mut self) -> Self {
        self.rehearse = false;
        self
    }
}
