//! The same archive and options give the same bytes on this host and under WASI, and what one writes the other reads.

use blockwright_oracles as oracles;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const TARGET: &str = "wasm32-wasip1";

/// Runs a module of WASI with the folder as `/w`, and its exit code as node's own.
const RUNNER: &str = r#"
const { WASI } = require("node:wasi");
const fs = require("node:fs");
const [, , wasm, folder, ...words] = process.argv;
const wasi = new WASI({ version: "preview1", args: ["blockwright-offline", ...words], preopens: { "/w": folder }, returnOnExit: true });
(async () => {
  const compiled = await WebAssembly.compile(fs.readFileSync(wasm));
  const instance = await WebAssembly.instantiate(compiled, wasi.getImportObject());
  process.exitCode = wasi.start(instance);
})();
"#;

fn target_dir() -> PathBuf {
    // …/target/debug/blockwright-offline
    let program = Path::new(env!("CARGO_BIN_EXE_blockwright-offline"));
    program
        .ancestors()
        .nth(2)
        .expect("a target folder")
        .join("hosts")
}

/// The program compiled for WASI; `None` where that target or node is missing.
fn module() -> Option<PathBuf> {
    let answers = |command: &mut Command| command.output().is_ok_and(|o| o.status.success());
    let node = answers(Command::new("node").args(["--no-warnings", "-e", "require('node:wasi')"]));
    if !oracles::available("node with node:wasi", node) {
        return None;
    }
    let asked = Command::new("rustc").args(["--print", "sysroot"]).output();
    let sysroot = String::from_utf8(asked.expect("rustc").stdout).expect("a path");
    let std = Path::new(sysroot.trim()).join("lib/rustlib").join(TARGET);
    if !std.is_dir() {
        // Not every toolchain can have it.
        oracles::leave(&format!("rustup target add {TARGET}"));
        return None;
    }
    let dir = target_dir();
    let built = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args([
            "build",
            "--quiet",
            "--package",
            "blockwright-offline",
            "--bins",
            "--profile",
            "quick",
            "--target",
            TARGET,
            "--target-dir",
        ])
        .arg(&dir)
        // The test runner's own settings are for this host.
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    Some(dir.join(TARGET).join("quick/blockwright-offline.wasm"))
}

struct Hosts {
    dir: tempfile::TempDir,
    module: PathBuf,
}

impl Hosts {
    fn new() -> Option<Self> {
        let module = module()?;
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join("run.cjs"), RUNNER).expect("written");
        Some(Hosts { dir, module })
    }

    fn here(&self, words: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_blockwright-offline"))
            .args(words)
            .current_dir(self.dir.path())
            .output()
            .expect("it runs")
    }

    /// Under WASI, where names of files begin with `/w/`.
    fn wasi(&self, words: &[&str]) -> Output {
        Command::new("node")
            .args(["--no-warnings", "run.cjs"])
            .arg(&self.module)
            .arg(self.dir.path())
            .args(words)
            .current_dir(self.dir.path())
            .output()
            .expect("node runs")
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.dir.path().join(name)).expect("read")
    }
}

fn told(output: &Output) -> String {
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// An archive with directories, large, small and empty files, links, an odd name and owners, made by tar itself; and in front of all a device, for which
/// tar needs root.
fn archive(dir: &Path) {
    let tree = dir.join("tree");
    for folder in ["etc/deep/er", "srv", "empty"] {
        std::fs::create_dir_all(tree.join(folder)).expect("a folder");
    }
    std::fs::write(tree.join("etc/motd"), "hello\n").expect("written");
    std::fs::write(tree.join("etc/deep/er/none"), "").expect("written");
    let large: Vec<u8> = (0..3_000_017u32).map(|i| (i ^ i >> 9) as u8).collect();
    std::fs::write(tree.join("srv/large"), large).expect("written");
    for n in 0..300 {
        std::fs::write(tree.join(format!("srv/file-{n}")), vec![n as u8; n * 37]).expect("written");
    }
    let odd = std::ffi::OsStr::from_bytes(b"caf\xe9");
    std::fs::write(tree.join(odd), "not UTF-8").expect("written");
    std::os::unix::fs::symlink("../etc/motd", tree.join("srv/link")).expect("a link");
    std::fs::hard_link(tree.join("etc/motd"), tree.join("etc/again")).expect("a link");
    let made = Command::new("tar")
        .args([
            "--sort=name",
            "--mtime=@1700000000",
            "--owner=7:7",
            "--group=9:9",
            "-cf",
            "tree.tar",
            "-C",
            "tree",
            ".",
        ])
        .current_dir(dir)
        .status()
        .expect("tar runs");
    assert!(made.success());
    let archive = dir.join("tree.tar");
    let mut bytes = device().to_vec();
    bytes.extend(std::fs::read(&archive).expect("read"));
    std::fs::write(archive, bytes).expect("written");
}

/// The header of a character device with large numbers.
fn device() -> [u8; 512] {
    let mut header = [0; 512];
    let mut put = |at: usize, text: &str| {
        header[at..at + text.len()].copy_from_slice(text.as_bytes());
    };
    for (at, text) in [
        (0, "device"),
        (100, "0000620"),
        (108, "0000007"),
        (116, "0000011"),
    ] {
        put(at, text);
    }
    for (at, text) in [
        (124, "00000000000"),
        (136, "14524721400"),
        (148, "        "),
    ] {
        put(at, text);
    }
    for (at, text) in [
        (156, "3"),
        (257, "ustar"),
        (263, "00"),
        (329, "0000403"),
        (337, "0210560"),
    ] {
        put(at, text);
    }
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

#[test]
fn the_same_bytes_under_wasi() {
    let Some(hosts) = Hosts::new() else { return };
    archive(hosts.dir.path());
    for format in ["ext4", "f2fs"] {
        let bytes = (128u64 << 20).to_string();
        let (ours, theirs) = (format!("{format}.here"), format!("{format}.wasi"));
        let make = ["mkfs", format, &bytes, "1700000000"];
        told(&hosts.here(&[&make[..], &[&ours, "tree.tar"]].concat()));
        let wasi_image = format!("/w/{theirs}");
        told(&hosts.wasi(&[&make[..], &[&wasi_image, "/w/tree.tar"]].concat()));
        assert!(
            hosts.read(&ours) == hosts.read(&theirs),
            "{format}: other bytes"
        );

        let listed = told(&hosts.wasi(&["ls", &wasi_image, "/srv"]));
        assert_eq!(listed, told(&hosts.here(&["ls", &ours, "/srv"])));
        assert_eq!(listed.lines().count(), 302, "{listed}");
        assert_eq!(
            told(&hosts.wasi(&["info", &wasi_image])),
            told(&hosts.here(&["info", &ours]))
        );
        assert_eq!(
            told(&hosts.wasi(&["cat", &wasi_image, "/srv/link"])),
            "hello\n"
        );

        // WASI changes its volume; this host finds it whole.
        std::fs::write(hosts.dir.path().join("new"), "from WASI").expect("written");
        told(&hosts.wasi(&["put", &wasi_image, "/etc/new", "/w/new"]));
        assert_eq!(told(&hosts.here(&["check", &theirs])), "");
        assert_eq!(
            told(&hosts.here(&["cat", &theirs, "/etc/new"])),
            "from WASI"
        );

        let grown = (160u64 << 20).to_string();
        told(&hosts.wasi(&["resize", &wasi_image, &grown]));
        assert_eq!(told(&hosts.wasi(&["check", &wasi_image])), "");

        let (tar_here, tar_wasi) = (format!("{format}-here.tar"), format!("{format}-wasi.tar"));
        told(&hosts.here(&["export", &ours, &tar_here]));
        std::fs::copy(hosts.dir.path().join(&ours), hosts.dir.path().join("copy")).expect("copied");
        told(&hosts.wasi(&["export", "/w/copy", &format!("/w/{tar_wasi}")]));
        assert!(
            hosts.read(&tar_here) == hosts.read(&tar_wasi),
            "{format}: other archives"
        );
    }
}

#[test]
fn errors_under_wasi_name_what_and_where() {
    let Some(hosts) = Hosts::new() else { return };
    let missing = hosts.wasi(&["ls", "/w/missing", "/"]);
    assert_eq!(missing.status.code(), Some(1));
    let said = String::from_utf8_lossy(&missing.stderr);
    assert!(said.contains("/w/missing"), "{said}");
    std::fs::write(hosts.dir.path().join("zeroes"), vec![0; 1 << 20]).expect("written");
    let empty = hosts.wasi(&["check", "/w/zeroes"]);
    assert!(!empty.status.success());
    let other = hosts.wasi(&["ls", "/w/zeroes", "/"]);
    let said = String::from_utf8_lossy(&other.stderr);
    assert!(said.contains("only zeroes"), "{said}");
}
