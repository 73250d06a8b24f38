//! Putting an image together again, and reading all its chunks.

use crate::fetch::{THREADS, fetch_checked};
use crate::{ChunkId, Error, Index, Result, Source};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;

/// Problems of one verification that are kept.
const PROBLEMS_MAX: usize = 1000;

/// Calls `job` with each chunk's number, on several threads, until one fails.
fn each(count: usize, job: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    let next = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let error = Mutex::new(None);
    thread::scope(|scope| {
        for _ in 0..THREADS.min(count) {
            scope.spawn(|| {
                while !failed.load(Ordering::Relaxed) {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= count {
                        return;
                    }
                    if let Err(e) = job(n) {
                        failed.store(true, Ordering::Relaxed);
                        error.lock().get_or_insert(e);
                    }
                }
            });
        }
    });
    error.into_inner().map_or(Ok(()), Err)
}

/// Writes the image of an index into a new file, in which chunks of zeroes are holes. `progress` is told how many bytes are done. A file that could not
/// be finished is removed.
///
/// # Errors
/// [`Error::Host`], with `EEXIST` when there is something at `path`; as fetching.
pub fn extract(
    index: &Index,
    source: &dyn Source,
    path: &Path,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<()> {
    let host = |e: &std::io::Error| Error::host(path.display(), e);
    let file = File::create_new(path).map_err(|e| host(&e))?;
    let done = AtomicU64::new(0);
    let write = |n: usize| {
        let (id, bytes) = (index.entries()[n].id, index.chunk_bytes(n));
        let contents = fetch_checked(source, index.digest, id, bytes)?;
        if contents.iter().any(|&byte| byte != 0) {
            file.write_all_at(&contents, index.start(n))
                .map_err(|e| host(&e))?;
        }
        progress(done.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64);
        Ok(())
    };
    let zeroes = index.digest.of(&vec![0; index.sizes.max as usize]);
    let written = file
        .set_len(index.bytes())
        .map_err(|e| host(&e))
        .and_then(|()| {
            each(index.entries().len(), |n| {
                match index.entries()[n].id == zeroes {
                    true => Ok(()),
                    false => write(n),
                }
            })
        })
        .and_then(|()| file.sync_all().map_err(|e| host(&e)));
    if written.is_err() {
        // Half of an image must not look like one. The first error is the one to tell.
        let _already_failing = std::fs::remove_file(path);
    }
    written
}

/// What reading all chunks of an image found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// The image's bytes.
    pub bytes: u64,
    /// Chunks of the image.
    pub chunks: u64,
    /// Different chunks among them.
    pub distinct: u64,
    /// What is wrong, in no order; the first thousand.
    pub problems: Vec<Error>,
}

/// Fetches and checks each chunk of an index. `progress` is told how many chunks are done.
#[must_use]
pub fn verify(index: &Index, source: &dyn Source, progress: &(dyn Fn(u64) + Sync)) -> Verified {
    let mut seen = HashSet::new();
    let distinct: Vec<(ChunkId, usize)> = (0..index.entries().len())
        .map(|n| (index.entries()[n].id, index.chunk_bytes(n)))
        .filter(|chunk| seen.insert(*chunk))
        .collect();
    let problems = Mutex::new(Vec::new());
    let done = AtomicU64::new(0);
    let check = |n: usize| {
        let (id, bytes) = distinct[n];
        if let Err(e) = fetch_checked(source, index.digest, id, bytes) {
            let mut problems = problems.lock();
            if problems.len() < PROBLEMS_MAX {
                problems.push(e);
            }
        }
        progress(done.fetch_add(1, Ordering::Relaxed) + 1);
        Ok(())
    };
    // Problems are collected, so no job fails.
    let _none = each(distinct.len(), check);
    Verified {
        bytes: index.bytes(),
        chunks: index.entries().len() as u64,
        distinct: distinct.len() as u64,
        problems: problems.into_inner(),
    }
}
