//! Lists an image's files with type, size and path. The image is not changed.
//!
//! `cargo run -p blockwright --example walk -- disk.img`

use blockwright::Volume;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let Some(image) = std::env::args_os().nth(1) else {
        return Err("usage: walk IMAGE".into());
    };
    let volume = Volume::open_read_only(image)?;
    let (mut files, mut bytes) = (0_u64, 0_u64);
    for entry in volume.walk("/") {
        let entry = match entry {
            Ok(entry) => entry,
            // A damaged directory does not end the walk.
            Err(e) => {
                eprintln!("{e}");
                continue;
            }
        };
        let metadata = &entry.metadata;
        println!(
            "{:<12} {:>10} {}",
            format!("{:?}", metadata.file_type()),
            metadata.len(),
            entry.path.display()
        );
        files += 1;
        bytes += metadata.len();
    }
    println!("{files} entries, {bytes} bytes");
    Ok(())
}
