//! Transactions that have the descriptors and the counts of what is free, in a journal that is large enough.
//!
//! The order in which a transaction reaches the device is that of `commit`.

use super::commit::Order;
use super::journal_file::{JOURNAL_BLOCKS_MAX, now};
use super::log::Log;
use super::volume::Volume;
use crate::error::{ReshapeError, Result};

impl Volume {
    /// Opens the journal for a change that needs one.
    pub fn open_log(&self) -> Result<Log> {
        Log::open(self)?.ok_or_else(|| ReshapeError::Damaged("there is no journal".into()))
    }

    /// Commits what is staged, with new counts and descriptors.
    pub fn commit_staged(&mut self, log: &mut Log, order: Order) -> Result<()> {
        self.count_free();
        self.sb.raw.set_write_time(now() as u64);
        self.follow()?;
        self.stage_descs()?;
        self.commit_through(log, order)
    }

    /// Opens the journal for a transaction of so many blocks. It is made larger where it is too small; `enlarged_from` has the size that it had.
    ///
    /// # Errors
    /// `NoSpace` where there is no room for a larger one.
    pub fn log_for(&mut self, images: usize) -> Result<Log> {
        let log = self.open_log()?;
        if log.fits(images) {
            return Ok(log);
        }
        let had = log.len() as u64;
        let blocks = had + (images + images / 32 + 8) as u64;
        if blocks > JOURNAL_BLOCKS_MAX {
            return Err(ReshapeError::NoSpace(format!(
                "{images} blocks would change at once, more than a journal has room for"
            )));
        }
        self.enlarged_from.get_or_insert(had);
        self.replace_journal(blocks)?;
        self.open_log()
    }
}
