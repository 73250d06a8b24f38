//! The same workloads through the library: no kernel between the program and the volume.

use super::jobs::{Job, Kind, Sizes};
use crate::runner;
use crate::table::{Sample, Unit};
use crate::volumes::Format;
use crate::write_path::{self, Bench, Place, Style, Work, beside, open, scatter};
use blockwright::{Volume, VolumeOptions};
use blockwright_device::AlignedBuf;
use std::sync::Arc;
use std::time::Instant;

type Result<T> = std::result::Result<T, String>;

const JOBS: usize = 32;

/// A fresh volume of a format.
pub fn fresh(place: &Place, format: Format) -> Result<Bench> {
    match format {
        Format::Ext4 => place.fresh(),
        Format::F2fs => place.fresh_f2fs(),
    }
}

/// As a mount has them: nothing of an image that is fully written becomes a hole again.
pub fn options(format: Format) -> VolumeOptions {
    let mut options = VolumeOptions::default();
    options.parts.f2fs.discard = format == Format::Ext4;
    options
}

/// A job for the runner, given where, in which format, and how much memory is touched before.
pub type Library = Box<dyn Fn(&Place, Format, u64) -> Result<Sample>>;

/// What the library does for a workload.
pub fn work(job: &Job, sizes: &Sizes) -> Option<Library> {
    let (kind, s, unit) = (job.kind, *sizes, job.unit);
    Some(Box::new(move |place, format, touch| {
        let bench = fresh(place, format)?;
        let mut volume = bench.open(&options(format))?;
        if matches!(kind, Kind::Overwrite | Kind::Read) {
            let bytes = if kind == Kind::Read { s.stream } else { s.file };
            stream(&volume, "/file", bytes, 1 << 20)?;
        }
        if let Kind::Resynced(jobs) = kind {
            for job in 0..jobs {
                stream(&volume, &format!("/job.{job}"), s.resynced, 64 << 10)?;
            }
        }
        if kind == Kind::Read {
            volume.close().map_err(text)?;
            volume = bench.open(&options(format))?;
        }
        runner::touch(touch)?;
        let began = Instant::now();
        let amount = timed(&volume, kind, &s)?;
        let seconds = began.elapsed().as_secs_f64();
        volume.close().map_err(text)?;
        Ok(Sample::rate(
            match unit {
                Unit::MegabytesPerSecond => amount as f64 / 1e6,
                Unit::OpsPerSecond => amount as f64 / kind.op_bytes() as f64,
            },
            seconds,
        ))
    }))
}

fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// Writes one file from its start, and syncs it.
fn stream(volume: &Volume, path: &str, bytes: u64, each: usize) -> Result<()> {
    let file = open(volume, path, false)?;
    let chunk = vec![0x5a; each];
    for k in 0..bytes / each as u64 {
        file.write_all_at(&chunk, k * each as u64).map_err(text)?;
    }
    file.sync_data().map_err(text)
}

/// Bytes moved.
fn timed(volume: &Volume, kind: Kind, s: &Sizes) -> Result<u64> {
    match kind {
        Kind::Stream(each) => {
            let bytes = if each == 4096 { s.small } else { s.stream };
            stream(volume, "/file", bytes, each)?;
            Ok(bytes)
        }
        Kind::Random => {
            let file = open(volume, "/file", false)?;
            let blocks = s.random / 4096;
            for k in 0..blocks {
                // Each block once, as fio's map of them has it: an odd stride meets all of a power of two.
                let at = k.wrapping_mul(0x9e37_79b1) % blocks.next_power_of_two();
                file.write_all_at(&[7; 4096], at * 4096).map_err(text)?;
            }
            file.sync_data().map_err(text)?;
            Ok(blocks * 4096)
        }
        Kind::Overwrite => {
            let file = open(volume, "/file", true)?;
            let (slots, total) = (s.file / 4096, s.overwritten / 4096);
            write_path::driver_write(&file, total, 4096, 64, Style::Chained, move |k| {
                scatter(k, slots) * 4096
            })?;
            Ok(total * 4096)
        }
        Kind::Append(each) => {
            let bytes = if each == 4096 {
                s.append_small
            } else {
                s.append_large
            };
            let data = AlignedBuf::copy_of(&vec![3; each]);
            beside(JOBS, |job| {
                let file = open(volume, &format!("/job.{job}"), true)?;
                for k in 0..bytes / each as u64 {
                    file.write_all_at(&data, k * each as u64).map_err(text)?;
                }
                Ok(())
            })?;
            Ok(bytes * JOBS as u64)
        }
        Kind::Read => {
            let file = open(volume, "/file", false)?;
            let mut buffer = vec![0; 1 << 20];
            for k in 0..s.stream >> 20 {
                let n = file.read_at(&mut buffer, k << 20).map_err(text)?;
                if n != buffer.len() {
                    return Err(format!("only {n} bytes were read"));
                }
            }
            Ok(s.stream)
        }
        Kind::Synced => {
            beside(JOBS, |job| {
                let file = open(volume, &format!("/job.{job}"), false)?;
                for k in 0..s.synced / 4096 {
                    file.write_all_at(&[1; 4096], k * 4096).map_err(text)?;
                    file.sync_all().map_err(text)?;
                }
                Ok(())
            })?;
            Ok(s.synced / 4096 * 4096 * JOBS as u64)
        }
        Kind::Resynced(jobs) => {
            let each = kind.op_bytes();
            beside(jobs, |job| {
                let file = open(volume, &format!("/job.{job}"), false)?;
                for k in 0..s.resynced / each {
                    file.write_all_at(&[2; 8192], k * each).map_err(text)?;
                    file.sync_data().map_err(text)?;
                }
                Ok(())
            })?;
            Ok(s.resynced * jobs as u64)
        }
    }
}

/// One of the workloads of preallocation.
pub fn t(place: &Place, touch: u64, name: &str, work: &Work) -> Result<Sample> {
    let bench = place.fresh()?;
    let options = write_path::options_for(name);
    let volume = Arc::new(bench.open(&options)?);
    runner::touch(touch)?;
    let began = Instant::now();
    let amount = work(&write_path::Library(Arc::clone(&volume)))?;
    volume.sync().map_err(text)?;
    Ok(Sample::rate(amount, began.elapsed().as_secs_f64()))
}
