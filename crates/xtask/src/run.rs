//! The main job on real input: a tree becomes an image, real programs work in the mounted image,
//! and our checker and e2fsck look at the result.

use crate::tools::cargo_path;
use crate::{target_dir, workspace};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// A directory of our own that is removed at the end, with all mounts in it.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> std::io::Result<Self> {
        let dir = target_dir().join(format!("run-{}", std::process::id()));
        fs::create_dir_all(dir.join("mnt"))?;
        Ok(Scratch(dir))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let mnt = self.0.join("mnt");
        let mounted = fs::read_to_string("/proc/mounts")
            .is_ok_and(|m| m.lines().any(|l| l.split(' ').nth(1) == mnt.to_str()));
        if mounted {
            let _ = Command::new("fusermount3")
                .args(["-u", "-z"])
                .arg(&mnt)
                .status();
        }
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn run() -> ExitCode {
    match main_job() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("make run: {e}");
            ExitCode::FAILURE
        }
    }
}

fn main_job() -> Result<(), String> {
    step("building blockwright (release)", || {
        sh(Command::new(cargo_path())
            .args(["build", "--release", "--quiet", "-p", "blockwright-cli"])
            .current_dir(workspace()))
    })?;
    let program = target_dir().join("release/blockwright");
    let scratch = Scratch::new().map_err(|e| format!("scratch directory: {e}"))?;
    let image = scratch.0.join("disk.img");
    let mnt = scratch.0.join("mnt");
    let source = source_tree();
    let (files, bytes) = measure(&source);
    println!(
        "source: {} ({files} files, {} MB)",
        source.display(),
        bytes / 1_000_000
    );

    let took = step("mkfs --from: the tree becomes an ext4 image", || {
        sh(Command::new(&program)
            .args([
                "mkfs",
                "-t",
                "ext4",
                "-L",
                "blockwright",
                "--size",
                "auto",
                "--free",
                "2G",
                "--from",
            ])
            .arg(&source)
            .arg(&image))
    })?;
    rate(bytes, took);
    step("check: our own checker", || {
        sh(Command::new(&program).args(["check", "-n"]).arg(&image))
    })?;
    e2fsck(&image)?;

    if !Path::new("/dev/fuse").exists() {
        println!("no /dev/fuse on this machine: the mounted part is left out");
        return Ok(());
    }
    step("mount", || {
        sh(Command::new(&program).arg("mount").arg(&image).arg(&mnt))
    })?;
    let took = step(
        "reading every byte through the mount, compared with the source",
        || compare(&source, &mnt),
    )?;
    rate(bytes, took);
    let clone = mnt.join("work");
    step("git clone of this repository into the mount", || {
        sh(Command::new("git")
            .args(["clone", "--quiet", "--no-hardlinks"])
            .arg(workspace())
            .arg(&clone))
    })?;
    step("git fsck in the mount", || {
        sh(Command::new("git").arg("-C").arg(&clone).args([
            "fsck",
            "--no-progress",
            "--no-dangling",
        ]))
    })?;
    step("compiling a Rust program in the mount", || {
        let dir = mnt.join("compile");
        fs::create_dir_all(dir.join("src")).map_err(|e| e.to_string())?;
        fs::write(
            dir.join("Cargo.toml"),
            "[package]\nname = \"hello\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n[workspace]\n",
        )
        .and_then(|()| {
            fs::write(
                dir.join("src/main.rs"),
                "fn main() {\n    println!(\"hello from an ext4 volume in user space\");\n}\n",
            )
        })
        .map_err(|e| e.to_string())?;
        sh(Command::new(cargo_path())
            .args(["build", "--quiet", "--offline"])
            .env("CARGO_TARGET_DIR", dir.join("target"))
            .current_dir(&dir))?;
        sh(&mut Command::new(dir.join("target/debug/hello")))
    })?;
    step("tar of the clone, and removal of the clone", || {
        sh(Command::new("tar")
            .arg("cf")
            .arg(mnt.join("work.tar"))
            .arg("-C")
            .arg(&mnt)
            .arg("work"))?;
        sh(Command::new("rm").arg("-rf").arg(&clone))
    })?;
    step("umount", || {
        sh(Command::new(&program).arg("umount").arg(&mnt))
    })?;
    step("check after the work", || {
        sh(Command::new(&program).args(["check", "-n"]).arg(&image))
    })?;
    e2fsck(&image)?;
    let _ = sh(Command::new(&program).args(["df"]).arg(&image));
    println!("done: every step passed");
    Ok(())
}

/// A real tree of some size that every Rust machine has: the toolchain's libraries; else this repository.
fn source_tree() -> PathBuf {
    let sysroot = Command::new("rustc")
        .args(["--print", "sysroot"])
        .output()
        .ok()
        .and_then(|o| String::from_utf8(o.stdout).ok())
        .map(|s| PathBuf::from(s.trim()));
    match sysroot {
        Some(dir) if dir.join("lib").is_dir() => dir,
        _ => workspace(),
    }
}

fn e2fsck(image: &Path) -> Result<(), String> {
    let found = ["e2fsck", "/usr/sbin/e2fsck", "/sbin/e2fsck"]
        .into_iter()
        .find(|p| Command::new(p).arg("-V").output().is_ok());
    match found {
        Some(program) => step("e2fsck -fn", || {
            sh(Command::new(program)
                .arg("-fn")
                .arg(image)
                .stdout(Stdio::null()))
        })
        .map(|_| ()),
        None => {
            println!("e2fsck is not installed: left out");
            Ok(())
        }
    }
}

fn measure(dir: &Path) -> (u64, u64) {
    let (mut files, mut bytes) = (0, 0);
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let Ok(meta) = entry.metadata() else { continue };
        if meta.is_dir() {
            let (f, b) = measure(&entry.path());
            files += f;
            bytes += b;
        } else {
            files += 1;
            bytes += if meta.is_file() { meta.len() } else { 0 };
        }
    }
    (files, bytes)
}

/// Every file of `from` is in `to` with the same bytes (`to` may have more: lost+found).
fn compare(from: &Path, to: &Path) -> Result<(), String> {
    for entry in fs::read_dir(from)
        .map_err(|e| format!("{}: {e}", from.display()))?
        .flatten()
    {
        let (a, b) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type().map_err(|e| e.to_string())?;
        if kind.is_dir() {
            compare(&a, &b)?;
        } else if kind.is_symlink() {
            if fs::read_link(&a).ok() != fs::read_link(&b).ok() {
                return Err(format!("{} differs", b.display()));
            }
        } else if kind.is_file() {
            let (x, y) = (
                fs::read(&a).map_err(|e| e.to_string())?,
                fs::read(&b).map_err(|e| format!("{}: {e}", b.display()))?,
            );
            if x != y {
                return Err(format!("{} differs", b.display()));
            }
        }
    }
    Ok(())
}

fn step(what: &str, job: impl FnOnce() -> Result<(), String>) -> Result<Duration, String> {
    let start = Instant::now();
    print!("{what} … ");
    let _ = std::io::Write::flush(&mut std::io::stdout());
    match job() {
        Ok(()) => {
            let took = start.elapsed();
            println!("ok, {:.2} s", took.as_secs_f64());
            Ok(took)
        }
        Err(e) => {
            println!("FAILED");
            Err(format!("{what}: {e}"))
        }
    }
}

fn rate(bytes: u64, took: Duration) {
    println!(
        "    {:.0} MB/s",
        bytes as f64 / 1e6 / took.as_secs_f64().max(1e-9)
    );
}

fn sh(command: &mut Command) -> Result<(), String> {
    let status = command
        .status()
        .map_err(|e| format!("{:?}: {e}", command.get_program()))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{:?}: {status}", command.get_program()))
    }
}
