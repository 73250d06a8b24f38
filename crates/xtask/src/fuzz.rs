//! `cargo xtask fuzz`: builds `crates/fuzz` with libFuzzer and runs its targets.
//!
//! xtask is the compiler's wrapper for the workspace's own crates (`RUSTC_WORKSPACE_WRAPPER`): it adds edge counters,
//! optimisation and `--cfg blockwright_fuzzing`, with which checksums verify as true. The flags are of `-C`, so stable
//! compilers have them; third-party crates are those of every other build, not instrumented and not built again.

use crate::tools::cargo_path;
use crate::{target_dir, workspace};
use std::ffi::OsString;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Set while xtask is the compiler's wrapper.
const WRAPPING: &str = "BLOCKWRIGHT_FUZZ_WRAPPER";

/// In the order of `blockwright_fuzz::TARGETS`.
const TARGETS: &[&str] = &[
    "open_walk",
    "ops",
    "check_repair",
    "replay",
    "tar",
    "compression",
    "listing",
    "nbd",
    "trace",
    "disk",
    "chunks",
    "resize",
];

/// Compiler flags for the workspace's crates. Counters and their table of addresses are what libFuzzer reads. Comparisons are not traced: that takes
/// more than a third of the time, and the mutator knows the structures. Indirect calls (level 4) are not, either: only the value profile reads what
/// they leave, and it is off.
const FLAGS: &[&str] = &[
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=3",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Ccodegen-units=16",
    "-Copt-level=2",
    "--cfg=blockwright_fuzzing",
];

const SECONDS: u64 = 60;
/// What a target has in `make test`.
const SECONDS_IN_TESTS: u64 = 20;
const SEED_IN_TESTS: &str = "-seed=1";
/// More is a fault: the images are a few MiB.
const RSS_MIB: u32 = 2048;
/// One input may take so long, by the wall's clock.
const TIME_LIMIT_SECONDS: u32 = 20;
/// In `make test` only a hang is a fault: a virtual machine may stand still for longer than any input takes.
const TIME_LIMIT_IN_TESTS: &str = "-timeout=120";

/// If this process is the compiler's wrapper: compiles, and returns how that ended.
pub(crate) fn wrapped() -> Option<ExitCode> {
    std::env::var_os(WRAPPING)?;
    let mut args = std::env::args_os().skip(1);
    let compiler = args.next()?;
    let args: Vec<OsString> = args.collect();
    let mut command = Command::new(compiler);
    command.args(&args);
    // Questions about the compiler are answered as always; build scripts are run, not fuzzed.
    let script = args
        .windows(2)
        .any(|w| w[0] == "--crate-name" && w[1] == "build_script_build");
    if args.iter().any(|a| a == "--crate-name") && !script {
        command.args(FLAGS);
    }
    let ended = command.status().ok()?;
    Some(match ended.code() {
        Some(0) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

/// How the targets of a run ended.
#[derive(Default)]
pub(crate) struct Fuzzed {
    pub(crate) passed: u64,
    /// For each target that failed, and for a build that failed: its name, its error, and the end of its log.
    pub(crate) failures: Vec<String>,
}

/// The part for `make test`: every corpus, then each target for a short time.
///
/// The seed is fixed and nothing that earlier runs found is used, so that a run on another machine tries much the same inputs
/// as far as its time allows; the long runs of `cargo xtask fuzz` draw a new seed each time.
pub(crate) fn run_short() -> Fuzzed {
    all(&Wanted {
        targets: TARGETS.iter().map(|t| (*t).to_owned()).collect(),
        seconds: SECONDS_IN_TESTS,
        replay: false,
        keep: false,
        alone: true,
        rest: vec![SEED_IN_TESTS.into(), TIME_LIMIT_IN_TESTS.into()],
    })
}

struct Wanted {
    targets: Vec<String>,
    seconds: u64,
    replay: bool,
    keep: bool,
    /// Begins with the stored corpus alone, not with what earlier runs on this machine found.
    alone: bool,
    rest: Vec<String>,
}

fn parse(args: &[String]) -> Result<Wanted, String> {
    let mut wanted = Wanted {
        targets: Vec::new(),
        seconds: SECONDS,
        replay: false,
        keep: false,
        alone: false,
        rest: Vec::new(),
    };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--seconds" => {
                let n = args.next().and_then(|n| n.parse().ok());
                wanted.seconds = n.ok_or("--seconds takes a number")?;
            }
            "--replay" => wanted.replay = true,
            "--keep" => wanted.keep = true,
            "--strict" => wanted.rest.push(arg.clone()),
            "--" => wanted.rest.extend(args.by_ref().cloned()),
            name if TARGETS.contains(&name) => wanted.targets.push(name.into()),
            other => {
                return Err(format!(
                    "{other} is no target; targets: {}",
                    TARGETS.join(", ")
                ));
            }
        }
    }
    if wanted.targets.is_empty() {
        wanted.targets = TARGETS.iter().map(|t| (*t).to_owned()).collect();
    }
    Ok(wanted)
}

/// `cargo xtask fuzz [TARGET...] [--seconds N] [--replay] [--keep] [--strict] [-- LIBFUZZER_ARGS]`
pub(crate) fn run(args: &[String]) -> ExitCode {
    let wanted = match parse(args) {
        Ok(wanted) => wanted,
        Err(e) => {
            eprintln!("xtask fuzz: {e}");
            return ExitCode::from(2);
        }
    };
    if all(&wanted).failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Builds, and runs the targets.
fn all(wanted: &Wanted) -> Fuzzed {
    let Some(program) = build() else {
        let failure = "xtask fuzz: the instrumented build failed".to_owned();
        eprintln!("{failure}");
        return Fuzzed {
            passed: 0,
            failures: vec![failure],
        };
    };
    // As many at a time as there are processors: a target has one thread that works.
    let next = AtomicUsize::new(0);
    let fuzzed = Mutex::new(Fuzzed::default());
    let work = || {
        while let Some(target) = wanted.targets.get(next.fetch_add(1, Ordering::Relaxed)) {
            let began = Instant::now();
            let ended = fuzz(&program, target, wanted);
            let seconds = began.elapsed().as_secs();
            let mut fuzzed = fuzzed.lock().unwrap_or_else(PoisonError::into_inner);
            match ended {
                Ok(summary) => {
                    fuzzed.passed += 1;
                    println!("fuzz {target}: {summary}, {seconds} s");
                }
                Err(e) => {
                    let failure = format!("fuzz {target}: FAILED: {e}");
                    eprintln!("{failure}");
                    fuzzed.failures.push(failure);
                }
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    fuzzed.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn build() -> Option<PathBuf> {
    let this = std::env::current_exe().ok()?;
    // A copy: cargo may build xtask again while this one wraps.
    // Cargo knows the wrapper's name and not what it adds: other flags, another name.
    let mut flags = DefaultHasher::new();
    FLAGS.hash(&mut flags);
    let name = format!("wrapper-{:016x}", flags.finish());
    let wrapper = target_dir().join("fuzz").join(name);
    fs::create_dir_all(wrapper.parent()?).ok()?;
    fs::copy(this, &wrapper).ok()?;
    let built = Command::new(cargo_path())
        // Of the whole workspace: so third-party crates have the features that they have in other builds, and are not built twice.
        .args([
            "build",
            "--workspace",
            "--features",
            "blockwright-fuzz/libfuzzer",
            "--bin",
            "blockwright-fuzz",
        ])
        .env("RUSTC_WORKSPACE_WRAPPER", &wrapper)
        .env(WRAPPING, "1")
        .current_dir(workspace())
        .status()
        .is_ok_and(|s| s.success());
    built.then(|| target_dir().join("debug").join("blockwright-fuzz"))
}

/// Runs one target; the summary of what it did.
fn fuzz(program: &Path, target: &str, wanted: &Wanted) -> Result<String, String> {
    let kept = workspace().join("crates/fuzz/corpus").join(target);
    let work = target_dir().join("fuzz");
    let corpus = if wanted.alone {
        "corpus-of-tests"
    } else {
        "corpus"
    };
    let (found, faults) = (
        work.join(corpus).join(target),
        work.join("faults").join(target),
    );
    if wanted.alone && found.exists() {
        fs::remove_dir_all(&found).map_err(|e| format!("{}: {e}", found.display()))?;
    }
    for dir in [&found, &faults] {
        fs::create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    }
    let log = work.join(format!("{target}.log"));
    let to = fs::File::create(&log).map_err(|e| format!("{}: {e}", log.display()))?;
    let mut command = Command::new(program);
    command
        .env("BLOCKWRIGHT_FUZZ_TARGET", target)
        // The message of a panic says what is wrong; frames would push it out of the end of a log.
        .env("RUST_BACKTRACE", "0")
        .env("BLOCKWRIGHT_FUZZ_SEEDS", &found)
        .arg(format!("-artifact_prefix={}/", faults.display()))
        .arg(format!("-rss_limit_mb={RSS_MIB}"))
        .arg(format!("-timeout={TIME_LIMIT_SECONDS}"))
        .args(["-print_final_stats=1", "-use_value_profile=0"])
        // Weighing inputs by how rare their features are takes a third of the time, and reaches fewer edges in what is left.
        .arg("-entropic=0")
        .stdout(to.try_clone().map_err(|e| e.to_string())?)
        .stderr(to)
        .stdin(Stdio::null());
    if wanted.keep {
        fs::create_dir_all(&kept).map_err(|e| format!("{}: {e}", kept.display()))?;
        command.arg("-set_cover_merge=1").arg(&kept);
    } else if wanted.replay {
        command.arg("-runs=0");
    } else {
        command.arg(format!("-max_total_time={}", wanted.seconds));
    }
    for arg in &wanted.rest {
        if arg == "--strict" {
            command.env("BLOCKWRIGHT_FUZZ_STRICT", "1");
        } else {
            command.arg(arg);
        }
    }
    command.arg(&found);
    if kept.is_dir() && !wanted.keep {
        command.arg(&kept);
    }
    let ended = command.status().map_err(|e| e.to_string())?;
    let said = fs::read(&log).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    if !ended.success() {
        return Err(format!(
            "{ended}; log in {}\n{}",
            log.display(),
            excerpt(&said)
        ));
    }
    Ok(summary(&said))
}

/// Most bytes of a log in a report. A report of a test run may keep no more than its end.
const EXCERPT_BYTES: usize = 3000;

/// The description of a fault in a log: the panic, libFuzzer's name for it, and the input, which libFuzzer prints in base64
/// when it is short.
fn excerpt(said: &str) -> String {
    let words = [
        "panicked at",
        "ERROR: libFuzzer",
        "SUMMARY:",
        "MS: ",
        "Base64: ",
        "error:",
    ];
    let lines: Vec<&str> = said.lines().collect();
    let mut out = String::new();
    for (at, line) in lines.iter().enumerate() {
        if words.iter().any(|word| line.contains(word)) {
            // The message of a panic is on the lines behind its place.
            let more = if line.contains("panicked at") { 3 } else { 1 };
            for line in lines[at..].iter().take(more) {
                out.extend(line.chars().take(EXCERPT_BYTES / 2));
                out.push('\n');
            }
        }
    }
    if out.is_empty() {
        let last = lines.len().saturating_sub(30);
        out = lines[last..].join("\n");
    }
    let mut from = out.len().saturating_sub(EXCERPT_BYTES);
    while !out.is_char_boundary(from) {
        from += 1;
    }
    out[from..].to_owned()
}

/// Executions, edges and speed, from libFuzzer's output.
fn summary(said: &str) -> String {
    let stat = |name: &str| {
        let line = said
            .lines()
            .find(|l| l.starts_with("stat::") && l.contains(name));
        line.and_then(|l| l.rsplit(' ').next())
            .unwrap_or("?")
            .to_owned()
    };
    let edges = said.lines().rev().find_map(|l| {
        let mut words = l.split_whitespace().skip_while(|w| *w != "cov:");
        words.nth(1)
    });
    format!(
        "{} executions, {} a second, {} edges, {} new inputs, {} MiB",
        stat("number_of_executed_units"),
        stat("average_exec_per_sec"),
        edges.unwrap_or("?"),
        stat("new_units_added"),
        stat("peak_rss_mb"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_understood() {
        let args = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let wanted = parse(&args("tar --seconds 5 -- -runs=3")).unwrap();
        assert_eq!(
            (wanted.targets, wanted.seconds),
            (vec!["tar".to_owned()], 5)
        );
        assert_eq!(wanted.rest, ["-runs=3"]);
        assert!(parse(&args("unknown")).is_err());
        assert_eq!(parse(&[]).unwrap().targets.len(), TARGETS.len());
    }

    #[test]
    fn targets_are_those_of_the_crate() {
        let dir = workspace().join("crates/fuzz/src/targets");
        let mut text = String::new();
        for entry in fs::read_dir(dir).unwrap().flatten() {
            text += &fs::read_to_string(entry.path()).unwrap();
        }
        let named = text.matches("    name: \"").count();
        assert_eq!(named, TARGETS.len());
        for target in TARGETS {
            assert!(text.contains(&format!("name: \"{target}\",")), "{target}");
        }
    }

    #[test]
    fn an_excerpt_has_the_message_of_a_panic_and_the_input() {
        let noise = "#1 NEW cov: 1\n".repeat(2000);
        let fault = "thread 'x' panicked at src/a.rs:1:2:\nwhat is wrong\nnote: run\n==7== ERROR: libFuzzer: deadly signal\n\
                     MS: 1 ShuffleBytes-; base unit: abc\nBase64: aGVsbG8=\n";
        let text = excerpt(&format!("{noise}{fault}"));
        assert!(text.contains("what is wrong"), "{text}");
        assert!(text.contains("Base64: aGVsbG8="), "{text}");
        assert!(
            text.len() <= EXCERPT_BYTES && !text.contains("NEW cov"),
            "{text}"
        );
        assert!(excerpt(&noise).contains("NEW cov"));
    }

    #[test]
    fn a_summary_is_read_from_the_log() {
        let said = "#8 DONE cov: 123 ft: 9 corp: 4\nstat::number_of_executed_units: 77\nstat::peak_rss_mb: 50\n";
        assert!(summary(said).starts_with("77 executions, ? a second, 123 edges"));
    }
}
