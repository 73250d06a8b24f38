//! Making volumes.

use crate::error::{detached, exception};
use crate::source::{Rules, Source};
use crate::watch::Watched;
use blockwright::build::{BuildProgress, JournalBuilder};
use blockwright::ext4::FsType;
use blockwright::{Format, VolumeBuilder};
use blockwright_device::OpenMode;
use blockwright_ffi::Image;
use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;

fn tells(
    watched: Arc<Watched>,
) -> impl Fn(&BuildProgress) -> ControlFlow<()> + Send + Sync + 'static {
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
            _ => return watched.goes_on(),
        };
        watched.tell(step, done, total, always)
    }
}

/// Makes a volume. `options` has what the Python half has checked.
#[pyfunction]
#[pyo3(signature = (path, sources, rules, *, format, size, free, auto, label, features, uuid, owner, epoch, block_size, inode_ratio, inode_size, inodes, reserved_percent, hash_seed, journal_size, journal, base, platform, keep_image_config, allow_backing, new, progress))]
#[expect(
    clippy::too_many_arguments,
    reason = "the Python half passes each option"
)]
pub(crate) fn build(
    py: Python<'_>,
    path: PathBuf,
    sources: Vec<Source>,
    rules: Rules,
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
    base: Option<PathBuf>,
    platform: Option<&str>,
    keep_image_config: bool,
    allow_backing: bool,
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
    builder = builder.features(features).allow_backing(allow_backing);
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
    let has_base = base.is_some();
    let beside = Image {
        journal,
        allow_backing,
        ..Image::new(base.unwrap_or_default())
    };
    if let Some(journal) = detached(py, || beside.open_journal(OpenMode::default()))? {
        builder = builder.journal_device(journal);
    }
    let watched = Watched::new(progress);
    builder = builder.watch(tells(Arc::clone(&watched)));
    if has_base {
        let open = || beside.open_device(OpenMode::read_only());
        builder = builder.base(detached(py, open)?);
    }
    if let Some(platform) = platform {
        builder = builder.platform(platform).map_err(|e| exception(&e))?;
    }
    let policy = detached(py, || rules.policy())?;
    builder = builder.keep_image_config(keep_image_config).entries(policy);
    for source in sources {
        builder = source.put_into(builder, &watched)?;
    }
    let report = watched.run(py, || match new {
        true => builder.create_new(&path),
        false => builder.create(&path),
    })?;
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
#[pyo3(signature = (path, size, *, label, uuid, epoch, block_size, allow_backing, progress))]
#[expect(
    clippy::too_many_arguments,
    reason = "the Python half passes each option"
)]
pub(crate) fn journal(
    py: Python<'_>,
    path: PathBuf,
    size: Option<u64>,
    label: Option<Vec<u8>>,
    uuid: Option<[u8; 16]>,
    epoch: Option<u64>,
    block_size: Option<u32>,
    allow_backing: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<Vec<u8>> {
    let mut builder = JournalBuilder::new().allow_backing(allow_backing);
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
    let watched = Watched::new(progress);
    builder = builder.watch(tells(Arc::clone(&watched)));
    let made = watched.run(py, || builder.create(&path))?;
    Ok(made.uuid.to_vec())
}
