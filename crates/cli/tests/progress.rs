//! Long commands: a bar on a terminal and nothing elsewhere, and what a signal in the middle leaves behind.

mod common;

use common::run::{bw, good, stderr};
use common::{Mounted, Scratch, check_clean, have, have_fuse, ok, output};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

/// A file of bytes that no program can shorten.
fn noise(path: &Path, bytes: usize) {
    let mut file = std::io::BufWriter::new(fs::File::create(path).unwrap());
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    for _ in 0..bytes / 8 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        file.write_all(&state.to_le_bytes()).unwrap();
    }
    file.flush().unwrap();
}

/// An image with one file of so many MiB.
fn image(scratch: &Scratch, mib: usize) -> PathBuf {
    let tree = scratch.dir("tree");
    noise(&tree.join("big"), mib * MIB);
    let image = scratch.path("d.img");
    ok(bw(
        &image,
        &["mkfs", "-q", "--size", "auto", "--free", "600M", "--from"],
    )
    .arg(&tree)
    .arg(&image));
    image
}

/// The command line as the user's shell gets it.
fn line(image: &Path, words: &[&str]) -> String {
    let mut line = format!("'{}'", env!("CARGO_BIN_EXE_blockwright"));
    for word in words {
        let word = word.replace("IMAGE", &image.display().to_string());
        line.push_str(&format!(" '{word}'"));
    }
    line
}

/// Every long command draws on a terminal. Without one, standard error stays empty.
#[test]
fn a_bar_is_drawn_on_a_terminal_only() {
    let scratch = Scratch::new();
    let image = image(&scratch, 24);
    let out = |name: &str| scratch.path(name).display().to_string();
    let tree = out("tree");
    let commands: &[&[&str]] = &[
        &["export", "IMAGE", "-o", &out("1.tar")],
        &["export", "IMAGE:/big", "-o", &out("1.tar.zst")],
        &["cp", "IMAGE:/big", &out("2")],
        &["cp", "-r", "IMAGE:/", &out("3")],
        &["cp", "-r", &tree, "IMAGE:/"],
        &["cp", "IMAGE:/big", "IMAGE:/again"],
        &["disk", "convert", "IMAGE", &out("4.qcow2")],
        &["disk", "convert", "IMAGE", &out("5.simg")],
        &["disk", "convert", "IMAGE", &out("6.vhd")],
        &[
            "chunk",
            "make",
            "IMAGE",
            "--store",
            &out("7"),
            "-o",
            &out("7.caibx"),
        ],
        &[
            "chunk",
            "extract",
            &out("7.caibx"),
            "--store",
            &out("7"),
            "-o",
            &out("8.img"),
        ],
    ];
    for (n, words) in commands.iter().enumerate() {
        let made = output(bw(&image, words).stdin(Stdio::null()));
        assert!(made.status.success(), "{words:?}: {}", stderr(&made));
        assert_eq!(stderr(&made), "", "{words:?}");
        if !have("script") {
            continue;
        }
        // A new file is not overwritten by each of them.
        for name in ["4.qcow2", "5.simg", "6.vhd", "8.img"] {
            let _ = fs::remove_file(scratch.path(name));
        }
        let mut pty = Command::new("script");
        pty.args(["-q", "-e", "-c", &line(&image, words), "/dev/null"]);
        pty.env("TERM", "xterm").env("COLUMNS", "120");
        let shown = output(pty.stdin(Stdio::null()));
        let text = String::from_utf8_lossy(&shown.stdout);
        assert!(shown.status.success(), "{n}: {words:?}: {text}");
        assert!(
            text.contains('[') && text.contains("B/s"),
            "{n}: {words:?}: {text:?}"
        );
    }
    check_clean(&image, "after all of them");
    // Phases of a change count in units of their own.
    let changes: &[(&[&str], &[&str])] = &[
        (&["resize", "IMAGE", "3G"], &["resize", "IMAGE", "9G"]),
        (
            &["set", "IMAGE", "features=^metadata_csum"],
            &["set", "IMAGE", "features=metadata_csum"],
        ),
    ];
    for (plain, on_terminal) in changes {
        let made = output(bw(&image, plain).stdin(Stdio::null()));
        assert!(made.status.success(), "{plain:?}: {}", stderr(&made));
        assert_eq!(stderr(&made), "", "{plain:?}");
        if !have("script") {
            continue;
        }
        let mut pty = Command::new("script");
        pty.args(["-q", "-e", "-c", &line(&image, on_terminal), "/dev/null"]);
        pty.env("TERM", "xterm").env("COLUMNS", "120");
        let shown = output(pty.stdin(Stdio::null()));
        let text = String::from_utf8_lossy(&shown.stdout);
        assert!(shown.status.success(), "{on_terminal:?}: {text}");
        assert!(
            text.contains('[') && text.contains('%'),
            "{on_terminal:?}: {text:?}"
        );
    }
    check_clean(&image, "after changes");
}

/// To a process that has not been waited for. Jobs in the background of a shell ignore SIGINT until they catch it; SIGTERM ends them.
fn send(pid: u32, signal: &str) {
    ok(Command::new("kill").args([format!("-{signal}"), pid.to_string()]));
}

/// Starts a command, and sends it a signal as soon as `begun` is true.
fn interrupted(command: &mut Command, signal: &str, begun: impl Fn(u32) -> bool) -> Output {
    command.stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child: Child = command.spawn().unwrap();
    let start = Instant::now();
    let mut ended = false;
    while !ended && !begun(child.id()) {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "it does not begin"
        );
        std::thread::sleep(Duration::from_millis(1));
        ended = child.try_wait().unwrap().is_some();
    }
    // The number of a process that was waited for may be another's.
    if !ended {
        send(child.id(), signal);
    }
    child.wait_with_output().unwrap()
}

/// Whether a process has a handler for the signal.
fn catches(pid: u32, signal: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 != 0)
}

/// Starts a command, and sends it a signal so long after it has begun to note signals.
fn interrupted_after(command: &mut Command, signal: &str, after: Duration) -> Output {
    let number = match signal {
        "HUP" => 1,
        "INT" => 2,
        _ => 15,
    };
    let noted = std::cell::Cell::new(None);
    interrupted(command, signal, |pid| {
        if noted.get().is_none() && catches(pid, number) {
            noted.set(Some(Instant::now()));
        }
        noted.get().is_some_and(|noted| noted.elapsed() >= after)
    })
}

fn bytes(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |meta| meta.len())
}

/// Whether the signal came in time: the test is about what it leaves, and a command that ended before is tried again.
fn was_interrupted(out: &Output) -> bool {
    assert_eq!(out.status.signal(), None, "it ended by itself");
    match out.status.code() {
        Some(0) => false,
        Some(code) => {
            assert_eq!(code, 130, "{}", stderr(out));
            true
        }
        None => unreachable!("no signal"),
    }
}

#[test]
fn a_signal_leaves_no_half_file() {
    let scratch = Scratch::new();
    let image = image(&scratch, 256);
    for name in ["INT", "TERM"] {
        for sandbox in ["auto", "off"] {
            let mut hits = 0;
            for _ in 0..5 {
                let tar = scratch.path("x.tar.xz");
                let mut export = bw(&image, &["export", "--sandbox", sandbox, "IMAGE", "-o"]);
                let out = interrupted(export.arg(&tar), name, |_| bytes(&tar) > 0);
                if was_interrupted(&out) {
                    hits += 1;
                    assert!(!tar.exists(), "{name}: half an archive");
                    assert!(stderr(&out).contains("removed"), "{}", stderr(&out));
                }
                let _ = fs::remove_file(&tar);
                if hits > 0 {
                    break;
                }
            }
            assert!(hits > 0, "export: {name} never came in time");

            let mut hits = 0;
            for _ in 0..20 {
                let to = scratch.path("copy");
                let mut cp = bw(&image, &["cp", "--sandbox", sandbox, "IMAGE:/big"]);
                let out = interrupted(cp.arg(&to), name, |_| bytes(&to) > 0);
                if was_interrupted(&out) {
                    hits += 1;
                    assert!(!to.exists(), "{name}: half a file");
                    assert!(stderr(&out).contains("removed"), "{}", stderr(&out));
                    // A file that was there before is named.
                    fs::write(&to, "").unwrap();
                    let mut cp = bw(&image, &["cp", "--sandbox", sandbox, "IMAGE:/big"]);
                    let out = interrupted(cp.arg(&to), name, |_| bytes(&to) > 0);
                    if was_interrupted(&out) {
                        let said = stderr(&out);
                        assert!(
                            said.contains("incomplete") && said.contains("copy"),
                            "{said}"
                        );
                    }
                }
                let _ = fs::remove_file(&to);
                if hits > 0 {
                    break;
                }
            }
            assert!(hits > 0, "cp out: {name} never came in time");

            let mut hits = 0;
            // Whenever it comes: all of the file is there, or none of it.
            for after_ms in (0..8).map(|n| 25 * n) {
                let from = scratch.path("tree/big");
                let mut cp = bw(&image, &["cp", "--sandbox", sandbox]);
                cp.arg(&from).arg(format!("{}:/half", image.display()));
                let out = interrupted_after(&mut cp, name, Duration::from_millis(after_ms));
                if was_interrupted(&out) {
                    hits += 1;
                    let names = good(&image, &["ls", "IMAGE:/"]);
                    assert!(!names.contains("half"), "{name}: {names}");
                    assert!(stderr(&out).contains("half"), "{}", stderr(&out));
                } else {
                    let line = good(&image, &["ls", "-l", "IMAGE:/half"]);
                    assert!(line.contains(&(256 * MIB).to_string()), "{name}: {line}");
                }
                ok(&mut bw(&image, &["rm", "-f", "IMAGE:/half"]));
            }
            assert!(hits > 0, "cp in: {name} never came in time");
            check_clean(&image, "after signals");
        }
        for (words, made) in [
            (["disk", "convert", "IMAGE"], "x.qcow2"),
            (["disk", "convert", "IMAGE"], "x.simg"),
        ] {
            let mut hits = 0;
            for _ in 0..20 {
                let to = scratch.path(made);
                let out = interrupted(bw(&image, &words).arg(&to), name, |_| {
                    bytes(&to) > MIB as u64
                });
                if was_interrupted(&out) {
                    hits += 1;
                    assert!(!to.exists(), "{name}: half a disk");
                    // What was there before stays.
                    fs::write(&to, "mine").unwrap();
                    let out = output(bw(&image, &words).arg(&to));
                    assert_eq!(out.status.code(), Some(1));
                    assert_eq!(fs::read(&to).unwrap(), b"mine");
                }
                let _ = fs::remove_file(&to);
                if hits > 0 {
                    break;
                }
            }
            assert!(hits > 0, "{made}: {name} never came in time");
        }
    }
}

/// A change of a volume that a signal stops leaves all files, and the same command finishes it.
#[test]
fn a_signal_stops_a_change_between_two_steps() {
    let scratch = Scratch::new();
    let image = image(&scratch, 24);
    let before = good(&image, &["ls", "-lR", "IMAGE:/"]);
    let same = |what: &str| {
        check_clean(&image, what);
        assert_eq!(good(&image, &["ls", "-lR", "IMAGE:/"]), before, "{what}");
    };
    let length = bytes(&image);
    let changes: [&[&str]; 2] = [
        &["resize", "IMAGE", "64G"],
        &["set", "IMAGE", "features=metadata_csum"],
    ];
    for words in changes {
        if words[0] == "set" {
            // Checksums are put on in steps, and taken off in one.
            ok(&mut bw(
                &image,
                &["set", "IMAGE", "features=^metadata_csum"],
            ));
        }
        let mut hits = 0;
        for (n, name) in ["INT", "TERM", "HUP"].iter().cycle().take(12).enumerate() {
            let out = interrupted_after(&mut bw(&image, words), name, Duration::ZERO);
            if !was_interrupted(&out) {
                break;
            }
            hits += 1;
            let said = stderr(&out);
            assert!(said.contains("the volume is whole"), "{words:?}: {said}");
            assert!(said.contains("the same command"), "{words:?}: {said}");
            if words[0] == "resize" {
                assert_eq!(bytes(&image), length, "{n}: {name}");
            }
            same(name);
            if hits == 3 {
                break;
            }
        }
        assert!(hits > 0, "{words:?}: no signal came in time");
        ok(&mut bw(&image, words));
        same("finished");
    }
    assert_eq!(bytes(&image), 64 << 30);
}

/// The table may be written before the signal comes: then the partition is large already, and the volume follows with the same command.
#[test]
fn a_signal_stops_a_partition_with_a_whole_volume() {
    let scratch = Scratch::new();
    let tree = scratch.dir("tree");
    noise(&tree.join("big"), 8 * MIB);
    let disk = scratch.path("disk.img");
    let root = format!("root={}:ext4:64M", tree.display());
    ok(&mut bw(
        &disk,
        &["disk", "create", "-q", &root, "-o", "IMAGE"],
    ));
    let file = fs::OpenOptions::new().write(true).open(&disk).unwrap();
    file.set_len(64 << 30).unwrap();
    let before = good(&disk, &["ls", "-lR", "IMAGE:p1:/"]);
    let words = ["resize", "IMAGE:p1", "--fill", "--grow-partition"];
    let mut hits = 0;
    for _ in 0..12 {
        let out = interrupted_after(&mut bw(&disk, &words), "INT", Duration::ZERO);
        if !was_interrupted(&out) {
            break;
        }
        hits += 1;
        ok(&mut bw(&disk, &["check", "-n", "IMAGE:p1"]));
        assert_eq!(good(&disk, &["ls", "-lR", "IMAGE:p1:/"]), before);
        if hits == 2 {
            break;
        }
    }
    assert!(hits > 0, "no signal came in time");
    ok(&mut bw(&disk, &words));
    ok(&mut bw(&disk, &["check", "-n", "IMAGE:p1"]));
    let info = good(&disk, &["info", "--json", "IMAGE:p1"]);
    assert!(info.contains("ext4"), "{info}");
    assert_eq!(good(&disk, &["ls", "-lR", "IMAGE:p1:/"]), before);
    assert_eq!(bytes(&disk), 64 << 30);
}

/// A trim of a mount ends at the next range, and the mount works on.
#[test]
fn a_signal_stops_the_trim_of_a_mount() {
    if !have_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let (image, mnt) = (scratch.path("d.img"), scratch.dir("mnt"));
    ok(&mut bw(&image, &["mkfs", "-q", "--size", "1T", "IMAGE"]));
    let mounted = Mounted::new(&image, &mnt, "");
    let file = mnt.join("file");
    for (n, name) in (1u8..).zip(["INT", "TERM", "HUP"]) {
        let mut hits = 0;
        for _ in 0..5 {
            let mut trim = bw(&mnt, &["trim", "IMAGE"]);
            let out = interrupted_after(&mut trim, name, Duration::ZERO);
            fs::write(&file, vec![n; 3 * MIB]).unwrap();
            assert!(fs::read(&file).unwrap() == vec![n; 3 * MIB]);
            if was_interrupted(&out) {
                let said = stderr(&out);
                assert!(said.contains("the same command trims the rest"), "{said}");
                hits += 1;
                break;
            }
        }
        assert!(hits > 0, "{name} never came in time");
    }
    mounted.unmount();
    ok(&mut bw(&image, &["check", "-n", "IMAGE"]));
    assert_eq!(good(&image, &["cat", "IMAGE:/file"]).len(), 3 * MIB);
}

/// A signal stops a repair before it has written anything; the same command repairs.
#[test]
fn a_signal_stops_a_repair_before_it_writes() {
    let scratch = Scratch::new();
    let image = scratch.path("d.img");
    ok(&mut bw(&image, &["mkfs", "-q", "--size", "8T", "IMAGE"]));
    let file = fs::OpenOptions::new().read(true).write(true).open(&image);
    let file = file.unwrap();
    // The count of free blocks in the superblock.
    let start = || {
        let mut start = vec![0; MIB];
        file.read_exact_at(&mut start, 0).unwrap();
        start
    };
    let mut damaged = start();
    damaged[1024 + 12] ^= 0x55;
    file.write_all_at(&damaged, 0).unwrap();
    let held = fs::metadata(&image).unwrap().blocks();
    let mut hits = 0;
    for name in ["INT", "TERM", "HUP", "INT", "TERM"] {
        let mut check = bw(&image, &["check", "-y", "IMAGE"]);
        let out = interrupted_after(&mut check, name, Duration::ZERO);
        match out.status.code() {
            Some(32) => {}
            Some(1) => break,
            code => panic!("{name}: {code:?} {}", stderr(&out)),
        }
        hits += 1;
        let said = stderr(&out);
        assert!(said.contains("interrupted; nothing was changed"), "{said}");
        assert!(start() == damaged, "{name}: it was written to");
        assert_eq!(fs::metadata(&image).unwrap().blocks(), held, "{name}");
    }
    assert!(hits > 0, "no signal came in time");
    if start() == damaged {
        let out = output(&mut bw(&image, &["check", "-y", "IMAGE"]));
        assert_eq!(out.status.code(), Some(1), "{}", stderr(&out));
    }
    check_clean(&image, "repaired");
}

/// A partition whose adding a signal stops is not in the table.
#[test]
fn a_signal_leaves_the_table_without_the_partition() {
    let scratch = Scratch::new();
    let tree = scratch.dir("tree");
    noise(&tree.join("big"), 96 * MIB);
    let add = format!("big={}:ext4", tree.display());
    for scheme in ["--gpt", "--mbr"] {
        let disk = scratch.path("disk.img");
        let _ = fs::remove_file(&disk);
        let create = [
            "disk", "create", "-q", scheme, "--size", "512M", "-o", "IMAGE",
        ];
        ok(bw(&disk, &create).arg("first=:ext4:32M"));
        let before = good(&disk, &["disk", "ls", "--json", "IMAGE"]);
        let mut hits = 0;
        for name in ["INT", "TERM", "HUP", "INT", "TERM"] {
            let mut command = bw(&disk, &["disk", "add", "IMAGE", &add]);
            let out = interrupted_after(&mut command, name, Duration::ZERO);
            if !was_interrupted(&out) {
                break;
            }
            hits += 1;
            let said = stderr(&out);
            assert!(said.contains("is as it was"), "{said}");
            assert_eq!(good(&disk, &["disk", "ls", "--json", "IMAGE"]), before);
            ok(&mut bw(&disk, &["check", "-n", "IMAGE:p1"]));
            if scheme == "--gpt" && have("sgdisk") {
                let verified = ok(Command::new("sgdisk").arg("-v").arg(&disk));
                assert!(verified.contains("No problems found"), "{verified}");
            }
        }
        assert!(hits > 0, "no signal came in time");
        if good(&disk, &["disk", "ls", "--json", "IMAGE"]) == before {
            ok(&mut bw(&disk, &["disk", "add", "-q", "IMAGE", &add]));
        }
        ok(&mut bw(&disk, &["check", "-n", "IMAGE:p2"]));
        assert_eq!(
            good(&disk, &["ls", "IMAGE:p2:/"]).lines().next(),
            Some("big")
        );
    }
}

/// At whatever moment a signal comes, a growth that was not made leaves the image file's length.
#[test]
fn a_signal_at_any_moment_leaves_the_length() {
    let scratch = Scratch::new();
    let image = image(&scratch, 4);
    let length = bytes(&image);
    let mut ended = 0;
    for milliseconds in 0..40 {
        let mut command = bw(&image, &["resize", "IMAGE", "64G"]);
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(milliseconds));
        send(child.id(), "TERM");
        if child.wait().unwrap().success() {
            break;
        }
        ended += 1;
        assert_eq!(bytes(&image), length, "after {milliseconds} ms");
    }
    assert!(ended > 0, "no signal came in time");
    check_clean(&image, "signals");
}

/// A command that waits for the reader of a pipe ends at its first signal, confined or not.
#[test]
fn an_export_into_a_full_pipe_ends_at_once() {
    let scratch = Scratch::new();
    let image = image(&scratch, 4);
    let pipe = scratch.path("pipe");
    ok(Command::new("mkfifo").arg(&pipe));
    for sandbox in ["--sandbox=off", "--sandbox=auto"] {
        // Opened for both, so that neither side waits for the other.
        let reader = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(&pipe)
            .unwrap();
        let mut command = bw(&image, &["export", "IMAGE", sandbox, "-o"]);
        let mut child = command.arg(&pipe).stderr(Stdio::null()).spawn().unwrap();
        let waits = || {
            let call = fs::read_to_string(format!("/proc/{}/wchan", child.id()));
            call.is_ok_and(|name| name.contains("pipe_write"))
        };
        let until = Instant::now() + Duration::from_secs(60);
        while !waits() {
            assert!(Instant::now() < until, "{sandbox}: the pipe is never full");
            std::thread::sleep(Duration::from_millis(5));
        }
        send(child.id(), "TERM");
        let until = Instant::now() + Duration::from_secs(20);
        let ended = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break Some(status);
            }
            if Instant::now() > until {
                break None;
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        if ended.is_none() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(ended.and_then(|s| s.signal()), Some(15), "{sandbox}");
        drop(reader);
    }
}
