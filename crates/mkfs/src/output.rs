//! How planned volumes reach a device: file data by several threads in large pieces, metadata
//! collected into large writes of which many are under way.

use crate::tree::{NodeId, Tree};
use crate::{MkfsError, Result};
use blockwright_device::{
    AlignedBuf, DevOffset, DeviceError, Flags, IoSlice, Op, Request, SharedDevice,
};
use parking_lot::{Condvar, Mutex};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The error of a [`DataSource`].
pub type SourceError = Box<dyn std::error::Error + Send + Sync>;

/// Where the data of a tree's regular files comes from. Called from several threads.
pub trait DataSource: Sync {
    /// Fills `buf` with the bytes of `node` from `offset` on; holes read as zeroes. The range
    /// lies within [`Node::stored_bytes`](crate::tree::Node::stored_bytes).
    ///
    /// # Errors
    /// Any failure; no volume is made then.
    fn read_at(
        &self,
        node: NodeId,
        offset: u64,
        buf: &mut [u8],
    ) -> std::result::Result<(), SourceError>;
}

/// A source for trees without file data.
pub(crate) struct NoData;

impl DataSource for NoData {
    fn read_at(&self, _: NodeId, _: u64, _: &mut [u8]) -> std::result::Result<(), SourceError> {
        Ok(())
    }
}

/// Refuses a device that a volume of this many bytes does not fit, or whose own blocks are larger than the volume's.
pub(crate) fn check_device(device: &SharedDevice, bytes: u64, block_bytes: u32) -> Result<()> {
    let limits = device.geometry();
    if limits.bytes < bytes {
        return Err(MkfsError::option(
            "--size",
            format!("the volume has {bytes} bytes, the device {}", limits.bytes),
        ));
    }
    if limits.logical_block_bytes > block_bytes {
        return Err(MkfsError::option(
            "-b",
            format!(
                "the device's own blocks have {} bytes",
                limits.logical_block_bytes
            ),
        ));
    }
    Ok(())
}

/// How far the writing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// This many more bytes of file data are on the device, and this many more files complete. Before the first data, none and none while the device's old
    /// contents are wiped.
    Copied {
        /// Bytes since the last call.
        bytes: u64,
        /// Files since the last call.
        files: u64,
    },
    /// All data is there; metadata follows.
    Metadata,
}

/// Takes the progress of writing, from several threads, and says whether to go on. After a break no volume is made, and [`MkfsError::Stopped`] is the result.
pub type ProgressFn<'a> = &'a (dyn Fn(Progress) -> ControlFlow<()> + Sync);

/// Tells how far the writing is.
pub(crate) fn tell(progress: ProgressFn<'_>, step: Progress) -> Result<()> {
    match progress(step) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(MkfsError::Stopped),
    }
}

/// Asks whether to go on while no file data is written.
pub(crate) fn ask(progress: ProgressFn<'_>) -> Result<()> {
    tell(progress, Progress::Copied { bytes: 0, files: 0 })
}

/// Bytes that are zeroed at once: a device that cannot zero a range writes them.
const ZEROED_BYTES: u64 = 16 << 20;

/// Zeroes a range of the device in pieces. `goes_on` is asked before each one, with the bytes that are zeroed by then.
pub(crate) fn zero(
    device: &SharedDevice,
    start: u64,
    bytes: u64,
    goes_on: &dyn Fn(u64) -> Result<()>,
) -> Result<()> {
    let mut done = 0;
    while done < bytes {
        goes_on(done)?;
        let piece = (bytes - done).min(ZEROED_BYTES);
        device.write_zeroes(DevOffset(start + done), piece)?;
        done += piece;
    }
    Ok(())
}

/// Bytes of one write of file data.
const CHUNK_BYTES: usize = 2 << 20;
/// Bytes of metadata collected before they are written.
const META_BYTES: usize = 1 << 20;

/// A piece of a file's data in a chunk.
pub(crate) struct Piece {
    node: NodeId,
    offset: u64,
    blocks: u64,
    last: bool,
}

/// A run of the device to be filled from files.
pub(crate) struct Chunk {
    start: u64,
    blocks: u64,
    pieces: Vec<Piece>,
}

/// Chunks being collected.
pub(crate) struct Chunks {
    bits: u32,
    list: Vec<Chunk>,
}

impl Chunks {
    pub(crate) fn new(bits: u32) -> Self {
        Chunks {
            bits,
            list: Vec::new(),
        }
    }

    /// Adds a run of a file: `len` blocks from file block `logical` on go to block `physical`.
    /// `last` says that it is the file's last run.
    pub(crate) fn push(
        &mut self,
        node: NodeId,
        mut logical: u64,
        mut physical: u64,
        len: u64,
        last: bool,
    ) {
        let most = (CHUNK_BYTES as u64 >> self.bits).max(1);
        let mut left = len;
        while left > 0 {
            let room = match self.list.last() {
                Some(c) if c.start + c.blocks == physical => most - c.blocks,
                _ => 0,
            };
            if room == 0 {
                self.list.push(Chunk {
                    start: physical,
                    blocks: 0,
                    pieces: Vec::new(),
                });
            }
            let Some(chunk) = self.list.last_mut() else {
                return;
            };
            let take = left.min(most - chunk.blocks);
            chunk.pieces.push(Piece {
                node,
                offset: logical << self.bits,
                blocks: take,
                last: last && take == left,
            });
            chunk.blocks += take;
            (logical, physical, left) = (logical + take, physical + take, left - take);
        }
    }

    pub(crate) fn finish(self) -> Vec<Chunk> {
        self.list
    }
}

/// Copies file data to where chunks want it, by several threads.
pub(crate) fn copy_data(
    device: &SharedDevice,
    bits: u32,
    chunks: &[Chunk],
    tree: &Tree,
    source: &dyn DataSource,
    progress: ProgressFn<'_>,
) -> Result<()> {
    in_parallel(chunks.len(), &|job, buf| {
        let Some(chunk) = chunks.get(job) else {
            return Ok(());
        };
        let bytes = (chunk.blocks << bits) as usize;
        if buf.len() != bytes {
            *buf = AlignedBuf::zeroed(bytes);
        }
        let (mut at, mut files) = (0usize, 0u64);
        for piece in &chunk.pieces {
            let end = at + (piece.blocks << bits) as usize;
            let dest = &mut buf[at..end];
            let size = tree.node(piece.node).stored_bytes();
            let have = size.saturating_sub(piece.offset).min(dest.len() as u64) as usize;
            let (data, tail) = dest.split_at_mut(have);
            source
                .read_at(piece.node, piece.offset, data)
                .map_err(|e| MkfsError::Source(Arc::from(e)))?;
            tail.fill(0);
            files += u64::from(piece.last);
            at = end;
        }
        device.write_at(DevOffset(chunk.start << bits), buf, Flags::empty())?;
        let bytes = bytes as u64;
        tell(progress, Progress::Copied { bytes, files })
    })
}

/// Does jobs `0..count` by several threads, each with a buffer of its own; the first error ends it.
pub(crate) fn in_parallel(
    count: usize,
    work: &(dyn Fn(usize, &mut AlignedBuf) -> Result<()> + Sync),
) -> Result<()> {
    // Most of their time they wait, for the sources or for the device.
    let threads = std::thread::available_parallelism()
        .map_or(2, usize::from)
        .saturating_mul(4)
        .clamp(8, 16);
    let next = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let guarded = || {
        let mut buf = AlignedBuf::zeroed(0);
        let result = loop {
            if failed.load(Ordering::Relaxed) {
                break Ok(());
            }
            let job = next.fetch_add(1, Ordering::Relaxed);
            if job >= count {
                break Ok(());
            }
            let result = work(job, &mut buf);
            if result.is_err() {
                break result;
            }
        };
        if result.is_err() {
            failed.store(true, Ordering::Relaxed);
        }
        result
    };
    if count < 2 {
        return guarded();
    }
    std::thread::scope(|scope| {
        // A host without threads (WASI), or without one more: the caller does what is left.
        let workers: Vec<_> = (0..threads.min(count))
            .map_while(|_| {
                std::thread::Builder::new()
                    .spawn_scoped(scope, guarded)
                    .ok()
            })
            .collect();
        let mut first = match workers.is_empty() {
            true => guarded(),
            false => Ok(()),
        };
        for worker in workers {
            let result = match worker.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            // An error beside a stop is the one to tell.
            if matches!(first, Ok(()) | Err(MkfsError::Stopped)) && result.is_err() {
                first = result;
            }
        }
        first
    })
}

/// Writes that are under way.
#[derive(Default)]
struct Flight {
    state: Mutex<(usize, Option<DeviceError>)>,
    completed: Condvar,
}

/// Most writes under way at once.
const FLIGHT_MAX: usize = 64;

impl Flight {
    /// Waits until at most `most` writes are under way; the first that failed is the result.
    fn wait(&self, most: usize) -> Result<()> {
        let mut state = self.state.lock();
        while state.0 > most {
            self.completed.wait(&mut state);
        }
        match &state.1 {
            Some(error) => Err(error.clone().into()),
            None => Ok(()),
        }
    }
}

/// Collects neighbouring blocks into large writes, and keeps many of them under way: the bitmaps of
/// a large volume are thousands of small ones.
pub(crate) struct BlockWriter<'a> {
    device: &'a SharedDevice,
    bits: u32,
    start: u64,
    buf: Vec<u8>,
    flight: Arc<Flight>,
}

impl<'a> BlockWriter<'a> {
    pub(crate) fn new(device: &'a SharedDevice, bits: u32) -> Self {
        BlockWriter {
            device,
            bits,
            start: 0,
            buf: Vec::new(),
            flight: Arc::default(),
        }
    }

    /// Writes whole blocks.
    pub(crate) fn put(&mut self, block: impl Into<u64>, bytes: &[u8]) -> Result<()> {
        let block = block.into();
        let next = self.start + (self.buf.len() as u64 >> self.bits);
        if self.buf.is_empty() || next != block || self.buf.len() >= META_BYTES {
            self.send()?;
            self.start = block;
        }
        self.buf.extend_from_slice(bytes);
        Ok(())
    }

    pub(crate) fn send(&mut self) -> Result<()> {
        if self.buf.is_empty() {
            return Ok(());
        }
        let slice = IoSlice::from(AlignedBuf::copy_of(&self.buf));
        self.buf.clear();
        self.submit(self.start, slice)
    }

    /// Starts a write.
    pub(crate) fn submit(&self, at: impl Into<u64>, slice: IoSlice) -> Result<()> {
        self.flight.wait(FLIGHT_MAX - 1)?;
        self.flight.state.lock().0 += 1;
        let flight = Arc::clone(&self.flight);
        let offset = DevOffset(at.into() << self.bits);
        let mut request = Request::new(Op::Write(vec![slice]), offset, move |done| {
            let mut state = flight.state.lock();
            state.0 -= 1;
            if let Err(error) = done.result {
                state.1.get_or_insert(error);
            }
            drop(state);
            flight.completed.notify_all();
        });
        request.flags = Flags::META;
        self.device.submit(request);
        Ok(())
    }

    /// Writes what is collected, and waits for all of it.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.send()?;
        self.flight.wait(0)
    }
}
