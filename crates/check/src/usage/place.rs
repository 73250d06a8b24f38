//! Where an issue is.

use super::Usage;

/// Where an issue is, as far as it says.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Place {
    /// Blocks of the volume.
    Blocks {
        /// The first one.
        first: u64,
        /// How many.
        len: u64,
    },
    /// A part of the volume: a group of ext4, a segment of f2fs.
    Part(u64),
}

impl Place {
    /// One block.
    pub(crate) fn block(first: u64) -> Option<Self> {
        Some(Place::Blocks { first, len: 1 })
    }
}

impl<K> Usage<K> {
    /// First block and number of blocks of a place, cut at the volume's end. `None` for one that lies behind it.
    #[must_use]
    pub fn blocks_of(&self, place: Place) -> Option<(u64, u64)> {
        let (first, len) = match place {
            Place::Blocks { first, len } => (first, len),
            Place::Part(n) => {
                let first = n.checked_mul(self.parts.blocks)?;
                (first.checked_add(self.parts.first)?, self.parts.blocks)
            }
        };
        let left = self.blocks.checked_sub(first).filter(|left| *left > 0)?;
        Some((first, len.clamp(1, left)))
    }
}
