//! Making files: create and close, by one thread and by eight, each in a directory of its own.

use super::library;
use crate::runner;
use crate::table::Sample;
use crate::volumes::Format;
use crate::write_path::{Place, beside, open};
use std::path::Path;
use std::time::Instant;

/// Of the two workloads.
pub const THREADS: [u64; 2] = [1, 8];

/// The workload's name.
pub fn name(threads: u64) -> String {
    match threads {
        1 => "create and close, 1 thread".to_owned(),
        n => format!("create and close, {n} threads"),
    }
}

/// Makes the directories.
pub fn prepare(mnt: &Path, threads: u64) -> Result<(), String> {
    for t in 0..threads {
        std::fs::create_dir(mnt.join(format!("d{t}"))).map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// Makes `files` files by each of `threads` threads.
pub fn in_mount(mnt: &Path, threads: u64, files: u64) -> Result<Sample, String> {
    let began = Instant::now();
    beside(threads as usize, |t| {
        let dir = mnt.join(format!("d{t}"));
        for k in 0..files {
            std::fs::OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(dir.join(format!("f{k}")))
                .map_err(|e| e.to_string())?;
        }
        Ok(())
    })?;
    let seconds = began.elapsed().as_secs_f64();
    Ok(Sample::rate((files * threads) as f64, seconds))
}

/// Whether the files that [`in_mount`] made are all there, empty, and nothing else is.
pub fn verify(mnt: &Path, threads: u64, files: u64) -> Result<(), String> {
    for t in 0..threads {
        let dir = mnt.join(format!("d{t}"));
        for k in 0..files {
            let path = dir.join(format!("f{k}"));
            let at = |e: std::io::Error| format!("{}: {e}", path.display());
            let meta = std::fs::metadata(&path).map_err(at)?;
            if !meta.is_file() || meta.len() != 0 {
                return Err(format!("{}: not an empty file", path.display()));
            }
        }
        let listed = std::fs::read_dir(&dir).map_err(|e| e.to_string())?.count();
        if listed as u64 != files {
            return Err(format!("{}: {listed} files, not {files}", dir.display()));
        }
    }
    Ok(())
}

/// The same through the library.
pub fn in_library(
    place: &Place,
    format: Format,
    touch: u64,
    threads: u64,
    files: u64,
) -> Result<Sample, String> {
    let bench = library::fresh(place, format)?;
    let volume = bench.open(&library::options(format))?;
    for t in 0..threads {
        volume
            .create_dir(format!("/d{t}"))
            .map_err(|e| e.to_string())?;
    }
    runner::touch(touch)?;
    let began = Instant::now();
    beside(threads as usize, |t| {
        for k in 0..files {
            drop(open(&volume, &format!("/d{t}/f{k}"), false)?);
        }
        Ok(())
    })?;
    let seconds = began.elapsed().as_secs_f64();
    volume.close().map_err(|e| e.to_string())?;
    Ok(Sample::rate((files * threads) as f64, seconds))
}
