//! Comparing our repair with e2fsck's.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use blockwright_check::Mode;

use crate::common::volume::Volume;
use crate::common::{Lab, repair, show, verify};

/// A path's kind and size, and what it holds or points at.
pub type Listing = BTreeMap<String, (char, u64, Vec<u8>)>;

/// What a kind of damage is called, and how it is done.
pub type Damage = (&'static str, fn(&mut Volume));

/// Files longer than that are holes at their end; only their beginning is compared.
const READ_MAX: u64 = 1 << 20;

fn walk(root: &Path, at: &Path, out: &mut Listing) {
    use std::io::Read;
    let Ok(entries) = std::fs::read_dir(at) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        let name = path.strip_prefix(root).unwrap();
        let name = name.to_string_lossy().into_owned();
        let meta = std::fs::symlink_metadata(&path).unwrap();
        let kind = meta.file_type();
        if kind.is_dir() {
            out.insert(name, ('d', 0, Vec::new()));
            walk(root, &path, out);
        } else if kind.is_symlink() {
            let target = std::fs::read_link(&path).unwrap();
            let target = target.to_string_lossy().into_owned().into_bytes();
            out.insert(name, ('l', 0, target));
        } else if kind.is_file() {
            let mut bytes = Vec::new();
            let file = std::fs::File::open(&path).unwrap();
            file.take(READ_MAX).read_to_end(&mut bytes).unwrap();
            out.insert(name, ('f', meta.len(), bytes));
        } else {
            out.insert(name, ('o', 0, Vec::new()));
        }
    }
}

/// All paths of a volume, as debugfs reads them.
pub fn listing(lab: &Lab, image: &[u8]) -> Listing {
    let path = lab.dir.path().join("list.img");
    let out = lab.dir.path().join("list");
    std::fs::write(&path, image).unwrap();
    let _ = std::fs::remove_dir_all(&out);
    std::fs::create_dir(&out).unwrap();
    let done = Command::new("debugfs")
        .arg("-R")
        .arg(format!("rdump / {}", out.display()))
        .arg(&path)
        .output()
        .unwrap();
    assert!(done.status.success());
    let mut all = Listing::new();
    walk(&out, &out, &mut all);
    all
}

/// What `e2fsck -fy` makes of an image; `None` when it gives up.
pub fn repaired_by_e2fsck(lab: &Lab, image: &[u8]) -> Option<Vec<u8>> {
    let path = lab.dir.path().join("theirs.img");
    std::fs::write(&path, image).unwrap();
    for _ in 0..2 {
        let out = Command::new("timeout")
            .args(["60", "e2fsck", "-fy"])
            .arg(&path)
            .output()
            .unwrap();
        if out.status.code()? >= 4 {
            return None;
        }
    }
    Some(std::fs::read(&path).unwrap())
}

/// What is wrong with our repair of an image, if anything is. The image afterwards.
pub fn judge(lab: &Lab, what: &str, image: &[u8]) -> (Vec<String>, Vec<u8>) {
    let mut wrong = Vec::new();
    let (report, ours) = repair(image, Mode::Yes);
    let report = report.map_or_else(|e| e.to_string(), |r| show(&r));
    match verify(&ours) {
        Ok(again) if again.is_clean() => {}
        Ok(again) => wrong.push(format!("{what}: not clean afterwards:\n{}", show(&again))),
        Err(error) => wrong.push(format!("{what}: {error}")),
    }
    let (code, text) = lab.e2fsck(&ours);
    if code != 0 || text.contains("? no") {
        wrong.push(format!("{what}: repaired\n{report}e2fsck {code}:\n{text}"));
    }
    if let Some(theirs) = repaired_by_e2fsck(lab, image) {
        let (mine, theirs) = (listing(lab, &ours), listing(lab, &theirs));
        for (path, entry) in &theirs {
            // What went to lost+found there may still have its name here.
            let mine = mine.get(path);
            let more = mine.is_some_and(|m| {
                let cut = m.2.get(..entry.2.len());
                m.0 == entry.0 && m.1 >= entry.1 && cut == Some(&entry.2[..])
            });
            if path.starts_with("lost+found/") || more {
                continue;
            }
            let found = mine.map(|e| (e.0, e.1));
            wrong.push(format!(
                "{what}: {path:?} was ({}, {}), is {found:?}; repaired\n{report}",
                entry.0, entry.1
            ));
        }
    }
    (wrong, ours)
}

/// A volume without checksums, so that debugfs and plain edits can damage it.
pub const PLAIN: &[&str] = &[
    "-t",
    "ext4",
    "-b",
    "1024",
    "-I",
    "256",
    "-O",
    "^metadata_csum,^has_journal",
];

pub fn with(options: &'static str) -> Vec<&'static str> {
    let mut all = PLAIN.to_vec();
    *all.last_mut().unwrap() = options;
    all
}

pub fn put32(bytes: &mut [u8], at: usize, n: u32) {
    bytes[at..at + 4].copy_from_slice(&n.to_le_bytes());
}

pub fn find(bytes: &[u8], what: &[u8]) -> usize {
    bytes.windows(what.len()).position(|w| w == what).unwrap()
}
