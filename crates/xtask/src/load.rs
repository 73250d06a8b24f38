//! Writers that sync all they write, and what must be there afterwards.
//!
//! Each writer takes turns: 64 KiB go to the end of a file, then 4 KiB over an old block of another file; each is followed by `fsync`. Every block of
//! 4 KiB holds its writer, its file and a number, and bytes that follow from them. The old block shows whether a write came back after a newer one.

use crate::steps::file;
use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const WRITERS: u64 = 4;
const BLOCK: usize = 4096;
/// Blocks that a writer appends in one turn.
const APPENDED: u64 = 16;
/// Turns until a writer begins another file.
const FILE_TURNS: u64 = if cfg!(test) { 8 } else { 64 };
/// Files that a writer keeps. It removes older ones, but for those from around a fault.
const FILES: u64 = if cfg!(test) { 2 } else { 12 };
/// Blocks of the file that is written over.
const RING: u64 = 64;

#[derive(Default)]
struct Counts {
    stop: AtomicBool,
    syncs: AtomicU64,
    bytes: AtomicU64,
    /// The longest write with its `fsync`, in microseconds.
    longest: AtomicU64,
}

/// What a writer was promised: turns that were synced, of appended files and of the ring. A turn that runs may be there or not.
#[derive(Default)]
struct Promised {
    appended: u64,
    ring: u64,
    /// Files from around faults, by number. They stay.
    kept: BTreeSet<u64>,
}

pub(crate) struct Load {
    dir: PathBuf,
    counts: Arc<Counts>,
    promised: Arc<Vec<Mutex<Promised>>>,
    writers: Vec<JoinHandle<Result<(), String>>>,
}

/// What happened between two moments.
#[derive(Clone, Copy)]
pub(crate) struct Figures {
    pub(crate) seconds: f64,
    pub(crate) syncs: u64,
    pub(crate) bytes: u64,
    pub(crate) longest: Duration,
}

/// How much of what was promised was compared.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Verified {
    blocks: u64,
    /// Appended blocks in files that their writers had removed.
    removed: u64,
}

impl fmt::Display for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "all {} blocks of 4 KiB that were synced and not removed are there ({} were removed)",
            self.blocks, self.removed
        )
    }
}

impl Load {
    /// Starts the writers in a folder.
    pub(crate) fn start(dir: &Path) -> Self {
        let counts = Arc::new(Counts::default());
        let none = || Mutex::new(Promised::default());
        let promised = Arc::new((0..WRITERS).map(|_| none()).collect::<Vec<_>>());
        let writers = (0..WRITERS).map(|writer| {
            let (dir, counts) = (dir.to_owned(), Arc::clone(&counts));
            let promised = Arc::clone(&promised);
            std::thread::spawn(move || write(&dir, writer, &counts, &promised[writer as usize]))
        });
        Load {
            dir: dir.to_owned(),
            writers: writers.collect(),
            counts: Arc::clone(&counts),
            promised,
        }
    }

    /// What the writers do while `job` runs.
    ///
    /// # Errors
    /// Those of `job`; a writer that ended.
    pub(crate) fn during(
        &self,
        job: impl FnOnce() -> Result<(), String>,
    ) -> Result<Figures, String> {
        let counts = &self.counts;
        let before = (counts.syncs.load(Relaxed), counts.bytes.load(Relaxed));
        counts.longest.store(0, Relaxed);
        let start = Instant::now();
        job()?;
        let seconds = start.elapsed().as_secs_f64();
        let (syncs, bytes) = (counts.syncs.load(Relaxed), counts.bytes.load(Relaxed));
        if self.writers.iter().any(JoinHandle::is_finished) {
            return Err("a writer ended early".to_owned());
        }
        Ok(Figures {
            seconds,
            syncs: syncs - before.0,
            bytes: bytes - before.1,
            longest: Duration::from_micros(counts.longest.load(Relaxed)),
        })
    }

    /// As [`Self::during`], for a job that begins with a fault. Of each writer, the file of this moment, the one before and the one after stay until
    /// the end, so that [`Self::verify`] compares what was synced around the fault.
    ///
    /// # Errors
    /// As [`Self::during`].
    pub(crate) fn during_fault(
        &self,
        job: impl FnOnce() -> Result<(), String>,
    ) -> Result<Figures, String> {
        for promised in self.promised.iter() {
            let mut promised = promised.lock().map_err(|e| e.to_string())?;
            let number = promised.appended / FILE_TURNS;
            promised.kept.extend(number.saturating_sub(1)..=number + 1);
        }
        self.during(job)
    }

    /// Waits until every writer went on: what it waited for is over.
    ///
    /// # Errors
    /// A writer ended, or did not go on within `patience`.
    pub(crate) fn wait_for_all(&self, patience: Duration) -> Result<(), String> {
        let turns = || -> Vec<u64> {
            let all = self.promised.iter();
            all.map(|p| p.lock().map_or(0, |p| p.ring)).collect()
        };
        let (before, start) = (turns(), Instant::now());
        while turns()
            .iter()
            .zip(&before)
            .any(|(now, old)| now < &(old + 2))
        {
            if self.writers.iter().any(JoinHandle::is_finished) {
                return Err("a writer ended early".to_owned());
            }
            if start.elapsed() > patience {
                return Err(format!("a writer did not go on for {patience:?}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Ends the writers, and gives their errors.
    pub(crate) fn stop(&mut self) -> Vec<String> {
        self.counts.stop.store(true, Relaxed);
        let ended = self.writers.drain(..).map(JoinHandle::join);
        ended
            .filter_map(|ended| match ended {
                Ok(result) => result.err(),
                Err(_) => Some("a writer panicked".to_owned()),
            })
            .collect()
    }

    /// Compares what is there with what was promised.
    ///
    /// # Errors
    /// The first block that is not there, or is too old.
    pub(crate) fn verify(&self) -> Result<Verified, String> {
        let (mut blocks, mut removed) = (0, 0);
        for (writer, promised) in (0..).zip(self.promised.iter()) {
            let promised = promised.lock().map_err(|e| e.to_string())?;
            let last = promised.appended / FILE_TURNS;
            for number in 0..=last {
                let turns = (promised.appended - number * FILE_TURNS).min(FILE_TURNS);
                if number + FILES <= last && !promised.kept.contains(&number) {
                    removed += turns * APPENDED;
                    continue;
                }
                if turns == 0 {
                    continue;
                }
                let path = appended(&self.dir, writer, number);
                let bytes = file(&path, fs::read(&path))?;
                for at in 0..turns * APPENDED {
                    let start = at as usize * BLOCK;
                    let found = bytes.get(start..start + BLOCK);
                    if found != Some(&block(writer, number, at)[..]) {
                        return Err(format!("{}: block {at} is lost", path.display()));
                    }
                    blocks += 1;
                }
            }
            let path = ring(&self.dir, writer);
            let bytes = file(&path, fs::read(&path))?;
            for slot in 0..RING.min(promised.ring) {
                // The last promised turn that wrote this slot, and the one that was perhaps under way.
                let newest = (promised.ring - 1 - slot) / RING * RING + slot;
                let start = slot as usize * BLOCK;
                let found = bytes.get(start..start + BLOCK);
                let is = |turn: u64| found == Some(&block(writer, u64::MAX, turn)[..]);
                let under_way = newest + RING == promised.ring && is(promised.ring);
                if !is(newest) && !under_way {
                    return Err(format!(
                        "{}: block {slot} does not have turn {newest}",
                        path.display()
                    ));
                }
                blocks += 1;
            }
        }
        Ok(Verified { blocks, removed })
    }
}

fn appended(dir: &Path, writer: u64, number: u64) -> PathBuf {
    dir.join(format!("writer-{writer}.{number}"))
}

fn ring(dir: &Path, writer: u64) -> PathBuf {
    dir.join(format!("writer-{writer}.ring"))
}

/// The contents of one block of a file, of which no other block has the same.
fn block(writer: u64, number: u64, turn: u64) -> Vec<u8> {
    let mut bytes: Vec<u8> = [writer, number, turn]
        .iter()
        .flat_map(|n| n.to_le_bytes())
        .collect();
    let mut state = writer << 56 ^ number << 32 ^ turn | 1 << 63;
    while bytes.len() < BLOCK {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bytes.extend((mixed ^ mixed >> 27).to_le_bytes());
    }
    bytes
}

fn write(
    dir: &Path,
    writer: u64,
    counts: &Counts,
    promised: &Mutex<Promised>,
) -> Result<(), String> {
    let promise = |change: &dyn Fn(&mut Promised)| {
        promised
            .lock()
            .map(|mut p| change(&mut p))
            .map_err(|e| e.to_string())
    };
    let timed = |path: &Path, to: &File, bytes: u64, write: &dyn Fn() -> std::io::Result<()>| {
        let start = Instant::now();
        file(path, write().and_then(|()| to.sync_all()))?;
        let took = start.elapsed().as_micros() as u64;
        counts.longest.fetch_max(took, Relaxed);
        counts.syncs.fetch_add(1, Relaxed);
        counts.bytes.fetch_add(bytes, Relaxed);
        Ok::<(), String>(())
    };
    let ring_path = ring(dir, writer);
    let over = file(&ring_path, File::create(&ring_path))?;
    for number in 0.. {
        let path = appended(dir, writer, number);
        let to = file(&path, File::create(&path))?;
        for turn in 0..FILE_TURNS {
            if counts.stop.load(Relaxed) {
                return Ok(());
            }
            let blocks = turn * APPENDED..(turn + 1) * APPENDED;
            let bytes: Vec<u8> = blocks.flat_map(|at| block(writer, number, at)).collect();
            timed(&path, &to, bytes.len() as u64, &|| (&to).write_all(&bytes))?;
            promise(&|p| p.appended += 1)?;
            let all = number * FILE_TURNS + turn;
            let bytes = block(writer, u64::MAX, all);
            let at = all % RING * BLOCK as u64;
            timed(&ring_path, &over, bytes.len() as u64, &|| {
                over.write_all_at(&bytes, at)
            })?;
            promise(&|p| p.ring += 1)?;
        }
        if let Some(old) = (number + 1).checked_sub(FILES) {
            let kept = promised.lock().map(|p| p.kept.contains(&old));
            if !kept.map_err(|e| e.to_string())? {
                let old = appended(dir, writer, old);
                file(&old, fs::remove_file(&old))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_block_and_an_old_one_are_found() {
        let dir = std::env::temp_dir().join(format!("blockwright-load-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let mut load = Load::start(&dir);
        load.during_fault(|| Ok(())).unwrap();
        while load.promised.iter().any(|p| p.lock().unwrap().ring <= RING) {
            load.wait_for_all(Duration::from_secs(60)).unwrap();
        }
        assert_eq!(load.stop(), Vec::<String>::new());
        let promised: u64 = load
            .promised
            .iter()
            .map(|p| p.lock().unwrap().appended)
            .sum();
        let found = load.verify().unwrap();
        let all = promised * APPENDED + WRITERS * RING;
        assert_eq!(found.blocks + found.removed, all);
        assert!(found.removed > 0);
        // The first file that was kept for the fault. Later ones were removed.
        let number = *load.promised[1].lock().unwrap().kept.first().unwrap();
        let (file, over) = (appended(&dir, 1, number), ring(&dir, 2));
        let cases = [
            (&file, 3, vec![0; BLOCK], "block 3 is lost"),
            (&file, 3, block(1, number, 3), ""),
            // The turn before the one that was promised.
            (&over, 0, block(2, u64::MAX, 0), "does not have turn"),
        ];
        for (path, at, bytes, says) in cases {
            let file = File::options().write(true).open(path).unwrap();
            file.write_all_at(&bytes, at * BLOCK as u64).unwrap();
            match load.verify() {
                Ok(_) => assert_eq!(says, ""),
                Err(e) => assert!(!says.is_empty() && e.contains(says), "{e}"),
            }
        }
        fs::remove_dir_all(&dir).unwrap();
    }
}
