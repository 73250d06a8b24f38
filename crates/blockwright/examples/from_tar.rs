//! Builds an image from a tar archive.
//!
//! `cargo run -p blockwright --example from_tar -- rootfs.tar.zst disk.img`

use blockwright::VolumeBuilder;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args_os().skip(1);
    let (Some(archive), Some(image)) = (args.next(), args.next()) else {
        return Err("usage: from_tar ARCHIVE IMAGE".into());
    };
    let report = VolumeBuilder::new()
        .label("rootfs")
        .size_auto(16 << 20)
        .from(&archive)
        .create(&image)?;
    println!(
        "{}: {} bytes free",
        image.display(),
        report.free_blocks * u64::from(report.block_bytes)
    );
    Ok(())
}
