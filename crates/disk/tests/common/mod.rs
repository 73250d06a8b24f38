//! What tests of containers share: qemu's tools, and disks with a model beside them.
#![allow(dead_code)]

use blockwright_device::{DevOffset, DeviceExt, Flags, OpenMode, SharedDevice};
use blockwright_disk::Disk;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Runs a tool to its end.
pub fn run(tool: &str, args: &[&str]) -> Output {
    Command::new(tool)
        .args(args)
        .output()
        .unwrap_or_else(|e| panic!("{tool}: {e}"))
}

/// Runs a tool and insists on success.
pub fn ok(tool: &str, args: &[&str]) -> String {
    let out = run(tool, args);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(
        out.status.success(),
        "{tool} {args:?}: {}\n{text}{}",
        out.status,
        String::from_utf8_lossy(&out.stderr)
    );
    text
}

pub struct Scratch(tempfile::TempDir);

impl Scratch {
    pub fn new() -> Self {
        let base = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        Scratch(
            tempfile::Builder::new()
                .prefix("disk-")
                .tempdir_in(base)
                .unwrap(),
        )
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }
}

/// A small generator: tests print its seed.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

pub fn open(path: &Path) -> SharedDevice {
    Disk::open(path, OpenMode::default())
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()))
        .device()
        .clone()
}

pub fn read_all(device: &SharedDevice) -> Vec<u8> {
    let bytes = device.geometry().bytes as usize;
    let mut all = Vec::with_capacity(bytes);
    while all.len() < bytes {
        let len = (bytes - all.len()).min(1 << 20);
        all.extend_from_slice(&device.read_buf(DevOffset(all.len() as u64), len).unwrap());
    }
    all
}

/// What qemu reads in an image.
pub fn qemu_reads(scratch: &Scratch, image: &Path) -> Vec<u8> {
    let raw = scratch.text("qemu.raw");
    ok(
        "qemu-img",
        &["convert", "-O", "raw", image.to_str().unwrap(), &raw],
    );
    let bytes = std::fs::read(&raw).unwrap();
    std::fs::remove_file(raw).unwrap();
    bytes
}

/// Random writes, zeroes and discards. What was discarded alone is made known by writing zeroes over it.
pub fn change(device: &SharedDevice, model: &mut [u8], rng: &mut Rng, steps: u32) {
    let sectors = model.len() as u64 / 512;
    for _ in 0..steps {
        let at = rng.below(sectors);
        let longest = [8, 300, 3000][rng.below(3) as usize];
        let len = (1 + rng.below(longest)).min(sectors - at);
        let range = (at * 512) as usize..((at + len) * 512) as usize;
        let place = DevOffset(at * 512);
        match rng.below(8) {
            0 => {
                device.discard(place, len * 512).unwrap();
                device.write_zeroes(place, len * 512).unwrap();
                model[range].fill(0);
            }
            1 => {
                device.write_zeroes(place, len * 512).unwrap();
                model[range].fill(0);
            }
            2 => device.flush().unwrap(),
            _ => {
                let value = rng.next() as u8;
                for (n, byte) in model[range.clone()].iter_mut().enumerate() {
                    *byte = value.wrapping_add((n / 512) as u8) | 1;
                }
                let flags = if rng.below(10) == 0 {
                    Flags::FUA
                } else {
                    Flags::empty()
                };
                device.write_at(place, &model[range], flags).unwrap();
            }
        }
    }
}

pub fn same(what: &str, found: &[u8], expected: &[u8]) {
    assert_eq!(found.len(), expected.len(), "{what}: sizes");
    if let Some(at) = found.iter().zip(expected).position(|(a, b)| a != b) {
        panic!(
            "{what}: byte {at} is {:#x}, not {:#x}",
            found[at], expected[at]
        );
    }
}
