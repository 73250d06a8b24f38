//! The page in a real browser: a large ext4, an f2fs, a qcow2 with partitions, a damaged image, and a module that traps.
//! `drive.mjs` presses the buttons and compares what it sees. `map.mjs` zooms in maps. `BLOCKWRIGHT_SCREENSHOTS=DIR` keeps pictures of the pages.

use blockwright::{Format, Volume, VolumeBuilder};
use blockwright_check::usage::UsageOptions;
use blockwright_device::OpenMode;
use blockwright_map as map;
use blockwright_oracles as oracles;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// A module of WebAssembly whose `serve` is `unreachable`: `(module (memory (export "memory") 1) (func (export "serve") (result i32) unreachable))`.
const TRAP: &[u8] = b"\0asm\x01\0\0\0\x01\x05\x01\x60\0\x01\x7f\x03\x02\x01\0\x05\x03\x01\0\x01\x07\x12\x02\x06memory\x02\0\x05serve\0\0\x0a\x05\x01\x03\0\0\x0b";

fn make(path: &Path, format: Format, bytes: u64) -> Volume {
    let made = VolumeBuilder::new().format(format).size(bytes).create(path);
    made.expect("made");
    Volume::open(path).expect("opened")
}

fn done(command: &mut Command) -> String {
    let out = command.output().expect("it runs");
    let told = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(
        out.status.success(),
        "{command:?}: {told}{}",
        String::from_utf8_lossy(&out.stderr)
    );
    told
}

/// Says in the bitmap of blocks of the first group that 512 blocks are free.
fn forget_blocks_in_use(bytes: &mut [u8]) {
    let number = |at: usize| {
        let four = bytes[at..at + 4].try_into().expect("four bytes");
        u32::from_le_bytes(four) as usize
    };
    let block = 1024 << number(1024 + 24);
    // The table of groups begins in the block behind the superblock's.
    let bitmap = number(if block == 1024 { 2048 } else { block });
    bytes[bitmap * block..bitmap * block + 64].fill(0);
}

/// Runs a script on a folder, and keeps its pictures.
fn drive(script: &str, dir: &Path, pictures: &[&str]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(script);
    println!("{}", done(Command::new("node").arg(script).arg(dir)));
    if let Some(kept) = std::env::var_os("BLOCKWRIGHT_SCREENSHOTS") {
        for name in pictures {
            let name = format!("{name}.png");
            std::fs::copy(dir.join(&name), Path::new(&kept).join(&name)).expect("copied");
        }
    }
}

#[test]
fn images_are_browsed_in_a_browser() {
    if !oracles::have(&["chromium", "chromedriver", "node", "qemu-img", "sfdisk"]) {
        return;
    }
    let sysroot = done(Command::new("rustc").args(["--print", "sysroot"]));
    if !Path::new(sysroot.trim())
        .join("lib/rustlib/wasm32-wasip1")
        .is_dir()
    {
        oracles::leave("rustup target add wasm32-wasip1");
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let at = |name: &str| dir.path().join(name);

    let volume = make(&at("large.ext4"), Format::Ext4, 2 << 30);
    let data: Vec<u8> = (0..3_000_017u32).map(|i| (i ^ i >> 9) as u8).collect();
    std::fs::write(at("data.bin"), &data).expect("written");
    volume.write("/data.bin", &data).expect("written");
    volume
        .write(std::ffi::OsStr::from_bytes(b"/caf\xe9"), b"x")
        .expect("written");
    volume.create_dir("/many").expect("made");
    for n in 0..10_000 {
        volume
            .write(format!("/many/file-{n:04}"), b"")
            .expect("written");
    }
    // More than the page collects in memory.
    volume.create_dir("/heavy").expect("made");
    let heavy: Vec<u8> = (0..70u32 << 20).map(|i| (i >> 12) as u8).collect();
    std::fs::write(at("heavy.bin"), &heavy).expect("written");
    volume.write("/heavy/heavy.bin", &heavy).expect("written");
    volume.close().expect("closed");

    let volume = make(&at("small.f2fs"), Format::F2fs, 64 << 20);
    volume.write("/hello", b"f2fs").expect("written");
    volume.create_dir("/folder").expect("made");
    let large: Vec<u8> = data.iter().rev().copied().collect();
    std::fs::write(at("large.bin"), &large).expect("written");
    volume.write("/folder/large.bin", &large).expect("written");
    volume.close().expect("closed");

    // Two partitions with a file of the same name.
    let mut disk = vec![0; 1 << 20];
    for letter in [b'A', b'B'] {
        let volume = make(&at("inside.ext4"), Format::Ext4, 32 << 20);
        volume.write("/inside", b"1").expect("written");
        let same = vec![letter; 16 << 20];
        volume.write("/same", &same).expect("written");
        volume.close().expect("closed");
        disk.extend(std::fs::read(at("inside.ext4")).expect("read"));
    }
    let inner = disk[disk.len() - (32 << 20)..].to_vec();
    std::fs::write(at("disk.raw"), disk).expect("written");
    let table = "label: dos\nstart=2048, size=65536, type=83\nstart=67584, size=65536, type=83\n";
    std::fs::write(at("table"), table).expect("written");
    let tool = |name: &str| Command::new(oracles::find(name).expect("found"));
    let table = std::fs::File::open(at("table")).expect("opened");
    done(tool("sfdisk").arg("-q").arg(at("disk.raw")).stdin(table));
    done(
        tool("qemu-img")
            .args(["convert", "-O", "qcow2"])
            .args([at("disk.raw"), at("disk.qcow2")]),
    );

    // What Linux compressed on f2fs by zstd, in a qcow2 file that is compressed by zstd, too.
    let linux = include_bytes!("../../blockwright/tests/data/f2fs-compressed-by-linux.img.zst");
    let linux = zstd::stream::decode_all(&linux[..]).expect("unpacked");
    std::fs::write(at("linux.f2fs"), linux).expect("written");
    let packed = [
        "convert",
        "-c",
        "-O",
        "qcow2",
        "-o",
        "compression_type=zstd",
    ];
    done(
        tool("qemu-img")
            .args(packed)
            .args([at("linux.f2fs"), at("packed.qcow2")]),
    );
    let volume = Volume::open_read_only(at("linux.f2fs")).expect("opened");
    let mixed = volume.read("/zstd-2/mixed").expect("read");
    std::fs::write(at("mixed.bin"), mixed).expect("written");
    volume.close().expect("closed");

    let mut bytes = inner;
    forget_blocks_in_use(&mut bytes);
    std::fs::write(at("damaged.ext4"), bytes).expect("written");

    let page = at("page.html");
    done(
        Command::new(env!("CARGO_BIN_EXE_blockwright-web-page"))
            .args(["--profile", "quick"])
            .arg(&page),
    );
    std::fs::write(at("trap.wasm"), TRAP).expect("written");
    done(
        Command::new(env!("CARGO_BIN_EXE_blockwright-web-page"))
            .arg("--module")
            .args([at("trap.wasm"), at("trap.html")]),
    );
    let pictures = ["files", "map", "partition", "damaged", "trap"];
    drive("drive.mjs", dir.path(), &pictures);
}

#[test]
fn maps_are_zoomed_in_a_browser() {
    if !oracles::have(&["chromium", "chromedriver", "node"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    for format in [Format::Ext4, Format::F2fs] {
        let image = dir.path().join("image");
        let volume = make(&image, format, 128 << 20);
        volume.write("/file", vec![7; 20 << 20]).expect("written");
        volume.close().expect("closed");
        if format == Format::Ext4 {
            let mut bytes = std::fs::read(&image).expect("read");
            forget_blocks_in_use(&mut bytes);
            std::fs::write(&image, bytes).expect("written");
        }
        let device = blockwright_device::open(&image, OpenMode::read_only()).expect("opened");
        let (name, usage) = map::survey(device, &UsageOptions::default()).expect("a map");
        let page = map::page(&usage, "image", &map::about(&usage, name)).expect("a page");
        std::fs::write(dir.path().join(format!("{format}.html")), page).expect("written");
        std::fs::remove_file(&image).expect("removed");
    }
    let pictures = ["map-whole", "map-block", "map-issue", "map-age"];
    drive("map.mjs", dir.path(), &pictures);
}

#[test]
fn a_chromedriver_that_does_not_start_is_an_error() {
    if !oracles::have(&["node", "timeout"]) {
        return;
    }
    let tool = |name: &str| oracles::find(name).expect("found");
    let dir = tempfile::tempdir().expect("a folder");
    let driver = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/driver.mjs");
    // A server keeps node running, as in `drive.mjs`.
    let script = "import { createServer } from 'node:http';
        createServer().listen(0, '127.0.0.1');
        const { browser } = await import(process.argv[1]);
        await browser('', '', Number(process.argv[2]));";
    for (program, limit, says) in [
        (None, "30000", "chromedriver does not start"),
        (Some("exit 3"), "30000", "chromedriver ended (3)"),
        (
            Some("exec /bin/sleep 600"),
            "100",
            "chromedriver has no port",
        ),
    ] {
        if let Some(program) = program {
            let path = dir.path().join("chromedriver");
            std::fs::write(&path, format!("#!/bin/sh\n{program}\n")).expect("written");
            let mode = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(&path, mode).expect("executable");
        }
        let out = Command::new(tool("timeout"))
            .args(["-k", "5", "60"])
            .arg(tool("node"))
            .args(["--input-type=module", "-e", script])
            .arg(&driver)
            .arg(limit)
            .env("PATH", dir.path())
            .output()
            .expect("it runs");
        let told = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{told}");
        assert!(told.contains(says), "{told}");
    }
}
