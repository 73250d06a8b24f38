//! An engine in memory that keeps the contract of [`Engine`](crate::engine::Engine) to the letter and checks that the vfs
//! does too. For tests, of this crate and of front ends.
//!
//! Names, attributes and mappings live in memory; file data lives on a device. Violations panic:
//! a commit before the data is on the device, an allocation that was not reserved, two writebacks of
//! one block at a time, blocks taken away without the locks or with pages still cached, reservations
//! left behind by an evicted inode.

mod device;
mod engine;

pub use device::TrackedDevice;

use crate::engine::Volume;
use crate::error::{Error, ErrorKind, Result};
use crate::inode::Inode;
use crate::locks::{Mutex, Rank};
use crate::types::{Attr, FileKind, Ino, InodeFlags, NewInode, Timestamp};
use blockwright_device::{BlockDevice, DevOffset, SharedDevice};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Options of a [`MemEngine`].
#[derive(Clone, Copy, Debug)]
pub struct MemOptions {
    /// File-system block size.
    pub block_bytes: u32,
    /// Files up to this many bytes live in the inode; 0 for none.
    pub inline_bytes_max: u64,
    /// The most one allocation gives, to exercise short targets.
    pub allocate_bytes_max: u64,
    /// Blocks are always available, and commits begin immediately.
    pub preallocated: bool,
}

impl Default for MemOptions {
    fn default() -> Self {
        MemOptions {
            block_bytes: 4096,
            inline_bytes_max: 0,
            allocate_bytes_max: u64::MAX,
            preallocated: false,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Written,
    Unwritten,
}

#[derive(Clone, Debug)]
struct Entry {
    ino: Ino,
    kind: FileKind,
    cookie: u64,
}

#[derive(Debug)]
struct File {
    attr: Attr,
    disk_size: u64,
    blocks: BTreeMap<u64, (u64, State)>,
    delayed: BTreeSet<u64>,
    /// Allocated or being converted; not yet committed.
    pending: BTreeMap<u64, Option<u64>>,
    inline: Option<Vec<u8>>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    entries: BTreeMap<Vec<u8>, Entry>,
    next_cookie: u64,
    parent: Ino,
    symlink: Vec<u8>,
    generation: u64,
}

struct Contents {
    files: BTreeMap<Ino, File>,
    next_ino: u64,
    free: BTreeSet<u64>,
    reserved: u64,
    synced: u64,
    attr_writes: u64,
}

/// See the module's head.
pub struct MemEngine {
    device: Arc<TrackedDevice>,
    options: MemOptions,
    volume: Mutex<Contents>,
    read_only: AtomicBool,
    /// Called when room was reserved, with no lock of ours held: what others do meanwhile.
    pub on_reserve: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// New names find no room while it is set. The eviction of a removed file unsets it.
    pub names_are_full: AtomicBool,
    /// Evictions fail while it is set.
    pub fail_evictions: AtomicBool,
    /// The next file whose data is about to be written into its inode has left it, as when a writer makes it grow.
    pub outgrow_inline: AtomicBool,
}

const ROOT: Ino = Ino(2);

fn new_file(attr: Attr, parent: Ino) -> File {
    File {
        attr,
        disk_size: attr.size,
        blocks: BTreeMap::new(),
        delayed: BTreeSet::new(),
        pending: BTreeMap::new(),
        inline: None,
        xattrs: BTreeMap::new(),
        entries: BTreeMap::new(),
        next_cookie: 3,
        parent,
        symlink: Vec::new(),
        generation: 0,
    }
}

impl MemEngine {
    /// An empty volume whose file data is on `device`.
    #[must_use]
    pub fn new(device: SharedDevice, options: MemOptions) -> Arc<Self> {
        let block = u64::from(options.block_bytes);
        let blocks = device.geometry().bytes / block;
        let now = Timestamp::now();
        let root = Attr {
            ino: ROOT,
            generation: 1,
            kind: FileKind::Directory,
            perm: 0o755,
            nlink: 2,
            uid: 0,
            gid: 0,
            project: 0,
            rdev: 0,
            size: block,
            blocks512: 0,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: Some(now),
            flags: InodeFlags::empty(),
        };
        Arc::new(MemEngine {
            device: Arc::new(TrackedDevice {
                inner: device,
                block,
                written: Arc::new(Mutex::new(Rank::Leaf, HashSet::new())),
                fail_writes: AtomicBool::new(false),
                fail_reads: AtomicBool::new(false),
                writes: AtomicU64::new(0),
                write_order: Mutex::new(Rank::Leaf, Vec::new()),
            }),
            options,
            volume: Mutex::new(
                Rank::EngineGate,
                Contents {
                    files: BTreeMap::from([(ROOT, new_file(root, ROOT))]),
                    next_ino: 11,
                    // Block 0 stays unused, so that a device offset of 0 is suspicious.
                    free: (1..blocks).collect(),
                    reserved: 0,
                    synced: 0,
                    attr_writes: 0,
                },
            ),
            read_only: AtomicBool::new(false),
            on_reserve: OnceLock::new(),
            names_are_full: AtomicBool::new(false),
            fail_evictions: AtomicBool::new(false),
            outgrow_inline: AtomicBool::new(false),
        })
    }

    /// The device to give to the vfs.
    #[must_use]
    pub fn device(&self) -> &Arc<TrackedDevice> {
        &self.device
    }

    /// Refuses changes from now on, or takes them.
    pub fn set_read_only(&self, on: bool) {
        self.read_only.store(on, Ordering::Relaxed);
    }

    /// How often the volume was synced.
    pub fn syncs(&self) -> u64 {
        self.volume.lock().synced
    }

    /// How often attributes were written on their own.
    pub fn attr_writes(&self) -> u64 {
        self.volume.lock().attr_writes
    }

    /// Blocks reserved and not allocated.
    pub fn reserved_blocks(&self) -> u64 {
        self.volume.lock().reserved
    }

    /// Free blocks, reserved ones included.
    pub fn free_blocks(&self) -> u64 {
        self.volume.lock().free.len() as u64
    }

    /// Inodes in use.
    pub fn inode_count(&self) -> usize {
        self.volume.lock().files.len()
    }

    /// How many physically contiguous runs a file has.
    pub fn extent_count(&self, ino: Ino) -> usize {
        let volume = self.volume.lock();
        let file = &volume.files[&ino];
        let mut last = None;
        let mut count = 0;
        for (l, (p, _)) in &file.blocks {
            if last != Some((l.wrapping_sub(1), p.wrapping_sub(1))) {
                count += 1;
            }
            last = Some((*l, *p));
        }
        count
    }

    /// A file's contents as they are on the device, up to the size on disk: what a remount would see.
    ///
    /// # Errors
    /// As the device.
    pub fn contents_on_disk(&self, ino: Ino) -> Result<Vec<u8>> {
        let (size, blocks, inline) = {
            let volume = self.volume.lock();
            let file = volume.files.get(&ino).ok_or(ErrorKind::Stale)?;
            (file.disk_size, file.blocks.clone(), file.inline.clone())
        };
        if let Some(mut inline) = inline {
            inline.resize(size as usize, 0);
            return Ok(inline);
        }
        let block = self.block();
        let mut out = vec![0; size.next_multiple_of(block) as usize];
        for (l, (p, state)) in blocks {
            let at = (l * block) as usize;
            if state == State::Written && at < out.len() {
                self.device
                    .read_at(DevOffset(p * block), &mut out[at..at + block as usize])
                    .map_err(|e| Error::io("read back", e))?;
            }
        }
        let tail = out.split_off(size as usize);
        assert!(
            tail.iter().all(|b| *b == 0),
            "bytes behind the end of {ino} are zero on disk"
        );
        Ok(out)
    }

    fn block(&self) -> u64 {
        u64::from(self.options.block_bytes)
    }

    fn units(&self, range: &Range<u64>) -> Range<u64> {
        let b = self.block();
        assert!(
            range.start.is_multiple_of(b) && range.end.is_multiple_of(b) && !range.is_empty(),
            "unaligned range {range:?}"
        );
        range.start / b..range.end / b
    }

    fn writable(&self) -> Result<()> {
        if self.is_read_only() {
            return Err(ErrorKind::ReadOnly.into());
        }
        Ok(())
    }

    fn locked_exclusively(inode: &Inode) {
        assert!(
            inode.lock.try_read().is_none(),
            "{inode:?} is locked exclusively"
        );
    }

    fn file<'v>(volume: &'v mut Contents, inode: &Inode) -> &'v mut File {
        volume
            .files
            .get_mut(&inode.ino())
            .expect("an inode in memory is in use")
    }

    fn refresh_blocks(inode: &Inode, file: &File, block: u64) {
        let n = (file.blocks.len() + file.delayed.len()) as u64;
        inode.update_attr(|a| a.blocks512 = n * block / 512);
    }

    fn make(&self, volume: &mut Contents, dir: &Inode, new: &NewInode, nlink: u32) -> Arc<Inode> {
        let ino = Ino(volume.next_ino);
        volume.next_ino += 1;
        let attr = Attr {
            ino,
            generation: ino.0 as u32,
            kind: new.kind,
            perm: new.perm,
            nlink,
            uid: new.uid,
            gid: new.gid,
            project: 0,
            rdev: new.rdev,
            size: new.symlink.len() as u64,
            blocks512: 0,
            atime: new.now,
            mtime: new.now,
            ctime: new.now,
            crtime: Some(new.now),
            flags: InodeFlags::empty(),
        };
        let mut file = new_file(attr, dir.ino());
        file.symlink.clone_from(&new.symlink);
        file.xattrs = new.xattrs.iter().cloned().collect();
        if new.kind == FileKind::Regular && self.options.inline_bytes_max > 0 {
            file.inline = Some(Vec::new());
        }
        volume.files.insert(ino, file);
        Arc::new(Inode::new(attr, ()))
    }

    /// Adds a name at `now`.
    fn add_entry(volume: &mut Contents, dir: &Inode, name: &[u8], inode: &Inode, now: Timestamp) {
        let d = Self::file(volume, dir);
        let cookie = d.next_cookie;
        d.next_cookie += 1;
        let (ino, kind) = (inode.ino(), inode.kind());
        d.entries.insert(name.to_vec(), Entry { ino, kind, cookie });
        Self::touch(dir, now);
    }

    /// The names of a directory changed.
    fn touch(dir: &Inode, now: Timestamp) {
        dir.update_attr(|a| (a.mtime, a.ctime) = (now, now));
    }

    /// Frees the blocks of a range of a file, in units of the volume. Panics when one is written back or delayed: the vfs must have waited.
    fn free_range(volume: &mut Contents, ino: Ino, units: Range<u64>) {
        let Contents { files, free, .. } = volume;
        let Some(file) = files.get_mut(&ino) else {
            return;
        };
        let keys: Vec<u64> = file.blocks.range(units.clone()).map(|(k, _)| *k).collect();
        for k in keys {
            if let Some((p, _)) = file.blocks.remove(&k) {
                assert!(free.insert(p), "block {p} freed twice");
            }
        }
        assert!(
            file.pending.range(units.clone()).next().is_none(),
            "blocks go away under writeback"
        );
        assert!(
            file.delayed.range(units).next().is_none(),
            "blocks go away while delayed"
        );
        file.generation += 1;
    }

    /// Consecutive free blocks from the lowest run that starts a fit, as many as there are up to `want`.
    fn take_run(free: &mut BTreeSet<u64>, want: u64, after: Option<u64>) -> Option<(u64, u64)> {
        let start = after
            .filter(|p| free.contains(p))
            .or_else(|| free.first().copied())?;
        let mut n = 0;
        while n < want && free.remove(&(start + n)) {
            n += 1;
        }
        Some((start, n))
    }
}
