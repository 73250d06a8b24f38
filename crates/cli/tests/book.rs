//! The tutorials in docs/book: every command in them runs, and prints what the page shows.
//!
//! A block of language `console` has commands behind `$ `, and below each some lines of its output. A line `…`
//! stands for any lines, and at the end of a line for its rest. `<!-- needs: NAME -->` above a block names a tool, or `fuse`.

mod common;

use common::{Scratch, have, have_fuse};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A command of a page.
struct Step {
    line: usize,
    command: String,
    /// Parts of its output.
    shows: Vec<String>,
    needs: Option<String>,
}

fn steps(page: &str) -> Vec<Step> {
    let (mut out, mut needs, mut inside) = (Vec::<Step>::new(), None, false);
    for (n, line) in page.lines().enumerate() {
        let comment = line.strip_prefix("<!-- needs: ");
        if let Some(name) = comment.and_then(|rest| rest.strip_suffix(" -->")) {
            needs = Some(name.to_owned());
        } else if line == "```console" {
            inside = true;
        } else if line.starts_with("```") {
            (inside, needs) = (false, None);
        } else if inside && let Some(command) = line.strip_prefix("$ ") {
            out.push(Step {
                line: n + 1,
                command: command.to_owned(),
                shows: Vec::new(),
                needs: needs.clone(),
            });
        } else if inside && line != "…" {
            let step = out.last_mut().expect("output follows a command");
            step.shows
                .push(line.trim_end_matches('…').trim().to_owned());
        }
    }
    out
}

fn available(needs: Option<&str>) -> bool {
    match needs {
        None => true,
        Some("fuse") => have_fuse(),
        Some(tool) => have(tool),
    }
}

/// What ends when the page does, also when it fails.
struct Leftovers(PathBuf);

impl Drop for Leftovers {
    fn drop(&mut self) {
        let quiet = |command: &mut Command| {
            let _ = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
        };
        quiet(
            Command::new(env!("CARGO_BIN_EXE_blockwright"))
                .args(["umount", "-l"])
                .arg(self.0.join("mnt")),
        );
        // The page ends its server itself: by now, the number may be that of another process.
        let is_server = |pid: &str| {
            fs::read_to_string(format!("/proc/{pid}/comm"))
                .is_ok_and(|name| name.trim() == "nbdkit")
        };
        if let Ok(pid) = fs::read_to_string(self.0.join("nbd.pid"))
            && is_server(pid.trim())
        {
            quiet(Command::new("kill").arg(pid.trim()));
        }
    }
}

fn run(page: &Path) {
    let name = page.file_name().unwrap().to_string_lossy().into_owned();
    let text = fs::read_to_string(page).unwrap();
    let scratch = Scratch::new();
    let dir = scratch.dir("work");
    let _leftovers = Leftovers(dir.clone());
    let program = Path::new(env!("CARGO_BIN_EXE_blockwright"));
    let mut path = program.parent().unwrap().as_os_str().to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    // One shell for all, because pages set variables.
    let mut script = String::from("set -u\nexport LC_ALL=C\n");
    let mut steps = steps(&text);
    steps.retain(|step| available(step.needs.as_deref()));
    for (n, step) in steps.iter().enumerate() {
        let _ = write!(
            script,
            "{{ {}\n}} > out.{n} 2>&1 < /dev/null || {{ echo {n} > failed; exit 1; }}\n",
            step.command
        );
    }
    fs::write(dir.join("script"), script).unwrap();
    let status = Command::new("bash")
        .arg("script")
        .current_dir(&dir)
        .env("PATH", path)
        .env_remove("SOURCE_DATE_EPOCH")
        .stdin(Stdio::null())
        .status()
        .unwrap();
    let output = |n: usize| {
        let bytes = fs::read(dir.join(format!("out.{n}"))).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    if let Ok(n) = fs::read_to_string(dir.join("failed")) {
        let n: usize = n.trim().parse().unwrap();
        let (line, command) = (steps[n].line, &steps[n].command);
        panic!("{name}:{line}: {command}\n{}", output(n));
    }
    assert!(status.success(), "{name}: {status}");
    for (n, step) in steps.iter().enumerate() {
        let told = output(n);
        for part in &step.shows {
            assert!(
                told.contains(part.as_str()),
                "{name}:{}: {}: no `{part}` in\n{told}",
                step.line,
                step.command
            );
        }
    }
}

/// The blocks of a language.
fn blocks<'p>(page: &'p str, language: &str) -> Vec<&'p str> {
    let start = format!("```{language}\n");
    let rest = page.split(start.as_str()).skip(1);
    rest.filter_map(|rest| rest.split("\n```").next()).collect()
}

/// The library as cargo has built it, the newest first: with this test's features, and with those of other builds.
fn libraries() -> (Vec<PathBuf>, PathBuf) {
    let here = std::env::current_exe().unwrap();
    let deps = here.parent().unwrap().to_owned();
    let built = fs::read_dir(&deps).unwrap().flatten().filter(|e| {
        let name = e.file_name().to_string_lossy().into_owned();
        name.starts_with("libblockwright-") && name.ends_with(".rlib")
    });
    let mut found: Vec<_> = built
        .map(|e| (e.metadata().unwrap().modified().unwrap(), e.path()))
        .collect();
    found.sort();
    let newest = found.into_iter().rev().map(|(_, path)| path);
    (newest.collect(), deps)
}

/// Compiles a Rust program against the first of these libraries that has all that it needs.
fn compile(program: &str, scratch: &Scratch) -> PathBuf {
    let (source, binary) = (scratch.path("main.rs"), scratch.path("program"));
    fs::write(&source, program).unwrap();
    let (libraries, deps) = libraries();
    let mut told = String::new();
    for library in libraries {
        let mut rustc = Command::new("rustc");
        rustc.args(["--edition", "2024", "-D", "warnings", "--extern"]);
        rustc.arg(format!("blockwright={}", library.display()));
        rustc
            .arg("-L")
            .arg(format!("dependency={}", deps.display()));
        let out = common::output(rustc.arg("-o").arg(&binary).arg(&source));
        if out.status.success() {
            return binary;
        }
        if told.is_empty() {
            told = String::from_utf8_lossy(&out.stderr).into_owned();
        }
    }
    panic!("no library that the program compiles with: {told}");
}

/// The Rust programs compile without a warning and print what they say. Those in C run in the C library's tests, and those in Python in the
/// package's suite; here they are only looked for.
#[test]
fn programs_of_the_chapter_run() {
    let page = fs::read_to_string(book().join("programs.md")).unwrap();
    for language in ["rust", "c", "python"] {
        assert_eq!(blocks(&page, language).len(), 1, "{language}");
        assert!(blocks(&page, language)[0].contains("// prints: ") || language == "python");
    }
    if !have("rustc") {
        return;
    }
    for program in blocks(&page, "rust") {
        let scratch = Scratch::new();
        let binary = compile(program, &scratch);
        let told = common::ok(Command::new(&binary).current_dir(scratch.path("")));
        let expected: Vec<&str> = program
            .lines()
            .filter_map(|line| line.trim().strip_prefix("// prints: "))
            .collect();
        assert_eq!(told.lines().collect::<Vec<_>>(), expected);
        common::check_clean(&scratch.path("rust.img"), "the program's image");
    }
}

fn book() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/book/src")
}

#[test]
fn every_chapter_is_listed_and_runs() {
    let summary = fs::read_to_string(book().join("SUMMARY.md")).unwrap();
    let mut pages: Vec<PathBuf> = fs::read_dir(book())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    pages.sort();
    let mut commands = 0;
    for page in pages {
        let name = page.file_name().unwrap().to_string_lossy().into_owned();
        if name == "SUMMARY.md" {
            continue;
        }
        assert!(summary.contains(&format!("({name})")), "{name}");
        commands += steps(&fs::read_to_string(&page).unwrap()).len();
        run(&page);
    }
    assert!(commands > 40, "{commands}");
}
