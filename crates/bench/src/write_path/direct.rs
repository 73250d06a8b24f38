//! System 2: asynchronous direct overwrites, completed where the device reports them or by a thread.

use super::driver::{self, Style};
use super::kernel;
use super::place::Place;
use super::stream::open;
use crate::machine::have;
use crate::runner::{Plan, Workload};
use crate::table::{Row, Sample, Unit};
use blockwright::VolumeOptions;

const GROUP: &str = "completion of direct writes";
const DEPTH: usize = 64;

fn reported(block: u64) -> &'static str {
    match block {
        4096 => "MiB/s: 1056 old, 1004 deferred, 1193 inline",
        8192 => "MiB/s: 2082 old, 2074 deferred, 2258 inline",
        12288 => "MiB/s: 2332 old, 2309 deferred, 2346 inline",
        _ => "MiB/s: 2453 old, 2465 deferred, 2446 inline",
    }
}

/// Overwrites a file that exists, at random places, `DEPTH` at a time.
pub fn run(plan: &Plan, place: &Place, rows: &mut Vec<Row>) -> Result<(), String> {
    if place.is_virtual() {
        // A model's processor time is free, and that is all this system saves.
        return Ok(());
    }
    let file_bytes: u64 = if plan.quick { 64 << 20 } else { 1 << 30 };
    for block in [4096u64, 8192, 12288, 16384] {
        let name = format!("direct overwrite {} KiB, depth {DEPTH}", block / 1024);
        if !plan.wants(GROUP, &name) {
            continue;
        }
        let slots = file_bytes / block;
        let total = match (plan.quick, place.path()) {
            (true, _) => 20_000.min(slots),
            (false, Some(_)) => 262_144,
            (false, None) => 1_000_000,
        };
        let library = |inline: bool| {
            move || {
                let bench = place.fresh()?;
                let mut options = VolumeOptions::default();
                options.parts.vfs.comparison.deferred_completion = !inline;
                let volume = bench.open(&options)?;
                let file = open(&volume, "/file", true)?;
                let chunk = 1u64 << 20;
                driver::write(
                    &file,
                    file_bytes / chunk,
                    chunk as usize,
                    8,
                    Style::Asking,
                    move |k| k * chunk,
                )?;
                file.sync_all().map_err(|e| e.to_string())?;
                // On memory the submitter waits as libaio's users do: what is measured is the wake-up.
                let style = if place.path().is_some() {
                    Style::Chained
                } else {
                    Style::Asking
                };
                let before = bench.now();
                driver::write(&file, total, block as usize, DEPTH, style, move |k| {
                    scatter(k, slots) * block
                })?;
                let seconds = (bench.now() - before).as_secs_f64();
                let count = |name: &str| {
                    volume
                        .vfs()
                        .counters()
                        .iter()
                        .find(|(n, _)| n == name)
                        .map_or(0.0, |(_, v)| *v as f64)
                };
                let sample = Sample::rate((total * block) as f64 / 1e6, seconds)
                    .with("inline", count("direct_completions_inline"))
                    .with("deferred", count("direct_completions_deferred"));
                drop(file);
                volume.close().map_err(|e| e.to_string())?;
                Ok(sample)
            }
        };
        let mut workload = Workload {
            group: GROUP,
            name,
            device: place.name().to_owned(),
            unit: Unit::MegabytesPerSecond,
            reported: reported(block),
            variants: Vec::new(),
        }
        .variant("inline", library(true))
        .variant("deferred completion", library(false));
        if let (Some(path), true) = (place.path(), have("fio")) {
            let job = |engine: &str, file: &std::path::Path| {
                vec![
                    format!("--filename={}", file.display()),
                    format!("--ioengine={engine}"),
                    "--direct=1".to_owned(),
                    "--rw=randwrite".to_owned(),
                    "--norandommap=1".to_owned(),
                    format!("--bs={block}"),
                    format!("--iodepth={DEPTH}"),
                    format!("--size={file_bytes}"),
                    format!("--io_size={}", total * block),
                ]
            };
            workload = workload.variant("raw file (fio, io_uring)", move || {
                let rate = kernel::fio(&job("io_uring", path))?;
                Ok(Sample::rate(rate / 1e6, 1.0))
            });
            if kernel::available(place) {
                workload = workload.variant("kernel ext4, loop (fio, libaio)", move || {
                    let Some((mounted, mnt)) = kernel::mount(place)? else {
                        return Err("cannot mount".to_owned());
                    };
                    let file = mnt.join("file");
                    let lay = vec![
                        format!("--filename={}", file.display()),
                        "--rw=write".to_owned(),
                        "--bs=1M".to_owned(),
                        format!("--size={file_bytes}"),
                        "--end_fsync=1".to_owned(),
                    ];
                    kernel::fio(&lay)?;
                    let rate = kernel::fio(&job("libaio", &file))?;
                    mounted.unmount()?;
                    Ok(Sample::rate(rate / 1e6, 1.0))
                });
            }
        }
        plan.run(workload, rows)?;
    }
    Ok(())
}

/// The k-th of the numbers below `n` in a scattered order, each once before any comes again; the same in every run.
pub fn scatter(k: u64, n: u64) -> u64 {
    let n = n.max(1);
    let bits = u64::BITS - (n - 1).leading_zeros();
    let mask = 1u64.checked_shl(bits).unwrap_or(0).wrapping_sub(1);
    let mut x = k % n;
    loop {
        // Each step can be undone within this many bits, so no two numbers become one.
        for multiplier in [0x9e37_79b9_7f4a_7c15_u64, 0xbf58_476d_1ce4_e5b9] {
            x ^= x >> (bits / 2).max(1);
            x = x.wrapping_mul(multiplier) & mask;
        }
        x ^= x >> (bits / 2).max(1);
        // What falls outside goes round again, and comes back inside before it meets where it began.
        if x < n {
            return x;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::scatter;
    use std::collections::BTreeSet;

    #[test]
    fn every_place_is_met_once() {
        for n in [1, 2, 3, 7, 64, 1000, 4097] {
            let met: BTreeSet<u64> = (0..n).map(|k| scatter(k, n)).collect();
            assert_eq!(met, (0..n).collect());
            assert_eq!(scatter(n, n), scatter(0, n));
        }
        let far = (1..1000).filter(|k| scatter(*k, 1 << 20).abs_diff(scatter(k - 1, 1 << 20)) > 64);
        assert!(far.count() > 980, "neighbours are apart");
    }
}
