//! Every switch of a mount in every position, on contents: with any setting, the files are the
//! same.
//!
//! [`table`] has all switches; each position has a round of its own, on each format that knows it: two files that are read and written in
//! all ways at once ([`mixed`]), beside small files that come, go and change names; then both checkers, and the contents again,
//! from the image. What cannot be tried so is in [`rest`], or in the test that the table names.

#[path = "../common/mod.rs"]
mod common;
mod mixed;
mod rest;
mod table;

use common::populate::Rng;
use common::{Mounted, Scratch, check_clean, e2fsck_clean, have, have_fuse, our_mkfs};
use mixed::Mixed;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use table::{SETTERS, TUNABLES, Tried};

/// Operations on all small files.
const SMALL: usize = 250;
/// Names that small files can have.
const NAMES: u64 = 40;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Format {
    Ext4,
    F2fs,
}

/// Operations on each of the two large files: 400, or `SWITCHES_OPERATIONS`.
fn operations() -> usize {
    match std::env::var("SWITCHES_OPERATIONS") {
        Ok(text) => text.parse().expect("a number"),
        Err(_) => 400,
    }
}

/// A position: options of the mount, and what is tuned when it is there.
#[derive(Clone, Debug)]
struct Position {
    options: String,
    tuned: Option<(String, u64)>,
}

/// What small files must hold, by name.
type Small = BTreeMap<String, Vec<u8>>;

fn small_files(dir: &Path, seed: u64) -> Small {
    let mut rng = Rng::new(seed);
    let mut model = Small::new();
    let name = |rng: &mut Rng| format!("s{}", rng.below(NAMES));
    for n in 0..SMALL {
        let one = name(&mut rng);
        let path = dir.join(&one);
        let result = match rng.below(8) {
            0..4 => {
                let len = [100, 3000, 5000, 40_000][rng.below(4) as usize];
                let len = 1 + rng.below(len) as usize;
                let bytes = rng.bytes(len);
                let done = fs::write(&path, &bytes);
                model.insert(one.clone(), bytes);
                done
            }
            4 => match model.remove(&one) {
                Some(_) => fs::remove_file(&path),
                None => Ok(()),
            },
            5 => {
                let to = name(&mut rng);
                match model.remove(&one) {
                    Some(bytes) => {
                        model.insert(to.clone(), bytes);
                        fs::rename(&path, dir.join(to))
                    }
                    None => Ok(()),
                }
            }
            6 if model.contains_key(&one) => fs::File::open(&path).and_then(|f| f.sync_all()),
            _ => {
                if let Some(want) = model.get(&one) {
                    let seen = fs::read(&path).unwrap_or_else(|e| panic!("{one}: {e}"));
                    assert!(seen == *want, "{one}, operation {n}");
                }
                Ok(())
            }
        };
        result.unwrap_or_else(|e| panic!("{one}, operation {n}: {e}"));
    }
    model
}

/// A whole round.
fn round(format: Format, position: &Position, seed: u64) {
    let what = format!("{format:?}, {position:?}, seed {seed}");
    println!("{what}");
    let scratch = Scratch::new();
    let image = scratch.path("disk.img");
    match format {
        Format::Ext4 => our_mkfs(&image, &[], "64M"),
        Format::F2fs => our_mkfs(&image, &["-t", "f2fs"], "96M"),
    }
    let mounted = Mounted::new(&image, &scratch.dir("mnt"), &position.options);
    let root = &mounted.mountpoint;
    if let Some((name, value)) = &position.tuned {
        let change = format!("{name}={value}");
        common::ok(common::program().arg("tune").arg(root).arg(change));
    }
    let dir = root.join("small");
    fs::create_dir(&dir).unwrap();
    let mut files = [0, 1].map(|n| Mixed::new(root.join(format!("mixed{n}")), seed * 2 + n));
    let mut small = Small::new();
    std::thread::scope(|scope| {
        for file in &mut files {
            scope.spawn(|| file.run(operations()));
        }
        small = small_files(&dir, seed);
    });
    let large = files.map(|file| file.model().to_vec());
    mounted.unmount();
    check_clean(&image, &what);
    match format {
        Format::Ext4 if have("e2fsck") => e2fsck_clean(&image, &what),
        Format::F2fs if have("fsck.f2fs") => common::fsck_f2fs_clean(&image, &what),
        _ => {}
    }
    // With other code than the mount's, and the options' defaults.
    let copied = scratch.dir("out");
    let sources = ["cp", "-r", "IMAGE:/mixed0", "IMAGE:/mixed1", "IMAGE:/small"];
    common::ok(common::run::bw(&image, &sources).arg(&copied));
    for (n, want) in large.iter().enumerate() {
        let seen = fs::read(copied.join(format!("mixed{n}"))).unwrap();
        assert!(seen == *want, "{what}: mixed{n} after the unmount");
    }
    let names: BTreeSet<String> = fs::read_dir(copied.join("small"))
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(names, small.keys().cloned().collect(), "{what}");
    for (name, want) in &small {
        let seen = fs::read(copied.join("small").join(name)).unwrap();
        assert!(seen == *want, "{what}: {name} after the unmount");
    }
}

/// Every position that rounds try, on one format. Options first, then what is tuned, of what a mount has.
fn positions(format: Format, tunables: &BTreeSet<String>) -> Vec<Position> {
    let mut found = Vec::new();
    let of_options = table::options()
        .into_iter()
        .map(|(_, name, tried)| (name, tried));
    let of_options: Vec<_> = of_options.collect();
    for (_, tried) in &of_options {
        let options = match (tried, format) {
            (Tried::Both(options), _)
            | (Tried::Ext4(options), Format::Ext4)
            | (Tried::F2fs(options), Format::F2fs) => *options,
            _ => &[],
        };
        found.extend(options.iter().map(|text| Position {
            options: (*text).to_owned(),
            tuned: None,
        }));
    }
    for (name, tried) in TUNABLES {
        if let (Tried::Tuned(values), true) = (tried, tunables.contains(*name)) {
            found.extend(values.iter().map(|value| Position {
                options: String::new(),
                tuned: Some(((*name).to_owned(), *value)),
            }));
        }
    }
    found
}

/// The names of what a mount can tune.
fn tunables(format: Format) -> BTreeSet<String> {
    let scratch = Scratch::new();
    let image = scratch.path("disk.img");
    let kind = match format {
        Format::Ext4 => "ext4",
        Format::F2fs => "f2fs",
    };
    our_mkfs(&image, &["-t", kind], "64M");
    let mounted = Mounted::new(&image, &scratch.dir("mnt"), "");
    let text = common::ok(
        common::program()
            .args(["tune", "--json"])
            .arg(&mounted.mountpoint),
    );
    mounted.unmount();
    let list: Value = serde_json::from_str(&text).unwrap();
    let list = list.as_array().expect("a list");
    list.iter()
        .map(|t| t["name"].as_str().expect("a name").to_owned())
        .collect()
}

/// Rounds of every `of`-th position, from the `part`-th on: parts run side by side.
fn rounds(format: Format, part: usize, of: usize) {
    if !have_fuse() {
        return;
    }
    let all = positions(format, &tunables(format));
    assert!(all.len() > 30, "{}", all.len());
    for (n, position) in all.iter().enumerate().skip(part).step_by(of) {
        round(format, position, 100 + n as u64);
    }
}

#[test]
fn positions_on_ext4() {
    rounds(Format::Ext4, 0, 2);
}

#[test]
fn further_positions_on_ext4() {
    rounds(Format::Ext4, 1, 2);
}

#[test]
fn positions_on_f2fs() {
    rounds(Format::F2fs, 0, 2);
}

#[test]
fn further_positions_on_f2fs() {
    rounds(Format::F2fs, 1, 2);
}

/// Each setter of the library's `VolumeOptions` has an entry, and no other name has one.
#[test]
fn every_setter_has_an_entry() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../blockwright/src/options.rs");
    let source = fs::read_to_string(source).unwrap();
    // A row of `setters!` is `name(argument: Type) { … }`; others are written out.
    let setters: BTreeSet<&str> = source
        .lines()
        .filter_map(|line| {
            let (name, rest) = line.split_once(['(', '<'])?;
            let name = match name.strip_prefix("        ") {
                Some(row) => row,
                None if line.contains("(mut self") => name.trim().strip_prefix("pub fn ")?,
                None => return None,
            };
            let is_name = name
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
            (is_name && rest.contains(": ") && line.contains(") ")).then_some(name)
        })
        .collect();
    let entries: BTreeSet<&str> = SETTERS.iter().map(|(name, _)| *name).collect();
    assert_eq!(setters, entries);
    assert!(setters.len() > 20, "the source was understood");
}

/// No tunable is without an entry, no entry refers to what is not there.
#[test]
fn the_table_is_whole() {
    let options = table::options();
    let known = |name: &str| {
        name.ends_with("Options")
            || options
                .iter()
                .any(|(_, field, tried)| *field == name && !matches!(tried, Tried::With(_)))
    };
    let everything = options
        .iter()
        .map(|(of, field, tried)| (format!("{of}::{field}"), *field, *tried))
        .chain(
            TUNABLES
                .iter()
                .map(|(name, tried)| ((*name).to_owned(), *name, *tried)),
        )
        .chain(
            SETTERS
                .iter()
                .map(|(name, tried)| (format!("VolumeOptions::{name}()"), *name, *tried)),
        );
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (place, name, tried) in everything {
        match tried {
            Tried::With(other) => assert!(known(other), "{place}: no entry {other}"),
            Tried::Elsewhere(file, word) => {
                let text = fs::read_to_string(workspace.join(file))
                    .unwrap_or_else(|e| panic!("{place}: {file}: {e}"));
                assert!(text.contains(word), "{place}: no {word} in {file}");
            }
            Tried::Tuned(_) => assert!(
                TUNABLES.iter().any(|(tunable, _)| *tunable == name),
                "{place}: there is no such tunable"
            ),
            _ => {}
        }
    }
    if !have_fuse() {
        return;
    }
    let there: BTreeSet<String> = [Format::Ext4, Format::F2fs]
        .into_iter()
        .flat_map(tunables)
        .collect();
    for name in &there {
        assert!(
            TUNABLES.iter().any(|(entry, _)| entry == name),
            "tunable {name} has no entry in the table: where is each of its positions tried on contents?"
        );
    }
    for (name, _) in TUNABLES
        .iter()
        .filter(|(name, _)| !name.starts_with("kernel_"))
    {
        assert!(there.contains(*name), "no mount has a tunable {name}");
    }
}
