//! Ending by signal. In a process of its own, because signals are the process's.

mod support;

use blockwright_fuse::{FuseErrorKind, FuseOptions, Session, Signals};
use blockwright_vfs::Ino;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};
use support::{can_mount, log, volume};

fn raise(signal: libc::c_int) {
    // SAFETY: sends a signal to this very process, which has a handler for it by now.
    assert_eq!(unsafe { libc::kill(libc::getpid(), signal) }, 0);
}

/// One test, because watches exclude each other.
#[test]
fn signals_end_the_session_cleanly() {
    if !can_mount() {
        return;
    }
    // A test run under nohup(1) inherits that SIGHUP is ignored, and then it is not caught either.
    // SAFETY: this test is the only one of its process, and no handler is installed yet.
    let before = unsafe { libc::signal(libc::SIGHUP, libc::SIG_DFL) };
    assert_ne!(before, libc::SIG_ERR);
    // Idle: unmounts at once.
    let dir = tempfile::tempdir().unwrap();
    let v = volume();
    let session = Session::mount(v.vfs.clone(), dir.path(), &FuseOptions::default()).unwrap();
    let signals = Signals::catch().unwrap();
    let run = std::thread::spawn(move || session.run_until(signals));
    fs::write(dir.path().join("file"), b"x").unwrap();
    std::thread::sleep(Duration::from_millis(100));
    raise(libc::SIGTERM);
    run.join().unwrap().unwrap();
    assert!(v.vfs.statfs().is_err(), "the volume was unmounted too");
    assert_eq!(
        fs::read_dir(dir.path()).unwrap().count(),
        0,
        "not mounted any more"
    );

    // Busy: waits, then cuts the connection, without losing what was written.
    let v = volume();
    let (log, lines) = log();
    let options = FuseOptions {
        shutdown_grace: Duration::from_millis(500),
        log,
        ..FuseOptions::default()
    };
    let session = Session::mount(v.vfs.clone(), dir.path(), &options).unwrap();
    // Caught here: on a busy machine the thread may begin after the signal.
    let signals = Signals::catch().unwrap();
    let run = std::thread::spawn(move || session.run_until(signals));
    let mut open = File::create(dir.path().join("open")).unwrap();
    open.write_all(b"dirty in the kernel").unwrap();
    let ino = open.metadata().unwrap().ino();
    std::thread::sleep(Duration::from_millis(100));
    let start = Instant::now();
    raise(libc::SIGHUP);
    run.join().unwrap().unwrap();
    assert!(start.elapsed() < Duration::from_secs(5));
    assert!(
        open.metadata().is_err() || open.sync_all().is_err(),
        "the connection is cut"
    );
    assert!(
        lines.lock().iter().any(|line| line.contains("waiting")),
        "{:?}",
        lines.lock()
    );
    assert!(v.vfs.statfs().is_err(), "the volume was unmounted too");
    drop(open);
    assert_eq!(
        v.engine.contents_on_disk(Ino(ino)).unwrap(),
        b"dirty in the kernel",
        "dirty pages were written back before the cut"
    );

    // Unmounted by another program: ends as well, without a signal.
    let v = volume();
    let session = Session::mount(v.vfs.clone(), dir.path(), &FuseOptions::default()).unwrap();
    let run = std::thread::spawn(move || session.run_until_signal());
    std::thread::sleep(Duration::from_millis(100));
    blockwright_fuse::unmount(dir.path(), blockwright_fuse::Unmount::IfIdle).unwrap();
    run.join().unwrap().unwrap();

    // A signal that comes before the session serves: unmounts, and does not end the process.
    let v = volume();
    let signals = Signals::catch().unwrap();
    raise(libc::SIGTERM);
    let session = Session::mount(v.vfs.clone(), dir.path(), &FuseOptions::default()).unwrap();
    fs::write(dir.path().join("file"), b"x").unwrap();
    session.run_until(signals).unwrap();
    assert!(v.vfs.statfs().is_err(), "the volume was unmounted too");
    assert!(!dir.path().join("file").exists(), "not mounted any more");

    // Two volumes at one place, one unmount each; and a second unmount is no error.
    let v = volume();
    let session = Session::mount(v.vfs.clone(), dir.path(), &FuseOptions::default()).unwrap();
    let again = session.unmount_handle();
    session.unmount().unwrap();
    again.unmount(blockwright_fuse::Unmount::IfIdle).unwrap();
    let error = Session::mount(v.vfs.clone(), dir.path(), &FuseOptions::default())
        .err()
        .unwrap();
    assert_eq!(error.kind(), FuseErrorKind::Volume, "{error}");
}
