//! A sparse device in memory.
//!
//! Storage is a map from chunk number to a counted 64 KiB chunk, in shards with a lock each, so a
//! 16 TiB device costs what was written to it. Snapshots share chunks and copy them on write:
//! the crash explorer builds thousands of images from one base.
//!
//! Invariants: an absent chunk reads as zeroes; writing zeroes to an absent chunk stores nothing;
//! bytes past the device's end are never stored. Requests complete inline, in the caller's thread.
//!
//! Locks: one shard lock at a time, a leaf. A request larger than a chunk is not atomic against
//! a concurrent overlapping one, as on a real device.
//!
//! Not responsible for durability: what is written is there. `sim::recording` models its loss.

use crate::positional::{next_run, read_exact_at, write_all_at};
use crate::{AlignedBuf, BlockDevice, DevOffset, Flags, Geometry, Op, Request, Result, refuse};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

const CHUNK_BYTES: usize = 64 * 1024;
const SHARDS: usize = 64;

type Shard = HashMap<u64, Arc<AlignedBuf>>;

/// A sparse block device in memory. See the module's head.
pub struct MemoryDevice {
    bytes: u64,
    logical_block_bytes: u32,
    read_only: bool,
    shards: Box<[RwLock<Shard>]>,
}

fn is_zero(bytes: &[u8]) -> bool {
    // Compared against itself shifted by one this is a memcmp, which the C library vectorises.
    bytes
        .first()
        .is_none_or(|first| *first == 0 && bytes[..bytes.len() - 1] == bytes[1..])
}

impl MemoryDevice {
    /// A device of `bytes` zero bytes with 512-byte logical blocks; the size is rounded down to
    /// a whole block.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self::with_logical_block(bytes, 512)
    }

    /// A device with another logical block size.
    ///
    /// # Panics
    /// When the block size is not a power of two in 512 ..= 65536.
    #[must_use]
    pub fn with_logical_block(bytes: u64, logical_block_bytes: u32) -> Self {
        assert!(
            logical_block_bytes.is_power_of_two() && (512..=65536).contains(&logical_block_bytes),
            "logical block of {logical_block_bytes} bytes"
        );
        MemoryDevice {
            bytes: bytes - bytes % u64::from(logical_block_bytes),
            logical_block_bytes,
            read_only: false,
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
        }
    }

    /// A device that begins with the bytes of `image`, rounded up to a whole block.
    #[must_use]
    pub fn from_image(image: &[u8]) -> Self {
        let device = Self::new((image.len() as u64).next_multiple_of(512));
        device.store(0, image);
        device
    }

    /// A device with the contents of the file at `path`, whose size is rounded up to a whole
    /// block. Holes of the file are not read.
    ///
    /// # Errors
    /// As opening and reading the file.
    pub fn load(path: impl AsRef<Path>) -> io::Result<Self> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        let device = Self::new(len.next_multiple_of(512));
        let mut buf = vec![0; CHUNK_BYTES];
        let mut at = 0;
        while at < len {
            let Some((data, hole)) = next_run(&file, at, len)? else {
                break;
            };
            at = data;
            while at < hole {
                let part = &mut buf[..CHUNK_BYTES.min((hole - at) as usize)];
                read_exact_at(&file, part, at)?;
                device.store(at, part);
                at += part.len() as u64;
            }
        }
        Ok(device)
    }

    /// Writes the contents to a sparse file of the device's size, replacing what was there.
    ///
    /// # Errors
    /// As creating and writing the file.
    pub fn save(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let file = File::create(path)?;
        file.set_len(self.bytes)?;
        for (index, chunk) in self.chunks() {
            let at = index * CHUNK_BYTES as u64;
            let len = (self.bytes - at).min(CHUNK_BYTES as u64) as usize;
            // Page by page: a chunk of 64 KiB mostly holds less.
            for (page, bytes) in chunk[..len].chunks(4096).enumerate() {
                if !is_zero(bytes) {
                    write_all_at(&file, bytes, at + page as u64 * 4096)?;
                }
            }
        }
        Ok(())
    }

    /// A device with the same contents, independent from now on; shares unchanged chunks.
    ///
    /// Writes that run at the same time are in the snapshot or not, chunk by chunk.
    #[must_use]
    pub fn snapshot(&self) -> Self {
        MemoryDevice {
            bytes: self.bytes,
            logical_block_bytes: self.logical_block_bytes,
            read_only: false,
            shards: self
                .shards
                .iter()
                .map(|shard| RwLock::new(shard.read().clone()))
                .collect(),
        }
    }

    /// The same device, refusing writes from now on.
    #[must_use]
    pub fn into_read_only(mut self) -> Self {
        self.read_only = true;
        self
    }

    /// Takes memory for every byte now, rather than when it is written to for the first time: for measurements, in
    /// which that would be most of what there is to see.
    pub fn populate(&self) {
        for index in 0..self.bytes.div_ceil(CHUNK_BYTES as u64) {
            self.shard(index).write().entry(index).or_insert_with(|| {
                let mut chunk = AlignedBuf::zeroed(CHUNK_BYTES);
                // Touched: zeroed memory may not be there yet.
                chunk.fill(0);
                Arc::new(chunk)
            });
        }
    }

    /// How many bytes of memory the contents take.
    #[must_use]
    pub fn stored_bytes(&self) -> u64 {
        let chunks: usize = self.shards.iter().map(|shard| shard.read().len()).sum();
        (chunks * CHUNK_BYTES) as u64
    }

    /// The whole contents, for small devices.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut image = vec![0; self.bytes as usize];
        self.fetch(0, &mut image);
        image
    }

    fn chunks(&self) -> Vec<(u64, Arc<AlignedBuf>)> {
        let mut chunks: Vec<_> = (self.shards.iter())
            .flat_map(|shard| {
                shard
                    .read()
                    .iter()
                    .map(|(n, c)| (*n, Arc::clone(c)))
                    .collect::<Vec<_>>()
            })
            .collect();
        chunks.sort_unstable_by_key(|(index, _)| *index);
        chunks
    }

    fn shard(&self, chunk: u64) -> &RwLock<Shard> {
        &self.shards[(chunk % SHARDS as u64) as usize]
    }

    pub(crate) fn fetch(&self, offset: u64, mut buf: &mut [u8]) {
        let mut at = offset;
        while !buf.is_empty() {
            let (index, skip, len) = piece(at, buf.len() as u64);
            let (head, rest) = buf.split_at_mut(len);
            match self.shard(index).read().get(&index) {
                Some(chunk) => head.copy_from_slice(&chunk[skip..skip + len]),
                None => head.fill(0),
            }
            buf = rest;
            at += len as u64;
        }
    }

    pub(crate) fn store(&self, offset: u64, mut bytes: &[u8]) {
        let mut at = offset;
        while !bytes.is_empty() {
            let (index, skip, len) = piece(at, bytes.len() as u64);
            let (head, rest) = bytes.split_at(len);
            let mut shard = self.shard(index).write();
            match shard.entry(index) {
                Entry::Occupied(mut chunk) => {
                    Arc::make_mut(chunk.get_mut())[skip..skip + len].copy_from_slice(head);
                }
                Entry::Vacant(slot) if !is_zero(head) => {
                    let mut chunk = AlignedBuf::zeroed(CHUNK_BYTES);
                    chunk[skip..skip + len].copy_from_slice(head);
                    slot.insert(Arc::new(chunk));
                }
                Entry::Vacant(_) => {}
            }
            bytes = rest;
            at += len as u64;
        }
    }

    pub(crate) fn clear(&self, offset: u64, bytes: u64) {
        // A discard of a whole 16 TiB device must not visit a quarter of a billion chunks.
        if bytes / CHUNK_BYTES as u64 > 1 << 16 {
            let (first, last) = (
                offset.div_ceil(CHUNK_BYTES as u64),
                (offset + bytes) / CHUNK_BYTES as u64,
            );
            for shard in &self.shards {
                shard
                    .write()
                    .retain(|index, _| !(first..last).contains(index));
            }
            let (head, tail) = (first * CHUNK_BYTES as u64, last * CHUNK_BYTES as u64);
            self.clear(offset, head - offset);
            self.clear(tail, offset + bytes - tail);
            return;
        }
        let (mut at, end) = (offset, offset + bytes);
        while at < end {
            let (index, skip, len) = piece(at, end - at);
            let mut shard = self.shard(index).write();
            if len == CHUNK_BYTES {
                shard.remove(&index);
            } else if let Some(chunk) = shard.get_mut(&index) {
                Arc::make_mut(chunk)[skip..skip + len].fill(0);
            }
            at += len as u64;
        }
    }

    pub(super) fn perform(&self, request: &mut Request) -> Result<()> {
        refuse::request(&self.geometry(), request)?;
        let mut at = request.offset.0;
        match &mut request.op {
            Op::Read(buf) => self.fetch(at, buf),
            Op::Write(slices) => {
                for slice in slices {
                    self.store(at, slice);
                    at += slice.len() as u64;
                }
            }
            Op::Flush => {}
            Op::Discard { bytes } | Op::WriteZeroes { bytes } => self.clear(at, *bytes),
        }
        Ok(())
    }
}

/// The chunk that holds byte `at`, where in it, and how many of `len` bytes lie in it.
fn piece(at: u64, len: u64) -> (u64, usize, usize) {
    let skip = at % CHUNK_BYTES as u64;
    (
        at / CHUNK_BYTES as u64,
        skip as usize,
        len.min(CHUNK_BYTES as u64 - skip) as usize,
    )
}

impl BlockDevice for MemoryDevice {
    fn geometry(&self) -> Geometry {
        Geometry {
            bytes: self.bytes,
            logical_block_bytes: self.logical_block_bytes,
            optimal_io_bytes: 4096.max(self.logical_block_bytes),
            request_bytes_max: 1 << 20,
            fua: true,
            discard: true,
            read_only: self.read_only,
        }
    }

    fn submit(&self, mut request: Request) {
        let result = self.perform(&mut request);
        request.complete(result);
    }

    fn read_at(&self, offset: DevOffset, buf: &mut [u8]) -> Result<()> {
        refuse::range(&self.geometry(), "read", offset, buf.len() as u64, false)?;
        self.fetch(offset.0, buf);
        Ok(())
    }

    fn write_at(&self, offset: DevOffset, buf: &[u8], _: Flags) -> Result<()> {
        refuse::range(&self.geometry(), "write", offset, buf.len() as u64, true)?;
        self.store(offset.0, buf);
        Ok(())
    }

    fn next_data(&self, offset: DevOffset) -> DevOffset {
        let mut at = offset.0;
        while at < self.bytes {
            let index = at / CHUNK_BYTES as u64;
            if self.shard(index).read().contains_key(&index) {
                return DevOffset(at);
            }
            at = (index + 1) * CHUNK_BYTES as u64;
        }
        DevOffset(self.bytes.max(offset.0))
    }

    fn name(&self) -> String {
        format!("memory device of {} bytes", self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn populating_changes_no_byte() {
        let device = MemoryDevice::new(1 << 20);
        device.store(70_000, &[7; 5000]);
        let before = device.to_vec();
        device.populate();
        assert_eq!(device.stored_bytes(), 1 << 20);
        assert_eq!(device.to_vec(), before);
    }
    use crate::{DeviceError, DeviceErrorKind, IoSlice, SharedDevice};

    #[test]
    fn a_huge_device_costs_what_is_written() {
        let device = MemoryDevice::new(16 << 40);
        let far = DevOffset((16 << 40) - 4096);
        device.write_at(far, &[7; 4096], Flags::empty()).unwrap();
        device
            .write_at(DevOffset(1 << 30), &[0; 1 << 20], Flags::empty())
            .unwrap();
        assert_eq!(
            device.stored_bytes(),
            CHUNK_BYTES as u64,
            "zeroes are not stored"
        );
        let mut back = [0; 4096];
        device.read_at(far, &mut back).unwrap();
        assert_eq!(back, [7; 4096]);
        device.discard(DevOffset(512), (16 << 40) - 512).unwrap();
        assert_eq!(device.stored_bytes(), 0);
    }

    #[test]
    fn a_large_discard_keeps_its_neighbours() {
        let device = MemoryDevice::new(16 << 30);
        let ends = [512, (8 << 30) + 1024];
        for at in ends {
            device
                .write_at(DevOffset(at - 512), &[9; 1024], Flags::empty())
                .unwrap();
        }
        device.discard(DevOffset(512), (8 << 30) + 512).unwrap();
        let mut back = [1; 1024];
        device.read_at(DevOffset(0), &mut back).unwrap();
        assert_eq!((back[511], back[512]), (9, 0));
        device
            .read_at(DevOffset((8 << 30) + 512), &mut back)
            .unwrap();
        assert_eq!((back[511], back[512]), (0, 9));
    }

    #[test]
    fn conforms() {
        for block in [512, 4096] {
            let bytes = crate::conformance::BYTES_MIN;
            let device: SharedDevice = Arc::new(MemoryDevice::with_logical_block(bytes, block));
            crate::conformance::run(&device, 1);
        }
    }

    #[test]
    fn snapshots_are_independent() {
        let device = MemoryDevice::from_image(&[1; 100_000]);
        let copy = device.snapshot();
        device
            .write_at(DevOffset(0), &[2; 512], Flags::empty())
            .unwrap();
        copy.write_at(DevOffset(512), &[3; 512], Flags::empty())
            .unwrap();
        assert_eq!(device.to_vec()[..1024], [[2u8; 512], [1; 512]].concat());
        assert_eq!(copy.to_vec()[..1024], [[1u8; 512], [3; 512]].concat());
        assert_eq!(copy.to_vec()[99_999..], [vec![1], vec![0; 352]].concat());
    }

    #[test]
    fn files_round_trip_and_stay_sparse() {
        use std::os::unix::fs::MetadataExt;
        let path = std::env::temp_dir().join(format!("blockwright-mem-{}", std::process::id()));
        let device = MemoryDevice::new(1 << 30);
        device
            .write_at(DevOffset(123 * 512), &[5; 1536], Flags::empty())
            .unwrap();
        device
            .write_at(DevOffset((1 << 30) - 512), &[6; 512], Flags::empty())
            .unwrap();
        device.save(&path).unwrap();
        let again = MemoryDevice::load(&path);
        let blocks = std::fs::metadata(&path).unwrap().blocks();
        std::fs::remove_file(&path).unwrap();
        let again = again.unwrap();
        assert!(blocks * 512 < 1 << 20, "{blocks} blocks");
        assert_eq!(again.geometry().bytes, 1 << 30);
        let mut back = [0; 1536];
        again.read_at(DevOffset(123 * 512), &mut back).unwrap();
        assert_eq!(back, [5; 1536]);
        assert_eq!(again.stored_bytes(), 2 * CHUNK_BYTES as u64);
    }

    #[test]
    fn read_only_refuses() {
        let device = MemoryDevice::new(4096).into_read_only();
        let error = device
            .write_at(DevOffset(0), &[0; 512], Flags::empty())
            .unwrap_err();
        assert_eq!(error.kind, DeviceErrorKind::ReadOnly);
        let error: DeviceError = device.discard(DevOffset(0), 512).unwrap_err();
        assert_eq!(
            (error.op, error.kind),
            ("discard", DeviceErrorKind::ReadOnly)
        );
        let slices: Vec<IoSlice> = vec![AlignedBuf::zeroed(512).into()];
        assert!(
            device
                .write_vectored_at(DevOffset(0), &slices, Flags::empty())
                .is_err()
        );
    }
}
