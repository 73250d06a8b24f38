//! One file, and everything that a program can do to its contents: buffered, direct and mapped reads and writes mixed, truncations,
//! holes, allocation, copies, syncs. Every read is compared with what was written.

use crate::common::populate::Rng;
use blockwright_device::AlignedBuf;
use blockwright_device::mapped::MappedRange;
use rustix::fs::{Advice, FallocateFlags};
use std::collections::VecDeque;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

/// The file is never longer.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Nothing that is read, written or moved at once is longer.
const OP_BYTES_MAX: u64 = 96 << 10;
/// What direct I/O is aligned to.
const ALIGN: u64 = 4096;
/// Operations that are told when one fails.
const TOLD: usize = 12;

/// The file, and what it must hold.
pub struct Mixed {
    path: PathBuf,
    rng: Rng,
    seed: u64,
    buffered: File,
    direct: File,
    /// The file from its beginning as far as it reached then; it is never shortened below that.
    mapped: Option<(MappedRange, u64)>,
    model: Vec<u8>,
    done: VecDeque<String>,
}

fn open(path: &PathBuf, direct: bool) -> File {
    let flags = match direct {
        true => rustix::fs::OFlags::DIRECT.bits() as i32,
        false => 0,
    };
    let file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .custom_flags(flags)
        .open(path);
    file.unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

impl Mixed {
    pub fn new(path: PathBuf, seed: u64) -> Self {
        Mixed {
            buffered: open(&path, false),
            direct: open(&path, true),
            path,
            rng: Rng::new(seed),
            seed,
            mapped: None,
            model: Vec::new(),
            done: VecDeque::new(),
        }
    }

    /// What the file must hold.
    pub fn model(&self) -> &[u8] {
        &self.model
    }

    pub fn run(&mut self, operations: usize) {
        for n in 0..operations {
            self.step(n);
        }
        self.compare("at the end, buffered", 0, &self.read(0, self.model.len()));
        self.mapped = None;
    }

    fn failed(&self, what: &str) -> ! {
        panic!(
            "{}, seed {}: {what}; the last operations:\n{:#?}",
            self.path.display(),
            self.seed,
            self.done
        )
    }

    fn must<T, E: std::fmt::Display>(&self, result: Result<T, E>) -> T {
        result.unwrap_or_else(|e| self.failed(&e.to_string()))
    }

    fn size(&self) -> u64 {
        self.model.len() as u64
    }

    /// A range inside of the file, if it is not empty.
    fn inside(&mut self) -> (u64, u64) {
        let at = self.rng.below(self.size());
        (at, 1 + self.rng.below(OP_BYTES_MAX.min(self.size() - at)))
    }

    /// A range that may begin, and end, past the end of the file.
    fn anywhere(&mut self) -> (u64, u64) {
        let at = self.rng.below(FILE_BYTES_MAX);
        let len = 1 + self.rng.below(OP_BYTES_MAX.min(FILE_BYTES_MAX - at));
        // Most files grow step by step.
        match self.rng.below(4) {
            0 => (at, len),
            _ => (at.min(self.size()), len),
        }
    }

    fn aligned((at, len): (u64, u64)) -> (u64, u64) {
        let end = (at + len).next_multiple_of(ALIGN).min(FILE_BYTES_MAX);
        (at / ALIGN * ALIGN, end - at / ALIGN * ALIGN)
    }

    fn write_model(&mut self, at: u64, bytes: &[u8]) {
        let (at, end) = (at as usize, at as usize + bytes.len());
        if self.model.len() < end {
            self.model.resize(end, 0);
        }
        self.model[at..end].copy_from_slice(bytes);
    }

    fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut seen = vec![0; len];
        self.must(self.buffered.read_exact_at(&mut seen, at));
        seen
    }

    fn compare(&self, how: &str, at: u64, seen: &[u8]) {
        let want = &self.model[at as usize..at as usize + seen.len()];
        if let Some(n) = want.iter().zip(seen).position(|(a, b)| a != b) {
            let bad = want.iter().zip(seen).filter(|(a, b)| a != b).count();
            self.failed(&format!(
                "{how}, {at} + {}: {bad} bytes are wrong, the first at {}: {} instead of {}",
                seen.len(),
                at as usize + n,
                seen[n],
                want[n]
            ));
        }
    }

    /// The mapping, made anew where there is none that reaches so far.
    fn mapping(&mut self, end: u64) -> &mut MappedRange {
        if self.mapped.as_ref().is_none_or(|(_, to)| *to < end) {
            let size = self.size();
            let new = MappedRange::new(&self.buffered, 0, size as usize);
            self.mapped = Some((self.must(new), size));
        }
        &mut self.mapped.as_mut().expect("just made").0
    }

    fn step(&mut self, n: usize) {
        let mut kind = self.rng.below(40);
        if self.model.is_empty() && !(8..20).contains(&kind) {
            kind = 8;
        }
        match kind {
            0..4 => {
                let (at, len) = self.inside();
                let seen = self.read(at, len as usize);
                self.compare(&format!("{n}: read"), at, &seen);
            }
            4..8 => {
                let (at, len) = Self::aligned(self.inside());
                let mut buffer = AlignedBuf::zeroed(len as usize);
                let got = self.must(self.direct.read_at(&mut buffer, at));
                let want = len.min(self.size() - at) as usize;
                if got != want {
                    self.failed(&format!("{n}: {got} of {want} bytes read directly at {at}"));
                }
                self.compare(&format!("{n}: direct read"), at, &buffer[..got]);
            }
            8..14 => {
                let (at, len) = self.anywhere();
                let bytes = self.rng.bytes(len as usize);
                self.say(n, "write", at, len);
                self.must(self.buffered.write_all_at(&bytes, at));
                self.write_model(at, &bytes);
            }
            14..20 => {
                let (at, len) = Self::aligned(self.anywhere());
                let bytes = self.rng.bytes(len as usize);
                self.say(n, "direct write", at, len);
                let buffer = AlignedBuf::copy_of(&bytes);
                self.must(self.direct.write_all_at(&buffer, at));
                self.write_model(at, &bytes);
            }
            20..23 => {
                let (at, len) = self.inside();
                let mut seen = vec![0; len as usize];
                self.mapping(at + len).read(at as usize, &mut seen);
                self.compare(&format!("{n}: mapped read"), at, &seen);
            }
            23..27 => {
                let (at, len) = self.inside();
                let bytes = self.rng.bytes(len as usize);
                let synced = self.rng.below(4) == 0;
                self.say(n, if synced { "mapped, synced" } else { "mapped" }, at, len);
                let range = self.mapping(at + len);
                range.write(at as usize, &bytes);
                let result = if synced { range.sync() } else { Ok(()) };
                self.must(result);
                self.write_model(at, &bytes);
            }
            27..30 => {
                let size = self.rng.below(FILE_BYTES_MAX);
                self.say(n, "truncate to", size, 0);
                if self.mapped.as_ref().is_some_and(|(_, to)| *to > size) {
                    self.mapped = None;
                }
                self.must(self.buffered.set_len(size));
                self.model.resize(size as usize, 0);
            }
            30..33 => {
                let (at, len) = self.inside();
                let flags = match self.rng.below(2) {
                    0 => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                    _ => FallocateFlags::ZERO_RANGE,
                };
                self.say(n, &format!("{flags:?}"), at, len);
                self.must(rustix::fs::fallocate(&self.buffered, flags, at, len));
                self.model[at as usize..(at + len) as usize].fill(0);
            }
            33 => {
                let (at, len) = self.anywhere();
                self.say(n, "allocate", at, len);
                let none = FallocateFlags::empty();
                self.must(rustix::fs::fallocate(&self.buffered, none, at, len));
                let size = self.size().max(at + len);
                self.model.resize(size as usize, 0);
            }
            34 => {
                let (from, len) = self.inside();
                let to = self.rng.below(FILE_BYTES_MAX - len);
                if from.abs_diff(to) < len {
                    return;
                }
                self.say(n, &format!("copy from {from} to"), to, len);
                let copied = self.model[from as usize..(from + len) as usize].to_vec();
                self.copy(from, to, len);
                self.write_model(to, &copied);
            }
            35 => {
                self.say(n, "fsync", 0, 0);
                self.must(self.buffered.sync_all());
            }
            36 => {
                self.say(n, "fdatasync", 0, 0);
                self.must(self.direct.sync_data());
            }
            37 => {
                // The kernel forgets what it may: later reads come to the server.
                self.must(self.buffered.sync_data());
                self.say(n, "forget", 0, 0);
                let dropped = rustix::fs::fadvise(&self.buffered, 0, None, Advice::DontNeed);
                self.must(dropped);
            }
            _ => {
                self.say(n, "reopen", 0, 0);
                self.mapped = None;
                self.buffered = open(&self.path, false);
                self.direct = open(&self.path, true);
            }
        }
    }

    fn say(&mut self, n: usize, what: &str, at: u64, len: u64) {
        if self.done.len() == TOLD {
            self.done.pop_front();
        }
        self.done.push_back(format!("{n}: {what} {at} + {len}"));
    }

    fn copy(&self, from: u64, to: u64, len: u64) {
        let (mut from, mut to, mut left) = (from, to, len as usize);
        while left > 0 {
            let file = &self.buffered;
            let copied =
                rustix::fs::copy_file_range(file, Some(&mut from), file, Some(&mut to), left);
            match self.must(copied) {
                0 => self.failed("a copy ended early"),
                n => left -= n,
            }
        }
    }
}
