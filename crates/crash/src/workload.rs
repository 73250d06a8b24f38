//! Seeded workloads: operations drawn one after another, done through the vfs, and noted in the model.

use crate::model::{Model, NodeId, NodeState};
use crate::{STALE, verify};
use blockwright_device::BlockDevice as _;
use blockwright_device::sim::recording::Completions;
use blockwright_device::{
    AlignedBuf, DevOffset, Flags, MemoryDevice, RecordingDevice, SharedDevice,
};
use blockwright_ext4::Preallocation;
use blockwright_mkfs::ext4::{Before, FormatOptions};
use blockwright_vfs::{
    CreateRequest, Cred, ErrorKind, FallocMode, FileKind, Handle, InodeRef, OpenFlags, RenameMode,
    SetAttr, SyncMode, SyncScope, Vfs, XattrMode,
};
use std::sync::Arc;

/// A small generator (splitmix64).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// From a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Rng(seed)
    }

    /// 64 bits.
    #[allow(clippy::should_implement_trait)] // there is no end to them
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// A byte that is never [`STALE`] and never 0.
    fn byte(&mut self) -> u8 {
        loop {
            let b = self.next() as u8;
            if b != 0 && b != STALE {
                return b;
            }
        }
    }
}

/// Which format's volume is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// As our own mkfs makes it.
    Ext4,
    /// As mkfs.f2fs makes it.
    F2fs,
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// On which format.
    pub format: Format,
    /// Decides everything.
    pub seed: u64,
    /// How many operations.
    pub operations: usize,
    /// Features over mkfs's defaults, as `-O` takes them.
    pub features: &'static str,
    /// Block size in bytes.
    pub block_bytes: u32,
    /// The features have a journal.
    pub journal: bool,
    /// How the device completes requests.
    pub completions: Completions,
    /// Largest offset that a write reaches.
    pub file_bytes_max: u64,
    /// Half of the writes go past the cache, submitted; some are synchronous (`O_DSYNC`).
    pub direct: bool,
    /// The write path as it is for comparison: `writeback=legacy`, `dio_completion=deferred`.
    pub compared: bool,
    /// Blocks are placed at writeback, not when they are written to.
    pub delayed_allocation: bool,
    /// How blocks are preallocated.
    pub preallocation: Preallocation,
    /// Every other buffered write is many small ones with holes between them, some of which are allocated and unwritten: what is
    /// written back and made visible in batches.
    pub scattered: bool,
    /// Most files are removed while they are open, and let go of in any order: many orphans at a time.
    pub orphans: bool,
    /// f2fs: sections are cleaned between operations, of a volume that is full of holes.
    pub cleaning: Option<Cleaning>,
}

/// f2fs that cleans.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cleaning {
    /// Where new blocks come from.
    pub mode: blockwright_f2fs::Mode,
    /// Segments of a section.
    pub segments: u32,
}

impl Plan {
    /// A small workload on a default volume.
    #[must_use]
    pub fn small(seed: u64) -> Self {
        Plan {
            format: Format::Ext4,
            seed,
            operations: 60,
            features: "",
            block_bytes: 1024,
            journal: true,
            completions: Completions::Inline,
            file_bytes_max: 40_000,
            direct: false,
            compared: false,
            delayed_allocation: true,
            preallocation: Preallocation::Tree,
            scattered: false,
            orphans: false,
            cleaning: None,
        }
    }
}

const DEVICE_BYTES: u64 = 24 << 20;

impl Format {
    /// The unit of tearing. ext4's superblock is 1 KiB with one checksum and no second copy that is kept
    /// current, so the format (and the kernel) relies on these two sectors being written together. The nodes
    /// that f2fs's fsync writes are recovered by their footers, most have no checksum: a block is one unit.
    fn logical_block_bytes(self) -> u32 {
        match self {
            Format::Ext4 => 1024,
            Format::F2fs => 4096,
        }
    }
}

/// A volume as mkfs makes it, on a device full of [`STALE`].
///
/// # Errors
/// When mkfs fails.
pub fn fresh_volume(plan: &Plan) -> Result<MemoryDevice, String> {
    if plan.format == Format::F2fs {
        return fresh_f2fs(plan);
    }
    let device = Arc::new(MemoryDevice::with_logical_block(
        DEVICE_BYTES,
        plan.format.logical_block_bytes(),
    ));
    let stale = vec![STALE; 1 << 20];
    for k in 0..DEVICE_BYTES >> 20 {
        device
            .write_at(DevOffset(k << 20), &stale, Flags::empty())
            .map_err(|e| e.to_string())?;
    }
    let shared: SharedDevice = device.clone();
    let options = FormatOptions {
        block_bytes: Some(plan.block_bytes),
        uuid: Some([7; 16]),
        now: 1_700_000_000,
        features: plan.features.to_owned(),
        before: Before::Unknown,
        ..FormatOptions::default()
    };
    blockwright_mkfs::ext4::format(&shared, &options).map_err(|e| format!("mkfs: {e}"))?;
    Ok(device.snapshot())
}

/// The smallest that mkfs.f2fs makes, and some room.
const F2FS_BYTES: u64 = 52 << 20;
/// The same for sections of two segments.
const F2FS_SECTIONS_BYTES: u64 = 80 << 20;

/// A volume as mkfs.f2fs makes it; what it did not write in the main area is [`STALE`].
fn fresh_f2fs(plan: &Plan) -> Result<MemoryDevice, String> {
    let bytes = match plan.cleaning {
        Some(Cleaning { segments: 2.., .. }) => F2FS_SECTIONS_BYTES,
        _ => F2FS_BYTES,
    };
    let file = tempfile::NamedTempFile::new().map_err(|e| e.to_string())?;
    file.as_file().set_len(bytes).map_err(|e| e.to_string())?;
    let mut mkfs = std::process::Command::new("mkfs.f2fs");
    mkfs.arg("-q");
    if let Some(cleaning) = plan.cleaning {
        mkfs.args(["-s", &cleaning.segments.to_string()]);
    }
    if !plan.features.is_empty() {
        mkfs.args(["-O", plan.features]);
    }
    let out = mkfs.arg(file.path()).output().map_err(|e| e.to_string())?;
    if !out.status.success() {
        return Err(format!("mkfs.f2fs: {out:?}"));
    }
    let whole = std::fs::read(file.path()).map_err(|e| e.to_string())?;
    // `main_blkaddr` of the superblock.
    let main = whole
        .get(1024 + 92..1024 + 96)
        .and_then(|b| b.try_into().ok())
        .map(u32::from_le_bytes)
        .ok_or("no superblock")?;
    let device = MemoryDevice::with_logical_block(bytes, plan.format.logical_block_bytes());
    let stale = [STALE; 4096];
    for (n, block) in whole.chunks_exact(4096).enumerate() {
        let unwritten = n >= main as usize && block.iter().all(|b| *b == 0);
        let bytes = if unwritten { &stale[..] } else { block };
        device
            .write_at(DevOffset(n as u64 * 4096), bytes, Flags::empty())
            .map_err(|e| e.to_string())?;
    }
    if plan.cleaning.is_none() {
        return Ok(device);
    }
    let device = Arc::new(device);
    add_ballast(plan, device.clone())?;
    Ok(device.snapshot())
}

/// Fills a volume, then removes every other file: all its segments have holes.
fn add_ballast(plan: &Plan, device: SharedDevice) -> Result<(), String> {
    let volume = verify::mount_for(plan, device)?;
    let cred = Cred::root();
    let fail = |e: blockwright_vfs::Error| format!("ballast: {e}");
    let mut dir = volume.root().map_err(fail)?;
    let request = CreateRequest::new(FileKind::Directory, 0o755);
    (dir, _) = volume
        .create(&cred, &dir, BALLAST.as_bytes(), &request)
        .map_err(fail)?;
    let spare = volume.statfs().map_err(fail)?.blocks_free / 4;
    let mut files = 0u64;
    while volume.statfs().map_err(fail)?.blocks_free > spare {
        let request = CreateRequest::new(FileKind::Regular, 0o644);
        let name = files.to_string();
        let (file, _) = volume
            .create(&cred, &dir, name.as_bytes(), &request)
            .map_err(fail)?;
        let flags = OpenFlags {
            write: true,
            ..OpenFlags::default()
        };
        let handle = volume.open(&cred, &file, flags).map_err(fail)?;
        handle.write_at(&ballast(files), 0).map_err(fail)?;
        files += 1;
    }
    volume.sync().map_err(fail)?;
    for n in (0..files).filter(|n| n % 2 == 1) {
        let name = n.to_string();
        volume.unlink(&cred, &dir, name.as_bytes()).map_err(fail)?;
    }
    drop(dir);
    volume.unmount().map_err(fail)
}

/// Where a volume's ballast is: files that no operation touches, and cleaning moves.
pub(crate) const BALLAST: &str = "ballast";

/// What a file of the ballast holds.
pub(crate) fn ballast(n: u64) -> Vec<u8> {
    let mut rng = Rng::new(n ^ 0xba11a57);
    // Most of them live in their inodes, so that segments of nodes have holes, too.
    let bytes = match n % 16 {
        0..14 => 200,
        _ => 5000 + rng.below(60_000),
    };
    let word = rng.next();
    (0..bytes)
        .map(|at| {
            match (word ^ (at >> 12).wrapping_mul(0x9e37_79b9)).to_le_bytes()[at as usize % 8] {
                0 | STALE => 1,
                b => b,
            }
        })
        .collect()
}

struct Run {
    volume: Arc<Vfs>,
    cred: Cred,
    rng: Rng,
    model: Model,
    recording: Arc<RecordingDevice>,
    plan: Plan,
    /// Last operation that changed a name in a directory.
    names_changed: std::collections::BTreeMap<String, usize>,
    /// Files without a name that are held open.
    held: Vec<Arc<Handle>>,
}

/// Runs the plan over the recording device and returns the model of what happened.
///
/// # Errors
/// An operation that failed although nothing was wrong with it.
pub fn run(plan: &Plan, recording: &Arc<RecordingDevice>) -> Result<Model, String> {
    let device: SharedDevice = recording.clone();
    let mut run = Run {
        volume: verify::mount_for(plan, device)?,
        cred: Cred::root(),
        rng: Rng::new(plan.seed),
        model: match plan.format {
            Format::Ext4 => Model::new(),
            Format::F2fs => Model::rolling(),
        },
        recording: Arc::clone(recording),
        plan: plan.clone(),
        names_changed: Default::default(),
        held: Vec::new(),
    };
    for k in 0..plan.operations {
        run.step()
            .map_err(|e| format!("seed {}, operation {k}: {e}", plan.seed))?;
    }
    if let Some(cleaning) = plan.cleaning {
        let stats = run.volume.stats();
        let moved = ["moved_data_blocks", "moved_node_blocks"].map(|n| stats.get(n).unwrap_or(0));
        // A section of several segments is all of a small volume's nodes, and in use by a log.
        let enough = moved[0] > 0 && (moved[1] > 0 || cleaning.segments > 1);
        if !enough || stats.get("cleaning_failures") != Some(0) {
            return Err(format!(
                "seed {}: cleaning moved {moved:?} blocks",
                plan.seed
            ));
        }
    }
    // The end of the program, not of the volume: whatever was not made durable is at stake.
    let Run {
        model,
        held,
        volume,
        ..
    } = run;
    let _forgotten_on_purpose = (
        std::mem::ManuallyDrop::new(held),
        std::mem::ManuallyDrop::new(volume),
    );
    Ok(model)
}

type Step = Result<(), String>;

impl Run {
    fn log(&self) -> usize {
        self.recording.log_len()
    }

    fn step(&mut self) -> Step {
        if self.plan.cleaning.is_some() && self.rng.below(4) == 0 {
            self.clean();
        }
        if self.plan.orphans {
            return match self.rng.below(100) {
                0..40 => self.create(),
                40..52 => self.write(),
                52..76 => self.unlink_while_open(),
                76..90 => self.let_one_go(),
                90..94 => self.fsync(),
                94..97 => self.sync(),
                _ => self.unlink(),
            };
        }
        match self.rng.below(100) {
            0..16 => self.create(),
            16..24 => self.mkdir(),
            24..46 => self.write(),
            46..51 => self.truncate(),
            51..55 => self.allocate_or_punch(),
            55..62 => self.rename(),
            62..68 => self.unlink(),
            68..71 => self.rmdir(),
            71..75 => self.link(),
            75..78 => self.symlink(),
            78..82 => self.attributes(),
            82..92 => self.fsync(),
            92..95 => self.fsync_directory(),
            95..98 => self.sync(),
            _ => self.unlink_while_open(),
        }
    }

    /// Not an operation: nothing that can be seen changes.
    fn clean(&mut self) {
        let engine = self.volume.engine().as_any();
        if let Some(f2fs) = engine.downcast_ref::<blockwright_f2fs::F2fs>() {
            f2fs.fs().clean_sections(1 + self.rng.below(2));
        }
    }

    fn pick(&mut self, kind: char) -> Option<(String, NodeId)> {
        let state = self.model.now();
        let all: Vec<(String, NodeId)> = state
            .names
            .iter()
            .filter(|(_, id)| state.nodes[id].kind == kind)
            .map(|(p, id)| (p.clone(), *id))
            .collect();
        if all.is_empty() {
            return None;
        }
        let k = self.rng.below(all.len() as u64) as usize;
        Some(all[k].clone())
    }

    fn directory(&mut self) -> String {
        if self.rng.below(3) == 0 {
            return String::new();
        }
        self.pick('d').map(|(p, _)| p).unwrap_or_default()
    }

    fn fresh_name(&mut self) -> String {
        let dir = self.directory();
        // Long names fill directory blocks sooner, so that small workloads split them too.
        let pad = "n".repeat(self.rng.below(120) as usize);
        format!("{dir}/{:x}{pad}", self.rng.below(1 << 20))
    }

    fn inode(&self, path: &str) -> Result<InodeRef, String> {
        if path.is_empty() {
            return self.volume.root().map_err(|e| e.to_string());
        }
        self.volume
            .resolve(&self.cred, path.as_bytes(), false)
            .map_err(|e| format!("{path}: {e}"))
    }

    fn parent(&self, path: &str) -> Result<(InodeRef, Vec<u8>), String> {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((self.inode(dir)?, name.as_bytes().to_vec()))
    }

    fn named(&mut self, path: &str) {
        let dir = path.rsplit_once('/').map_or("", |(dir, _)| dir).to_owned();
        self.names_changed.insert(dir, self.model.operations());
    }

    fn make(&mut self, kind: FileKind, letter: char, target: &[u8]) -> Step {
        let path = self.fresh_name();
        if self.model.now().names.contains_key(&path) {
            return Ok(());
        }
        let (dir, name) = self.parent(&path)?;
        let mode = 0o600 + self.rng.below(0o77) as u32;
        self.model.begin(self.log());
        let mut request = CreateRequest::new(kind, mode);
        request.symlink = target.to_vec();
        let (inode, _) = self
            .volume
            .create(&self.cred, &dir, &name, &request)
            .map_err(|e| format!("create {path}: {e}"))?;
        let mode = self.volume.stat(&inode).perm;
        let node = NodeState {
            kind: letter,
            mode,
            mark: None,
            target: target.to_vec(),
        };
        let id = self.model.new_node(node);
        self.model.state().names.insert(path.clone(), id);
        self.named(&path);
        Ok(())
    }

    fn create(&mut self) -> Step {
        self.make(FileKind::Regular, 'f', b"")
    }

    fn mkdir(&mut self) -> Step {
        self.make(FileKind::Directory, 'd', b"")
    }

    fn symlink(&mut self) -> Step {
        let n = [5, 59, 60, 300][self.rng.below(4) as usize];
        let target: Vec<u8> = (0..n).map(|k| b'a' + (k % 23) as u8).collect();
        self.make(FileKind::Symlink, 'l', &target)
    }

    fn open(&self, path: &str) -> Result<Arc<Handle>, String> {
        let inode = self.inode(path)?;
        let mut flags = OpenFlags::read_write();
        flags.noatime = true;
        self.volume
            .open(&self.cred, &inode, flags)
            .map_err(|e| format!("open {path}: {e}"))
    }

    fn write(&mut self) -> Step {
        let Some((path, id)) = self.pick('f') else {
            return self.create();
        };
        if self.plan.scattered && self.rng.below(2) == 0 {
            return self.write_scattered(&path, id);
        }
        let handle = self.open(&path)?;
        let mut bytes = (*self.model.bytes(id)).clone();
        let n = 1 + self.rng.below(if self.rng.clone().below(3) == 0 {
            20_000
        } else {
            3000
        }) as usize;
        let at = match self.rng.below(3) {
            0 => bytes.len(),
            1 => self.rng.below(bytes.len() as u64 + 1) as usize,
            _ => self.rng.below(self.plan.file_bytes_max) as usize,
        };
        let fill = self.rng.byte();
        let past = self.plan.direct && self.rng.below(2) == 0;
        // Mostly aligned, or it would go through the cache after all.
        let aligned = past && self.rng.below(4) > 0;
        let unit = self.plan.format.logical_block_bytes() as usize;
        let (at, n) = if aligned {
            (at / unit * unit, n.next_multiple_of(unit))
        } else {
            (at, n)
        };
        let durable = past && self.rng.below(3) == 0;
        if durable {
            // What this write promises is its own range; with the rest durable it is all of the file.
            self.sync_file(&handle, &path, id, SyncScope::Data)?;
        }
        let began = self.log();
        self.model.begin(began);
        let outcome = if past {
            self.write_past(&path, fill, n, at as u64, durable)?
        } else {
            handle.write_at(&vec![fill; n], at as u64)
        };
        let written = match outcome {
            Ok(n) => n,
            Err(e) if e.kind() == ErrorKind::NoSpace => return Ok(()),
            Err(e) => return Err(format!("write {path}: {e}")),
        };
        if bytes.len() < at + written {
            bytes.resize(at + written, 0);
        }
        bytes[at..at + written].fill(fill);
        self.model.set_bytes(id, bytes);
        self.model
            .note(id, format!("write {at}+{written} {fill:02x}"));
        if durable {
            let log = self.recording.marker(format!("O_DSYNC write {path}")) + 1;
            self.model.promise_file(began, log, id, false);
        }
        Ok(())
    }

    /// Small writes at every second block or so, over a stretch of which a part is allocated first.
    fn write_scattered(&mut self, path: &str, id: NodeId) -> Step {
        let handle = self.open(path)?;
        let block = u64::from(self.plan.block_bytes);
        let blocks = self.plan.file_bytes_max / block;
        let first = self.rng.below(blocks.max(1));
        let count = 2 + self.rng.below(40);
        let mut bytes = (*self.model.bytes(id)).clone();
        if self.rng.below(3) == 0 {
            let (start, end) = (first * block, (first + count) * block);
            self.model.begin(self.log());
            match handle.fallocate(start..end, FallocMode::Allocate { keep_size: false }) {
                Ok(()) => bytes.resize(bytes.len().max(end as usize), 0),
                Err(e) if matches!(e.kind(), ErrorKind::NotSupported | ErrorKind::NoSpace) => {}
                Err(e) => return Err(format!("fallocate {path}: {e}")),
            }
            self.model.set_bytes(id, bytes.clone());
            self.model.note(id, format!("allocate {start}..{end}"));
        }
        for k in 0..count {
            let at = ((first + 2 * k) * block + self.rng.below(3) * block / 4) as usize;
            let n = 1 + self.rng.below(block) as usize;
            let fill = self.rng.byte();
            self.model.begin(self.log());
            match handle.write_at(&vec![fill; n], at as u64) {
                Ok(written) => {
                    bytes.resize(bytes.len().max(at + written), 0);
                    bytes[at..at + written].fill(fill);
                }
                Err(e) if e.kind() == ErrorKind::NoSpace => return Ok(()),
                Err(e) => return Err(format!("write {path}: {e}")),
            }
            self.model.set_bytes(id, bytes.clone());
            self.model.note(id, format!("write {at}+{n} {fill:02x}"));
        }
        Ok(())
    }

    /// A direct write, submitted.
    fn write_past(
        &self,
        path: &str,
        fill: u8,
        n: usize,
        at: u64,
        durable: bool,
    ) -> Result<blockwright_vfs::Result<usize>, String> {
        let inode = self.inode(path)?;
        let flags = OpenFlags {
            direct: true,
            noatime: true,
            sync: if durable {
                SyncMode::Data
            } else {
                SyncMode::None
            },
            ..OpenFlags::read_write()
        };
        let handle = self
            .volume
            .open(&self.cred, &inode, flags)
            .map_err(|e| format!("open {path}: {e}"))?;
        let slices = vec![AlignedBuf::copy_of(&vec![fill; n]).into()];
        let (send, receive) = std::sync::mpsc::channel();
        // Who went away does not want to know.
        handle.submit_write(slices, at, Box::new(move |r| drop(send.send(r))));
        receive
            .recv_timeout(std::time::Duration::from_secs(60))
            .map_err(|_| format!("a submitted write of {path} did not end"))
    }

    fn truncate(&mut self) -> Step {
        let Some((path, id)) = self.pick('f') else {
            return Ok(());
        };
        let mut bytes = (*self.model.bytes(id)).clone();
        let size = self.rng.below(self.plan.file_bytes_max) as usize;
        let size = if self.rng.below(2) == 0 {
            size
        } else {
            size.min(bytes.len())
        };
        let handle = self.open(&path)?;
        self.model.begin(self.log());
        handle
            .set_len(size as u64)
            .map_err(|e| format!("truncate {path}: {e}"))?;
        bytes.resize(size, 0);
        self.model.set_bytes(id, bytes);
        self.model.note(id, format!("truncate {size}"));
        Ok(())
    }

    fn allocate_or_punch(&mut self) -> Step {
        let Some((path, id)) = self.pick('f') else {
            return Ok(());
        };
        let mut bytes = (*self.model.bytes(id)).clone();
        let start = self.rng.below(self.plan.file_bytes_max);
        let end = start + 1 + self.rng.below(12_000);
        let mode = match self.rng.below(3) {
            0 => FallocMode::PunchHole,
            1 => FallocMode::Allocate { keep_size: false },
            _ => FallocMode::ZeroRange { keep_size: true },
        };
        let handle = self.open(&path)?;
        self.model.begin(self.log());
        match handle.fallocate(start..end, mode) {
            Ok(()) => {}
            Err(e) if matches!(e.kind(), ErrorKind::NotSupported | ErrorKind::NoSpace) => {
                return Ok(());
            }
            Err(e) => return Err(format!("fallocate {path} {mode:?}: {e}")),
        }
        if mode == (FallocMode::Allocate { keep_size: false }) {
            if bytes.len() < end as usize {
                bytes.resize(end as usize, 0);
            }
        } else {
            let (a, b) = (
                (start as usize).min(bytes.len()),
                (end as usize).min(bytes.len()),
            );
            bytes[a..b].fill(0);
        }
        self.model.set_bytes(id, bytes);
        self.model.note(id, format!("{mode:?} {start}..{end}"));
        Ok(())
    }

    fn rename(&mut self) -> Step {
        let kind = ['f', 'd', 'l', 'f'][self.rng.below(4) as usize];
        let Some((from, id)) = self.pick(kind) else {
            return Ok(());
        };
        let over = self.rng.below(3) == 0;
        let to = match over.then(|| self.pick(kind)).flatten() {
            Some((path, _)) => path,
            None => self.fresh_name(),
        };
        if to == from || to.starts_with(&format!("{from}/")) || from.starts_with(&format!("{to}/"))
        {
            return Ok(());
        }
        let exchange = over && self.rng.below(4) == 0 && self.model.now().names.contains_key(&to);
        let mode = if exchange {
            RenameMode::Exchange
        } else {
            RenameMode::Replace
        };
        let (old_dir, old_name) = self.parent(&from)?;
        let (new_dir, new_name) = self.parent(&to)?;
        self.model.begin(self.log());
        match self
            .volume
            .rename(&self.cred, &old_dir, &old_name, &new_dir, &new_name, mode)
        {
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::NotEmpty => return Ok(()),
            Err(e) => return Err(format!("rename {from} {to}: {e}")),
        }
        let state = self.model.state();
        let target = state.names.get(&to).copied();
        if target == Some(id) {
            return Ok(()); // two names of one file: nothing happens
        }
        let moved = take_below(state, &from);
        let replaced = take_below(state, &to);
        for (rest, id) in moved {
            state.names.insert(format!("{to}{rest}"), id);
        }
        if exchange {
            for (rest, id) in replaced {
                state.names.insert(format!("{from}{rest}"), id);
            }
        }
        self.model.touch_name(id);
        if let Some(target) = target {
            self.model.touch_name(target);
        }
        self.model.prune();
        self.named(&from);
        self.named(&to);
        Ok(())
    }

    fn remove_name(&mut self, path: &str, id: NodeId) {
        self.model.state().names.remove(path);
        self.model.touch_name(id);
        self.model.prune();
        self.named(path);
    }

    fn unlink(&mut self) -> Step {
        let kind = if self.rng.below(4) == 0 { 'l' } else { 'f' };
        let Some((path, id)) = self.pick(kind) else {
            return Ok(());
        };
        let (dir, name) = self.parent(&path)?;
        self.model.begin(self.log());
        self.volume
            .unlink(&self.cred, &dir, &name)
            .map_err(|e| format!("unlink {path}: {e}"))?;
        self.remove_name(&path, id);
        Ok(())
    }

    fn unlink_while_open(&mut self) -> Step {
        let Some((path, id)) = self.pick('f') else {
            return Ok(());
        };
        let handle = self.open(&path)?;
        let (dir, name) = self.parent(&path)?;
        self.model.begin(self.log());
        self.volume
            .unlink(&self.cred, &dir, &name)
            .map_err(|e| format!("unlink {path}: {e}"))?;
        self.remove_name(&path, id);
        if self.held.len() > 3 && !self.plan.orphans {
            self.held.remove(0);
        }
        self.held.push(handle);
        Ok(())
    }

    /// Closes a file that has no name: neither the first nor the last of the orphans, as a rule.
    fn let_one_go(&mut self) -> Step {
        if !self.held.is_empty() {
            let which = self.rng.below(self.held.len() as u64) as usize;
            self.held.swap_remove(which);
        }
        Ok(())
    }

    fn rmdir(&mut self) -> Step {
        let Some((path, id)) = self.pick('d') else {
            return Ok(());
        };
        let (dir, name) = self.parent(&path)?;
        self.model.begin(self.log());
        match self.volume.rmdir(&self.cred, &dir, &name) {
            Ok(()) => {
                self.remove_name(&path, id);
                Ok(())
            }
            Err(e) if e.kind() == ErrorKind::NotEmpty => Ok(()),
            Err(e) => Err(format!("rmdir {path}: {e}")),
        }
    }

    fn link(&mut self) -> Step {
        let Some((path, id)) = self.pick('f') else {
            return Ok(());
        };
        let to = self.fresh_name();
        if self.model.now().names.contains_key(&to) {
            return Ok(());
        }
        let inode = self.inode(&path)?;
        let (dir, name) = self.parent(&to)?;
        self.model.begin(self.log());
        self.volume
            .link(&self.cred, &inode, &dir, &name)
            .map_err(|e| format!("link {path} {to}: {e}"))?;
        self.model.state().names.insert(to.clone(), id);
        self.model.touch_name(id);
        self.named(&to);
        Ok(())
    }

    fn attributes(&mut self) -> Step {
        let kind = if self.rng.below(3) == 0 { 'd' } else { 'f' };
        let Some((path, id)) = self.pick(kind) else {
            return Ok(());
        };
        let inode = self.inode(&path)?;
        let fail = |e: blockwright_vfs::Error| format!("{path}: {e}");
        self.model.begin(self.log());
        match self.rng.below(3) {
            0 => {
                let mode = 0o400 + self.rng.below(0o377) as u32;
                let change = SetAttr {
                    mode: Some(mode),
                    ..SetAttr::default()
                };
                self.volume
                    .set_attr(&self.cred, &inode, &change)
                    .map_err(fail)?;
                self.node(id).mode = mode;
            }
            1 => {
                let n = [3, 60, 200, 700][self.rng.below(4) as usize];
                let value = vec![self.rng.byte(); n];
                match self.volume.set_xattr(
                    &self.cred,
                    &inode,
                    b"user.mark",
                    &value,
                    XattrMode::Any,
                ) {
                    Ok(()) => self.node(id).mark = Some(value),
                    Err(e) if e.kind() == ErrorKind::NoSpace => {}
                    Err(e) => return Err(fail(e)),
                }
            }
            _ => match self.volume.remove_xattr(&self.cred, &inode, b"user.mark") {
                Ok(()) => self.node(id).mark = None,
                Err(e) if e.kind() == ErrorKind::NoAttribute => {}
                Err(e) => return Err(fail(e)),
            },
        }
        self.model.touch(id);
        Ok(())
    }

    fn node(&mut self, id: NodeId) -> &mut NodeState {
        self.model.state().nodes.get_mut(&id).expect("a named node")
    }

    fn fsync(&mut self) -> Step {
        let Some((path, id)) = self.pick('f') else {
            return Ok(());
        };
        let all = self.rng.below(2) == 0;
        let scope = if all { SyncScope::All } else { SyncScope::Data };
        let handle = self.open(&path)?;
        self.sync_file(&handle, &path, id, scope)
    }

    fn sync_file(&mut self, handle: &Handle, path: &str, id: NodeId, scope: SyncScope) -> Step {
        let began = self.log();
        handle
            .sync(scope)
            .map_err(|e| format!("fsync {path}: {e}"))?;
        let log = self.recording.marker(format!("fsync {path}")) + 1;
        self.model
            .promise_file(began, log, id, scope == SyncScope::All);
        self.model.note(id, format!("{scope:?} fsync, log {log}"));
        Ok(())
    }

    fn fsync_directory(&mut self) -> Step {
        let path = self.directory();
        let inode = self.inode(&path)?;
        let handle = self
            .volume
            .open(&self.cred, &inode, OpenFlags::read_only())
            .map_err(|e| format!("open {path}/: {e}"))?;
        handle
            .sync(SyncScope::All)
            .map_err(|e| format!("fsync {path}/: {e}"))?;
        let log = self.recording.marker(format!("fsync {path}/")) + 1;
        let changed = self.names_changed.get(&path).copied().unwrap_or(0);
        self.model.promise_names(log, changed);
        Ok(())
    }

    fn sync(&mut self) -> Step {
        self.volume.sync().map_err(|e| format!("sync: {e}"))?;
        let log = self.recording.marker("sync") + 1;
        self.model.promise_all(log);
        let files: Vec<NodeId> = self.model.now().names.values().copied().collect();
        for id in files {
            self.model.note(id, format!("sync, log {log}"));
        }
        Ok(())
    }
}

/// Takes a name and all names below it out, as the part after `path`.
fn take_below(state: &mut crate::model::State, path: &str) -> Vec<(String, NodeId)> {
    let below = format!("{path}/");
    let keys: Vec<String> = state
        .names
        .keys()
        .filter(|p| *p == path || p.starts_with(&below))
        .cloned()
        .collect();
    keys.into_iter()
        .filter_map(|p| {
            state
                .names
                .remove(&p)
                .map(|id| (p[path.len()..].to_owned(), id))
        })
        .collect()
}
