//! What serves a mount stays within its budget: `cache=` bounds pages, metadata, inodes and requests together, and everything else
//! has 64 MiB. Looked at by the most memory that was resident; no time is measured.

mod common;

use blockwright_device::AlignedBuf;
use common::{Scratch, have_fuse, ok, our_mkfs, output, program};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const CACHE: u64 = 128 * MIB;
/// Program, buffers that wait to be used again, threads, what is in flight.
const REST: u64 = 64 * MIB;

/// A server and its mount, which goes away also when a test fails.
struct Server {
    child: Child,
    mnt: PathBuf,
}

impl Server {
    fn start(image: &Path, mnt: &Path, options: &str) -> Server {
        let child = program()
            .args(["mount", "-f", "-o", options])
            .args([image, mnt])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let server = Server {
            child,
            mnt: mnt.to_owned(),
        };
        let start = Instant::now();
        while !server.is_mounted() {
            assert!(start.elapsed() < Duration::from_secs(30), "not mounted");
            std::thread::sleep(Duration::from_millis(5));
        }
        server
    }

    fn is_mounted(&self) -> bool {
        let table = fs::read_to_string("/proc/mounts").unwrap();
        let mut mounts = table.lines().map(|l| l.split(' ').nth(1));
        mounts.any(|mount| mount.map(Path::new) == Some(&self.mnt))
    }

    /// The most memory that was resident so far; `None` where the host does not tell.
    fn resident_max(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
        let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
        Some(kib << 10)
    }

    fn stop(mut self) {
        ok(program().arg("umount").arg(&self.mnt));
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.is_mounted() {
            let _ = output(Command::new("umount").arg("-l").arg(&self.mnt));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn stream(path: &Path, mib: u64) {
    let chunk = vec![5; MIB as usize];
    let mut file = File::create(path).unwrap();
    for _ in 0..mib {
        file.write_all(&chunk).unwrap();
    }
    file.sync_all().unwrap();
}

/// One kind of work after another, each with folios of another size, so that what one gave up is used by the next or given back.
fn work(mnt: &Path, mut done: impl FnMut(&str)) {
    stream(&mnt.join("stream"), 300);
    done("a stream");
    for dir in 0..20 {
        let dir = mnt.join(format!("tree{dir}"));
        fs::create_dir(&dir).unwrap();
        for k in 0..300 {
            fs::write(dir.join(k.to_string()), vec![7; k * 31 % 9000]).unwrap();
        }
    }
    done("small files");
    // Not the kernel's cache: no request for that reaches the server.
    let file = OpenOptions::new()
        .read(true)
        .open(mnt.join("stream"))
        .unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let mut at = 1u64;
    let mut page = [0; 4096];
    for _ in 0..20_000 {
        at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let place = (at >> 33) % (300 * MIB / 4096) * 4096;
        file.read_exact_at(&mut page, place).unwrap();
        assert_eq!(page, [5; 4096]);
    }
    done("random reads");
    stream(&mnt.join("stream2"), 300);
    done("another stream");
    // Many of the largest requests at once, past the cache.
    std::thread::scope(|scope| {
        for thread in 0..32u64 {
            let stream = mnt.join("stream2");
            scope.spawn(move || direct(&stream, thread));
        }
    });
    done("direct requests of 32 threads");
    std::thread::scope(|scope| {
        scope.spawn(|| stream(&mnt.join("left"), 150));
        scope.spawn(|| stream(&mnt.join("right"), 150));
    });
    done("two streams");
    fs::copy(mnt.join("stream"), mnt.join("copy")).unwrap();
    done("a copy");
    for dir in 0..20 {
        fs::remove_dir_all(mnt.join(format!("tree{dir}"))).unwrap();
    }
    done("removal");
}

/// Overwrites and reads its part of a file of 300 MiB, 1 MiB at a time.
fn direct(path: &Path, thread: u64) {
    use std::os::unix::fs::OpenOptionsExt;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32)
        .open(path)
        .unwrap();
    let mut chunk = AlignedBuf::zeroed(MIB as usize);
    chunk.fill(6);
    for k in 0..9 {
        file.write_all_at(&chunk, (thread * 9 + k) * MIB).unwrap();
    }
    for k in 0..9 {
        chunk.fill(0);
        file.read_exact_at(&mut chunk, (thread * 9 + k) * MIB)
            .unwrap();
        assert!(chunk.iter().all(|b| *b == 6));
    }
}

fn stays_within(format: &str, transport: &str) {
    if !have_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let (image, mnt) = (&scratch.path("disk.img"), scratch.dir("mnt"));
    our_mkfs(image, &["-t", format], "2G");
    let server = Server::start(image, &mnt, &format!("cache={CACHE},transport={transport}"));
    work(&mnt, |what| {
        let Some(most) = server.resident_max() else {
            blockwright_oracles::leave("the host does not tell how much memory is resident");
            return;
        };
        println!("{format}, {transport}: {} MiB after {what}", most / MIB);
        assert!(
            most <= CACHE + REST,
            "{format}, {transport}: {} MiB were resident after {what}, {} allowed",
            most / MIB,
            (CACHE + REST) / MIB
        );
    });
    server.stop();
    ok(program().arg("check").arg(image));
}

#[test]
fn ext4_over_dev_fuse_keeps_to_its_budget() {
    stays_within("ext4", "dev_fuse");
}

#[test]
fn ext4_over_the_best_transport_keeps_to_its_budget() {
    stays_within("ext4", "auto");
}

#[test]
fn f2fs_over_dev_fuse_keeps_to_its_budget() {
    stays_within("f2fs", "dev_fuse");
}

#[test]
fn f2fs_over_the_best_transport_keeps_to_its_budget() {
    stays_within("f2fs", "auto");
}

/// This many files, all of which the kernel remembers: whole, their inodes would take more than all that is allowed.
const FILES: usize = 60_000;

/// The kernel remembers every file of a tree; their inodes leave our memory anyway, and are there again when they are
/// asked for.
fn remembers_many_files_within(format: &str) {
    if !have_fuse() {
        return;
    }
    let scratch = Scratch::new();
    let (image, mnt) = (&scratch.path("disk.img"), scratch.dir("mnt"));
    let inodes: &[&str] = match format {
        "ext4" => &["-N", "80000"],
        _ => &[],
    };
    our_mkfs(image, &[&["-t", format], inodes].concat(), "2G");
    let cache = 32 * MIB;
    let server = Server::start(image, &mnt, &format!("cache={cache}"));
    let within = |what: &str| {
        let Some(most) = server.resident_max() else {
            blockwright_oracles::leave("the host does not tell how much memory is resident");
            return;
        };
        println!("{format}: {} MiB after {what}", most / MIB);
        assert!(
            most <= cache + REST,
            "{format}: {} MiB were resident after {what}, {} allowed",
            most / MIB,
            (cache + REST) / MIB
        );
    };
    let dirs: Vec<PathBuf> = (0..40).map(|k| mnt.join(format!("d{k}"))).collect();
    let every = |work: &(dyn Fn(&Path, usize) + Sync)| {
        std::thread::scope(|scope| {
            for part in dirs.chunks(10) {
                scope.spawn(move || {
                    for dir in part {
                        (0..FILES / 40).for_each(|k| work(&dir.join(k.to_string()), k));
                    }
                });
            }
        });
    };
    dirs.iter().for_each(|dir| fs::create_dir(dir).unwrap());
    every(&|path, _| drop(File::create(path).unwrap()));
    within("making them");
    let listed = output(
        Command::new("find")
            .arg(&mnt)
            .args(["-type", "f", "-links", "1"]),
    );
    assert_eq!(listed.stdout.split(|b| *b == b'\n').count(), FILES + 1);
    within("finding them");
    // Each asks for the inode itself.
    every(&|path, k| {
        use std::os::unix::fs::PermissionsExt;
        let mode = 0o400 | (k as u32 % 8);
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    });
    within("changing them");
    every(&|path, k| {
        if k % 2 == 0 {
            fs::remove_file(path).unwrap();
        }
    });
    within("removing half of them");
    server.stop();
    ok(program().arg("check").arg(image));
}

#[test]
fn ext4_remembers_many_files_within_its_budget() {
    remembers_many_files_within("ext4");
}

#[test]
fn f2fs_remembers_many_files_within_its_budget() {
    remembers_many_files_within("f2fs");
}

/// Many writers make small files: workers come and go meanwhile, and what they leave in the heap must not stay there between inodes.
fn small_files_by_many_writers(format: &str) {
    if !have_fuse() {
        return;
    }
    const WRITERS: usize = 48;
    let cache = 96 * MIB;
    let scratch = Scratch::new();
    let (image, mnt) = (&scratch.path("disk.img"), scratch.dir("mnt"));
    let inodes: &[&str] = match format {
        "ext4" => &["-N", "80000"],
        _ => &[],
    };
    our_mkfs(image, &[&["-t", format], inodes].concat(), "2G");
    let options = format!("cache={cache},transport=dev_fuse");
    let server = Server::start(image, &mnt, &options);
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let dir = mnt.join(format!("d{writer}"));
            scope.spawn(move || {
                fs::create_dir(&dir).unwrap();
                for k in 0..FILES / WRITERS {
                    fs::write(dir.join(k.to_string()), [writer as u8; 2048]).unwrap();
                }
            });
        }
    });
    match server.resident_max() {
        Some(most) => {
            println!("{format}: {} MiB", most / MIB);
            assert!(
                most <= cache + REST,
                "{format}: {} MiB were resident, {} allowed",
                most / MIB,
                (cache + REST) / MIB
            );
        }
        None => blockwright_oracles::leave("the host does not tell how much memory is resident"),
    }
    server.stop();
    ok(program().arg("check").arg(image));
}

#[test]
fn ext4_keeps_to_its_budget_while_many_write_small_files() {
    small_files_by_many_writers("ext4");
}

#[test]
fn f2fs_keeps_to_its_budget_while_many_write_small_files() {
    small_files_by_many_writers("f2fs");
}
