//! Every test in one run, each program under a time limit, with one count at the end.

use crate::fuzz::Fuzzed;
use crate::guard;
use crate::memory_dir;
use crate::switch::UringOn;
use crate::tools::{cargo_path, install_suites, tools_dir};
use crate::workspace;
use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};
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
        self.0.sort_by(|a, b| b.0.cmp(&a.0));
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

/// The setting that makes `xtask guard` start every test program.
fn runner() -> Option<String> {
    let here = std::env::current_exe().ok()?;
    let quoted = serde_json::to_string(here.to_str()?).ok()?;
    Some(format!(
        "target.\"cfg(all())\".runner = [{quoted}, \"guard\"]"
    ))
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

/// Runs `fuzz`, and then `cargo test` over the workspace (or what `args` select). The count at the end includes what was
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
    let memory = memory_dir::new();
    let mut path = tools_dir().join("bin").into_os_string();
    for more in ["/usr/sbin", "/sbin"] {
        path.push(":");
        path.push(more);
    }
    if let Some(old) = std::env::var_os("PATH") {
        path.push(":");
        path.push(old);
    }
    let mut command = Command::new(cargo_path());
    command.args(["test", "--no-fail-fast"]);
    match runner() {
        Some(runner) => command.arg("--config").arg(runner),
        None => {
            eprintln!(
                "xtask test: cannot tell where this program is, so test programs run without a time limit"
            );
            &mut command
        }
    };
    if !args.iter().any(|a| a == "-p" || a == "--package") {
        command.arg("--workspace");
    }
    if let Some(dir) = &memory {
        command.env("TMPDIR", dir.path());
    }
    let child = command
        .args(args)
        .current_dir(workspace())
        .env("PATH", path)
        .env(guard::DEADLINE, deadline.to_string())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(e) => {
            eprintln!("xtask test: cannot run cargo: {e}");
            return ExitCode::FAILURE;
        }
    };
    let mut count = Count::default();
    let mut failures = Failures::default();
    let mut slowest = Slowest::default();
    if let Some(out) = child.stdout.take() {
        let mut lines = BufReader::new(out);
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            let text = String::from_utf8_lossy(&line);
            print!("{text}");
            count.add(text.trim_end());
            failures.add(text.trim_end());
            slowest.add(text.trim_end());
            line.clear();
        }
    }
    let ok = child.wait().is_ok_and(|s| s.success());
    if !ok && count.failed == 0 {
        // A test program that did not even build, or was killed, is a failure too.
        count.failed = 1;
    }
    println!("\nThe slowest test programs:");
    for (_, took) in &slowest.0 {
        println!("    {took}");
    }
    println!("The run took {} s.", begun.elapsed().as_secs());
    for line in fuzzed.failures.iter().chain(&failures.lines) {
        println!("{line}");
    }
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

#[cfg(test)]
mod tests {
    use super::*;

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
