//! Attribute values in inodes of their own: whether the inode holds the value, what it counts for, and how many attributes have it.

use blockwright_ondisk::ext4::inode::InodeFlags;
use blockwright_ondisk::ext4::xattr::{XattrEntry, XattrValue};
use blockwright_ondisk::ext4::{BlockNo, FileKind, Incompat, Ino, Inode};

use super::CheckError;
use super::context::Checker;
use super::issue::IssueKind;
use super::mapping::{Collect, MapSink, Piece, Walk};
use super::state::{ValueSums, Values};

/// Largest value in an inode of its own that is read to verify its hash.
const VALUE_READ_MAX: u64 = 1 << 20;
/// Bytes of values in holes of a sparse image that are read: there, a small image has room for any number of values.
const HOLES_READ_MAX: u64 = 1 << 28;

/// What is wrong with an inode that an attribute says holds its value.
pub(super) enum ValueFault {
    /// The attribute has no value there.
    Wrong(&'static str),
    /// The value is there, in an inode that does not say so.
    Denied(&'static str),
}

/// The first blocks of an inode.
struct Beginning<'a> {
    map: Collect,
    /// Blocks of data that are still wanted.
    wanted: u64,
    /// Bytes of a block.
    block: u64,
    /// Bytes read in this round, and the most that may be.
    read: &'a mut u64,
    most: u64,
}

impl MapSink for Beginning<'_> {
    fn tree(&mut self, block: BlockNo) -> bool {
        if self.wanted == 0 || *self.read >= self.most {
            return false;
        }
        *self.read += self.block;
        self.map.tree(block)
    }

    fn piece(&mut self, piece: Piece) {
        let len = u64::from(piece.len).min(self.wanted) as u32;
        self.wanted -= u64::from(len);
        if len > 0 {
            self.map.piece(Piece { len, ..piece });
        }
    }

    fn problem(&mut self, _: IssueKind) {}
}

impl Checker {
    /// Counts the inodes that hold values of good attributes.
    pub(super) fn count_holders(
        &mut self,
        owner: Ino,
        entries: &[XattrEntry<'_>],
    ) -> Result<(), CheckError> {
        for e in entries {
            if let XattrValue::Inode { ino, size } = e.value
                && !matches!(
                    self.value_fault(owner, e, ino, size)?,
                    Some(ValueFault::Wrong(_))
                )
            {
                self.count_holder(ino)?;
            }
        }
        Ok(())
    }

    pub(super) fn count_holder(&mut self, ino: Ino) -> Result<(), CheckError> {
        self.need_inode(ino)?;
        *self.scan.ea_refs.entry(ino.0).or_default() += 1;
        Ok(())
    }

    /// Marks inodes as holding the values that attributes have in them. Called after the scan, which has the tables in
    /// its hands. Whether there were any: what they map was not looked at.
    pub fn mark_holders(&mut self) -> Result<bool, CheckError> {
        let holders = std::mem::take(&mut self.scan.holders_to_mark);
        for ino in &holders {
            self.edit_inode(Ino(*ino), |edit| {
                edit.flags(0, InodeFlags::EA_INODE.bits());
                edit.links(1);
                edit.dtime(0);
            })?;
        }
        Ok(!holders.is_empty())
    }

    /// What values in inodes of their own add to the counts of a file. Each file that shares a value counts it. Values
    /// as Lustre stored them count for their own inode only.
    pub(super) fn values_of(
        &self,
        owner: Ino,
        entries: &[XattrEntry<'_>],
    ) -> Result<Values, CheckError> {
        let cluster = u64::from(self.geo.cluster_ratio) << self.geo.block_bits;
        let mut all = Values::default();
        for e in entries {
            let XattrValue::Inode { ino, size } = e.value else {
                continue;
            };
            if let Some(value) = self.read_inode(ino)?
                && e.verify_hash(Some(value.ea_inode_hash())).is_err()
                && self.points_back(owner, &value)?
            {
                continue;
            }
            all += Values {
                sectors: u64::from(size).next_multiple_of(cluster) >> 9,
                inodes: 1,
            };
        }
        Ok(all)
    }

    /// Whether an inode holds a value as Lustre stored them before there was the feature: without a
    /// hash, and with its only owner's number and generation instead.
    fn points_back(&self, owner: Ino, value: &Inode) -> Result<bool, CheckError> {
        let Some(owner_inode) = self.read_inode(owner)? else {
            return Ok(false);
        };
        Ok(value.mtime.secs as u32 == owner.0 && value.generation == owner_inode.generation)
    }

    /// What is wrong with the inode that holds the value of an attribute. The hash in the attribute decides whether the inode
    /// is the right one, whatever it says of itself.
    pub(super) fn value_fault(
        &mut self,
        owner: Ino,
        entry: &XattrEntry<'_>,
        value: Ino,
        size: u32,
    ) -> Result<Option<ValueFault>, CheckError> {
        let wrong = |what| Ok(Some(ValueFault::Wrong(what)));
        if !self.geo.features.has_incompat(Incompat::EA_INODE) {
            return wrong("not allowed without the feature");
        }
        if value < self.geo.first_ino {
            return wrong("the inode is reserved");
        }
        let Some(inode) = self.read_inode(value)? else {
            return wrong("no such inode");
        };
        let regular = inode.kind() == Some(FileKind::Regular);
        let marked = inode.flags.contains(InodeFlags::EA_INODE);
        let deleted = inode.links == 0 && !self.scan.orphans.contains(&value.0);
        let unmarked = "the inode is not marked as holding one";
        if !marked && (deleted || !regular) {
            return wrong(unmarked);
        }
        if inode.size != u64::from(size) {
            return wrong(if marked { "the sizes differ" } else { unmarked });
        }
        let hash = inode.ea_inode_hash();
        let hashed = entry.verify_hash(Some(hash)).is_ok();
        let mut read = hashed && inode.size <= VALUE_READ_MAX;
        if !hashed {
            if !self.points_back(owner, &inode)? {
                return wrong(if marked {
                    "the hashes differ"
                } else {
                    unmarked
                });
            }
        } else if marked && read {
            match self.value_hash(value, &inode)? {
                Some(found) if found != hash => {
                    return wrong("the value does not match its hash");
                }
                found => read = found.is_some(),
            }
        }
        // Of an inode without the mark, other flags may be missing, too: the value is read by the next round.
        if !marked {
            return Ok(Some(ValueFault::Denied(unmarked)));
        }
        // Blocks of a deleted inode may be another file's by now.
        let what = "the inode is not in use";
        match (deleted, read) {
            (false, _) => Ok(None),
            (true, true) => Ok(Some(ValueFault::Denied(what))),
            (true, false) => wrong(what),
        }
    }

    /// The hash of a value in an inode of its own, read once however many attributes have it. `None`: not read, because more was
    /// read than values that share no block can have.
    fn value_hash(&mut self, value: Ino, inode: &Inode) -> Result<Option<u32>, CheckError> {
        if let Some(sum) = self.scan.value_sums.by_inode.get(&value.0) {
            return Ok(*sum);
        }
        let block = u64::from(self.geo.block_size);
        let most = self.geo.blocks_count.saturating_mul(block);
        let ValueSums { read, holes, .. } = &mut self.scan.value_sums;
        let mut map = Beginning {
            map: Collect::default(),
            wanted: inode.size.div_ceil(block),
            block,
            read,
            most,
        };
        let walk = Walk {
            store: &self.store,
            geo: &self.geo,
            ino: value,
            inode,
        };
        walk.run(&mut map)?;
        let mut bytes = Vec::new();
        let mut enough = *map.read < most;
        for piece in map.map.pieces {
            let count = u64::from(piece.len);
            let (sum, most) = match self.store.is_hole(piece.physical, count) {
                true => (&mut *holes, HOLES_READ_MAX),
                false => (&mut *map.read, most),
            };
            *sum += count * block;
            enough &= *sum <= most;
            if !enough {
                break;
            }
            bytes.extend(
                self.store
                    .read_run(piece.physical, count, "attribute value")?,
            );
        }
        bytes.truncate(inode.size as usize);
        let sum = enough.then(|| self.geo.seed.ea_inode_value(&bytes));
        self.scan.value_sums.by_inode.insert(value.0, sum);
        Ok(sum)
    }

    /// After all inodes were seen: how many attributes refer to each inode that holds a value.
    pub fn check_holders(&mut self) -> Result<(), CheckError> {
        let holders: Vec<Ino> = self
            .scan
            .inodes
            .iter()
            .filter(|s| s.marks.ea_inode && !s.marks.orphan)
            .map(|s| s.ino)
            .collect();
        for ino in holders {
            let counted = self.scan.ea_refs.get(&ino.0).copied().unwrap_or(0);
            if counted == 0 {
                self.clear_value_flag(ino)?;
                continue;
            }
            let Some(mut inode) = self.read_inode(ino)? else {
                continue;
            };
            let found = inode.ea_inode_refs();
            if found == counted {
                continue;
            }
            if !self.problem(IssueKind::XattrValueRefs {
                ino,
                found,
                counted,
            }) {
                continue;
            }
            if let Some(mut raw) = self.read_raw_inode(ino)? {
                inode.set_ea_inode_refs(counted);
                if inode.encode_into(&mut raw, &self.geo, ino).is_ok() {
                    self.write_raw_inode(ino, raw)?;
                }
            }
        }
        Ok(())
    }

    /// An inode that says it holds an attribute value, but no attribute refers to it. Its contents are kept: with a name
    /// it is a file, and without one it goes to lost+found. The kernel looks up no file with this flag.
    fn clear_value_flag(&mut self, ino: Ino) -> Result<(), CheckError> {
        let Some(inode) = self.read_inode(ino)? else {
            return Ok(());
        };
        if let Some(state) = self.scan.inodes.get_mut(ino) {
            state.marks.ea_inode = false;
        }
        let flags = inode.flags.bits();
        let what = "marked as an attribute value, but no attribute has it";
        if self.problem(IssueKind::InodeFlags { ino, flags, what }) {
            self.edit_inode(ino, |edit| edit.flags(InodeFlags::EA_INODE.bits(), 0))?;
        }
        Ok(())
    }
}
