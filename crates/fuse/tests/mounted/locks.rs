//! File locks on a mount hold between processes, as on a local file system: flock(2)'s and fcntl(2)'s.

use super::cases::options;
use crate::support::{Mounted, can_mount};
use rustix::fs::{FlockOperation, fcntl_lock, flock};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::path::Path;
use std::process::{Command, Stdio};

/// What another process shall try: the kind of lock, and the file.
const TRY: &str = "BLOCKWRIGHT_TEST_LOCK";
const FILE: &str = "BLOCKWRIGHT_TEST_FILE";
/// How it ends when it is refused.
const REFUSED: i32 = 3;

fn open(path: &Path) -> File {
    let mut how = OpenOptions::new();
    how.read(true).write(true).open(path).unwrap()
}

/// The other process. No test when it is run as one.
#[test]
fn another_process() {
    let (Ok(kind), Some(path)) = (std::env::var(TRY), std::env::var_os(FILE)) else {
        return;
    };
    let file = open(Path::new(&path));
    let result = match kind.as_str() {
        "shared" => flock(&file, FlockOperation::NonBlockingLockShared),
        "exclusive" => flock(&file, FlockOperation::NonBlockingLockExclusive),
        "posix shared" => fcntl_lock(&file, FlockOperation::NonBlockingLockShared),
        _ => fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive),
    };
    match result {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK | Errno::ACCESS) => std::process::exit(REFUSED),
        Err(e) => panic!("{kind}: {e}"),
    }
}

/// Whether another process gets such a lock.
fn another_gets(kind: &str, path: &Path) -> bool {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "locks::another_process"])
        .env(TRY, kind)
        .env(FILE, path)
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(
        matches!(status.code(), Some(0 | REFUSED)),
        "{kind}: {status}"
    );
    status.success()
}

#[test]
fn locks_hold_between_processes() {
    if !can_mount() {
        return;
    }
    let m = Mounted::new(options());
    let path = m.path("locked");
    let file = File::create_new(&path).unwrap();
    let second = open(&path);
    assert!(another_gets("exclusive", &path));
    flock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
    assert!(!another_gets("exclusive", &path) && !another_gets("shared", &path));
    // They belong to an open file, so this process's second one is refused, too.
    let again = flock(&second, FlockOperation::NonBlockingLockShared);
    assert_eq!(again, Err(Errno::WOULDBLOCK));
    flock(&file, FlockOperation::NonBlockingLockShared).unwrap();
    flock(&second, FlockOperation::NonBlockingLockShared).unwrap();
    drop(file);
    assert!(another_gets("shared", &path) && !another_gets("exclusive", &path));
    drop(second);
    assert!(another_gets("exclusive", &path), "closing unlocks");

    // These belong to the process: it does not stand in its own way.
    let (file, second) = (open(&path), open(&path));
    fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).unwrap();
    fcntl_lock(&second, FlockOperation::NonBlockingLockExclusive).unwrap();
    assert!(!another_gets("posix exclusive", &path) && !another_gets("posix shared", &path));
    fcntl_lock(&file, FlockOperation::NonBlockingLockShared).unwrap();
    assert!(another_gets("posix shared", &path) && !another_gets("posix exclusive", &path));
    // Closing any of its files ends all of them.
    drop(second);
    assert!(another_gets("posix exclusive", &path));
    drop(file);
    m.unmount().unwrap();
}
