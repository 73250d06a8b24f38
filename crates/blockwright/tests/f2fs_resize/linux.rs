//! Linux works on volumes of another size, and on one whose change was interrupted.

use super::{MIB, clean, contents, fill, made_by_us, shared};
use blockwright::device::{BlockDevice, DevOffset, MemoryDevice, SharedDevice};
use blockwright::reshape::{self, ResizeOptions};
use blockwright_device::{CrashPolicy, RecordingDevice};
use blockwright_test_support::uml;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Where the areas begin, in blocks.
fn start(device: &MemoryDevice) -> u32 {
    let mut head = vec![0; 4096];
    device.read_at(DevOffset(0), &mut head).expect("read");
    let at = 1024 + 72;
    u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
}

/// The volume as a power failure leaves it while its metadata lies in between.
fn interrupted(base: &Arc<MemoryDevice>, bytes: u64) -> Arc<MemoryDevice> {
    let recording = Arc::new(RecordingDevice::new(base));
    let device: SharedDevice = recording.clone();
    reshape::resize(&device, &ResizeOptions::to_bytes(bytes)).expect("resized");
    let home = start(base);
    let images = (0..recording.log_len()).map(|at| recording.image_at(at, CrashPolicy::AllKept));
    let mut between = images.filter(|image| start(image) != home);
    Arc::new(between.next().expect("a layout in between"))
}

#[test]
fn linux_works_on_what_was_resized() {
    if !uml::available() {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let small = made_by_us(80 * MIB, 1500 * MIB);
    fill(&small, 200, 10);
    let between = interrupted(&small, 1500 * MIB);
    reshape::resize(&shared(&small), &ResizeOptions::to_bytes(1500 * MIB)).expect("larger");
    let large = made_by_us(1500 * MIB, 1500 * MIB);
    fill(&large, 200, 10);
    reshape::resize(&shared(&large), &ResizeOptions::to_bytes(120 * MIB)).expect("smaller");
    let devices = [small, between, large];
    let mut before = Vec::new();
    let mut paths: Vec<PathBuf> = Vec::new();
    for (n, device) in devices.iter().enumerate() {
        before.push(contents(device));
        let path = dir.path().join(format!("{n}.img"));
        device.save(&path).expect("saved");
        paths.push(path);
    }
    let out = dir.path().join("out");
    std::fs::create_dir(&out).expect("made");
    let images: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
    let script = r"
for d in a b c; do
    attach $d
    mkdir /mnt/$d/linux
    for n in 1 2 3 4 5 6 7 8; do
        dd if=/dev/urandom of=/mnt/$d/linux/$n bs=1M count=2 2>/dev/null
        sync
        if [ $n -gt 3 ]; then rm /mnt/$d/linux/$((n - 3)); fi
    done
    umount /mnt/$d
    attach $d
    cat /mnt/$d/linux/8 | wc -c
    umount /mnt/$d
done";
    let log = uml::run(&out, &images, script, Duration::from_secs(200));
    assert_eq!(log.matches("2097152").count(), 3, "{log}");
    let dmesg = std::fs::read_to_string(out.join("dmesg")).expect("written");
    for line in dmesg.lines().filter(|line| line.contains("F2FS-fs")) {
        let fine = ["Mounted with checkpoint version", "Found nat_bits"];
        assert!(fine.iter().any(|f| line.contains(f)), "{line}");
    }
    for (path, before) in paths.iter().zip(before) {
        let device = Arc::new(MemoryDevice::load(path).expect("loaded"));
        clean(&device, "after Linux");
        let after = contents(&device);
        for (name, item) in before.iter().filter(|(_, item)| item.size > 0) {
            assert_eq!(after.get(name), Some(item), "{}", name.display());
        }
    }
}
