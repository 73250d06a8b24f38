//! Threads of a workload take turns, as the seed says: the same seed gives the same run, so what a crash of it shows can be looked
//! for again.

use crate::plan::{F2fsSwitches, Format, Plan};
use crate::{Explored, fresh, workload};
use blockwright_device::sim::recording::Action;
use blockwright_device::{MemoryDevice, RecordingDevice};
use std::sync::Arc;

/// What a run wrote: what was done, where, and how much. Contents differ by times.
type Log = Vec<(&'static str, u64, u64)>;

fn run(plan: &Plan, base: &MemoryDevice) -> Log {
    let recording = Arc::new(RecordingDevice::with_completions(base, plan.completions));
    let mut done = Explored::default();
    let ran = workload::run(plan, &recording, None, &mut done);
    // Not dropped before the log is read.
    let _left = ran.unwrap_or_else(|e| panic!("{e}"));
    let what = |action: &Action| match action {
        Action::Write { .. } => "write",
        Action::WriteZeroes { .. } => "zeroes",
        Action::Discard { .. } => "discard",
        Action::Flush => "flush",
        Action::Marker(_) => "marker",
    };
    let log = recording.log();
    log.iter()
        .map(|e| (what(&e.action), e.offset.0, e.bytes()))
        .collect()
}

#[test]
#[cfg_attr(
    not(debug_assertions),
    ignore = "only locks of debug builds know of turns"
)]
fn a_seed_repeats_a_run_of_several_threads() {
    if !blockwright_oracles::have(&["mkfs.f2fs"]) {
        return;
    }
    for seed in 0..4 {
        let plan = Plan {
            format: Format::F2fs,
            block_bytes: 4096,
            threads: 3,
            direct: seed % 2 == 1,
            rich: true,
            small_caches: seed % 3 == 1,
            operations: 60,
            f2fs: F2fsSwitches {
                nodes_left: [None, Some(0)][(seed % 2) as usize],
                ..F2fsSwitches::default()
            },
            ..Plan::small(seed)
        }
        .without_others();
        let base = fresh::fresh_volume(&plan).expect("a volume");
        let first = run(&plan, &base);
        assert!(first.len() > 100, "{} entries", first.len());
        for _ in 0..2 {
            let again = run(&plan, &base);
            let same = first.iter().zip(&again).take_while(|(a, b)| a == b).count();
            assert!(
                first == again,
                "seed {seed}: after {same} entries of {} another run went on differently: {:?}, not {:?}",
                first.len(),
                again.get(same),
                first.get(same)
            );
        }
    }
}
