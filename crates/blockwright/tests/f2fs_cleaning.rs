//! Cleaning of f2fs volumes: nearly full ones go on working under random overwrites, in every mode and with sections
//! of several segments; what they hold stays what was written, and fsck.f2fs finds nothing.

mod common;

use blockwright::device::sim::rng::SplitMix64;
use blockwright::device::{BlockDevice, DevOffset, MemoryDevice, SharedDevice};
use blockwright::{OpenOptions, Volume, VolumeOptions};
use blockwright_f2fs::{BackgroundCleaning, F2fs, Mode};
use common::{below, guarded};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

const BLOCK: usize = 4096;
const LIMIT: Duration = Duration::from_secs(240);

fn have_tools() -> bool {
    common::have_tool("mkfs.f2fs") && common::have_tool("fsck.f2fs")
}

/// A fresh volume as mkfs.f2fs makes it.
fn fresh(mib: u64, args: &[&str]) -> Arc<MemoryDevice> {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("disk.img");
    let file = std::fs::File::create(&path).expect("an image");
    file.set_len(mib << 20).expect("a size");
    let out = Command::new("mkfs.f2fs")
        .arg("-q")
        .args(args)
        .arg(&path)
        .output()
        .expect("mkfs.f2fs runs");
    assert!(out.status.success(), "{out:?}");
    load(&path)
}

fn load(path: &Path) -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::load(path).expect("an image"))
}

fn store(device: &MemoryDevice, path: &Path) {
    let bytes = device.geometry().bytes;
    let mut out = vec![0; bytes as usize];
    device
        .read_at(DevOffset(0), &mut out)
        .expect("memory gives it");
    std::fs::write(path, out).expect("an image");
}

/// fsck.f2fs and our own checker must find nothing.
fn check(device: &Arc<MemoryDevice>) {
    let shared: SharedDevice = Arc::clone(device) as _;
    let options = blockwright_check::f2fs::CheckOptions::default();
    let report = blockwright_check::f2fs::check(shared, &options).expect("a check");
    let issues: Vec<String> = report.issues.iter().map(ToString::to_string).collect();
    assert!(issues.is_empty(), "our checker: {}", issues.join("\n"));
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("disk.img");
    store(device, &path);
    common::assert_fsck_f2fs_clean(&path);
}

fn options(mode: Mode) -> VolumeOptions {
    let mut options = VolumeOptions::default();
    options.f2fs.mode = mode;
    options.f2fs.background_cleaning = BackgroundCleaning::Off;
    options
}

fn open(device: &Arc<MemoryDevice>, options: &VolumeOptions) -> Volume {
    let volume = Volume::open_device(Arc::clone(device) as SharedDevice, options).expect("a mount");
    assert!(!volume.is_read_only(), "{:?}", volume.read_only_reason());
    volume
}

fn stat(volume: &Volume, name: &str) -> u64 {
    let stats = volume.vfs().stats();
    stats
        .get(name)
        .unwrap_or_else(|| panic!("no counter {name}"))
}

/// What a block holds after its `version`th write.
fn pattern(file: usize, block: usize, version: u32) -> [u8; BLOCK] {
    let mut out = [0; BLOCK];
    let mut rng = SplitMix64::new((file as u64) << 40 | (block as u64) << 20 | u64::from(version));
    for word in out.chunks_exact_mut(8) {
        word.copy_from_slice(&rng.next_u64().to_le_bytes());
    }
    out
}

/// Files of many sizes, and how often each block of them was written.
struct Files {
    versions: Vec<Vec<u32>>,
}

fn name(file: usize) -> String {
    format!("/d{}/file{file}", file % 3)
}

impl Files {
    /// Fills a volume up to `percent` of what users may have.
    fn fill(volume: &Volume, percent: u64, rng: &mut SplitMix64) -> Files {
        for d in 0..3 {
            volume.create_dir(format!("/d{d}")).expect("a directory");
        }
        let mut versions = Vec::new();
        let first = volume.statfs().expect("statfs");
        let all = first.blocks_free;
        loop {
            let free = volume.statfs().expect("statfs").blocks_free;
            let left = free.saturating_sub(all * (100 - percent) / 100);
            if left < 20 {
                break;
            }
            // Few large files and many small ones.
            let blocks = match below(rng, 8) {
                0 => 1500 + below(rng, 1500),
                1 | 2 => 100 + below(rng, 200),
                _ => 1 + below(rng, 20),
            };
            let blocks = blocks.min(left - 8) as usize;
            let file = versions.len();
            let bytes: Vec<u8> = (0..blocks).flat_map(|b| pattern(file, b, 0)).collect();
            volume.write(name(file), bytes).expect("there is room");
            versions.push(vec![0; blocks]);
        }
        volume.sync().expect("a sync");
        Files { versions }
    }

    fn blocks(&self) -> usize {
        self.versions.iter().map(Vec::len).sum()
    }

    /// Overwrites a random block, as one write of one open file.
    fn overwrite(&mut self, volume: &Volume, rng: &mut SplitMix64, direct: bool) {
        let mut at = below(rng, self.blocks() as u64) as usize;
        let mut file = 0;
        while at >= self.versions[file].len() {
            at -= self.versions[file].len();
            file += 1;
        }
        let run = (1 + below(rng, 4) as usize).min(self.versions[file].len() - at);
        let mut bytes = Vec::new();
        for b in at..at + run {
            self.versions[file][b] += 1;
            bytes.extend(pattern(file, b, self.versions[file][b]));
        }
        let opened = OpenOptions::new()
            .write(true)
            .direct(direct)
            .open(volume, name(file))
            .expect("the file is there");
        opened
            .write_all_at(&bytes, (at * BLOCK) as u64)
            .expect("an overwrite needs no room");
    }

    fn verify(&self, volume: &Volume) {
        for (file, versions) in self.versions.iter().enumerate() {
            let bytes = volume.read(name(file)).expect("contents");
            assert_eq!(bytes.len(), versions.len() * BLOCK, "file {file}");
            for (b, found) in bytes.chunks(BLOCK).enumerate() {
                let version = versions[b];
                assert!(
                    found == pattern(file, b, version),
                    "file {file}, block {b}: not what was written {version} times"
                );
            }
        }
    }
}

/// Fills, overwrites `times` the contents at random, verifies, and checks. The statistics at the end.
fn churn(
    mib: u64,
    mkfs: &[&str],
    options: &VolumeOptions,
    percent: u64,
    times: f64,
    seed: u64,
) -> (Arc<MemoryDevice>, Files, Vec<(String, u64)>) {
    let device = fresh(mib, mkfs);
    let volume = open(&device, options);
    let mut rng = SplitMix64::new(common::seed(seed));
    let mut files = Files::fill(&volume, percent, &mut rng);
    let writes = (files.blocks() as f64 * times / 2.5) as usize;
    for n in 0..writes {
        files.overwrite(&volume, &mut rng, n % 3 == 0);
        if n % 500 == 499 {
            volume.sync().expect("a sync");
        }
    }
    files.verify(&volume);
    let stats = volume.vfs().stats().numbers();
    assert_eq!(stat(&volume, "errors_found"), 0);
    volume.close().expect("an unmount");
    check(&device);
    (device, files, stats)
}

fn of(stats: &[(String, u64)], name: &str) -> u64 {
    let found = stats.iter().find(|(n, _)| n == name);
    found.unwrap_or_else(|| panic!("no counter {name}")).1
}

#[test]
fn lfs_at_95_percent_under_random_overwrites() {
    if !have_tools() {
        return;
    }
    guarded("lfs at 95 percent", LIMIT, || {
        let (device, files, stats) = churn(128, &[], &options(Mode::Lfs), 95, 2.5, 4711);
        println!("{stats:?}");
        assert!(of(&stats, "cleaned_foreground") > 20, "{stats:?}");
        assert_eq!(of(&stats, "lfs_in_place_blocks"), 0, "{stats:?}");
        assert_eq!(of(&stats, "cleaning_failures"), 0, "{stats:?}");
        let again = open(&device, &options(Mode::Adaptive));
        files.verify(&again);
        again.close().expect("an unmount");
    });
}

#[test]
fn adaptive_at_95_percent_under_random_overwrites_and_new_files() {
    if !have_tools() {
        return;
    }
    guarded("adaptive at 95 percent", LIMIT, || {
        let device = fresh(128, &[]);
        let volume = open(&device, &options(Mode::Adaptive));
        let mut rng = SplitMix64::new(common::seed(4712));
        let mut files = Files::fill(&volume, 95, &mut rng);
        // Files come and go, so that segments fill and empty in part.
        for round in 0..6 {
            for n in 0..300 {
                files.overwrite(&volume, &mut rng, n % 3 == 0);
                let path = format!("/d0/small{}", n % 100);
                let bytes = vec![round as u8; 1 + below(&mut rng, 20_000) as usize];
                volume.write(&path, bytes).expect("there is room");
                if n % 50 == 49 {
                    volume.sync().expect("a sync");
                }
            }
            for n in (round % 2..100).step_by(2) {
                volume
                    .remove_file(format!("/d0/small{n}"))
                    .expect("it is there");
            }
        }
        files.verify(&volume);
        assert_eq!(stat(&volume, "errors_found"), 0);
        volume.close().expect("an unmount");
        check(&device);
    });
}

#[test]
fn sections_of_several_segments() {
    if !have_tools() {
        return;
    }
    for (args, mode) in [
        (&["-s", "2"][..], Mode::Lfs),
        (&["-s", "4"][..], Mode::Adaptive),
        (&["-s", "2", "-z", "2"][..], Mode::Lfs),
    ] {
        guarded("sections", LIMIT, move || {
            let (device, files, stats) = churn(192, args, &options(mode), 90, 1.2, 4713);
            assert_eq!(of(&stats, "lfs_in_place_blocks"), 0, "{stats:?}");
            let again = open(&device, &options(mode));
            files.verify(&again);
            again.close().expect("an unmount");
        });
    }
}

#[test]
fn an_idle_volume_is_cleaned_in_the_background() {
    if !have_tools() {
        return;
    }
    guarded("background", LIMIT, || {
        let device = fresh(128, &[]);
        let mut with = options(Mode::Lfs);
        with.f2fs.background_cleaning = BackgroundCleaning::Sync;
        with.f2fs.cleaning_interval = Duration::from_millis(50);
        let volume = open(&device, &with);
        let mut rng = SplitMix64::new(common::seed(4714));
        let mut files = Files::fill(&volume, 80, &mut rng);
        // Segments everywhere get holes.
        for _ in 0..files.blocks() / 3 {
            files.overwrite(&volume, &mut rng, false);
        }
        volume.sync().expect("a sync");
        let before = stat(&volume, "free_sections");
        let start = std::time::Instant::now();
        while stat(&volume, "cleaned_background") < 3 && start.elapsed() < LIMIT / 2 {
            std::thread::sleep(Duration::from_millis(20));
        }
        let moved = stat(&volume, "moved_data_blocks") + stat(&volume, "moved_node_blocks");
        assert!(moved > 0, "nothing was moved");
        assert!(stat(&volume, "cleaned_background") > 0);
        let engine = volume.vfs().engine();
        let f2fs = engine.as_any().downcast_ref::<F2fs>().expect("f2fs");
        f2fs.fs().clean_background();
        volume.sync().expect("a sync");
        assert!(stat(&volume, "free_sections") > before);
        files.verify(&volume);
        volume.close().expect("an unmount");
        check(&device);
    });
}

#[test]
fn writers_readers_and_cleaning_beside_each_other() {
    if !have_tools() {
        return;
    }
    guarded("threads", LIMIT, || {
        let device = fresh(128, &[]);
        let volume = Arc::new(open(&device, &options(Mode::Lfs)));
        const THREADS: usize = 4;
        let blocks = 15_872 * 85 / 100 / THREADS;
        let threads: Vec<_> = (0..THREADS)
            .map(|t| {
                let volume = Arc::clone(&volume);
                std::thread::spawn(move || {
                    let mut rng = SplitMix64::new(500 + t as u64);
                    let path = format!("/file{t}");
                    let bytes: Vec<u8> = (0..blocks).flat_map(|b| pattern(t, b, 0)).collect();
                    volume.write(&path, bytes).expect("there is room");
                    let mut versions = vec![0u32; blocks];
                    let direct = t % 2 == 0;
                    let file = OpenOptions::new()
                        .read(true)
                        .write(true)
                        .direct(direct)
                        .open(&volume, &path)
                        .expect("the file is there");
                    for n in 0..4000 {
                        let b = below(&mut rng, blocks as u64) as usize;
                        versions[b] += 1;
                        file.write_all_at(&pattern(t, b, versions[b]), (b * BLOCK) as u64)
                            .expect("an overwrite needs no room");
                        let b = below(&mut rng, blocks as u64) as usize;
                        let mut found = [0; BLOCK];
                        let read = file.read_at(&mut found, (b * BLOCK) as u64);
                        assert_eq!(read.expect("a read"), BLOCK);
                        assert!(found == pattern(t, b, versions[b]), "thread {t}, block {b}");
                        if n % 400 == 399 {
                            file.sync_data().expect("a sync");
                        }
                    }
                    versions
                })
            })
            .collect();
        let versions = threads.into_iter().map(|t| t.join().expect("a thread"));
        let versions: Vec<Vec<u32>> = versions.collect();
        for (t, versions) in versions.iter().enumerate() {
            let bytes = volume.read(format!("/file{t}")).expect("contents");
            for (b, found) in bytes.chunks(BLOCK).enumerate() {
                assert!(found == pattern(t, b, versions[b]), "thread {t}, block {b}");
            }
        }
        assert!(stat(&volume, "cleaned_foreground") > 0);
        assert_eq!(stat(&volume, "errors_found"), 0);
        let volume = Arc::into_inner(volume).expect("the only one");
        volume.close().expect("an unmount");
        check(&device);
    });
}
