//! Workloads of block allocation: those of the report on inode preallocations, appending jobs, streams, and
//! threads that write and fsync. Each runs on a volume through the library or in a mounted directory,
//! so that both can be compared; figures of the allocator come from the volume's own counters.
//!
//! Not responsible for devices, rounds and tables: the caller makes the volume and keeps times.

use blockwright::{File, OpenOptions, Volume};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, String>;

/// Where a workload runs.
pub enum Target<'a> {
    /// Through the library.
    Library(&'a Volume),
    /// Through the library, past the cache.
    Direct(&'a Volume),
    /// In a mounted directory.
    Directory(&'a Path),
}

/// An open file of either kind.
enum Open {
    Library(File),
    Directory(std::fs::File),
}

fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

impl Open {
    fn write(&self, buf: &[u8], at: u64) -> Result<()> {
        match self {
            Open::Library(f) => f.write_all_at(buf, at).map_err(text),
            Open::Directory(f) => f.write_all_at(buf, at).map_err(text),
        }
    }

    fn sync(&self) -> Result<()> {
        match self {
            Open::Library(f) => f.sync_all().map_err(text),
            Open::Directory(f) => f.sync_all().map_err(text),
        }
    }
}

impl Target<'_> {
    fn create(&self, name: &str) -> Result<Open> {
        match self {
            Target::Library(v) | Target::Direct(v) => OpenOptions::new()
                .write(true)
                .create(true)
                .direct(matches!(self, Target::Direct(_)))
                .open(v, name)
                .map(Open::Library)
                .map_err(text),
            Target::Directory(d) => std::fs::OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .open(d.join(name))
                .map(Open::Directory)
                .map_err(text),
        }
    }

    fn create_dir(&self, name: &str) -> Result<()> {
        match self {
            Target::Library(v) | Target::Direct(v) => v.create_dir(name).map_err(text),
            Target::Directory(d) => std::fs::create_dir(d.join(name)).map_err(text),
        }
    }

    fn sync(&self) -> Result<()> {
        match self {
            Target::Library(v) | Target::Direct(v) => v.sync().map_err(text),
            Target::Directory(d) => {
                let dir = std::fs::File::open(d).map_err(text)?;
                rustix::fs::syncfs(&dir).map_err(text)
            }
        }
    }

    /// Extents of a file as the format stores them: stretches cut at 128 MiB.
    ///
    /// # Errors
    /// What the volume or `filefrag` reports.
    pub fn extents(&self, name: &str) -> Result<u64> {
        match self {
            Target::Library(v) | Target::Direct(v) => {
                let file = v.open_file(name).map_err(text)?;
                let all = file.extents().map_err(text)?;
                Ok(all
                    .iter()
                    .filter(|e| matches!(e.kind, blockwright::ExtentKind::Data(_)))
                    .map(|e| e.bytes.div_ceil(128 << 20))
                    .sum())
            }
            Target::Directory(d) => {
                let path: PathBuf = d.join(name);
                let out = Command::new("filefrag")
                    .arg(&path)
                    .output()
                    .map_err(|e| format!("filefrag: {e}"))?;
                let text = String::from_utf8_lossy(&out.stdout).into_owned();
                text.rsplit(": ")
                    .next()
                    .and_then(|t| t.split(' ').next())
                    .and_then(|n| n.parse().ok())
                    .ok_or_else(|| format!("filefrag says: {text}"))
            }
        }
    }
}

/// What a workload did.
#[derive(Clone, Debug, Default)]
pub struct Done {
    /// From the first write until everything was durable.
    pub seconds: f64,
    /// Bytes of data written.
    pub bytes: u64,
    /// Files or operations, where the workload counts in those.
    pub operations: u64,
    /// Extents of all its files.
    pub extents: u64,
}

impl Done {
    fn since(start: Instant) -> Self {
        Done {
            seconds: start.elapsed().as_secs_f64(),
            ..Done::default()
        }
    }
}

/// Positions 0..n in an order that looks random and is the same every time: an odd multiplier
/// modulo a power of two, skipping what is past the end.
fn shuffled(n: u64) -> impl Iterator<Item = u64> {
    let space = n.next_power_of_two().max(1);
    (0..space)
        .map(move |i| (i.wrapping_mul(0x9E37_79B9) + 12345) & (space - 1))
        .filter(move |i| *i < n)
}

/// `writes` writes of 1 KiB, `stride` bytes apart, ascending; then fsync.
///
/// # Errors
/// The first write that fails.
pub fn sparse(target: &Target<'_>, writes: u64, stride: u64) -> Result<Done> {
    let data = [7u8; 1024];
    let start = Instant::now();
    let file = target.create("sparse")?;
    for i in 0..writes {
        file.write(&data, i * stride)?;
    }
    file.sync()?;
    drop(file);
    Ok(Done {
        bytes: writes * 1024,
        operations: writes,
        ..Done::since(start)
    })
}

/// Fills a file of `bytes` bytes with bursts of 1 KiB writes in random
/// places, then fsync.
///
/// # Errors
/// The first write that fails.
pub fn bursts(target: &Target<'_>, bytes: u64, burst: u64) -> Result<Done> {
    let data = [7u8; 1024];
    let start = Instant::now();
    let file = target.create("bursts")?;
    for i in shuffled(bytes / 1024 / burst) {
        for k in 0..burst {
            file.write(&data, (i * burst + k) * 1024)?;
        }
    }
    file.sync()?;
    drop(file);
    let done = Done::since(start);
    Ok(Done {
        bytes,
        operations: bytes / 1024,
        extents: target.extents("bursts")?,
        ..done
    })
}

/// Runs `job` on `threads` threads; the first error of any.
fn parallel(threads: u64, job: impl Fn(u64) -> Result<()> + Sync) -> Result<()> {
    std::thread::scope(|s| {
        let all: Vec<_> = (0..threads)
            .map(|t| {
                s.spawn({
                    let job = &job;
                    move || job(t)
                })
            })
            .collect();
        all.into_iter()
            .try_for_each(|t| t.join().map_err(|_| "a thread panicked".to_owned())?)
    })
}

/// `files` files of `bytes` bytes each by `threads` threads, a directory per thread; then sync.
///
/// # Errors
/// The first operation that fails.
pub fn small_files(target: &Target<'_>, files: u64, bytes: usize, threads: u64) -> Result<Done> {
    let data = vec![7u8; bytes];
    for t in 0..threads {
        target.create_dir(&format!("t{t}"))?;
    }
    let start = Instant::now();
    parallel(threads, |t| {
        for i in 0..files / threads {
            target.create(&format!("t{t}/f{i}"))?.write(&data, 0)?;
        }
        Ok(())
    })?;
    target.sync()?;
    let n = files / threads * threads;
    Ok(Done {
        bytes: n * bytes as u64,
        operations: n,
        ..Done::since(start)
    })
}

/// `jobs` threads append `bytes` bytes each to a file of their own in writes of `piece` bytes; fsync.
///
/// # Errors
/// The first operation that fails.
pub fn appends(target: &Target<'_>, jobs: u64, bytes: u64, piece: usize) -> Result<Done> {
    let data = vec![7u8; piece];
    let start = Instant::now();
    parallel(jobs, |t| {
        let file = target.create(&format!("append{t}"))?;
        let mut at = 0;
        while at < bytes {
            file.write(&data, at)?;
            at += piece as u64;
        }
        file.sync()
    })?;
    let done = Done::since(start);
    let mut extents = 0;
    for t in 0..jobs {
        extents += target.extents(&format!("append{t}"))?;
    }
    Ok(Done {
        bytes: jobs * bytes,
        operations: jobs * bytes / piece as u64,
        extents,
        ..done
    })
}

/// `threads` threads write 4 KiB and fsync, each to its own file, for `time`.
///
/// # Errors
/// The first operation that fails.
pub fn fsyncs(target: &Target<'_>, threads: u64, time: Duration) -> Result<Done> {
    let data = [7u8; 4096];
    let files: Vec<Open> = (0..threads)
        .map(|t| target.create(&format!("sync{t}")))
        .collect::<Result<_>>()?;
    let count = AtomicU64::new(0);
    let start = Instant::now();
    parallel(threads, |t| {
        let mut at = 0;
        while start.elapsed() < time {
            files[t as usize].write(&data, at)?;
            files[t as usize].sync()?;
            at += 4096;
            count.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    })?;
    let n = count.into_inner();
    Ok(Done {
        bytes: n * 4096,
        operations: n,
        ..Done::since(start)
    })
}
