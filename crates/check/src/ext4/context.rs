//! What all parts of a check share: the volume, the log of issues, and the state of a round.
//!
//! The check is one thread, and its parts run one after another. A part sets fields for those behind it; `run_round` has their order.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use blockwright_ondisk::ext4::{
    BlockNo, FormatError, Geometry, GroupDesc, GroupNo, Ino, Inode, RawSuperblock, inode,
};

use super::issue::IssueKind;
use super::mapping::{Collect, Walk};
use super::state::Scan;
use super::store::Store;
use super::{CheckError, CheckOptions, Phase, Progress};
use crate::Mode;

pub(super) type Log = crate::log::Log<IssueKind>;

/// A check under way.
pub(super) struct Checker {
    pub store: Store,
    /// The blocks of the device that the journal is on, when it is not on the volume.
    pub journal_store: Option<Store>,
    pub geo: Arc<Geometry>,
    /// The superblock, as repaired so far.
    pub sb: RawSuperblock,
    /// It differs from the stored one, and is written at the end of the round.
    pub sb_changed: bool,
    /// The superblock's copies must follow.
    pub sb_copies: bool,
    pub descs: Vec<GroupDesc>,
    pub log: Log,
    pub scan: Scan,
    pub progress: Option<super::ProgressFn>,
    /// Seconds since 1970.
    pub now: u64,
    /// Transactions of the journal that were replayed.
    pub replayed: u64,
    /// The journal was changed on the device: it was replayed, or its head was. An interrupted check says so.
    pub wrote_journal: bool,
    /// Blocks of the volume by the superblock in the log, if they are more: it grew while it was mounted.
    pub grown_blocks: Option<u64>,
    /// Fast-commit records were replayed: the quota files are older than the volume.
    pub usage_is_old: bool,
    /// Directories that lost a damaged index, to be given a new one.
    pub reindex: std::collections::BTreeSet<u32>,
    /// A journal to make in the place of one that was given up.
    pub new_journal: Option<super::state::OldJournal>,
    /// The length to store with the journal's head, when that says a wrong one.
    pub log_blocks: Option<u32>,
    /// The blocks of fast commits to store with it, when these are too many; 0 when there is no room for any.
    pub fast_commit_blocks: Option<u32>,
    /// lost+found is missing, and there is no room for its name.
    pub lost_found_has_no_room: bool,
    /// The end of the log is a guess: what is behind it may be committed.
    pub log_end_is_guessed: bool,
    /// What the journal's head contradicts itself in, while the log has not told yet whether preening may mend it.
    pub head_faults: Vec<IssueKind>,
    /// Blocks of descriptors whose copies must follow.
    pub stale_copies: std::collections::BTreeSet<u32>,
    /// The copies of a block of descriptors that were read last.
    pub copies_read: std::cell::RefCell<(Option<u32>, Vec<Vec<u8>>)>,
    /// Marks of groups that turned out to be wrong, and what they should be. (A read-only check
    /// finds the old ones again in every round.)
    pub raised_marks: std::collections::BTreeMap<u32, u32>,
    pending_before: u64,
    changes: u64,
    changes_before: u64,
}

impl Checker {
    pub fn new(
        store: Store,
        geo: Geometry,
        sb: RawSuperblock,
        log: Log,
        options: &CheckOptions,
    ) -> Self {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| d.as_secs());
        let journal_store = options.journal.clone().map(|device| {
            let blocks = device.geometry().bytes >> geo.block_bits;
            Store::new(device, geo.block_len(), blocks)
        });
        Self {
            store,
            journal_store,
            scan: Scan::new(&geo),
            geo: Arc::new(geo),
            sb,
            sb_changed: false,
            sb_copies: false,
            descs: Vec::new(),
            log,
            progress: options.progress.clone(),
            now,
            replayed: 0,
            wrote_journal: false,
            grown_blocks: None,
            usage_is_old: false,
            reindex: std::collections::BTreeSet::new(),
            new_journal: None,
            log_blocks: None,
            fast_commit_blocks: None,
            lost_found_has_no_room: false,
            log_end_is_guessed: false,
            head_faults: Vec::new(),
            stale_copies: std::collections::BTreeSet::new(),
            copies_read: std::cell::RefCell::default(),
            raised_marks: std::collections::BTreeMap::new(),
            pending_before: 0,
            changes: 0,
            changes_before: 0,
        }
    }

    pub fn mode(&self) -> Mode {
        self.log.mode
    }

    /// Whether this check repairs anything.
    pub fn repairing(&self) -> bool {
        self.log.mode != Mode::ReadOnly
    }

    /// Records an issue. Whether the caller is to repair it.
    pub fn problem(&mut self, kind: IssueKind) -> bool {
        self.log.problem(kind)
    }

    pub fn begin_round(&mut self, round: usize) {
        self.log.begin_round(round);
        self.scan = Scan::new(&self.geo);
        self.changes_before = self.changes;
        self.pending_before = self.store.pending();
    }

    pub fn changed_in_round(&self) -> bool {
        self.changes != self.changes_before || self.store.pending() != self.pending_before
    }

    /// Tells how far the check is. It no longer stops once a repair has written something at once.
    ///
    /// # Errors
    /// [`CheckError::Interrupted`] when it is to stop here.
    pub fn report_progress(&self, phase: Phase, done: u64, total: u64) -> Result<(), CheckError> {
        match &self.progress {
            Some(progress)
                if progress(Progress { phase, done, total }).is_break()
                    && !self.store.has_written_at_once() =>
            {
                Err(CheckError::Interrupted {
                    journal_recovered: self.wrote_journal,
                })
            }
            _ => Ok(()),
        }
    }

    /// Changes a block.
    pub fn write(&mut self, block: BlockNo, bytes: Vec<u8>) {
        self.changes += 1;
        self.store.write(block, bytes);
    }

    /// Changes a block that nothing on the device refers to yet.
    pub fn write_fresh(&mut self, block: BlockNo, bytes: Vec<u8>) {
        self.changes += 1;
        self.store.write_fresh(block, bytes);
    }

    /// The superblock was changed in memory; it is stored at the end of the round.
    pub fn touch_superblock(&mut self) {
        self.changes += 1;
        self.sb_changed = true;
    }

    /// What an inode maps: its pieces, and the blocks of its tree.
    pub fn mapping_of(&self, ino: Ino, inode: &Inode) -> Result<Collect, CheckError> {
        let mut map = Collect::default();
        let (store, geo) = (&self.store, &*self.geo);
        Walk {
            store,
            geo,
            ino,
            inode,
        }
        .run(&mut map)?;
        Ok(map)
    }

    /// Block and byte offset of an inode; `None` for a number that is none.
    pub fn inode_place(&self, ino: Ino) -> Option<(BlockNo, usize)> {
        let (group, _) = self.geo.split_ino(ino)?;
        let table = self.descs.get(group.0 as usize)?.inode_table;
        self.geo
            .inode_location(ino, table)
            .filter(|(block, _)| self.geo.contains_run(*block, 1))
    }

    /// The bytes of an inode.
    pub fn read_raw_inode(&self, ino: Ino) -> Result<Option<Vec<u8>>, CheckError> {
        let Some((block, at)) = self.inode_place(ino) else {
            return Ok(None);
        };
        let bytes = self.store.read(block, "inode table")?;
        Ok(bytes
            .get(at..at + usize::from(self.geo.inode_size))
            .map(<[u8]>::to_vec))
    }

    /// An inode, its checksum not verified; `None` when it cannot be decoded.
    pub fn read_inode(&self, ino: Ino) -> Result<Option<Inode>, CheckError> {
        Ok(self
            .read_raw_inode(ino)?
            .and_then(|raw| decode_lenient(&raw, &self.geo, ino)))
    }

    /// Stores the bytes of an inode with a new checksum.
    pub fn write_raw_inode(&mut self, ino: Ino, mut raw: Vec<u8>) -> Result<(), CheckError> {
        let Some((block, at)) = self.inode_place(ino) else {
            return Ok(());
        };
        if inode::set_checksum(&mut raw, &self.geo, ino).is_err() {
            return Ok(());
        }
        let mut all = self.store.read(block, "inode table")?;
        if let Some(dest) = all.get_mut(at..at + raw.len())
            && *dest != *raw
        {
            dest.copy_from_slice(&raw);
            self.write(block, all);
        }
        Ok(())
    }

    /// Changes some fields of an inode.
    pub fn edit_inode(
        &mut self,
        ino: Ino,
        edit: impl FnOnce(&mut RawEdit<'_>),
    ) -> Result<(), CheckError> {
        let Some(mut raw) = self.read_raw_inode(ino)? else {
            return Ok(());
        };
        edit(&mut RawEdit { raw: &mut raw });
        self.write_raw_inode(ino, raw)
    }

    /// Clears an inode: it is free afterwards. What it held is found to be free by the next round.
    pub fn clear_inode(&mut self, ino: Ino) -> Result<(), CheckError> {
        let len = usize::from(self.geo.inode_size);
        self.write_raw_inode(ino, vec![0; len])
    }

    /// Stores a group's descriptor in its primary place. Where the structure moved the copies follow in the end
    /// ([`Checker::store_desc_copies`]).
    pub fn write_desc(&mut self, group: GroupNo, copies: bool) -> Result<(), CheckError> {
        let geo = self.geo.clone();
        let Some(desc) = self.descs.get(group.0 as usize).copied() else {
            return Ok(());
        };
        let (index, at) = geo.desc_position(group);
        let Some(place) = geo.desc_block(index) else {
            return Ok(());
        };
        if copies {
            self.stale_copies.insert(index);
        }
        let mut bytes = self.store.read(place, "group descriptors")?;
        let Some(slot) = bytes.get_mut(at..at + usize::from(geo.desc_size)) else {
            return Ok(());
        };
        let old = slot.to_vec();
        if desc.encode_into(slot, &geo, group).is_ok() && *slot != *old {
            self.write(place, bytes);
        }
        Ok(())
    }
}

/// Decodes an inode, taking an impossible extra size for none.
pub(super) fn decode_lenient(raw: &[u8], geo: &Geometry, ino: Ino) -> Option<Inode> {
    let mut copy = raw.to_vec();
    // At most both can be wrong, one after the other.
    for _ in 0..3 {
        match Inode::decode(&copy, geo, ino) {
            Ok(inode) => return Some(inode),
            Err(FormatError::InodeExtraSize { .. }) => copy.get_mut(0x80..0x82)?.fill(0),
            // An impossible size: the rest is still worth looking at.
            Err(_) => copy.get_mut(0x6C..0x70)?.fill(0),
        }
    }
    None
}

/// Fields of an inode in its stored form, for edits that must leave everything else alone.
pub(super) struct RawEdit<'a> {
    pub raw: &'a mut Vec<u8>,
}

impl RawEdit<'_> {
    pub fn put16(&mut self, at: usize, value: u16) {
        if let Some(dest) = self.raw.get_mut(at..at + 2) {
            dest.copy_from_slice(&value.to_le_bytes());
        }
    }

    pub fn put32(&mut self, at: usize, value: u32) {
        if let Some(dest) = self.raw.get_mut(at..at + 4) {
            dest.copy_from_slice(&value.to_le_bytes());
        }
    }

    pub fn get32(&self, at: usize) -> u32 {
        self.raw
            .get(at..at + 4)
            .map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }

    /// Both words of `i_size`, whatever the type.
    pub fn stored_size(&self) -> u64 {
        u64::from(self.get32(0x04)) | u64::from(self.get32(0x6C)) << 32
    }

    /// `i_links_count`.
    pub fn links(&mut self, n: u16) {
        self.put16(0x1A, n);
    }

    /// `i_dtime`.
    pub fn dtime(&mut self, n: u32) {
        self.put32(0x14, n);
    }

    /// `i_size`, both words where the file type has both.
    pub fn size(&mut self, n: u64, wide: bool) {
        self.put32(0x04, n as u32);
        if wide {
            self.put32(0x6C, (n >> 32) as u32);
        }
    }

    /// `i_flags`.
    pub fn flags(&mut self, clear: u32, set: u32) {
        let old = self.get32(0x20);
        self.put32(0x20, (old & !clear) | set);
    }

    /// `i_block`.
    pub fn block_area(&mut self, bytes: &[u8]) {
        if let Some(dest) = self.raw.get_mut(0x28..0x28 + 60) {
            let n = bytes.len().min(60);
            dest.fill(0);
            dest[..n].copy_from_slice(&bytes[..n]);
        }
    }
}
