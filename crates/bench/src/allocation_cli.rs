//! `blockwright-bench alloc …`: one workload of block allocation, once, on one target; prints a line of
//! JSON with its time and the allocator's counters. For profiles and for finding directions; tables
//! are made by the commands that call [`crate::allocation`] themselves.

use crate::allocation::{self, Done, Target};
use crate::write_path::sparse::take_memory_as_kernel;
use blockwright::{VolumeBuilder, VolumeOptions};
use blockwright_device::{
    BlockDevice, Geometry, HostDevice, MemoryDevice, Op, OpenMode, Request, SharedDevice,
};
use blockwright_ext4::comparison::Preallocation;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// What to run, and where.
#[derive(clap::Args, Debug)]
pub struct AllocArgs {
    /// sparse, bursts, sequential-bursts, small-files, append, stream, fsync
    workload: String,
    /// Mounted directory to run in (a peer), instead of a volume of our own
    #[arg(long)]
    at: Option<PathBuf>,
    /// Image to make the volume in, which stays written where it is; without it, memory
    #[arg(long)]
    image: Option<PathBuf>,
    /// Size of the volume in MiB
    #[arg(long, default_value_t = 8192)]
    size: u64,
    /// Mount option, as `blockwright mount -o` has it: prealloc=tree|list|none, nodelalloc
    #[arg(short = 'o')]
    options: Vec<String>,
    /// Scale: writes, files, MiB or seconds, as the workload counts
    #[arg(short, long)]
    n: Option<u64>,
    /// Threads or jobs
    #[arg(short, long)]
    threads: Option<u64>,
    /// Take file data for written without keeping it: what is left is the cost of allocating
    #[arg(long)]
    sink: bool,
    /// Write past the cache (through the library)
    #[arg(long)]
    direct: bool,
    /// As much memory for the cache and what is dirty in it as the kernel takes by itself, instead of the default budget
    #[arg(long)]
    memory_as_kernel: bool,
    /// Distance between sparse writes in KiB
    #[arg(long, default_value_t = 16)]
    stride: u64,
}

fn work(args: &AllocArgs, target: &Target<'_>) -> Result<Done, String> {
    let n = |default| args.n.unwrap_or(default);
    let threads = |default| args.threads.unwrap_or(default);
    match args.workload.as_str() {
        "sparse" => allocation::sparse(target, n(200_000), args.stride << 10),
        "bursts" => allocation::bursts(target, n(1024) << 20, 1),
        "sequential-bursts" => allocation::bursts(target, n(1024) << 20, 4),
        "small-files" => allocation::small_files(target, n(100_000), 2048, threads(64)),
        "append" => {
            let jobs = threads(64);
            allocation::appends(target, jobs, (n(4096) << 20) / jobs, 64 << 10)
        }
        "stream" => allocation::appends(target, threads(1), n(4608) << 20, 1 << 20),
        "fsync" => allocation::fsyncs(target, threads(32), Duration::from_secs(n(3))),
        other => Err(format!("no workload is called `{other}`")),
    }
}

/// Runs it.
///
/// # Errors
/// A sentence.
pub fn run(args: &AllocArgs) -> Result<(), String> {
    let text = |e: &dyn std::fmt::Display| e.to_string();
    let (done, counters) = match &args.at {
        Some(dir) => (work(args, &Target::Directory(dir))?, Vec::new()),
        None => {
            let builder = VolumeBuilder::new().size(args.size << 20);
            let device: SharedDevice = match &args.image {
                Some(path) => {
                    let is_new = !path.exists();
                    if is_new {
                        builder.create(path).map_err(|e| text(&e))?;
                    }
                    let device = HostDevice::open(path, OpenMode::default());
                    let device = device.map_err(|e| text(&e))?;
                    if !is_new {
                        builder.create_on(&device).map_err(|e| text(&e))?;
                    }
                    device
                }
                None => {
                    let device: SharedDevice = Arc::new(MemoryDevice::new(args.size << 20));
                    builder.create_on(&device).map_err(|e| text(&e))?;
                    device
                }
            };
            let device: SharedDevice = if args.sink {
                Arc::new(Sink(device))
            } else {
                device
            };
            let mut options = VolumeOptions::default();
            if args.memory_as_kernel {
                take_memory_as_kernel(&mut options);
            }
            for option in &args.options {
                set(&mut options, option)?;
            }
            let volume = options.open_device(device).map_err(|e| text(&e))?;
            let start = std::time::Instant::now();
            let target = match args.direct {
                true => Target::Direct(&volume),
                false => Target::Library(&volume),
            };
            let mut done = work(args, &target)?;
            let counters = volume.vfs().stats().numbers();
            if args.workload == "sparse" {
                // Giving back what was preallocated belongs to it.
                volume.close().map_err(|e| text(&e))?;
                done.seconds = start.elapsed().as_secs_f64();
            } else {
                volume.close().map_err(|e| text(&e))?;
            }
            (done, counters)
        }
    };
    let rate = done.operations as f64 / done.seconds;
    let speed = done.bytes as f64 / 1e6 / done.seconds;
    println!(
        "{} {:?}: {:.3} s, {rate:.0} /s, {speed:.1} MB/s, {} extents",
        args.workload, args.options, done.seconds, done.extents
    );
    for (name, value) in counters {
        eprintln!("  {name} {value}");
    }
    Ok(())
}

fn set(options: &mut VolumeOptions, option: &str) -> Result<(), String> {
    match option {
        "prealloc=tree" => options.parts.ext4.comparison.preallocation = Preallocation::Tree,
        "prealloc=list" => options.parts.ext4.comparison.preallocation = Preallocation::List,
        "prealloc=none" => options.parts.ext4.comparison.preallocation = Preallocation::None,
        "nodelalloc" => options.parts.vfs.delayed_allocation = false,
        other => return Err(format!("unknown option {other}")),
    }
    Ok(())
}

/// Drops writes that begin with the workloads' data, whole blocks of sevens; keeps metadata.
struct Sink(SharedDevice);

impl BlockDevice for Sink {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn submit(&self, request: Request) {
        if let Op::Write(slices) = &request.op
            && slices.first().is_some_and(|s| s.starts_with(&[7; 64]))
        {
            return request.complete(Ok(()));
        }
        self.0.submit(request);
    }

    fn name(&self) -> String {
        self.0.name()
    }
}
