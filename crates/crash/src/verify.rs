//! One crash image against the model.

use crate::ballast;
use crate::model::{Model, NodeId, NodeState, State};
use crate::mounted::{is_f2fs, mount, options};
use blockwright_check::Mode;
use blockwright_check::ext4::CheckOptions;
use blockwright_device::{MemoryDevice, SharedDevice};
use blockwright_f2fs::F2fs;
use blockwright_vfs::engine::Volume as _;
use blockwright_vfs::{Cred, ErrorKind, FileKind, InodeRef, OpenFlags, Vfs};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::process::Command;
use std::sync::Arc;

/// What was done below a directory, in order.
#[derive(Debug)]
pub struct Part {
    /// The directory; nothing but what is in it is said by the model.
    pub below: String,
    /// What was done.
    pub model: Model,
}

impl Part {
    fn holds(&self, path: &str) -> bool {
        path.strip_prefix(&self.below)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// What a volume without damage holds below a directory, as a model begins with it.
///
/// # Errors
/// When it cannot be mounted and read.
pub(crate) fn state_of(
    image: &MemoryDevice,
    below: &str,
) -> Result<(State, BTreeMap<NodeId, Vec<u8>>), String> {
    let volume = mount(Arc::new(image.snapshot()))?;
    let all = Part {
        below: below.to_owned(),
        model: Model::new(),
    };
    let (mut state, mut bytes) = (State::default(), BTreeMap::new());
    for (path, found) in walk(&volume)? {
        if !all.holds(&path) {
            continue;
        }
        state.names.insert(path, found.ino);
        if found.node.kind == 'f' {
            bytes.insert(found.ino, found.bytes);
        }
        state.nodes.insert(found.ino, found.node);
    }
    Ok((state, bytes))
}

/// What was found at a path.
struct Found {
    ino: u64,
    nlink: u32,
    node: NodeState,
    bytes: Vec<u8>,
}

/// Mounts the image, compares it with the model, unmounts, and has it checked. Returns how many files the mount rolled
/// forward.
///
/// # Errors
/// The first thing that is wrong.
pub fn verify(
    image: MemoryDevice,
    model: &[Part],
    cut: usize,
    journal: bool,
    e2fsck: bool,
) -> Result<u64, String> {
    let image = Arc::new(image);
    let device: SharedDevice = image.clone();
    let f2fs = is_f2fs(&device)?;
    if f2fs && cut.is_multiple_of(3) {
        // What a crash left is no damage, and a mount for reading recovers it, too, without writing.
        check_f2fs(&device).map_err(|e| format!("before recovery: {e}"))?;
        let frozen: SharedDevice = Arc::new(image.snapshot());
        let engine = blockwright_f2fs::Options {
            read_only: true,
            ..blockwright_f2fs::Options::default()
        };
        let engine = F2fs::mount(frozen, engine).map_err(|e| format!("mount, read-only: {e}"))?;
        if let Some(why) = engine.read_only_reason() {
            return Err(format!("mount, read-only: {why}"));
        }
        let volume = Vfs::new(engine, Arc::clone(&device), options().1);
        matches_model(&walk(&volume)?, model, cut).map_err(|e| format!("read-only: {e}"))?;
    }
    let mut recovered = 0;
    if journal {
        let volume = mount(Arc::clone(&device))?;
        if let Some(engine) = volume.engine().as_any().downcast_ref::<F2fs>() {
            recovered = engine.fs().recovered.files;
        }
        let tree = walk(&volume)?;
        matches_model(&tree, model, cut)?;
        volume
            .unmount()
            .map_err(|e| format!("unmount after recovery: {e}"))?;
    }
    if f2fs {
        check_f2fs(&device)?;
        if e2fsck {
            run_fsck_f2fs(&image)?;
        }
        return Ok(recovered);
    }
    let mode = if journal { Mode::ReadOnly } else { Mode::Yes };
    let options = CheckOptions {
        mode,
        ..CheckOptions::default()
    };
    let report = blockwright_check::ext4::check(Arc::clone(&device), &options)
        .map_err(|e| format!("check: {e}"))?;
    if journal && !report.is_clean() {
        return Err(the_first(&report.issues));
    }
    if !journal {
        // The repaired volume must mount and be readable to the last byte.
        let volume = mount(image.clone())?;
        walk(&volume)?;
        volume
            .unmount()
            .map_err(|e| format!("unmount after repair: {e}"))?;
    }
    if e2fsck {
        run_e2fsck(&image)?;
    }
    Ok(recovered)
}

/// Our own checker finds nothing but what a mount sets right.
pub(crate) fn check_f2fs(device: &SharedDevice) -> Result<(), String> {
    let options = blockwright_check::f2fs::CheckOptions::default();
    let report = blockwright_check::f2fs::check(Arc::clone(device), &options)
        .map_err(|e| format!("check: {e}"))?;
    if report.is_clean() {
        return Ok(());
    }
    Err(the_first(&report.issues))
}

/// How many issues the checker finds, and the first of them.
fn the_first(issues: &[impl ToString]) -> String {
    let first: Vec<String> = issues.iter().take(5).map(ToString::to_string).collect();
    format!("the checker finds {}: {}", issues.len(), first.join("; "))
}

/// fsck.f2fs finds nothing.
pub(crate) fn run_fsck_f2fs(image: &MemoryDevice) -> Result<(), String> {
    let file = tempfile::NamedTempFile::new().map_err(|e| e.to_string())?;
    image.save(file.path()).map_err(|e| e.to_string())?;
    let out = Command::new("fsck.f2fs")
        .arg("--dry-run")
        .arg(file.path())
        .output()
        .map_err(|e| format!("fsck.f2fs: {e}"))?;
    let text = String::from_utf8_lossy(&out.stdout);
    let bad: Vec<&str> = text
        .lines()
        .filter(|l| {
            ["[Fail]", "ASSERT", "[FIX]", "[ERR"]
                .iter()
                .any(|w| l.contains(w))
        })
        .collect();
    if out.status.success() && bad.is_empty() {
        Ok(())
    } else {
        Err(format!("fsck.f2fs: {}\n{}", out.status, bad.join("\n")))
    }
}

fn run_e2fsck(image: &MemoryDevice) -> Result<(), String> {
    let file = tempfile::NamedTempFile::new().map_err(|e| e.to_string())?;
    image.save(file.path()).map_err(|e| e.to_string())?;
    if !blockwright_oracles::have(&["e2fsck"]) {
        return Ok(());
    }
    let out = Command::new("e2fsck")
        .arg("-fn")
        .arg(file.path())
        .env("PATH", blockwright_oracles::search_path())
        .output()
        .map_err(|e| format!("e2fsck: {e}"))?;
    let said = String::from_utf8_lossy(&out.stdout);
    // What it would rather have, but does not call damage.
    if out.status.success() && !said.contains("could be shorter") {
        Ok(())
    } else {
        Err(format!("e2fsck -fn: {}\n{said}", out.status))
    }
}

fn matches_model(tree: &BTreeMap<String, Found>, parts: &[Part], cut: usize) -> Result<(), String> {
    for part in parts {
        let below = tree.iter().filter(|(path, _)| part.holds(path)).collect();
        matches_part(&below, &part.model, cut)?;
    }
    for path in tree.keys() {
        if !parts.iter().any(|p| p.holds(path)) {
            return Err(format!("{path} is there"));
        }
    }
    Ok(())
}

/// What is below a directory of the volume in use is what was done there.
///
/// # Errors
/// The first difference.
pub(crate) fn is_as_done(volume: &Arc<Vfs>, below: &str, model: &Model) -> Result<(), String> {
    let tree = walk(volume)?;
    let part = Part {
        below: below.to_owned(),
        model: Model::new(),
    };
    let tree: Tree<'_> = tree.iter().filter(|(path, _)| part.holds(path)).collect();
    same_names(&tree, model.now())?;
    for (path, found) in tree {
        let id = model.now().names[path];
        let expected = model.bytes(id);
        if found.node.kind != 'f' || found.bytes == *expected {
            continue;
        }
        let at = found.bytes.iter().zip(&*expected).position(|(a, b)| a != b);
        return Err(format!(
            "{path} has {} bytes, not {}; they differ from {at:?} on ({:02x?}, not {:02x?}); it had: {}",
            found.bytes.len(),
            expected.len(),
            at.map(|at| found.bytes[at]),
            at.map(|at| expected[at]),
            model.notes(id)
        ));
    }
    Ok(())
}

type Tree<'a> = BTreeMap<&'a String, &'a Found>;

fn matches_part(tree: &Tree<'_>, model: &Model, cut: usize) -> Result<(), String> {
    let possible = model.possible(cut);
    let mut why = String::new();
    // Names alone do not always tell how far the volume got: exchanging two files leaves the same ones.
    let mut contents = None;
    for j in possible.clone().rev() {
        for state in model.at(j, cut) {
            match same_names(tree, &state) {
                Ok(()) => match same_contents(tree, &state, model, cut) {
                    Ok(()) => return Ok(()),
                    Err(e) => contents = contents.or(Some(e)),
                },
                Err(e) => {
                    if why.is_empty() || j < possible.start() + 8 {
                        why = format!("{why}\n  not as after operation {j}: {e}");
                    }
                }
            }
        }
    }
    Err(contents.unwrap_or_else(|| {
        format!(
            "the names are those of no state from {possible:?} ({}):{why}",
            model.why(cut)
        )
    }))
}

/// Whether every file has bytes that it may have, if the names are those of `state`.
fn same_contents(tree: &Tree<'_>, state: &State, model: &Model, cut: usize) -> Result<(), String> {
    for (path, entry) in tree {
        if entry.node.kind == 'f' {
            let id = state.names[*path];
            model
                .check_bytes(id, cut, &entry.bytes)
                .map_err(|e| format!("{path}: {e}; it had: {}", model.notes(id)))?;
        }
    }
    Ok(())
}

fn same_names(tree: &Tree<'_>, state: &State) -> Result<(), String> {
    for path in state.names.keys() {
        if !tree.contains_key(path) {
            return Err(format!("{path} is missing"));
        }
    }
    let mut inode_of = BTreeMap::new();
    for (path, found) in tree {
        let Some(id) = state.names.get(*path) else {
            return Err(format!("{path} is there"));
        };
        let node = &state.nodes[id];
        if *node != found.node {
            return Err(format!("{path} is {:?}, not {node:?}", found.node));
        }
        if *inode_of.entry(*id).or_insert(found.ino) != found.ino {
            return Err(format!("{path} is not the same file as its other names"));
        }
        if found.node.kind != 'd' {
            let links = state.names.values().filter(|other| *other == id).count();
            if found.nlink as usize != links {
                return Err(format!("{path} has {} links, not {links}", found.nlink));
            }
        }
    }
    Ok(())
}

fn walk(volume: &Arc<Vfs>) -> Result<BTreeMap<String, Found>, String> {
    let mut tree = BTreeMap::new();
    let root = volume.root().map_err(|e| format!("root: {e}"))?;
    walk_dir(volume, &root, "", &mut tree)?;
    Ok(tree)
}

/// Adds all below a directory to `tree`, by path, with contents and attributes.
fn walk_dir(
    volume: &Arc<Vfs>,
    dir: &InodeRef,
    path: &str,
    tree: &mut BTreeMap<String, Found>,
) -> Result<(), String> {
    let cred = Cred::root();
    let mut names = Vec::new();
    volume
        .readdir(&cred, dir, 0, &mut |entry| {
            if entry.name != b"." && entry.name != b".." {
                names.push(entry.name.to_vec());
            }
            ControlFlow::Continue(())
        })
        .map_err(|e| format!("{path}/: readdir: {e}"))?;
    for name in names {
        let child = format!("{path}/{}", String::from_utf8_lossy(&name));
        if child == "/lost+found" {
            continue;
        }
        let in_ballast = path.strip_prefix('/') == Some(ballast::DIRECTORY);
        let fail = |e: blockwright_vfs::Error| format!("{child}: {e}");
        let inode = volume.lookup(&cred, dir, &name).map_err(fail)?;
        let attr = volume.stat(&inode);
        let mark = match volume.get_xattr(&cred, &inode, b"user.mark") {
            Ok(value) => Some(value),
            Err(e) if e.kind() == ErrorKind::NoAttribute => None,
            Err(e) if attr.kind == FileKind::Symlink && e.kind() == ErrorKind::NotPermitted => None,
            Err(e) => return Err(fail(e)),
        };
        let mut found = Found {
            ino: attr.ino.0,
            nlink: attr.nlink,
            node: NodeState {
                kind: match attr.kind {
                    FileKind::Directory => 'd',
                    FileKind::Symlink => 'l',
                    _ => 'f',
                },
                mode: attr.perm,
                uid: attr.uid,
                mark,
                target: Vec::new(),
            },
            bytes: Vec::new(),
        };
        match attr.kind {
            FileKind::Symlink => found.node.target = volume.read_link(&inode).map_err(fail)?,
            FileKind::Regular => {
                let handle = volume
                    .open(&cred, &inode, OpenFlags::read_only())
                    .map_err(fail)?;
                found.bytes = vec![0; usize::try_from(attr.size).map_err(|e| e.to_string())?];
                let n = handle.read_at(&mut found.bytes, 0).map_err(fail)?;
                if n != found.bytes.len() {
                    return Err(format!("{child}: {n} bytes read of {}", found.bytes.len()));
                }
            }
            _ => {}
        }
        if in_ballast && name.starts_with(ballast::USED_UP.as_bytes()) {
            continue;
        }
        if in_ballast {
            // Only cleaning touched it, so its contents are unchanged.
            let number = child.rsplit('/').next().and_then(|n| n.parse().ok());
            if number.is_none_or(|n| ballast::contents(n) != found.bytes) {
                return Err(format!("{child} is not what it was"));
            }
            continue;
        }
        if child.strip_prefix('/') != Some(ballast::DIRECTORY) {
            tree.insert(child.clone(), found);
        }
        if attr.kind == FileKind::Directory {
            walk_dir(volume, &inode, &child, tree)?;
        }
    }
    Ok(())
}
