//! Other containers beside the tools that made them, and conversions.

mod common;

use blockwright_device::{DevOffset, Flags, MemoryDevice, OpenMode, SharedDevice};
use blockwright_disk::container::{self, Format};
use blockwright_disk::{Disk, convert};
use common::{Rng, Scratch, ok, qemu_reads, read_all, same};
use proptest::prelude::*;
use std::path::Path;
use std::sync::Arc;

/// Contents with data, fills, zeroes and holes; a whole number of sectors.
fn contents(seed: u64, bytes: usize) -> Vec<u8> {
    let mut rng = Rng(seed);
    let mut all = vec![0u8; bytes];
    for _ in 0..20 {
        let at = rng.below(bytes as u64) as usize / 512 * 512;
        let len = (rng.below(600_000) as usize).min(bytes - at);
        let value = rng.next() as u8;
        let kind = rng.below(3);
        for (n, byte) in all[at..at + len].iter_mut().enumerate() {
            *byte = match kind {
                0 => value,
                1 => [1, 2, 3, value][n % 4],
                _ => (n / 3) as u8 ^ value,
            };
        }
    }
    all
}

fn raw(scratch: &Scratch, content: &[u8]) -> String {
    let raw = scratch.text("raw.img");
    std::fs::write(&raw, content).unwrap();
    raw
}

fn read_only(path: &Path) -> Disk {
    Disk::open(path, OpenMode::read_only()).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn images_of_other_tools_are_read() {
    if !blockwright_oracles::have(&["qemu-img", "img2simg"]) {
        return;
    }
    let scratch = Scratch::new();
    for (seed, bytes) in [(1, 20 << 20), (2, (9 << 20) + 4096 * 3), (3, 4096)] {
        let content = contents(seed, bytes);
        let raw = raw(&scratch, &content);
        for (format, options, expected) in [
            ("vpc", "subformat=dynamic,force_size=on", Format::Vhd),
            ("vpc", "subformat=fixed,force_size=on", Format::VhdFixed),
            ("vmdk", "subformat=monolithicSparse", Format::Vmdk),
            ("vmdk", "subformat=streamOptimized", Format::Vmdk),
            ("qcow2", "cluster_size=4096", Format::Qcow2),
        ] {
            let path = scratch.path("other");
            ok(
                "qemu-img",
                &[
                    "convert",
                    "-f",
                    "raw",
                    "-O",
                    format,
                    "-o",
                    options,
                    &raw,
                    path.to_str().unwrap(),
                ],
            );
            let disk = read_only(&path);
            assert_eq!(disk.format(), expected, "{options}");
            same(options, &read_all(disk.device()), &content);
            assert_eq!(container::detect_file(&path), expected, "{options}");
        }
        let path = scratch.path("sparse.simg");
        for block in ["4096", "1024"] {
            ok("img2simg", &[&raw, path.to_str().unwrap(), block]);
            let disk = read_only(&path);
            assert_eq!(disk.format(), Format::Simg);
            same("simg", &read_all(disk.device()), &content);
        }
    }
}

#[test]
fn conversions_are_read_by_other_tools() {
    if !blockwright_oracles::have(&["qemu-img", "simg2img"]) {
        return;
    }
    let scratch = Scratch::new();
    for (seed, bytes) in [
        (4, 30 << 20),
        (5, (5 << 20) + 4096 * 5),
        (6, 4096),
        (7, (2 << 20) + 512),
    ] {
        let content = contents(seed, bytes);
        let raw = raw(&scratch, &content);
        let disk = read_only(Path::new(&raw));
        let made = |format: Format| {
            let path = scratch.path(&format!("made.{}", format.name()));
            let _ = std::fs::remove_file(&path);
            convert(disk.device(), &path, format, &|_| ())
                .unwrap_or_else(|e| panic!("{format:?}: {e}"));
            same(
                format.name(),
                &read_all(read_only(&path).device())[..bytes],
                &content,
            );
            path
        };
        let path = made(Format::Raw);
        same("raw", &std::fs::read(&path).unwrap(), &content);
        let path = made(Format::Qcow2);
        same("qcow2", &qemu_reads(&scratch, &path), &content);
        let text = ok("qemu-img", &["check", path.to_str().unwrap()]);
        assert!(text.contains("No errors"), "{text}");
        for format in [Format::Vhd, Format::VhdFixed] {
            let path = made(format);
            same(format.name(), &vpc_reads(&scratch, &path), &content);
        }
        let path = made(Format::Simg);
        let back = scratch.text("back.simg");
        let _ = std::fs::remove_file(&back);
        ok("simg2img", &[path.to_str().unwrap(), &back]);
        same("simg", &std::fs::read(&back).unwrap()[..bytes], &content);
    }
}

fn vpc_reads(scratch: &Scratch, image: &Path) -> Vec<u8> {
    let back = scratch.text("back");
    let image = image.to_str().unwrap();
    ok(
        "qemu-img",
        &["convert", "-f", "vpc", "-O", "raw", image, &back],
    );
    std::fs::read(&back).unwrap()
}

/// Written by this crate and by qemu in turn, each reads what the other wrote. The footer stays.
#[test]
fn a_fixed_vhd_is_written_in_place() {
    if !blockwright_oracles::have(&["qemu-img", "qemu-io"]) {
        return;
    }
    let scratch = Scratch::new();
    // One that qemu made, and one that this crate made, whose sizes are and are not multiples of the page.
    for (by_qemu, bytes) in [(true, 6 << 20), (false, (5 << 20) + 512 * 3)] {
        let mut model = contents(9, bytes);
        let raw = raw(&scratch, &model);
        let path = scratch.path("fixed.vhd");
        let text = path.to_str().unwrap();
        let _absent = std::fs::remove_file(&path);
        if by_qemu {
            let options = "subformat=fixed,force_size=on";
            let args = [
                "convert", "-f", "raw", "-O", "vpc", "-o", options, &raw, text,
            ];
            ok("qemu-img", &args);
        } else {
            let disk = read_only(Path::new(&raw));
            convert(disk.device(), &path, Format::VhdFixed, &|_| ()).unwrap();
        }
        let footer = std::fs::read(&path).unwrap().split_off(bytes);
        let disk = Disk::open(&path, OpenMode::default()).unwrap();
        assert_eq!(disk.format(), Format::VhdFixed);
        assert_eq!(disk.device().geometry().bytes, bytes as u64);
        common::change(disk.device(), &mut model, &mut Rng(21), 60);
        // The last sector, in front of the footer.
        let last = DevOffset(bytes as u64 - 512);
        disk.device().write_at(last, &[9; 512], Flags::FUA).unwrap();
        model[bytes - 512..].fill(9);
        let beyond = disk
            .device()
            .write_at(DevOffset(bytes as u64), &[1; 512], Flags::empty());
        assert!(beyond.is_err());
        drop(disk);
        same("qemu-img", &vpc_reads(&scratch, &path), &model);
        ok(
            "qemu-io",
            &["-f", "vpc", "-c", "write -P 0x5a 65536 4096", text],
        );
        model[65536..69632].fill(0x5A);
        same("ours", &read_all(read_only(&path).device()), &model);
        assert!(std::fs::read(&path).unwrap().split_off(bytes) == footer);
    }
}

/// Whatever the format: what is at the output's path stays.
#[test]
fn a_conversion_overwrites_and_removes_nothing() {
    let scratch = Scratch::new();
    let taken = scratch.path("taken");
    std::fs::write(&taken, "mine").unwrap();
    let disk: SharedDevice = Arc::new(MemoryDevice::new(1 << 20));
    for format in Format::ALL {
        assert!(
            convert(&disk, &taken, format, &|_| ()).is_err(),
            "{format:?}"
        );
        assert_eq!(std::fs::read(&taken).unwrap(), b"mine", "{format:?}");
    }
}

/// A simg by hand: chunks of (kind, blocks, bytes of data).
fn simg(total_blocks: u32, chunks: &[(u16, u32, u32)]) -> Vec<u8> {
    let mut all = vec![0x3A, 0xFF, 0x26, 0xED, 1, 0, 0, 0, 28, 0, 12, 0];
    for value in [4096, total_blocks, chunks.len() as u32, 0] {
        all.extend(value.to_le_bytes());
    }
    for (kind, blocks, data) in chunks {
        all.extend(kind.to_le_bytes());
        all.extend([0, 0]);
        all.extend(blocks.to_le_bytes());
        all.extend((12 + data).to_le_bytes());
        all.extend(vec![7; *data as usize]);
    }
    all
}

fn opened(scratch: &Scratch, bytes: &[u8]) -> Result<Vec<u8>, String> {
    let path = scratch.path("by-hand");
    std::fs::write(&path, bytes).unwrap();
    let disk = Disk::open(&path, OpenMode::read_only()).map_err(|e| e.to_string())?;
    Ok(read_all(disk.device()))
}

#[test]
fn sparse_images_whose_chunks_do_not_add_up_are_refused() {
    let scratch = Scratch::new();
    let good = simg(
        4,
        &[
            (0xCAC1, 1, 4096),
            (0xCAC2, 1, 4),
            (0xCAC4, 0, 4),
            (0xCAC3, 2, 0),
        ],
    );
    let found = opened(&scratch, &good).unwrap();
    assert!(found[..8192].iter().all(|b| *b == 7) && found[8192..] == vec![0; 8192][..]);
    for (what, image) in [
        ("blocks, its header promises", simg(5, &[(0xCAC3, 4, 0)])),
        ("more than the 3 blocks", simg(3, &[(0xCAC3, 4, 0)])),
        (
            "more than",
            simg(3, &[(0xCAC3, u32::MAX, 0), (0xCAC3, u32::MAX, 0)]),
        ),
        ("bytes for 1 blocks", simg(1, &[(0xCAC1, 1, 100)])),
        ("bytes for 1 blocks", simg(1, &[(0xCAC2, 1, 5)])),
        ("unknown kind", simg(1, &[(0xCAC9, 1, 0)])),
        ("the file ends", good[..30].to_vec()),
        ("from byte 40 of 60", good[..60].to_vec()),
        ("from byte", good[..1000].to_vec()),
        ("chunk 0 has", {
            let mut image = simg(1, &[(0xCAC3, 1, 0)]);
            image[36..40].fill(0);
            image
        }),
        ("blocks of 0 bytes", {
            let mut image = good.clone();
            image[12..16].fill(0);
            image
        }),
        ("4294967295 chunks", {
            let mut image = good.clone();
            image[20..24].fill(0xFF);
            image
        }),
    ] {
        let e = opened(&scratch, &image).unwrap_err();
        assert!(e.contains(what), "{what}: {e}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever is in a file: opening and reading end with a value or an error.
    #[test]
    fn hostile_files_end(
        which in 0usize..6,
        patches in prop::collection::vec((0usize..2048, prop_oneof![any::<u32>(), 0u32..100, Just(u32::MAX)]), 0..6),
    ) {
        let disk: SharedDevice = Arc::new(MemoryDevice::new(1 << 20));
        disk.write_at(DevOffset(4096), &[5; 8192], Flags::empty()).unwrap();
        let scratch = Scratch::new();
        let path = scratch.path("hostile");
        let format = Format::ALL[which];
        if format == Format::Vmdk {
            let mut header = vec![0u8; 4096];
            header[..4].copy_from_slice(b"KDMV");
            header[4] = 1;
            header[12] = 128;
            header[20] = 8;
            header[44] = 16;
            header[56] = 2;
            header[1024] = 4;
            header[2048] = 1;
            std::fs::write(&path, header).unwrap();
        } else {
            convert(&disk, &path, format, &|_| ()).unwrap();
        }
        let mut bytes = std::fs::read(&path).unwrap();
        for (mut at, value) in patches {
            if format == Format::VhdFixed {
                // All that can be wrong is in the footer.
                at = bytes.len() - 512 + at % 512;
            }
            if at + 4 <= bytes.len() {
                bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
            }
        }
        std::fs::write(&path, &bytes).unwrap();
        if let Ok(disk) = Disk::open(&path, OpenMode::read_only()) {
            let device = disk.device();
            let end = device.geometry().bytes;
            for at in [0, end / 2 / 512 * 512, end.saturating_sub(4096) / 512 * 512] {
                let mut buf = vec![0; 4096.min(end - at) as usize];
                let _read = device.read_at(DevOffset(at), &mut buf);
            }
        }
    }
}
