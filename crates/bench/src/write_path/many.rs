//! Many writers at once: small writes with fsync, and appends of many files.

use super::kernel;
use super::place::Place;
use super::stream::{beside, count_extents, open};
use crate::runner::{Plan, Workload};
use crate::table::{Row, Sample, Unit};
use blockwright::VolumeOptions;
use blockwright_device::AlignedBuf;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

const FSYNC_THREADS: usize = 32;
const APPENDERS: usize = 64;
const APPEND_BYTES: usize = 128 << 10;

/// fsync-heavy writers, and 64 appenders.
pub fn run(plan: &Plan, place: &Place, rows: &mut Vec<Row>) -> Result<(), String> {
    fsyncs(plan, place, rows)?;
    appends(plan, place, rows)
}

fn fsyncs(plan: &Plan, place: &Place, rows: &mut Vec<Row>) -> Result<(), String> {
    const GROUP: &str = "merged commits, ext4";
    let rounds: u64 = if plan.quick { 20 } else { 200 };
    let total = rounds * FSYNC_THREADS as u64;
    let library = |group_commit: bool| {
        move || {
            let bench = place.fresh()?;
            let mut options = VolumeOptions::default();
            options.parts.ext4.comparison.group_commit = group_commit;
            let volume = bench.open(&options)?;
            let files = (0..FSYNC_THREADS)
                .map(|k| open(&volume, &format!("/f{k}"), false))
                .collect::<Result<Vec<_>, _>>()?;
            let before = bench.now();
            beside(FSYNC_THREADS, |k| {
                for round in 0..rounds {
                    files[k]
                        .write_all_at(&[k as u8; 4096], round * 4096)
                        .and_then(|()| files[k].sync_all())
                        .map_err(|e| e.to_string())?;
                }
                Ok(())
            })?;
            let seconds = (bench.now() - before).as_secs_f64();
            let counters = volume.vfs().counters();
            let count = |part: &str| {
                counters
                    .iter()
                    .find(|(name, _)| name == part)
                    .map_or(0.0, |(_, v)| *v as f64)
            };
            let sample = Sample::rate(total as f64, seconds)
                .with("commits", count("journal_commits"))
                .with("fsyncs", total as f64);
            drop(files);
            volume.close().map_err(|e| e.to_string())?;
            Ok(sample)
        }
    };
    let mut workload = Workload {
        group: GROUP,
        name: format!("4 KiB write and fsync, {FSYNC_THREADS} threads"),
        device: place.name().to_owned(),
        unit: Unit::OpsPerSecond,
        reported: "1000 × {touch, fsync}: 68 s → 48 s",
        variants: Vec::new(),
    }
    .variant("commits shared", library(true))
    .variant("each its own commit", library(false));
    if kernel::available(place) {
        workload = workload.variant("kernel ext4, loop", move || {
            let Some((mounted, mnt)) = kernel::mount(place)? else {
                return Err("cannot mount".to_owned());
            };
            let began = std::time::Instant::now();
            beside(FSYNC_THREADS, |k| {
                let fail = |e: std::io::Error| e.to_string();
                let file = std::fs::File::create(mnt.join(format!("f{k}"))).map_err(fail)?;
                for round in 0..rounds {
                    file.write_all_at(&[k as u8; 4096], round * 4096)
                        .map_err(fail)?;
                    file.sync_all().map_err(fail)?;
                }
                Ok(())
            })?;
            let seconds = began.elapsed().as_secs_f64();
            mounted.unmount()?;
            Ok(Sample::rate(total as f64, seconds))
        });
    }
    plan.run(workload, rows)
}

fn appends(plan: &Plan, place: &Place, rows: &mut Vec<Row>) -> Result<(), String> {
    const GROUP: &str = "appends of many jobs";
    let each: u64 = if plan.quick { 2 << 20 } else { 32 << 20 };
    let total = each * APPENDERS as u64;
    if total > place.bytes() / 10 * 8 {
        return Ok(());
    }
    let mut workload = Workload {
        group: GROUP,
        name: format!("{APPENDERS} files appended at once, direct, 128 KiB"),
        device: place.name().to_owned(),
        unit: Unit::MegabytesPerSecond,
        reported: "217 → 5718 MiB/s, extents a file 261 967 → 588 (kernel's scalable allocator)",
        variants: Vec::new(),
    }
    .variant("library", move || {
        let bench = place.fresh()?;
        let volume = bench.open(&VolumeOptions::default())?;
        let files = (0..APPENDERS)
            .map(|k| open(&volume, &format!("/f{k}"), true))
            .collect::<Result<Vec<_>, _>>()?;
        let before = bench.now();
        beside(APPENDERS, |k| {
            let chunk: blockwright_device::IoSlice =
                AlignedBuf::copy_of(&[k as u8; APPEND_BYTES]).into();
            for at in (0..each).step_by(APPEND_BYTES) {
                files[k]
                    .handle()
                    .run(blockwright_vfs::WriteOp::at(at, vec![chunk.clone()]))
                    .map_err(|e| e.to_string())?;
            }
            Ok(())
        })?;
        let seconds = (bench.now() - before).as_secs_f64();
        let (mut most, mut all) = (0, 0);
        for file in &files {
            let extents = count_extents(file)?;
            most = most.max(extents);
            all += extents;
        }
        drop(files);
        volume.close().map_err(|e| e.to_string())?;
        Ok(Sample::rate(total as f64 / 1e6, seconds)
            .with("extents a file, most", most as f64)
            .with("extents, all files", all as f64))
    });
    if kernel::available(place) {
        workload = workload.variant("kernel ext4, loop", move || {
            let Some((mounted, mnt)) = kernel::mount(place)? else {
                return Err("cannot mount".to_owned());
            };
            let direct = rustix::fs::OFlags::DIRECT.bits().cast_signed();
            let began = std::time::Instant::now();
            beside(APPENDERS, |k| {
                let fail = |e: std::io::Error| e.to_string();
                let file = std::fs::OpenOptions::new()
                    .write(true)
                    .create(true)
                    .truncate(true)
                    .custom_flags(direct)
                    .open(mnt.join(format!("f{k}")))
                    .map_err(fail)?;
                let chunk = AlignedBuf::copy_of(&[k as u8; APPEND_BYTES]);
                for at in (0..each).step_by(APPEND_BYTES) {
                    file.write_all_at(&chunk, at).map_err(fail)?;
                }
                Ok(())
            })?;
            let seconds = began.elapsed().as_secs_f64();
            let (mut most, mut all) = (0.0f64, 0.0);
            for k in 0..APPENDERS {
                let extents = kernel::extents(&mnt.join(format!("f{k}")))?;
                most = most.max(extents);
                all += extents;
            }
            mounted.unmount()?;
            Ok(Sample::rate(total as f64 / 1e6, seconds)
                .with("extents a file, most", most)
                .with("extents, all files", all))
        });
    }
    plan.run(workload, rows)
}
