//! What a program sees through a mapping while another one writes the same file directly and asynchronously: nothing older than a
//! write that was acknowledged. Both formats, both transports.
//!
//! The mapping is in this process and the server in another one. A page fault holds the process's memory map while it waits for the
//! server, which needs its own.

mod common;

use blockwright_device::mapped::MappedRange;
use blockwright_device::{AlignedBuf, DevOffset, HostDevice, Op, OpenMode, Request, SharedDevice};
use common::{Mounted, Scratch, have_fuse, our_mkfs};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const PAGES: usize = 64;
/// Writes in flight, each of another page.
const DEPTH: usize = 24;

fn mapped(path: &Path) -> (File, MappedRange) {
    let file = OpenOptions::new().read(true).write(true).open(path);
    let file = file.expect("opens");
    let range = MappedRange::new(&file, 0, PAGES * PAGE).expect("maps");
    (file, range)
}

/// Touches pages of a mapping of its own, and reads others, so that the kernel's cache has them again.
fn look(path: &Path, seed: usize, done: &AtomicBool) -> u64 {
    let (file, range) = mapped(path);
    let mut buf = vec![0; 4 * PAGE];
    let (mut at, mut looks) = (seed, 0);
    while !done.load(Ordering::Relaxed) {
        at = (at * 5 + 3) % PAGES;
        range.read(at * PAGE, &mut buf[..8]);
        let pages = (PAGES - at).min(1 + at % 4);
        file.read_exact_at(&mut buf[..pages * PAGE], (at * PAGE) as u64)
            .expect("reads");
        looks += 1;
    }
    looks
}

fn submit(device: &SharedDevice, page: usize, stamp: u64, tell: std::sync::mpsc::Sender<usize>) {
    let mut buf = AlignedBuf::zeroed(PAGE);
    buf.chunks_exact_mut(8)
        .for_each(|word| word.copy_from_slice(&stamp.to_le_bytes()));
    let at = DevOffset((page * PAGE) as u64);
    let write = Op::Write(vec![buf.into()]);
    device.submit(Request::new(write, at, move |finished| {
        finished.result.expect("writes");
        let _ = tell.send(page);
    }));
}

/// Writes for so long, and compares each page with the mapping when its write is acknowledged. How many writes there were.
fn write(path: &Path, limit: Duration, what: &str) -> u64 {
    let (_file, range) = mapped(path);
    let device = HostDevice::open(path, OpenMode::default()).expect("opens directly");
    let (tell, hear) = channel();
    let (mut stamps, mut flying) = ([0; PAGES], Vec::new());
    let (mut writes, mut next) = (0, 0);
    let end = Instant::now() + limit;
    loop {
        while flying.len() < DEPTH && Instant::now() < end {
            next = (next + 7) % PAGES;
            if !flying.contains(&next) {
                writes += 1;
                stamps[next] = writes;
                flying.push(next);
                submit(&device, next, writes, tell.clone());
            }
        }
        if flying.is_empty() {
            return writes;
        }
        let page = hear.recv_timeout(Duration::from_secs(60)).expect("hangs");
        flying.retain(|flying| *flying != page);
        let mut seen = [0; PAGE];
        range.read(page * PAGE, &mut seen);
        let stamp = stamps[page].to_le_bytes();
        let old = seen.chunks_exact(8).find(|word| **word != stamp);
        assert_eq!(
            old, None,
            "{what}: page {page}, write {stamp:?} of {writes}"
        );
    }
}

#[test]
fn a_mapping_shows_nothing_older_than_an_acknowledged_write() {
    if !have_fuse() {
        return;
    }
    let seconds = std::env::var("BLOCKWRIGHT_STALE_SECONDS").ok();
    let seconds = seconds.map_or(2.0, |s| s.parse().expect("seconds"));
    for (format, size) in [("ext4", "32M"), ("f2fs", "64M")] {
        for transport in ["auto", "dev_fuse"] {
            let what = format!("{format} over {transport}");
            let scratch = Scratch::new();
            let (image, mnt) = (scratch.path("disk.img"), scratch.dir("mnt"));
            our_mkfs(&image, &["-t", format], size);
            let mount = Mounted::new(&image, &mnt, &format!("transport={transport}"));
            let path = mnt.join("file");
            fs::write(&path, vec![0; PAGES * PAGE]).expect("writes");
            File::open(&path).expect("opens").sync_all().expect("syncs");
            let done = AtomicBool::new(false);
            let (writes, looks) = std::thread::scope(|scope| {
                let lookers = [1, 2].map(|seed| {
                    scope.spawn({
                        let (path, done) = (&path, &done);
                        move || look(path, seed, done)
                    })
                });
                let result = std::panic::catch_unwind(|| {
                    write(&path, Duration::from_secs_f64(seconds), &what)
                });
                done.store(true, Ordering::Relaxed);
                let looks: u64 = lookers.map(|l| l.join().expect("no panic")).iter().sum();
                (
                    result.unwrap_or_else(|e| std::panic::resume_unwind(e)),
                    looks,
                )
            });
            println!("{what}: {writes} writes, {looks} looks");
            assert!(writes > 10 && looks > 10, "{what}");
            mount.unmount();
        }
    }
}
