//! Quota files: whether they are such, and whether what they say is used is.
//!
//! A file that is wrong is written anew, with the limits that can be read, into the blocks it has and as many new ones
//! as it needs. Where the volume has no room for these it is marked (`quota_need_fsck`), and the next mount counts anew.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

use blockwright_ondisk::common::quota::layout::{Grace, QuotaKind, quota_file, usage_entry};
use blockwright_ondisk::common::quota::tree::{self, Blocks, Usage};
use blockwright_ondisk::common::quota::{self as format, RawQuotaEntry, RawQuotaInfo};
use blockwright_ondisk::f2fs::inode::RawInodeHead;
use blockwright_ondisk::f2fs::{
    BLOCK_SIZE, FileKind, InlineFlags, Ino, Inode, checkpoint::CheckpointFlags,
};
use zerocopy::FromBytes;

use super::CheckError;
use super::context::Checker;
use super::issue::IssueKind;
use super::nodes::Walk;
use super::state::DirBlock;

const KINDS: [(&str, QuotaKind); 3] = [
    ("user", QuotaKind::User),
    ("group", QuotaKind::Group),
    ("project", QuotaKind::Project),
];
const PER_BLOCK: u32 = (BLOCK_SIZE / format::BLOCK_SIZE) as u32;
/// Blocks of a quota file that are looked at: as many as some ten million owners take.
const BLOCKS_MAX: u64 = 1 << 19;

/// A quota file, for reading.
struct File<'a> {
    checker: &'a Checker,
    ino: Ino,
    size: u64,
    /// The block read last.
    last: Cell<Option<(u64, Vec<u8>)>>,
}

/// Why a quota file cannot be used.
enum Failure {
    Device(CheckError),
    Bad(String),
}

impl Blocks for File<'_> {
    type Error = Failure;

    fn look<R>(&self, block: u32, f: impl FnOnce(&[u8]) -> R) -> Result<R, Failure> {
        if (u64::from(block) + 1) * format::BLOCK_SIZE as u64 > self.size {
            return Err(self.bad(format!("block {block} is behind its end")));
        }
        let at = u64::from(block / PER_BLOCK);
        let bytes = match self.last.take() {
            Some((known, bytes)) if known == at => bytes,
            _ => {
                let place = self.checker.scan.quota_blocks.get(&(self.ino.0, at));
                let place = place.ok_or_else(|| self.bad(format!("block {block} is a hole")))?;
                let read = self.checker.store.read(place.block, "quota file");
                read.map_err(Failure::Device)?
            }
        };
        let from = (block % PER_BLOCK) as usize * format::BLOCK_SIZE;
        let result = f(&bytes[from..from + format::BLOCK_SIZE]);
        self.last.set(Some((at, bytes)));
        Ok(result)
    }

    fn change<R>(&self, _: u32, _: impl FnOnce(&mut [u8]) -> R) -> Result<R, Failure> {
        Err(self.bad("is only read".to_owned()))
    }

    fn grow(&self, _: u32) -> Result<(), Failure> {
        Err(self.bad("is only read".to_owned()))
    }

    fn bad(&self, what: String) -> Failure {
        Failure::Bad(what)
    }
}

impl Checker {
    /// Adds an inode to what its owners use. Its own node is not charged, and quota files are not.
    pub(super) fn account(&mut self, ino: Ino, inode: &Inode, blocks: u64) {
        if self.is_hidden(ino) {
            return;
        }
        let ids = [inode.uid, inode.gid, inode.extra.map_or(0, |e| e.projid)];
        for (usage, id) in self.scan.usage.iter_mut().zip(ids) {
            let usage = usage.entry(id).or_default();
            usage.bytes += blocks.saturating_sub(1) * BLOCK_SIZE as u64;
            usage.inodes += 1;
        }
    }

    /// Notes a block of a quota file.
    pub(super) fn note_quota_block(&mut self, w: &Walk, block: DirBlock) {
        if w.kind == FileKind::Regular && block.at < BLOCKS_MAX {
            self.scan.quota_blocks.insert((w.ino.0, block.at), block);
        }
    }

    /// Compares the quota files with the usage counted, once nothing else is to be repaired.
    pub(super) fn check_quota(&mut self) -> Result<(), CheckError> {
        let flags = self.pack.checkpoint.raw.flags();
        let old = flags.contains(CheckpointFlags::QUOTA_NEED_FSCK);
        self.quota_settled = false;
        if self.quota_inodes().next().is_none() {
            return Ok(());
        }
        if (old && !self.repairing()) || self.scan.restart || self.changed_in_round() {
            return Ok(());
        }
        self.quota_settled = true;
        for ((name, kind), ino) in KINDS.into_iter().zip(self.sb.qf_ino) {
            let ino = Ino(ino.get());
            if ino.0 != 0 && self.quota_inodes().any(|(_, known)| known == ino) {
                self.check_quota_file(name, kind, ino, old)?;
            }
        }
        if self.quota_settled && old && self.repairing() {
            let left = flags - CheckpointFlags::QUOTA_NEED_FSCK;
            self.pack.checkpoint.raw.ckpt_flags.set(left.bits());
            self.changes += 1;
        }
        Ok(())
    }

    fn check_quota_file(
        &mut self,
        kind: &'static str,
        which: QuotaKind,
        ino: Ino,
        old: bool,
    ) -> Result<(), CheckError> {
        let usage = std::mem::take(&mut self.scan.usage[which as usize]);
        let sound = self.scan.inodes.get(&ino.0).map(|s| s.kind) == Some(FileKind::Regular);
        let inode = match self.read_node(ino.nid())? {
            Some((_, block)) if sound => Inode::parse_unverified(&block, ino, &self.geo).ok(),
            _ => None,
        };
        let Some(inode) = inode else {
            // Told of as an inode.
            self.quota_settled = false;
            return Ok(());
        };
        let file = File {
            checker: self,
            ino,
            size: inode.size,
            last: Cell::new(None),
        };
        let (mut entries, mut grace) = (BTreeMap::new(), Grace::default());
        let read = tree::check_head(&file, which).and_then(|head| {
            // The entries may be good nevertheless, and have limits.
            let info = file.look(0, |b| RawQuotaInfo::read_from_bytes(&b[8..32]).ok())?;
            if let Some(info) = info {
                grace = Grace {
                    blocks: info.bgrace.get(),
                    inodes: info.igrace.get(),
                };
            }
            let mut bad = None;
            entries = tree::readable_entries(&file, |failure| match failure {
                Failure::Device(e) => Err(Failure::Device(e)),
                Failure::Bad(what) => {
                    bad.get_or_insert(what);
                    Ok(())
                }
            })?;
            // A slot that looks like an entry but is not reachable from the root is not an entry.
            let mut places = tree::Places::new();
            let mut lost = None;
            for id in entries.keys() {
                match tree::find(&file, *id, &mut places) {
                    Ok(Ok(_)) => {}
                    Err(Failure::Device(e)) => return Err(Failure::Device(e)),
                    Ok(Err(_)) | Err(Failure::Bad(_)) => lost = Some(*id),
                }
            }
            entries.retain(|id, _| places.contains_key(id));
            if let Some(what) = bad {
                return Err(file.bad(what));
            }
            match lost {
                Some(id) => Err(file.bad(format!("nothing leads to the entry of {id}"))),
                None => head.map_err(|what| file.bad(what)),
            }
        });
        match read {
            Ok(()) => {}
            Err(Failure::Device(e)) => return Err(e),
            Err(Failure::Bad(what)) => {
                if self.problem(IssueKind::QuotaFile { kind, ino, what }) {
                    self.rebuild_quota(which, ino, inode.size, grace, &entries, &usage)?;
                } else {
                    self.quota_settled = false;
                }
                return Ok(());
            }
        }
        let ids: BTreeSet<u32> = usage.keys().chain(entries.keys()).copied().collect();
        let mut rebuild = false;
        for id in ids {
            let counted = usage.get(&id).copied().unwrap_or_default();
            let found = entries.get(&id).map_or(Usage::default(), |e| Usage {
                bytes: e.curspace.get(),
                inodes: e.curinodes.get(),
            });
            if counted == found {
                continue;
            }
            rebuild |= if old {
                self.repairing()
            } else {
                self.problem(IssueKind::QuotaUsage {
                    kind,
                    id,
                    found_bytes: found.bytes,
                    found_inodes: found.inodes,
                    bytes: counted.bytes,
                    inodes: counted.inodes,
                })
            };
        }
        if rebuild {
            self.rebuild_quota(which, ino, inode.size, grace, &entries, &usage)?;
        }
        Ok(())
    }

    /// Writes a quota file anew, into the blocks it has and new ones.
    fn rebuild_quota(
        &mut self,
        which: QuotaKind,
        ino: Ino,
        size: u64,
        grace: Grace,
        entries: &BTreeMap<u32, RawQuotaEntry>,
        usage: &BTreeMap<u32, Usage>,
    ) -> Result<(), CheckError> {
        let mut entries = entries.clone();
        for entry in entries.values_mut() {
            entry.curspace.set(0);
            entry.curinodes.set(0);
        }
        // Those without use or limits are not needed.
        entries.retain(|id, e| {
            let mut bare = usage_entry(*id, 0, 0);
            (bare.btime, bare.itime) = (e.btime, e.itime);
            *e != bare || usage.contains_key(id)
        });
        for (id, used) in usage {
            let entry = entries.entry(*id).or_insert_with(|| usage_entry(*id, 0, 0));
            entry.curspace.set(used.bytes);
            entry.curinodes.set(used.inodes);
        }
        let file = quota_file(which, grace, &entries);
        self.make_room_for_blocks(ino)?;
        for (at, bytes) in (0..).zip(file.chunks(BLOCK_SIZE)) {
            let mut block = vec![0; BLOCK_SIZE];
            block[..bytes.len()].copy_from_slice(bytes);
            match self.scan.quota_blocks.get(&(ino.0, at)).copied() {
                Some(place) if self.store.read(place.block, "quota file")? == block => {}
                Some(place) => self.write(place.block, block),
                None if self.add_block(ino, at, block)?.is_some() => {}
                None => {
                    self.quota_settled = false;
                    self.changes += u64::from(!self.quota_marked);
                    self.quota_marked = true;
                    return Ok(());
                }
            }
        }
        if size != file.len() as u64 {
            self.edit_inode(ino, |head| head.size.set(file.len() as u64))?;
        }
        Ok(())
    }

    /// A file whose bytes are said to be in its inode gets blocks; an extent of blocks that will move is forgotten.
    fn make_room_for_blocks(&mut self, ino: Ino) -> Result<(), CheckError> {
        let geo = self.geo.clone();
        self.edit_node(ino.nid(), |bytes| {
            let Ok(inode) = Inode::parse_unverified(bytes, ino, &geo) else {
                return;
            };
            let inline = InlineFlags::DATA | InlineFlags::DATA_EXIST;
            if inode.inline.contains(InlineFlags::DATA) {
                bytes[inode.layout(geo.features).address_bytes()].fill(0);
            }
            if let Ok((head, _)) = RawInodeHead::mut_from_prefix(bytes) {
                head.inline &= !inline.bits();
                head.ext.len.set(0);
            }
        })
    }
}
