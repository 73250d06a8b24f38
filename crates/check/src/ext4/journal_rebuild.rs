//! A new journal in the place of one whose inode was unusable.
//!
//! Made when everything else is sound, so that it is known what is free. It has the old size, as far
//! as that is known and there is room; otherwise the volume continues without one.

use blockwright_ondisk::ext4::inode::InodeFlags;
use blockwright_ondisk::ext4::jbd2::{RawJournalSuperblock, SUPERBLOCK_SIZE};
use blockwright_ondisk::ext4::{Compat, Incompat, Ino, Inode};
use zerocopy::IntoBytes;

use super::CheckError;
use super::context::Checker;
use super::log_area::JOURNAL_BLOCKS_MIN;
use super::mapping::{Collect, MapSink, Piece};
use super::state::OldJournal;

/// Most blocks of a journal, as tools make them.
const JOURNAL_BLOCKS_MAX: u64 = 10_240_000;
/// Blocks that fast commits get of a journal that has room for them.
const FAST_COMMIT_BLOCKS: u32 = 256;

impl Checker {
    /// Properties of a journal that is given up: its size by its blocks, by its inode, or by the
    /// superblock's copy of the inode.
    pub fn old_journal(&self, inode: Option<&Inode>, mapped: u64) -> OldJournal {
        let backup =
            u64::from(self.sb.jnl_blocks[15].get()) << 32 | u64::from(self.sb.jnl_blocks[16].get());
        let by_size = |bytes: u64| bytes >> self.geo.block_bits;
        let possible = |blocks: &u64| (JOURNAL_BLOCKS_MIN..=JOURNAL_BLOCKS_MAX).contains(blocks);
        let blocks = [
            by_size(backup),
            inode.map_or(0, |i| by_size(i.size)),
            mapped,
        ]
        .into_iter()
        .find(possible)
        .unwrap_or(JOURNAL_BLOCKS_MIN);
        OldJournal {
            blocks: blocks.min(self.geo.blocks_count / 2),
            fast_commit: self.sb.features().has_compat(Compat::FAST_COMMIT),
        }
    }

    /// Makes the journal that was asked for. Called between rounds. Whether anything was changed.
    pub fn rebuild_journal(&mut self) -> Result<bool, CheckError> {
        let Some(old) = self.new_journal.take() else {
            return Ok(false);
        };
        let geo = self.geo.clone();
        if old.blocks < JOURNAL_BLOCKS_MIN {
            return Ok(false);
        }
        let Some(pieces) = self.take_blocks(old.blocks) else {
            return Ok(false);
        };
        // Nothing refers to them yet; what lies there must not be taken for a log.
        for piece in &pieces {
            self.store.zero(piece.physical, u64::from(piece.len))?;
        }
        let mut raw = RawJournalSuperblock::zeroed();
        self.fill_journal_head(&mut raw, old.blocks);
        let fast =
            old.fast_commit && old.blocks > JOURNAL_BLOCKS_MIN + u64::from(FAST_COMMIT_BLOCKS);
        if fast {
            raw.num_fc_blks.set(FAST_COMMIT_BLOCKS);
        }
        let mut head = vec![0; geo.block_len()];
        head[..SUPERBLOCK_SIZE].copy_from_slice(raw.as_bytes());
        self.write_fresh(pieces[0].physical, head);
        let mut inode = Inode::new(&geo, 0o100_600);
        inode.links = 1;
        inode.size = old.blocks << geo.block_bits;
        for time in [&mut inode.mtime, &mut inode.ctime, &mut inode.atime] {
            time.secs = self.now as i64;
        }
        if geo.features.has_incompat(Incompat::EXTENT) {
            inode.flags |= InodeFlags::EXTENTS;
            inode.block[..12].copy_from_slice(&[0x0A, 0xF3, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
        }
        let mut bytes = vec![0; usize::from(geo.inode_size)];
        if inode.encode_into(&mut bytes, &geo, Ino::JOURNAL).is_err() {
            return Ok(false);
        }
        self.write_raw_inode(Ino::JOURNAL, bytes)?;
        if !self.store_mapping(Ino::JOURNAL, &inode, &pieces, 0)? {
            self.clear_inode(Ino::JOURNAL)?;
            return Ok(true);
        }
        let mut features = self.sb.features();
        features.compat |= Compat::HAS_JOURNAL;
        features.compat.set(Compat::FAST_COMMIT, fast);
        self.sb.set_features(features);
        self.sb.journal_inum.set(Ino::JOURNAL.0);
        self.store_journal_backup()?;
        self.follow_features();
        Ok(true)
    }

    /// The superblock keeps a copy of what the journal's inode says.
    fn store_journal_backup(&mut self) -> Result<(), CheckError> {
        let Some(inode) = self.read_inode(Ino::JOURNAL)? else {
            return Ok(());
        };
        self.sb.jnl_backup_type = 1;
        for (word, bytes) in self
            .sb
            .jnl_blocks
            .iter_mut()
            .zip(inode.block.chunks_exact(4))
        {
            word.set(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
        }
        self.sb.jnl_blocks[15].set((inode.size >> 32) as u32);
        self.sb.jnl_blocks[16].set(inode.size as u32);
        Ok(())
    }

    /// This many blocks of free clusters, as the pieces of a file. The last cluster may be larger than
    /// what the file needs of it.
    fn take_blocks(&mut self, count: u64) -> Option<Vec<Piece>> {
        let mut all = Collect::default();
        let middle = self.geo.groups_count / 2;
        let mut near = self
            .geo
            .group_first_block(blockwright_ondisk::ext4::GroupNo(middle));
        let ratio = u64::from(self.geo.cluster_ratio);
        for logical in (0..count).step_by(ratio as usize) {
            let Some(block) = self.scan.used.find_free(near) else {
                for piece in all.pieces {
                    self.scan
                        .used
                        .remove_run(piece.physical, u64::from(piece.len));
                }
                return None;
            };
            self.scan.used.insert_run(block, ratio, None);
            all.piece(Piece {
                logical,
                physical: block,
                len: ratio.min(count - logical) as u32,
                unwritten: false,
            });
            near = block;
        }
        Some(all.pieces)
    }
}
