//! `scripts/package.sh` packs this program: the same bytes twice, nothing that lintian finds, the notices of others, and a program that
//! runs from the package.

use blockwright_oracles as oracles;
use std::path::{Path, PathBuf};
use std::process::Command;

const TOOLS: &[&str] = &[
    "objcopy",
    "readelf",
    "dpkg-deb",
    "gzip",
    "sha256sum",
    "dpkg-shlibdeps",
    "lintian",
    "xz",
];

const NOTICES: &str = "a crate of others and its licence\n";

/// Runs it and returns what it printed.
fn told(command: &mut Command) -> String {
    let output = command.output().expect("it runs");
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{command:?}: {out}{err}");
    out.into_owned()
}

fn package(out: &Path, temporary: &Path) -> Vec<PathBuf> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/package.sh");
    // `cargo xtask licences` makes the real one; its tests are in xtask.
    let notices = temporary.join("notices");
    std::fs::write(&notices, NOTICES).expect("written");
    let mut command = Command::new("sh");
    command
        .args([script, env!("CARGO_BIN_EXE_blockwright")])
        .args([&notices, out]);
    command.arg("0").env("TMPDIR", temporary);
    told(command.env("SOURCE_DATE_EPOCH", "1700000000"));
    let entries = std::fs::read_dir(out).expect("a folder");
    let mut files: Vec<PathBuf> = entries.map(|e| e.expect("an entry").path()).collect();
    files.sort();
    files
}

#[test]
fn packages_are_reproducible_clean_and_run() {
    if !oracles::have(TOOLS) {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    // On two file systems, where there are two.
    let other =
        tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().expect("a folder"));
    let (once, again) = (
        package(&dir.path().join("a"), dir.path()),
        package(&dir.path().join("b/c"), other.path()),
    );
    assert_eq!(once.len(), 4, "{once:?}");
    for (one, other) in once.iter().zip(&again) {
        assert_eq!(one.file_name(), other.file_name());
        let same = std::fs::read(one).expect("read") == std::fs::read(other).expect("read");
        assert!(same, "{} has other bytes", one.display());
    }
    let mut sums = Command::new("sha256sum");
    let said = told(
        sums.args(["--check", "SHA256SUMS"])
            .current_dir(dir.path().join("a")),
    );
    assert_eq!(said.matches(": OK").count(), 3, "{said}");
    let ending = |end: &str| {
        let found = once
            .iter()
            .find(|p| p.extension().is_some_and(|e| e == end));
        found.expect("a file of this kind")
    };
    let deb = ending("deb");
    // Exit code 2: it found an error or a warning.
    told(
        Command::new("lintian")
            .args(["--fail-on", "error,warning"])
            .arg(deb),
    );

    let root = dir.path().join("root");
    told(Command::new("dpkg-deb").arg("--extract").args([deb, &root]));
    let version = format!("blockwright {}", env!("CARGO_PKG_VERSION"));
    let said = told(Command::new(root.join("usr/bin/blockwright")).arg("--version"));
    assert!(said.starts_with(&version), "{said}");
    for helper in [
        "usr/sbin/mount.fuse.blockwright",
        "usr/share/man/man1/mount.fuse.blockwright.1.gz",
    ] {
        assert!(root.join(helper).exists(), "{helper} leads nowhere");
    }

    told(
        Command::new("tar")
            .arg("-xf")
            .arg(ending("xz"))
            .arg("-C")
            .arg(&root),
    );
    let mut unpacked = std::fs::read_dir(&root)
        .expect("a folder")
        .map(|e| e.expect("an entry").path());
    let folder = unpacked
        .find(|p| !p.ends_with("usr"))
        .expect("the archive's folder");
    let notices = std::fs::read_to_string(folder.join("THIRD-PARTY.txt")).expect("notices");
    assert_eq!(notices, NOTICES);
    let packed = root.join("usr/share/doc/blockwright/THIRD-PARTY.txt.gz");
    let unpacked = told(
        Command::new("gzip")
            .args(["--decompress", "--stdout"])
            .arg(packed),
    );
    assert_eq!(unpacked, NOTICES);
    let image = dir.path().join("x.img");
    told(
        Command::new(folder.join("bin/blockwright"))
            .arg("mkfs")
            .arg(&image)
            .arg("16M"),
    );
    assert!(image.exists());
}
