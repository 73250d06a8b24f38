//! qcow2 images whose data is in an external data file: beside qemu's tools in both directions, crashes, refusals, hostile files; and qemu-nbd.

mod common;

use blockwright_device::{
    BlockDevice, CrashPolicy, DevOffset, Flags, Geometry, MemoryDevice, OpenMode, RecordingDevice,
    Request, SharedDevice, conformance,
};
use blockwright_disk::qcow2::{CreateOptions, DataFile, Qcow2, create};
use blockwright_disk::{Disk, Error};
use common::{Rng, Scratch, change, ok, qemu_reads, read_all, run, same};
use proptest::prelude::*;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// The disk in an image, to be written: into whatever file the image names.
fn open(path: &Path) -> SharedDevice {
    Disk::open_with(path, OpenMode::default(), true)
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()))
        .device()
        .clone()
}

fn checked(path: &Path, what: &str) {
    let out = run("qemu-img", &["check", path.to_str().unwrap()]);
    let text =
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(
        out.status.success() && text.contains("No errors"),
        "{what}: {text}"
    );
}

/// What `qemu-img check` says of an image whose data file's name is relative. qemu takes it from the working directory.
fn check_in(scratch: &Scratch, name: &str) -> (Option<i32>, String) {
    let path = scratch.path(name);
    let out = Command::new("qemu-img")
        .args(["check", name])
        .current_dir(path.parent().unwrap())
        .output()
        .unwrap();
    let text =
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    (out.status.code(), text)
}

fn options(bytes: u64, cluster_bits: u32, name: &str, raw: bool) -> CreateOptions {
    CreateOptions {
        bytes,
        cluster_bits,
        backing: None,
        data_file: Some(DataFile {
            name: name.as_bytes().to_vec(),
            raw,
        }),
    }
}

/// An empty disk in memory: its mapping, and its data.
fn in_memory(bytes: u64, cluster_bits: u32, raw: bool) -> (Arc<MemoryDevice>, Arc<MemoryDevice>) {
    let file = Arc::new(MemoryDevice::new(bytes + 16 * MIB));
    let shared: SharedDevice = file.clone();
    create(&shared, &options(bytes, cluster_bits, "data.raw", raw)).unwrap();
    (file, Arc::new(MemoryDevice::new(bytes)))
}

#[test]
fn conforms() {
    for (bits, raw) in [(9, false), (16, false), (21, false), (12, true), (16, true)] {
        let (file, data) = in_memory(5 * MIB + 512, bits, raw);
        let device: SharedDevice =
            Arc::new(Qcow2::open_with_data(file.clone(), None, Some(data.clone())).unwrap());
        conformance::run(&device, u64::from(bits));
        let read = read_all(&device);
        if raw {
            same("the data file alone", &data.to_vec(), &read);
        }
        drop(device);
        if !blockwright_oracles::have(&["qemu-img"]) {
            continue;
        }
        let scratch = Scratch::new();
        data.save(scratch.path("data.raw")).unwrap();
        file.save(scratch.path("d.qcow2")).unwrap();
        let (code, text) = check_in(&scratch, "d.qcow2");
        let what = format!("clusters of 2^{bits}, raw {raw}: {code:?} {text}");
        assert!(code == Some(0) && text.contains("No errors"), "{what}");
    }
}

/// Images that qemu makes, with the options of `qemu-img create`.
#[test]
fn images_of_qemu_are_changed_and_qemu_finds_no_fault() {
    if !blockwright_oracles::have(&["qemu-img", "qemu-io"]) {
        return;
    }
    let kinds = [
        "",
        ",data_file_raw=on",
        ",data_file_raw=on,cluster_size=4096",
        ",lazy_refcounts=on",
        ",cluster_size=512",
        ",cluster_size=2M",
        ",preallocation=metadata",
    ];
    for (seed, more) in (1..).zip(kinds) {
        let is_raw = more.contains("raw=on");
        let what = if more.is_empty() { "plain" } else { more };
        let scratch = Scratch::new();
        let path = scratch.path("d.qcow2");
        let name = path.to_str().unwrap();
        let data = scratch.text("d.raw");
        let made = format!("data_file={data}{more}");
        // No multiple of a cluster.
        let bytes = 20 * MIB + 1536;
        let size = bytes.to_string();
        ok(
            "qemu-img",
            &["create", "-q", "-f", "qcow2", "-o", &made, name, &size],
        );
        let first = [
            "-c",
            "write -P 0x5A 3M 300k",
            "-c",
            "write -P 0x11 0 1000",
            "-c",
            "write -z 3100k 64k",
            "-c",
            "write -P 0x77 9000k 1000",
            name,
        ];
        ok("qemu-io", &first);
        let mut model = qemu_reads(&scratch, &path);
        // qemu makes raw ones of whole clusters.
        let longest = std::fs::metadata(&data).unwrap().len().max(bytes) as usize;
        let mut rng = Rng(seed);
        for round in 0..3 {
            let device = open(&path);
            same(what, &read_all(&device), &model);
            change(&device, &mut model, &mut rng, 60);
            same(what, &read_all(&device), &model);
            drop(device);
            checked(&path, &format!("{what}, round {round}"));
            let read = qemu_reads(&scratch, &path);
            same(&format!("{what}: as qemu reads it"), &read, &model);
            let mut data = std::fs::read(&data).unwrap();
            assert!(data.len() <= longest, "{what}: {} bytes", data.len());
            if is_raw {
                assert!(data.split_off(model.len()).iter().all(|b| *b == 0));
                same(&format!("{what}: the data file alone"), &data, &model);
            }
        }
        // And what qemu writes then is read.
        ok(
            "qemu-io",
            &[
                "-c",
                "write -P 0x33 5M 2M",
                "-c",
                "discard 8M 2M",
                "-c",
                "write -z 0 100k",
                name,
            ],
        );
        let model = qemu_reads(&scratch, &path);
        same(what, &read_all(&open(&path)), &model);
        let read_only = Disk::open(&path, OpenMode::read_only()).unwrap();
        same(what, &read_all(read_only.device()), &model);
    }
}

#[test]
fn a_backing_file_shows_where_the_data_file_has_nothing() {
    if !blockwright_oracles::have(&["qemu-img", "qemu-io"]) {
        return;
    }
    let scratch = Scratch::new();
    let [base, top, data] = ["base.raw", "top.qcow2", "top.raw"].map(|name| scratch.text(name));
    let content: Vec<u8> = (0..6 * MIB).map(|n| (n / 512) as u8 | 1).collect();
    std::fs::write(&base, &content).unwrap();
    let made = format!("data_file={data}");
    let create = [
        "create", "-q", "-f", "qcow2", "-o", &made, "-b", &base, "-F", "raw", &top, "8M",
    ];
    ok("qemu-img", &create);
    ok("qemu-io", &["-c", "write -P 0x42 1M 100k", &top]);
    let mut model = qemu_reads(&scratch, Path::new(&top));
    let mut rng = Rng(5);
    for _ in 0..3 {
        let device = open(Path::new(&top));
        same("over a file", &read_all(&device), &model);
        change(&device, &mut model, &mut rng, 60);
        drop(device);
        checked(Path::new(&top), "over a file");
        let read = qemu_reads(&scratch, Path::new(&top));
        same("over a file, as qemu reads it", &read, &model);
    }
    assert_eq!(std::fs::read(&base).unwrap(), content);
    // As a backing file itself: its data is only read.
    let over = scratch.text("over.qcow2");
    let create = [
        "create", "-q", "-f", "qcow2", "-b", &top, "-F", "qcow2", &over,
    ];
    ok("qemu-img", &create);
    let before = std::fs::read(&data).unwrap();
    let device = common::open(Path::new(&over));
    same("below", &read_all(&device), &model);
    change(&device, &mut model, &mut rng, 60);
    drop(device);
    checked(Path::new(&over), "above");
    let read = qemu_reads(&scratch, Path::new(&over));
    same("above, as qemu reads it", &read, &model);
    assert!(std::fs::read(&data).unwrap() == before);
}

/// Zeroes and discards give the data file's space back.
#[test]
fn dropped_clusters_are_holes_of_the_data_file() {
    use std::os::unix::fs::MetadataExt;
    let scratch = Scratch::new();
    for raw in [false, true] {
        let (path, data) = (scratch.path("d.qcow2"), scratch.path("data.raw"));
        let (file, empty) = in_memory(8 * MIB, 16, raw);
        file.save(&path).unwrap();
        empty.save(&data).unwrap();
        let device = open(&path);
        let pattern = vec![7; 8 << 20];
        device
            .write_at(DevOffset(0), &pattern, Flags::empty())
            .unwrap();
        device.flush().unwrap();
        let full = data.metadata().unwrap().blocks() * 512;
        assert!(full >= 8 * MIB, "{full}");
        device.write_zeroes(DevOffset(0), 4 * MIB).unwrap();
        device.discard(DevOffset(4 * MIB), 2 * MIB).unwrap();
        device.flush().unwrap();
        assert_eq!(device.next_data(DevOffset(0)), DevOffset(6 * MIB));
        drop(device);
        let left = data.metadata().unwrap().blocks() * 512;
        assert!(left <= 2 * MIB + 65536, "raw {raw}: {left} of {full}");
        let mut expected = pattern;
        expected[..6 << 20].fill(0);
        same("dropped", &read_all(&open(&path)), &expected);
    }
}

/// A raw data file can end within a sector. What is behind its last whole one is read, so zeroes reach it.
#[test]
fn the_last_bytes_of_a_raw_data_file_are_zeroed() {
    let scratch = Scratch::new();
    let (path, data) = (scratch.path("d.qcow2"), scratch.path("data.raw"));
    let file = Arc::new(MemoryDevice::new(16 * MIB));
    let shared: SharedDevice = file.clone();
    create(&shared, &options(MIB, 16, "data.raw", true)).unwrap();
    file.save(&path).unwrap();
    // qemu maps all of such a disk when it makes it. Here the first write of each cluster does.
    let ends = 300_100u64;
    let last = ends / 512 * 512;
    for (from, bytes) in [(0, MIB), (last, 512), (last - 4096, 8192), (0, last)] {
        std::fs::write(&data, []).unwrap();
        let device = open(&path);
        let full = vec![0xEE; MIB as usize];
        device.write_at(DevOffset(0), &full, Flags::FUA).unwrap();
        drop(device);
        let short = std::fs::OpenOptions::new().write(true).open(&data).unwrap();
        short.set_len(ends).unwrap();
        let mut expected = vec![0; MIB as usize];
        expected[..ends as usize].fill(0xEE);
        let device = open(&path);
        same("short", &read_all(&device), &expected);
        device.write_zeroes(DevOffset(from), bytes).unwrap();
        expected[from as usize..(from + bytes) as usize].fill(0);
        let what = format!("{bytes} bytes at {from}");
        same(&what, &read_all(&device), &expected);
        device.flush().unwrap();
        drop(device);
        let mut alone = std::fs::read(&data).unwrap();
        alone.resize(MIB as usize, 0);
        same(&format!("{what}, the data file alone"), &alone, &expected);
    }
}

/// A device that notes, after each request, how long the logs of both files are.
struct Noted {
    inner: Arc<RecordingDevice>,
    both: [Arc<RecordingDevice>; 2],
    notes: Arc<Mutex<Vec<[usize; 2]>>>,
}

impl BlockDevice for Noted {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn submit(&self, request: Request) {
        self.inner.submit(request);
        let now = [self.both[0].log_len(), self.both[1].log_len()];
        self.notes.lock().unwrap().push(now);
    }

    fn name(&self) -> String {
        self.inner.name()
    }
}

/// Every cut leaves an image without errors, with what was flushed, and with nothing that was never written.
#[test]
fn cuts_keep_what_was_flushed_and_show_nothing_else() {
    if !blockwright_oracles::have(&["qemu-img"]) {
        return;
    }
    let scratch = Scratch::new();
    for (seed, bits, raw) in [
        (1u64, 16u32, false),
        (2, 12, false),
        (3, 9, false),
        (4, 12, true),
    ] {
        let bytes = MIB + 1536;
        let (file, data) = in_memory(bytes, bits, raw);
        // What was there before the image: never to be seen.
        if !raw {
            let old = vec![0xEE; bytes as usize];
            data.write_at(DevOffset(0), &old, Flags::FUA).unwrap();
        }
        let both = [&file, &data].map(|base| Arc::new(RecordingDevice::new(base)));
        let notes = Arc::new(Mutex::new(vec![[0, 0]]));
        let [first, second] = [0, 1].map(|n| -> SharedDevice {
            Arc::new(Noted {
                inner: both[n].clone(),
                both: both.clone(),
                notes: Arc::clone(&notes),
            })
        });
        let device: SharedDevice =
            Arc::new(Qcow2::open_with_data(first, None, Some(second)).unwrap());
        let mut model = vec![0u8; bytes as usize];
        let mut rng = Rng(seed);
        let moment = || notes.lock().unwrap().len() - 1;
        // The disk after each step: from which moment on it is there, and whether it is durable then.
        let mut versions = vec![(moment(), model.clone(), true)];
        for step in 0..48 {
            change(&device, &mut model, &mut rng, 1);
            let is_flush = step % 4 == 3;
            if is_flush {
                device.flush().unwrap();
            }
            versions.push((moment(), model.clone(), is_flush));
        }
        drop(device);
        let notes = notes.lock().unwrap().clone();
        for n in 0..120 {
            let at = rng.below(notes.len() as u64) as usize;
            let policy = match n % 4 {
                0 => CrashPolicy::AllKept,
                1 => CrashPolicy::NoneKept,
                _ => CrashPolicy::Random { seed: rng.next() },
            };
            let what = format!(
                "seed {seed}, raw {raw}, moment {at} of {}, {policy:?}",
                notes.len()
            );
            let [file, data] = [0, 1].map(|n| both[n].image_at(notes[at][n], policy));
            if n % 4 == 0 {
                file.save(scratch.path("cut.qcow2")).unwrap();
                data.save(scratch.path("data.raw")).unwrap();
                let (code, text) = check_in(&scratch, "cut.qcow2");
                // 3: leaks only.
                assert!(matches!(code, Some(0 | 3)), "{what}: {code:?} {text}");
            }
            let kept = versions
                .iter()
                .rposition(|(from, _, durable)| *durable && *from <= at);
            let kept = kept.unwrap_or(0);
            let last = versions.iter().position(|(from, ..)| *from > at);
            let last = last.unwrap_or(versions.len() - 1);
            let alone = data.to_vec();
            let (file, data): (SharedDevice, SharedDevice) = (Arc::new(file), Arc::new(data));
            let again: SharedDevice =
                Arc::new(Qcow2::open_with_data(file, None, Some(data)).unwrap());
            let mut seen = vec![("the disk", read_all(&again))];
            if raw {
                seen.push(("the data file alone", alone));
            }
            for (of, found) in seen {
                for (sector, bytes) in found.chunks(512).enumerate() {
                    let is_known = versions[kept..=last]
                        .iter()
                        .any(|(_, model, _)| model[sector * 512..][..bytes.len()] == *bytes);
                    assert!(
                        is_known,
                        "{what}: sector {sector} of {of} begins with {:#x}",
                        bytes[0]
                    );
                }
            }
            again
                .write_at(DevOffset(0), &[9; 8192], Flags::FUA)
                .unwrap();
        }
    }
}

#[test]
fn data_files_outside_of_the_folder_are_refused() {
    let scratch = Scratch::new();
    let inner = scratch.path("inner");
    std::fs::create_dir(&inner).unwrap();
    let secret = vec![7; 1 << 20];
    std::fs::write(scratch.path("secret"), &secret).unwrap();
    std::os::unix::fs::symlink("../secret", inner.join("link")).unwrap();
    let image = inner.join("d.qcow2");
    let make = |name: &str| {
        let file = Arc::new(MemoryDevice::new(MIB));
        let shared: SharedDevice = file.clone();
        create(&shared, &options(MIB, 16, name, true)).unwrap();
        file.save(&image).unwrap();
    };
    for mode in [OpenMode::read_only(), OpenMode::default()] {
        for name in [
            "../secret",
            "link",
            scratch.text("secret").as_str(),
            "/dev/null",
            "../inner/../secret",
        ] {
            make(name);
            let e = Disk::open(&image, mode).err().unwrap();
            assert!(matches!(e, Error::Denied(_)), "{name}: {e}");
            let text = e.to_string();
            let says = text.contains("--allow-backing") && text.contains("external data file");
            assert!(says, "{text}");
        }
        for (name, says) in [
            ("json:{}", "not as a path"),
            ("missing", "the external data file \"missing\""),
        ] {
            make(name);
            let e = Disk::open(&image, mode).err().unwrap();
            assert!(e.to_string().contains(says), "{name}: {e}");
        }
        // The image itself.
        make("d.qcow2");
        assert!(Disk::open(&image, mode).is_err());
    }
    assert_eq!(std::fs::read(scratch.path("secret")).unwrap(), secret);
    make("link");
    let allowed = Disk::open_with(&image, OpenMode::default(), true).unwrap();
    let zero = vec![0; 1 << 20];
    assert!(read_all(allowed.device()) == zero, "nothing is mapped");
    drop(allowed);
    // A file that looks like a container is data.
    let (file, data) = in_memory(MIB, 16, false);
    let name = inner.join("data.raw");
    file.save(&image).unwrap();
    std::fs::write(&name, []).unwrap();
    let device = open(&image);
    let looks_like = file.to_vec();
    device
        .write_at(DevOffset(0), &looks_like[..65536], Flags::FUA)
        .unwrap();
    drop((device, data));
    assert!(read_all(&open(&image))[..65536] == looks_like[..65536]);
}

/// A file beside the image may be the user's own: it is read, and written only when the caller allows that.
#[test]
fn a_data_file_is_written_only_when_that_is_allowed() {
    let scratch = Scratch::new();
    let (image, other) = (scratch.path("d.qcow2"), scratch.path("photo.jpg"));
    let content: Vec<u8> = (0..MIB).map(|n| (n / 512) as u8 ^ 0x5A).collect();
    for raw in [false, true] {
        std::fs::write(&other, &content).unwrap();
        let file = Arc::new(MemoryDevice::new(16 * MIB));
        let shared: SharedDevice = file.clone();
        create(&shared, &options(2 * MIB, 16, "photo.jpg", raw)).unwrap();
        file.save(&image).unwrap();
        let header = std::fs::read(&image).unwrap();
        let e = Disk::open(&image, OpenMode::default()).err().unwrap();
        let text = e.to_string();
        assert!(matches!(e, Error::Denied(_)), "{text}");
        for part in ["external data file", "photo.jpg", "--allow-backing"] {
            assert!(text.contains(part), "{text}");
        }
        let read = Disk::open(&image, OpenMode::read_only()).unwrap();
        assert!(read.device().geometry().read_only);
        assert_eq!(read_all(read.device()).len() as u64, 2 * MIB);
        drop(read);
        // Below an overlay it is read, and what is written goes to the overlay.
        let overlay = scratch.path("over.qcow2");
        let _absent = std::fs::remove_file(&overlay);
        let over = Disk::open_over(&image, OpenMode::default(), false, &overlay).unwrap();
        let block = vec![0x77; 4096];
        let device = over.device();
        device
            .write_at(DevOffset(0), &block, Flags::empty())
            .unwrap();
        device.flush().unwrap();
        assert!(read_all(device)[..4096] == block);
        drop(over);
        assert!(std::fs::read(&other).unwrap() == content, "raw {raw}");
        assert!(std::fs::read(&image).unwrap() == header, "raw {raw}");
        let device = open(&image);
        device.write_at(DevOffset(0), &block, Flags::FUA).unwrap();
        drop(device);
        assert!(std::fs::read(&other).unwrap()[..4096] == block, "raw {raw}");
    }
}

#[test]
fn an_image_that_does_not_name_its_data_file_is_refused() {
    let (file, data) = in_memory(MIB, 16, false);
    let mut image = file.to_vec();
    assert!(Qcow2::open(file, None).is_err());
    drop(data);
    // The extension of the name becomes one that is unknown.
    assert_eq!(image[104..108], 0x4441_5441u32.to_be_bytes());
    image[104] = 0x7F;
    let scratch = Scratch::new();
    let path = scratch.path("d.qcow2");
    std::fs::write(&path, image).unwrap();
    let e = Disk::open(&path, OpenMode::read_only()).err().unwrap();
    assert!(e.to_string().contains("whose name it does not have"), "{e}");
}

/// qemu-nbd, which serves an image until its client has gone.
struct Export(Child);

impl Export {
    fn start(image: &Path, socket: &Path) -> (Self, SharedDevice) {
        let child = Command::new("qemu-nbd")
            .args([
                "-f",
                "qcow2",
                "--discard=unmap",
                "--detect-zeroes=off",
                "-k",
            ])
            .args([socket, image])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let export = Export(child);
        let start = Instant::now();
        let place = format!("nbd+unix:///?socket={}", socket.display());
        loop {
            if socket.exists()
                && let Ok(device) = blockwright_disk::open(&place, OpenMode::default())
            {
                return (export, device);
            }
            assert!(start.elapsed() < Duration::from_secs(60), "qemu-nbd");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// It closes the image by itself.
    fn end(mut self) {
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _ended = self.0.wait();
    }
}

/// What this crate wrote is read through qemu-nbd, and what was written through qemu-nbd is read by this crate.
#[test]
fn qemu_nbd_reads_and_writes_the_same_images() {
    if !blockwright_oracles::have(&["qemu-img", "qemu-nbd"]) {
        return;
    }
    let kinds: [&str; 5] = [
        "cluster_size=64k",
        "lazy_refcounts=on,cluster_size=4096",
        "data_file=DATA",
        "data_file=DATA,data_file_raw=on",
        "data_file=DATA,lazy_refcounts=on,cluster_size=4096",
    ];
    for (seed, kind) in (20..).zip(kinds) {
        let scratch = Scratch::new();
        let path = scratch.path("d.qcow2");
        let name = path.to_str().unwrap();
        let made = kind.replace("DATA", &scratch.text("d.raw"));
        ok(
            "qemu-img",
            &["create", "-q", "-f", "qcow2", "-o", &made, name, "12M"],
        );
        let mut model = vec![0; 12 << 20];
        let mut rng = Rng(seed);
        for round in 0..3 {
            let what = format!("{kind}, round {round}");
            let device = open(&path);
            same(&what, &read_all(&device), &model);
            change(&device, &mut model, &mut rng, 40);
            drop(device);
            checked(&path, &what);
            let (export, device) = Export::start(&path, &scratch.path("socket"));
            same(&format!("{what}, by qemu-nbd"), &read_all(&device), &model);
            change(&device, &mut model, &mut rng, 40);
            device.flush().unwrap();
            same(&format!("{what}, by qemu-nbd"), &read_all(&device), &model);
            drop(device);
            export.end();
            checked(&path, &format!("{what}, written by qemu-nbd"));
        }
        same(kind, &read_all(&open(&path)), &model);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 400 } else { 2000 }))]

    /// Whatever is in the file: opening, reading and writing end with a value or an error.
    #[test]
    fn hostile_files_end_with_an_error_or_a_value(
        seed in 0u64..5,
        raw: bool,
        patches in prop::collection::vec((any::<u32>(), prop_oneof![any::<u64>(), 0u64..1 << 20, Just(u64::MAX), Just(512), (0u64..64).prop_map(|n| 1 << n)]), 1..6),
    ) {
        let (file, data) = in_memory(MIB, 9 + (seed % 5) as u32, raw);
        let device: SharedDevice =
            Arc::new(Qcow2::open_with_data(file.clone(), None, Some(data.clone())).unwrap());
        change(&device, &mut vec![0; MIB as usize], &mut Rng(seed), 10);
        drop(device);
        for (at, value) in patches {
            // Most metadata is at the front.
            let at = u64::from(at) % (if at & 1 == 0 { 128 } else { 64 << 10 });
            let mut sector = vec![0; 1024];
            let start = at / 512 * 512;
            file.read_at(DevOffset(start), &mut sector).unwrap();
            let within = (at - start) as usize / 4 * 4;
            sector[within..within + 8].copy_from_slice(&value.to_be_bytes());
            file.write_at(DevOffset(start), &sector, Flags::empty()).unwrap();
        }
        let Ok(device) = Qcow2::open_with_data(file, None, Some(data)) else { return Ok(()) };
        let device: SharedDevice = Arc::new(device);
        let bytes = device.geometry().bytes;
        for at in [0, bytes / 2, bytes.saturating_sub(4096)] {
            let at = at / 512 * 512;
            let mut buf = vec![0; 4096.min(bytes - at) as usize / 512 * 512];
            let _read = device.read_at(DevOffset(at), &mut buf);
            let _wrote = device.write_at(DevOffset(at), &buf, Flags::empty());
            let _next = device.next_data(DevOffset(at));
        }
        let _flushed = device.flush();
        let _dropped = device.discard(DevOffset(0), bytes.min(1 << 20) / 512 * 512);
        let _zeroed = device.write_zeroes(DevOffset(0), bytes.min(1 << 20) / 512 * 512);
        let _flushed = device.flush();
    }
}
