//! What is looked at before a version is published: packages, promises of STABILITY.md, advisories.

use crate::hosts::own_packages;
use crate::skipped::skip;
use crate::tools::{cargo_home, cargo_path, is_installed, output, tools_dir};
use crate::{target_dir, workspace};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The largest package, in bytes: source, a README and the licences.
const PACKAGE_BYTES_MAX: u64 = 1 << 20;

/// All of it. What is wrong, in sentences.
pub(crate) fn check() -> Vec<String> {
    let mut faults = promises();
    faults.extend(publish().err());
    faults.extend(semver().err());
    faults.extend(advisories().err());
    faults
}

/// Whether a crate is for users; the others say that they are not.
pub(crate) fn is_published(manifest: &str) -> bool {
    !manifest.lines().any(|line| line == "publish = false")
}

/// A crate that is published, and whether it has a library.
struct Published {
    name: String,
    library: bool,
}

fn published() -> Result<Vec<Published>, String> {
    let metadata = own_packages()?;
    let packages = metadata["packages"]
        .as_array()
        .ok_or("cargo metadata: no packages")?;
    let published = packages.iter().filter(|p| p["publish"].is_null());
    let is_library = |target: &Value| {
        target["kind"]
            .as_array()
            .is_some_and(|kinds| kinds.iter().any(|kind| kind == "lib"))
    };
    let read = |p: &Value| Published {
        name: p["name"].as_str().unwrap_or_default().to_owned(),
        library: p["targets"]
            .as_array()
            .is_some_and(|targets| targets.iter().any(is_library)),
    };
    Ok(published.map(read).collect())
}

/// Rehearses publishing: makes the packages in the order of their dependencies, compiles each from its package and from those before it, and
/// uploads nothing.
fn publish() -> Result<(), String> {
    let dir = target_dir().join("publish");
    // Packages of earlier versions.
    let _ = fs::remove_dir_all(dir.join("package"));
    let mut command = Command::new(cargo_path());
    command
        .args([
            "publish",
            "--dry-run",
            "--allow-dirty",
            "--quiet",
            "--target-dir",
        ])
        .arg(&dir);
    for package in published()? {
        command.args(["--package", &package.name]);
    }
    output(&mut command).map_err(|told| format!("cargo publish --dry-run: {told}"))?;
    // Where cargo keeps packages that it does not upload.
    let packages = dir.join("package/tmp-crate");
    let too_large = too_large(&packages).map_err(|e| format!("{}: {e}", packages.display()))?;
    match too_large.is_empty() {
        true => Ok(()),
        false => Err(format!("packages are too large: {}", too_large.join(", "))),
    }
}

/// Packages in a folder that have too many bytes.
///
/// # Errors
/// There are no packages in it.
fn too_large(dir: &Path) -> std::io::Result<Vec<String>> {
    let (mut seen, mut found) = (false, Vec::new());
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let path = entry.path();
        if path.extension().is_some_and(|e| e == "crate") {
            seen = true;
            let bytes = entry.metadata()?.len();
            if bytes > PACKAGE_BYTES_MAX {
                found.push(format!("{} ({bytes} bytes)", path.display()));
            }
        }
    }
    match seen {
        true => Ok(found),
        false => Err(std::io::ErrorKind::NotFound.into()),
    }
}

/// Crates whose promise is semantic versioning, and those without a promise, by the table of STABILITY.md.
fn promised(table: &str) -> (Vec<&str>, Vec<&str>) {
    let (mut kept, mut free) = (Vec::new(), Vec::new());
    for row in table.lines() {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, what, promise, _] = cells[..] else {
            continue;
        };
        let names = what.split('`').skip(1).step_by(2);
        if promise.starts_with("semantic versioning") {
            kept.extend(names);
        } else if promise.starts_with("none") {
            free.extend(names);
        }
    }
    (kept, free)
}

fn stability() -> Result<String, String> {
    let path = workspace().join("docs/STABILITY.md");
    fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))
}

/// Published crates of which STABILITY.md does not say whether they promise something, or says both.
fn promises() -> Vec<String> {
    let (text, crates) = match (stability(), published()) {
        (Ok(text), Ok(crates)) => (text, crates),
        (text, crates) => return text.err().into_iter().chain(crates.err()).collect(),
    };
    let (kept, free) = promised(&text);
    let unclear = crates
        .iter()
        .filter(|c| kept.contains(&&*c.name) == free.contains(&&*c.name));
    unclear
        .map(|c| format!("docs/STABILITY.md has no clear promise for {}", c.name))
        .collect()
}

/// Whether crates with a promise break it against the last tagged version. Skipped before there is one, and without cargo-semver-checks.
fn semver() -> Result<(), String> {
    let mut git = Command::new("git");
    git.args([
        "-c",
        "safe.directory=*",
        "tag",
        "--merged",
        "HEAD",
        "--sort=-version:refname",
        "--list",
        "v[0-9]*",
    ]);
    let tags = output(&mut git).unwrap_or_default();
    let Some(last) = tags.lines().next() else {
        skip("semantic versioning: no version is tagged (v0.1.0) to compare with");
        return Ok(());
    };
    let Some(mut command) = tool("semver-checks") else {
        return Ok(());
    };
    let text = stability()?;
    let (kept, _) = promised(&text);
    command.args(["check-release", "--baseline-rev", last]);
    for package in published()?
        .iter()
        .filter(|p| p.library && kept.contains(&&*p.name))
    {
        command.args(["--package", &package.name]);
    }
    output(&mut command)
        .map(|_| ())
        .map_err(|told| format!("against {last}: {told}"))
}

/// Crates with known faults, by the database of RustSec. Skipped where there is no copy of it, and without cargo-audit. Nothing is downloaded.
fn advisories() -> Result<(), String> {
    let database = database();
    if !database.join("crates").is_dir() {
        skip(&format!(
            "advisories: {} is no copy of RustSec's database; `cargo audit` makes one, or set ADVISORY_DB",
            database.display()
        ));
        return Ok(());
    }
    match tool("audit") {
        Some(command) => audit(command, &database),
        None => Ok(()),
    }
}

fn audit(mut command: Command, database: &Path) -> Result<(), String> {
    command
        .args(["--no-fetch", "--stale", "--deny", "warnings", "--db"])
        .arg(database);
    command.arg("--file").arg(workspace().join("Cargo.lock"));
    let out = command
        .current_dir(workspace())
        .output()
        .map_err(|e| format!("cargo audit: {e}"))?;
    match out.status.success() {
        true => Ok(()),
        // What it found is on its standard output.
        false => Err(format!(
            "advisories: {}{}",
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr)
        )),
    }
}

/// Where cargo-audit keeps the database, or a copy that is named.
fn database() -> PathBuf {
    match std::env::var_os("ADVISORY_DB") {
        Some(dir) => workspace().join(dir),
        None => cargo_home().join("advisory-db"),
    }
}

/// A subcommand of cargo that is a program of its own, installed or in `target/tools`. `None`, said loudly, without it.
fn tool(name: &str) -> Option<Command> {
    let program = format!("cargo-{name}");
    let ours = tools_dir().join("bin").join(&program);
    let mut command = match (ours.is_file(), is_installed(&program)) {
        (true, _) => Command::new(ours),
        (false, true) => Command::new(&program),
        (false, false) => {
            skip(&format!("cargo {name}: cargo install --locked {program}"));
            return None;
        }
    };
    command.arg(name);
    Some(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_published_crate_has_a_promise() {
        assert!(published().unwrap().len() >= 15);
        assert_eq!(promises(), [""; 0]);
    }

    #[test]
    fn packages_that_are_too_large() {
        let dir = std::env::temp_dir().join(format!("bw-packages-{}", std::process::id()));
        assert!(too_large(&dir).is_err());
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("readme"), "").unwrap();
        assert!(too_large(&dir).is_err(), "there is no package");
        fs::write(dir.join("a.crate"), "").unwrap();
        assert_eq!(too_large(&dir).unwrap(), [""; 0]);
        let large = fs::File::create(dir.join("b.crate")).unwrap();
        large.set_len(PACKAGE_BYTES_MAX + 1).unwrap();
        assert_eq!(too_large(&dir).unwrap().len(), 1);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn promises_are_read_from_the_table() {
        let table = "| what | promise |\n|---|---|\n| `a`, `b` (library) | semantic versioning; more |\n| `c` and `d.h` | none: parts |\n| `e` | may change |\n`f` | none";
        assert_eq!(promised(table), (vec!["a", "b"], vec!["c", "d.h"]));
    }

    #[test]
    fn an_advisory_is_a_fault() {
        let said = |code: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", &format!("echo \"$@\"; exit {code}"), "sh"]);
            audit(command, Path::new("/the/database"))
        };
        assert_eq!(said("0"), Ok(()));
        let told = said("1").unwrap_err();
        assert!(
            told.contains("--no-fetch") && told.contains("--db /the/database"),
            "{told}"
        );
    }
}
