//! How a journal is divided: the log, and the blocks of fast commits behind it.
//!
//! The kernel uses no journal whose log is shorter than the shortest journal there can be. Where the journal's superblock says so, or contradicts itself,
//! its fields are reported, and a log that has transactions to replay counts as long as the journal's file. `log_end` then finds where it ends.

use blockwright_ondisk::ext4::jbd2::{
    DEFAULT_FAST_COMMIT_BLOCKS, JournalIncompat, JournalSuperblock, RawJournalSuperblock,
    SUPERBLOCK_SIZE,
};
use blockwright_ondisk::ext4::{Compat, FormatError, Ino};
use zerocopy::{FromBytes, IntoBytes};

use super::CheckError;
use super::context::Checker;
use super::issue::IssueKind;
use super::mapping::Piece;
use crate::Mode;

/// Least number of blocks of a journal, and of its log.
pub(super) const JOURNAL_BLOCKS_MIN: u64 = 1024;

/// How many blocks of fast commits a journal can have. A single one holds none, and Linux and e2fsck do not replay a log in front of it.
fn room_for_fast_commits(len: u32) -> u32 {
    let room = u64::from(len).saturating_sub(JOURNAL_BLOCKS_MIN) as u32;
    match room.min(DEFAULT_FAST_COMMIT_BLOCKS) {
        1 => 0,
        room => room,
    }
}

/// How many blocks of fast commits a journal's superblock asks for.
fn fast_commit_blocks(raw: &RawJournalSuperblock) -> u32 {
    match raw.num_fc_blks.get() {
        0 => DEFAULT_FAST_COMMIT_BLOCKS,
        found => found,
    }
}

/// Gives a journal this many blocks of fast commits.
pub(super) fn set_fast_commit_blocks(raw: &mut RawJournalSuperblock, blocks: u32) {
    raw.num_fc_blks.set(blocks);
    if blocks == 0 {
        let incompat = raw.feature_incompat.get();
        let without = incompat & !JournalIncompat::FAST_COMMIT.bits();
        raw.feature_incompat.set(without);
    }
}

/// Puts a changed superblock into the bytes of its block.
fn store(raw: &mut RawJournalSuperblock, bytes: &mut [u8]) {
    raw.set_checksum();
    if let Some(dest) = bytes.get_mut(..SUPERBLOCK_SIZE) {
        dest.copy_from_slice(raw.as_bytes());
    }
}

impl Checker {
    /// Records what the journal's head contradicts itself in. Whether the caller is to mend it, unless [`Checker::settle_head`] finds that preening must not.
    fn head_fault(&mut self, kind: IssueKind) -> bool {
        if self.mode() != Mode::Preen {
            return self.problem(kind);
        }
        self.head_faults.push(kind);
        true
    }

    /// Reports what the head contradicts itself in; `certain`: preening mends it. Whether nothing stands in the way of a replay.
    pub fn settle_head(&mut self, certain: bool) -> bool {
        for kind in std::mem::take(&mut self.head_faults) {
            if !self.log.problem_judged(kind, certain) {
                self.log_blocks = None;
                self.fast_commit_blocks = None;
                self.log_end_is_guessed = false;
            }
        }
        certain
    }

    /// Decides whether preening mends a head that contradicts itself. It does where the log is empty, and where its blocks leave no doubt about what waits. `None` where it must
    /// not: then the log is not touched. The head to replay with otherwise.
    pub fn preened_head(
        &mut self,
        pieces: &[Piece],
        head: &JournalSuperblock,
        waits: bool,
    ) -> Result<Option<JournalSuperblock>, CheckError> {
        let mut head = head.clone();
        if self.mode() != Mode::Preen || self.head_faults.is_empty() {
            return Ok(Some(head));
        }
        // Without room for fast commits the volume loses the feature: that is for a person to decide.
        let wants_room = self.sb.features().has_compat(Compat::FAST_COMMIT);
        let mut certain = !(wants_room && self.fast_commit_blocks == Some(0));
        if certain && (waits || head.start.is_some()) {
            let end = match waits && head.start.is_some() {
                true => self.journal_log(pieces, &head).certain_end()?,
                // The superblock and the journal's head do not agree.
                false => None,
            };
            certain = end.is_some();
            head.log_end = end.unwrap_or(head.log_end);
            // Behind a wrong end there may be transactions that follow.
            self.log_end_is_guessed |= certain;
        }
        Ok(self.settle_head(certain).then_some(head))
    }

    /// The kernel uses no journal whose log is shorter than the shortest journal there can be. Its transactions may be anywhere in the journal's file; so may they
    /// where the log begins behind its end. Linux and mke2fs have every log begin at block 1.
    pub fn check_log_length(&mut self, bytes: &mut [u8], blocks: u64) {
        let Ok((mut raw, _)) = RawJournalSuperblock::read_from_prefix(bytes) else {
            return;
        };
        let Ok(file) = u32::try_from(blocks) else {
            return;
        };
        let (len, first, start) = (raw.maxlen.get(), raw.first.get(), raw.start.get());
        match self.journal_head(bytes, blocks) {
            Ok(_) => {}
            // A length of nearly nothing or more than the file has, a beginning of the log and of its transactions behind that length.
            Err(IssueKind::JournalSuperblock { error }) => match *error.0 {
                FormatError::JournalLength { .. }
                    if u64::from(len) < JOURNAL_BLOCKS_MIN || len > file => {}
                FormatError::JournalFirst { .. } | FormatError::JournalStart { .. } => {}
                _ => return,
            },
            Err(_) => return,
        }
        let found = len.saturating_sub(first).saturating_add(1);
        let begins_behind = (len..file).contains(&start) && first <= start;
        let wrong_len = u64::from(found) < JOURNAL_BLOCKS_MIN || begins_behind || len > file;
        // The transactions begin in front of the log.
        let wrong_first = first == 0 || (start != 0 && start < first);
        let (field, found, len) = match (wrong_len, wrong_first) {
            (true, _) => ("length of the log", found, file),
            (false, true) => ("first block of the log", first, len),
            (false, false) => return,
        };
        raw.maxlen.set(len);
        raw.first.set(1);
        let mut whole = bytes.to_vec();
        store(&mut raw, &mut whole);
        if self.journal_head(&whole, blocks).is_err() {
            return;
        }
        if self.head_fault(IssueKind::JournalField { field, found }) {
            self.log_blocks = Some(len);
        }
        bytes.copy_from_slice(&whole);
        if wrong_len && start != 0 {
            self.guess_log_end(&mut raw, bytes);
        }
    }

    /// Has the whole journal count as the log, until its transactions and fast commits tell where it ends.
    fn guess_log_end(&mut self, raw: &mut RawJournalSuperblock, bytes: &mut [u8]) {
        self.log_end_is_guessed = true;
        set_fast_commit_blocks(raw, 0);
        store(raw, bytes);
    }

    /// The kernel uses no journal whose blocks of fast commits leave a log that is shorter than the shortest journal there can be, and replays none with a single
    /// such block. A log that begins in these blocks contradicts their number.
    pub fn check_fast_commit_area(&mut self, bytes: &mut [u8], blocks: u64) {
        let Ok((mut raw, _)) = RawJournalSuperblock::read_from_prefix(bytes) else {
            return;
        };
        let incompat = JournalIncompat::from_bits_retain(raw.feature_incompat.get());
        let head = JournalSuperblock::parse(bytes, Some(blocks));
        let possible = matches!(
            head,
            Ok(_)
                | Err(FormatError::JournalLength { .. }
                    | FormatError::JournalFirst { .. }
                    | FormatError::JournalStart { .. })
        );
        // Version 1 has no features.
        let second = raw.header.blocktype.get() == 4;
        if !possible || !second || !incompat.contains(JournalIncompat::FAST_COMMIT) {
            return;
        }
        let len = match u64::from(raw.maxlen.get()) {
            len if len < JOURNAL_BLOCKS_MIN || len > blocks => blocks,
            len => len,
        };
        let found = fast_commit_blocks(&raw);
        let (first, start) = (u64::from(raw.first.get()), u64::from(raw.start.get()));
        let waits = start != 0;
        let fits = len >= JOURNAL_BLOCKS_MIN + u64::from(found);
        let area = len.saturating_sub(u64::from(found))..len;
        let begins_there = waits && first <= start && area.contains(&start);
        let sound = fits && !begins_there && !(waits && found == 1);
        if len < JOURNAL_BLOCKS_MIN || sound {
            return;
        }
        let room = room_for_fast_commits(u32::try_from(len).unwrap_or(u32::MAX));
        let field = "number of blocks of fast commits";
        if self.head_fault(IssueKind::JournalField { field, found }) {
            self.fast_commit_blocks = Some(room);
        }
        if !fits || begins_there {
            self.guess_log_end(&mut raw, bytes);
        }
    }

    /// With fast_commit, the kernel mounts no volume whose journal has no room for its blocks of fast commits. It makes room for them at the mount, when the
    /// journal has none yet.
    pub fn check_room_for_fast_commits(&mut self) -> Result<(), CheckError> {
        let mut features = self.sb.features();
        let ino = Ino(self.sb.journal_inum.get());
        let wanted = Compat::HAS_JOURNAL | Compat::FAST_COMMIT;
        if !features.compat.contains(wanted) || ino.0 == 0 || self.journal_store.is_some() {
            return Ok(());
        }
        let Some(inode) = self.read_inode(ino)? else {
            return Ok(());
        };
        if !self.holds_journal(ino, &inode)? {
            return Ok(());
        }
        let Some(place) = self.blocks_of(ino, &inode)?.first().copied() else {
            return Ok(());
        };
        let mut bytes = self.store.read(place, "journal superblock")?;
        let Ok((mut raw, _)) = RawJournalSuperblock::read_from_prefix(&bytes) else {
            return Ok(());
        };
        let len = raw.maxlen.get();
        let incompat = JournalIncompat::from_bits_retain(raw.feature_incompat.get());
        // Where the journal has such blocks, their number was checked.
        let has_blocks = incompat.contains(JournalIncompat::FAST_COMMIT);
        let least = JOURNAL_BLOCKS_MIN + u64::from(fast_commit_blocks(&raw));
        let second = raw.header.blocktype.get() == 4;
        if !second || has_blocks || u64::from(len) >= least {
            return Ok(());
        }
        let what = "fast_commit, but the journal has no room for it";
        if !self.problem(IssueKind::FeatureContradiction { what }) {
            return Ok(());
        }
        let room = room_for_fast_commits(len);
        set_fast_commit_blocks(&mut raw, room);
        store(&mut raw, &mut bytes);
        self.write(place, bytes);
        if room == 0 {
            features.compat.remove(Compat::FAST_COMMIT);
            self.sb.set_features(features);
            self.follow_features();
        }
        Ok(())
    }

    /// The head of a journal with the end of its log, where that is not known.
    pub fn seek_log_end(
        &self,
        pieces: &[Piece],
        head: &JournalSuperblock,
    ) -> Result<JournalSuperblock, CheckError> {
        let mut head = head.clone();
        if self.log_end_is_guessed {
            let log = self.journal_log(pieces, &head);
            let guesses = [head.len - room_for_fast_commits(head.len), head.len];
            if let Some(end) = log.seek_end(&guesses)? {
                head.log_end = end;
            }
        }
        Ok(head)
    }
}
