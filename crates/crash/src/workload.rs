//! Seeded workloads: operations drawn one after another, done through the vfs, and noted in the model.

mod ace;
mod contents;

pub(crate) use ace::scripted_run;

use crate::explored::Explored;
use crate::model::{Model, NodeId, NodeState};
use crate::plan::{Format, Plan, Rng, Room};
use crate::verify::{self, Part};
use crate::{ballast, mounted};
use blockwright_device::sim::turns::Turns;
use blockwright_device::{MemoryDevice, RecordingDevice, SharedDevice};
use blockwright_vfs::{
    CreateRequest, Cred, ErrorKind, FallocMode, FileKind, Handle, InodeRef, OpenFlags, RenameMode,
    SetAttr, SyncScope, Vfs, XattrMode,
};
use std::fmt::Display;
use std::sync::Arc;

pub(crate) struct Run {
    volume: Arc<Vfs>,
    cred: Cred,
    rng: Rng,
    model: Model,
    /// The directory that all is done in.
    below: String,
    recording: Arc<RecordingDevice>,
    plan: Plan,
    /// Last operation that changed a name in a directory.
    names_changed: std::collections::BTreeMap<String, usize>,
    /// Files without a name that are held open.
    held: Vec<Arc<Handle>>,
    /// Operations begun.
    steps: u64,
}

/// Runs the plan over the recording device and returns the model of what happened, and the volume as it is in memory. `before`: what is recorded upon, where
/// that is not a fresh volume. What only statistics tell is added to `done`.
///
/// # Errors
/// An operation that failed although nothing was wrong with it.
pub fn run(
    plan: &Plan,
    recording: &Arc<RecordingDevice>,
    before: Option<&MemoryDevice>,
    done: &mut Explored,
) -> Result<(Vec<Part>, Left), String> {
    let device: SharedDevice = recording.clone();
    let volume = mounted::alone(plan, || mounted::mount_to_run(plan, device))?;
    let mut runs = Vec::new();
    for thread in 0..plan.threads {
        let below = match plan.threads {
            1 => String::new(),
            _ => format!("/thread-{thread}"),
        };
        let mut model = match plan.format {
            Format::Ext4 => Model::new(),
            Format::F2fs => Model::rolling(),
        };
        if let Some(before) = before {
            let (state, bytes) = verify::state_of(before, &below)?;
            model = model.on(state, bytes);
        }
        runs.push(Run {
            volume: Arc::clone(&volume),
            cred: Cred::root(),
            rng: Rng::new(plan.seed + ((thread as u64) << 32)),
            model,
            below,
            recording: Arc::clone(recording),
            plan: plan.clone(),
            names_changed: Default::default(),
            held: Vec::new(),
            steps: 0,
        });
    }
    let outcomes: Vec<Result<Run, String>> = match runs.len() {
        1 => runs.into_iter().map(Run::all).collect(),
        _ => {
            let turns = plan
                .takes_turns()
                .then(|| Turns::new(runs.len(), plan.seed));
            std::thread::scope(|scope| {
                let start = |(k, run): (usize, Run)| {
                    let turns = turns.clone();
                    scope.spawn(move || {
                        let _turn = turns.as_ref().map(|turns| turns.take_part(k, true));
                        run.all()
                    })
                };
                let all: Vec<_> = runs.into_iter().enumerate().map(start).collect();
                all.into_iter()
                    .map(|one| one.join().unwrap_or_else(|_| Err("a panic".into())))
                    .collect()
            })
        }
    };
    let runs = outcomes.into_iter().collect::<Result<Vec<_>, _>>()?;
    let stats = volume.stats();
    let count = |name| stats.get(name).unwrap_or(0);
    if count("cleaning_failures") != 0 {
        return Err(format!("seed {}: sections could not be cleaned", plan.seed));
    }
    if count("writeback_bytes_lost") != 0 {
        return Err(format!(
            "seed {}: writes were accepted and found no room",
            plan.seed
        ));
    }
    mounted::alone(plan, || {
        let mut all = runs.iter();
        all.try_for_each(|run| verify::is_as_done(&volume, &run.below, &run.model))
    })
    .map_err(|e| format!("seed {}, before any crash: {e}", plan.seed))?;
    done.room_waits += count("writeback_room_waits");
    done.moved_data += count("moved_data_blocks");
    done.moved_nodes += count("moved_node_blocks");
    done.early_nodes += count("checkpoint_early_nodes");
    done.cleaned_by_writers += count("cleaned_foreground");
    done.cleaned_ahead += count("cleaned_ahead");
    done.refilled += count("segments_refilled");
    done.copied += count("bytes_copied");
    done.preallocated += count("direct_writes_nowait");
    done.finished_here += count("direct_finished_where_landed");
    let mut parts = Vec::new();
    let mut handles = Vec::new();
    for Run {
        below, model, held, ..
    } in runs
    {
        handles.extend(held);
        parts.push(Part { below, model });
    }
    let left = Left {
        _handles: handles,
        _volume: volume,
    };
    Ok((parts, left))
}

/// The volume and the open files at the end of a run, with all that was not made durable. What they write when they are dropped comes behind
/// all cuts.
pub struct Left {
    _handles: Vec<Arc<Handle>>,
    _volume: Arc<Vfs>,
}

type Step = Result<(), String>;

impl Run {
    fn log(&self) -> usize {
        self.recording.log_len()
    }

    fn all(mut self) -> Result<Self, String> {
        let below = self.below.clone();
        if !self.model.now().names.contains_key(&below) && !below.is_empty() {
            self.make_at(below.clone(), FileKind::Directory, 'd', b"")?;
            if !self.model.now().names.contains_key(&below) {
                // A full volume, which has no room for it.
                return Ok(self);
            }
        }
        for k in 0..self.plan.operations {
            self.step()
                .map_err(|e| format!("seed {}, operation {k}: {e}", self.plan.seed))?;
        }
        Ok(self)
    }

    fn may_be_full(&self) -> bool {
        // A few large files fill it, too.
        self.plan.write_bytes_max >= 1 << 20
            || self.plan.cleaning.is_some_and(|c| c.room != Room::Ample)
    }

    /// Accepts that a full volume refuses an operation, which changes nothing then.
    fn refused(&self, e: &blockwright_vfs::Error, what: impl Display) -> Step {
        let full = self.may_be_full();
        match e.kind() {
            ErrorKind::NoSpace if full => Ok(()),
            _ => Err(format!("{what}: {e}")),
        }
    }

    fn step(&mut self) -> Step {
        // Counted, not drawn: a draw would change everything else that a seed does.
        self.steps += 1;
        if self.plan.f2fs.nodes_left == Some(0) && self.steps.is_multiple_of(3) {
            self.write_ahead();
        }
        if self.plan.rich && self.rng.below(8) == 0 {
            return match self.rng.below(4) {
                0 => self.shift(),
                1 => self.change_owner(),
                _ => self.copy(),
            };
        }
        // Otherwise sections are cleaned for writers only.
        let between = self.plan.cleaning.is_some_and(|c| c.room == Room::Ample);
        if between && self.rng.below(4) == 0 {
            self.clean();
        }
        let in_holes = self.plan.cleaning.is_some_and(|c| c.room == Room::InHoles);
        if in_holes && self.rng.below(4) == 0 {
            self.use_up()?;
        }
        if self.plan.orphans {
            return match self.rng.below(100) {
                0..40 => self.create(),
                40..52 => self.write(),
                52..76 => self.unlink_while_open(),
                76..84 => self.let_one_go(),
                84..90 => self.change_nameless(),
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

    /// Cleans sections. That is no operation of the model, because it changes nothing that a program sees.
    fn clean(&mut self) {
        let engine = self.volume.engine().as_any();
        if let Some(f2fs) = engine.downcast_ref::<blockwright_f2fs::F2fs>() {
            f2fs.fs().cleaning.clean_sections(1 + self.rng.below(2));
        }
    }

    /// Takes a large part of a segment, and frees what was taken earlier: free sections run short, and only holes are left.
    fn use_up(&mut self) -> Step {
        const BYTES: usize = 900_000;
        let name = format!("{}{}", ballast::USED_UP, self.rng.below(4));
        let dir = self.inode(&format!("/{}", ballast::DIRECTORY))?;
        let _was_there = self.volume.unlink(&self.cred, &dir, name.as_bytes());
        let request = CreateRequest::new(FileKind::Regular, 0o600);
        let fill = vec![self.rng.byte(); BYTES];
        let written = self
            .volume
            .create(&self.cred, &dir, name.as_bytes(), &request)
            .and_then(|(file, _)| self.volume.open(&self.cred, &file, OpenFlags::read_write()))
            .and_then(|handle| {
                handle.write_at(&fill, 0)?;
                handle.sync(SyncScope::Data)
            });
        match written {
            // All threads use these files: another one took the name in between.
            Err(e) if e.kind() == ErrorKind::Exists && self.plan.threads > 1 => Ok(()),
            Err(e) => self.refused(&e, "using up room"),
            Ok(()) => Ok(()),
        }
    }

    /// Writes nodes as a checkpoint does first, and no checkpoint. That changes nothing that a program sees either.
    fn write_ahead(&mut self) {
        let engine = self.volume.engine().as_any();
        if let Some(f2fs) = engine.downcast_ref::<blockwright_f2fs::F2fs>() {
            f2fs.fs().checkpoints.write_ahead_of_checkpoint();
        }
    }

    fn pick(&mut self, kind: char) -> Option<(String, NodeId)> {
        let state = self.model.now();
        let all: Vec<(String, NodeId)> = state
            .names
            .iter()
            .filter(|(path, id)| state.nodes[id].kind == kind && **path != self.below)
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
            return self.below.clone();
        }
        match self.pick('d') {
            Some((path, _)) => path,
            None => self.below.clone(),
        }
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
        self.make_at(path, kind, letter, target)
    }

    fn make_at(&mut self, path: String, kind: FileKind, letter: char, target: &[u8]) -> Step {
        let (dir, name) = self.parent(&path)?;
        let mode = 0o600 + self.rng.below(0o77) as u32;
        self.model.begin(self.log());
        let mut request = CreateRequest::new(kind, mode);
        request.symlink = target.to_vec();
        let inode = match self.volume.create(&self.cred, &dir, &name, &request) {
            Ok((inode, _)) => inode,
            Err(e) => return self.refused(&e, format_args!("create {path}")),
        };
        let mode = self.volume.stat(&inode).perm;
        let node = NodeState {
            kind: letter,
            mode,
            uid: 0,
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
        self.rename_at(&from, id, &to, exchange)
    }

    /// Renames in the volume and in the model: the model notes what a crash may leave from before the call on.
    fn rename_at(&mut self, from: &str, id: NodeId, to: &str, exchange: bool) -> Step {
        let mode = if exchange {
            RenameMode::Exchange
        } else {
            RenameMode::Replace
        };
        let (old_dir, old_name) = self.parent(from)?;
        let (new_dir, new_name) = self.parent(to)?;
        self.model.begin(self.log());
        match self
            .volume
            .rename(&self.cred, &old_dir, &old_name, &new_dir, &new_name, mode)
        {
            Ok(()) => {}
            Err(e) if e.kind() == ErrorKind::NotEmpty => return Ok(()),
            Err(e) => return self.refused(&e, format_args!("rename {from} {to}")),
        }
        let state = self.model.state();
        let target = state.names.get(to).copied();
        if target == Some(id) {
            return Ok(()); // two names of one file: nothing happens
        }
        let moved = take_below(state, from);
        let replaced = take_below(state, to);
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
        self.named(from);
        self.named(to);
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
        match self.pick(kind) {
            Some((path, id)) => self.unlink_at(&path, id),
            None => Ok(()),
        }
    }

    fn unlink_at(&mut self, path: &str, id: NodeId) -> Step {
        let (dir, name) = self.parent(path)?;
        self.model.begin(self.log());
        self.volume
            .unlink(&self.cred, &dir, &name)
            .map_err(|e| format!("unlink {path}: {e}"))?;
        self.remove_name(path, id);
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

    /// Changes a file that has no name, but none of the bytes that it had with one: its name may be there after a crash.
    fn change_nameless(&mut self) -> Step {
        if self.held.is_empty() {
            return Ok(());
        }
        let which = self.rng.below(self.held.len() as u64) as usize;
        let end = self.plan.file_bytes_max;
        let behind = end..end + 1 + self.rng.below(6000);
        let handle = &self.held[which];
        let done = match self.rng.below(4) {
            0 => handle.set_len(0),
            1 => handle.set_len(behind.end),
            2 => {
                let bytes = vec![b'n'; (behind.end - behind.start) as usize];
                handle.write_at(&bytes, behind.start).map(drop)
            }
            _ => handle.fallocate(behind, FallocMode::Allocate { keep_size: false }),
        };
        match done {
            Err(e) if !matches!(e.kind(), ErrorKind::NoSpace | ErrorKind::Unsupported) => {
                Err(format!("a change of a file without a name: {e}"))
            }
            _ => Ok(()),
        }
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
        match self.pick('d') {
            Some((path, id)) => self.rmdir_at(&path, id),
            None => Ok(()),
        }
    }

    fn rmdir_at(&mut self, path: &str, id: NodeId) -> Step {
        let (dir, name) = self.parent(path)?;
        self.model.begin(self.log());
        match self.volume.rmdir(&self.cred, &dir, &name) {
            Ok(()) => {
                self.remove_name(path, id);
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
        self.link_at(&path, id, to)
    }

    fn link_at(&mut self, path: &str, id: NodeId, to: String) -> Step {
        let inode = self.inode(path)?;
        let (dir, name) = self.parent(&to)?;
        self.model.begin(self.log());
        if let Err(e) = self.volume.link(&self.cred, &inode, &dir, &name) {
            return self.refused(&e, format_args!("link {path} {to}"));
        }
        self.model.state().names.insert(to.clone(), id);
        self.model.touch_name(id);
        self.named(&to);
        Ok(())
    }

    /// Changes the mode, the times or an extended attribute of a file that is drawn.
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
                    Err(e) if e.kind() == ErrorKind::NoSpace => return Ok(()),
                    Err(e) => return Err(fail(e)),
                }
            }
            _ => match self.volume.remove_xattr(&self.cred, &inode, b"user.mark") {
                Ok(()) => self.node(id).mark = None,
                // Nothing changed, and fsync has nothing to promise.
                Err(e) if e.kind() == ErrorKind::NoAttribute => return Ok(()),
                Err(e) => return Err(fail(e)),
            },
        }
        self.model.touch(id);
        Ok(())
    }

    /// What quota counts goes from one owner to another.
    fn change_owner(&mut self) -> Step {
        let kind = ['f', 'f', 'd', 'l'][self.rng.below(4) as usize];
        let Some((path, id)) = self.pick(kind) else {
            return Ok(());
        };
        let inode = self.inode(&path)?;
        let uid = self.rng.below(4) as u32 * 1000;
        let change = SetAttr {
            uid: Some(uid),
            ..SetAttr::default()
        };
        self.model.begin(self.log());
        if let Err(e) = self.volume.set_attr(&self.cred, &inode, &change) {
            return self.refused(&e, format_args!("chown {path}"));
        }
        // A new owner takes set-id bits away.
        let mode = self.volume.stat(&inode).perm;
        let node = self.node(id);
        (node.uid, node.mode) = (uid, mode);
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

    fn sync_file(
        &mut self,
        handle: &Arc<Handle>,
        path: &str,
        id: NodeId,
        scope: SyncScope,
    ) -> Step {
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
        self.fsync_directory_at(&path)
    }

    fn fsync_directory_at(&mut self, path: &str) -> Step {
        let inode = self.inode(path)?;
        let handle = self
            .volume
            .open(&self.cred, &inode, OpenFlags::read_only())
            .map_err(|e| format!("open {path}/: {e}"))?;
        handle
            .sync(SyncScope::All)
            .map_err(|e| format!("fsync {path}/: {e}"))?;
        let log = self.recording.marker(format!("fsync {path}/")) + 1;
        let changed = self.names_changed.get(path).copied().unwrap_or(0);
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
