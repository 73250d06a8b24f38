//! The library's offline operations as a small program for every host, Windows and WASI among them.
//!
//! Tests run it to compare hosts: the same archive must become the same bytes everywhere. The `blockwright` program is for Linux.

#![forbid(unsafe_code)]

use blockwright::device::{self, OpenMode};
use blockwright::reshape::{self, ResizeOptions};
use blockwright::{Format, Volume, VolumeBuilder, export};
use blockwright_check::{ext4, f2fs};
use std::io::Write;
use std::process::ExitCode;

const USAGE: &str = "usage: blockwright-offline COMMAND
  mkfs ext4|f2fs BYTES EPOCH IMAGE ARCHIVE   makes a volume from a tar archive
  ls IMAGE PATH                              names in a directory, with kinds and sizes
  cat IMAGE PATH                             a file's bytes
  put IMAGE PATH FILE                        writes a file into the volume
  info IMAGE                                 format, size and room
  check IMAGE                                issues; exit code 4 when there are any
  resize IMAGE BYTES                         changes the volume's size, and the image's
  export IMAGE ARCHIVE                       the volume as a tar archive";

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(code) => code,
        Err(e) => {
            eprintln!("blockwright-offline: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[&str]) -> Result<ExitCode> {
    match *words {
        ["mkfs", format, bytes, epoch, image, archive] => {
            let format = match format {
                "ext4" => Format::Ext4,
                "f2fs" => Format::F2fs,
                other => return Err(format!("{other} is neither ext4 nor f2fs").into()),
            };
            let report = VolumeBuilder::new()
                .format(format)
                .size(bytes.parse()?)
                .source_date_epoch(epoch.parse()?)
                .from(archive)
                .create(image)?;
            println!("{} bytes", report.bytes);
        }
        ["ls", image, path] => {
            let volume = Volume::open_read_only(image)?;
            let mut lines = Vec::new();
            for entry in volume.read_dir(path)? {
                let entry = entry?;
                let metadata = entry.metadata()?;
                let name = entry.file_name().to_string_lossy().into_owned();
                lines.push(format!(
                    "{:?} {} {name}",
                    metadata.file_type(),
                    metadata.len()
                ));
            }
            lines.sort();
            for line in lines {
                println!("{line}");
            }
        }
        ["cat", image, path] => {
            let volume = Volume::open_read_only(image)?;
            let mut out = std::io::stdout().lock();
            std::io::copy(&mut volume.open_file(path)?, &mut out)?;
            out.flush()?;
        }
        ["put", image, path, file] => {
            let volume = Volume::open(image)?;
            let mut from = std::fs::File::open(file)?;
            let mut to = volume.create_file(path)?;
            std::io::copy(&mut from, &mut to)?;
            drop(to);
            volume.close()?;
        }
        ["info", image] => {
            let volume = Volume::open_read_only(image)?;
            let room = volume.statfs()?;
            println!("format: {:?}", volume.format());
            println!("block bytes: {}", room.block_bytes);
            println!("blocks: {}, {} free", room.blocks, room.blocks_free);
            println!("inodes: {}, {} free", room.files, room.files_free);
        }
        ["check", image] => return check(image),
        ["resize", image, bytes] => {
            let bytes: u64 = bytes.parse()?;
            let device = device::open(image, OpenMode::default())?;
            let before = device.geometry().bytes;
            if before < bytes {
                device.grow(bytes)?;
            }
            let had = reshape::volume_bytes(&device).ok();
            let resized = reshape::resize(&device, &ResizeOptions::to_bytes(bytes));
            let length = reshape::file_bytes(&device, before, had, Some(bytes), resized.as_ref());
            // Windows refuses a second writer until the device is closed.
            drop(device);
            let file = std::fs::OpenOptions::new().write(true).open(image)?;
            file.set_len(length)?;
            let resized = resized?;
            println!("{} bytes", resized.bytes());
        }
        ["export", image, archive] => {
            let volume = Volume::open_read_only(image)?;
            let file = std::fs::File::create_new(archive)?;
            let report = export::export_tar(&volume, "/", file)?;
            println!("{} entries", report.entries);
        }
        _ => return Err(USAGE.into()),
    }
    Ok(ExitCode::SUCCESS)
}

fn check(image: &str) -> Result<ExitCode> {
    let device = device::open(image, OpenMode::read_only())?;
    let (mut issues, left_out): (Vec<String>, u64) = if f2fs::is_f2fs(&device)? {
        let report = f2fs::check(device, &f2fs::CheckOptions::default())?;
        let issues = report.issues.iter().map(ToString::to_string);
        (issues.collect(), report.suppressed)
    } else {
        let report = ext4::check(device, &ext4::CheckOptions::default())?;
        let issues = report.issues.iter().map(ToString::to_string);
        (issues.collect(), report.suppressed)
    };
    if left_out > 0 {
        issues.push(format!("and {left_out} more"));
    }
    for issue in &issues {
        println!("{issue}");
    }
    Ok(match issues.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(4),
    })
}
