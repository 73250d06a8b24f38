//! [`PendingInodes`]: inodes of one group that are free, but not yet to be handed out.
//!
//! It owns one bit per inode and nothing else. A program that creates and deletes files in turn leaves thousands of them until the
//! next commit, and each allocation has to pass over all of them. So the search takes 64 at a time, as in the inode bitmap.

use super::bits::{clear_bits, first_clear, set_bits};

/// Inodes, by index in their group, that were freed in a transaction that has not committed.
#[derive(Default)]
pub(crate) struct PendingInodes {
    /// Grows to the last inode that was added; empty while there are none.
    bits: Vec<u8>,
    count: u32,
}

impl PendingInodes {
    /// Adds an inode that is not there.
    pub(crate) fn insert(&mut self, index: u32) {
        let len = index as usize / 8 + 1;
        if self.bits.len() < len {
            self.bits.resize(len, 0);
        }
        set_bits(&mut self.bits, index, 1);
        self.count += 1;
    }

    /// Removes an inode that was added.
    pub(crate) fn remove(&mut self, index: u32) {
        clear_bits(&mut self.bits, index, 1);
        self.count = self.count.saturating_sub(1);
        if self.count == 0 {
            self.bits = Vec::new();
        }
    }

    /// The first inode in the range that is clear in the inode bitmap `used`, and not pending.
    pub(crate) fn first_free(&self, used: &[u8], from: u32, len: u32) -> Option<u32> {
        first_clear(used, &self.bits, from, len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pending_inodes_are_passed_over_until_they_are_removed() {
        let mut pending = PendingInodes::default();
        let mut used = [0u8; 32];
        set_bits(&mut used, 0, 11);
        for index in 11..200 {
            pending.insert(index);
        }
        assert_eq!(pending.first_free(&used, 0, 256), Some(200));
        assert_eq!(pending.first_free(&used, 0, 200), None);
        pending.remove(70);
        assert_eq!(pending.first_free(&used, 0, 256), Some(70));
        for index in (11..200).filter(|i| *i != 70) {
            pending.remove(index);
        }
        assert_eq!(pending.first_free(&used, 0, 256), Some(11));
        assert!(pending.bits.is_empty());
    }
}
