//! Runs one test program under a time limit, so that a hung test fails and the others still run.
//!
//! `cargo xtask test` starts `xtask guard PROGRAM ARGS…` in place of each test program.
//! The program gets a process group and pipes of its own. When its time is over, the group is killed and the run counts as
//! one failed test. Mounts that were made meanwhile are removed, and their FUSE connections are aborted: a process that waits for a
//! FUSE answer ends in no other way. These may be mounts of programs that run beside it, whose tests then fail, too. Nothing here waits without a bound: a process that cannot be killed keeps only the
//! pipes it was given, not the ones that our own reader waits for.
//!
//! Tests that could not run say so on standard error (crate `oracles`); they are counted here, since for the test harness they have passed.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Names the second (of Unix time) at which the whole run has to be over.
pub(crate) const DEADLINE: &str = "BLOCKWRIGHT_TEST_DEADLINE";
/// Sets the limit of one test program, in seconds.
const LIMIT: &str = "BLOCKWRIGHT_TEST_LIMIT";
/// The limit of one test program where nothing else is said.
const LIMIT_DEFAULT: Duration = Duration::from_secs(900);
/// Begins the line that says how many tests of a program were skipped.
pub(crate) const SKIPPED: &str = "xtask guard: tests skipped: ";
/// Begins the line that says what a program took.
pub(crate) const TOOK: &str = "xtask guard: took ";
/// What is kept of a line at most.
const LINE_MAX: usize = 4096;
/// How long a killed program may take to be gone.
const GONE: Duration = Duration::from_secs(10);

/// Runs `args` (a program and its arguments) and gives its exit code on.
pub(crate) fn run(args: &[String]) -> ExitCode {
    let Some((program, rest)) = args.split_first() else {
        eprintln!("xtask guard: no program named");
        return ExitCode::from(2);
    };
    let limit = limit();
    let start = Instant::now();
    let mounts = fuse_mounts();
    let spawned = Command::new(program)
        .args(rest)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn();
    let mut child = match spawned {
        Ok(child) => child,
        Err(e) => {
            eprintln!("xtask guard: cannot run {program}: {e}");
            return ExitCode::FAILURE;
        }
    };
    let (end, ended) = mpsc::channel::<()>();
    let skipped = Arc::new(Mutex::new(Skipped::default()));
    let seen = Arc::clone(&skipped);
    copy(child.stdout.take(), std::io::stdout(), end.clone(), |_| ());
    copy(child.stderr.take(), std::io::stderr(), end, move |bytes| {
        seen.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .see(bytes);
    });
    match wait(&mut child, limit) {
        Some(status) => {
            drain(&ended, GONE);
            let count = skipped
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .count();
            println!();
            if count > 0 {
                println!("{SKIPPED}{count}");
            }
            println!("{TOOK}{}", took(program, start.elapsed()));
            code(status)
        }
        None => {
            end_group(&mut child, &mounts);
            drain(&ended, Duration::from_secs(1));
            println!(
                "\nxtask guard: {program} had not ended after {} s and was killed",
                limit.as_secs()
            );
            println!("test result: FAILED. 0 passed; 1 failed; 0 ignored (killed)");
            println!("{TOOK}{}", took(program, start.elapsed()));
            ExitCode::from(101)
        }
    }
}

/// Seconds of a program, its seconds of processors, and its name. Processors' time is that of the program and of the processes it waited for.
fn took(program: &str, time: Duration) -> String {
    // Fields 16 and 17 of proc(5), in hundredths of a second. The name before them may contain blanks.
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat
        .rsplit_once(") ")
        .map_or("", |(_, fields)| fields)
        .split(' ');
    let ticks = fields
        .skip(13)
        .take(2)
        .filter_map(|n| n.parse::<u64>().ok());
    let name = Path::new(program).file_name().unwrap_or_default();
    format!(
        "{} s, {} s of CPU: {}",
        time.as_secs(),
        ticks.sum::<u64>() / 100,
        name.to_string_lossy()
    )
}

/// The time limit of one program: its own, or the rest of the whole run's.
fn limit() -> Duration {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let own = number(LIMIT).map_or(LIMIT_DEFAULT, Duration::from_secs);
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    match number(DEADLINE) {
        Some(at) => own.min(
            Duration::from_secs(at)
                .saturating_sub(now)
                .max(Duration::from_secs(1)),
        ),
        None => own,
    }
}

/// The tests of one program that said that they cannot run.
#[derive(Default)]
struct Skipped {
    /// The line that has not ended yet.
    line: Vec<u8>,
    /// Names; a test may lack several things.
    tests: BTreeSet<String>,
    /// Lines that do not name their test.
    unnamed: usize,
}

impl Skipped {
    /// Looks at what the program wrote.
    fn see(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if *byte != b'\n' {
                if self.line.len() < LINE_MAX {
                    self.line.push(*byte);
                }
                continue;
            }
            let line = String::from_utf8_lossy(&self.line).into_owned();
            self.line.clear();
            let Some(rest) = line.strip_prefix(blockwright_oracles::MARK) else {
                continue;
            };
            match rest.split_once(": ") {
                Some((test, _)) if !test.contains(' ') => {
                    self.tests.insert(test.to_owned());
                }
                _ => self.unnamed += 1,
            }
        }
    }

    fn count(&self) -> usize {
        self.tests.len() + self.unnamed
    }
}

/// Copies a stream on as it comes, and shows it to `see`; drops `end` when the stream is over.
fn copy<R, W>(
    from: Option<R>,
    mut to: W,
    end: mpsc::Sender<()>,
    mut see: impl FnMut(&[u8]) + Send + 'static,
) where
    R: Read + Send + 'static,
    W: Write + Send + 'static,
{
    let Some(mut from) = from else { return };
    thread::spawn(move || {
        let _end = end;
        let mut bytes = [0; 16384];
        while let Ok(n) = from.read(&mut bytes) {
            see(&bytes[..n]);
            if n == 0 || to.write_all(&bytes[..n]).is_err() || to.flush().is_err() {
                break;
            }
        }
    });
}

/// Waits until both streams are over, but with a limit: a stray child may hold them open.
fn drain(ended: &Receiver<()>, most: Duration) {
    match ended.recv_timeout(most) {
        Ok(()) | Err(RecvTimeoutError::Disconnected) => {}
        Err(RecvTimeoutError::Timeout) => {
            eprintln!("xtask guard: something the program started still holds its output open");
        }
    }
}

/// The program's status, or `None` when the time is over.
fn wait(child: &mut Child, most: Duration) -> Option<ExitStatus> {
    let start = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        if start.elapsed() >= most {
            return None;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// Kills the program's process group; helps processes that hang in a mount of ours to end.
fn end_group(child: &mut Child, before: &BTreeSet<(String, String)>) {
    let group = format!("-{}", child.id());
    quiet("kill", &["-KILL", "--", &group]);
    let left: Vec<_> = fuse_mounts().difference(before).cloned().collect();
    for (device, place) in &left {
        abort(device);
        quiet("umount", &["--lazy", place]);
    }
    quiet("kill", &["-KILL", "--", &group]);
    if wait(child, GONE).is_none() {
        eprintln!("xtask guard: the program cannot be killed; left behind");
    }
}

/// Aborts the FUSE connection with this device number, as fusectl allows root to.
fn abort(device: &str) {
    let minor = device.split_once(':').map_or(device, |(_, minor)| minor);
    // At a place of our own, so that the machine is left as it was.
    let place = std::env::temp_dir().join(format!("xtask-fusectl-{}", std::process::id()));
    if fs::create_dir(&place).is_err() {
        return;
    }
    let text = place.to_string_lossy();
    quiet("mount", &["-t", "fusectl", "none", &text]);
    // Without the right to, the lazy unmount has to do.
    let _ = fs::write(place.join(minor).join("abort"), "1");
    quiet("umount", &["--lazy", &text]);
    let _ = fs::remove_dir(&place);
}

/// Runs a small command, for at most a few seconds, without its output. Whether it succeeds.
pub(crate) fn quiet(program: &str, args: &[&str]) -> bool {
    let spawned = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = spawned else {
        return false;
    };
    wait(&mut child, Duration::from_secs(5)).is_some_and(|status| status.success())
}

/// FUSE mounts that there are: device number and place.
fn fuse_mounts() -> BTreeSet<(String, String)> {
    mounts_in(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
}

/// The FUSE mounts in the text of a `mountinfo` file (fields as in proc(5)).
fn mounts_in(text: &str) -> BTreeSet<(String, String)> {
    let mount = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        let kind = right.split(' ').next()?;
        let fields: Vec<&str> = left.split(' ').collect();
        let ours = kind.starts_with("fuse") && kind != "fusectl";
        ours.then(|| {
            Some((
                (*fields.get(2)?).to_owned(),
                fields.get(4)?.replace("\\040", " "),
            ))
        })?
    };
    text.lines().filter_map(mount).collect()
}

/// The exit code to give on: 128 and the signal for a program that a signal ended, as shells do.
fn code(status: ExitStatus) -> ExitCode {
    let number = status
        .code()
        .or_else(|| {
            status.signal().map(|s| {
                println!("xtask guard: the program was ended by signal {s}");
                128 + s
            })
        })
        .unwrap_or(1);
    ExitCode::from(u8::try_from(number).unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_hangs_is_ended_with_all_its_children() {
        let start = Instant::now();
        let mut child = Command::new("sh")
            .args(["-c", "sleep 600 & echo $!; wait"])
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let mut out = child.stdout.take().unwrap();
        assert!(wait(&mut child, Duration::from_millis(300)).is_none());
        end_group(&mut child, &fuse_mounts());
        // The stream ends only when the last process that holds it is gone.
        let mut text = String::new();
        out.read_to_string(&mut text).unwrap();
        assert!(text.trim().parse::<u32>().is_ok(), "{text:?}");
        assert!(start.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn mounts_of_fuse_are_told_from_others() {
        let text = "\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
40 22 0:45 / /tmp/a\\040b rw,nosuid - fuse.blockwright /tmp/x.img rw,user_id=0
41 22 0:46 / /sys/fs/fuse/connections rw - fusectl none rw
42 22 0:47 / /mnt rw shared:7 master:1 - fuseblk /dev/loop0 rw
";
        let found: Vec<_> = mounts_in(text).into_iter().collect();
        let wanted = [("0:45", "/tmp/a b"), ("0:47", "/mnt")];
        assert_eq!(
            found,
            wanted.map(|(d, p)| (d.to_owned(), p.to_owned())).to_vec()
        );
    }

    #[test]
    fn tests_that_cannot_run_are_counted_once_each() {
        let mut skipped = Skipped::default();
        // In pieces, as a pipe gives them; beside what else tests write.
        for piece in [
            "running\nSKIPPED one::case: no to",
            "ol\nSKIPPED one::case: no root\nSKIPPED two: no tool\n",
            "not SKIPPED three: x\nSKIPPED a test: no tool\n",
        ] {
            skipped.see(piece.as_bytes());
        }
        assert_eq!(skipped.count(), 3);
    }

    #[test]
    fn what_a_program_took_is_told() {
        let spin = "i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done";
        while took("", Duration::ZERO).contains(" 0 s of CPU") {
            assert!(
                Command::new("sh")
                    .args(["-c", spin])
                    .status()
                    .unwrap()
                    .success()
            );
        }
        let told = took("a/b/name-1f", Duration::from_millis(2900));
        assert!(
            told.starts_with("2 s, ") && told.ends_with(" s of CPU: name-1f"),
            "{told}"
        );
    }

    #[test]
    fn codes_are_given_on() {
        let ended = |script: &str| Command::new("sh").args(["-c", script]).status().unwrap();
        assert_eq!(code(ended("exit 7")), ExitCode::from(7));
        assert_eq!(code(ended("kill -9 $$")), ExitCode::from(137));
    }
}
