//! f2fs under power loss: the workloads, cuts and promises of ext4's tests.

use blockwright_crash::workload::{Format, Plan};
use blockwright_crash::{Cuts, explore};
use blockwright_device::sim::recording::Completions;

/// mkfs.f2fs makes the volumes. Missing on a user's machine: said loudly; in CI: a failure.
fn have_tools() -> bool {
    let found = ["mkfs.f2fs", "fsck.f2fs"].iter().all(|tool| {
        std::process::Command::new(tool)
            .arg("-V")
            .stdin(std::process::Stdio::null())
            .output()
            .is_ok()
    });
    assert!(
        found || std::env::var_os("CI").is_none(),
        "f2fs-tools are needed in CI"
    );
    if !found {
        eprintln!("SKIPPED: f2fs-tools are not installed");
    }
    found
}

fn run(plan: Plan, cuts: Cuts) {
    if !have_tools() {
        return;
    }
    match explore(&plan, cuts, 20) {
        Ok(done) => {
            println!("{done:?}");
            assert!(done.images > 20, "hardly anything was cut: {done:?}");
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
        run(plan(seed), Cuts::Sample(25));
    }
}

#[test]
fn sampled_cuts_of_a_larger_workload() {
    let plan = Plan {
        operations: 400,
        file_bytes_max: 300_000,
        ..plan(100)
    };
    run(plan, Cuts::Sample(20));
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
        let plan = Plan {
            completions,
            operations,
            ..plan(seed)
        };
        run(plan, Cuts::Sample(20));
    }
}
