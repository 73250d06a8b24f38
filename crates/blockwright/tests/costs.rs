//! What a volume or an archive from a stranger may cost: no thread for looking at one, and no more memory or disk for
//! unpacking one than it can be worth.

use blockwright::{ErrorKind, Format, Volume, VolumeBuilder, VolumeOptions};
use blockwright_device::{CountingDevice, MemoryDevice, SharedDevice};
use std::io::{Cursor, Read, Write};
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// Names of this process's threads that are ours. One that does not run yet has the name of the thread that made it.
fn threads() -> Vec<String> {
    let own = std::fs::read_to_string("/proc/thread-self/comm").unwrap();
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks
        .flatten()
        .filter_map(|t| std::fs::read_to_string(t.path().join("comm")).ok());
    let ours = |n: &String| {
        ["bw-flusher", "ext4-", "f2fs-"]
            .iter()
            .any(|p| n.starts_with(p))
    };
    let mut found: Vec<String> = names
        .filter(|n| ours(n) || *n == own)
        .map(|n| n.trim().to_owned())
        .collect();
    found.remove(found.iter().position(|n| n == own.trim()).unwrap());
    found
}

/// The one test of this program that counts threads or starts any.
#[test]
fn a_volume_that_is_only_looked_at_has_no_threads() {
    for (format, bytes) in [(Format::Ext4, 8 * MIB), (Format::F2fs, 64 * MIB)] {
        let device: SharedDevice = Arc::new(MemoryDevice::new(bytes));
        VolumeBuilder::new()
            .format(format)
            .create_on(&device)
            .unwrap();
        let volume = Volume::open_device(device.clone()).unwrap();
        volume.create_dir("/dir").unwrap();
        volume.write("/dir/file", [7; 9000]).unwrap();
        assert!(
            !threads().is_empty(),
            "a change starts the flusher at least"
        );
        volume.close().unwrap();
        assert!(threads().is_empty(), "{:?} after the close", threads());

        let look = |options: &VolumeOptions| {
            let volume = options.open_device(device.clone()).unwrap();
            assert_eq!(volume.read("/dir/file").unwrap(), [7; 9000]);
            assert!(volume.walk("/").count() >= 2);
            let met = threads();
            volume.close().unwrap();
            met
        };
        assert!(look(&VolumeOptions::new().read_only(true)).is_empty());
        if format == Format::Ext4 {
            // For writing, but not written to. Access times are changes.
            let mut options = VolumeOptions::default();
            options.parts.vfs.atime = blockwright_vfs::AtimeMode::None;
            assert_eq!(look(&options), Vec::<String>::new());
        }
    }
}

fn refused(archive: Vec<u8>) -> blockwright::Error {
    let device: SharedDevice = Arc::new(MemoryDevice::new(2 * MIB));
    let builder = VolumeBuilder::new().from_reader(Cursor::new(archive), "archive");
    builder.create_on(&device).expect_err("it is refused")
}

/// A header of a file of this many bytes.
fn header(bytes: u64) -> Vec<u8> {
    let mut h = vec![0u8; 512];
    h[..4].copy_from_slice(b"file");
    h[100..108].copy_from_slice(b"0000644\0");
    h[124..136].copy_from_slice(format!("{bytes:011o}\0").as_bytes());
    h[156] = b'0';
    h[257..265].copy_from_slice(b"ustar\x0000");
    h[148..156].fill(b' ');
    let sum: u32 = h.iter().map(|b| u32::from(*b)).sum();
    h[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    h
}

#[test]
fn a_bomb_is_stopped_when_it_is_many_times_the_volume() {
    // 200 MiB in a few kilobytes, in a file; and behind the end mark, where nothing needs them.
    for (head, zeroes) in [
        (header(200 << 20), 200 << 20),
        (vec![0; 1024], 200u64 << 20),
    ] {
        let mut packed = zstd::Encoder::new(Vec::new(), 1).unwrap();
        packed.write_all(&head).unwrap();
        std::io::copy(&mut std::io::repeat(0).take(zeroes), &mut packed).unwrap();
        let packed = packed.finish().unwrap();
        assert!(packed.len() < 1 << 20);
        let error = refused(packed);
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        assert!(
            error
                .to_string()
                .contains("unpack to more than 100663296 bytes"),
            "{error}"
        );
    }
}

/// Each is half of what the volume may unpack, and the upper ones leave nothing of the lower ones.
#[test]
fn layers_have_one_bound_together() {
    let half = |bytes: u64| {
        let mut packed = zstd::Encoder::new(Vec::new(), 1).unwrap();
        packed.write_all(&header(256 << 10)).unwrap();
        std::io::copy(&mut std::io::repeat(0).take(bytes), &mut packed).unwrap();
        packed.finish().unwrap()
    };
    let build = |layers: u32| {
        let device: SharedDevice = Arc::new(MemoryDevice::new(2 * MIB));
        let builder = (0..layers).fold(VolumeBuilder::new(), |builder, _| {
            builder.from_reader(Cursor::new(half(47 << 20)), "layer")
        });
        builder.create_on(&device)
    };
    build(2).expect("within the bound");
    let error = build(3).expect_err("beyond it");
    assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
    let text = error.to_string();
    assert!(
        text.contains("archives unpack to more than 100663296 bytes"),
        "{text}"
    );
}

#[test]
fn a_dictionary_that_is_too_large_is_refused() {
    let mut packed = liblzma::write::XzEncoder::new(Vec::new(), 6);
    packed.write_all(&header(0)).unwrap();
    packed.write_all(&[0; 1024]).unwrap();
    let mut packed = packed.finish().unwrap();
    // Behind the stream's header of 12 bytes: size of the block's header, flags, the filter, its properties' size, and
    // the dictionary's size, in steps of half a power of two.
    assert_eq!(packed[14..16], [0x21, 1]);
    packed[16] = 37;
    let end = 12 + (usize::from(packed[12]) + 1) * 4;
    let mut crc = flate2::Crc::new();
    crc.update(&packed[12..end - 4]);
    packed[end - 4..end].copy_from_slice(&crc.sum().to_le_bytes());
    let error = refused(packed);
    assert!(error.to_string().contains("memory"), "{error}");
}

/// A volume that is opened for reading is read where its superblocks are, and not by tens of KiB.
#[test]
fn opening_reads_little() {
    for (format, bytes, most) in [
        (Format::Ext4, 1024 * MIB, 192 << 10),
        (Format::F2fs, 64 * MIB, 160 << 10),
    ] {
        let device = Arc::new(MemoryDevice::new(bytes));
        let shared: SharedDevice = device.clone();
        VolumeBuilder::new()
            .format(format)
            .create_on(&shared)
            .unwrap();
        let counting = Arc::new(CountingDevice::new(device));
        let options = VolumeOptions::new().read_only(true);
        let volume = options.open_device(counting.clone()).unwrap();
        let reads = counting.stats().reads;
        eprintln!("{format}: {reads:?}");
        assert!(reads.bytes < most, "{format}: {reads:?}");
        volume.close().unwrap();
    }
}
