//! The test programs of the workspace. Cargo builds them; they run here, several at a time, because cargo runs one after the other, and most leave a
//! processor idle: one long test is left at the end, or a disk is waited for.
//!
//! As many tests run at once as there are processors, and one more: each program runs its tests one by one. What a program prints is shown when it has
//! ended, unless it is the only one.

use crate::tools::cargo_path;
use crate::workspace;
use std::fs::File;
use std::io::{BufRead, BufReader, Seek};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// A program with tests of one target of one package.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Program {
    path: PathBuf,
    /// The package's folder, which is the program's working directory.
    package: PathBuf,
    /// What was compiled: its source, with the name of the package's folder.
    source: String,
}

/// What the programs run with.
pub(crate) struct Setting<'a> {
    /// This program, which guards each of them.
    pub(crate) guard: &'a Path,
    /// For the programs: what `cargo test` takes behind `--`.
    pub(crate) args: &'a [String],
    pub(crate) environment: &'a [(&'a str, std::ffi::OsString)],
}

/// Builds what `selection` (arguments of `cargo test`) names.
///
/// # Errors
/// Cargo cannot be run, or fails; it has said why.
pub(crate) fn build(selection: &[String]) -> Result<Vec<Program>, String> {
    let mut cargo = Command::new(cargo_path());
    cargo.args([
        "test",
        "--no-run",
        "--message-format=json-render-diagnostics",
    ]);
    cargo.args(selection).current_dir(workspace());
    let mut child = cargo
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| format!("cannot run cargo: {e}"))?;
    let mut programs = Vec::new();
    if let Some(out) = child.stdout.take() {
        let messages = BufReader::new(out).lines().map_while(Result::ok);
        programs.extend(messages.filter_map(|message| program(&message)));
    }
    match child.wait() {
        Ok(status) if status.success() => Ok(programs),
        Ok(status) => Err(format!("cargo test --no-run: {status}")),
        Err(e) => Err(format!("cargo test --no-run: {e}")),
    }
}

/// The program that a message of cargo's names, if it is one of tests.
fn program(message: &str) -> Option<Program> {
    let message: serde_json::Value = serde_json::from_str(message).ok()?;
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let package = Path::new(message["manifest_path"].as_str()?).parent()?;
    let source = Path::new(message["target"]["src_path"].as_str()?);
    let below = source.strip_prefix(package.parent()?).unwrap_or(source);
    Some(Program {
        path: message["executable"].as_str()?.into(),
        package: package.to_owned(),
        source: below.display().to_string(),
    })
}

/// Runs all, and gives `show` each line of what one printed, then how it ended: no line, and its status.
pub(crate) fn run(programs: &[Program], setting: &Setting<'_>, show: impl FnMut(Shown<'_>) + Send) {
    let show = Mutex::new(show);
    let next = AtomicUsize::new(0);
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    let alone = programs.len() == 1;
    thread::scope(|scope| {
        for _ in 0..(processors + 1).min(programs.len()) {
            scope.spawn(|| {
                while let Some(program) = programs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match alone {
                        true => program.run_alone(setting, &show),
                        false => program.run_beside(setting, &show),
                    }
                }
            });
        }
    });
}

/// A part of what a run prints.
pub(crate) enum Shown<'a> {
    Line(&'a str),
    /// The program's source, and its status or why there is none.
    Ended(&'a str, Result<ExitStatus, String>),
}

impl Program {
    fn command(&self, setting: &Setting<'_>) -> Command {
        let mut command = Command::new(setting.guard);
        command.arg("guard").arg(&self.path).args(setting.args);
        command.current_dir(&self.package);
        command.env("CARGO_MANIFEST_DIR", &self.package);
        command.envs(
            setting
                .environment
                .iter()
                .map(|(name, value)| (name, value)),
        );
        command
    }

    fn header(&self) -> String {
        format!("     Running {} ({})", self.source, self.path.display())
    }

    /// As it comes, and tests side by side as the harness does it.
    fn run_alone<S: FnMut(Shown<'_>)>(&self, setting: &Setting<'_>, show: &Mutex<S>) {
        let mut show = show.lock().unwrap_or_else(PoisonError::into_inner);
        show(Shown::Line(&self.header()));
        let spawned = self.command(setting).stdout(Stdio::piped()).spawn();
        let ended = spawned.and_then(|mut child| {
            if let Some(out) = child.stdout.take() {
                lines(out, |line| show(Shown::Line(line)));
            }
            child.wait()
        });
        show(Shown::Ended(&self.source, ended.map_err(|e| e.to_string())));
    }

    /// Beside others: all at its end.
    fn run_beside<S: FnMut(Shown<'_>)>(&self, setting: &Setting<'_>, show: &Mutex<S>) {
        let mut command = self.command(setting);
        if std::env::var_os("RUST_TEST_THREADS").is_none() {
            command.env("RUST_TEST_THREADS", "1");
        }
        let ended = tempfile::tempfile().and_then(|mut printed| {
            let (out, error) = (printed.try_clone()?, printed.try_clone()?);
            let status = command.stdout(out).stderr(error).status()?;
            printed.rewind()?;
            Ok((printed, status))
        });
        let (printed, ended): (Option<File>, _) = match ended {
            Ok((printed, status)) => (Some(printed), Ok(status)),
            Err(e) => (None, Err(e.to_string())),
        };
        let mut show = show.lock().unwrap_or_else(PoisonError::into_inner);
        show(Shown::Line(&self.header()));
        if let Some(printed) = printed {
            lines(printed, |line| show(Shown::Line(line)));
        }
        show(Shown::Ended(&self.source, ended));
    }
}

/// Each line of a stream, with bytes that are no UTF-8 replaced.
pub(crate) fn lines(from: impl std::io::Read, mut each: impl FnMut(&str)) {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
        each(String::from_utf8_lossy(&line).trim_end_matches('\n'));
        line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn artifact(test: bool, executable: &str) -> String {
        serde_json::json!({
            "reason": "compiler-artifact",
            "manifest_path": "/w/crates/a/Cargo.toml",
            "target": {"src_path": "/w/crates/a/tests/b.rs"},
            "profile": {"test": test},
            "executable": (!executable.is_empty()).then_some(executable),
        })
        .to_string()
    }

    #[test]
    fn programs_are_the_artifacts_with_tests() {
        assert_eq!(
            program(&artifact(true, "/w/target/b-1f")),
            Some(Program {
                path: "/w/target/b-1f".into(),
                package: "/w/crates/a".into(),
                source: "a/tests/b.rs".into(),
            })
        );
        assert_eq!(program(&artifact(false, "/w/target/a")), None);
        assert_eq!(program(&artifact(true, "")), None);
        assert_eq!(
            program(r#"{"reason":"build-finished","success":true}"#),
            None
        );
        assert_eq!(program("warning: text"), None);
    }

    fn scripts(dir: &Path, texts: &[&str]) -> Vec<Program> {
        let script = |(n, text): (usize, &&str)| {
            let path = dir.join(format!("{n}"));
            std::fs::write(&path, text).unwrap();
            Program {
                path,
                package: dir.to_owned(),
                source: format!("tests/{n}.rs"),
            }
        };
        texts.iter().enumerate().map(script).collect()
    }

    fn ran(texts: &[&str]) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        // `sh guard PROGRAM`, in this folder.
        std::fs::write(dir.path().join("guard"), "exec sh \"$1\"\n").unwrap();
        let programs = scripts(dir.path(), texts);
        let setting = Setting {
            guard: Path::new("sh"),
            args: &[],
            environment: &[("BW_SAYS", "hello".into())],
        };
        let shown = Mutex::new(Vec::new());
        run(&programs, &setting, |part| {
            let text = match part {
                Shown::Line(line) if line.contains("Running") => "running".to_owned(),
                Shown::Line(line) => line.to_owned(),
                Shown::Ended(source, status) => {
                    format!("{source}: {:?}", status.unwrap().code())
                }
            };
            shown.lock().unwrap().push(text);
        });
        shown.into_inner().unwrap()
    }

    #[test]
    fn what_programs_print_is_not_mixed() {
        let text = "echo $BW_SAYS; sleep 0.1; echo there >&2; exit 3";
        let shown = ran(&[text, text, text, text, text]);
        let parts: Vec<_> = shown.chunks(4).collect();
        assert_eq!(parts.len(), 5);
        for part in parts {
            assert_eq!(part[..3], ["running", "hello", "there"]);
            assert!(part[3].ends_with(".rs: Some(3)"), "{part:?}");
        }
    }

    #[test]
    fn one_program_is_shown_as_it_comes() {
        assert_eq!(
            ran(&["echo a; exit 1"]),
            ["running", "a", "tests/0.rs: Some(1)"]
        );
    }
}
