//! Where a log ends, when the journal's superblock does not tell.
//!
//! A log is a ring in front of the blocks of fast commits. How many these are decides where the ring closes, and where fast commits begin. With a wrong number, transactions
//! behind the wrong end are lost. So the end is taken from the blocks themselves:
//! - A logged block never begins with the journal's magic, because it would be escaped. So the first block at the ring's beginning that has it is the header which follows
//!   the last one at its end, and the blocks in front of it are the rest of a transaction. When that header has the next number, this proves the end.
//! - A fast commit has the number of the next transaction, and a checksum.
//!
//! Without a proof each candidate is tried, and the one that replays most is taken. A candidate with which a damaged list of revoked blocks is found is taken before all others: one
//! that does not reach the list would replay blocks that the list revokes.
//!
//! Preening tries no candidates. It takes an end only where no other one would replay anything else: the log's end is proven, or the log was followed to a commit block
//! behind which neither the next transaction nor a fast commit begins.

use blockwright_ondisk::ext4::fast_commit::{Record, Records};
use blockwright_ondisk::ext4::jbd2::{self, JournalBlockType};

use super::CheckError;
use super::replay::{Log, is_before};

/// How far a log is followed without going around.
struct Reach {
    /// The last header.
    header: u32,
    /// Where the header behind it would be.
    next: u32,
    /// The number that it would have.
    sequence: u32,
    /// The last header is that of a commit block.
    committed: bool,
}

impl Log<'_> {
    /// The end of the log: the one that its blocks prove, or the candidate with which most is replayed. The first of `guesses` counts when nothing is replayed.
    /// The log is as long as the journal meanwhile.
    pub fn seek_end(&self, guesses: &[u32]) -> Result<Option<u32>, CheckError> {
        let (Some(start), len) = (self.head.start, self.head.len) else {
            return Ok(None);
        };
        let possible = |end: &u32| *end > start && *end <= len;
        let mut ends = Vec::new();
        if let Some(reach) = self.reach(start)? {
            if let Some(end) = self.end_by_turn(start, &reach)?.filter(possible) {
                return Ok(Some(end));
            }
            ends.extend(self.end_by_fast_commits(&reach)?);
        }
        ends.extend_from_slice(guesses);
        let mut best = None;
        for end in ends.into_iter().filter(possible) {
            let mut head = self.head.clone();
            head.log_end = end;
            let log = self.with_head(&head);
            let replay = log.replay()?;
            if replay.unsafe_to_replay {
                return Ok(Some(end));
            }
            let fast = log.fast_commits(replay.next_sequence)?;
            let found = (
                replay.transactions,
                replay.problems.is_empty(),
                fast.commits,
            );
            if best.is_none_or(|(most, _)| found > most) {
                best = Some((found, end));
            }
        }
        Ok(best.map(|(_, end)| end))
    }

    /// The end of the log, where its blocks leave no doubt about what waits in it: at least one transaction is complete, nothing of it is damaged, and no other
    /// end would replay anything else. The log is as long as the journal meanwhile.
    pub fn certain_end(&self) -> Result<Option<u32>, CheckError> {
        let (Some(start), len) = (self.head.start, self.head.len) else {
            return Ok(None);
        };
        let Some(reach) = self.reach(start)? else {
            return Ok(None);
        };
        let end = match self.end_by_turn(start, &reach)? {
            Some(end) => end,
            // The rest of a transaction may lie at the beginning.
            None if !reach.committed && start > self.head.first => return Ok(None),
            // The log may go on behind the journal's end.
            None if reach.next >= len => return Ok(None),
            None => self.end_by_fast_commits(&reach)?.unwrap_or(len),
        };
        if end <= start || end > len {
            return Ok(None);
        }
        let mut head = self.head.clone();
        head.log_end = end;
        let log = self.with_head(&head);
        let replay = log.replay()?;
        // A transaction with a commit block that is torn has another end than the one that was followed, and fast commits on top of it have another number.
        let whole = !is_before(replay.next_sequence, reach.sequence);
        let sound = replay.transactions > 0 && replay.problems.is_empty() && whole;
        Ok(sound.then_some(end))
    }

    /// Follows the headers from `start` on, as far as the journal goes.
    fn reach(&self, start: u32) -> Result<Option<Reach>, CheckError> {
        let mut reach = None;
        let (mut at, mut sequence) = (start, self.head.sequence);
        while at < self.head.len {
            let Some(block) = self.read(at)? else {
                break;
            };
            let mut committed = false;
            let used = match jbd2::block_header(&block) {
                Some((JournalBlockType::Descriptor, n)) if n == sequence => {
                    1 + self.tags(&block).len() as u32
                }
                Some((JournalBlockType::Revoke, n)) if n == sequence => 1,
                Some((JournalBlockType::Commit, n)) if n == sequence => {
                    sequence = sequence.wrapping_add(1);
                    committed = true;
                    1
                }
                _ => break,
            };
            let Some(next) = at.checked_add(used) else {
                break;
            };
            reach = Some(Reach {
                header: at,
                next,
                sequence,
                committed,
            });
            at = next;
        }
        Ok(reach)
    }

    /// The end of a log that goes on at its beginning.
    fn end_by_turn(&self, start: u32, reach: &Reach) -> Result<Option<u32>, CheckError> {
        let turn = self.turn(start, reach)?;
        let next = turn.filter(|(_, number)| *number == reach.sequence);
        Ok(next.map(|(rest, _)| reach.next - rest))
    }

    /// The log's first block behind the journal's end, where the log's blocks prove that there was one: then a part of the log is lost, and with it perhaps the revocation
    /// of what the rest would replay. The number of the transaction, and the block.
    pub fn lost_part(&self) -> Result<Option<(u32, u32)>, CheckError> {
        let (Some(start), len) = (self.head.start, self.head.len) else {
            return Ok(None);
        };
        let Some(reach) = self.reach(start)? else {
            return Ok(None);
        };
        let lost = match self.turn(start, &reach)? {
            Some((rest, number)) if number == reach.sequence => reach.next - rest > len,
            // Transactions in between are missing.
            Some((_, number)) => reach.next >= len && is_before(reach.sequence, number),
            None => reach.next > len,
        };
        Ok(lost.then_some((reach.sequence, len)))
    }

    /// The first header at the ring's beginning, where the rest of the last transaction may lie in front of it: how many blocks are, and its number.
    fn turn(&self, start: u32, reach: &Reach) -> Result<Option<(u32, u32)>, CheckError> {
        let first = self.head.first;
        for rest in 0..(reach.next - reach.header).min(start - first) {
            let Some(block) = self.read(first + rest)? else {
                break;
            };
            if let Some((_, number)) = jbd2::block_header(&block) {
                return Ok(Some((rest, number)));
            }
        }
        Ok(None)
    }

    /// The end of a log that fast commits follow. A transaction has one head of fast commits, at the beginning of the area: the first one that is found decides.
    fn end_by_fast_commits(&self, reach: &Reach) -> Result<Option<u32>, CheckError> {
        let mut at = reach.header + 2;
        while at < self.head.len {
            let stored = self.next_stored(at);
            if stored > at {
                at = stored;
                continue;
            }
            let Some(block) = self.read(at)? else {
                break;
            };
            let end = at - 1;
            at += 1;
            let head = Records::new(&block).next().and_then(Result::ok);
            let follows = head.is_some_and(
                |r| matches!(r.record, Record::Head { tid, .. } if tid == reach.sequence),
            );
            if follows {
                let fast = self.fast_commits_from(end + 1, reach.sequence)?;
                return Ok((fast.commits > 0).then_some(end));
            }
        }
        Ok(None)
    }
}
