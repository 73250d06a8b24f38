//! The Python package: maturin builds its wheel, pip installs the wheel in a fresh environment, and pytest and mypy run there.
//!
//! What is downloaded is kept in `target/python`. Without a network the tests are skipped, and fail in CI.

use blockwright_oracles as oracles;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// What the environment has besides the wheel, by major version or year.
const PACKAGES: &[&str] = &[
    "fsspec>=2024.2",
    "mypy>=1.8",
    "pytest>=7",
    "typing_extensions",
];

fn output(command: &mut Command) -> Output {
    command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"))
}

fn told(out: &Output) -> String {
    format!(
        "{}\n{}",
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    )
}

fn run(command: &mut Command) -> String {
    let out = output(command);
    assert!(
        out.status.success(),
        "{command:?}: {}\n{}",
        out.status,
        told(&out)
    );
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// The target directory that this test was built in.
fn target() -> PathBuf {
    let here = std::env::current_exe().expect("this program");
    let dir = here.ancestors().nth(3).expect("target/debug/deps");
    dir.to_owned()
}

/// A Python that the package is for.
fn python() -> Option<String> {
    let question = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))";
    for name in [
        "python3",
        "python3.14",
        "python3.13",
        "python3.12",
        "python3.11",
    ] {
        let asked = Command::new(name).args(["-c", question]).output();
        if asked.is_ok_and(|out| out.status.success()) {
            return Some(name.to_owned());
        }
    }
    oracles::skip("Python 3.11 or newer with venv is missing");
    None
}

/// A fresh environment with these packages. `None` when they cannot be had; the test is skipped then.
fn environment(python: &str, at: &Path, packages: &[&str]) -> Option<()> {
    if at.exists() {
        std::fs::remove_dir_all(at).expect("removed");
    }
    run(Command::new(python).args(["-m", "venv"]).arg(at));
    let out = output(
        Command::new(at.join("bin/python"))
            .args(["-m", "pip", "install", "--quiet"])
            .args(["--disable-pip-version-check"])
            .args(packages),
    );
    if !out.status.success() {
        oracles::skip(&format!("pip cannot install {packages:?}: {}", told(&out)));
        return None;
    }
    Some(())
}

/// Builds the wheel in the target directory of this test.
fn wheel(tools: &Path, to: &Path) -> PathBuf {
    if to.exists() {
        std::fs::remove_dir_all(to).expect("removed");
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut all = vec![tools.join("bin")];
    all.extend(std::env::split_paths(&path));
    run(Command::new(tools.join("bin/maturin"))
        .args(["build", "--profile", "quick", "--manifest-path"])
        .arg(Path::new(ROOT).join("Cargo.toml"))
        .arg("--out")
        .arg(to)
        .env("PATH", std::env::join_paths(all).expect("a path"))
        .env("CARGO_TARGET_DIR", target()));
    let mut found = std::fs::read_dir(to).expect("a folder").flatten();
    let wheel = found.next().expect("a wheel").path();
    let name = wheel.file_name().expect("a name").to_string_lossy();
    assert!(name.contains("-cp311-abi3-"), "{name}");
    wheel
}

#[test]
fn the_wheel_is_installed_and_passes_its_suite() {
    let Some(python) = python() else {
        return;
    };
    let dir = target().join("python");
    std::fs::create_dir_all(&dir).expect("a folder");
    let (tools, fresh) = (dir.join("tools"), dir.join("fresh"));
    if !tools.join("bin/maturin").exists()
        && environment(&python, &tools, &["maturin>=1.9,<2"]).is_none()
    {
        return;
    }
    let wheel = wheel(&tools, &dir.join("wheel"));
    if environment(&python, &fresh, PACKAGES).is_none() {
        return;
    }
    let own = fresh.join("bin/python");
    run(Command::new(&own)
        .args(["-m", "pip", "install", "--quiet", "--no-index", "--no-deps"])
        .args(["--disable-pip-version-check"])
        .arg(wheel));
    let docs = Path::new(ROOT).join("../../docs/PYTHON.md");
    let readme = Path::new(ROOT).join("README.md");
    let book = Path::new(ROOT).join("../../docs/book/src/programs.md");
    let pages = std::env::join_paths([docs, readme, book]).expect("paths");
    // Not from the source's folder: the installed package is what is tested.
    let said = run(Command::new(&own)
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "-c"])
        .arg(Path::new(ROOT).join("pyproject.toml"))
        .arg("--rootdir")
        .arg(ROOT)
        .arg(Path::new(ROOT).join("tests"))
        .current_dir(&dir)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("BLOCKWRIGHT_PAGES", pages));
    let last = said.lines().last().unwrap_or_default().to_owned();
    println!("pytest: {last}");
    let passed: u32 = last
        .split(" passed")
        .next()
        .and_then(|n| n.split_whitespace().last())
        .and_then(|n| n.parse().ok())
        .unwrap_or_else(|| panic!("no count: {said}"));
    assert!(passed > 100, "{last}");
    let types = run(Command::new(&own)
        .args(["-m", "mypy", "--cache-dir"])
        .arg(dir.join("mypy"))
        .arg("--config-file")
        .arg(Path::new(ROOT).join("pyproject.toml"))
        .current_dir(ROOT));
    assert!(types.contains("no issues found"), "{types}");
}
