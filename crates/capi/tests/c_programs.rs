//! C programs against the installed library: plain, static, and under the sanitizers. The programs are in `tests/c`; those of the manual run, too.

use blockwright::VolumeBuilder;
use blockwright::disk::{DiskBuilder, Part, Scheme, container};
use blockwright_oracles as oracles;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use tempfile::TempDir;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn run(command: &mut Command) -> String {
    let out = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let (stdout, stderr) = (
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr),
    );
    assert!(
        out.status.success(),
        "{command:?}: {}\n{stdout}\n{stderr}",
        out.status
    );
    format!("{stdout}{stderr}")
}

/// The folder of the libraries that cargo has built with this test, under the names that `install-c.sh` takes.
fn built(to: &Path) -> PathBuf {
    let here = std::env::current_exe().expect("this program");
    let deps = here.parent().expect("a folder");
    let newest = |extension: &str| {
        let mut found: Vec<_> = std::fs::read_dir(deps)
            .expect("a folder")
            .flatten()
            .filter(|e| {
                let name = e.file_name().to_string_lossy().into_owned();
                name.starts_with("libblockwright_capi") && name.ends_with(extension)
            })
            .map(|e| (e.metadata().expect("metadata").modified().ok(), e.path()))
            .collect();
        found.sort();
        found.pop().expect("a library beside this test").1
    };
    let build = to.join("build");
    std::fs::create_dir(&build).expect("a folder");
    for extension in [".so", ".a"] {
        let name = format!("libblockwright_capi{extension}");
        std::os::unix::fs::symlink(newest(extension), build.join(name)).expect("a link");
    }
    build
}

/// The library, installed as `make install` does it.
fn installed() -> &'static Path {
    static DIR: OnceLock<TempDir> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = tempfile::tempdir().expect("a folder");
        let script = Path::new(ROOT).join("../../scripts/install-c.sh");
        let prefix = dir.path().join("usr");
        run(Command::new("sh")
            .arg(script)
            .arg(built(dir.path()))
            .arg("")
            .arg(prefix));
        dir
    })
    .path()
}

/// What pkg-config says, split at spaces.
fn flags(args: &[&str]) -> Vec<String> {
    let found = run(Command::new("pkg-config")
        .args(args)
        .arg("blockwright")
        .env("PKG_CONFIG_PATH", installed().join("usr/lib/pkgconfig")));
    found.split_whitespace().map(str::to_owned).collect()
}

#[derive(Clone, Copy, PartialEq)]
enum How {
    Plain,
    Static,
    Sanitized,
    Valgrind,
}

/// Compiles a program and runs it.
fn compile_and_run(source: &Path, how: How, dir: &Path, args: &[&str]) -> String {
    let program = dir.join("program");
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-g", "-Wall", "-Wextra", "-Werror"])
        .arg("-D_GNU_SOURCE")
        .arg("-o")
        .arg(&program)
        .arg(source);
    if how == How::Sanitized {
        cc.args(["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]);
    }
    cc.args(flags(&["--cflags"])).arg("-pthread");
    match how {
        How::Static => {
            cc.arg(installed().join("usr/lib/libblockwright.a"));
            let libs = flags(&["--libs", "--static"]);
            cc.args(libs.iter().filter(|l| *l != "-lblockwright"));
        }
        _ => {
            cc.args(flags(&["--libs"]));
        }
    }
    run(&mut cc);
    let mut command = match how {
        How::Valgrind => {
            let mut valgrind = Command::new("valgrind");
            valgrind
                .args(["--quiet", "--error-exitcode=9", "--leak-check=full"])
                // A thread that never waits would keep the others from running.
                .arg("--fair-sched=yes")
                .arg("--errors-for-leak-kinds=definite")
                .arg(&program)
                .env("NO_URING", "1");
            valgrind
        }
        _ => Command::new(&program),
    };
    run(command
        .args(args)
        .env("LD_LIBRARY_PATH", installed().join("usr/lib"))
        .current_dir(dir))
}

/// A disk of 256 MiB with a FAT volume and an ext4 volume.
fn disk(path: &Path) {
    let volume = |mib: u64| VolumeBuilder::new().size(mib << 20);
    let made = DiskBuilder::new(Scheme::Gpt)
        .size(256 << 20)
        .part(Part::fat32("esp", volume(64)))
        .part(Part::volume("data", volume(32).label("data")))
        .create(path, container::Format::Raw);
    made.expect("a disk");
}

/// `elsewhere/c.qcow2`, whose data is in a file of the folder above.
fn disk_with_data_elsewhere(dir: &Path) {
    let folder = dir.join("elsewhere");
    std::fs::create_dir(&folder).expect("a folder");
    let data = format!("data_file={}", dir.join("c-data.raw").display());
    run(Command::new("qemu-img")
        .args(["create", "-q", "-f", "qcow2", "-o", &data])
        .arg(folder.join("c.qcow2"))
        .arg("32M"));
}

/// The programs with their arguments, in one way.
fn programs(how: How) {
    if !oracles::have(&["cc", "pkg-config", "tar"]) {
        return;
    }
    for name in ["api", "misuse", "device"] {
        let dir = tempfile::tempdir().expect("a folder");
        let (tree, tar) = (dir.path().join("tree"), dir.path().join("x.tar"));
        std::fs::create_dir(&tree).expect("a folder");
        std::fs::write(tree.join("from-tree"), "tree").expect("a file");
        std::fs::write(dir.path().join("from-tar"), "tar").expect("a file");
        run(Command::new("tar").arg("-cf").arg(&tar).args([
            "-C",
            dir.path().to_str().expect("text"),
            "from-tar",
        ]));
        disk(&dir.path().join("c-disk.img"));
        if name == "api" && oracles::have(&["qemu-img"]) {
            disk_with_data_elsewhere(dir.path());
        }
        let text = |path: &Path| path.to_str().expect("text").to_owned();
        let all = [text(dir.path()), text(&tree), text(&tar)];
        let args: Vec<&str> = match name {
            "api" => all.iter().map(String::as_str).collect(),
            "misuse" => vec![&all[0]],
            _ => Vec::new(),
        };
        let source = Path::new(ROOT).join(format!("tests/c/{name}.c"));
        let said = compile_and_run(&source, how, dir.path(), &args);
        let counted: u32 = said
            .lines()
            .find_map(|l| l.strip_prefix(&format!("{name}: ")))
            .and_then(|l| l.strip_suffix(" checks"))
            .and_then(|n| n.parse().ok())
            .unwrap_or_else(|| panic!("no count: {said}"));
        assert!(counted > 50, "{said}");
        if name == "api" && how == How::Plain && oracles::have(&["e2fsck", "fsck.f2fs"]) {
            let image = |name: &str| dir.path().join(name);
            run(Command::new("e2fsck")
                .args(["-fn"])
                .arg(image("c-ext4.img"))
                .env("PATH", oracles::search_path()));
            run(Command::new("fsck.f2fs")
                .args(["--dry-run"])
                .arg(image("c-f2fs.img"))
                .env("PATH", oracles::search_path()));
        }
    }
}

#[test]
fn plain() {
    programs(How::Plain);
}

#[test]
fn with_the_static_library() {
    programs(How::Static);
}

#[test]
fn under_address_and_undefined_behaviour_sanitizers() {
    programs(How::Sanitized);
}

/// Without io_uring, and without the sanitizers: no invalid access and no definite leak.
#[test]
fn under_valgrind() {
    if oracles::have(&["valgrind"]) {
        programs(How::Valgrind);
    }
}

/// A C++ compiler takes the header.
#[test]
fn the_header_is_for_c_and_cpp() {
    if !oracles::have(&["c++"]) {
        return;
    }
    let header = Path::new(ROOT).join("include/blockwright.h");
    for (compiler, language) in [("cc", "c"), ("c++", "c++")] {
        run(Command::new(compiler)
            .args([
                "-x",
                language,
                "-Wall",
                "-Wextra",
                "-Werror",
                "-fsyntax-only",
            ])
            .arg(&header));
    }
}

/// The programs in `docs/C-API.md` and in the book compile without a warning and do what the page says.
#[test]
fn the_programs_of_the_manual_run() {
    if !oracles::have(&["cc", "pkg-config"]) {
        return;
    }
    let page = |name: &str| {
        std::fs::read_to_string(Path::new(ROOT).join("../../docs").join(name)).expect("page")
    };
    let page = page("C-API.md") + &page("book/src/programs.md");
    let programs: Vec<&str> = page
        .split("```c\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .filter(|block| block.contains("int main("))
        .collect();
    assert!(programs.len() >= 3, "{} programs", programs.len());
    for program in programs {
        let dir = tempfile::tempdir().expect("a folder");
        let source = dir.path().join("program.c");
        std::fs::write(&source, program).expect("a file");
        let said = compile_and_run(&source, How::Plain, dir.path(), &[]);
        for line in program.lines() {
            if let Some(expected) = line.trim().strip_prefix("// prints: ") {
                assert!(said.contains(expected), "{expected:?} is not in {said:?}");
            }
        }
    }
}
