//! System 5: buffered streams, ordered or as in 2008, beside direct ones and the kernel's.

use super::driver::{self, Style};
use super::kernel;
use super::place::Place;
use crate::runner::{Plan, Workload};
use crate::table::{Row, Sample, Unit};
use blockwright::{File, OpenOptions, Volume, VolumeOptions};
use std::io::Write;
use std::path::Path;

const GROUP: &str = "streams";
const CHUNK: usize = 1 << 20;

/// One stream and two beside each other, fsync included.
pub fn run(plan: &Plan, place: &Place, rows: &mut Vec<Row>) -> Result<(), String> {
    let bytes = stream_bytes(plan, place);
    for streams in [1usize, 2] {
        let each = bytes / streams as u64 / CHUNK as u64 * CHUNK as u64;
        let name = format!(
            "{streams} buffered stream{} of {} MB, fsync included",
            if streams == 1 { "" } else { "s" },
            each / 1_000_000
        );
        let buffered = |ordered: bool| {
            move || {
                let mut options = VolumeOptions::default();
                options.parts.vfs.comparison.legacy_writeback = !ordered;
                library(
                    place,
                    &options,
                    streams,
                    |file| by_chunks(file, each),
                    false,
                )
                .map(|s| scaled(s, each * streams as u64))
            }
        };
        let mut workload = Workload {
            group: GROUP,
            name,
            device: place.name().to_owned(),
            unit: Unit::MegabytesPerSecond,
            reported: if streams == 1 {
                "ext4 81.7 → 246 → 330 MB/s, direct 330; extents > 4000 → 27"
            } else {
                "not reported"
            },
            variants: Vec::new(),
        }
        .variant("ordered", buffered(true))
        .variant("legacy writeback", buffered(false))
        .variant("direct, depth 16", move || {
            library(
                place,
                &VolumeOptions::default(),
                streams,
                |file| {
                    let chunk = CHUNK as u64;
                    driver::write(file, each / chunk, CHUNK, 16, Style::Asking, move |k| {
                        k * chunk
                    })?;
                    file.sync_data().map_err(|e| e.to_string())
                },
                true,
            )
            .map(|s| scaled(s, each * streams as u64))
        })
        .variant("direct, depth 1", move || {
            library(
                place,
                &VolumeOptions::default(),
                streams,
                |file| by_chunks(file, each),
                true,
            )
            .map(|s| scaled(s, each * streams as u64))
        });
        if kernel::available(place) {
            workload = workload.variant("kernel ext4, loop, buffered", move || {
                let Some((mounted, mnt)) = kernel::mount(place)? else {
                    return Err("cannot mount".to_owned());
                };
                let began = std::time::Instant::now();
                beside(streams, |k| {
                    kernel_stream(&mnt.join(format!("stream{k}")), each)
                })?;
                let seconds = began.elapsed().as_secs_f64();
                let mut extents: f64 = 0.0;
                for k in 0..streams {
                    extents = extents.max(kernel::extents(&mnt.join(format!("stream{k}")))?);
                }
                mounted.unmount()?;
                Ok(Sample::rate((each * streams as u64) as f64 / 1e6, seconds)
                    .with("fragments", extents))
            });
        }
        plan.run(workload, rows)?;
    }
    Ok(())
}

/// Writes a file chunk by chunk, and makes it durable.
fn by_chunks(file: &File, bytes: u64) -> Result<(), String> {
    let chunk = vec![0x5au8; CHUNK];
    for k in 0..bytes / CHUNK as u64 {
        file.write_all_at(&chunk, k * CHUNK as u64)
            .map_err(|e| e.to_string())?;
    }
    file.sync_data().map_err(|e| e.to_string())
}

/// How long a stream is: what the report had, or what fits.
fn stream_bytes(plan: &Plan, place: &Place) -> u64 {
    let wanted: u64 = if plan.quick { 128 << 20 } else { 4_500_000_000 };
    wanted.min(place.bytes() / 10 * 7) / CHUNK as u64 * CHUNK as u64
}

/// A sample whose value is seconds, as a rate.
fn scaled(sample: Sample, bytes: u64) -> Sample {
    Sample {
        value: bytes as f64 / 1e6 / sample.value.max(1e-9),
        extra: sample.extra,
    }
}

/// Runs `job` for numbers below `n` at the same time. The first error.
pub fn beside(n: usize, job: impl Fn(usize) -> Result<(), String> + Sync) -> Result<(), String> {
    if n == 1 {
        return job(0);
    }
    std::thread::scope(|s| {
        let threads: Vec<_> = (0..n)
            .map(|k| {
                let job = &job;
                s.spawn(move || job(k))
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|t| t.join().map_err(|_| "a writer panicked".to_owned())?)
    })
}

/// Writes `streams` files of a fresh volume at the same time. Seconds, with the extents of the worst file.
fn library(
    place: &Place,
    options: &VolumeOptions,
    streams: usize,
    write: impl Fn(&File) -> Result<(), String> + Sync,
    direct: bool,
) -> Result<Sample, String> {
    let bench = place.fresh()?;
    let volume = bench.open(options)?;
    let files: Vec<File> = (0..streams)
        .map(|k| open(&volume, &format!("/stream{k}"), direct))
        .collect::<Result<_, _>>()?;
    let before = bench.now();
    beside(streams, |k| write(&files[k]))?;
    let seconds = (bench.now() - before).as_secs_f64();
    let mut extents = 0;
    for file in &files {
        extents = extents.max(count_extents(file)?);
    }
    drop(files);
    volume.close().map_err(|e| e.to_string())?;
    let sample = Sample {
        value: seconds,
        ..Sample::default()
    };
    Ok(sample.with("fragments", extents as f64))
}

/// Opens (or makes) a file for writing.
pub fn open(volume: &Volume, path: &str, direct: bool) -> Result<File, String> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .direct(direct)
        .open(volume, path)
        .map_err(|e| e.to_string())
}

/// The stretches of a file that are consecutive on the device, as filefrag counts them.
pub fn count_extents(file: &File) -> Result<u64, String> {
    let size = file.metadata().map_err(|e| e.to_string())?.len();
    let (mut at, mut n) = (0, 0);
    while at < size {
        let m = file
            .handle()
            .map(at, size - at)
            .map_err(|e| e.to_string())?;
        n += u64::from(matches!(
            m.place,
            blockwright_vfs::Place::Mapped(_) | blockwright_vfs::Place::Unwritten(_)
        ));
        at = m.offset.saturating_add(m.bytes).max(at + 1);
    }
    Ok(n)
}

fn kernel_stream(path: &Path, bytes: u64) -> Result<(), String> {
    let fail = |e: std::io::Error| format!("{}: {e}", path.display());
    let mut file = std::fs::File::create(path).map_err(fail)?;
    let chunk = vec![0x5au8; CHUNK];
    for _ in 0..bytes / CHUNK as u64 {
        file.write_all(&chunk).map_err(fail)?;
    }
    file.sync_data().map_err(fail)
}
