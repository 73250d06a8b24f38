//! The house's rules, checked: arrows between rooms, import circles inside them, `unsafe`, length of files,
//! conflict markers, formatting, lints, links of the documentation.

use crate::circles::circles;
use crate::release::is_published;
use crate::skipped::{skip, summary};
use crate::tools::cargo_path;
use crate::workspace;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Which rooms a room may import (the table of docs/ARCHITECTURE.md).
const ARROWS: &[(&str, &[&str])] = &[
    ("device", &[]),
    ("ondisk", &[]),
    ("chunks", &["device"]),
    ("disk", &["chunks", "device"]),
    ("vfs", &["device"]),
    ("ext4", &["vfs", "ondisk", "device", "reshape"]),
    ("f2fs", &["vfs", "ondisk", "device"]),
    ("check", &["ondisk", "device"]),
    ("mkfs", &["ondisk", "device"]),
    ("reshape", &["ondisk", "device"]),
    (
        "blockwright",
        &[
            "device", "chunks", "disk", "ondisk", "vfs", "ext4", "f2fs", "check", "mkfs", "reshape",
        ],
    ),
    ("fuse", &["blockwright", "vfs", "device"]),
    (
        "ffi",
        &["blockwright", "check", "device", "disk", "map", "vfs"],
    ),
    ("capi", &["blockwright", "device", "ffi"]),
    ("python", &["blockwright", "device", "ffi"]),
    (
        "web",
        &["blockwright", "check", "device", "disk", "ffi", "map"],
    ),
    ("plot", &[]),
    ("map", &["check", "device", "plot"]),
    ("sandbox", &[]),
    ("cli", &["*"]),
    ("bench", &["*"]),
    ("crash", &["*"]),
    ("fuzz", &["*"]),
    ("offline", &["*"]),
    ("oracles", &[]),
    ("testing", &["*"]),
    ("xtask", &["oracles"]),
];

/// Longer files hold more than one concept.
const LINES_MAX: usize = 800;

/// Rooms that measure or test variants of the engines. No other may be built with them.
const COMPARING_ROOMS: &[&str] = &["bench", "crash", "fuzz"];

/// Rooms that may hold `unsafe` code.
const UNSAFE_ROOMS: &[&str] = &["device", "fuse", "capi"];

/// The one attribute elsewhere: it exports the function of the web page's module.
const EXPORT: &str = "#[cfg_attr(target_os = \"wasi\", allow(unsafe_code), unsafe(no_mangle))]";

pub(crate) fn run() -> ExitCode {
    let (rooms, mut faults) = rules();
    faults.extend(crate::release::check());
    faults.extend(crate::hosts::dependencies());
    faults.extend(crate::hosts::check());
    for fault in &faults {
        eprintln!("xtask check: {fault}");
    }
    let mut ok = faults.is_empty();
    ok &= cargo("formatting", &["fmt", "--all", "--check"]);
    ok &= cargo(
        "lints",
        &["clippy", "--workspace", "--all-targets", "--quiet"],
    );
    ok &= cargo(
        "documentation",
        &["doc", "--workspace", "--no-deps", "--quiet"],
    );
    println!("xtask check: {}", summary());
    if ok {
        println!("xtask check: {rooms} rooms, arrows and unsafe as planned");
        ExitCode::SUCCESS
    } else {
        println!(
            "xtask check: {} faults, or what cargo says above",
            faults.len()
        );
        ExitCode::FAILURE
    }
}

/// How many rooms there are, and what in them is against the rules that need no compiler. `make test` asks
/// this, too.
fn rules() -> (usize, Vec<String>) {
    let mut faults = Vec::new();
    let crates = workspace().join("crates");
    let mut names: Vec<String> = fs::read_dir(&crates)
        .map(|d| {
            d.flatten()
                .map(|e| e.file_name().to_string_lossy().into_owned())
                .collect()
        })
        .unwrap_or_default();
    names.sort();
    let mut rooms: Vec<(&str, PathBuf)> = names.iter().map(|n| (&**n, crates.join(n))).collect();
    rooms.push(("python", workspace().join("bindings/python")));
    for (name, room) in &rooms {
        let (name, manifest) = (*name, room.join("Cargo.toml"));
        arrows(name, &manifest, &mut faults);
        published(name, room, &mut faults);
        if !COMPARING_ROOMS.contains(&name) {
            no_comparison(name, &manifest, &mut faults);
        }
        let mut files = Vec::new();
        let src = room.join("src");
        rust_files(&src, &mut files);
        for circle in circles(&src, &files) {
            faults.push(format!("room {name}: files import each other: {circle}"));
        }
        if !UNSAFE_ROOMS.contains(&name) {
            no_unsafe(&files, &mut faults);
        }
        rust_files(&room.join("tests"), &mut files);
        not_too_long(&files, &mut faults);
        fuzzing_stays_outside(&files, &mut faults);
    }
    fuzzing_stays_outside(&build_files(&rooms), &mut faults);
    match tracked_files() {
        Ok(files) => no_conflicts(&files, &mut faults),
        Err(told) => faults.push(told),
    }
    (rooms.len(), faults)
}

/// Keys that the manifest of a published crate has beside its name.
const KEYS_OF_PUBLISHED: &[&str] = &[
    "description",
    "keywords",
    "categories",
    "repository",
    "license",
    "readme",
    "rust-version",
    "include",
];

/// The faults of what a crate that is published says of itself.
fn published(room: &str, dir: &Path, faults: &mut Vec<String>) {
    let text = fs::read_to_string(dir.join("Cargo.toml")).unwrap_or_default();
    if !is_published(&text) {
        return;
    }
    for key in KEYS_OF_PUBLISHED {
        let says = |line: &str| {
            line.strip_prefix(key)
                .is_some_and(|rest| rest.starts_with([' ', '.', '=']))
        };
        if !text.lines().any(says) {
            faults.push(format!("room {room} is published without a {key}"));
        }
    }
    for file in ["README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
        if !dir.join(file).is_file() {
            faults.push(format!("room {room} is published without {file}"));
        }
    }
}

/// With this compiler flag checksums verify as true.
const FUZZING: &str = "blockwright_fuzzing";

/// Files that may name it: the one check that it turns off, the one command that sets it, and this rule.
const FUZZING_FILES: &[&str] = &[
    "ondisk/src/lib.rs",
    "fuzz/src/lib.rs",
    "xtask/src/fuzz.rs",
    "xtask/src/check.rs",
];

/// The files that decide how users' builds are compiled.
fn build_files(rooms: &[(&str, PathBuf)]) -> Vec<PathBuf> {
    let root = workspace();
    let mut files = vec![
        root.join("Cargo.toml"),
        root.join("Makefile"),
        root.join(".cargo/config.toml"),
    ];
    for (_, room) in rooms {
        files.extend(["Cargo.toml", "build.rs", "pyproject.toml"].map(|name| room.join(name)));
    }
    if let Ok(scripts) = fs::read_dir(root.join("scripts")) {
        files.extend(scripts.flatten().map(|e| e.path()));
    }
    files
}

/// No build but `cargo xtask fuzz`'s takes checksums for right without looking, nor links libFuzzer.
fn fuzzing_stays_outside(files: &[PathBuf], faults: &mut Vec<String>) {
    for file in files {
        if FUZZING_FILES.iter().any(|end| file.ends_with(end)) {
            continue;
        }
        let text = fs::read_to_string(file).unwrap_or_default();
        for (number, line) in text.lines().enumerate() {
            // Telling the compiler that there is such a flag does not set it.
            let names = line.contains(FUZZING) && !line.contains("check-cfg");
            let required = line.starts_with("required-features");
            let links = line.contains("libfuzzer\"]") && !required
                || line.contains("default = [\"libfuzzer");
            if names || links {
                faults.push(format!(
                    "{}:{}: {FUZZING} and libfuzzer are for `cargo xtask fuzz` alone",
                    file.display(),
                    number + 1
                ));
            }
        }
    }
}

/// The files that git tracks; none where this is no repository, as in an unpacked archive.
pub(crate) fn tracked_files() -> Result<Vec<PathBuf>, String> {
    let root = workspace();
    if !root.join(".git").exists() {
        skip("conflict markers: this is no git repository");
        return Ok(Vec::new());
    }
    // CI may run as another user than the one whose files these are.
    let listed = Command::new("git")
        .args(["-c", "safe.directory=*", "ls-files", "-z"])
        .current_dir(&root)
        .output()
        .map_err(|e| format!("git: {e}"))?;
    if !listed.status.success() {
        let told = String::from_utf8_lossy(&listed.stderr);
        return Err(format!("git ls-files: {told}"));
    }
    let names = String::from_utf8_lossy(&listed.stdout).into_owned();
    let names = names.split('\0').filter(|name| !name.is_empty());
    Ok(names.map(|name| root.join(name)).collect())
}

/// Lines of text files that a merge left behind.
fn no_conflicts(files: &[PathBuf], faults: &mut Vec<String>) {
    for file in files {
        // Deleted, or a symbolic link to nothing.
        let Ok(bytes) = fs::read(file) else { continue };
        if bytes.contains(&0) {
            continue;
        }
        for (number, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
            if line.starts_with(b"<<<<<<< ") || line.starts_with(b">>>>>>> ") {
                faults.push(format!(
                    "{}:{}: a conflict of a merge",
                    file.display(),
                    number + 1
                ));
            }
        }
    }
}

/// The faults of one room's dependencies.
fn arrows(room: &str, manifest: &Path, faults: &mut Vec<String>) {
    let Ok(text) = fs::read_to_string(manifest) else {
        faults.push(format!("{}: cannot be read", manifest.display()));
        return;
    };
    let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == room) else {
        faults.push(format!("room {room} is not in the table of allowed arrows"));
        return;
    };
    for used in dependencies(&text) {
        if !allowed.contains(&"*") && !allowed.contains(&used.as_str()) {
            faults.push(format!("room {room} may not import {used}"));
        }
    }
}

/// The faults of a room whose `[dependencies]` ask for variants that exist for comparison only.
fn no_comparison(room: &str, manifest: &Path, faults: &mut Vec<String>) {
    let text = fs::read_to_string(manifest).unwrap_or_default();
    let mut inside = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with('[') {
            inside = line == "[dependencies]";
        } else if (inside && line.contains("\"comparison\""))
            || line.starts_with("default = [\"comparison")
        {
            faults.push(format!("room {room} is built with `comparison`: {line}"));
        }
    }
}

/// The rooms named under `[dependencies]` of a manifest (development dependencies are free).
fn dependencies(manifest: &str) -> Vec<String> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            inside = line == "[dependencies]";
        } else if inside && line.starts_with("blockwright") {
            let key = line.split(['.', ' ', '=']).next().unwrap_or_default();
            found.push(
                key.strip_prefix("blockwright-")
                    .unwrap_or("blockwright")
                    .to_owned(),
            );
        }
    }
    found
}

fn rust_files(dir: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
}

fn not_too_long(files: &[PathBuf], faults: &mut Vec<String>) {
    for file in files {
        let lines = fs::read_to_string(file).map_or(0, |text| text.lines().count());
        if lines > LINES_MAX {
            faults.push(format!("{}: {lines} lines: split it", file.display()));
        }
    }
}

fn no_unsafe(files: &[PathBuf], faults: &mut Vec<String>) {
    for file in files {
        let text = fs::read_to_string(file).unwrap_or_default();
        for (number, line) in text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if [
                "unsafe {",
                "unsafe fn",
                "unsafe impl",
                "unsafe(no_mangle",
                "unsafe(export_name",
                "unsafe(link_section",
            ]
            .iter()
            .any(|word| code.contains(word))
                && !code.contains('"')
                && line != EXPORT
            {
                faults.push(format!(
                    "{}:{}: unsafe is not for this room",
                    file.display(),
                    number + 1
                ));
            }
        }
    }
}

fn cargo(what: &str, args: &[&str]) -> bool {
    let ok = Command::new(cargo_path())
        .args(args)
        .env("RUSTDOCFLAGS", "--deny warnings")
        .current_dir(workspace())
        .status()
        .is_ok_and(|s| s.success());
    if !ok {
        eprintln!("xtask check: {what} failed");
    }
    ok
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_workspace_keeps_the_rules() {
        let (rooms, faults) = rules();
        assert!(rooms >= 13, "{rooms} rooms");
        assert!(faults.is_empty(), "{faults:?}");
    }

    #[test]
    fn a_published_crate_says_what_it_is() {
        let dir = std::env::temp_dir().join(format!("bw-published-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let mut faults = Vec::new();
        for (text, expected) in [
            ("publish = false\n", 0),
            (
                "keywords = []\nrepository.workspace = true\ndescriptions = 1\n",
                9,
            ),
        ] {
            fs::write(dir.join("Cargo.toml"), text).unwrap();
            faults.clear();
            published("room", &dir, &mut faults);
            assert_eq!(faults.len(), expected, "{faults:?}");
        }
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_conflict_of_a_merge_is_found() {
        let dir = std::env::temp_dir().join(format!("bw-conflict-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let file = dir.join("file");
        let found = |bytes: &[u8]| {
            fs::write(&file, bytes).unwrap();
            let mut faults = Vec::new();
            no_conflicts(std::slice::from_ref(&file), &mut faults);
            faults.len()
        };
        let (ours, theirs) = ("<".repeat(7) + " ours", ">".repeat(7) + " theirs");
        let conflict = format!("a\n{ours}\nb\n=======\nc\n{theirs}\n");
        assert_eq!(found(conflict.as_bytes()), 2);
        assert_eq!(found(theirs.as_bytes()), 1);
        // Text that is not UTF-8 is text, and what has zeroes is not.
        assert_eq!(found(&[b"\xff\r\n", ours.as_bytes()].concat()), 1);
        assert_eq!(found(&[b"\0\n", ours.as_bytes()].concat()), 0);
        // Quoted, and the underline of a heading.
        assert_eq!(found(format!("    {ours}\n> {theirs}\n").as_bytes()), 0);
        assert_eq!(found(b"Title\n=======\n<<<<<<<<\n>>>>>>>\n"), 0);
        fs::remove_dir_all(&dir).unwrap();
        assert!(tracked_files().is_ok_and(|files| {
            files.is_empty() || files.iter().any(|f| f.ends_with("xtask/src/check.rs"))
        }));
    }

    #[test]
    fn a_build_without_checksums_is_found() {
        let dir = std::env::temp_dir().join(format!("bw-xtask-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let found = |name: &str, text: &str| {
            let file = dir.join(name);
            fs::write(&file, text).unwrap();
            let mut faults = Vec::new();
            fuzzing_stays_outside(&[file], &mut faults);
            faults.len()
        };
        let flags = "[build]\nrustflags = [\"--cfg\", \"blockwright_fuzzing\"]\n";
        assert_eq!(found("config.toml", flags), 1);
        assert_eq!(
            found(
                "build.rs",
                "println!(\"cargo::rustc-cfg=blockwright_fuzzing\")"
            ),
            1
        );
        assert_eq!(
            found(
                "Cargo.toml",
                "x = { features = [\"libfuzzer\"] }\ncheck-cfg blockwright_fuzzing"
            ),
            1
        );
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_forbidden_arrow_is_found() {
        let manifest = "[dependencies]\nblockwright-ext4.workspace = true\nblockwright = { path = \"x\" }\n[dev-dependencies]\nblockwright-fuse.workspace = true\n";
        assert_eq!(dependencies(manifest), ["ext4", "blockwright"]);
    }
}
