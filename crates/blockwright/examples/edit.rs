//! Changes one line of a file inside an image, atomically and durably.
//!
//! `cargo run -p blockwright --example edit -- disk.img /etc/hostname newname`

use blockwright::{OpenOptions, Volume};
use std::error::Error;
use std::io::Write;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [image, path, text] = args.as_slice() else {
        return Err("usage: edit IMAGE PATH TEXT".into());
    };
    let volume = Volume::open(image)?;
    let old = volume.metadata(path)?;
    let temporary = format!("{path}.new");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(old.permissions())
        .open(&volume, &temporary)?;
    writeln!(file, "{text}")?;
    // The data reaches the device before the name does, so a crash leaves the old file or the new one.
    file.sync_all()?;
    volume.chown(&temporary, Some(old.uid()), Some(old.gid()))?;
    volume.rename(&temporary, path)?;
    // Reports every error that was met while the rest was written.
    volume.close()?;
    Ok(())
}
