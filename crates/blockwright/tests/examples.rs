//! The programs in `examples/`, run on real input.

use blockwright_test_support as common;

use blockwright::{Volume, VolumeBuilder};
use common::testing::assert_e2fsck_clean;
use std::path::Path;
use std::process::Command;
use std::sync::Once;

static BUILT: Once = Once::new();

/// Builds the examples, unless they are there: `cargo test` builds them beside the tests, `cargo test --test examples` does not.
fn build(program: &Path) {
    if program.exists() {
        return;
    }
    let built = Command::new(env!("CARGO"))
        .args(["build", "--package", "blockwright", "--examples"])
        .status()
        .expect("cargo runs");
    assert!(built.success());
}

/// Runs an example and returns what it printed.
fn run(name: &str, args: &[&Path]) -> String {
    let here = std::env::current_exe().expect("the path of this test");
    let built = here.ancestors().nth(2).expect("target/PROFILE");
    let program = built.join("examples").join(name);
    BUILT.call_once(|| build(&program));
    let output = Command::new(&program)
        .args(args)
        .output()
        .unwrap_or_else(|e| panic!("{}: {e}", program.display()));
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{name}: {out}{err}");
    assert_eq!(err, "", "{name}");
    out
}

/// A directory of files on the host: its own sources.
fn sources() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))
}

#[test]
fn from_tar_makes_what_walk_lists() {
    let dir = tempfile::tempdir().expect("a directory");
    let (archive, image) = (dir.path().join("src.tar"), dir.path().join("disk.img"));
    let tar = Command::new("tar")
        .arg("-cf")
        .arg(&archive)
        .arg("-C")
        .arg(sources())
        .arg(".")
        .status()
        .expect("tar runs");
    assert!(tar.success());
    assert!(run("from_tar", &[&archive, &image]).contains("bytes free"));
    assert_e2fsck_clean(&image);
    let listed = run("walk", &[&image]);
    assert!(listed.contains("lib.rs"), "{listed}");
    assert!(listed.contains("build/tar.rs"), "{listed}");
}

#[test]
fn edit_replaces_a_file_and_keeps_its_owner_and_mode() {
    let dir = tempfile::tempdir().expect("a directory");
    let image = dir.path().join("disk.img");
    let volume = Volume::create(&image, 16 << 20).expect("made");
    volume.create_dir("/etc").expect("made");
    volume.write("/etc/hostname", "old\n").expect("written");
    volume.set_permissions("/etc/hostname", 0o640).expect("set");
    volume
        .chown("/etc/hostname", Some(7), Some(8))
        .expect("set");
    volume.close().expect("closed");
    run(
        "edit",
        &[&image, Path::new("/etc/hostname"), Path::new("new")],
    );
    assert_e2fsck_clean(&image);
    let volume = Volume::open_read_only(&image).expect("opens");
    assert_eq!(
        volume.read_to_string("/etc/hostname").expect("read"),
        "new\n"
    );
    let metadata = volume.metadata("/etc/hostname").expect("there");
    assert_eq!(
        (metadata.permissions(), metadata.uid(), metadata.gid()),
        (0o640, 7, 8)
    );
    assert!(!volume.exists("/etc/hostname.new").expect("looked up"));
}

#[test]
fn parallel_copy_copies_every_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let image = dir.path().join("disk.img");
    VolumeBuilder::new()
        .size(16 << 20)
        .create(&image)
        .expect("made");
    run("parallel_copy", &[sources(), &image]);
    assert_e2fsck_clean(&image);
    let volume = Volume::open_read_only(&image).expect("opens");
    let mut files = 0;
    for entry in std::fs::read_dir(sources()).expect("listed") {
        let path = entry.expect("an entry").path();
        if path.is_file() {
            let name = path.file_name().expect("a name");
            let want = std::fs::read(&path).expect("read");
            assert!(volume.read(name).expect("copied") == want, "{name:?}");
            files += 1;
        }
    }
    assert!(files > 5);
}

#[test]
fn custom_device_counts() {
    let out = run("custom_device", &[]);
    let written: u64 = out
        .split_whitespace()
        .nth(4)
        .and_then(|n| n.parse().ok())
        .unwrap_or_else(|| panic!("{out}"));
    assert!(written >= 1 << 20, "{out}");
}
