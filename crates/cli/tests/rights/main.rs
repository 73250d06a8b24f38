//! Rights side by side with the kernel's ext4: every operation, by every kind of user, on files with all set-id bits, plain,
//! immutable and append-only. The errno and the mode afterwards must be the same, also after a remount.

mod actors;
#[path = "../common/mod.rs"]
mod common;
mod ops;

use actors::{Actors, GROUP, OWNER, Who};
use common::{KernelMount, Mounted, Scratch, check_clean, have, have_fuse, have_kernel};
use ops::{DIRECTORIES, FILE_BYTES, HANDLES, NAMES, OPENS, beside};
use rustix::fs::{Gid, IFlags, OFlags, Uid, XattrFlags};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// How a file is protected when it is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Protection {
    Plain,
    Immutable,
    Append,
}

impl Protection {
    const ALL: [Self; 3] = [Self::Plain, Self::Immutable, Self::Append];

    fn flag(self) -> IFlags {
        match self {
            Self::Plain => IFlags::empty(),
            Self::Immutable => IFlags::IMMUTABLE,
            Self::Append => IFlags::APPEND,
        }
    }
}

/// A row of the table.
#[derive(Clone, Copy, Debug)]
enum Op {
    Open(#[expect(dead_code, reason = "shown")] &'static str, OFlags),
    /// Opened when already protected.
    Handle(&'static str),
    /// Opened, and written to, before it was protected and had its mode.
    Opened(&'static str),
    Name(&'static str),
    Directory(&'static str),
}

/// All that decides about an outcome.
#[derive(Clone, Copy, Debug)]
struct Cell {
    op: Op,
    who: Who,
    mode: u32,
    protection: Protection,
}

/// What became of it: how the operation went, mode and size (of a file) at once and after a remount.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Seen {
    outcome: String,
    now: String,
    later: String,
}

/// Every this many cells are tried once more. Prime to what the table is made of.
const PART: usize = 7;

/// Set-id bits with and without the group's execute bit. Every user may write.
const FILE_MODES: [u32; 3] = [0o6777, 0o6767, 0o2676];
const DIRECTORY_MODES: [u32; 2] = [0o2777, 0o1777];

fn table() -> Vec<Cell> {
    let mut ops: Vec<Op> = OPENS.iter().map(|(name, f)| Op::Open(name, *f)).collect();
    ops.extend(HANDLES.map(Op::Handle));
    // A store to a page that may not be changed any more is a signal on the kernel's ext4.
    let opened = HANDLES.into_iter().filter(|op| *op != "mmap write");
    ops.extend(opened.map(Op::Opened));
    ops.extend(NAMES.map(Op::Name));
    ops.extend(DIRECTORIES.map(Op::Directory));
    let mut cells = Vec::new();
    for op in ops {
        for who in Who::ALL {
            for protection in Protection::ALL {
                let modes: &[u32] = match op {
                    Op::Directory(_) => &DIRECTORY_MODES,
                    _ if protection == Protection::Plain => &FILE_MODES,
                    // Nothing is changed, so the bits stay.
                    _ => &FILE_MODES[..1],
                };
                cells.extend(modes.iter().map(|&mode| Cell {
                    op,
                    who,
                    mode,
                    protection,
                }));
            }
        }
    }
    cells
}

fn own(path: &Path, mode: u32) {
    let (uid, gid) = (Uid::from_raw(OWNER), Gid::from_raw(GROUP));
    rustix::fs::chown(path, Some(uid), Some(gid)).expect("an owner");
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
}

fn protect(path: &Path, protection: Protection) {
    if protection != Protection::Plain {
        let dir = File::open(path).expect("there");
        let old = rustix::fs::ioctl_getflags(&dir).expect("flags");
        rustix::fs::ioctl_setflags(&dir, old | protection.flag()).expect("protected");
    }
}

fn prepare(path: &Path, cell: &Cell) {
    let note = |path: &Path| {
        rustix::fs::setxattr(path, "user.x", b"old", XattrFlags::empty()).expect("an attribute");
    };
    if let Op::Directory(op) = cell.op {
        fs::create_dir(path).expect("a directory");
        if op != "rmdir itself" {
            fs::write(path.join("in"), b"contents").expect("a file");
            own(&path.join("in"), 0o666);
            fs::create_dir(path.join("sub")).expect("a directory");
            own(&path.join("sub"), 0o777);
        }
    } else {
        let mut file = File::create(path).expect("a file");
        file.write_all(&[1; FILE_BYTES as usize]).expect("contents");
    }
    note(path);
    own(path, cell.mode);
}

fn mode_alone(path: &Path) -> String {
    use rustix::fs::{AtFlags, CWD, StatxFlags};
    match rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::MODE) {
        Ok(found) => format!("{:o}", found.stx_mode),
        Err(_) => "-".into(),
    }
}

fn state(path: &Path) -> String {
    let one = |path: &Path| match fs::symlink_metadata(path) {
        Ok(m) if m.is_file() => format!("{:o} {}:{} {}", m.mode(), m.uid(), m.gid(), m.len()),
        Ok(m) => format!("{:o} {}:{}", m.mode(), m.uid(), m.gid()),
        Err(_) => "-".into(),
    };
    format!("{} | {}", one(path), one(&beside(path, ".new")))
}

/// Runs all cells in a directory.
fn run(actors: &Actors, dir: &Path, cells: &[Cell]) -> Vec<Seen> {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).expect("open to all");
    fs::write(dir.join("source"), [5; 8192]).expect("a source");
    let mut all = Vec::new();
    for (n, cell) in cells.iter().enumerate() {
        let path = dir.join(format!("c{n}"));
        prepare(&path, cell);
        let there = path.clone();
        let opened = match cell.op {
            Op::Opened(op) => {
                // A kernel remembers that there was nothing to take off.
                own(&path, 0o666);
                let opened = actors.run(cell.who, move || ops::used_handle(op, &there));
                own(&path, cell.mode);
                Some(opened)
            }
            _ => None,
        };
        protect(&path, cell.protection);
        let (there, cell_op) = (path.clone(), cell.op);
        let gid = cell.who.ids().1;
        let result = actors.run(cell.who, move || match cell_op {
            Op::Open(_, flags) => ops::open_only(&there, flags),
            Op::Handle(op) => ops::with_handle(op, &there, &ops::handle(op, &there)?),
            Op::Opened(op) => ops::with_handle(op, &there, &opened.expect("opened")?),
            Op::Name(op) | Op::Directory(op) => ops::by_name(op, &there, gid),
        });
        all.push(Seen {
            outcome: result.err().unwrap_or_else(|| "ok".into()),
            // What is asked for nothing but the mode is answered from what the kernel remembers.
            now: format!("{} {}", mode_alone(&path), state(&path)),
            later: String::new(),
        });
    }
    all
}

/// States as they are after a remount; takes protection off, so that everything can be removed.
fn look_again(dir: &Path, seen: &mut [Seen]) {
    for (n, one) in seen.iter_mut().enumerate() {
        one.later = state(&dir.join(format!("c{n}")));
    }
}

fn on_kernel(scratch: &Scratch, mountpoint: &Path, actors: &Actors, cells: &[Cell]) -> Vec<Seen> {
    let image = scratch.path("kernel.img");
    common::mke2fs(&image, &["-t", "ext4", "-N", "8192"], "192M");
    let mounted = KernelMount::new(&image, mountpoint, "");
    let mut seen = run(actors, mountpoint, cells);
    drop(mounted);
    let mounted = KernelMount::new(&image, mountpoint, "");
    look_again(mountpoint, &mut seen);
    drop(mounted);
    seen
}

fn on_ours(
    scratch: &Scratch,
    mountpoint: &Path,
    actors: &Actors,
    cells: &[Cell],
    (format, options): (&str, &str),
) -> Vec<Seen> {
    let image = scratch.path("ours.img");
    let _ = fs::remove_file(&image);
    let mut mkfs = common::program();
    mkfs.args(["mkfs", "--quiet", "-F", "-t", format, "--size", "192M"]);
    if format == "ext4" {
        mkfs.args(["-N", "8192"]);
    }
    common::ok(mkfs.arg(&image));
    let options = format!("allow_other,{options}");
    let mounted = Mounted::new(&image, mountpoint, &options);
    let mut seen = run(actors, mountpoint, cells);
    mounted.unmount();
    let mounted = Mounted::new(&image, mountpoint, &options);
    look_again(mountpoint, &mut seen);
    mounted.unmount();
    check_clean(&image, format);
    seen
}

/// What cannot be the same, and why.
fn known_difference(cell: &Cell, kernel: &Seen, ours: &Seen) -> Option<&'static str> {
    let taken = kernel.outcome == "write: EPERM" && ours.outcome == "ok";
    match cell.op {
        Op::Name("chown none") => Some(
            "the kernel's FUSE client does not tell of a chown that names neither owner nor group",
        ),
        Op::Name("times omit/now") if ours.outcome == "ok" => Some(
            "the kernel's FUSE client sends it as the times that it keeps itself: taken when they say nothing new, or of a file that is being written",
        ),
        Op::Opened("write" | "write beyond" | "append write")
            if taken && cell.protection == Protection::Immutable && cell.who == Who::Root =>
        {
            Some(
                "the kernel's cache takes writes of a handle that was open before, and knows no flags",
            )
        }
        _ => None,
    }
}

fn compare(what: &str, cells: &[Cell], kernel: &[Seen], ours: &[Seen]) -> usize {
    let mut bad = 0;
    let mut known: BTreeMap<&str, usize> = BTreeMap::new();
    for ((cell, theirs), ours) in cells.iter().zip(kernel).zip(ours) {
        if theirs == ours {
            continue;
        }
        if let Some(why) = known_difference(cell, theirs, ours) {
            *known.entry(why).or_default() += 1;
            continue;
        }
        bad += 1;
        println!("{what}: {cell:?}\n   kernel {theirs:?}\n   ours   {ours:?}");
    }
    for (why, count) in known {
        println!("{what}: {count} cells differ: {why}");
    }
    bad
}

#[test]
fn everybody_may_do_what_the_kernels_ext4_lets_them() {
    if !have_fuse() || !have_kernel() || !have("mke2fs") || !have("losetup") {
        return;
    }
    let scratch = Scratch::new();
    // Not in the scratch directory, to which others may have no way.
    let place = tempfile::tempdir().expect("a directory");
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).expect("open");
    let actors = Actors::new();
    let mut cells = table();
    if let Ok(only) = std::env::var("RIGHTS_ONLY") {
        cells.retain(|cell| format!("{cell:?}").contains(&only));
    }
    let kernel = on_kernel(&scratch, place.path(), &actors, &cells);
    let mut bad = 0;
    // Formats and transports have nothing to do with each other here: each has the whole table once, and a part of it once more.
    for (format, options, step) in [
        ("ext4", "transport=io_uring", 1),
        ("f2fs", "transport=dev_fuse", 1),
        ("ext4", "transport=dev_fuse", PART),
        ("f2fs", "transport=io_uring", PART),
    ] {
        if options == "transport=io_uring" && !uring_is_on() {
            continue;
        }
        let part: Vec<Cell> = cells.iter().copied().step_by(step).collect();
        let theirs: Vec<Seen> = kernel.iter().cloned().step_by(step).collect();
        let ours = on_ours(&scratch, place.path(), &actors, &part, (format, options));
        let what = format!("{format} {options}");
        bad += compare(&what, &part, &theirs, &ours);
    }
    println!("{} cells", cells.len());
    assert_eq!(bad, 0, "of {} cells", cells.len());
}

fn uring_is_on() -> bool {
    let on = fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    let on = on.is_ok_and(|on| on.trim() == "Y");
    if !on {
        blockwright_oracles::leave("FUSE over io_uring is not switched on");
    }
    on
}
