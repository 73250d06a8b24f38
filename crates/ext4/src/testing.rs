//! Parts over a small volume in memory, constructed without a mount.

use crate::Options;
use crate::alloc::Allocator;
use crate::alloc::groups::Groups;
use crate::alloc::inodes::InodeAllocator;
use crate::inode::{InodeTable, Inodes, Orphans, StoredInodes};
use crate::journal::buffer::MetaCache;
use crate::journal::{Journal, Settings};
use crate::map::Maps;
use crate::quota::Quota;
use crate::volume::Volume;
use blockwright_device::{DevOffset, DeviceExt, MemoryDevice, RecordingDevice, SharedDevice};
use blockwright_mkfs::ext4::{FormatOptions, format};
use blockwright_ondisk::ext4::Superblock;
use std::sync::Arc;

/// The parts up to the mappings of files.
pub(crate) struct Parts {
    pub(crate) device: Arc<RecordingDevice>,
    pub(crate) volume: Arc<Volume>,
    pub(crate) groups: Arc<Groups>,
    pub(crate) alloc: Arc<Allocator>,
    pub(crate) orphans: Arc<Orphans>,
    pub(crate) stored: Arc<StoredInodes>,
    pub(crate) quota: Arc<Quota>,
    pub(crate) inodes: Arc<Inodes>,
    pub(crate) maps: Arc<Maps>,
}

impl Parts {
    /// Over a new volume of 16 MiB without a journal, so that commits go home.
    pub(crate) fn new() -> Self {
        let base = Arc::new(MemoryDevice::new(16 << 20));
        let shared: SharedDevice = Arc::clone(&base) as SharedDevice;
        let options = FormatOptions {
            features: "^has_journal".to_owned(),
            ..FormatOptions::default()
        };
        format(&shared, &options).expect("format");
        let device = Arc::new(RecordingDevice::new(&base));
        let shared: SharedDevice = Arc::clone(&device) as SharedDevice;
        let raw = shared.read_buf(DevOffset(0), 4096).expect("read");
        let superblock = Superblock::parse(&raw[1024..], Some(16 << 20)).expect("superblock");
        let geo = &superblock.geo;
        let cache = MetaCache::new(
            shared,
            geo.block_bits,
            geo.blocks_count,
            1 << 20,
            Arc::default(),
        );
        let options = Options::default();
        let settings = Settings {
            commit_interval: options.commit_interval,
            barrier: true,
            read_only: false,
        };
        let journal = Journal::without_log(cache.clone(), settings);
        let volume = Volume::new(superblock, cache, journal, options, false).expect("volume");
        let volume = Arc::new(volume);
        let groups = Arc::new(Groups::new(&volume, []));
        let alloc = Arc::new(Allocator::new(&volume, &groups));
        let ialloc = Arc::new(InodeAllocator::new(&alloc));
        for group in volume.geometry().groups() {
            let desc = groups.peek_desc(group).expect("descriptor");
            alloc.note_group(group, &desc);
            ialloc.note_group(group, &desc);
        }
        let table = Arc::new(InodeTable::new(&volume, &groups));
        let orphans = Arc::new(Orphans::new(&volume, &table));
        let stored = Arc::new(StoredInodes::new(&volume, &groups, &table, &orphans));
        let quota = Arc::new(Quota::new(&alloc, &stored));
        let inodes = Inodes::new(&volume, &ialloc, &table, &orphans, &stored, &quota);
        let inodes = Arc::new(inodes);
        let maps = Arc::new(Maps::new(&volume, &alloc, &quota, &inodes));
        Parts {
            device,
            volume,
            groups,
            alloc,
            orphans,
            stored,
            quota,
            inodes,
            maps,
        }
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        self.volume.journal.stop();
    }
}
