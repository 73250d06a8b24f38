//! Contiguous allocation on f2fs, with other writers at the same time; and overwrites, which never wait.

use crate::common::f2fs::{assert_clean, formatted};
use blockwright::{File, OpenOptions, Volume, VolumeOptions};
use blockwright_device::{AlignedBuf, BlockDevice, Geometry, IoSlice, MemoryDevice, Op, Request};
use blockwright_f2fs::F2fs;
use blockwright_f2fs::comparison::DirectAllocation;
use blockwright_vfs::{Patience, Place, WriteOp};
use std::sync::{Arc, Barrier, Condvar, Mutex, mpsc};
use std::time::Duration;

const WAYS: [DirectAllocation; 3] = [
    DirectAllocation::Reserved,
    DirectAllocation::Serialized,
    DirectAllocation::None,
];

fn f2fs(volume: &Volume) -> &F2fs {
    let engine = volume.vfs().engine().as_any();
    engine.downcast_ref().expect("f2fs")
}

fn open(volume: &Volume, path: &str, direct: bool) -> File {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .direct(direct)
        .open(volume, path)
        .expect("opened")
}

/// Where a file's blocks are: stretches that are consecutive on the device.
fn stretches(file: &File) -> usize {
    let size = file.metadata().expect("metadata").len();
    let (mut at, mut n) = (0, 0);
    while at < size {
        let m = file.handle().map(at, size - at).expect("mapped");
        n += usize::from(matches!(m.place, Place::Mapped(_)));
        at = m.offset + m.bytes;
    }
    n
}

fn slice(byte: u8, bytes: usize) -> IoSlice {
    AlignedBuf::copy_of(&vec![byte; bytes]).into()
}

/// The k-th writer's byte of its n-th write.
fn mark(k: usize, n: usize) -> u8 {
    (k * 7 + n * 13 + 1) as u8
}

/// 32 append at the same time, half of them direct and half through the cache. Stretches in all, and writes.
fn appenders(way: DirectAllocation, write_bytes: usize) -> (usize, usize) {
    const WRITERS: usize = 32;
    let writes = (1 << 20) / write_bytes;
    let memory = formatted(512 << 20);
    let mut options = VolumeOptions::default();
    options.parts.f2fs.dio_alloc = way;
    let volume = options.open_device(memory.clone()).expect("opened");
    let barrier = Barrier::new(WRITERS);
    std::thread::scope(|s| {
        for k in 0..WRITERS {
            let (barrier, volume) = (&barrier, &volume);
            s.spawn(move || {
                let direct = k % 2 == 0;
                let file = open(volume, &format!("/f{k}"), direct);
                barrier.wait();
                for n in 0..writes {
                    let at = (n * write_bytes) as u64;
                    let slices = vec![slice(mark(k, n), write_bytes)];
                    let written = file.handle().run(WriteOp::at(at, slices)).expect("written");
                    assert_eq!(written, write_bytes);
                }
                file.sync_all().expect("durable");
            });
        }
    });
    let mut all = 0;
    for k in (0..WRITERS).step_by(2) {
        all += stretches(&open(&volume, &format!("/f{k}"), false));
    }
    volume.close().expect("closed");
    assert_clean(&memory);
    let volume = Volume::options()
        .read_only(true)
        .open_device(memory)
        .expect("opened");
    for k in 0..WRITERS {
        let bytes = volume.read(format!("/f{k}")).expect("read");
        assert_eq!(bytes.len(), writes * write_bytes);
        for (n, part) in bytes.chunks(write_bytes).enumerate() {
            assert!(
                part.iter().all(|b| *b == mark(k, n)),
                "{way:?}: file {k}, write {n}"
            );
        }
    }
    (all, WRITERS / 2 * writes)
}

#[test]
fn each_write_is_one_run_but_for_the_ends_of_segments() {
    // 16 direct writers of 1 MiB, 16 through the cache: 32 MiB are 16 segments, and a few more that checkpoints cut.
    for write_bytes in [128 << 10, 1 << 20] {
        let (stretches, writes) = appenders(DirectAllocation::Reserved, write_bytes);
        println!("{write_bytes}: {stretches} stretches of {writes} writes");
        assert!(
            stretches <= writes + 32 + 16,
            "{stretches} stretches for {writes} writes"
        );
    }
}

/// Where a node's addresses end and the next node's begin, neither a write's run ends nor its request.
#[test]
fn a_run_crosses_the_end_of_a_node() {
    const BLOCKS: usize = 512;
    // An inode has 923 addresses, or some less, a node 1018: five ends of nodes, and the double one's.
    const WRITES: usize = 12;
    let memory = formatted(256 << 20);
    let volume = Volume::open_device(memory.clone()).expect("opened");
    let stat = |name: &str| volume.vfs().stats().get(name).expect("counted");
    for (path, reserved) in [("/new", false), ("/reserved", true)] {
        let file = open(&volume, path, true);
        if reserved {
            let all = (WRITES * BLOCKS) as u64 * 4096;
            let mode = blockwright_vfs::FallocMode::Allocate { keep_size: true };
            file.handle().fallocate(0..all, mode).expect("reserved");
        }
        let (runs, blocks) = (stat("runs_allocated"), stat("run_blocks_allocated"));
        for n in 0..WRITES {
            let slices = vec![slice(mark(7, n), BLOCKS << 12)];
            let at = (n * BLOCKS) as u64 * 4096;
            file.handle().run(WriteOp::at(at, slices)).expect("written");
        }
        let more = stat("run_blocks_allocated") - blocks;
        assert_eq!(more, (WRITES * BLOCKS) as u64, "{path}");
        assert_eq!(stat("runs_allocated") - runs, WRITES as u64, "{path}");
        file.sync_all().expect("durable");
    }
    volume.close().expect("closed");
    assert_clean(&memory);
    let volume = Volume::options()
        .read_only(true)
        .open_device(memory)
        .expect("opened");
    for path in ["/new", "/reserved"] {
        let bytes = volume.read(path).expect("read");
        assert_eq!(bytes.len(), (WRITES * BLOCKS) << 12);
        for (n, part) in bytes.chunks(BLOCKS << 12).enumerate() {
            assert!(part.iter().all(|b| *b == mark(7, n)), "{path}, write {n}");
        }
    }
}

/// Where the log continues in the next segment on the device, a write does not end with the old one.
#[test]
fn a_run_crosses_the_end_of_a_segment() {
    const FILES: u64 = 40;
    const BLOCKS: u64 = 300;
    let memory = formatted(256 << 20);
    let volume = Volume::open_device(memory.clone()).expect("opened");
    let runs = || volume.vfs().stats().get("runs_allocated").expect("counted");
    let before = runs();
    for k in 0..FILES {
        let file = open(&volume, &format!("/f{k}"), true);
        let slices = vec![slice(mark(k as usize, 0), (BLOCKS as usize) << 12)];
        file.handle().run(WriteOp::at(0, slices)).expect("written");
        assert_eq!(stretches(&file), 1, "file {k}");
        if k % 7 == 3 {
            // Takes the lease back, wherever it stands.
            volume.sync().expect("durable");
        }
    }
    // 12000 blocks are 24 segments; others than data's log had some before.
    assert_eq!(runs() - before, FILES);
    volume.close().expect("closed");
    assert_clean(&memory);
    let volume = Volume::options()
        .read_only(true)
        .open_device(memory)
        .expect("opened");
    for k in 0..FILES {
        let bytes = volume.read(format!("/f{k}")).expect("read");
        assert_eq!(bytes.len() as u64, BLOCKS << 12);
        assert!(bytes.iter().all(|b| *b == mark(k as usize, 0)), "file {k}");
    }
}

#[test]
fn the_other_ways_are_as_correct() {
    for way in [DirectAllocation::Serialized, DirectAllocation::None] {
        let (stretches, writes) = appenders(way, 128 << 10);
        println!("{way:?}: {stretches} stretches of {writes} writes");
    }
}

/// From one way to another under those who write.
#[test]
fn ways_change_while_mounted() {
    let memory = formatted(256 << 20);
    let volume = Volume::open_device(memory.clone()).expect("opened");
    std::thread::scope(|s| {
        for k in 0..4 {
            let volume = &volume;
            s.spawn(move || {
                let file = open(volume, &format!("/f{k}"), true);
                for n in 0..60 {
                    let slices = vec![slice(mark(k, n), 256 << 10)];
                    file.handle()
                        .run(WriteOp::at((n << 18) as u64, slices))
                        .expect("written");
                    f2fs(volume).set_direct_allocation(WAYS[n % 3]);
                    volume
                        .vfs()
                        .tune("serialized_dio_pages", 1 + n as u64)
                        .expect("tuned");
                }
            });
        }
    });
    for k in 0..4 {
        let bytes = volume.read(format!("/f{k}")).expect("read");
        for (n, part) in bytes.chunks(256 << 10).enumerate() {
            assert!(part.iter().all(|b| *b == mark(k, n)), "file {k}, write {n}");
        }
    }
    volume.close().expect("closed");
    assert_clean(&memory);
}

/// A device whose flushes wait until they are let through.
struct Gate {
    inner: Arc<MemoryDevice>,
    shut: Mutex<bool>,
    waiting: Mutex<usize>,
    changed: Condvar,
}

impl Gate {
    fn shut(&self, shut: bool) {
        *self.shut.lock().unwrap() = shut;
        self.changed.notify_all();
    }
}

impl BlockDevice for Gate {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, request: Request) {
        if matches!(request.op, Op::Flush) {
            *self.waiting.lock().unwrap() += 1;
            let mut shut = self.shut.lock().unwrap();
            while *shut {
                shut = self.changed.wait(shut).unwrap();
            }
        }
        self.inner.submit(request);
    }

    fn name(&self) -> String {
        "gate".to_owned()
    }
}

/// Overwrites in place neither wait for a checkpoint nor for a log's turn.
#[test]
fn overwrites_wait_for_nobody() {
    for way in WAYS {
        let memory = formatted(256 << 20);
        let gate = Arc::new(Gate {
            inner: memory.clone(),
            shut: Mutex::new(false),
            waiting: Mutex::new(0),
            changed: Condvar::new(),
        });
        let mut options = VolumeOptions::default();
        options.parts.f2fs.dio_alloc = way;
        options.parts.f2fs.commit_interval = Duration::from_secs(3600);
        let volume = Arc::new(options.open_device(gate.clone()).expect("opened"));
        let file = open(&volume, "/file", true);
        file.handle()
            .run(WriteOp::at(0, vec![slice(1, 8 << 20)]))
            .expect("written");
        file.sync_all().expect("durable");
        // A checkpoint that does not end.
        let flushes = *gate.waiting.lock().unwrap();
        gate.shut(true);
        let theirs = Arc::clone(&volume);
        let syncer = std::thread::spawn(move || {
            theirs.create_dir("/dir").expect("made");
            theirs.sync().expect("durable");
        });
        while *gate.waiting.lock().unwrap() == flushes {
            std::thread::yield_now();
        }
        let (tell, told) = mpsc::channel();
        let writer = std::thread::spawn(move || {
            let handle = file.handle();
            for n in 0..200u64 {
                let at = n * 37 % 2048 * 4096;
                handle
                    .run(WriteOp::at(at, vec![slice(9, 4096)]))
                    .expect("overwritten");
            }
            let (done, landed) = mpsc::channel();
            for n in 0..64u64 {
                let done = done.clone();
                handle.start(
                    WriteOp::at(n * 8192, vec![slice(9, 4096)]),
                    Box::new(move |r| done.send(r.map(drop)).unwrap()),
                    Patience::Worker,
                );
            }
            for _ in 0..64 {
                landed.recv().expect("told").expect("overwritten");
            }
            tell.send(()).unwrap();
            file
        });
        let ended = told.recv_timeout(Duration::from_secs(60));
        gate.shut(false);
        let file = writer.join().expect("the writer");
        syncer.join().expect("the syncer");
        ended.unwrap_or_else(|_| panic!("{way:?}: an overwrite waited for a checkpoint"));
        let numbers = volume.vfs().stats();
        let inline = numbers.get("direct_completions_inline").expect("counted");
        assert!(
            inline >= 64,
            "{inline} of 64 were completed in the device's context"
        );
        drop(file);
        Arc::into_inner(volume)
            .expect("ours")
            .close()
            .expect("closed");
        assert_clean(&memory);
    }
}

fn write(file: &File, at: u64, byte: u8, bytes: usize) {
    let written = file.handle().run(WriteOp::at(at, vec![slice(byte, bytes)]));
    assert_eq!(written.expect("written"), bytes);
}

/// Submits a write if that can be done at once, and waits for it then.
fn try_write(file: &File, at: u64, byte: u8, bytes: usize) -> bool {
    let (done, landed) = mpsc::channel();
    let done = Box::new(move |r| done.send(r).unwrap());
    let op = WriteOp::at(at, vec![slice(byte, bytes)]);
    let submitted = file.handle().start(op, done, Patience::Nowait).is_none();
    if submitted {
        let written = landed.recv().expect("told").expect("written");
        assert_eq!(written, bytes);
    }
    submitted
}

#[test]
fn preallocated_blocks_are_written_without_waiting() {
    let memory = formatted(256 << 20);
    let volume = Volume::open_device(memory.clone()).expect("opened");
    let taken = || {
        volume
            .vfs()
            .stats()
            .get("direct_writes_nowait")
            .expect("counted")
    };
    let file = open(&volume, "/file", true);
    // An inode's data is in it, until it has blocks.
    write(&file, 0, 1, 8192);
    let mut want = vec![1; 8192];
    let before = taken();
    for n in 2..64u8 {
        assert!(try_write(&file, u64::from(n) << 12, n, 4096), "write {n}");
        want.extend([n; 4096]);
    }
    assert!(try_write(&file, 70 << 12, 70, 16384), "with a hole");
    assert!(try_write(&file, 65 << 12, 65, 8192), "into the hole");
    want.resize(74 << 12, 0);
    want[70 << 12..].fill(70);
    want[65 << 12..67 << 12].fill(65);
    assert_eq!(taken() - before, 64);
    assert_eq!(stretches(&file), 3, "two holes");
    // An overwrite of blocks whose places are known, and no blocks are taken.
    write(&file, 4096, 8, 4096);
    assert!(try_write(&file, 4096, 7, 4096));
    want[4096..8192].fill(7);
    assert!(!try_write(&file, 69 << 12, 9, 8192), "half of it is a hole");
    // Where the inode's own addresses end a writer has to make a node; and the log may continue where the lease does
    // not.
    let mut waited = Vec::new();
    let end = 1100u64;
    for n in 74..end {
        if !try_write(&file, n << 12, n as u8, 4096) {
            waited.push(n);
            write(&file, n << 12, n as u8, 4096);
        }
        want.extend([n as u8; 4096]);
    }
    let nodes_end = |n: &u64| (800..=923).contains(n);
    assert_eq!(waited.iter().filter(|n| nodes_end(n)).count(), 1);
    assert!(waited.len() <= 2, "{waited:?}");
    let run = waited[0] - 2..waited[0] + 2;
    file.punch_hole(run.start << 12, 4 << 12).expect("punched");
    assert!(
        try_write(&file, run.start << 12, 9, 4 << 12),
        "in two nodes"
    );
    want[(run.start << 12) as usize..(run.end << 12) as usize].fill(9);
    let taken_then = taken();
    for way in [DirectAllocation::Serialized, DirectAllocation::None] {
        f2fs(&volume).set_direct_allocation(way);
        assert!(!try_write(&file, end << 12, 5, 4096), "{way:?}");
    }
    f2fs(&volume).set_direct_allocation(DirectAllocation::Reserved);
    file.write_all_at(&slice(6, 100), end << 12)
        .expect("written");
    want.extend([6; 100]);
    file.sync_all().expect("durable");
    assert!(
        !try_write(&file, (end + 1) << 12, 5, 4096),
        "the size on disk is inside a block"
    );
    assert_eq!(taken(), taken_then);
    drop(file);
    volume.close().expect("closed");
    assert_clean(&memory);
    let volume = Volume::options()
        .read_only(true)
        .open_device(memory)
        .expect("opened");
    assert!(volume.read("/file").expect("read") == want);
}

/// A writer that fills a volume gets all of it except the room for cleaning and checkpoints, and no promise is
/// broken.
#[test]
fn what_is_in_memory_ends_with_the_volume() {
    let memory = formatted(64 << 20);
    let volume = Volume::open_device(memory.clone()).expect("opened");
    let file = open(&volume, "/file", true);
    write(&file, 0, 1, 8192);
    let mut end = 2u64;
    let mut nowait = 0;
    loop {
        if try_write(&file, end << 12, end as u8, 4096) {
            nowait += 1;
        } else if let Err(e) = file
            .handle()
            .run(WriteOp::at(end << 12, vec![slice(end as u8, 4096)]))
        {
            assert_eq!(e.kind(), blockwright_vfs::ErrorKind::NoSpace, "{e}");
            break;
        }
        end += 1;
    }
    let stat = volume.statfs().expect("told");
    assert!(nowait > end / 2, "{nowait} of {end}");
    assert!(stat.blocks_available < 64, "{stat:?}");
    file.sync_all().expect("durable");
    drop(file);
    volume.close().expect("closed");
    assert_clean(&memory);
    let volume = Volume::options()
        .read_only(true)
        .open_device(memory)
        .expect("opened");
    let bytes = volume.read("/file").expect("read");
    assert_eq!(bytes.len() as u64, end << 12);
    for (n, block) in bytes.chunks(4096).enumerate().skip(2) {
        assert!(block.iter().all(|b| *b == n as u8), "block {n}");
    }
}

/// While a checkpoint has the gate nothing is at hand, and who asks is told so at once.
#[test]
fn nothing_is_in_memory_while_a_checkpoint_is_written() {
    let memory = formatted(256 << 20);
    let gate = Arc::new(Gate {
        inner: memory.clone(),
        shut: Mutex::new(false),
        waiting: Mutex::new(0),
        changed: Condvar::new(),
    });
    let mut options = VolumeOptions::default();
    options.parts.f2fs.commit_interval = Duration::from_secs(3600);
    let volume = Arc::new(options.open_device(gate.clone()).expect("opened"));
    let file = open(&volume, "/file", true);
    write(&file, 0, 1, 8192);
    assert!(try_write(&file, 8192, 1, 4096));
    let flushes = *gate.waiting.lock().unwrap();
    gate.shut(true);
    let theirs = Arc::clone(&volume);
    let syncer = std::thread::spawn(move || theirs.sync().expect("durable"));
    while *gate.waiting.lock().unwrap() == flushes {
        std::thread::yield_now();
    }
    let (tell, told) = mpsc::channel();
    let writer = std::thread::spawn(move || {
        tell.send(try_write(&file, 12288, 1, 4096)).unwrap();
        file
    });
    let submitted = told.recv_timeout(Duration::from_secs(60));
    gate.shut(false);
    let file = writer.join().expect("the writer");
    syncer.join().expect("the syncer");
    assert!(!submitted.expect("it waited for the checkpoint"));
    // It took the lease back, and where the log continues is at hand.
    assert!(try_write(&file, 12288, 1, 4096));
    drop(file);
    Arc::into_inner(volume)
        .expect("ours")
        .close()
        .expect("closed");
    assert_clean(&memory);
}
