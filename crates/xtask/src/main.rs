//! Developer commands; `USAGE` lists them.

mod boot;
mod ceph;
mod check;
mod circles;
mod damage;
mod dist;
mod fuzz;
mod guard;
mod hosts;
mod licences;
mod load;
mod memory_dir;
mod programs;
mod release;
mod run;
mod s3;
mod scratch;
mod served;
mod skipped;
mod steps;
mod switch;
mod test;
mod tools;

use std::path::PathBuf;
use std::process::ExitCode;

/// The workspace's root, wherever the command was started.
pub(crate) fn workspace() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).map(PathBuf::from).unwrap_or(here)
}

/// Where cargo builds: `CARGO_TARGET_DIR` (relative to the workspace, as commands are run there) or `target`.
pub(crate) fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) if !dir.is_empty() => workspace().join(dir),
        _ => workspace().join("target"),
    }
}

const USAGE: &str = "usage: cargo xtask COMMAND

  check            the house's rules: arrows between rooms, unsafe, length of files, conflict markers, formatting, lints, links of the
                   documentation; the library with each feature alone and in pairs, with the oldest compiler, and for other hosts; licences;
                   a rehearsal of publishing; semantic versioning and advisories where cargo-semver-checks and cargo-audit have what they need
  test [FILTER]    every test, with a count at the end; without a filter each fuzz target for 20 s first
  interop          only the tests against e2fsprogs and the running kernel
  crash [N]        only the crash explorer; N: f2fs under threads that take turns, each run cut three times, until N crash images
                   were recovered (CRASH_FIRST=SEED: from which seed on)
  crash ace [--ops 1|2|3] [--seeds N] [--format ext4|f2fs] [--part I/N]
                   all short workloads over a small alphabet, each cut everywhere (3 operations: drawn by seed)
  fuzz [TARGET] [--seconds N] [--replay] [--keep] [--strict]
                   coverage-guided fuzzing with checksums off: all targets, or these; --replay runs the corpora only,
                   --keep adds to crates/fuzz/corpus what covers more, --strict lets check_repair fail
  damage [--format ext4|f2fs] [--seeds A..B | --fields [--one-in N]]
                   damaged volumes judged and repaired beside e2fsck and fsck.f2fs (0..5000 of both); --fields: each field
                   with eight values (or one in N of these cases): what the engine refuses, check -n names
  boot             a Debian root and its kernel become a disk by one `disk create`, and an emulated machine boots from it (x86-64, root, network)
  ceph             a Ceph cluster on this machine: ext4 and f2fs on RBD by NBD, with an OSD, the NBD server and the mount killed under load
                   (root, or Debian's packages)
  s3               the same on nbdkit's S3 plugin, with an S3 server of this machine (moto, installed by pip)
  hosts            one archive becomes the same volumes on this host, with musl, under WASI (node) and on Windows (Wine), which `test` only does on
                   hosts that are there; `sh scripts/setup.sh hosts` installs them
  big              what is too large for every run: directories of a million entries, release build
  web [OUTPUT]     the web page as one file (default: target/web/blockwright.html)
  dist [--verify] [--quick]
                   the static program with its packages, in target/dist-out; --verify: builds twice, in two folders, and compares;
                   --quick: unoptimised, in target/dist-out-quick, for a look at the steps
  licences [--target TARGET] OUTPUT
                   the works of others in the program, with the texts of their licences
  run              the main job on real input (what `make run` calls)
  bench [ARGS]     the benchmarks (blockwright-bench), release build";

fn main() -> ExitCode {
    if let Some(compiled) = fuzz::wrapped() {
        return compiled;
    }
    let args: Vec<String> = std::env::args().skip(1).collect();
    let rest = args.get(1..).unwrap_or_default();
    match args.first().map(String::as_str) {
        Some("check") => check::run(),
        Some("test") if rest.is_empty() => test::run(rest, fuzz::run_short),
        Some("test") => test::run(rest, fuzz::Fuzzed::default),
        Some("interop") => test::run(&["--test".into(), "interop".into()], fuzz::Fuzzed::default),
        Some("crash") if rest.first().is_some_and(|a| a == "ace") => tools::cargo(
            &[
                "run",
                "-p",
                "blockwright-crash",
                "--bin",
                "blockwright-ace",
                "--",
            ],
            &rest[1..],
        ),
        Some("crash") if !rest.is_empty() => tools::cargo_with(
            &[
                "test",
                "-p",
                "blockwright-crash",
                "--test",
                "f2fs",
                "--",
                "--nocapture",
                "threads_take_turns_and_crash_three_times",
            ],
            &[],
            &[("CRASH_RECOVERIES", rest[0].as_str())],
        ),
        Some("crash") => test::run(
            &["-p".into(), "blockwright-crash".into()],
            fuzz::Fuzzed::default,
        ),
        Some("fuzz") => fuzz::run(rest),
        Some("boot") => boot::run(),
        Some("ceph") => ceph::run(),
        Some("s3") => s3::run(),
        Some("damage") => damage::run(rest),
        Some("hosts") => tools::cargo_with(
            &[
                "test",
                "--package",
                "blockwright-offline",
                "--test",
                "hosts",
            ],
            rest,
            &[("BLOCKWRIGHT_HOSTS", "all")],
        ),
        Some("big") => tools::cargo_with(
            &[
                "test",
                "--release",
                "-p",
                "blockwright",
                "-p",
                "blockwright-cli",
                "--test",
                "huge_dir",
                "--test",
                "huge",
                "--",
                "--nocapture",
                "--test-threads=1",
                "huge",
                "made_looked_up_listed_and_emptied",
            ],
            rest,
            &[("BLOCKWRIGHT_HUGE_DIR", "1000000")],
        ),
        // Starts each program of `test`; see guard.rs.
        Some("guard") => guard::run(rest),
        Some("web") => {
            let output = target_dir().join("web/blockwright.html");
            let output = output.display().to_string();
            // The program that makes the page needs no library, which it compiles for the page alone.
            let words = ["run", "--quiet", "-p", "blockwright-web"];
            let words = [&words[..], &["--no-default-features", "--"]].concat();
            match rest {
                [] => tools::cargo(&[&words[..], &[&output]].concat(), &[]),
                _ => tools::cargo(&words, rest),
            }
        }
        Some("dist") => dist::run(rest),
        Some("licences") => licences::run(rest),
        Some("run") => run::run(),
        Some("bench") => tools::cargo(&["run", "--release", "-p", "blockwright-bench", "--"], rest),
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}
