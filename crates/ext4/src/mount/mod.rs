//! [`Fs`]: the parts of one mounted volume, the mount that constructs them, and the unmount.
//!
//! # Part
//! [`Fs`] owns the parts. Nothing but this module and the engine uses it; a part gets the parts that it needs when it is constructed.
//!
//! # Crash order of a mount for writing
//! 1. The multiple-mount block is claimed before anything is written.
//! 2. The log is recovered home and marked as empty; the superblock is read again, since the log
//!    may have had a newer one.
//! 3. `needs_recovery` goes into the superblock, past the journal and durably, *before* the first
//!    transaction: other implementations throw the log away when the flag is missing.
//! 4. Orphans are processed, through the journal.
//!
//! A mount that may not write recovers anyway, over an [`OverlayDevice`]: what recovery
//! changes stays in memory, and [`Volume::device`] is where the volume is to be read from.
//!
//! Unmounting is the reverse: everything home, the log marked empty, and only then the flag cleared.
//!
//! Nothing here takes time or memory in proportion to the volume, with one exception. The free
//! totals of a volume that was not unmounted are added up from its group descriptors, in a stream.

#[cfg(feature = "grow")]
mod grow;
mod mmp;
mod tuning;

use crate::alloc::Allocator;
use crate::alloc::groups::Groups;
use crate::alloc::inodes::InodeAllocator;
use crate::attr::Attributes;
use crate::attr::xattr::Xattrs;
use crate::data::delayed::Delayed;
use crate::data::{Commits, InlineData, Truncation};
use crate::dir::Directories;
use crate::dir::names::Names;
use crate::inode::{Eviction, InodeTable, Inodes, Orphans, StoredInodes};
use crate::journal::buffer::MetaCache;
use crate::journal::fast_commit::Operations;
use crate::journal::load::{self, Recovered};
use crate::journal::{Journal, Settings};
use crate::map::Maps;
use crate::options::Options;
use crate::quota::Quota;
use crate::recovery::Recovery;
use crate::volume::{ErrorRecord, Volume, now_seconds, write_record};
use crate::{Error, ErrorKind, Result};
use blockwright_device::{DevOffset, DeviceExt, OverlayDevice, SharedDevice};
use blockwright_ondisk::common::casefold;
use blockwright_ondisk::ext4::superblock::{OS_HURD, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, State};
use blockwright_ondisk::ext4::{
    BlockNo, Compat, FormatError, GroupDesc, GroupNo, Incompat, RawSuperblock, RoCompat, Superblock,
};
use mmp::Mmp;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};

/// A mounted volume, shared.
pub type FsRef = Arc<Fs>;

/// The parts of a mounted volume, each constructed from those above it. Only the mount and the engine see all of them.
pub struct Fs {
    /// What all parts know of the volume.
    pub volume: Arc<Volume>,
    pub(crate) groups: Arc<Groups>,
    /// Which blocks are handed out.
    pub alloc: Arc<Allocator>,
    pub(crate) ialloc: Arc<InodeAllocator>,
    pub(crate) orphans: Arc<Orphans>,
    pub(crate) stored: Arc<StoredInodes>,
    pub(crate) quota: Arc<Quota>,
    pub(crate) inodes: Arc<Inodes>,
    pub(crate) maps: Arc<Maps>,
    pub(crate) delayed: Arc<Delayed>,
    pub(crate) inline: Arc<InlineData>,
    pub(crate) commits: Commits,
    pub(crate) truncation: Truncation,
    pub(crate) xattrs: Arc<Xattrs>,
    pub(crate) eviction: Arc<Eviction>,
    pub(crate) dirs: Arc<Directories>,
    pub(crate) attributes: Attributes,
    pub(crate) names: Names,
    pub(crate) recovery: Recovery,
    /// Protection against other hosts, when the volume asks for it.
    mmp: Mutex<Option<Mmp>>,
    unmounted: AtomicBool,
    /// Held while the volume grows.
    growing: Mutex<()>,
}

const OP: &str = "mount";

/// Read-only-compatible features that this engine knows but cannot write.
const UNWRITABLE: RoCompat = RoCompat::BIGALLOC
    .union(RoCompat::READ_ONLY)
    .union(RoCompat::SHARED_BLOCKS);

fn format_error(error: FormatError) -> Error {
    let kind = match error {
        FormatError::SuperIsJournalDevice | FormatError::SuperRevision { .. } => {
            ErrorKind::UnsupportedFeature
        }
        _ => ErrorKind::Corrupt,
    };
    Error::new(kind, OP).detail(error.to_string())
}

/// Reads and validates the superblock that the options name.
fn read_superblock(device: &SharedDevice, options: &Options) -> Result<Superblock> {
    let offset = match options.superblock_1k {
        Some(block) => block
            .checked_mul(1024)
            .ok_or(Error::new(ErrorKind::Invalid, OP))?,
        None => SUPERBLOCK_OFFSET,
    };
    let geometry = device.geometry();
    let unit = u64::from(geometry.logical_block_bytes).max(1);
    let start = offset / unit * unit;
    let at = (offset - start) as usize;
    let bytes = (at + SUPERBLOCK_SIZE).next_multiple_of(unit as usize);
    if start.saturating_add(bytes as u64) > geometry.bytes {
        return Err(Error::corrupt(
            OP,
            format!("the device ends before the superblock at byte {offset}"),
        ));
    }
    let buf = device
        .read_buf(DevOffset(start), bytes)
        .map_err(|e| Error::io(OP, e))?;
    Superblock::parse(&buf[at..], Some(geometry.bytes)).map_err(format_error)
}

/// The features that allow only reading, by name.
fn unwritable_features(superblock: &Superblock) -> Vec<String> {
    let features = superblock.features();
    let mut unwritable = features.unsupported_ro_compat(RoCompat::KNOWN - UNWRITABLE);
    if superblock.raw.creator_os.get() == OS_HURD {
        // Its inodes have a translator's block where others have the version's lower half.
        unwritable.push("inodes_of_the_hurd".to_owned());
    }
    let encoding = superblock.raw.encoding.get();
    if features.has_incompat(Incompat::CASEFOLD) && !casefold::is_known(encoding) {
        unwritable.push(format!("name_encoding_{encoding}"));
    }
    unwritable
}

/// Whether the features allow writing; refuses what cannot be read.
fn check_features(superblock: &Superblock, options: &Options) -> Result<bool> {
    let features = superblock.features();
    let unknown = features.unsupported_incompat(Incompat::KNOWN);
    if !unknown.is_empty() {
        return Err(Error::new(ErrorKind::UnsupportedFeature, OP)
            .detail(format!("unsupported features: {}", unknown.join(" "))));
    }
    let unwritable = unwritable_features(superblock);
    if unwritable.is_empty() || options.read_only {
        return Ok(!options.read_only);
    }
    if options.downgrade_to_read_only {
        return Ok(false);
    }
    Err(
        Error::new(ErrorKind::UnsupportedFeature, OP).detail(format!(
            "can only be mounted read-only because of the features: {}",
            unwritable.join(" ")
        )),
    )
}

/// Adds up the free totals of all group descriptors.
fn add_up_totals(device: &SharedDevice, superblock: &Superblock) -> Result<(u64, u64)> {
    const STRETCH_BYTES: usize = 1 << 20;
    let geo = &superblock.geo;
    let size = geo.block_len();
    let (mut blocks, mut inodes) = (0u64, 0u64);
    let mut index = 0;
    while index < geo.desc_blocks {
        let Some(start) = geo.desc_block(index) else {
            break;
        };
        let limit = (STRETCH_BYTES / size).max(1) as u32;
        let mut count = 1;
        while count < limit
            && geo.desc_block(index + count) == Some(BlockNo(start.0 + u64::from(count)))
        {
            count += 1;
        }
        let buf = device
            .read_buf(DevOffset(geo.block_offset(start)), size * count as usize)
            .map_err(|e| Error::io(OP, e).block(start.0))?;
        for n in 0..count {
            let from = n as usize * size;
            let block = buf.get(from..from + size);
            let first = (index + n) * geo.descs_per_block;
            let groups = (geo.groups_count - first).min(geo.descs_per_block) as usize;
            let descs = block
                .unwrap_or_default()
                .chunks_exact(usize::from(geo.desc_size));
            for desc in descs.take(groups) {
                let desc = GroupDesc::decode(desc, geo).map_err(format_error)?;
                blocks += u64::from(desc.free_clusters) << geo.cluster_bits;
                inodes += u64::from(desc.free_inodes);
            }
        }
        index += count;
    }
    Ok((
        blocks.min(geo.blocks_count),
        inodes.min(u64::from(geo.inodes_count)),
    ))
}

/// A volume that is being mounted.
#[derive(Clone)]
struct Mounting {
    device: SharedDevice,
    options: Options,
    superblock: Superblock,
    read_only: bool,
    /// The journal is replayed into memory: `device` is an overlay over what is only read.
    overlay: bool,
    /// Not cleanly unmounted: totals may be stale, orphans may exist.
    dirty: bool,
}

impl Mounting {
    fn settings(&self) -> Settings {
        Settings {
            commit_interval: self.options.commit_interval,
            barrier: self.options.barrier,
            read_only: self.read_only,
        }
    }

    fn cache(&self) -> MetaCache {
        MetaCache::new(
            Arc::clone(&self.device),
            self.superblock.geo.block_bits,
            self.superblock.geo.blocks_count,
            self.options.metadata_cache_bytes,
            Arc::default(),
        )
    }

    /// Finds and recovers the journal. Returns it together with what was recovered, except when it is
    /// to be left alone.
    fn recover(&mut self) -> Result<Option<(load::Found, Recovered)>> {
        let Some(found) = load::find(&self.device, &self.superblock, &self.options)? else {
            if self.needs_recovery() {
                return Err(Error::corrupt(
                    OP,
                    "needs_recovery is set, but there is no journal",
                ));
            }
            return Ok(None);
        };
        if !self.needs_recovery() {
            // Whatever its log holds is of no interest: everything had gone home when the flag
            // was cleared.
            let recovered = found.ignore();
            return Ok(Some((found, recovered)));
        }
        self.dirty = true;
        if self.options.no_journal_replay {
            if !self.read_only {
                return Err(Error::new(ErrorKind::Invalid, OP)
                    .detail("without replaying its journal the volume can only be read"));
            }
            return Ok(None);
        }
        let recovered = found.recover(&self.device, &self.superblock)?;
        self.superblock = read_superblock(&self.device, &self.options)?;
        Ok(Some((found, recovered)))
    }

    /// Recovers the journal, puts the parts together, and marks the volume as mounted.
    fn bring_up(mut self, writable: bool) -> Result<FsRef> {
        let journal = self.recover()?;
        // The log may have had newer features; what it says counts.
        let writable = check_features(&self.superblock, &self.options)? && writable;
        self.read_only = !writable;

        let mut errno = 0;
        let mut runs: Vec<(BlockNo, u32)> = Vec::new();
        if let Some((found, recovered)) = &journal
            && (writable || self.overlay)
            && recovered.fast_commits.records > 0
        {
            let runs = found.runs().collect();
            self.apply_fast_commits(&found.operations(recovered), runs)?;
        }
        let cache = self.cache();
        let journal = match journal {
            Some((mut found, recovered)) if writable => {
                found.mark_recovered(&recovered)?;
                errno = recovered.errno;
                runs.extend(found.runs());
                let log = found.into_log(&self.superblock, &recovered)?;
                Journal::with_log(cache.clone(), log, self.settings())
            }
            found => {
                runs.extend(found.iter().flat_map(|(found, _)| found.runs()));
                Journal::without_log(cache.clone(), self.settings())
            }
        };
        let fs = self.assemble(cache, journal, runs)?;
        fs.start_allocation()?;
        if writable {
            fs.mark_mounted(errno)?;
        }
        Ok(fs)
    }

    fn needs_recovery(&self) -> bool {
        self.superblock
            .features()
            .has_incompat(Incompat::NEEDS_RECOVERY)
    }

    /// Constructs the parts, each from those it needs. `runs`: the journal's blocks.
    fn assemble(
        self,
        cache: MetaCache,
        journal: Journal,
        runs: Vec<(BlockNo, u32)>,
    ) -> Result<FsRef> {
        let superblock = self.superblock;
        let clean = superblock.raw.state().contains(State::CLEAN);
        let totals = match self.dirty || !clean {
            true => Some(add_up_totals(&self.device, &superblock)?),
            false => None,
        };
        let volume = Volume::new(superblock, cache, journal, self.options, self.read_only)?;
        let volume = Arc::new(volume);
        if let Some((blocks, inodes)) = totals {
            volume.sb.set_totals(blocks, inodes);
        }
        let groups = Arc::new(Groups::new(&volume, runs));
        let alloc = Arc::new(Allocator::new(&volume, &groups));
        let ialloc = Arc::new(InodeAllocator::new(&alloc));
        let table = Arc::new(InodeTable::new(&volume, &groups));
        let orphans = Arc::new(Orphans::new(&volume, &table));
        let stored = Arc::new(StoredInodes::new(&volume, &groups, &table, &orphans));
        let quota = Arc::new(Quota::new(&alloc, &stored));
        let inodes = Inodes::new(&volume, &ialloc, &table, &orphans, &stored, &quota);
        let inodes = Arc::new(inodes);
        let maps = Arc::new(Maps::new(&volume, &alloc, &quota, &inodes));
        let delayed = Arc::new(Delayed::new(&volume, &alloc, &quota, &maps));
        let inline = InlineData::new(&volume, &alloc, &quota, &inodes, &maps, &delayed);
        let inline = Arc::new(inline);
        let xattrs = Arc::new(Xattrs::new(
            &volume, &groups, &alloc, &quota, &table, &orphans, &stored, &inodes, &maps,
        ));
        let eviction = Arc::new(Eviction::new(
            &volume, &ialloc, &orphans, &quota, &inodes, &maps, &delayed, &xattrs,
        ));
        let dirs = Arc::new(Directories::new(&volume, &inodes, &maps));
        let fs = Arc::new(Fs {
            commits: Commits::new(&volume, &alloc, &quota, &inodes, &maps, &delayed),
            truncation: Truncation::new(
                &volume, &alloc, &quota, &orphans, &inodes, &maps, &delayed, &inline,
            ),
            attributes: Attributes::new(&volume, &quota, &inodes, &maps, &dirs, &xattrs, &eviction),
            names: Names::new(
                &volume, &groups, &alloc, &quota, &orphans, &inodes, &maps, &dirs, &xattrs,
                &inline, &eviction,
            ),
            recovery: Recovery::new(
                &volume, &groups, &alloc, &ialloc, &table, &orphans, &stored, &quota, &inodes,
                &maps, &dirs, &eviction,
            ),
            volume,
            groups,
            alloc,
            ialloc,
            orphans,
            stored,
            quota,
            inodes,
            maps,
            delayed,
            inline,
            xattrs,
            eviction,
            dirs,
            mmp: Mutex::new(None),
            unmounted: AtomicBool::new(false),
            growing: Mutex::new(()),
        });
        #[cfg(feature = "comparison")]
        {
            let comparison = fs.volume.options.comparison;
            fs.alloc.set_preallocation(comparison.preallocation);
            fs.volume.journal.set_group_commit(comparison.group_commit);
        }
        let weak = Arc::downgrade(&fs.volume);
        fs.volume
            .journal
            .set_lock_hook(move |h| match weak.upgrade() {
                Some(volume) => volume.sb.refresh(h),
                None => Ok(()),
            });
        let weak = Arc::downgrade(&fs.volume);
        fs.volume.journal.set_abort_hook(move |error| {
            // Damage has been recorded, with its place, by the code that found it.
            if let Some(volume) = weak
                .upgrade()
                .filter(|_| error.kind() != ErrorKind::Corrupt)
            {
                volume.errors.note();
                // Without a journal the volume may be half changed, which the next user has to know.
                let recovers = volume
                    .superblock()
                    .features()
                    .has_compat(Compat::HAS_JOURNAL);
                if !(recovers && error.host_is_full()) {
                    let record = ErrorRecord::new("journal", None, None, error.kind());
                    write_record(&volume.device, &record);
                }
            }
        });
        Ok(fs)
    }
}

impl Fs {
    /// Mounts the volume on `device`.
    ///
    /// # Errors
    /// `Corrupt` or `UnsupportedFeature`, naming the check that failed or the feature; `Busy` when
    /// another host has it; `Io`.
    pub fn mount(mut device: SharedDevice, mut options: Options) -> Result<FsRef> {
        let superblock = read_superblock(&device, &options)?;
        let writable = check_features(&superblock, &options)?;
        let block = superblock.geo.block_size;
        let unit = device.geometry().logical_block_bytes;
        if block < unit {
            return Err(
                Error::new(ErrorKind::UnsupportedFeature, OP).detail(format!(
                    "blocks of {block} bytes on a device with logical blocks of {unit} bytes"
                )),
            );
        }
        if writable && device.geometry().read_only {
            return Err(Error::new(ErrorKind::ReadOnly, OP).detail("the device is read-only"));
        }
        if writable && options.superblock_1k.is_some() {
            return Err(Error::new(ErrorKind::Invalid, OP)
                .detail("with a backup superblock the volume can only be read"));
        }
        let overlay = !writable
            && !options.no_journal_replay
            && superblock.features().has_incompat(Incompat::NEEDS_RECOVERY);
        if overlay {
            fn over(device: SharedDevice) -> SharedDevice {
                Arc::new(OverlayDevice::new(device))
            }
            device = over(device);
            options.journal_device = options.journal_device.map(over);
        }
        let dirty = !superblock.raw.state().contains(State::CLEAN);
        let mounting = Mounting {
            device,
            options,
            superblock,
            read_only: !writable,
            overlay,
            dirty,
        };
        let keeper = Arc::new(Mutex::new(Weak::<Volume>::new()));
        let mmp = if writable {
            let keeper = Arc::clone(&keeper);
            let host = mounting.options.host_name.as_deref();
            Mmp::claim(&mounting.device, &mounting.superblock, host, move |error| {
                if let Some(volume) = keeper.lock().upgrade() {
                    volume.journal.abort(&error);
                }
            })?
        } else {
            None
        };
        match mounting.bring_up(writable) {
            Ok(fs) => {
                *keeper.lock() = Arc::downgrade(&fs.volume);
                *fs.mmp.lock() = mmp;
                Ok(fs)
            }
            Err(error) => {
                // Others need not wait for a claim that will not be renewed. The mount's own error
                // is the one to tell.
                let _ = mmp.map(|mmp| mmp.release());
                Err(error)
            }
        }
    }

    /// The superblock says from here on that the volume is in use.
    fn mark_mounted(&self, errno: i32) -> Result<()> {
        let journaled = self
            .volume
            .superblock()
            .features()
            .has_compat(Compat::HAS_JOURNAL);
        let mount_point = self.volume.options.mount_point.clone();
        self.volume.sb.write_through(&self.volume.device, |raw| {
            let mut features = raw.features();
            let mut state = raw.state();
            if journaled {
                features.incompat |= Incompat::NEEDS_RECOVERY;
                raw.set_features(features);
            } else {
                state -= State::CLEAN;
            }
            if errno != 0 {
                // The last user gave up in the middle of something: a full check is due.
                state |= State::ERROR;
            }
            raw.state.set(state.bits());
            raw.mnt_count.set(raw.mnt_count.get().saturating_add(1));
            raw.set_mount_time(now_seconds());
            if let Some(mount_point) = mount_point {
                put_mount_point(raw, &mount_point);
            }
        })
    }

    /// Makes allocation possible: sums the descriptors into the superblock's totals and notes
    /// what they promise. Call once, after journal recovery.
    ///
    /// # Errors
    /// I/O errors. A wrong descriptor is reported, and its group left out.
    fn start_allocation(&self) -> Result<()> {
        let geo = self.volume.geometry();
        let (mut free_blocks, mut free_inodes) = (0u64, 0u64);
        for index in (0..geo.desc_blocks).step_by(256) {
            let ahead: Vec<(BlockNo, u32)> = (index..geo.desc_blocks.min(index + 256))
                .filter_map(|i| Some((geo.desc_block(i)?, 1)))
                .collect();
            self.volume.cache.read_ahead(&ahead);
            let first = index * geo.descs_per_block;
            let end = first
                .saturating_add(geo.descs_per_block.saturating_mul(256))
                .min(geo.groups_count);
            for g in (first..end).map(GroupNo) {
                let desc = match self.groups.peek_desc(g) {
                    Ok(desc) => desc,
                    Err(e) if e.kind() == ErrorKind::Corrupt => continue,
                    Err(e) => return Err(e),
                };
                free_blocks += self.alloc.note_group(g, &desc);
                free_inodes += u64::from(desc.free_inodes);
                self.ialloc.note_group(g, &desc);
            }
        }
        let sb = &self.volume.sb;
        if (free_blocks, free_inodes) != (sb.free_blocks(), sb.free_inodes()) {
            sb.set_totals(free_blocks, free_inodes);
        }
        Ok(())
    }

    /// Commits, writes everything home and marks the volume clean. Nothing may be changed after.
    ///
    /// # Errors
    /// `Io` or `Poisoned`: the volume stays marked as in use, and the next mount recovers it.
    pub fn unmount(&self) -> Result<()> {
        if self.unmounted.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let result = self.close();
        self.volume.journal.stop();
        let mmp = self.mmp.lock().take();
        let released = mmp.map_or(Ok(()), |mmp| mmp.release());
        result.and(released)
    }

    /// Why changes are refused although the mount asked for no such thing.
    #[must_use]
    pub fn read_only_reason(&self) -> Option<String> {
        if let Some(cause) = self.volume.journal.aborted() {
            return Some(cause.to_string());
        }
        let features = unwritable_features(self.volume.superblock());
        let refused = !features.is_empty() && !self.volume.options.read_only;
        refused.then(|| format!("features that can only be read: {}", features.join(" ")))
    }

    fn close(&self) -> Result<()> {
        if let Some(cause) = self.volume.journal.aborted() {
            return Err(Error::new(ErrorKind::Poisoned, "unmount").source(cause.clone()));
        }
        // A volume that turned read-only because of an error has transactions to finish as well.
        let mounted_writable = self.volume.journal.is_writable_mount();
        self.volume.set_read_only();
        if !mounted_writable {
            return Ok(());
        }
        self.volume.journal.flush_checkpoint()?;
        self.volume.journal.mark_empty()?;
        let journaled = self
            .volume
            .superblock()
            .features()
            .has_compat(Compat::HAS_JOURNAL);
        self.volume.sb.write_through(&self.volume.device, |raw| {
            let mut features = raw.features();
            features.incompat -= Incompat::NEEDS_RECOVERY;
            raw.set_features(features);
            // Without a journal, errors found meanwhile must survive; `CLEAN` and `ERROR` may both
            // be set, which asks for a check.
            let mut state = raw.state();
            if !journaled {
                state |= State::CLEAN;
            }
            raw.state.set(state.bits());
        })
    }
}

fn put_mount_point(raw: &mut RawSuperblock, mount_point: &str) {
    raw.last_mounted.fill(0);
    let len = mount_point.len().min(raw.last_mounted.len() - 1);
    raw.last_mounted[..len].copy_from_slice(&mount_point.as_bytes()[..len]);
}

impl Mounting {
    /// Redoes the operations of fast commits on the recovered volume, through a volume of its own
    /// that commits straight home, and reads the superblock again. `runs`: the journal's blocks.
    fn apply_fast_commits(
        &mut self,
        operations: &Operations<'_>,
        runs: Vec<(BlockNo, u32)>,
    ) -> Result<()> {
        let redoing = Mounting {
            // On a read-only mount it is the overlay that changes.
            read_only: false,
            ..self.clone()
        };
        let cache = redoing.cache();
        let journal = Journal::without_log(cache.clone(), redoing.settings());
        let fs = redoing.assemble(cache, journal, runs)?;
        fs.start_allocation()?;
        let result = fs.recovery.apply_fast_commits(operations);
        fs.volume.journal.stop();
        result?;
        self.superblock = read_superblock(&self.device, &self.options)?;
        Ok(())
    }
}
