//! Both sides of the comparison: the volume, the tree, and the open files.

mod compare;
mod contents;

use crate::ops::Op;
use crate::tree::{Body, Entry, Id, Node, ROOT, Tree};
use blockwright::{
    Error, ErrorKind, File, FileType, OpenOptions, RenameMode, Result as VolumeResult, Times,
    Timestamp, Volume, VolumeOptions, XattrMode,
};
use compare::{compare_file, segments};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const SLOTS: usize = 6;
/// Files stay so small that volumes do not fill up.
const FILE_BYTES_MAX: usize = 1 << 20;

type Step = Result<(), String>;

pub struct World {
    volume: Option<Volume>,
    tree: Tree,
    open: BTreeMap<usize, (File, Id)>,
    image: PathBuf,
    block: usize,
    inline: bool,
    /// Whether files have extents: block-mapped ones can do less.
    extents: bool,
    options: VolumeOptions,
    /// A tunable and its value.
    tuned: Option<(&'static str, u64)>,
}

fn name_of(name: u8) -> String {
    match name {
        0..16 => format!("n{name}"),
        16..20 => format!("{}{name}", "long-".repeat(30)),
        _ => format!("{}{name}", "x".repeat(253)),
    }
}

fn data_of(salt: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i as u8).wrapping_mul(13) ^ salt ^ (i >> 8) as u8)
        .collect()
}

/// Both must work, or both must fail with one of the kinds.
fn agree<T>(
    what: &str,
    real: VolumeResult<T>,
    want: Result<(), &[ErrorKind]>,
) -> Result<Option<T>, String> {
    match (real, want) {
        (Ok(value), Ok(())) => Ok(Some(value)),
        (Err(e), Err(kinds)) if kinds.contains(&e.kind()) => Ok(None),
        (Ok(_), Err(kinds)) => Err(format!("{what}: worked, expected {kinds:?}")),
        (Err(e), want) => Err(format!("{what}: {:?}: {e}, expected {want:?}", e.kind())),
    }
}

fn say(what: &str) -> impl Fn(Error) -> String + '_ {
    move |e| format!("{what}: {:?}: {e}", e.kind())
}

impl World {
    pub fn new(
        image: &Path,
        block: u32,
        inline: bool,
        extents: bool,
        lost_and_found: bool,
        options: VolumeOptions,
        tuned: Option<(&'static str, u64)>,
    ) -> Self {
        let mut world = World {
            volume: None,
            tree: Tree::new(),
            open: BTreeMap::new(),
            image: image.to_owned(),
            block: block as usize,
            inline,
            extents,
            options,
            tuned,
        };
        world.reopen().expect("opens");
        if !lost_and_found {
            // The format makes none: the same tree for all.
            let made = world.v().create_dir_mode("/lost+found", 0o700);
            made.expect("a directory");
        }
        let mut found = Node::new(Body::Dir(BTreeMap::new()), 0o700);
        found.names = 2;
        let id = world.tree.add(found);
        world.tree.names_mut(ROOT).insert("lost+found".into(), id);
        world
    }

    fn v(&self) -> &Volume {
        self.volume.as_ref().expect("open between operations")
    }

    fn reopen(&mut self) -> Step {
        self.open.clear();
        if let Some(volume) = self.volume.take() {
            volume.close().map_err(say("close"))?;
        }
        let volume = self.options.open(&self.image).map_err(say("open volume"))?;
        if let Some((name, value)) = self.tuned {
            let result = volume.vfs().tune(name, value);
            result.map_err(|e| format!("tune {name}={value}: {e}"))?;
        }
        self.volume = Some(volume);
        Ok(())
    }

    /// f2fs: moves the blocks of a section or two, with which nothing that can be seen changes.
    pub fn clean(&self) {
        let engine = self.v().vfs().engine().as_any();
        if let Some(f2fs) = engine.downcast_ref::<blockwright_f2fs::F2fs>() {
            f2fs.fs().cleaning.clean_sections(2);
            assert_eq!(
                f2fs.fs().volume.error_count(),
                0,
                "{:?}",
                f2fs.fs().volume.latest_error()
            );
        }
    }

    pub fn finish(&mut self) -> Step {
        self.check_all()?;
        self.reopen()?;
        self.check_all()?;
        self.volume
            .take()
            .map_or(Ok(()), |v| v.close().map_err(say("close")))
    }

    fn dir(&self, n: usize) -> (Id, String) {
        let dirs = self.tree.dirs();
        dirs[n % dirs.len()].clone()
    }

    /// An entry other than lost+found.
    fn entry(&self, n: usize) -> Option<Entry> {
        let mut all = self.tree.entries();
        all.retain(|e| e.path != "/lost+found");
        (!all.is_empty()).then(|| all[n % all.len()].clone())
    }

    fn file(&self, n: usize) -> Option<Entry> {
        let mut all = self.tree.entries();
        all.retain(|e| self.tree.node(e.id).is_file());
        (!all.is_empty()).then(|| all[n % all.len()].clone())
    }

    fn open_rw(&self, e: &Entry) -> Result<File, String> {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(self.v(), &e.path)
            .map_err(say("open"))
    }

    pub fn apply(&mut self, op: &Op) -> Step {
        match *op {
            Op::Create { dir, name } => self.create(dir, name, Body::File(Vec::new())),
            Op::Mkdir { dir, name } => self.create(dir, name, Body::Dir(BTreeMap::new())),
            Op::Symlink { dir, name, len } => {
                self.create(dir, name, Body::Symlink("t".repeat(len)))
            }
            Op::Fifo { dir, name } => self.create(dir, name, Body::Fifo),
            Op::Link { node, dir, name } => self.link(node, dir, name),
            Op::Remove { node } => self.remove(node),
            Op::Rename {
                node,
                dir,
                name,
                mode,
            } => {
                let Some(from) = self.entry(node) else {
                    return Ok(());
                };
                let (dir, path) = self.dir(dir);
                self.rename(&from, dir, &path, &name_of(name), mode)
            }
            Op::RenameOver { node, onto, mode } => {
                let (Some(from), Some(onto)) = (self.entry(node), self.entry(onto)) else {
                    return Ok(());
                };
                let parent = onto.path.rsplit_once('/').map_or("", |p| p.0).to_owned();
                self.rename(&from, onto.dir, &parent, &onto.name, mode)
            }
            Op::Open { file, slot, direct } => self.open_slot(file, slot, direct),
            Op::Close { slot } => {
                self.open.remove(&(slot % SLOTS));
                Ok(())
            }
            Op::WriteOpen {
                slot,
                at,
                len,
                salt,
            } => self.write_open(slot, at, len, salt),
            Op::Chmod { .. } | Op::Chown { .. } | Op::SetTimes { .. } => self.attributes(op),
            Op::SetXattr { .. } | Op::RemoveXattr { .. } => self.xattr(op),
            Op::ManyFiles { dir, count } => self.many(dir, count),
            Op::RemoveTree { node } => self.remove_tree(node),
            Op::Sync => self.v().sync().map_err(say("sync")),
            Op::DropCaches => {
                self.v().vfs().drop_caches();
                Ok(())
            }
            Op::Reopen => self.reopen().and_then(|()| self.check_all()),
            Op::CheckAll => self.check_all(),
            Op::CopyRange {
                from,
                to,
                at,
                to_at,
                len,
            } => self.copy_range(from, to, at, to_at, len),
            _ => self.contents(op),
        }
    }

    // ---- names ----

    fn create(&mut self, dir: usize, name: u8, body: Body) -> Step {
        let (dir, path) = self.dir(dir);
        let name = name_of(name);
        let path = format!("{path}/{name}");
        let want: Result<(), &[ErrorKind]> = match self.tree.names(dir).contains_key(&name) {
            true => Err(&[ErrorKind::Exists]),
            false => Ok(()),
        };
        let (real, perm) = match &body {
            Body::File(_) => (
                OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .open(self.v(), &path)
                    .map(|_| ()),
                0o644,
            ),
            Body::Dir(_) => (self.v().create_dir(&path), 0o755),
            Body::Symlink(target) => (self.v().symlink(target, &path), 0o777),
            Body::Fifo => (self.v().mknod(&path, FileType::Fifo, 0o640, 0), 0o640),
        };
        if agree("create", real, want)?.is_some() {
            let mut node = Node::new(body, perm);
            let parent = self.tree.node(dir);
            // A set-gid directory hands its group on, and to directories the bit as well.
            if parent.perm & 0o2000 != 0 {
                node.owner.1 = parent.owner.1;
                if node.is_dir() {
                    node.perm |= 0o2000;
                }
            }
            let id = self.tree.add(node);
            self.tree.names_mut(dir).insert(name, id);
            self.tree.touched(dir);
        }
        Ok(())
    }

    fn link(&mut self, node: usize, dir: usize, name: u8) -> Step {
        let Some(from) = self.entry(node) else {
            return Ok(());
        };
        let (dir, path) = self.dir(dir);
        let name = name_of(name);
        let exists = self.tree.names(dir).contains_key(&name);
        let want: Result<(), &[ErrorKind]> = match (self.tree.node(from.id).is_dir(), exists) {
            (true, _) => Err(&[ErrorKind::NotPermitted, ErrorKind::Exists]),
            (_, true) => Err(&[ErrorKind::Exists]),
            _ => Ok(()),
        };
        let real = self.v().hard_link(&from.path, format!("{path}/{name}"));
        if agree("link", real, want)?.is_some() {
            self.tree.node_mut(from.id).names += 1;
            self.tree.names_mut(dir).insert(name, from.id);
            self.tree.touched(dir);
        }
        Ok(())
    }

    fn remove(&mut self, node: usize) -> Step {
        let Some(e) = self.entry(node) else {
            return Ok(());
        };
        let is_dir = self.tree.node(e.id).is_dir();
        let full = is_dir && !self.tree.names(e.id).is_empty();
        let real = match is_dir {
            true => self.v().remove_dir(&e.path),
            false => self.v().remove_file(&e.path),
        };
        let want: Result<(), &[ErrorKind]> = match full {
            true => Err(&[ErrorKind::NotEmpty]),
            false => Ok(()),
        };
        if agree("remove", real, want)?.is_some() {
            self.forget(&e);
        }
        Ok(())
    }

    fn forget(&mut self, e: &Entry) {
        self.tree.names_mut(e.dir).remove(&e.name);
        self.tree.touched(e.dir);
        self.tree.node_mut(e.id).names -= 1;
    }

    fn remove_tree(&mut self, node: usize) -> Step {
        let Some(e) = self.entry(node) else {
            return Ok(());
        };
        if !self.tree.node(e.id).is_dir() {
            return Ok(());
        }
        self.v()
            .remove_dir_all(&e.path)
            .map_err(say("remove tree"))?;
        let inside = format!("{}/", e.path);
        for below in self.tree.entries().iter().rev() {
            if below.path.starts_with(&inside) {
                self.forget(below);
            }
        }
        self.forget(&e);
        Ok(())
    }

    fn rename(
        &mut self,
        from: &Entry,
        dir: Id,
        parent: &str,
        name: &str,
        mode: RenameMode,
    ) -> Step {
        let target = self.tree.names(dir).get(name).copied();
        let t = &self.tree;
        let is_dir = t.node(from.id).is_dir();
        let mut kinds: Vec<ErrorKind> = Vec::new();
        let same = target == Some(from.id);
        if is_dir && t.is_below(dir, from.id) {
            kinds.push(ErrorKind::Invalid);
        }
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => kinds.push(ErrorKind::Exists),
            (RenameMode::Exchange, None) => kinds.push(ErrorKind::NotFound),
            (RenameMode::Exchange, Some(target))
                if t.node(target).is_dir() && t.is_below(from.dir, target) =>
            {
                kinds.extend([ErrorKind::Invalid, ErrorKind::NotEmpty]);
            }
            (RenameMode::Replace, Some(target)) if !same => {
                let onto_dir = t.node(target).is_dir();
                if t.node(target).is_dir() && t.is_below(from.dir, target) {
                    kinds.push(ErrorKind::NotEmpty);
                }
                match (is_dir, onto_dir) {
                    (true, false) => kinds.push(ErrorKind::NotDirectory),
                    (false, true) => kinds.extend([ErrorKind::IsDirectory, ErrorKind::NotEmpty]),
                    (true, true) if !t.names(target).is_empty() => kinds.push(ErrorKind::NotEmpty),
                    _ => {}
                }
            }
            _ => {}
        }
        // A name renamed to itself, and a name to another one of the same file: nothing happens.
        let nothing = same && mode != RenameMode::NoReplace;
        let want: Result<(), &[ErrorKind]> = match kinds.is_empty() || nothing && !is_dir {
            true => Ok(()),
            false => Err(&kinds),
        };
        let to = format!("{parent}/{name}");
        let real = self.v().rename_with(&from.path, &to, mode);
        let what = format!("rename {} to {to} ({mode:?})", from.path);
        if agree(&what, real, want)?.is_none() || nothing {
            return Ok(());
        }
        self.tree.touched(from.dir);
        self.tree.touched(dir);
        match (mode, target) {
            (RenameMode::Exchange, Some(target)) => {
                self.tree
                    .names_mut(from.dir)
                    .insert(from.name.clone(), target);
                self.tree.names_mut(dir).insert(name.to_owned(), from.id);
                // Directories' ".." may have changed.
                for id in [target, from.id] {
                    if self.tree.node(id).is_dir() {
                        self.tree.touched(id);
                    }
                }
            }
            (_, target) => {
                if let Some(target) = target {
                    self.tree.node_mut(target).names -= 1;
                }
                self.tree.names_mut(from.dir).remove(&from.name);
                self.tree.names_mut(dir).insert(name.to_owned(), from.id);
                if is_dir {
                    self.tree.touched(from.id);
                }
            }
        }
        Ok(())
    }

    fn many(&mut self, dir: usize, count: usize) -> Step {
        let (dir, path) = self.dir(dir);
        for i in 0..count {
            let name = format!("many-{i}-{}", "m".repeat(40 + i % 80));
            if self.tree.names(dir).contains_key(&name) {
                continue;
            }
            let file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(self.v(), format!("{path}/{name}"));
            file.map_err(say("many files"))?;
            let mut node = Node::new(Body::File(Vec::new()), 0o644);
            let parent = self.tree.node(dir);
            if parent.perm & 0o2000 != 0 {
                node.owner.1 = parent.owner.1;
            }
            let id = self.tree.add(node);
            self.tree.names_mut(dir).insert(name, id);
            self.tree.touched(dir);
        }
        Ok(())
    }

    // ---- contents ----

    fn open_slot(&mut self, file: usize, slot: usize, direct: bool) -> Step {
        let Some(e) = self.file(file) else {
            return Ok(());
        };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .direct(direct)
            .open(self.v(), &e.path)
            .map_err(say("open"))?;
        self.open.insert(slot % SLOTS, (file, e.id));
        Ok(())
    }

    fn write_open(&mut self, slot: usize, at: usize, len: usize, salt: u8) -> Step {
        let Some((file, id)) = self.open.get(&(slot % SLOTS)) else {
            return Ok(());
        };
        let (at, len) = if file.handle().flags().direct {
            (at & !4095, (len + 4095) & !4095)
        } else {
            (at, len)
        };
        let data = data_of(salt, len);
        file.write_all_at(&data, at as u64)
            .map_err(say("write to an open file"))?;
        let id = *id;
        self.tree.write(id, at, &data);
        let (file, id) = &self.open[&(slot % SLOTS)];
        compare_file("an open file", file, self.tree.node(*id).bytes())
    }

    /// Whether a failure is because this kind of file cannot do the operation.
    fn excused(&self, e: &Error) -> bool {
        e.kind() == ErrorKind::Unsupported && (self.inline || !self.extents)
    }

    // ---- attributes ----

    fn attributes(&mut self, op: &Op) -> Step {
        let (Op::Chmod { node, .. } | Op::Chown { node, .. } | Op::SetTimes { node, .. }) = op
        else {
            return Ok(());
        };
        let Some(e) = self.entry(*node) else {
            return Ok(());
        };
        let v = self.v();
        let is_link = matches!(self.tree.node(e.id).body, Body::Symlink(_));
        match *op {
            Op::Chmod { mode, .. } if !is_link => {
                v.set_permissions(&e.path, mode).map_err(say("chmod"))?;
                self.tree.node_mut(e.id).perm = mode;
            }
            Op::Chown { uid, gid, .. } => {
                v.lchown(&e.path, Some(uid), Some(gid))
                    .map_err(say("chown"))?;
                let perm = v
                    .symlink_metadata(&e.path)
                    .map_err(say("stat"))?
                    .permissions();
                let node = self.tree.node_mut(e.id);
                node.owner = (uid, gid);
                // Set-id bits may be taken off; which, depends on the kind and on who asks.
                if perm & !0o6000 != node.perm & !0o6000 || perm & !node.perm != 0 {
                    return Err(format!("chown: mode {:o} became {perm:o}", node.perm));
                }
                node.perm = perm;
            }
            Op::SetTimes { secs, nanos, .. } => {
                let nanos = nanos % 1_000_000_000;
                let t = Timestamp { secs, nanos };
                v.set_symlink_times(&e.path, Times::new().modified_at(t).accessed_at(t))
                    .map_err(say("set times"))?;
                self.tree.node_mut(e.id).mtime = Some((secs, nanos));
            }
            _ => {}
        }
        Ok(())
    }

    fn xattr(&mut self, op: &Op) -> Step {
        let (Op::SetXattr { node, .. } | Op::RemoveXattr { node, .. }) = op else {
            return Ok(());
        };
        let Some(e) = self.entry(*node) else {
            return Ok(());
        };
        // The user space is for files and directories alone; links are followed by these methods.
        if !matches!(self.tree.node(e.id).body, Body::File(_) | Body::Dir(_)) {
            return Ok(());
        }
        match *op {
            Op::SetXattr {
                name, len, salt, ..
            } => {
                let name = format!("user.{}", "k".repeat(1 + usize::from(name)));
                let value = data_of(salt, len);
                match self.v().set_xattr(&e.path, &name, &value, XattrMode::Any) {
                    // The room for attributes of one file is small.
                    Err(e) if e.kind() == ErrorKind::NoSpace => {}
                    real => {
                        real.map_err(say("set xattr"))?;
                        self.tree.node_mut(e.id).xattrs.insert(name, value);
                    }
                }
            }
            Op::RemoveXattr { name, .. } => {
                let name = format!("user.{}", "k".repeat(1 + usize::from(name)));
                let want: Result<(), &[ErrorKind]> =
                    match self.tree.node(e.id).xattrs.contains_key(&name) {
                        true => Ok(()),
                        false => Err(&[ErrorKind::NoAttribute]),
                    };
                let real = self.v().remove_xattr(&e.path, &name);
                agree("remove xattr", real, want)?;
                self.tree.node_mut(e.id).xattrs.remove(&name);
            }
            _ => {}
        }
        Ok(())
    }
}
