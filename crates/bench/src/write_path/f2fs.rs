//! Systems 1 and 3, on f2fs: direct writes of many jobs at the same time, and merged checkpoints.

use super::direct::scatter;
use super::driver::{self, Style, To};
use super::place::Place;
use super::stream::{beside, count_extents, open};
use crate::machine::cpu_seconds;
use crate::runner::{Plan, Workload};
use crate::table::{Row, Sample, Unit};
use blockwright::{File, OpenOptions, Volume, VolumeOptions};
use blockwright_device::sim::turns::{self, Turns};
use blockwright_device::{AlignedBuf, IoPriority, IoSlice};
use blockwright_f2fs::comparison::DirectAllocation;
use blockwright_f2fs::options::BackgroundCleaning;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Both systems.
pub fn run(plan: &Plan, place: &Place, rows: &mut Vec<Row>) -> Result<(), String> {
    if !place.is_paced() {
        direct_writes(plan, place, rows)?;
        overwrites(plan, place, rows)?;
    }
    if !place.is_virtual() {
        checkpoints(plan, place, rows)?;
    }
    Ok(())
}

/// What each job of a row does.
#[derive(Clone, Copy)]
enum Job {
    /// Appends this many bytes at a time.
    Append(u64),
    /// Appends 4 KiB to 1 MiB at a time.
    AppendMixed,
    /// Overwrites between this many bytes and this many at a time, at random places.
    Overwrite(u64, u64),
}

struct Case {
    name: &'static str,
    job: Job,
    jobs: usize,
    /// Bytes of each job.
    each: u64,
    reported: &'static str,
}

const MIB: u64 = 1 << 20;

fn cases(place: &Place) -> Vec<Case> {
    let case = |name, job, jobs, mib: u64, reported| Case {
        name,
        job,
        jobs,
        each: mib * MIB,
        reported,
    };
    let mut list = vec![
        case(
            "append 4 KiB, 32 jobs",
            Job::Append(4096),
            32,
            16,
            "serialized / none: 1.08",
        ),
        case(
            "append 128 KiB, 32 jobs",
            Job::Append(128 << 10),
            32,
            32,
            "serialized / none: 1.19",
        ),
        case(
            "append 2 MiB, 32 jobs",
            Job::Append(2 * MIB),
            32,
            64,
            "serialized / none: 1.02",
        ),
        case(
            "append 4 KiB to 1 MiB, 32 jobs",
            Job::AppendMixed,
            32,
            32,
            "serialized / none: 1.01",
        ),
        case(
            "random overwrite 4 KiB, 32 jobs",
            Job::Overwrite(4096, 4096),
            32,
            16,
            "serialized / none: 0.97",
        ),
        case(
            "random overwrite 16 to 32 KiB, 32 jobs",
            Job::Overwrite(16 << 10, 32 << 10),
            32,
            32,
            "serialized / none: 0.94",
        ),
    ];
    if place.name() == "model:sdcard" {
        list.push(case(
            "append 2 MiB, 10 jobs",
            Job::Append(2 * MIB),
            10,
            16,
            "SD card, serialized / none: 2.03",
        ));
    }
    list
}

/// Sizes of the k-th job's writes, one after another, all of `bytes`.
fn sizes(job: Job, k: usize, bytes: u64) -> Vec<u64> {
    let mut all = Vec::new();
    let mut left = bytes;
    while left > 0 {
        let n = (k as u64) << 32 | all.len() as u64;
        let size = match job {
            Job::Append(size) => size,
            Job::AppendMixed => (scatter(n, 256) + 1) * 4096,
            Job::Overwrite(from, to) => from + scatter(n, (to - from) / 4096 + 1) * 4096,
        };
        all.push(size.min(left));
        left -= size.min(left);
    }
    all
}

fn direct_writes(plan: &Plan, place: &Place, rows: &mut Vec<Row>) -> Result<(), String> {
    const GROUP: &str = "contiguous direct writes, f2fs";
    for case in cases(place) {
        let each = if plan.quick { 2 * MIB } else { case.each };
        let (job, jobs) = (case.job, case.jobs);
        let run = |way: DirectAllocation, pages: u64, interrupted: bool| {
            let mut round = 0;
            move || {
                round += 1;
                let how = How {
                    way,
                    pages,
                    interrupted,
                    seed: round,
                };
                once(place, job, jobs, each, how)
            }
        };
        let mut workload = Workload {
            group: GROUP,
            name: case.name.to_owned(),
            device: place.name().to_owned(),
            unit: Unit::MegabytesPerSecond,
            reported: case.reported,
            variants: Vec::new(),
        }
        .variant("reserved", run(DirectAllocation::Reserved, 64, true))
        .variant(
            "serialized, all",
            run(DirectAllocation::Serialized, 1, true),
        );
        if matches!(job, Job::AppendMixed) {
            workload = workload.variant(
                "serialized, 33 pages",
                run(DirectAllocation::Serialized, 33, true),
            );
        }
        workload = workload
            .variant("none", run(DirectAllocation::None, 64, true))
            .variant(
                "none, not interrupted",
                run(DirectAllocation::None, 64, false),
            );
        plan.run(workload, rows)?;
    }
    Ok(())
}

/// How the jobs of a row get their blocks.
#[derive(Clone, Copy)]
struct How {
    way: DirectAllocation,
    pages: u64,
    /// Whether a way that hands out single blocks gives way after each; otherwise no writer is interrupted.
    interrupted: bool,
    /// In virtual time: the order in which jobs write. The same for all variants in a round.
    seed: u64,
}

/// A row's variant, once.
fn once(place: &Place, job: Job, jobs: usize, each: u64, how: How) -> Result<Sample, String> {
    let bench = place.fresh_f2fs()?;
    let mut options = VolumeOptions::default();
    options.parts.f2fs.dio_alloc = how.way;
    options.parts.f2fs.serialized_dio_pages = how.pages;
    if place.is_virtual() {
        // What the machine's clock brings about has no place in virtual time.
        options.parts.f2fs.commit_interval = Duration::from_secs(1 << 20);
        options.parts.f2fs.background_cleaning = BackgroundCleaning::Off;
    }
    let volume = bench.open(&options)?;
    let files = (0..jobs)
        .map(|k| open(&volume, &format!("/f{k}"), true))
        .collect::<Result<Vec<_>, _>>()?;
    let chunk: IoSlice = AlignedBuf::copy_of(&vec![0x5a; 2 * MIB as usize]).into();
    let write = |k: usize, at: u64, size: u64| {
        let slices = vec![chunk.slice(0..size as usize)];
        let written = files[k]
            .handle()
            .run(blockwright_vfs::WriteOp::at(at, slices));
        written.map_err(|e| e.to_string()).map(drop)
    };
    if matches!(job, Job::Overwrite(..)) {
        for k in 0..jobs {
            for at in (0..each).step_by(2 * MIB as usize) {
                write(k, at, (2 * MIB).min(each - at))?;
            }
        }
        volume.sync().map_err(|e| e.to_string())?;
    }
    let turns = place.is_virtual().then(|| Turns::new(jobs, how.seed));
    let requests = bench.requests().unwrap_or_default();
    let processor = cpu_seconds();
    let before = bench.now();
    beside(jobs, |k| {
        if !how.interrupted {
            turns::never_give_way();
        }
        let turn = turns.as_ref().map(|t| t.take_part(k, how.interrupted));
        let mut end = 0;
        for (n, size) in sizes(job, k, each).into_iter().enumerate() {
            let at = match job {
                Job::Overwrite(..) => {
                    scatter((n as u64) << 8 | k as u64, (each - size) / 4096 + 1) * 4096
                }
                _ => end,
            };
            write(k, at, size)?;
            end += size;
            if let Some(turn) = &turn {
                turn.next();
            }
        }
        Ok(())
    })?;
    let seconds = (bench.now() - before).as_secs_f64();
    let processor = cpu_seconds() - processor;
    let mut extents = Vec::new();
    for file in &files {
        extents.push(count_extents(file)?);
    }
    let total = (each * jobs as u64) as f64 / 1e6;
    let mut sample = Sample::rate(total, seconds)
        .with(
            "extents a file, most",
            extents.iter().max().map_or(0.0, |n| *n as f64),
        )
        .with("extents in all", extents.iter().sum::<u64>() as f64);
    sample = match bench.requests() {
        Some(now) => sample
            .with("requests", (now.all - requests.all) as f64)
            .with("jumps", (now.jumps - requests.jumps) as f64)
            .with("reopened", (now.reopened - requests.reopened) as f64),
        None => sample.with("processor ms", processor * 1e3),
    };
    drop(files);
    volume.close().map_err(|e| e.to_string())?;
    Ok(sample)
}

/// 4 KiB overwrites in place, 64 deep, beside the device itself.
fn overwrites(plan: &Plan, place: &Place, rows: &mut Vec<Row>) -> Result<(), String> {
    const GROUP: &str = "overwrites in place, f2fs";
    const BLOCK: u64 = 4096;
    if place.is_virtual() {
        return Ok(());
    }
    let file_bytes = if plan.quick { 64 * MIB } else { 1024 * MIB };
    let slots = file_bytes / BLOCK;
    let total = match (plan.quick, place.path()) {
        (true, _) => 20_000.min(slots),
        (false, Some(_)) => 262_144,
        (false, None) => 1_000_000,
    };
    let style = if place.path().is_some() {
        Style::Chained
    } else {
        Style::Asking
    };
    let options = || {
        let mut options = VolumeOptions::default();
        // Nothing of an image that is fully written becomes a hole again.
        options.parts.f2fs.discard = false;
        options
    };
    let laid = move |volume: &Volume| {
        let file = open(volume, "/file", true)?;
        let chunks = file_bytes / MIB;
        let at = |k| k * MIB;
        driver::write(&file, chunks, MIB as usize, 8, Style::Asking, at)?;
        file.sync_all().map_err(|e| e.to_string())?;
        Ok::<File, String>(file)
    };
    let workload = Workload {
        group: GROUP,
        name: "direct overwrite 4 KiB, depth 64".to_owned(),
        device: place.name().to_owned(),
        unit: Unit::MegabytesPerSecond,
        reported: "not reported; at least 0.95 of the device itself is asked for",
        variants: Vec::new(),
    }
    .variant("library", move || {
        let bench = place.fresh_f2fs()?;
        let volume = bench.open(&options())?;
        let file = laid(&volume)?;
        let (before, processor) = (bench.now(), cpu_seconds());
        driver::write(&file, total, BLOCK as usize, 64, style, move |k| {
            scatter(k, slots) * BLOCK
        })?;
        let seconds = (bench.now() - before).as_secs_f64();
        let each = (cpu_seconds() - processor) * 1e9 / total as f64;
        let stats = volume.vfs().stats();
        let count = |name: &str| stats.get(name).unwrap_or(0) as f64;
        let sample = Sample::rate((total * BLOCK) as f64 / 1e6, seconds)
            .with("processor ns a write", each)
            .with("inline", count("direct_completions_inline"))
            .with("deferred", count("direct_completions_deferred"));
        drop(file);
        volume.close().map_err(|e| e.to_string())?;
        Ok(sample)
    })
    .variant("device itself", move || {
        // The very blocks, in the same state of memory or of the image.
        let bench = place.fresh_f2fs()?;
        let volume = bench.open(&options())?;
        let file = laid(&volume)?;
        let pieces = places(&file)?;
        drop(file);
        volume.close().map_err(|e| e.to_string())?;
        let (before, processor) = (bench.now(), cpu_seconds());
        let at = move |k| {
            let at = scatter(k, slots) * BLOCK;
            let n = pieces.partition_point(|(start, _)| *start <= at) - 1;
            pieces[n].1 + (at - pieces[n].0)
        };
        driver::write(
            To::Device(bench.device.clone()),
            total,
            BLOCK as usize,
            64,
            style,
            at,
        )?;
        let seconds = (bench.now() - before).as_secs_f64();
        let each = (cpu_seconds() - processor) * 1e9 / total as f64;
        Ok(Sample::rate((total * BLOCK) as f64 / 1e6, seconds).with("processor ns a write", each))
    });
    plan.run(workload, rows)
}

/// Where all of a file is: places in it and on the device.
fn places(file: &File) -> Result<Vec<(u64, u64)>, String> {
    let size = file.metadata().map_err(|e| e.to_string())?.len();
    let (mut at, mut found) = (0, Vec::new());
    while at < size {
        let m = file.handle().map(at, size - at);
        let m = m.map_err(|e| e.to_string())?;
        let blockwright_vfs::Place::Mapped(device) = m.place else {
            return Err(format!("there is a hole at {at}"));
        };
        found.push((at, device.0 + (at - m.offset)));
        at = m.offset + m.bytes;
    }
    Ok(found)
}

/// Makes an empty file and syncs its directory.
fn touch(volume: &Volume, dir: &str, name: &str) -> Result<(), String> {
    let fail = |e: blockwright::Error| e.to_string();
    volume.write(format!("{dir}/{name}"), b"").map_err(fail)?;
    let dir = OpenOptions::new()
        .read(true)
        .open(volume, dir)
        .map_err(fail)?;
    dir.sync_all().map_err(fail)
}

/// System 3: A makes files and syncs their directory; beside it B writes 128 KiB at a time, asynchronously, and loopers do
/// what A does at a low priority.
fn checkpoints(plan: &Plan, place: &Place, rows: &mut Vec<Row>) -> Result<(), String> {
    const GROUP: &str = "merged checkpoints, f2fs";
    /// Of the loopers: weight 1 beside 4.
    const LOW: IoPriority = IoPriority(7);
    let rounds: u64 = if plan.quick { 40 } else { 1000 };
    for loopers in [1usize, 8] {
        let run = |merge: bool| {
            move || {
                let bench = place.fresh_f2fs()?;
                let mut options = VolumeOptions::default();
                options.parts.f2fs.checkpoint_merge = Some(merge);
                let volume = bench.open(&options)?;
                for k in 0..=loopers {
                    volume
                        .create_dir(format!("/d{k}"))
                        .map_err(|e| e.to_string())?;
                }
                let file = open(&volume, "/b", true)?;
                let chunk = 128u64 << 10;
                let slots = 64 * MIB / chunk;
                let fill = || {
                    driver::write(&file, slots, chunk as usize, 8, Style::Asking, move |k| {
                        k * chunk
                    })
                };
                fill()?;
                volume.sync().map_err(|e| e.to_string())?;
                let before_stats = volume.vfs().stats();
                let done = AtomicBool::new(false);
                let seconds = std::thread::scope(|s| {
                    let mut others = Vec::new();
                    others.push(s.spawn(|| {
                        while !done.load(Ordering::Relaxed) {
                            fill()?;
                        }
                        Ok::<(), String>(())
                    }));
                    for k in 1..=loopers {
                        let (volume, done) = (&volume, &done);
                        others.push(s.spawn(move || {
                            LOW.adopt();
                            let mut n = 0u64;
                            while !done.load(Ordering::Relaxed) {
                                touch(volume, &format!("/d{k}"), &n.to_string())?;
                                n += 1;
                            }
                            Ok(())
                        }));
                    }
                    let before = bench.now();
                    let mut result = Ok(());
                    for n in 0..rounds {
                        result = result.and_then(|()| touch(&volume, "/d0", &n.to_string()));
                    }
                    let seconds = (bench.now() - before).as_secs_f64();
                    done.store(true, Ordering::Relaxed);
                    for other in others {
                        result =
                            result.and(other.join().map_err(|_| "a writer panicked".to_owned())?);
                    }
                    result.map(|()| seconds)
                })?;
                let stats = volume.vfs().stats();
                let count = |name: &str| {
                    stats
                        .get(name)
                        .unwrap_or(0)
                        .saturating_sub(before_stats.get(name).unwrap_or(0))
                        as f64
                };
                let sample = Sample::rate(rounds as f64, seconds)
                    .with("seconds", seconds)
                    .with("checkpoints", count("checkpoints"))
                    .with("asked of the daemon", count("ckpt_merge_total"))
                    .with(
                        "longest ms",
                        stats.get("ckpt_merge_peak_ms").unwrap_or(0) as f64,
                    );
                drop(file);
                volume.close().map_err(|e| e.to_string())?;
                Ok(sample)
            }
        };
        let workload = Workload {
            group: GROUP,
            name: format!("{rounds} × {{create, fsync directory}} beside a 128 KiB writer and {loopers} low-priority looper(s)"),
            device: place.name().to_owned(),
            unit: Unit::OpsPerSecond,
            reported: "1000 in 68 s without, 48 s with: 1.42",
            variants: Vec::new(),
        }
        .variant("checkpoint_merge", run(true))
        .variant("nocheckpoint_merge", run(false));
        plan.run(workload, rows)?;
    }
    Ok(())
}
