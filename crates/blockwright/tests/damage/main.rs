//! Damaged volumes, judged and repaired by us and by the formats' own tools.
//!
//! For each image: `check -n` and the tool agree whether it is damaged (or the difference is in a list with its
//! reason). A copy that `check -y` repaired is clean to both and the engine reads all of it; or `check` refused and
//! said why. And no name, no byte of a file, no attribute is lost that the tool's own repair of another copy keeps.
//!
//! A case follows from its number alone. `cargo xtask damage --format ext4 --seeds 0..5000` runs others than the
//! test's own; with fewer than ten it says everything about each. `BLOCKWRIGHT_KEEP=DIR` keeps the images of cases
//! that fail.

use blockwright_test_support::lab;

#[path = "../hostile/image.rs"]
#[allow(dead_code)] // What it knows of places is for volumes of its own making.
mod image;

#[path = "../hostile/records.rs"]
#[allow(dead_code)]
mod records;

mod agree;
mod chains;
mod every;
mod ext4;
mod ext4_cases;
mod f2fs;
mod f2fs_cases;
mod fields;
mod kernel;
mod known;
mod moves;
mod tools;
mod trees;
mod values;

use std::collections::BTreeMap;
use std::ops::Range;

/// What came of a case. Everything but the first two is a fault of ours.
#[derive(Default)]
pub struct Judgement {
    /// A word for the table at the end.
    pub verdict: &'static str,
    /// Of a known kind, with its reason.
    pub excused: Option<&'static str>,
    /// What is wrong: a word for the table, and the story.
    pub faults: Vec<(&'static str, String)>,
}

/// Numbers from here on are of cases over rare volumes: with damage that others do not have a place for. One in this many numbers of a run
/// stands for such a case, too.
const RARE: u64 = 1 << 32;
const RARE_STEP: usize = 4;
/// Numbers from here on are of cases over volumes of which few structures are damaged: those that other runs hardly meet.
const CHOSEN: u64 = 1 << 33;
/// Numbers from here on are of cases over volumes that wait for a mount: with a log, an orphan, or a chain of nodes.
const WAITING: u64 = 1 << 34;

/// Which list of volumes a case takes, and which volume of it: its number among all, and how often it came before. The lists have so many
/// volumes.
fn volume_of(seed: u64, [common, rare, chosen, waiting]: [usize; 4]) -> (usize, u64) {
    let step = RARE_STEP as u64;
    let lists = [
        (WAITING, common + rare + chosen, waiting),
        (CHOSEN, common + rare, chosen),
        (RARE, common, rare),
    ];
    for (from, first, count) in lists {
        if let Some(n) = seed.checked_sub(from) {
            let (n, count) = (n / step, count as u64);
            return (first + (n % count) as usize, n / count);
        }
    }
    ((seed % common as u64) as usize, seed / common as u64)
}

/// The cases of a run: the test's own number of them, or those of `BLOCKWRIGHT_DAMAGE=FORMAT:A..B`.
fn seeds(format: &str, own: u64) -> Option<Range<u64>> {
    let Ok(text) = std::env::var("BLOCKWRIGHT_DAMAGE") else {
        return Some(0..own);
    };
    let (which, range) = text.split_once(':').expect("FORMAT:A..B");
    let (from, to) = range.split_once("..").expect("A..B");
    let range = from.parse().expect("a number")..to.parse().expect("a number");
    (which == format).then_some(range)
}

/// Runs the cases, tells of those that fail, and fails when there are any.
fn cases(
    format: &str,
    own: u64,
    once: &[u64],
    lists: &[u64],
    mut case: impl FnMut(u64) -> Judgement,
) {
    let Some(range) = seeds(format, own) else {
        return;
    };
    let chatty = range.end - range.start < 10;
    let own_run = std::env::var_os("BLOCKWRIGHT_DAMAGE").is_none();
    let more = once.iter().copied().filter(|_| own_run);
    let mut verdicts: BTreeMap<&str, u64> = BTreeMap::new();
    let mut excused: BTreeMap<&str, u64> = BTreeMap::new();
    let mut faults: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    let mut shown = 0;
    let start = std::time::Instant::now();
    let mut count = 0;
    let rare = (range.clone().step_by(RARE_STEP))
        .filter(|seed| *seed < RARE)
        .flat_map(|seed| lists.iter().map(move |list| list + seed));
    for seed in range.clone().chain(more).chain(rare) {
        count += 1;
        let one = std::panic::AssertUnwindSafe(|| case(seed));
        let judged = std::panic::catch_unwind(one).unwrap_or_else(|_| Judgement {
            verdict: "panicked",
            excused: None,
            faults: vec![("panic", String::new())],
        });
        *verdicts.entry(judged.verdict).or_default() += 1;
        if let Some(reason) = judged.excused {
            *excused.entry(reason).or_default() += 1;
        }
        for (word, story) in judged.faults {
            faults.entry(word).or_default().push(seed);
            shown += 1;
            if !own_run || shown <= 12 {
                eprintln!("== {format} seed {seed}: {word}: {story}");
            }
        }
        if chatty {
            eprintln!("-- {format} seed {seed}: {}", judged.verdict);
        }
    }
    eprintln!(
        "{format} seeds {range:?}, {count} cases in {:.1} s: {verdicts:?}; excused: {excused:?}",
        start.elapsed().as_secs_f64()
    );
    assert!(faults.is_empty(), "{format}: {faults:?}");
}

/// Keeps an image of a case that failed.
fn keep(name: &str, image: &blockwright_device::MemoryDevice) {
    if let Some(dir) = std::env::var_os("BLOCKWRIGHT_KEEP") {
        let dir = std::path::Path::new(&dir);
        let _ = std::fs::create_dir_all(dir);
        let _ = image.save(dir.join(name));
    }
}

#[test]
fn ext4() {
    if lab::tools() {
        let found = [
            // An attribute without a value and with a wrong hash.
            1903,
            // A journal device's number instead of the journal's inode.
            2089,
            // A type in the entry that hides an index block.
            RARE + 1280,
            // Encrypted names with any byte, behind a damaged index.
            RARE + 3288,
            // A directory whose blocks are other directories', too.
            RARE + 256,
            // Inodes that hold attribute values: flags, links.
            RARE + 2140,
            RARE + 2508,
            RARE + 2924,
            // A resize inode with two links.
            RARE + 2236,
            // A name that is not UTF-8, in a leaf for other hashes.
            RARE + 2904,
            // An error number in the journal.
            RARE + 3564,
            // Times and places of attribute values in inodes.
            RARE + 3660,
            RARE + 4302,
            // No checksums any more, in directories whose entries carry hashes.
            RARE + 4250,
            // An impossible size of the resize inode.
            RARE + 4318,
            // One link of an indexed directory.
            RARE + 4946,
            // A padded name of the attribute that says how a file is encrypted.
            RARE + 5161,
        ];
        ext4_cases::run(200, &found);
    }
}

#[test]
fn f2fs() {
    if lab::f2fs::f2fs_tools() {
        let found = [
            // An impossible level of a directory's hash tables.
            RARE + 492,
            // A segment that holds nodes and data.
            RARE + 1824,
        ];
        f2fs_cases::run(200, &found);
    }
}

/// Long runs take every case: some hundred thousand a format.
#[test]
fn every_field_of_ext4() {
    if lab::tools() {
        every::run_ext4(401);
    }
}

/// All of them each time: they wait for the clock, and do so at a time.
#[test]
fn every_field_of_multiple_mount_protection() {
    if lab::tools() {
        every::run_mmp();
    }
}

#[test]
fn every_field_of_f2fs() {
    if lab::f2fs::f2fs_tools() {
        every::run_f2fs(401);
    }
}
