//! Checks an image: `check [-n|-p|-y] IMAGE`.

use std::process::ExitCode;

use blockwright_check::ext4::{CheckOptions, check};
use blockwright_check::{Mode, fsck_exit_code};
use blockwright_device::{HostDevice, OpenMode};

fn main() -> ExitCode {
    let mut options = CheckOptions::default();
    let mut image = None;
    for arg in std::env::args().skip(1) {
        match arg.as_str() {
            "-n" => options.mode = Mode::ReadOnly,
            "-p" => options.mode = Mode::Preen,
            "-y" => options.mode = Mode::Yes,
            path => image = Some(path.to_owned()),
        }
    }
    let Some(image) = image else {
        eprintln!("usage: check [-n|-p|-y] IMAGE");
        return ExitCode::from(16);
    };
    let mode = match options.mode {
        Mode::ReadOnly => OpenMode::read_only(),
        _ => OpenMode::default(),
    };
    let device = match HostDevice::open(&image, mode) {
        Ok(device) => device,
        Err(error) => {
            eprintln!("{image}: {error}");
            return ExitCode::from(8);
        }
    };
    match check(device, &options) {
        Ok(report) => {
            for issue in &report.issues {
                println!("{issue}");
            }
            println!("{:?}", report.stats);
            ExitCode::from(fsck_exit_code(&report))
        }
        Err(error) => {
            eprintln!("{image}: {error}");
            ExitCode::from(8)
        }
    }
}
