//! Cutting an image into chunks.
//!
//! One thread reads, the caller's cuts, the others name, compress and write. The cuts depend on the image and the sizes alone, so the index is the same
//! however many threads there are. A chunk that the store has is not written again.
//!
//! The index is written when all chunks are durable, and appears whole.

use crate::pack::pack;
use crate::sink::{Folder, Sink};
use crate::{ChunkId, ChunkSizes, Chunker, Digest, Error, Index, Result};
use blockwright_device::{DevOffset, DeviceExt, SharedDevice};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

/// Bytes that are read at once.
const STEP_BYTES: u64 = 1 << 20;
/// How many of these wait to be cut.
const STEPS_AHEAD: usize = 8;

blockwright_device::with_defaults! {
/// How an image is cut, and by how many threads. The defaults are those of casync, on all processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MakeOptions {
    /// Sizes of chunks. Images share chunks only when they are cut alike.
    pub sizes: ChunkSizes = ChunkSizes::default(),
    /// How chunks are named.
    pub digest: Digest = Digest::default(),
    /// Threads that name and compress; at least one.
    pub threads: usize = thread::available_parallelism().map_or(1, usize::from),
}
}

/// What making chunks of an image did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Made {
    /// The image's bytes.
    pub bytes: u64,
    /// Chunks of the image.
    pub chunks: u64,
    /// Chunks that the store did not have.
    pub new_chunks: u64,
    /// Their bytes before compression.
    pub new_bytes: u64,
    /// Their bytes in the store.
    pub stored_bytes: u64,
}

enum Step {
    Data(Vec<u8>),
    Zeroes(u64),
}

struct Cut {
    n: usize,
    contents: Vec<u8>,
}

/// What the threads that store share.
struct Storing<'a> {
    store: &'a dyn Sink,
    digest: Digest,
    done: Mutex<Done>,
}

#[derive(Default)]
struct Done {
    /// The name of each chunk, in the image's order as far as they are done.
    ids: Vec<Option<ChunkId>>,
    seen: HashSet<ChunkId>,
    made: Made,
    error: Option<Error>,
}

/// Writes the chunks of an image into the store in a folder, which is made, and its index. `progress` gets the position in bytes of the image.
///
/// # Errors
/// [`Error::Address`] for sizes that cannot be; [`Error::Device`]; [`Error::Host`]; [`Error::Index`] for too many chunks. Chunks that were written stay.
pub fn make(
    image: &SharedDevice,
    store: &Path,
    index: &Path,
    options: &MakeOptions,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Made> {
    make_into(image, &Folder::open(store)?, index, options, progress)
}

/// The same into any store.
///
/// # Errors
/// As [`make()`], and those of the store.
pub fn make_into(
    image: &SharedDevice,
    store: &dyn Sink,
    index: &Path,
    options: &MakeOptions,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Made> {
    let chunker = Chunker::new(options.sizes).map_err(Error::Address)?;
    let storing = Storing {
        store,
        digest: options.digest,
        done: Mutex::default(),
    };
    let threads = options.threads.max(1);
    let lengths: Result<Vec<u64>> = thread::scope(|scope| {
        let (steps, read) = sync_channel(STEPS_AHEAD);
        scope.spawn(move || read_image(image, &steps));
        let (queue, cuts) = sync_channel::<Cut>(2 * threads);
        let cuts = Arc::new(Mutex::new(cuts));
        for _ in 0..threads {
            let (storing, cuts) = (&storing, Arc::clone(&cuts));
            scope.spawn(move || storing.work(&cuts));
        }
        // The threads that store end when all are gone, and the queue fails with them.
        drop(cuts);
        let mut cutting = Cutting {
            chunker: &chunker,
            skip_zeroes: chunker.passes_zeroes(),
            rest: Vec::new(),
            lengths: Vec::new(),
            zeroes: None,
            queue,
            storing: &storing,
            at: 0,
            progress,
        };
        cutting.run(&read)?;
        Ok(cutting.lengths)
    });
    let done = storing.done.into_inner();
    // The first error is the one to tell: cutting stops because of it.
    if let Some(e) = done.error {
        return Err(e);
    }
    let lengths = lengths?;
    let mut list = Index::new(options.digest, options.sizes);
    for (n, length) in lengths.iter().enumerate() {
        let id = done.ids.get(n).copied().flatten();
        let id = id.ok_or_else(|| Error::Index(format!("chunk {n} was not named")))?;
        list.push(*length, id)?;
    }
    // Chunks first: an index says that its chunks are there.
    store.sync()?;
    write_index(&list, index).map_err(|e| Error::host(index.display(), &e))?;
    Ok(Made {
        bytes: list.bytes(),
        chunks: lengths.len() as u64,
        ..done.made
    })
}

/// Writes an index so that it appears whole, and durably.
fn write_index(list: &Index, path: &Path) -> std::io::Result<()> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut file = tempfile::Builder::new()
        .prefix(".index-")
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
        .tempfile_in(folder)?;
    let mut out = BufWriter::with_capacity(1 << 20, &mut file);
    list.write(&mut out)?;
    out.flush()?;
    drop(out);
    file.as_file().sync_all()?;
    file.persist(path)?;
    File::open(folder)?.sync_all()
}

type Steps = SyncSender<std::result::Result<Step, blockwright_device::DeviceError>>;

/// Sends an image, step by step. Ends early when no step is taken any more.
fn read_image(image: &SharedDevice, steps: &Steps) {
    let end = image.geometry().bytes;
    let mut at = 0;
    while at < end {
        let data = image.next_data(DevOffset(at)).0.clamp(at, end);
        // A short hole is as quickly read.
        if data - at >= STEP_BYTES || (data == end && data > at) {
            if steps.send(Ok(Step::Zeroes(data - at))).is_err() {
                return;
            }
            at = data;
            continue;
        }
        let bytes = STEP_BYTES.min(end - at);
        let read = image.read_buf(DevOffset(at), bytes as usize);
        let failed = read.is_err();
        if steps
            .send(read.map(|buf| Step::Data(buf.to_vec())))
            .is_err()
            || failed
        {
            return;
        }
        at += bytes;
    }
    let tail = image.tail();
    if !matches!(&tail, Ok(tail) if tail.is_empty()) {
        // The other end may have stopped because of an error of its own.
        let _ = steps.send(tail.map(Step::Data));
    }
}

struct Cutting<'a> {
    chunker: &'a Chunker,
    skip_zeroes: bool,
    /// What was read and not cut.
    rest: Vec<u8>,
    lengths: Vec<u64>,
    /// The name of the largest chunk of zeroes, once it is stored.
    zeroes: Option<ChunkId>,
    queue: SyncSender<Cut>,
    storing: &'a Storing<'a>,
    at: u64,
    progress: &'a (dyn Fn(u64) + Sync),
}

impl Cutting<'_> {
    fn run(
        &mut self,
        read: &Receiver<std::result::Result<Step, blockwright_device::DeviceError>>,
    ) -> Result<()> {
        for step in read {
            match step? {
                Step::Data(bytes) => {
                    self.rest.extend_from_slice(&bytes);
                    self.cut(false)?;
                }
                Step::Zeroes(mut bytes) => {
                    while bytes > 0 {
                        let max = self.chunker.max() as u64;
                        if self.rest.is_empty() && bytes >= max && self.skip_zeroes {
                            self.push_zeroes()?;
                            bytes -= max;
                            continue;
                        }
                        let some = bytes.min(max);
                        self.rest.resize(self.rest.len() + some as usize, 0);
                        bytes -= some;
                        self.cut(false)?;
                        // So that the next chunk begins here, where it can be skipped.
                        if self.rest.iter().all(|&b| b == 0) {
                            bytes += self.rest.len() as u64;
                            self.rest.clear();
                            if bytes < max {
                                self.rest.resize(bytes as usize, 0);
                                bytes = 0;
                            }
                        }
                    }
                }
            }
        }
        self.cut(true)
    }

    /// Cuts as far as what was read decides where.
    fn cut(&mut self, last: bool) -> Result<()> {
        let mut from = 0;
        while self.rest.len() - from >= self.chunker.max() || (last && from < self.rest.len()) {
            let len = self.chunker.cut(&self.rest[from..]);
            let contents = self.rest[from..from + len].to_vec();
            self.push(contents)?;
            from += len;
        }
        self.rest.drain(..from);
        Ok(())
    }

    fn note(&mut self, bytes: u64) {
        self.lengths.push(bytes);
        self.at += bytes;
        (self.progress)(self.at);
    }

    fn push(&mut self, contents: Vec<u8>) -> Result<()> {
        let bytes = contents.len() as u64;
        let n = self.lengths.len();
        if self.storing.done.lock().error.is_some() || self.queue.send(Cut { n, contents }).is_err()
        {
            // The thread that has the error reports it.
            return Err(Error::Index("storing has stopped".to_owned()));
        }
        self.note(bytes);
        Ok(())
    }

    fn push_zeroes(&mut self) -> Result<()> {
        let max = self.chunker.max();
        let Some(id) = self.zeroes else {
            let contents = vec![0; max];
            self.zeroes = Some(self.storing.digest.of(&contents));
            return self.push(contents);
        };
        self.storing.done.lock().name(self.lengths.len(), id);
        self.note(max as u64);
        Ok(())
    }
}

impl Done {
    fn name(&mut self, n: usize, id: ChunkId) {
        if self.ids.len() <= n {
            self.ids.resize(n + 1, None);
        }
        self.ids[n] = Some(id);
    }
}

impl Storing<'_> {
    fn work(&self, cuts: &Mutex<Receiver<Cut>>) {
        loop {
            let next = cuts.lock().recv();
            let Ok(cut) = next else { return };
            if let Err(e) = self.keep(&cut) {
                self.done.lock().error.get_or_insert(e);
            }
        }
    }

    fn keep(&self, cut: &Cut) -> Result<()> {
        let id = self.digest.of(&cut.contents);
        let new = {
            let mut done = self.done.lock();
            done.name(cut.n, id);
            done.error.is_none() && done.seen.insert(id)
        };
        if !new || self.store.has(id)? {
            return Ok(());
        }
        let packed = pack(&cut.contents).map_err(|e| Error::host(id, &e))?;
        self.store.put(id, &packed)?;
        let made = &mut self.done.lock().made;
        made.new_chunks += 1;
        made.new_bytes += cut.contents.len() as u64;
        made.stored_bytes += packed.len() as u64;
        Ok(())
    }
}
