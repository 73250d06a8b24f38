//! The checked-in header is what the source says.

use std::path::Path;
use std::process::Command;

/// `BLESS=1` writes the header instead of comparing it. `cargo xtask test` installs cbindgen into `target/tools`.
#[test]
fn the_header_is_generated_from_this_source() {
    if !blockwright_oracles::have(&["cbindgen"]) {
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = tempfile::tempdir().expect("a folder");
    let made = dir.path().join("blockwright.h");
    let out = Command::new("cbindgen")
        .args(["--quiet", "--config"])
        .arg(root.join("cbindgen.toml"))
        .arg("--output")
        .arg(&made)
        .arg(root)
        .output()
        .expect("cbindgen runs");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{said}");
    let text = std::fs::read_to_string(&made).expect("a header");
    let path = root.join("include/blockwright.h");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &text).expect("written");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        kept == text,
        "{} is not what the source says: BLESS=1 cargo test -p blockwright-capi --test header",
        path.display()
    );
}
