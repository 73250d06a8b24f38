//! Reading a journal: which blocks its complete transactions leave behind, and where in the log
//! their last version is.
//!
//! Three passes over the log, as the format demands: find the end, collect revocations, collect
//! blocks. The log is a ring; no pass goes around more than once.
//!
//! Blocks that are asked for in order are read many at a time. What a sparse image claims to have and never stored costs no request, and no search goes through it.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use blockwright_ondisk::ext4::BlockNo;
use blockwright_ondisk::ext4::jbd2::{
    self, Commit, DescriptorTags, JournalBlockType, JournalChecksums, JournalSuperblock,
    RevokedBlocks, Tag, TagFlags,
};
use blockwright_ondisk::sums_differ;

use super::CheckError;
use super::issue::IssueKind;
use super::mapping::Piece;
use super::store::Store;

/// The journal's blocks and its validated head.
pub(super) struct Log<'a> {
    pub store: &'a Store,
    pub pieces: &'a [Piece],
    pub head: &'a JournalSuperblock,
    pub blocks_count: u64,
    ahead: RefCell<Ahead>,
}

/// Most blocks of the journal that are read at once.
const AHEAD_MAX: u32 = 64;

/// Blocks of the journal that were read last. The volume does not change while a [`Log`] borrows it.
#[derive(Default)]
struct Ahead {
    blocks: Range<u32>,
    bytes: Vec<u8>,
}

/// The last version of a block in the log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Logged {
    /// Block of the journal.
    pub at: u32,
    /// Its first word is the magic.
    pub escaped: bool,
}

/// What a log holds.
#[derive(Default)]
pub(super) struct Replay {
    pub blocks: BTreeMap<u64, Logged>,
    pub transactions: u64,
    /// Sequence number of the transaction that would come next.
    pub next_sequence: u32,
    /// A list of revoked blocks is damaged: which logged blocks are stale is not known.
    pub unsafe_to_replay: bool,
    pub problems: Vec<IssueKind>,
}

impl Replay {
    fn revoke_damaged(&mut self, sequence: u32, block: u32) {
        self.unsafe_to_replay = true;
        self.problems
            .push(IssueKind::JournalRevoke { sequence, block });
    }
}

/// Whether a sequence number comes before another; they wrap around.
pub(super) fn is_before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

impl<'a> Log<'a> {
    pub fn new(
        store: &'a Store,
        pieces: &'a [Piece],
        head: &'a JournalSuperblock,
        blocks_count: u64,
    ) -> Self {
        Self {
            store,
            pieces,
            head,
            blocks_count,
            ahead: RefCell::default(),
        }
    }

    /// The same journal with another head.
    pub fn with_head<'b>(&self, head: &'b JournalSuperblock) -> Log<'b>
    where
        'a: 'b,
    {
        Log::new(self.store, self.pieces, head, self.blocks_count)
    }
}

impl Log<'_> {
    /// Where a block of the journal lies, and how many follow it there, itself included.
    fn run(&self, at: u32) -> Option<(BlockNo, u64)> {
        let at = u64::from(at);
        let n = self.pieces.partition_point(|p| p.end() <= at);
        let piece = self.pieces.get(n).filter(|p| p.logical <= at)?;
        let place = BlockNo(piece.physical.0 + (at - piece.logical));
        Some((place, piece.end() - at))
    }

    /// The first block at `at` or behind it that may hold anything but zeroes, and is in the same piece: the block behind the piece where it holds nothing more.
    pub fn next_stored(&self, at: u32) -> u32 {
        let Some((place, len)) = self.run(at) else {
            return at;
        };
        let skip = (self.store.next_stored(place).0 - place.0).min(len);
        at.saturating_add(u32::try_from(skip).unwrap_or(u32::MAX))
    }

    /// Reads blocks that will be asked for, and no more.
    pub fn fetch(&self, at: u32, count: u32) -> Result<(), CheckError> {
        if let Some((place, len)) = self.run(at) {
            let there = self.store.blocks().saturating_sub(place.0);
            let count = u64::from(count).min(len).min(there);
            let mut ahead = self.ahead.borrow_mut();
            ahead.bytes = self.store.read_run(place, count, "journal")?;
            ahead.blocks = at..at.saturating_add(count as u32);
        }
        Ok(())
    }

    /// Reads a block of the journal.
    pub fn read(&self, at: u32) -> Result<Option<Vec<u8>>, CheckError> {
        let Some((place, len)) = self.run(at) else {
            return Ok(None);
        };
        let mut ahead = self.ahead.borrow_mut();
        if !ahead.blocks.contains(&at) {
            // Asked for in order: twice as many as the last time.
            let follows = at
                .checked_sub(ahead.blocks.end)
                .is_some_and(|gap| gap <= AHEAD_MAX);
            let count = match follows && !ahead.blocks.is_empty() {
                true => (2 * ahead.blocks.len() as u32).clamp(1, AHEAD_MAX),
                false => 1,
            };
            let there = self.store.blocks().saturating_sub(place.0).max(1);
            let mut count = u64::from(count).min(len).min(there);
            let mut read = self.store.read_run(place, count, "journal");
            if read.is_err() && count > 1 {
                // One of those that follow, which may never be asked for.
                count = 1;
                read = self.store.read_run(place, count, "journal");
            }
            ahead.bytes = read?;
            ahead.blocks = at..at.saturating_add(count as u32);
        }
        let size = ahead.bytes.len() / ahead.blocks.len().max(1);
        let from = (at - ahead.blocks.start) as usize * size;
        Ok(ahead.bytes.get(from..from + size).map(<[u8]>::to_vec))
    }

    fn step(&self, at: u32, by: u32) -> u32 {
        let len = self.head.log_end - self.head.first;
        let moved = u64::from(at - self.head.first) + u64::from(by % len);
        self.head.first + (moved % u64::from(len)) as u32
    }

    /// Reads the whole log.
    pub fn replay(&self) -> Result<Replay, CheckError> {
        let mut out = Replay {
            next_sequence: self.head.sequence,
            ..Replay::default()
        };
        let Some(start) = self.head.start else {
            return Ok(out);
        };
        let end = self.find_end(start, &mut out)?;
        let revoked = self.collect_revoked(start, end, &mut out)?;
        out.next_sequence = end;
        if out.unsafe_to_replay {
            // A block that was a directory when it was logged may be a file's data since it was
            // revoked. The volume as it is has lost less than a replay could destroy.
            out.next_sequence = self.behind_all();
            return Ok(out);
        }
        self.collect_blocks(start, end, &revoked, &mut out)?;
        out.transactions = u64::from(end.wrapping_sub(self.head.sequence));
        if !out.problems.is_empty() {
            out.next_sequence = self.behind_all();
        }
        Ok(out)
    }

    /// A sequence number that nothing in the log can have: each transaction takes a block at least.
    /// Old transactions behind a damaged one must never follow new ones.
    pub fn behind_all(&self) -> u32 {
        let len = self.head.log_end - self.head.first;
        self.head.sequence.wrapping_add(len)
    }

    pub fn tags(&self, block: &[u8]) -> Vec<Tag> {
        DescriptorTags::new(block, &self.head.format)
            .map_while(Result::ok)
            .collect()
    }

    /// First pass: the sequence number behind the last complete transaction.
    fn find_end(&self, start: u32, out: &mut Replay) -> Result<u32, CheckError> {
        let format = &self.head.format;
        let v1 = format.checksums == JournalChecksums::V1;
        let mut sequence = self.head.sequence;
        let mut at = start;
        let mut left = self.head.log_end - self.head.first;
        let mut sum = !0u32;
        let mut time = (0, 0);
        while left > 0 {
            let Some(block) = self.read(at)? else {
                break;
            };
            let Some((kind, number)) = jbd2::block_header(&block) else {
                break;
            };
            if number != sequence {
                break;
            }
            let mut used = 1;
            match kind {
                JournalBlockType::Descriptor => {
                    if format.verify_tail(&block).is_err()
                        || DescriptorTags::new(&block, format).any(|tag| tag.is_err())
                    {
                        if self.is_committed(at, sequence)? {
                            out.problems.push(IssueKind::JournalTransaction {
                                sequence,
                                block: at,
                            });
                        }
                        break;
                    }
                    let tags = self.tags(&block).len() as u32;
                    if v1 {
                        sum = jbd2::v1_checksum(sum, &block);
                        for n in 1..=tags.min(left) {
                            if let Some(data) = self.read(self.step(at, n))? {
                                sum = jbd2::v1_checksum(sum, &data);
                            }
                        }
                    }
                    used += tags;
                }
                JournalBlockType::Commit => {
                    let commit = Commit::parse(&block, format).ok();
                    let wrong_sum = commit
                        .as_ref()
                        .and_then(|c| c.transaction_checksum)
                        .is_some_and(|stored| sums_differ(stored, sum));
                    // A transaction whose commit block was written before all of it was is not
                    // there; nor is anything behind it. Unless another one follows: then this one was.
                    if format.verify_commit(&block).is_err() || wrong_sum || commit.is_none() {
                        let then =
                            self.commit_behind(self.step(at, 1), sequence.wrapping_add(1))?;
                        let was = commit.map(|c| (c.time_secs, c.time_nanos));
                        // Remains of an older round of the log are older, too.
                        if was.is_none_or(|was| was >= time && then.is_some_and(|t| t >= was)) {
                            out.problems.push(IssueKind::JournalTransaction {
                                sequence,
                                block: at,
                            });
                        }
                        break;
                    }
                    time = commit.map_or(time, |c| (c.time_secs, c.time_nanos));
                    sequence = sequence.wrapping_add(1);
                    sum = !0;
                }
                JournalBlockType::Revoke => {
                    if format.verify_tail(&block).is_err()
                        || RevokedBlocks::parse(&block, format).is_err()
                    {
                        if self.is_committed(at, sequence)? {
                            out.revoke_damaged(sequence, at);
                        }
                        break;
                    }
                }
                JournalBlockType::SuperblockV1 | JournalBlockType::SuperblockV2 => break,
            }
            if used > left {
                break;
            }
            left -= used;
            at = self.step(at, used);
        }
        Ok(sequence)
    }

    /// The time of the commit block that ends the transaction of this number which begins here, if there is one.
    fn commit_behind(&self, mut at: u32, sequence: u32) -> Result<Option<(u64, u32)>, CheckError> {
        let mut left = self.head.log_end - self.head.first;
        while left > 0 {
            let Some(block) = self.read(at)? else {
                return Ok(None);
            };
            let used = match jbd2::block_header(&block) {
                Some((JournalBlockType::Descriptor, n)) if n == sequence => {
                    1 + self.tags(&block).len() as u32
                }
                Some((JournalBlockType::Revoke, n)) if n == sequence => 1,
                Some((JournalBlockType::Commit, n)) if n == sequence => {
                    let sound = self.head.format.verify_commit(&block).is_ok();
                    let commit = Commit::parse(&block, &self.head.format).ok();
                    return Ok(commit
                        .filter(|_| sound)
                        .map(|c| (c.time_secs, c.time_nanos)));
                }
                _ => return Ok(None),
            };
            left = left.saturating_sub(used);
            at = self.step(at, used);
        }
        Ok(None)
    }

    /// Whether the transaction that a bad block belongs to was committed; otherwise the block is
    /// just the end of the log.
    fn is_committed(&self, at: u32, sequence: u32) -> Result<bool, CheckError> {
        let len = self.head.log_end - self.head.first;
        let mut n = 1;
        while n < len.min(1 << 16) {
            let here = self.step(at, n);
            let stored = self.next_stored(here).min(self.head.log_end);
            if stored > here {
                // Nothing was ever written there.
                n += stored - here;
                continue;
            }
            n += 1;
            let Some(block) = self.read(here)? else {
                break;
            };
            if jbd2::block_header(&block) == Some((JournalBlockType::Commit, sequence))
                && self.head.format.verify_commit(&block).is_ok()
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Calls `f` for each block of the complete transactions that is not a logged one.
    fn walk(
        &self,
        start: u32,
        end: u32,
        mut f: impl FnMut(u32, JournalBlockType, u32, &[u8]) -> Result<(), CheckError>,
    ) -> Result<(), CheckError> {
        let mut at = start;
        let mut sequence = self.head.sequence;
        let mut left = self.head.log_end - self.head.first;
        while left > 0 && is_before(sequence, end) {
            let Some(block) = self.read(at)? else {
                break;
            };
            let Some((kind, number)) = jbd2::block_header(&block) else {
                break;
            };
            if number != sequence {
                break;
            }
            f(at, kind, sequence, &block)?;
            let used = match kind {
                JournalBlockType::Descriptor => 1 + self.tags(&block).len() as u32,
                JournalBlockType::Commit => {
                    sequence = sequence.wrapping_add(1);
                    1
                }
                _ => 1,
            };
            if used > left {
                break;
            }
            left -= used;
            at = self.step(at, used);
        }
        Ok(())
    }

    /// Second pass: the last transaction that revoked each block.
    fn collect_revoked(
        &self,
        start: u32,
        end: u32,
        out: &mut Replay,
    ) -> Result<HashMap<u64, u32>, CheckError> {
        let mut revoked: HashMap<u64, u32> = HashMap::new();
        self.walk(start, end, |at, kind, sequence, block| {
            if kind != JournalBlockType::Revoke {
                return Ok(());
            }
            let Ok(list) = RevokedBlocks::parse(block, &self.head.format) else {
                out.revoke_damaged(sequence, at);
                return Ok(());
            };
            for target in list {
                let known = revoked.entry(target.0).or_insert(sequence);
                if is_before(*known, sequence) {
                    *known = sequence;
                }
            }
            Ok(())
        })?;
        Ok(revoked)
    }

    /// Third pass: the last version of each block that was not revoked later.
    fn collect_blocks(
        &self,
        start: u32,
        end: u32,
        revoked: &HashMap<u64, u32>,
        out: &mut Replay,
    ) -> Result<(), CheckError> {
        let format = &self.head.format;
        self.walk(start, end, |at, kind, sequence, block| {
            if kind != JournalBlockType::Descriptor {
                return Ok(());
            }
            for (n, tag) in self.tags(block).iter().enumerate() {
                let data_at = self.step(at, n as u32 + 1);
                let is_revoked = revoked
                    .get(&tag.block.0)
                    .is_some_and(|by| !is_before(*by, sequence));
                if is_revoked {
                    continue;
                }
                if tag.block.0 >= self.blocks_count {
                    out.problems.push(IssueKind::JournalBlockOutside {
                        sequence,
                        block: tag.block,
                    });
                    continue;
                }
                if format.block_checksums()
                    && let Some(data) = self.read(data_at)?
                    && sums_differ(tag.checksum, format.tag_checksum(sequence, &data))
                {
                    out.problems.push(IssueKind::JournalTransaction {
                        sequence,
                        block: data_at,
                    });
                    continue;
                }
                out.blocks.insert(
                    tag.block.0,
                    Logged {
                        at: data_at,
                        escaped: tag.flags.contains(TagFlags::ESCAPE),
                    },
                );
            }
            Ok(())
        })
    }

    /// Whether the copy in the log and the block itself were never stored: both are zeroes.
    pub fn changes_nothing(&self, home: &Store, block: u64, logged: Logged) -> bool {
        let Some((place, _)) = self.run(logged.at).filter(|_| !logged.escaped) else {
            return false;
        };
        self.store.is_hole(place, 1) && home.is_hole(BlockNo(block), 1)
    }

    /// A logged block as it belongs on the volume.
    pub fn contents(&self, logged: Logged) -> Result<Option<Vec<u8>>, CheckError> {
        let Some(mut bytes) = self.read(logged.at)? else {
            return Ok(None);
        };
        if logged.escaped && bytes.len() >= 4 {
            bytes[..4].copy_from_slice(&jbd2::MAGIC_BYTES);
        }
        Ok(Some(bytes))
    }
}
