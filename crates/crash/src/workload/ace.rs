//! Scripted operations on a few names: the alphabet of [`crate::script`], done through the vfs and noted in the model.

use super::{Run, Step};
use crate::model::{Model, NodeId};
use crate::mounted;
use crate::plan::{Format, Plan, Rng};
use crate::script::{Nameless, Op, Persist, Place};
use crate::verify::{self, Part};
use blockwright_device::{MemoryDevice, RecordingDevice, SharedDevice};
use blockwright_vfs::{Cred, ErrorKind, FallocMode, FileKind, SetAttr, SyncScope, XattrMode};
use std::sync::Arc;

/// Whether an operation was possible where it stood; the model has it then.
pub(crate) type Done = Result<bool, String>;

/// Errors that mean: not here.
fn impossible(e: &blockwright_vfs::Error) -> bool {
    matches!(
        e.kind(),
        ErrorKind::NotFound
            | ErrorKind::Exists
            | ErrorKind::NotEmpty
            | ErrorKind::NotDirectory
            | ErrorKind::IsDirectory
            | ErrorKind::Unsupported
            | ErrorKind::NoAttribute
            | ErrorKind::Invalid
    )
}

impl Run {
    fn node_at(&self, path: &str, kind: char) -> Option<NodeId> {
        let now = self.model.now();
        let id = now.names.get(path).copied()?;
        (now.nodes.get(&id)?.kind == kind).then_some(id)
    }

    fn parent_is_there(&self, path: &str) -> bool {
        let dir = path.rsplit_once('/').map_or("", |(dir, _)| dir);
        dir.is_empty() || self.node_at(dir, 'd').is_some()
    }

    /// Does one operation. `false`: there is nothing to do it to.
    pub(crate) fn scripted(&mut self, op: &Op) -> Done {
        match op {
            Op::Create(path) => self.scripted_make(path, FileKind::Regular, 'f'),
            Op::Mkdir(path) => self.scripted_make(path, FileKind::Directory, 'd'),
            Op::Rmdir(path) => {
                let below = format!("{path}/");
                let Some(id) = self.node_at(path, 'd') else {
                    return Ok(false);
                };
                if self.model.now().names.keys().any(|p| p.starts_with(&below)) {
                    return Ok(false);
                }
                self.rmdir_at(path, id).map(|()| true)
            }
            Op::Unlink(path) => match self.node_at(path, 'f') {
                Some(id) => self.unlink_at(path, id).map(|()| true),
                None => Ok(false),
            },
            Op::UnlinkOpen(path, then) => match self.node_at(path, 'f') {
                Some(id) => self.scripted_nameless(path, id, *then).map(|()| true),
                None => Ok(false),
            },
            Op::Link(from, to) => match self.node_at(from, 'f') {
                Some(id)
                    if !self.model.now().names.contains_key(*to) && self.parent_is_there(to) =>
                {
                    self.link_at(from, id, (*to).to_owned()).map(|()| true)
                }
                _ => Ok(false),
            },
            Op::Rename(from, to) => self.scripted_rename(from, to, false),
            Op::Exchange(from, to) => self.scripted_rename(from, to, true),
            Op::Write(path, place) => self.scripted_write(path, *place, false),
            Op::DirectWrite(path, place) => self.scripted_write(path, *place, true),
            Op::Truncate(path, size) => match self.node_at(path, 'f') {
                Some(id) => self.truncate_at(path, id, *size).map(|()| true),
                None => Ok(false),
            },
            Op::Falloc(path, mode, first, last) => self.scripted_falloc(path, *mode, *first, *last),
            Op::SetXattr(path, n) => self.scripted_xattr(path, Some(vec![b'x'; *n])),
            Op::RemoveXattr(path) => self.scripted_xattr(path, None),
            Op::Chmod(path, mode) => {
                let Some(id) = self.node_at(path, 'f') else {
                    return Ok(false);
                };
                let inode = self.inode(path)?;
                let change = SetAttr {
                    mode: Some(*mode),
                    ..SetAttr::default()
                };
                self.model.begin(self.log());
                let changed = self.volume.set_attr(&self.cred, &inode, &change);
                changed.map_err(|e| format!("chmod {path}: {e}"))?;
                self.node(id).mode = *mode;
                self.model.touch(id);
                Ok(true)
            }
        }
    }

    /// The name may still be there after a crash, and the file has the change then. So the model has the change first.
    fn scripted_nameless(&mut self, path: &str, id: NodeId, then: Nameless) -> Step {
        let handle = self.open(path)?;
        let mut bytes = (*self.model.bytes(id)).clone();
        match then {
            Nameless::Truncate(size) => bytes.resize(size as usize, 0),
            Nameless::Write(from, to) | Nameless::Falloc(_, from, to) => {
                bytes.resize(bytes.len().max(to as usize), 0);
                let fill = u8::from(matches!(then, Nameless::Write(..))) * b'n';
                if !matches!(then, Nameless::Falloc(FallocMode::Allocate { .. }, ..)) {
                    bytes[from as usize..to as usize].fill(fill);
                }
            }
        }
        self.model.begin(self.log());
        self.model.set_bytes(id, bytes);
        self.model.note(id, format!("{then:?}"));
        self.unlink_at(path, id)?;
        let done = match then {
            Nameless::Truncate(size) => handle.set_len(size),
            Nameless::Write(from, to) => handle
                .write_at(&vec![b'n'; (to - from) as usize], from)
                .map(drop),
            Nameless::Falloc(mode, from, to) => handle.fallocate(from..to, mode),
        };
        done.map_err(|e| format!("{then:?} of {path} without a name: {e}"))?;
        self.held.push(handle);
        Ok(())
    }

    fn scripted_make(&mut self, path: &str, kind: FileKind, letter: char) -> Done {
        if self.model.now().names.contains_key(path) || !self.parent_is_there(path) {
            return Ok(false);
        }
        self.make_at(path.to_owned(), kind, letter, b"")
            .map(|()| true)
    }

    fn scripted_rename(&mut self, from: &str, to: &str, exchange: bool) -> Done {
        let names = &self.model.now().names;
        let (Some(id), there) = (names.get(from).copied(), names.get(to).copied()) else {
            return Ok(false);
        };
        let kind = |id: NodeId| self.model.now().nodes[&id].kind;
        let fits = match there {
            Some(other) => exchange || kind(id) == kind(other),
            None => !exchange && self.parent_is_there(to),
        };
        if !fits || to.starts_with(&format!("{from}/")) || from.starts_with(&format!("{to}/")) {
            return Ok(false);
        }
        let below = format!("{to}/");
        if !exchange && names.keys().any(|p| p.starts_with(&below)) {
            return Ok(false);
        }
        self.rename_at(from, id, to, exchange).map(|()| true)
    }

    fn scripted_write(&mut self, path: &str, place: Place, past: bool) -> Done {
        let Some(id) = self.node_at(path, 'f') else {
            return Ok(false);
        };
        let unit = match past {
            true => self.plan.block_bytes as usize,
            false => 1,
        };
        let size = self.model.bytes(id).len();
        let (at, n) = match place {
            Place::Begin(n) => (0, n),
            Place::End(n) => (size, n),
            Place::At(at, n) => (at, n),
        };
        let fill = 0x10 + self.steps as u8 * 0x21;
        self.steps += 1;
        let (at, n) = (at / unit * unit, n.next_multiple_of(unit));
        self.write_at(path, id, at, n, fill, past, false)
            .map(|()| true)
    }

    fn scripted_xattr(&mut self, path: &str, value: Option<Vec<u8>>) -> Done {
        let Some(id) = self.node_at(path, 'f') else {
            return Ok(false);
        };
        if value.is_none() && self.model.now().nodes[&id].mark.is_none() {
            return Ok(false);
        }
        let inode = self.inode(path)?;
        self.model.begin(self.log());
        let name = b"user.mark";
        let done = match &value {
            Some(value) => self
                .volume
                .set_xattr(&self.cred, &inode, name, value, XattrMode::Any),
            None => self.volume.remove_xattr(&self.cred, &inode, name),
        };
        done.map_err(|e| format!("attribute of {path}: {e}"))?;
        self.node(id).mark = value;
        self.model.touch(id);
        Ok(true)
    }

    /// From one block to another, counted from 0. Ranges that shift what is behind them are made durable at once, or
    /// an overwrite in place that follows would show where its block was before.
    fn scripted_falloc(&mut self, path: &str, mode: FallocMode, first: u64, last: u64) -> Done {
        let Some(id) = self.node_at(path, 'f') else {
            return Ok(false);
        };
        let block = u64::from(self.plan.block_bytes);
        let shifts = matches!(mode, FallocMode::CollapseRange | FallocMode::InsertRange);
        // Odd ends where they are allowed.
        let odd = if shifts { 0 } else { 100 };
        let range = first * block + odd..last * block + odd;
        let mut bytes = (*self.model.bytes(id)).clone();
        if shifts && bytes.len() as u64 <= range.end {
            return Ok(false);
        }
        let handle = self.open(path)?;
        self.model.begin(self.log());
        match handle.fallocate(range.clone(), mode) {
            Ok(()) => {}
            Err(e) if impossible(&e) => return Ok(false),
            Err(e) => return Err(format!("{mode:?} {range:?} of {path}: {e}")),
        }
        let (start, end) = (range.start as usize, range.end as usize);
        let inside = |bytes: &Vec<u8>| start.min(bytes.len())..end.min(bytes.len());
        match mode {
            FallocMode::Allocate { keep_size } => {
                if !keep_size && bytes.len() < end {
                    bytes.resize(end, 0);
                }
            }
            FallocMode::PunchHole | FallocMode::ZeroRange { keep_size: true } => {
                let inside = inside(&bytes);
                bytes[inside].fill(0);
            }
            FallocMode::ZeroRange { keep_size: false } => {
                bytes.resize(bytes.len().max(end), 0);
                bytes[start..end].fill(0);
            }
            FallocMode::CollapseRange => drop(bytes.drain(start..end)),
            FallocMode::InsertRange => {
                drop(bytes.splice(start..start, std::iter::repeat_n(0, end - start)));
            }
        }
        self.model.set_bytes(id, bytes);
        self.model.note(id, format!("{mode:?} {range:?}"));
        if shifts {
            self.sync_file(&handle, path, id, SyncScope::All)?;
        }
        Ok(true)
    }

    /// Makes durable what an operation did. `false`: there is nothing to be made durable that way.
    pub(crate) fn persist(&mut self, how: Persist, op: &Op) -> Done {
        let path = op.file();
        let file = |run: &Self| run.node_at(path, 'f');
        match how {
            Persist::None => {}
            Persist::Sync => self.sync()?,
            Persist::Fsync | Persist::Fdatasync => {
                let scope = match how {
                    Persist::Fsync => SyncScope::All,
                    _ => SyncScope::Data,
                };
                if let (Op::UnlinkOpen(..), Some(handle)) = (op, self.held.last()) {
                    let synced = handle.sync(scope);
                    return synced
                        .map(|()| true)
                        .map_err(|e| format!("sync of {path} without a name: {e}"));
                }
                let Some(id) = file(self) else {
                    return Ok(false);
                };
                let handle = self.open(path)?;
                self.sync_file(&handle, path, id, scope)?;
            }
            Persist::FsyncDir => {
                let dir = path.rsplit_once('/').map_or("", |(dir, _)| dir).to_owned();
                if !self.parent_is_there(path) {
                    return Ok(false);
                }
                self.fsync_directory_at(&dir)?;
            }
        }
        Ok(true)
    }

    /// What workloads begin with: two directories, two files.
    pub(crate) fn begin_with(&mut self) -> Step {
        for op in [
            Op::Mkdir("/A"),
            Op::Mkdir("/B"),
            Op::Create("/A/foo"),
            Op::Create("/bar"),
            Op::Write("/A/foo", Place::Begin(2500)),
            Op::Write("/bar", Place::Begin(14_000)),
            Op::SetXattr("/bar", 40),
        ] {
            if !self.scripted(&op)? {
                return Err(format!("{op:?} is not possible"));
            }
        }
        Ok(())
    }
}

/// What a scripted run leaves to be verified.
pub(crate) struct Ran {
    /// Where in the log it began, mounted, and where it ended.
    pub log: std::ops::Range<usize>,
    /// What was done.
    pub part: Part,
}

/// Runs a sequence on a recorded volume; without a volume before it makes the one that sequences begin with, and
/// unmounts it. `None`: an operation had nothing to act on.
pub(crate) fn scripted_run(
    plan: &Plan,
    recording: &Arc<RecordingDevice>,
    sequence: &[(Op, Persist)],
    before: Option<&MemoryDevice>,
) -> Result<Option<Ran>, String> {
    let device: SharedDevice = recording.clone();
    let volume = mounted::mount_for(plan, device)?;
    let mut model = match plan.format {
        Format::Ext4 => Model::new(),
        Format::F2fs => Model::rolling(),
    };
    if let Some(before) = before {
        let (state, bytes) = verify::state_of(before, "")?;
        model = model.on(state, bytes);
    }
    let mut run = Run {
        volume: Arc::clone(&volume),
        cred: Cred::root(),
        rng: Rng::new(plan.seed),
        model,
        below: String::new(),
        recording: Arc::clone(recording),
        plan: plan.clone(),
        names_changed: Default::default(),
        held: Vec::new(),
        steps: 0,
    };
    if before.is_none() {
        run.begin_with()?;
        drop(run);
        volume.unmount().map_err(|e| format!("unmount: {e}"))?;
        return Ok(None);
    }
    let first = recording.log_len();
    for (op, persist) in sequence {
        if !run.scripted(op)? || !run.persist(*persist, op)? {
            return Ok(None);
        }
    }
    let last = recording.log_len();
    verify::is_as_done(&volume, "", &run.model).map_err(|e| format!("before any crash: {e}"))?;
    let model = std::mem::take(&mut run.model);
    // What dropping the volume still writes is behind the last cut.
    Ok(Some(Ran {
        log: first..last,
        part: Part {
            below: String::new(),
            model,
        },
    }))
}
