//! What a write accepted, writeback places: small volumes are filled and overwritten by threads that take turns, with all numbers of logs, several
//! sizes of sections, and both modes. Writes may be refused. Once accepted, no byte is lost, whatever else takes room meanwhile: nodes of new and
//! removed files, attributes in nodes of their own, names, checkpoints, quota files.

use blockwright_device::sim::rng::SplitMix64;
use blockwright_device::sim::turns::{self, Turns};
use blockwright_device::{MemoryDevice, SharedDevice};
use blockwright_f2fs::{ActiveLogs, BackgroundCleaning, F2fs, Mode, Options};
use blockwright_mkfs::f2fs::FormatOptions;
use blockwright_vfs::engine::Intent;
use blockwright_vfs::{
    CreateRequest, Cred, Error, ErrorKind, FallocMode, FileKind, Handle, MountOptions, OpenFlags,
    SetAttr, SyncScope, Vfs, XattrMode,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const THREADS: usize = 3;
const NEVER: Duration = Duration::from_secs(100_000);

/// How a volume is made and mounted.
#[derive(Clone, Copy, Debug)]
struct Setup {
    seed: u64,
    mode: Mode,
    logs: ActiveLogs,
    segments: u32,
    quota: bool,
}

fn mount(setup: Setup, device: SharedDevice) -> Arc<Vfs> {
    let options = Options {
        mode: setup.mode,
        active_logs: setup.logs,
        background_cleaning: BackgroundCleaning::Off,
        checkpoint_merge: Some(false),
        commit_interval: NEVER,
        ..Options::default()
    };
    let engine = F2fs::mount(Arc::clone(&device), options).expect("mounted");
    let vfs = MountOptions {
        commit_interval: NEVER,
        writeback_interval: NEVER,
        lazy_time_interval: NEVER,
        dirty_bytes_background: u64::MAX,
        ..MountOptions::default()
    };
    Vfs::new(engine, device, vfs)
}

fn formatted(setup: Setup) -> SharedDevice {
    let device: SharedDevice =
        Arc::new(MemoryDevice::new(u64::from(12 + 40 * setup.segments) << 20));
    let options = FormatOptions {
        segs_per_sec: setup.segments,
        features: match setup.quota {
            true => "quota".to_owned(),
            false => String::new(),
        },
        uuid: Some([7; 16]),
        now: 1_700_000_000,
        ..FormatOptions::default()
    };
    blockwright_mkfs::f2fs::format(&device, &options).expect("formatted");
    device
}

fn open(v: &Arc<Vfs>, name: &str) -> Result<Arc<Handle>, Error> {
    let root = v.root()?;
    let cred = Cred::root();
    let inode = match v.lookup(&cred, &root, name.as_bytes()) {
        Ok(inode) => inode,
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let request = CreateRequest::new(FileKind::Regular, 0o644);
            v.create(&cred, &root, name.as_bytes(), &request)?.0
        }
        Err(e) => return Err(e),
    };
    v.open(&cred, &inode, OpenFlags::read_write())
}

/// A file as it must read: its blocks' bytes, those of holes are 0.
type Blocks = Vec<u8>;

/// One thread's files, and what they hold.
struct Worker {
    v: Arc<Vfs>,
    rng: SplitMix64,
    number: usize,
    files: BTreeMap<String, Blocks>,
    refused: u64,
}

impl Worker {
    /// Room may be refused; nothing else may go wrong.
    fn allowed<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        match result {
            Ok(done) => Some(done),
            Err(e) if e.kind() == ErrorKind::NoSpace => {
                self.refused += 1;
                None
            }
            Err(e) => panic!("{e}"),
        }
    }

    fn handle(&mut self, name: &str) -> Option<Arc<Handle>> {
        let opened = open(&self.v, name);
        let handle = self.allowed(opened)?;
        self.files.entry(name.to_owned()).or_default();
        Some(handle)
    }

    /// Writes whole blocks of one byte.
    fn write(&mut self, name: &str, at: usize, blocks: usize) {
        let Some(handle) = self.handle(name) else {
            return;
        };
        let byte = 1 + self.rng.below(250) as u8;
        let written = handle.write_at(&vec![byte; blocks << 12], (at as u64) << 12);
        let n = self.allowed(written).unwrap_or(0) >> 12;
        let file = self.files.entry(name.to_owned()).or_default();
        if n > 0 {
            file.resize(file.len().max(at + n), 0);
            file[at..at + n].fill(byte);
        }
    }

    fn step(&mut self) {
        let name = format!("w{}-{}", self.number, self.rng.below(6));
        let size = self.files.get(&name).map_or(0, Vec::len);
        match self.rng.below(100) {
            // Appended, overwritten, far behind the end: a node for few blocks.
            0..30 => {
                let blocks = 1 + self.rng.below(160) as usize;
                self.write(&name, size, blocks);
            }
            30..60 => {
                let at = self.rng.below(size as u64 + 1) as usize;
                let blocks = 1 + self.rng.below(40) as usize;
                self.write(&name, at, blocks);
            }
            60..64 => {
                let at = size + self.rng.below(3000) as usize;
                self.write(&name, at, 1);
            }
            64..70 => {
                let Some(handle) = self.handle(&name) else {
                    return;
                };
                let at = self.rng.below(size as u64 + 1);
                let range = at << 12..(at + 1 + self.rng.below(60)) << 12;
                let mode = FallocMode::Allocate { keep_size: true };
                let done = handle.fallocate(range, mode);
                self.allowed(done);
            }
            70..74 => {
                let Some(handle) = self.handle(&name) else {
                    return;
                };
                let value = vec![3; 3000];
                let inode = handle.inode();
                let set = self
                    .v
                    .set_xattr(&Cred::root(), inode, b"user.a", &value, XattrMode::Any);
                self.allowed(set);
            }
            74..80 if size > 0 => {
                let cut = self.rng.below(size as u64) as usize;
                if let Some(handle) = self.handle(&name)
                    && self.allowed(handle.set_len((cut as u64) << 12)).is_some()
                    && let Some(file) = self.files.get_mut(&name)
                {
                    file.truncate(cut);
                }
            }
            80..86 => {
                let root = self.v.root().expect("a root");
                if self.files.remove(&name).is_some() {
                    let gone = self.v.unlink(&Cred::root(), &root, name.as_bytes());
                    gone.expect("removed");
                }
            }
            86..96 => {
                if let Some(handle) = self.handle(&name) {
                    handle.sync(SyncScope::All).expect("accepted, and lost");
                }
            }
            96..98 => self.touch(),
            _ => self.v.sync().expect("accepted, and lost"),
        }
    }

    /// Changes the nodes of many files.
    fn touch(&mut self) {
        let first = self.rng.below(200);
        let root = self.v.root().expect("a root");
        for n in first..first + 150 {
            let name = format!("fill{n}");
            if let Ok(inode) = self.v.lookup(&Cred::root(), &root, name.as_bytes()) {
                let change = SetAttr {
                    mode: Some(0o600 + (n % 64) as u32),
                    ..SetAttr::default()
                };
                let changed = self.v.set_attr(&Cred::root(), &inode, &change);
                changed.expect("takes no room");
            }
        }
    }

    fn verify(&self, v: &Arc<Vfs>) {
        for (name, blocks) in &self.files {
            let handle = open(v, name).expect("it is there");
            let mut found = vec![0; blocks.len() << 12];
            let n = handle.read_at(&mut found, 0).expect("read");
            assert_eq!(n, found.len(), "{name}");
            for (at, (seen, byte)) in found.chunks(4096).zip(blocks).enumerate() {
                assert!(seen.iter().all(|b| b == byte), "{name}, block {at}");
            }
        }
    }
}

/// Fills a volume with files and removes some of them, until little room is left, most of it in holes.
fn fill(v: &Arc<Vfs>, seed: u64) {
    let (left, every, bytes) = [
        (12, 7, 70_000),
        (24, 9, 4000),
        (40, 29, 5000),
        (60, 5, 300_000),
    ][(seed / 5 % 4) as usize];
    let free = |v: &Arc<Vfs>| v.statfs().expect("statfs").blocks_free;
    let all = free(v);
    let root = v.root().expect("a root");
    let mut n = 0;
    while free(v) > all / left {
        let Ok(handle) = open(v, &format!("fill{n}")) else {
            break;
        };
        if handle.write_at(&vec![9; bytes], 0).is_err() {
            break;
        }
        n += 1;
    }
    v.sync().expect("synced");
    for k in (0..n).filter(|k| k % every == 3) {
        let name = format!("fill{k}");
        let gone = v.unlink(&Cred::root(), &root, name.as_bytes());
        gone.expect("removed");
    }
    v.sync().expect("synced");
}

/// How often writes were refused, and writeback had to wait for cleaning.
fn run(setup: Setup, steps: usize) -> (u64, u64) {
    let device = formatted(setup);
    let v = turns::alone(setup.seed, || {
        let v = mount(setup, Arc::clone(&device));
        fill(&v, setup.seed);
        v
    });
    let turns = Turns::new(THREADS, setup.seed);
    let workers: Vec<Worker> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|number| {
                let (v, turns) = (&v, &turns);
                scope.spawn(move || {
                    let _turn = turns.take_part(number, true);
                    let mut worker = Worker {
                        v: Arc::clone(v),
                        rng: SplitMix64::new(setup.seed << 8 | number as u64),
                        number,
                        files: BTreeMap::new(),
                        refused: 0,
                    };
                    for _ in 0..steps {
                        worker.step();
                    }
                    worker
                })
            })
            .collect();
        let joined = threads.into_iter().map(|t| t.join());
        joined.map(|w| w.expect("a worker")).collect()
    });
    turns::alone(setup.seed, || v.sync().expect("accepted, and lost"));
    let stats = v.stats();
    let count = |name| stats.get(name).unwrap_or(0);
    assert_eq!(count("writeback_bytes_lost"), 0, "{setup:?}");
    assert_eq!(count("cleaning_failures"), 0, "{setup:?}");
    workers.iter().for_each(|w| w.verify(&v));
    v.unmount().expect("unmounted");
    let again = mount(setup, Arc::clone(&device));
    workers.iter().for_each(|w| w.verify(&again));
    again.unmount().expect("unmounted");
    let report = blockwright_check::f2fs::check(device, &Default::default()).expect("checked");
    assert!(report.is_clean(), "{setup:?}: {:?}", report.issues);
    let refused = workers.iter().map(|w| w.refused).sum();
    (refused, count("writeback_room_waits"))
}

/// `F2FS_SEEDS=200` runs this many.
#[test]
fn accepted_writes_are_kept() {
    let said = std::env::var("F2FS_SEEDS").ok();
    let seeds = said.map_or(12, |n| n.parse().expect("a number"));
    let first = std::env::var("F2FS_FIRST").ok();
    let first: u64 = first.map_or(0, |n| n.parse().expect("a number"));
    let (mut refused, mut waited) = (0, 0);
    for seed in first..first + seeds {
        let setup = Setup {
            seed,
            mode: [Mode::Lfs, Mode::Lfs, Mode::Adaptive][(seed % 3) as usize],
            logs: [ActiveLogs::Six, ActiveLogs::Two, ActiveLogs::Four][(seed / 3 % 3) as usize],
            segments: 1 + (seed / 2 % 3) as u32,
            quota: seed % 4 == 1,
        };
        let outcome = run(setup, 150);
        println!("{setup:?}: refused {}, waited {}", outcome.0, outcome.1);
        refused += outcome.0;
        waited += outcome.1;
    }
    println!("refused {refused}, waited {waited}");
    assert!(refused > 0, "no volume was full");
}

/// In `lfs` mode holes are no room. Blocks are reserved until the engine refuses, of a volume with many holes and few free sections, and each of
/// them finds its place without cleaning, even if a checkpoint took sections for nodes meanwhile.
#[test]
fn what_is_reserved_has_a_place() {
    for (seed, segments) in [(0, 1), (1, 2)] {
        for logs in [ActiveLogs::Six, ActiveLogs::Four, ActiveLogs::Two] {
            let setup = Setup {
                seed,
                mode: Mode::Lfs,
                logs,
                segments,
                quota: false,
            };
            let device = formatted(setup);
            let v = mount(setup, Arc::clone(&device));
            fill_with_holes(&v);
            let promised = reserve_all(&v);
            touch_all(&v);
            v.sync().expect("synced");
            place_all(&v, promised, setup);
            v.unmount().expect("unmounted");
            let report =
                blockwright_check::f2fs::check(device, &Default::default()).expect("checked");
            assert!(report.is_clean(), "{setup:?}: {:?}", report.issues);
        }
    }
}

const SMALL_FILES: u64 = 1 << 20;

/// Small files all over the volume, of which every other one is removed.
fn fill_with_holes(v: &Arc<Vfs>) {
    let free = |v: &Arc<Vfs>| v.statfs().expect("statfs").blocks_free;
    let all = free(v);
    let root = v.root().expect("a root");
    let made = (0..SMALL_FILES).take_while(|n| {
        free(v) > all / 6
            && open(v, &format!("s{n}")).is_ok_and(|h| h.write_at(&[5; 12_288], 0).is_ok())
    });
    let made = made.count() as u64;
    v.sync().expect("synced");
    for n in (0..made).filter(|n| n % 2 == 1) {
        let gone = v.unlink(&Cred::root(), &root, format!("s{n}").as_bytes());
        gone.expect("removed");
    }
    v.sync().expect("synced");
}

/// Reserves blocks one by one until they are refused. How many.
fn reserve_all(v: &Arc<Vfs>) -> u64 {
    let inode = open(v, "promised").expect("made");
    let block = |n: u64| n << 12..(n + 1) << 12;
    let reserved = (0..).take_while(|n| match v.engine().reserve(inode.inode(), block(*n)) {
        Ok(()) => true,
        Err(e) if e.kind() == ErrorKind::NoSpace => false,
        Err(e) => panic!("{e}"),
    });
    reserved.count() as u64
}

/// Changes the inode of every file, so that a checkpoint writes all of them anew.
fn touch_all(v: &Arc<Vfs>) {
    let root = v.root().expect("a root");
    let change = SetAttr {
        mode: Some(0o600),
        ..SetAttr::default()
    };
    for n in (0..SMALL_FILES).step_by(2) {
        match v.lookup(&Cred::root(), &root, format!("s{n}").as_bytes()) {
            Ok(inode) => {
                let changed = v.set_attr(&Cred::root(), &inode, &change);
                changed.expect("takes no room");
            }
            Err(_) => break,
        }
    }
}

fn place_all(v: &Arc<Vfs>, promised: u64, setup: Setup) {
    let handle = open(v, "promised").expect("there");
    let (engine, inode) = (v.engine(), handle.inode());
    let end = promised << 12;
    let mut at = 0;
    while at < end {
        let target = engine
            .allocate(inode, at..end, end, Intent::Writeback)
            .unwrap_or_else(|e| panic!("{setup:?}: block {} of {promised}: {e}", at >> 12));
        engine.commit_write(inode, &target, end).expect("committed");
        at = target.offset + target.bytes;
    }
    println!("{setup:?}: {promised} blocks");
}

/// A volume with `bytes` of accepted data in memory, for which there is no room until the engine was asked to clean `passes` times.
#[cfg(debug_assertions)]
fn with_room_withheld(passes: u32, bytes: usize) -> (SharedDevice, Arc<Vfs>, Arc<Handle>) {
    let setup = Setup {
        seed: 0,
        mode: Mode::Lfs,
        logs: ActiveLogs::Six,
        segments: 1,
        quota: false,
    };
    let device = formatted(setup);
    let v = mount(setup, Arc::clone(&device));
    let file = open(&v, "accepted").expect("made");
    let written = file.write_at(&vec![6; bytes], 0).expect("accepted");
    assert_eq!(written, bytes);
    let engine = v.engine().as_any().downcast_ref::<F2fs>();
    engine.expect("f2fs").withhold_room(passes);
    (device, v, file)
}

/// Writeback that finds no room keeps the pages dirty, has the engine clean without holding anything, and writes them then: by a
/// sync of the volume, an fsync and an unmount.
#[cfg(debug_assertions)]
#[test]
fn writeback_without_room_waits_for_cleaning() {
    const BYTES: usize = 300 << 10;
    for passes in [1, 2] {
        for how in ["sync", "fsync", "unmount"] {
            let (device, v, file) = with_room_withheld(passes, BYTES);
            let engine = Arc::clone(&v);
            match how {
                "sync" => v.sync().expect("accepted, and lost"),
                "fsync" => file.sync(SyncScope::All).expect("accepted, and lost"),
                _ => {}
            }
            drop(file);
            if how == "unmount" {
                v.unmount().expect("accepted, and lost");
            }
            let stats = engine.stats();
            let count = |name| stats.get(name).unwrap_or(0);
            assert_eq!(count("writeback_room_waits"), u64::from(passes), "{how}");
            assert_eq!(count("writeback_bytes_lost"), 0, "{how}");
            if how != "unmount" {
                v.unmount().expect("unmounted");
            }
            let options = Options::default();
            let engine = F2fs::mount(Arc::clone(&device), options).expect("mounted");
            let again = Vfs::new(engine, Arc::clone(&device), MountOptions::default());
            let file = open(&again, "accepted").expect("there");
            let mut found = vec![0; BYTES];
            assert_eq!(file.read_at(&mut found, 0).expect("read"), BYTES);
            assert!(found.iter().all(|b| *b == 6), "{how}");
            drop(file);
            again.unmount().expect("unmounted");
            let report = blockwright_check::f2fs::check(device, &Default::default());
            let report = report.expect("checked");
            assert!(report.is_clean(), "{how}: {:?}", report.issues);
        }
    }
}

/// If cleaning gains nothing for good, the loss is told, to the fsync and in the counters, and the volume stays sound.
#[cfg(debug_assertions)]
#[test]
fn writeback_that_never_finds_room_reports_the_loss() {
    const BYTES: usize = 300 << 10;
    let (device, v, file) = with_room_withheld(u32::MAX, BYTES);
    let e = file.sync(SyncScope::All).expect_err("there is no room");
    assert_eq!(e.kind(), ErrorKind::NoSpace, "{e}");
    let count = |name| v.stats().get(name).unwrap_or(0);
    assert_eq!(count("writeback_room_waits"), 2);
    assert_eq!(count("writeback_bytes_lost"), BYTES as u64);
    drop(file);
    v.unmount().expect("unmounted");
    let report = blockwright_check::f2fs::check(device, &Default::default()).expect("checked");
    assert!(report.is_clean(), "{:?}", report.issues);
}
