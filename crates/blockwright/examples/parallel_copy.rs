//! Copies the files of a host directory into an image with several threads.
//!
//! `cargo run -p blockwright --example parallel_copy -- DIRECTORY disk.img`

use blockwright::Volume;
use std::error::Error;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

const THREADS: usize = 4;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(directory), Some(image)) = (args.next(), args.next()) else {
        return Err("usage: parallel_copy DIRECTORY IMAGE".into());
    };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&directory)? {
        let path = entry?.path();
        if path.is_file() {
            files.push(path);
        }
    }
    let volume = Volume::open(&image)?;
    let next = AtomicUsize::new(0);
    // A volume is `Sync`: the threads share it, and writes to different files share no lock.
    let copy = || -> blockwright::Result<()> {
        while let Some(path) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (Some(name), Ok(bytes)) = (path.file_name(), std::fs::read(path)) else {
                eprintln!("{}: not read", path.display());
                continue;
            };
            volume.write(name, bytes)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| -> blockwright::Result<()> {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(copy)).collect();
        for thread in threads {
            thread.join().expect("a copier panicked")?;
        }
        Ok(())
    })?;
    volume.close()?;
    println!("{} files", files.len());
    Ok(())
}
