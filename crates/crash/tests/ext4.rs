//! ext4 under power loss. Small workloads are cut at every write, larger ones at sampled points; each cut is
//! tried with all, none, some and torn unflushed writes. A failure prints its seed, cut and policy.

use blockwright_crash::{Cuts, Explored, Plan, explore};
use blockwright_device::sim::recording::Completions;
use blockwright_ext4::comparison::{Comparison, Preallocation};

fn preallocating(preallocation: Preallocation) -> Comparison {
    Comparison {
        preallocation,
        ..Comparison::default()
    }
}

fn run(plan: Plan, cuts: Cuts) -> Explored {
    match explore(&plan, cuts, 40) {
        Ok(done) => {
            println!("{done:?}");
            assert!(done.images > 20, "hardly anything was cut: {done:?}");
            done
        }
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn every_cut_of_small_workloads() {
    for seed in 0..6 {
        run(Plan::small(seed), Cuts::All);
    }
}

#[test]
fn sampled_cuts_of_larger_workloads() {
    for seed in 100..104 {
        let plan = Plan {
            operations: 600,
            file_bytes_max: 300_000,
            ..Plan::small(seed)
        };
        run(plan, Cuts::Sample(40));
    }
}

#[test]
fn completions_out_of_order() {
    for seed in 200..204 {
        let plan = Plan {
            completions: Completions::Deferred { seed },
            ..Plan::small(seed)
        };
        run(plan, Cuts::Sample(60));
    }
}

#[test]
fn direct_writes_and_switches() {
    let (mut preallocated, mut finished_here) = (0, 0);
    for seed in 600..606 {
        let plan = Plan {
            block_bytes: [1024, 4096][(seed % 2) as usize],
            operations: 120,
            direct: true,
            compared: seed % 3 == 0,
            completions: match seed % 3 {
                1 => Completions::Deferred { seed },
                _ => Completions::Inline,
            },
            ..Plan::small(seed)
        };
        let done = run(plan, Cuts::Sample(40));
        preallocated += done.preallocated;
        finished_here += done.finished_here;
    }
    assert!(
        preallocated > 0 && finished_here > 0,
        "{preallocated}, {finished_here}"
    );
}

#[test]
fn blocks_of_4k_inline_data_orphan_file() {
    for (seed, features) in [
        (300, ""),
        (301, "inline_data"),
        (302, "orphan_file,inline_data"),
        (303, "quota"),
    ] {
        let plan = Plan {
            block_bytes: 4096,
            features,
            operations: 150,
            ..Plan::small(seed)
        };
        run(plan, Cuts::Sample(40));
    }
}

#[test]
fn block_mapped_files_and_old_checksums() {
    for (seed, features) in [
        (400, "^extent,^64bit,^metadata_csum"),
        (401, "uninit_bg,^metadata_csum"),
        (402, "^metadata_csum,^64bit,^orphan_file"),
    ] {
        let plan = Plan {
            features,
            operations: 150,
            ..Plan::small(seed)
        };
        run(plan, Cuts::Sample(40));
    }
}

#[test]
fn without_a_journal_a_repair_brings_it_back() {
    for seed in 500..502 {
        let plan = Plan {
            features: "^has_journal",
            journal: false,
            ..Plan::small(seed)
        };
        run(plan, Cuts::Sample(20));
    }
}

/// Files that fit their inodes, outgrow them, and come back when they were cut to nothing.
#[test]
fn small_files_in_their_inodes() {
    for (seed, delayed_allocation, direct, features) in [
        (310, true, false, "inline_data"),
        (311, false, false, "inline_data"),
        (312, true, true, "inline_data"),
        (313, true, false, "inline_data,quota,ea_inode"),
    ] {
        let plan = Plan {
            block_bytes: 4096,
            features,
            operations: 150,
            file_bytes_max: 120,
            small_writes: 50,
            delayed_allocation,
            direct,
            ..Plan::small(seed)
        };
        run(plan, Cuts::Sample(40));
    }
}

/// Chains of orphans, of which any may go first; with blocks that one handle frees together with the inode.
#[test]
fn many_orphans() {
    for (seed, features) in [
        (700, "^orphan_file"),
        (701, "^orphan_file,inline_data"),
        (702, "^orphan_file,quota"),
        (703, "orphan_file"),
        (704, "^orphan_file,^extent,^64bit,^metadata_csum"),
    ] {
        let plan = Plan {
            features,
            operations: 160,
            orphans: true,
            ..Plan::small(seed)
        };
        run(plan, Cuts::Sample(40));
    }
}

/// Two files with the same attributes change names, and the cut decides which is which.
#[test]
fn an_exchange_is_told_by_contents() {
    run(Plan::small(521), Cuts::Sample(40));
}

/// `CRASH_SEEDS=1000..1100` explores further seeds over all layouts; without it, one.
#[test]
fn further_seeds() {
    let text = std::env::var("CRASH_SEEDS").unwrap_or_else(|_| "7000..7001".into());
    let (from, to) = text.split_once("..").expect("CRASH_SEEDS=FROM..TO");
    let seeds = from.parse::<u64>().unwrap()..to.parse().unwrap();
    const LAYOUTS: [(&str, u32); 6] = [
        ("", 1024),
        ("inline_data", 4096),
        ("^extent,^64bit,^metadata_csum", 1024),
        ("quota,orphan_file", 2048),
        ("ea_inode,large_dir", 1024),
        ("^flex_bg,uninit_bg,^metadata_csum", 1024),
    ];
    for seed in seeds {
        let (features, block_bytes) = LAYOUTS[(seed % 6) as usize];
        let completions = match seed % 4 {
            3 => Completions::Deferred { seed },
            _ => Completions::Inline,
        };
        let operations = if seed % 5 == 4 { 800 } else { 120 };
        let plan = Plan {
            features,
            block_bytes,
            completions,
            operations,
            direct: seed % 2 == 1,
            compared: seed % 7 == 6,
            ..Plan::small(seed)
        };
        run(plan, Cuts::Sample(40));
    }
}

/// Many short runs of a file and of several files are allocated, written and made visible together: extents put into leaves and
/// bits into bitmaps by the dozen, unwritten ones converted among them, over several transactions.
#[test]
fn scattered_writes_in_batches() {
    for seed in 800..808 {
        let plan = Plan {
            scattered: true,
            operations: 80,
            file_bytes_max: 400_000,
            block_bytes: [1024, 4096][(seed % 2) as usize],
            delayed_allocation: seed % 4 != 3,
            comparison: preallocating(
                [Preallocation::Tree, Preallocation::None][(seed / 4 % 2) as usize],
            ),
            completions: match seed % 3 {
                1 => Completions::Deferred { seed },
                _ => Completions::Inline,
            },
            features: if seed == 806 { "^extent,^64bit" } else { "" },
            direct: seed % 5 == 4,
            ..Plan::small(seed)
        };
        run(plan, Cuts::Sample(50));
    }
}

/// Every switch of allocation in both positions, buffered and direct writes mixed, on a device full of stale data.
#[test]
fn switches_of_allocation() {
    let switches = [
        (true, Preallocation::Tree, true),
        (false, Preallocation::Tree, false),
        (false, Preallocation::Tree, true),
        (true, Preallocation::List, false),
        (false, Preallocation::List, true),
        (true, Preallocation::None, true),
        (false, Preallocation::None, false),
    ];
    for (n, (delayed_allocation, preallocation, direct)) in switches.into_iter().enumerate() {
        let plan = Plan {
            delayed_allocation,
            comparison: preallocating(preallocation),
            direct,
            operations: 120,
            features: if n % 3 == 2 { "^extent,^64bit" } else { "" },
            ..Plan::small(600 + n as u64)
        };
        run(plan, Cuts::Sample(40));
    }
}

/// What the other tests have in one position only.
#[test]
fn further_switches() {
    for (seed, threads, tuned) in [
        (620, 3, &[][..]),
        (621, 1, &[("write_past_bytes", 0), ("mb_stream_req", 0)]),
        (
            622,
            1,
            &[("mb_stream_req", 32_768), ("mb_group_prealloc", 1)],
        ),
        (623, 1, &[("mb_max_to_scan", 1), ("write_past_bytes", 0)]),
        (
            624,
            1,
            &[("delayed_allocation", 0), ("reserve_for_root", 1)],
        ),
    ] {
        let plan = Plan {
            direct: true,
            operations: 120,
            threads,
            tuned,
            comparison: Comparison {
                group_commit: seed != 620,
                preallocation: match seed {
                    623 => Preallocation::None,
                    _ => Preallocation::Tree,
                },
            },
            ..Plan::small(seed)
        };
        run(plan, Cuts::Sample(25));
    }
}

/// Everything that a workload can have, in combinations that the seed decides.
fn everything(seed: u64) -> Plan {
    const LAYOUTS: [(&str, u32); 7] = [
        ("", 1024),
        ("", 4096),
        ("inline_data,quota", 4096),
        ("^extent,^64bit,^metadata_csum", 1024),
        ("quota,orphan_file,project", 2048),
        ("ea_inode,large_dir,^orphan_file", 1024),
        ("^flex_bg,uninit_bg,^metadata_csum", 4096),
    ];
    let (features, block_bytes) = LAYOUTS[(seed % 7) as usize];
    let large = seed.is_multiple_of(3);
    let (operations, file_bytes_max, write_bytes_max) = match large {
        true => (90, 3 << 20, 3 << 20),
        false => (160, 120_000, 60_000),
    };
    Plan {
        features,
        block_bytes,
        operations,
        file_bytes_max,
        write_bytes_max,
        completions: match seed % 4 {
            3 => Completions::Deferred { seed },
            _ => Completions::Inline,
        },
        direct: seed % 2 == 1,
        compared: seed % 11 == 6,
        delayed_allocation: seed % 5 != 3,
        comparison: preallocating(
            [
                Preallocation::Tree,
                Preallocation::Tree,
                Preallocation::List,
                Preallocation::None,
            ][(seed / 3 % 4) as usize],
        ),
        scattered: seed % 4 == 2 && !large,
        rich: true,
        small_caches: seed / 2 % 3 == 1,
        threads: [1, 1, 1, 3][(seed / 5 % 4) as usize],
        sequels: 1 + (seed % 2) as usize,
        ..Plan::small(seed)
    }
}

/// Copies from device to device and through the cache, moved ranges, owners that change, inodes and nodes that leave the cache, threads
/// side by side, life after a crash. `CRASH_MORE=1000..1100` explores further seeds.
#[test]
fn everything_at_once() {
    // Large files, small caches, threads; more takes too long here.
    let seeds = match std::env::var("CRASH_MORE") {
        Ok(text) => {
            let (from, to) = text.split_once("..").expect("CRASH_MORE=FROM..TO");
            (from.parse::<u64>().unwrap()..to.parse().unwrap()).collect()
        }
        Err(_) => vec![0, 2, 3, 4, 7, 8, 10, 15],
    };
    let mut failed = Vec::new();
    for seed in seeds {
        let mut plan = everything(seed);
        if plan.threads > 1 && std::env::var_os("CRASH_MORE").is_none() {
            // Their further lives take a minute of processor time.
            plan.sequels = 0;
        }
        match explore(&plan, Cuts::Sample(20), 25) {
            Ok(done) => println!("{seed}: {done:?}"),
            Err(e) => {
                println!("FAILED {e}");
                failed.push(seed);
            }
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}
