//! `blockwright-bench f2fs-mounts`: how long an f2fs volume takes to mount: after 1 GiB that was fsynced and that no
//! checkpoint has, and when it is 16 TiB large.
//!
//! What is recovered is written by a child that dies right after the last fsync, as in a crash. Each round recovers a fresh
//! volume, because the first mount ends with a checkpoint. Images are files that are opened with O_DIRECT.

use crate::stats::median;
use blockwright::{Format, OpenOptions, Volume, VolumeBuilder, VolumeOptions};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// Of each small file.
const EACH: u64 = 52 << 10;

/// What to do.
#[derive(clap::Args, Debug)]
pub struct MountsArgs {
    /// Mounts of each kind
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// MiB that are fsynced before the crash
    #[arg(long, default_value_t = 1024)]
    mib: u64,
    /// Where images are put (needs about 2 GB; not a tmpfs)
    #[arg(long)]
    dir: PathBuf,
    /// For the child: the volume that is written to, until it dies
    #[arg(long, hide = true)]
    dying: Option<PathBuf>,
    /// For the child: many small files rather than a large one
    #[arg(long, hide = true)]
    small: bool,
}

/// Measures all.
///
/// # Errors
/// A sentence.
pub fn run(args: &MountsArgs) -> Result<(), String> {
    if let Some(image) = &args.dying {
        return die(image, args.mib * MIB, args.small);
    }
    println!("{}", crate::machine::describe());
    println!("| volume | mounts | median s | min–max s | recovered |\n|---|---|---|---|---|");
    std::fs::create_dir_all(&args.dir).map_err(|e| format!("{}: {e}", args.dir.display()))?;
    let image = args.dir.join("f2fs-mounts.img");
    let result = measure(args, &image);
    // It may not have been made.
    let _gone = std::fs::remove_file(&image);
    result
}

fn measure(args: &MountsArgs, image: &Path) -> Result<(), String> {
    let mib = args.mib;
    let kinds = [
        (
            false,
            format!("{mib} MiB in one file, an fsync for each MiB"),
        ),
        (
            true,
            format!("{mib} MiB in new files of 52 KiB, each fsynced"),
        ),
    ];
    for (small, name) in kinds {
        let mut seconds = Vec::new();
        let mut found = String::new();
        for _ in 0..args.rounds {
            make(image, (2 * mib * MIB).max(GIB))?;
            crash(args, image, small)?;
            let (time, recovered) = mount(image)?;
            // The first fsync behind mkfs's checkpoint, which has no version to tell nodes by, writes another.
            let files = if small { mib * MIB / EACH - 1 } else { 1 };
            if recovered.0 != files {
                return Err(format!("{name}: {} files were recovered", recovered.0));
            }
            seconds.push(time.as_secs_f64());
            found = format!("{} files, {} nodes", recovered.0, recovered.1);
        }
        row(&name, &seconds, &found);
    }
    let bytes = 16 * TIB - 64 * MIB;
    make(image, bytes)?;
    let mut seconds = Vec::new();
    for _ in 0..args.rounds {
        seconds.push(mount(image)?.0.as_secs_f64());
    }
    row("16 TiB, sparse, empty", &seconds, "–");
    Ok(())
}

fn row(name: &str, seconds: &[f64], found: &str) {
    let min = seconds.iter().copied().fold(f64::INFINITY, f64::min);
    let max = seconds.iter().copied().fold(0.0, f64::max);
    let (n, middle) = (seconds.len(), median(seconds));
    println!("| {name} | {n} | {middle:.3} | {min:.3}–{max:.3} | {found} |");
}

fn make(image: &Path, bytes: u64) -> Result<(), String> {
    let fail = |e: &dyn std::fmt::Display| format!("{}: {e}", image.display());
    let file = std::fs::File::create(image).map_err(|e| fail(&e))?;
    file.set_len(bytes).map_err(|e| fail(&e))?;
    VolumeBuilder::new()
        .format(Format::F2fs)
        .size(bytes)
        .create(image)
        .map(drop)
        .map_err(|e| fail(&e))
}

/// A mount for writing, up to the root directory's attributes; what it recovered: files and nodes.
fn mount(image: &Path) -> Result<(Duration, (u64, u64)), String> {
    let fail = |e: &dyn std::fmt::Display| format!("{}: {e}", image.display());
    let began = Instant::now();
    let volume = Volume::open(image).map_err(|e| fail(&e))?;
    volume.metadata("/").map_err(|e| fail(&e))?;
    let time = began.elapsed();
    if volume.is_read_only() {
        return Err(fail(&"not mounted for writing"));
    }
    let stats = volume.vfs().stats();
    let count = |name| stats.get(name).unwrap_or(0);
    let recovered = (count("recovered_files"), count("recovered_nodes"));
    volume.close().map_err(|e| fail(&e))?;
    Ok((time, recovered))
}

/// Has a child write and die.
fn crash(args: &MountsArgs, image: &Path, small: bool) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut child = Command::new(program);
    child
        .arg("f2fs-mounts")
        .args(["--mib", &args.mib.to_string()])
        .arg("--dir")
        .arg(&args.dir)
        .arg("--dying")
        .arg(image);
    if small {
        child.arg("--small");
    }
    let status = child.status().map_err(|e| e.to_string())?;
    match status.code() {
        Some(DIED) => Ok(()),
        _ => Err(format!("the child that writes: {status}")),
    }
}

/// How the child ends when it has done its work.
const DIED: i32 = 77;

fn die(image: &Path, bytes: u64, small: bool) -> Result<(), String> {
    let fail = |e: blockwright::Error| e.to_string();
    let mut options = VolumeOptions::default();
    // No checkpoint comes in between.
    options.parts.f2fs.commit_interval = Duration::from_secs(24 * 3600);
    options.parts.f2fs.metadata_cache_bytes = GIB;
    options.parts.vfs.cache_bytes = 2 * GIB;
    let volume = options.open(image).map_err(fail)?;
    let open = |name: &str| {
        OpenOptions::new()
            .write(true)
            .create(true)
            .open(&volume, name)
            .map_err(fail)
    };
    if small {
        for n in 0..bytes / EACH {
            let file = open(&format!("/f{n}"))?;
            file.write_all_at(&vec![n as u8; EACH as usize], 0)
                .map_err(fail)?;
            file.sync_all().map_err(fail)?;
        }
    } else {
        let file = open("/f")?;
        for at in (0..bytes).step_by(MIB as usize) {
            file.write_all_at(&vec![(at >> 20) as u8; MIB as usize], at)
                .map_err(fail)?;
            file.sync_all().map_err(fail)?;
        }
    }
    let stats = volume.vfs().stats();
    let chained = stats.get("fsyncs_chained").unwrap_or(0);
    if chained == 0 {
        return Err("no fsync did without a checkpoint".to_owned());
    }
    // Without unmounting.
    std::process::exit(DIED)
}
