//! qcow2 beside qemu's tools, in both directions; crashes; hostile files.

mod common;

use blockwright_device::{
    CrashPolicy, DevOffset, Flags, MemoryDevice, OpenMode, RecordingDevice, SharedDevice,
    conformance,
};
use blockwright_disk::qcow2::{CreateOptions, Qcow2, create};
use blockwright_disk::{Disk, Error};
use common::{Rng, Scratch, change, ok, open, qemu_reads, read_all, run, same};
use proptest::prelude::*;
use std::path::Path;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// An empty disk in memory, with room for the file to grow.
fn in_memory(bytes: u64, cluster_bits: u32) -> Arc<MemoryDevice> {
    let file = Arc::new(MemoryDevice::new(4 * bytes + 16 * MIB));
    let shared: SharedDevice = file.clone();
    let options = CreateOptions {
        bytes,
        cluster_bits,
        backing: None,
        data_file: None,
    };
    create(&shared, &options).unwrap();
    file
}

fn checked(path: &Path, what: &str) {
    ok("qemu-img", &["info", path.to_str().unwrap()]);
    let out = run("qemu-img", &["check", path.to_str().unwrap()]);
    let text =
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(
        out.status.success() && text.contains("No errors"),
        "{what}: {text}"
    );
}

#[test]
fn conforms() {
    for bits in [9, 12, 16, 21] {
        let file = in_memory(5 * MIB + 512, bits);
        let device = Arc::new(Qcow2::open(file.clone(), None).unwrap());
        conformance::run(&(device as SharedDevice), u64::from(bits));
        if !blockwright_oracles::have(&["qemu-img"]) {
            continue;
        }
        let scratch = Scratch::new();
        let path = scratch.path("d.qcow2");
        file.save(&path).unwrap();
        checked(&path, &format!("clusters of 2^{bits}"));
    }
}

#[test]
fn images_of_qemu_are_changed_and_qemu_finds_no_fault() {
    if !blockwright_oracles::have(&["qemu-img", "qemu-io"]) {
        return;
    }
    let kinds: [(&str, &[&str]); 9] = [
        ("plain", &[]),
        ("version 2", &["-o", "compat=0.10"]),
        ("lazy", &["-o", "lazy_refcounts=on"]),
        ("one bit", &["-o", "refcount_bits=1"]),
        ("eight bits", &["-o", "refcount_bits=8,cluster_size=4096"]),
        (
            "sixty-four bits",
            &["-o", "refcount_bits=64,cluster_size=512"],
        ),
        ("large clusters", &["-o", "cluster_size=2M"]),
        ("preallocated", &["-o", "preallocation=metadata"]),
        ("small clusters", &["-o", "cluster_size=512"]),
    ];
    for (seed, (what, options)) in (1..).zip(kinds) {
        let scratch = Scratch::new();
        let path = scratch.path("d.qcow2");
        let name = path.to_str().unwrap();
        let mut args = vec!["create", "-q", "-f", "qcow2"];
        args.extend(options);
        args.extend([name, "20M"]);
        ok("qemu-img", &args);
        ok(
            "qemu-io",
            &[
                "-c",
                "write -P 0x5A 3M 300k",
                "-c",
                "write -P 0x77 9000k 1000",
                name,
            ],
        );
        let mut model = qemu_reads(&scratch, &path);
        let mut rng = Rng(seed);
        for round in 0..3 {
            let device = open(&path);
            same(what, &read_all(&device), &model);
            change(&device, &mut model, &mut rng, 60);
            same(what, &read_all(&device), &model);
            drop(device);
            checked(&path, &format!("{what}, round {round}"));
            same(
                &format!("{what}: as qemu reads it"),
                &qemu_reads(&scratch, &path),
                &model,
            );
        }
        // And what qemu writes then is read.
        ok(
            "qemu-io",
            &["-c", "write -P 0x33 5M 2M", "-c", "discard 8M 2M", name],
        );
        let model = qemu_reads(&scratch, &path);
        same(what, &read_all(&open(&path)), &model);
    }
}

#[test]
fn compressed_clusters_are_read_and_overwritten() {
    if !blockwright_oracles::have(&["qemu-img"]) {
        return;
    }
    let scratch = Scratch::new();
    let raw = scratch.path("raw");
    let mut model: Vec<u8> = (0..6 * MIB)
        .map(|n| (n / 700) as u8 ^ (n as u8 & 3))
        .collect();
    model[2 << 20..3 << 20].fill(0);
    std::fs::write(&raw, &model).unwrap();
    for (seed, options) in [
        (1, "compression_type=zlib"),
        (2, "compression_type=zstd"),
        (3, "cluster_size=4096"),
    ] {
        let path = scratch.path("c.qcow2");
        let (from, to) = (raw.to_str().unwrap(), path.to_str().unwrap());
        ok(
            "qemu-img",
            &["convert", "-c", "-O", "qcow2", "-o", options, from, to],
        );
        let mut model = model.clone();
        let device = open(&path);
        same(options, &read_all(&device), &model);
        change(&device, &mut model, &mut Rng(seed), 80);
        same(options, &read_all(&device), &model);
        drop(device);
        checked(&path, options);
        same(options, &qemu_reads(&scratch, &path), &model);
    }
}

#[test]
fn chains_are_read_through_and_kept() {
    if !blockwright_oracles::have(&["qemu-img", "qemu-io"]) {
        return;
    }
    let scratch = Scratch::new();
    let [base, middle, top] =
        ["base.raw", "middle.qcow2", "top.qcow2"].map(|name| scratch.text(name));
    let content: Vec<u8> = (0..3 * MIB + 512 * 77)
        .map(|n| (n / 512) as u8 | 1)
        .collect();
    std::fs::write(&base, &content).unwrap();
    ok(
        "qemu-img",
        &[
            "create", "-q", "-f", "qcow2", "-b", "base.raw", "-F", "raw", &middle, "8M",
        ],
    );
    ok(
        "qemu-io",
        &[
            "-c",
            "write -P 0x42 1M 100k",
            "-c",
            "write -z 2M 128k",
            &middle,
        ],
    );
    ok(
        "qemu-img",
        &[
            "create", "-q", "-f", "qcow2", "-b", &middle, "-F", "qcow2", &top, "12M",
        ],
    );
    let mut model = qemu_reads(&scratch, Path::new(&top));
    let mut rng = Rng(5);
    for _ in 0..3 {
        let device = open(Path::new(&top));
        same("a chain", &read_all(&device), &model);
        change(&device, &mut model, &mut rng, 60);
        drop(device);
        checked(Path::new(&top), "a chain");
        same(
            "a chain, as qemu reads it",
            &qemu_reads(&scratch, Path::new(&top)),
            &model,
        );
    }
    assert_eq!(std::fs::read(&base).unwrap(), content);
}

#[test]
fn snapshots_stay_as_they_are() {
    if !blockwright_oracles::have(&["qemu-img", "qemu-io"]) {
        return;
    }
    let scratch = Scratch::new();
    let path = scratch.path("s.qcow2");
    let name = path.to_str().unwrap();
    ok("qemu-img", &["create", "-q", "-f", "qcow2", name, "16M"]);
    ok("qemu-io", &["-c", "write -P 1 0 6M", name]);
    ok("qemu-img", &["snapshot", "-c", "one", name]);
    let one = qemu_reads(&scratch, &path);
    let mut model = one.clone();
    let mut rng = Rng(11);
    let device = open(&path);
    change(&device, &mut model, &mut rng, 50);
    drop(device);
    checked(&path, "a snapshot");
    ok("qemu-img", &["snapshot", "-c", "two", name]);
    let two = qemu_reads(&scratch, &path);
    same("after a snapshot", &two, &model);
    let device = open(&path);
    change(&device, &mut model, &mut rng, 50);
    drop(device);
    checked(&path, "two snapshots");
    for (snapshot, content) in [("one", &one), ("two", &two)] {
        ok("qemu-img", &["snapshot", "-a", snapshot, name]);
        same(snapshot, &qemu_reads(&scratch, &path), content);
    }
    checked(&path, "applied snapshots");
}

/// An image that qemu did not close: refcounts are counted anew before it is written.
#[test]
fn dirty_images_are_counted() {
    if !blockwright_oracles::have(&["qemu-img", "qemu-io"]) {
        return;
    }
    let scratch = Scratch::new();
    let path = scratch.path("d.qcow2");
    let name = path.to_str().unwrap();
    ok(
        "qemu-img",
        &[
            "create",
            "-q",
            "-f",
            "qcow2",
            "-o",
            "lazy_refcounts=on",
            name,
            "16M",
        ],
    );
    ok("qemu-io", &["-c", "write -P 1 0 1M", name]);
    ok("qemu-img", &["snapshot", "-c", "one", name]);
    let kill = run(
        "qemu-io",
        &[
            "-c",
            "write -P 2 4M 3M",
            "-c",
            "flush",
            "-c",
            "sigraise 9",
            name,
        ],
    );
    assert!(!kill.status.success());
    let check = run("qemu-img", &["check", name]);
    assert!(!check.status.success(), "the image is dirty");
    let read_only = Disk::open(&path, OpenMode::read_only()).unwrap();
    let mut model = read_all(read_only.device());
    assert!(model[4 << 20..7 << 20].iter().all(|b| *b == 2));
    drop(read_only);
    let device = open(&path);
    change(&device, &mut model, &mut Rng(3), 40);
    drop(device);
    checked(&path, "it was dirty");
    same("it was dirty", &qemu_reads(&scratch, &path), &model);
}

/// What is below an overlay.
fn below(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|n| (n >> 9) as u8 ^ n as u8).collect()
}

/// Every cut leaves an image that is clean or has leaks, and all that was flushed.
#[test]
fn cuts_leave_leaks_at_most() {
    if !blockwright_oracles::have(&["qemu-img"]) {
        return;
    }
    let scratch = Scratch::new();
    // The last two are overlays.
    for (seed, bits, is_over) in [
        (1u64, 16u32, false),
        (2, 9, false),
        (3, 12, false),
        (4, 16, true),
        (5, 12, true),
    ] {
        let base = in_memory(4 * MIB, bits);
        let mut model = vec![0u8; 4 << 20];
        let mut rng = Rng(seed);
        let lower = || -> Option<SharedDevice> {
            is_over.then(|| Arc::new(MemoryDevice::from_image(&below(4 << 20))) as SharedDevice)
        };
        if is_over {
            model = below(4 << 20);
            std::fs::write(scratch.path("below.img"), &model).unwrap();
            let options = CreateOptions {
                bytes: 4 * MIB,
                cluster_bits: bits,
                backing: Some((b"below.img".to_vec(), "raw")),
                data_file: None,
            };
            create(&(base.clone() as SharedDevice), &options).unwrap();
        }
        let recording = Arc::new(RecordingDevice::new(&base));
        let device: SharedDevice = Arc::new(Qcow2::open(recording.clone(), lower()).unwrap());
        // What was durable from which length of the log on.
        let mut durable = vec![(0, model.clone())];
        for _ in 0..12 {
            change(&device, &mut model, &mut rng, 4);
            device.flush().unwrap();
            durable.push((recording.log_len(), model.clone()));
        }
        drop(device);
        let end = recording.log_len();
        for n in 0..40 {
            let cut = rng.below(end as u64 + 1) as usize;
            let policy = match n % 4 {
                0 => CrashPolicy::AllKept,
                1 => CrashPolicy::NoneKept,
                _ => CrashPolicy::Random { seed: rng.next() },
            };
            let image = recording.image_at(cut, policy);
            let path = scratch.path("cut.qcow2");
            image.save(&path).unwrap();
            let out = run("qemu-img", &["check", path.to_str().unwrap()]);
            let what = format!("seed {seed}, cut {cut} of {end}, {policy:?}");
            // 3: leaks only.
            let code = out.status.code();
            assert!(
                matches!(code, Some(0 | 3)),
                "{what}: {code:?} {}{}",
                String::from_utf8_lossy(&out.stdout),
                String::from_utf8_lossy(&out.stderr)
            );
            // It opens, and continues to be written.
            let image: SharedDevice = Arc::new(image);
            let again: SharedDevice = Arc::new(Qcow2::open(image, lower()).unwrap());
            if let Some((_, kept)) = durable.iter().find(|(at, _)| *at == cut) {
                same(&what, &read_all(&again), kept);
            }
            again
                .write_at(DevOffset(0), &[9; 8192], Flags::FUA)
                .unwrap();
        }
    }
}

#[test]
fn backing_files_outside_of_the_folder_are_refused() {
    if !blockwright_oracles::have(&["qemu-img"]) {
        return;
    }
    let scratch = Scratch::new();
    let inner = scratch.path("inner");
    std::fs::create_dir(&inner).unwrap();
    std::fs::write(scratch.path("secret"), vec![7; 65536]).unwrap();
    std::os::unix::fs::symlink("../secret", inner.join("link")).unwrap();
    let image = inner.join("d.qcow2");
    let name = image.to_str().unwrap();
    for backing in [
        "../secret",
        "link",
        scratch.text("secret").as_str(),
        "/dev/null",
        "../inner/../secret",
    ] {
        ok(
            "qemu-img",
            &[
                "create", "-q", "-u", "-f", "qcow2", "-b", backing, "-F", "raw", name, "1M",
            ],
        );
        let e = Disk::open(&image, OpenMode::read_only()).err().unwrap();
        assert!(matches!(e, Error::Denied(_)), "{backing}: {e}");
        assert!(e.to_string().contains("--allow-backing"), "{e}");
    }
    ok(
        "qemu-img",
        &[
            "create", "-q", "-u", "-f", "qcow2", "-b", "link", "-F", "raw", name, "64k",
        ],
    );
    let allowed = Disk::open_with(&image, OpenMode::read_only(), true).unwrap();
    assert_eq!(read_all(allowed.device()), vec![7; 65536]);
    for (backing, says) in [
        ("d.qcow2", "comes back"),
        ("json:{}", "not as a path"),
        ("missing", "missing"),
    ] {
        ok(
            "qemu-img",
            &[
                "create", "-q", "-u", "-f", "qcow2", "-b", backing, "-F", "qcow2", name, "1M",
            ],
        );
        let e = Disk::open(&image, OpenMode::read_only()).err().unwrap();
        assert!(e.to_string().contains(says), "{backing}: {e}");
    }
}

/// A file in memory with some data, and patches over it.
fn patched(seed: u64, patches: &[(u32, u64)]) -> SharedDevice {
    let file = in_memory(MIB, 9 + (seed % 5) as u32);
    let device: SharedDevice = Arc::new(Qcow2::open(file.clone(), None).unwrap());
    change(&device, &mut vec![0; MIB as usize], &mut Rng(seed), 10);
    drop(device);
    for &(at, value) in patches {
        // Most metadata is at the front.
        let at = u64::from(at) % (if at & 1 == 0 { 128 } else { 64 << 10 });
        let mut sector = vec![0; 1024];
        let start = at / 512 * 512;
        blockwright_device::BlockDevice::read_at(&*file, DevOffset(start), &mut sector).unwrap();
        let within = (at - start) as usize / 4 * 4;
        sector[within..within + 8].copy_from_slice(&value.to_be_bytes());
        blockwright_device::BlockDevice::write_at(
            &*file,
            DevOffset(start),
            &sector,
            Flags::empty(),
        )
        .unwrap();
    }
    file
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 400 } else { 2000 }))]

    /// Whatever is in the file: opening, reading and writing end with a value or an error.
    #[test]
    fn hostile_files_end_with_an_error_or_a_value(
        seed in 0u64..5,
        patches in prop::collection::vec((any::<u32>(), prop_oneof![any::<u64>(), 0u64..1 << 20, Just(u64::MAX), Just(512), (0u64..64).prop_map(|n| 1 << n)]), 1..6),
    ) {
        let file = patched(seed, &patches);
        let Ok(device) = Qcow2::open(file, None) else { return Ok(()) };
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
        let _flushed = device.flush();
    }
}
