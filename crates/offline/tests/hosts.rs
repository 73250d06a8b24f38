//! The same archive and options give the same bytes on this host and on others, and what one writes the other reads.
//!
//! WASI by node, Windows by Wine, Linux with musl. Each needs a build of its own; that for musl is made only where `BLOCKWRIGHT_HOSTS` is `all`, as
//! `cargo xtask hosts` sets it.

use blockwright_oracles as oracles;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

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

/// Whether the toolchain has the standard library for a target. Not every toolchain can have each.
fn has_target(target: &str) -> bool {
    let asked = Command::new("rustc").args(["--print", "sysroot"]).output();
    let sysroot = String::from_utf8(asked.expect("rustc").stdout).expect("a path");
    let std = Path::new(sysroot.trim()).join("lib/rustlib").join(target);
    if !std.is_dir() {
        oracles::leave(&format!("rustup target add {target}"));
    }
    std.is_dir()
}

/// The folder with the program compiled for a target.
fn compiled(target: &str) -> PathBuf {
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
            target,
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
    dir.join(target).join("quick")
}

/// How the program of another host runs here.
enum Other {
    /// The module, run by node.
    Wasi(PathBuf),
    Windows(Wine),
    /// The program, for this processor and kernel.
    Musl(PathBuf),
}

/// The program for Windows, and Wine's own folder. The folder stays for the next run: making it takes Wine longer than the tests.
struct Wine {
    program: PathBuf,
    prefix: PathBuf,
}

const WINE: [&str; 2] = ["/usr/lib/wine/wine64", "/usr/lib/wine/wineserver64"];

impl Wine {
    fn new() -> Option<Self> {
        let linker = "x86_64-w64-mingw32-gcc";
        if !WINE.iter().all(|tool| Path::new(tool).is_file()) || oracles::find(linker).is_none() {
            // It is large, and CI goes without.
            oracles::leave("sh scripts/setup.sh hosts: Wine or mingw is missing");
            return None;
        }
        let target = "x86_64-pc-windows-gnu";
        if !has_target(target) {
            return None;
        }
        let dir = compiled(target);
        let made = Command::new(linker)
            .args(["-shared", "-o"])
            .arg(dir.join("bcryptprimitives.dll"))
            .arg(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/tests/bcryptprimitives.c"
            ))
            .arg("-ladvapi32")
            .status();
        assert!(made.expect("mingw runs").success());
        Some(Wine {
            program: dir.join("blockwright-offline.exe"),
            prefix: target_dir().join("wine"),
        })
    }

    fn command(&self, tool: &str) -> Command {
        let mut command = Command::new(tool);
        command
            .env("WINEPREFIX", &self.prefix)
            .env("WINEDEBUG", "-all")
            // It would ask whether to install these.
            .env("WINEDLLOVERRIDES", "mscoree,mshtml=");
        command
    }
}

impl Drop for Wine {
    fn drop(&mut self) {
        // It would wait for more programs, in the background.
        let _gone_already = self.command(WINE[1]).arg("-k").status();
    }
}

struct Hosts {
    dir: tempfile::TempDir,
    other: Other,
}

impl Hosts {
    fn new(other: Other) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join("run.cjs"), RUNNER).expect("written");
        Hosts { dir, other }
    }

    /// With WASI; `None` where that target or node is missing.
    fn with_wasi() -> Option<Self> {
        let answers = |command: &mut Command| command.output().is_ok_and(|o| o.status.success());
        let node =
            answers(Command::new("node").args(["--no-warnings", "-e", "require('node:wasi')"]));
        let target = "wasm32-wasip1";
        if !oracles::available("node with node:wasi", node) || !has_target(target) {
            return None;
        }
        let module = compiled(target).join("blockwright-offline.wasm");
        Some(Self::new(Other::Wasi(module)))
    }

    fn with_windows() -> Option<Self> {
        Wine::new().map(|wine| Self::new(Other::Windows(wine)))
    }

    fn with_musl() -> Option<Self> {
        if std::env::var_os("BLOCKWRIGHT_HOSTS").is_none_or(|which| which != "all") {
            oracles::leave("another build of the program: cargo xtask hosts");
            return None;
        }
        let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
        let program = || compiled(&target).join("blockwright-offline");
        has_target(&target).then(|| Self::new(Other::Musl(program())))
    }

    fn here(&self, words: &[&str]) -> Output {
        self.run(Command::new(env!("CARGO_BIN_EXE_blockwright-offline")).args(words))
    }

    fn there(&self, words: &[&str]) -> Output {
        match &self.other {
            Other::Wasi(module) => self.run(
                Command::new("node")
                    .args(["--no-warnings", "run.cjs"])
                    .arg(module)
                    .arg(self.dir.path())
                    .args(words),
            ),
            Other::Windows(wine) => self.run(wine.command(WINE[0]).arg(&wine.program).args(words)),
            Other::Musl(program) => self.run(Command::new(program).args(words)),
        }
    }

    fn run(&self, command: &mut Command) -> Output {
        let run = command.current_dir(self.dir.path()).output();
        run.unwrap_or_else(|e| panic!("{command:?}: {e}"))
    }

    /// How the other host names a file of the folder.
    fn name(&self, file: &str) -> String {
        match self.other {
            Other::Wasi(_) => format!("/w/{file}"),
            Other::Windows(_) | Other::Musl(_) => file.to_owned(),
        }
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
        (124, "00000000000"),
        (136, "14524721400"),
        (148, "        "),
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

/// An archive becomes the same volumes on both hosts, which read, check, change, resize and export what the other has made.
fn agree(hosts: &Hosts) {
    let (here, there) = (
        |words: &[&str]| told(&hosts.here(words)),
        |words: &[&str]| told(&hosts.there(words)),
    );
    archive(hosts.dir.path());
    for format in ["ext4", "f2fs"] {
        let bytes = (128u64 << 20).to_string();
        let (ours, theirs) = (format!("{format}.here"), format!("{format}.there"));
        let make = ["mkfs", format, &bytes, "1700000000"];
        here(&[&make[..], &[&ours, "tree.tar"]].concat());
        let image = hosts.name(&theirs);
        there(&[&make[..], &[&image, &hosts.name("tree.tar")]].concat());
        assert!(
            hosts.read(&ours) == hosts.read(&theirs),
            "{format}: other bytes"
        );

        let listed = there(&["ls", &image, "/srv"]);
        assert_eq!(listed, here(&["ls", &ours, "/srv"]));
        assert_eq!(listed.lines().count(), 302, "{listed}");
        // Windows has no name for one that is not UTF-8, so the root directory is left out.
        assert_eq!(there(&["ls", &image, "/etc"]), here(&["ls", &ours, "/etc"]));
        assert_eq!(there(&["info", &image]), here(&["info", &ours]));
        assert_eq!(there(&["cat", &image, "/srv/link"]), "hello\n");
        let large = hosts.there(&["cat", &image, "/srv/large"]).stdout;
        assert!(large == hosts.read("tree/srv/large"), "{format}: cat");

        // The other host changes its volume; this host finds it whole.
        std::fs::write(hosts.dir.path().join("new"), "from there\n").expect("written");
        there(&["put", &image, "/etc/new", &hosts.name("new")]);
        assert_eq!(here(&["check", &theirs]), "");
        assert_eq!(here(&["cat", &theirs, "/etc/new"]), "from there\n");

        let grown = (160u64 << 20).to_string();
        there(&["resize", &image, &grown]);
        assert_eq!(there(&["check", &image]), "");

        let (tar_here, tar_there) = (format!("{format}-here.tar"), format!("{format}-there.tar"));
        here(&["export", &ours, &tar_here]);
        std::fs::copy(hosts.dir.path().join(&ours), hosts.dir.path().join("copy")).expect("copied");
        there(&["export", &hosts.name("copy"), &hosts.name(&tar_there)]);
        assert!(
            hosts.read(&tar_here) == hosts.read(&tar_there),
            "{format}: other archives"
        );
    }
}

/// What cannot be done is said with its place, and by the exit code.
fn say_what_and_where(hosts: &Hosts) {
    let missing = hosts.there(&["ls", &hosts.name("missing"), "/"]);
    assert_eq!(missing.status.code(), Some(1));
    let said = String::from_utf8_lossy(&missing.stderr);
    assert!(said.contains(&hosts.name("missing")), "{said}");
    std::fs::write(hosts.dir.path().join("zeroes"), vec![0; 1 << 20]).expect("written");
    let empty = hosts.there(&["check", &hosts.name("zeroes")]);
    assert!(!empty.status.success());
    let other = hosts.there(&["ls", &hosts.name("zeroes"), "/"]);
    let said = String::from_utf8_lossy(&other.stderr);
    assert!(said.contains("only zeroes"), "{said}");
}

#[test]
fn the_same_bytes_under_wasi() {
    let Some(hosts) = Hosts::with_wasi() else {
        return;
    };
    agree(&hosts);
    say_what_and_where(&hosts);
}

#[test]
fn the_same_bytes_on_windows() {
    let Some(hosts) = Hosts::with_windows() else {
        return;
    };
    agree(&hosts);
    say_what_and_where(&hosts);
}

#[test]
fn the_same_bytes_with_musl() {
    let Some(hosts) = Hosts::with_musl() else {
        return;
    };
    agree(&hosts);
    say_what_and_where(&hosts);
}
