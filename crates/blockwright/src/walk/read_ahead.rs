//! A walk that reads the files before its caller asks for them.
//!
//! A thread of its own (the scout) makes the walk. It loads inodes, finds where the files' data lies, and starts the reads of
//! many files together ([`Vfs::start_reads`]): sorted by place on the device, neighbours in one request. The caller gets the
//! steps in the order of the walk, and the data with them. So the device works on the files that follow while the caller works on
//! one.
//!
//! On a host without threads, or without one more, the caller makes the walk, and no data is read ahead.
//!
//! # Invariants
//! * The scout is ahead by a bounded number of bytes. Each step counts as [`STEP_BYTES`] and the length of its path, so the
//!   number of steps and the memory for deep trees are bounded too.
//!   A request may also read gaps; these are at most as long as the data beside them.
//! * Data that is not there costs nothing but time. The caller reads everything that the scout could not read or left out, and
//!   gets the ordinary errors.
//! * Data of a file with several names comes with the first one.
//! * With `readahead_bytes` 0 no data is read ahead, only metadata.
//!
//! # Locks
//! `Window` and `Chunk` are leaves. Completions of the device take a chunk's.
//!
//! Not responsible for what becomes of the data, nor for changes of the files during the walk: the caller sees each file as it was at
//! some time since the walk began.

use super::{InodeSet, WalkNode, WalkStep, Walker};
use crate::{Error, Result};
use blockwright_device::IoSlice;
use blockwright_device::os_name;
use blockwright_vfs::{Cred, FileKind, FileRead, Handle, Ino, InodeRef, OpenFlags, Vfs};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// Bytes of one chunk of a file.
const CHUNK_BYTES: u64 = 1 << 20;
/// Bytes charged for a step in addition to its path, which can be long: about the size of its inode and
/// its handle.
const STEP_BYTES: u64 = 4096;
/// The most bytes that the scout is ahead.
const WINDOW_BYTES_MAX: u64 = 24 << 20;
/// The share of the volume's cache that the scout may be ahead: one part in this many.
const WINDOW_SHARE: u64 = 8;
/// The window is handed over in this many batches. Reads of one batch are sorted.
const BATCHES: u64 = 6;

/// How far the scout is ahead.
struct Window {
    state: Mutex<WindowState>,
    moved: Condvar,
    bytes_max: u64,
}

struct WindowState {
    bytes: u64,
    /// The caller is gone.
    closed: bool,
}

impl Window {
    /// Waits until this many bytes fit. `false` when the caller is gone.
    fn enter(&self, bytes: u64) -> bool {
        let mut state = self.state.lock();
        while !state.closed && state.bytes > 0 && state.bytes + bytes > self.bytes_max {
            self.moved.wait(&mut state);
        }
        state.bytes += bytes;
        !state.closed
    }

    fn leave(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.bytes -= bytes;
        drop(state);
        self.moved.notify_one();
    }

    fn close(&self) {
        self.state.lock().closed = true;
        self.moved.notify_one();
    }
}

enum ChunkState {
    Waiting,
    Read(Vec<IoSlice>),
    /// Not started, or failed.
    Missing,
}

/// A stretch of a file that is being read.
struct Chunk {
    range: Range<u64>,
    state: Mutex<ChunkState>,
    ended: Condvar,
}

impl Chunk {
    fn end(&self, state: ChunkState) {
        *self.state.lock() = state;
        self.ended.notify_one();
    }

    /// The bytes, once they are there.
    fn wait(&self) -> Option<Vec<IoSlice>> {
        let mut state = self.state.lock();
        loop {
            match std::mem::replace(&mut *state, ChunkState::Missing) {
                ChunkState::Waiting => {
                    *state = ChunkState::Waiting;
                    self.ended.wait(&mut state);
                }
                ChunkState::Read(slices) => return Some(slices),
                ChunkState::Missing => return None,
            }
        }
    }
}

/// The device's side of a chunk. Dropped without a result, it says that there is none.
struct Promise(Option<Arc<Chunk>>);

impl Promise {
    fn keep(mut self, result: blockwright_vfs::Result<Vec<IoSlice>>) {
        if let Some(chunk) = self.0.take() {
            chunk.end(result.map_or(ChunkState::Missing, ChunkState::Read));
        }
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if let Some(chunk) = self.0.take() {
            chunk.end(ChunkState::Missing);
        }
    }
}

/// A file that the scout has opened.
struct OpenFile {
    handle: Arc<Handle>,
    /// All of it is data.
    dense: bool,
}

struct Step {
    step: WalkStep,
    path: Vec<u8>,
    name_at: usize,
    parent: Option<Ino>,
    file: Option<OpenFile>,
}

enum Event {
    Step(Box<Step>),
    /// More of the file of the last step.
    Data(Arc<Chunk>),
}

impl Event {
    fn bytes(&self) -> u64 {
        match self {
            Event::Step(step) => STEP_BYTES + step.path.len() as u64,
            Event::Data(chunk) => chunk.range.end - chunk.range.start,
        }
    }
}

/// See the module's head. Its methods are those of [`Walker`], and [`ReadAheadWalk::data`].
pub struct ReadAheadWalk<'v> {
    vfs: &'v Arc<Vfs>,
    /// Makes the walk when there is no scout.
    walker: Option<Walker<'v>>,
    window: Arc<Window>,
    batches: Receiver<Vec<Event>>,
    events: VecDeque<Event>,
    path: Vec<u8>,
    name_at: usize,
    parent: Option<Ino>,
    file: Option<OpenFile>,
    /// The depth of the directory that the last step found.
    found: Option<usize>,
    /// Steps below this depth, and the one that leaves it, are left out.
    skipping: Option<usize>,
    scout: Option<JoinHandle<()>>,
}

impl<'v> ReadAheadWalk<'v> {
    /// A walk from the inode that `path` names; a symbolic link at its end is not followed.
    ///
    /// # Errors
    /// As [`Walker::new`].
    pub fn new(vfs: &'v Arc<Vfs>, cred: &'v Cred, path: &[u8]) -> Result<Self> {
        let start = vfs
            .resolve(cred, path, false)
            .map_err(|e| Error::from(e).at(Path::new(&*os_name::of(path))))?;
        Ok(Self::from_inode(vfs, cred, start, path))
    }

    /// A walk from an inode. Paths begin with `path`.
    #[must_use]
    pub fn from_inode(vfs: &'v Arc<Vfs>, cred: &'v Cred, start: InodeRef, path: &[u8]) -> Self {
        Self::begin(vfs, cred, start, path, |scout| {
            let thread = std::thread::Builder::new().name("bw-scout".to_owned());
            thread.spawn(scout).ok()
        })
    }

    /// A walk whose scout runs where `start_thread` says, if anywhere.
    fn begin(
        vfs: &'v Arc<Vfs>,
        cred: &'v Cred,
        start: InodeRef,
        path: &[u8],
        start_thread: impl FnOnce(Box<dyn FnOnce() + Send>) -> Option<JoinHandle<()>>,
    ) -> Self {
        let bytes_max = (vfs.options().cache_bytes / WINDOW_SHARE).min(WINDOW_BYTES_MAX);
        let window = Arc::new(Window {
            state: Mutex::new(WindowState {
                bytes: 0,
                closed: false,
            }),
            moved: Condvar::new(),
            bytes_max,
        });
        let (send, batches) = channel();
        let scout = Scout {
            vfs: Arc::clone(vfs),
            window: Arc::clone(&window),
            send,
            events: Vec::new(),
            bytes: 0,
            reads: Vec::new(),
            linked: InodeSet::default(),
        };
        let (own_cred, own_path, from) = (cred.clone(), path.to_vec(), start.clone());
        let scout = start_thread(Box::new(move || scout.run(&own_cred, from, &own_path)));
        let walker = scout.is_none().then(|| {
            let mut walker = Walker::from_inode(vfs, cred, start, path);
            walker.load_ahead = true;
            walker
        });
        ReadAheadWalk {
            vfs,
            walker,
            window,
            batches,
            events: VecDeque::new(),
            path: path.to_vec(),
            name_at: 0,
            parent: None,
            file: None,
            found: None,
            skipping: None,
            scout,
        }
    }

    /// As [`Walker::path`].
    #[must_use]
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// As [`Walker::name`].
    #[must_use]
    pub fn name(&self) -> &[u8] {
        &self.path[self.name_at..]
    }

    /// As [`Walker::parent`].
    ///
    /// # Errors
    /// As reading the inode.
    pub fn parent(&self) -> Result<Option<InodeRef>> {
        match self.parent {
            Some(ino) => Ok(Some(self.vfs.inode(ino)?)),
            None => Ok(None),
        }
    }

    /// As [`Walker::skip`].
    pub fn skip(&mut self) {
        match &mut self.walker {
            Some(walker) => walker.skip(),
            None => self.skipping = self.found,
        }
    }

    /// The next step; `None` at the end.
    pub fn step(&mut self) -> Option<WalkStep> {
        if let Some(walker) = &mut self.walker {
            let step = walker.step()?;
            self.path.clear();
            self.path.extend_from_slice(&walker.path);
            self.name_at = walker.name_at;
            self.parent = walker.levels.last().map(|level| level.ino);
            return Some(step);
        }
        loop {
            let Event::Step(step) = self.next()? else {
                continue;
            };
            let Step {
                step,
                path,
                name_at,
                parent,
                file,
            } = *step;
            if let Some(depth) = self.skipping {
                if matches!(&step, WalkStep::Left(node) if node.depth == depth) {
                    self.skipping = None;
                }
                continue;
            }
            self.path = path;
            self.name_at = name_at;
            self.parent = parent;
            self.file = file;
            self.found = match &step {
                WalkStep::Found(node) if node.inode.kind() == FileKind::Directory => {
                    Some(node.depth)
                }
                _ => None,
            };
            return Some(step);
        }
    }

    /// The last step's file, open for direct reads, if the scout could open it.
    #[must_use]
    pub fn file(&self) -> Option<&Arc<Handle>> {
        self.file.as_ref().map(|file| &file.handle)
    }

    /// Whether all of the last step's file was found to be data. `false` also when that is not known.
    #[must_use]
    pub fn is_dense(&self) -> bool {
        self.file.as_ref().is_some_and(|file| file.dense)
    }

    /// Data of the last step's file from `offset` on: as much as was read together. `None` when it was not read ahead, or with
    /// an error. Offsets must ascend.
    pub fn data(&mut self, offset: u64) -> Option<Vec<IoSlice>> {
        loop {
            match self.peek()? {
                Event::Step(_) => return None,
                Event::Data(chunk) if chunk.range.start > offset => return None,
                Event::Data(chunk) => {
                    let chunk = Arc::clone(chunk);
                    self.next();
                    if chunk.range.start == offset {
                        return chunk.wait().filter(|slices| !slices.is_empty());
                    }
                }
            }
        }
    }

    fn peek(&mut self) -> Option<&Event> {
        while self.events.is_empty() {
            self.events.extend(self.batches.recv().ok()?);
        }
        self.events.front()
    }

    fn next(&mut self) -> Option<Event> {
        self.peek()?;
        let event = self.events.pop_front()?;
        self.window.leave(event.bytes());
        Some(event)
    }
}

impl Drop for ReadAheadWalk<'_> {
    /// Stops the scout, and waits for it and for the reads in flight: a caller may close the volume next.
    fn drop(&mut self) {
        self.window.close();
        if let Some(scout) = self.scout.take() {
            // A panic was reported by the hook.
            let _ = scout.join();
        }
        let rest = self.batches.try_iter().flatten();
        for event in self.events.drain(..).chain(rest) {
            if let Event::Data(chunk) = event {
                chunk.wait();
            }
        }
    }
}

struct Scout {
    vfs: Arc<Vfs>,
    window: Arc<Window>,
    send: Sender<Vec<Event>>,
    /// The batch in progress, its size, and the reads that it needs.
    events: Vec<Event>,
    bytes: u64,
    reads: Vec<FileRead>,
    /// Files with several names, whose data was read.
    linked: InodeSet,
}

impl Scout {
    fn run(mut self, cred: &Cred, start: InodeRef, path: &[u8]) {
        let vfs = Arc::clone(&self.vfs);
        let mut walk = Walker::from_inode(&vfs, cred, start, path);
        walk.load_ahead = true;
        while let Some(step) = walk.step() {
            let file = match &step {
                WalkStep::Found(node) => self.open(cred, node),
                _ => None,
            };
            let data = file.as_ref().map(|file| Arc::clone(&file.handle));
            let dense = file.as_ref().is_some_and(|file| file.dense);
            let event = Event::Step(Box::new(Step {
                step,
                path: walk.path().to_vec(),
                name_at: walk.name_at,
                parent: walk.levels.last().map(|level| level.ino),
                file,
            }));
            let went_on = self.push(event)
                && match data {
                    Some(handle) => self.read(&handle, dense),
                    None => true,
                };
            if !went_on {
                return;
            }
        }
        self.hand_over();
    }

    /// Opens a regular file, whose data is wanted.
    fn open(&mut self, cred: &Cred, node: &WalkNode) -> Option<OpenFile> {
        let off = self.vfs.options().readahead_bytes == 0;
        if off || node.inode.kind() != FileKind::Regular {
            return None;
        }
        let attr = node.inode.attr();
        if attr.nlink > 1 && !self.linked.insert(attr.ino) {
            return None;
        }
        let flags = OpenFlags {
            direct: true,
            noatime: true,
            ..OpenFlags::read_only()
        };
        let handle = self.vfs.open(cred, &node.inode, flags).ok()?;
        let dense = attr.size == 0
            || (handle.seek_data(0).is_ok_and(|at| at == 0)
                && handle.seek_hole(0).is_ok_and(|at| at >= attr.size));
        Some(OpenFile { handle, dense })
    }

    /// Plans the reads of a file's data. `false` when the caller is gone.
    fn read(&mut self, handle: &Arc<Handle>, dense: bool) -> bool {
        let size = handle.inode().attr().size;
        let mut at = 0;
        while at < size {
            let (start, end) = if dense {
                (0, size)
            } else {
                // The caller meets an error where it asks for itself.
                let Ok(start) = handle.seek_data(at) else {
                    break;
                };
                match handle.seek_hole(start) {
                    Ok(end) if end > start => (start, end.min(size)),
                    _ => break,
                }
            };
            at = start;
            while at < end {
                let range = at..end.min(at + CHUNK_BYTES);
                at = range.end;
                let chunk = Arc::new(Chunk {
                    range: range.clone(),
                    state: Mutex::new(ChunkState::Waiting),
                    ended: Condvar::new(),
                });
                let promise = Promise(Some(Arc::clone(&chunk)));
                self.reads.push(FileRead {
                    handle: Arc::clone(handle),
                    range,
                    done: Box::new(move |result| promise.keep(result)),
                });
                if !self.push(Event::Data(chunk)) {
                    return false;
                }
            }
        }
        true
    }

    fn push(&mut self, event: Event) -> bool {
        self.bytes += event.bytes();
        self.events.push(event);
        self.bytes < self.window.bytes_max / BATCHES || self.hand_over()
    }

    /// Starts the reads of a batch and hands it to the caller. `false` when the caller is gone.
    fn hand_over(&mut self) -> bool {
        if !self.window.enter(std::mem::take(&mut self.bytes)) {
            return false;
        }
        // Reads that come back are dropped, and with them their promises.
        drop(self.vfs.start_reads(std::mem::take(&mut self.reads)));
        self.send.send(std::mem::take(&mut self.events)).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Volume, VolumeBuilder};
    use blockwright_device::{CountingDevice, MemoryDevice, SharedDevice};
    use std::time::{Duration, Instant};

    const DIRS: u64 = 20;
    const FILES: u64 = 25;
    const FILE_BYTES: usize = 20_000;

    /// A volume with files larger than an inode, 10 MB together, and its device.
    fn volume() -> (Volume, Arc<CountingDevice>) {
        let device: SharedDevice = Arc::new(MemoryDevice::new(64 << 20));
        VolumeBuilder::new().create_on(&device).expect("made");
        let volume = Volume::open_device(Arc::clone(&device)).expect("opens");
        for dir in 0..DIRS {
            volume.create_dir(format!("/{dir}")).expect("made");
            for file in 0..FILES {
                let path = format!("/{dir}/{file}");
                volume.write(path, vec![7; FILE_BYTES]).expect("written");
            }
        }
        volume.close().expect("closed");
        let counting = Arc::new(CountingDevice::new(device));
        let volume = Volume::options()
            .read_only(true)
            .cache_bytes(8 << 20)
            .open_device(counting.clone())
            .expect("opens");
        (volume, counting)
    }

    /// Once the scout waits for the caller, it has read the data of one window, and metadata.
    #[test]
    fn the_scout_is_ahead_by_a_window() {
        let (volume, counting) = volume();
        let before = counting.stats();
        let mut plain = Walker::new(volume.vfs(), volume.cred(), b"/").expect("begun");
        while plain.step().is_some() {}
        drop(plain);
        let metadata = counting.stats().since(&before).reads.bytes;
        volume.close().expect("closed");

        let (volume, counting) = self::volume();
        let before = counting.stats();
        let walk = ReadAheadWalk::new(volume.vfs(), volume.cred(), b"/").expect("begun");
        let began = Instant::now();
        // A scout that waits is woken, finds no room, and waits again.
        while !walk.window.moved.notify_one() {
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "it never waits for the caller"
            );
            std::thread::yield_now();
        }
        let window = walk.window.bytes_max;
        let ahead = walk.window.state.lock().bytes;
        assert!(ahead <= window && ahead > window / 2, "{ahead} of {window}");
        // Beside the data of the window, at most as much is read in gaps.
        let read = counting.stats().since(&before).reads.bytes;
        assert!(
            read <= 2 * window + metadata && read >= window / 2,
            "{read} bytes, {metadata} of metadata in all"
        );
        drop(walk);
        volume.close().expect("closed");
    }

    /// As on a host without threads: the same steps, no data with them, and directories can be left out.
    #[test]
    fn without_a_thread_the_caller_walks() {
        let dir = tempfile::tempdir().unwrap();
        let volume = crate::Volume::create(dir.path().join("disk.img"), 16 << 20).unwrap();
        for path in ["/a/b", "/skipped/c", "/z"] {
            volume.create_dir_all(path).unwrap();
            volume.write(format!("{path}/file"), b"data").unwrap();
        }
        let (vfs, cred) = (volume.vfs(), volume.cred());
        let start = || vfs.resolve(cred, b"/", false).unwrap();
        let steps = |mut walk: ReadAheadWalk<'_>| {
            let mut found = Vec::new();
            while let Some(step) = walk.step() {
                let parent = walk.parent().unwrap().map(|dir| dir.ino());
                let (path, name) = (walk.path().to_vec(), walk.name().to_vec());
                if name == b"skipped" {
                    walk.skip();
                }
                found.push((format!("{step:?}"), path, name, parent));
            }
            (found, walk.scout.is_some())
        };
        let (here, threads) = steps(ReadAheadWalk::begin(vfs, cred, start(), b"/", |_| None));
        assert!(!threads);
        assert!(here.iter().any(|step| step.1 == b"/z/file"), "{here:?}");
        assert!(
            !here.iter().any(|step| step.1.starts_with(b"/skipped/")),
            "{here:?}"
        );
        let (ahead, threads) = steps(ReadAheadWalk::from_inode(vfs, cred, start(), b"/"));
        assert!(threads);
        assert_eq!(here, ahead);
        let mut walk = ReadAheadWalk::begin(vfs, cred, start(), b"/", |_| None);
        while walk.step().is_some() {
            assert!(walk.data(0).is_none() && walk.file().is_none());
        }
    }
}
