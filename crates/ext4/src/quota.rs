//! Disk quota kept by the file system (`quota` and `project` features).
//!
//! One hidden file for users, one for groups, one for projects. Every change of an inode's space or of the
//! number of inodes changes the owner's entries in the same handle, so that after a crash they
//! are as exact as everything else. Space follows the inode: it is compared with what was last stored
//! whenever an inode is stored, so no path that allocates or frees can be forgotten.
//!
//! Limits: inodes are refused when made. Space is refused when it is asked for (before anything is
//! done), not when it is stored, since what is stored must be counted. What was asked for and is not stored
//! yet (delayed blocks and the worst case of their metadata, direct writes under way) is *promised*:
//! it counts against limits, and is not in the files.
//!
//! # Locks
//! The promises have a mutex below the map of the inode they are for. Each file has a mutex below
//! that, and above the quota file's own map.
//!
//! Reference: the VFS quota format, version 2 revision 1 ("vfsv1").

use crate::buffer::{BlockKind, BufferRef};
use crate::fs::Fs;
use crate::inode::{Purpose, ext4};
use crate::jbd2::Handle;
use crate::map::BlockState;
use crate::{Error, ErrorKind, Result};
use blockwright_ondisk::ext4::features::RoCompat;
use blockwright_ondisk::ext4::quota::{
    self as format, BLOCK_SIZE, ENTRIES_PER_BLOCK, TREE_DEPTH, TREE_ROOT,
};
use blockwright_ondisk::ext4::{FileBlock, Ino};
use blockwright_vfs as vfs;
use blockwright_vfs::types::Attr;
use hashbrown::HashMap;
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};

const HEADER_BYTES: usize = 16;
const ENTRY_BYTES: usize = 72;
/// Offsets in the file's first block, behind magic and version.
const INFO_BGRACE: usize = 8;
const INFO_IGRACE: usize = 12;
const INFO_BLOCKS: usize = 20;
const INFO_FREE_BLK: usize = 24;
const INFO_FREE_ENTRY: usize = 28;
/// Offsets in a data block's header.
const DATA_NEXT: usize = 0;
const DATA_PREV: usize = 4;
const DATA_COUNT: usize = 8;
/// Offsets in an entry.
const IHARD: usize = 8;
const ISOFT: usize = 16;
const INODES: usize = 24;
const BHARD: usize = 32;
const BSOFT: usize = 40;
const SPACE: usize = 48;
const BTIME: usize = 56;
const ITIME: usize = 64;

/// Who is charged for an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Project.
    pub project: u32,
}

impl Owner {
    /// The owner in an inode's attributes.
    #[must_use]
    pub fn of(attr: &Attr) -> Self {
        Owner {
            uid: attr.uid,
            gid: attr.gid,
            project: attr.project,
        }
    }

    pub(crate) fn id(&self, kind: Kind) -> u32 {
        match kind {
            Kind::User => self.uid,
            Kind::Group => self.gid,
            Kind::Project => self.project,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    User,
    Group,
    Project,
}

/// Space and inodes in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// Bytes.
    pub bytes: u64,
    /// Number of inodes.
    pub inodes: u64,
}

struct File {
    kind: Kind,
    inode: Arc<vfs::Inode>,
    /// Where each id's entry is: block of the file and slot.
    found: Mutex<HashMap<u32, (u32, usize)>>,
}

/// Space asked for and not charged yet.
#[derive(Default)]
struct Promises {
    by_inode: HashMap<Ino, (Owner, u64)>,
    by_owner: HashMap<(Kind, u32), u64>,
}

/// The quota files of a volume; none without the feature.
#[derive(Default)]
pub struct Quota {
    files: OnceLock<Vec<File>>,
    promises: Mutex<Promises>,
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

fn put_u32(b: &mut [u8], at: usize, v: u32) {
    b[at..at + 4].copy_from_slice(&v.to_le_bytes());
}

fn u64_at(b: &[u8], at: usize) -> u64 {
    u64::from(u32_at(b, at)) | u64::from(u32_at(b, at + 4)) << 32
}

fn put_u64(b: &mut [u8], at: usize, v: u64) {
    b[at..at + 8].copy_from_slice(&v.to_le_bytes());
}

fn entry_at(slot: usize) -> usize {
    HEADER_BYTES + slot * ENTRY_BYTES
}

impl Quota {
    fn files(&self) -> &[File] {
        self.files.get().map_or(&[], Vec::as_slice)
    }

    /// Whether anything is counted.
    pub(crate) fn is_on(&self) -> bool {
        !self.files().is_empty()
    }

    /// Opens the volume's quota files. Called once, at mount.
    ///
    /// # Errors
    /// Quota files that cannot be kept exact: the volume must then be mounted read-only.
    pub fn load(&self, fs: &Fs) -> Result<()> {
        const OP: &str = "open quota";
        let mut files = Vec::new();
        if fs.has_ro_compat(RoCompat::QUOTA) {
            let raw = &fs.geo.raw;
            let listed = [
                (Kind::User, raw.usr_quota_inum.get(), format::USER_MAGIC),
                (Kind::Group, raw.grp_quota_inum.get(), format::GROUP_MAGIC),
                (
                    Kind::Project,
                    raw.prj_quota_inum.get(),
                    format::PROJECT_MAGIC,
                ),
            ];
            for (kind, ino, magic) in listed {
                if ino == 0 {
                    continue;
                }
                let inode = fs.load_inode_for(Ino(ino), Purpose::Special)?;
                let file = File {
                    kind,
                    inode,
                    found: Mutex::new(HashMap::new()),
                };
                let head = file.read(fs, OP, 0)?;
                let (data, at) = (head.0.data(), head.1);
                let (found, version) = (u32_at(&data, at), u32_at(&data, at + 4));
                if found != magic || version != format::VERSION {
                    return Err(Error::new(ErrorKind::Unsupported, OP).detail(format!(
                        "the quota file in inode {ino} has magic {found:#x} and version {version}"
                    )));
                }
                files.push(file);
            }
        }
        // Loaded once: a second call finds the files in place.
        let _ = self.files.set(files);
        Ok(())
    }

    /// Blocks a handle must reserve for charging one owner.
    #[must_use]
    pub fn credits(&self) -> u32 {
        // Head, entry, neighbours in the list of free entries; a new entry adds tree blocks.
        self.files().len() as u32 * 10
    }

    /// Adds to an owner's use, within limits.
    ///
    /// # Errors
    /// `QuotaExceeded` with nothing charged, damage, or a device error.
    pub fn charge(
        &self,
        fs: &Fs,
        h: &Handle<'_>,
        owner: &Owner,
        bytes: i64,
        inodes: i64,
    ) -> Result<()> {
        for file in self.files() {
            file.check(
                fs,
                owner.id(file.kind),
                bytes.max(0) as u64,
                inodes.max(0) as u64,
            )?;
        }
        self.add(fs, h, owner, bytes, inodes)
    }

    /// Takes from an owner's use.
    ///
    /// # Errors
    /// Damage, or a device error.
    pub fn refund(
        &self,
        fs: &Fs,
        h: &Handle<'_>,
        owner: &Owner,
        bytes: i64,
        inodes: i64,
    ) -> Result<()> {
        self.add(fs, h, owner, -bytes, -inodes)
    }

    /// Adds to an owner's use what has already happened.
    ///
    /// # Errors
    /// Damage, or a device error.
    pub fn add(
        &self,
        fs: &Fs,
        h: &Handle<'_>,
        owner: &Owner,
        bytes: i64,
        inodes: i64,
    ) -> Result<()> {
        if bytes == 0 && inodes == 0 {
            return Ok(());
        }
        for file in self.files() {
            file.add(fs, h, owner.id(file.kind), bytes, inodes)?;
        }
        Ok(())
    }

    /// Moves an inode's use from one owner to another. What is promised to it must fit, too, and
    /// follows when its attributes have changed.
    ///
    /// # Errors
    /// `QuotaExceeded` with nothing moved, damage, or a device error.
    #[allow(clippy::too_many_arguments)]
    pub fn transfer(
        &self,
        fs: &Fs,
        h: &Handle<'_>,
        from: &Owner,
        to: &Owner,
        ino: Ino,
        bytes: u64,
        inodes: u64,
    ) -> Result<()> {
        let moved = || {
            self.files()
                .iter()
                .filter(|f| from.id(f.kind) != to.id(f.kind))
        };
        {
            let promises = self.promises.lock();
            let own = promises.by_inode.get(&ino).map_or(0, |(_, bytes)| *bytes);
            for file in moved() {
                let id = to.id(file.kind);
                let more = bytes + own + promises.of(file.kind, id);
                file.check(fs, id, more, inodes)?;
            }
        }
        for file in moved() {
            file.add(fs, h, from.id(file.kind), -(bytes as i64), -(inodes as i64))?;
            file.add(fs, h, to.id(file.kind), bytes as i64, inodes as i64)?;
        }
        Ok(())
    }

    /// Makes the entries of one kind say what was counted, whatever they said. `each` gives a
    /// handle for one owner's entry.
    ///
    /// # Errors
    /// Damage, or a device error.
    pub(crate) fn set_usage(
        &self,
        kind: Kind,
        mut counted: std::collections::HashMap<u32, Usage>,
        fs: &Fs,
        each: impl Fn(u32, &dyn Fn(&Handle<'_>, u32) -> Result<()>) -> Result<()>,
    ) -> Result<()> {
        for file in self.files().iter().filter(|f| f.kind == kind) {
            let said = file.usage(fs)?;
            for id in said.keys() {
                counted.entry(*id).or_default();
            }
            for (id, now) in &counted {
                let before = said.get(id).copied().unwrap_or_default();
                let bytes = now.bytes as i64 - before.bytes as i64;
                let inodes = now.inodes as i64 - before.inodes as i64;
                if bytes != 0 || inodes != 0 {
                    each(*id, &|h, id| file.add(fs, h, id, bytes, inodes))?;
                }
            }
        }
        Ok(())
    }

    /// Whether an owner may have this much more space.
    ///
    /// # Errors
    /// `QuotaExceeded`, damage, or a device error.
    pub fn check_space(&self, fs: &Fs, owner: &Owner, bytes: u64) -> Result<()> {
        if self.files().is_empty() || bytes == 0 {
            return Ok(());
        }
        let promises = self.promises.lock();
        self.files().iter().try_for_each(|f| {
            let id = owner.id(f.kind);
            f.check(fs, id, bytes + promises.of(f.kind, id), 0)
        })
    }

    /// Makes the promise to an inode be `bytes`. With `limit` it must fit its owner's quota, or
    /// stays as it was.
    ///
    /// # Errors
    /// `QuotaExceeded`; damage, or a device error. Only with `limit`.
    pub(crate) fn promise(
        &self,
        fs: &Fs,
        ino: Ino,
        owner: Owner,
        bytes: u64,
        limit: bool,
    ) -> Result<()> {
        if self.files().is_empty() {
            return Ok(());
        }
        let mut promises = self.promises.lock();
        let before = promises.by_inode.get(&ino).copied();
        if before == Some((owner, bytes)) || (before.is_none() && bytes == 0) {
            return Ok(());
        }
        if limit && before.is_none_or(|(_, known)| bytes > known) {
            let own = before.filter(|(o, _)| *o == owner).map_or(0, |(_, b)| b);
            for file in self.files() {
                let id = owner.id(file.kind);
                let others = promises.of(file.kind, id).saturating_sub(own);
                file.check(fs, id, others + bytes, 0)?;
            }
        }
        for file in self.files() {
            if let Some((owner, bytes)) = before {
                promises.change(file.kind, owner.id(file.kind), -(bytes as i64));
            }
            promises.change(file.kind, owner.id(file.kind), bytes as i64);
        }
        if bytes == 0 {
            promises.by_inode.remove(&ino);
        } else {
            promises.by_inode.insert(ino, (owner, bytes));
        }
        Ok(())
    }
}

impl Promises {
    fn of(&self, kind: Kind, id: u32) -> u64 {
        self.by_owner.get(&(kind, id)).copied().unwrap_or(0)
    }

    fn change(&mut self, kind: Kind, id: u32, bytes: i64) {
        let left = self.of(kind, id).saturating_add_signed(bytes);
        if left == 0 {
            self.by_owner.remove(&(kind, id));
        } else {
            self.by_owner.insert((kind, id), left);
        }
    }
}

impl File {
    fn bad(&self, fs: &Fs, op: &'static str, what: String) -> Error {
        fs.corrupt(op, Some(ext4(&self.inode).ino), None, what)
    }

    /// The buffer a block of the file is in, and its offset there.
    fn read(&self, fs: &Fs, op: &'static str, block: u32) -> Result<(BufferRef, usize)> {
        let at = u64::from(block) * BLOCK_SIZE as u64;
        if at + BLOCK_SIZE as u64 > self.inode.size() {
            return Err(self.bad(
                fs,
                op,
                format!("quota block {block} is past the file's end"),
            ));
        }
        let bytes = fs.block_bytes() as u64;
        let (state, _) = fs.map_lookup(&self.inode, FileBlock(at / bytes), 1)?;
        let BlockState::Mapped(physical) = state else {
            return Err(self.bad(fs, op, format!("quota block {block} is a hole")));
        };
        let buffer = fs.cache.read(physical, BlockKind::Quota, |_| Ok(()))?;
        Ok((buffer, (at % bytes) as usize))
    }

    fn modify<R>(
        &self,
        fs: &Fs,
        h: &Handle<'_>,
        block: u32,
        f: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R> {
        let (buffer, at) = self.read(fs, "change quota", block)?;
        h.modify(&buffer, |data| f(&mut data[at..at + BLOCK_SIZE]))
    }

    /// Finds an id's entry: `Err` holds the levels of the tree that exist, by block.
    fn find(
        &self,
        fs: &Fs,
        id: u32,
        found: &mut HashMap<u32, (u32, usize)>,
    ) -> Result<std::result::Result<(u32, usize), Vec<u32>>> {
        const OP: &str = "find quota";
        if let Some(place) = found.get(&id) {
            return Ok(Ok(*place));
        }
        let mut path = vec![TREE_ROOT];
        let mut block = TREE_ROOT;
        for depth in 0..TREE_DEPTH {
            let (buffer, at) = self.read(fs, OP, block)?;
            let data = buffer.data();
            block = u32_at(&data, at + tree_slot(id, depth) * 4);
            if block == 0 {
                return Ok(Err(path));
            }
            if path.contains(&block) {
                return Err(self.bad(fs, OP, format!("quota block {block} contains itself")));
            }
            path.push(block);
        }
        let (buffer, at) = self.read(fs, OP, block)?;
        let data = &buffer.data()[at..at + BLOCK_SIZE];
        let slot = (0..ENTRIES_PER_BLOCK).find(|slot| {
            let entry = &data[entry_at(*slot)..entry_at(*slot) + ENTRY_BYTES];
            u32_at(entry, 0) == id && entry.iter().any(|b| *b != 0)
        });
        match slot {
            Some(slot) => {
                found.insert(id, (block, slot));
                Ok(Ok((block, slot)))
            }
            None => Err(self.bad(fs, OP, format!("quota block {block} has no entry for {id}"))),
        }
    }

    /// What all entries say.
    fn usage(&self, fs: &Fs) -> Result<HashMap<u32, Usage>> {
        const OP: &str = "read quota";
        let mut out = HashMap::new();
        let mut seen = std::collections::HashSet::from([TREE_ROOT]);
        let mut level = vec![TREE_ROOT];
        for _ in 0..TREE_DEPTH {
            let mut below = Vec::new();
            for block in level {
                let (buffer, at) = self.read(fs, OP, block)?;
                let data = buffer.data();
                let children = data[at..at + BLOCK_SIZE].chunks_exact(4);
                // Several ids share a data block; it is read once.
                below.extend(
                    children
                        .map(|c| u32_at(c, 0))
                        .filter(|child| *child != 0 && seen.insert(*child)),
                );
            }
            level = below;
        }
        for block in level {
            let (buffer, at) = self.read(fs, OP, block)?;
            let data = buffer.data();
            for slot in 0..ENTRIES_PER_BLOCK {
                let e = &data[at + entry_at(slot)..at + entry_at(slot) + ENTRY_BYTES];
                if e.iter().any(|b| *b != 0) {
                    let usage = Usage {
                        bytes: u64_at(e, SPACE),
                        inodes: u64_at(e, INODES),
                    };
                    out.insert(u32_at(e, 0), usage);
                }
            }
        }
        Ok(out)
    }

    /// Whether an id may use this much more.
    fn check(&self, fs: &Fs, id: u32, bytes: u64, inodes: u64) -> Result<()> {
        // The super-user is accounted, not limited; so is what belongs to no project.
        if id == 0 || (bytes == 0 && inodes == 0) {
            return Ok(());
        }
        let mut found = self.found.lock();
        let Ok((block, slot)) = self.find(fs, id, &mut found)? else {
            return Ok(());
        };
        let (buffer, at) = self.read(fs, "check quota", block)?;
        let data = buffer.data();
        let e = &data[at + entry_at(slot)..at + entry_at(slot) + ENTRY_BYTES];
        let now = vfs::Timestamp::now().secs.max(0) as u64;
        let over = |used: u64, more: u64, hard: u64, soft: u64, until: u64| {
            let total = used.saturating_add(more);
            more > 0
                && ((hard > 0 && total > hard)
                    || (soft > 0 && total > soft && until > 0 && now > until))
        };
        let kib = |at| u64_at(e, at).saturating_mul(1024);
        if over(
            u64_at(e, SPACE),
            bytes,
            kib(BHARD),
            kib(BSOFT),
            u64_at(e, BTIME),
        ) || over(
            u64_at(e, INODES),
            inodes,
            u64_at(e, IHARD),
            u64_at(e, ISOFT),
            u64_at(e, ITIME),
        ) {
            return Err(Error::new(ErrorKind::QuotaExceeded, "charge quota")
                .detail(format!("{:?} {id} is over its quota", self.kind)));
        }
        Ok(())
    }

    fn add(&self, fs: &Fs, h: &Handle<'_>, id: u32, bytes: i64, inodes: i64) -> Result<()> {
        h.ensure_credits(10)?;
        let mut found = self.found.lock();
        let (block, slot) = match self.find(fs, id, &mut found)? {
            Ok(place) => place,
            Err(path) => {
                let place = self.insert(fs, h, id, &path)?;
                found.insert(id, place);
                place
            }
        };
        let (bgrace, igrace) = {
            let (buffer, at) = self.read(fs, "change quota", 0)?;
            let data = buffer.data();
            (
                u32_at(&data, at + INFO_BGRACE),
                u32_at(&data, at + INFO_IGRACE),
            )
        };
        let now = vfs::Timestamp::now().secs.max(0) as u64;
        self.modify(fs, h, block, |data| {
            let e = &mut data[entry_at(slot)..entry_at(slot) + ENTRY_BYTES];
            let space = u64_at(e, SPACE).saturating_add_signed(bytes);
            let count = u64_at(e, INODES).saturating_add_signed(inodes);
            put_u64(e, SPACE, space);
            put_u64(e, INODES, count);
            let limits = (u64_at(e, BSOFT).saturating_mul(1024), u64_at(e, ISOFT));
            for (at, soft, used, period) in [
                (BTIME, limits.0, space, bgrace),
                (ITIME, limits.1, count, igrace),
            ] {
                if soft == 0 || used <= soft {
                    put_u64(e, at, 0);
                } else if u64_at(e, at) == 0 {
                    put_u64(e, at, now + u64::from(period));
                }
            }
            // An entry of zeroes only would be taken for a free one.
            if e.iter().all(|b| *b == 0) {
                put_u64(e, ITIME, 1);
            }
        })
    }

    /// Takes a block of the file that is not in use, zeroed.
    fn new_block(&self, fs: &Fs, h: &Handle<'_>) -> Result<u32> {
        const OP: &str = "grow quota file";
        let (buffer, at) = self.read(fs, OP, 0)?;
        let (free, blocks) = {
            let data = buffer.data();
            (
                u32_at(&data, at + INFO_FREE_BLK),
                u32_at(&data, at + INFO_BLOCKS),
            )
        };
        if free != 0 {
            let next = self.modify(fs, h, free, |data| {
                let next = u32_at(data, DATA_NEXT);
                data.fill(0);
                next
            })?;
            self.modify(fs, h, 0, |data| put_u32(data, INFO_FREE_BLK, next))?;
            return Ok(free);
        }
        let bytes = fs.block_bytes() as u64;
        let start = u64::from(blocks) * BLOCK_SIZE as u64;
        let own = ext4(&self.inode);
        let lblk = FileBlock(start / bytes);
        if let (BlockState::Hole, _) = fs.map_lookup(&self.inode, lblk, 1)? {
            let physical = fs.map_create_meta(h, &self.inode, lblk)?;
            h.create(physical, BlockKind::Quota, |_| ())?;
        }
        let size = (start + BLOCK_SIZE as u64).max(self.inode.size());
        own.map.write().disk_size = size;
        self.inode.update_attr(|a| a.size = size);
        fs.store_inode(h, &self.inode)?;
        self.modify(fs, h, blocks, |data| data.fill(0))?;
        self.modify(fs, h, 0, |data| put_u32(data, INFO_BLOCKS, blocks + 1))?;
        Ok(blocks)
    }

    /// Makes an entry for an id. `path` holds the tree blocks that exist.
    fn insert(&self, fs: &Fs, h: &Handle<'_>, id: u32, path: &[u32]) -> Result<(u32, usize)> {
        const OP: &str = "add quota entry";
        let (head, at) = self.read(fs, OP, 0)?;
        let free_entry = u32_at(&head.data(), at + INFO_FREE_ENTRY);
        let data_block = if free_entry != 0 {
            free_entry
        } else {
            let block = self.new_block(fs, h)?;
            self.modify(fs, h, 0, |data| put_u32(data, INFO_FREE_ENTRY, block))?;
            block
        };
        let placed = self.modify(fs, h, data_block, |data| {
            let slot = (0..ENTRIES_PER_BLOCK).find(|slot| {
                let e = entry_at(*slot);
                data[e..e + ENTRY_BYTES].iter().all(|b| *b == 0)
            })?;
            let count = u16::from_le_bytes([data[DATA_COUNT], data[DATA_COUNT + 1]]) + 1;
            data[DATA_COUNT..DATA_COUNT + 2].copy_from_slice(&count.to_le_bytes());
            put_u32(data, entry_at(slot), id);
            // Keeps the entry from looking free until something is charged.
            put_u64(data, entry_at(slot) + ITIME, 1);
            Some((slot, usize::from(count)))
        })?;
        let Some((slot, count)) = placed else {
            return Err(self.bad(
                fs,
                OP,
                format!("quota block {data_block} is listed as free and is not"),
            ));
        };
        if count >= ENTRIES_PER_BLOCK {
            self.unlist(fs, h, data_block)?;
        }
        // From the bottom up, so that the tree never names a block that is not ready.
        let mut below = data_block;
        for depth in (path.len()..TREE_DEPTH).rev() {
            let block = self.new_block(fs, h)?;
            self.modify(fs, h, block, |data| {
                put_u32(data, tree_slot(id, depth) * 4, below)
            })?;
            below = block;
        }
        let depth = path.len() - 1;
        self.modify(fs, h, path[depth], |data| {
            put_u32(data, tree_slot(id, depth) * 4, below)
        })?;
        Ok((data_block, slot))
    }

    /// Takes a data block that has become full off the list of those with free entries.
    fn unlist(&self, fs: &Fs, h: &Handle<'_>, block: u32) -> Result<()> {
        let (next, prev) = self.modify(fs, h, block, |data| {
            let links = (u32_at(data, DATA_NEXT), u32_at(data, DATA_PREV));
            put_u32(data, DATA_NEXT, 0);
            put_u32(data, DATA_PREV, 0);
            links
        })?;
        if next != 0 {
            self.modify(fs, h, next, |data| put_u32(data, DATA_PREV, prev))?;
        }
        if prev != 0 {
            self.modify(fs, h, prev, |data| put_u32(data, DATA_NEXT, next))
        } else {
            self.modify(fs, h, 0, |data| put_u32(data, INFO_FREE_ENTRY, next))
        }
    }
}

/// Which reference of a tree block at `depth` leads to an id.
fn tree_slot(id: u32, depth: usize) -> usize {
    (id >> (8 * (TREE_DEPTH - 1 - depth))) as usize & 0xFF
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_split_into_bytes() {
        let slots: Vec<_> = (0..TREE_DEPTH).map(|d| tree_slot(0x0102_03FF, d)).collect();
        assert_eq!(slots, [1, 2, 3, 255]);
    }
}
