//! Storms on full volumes, mounted: many writers of several processes until there is no room, everything away, again. What was
//! acknowledged is there, also after a remount, and free space is counted to the block.

mod common;

use blockwright_device::AlignedBuf;
use common::{Mounted, Scratch, check_clean, e2fsck_clean, have, have_fuse, our_mkfs};
use rustix::fs::{Advice, OFlags};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const ROUNDS: u64 = 50;
/// After these rounds a full volume is unmounted, checked and mounted again.
const REMOUNTED: [u64; 3] = [1, 20, ROUNDS];
const PROCESSES: u64 = 2;
/// Writers of each process.
const WRITERS: u64 = 3;
/// A writer continues with another file then.
const FILE_BYTES_MAX: u64 = 600_000;
/// Buffered bytes between two fsyncs.
const UNSYNCED_MAX: u64 = 128 << 10;
/// Longer than any wait for what the kernel does in its own time.
const SOON: Duration = Duration::from_secs(30);

/// What the writers' processes are told, and how they say what was acknowledged.
const DIR: &str = "BLOCKWRIGHT_WRITER_DIR";
const FIRST: &str = "BLOCKWRIGHT_WRITER_FIRST";
const ROUND: &str = "BLOCKWRIGHT_WRITER_ROUND";
const ACKNOWLEDGED: &str = "ACKNOWLEDGED ";

/// A range of what a file of this seed holds.
fn contents(seed: u64, at: u64, len: usize) -> Vec<u8> {
    let byte = |at: u64| (seed.wrapping_mul(31) + at + (at >> 9) * 37) as u8;
    (at..at + len as u64).map(byte).collect()
}

fn seed_of(writer: u64, round: u64, file: u64) -> u64 {
    writer * 7 + round * 101 + file * 13
}

/// How a writer writes.
#[derive(Clone, Copy)]
enum Way {
    /// `O_DIRECT`, and an fsync when a file is done.
    Direct,
    /// `O_SYNC`.
    Synchronous,
    /// Into the kernel's cache, with an fsync from time to time.
    Buffered,
}

fn full(e: &std::io::Error) -> bool {
    e.kind() == ErrorKind::StorageFull
}

/// Writes one file as far as it goes. How much of it was acknowledged, and whether the volume is full.
fn write_file(path: &Path, way: Way, seed: u64) -> (u64, bool) {
    let flags = match way {
        Way::Direct => OFlags::DIRECT,
        Way::Synchronous => OFlags::SYNC,
        Way::Buffered => OFlags::empty(),
    };
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .custom_flags(flags.bits() as i32)
        .open(path);
    let file = match file {
        Ok(file) => file,
        Err(e) if full(&e) => return (0, true),
        Err(e) => panic!("{}: {e}", path.display()),
    };
    let sync = |at: u64, acknowledged: &mut u64| match file.sync_all() {
        Ok(()) => {
            *acknowledged = at;
            true
        }
        Err(e) if full(&e) => false,
        Err(e) => panic!("{}: fsync: {e}", path.display()),
    };
    let (mut at, mut acknowledged) = (0, 0);
    while at < FILE_BYTES_MAX {
        let wrote = match way {
            Way::Direct => {
                let bytes = AlignedBuf::copy_of(&contents(seed, at, 64 << 10));
                file.write_at(&bytes, at)
            }
            Way::Synchronous => file.write_at(&contents(seed, at, 50_000), at),
            Way::Buffered => file.write_at(&contents(seed, at, 7000), at),
        };
        match wrote {
            Ok(0) => panic!("{}: nothing was written at {at}", path.display()),
            Ok(n) => at += n as u64,
            Err(e) if full(&e) => {
                // What was written before has its place.
                if matches!(way, Way::Direct) {
                    assert!(sync(at, &mut acknowledged), "accepted and lost at {at}");
                }
                return (acknowledged, true);
            }
            Err(e) => panic!("{}: write at {at}: {e}", path.display()),
        }
        match way {
            Way::Synchronous => acknowledged = at,
            Way::Buffered if at - acknowledged >= UNSYNCED_MAX && !sync(at, &mut acknowledged) => {
                return (acknowledged, true);
            }
            _ => {}
        }
    }
    let synced = sync(at, &mut acknowledged);
    (acknowledged, !synced)
}

/// One writer until the volume is full: a line for each of its files.
fn write_until_full(dir: &Path, writer: u64, round: u64) -> String {
    let way = [Way::Direct, Way::Synchronous, Way::Buffered][((writer + round) % 3) as usize];
    let mut said = String::new();
    for n in 0.. {
        let name = format!("w{writer}-{n}");
        let seed = seed_of(writer, round, n);
        let (acknowledged, full) = write_file(&dir.join(&name), way, seed);
        said += &format!("{ACKNOWLEDGED}{name} {seed} {acknowledged}\n");
        if full {
            break;
        }
    }
    said
}

/// Not a test: what this program does in the processes that a storm starts.
#[test]
fn a_process_of_writers() {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let (Some(dir), Some(first), Some(round)) =
        (std::env::var_os(DIR), number(FIRST), number(ROUND))
    else {
        return;
    };
    let dir = PathBuf::from(dir);
    let said: Vec<String> = std::thread::scope(|scope| {
        let writers: Vec<_> = (first..first + WRITERS)
            .map(|writer| {
                let dir = &dir;
                scope.spawn(move || write_until_full(dir, writer, round))
            })
            .collect();
        writers
            .into_iter()
            .map(|w| w.join().expect("a writer"))
            .collect()
    });
    print!("\n{}", said.concat());
}

/// A file, the seed of its contents, and how much of them was acknowledged.
struct Acknowledged {
    name: String,
    seed: u64,
    bytes: u64,
}

/// Writers until the volume is full.
fn fill(dir: &Path, round: u64) -> Vec<Acknowledged> {
    let processes: Vec<_> = (0..PROCESSES)
        .map(|n| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "a_process_of_writers", "--nocapture"])
                .env(DIR, dir)
                .env(FIRST, (n * WRITERS).to_string())
                .env(ROUND, round.to_string())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let mut list = Vec::new();
    for process in processes {
        let out = process.wait_with_output().unwrap();
        let text = String::from_utf8(out.stdout).unwrap();
        assert!(out.status.success(), "round {round}: {text}");
        for line in text.lines().filter_map(|l| l.strip_prefix(ACKNOWLEDGED)) {
            let words: Vec<&str> = line.split(' ').collect();
            list.push(Acknowledged {
                name: words[0].to_owned(),
                seed: words[1].parse().unwrap(),
                bytes: words[2].parse().unwrap(),
            });
        }
    }
    list
}

/// What was acknowledged is there, past what the kernel remembers of it.
fn verify(dir: &Path, list: &[Acknowledged], what: &str) {
    for file in list.iter().filter(|f| f.bytes > 0) {
        let mut opened = File::open(dir.join(&file.name))
            .unwrap_or_else(|e| panic!("{what}: {}: {e}", file.name));
        rustix::fs::fadvise(&opened, 0, None, Advice::DontNeed).unwrap();
        let mut seen = Vec::new();
        opened.read_to_end(&mut seen).unwrap();
        assert!(
            seen.len() as u64 >= file.bytes,
            "{what}: {}: {} bytes of {} that were acknowledged",
            file.name,
            seen.len(),
            file.bytes
        );
        let want = contents(file.seed, 0, file.bytes as usize);
        if let Some(at) = (0..want.len()).find(|&n| want[n] != seen[n]) {
            panic!(
                "{what}: {} of {} bytes is wrong at {at}",
                file.name, file.bytes
            );
        }
    }
}

fn storm(kind: &str, size: &str, transport: &str) {
    if !have_fuse() {
        return;
    }
    let switched_on = || fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    if transport == "io_uring" && !switched_on().is_ok_and(|on| on.trim() == "Y") {
        blockwright_oracles::leave("FUSE over io_uring is not switched on");
        return;
    }
    let what = format!("{kind} over {transport}");
    let scratch = Scratch::new();
    let (image, mnt) = (scratch.path("disk.img"), scratch.dir("mnt"));
    our_mkfs(&image, &["-t", kind], size);
    let options = format!("transport={transport}");
    let mount = || Mounted::new(&image, &mnt, &options);
    let checked = |what: &str| {
        check_clean(&image, what);
        match kind {
            "ext4" if have("e2fsck") => e2fsck_clean(&image, what),
            "f2fs" if have("fsck.f2fs") => common::fsck_f2fs_clean(&image, what),
            _ => {}
        }
    };
    let mut mounted = mount();
    // Free for every user, free at all, and free inodes.
    let free = || {
        let s = rustix::fs::statvfs(&mnt).unwrap();
        (s.f_bavail * s.f_frsize, s.f_bfree, s.f_ffree)
    };
    let dir = mnt.join("storm");
    let empty = free();
    for round in 1..=ROUNDS {
        let what = format!("{what}, round {round}");
        fs::create_dir(&dir).unwrap();
        let list = fill(&dir, round);
        let acknowledged: u64 = list.iter().map(|f| f.bytes).sum();
        assert!(
            acknowledged > empty.0 * 3 / 4,
            "{what}: {acknowledged} of {} bytes",
            empty.0
        );
        verify(&dir, &list, &what);
        // Who syncs first is told, once, that a buffered write had no room, which its writer was told, too.
        let told = common::output(common::program().arg("sync").arg(&mnt));
        let text = common::run::stderr(&told);
        assert!(
            told.status.success() || text.contains("no space left on device"),
            "{what}: {text}"
        );
        if REMOUNTED.contains(&round) {
            mounted.unmount();
            checked(&format!("{what}, full"));
            mounted = mount();
            verify(&dir, &list, &format!("{what}, mounted again"));
        }
        fs::remove_dir_all(&dir).unwrap();
        common::ok(common::program().arg("sync").arg(&mnt));
        // The kernel says when it forgets inodes, a little later.
        let start = Instant::now();
        while free() != empty {
            assert!(
                start.elapsed() < SOON,
                "{what}: {:?} is free, it was {empty:?}",
                free()
            );
            std::thread::sleep(Duration::from_millis(2));
            common::ok(common::program().arg("sync").arg(&mnt));
        }
    }
    mounted.unmount();
    checked(&format!("{what}, empty again"));
}

/// A sync that has to tell of a write that failed makes everything else durable.
#[test]
fn a_sync_that_tells_of_a_failure_syncs_all_the_same() {
    if !have_fuse() {
        return;
    }
    for (kind, size) in [("ext4", "16M"), ("f2fs", "64M")] {
        let scratch = Scratch::new();
        let (image, mnt) = (scratch.path("disk.img"), scratch.dir("mnt"));
        our_mkfs(&image, &["-t", kind], size);
        let mounted = Mounted::new(&image, &mnt, "commit=3600");
        // More than there is room for goes into the kernel's cache, through a handle that cannot be refused, and no call asks
        // what became of it.
        fs::write(mnt.join("too-much"), [7]).unwrap();
        let mut both = OpenOptions::new();
        let file = both.read(true).write(true).open(mnt.join("too-much"));
        let _ = file.unwrap().write_all_at(&vec![7; 64 << 20], 0);
        fs::remove_file(mnt.join("too-much")).unwrap();
        // There is room again when the kernel has forgotten the file.
        let start = Instant::now();
        while let Err(e) = fs::create_dir(mnt.join("a-directory")) {
            assert!(full(&e) && start.elapsed() < SOON, "{kind}: {e}");
            std::thread::sleep(Duration::from_millis(2));
        }
        let mut sync = common::program();
        common::run::refused(sync.arg("sync").arg(&mnt), 1, &["no space left on device"]);
        mounted.kill();
        let mounted = Mounted::new(&image, &mnt, "");
        assert!(mnt.join("a-directory").is_dir(), "{kind}: not synced");
        mounted.unmount();
        check_clean(&image, kind);
    }
}

/// What was written until the volume was full, and how that ended.
struct Filled {
    accepted: u64,
    error: Option<std::io::Error>,
}

/// Writes in pieces of this many bytes until there is no room.
fn write_all_there_is(file: &mut File, seed: u64, piece: usize, limit: u64) -> Filled {
    let mut accepted = 0;
    let error = loop {
        match file.write(&contents(seed, accepted, piece)) {
            Ok(n) => accepted += n as u64,
            Err(e) => break Some(e),
        }
        if accepted > limit {
            break None;
        }
    };
    Filled { accepted, error }
}

/// Programs that never sync, as `dd` and a shell: on a full volume the write itself fails, and what was accepted is there after
/// the volume was unmounted.
fn refuses(kind: &str, transport: &str) {
    if !have_fuse() {
        return;
    }
    let switched_on = || fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    if transport == "io_uring" && !switched_on().is_ok_and(|on| on.trim() == "Y") {
        blockwright_oracles::leave("FUSE over io_uring is not switched on");
        return;
    }
    const BYTES: u64 = 96 << 20;
    let what = format!("{kind} over {transport}");
    let scratch = Scratch::new();
    let (image, mnt) = (scratch.path("disk.img"), scratch.dir("mnt"));
    our_mkfs(&image, &["-t", kind], "96M");
    let mounted = Mounted::new(&image, &mnt, &format!("transport={transport}"));
    let space = rustix::fs::statvfs(&mnt).unwrap();
    let empty = space.f_bavail * space.f_frsize;
    let mut told: Vec<(String, u64, u64)> = Vec::new();
    let refused = |name: &str, filled: &Filled| {
        let error = filled.error.as_ref();
        let error = error.unwrap_or_else(|| panic!("{what}: {name}: more than the volume has"));
        assert!(full(error), "{what}: {name}: {error}");
    };
    // Opened while there is room, one beside the other: as dd does, and as a program that adds to its log.
    let mut log = File::create(mnt.join("log")).unwrap();
    log.write_all(&contents(2, 0, 5000)).unwrap();
    drop(log);
    let mut log = OpenOptions::new()
        .append(true)
        .open(mnt.join("log"))
        .unwrap();
    let mut z = File::create(mnt.join("z")).unwrap();
    let filled = write_all_there_is(&mut z, 1, 512 << 10, BYTES);
    refused("z", &filled);
    assert!(
        filled.accepted > empty * 3 / 4,
        "{what}: {} of {empty} bytes",
        filled.accepted
    );
    told.push(("z".to_owned(), 1, filled.accepted));
    drop(z);
    let mut at = 5000;
    let error = loop {
        match log.write(&contents(2, at, 5000)) {
            Ok(n) => at += n as u64,
            Err(e) => break e,
        }
        assert!(at < BYTES, "{what}: the log never ends");
    };
    assert!(full(&error), "{what}: log: {error}");
    told.push(("log".to_owned(), 2, at));
    drop(log);
    // Opened when there is next to none.
    for n in 3..300 {
        let name = format!("rest{n}");
        let mut rest = match File::create(mnt.join(&name)) {
            Ok(rest) => rest,
            Err(e) if full(&e) => break,
            Err(e) => panic!("{what}: {name}: {e}"),
        };
        let filled = write_all_there_is(&mut rest, n, 3000, BYTES);
        refused(&name, &filled);
        told.push((name, n, filled.accepted));
        if filled.accepted == 0 {
            break;
        }
    }
    let shell = |script: &str| {
        let out = Command::new("sh")
            .args(["-c", script])
            .current_dir(&mnt)
            .output();
        let out = out.unwrap();
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success(), "{what}: {script} succeeds");
        assert!(
            text.contains("No space left") || text.contains("I/O error"),
            "{what}: {text}"
        );
    };
    // What a file kept for more of it is free when that is closed, so a few of these may still succeed.
    let words = (0..500).take_while(|n| fs::write(mnt.join(format!("word{n}")), "hello").is_ok());
    let words = words.count();
    assert!(words < 500, "{what}: there is always room");
    shell("echo hello > h");
    shell("dd if=/dev/zero of=y bs=64k");
    // Something goes, and there is room.
    fs::remove_file(mnt.join("log")).unwrap();
    fs::remove_file(mnt.join("z")).unwrap();
    told.retain(|(name, ..)| name.starts_with("rest"));
    let start = Instant::now();
    while let Err(e) = fs::write(mnt.join("h"), "hello") {
        assert!(full(&e) && start.elapsed() < SOON, "{what}: {e}");
        std::thread::sleep(Duration::from_millis(5));
    }
    let before = std::time::SystemTime::now() - Duration::from_secs(60);
    let mtime = fs::metadata(mnt.join("h")).unwrap().modified().unwrap();
    assert!(mtime > before, "{what}: the time of {mtime:?}");
    let mut z = File::create(mnt.join("z")).unwrap();
    let filled = write_all_there_is(&mut z, 1, 100_000, BYTES);
    refused("z, again", &filled);
    told.push(("z".to_owned(), 1, filled.accepted));
    drop(z);
    mounted.unmount();
    check_clean(&image, &what);
    let mounted = Mounted::new(&image, &mnt, "");
    for (name, seed, accepted) in &told {
        let seen = fs::read(mnt.join(name)).unwrap();
        assert_eq!(seen.len() as u64, *accepted, "{what}: {name}");
        assert!(seen == contents(*seed, 0, seen.len()), "{what}: {name}");
    }
    assert_eq!(fs::read(mnt.join("h")).unwrap(), b"hello", "{what}");
    for n in 0..words {
        let word = fs::read(mnt.join(format!("word{n}"))).unwrap();
        assert_eq!(word, b"hello", "{what}: word{n} of {words}");
    }
    mounted.unmount();
}

#[test]
fn a_full_ext4_refuses_what_it_cannot_keep() {
    refuses("ext4", "dev_fuse");
    refuses("ext4", "io_uring");
}

#[test]
fn a_full_f2fs_refuses_what_it_cannot_keep() {
    refuses("f2fs", "dev_fuse");
    refuses("f2fs", "io_uring");
}

#[test]
fn storms_on_ext4() {
    storm("ext4", "16M", "io_uring");
}

#[test]
fn storms_on_ext4_over_dev_fuse() {
    storm("ext4", "16M", "dev_fuse");
}

#[test]
fn storms_on_f2fs() {
    storm("f2fs", "64M", "io_uring");
}

#[test]
fn storms_on_f2fs_over_dev_fuse() {
    storm("f2fs", "64M", "dev_fuse");
}
