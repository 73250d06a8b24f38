//! Direct I/O that flies in the ring of a queue's thread while the connection ends, or while a caller waits for it.
//!
//! The device has to be a file that is slow: one on another mount of ours, whose device in memory is. Everything in processes of
//! their own with a limit of time, as in `teardown`.

mod support;

use blockwright_device::AlignedBuf;
use rustix::fs::{Mode, OFlags};
use rustix::process::Signal;
use rustix::thread::{CpuSet, sched_setaffinity};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::can_mount;
use support::scene::{Scene, Switch, role, say, serve};

const PAGE: usize = 4096;
/// Pages that are written again and again, each by a thread of its own.
const SLOTS: usize = 6;
/// What a written page begins with.
const MAGIC: [u8; 8] = *b"slot\xf0\x9f\x92\xbe";
/// For what takes a second or two, on a machine that is busy with other things.
const SOON: Duration = Duration::from_secs(30);

/// Not a test: what this program does when another one starts it with a role.
#[test]
fn a_role() {
    let Some((role, dir, extra)) = role() else {
        return;
    };
    match role.as_str() {
        "server" => serve(&dir, &extra),
        "overwriter" => overwrite(&dir),
        "reader" => read(&dir.join(extra)),
        "truncator" => truncate(&dir),
        other => panic!("no such role: {other}"),
    }
}

/// A page that says which it is, and how often it was written.
fn stamped(slot: usize, count: u64) -> AlignedBuf {
    let mut page = AlignedBuf::zeroed(PAGE);
    page[..8].copy_from_slice(&MAGIC);
    page[8] = slot as u8;
    page[16..24].copy_from_slice(&count.to_le_bytes());
    page
}

/// A file whose blocks are written and whose places are known: what is written to it now is an overwrite.
fn settled_file(dir: &Path, name: &str) -> OwnedFd {
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::DIRECT;
    let file = rustix::fs::open(dir.join(name), flags, Mode::RWXU).expect("a file");
    rustix::io::pwrite(&file, &AlignedBuf::zeroed(2 * SLOTS * PAGE), 0).expect("writes");
    rustix::fs::fsync(&file).expect("syncs");
    file
}

/// Overwrites pages until that fails, and says up to which count each was acknowledged.
fn overwrite(dir: &Path) {
    let file = settled_file(dir, "file");
    say("works");
    let acknowledged: [AtomicU64; SLOTS] = std::array::from_fn(|_| AtomicU64::new(0));
    let end = Instant::now() + 2 * SOON;
    std::thread::scope(|scope| {
        for (slot, acknowledged) in acknowledged.iter().enumerate() {
            let file = &file;
            scope.spawn(move || {
                for count in 1.. {
                    let at = (slot * PAGE) as u64;
                    match rustix::io::pwrite(file, &stamped(slot, count), at) {
                        Ok(PAGE) if Instant::now() < end => {}
                        _ => return,
                    }
                    acknowledged.store(count, Ordering::Relaxed);
                }
            });
        }
    });
    say(&format!(
        "acknowledged {}",
        list(&acknowledged.map(AtomicU64::into_inner))
    ));
}

/// Says what is the highest count of each page in an image.
fn read(image: &Path) {
    let bytes = std::fs::read(image).expect("an image");
    let mut found = [0; SLOTS];
    for page in bytes.chunks_exact(PAGE).filter(|page| page[..8] == MAGIC) {
        let count = u64::from_le_bytes(page[16..24].try_into().expect("eight bytes"));
        let found = &mut found[usize::from(page[8])];
        *found = count.max(*found);
    }
    say(&format!("found {}", list(&found)));
}

fn list(counts: &[u64]) -> String {
    let words: Vec<String> = counts.iter().map(u64::to_string).collect();
    words.join(" ")
}

fn counts(said: &str) -> Vec<u64> {
    said.split(' ')
        .skip(1)
        .map(|word| word.parse().expect("a count"))
        .collect()
}

/// From one CPU, so that one queue gets it all: reads the beginning of a file past the cache, and meanwhile cuts off its end and
/// makes it longer again. The kernel itself has truncation wait for writes, but not for reads.
fn truncate(dir: &Path) {
    let mut one = CpuSet::new();
    one.set(rustix::thread::sched_getcpu());
    sched_setaffinity(None, &one).expect("stays on its CPU");
    let file = settled_file(dir, "file");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for slot in 0..SLOTS {
            let (file, done) = (&file, &done);
            scope.spawn(move || {
                let mut page = stamped(slot, 1);
                while !done.load(Ordering::Relaxed) {
                    let at = (slot * PAGE) as u64;
                    let read = rustix::io::pread(file, &mut page[..], at);
                    assert_eq!(read, Ok(PAGE));
                    assert!(page.iter().all(|byte| *byte == 0), "what was written");
                }
            });
        }
        let long = (2 * SLOTS * PAGE) as u64;
        for turn in 0..10 {
            std::thread::sleep(Duration::from_millis(50));
            let bytes = if turn % 2 == 0 { long / 2 } else { long };
            rustix::fs::ftruncate(&file, bytes).expect("truncates");
        }
        done.store(true, Ordering::Relaxed);
    });
    say("did all");
}

/// A mount whose reads and writes take some time, and one of an image in there.
fn slow_image(how: &str) -> (Scene, Scene) {
    let mut outer = Scene::new();
    assert_eq!(
        outer.serve("dev_fuse 30 uncached").as_deref(),
        Ok("dev_fuse")
    );
    let mut inner = Scene::new();
    let image = outer.dir().join("image");
    let served = inner.serve(&format!("io_uring 0 {how} {}", image.display()));
    assert_eq!(served.as_deref(), Ok("io_uring"));
    (outer, inner)
}

fn ends_with_writes_in_flight(how: &str, signal: Signal, well: bool) {
    if !can_mount() {
        return;
    }
    let Some(_on) = Switch::set(true) else { return };
    let (mut outer, mut inner) = slow_image(how);
    inner.start("overwriter", "");
    let (server, writer) = inner.actors.split_first_mut().expect("a server");
    let writer = &mut writer[0];
    assert!(writer.hears(&["works"], SOON).is_some(), "does not begin");
    if how == "device_thread" {
        let direct = server.hears(&["direct"], Duration::from_millis(500));
        assert!(direct.is_none(), "something goes through a queue's ring");
    } else {
        let direct = server.hears(&["direct"], SOON);
        assert!(direct.is_some(), "nothing goes through a queue's ring");
    }
    std::thread::sleep(Duration::from_millis(500));
    server.signal(signal);
    if well {
        let said = server.hears(&["ended"], SOON);
        assert_eq!(said.as_deref(), Some("ended"), "does not go, or not well");
    }
    assert_eq!(server.ends_well(SOON), Some(well));
    let said = writer.hears(&["acknowledged"], SOON);
    let acknowledged = counts(&said.expect("a client hangs"));
    assert_eq!(writer.ends_well(SOON), Some(true));
    assert!(
        acknowledged.iter().all(|count| *count > 0),
        "{acknowledged:?}"
    );
    let reader = outer.start("reader", "image");
    let said = outer.actors[reader].hears(&["found"], SOON);
    let found = counts(&said.expect("reads the image"));
    // What was on its way may have come through.
    let kept = |(found, acknowledged)| found == acknowledged || found == acknowledged + 1;
    let all =
        std::iter::zip(&found, &acknowledged).map(|(found, acknowledged)| (*found, *acknowledged));
    assert!(
        all.clone().all(kept),
        "found, acknowledged: {:?}",
        all.collect::<Vec<_>>()
    );
}

#[test]
fn unmounted_while_writes_fly_it_brings_them_home_first() {
    ends_with_writes_in_flight("awake", Signal::TERM, true);
}

#[test]
fn killed_while_writes_fly_it_has_kept_its_word() {
    ends_with_writes_in_flight("awake", Signal::KILL, false);
}

/// The variant for comparison, `DirectRing::Off`, keeps the same promises.
#[test]
fn the_devices_thread_keeps_its_word_as_well() {
    ends_with_writes_in_flight("device_thread", Signal::TERM, true);
    ends_with_writes_in_flight("device_thread", Signal::KILL, false);
}

#[test]
fn who_waits_for_what_flies_does_not_hold_up_its_landing() {
    if !can_mount() {
        return;
    }
    let Some(_on) = Switch::set(true) else { return };
    let (_outer, mut inner) = slow_image("awake");
    let truncator = inner.start("truncator", "");
    let direct = inner.actors[0].hears(&["direct"], SOON);
    assert!(direct.is_some(), "nothing goes through a queue's ring");
    let truncator = &mut inner.actors[truncator];
    assert!(truncator.hears(&["did all"], SOON).is_some(), "stuck");
    assert_eq!(truncator.ends_well(SOON), Some(true));
}
