//! Making volumes.

use crate::error::detached;
use blockwright::build::{BuildProgress, JournalBuilder};
use blockwright::ext4::FsType;
use blockwright::{Format, VolumeBuilder, reshape};
use blockwright_device::OpenMode;
use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A source that is a Python object with `read`.
struct Stream(Py<PyAny>);

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        Python::attach(|py| {
            let read = self.0.call_method1(py, "read", (buf.len(),));
            let bytes: PyResult<Vec<u8>> = read.and_then(|b| b.extract(py));
            let bytes = bytes.map_err(|e| io::Error::other(e.to_string()))?;
            let Some(to) = buf.get_mut(..bytes.len()) else {
                return Err(io::Error::other("read() returned more than was asked for"));
            };
            to.copy_from_slice(&bytes);
            Ok(bytes.len())
        })
    }
}

/// Something to put into a volume: a path of the host, or an object with `read`.
#[derive(FromPyObject)]
pub(crate) enum Source {
    Path(PathBuf),
    Stream(Py<PyAny>),
}

/// How often a progress function is called at most.
const BETWEEN: Duration = Duration::from_millis(20);

/// A progress function of Python's. Its first exception is kept, and it is not called again.
pub(crate) struct Teller {
    call: Py<PyAny>,
    state: Mutex<(Option<Instant>, Option<PyErr>)>,
}

impl Teller {
    pub(crate) fn new(call: Py<PyAny>) -> Arc<Self> {
        Arc::new(Teller {
            call,
            state: Mutex::new((None, None)),
        })
    }

    /// Tells a step. `always`: also when another one has just been told.
    pub(crate) fn tell(&self, step: &str, done: u64, total: u64, always: bool) {
        {
            let mut state = self.state.lock();
            let now = Instant::now();
            let soon = state.0.is_some_and(|last| now - last < BETWEEN);
            if state.1.is_some() || (soon && !always) {
                return;
            }
            state.0 = Some(now);
        }
        // The lock is free: the function may take long.
        let told = Python::attach(|py| self.call.call1(py, (step, done, total)).map(drop));
        if let Err(e) = told {
            self.state.lock().1.get_or_insert(e);
        }
    }

    /// Whether the function has raised an exception.
    pub(crate) fn has_failed(&self) -> bool {
        self.state.lock().1.is_some()
    }

    /// The exception of the function.
    pub(crate) fn failed(&self) -> Option<PyErr> {
        self.state.lock().1.take()
    }
}

fn tells(teller: Arc<Teller>) -> impl Fn(&BuildProgress) + Send + Sync + 'static {
    let totals = Mutex::new((0, 0));
    move |progress| {
        let (step, done, total, always) = match *progress {
            BuildProgress::Reading { files } => {
                let mut totals = totals.lock();
                totals.0 += files;
                ("reading", totals.0, 0, false)
            }
            BuildProgress::Planned { bytes, .. } => {
                totals.lock().1 = bytes;
                ("copying", 0, bytes, true)
            }
            BuildProgress::Copied { bytes, .. } => {
                let total = totals.lock().1;
                ("copying", bytes, total, bytes >= total)
            }
            BuildProgress::Finishing => ("finishing", 0, 0, true),
            _ => return,
        };
        teller.tell(step, done, total, always);
    }
}

/// Makes a volume. `options` has what the Python half has checked.
#[pyfunction]
#[pyo3(signature = (path, sources, *, format, size, free, auto, label, features, uuid, owner, epoch, block_size, inode_ratio, inode_size, inodes, reserved_percent, hash_seed, journal_size, journal, new, progress))]
#[expect(
    clippy::too_many_arguments,
    reason = "the Python half passes each option"
)]
pub(crate) fn build(
    py: Python<'_>,
    path: PathBuf,
    sources: Vec<Source>,
    format: &str,
    size: Option<u64>,
    free: u64,
    auto: bool,
    label: Option<Vec<u8>>,
    features: String,
    uuid: Option<[u8; 16]>,
    owner: Option<(u32, u32)>,
    epoch: Option<u64>,
    block_size: Option<u32>,
    inode_ratio: Option<u64>,
    inode_size: Option<u16>,
    inodes: Option<u64>,
    reserved_percent: Option<f64>,
    hash_seed: Option<[u8; 16]>,
    journal_size: Option<u64>,
    journal: Option<PathBuf>,
    new: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<Py<PyDict>> {
    let mut builder = match format {
        "ext4" => VolumeBuilder::new(),
        "ext3" => VolumeBuilder::new().fs_type(FsType::Ext3),
        "ext2" => VolumeBuilder::new().fs_type(FsType::Ext2),
        "f2fs" => VolumeBuilder::new().format(Format::F2fs),
        _ => {
            let what = format!("{format:?}: ext4, ext3, ext2 and f2fs can be made");
            return Err(PyValueError::new_err(what));
        }
    };
    builder = builder.features(features);
    builder = match (auto, size) {
        (true, _) => builder.size_auto(free),
        (false, Some(bytes)) => builder.size(bytes),
        (false, None) => builder,
    };
    if let Some(label) = label {
        builder = builder.label(label);
    }
    if let Some(uuid) = uuid {
        builder = builder.uuid(uuid);
    }
    if let Some((uid, gid)) = owner {
        builder = builder.owner(uid, gid).root_owner(uid, gid);
    }
    if let Some(epoch) = epoch {
        builder = builder.source_date_epoch(epoch);
    }
    if let Some(bytes) = block_size {
        builder = builder.block_size(bytes);
    }
    if let Some(bytes) = inode_ratio {
        builder = builder.inode_ratio(bytes);
    }
    if let Some(bytes) = inode_size {
        builder = builder.inode_size(bytes);
    }
    if let Some(count) = inodes {
        builder = builder.inodes(count);
    }
    if let Some(percent) = reserved_percent {
        builder = builder.reserved_percent(percent);
    }
    if let Some(seed) = hash_seed {
        builder = builder.hash_seed(seed);
    }
    if let Some(bytes) = journal_size {
        builder = builder.journal_bytes(bytes);
    }
    if let Some(path) = journal {
        let open = || reshape::open_journal(&path, OpenMode::default());
        builder = builder.journal_device(detached(py, open)?);
    }
    let teller = progress.map(Teller::new);
    if let Some(teller) = &teller {
        builder = builder.progress(tells(Arc::clone(teller)));
    }
    for source in sources {
        builder = match source {
            Source::Path(path) => builder.from(path),
            Source::Stream(stream) => builder.from_reader(Stream(stream), "a Python object"),
        };
    }
    let report = detached(py, || match new {
        true => builder.create_new(&path),
        false => builder.create(&path),
    })?;
    if let Some(e) = teller.and_then(|t| t.failed()) {
        return Err(e);
    }
    let all = PyDict::new(py);
    all.set_item("format", report.format().to_string())?;
    all.set_item("size", report.bytes)?;
    all.set_item("block_size", report.block_bytes)?;
    all.set_item("blocks", report.blocks)?;
    all.set_item("free_blocks", report.free_blocks)?;
    all.set_item("inodes", report.inodes)?;
    all.set_item("free_inodes", report.free_inodes)?;
    all.set_item("files", report.files)?;
    all.set_item("directories", report.directories)?;
    all.set_item("uuid", report.uuid.to_vec())?;
    Ok(all.unbind())
}

/// Makes a journal for a volume on another device; its UUID.
#[pyfunction]
#[pyo3(signature = (path, size, *, label, uuid, epoch, block_size))]
pub(crate) fn journal(
    py: Python<'_>,
    path: PathBuf,
    size: Option<u64>,
    label: Option<Vec<u8>>,
    uuid: Option<[u8; 16]>,
    epoch: Option<u64>,
    block_size: Option<u32>,
) -> PyResult<Vec<u8>> {
    let mut builder = JournalBuilder::new();
    if let Some(bytes) = size {
        builder = builder.size(bytes);
    }
    if let Some(label) = label {
        builder = builder.label(label);
    }
    if let Some(uuid) = uuid {
        builder = builder.uuid(uuid);
    }
    if let Some(secs) = epoch {
        builder = builder.time(secs);
    }
    if let Some(bytes) = block_size {
        builder = builder.block_size(bytes);
    }
    let made = detached(py, || builder.create(&path))?;
    Ok(made.uuid.to_vec())
}
