//! Measures an export through the NBD client: `cargo run --release -p blockwright-device --example nbd_speed -- ADDRESS [--overwrite]`.
//!
//! Reads, and with `--overwrite` writes over all that is there. Each line is the median of five runs of a second, with the slowest and the fastest.

use blockwright_device::host::nbd::{NbdAddress, NbdDevice, NbdOptions};
use blockwright_device::{AlignedBuf, DevOffset, IoSlice, Op, Request, SharedDevice};
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const RUN: Duration = Duration::from_secs(1);
const RUNS: usize = 5;

struct Load {
    name: &'static str,
    bytes: usize,
    depth: usize,
    write: bool,
    random: bool,
}

/// Bytes per second.
fn run(device: &SharedDevice, load: &Load, seed: &mut u64) -> f64 {
    let places = (device.geometry().bytes / load.bytes as u64).max(1);
    let data = IoSlice::from(AlignedBuf::copy_of(&vec![0x5A; load.bytes]));
    let (tell, told) = channel();
    let mut next = 0;
    let mut submit = || {
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        next += 1;
        let place = if load.random { *seed } else { next } % places;
        let op = match load.write {
            true => Op::Write(vec![data.clone()]),
            false => Op::Read(AlignedBuf::for_overwrite(load.bytes)),
        };
        let tell = tell.clone();
        let at = DevOffset(place * load.bytes as u64);
        device.submit(Request::new(op, at, move |done| {
            let _the_end = tell.send(done.result.is_ok());
        }));
    };
    let began = Instant::now();
    (0..load.depth).for_each(|_| submit());
    let (mut done, mut in_flight) = (0usize, load.depth);
    while in_flight > 0 {
        if !told.recv().unwrap_or(false) {
            eprintln!("a request failed");
            std::process::exit(1);
        }
        (done, in_flight) = (done + 1, in_flight - 1);
        if began.elapsed() < RUN {
            submit();
            in_flight += 1;
        }
    }
    if load.write && device.flush().is_err() {
        eprintln!("the flush failed");
        std::process::exit(1);
    }
    (done * load.bytes) as f64 / began.elapsed().as_secs_f64()
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let overwrite = arguments.iter().any(|a| a == "--overwrite");
    let place = arguments.iter().find(|a| !a.starts_with("--"));
    let address = place.and_then(|place| NbdAddress::parse(Path::new(place)));
    let Some(Ok(address)) = address else {
        eprintln!("usage: nbd_speed ADDRESS [--overwrite]");
        std::process::exit(2);
    };
    let options = NbdOptions {
        read_only: !overwrite,
        ..NbdOptions::default()
    };
    let device = match NbdDevice::open(&address, &options) {
        Ok(device) => device,
        Err(e) => {
            eprintln!("{address}: {e}");
            std::process::exit(1);
        }
    };
    let load = |name, bytes, depth, write, random| Load {
        name,
        bytes,
        depth,
        write,
        random,
    };
    let mut seed = 0x9E37_79B9_7F4A_7C15;
    for load in [
        load("read, 4 KiB, random, one at a time", 4096, 1, false, true),
        load("read, 4 KiB, random, 64 in flight", 4096, 64, false, true),
        load("read, 1 MiB, 8 in flight", 1 << 20, 8, false, false),
        load("write, 4 KiB, random, 64 in flight", 4096, 64, true, true),
        load("write, 1 MiB, 8 in flight", 1 << 20, 8, true, false),
    ] {
        if load.write && !overwrite {
            continue;
        }
        let mut speeds: Vec<f64> = (0..RUNS).map(|_| run(&device, &load, &mut seed)).collect();
        speeds.sort_by(f64::total_cmp);
        let mb = |n: usize| speeds[n] / 1e6;
        let each = speeds[RUNS / 2] / load.bytes as f64;
        println!(
            "{:38} {:8.0} MB/s ({:.0} to {:.0}), {each:.0} requests/s",
            load.name,
            mb(RUNS / 2),
            mb(0),
            mb(RUNS - 1)
        );
    }
}
