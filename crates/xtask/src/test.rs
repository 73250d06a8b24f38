//! Every test in one run, each program under a time limit, with one count at the end.

use crate::fuzz::Fuzzed;
use crate::guard;
use crate::memory_dir::MemoryDir;
use crate::programs::{self, Program, Setting, Shown};
use crate::switch::UringOn;
use crate::tools::{cargo_path, install_suites, tools_dir};
use crate::workspace;
use std::ffi::OsString;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Sums of the `test result:` lines of all test programs, and of the guard's.
#[derive(Default, Debug, PartialEq, Eq)]
struct Count {
    passed: u64,
    failed: u64,
    ignored: u64,
}

impl Count {
    /// Adds a line like `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
    fn add(&mut self, line: &str) {
        if let Some(n) = line.strip_prefix(guard::SKIPPED) {
            // The harness has counted them as passed.
            let n = n.parse().unwrap_or(0);
            self.passed = self.passed.saturating_sub(n);
            self.ignored += n;
            return;
        }
        let Some(rest) = line.strip_prefix("test result: ") else {
            return;
        };
        let words: Vec<&str> = rest.split_whitespace().collect();
        for pair in words.windows(2) {
            let Ok(n) = pair[0].parse::<u64>() else {
                continue;
            };
            match pair[1].trim_end_matches(';') {
                "passed" => self.passed += n,
                "failed" => self.failed += n,
                "ignored" => self.ignored += n,
                _ => {}
            }
        }
    }
}

/// What the harnesses print of failed tests between `failures:` and `test result:`, for the end of the run.
#[derive(Default)]
struct Failures {
    inside: bool,
    lines: Vec<String>,
}

impl Failures {
    const MOST_LINES: usize = 300;

    fn add(&mut self, line: &str) {
        if line == "failures:" {
            self.inside = true;
        } else if line.starts_with("test result: ") {
            self.inside = false;
        } else if self.inside && self.lines.len() < Self::MOST_LINES {
            self.lines.push(line.to_owned());
        }
    }
}

/// What the programs that took longest took, for the end of the run.
#[derive(Default)]
struct Slowest(Vec<(u64, String)>);

impl Slowest {
    const SHOWN: usize = 15;

    /// Adds a line of the guard's like `xtask guard: took 3 s, 4 s of CPU: stops-1f`.
    fn add(&mut self, line: &str) {
        let Some(rest) = line.strip_prefix(guard::TOOK) else {
            return;
        };
        let seconds = rest.split_once(' ').and_then(|(n, _)| n.parse().ok());
        self.0.extend(seconds.map(|n| (n, rest.to_owned())));
        self.0
            .sort_by_key(|(seconds, _)| std::cmp::Reverse(*seconds));
        self.0.truncate(Self::SHOWN);
    }
}

/// The limit of a whole run. CI treats a longer run as a hang and keeps nothing of it.
const WHOLE: Duration = Duration::from_secs(60 * 60);

/// The second of Unix time at which a run that begins now has to be over.
fn deadline() -> u64 {
    let end = SystemTime::now() + WHOLE;
    end.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// Runs scripts/setup.sh. It says itself what it could not install, and tests say what they miss.
fn set_up() {
    let script = workspace().join("scripts/setup.sh");
    match Command::new("sh").arg(script).status() {
        Ok(status) if status.success() => {}
        Ok(status) => eprintln!("xtask test: scripts/setup.sh: {status}"),
        Err(e) => eprintln!("xtask test: cannot run scripts/setup.sh: {e}"),
    }
}

/// Options of `cargo test` whose value is the next argument.
const WITH_VALUE: &[&str] = &[
    "-p",
    "--package",
    "--exclude",
    "--test",
    "--bin",
    "--example",
    "--bench",
    "-j",
    "--jobs",
    "-F",
    "--features",
    "--profile",
    "--target",
    "--target-dir",
    "--config",
    "--color",
    "--manifest-path",
    "--message-format",
    "-Z",
];

/// Divides the arguments of `cargo test` into those that select what is built, and those for the programs: a filter, and what is behind `--`.
fn divided(args: &[String]) -> (Vec<String>, Vec<String>) {
    let (mut selection, mut programs) = (Vec::new(), Vec::new());
    let mut args = args.iter().cloned();
    while let Some(arg) = args.next() {
        if arg == "--" {
            programs.extend(args.by_ref());
        } else if arg.starts_with('-') {
            let value = WITH_VALUE.contains(&arg.as_str());
            selection.push(arg);
            selection.extend(args.by_ref().take(usize::from(value)));
        } else {
            programs.push(arg);
        }
    }
    let package = |arg: &String| matches!(arg.as_str(), "-p" | "--package" | "--workspace");
    if !selection.iter().any(package) {
        selection.push("--workspace".to_owned());
    }
    (selection, programs)
}

/// What a run has counted and keeps for its end.
#[derive(Default)]
struct Seen {
    count: Count,
    failures: Failures,
    slowest: Slowest,
}

impl Seen {
    fn show(&mut self, line: &str) {
        println!("{line}");
        let line = line.trim_end();
        self.count.add(line);
        self.failures.add(line);
        self.slowest.add(line);
    }

    /// Notes how a program ended. Its harness has counted its failures; one that ended in another way is a failure, too.
    fn ended(&mut self, what: &str, failed_before: u64, status: Result<ExitStatus, String>) {
        let how = match status {
            Ok(status) if status.success() || self.count.failed > failed_before => return,
            Ok(status) => status.to_string(),
            Err(e) => e,
        };
        self.count.failed += 1;
        let line = format!("{what}: {how}");
        println!("{line}");
        self.failures.lines.push(line);
    }

    fn run(&mut self, programs: &[Program], setting: &Setting<'_>) {
        let mut failed_before = self.count.failed;
        programs::run(programs, setting, |part| match part {
            Shown::Line(line) => self.show(line),
            Shown::Ended(source, status) => {
                self.ended(source, failed_before, status);
                failed_before = self.count.failed;
            }
        });
    }

    /// The examples in the documentation, which rustdoc compiles and runs.
    fn run_examples(&mut self, setting: &Setting<'_>) {
        let failed_before = self.count.failed;
        let mut cargo = Command::new(setting.guard);
        cargo.arg("guard").arg(cargo_path());
        cargo.args(["test", "--doc", "--workspace", "--no-fail-fast"]);
        cargo.current_dir(workspace()).stdout(Stdio::piped());
        cargo.envs(
            setting
                .environment
                .iter()
                .map(|(name, value)| (name, value)),
        );
        let ended = cargo.spawn().and_then(|mut child| {
            if let Some(out) = child.stdout.take() {
                programs::lines(out, |line| self.show(line));
            }
            child.wait()
        });
        let ended = ended.map_err(|e| e.to_string());
        self.ended("examples in the documentation", failed_before, ended);
    }
}

/// Runs `fuzz`, and then the tests of the workspace (or those that `args`, of `cargo test`, select). The count at the end includes what was
/// fuzzed, a target as a test. Before it the failures are repeated: the last lines are all that some readers of a log see.
pub(crate) fn run(args: &[String], fuzz: impl FnOnce() -> Fuzzed) -> ExitCode {
    let (begun, deadline) = (Instant::now(), deadline());
    // Side by side: much of the instrumented build is one crate after another, and packages are waited for.
    let (fuzzed, suites) = thread::scope(|scope| {
        let suites = scope.spawn(install_suites);
        let tools = args.is_empty().then(|| scope.spawn(set_up));
        let fuzzed = fuzz();
        if tools.is_some_and(|tools| tools.join().is_err()) {
            eprintln!("xtask test: running scripts/setup.sh panicked");
        }
        (fuzzed, suites.join())
    });
    let suites = suites.unwrap_or_else(|_| Err("installing the suites panicked".to_owned()));
    if let Err(e) = suites {
        if std::env::var_os("CI").is_some() {
            eprintln!("xtask test: {e}");
            return ExitCode::FAILURE;
        }
        eprintln!("xtask test: {e}; tests that need it will be skipped");
    }
    let _uring = UringOn::new();
    let memory = MemoryDir::new();
    let mut environment = vec![
        ("PATH", search_path()),
        (guard::DEADLINE, deadline.to_string().into()),
    ];
    environment.extend(memory.as_ref().map(|dir| ("TMPDIR", dir.path().into())));
    let (selection, for_programs) = divided(args);
    let setting = Setting {
        // Found before cargo builds this program anew.
        guard: &std::env::current_exe().unwrap_or_default(),
        args: &for_programs,
        environment: &environment,
    };
    let mut seen = Seen::default();
    match programs::build(&selection) {
        Ok(programs) => {
            seen.run(&programs, &setting);
            if args.is_empty() {
                seen.run_examples(&setting);
            }
        }
        // As a failed test: it is in the count.
        Err(e) => {
            seen.count.failed += 1;
            seen.failures.lines.push(e);
        }
    }
    if seen.count.passed + seen.count.failed == 0 {
        seen.count.failed += 1;
        seen.failures.lines.push("no test has run".to_owned());
    }
    println!("\nThe slowest test programs:");
    for (_, took) in &seen.slowest.0 {
        println!("    {took}");
    }
    println!("The run took {} s.", begun.elapsed().as_secs());
    for line in fuzzed.failures.iter().chain(&seen.failures.lines) {
        println!("{line}");
    }
    let mut count = seen.count;
    count.passed += fuzzed.passed;
    count.failed += fuzzed.failures.len() as u64;
    println!(
        "\n{} passed, {} failed, {} skipped",
        count.passed, count.failed, count.ignored
    );
    if count.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Where programs are sought: the suites that were installed, and what only root has in its path.
fn search_path() -> OsString {
    let mut path = tools_dir().join("bin").into_os_string();
    for more in ["/usr/sbin", "/sbin"] {
        path.push(":");
        path.push(more);
    }
    if let Some(old) = std::env::var_os("PATH") {
        path.push(":");
        path.push(old);
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn failures_are_kept_for_the_end() {
        let mut failures = Failures::default();
        for line in [
            "test a ... FAILED",
            "failures:",
            "---- a stdout ----",
            "failures:",
            "    a",
            "test result: FAILED. 0 passed",
            "running 1 test",
        ] {
            failures.add(line);
        }
        assert_eq!(failures.lines, ["---- a stdout ----", "    a"]);
    }

    #[test]
    fn arguments_are_divided() {
        let words =
            |text: &str| -> Vec<String> { text.split_whitespace().map(str::to_owned).collect() };
        for (args, selection, programs) in [
            ("", "--workspace", ""),
            ("name", "--workspace", "name"),
            ("--test interop", "--test interop --workspace", ""),
            ("-p a name -- --exact", "-p a", "name --exact"),
            ("--locked -- -p", "--locked --workspace", "-p"),
        ] {
            let (found, rest) = divided(&words(args));
            assert_eq!(found, words(selection), "{args}");
            assert_eq!(rest, words(programs), "{args}");
        }
    }

    #[test]
    fn a_program_that_dies_is_a_failure() {
        let ended = |code| Ok(ExitStatus::from_raw(code));
        let mut seen = Seen::default();
        seen.ended("a", 0, ended(0));
        assert_eq!(seen.count.failed, 0);
        seen.ended("b", 0, ended(9));
        assert_eq!(seen.count.failed, 1);
        // Counted by its harness.
        seen.show("test result: FAILED. 1 passed; 2 failed; 0 ignored");
        seen.ended("c", 1, ended(101 << 8));
        assert_eq!(seen.count.failed, 3);
        assert_eq!(seen.failures.lines, ["b: signal: 9 (SIGKILL)"]);
    }

    #[test]
    fn the_slowest_programs_are_kept() {
        let mut slowest = Slowest::default();
        for n in 0..40 {
            slowest.add(&format!("{}{n} s, 1 s of CPU: p-{n}", guard::TOOK));
        }
        slowest.add("test result: ok. 3 passed");
        let first = slowest.0.first().map(|(_, took)| took.as_str());
        assert_eq!(first, Some("39 s, 1 s of CPU: p-39"));
        assert_eq!(slowest.0.len(), Slowest::SHOWN);
    }

    #[test]
    fn result_lines_add_up() {
        let mut count = Count::default();
        count.add("running 3 tests");
        count.add("test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s");
        count.add("test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out");
        count.add(&format!("{}2", guard::SKIPPED));
        assert_eq!(
            count,
            Count {
                passed: 2,
                failed: 2,
                ignored: 3
            }
        );
    }
}
