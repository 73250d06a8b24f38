//! An image in chunks as a device that is only read.
//!
//! A read waits for the chunks that it touches, which are fetched at once. Reads that follow each other make the device fetch ahead, twice as far each
//! time, up to [`AHEAD_BYTES_MAX`]. Chunks of zeroes of the largest size, which holes become, are known by their name and not fetched.

use crate::fetch::{Contents, Fetcher};
use crate::{ChunkAddress, ChunkId, Error, Index, Result, Source, Stores};
use blockwright_device::{
    AlignedBuf, BlockDevice, DevOffset, DeviceError, DeviceErrorKind, Geometry, Held, Monitor, Op,
    OpenMode, Request, SharedDevice, refuse,
};
use parking_lot::Mutex;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// How far is read ahead, in bytes.
const AHEAD_BYTES_MAX: u64 = 16 << 20;
/// How far at first.
const AHEAD_BYTES_MIN: u64 = 512 << 10;
/// How far from the end of the last read one begins that follows it. The kernel's own requests come out of order.
const NEAR_BYTES: u64 = 1 << 20;
const BLOCK: u64 = 512;

/// What is known of the reader's direction.
#[derive(Default)]
struct Ahead {
    /// Where the last read ended, if there was one.
    next: Option<u64>,
    window: u64,
    /// The first chunk that was not read ahead.
    reached: usize,
}

/// See the module's head.
pub struct ChunkDevice {
    index: Index,
    name: String,
    geometry: Geometry,
    /// The names of chunks of zeroes: of the largest, and of the last one's size.
    zeroes: [ChunkId; 2],
    fetcher: Fetcher,
    ahead: Mutex<Ahead>,
    monitor: Arc<Monitor>,
}

/// A read under way.
struct Gather {
    request: Option<Request>,
    left: usize,
    error: Option<DeviceErrorKind>,
}

/// A part of a chunk, and where it belongs in the buffer.
struct Piece {
    chunk: Range<usize>,
    to: usize,
}

impl ChunkDevice {
    /// The image of an index whose chunks `source` has.
    #[must_use]
    pub fn new(index: Index, source: Box<dyn Source>, name: String) -> Self {
        let geometry = Geometry {
            bytes: index.bytes() / BLOCK * BLOCK,
            logical_block_bytes: BLOCK as u32,
            optimal_io_bytes: 64 << 10,
            request_bytes_max: 1 << 20,
            fua: false,
            discard: false,
            read_only: true,
        };
        let digest = index.digest;
        let last = index.entries().len().checked_sub(1);
        let sizes = [
            index.sizes.max as usize,
            last.map_or(0, |n| index.chunk_bytes(n)),
        ];
        let zeroes = sizes.map(|bytes| digest.of(&vec![0; bytes]));
        ChunkDevice {
            index,
            name,
            geometry,
            zeroes,
            fetcher: Fetcher::new(source, digest),
            ahead: Mutex::default(),
            monitor: Arc::default(),
        }
    }

    /// The image's index.
    #[must_use]
    pub fn index(&self) -> &Index {
        &self.index
    }

    fn is_zero(&self, n: usize) -> bool {
        self.zeroes.contains(&self.index.entries()[n].id)
    }

    /// Notes a read of bytes in these chunks, and fetches what may follow.
    fn read_ahead(&self, bytes: Range<u64>, last: usize) {
        let mut ahead = self.ahead.lock();
        let is_near = |next: u64| bytes.start.abs_diff(next) <= NEAR_BYTES;
        let follows = ahead.next.replace(bytes.end).is_some_and(is_near);
        if !follows {
            ahead.window = 0;
            ahead.reached = last + 1;
            return;
        }
        ahead.window = (ahead.window * 2).clamp(AHEAD_BYTES_MIN, AHEAD_BYTES_MAX);
        let from = ahead.reached.max(last + 1);
        let end = bytes.end.saturating_add(ahead.window);
        let to = self.index.find(end.min(self.index.bytes() - 1)) + 1;
        if from >= to {
            return;
        }
        ahead.reached = to;
        drop(ahead);
        let chunks = (from..to).filter(|&n| !self.is_zero(n));
        self.fetcher
            .want_soon(chunks.map(|n| (self.index.entries()[n].id, self.index.chunk_bytes(n))));
    }

    fn read(&self, mut request: Request) {
        self.monitor.note_submitted(&mut request);
        let start = request.offset.0;
        let end = start + request.op.bytes();
        let (first, last) = (self.index.find(start), self.index.find(end - 1));
        let mut wanted = Vec::with_capacity(last - first + 1);
        for n in first..=last {
            let chunk_start = self.index.start(n);
            let from = start.max(chunk_start);
            let to = end.min(self.index.entries()[n].end);
            let within = (from - chunk_start) as usize..(to - chunk_start) as usize;
            let at = (from - start) as usize;
            if self.is_zero(n) {
                if let Op::Read(buf) = &mut request.op {
                    buf[at..at + within.len()].fill(0);
                }
                continue;
            }
            let piece = Piece {
                chunk: within,
                to: at,
            };
            wanted.push((n, piece));
        }
        let gather = Arc::new(Mutex::new(Gather {
            request: Some(request),
            // One more for this function: nothing completes while it asks.
            left: wanted.len() + 1,
            error: None,
        }));
        for (n, piece) in wanted {
            let mine = Arc::clone(&gather);
            let monitor = Arc::clone(&self.monitor);
            let (id, bytes) = (self.index.entries()[n].id, self.index.chunk_bytes(n));
            self.fetcher.want(id, bytes, move |contents| {
                Gather::take(&mine, &monitor, Some((contents, piece)));
            });
        }
        Gather::take(&gather, &self.monitor, None);
        self.read_ahead(start..end, last);
    }
}

impl Gather {
    /// A chunk came, or failed to. Completes the request when it was the last.
    fn take(this: &Mutex<Gather>, monitor: &Monitor, came: Option<(Result<Contents>, Piece)>) {
        let mut g = this.lock();
        match came {
            None => {}
            Some((Err(e), _)) => drop(g.error.get_or_insert_with(|| e.into())),
            Some((Ok(contents), piece)) => {
                if let Some(request) = &mut g.request
                    && let Op::Read(buf) = &mut request.op
                {
                    let to = piece.to..piece.to + piece.chunk.len();
                    buf[to].copy_from_slice(&contents[piece.chunk]);
                }
            }
        }
        g.left -= 1;
        if g.left == 0
            && let Some(request) = g.request.take()
        {
            let result = match g.error.take() {
                Some(kind) => Err(request.error(kind)),
                None => Ok(()),
            };
            drop(g);
            monitor.complete(request, result);
        }
    }
}

impl BlockDevice for ChunkDevice {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&self, request: Request) {
        match refuse::request(&self.geometry, &request) {
            Err(error) => request.complete(Err(error)),
            Ok(()) if matches!(request.op, Op::Read(_)) && request.op.bytes() > 0 => {
                self.read(request);
            }
            // Nothing was written, so there is nothing to flush.
            Ok(()) => request.complete(Ok(())),
        }
    }

    fn next_data(&self, offset: DevOffset) -> DevOffset {
        let mut at = offset.0;
        while at < self.geometry.bytes {
            let n = self.index.find(at);
            if !self.is_zero(n) {
                // Chunks end at any byte.
                return DevOffset(self.geometry.block_start(at).max(offset.0));
            }
            at = self.index.entries()[n].end;
        }
        DevOffset(self.geometry.bytes.max(offset.0))
    }

    fn tail(&self) -> blockwright_device::Result<Vec<u8>> {
        let mut out = Vec::new();
        let mut at = self.geometry.bytes;
        while at < self.index.bytes() {
            let n = self.index.find(at);
            let (tell, told) = std::sync::mpsc::channel();
            let (id, bytes) = (self.index.entries()[n].id, self.index.chunk_bytes(n));
            self.fetcher.want(id, bytes, move |contents| {
                // The other end waits below.
                let _ = tell.send(contents);
            });
            let contents = told.recv().unwrap_or_else(|_| {
                Err(Error::Store {
                    place: self.name.clone(),
                    why: "the fetching threads ended".to_owned(),
                })
            });
            let contents = contents.map_err(|e| DeviceError {
                op: "read",
                offset: DevOffset(at),
                bytes: self.index.bytes() - at,
                kind: e.into(),
            })?;
            out.extend_from_slice(&contents[(at - self.index.start(n)) as usize..]);
            at = self.index.entries()[n].end;
        }
        Ok(out)
    }

    fn read_at(&self, offset: DevOffset, buf: &mut [u8]) -> blockwright_device::Result<()> {
        let filled = self.read_aligned(offset, AlignedBuf::for_overwrite(buf.len()))?;
        buf.copy_from_slice(&filled);
        Ok(())
    }

    fn monitor(&self) -> Option<&Monitor> {
        Some(&self.monitor)
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

/// An image whose index and chunks `source` has. The index is read when the device starts, and nothing before.
#[must_use]
pub fn hold(source: Box<dyn Source>, name: String) -> Held {
    Held::later(move || {
        let index = Index::read(&source.index()?[..])?;
        let device: SharedDevice = Arc::new(ChunkDevice::new(index, source, name));
        Ok(device)
    })
}

/// Opens the image at an address. `None` when the place is none, but a path.
///
/// # Errors
/// [`DeviceErrorKind::ReadOnly`] unless it is opened for reading; as [`Stores::open`], [`Source::index`] and [`Index::read`].
pub fn open(
    place: impl AsRef<Path>,
    mode: OpenMode,
) -> Option<std::result::Result<SharedDevice, DeviceError>> {
    let address = ChunkAddress::parse(&place)?;
    let opened = address.map_err(DeviceError::from).and_then(|address| {
        check_mode(mode)?;
        let stores = Stores::open(&address)?;
        hold(Box::new(stores), address.to_string()).start()
    });
    Some(opened)
}

/// Refuses to open for writing.
///
/// # Errors
/// [`DeviceErrorKind::ReadOnly`].
pub fn check_mode(mode: OpenMode) -> std::result::Result<(), DeviceError> {
    match mode.read_only {
        true => Ok(()),
        false => Err(DeviceError {
            op: "open",
            offset: DevOffset(0),
            bytes: 0,
            kind: DeviceErrorKind::ReadOnly,
        }),
    }
}
