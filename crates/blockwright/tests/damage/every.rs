//! Every field of every structure, with eight values each: what the engine refuses, `check -n` names.
//!
//! The engine opens the volume for reading and reads everything, then opens it for writing and closes it. Whatever it
//! refuses meanwhile, files to be recovered among it, the checker must not call the volume clean. Nothing is repaired
//! here, and no tool is asked: so there is time for all of it. `cargo xtask damage --fields` takes every case, the test
//! one in some.
//!
//! At the end it prints what was refused and how often, numbers left out.

use super::f2fs_cases::unreadable;
use super::lab::f2fs::{show as show_f2fs, verify_f2fs};
use super::lab::{Rng, show, verify_device};
use super::values::Value;
use super::{ext4, f2fs, keep, trees};
use blockwright::{Error, ErrorKind, Volume};
use blockwright_check::ext4::IssueKind;
use blockwright_device::{MemoryDevice, SharedDevice};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// So many faults are told of in full.
const SHOWN: usize = 40;

/// What the reason of a mount says when it refuses the files that fsync wrote.
const UNRECOVERED: &str = "cannot be recovered";

/// What the engine refused: everything but contents whose key is missing.
struct Refused {
    messages: Vec<String>,
    /// Whether the checker must call the volume damaged. Kinds that say "not so" of what there is are no damage by themselves.
    damage: bool,
}

impl Refused {
    fn add(&mut self, error: &Error) {
        let kind = error.kind();
        // A key is missing.
        if kind == ErrorKind::KeyRequired {
            return;
        }
        self.messages.push(format!("{kind:?}: {error}"));
        self.damage = true;
    }
}

/// Opens a copy for reading, reads everything; opens one for writing, closes it.
fn engine(device: &MemoryDevice) -> Refused {
    let mut out = Refused {
        messages: Vec::new(),
        damage: false,
    };
    let shared: SharedDevice = Arc::new(device.snapshot());
    match Volume::options().read_only(true).open_device(shared) {
        Ok(v) => {
            let mut refused = Vec::new();
            let tree = trees::names(&v, &mut refused);
            refused.iter().for_each(|(e, _)| out.add(e));
            out.damage |= !tree.errors.is_empty();
            out.messages.extend(tree.errors);
            if let Err(e) = v.statfs() {
                out.add(&e);
            }
            // Some damage is worked around: a directory is read without its index.
            let found = v.vfs().stats().get("errors_found").unwrap_or(0);
            if found > 0 && !out.damage {
                out.messages.push(format!("{found} errors found"));
                out.damage = true;
            }
            let _ = v.close();
        }
        Err(e) => out.add(&e),
    }
    let shared: SharedDevice = Arc::new(device.snapshot());
    match Volume::open_device(shared) {
        Ok(v) => {
            let found = v.vfs().stats().get("errors_found").unwrap_or(0);
            if found > 0 {
                out.messages
                    .push(format!("for writing: {found} errors found"));
                out.damage = true;
            }
            // Other reasons are no damage: a feature, a host that has the volume.
            let lost = |reason: &String| reason.contains(UNRECOVERED);
            if let Some(reason) = v.read_only_reason().filter(lost) {
                out.messages.push(reason);
                out.damage = true;
            }
            if let Err(e) = v.close() {
                out.add(&e);
            }
        }
        Err(e) => out.add(&e),
    }
    out
}

/// A message without its numbers, paths and quoted texts.
fn class(message: &str) -> String {
    let mut out = String::new();
    for word in message.split(' ') {
        let digit = |c: char| c.is_ascii_digit();
        let word = match word {
            w if w.starts_with('/') => "PATH",
            w if w.contains(digit) => "#",
            w => w,
        };
        if !(word == "#" && out.ends_with('#')) {
            if !out.is_empty() {
                out.push(' ');
            }
            out.push_str(word);
        }
    }
    out
}

/// What came of all cases.
#[derive(Default)]
struct Outcome {
    cases: u64,
    refused: u64,
    classes: BTreeMap<String, (u64, String)>,
    faults: BTreeMap<String, Vec<String>>,
}

impl Outcome {
    /// Judges a case. `check` says whether the volume is clean to it, and what it found.
    fn judge(
        &mut self,
        device: &MemoryDevice,
        what: &str,
        check: impl FnOnce(&MemoryDevice) -> (bool, String),
    ) {
        let refused = catch_unwind(AssertUnwindSafe(|| engine(device)));
        self.judge_refused(device, what, refused, check);
    }

    /// The same, of what the engine said already; `Err` when it panicked.
    fn judge_refused(
        &mut self,
        device: &MemoryDevice,
        what: &str,
        refused: std::thread::Result<Refused>,
        check: impl FnOnce(&MemoryDevice) -> (bool, String),
    ) {
        self.cases += 1;
        let judged = refused.and_then(|refused| {
            let check = AssertUnwindSafe(|| refused.damage.then(|| check(device)));
            let checked = catch_unwind(check)?;
            Ok((refused, checked))
        });
        let Ok((refused, checked)) = judged else {
            self.fault("panic", what, String::new(), device);
            return;
        };
        self.refused += u64::from(refused.damage);
        let mut first = true;
        for message in &refused.messages {
            let class = class(message);
            if let (Some((true, said)), true) = (&checked, first) {
                let story = format!("-- engine: {message}\n-- check -n:\n{said}");
                self.fault(&class, what, story, device);
                first = false;
            }
            let known = self
                .classes
                .entry(class)
                .or_insert_with(|| (0, what.to_owned()));
            known.0 += 1;
        }
    }

    fn fault(&mut self, class: &str, what: &str, story: String, device: &MemoryDevice) {
        let shown: usize = self.faults.values().map(|all| all.len().min(3)).sum();
        let all = self.faults.entry(class.to_owned()).or_default();
        if all.len() < 3 && shown < SHOWN {
            eprintln!("== {what}\n{story}");
            keep(&format!("every-{shown}.img"), device);
        }
        all.push(what.to_owned());
    }

    fn end(self, format: &str) {
        for (class, (n, first)) in &self.classes {
            eprintln!("{n:7} {class}\n            {first}");
        }
        eprintln!(
            "{format}: {} cases, {} refused, with {} messages",
            self.cases,
            self.refused,
            self.classes.len()
        );
        let faults: BTreeMap<_, _> = (self.faults.iter())
            .map(|(class, all)| (class, (all.len(), &all[0])))
            .collect();
        assert!(
            faults.is_empty(),
            "{format}: the engine refuses, and check -n is silent: {faults:#?}"
        );
        assert!(self.refused > 0 && self.classes.len() > 1);
    }
}

/// Which cases of a format are taken: one in how many. `BLOCKWRIGHT_FIELDS=FORMAT:N` for others than the test's.
fn step(format: &str, own: usize) -> Option<usize> {
    let Ok(text) = std::env::var("BLOCKWRIGHT_FIELDS") else {
        return Some(own);
    };
    let (which, step) = text.split_once(':').expect("FORMAT:N");
    (which == format).then(|| step.parse().expect("a number"))
}

/// Whether a base volume is damaged. `BLOCKWRIGHT_BASE=NAME` for one alone.
fn chosen(base: &str) -> bool {
    std::env::var("BLOCKWRIGHT_BASE").map_or(true, |name| name == base)
}

/// The number of a case decides whether it is taken: another of the eight values for each field.
fn taken(n: usize, step: usize) -> bool {
    n.is_multiple_of(step)
}

pub fn run_ext4(own: usize) {
    let Some(step) = step("ext4", own) else {
        return;
    };
    let mut out = Outcome::default();
    let mut n = 0;
    for base in ext4::bases().into_iter().chain(ext4::more_bases()) {
        let device = base.device();
        let mut whole = base.whole();
        let sound = engine(&device);
        assert!(!sound.damage, "{}: {:?}", base.name, sound.messages);
        if !chosen(&base.name) {
            continue;
        }
        let (count, before) = (out.cases, std::time::Instant::now());
        for place in base.places() {
            let len = base.bytes_of(&whole, place);
            let mut rng = Rng::new(0xE4E4 + n as u64);
            let flags = base.is_flags(&whole, place);
            for (value, signed) in cases_of(len, base.large(&whole, len), flags, &mut rng) {
                n += 1;
                if !taken(n, step) {
                    continue;
                }
                let Some((bad, what)) = base.set(&mut whole, &device, place, value, signed) else {
                    continue;
                };
                out.judge(&bad, &what, check_ext4);
            }
        }
        let took = before.elapsed().as_secs_f64();
        eprintln!("{}: {} cases, {took:.1} s", base.name, out.cases - count);
    }
    out.end("ext4");
}

fn check_ext4(device: &MemoryDevice) -> (bool, String) {
    match verify_device(device) {
        Ok(report) => {
            // Notes, because they may be true: a host has the volume, a newer Linux has written the journal.
            let may_be = |kind: &IssueKind| {
                matches!(
                    kind,
                    IssueKind::MmpInUse { .. }
                        | IssueKind::FastCommitUnknown
                        | IssueKind::FastCommitTooMany
                )
            };
            let named = report.issues.iter().any(|i| may_be(&i.kind));
            (report.is_clean() && !named, show(&report))
        }
        Err(e) => (false, e.to_string()),
    }
}

/// A mount for writing waits for twice the interval of multiple-mount protection, in seconds; longer ones are no other code.
const INTERVAL_MAX: u16 = 10;

/// Each copy is mounted by a thread of its own, because a mount waits.
pub fn run_mmp() {
    let base = ext4::with_mmp();
    let device = base.device();
    let mut whole = base.whole();
    let mut cases = vec![(device.snapshot(), "as it was made".to_owned())];
    for place in base.places() {
        let len = base.bytes_of(&whole, place);
        let mut rng = Rng::new(cases.len() as u64);
        for (value, signed) in cases_of(len, base.large(&whole, len), false, &mut rng) {
            let case = base.set(&mut whole, &device, place, value, signed);
            cases.extend(case.filter(|(bad, _)| base.mmp_interval(bad) <= INTERVAL_MAX));
        }
    }
    assert!(cases.len() > 50, "{}", cases.len());
    let judged: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (cases.iter())
            .map(|(device, _)| scope.spawn(|| engine(device)))
            .collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    let mut out = Outcome::default();
    for (n, ((device, what), refused)) in cases.iter().zip(judged).enumerate() {
        let sound = refused.as_ref().is_ok_and(|r| !r.damage);
        assert!(n > 0 || sound, "the volume as it was made is refused");
        out.judge_refused(device, what, refused, check_ext4);
    }
    out.end("mmp");
}

/// What a field of this many bytes is given, and whether the checksum is made right again: eight values, each bit of flags, and one value with a
/// wrong checksum.
fn cases_of(len: usize, large: u64, flags: bool, rng: &mut Rng) -> Vec<(Value, bool)> {
    let mut values = Value::all(len, large, rng).to_vec();
    if flags {
        values.extend((0..len as u64 * 8).map(Value::Bit));
    }
    let signed = values.into_iter().map(|v| (v, true));
    signed.chain([(Value::More, false)]).collect()
}

pub fn run_f2fs(own: usize) {
    let Some(step) = step("f2fs", own) else {
        return;
    };
    let mut out = Outcome::default();
    let mut n = 0;
    for base in f2fs::bases().into_iter().chain(f2fs::more_bases()) {
        let sound = engine(&base.volume.device);
        assert!(!sound.damage, "{}: {:?}", base.name, sound.messages);
        if !chosen(base.name) {
            continue;
        }
        let (count, before) = (out.cases, std::time::Instant::now());
        for place in base.places() {
            let (_, len) = place.1;
            let mut rng = Rng::new(0xF2F2 + n as u64);
            let flags = base.is_flags(place);
            for (value, signed) in cases_of(len, base.large(len), flags, &mut rng) {
                n += 1;
                if !taken(n, step) {
                    continue;
                }
                let Some((bad, what)) = base.set(place, value, signed) else {
                    continue;
                };
                out.judge(&bad, &what, |bad| match verify_f2fs(bad) {
                    // Contents that cannot be unpacked are a note.
                    Ok(report) => {
                        let named = unreadable(&report);
                        (report.is_clean() && named.is_empty(), show_f2fs(&report))
                    }
                    Err(e) => (false, e.to_string()),
                });
            }
        }
        let took = before.elapsed().as_secs_f64();
        eprintln!("{}: {} cases, {took:.1} s", base.name, out.cases - count);
    }
    out.end("f2fs");
}
