//! f2fs under power loss: the workloads, cuts and promises of ext4's tests.

use blockwright_crash::{Cleaning, Cuts, Explored, F2fsSwitches, Plan, Room, explore};
use blockwright_device::sim::recording::Completions;
use blockwright_f2fs::{ActiveLogs, BackgroundCleaning, Mode};

/// mkfs.f2fs makes the volumes. Missing on a user's machine: said loudly; in CI: a failure.
fn have_tools() -> bool {
    blockwright_oracles::have(&["mkfs.f2fs", "fsck.f2fs"])
}

/// What was done; `None` when there were no tools.
fn run(plan: Plan, cuts: Cuts) -> Option<Explored> {
    if !have_tools() {
        return None;
    }
    match explore(&plan, cuts, 20) {
        Ok(done) => {
            println!("{done:?}");
            assert!(done.images > 20, "hardly anything was cut: {done:?}");
            Some(done)
        }
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn sampled_cuts_of_small_workloads() {
    for seed in 0..3 {
        let done = run(Plan::f2fs(seed), Cuts::Sample(25));
        assert!(done.is_none_or(|d| d.recovered > 0), "{done:?}");
    }
}

#[test]
fn sampled_cuts_of_a_larger_workload() {
    let plan = Plan {
        operations: 400,
        file_bytes_max: 300_000,
        ..Plan::f2fs(100)
    };
    let done = run(plan, Cuts::Sample(20));
    assert!(done.is_none_or(|d| d.recovered > 0), "{done:?}");
}

#[test]
fn completions_out_of_order() {
    let plan = Plan {
        completions: Completions::Deferred { seed: 200 },
        features: "extra_attr,inode_checksum,flexible_inline_xattr,inode_crtime",
        ..Plan::f2fs(200)
    };
    run(plan, Cuts::Sample(25));
}

/// A volume full of holes, of which sections are cleaned between the operations: what was promised is there, and so
/// is what only cleaning touched.
#[test]
fn cleaning_is_cut() {
    let (mut moved_data, mut moved_nodes) = (0, 0);
    for (seed, mode, segments) in [
        (300, Mode::Adaptive, 1),
        (301, Mode::Lfs, 1),
        (302, Mode::Lfs, 2),
    ] {
        let plan = Plan {
            cleaning: Some(Cleaning {
                mode,
                segments,
                room: Room::Ample,
                background: BackgroundCleaning::Off,
            }),
            completions: match seed % 2 {
                0 => Completions::Inline,
                _ => Completions::Deferred { seed },
            },
            operations: 100,
            ..Plan::f2fs(seed)
        };
        let Some(done) = run(plan, Cuts::Sample(20)) else {
            return;
        };
        moved_data += done.moved_data;
        moved_nodes += done.moved_nodes;
    }
    // Which section is chosen depends on its age, so on the host's speed: one plan alone may move nothing.
    assert!(
        moved_data > 0 && moved_nodes > 0,
        "{moved_data} blocks of data, {moved_nodes} nodes"
    );
}

/// A volume that has room, but no free section: a writer makes one, or fills holes, and so does the background thread.
#[test]
fn cleaning_by_writers_is_cut() {
    use BackgroundCleaning::{Off, Sync};
    let mut moved_nodes = 0;
    for (seed, mode, segments, background) in [
        (310, Mode::Lfs, 1, Off),
        (311, Mode::Lfs, 2, Off),
        (312, Mode::Lfs, 1, Sync),
        (313, Mode::Adaptive, 1, Off),
        (314, Mode::Adaptive, 2, Sync),
    ] {
        let plan = Plan {
            cleaning: Some(Cleaning {
                mode,
                segments,
                room: Room::InHoles,
                background,
            }),
            completions: match seed % 2 {
                0 => Completions::Inline,
                _ => Completions::Deferred { seed },
            },
            operations: 160,
            file_bytes_max: 300_000,
            write_bytes_max: 300_000,
            rich: true,
            direct: true,
            ..Plan::f2fs(seed)
        };
        let Some(d) = run(plan, Cuts::Sample(14)) else {
            return;
        };
        let enough = match (mode, background) {
            (Mode::Lfs, Off) => d.cleaned_by_writers > 0 && d.moved_data > 0,
            // With a reserve of four sections, cleaning begins before holes are filled.
            (Mode::Adaptive, Off) => d.refilled + d.cleaned_by_writers > 0,
            _ => d.cleaned_by_writers + d.cleaned_ahead > 0 && d.moved_data > 0,
        };
        assert!(enough, "{seed}: {d:?}");
        // What is in the sections that are chosen depends on when completions come, where they are deferred.
        moved_nodes += d.moved_nodes;
    }
    assert!(moved_nodes > 0, "no nodes were in what was cleaned");
}

/// Direct writes that take their blocks off the log's lease at once, beside checkpoints, fsync and all else.
#[test]
fn blocks_at_hand_are_cut() {
    let mut preallocated = 0;
    for seed in 700..706 {
        let plan = Plan {
            direct: true,
            whole_blocks: true,
            operations: 100,
            file_bytes_max: 120_000,
            write_bytes_max: 60_000,
            completions: match seed % 3 {
                1 => Completions::Deferred { seed },
                _ => Completions::Inline,
            },
            rich: seed % 2 == 0,
            ..Plan::f2fs(seed)
        };
        let Some(done) = run(plan, Cuts::Sample(25)) else {
            return;
        };
        preallocated += done.preallocated;
    }
    assert!(preallocated > 30, "{preallocated}");
}

/// Nodes are written before a checkpoint closes the gate, beside fsync's chain: cut after each write, so also between these
/// nodes and what makes them count.
#[test]
fn nodes_written_before_checkpoints_are_cut_everywhere() {
    let mut recovered = 0;
    for (seed, mode) in [(400, Mode::Adaptive), (401, Mode::Lfs)] {
        let plan = Plan {
            operations: 40,
            f2fs: F2fsSwitches {
                mode,
                nodes_left: Some(0),
                ..F2fsSwitches::default()
            },
            ..Plan::f2fs(seed)
        };
        let Some(done) = run(plan, Cuts::All) else {
            return;
        };
        assert!(done.early_nodes > 0, "{done:?}");
        recovered += done.recovered;
    }
    assert!(recovered > 0, "no fsync got by without a checkpoint");
}

/// With fewer logs: cleaning, fsync with a chain of nodes (four) and without (two).
#[test]
fn fewer_logs() {
    let mut recovered = 0;
    for (seed, logs, mode) in [
        (500, ActiveLogs::Two, Mode::Adaptive),
        (501, ActiveLogs::Two, Mode::Lfs),
        (502, ActiveLogs::Four, Mode::Adaptive),
        (503, ActiveLogs::Four, Mode::Lfs),
    ] {
        let f2fs = F2fsSwitches {
            mode,
            logs,
            nodes_left: [None, Some(0)][(seed % 2) as usize],
            ..F2fsSwitches::default()
        };
        let small = Plan {
            operations: 40,
            f2fs,
            ..Plan::f2fs(seed)
        };
        let Some(done) = run(small, Cuts::All) else {
            return;
        };
        assert!(done.recovered == 0 || logs == ActiveLogs::Four, "{done:?}");
        recovered += done.recovered;
        let cleaning = Plan {
            cleaning: Some(Cleaning {
                mode,
                segments: 1,
                room: Room::InHoles,
                background: BackgroundCleaning::Off,
            }),
            operations: 120,
            file_bytes_max: 300_000,
            write_bytes_max: 300_000,
            rich: true,
            direct: true,
            f2fs,
            ..Plan::f2fs(seed)
        };
        let done = run(cleaning, Cuts::Sample(10)).expect("the tools are there");
        assert!(
            done.cleaned_by_writers > 0 || done.refilled > 0,
            "{seed}: {done:?}"
        );
    }
    assert!(recovered > 0, "no fsync got by without a checkpoint");
}

/// Files that fit their inodes, outgrow them, and come back when they were cut to nothing.
#[test]
fn small_files_in_their_inodes() {
    for (seed, direct, features) in [
        (310, false, "extra_attr,inode_checksum"),
        (311, true, ""),
        (312, false, "extra_attr,project_quota,quota,inode_checksum"),
    ] {
        let plan = Plan {
            features,
            file_bytes_max: 3400,
            small_writes: 1500,
            direct,
            ..Plan::f2fs(seed)
        };
        run(plan, Cuts::Sample(25));
    }
}

/// What the other tests have in one position only.
#[test]
fn further_switches() {
    for (seed, no_discard, tuned) in [
        (320, true, &[("delayed_allocation", 0)][..]),
        (
            321,
            false,
            &[("write_past_bytes", 0), ("delayed_allocation", 0)],
        ),
        (
            322,
            true,
            &[("write_past_bytes", 0), ("checkpoint_merge", 0)],
        ),
    ] {
        let plan = Plan {
            direct: true,
            operations: 100,
            tuned,
            f2fs: F2fsSwitches {
                no_discard,
                ..F2fsSwitches::default()
            },
            ..Plan::f2fs(seed)
        };
        run(plan, Cuts::Sample(15));
    }
}

/// What quota files count is as exact after a crash as everything else: the checker compares.
#[test]
fn quota_is_exact() {
    for seed in 300..302 {
        let plan = Plan {
            features: "extra_attr,project_quota,quota,inode_checksum",
            ..Plan::f2fs(seed)
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
                room: Room::Ample,
                background: BackgroundCleaning::Off,
            }),
            ..Plan::f2fs(seed)
        };
        run(plan, Cuts::Sample(20));
    }
}

/// Each run of threads is cut, continues on one of its crash images, is cut again, and continues once more. A seed repeats all of it.
/// `CRASH_RECOVERIES=100000` continues with further seeds until this many crash images were recovered, `CRASH_FIRST` says from which on.
#[test]
fn threads_take_turns_and_crash_three_times() {
    if !have_tools() {
        return;
    }
    let number = |name: &str, otherwise: usize| {
        let said = std::env::var(name);
        said.map_or(otherwise, |text| text.parse().expect("a number"))
    };
    let enough = number("CRASH_RECOVERIES", 150);
    let mut recoveries = 0;
    let mut failed = Vec::new();
    for seed in number("CRASH_FIRST", 1).. {
        let seed = seed as u64;
        match explore(&Plan::f2fs_in_turns(seed), Cuts::Sample(8), 100) {
            Ok(done) => {
                recoveries += done.images + done.nested;
                println!("{seed}: {recoveries} recoveries; {done:?}");
            }
            Err(e) => {
                println!("FAILED {seed}: {e}");
                failed.push(seed);
            }
        }
        if recoveries >= enough || failed.len() > 20 {
            break;
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}

/// As ext4's test of this name, and: runs across segments, full volumes, all modes of allocation, quota.
/// `CRASH_MORE=1000..1100` explores further seeds.
#[test]
fn everything_at_once() {
    if !have_tools() {
        return;
    }
    // Large files, small caches, threads, a full volume; more takes too long here.
    let seeds = match std::env::var("CRASH_MORE") {
        Ok(text) => {
            let (from, to) = text.split_once("..").expect("CRASH_MORE=FROM..TO");
            (from.parse::<u64>().unwrap()..to.parse().unwrap()).collect()
        }
        Err(_) => vec![0, 2, 4, 5, 7, 8, 15],
    };
    let mut failed = Vec::new();
    for seed in seeds {
        let mut plan = Plan::f2fs_everything(seed);
        if plan.threads > 1 && std::env::var_os("CRASH_MORE").is_none() {
            // Their further lives take a minute of processor time.
            plan.sequels = 0;
        }
        match explore(&plan, Cuts::Sample(12), 15) {
            Ok(done) => println!("{seed}: {done:?}"),
            Err(e) => {
                println!("FAILED {e}");
                failed.push(seed);
            }
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}
