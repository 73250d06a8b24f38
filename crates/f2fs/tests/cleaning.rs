//! Cleaning of f2fs volumes: nearly full ones go on working under random overwrites, in every mode and with sections
//! of several segments; what they hold stays what was written, and fsck.f2fs finds nothing.

use blockwright_test_support as common;
use blockwright_test_support::heart;
use blockwright_test_support::uml;

use blockwright::{OpenOptions, Volume, VolumeOptions};
use blockwright_device::sim::rng::SplitMix64;
use blockwright_device::{BlockDevice, DevOffset, Flags, MemoryDevice, SharedDevice};
use blockwright_f2fs::{BackgroundCleaning, F2fs, Mode};
use common::{below, guarded};
use heart::{Heart, Took};
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
    device.save(path).expect("an image");
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
    options.parts.f2fs.mode = mode;
    options.parts.f2fs.background_cleaning = BackgroundCleaning::Off;
    options
}

fn open(device: &Arc<MemoryDevice>, options: &VolumeOptions) -> Volume {
    let volume = options
        .open_device(Arc::clone(device) as SharedDevice)
        .expect("a mount");
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

    /// What a volume holds, as files of the host.
    fn put_into(&self, dir: &Path) {
        for (file, versions) in self.versions.iter().enumerate() {
            let path = dir.join(&name(file)[1..]);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            let blocks = versions.iter().enumerate();
            let bytes: Vec<u8> = blocks.flat_map(|(b, v)| pattern(file, b, *v)).collect();
            std::fs::write(path, bytes).expect("a file");
        }
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
        let volume = open(&device, &options(Mode::Lfs));
        let mut rng = SplitMix64::new(common::seed(4714));
        let mut files = Files::fill(&volume, 80, &mut rng);
        // Segments everywhere get holes.
        for _ in 0..files.blocks() / 3 {
            files.overwrite(&volume, &mut rng, false);
        }
        volume.sync().expect("a sync");
        // Before there is any background.
        let before = stat(&volume, "free_sections");
        volume.close().expect("an unmount");
        let mut with = options(Mode::Lfs);
        with.parts.f2fs.background_cleaning = BackgroundCleaning::Sync;
        with.parts.f2fs.cleaning_interval = Duration::from_millis(50);
        let volume = open(&device, &with);
        let start = std::time::Instant::now();
        while stat(&volume, "cleaned_background") < 3 && start.elapsed() < LIMIT / 2 {
            std::thread::sleep(Duration::from_millis(20));
        }
        let moved = stat(&volume, "moved_data_blocks") + stat(&volume, "moved_node_blocks");
        assert!(moved > 0, "nothing was moved");
        assert!(stat(&volume, "cleaned_background") > 0);
        let engine = volume.vfs().engine();
        let f2fs = engine.as_any().downcast_ref::<F2fs>().expect("f2fs");
        f2fs.fs().cleaning.clean_background();
        volume.sync().expect("a sync");
        assert!(stat(&volume, "free_sections") > before);
        files.verify(&volume);
        volume.close().expect("an unmount");
        check(&device);
    });
}

/// A thread that writes back cannot wait for cleaning, so little may be dirty on a full volume; and the background cleans
/// before writers must.
#[test]
fn a_busy_volume_is_cleaned_ahead_and_little_is_dirty() {
    if !have_tools() {
        return;
    }
    guarded("ahead", LIMIT, || {
        let device = fresh(128, &[]);
        let mut with = options(Mode::Lfs);
        with.parts.f2fs.background_cleaning = BackgroundCleaning::On;
        let volume = open(&device, &with);
        let mut rng = SplitMix64::new(common::seed(4750));
        let mut files = Files::fill(&volume, 85, &mut rng);
        let start = std::time::Instant::now();
        let mut dirty = 0;
        let mut writes = 0;
        while (writes < 20_000 || stat(&volume, "cleaned_ahead") < 5) && start.elapsed() < LIMIT / 2
        {
            for _ in 0..100 {
                files.overwrite(&volume, &mut rng, false);
            }
            writes += 100;
            dirty = dirty.max(stat(&volume, "dirty_bytes"));
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(stat(&volume, "cleaned_ahead") >= 5, "{writes} writes");
        assert!(dirty <= 4 << 20, "{dirty} bytes were dirty");
        assert_eq!(stat(&volume, "cleaned_background"), 0, "it was never idle");
        files.verify(&volume);
        assert_eq!(stat(&volume, "lfs_in_place_blocks"), 0);
        assert_eq!(stat(&volume, "errors_found"), 0);
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

/// Summaries that name wrong owners: an error that is counted, and nothing moved by them.
#[test]
fn summaries_that_lie_are_damage() {
    if !have_tools() {
        return;
    }
    guarded("hostile summaries", LIMIT, || {
        for round in 0..4u64 {
            let device = fresh(128, &[]);
            let mut rng = SplitMix64::new(common::seed(4720 + round));
            let volume = open(&device, &options(Mode::Lfs));
            let mut files = Files::fill(&volume, 70, &mut rng);
            for _ in 0..files.blocks() / 4 {
                files.overwrite(&volume, &mut rng, false);
            }
            volume.close().expect("an unmount");
            lie(&device, round, &mut rng);
            let volume = open(&device, &options(Mode::Lfs));
            let engine = volume.vfs().engine();
            let f2fs = engine.as_any().downcast_ref::<F2fs>().expect("f2fs");
            for _ in 0..40 {
                f2fs.fs().cleaning.clean_sections(1);
            }
            assert!(stat(&volume, "cleaning_failures") > 0);
            assert!(stat(&volume, "errors_found") > 0);
            let error = f2fs.fs().volume.latest_error().expect("damage").to_string();
            assert!(error.contains("summary"), "{error}");
            files.verify(&volume);
            // It continues, as far as there is room.
            for _ in 0..200 {
                files.overwrite(&volume, &mut rng, false);
            }
            files.verify(&volume);
            volume.close().expect("an unmount");
            let volume = open(&device, &options(Mode::Adaptive));
            files.verify(&volume);
            volume.close().expect("an unmount");
        }
    });
}

/// Makes some entries of every summary block in the SSA name another owner.
fn lie(device: &Arc<MemoryDevice>, how: u64, rng: &mut SplitMix64) {
    use blockwright_ondisk::f2fs::summary::{SummaryBlock, SummaryKind};
    use blockwright_ondisk::f2fs::{Nid, SegNo, Superblock};
    let mut block = vec![0; BLOCK];
    device.read_at(DevOffset(0), &mut block).expect("a block");
    let sb = Superblock::parse(&block, None).expect("a superblock");
    for seg in 0..sb.geo.main_segments {
        let at = sb.geo.ssa_block(SegNo(seg)).expect("in range");
        let at = DevOffset(u64::from(at.0) << 12);
        device.read_at(at, &mut block).expect("a block");
        let Ok(mut summary) = SummaryBlock::parse(&block) else {
            continue;
        };
        let nids: Vec<Nid> = summary.entries.iter().map(|e| e.nid).collect();
        for _ in 0..64 {
            let n = below(rng, 512) as usize;
            let entry = &mut summary.entries[n];
            match how {
                0 => entry.nid = nids[below(rng, 512) as usize],
                1 => entry.nid = Nid(rng.next_u64() as u32),
                2 => entry.offset = rng.next_u64() as u16,
                _ => {
                    // Inodes, whose inline data would be taken for addresses.
                    entry.nid = Nid(4 + below(rng, 60) as u32);
                    entry.offset = below(rng, 900) as u16;
                }
            }
        }
        if how == 1 && seg % 7 == 0 {
            summary.kind = match summary.kind {
                SummaryKind::Data => SummaryKind::Node,
                SummaryKind::Node => SummaryKind::Data,
            };
        }
        device
            .write_at(at, &summary.encode(), Flags::empty())
            .expect("memory takes it");
    }
}

#[test]
fn trimming_discards_what_is_free_and_nothing_else() {
    if !have_tools() {
        return;
    }
    guarded("trim", LIMIT, || {
        let device = fresh(128, &[]);
        let volume = open(&device, &options(Mode::Adaptive));
        let mut rng = SplitMix64::new(common::seed(4730));
        let mut files = Files::fill(&volume, 60, &mut rng);
        let free = stat(&volume, "free_sections");
        let all = 0..device.geometry().bytes;
        let engine = Arc::clone(volume.vfs().engine());
        let trimmed = engine.trim(all.clone(), 0).expect("it can be trimmed");
        // Two sections stay with who writes meanwhile; holes of segments in use count, too.
        let unused = volume.statfs().expect("statfs").blocks << 12;
        assert!(trimmed >> 21 >= free - 2 && trimmed < unused, "{trimmed}");
        assert_eq!(stat(&volume, "free_sections"), free);
        assert_eq!(engine.trim(0..1 << 20, 0).expect("nothing there"), 0);
        // Beside writers.
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    for min in [1 << 20, 4096] {
                        engine.trim(all.clone(), min).expect("it can be trimmed");
                    }
                }
            });
            for n in 0..1500 {
                files.overwrite(&volume, &mut rng, n % 2 == 0);
                let path = format!("/d0/more{}", n % 20);
                volume.write(path, vec![7; 50_000]).expect("there is room");
                if n % 100 == 99 {
                    volume.sync().expect("a sync");
                }
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        drop(engine);
        files.verify(&volume);
        volume.close().expect("an unmount");
        check(&device);
    });
}

/// A volume of sections of two segments that we filled and cleaned, in Linux's hands and back again.
#[test]
fn linux_reads_writes_and_cleans_what_we_cleaned() {
    if !have_tools() || !uml::available() {
        return;
    }
    guarded("linux", LIMIT, || {
        let dir = tempfile::tempdir().expect("a directory");
        let image = dir.path().join("disk.img");
        let (device, mut files, _) = churn(192, &["-s", "2"], &options(Mode::Lfs), 80, 0.8, 4740);
        store(&device, &image);
        let out = dir.path().join("out");
        files.put_into(&out.join("want"));
        // F2FS_IOC_GARBAGE_COLLECT is _IOW(0xf5, 6, __u32); its argument asks for synchronous cleaning.
        let script = r#"
            attach a mode=lfs
            for d in d0 d1 d2; do diff -r $OUT/want/$d /mnt/a/$d; done
            mkdir /mnt/a/new
            for n in $(seq 1 60); do dd if=/dev/zero bs=4k count=$n 2>/dev/null | tr '\0' 'x' > /mnt/a/new/$n; done
            for n in $(seq 1 2 60); do rm /mnt/a/new/$n; done
            sync
            perl -e 'open(F, "<", "/mnt/a/new/2") or die $!; for (1..8) { my $sync = pack("L", 1); ioctl(F, 0x4004f506, $sync) }'
            sync
            for d in d0 d1 d2; do diff -r $OUT/want/$d /mnt/a/$d; done
            umount /mnt/a"#;
        uml::run(&out, &[&image], script, Duration::from_secs(150));
        common::assert_fsck_f2fs_clean(&image);
        let device = load(&image);
        let volume = open(&device, &options(Mode::Lfs));
        let engine = Arc::clone(volume.vfs().engine());
        let f2fs = engine.as_any().downcast_ref::<F2fs>().expect("f2fs");
        let check_new = |volume: &Volume, files: &Files| {
            files.verify(volume);
            for n in 1..=60 {
                let found = volume.read(format!("/new/{n}"));
                if n % 2 == 1 {
                    assert!(found.is_err());
                } else {
                    assert_eq!(found.expect("Linux wrote it"), vec![b'x'; n * BLOCK]);
                }
            }
        };
        check_new(&volume, &files);
        let mut rng = SplitMix64::new(4741);
        for n in 0..files.blocks() / 4 {
            files.overwrite(&volume, &mut rng, n % 2 == 0);
        }
        volume.sync().expect("a sync");
        assert!(f2fs.fs().cleaning.clean_sections(30) > 0);
        assert_eq!(stat(&volume, "errors_found"), 0);
        check_new(&volume, &files);
        volume.vfs().drop_caches();
        volume.sync().expect("a sync");
        check_new(&volume, &files);
        drop(engine);
        volume.close().expect("an unmount");
        check(&device);
        store(&device, &image);
        let script = r"
            attach a
            for d in d0 d1 d2; do diff -r $OUT/want/$d /mnt/a/$d; done
            test $(cat /mnt/a/new/* | tr -d x | wc -c) = 0
            umount /mnt/a";
        let out = dir.path().join("again");
        std::fs::create_dir(&out).expect("a directory");
        files.put_into(&out.join("want"));
        uml::run(&out, &[&image], script, Duration::from_secs(100));
        common::assert_fsck_f2fs_clean(&image);
    });
}

/// Writes a file's first version, some blocks at a time: files are large there.
fn lay_out(volume: &Volume, t: usize, blocks: usize) {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .open(volume, format!("/file{t}"))
        .expect("a new file");
    let all: Vec<usize> = (0..blocks).collect();
    for some in all.chunks(256) {
        let bytes: Vec<u8> = some.iter().flat_map(|b| pattern(t, *b, 0)).collect();
        file.write_all_at(&bytes, (some[0] * BLOCK) as u64)
            .expect("there is room");
    }
    file.sync_all().expect("a sync");
}

/// What is in a file is what was written last, some blocks at a time.
fn verify_versions(volume: &Volume, t: usize, versions: &[u32]) {
    let file = OpenOptions::new()
        .read(true)
        .open(volume, format!("/file{t}"))
        .expect("the file is there");
    let mut bytes = vec![0; 256 * BLOCK];
    for (n, some) in versions.chunks(256).enumerate() {
        let bytes = &mut bytes[..some.len() * BLOCK];
        let read = file.read_at(bytes, (n * 256 * BLOCK) as u64);
        assert_eq!(read.expect("contents"), bytes.len());
        for (i, (found, version)) in bytes.chunks(BLOCK).zip(some).enumerate() {
            let b = n * 256 + i;
            assert!(found == pattern(t, b, *version), "thread {t}, block {b}");
        }
    }
}

/// Random 4K overwrites of a volume that is 90 % full, in `mode=lfs`, where each needs a new block. The longest that one
/// write took is printed, not judged: the machine may be loaded. `CLEANING_SECONDS=1800 CLEANING_MIB=2048` for a long run,
/// `CLEANING_PERCENT=95` for a fuller volume, `CLEANING_BACKGROUND=1` with cleaning in the background, too.
#[test]
fn random_overwrites_at_90_percent_for_a_while() {
    if !have_tools() {
        return;
    }
    let given = |name: &str| std::env::var(name).ok().and_then(|s| s.parse::<u64>().ok());
    let seconds = given("CLEANING_SECONDS").unwrap_or(3);
    let mib = given("CLEANING_MIB").unwrap_or(512);
    let percent = given("CLEANING_PERCENT").unwrap_or(90);
    let limit = LIMIT + Duration::from_secs(seconds);
    guarded("for a while", limit, move || {
        let device = fresh(mib, &[]);
        let mut with = options(Mode::Lfs);
        if given("CLEANING_BACKGROUND").is_some() {
            with.parts.f2fs.background_cleaning = BackgroundCleaning::On;
        }
        let volume = Arc::new(open(&device, &with));
        const THREADS: usize = 4;
        let all = volume.statfs().expect("statfs").blocks_free;
        let blocks = (all * percent / 100) as usize / THREADS;
        let end = Duration::from_secs(seconds);
        let heart = Arc::new(Heart::default());
        let beating = Heart::start(&heart);
        let threads: Vec<_> = (0..THREADS)
            .map(|t| {
                let volume = Arc::clone(&volume);
                let heart = Arc::clone(&heart);
                std::thread::spawn(move || {
                    lay_out(&volume, t, blocks);
                    let file = OpenOptions::new()
                        .write(true)
                        .direct(t % 2 == 0)
                        .open(&volume, format!("/file{t}"))
                        .expect("the file is there");
                    let mut rng = SplitMix64::new(600 + t as u64);
                    let mut versions = vec![0u32; blocks];
                    let mut took = Took::default();
                    let start = std::time::Instant::now();
                    while start.elapsed() < end {
                        let b = below(&mut rng, blocks as u64) as usize;
                        versions[b] += 1;
                        let bytes = pattern(t, b, versions[b]);
                        let began = std::time::Instant::now();
                        file.write_all_at(&bytes, (b * BLOCK) as u64)
                            .expect("an overwrite needs no room");
                        let time = began.elapsed();
                        took.note(time, || heart.missed(began, time));
                    }
                    (versions, took)
                })
            })
            .collect();
        let done: Vec<_> = threads
            .into_iter()
            .map(|t| t.join().expect("a thread"))
            .collect();
        let gaps = heart.stop(beating);
        volume.sync().expect("a sync");
        let writes: u64 = done.iter().flat_map(|d| &d.0).map(|v| u64::from(*v)).sum();
        for (t, (_, took)) in done.iter().enumerate() {
            let how = if t % 2 == 0 { "direct" } else { "buffered" };
            println!("{how}: {took:?}");
        }
        println!(
            "{writes} writes, {} % written, {} waits for room of {} ms, the longest {} ms, {} + {} sections, {} moved, {} metadata, {} checkpoints",
            stat(&volume, "write_amplification_percent"),
            stat(&volume, "cleaning_waits"),
            stat(&volume, "cleaning_wait_ns") / 1_000_000,
            stat(&volume, "cleaning_wait_peak_ms"),
            stat(&volume, "cleaned_foreground"),
            stat(&volume, "cleaned_background"),
            stat(&volume, "moved_data_blocks"),
            stat(&volume, "written_metadata_blocks"),
            stat(&volume, "checkpoints"),
        );
        println!("the process did not run: {gaps:?} (times, together, longest)");
        let longest = volume.vfs().stats().numbers();
        for (name, ms) in longest
            .iter()
            .filter(|(name, _)| name.contains("_longest_"))
        {
            println!("{name}: {ms}");
        }
        {
            let engine = volume.vfs().engine();
            let f2fs = engine.as_any().downcast_ref::<F2fs>().expect("f2fs");
            for slow in f2fs.fs().cleaning.slow_waits_for_room() {
                let missed = heart.missed(slow.began, slow.took).as_millis();
                println!("waited for room, without running for {missed} ms: {slow}");
            }
        }
        for (t, (versions, _)) in done.iter().enumerate() {
            verify_versions(&volume, t, versions);
        }
        assert_eq!(stat(&volume, "lfs_in_place_blocks"), 0);
        assert_eq!(stat(&volume, "cleaning_failures"), 0);
        assert_eq!(stat(&volume, "errors_found"), 0);
        let volume = Arc::into_inner(volume).expect("the only one");
        volume.close().expect("an unmount");
        check(&device);
    });
}
