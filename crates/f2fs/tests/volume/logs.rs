//! `active_logs`: what is written where with two, four and six logs, and volumes that go from one to another, Linux's included.

use crate::common;
use crate::common::f2fs::{assert_clean, formatted};
use crate::uml;
use blockwright::{OpenOptions, Volume, VolumeOptions};
use blockwright_check::{Mode as CheckMode, f2fs as check};
use blockwright_device::{HostDevice, MemoryDevice, OpenMode, SharedDevice};
use blockwright_f2fs::options::ActiveLogs;
use blockwright_f2fs::{F2fs, Mode};
use blockwright_ondisk::f2fs::Log;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const ALL: [ActiveLogs; 3] = [ActiveLogs::Two, ActiveLogs::Four, ActiveLogs::Six];

fn options(logs: ActiveLogs, mode: Mode) -> VolumeOptions {
    let mut options = VolumeOptions::default();
    options.parts.f2fs.active_logs = logs;
    options.parts.f2fs.mode = mode;
    options
}

fn open(memory: &Arc<MemoryDevice>, options: &VolumeOptions) -> Volume {
    options
        .open_device(Arc::clone(memory) as SharedDevice)
        .expect("opens")
}

/// Where each log continues, as the last checkpoint has it.
fn heads(memory: &Arc<MemoryDevice>) -> Vec<(u32, u16)> {
    let volume = open(memory, &VolumeOptions::new().read_only(true));
    let engine = volume.vfs().engine().as_any();
    let fs = engine.downcast_ref::<F2fs>().expect("f2fs").fs();
    let log = |log| fs.volume.checkpoint.raw.log(log);
    let heads = Log::ALL.map(|l| (log(l).segment.0, log(l).offset)).to_vec();
    volume.close().expect("closed");
    heads
}

fn assert_sound(memory: &MemoryDevice) {
    assert_clean(memory);
    let device: SharedDevice = Arc::new(memory.snapshot());
    assert_checks(device);
}

fn assert_checks(device: SharedDevice) {
    let options = check::CheckOptions {
        mode: CheckMode::ReadOnly,
        ..check::CheckOptions::default()
    };
    let report = check::check(device, &options).expect("checked");
    assert!(report.issues.is_empty(), "{:#?}", report.issues);
}

fn count(volume: &Volume, name: &str) -> u64 {
    let stats = volume.vfs().stats();
    stats.get(name).unwrap_or_else(|| panic!("no {name}"))
}

/// Something for each of the six logs.
fn everything(volume: &Volume) {
    for n in 0..300 {
        volume.create_dir(format!("/d{n}")).expect("made");
        for k in 0..4 {
            let name = format!("/d{n}/a file whose name takes some room, number {k}");
            volume.write(name, [n as u8; 5000]).expect("written");
        }
    }
    // Cold by its extension, and one that has indirect nodes.
    volume.write("/film.mp4", vec![9; 3 << 20]).expect("cold");
    let large = OpenOptions::new()
        .write(true)
        .create(true)
        .open(volume, "/large")
        .expect("made");
    for at in 0..8 {
        large
            .write_at(&[7; 4096], (16 + at) << 20)
            .expect("written");
    }
    volume.sync().expect("durable");
    large.write_at(&[8; 4096], 0).expect("written");
    large.sync_all().expect("durable");
}

#[test]
fn only_active_logs_move() {
    for logs in ALL {
        let memory = formatted(256 << 20);
        let before = heads(&memory);
        let volume = open(&memory, &options(logs, Mode::default()));
        let shown = volume.vfs().stats();
        let shown = shown.metrics().iter().find(|m| m.name == "mount_options");
        let shown = format!("{:?}", shown.expect("options").value);
        assert!(shown.contains(&format!("active_logs={}", logs.count())));
        everything(&volume);
        volume.close().expect("closed");
        let after = heads(&memory);
        let moved: Vec<Log> = (Log::ALL.into_iter().enumerate())
            .filter(|(n, _)| before[*n] != after[*n])
            .map(|(_, log)| log)
            .collect();
        let expected = match logs {
            ActiveLogs::Two => vec![Log::HotData, Log::HotNode],
            ActiveLogs::Four => vec![Log::HotData, Log::ColdData, Log::WarmNode, Log::ColdNode],
            ActiveLogs::Six => Log::ALL.to_vec(),
        };
        assert_eq!(moved, expected, "{logs:?}");
        assert_sound(&memory);
    }
}

/// Contents that can be told from the number.
fn bytes(n: u32, len: usize) -> Vec<u8> {
    (0..len as u32)
        .map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8 ^ n as u8)
        .collect()
}

/// Each mount overwrites and replaces what those before wrote with other numbers of logs. (Cleaning and refilling with
/// fewer logs: the crash explorer's `fewer_logs`.)
#[test]
fn a_volume_goes_from_one_number_to_another() {
    use ActiveLogs::{Four, Six, Two};
    const FILES: u32 = 120;
    let memory = formatted(128 << 20);
    let mut contents = vec![Vec::new(); FILES as usize];
    for (round, logs) in (0u32..).zip([Six, Two, Four, Six, Four, Two, Six]) {
        let mode = [Mode::Lfs, Mode::Adaptive][round as usize % 2];
        let volume = open(&memory, &options(logs, mode));
        for (n, content) in contents.iter().enumerate().filter(|_| round > 0) {
            let read = volume.read(format!("/{n}")).expect("read");
            assert!(read == *content, "{n} before round {round}");
        }
        let again = |k: u32| (k * 7 + round) % FILES;
        for k in 0..FILES {
            let n = again(k);
            let extension = if n % 9 == 0 { ".mp4" } else { "" };
            let new = bytes(n + round * 1000 + k, 80_000 + 9973 * n as usize % 60_000);
            let (path, aside) = (format!("/{n}"), format!("/new{extension}"));
            volume.write(&aside, &new).expect("written");
            volume.rename(&aside, &path).expect("renamed");
            if k % 10 == 0 {
                let file = OpenOptions::new().read(true).open(&volume, &path);
                file.expect("opens").sync_all().expect("durable");
            }
            contents[n as usize] = new;
        }
        // Single blocks here and there: garbage in every segment.
        for k in 0..6000u32 {
            let n = bytes(k, 3).iter().fold(k, |n, b| n * 31 + u32::from(*b)) % FILES;
            let content = &mut contents[n as usize];
            let at = (k as usize * 7919 % (content.len() / 4096)) * 4096;
            content[at..at + 4096].copy_from_slice(&bytes(k + round, 4096));
            let file = OpenOptions::new()
                .write(true)
                .open(&volume, format!("/{n}"));
            let file = file.expect("opens");
            file.write_at(&content[at..at + 4096], at as u64)
                .expect("written");
            if k % 500 == 0 {
                volume.sync().expect("durable");
            }
        }
        volume.close().expect("closed");
        assert_sound(&memory);
    }
}

#[test]
fn two_logs_have_none_for_fsync() {
    for logs in ALL {
        let memory = formatted(128 << 20);
        let volume = open(&memory, &options(logs, Mode::default()));
        volume.create_dir("/d").expect("made");
        volume.sync().expect("durable");
        for n in 0..20u32 {
            let path = format!("/d/{n}");
            volume.write(&path, bytes(n, 30_000)).expect("written");
            let file = OpenOptions::new().read(true).open(&volume, &path);
            file.expect("opens").sync_all().expect("durable");
        }
        let chained = count(&volume, "fsyncs_chained");
        let own = count(&volume, "fsync_checkpoints_logs");
        match logs {
            ActiveLogs::Two => assert_eq!((chained, own), (0, 20)),
            _ => assert_eq!((chained, own), (20, 0)),
        }
        // As a power failure would leave it, mounted with each number in turn.
        let left = memory.snapshot();
        volume.close().expect("closed");
        for next in ALL {
            let memory = Arc::new(left.snapshot());
            let volume = open(&memory, &options(next, Mode::default()));
            for n in 0..20u32 {
                let read = volume.read(format!("/d/{n}")).expect("there");
                assert!(read == bytes(n, 30_000), "{logs:?} then {next:?}: {n}");
            }
            everything(&volume);
            volume.close().expect("closed");
            assert_sound(&memory);
        }
    }
}

/// Linux continues where we stopped with other numbers of logs, and we where it did, with neither having unmounted.
#[test]
fn linux_goes_on_and_so_do_we() {
    if !common::have_tool("fsck.f2fs") || !uml::available() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("out");
    std::fs::create_dir(&out).expect("made");
    let mut images = Vec::new();
    for (name, logs) in ["a", "b", "c"].into_iter().zip(ALL) {
        let memory = formatted(128 << 20);
        let volume = open(&memory, &options(logs, Mode::default()));
        everything(&volume);
        volume.write("/fsynced", bytes(1, 50_000)).expect("written");
        let file = OpenOptions::new().read(true).open(&volume, "/fsynced");
        file.expect("opens").sync_all().expect("durable");
        let image = dir.path().join(name);
        memory.save(&image).expect("saved");
        volume.close().expect("closed");
        images.push(image);
    }
    let script = "
        for x in a:4 b:2 c:2; do
            logs=${x#*:}; x=${x%:*}
            attach $x active_logs=$logs
            grep -q active_logs=$logs /proc/mounts
            sha256sum < /mnt/$x/fsynced
            cp -r /usr/lib/uml/modules/*/kernel/fs /mnt/$x/linux
            rm -rf /mnt/$x/d1*
            sync
            for n in 1 2 3 4 5; do
                dd if=/mnt/$x/fsynced of=/mnt/$x/linux$n bs=4k conv=fsync 2> $OUT/dd
            done
        done";
    let paths: Vec<&Path> = images.iter().map(|p| p.as_path()).collect();
    let log = uml::run(&out, &paths, script, Duration::from_secs(120));
    let sum = {
        use sha2::{Digest, Sha256};
        let sum = Sha256::digest(bytes(1, 50_000));
        sum.iter().map(|b| format!("{b:02x}")).collect::<String>()
    };
    assert_eq!(log.matches(&sum).count(), 3, "{log}");
    for (image, logs) in images
        .iter()
        .zip([ActiveLogs::Six, ActiveLogs::Four, ActiveLogs::Two])
    {
        let volume = (options(logs, Mode::default())).open(image).expect("opens");
        for n in 1..=5 {
            let read = volume.read(format!("/linux{n}")).expect("there");
            assert!(read == bytes(1, 50_000), "{n}");
        }
        assert!(volume.symlink_metadata("/d1").is_err());
        assert!(volume.symlink_metadata("/linux").is_ok());
        volume.write("/ours", bytes(2, 100_000)).expect("written");
        volume.close().expect("closed");
        common::assert_fsck_f2fs_clean(image);
        assert_checks(HostDevice::open(image, OpenMode::default()).expect("opens"));
    }
}
