//! The result of a change of size, for both formats.

/// What a change of size came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resized {
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Blocks before.
    pub blocks_before: u64,
    /// Blocks now.
    pub blocks: u64,
    /// What the format divides a volume into.
    pub parts: Parts,
}

/// Parts of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parts {
    /// Block groups of ext4.
    Groups {
        /// Groups before.
        before: u32,
        /// Groups now.
        now: u32,
    },
    /// Segments of f2fs's main area.
    Segments {
        /// Segments before.
        before: u32,
        /// Segments now.
        now: u32,
    },
}

impl Parts {
    /// How many there were.
    #[must_use]
    pub fn before(&self) -> u32 {
        match self {
            Self::Groups { before, .. } | Self::Segments { before, .. } => *before,
        }
    }

    /// How many there are.
    #[must_use]
    pub fn now(&self) -> u32 {
        match self {
            Self::Groups { now, .. } | Self::Segments { now, .. } => *now,
        }
    }
}

impl Resized {
    /// Bytes of the volume before.
    #[must_use]
    pub fn bytes_before(&self) -> u64 {
        self.blocks_before * u64::from(self.block_bytes)
    }

    /// Bytes of the volume now.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.blocks * u64::from(self.block_bytes)
    }
}

/// Whether a size is only computed, tried or made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Nothing is written. The device may be smaller than the size asked for.
    DryRun,
    /// Nothing is written. The change is made in memory, without the contents of files, so that what would refuse [`Mode::Change`] on the way is found. f2fs: as
    /// [`Mode::DryRun`], on a device of the size asked for.
    Rehearsal,
    /// The volume is changed.
    Change,
}
