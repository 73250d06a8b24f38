//! The benchmark's own workloads, small: what they write is right, what they measure can be shown.
//!
//! fio writes with checksums through the mount, and reads back after a remount.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The program that is measured lies beside the one that measures, when both were built (as for `make test`).
fn program() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_blockwright-bench")).with_file_name("blockwright")
}

/// Whether all that is needed is here; in CI it must be.
fn possible() -> bool {
    blockwright_oracles::available("the program, built,", program().exists())
        && blockwright_oracles::root()
        && blockwright_oracles::fuse()
        && blockwright_oracles::have(&["fio"])
}

fn bench(args: &[&str], dir: &Path) -> Output {
    Command::new("timeout")
        .args(["-k", "10", "240"])
        .arg(env!("CARGO_BIN_EXE_blockwright-bench"))
        .args(args)
        .arg("--dir")
        .arg(dir)
        .arg("--program")
        .arg(program())
        .output()
        .expect("timeout runs")
}

fn text(out: &Output) -> String {
    format!(
        "{}\n{}{}",
        out.status,
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    )
}

#[test]
fn what_is_measured_is_right() {
    if !possible() {
        return;
    }
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let out = bench(&["peers", "--verify", "--quick"], dir.path());
    assert!(out.status.success(), "{}", text(&out));
    let said = text(&out);
    assert!(
        said.contains("\n16 workloads verified") || said.contains("\n32 workloads verified"),
        "{said}"
    );
}

/// Every row on f2fs, which has ways of its own for many: appends side by side, fsyncs by chains of nodes, small files in their
/// inodes. Over one transport, which is the other test's matter.
#[test]
fn what_is_measured_of_f2fs_is_right() {
    if !possible() || !blockwright_oracles::have(&["mkfs.f2fs", "fsck.f2fs"]) {
        return;
    }
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let switched_on = std::fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    let transport = match switched_on.is_ok_and(|text| text.trim() == "Y") {
        true => "io_uring",
        false => "/dev/fuse",
    };
    let rows = ["--format", "f2fs", "--variant", transport];
    let out = bench(
        &[&["peers", "--verify", "--quick"][..], &rows].concat(),
        dir.path(),
    );
    assert!(out.status.success(), "{}", text(&out));
    let said = text(&out);
    assert!(said.contains("\n16 workloads verified"), "{said}");
    assert!(said.contains(&format!("f2fs mount, {transport}")), "{said}");
}

#[test]
fn nonsense_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let page = |args: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_blockwright-bench"))
            .arg("report")
            .args(args)
            .output()
            .expect("runs")
    };
    let missing = page(&["/nonexistent.json"]);
    assert!(!missing.status.success() && text(&missing).contains("/nonexistent.json"));
    let bad = dir.path().join("bad.json");
    std::fs::write(&bad, "{").expect("written");
    let bad = page(&[bad.to_str().expect("UTF-8")]);
    assert!(!bad.status.success() && text(&bad).contains("bad.json"));
    // And good ones become a page.
    let good = dir.path().join("good.json");
    let rows = r#"[{"group":"5","workload":"w","unit":"ops/s","reported":"","variants":[{"name":"on","values":[1.0,2.0],"extra":{}}]}]"#;
    std::fs::write(&good, rows).expect("written");
    let html = dir.path().join("page.html");
    let (good, html) = (good.to_str().expect("UTF-8"), html.to_str().expect("UTF-8"));
    let made = page(&["-o", html, "--title", "T", good]);
    assert!(made.status.success(), "{}", text(&made));
    let html = std::fs::read_to_string(html).expect("a page");
    assert!(
        html.contains("<svg") && html.contains("1.5 ops/s") || html.contains("1.50 ops/s"),
        "{html}"
    );
}
