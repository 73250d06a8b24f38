//! Chunks that were fetched, in a folder, up to a bound.
//!
//! The folder is laid out as a store. Any number of processes share it: files appear whole, by renaming; the oldest go when there are too many. A file's
//! age is that of its last use, which is kept in its modification time.
//!
//! The folder is trusted no more than a store: the reader checks every chunk. Nothing fails when the cache does; what cannot be kept is fetched
//! again.

use crate::files::{PARTIAL, read_file, write_whole};
use crate::{ChunkId, Error, Result};
use parking_lot::Mutex;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// After how much of the bound was written the folder is measured again.
const MEASURE_EVERY: u64 = 16;
/// How much of the bound is left after the oldest chunks went, in sixteenths.
const KEPT_SIXTEENTHS: u64 = 14;
/// How old a use must be to be noted again.
const TOUCH_AFTER: Duration = Duration::from_secs(60);
/// A half-written file of this age belongs to no process any more.
const ABANDONED_AFTER: Duration = Duration::from_secs(3600);

pub(crate) struct Cache {
    folder: PathBuf,
    bytes_max: u64,
    /// Bytes that were written since the folder was measured.
    written: Mutex<u64>,
}

struct Found {
    used: SystemTime,
    bytes: u64,
    path: PathBuf,
}

impl Cache {
    /// Makes the folder, and brings it below its bound.
    pub(crate) fn open(folder: &Path, bytes_max: u64) -> Result<Self> {
        fs::create_dir_all(folder).map_err(|e| Error::host(folder.display(), &e))?;
        let cache = Cache {
            folder: folder.to_owned(),
            bytes_max,
            written: Mutex::new(0),
        };
        cache.trim();
        Ok(cache)
    }

    /// For messages.
    pub(crate) fn name(&self) -> String {
        format!("the cache {}", self.folder.display())
    }

    /// A chunk that is there.
    pub(crate) fn get(&self, id: ChunkId, most: u64) -> Option<Vec<u8>> {
        let path = self.folder.join(id.path());
        let bytes = read_file(&path, most).ok().flatten()?;
        if bytes.len() as u64 > most {
            return None;
        }
        let now = SystemTime::now();
        let used = fs::metadata(&path).and_then(|meta| meta.modified());
        if used.is_ok_and(|used| now.duration_since(used).is_ok_and(|age| age > TOUCH_AFTER)) {
            // Only the order in which chunks go depends on it.
            let _touched = File::options()
                .append(true)
                .open(&path)
                .and_then(|file| file.set_modified(now));
        }
        Some(bytes)
    }

    /// Keeps a chunk, if the host allows it.
    pub(crate) fn put(&self, id: ChunkId, bytes: &[u8]) {
        if bytes.len() as u64 > self.bytes_max {
            return;
        }
        let path = self.folder.join(id.path());
        if write_whole(&path, bytes).is_err() {
            return;
        }
        let measure = {
            let mut written = self.written.lock();
            *written += bytes.len() as u64;
            let due = *written > self.bytes_max / MEASURE_EVERY;
            if due {
                *written = 0;
            }
            due
        };
        if measure {
            self.trim();
        }
    }

    /// Removes the oldest chunks when there are too many.
    fn trim(&self) {
        let mut found = Vec::new();
        let now = SystemTime::now();
        for folder in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            for entry in fs::read_dir(folder.path()).into_iter().flatten().flatten() {
                let path = entry.path();
                let Ok(meta) = entry.metadata() else { continue };
                let used = meta.modified().unwrap_or(now);
                let is_chunk = path.extension().is_some_and(|e| e == "cacnk");
                let name = entry.file_name();
                let is_partial = name.to_str().is_some_and(|name| name.starts_with(PARTIAL));
                if meta.is_file() && is_chunk {
                    found.push(Found {
                        used,
                        bytes: meta.len(),
                        path,
                    });
                } else if is_partial
                    && now
                        .duration_since(used)
                        .is_ok_and(|age| age > ABANDONED_AFTER)
                {
                    let _another_may_have_removed_it = fs::remove_file(path);
                }
            }
        }
        let mut total: u64 = found.iter().map(|f| f.bytes).sum();
        if total <= self.bytes_max - self.bytes_max / MEASURE_EVERY {
            return;
        }
        found.sort_by_key(|f| f.used);
        for old in found {
            if total <= self.bytes_max / 16 * KEPT_SIXTEENTHS {
                break;
            }
            let _another_may_have_removed_it = fs::remove_file(old.path);
            total -= old.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u32) -> ChunkId {
        let mut id = [0; 32];
        id[..4].copy_from_slice(&n.to_be_bytes());
        id[4..8].copy_from_slice(&n.wrapping_mul(0x9E37_79B9).to_be_bytes());
        ChunkId(id)
    }

    fn bytes_in(folder: &Path) -> u64 {
        let mut total = 0;
        for entry in fs::read_dir(folder).unwrap().flatten() {
            let meta = entry.metadata().unwrap();
            total += match meta.is_dir() {
                true => bytes_in(&entry.path()),
                false => meta.len(),
            };
        }
        total
    }

    #[test]
    fn the_folder_stays_below_its_bound_and_keeps_what_is_used() {
        let scratch = tempfile::tempdir().unwrap();
        let cache = Cache::open(scratch.path(), 100_000).unwrap();
        let old = SystemTime::now() - Duration::from_secs(4000);
        for n in 0..300 {
            cache.put(id(n), &[n as u8; 1000]);
            let path = scratch.path().join(id(n).path());
            // As if time went by.
            if let Ok(file) = File::options().append(true).open(path) {
                file.set_modified(old + Duration::from_secs(n.into()))
                    .unwrap();
            }
            assert!(bytes_in(scratch.path()) <= 100_000, "after {n}");
            // The first one is used all the time.
            assert!(cache.get(id(0), 1000).is_some(), "after {n}");
        }
        assert!(cache.get(id(299), 1000).is_some());
        assert!(cache.get(id(1), 1000).is_none());
        assert!(cache.get(id(299), 999).is_none(), "too large");
        cache.put(id(1000), &[0; 100_001]);
        assert!(cache.get(id(1000), 1 << 20).is_none());
    }

    #[test]
    fn another_process_may_have_filled_it() {
        let scratch = tempfile::tempdir().unwrap();
        let first = Cache::open(scratch.path(), 1 << 30).unwrap();
        for n in 0..100 {
            first.put(id(n), &[1; 1000]);
        }
        let partial = scratch.path().join("0000").join(format!("{PARTIAL}x"));
        fs::write(&partial, b"half").unwrap();
        let file = File::options().append(true).open(&partial).unwrap();
        file.set_modified(SystemTime::now() - 2 * ABANDONED_AFTER)
            .unwrap();
        Cache::open(scratch.path(), 50_000).unwrap();
        assert!(bytes_in(scratch.path()) <= 50_000);
        assert!(!partial.exists());
    }
}
