//! The journal: finding it, and bringing the volume up to what it says.
//!
//! A read-only check lays logged blocks over the volume in memory. A repair writes them to their places, marks the journal
//! empty, and only then begins. So a repair that is interrupted never has the journal replayed over it.

use blockwright_ondisk::ext4::inode::InodeFlags;
use blockwright_ondisk::ext4::jbd2::{
    JournalIncompat, JournalSuperblock, RawJournalSuperblock, SUPERBLOCK_SIZE,
};
use blockwright_ondisk::ext4::superblock::RawSuperblock;
use blockwright_ondisk::ext4::{
    BlockNo, Compat, FileKind, Incompat, Ino, Inode, Superblock, extent,
};
use zerocopy::{FromBytes, IntoBytes};

use super::CheckError;
use super::context::Checker;
use super::issue::IssueKind;
use super::log_area::{JOURNAL_BLOCKS_MIN, set_fast_commit_blocks};
use super::mapping::{Collect, Piece, Walk};
use super::replay::{Log, Logged, Replay};
use super::store::Store;
use super::superblock::first_inode;
use crate::Mode;

/// The superblock holds a copy of the journal inode's block area and size.
const JOURNAL_BACKUP_BLOCKS: u8 = 1;
/// Journal features understood here.
const KNOWN: JournalIncompat = JournalIncompat::REVOKE
    .union(JournalIncompat::BIT64)
    .union(JournalIncompat::ASYNC_COMMIT)
    .union(JournalIncompat::CSUM_V2)
    .union(JournalIncompat::CSUM_V3)
    .union(JournalIncompat::FAST_COMMIT);

/// Blocks of the log that are read before they are put in their places.
const REPLAYED_AT_ONCE: usize = 256;

/// Whether a journal's pieces have no hole.
fn is_whole(pieces: &[Piece]) -> bool {
    let mut next = 0;
    pieces.iter().all(|p| {
        let here = p.logical == next;
        next = p.end();
        here
    })
}

/// Whether two of a journal's blocks are the same one.
fn overlaps(pieces: &[Piece]) -> bool {
    let mut places: Vec<_> = pieces
        .iter()
        .map(|p| (p.physical.0, u64::from(p.len)))
        .collect();
    places.sort_unstable();
    places.windows(2).any(|w| w[0].0 + w[0].1 > w[1].0)
}

impl Checker {
    /// Replays the journal, or says why it cannot be.
    pub fn recover_journal(&mut self) -> Result<(), CheckError> {
        let features = self.sb.features();
        if !features.has_compat(Compat::HAS_JOURNAL) {
            if self.journal_store.is_some() {
                return Err(CheckError::JournalDevice {
                    what: "the volume has no journal".to_owned(),
                });
            }
            if features.has_incompat(Incompat::NEEDS_RECOVERY)
                && self.problem(IssueKind::FeatureContradiction {
                    what: "recovery is needed, but there is no journal",
                })
            {
                self.clear_recovery_flag();
            }
            return Ok(());
        }
        let mut ino = Ino(self.sb.journal_inum.get());
        if ino.0 == 0 {
            // A device is known by its UUID. A number alone names none: numbers change from boot to boot.
            if self.sb.journal_uuid != [0; 16] {
                return self.recover_external();
            }
            if !self.problem(IssueKind::FeatureContradiction {
                what: "has_journal is set, but there is neither journal inode nor device",
            }) {
                return Ok(());
            }
            // The log to be replayed may be in the inode that is reserved for it; if that is not a journal,
            // the next step reports it.
            ino = Ino::JOURNAL;
            self.sb.journal_inum.set(ino.0);
            self.touch_superblock();
        }
        if self.journal_store.is_some() {
            return Err(CheckError::JournalDevice {
                what: "the volume's journal is a file of its own".to_owned(),
            });
        }
        self.restore_journal_inode(ino)?;
        let Some(pieces) = self.journal_pieces(ino)? else {
            return Ok(());
        };
        let Some(place) = pieces.first().map(|p| p.physical) else {
            return Ok(());
        };
        let mut bytes = self.store.read(place, "journal superblock")?;
        let blocks = pieces.last().map_or(0, Piece::end);
        self.check_fast_commit_area(&mut bytes, blocks);
        self.check_log_length(&mut bytes, blocks);
        let head = match self.journal_head(&bytes, blocks) {
            Ok(head) => head,
            Err(kind) => {
                let certain = self.is_journal_place(ino, &bytes)?;
                self.settle_head(false);
                if self.problem(kind) {
                    if certain {
                        self.reset_journal(place, blocks)?;
                    } else {
                        // What lies there may be anything, an inode table for instance.
                        let inode = self.read_inode(ino)?;
                        self.new_journal = Some(self.old_journal(inode.as_ref(), blocks));
                        self.drop_journal(ino)?;
                    }
                }
                return Ok(());
            }
        };
        self.recover_log(place, &pieces, &head)
    }

    /// The same for a journal on a device of its own. Without it nothing that waits to be replayed may be ignored: a
    /// later replay would undo every repair.
    fn recover_external(&mut self) -> Result<(), CheckError> {
        if self.journal_store.is_none() {
            if self.sb.features().has_incompat(Incompat::NEEDS_RECOVERY) {
                return Err(CheckError::JournalElsewhere {
                    uuid: self.sb.journal_uuid,
                });
            }
            self.problem(IssueKind::JournalExternal);
            return Ok(());
        }
        let refuse = |what: String| CheckError::JournalDevice { what };
        let geo = self.geo.clone();
        // A superblock like a volume's comes first, then the journal's own.
        let store = self.log_store();
        let bytes = store.read(geo.super_block(), "journal device")?;
        let at = if geo.super_block().0 == 0 { 1024 } else { 0 };
        let raw = RawSuperblock::read(bytes.get(at..).unwrap_or(&[]))
            .map_err(|e| refuse(e.to_string()))?;
        if !raw.features().has_incompat(Incompat::JOURNAL_DEV) {
            return Err(refuse("it is no journal device".to_owned()));
        }
        if raw.uuid != self.sb.journal_uuid {
            return Err(refuse("it is the journal of another volume".to_owned()));
        }
        let place = BlockNo(geo.super_block().0 + 1);
        let mut bytes = store.read(place, "journal superblock")?;
        let blocks = raw.blocks_count().min(store.blocks());
        self.check_fast_commit_area(&mut bytes, blocks);
        let pieces = [Piece {
            logical: 0,
            physical: BlockNo(0),
            len: u32::try_from(blocks).unwrap_or(u32::MAX),
            unwritten: false,
        }];
        let head = self
            .journal_head(&bytes, blocks)
            .map_err(|kind| refuse(kind.to_string()))?;
        self.recover_log(place, &pieces, &head)
    }

    /// Where the journal's blocks are read and written.
    pub(super) fn log_store(&self) -> &Store {
        self.journal_store.as_ref().unwrap_or(&self.store)
    }

    /// Replays a journal that was found, where there is something to replay.
    fn recover_log(
        &mut self,
        place: BlockNo,
        pieces: &[Piece],
        head: &JournalSuperblock,
    ) -> Result<(), CheckError> {
        // A block of multiple-mount protection that is damaged says nothing of the log: e2fsck replays it, too.
        let besides = |kind: &IssueKind| !matches!(kind, IssueKind::Mmp { .. });
        if self.mode() == Mode::Preen && self.log.has_unsafe(besides) {
            // What a person has to see first may be about the log.
            self.settle_head(false);
            return Ok(());
        }
        let waits = self.sb.features().has_incompat(Incompat::NEEDS_RECOVERY);
        let Some(head) = self.preened_head(pieces, head, waits)? else {
            return Ok(());
        };
        let takes_errno =
            head.errno != 0 && self.problem(IssueKind::JournalErrno { errno: head.errno });
        let mended = self.log_blocks.is_some() || self.fast_commit_blocks.is_some();
        if (takes_errno || mended) && head.start.is_none() {
            let bytes = self.log_store().read(place, "journal superblock")?;
            self.store_journal_head(place, bytes, head.sequence)?;
        }
        let features = self.sb.features();
        let flag = features.has_incompat(Incompat::NEEDS_RECOVERY);
        match (head.start.is_some(), flag) {
            (false, false) => Ok(()),
            (false, true) => {
                if self.problem(IssueKind::RecoveryFlagSet) {
                    self.clear_recovery_flag();
                }
                Ok(())
            }
            (true, flag) => {
                if !flag {
                    self.problem(IssueKind::RecoveryFlagMissing);
                }
                if self.mode() == Mode::Preen {
                    // A head that contradicts itself was judged before.
                    return match flag {
                        true => self.replay_journal(place, pieces, &head),
                        false => Ok(()),
                    };
                }
                let head = self.seek_log_end(pieces, &head)?;
                self.replay_journal(place, pieces, &head)
            }
        }
    }

    /// Whether the superblock says that the journal is on another device.
    pub(super) fn names_journal_device(&self) -> bool {
        self.sb.journal_uuid != [0; 16] || self.sb.journal_dev.get() != 0
    }

    pub(super) fn journal_head(
        &self,
        bytes: &[u8],
        blocks: u64,
    ) -> Result<JournalSuperblock, IssueKind> {
        let head = JournalSuperblock::parse(bytes, Some(blocks)).map_err(|error| {
            IssueKind::JournalSuperblock {
                error: error.into(),
            }
        })?;
        if head.block_size != self.geo.block_size {
            return Err(IssueKind::JournalSuperblock {
                error: blockwright_ondisk::ext4::FormatError::JournalBlockSize {
                    found: head.block_size,
                }
                .into(),
            });
        }
        let users = head.raw.nr_users.get();
        if users > 1 {
            return Err(IssueKind::JournalField {
                field: "number of users",
                found: users,
            });
        }
        let incompat = head.incompat.difference(KNOWN).bits();
        if incompat != 0 || head.ro_compat != 0 {
            return Err(IssueKind::JournalFeatures {
                incompat,
                ro_compat: head.ro_compat,
            });
        }
        Ok(head)
    }

    /// Whether an inode maps a journal, all of it, with a head that can be used.
    pub(super) fn holds_journal(&self, ino: Ino, inode: &Inode) -> Result<bool, CheckError> {
        if inode.kind() != Some(FileKind::Regular) || inode.links == 0 {
            return Ok(false);
        }
        let map = self.mapping_of(ino, inode)?;
        let whole = is_whole(&map.pieces) && !overlaps(&map.pieces);
        let next = map.pieces.last().map_or(0, Piece::end);
        let Some(first) = map.pieces.first().filter(|_| whole) else {
            return Ok(false);
        };
        let bytes = self.store.read(first.physical, "journal superblock")?;
        Ok(next >= JOURNAL_BLOCKS_MIN && self.journal_head(&bytes, next).is_ok())
    }

    /// The superblock keeps a copy of what the journal's inode maps. When the inode leads to no
    /// journal and the copy does, the inode is made again: what waits in the journal is not lost.
    fn restore_journal_inode(&mut self, ino: Ino) -> Result<(), CheckError> {
        let geo = self.geo.clone();
        let old = self.read_inode(ino)?;
        if ino != Ino::JOURNAL || self.sb.jnl_backup_type != JOURNAL_BACKUP_BLOCKS {
            return Ok(());
        }
        if let Some(inode) = &old
            && self.holds_journal(ino, inode)?
        {
            return Ok(());
        }
        let mut new = Inode::new(&geo, 0o100_600);
        new.links = 1;
        for (bytes, word) in new.block.chunks_exact_mut(4).zip(&self.sb.jnl_blocks) {
            bytes.copy_from_slice(&word.get().to_le_bytes());
        }
        let (high, low) = (self.sb.jnl_blocks[15].get(), self.sb.jnl_blocks[16].get());
        new.size = u64::from(high) << 32 | u64::from(low);
        let root = u16::from_le_bytes([new.block[0], new.block[1]]);
        if root == extent::MAGIC && geo.features.has_incompat(Incompat::EXTENT) {
            new.flags |= InodeFlags::EXTENTS;
        }
        if let Some(old) = &old {
            // Blocks of an extent tree are signed with it.
            new.generation = old.generation;
            (new.atime, new.ctime, new.mtime) = (old.atime, old.ctime, old.mtime);
        }
        if !self.holds_journal(ino, &new)?
            || !self.problem(IssueKind::JournalInode {
                ino,
                what: "the superblock's copy of it is right",
            })
        {
            return Ok(());
        }
        let mut raw = vec![0; usize::from(geo.inode_size)];
        if new.encode_into(&mut raw, &geo, ino).is_ok() {
            self.write_raw_inode(ino, raw)?;
        }
        Ok(())
    }

    /// Whether a damaged journal is where its inode says: either its head still looks like one, or
    /// the superblock's copy of the inode says the same.
    fn is_journal_place(&self, ino: Ino, head: &[u8]) -> Result<bool, CheckError> {
        if head[..4] == blockwright_ondisk::ext4::jbd2::MAGIC_BYTES {
            return Ok(true);
        }
        let Some(inode) = self.read_inode(ino)? else {
            return Ok(false);
        };
        let copy = self.sb.jnl_blocks.iter().take(15);
        let same = inode
            .block
            .chunks_exact(4)
            .zip(copy)
            .all(|(bytes, word)| bytes == word.get().to_le_bytes());
        Ok(same && self.sb.jnl_backup_type == JOURNAL_BACKUP_BLOCKS)
    }

    /// Whether the repairs left the journal unusable: then it is given up, and made again.
    pub fn give_up_broken_journal(&mut self) -> Result<bool, CheckError> {
        let ino = Ino(self.sb.journal_inum.get());
        if !self.sb.features().has_compat(Compat::HAS_JOURNAL) || ino.0 == 0 {
            return Ok(false);
        }
        let inode = self.read_inode(ino)?;
        if let Some(inode) = &inode
            && self.holds_journal(ino, inode)?
        {
            return Ok(false);
        }
        let what = "what its inode maps is no journal any more";
        if !self.problem(IssueKind::JournalInode { ino, what }) {
            return Ok(false);
        }
        self.new_journal = Some(self.old_journal(inode.as_ref(), 0));
        self.drop_journal(ino)?;
        Ok(true)
    }

    /// What the journal's inode maps; `None` when it is unusable, which was reported.
    fn journal_pieces(&mut self, ino: Ino) -> Result<Option<Vec<Piece>>, CheckError> {
        let inode = self.read_inode(ino)?;
        let mut map = Collect::default();
        let what = match &inode {
            None => Some("no such inode"),
            Some(inode) if inode.kind() != Some(FileKind::Regular) => Some("no regular file"),
            Some(inode) if inode.links == 0 => Some("not in use"),
            Some(inode) => {
                let walk = Walk {
                    store: &self.store,
                    geo: &self.geo,
                    ino,
                    inode,
                };
                walk.run(&mut map)?;
                let next = map.pieces.last().map_or(0, Piece::end);
                if !is_whole(&map.pieces) {
                    Some("it has holes")
                } else if overlaps(&map.pieces) {
                    Some("it has a block twice")
                } else if next < JOURNAL_BLOCKS_MIN {
                    Some("it is too short")
                } else {
                    None
                }
            }
        };
        let Some(what) = what else {
            let size = map.pieces.last().map_or(0, Piece::end) << self.geo.block_bits;
            // Old versions of mke2fs gave the file one block more than its size says.
            let least = size.saturating_sub(u64::from(self.geo.block_size));
            if inode.is_some_and(|i| i.size != size && i.size != least)
                && self.problem(IssueKind::JournalInode {
                    ino,
                    what: "its size is not that of its blocks",
                })
            {
                self.edit_inode(ino, |edit| edit.size(size, true))?;
            }
            return Ok(Some(map.pieces));
        };
        if self.problem(IssueKind::JournalInode { ino, what }) {
            let mapped = map.pieces.last().map_or(0, Piece::end);
            self.new_journal = Some(self.old_journal(inode.as_ref(), mapped));
            self.drop_journal(ino)?;
        }
        Ok(None)
    }

    fn clear_recovery_flag(&mut self) {
        let mut features = self.sb.features();
        features.incompat.remove(Incompat::NEEDS_RECOVERY);
        self.sb.set_features(features);
        self.follow_features();
    }

    /// The volume has no journal, until it gets a new one.
    fn drop_journal(&mut self, ino: Ino) -> Result<(), CheckError> {
        let mut features = self.sb.features();
        features
            .compat
            .remove(Compat::HAS_JOURNAL | Compat::FAST_COMMIT);
        features.incompat.remove(Incompat::NEEDS_RECOVERY);
        self.sb.set_features(features);
        self.sb.journal_inum.set(0);
        self.sb.jnl_backup_type = 0;
        self.sb.jnl_blocks = Default::default();
        self.follow_features();
        self.clear_inode(ino)
    }

    /// An empty journal in the place of a damaged one.
    fn reset_journal(&mut self, place: BlockNo, blocks: u64) -> Result<(), CheckError> {
        let mut raw = RawJournalSuperblock::zeroed();
        self.fill_journal_head(&mut raw, blocks);
        let mut bytes = vec![0; self.geo.block_len()];
        bytes[..SUPERBLOCK_SIZE].copy_from_slice(raw.as_bytes());
        self.write(place, bytes);
        self.clear_recovery_flag();
        Ok(())
    }

    /// The head of an empty journal. Its transactions are numbered from where no old one in the log
    /// can follow: those began at 1.
    pub fn fill_journal_head(&self, raw: &mut RawJournalSuperblock, blocks: u64) {
        raw.header.magic.set(blockwright_ondisk::ext4::jbd2::MAGIC);
        raw.header.blocktype.set(4);
        raw.blocksize.set(self.geo.block_size);
        raw.maxlen.set(u32::try_from(blocks).unwrap_or(u32::MAX));
        raw.first.set(1);
        raw.sequence.set((self.now as u32 & 0x3FFF_FFFF).max(1));
        raw.nr_users.set(1);
        raw.uuid = self.sb.uuid;
    }

    /// Stores the journal's head as empty, without an error.
    fn store_journal_head(
        &mut self,
        place: BlockNo,
        mut bytes: Vec<u8>,
        sequence: u32,
    ) -> Result<(), CheckError> {
        if let Ok((mut raw, _)) = RawJournalSuperblock::read_from_prefix(&bytes) {
            raw.start.set(0);
            raw.sequence.set(sequence);
            raw.errno.set(0);
            if let Some(blocks) = self.log_blocks.take() {
                raw.maxlen.set(blocks);
                raw.first.set(1);
            }
            if let Some(blocks) = self.fast_commit_blocks.take() {
                set_fast_commit_blocks(&mut raw, blocks);
            }
            raw.set_checksum();
            bytes[..SUPERBLOCK_SIZE].copy_from_slice(raw.as_bytes());
            let Some(store) = &mut self.journal_store else {
                self.write(place, bytes);
                return Ok(());
            };
            store.write(place, bytes);
            store.write_back(BlockNo(0))?;
            self.wrote_journal = true;
        }
        Ok(())
    }

    fn replay_journal(
        &mut self,
        place: BlockNo,
        pieces: &[Piece],
        head: &JournalSuperblock,
    ) -> Result<(), CheckError> {
        let log = self.journal_log(pieces, head);
        let mut replay = self.read_log(&log)?;
        // A volume that grew while it was mounted: the log holds its new superblock, and blocks behind its former end.
        let logged = replay.blocks.get(&self.geo.super_block().0).copied();
        if let Some(logged) = logged
            && let Some(bytes) = log.contents(logged)?
            && let Some(larger) = self.larger_superblock(&bytes)
        {
            self.grown_blocks = Some(larger);
            self.store.grow(larger);
        }
        let log = self.journal_log(pieces, head);
        if self.grown_blocks.is_some() {
            replay = self.read_log(&log)?;
        }
        if self.mode() == Mode::Preen && !replay.problems.is_empty() {
            // What is lost with a damaged transaction is for a person to see first.
            for kind in replay.problems {
                self.problem(kind);
            }
            self.grown_blocks = None;
            return Ok(());
        }
        let fast = if replay.unsafe_to_replay {
            super::fast_commit::FastCommits::default()
        } else {
            log.fast_commits(replay.next_sequence)?
        };
        if self.log_end_is_guessed {
            // Behind a wrong end there may be transactions that follow.
            replay.next_sequence = log.behind_all();
        }
        for kind in std::mem::take(&mut replay.problems) {
            self.problem(kind);
        }
        if fast.unknown {
            // Throwing them away would lose what an fsync promised: nothing is changed, and the
            // check sees the volume after the last full transaction.
            self.problem(IssueKind::FastCommitUnknown);
            self.log.mode = Mode::ReadOnly;
        }
        self.replayed = replay.transactions;
        self.problem(IssueKind::JournalReplayed {
            transactions: replay.transactions,
        });
        self.apply_replay(pieces, head, &replay)?;
        // What was found of another one counts on: for instance, that its features were lost.
        match replay.blocks.contains_key(&self.geo.super_block().0) {
            true => self.reload_superblock()?,
            false => self.load_groups()?,
        }
        if !fast.unknown && fast.records > 0 {
            if !self.apply_fast_commits(pieces, head, &fast)? {
                // As for unknown ones. The log stays, and what is home of it may go there again.
                self.problem(IssueKind::FastCommitTooMany);
                self.log.mode = Mode::ReadOnly;
                return Ok(());
            }
            self.problem(IssueKind::FastCommitReplayed {
                records: fast.records,
            });
            self.usage_is_old = true;
            if self.repairing() {
                // Home before the journal says that it is empty.
                self.store_superblock()?;
                self.store.write_back(self.geo.super_block())?;
            }
        }
        if self.repairing() {
            let bytes = self.log_store().read(place, "journal superblock")?;
            // One number is left out: fast commits on top of the old one never count again.
            let next = replay.next_sequence.wrapping_add(1);
            self.store_journal_head(place, bytes, next)?;
        }
        if self.repairing() {
            self.clear_recovery_flag();
            self.store_superblock()?;
            self.store.write_back(self.geo.super_block())?;
            self.wrote_journal = true;
        } else {
            let mut features = self.sb.features();
            features.incompat.remove(Incompat::NEEDS_RECOVERY);
            self.sb.set_features(features);
        }
        Ok(())
    }

    /// What a replay of the log does. A log of which a part is lost is not replayed.
    fn read_log(&self, log: &Log<'_>) -> Result<Replay, CheckError> {
        let lost = match self.log_end_is_guessed {
            true => log.lost_part()?,
            false => None,
        };
        match lost {
            Some((sequence, block)) => Ok(Replay {
                unsafe_to_replay: true,
                next_sequence: log.behind_all(),
                problems: vec![IssueKind::JournalTransaction { sequence, block }],
                ..Replay::default()
            }),
            None => log.replay(),
        }
    }

    fn apply_replay(
        &mut self,
        pieces: &[Piece],
        head: &JournalSuperblock,
        replay: &Replay,
    ) -> Result<(), CheckError> {
        let superblock = self.geo.super_block();
        let mut batch = 0usize;
        // In the order of the log, which is read in runs.
        let mut order: Vec<(u64, Logged)> = replay.blocks.iter().map(|(b, l)| (*b, *l)).collect();
        order.sort_unstable_by_key(|(_, logged)| logged.at);
        for part in order.chunks(REPLAYED_AT_ONCE) {
            let log = self.journal_log(pieces, head);
            let mut copies = Vec::with_capacity(part.len());
            for (block, logged) in part {
                if log.changes_nothing(&self.store, *block, *logged) {
                    continue;
                }
                if let Some(bytes) = log.contents(*logged)? {
                    copies.push((BlockNo(*block), bytes));
                }
            }
            for (block, bytes) in copies {
                if self.repairing() {
                    self.write(block, bytes);
                    batch += self.geo.block_len();
                } else {
                    self.store.shadow(block, bytes);
                }
            }
            // Bounded memory: the journal stays marked until all is written, so a crash
            // between batches only means replaying again.
            if batch > 64 << 20 {
                self.store.write_back(superblock)?;
                self.store.forget_clean();
                batch = 0;
            }
        }
        if self.repairing() {
            self.store.write_back(superblock)?;
            self.store.forget_clean();
            self.wrote_journal = true;
        }
        Ok(())
    }

    /// The journal with these blocks and this head, to be read.
    pub(super) fn journal_log<'a>(
        &'a self,
        pieces: &'a [Piece],
        head: &'a JournalSuperblock,
    ) -> Log<'a> {
        Log::new(self.log_store(), pieces, head, self.blocks_in_log())
    }

    /// The most blocks that the volume has once the log is home.
    fn blocks_in_log(&self) -> u64 {
        self.grown_blocks.unwrap_or(0).max(self.geo.blocks_count)
    }

    /// The blocks of a volume whose superblock this block of the log is, if they are more than now, and on the device.
    fn larger_superblock(&self, bytes: &[u8]) -> Option<u64> {
        let at = if self.geo.super_block().0 == 0 {
            1024
        } else {
            0
        };
        let raw = RawSuperblock::read(bytes.get(at..at + 1024)?).ok()?;
        raw.verify_checksum().ok()?;
        let sb = Superblock::from_raw(raw, None).ok()?;
        let fits = sb.geo.block_size == self.geo.block_size
            && sb.geo.blocks_count > self.geo.blocks_count
            && sb.geo.blocks_count <= self.store.device_blocks();
        fits.then_some(sb.geo.blocks_count)
    }

    /// The journal held a newer superblock.
    fn reload_superblock(&mut self) -> Result<(), CheckError> {
        let place = self.geo.super_block();
        let bytes = self.store.read(place, "superblock")?;
        let at = if place.0 == 0 { 1024 } else { 0 };
        let Some(raw) = bytes.get(at..at + 1024) else {
            return Ok(());
        };
        if let Ok(raw) = RawSuperblock::read(raw)
            && raw.verify_checksum().is_ok()
            && let Ok(mut sb) = Superblock::from_raw(raw, None)
            && sb.geo.block_size == self.geo.block_size
            && sb.geo.blocks_count <= self.blocks_in_log()
        {
            let first = first_inode(&mut sb);
            if first.is_some_and(|kind| self.problem(kind)) {
                self.touch_superblock();
            }
            self.sb = sb.raw;
            if sb.geo.blocks_count > self.geo.blocks_count {
                self.scan = super::state::Scan::new(&sb.geo);
            }
            self.geo = std::sync::Arc::new(sb.geo);
        }
        self.load_groups()
    }
}
