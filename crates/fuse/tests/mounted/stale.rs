//! A program that is told of its asynchronous direct write reads nothing older, while others read the file through the kernel's
//! cache. Once per transport.
//!
//! Not here: reads through a mapping. The server runs in this process, and a page fault holds the process's memory map while it waits
//! for the server, which may need the map itself: the test then hangs. Mappings need a client in a process of its own.

use crate::cases::options;
use crate::support::{Mounted, can_mount};
use blockwright_device::{AlignedBuf, DevOffset, HostDevice, Op, OpenMode, Request, SharedDevice};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const PAGES: usize = 64;
/// Writes in flight, each of another page.
const DEPTH: usize = 24;

/// The writer: keeps `DEPTH` writes in flight, and reads back each that was acknowledged.
struct Writer<'a> {
    device: SharedDevice,
    file: &'a File,
    /// What was written to each page last.
    stamps: [u64; PAGES],
    flying: Vec<usize>,
    done: (Sender<usize>, Receiver<usize>),
    writes: u64,
}

impl Writer<'_> {
    fn submit(&mut self, page: usize) {
        self.writes += 1;
        let stamp = self.writes;
        self.stamps[page] = stamp;
        self.flying.push(page);
        let mut buf = AlignedBuf::zeroed(PAGE);
        buf.chunks_exact_mut(8)
            .for_each(|word| word.copy_from_slice(&stamp.to_le_bytes()));
        let tell = self.done.0.clone();
        let at = DevOffset((page * PAGE) as u64);
        self.device.submit(Request::new(
            Op::Write(vec![buf.into()]),
            at,
            move |finished| {
                finished.result.expect("writes");
                let _ = tell.send(page);
            },
        ));
    }

    fn look(&mut self) {
        let page = self
            .done
            .1
            .recv_timeout(Duration::from_secs(60))
            .expect("hangs");
        self.flying.retain(|flying| *flying != page);
        let mut read = [0; PAGE];
        self.file
            .read_exact_at(&mut read, (page * PAGE) as u64)
            .expect("reads");
        let stamp = self.stamps[page];
        let old = |word: &&[u8]| **word != stamp.to_le_bytes();
        if let Some(word) = read.chunks_exact(8).find(old) {
            panic!(
                "page {page}: read {word:?} after {stamp} was acknowledged, write {}",
                self.writes
            );
        }
    }

    fn run(&mut self, limit: Duration) {
        let end = Instant::now() + limit;
        let mut next = 0;
        while Instant::now() < end {
            while self.flying.len() < DEPTH {
                next = (next + 7) % PAGES;
                if !self.flying.contains(&next) {
                    self.submit(next);
                }
            }
            self.look();
        }
        while !self.flying.is_empty() {
            self.look();
        }
    }
}

fn read_until(done: &AtomicBool, path: &Path, seed: usize) -> u64 {
    let file = File::open(path).expect("opens");
    let mut buf = vec![0; 8 * PAGE];
    let (mut at, mut reads) = (seed, 0);
    while !done.load(Ordering::Relaxed) {
        at = (at * 5 + 3) % PAGES;
        let pages = (PAGES - at).min(1 + at % 8);
        file.read_exact_at(&mut buf[..pages * PAGE], (at * PAGE) as u64)
            .expect("reads");
        reads += 1;
    }
    reads
}

#[test]
fn no_read_is_older_than_an_acknowledged_write() {
    if !can_mount() {
        return;
    }
    let seconds = std::env::var("BLOCKWRIGHT_STALE_SECONDS").ok();
    let seconds: f64 = seconds.map_or(2.5, |s| s.parse().expect("seconds"));
    let m = Mounted::new(options());
    let path = m.path("file");
    fs::write(&path, vec![0; PAGES * PAGE]).expect("writes");
    let file = File::open(&path).expect("opens");
    file.sync_all().expect("syncs");
    let device = HostDevice::open(&path, OpenMode::default()).expect("opens directly");
    let mut writer = Writer {
        device,
        file: &file,
        stamps: [0; PAGES],
        flying: Vec::new(),
        done: channel(),
        writes: 0,
    };
    let done = AtomicBool::new(false);
    let reads = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for seed in 0..2 {
            let (path, done, reads) = (&path, &done, &reads);
            scope.spawn(move || reads.fetch_add(read_until(done, path, seed), Ordering::Relaxed));
        }
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            // Reads during a write, then those between the kernel's look at its cache and the write.
            for millis in [1, 0] {
                m.volume
                    .device
                    .write_millis
                    .store(millis, Ordering::Relaxed);
                writer.run(Duration::from_secs_f64(seconds / 2.0));
            }
        }));
        done.store(true, Ordering::Relaxed);
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
    println!(
        "{} writes, {} reads",
        writer.writes,
        reads.load(Ordering::Relaxed)
    );
    assert!(writer.writes > 10 && reads.load(Ordering::Relaxed) > 10);
    drop((writer.device, file));
    m.unmount().expect("unmounts");
}
