//! f2fs under power loss: the workloads, cuts and promises of ext4's tests.

use blockwright_crash::{Cleaning, Cuts, Format, Plan, explore};
use blockwright_device::sim::recording::Completions;
use blockwright_f2fs::Mode;

/// mkfs.f2fs makes the volumes. Missing on a user's machine: said loudly; in CI: a failure.
fn have_tools() -> bool {
    blockwright_oracles::have(&["mkfs.f2fs", "fsck.f2fs"])
}

/// How many files mounts rolled forward; `None` when there were no tools.
fn run(plan: Plan, cuts: Cuts) -> Option<u64> {
    if !have_tools() {
        return None;
    }
    match explore(&plan, cuts, 20) {
        Ok(done) => {
            println!("{done:?}");
            assert!(done.images > 20, "hardly anything was cut: {done:?}");
            Some(done.recovered)
        }
        Err(e) => panic!("{e}"),
    }
}

fn plan(seed: u64) -> Plan {
    Plan {
        format: Format::F2fs,
        block_bytes: 4096,
        ..Plan::small(seed)
    }
}

#[test]
fn sampled_cuts_of_small_workloads() {
    for seed in 0..3 {
        let recovered = run(plan(seed), Cuts::Sample(25));
        assert_ne!(recovered, Some(0), "nothing was rolled forward");
    }
}

#[test]
fn sampled_cuts_of_a_larger_workload() {
    let plan = Plan {
        operations: 400,
        file_bytes_max: 300_000,
        ..plan(100)
    };
    let recovered = run(plan, Cuts::Sample(20));
    assert_ne!(recovered, Some(0), "nothing was rolled forward");
}

#[test]
fn completions_out_of_order() {
    let plan = Plan {
        completions: Completions::Deferred { seed: 200 },
        features: "extra_attr,inode_checksum,flexible_inline_xattr,inode_crtime",
        ..plan(200)
    };
    run(plan, Cuts::Sample(25));
}

/// A volume full of holes, of which sections are cleaned between the operations: what was promised is there, and so
/// is what only cleaning touched.
#[test]
fn cleaning_is_cut() {
    for (seed, mode, segments) in [
        (300, Mode::Adaptive, 1),
        (301, Mode::Lfs, 1),
        (302, Mode::Lfs, 2),
    ] {
        let plan = Plan {
            cleaning: Some(Cleaning { mode, segments }),
            completions: match seed % 2 {
                0 => Completions::Inline,
                _ => Completions::Deferred { seed },
            },
            operations: 100,
            ..plan(seed)
        };
        run(plan, Cuts::Sample(20));
    }
}

/// What quota files count is as exact after a crash as everything else: the checker compares.
#[test]
fn quota_is_exact() {
    for seed in 300..302 {
        let plan = Plan {
            features: "extra_attr,project_quota,quota,inode_checksum",
            ..plan(seed)
        };
        run(plan, Cuts::Sample(25));
    }
}

/// `CRASH_SEEDS=1000..1100` explores further seeds; without it, one.
#[test]
fn further_seeds() {
    let text = std::env::var("CRASH_SEEDS").unwrap_or_else(|_| "7000..7001".into());
    let (from, to) = text.split_once("..").expect("CRASH_SEEDS=FROM..TO");
    let seeds = from.parse::<u64>().unwrap()..to.parse().unwrap();
    for seed in seeds {
        let completions = match seed % 4 {
            3 => Completions::Deferred { seed },
            _ => Completions::Inline,
        };
        let operations = if seed % 5 == 4 { 600 } else { 120 };
        let cleaning = match seed % 6 {
            1 => Some(Mode::Lfs),
            4 => Some(Mode::Adaptive),
            _ => None,
        };
        let plan = Plan {
            completions,
            operations,
            cleaning: cleaning.map(|mode| Cleaning {
                mode,
                segments: 1 + (seed / 6 % 2) as u32,
            }),
            ..plan(seed)
        };
        run(plan, Cuts::Sample(20));
    }
}
