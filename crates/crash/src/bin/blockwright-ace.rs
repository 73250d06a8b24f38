//! `cargo xtask crash ace`: all short workloads, or drawn longer ones, on both formats.

use blockwright_crash::Format;
use blockwright_crash::ace::run;
use blockwright_crash::script::{Persist, drawn, sequences};
use std::process::ExitCode;
use std::time::Instant;

const USAGE: &str = "usage: ace [--ops 1|2|3] [--seeds N] [--first SEED] [--format ext4|f2fs] [--part I/N]
  --ops N      operations of a workload (2); up to 2 all workloads are run, unless --seeds says how many are drawn
  --seeds N    so many drawn workloads (3 operations: 2000)
  --part I/N   one workload in N, from the Ith on (from 0): runs of all parts are a run of all workloads";

/// `I/N`, with `I` below `N`.
fn part_of(text: &str) -> Option<(usize, usize)> {
    let (part, parts) = text.split_once('/')?;
    let (part, parts) = (part.parse().ok()?, parts.parse().ok()?);
    (part < parts).then_some((part, parts))
}

fn main() -> ExitCode {
    let (mut ops, mut seeds, mut first) = (2, None, 0);
    let mut formats = vec![Format::Ext4, Format::F2fs];
    let mut part = (0, 1);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let value = args.next().unwrap_or_default();
        let number = value.parse::<u64>().ok();
        match (arg.as_str(), number, value.as_str()) {
            ("--ops", Some(n @ 1..=4), _) => ops = n as usize,
            ("--seeds", Some(n), _) => seeds = Some(n),
            ("--first", Some(n), _) => first = n,
            ("--part", _, text) if part_of(text).is_some() => {
                part = part_of(text).unwrap_or(part);
            }
            ("--format", _, "ext4") => formats = vec![Format::Ext4],
            ("--format", _, "f2fs") => formats = vec![Format::F2fs],
            _ => {
                eprintln!("{USAGE}");
                return ExitCode::from(2);
            }
        }
    }
    let all = match (ops, seeds) {
        (1 | 2, None) => sequences(ops, &Persist::ALL[..]),
        (_, n) => (first..first + n.unwrap_or(2000))
            .map(|seed| drawn(ops, seed))
            .collect(),
    };
    let all: Vec<_> = all.into_iter().skip(part.0).step_by(part.1).collect();
    let mut ok = true;
    for format in formats {
        let began = Instant::now();
        match run(format, &all, 500) {
            Ok(done) => println!(
                "{format:?}, {ops} operations, part {} of {}: {done:?}, {} s",
                part.0,
                part.1,
                began.elapsed().as_secs()
            ),
            Err(e) => {
                ok = false;
                println!(
                    "{format:?}, {ops} operations, part {} of {}, {} s: {e}",
                    part.0,
                    part.1,
                    began.elapsed().as_secs()
                );
            }
        }
    }
    if ok {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
