//! What is measured: making images from trees, and ordinary work in a mounted volume.

use crate::machine::{drop_caches, have, run, sync_all};
use crate::peers::{self, Peer};
use crate::runner;
use crate::stats::Table;
use crate::trees;
use crate::volumes::{Format, Formats};
use blockwright_fuse::{Control, ControlError};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Where and how.
pub struct Setting {
    /// For images, trees and mount points.
    pub dir: PathBuf,
    /// The program under test.
    pub program: PathBuf,
    /// Small inputs.
    pub quick: bool,
    /// By how much the images of `resize` are smaller than usual.
    pub divisor: u64,
    /// How often.
    pub rounds: usize,
    /// Only workloads with this in their name.
    pub only: Option<String>,
    /// Memory touched by a child right before every timed part: a page that the host took back costs many times
    /// another, and the first peer would pay for it.
    pub touch_bytes: u64,
    /// Formats of ours that are mounted.
    pub formats: Formats,
}

impl Setting {
    /// Whether the user asked for this workload.
    pub fn wanted(&self, name: &str) -> bool {
        self.only.as_deref().is_none_or(|part| name.contains(part))
    }
}

fn timed(job: impl FnOnce() -> Result<(), String>) -> Result<f64, String> {
    let start = Instant::now();
    job()?;
    Ok(start.elapsed().as_secs_f64())
}

fn sync_file(path: &Path) -> Result<(), String> {
    fs::File::open(path)
        .and_then(|f| f.sync_all())
        .map_err(|e| format!("{}: {e}", path.display()))
}

/// A program that makes or changes an image, and how it is called.
pub type Maker<'a> = (&'static str, Box<dyn Fn() -> Result<(), String> + 'a>);

/// `mkfs --from DIR` beside `mke2fs -d DIR`, and mounting in the kernel and `cp -a`; for f2fs beside `mkfs.f2fs` and `sload.f2fs`.
pub fn mkfs(setting: &Setting) -> Result<Vec<Table>, String> {
    let inputs: &[(usize, u64)] = if setting.quick {
        &[(1_000, 33_000_000)]
    } else {
        &[(10_000, 330_000_000), (30_000, 2_000_000_000)]
    };
    let image = setting.dir.join("mkfs.img");
    let mnt = setting.dir.join("mnt");
    fs::create_dir_all(&mnt).map_err(|e| e.to_string())?;
    let mut tables = Vec::new();
    for (files, bytes) in inputs {
        let of = format!("{files} files, {} MB", bytes / 1_000_000);
        let (ext4, f2fs) = (format!("mkfs from {of}"), format!("mkfs -t f2fs from {of}"));
        if !setting.wanted(&ext4) && !setting.wanted(&f2fs) {
            continue;
        }
        let source = trees::tree(&setting.dir, *files, *bytes)?;
        let (real, _) = trees::measure(&source);
        let mebibytes = real * 13 / 10 / 1_048_576 + 200;
        let size = format!("{mebibytes}M");
        let ours = |kind: &'static str| {
            let (source, image, size) = (&source, &image, &size);
            move || {
                run(Command::new(&setting.program)
                    .args(["mkfs", "-q", "-t", kind, "--size", size, "--from"])
                    .arg(source)
                    .arg(image))
            }
        };
        if setting.wanted(&ext4) {
            let mut makers: Vec<Maker<'_>> = vec![
                ("blockwright mkfs --from", Box::new(ours("ext4"))),
                (
                    "mke2fs -d",
                    Box::new(|| {
                        run(Command::new("mke2fs")
                            .args(["-q", "-F", "-t", "ext4", "-d"])
                            .arg(&source)
                            .arg(&image)
                            .arg(&size))
                    }),
                ),
            ];
            if rustix::process::geteuid().is_root() {
                let by_kernel = || {
                    run(Command::new("mke2fs")
                        .args(["-q", "-F", "-t", "ext4"])
                        .arg(&image)
                        .arg(&size))?;
                    let mounted = peers::mount(Peer::Kernel, &setting.program, &image, &mnt)?;
                    run(Command::new("cp").arg("-a").arg(&source).arg(&mnt))?;
                    mounted.unmount()
                };
                makers.push(("mke2fs, kernel mount, cp -a, umount", Box::new(by_kernel)));
            }
            let check = || run(Command::new("e2fsck").arg("-fn").arg(&image));
            let amount = Some((real as f64 / 1e6, "MB"));
            let before = || removed(&image);
            tables.push(in_turn(
                setting, ext4, amount, &image, &makers, before, check,
            )?);
        }
        if setting.wanted(&f2fs) {
            let mut makers: Vec<Maker<'_>> =
                vec![("blockwright mkfs -t f2fs --from", Box::new(ours("f2fs")))];
            if have("sload.f2fs") && have("mkfs.f2fs") {
                let by_tools = || {
                    fs::File::create(&image)
                        .and_then(|f| f.set_len(mebibytes << 20))
                        .map_err(|e| format!("{}: {e}", image.display()))?;
                    run(Command::new("mkfs.f2fs").args(["-q", "-f"]).arg(&image))?;
                    run(Command::new("sload.f2fs")
                        .arg("-f")
                        .arg(&source)
                        .arg(&image))
                };
                makers.push(("mkfs.f2fs, sload.f2fs -f", Box::new(by_tools)));
            } else {
                eprintln!("f2fs-tools are not installed: left out");
            }
            let check = || run(Command::new("fsck.f2fs").arg("--dry-run").arg(&image));
            let amount = Some((real as f64 / 1e6, "MB"));
            let before = || removed(&image);
            tables.push(in_turn(
                setting, f2fs, amount, &image, &makers, before, check,
            )?);
        }
    }
    let _ = fs::remove_file(&image);
    Ok(tables)
}

/// Removes a file if it is there.
pub fn removed(image: &Path) -> Result<(), String> {
    match fs::remove_file(image) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("{}: {e}", image.display()))
        }
        _ => Ok(()),
    }
}

/// Has all programs do their work on the image in turn, round by round, each with an fsync of it. `before` prepares the image
/// for each, without being timed; `check` looks at the first one's first result.
pub fn in_turn(
    setting: &Setting,
    name: String,
    amount: Option<(f64, &'static str)>,
    image: &Path,
    makers: &[Maker<'_>],
    before: impl Fn() -> Result<(), String>,
    check: impl Fn() -> Result<(), String>,
) -> Result<Table, String> {
    let mut seconds: Vec<(String, Vec<f64>)> = makers
        .iter()
        .map(|(name, _)| ((*name).to_owned(), Vec::new()))
        .collect();
    for round in 0..setting.rounds {
        eprintln!("{name}: round {} of {}", round + 1, setting.rounds);
        for (k, (_, make)) in makers.iter().enumerate() {
            before()?;
            sync_all();
            runner::touch(setting.touch_bytes)?;
            seconds[k].1.push(timed(|| {
                make()?;
                sync_file(image)
            })?);
            if (round, k) == (0, 0) {
                check()?;
            }
        }
    }
    Ok(Table {
        name,
        amount,
        seconds,
    })
}

/// One workload in a mounted volume: what it needs there before, and what is timed.
struct Work {
    name: &'static str,
    /// Prepares inside the mount; not timed.
    before: fn(&Input, &Path) -> Result<(), String>,
    /// Remount and drop caches after `before`.
    cold: bool,
    /// What is read outside of the mount while time is taken. It is read once right before, for all alike: otherwise
    /// the first peer after the caches were dropped pays for a cold source.
    source: fn(&Input) -> Option<&Path>,
    timed: fn(&Input, &Path) -> Result<(), String>,
    amount: fn(&Input) -> Option<(f64, &'static str)>,
}

struct Input {
    tree: PathBuf,
    tree_files: u64,
    tar: PathBuf,
    repository: PathBuf,
    stream_bytes: u64,
}

fn nothing(_: &Input, _: &Path) -> Result<(), String> {
    Ok(())
}

/// Makes everything durable, in our mounts too, where the kernel alone does not. fuse2fs cannot be told.
fn syncfs(mnt: &Path) -> Result<(), String> {
    let fail = |e: &dyn std::fmt::Display| format!("{}: {e}", mnt.display());
    match Control::open(mnt).map_err(|e| fail(&e))?.sync() {
        Ok(()) | Err(ControlError::NotOurs) => Ok(()),
        Err(e) => Err(fail(&e)),
    }
}

fn copy_tree(input: &Input, mnt: &Path) -> Result<(), String> {
    run(Command::new("cp")
        .arg("-a")
        .arg(&input.tree)
        .arg(mnt.join("tree")))?;
    syncfs(mnt)
}

fn write_stream(input: &Input, mnt: &Path) -> Result<(), String> {
    let fail = |e: std::io::Error| format!("stream: {e}");
    let mut file = fs::File::create(mnt.join("stream")).map_err(fail)?;
    let block = vec![0x5au8; 1 << 20];
    for _ in 0..input.stream_bytes >> 20 {
        file.write_all(&block).map_err(fail)?;
    }
    file.sync_all().map_err(fail)
}

fn read_stream(_: &Input, mnt: &Path) -> Result<(), String> {
    run(Command::new("dd")
        .arg(format!("if={}", mnt.join("stream").display()))
        .args(["of=/dev/null", "bs=1M"]))
}

fn tree_files(input: &Input) -> Option<(f64, &'static str)> {
    Some((input.tree_files as f64, "files"))
}

const WORKS: &[Work] = &[
    Work {
        name: "cp -a of a source tree, and syncfs",
        before: nothing,
        cold: false,
        source: |i| Some(&i.tree),
        timed: copy_tree,
        amount: tree_files,
    },
    Work {
        name: "tar x, and syncfs",
        before: nothing,
        cold: false,
        source: |i| Some(&i.tar),
        timed: |input, mnt| {
            run(Command::new("tar")
                .arg("xf")
                .arg(&input.tar)
                .arg("-C")
                .arg(mnt))?;
            syncfs(mnt)
        },
        amount: tree_files,
    },
    Work {
        name: "git clone, and syncfs",
        before: nothing,
        cold: false,
        source: |i| Some(&i.repository),
        timed: |input, mnt| {
            run(Command::new("git")
                .args(["clone", "--quiet", "--no-hardlinks"])
                .arg(&input.repository)
                .arg(mnt.join("clone")))?;
            syncfs(mnt)
        },
        amount: |_| None,
    },
    Work {
        name: "find, cold",
        before: copy_tree,
        cold: true,
        source: |_| None,
        timed: |_, mnt| run(Command::new("find").arg(mnt).args(["-ls"])),
        amount: tree_files,
    },
    Work {
        name: "rm -rf, and syncfs",
        before: copy_tree,
        cold: false,
        source: |_| None,
        timed: |_, mnt| {
            run(Command::new("rm").arg("-rf").arg(mnt.join("tree")))?;
            syncfs(mnt)
        },
        amount: tree_files,
    },
    Work {
        name: "streaming write 1M, and fsync",
        before: nothing,
        cold: false,
        source: |_| None,
        timed: write_stream,
        amount: |i| Some((i.stream_bytes as f64 / 1e6, "MB")),
    },
    Work {
        name: "streaming read 1M, cold",
        before: write_stream,
        cold: true,
        source: |_| None,
        timed: read_stream,
        amount: |i| Some((i.stream_bytes as f64 / 1e6, "MB")),
    },
];

/// Ordinary work in a volume mounted by us, by the kernel and by fuse2fs.
pub fn mount(setting: &Setting) -> Result<Vec<Table>, String> {
    let (files, bytes, stream) = if setting.quick {
        (1_000, 33_000_000, 64 << 20)
    } else {
        (10_000, 330_000_000, 2 << 30)
    };
    let tree = trees::tree(&setting.dir, files, bytes)?;
    let tar = setting.dir.join(format!("tree-{files}.tar"));
    if !tar.exists() {
        run(Command::new("tar")
            .arg("cf")
            .arg(&tar)
            .arg("-C")
            .arg(&tree)
            .arg("."))?;
    }
    let repository = repository(&setting.dir, &tree, files)?;
    let (_, tree_files) = trees::measure(&tree);
    let input = Input {
        tree,
        tree_files,
        tar,
        repository,
        stream_bytes: stream,
    };

    let ours = |format: &Format| match format {
        Format::Ext4 => Peer::Blockwright,
        Format::F2fs => Peer::BlockwrightF2fs,
    };
    let mut peers: Vec<Peer> = setting.formats.available().iter().map(ours).collect();
    if rustix::process::geteuid().is_root() {
        peers.push(Peer::Kernel);
    } else {
        eprintln!("not root: the kernel's ext4 is left out");
    }
    if have("fuse2fs") {
        peers.push(Peer::Fuse2fs);
    } else {
        eprintln!("fuse2fs is not installed: left out");
    }
    let image = setting.dir.join("mount.img");
    let image_bytes: u64 = if setting.quick { 1 << 30 } else { 6 << 30 };
    touch(&image, image_bytes)?;
    let mnt = setting.dir.join("mnt");
    let mut tables = Vec::new();
    for work in WORKS.iter().filter(|w| setting.wanted(w.name)) {
        let mut seconds: Vec<(String, Vec<f64>)> = peers
            .iter()
            .map(|p| (p.name().to_owned(), Vec::new()))
            .collect();
        for round in 0..setting.rounds {
            for (k, peer) in peers.iter().enumerate() {
                eprintln!(
                    "{}: round {} of {}: {}",
                    work.name,
                    round + 1,
                    setting.rounds,
                    peer.name()
                );
                let took = one(setting, work, &input, *peer, &image, &mnt)?;
                eprintln!("    {took:.3} s");
                if round == 0 && peer.is_ours() {
                    peer.format().check(&image)?;
                }
                seconds[k].1.push(took);
            }
        }
        tables.push(Table {
            name: work.name.to_owned(),
            amount: (work.amount)(&input),
            seconds,
        });
    }
    let _ = fs::remove_file(&image);
    Ok(tables)
}

fn one(
    setting: &Setting,
    work: &Work,
    input: &Input,
    peer: Peer,
    image: &Path,
    mnt: &Path,
) -> Result<f64, String> {
    peer.format().make(image)?;
    sync_all();
    let mut mounted = peers::mount(peer, &setting.program, image, mnt)?;
    (work.before)(input, mnt)?;
    if work.cold {
        mounted.unmount()?;
        drop_caches();
        mounted = peers::mount(peer, &setting.program, image, mnt)?;
    }
    sync_all();
    runner::touch(setting.touch_bytes)?;
    if let Some(source) = (work.source)(input) {
        trees::warm(source)?;
    }
    let seconds = timed(|| (work.timed)(input, mnt))?;
    mounted.unmount()?;
    Ok(seconds)
}

/// An image file all of whose blocks are allocated and written, so that no peer pays for the host's allocation.
fn touch(image: &Path, bytes: u64) -> Result<(), String> {
    if image.metadata().is_ok_and(|m| m.len() == bytes) {
        return Ok(());
    }
    let fail = |e: std::io::Error| format!("{}: {e}", image.display());
    let mut file = fs::File::create(image).map_err(fail)?;
    let zeroes = vec![0u8; 1 << 20];
    for _ in 0..bytes >> 20 {
        file.write_all(&zeroes).map_err(fail)?;
    }
    file.sync_all().map_err(fail)
}

/// A bare repository with the tree in one commit.
fn repository(dir: &Path, tree: &Path, files: usize) -> Result<PathBuf, String> {
    let repository = dir.join(format!("repository-{files}.git"));
    if repository.join("made").exists() {
        return Ok(repository);
    }
    let _ = fs::remove_dir_all(&repository);
    let git = |args: &[&str]| {
        run(Command::new("git")
            .env("GIT_DIR", &repository)
            .env("GIT_WORK_TREE", tree)
            .args([
                "-c",
                "user.name=bench",
                "-c",
                "user.email=bench@localhost",
                "-c",
                "gc.auto=0",
            ])
            .args(args))
    };
    git(&["init", "--quiet"])?;
    git(&["add", "--all"])?;
    git(&["commit", "--quiet", "-m", "tree"])?;
    git(&["config", "core.bare", "true"])?;
    fs::write(repository.join("made"), b"").map_err(|e| e.to_string())?;
    Ok(repository)
}
